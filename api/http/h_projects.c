/* Projects and tokens. */
#include <string.h>

#include "api/http/handlers_impl.h"

enum mlo_status h_projects(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    struct mlo_page page;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_project_list(conn, &actor, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_project_create(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    const char *name, *description;
    json_t *body;
    int64_t id;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "name", NULL, &name, err));
    MLO_TRY(mlo_json_get_str(body, "description", "", &description, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_project_create(conn, &actor, name, description, &id, err));
    MLO_TRY(mlo_reply_json(req, 201, json_pack("{s:I, s:s}", "id", (json_int_t)id, "name", name), err));
out:
    return status;
}

enum mlo_status h_tokens(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    json_t *items = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_token_list(conn, 0, &items, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(items), err));
out:
    return status;
}

enum mlo_status h_token_create(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    const char *name, *role_name, *project_name = NULL, *stage;
    char text[MLO_TOKEN_TEXT_SIZE];
    enum mlo_role role;
    json_t *body;
    bool rollback;
    int64_t project = 0, expires, id;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "name", NULL, &name, err));
    MLO_TRY(mlo_json_get_str(body, "role", NULL, &role_name, err));
    if (!mlo_role_parse(role_name, &role)) {
        status = mlo_error_set(err, MLO_EINVAL, "there is no role '%.60s'", role_name);
        mlo_error_where(err, "field 'role'");
        mlo_error_hint(err, "one of viewer, submitter, promoter, approver, admin");
        goto out;
    }
    MLO_TRY(mlo_request_token_life(body, &expires, err));
    MLO_TRY(mlo_request_token_stage(body, &stage, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    if (json_object_get(body, "project") && !json_is_null(json_object_get(body, "project"))) {
        MLO_TRY(mlo_json_get_str(body, "project", NULL, &project_name, err));
        MLO_TRY(mlo_project_find(conn, &actor, project_name, MLO_ADMIN, &project, err));
    }
    struct mlo_token_request token = {
        .name = name, .role = role, .project_id = project, .expires_at_us = expires, .stage = stage};
    if (!json_is_null(json_object_get(body, "rollback")) && json_object_get(body, "rollback")) {
        MLO_TRY(mlo_json_get_bool(body, "rollback", NULL, &rollback, err));
        token.rollback = rollback ? MLO_RIGHT_GRANTED : MLO_RIGHT_WITHHELD;
    }
    MLO_TRY(mlo_token_make(conn, &actor, &token, text, &id, err));
    MLO_TRY(mlo_reply_json(req, 201,
                           json_pack("{s:I, s:s, s:s, s:s?, s:s}", "id", (json_int_t)id, "name", name, "role",
                                     role_name, "project", project_name, "token", text),
                           err));
out:
    return status;
}

enum mlo_status mlo_view_token_revoke(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    int64_t id;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    if (!mlo_str_to_i64(mlo_request_param(req, "id"), &id)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no token '%.60s'", mlo_request_param(req, "id"));
        goto out;
    }
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_token_revoke(conn, &actor, id, err));
out:
    return status;
}

enum mlo_status h_token_revoke(struct mlo_request *req, struct mlo_error *err)
{
    enum mlo_status status = mlo_view_token_revoke(req, err);
    return status == MLO_OK ? mlo_reply_empty(req, 204) : status;
}
