/* Members of a project and their tokens. */
#include <string.h>

#include "api/http/handlers_impl.h"

static enum mlo_status bad_field(struct mlo_error *err, const char *field, const char *what, const char *text,
                                 const char *hint)
{
    mlo_error_set(err, MLO_EINVAL, "there is no %s '%.60s'", what, text);
    mlo_error_where(err, "field '%s'", field);
    mlo_error_hint(err, "%s", hint);
    return MLO_EINVAL;
}

enum mlo_status h_members(struct mlo_request *req, struct mlo_error *err)
{
    json_t *items = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_list(req->conn, project, &items, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(items), err));
out:
    return status;
}

enum mlo_status h_member(struct mlo_request *req, struct mlo_error *err)
{
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_get(req->conn, project, mlo_request_param(req, "name"), &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

/* {"staging": "promoter", "production": null} */
static enum mlo_status read_stages(const json_t *body, struct mlo_member_settings *out, struct mlo_error *err)
{
    json_t *stages = json_object_get(body, "stages"), *value;
    const char *stage;
    if (!stages || json_is_null(stages))
        return MLO_OK;
    if (!json_is_object(stages)) {
        mlo_error_set(err, MLO_EINVAL, "'stages' is an object: a role by the name of a stage");
        mlo_error_where(err, "field 'stages'");
        return MLO_EINVAL;
    }
    json_object_foreach(stages, stage, value)
    {
        enum mlo_role role;
        if (!mlo_stage_valid(stage))
            return bad_field(err, "stages", "stage", stage, "staging or production");
        if (json_is_null(value))
            continue;
        if (!json_is_string(value) || !mlo_role_parse(json_string_value(value), &role) || role == MLO_VIEWER)
            return bad_field(err, "stages", "role in a stage",
                             json_is_string(value) ? json_string_value(value) : "",
                             "promoter or approver, or null");
        out->stage_role[mlo_stage_index(stage)] = role;
    }
    return MLO_OK;
}

static enum mlo_status read_settings(const json_t *body, struct mlo_member_settings *out,
                                     struct mlo_error *err)
{
    const char *kind, *role;
    static const bool no = false;
    enum mlo_status status;
    MLO_TRY(mlo_json_get_str(body, "kind", "person", &kind, err));
    MLO_TRY(mlo_json_get_str(body, "role", NULL, &role, err));
    MLO_TRY(mlo_json_get_str(body, "description", "", &out->description, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &out->reason, err));
    if (strcmp(kind, "person") != 0 && strcmp(kind, "service") != 0)
        return bad_field(err, "kind", "kind of member", kind, "person or service");
    out->kind = strcmp(kind, "service") == 0 ? MLO_KIND_SERVICE : MLO_KIND_PERSON;
    out->reason = *out->reason ? out->reason : NULL;
    if (!mlo_role_parse(role, &out->role))
        return bad_field(err, "role", "role", role, "one of viewer, submitter, promoter, approver, admin");
    if (!json_is_null(json_object_get(body, "approve")))
        MLO_TRY(mlo_json_get_bool(body, "approve", &no, &out->may_approve, err));
    MLO_TRY(read_stages(body, out, err));
out:
    return status;
}

enum mlo_status h_member_set(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_member_settings settings = {.role = MLO_VIEWER};
    json_t *body, *value = NULL;
    int64_t project;
    bool made;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(read_settings(body, &settings, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_set(req->conn, &actor, project, mlo_request_param(req, "name"), &settings, &made,
                           &value, err));
    MLO_TRY(mlo_reply_json(req, made ? 201 : 200, value, err));
out:
    return status;
}

enum mlo_status h_member_remove(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_remove(req->conn, &actor, project, mlo_request_param(req, "name"), NULL,
                              mlo_request_query(req, "reason"), err));
    MLO_TRY(mlo_reply_empty(req, 204));
out:
    return status;
}

enum mlo_status h_member_tokens(struct mlo_request *req, struct mlo_error *err)
{
    json_t *items = NULL;
    int64_t member;
    enum mlo_status status;
    MLO_TRY(mlo_request_member(req, NULL, &member, NULL, err));
    MLO_TRY(mlo_token_list_of(req->conn, member, &items, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(items), err));
out:
    return status;
}

enum mlo_status mlo_request_token_life(const json_t *body, int64_t *expires_at_us, struct mlo_error *err)
{
    int64_t days = 0, none = 0;
    enum mlo_status status = MLO_OK;
    if (!json_is_null(json_object_get(body, "expires_days")))
        status = mlo_json_get_i64(body, "expires_days", &none, &days, err);
    if (status == MLO_OK && (days < 0 || days > 36500)) {
        status = mlo_error_set(err, MLO_EINVAL, "expires_days is %lld, not 1 to 36500", (long long)days);
        mlo_error_where(err, "field 'expires_days'");
    }
    *expires_at_us = status == MLO_OK && days ? mlo_clock_utc_us() + days * 86400 * 1000000 : 0;
    return status;
}

enum mlo_status mlo_request_token_stage(const json_t *body, const char **stage, struct mlo_error *err)
{
    const json_t *value = json_object_get(body, "stage");
    *stage = NULL;
    if (!value || json_is_null(value))
        return MLO_OK;
    return mlo_json_get_str(body, "stage", NULL, stage, err);
}

enum mlo_status h_member_token_create(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_token_request token = {.role = MLO_ADMIN}; /* all that the member may */
    char text[MLO_TOKEN_TEXT_SIZE] = "", principal[240];
    json_t *body;
    int64_t id;
    bool read_only = false;
    static const bool no = false;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "name", NULL, &token.name, err));
    if (!json_is_null(json_object_get(body, "read_only")))
        MLO_TRY(mlo_json_get_bool(body, "read_only", &no, &read_only, err));
    MLO_TRY(mlo_request_token_life(body, &token.expires_at_us, err));
    MLO_TRY(mlo_request_token_stage(body, &token.stage, err));
    MLO_TRY(mlo_request_member(req, &token.project_id, &token.member, principal, err));
    token.member_name = principal;
    if (read_only)
        token.role = MLO_VIEWER;
    MLO_TRY(mlo_token_make(req->conn, &actor, &token, text, &id, err));
    MLO_TRY(mlo_reply_json(req, 201,
                           json_pack("{s:I, s:s, s:s, s:s, s:b, s:s?, s:s}", "id", (json_int_t)id, "name",
                                     token.name, "member", mlo_request_param(req, "name"), "project",
                                     mlo_request_param(req, "p"), "read_only", read_only, "stage",
                                     token.stage, "token", text),
                           err));
out:
    explicit_bzero(text, sizeof text);
    return status;
}

enum mlo_status mlo_view_member_token_revoke(struct mlo_request *req, const char *id, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    int64_t member, number;
    enum mlo_status status;
    MLO_TRY(mlo_request_member(req, NULL, &member, NULL, err));
    if (!mlo_str_to_i64(id, &number))
        number = 0; /* none has it */
    MLO_TRY(mlo_token_revoke_of(req->conn, &actor, member, number, err));
out:
    return status;
}

enum mlo_status h_member_token_revoke(struct mlo_request *req, struct mlo_error *err)
{
    enum mlo_status status = mlo_view_member_token_revoke(req, mlo_request_param(req, "id"), err);
    return status == MLO_OK ? mlo_reply_empty(req, 204) : status;
}
