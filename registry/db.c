/* The pool of connections and transactions. */
#include "registry/db_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void ignore_notice(void *arg, const PGresult *result)
{
    MLO_UNUSED(arg);
    MLO_UNUSED(result);
}

/* Where the database is, for people: without the password that a conninfo may hold. */
static enum mlo_status describe(struct mlo_db *db, struct mlo_error *err)
{
    char *problem = NULL;
    PQconninfoOption *options = PQconninfoParse(db->conninfo, &problem);
    if (!options) {
        mlo_error_set(err, MLO_EINVAL, "the database address is malformed: %.200s", problem ? problem : "");
        PQfreemem(problem);
        return MLO_EINVAL;
    }
    const char *host = "the default socket", *port = NULL, *name = NULL;
    for (PQconninfoOption *o = options; o->keyword; o++) {
        if (!o->val || !*o->val)
            continue;
        if (strcmp(o->keyword, "host") == 0)
            host = o->val;
        else if (strcmp(o->keyword, "port") == 0)
            port = o->val;
        else if (strcmp(o->keyword, "dbname") == 0)
            name = o->val;
    }
    snprintf(db->place, sizeof db->place, "%.120s%s%.10s%s%.80s%s", host, port ? ":" : "", port ? port : "",
             name ? " (database " : "", name ? name : "", name ? ")" : "");
    PQconninfoFree(options);
    return MLO_OK;
}

enum mlo_status mlo_db_open(const struct mlo_db_options *options, struct mlo_db **out, struct mlo_error *err)
{
    *out = NULL;
    struct mlo_db *db = calloc(1, sizeof *db);
    if (!db)
        return mlo_error_nomem(err);
    pthread_mutex_init(&db->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&db->freed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    db->max = options->max_connections ? options->max_connections : 8;
    db->wait_ms = options->wait_ms ? options->wait_ms : 10000;
    uint32_t statement_ms = options->statement_timeout_ms ? options->statement_timeout_ms : 30000;
    db->answer_ms = options->answer_timeout_ms ? options->answer_timeout_ms : statement_ms + 5000;
    db->connect_timeout_s = options->connect_timeout_s;
    db->conninfo = strdup(options->conninfo);
    db->user = options->user ? strdup(options->user) : NULL;
    db->application = strdup(options->application ? options->application : "mlopt");
    struct mlo_buf settings = MLO_BUF_INIT;
    /* who vanishes inside a transaction leaves its locks; who works long inside one says so itself */
    mlo_buf_printf(&settings,
                   "-c search_path=mlopt -c timezone=UTC -c statement_timeout=%u -c jit=off "
                   "-c idle_in_transaction_session_timeout=30000 "
                   /* whose host is gone without a word goes too, and its locks (nothing on a unix socket) */
                   "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3",
                   statement_ms);
    db->options = mlo_buf_take(&settings);
    enum mlo_status status = MLO_OK;
    if (!db->conninfo || !db->application || !db->options || (options->user && !db->user))
        status = mlo_error_nomem(err);
    else
        status = describe(db, err);
    if (status != MLO_OK) {
        mlo_db_close(db);
        return status;
    }
    *out = db;
    return MLO_OK;
}

enum mlo_status mlo_db_open_like(const struct mlo_db *like, const struct mlo_db_options *options,
                                 struct mlo_db **out, struct mlo_error *err)
{
    struct mlo_db_options same = *options;
    same.conninfo = like->conninfo;
    same.user = like->user;
    return mlo_db_open(&same, out, err);
}

static void conn_free(struct mlo_db_conn *conn)
{
    PQfinish(conn->pg);
    free(conn);
}

void mlo_db_close(struct mlo_db *db)
{
    if (!db)
        return;
    while (db->idle) {
        struct mlo_db_conn *conn = db->idle;
        db->idle = conn->next;
        conn_free(conn);
    }
    pthread_cond_destroy(&db->freed);
    pthread_mutex_destroy(&db->lock);
    free(db->conninfo);
    free(db->user);
    free(db->application);
    free(db->options);
    free(db);
}

static enum mlo_status unreachable(const struct mlo_db *db, const char *detail, struct mlo_error *err)
{
    /* libpq's message has several lines; the first one says why */
    mlo_error_set(err, MLO_EUNAVAILABLE, "PostgreSQL at %s is not reachable: %.*s", db->place,
                  (int)MLO_MIN(strcspn(detail, "\n"), (size_t)250), detail);
    mlo_error_hint(err, "check that PostgreSQL runs there and that the database address is right");
    return MLO_EUNAVAILABLE;
}

static enum mlo_status conn_new(struct mlo_db *db, struct mlo_db_conn **out, struct mlo_error *err)
{
    struct mlo_db_conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        return mlo_error_nomem(err);
    conn->db = db;
    const char *names[16], *values[16];
    int n = 0;
    names[n] = "connect_timeout", values[n++] = "5";  /* these, unless conninfo has others */
    names[n] = "keepalives_idle", values[n++] = "15"; /* a dead host is found out in half a minute */
    names[n] = "keepalives_interval", values[n++] = "5";
    names[n] = "keepalives_count", values[n++] = "3";
    names[n] = "tcp_user_timeout", values[n++] = "30000";
    names[n] = "dbname", values[n++] = db->conninfo; /* expanded; what follows goes over it */
    char timeout[16];
    snprintf(timeout, sizeof timeout, "%u", db->connect_timeout_s);
    if (db->connect_timeout_s)
        names[n] = "connect_timeout", values[n++] = timeout;
    if (db->user)
        names[n] = "user", values[n++] = db->user;
    names[n] = "application_name", values[n++] = db->application;
    names[n] = "client_encoding", values[n++] = "UTF8";
    names[n] = "options", values[n++] = db->options;
    names[n] = NULL, values[n] = NULL;
    conn->pg = PQconnectdbParams(names, values, 1);
    if (!conn->pg) {
        free(conn);
        return mlo_error_nomem(err);
    }
    if (PQstatus(conn->pg) != CONNECTION_OK) {
        enum mlo_status status = unreachable(db, PQerrorMessage(conn->pg), err);
        conn_free(conn);
        return status;
    }
    PQsetNoticeReceiver(conn->pg, ignore_notice, NULL);
    *out = conn;
    return MLO_OK;
}

/* A server that went away has sent its farewell, so the idle socket is readable: only then a round trip
 * tells. */
static bool still_open(struct mlo_db_conn *conn)
{
    PGconn *pg = conn->pg;
    if (PQstatus(pg) != CONNECTION_OK)
        return false;
    struct pollfd p = {PQsocket(pg), POLLIN, 0};
    if (poll(&p, 1, 0) == 0)
        return true;
    /* after a farewell libpq's status stays good until it reads the end of the stream: the answer tells */
    PGresult *result = mlo_db_answers(conn, PQsendQuery(pg, ""));
    bool open = PQresultStatus(result) == PGRES_EMPTY_QUERY && PQstatus(pg) == CONNECTION_OK;
    PQclear(result);
    return open;
}

enum mlo_status mlo_db_acquire(struct mlo_db *db, struct mlo_db_conn **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_db_conn *conn = NULL;
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += db->wait_ms / 1000;
    deadline.tv_nsec += (long)(db->wait_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    *out = NULL;
    pthread_mutex_lock(&db->lock);
    while (!db->idle && db->total >= db->max) {
        if (pthread_cond_timedwait(&db->freed, &db->lock, &deadline) == ETIMEDOUT && !db->idle &&
            db->total >= db->max) {
            pthread_mutex_unlock(&db->lock);
            mlo_error_set(err, MLO_ETIMEOUT, "all %u connections to PostgreSQL stayed in use for %u ms",
                          db->max, db->wait_ms);
            mlo_error_hint(err, "try again; if it persists, allow more connections");
            return MLO_ETIMEOUT;
        }
    }
    if (db->idle) {
        conn = db->idle;
        db->idle = conn->next;
        conn->next = NULL;
    } else {
        db->total++;
    }
    pthread_mutex_unlock(&db->lock);

    if (conn && !still_open(conn)) {
        conn_free(conn);
        conn = NULL;
    }
    if (!conn)
        status = conn_new(db, &conn, err);
    if (status != MLO_OK) {
        pthread_mutex_lock(&db->lock);
        db->total--;
        pthread_cond_signal(&db->freed);
        pthread_mutex_unlock(&db->lock);
        return status;
    }
    conn->sqlstate[0] = '\0';
    *out = conn;
    return MLO_OK;
}

/* Runs what is queued, for nobody, and forgets what was read ahead. */
static void settle(struct mlo_db_conn *conn)
{
    struct mlo_error ignored = {0};
    mlo_db_queue_forget(conn);
    enum mlo_status status = mlo_db_flush(conn, &ignored);
    MLO_UNUSED(status); /* the transaction is given up, or has ended */
    mlo_db_ahead_clear(conn);
}

void mlo_db_give_up(struct mlo_db_conn *conn)
{
    conn->given_up = true;
}

void mlo_db_release(struct mlo_db_conn *conn)
{
    if (!conn)
        return;
    struct mlo_db *db = conn->db;
    settle(conn);
    conn->depth = 0;
    conn->doomed = false;
    mlo_db_last_clear(conn);
    bool keep = PQstatus(conn->pg) == CONNECTION_OK && !conn->broken && !conn->given_up;
    if (keep && PQtransactionStatus(conn->pg) != PQTRANS_IDLE)
        PQclear(mlo_db_answers(conn, PQsendQuery(conn->pg, "ROLLBACK")));
    keep = keep && PQstatus(conn->pg) == CONNECTION_OK && !conn->broken &&
           PQtransactionStatus(conn->pg) == PQTRANS_IDLE && PQpipelineStatus(conn->pg) == PQ_PIPELINE_OFF;
    if (!keep) {
        conn_free(conn);
        conn = NULL;
    }
    pthread_mutex_lock(&db->lock);
    if (conn) {
        conn->next = db->idle;
        db->idle = conn;
    } else {
        db->total--;
    }
    pthread_cond_signal(&db->freed);
    pthread_mutex_unlock(&db->lock);
}

enum mlo_status mlo_db_ping(struct mlo_db *db, struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    enum mlo_status status = mlo_db_acquire(db, &conn, err);
    if (status == MLO_OK) {
        status = mlo_db_exec_text(conn, "SELECT 1", err);
        mlo_db_release(conn);
    }
    return status;
}

PGconn *mlo_db_pg(struct mlo_db_conn *conn)
{
    return conn->pg;
}

const char *mlo_db_sqlstate(const struct mlo_db_conn *conn)
{
    return conn->sqlstate;
}

bool mlo_db_retryable(const struct mlo_db_conn *conn)
{
    return strcmp(conn->sqlstate, "40001") == 0 || strcmp(conn->sqlstate, "40P01") == 0;
}

bool mlo_db_lost(const struct mlo_db_conn *conn)
{
    return !conn->silent && (conn->broken || mlo_str_starts(conn->sqlstate, "57P"));
}

/* --- errors ------------------------------------------------------------------------------------ */

static const struct {
    const char *prefix; /* of the SQLSTATE; the first match counts */
    enum mlo_status status;
    const char *hint;
} sqlstates[] = {
    {"23505", MLO_EEXISTS, NULL},
    {"23503", MLO_ENOTFOUND, NULL},
    {"23", MLO_EINVAL, NULL},
    {"22", MLO_EINVAL, NULL},
    {"40001", MLO_ECONFLICT, "try again"},
    {"40P01", MLO_ECONFLICT, "try again"},
    {"55P03", MLO_ECONFLICT, "try again"},
    {"42501", MLO_EFORBIDDEN, NULL},
    {"42P01", MLO_ECONFLICT, "the database lacks a table: run `mlopt migrate`"},
    {"28", MLO_EUNAVAILABLE, "check the database role and its password"},
    {"3D000", MLO_EUNAVAILABLE, "the database does not exist: run `mlopt migrate`"},
    {"57014", MLO_ETIMEOUT, NULL},
    {"57P", MLO_EUNAVAILABLE, "PostgreSQL is stopping or starting: try again"},
    {"08", MLO_EUNAVAILABLE, "try again"},
    {"53100", MLO_ENOSPC, "make room on the disk of PostgreSQL"},
    {"53200", MLO_ENOMEM, NULL},
    {"53300", MLO_EUNAVAILABLE, "PostgreSQL has no free connection: try again"},
    {"MLQ01", MLO_EQUOTA,
     "delete what is not needed, or have an admin of the project raise it: `mlopt queue set PROJECT "
     "--storage "
     "SIZE`"},
    {"54", MLO_ETOOBIG, NULL},
    {"58", MLO_EIO, NULL},
};

enum mlo_status mlo_db_fail(struct mlo_db_conn *conn, const PGresult *result, const char *what,
                            struct mlo_error *err)
{
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    snprintf(conn->sqlstate, sizeof conn->sqlstate, "%s", state ? state : "");
    /* What the server refuses has a state. Without one it is libpq that says so: the connection broke, which
     * its status tells only after the next read. */
    conn->broken = conn->broken || PQstatus(conn->pg) == CONNECTION_BAD || (result && !state);
    if (conn->silent)
        return unreachable(conn->db, "it gave no answer in time", err);
    if (conn->broken)
        return unreachable(conn->db, PQerrorMessage(conn->pg), err);
    const char *message = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    const char *detail = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL) : NULL;
    if (!message)
        message = PQerrorMessage(conn->pg);
    for (size_t i = 0; state && i < MLO_COUNT(sqlstates); i++) {
        if (!mlo_str_starts(state, sqlstates[i].prefix))
            continue;
        mlo_error_set(err, sqlstates[i].status, "%s: %.250s%s%.150s", what, message, detail ? ": " : "",
                      detail ? detail : "");
        if (sqlstates[i].hint)
            mlo_error_hint(err, "%s", sqlstates[i].hint);
        return sqlstates[i].status;
    }
    return mlo_error_set(err, MLO_EINTERNAL, "%s: %.250s (SQLSTATE %s)", what, message,
                         state ? state : "none");
}

/* --- transactions ------------------------------------------------------------------------------ */

enum mlo_status mlo_db_begin(struct mlo_db_conn *conn, struct mlo_error *err)
{
    if (conn->depth == 0) { /* it travels with the first statement */
        enum mlo_status status = mlo_db_queue_text(conn, "BEGIN", NULL, err);
        if (status != MLO_OK)
            return status;
        conn->sqlstate[0] = '\0'; /* of another's failure */
        conn->doomed = false;
        conn->early = false;
        conn->part_end = NULL;
        mlo_db_last_clear(conn);
    }
    conn->depth++;
    return MLO_OK;
}

bool mlo_db_did(const PGresult *result, const char *what)
{
    return strcmp(what, "COMMIT") != 0 || strcmp(PQcmdStatus((PGresult *)result), "COMMIT") == 0;
}

static void roll_back(struct mlo_db_conn *conn)
{
    char sqlstate[sizeof conn->sqlstate]; /* of the failure, not of the rollback */
    memcpy(sqlstate, conn->sqlstate, sizeof sqlstate);
    settle(conn);
    struct mlo_error ignored = {0};
    enum mlo_status undone = mlo_db_exec_text(conn, "ROLLBACK", &ignored);
    MLO_UNUSED(undone); /* a connection that cannot roll back is closed at its release */
    memcpy(conn->sqlstate, sqlstate, sizeof sqlstate);
}

enum mlo_status mlo_db_end(struct mlo_db_conn *conn, enum mlo_status status, struct mlo_error *err)
{
    if (conn->depth == 0)
        return status != MLO_OK ? status : mlo_error_set(err, MLO_EINTERNAL, "no transaction to end");
    if (conn->depth > 1 && status == MLO_OK)
        status = mlo_db_flush(conn, err); /* whose rows are this caller's */
    if (status != MLO_OK) {
        conn->doomed = true;
        mlo_db_queue_forget(conn);
    }
    if (conn->depth > 1) {
        conn->depth--;
        mlo_db_ahead_clear(conn); /* it was read for what has ended */
        return status;
    }
    if (!conn->doomed) {
        status = mlo_db_queue_held(conn, err);
        status = status == MLO_OK ? mlo_db_commit(conn, err) : status;
        if (status != MLO_OK && (conn->queued || PQtransactionStatus(conn->pg) != PQTRANS_IDLE))
            roll_back(conn);
    } else {
        roll_back(conn);
        if (status == MLO_OK)
            status =
                mlo_error_set(err, MLO_EINTERNAL, "a part of the transaction failed and was not reported");
    }
    conn->depth = 0;
    mlo_db_last_clear(conn);
    mlo_db_ahead_clear(conn);
    return status;
}

enum mlo_status mlo_db_part_begin(struct mlo_db_conn *conn, struct mlo_error *err)
{
    if (conn->depth == 0 || conn->doomed || conn->part_end)
        return mlo_error_set(err, MLO_EINTERNAL, "no place for a part of a transaction");
    enum mlo_status status = mlo_db_queue_text(conn, "SAVEPOINT part", NULL, err);
    if (status != MLO_OK)
        return status;
    conn->part_end = conn->last ? conn->last_end : &conn->last;
    conn->part_depth = conn->depth;
    return MLO_OK;
}

enum mlo_status mlo_db_part_end(struct mlo_db_conn *conn, enum mlo_status status, bool *goes_on,
                                struct mlo_error *err)
{
    struct mlo_db_last **from = conn->part_end;
    *goes_on = false;
    conn->part_end = NULL;
    if (!from || conn->depth != conn->part_depth)
        return mlo_error_set(err, MLO_EINTERNAL, "no part of a transaction to end");
    if (status == MLO_OK)
        status = mlo_db_flush(conn, err);
    if (status == MLO_OK && !conn->doomed) {
        status = mlo_db_queue_text(conn, "RELEASE SAVEPOINT part", NULL, err);
        *goes_on = status == MLO_OK;
        return status;
    }
    if (status == MLO_OK)
        status = mlo_error_set(err, MLO_EINTERNAL, "a part of the transaction failed and was not reported");
    settle(conn);
    mlo_db_last_cut(conn, from);
    struct mlo_error why = {0};
    if (mlo_db_exec_text(conn, "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part", &why) != MLO_OK) {
        *err = why;
        return why.status;
    }
    conn->doomed = false;
    *goes_on = true;
    return status;
}

bool mlo_db_in_transaction(const struct mlo_db_conn *conn)
{
    return conn->depth > 0;
}
