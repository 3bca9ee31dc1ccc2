/* PostgreSQL goes away and comes back; slow clients; stopping. */
#include "tests/integration/api/api_fixture.h"

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
    api_call(api, &reply, "GET", "/readyz", NULL, NULL, NULL);
    assert_http(&reply, 503);
    api_call(api, &reply, "GET", "/healthz", NULL, NULL, NULL);
    assert_http(&reply, 200);
    char *dir = mlo_fs_join(pg_fixture_dir, "pg", NULL);
    struct mlo_embedded_options options = {.dir = dir, .no_fsync = true};
    assert_mlo_ok(mlo_embedded_start(&options, &pg_fixture_server, &err), &err);
    free(dir);
    api->pg->pg = pg_fixture_server;
    api_call(api, &reply, "GET", "/v1/projects", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
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
    };
    API_MAIN(tests);
}
