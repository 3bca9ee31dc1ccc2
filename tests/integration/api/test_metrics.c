/* /metrics: read by a strict parser, after attempts of every kind; who may read it; without a database. */
#include "tests/integration/api/api_fixture.h"

#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "pipeline/service/service_impl.h"
#include "tests/metrics_parser.h"

#define RECIPE                                                                                               \
    "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: {}\\n  - optimize: "  \
    "{}\\n\"}"

static void submit(struct api *api)
{
    struct reply reply = {0};
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_SUBMITTER], RECIPE, NULL);
    assert_http(&reply, 201);
    reply_clear(&reply);
}

static const struct mlo_claimer CLAIMER = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 600000};

static void claim(struct api *api, struct mlo_job *job)
{
    int count = 0;
    assert_mlo_ok(mlo_queue_claim(api->pg->worker, &CLAIMER, job, 1, &count, &api->pg->err), &api->pg->err);
    assert_int_equal(count, 1);
}

static void end(struct api *api, struct mlo_job *job, enum mlo_attempt_end how, enum mlo_status status)
{
    struct mlo_error why = {0};
    const struct mlo_cost cost = {.cpu_s = 1.5, .read_bytes = 10, .written_bytes = 20};
    (void)mlo_error_set(&why, status == MLO_OK ? MLO_EINVAL : status, "so it ended");
    const struct mlo_attempt_failure failure = {.job = job->id,
                                                .token = job->token,
                                                .end = how,
                                                .error = how == MLO_ATTEMPT_FAILED ? &why : NULL,
                                                .retry = status == MLO_EUNAVAILABLE,
                                                .cost = &cost,
                                                .backoff_ms = 1};
    assert_mlo_ok(mlo_queue_fail(api->pg->worker, &failure, &api->pg->err), &api->pg->err);
    mlo_job_clear(job);
}

/* What a scrape says once `series` is there with this value (figures are up to a second old). */
static void scrape_until(struct api *api, const char *series, double wanted, struct metric_set *set)
{
    struct reply reply = {0};
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    double value;
    set->all = NULL;
    do {
        free(set->all);
        api_call(api, &reply, "GET", "/metrics", api->token[MLO_VIEWER], NULL, NULL);
        assert_http(&reply, 200);
        assert_holds(mlo_buf_str(&reply.headers), "text/plain; version=0.0.4");
        metric_parse(mlo_buf_str(&reply.body), false, set);
        value = metric_get(set, series);
        if (value == wanted)
            break;
        mlo_clock_sleep_ms(200);
    } while (mlo_clock_ns() < until);
    if (value != wanted)
        fail_msg("%s is %g, not %g, in: %s", series, value, wanted, mlo_buf_str(&reply.body));
    reply_clear(&reply);
}

#define assert_metric(set, series, wanted)                                                                   \
    do {                                                                                                     \
        double value_ = metric_get(set, series);                                                             \
        if (!(value_ == (wanted)))                                                                           \
            fail_msg("%s is %g, not %g", series, value_, (double)(wanted));                                  \
    } while (0)

static void test_metrics__attempts_are_counted_as_they_end(void **state)
{
    struct api *api = *state;
    struct metric_set set;
    struct mlo_job job = {.id = 0};
    int count = 0;
    api_version(api, "cnn", "bytes", "");
    submit(api);
    submit(api);
    /* lost, three seconds ago; then it cannot be reached; handed back; then it fails for good */
    claim(api, &job);
    pg_fixture_number(
        api->pg->owner,
        "update job set lease_until = clock_timestamp() - interval '3 seconds' where state = 'running'");
    assert_mlo_ok(mlo_queue_reap(api->pg->worker, 1, &count, &api->pg->err), &api->pg->err);
    assert_int_equal(count, 1);
    mlo_job_clear(&job);
    claim(api, &job);
    end(api, &job, MLO_ATTEMPT_FAILED, MLO_EUNAVAILABLE);
    pg_fixture_number(api->pg->owner, "update job set not_before = clock_timestamp() where state = 'ready'");
    claim(api, &job);
    end(api, &job, MLO_ATTEMPT_RETURNED, MLO_OK);
    claim(api, &job);
    end(api, &job, MLO_ATTEMPT_FAILED, MLO_EINVAL);
    scrape_until(api, "mlopt_usage_unsettled", 4, &set);
    assert_metric(&set, "mlopt_queue_jobs{state=\"ready\",target=\"any\",class=\"normal\"}", 1);
    assert_metric(&set, "mlopt_queue_jobs{state=\"waiting\",target=\"any\",class=\"normal\"}", 1);
    assert_true(metric_get(&set, "mlopt_queue_oldest_ready_seconds") > 0);
    assert_metric(&set, "mlopt_database_up", 1);
    free(set.all);
    assert_mlo_ok(mlo_queue_settle(api->pg->worker, &api->pg->err), &api->pg->err);
    scrape_until(api, "mlopt_job_attempts_total{step=\"optimize\",outcome=\"failed\"}", 1, &set);
    assert_metric(&set, "mlopt_job_attempts_total{step=\"optimize\",outcome=\"lost\"}", 1);
    assert_metric(&set, "mlopt_job_attempts_total{step=\"optimize\",outcome=\"retried\"}", 1);
    assert_metric(&set, "mlopt_job_attempts_total{step=\"optimize\",outcome=\"returned\"}", 1);
    char series[128];
    const enum mlo_status codes[] = {MLO_ELEASE, MLO_EUNAVAILABLE, MLO_EINVAL};
    for (size_t i = 0; i < MLO_COUNT(codes); i++) {
        snprintf(series, sizeof series, "mlopt_job_failures_total{code=\"%s\"}",
                 mlo_status_info(codes[i])->code);
        assert_metric(&set, series, 1);
    }
    assert_metric(&set, "mlopt_job_cpu_seconds_total{step=\"optimize\"}",
                  4.5); /* of the lost one nobody knows */
    assert_metric(&set, "mlopt_job_written_bytes_total{step=\"optimize\"}", 60);
    free(set.all); /* each group of figures is as old as it is */
    /* the lost lease: from its end to the next claim */
    scrape_until(api, "mlopt_job_recovery_seconds_count", 1, &set);
    assert_true(metric_get(&set, "mlopt_job_recovery_seconds_sum") >= 3);
    assert_metric(&set, "mlopt_job_recovery_seconds_bucket{le=\"2.5\"}", 0);
    assert_metric(&set, "mlopt_job_run_seconds_count{step=\"optimize\"}", 4);
    assert_true(metric_get(&set, "mlopt_job_wait_seconds_count{step=\"optimize\"}") >= 2);
    free(set.all);
    scrape_until(api, "mlopt_usage_unsettled", 0, &set);
    free(set.all);
}

/* Loses the job that runs. */
static void lose(struct api *api, struct mlo_job *job)
{
    int count = 0;
    pg_fixture_number(
        api->pg->owner,
        "update job set lease_until = clock_timestamp() - interval '3 seconds' where state = 'running'");
    assert_mlo_ok(mlo_queue_reap(api->pg->worker, 1, &count, &api->pg->err), &api->pg->err);
    assert_int_equal(count, 1);
    mlo_job_clear(job);
}

/* Neither what nobody knows, nor what a person waited, is a time of the queue. */
static void test_metrics__unknown_times_are_not_counted(void **state)
{
    static const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct api *api = *state;
    struct metric_set set;
    struct mlo_job job = {.id = 0};
    api_version(api, "cnn", "bytes", "");
    submit(api);
    pg_fixture_number(api->pg->owner, "update job set max_attempts = 2 where position = 0");
    claim(api, &job);
    lose(api, &job);
    pg_fixture_number(api->pg->owner, "alter table attempt disable trigger attempt_metrics");
    pg_fixture_number(api->pg->owner, "update attempt set lease_until = null");
    pg_fixture_number(api->pg->owner, "alter table attempt enable trigger attempt_metrics");
    pg_fixture_number(api->pg->owner, "update job set ready_at = null where state = 'ready'");
    claim(api, &job); /* after a loss of which it is not known when it was */
    lose(api, &job);
    /* it failed with that; taken up again by hand, much later */
    assert_mlo_ok(mlo_run_requeue(api->pg->conn, &system, 1, "", &api->pg->err), &api->pg->err);
    pg_fixture_number(api->pg->owner, "update job set ready_at = null where state = 'ready'");
    claim(api, &job);
    end(api, &job, MLO_ATTEMPT_RETURNED, MLO_OK);
    claim(api, &job);
    lose(api, &job);
    claim(api, &job); /* this one counts, also where it is handed back */
    end(api, &job, MLO_ATTEMPT_RETURNED, MLO_OK);
    claim(api, &job);
    end(api, &job, MLO_ATTEMPT_FAILED, MLO_EINVAL);
    assert_mlo_ok(mlo_queue_settle(api->pg->worker, &api->pg->err), &api->pg->err);
    scrape_until(api, "mlopt_job_attempts_total{step=\"optimize\",outcome=\"lost\"}", 3, &set);
    free(set.all);
    scrape_until(api, "mlopt_job_recovery_seconds_count", 1, &set);
    assert_true(metric_get(&set, "mlopt_job_recovery_seconds_sum") >= 3);
    assert_metric(&set, "mlopt_job_wait_seconds_count{step=\"optimize\"}", 1); /* the first: it was ready */
    free(set.all);
}

/* A blob that was removed keeps its row, and is no blob of the store. */
static void test_metrics__blobs_are_those_that_are_there(void **state)
{
    struct api *api = *state;
    struct metric_set set;
    pg_fixture_number(api->pg->owner,
                      "insert into blob (digest, size, removed_at, removed_why, bytes_gone_at) select "
                      "sha256(n::text::bytea), 1000, case when n > 2 then now() end, case when n > 2 then "
                      "'collected' end, case when n > 3 then now() end from generate_series(1, 5) n");
    scrape_until(api, "mlopt_blobs", 3, &set); /* two, and one that is going */
    assert_metric(&set, "mlopt_blob_bytes", 3000);
    free(set.all);
}

/* The trace of a run that failed at its third attempt: as JSON, for OpenTelemetry, and on its page. */
static void test_metrics__a_run_has_a_trace(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_job job = {.id = 0};
    char cookie[160];
    api_version(api, "cnn", "bytes", "");
    submit(api);
    claim(api, &job);
    end(api, &job, MLO_ATTEMPT_FAILED, MLO_EINVAL);
    api_call(api, &reply, "GET", "/v1/projects/demo/runs/1/trace", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    json_t *jobs = json_object_get(reply.json, "jobs"),
           *spans = json_object_get(json_array_get(jobs, 0), "spans"), *last = json_array_get(spans, 1);
    assert_int_equal(json_array_size(jobs), 2);
    assert_int_equal(json_array_size(spans), 2);
    assert_string_equal(mlo_json_str(json_array_get(spans, 0), "kind", ""), "queued");
    assert_string_equal(mlo_json_str(last, "outcome", ""), "failed");
    assert_string_equal(mlo_json_str(last, "error", ""), mlo_status_info(MLO_EINVAL)->code);
    api_call(api, &reply, "GET", "/v1/projects/demo/runs/1/trace?format=otlp", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "resourceSpans")), 1);
    api_call(api, &reply, "GET", "/v1/projects/demo/runs/1/trace?format=xml", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_http(&reply, 422);
    api_call(api, &reply, "GET", "/v1/projects/demo/runs/77/trace", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    const char *session[] = {cookie, NULL};
    api_call(api, &reply, "GET", "/runs/demo/1", NULL, NULL, session);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "<svg class=\"waterfall\"");
    assert_holds(mlo_buf_str(&reply.body), "class=\"failed attempt\"");
    assert_holds(mlo_buf_str(&reply.body), "<details id=\"trace\">");
    assert_null(strstr(mlo_buf_str(&reply.body), "≥"));
    /* of many attempts the last ten are shown: the job took no less than they did */
    pg_fixture_number(api->pg->owner,
                      "insert into attempt (job, number, token, worker, started_at, ended_at, outcome) "
                      "select j.id, n, gen_random_uuid(), 'w', j.created_at + n * interval '1 s', "
                      "j.created_at + n * interval '1 s' + interval '0.5 s', 'lost' from job j, "
                      "generate_series(11, 30) n where j.run = 1 and j.position = 0");
    api_call(api, &reply, "GET", "/runs/demo/1", NULL, NULL, session);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), ">≥&nbsp;5.00&nbsp;s</text>");
    reply_clear(&reply);
}

/* Bounds are inclusive, as "le" says, and the function that sorts into them has them in agreement. */
static void test_metrics__buckets_agree_with_their_bounds(void **state)
{
    struct api *api = *state;
    assert_int_equal(pg_fixture_number(api->pg->owner, "select array_length(metric_bounds(), 1)"), 17);
    assert_int_equal(
        pg_fixture_number(api->pg->owner,
                          "select count(*) from unnest(metric_bounds()) with ordinality b(le, n) where "
                          "metric_bucket(le) <> n - 1 or metric_bucket(le * 1.000001) <> n or "
                          "metric_bucket(le * 0.999999) <> n - 1"),
        0);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select metric_bucket(0)"), 0);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select metric_bucket(1e9)"), 17);
}

static void test_metrics__requests_are_counted_by_route(void **state)
{
    struct api *api = *state;
    struct metric_set set;
    struct reply reply = {0};
    for (int i = 0; i < 3; i++)
        api_call(api, &reply, "GET", "/v1/projects/demo/models", api->token[MLO_VIEWER], NULL, NULL);
    api_call(api, &reply, "GET", "/v1/projects/no\"such\\one/models", api->token[MLO_VIEWER], NULL, NULL);
    api_call(api, &reply, "GET", "/nothing/there", NULL, NULL, NULL);
    api_version(api, "cnn", "twelve bytes", "");
    scrape_until(api,
                 "mlopt_http_requests_total{method=\"GET\",route=\"/v1/projects/{p}/models\",code=\"200\"}",
                 3, &set);
    assert_metric(&set, "mlopt_http_requests_total{method=\"any\",route=\"none\",code=\"404\"}", 1);
    assert_metric(&set,
                  "mlopt_http_received_bytes_total{method=\"PUT\",route=\"/v1/projects/{p}/blobs/{digest}\"}",
                  12);
    double all = metric_get(
        &set, "mlopt_http_request_duration_seconds_count{method=\"GET\",route=\"/v1/projects/{p}/models\"}");
    assert_true(all >= 3);
    assert_true(metric_get(&set, "process_resident_memory_bytes") > 1e6);
    assert_metric(&set, "mlopt_database_up", 1);
    assert_true(metric_get(&set, "mlopt_database_size_bytes") > 1e6);
    assert_metric(&set, "mlopt_build_info{version=\"0.1.0\"}", 1);
    free(set.all);
    reply_clear(&reply);
}

/* promtool's own check of a file, where the package prometheus is installed. */
static void check_by_promtool(const char *what, const char *path)
{
    struct mlo_buf command = MLO_BUF_INIT;
    int rc;
    pid_t pid;
    mlo_buf_printf(&command, "command -v promtool >/dev/null || exit 77; exec promtool check %s '%s' >&2",
                   strcmp(what, "metrics") == 0 ? "metrics <" : what, path);
    char *const argv[] = {"sh", "-c", command.data, NULL};
    extern char **environ;
    assert_int_equal(posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    if (WIFEXITED(rc) && WEXITSTATUS(rc) == 77)
        print_message("promtool (package prometheus) is not installed: its check of %s is left out\n", what);
    else
        assert_int_equal(rc, 0);
    mlo_buf_clear(&command);
}

/* Whether some family has this name, or the name of its samples in a histogram. */
static bool is_metric(const struct metric_set *set, const char *name)
{
    static const char *const suffixes[] = {"", "_bucket", "_sum", "_count"};
    char family[128];
    for (size_t i = 0; i < set->family_count; i++)
        for (size_t s = 0; s < MLO_COUNT(suffixes); s++) {
            snprintf(family, sizeof family, "%s%s", set->families[i], suffixes[s]);
            if (strcmp(family, name) == 0 && (!s || strcmp(set->types[i], "histogram") == 0))
                return true;
        }
    return false;
}

/* Each metric that a rule names is there, and each runbook that it points to. */
static void test_metrics__alerts_name_what_is_there(void **state)
{
    static const char *const rules = MLOPT_SOURCE_DIR "/deploy/prometheus/rules.yml";
    static const char *const book = "docs/observability.md#";
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT, docs = MLO_BUF_INIT;
    struct metric_set set;
    struct reply reply = {0};
    size_t metrics = 0, alerts = 0, books = 0;
    char name[96];
    api_call(api, &reply, "GET", "/metrics", api->token[MLO_VIEWER], NULL, NULL);
    metric_parse(mlo_buf_str(&reply.body), false, &set);
    assert_mlo_ok(mlo_fs_read(rules, 1 << 20, &text, &err), &err);
    assert_mlo_ok(mlo_fs_read(MLOPT_SOURCE_DIR "/docs/observability.md", 1 << 20, &docs, &err), &err);
    for (const char *at = mlo_buf_str(&text); (at = strstr(at, "mlopt_")); at += strlen(name), metrics++) {
        snprintf(name, sizeof name, "%.*s", (int)metric_name_length(at, true), at);
        if (!is_metric(&set, name))
            fail_msg("%s: there is no metric %s", rules, name);
    }
    for (const char *at = mlo_buf_str(&text); (at = strstr(at, "- alert: ")); at++, alerts++) {
        snprintf(name, sizeof name, "\n#### %.*s\n", (int)strcspn(at + 9, "\n"), at + 9);
        assert_holds(mlo_buf_str(&docs), name);
        const char *link = strstr(at, book);
        assert_non_null(link);
        link += strlen(book);
        books += strncasecmp(link, at + 9, strcspn(at + 9, "\n")) == 0;
    }
    assert_true(metrics > 15 && alerts > 10 && books == alerts);
    /* 507 is a project at its quota as well as a full disk: a warning of its own, and no failure of requests
     */
    const char *fail = strstr(mlo_buf_str(&text), "- alert: MloptRequestsFail"),
               *space = strstr(mlo_buf_str(&text), "- alert: MloptNoSpace");
    assert_true(fail && space && fail < space);
    const char *without = strstr(fail, "code=~\"5..\",code!=\"507\"");
    assert_true(without && without < space);
    const char *level = strstr(space, "severity: ");
    assert_non_null(strstr(space, "{code=\"507\"}"));
    assert_true(level && mlo_str_starts(level, "severity: warning"));
    check_by_promtool("rules", rules);
    free(set.all);
    mlo_buf_clear(&text);
    mlo_buf_clear(&docs);
    reply_clear(&reply);
}

static void test_metrics__both_formats_and_who_may_read(void **state)
{
    struct api *api = *state;
    struct metric_set set;
    struct reply reply = {0};
    const char *accept[] = {
        "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", NULL};
    api_call(api, &reply, "GET", "/metrics", api->token[MLO_VIEWER], NULL, accept);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "application/openmetrics-text; version=1.0.0");
    metric_parse(mlo_buf_str(&reply.body), true, &set);
    assert_true(set.family_count > 30);
    free(set.all);
    api_call(api, &reply, "GET", "/metrics", api->token[MLO_VIEWER], NULL, NULL);
    char *path = mlo_fs_join(api->dir, "metrics", NULL);
    assert_mlo_ok(mlo_fs_write_atomic(path, reply.body.data, reply.body.len, &api->pg->err), &api->pg->err);
    check_by_promtool("metrics", path);
    free(path);
    api_call(api, &reply, "GET", "/metrics", NULL, NULL, NULL);
    assert_http(&reply, 401);
    api_call(api, &reply, "POST", "/v1/tokens", api->token[MLO_ADMIN],
             "{\"name\":\"one\",\"role\":\"admin\",\"project\":\"demo\"}", NULL);
    assert_http(&reply, 201);
    char *token = strdup(mlo_json_str(reply.json, "token", ""));
    api_call(api, &reply, "GET", "/metrics", token, NULL, NULL);
    assert_http(&reply, 403); /* it is of one project, and they are of all */
    free(token);
    reply_clear(&reply);
}

/* The address without tokens says what it can when there is no database to look tokens up in. */
static void test_metrics__their_own_address_needs_no_database(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct metric_set set;
    struct mlo_buf answer = MLO_BUF_INIT;
    struct mlo_http_options options = {.db = api->pg->server,
                                       .blobs = api->blobs,
                                       .quiet = true,
                                       .metrics_address = "127.0.0.1",
                                       .metrics_projects = 2};
    static const char *const paths[] = {"/metrics", "/healthz", "/readyz", "/v1/projects"};
    static const char *const with[] = {"HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 404"},
                             *const without[] = {"HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 503",
                                                 "HTTP/1.1 404"};
    api_version(api, "cnn", "bytes", "");
    submit(api);
    mlo_http_stop(api->http, 1000);
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    for (int up = 1; up >= 0; up--) {
        if (!up) {
            mlo_embedded_stop(pg_fixture_server);
            pg_fixture_server = NULL;
            mlo_clock_sleep_ms(1100); /* what is kept is older than a second */
        }
        for (size_t i = 0; i < MLO_COUNT(paths); i++) {
            struct sockaddr_in to = {.sin_family = AF_INET,
                                     .sin_port = htons(mlo_http_metrics_port(api->http))};
            char request[128];
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
            int n = snprintf(request, sizeof request,
                             "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", paths[i]);
            mlo_buf_clear(&answer);
            assert_true(mlo_fs_write_full(fd, request, (size_t)n));
            assert_true(api_read_to_end(fd, &answer));
            close(fd);
            assert_holds(mlo_buf_str(&answer), up ? with[i] : without[i]);
            if (i)
                continue;
            metric_parse(strstr(mlo_buf_str(&answer), "\r\n\r\n") + 4, false, &set);
            assert_metric(&set, "mlopt_database_up", up);
            if (up)
                assert_metric(&set, "mlopt_project_jobs{project=\"demo\",state=\"ready\"}", 1);
            free(set.all);
        }
    }
    char *dir = mlo_fs_join(pg_fixture_dir, "pg", NULL);
    struct mlo_embedded_options pg = {.dir = dir, .no_fsync = true};
    assert_mlo_ok(mlo_embedded_start(&pg, &pg_fixture_server, &err), &err);
    api->pg->pg = pg_fixture_server;
    free(dir);
    mlo_buf_clear(&answer);
}

struct scraper {
    uint16_t port;
    atomic_bool over;
    atomic_int answers;
    double most; /* connections that an answer named */
};

static void *scrape(void *arg)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                      name[] = "\nmlopt_http_connections ";
    struct scraper *s = arg;
    struct mlo_buf answer = MLO_BUF_INIT;
    while (!atomic_load(&s->over)) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(s->port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        mlo_buf_clear(&answer);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
            mlo_clock_sleep_ms(1);
        else if (mlo_fs_write_full(fd, request, sizeof request - 1))
            (void)!api_read_to_end(fd, &answer); /* the server may be gone */
        close(fd);
        const char *at = strstr(mlo_buf_str(&answer), name);
        if (!at)
            continue;
        s->most = MLO_MAX(s->most, strtod(at + sizeof name - 1, NULL));
        atomic_fetch_add(&s->answers, 1);
    }
    mlo_buf_clear(&answer);
    return NULL;
}

/* Whoever scrapes while a server ends is shown the server as it is, not the memory that it was. */
static void test_metrics__are_served_until_the_server_ends(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_http_options options = {
        .db = api->pg->server, .blobs = api->blobs, .quiet = true, .metrics_address = "127.0.0.1"};
    mlo_http_stop(api->http, 1000);
    mallopt(M_PERTURB, 0xa5); /* what is freed is seen */
    for (int round = 0; round < 8; round++) {
        struct scraper s = {.most = 0};
        pthread_t thread;
        assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
        s.port = mlo_http_metrics_port(api->http);
        assert_int_equal(pthread_create(&thread, NULL, scrape, &s), 0);
        uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
        while (!atomic_load(&s.answers) && mlo_clock_ns() < until)
            mlo_clock_sleep_ms(5);
        mlo_http_stop(api->http, 0);
        atomic_store(&s.over, true);
        pthread_join(thread, NULL);
        assert_true(atomic_load(&s.answers) > 0);
        if (s.most > 100)
            fail_msg("a server without clients said that it has %g", s.most);
    }
    mallopt(M_PERTURB, 0);
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_metrics__attempts_are_counted_as_they_end),
        API_TEST(test_metrics__unknown_times_are_not_counted),
        API_TEST(test_metrics__blobs_are_those_that_are_there),
        API_TEST(test_metrics__a_run_has_a_trace),
        API_TEST(test_metrics__buckets_agree_with_their_bounds),
        API_TEST(test_metrics__requests_are_counted_by_route),
        API_TEST(test_metrics__both_formats_and_who_may_read),
        API_TEST(test_metrics__alerts_name_what_is_there),
        API_TEST(test_metrics__are_served_until_the_server_ends),
        API_TEST(test_metrics__their_own_address_needs_no_database),
    };
    API_MAIN(tests);
}
