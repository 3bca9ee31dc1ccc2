/* A worker beside its jobs: the machine's lock, the logs that it sends, and how it is paused, drained and
 * ends. */
#include "pipeline/service/job_log_impl.h"
#include "tests/integration/service/service_fixture.h"

/* Start and end times of a step in the micro step's log, the n-th of each. */
static uint64_t log_time(struct service_fixture *f, const char *prefix)
{
    struct mlo_buf text = MLO_BUF_INIT;
    char *path = mlo_fs_join(f->state, "log", NULL);
    assert_mlo_ok(mlo_fs_read(path, 1 << 20, &text, &f->err), &f->err);
    const char *at = strstr(mlo_buf_str(&text), prefix);
    assert_non_null(at);
    uint64_t time = strtoull(at + strlen(prefix), NULL, 10);
    mlo_buf_clear(&text);
    free(path);
    return time;
}

static void test_life__a_benchmark_has_the_machine_to_itself(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker a, b;
    static const char recipe_bench[] = "name: b\ntarget: any\nsteps:\n  - benchmark: {batch: [1]}\n";
    int64_t other = submit(f, add_version(f, "slow", "evaluate.sleep_ms=500"), RECIPE_OBSERVE, 0);
    int64_t bench = submit(f, add_version(f, "bench", "benchmark.sleep_ms=300"), recipe_bench, 0);
    start_worker(f, &a, 1);
    start_worker(f, &b, 1);
    wait_run(f, other);
    wait_run(f, bench);
    stop_worker(&a);
    stop_worker(&b);
    uint64_t eval_start = log_time(f, "start evaluate "), eval_end = log_time(f, "end evaluate ");
    uint64_t bench_start = log_time(f, "start benchmark "), bench_end = log_time(f, "end benchmark ");
    assert_true(bench_start > eval_end || eval_start > bench_end);
    /* what else the machine did meanwhile stands beside what was measured, and beside nothing else */
    json_t *value = get_run(f, bench), *job = json_array_get(json_object_get(value, "jobs"), 0);
    const json_t *load = json_object_get(json_object_get(job, "report"), "load");
    assert_true(mlo_json_f64(load, "seconds", 0) >= 0.3);
    assert_true(mlo_json_f64(load, "other_cpus", -1) >= 0 && mlo_json_f64(load, "own_cpus", -1) >= 0);
    assert_true(mlo_json_f64(load, "own_cpus", 99) < 99 && mlo_json_i64(load, "cpus", 0) > 0);
    json_decref(value);
    value = get_run(f, other);
    job = json_array_get(json_object_get(value, "jobs"), 0);
    assert_null(json_object_get(json_object_get(job, "report"), "load"));
    json_decref(value);
    assert_clean(f);
}

/* What two jobs of a run are, one ready and one that waits for it, and whether a worker stays for them that
 * has 4 GB and 10 GB of disk: one of the CPU alone; one with --target never; one with two H100. */
static void test_life__stays_for_what_it_could_have(void **state)
{
    static const struct {
        const char *set; /* of both jobs */
        bool plain, own, gpus;
    } cases[] = {
        {"not_before = now() + interval '1 h'", true, true, true},
        {"memory_bytes = 4e9, disk_bytes = 10e9", true, true, true},
        {"memory_bytes = 4e9 + 1", false, false, false},
        {"memory_bytes = 0, disk_bytes = 10e9 + 1", false, false, false},
        {"disk_bytes = 0, target = 'never'", false, true, false},
        {"target = 'any', gpus = 2", false, false, true},
        {"gpu = 'A100'", false, false, false},
        {"gpu = 'H100', gpus = 3", false, false, false},
        {"gpus = 0", false, false, true},
        {"gpu = null, token = case position when 0 then gen_random_uuid() end, lease_until = case position "
         "when 0 then now() end, state = case position when 0 then 'running' else state end",
         true, false, false}, /* it runs: whoever else comes is not of use for it, but where it is lost */
        {"target = 'never'", false, true, false},
        {"target = case position when 0 then 'never' else 'any' end", true, true, false},
        {"target = 'any', gpus = position", true, false, true}, /* the next one needs a GPU */
        {"gpus = 0, target = 'any', state = 'cancelled', token = null, lease_until = null", false, false,
         false},
        {"state = 'ready'", true, true, true},
    };
    struct service_fixture *f = *state;
    submit(f, f->version, "name: two\ntarget: any\nsteps:\n  - optimize: {}\n  - optimize: {}\n", 0);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        const bool wanted[] = {cases[i].plain, cases[i].own, cases[i].gpus};
        static const char *const workers[] = {"'{any,cpu}', '{}', '{}'", "'{any,cpu,never}', '{never}', '{}'",
                                              "'{any,cpu}', '{}', '{H100,H100}'"};
        char sql[500];
        snprintf(sql, sizeof sql, "with u as (update mlopt.job set %s returning 1) select count(*) from u",
                 cases[i].set);
        assert_int_equal(count_rows(f, sql), 2);
        for (size_t k = 0; k < MLO_COUNT(workers); k++) {
            snprintf(sql, sizeof sql, "select mlopt.queue_holds_for(%s, 4000000000, 10000000000)::integer",
                     workers[k]);
            if ((count_rows(f, sql) == 1) != wanted[k])
                fail_msg("%s: worker %zu %s", cases[i].set, k, wanted[k] ? "goes" : "stays");
        }
    }
}

static void test_life__exits_when_idle(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    /* what it cannot have keeps it from nothing */
    static const char recipe_huge[] =
        "name: h\ntarget: any\nneeds: {memory: 900000GB}\nsteps:\n  - optimize: {}\n";
    int64_t other = submit(f, f->version, recipe_huge, 0), run = submit(f, f->version, RECIPE_TINY, 0);
    w = (struct test_worker){
        .options = {
            .db = f->worker, .blobs = f->blobs, .work_dir = f->work, .poll_ms = 100, .exit_when_idle = true}};
    w.allow_write[0] = f->state;
    w.options.allow_write = w.allow_write;
    assert_int_equal(pthread_create(&w.thread, NULL, test_worker_main, &w), 0);
    pthread_join(w.thread, NULL);
    assert_mlo_ok(w.status, &w.err);
    assert_run(f, run, -1, "state", "succeeded");
    assert_run(f, other, -1, "state", "queued");
}

/* The text of a job's attempt, or NULL; yours. */
static char *log_of(struct service_fixture *f, int64_t run, const char *step, int attempt)
{
    json_t *log = NULL, *item;
    char *text = NULL;
    size_t i;
    assert_mlo_ok(mlo_run_log(f->pg->conn, run, 0, &log, &f->err), &f->err);
    json_array_foreach(json_object_get(log, "items"), i, item)
    {
        if (strcmp(mlo_json_str(item, "step", ""), step) == 0 && mlo_json_i64(item, "attempt", 0) == attempt)
            text = strdup(mlo_json_str(item, "text", ""));
    }
    json_decref(log);
    return text;
}

static bool log_is(struct service_fixture *f, int64_t run, const char *step, int attempt, const char *wanted)
{
    char *text = log_of(f, run, step, attempt);
    bool is = text && strcmp(text, wanted) == 0;
    free(text);
    return is;
}

/* So many attempts are told of, each by the end of its text, and so many are not; `runs`: they go on. */
static void assert_ends(struct service_fixture *f, int64_t run, int most, int64_t bytes, size_t count,
                        int left_out, bool runs)
{
    json_t *ends = NULL, *log = NULL, *item, *whole;
    size_t i, k, found = 0;
    assert_mlo_ok(mlo_run_log_ends(f->pg->conn, run, most, bytes, &ends, &f->err), &f->err);
    assert_mlo_ok(mlo_run_log(f->pg->conn, run, 0, &log, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(ends, "items")), count);
    assert_int_equal(mlo_json_i64(ends, "left_out", -1), left_out);
    json_array_foreach(json_object_get(log, "items"), k, whole)
        json_array_foreach(json_object_get(ends, "items"), i, item)
    {
        if (!json_equal(json_object_get(item, "job"), json_object_get(whole, "job")) ||
            !json_equal(json_object_get(item, "attempt"), json_object_get(whole, "attempt")))
            continue;
        const char *all = mlo_json_str(whole, "text", ""), *text = mlo_json_str(item, "text", "");
        size_t size = strlen(text), share = (size_t)bytes / count;
        assert_int_equal(mlo_json_i64(item, "bytes", 0), strlen(all));
        assert_in_range(size, MLO_MIN(share, strlen(all)), share + (64 << 10));
        assert_string_equal(text, all + strlen(all) - size);
        assert_string_equal(mlo_json_str(item, "name", ""), mlo_json_str(whole, "name", "-"));
        assert_int_equal(json_is_true(json_object_get(item, "runs")), runs);
        found++;
    }
    assert_int_equal(found, count);
    json_decref(ends);
    json_decref(log);
}

static void test_life__sends_what_steps_write(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(
        f,
        add_version(f, "talks",
                    "optimize.says=h\xc3\xa9llo \x1b[31m\xff<b>\noptimize.hold=1\nquantize.says=again\n"
                    "quantize.crashes=1\nevaluate.says=0123456789abcdef\nevaluate.lines=30000"),
        RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    /* while it runs; without what a terminal would obey, or a database refuse */
    wait_until(log_is(f, run, "optimize", 1, "h\xc3\xa9llo ?[31m?<b> 1\n"));
    assert_run(f, run, 0, "state", "running");
    assert_ends(f, run, 2, 8000, 1, 0, true);
    release_steps(f);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_ends(f, run, 2, 8000, 2, 2, false);
    assert_ends(f, run, 32, 32 << 10, 4, 0, false);
    assert_ends(f, run + 1, 32, 32 << 10, 0, 0, false);
    assert_true(log_is(f, run, "quantize", 1, "about to crash\n")); /* each attempt has its own */
    assert_true(log_is(f, run, "quantize", 2, "again 1\n"));
    char *text = log_of(f, run, "evaluate", 1); /* 660,000 bytes of it: the beginning and the end are kept */
    assert_non_null(text);
    assert_true(strlen(text) > (256 << 10) && strlen(text) < (300 << 10));
    assert_true(mlo_str_starts(text, "0123456789abcdef 30000\n0123456789abcdef 29999\n"));
    assert_non_null(strstr(text, " bytes are left out here ...\n"));
    assert_non_null(strstr(text, "\n0123456789abcdef 2\n0123456789abcdef 1\n"));
    free(text);
    assert_null(log_of(f, run, "benchmark", 1)); /* it said nothing */
    /* who lost the job says no more of it */
    int64_t rows = count_rows(f, "select count(*) from mlopt.attempt_log");
    struct mlo_job stale = {.id = job_i64(f, run, 0, "id"), .token = "00000000-0000-4000-8000-000000000000"};
    struct mlo_job_log late;
    char path[] = "/tmp/mlopt-log-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && mlo_fs_write_full(fd, "too late\n", 9));
    mlo_job_log_begin(&late, f->worker, &stale);
    mlo_job_log_look(&late, fd, true);
    assert_true(late.lost);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt_log"), rows);
    close(fd);
    unlink(path);
    assert_clean(f);
}

/* The name of the only worker. */
static char *worker_name(struct service_fixture *f)
{
    json_t *workers = NULL;
    assert_mlo_ok(mlo_worker_list(f->pg->conn, &workers, &f->err), &f->err);
    json_t *items = json_object_get(workers, "items");
    char *name =
        json_array_size(items) == 1 ? strdup(mlo_json_str(json_array_get(items, 0), "name", "")) : NULL;
    json_decref(workers);
    return name;
}

static bool worker_is(struct service_fixture *f, const char *state)
{
    json_t *workers = NULL;
    assert_mlo_ok(mlo_worker_list(f->pg->conn, &workers, &f->err), &f->err);
    bool is =
        strcmp(mlo_json_str(json_array_get(json_object_get(workers, "items"), 0), "state", ""), state) == 0;
    json_decref(workers);
    return is;
}

static void test_life__is_paused_and_resumed(void **state)
{
    struct service_fixture *f = *state;
    const struct mlo_actor other = {
        .name = "someone", .role = MLO_ADMIN, .project_id = f->project, .via = "api"};
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_TINY, 0);
    start_worker(f, &w, 2);
    wait_for_log(f, "start optimize", 1);
    char *name = worker_name(f);
    assert_mlo_status(mlo_worker_control(f->pg->conn, &other, name, MLO_WORKER_PAUSE, NULL, &f->err),
                      MLO_EFORBIDDEN, &f->err); /* a project's admin is not the installation's */
    assert_mlo_status(mlo_worker_control(f->pg->conn, &SYSTEM, "nobody", MLO_WORKER_PAUSE, NULL, &f->err),
                      MLO_ENOTFOUND, &f->err);
    assert_mlo_ok(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_PAUSE, "new disk", &f->err),
                  &f->err);
    wait_until(worker_is(f, "paused"));
    int64_t later = submit(f, f->version, RECIPE_DERIVE, 0);
    release_steps(f);
    wait_until(count_rows(f, "select count(*) from mlopt.job where state = 'succeeded'") ==
               1); /* what it had */
    wait_until(!jobs_in_scratch(f));
    mlo_clock_sleep_ms(1500); /* it would have claimed at once */
    assert_count(f, "select count(*) from mlopt.attempt", 1);
    assert_run(f, later, -1, "state", "queued");
    assert_mlo_ok(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_RUN, NULL, &f->err), &f->err);
    wait_run(f, run);
    wait_run(f, later);
    assert_true(worker_is(f, "active"));
    stop_worker(&w);
    assert_mlo_status(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_PAUSE, NULL, &f->err),
                      MLO_ECONFLICT, &f->err);
    assert_count(
        f,
        "select count(*) from mlopt.audit where project_id = 0 and convert_from(body, 'UTF8')::json ->> "
        "'action' in ('worker.pause', 'worker.resume')",
        2);
    assert_clean(f);
    free(name);
}

static void test_life__drains_however_long_it_takes(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_for_log(f, "start optimize", 1);
    char *name = worker_name(f);
    assert_mlo_ok(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_DRAIN, NULL, &f->err), &f->err);
    assert_mlo_status(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_RUN, NULL, &f->err),
                      MLO_ECONFLICT, &f->err);
    wait_until(worker_is(f, "draining"));
    assert_run(f, run, 0, "state", "running"); /* not handed back, though this worker's drain_ms is 0 */
    release_steps(f);
    pthread_join(w.thread, NULL); /* nobody set its flag */
    assert_mlo_ok(w.status, &w.err);
    assert_true(worker_is(f, "stopped"));
    assert_run(f, run, 0, "state", "succeeded");
    assert_run(f, run, 1, "state", "queued");
    assert_clean(f);
    free(name);
}

/* Ends the backends that wait for the lock on a table, once there are any. */
static void end_waiting(PGconn *admin)
{
    int64_t ended = 0;
    uint64_t until = mlo_clock_ns() + PATIENCE_S * 1000000000ull;
    while (ended == 0) {
        PGresult *result =
            PQexec(admin, "select count(*), count(pg_terminate_backend(pid, 10000)) from pg_locks "
                          "where not granted and relation = 'mlopt.dataset_blob'::regclass");
        if (PQresultStatus(result) != PGRES_TUPLES_OK)
            fail_msg("%s", PQerrorMessage(admin));
        ended = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
        PQclear(result);
        if (mlo_clock_ns() > until)
            fail_msg("nobody waits for the lock");
        mlo_clock_sleep_ms(20);
    }
}

static void test_life__a_connection_lost_under_the_inputs_costs_no_attempt(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct mlo_db_conn *owner;
    int64_t run = submit(f, f->version, RECIPE_OBSERVE, 0);
    char *superuser = mlo_embedded_conninfo(f->pg->pg, NULL, f->pg->database);
    PGconn *admin = PQconnectdb(superuser);
    free(superuser);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &owner, &f->err), &f->err);
    /* whoever reads the files of a dataset waits */
    assert_mlo_ok(
        mlo_db_exec_text(owner, "begin; lock table mlopt.dataset_blob in access exclusive mode", &f->err),
        &f->err);
    start_worker(f, &w, 1);
    end_waiting(admin);
    end_waiting(admin); /* it asks again, and that is lost too */
    assert_mlo_ok(mlo_db_exec_text(owner, "rollback", &f->err), &f->err);
    mlo_db_release(owner);
    PQfinish(admin);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, 0, "state", "succeeded");
    assert_count(f, "select count(*) from mlopt.attempt", 1);
    assert_count(f, "select max(attempts) from mlopt.job", 1);
    assert_clean(f);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_life__a_benchmark_has_the_machine_to_itself),
        SERVICE_TEST(test_life__stays_for_what_it_could_have),
        SERVICE_TEST(test_life__exits_when_idle),
        SERVICE_TEST(test_life__sends_what_steps_write),
        SERVICE_TEST(test_life__is_paused_and_resumed),
        SERVICE_TEST(test_life__drains_however_long_it_takes),
        SERVICE_TEST(test_life__a_connection_lost_under_the_inputs_costs_no_attempt),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
