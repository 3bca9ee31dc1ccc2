/* Opening a plan: trust, the cache, the machine, and then the engine's part. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engines/plans_impl.h"

struct mlo_plan_file {
    void *bytes;
    size_t size;
    json_t *fingerprint;
    const struct mlo_engine *engine;
    struct mlo_plan *plan;
};

void mlo_plan_close(struct mlo_plan_file *file)
{
    if (!file)
        return;
    if (file->plan)
        file->engine->free_plan(file->plan);
    if (file->bytes)
        munmap(file->bytes, file->size);
    json_decref(file->fingerprint);
    free(file);
}

static enum mlo_status check_seal(const char *path, const struct plan_seal *seal, bool is_signed,
                                  const struct mlo_plan_open_options *options, struct mlo_error *err)
{
    if (!is_signed) {
        mlo_error_set(err, MLO_EAUTH, "the plan %s is not signed", path);
        mlo_error_hint(err, "a plan is a program: compile the model on this machine instead");
        return MLO_EAUTH;
    }
    enum mlo_status status = plan_trusts(&seal->signer, options, err);
    if (status == MLO_OK && !plan_seal_holds(seal))
        status = mlo_error_set(err, MLO_EAUTH, "the signature of the plan %s is wrong", path);
    return status;
}

static enum mlo_status check_model(const json_t *fingerprint, const struct mlo_plan_open_options *options,
                                   struct mlo_error *err)
{
    char want[MLO_DIGEST_TEXT_SIZE];
    const char *have = mlo_json_str(fingerprint, "model", "");
    if (!options || !options->model || strcmp(have, mlo_digest_text(options->model, want)) == 0)
        return MLO_OK;
    return mlo_error_set(err, MLO_ESTALE, "the plan was made for the model %s, not for %s", have, want);
}

static enum mlo_status map(int fd, const struct plan_head *sealed, struct mlo_plan_file *file,
                           const struct mlo_plan_open_options *options, struct mlo_error *err)
{
    enum mlo_status status;
    file->size = (size_t)sealed->content_bytes;
    file->bytes = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file->bytes == MAP_FAILED) {
        file->bytes = NULL;
        return mlo_error_errno(err, errno, "cannot map the plan");
    }
    /* from here on only what was hashed is read */
    struct plan_head head;
    memcpy(&head, file->bytes, sizeof head);
    if (memcmp(&head, sealed, sizeof head) != 0)
        return mlo_error_set(err, MLO_EDIGEST, "the plan was changed after it was signed");
    MLO_TRY(mlo_json_parse((const char *)file->bytes + sizeof head, head.fingerprint_bytes,
                           "the plan's fingerprint", &file->fingerprint, err));
    MLO_TRY(mlo_plan_check_machine(file->fingerprint, &file->engine, err));
    MLO_TRY(check_model(file->fingerprint, options, err));
    status = file->engine->restore((const char *)file->bytes + head.head_bytes,
                                   file->size - (size_t)head.head_bytes, &file->plan, err);
    if ((status == MLO_EFORMAT || status == MLO_ESTALE) && err) {
        err->hint[0] = '\0'; /* of whom reads models */
        mlo_error_hint(err, "compile the model again: mlopt compile MODEL.onnx --out FILE.plan");
    }
out:
    return status;
}

static enum mlo_status open_content(int fd, const struct plan_head *head, const struct plan_seal *seal,
                                    const struct mlo_plan_open_options *options, bool anew, bool *damaged,
                                    struct mlo_plan_file **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct plan_content content = {.fd = -1};
    struct mlo_plan_file *file = calloc(1, sizeof *file);
    if (!file)
        return mlo_error_nomem(err);
    MLO_TRY(plan_content(fd, head, seal, options, anew, &content, err));
    status = map(content.fd, head, file, options, err);
    *damaged = status != MLO_OK && content.was_there && !plan_content_is_whole(&content, head, seal);
    if (status == MLO_OK) {
        *out = file;
        file = NULL;
    }
out:
    if (content.fd >= 0)
        close(content.fd);
    mlo_plan_close(file);
    return status;
}

enum mlo_status mlo_plan_open(const char *path, const struct mlo_plan_open_options *options,
                              struct mlo_plan_file **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct plan_head head;
    struct plan_seal seal;
    bool is_signed, damaged = false;
    struct mlo_error why = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mlo_error_errno(err, errno, "cannot open %s", path);
    MLO_TRY(plan_read_ends(fd, path, &head, &seal, &is_signed, err));
    MLO_TRY(check_seal(path, &seal, is_signed, options, err));
    status = open_content(fd, &head, &seal, options, false, &damaged, out, &why);
    if (damaged) { /* the copy in the cache: another one */
        why = (struct mlo_error){0};
        status = open_content(fd, &head, &seal, options, true, &damaged, out, &why);
    }
    if (status != MLO_OK && err)
        *err = why;
out:
    close(fd);
    return status;
}

const struct mlo_engine *mlo_plan_file_engine(const struct mlo_plan_file *file)
{
    return file->engine;
}

struct mlo_plan *mlo_plan_file_plan(const struct mlo_plan_file *file)
{
    return file->plan;
}

unsigned mlo_plan_file_threads(const struct mlo_plan_file *file)
{
    return (unsigned)mlo_json_i64(file->fingerprint, "threads", 1);
}

const json_t *mlo_plan_file_fingerprint(const struct mlo_plan_file *file)
{
    return file->fingerprint;
}

const struct mlo_model *mlo_plan_file_model(const struct mlo_plan_file *file)
{
    return file->engine->interface(file->plan);
}
