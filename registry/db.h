/* PostgreSQL: a bounded pool of connections, named prepared statements, transactions, and the map from
 * SQLSTATE to mlo_status. Safe from several threads; a leased connection belongs to one thread at a time. */
#ifndef MLO_REGISTRY_DB_H
#define MLO_REGISTRY_DB_H

#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>

#include "base/base.h"

struct mlo_db;
struct mlo_db_conn;

struct mlo_db_options {
    const char *conninfo;          /* libpq keyword string or URI */
    const char *user;              /* the database role, over the one in conninfo; NULL: as in conninfo */
    const char *application;       /* application_name; NULL: "mlopt" */
    unsigned max_connections;      /* 0: 8 */
    uint32_t wait_ms;              /* how long an acquire waits for a free one; 0: 10,000 */
    uint32_t statement_timeout_ms; /* 0: 30,000 */
    uint32_t answer_timeout_ms;    /* an answer that takes longer means that the connection is half open: it
                                      is given up, MLO_EUNAVAILABLE; 0: 5 s above statement_timeout_ms */
    uint32_t connect_timeout_s;    /* 0: as in conninfo, else 5 */
};

/* The roles that the schema knows. */
#define MLO_ROLE_OWNER "mlopt_owner"
#define MLO_ROLE_SERVER "mlopt_server"
#define MLO_ROLE_WORKER "mlopt_worker"

/* Makes the pool; connects at the first acquire. *out is yours (mlo_db_close). */
MLO_MUST_USE enum mlo_status mlo_db_open(const struct mlo_db_options *options, struct mlo_db **out,
                                         struct mlo_error *err);
/* Another pool on the database of `like`, as the same role: its conninfo and user are taken, the rest is
 * `options`'.
 */
MLO_MUST_USE enum mlo_status mlo_db_open_like(const struct mlo_db *like, const struct mlo_db_options *options,
                                              struct mlo_db **out, struct mlo_error *err);
/* Closes all idle connections; every leased one must have been released. NULL is allowed. */
void mlo_db_close(struct mlo_db *db);

/* Leases a connection (search_path mlopt, time zone UTC). A connection that the server closed in the meantime
 * is replaced. MLO_EUNAVAILABLE when PostgreSQL is not reachable, MLO_ETIMEOUT when all stay in use. */
MLO_MUST_USE enum mlo_status mlo_db_acquire(struct mlo_db *db, struct mlo_db_conn **out,
                                            struct mlo_error *err);
/* Gives it back; an open transaction is rolled back, a broken connection closed. NULL is allowed. */
void mlo_db_release(struct mlo_db_conn *conn);
/* Its session may hold what the next one must not find (a lock that could not be given back): it still
 * answers, and mlo_db_release closes it. */
void mlo_db_give_up(struct mlo_db_conn *conn);
/* One round trip: for health checks. */
MLO_MUST_USE enum mlo_status mlo_db_ping(struct mlo_db *db, struct mlo_error *err);
/* The libpq handle, for LISTEN/NOTIFY and COPY. Borrowed. */
PGconn *mlo_db_pg(struct mlo_db_conn *conn);
/* How long the calling thread waits for an answer, where that is less than the pool's answer_timeout_ms; 0:
 * the pool's. For threads that must not be late, with statements that may be given up and sent again. */
void mlo_db_patience(uint32_t ms);
/* For a session that sets statement_timeout to 0: answers may take as long as they do. */
void mlo_db_unhurried(struct mlo_db_conn *conn, bool unhurried);
/* SQLSTATE of the last failed statement on it, "" when none. Borrowed. */
const char *mlo_db_sqlstate(const struct mlo_db_conn *conn);
/* Whether the last failure was a deadlock or a serialisation failure: running the transaction again helps. */
bool mlo_db_retryable(const struct mlo_db_conn *conn);
/* Whether the last failure was that the connection ended, at once and not for want of an answer: reading the
 * same again on another one helps, unless PostgreSQL has stopped. */
bool mlo_db_lost(const struct mlo_db_conn *conn);

/* --- statements ------------------------------------------------------------------------------------------
 */

/* A row of a module's statement table: prepared on a connection at its first use there. The text uses $1…;
 * names are unique over the whole program. */
struct mlo_sql {
    const char *name;
    const char *text;
    int params;
};

#define MLO_PARAMS_MAX 32

/* Parameters in order. Values are borrowed until the statement ran, except numbers (copied). */
struct mlo_params {
    int count;
    const char *values[MLO_PARAMS_MAX];
    int sizes[MLO_PARAMS_MAX];
    int formats[MLO_PARAMS_MAX];
    char numbers[MLO_PARAMS_MAX][32];
};
#define MLO_PARAMS_INIT                                                                                      \
    {                                                                                                        \
        .count = 0                                                                                           \
    }

void mlo_param_text(struct mlo_params *params, const char *text); /* NULL: SQL NULL */
void mlo_param_i64(struct mlo_params *params, int64_t value);
void mlo_param_id(struct mlo_params *params, int64_t value); /* 0: SQL NULL */
void mlo_param_f64(struct mlo_params *params, double value); /* not finite: SQL NULL */
void mlo_param_bool(struct mlo_params *params, bool value);
void mlo_param_null(struct mlo_params *params);
void mlo_param_bytes(struct mlo_params *params, const void *bytes, size_t size);   /* bytea */
void mlo_param_digest(struct mlo_params *params, const struct mlo_digest *digest); /* NULL: SQL NULL */

/* A parameter that is an array: elements of one kind, in order. Values are copied. */
struct mlo_array {
    struct mlo_buf bytes;
    uint32_t type;
    int count;
    bool nulls;
};
#define MLO_ARRAY_INIT                                                                                       \
    {                                                                                                        \
        .bytes = MLO_BUF_INIT                                                                                \
    }
void mlo_array_text(struct mlo_array *array, const char *text); /* NULL: SQL NULL */
void mlo_array_i64(struct mlo_array *array, int64_t value);
void mlo_array_f64(struct mlo_array *array, double value);                       /* not finite: SQL NULL */
void mlo_array_digest(struct mlo_array *array, const struct mlo_digest *digest); /* NULL: SQL NULL */
void mlo_array_uuid(struct mlo_array *array, const char *text);                  /* no UUID: SQL NULL */
/* Borrowed until the statement ran. Fails when there was no memory for an element. */
MLO_MUST_USE enum mlo_status mlo_param_array(struct mlo_params *params, struct mlo_array *array,
                                             struct mlo_error *err);
void mlo_array_clear(struct mlo_array *array);

/* Rows of an answer. Zero-initialise; clear when done. */
struct mlo_rows {
    PGresult *result;
};
void mlo_rows_clear(struct mlo_rows *rows);
int mlo_rows_count(const struct mlo_rows *rows);
/* Rows that an INSERT, UPDATE or DELETE touched. */
int64_t mlo_rows_affected(const struct mlo_rows *rows);
bool mlo_rows_null(const struct mlo_rows *rows, int row, int column);
const char *mlo_rows_text(const struct mlo_rows *rows, int row, int column); /* NULL for SQL NULL; borrowed */
int64_t mlo_rows_i64(const struct mlo_rows *rows, int row, int column);      /* 0 for NULL */
double mlo_rows_f64(const struct mlo_rows *rows, int row, int column);       /* NaN for NULL */
bool mlo_rows_bool(const struct mlo_rows *rows, int row, int column);
bool mlo_rows_digest(const struct mlo_rows *rows, int row, int column,
                     struct mlo_digest *out); /* false: NULL */
/* Appends the bytes of a bytea. */
void mlo_rows_bytes(const struct mlo_rows *rows, int row, int column, struct mlo_buf *out);
/* The row as an object: a member per column, by its name; numbers, booleans and json as such, bytea of 32
 * bytes as "sha256:…", time stamps as "2026-01-31T12:34:56.789Z", NULL as null. New reference; NULL: out of
 * memory. */
json_t *mlo_rows_json(const struct mlo_rows *rows, int row);
/* All rows as an array. New reference; NULL: out of memory. */
json_t *mlo_rows_json_all(const struct mlo_rows *rows);

/* Runs a prepared statement. `params` may be NULL (none), `rows` may be NULL (the answer is dropped;
 * otherwise it is cleared and filled). Unique violation: MLO_EEXISTS; foreign key: MLO_ENOTFOUND; check:
 * MLO_EINVAL; privilege: MLO_EFORBIDDEN; deadlock and serialisation: MLO_ECONFLICT (see mlo_db_retryable);
 * statement timeout: MLO_ETIMEOUT; disk full: MLO_ENOSPC; connection: MLO_EUNAVAILABLE. */
MLO_MUST_USE enum mlo_status mlo_db_exec(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                         const struct mlo_params *params, struct mlo_rows *rows,
                                         struct mlo_error *err);
/* Runs plain SQL, several statements allowed: migrations, LISTEN, tests. Never with values pasted in. */
MLO_MUST_USE enum mlo_status mlo_db_exec_text(struct mlo_db_conn *conn, const char *text,
                                              struct mlo_error *err);
/* Prepares every statement of a table and checks its number of parameters: the test of a module's SQL. */
MLO_MUST_USE enum mlo_status mlo_db_prepare_all(struct mlo_db_conn *conn, const struct mlo_sql *table,
                                                size_t count, struct mlo_error *err);

/* --- sharing a round trip ---------------------------------------------------------------------- */

/* Inside a transaction: sends the statement with the next one whose answer is waited for, before it and in
 * the order of the calls, so that many cost one round trip; mlo_db_end sends them with its COMMIT, so that a
 * lock that the last of them takes is held for no round trip at all. `rows` may be NULL, else it is filled by
 * then and must live until then (after a failure it may stay empty). Parameters are copied. What fails is
 * reported by the statement that waited; what stood behind it was not run. */
MLO_MUST_USE enum mlo_status mlo_db_queue(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                          const struct mlo_params *params, struct mlo_rows *rows,
                                          struct mlo_error *err);
/* Inside a transaction: the same, but with the COMMIT of the outermost one and behind all that it did, in the
 * order of these calls; forgotten when it is rolled back. For what locks a row that many want, and whose
 * answer nobody reads. What fails is reported by the outermost mlo_db_end. */
MLO_MUST_USE enum mlo_status mlo_db_queue_last(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                               const struct mlo_params *params, struct mlo_error *err);
/* Waits for all that is queued. */
MLO_MUST_USE enum mlo_status mlo_db_flush(struct mlo_db_conn *conn, struct mlo_error *err);
/* Queues a statement that will be asked for: it is sent with the next one that is waited for. The first
 * mlo_db_exec of it with the same parameters gets this answer; one that is never asked for is dropped when
 * the transaction ends, or without one when the connection is given back. For reading only, and only what
 * nothing in between changes: the answer is of the time when the queue is sent. Where no transaction is open,
 * the next call is not mlo_db_begin: the statements that travel together are one transaction, of their own.
 */
MLO_MUST_USE enum mlo_status mlo_db_ahead(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                          const struct mlo_params *params, struct mlo_error *err);
/* Forgets what was read ahead: before a change of what it says. */
void mlo_db_ahead_clear(struct mlo_db_conn *conn);

/* --- transactions -----------------------------------------------------------------------------------------
 */

/* Begins a transaction (read committed): the server hears of it with the first statement. Inside one it only
 * counts, so that functions which need a transaction compose: the outermost end decides, and a failure of an
 * inner one makes it roll back. */
MLO_MUST_USE enum mlo_status mlo_db_begin(struct mlo_db_conn *conn, struct mlo_error *err);
/* Ends it: commits when `status` is MLO_OK, else rolls back and returns `status` (err untouched). */
MLO_MUST_USE enum mlo_status mlo_db_end(struct mlo_db_conn *conn, enum mlo_status status,
                                        struct mlo_error *err);
bool mlo_db_in_transaction(const struct mlo_db_conn *conn);
/* Inside a transaction: begins a part of it that may fail alone, as an item of many does. One at a time. */
MLO_MUST_USE enum mlo_status mlo_db_part_begin(struct mlo_db_conn *conn, struct mlo_error *err);
/* Ends it: keeps what it did when `status` is MLO_OK; else undoes it, with what it left for the COMMIT, and
 * returns `status` (err untouched): the transaction goes on. Where even that fails nothing goes on: the
 * failure is it. */
MLO_MUST_USE enum mlo_status mlo_db_part_end(struct mlo_db_conn *conn, enum mlo_status status, bool *goes_on,
                                             struct mlo_error *err);
/* PostgreSQL ends a transaction, and its connection, of whoever asks for nothing for 30 s in it: one who
 * vanished keeps no locks. For a transaction that reads blobs, or removes them, this lifts the limit
 * (mlo_db_exec_text). */
#define MLO_DB_SLOW_TX "SET LOCAL idle_in_transaction_session_timeout = 0"

/* --- locks that do not wait for the disk -------------------------------------------------------- */

/* Inside a transaction: its COMMIT lets go of the locks before its bytes are on disk (and on the replicas
 * that the session waits for), and mlo_db_end waits for them afterwards, in the same round trip. So who waits
 * for a row that many lock waits for no disk, and their commits share one. As with every commit, MLO_OK means
 * durable; a failure behind the COMMIT (MLO_EUNAVAILABLE) that it is not known whether the change stayed.
 * What others may have read of it before that is said in docs/promotion.md. Where the role may not, nothing
 * changes. */
MLO_MUST_USE enum mlo_status mlo_db_unlock_early(struct mlo_db_conn *conn, struct mlo_error *err);
/* Outside a transaction: returns when all that was committed before this call, by whomever, is as durable as
 * a commit of this session. Between reading what a transaction of the kind above may have written and telling
 * it to who will remember it. Costs a round trip where that is so already. */
MLO_MUST_USE enum mlo_status mlo_db_settle(struct mlo_db_conn *conn, struct mlo_error *err);

/* --- setting up -------------------------------------------------------------------------------- */

/* As a superuser or a role with CREATEROLE and CREATEDB: makes the three roles (LOGIN, no password) and the
 * database, owned by mlopt_owner, where they do not exist. `admin_conninfo` names another database to connect
 * to. */
MLO_MUST_USE enum mlo_status mlo_db_bootstrap(const char *admin_conninfo, const char *database,
                                              struct mlo_error *err);

#endif
