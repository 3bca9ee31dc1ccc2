/* The pool, statements, transactions, migrations and roles. */
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/pg_fixture.h"

static const struct mlo_sql sql[] = {
    {"t_echo",
     "SELECT $1::text AS t, $2::bigint AS i, $3::double precision AS f, $4::boolean AS b, $5::bytea AS d, "
     "NULL::text AS n, '{\"a\":1}'::json AS j, '2026-01-31 12:34:56.789012+00'::timestamptz AS at",
     5},
    {"t_wrong", "SELECT $1::int", 2},
    {"t_divide", "SELECT 1 / $1::int", 1},
};

static void test_db__values_pass_through(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of("x", 1, &digest);
    mlo_param_text(&p, "it's; DROP TABLE x");
    mlo_param_i64(&p, INT64_MIN);
    mlo_param_f64(&p, 0.1);
    mlo_param_bool(&p, true);
    mlo_param_digest(&p, &digest);
    assert_mlo_ok(mlo_db_exec(f->conn, &sql[0], &p, &rows, &f->err), &f->err);
    json_t *row = mlo_rows_json(&rows, 0);
    assert_string_equal(mlo_json_str(row, "t", ""), "it's; DROP TABLE x");
    assert_true(mlo_json_i64(row, "i", 0) == INT64_MIN);
    assert_true(mlo_json_f64(row, "f", 0) == 0.1);
    assert_true(mlo_json_bool(row, "b", false));
    assert_string_equal(mlo_json_str(row, "d", ""), mlo_digest_text(&digest, text));
    assert_true(json_is_null(json_object_get(row, "n")));
    assert_int_equal(mlo_json_i64(json_object_get(row, "j"), "a", 0), 1);
    assert_string_equal(mlo_json_str(row, "at", ""), "2026-01-31T12:34:56.789Z");
    json_decref(row);
    mlo_rows_clear(&rows);
}

static void test_db__wrong_parameter_count_is_found(void **state)
{
    struct pg_fixture *f = *state;
    assert_mlo_status(mlo_db_prepare_all(f->conn, &sql[1], 1, &f->err), MLO_EINTERNAL, &f->err);
    assert_non_null(strstr(f->err.message, "t_wrong"));
}

static void test_db__failed_inner_transaction_undoes_the_outer(void **state)
{
    struct pg_fixture *f = *state;
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(
        mlo_db_exec_text(f->conn, "INSERT INTO project (name, created_by) VALUES ('p', 'x')", &f->err),
        &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_int_equal(mlo_db_end(f->conn, MLO_EINVAL, NULL), MLO_EINVAL);
    assert_mlo_status(mlo_db_end(f->conn, MLO_OK, &f->err), MLO_EINTERNAL, &f->err);
    assert_false(mlo_db_in_transaction(f->conn));
    assert_mlo_ok(
        mlo_db_exec_text(f->conn, "INSERT INTO project (name, created_by) VALUES ('p', 'x')", &f->err),
        &f->err);
}

static void test_db__pool_is_bounded(void **state)
{
    struct pg_fixture *f = *state;
    char *conninfo = mlo_embedded_conninfo(f->pg, MLO_ROLE_SERVER, f->database);
    struct mlo_db_options options = {.conninfo = conninfo, .max_connections = 1, .wait_ms = 50};
    struct mlo_db *db;
    struct mlo_db_conn *one, *two;
    assert_mlo_ok(mlo_db_open(&options, &db, &f->err), &f->err);
    assert_mlo_ok(mlo_db_acquire(db, &one, &f->err), &f->err);
    assert_mlo_status(mlo_db_acquire(db, &two, &f->err), MLO_ETIMEOUT, &f->err);
    mlo_db_release(one);
    assert_mlo_ok(mlo_db_acquire(db, &two, &f->err), &f->err);
    mlo_db_release(two);
    mlo_db_close(db);
    free(conninfo);
}

static void test_db__broken_connection_heals(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db *db = pg_fixture_pool(f, MLO_ROLE_SERVER, 1);
    struct mlo_db_conn *conn;
    char text[80];
    assert_mlo_ok(mlo_db_acquire(db, &conn, &f->err), &f->err);
    int backend = PQbackendPID(mlo_db_pg(conn));
    snprintf(text, sizeof text, "SELECT pg_terminate_backend(%d, 5000)", backend);
    mlo_db_release(conn);
    struct mlo_db *other = pg_fixture_pool(f, MLO_ROLE_SERVER, 1);
    assert_mlo_ok(mlo_db_acquire(other, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, text, &f->err), &f->err);
    mlo_db_release(conn);
    assert_mlo_ok(mlo_db_acquire(db, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, "SELECT 1", &f->err), &f->err);
    /* and one that breaks while it is leased says so */
    backend = PQbackendPID(mlo_db_pg(conn));
    snprintf(text, sizeof text, "SELECT pg_terminate_backend(%d)", backend);
    assert_mlo_status(mlo_db_exec_text(conn, text, &f->err), MLO_EUNAVAILABLE, &f->err);
    mlo_db_release(conn);
    assert_mlo_ok(mlo_db_ping(db, &f->err), &f->err);
    mlo_db_close(other);
    mlo_db_close(db);
}

static void test_db__absent_server_is_unavailable(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_db *db;
    struct mlo_db_options options = {.conninfo =
                                         "host=/tmp/mlopt-no-such-place dbname=mlopt password=hunter2"};
    assert_mlo_ok(mlo_db_open(&options, &db, &err), &err);
    assert_mlo_status(mlo_db_ping(db, &err), MLO_EUNAVAILABLE, &err);
    assert_non_null(strstr(err.message, "/tmp/mlopt-no-such-place"));
    assert_null(strstr(err.message, "hunter2"));
    assert_true(err.hint[0] != '\0');
    mlo_db_close(db);
}

static void test_db__error_of_a_statement_names_it(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, 0);
    assert_mlo_status(mlo_db_exec(f->conn, &sql[2], &p, NULL, &f->err), MLO_EINVAL, &f->err);
    assert_non_null(strstr(f->err.message, "t_divide"));
    assert_string_equal(mlo_db_sqlstate(f->conn), "22012");
}

/* --- sharing a round trip ---------------------------------------------------------------------- */

static const struct mlo_sql batch[] = {
    {"t_make", "CREATE TEMPORARY TABLE t_seen (n bigint)", 0},
    {"t_put", "INSERT INTO t_seen VALUES ($1)", 1},
    {"t_sum", "SELECT sum(n)::bigint FROM t_seen WHERE n < $1", 1},
};

static void put(struct pg_fixture *f, int64_t n)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, n);
    assert_mlo_ok(mlo_db_queue(f->conn, &batch[1], &p, NULL, &f->err), &f->err);
}

/* The sum of what is there, below a limit. */
static int64_t sum(struct pg_fixture *f, int64_t limit)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, limit);
    assert_mlo_ok(mlo_db_exec(f->conn, &batch[2], &p, &rows, &f->err), &f->err);
    int64_t found = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return found;
}

static void make_table(struct pg_fixture *f)
{
    assert_mlo_ok(mlo_db_exec(f->conn, &batch[0], NULL, NULL, &f->err), &f->err);
    assert_true(sum(f, 1) == 0);
}

static void test_queue__runs_in_order_before_who_waits(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows two = {0}, all = {0};
    make_table(f);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    put(f, 1);
    mlo_param_i64(&p, 1000);
    assert_mlo_ok(mlo_db_queue(f->conn, &batch[2], &p, &two, &f->err), &f->err);
    put(f, 2);
    assert_true(sum(f, 1000) == 3);
    assert_true(mlo_rows_i64(&two, 0, 0) == 1);
    for (int64_t n = 0; n < 200; n++) /* more than one queue holds */
        put(f, 10);
    assert_mlo_ok(mlo_db_queue(f->conn, &batch[2], &p, &all, &f->err), &f->err);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_true(mlo_rows_i64(&all, 0, 0) == 2003);
    assert_true(sum(f, 1000) == 2003);
    mlo_rows_clear(&two);
    mlo_rows_clear(&all);
    assert_mlo_status(mlo_db_queue(f->conn, &batch[2], &p, &all, &f->err), MLO_EINTERNAL, &f->err);
}

static void test_queue__what_fails_is_told_and_undoes_all(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_params zero = MLO_PARAMS_INIT;
    make_table(f);
    mlo_param_i64(&zero, 0);
    for (int at_the_end = 0; at_the_end < 2; at_the_end++) {
        assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
        put(f, 1);
        assert_mlo_ok(mlo_db_queue(f->conn, &sql[2], &zero, NULL, &f->err), &f->err);
        put(f, 2);
        enum mlo_status status = MLO_OK;
        if (!at_the_end) {
            status = mlo_db_flush(f->conn, &f->err);
            assert_int_equal(status, MLO_EINVAL);
        }
        assert_int_equal(mlo_db_end(f->conn, status, &f->err), MLO_EINVAL);
        assert_non_null(strstr(f->err.message, "t_divide"));
        assert_string_equal(mlo_db_sqlstate(f->conn), "22012");
        assert_false(mlo_db_in_transaction(f->conn));
        assert_true(sum(f, 1000) == 0);
    }
    /* who gives up in between leaves nothing, and no pointer into its own rows */
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    {
        struct mlo_rows gone = {0};
        put(f, 5);
        assert_mlo_ok(mlo_db_queue(f->conn, &batch[2], &zero, &gone, &f->err), &f->err);
        assert_int_equal(mlo_db_end(f->conn, MLO_ECONFLICT, NULL), MLO_ECONFLICT);
    }
    assert_int_equal(mlo_db_end(f->conn, MLO_ECONFLICT, NULL), MLO_ECONFLICT);
    assert_true(sum(f, 1000) == 0);
}

/* A failure that nobody told of is found at the end: nothing was committed. */
static void test_queue__a_commit_that_rolls_back_is_told(void **state)
{
    struct pg_fixture *f = *state;
    make_table(f);
    for (int queued = 0; queued < 2; queued++) {
        assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
        assert_int_not_equal(mlo_db_exec_text(f->conn, "SELECT 1/0", NULL), MLO_OK);
        if (queued) {
            PQclear(PQexec(mlo_db_pg(f->conn), "ROLLBACK; BEGIN"));
            put(f, 1);
            assert_mlo_ok(mlo_db_flush(f->conn, &f->err), &f->err);
            PQclear(PQexec(mlo_db_pg(f->conn), "SELECT 1/0"));
        }
        assert_int_equal(mlo_db_end(f->conn, MLO_OK, &f->err), MLO_EINTERNAL);
        assert_false(mlo_db_in_transaction(f->conn));
        assert_true(sum(f, 1000) == 0);
    }
}

static void test_queue__an_inner_transaction_waits_for_its_own(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    make_table(f);
    mlo_param_i64(&p, 1000);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    put(f, 7);
    assert_mlo_ok(mlo_db_queue(f->conn, &batch[2], &p, &rows, &f->err), &f->err);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_true(mlo_rows_i64(&rows, 0, 0) == 7);
    mlo_rows_clear(&rows);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_true(sum(f, 1000) == 7);
}

static void test_ahead__answers_once_and_what_was_asked(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_params p = MLO_PARAMS_INIT;
    make_table(f);
    mlo_param_i64(&p, 1000);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    put(f, 1);
    assert_mlo_ok(mlo_db_ahead(f->conn, &batch[2], &p, &f->err), &f->err);
    put(f, 2);
    assert_true(sum(f, 999) == 3);  /* other parameters: asked now */
    assert_true(sum(f, 1000) == 1); /* as it was then */
    assert_true(sum(f, 1000) == 3); /* once */
    assert_mlo_ok(mlo_db_ahead(f->conn, &batch[2], &p, &f->err), &f->err);
    put(f, 4);
    mlo_db_ahead_clear(f->conn);
    assert_true(sum(f, 1000) == 7);
    assert_mlo_ok(mlo_db_ahead(f->conn, &batch[2], &p, &f->err), &f->err);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    put(f, 8);
    assert_true(sum(f, 1000) == 15); /* nothing of the transaction before */
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
}

static void test_queue__a_broken_connection_is_told(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db *db = pg_fixture_pool(f, MLO_ROLE_SERVER, 1);
    struct mlo_db_conn *conn;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    char text[80];
    mlo_param_i64(&p, 1);
    assert_mlo_ok(mlo_db_acquire(db, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec(conn, &sql[2], &p, NULL, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_queue(conn, &sql[2], &p, &rows, &f->err), &f->err);
    snprintf(text, sizeof text, "SELECT pg_terminate_backend(%d, 5000)", PQbackendPID(mlo_db_pg(conn)));
    assert_mlo_ok(mlo_db_exec_text(f->conn, text, &f->err), &f->err);
    enum mlo_status status = mlo_db_end(conn, MLO_OK, &f->err);
    assert_int_equal(status, MLO_EUNAVAILABLE);
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
    assert_mlo_ok(mlo_db_ping(db, &f->err), &f->err);
    mlo_db_close(db);
}

/* A PostgreSQL that is killed takes nothing more, and what it said last is no answer: libpq notes the failed
 * write, and its status stays good. */
static void test_queue__a_connection_that_takes_nothing_is_told(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db *db = pg_fixture_pool(f, MLO_ROLE_SERVER, 1);
    struct mlo_db_conn *conn;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, 1);
    assert_mlo_ok(mlo_db_acquire(db, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec(conn, &sql[2], &p, NULL, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, "LISTEN anything", &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(f->conn, "NOTIFY anything", &f->err), &f->err);
    struct pollfd said = {PQsocket(mlo_db_pg(conn)), POLLIN, 0};
    assert_int_equal(poll(&said, 1, 60000), 1);
    assert_mlo_ok(mlo_db_begin(conn, &f->err), &f->err);
    assert_int_equal(shutdown(PQsocket(mlo_db_pg(conn)), SHUT_WR), 0);
    assert_mlo_status(mlo_db_exec(conn, &sql[2], &p, &rows, &f->err), MLO_EUNAVAILABLE, &f->err);
    assert_mlo_status(mlo_db_end(conn, MLO_EUNAVAILABLE, &f->err), MLO_EUNAVAILABLE, &f->err);
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
    assert_mlo_ok(mlo_db_ping(db, &f->err), &f->err);
    mlo_db_close(db);
}

/* --- the end of a transaction ------------------------------------------------------------------ */

static void put_last(struct pg_fixture *f, int64_t value)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, value);
    assert_mlo_ok(mlo_db_queue_last(f->conn, &batch[1], &p, &f->err), &f->err);
}

static void test_last__runs_behind_all_or_not_at_all(void **state)
{
    struct pg_fixture *f = *state;
    make_table(f);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    put_last(f, 1);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    for (int64_t i = 2; i <= 70; i++) /* more than one queue */
        put_last(f, i);
    put(f, 1000);
    assert_true(sum(f, 10000) == 1000); /* none yet */
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_true(sum(f, 10000) == 1000 + 70 * 71 / 2);
    /* a transaction that is given up, and the next one */
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    put_last(f, 3000);
    assert_int_equal(mlo_db_end(f->conn, MLO_ECONFLICT, NULL), MLO_ECONFLICT);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_true(sum(f, 10000) == 1000 + 70 * 71 / 2);
    /* what fails there undoes all */
    struct mlo_params zero = MLO_PARAMS_INIT;
    mlo_param_i64(&zero, 0);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    put(f, 5000);
    assert_mlo_ok(mlo_db_queue_last(f->conn, &sql[2], &zero, &f->err), &f->err);
    assert_int_equal(mlo_db_end(f->conn, MLO_OK, &f->err), MLO_EINVAL);
    assert_non_null(strstr(f->err.message, "t_divide"));
    assert_true(sum(f, 10000) == 1000 + 70 * 71 / 2);
}

/* Whether the log is on disk up to where it stood when the caller asked. */
static bool on_disk(struct pg_fixture *f, int64_t lsn)
{
    char text[96];
    snprintf(text, sizeof text, "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn >= %lld)::int",
             (long long)lsn);
    return pg_fixture_number(f->owner, text) == 1;
}

static int64_t end_of_log(struct pg_fixture *f)
{
    return pg_fixture_number(f->owner, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
}

static void test_early__answers_when_it_is_on_disk(void **state)
{
    struct pg_fixture *f = *state;
    make_table(f);
    assert_mlo_status(mlo_db_unlock_early(f->conn, &f->err), MLO_EINTERNAL, &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_unlock_early(f->conn, &f->err), &f->err);
    assert_mlo_status(mlo_db_settle(f->conn, &f->err), MLO_EINTERNAL, &f->err);
    put(f, 1);
    assert_mlo_ok(mlo_db_flush(f->conn, &f->err), &f->err);
    int64_t written = end_of_log(f);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_true(on_disk(f, written));
    assert_true(sum(f, 1000) == 1);
    /* the session is as it was */
    PGresult *r = PQexec(mlo_db_pg(f->conn), "SHOW synchronous_commit");
    assert_string_equal(PQgetvalue(r, 0, 0), "on");
    PQclear(r);
    /* what another session left to the log writer */
    struct mlo_db_conn *other;
    assert_mlo_ok(mlo_db_acquire(f->owner, &other, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(other, "BEGIN; SET LOCAL synchronous_commit = off", &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(other, "CREATE TABLE late (i int); COMMIT", &f->err), &f->err);
    written = end_of_log(f);
    assert_mlo_ok(mlo_db_settle(f->conn, &f->err), &f->err);
    assert_true(on_disk(f, written));
    mlo_db_release(other);
    /* a failure is one of the transaction */
    struct mlo_params zero = MLO_PARAMS_INIT;
    mlo_param_i64(&zero, 0);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_unlock_early(f->conn, &f->err), &f->err);
    put(f, 2);
    assert_mlo_ok(mlo_db_queue(f->conn, &sql[2], &zero, NULL, &f->err), &f->err);
    assert_int_equal(mlo_db_end(f->conn, MLO_OK, &f->err), MLO_EINVAL);
    assert_true(sum(f, 1000) == 1);
}

static void as_superuser(struct pg_fixture *f, const char *text)
{
    char *admin = mlo_embedded_conninfo(f->pg, NULL, f->database);
    PGconn *pg = PQconnectdb(admin);
    PGresult *r = PQexec(pg, text);
    assert_int_equal(PQresultStatus(r), PGRES_COMMAND_OK);
    PQclear(r);
    PQfinish(pg);
    free(admin);
}

/* Where the role may not emit a message: the commits of before. */
static void test_early__without_the_right_is_an_ordinary_commit(void **state)
{
    struct pg_fixture *f = *state;
    as_superuser(f, "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) FROM PUBLIC");
    make_table(f);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_unlock_early(f->conn, &f->err), &f->err);
    put(f, 4);
    assert_mlo_ok(mlo_db_flush(f->conn, &f->err), &f->err);
    int64_t written = end_of_log(f);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    assert_true(on_disk(f, written));
    assert_mlo_ok(mlo_db_settle(f->conn, &f->err), &f->err);
    assert_true(sum(f, 1000) == 4);
}

/* --- migrations -------------------------------------------------------------------------------- */

static void test_migrate__twice_is_once(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *owner;
    int applied;
    size_t count;
    mlo_migrations(&count);
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(mlo_migrate(owner, &applied, &f->err), &f->err);
    assert_int_equal(applied, (int)count);
    assert_mlo_ok(mlo_migrate(owner, &applied, &f->err), &f->err);
    assert_int_equal(applied, 0);
    assert_mlo_ok(mlo_migrate_check(owner, &f->err), &f->err);
    mlo_db_release(owner);
}

static const struct mlo_migration one = {1, "0001_a", "CREATE TABLE a (i int)", 22};
static const struct mlo_migration one_edited = {1, "0001_a", "CREATE TABLE b (i int)", 22};
static const struct mlo_migration two = {2, "0002_b", "CREATE TABLE c (i int); SELECT nonsense", 39};

static void test_migrate__newer_and_edited_are_refused(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *owner;
    int applied;
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(mlo_migrate_set(owner, &one, 1, &applied, &f->err), &f->err);
    assert_mlo_status(mlo_migrate_set(owner, &one_edited, 1, &applied, &f->err), MLO_ECONFLICT, &f->err);
    assert_non_null(strstr(f->err.message, "0001_a"));
    assert_mlo_status(mlo_migrate_set(owner, NULL, 0, &applied, &f->err), MLO_ECONFLICT, &f->err);
    assert_non_null(strstr(f->err.hint, "newer"));
    mlo_db_release(owner);
}

/* "REVOKE ALL ON FUNCTION a(), b(integer) FROM PUBLIC" of functions that the same file makes takes nothing
 * from anybody: it is blanked out. */
static void blank_own_revokes(char *plain)
{
    static const char begin[] = "revoke all on function ", end[] = " from public;";
    for (char *at = plain; (at = strcasestr(at, begin)); at++) {
        char *last = strcasestr(at, end), name[80], made[120];
        bool own = last != NULL;
        for (char *p = at + sizeof begin - 1; own && p < last;) {
            size_t length = strcspn(p, "(");
            snprintf(name, sizeof name, "%.*s", (int)MLO_MIN(length, sizeof name - 1), p);
            snprintf(made, sizeof made, "create function %s(", name);
            own = strcasestr(plain, made) != NULL;
            p += strcspn(p, ")") + 1;
            p += strspn(p, ", ");
        }
        if (own)
            memset(at, '.', sizeof begin - 1);
    }
}

/* One space between words, none of the comments, and no revokes that take nothing away. */
static void plain_sql(const char *text, struct mlo_buf *out)
{
    for (const char *at = text; *at;) {
        if (at[0] == '-' && at[1] == '-') {
            at += strcspn(at, "\n");
        } else if (strchr(" \t\r\n", *at)) {
            at += strspn(at, " \t\r\n");
            mlo_buf_append(out, " ", 1);
        } else {
            mlo_buf_append(out, at++, 1);
        }
    }
    assert_true(mlo_buf_ok(out));
    blank_own_revokes((char *)mlo_buf_str(out));
}

/* Whether a table of the name that begins at `name` is made by the same file. */
static bool makes_table(const char *plain, const char *name)
{
    char made[120];
    int size = snprintf(made, sizeof made, "create table %.*s", (int)strcspn(name, " (;"), name);
    for (const char *at = plain; (at = strcasestr(at, made)); at++)
        if (strchr(" (", at[size]))
            return true;
    return false;
}

/* What is wrong with a statement behind "alter table", where words may be left out; NULL: nothing. */
static const char *changes_table(const char *at)
{
    char *statement = strndup(at, strcspn(at, ";"));
    assert_non_null(statement);
    const char *why = strcasestr(statement, " alter ") ? "alter table … alter" : NULL;
    int depth = 0;
    for (char *c = statement, *action = c; !why; c++) { /* a comma outside parentheses ends an action */
        depth += (*c == '(') - (*c == ')');
        if (*c && (*c != ',' || depth))
            continue;
        bool last = !*c;
        *c = '\0';
        if (strcasestr(action, " not null") && !strcasestr(action, " default "))
            why = "alter table … not null";
        if (last)
            break;
        action = c + 1;
    }
    free(statement);
    return why;
}

/* What a migration that says it only adds must not do to programs that do not know it: the words of
 * migrations/README.md. NULL: it does not. */
static const char *takes_away(const char *plain)
{
    static const char *const anywhere[] = {"drop ",        "rename",     "revoke",         "set not null",
                                           "alter column", "truncate",   "add constraint", "add check",
                                           "add foreign",  "add unique", "add primary",    "add exclude"};
    static const char table[] = "alter table ", unique[] = "create unique index ";
    const char *why = NULL;
    for (size_t word = 0; word < MLO_COUNT(anywhere); word++)
        if (strcasestr(plain, anywhere[word]))
            return anywhere[word];
    for (const char *at = plain; !why && (at = strcasestr(at, table));) {
        at += sizeof table - 1;
        why = changes_table(at);
    }
    for (const char *at = plain; !why && (at = strcasestr(at, unique));) {
        at += sizeof unique - 2; /* it may have no name */
        const char *on = strcasestr(at, " on ");
        if (!on || !makes_table(plain, on + sizeof " on " - 1))
            why = "create unique index";
    }
    return why;
}

static const struct {
    const char *sql, *why; /* NULL: it only adds */
} taken_away[] = {
    {"ALTER TABLE t ADD COLUMN c int; ALTER TABLE u ADD d int NOT NULL DEFAULT 0;", NULL},
    {"CREATE TABLE u (d int DEFAULT 0); ALTER TABLE t ADD c int NOT NULL;", "alter table … not null"},
    {"ALTER TABLE t ADD c int NOT NULL, ADD d numeric(4, 2) DEFAULT 0;", "alter table … not null"},
    {"ALTER TABLE t ADD c numeric(4, 2) NOT NULL DEFAULT 0, ADD d int;", NULL},
    {"CREATE FUNCTION f() …; CREATE FUNCTION g(i integer) …; REVOKE ALL ON FUNCTION f(), g(integer) FROM "
     "PUBLIC;",
     NULL},
    {"CREATE FUNCTION f() …; REVOKE ALL ON FUNCTION f(), older() FROM PUBLIC;", "revoke"},
    {"CREATE TABLE t (a int); CREATE UNIQUE INDEX version_on ON t (a); CREATE INDEX j ON u (a);", NULL},
    {"CREATE TABLE tables(a int); CREATE UNIQUE INDEX i ON t (a);", "create unique index"},
    {"CREATE TABLE t (a int);\nCREATE UNIQUE INDEX ON t (a);\nCREATE UNIQUE INDEX i\n    ON u (a);",
     "create unique index"},
    {"-- DROP TABLE t\nCREATE TABLE t (dropped int);", NULL},
    {"ALTER TABLE t ADD COLUMN c int, DROP d;", "drop "},
    {"alter table t\n    drop d;", "drop "},
    {"DROP INDEX i;", "drop "},
    {"ALTER TABLE t ADD COLUMN c int, ALTER d TYPE text;", "alter table … alter"},
    {"ALTER TABLE t ADD c int; ALTER TABLE t ALTER d SET DEFAULT 1;", "alter table … alter"},
    {"ALTER VIEW v ALTER COLUMN d SET DEFAULT 1;", "alter column"},
};

static void test_migrate__additive_ones_take_nothing_away(void **state)
{
    size_t count;
    const struct mlo_migration *all = mlo_migrations(&count);
    MLO_UNUSED(state);
    assert_true(mlo_migration_additive(&(struct mlo_migration){1, "a", "-- additive: a column\n", 23}));
    assert_false(mlo_migration_additive(&(struct mlo_migration){1, "a", "-- additives\n", 13}));
    for (size_t i = 0; i < MLO_COUNT(taken_away); i++) {
        struct mlo_buf plain = MLO_BUF_INIT;
        plain_sql(taken_away[i].sql, &plain);
        const char *why = takes_away(mlo_buf_str(&plain)), *wanted = taken_away[i].why;
        if (!why != !wanted || (why && strcmp(why, wanted) != 0))
            fail_msg("%s: '%s' instead of '%s'", taken_away[i].sql, why ? why : "", wanted ? wanted : "");
        mlo_buf_clear(&plain);
    }
    for (size_t i = 0; i < count; i++) {
        struct mlo_buf plain = MLO_BUF_INIT;
        if (!mlo_migration_additive(&all[i]))
            continue;
        plain_sql(all[i].text, &plain);
        const char *why = takes_away(mlo_buf_str(&plain));
        if (why)
            fail_msg("migration %s says that it only adds, and has '%s'", all[i].name, why);
        mlo_buf_clear(&plain);
    }
}

static void test_migrate__failing_script_leaves_nothing(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *owner;
    struct mlo_migration set[] = {one, two};
    int applied;
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_true(mlo_migrate_set(owner, set, 2, &applied, &f->err) != MLO_OK);
    assert_non_null(strstr(f->err.message, "0002_b"));
    assert_int_equal(applied, 1);
    assert_true(mlo_db_exec_text(owner, "SELECT * FROM c", &f->err) != MLO_OK);
    mlo_db_release(owner);
}

static void *migrate_in_thread(void *arg)
{
    struct pg_fixture *f = arg;
    struct mlo_db_conn *owner;
    struct mlo_error err = {0};
    if (mlo_db_acquire(f->owner, &owner, &err) != MLO_OK)
        return "no connection";
    enum mlo_status status = mlo_migrate(owner, NULL, &err);
    mlo_db_release(owner);
    return status == MLO_OK ? NULL : "a concurrent migration failed";
}

/* A table that somebody reads for long, as a backup does, is waited for, but nobody queues up behind that. */
static void test_migrate__readers_do_not_wait_for_it(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *owner, *backup;
    pthread_t thread;
    void *problem;
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(mlo_migrate(owner, NULL, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(owner, "ALTER TABLE mlopt.schema_migration DROP COLUMN additive", &f->err),
                  &f->err); /* as an older release left it */
    mlo_db_release(owner);
    assert_mlo_ok(mlo_db_acquire(f->owner, &backup, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(backup, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(backup,
                                   "SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE "
                                   "mlopt.schema_migration IN ACCESS SHARE MODE",
                                   &f->err),
                  &f->err);
    assert_int_equal(pthread_create(&thread, NULL, migrate_in_thread, f), 0);
    uint64_t until = mlo_clock_ns() + 60000000000ull;
    while (!pg_fixture_number(f->owner, "select count(*) from pg_locks where not granted and relation = "
                                        "'mlopt.schema_migration'::regclass") &&
           mlo_clock_ns() < until)
        mlo_clock_sleep_ms(20);
    assert_true(mlo_clock_ns() < until);
    /* it would wait for ever: the backup ends after it */
    assert_true(pg_fixture_number(f->owner, "select count(*) from mlopt.schema_migration") > 0);
    assert_mlo_ok(mlo_db_end(backup, MLO_OK, &f->err), &f->err);
    mlo_db_release(backup);
    pthread_join(thread, &problem);
    assert_null(problem);
    assert_int_equal(
        pg_fixture_number(f->owner, "select count(*) from mlopt.schema_migration where additive"), 0);
}

static void test_migrate__several_at_once(void **state)
{
    struct pg_fixture *f = *state;
    pthread_t threads[3];
    for (size_t i = 0; i < MLO_COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, migrate_in_thread, f), 0);
    for (size_t i = 0; i < MLO_COUNT(threads); i++) {
        void *problem;
        pthread_join(threads[i], &problem);
        assert_null(problem);
    }
}

/* --- roles ------------------------------------------------------------------------------------- */

static void test_roles__history_cannot_be_changed(void **state)
{
    struct pg_fixture *f = *state;
    static const char *const tables[] = {"audit",   "stage_move",   "release",         "release_variant",
                                         "version", "version_blob", "dataset_version", "dataset_blob",
                                         "variant", "derivation",   "lineage_edge",    "evidence"};
    struct mlo_db *pools[] = {f->server, f->worker};
    for (size_t d = 0; d < MLO_COUNT(pools); d++) {
        struct mlo_db_conn *conn;
        assert_mlo_ok(mlo_db_acquire(pools[d], &conn, &f->err), &f->err);
        for (size_t i = 0; i < MLO_COUNT(tables); i++) {
            const char *column = strcmp(tables[i], "audit") == 0 ? "body" : NULL;
            char text[200];
            snprintf(text, sizeof text, "DELETE FROM %s", tables[i]);
            assert_mlo_status(mlo_db_exec_text(conn, text, &f->err), MLO_EFORBIDDEN, &f->err);
            assert_string_equal(mlo_db_sqlstate(conn), "42501");
            snprintf(text, sizeof text, "TRUNCATE %s CASCADE", tables[i]);
            assert_mlo_status(mlo_db_exec_text(conn, text, &f->err), MLO_EFORBIDDEN, &f->err);
            if (column) {
                snprintf(text, sizeof text, "UPDATE %s SET %s = %s", tables[i], column, column);
                assert_mlo_status(mlo_db_exec_text(conn, text, &f->err), MLO_EFORBIDDEN, &f->err);
                assert_string_equal(mlo_db_sqlstate(conn), "42501");
            }
        }
        static const char *const refused[] = {"UPDATE audit_head SET seq = 0",
                                              "INSERT INTO audit VALUES (0, 1, '', '', '')",
                                              "DROP TABLE audit",
                                              "ALTER TABLE audit DISABLE TRIGGER ALL",
                                              "UPDATE stage_move SET reason = ''",
                                              "UPDATE evidence SET value = 0",
                                              "UPDATE version SET manifest = ''",
                                              "UPDATE variant SET name = 'a'"};
        for (size_t i = 0; i < MLO_COUNT(refused); i++)
            assert_mlo_status(mlo_db_exec_text(conn, refused[i], &f->err), MLO_EFORBIDDEN, &f->err);
        mlo_db_release(conn);
    }
}

static void test_roles__triggers_refuse_even_with_too_many_grants(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *owner;
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(
        mlo_db_exec_text(owner, "SELECT audit_append(0, '{}'); GRANT ALL ON audit TO mlopt_server", &f->err),
        &f->err);
    static const char *const refused[] = {"UPDATE audit SET body = 'x'", "DELETE FROM audit",
                                          "TRUNCATE audit"};
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        assert_mlo_status(mlo_db_exec_text(f->conn, refused[i], &f->err), MLO_EFORBIDDEN, &f->err);
        assert_non_null(strstr(f->err.message, "history"));
    }
    mlo_db_release(owner);
}

static void test_roles__worker_sees_no_tokens(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *worker;
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    assert_mlo_status(mlo_db_exec_text(worker, "SELECT * FROM token", &f->err), MLO_EFORBIDDEN, &f->err);
    assert_mlo_status(mlo_db_exec_text(worker, "UPDATE stage SET generation = 1", &f->err), MLO_EFORBIDDEN,
                      &f->err);
    mlo_db_release(worker);
}

#define WITH_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup, pg_fixture_teardown)
#define WITH_EMPTY_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup_empty, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DB(test_db__values_pass_through),
        WITH_DB(test_db__wrong_parameter_count_is_found),
        WITH_DB(test_db__failed_inner_transaction_undoes_the_outer),
        WITH_DB(test_db__pool_is_bounded),
        WITH_DB(test_db__broken_connection_heals),
        cmocka_unit_test(test_db__absent_server_is_unavailable),
        WITH_DB(test_db__error_of_a_statement_names_it),
        WITH_DB(test_queue__runs_in_order_before_who_waits),
        WITH_DB(test_queue__what_fails_is_told_and_undoes_all),
        WITH_DB(test_queue__a_commit_that_rolls_back_is_told),
        WITH_DB(test_queue__an_inner_transaction_waits_for_its_own),
        WITH_DB(test_queue__a_broken_connection_is_told),
        WITH_DB(test_queue__a_connection_that_takes_nothing_is_told),
        WITH_DB(test_ahead__answers_once_and_what_was_asked),
        WITH_DB(test_last__runs_behind_all_or_not_at_all),
        WITH_DB(test_early__answers_when_it_is_on_disk),
        WITH_DB(test_early__without_the_right_is_an_ordinary_commit),
        WITH_EMPTY_DB(test_migrate__twice_is_once),
        WITH_EMPTY_DB(test_migrate__newer_and_edited_are_refused),
        cmocka_unit_test(test_migrate__additive_ones_take_nothing_away),
        WITH_EMPTY_DB(test_migrate__failing_script_leaves_nothing),
        WITH_EMPTY_DB(test_migrate__several_at_once),
        WITH_EMPTY_DB(test_migrate__readers_do_not_wait_for_it),
        WITH_DB(test_roles__history_cannot_be_changed),
        WITH_DB(test_roles__triggers_refuse_even_with_too_many_grants),
        WITH_DB(test_roles__worker_sees_no_tokens),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
