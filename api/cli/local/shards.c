/* Calibration that is kept, or done in parts: options of `quantize` and `observe`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"
#include "pipeline/steps/checkpoint.h"

/* Where long work is kept: --checkpoints, else a folder of the user's cache. */
enum mlo_status mlo_local_checkpoints(const struct mlo_cli *cli, char **out, struct mlo_error *err)
{
    const char *given = mlo_cli_opt(cli, "checkpoints"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    *out = NULL;
    if (given)
        *out = strdup(given);
    else if (cache && *cache)
        *out = mlo_fs_join(cache, "mlopt", "checkpoints", NULL);
    else if (home && *home)
        *out = mlo_fs_join(home, ".cache", "mlopt", "checkpoints", NULL);
    else
        return MLO_OK;
    if (!*out)
        return mlo_error_nomem(err);
    struct mlo_error told = {0};
    enum mlo_status status = mlo_fs_mkdirs_private(*out, &told);
    if (status == MLO_OK) {
        mlo_checkpoint_trim(*out);
        return MLO_OK;
    }
    free(*out); /* a cache that cannot be written is none; a folder that was asked for is an error */
    *out = NULL;
    return given ? mlo_error_set(err, status, "%s", told.message) : MLO_OK;
}

/* "2/4": the second of four. */
enum mlo_status mlo_local_shard(const struct mlo_cli *cli, int64_t *shard, int64_t *shards,
                                struct mlo_error *err)
{
    const char *text = mlo_cli_opt(cli, "shard");
    long long part = 1, parts = 1;
    int end = 0;
    if (text && (sscanf(text, "%lld/%lld%n", &part, &parts, &end) != 2 || text[end] || part < 1 ||
                 part > parts || parts > 1000000)) {
        mlo_error_set(err, MLO_EUSAGE, "--shard %s is no I/N with 1 <= I <= N", text);
        return MLO_EUSAGE;
    }
    *shard = part - 1;
    *shards = parts;
    return MLO_OK;
}

enum mlo_status mlo_local_statistics(const struct mlo_cli *cli, const char ***out, struct mlo_error *err)
{
    size_t count = 0;
    while (mlo_cli_opt_at(cli, "statistics", count))
        count++;
    if (!count)
        return MLO_OK;
    *out = calloc(count + 1, sizeof **out);
    if (!*out)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        (*out)[i] = mlo_cli_opt_at(cli, "statistics", i);
    return MLO_OK;
}
