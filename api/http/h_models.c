/* Models, versions, variants. */
#include <stdlib.h>
#include <string.h>

#include "api/http/handlers_impl.h"

#define METADATA_FILE "metadata.json"
#define METADATA_ROLE "metadata"
#define METADATA_MAX ((size_t)256 << 10)

json_t *mlo_list_of(json_t *items)
{
    return json_pack("{s:o, s:n}", "items", items, "next");
}

enum mlo_status mlo_request_items(const json_t *body, const char *name, size_t most, const json_t **out,
                                  struct mlo_error *err)
{
    *out = json_object_get(body, name);
    if (json_is_array(*out) && json_array_size(*out) >= 1 && json_array_size(*out) <= most)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%s' must be an array of 1 to %zu", name, most);
    mlo_error_where(err, "field '%s'", name);
    return MLO_EINVAL;
}

void mlo_json_rename(json_t *object, const char *from, const char *to)
{
    json_t *value = json_incref(json_object_get(object, from));
    if (!value)
        return;
    json_object_del(object, from);
    json_object_set_new(object, to, value);
}

static enum mlo_status read_files(const json_t *body, struct mlo_files *out, struct mlo_error *err)
{
    const json_t *files = json_object_get(body, "files");
    json_t *item;
    size_t i = 0;
    enum mlo_status status = MLO_OK;
    out->count = 0;
    if (!json_is_array(files) || json_array_size(files) == 0 || json_array_size(files) > MLO_FILES_MAX - 1) {
        status =
            mlo_error_set(err, MLO_EINVAL, "'files' must be an array of 1 to %d files", MLO_FILES_MAX - 1);
        mlo_error_where(err, "field 'files'");
        return status;
    }
    json_array_foreach((json_t *)files, i, item)
    {
        struct mlo_manifest_blob *blob = &out->blobs[out->count++];
        const char *digest;
        const int64_t unsaid = -1;
        int64_t said;
        memset(blob, 0, sizeof *blob);
        MLO_TRY(mlo_json_get_str(item, "role", NULL, &blob->role, err));
        MLO_TRY(mlo_json_get_str(item, "name", NULL, &blob->name, err));
        MLO_TRY(mlo_json_get_str(item, "media_type", "application/octet-stream", &blob->media_type, err));
        MLO_TRY(mlo_json_get_str(item, "digest", NULL, &digest, err));
        MLO_TRY(mlo_json_get_i64(item, "size", &unsaid, &said, err));
        blob->size_said = json_object_get(item, "size") != NULL;
        if (blob->size_said && said < 0) {
            status = mlo_error_set(err, MLO_EINVAL, "a size is a number of bytes, not %lld", (long long)said);
            goto out;
        }
        blob->said_bytes = (uint64_t)MLO_MAX(said, 0);
        MLO_TRY(mlo_read_digest(digest, &blob->digest, err));
    }
out:
    if (status != MLO_OK)
        mlo_error_where(err, "field 'files[%zu]'", i);
    return status;
}

enum mlo_status mlo_upload_request_read(struct mlo_request *req, struct mlo_upload_request *out,
                                        struct mlo_error *err)
{
    enum mlo_status status;
    *out = (struct mlo_upload_request){.files = mlo_arena_alloc(req->arena, sizeof *out->files)};
    if (!out->files)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_request_json(req, &out->json, err));
    MLO_TRY(mlo_json_get_str(out->json, "description", "", &out->description, err));
    MLO_TRY(read_files(out->json, out->files, err));
    json_t *metadata = json_object_get(out->json, "metadata");
    if (json_is_object(metadata)) {
        out->metadata = metadata;
    } else if (metadata && !json_is_null(metadata)) {
        status = mlo_error_set(err, MLO_EINVAL, "'metadata' must be an object");
        mlo_error_where(err, "field 'metadata'");
    }
out:
    return status;
}

static const json_t *blob_named(const json_t *blobs, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)blobs, i,
                       item) if (strcmp(mlo_json_str(item, "name", ""), name) == 0) return item;
    return NULL;
}

enum mlo_status h_models(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *q = mlo_request_query(req, "q");
    json_t *value = NULL;
    struct mlo_page page;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_model_list(req->conn, &actor, project, q, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_model(struct mlo_request *req, struct mlo_error *err)
{
    json_t *value = NULL;
    int64_t model;
    enum mlo_status status;
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    MLO_TRY(mlo_model_get(req->conn, model, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

/* Stores the metadata as one more file of the manifest. `text` must outlive the blob. */
static enum mlo_status add_metadata(struct mlo_request *req, int64_t project, const json_t *metadata,
                                    struct mlo_files *files, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_manifest_blob *blob = &files->blobs[files->count];
    enum mlo_status status;
    mlo_json_canonical(metadata, &text);
    if (!mlo_buf_ok(&text) || text.len > METADATA_MAX) {
        status = mlo_error_set(err, MLO_ETOOBIG, "the metadata has more than %zu bytes", METADATA_MAX);
        goto out;
    }
    *blob = (struct mlo_manifest_blob){
        .role = METADATA_ROLE, .name = METADATA_FILE, .media_type = "application/json"};
    MLO_TRY(mlo_blob_put_bytes(req->http->options.blobs, text.data, text.len, &blob->digest, err));
    MLO_TRY(mlo_blob_record_stored(req->conn, req->http->options.blobs, &actor, project, &blob->digest,
                                   text.len, err));
    files->count++;
out:
    mlo_buf_clear(&text);
    return status;
}

/* Adds to a version as the registry shows it what its metadata file says. */
static enum mlo_status add_metadata_of(struct mlo_request *req, json_t *version, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    json_t *metadata = NULL;
    enum mlo_status status = MLO_OK;
    const json_t *blob = blob_named(json_object_get(version, "files"), METADATA_FILE);
    if (blob && strcmp(mlo_json_str(blob, "role", ""), METADATA_ROLE) == 0 &&
        mlo_digest_parse(mlo_json_str(blob, "digest", ""), &digest)) {
        status = mlo_request_blob(req, &digest, METADATA_MAX, &text, err);
        if (status == MLO_OK)
            status = mlo_json_parse(mlo_buf_str(&text), text.len, METADATA_FILE, &metadata, err);
        else if (status == MLO_ENOTFOUND && !json_is_null(json_object_get(version, "deletion")))
            status = MLO_OK; /* a tombstone's bytes may be gone */
        if (status != MLO_OK)
            goto out;
    }
    json_object_set_new(version, "metadata", metadata ? metadata : json_object());
out:
    mlo_buf_clear(&text);
    return status;
}

/* Takes over `version`, as the registry shows it. */
static enum mlo_status reply_version(struct mlo_request *req, int http_status, json_t *version,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(add_metadata_of(req, version, err));
    if (http_status == 201)
        mlo_reply_header(req, "Location", "/v1/projects/%s/models/%s/versions/%lld",
                         mlo_request_param(req, "p"), mlo_request_param(req, "m"),
                         (long long)mlo_json_i64(version, "version", 0));
    status = mlo_reply_json(req, http_status, version, err);
    version = NULL;
out:
    json_decref(version);
    return status;
}

enum mlo_status mlo_view_version_add(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project,
                                     const char *model, const struct mlo_version_content *content,
                                     struct mlo_version_info *out, struct mlo_error *err)
{
    int64_t id;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_model_ensure(conn, actor, project, model, &id, err);
    if (status == MLO_OK)
        status = mlo_version_add(conn, actor, id, content, out, err);
    return mlo_db_end(conn, status, err);
}

enum mlo_status h_version_create(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_version_info info;
    struct mlo_upload_request body;
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_upload_request_read(req, &body, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    if (json_object_size(body.metadata))
        MLO_TRY(add_metadata(req, project, body.metadata, body.files, err));
    MLO_TRY(mlo_view_version_add(
        req->conn, &actor, project, mlo_request_param(req, "m"),
        &(struct mlo_version_content){.description = body.description,
                                      .facts = json_object_get(body.json, "facts"),
                                      .signature = json_object_get(body.json, "signature"),
                                      .blobs = body.files->blobs,
                                      .count = body.files->count},
        &info, err));
    MLO_TRY(mlo_version_get(req->conn, info.id, &value, err));
    MLO_TRY(reply_version(req, info.created ? 201 : 200, value, err));
out:
    return status;
}

enum mlo_status h_versions(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_page page;
    json_t *value = NULL;
    int64_t model;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    MLO_TRY(mlo_version_list(req->conn, model, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

/* Most have no metadata file: their text goes out as it was read. */
enum mlo_status h_version(struct mlo_request *req, struct mlo_error *err)
{
    json_t *value;
    enum mlo_status status;
    MLO_TRY(mlo_request_version_read(req, &req->out, err));
    if (strstr(mlo_buf_str(&req->out), "\"" METADATA_FILE "\"")) {
        MLO_TRY(mlo_json_parse(mlo_buf_str(&req->out), req->out.len, "version", &value, err));
        return reply_version(req, 200, value, err);
    }
    req->out.len--; /* the brace */
    mlo_buf_puts(&req->out, ",\"metadata\":{}}\n");
    status = mlo_reply_out(req, 200, "application/json", err);
out:
    return status;
}

enum mlo_status h_variants(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info info;
    json_t *items = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_version(req, &info, err));
    MLO_TRY(mlo_view_variants(req->conn, info.id, &items, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(items), err));
out:
    return status;
}
