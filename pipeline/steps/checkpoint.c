#include "pipeline/steps/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SUFFIX ".checkpoint"
#define FRESH "new-"

static const double SECONDS = 2, PART = 0.05;

enum mlo_status mlo_checkpoint_open(const struct mlo_step_context *ctx, const json_t *identity,
                                    struct mlo_checkpoint *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT, name = MLO_BUF_INIT, fresh = MLO_BUF_INIT;
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE];
    *out = (struct mlo_checkpoint){.seconds = ctx->checkpoint_seconds ? ctx->checkpoint_seconds : SECONDS,
                                   .last_ns = mlo_clock_ns()};
    if (!ctx->checkpoint_dir)
        return MLO_OK;
    mlo_json_canonical(identity, &text);
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    mlo_buf_printf(&name, "%s%s", mlo_digest_hex(&digest, hex), SUFFIX);
    mlo_buf_printf(&fresh, "%s%s", FRESH, hex);
    if (!mlo_buf_ok(&text) || !mlo_buf_ok(&name) || !mlo_buf_ok(&fresh) ||
        !(out->path = mlo_fs_join(ctx->checkpoint_dir, mlo_buf_str(&name), NULL)) ||
        !(out->fresh = mlo_fs_join(ctx->checkpoint_dir, mlo_buf_str(&fresh), NULL))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_mkdirs_private(ctx->checkpoint_dir, err));
out:
    mlo_buf_clear(&text);
    mlo_buf_clear(&name);
    mlo_buf_clear(&fresh);
    if (status != MLO_OK)
        mlo_checkpoint_close(out);
    return status;
}

bool mlo_checkpoint_due(const struct mlo_checkpoint *checkpoint, double fraction)
{
    if (!checkpoint->path)
        return false;
    if (checkpoint->seconds < 0)
        return true;
    return fraction - checkpoint->fraction >= PART &&
           (double)(mlo_clock_ns() - checkpoint->last_ns) * 1e-9 >= checkpoint->seconds;
}

void mlo_checkpoint_written(struct mlo_checkpoint *checkpoint, double fraction, bool ok)
{
    checkpoint->fraction = fraction;
    checkpoint->last_ns = mlo_clock_ns();
    if (!ok || rename(checkpoint->fresh, checkpoint->path) < 0)
        mlo_checkpoint_close(checkpoint);
}

void mlo_checkpoint_close(struct mlo_checkpoint *checkpoint)
{
    free(checkpoint->path);
    free(checkpoint->fresh);
    checkpoint->path = checkpoint->fresh = NULL;
}

void mlo_checkpoint_trim(const char *dir)
{
    static const char *const unfinished[] = {FRESH, NULL};
    static const struct mlo_cache_limits limits = {
        .suffix = SUFFIX, .unfinished = unfinished, .max_files = 32, .max_bytes = (uint64_t)2 << 30};
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return;
    mlo_cache_trim(folder, &limits);
    close(folder);
}
