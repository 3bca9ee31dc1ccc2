/* Idempotency-Key: a row that a second request with the same key waits for, then reads. */
#include "registry/idempotency.h"

#include <string.h>

#include "registry/sql_impl.h"

enum { IDEMPOTENCY_PATIENCE, IDEMPOTENCY_TAKE, IDEMPOTENCY_GET, IDEMPOTENCY_FINISH, IDEMPOTENCY_EXPIRE };

const struct mlo_sql mlo_sql_idempotency[] = {
    /* of this transaction: how long it waits for the one with the same key, and then for whatever else */
    [IDEMPOTENCY_PATIENCE] = {"idempotency_patience", "SELECT set_config('lock_timeout', $1, true)", 1},
    [IDEMPOTENCY_TAKE] =
        {"idempotency_take",
         "INSERT INTO idempotency AS i (token_id, key, method, path, request) VALUES ($1, $2, $3, $4, $5) "
         "ON CONFLICT (token_id, key) DO UPDATE SET method = excluded.method, path = excluded.path, "
         "request = excluded.request, created_at = now(), http_status = NULL, headers = NULL, "
         "response = NULL WHERE i.created_at <= now() - make_interval(secs => $6)",
         6},
    /* a row without a status is this transaction's own: nobody else's is seen before it is whole */
    [IDEMPOTENCY_GET] = {"idempotency_get",
                         "SELECT http_status, method = $3 AND path = $4 AND request = $5, headers, response "
                         "FROM idempotency WHERE token_id = $1 AND key = $2",
                         5},
    [IDEMPOTENCY_FINISH] =
        {"idempotency_finish",
         "UPDATE idempotency SET http_status = $3, headers = $4, response = $5 WHERE token_id = $1 AND key = "
         "$2",
         5},
    [IDEMPOTENCY_EXPIRE] =
        {"idempotency_expire",
         "DELETE FROM idempotency WHERE (token_id, key) IN (SELECT token_id, key FROM idempotency "
         "WHERE created_at <= now() - make_interval(secs => $1) ORDER BY created_at LIMIT $2 "
         "FOR UPDATE SKIP LOCKED)",
         2},
};
const size_t mlo_sql_idempotency_count = MLO_COUNT(mlo_sql_idempotency);

enum mlo_status mlo_idempotency_key(const char *text, const char **key, size_t *length, struct mlo_error *err)
{
    size_t size = strlen(text), bad = 0;
    if (size > 1 && text[0] == '"' && text[size - 1] == '"') {
        text++;
        size -= 2;
    }
    for (size_t i = 0; i < size; i++)
        bad += text[i] < 0x20 || text[i] > 0x7e || text[i] == '"' || text[i] == '\\';
    *key = text;
    *length = size;
    if (size && size <= MLO_IDEMPOTENCY_KEY_MAX && !bad)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL,
                  bad ? "an Idempotency-Key is plain text without quotes and backslashes inside"
                      : "an Idempotency-Key has 1 to %d characters",
                  MLO_IDEMPOTENCY_KEY_MAX);
    mlo_error_where(err, "header Idempotency-Key");
    mlo_error_hint(err, "a random UUID is a good one");
    return MLO_EINVAL;
}

void mlo_idempotent_answer_clear(struct mlo_idempotent_answer *answer)
{
    json_decref(answer->headers);
    mlo_buf_clear(&answer->body);
    memset(answer, 0, sizeof *answer);
}

static void name_params(const struct mlo_idempotent *request, struct mlo_params *p)
{
    mlo_param_i64(p, request->token_id);
    mlo_param_text(p, request->key);
}

static void request_params(const struct mlo_idempotent *request, struct mlo_params *p)
{
    name_params(request, p);
    mlo_param_text(p, request->method);
    mlo_param_text(p, request->path);
    mlo_param_digest(p, &request->body);
}

static enum mlo_status queue_patience(struct mlo_db_conn *conn, int ms, struct mlo_error *err)
{
    char text[16];
    struct mlo_params p = MLO_PARAMS_INIT;
    snprintf(text, sizeof text, "%d", ms);
    mlo_param_text(&p, text);
    return mlo_db_queue(conn, &mlo_sql_idempotency[IDEMPOTENCY_PATIENCE], &p, NULL, err);
}

/* One round trip: the row is taken, and read. */
static enum mlo_status take(struct mlo_db_conn *conn, const struct mlo_idempotent *request,
                            struct mlo_rows *rows, struct mlo_error *err)
{
    struct mlo_params add = MLO_PARAMS_INIT, get = MLO_PARAMS_INIT;
    enum mlo_status status;
    request_params(request, &add);
    mlo_param_i64(&add, MLO_IDEMPOTENCY_S);
    request_params(request, &get);
    MLO_TRY(queue_patience(conn, MLO_IDEMPOTENCY_WAIT_MS, err));
    MLO_TRY(mlo_db_queue(conn, &mlo_sql_idempotency[IDEMPOTENCY_TAKE], &add, NULL, err));
    MLO_TRY(queue_patience(conn, 0, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_idempotency[IDEMPOTENCY_GET], &get, rows, err));
out:
    return status;
}

enum mlo_status mlo_idempotency_begin(struct mlo_db_conn *conn, const struct mlo_idempotent *request,
                                      enum mlo_idempotency *how, struct mlo_idempotent_answer *answer,
                                      struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    *how = MLO_IDEMPOTENCY_NEW;
    if (!mlo_db_in_transaction(conn))
        return mlo_error_set(err, MLO_EINTERNAL, "an idempotency key needs the transaction of its request");
    enum mlo_status status = take(conn, request, &rows, err);
    if (status == MLO_ECONFLICT && strcmp(mlo_db_sqlstate(conn), "55P03") == 0) { /* lock_not_available */
        *how = MLO_IDEMPOTENCY_BUSY;
        status = MLO_OK;
        goto out;
    }
    if (status != MLO_OK || mlo_rows_null(&rows, 0, 0))
        goto out;
    answer->http_status = (int)mlo_rows_i64(&rows, 0, 0);
    *how = mlo_rows_bool(&rows, 0, 1) ? MLO_IDEMPOTENCY_DONE : MLO_IDEMPOTENCY_OTHER;
    if (*how == MLO_IDEMPOTENCY_OTHER)
        goto out;
    const char *headers = mlo_rows_text(&rows, 0, 2), *body = mlo_rows_text(&rows, 0, 3);
    if (headers)
        status = mlo_json_parse(headers, strlen(headers), "headers", &answer->headers, err);
    mlo_buf_puts(&answer->body, body ? body : "");
    if (status == MLO_OK && !mlo_buf_ok(&answer->body))
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_idempotency_finish(struct mlo_db_conn *conn, const struct mlo_idempotent *request,
                                       const struct mlo_idempotent_answer *answer, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf headers = MLO_BUF_INIT;
    if (answer->headers)
        mlo_json_canonical(answer->headers, &headers);
    name_params(request, &p);
    mlo_param_i64(&p, answer->http_status);
    mlo_param_text(&p, answer->headers ? mlo_buf_str(&headers) : NULL);
    mlo_param_text(&p, mlo_buf_str(&answer->body));
    enum mlo_status status = mlo_buf_ok(&headers) && mlo_buf_ok(&answer->body)
                                 ? mlo_db_queue(conn, &mlo_sql_idempotency[IDEMPOTENCY_FINISH], &p, NULL, err)
                                 : mlo_error_nomem(err);
    mlo_buf_clear(&headers);
    return status;
}

enum mlo_status mlo_idempotency_expire(struct mlo_db_conn *conn, int64_t *removed, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, MLO_IDEMPOTENCY_S);
    mlo_param_i64(&p, MLO_IDEMPOTENCY_BATCH);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_idempotency[IDEMPOTENCY_EXPIRE], &p, &rows, err);
    if (status == MLO_OK && removed)
        *removed = mlo_rows_affected(&rows);
    mlo_rows_clear(&rows);
    return status;
}
