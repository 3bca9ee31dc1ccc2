/* The queue's speed, beside a bare SKIP LOCKED loop on the same PostgreSQL (fsync on, in a folder on a disk):
 *
 *     bench.queue [path|share|size|room|latency|recovery]… [--dir /var/tmp] [--clients 4] [--batch 1]
 *                 [--jobs 400] [--rounds 7] [--finished 1000000] [--waiting 100000]
 *
 * Not a test: it prints figures and judges nothing. docs/performance.md has the last ones, docs/queue.md says
 * what is measured. Nothing is faked: runs are submitted, jobs claimed by share, beaten for and completed
 * with derivation, lineage, attestation, events and audit by the functions that a worker calls; only the
 * child is left out, and what it would have made is a digest. */
#include "pipeline/service/worker_impl.h"
#include "tests/integration/service/service_fixture.h"

#include <getopt.h>
#include <time.h>

enum { MAX_CLIENTS = 32, MAX_BATCH = 64, MAX_PROJECTS = 16, MAX_ROUNDS = 64 };

static struct {
    const char *dir;
    int64_t clients, batch, jobs, rounds, finished, waiting;
} set = {"/var/tmp", 4, 1, 400, 7, 1000000, 100000};

static double seconds(uint64_t from_ns)
{
    return (double)(mlo_clock_ns() - from_ns) / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof *values, by_value);
    return values[(size_t)((double)(n - 1) * q + 0.5)];
}

static void run_sql(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    mlo_db_release(conn);
}

/* --- the bare loop ------------------------------------------------------------------------------------- */

static const struct mlo_sql BARE_CLAIM = {
    "bare_claim",
    "update bare_job set state = 'running', token = gen_random_uuid(), lease_until = now() + interval '1 "
    "min' "
    "where id in (select id from bare_job where state = 'ready' order by id limit $1 for update skip locked) "
    "returning id, token::text",
    1};
static const struct mlo_sql BARE_DONE = {
    "bare_done",
    "update bare_job set state = 'done', token = null, lease_until = null where id = $1 and token = $2::uuid",
    2};

static const struct mlo_sql BARE_DONE_ALL = {
    "bare_done_all",
    "update bare_job b set state = 'done', token = null, lease_until = null from unnest($1::bigint[], "
    "$2::uuid[]) d(id, token) where b.id = d.id and b.token = d.token",
    2};

static void bare_create(struct service_fixture *f)
{
    run_sql(f,
            "create table bare_job (id bigint generated always as identity primary key, state text not null, "
            "token uuid, lease_until timestamptz, payload text not null); "
            "create index bare_ready on bare_job (id) where state = 'ready'; "
            "grant select, update on bare_job to mlopt_worker");
}

static void bare_fill(struct service_fixture *f, int64_t jobs)
{
    char sql[200];
    snprintf(sql, sizeof sql,
             "insert into bare_job (state, payload) select 'ready', repeat('x', 300) from "
             "generate_series(1, %lld)",
             (long long)jobs);
    run_sql(f, sql);
}

/* --- clients ------------------------------------------------------------------------------------------- */

struct load {
    struct service_fixture *f;
    struct mlo_worker worker; /* what signing asks for */
    bool bare, together;
    int64_t wanted; /* jobs of this round */
    _Atomic int64_t done, claimed, claims;
    _Atomic uint64_t claim_ns, beat_ns, sign_ns, complete_ns;
    int64_t projects[MAX_PROJECTS];
    _Atomic int64_t served[MAX_PROJECTS];
    volatile sig_atomic_t stop;
};

/* As one writes it who has nothing else to do: each job is completed by itself, or all of a claim together.
 */
static void bare_client(struct load *load)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    struct mlo_rows rows = {0};
    assert_mlo_ok(mlo_db_acquire(load->f->worker, &conn, &err), &err);
    while (load->done < load->wanted) {
        struct mlo_array ids = MLO_ARRAY_INIT, tokens = MLO_ARRAY_INIT;
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, set.batch);
        assert_mlo_ok(mlo_db_exec(conn, &BARE_CLAIM, &p, &rows, &err), &err);
        int count = mlo_rows_count(&rows);
        for (int i = 0; i < count; i++) {
            mlo_array_i64(&ids, mlo_rows_i64(&rows, i, 0));
            mlo_array_uuid(&tokens, mlo_rows_text(&rows, i, 1));
            if (!load->together) {
                p = (struct mlo_params)MLO_PARAMS_INIT;
                mlo_param_text(&p, mlo_rows_text(&rows, i, 0));
                mlo_param_text(&p, mlo_rows_text(&rows, i, 1));
                assert_mlo_ok(mlo_db_exec(conn, &BARE_DONE, &p, NULL, &err), &err);
            }
        }
        if (load->together && count > 0) {
            p = (struct mlo_params)MLO_PARAMS_INIT;
            assert_mlo_ok(mlo_param_array(&p, &ids, &err), &err);
            assert_mlo_ok(mlo_param_array(&p, &tokens, &err), &err);
            assert_mlo_ok(mlo_db_exec(conn, &BARE_DONE_ALL, &p, NULL, &err), &err);
        }
        load->done += count;
        mlo_array_clear(&ids);
        mlo_array_clear(&tokens);
        if (count == 0)
            break;
    }
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
}

/* What a job would have made: other bytes for each, and its signed statement. */
struct product {
    struct mlo_completion made;
    char signer[MLO_PUBLIC_KEY_TEXT_SIZE], *envelope;
};

static void make_product(struct load *load, const struct mlo_job *job, struct product *out)
{
    static const struct mlo_attest_run how = {.started_us = 1, .version = "bench"};
    struct mlo_error err = {0};
    char text[64];
    int n = snprintf(text, sizeof text, "made by job %lld", (long long)job->id);
    out->envelope = NULL;
    out->made = (struct mlo_completion){.has_artifact = job->derive,
                                        .size_bytes = (uint64_t)n,
                                        .machine_class = "bench",
                                        .program = "mlopt bench"};
    if (!job->derive)
        return;
    mlo_digest_of(text, (size_t)n, &out->made.artifact);
    assert_mlo_ok(
        mlo_attest_completion(&load->worker, job, &out->made, &how, &out->envelope, out->signer, &err), &err);
    out->made.envelope = out->envelope;
    out->made.signer = out->signer;
}

static void beat_for(struct load *load, const struct mlo_job *jobs, int count)
{
    struct mlo_beat beats[MAX_BATCH];
    for (int i = 0; i < count; i++) {
        beats[i].job = jobs[i].id;
        snprintf(beats[i].token, sizeof beats[i].token, "%s", jobs[i].token);
    }
    mlo_queue_beat_all(load->f->worker, beats, (size_t)count, 60000);
    for (int i = 0; i < count; i++)
        assert_mlo_ok(beats[i].status, &beats[i].error);
}

static void complete_jobs(struct load *load, const struct mlo_job *jobs, int count)
{
    struct product products[MAX_BATCH];
    struct mlo_finished finished[MAX_BATCH];
    uint64_t at = mlo_clock_ns();
    for (int i = 0; i < count; i++) {
        make_product(load, &jobs[i], &products[i]);
        finished[i] = (struct mlo_finished){.job = &jobs[i], .what = &products[i].made};
    }
    load->sign_ns += mlo_clock_ns() - at;
    at = mlo_clock_ns();
    mlo_queue_complete_all(load->f->worker, finished, (size_t)count);
    load->complete_ns += mlo_clock_ns() - at;
    for (int i = 0; i < count; i++) {
        assert_mlo_ok(finished[i].status, &finished[i].error);
        free(products[i].envelope);
    }
}

static void real_client(struct load *load)
{
    const struct mlo_claimer claimer = {.worker = "bench", .targets = "{any,cpu}", .lease_ms = 60000};
    struct mlo_job jobs[MAX_BATCH];
    struct mlo_error err = {0};
    while (load->done < load->wanted && !load->stop) {
        int count;
        uint64_t at = mlo_clock_ns();
        assert_mlo_ok(mlo_queue_claim(load->f->worker, &claimer, jobs, (int)set.batch, &count, &err), &err);
        load->claim_ns += mlo_clock_ns() - at;
        load->claims++;
        if (count == 0)
            continue;
        at = mlo_clock_ns();
        beat_for(load, jobs, count);
        load->beat_ns += mlo_clock_ns() - at;
        complete_jobs(load, jobs, count);
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < MAX_PROJECTS; k++)
                load->served[k] += load->projects[k] == jobs[i].project;
            mlo_job_clear(&jobs[i]);
        }
        load->done += count;
    }
}

static void *client_main(void *arg)
{
    struct load *load = arg;
    if (load->bare)
        bare_client(load);
    else
        real_client(load);
    return NULL;
}

static void *settle_main(void *arg)
{
    struct load *load = arg;
    struct mlo_error err = {0};
    while (!load->stop) { /* as workers do */
        assert_mlo_ok(mlo_queue_settle(load->f->worker, &err), &err);
        for (int i = 0; i < 20 && !load->stop; i++)
            mlo_clock_sleep_ms(50);
    }
    return NULL;
}

/* Jobs a second of one round. */
static double round_of(struct load *load, bool bare, int64_t jobs)
{
    pthread_t clients[MAX_CLIENTS], settler;
    load->bare = bare;
    load->wanted = jobs;
    load->done = 0;
    load->stop = 0;
    uint64_t from = mlo_clock_ns();
    pthread_create(&settler, NULL, settle_main, load);
    for (int i = 0; i < set.clients; i++)
        pthread_create(&clients[i], NULL, client_main, load);
    for (int i = 0; i < set.clients; i++)
        pthread_join(clients[i], NULL);
    double took = seconds(from);
    load->stop = 1;
    pthread_join(settler, NULL);
    return (double)load->done / took;
}

/* --- runs ---------------------------------------------------------------------------------------------- */

#define RECIPE_FOUR                                                                                          \
    "name: four\ntarget: any\ndata: {calibrate: %s/cal, evaluate: %s/test}\nsteps:\n"                        \
    "  - optimize: {}\n  - quantize: {}\n  - evaluate: {metrics: [top1]}\n  - benchmark: {batch: [1]}\n"

#define RECIPE_EMPTY                                                                                         \
    "name: empty\ntarget: any\ndata: {evaluate: %s/test}\nsteps:\n"                                          \
    "  - evaluate: {metrics: [top1]}\n  - evaluate: {metrics: [mse]}\n  - evaluate: {metrics: [mae]}\n"      \
    "  - benchmark: {batch: [1]}\n"

static void begin_load(struct service_fixture *f, struct load *load, int projects)
{
    *load = (struct load){.f = f, .worker = {.o = {.db = f->worker, .work_dir = f->work}}};
    assert_mlo_ok(mlo_fs_mkdirs(f->work, &f->err), &f->err);
    for (int i = 0; i < projects; i++) {
        char name[16];
        snprintf(name, sizeof name, "q%d", i);
        assert_mlo_ok(mlo_project_create(f->pg->conn, &SYSTEM, name, "", &load->projects[i], &f->err),
                      &f->err);
        f->project = load->projects[i];
        add_dataset(f, "cal");
        add_dataset(f, "test");
    }
}

/* Submits runs of four jobs each in the project, every one on a version of its own. */
static void submit_runs(struct load *load, int k, bool derive, int64_t runs)
{
    static int64_t number;
    struct service_fixture *f = load->f;
    char text[512], name[16], orders[32];
    snprintf(name, sizeof name, "q%d", k);
    if (derive)
        snprintf(text, sizeof text, RECIPE_FOUR, name, name);
    else
        snprintf(text, sizeof text, RECIPE_EMPTY, name);
    f->project = load->projects[k];
    for (int64_t i = 0; i < runs; i++) {
        snprintf(orders, sizeof orders, "n=%lld", (long long)++number);
        submit(f, add_version(f, "m", orders), text, 0);
    }
}

/* --- path: the whole path beside the bare loop -----------------------------------------------------------
 */

static void print_rates(const char *what, double *rates, int n)
{
    double low = quantile(rates, (size_t)n, 0.1), high = quantile(rates, (size_t)n, 0.9);
    printf("%-34s %8.0f jobs/s (10%%: %.0f, 90%%: %.0f)\n", what, quantile(rates, (size_t)n, 0.5), low, high);
}

static void print_spent(struct load *load, int64_t jobs)
{
    double each = 1e3 * (double)jobs;
    printf(
        "    a job: claim %.0f us, beat %.0f us, sign %.0f us, complete %.0f us (as a client waits for it)\n",
        (double)load->claim_ns / each, (double)load->beat_ns / each, (double)load->sign_ns / each,
        (double)load->complete_ns / each);
}

static void forget_spent(struct load *load)
{
    load->claim_ns = load->beat_ns = load->sign_ns = load->complete_ns = 0;
}

static void print_ratio(double *ratio, size_t rounds)
{
    double low = quantile(ratio, rounds, 0.1), high = quantile(ratio, rounds, 0.9);
    printf("  ratio %.2f (10%%: %.2f, 90%%: %.2f)\n", quantile(ratio, rounds, 0.5), low, high);
}

/* Jobs of which nothing comes out, and jobs of which something does. */
static const struct shape {
    const char *what;
    bool derive;
} SHAPES[] = {{"four that observe", false}, {"two that derive, signed, and two that observe", true}};
enum { RUN_JOBS = 4 };

static void measure_shape(struct service_fixture *f, struct load *load, const struct shape *shape,
                          int projects)
{
    double bare[MAX_ROUNDS], all[MAX_ROUNDS], real[MAX_ROUNDS], ratio[MAX_ROUNDS], to_all[MAX_ROUNDS];
    int64_t runs = set.jobs / RUN_JOBS / projects, jobs = 0;
    printf("path: %lld clients, batch %lld, rounds of %lld jobs in turn, %d projects; runs of %s\n",
           (long long)set.clients, (long long)set.batch, (long long)set.jobs, projects, shape->what);
    for (int i = -1; i < set.rounds; i++) { /* one to warm up */
        bare_fill(f, 2 * set.jobs);
        for (int k = 0; k < projects; k++)
            submit_runs(load, k, shape->derive, runs);
        load->together = false;
        double b = round_of(load, true, set.jobs);
        load->together = true;
        double a = round_of(load, true, set.jobs), r = round_of(load, false, runs * RUN_JOBS * projects);
        if (i < 0) {
            forget_spent(load);
            continue;
        }
        jobs += load->done;
        bare[i] = b;
        all[i] = a;
        real[i] = r;
        ratio[i] = r / b;
        to_all[i] = r / a;
    }
    print_rates("  bare claim + complete", bare, (int)set.rounds);
    print_rates("  the same, completing together", all, (int)set.rounds);
    print_rates("  claim, beat, complete", real, (int)set.rounds);
    print_spent(load, jobs);
    print_ratio(ratio, (size_t)set.rounds);
    printf("  to completing together: %.2f\n", quantile(to_all, (size_t)set.rounds, 0.5));
}

static void measure_path(struct service_fixture *f)
{
    enum { PROJECTS = 4 };
    struct load load;
    begin_load(f, &load, PROJECTS);
    bare_create(f);
    for (size_t i = 0; i < MLO_COUNT(SHAPES); i++)
        measure_shape(f, &load, &SHAPES[i], PROJECTS);
}

/* --- share: eleven projects, one of them flooding ----------------------------------------------------------
 */

static void measure_share(struct service_fixture *f)
{
    enum { PROJECTS = 11 };
    struct load load;
    double mean = 0, worst = 0;
    int64_t each = set.jobs;
    begin_load(f, &load, PROJECTS);
    printf("share: %d projects of equal weight, one with ten times the work of each other\n", PROJECTS);
    submit_runs(&load, 0, true, each / 4 * 10);
    round_of(&load, false, each); /* the flood has the machine for itself before the others come */
    for (int k = 1; k < PROJECTS; k++)
        submit_runs(&load, k, true, each / 4);
    for (int k = 0; k < PROJECTS; k++)
        load.served[k] = 0;
    /* as long as everybody has work: three quarters of what the others brought */
    round_of(&load, false, each * PROJECTS * 3 / 4);
    for (int k = 0; k < PROJECTS; k++)
        mean += (double)load.served[k] / PROJECTS;
    for (int k = 0; k < PROJECTS; k++) {
        double off = (double)load.served[k] / mean - 1;
        printf("  q%-2d %6lld jobs, %+.1f%% of its share%s\n", k, (long long)load.served[k], off * 100,
               k == 0 ? " (flooding)" : "");
        worst = MLO_MAX(worst, off < 0 ? -off : off);
    }
    printf("  furthest from its share: %.1f%%\n", worst * 100);
}

/* --- size: a million finished jobs in the tables
 * ------------------------------------------------------------ */

static void fill(struct service_fixture *f, int64_t project)
{
    char sql[2400];
    printf("size: filling %lld finished and %lld waiting jobs\n", (long long)set.finished,
           (long long)set.waiting);
    fflush(stdout);
    snprintf(
        sql, sizeof sql,
        "set statement_timeout = 0; set synchronous_commit = off; "
        "create temp table like_run as select * from run order by id limit 1; "
        "insert into run (project, version, recipe_name, recipe, target, source, datasets, state, "
        "created_by, "
        "  started_at, finished_at, event_seq) "
        "select %lld, version, recipe_name, recipe, target, source, datasets, "
        "  case when n <= %lld / 4 then 'succeeded' else 'queued' end, created_by, "
        "  case when n <= %lld / 4 then now() end, case when n <= %lld / 4 then now() end, 0 "
        "from like_run, generate_series(1, (%lld + %lld) / 4) n; "
        "insert into job (run, project, position, name, step, kind, target, state, spec, input, output, "
        "result, "
        "  attempts, claims, ready_at, started_at, finished_at) "
        "select r.id, r.project, k, 'evaluate four', 'evaluate', 'observe', 'never', "
        "  case when r.state = 'succeeded' then 'succeeded' when k = 0 then 'ready' else 'waiting' end, "
        "  '{\"options\":{}}', r.source, r.source, repeat('r', 200), 1, 1, now(), now(), "
        "  case when r.state = 'succeeded' then now() end "
        "from run r, generate_series(0, 3) k where r.recipe_name = 'four' and r.event_seq = 0; "
        "insert into attempt (job, number, token, worker, started_at, ended_at, outcome) "
        "select id, 1, gen_random_uuid(), 'w', now(), now(), 'succeeded' from job where target = 'never' and "
        "state = 'succeeded'; "
        "reset statement_timeout",
        (long long)project, (long long)set.finished, (long long)set.finished, (long long)set.finished,
        (long long)set.finished, (long long)set.waiting);
    run_sql(f, sql);
    run_sql(f, "vacuum analyze");
}

static void measure_size(struct service_fixture *small)
{
    void *state;
    struct load one, two;
    double a[MAX_ROUNDS], b[MAX_ROUNDS], ratio[MAX_ROUNDS];
    service_setup(&state);
    struct service_fixture *big = state;
    begin_load(small, &one, 4);
    begin_load(big, &two, 4);
    submit_runs(&two, 0, true, 1);
    round_of(&two, false, 4);
    fill(big, two.projects[3]);
    printf("  %lld jobs in the tables; rounds of %lld jobs, an empty and a full database in turn\n",
           (long long)count_rows(big, "select count(*) from mlopt.job"), (long long)set.jobs);
    int64_t jobs = 0;
    for (int i = -1; i < set.rounds; i++) {
        for (int k = 0; k < 3; k++) {
            submit_runs(&one, k, true, set.jobs / 12);
            submit_runs(&two, k, true, set.jobs / 12);
        }
        double x = round_of(&one, false, set.jobs / 12 * 12), y = round_of(&two, false, set.jobs / 12 * 12);
        if (i < 0) {
            forget_spent(&one);
            forget_spent(&two);
            continue;
        }
        jobs += one.done;
        a[i] = x;
        b[i] = y;
        ratio[i] = y / x;
    }
    print_rates("  empty", a, (int)set.rounds);
    print_spent(&one, jobs);
    print_rates("  full", b, (int)set.rounds);
    print_spent(&two, jobs);
    print_ratio(ratio, (size_t)set.rounds);
    service_teardown(&state);
}

/* --- room: claims beside many ready jobs that have no room now -------------------------------------------
 */

static void measure_room(struct service_fixture *f)
{
    enum { CLAIMS = 20 };
    static const struct {
        const char *what;
        uint64_t free;
    } cases[] = {{"8 GB, all", 8000000000}, {"5 GB", 5000000000}, {"2 GB", 2000000000}};
    struct load load;
    begin_load(f, &load, 1);
    submit_runs(&load, 0, false, 1);
    for (int kinds = 1; kinds <= 50; kinds += 49) {
        char sql[1600];
        snprintf(
            sql, sizeof sql,
            "set statement_timeout = 0; update job set state = 'cancelled', token = null, lease_until = "
            "null where state in ('ready', 'waiting', 'running'); "
            /* a run each: a claim looks at its job's run */
            "create temp table like_run as select * from run order by id limit 1; "
            "insert into run (project, version, recipe_name, recipe, target, source, datasets, state, "
            "created_by, event_seq) select project, version, 'room%d', recipe, target, source, datasets, "
            "'queued', created_by, 0 from like_run, generate_series(1, %lld); drop table like_run; "
            "insert into job (run, project, position, name, step, kind, target, state, spec, input, "
            "ready_at, memory_bytes) select id, project, 0, 'evaluate', 'evaluate', 'observe', 'any', "
            "'ready', '{\"options\":{}}', source, now(), 3000000000 + id %% %d from run "
            "where recipe_name = 'room%d'",
            kinds, (long long)set.waiting, kinds, kinds);
        run_sql(f, sql);
        run_sql(f, "vacuum analyze");
        printf("room: %lld ready jobs that need 3 GB, of %d kinds; claims of a worker of 8 GB\n",
               (long long)set.waiting, kinds);
        for (size_t c = 0; c < MLO_COUNT(cases); c++) {
            const struct mlo_claimer claimer = {.worker = "bench",
                                                .targets = "{any,cpu}",
                                                .lease_ms = 60000,
                                                .memory_bytes = 8000000000,
                                                .free_memory_bytes = &cases[c].free};
            double ms[CLAIMS];
            int got = 0;
            for (int i = -3; i < CLAIMS; i++) { /* planned, then measured */
                struct mlo_job job;
                int count;
                uint64_t at = mlo_clock_ns();
                assert_mlo_ok(mlo_queue_claim(f->worker, &claimer, &job, 1, &count, &f->err), &f->err);
                if (i >= 0)
                    ms[i] = seconds(at) * 1e3;
                got += i >= 0 ? count : 0;
                if (count)
                    mlo_job_clear(&job);
            }
            printf("  free: %-10s p50 %6.2f ms, p90 %6.2f ms a claim; %d of %d got a job\n", cases[c].what,
                   quantile(ms, CLAIMS, 0.5), quantile(ms, CLAIMS, 0.9), got, CLAIMS);
        }
    }
}

/* --- latency, overhead, recovery: workers with children
 * ------------------------------------------------------ */

/* When the micro step last wrote this line, on our clock; 0: it did not. */
static uint64_t logged_ns(struct service_fixture *f, const char *prefix)
{
    struct mlo_buf text = MLO_BUF_INIT;
    char *path = mlo_fs_join(f->state, "log", NULL);
    uint64_t ns = 0;
    if (mlo_fs_exists(path) && mlo_fs_read(path, 1 << 24, &text, NULL) == MLO_OK)
        for (const char *at = mlo_buf_str(&text); (at = strstr(at, prefix)); at += strlen(prefix))
            ns = strtoull(at + strlen(prefix), NULL, 10);
    mlo_buf_clear(&text);
    free(path);
    return ns;
}

static void forget_log(struct service_fixture *f)
{
    char *path = mlo_fs_join(f->state, "log", NULL);
    unlink(path);
    free(path);
}

#define RECIPE_ONE                                                                                           \
    "name: one\ntarget: any\ndata: {evaluate: p/test}\nsteps:\n  - evaluate: {metrics: [top1]}\n"

static void measure_latency(struct service_fixture *f)
{
    enum { RUNS = 200 };
    struct test_worker w;
    double claimed[RUNS], begun[RUNS], service[RUNS];
    start_worker(f, &w, 1);
    w.options.poll_ms = 1000;
    mlo_clock_sleep_ms(500);
    for (int i = -5; i < RUNS; i++) {
        struct timespec real;
        forget_log(f);
        clock_gettime(CLOCK_REALTIME, &real);
        uint64_t from = mlo_clock_ns();
        int64_t run = submit(f, f->version, RECIPE_ONE, 0);
        char sql[256];
        wait_run(f, run);
        snprintf(sql, sizeof sql,
                 "select (extract(epoch from started_at) * 1000000)::bigint from mlopt.job where run = %lld",
                 (long long)run);
        int64_t started_us = count_rows(f, sql);
        if (i >= 0) {
            snprintf(sql, sizeof sql,
                     "select (extract(epoch from finished_at - started_at) * 1000000)::bigint from mlopt.job "
                     "where run = %lld",
                     (long long)run);
            claimed[i] = (double)started_us / 1e3 - (double)real.tv_sec * 1e3 - (double)real.tv_nsec / 1e6;
            begun[i] = (double)(logged_ns(f, "start evaluate ") - from) / 1e6;
            service[i] = (double)count_rows(f, sql) / 1e3 -
                         (double)(logged_ns(f, "end evaluate ") - logged_ns(f, "start evaluate ")) / 1e6;
        }
        mlo_clock_sleep_ms(20);
    }
    stop_worker(&w);
    printf("latency: %d runs of one job, one after another, an idle worker\n", RUNS);
    printf("  enqueue to claimed (submitting included)  p50 %6.2f ms, p99 %6.2f ms\n",
           quantile(claimed, RUNS, 0.5), quantile(claimed, RUNS, 0.99));
    printf("  enqueue to the child's first line         p50 %6.2f ms, p99 %6.2f ms\n",
           quantile(begun, RUNS, 0.5), quantile(begun, RUNS, 0.99));
    printf("overhead: claim to completion, less what the step did in its child\n");
    printf("  added to a job                            p50 %6.2f ms, p99 %6.2f ms\n",
           quantile(service, RUNS, 0.5), quantile(service, RUNS, 0.99));
}

static void measure_recovery(struct service_fixture *f)
{
    enum { ROUNDS = 7, LEASE = 2000 };
    double late[ROUNDS];
    int64_t version = add_version(f, "held", "evaluate.sleep_ms=60000");
    for (int i = 0; i < ROUNDS; i++) {
        forget_log(f);
        pid_t first = start_worker_process(f, LEASE), second;
        int64_t run = submit(f, version, RECIPE_ONE, 0);
        wait_until(logged_ns(f, "start evaluate ") > 0);
        uint64_t begun = logged_ns(f, "start evaluate ");
        second = start_worker_process(f, LEASE);
        mlo_clock_sleep_ms(700 + (uint32_t)(i * 300)); /* before and after a heartbeat */
        kill(first, SIGKILL);
        uint64_t killed = mlo_clock_ns();
        waitpid(first, NULL, 0);
        wait_until(logged_ns(f, "start evaluate ") > begun);
        late[i] = (double)(logged_ns(f, "start evaluate ") - killed) / 1e9 - LEASE / 1e3;
        assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, run, "", &f->err), &f->err);
        kill(second, SIGTERM);
        waitpid(second, NULL, 0);
    }
    printf(
        "recovery: %d workers killed, lease %d ms; from the kill to the job's next start, less the lease\n",
        ROUNDS, LEASE);
    printf("  median %.2f s, longest %.2f s\n", quantile(late, ROUNDS, 0.5), quantile(late, ROUNDS, 1));
}

/* --- main ---------------------------------------------------------------------------------------------- */

static const struct section {
    const char *name;
    void (*measure)(struct service_fixture *);
} SECTIONS[] = {
    {"path", measure_path}, {"share", measure_share},     {"size", measure_size},
    {"room", measure_room}, {"latency", measure_latency}, {"recovery", measure_recovery},
};

static bool asked(const struct section *section, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], section->name) == 0)
            return true;
    return count == 0;
}

static int read_options(int argc, char **argv)
{
    static const struct option options[] = {
        {"dir", required_argument, NULL, 'd'},     {"clients", required_argument, NULL, 'c'},
        {"batch", required_argument, NULL, 'b'},   {"jobs", required_argument, NULL, 'j'},
        {"rounds", required_argument, NULL, 'r'},  {"finished", required_argument, NULL, 'f'},
        {"waiting", required_argument, NULL, 'w'}, {NULL, 0, NULL, 0},
    };
    static const struct {
        int key;
        int64_t *to, least, most;
    } numbers[] = {{'c', &set.clients, 1, MAX_CLIENTS}, {'b', &set.batch, 1, MAX_BATCH},
                   {'j', &set.jobs, 48, 1000000},       {'r', &set.rounds, 1, MAX_ROUNDS},
                   {'f', &set.finished, 4, 100000000},  {'w', &set.waiting, 4, 10000000}};
    for (int key; (key = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool right = key == 'd';
        if (key == 'd')
            set.dir = optarg;
        for (size_t i = 0; i < MLO_COUNT(numbers); i++)
            if (numbers[i].key == key)
                right = mlo_str_to_i64(optarg, numbers[i].to) && *numbers[i].to >= numbers[i].least &&
                        *numbers[i].to <= numbers[i].most;
        if (!right) {
            fprintf(
                stderr,
                "usage: bench.queue [path|share|size|room|latency|recovery]… [--dir FOLDER] [--clients N] "
                "[--batch N] [--jobs N] [--rounds N] [--finished N] [--waiting N]\n");
            return -1;
        }
    }
    return optind;
}

/* A PostgreSQL that has been at work for a while does not make new WAL files, but takes old ones again. */
static void warm_up(void)
{
    static const char *const statements[] = {"alter system set min_wal_size = '1GB'",
                                             "alter system set checkpoint_timeout = '1h'",
                                             "select pg_reload_conf()", "create table warm (n int)"};
    char *conninfo = mlo_embedded_conninfo(pg_fixture_server, NULL, "postgres");
    PGconn *conn = PQconnectdb(conninfo);
    for (size_t i = 0; i < MLO_COUNT(statements); i++)
        PQclear(PQexec(conn, statements[i]));
    for (int i = 0; i < 24; i++)
        PQclear(PQexec(conn, "insert into warm values (1); select pg_switch_wal()"));
    PQclear(PQexec(conn, "checkpoint"));
    PQfinish(conn);
    free(conninfo);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    int first = read_options(argc, argv);
    if (first < 0)
        return 2;
    struct mlo_error err = {0};
    setenv("TMPDIR", set.dir, 1);
    assert_mlo_ok(mlo_fs_tempdir(set.dir, "mlopt-bench-", &pg_fixture_dir, &err), &err);
    chmod(pg_fixture_dir, 0755);
    char *dir = mlo_fs_join(pg_fixture_dir, "pg", NULL);
    struct mlo_embedded_options options = {.dir = dir};
    assert_mlo_ok(mlo_embedded_start(&options, &pg_fixture_server, &err), &err);
    warm_up();
    for (size_t i = 0; i < MLO_COUNT(SECTIONS); i++) {
        void *state;
        if (!asked(&SECTIONS[i], argv + first, argc - first))
            continue;
        service_setup(&state);
        SECTIONS[i].measure(state);
        fflush(stdout);
        service_teardown(&state);
    }
    free(dir);
    return pg_fixture_stop(NULL);
}
