/* The run of a search: its rungs are planned once, whoever dies or races; a candidate that fails is out of
 * it; budgets end it; what it names can be had, and the same search makes the same bytes. */
#include "tests/integration/service/service_fixture.h"

#include "pipeline/service/search_impl.h"

#define SEARCH(options)                                                                                      \
    "name: seek\ntarget: any\ndata: {calibrate: p/cal, select: p/sel, evaluate: p/test}\nsteps:\n"           \
    "  - search: {prune: [none, 50%], precision: [int8, float], together: 2, foresee: false, " options "}\n"
#define ALSO                                                                                                 \
    "name: also\ntarget: any\ndata: {calibrate: p/cal, select: p/sel, evaluate: p/test}\nsteps:\n"           \
    "  - search: {prune: [none, 50%], precision: [int8, float], together: 2, foresee: false}\n"
#define PLAIN SEARCH("goal: \"accuracy_drop<=0.5pt, min latency\"")

static const struct mlo_claimer WORKER = {"w", "{any,cpu}", LEASE_MS};

static void test_sql__every_statement_prepares(void **state)
{
    assert_prepares(*state, MLO_SEARCH_SQL, MLO_SEARCH_SQL_COUNT);
}

/* What no search may be: something planned twice, or left open. */
static void assert_planned_once(struct service_fixture *f, int64_t run)
{
    char sql[700];
    snprintf(sql, sizeof sql,
             "select count(*) from (select 1 from mlopt.job where run = %lld and step <> 'search' group by "
             "spec::json ->> 'candidate', spec::json ->> 'rung', step having count(*) > 1) x",
             (long long)run);
    assert_count(f, sql, 0);
    snprintf(sql, sizeof sql,
             "select count(*) from mlopt.job where run = %lld and state in ('waiting', 'ready', 'running')",
             (long long)run);
    assert_count(f, sql, 0);
    snprintf(sql, sizeof sql, "select max(position) + 1 - count(*) from mlopt.job where run = %lld",
             (long long)run);
    assert_count(f, sql, 0);
}

static json_t *search_of(struct service_fixture *f, int64_t run)
{
    json_t *value = get_run(f, run), *search = json_incref(json_object_get(value, "search"));
    json_decref(value);
    assert_non_null(search);
    return search;
}

static const json_t *point(const json_t *search, const char *name)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(search, "points"), i,
                       row) if (strcmp(mlo_json_str(row, "name", ""), name) == 0) return row;
    fail_msg("no point '%s'", name);
    return NULL;
}

static int64_t jobs_with(struct service_fixture *f, int64_t run, const char *where)
{
    char sql[300];
    snprintf(sql, sizeof sql, "select count(*) from mlopt.job where run = %lld and %s", (long long)run,
             where);
    return count_rows(f, sql);
}

static void claim(struct service_fixture *f, struct mlo_job *job)
{
    int found = 0;
    assert_mlo_ok(mlo_queue_claim(f->worker, &WORKER, job, 1, &found, &f->err), &f->err);
    assert_int_equal(found, 1);
}

/* For good. */
static void fail_job(struct service_fixture *f, const struct mlo_job *job)
{
    struct mlo_error why = {0};
    (void)mlo_error_set(&why, MLO_EINVAL, "told to fail");
    struct mlo_attempt_failure failure = {
        .job = job->id, .token = job->token, .end = MLO_ATTEMPT_FAILED, .error = &why};
    assert_mlo_ok(mlo_queue_fail(f->worker, &failure, &f->err), &f->err);
}

/* A variant is named by the derivation of the run's own job, also where another one came to the same bytes.
 */
static void test_search__names_what_its_run_made(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, f->version, PLAIN, 0);
    start_worker(f, &w, 2);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    (void)count_rows(f,
                     "insert into mlopt.derivation (key, canonical, step, artifact, size, report) select "
                     "decode(repeat('00', 4), 'hex') || substr(key, 5), replace(canonical, '{', '{ '), step, "
                     "artifact, size, report from mlopt.derivation returning 1");
    run = submit(f, f->version, ALSO, 0);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    stop_worker(&w);
    assert_true(count_rows(f, "select count(*) from mlopt.variant where name like 'also-%'") > 0);
    assert_count(f,
                 "select count(*) from mlopt.variant where name like 'also-%' and substr(derivation, 1, 4) = "
                 "decode(repeat('00', 4), 'hex')",
                 0);
}

static void test_search__ends_on_a_front_of_variants(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker a, b;
    struct mlo_variant_info variant;
    int64_t version = add_version(f, "hard", "trial.pruned_percent=9\nevaluate.pruned_percent=9"),
            run = submit(f, version, PLAIN, 0);
    assert_int_equal(jobs_with(f, run, "true"), 1);
    start_worker(f, &a, 2);
    start_worker(f, &b, 2);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    assert_planned_once(f, run);
    json_t *search = search_of(f, run);
    assert_true(mlo_json_bool(search, "done", false) && mlo_json_bool(search, "met", false));
    /* two batches of two, all of the select data, the front, the end */
    assert_int_equal(jobs_with(f, run, "step = 'search'"), 5);
    assert_int_equal(jobs_with(f, run, "step = 'trial' and spec::json ->> 'rung' = '1'"), 4);
    assert_int_equal(jobs_with(f, run, "step = 'evaluate'"),
                     json_array_size(json_object_get(search, "front")));
    /* what two candidates have in common was made once */
    assert_int_equal(jobs_with(f, run, "step = 'prune' and state = 'reused'"), 1);
    assert_string_equal(mlo_json_str(search, "best", ""), "float");
    const json_t *best = point(search, "float");
    assert_true(mlo_json_bool(best, "front", false) && mlo_json_bool(best, "meets", false));
    assert_non_null(json_object_get(best, "evaluated"));
    assert_false(mlo_json_bool(point(search, "prune50-float"), "meets", true));
    /* it can be had by name, and the gates know what selected it */
    assert_mlo_ok(mlo_variant_find(f->pg->conn, version, "seek-float", &variant, &f->err), &f->err);
    char artifact[MLO_DIGEST_TEXT_SIZE];
    assert_string_equal(mlo_digest_text(&variant.artifact, artifact), mlo_json_str(best, "artifact", ""));
    assert_true(count_rows(f, "select count(*) from mlopt.lineage_edge where kind = 'selected-with'") > 0);
    assert_int_equal(
        count_rows(f, "select count(*) from mlopt.evidence where data_role = 'evaluate' and metric = "
                      "'top1' and baseline is not null"),
        json_array_size(json_object_get(search, "front")));
    /* each choice is a decision, in the store */
    assert_int_equal(
        jobs_with(f, run, "step = 'search' and result::json #>> '{report,decision,blob}' is not null"), 5);
    /* again: nothing is made anew, and the same bytes come out of the same choices */
    int64_t again = submit(f, version, PLAIN, 0);
    wait_run(f, again);
    json_t *second = search_of(f, again);
    assert_int_equal(jobs_with(f, again, "kind = 'derive' and state <> 'reused'"), 0);
    for (size_t i = 0; i < json_array_size(json_object_get(search, "points")); i++)
        assert_string_equal(
            mlo_json_str(json_array_get(json_object_get(search, "points"), i), "artifact", ""),
            mlo_json_str(json_array_get(json_object_get(second, "points"), i), "artifact", "?"));
    /* and of one of its variants, when it is made again */
    struct mlo_reproduce_request request = {
        .project = f->project, .version = version, .variant = "seek-float", .actor = &SYSTEM};
    int64_t made;
    assert_mlo_ok(mlo_run_reproduce(f->pg->conn, &request, &made, &f->err), &f->err);
    wait_run(f, made);
    assert_run(f, made, -1, "state", "succeeded");
    assert_int_equal(jobs_with(f, made, "spec::json ->> 'candidate' is not null"), 0);
    stop_worker(&a);
    stop_worker(&b);
    /* where that fails, its run does: no search goes on without it */
    struct mlo_job job;
    assert_mlo_ok(mlo_run_reproduce(f->pg->conn, &request, &made, &f->err), &f->err);
    claim(f, &job);
    fail_job(f, &job);
    mlo_job_clear(&job);
    assert_run(f, made, -1, "state", "failed");
    json_decref(search);
    json_decref(second);
    assert_clean(f);
}

static void test_search__goes_on_without_a_candidate_that_fails(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t version = add_version(f, "bad",
                                  "quantize.fail=invalid\ntrial.pruned_percent=9\nevaluate.pruned_percent=9"),
            run = submit(f, version, PLAIN, 0);
    start_worker(f, &w, 2);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    assert_planned_once(f, run);
    json_t *search = search_of(f, run);
    assert_true(mlo_json_bool(point(search, "int8-mse"), "failed", false));
    assert_string_equal(mlo_json_str(point(search, "int8-mse"), "why", ""), "told to fail");
    assert_string_equal(mlo_json_str(search, "best", ""), "float");
    json_decref(search);
    /* all of them: the run says why */
    version = add_version(f, "worse", "optimize.fail=invalid\nprune.fail=invalid");
    run = submit(f, version, PLAIN, 0);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    search = search_of(f, run);
    assert_non_null(strstr(mlo_json_str(search, "why", ""), "no candidate could be made"));
    json_decref(search);
    /* and is not to be taken up again: nothing would be otherwise */
    assert_mlo_status(mlo_run_requeue(f->pg->conn, &SYSTEM, run, NULL, &f->err), MLO_ECONFLICT, &f->err);
    stop_worker(&w);
    assert_clean(f);
}

static void test_search__says_the_best_where_nothing_keeps_the_goal(void **state)
{
    struct service_fixture *f = *state;
    int64_t version = add_version(f, "lossy", "trial.drop_percent=3\ntrial.pruned_percent=5"),
            run = submit(f, version, PLAIN, 0);
    work_through(f, run, "failed");
    json_t *value = get_run(f, run);
    const json_t *error = json_object_get(value, "error");
    if (!strstr(mlo_json_str(error, "message", ""),
                "the best found is float: an accuracy drop of 3.00 points"))
        fail_msg("'%s'", mlo_json_str(error, "message", ""));
    json_decref(value);
    struct mlo_variant_info variant; /* there it is */
    assert_mlo_ok(mlo_variant_find(f->pg->conn, version, "seek-float", &variant, &f->err), &f->err);
}

static void test_search__keeps_its_budget_of_jobs(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, f->version, SEARCH("goal: \"min size\", jobs: 11"), 0);
    start_worker(f, &w, 2);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    json_t *search = search_of(f, run);
    assert_true(jobs_with(f, run, "state = 'succeeded'") <= 11);
    assert_true(jobs_with(f, run, "step = 'evaluate'") > 0);
    assert_true(jobs_with(f, run, "step = 'trial' and spec::json ->> 'rung' = '1'") < 4);
    json_decref(search);
}

/* --- dying between ------------------------------------------------------------------------------------- */

/* The result of a search's step for a claimed job, as its child would give it. */
static json_t *choose(struct service_fixture *f, const struct mlo_job *job)
{
    struct mlo_db_conn *conn;
    json_t *run = NULL, *decision = NULL;
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_search_so_far(conn, job->id, &run, &f->err), &f->err);
    mlo_db_release(conn);
    assert_mlo_ok(mlo_search_decide(job->options, run, &decision, &f->err), &f->err);
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    char name[MLO_DIGEST_TEXT_SIZE];
    mlo_json_canonical(decision, &text);
    assert_mlo_ok(mlo_blob_put_bytes(f->blobs, mlo_buf_str(&text), text.len, &digest, &f->err), &f->err);
    json_t *report = json_pack("{s:o, s:{s:s, s:I}}", "search", decision, "decision", "blob",
                               mlo_digest_text(&digest, name), "size", (json_int_t)text.len);
    mlo_buf_clear(&text);
    json_decref(run);
    return report;
}

static void test_search__is_planned_by_the_attempt_that_has_the_job(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job lost, job;
    int64_t run = submit(f, f->version, PLAIN, 0);
    int reaped = 0;
    claim(f, &lost);
    json_t *report = choose(f, &lost);
    struct mlo_completion done = {.blobs = f->blobs, .report = report};
    /* its worker seems dead, and another one has the job */
    end_leases(f);
    assert_mlo_ok(mlo_queue_reap(f->worker, 1, &reaped, &f->err), &f->err);
    assert_int_equal(reaped, 1);
    claim(f, &job);
    assert_mlo_status(mlo_queue_complete(f->worker, &lost, &done, &f->err), MLO_ELEASE, &f->err);
    assert_int_equal(jobs_with(f, run, "true"), 1);
    /* what cannot be planned is not planned by halves */
    json_t *wrong = json_deep_copy(report);
    json_t *next = json_object_get(json_object_get(wrong, "search"), "next");
    json_array_append_new(next, json_pack("{s:s, s:i, s:n, s:[{s:s, s:{}}]}", "candidate", "x", "rung", 1,
                                          "input", "steps", "step", "no-such", "options"));
    struct mlo_completion broken = {.blobs = f->blobs, .report = wrong};
    assert_mlo_status(mlo_queue_complete(f->worker, &job, &broken, &f->err), MLO_EFORMAT, &f->err);
    assert_int_equal(jobs_with(f, run, "true"), 1);
    assert_int_equal(jobs_with(f, run, "state = 'running'"), 1);
    /* once, and not again: the answer to a commit may get lost */
    assert_mlo_ok(mlo_queue_complete(f->worker, &job, &done, &f->err), &f->err);
    int64_t planned = jobs_with(f, run, "true");
    assert_true(planned > 1);
    assert_mlo_status(mlo_queue_complete(f->worker, &job, &done, &f->err), MLO_ELEASE, &f->err);
    assert_int_equal(jobs_with(f, run, "true"), planned);
    mlo_job_clear(&lost);
    mlo_job_clear(&job);
    /* who takes over goes on from there */
    struct test_worker w;
    start_worker(f, &w, 2);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_planned_once(f, run);
    json_decref(report);
    json_decref(wrong);
}

/* A worker process that is killed with everything it does, at any moment of the search: the next one sees its
 * leases end. */
enum { SHORT_LEASE_MS = 3000 };
static void test_search__survives_killed_workers(void **state)
{
    struct service_fixture *f = *state;
    int64_t run = submit(f, f->version, PLAIN, 0);
    for (int i = 0; i < 4; i++) {
        pid_t pid = start_worker_process(f, SHORT_LEASE_MS);
        wait_until(jobs_with(f, run, "state in ('succeeded', 'reused')") >= 3 * i + 1 ||
                   jobs_with(f, run, "state in ('waiting', 'ready', 'running')") == 0);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    struct test_worker w;
    start_worker(f, &w, 2);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_planned_once(f, run);
}

static void assert_not_planned(struct mlo_db_conn *conn, const char *before, int64_t parent, int64_t place)
{
    char sql[400];
    PQclear(PQexec(mlo_db_pg(conn), "begin"));
    PGresult *result = PQexec(mlo_db_pg(conn), before);
    if (*before) { /* it may */
        assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
        assert_string_not_equal(PQcmdTuples(result), "0");
    }
    PQclear(result);
    snprintf(sql, sizeof sql,
             "select mlopt.search_plan(%lld, %lld, 'x', 'optimize', 'derive', 'any', false, 'ready', '{}', "
             "null, null, 0, 0, 0, null, 0, '{}', '{}')",
             (long long)parent, (long long)place);
    result = PQexec(mlo_db_pg(conn), sql);
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    assert_string_equal(code ? code : "done", "42501");
    PQclear(result);
    PQclear(PQexec(mlo_db_pg(conn), "rollback"));
}

/* A worker's role plans nothing but in the completion of a search's choice. */
static void test_search__nobody_else_plans_jobs(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_db_conn *conn;
    struct mlo_job job;
    int64_t run = submit(f, f->version, PLAIN, 0);
    claim(f, &job);
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    assert_not_planned(conn, "", job.id, 1);
    assert_int_equal(jobs_with(f, run, "true"), 1);
    /* nor behind a choice of before, in a transaction that changed its row, and those behind it */
    json_t *report = choose(f, &job);
    struct mlo_completion done = {.blobs = f->blobs, .report = report};
    assert_mlo_ok(mlo_queue_complete(f->worker, &job, &done, &f->err), &f->err);
    int64_t planned = jobs_with(f, run, "true");
    char touch[160];
    snprintf(touch, sizeof touch, "update mlopt.job set progress = 0.5 where run = %lld", (long long)run);
    assert_not_planned(conn, touch, job.id, planned);
    assert_not_planned(conn, touch, job.id, planned + 7);
    mlo_db_release(conn);
    assert_int_equal(jobs_with(f, run, "true"), planned);
    json_decref(report);
    mlo_job_clear(&job);
}

/* A job that cannot be failed, whatever is wrong with it, keeps no other one from being taken up again. */
static void test_reap__goes_on_behind_one_that_cannot_be_failed(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job choice, broken, sound;
    int reaped = 0;
    (void)submit(f, f->version, PLAIN, 0);
    claim(f, &choice);
    json_t *report = choose(f, &choice);
    struct mlo_completion done = {.blobs = f->blobs, .report = report};
    assert_mlo_ok(mlo_queue_complete(f->worker, &choice, &done, &f->err), &f->err);
    claim(f, &broken); /* a candidate's, whose spec is read to go on without it */
    (void)submit(f, f->version, ALSO, 0);
    claim(f, &sound);
    char sql[200];
    snprintf(sql, sizeof sql,
             "update mlopt.job set max_attempts = 1, spec = 'none' where id = %lld returning 1",
             (long long)broken.id);
    (void)count_rows(f, sql);
    end_leases(f);
    snprintf(
        sql, sizeof sql,
        "update mlopt.job set lease_until = lease_until - interval '1 minute' where id = %lld returning 1",
        (long long)broken.id);
    (void)count_rows(f, sql);
    assert_true(mlo_queue_reap(f->worker, 1, &reaped, &f->err) != MLO_OK);
    assert_int_equal(reaped, 1);
    snprintf(sql, sizeof sql, "id = %lld and state = 'ready'", (long long)sound.id);
    assert_int_equal(jobs_with(f, sound.run, sql), 1);
    json_decref(report);
    mlo_job_clear(&choice);
    mlo_job_clear(&broken);
    mlo_job_clear(&sound);
}

#define NAME64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void test_search__bad_recipes(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *text, *says, *hint;
    } wrong[] = {
        {SEARCH("pruen: [none]"), "pruen", "prune"},
        {SEARCH("rounding: []"), "rounding", "none"},
        {SEARCH("mixed: [0.3pt, 0.3 pt]"), "the same name", "spelling"},
        {"name: " NAME64 "\ntarget: any\ndata: {calibrate: p/cal, select: p/sel, evaluate: p/test}\n"
         "steps:\n  - search: {prune: [25.0000000000000000000000%], precision: [float]}\n",
         "101 characters, of 100", "shorter"},
        {SEARCH("goal: \"latency_p99>=5ms\""), "write <=", ""},
        {SEARCH("goal: \"min latncy\""), "latncy", "latency"},
        {SEARCH("time: soon"), "soon", "30m"},
        {SEARCH("metric: tpo1"), "tpo1", ""},
        {SEARCH("mixed: [3]") "  - report: {}\n", "", ""},
        {PLAIN "  - report: {}\n", "stands alone", "goal"},
        {PLAIN "expect: [\"size <= source\"]\n", "stands alone", "goal"},
        {"name: a\nsteps:\n  - search: {}\n", "calibrate", "data"},
        {"name: a\ndata: {calibrate: a/b, select: a/c, evaluate: a/d}\nsteps:\n  - search: {precision: "
         "[int9]}\n",
         "int9", "int8"},
        {"name: a\ndata: {calibrate: a/b, select: a/c, evaluate: a/c}\nsteps:\n  - search: {}\n",
         "also evaluates", ""},
    };
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        struct mlo_error err = {0};
        struct mlo_recipe *r = NULL;
        assert_mlo_status(mlo_recipe_parse(wrong[i].text, strlen(wrong[i].text), "s.yaml", &r, &err),
                          MLO_EINVAL, &err);
        if (!strstr(err.message, wrong[i].says) || !strstr(err.hint, wrong[i].hint))
            fail_msg("%zu: '%s' (%s)", i, err.message, err.hint);
    }
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_sql__every_statement_prepares),
        SERVICE_TEST(test_search__names_what_its_run_made),
        SERVICE_TEST(test_search__ends_on_a_front_of_variants),
        SERVICE_TEST(test_search__goes_on_without_a_candidate_that_fails),
        SERVICE_TEST(test_search__says_the_best_where_nothing_keeps_the_goal),
        SERVICE_TEST(test_search__keeps_its_budget_of_jobs),
        SERVICE_TEST(test_search__is_planned_by_the_attempt_that_has_the_job),
        SERVICE_TEST(test_search__survives_killed_workers),
        SERVICE_TEST(test_search__nobody_else_plans_jobs),
        SERVICE_TEST(test_reap__goes_on_behind_one_that_cannot_be_failed),
        SERVICE_TEST(test_search__bad_recipes),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
