/* Blobs in an S3 bucket: the address, reading, what killed writers left. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry/blob_s3_impl.h"

enum { CACHE_FILES_MAX = 100000 };
#define SWEEP_AGE_US (7ll * 24 * 3600 * 1000000) /* no writer lives so long */
#define CACHE_BYTES (20ull << 30)
#define CACHE_SUFFIX ".blob"

char *mlo_blob_s3_name(const struct mlo_blob_s3 *s, const char *folder, const char *name)
{
    struct mlo_buf key = MLO_BUF_INIT;
    mlo_buf_printf(&key, "%s%s/%s", s->prefix, folder, name);
    return mlo_buf_take(&key);
}

char *mlo_blob_s3_incoming(const struct mlo_blob_s3 *s)
{
    uint8_t random[16];
    char name[33];
    mlo_random_bytes(random, sizeof random);
    mlo_hex(random, sizeof random, name);
    return mlo_blob_s3_name(s, "incoming", name);
}

char *mlo_blob_s3_key(const struct mlo_blob_s3 *s, const struct mlo_digest *digest)
{
    char hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 8];
    mlo_digest_hex(digest, hex);
    snprintf(name, sizeof name, "%.2s/%.2s/%s", hex, hex + 2, hex);
    return mlo_blob_s3_name(s, "sha256", name);
}

/* --- the address -------------------------------------------------------------------------------- */

struct settings {
    char *place; /* everything points into it */
    const char *prefix, *scratch, *cache, *cache_size, *timeout, *attempts, *redirect, *direct, *uploads;
    struct mlo_s3_options s3;
};

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* %41 -> A, in place. */
static void decode(char *text)
{
    char *to = text;
    for (; *text; text++) {
        int high = *text == '%' ? hex_value(text[1]) : -1, low = high < 0 ? -1 : hex_value(text[2]);
        if (low >= 0) {
            *to++ = (char)(high << 4 | low);
            text += 2;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

static enum mlo_status take_parameter(struct settings *set, char *text, struct mlo_error *err)
{
    const struct {
        const char *name, **to;
    } known[] = {
        {"endpoint", &set->s3.endpoint},
        {"region", &set->s3.region},
        {"style", &set->s3.style},
        {"ca", &set->s3.ca_file},
        {"credentials", &set->s3.credentials_file},
        {"profile", &set->s3.profile},
        {"encryption", &set->s3.encryption},
        {"kms_key", &set->s3.kms_key},
        {"customer_key", &set->s3.customer_key},
        {"payload", &set->s3.payload},
        {"scratch", &set->scratch},
        {"cache", &set->cache},
        {"cache_size", &set->cache_size},
        {"timeout", &set->timeout},
        {"attempts", &set->attempts},
        {"redirect", &set->redirect},
        {"direct", &set->direct},
        {"uploads", &set->uploads},
    };
    const char *names[MLO_COUNT(known)];
    char *equals = strchr(text, '=');
    if (equals)
        *equals = '\0';
    for (size_t i = 0; i < MLO_COUNT(known); i++) {
        names[i] = known[i].name;
        if (equals && strcmp(known[i].name, text) == 0) {
            decode(equals + 1);
            *known[i].to = equals + 1;
            return MLO_OK;
        }
    }
    const char *near = mlo_suggest(text, names, MLO_COUNT(names));
    mlo_error_set(err, MLO_EINVAL, "'%.40s' is no setting of an S3 store", text);
    if (near)
        mlo_error_hint(err, "did you mean %s=…?", near);
    else
        mlo_error_hint(err,
                       "settings: endpoint, region, style, ca, credentials, profile, encryption, kms_key, "
                       "customer_key, payload, uploads, scratch, cache, cache_size, timeout, attempts, "
                       "redirect, direct");
    return MLO_EINVAL;
}

static enum mlo_status take_number(const char *name, const char *text, int64_t least, int64_t most,
                                   int64_t *out, struct mlo_error *err)
{
    if (!text || (mlo_str_to_i64(text, out) && *out >= least && *out <= most))
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "%s=%.40s: a number from %lld to %lld is wanted", name, text,
                         (long long)least, (long long)most);
}

/* "bucket/prefix?name=value&…", with "//" in front or not. */
static enum mlo_status parse_place(const char *place, struct settings *set, int64_t *cache_mb,
                                   struct mlo_error *err)
{
    int64_t timeout_s = 0, attempts = 0;
    enum mlo_status status;
    set->place = strdup(place + (mlo_str_starts(place, "//") ? 2 : 0));
    if (!set->place)
        return mlo_error_nomem(err);
    char *query = strchr(set->place, '?');
    if (query)
        *query++ = '\0';
    char *slash = strchr(set->place, '/');
    if (slash)
        *slash++ = '\0';
    set->s3.bucket = set->place;
    set->prefix = slash ? slash : "";
    for (char *next; query; query = next) {
        next = strchr(query, '&');
        if (next)
            *next++ = '\0';
        if (*query)
            MLO_TRY(take_parameter(set, query, err));
    }
    MLO_TRY(take_number("timeout", set->timeout, 1, 3600, &timeout_s, err));
    MLO_TRY(take_number("attempts", set->attempts, 1, 100, &attempts, err));
    MLO_TRY(take_number("cache_size", set->cache_size, 1, 1 << 30, cache_mb, err));
    set->s3.stall_ms = (uint32_t)timeout_s * 1000u;
    set->s3.attempts = (uint32_t)attempts;
out:
    if (status == MLO_EINVAL) {
        mlo_error_where(err, "s3:%.100s", place);
        mlo_error_hint(err, "write s3:bucket/prefix?endpoint=https://host&region=…");
    }
    return status;
}

/* --- what killed writers left ---------------------------------------------------------------------- */

struct sweep {
    struct mlo_blob_s3 *s;
    char before[32]; /* ISO 8601: begun earlier is nobody's */
};

static enum mlo_status sweep_entry(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    struct sweep *sweep = arg;
    const char *name = entry->key + strlen(sweep->s->prefix);
    if (!*entry->modified || strcmp(entry->modified, sweep->before) >= 0)
        return MLO_OK;
    if (!entry->upload)
        return mlo_s3_delete(sweep->s->s3, entry->key, err);
    if (!mlo_str_starts(name, "incoming/") && !mlo_str_starts(name, "sha256/"))
        return MLO_OK;
    char newest[MLO_S3_MODIFIED_SIZE];
    bool made;
    enum mlo_status status =
        mlo_s3_multipart_look(sweep->s->s3, entry->key, entry->upload, &made, newest, err);
    if (status == MLO_ENOTFOUND)
        return MLO_OK;
    return status != MLO_OK || made || strcmp(newest, sweep->before) >= 0
               ? status
               : mlo_s3_multipart_abort(sweep->s->s3, entry->key, entry->upload, err);
}

/* Best effort: a server that does not let us list still stores. */
static void sweep(struct mlo_blob_s3 *s)
{
    struct sweep arg = {.s = s};
    char *incoming = mlo_blob_s3_name(s, "incoming", "");
    mlo_clock_format(mlo_clock_utc_us() - SWEEP_AGE_US, arg.before);
    (void)!mlo_s3_list_uploads(s->s3, s->prefix, sweep_entry, &arg, NULL);
    if (incoming)
        (void)!mlo_s3_list(s->s3, incoming, sweep_entry, &arg, NULL);
    free(incoming);
}

/* --- open and close ------------------------------------------------------------------------------- */

static void s3_close(struct mlo_blob_store *store)
{
    struct mlo_blob_s3 *s = store->state;
    mlo_s3_close(s->s3);
    mlo_s3_close(s->outside);
    free(s->prefix);
    free(s->scratch);
    free(s->cache);
    free(s);
}

static enum mlo_status check_folder(const char *name, const char *path, struct mlo_error *err)
{
    if (!path)
        return MLO_OK;
    if (path[0] != '/')
        return mlo_error_set(err, MLO_EINVAL, "%s=%.200s is no absolute path", name, path);
    return mlo_fs_mkdirs_private(path, err);
}

static enum mlo_status take_uploads(struct mlo_blob_s3 *s, const char *uploads, struct mlo_error *err)
{
    s->streams = mlo_str_eq(uploads, "stream");
    if (!uploads || s->streams || strcmp(uploads, "parts") == 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "uploads=%.40s is neither parts nor stream", uploads);
    mlo_error_hint(err, "parts: each is tried again by itself; stream: a client's bytes go on as they come");
    return MLO_EINVAL;
}

static enum mlo_status s3_open(struct mlo_blob_store *store, const char *place, struct mlo_error *err)
{
    struct settings set = {0};
    int64_t cache_mb = 0;
    enum mlo_status status;
    const char *temp = getenv("TMPDIR");
    struct mlo_blob_s3 *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    store->state = s;
    MLO_TRY(parse_place(place, &set, &cache_mb, err));
    MLO_TRY(take_uploads(s, set.uploads, err));
    MLO_TRY(check_folder("scratch", set.scratch, err));
    MLO_TRY(check_folder("cache", set.cache, err));
    size_t n = strlen(set.prefix);
    while (n && set.prefix[n - 1] == '/')
        n--;
    struct mlo_buf prefix = MLO_BUF_INIT;
    mlo_buf_printf(&prefix, "%.*s%s", (int)n, set.prefix, n ? "/" : "");
    s->prefix = mlo_buf_take(&prefix);
    s->scratch = strdup(set.scratch ? set.scratch : temp && *temp ? temp : "/tmp");
    s->cache = set.cache ? strdup(set.cache) : NULL;
    store->keeps_copies = s->cache != NULL;
    s->cache_bytes = cache_mb ? (uint64_t)cache_mb << 20 : CACHE_BYTES;
    if (!s->prefix || !s->scratch || (set.cache && !s->cache)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_s3_open(&set.s3, &s->s3, err));
    MLO_TRY(mlo_blob_s3_open_outside(s, &set.s3, set.redirect, set.direct, err));
    MLO_TRY(mlo_s3_check_bucket(s->s3, err));
    sweep(s);
out:
    free(set.place);
    if (status != MLO_OK)
        s3_close(store);
    return status;
}

/* --- reading --------------------------------------------------------------------------------------- */

static enum mlo_status s3_fetch(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                uint64_t max_bytes, mlo_blob_sink_fn *sink, void *arg, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char text[MLO_DIGEST_TEXT_SIZE], *key = mlo_blob_s3_key(s, digest);
    if (!key)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_s3_get(s->s3, key, 0, UINT64_MAX, max_bytes, sink, arg, NULL, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_prefix(err, "blob %s", mlo_digest_text(digest, text));
    free(key);
    return status;
}

static enum mlo_status s3_size(struct mlo_blob_store *store, const struct mlo_digest *digest,
                               uint64_t *size_bytes, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct mlo_s3_object object;
    char text[MLO_DIGEST_TEXT_SIZE], *key = mlo_blob_s3_key(s, digest);
    if (!key)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_s3_head(s->s3, key, &object, err);
    if (status == MLO_OK && size_bytes)
        *size_bytes = object.size_bytes;
    if (status == MLO_ENOTFOUND)
        mlo_error_prefix(err, "blob %s", mlo_digest_text(digest, text));
    free(key);
    return status;
}

/* A file without a name, in the folder of scratch files. */
static int nameless(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    char *path = mlo_fs_join(folder, "mlopt-blob-XXXXXX", NULL); /* a file system without O_TMPFILE */
    if (!path) {
        errno = ENOMEM;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

static enum mlo_status cannot_copy(const char *folder, int e, struct mlo_error *err)
{
    enum mlo_status status = mlo_error_errno(err, e, "cannot keep a copy of a blob in %s", folder);
    mlo_error_hint(err, "make room there, or name another folder with scratch= in the store's address");
    return status;
}

/* Into the cache, where it has its digest's name; a copy that is there is taken. */
static enum mlo_status open_cached(struct mlo_blob_store *store, const struct mlo_digest *digest, int *fd,
                                   struct mlo_error *err)
{
    static const char *const unfinished[] = {"new-", NULL};
    struct mlo_blob_s3 *s = store->state;
    const struct mlo_cache_limits limits = {CACHE_SUFFIX, unfinished, CACHE_FILES_MAX, s->cache_bytes};
    char hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 8];
    char *path = NULL, *temp = mlo_fs_join(s->cache, "new-XXXXXX", NULL);
    enum mlo_status status = MLO_OK;
    snprintf(name, sizeof name, "%s%s", mlo_digest_hex(digest, hex), CACHE_SUFFIX);
    path = mlo_fs_join(s->cache, name, NULL);
    if (!path || !temp) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd >= 0) {
        futimens(*fd, NULL); /* it was used now */
        goto out;
    }
    *fd = mkostemp(temp, O_CLOEXEC);
    if (*fd < 0) {
        status = cannot_copy(s->cache, errno, err);
        goto out;
    }
    status = mlo_blob_fetch_fd(store, digest, *fd, err);
    if (status == MLO_OK && rename(temp, path) != 0)
        status = cannot_copy(s->cache, errno, err);
    if (status != MLO_OK) {
        unlink(temp);
        goto out;
    }
    int folder = open(s->cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        mlo_cache_trim(folder, &limits);
        close(folder);
    }
out:
    free(path);
    free(temp);
    return status;
}

/* Fetched anew by who wants it next. */
static void s3_copy_drop(struct mlo_blob_store *store, const struct mlo_digest *digest)
{
    const struct mlo_blob_s3 *s = store->state;
    char hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 8];
    if (!s->cache)
        return;
    snprintf(name, sizeof name, "%s%s", mlo_digest_hex(digest, hex), CACHE_SUFFIX);
    char *path = mlo_fs_join(s->cache, name, NULL);
    if (path)
        unlink(path);
    free(path);
}

static enum mlo_status s3_open_fd(struct mlo_blob_store *store, const struct mlo_digest *digest, int *fd,
                                  uint64_t *size_bytes, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct stat st;
    enum mlo_status status = MLO_OK;
    *fd = -1;
    if (s->cache) {
        MLO_TRY(open_cached(store, digest, fd, err));
    } else {
        *fd = nameless(s->scratch);
        if (*fd < 0) {
            status = cannot_copy(s->scratch, errno, err);
            goto out;
        }
        MLO_TRY(mlo_blob_fetch_fd(store, digest, *fd, err));
    }
    if (lseek(*fd, 0, SEEK_SET) != 0 || fstat(*fd, &st) != 0)
        status = cannot_copy(s->scratch, errno, err);
    else if (size_bytes)
        *size_bytes = (uint64_t)st.st_size;
out:
    if (status != MLO_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

/* The first one ends the walk. */
static enum mlo_status on_blob(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    bool *empty = arg;
    MLO_UNUSED(entry);
    *empty = false;
    return mlo_error_set(err, MLO_EEXISTS, "there is a blob");
}

static enum mlo_status s3_empty(struct mlo_blob_store *store, bool *empty, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct mlo_error found = {0};
    char *prefix = mlo_blob_s3_name(s, "sha256", "");
    *empty = true;
    if (!prefix)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_s3_list(s->s3, prefix, on_blob, empty, &found);
    free(prefix);
    if (!*empty || status == MLO_OK)
        return MLO_OK;
    if (err)
        *err = found;
    return status;
}

/* A list: a HEAD says 404 of a bucket that is gone, too. */
static enum mlo_status s3_ping(struct mlo_blob_store *store, uint32_t budget_ms, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char *prefix = mlo_blob_s3_name(s, "sha256", "");
    enum mlo_status status = prefix ? mlo_s3_ping(s->s3, prefix, budget_ms, err) : mlo_error_nomem(err);
    free(prefix);
    return status;
}

const struct mlo_blob_backend mlo_blob_backend_s3 = {
    .scheme = "s3",
    .open = s3_open,
    .close = s3_close,
    .begin = mlo_blob_s3_begin,
    .write = mlo_blob_s3_write,
    .finish = mlo_blob_s3_finish,
    .end = mlo_blob_s3_end,
    .session_begin = mlo_blob_s3_session_begin,
    .piece_open = mlo_blob_s3_piece_open,
    .piece_write = mlo_blob_s3_piece_write,
    .piece_commit = mlo_blob_s3_piece_commit,
    .piece_end = mlo_blob_s3_piece_end,
    .session_check = mlo_blob_s3_session_check,
    .session_publish = mlo_blob_s3_session_publish,
    .session_drop = mlo_blob_s3_session_drop,
    .direct_begin = mlo_blob_s3_direct_begin,
    .direct_info = mlo_blob_s3_direct_info,
    .direct_arrived = mlo_blob_s3_direct_arrived,
    .direct_address = mlo_blob_s3_direct_address,
    .direct_verify = mlo_blob_s3_direct_verify,
    .direct_publish = mlo_blob_s3_direct_publish,
    .direct_drop = mlo_blob_s3_direct_drop,
    .open_fd = s3_open_fd,
    .size = s3_size,
    .fetch = s3_fetch,
    .copy_drop = s3_copy_drop,
    .address = mlo_blob_s3_address,
    .ping = s3_ping,
    .empty = s3_empty,
    .list = mlo_blob_s3_list,
    .remove = mlo_blob_s3_remove,
    .put_aside = mlo_blob_s3_put_aside,
    .leftovers = mlo_blob_s3_leftovers,
    .leftover_look = mlo_blob_s3_leftover_look,
    .leftover_drop = mlo_blob_s3_leftover_drop,
};
