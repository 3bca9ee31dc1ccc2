/* Upkeep of a store of files: walking it, removing, putting aside. */
#include "registry/blob_file_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file within a folder, for walks; a failure ends it. */
typedef enum mlo_status file_fn(void *arg, int folder, const char *name, const struct stat *st,
                                struct mlo_error *err);

/* Each regular file (or folder) of a folder; an absent folder has none. */
static enum mlo_status each(const char *path, mode_t type, file_fn *fn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct dirent *entry;
    struct stat st;
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? MLO_OK : mlo_error_errno(err, errno, "cannot list %s", path);
    while (status == MLO_OK) {
        errno = 0;
        entry = readdir(dir);
        if (!entry) {
            if (errno)
                status = mlo_error_errno(err, errno, "cannot list %s", path);
            break;
        }
        if (entry->d_name[0] == '.')
            continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno != ENOENT) /* it went while we looked */
                status = mlo_error_errno(err, errno, "cannot look at %s/%s", path, entry->d_name);
        } else if ((st.st_mode & S_IFMT) == type) {
            status = fn(arg, dirfd(dir), entry->d_name, &st, err);
        }
    }
    closedir(dir);
    return status;
}

static int64_t modified_us(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000 + st->st_mtim.tv_nsec / 1000;
}

/* --- blobs ----------------------------------------------------------------------------------------- */

struct walk {
    char *path; /* of the folder that is walked */
    mlo_blob_entry_fn *fn;
    void *arg;
};

static enum mlo_status blob_file(void *arg, int folder, const char *name, const struct stat *st,
                                 struct mlo_error *err)
{
    const struct walk *w = arg;
    struct mlo_blob_entry entry = {.size_bytes = (uint64_t)st->st_size, .modified_us = modified_us(st)};
    MLO_UNUSED(folder);
    return mlo_blob_name_digest(name, '\0', &entry.digest) ? w->fn(w->arg, &entry, err) : MLO_OK;
}

static enum mlo_status blob_folder(void *arg, int folder, const char *name, const struct stat *st,
                                   struct mlo_error *err)
{
    struct walk *w = arg;
    char *path = mlo_fs_join(w->path, name, NULL);
    MLO_UNUSED(folder);
    MLO_UNUSED(st);
    enum mlo_status status = path ? each(path, S_IFREG, blob_file, w, err) : mlo_error_nomem(err);
    free(path);
    return status;
}

enum mlo_status mlo_blob_file_list(struct mlo_blob_store *store, unsigned shard, mlo_blob_entry_fn *fn,
                                   void *arg, struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    char one[3];
    snprintf(one, sizeof one, "%02x", shard & 0xffu);
    struct walk w = {.path = mlo_fs_join(s->root, "sha256", one, NULL), .fn = fn, .arg = arg};
    enum mlo_status status = w.path ? each(w.path, S_IFDIR, blob_folder, &w, err) : mlo_error_nomem(err);
    free(w.path);
    return status;
}

/* Removed names must stay removed after a power cut, or gc would note as gone what comes back. */
static bool sync_parent(char *path)
{
    char *slash = strrchr(path, '/');
    *slash = '\0';
    bool ok = mlo_blob_sync_folder(path);
    *slash = '/';
    return ok;
}

enum mlo_status mlo_blob_file_remove(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                     struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    enum mlo_status status = MLO_OK;
    char text[MLO_DIGEST_TEXT_SIZE], *path = mlo_blob_file_path(s, digest);
    if (!path)
        return mlo_error_nomem(err);
    if (unlink(path) != 0 ? errno != ENOENT : !sync_parent(path))
        status = mlo_error_errno(err, errno, "cannot remove blob %s from %s", mlo_digest_text(digest, text),
                                 s->root);
    free(path);
    return status;
}

enum mlo_status mlo_blob_file_put_aside(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                        const char *name, struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    enum mlo_status status = MLO_OK;
    char text[MLO_DIGEST_TEXT_SIZE], *path = mlo_blob_file_path(s, digest);
    char *folder = mlo_fs_join(s->root, "quarantine", NULL);
    char *to = mlo_fs_join(s->root, "quarantine", name, NULL);
    if (!path || !folder || !to) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_mkdirs_private(folder, err));
    if (rename(path, to) != 0)
        status = mlo_error_errno(err, errno, "cannot put blob %s aside", mlo_digest_text(digest, text));
    else if (!mlo_blob_sync_folder(folder) || !sync_parent(path))
        status = mlo_error_errno(err, errno, "cannot put blob %s aside", mlo_digest_text(digest, text));
out:
    free(path);
    free(folder);
    free(to);
    return status;
}

/* --- what else is there ---------------------------------------------------------------------------- */

static const struct {
    enum mlo_blob_leftover_kind kind;
    const char *folder;
} folders[] = {
    {MLO_LEFTOVER_INCOMING, "incoming"},
    {MLO_LEFTOVER_SESSION, "uploads"},
    {MLO_LEFTOVER_QUARANTINE, "quarantine"},
};

struct rest {
    size_t at; /* in folders */
    mlo_blob_leftover_fn *fn;
    void *arg;
};

static enum mlo_status rest_file(void *arg, int folder, const char *name, const struct stat *st,
                                 struct mlo_error *err)
{
    const struct rest *r = arg;
    struct mlo_blob_leftover left = {
        .kind = folders[r->at].kind, .size_bytes = (uint64_t)st->st_size, .modified_us = modified_us(st)};
    char *path = mlo_fs_join(folders[r->at].folder, name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    left.name = path;
    if (left.kind == MLO_LEFTOVER_SESSION)
        snprintf(left.session, sizeof left.session, "%s", name);
    if (left.kind != MLO_LEFTOVER_QUARANTINE) { /* its writer holds a lock on it */
        int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        left.alive = fd >= 0 ? flock(fd, LOCK_EX | LOCK_NB) != 0 : errno == EACCES; /* another user's */
        if (fd >= 0)
            close(fd);
    }
    enum mlo_status status = r->fn(r->arg, &left, err);
    free(path);
    return status;
}

enum mlo_status mlo_blob_file_leftovers(struct mlo_blob_store *store, mlo_blob_leftover_fn *fn, void *arg,
                                        struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(folders); i++) {
        struct rest r = {.at = i, .fn = fn, .arg = arg};
        char *path = mlo_fs_join(s->root, folders[i].folder, NULL);
        status = path ? each(path, S_IFREG, rest_file, &r, err) : mlo_error_nomem(err);
        free(path);
    }
    return status;
}

enum mlo_status mlo_blob_file_leftover_drop(struct mlo_blob_store *store,
                                            const struct mlo_blob_leftover *left, bool *removed,
                                            struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    enum mlo_status status = MLO_OK;
    char *path = mlo_fs_join(s->root, left->name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    *removed = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        *removed = unlink(path) == 0; /* under the lock: a writer that comes now finds it gone */
    if (fd < 0 ? errno != ENOENT : !*removed && errno != EWOULDBLOCK && errno != ENOENT)
        status = mlo_error_errno(err, errno, "cannot remove %s", path);
    if (fd >= 0)
        close(fd);
    free(path);
    return status;
}
