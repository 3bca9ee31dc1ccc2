/* Where a run's time went: what is read from rows, what workers tell of their attempts, and OpenTelemetry's
 * form of it. */
#include <math.h>

#include "tests/integration/service/service_fixture.h"
#include "tests/metrics_parser.h"

static json_t *trace_of(struct service_fixture *f, int64_t run)
{
    json_t *trace = NULL;
    assert_mlo_ok(mlo_run_trace(f->pg->conn, f->project, run, &trace, &f->err), &f->err);
    return trace;
}

/* Spans follow each other without a gap, phases lie in their attempt, one behind the other. */
static void assert_sound(const json_t *trace)
{
    double end = mlo_json_f64(trace, "seconds", -1);
    json_t *job, *span, *phase;
    size_t i, s, p;
    json_array_foreach(json_object_get(trace, "jobs"), i, job)
    {
        double at = NAN;
        json_array_foreach(json_object_get(job, "spans"), s, span)
        {
            double from = mlo_json_f64(span, "from_s", -1), to = mlo_json_f64(span, "to_s", -1), last = from;
            if (from < -1e-6 || to < from || to > end + 1e-6 || (s && fabs(from - at) > 1e-5))
                fail_msg("job %zu: span %zu is %g to %g behind %g, of %g", i, s, from, to, at, end);
            at = to;
            json_array_foreach(json_object_get(span, "phases"), p, phase)
            {
                double begin = mlo_json_f64(phase, "from_s", -1), stop = mlo_json_f64(phase, "to_s", -1);
                if (begin < last - 1e-9 || stop < begin || stop > to + 1e-9)
                    fail_msg("job %zu: phase %s is %g to %g in %g to %g", i, mlo_json_str(phase, "name", ""),
                             begin, stop, from, to);
                last = stop;
            }
        }
    }
}

/* "queued attempt(succeeded)", the kinds of a job's spans in order. */
static char *kinds(const json_t *trace, size_t job, char out[256])
{
    json_t *span;
    size_t i, used = 0;
    out[0] = '\0';
    json_array_foreach(json_object_get(json_array_get(json_object_get(trace, "jobs"), job), "spans"), i, span)
    {
        const char *outcome = mlo_json_str(span, "outcome", NULL);
        used += (size_t)snprintf(out + used, 256 - used, "%s%s%s%s%s%s", i ? " " : "",
                                 mlo_json_str(span, "kind", ""), outcome ? "(" : "", outcome ? outcome : "",
                                 outcome ? ")" : "", mlo_json_bool(span, "open", false) ? "…" : "");
    }
    return out;
}

static void test_trace__tells_the_phases_of_what_a_worker_did(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    char text[256];
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    json_t *trace = trace_of(f, run), *phase;
    assert_sound(trace);
    assert_string_equal(kinds(trace, 0, text), "queued attempt(succeeded)");
    assert_string_equal(kinds(trace, 1, text), "blocked queued attempt(succeeded)");
    static const char *const names[] = {"inputs", "turn", "step", "store", "record"};
    json_t *attempt =
               json_array_get(json_object_get(json_array_get(json_object_get(trace, "jobs"), 1), "spans"), 2),
           *phases = json_object_get(attempt, "phases");
    size_t i;
    assert_in_range(json_array_size(phases), 4, 5); /* what is left behind "store" may be nothing */
    json_array_foreach(phases, i, phase) assert_string_equal(mlo_json_str(phase, "name", ""), names[i]);
    assert_true(mlo_json_str(attempt, "worker", "")[0]);
    json_decref(trace);
}

static const struct mlo_claimer CLAIMER = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 600000};

static void test_trace__shows_lost_attempts_and_what_goes_on(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job = {.id = 0};
    char text[256];
    int count = 0;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    json_t *trace = trace_of(f, run);
    assert_sound(trace);
    assert_string_equal(kinds(trace, 0, text), "queued…");
    assert_string_equal(kinds(trace, 3, text), "blocked…");
    json_decref(trace);
    assert_mlo_ok(mlo_queue_claim(f->worker, &CLAIMER, &job, 1, &count, &f->err), &f->err);
    assert_int_equal(count, 1);
    mlo_job_clear(&job);
    pg_fixture_number(f->pg->owner,
                      "update job set lease_until = clock_timestamp() - interval '1 s' where state = "
                      "'running'");
    assert_mlo_ok(mlo_queue_reap(f->worker, 1, &count, &f->err), &f->err);
    assert_mlo_ok(mlo_queue_claim(f->worker, &CLAIMER, &job, 1, &count, &f->err), &f->err);
    assert_int_equal(count, 1);
    mlo_job_clear(&job);
    trace = trace_of(f, run);
    assert_sound(trace);
    assert_string_equal(kinds(trace, 0, text), "queued attempt(lost) queued attempt…");
    json_decref(trace);
    assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, run, NULL, &f->err), &f->err);
    trace = trace_of(f, run);
    assert_sound(trace);
    assert_string_equal(kinds(trace, 0, text), "queued attempt(lost) queued attempt(cancelled)");
    assert_string_equal(kinds(trace, 3, text), "blocked");
    json_decref(trace);
    assert_mlo_status(mlo_run_trace(f->pg->conn, f->project + 1, run, &trace, &f->err), MLO_ENOTFOUND,
                      &f->err);
}

/* Of a job that was tried again and again, and of a run of many jobs: no more than was asked for. */
static void test_trace__a_part_is_bounded(void **state)
{
    struct service_fixture *f = *state;
    char text[256];
    json_t *part = NULL, *jobs;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    char sql[400];
    snprintf(sql, sizeof sql,
             "insert into attempt (job, number, token, worker, started_at, ended_at, outcome) "
             "select j.id, n, gen_random_uuid(), 'w', j.created_at + n * interval '10 us', "
             "j.created_at + n * interval '10 us', 'lost' from job j, generate_series(1, 30) n "
             "where j.run = %lld and j.position < 2",
             (long long)run);
    pg_fixture_number(f->pg->owner, sql);
    json_t *whole = trace_of(f, run);
    struct mlo_trace_part ask = {.from = 1, .jobs = 2, .attempts = 3};
    assert_mlo_ok(mlo_run_trace_part(f->pg->conn, f->project, run, &ask, &part, &f->err), &f->err);
    assert_sound(whole);
    assert_sound(part);
    jobs = json_object_get(part, "jobs");
    assert_int_equal(json_array_size(json_object_get(whole, "jobs")), 4);
    assert_null(json_object_get(json_array_get(json_object_get(whole, "jobs"), 1), "earlier"));
    assert_int_equal(json_array_size(jobs), 2);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(mlo_json_i64(json_array_get(jobs, i), "position", -1), (long)i + 1);
    assert_int_equal(mlo_json_i64(json_array_get(jobs, 0), "earlier", 0), 27);
    assert_string_equal(kinds(part, 0, text),
                        "attempt(lost) queued attempt(lost) queued attempt(lost) queued…");
    assert_null(json_object_get(json_array_get(jobs, 1), "earlier"));
    json_decref(part);
    ask = (struct mlo_trace_part){.from = 0, .jobs = 1, .attempts = 30}; /* as many as there are */
    assert_mlo_ok(mlo_run_trace_part(f->pg->conn, f->project, run, &ask, &part, &f->err), &f->err);
    jobs = json_object_get(part, "jobs");
    assert_null(json_object_get(json_array_get(jobs, 0), "earlier"));
    assert_int_equal(
        json_array_size(json_object_get(json_array_get(jobs, 0), "spans")),
        json_array_size(json_object_get(json_array_get(json_object_get(whole, "jobs"), 0), "spans")));
    json_decref(part);
    json_decref(whole);
}

/* A worker's word is checked: form, order, and that it does not leave the attempt. */
static void test_trace__believes_no_worker(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job = {.id = 0};
    struct mlo_cost cost = {.cpu_s = 0};
    static const struct {
        const char *told;
        size_t phases; /* at most, and sound */
    } cases[] = {
        {"no json", 0},
        {"{\"a\":1}", 0},
        {"[1,2,3]", 0},
        {"[[\"a\"],[\"b\",0],[\"c\",\"0\",\"1\"],[7,0,1]]", 0},
        {"[[\"late\",5,1]]", 0},
        {"[[\"far\",0,1e300],[\"back\",-5,1]]", 1},
        {"[[\"a name that is longer than any name of a phase is\",0,0]]", 0},
    };
    char sql[512];
    int count = 0;
    int64_t run = submit(f, f->version, RECIPE_DERIVE, 0);
    assert_mlo_ok(mlo_queue_claim(f->worker, &CLAIMER, &job, 1, &count, &f->err), &f->err);
    const struct mlo_attempt_failure failure = {
        .job = job.id, .token = job.token, .end = MLO_ATTEMPT_FAILED, .error = &f->err, .cost = &cost};
    (void)mlo_error_set(&f->err, MLO_EINVAL, "no");
    assert_mlo_ok(mlo_queue_fail(f->worker, &failure, &f->err), &f->err);
    mlo_job_clear(&job);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        snprintf(sql, sizeof sql, "update attempt set phases = $t$%s$t$", cases[i].told);
        pg_fixture_number(f->pg->owner, sql);
        json_t *trace = trace_of(f, run);
        assert_sound(trace);
        json_t *phases = json_object_get(
            json_array_get(json_object_get(json_array_get(json_object_get(trace, "jobs"), 0), "spans"), 1),
            "phases");
        if (json_array_size(phases) > cases[i].phases + 1) /* and "record" */
            fail_msg("%s: %zu phases", cases[i].told, json_array_size(phases));
        json_decref(trace);
    }
}

/* The file for node_exporter: there while the worker is, sound, and with no name that node_exporter has
 * itself. */
static void test_trace__a_worker_writes_its_metrics(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct metric_set set = {.all = NULL};
    struct mlo_buf text = MLO_BUF_INIT;
    char *path = mlo_fs_join(f->dir, "gpu-1.prom", NULL);
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    start_worker_with(f, &w, (struct mlo_worker_options){.slots = 1, .metrics_file = path});
    wait_run(f, run);
    uint64_t until = mlo_clock_ns() + PATIENCE_S * 1000000000ull;
    do {
        free(set.all);
        set.all = NULL;
        mlo_buf_reset(&text);
        if (mlo_fs_exists(path)) {
            assert_mlo_ok(mlo_fs_read(path, 1 << 20, &text, &f->err), &f->err);
            metric_parse(mlo_buf_str(&text), false, &set);
            if (metric_get(&set, "mlopt_worker_attempts_total{worker=\"gpu-1\",end=\"done\"}") == 4)
                break;
        }
        mlo_clock_sleep_ms(100);
    } while (mlo_clock_ns() < until);
    assert_true(metric_get(&set, "mlopt_worker_attempts_total{worker=\"gpu-1\",end=\"done\"}") == 4);
    assert_true(metric_get(&set, "mlopt_worker_slot_limit{worker=\"gpu-1\"}") == 1);
    assert_true(metric_get(&set, "mlopt_worker_resident_memory_bytes{worker=\"gpu-1\"}") > 1e5);
    assert_true(metric_get(&set, "mlopt_worker_blob_cache_misses_total{worker=\"gpu-1\"}") > 0);
    for (size_t i = 0; i < set.count; i++)
        assert_true(mlo_str_starts(set.all[i].name, "mlopt_worker_"));
    stop_worker(&w);
    assert_false(mlo_fs_exists(path));
    free(set.all);
    mlo_buf_clear(&text);
    free(path);
}

static bool is_hex(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

static void test_trace__is_opentelemetry_s(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    json_t *trace = trace_of(f, run), *otlp = mlo_trace_otlp(trace, "1"), *again = mlo_trace_otlp(trace, "1");
    assert_true(json_equal(otlp, again));
    json_t *spans = json_object_get(
        json_array_get(
            json_object_get(json_array_get(json_object_get(otlp, "resourceSpans"), 0), "scopeSpans"), 0),
        "spans");
    json_t *span, *other;
    size_t i, k, roots = 0;
    assert_true(json_array_size(spans) > 1 + 4 + 4 * 2);
    json_array_foreach(spans, i, span)
    {
        const char *parent = mlo_json_str(span, "parentSpanId", NULL);
        int64_t from, to;
        bool found = !parent;
        assert_true(is_hex(mlo_json_str(span, "traceId", ""), 32) &&
                    is_hex(mlo_json_str(span, "spanId", ""), 16));
        assert_true(mlo_json_str(span, "name", "")[0]);
        assert_true(mlo_str_to_i64(mlo_json_str(span, "startTimeUnixNano", ""), &from));
        assert_true(mlo_str_to_i64(mlo_json_str(span, "endTimeUnixNano", ""), &to));
        assert_true(to >= from && from > 1700000000000000000);
        roots += !parent;
        json_array_foreach(spans, k, other)
        {
            const char *id = mlo_json_str(other, "spanId", "");
            found = found || strcmp(id, parent) == 0;
            assert_true(i == k || strcmp(id, mlo_json_str(span, "spanId", "")) != 0);
        }
        assert_true(found);
    }
    assert_int_equal(roots, 1);
    json_decref(trace);
    json_decref(otlp);
    json_decref(again);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_trace__tells_the_phases_of_what_a_worker_did),
        SERVICE_TEST(test_trace__shows_lost_attempts_and_what_goes_on),
        SERVICE_TEST(test_trace__a_part_is_bounded),
        SERVICE_TEST(test_trace__believes_no_worker),
        SERVICE_TEST(test_trace__is_opentelemetry_s),
        SERVICE_TEST(test_trace__a_worker_writes_its_metrics),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
