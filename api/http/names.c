/* From the segments of a path to what they name. */
#include <string.h>

#include "api/http/http_impl.h"

enum mlo_status mlo_request_page(const struct mlo_request *req, struct mlo_page *out, struct mlo_error *err)
{
    out->cursor = mlo_request_query(req, "cursor");
    return mlo_request_query_i64(req, "limit", MLO_PAGE_DEFAULT, 1, MLO_PAGE_MAX, &out->limit, err);
}

/* What is asked for a stage alone, the registry asks for there. */
static enum mlo_role role_of(const struct mlo_route *route)
{
    return route->by_stage ? MLO_VIEWER : route->role;
}

enum mlo_status mlo_request_project(struct mlo_request *req, int64_t *out, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_project_find(conn, &actor, mlo_request_param(req, "p"), role_of(req->route), out, err));
out:
    return status;
}

enum mlo_status mlo_request_model(struct mlo_request *req, int64_t *project, int64_t *out,
                                  struct mlo_error *err)
{
    int64_t project_id;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project_id, err));
    MLO_TRY(mlo_model_find(req->conn, project_id, mlo_request_param(req, "m"), out, err));
    if (project)
        *project = project_id;
out:
    return status;
}

enum mlo_status mlo_request_member(struct mlo_request *req, int64_t *project, int64_t *out,
                                   char principal[240], struct mlo_error *err)
{
    int64_t project_id;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project_id, err));
    MLO_TRY(mlo_member_find(req->conn, project_id, mlo_request_param(req, "name"), out, principal, err));
    if (project)
        *project = project_id;
out:
    return status;
}

/* The number that {v} says, 0 for `latest`. */
static bool version_number(const char *text, int64_t *out)
{
    *out = 0;
    return strcmp(text, "latest") == 0 || (mlo_str_to_i64(text, out) && *out >= 1);
}

static enum mlo_status find_version(struct mlo_request *req, bool deleted_too, struct mlo_version_info *out,
                                    struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *text = mlo_request_param(req, "v");
    struct mlo_db_conn *conn;
    int64_t number;
    enum mlo_status status;
    if (!version_number(text, &number)) {
        mlo_error_set(err, MLO_ENOTFOUND, "'%.60s' is no version", text);
        mlo_error_hint(err, "a version is a number, or latest");
        return MLO_ENOTFOUND;
    }
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_version_locate(conn, &actor, mlo_request_param(req, "p"), mlo_request_param(req, "m"), number,
                               role_of(req->route), deleted_too, out, err));
out:
    return status;
}

/* Whether the path has a version's names, as far as one can see. */
static bool names_version(struct mlo_request *req, int64_t *number)
{
    const char *version = mlo_request_param(req, "v");
    return req->route->kind == MLO_ROUTE_API && mlo_name_valid(mlo_request_param(req, "p")) &&
           mlo_name_valid(mlo_request_param(req, "m")) && version && version_number(version, number);
}

enum mlo_status mlo_names_ahead(struct mlo_request *req, struct mlo_db_conn *conn, struct mlo_error *err)
{
    int64_t number;
    if (!names_version(req, &number))
        return MLO_OK;
    return mlo_version_locate_ahead(conn, mlo_request_param(req, "p"), mlo_request_param(req, "m"), number,
                                    err);
}

bool mlo_names_ask(struct mlo_request *req, struct mlo_gather_ask *out)
{
    char *text = req->state->number;
    int64_t number;
    if (!names_version(req, &number))
        return false;
    snprintf(text, sizeof req->state->number, "%lld", (long long)number);
    *out = mlo_version_ask(mlo_request_param(req, "p"), mlo_request_param(req, "m"), number ? text : NULL);
    return true;
}

enum mlo_status mlo_request_version_read(struct mlo_request *req, struct mlo_buf *out, struct mlo_error *err)
{
    const struct mlo_gather_ask *ask = &req->state->asks[MLO_ASK_VERSION];
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_version_info info;
    json_t *value = NULL;
    enum mlo_status status;
    if (req->state->gathered && ask->row >= 0)
        return mlo_version_answer(ask, &actor, role_of(req->route), &info, out, err);
    MLO_TRY(find_version(req, true, &info, err)); /* or what there is not, in words */
    MLO_TRY(mlo_version_get(req->conn, info.id, &value, err));
    mlo_json_canonical(value, out);
    status = mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
out:
    json_decref(value);
    return status;
}

enum mlo_status mlo_request_version(struct mlo_request *req, struct mlo_version_info *out,
                                    struct mlo_error *err)
{
    return find_version(req, false, out, err);
}

enum mlo_status mlo_request_version_any(struct mlo_request *req, struct mlo_version_info *out,
                                        struct mlo_error *err)
{
    return find_version(req, true, out, err);
}

enum mlo_status mlo_read_digest(const char *text, struct mlo_digest *out, struct mlo_error *err)
{
    if (mlo_str_starts(text, "sha256:") && mlo_digest_parse(text, out))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%.80s' is no digest", text);
    mlo_error_hint(err, "a digest is sha256: and 64 lowercase hex digits");
    return MLO_EINVAL;
}

enum mlo_status mlo_request_digest(const struct mlo_request *req, struct mlo_digest *out,
                                   struct mlo_error *err)
{
    enum mlo_status status = mlo_read_digest(mlo_request_param(req, "digest"), out, err);
    if (status != MLO_OK)
        mlo_error_where(err, "path");
    return status;
}
