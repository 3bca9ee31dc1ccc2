/* Deliveries: what they say, and their history. */
#include <stdlib.h>
#include <string.h>

#include "registry/audit.h"
#include "registry/sql_impl.h"
#include "registry/webhook_impl.h"

enum {
    DELIVERY_SOURCE,
    DELIVERY_AUDIT,
    DELIVERY_RUN,
    DELIVERY_PING,
    DELIVERY_REPLAY,
    DELIVERY_LIST,
    DELIVERY_GET,
    DELIVERY_ATTEMPTS
};

#define LAST(column)                                                                                         \
    "(SELECT a." column                                                                                      \
    " FROM webhook_attempt a WHERE a.delivery_id = d.id ORDER BY a.number DESC LIMIT 1) AS " column
#define COLUMNS                                                                                              \
    "d.id, d.message, d.type, d.audit_seq, d.run_id, d.state, d.attempts, CASE WHEN d.state = 'pending' "    \
    "THEN "                                                                                                  \
    "d.next_at END AS next_at, d.created_at, d.delivered_at, " LAST("http_status") ", " LAST("error")

const struct mlo_sql mlo_sql_webhook_delivery[] = {
    [DELIVERY_SOURCE] = {"delivery_source",
                         "SELECT d.type, d.project_id, d.audit_seq, d.run_id, p.name AS project, "
                         "d.webhook_id, d.created_at FROM "
                         "webhook_delivery d JOIN project p ON p.id = d.project_id WHERE d.id = $1",
                         1},
    [DELIVERY_AUDIT] = {"delivery_audit", "SELECT body, hash FROM audit WHERE project_id = $1 AND seq = $2",
                        2},
    [DELIVERY_RUN] =
        {"delivery_run",
         "SELECT r.id, m.name AS model, v.number AS version, r.recipe_name AS recipe, r.target, r.state, "
         "r.variant, r.error::json AS error, r.results::json AS results, r.created_by, r.created_at, "
         "r.started_at, r.finished_at FROM run r JOIN version v ON v.id = r.version JOIN model m ON m.id = "
         "v.model_id WHERE r.id = $1",
         1},
    [DELIVERY_PING] = {"delivery_ping",
                       "INSERT INTO webhook_delivery (webhook_id, project_id, type) SELECT id, project_id, "
                       "'webhook.ping' FROM "
                       "webhook WHERE project_id = $1 AND id = $2 AND state <> 'removed' RETURNING id",
                       2},
    [DELIVERY_REPLAY] =
        {"delivery_replay",
         "UPDATE webhook_delivery SET state = 'pending', tries = 0, next_at = now(), delivered_at = NULL "
         "WHERE "
         "project_id = $1 AND webhook_id = $2 AND id = $3 AND state <> 'pending' RETURNING id",
         3},
    [DELIVERY_LIST] = {"delivery_list",
                       "SELECT d.id AS cursor, " COLUMNS
                       " FROM webhook_delivery d WHERE d.project_id = $1 AND "
                       "d.webhook_id = $2 AND d.id < $3 ORDER BY d.id DESC LIMIT $4",
                       4},
    [DELIVERY_GET] = {"delivery_get",
                      "SELECT " COLUMNS
                      " FROM webhook_delivery d WHERE d.project_id = $1 AND d.webhook_id = $2 "
                      "AND d.id = $3",
                      3},
    [DELIVERY_ATTEMPTS] = {"delivery_attempts",
                           "SELECT number, at, ms, http_status, address, error FROM webhook_attempt WHERE "
                           "delivery_id = $1 ORDER BY number DESC LIMIT 100",
                           1},
};
const size_t mlo_sql_webhook_delivery_count = MLO_COUNT(mlo_sql_webhook_delivery);

/* --- what is sent -------------------------------------------------------------------------------- */

/* Members of an audit entry that are others' business: who is told of a promotion learns who made it, not
 * from which address. */
static const char *const told[] = {"object", "who", "via", "reason", "before", "after", "request_id"};

static enum mlo_status of_audit(struct mlo_db_conn *conn, int64_t project_id, int64_t seq, json_t *data,
                                char at[32], struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf body = MLO_BUF_INIT;
    struct mlo_digest hash;
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *entry = NULL;
    enum mlo_status status;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, seq);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook_delivery[DELIVERY_AUDIT], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0 || !mlo_rows_digest(&rows, 0, 1, &hash)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "audit entry %lld is not there", (long long)seq);
        goto out;
    }
    mlo_rows_bytes(&rows, 0, 0, &body);
    MLO_TRY(mlo_json_parse(mlo_buf_str(&body), body.len, "an audit entry", &entry, err));
    for (size_t i = 0; i < MLO_COUNT(told); i++)
        if (json_object_get(entry, told[i]))
            json_object_set(data, told[i], json_object_get(entry, told[i]));
    json_object_set_new(data, "audit_seq", json_integer(seq));
    json_object_set_new(data, "audit_hash", json_string(mlo_digest_text(&hash, text)));
    snprintf(at, 32, "%s", mlo_json_str(entry, "at", ""));
out:
    json_decref(entry);
    mlo_buf_clear(&body);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status of_run(struct mlo_db_conn *conn, int64_t run_id, json_t *data, char at[32],
                              struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *run = NULL;
    mlo_param_i64(&p, run_id);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_webhook_delivery[DELIVERY_RUN], &p, &run, err);
    if (status == MLO_OK) {
        snprintf(at, 32, "%s", mlo_json_str(run, "finished_at", ""));
        json_object_set(data, "run", run);
    }
    json_decref(run);
    return status;
}

enum mlo_status mlo_webhook_payload(struct mlo_db_conn *conn, int64_t delivery, struct mlo_buf *out,
                                    struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *source = NULL, *data = json_object(), *payload = NULL;
    char at[32];
    enum mlo_status status = data ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    mlo_param_i64(&p, delivery);
    MLO_TRY(mlo_sql_object(conn, &mlo_sql_webhook_delivery[DELIVERY_SOURCE], &p, &source, err));
    snprintf(at, sizeof at, "%s", mlo_json_str(source, "created_at", ""));
    int64_t seq = mlo_json_i64(source, "audit_seq", 0), run = mlo_json_i64(source, "run_id", 0);
    json_object_set(data, "project", json_object_get(source, "project"));
    if (seq)
        MLO_TRY(of_audit(conn, mlo_json_i64(source, "project_id", 0), seq, data, at, err));
    else if (run)
        MLO_TRY(of_run(conn, run, data, at, err));
    else
        json_object_set(data, "webhook", json_object_get(source, "webhook_id"));
    payload =
        json_pack("{s:s, s:s, s:O}", "type", mlo_json_str(source, "type", ""), "timestamp", at, "data", data);
    if (!payload) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_json_canonical(payload, out);
    if (!mlo_buf_ok(out))
        status = mlo_error_nomem(err);
out:
    json_decref(source);
    json_decref(data);
    json_decref(payload);
    return status;
}

/* --- history ------------------------------------------------------------------------------------- */

static enum mlo_status not_there(int64_t id, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_ENOTFOUND, "this webhook has no delivery %lld", (long long)id);
}

enum mlo_status mlo_webhook_ping(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                 int64_t id, int64_t *delivery, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *webhook = NULL;
    enum mlo_status status = mlo_webhook_get(conn, actor, project_id, id, &webhook, err);
    bool enabled = status == MLO_OK && strcmp(mlo_json_str(webhook, "state", ""), "enabled") == 0;
    json_decref(webhook);
    if (status != MLO_OK)
        return status;
    if (!enabled) {
        mlo_error_set(err, MLO_ECONFLICT, "webhook %lld is not enabled", (long long)id);
        mlo_error_hint(err, "mlopt webhooks set PROJECT %lld --state enabled", (long long)id);
        return MLO_ECONFLICT;
    }
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, id);
    return mlo_sql_number(conn, &mlo_sql_webhook_delivery[DELIVERY_PING], &p, delivery, err);
}

enum mlo_status mlo_webhook_replay(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   int64_t project_id, int64_t id, int64_t delivery, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *there = NULL;
    char object[64];
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_webhook_get(conn, actor, project_id, id, &there, err));
    json_decref(there);
    there = NULL;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, id);
    mlo_param_i64(&p, delivery);
    status = mlo_sql_number(conn, &mlo_sql_webhook_delivery[DELIVERY_REPLAY], &p, NULL, err);
    if (status == MLO_ENOTFOUND) {
        status = mlo_sql_object(conn, &mlo_sql_webhook_delivery[DELIVERY_GET], &p, &there, err);
        if (status == MLO_OK)
            status = mlo_error_set(err, MLO_ECONFLICT, "delivery %lld is still tried", (long long)delivery);
        else if (status == MLO_ENOTFOUND)
            status = not_there(delivery, err);
    }
    MLO_TRY(status);
    snprintf(object, sizeof object, "webhook %lld delivery %lld", (long long)id, (long long)delivery);
    const struct mlo_audit_event event = {.action = "webhook.replay", .object = object};
    MLO_TRY(mlo_audit_append(conn, project_id, actor, &event, NULL, err));
out:
    json_decref(there);
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_webhook_deliveries(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                       int64_t project_id, int64_t id, const struct mlo_page *page,
                                       json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *webhook = NULL;
    *out = NULL;
    enum mlo_status status = mlo_webhook_get(conn, actor, project_id, id, &webhook, err);
    json_decref(webhook);
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, id);
    return status == MLO_OK
               ? mlo_page_newest(conn, &mlo_sql_webhook_delivery[DELIVERY_LIST], &p, page, out, err)
               : status;
}

enum mlo_status mlo_webhook_delivery(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                     int64_t project_id, int64_t id, int64_t delivery, json_t **out,
                                     struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT, of = MLO_PARAMS_INIT;
    struct mlo_buf body = MLO_BUF_INIT;
    json_t *row = NULL, *attempts = NULL;
    *out = NULL;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    MLO_TRY(status);
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, id);
    mlo_param_i64(&p, delivery);
    status = mlo_sql_object(conn, &mlo_sql_webhook_delivery[DELIVERY_GET], &p, &row, err);
    if (status == MLO_ENOTFOUND)
        status = not_there(delivery, err);
    MLO_TRY(status);
    mlo_param_i64(&of, delivery);
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_webhook_delivery[DELIVERY_ATTEMPTS], &of, &attempts, err));
    MLO_TRY(mlo_webhook_payload(conn, delivery, &body, err));
    if (json_object_set(row, "attempts_made", attempts) != 0 ||
        json_object_set_new(row, "body", json_string(mlo_buf_str(&body))) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *out = json_incref(row);
out:
    json_decref(row);
    json_decref(attempts);
    mlo_buf_clear(&body);
    return status;
}
