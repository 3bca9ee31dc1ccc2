/* Whose turn it is: shares of projects, limits, pauses, resources, batches, and what attempts are counted as.
 */
#include "tests/integration/service/service_fixture.h"

enum { PROJECTS = 11 };

struct shares {
    struct service_fixture *f;
    int64_t ids[PROJECTS];
};

static void run_sql(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    mlo_db_release(conn);
}

/* Projects q0…, each with a model and one version. */
static void add_projects(struct service_fixture *f, struct shares *s, int count)
{
    s->f = f;
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "q%d", i);
        assert_mlo_ok(mlo_project_create(f->pg->conn, &SYSTEM, name, "", &s->ids[i], &f->err), &f->err);
        f->project = s->ids[i];
        add_dataset(f, "test");
    }
}

/* Runs of one observing job each. */
static void add_jobs(struct shares *s, int project, int count, int priority)
{
    char text[256], order[16];
    s->f->project = s->ids[project];
    snprintf(text, sizeof text,
             "name: r\ntarget: any\ndata: {evaluate: q%d/test}\nsteps:\n  - evaluate: {}\n", project);
    snprintf(order, sizeof order, "q=%d", project);
    int64_t version = add_version(s->f, "m", order);
    for (int i = 0; i < count; i++)
        submit(s->f, version, text, priority);
}

/* Claims `total` jobs, `batch` at a time, and ends each at once when `end`; counts[k] gets those of project
 * k. */
static int claim_jobs(struct shares *s, int total, int batch, bool end, int counts[PROJECTS])
{
    const struct mlo_claimer claimer = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 60000};
    struct mlo_job jobs[16];
    int got = 0, count = 1;
    for (int k = 0; k < PROJECTS; k++)
        counts[k] = 0;
    while (got < total && count > 0) {
        assert_mlo_ok(
            mlo_queue_claim(s->f->worker, &claimer, jobs, MLO_MIN(batch, total - got), &count, &s->f->err),
            &s->f->err);
        for (int i = 0; i < count; i++) {
            const struct mlo_completion nothing = {.machine_class = "test", .program = "test"};
            for (int k = 0; k < PROJECTS; k++)
                counts[k] += s->ids[k] == jobs[i].project;
            if (end)
                assert_mlo_ok(mlo_queue_complete(s->f->worker, &jobs[i], &nothing, &s->f->err), &s->f->err);
            mlo_job_clear(&jobs[i]);
        }
        got += count;
    }
    return got;
}

static void test_share__a_flood_leaves_the_others_theirs(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, PROJECTS);
    add_jobs(&s, 0, 120, 0);
    assert_int_equal(claim_jobs(&s, 20, 4, true, counts), 20); /* the flood has it for itself */
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    for (int k = 1; k < PROJECTS; k++)
        add_jobs(&s, k, 12, 0);
    assert_int_equal(claim_jobs(&s, 6 * PROJECTS, 1, true, counts), 6 * PROJECTS);
    for (int k = 0; k < PROJECTS; k++)
        if (counts[k] < 5 || counts[k] > 7)
            fail_msg("project %d had %d jobs of 6", k, counts[k]);
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    assert_int_equal(claim_jobs(&s, 5 * PROJECTS, 7, false, counts), 5 * PROJECTS); /* several a statement */
    for (int k = 0; k < PROJECTS; k++)
        if (counts[k] < 4 || counts[k] > 6)
            fail_msg("project %d had %d jobs of 5", k, counts[k]);
}

static void test_share__follows_the_weights(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, 3);
    run_sql(s.f,
            "update project_queue set weight = 3 where project = (select id from project where name = 'q1')");
    for (int k = 0; k < 3; k++)
        add_jobs(&s, k, 30, 0);
    assert_int_equal(claim_jobs(&s, 40, 3, false, counts), 40);
    assert_in_range(counts[0], 7, 9);
    assert_in_range(counts[1], 23, 25);
    assert_in_range(counts[2], 7, 9);
}

static void test_share__is_of_time_and_not_of_jobs(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, 2);
    add_jobs(&s, 0, 10, 0);
    add_jobs(&s, 1, 30, 0);
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err); /* both are seen to have work */
    assert_int_equal(claim_jobs(&s, 1, 1, false, counts), 1);
    assert_int_equal(counts[0], 1);
    /* it has been at work for ten seconds: counted before it ends, and once */
    run_sql(s.f, "update attempt set started_at = clock_timestamp() - interval '10 s'");
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    assert_int_equal(claim_jobs(&s, 10, 1, false, counts), 10);
    assert_in_range(counts[1], 9, 10);
}

static void test_share__idling_saves_nothing_up(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, 2);
    add_jobs(&s, 0, 40, 0);
    assert_int_equal(claim_jobs(&s, 30, 5, false, counts), 30);
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    add_jobs(&s, 1, 20, 0);
    assert_int_equal(claim_jobs(&s, 10, 1, false, counts), 10);
    assert_in_range(counts[0], 4, 6);
    assert_in_range(counts[1], 4, 6);
}

/* Claims one job, lets it take as long as its project's jobs take, and ends it; all in no time, the clock of
 * the records is set back instead. Returns its project. */
static int work_one(struct shares *s, const double *seconds)
{
    const struct mlo_claimer claimer = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 60000};
    const struct mlo_completion nothing = {.machine_class = "test", .program = "test"};
    struct mlo_job job;
    char sql[256];
    int count = 0, project = 0;
    assert_mlo_ok(mlo_queue_claim(s->f->worker, &claimer, &job, 1, &count, &s->f->err), &s->f->err);
    assert_int_equal(count, 1);
    while (s->ids[project] != job.project)
        project++;
    snprintf(sql, sizeof sql, "update attempt set started_at = started_at - interval '%g s' where job = %lld",
             seconds[project], (long long)job.id);
    run_sql(s->f, sql);
    assert_mlo_ok(mlo_queue_settle(s->f->worker, &s->f->err), &s->f->err); /* while it runs */
    assert_mlo_ok(mlo_queue_complete(s->f->worker, &job, &nothing, &s->f->err), &s->f->err);
    assert_mlo_ok(mlo_queue_settle(s->f->worker, &s->f->err), &s->f->err);
    mlo_job_clear(&job);
    return project;
}

static void test_share__of_long_steps_and_short_ones_is_the_same(void **state)
{
    static const double seconds[] = {400, 20};
    struct shares s = {0};
    double had[2] = {0};
    add_projects(*state, &s, 2);
    add_jobs(&s, 0, 20, 0);
    add_jobs(&s, 1, 50, 0);
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    for (int i = 0; i < 44; i++) {
        int project = work_one(&s, seconds);
        had[project] += seconds[project];
    }
    if (had[0] > had[1] + 450 || had[1] > had[0] + 450)
        fail_msg("%g s of long steps and %g s of short ones", had[0], had[1]);
}

/* Of three projects q0 has one job at work, and may have no more; q1 has forty to do. */
static void begin_limited(void *fixture, struct shares *s)
{
    int counts[PROJECTS];
    add_projects(fixture, s, 3);
    run_sql(s->f, "update project_queue set max_running = 1 where project = "
                  "(select id from project where name = 'q0')");
    add_jobs(s, 0, 3, 0);
    assert_int_equal(claim_jobs(s, 1, 1, false, counts), 1);
    assert_int_equal(counts[0], 1);
    add_jobs(s, 1, 40, 0);
}

/* q2 comes; from now on it and q1 have the same. */
static void assert_newcomer_has_half(struct shares *s, const double *seconds)
{
    int had[3] = {0};
    add_jobs(s, 2, 30, 0);
    assert_mlo_ok(mlo_queue_settle(s->f->worker, &s->f->err), &s->f->err);
    for (int i = 0; i < 20; i++)
        had[work_one(s, seconds)]++;
    assert_int_equal(had[0], 0);
    assert_in_range(had[1], 8, 12);
    assert_in_range(had[2], 8, 12);
}

static void test_share__of_a_newcomer_is_not_that_of_one_at_its_limit(void **state)
{
    static const double long_steps[] = {0, 400, 0}, short_steps[] = {0, 20, 20};
    struct shares s = {0};
    begin_limited(*state, &s);
    for (int i = 0; i < 3; i++)
        assert_int_equal(work_one(&s, long_steps), 1);
    assert_int_equal(work_one(&s, short_steps), 1);
    assert_newcomer_has_half(&s, short_steps);
}

/* No claim moves the clock while long steps run: settling does, and who may have no more does not hold it
 * back. */
static void test_share__of_a_newcomer_counts_what_runs(void **state)
{
    static const double steps[] = {0, 20, 20};
    struct shares s = {0};
    int counts[PROJECTS];
    begin_limited(*state, &s);
    assert_int_equal(claim_jobs(&s, 1, 1, false, counts), 1);
    assert_int_equal(counts[1], 1);
    run_sql(
        s.f,
        "update attempt set started_at = started_at - interval '400 s' where job in (select j.id from job j "
        "join project p on p.id = j.project where p.name = 'q1')");
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    assert_newcomer_has_half(&s, steps);
}

/* Nobody is next when the newcomer is seen: claims have moved the clock. */
static void test_share__of_a_newcomer_counts_what_was_claimed(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, 2);
    add_jobs(&s, 0, 30, 0);
    assert_int_equal(claim_jobs(&s, 30, 5, false, counts), 30);
    /* however slow this machine is, they take no longer than every job counts */
    run_sql(s.f, "update attempt set started_at = started_at + interval '1 h'");
    add_jobs(&s, 1, 30, 0);
    assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    add_jobs(&s, 0, 30, 0);
    assert_int_equal(claim_jobs(&s, 20, 1, false, counts), 20);
    assert_in_range(counts[0], 8, 12);
    assert_in_range(counts[1], 8, 12);
}

static void test_limit__of_jobs_at_once(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, 2);
    run_sql(s.f, "update project_queue set max_running = 3");
    add_jobs(&s, 0, 9, 0);
    add_jobs(&s, 1, 2, 0);
    assert_int_equal(claim_jobs(&s, 11, 8, false, counts), 5);
    assert_int_equal(counts[0], 3);
    assert_int_equal(counts[1], 2);
    run_sql(s.f, "update project_queue set max_running = 0");
    assert_int_equal(claim_jobs(&s, 1, 1, false, counts), 0);
    run_sql(s.f, "update project_queue set max_running = null");
    assert_int_equal(claim_jobs(&s, 11, 8, false, counts), 6);
}

static void test_pause__of_a_project(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, 2);
    add_jobs(&s, 0, 3, 0);
    add_jobs(&s, 1, 3, 0);
    run_sql(
        s.f,
        "update project_queue set paused = true where project = (select id from project where name = 'q0')");
    assert_int_equal(claim_jobs(&s, 6, 6, false, counts), 3);
    assert_int_equal(counts[0], 0);
    run_sql(s.f, "update project_queue set paused = false");
    assert_int_equal(claim_jobs(&s, 6, 6, false, counts), 3);
    assert_int_equal(counts[0], 3);
}

static void test_priority__goes_before_within_a_project_and_below_zero_after_all(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    struct mlo_job job;
    const struct mlo_claimer claimer = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 60000};
    add_projects(*state, &s, 2);
    add_jobs(&s, 0, 2, -1);
    add_jobs(&s, 1, 4, 0);
    add_jobs(&s, 1, 1, 5);
    int count;
    assert_mlo_ok(mlo_queue_claim(s.f->worker, &claimer, &job, 1, &count, &s.f->err), &s.f->err);
    char sql[96];
    snprintf(sql, sizeof sql, "select priority from mlopt.job where id = %lld", (long long)job.id);
    assert_int_equal(count_rows(s.f, sql), 5);
    mlo_job_clear(&job);
    assert_int_equal(claim_jobs(&s, 4, 1, false, counts), 4); /* although q0 had nothing yet */
    assert_int_equal(counts[1], 4);
    assert_int_equal(claim_jobs(&s, 4, 4, false, counts), 2);
    assert_int_equal(counts[0], 2);
}

static void test_resources__a_worker_gets_what_it_has_room_for(void **state)
{
    struct shares s = {0};
    struct mlo_job job;
    int count;
    static const struct {
        const char *gpus;
        uint64_t memory, disk;
        int takes;
    } workers[] = {
        {NULL, 0, 0, 0},        {"{A100}", 0, 0, 0},     {"{A100,H100}", 99, 100, 0},
        {"{H100}", 100, 99, 0}, {"{H100}", 100, 100, 1},
    };
    add_projects(*state, &s, 1);
    add_jobs(&s, 0, 1, 0);
    run_sql(s.f, "update job set memory_bytes = 100, disk_bytes = 100, gpu = 'H100'");
    for (size_t i = 0; i < MLO_COUNT(workers); i++) {
        const struct mlo_claimer claimer = {.worker = "w",
                                            .targets = "{any,cpu}",
                                            .lease_ms = 60000,
                                            .gpus = workers[i].gpus,
                                            .memory_bytes = workers[i].memory,
                                            .disk_bytes = workers[i].disk};
        assert_mlo_ok(mlo_queue_claim(s.f->worker, &claimer, &job, 1, &count, &s.f->err), &s.f->err);
        if (count != workers[i].takes)
            fail_msg("worker %zu takes %d jobs", i, count);
    }
    mlo_job_clear(&job);
}

static void test_batch__has_each_derivation_once(void **state)
{
    struct service_fixture *f = *state;
    const struct mlo_claimer claimer = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 60000};
    struct mlo_job jobs[4];
    int count;
    for (int i = 0; i < 3; i++)
        submit(f, f->version, RECIPE_DERIVE, 0);
    assert_mlo_ok(mlo_queue_claim(f->worker, &claimer, jobs, 4, &count, &f->err), &f->err);
    assert_int_equal(count, 1);
    mlo_job_clear(&jobs[0]);
    /* a job that an older program made ready has no key: noticed behind the claim, given back, and counted as
     * no try
     */
    run_sql(f, "update job set derivation = null where state = 'ready'");
    assert_mlo_ok(mlo_queue_claim(f->worker, &claimer, jobs, 4, &count, &f->err), &f->err);
    assert_int_equal(count, 0);
    assert_int_equal(
        count_rows(f, "select count(*) from mlopt.job where state = 'ready' and derivation is not null "
                      "and attempts = 0"),
        2);
}

static void test_settle__takes_its_turn_with_claims(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_db_conn *claiming;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &claiming, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(claiming, "begin; select pg_advisory_xact_lock(7708121)", &f->err),
                  &f->err);
    /* both lock rows of several projects: one behind the other, and never crosswise */
    assert_int_equal(mlo_queue_settle(f->worker, &f->err), MLO_ECONFLICT);
    assert_mlo_ok(mlo_db_exec_text(claiming, "rollback", &f->err), &f->err);
    mlo_db_release(claiming);
    assert_mlo_ok(mlo_queue_settle(f->worker, &f->err), &f->err);
}

static void test_batch__goes_on_behind_a_job_that_cannot_be_begun(void **state)
{
    struct service_fixture *f = *state;
    const struct mlo_claimer claimer = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 60000};
    struct mlo_job jobs[4];
    char order[16];
    int count;
    for (int i = 0; i < 4; i++) {
        snprintf(order, sizeof order, "n=%d", i);
        submit(f, add_version(f, "m", order), RECIPE_DERIVE, 0);
    }
    /* the first cannot be read at all; the second meets the trouble of the database that the trigger makes */
    run_sql(f, "update job set spec = '{' where id = (select min(id) from job); "
               "update job set derivation = null where id = (select min(id) + 1 from job); "
               "create function trouble() returns trigger language plpgsql as "
               "$$ begin raise 'busy' using errcode = '40001'; end $$; "
               "create trigger trouble before update of derivation on job for each row "
               "when (old.derivation is null and new.derivation is not null) execute function trouble()");
    assert_mlo_ok(mlo_queue_claim(f->worker, &claimer, jobs, 4, &count, &f->err), &f->err);
    assert_int_equal(count, 2);
    for (int i = 0; i < count; i++)
        mlo_job_clear(&jobs[i]);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where state = 'running'"), 2);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where state = 'failed' and id = (select "
                                   "min(id) from mlopt.job) and error like '%spec%'"),
                     1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where state = 'ready' and attempts = 0 "
                                   "and id = (select min(id) + 1 from mlopt.job)"),
                     1);
    /* alone, it is an error */
    assert_int_equal(mlo_queue_claim(f->worker, &claimer, jobs, 4, &count, &f->err), MLO_ECONFLICT);
    assert_int_equal(count, 0);
    assert_int_equal(
        count_rows(f,
                   "select count(*) from mlopt.attempt where outcome = 'returned' and ended_at is not null"),
        2);
}

static void test_usage__is_counted_once_and_by_month(void **state)
{
    struct shares s = {0};
    int counts[PROJECTS];
    add_projects(*state, &s, 2);
    add_jobs(&s, 0, 3, 0);
    add_jobs(&s, 1, 1, 0);
    assert_int_equal(claim_jobs(&s, 4, 2, false, counts), 4);
    run_sql(s.f,
            "update attempt set started_at = '2026-01-31 23:59:00+00', ended_at = '2026-01-31 23:59:10+00', "
            "outcome = 'succeeded', cpu_s = 7, gpu_s = 2, read_bytes = 100, written_bytes = 50 "
            "where job = (select min(id) from job)");
    run_sql(s.f,
            "update attempt set started_at = '2026-02-01 00:00:00+00', ended_at = '2026-02-01 00:00:05+00', "
            "outcome = 'failed' where ended_at is null");
    for (int i = 0; i < 3; i++)
        assert_mlo_ok(mlo_queue_settle(s.f->worker, &s.f->err), &s.f->err);
    assert_int_equal(count_rows(s.f, "select count(*) from mlopt.usage_entry"), 0);
    assert_int_equal(count_rows(s.f, "select count(*) from mlopt.usage_month"), 3);
    assert_int_equal(
        count_rows(s.f, "select count(*) from mlopt.usage_month where month = '2026-01-01' and attempts = 1 "
                        "and failed = 0 and wall_s = 10 and cpu_s = 7 and gpu_s = 2 and read_bytes = 100 "
                        "and written_bytes = 50"),
        1);
    assert_int_equal(
        count_rows(s.f, "select sum(wall_s)::bigint from mlopt.usage_month where month = '2026-02-01' and "
                        "failed = attempts"),
        15);
}

static void test_quota__of_gpu_seconds_keeps_gpu_jobs_only(void **state)
{
    struct shares s = {0};
    struct mlo_job job;
    int count;
    const struct mlo_claimer claimer = {.worker = "w", .targets = "{any,\"cuda:sm90\"}", .lease_ms = 60000};
    add_projects(*state, &s, 1);
    add_jobs(&s, 0, 2, 0);
    run_sql(s.f, "update job set target = 'cuda:sm90' where id = (select min(id) from job); "
                 "update project_queue set gpu_seconds_month = 100; "
                 "insert into usage_month select project, date_trunc('month', now() at time zone "
                 "'UTC')::date, 1, 0, 0, "
                 "  100, 0, 100, 0, 0 from job limit 1");
    assert_mlo_ok(mlo_queue_claim(s.f->worker, &claimer, &job, 1, &count, &s.f->err), &s.f->err);
    assert_int_equal(count, 1);
    assert_int_equal(
        count_rows(s.f, "select count(*) from mlopt.job where state = 'ready' and target = 'cuda:sm90'"), 1);
    mlo_job_clear(&job);
    run_sql(s.f, "update project_queue set gpu_seconds_month = 101");
    assert_mlo_ok(mlo_queue_claim(s.f->worker, &claimer, &job, 1, &count, &s.f->err), &s.f->err);
    assert_int_equal(count, 1);
    mlo_job_clear(&job);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_share__a_flood_leaves_the_others_theirs),
        SERVICE_TEST(test_share__follows_the_weights),
        SERVICE_TEST(test_share__is_of_time_and_not_of_jobs),
        SERVICE_TEST(test_share__idling_saves_nothing_up),
        SERVICE_TEST(test_share__of_long_steps_and_short_ones_is_the_same),
        SERVICE_TEST(test_share__of_a_newcomer_is_not_that_of_one_at_its_limit),
        SERVICE_TEST(test_share__of_a_newcomer_counts_what_runs),
        SERVICE_TEST(test_share__of_a_newcomer_counts_what_was_claimed),
        SERVICE_TEST(test_limit__of_jobs_at_once),
        SERVICE_TEST(test_pause__of_a_project),
        SERVICE_TEST(test_priority__goes_before_within_a_project_and_below_zero_after_all),
        SERVICE_TEST(test_resources__a_worker_gets_what_it_has_room_for),
        SERVICE_TEST(test_batch__has_each_derivation_once),
        SERVICE_TEST(test_batch__goes_on_behind_a_job_that_cannot_be_begun),
        SERVICE_TEST(test_settle__takes_its_turn_with_claims),
        SERVICE_TEST(test_usage__is_counted_once_and_by_month),
        SERVICE_TEST(test_quota__of_gpu_seconds_keeps_gpu_jobs_only),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
