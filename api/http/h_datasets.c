/* Datasets. */
#include <string.h>

#include "api/http/handlers_impl.h"

static enum mlo_status reply_dataset(struct mlo_request *req, int http_status, int64_t version_id,
                                     struct mlo_error *err)
{
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_dataset_get(req->conn, version_id, &value, err));
    if (http_status == 201)
        mlo_reply_header(req, "Location", "/v1/projects/%s/datasets/%s/versions/%lld",
                         mlo_request_param(req, "p"), mlo_request_param(req, "d"),
                         (long long)mlo_json_i64(value, "version", 0));
    MLO_TRY(mlo_reply_json(req, http_status, value, err));
out:
    return status;
}

enum mlo_status h_dataset_create(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_dataset_info info;
    struct mlo_upload_request body;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_upload_request_read(req, &body, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    const struct mlo_dataset_content content = {.description = body.description,
                                                .metadata = body.metadata,
                                                .facts = json_object_get(body.json, "facts"),
                                                .blobs = body.files->blobs,
                                                .count = body.files->count};
    MLO_TRY(mlo_dataset_version_add(req->conn, &actor, project, mlo_request_param(req, "d"), &content, &info,
                                    err));
    MLO_TRY(reply_dataset(req, info.created ? 201 : 200, info.version_id, err));
out:
    return status;
}

enum mlo_status h_datasets(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_page page;
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_dataset_list(req->conn, &actor, project, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

static enum mlo_status reply_number(struct mlo_request *req, int64_t number, struct mlo_error *err)
{
    struct mlo_dataset_info info;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_dataset_find(req->conn, project, mlo_request_param(req, "d"), number, &info, err));
    MLO_TRY(reply_dataset(req, 200, info.version_id, err));
out:
    return status;
}

enum mlo_status h_dataset(struct mlo_request *req, struct mlo_error *err)
{
    return reply_number(req, 0, err);
}

enum mlo_status h_dataset_version(struct mlo_request *req, struct mlo_error *err)
{
    const char *text = mlo_request_param(req, "v");
    int64_t number = 0;
    if (strcmp(text, "latest") != 0 && (!mlo_str_to_i64(text, &number) || number < 1)) {
        mlo_error_set(err, MLO_ENOTFOUND, "'%.60s' is no version", text);
        mlo_error_hint(err, "a version is a number, or latest");
        return MLO_ENOTFOUND;
    }
    return reply_number(req, number, err);
}
