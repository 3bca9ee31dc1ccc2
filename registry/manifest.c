#include "registry/manifest_impl.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_MEDIA_TYPE "application/octet-stream"
enum { FILES_MAX = 10000 };

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mlo_manifest_blob *)a)->name, ((const struct mlo_manifest_blob *)b)->name);
}

/* One plain file name: it becomes a file when somebody pulls it. */
static bool file_name_valid(const char *name)
{
    if (!name || !*name || strlen(name) > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (const char *c = name; *c; c++)
        if (*c == '/' || *c == '\\' || (unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    return true;
}

static enum mlo_status check(struct mlo_db_conn *conn, int64_t project_id, struct mlo_manifest_blob *blobs,
                             size_t count, struct mlo_error *err)
{
    if (count == 0 || count > FILES_MAX)
        return mlo_error_set(err, MLO_EINVAL, "a manifest lists 1 to %d files, not %zu", FILES_MAX, count);
    for (size_t i = 0; i < count; i++) {
        struct mlo_manifest_blob *b = &blobs[i];
        if (!file_name_valid(b->name)) {
            mlo_error_set(err, MLO_EINVAL, "a file of a manifest needs a plain name, without a path");
            mlo_error_where(err, "field 'files[%zu].name'", i);
            return MLO_EINVAL;
        }
        if (!mlo_name_valid(b->role)) {
            mlo_error_set(err, MLO_EINVAL, "file %s needs a role: model, data, document, images, labels…",
                          b->name);
            mlo_error_where(err, "field 'files[%zu].role'", i);
            return MLO_EINVAL;
        }
        enum mlo_status status = mlo_blob_linked(conn, project_id, &b->digest, &b->size_bytes, err);
        if (status != MLO_OK) {
            mlo_error_where(err, "file '%s'", b->name);
            return status;
        }
        if (b->size_said && b->said_bytes != b->size_bytes) {
            mlo_error_set(err, MLO_EINVAL, "the blob of the file '%.100s' has %llu bytes, not %llu", b->name,
                          (unsigned long long)b->size_bytes, (unsigned long long)b->said_bytes);
            mlo_error_where(err, "field 'files[%zu]'", i);
            mlo_error_hint(err, "is it the digest of another file? 'size' may be left out");
            return MLO_EINVAL;
        }
        if (!b->media_type || !*b->media_type)
            b->media_type = DEFAULT_MEDIA_TYPE;
    }
    qsort(blobs, count, sizeof *blobs, by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp(blobs[i - 1].name, blobs[i].name) == 0)
            return mlo_error_set(err, MLO_EINVAL, "two files are named %s", blobs[i].name);
    return MLO_OK;
}

enum mlo_status mlo_manifest_make(struct mlo_db_conn *conn, int64_t project_id,
                                  struct mlo_manifest_blob *blobs, size_t count, const json_t *members,
                                  struct mlo_buf *text, struct mlo_digest *digest, struct mlo_error *err)
{
    char digest_text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = check(conn, project_id, blobs, count, err);
    if (status != MLO_OK)
        return status;
    json_t *files = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *file = json_pack("{s:s, s:s, s:s, s:I, s:s}", "role", blobs[i].role, "name", blobs[i].name,
                                 "digest", mlo_digest_text(&blobs[i].digest, digest_text), "size",
                                 (json_int_t)blobs[i].size_bytes, "media_type", blobs[i].media_type);
        if (!file || json_array_append_new(files, file) != 0) {
            json_decref(files);
            return mlo_error_set(err, MLO_EINVAL, "the name, role or media type of file %zu is not UTF-8", i);
        }
    }
    json_t *manifest = json_pack("{s:o}", "files", files);
    if (!manifest || (members && json_object_update_missing(manifest, (json_t *)members) != 0)) {
        json_decref(manifest);
        return mlo_error_nomem(err);
    }
    mlo_json_canonical(manifest, text);
    json_decref(manifest);
    if (!mlo_buf_ok(text))
        return mlo_error_nomem(err);
    mlo_digest_of(mlo_buf_str(text), text->len, digest);
    return MLO_OK;
}

enum mlo_status mlo_manifest_insert(struct mlo_db_conn *conn, const struct mlo_sql *sql, int64_t parent_id,
                                    const struct mlo_manifest_blob *blobs, size_t count,
                                    struct mlo_error *err)
{
    for (size_t i = 0; i < count; i++) {
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, parent_id);
        mlo_param_text(&p, blobs[i].role);
        mlo_param_text(&p, blobs[i].name);
        mlo_param_digest(&p, &blobs[i].digest);
        mlo_param_i64(&p, (int64_t)blobs[i].size_bytes);
        mlo_param_text(&p, blobs[i].media_type);
        enum mlo_status status = mlo_db_exec(conn, sql, &p, NULL, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}
