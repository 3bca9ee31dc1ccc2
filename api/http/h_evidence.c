/* Evidence, lineage, and the bytes of variants. */
#include <string.h>

#include "api/http/handlers_impl.h"

/* The newest of each kind for all variants, out of the list of variants. */
static enum mlo_status evidence_of_all(struct mlo_request *req, int64_t version_id, const char *metric,
                                       json_t **out, struct mlo_error *err)
{
    json_t *variants = NULL, *variant, *item;
    size_t i, j;
    *out = json_array();
    enum mlo_status status =
        *out ? mlo_variant_list(req->conn, version_id, &variants, err) : mlo_error_nomem(err);
    json_array_foreach(variants, i, variant) json_array_foreach(json_object_get(variant, "evidence"), j, item)
    {
        if (metric && strcmp(mlo_json_str(item, "metric", ""), metric) != 0)
            continue;
        json_object_set(item, "variant", json_object_get(variant, "variant"));
        json_array_append(*out, item);
    }
    json_decref(variants);
    return status;
}

enum mlo_status h_evidence(struct mlo_request *req, struct mlo_error *err)
{
    const char *name = mlo_request_query(req, "variant"), *metric = mlo_request_query(req, "metric");
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    struct mlo_page page;
    json_t *value = NULL, *item;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_version_any(req, &info, err));
    if (name) {
        MLO_TRY(mlo_variant_find(req->conn, info.id, name, &variant, err));
        const struct mlo_evidence_filter filter = {.artifact = &variant.artifact, .metric = metric};
        MLO_TRY(mlo_evidence_list(req->conn, info.project_id, &filter, &page, &value, err));
        json_array_foreach(json_object_get(value, "items"), i, item)
            json_object_set_new(item, "variant", json_string(name));
    } else {
        MLO_TRY(evidence_of_all(req, info.id, metric, &value, err));
        value = mlo_list_of(value);
    }
    status = mlo_reply_json(req, 200, value, err);
    value = NULL;
out:
    json_decref(value);
    return status;
}

enum mlo_status h_lineage(struct mlo_request *req, struct mlo_error *err)
{
    const char *name = mlo_request_query(req, "variant");
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_version_any(req, &info, err));
    MLO_TRY(mlo_variant_find(req->conn, info.id, name ? name : MLO_VARIANT_SOURCE, &variant, err));
    MLO_TRY(mlo_lineage_get(req->conn, info.project_id, &variant.artifact, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_artifact_names(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_digest artifact;
    struct mlo_page page;
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_digest(req, &artifact, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_lineage_names(req->conn, project, &artifact, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status mlo_view_artifact(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    enum mlo_status status;
    MLO_TRY(mlo_request_version(req, &info, err));
    MLO_TRY(mlo_variant_find(req->conn, info.id, mlo_request_param(req, "name"), &variant, err));
    mlo_reply_header(req, "X-Mlopt-Variant", "%s", variant.name);
    mlo_reply_header(req, "X-Mlopt-Version", "%lld", (long long)info.number);
    char *file = mlo_arena_printf(req->arena, "%s-%lld-%s.onnx", mlo_request_param(req, "m"),
                                  (long long)info.number, variant.name);
    MLO_TRY(file ? mlo_reply_artifact(req, &variant.artifact, file, err) : mlo_error_nomem(err));
out:
    return status;
}

enum mlo_status h_variant_artifact(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_view_artifact(req, err);
}

enum mlo_status mlo_view_report(struct mlo_request *req, struct mlo_report_blob *out, struct mlo_error *err)
{
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    int64_t run;
    enum mlo_status status;
    MLO_TRY(mlo_request_query_i64(req, "run", 0, 1, INT64_MAX, &run, err));
    MLO_TRY(mlo_request_version(req, &info, err));
    MLO_TRY(mlo_variant_find(req->conn, info.id, mlo_request_param(req, "name"), &variant, err));
    out->version = info.number;
    MLO_TRY(mlo_variant_report_find(req->conn, info.project_id, &variant.artifact, run, &out->blob,
                                    &out->size_bytes, err));
out:
    return status;
}

enum mlo_status mlo_view_report_json(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_report_blob found;
    uint64_t size;
    int fd;
    enum mlo_status status;
    MLO_TRY(mlo_view_report(req, &found, err));
    mlo_request_db_release(req);
    status = mlo_blob_open_fd(req->http->options.blobs, &found.blob, &fd, &size, err);
    if (status == MLO_EDIGEST)
        status = mlo_request_damaged(req, &found.blob, err);
    MLO_TRY(status);
    mlo_reply_header(req, "Content-Disposition", "attachment; filename=\"%s-%lld-%s-report.json\"",
                     mlo_request_param(req, "m"), (long long)found.version, mlo_request_param(req, "name"));
    MLO_TRY(mlo_reply_blob(req, fd, size, &found.blob, "application/json", err));
out:
    return status;
}

enum mlo_status h_attestations(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    char artifact[MLO_DIGEST_TEXT_SIZE];
    json_t *items = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_version_any(req, &info, err));
    MLO_TRY(mlo_variant_find(req->conn, info.id, mlo_request_param(req, "name"), &variant, err));
    MLO_TRY(mlo_attestation_list(req->conn, info.project_id, &variant.artifact, &items, err));
    MLO_TRY(mlo_reply_json(req, 200,
                           json_pack("{s:o, s:n, s:s}", "items", items, "next", "artifact",
                                     mlo_digest_text(&variant.artifact, artifact)),
                           err));
out:
    return status;
}

/* The variant that {v} and {name} name. */
static enum mlo_status read_variant(struct mlo_request *req, struct mlo_version_info *info,
                                    struct mlo_variant_info *variant, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_request_version(req, info, err));
    MLO_TRY(mlo_variant_find(req->conn, info->id, mlo_request_param(req, "name"), variant, err));
out:
    return status;
}

enum mlo_status h_signature(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(read_variant(req, &info, &variant, err));
    MLO_TRY(mlo_signature_get(req->conn, info.id, &variant.artifact, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_reproductions(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    struct mlo_page page;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(read_variant(req, &info, &variant, err));
    MLO_TRY(mlo_reproduction_list(req->conn, info.project_id, &variant.artifact, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_reproduce(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_version_info info;
    struct mlo_variant_info variant;
    json_t *value = NULL;
    int64_t run;
    enum mlo_status status;
    MLO_TRY(read_variant(req, &info, &variant, err));
    const struct mlo_reproduce_request request = {
        .project = info.project_id, .version = info.id, .variant = variant.name, .actor = &actor};
    MLO_TRY(mlo_run_reproduce(req->conn, &request, &run, err));
    MLO_TRY(mlo_view_run(req->conn, info.project_id, run, &value, err));
    mlo_reply_header(req, "Location", "/v1/projects/%s/runs/%lld", mlo_request_param(req, "p"),
                     (long long)run);
    MLO_TRY(mlo_reply_json(req, 201, value, err));
out:
    return status;
}

enum mlo_status h_variant_report(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_view_report_json(req, err);
}
