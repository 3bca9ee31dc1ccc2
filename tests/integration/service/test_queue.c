/* The queue without workers: claims, fencing, leases, retries, cancellation, shared derivations. */
#include "tests/integration/service/service_fixture.h"

static const struct mlo_claimer CLAIMER = {"test-worker", "{any,cpu}", 60000};
static const struct mlo_claimer BRIEF = {"brief-worker", "{any,cpu}", 1};

static bool claim(struct service_fixture *f, const struct mlo_claimer *who, struct mlo_job *job)
{
    int found = 0;
    *job = (struct mlo_job){.id = 0};
    assert_mlo_ok(mlo_queue_claim(f->worker, who, job, 1, &found, &f->err), &f->err);
    return found == 1;
}

static enum mlo_status end_attempt(struct service_fixture *f, const struct mlo_job *job,
                                   enum mlo_attempt_end end, enum mlo_status why, uint32_t backoff_ms)
{
    struct mlo_error error = {0}, err = {0};
    if (why != MLO_OK)
        mlo_error_set(&error, why, "made up");
    struct mlo_attempt_failure failure = {
        .job = job->id,
        .token = job->token,
        .end = end,
        .error = end == MLO_ATTEMPT_RETURNED ? NULL : &error,
        .retry = mlo_status_info(why)->retry,
        .backoff_ms = backoff_ms,
    };
    return mlo_queue_fail(f->worker, &failure, &err);
}

/* Completes with an artifact of this text (derive), or with one observation. */
static enum mlo_status complete(struct service_fixture *f, const struct mlo_job *job, const char *text,
                                double top1)
{
    struct mlo_completion completion = {.has_artifact = job->derive, .size_bytes = strlen(text)};
    json_t *observations = json_array();
    if (job->derive)
        assert_mlo_ok(mlo_blob_put_bytes(f->blobs, text, strlen(text), &completion.artifact, &f->err),
                      &f->err);
    else
        json_array_append_new(observations, micro_observation("variant", "top1", top1, false));
    completion.observations = observations;
    enum mlo_status status = mlo_queue_complete(f->worker, job, &completion, &f->err);
    json_decref(observations);
    return status;
}

static void test_sql__every_statement_prepares(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    const struct {
        const struct mlo_sql *table;
        size_t count;
    } tables[] = {
        {MLO_QUEUE_SQL, MLO_QUEUE_SQL_COUNT},
        {MLO_COMPLETION_SQL, MLO_COMPLETION_SQL_COUNT},
        {MLO_PLANNER_SQL, MLO_PLANNER_SQL_COUNT},
        {MLO_PLANNER_SHOW_SQL, MLO_PLANNER_SHOW_SQL_COUNT},
        {MLO_SUBMIT_SQL, MLO_SUBMIT_SQL_COUNT},
        {MLO_CANCEL_SQL, MLO_CANCEL_SQL_COUNT},
        {MLO_READS_SQL, MLO_READS_SQL_COUNT},
        {MLO_RUNS_SQL, MLO_RUNS_SQL_COUNT},
        {MLO_WORKER_SQL, MLO_WORKER_SQL_COUNT},
        {MLO_INPUTS_SQL, MLO_INPUTS_SQL_COUNT},
        {MLO_ATTEST_SQL, MLO_ATTEST_SQL_COUNT},
        {MLO_REPRODUCE_SQL, MLO_REPRODUCE_SQL_COUNT},
        {MLO_CONTROL_SQL, MLO_CONTROL_SQL_COUNT},
        {MLO_JOB_LOG_SQL, MLO_JOB_LOG_SQL_COUNT},
        {MLO_REQUEUE_SQL, MLO_REQUEUE_SQL_COUNT},
        {MLO_SHARES_SQL, MLO_SHARES_SQL_COUNT},
        {MLO_TX_SQL, MLO_TX_SQL_COUNT},
        {MLO_METRICS_SQL, MLO_METRICS_SQL_COUNT},
        {MLO_WAITS_SQL, MLO_WAITS_SQL_COUNT},
        {MLO_TRACE_SQL, MLO_TRACE_SQL_COUNT},
        {MLO_FINISH_SQL, MLO_FINISH_SQL_COUNT},
        {MLO_SCHEDULE_SQL, MLO_SCHEDULE_SQL_COUNT},
        {MLO_SCHEDULE_END_SQL, MLO_SCHEDULE_END_SQL_COUNT},
        {MLO_SCHEDULE_FIRE_SQL, MLO_SCHEDULE_FIRE_SQL_COUNT},
        {MLO_SCHEDULE_TIME_SQL, MLO_SCHEDULE_TIME_SQL_COUNT},
    };
    for (size_t i = 0; i < MLO_COUNT(tables); i++)
        assert_mlo_ok(mlo_db_prepare_all(conn, tables[i].table, tables[i].count, &f->err), &f->err);
    mlo_db_release(conn);
}

/* --- submitting ---------------------------------------------------------------------------------------- */

static void test_submit__makes_a_chain_of_jobs(void **state)
{
    struct service_fixture *f = *state;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    assert_run(f, run, -1, "state", "queued");
    assert_run(f, run, -1, "project", "p");
    assert_run(f, run, -1, "model", "m");
    assert_run(f, run, -1, "variant", "tiny");
    static const char *const steps[] = {"optimize", "quantize", "evaluate", "benchmark"};
    for (int i = 0; i < 4; i++) {
        assert_run(f, run, i, "step", steps[i]);
        assert_run(f, run, i, "state", i == 0 ? "queued" : "blocked");
        assert_run(f, run, i, "kind", i < 2 ? "derive" : "observe");
    }
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where exclusive and step = 'benchmark'"),
                     1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where exclusive"), 1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.audit where position('run.submit' in "
                                   "convert_from(body, 'UTF8')) > 0"),
                     1);
    json_t *datasets = NULL, *value = get_run(f, run);
    datasets = json_object_get(json_object_get(value, "datasets"), "calibrate");
    assert_string_equal(mlo_json_str(datasets, "name", ""), "p/cal");
    assert_int_equal(mlo_json_i64(datasets, "version", 0), 1);
    json_decref(value);
}

static void test_submit__names_the_missing_dataset(void **state)
{
    struct service_fixture *f = *state;
    static const char *const wrong[] = {"p/nothing", "other/cal", "p/cal@7", "nothing"};
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        char text[512];
        struct mlo_error err = {0};
        int64_t run = 0;
        snprintf(text, sizeof text, "name: r\ntarget: any\ndata: {calibrate: %s}\nsteps:\n  - quantize: {}\n",
                 wrong[i]);
        struct mlo_recipe *r = recipe(text);
        struct mlo_run_request request = {
            .project = f->project, .version = f->version, .recipe = r, .actor = &SYSTEM};
        assert_mlo_status(mlo_run_submit(f->pg->conn, &request, &run, &err), MLO_ENOTFOUND, &err);
        if (!strstr(err.message, wrong[i]) || !strstr(err.where, "calibrate"))
            fail_msg("'%s' [%s] does not name %s", err.message, err.where, wrong[i]);
        mlo_recipe_free(r);
    }
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run"), 0);
}

static void test_submit__names_the_postprocessing_model(void **state)
{
    static const char *const wrong[] = {"p/nothing", "other/m", "p/m@7", "p/m@1/int8"};
    struct service_fixture *f = *state;
    int64_t run = submit(f, f->version,
                         "name: r\ntarget: any\ndata: {evaluate: p/test}\npostprocess: m\n"
                         "steps:\n  - evaluate: {}\n",
                         0);
    json_t *value = get_run(f, run);
    const json_t *post = json_object_get(json_object_get(value, "datasets"), "postprocess");
    assert_string_equal(mlo_json_str(post, "name", ""), "p/m");
    assert_int_equal(mlo_json_i64(post, "version", 0), 1);
    assert_true(mlo_str_starts(mlo_json_str(post, "digest", ""), "sha256:"));
    json_decref(value);
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        char text[512];
        struct mlo_error err = {0};
        snprintf(
            text, sizeof text,
            "name: r\ntarget: any\ndata: {evaluate: p/test}\npostprocess: %s\nsteps:\n  - evaluate: {}\n",
            wrong[i]);
        struct mlo_recipe *r = recipe(text);
        struct mlo_run_request request = {
            .project = f->project, .version = f->version, .recipe = r, .actor = &SYSTEM};
        assert_mlo_status(mlo_run_submit(f->pg->conn, &request, &run, &err),
                          i == 3 ? MLO_EINVAL : MLO_ENOTFOUND, &err);
        assert_string_equal(err.where, "recipe, postprocess");
        mlo_recipe_free(r);
    }
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run"), 1);
}

static void test_submit__refuses_to_select_on_what_evaluates(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_error err = {0};
    int64_t run = 0;
    struct mlo_recipe *r =
        recipe("name: r\ntarget: any\ndata: {calibrate: p/cal, select: p/test@1, evaluate: p/test}\n"
               "steps:\n  - quantize: {accuracy_drop: 0.5pt}\n");
    struct mlo_run_request request = {
        .project = f->project, .version = f->version, .recipe = r, .actor = &SYSTEM};
    assert_mlo_status(mlo_run_submit(f->pg->conn, &request, &run, &err), MLO_EINVAL, &err);
    if (!strstr(err.message, "p/test@1 and p/test are the same") || !strstr(err.where, "select"))
        fail_msg("'%s' [%s]", err.message, err.where);
    mlo_recipe_free(r);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run"), 0);
}

static void test_submit__refuses_another_projects_version_and_a_viewer(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_error err = {0};
    struct mlo_recipe *r = recipe(RECIPE_DERIVE);
    int64_t other, run;
    assert_mlo_ok(mlo_project_create(f->pg->conn, &SYSTEM, "q", "", &other, &err), &err);
    struct mlo_run_request request = {.project = other, .version = f->version, .recipe = r, .actor = &SYSTEM};
    assert_mlo_status(mlo_run_submit(f->pg->conn, &request, &run, &err), MLO_ENOTFOUND, &err);
    struct mlo_actor viewer = {.name = "eve", .role = MLO_VIEWER, .via = "api"};
    request =
        (struct mlo_run_request){.project = f->project, .version = f->version, .recipe = r, .actor = &viewer};
    assert_mlo_status(mlo_run_submit(f->pg->conn, &request, &run, &err), MLO_EFORBIDDEN, &err);
    mlo_recipe_free(r);
}

/* --- claiming ------------------------------------------------------------------------------------------ */

enum { CLAIM_RUNS = 40, CLAIM_THREADS = 8 };

struct claiming {
    struct service_fixture *f;
    int64_t ids[CLAIM_RUNS + 1];
    int count;
    enum mlo_status status;
    struct mlo_error err;
};

static void *claim_all(void *arg)
{
    struct claiming *c = arg;
    int found = 1;
    while (found && c->status == MLO_OK && c->count <= CLAIM_RUNS) {
        struct mlo_job job = {.id = 0};
        c->status = mlo_queue_claim(c->f->worker, &CLAIMER, &job, 1, &found, &c->err);
        if (found)
            c->ids[c->count++] = job.id;
        mlo_job_clear(&job);
    }
    return NULL;
}

/* Threads claim all that there is. */
static void claim_at_once(struct service_fixture *f, struct claiming all[CLAIM_THREADS])
{
    pthread_t threads[CLAIM_THREADS];
    for (int i = 0; i < CLAIM_THREADS; i++) {
        all[i].f = f;
        pthread_create(&threads[i], NULL, claim_all, &all[i]);
    }
    for (int i = 0; i < CLAIM_THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < CLAIM_THREADS; i++)
        assert_mlo_ok(all[i].status, &all[i].err);
}

static void test_claim__no_job_twice_among_threads(void **state)
{
    struct service_fixture *f = *state;
    struct claiming all[CLAIM_THREADS] = {0};
    int64_t seen[CLAIM_RUNS] = {0};
    int total = 0;
    for (int i = 0; i < CLAIM_RUNS; i++)
        submit(f, f->version, RECIPE_OBSERVE, 0);
    claim_at_once(f, all);
    for (int i = 0; i < CLAIM_THREADS; i++) {
        for (int k = 0; k < all[i].count; k++) {
            for (int s = 0; s < total; s++)
                assert_int_not_equal(seen[s], all[i].ids[k]);
            assert_true(total < CLAIM_RUNS);
            seen[total++] = all[i].ids[k];
        }
    }
    assert_int_equal(total, CLAIM_RUNS);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt"), CLAIM_RUNS);
}

static void test_claim__by_priority_then_age_and_by_target(void **state)
{
    struct service_fixture *f = *state;
    int64_t old = submit(f, f->version, RECIPE_OBSERVE, 0);
    int64_t young = submit(f, f->version, RECIPE_OBSERVE, 0);
    int64_t urgent = submit(f, f->version, RECIPE_OBSERVE, 5);
    int64_t cpu = submit(f, f->version,
                         "name: c\ntarget: cpu:avx2\ndata: {evaluate: test}\nsteps:\n  - evaluate: {}\n", 9);
    const int64_t wanted[] = {urgent, old, young};
    const struct mlo_claimer anywhere = {"w", "{any}", 60000};
    struct mlo_job job;
    for (size_t i = 0; i < MLO_COUNT(wanted); i++) {
        assert_true(claim(f, &anywhere, &job));
        assert_int_equal(job.run, wanted[i]);
        mlo_job_clear(&job);
    }
    assert_false(claim(f, &anywhere, &job));
    assert_true(claim(f, &CLAIMER, &job));
    assert_int_equal(job.run, cpu);
    mlo_job_clear(&job);
    assert_run(f, cpu, -1, "state", "running");
}

/* What runs goes on; behind each of its steps a run gives way to one that came later and is more urgent. */
static void test_preemption__is_at_the_end_of_a_step(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job first, job;
    int64_t slow = submit(f, f->version, RECIPE_TINY, 0);
    assert_true(claim(f, &CLAIMER, &first));
    assert_int_equal(first.run, slow);
    int64_t urgent = submit(f, add_version(f, "urgent", "n=1"), RECIPE_OBSERVE, 5);
    assert_run(f, slow, 0, "state", "running");
    assert_mlo_ok(complete(f, &first, "made", 0), &f->err);
    assert_run(f, slow, 1, "state", "queued");
    const int64_t wanted[] = {urgent, slow};
    for (size_t i = 0; i < MLO_COUNT(wanted); i++) {
        assert_true(claim(f, &CLAIMER, &job));
        assert_int_equal(job.run, wanted[i]);
        mlo_job_clear(&job);
    }
    mlo_job_clear(&first);
}

/* --- fencing and leases -------------------------------------------------------------------------------- */

static void test_fencing__late_completion_changes_nothing(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job first, second;
    int reaped;
    int64_t run = submit(f, f->version, RECIPE_OBSERVE, 0);
    assert_true(claim(f, &BRIEF, &first));
    mlo_clock_sleep_ms(20);
    assert_mlo_ok(mlo_queue_reap(f->worker, 0, &reaped, &f->err), &f->err);
    assert_int_equal(reaped, 1);
    assert_run(f, run, 0, "state", "queued");
    assert_true(claim(f, &CLAIMER, &second));
    assert_int_equal(second.id, first.id);
    assert_int_equal(second.number, 2);
    assert_int_equal(complete(f, &first, "", 0.1), MLO_ELEASE);
    assert_int_equal(mlo_queue_progress(f->worker, &first, 0.9, "late", &f->err), MLO_ELEASE);
    assert_int_equal(mlo_queue_beat(f->worker, &first, 60000, &f->err), MLO_ELEASE);
    assert_int_equal(end_attempt(f, &first, MLO_ATTEMPT_FAILED, MLO_EIO, 0), MLO_ELEASE);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.evidence"), 0);
    assert_run(f, run, 0, "state", "running");
    assert_run(f, run, 0, "message", "");
    assert_mlo_ok(complete(f, &second, "", 0.9), &f->err);
    assert_int_equal(complete(f, &second, "", 0.9), MLO_ELEASE);
    assert_int_equal(complete(f, &first, "", 0.1), MLO_ELEASE);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.evidence"), 1);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt where outcome = 'lost'"), 1);
    mlo_job_clear(&first);
    mlo_job_clear(&second);
}

static void test_lease__heartbeat_prolongs_it(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int reaped;
    submit(f, f->version, RECIPE_OBSERVE, 0);
    assert_true(claim(f, &BRIEF, &job));
    assert_mlo_ok(mlo_queue_beat(f->worker, &job, 60000, &f->err), &f->err);
    mlo_clock_sleep_ms(20);
    assert_mlo_ok(mlo_queue_reap(f->worker, 0, &reaped, &f->err), &f->err);
    assert_int_equal(reaped, 0);
    assert_mlo_ok(complete(f, &job, "", 0.9), &f->err);
    mlo_job_clear(&job);
}

static void test_lease__lost_too_often_is_a_dead_letter(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int reaped;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    for (int i = 0; i < 3; i++) {
        assert_true(claim(f, &BRIEF, &job));
        mlo_job_clear(&job);
        mlo_clock_sleep_ms(10);
        assert_mlo_ok(mlo_queue_reap(f->worker, 0, &reaped, &f->err), &f->err);
        assert_int_equal(reaped, 1);
    }
    assert_false(claim(f, &CLAIMER, &job));
    assert_run(f, run, -1, "state", "failed");
    assert_run(f, run, 0, "state", "failed");
    assert_run(f, run, 1, "state", "cancelled");
    json_t *value = get_run(f, run);
    assert_string_equal(mlo_json_str(json_object_get(value, "error"), "code", ""), "lease-lost");
    json_decref(value);
}

/* --- failures ------------------------------------------------------------------------------------------ */

static void test_failure__that_can_pass_is_tried_again_later(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int64_t run = submit(f, f->version, RECIPE_OBSERVE, 0);
    assert_true(claim(f, &CLAIMER, &job));
    assert_mlo_ok(end_attempt(f, &job, MLO_ATTEMPT_FAILED, MLO_EIO, 60000), &f->err);
    mlo_job_clear(&job);
    assert_run(f, run, 0, "state", "queued");
    assert_false(claim(f, &CLAIMER, &job)); /* not before the backoff is over */
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job j join mlopt.attempt a on a.job = j.id "
                                   "where not_before between ended_at + interval '50 s' "
                                   "and ended_at + interval '80 s'"),
                     1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt where outcome = 'retried'"), 1);
}

static void test_failure__after_max_attempts_fails_the_run(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int64_t run = submit(f, f->version, RECIPE_OBSERVE, 0);
    for (int i = 1; i <= 3; i++) {
        wait_until(claim(f, &CLAIMER, &job));
        assert_int_equal(job.number, i);
        assert_mlo_ok(end_attempt(f, &job, MLO_ATTEMPT_FAILED, MLO_EIO, 1), &f->err);
        mlo_job_clear(&job);
    }
    assert_run(f, run, -1, "state", "failed");
    assert_int_equal(job_i64(f, run, 0, "attempt"), 3);
}

static void test_failure__that_cannot_pass_fails_once(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    assert_true(claim(f, &CLAIMER, &job));
    assert_mlo_ok(end_attempt(f, &job, MLO_ATTEMPT_FAILED, MLO_EFORMAT, 1), &f->err);
    mlo_job_clear(&job);
    assert_run(f, run, -1, "state", "failed");
    assert_int_equal(job_i64(f, run, 0, "attempt"), 1);
    for (int i = 1; i < 4; i++)
        assert_run(f, run, i, "state", "cancelled");
    assert_int_equal(count_rows(f, "select count(*) from mlopt.audit where position('run.finish' in "
                                   "convert_from(body, 'UTF8')) > 0"),
                     1);
}

static void test_return__does_not_count_as_an_attempt(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int64_t run = submit(f, f->version, RECIPE_OBSERVE, 0);
    for (int i = 1; i <= 5; i++) {
        assert_true(claim(f, &CLAIMER, &job));
        assert_int_equal(job.number, i);
        assert_mlo_ok(end_attempt(f, &job, MLO_ATTEMPT_RETURNED, MLO_OK, 0), &f->err);
        mlo_job_clear(&job);
    }
    assert_run(f, run, 0, "state", "queued");
    assert_int_equal(job_i64(f, run, 0, "attempt"), 0);
}

static void test_cancel__refuses_what_comes_later(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    assert_true(claim(f, &CLAIMER, &job));
    assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, run, "wrong recipe", &f->err), &f->err);
    assert_int_equal(complete(f, &job, "late", 0), MLO_ECANCELLED);
    assert_int_equal(mlo_queue_beat(f->worker, &job, 1000, &f->err), MLO_ECANCELLED);
    assert_run(f, run, -1, "state", "cancelled");
    for (int i = 0; i < 4; i++)
        assert_run(f, run, i, "state", "cancelled");
    json_t *value = get_run(f, run);
    assert_non_null(strstr(mlo_json_str(json_object_get(value, "error"), "message", ""), "wrong recipe"));
    json_decref(value);
    assert_int_equal(mlo_run_cancel(f->pg->conn, &SYSTEM, run, NULL, &f->err), MLO_ECONFLICT);
    assert_int_equal(mlo_run_cancel(f->pg->conn, &SYSTEM, run + 100, NULL, &f->err), MLO_ENOTFOUND);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.derivation"), 0);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt where outcome = 'cancelled'"), 1);
    mlo_job_clear(&job);
}

/* --- derivations --------------------------------------------------------------------------------------- */

static void test_derivation__same_one_is_never_in_flight_twice(void **state)
{
    struct service_fixture *f = *state;
    struct claiming all[CLAIM_THREADS] = {0};
    struct mlo_job job;
    int total = 0;
    for (int i = 0; i < CLAIM_THREADS; i++)
        submit(f, f->version, RECIPE_DERIVE, 0);
    claim_at_once(f, all);
    for (int i = 0; i < CLAIM_THREADS; i++)
        total += all[i].count;
    assert_int_equal(total, 1);
    /* another version has another derivation: it does not wait */
    submit(f, add_version(f, "n", "another"), RECIPE_DERIVE, 0);
    assert_true(claim(f, &CLAIMER, &job));
    mlo_job_clear(&job);
    assert_false(claim(f, &CLAIMER, &job));
}

static void test_derivation__second_run_gets_the_same_artifact(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job first, second;
    struct mlo_digest artifact;
    int64_t a = submit(f, f->version, RECIPE_DERIVE, 0), b = submit(f, f->version, RECIPE_DERIVE, 0);
    assert_true(claim(f, &CLAIMER, &first));
    assert_false(claim(f, &CLAIMER, &second));
    assert_mlo_ok(complete(f, &first, "made", 0), &f->err);
    assert_run(f, a, -1, "state", "succeeded");
    assert_true(claim(f, &CLAIMER, &second));
    assert_int_equal(second.run, b);
    assert_true(mlo_digest_eq(&first.key, &second.key));
    struct mlo_completion known = {.reused = true, .has_artifact = true, .size_bytes = 4};
    mlo_digest_of("made", 4, &artifact);
    known.artifact = artifact;
    assert_mlo_ok(mlo_queue_complete(f->worker, &second, &known, &f->err), &f->err);
    assert_run(f, b, -1, "state", "succeeded");
    assert_int_equal(count_rows(f, "select count(*) from mlopt.derivation"), 1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.variant where name = 'derived'"), 1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.lineage_edge where kind = 'derived-from'"), 1);
    json_t *plan = NULL;
    struct mlo_recipe *r = recipe(RECIPE_DERIVE);
    struct mlo_run_request request = {
        .project = f->project, .version = f->version, .recipe = r, .actor = &SYSTEM};
    assert_mlo_ok(mlo_run_plan(f->pg->conn, &request, &plan, &f->err), &f->err);
    const json_t *step = json_array_get(json_object_get(plan, "jobs"), 0);
    assert_true(mlo_json_bool(step, "cached", false));
    assert_int_equal(mlo_json_i64(step, "estimate_of", -1),
                     1); /* the one that worked, not the one that reused */
    assert_true(json_is_number(json_object_get(step, "estimate_s")));
    assert_float_equal(mlo_json_f64(plan, "estimate_s", -1), 0, 0); /* nothing is left to do */
    json_decref(plan);
    mlo_recipe_free(r);
    r = recipe(RECIPE_OBSERVE); /* a step that never ran */
    request.recipe = r;
    assert_mlo_ok(mlo_run_plan(f->pg->conn, &request, &plan, &f->err), &f->err);
    assert_true(json_is_null(json_object_get(plan, "estimate_s")));
    json_decref(plan);
    mlo_recipe_free(r);
    mlo_job_clear(&first);
    mlo_job_clear(&second);
}

static void test_derivation__other_bytes_for_a_known_key_are_refused(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    submit(f, f->version, RECIPE_DERIVE, 0);
    assert_true(claim(f, &CLAIMER, &job));
    assert_mlo_ok(complete(f, &job, "made", 0), &f->err);
    mlo_job_clear(&job);
    int64_t run = submit(f, f->version, RECIPE_DERIVE, 0);
    assert_true(claim(f, &CLAIMER, &job));
    assert_int_equal(complete(f, &job, "made otherwise", 0), MLO_ECONFLICT);
    assert_run(f, run, 0, "state", "running");
    assert_int_equal(count_rows(f, "select count(*) from mlopt.variant where name = 'derived'"), 1);
    mlo_job_clear(&job);
}

/* --- the end of a run ---------------------------------------------------------------------------------- */

static void test_expectation__that_does_not_hold_fails_the_run(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int64_t run =
        submit(f, f->version,
               "name: e\ntarget: any\ndata: {evaluate: test}\nsteps:\n  - evaluate: {metrics: [top1]}\n"
               "expect: [\"top1 >= 0.5\", \"top1 >= 0.95\"]\n",
               0);
    assert_true(claim(f, &CLAIMER, &job));
    assert_mlo_ok(complete(f, &job, "", 0.9), &f->err);
    assert_run(f, run, -1, "state", "failed");
    assert_run(f, run, 0, "state", "succeeded");
    json_t *value = get_run(f, run);
    assert_string_equal(mlo_json_str(json_object_get(value, "error"), "code", ""), "expectation-failed");
    json_t *results = json_object_get(value, "expectations");
    assert_int_equal(json_array_size(results), 2);
    assert_true(mlo_json_bool(json_array_get(results, 0), "holds", false));
    assert_false(mlo_json_bool(json_array_get(results, 1), "holds", true));
    assert_string_equal(mlo_json_str(json_array_get(results, 1), "condition", ""), "top1 >= 0.95");
    json_decref(value);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.evidence"), 1);
    mlo_job_clear(&job);
}

static void test_events__are_in_order_without_gaps(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    json_t *events = NULL, *rest = NULL;
    int64_t run = submit(f, f->version, RECIPE_OBSERVE, 0);
    assert_true(claim(f, &CLAIMER, &job));
    assert_mlo_ok(mlo_queue_progress(f->worker, &job, 0.25, "a quarter", &f->err), &f->err);
    assert_mlo_ok(complete(f, &job, "", 0.9), &f->err);
    assert_mlo_ok(mlo_run_events(f->pg->conn, run, 0, 0, &events, &f->err), &f->err);
    static const char *const kinds[] = {"run", "run", "job", "progress", "job", "run"};
    static const char *const states[] = {"queued", "running", "running", "running", "succeeded", "succeeded"};
    json_t *items = json_object_get(events, "items");
    assert_int_equal(json_array_size(items), MLO_COUNT(kinds));
    for (size_t i = 0; i < MLO_COUNT(kinds); i++) {
        const json_t *event = json_array_get(items, i);
        assert_int_equal(mlo_json_i64(event, "seq", 0), i + 1);
        assert_string_equal(mlo_json_str(event, "kind", ""), kinds[i]);
        assert_string_equal(mlo_json_str(event, "state", ""), states[i]);
    }
    assert_string_equal(mlo_json_str(json_array_get(items, 3), "message", ""), "a quarter");
    assert_true(mlo_json_bool(events, "done", false));
    assert_int_equal(mlo_json_i64(events, "next", 0), MLO_COUNT(kinds));
    assert_mlo_ok(mlo_run_events(f->pg->conn, run, 2, 2, &rest, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(rest, "items")), 2);
    assert_false(mlo_json_bool(rest, "done", true));
    json_decref(events);
    json_decref(rest);
    mlo_job_clear(&job);
}

static void test_list__pages_from_the_newest(void **state)
{
    struct service_fixture *f = *state;
    json_t *page = NULL, *overview = NULL;
    int64_t ids[3], next = 0;
    for (int i = 0; i < 3; i++)
        ids[i] = submit(f, f->version, RECIPE_OBSERVE, 0);
    struct mlo_run_filter filter = {.project = f->project, .limit = 2};
    assert_mlo_ok(mlo_run_list(f->pg->conn, &filter, &page, &f->err), &f->err);
    json_t *items = json_object_get(page, "items");
    assert_int_equal(json_array_size(items), 2);
    assert_int_equal(mlo_json_i64(json_array_get(items, 0), "id", 0), ids[2]);
    assert_true(mlo_str_to_i64(mlo_json_str(page, "next", ""), &next));
    json_decref(page);
    filter.before = next;
    assert_mlo_ok(mlo_run_list(f->pg->conn, &filter, &page, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(page, "items")), 1);
    assert_true(json_is_null(json_object_get(page, "next")));
    json_decref(page);
    assert_mlo_ok(mlo_queue_overview(f->pg->conn, &overview, &f->err), &f->err);
    assert_int_equal(mlo_json_i64(overview, "queued", 0), 3);
    assert_int_equal(mlo_json_i64(overview, "workers", -1), 0);
    assert_int_equal(json_array_size(json_object_get(overview, "targets")), 1);
    json_decref(overview);
}

static void test_roles__worker_may_not_submit_nor_server_claim(void **state)
{
    struct service_fixture *f = *state;
    static const struct {
        bool worker;
        const char *sql;
    } refused[] = {
        {true, "insert into job (run, project, position, name, step, kind, target, state, spec) "
               "select run, project, 99, 'x', 'x', 'derive', 'any', 'ready', '{}' from job limit 1"},
        {true, "update job set spec = '{}'"},
        {true, "update job set priority = 99"},
        {true, "update run set recipe = ''"},
        {true, "delete from attempt"},
        {true, "update run_event set data = ''"},
        {false,
         "insert into attempt (job, number, token, worker) select id, 1, gen_random_uuid(), 'x' from job"},
        {false, "update job set output = null"},
        {false, "update run set recipe = ''"},
        {false, "delete from run_event"},
    };
    submit(f, f->version, RECIPE_OBSERVE, 0);
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        struct mlo_db_conn *conn;
        struct mlo_error err = {0};
        assert_mlo_ok(mlo_db_acquire(refused[i].worker ? f->worker : f->pg->server, &conn, &err), &err);
        enum mlo_status status = mlo_db_exec_text(conn, refused[i].sql, &err);
        mlo_db_release(conn);
        if (status != MLO_EFORBIDDEN)
            fail_msg("not refused: %s (%s)", refused[i].sql, err.message);
    }
}

/* As a worker that vanished inside a completion leaves it. */
static struct mlo_db_conn *hold_jobs_of(struct service_fixture *f, int64_t run)
{
    struct mlo_db_conn *conn;
    char sql[96];
    snprintf(sql, sizeof sql, "begin; select from job where run = %lld for update", (long long)run);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    return conn;
}

static void test_lease__nobody_waits_for_who_vanished_inside_a_completion(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job jobs[2];
    int count = 0;
    int64_t held = submit(f, f->version, RECIPE_OBSERVE, 0), other = submit(f, f->version, RECIPE_OBSERVE, 0);
    for (int i = 0; i < 2; i++)
        assert_true(claim(f, &CLAIMER, &jobs[i]));
    assert_int_equal(jobs[0].run, held);
    struct mlo_db_conn *vanished = hold_jobs_of(f, held);
    assert_int_equal(mlo_queue_beat(f->worker, &jobs[0], LEASE_MS, &f->err), MLO_ECONFLICT);
    assert_mlo_ok(mlo_queue_beat(f->worker, &jobs[1], LEASE_MS, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(vanished, "rollback", &f->err), &f->err);
    mlo_db_release(vanished);
    assert_mlo_ok(mlo_queue_beat(f->worker, &jobs[0], LEASE_MS, &f->err), &f->err);
    end_leases(f);
    vanished = hold_jobs_of(f, held);
    assert_mlo_ok(mlo_queue_reap(f->worker, 0, &count, &f->err), &f->err);
    assert_int_equal(count, 1);
    assert_run(f, other, 0, "state", "queued");
    assert_mlo_ok(mlo_db_exec_text(vanished, "rollback", &f->err), &f->err);
    mlo_db_release(vanished);
    assert_mlo_ok(mlo_queue_reap(f->worker, 0, &count, &f->err), &f->err);
    assert_int_equal(count, 1);
    assert_run(f, held, 0, "state", "queued");
    for (int i = 0; i < 2; i++)
        mlo_job_clear(&jobs[i]);
}

static void test_lease__a_run_whose_other_job_is_held_is_reaped_later(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    int count = 0;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    assert_true(claim(f, &CLAIMER, &job));
    end_leases(f);
    struct mlo_db_conn *vanished;
    char sql[128];
    snprintf(sql, sizeof sql, "begin; select from job where run = %lld and id <> %lld for update",
             (long long)run, (long long)job.id);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &vanished, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(vanished, sql, &f->err), &f->err);
    assert_mlo_ok(mlo_queue_reap(f->worker, 0, &count, &f->err), &f->err);
    assert_int_equal(count, 0);
    assert_mlo_ok(mlo_db_exec_text(vanished, "rollback", &f->err), &f->err);
    mlo_db_release(vanished);
    assert_mlo_ok(mlo_queue_reap(f->worker, 0, &count, &f->err), &f->err);
    assert_int_equal(count, 1);
    mlo_job_clear(&job);
}

static void test_lease__who_asks_for_nothing_in_a_transaction_loses_it(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    static const char *const wanted[][2] = {
        {"show idle_in_transaction_session_timeout", "30s"},
        {"begin; " MLO_DB_SLOW_TX "; show idle_in_transaction_session_timeout", "0"},
        {"rollback; show idle_in_transaction_session_timeout", "30s"},
    };
    for (size_t i = 0; i < MLO_COUNT(wanted); i++) {
        PGresult *result = PQexec(mlo_db_pg(conn), wanted[i][0]);
        assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
        assert_string_equal(PQgetvalue(result, 0, 0), wanted[i][1]);
        PQclear(result);
    }
    mlo_db_release(conn);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_sql__every_statement_prepares),
        SERVICE_TEST(test_submit__makes_a_chain_of_jobs),
        SERVICE_TEST(test_submit__names_the_missing_dataset),
        SERVICE_TEST(test_submit__names_the_postprocessing_model),
        SERVICE_TEST(test_submit__refuses_to_select_on_what_evaluates),
        SERVICE_TEST(test_submit__refuses_another_projects_version_and_a_viewer),
        SERVICE_TEST(test_claim__no_job_twice_among_threads),
        SERVICE_TEST(test_claim__by_priority_then_age_and_by_target),
        SERVICE_TEST(test_preemption__is_at_the_end_of_a_step),
        SERVICE_TEST(test_fencing__late_completion_changes_nothing),
        SERVICE_TEST(test_lease__heartbeat_prolongs_it),
        SERVICE_TEST(test_lease__lost_too_often_is_a_dead_letter),
        SERVICE_TEST(test_failure__that_can_pass_is_tried_again_later),
        SERVICE_TEST(test_failure__after_max_attempts_fails_the_run),
        SERVICE_TEST(test_failure__that_cannot_pass_fails_once),
        SERVICE_TEST(test_return__does_not_count_as_an_attempt),
        SERVICE_TEST(test_cancel__refuses_what_comes_later),
        SERVICE_TEST(test_derivation__same_one_is_never_in_flight_twice),
        SERVICE_TEST(test_derivation__second_run_gets_the_same_artifact),
        SERVICE_TEST(test_derivation__other_bytes_for_a_known_key_are_refused),
        SERVICE_TEST(test_expectation__that_does_not_hold_fails_the_run),
        SERVICE_TEST(test_events__are_in_order_without_gaps),
        SERVICE_TEST(test_list__pages_from_the_newest),
        SERVICE_TEST(test_lease__nobody_waits_for_who_vanished_inside_a_completion),
        SERVICE_TEST(test_lease__a_run_whose_other_job_is_held_is_reaped_later),
        SERVICE_TEST(test_lease__who_asks_for_nothing_in_a_transaction_loses_it),
        SERVICE_TEST(test_roles__worker_may_not_submit_nor_server_claim),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
