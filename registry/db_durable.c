/* Locks that go before the disk has what they guarded, and waiting for the disk.
 *
 * A COMMIT under synchronous_commit = off is visible, and its locks are free, when its record is in the
 * buffers of the write-ahead log. Then a transaction of one record, committed as the session's
 * synchronous_commit says, waits until the log up to its own record is flushed, and confirmed by the replicas
 * that the session waits for: the log is one sequence, so all that was committed before it is there too. It
 * has to write: PostgreSQL waits for nothing in a transaction with a number and no record
 * (RecordTransactionCommit), so pg_current_xact_id() would not do. A logical message is the smallest record
 * that changes nothing; every role may emit one unless that was revoked. */
#include "registry/db_impl.h"
#include "registry/sql_impl.h"

enum { DURABLE_MAY, DURABLE_WAIT, DURABLE_SETTLE };
enum may { MAY_UNKNOWN, MAY, MAY_NOT };

#define EMIT "pg_catalog.pg_logical_emit_message(true, 'mlopt', '')"

const struct mlo_sql mlo_sql_durable[] = {
    [DURABLE_MAY] =
        {"durable_may",
         "SELECT has_function_privilege('pg_catalog.pg_logical_emit_message(boolean, text, text)', "
         "'execute')",
         0},
    [DURABLE_WAIT] = {"durable_wait", "SELECT " EMIT, 0},
    /* writes only where something may be missing: that a replica has it, the log's own places do not say */
    [DURABLE_SETTLE] = {"durable_settle",
                        "SELECT CASE WHEN pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn() OR "
                        "current_setting('synchronous_standby_names') <> '' THEN " EMIT " END",
                        0},
};
const size_t mlo_sql_durable_count = MLO_COUNT(mlo_sql_durable);

static enum mlo_status may_settle(struct mlo_db_conn *conn, bool *may, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    int known = atomic_load(&conn->db->may_settle);
    enum mlo_status status = MLO_OK;
    if (known == MAY_UNKNOWN) {
        status = mlo_db_exec(conn, &mlo_sql_durable[DURABLE_MAY], NULL, &rows, err);
        if (status == MLO_OK)
            atomic_store(&conn->db->may_settle, known = mlo_rows_bool(&rows, 0, 0) ? MAY : MAY_NOT);
        mlo_rows_clear(&rows);
    }
    *may = known == MAY;
    return status;
}

enum mlo_status mlo_db_unlock_early(struct mlo_db_conn *conn, struct mlo_error *err)
{
    if (conn->depth == 0)
        return mlo_error_set(err, MLO_EINTERNAL, "no transaction whose locks could go early");
    enum mlo_status status = may_settle(conn, &conn->early, err);
    return status == MLO_OK && conn->early ? mlo_db_prepare(conn, &mlo_sql_durable[DURABLE_WAIT], NULL, err)
                                           : status; /* not behind the COMMIT: it would cost a round trip */
}

/* The change stayed, for all that is known; whether it will is not. */
static enum mlo_status unknown(struct mlo_error *err)
{
    char why[200];
    snprintf(why, sizeof why, "%.199s", err ? err->message : "");
    mlo_error_set(err, MLO_EUNAVAILABLE, "it is not known whether the change was kept: %s", why);
    mlo_error_hint(err, "look before trying again");
    return MLO_EUNAVAILABLE;
}

static enum mlo_status commit_early(struct mlo_db_conn *conn, struct mlo_error *err)
{
    struct mlo_rows committed = {0};
    enum mlo_status status;
    MLO_TRY(mlo_db_queue_text(conn, "SET LOCAL synchronous_commit = off", NULL, err));
    MLO_TRY(mlo_db_queue_text(conn, "COMMIT", &committed, err));
    MLO_TRY(mlo_db_queue(conn, &mlo_sql_durable[DURABLE_WAIT], NULL, NULL, err));
    status = mlo_db_flush(conn, err);
    if (status != MLO_OK && committed.result && mlo_db_did(committed.result, "COMMIT"))
        status = unknown(err);
out:
    mlo_db_queue_forget(conn); /* `committed` goes */
    mlo_rows_clear(&committed);
    return status;
}

enum mlo_status mlo_db_commit(struct mlo_db_conn *conn, struct mlo_error *err)
{
    if (conn->early)
        return commit_early(conn, err);
    if (conn->queued == 0)
        return mlo_db_exec_text(conn, "COMMIT", err);
    enum mlo_status status = mlo_db_queue_text(conn, "COMMIT", NULL, err);
    return status == MLO_OK ? mlo_db_flush(conn, err) : status;
}

enum mlo_status mlo_db_settle(struct mlo_db_conn *conn, struct mlo_error *err)
{
    bool may = false;
    if (conn->depth > 0)
        return mlo_error_set(err, MLO_EINTERNAL, "a transaction cannot wait for others to be on disk");
    enum mlo_status status = may_settle(conn, &may, err);
    return status == MLO_OK && may ? mlo_db_exec(conn, &mlo_sql_durable[DURABLE_SETTLE], NULL, NULL, err)
                                   : status; /* where nobody may, no locks go early */
}
