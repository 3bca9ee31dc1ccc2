/* PostgreSQL goes away and comes back; slow clients; stopping. */
#include <signal.h>

#include "tests/integration/api/api_fixture.h"
#include "tests/metrics_parser.h"

/* Until /readyz answers so: what it says is up to a second old. */
static void await_ready(struct api *api, int wanted)
{
    struct reply reply = {0};
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    do {
        api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
        if (reply.status == wanted)
            break;
        mlo_clock_sleep_ms(50);
    } while (mlo_clock_ns() < until);
    assert_http(&reply, wanted);
    reply_clear(&reply);
}

/* What a check of /readyz says; fails when there is none of that name. */
static bool check_holds(const struct reply *reply, const char *name)
{
    json_t *check;
    size_t i;
    json_array_foreach(json_object_get(reply->json, "checks"), i, check)
    {
        if (strcmp(mlo_json_str(check, "name", ""), name) == 0)
            return mlo_json_bool(check, "ok", false);
    }
    fail_msg("no check %s in: %s", name, mlo_buf_str(&reply->body));
    return false;
}

static void test_outage__postgres_down_is_503_and_heals(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    assert_http(&reply, 200);
    mlo_embedded_stop(pg_fixture_server);
    pg_fixture_server = NULL;
    api_call(api, &reply, "GET", "/v1/projects", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 503);
    assert_code(&reply, "unavailable");
    assert_true(mlo_json_bool(reply.json, "retry", false));
    assert_holds(mlo_buf_str(&reply.headers), "Retry-After:");
    await_ready(api, 503);
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    assert_http(&reply, 503);
    assert_code(&reply, "unavailable");
    assert_holds(mlo_json_str(reply.json, "detail", ""), "database");
    assert_false(check_holds(&reply, "database"));
    assert_false(check_holds(&reply, "schema"));
    assert_true(check_holds(&reply, "blobs"));
    assert_null(strstr(mlo_buf_str(&reply.body), pg_fixture_dir)); /* anybody may ask */
    api_call(api, &reply, "GET", "/healthz", NULL, NULL, NULL);
    assert_http(&reply, 200);
    char *dir = mlo_fs_join(pg_fixture_dir, "pg", NULL);
    struct mlo_embedded_options options = {.dir = dir, .no_fsync = true};
    assert_mlo_ok(mlo_embedded_start(&options, &pg_fixture_server, &err), &err);
    free(dir);
    api->pg->pg = pg_fixture_server;
    api_call(api, &reply, "GET", "/v1/projects", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    await_ready(api, 200);
    reply_clear(&reply);
}

static void test_outage__readiness_tells_what_is_wrong(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char *incoming = mlo_fs_join(api->dir, "blobs", "incoming", NULL),
         *away = mlo_fs_join(api->dir, "away", NULL);
    /* the blob store */
    assert_int_equal(rename(incoming, away), 0);
    await_ready(api, 503);
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    assert_false(check_holds(&reply, "blobs"));
    assert_true(check_holds(&reply, "database"));
    assert_holds(mlo_json_str(reply.json, "detail", ""), "blobs");
    assert_int_equal(rename(away, incoming), 0);
    await_ready(api, 200);
    /* a schema that this program does not expect */
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &api->pg->err), &api->pg->err);
    assert_mlo_ok(mlo_db_exec_text(conn,
                                   "create table mlopt.kept as select * from mlopt.schema_migration; "
                                   "delete from mlopt.schema_migration",
                                   &api->pg->err),
                  &api->pg->err);
    await_ready(api, 503);
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    assert_false(check_holds(&reply, "schema"));
    assert_true(check_holds(&reply, "database"));
    assert_mlo_ok(
        mlo_db_exec_text(conn, "insert into mlopt.schema_migration select * from mlopt.kept", &api->pg->err),
        &api->pg->err);
    mlo_db_release(conn);
    await_ready(api, 200);
    /* about to stop: told at once, and all else is served */
    mlo_http_drain(api->http);
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    assert_http(&reply, 503);
    assert_false(check_holds(&reply, "draining"));
    api_call(api, &reply, "GET", "/v1/projects", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    free(incoming);
    free(away);
    reply_clear(&reply);
}

/* The youngest connection of that name. */
static pid_t backend_of(struct api *api, const char *application)
{
    struct mlo_db_conn *conn;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    const struct mlo_sql which = {"test_outage_pid",
                                  "select pid from pg_stat_activity where application_name = $1 "
                                  "and datname = current_database() order by backend_start desc limit 1",
                                  1};
    mlo_param_text(&p, application);
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &api->pg->err), &api->pg->err);
    assert_mlo_ok(mlo_db_exec(conn, &which, &p, &rows, &api->pg->err), &api->pg->err);
    assert_int_equal(mlo_rows_count(&rows), 1);
    pid_t backend = (pid_t)mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
    return backend;
}

static bool is_stopped(pid_t pid)
{
    char path[32], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    bool stopped = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && state == 'T';
    if (f)
        fclose(f);
    return stopped;
}

/* Stops the youngest connection of that name; one that is about to end takes the signal and ends all the
 * same. */
static pid_t stop_backend(struct api *api, const char *application)
{
    for (int tries = 0; tries < 100; tries++) {
        pid_t backend = backend_of(api, application);
        kill(backend, SIGSTOP);
        mlo_clock_sleep_ms(50);
        if (is_stopped(backend))
            return backend;
    }
    fail_msg("no connection of '%s' can be stopped", application);
    return 0;
}

/* PostgreSQL hangs amid a look: neither an answer nor the end of the server waits for it. */
static void test_outage__readiness_leaves_a_hanging_database(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    await_ready(api, 200);
    pid_t backend = stop_backend(api, "mlopt readiness");
    await_ready(api, 503);
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    /* all others answer: the look is cut short, and the next one has a new connection */
    await_ready(api, 200);
    assert_int_equal(kill(backend, SIGCONT), 0);
    reply_clear(&reply);
}

/* Until /metrics says so; fails when an answer is late. */
static void await_up(struct api *api, double wanted)
{
    struct reply reply = {0};
    struct metric_set set;
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    double up;
    do {
        uint64_t began = mlo_clock_ns();
        api_call(api, &reply, "GET", "/metrics", api->token[MLO_VIEWER], NULL, NULL);
        assert_http(&reply, 200);
        assert_true(mlo_clock_ns() - began < 25000000000ull);
        metric_parse(mlo_buf_str(&reply.body), false, &set);
        up = metric_get(&set, "mlopt_database_up");
        free(set.all);
        bool figures = strstr(mlo_buf_str(&reply.body), "\nmlopt_database_size_bytes ") != NULL;
        assert_true(up == 1 || !figures); /* nothing old is said */
        if (up == wanted && figures == (wanted == 1))
            break;
        mlo_clock_sleep_ms(200);
    } while (mlo_clock_ns() < until);
    if (mlo_clock_ns() >= until)
        fail_msg("mlopt_database_up is %g, not %g, or figures lack, in: %s", up, wanted,
                 mlo_buf_str(&reply.body));
    reply_clear(&reply);
}

/* PostgreSQL hangs amid a scrape: it is said to be down within seconds, all figures are back as soon as it
 * answers, and the end of the server does not wait for it. */
static void test_outage__metrics_leave_a_hanging_database(void **state)
{
    struct api *api = *state;
    pid_t backends[2];
    await_up(api, 1);
    for (size_t i = 0; i < MLO_COUNT(backends); i++) {
        mlo_clock_sleep_ms(1100); /* what is kept is older than a second */
        backends[i] = stop_backend(api, "mlopt metrics");
        if (i)
            break;
        await_up(api, 0);
        await_up(api, 1); /* by a new connection */
    }
    char ask[256];
    int fd = api_connect(api);
    int n = snprintf(ask, sizeof ask, "GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n",
                     api->token[MLO_VIEWER]);
    assert_true(mlo_fs_write_full(fd, ask, (size_t)n));
    uint64_t began = mlo_clock_ns();
    mlo_http_stop(api->http, 0);
    assert_true(mlo_clock_ns() - began < 25000000000ull);
    api->http = NULL;
    close(fd);
    for (size_t i = 0; i < MLO_COUNT(backends); i++)
        assert_int_equal(kill(backends[i], SIGCONT), 0);
}

/* A database that takes the connection and never answers: the answer comes all the same. */
static void test_outage__readiness_answers_in_bounded_time(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_db *deaf = NULL;
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    char conninfo[128];
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%u dbname=x connect_timeout=60 sslmode=disable",
             ntohs(at.sin_port));
    const struct mlo_db_options options = {.conninfo = conninfo, .max_connections = 2};
    assert_mlo_ok(mlo_db_open(&options, &deaf, &err), &err);
    mlo_http_stop(api->http, 0);
    const struct mlo_http_options other = {.db = deaf, .blobs = api->blobs, .quiet = true};
    assert_mlo_ok(mlo_http_start(&other, &api->http, &err), &err);
    uint64_t began = mlo_clock_ns();
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    assert_true(mlo_clock_ns() - began < 25000000000ull); /* connecting would take 60 s */
    assert_http(&reply, 503);
    assert_false(check_holds(&reply, "database"));
    api_call(api, &reply, "GET", "/healthz", NULL, NULL, NULL);
    assert_http(&reply, 200);
    began = mlo_clock_ns();
    mlo_http_stop(api->http, 0);
    assert_true(mlo_clock_ns() - began < 25000000000ull);
    api->http = NULL;
    close(fd);
    mlo_db_close(deaf);
    reply_clear(&reply);
}

/* Another server in place of the fixture's. */
static void restart(struct api *api, struct mlo_http_options options)
{
    struct mlo_error err = {0};
    mlo_http_stop(api->http, 0);
    options.db = api->pg->server;
    options.blobs = api->blobs;
    options.quiet = true;
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
}

/* Each with the other bounds far away, so that only the one in question can end it. */
static void test_outage__slow_headers_are_cut_off(void **state)
{
    struct api *api = *state;
    restart(api, (struct mlo_http_options){.header_timeout_ms = 500, .idle_timeout_s = 3600});
    int fd = api_connect(api);
    (void)!send(fd, "GET /healthz HT", 15, MSG_NOSIGNAL); /* it may be cut off already */
    assert_true(api_read_to_end(fd, NULL));
    close(fd);
}

static void test_outage__a_slow_body_is_cut_off(void **state)
{
    struct api *api = *state;
    restart(api, (struct mlo_http_options){
                     .header_timeout_ms = 3600000, .idle_timeout_s = 3600, .min_body_rate = 1000000});
    int fd = api_connect(api);
    struct mlo_buf put = MLO_BUF_INIT;
    mlo_buf_printf(
        &put,
        "PUT /v1/projects/demo/blobs/sha256:%064d HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"
        "Content-Length: 1000\r\n\r\nslow",
        0, api->token[MLO_SUBMITTER]);
    assert_true(mlo_fs_write_full(fd, mlo_buf_str(&put), put.len));
    mlo_buf_clear(&put);
    assert_true(api_read_to_end(fd, NULL));
    close(fd);
}

static void test_outage__waiting_longer_than_the_idle_timeout_is_fine(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128];
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_SUBMITTER],
             "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: {}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    long long run = (long long)mlo_json_i64(reply.json, "id", 0);
    restart(api, (struct mlo_http_options){.header_timeout_ms = 3600000, .idle_timeout_s = 2});
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/events?after=1000&wait_ms=5000", run);
    uint64_t before;
    int tries = 0;
    do { /* a client that is itself held up while it sends is rightly cut off */
        before = mlo_clock_ns();
        api_try(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    } while (!reply.status && ++tries < 10);
    assert_http(&reply, 200);
    assert_true(mlo_clock_ns() - before > 4000000000ULL);
    int idle = api_connect(api); /* while one that says nothing is closed */
    assert_true(api_read_to_end(idle, NULL));
    close(idle);
    reply_clear(&reply);
}

static void test_outage__stop_lets_a_request_end(void **state)
{
    struct api *api = *state;
    int idle = api_connect(api);
    uint64_t before = mlo_clock_ns();
    mlo_http_stop(api->http, 600000);
    api->http = NULL;
    assert_true(mlo_clock_ns() - before < 300000000000ULL); /* an idle connection holds nothing up */
    assert_true(api_read_to_end(idle, NULL));
    close(idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_outage__slow_headers_are_cut_off),
        API_TEST(test_outage__a_slow_body_is_cut_off),
        API_TEST(test_outage__waiting_longer_than_the_idle_timeout_is_fine),
        API_TEST(test_outage__stop_lets_a_request_end),
        API_TEST(test_outage__postgres_down_is_503_and_heals),
        API_TEST(test_outage__readiness_tells_what_is_wrong),
        API_TEST(test_outage__readiness_leaves_a_hanging_database),
        API_TEST(test_outage__readiness_answers_in_bounded_time),
        API_TEST(test_outage__metrics_leave_a_hanging_database),
    };
    API_MAIN(tests);
}
