/* Upkeep of a store in a bucket: walking it, removing, putting aside. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "registry/blob_s3_impl.h"

/* ISO 8601 in UTC; what cannot be read is new: it is left alone. */
static int64_t modified_us(const char *text)
{
    struct tm tm = {0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    return end ? (int64_t)timegm(&tm) * 1000000 : mlo_clock_utc_us();
}

/* --- blobs ----------------------------------------------------------------------------------------- */

struct walk {
    size_t skip; /* length of "<prefix>sha256/ab/cd/" */
    mlo_blob_entry_fn *fn;
    void *arg;
};

static enum mlo_status blob_object(void *arg, const struct mlo_s3_entry *object, struct mlo_error *err)
{
    const struct walk *w = arg;
    struct mlo_blob_entry entry = {.size_bytes = object->size_bytes,
                                   .modified_us = modified_us(object->modified)};
    if (strlen(object->key) <= w->skip || !mlo_blob_name_digest(object->key + w->skip, '\0', &entry.digest))
        return MLO_OK;
    return w->fn(w->arg, &entry, err);
}

enum mlo_status mlo_blob_s3_list(struct mlo_blob_store *store, unsigned shard, mlo_blob_entry_fn *fn,
                                 void *arg, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char name[8];
    snprintf(name, sizeof name, "%02x/", shard & 0xffu);
    char *prefix = mlo_blob_s3_name(s, "sha256", name);
    if (!prefix)
        return mlo_error_nomem(err);
    struct walk w = {.skip = strlen(prefix) + strlen("cd/"), .fn = fn, .arg = arg};
    enum mlo_status status = mlo_s3_list(s->s3, prefix, blob_object, &w, err);
    free(prefix);
    return status;
}

/* A copy in the cache goes too: what is gone must not be served by one server and missed by another. */
static void uncache(const struct mlo_blob_s3 *s, const struct mlo_digest *digest)
{
    char hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 8];
    if (!s->cache)
        return;
    snprintf(name, sizeof name, "%s.blob", mlo_digest_hex(digest, hex));
    char *path = mlo_fs_join(s->cache, name, NULL);
    if (path)
        unlink(path);
    free(path);
}

enum mlo_status mlo_blob_s3_remove(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                   struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char *key = mlo_blob_s3_key(s, digest);
    enum mlo_status status = key ? mlo_s3_delete(s->s3, key, err) : mlo_error_nomem(err);
    free(key);
    uncache(s, digest);
    return status;
}

enum mlo_status mlo_blob_s3_put_aside(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                      const char *name, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct mlo_s3_object object;
    char *key = mlo_blob_s3_key(s, digest), *to = mlo_blob_s3_name(s, "quarantine", name);
    enum mlo_status status;
    if (!key || !to) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_s3_head(s->s3, key, &object, err));
    MLO_TRY(mlo_blob_s3_copy(s, key, &object, to, NULL, err));
    MLO_TRY(mlo_s3_delete(s->s3, key, err));
    uncache(s, digest);
out:
    free(key);
    free(to);
    return status;
}

/* --- what else is there ---------------------------------------------------------------------------- */

struct rest {
    const struct mlo_blob_s3 *s;
    mlo_blob_leftover_fn *fn;
    void *arg;
};

static const struct {
    const char *folder;
    enum mlo_blob_leftover_kind kind;
} folders[] = {
    {"incoming/", MLO_LEFTOVER_INCOMING},
    {"uploads/", MLO_LEFTOVER_SESSION},
    {"quarantine/", MLO_LEFTOVER_QUARANTINE},
};

/* uploads/<id>, or uploads/<id>.<size> */
static void session_of(const char *name, struct mlo_blob_leftover *left)
{
    if (mlo_str_starts(name, "uploads/"))
        snprintf(left->session, sizeof left->session, "%.32s", name + strlen("uploads/"));
}

static enum mlo_status rest_object(void *arg, const struct mlo_s3_entry *object, struct mlo_error *err)
{
    const struct rest *r = arg;
    struct mlo_blob_leftover left = {.name = object->key + strlen(r->s->prefix),
                                     .upload = object->upload,
                                     .kind = MLO_LEFTOVER_MULTIPART,
                                     .size_bytes = object->size_bytes,
                                     .modified_us = modified_us(object->modified)};
    for (size_t i = 0; !object->upload && i < MLO_COUNT(folders); i++)
        if (mlo_str_starts(left.name, folders[i].folder))
            left.kind = folders[i].kind;
    session_of(left.name, &left);
    return r->fn(r->arg, &left, err);
}

enum mlo_status mlo_blob_s3_leftovers(struct mlo_blob_store *store, mlo_blob_leftover_fn *fn, void *arg,
                                      struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct rest r = {.s = s, .fn = fn, .arg = arg};
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(folders); i++) {
        char folder[16];
        snprintf(folder, sizeof folder, "%.*s", (int)strlen(folders[i].folder) - 1, folders[i].folder);
        char *prefix = mlo_blob_s3_name(s, folder, "");
        status = prefix ? mlo_s3_list(s->s3, prefix, rest_object, &r, err) : mlo_error_nomem(err);
        free(prefix);
    }
    return status == MLO_OK ? mlo_s3_list_uploads(s->s3, s->prefix, rest_object, &r, err) : status;
}

static char *leftover_key(const struct mlo_blob_s3 *s, const struct mlo_blob_leftover *left)
{
    struct mlo_buf key = MLO_BUF_INIT;
    mlo_buf_printf(&key, "%s%s", s->prefix, left->name);
    return mlo_buf_take(&key);
}

/* Of a session's upload the database knows whether somebody goes on, and no blob is made of it in place. */
enum mlo_status mlo_blob_s3_leftover_look(struct mlo_blob_store *store, struct mlo_blob_leftover *left,
                                          struct mlo_error *err)
{
    const struct mlo_blob_s3 *s = store->state;
    char newest[MLO_S3_MODIFIED_SIZE], *key;
    if (!left->upload || *left->session)
        return MLO_OK;
    key = leftover_key(s, left);
    if (!key)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_s3_multipart_look(s->s3, key, left->upload, &left->alive, newest, err);
    if (status == MLO_OK && *newest)
        left->modified_us = MLO_MAX(left->modified_us, modified_us(newest));
    free(key);
    return status;
}

enum mlo_status mlo_blob_s3_leftover_drop(struct mlo_blob_store *store, const struct mlo_blob_leftover *left,
                                          bool *removed, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char *key = leftover_key(s, left);
    enum mlo_status status = !key           ? mlo_error_nomem(err)
                             : left->upload ? mlo_s3_multipart_abort(s->s3, key, left->upload, err)
                                            : mlo_s3_delete(s->s3, key, err);
    *removed = status == MLO_OK;
    free(key);
    return status;
}
