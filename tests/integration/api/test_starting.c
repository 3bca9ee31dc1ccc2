/* What starts while PostgreSQL is away waits for it, and `mlopt doctor` says what the server says. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/integration/api/api_fixture.h"

static void stop_postgres(void)
{
    mlo_embedded_stop(pg_fixture_server);
    pg_fixture_server = NULL;
}

static void start_postgres(struct api *api)
{
    struct mlo_error err = {0};
    char *dir = mlo_fs_join(pg_fixture_dir, "pg", NULL);
    struct mlo_embedded_options options = {.dir = dir, .no_fsync = true};
    assert_mlo_ok(mlo_embedded_start(&options, &pg_fixture_server, &err), &err);
    api->pg->pg = pg_fixture_server;
    free(dir);
}

/* A worker process; what it logs goes to `log`. */
static pid_t start_worker(const char *database, const char *blobs, const char *dir, const char *wait,
                          const char *log)
{
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error err = {0};
    char *work = mlo_fs_join(dir, "work", NULL);
    const char *const argv[] = {getenv("MLOPT"), "worker", "--database", database, "--blobs", blobs,
                                "--work-dir",    work,     "--wait",     wait,     NULL};
    pid_t pid = -1;
    options.argv = argv;
    options.die_with_parent = true;
    options.stderr_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(options.stderr_fd >= 0);
    assert_mlo_ok(mlo_process_start(&options, &pid, &err), &err);
    close(options.stderr_fd);
    free(work);
    return pid;
}

static void wait_for_line(const char *log, const char *part)
{
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    for (;;) {
        struct mlo_buf text = MLO_BUF_INIT;
        bool there = mlo_fs_read(log, 1 << 20, &text, NULL) == MLO_OK && strstr(mlo_buf_str(&text), part);
        bool late = mlo_clock_ns() > until;
        if (late && !there)
            fail_msg("'%s' was not said: %s", part, mlo_buf_str(&text));
        mlo_buf_clear(&text);
        if (there)
            return;
        mlo_clock_sleep_ms(20);
    }
}

static int exit_of(pid_t pid)
{
    int how = 0;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    return WEXITSTATUS(how);
}

static void test_starting__a_worker_waits_for_the_database(void **state)
{
    struct api *api = *state;
    char *database = mlo_embedded_conninfo(api->pg->pg, MLO_ROLE_WORKER, api->pg->database),
         *log = mlo_fs_join(api->dir, "worker.log", NULL);
    struct mlo_buf blobs = MLO_BUF_INIT;
    mlo_buf_printf(&blobs, "file:%s/blobs", api->dir);
    stop_postgres();
    /* not for ever */
    pid_t pid = start_worker(database, mlo_buf_str(&blobs), api->dir, "1", log);
    assert_int_equal(exit_of(pid), 1);
    wait_for_line(log, "waiting for it");
    wait_for_line(log, "waited 1 s (--wait): PostgreSQL");
    /* told to end while it waits, it ends well */
    pid = start_worker(database, mlo_buf_str(&blobs), api->dir, "600", log);
    wait_for_line(log, "waiting for it");
    kill(pid, SIGTERM);
    assert_int_equal(exit_of(pid), 0);
    /* and it works once the database answers */
    pid = start_worker(database, mlo_buf_str(&blobs), api->dir, "600", log);
    wait_for_line(log, "waiting for it");
    start_postgres(api);
    wait_for_line(log, "PostgreSQL answers");
    wait_for_line(log, "worker started");
    kill(pid, SIGTERM);
    assert_int_equal(exit_of(pid), 0);
    mlo_buf_clear(&blobs);
    free(database);
    free(log);
}

static void test_starting__nobody_waits_for_a_schema(void **state)
{
    struct api *api = *state;
    char *empty = mlo_embedded_conninfo(api->pg->pg, MLO_ROLE_WORKER, "postgres"),
         *log = mlo_fs_join(api->dir, "worker.log", NULL);
    struct mlo_buf blobs = MLO_BUF_INIT, text = MLO_BUF_INIT;
    mlo_buf_printf(&blobs, "file:%s/blobs", api->dir);
    assert_int_not_equal(exit_of(start_worker(empty, mlo_buf_str(&blobs), api->dir, "600", log)), 0);
    assert_int_equal(mlo_fs_read(log, 1 << 20, &text, NULL), MLO_OK);
    assert_holds(mlo_buf_str(&text), "mlopt migrate");
    assert_null(strstr(mlo_buf_str(&text), "wait")); /* nor does it say so */
    mlo_buf_clear(&blobs);
    mlo_buf_clear(&text);
    free(empty);
    free(log);
}

/* What `mlopt doctor` says of the server at `url`; yours. */
static json_t *doctor(const char *url)
{
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    const char *const argv[] = {getenv("MLOPT"), "doctor", "-o", "json", "--url", url, NULL},
                      *const alone[] = {getenv("MLOPT"), "doctor", "-o", "json", NULL},
                      *const env[] = {"HOME=/nonexistent", "MLOPT_URL", "MLOPT_TOKEN", "XDG_CONFIG_HOME",
                                      NULL};
    int code = -1;
    options.argv = url ? argv : alone;
    options.env = env;
    assert_mlo_ok(mlo_process_run(&options, 120000, 1 << 20, &text, &code, &err), &err);
    assert_int_equal(code, 0);
    json_t *all = json_loads(mlo_buf_str(&text), 0, NULL);
    assert_non_null(all);
    mlo_buf_clear(&text);
    return all;
}

/* Until it says so: what a server says of itself may be a second old. */
static json_t *await_doctor(const char *url, const char *status)
{
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    for (;;) {
        json_t *all = doctor(url);
        const char *said = mlo_json_str(json_object_get(all, "server"), "status", "");
        if (strcmp(said, status) == 0)
            return all;
        if (mlo_clock_ns() > until)
            fail_msg("it says '%s' and not '%s'", said, status);
        json_decref(all);
        mlo_clock_sleep_ms(100);
    }
}

static void test_starting__the_doctor_asks_the_server(void **state)
{
    struct api *api = *state;
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%u", mlo_http_port(api->http));
    json_t *all = doctor(NULL);
    assert_null(json_object_get(all, "server")); /* none is configured */
    assert_true(json_array_size(json_object_get(all, "isolation")) > 0);
    json_decref(all);
    all = await_doctor(url, "ready");
    const json_t *server = json_object_get(all, "server");
    assert_string_equal(mlo_json_str(server, "url", ""), url);
    assert_string_equal(mlo_json_str(server, "from", ""), "--url");
    assert_true(json_array_size(json_object_get(server, "checks")) >= 4);
    json_decref(all);
    stop_postgres();
    all = await_doctor(url, "not ready");
    server = json_object_get(all, "server");
    assert_holds(mlo_json_str(server, "error", ""), "database");
    assert_false(mlo_json_bool(json_array_get(json_object_get(server, "checks"), 0), "ok", true));
    json_decref(all);
    start_postgres(api);
    json_decref(await_doctor(url, "ready"));
    all = doctor("http://127.0.0.1:1"); /* nobody listens there */
    assert_string_equal(mlo_json_str(json_object_get(all, "server"), "status", ""), "unreachable");
    json_decref(all);
    all = doctor("nowhere"); /* what is here is told all the same */
    server = json_object_get(all, "server");
    assert_string_equal(mlo_json_str(server, "status", ""), "unreachable");
    assert_holds(mlo_json_str(server, "error", ""), "'nowhere' is no address of a server");
    assert_true(json_array_size(json_object_get(all, "isolation")) > 0);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_starting__a_worker_waits_for_the_database, api_setup,
                                        api_teardown),
        cmocka_unit_test_setup_teardown(test_starting__nobody_waits_for_a_schema, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_starting__the_doctor_asks_the_server, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
