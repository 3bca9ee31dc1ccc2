/* What all backends share: the choice by URL, hashing on the way, checked reads. */
#include "registry/blob_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 18, READ_TWICE = 8 << 20 };

static const struct mlo_blob_backend *const backends[] = {&mlo_blob_backend_file, &mlo_blob_backend_s3};

enum mlo_status mlo_blob_store_open(const char *url, struct mlo_blob_store **out, struct mlo_error *err)
{
    *out = NULL;
    size_t n = strcspn(url, ":");
    for (size_t i = 0; url[n] == ':' && i < MLO_COUNT(backends); i++) {
        if (strlen(backends[i]->scheme) != n || strncmp(url, backends[i]->scheme, n) != 0)
            continue;
        struct mlo_blob_store *store = calloc(1, sizeof *store);
        if (!store)
            return mlo_error_nomem(err);
        store->backend = backends[i];
        enum mlo_status status = store->backend->open(store, url + n + 1, err);
        if (status != MLO_OK)
            free(store);
        else
            *out = store;
        return status;
    }
    mlo_error_set(err, MLO_EINVAL, "'%.200s' is no address of a blob store", url);
    mlo_error_hint(err, "write file:/absolute/path, or s3:bucket/prefix?endpoint=https://host");
    return MLO_EINVAL;
}

void mlo_blob_store_close(struct mlo_blob_store *store)
{
    if (!store)
        return;
    store->backend->close(store);
    free(store);
}

enum mlo_status mlo_blob_writer_open(struct mlo_blob_store *store, struct mlo_blob_writer **out,
                                     struct mlo_error *err)
{
    return mlo_blob_writer_open_expecting(store, NULL, 0, out, err);
}

static enum mlo_status write_to_store(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    struct mlo_blob_writer *writer = arg;
    return writer->store->backend->write(writer, bytes, size, err);
}

static enum mlo_status open_writer(struct mlo_blob_store *store, const struct mlo_digest *expected,
                                   uint64_t size_bytes, bool may_pass, struct mlo_blob_writer **out,
                                   struct mlo_error *err)
{
    *out = NULL;
    struct mlo_blob_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_blob_intake_open(&writer->in, write_to_store, writer, err));
    writer->store = store;
    writer->expects = expected != NULL;
    if (expected)
        writer->expected = *expected;
    writer->expected_size = size_bytes;
    writer->may_pass = may_pass;
    MLO_TRY(store->backend->begin(writer, err));
    *out = writer;
    return MLO_OK;
out:
    mlo_blob_intake_close(&writer->in);
    free(writer);
    return status;
}

enum mlo_status mlo_blob_writer_open_expecting(struct mlo_blob_store *store,
                                               const struct mlo_digest *expected, uint64_t size_bytes,
                                               struct mlo_blob_writer **out, struct mlo_error *err)
{
    return open_writer(store, expected, size_bytes, false, out, err);
}

enum mlo_status mlo_blob_writer_open_passing(struct mlo_blob_store *store, const struct mlo_digest *expected,
                                             uint64_t size_bytes, struct mlo_blob_writer **out,
                                             struct mlo_error *err)
{
    return open_writer(store, expected, size_bytes, true, out, err);
}

/* Past the hash: the store's server computes it. */
static enum mlo_status pass(struct mlo_blob_writer *writer, const void *bytes, size_t size,
                            struct mlo_error *err)
{
    writer->in.size_bytes += size;
    return write_to_store(writer, bytes, size, err);
}

enum mlo_status mlo_blob_writer_write(struct mlo_blob_writer *writer, const void *bytes, size_t size,
                                      struct mlo_error *err)
{
    if (writer->spent)
        return mlo_error_set(err, MLO_EINTERNAL, "the writer of a blob was used after its end");
    enum mlo_status status =
        writer->passes ? pass(writer, bytes, size, err) : mlo_blob_intake_add(&writer->in, bytes, size, err);
    writer->spent = status != MLO_OK;
    return status;
}

uint64_t mlo_blob_writer_size(const struct mlo_blob_writer *writer)
{
    return writer->in.size_bytes;
}

void mlo_blob_writer_digest(struct mlo_blob_writer *writer, struct mlo_digest *out)
{
    struct mlo_hash_state state;
    (void)!mlo_blob_intake_settle(&writer->in, NULL); /* the next call says what was not written */
    mlo_hasher_save(writer->in.hasher, &state);
    mlo_hasher_final(writer->in.hasher, out);
    mlo_hasher_restore(writer->in.hasher, &state);
}

static enum mlo_status wrong_digest(const struct mlo_digest *expected, const struct mlo_digest *got,
                                    struct mlo_error *err)
{
    char a[MLO_DIGEST_TEXT_SIZE], b[MLO_DIGEST_TEXT_SIZE];
    return mlo_error_set(err, MLO_EDIGEST, "the bytes hash to %s, not to %s", mlo_digest_text(got, a),
                         mlo_digest_text(expected, b));
}

static enum mlo_status send_again(struct mlo_error *err)
{
    mlo_error_hint(err, "the bytes changed on the way, or the digest is of another file: send them again");
    return MLO_EDIGEST;
}

/* Whoever checked them says only that they are others. */
static enum mlo_status finish_passing(struct mlo_blob_writer *writer, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = writer->store->backend->finish(writer, &writer->expected, err);
    if (status != MLO_EDIGEST)
        return status;
    mlo_error_set(err, status, "the bytes do not hash to %s", mlo_digest_text(&writer->expected, text));
    return send_again(err);
}

static enum mlo_status finish_hashed(struct mlo_blob_writer *writer, const struct mlo_digest *expected,
                                     struct mlo_digest *computed, struct mlo_error *err)
{
    enum mlo_status status = mlo_blob_intake_settle(&writer->in, err);
    if (status != MLO_OK)
        return status;
    mlo_hasher_final(writer->in.hasher, computed);
    if (expected && !mlo_digest_eq(expected, computed)) {
        wrong_digest(expected, computed, err);
        return send_again(err);
    }
    return writer->store->backend->finish(writer, computed, err);
}

enum mlo_status mlo_blob_writer_commit(struct mlo_blob_writer *writer, const struct mlo_digest *expected,
                                       struct mlo_digest *digest, uint64_t *size_bytes, struct mlo_error *err)
{
    struct mlo_digest computed = writer->expected;
    enum mlo_status status;
    if (writer->spent)
        return mlo_error_set(err, MLO_EINTERNAL, "the writer of a blob was used after its end");
    writer->spent = true;
    if (!expected && writer->expects)
        expected = &writer->expected;
    if (!writer->passes)
        status = finish_hashed(writer, expected, &computed, err);
    else if (mlo_digest_eq(expected, &computed))
        status = finish_passing(writer, err);
    else
        status = mlo_error_set(err, MLO_EINTERNAL, "a blob passed under one digest and is to have another");
    if (status == MLO_OK && digest)
        *digest = computed;
    if (status == MLO_OK && size_bytes)
        *size_bytes = writer->in.size_bytes;
    return status;
}

void mlo_blob_writer_free(struct mlo_blob_writer *writer)
{
    if (!writer)
        return;
    mlo_blob_intake_close(&writer->in);
    writer->store->backend->end(writer);
    free(writer);
}

/* Where objects are made in parts, a large one is read twice, once for its digest: cheaper than a copy on the
 * server. */
static enum mlo_status open_for_file(struct mlo_blob_store *store, int fd, char *piece,
                                     struct mlo_blob_writer **writer, struct mlo_error *err)
{
    struct stat st;
    struct mlo_digest digest;
    struct mlo_hasher *hasher;
    bool failed = false;
    if (!store->backend->fetch || fstat(fd, &st) != 0 || st.st_size < READ_TWICE)
        return mlo_blob_writer_open(store, writer, err);
    hasher = mlo_hasher_new();
    if (!hasher)
        return mlo_error_nomem(err);
    for (size_t got = PIECE; got == PIECE && !failed;) {
        failed = !mlo_fs_read_full(fd, piece, PIECE, &got);
        if (!failed)
            mlo_hasher_update(hasher, piece, got);
    }
    mlo_hasher_final(hasher, &digest);
    mlo_hasher_free(hasher);
    if (failed || lseek(fd, 0, SEEK_SET) < 0)
        return mlo_error_errno(err, errno, "cannot read the file");
    return mlo_blob_writer_open_expecting(store, &digest, (uint64_t)st.st_size, writer, err);
}

enum mlo_status mlo_blob_put_fd(struct mlo_blob_store *store, int fd, struct mlo_digest *digest,
                                uint64_t *size_bytes, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_blob_writer *writer = NULL;
    char *piece = malloc(PIECE);
    if (!piece) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (lseek(fd, 0, SEEK_SET) < 0) {
        status = mlo_error_errno(err, errno, "cannot read the file");
        goto out;
    }
    MLO_TRY(open_for_file(store, fd, piece, &writer, err));
    for (size_t got = PIECE; got == PIECE;) {
        if (!mlo_fs_read_full(fd, piece, PIECE, &got)) {
            status = mlo_error_errno(err, errno, "cannot read the file");
            goto out;
        }
        MLO_TRY(mlo_blob_writer_write(writer, piece, got, err));
    }
    MLO_TRY(mlo_blob_writer_commit(writer, NULL, digest, size_bytes, err));
out:
    mlo_blob_writer_free(writer);
    free(piece);
    return status;
}

enum mlo_status mlo_blob_put_file(struct mlo_blob_store *store, const char *path, struct mlo_digest *digest,
                                  uint64_t *size_bytes, struct mlo_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mlo_error_errno(err, errno, "cannot open %s", path);
    enum mlo_status status = mlo_blob_put_fd(store, fd, digest, size_bytes, err);
    close(fd);
    return status;
}

enum mlo_status mlo_blob_put_bytes(struct mlo_blob_store *store, const void *bytes, size_t size,
                                   struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_blob_writer *writer;
    enum mlo_status status = mlo_blob_writer_open(store, &writer, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_blob_writer_write(writer, bytes, size, err));
    MLO_TRY(mlo_blob_writer_commit(writer, NULL, digest, NULL, err));
out:
    mlo_blob_writer_free(writer);
    return status;
}

enum mlo_status mlo_blob_open_fd(struct mlo_blob_store *store, const struct mlo_digest *digest, int *fd,
                                 uint64_t *size_bytes, struct mlo_error *err)
{
    return store->backend->open_fd(store, digest, fd, size_bytes, err);
}

bool mlo_blob_open_checked(const struct mlo_blob_store *store)
{
    return store->backend->fetch && !store->keeps_copies;
}

void mlo_blob_copy_drop(struct mlo_blob_store *store, const struct mlo_digest *digest)
{
    if (store->backend->copy_drop)
        store->backend->copy_drop(store, digest);
}

enum mlo_status mlo_blob_size(struct mlo_blob_store *store, const struct mlo_digest *digest,
                              uint64_t *size_bytes, struct mlo_error *err)
{
    int fd = -1;
    if (store->backend->size)
        return store->backend->size(store, digest, size_bytes, err);
    enum mlo_status status = mlo_blob_open_fd(store, digest, &fd, size_bytes, err);
    if (fd >= 0)
        close(fd);
    return status;
}

enum mlo_status mlo_blob_address(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                 const char *file_name, char **url, struct mlo_error *err)
{
    *url = NULL;
    if (!store->backend->address)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a store of files has no addresses for others");
    return store->backend->address(store, digest, file_name, url, err);
}

bool mlo_blob_exists(struct mlo_blob_store *store, const struct mlo_digest *digest)
{
    struct mlo_error ignored = {0};
    return mlo_blob_size(store, digest, NULL, &ignored) == MLO_OK;
}

static enum mlo_status compare(struct mlo_hasher *hasher, const struct mlo_digest *digest,
                               struct mlo_error *err)
{
    struct mlo_digest computed;
    mlo_hasher_final(hasher, &computed);
    if (mlo_digest_eq(&computed, digest))
        return MLO_OK;
    wrong_digest(digest, &computed, err);
    mlo_error_prefix(err, "a blob in the store is damaged");
    return MLO_EDIGEST;
}

/* Reads all of fd, hashing, into `out` (or NULL); then compares. */
static enum mlo_status copy_checked(int fd, const struct mlo_digest *digest, struct mlo_buf *out,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_hasher *hasher = mlo_hasher_new();
    char *piece = malloc(PIECE);
    if (!hasher || !piece) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t got = PIECE; got == PIECE;) {
        if (!mlo_fs_read_full(fd, piece, PIECE, &got)) {
            status = mlo_error_errno(err, errno, "cannot read a blob");
            goto out;
        }
        mlo_hasher_update(hasher, piece, got);
        if (out)
            mlo_buf_append(out, piece, got);
    }
    status = compare(hasher, digest, err);
    if (status == MLO_OK && out && !mlo_buf_ok(out))
        status = mlo_error_nomem(err);
out:
    mlo_hasher_free(hasher);
    free(piece);
    return status;
}

enum mlo_status mlo_blob_check_fd(int fd, const struct mlo_digest *digest, struct mlo_error *err)
{
    if (lseek(fd, 0, SEEK_SET) != 0)
        return mlo_error_errno(err, errno, "cannot read a blob");
    return copy_checked(fd, digest, NULL, err);
}

/* --- a backend without files ---------------------------------------------------------------------- */

struct taking {
    struct mlo_hasher *hasher;
    int fd; /* or -1 */
    struct mlo_buf *out;
};

static enum mlo_status take(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    struct taking *t = arg;
    mlo_hasher_update(t->hasher, bytes, size);
    if (t->fd >= 0 && !mlo_fs_write_full(t->fd, bytes, size))
        return mlo_error_errno(err, errno, "cannot write a copy of a blob");
    if (t->out)
        mlo_buf_append(t->out, bytes, size);
    return t->out && !mlo_buf_ok(t->out) ? mlo_error_nomem(err) : MLO_OK;
}

static enum mlo_status fetch_checked(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                     uint64_t max_bytes, int fd, struct mlo_buf *out, struct mlo_error *err)
{
    struct taking t = {mlo_hasher_new(), fd, out};
    enum mlo_status status = t.hasher ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = store->backend->fetch(store, digest, max_bytes, take, &t, err);
    if (status == MLO_OK)
        status = compare(t.hasher, digest, err);
    mlo_hasher_free(t.hasher);
    return status;
}

enum mlo_status mlo_blob_fetch_fd(struct mlo_blob_store *store, const struct mlo_digest *digest, int fd,
                                  struct mlo_error *err)
{
    return fetch_checked(store, digest, UINT64_MAX, fd, NULL, err);
}

enum mlo_status mlo_blob_path(struct mlo_blob_store *store, const struct mlo_digest *digest,
                              const char *scratch_dir, bool verify, char **path, struct mlo_error *err)
{
    int fd = -1, to = -1;
    char hex[MLO_DIGEST_TEXT_SIZE], *made = NULL;
    enum mlo_status status;
    *path = NULL;
    if (store->backend->path) {
        MLO_TRY(store->backend->path(store, digest, &made, err));
        if (!verify)
            goto out;
        MLO_TRY(mlo_blob_open_fd(store, digest, &fd, NULL, err));
        status = copy_checked(fd, digest, NULL, err);
        goto out;
    }
    made = mlo_fs_join(scratch_dir, mlo_digest_hex(digest, hex), NULL);
    to = made ? open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    if (to < 0) {
        status = mlo_error_errno(err, errno, "cannot make a copy of a blob in %s", scratch_dir);
        goto out;
    }
    status = mlo_blob_fetch_fd(store, digest, to, err);
    if (status != MLO_OK)
        unlink(made);
out:
    if (fd >= 0)
        close(fd);
    if (to >= 0)
        close(to);
    if (status == MLO_OK)
        *path = made;
    else
        free(made);
    return status;
}

enum mlo_status mlo_blob_read(struct mlo_blob_store *store, const struct mlo_digest *digest, size_t max_bytes,
                              struct mlo_buf *out, struct mlo_error *err)
{
    int fd;
    uint64_t size;
    if (store->backend->fetch)
        return fetch_checked(store, digest, max_bytes, -1, out, err);
    enum mlo_status status = mlo_blob_open_fd(store, digest, &fd, &size, err);
    if (status != MLO_OK)
        return status;
    if (size > max_bytes)
        status =
            mlo_error_set(err, MLO_ETOOBIG, "a blob of %llu bytes is more than the %zu that are read at once",
                          (unsigned long long)size, max_bytes);
    else
        status = copy_checked(fd, digest, out, err);
    close(fd);
    return status;
}

enum mlo_status mlo_blob_store_ping(struct mlo_blob_store *store, uint32_t budget_ms, struct mlo_error *err)
{
    return store->backend->ping(store, budget_ms, err);
}

enum mlo_status mlo_blob_store_empty(struct mlo_blob_store *store, bool *empty, struct mlo_error *err)
{
    return store->backend->empty(store, empty, err);
}

/* --- checking and copying -------------------------------------------------------------------------- */

enum mlo_status mlo_blob_check(struct mlo_blob_store *store, const struct mlo_digest *digest,
                               uint64_t *size_bytes, struct mlo_error *err)
{
    int fd = -1;
    enum mlo_status status;
    if (store->backend->fetch) {
        if (size_bytes)
            MLO_TRY(mlo_blob_size(store, digest, size_bytes, err));
        status = fetch_checked(store, digest, UINT64_MAX, -1, NULL, err);
    } else {
        MLO_TRY(mlo_blob_open_fd(store, digest, &fd, size_bytes, err));
        status = copy_checked(fd, digest, NULL, err);
    }
out:
    if (fd >= 0)
        close(fd);
    return status;
}

static enum mlo_status sink_writer(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    return mlo_blob_writer_write(arg, bytes, size, err);
}

static enum mlo_status pour(struct mlo_blob_store *from, const struct mlo_digest *digest,
                            struct mlo_blob_writer *writer, bool *gone, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int fd = -1;
    char *piece = NULL;
    if (from->backend->fetch) {
        status = from->backend->fetch(from, digest, UINT64_MAX, sink_writer, writer, err);
        *gone = status == MLO_ENOTFOUND || status == MLO_EDIGEST;
        return status;
    }
    status = mlo_blob_open_fd(from, digest, &fd, NULL, err);
    *gone = status == MLO_ENOTFOUND;
    if (status != MLO_OK)
        return status;
    piece = malloc(PIECE);
    if (!piece) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t got = PIECE; got == PIECE;) {
        if (!mlo_fs_read_full(fd, piece, PIECE, &got)) {
            *gone = errno == EIO; /* a disk that cannot give it back has it no more */
            status = mlo_error_errno(err, errno, "cannot read a blob");
            goto out;
        }
        MLO_TRY(mlo_blob_writer_write(writer, piece, got, err));
    }
out:
    close(fd);
    free(piece);
    return status;
}

enum mlo_status mlo_blob_copy(struct mlo_blob_store *from, struct mlo_blob_store *to,
                              const struct mlo_digest *digest, uint64_t size_bytes, bool *damaged,
                              struct mlo_error *err)
{
    struct mlo_blob_writer *writer = NULL;
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status;
    *damaged = false;
    MLO_TRY(mlo_blob_writer_open_expecting(to, digest, size_bytes, &writer, err));
    MLO_TRY(pour(from, digest, writer, damaged, err));
    status = mlo_blob_writer_commit(writer, digest, NULL, NULL, err);
    if (status == MLO_EDIGEST) {
        *damaged = true;
        mlo_error_prefix(err, "blob %s is damaged", mlo_digest_text(digest, text));
    }
out:
    mlo_blob_writer_free(writer);
    return status;
}
