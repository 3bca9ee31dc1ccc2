/* Idempotency-Key: a row that a second request with the same key waits for, then reads. */
#include "registry/actor.h"
#include "registry/sql_impl.h"

enum { IDEMPOTENCY_ADD, IDEMPOTENCY_GET, IDEMPOTENCY_FINISH, IDEMPOTENCY_EXPIRE };

const struct mlo_sql mlo_sql_idempotency[] = {
    [IDEMPOTENCY_ADD] =
        {"idempotency_add",
         "INSERT INTO idempotency (token_id, key, request) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", 3},
    [IDEMPOTENCY_GET] =
        {"idempotency_get",
         "SELECT request, http_status, response FROM idempotency WHERE token_id = $1 AND key = $2", 2},
    [IDEMPOTENCY_FINISH] =
        {"idempotency_finish",
         "UPDATE idempotency SET http_status = $3, response = $4 WHERE token_id = $1 AND key = $2", 4},
    [IDEMPOTENCY_EXPIRE] = {"idempotency_expire",
                            "DELETE FROM idempotency WHERE created_at < now() - make_interval(secs => $1)",
                            1},
};
const size_t mlo_sql_idempotency_count = MLO_COUNT(mlo_sql_idempotency);

enum mlo_status mlo_idempotency_begin(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                      const char *key, const struct mlo_digest *request, bool *replay,
                                      int *http_status, json_t **response, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT, find = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest before;
    enum mlo_status status = MLO_OK;
    *replay = false;
    *response = NULL;
    if (!mlo_db_in_transaction(conn))
        return mlo_error_set(err, MLO_EINTERNAL, "an idempotency key needs the transaction of its request");
    mlo_param_i64(&p, actor->token_id);
    mlo_param_text(&p, key);
    mlo_param_digest(&p, request);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_idempotency[IDEMPOTENCY_ADD], &p, &rows, err));
    if (mlo_rows_affected(&rows) == 1)
        goto out;
    mlo_param_i64(&find, actor->token_id);
    mlo_param_text(&find, key);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_idempotency[IDEMPOTENCY_GET], &find, &rows, err));
    if (mlo_rows_count(&rows) == 0 || mlo_rows_null(&rows, 0, 1)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "a request with this Idempotency-Key is under way");
        mlo_error_hint(err, "try again");
        goto out;
    }
    if (!mlo_rows_digest(&rows, 0, 0, &before) || !mlo_digest_eq(&before, request)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "this Idempotency-Key was used for another request");
        mlo_error_hint(err, "use a new key for a new request");
        goto out;
    }
    const char *text = mlo_rows_text(&rows, 0, 2);
    *http_status = (int)mlo_rows_i64(&rows, 0, 1);
    *response = text ? json_loads(text, JSON_DECODE_ANY, NULL) : json_null();
    *replay = true;
    if (!*response)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_idempotency_finish(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                       const char *key, int http_status, const json_t *response,
                                       struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf text = MLO_BUF_INIT;
    if (response)
        mlo_json_canonical(response, &text);
    mlo_param_i64(&p, actor->token_id);
    mlo_param_text(&p, key);
    mlo_param_i64(&p, http_status);
    mlo_param_text(&p, response ? mlo_buf_str(&text) : NULL);
    enum mlo_status status = mlo_buf_ok(&text)
                                 ? mlo_db_exec(conn, &mlo_sql_idempotency[IDEMPOTENCY_FINISH], &p, NULL, err)
                                 : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_idempotency_expire(struct mlo_db_conn *conn, int64_t older_than_s, int64_t *removed,
                                       struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, older_than_s);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_idempotency[IDEMPOTENCY_EXPIRE], &p, &rows, err);
    if (status == MLO_OK && removed)
        *removed = mlo_rows_affected(&rows);
    mlo_rows_clear(&rows);
    return status;
}
