/* Connections that are lost without a word: half open, and those that a pool holds over PostgreSQL's end. */
#include <signal.h>

#include "tests/fault/campaign_proxy.h"
#include "tests/pg_fixture.h"

enum { ANSWER_MS = 400, LONG_MS = 60000 };

struct lost {
    struct pg_fixture *f;
    struct proxy proxy;
    struct mlo_db *db;
};

/* A pool of one connection through a proxy. */
static void open_lost(struct lost *t, struct pg_fixture *f, uint32_t answer_ms)
{
    char conninfo[200], *direct = mlo_embedded_conninfo(f->pg, NULL, f->database),
                        *path = pg_socket_of(direct);
    *t = (struct lost){.f = f};
    assert_true(proxy_start(&t->proxy, path, INADDR_LOOPBACK));
    free(path);
    free(direct);
    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%u user=" MLO_ROLE_SERVER " dbname=%s",
             t->proxy.port, f->database);
    const struct mlo_db_options how = {
        .conninfo = conninfo, .max_connections = 1, .answer_timeout_ms = answer_ms};
    assert_mlo_ok(mlo_db_open(&how, &t->db, &f->err), &f->err);
}

static void close_lost(struct lost *t)
{
    mlo_db_close(t->db);
    proxy_stop(&t->proxy);
}

/* Nothing passes on the connections that there are; waits until the proxy knows. */
static void mute(struct lost *t)
{
    atomic_store(&t->proxy.order, PROXY_MUTE);
    for (uint64_t until = mlo_clock_ns() + LONG_MS * 1000000ull; atomic_load(&t->proxy.order) != PROXY_PASS;
         mlo_clock_sleep_ms(1))
        assert_true(mlo_clock_ns() < until);
}

static void test_half_open__is_given_up_and_replaced(void **state)
{
    struct lost t;
    struct pg_fixture *f = *state;
    struct mlo_db_conn *conn;
    open_lost(&t, f, LONG_MS);
    assert_mlo_ok(mlo_db_ping(t.db, &f->err), &f->err);
    assert_mlo_ok(mlo_db_acquire(t.db, &conn, &f->err), &f->err);
    mute(&t);
    mlo_db_patience(ANSWER_MS);
    assert_mlo_status(mlo_db_exec_text(conn, "SELECT 1", &f->err), MLO_EUNAVAILABLE, &f->err);
    mlo_db_patience(0);
    assert_non_null(strstr(f->err.message, "no answer"));
    mlo_db_release(conn);
    assert_mlo_ok(mlo_db_ping(t.db, &f->err), &f->err);
    close_lost(&t);
}

/* A batch waits for several answers, and for the end of the pipeline. */
static void test_half_open__is_given_up_in_a_transaction(void **state)
{
    struct lost t;
    struct pg_fixture *f = *state;
    struct mlo_db_conn *conn;
    static const struct mlo_sql one = {"lost_one", "SELECT 1", 0};
    open_lost(&t, f, LONG_MS);
    assert_mlo_ok(mlo_db_acquire(t.db, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec(conn, &one, NULL, NULL, &f->err), &f->err);
    mute(&t);
    mlo_db_patience(ANSWER_MS);
    assert_mlo_ok(mlo_db_begin(conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_queue(conn, &one, NULL, NULL, &f->err), &f->err);
    assert_mlo_status(mlo_db_end(conn, MLO_OK, &f->err), MLO_EUNAVAILABLE, &f->err);
    mlo_db_patience(0);
    mlo_db_release(conn);
    assert_mlo_ok(mlo_db_ping(t.db, &f->err), &f->err);
    close_lost(&t);
}

/* The thread's patience is the shorter one; what is slow and answers is waited for. */
static void test_patience__is_the_thread_s(void **state)
{
    struct lost t;
    struct pg_fixture *f = *state;
    struct mlo_db_conn *conn;
    open_lost(&t, f, LONG_MS);
    assert_mlo_ok(mlo_db_acquire(t.db, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, "SELECT pg_sleep(0.8)", &f->err), &f->err);
    mlo_db_patience(ANSWER_MS);
    mlo_db_unhurried(conn, true);
    assert_mlo_ok(mlo_db_exec_text(conn, "SELECT pg_sleep(0.8)", &f->err), &f->err);
    mlo_db_unhurried(conn, false);
    assert_mlo_status(mlo_db_exec_text(conn, "SELECT pg_sleep(60)", &f->err), MLO_EUNAVAILABLE, &f->err);
    mlo_db_patience(0);
    mlo_db_release(conn);
    close_lost(&t);
}

/* The farewell of an immediate shutdown is a warning, and what is sent after it only fails to be written:
 * libpq calls such a connection good. */
static void test_pool__has_no_connection_of_a_postgresql_that_ended(void **state)
{
    struct pg_fixture *f = *state;
    uint64_t until = mlo_clock_ns() + 60 * 1000000000ull;
    enum mlo_status status;
    assert_mlo_ok(mlo_db_ping(f->owner, &f->err), &f->err);
    kill(mlo_embedded_pid(f->pg), SIGQUIT);
    while ((status = mlo_embedded_restart(f->pg, &f->err)) == MLO_ECONFLICT && mlo_clock_ns() < until)
        mlo_clock_sleep_ms(10);
    assert_mlo_ok(status, &f->err);
    assert_mlo_ok(mlo_db_ping(f->owner, &f->err), &f->err);
}

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_half_open__is_given_up_and_replaced),
        T(test_half_open__is_given_up_in_a_transaction),
        T(test_patience__is_the_thread_s),
        T(test_pool__has_no_connection_of_a_postgresql_that_ended),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
