#include "pipeline/service/blob_cache_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".blob"

enum { FILES_MAX = 65536 };

/* From the cache, where it is there and whole. */
static bool take(const char *kept, const struct mlo_digest *digest, const char *to)
{
    struct mlo_digest have;
    struct mlo_error err = {0};
    if (link(kept, to) != 0)
        return false;
    if (mlo_digest_of_file(to, &have, NULL, &err) == MLO_OK && mlo_digest_eq(&have, digest)) {
        utimensat(AT_FDCWD, kept, NULL, 0); /* it was used now; if it has gone meanwhile we have it still */
        return true;
    }
    mlo_log(MLO_LOG_WARN, "a cached blob is damaged, and fetched again", "file", kept, NULL);
    unlink(to);
    unlink(kept);
    return false;
}

/* Links `to`; a symbolic link where the store is on another disk. External data must lie in the model's
 * folder, links followed, so a hard one is better. */
static enum mlo_status link_to(const char *path, const char *to, struct mlo_error *err)
{
    if (link(path, to) == 0 || symlink(path, to) == 0)
        return MLO_OK;
    return mlo_error_errno(err, errno, "cannot place '%s' in the scratch folder", mlo_fs_basename(to));
}

/* Keeps what was fetched, if that can be done: a full disk is no reason to fail a job that has its input. */
static void keep(const struct mlo_blob_cache *cache, const char *fetched, const char *kept)
{
    static const char *const unfinished[] = {
        NULL}; /* they are in the scratch folder, which goes with its worker */
    const struct mlo_cache_limits limits = {SUFFIX, unfinished, FILES_MAX, cache->max_bytes};
    struct mlo_error err = {0};
    if (mlo_fs_mkdirs_private(cache->dir, &err) != MLO_OK || chmod(fetched, 0444) != 0 ||
        rename(fetched, kept) != 0)
        return;
    int folder = open(cache->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        mlo_cache_trim(folder, &limits);
        close(folder);
    }
}

static enum mlo_status fetch_new(const struct mlo_blob_cache *cache, const struct mlo_digest *digest,
                                 const char *kept, mlo_blob_fetch_fn *fetch, void *arg, const char *to,
                                 struct mlo_error *err)
{
    char *room = NULL, *path = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_fs_tempdir(cache->scratch, "fetch-", &room, err));
    MLO_TRY(fetch(arg, digest, room, &path, err));
    MLO_TRY(link_to(path, to, err));
    if (mlo_str_starts(path, room))
        keep(cache, path, kept);
out:
    if (room)
        mlo_fs_remove_tree(room);
    free(room);
    free(path);
    return status;
}

enum mlo_status mlo_blob_cache_place(const struct mlo_blob_cache *cache, const struct mlo_digest *digest,
                                     mlo_blob_fetch_fn *fetch, void *arg, const char *to, bool *hit,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + sizeof SUFFIX];
    snprintf(name, sizeof name, "%s%s", mlo_digest_hex(digest, hex), SUFFIX);
    char *kept = mlo_fs_join(cache->dir, name, NULL);
    if (!kept)
        return mlo_error_nomem(err);
    bool found = take(kept, digest, to);
    if (!found)
        status = fetch_new(cache, digest, kept, fetch, arg, to, err);
    if (hit)
        *hit = found;
    free(kept);
    return status;
}
