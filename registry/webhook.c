/* Webhooks: made, changed, removed, given new secrets. */
#include "registry/webhook.h"

#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "base/base64.h"
#include "registry/audit.h"
#include "registry/sql_impl.h"

enum {
    WEBHOOK_ADD,
    WEBHOOK_LOCK,
    WEBHOOK_SET,
    WEBHOOK_REMOVE,
    WEBHOOK_FORGET,
    WEBHOOK_DROP,
    WEBHOOK_EXPIRE,
    WEBHOOK_SECRET,
    WEBHOOK_GET,
    WEBHOOK_LIST
};

#define COLUMNS                                                                                              \
    "w.id, w.url, w.description, to_json(w.events) AS events, w.state, w.state_reason, w.failing_since, "    \
    "w.created_at, w.created_by, (SELECT count(*) FROM webhook_secret s WHERE s.webhook_id = w.id AND "      \
    "coalesce(s.expires_at > now(), true)) AS secrets, (SELECT count(*) FROM webhook_delivery d WHERE "      \
    "d.webhook_id = w.id AND d.state = 'pending') AS pending FROM webhook w WHERE "

const struct mlo_sql mlo_sql_webhook[] = {
    [WEBHOOK_ADD] =
        {"webhook_add",
         "INSERT INTO webhook (project_id, url, description, events, state, created_by) VALUES ($1, "
         "$2, coalesce($3, ''), ARRAY(SELECT json_array_elements_text($4::json)), coalesce($5, "
         "'enabled'), $6) RETURNING id",
         6},
    /* Not FOR UPDATE: a promotion holds the head of the audit log, which we want next, when its delivery's
     * foreign key wants a share of this row. */
    [WEBHOOK_LOCK] =
        {"webhook_lock",
         "SELECT id FROM webhook WHERE project_id = $1 AND id = $2 AND state <> 'removed' FOR NO KEY UPDATE",
         2},
    /* enabled again, it has all its time to fail */
    [WEBHOOK_SET] =
        {"webhook_set",
         "UPDATE webhook SET url = coalesce($2, url), description = coalesce($3, description), events = CASE "
         "WHEN $4::json IS NULL THEN events ELSE ARRAY(SELECT json_array_elements_text($4::json)) END, state "
         "= "
         "coalesce($5, state), state_reason = CASE WHEN $5 IS NULL THEN state_reason END, failing_since = "
         "CASE "
         "WHEN $5 IS NULL THEN failing_since END WHERE id = $1",
         5},
    [WEBHOOK_REMOVE] = {"webhook_remove", "UPDATE webhook SET state = 'removed' WHERE id = $1", 1},
    [WEBHOOK_FORGET] = {"webhook_forget", "DELETE FROM webhook_secret WHERE webhook_id = $1", 1},
    [WEBHOOK_DROP] = {"webhook_drop",
                      "UPDATE webhook_delivery SET state = 'failed' WHERE webhook_id = $1 AND state = "
                      "'pending'",
                      1},
    [WEBHOOK_EXPIRE] = {"webhook_expire",
                        "UPDATE webhook_secret SET expires_at = least(expires_at, now() + make_interval(secs "
                        "=> $2::bigint)) "
                        "WHERE webhook_id = $1",
                        2},
    [WEBHOOK_SECRET] = {"webhook_secret", "INSERT INTO webhook_secret (webhook_id, secret) VALUES ($1, $2)",
                        2},
    [WEBHOOK_GET] = {"webhook_get",
                     "SELECT " COLUMNS "w.project_id = $1 AND w.id = $2 AND w.state <> 'removed'", 2},
    [WEBHOOK_LIST] = {"webhook_list",
                      "SELECT " COLUMNS "w.project_id = $1 AND w.state <> 'removed' ORDER BY w.id", 1},
};
const size_t mlo_sql_webhook_count = MLO_COUNT(mlo_sql_webhook);

const struct mlo_webhook_event mlo_webhook_events[] = {
    {"stage.promote", "a release was put in a stage"},
    {"stage.rollback", "a stage got back a former release; the one that was there is in quarantine"},
    {"stage.refuse", "the gates refused a promotion"},
    {"approval.give", "a promotion was approved"},
    {"approval.withdraw", "an approval was withdrawn"},
    {"policy.set", "the policy of the project, or of a model, has a new revision"},
    {"quarantine.release", "a release was let out of quarantine"},
    {"version.create", "a version of a model was added"},
    {"run.finish", "a run succeeded, failed or was cancelled"},
    {"schedule.fail",
     "what a schedule measured broke its expectations or the stage's gates, or could not be measured"},
    {NULL, NULL},
};

enum { SECRET_BYTES = 32, OVERLAP_MAX_S = 30 * 86400 };

static bool known_event(const char *name)
{
    for (const struct mlo_webhook_event *e = mlo_webhook_events; e->name; e++)
        if (strcmp(e->name, name) == 0)
            return true;
    return false;
}

/* The events as JSON text; "" for none given. */
static enum mlo_status events_text(const struct mlo_webhook_settings *s, bool all, struct mlo_buf *out,
                                   struct mlo_error *err)
{
    json_t *events = json_array();
    enum mlo_status status = events ? MLO_OK : mlo_error_nomem(err);
    for (size_t i = 0; status == MLO_OK && s->events && i < s->event_count; i++) {
        if (known_event(s->events[i])) {
            json_array_append_new(events, json_string(s->events[i]));
            continue;
        }
        status = mlo_error_set(err, MLO_EINVAL, "there is no event '%.60s'", s->events[i]);
        mlo_error_where(err, "field 'events'");
        mlo_error_hint(err, "mlopt webhooks events lists them");
    }
    for (const struct mlo_webhook_event *e = mlo_webhook_events; all && !s->events && e->name; e++)
        json_array_append_new(events, json_string(e->name));
    if (status == MLO_OK && s->events && s->event_count == 0)
        status = mlo_error_set(err, MLO_EINVAL, "a webhook needs at least one event");
    if (status == MLO_OK && (s->events || all))
        mlo_json_canonical(events, out);
    if (status == MLO_OK && !mlo_buf_ok(out))
        status = mlo_error_nomem(err);
    json_decref(events);
    return status;
}

static enum mlo_status check(const struct mlo_webhook_settings *s, const struct mlo_webhook_guard *guard,
                             struct mlo_error *err)
{
    enum mlo_status status = s->url ? mlo_webhook_guard_url(guard, s->url, err) : MLO_OK;
    if (status == MLO_OK && s->description && strlen(s->description) > 1000)
        status = mlo_error_set(err, MLO_EINVAL, "a description has at most 1000 bytes");
    if (status == MLO_OK && s->state && strcmp(s->state, "enabled") != 0 && strcmp(s->state, "paused") != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "a webhook is enabled or paused, not '%.40s'", s->state);
        mlo_error_where(err, "field 'state'");
    }
    return status;
}

/* The log says the host only: the path of such a URL is often a secret, and viewers read the log. */
static enum mlo_status log_change(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                  int64_t id, const char *action, const char *url, const char *events,
                                  const char *state, struct mlo_error *err)
{
    char object[40], *host = NULL;
    CURLU *parts = url ? curl_url() : NULL;
    json_t *list = events && *events ? json_loads(events, 0, NULL) : NULL, *after;
    if (parts && curl_url_set(parts, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK)
        (void)!curl_url_get(parts, CURLUPART_HOST, &host, 0);
    snprintf(object, sizeof object, "webhook %lld", (long long)id);
    after = json_pack("{s:s*, s:o*, s:s*}", "host", host, "events", list, "state", state);
    const struct mlo_audit_event event = {.action = action, .object = object, .after = after};
    enum mlo_status status =
        after ? mlo_audit_append(conn, project_id, actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    curl_free(host);
    curl_url_cleanup(parts);
    return status;
}

static enum mlo_status add_secret(struct mlo_db_conn *conn, int64_t id, char secret[MLO_WEBHOOK_SECRET_SIZE],
                                  struct mlo_error *err)
{
    uint8_t bytes[SECRET_BYTES];
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_random_bytes(bytes, sizeof bytes);
    mlo_base64_encode(bytes, sizeof bytes, &text);
    snprintf(secret, MLO_WEBHOOK_SECRET_SIZE, "whsec_%s", mlo_buf_str(&text));
    mlo_param_i64(&p, id);
    mlo_param_text(&p, secret);
    enum mlo_status status = mlo_buf_ok(&text)
                                 ? mlo_db_exec(conn, &mlo_sql_webhook[WEBHOOK_SECRET], &p, NULL, err)
                                 : mlo_error_nomem(err);
    explicit_bzero(bytes, sizeof bytes);
    if (text.data)
        explicit_bzero(text.data, text.len);
    mlo_buf_clear(&text);
    return status;
}

/* The row of the project's webhook `id` by `sql`, locked or as JSON; `out` NULL: none is wanted. */
static enum mlo_status find(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                            int64_t id, const struct mlo_sql *sql, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, id);
    if (status == MLO_OK)
        status = out ? mlo_sql_object(conn, sql, &p, out, err) : mlo_sql_number(conn, sql, &p, NULL, err);
    if (status == MLO_ENOTFOUND)
        return mlo_error_set(err, MLO_ENOTFOUND, "this project has no webhook %lld", (long long)id);
    return status;
}

static enum mlo_status lock(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                            int64_t id, struct mlo_error *err)
{
    return find(conn, actor, project_id, id, &mlo_sql_webhook[WEBHOOK_LOCK], NULL, err);
}

enum mlo_status mlo_webhook_get(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                int64_t id, json_t **out, struct mlo_error *err)
{
    *out = NULL;
    return find(conn, actor, project_id, id, &mlo_sql_webhook[WEBHOOK_GET], out, err);
}

enum mlo_status mlo_webhook_list(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                 json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    *out = NULL;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    mlo_param_i64(&p, project_id);
    return status == MLO_OK ? mlo_sql_array(conn, &mlo_sql_webhook[WEBHOOK_LIST], &p, out, err) : status;
}

enum mlo_status mlo_webhook_create(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_webhook_guard *guard, int64_t project_id,
                                   const struct mlo_webhook_settings *settings,
                                   char secret[MLO_WEBHOOK_SECRET_SIZE], json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf events = MLO_BUF_INIT;
    int64_t id;
    *out = NULL;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_actor_require(actor, project_id, MLO_ADMIN, err));
    if (!settings->url) {
        status = mlo_error_set(err, MLO_EINVAL, "a webhook needs a url");
        mlo_error_where(err, "field 'url'");
        goto out;
    }
    MLO_TRY(check(settings, guard, err));
    MLO_TRY(events_text(settings, true, &events, err));
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, settings->url);
    mlo_param_text(&p, settings->description);
    mlo_param_text(&p, mlo_buf_str(&events));
    mlo_param_text(&p, settings->state);
    mlo_param_text(&p, actor->name);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_webhook[WEBHOOK_ADD], &p, &id, err));
    MLO_TRY(add_secret(conn, id, secret, err));
    MLO_TRY(log_change(conn, actor, project_id, id, "webhook.create", settings->url, mlo_buf_str(&events),
                       settings->state ? settings->state : "enabled", err));
    MLO_TRY(mlo_webhook_get(conn, actor, project_id, id, out, err));
out:
    mlo_buf_clear(&events);
    status = mlo_db_end(conn, status, err);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

enum mlo_status mlo_webhook_change(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_webhook_guard *guard, int64_t project_id, int64_t id,
                                   const struct mlo_webhook_settings *settings, json_t **out,
                                   struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf events = MLO_BUF_INIT;
    *out = NULL;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(lock(conn, actor, project_id, id, err));
    MLO_TRY(check(settings, guard, err));
    MLO_TRY(events_text(settings, false, &events, err));
    mlo_param_i64(&p, id);
    mlo_param_text(&p, settings->url);
    mlo_param_text(&p, settings->description);
    mlo_param_text(&p, events.len ? mlo_buf_str(&events) : NULL);
    mlo_param_text(&p, settings->state);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook[WEBHOOK_SET], &p, NULL, err));
    MLO_TRY(log_change(conn, actor, project_id, id, "webhook.change", settings->url, mlo_buf_str(&events),
                       settings->state, err));
    MLO_TRY(mlo_webhook_get(conn, actor, project_id, id, out, err));
out:
    mlo_buf_clear(&events);
    status = mlo_db_end(conn, status, err);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

enum mlo_status mlo_webhook_remove(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   int64_t project_id, int64_t id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&p, id);
    MLO_TRY(lock(conn, actor, project_id, id, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook[WEBHOOK_FORGET], &p, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook[WEBHOOK_REMOVE], &p, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook[WEBHOOK_DROP], &p, NULL, err));
    MLO_TRY(log_change(conn, actor, project_id, id, "webhook.remove", NULL, NULL, "removed", err));
out:
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_webhook_rotate(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   int64_t project_id, int64_t id, int64_t overlap_s,
                                   char secret[MLO_WEBHOOK_SECRET_SIZE], struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    if (overlap_s < 0 || overlap_s > OVERLAP_MAX_S)
        return mlo_error_set(err, MLO_EINVAL, "the secrets before are valid for 0 to %d more seconds",
                             OVERLAP_MAX_S);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(lock(conn, actor, project_id, id, err));
    mlo_param_i64(&p, id);
    mlo_param_i64(&p, overlap_s);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook[WEBHOOK_EXPIRE], &p, NULL, err));
    MLO_TRY(add_secret(conn, id, secret, err));
    MLO_TRY(log_change(conn, actor, project_id, id, "webhook.rotate", NULL, NULL, NULL, err));
out:
    return mlo_db_end(conn, status, err);
}
