/* The private PostgreSQL: starting again, kill -9 of its owner and of itself, long and forbidden folders. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/pg_fixture.h"

struct place {
    char *dir, *pg;
    struct mlo_error err;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    assert_mlo_ok(mlo_fs_tempdir(NULL, "embedded-", &p->dir, &p->err), &p->err);
    assert_int_equal(chmod(p->dir, 0755), 0);
    p->pg = mlo_fs_join(p->dir, "pg", NULL);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    mlo_fs_remove_tree(p->dir);
    free(p->dir);
    free(p->pg);
    free(p);
    return 0;
}

static enum mlo_status start(struct place *p, struct mlo_embedded **pg)
{
    struct mlo_embedded_options options = {.dir = p->pg, .no_fsync = true};
    return mlo_embedded_start(&options, pg, &p->err);
}

static struct mlo_db *pool(struct place *p, const struct mlo_embedded *pg)
{
    struct mlo_db *db;
    char *conninfo = mlo_embedded_conninfo(pg, MLO_ROLE_OWNER, NULL);
    struct mlo_db_options options = {.conninfo = conninfo, .max_connections = 2};
    assert_mlo_ok(mlo_db_open(&options, &db, &p->err), &p->err);
    free(conninfo);
    return db;
}

/* Runs SQL as the owner, on a connection of its own. */
static void run_sql(struct place *p, const struct mlo_embedded *pg, const char *text)
{
    struct mlo_db *db = pool(p, pg);
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(db, &conn, &p->err), &p->err);
    assert_mlo_ok(mlo_db_exec_text(conn, text, &p->err), &p->err);
    mlo_db_release(conn);
    mlo_db_close(db);
}

/* Whether the process ends within two minutes. One that nobody waits for (the init of a container may not)
 * has ended. */
static bool ends(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (int i = 0; i < 120 * 50; i++) {
        struct mlo_buf text = MLO_BUF_INIT;
        bool there = kill(pid, 0) == 0 && mlo_fs_read(path, 4096, &text, NULL) == MLO_OK;
        const char *name_end = there ? strrchr(mlo_buf_str(&text), ')') : NULL;
        bool zombie = name_end && mlo_str_starts(name_end, ") Z");
        mlo_buf_clear(&text);
        if (!there || zombie)
            return true;
        mlo_clock_sleep_ms(20);
    }
    return false;
}

static void test_embedded__keeps_its_data_over_a_restart(void **state)
{
    struct place *p = *state;
    struct mlo_embedded *pg, *second;
    assert_mlo_ok(start(p, &pg), &p->err);
    run_sql(p, pg, "CREATE SCHEMA kept; CREATE TABLE kept.t AS SELECT 42 AS i");
    /* only we can reach it */
    struct stat st;
    assert_int_equal(stat(p->pg, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    /* a second one on the same folder is refused, and the first lives on */
    assert_mlo_status(start(p, &second), MLO_ECONFLICT, &p->err);
    assert_non_null(strstr(p->err.message, "in use"));
    run_sql(p, pg, "SELECT i FROM kept.t");
    pid_t pid = mlo_embedded_pid(pg);
    mlo_embedded_stop(pg);
    assert_true(ends(pid));
    assert_mlo_ok(start(p, &pg), &p->err);
    run_sql(p, pg, "SELECT i FROM kept.t");
    mlo_embedded_stop(pg);
}

/* What `hold DIR` does: starts it, tells its process id, waits to be killed. */
static int hold(const char *dir)
{
    struct mlo_embedded *pg;
    struct mlo_error err = {0};
    struct mlo_embedded_options options = {.dir = dir, .no_fsync = true};
    if (mlo_embedded_start(&options, &pg, &err) != MLO_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("%d\n", (int)mlo_embedded_pid(pg));
    fflush(stdout);
    pause();
    mlo_embedded_stop(pg);
    return 0;
}

static void test_embedded__does_not_outlive_a_killed_owner(void **state)
{
    struct place *p = *state;
    struct mlo_embedded *pg;
    char *self = mlo_process_self(), line[32] = "";
    int out[2];
    pid_t owner;
    assert_int_equal(pipe(out), 0);
    const char *argv[] = {self, "hold", p->pg, NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv;
    o.stdout_fd = out[1];
    assert_mlo_ok(mlo_process_start(&o, &owner, &p->err), &p->err);
    close(out[1]);
    for (size_t n = 0; n < sizeof line - 1 && read(out[0], line + n, 1) == 1 && line[n] != '\n'; n++) {
    }
    close(out[0]);
    pid_t server = (pid_t)strtol(line, NULL, 10);
    assert_true(server > 1);
    assert_int_equal(kill(owner, SIGKILL), 0);
    waitpid(owner, NULL, 0);
    /* at once: the old server may still be stopping */
    assert_mlo_ok(start(p, &pg), &p->err);
    assert_true(ends(server));
    run_sql(p, pg, "SELECT 1");
    mlo_embedded_stop(pg);
    free(self);
}

static void test_embedded__recovers_when_it_was_killed_itself(void **state)
{
    struct place *p = *state;
    struct mlo_embedded *pg;
    assert_mlo_ok(start(p, &pg), &p->err);
    run_sql(p, pg, "CREATE SCHEMA kept; CREATE TABLE kept.t AS SELECT 42 AS i");
    struct mlo_db *db = pool(p, pg);
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(db, &conn, &p->err), &p->err);
    assert_int_equal(kill(mlo_embedded_pid(pg), SIGKILL), 0);
    /* its backend may notice the loss of its parent a little later */
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < 120 * 50 && status == MLO_OK; i++) {
        mlo_clock_sleep_ms(20);
        status = mlo_db_exec_text(conn, "SELECT 1", &p->err);
    }
    assert_int_equal(status, MLO_EUNAVAILABLE);
    assert_non_null(strstr(p->err.message, "PostgreSQL"));
    mlo_db_release(conn);
    assert_mlo_status(mlo_db_acquire(db, &conn, &p->err), MLO_EUNAVAILABLE, &p->err);
    assert_non_null(strstr(p->err.message, "not reachable"));
    mlo_embedded_stop(pg);
    assert_mlo_ok(start(p, &pg), &p->err);            /* over the stale pid file and socket */
    assert_mlo_ok(mlo_db_ping(db, &p->err), &p->err); /* the pool heals */
    run_sql(p, pg, "SELECT i FROM kept.t");
    mlo_db_close(db);
    mlo_embedded_stop(pg);
}

static void test_embedded__long_paths_get_a_short_socket(void **state)
{
    struct place *p = *state;
    struct mlo_embedded *pg;
    char name[101];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    free(p->pg);
    p->pg = mlo_fs_join(p->dir, name, "it's here", NULL);
    assert_mlo_ok(start(p, &pg), &p->err);
    run_sql(p, pg, "SELECT 1");
    char *conninfo = mlo_embedded_conninfo(pg, NULL, NULL);
    char *socket_dir = strdup(strchr(conninfo, '\'') + 1);
    *strchr(socket_dir, '\'') = '\0';
    assert_true(mlo_fs_exists(socket_dir));
    mlo_embedded_stop(pg);
    assert_false(mlo_fs_exists(socket_dir));
    free(socket_dir);
    free(conninfo);
}

static void test_embedded__unreachable_folder_is_one_clear_line(void **state)
{
    struct place *p = *state;
    struct mlo_embedded *pg;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chmod(p->dir, 0700), 0);
    assert_mlo_status(start(p, &pg), MLO_EFORBIDDEN, &p->err);
    assert_non_null(strstr(p->err.message, p->dir));
    assert_true(p->err.hint[0] != '\0');
}

static void test_embedded__missing_programs_are_one_clear_line(void **state)
{
    struct place *p = *state;
    struct mlo_embedded *pg;
    setenv("MLOPT_PG_BINDIR", "/nonexistent", 1);
    enum mlo_status status = start(p, &pg);
    unsetenv("MLOPT_PG_BINDIR");
    assert_int_equal(status, MLO_ENOTFOUND);
    assert_non_null(strstr(p->err.message, "/nonexistent"));
}

#define WITH_PLACE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "hold") == 0)
        return hold(argv[2]);
    const struct CMUnitTest tests[] = {
        WITH_PLACE(test_embedded__keeps_its_data_over_a_restart),
        WITH_PLACE(test_embedded__does_not_outlive_a_killed_owner),
        WITH_PLACE(test_embedded__recovers_when_it_was_killed_itself),
        WITH_PLACE(test_embedded__long_paths_get_a_short_socket),
        WITH_PLACE(test_embedded__unreachable_folder_is_one_clear_line),
        WITH_PLACE(test_embedded__missing_programs_are_one_clear_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
