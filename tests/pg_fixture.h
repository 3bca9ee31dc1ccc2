/* A private PostgreSQL per test program, a fresh migrated database per test.
 *
 *     int main(void) {
 *         const struct CMUnitTest tests[] = {
 *             cmocka_unit_test_setup_teardown(test_thing__works, pg_fixture_setup, pg_fixture_teardown)};
 *         return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
 *     }
 *
 * A test's *state is then its struct pg_fixture. */
#ifndef MLO_TESTS_PG_FIXTURE_H
#define MLO_TESTS_PG_FIXTURE_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "registry/registry.h"

/* Fails the test with the error's own words. */
#define assert_mlo_ok(expr, err)                                                                             \
    do {                                                                                                     \
        enum mlo_status status_ = (expr);                                                                    \
        if (status_ != MLO_OK)                                                                               \
            fail_msg("%s: %s: %s [%s]", #expr, mlo_status_info(status_)->code, (err)->message,               \
                     (err)->where);                                                                          \
    } while (0)

#define assert_mlo_status(expr, wanted, err)                                                                 \
    do {                                                                                                     \
        enum mlo_status status_ = (expr);                                                                    \
        if (status_ != (wanted))                                                                             \
            fail_msg("%s: %s instead of %s: %s", #expr, mlo_status_info(status_)->code,                      \
                     mlo_status_info(wanted)->code, status_ == MLO_OK ? "" : (err)->message);                \
    } while (0)

struct pg_fixture {
    struct mlo_embedded *pg; /* shared by the program's tests */
    char database[32];
    struct mlo_db *owner, *server, *worker;
    struct mlo_db_conn *conn; /* a leased connection of the server's role */
    struct mlo_error err;
};

static struct mlo_embedded *pg_fixture_server;
static char *pg_fixture_dir;

/* A pool for this role (MLO_ROLE_SERVER …) on this test's database. Yours (mlo_db_close). */
static inline struct mlo_db *pg_fixture_pool(const struct pg_fixture *f, const char *role,
                                             unsigned max_connections)
{
    struct mlo_error err = {0};
    struct mlo_db *db = NULL;
    char *conninfo = mlo_embedded_conninfo(f->pg, role, f->database);
    struct mlo_db_options options = {.conninfo = conninfo,
                                     .max_connections = max_connections,
                                     .wait_ms = 120000,
                                     .statement_timeout_ms = 300000};
    assert_mlo_ok(mlo_db_open(&options, &db, &err), &err);
    free(conninfo);
    return db;
}

/* The program's database "migrated", which those of its tests are copies of. */
static inline void pg_fixture_migrate(void)
{
    static bool done;
    struct pg_fixture f = {.pg = pg_fixture_server, .database = "migrated"};
    struct mlo_db_conn *owner;
    if (done)
        return;
    char *admin = mlo_embedded_conninfo(f.pg, NULL, "postgres");
    assert_mlo_ok(mlo_db_bootstrap(admin, f.database, &f.err), &f.err);
    free(admin);
    f.owner = pg_fixture_pool(&f, MLO_ROLE_OWNER, 1);
    assert_mlo_ok(mlo_db_acquire(f.owner, &owner, &f.err), &f.err);
    assert_mlo_ok(mlo_migrate(owner, NULL, &f.err), &f.err);
    mlo_db_release(owner);
    mlo_db_close(f.owner);
    done = true;
}

/* Makes `cluster`: one that has the database "migrated". */
static inline int pg_fixture_make_cluster(const char *folder, const char *cluster)
{
    struct mlo_error err = {0};
    char *dir = mlo_fs_join(folder, "new", NULL), *fresh = mlo_fs_join(dir, "cluster", NULL);
    struct mlo_embedded_options options = {.dir = dir, .no_fsync = true};
    mlo_fs_remove_tree(dir);
    assert_mlo_ok(mlo_embedded_start(&options, &pg_fixture_server, &err), &err);
    pg_fixture_migrate();
    mlo_embedded_stop(pg_fixture_server);
    pg_fixture_server = NULL;
    int bad = rename(fresh, cluster);
    mlo_fs_remove_tree(dir);
    free(dir);
    free(fresh);
    return bad;
}

/* $MLOPT_TEST_CLUSTERS names a folder where programs that run beside each other and in a row share a cluster
 * to begin with, by what its migrations are: a copy costs a tenth of a second, initdb and migrations one and
 * a half. Without it a program makes its own. */
static inline int pg_fixture_copy_cluster(const char *dir)
{
    const char *folder = getenv("MLOPT_TEST_CLUSTERS");
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE];
    size_t count;
    int code = 0;
    if (!folder || !*folder)
        return 0;
    const struct mlo_migration *migrations = mlo_migrations(&count);
    for (size_t i = 0; i < count; i++)
        mlo_buf_append(&text, migrations[i].text, migrations[i].size);
    mlo_digest_of(text.data, text.len, &digest);
    mlo_buf_clear(&text);
    assert_mlo_ok(mlo_fs_mkdirs(folder, &err), &err);
    char *cluster = mlo_fs_join(folder, mlo_digest_hex(&digest, hex), NULL);
    char *lock = mlo_fs_join(folder, "lock", NULL), *copy = mlo_fs_join(dir, "cluster", NULL);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int bad = fd < 0 || flock(fd, LOCK_EX) != 0 ||
              (!mlo_fs_exists(cluster) && pg_fixture_make_cluster(folder, cluster) != 0);
    if (fd >= 0)
        close(fd);
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = (const char *const[]){"/bin/cp", "-a", cluster, copy, NULL};
    if (!bad) {
        assert_mlo_ok(mlo_fs_mkdirs_private(dir, &err), &err);
        assert_mlo_ok(mlo_process_run(&o, 600000, 0, NULL, &code, &err), &err);
    }
    free(cluster);
    free(lock);
    free(copy);
    return bad || code ? -1 : 0;
}

/* Group setup: starts the server in a folder under /tmp. */
static inline int pg_fixture_start(void **state)
{
    struct mlo_error err = {0};
    MLO_UNUSED(state);
    if (mlo_fs_tempdir(NULL, "mlopt-pg-", &pg_fixture_dir, &err) != MLO_OK ||
        chmod(pg_fixture_dir, 0755) != 0) {
        print_error("no folder for PostgreSQL: %s\n", err.message);
        return -1;
    }
    char *dir = mlo_fs_join(pg_fixture_dir, "pg", NULL);
    struct mlo_embedded_options options = {.dir = dir, .no_fsync = true};
    if (pg_fixture_copy_cluster(dir) != 0) {
        print_error("no cluster to begin with in $MLOPT_TEST_CLUSTERS\n");
        free(dir);
        return -1;
    }
    enum mlo_status status = mlo_embedded_start(&options, &pg_fixture_server, &err);
    free(dir);
    if (status != MLO_OK) {
        print_error("PostgreSQL does not start: %s (%s)\n", err.message, err.where);
        return -1;
    }
    return 0;
}

/* Group teardown. */
static inline int pg_fixture_stop(void **state)
{
    MLO_UNUSED(state);
    mlo_embedded_stop(pg_fixture_server);
    mlo_fs_remove_tree(pg_fixture_dir);
    free(pg_fixture_dir);
    pg_fixture_server = NULL;
    pg_fixture_dir = NULL;
    return 0;
}

static inline struct pg_fixture *pg_fixture_new(void)
{
    static int number;
    struct pg_fixture *f = calloc(1, sizeof *f);
    f->pg = pg_fixture_server;
    snprintf(f->database, sizeof f->database, "test_%d", ++number);
    return f;
}

static inline int pg_fixture_open(struct pg_fixture *f, void **state)
{
    f->owner = pg_fixture_pool(f, MLO_ROLE_OWNER, 4);
    f->server = pg_fixture_pool(f, MLO_ROLE_SERVER, 32);
    f->worker = pg_fixture_pool(f, MLO_ROLE_WORKER, 8);
    *state = f;
    return 0;
}

/* Runs the statement as this pool's role: the number in its first row, 0 without rows. */
static inline int64_t pg_fixture_number(struct mlo_db *db, const char *sql)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    int64_t n = 0;
    assert_mlo_ok(mlo_db_acquire(db, &conn, &err), &err);
    PGresult *r = PQexec(mlo_db_pg(conn), sql);
    if (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQresultErrorMessage(r));
    if (PQntuples(r))
        assert_true(mlo_str_to_i64(PQgetvalue(r, 0, 0), &n));
    PQclear(r);
    mlo_db_release(conn);
    return n;
}

/* Test setup with an empty, not migrated database: for tests of migrations. */
static inline int pg_fixture_setup_empty(void **state)
{
    struct pg_fixture *f = pg_fixture_new();
    char *admin = mlo_embedded_conninfo(f->pg, NULL, "postgres");
    assert_mlo_ok(mlo_db_bootstrap(admin, f->database, &f->err), &f->err);
    free(admin);
    return pg_fixture_open(f, state);
}

/* Test setup: the migrated schema, and f->conn as the server. */
static inline int pg_fixture_setup(void **state)
{
    char sql[128];
    struct mlo_db_conn *admin;
    pg_fixture_migrate();
    struct pg_fixture *f = pg_fixture_new();
    char *conninfo = mlo_embedded_conninfo(f->pg, NULL, "postgres");
    struct mlo_db *db = NULL;
    struct mlo_db_options options = {
        .conninfo = conninfo, .max_connections = 1, .statement_timeout_ms = 300000};
    assert_mlo_ok(mlo_db_open(&options, &db, &f->err), &f->err);
    assert_mlo_ok(mlo_db_acquire(db, &admin, &f->err), &f->err);
    snprintf(sql, sizeof sql, "CREATE DATABASE %s OWNER " MLO_ROLE_OWNER " TEMPLATE migrated", f->database);
    assert_mlo_ok(mlo_db_exec_text(admin, sql, &f->err), &f->err);
    mlo_db_release(admin);
    mlo_db_close(db);
    free(conninfo);
    pg_fixture_open(f, state);
    assert_mlo_ok(mlo_db_acquire(f->server, &f->conn, &f->err), &f->err);
    return 0;
}

static inline int pg_fixture_teardown(void **state)
{
    struct pg_fixture *f = *state;
    mlo_db_release(f->conn);
    mlo_db_close(f->owner);
    mlo_db_close(f->server);
    mlo_db_close(f->worker);
    free(f);
    return 0;
}

#endif
