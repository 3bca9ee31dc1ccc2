/* Comments on versions and releases. */
#include "api/http/handlers_impl.h"

/* {v}, or {r} where the path has it. */
static enum mlo_status read_place(struct mlo_request *req, struct mlo_comment_on *out, struct mlo_error *err)
{
    const char *release = mlo_request_param(req, "r");
    struct mlo_version_info info;
    enum mlo_status status;
    *out = (struct mlo_comment_on){0};
    if (release && *release) {
        if (!mlo_str_to_i64(release, &out->release) || out->release < 1)
            return mlo_error_set(err, MLO_ENOTFOUND, "'%.60s' is no release: releases have numbers", release);
        MLO_TRY(mlo_request_model(req, NULL, &out->model_id, err));
    } else {
        MLO_TRY(mlo_request_version(req, &info, err));
        out->model_id = info.model_id;
        out->version_id = info.id;
    }
out:
    return status;
}

enum mlo_status h_comments(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_comment_on on;
    struct mlo_page page;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(read_place(req, &on, err));
    MLO_TRY(mlo_comment_list(req->conn, &on, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_comment_add(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_comment_on on;
    const char *text;
    json_t *body, *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "text", NULL, &text, err));
    MLO_TRY(read_place(req, &on, err));
    MLO_TRY(mlo_comment_add(req->conn, &actor, &on, text, &value, err));
    MLO_TRY(mlo_reply_json(req, 201, value, err));
out:
    return status;
}
