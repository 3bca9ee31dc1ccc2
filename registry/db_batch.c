/* Statements that share a round trip: queued ones, and answers that are read ahead. By libpq's pipeline mode:
 * what is queued lies in libpq's buffer until a statement waits for its answer. */
#include "registry/db_impl.h"

#include <stdlib.h>
#include <string.h>

/* Sends into the pipeline; an entry of the queue will hold where its answer goes. */
static enum mlo_status send_next(struct mlo_db_conn *conn, const char *what, const char *text,
                                 const struct mlo_params *params, struct mlo_rows *rows,
                                 struct mlo_error *err)
{
    if (conn->queued == 0 && !PQenterPipelineMode(conn->pg))
        return mlo_db_fail(conn, NULL, what, err);
    int sent =
        text ? PQsendQueryParams(conn->pg, text, 0, NULL, NULL, NULL, NULL, 0)
             : PQsendQueryPrepared(conn->pg, what, params ? params->count : 0, params ? params->values : NULL,
                                   params ? params->sizes : NULL, params ? params->formats : NULL, 0);
    if (!sent) {
        if (conn->queued == 0)
            PQexitPipelineMode(conn->pg);
        return mlo_db_fail(conn, NULL, what, err);
    }
    conn->queue[conn->queued++] = (struct mlo_db_queued){what, rows};
    return MLO_OK;
}

/* Takes the answer of one entry. The first failure is the one that is told: the server skips the rest. */
static enum mlo_status receive(struct mlo_db_conn *conn, const struct mlo_db_queued *entry,
                               enum mlo_status so_far, struct mlo_error *err)
{
    PGresult *result = mlo_db_answer(conn);
    ExecStatusType outcome = PQresultStatus(result);
    if (outcome == PGRES_TUPLES_OK || outcome == PGRES_COMMAND_OK) {
        if (!mlo_db_did(result, entry->what) && so_far == MLO_OK)
            so_far = mlo_error_set(err, MLO_EINTERNAL, MLO_NOT_COMMITTED);
        if (entry->rows) {
            entry->rows->result = result;
            result = NULL;
        }
    } else if (so_far == MLO_OK) {
        so_far = mlo_db_fail(conn, result, entry->what, err);
    }
    PQclear(result);
    while (PQstatus(conn->pg) == CONNECTION_OK && (result = mlo_db_answer(conn)))
        PQclear(result); /* the NULL that ends the answers of a statement */
    return so_far;
}

/* The end of the pipeline. What came behind a COMMIT is committed there, and may fail there. */
static enum mlo_status synced(struct mlo_db_conn *conn, enum mlo_status so_far, struct mlo_error *err)
{
    bool end = false, ended = false;
    /* libpq's status stays good where only the write failed: then nothing comes, again and again */
    while (!end && !conn->broken && PQstatus(conn->pg) == CONNECTION_OK) {
        PGresult *result = mlo_db_answer(conn);
        ExecStatusType outcome = PQresultStatus(result);
        end = outcome == PGRES_PIPELINE_SYNC || PQpipelineStatus(conn->pg) == PQ_PIPELINE_OFF;
        if (!result && ended && !end) {
            conn->broken = true;
            return so_far != MLO_OK ? so_far : mlo_db_fail(conn, NULL, "the end of a batch", err);
        }
        ended = !result;
        if (result && outcome != PGRES_PIPELINE_SYNC && so_far == MLO_OK)
            so_far = mlo_db_fail(conn, result, "the end of a batch", err);
        PQclear(result);
    }
    return so_far;
}

enum mlo_status mlo_db_flush(struct mlo_db_conn *conn, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count = conn->queued;
    if (count == 0)
        return MLO_OK;
    conn->queued = 0;
    if (!PQpipelineSync(conn->pg))
        return mlo_db_fail(conn, NULL, conn->queue[0].what, err);
    for (size_t i = 0; i < count && PQstatus(conn->pg) == CONNECTION_OK; i++)
        status = receive(conn, &conn->queue[i], status, err);
    if (PQstatus(conn->pg) != CONNECTION_OK)
        return status != MLO_OK ? status : mlo_db_fail(conn, NULL, "a batch", err);
    status = synced(conn, status, err);
    if (!PQexitPipelineMode(conn->pg) && status == MLO_OK)
        status = mlo_db_fail(conn, NULL, "a batch", err);
    return status;
}

enum mlo_status mlo_db_queue_text(struct mlo_db_conn *conn, const char *text, struct mlo_rows *rows,
                                  struct mlo_error *err)
{
    if (conn->queued == QUEUE_MAX) {
        enum mlo_status status = mlo_db_flush(conn, err);
        if (status != MLO_OK)
            return status;
    }
    return send_next(conn, text, text, NULL, rows, err);
}

enum mlo_status mlo_db_queue(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                             const struct mlo_params *params, struct mlo_rows *rows, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (rows)
        mlo_rows_clear(rows);
    if (conn->depth == 0 && conn->queued == 0)
        return mlo_error_set(err, MLO_EINTERNAL, "statement %s is queued outside a transaction", sql->name);
    if (conn->queued == QUEUE_MAX)
        status = mlo_db_flush(conn, err);
    if (status == MLO_OK)
        status = mlo_db_prepare(conn, sql, params, err);
    return status == MLO_OK ? send_next(conn, sql->name, NULL, params, rows, err) : status;
}

/* --- at the end -------------------------------------------------------------------------------- */

static size_t value_size(const struct mlo_params *params, int i)
{
    if (!params->values[i])
        return 0;
    return params->formats[i] ? (size_t)params->sizes[i] : strlen(params->values[i]) + 1;
}

enum mlo_status mlo_db_queue_last(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                  const struct mlo_params *params, struct mlo_error *err)
{
    static const struct mlo_params none = MLO_PARAMS_INIT;
    const struct mlo_params *from = params ? params : &none;
    size_t size = 0;
    if (conn->depth == 0)
        return mlo_error_set(err, MLO_EINTERNAL, "statement %s is queued outside a transaction", sql->name);
    enum mlo_status status = mlo_db_prepare(conn, sql, from, err);
    if (status != MLO_OK)
        return status;
    for (int i = 0; i < from->count; i++)
        size += value_size(from, i);
    struct mlo_db_last *entry = calloc(1, sizeof *entry + size);
    if (!entry)
        return mlo_error_nomem(err);
    entry->sql = sql;
    entry->params = *from;
    char *at = entry->bytes;
    for (int i = 0; i < from->count; i++) {
        size_t n = value_size(from, i);
        if (!from->values[i])
            continue;
        memcpy(at, from->values[i], n);
        entry->params.values[i] = at;
        at += n;
    }
    if (!conn->last)
        conn->last_end = &conn->last;
    *conn->last_end = entry;
    conn->last_end = &entry->next;
    return MLO_OK;
}

enum mlo_status mlo_db_queue_held(struct mlo_db_conn *conn, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (struct mlo_db_last *entry = conn->last; entry && status == MLO_OK; entry = entry->next)
        status = mlo_db_queue(conn, entry->sql, &entry->params, NULL, err);
    return status;
}

void mlo_db_last_cut(struct mlo_db_conn *conn, struct mlo_db_last **from)
{
    while (*from) {
        struct mlo_db_last *entry = *from;
        *from = entry->next;
        free(entry);
    }
    conn->last_end = from;
}

void mlo_db_last_clear(struct mlo_db_conn *conn)
{
    mlo_db_last_cut(conn, &conn->last);
}

void mlo_db_queue_forget(struct mlo_db_conn *conn)
{
    for (size_t i = 0; i < conn->queued; i++)
        conn->queue[i].rows = NULL;
}

/* --- reading ahead ----------------------------------------------------------------------------- */

/* The parameters as bytes, to be told apart by. */
static void put_params(struct mlo_buf *out, const struct mlo_params *params)
{
    for (int i = 0; params && i < params->count; i++) {
        const char *value = params->values[i];
        size_t size = !value ? 0 : params->formats[i] ? (size_t)params->sizes[i] : strlen(value);
        mlo_buf_printf(out, "%d %zu:", value ? params->formats[i] : -1, size);
        mlo_buf_append(out, value ? value : "", size);
    }
}

enum mlo_status mlo_db_ahead(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                             const struct mlo_params *params, struct mlo_error *err)
{
    if (conn->ahead_count == AHEAD_MAX)
        return MLO_OK; /* it will be asked when it is wanted */
    struct mlo_db_ahead *entry = calloc(1, sizeof *entry);
    if (!entry)
        return mlo_error_nomem(err);
    entry->sql = sql;
    put_params(&entry->params, params);
    enum mlo_status status = mlo_buf_ok(&entry->params) ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK && conn->queued == QUEUE_MAX)
        status = mlo_db_flush(conn, err);
    if (status == MLO_OK)
        status = mlo_db_prepare(conn, sql, params, err);
    if (status == MLO_OK)
        status = send_next(conn, sql->name, NULL, params, &entry->rows, err);
    if (status == MLO_OK) {
        conn->ahead[conn->ahead_count++] = entry;
    } else {
        mlo_buf_clear(&entry->params);
        free(entry);
    }
    return status;
}

static void ahead_free(struct mlo_db_conn *conn, struct mlo_db_ahead *entry)
{
    for (size_t i = 0; i < conn->queued; i++)
        if (conn->queue[i].rows == &entry->rows)
            conn->queue[i].rows = NULL;
    mlo_rows_clear(&entry->rows);
    mlo_buf_clear(&entry->params);
    free(entry);
}

void mlo_db_ahead_clear(struct mlo_db_conn *conn)
{
    while (conn->ahead_count)
        ahead_free(conn, conn->ahead[--conn->ahead_count]);
}

bool mlo_db_ahead_take(struct mlo_db_conn *conn, const struct mlo_sql *sql, const struct mlo_params *params,
                       struct mlo_rows *rows, enum mlo_status *status, struct mlo_error *err)
{
    struct mlo_buf key = MLO_BUF_INIT;
    size_t at = 0;
    bool found = false;
    while (at < conn->ahead_count && conn->ahead[at]->sql != sql)
        at++;
    if (at == conn->ahead_count)
        return false; /* the usual case, at no cost */
    put_params(&key, params);
    for (; mlo_buf_ok(&key) && at < conn->ahead_count && !found; at += !found) {
        const struct mlo_db_ahead *entry = conn->ahead[at];
        found = entry->sql == sql && entry->params.len == key.len &&
                (key.len == 0 || memcmp(entry->params.data, key.data, key.len) == 0);
    }
    mlo_buf_clear(&key);
    if (!found)
        return false;
    struct mlo_db_ahead *entry = conn->ahead[at];
    *status = entry->rows.result ? MLO_OK : mlo_db_flush(conn, err);
    conn->ahead[at] = conn->ahead[--conn->ahead_count];
    found = *status != MLO_OK || entry->rows.result; /* one that failed before has no answer: ask again */
    if (*status == MLO_OK && rows) {
        mlo_rows_clear(rows);
        *rows = entry->rows;
        entry->rows.result = NULL;
    }
    ahead_free(conn, entry);
    return found;
}
