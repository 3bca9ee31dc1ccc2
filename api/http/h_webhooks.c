/* Webhooks of a project, and what was sent to them. */
#include <string.h>

#include "api/http/handlers_impl.h"

enum { EVENTS_MAX = 64 };

/* {id}: a number, or one that no webhook has. */
static int64_t number_param(struct mlo_request *req, const char *name)
{
    int64_t id = 0;
    return mlo_str_to_i64(mlo_request_param(req, name), &id) ? id : 0;
}

static const struct mlo_webhook_guard *guard_of(const struct mlo_request *req)
{
    return mlo_webhooks_guard(mlo_http_options(req->http)->webhooks);
}

/* Project and webhook of the path, for an admin of the project. */
static enum mlo_status named(struct mlo_request *req, int64_t *project, int64_t *id, struct mlo_error *err)
{
    *id = number_param(req, "id");
    return mlo_request_project(req, project, err);
}

enum mlo_status h_webhooks(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    json_t *items = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_webhook_list(req->conn, &actor, project, &items, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(items), err));
out:
    return status;
}

/* What a body sets; `events` points into it. */
static enum mlo_status read_settings(const json_t *body, const char *events[EVENTS_MAX],
                                     struct mlo_webhook_settings *out, struct mlo_error *err)
{
    const json_t *list = json_object_get(body, "events"), *event;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_json_get_str(body, "url", "", &out->url, err));
    MLO_TRY(mlo_json_get_str(body, "state", "", &out->state, err));
    if (json_object_get(body, "description"))
        MLO_TRY(mlo_json_get_str(body, "description", NULL, &out->description, err));
    out->url = *out->url ? out->url : NULL;
    out->state = *out->state ? out->state : NULL;
    if (list && !json_is_null(list)) {
        if (!json_is_array(list) || json_array_size(list) > EVENTS_MAX) {
            status = mlo_error_set(err, MLO_EINVAL, "'events' is a list of at most %d names", EVENTS_MAX);
            goto out;
        }
        out->events = events;
        json_array_foreach(list, i, event)
        {
            if (!json_is_string(event)) {
                status = mlo_error_set(err, MLO_EINVAL, "'events' is a list of names");
                goto out;
            }
            events[out->event_count++] = json_string_value(event);
        }
    }
out:
    return status;
}

enum mlo_status h_webhook_create(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_webhook_settings settings = {0};
    const char *events[EVENTS_MAX];
    char secret[MLO_WEBHOOK_SECRET_SIZE] = "";
    json_t *body, *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(read_settings(body, events, &settings, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_webhook_create(req->conn, &actor, guard_of(req), project, &settings, secret, &value, err));
    json_object_set_new(value, "secret", json_string(secret));
    status = mlo_reply_json(req, 201, value, err);
out:
    explicit_bzero(secret, sizeof secret);
    return status;
}

enum mlo_status h_webhook(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    json_t *value = NULL;
    int64_t project, id;
    enum mlo_status status;
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_get(req->conn, &actor, project, id, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_webhook_change(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_webhook_settings settings = {0};
    const char *events[EVENTS_MAX];
    json_t *body, *value = NULL;
    int64_t project, id;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(read_settings(body, events, &settings, err));
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_change(req->conn, &actor, guard_of(req), project, id, &settings, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_webhook_remove(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    int64_t project, id;
    enum mlo_status status;
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_remove(req->conn, &actor, project, id, err));
    MLO_TRY(mlo_reply_empty(req, 204));
out:
    return status;
}

enum mlo_status h_webhook_rotate(struct mlo_request *req, struct mlo_error *err)
{
    enum { DAY_S = 86400 };
    struct mlo_actor actor = mlo_request_actor(req);
    const int64_t a_day = DAY_S;
    char secret[MLO_WEBHOOK_SECRET_SIZE] = "";
    json_t *body;
    int64_t project, id, overlap_s;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_i64(body, "overlap_s", &a_day, &overlap_s, err));
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_rotate(req->conn, &actor, project, id, overlap_s, secret, err));
    status = mlo_reply_json(req, 201, json_pack("{s:I, s:s}", "id", (json_int_t)id, "secret", secret), err);
out:
    explicit_bzero(secret, sizeof secret);
    return status;
}

enum mlo_status h_webhook_ping(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    int64_t project, id, delivery;
    enum mlo_status status;
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_ping(req->conn, &actor, project, id, &delivery, err));
    MLO_TRY(mlo_reply_json(req, 202, json_pack("{s:I}", "delivery", (json_int_t)delivery), err));
out:
    return status;
}

enum mlo_status h_webhook_deliveries(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_page page;
    json_t *value = NULL;
    int64_t project, id;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_deliveries(req->conn, &actor, project, id, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_webhook_delivery(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    json_t *value = NULL;
    int64_t project, id;
    enum mlo_status status;
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_delivery(req->conn, &actor, project, id, number_param(req, "n"), &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_webhook_replay(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    int64_t project, id, n = number_param(req, "n");
    enum mlo_status status;
    MLO_TRY(named(req, &project, &id, err));
    MLO_TRY(mlo_webhook_replay(req->conn, &actor, project, id, n, err));
    MLO_TRY(mlo_reply_json(req, 202, json_pack("{s:I}", "delivery", (json_int_t)n), err));
out:
    return status;
}
