#include <stdlib.h>

#include "pipeline/service/service_impl.h"

enum { TX_TRIES = 5 };

enum mlo_status mlo_service_tx(struct mlo_db_conn *conn, mlo_tx_fn *fn, void *arg, struct mlo_error *err)
{
    bool nested = mlo_db_in_transaction(conn);
    for (int i = 0;; i++) {
        enum mlo_status status = mlo_db_begin(conn, err);
        if (status != MLO_OK)
            return status;
        status = fn(conn, arg, err);
        status = mlo_db_end(conn, status, err);
        if (status == MLO_OK || nested || i + 1 >= TX_TRIES || !mlo_db_retryable(conn))
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
