/* What jobs need and workers have: memory, disk, GPUs of their own, time; who waits, and why. */
#include "pipeline/service/gpus_impl.h"
#include "pipeline/service/sandbox_impl.h"
#include "pipeline/service/waits_impl.h"
#include "pipeline/service/worker_impl.h"
#include "tests/integration/service/service_fixture.h"

#define GB 1000000000ull
#define RECIPE_WITH(name, needs)                                                                             \
    "name: " name "\ntarget: any\ndata: {evaluate: p/test}\n" needs "steps:\n  - evaluate: {}\n"

/* --- the machine's GPUs ----------------------------------------------------------------------------------
 */

static char *write_in(struct service_fixture *f, const char *name, const char *text)
{
    char *path = mlo_fs_join(f->dir, name, NULL), *slash = strrchr(path, '/');
    *slash = '\0';
    assert_mlo_ok(mlo_fs_mkdirs(path, &f->err), &f->err);
    *slash = '/';
    assert_mlo_ok(mlo_fs_write_atomic(path, text, strlen(text), &f->err), &f->err);
    return path;
}

/* Two GPUs whose devices are files. */
static char *inventory(struct service_fixture *f)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(
        &text,
        "[{\"uuid\":\"GPU-a\",\"name\":\"NVIDIA H100 80GB HBM3\",\"node\":\"%s/gpu-a\",\"memory\":80},"
        "{\"uuid\":\"GPU-b\",\"name\":\"NVIDIA H100 80GB HBM3\",\"node\":\"%s/gpu-b\"}]",
        f->dir, f->dir);
    free(write_in(f, "gpu-a", ""));
    free(write_in(f, "gpu-b", ""));
    char *path = write_in(f, "gpus.json", mlo_buf_str(&text));
    mlo_buf_clear(&text);
    return path;
}

static void test_gpus__are_found_and_belong_to_one(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_gpus one, other;
    struct mlo_buf text = MLO_BUF_INIT;
    char *path = inventory(f), *locks = mlo_fs_join(f->dir, "locks", NULL);
    int mine[2], theirs[2];
    assert_mlo_ok(mlo_fs_mkdirs(locks, &f->err), &f->err);
    assert_mlo_ok(mlo_gpus_find(path, &one, &f->err), &f->err);
    assert_mlo_ok(mlo_gpus_find(path, &other, &f->err), &f->err);
    assert_int_equal(one.count, 2);
    mlo_gpus_hold(&one, locks);
    assert_false(mlo_gpus_give(&one, "A100", 1, mine));
    assert_false(mlo_gpus_give(&one, "", 3, mine));
    assert_true(mlo_gpus_give(&one, "H100", 1, mine));
    mlo_gpus_unhold(&one);
    mlo_gpus_hold(&other, locks); /* another worker of the machine: it gets what is left */
    mlo_gpus_models(&other, true, &text);
    assert_string_equal(mlo_buf_str(&text), "{\"H100\"}");
    assert_false(mlo_gpus_give(&other, "", 2, theirs));
    assert_true(mlo_gpus_give(&other, "", 1, theirs));
    assert_string_not_equal(one.items[mine[0]].uuid, other.items[theirs[0]].uuid);
    mlo_gpus_take(&one, mine, 1);
    mlo_gpus_hold(&other, locks);
    assert_true(mlo_gpus_give(&other, "", 1, mine));
    mlo_gpus_take(&other, mine, 1);
    mlo_gpus_take(&other, theirs, 1);
    mlo_buf_clear(&text);
    free(path);
    static const char *const broken[] = {"{}", "[{}]", "[{\"uuid\":\"a,b\",\"name\":\"x\"}]",
                                         "[{\"uuid\":\"a\"}]", "["};
    for (size_t i = 0; i < MLO_COUNT(broken); i++) {
        path = write_in(f, "broken.json", broken[i]);
        assert_int_equal(mlo_gpus_find(path, &one, &f->err), MLO_EFORMAT);
        free(path);
    }
    free(locks);
}

static void test_gpus__of_the_driver(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_gpus gpus = {.count = 0};
    char *root = mlo_fs_join(f->dir, "proc", NULL);
    free(write_in(
        f, "proc/0000:02:00.0/information",
        "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 20\nGPU UUID: \t GPU-22\nDevice Minor: \t 1\n"));
    free(write_in(f, "proc/0000:01:00.0/information",
                  "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-11\nDevice Minor: \t 0\n"));
    free(write_in(f, "proc/0000:03:00.0/information", "nothing of use\n"));
    mlo_gpus_of_proc(root, &gpus);
    assert_int_equal(gpus.count, 2);
    assert_string_equal(gpus.items[0].uuid, "GPU-11");
    assert_string_equal(gpus.items[0].model, "H100");
    assert_string_equal(gpus.items[1].node, "/dev/nvidia1");
    struct mlo_gpus all = gpus;
    mlo_gpus_keep(&gpus, "GPU-22");
    assert_int_equal(gpus.count, 1);
    assert_string_equal(gpus.items[0].uuid, "GPU-22");
    gpus = all;
    mlo_gpus_keep(&gpus, "1,0");
    assert_int_equal(gpus.count, 2);
    assert_string_equal(gpus.items[0].uuid, "GPU-22");
    gpus = all;
    mlo_gpus_keep(&gpus, "0,7,1"); /* it ends at the first that is none */
    assert_int_equal(gpus.count, 1);
    mlo_gpus_keep(&gpus, "");
    assert_int_equal(gpus.count, 0);
    free(root);
}

/* By number: the tenth comes after the second. */
static void test_gpus__are_in_the_order_of_their_numbers(void **state)
{
    struct service_fixture *f = *state;
    static const int minors[] = {10, 2, 0, 11, 1};
    static const char *const nodes[] = {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia10",
                                        "/dev/nvidia11"};
    struct mlo_gpus gpus = {.count = 0};
    char *root = mlo_fs_join(f->dir, "many", NULL), name[64], text[128];
    for (size_t i = 0; i < MLO_COUNT(minors); i++) {
        snprintf(name, sizeof name, "many/0000:%02d:00.0/information", minors[i]);
        snprintf(text, sizeof text, "Model: \t NVIDIA H100\nGPU UUID: \t GPU-%d\nDevice Minor: \t %d\n",
                 minors[i], minors[i]);
        free(write_in(f, name, text));
    }
    mlo_gpus_of_proc(root, &gpus);
    assert_int_equal(gpus.count, MLO_COUNT(nodes));
    for (size_t i = 0; i < MLO_COUNT(nodes); i++)
        assert_string_equal(gpus.items[i].node, nodes[i]);
    free(root);
}

/* What a card calls itself reaches the database as it is. */
static void test_gpus__whose_names_have_quotes(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_gpus gpus;
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_db_conn *conn;
    static const struct mlo_sql echo = {
        "test_gpus_echo", "select array_to_string($1::text[], '|'), cardinality($1::text[])", 1};
    char *path = write_in(f, "quoted.json",
                          "[{\"uuid\":\"GPU-1\",\"name\":\"12\\\"{A,\\\\B}\"},"
                          "{\"uuid\":\"GPU-2\",\"name\":\"NVIDIA H100\"}]");
    assert_mlo_ok(mlo_gpus_find(path, &gpus, &f->err), &f->err);
    mlo_gpus_models(&gpus, false, &text);
    mlo_param_text(&p, mlo_buf_str(&text));
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec(conn, &echo, &p, &rows, &f->err), &f->err);
    mlo_db_release(conn);
    assert_string_equal(mlo_rows_text(&rows, 0, 0), "12\"{A,\\B}|H100");
    assert_int_equal(mlo_rows_i64(&rows, 0, 1), 2);
    mlo_rows_clear(&rows);
    mlo_buf_clear(&text);
    free(path);
}

/* --- the disk ------------------------------------------------------------------------------------------ */

static void test_room__counts_a_disk_once(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        uint64_t alone, free, given, there, offer;
    } rows[] = {
        {100, 100, 0, 100, 100},                     /* nobody runs */
        {100, 100, 40, 100, 60},                     /* given, and nothing of it written */
        {100, 70, 40, 100, 60},                      /* some of it */
        {100, 60, 40, 100, 60},                      /* all of it */
        {100, 30, 40, 70, 30},                       /* others wrote 30 beside it */
        {100, 0, 40, 40, 0},                         /* the disk is full */
        {100, 90, 120, 100, 0},                      /* more was given than there is */
        {100, 300, 40, 100, 60},                     /* others made room: it is seen when nobody runs */
        {UINT64_MAX, 10, UINT64_MAX, UINT64_MAX, 0}, /* no limit was known */
    };
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        struct mlo_disk_room room = mlo_room_of_disk(rows[i].alone, rows[i].free, rows[i].given);
        assert_true(room.there_bytes == rows[i].there);
        assert_true(room.free_bytes == rows[i].offer);
    }
}

/* --- whose turn it is ---------------------------------------------------------------------------------- */

/* What a machine of two H100, 16 GB and a disk of 100 GB claims with so much free: names of recipes. */
static void claims(struct service_fixture *f, const char *free_gpus, uint64_t free_memory, int wanted,
                   const char *names)
{
    const uint64_t disk = 100 * GB;
    const struct mlo_claimer claimer = {.worker = "w",
                                        .targets = "{any,cpu}",
                                        .lease_ms = 600000,
                                        .gpus = "{H100,H100}",
                                        .memory_bytes = 16 * GB,
                                        .disk_bytes = disk,
                                        .free_gpus = free_gpus,
                                        .free_memory_bytes = &free_memory,
                                        .free_disk_bytes = &disk};
    struct mlo_job jobs[8];
    struct mlo_buf got = MLO_BUF_INIT;
    int count;
    assert_mlo_ok(mlo_queue_claim(f->worker, &claimer, jobs, wanted, &count, &f->err), &f->err);
    for (int i = 0; i < count; i++) {
        json_t *run = get_run(f, jobs[i].run);
        mlo_buf_printf(&got, "%s%s", i ? " " : "", mlo_json_str(run, "recipe", ""));
        json_decref(run);
        mlo_job_clear(&jobs[i]);
    }
    if (strcmp(mlo_buf_str(&got), names) != 0)
        fail_msg("claimed '%s' instead of '%s'", mlo_buf_str(&got), names);
    mlo_buf_clear(&got);
}

static void test_gpus__a_job_of_two_keeps_its_turn(void **state)
{
    struct service_fixture *f = *state;
    submit(f, f->version, RECIPE_WITH("two", "needs: {gpus: 2}\n"), 0);
    for (int i = 0; i < 3; i++)
        submit(f, f->version, RECIPE_WITH("one", "needs: {gpus: 1, gpu: H100}\n"), 0);
    submit(f, f->version, RECIPE_WITH("none", ""), 0);
    submit(f, f->version, RECIPE_WITH("other", "needs: {gpu: A100}\n"), 9);
    /* one of them is busy: what is behind the one that needs two leaves the other alone, or uses none */
    claims(f, "{H100}", 16 * GB, 1, "none");
    claims(f, "{H100}", 16 * GB, 4, "");
    claims(f, "{H100,H100}", 16 * GB, 4, "two");
    claims(f, "{}", 16 * GB, 4, "");
    claims(f, "{H100,H100}", 16 * GB, 4, "one one"); /* no more than there are */
    claims(f, "{H100}", 16 * GB, 1, "one");
    claims(f, "{H100,H100}", 16 * GB, 4, ""); /* there is no A100 here, and nobody waits for it */
}

static void test_memory__is_divided_among_jobs(void **state)
{
    struct service_fixture *f = *state;
    submit(f, f->version, RECIPE_WITH("large", "needs: {memory: 12GB}\n"), 1);
    submit(f, f->version, RECIPE_WITH("huge", "needs: {memory: 64GB}\n"), 2);
    submit(f, f->version, RECIPE_WITH("half", "needs: {memory: 8GB}\n"), 0);
    submit(f, f->version, RECIPE_WITH("third", "needs: {memory: 8GB}\n"), 0);
    submit(f, f->version, RECIPE_WITH("disk", "needs: {disk: 200GB}\n"), 0);
    claims(f, NULL, 10 * GB, 2, ""); /* the first has no room yet, and keeps its turn */
    claims(f, NULL, 16 * GB, 4, "large");
    claims(f, NULL, 4 * GB, 4, "");
    claims(f, NULL, 16 * GB, 4, "half third"); /* together, all of it */
    claims(f, NULL, 16 * GB, 4, "");           /* what is left has room nowhere */
}

/* --- what a job is told ----------------------------------------------------------------------------------
 */

static void assert_waits(struct service_fixture *f, int64_t run, const char *text)
{
    json_t *value = get_run(f, run);
    const json_t *job = json_array_get(json_object_get(value, "jobs"), 0);
    const char *waits = mlo_json_str(job, "waits", "(null)");
    if (!strstr(waits, text))
        fail_msg("it waits since '%s' and not '%s'", waits, text);
    json_decref(value);
}

static void run_sql(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    mlo_db_release(conn);
}

static void test_waits__says_what_nobody_has(void **state)
{
    struct service_fixture *f = *state;
    json_t *overview = NULL;
    int64_t any = submit(f, f->version, RECIPE_WITH("any", ""), 0);
    int64_t memory = submit(f, f->version, RECIPE_WITH("memory", "needs: {memory: 64GB}\n"), 0);
    int64_t both = submit(f, f->version, RECIPE_WITH("both", "needs: {memory: 12GB, disk: 90GB}\n"), 0);
    int64_t gpu = submit(f, f->version, RECIPE_WITH("gpu", "needs: {gpus: 2, gpu: h100}\n"), 0);
    int64_t cpu = submit(f, f->version, "name: c\ntarget: cpu\nsteps:\n  - benchmark: {}\n", 0);
    assert_waits(f, any, "no worker runs");
    run_sql(f,
            "insert into worker (id, host, pid, machine_class, targets, slots, state, memory_bytes, "
            "disk_bytes, gpus) values ('a', 'h', 1, 'm', '{any}', 1, 'active', 16e9, 10e9, "
            "'[{\"model\":\"H100\"},{\"model\":\"A100\"}]'), ('b', 'h', 2, 'm', '{any}', 1, 'active', 8e9, "
            "100e9, '[]')");
    assert_waits(f, any, "(null)");
    assert_waits(f, memory, "needs 64.0 GB of memory; the largest worker has 16.0 GB");
    assert_waits(f, both, "needs on one worker 12.0 GB of memory, 90.0 GB of disk, and none has all of it");
    assert_waits(f, gpu, "needs 2 GPUs H100; the largest worker has 1");
    assert_waits(f, cpu, "needs the target cpu, which no worker offers");
    run_sql(
        f,
        "update job set memory_bytes = 20e9, estimated = '{memory}' where run = (select min(id) from run)");
    assert_waits(f, any, "needs 20.0 GB of memory (estimated from the model's size");
    assert_mlo_ok(mlo_queue_overview(f->pg->conn, &overview, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(overview, "stuck")), 5);
    json_decref(overview);
    run_sql(f, "update worker set memory_bytes = null, disk_bytes = null"); /* an older program's */
    assert_waits(f, memory, "(null)");
    run_sql(f, "update project_queue set paused = true, paused_by = 'me'");
    assert_waits(f, memory, "the project is paused by me");
    run_sql(f, "update project_queue set paused = false, max_running = 0");
    assert_waits(f, memory, "the project may have 0 jobs at once");
    run_sql(f, "update project_queue set max_running = null, gpu_seconds_month = 0");
    assert_waits(f, gpu, "GPU seconds");
    assert_waits(f, memory, "(null)");
}

static void test_plan__writes_what_jobs_need(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_recipe *r = recipe("name: a\ntarget: any\nneeds: {memory: 2GB}\nsteps:\n  - optimize: {}\n"
                                  "    timeout: 5m\n  - compile: {}\n    needs: {disk: 3GB, gpus: 1}\n");
    const struct mlo_run_request request = {
        .project = f->project, .version = f->version, .recipe = r, .actor = &SYSTEM};
    json_t *plan = NULL;
    assert_mlo_ok(mlo_run_plan(f->pg->conn, &request, &plan, &f->err), &f->err);
    const json_t *job = json_array_get(json_object_get(plan, "jobs"), 0),
                 *needs = json_object_get(job, "resources");
    assert_int_equal(mlo_json_i64(needs, "memory_bytes", 0), 2 * GB);
    assert_true(mlo_json_i64(needs, "disk_bytes", 0) > 0 &&
                json_array_size(json_object_get(needs, "estimated")) == 1);
    assert_int_equal(mlo_json_i64(needs, "timeout_s", 0), 300);
    json_decref(plan);
    int64_t run;
    assert_mlo_ok(mlo_run_submit(f->pg->conn, &request, &run, &f->err), &f->err);
    mlo_recipe_free(r);
    json_t *value = get_run(f, run);
    needs = json_object_get(json_array_get(json_object_get(value, "jobs"), 1), "resources");
    assert_int_equal(mlo_json_i64(needs, "memory_bytes", 0), 2 * GB);
    assert_int_equal(mlo_json_i64(needs, "disk_bytes", 0), 3 * GB);
    assert_int_equal(mlo_json_i64(needs, "gpus", 0), 1);
    assert_int_equal(json_array_size(json_object_get(needs, "estimated")), 0);
    assert_true(json_is_null(json_object_get(needs, "timeout_s")));
    json_decref(value);
}

/* A plan for a GPU is compiled by whoever can, without one; what is measured is measured on one. */
static void test_plan__compiles_for_gpus_without_one(void **state)
{
    struct service_fixture *f = *state;
    static const struct {
        const char *target;
        int64_t gpus;
    } jobs[] = {{"compile:cuda", 0}, {"cuda:sm90:exact", 1}, {"cuda", 1}, {"any", 0}};
    struct mlo_recipe *r = recipe("name: a\ntarget: any\nsteps:\n  - compile: {target: cuda:sm90}\n"
                                  "  - tune: {target: cuda:sm90}\n  - benchmark: {engine: cuda}\n"
                                  "  - compile: {}\n");
    const struct mlo_run_request request = {
        .project = f->project, .version = f->version, .recipe = r, .actor = &SYSTEM};
    int64_t run;
    assert_mlo_ok(mlo_run_submit(f->pg->conn, &request, &run, &f->err), &f->err);
    mlo_recipe_free(r);
    for (size_t i = 0; i < MLO_COUNT(jobs); i++) {
        char sql[256];
        snprintf(sql, sizeof sql,
                 "select count(*) from mlopt.job where run = %lld and position = %zu and target = '%s' "
                 "and coalesce(gpus, 0) = %lld",
                 (long long)run, i, jobs[i].target, (long long)jobs[i].gpus);
        if (count_rows(f, sql) != 1)
            fail_msg("job %zu: not %s", i, jobs[i].target);
    }
}

/* --- workers ---------------------------------------------------------------------------------------------
 */

static void test_worker__gives_each_job_gpus_of_its_own(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct mlo_buf orders = MLO_BUF_INIT;
    char *gpus = inventory(f);
    int64_t runs[9];
    mlo_buf_printf(&orders, "evaluate.sleep_ms=300\nevaluate.nodes=%s/gpu-a:%s/gpu-b", f->dir, f->dir);
    int64_t version = add_version(f, "g", mlo_buf_str(&orders));
    mlo_buf_clear(&orders);
    for (int i = 0; i < 9; i++)
        runs[i] = submit(f, version,
                         i % 4 == 3   ? RECIPE_WITH("two", "needs: {gpus: 2, gpu: H100}\n")
                         : i % 4 == 2 ? RECIPE_WITH("none", "")
                                      : RECIPE_WITH("one", "needs: {gpus: 1}\n"),
                         0);
    start_worker_with(f, &w, (struct mlo_worker_options){.slots = 4, .gpu_inventory = gpus});
    for (int i = 0; i < 9; i++)
        wait_run(f, runs[i]);
    stop_worker(&w);
    for (int i = 0; i < 9; i++) {
        assert_run(f, runs[i], -1, "state", "succeeded");
        json_t *value = get_run(f, runs[i]);
        const json_t *job = json_array_get(json_object_get(value, "jobs"), 0),
                     *attempt = json_array_get(json_object_get(job, "attempts"), 0),
                     *seen = json_object_get(json_object_get(job, "report"), "gpus");
        const json_t *given = json_object_get(attempt, "gpus"), *uuid;
        struct mlo_buf shown = MLO_BUF_INIT;
        size_t k;
        int nodes = 0;
        json_array_foreach((json_t *)given, k, uuid)
        {
            mlo_buf_printf(&shown, "%s%s", k ? "," : "", json_string_value(uuid));
            nodes |= strcmp(json_string_value(uuid), "GPU-a") == 0 ? 1 : 2;
        }
        assert_int_equal(json_array_size(given), i % 4 == 3 ? 2 : i % 4 == 2 ? 0 : 1);
        assert_string_equal(mlo_json_str(seen, "shown", ""), mlo_buf_str(&shown));
        if (mlo_landlock_abi() > 0) /* the devices of its GPUs, and no others */
            assert_int_equal(mlo_json_i64(seen, "opened", -1), nodes);
        mlo_buf_clear(&shown);
        json_decref(value);
    }
    /* never two on one at a time; counted as what they held, and given back */
    assert_int_equal(
        count_rows(f, "select count(*) from mlopt.attempt a join mlopt.attempt b on a.job < b.job and "
                      "a.gpu_devices && b.gpu_devices and tstzrange(a.started_at, a.ended_at) && "
                      "tstzrange(b.started_at, b.ended_at)"),
        0);
    assert_int_equal(
        count_rows(
            f, "select count(*) from mlopt.attempt where abs(gpu_s - gpus * extract(epoch from ended_at - "
               "started_at)) < 1e-6 and gpus = coalesce(cardinality(gpu_devices), 0)"),
        9);
    free(gpus);
}

static void test_worker__gives_gpus_back_however_a_job_ends(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct mlo_error err = {0};
    char *gpus = inventory(f);
    static const char recipe_two[] = RECIPE_WITH("two", "needs: {gpus: 2}\ntimeout: 300\n");
    start_worker_with(f, &w, (struct mlo_worker_options){.slots = 2, .gpu_inventory = gpus});
    wait_run(f, submit(f, add_version(f, "bad", "evaluate.fail=format"), recipe_two, 0));
    wait_run(f, submit(f, add_version(f, "crash", "evaluate.crashes=1"), recipe_two, 0));
    int64_t held = submit(f, add_version(f, "held", "evaluate.hold=1"), recipe_two, 0);
    wait_until(micro_count(f->state, "start evaluate") >= 4);
    json_t *workers = NULL;
    assert_mlo_ok(mlo_worker_list(f->pg->conn, &workers, &f->err), &f->err);
    const json_t *gpu =
        json_array_get(json_object_get(json_array_get(json_object_get(workers, "items"), 0), "gpus"), 1);
    assert_string_equal(mlo_json_str(gpu, "model", ""), "H100");
    assert_int_equal(mlo_json_i64(gpu, "job", 0), job_i64(f, held, 0, "id"));
    json_decref(workers);
    assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, held, "enough", &err), &err);
    int64_t last = submit(f, f->version, recipe_two, 0);
    wait_run(f, last);
    assert_run(f, last, -1, "state", "succeeded");
    stop_worker(&w);
    free(gpus);
}

static void test_timeout__of_the_recipe_fails_once(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t version = add_version(f, "slow", "evaluate.hold=1");
    start_worker(f, &w, 1);
    int64_t run = submit(f, version, RECIPE_WITH("slow", "timeout: 1s\n"), 0);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "failed");
    json_t *value = get_run(f, run);
    const json_t *error = json_object_get(json_array_get(json_object_get(value, "jobs"), 0), "error");
    assert_string_equal(mlo_json_str(error, "code", ""), "timeout");
    assert_non_null(strstr(mlo_json_str(error, "hint", ""), "'timeout'"));
    json_decref(value);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt where outcome = 'failed'"), 1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt"), 1);
}

static void test_timeout__of_the_worker_is_tried_again(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run =
        submit(f, add_version(f, "slow", "evaluate.hold=1"), RECIPE_WITH("slow", "timeout: 1h\n"), 0);
    run_sql(f, "update job set max_attempts = 2");
    start_worker_with(f, &w, (struct mlo_worker_options){.slots = 1, .max_job_s = 1});
    wait_run(f, run);
    stop_worker(&w);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt where outcome = 'retried'"), 1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt"), 2);
}

/* --- storage ------------------------------------------------------------------------------------------- */

static void test_storage__refuses_what_a_job_makes(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker(f, &w, 1);
    run_sql(f, "update project_queue set storage_bytes = project_storage(project)");
    int64_t run = submit(f, f->version, RECIPE_DERIVE, 0);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    json_t *value = get_run(f, run);
    const json_t *error = json_object_get(json_array_get(json_object_get(value, "jobs"), 0), "error");
    assert_string_equal(mlo_json_str(error, "code", ""), "quota-exceeded");
    assert_non_null(strstr(mlo_json_str(error, "message", ""), "the project p would keep"));
    json_decref(value);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt"), 1); /* trying again does not help */
    assert_int_equal(count_rows(f, "select count(*) from mlopt.variant where name = 'derived'"), 0);
    run_sql(f, "update project_queue set storage_bytes = null");
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_run_requeue(f->pg->conn, &SYSTEM, run, "room was made", &err), &err);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    stop_worker(&w);
}

/* --- between steps ---------------------------------------------------------------------------------------
 */

static void test_priority__goes_before_the_next_step(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    char sql[256];
    int64_t quick = add_version(f, "quick", "");
    for (int priority = -1; priority <= 0; priority++) {
        char *go = mlo_fs_join(f->state, "go", NULL);
        unlink(go);
        free(go);
        int before = micro_count(f->state, "start optimize");
        int64_t version =
            add_version(f, "long", priority ? "optimize.hold=1" : "optimize.hold=1\noptimize.again=1");
        int64_t low = submit(f, version, RECIPE_TINY, priority);
        start_worker(f, &w, 1);
        wait_until(micro_count(f->state, "start optimize") > before);
        int64_t high = submit(f, quick, RECIPE_OBSERVE, 5); /* while the first step of the other one runs */
        release_steps(f);
        wait_run(f, low);
        wait_run(f, high);
        stop_worker(&w);
        assert_run(f, low, -1, "state", "succeeded");
        snprintf(sql, sizeof sql,
                 "select count(*) from mlopt.job h, mlopt.job l where h.run = %lld and l.run = %lld and "
                 "l.position = 1 "
                 "and h.started_at < l.started_at and h.finished_at <= l.started_at",
                 (long long)high, (long long)low);
        assert_int_equal(count_rows(f, sql), 1);
    }
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_gpus__are_found_and_belong_to_one),
        SERVICE_TEST(test_gpus__of_the_driver),
        SERVICE_TEST(test_gpus__are_in_the_order_of_their_numbers),
        SERVICE_TEST(test_gpus__whose_names_have_quotes),
        SERVICE_TEST(test_room__counts_a_disk_once),
        SERVICE_TEST(test_gpus__a_job_of_two_keeps_its_turn),
        SERVICE_TEST(test_memory__is_divided_among_jobs),
        SERVICE_TEST(test_waits__says_what_nobody_has),
        SERVICE_TEST(test_plan__writes_what_jobs_need),
        SERVICE_TEST(test_plan__compiles_for_gpus_without_one),
        SERVICE_TEST(test_worker__gives_each_job_gpus_of_its_own),
        SERVICE_TEST(test_worker__gives_gpus_back_however_a_job_ends),
        SERVICE_TEST(test_timeout__of_the_recipe_fails_once),
        SERVICE_TEST(test_timeout__of_the_worker_is_tried_again),
        SERVICE_TEST(test_storage__refuses_what_a_job_makes),
        SERVICE_TEST(test_priority__goes_before_the_next_step),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
