/* Health, who am I, queue and workers. */
#include <string.h>

#include "api/http/handlers_impl.h"

enum mlo_status h_healthz(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_reply_json(req, 200, json_pack("{s:s, s:s}", "status", "ok", "version", MLO_VERSION_TEXT),
                          err);
}

enum mlo_status h_readyz(struct mlo_request *req, struct mlo_error *err)
{
    bool ready;
    char why[160];
    json_t *value = mlo_readiness_json(req->http, &ready, why);
    if (ready)
        return mlo_reply_json(req, 200, value, err);
    mlo_reply_member(req, "checks", json_incref(json_object_get(value, "checks")));
    json_decref(value);
    return mlo_error_set(err, MLO_EUNAVAILABLE, "not ready: %s", why);
}

static const char *in_stage(const struct mlo_principal *who, const char *stage)
{
    return mlo_role_name(MLO_MAX(who->role, who->stage_role[mlo_stage_index(stage)]));
}

enum mlo_status h_me(struct mlo_request *req, struct mlo_error *err)
{
    const struct mlo_principal *who = &req->who;
    return mlo_reply_json(req, 200,
                          json_pack("{s:s, s:s, s:s, s:{s:s, s:s}, s:o, s:I, s:s}", "name", who->name, "kind",
                                    mlo_kind_name(who->kind), "role", mlo_role_name(who->role), "stages",
                                    "staging", in_stage(who, "staging"), "production",
                                    in_stage(who, "production"), "project_id",
                                    who->project_id ? json_integer(who->project_id) : json_null(), "token_id",
                                    (json_int_t)who->token_id, "version", MLO_VERSION_TEXT),
                          err);
}

enum mlo_status h_queue(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_VIEWER, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_queue_overview(conn, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_workers(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    json_t *value = NULL, *item;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_VIEWER, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_worker_list(conn, &value, err));
    json_array_foreach(json_object_get(value, "items"), i, item)
    {
        mlo_json_rename(item, "started", "started_at");
        mlo_json_rename(item, "last_seen", "last_seen_at");
    }
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

static enum mlo_status wish(struct mlo_request *req, enum mlo_worker_wish what, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    const char *reason = "", *name = mlo_request_param(req, "id");
    json_t *body, *all = NULL, *item;
    size_t i;
    enum mlo_status status;
    if (req->body.len) {
        MLO_TRY(mlo_request_json(req, &body, err));
        MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    }
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_worker_control(conn, &actor, name, what, *reason ? reason : NULL, err));
    MLO_TRY(mlo_worker_list(conn, &all, err));
    status = mlo_error_set(err, MLO_ENOTFOUND, "the worker '%.120s' has not been seen since yesterday", name);
    json_array_foreach(json_object_get(all, "items"), i, item)
    {
        if (strcmp(mlo_json_str(item, "name", ""), name) == 0) {
            status = mlo_reply_json(req, 200, json_incref(item), err);
            break;
        }
    }
out:
    json_decref(all);
    return status;
}

enum mlo_status h_worker_pause(struct mlo_request *req, struct mlo_error *err)
{
    return wish(req, MLO_WORKER_PAUSE, err);
}

enum mlo_status h_worker_resume(struct mlo_request *req, struct mlo_error *err)
{
    return wish(req, MLO_WORKER_RUN, err);
}

enum mlo_status h_worker_drain(struct mlo_request *req, struct mlo_error *err)
{
    return wish(req, MLO_WORKER_DRAIN, err);
}
