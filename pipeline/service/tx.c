#include <stdlib.h>

#include "pipeline/service/service_impl.h"

enum { TX_TRIES = 5 };

enum { S_NOTIFY, S_NOTIFY_WITHIN };

/* A NOTIFY takes a lock that all commits of the database with one wait for, until its own is on the disk. So
 * it has a transaction of its own, which waits for no disk: what it tells of is there already. */
const struct mlo_sql MLO_TX_SQL[] = {
    [S_NOTIFY] = {"tx_notify",
                  "select pg_notify('" MLO_QUEUE_CHANNEL
                  "', '') where set_config('synchronous_commit', 'off', true) "
                  "= 'off'",
                  0},
    [S_NOTIFY_WITHIN] = {"tx_notify_within", "select pg_notify('" MLO_QUEUE_CHANNEL "', '')", 0},
};
const size_t MLO_TX_SQL_COUNT = MLO_COUNT(MLO_TX_SQL);

/* The transaction of this thread behind whose COMMIT there is a look whether workers are to be woken. */
static _Thread_local struct {
    const struct mlo_db_conn *conn;
    bool wake;
} mine;

enum mlo_status mlo_queue_notify(struct mlo_db_conn *conn, struct mlo_error *err)
{
    if (mine.conn != conn) /* somebody else commits */
        return mlo_db_queue(conn, &MLO_TX_SQL[S_NOTIFY_WITHIN], NULL, NULL, err);
    mine.wake = true;
    return MLO_OK;
}

/* Nobody waits for it: workers look by themselves too. */
static void wake_workers(struct mlo_db_conn *conn)
{
    struct mlo_error error = {0};
    if (mlo_db_exec(conn, &MLO_TX_SQL[S_NOTIFY], NULL, NULL, &error) != MLO_OK)
        mlo_log_error(MLO_LOG_DEBUG, "cannot notify the workers", &error);
}

void mlo_queue_wake_hold(const struct mlo_db_conn *conn)
{
    mine.conn = conn;
    mine.wake = false;
}

void mlo_queue_wake_release(struct mlo_db_conn *conn, bool committed)
{
    mine.conn = NULL;
    if (conn && committed && mine.wake)
        wake_workers(conn);
}

enum mlo_status mlo_service_tx(struct mlo_db_conn *conn, mlo_tx_fn *fn, void *arg, struct mlo_error *err)
{
    bool nested = mlo_db_in_transaction(conn);
    for (int i = 0;; i++) {
        enum mlo_status status = mlo_db_begin(conn, err);
        if (status != MLO_OK)
            return status;
        if (!nested)
            mlo_queue_wake_hold(conn);
        status = fn(conn, arg, err);
        status = mlo_db_end(conn, status, err); /* which may be what sends the last statements */
        bool again = status != MLO_OK && !nested && i + 1 < TX_TRIES && mlo_db_retryable(conn);
        if (!nested)
            mlo_queue_wake_release(conn, status == MLO_OK);
        if (!again)
            return status;
        mlo_clock_sleep_ms(5u << i);
    }
}

enum mlo_status mlo_service_pool_tx(struct mlo_db *db, mlo_tx_fn *fn, void *arg, struct mlo_error *err)
{
    struct mlo_db_conn *conn = NULL;
    enum mlo_status status = mlo_db_acquire(db, &conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_service_tx(conn, fn, arg, err);
    mlo_db_release(conn);
    return status;
}

char *mlo_error_json(const struct mlo_error *error, int64_t job)
{
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *value = json_pack("{s:s, s:s, s:s, s:s}", "code", mlo_status_info(error->status)->code, "message",
                              error->message, "where", error->where, "hint", error->hint);
    /* a message cut in the middle of a character is not UTF-8, and jansson refuses it */
    if (!value)
        value = json_pack("{s:s, s:s, s:s, s:s}", "code", mlo_status_info(error->status)->code, "message",
                          "(the message is not readable text)", "where", "", "hint", "");
    if (value && job)
        json_object_set_new(value, "job", json_integer(job));
    if (value)
        mlo_json_canonical(value, &text);
    json_decref(value);
    return value ? mlo_buf_take(&text) : NULL;
}
