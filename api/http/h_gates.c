/* Policies, and what gates decided. */
#include <string.h>

#include "api/http/handlers_impl.h"

/* The project, or the model where the path names one. */
static enum mlo_status read_scope(struct mlo_request *req, struct mlo_policy_scope *out,
                                  struct mlo_error *err)
{
    out->model_id = 0;
    return mlo_request_param(req, "m") ? mlo_request_model(req, &out->project_id, &out->model_id, err)
                                       : mlo_request_project(req, &out->project_id, err);
}

static enum mlo_status reply_policy(struct mlo_request *req, const struct mlo_policy_scope *scope,
                                    int64_t revision, int status, struct mlo_error *err)
{
    json_t *value = NULL;
    enum mlo_status result = mlo_policy_get(req->conn, scope, revision, &value, err);
    if (result != MLO_OK)
        return result;
    mlo_reply_header(req, "ETag", "\"%lld\"", (long long)mlo_json_i64(value, "revision", 0));
    return mlo_reply_json(req, status, value, err);
}

enum mlo_status h_policy(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_policy_scope scope;
    int64_t revision;
    enum mlo_status status;
    MLO_TRY(mlo_request_query_i64(req, "revision", 0, 1, INT64_MAX, &revision, err));
    MLO_TRY(read_scope(req, &scope, err));
    MLO_TRY(reply_policy(req, &scope, revision, 200, err));
out:
    return status;
}

enum mlo_status h_policy_put(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_policy_scope scope;
    const char *text, *reason;
    int64_t if_match, revision;
    json_t *body;
    enum mlo_status status;
    MLO_TRY(mlo_request_if_match(req, &if_match, err));
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "text", NULL, &text, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    MLO_TRY(read_scope(req, &scope, err));
    MLO_TRY(mlo_policy_set(req->conn, &actor, &scope, text, reason, &if_match, &revision, err));
    MLO_TRY(reply_policy(req, &scope, revision, 201, err));
out:
    return status;
}

enum mlo_status h_policy_history(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_policy_scope scope;
    struct mlo_page page;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(read_scope(req, &scope, err));
    MLO_TRY(mlo_policy_list(req->conn, &scope, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_decisions(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_reply_stage_list(req, mlo_decision_list, err);
}

enum mlo_status h_decision(struct mlo_request *req, struct mlo_error *err)
{
    json_t *value = NULL;
    int64_t model, id = 0;
    enum mlo_status status;
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    mlo_str_to_i64(mlo_request_param(req, "id"), &id);
    MLO_TRY(mlo_decision_get(req->conn, model, id, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}
