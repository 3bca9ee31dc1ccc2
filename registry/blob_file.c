/* Blobs as files: <root>/sha256/ab/cd/<64 hex digits>, written in <root>/incoming and renamed, so that a name
 * is only ever seen with all of its bytes behind it. Sessions grow in <root>/uploads. */
#include "registry/blob_file_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_writer {
    int fd;
    char *path; /* in incoming; NULL once renamed */
    uint64_t end, unsynced;
};

enum { SYNC_EVERY = 8 << 20 };

/* Bytes were written up to `end`: from time to time the kernel is told to begin with the disk, so that the
 * wait for it at the end is short. */
static void wrote(int fd, uint64_t end, size_t size, uint64_t *unsynced)
{
    *unsynced += size;
    if (*unsynced < SYNC_EVERY)
        return;
    sync_file_range(fd, (off_t)(end - *unsynced), (off_t)*unsynced, SYNC_FILE_RANGE_WRITE);
    *unsynced = 0;
}

static void file_close(struct mlo_blob_store *store)
{
    struct mlo_blob_files *s = store->state;
    free(s->root);
    free(s);
}

/* Removes what writers left behind that were killed. */
static void sweep(const char *incoming)
{
    DIR *dir = opendir(incoming);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        int fd = entry->d_name[0] == '.'
                     ? -1
                     : openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
        close(fd);
    }
    if (dir)
        closedir(dir);
}

static enum mlo_status file_open(struct mlo_blob_store *store, const char *place, struct mlo_error *err)
{
    char *incoming = NULL, *shards = NULL, *uploads = NULL;
    if (mlo_str_starts(place, "//"))
        place += 2; /* file:///path */
    if (place[0] != '/') {
        mlo_error_set(err, MLO_EINVAL, "the blob store's path '%.200s' is not absolute", place);
        mlo_error_hint(err, "write file:/absolute/path");
        return MLO_EINVAL;
    }
    struct mlo_blob_files *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    store->state = s;
    s->root = strdup(place);
    incoming = mlo_fs_join(place, "incoming", NULL);
    shards = mlo_fs_join(place, "sha256", NULL);
    uploads = mlo_fs_join(place, "uploads", NULL);
    if (!s->root || !incoming || !shards || !uploads) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_mkdirs(incoming, err));
    MLO_TRY(mlo_fs_mkdirs(shards, err));
    MLO_TRY(mlo_fs_mkdirs(uploads, err));
    if (!mlo_blob_sync_folder(place))
        status = mlo_error_errno(err, errno, "cannot use the blob store %s", place);
    sweep(incoming);
out:
    free(incoming);
    free(shards);
    free(uploads);
    if (status != MLO_OK)
        file_close(store);
    return status;
}

/* A new file in incoming, locked: the lock says that its writer lives. *path is the caller's. */
static int new_file(const struct mlo_blob_files *s, char **path)
{
    for (;;) {
        struct stat st;
        *path = mlo_fs_join(s->root, "incoming", "blob-XXXXXX", NULL);
        int fd = *path ? mkostemp(*path, O_CLOEXEC) : -1;
        if (!*path)
            errno = ENOMEM;
        if (fd < 0)
            return -1;
        (void)!fchmod(fd, 0640); /* the group's other user may look whether its writer lives */
        if (flock(fd, LOCK_EX) == 0 && fstat(fd, &st) == 0 && st.st_nlink == 1)
            return fd;
        close(fd); /* a sweep took it before it was locked */
        free(*path);
    }
}

static enum mlo_status file_begin(struct mlo_blob_writer *writer, struct mlo_error *err)
{
    const struct mlo_blob_files *s = writer->store->state;
    struct file_writer *w = calloc(1, sizeof *w);
    if (!w)
        return mlo_error_nomem(err);
    w->fd = new_file(s, &w->path);
    if (w->fd < 0) {
        enum mlo_status status = mlo_error_errno(err, errno, "cannot write to the blob store %s", s->root);
        free(w->path);
        free(w);
        return status;
    }
    writer->state = w;
    return MLO_OK;
}

static enum mlo_status write_failed(const struct mlo_blob_files *s, struct mlo_error *err)
{
    enum mlo_status status =
        mlo_error_errno(err, errno == EFBIG ? ENOSPC : errno, "cannot write to the blob store %s", s->root);
    if (status == MLO_ENOSPC)
        mlo_error_hint(err, "make room there, or move the store to a larger disk");
    return status;
}

static enum mlo_status file_write(struct mlo_blob_writer *writer, const void *bytes, size_t size,
                                  struct mlo_error *err)
{
    struct file_writer *w = writer->state;
    if (!mlo_fs_write_full(w->fd, bytes, size))
        return write_failed(writer->store->state, err);
    w->end += size;
    wrote(w->fd, w->end, size, &w->unsynced);
    return MLO_OK;
}

bool mlo_blob_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    int e = errno;
    if (fd >= 0)
        close(fd);
    errno = e;
    return ok;
}

/* A shard folder must outlive a power cut as well: its parent is synced, once by each process, since whoever
 * made it may have been killed before. The mask says whether the group may write: a worker's user beside the
 * server's. */
static bool make_folder(struct mlo_blob_files *s, unsigned number, const char *parent, const char *path)
{
    unsigned char bit = (unsigned char)(1u << number % 8);
    bool made = mkdir(path, 0777) == 0;
    if (!made && errno != EEXIST)
        return false;
    if (!made && (atomic_load(&s->durable[number / 8]) & bit))
        return true;
    if (!mlo_blob_sync_folder(parent))
        return false;
    atomic_fetch_or(&s->durable[number / 8], bit);
    return true;
}

char *mlo_blob_file_path(const struct mlo_blob_files *s, const struct mlo_digest *digest)
{
    char hex[MLO_DIGEST_TEXT_SIZE], a[3], b[3];
    mlo_digest_hex(digest, hex);
    snprintf(a, sizeof a, "%.2s", hex);
    snprintf(b, sizeof b, "%.2s", hex + 2);
    return mlo_fs_join(s->root, "sha256", a, b, hex, NULL);
}

/* The age of a blob begins anew. That of another user's file cannot: were it an orphan, and removed at this
 * moment, recording it would say so. */
static bool renew(const char *path)
{
    return utimensat(AT_FDCWD, path, NULL, 0) == 0 || errno == EACCES || errno == EPERM;
}

/* Whether these bytes are there by that name, whole; their age begins anew then. They are not replaced: a job
 * may be allowed to read that file, which is not the one that another of the same name would be. */
static bool is_there(const char *path, const struct mlo_digest *digest)
{
    struct mlo_digest have;
    struct mlo_error ignored = {0};
    return mlo_fs_exists(path) && mlo_digest_of_file(path, &have, NULL, &ignored) == MLO_OK &&
           mlo_digest_eq(&have, digest) && renew(path);
}

/* Where a blob is, and the folders above it. */
struct place {
    char *path, *one, *two, *root; /* …/sha256/ab/cd/<digest>, …/ab, …/ab/cd, …/sha256 */
    unsigned number;               /* 0xabcd */
};

static void clear_place(struct place *at)
{
    free(at->path);
    free(at->one);
    free(at->two);
    free(at->root);
}

static bool set_place(const struct mlo_blob_files *s, const struct mlo_digest *digest, struct place *at)
{
    at->path = mlo_blob_file_path(s, digest);
    at->two = at->path ? strdup(at->path) : NULL;
    at->one = at->path ? strdup(at->path) : NULL;
    at->root = mlo_fs_join(s->root, "sha256", NULL);
    at->number = digest->bytes[0] * 256u + digest->bytes[1];
    if (!at->one || !at->two || !at->root)
        return false;
    *strrchr(at->two, '/') = '\0';
    *strrchr(at->one, '/') = '\0';
    *strrchr(at->one, '/') = '\0';
    return true;
}

static bool make_folders(struct mlo_blob_files *s, const struct place *at)
{
    return make_folder(s, at->number >> 8, at->root, at->one) &&
           make_folder(s, 256 + at->number, at->one, at->two);
}

/* Durable and visible as `digest`: the file `path` of the open descriptor takes that name, unless it is
 * taken. */
static enum mlo_status publish(struct mlo_blob_files *s, int fd, const char *from,
                               const struct mlo_digest *digest, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place at = {0};
    if (!set_place(s, digest, &at)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    futimens(fd, NULL); /* its age as a blob begins now, also where its last piece is days old */
    if (fchmod(fd, 0444) != 0 || fsync(fd) != 0 || !make_folders(s, &at) ||
        (is_there(at.path, digest) ? unlink(from) : rename(from, at.path)) != 0 ||
        !mlo_blob_sync_folder(at.two))
        status = mlo_error_errno(err, errno, "cannot store a blob in %s", s->root);
out:
    clear_place(&at);
    return status;
}

/* Whether it was published, by somebody who was killed before its name was on the disk: then it is now. */
static bool was_published(struct mlo_blob_files *s, const struct mlo_digest *digest)
{
    struct place at = {0};
    bool is = set_place(s, digest, &at) && is_there(at.path, digest) && make_folders(s, &at) &&
              mlo_blob_sync_folder(at.two);
    clear_place(&at);
    return is;
}

static enum mlo_status file_finish(struct mlo_blob_writer *writer, const struct mlo_digest *digest,
                                   struct mlo_error *err)
{
    struct file_writer *w = writer->state;
    enum mlo_status status = publish(writer->store->state, w->fd, w->path, digest, err);
    if (status == MLO_OK) {
        free(w->path);
        w->path = NULL;
    }
    return status;
}

static void file_end(struct mlo_blob_writer *writer)
{
    struct file_writer *w = writer->state;
    close(w->fd);
    if (w->path)
        unlink(w->path);
    free(w->path);
    free(w);
}

/* --- sessions: <root>/uploads/<id>, locked by who appends -------------------------------------------------
 */

static char *session_path(const struct mlo_blob_files *s, const struct mlo_blob_session *session)
{
    return mlo_fs_join(s->root, "uploads", session->id, NULL);
}

static enum mlo_status gone(const struct mlo_blob_session *session, struct mlo_error *err)
{
    mlo_error_set(err, MLO_ENOTFOUND, "the bytes of upload %s are not in the store any more", session->id);
    mlo_error_hint(err, "begin the upload again");
    return MLO_ENOTFOUND;
}

static enum mlo_status file_session_begin(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                          struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    char *path = session_path(s, session);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    enum mlo_status status = MLO_OK;
    if (fd < 0)
        status = path ? mlo_error_errno(err, errno, "cannot write to the blob store %s", s->root)
                      : mlo_error_nomem(err);
    else
        close(fd);
    free(path);
    return status;
}

struct file_piece {
    int fd;
    bool begun;             /* what lay behind the end is cut off */
    uint64_t end, unsynced; /* unsynced: bytes whose writing the kernel was not told to begin */
};

/* Whether the path still leads to the file that is open and locked: before it was locked it may have been
 * published, and be a blob now. */
static bool is_that(const char *path, int fd, uint64_t *size_bytes)
{
    struct stat named, opened;
    if (stat(path, &named) != 0 || fstat(fd, &opened) != 0 || named.st_ino != opened.st_ino ||
        named.st_dev != opened.st_dev)
        return false;
    *size_bytes = (uint64_t)opened.st_size;
    return true;
}

static enum mlo_status file_piece_open(struct mlo_blob_piece *piece, struct mlo_error *err)
{
    const struct mlo_blob_files *s = piece->store->state;
    const struct mlo_blob_session *session = piece->session;
    uint64_t there;
    enum mlo_status status = MLO_OK;
    char *path = session_path(s, session);
    struct file_piece *p = calloc(1, sizeof *p);
    int fd = path && p ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (!path || !p) {
        status = mlo_error_nomem(err);
    } else if (fd < 0 && errno == ENOENT) {
        status = gone(session, err);
    } else if (fd < 0) {
        status = mlo_error_errno(err, errno, "cannot write to the blob store %s", s->root);
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        status = mlo_error_set(err, MLO_ECONFLICT, "another request is appending to upload %s", session->id);
        mlo_error_hint(err, "wait for it, then ask where the upload stands");
    } else if (!is_that(path, fd, &there) || there < session->size_bytes) {
        status = gone(session, err); /* or a disk lost what it had promised */
    } else if (lseek(fd, (off_t)session->size_bytes, SEEK_SET) < 0) {
        status = mlo_error_errno(err, errno, "cannot write to the blob store %s", s->root);
    }
    free(path);
    if (status != MLO_OK) {
        if (fd >= 0)
            close(fd);
        free(p);
        return status;
    }
    p->fd = fd;
    p->end = session->size_bytes;
    piece->state = p;
    return MLO_OK;
}

static enum mlo_status file_piece_write(struct mlo_blob_piece *piece, const void *bytes, size_t size,
                                        struct mlo_error *err)
{
    struct file_piece *p = piece->state;
    if (!p->begun && ftruncate(p->fd, (off_t)piece->session->size_bytes) != 0)
        return write_failed(piece->store->state, err);
    p->begun = true;
    if (!mlo_fs_write_full(p->fd, bytes, size))
        return write_failed(piece->store->state, err);
    p->end += size;
    wrote(p->fd, p->end, size, &p->unsynced);
    return MLO_OK;
}

static enum mlo_status file_piece_commit(struct mlo_blob_piece *piece, struct mlo_error *err)
{
    struct file_piece *p = piece->state;
    return fdatasync(p->fd) == 0 ? MLO_OK : write_failed(piece->store->state, err);
}

static void file_piece_end(struct mlo_blob_piece *piece)
{
    struct file_piece *p = piece->state;
    close(p->fd);
    free(p);
}

static enum mlo_status file_session_check(struct mlo_blob_store *store,
                                          const struct mlo_blob_session *session, struct mlo_error *err)
{
    struct stat st;
    char *path = session_path(store->state, session);
    if (!path)
        return mlo_error_nomem(err);
    int failed = stat(path, &st) == 0 ? 0 : errno;
    free(path);
    if (failed && failed != ENOENT)
        return mlo_error_errno(err, failed, "cannot look at upload %s", session->id);
    return failed || (uint64_t)st.st_size < session->size_bytes ? gone(session, err) : MLO_OK;
}

static enum mlo_status file_session_publish(struct mlo_blob_store *store,
                                            const struct mlo_blob_session *session,
                                            const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_blob_files *s = store->state;
    struct mlo_blob_piece piece = {.store = store, .session = (struct mlo_blob_session *)session};
    char *path = session_path(s, session);
    if (!path)
        return mlo_error_nomem(err);
    enum mlo_status status = file_piece_open(&piece, err); /* nobody appends */
    if (status == MLO_OK) {
        int fd = ((struct file_piece *)piece.state)->fd;
        status = ftruncate(fd, (off_t)session->size_bytes) == 0 ? publish(s, fd, path, digest, err)
                                                                : write_failed(s, err);
        file_piece_end(&piece);
    } else if (status == MLO_ENOTFOUND && was_published(s, digest)) {
        status = MLO_OK;
    }
    free(path);
    return status;
}

static enum mlo_status file_session_drop(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                         struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    enum mlo_status status = MLO_OK;
    char *path = session_path(s, session);
    if (!path)
        return mlo_error_nomem(err);
    if (unlink(path) != 0 && errno != ENOENT)
        status = mlo_error_errno(err, errno, "cannot remove upload %s", session->id);
    free(path);
    return status;
}

/* --- reading ----------------------------------------------------------------------------------------------
 */

static enum mlo_status file_open_fd(struct mlo_blob_store *store, const struct mlo_digest *digest, int *fd,
                                    uint64_t *size_bytes, struct mlo_error *err)
{
    struct stat st;
    char text[MLO_DIGEST_TEXT_SIZE], *path = mlo_blob_file_path(store->state, digest);
    *fd = -1;
    if (!path)
        return mlo_error_nomem(err);
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    int e = errno;
    free(path);
    if (*fd >= 0 && fstat(*fd, &st) == 0) {
        if (size_bytes)
            *size_bytes = (uint64_t)st.st_size;
        return MLO_OK;
    }
    return mlo_error_errno(err, e, "blob %s", mlo_digest_text(digest, text));
}

static enum mlo_status file_path(struct mlo_blob_store *store, const struct mlo_digest *digest, char **path,
                                 struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    *path = mlo_blob_file_path(store->state, digest);
    if (!*path)
        return mlo_error_nomem(err);
    if (access(*path, R_OK) == 0)
        return MLO_OK;
    enum mlo_status status = mlo_error_errno(err, errno, "blob %s", mlo_digest_text(digest, text));
    free(*path);
    *path = NULL;
    return status;
}

/* Whether the folder has nothing in it that is not hidden. */
static bool folder_empty(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    bool empty = true;
    while (dir && empty && (entry = readdir(dir)))
        empty = entry->d_name[0] == '.';
    if (dir)
        closedir(dir);
    return empty;
}

static enum mlo_status file_empty(struct mlo_blob_store *store, bool *empty, struct mlo_error *err)
{
    const struct mlo_blob_files *s = store->state;
    char *shards = mlo_fs_join(s->root, "sha256", NULL);
    if (!shards)
        return mlo_error_nomem(err);
    *empty = folder_empty(shards);
    free(shards);
    return MLO_OK;
}

static enum mlo_status file_ping(struct mlo_blob_store *store, uint32_t budget_ms, struct mlo_error *err)
{
    static const char *const folders[] = {"incoming", "sha256", "uploads"};
    const struct mlo_blob_files *s = store->state;
    MLO_UNUSED(budget_ms);
    for (size_t i = 0; i < MLO_COUNT(folders); i++) {
        char *path = mlo_fs_join(s->root, folders[i], NULL);
        if (!path)
            return mlo_error_nomem(err);
        int failed = access(path, R_OK | W_OK | X_OK) == 0 ? 0 : errno;
        free(path);
        if (failed)
            return mlo_error_set(err, MLO_EUNAVAILABLE, "the blob store cannot be written: %s/%s: %s",
                                 s->root, folders[i], strerror(failed));
    }
    return MLO_OK;
}

const struct mlo_blob_backend mlo_blob_backend_file = {
    .scheme = "file",
    .open = file_open,
    .close = file_close,
    .begin = file_begin,
    .write = file_write,
    .finish = file_finish,
    .end = file_end,
    .session_begin = file_session_begin,
    .piece_open = file_piece_open,
    .piece_write = file_piece_write,
    .piece_commit = file_piece_commit,
    .piece_end = file_piece_end,
    .session_check = file_session_check,
    .session_publish = file_session_publish,
    .session_drop = file_session_drop,
    .open_fd = file_open_fd,
    .path = file_path,
    .ping = file_ping,
    .empty = file_empty,
    .list = mlo_blob_file_list,
    .remove = mlo_blob_file_remove,
    .put_aside = mlo_blob_file_put_aside,
    .leftovers = mlo_blob_file_leftovers,
    .leftover_drop = mlo_blob_file_leftover_drop,
};
