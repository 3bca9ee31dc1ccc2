/* PostgreSQL goes away and comes back; slow clients; stopping. */
#include "tests/integration/api/api_fixture.h"

#include <errno.h>

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

static int open_socket(struct api *api)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(mlo_http_port(api->http))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Waits until the other side closes; false when it does not within the time. */
static bool closed_within(int fd, int seconds)
{
    struct timeval patience = {.tv_sec = seconds};
    char byte;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ssize_t n;
    while ((n = read(fd, &byte, 1)) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
}

static void test_outage__slow_headers_are_cut_off(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    mlo_http_stop(api->http, 0);
    struct mlo_http_options options = {.db = api->pg->server,
                                       .blobs = api->blobs,
                                       .header_timeout_ms = 500,
                                       .min_body_rate = 1000000,
                                       .quiet = true};
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    int headers = open_socket(api), body = open_socket(api);
    assert_true(mlo_fs_write_full(headers, "GET /healthz HT", 15));
    struct mlo_buf put = MLO_BUF_INIT;
    mlo_buf_printf(
        &put,
        "PUT /v1/projects/demo/blobs/sha256:%064d HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"
        "Content-Length: 1000\r\n\r\nslow",
        0, api->token[MLO_SUBMITTER]);
    assert_true(mlo_fs_write_full(body, mlo_buf_str(&put), put.len));
    mlo_buf_clear(&put);
    assert_true(closed_within(headers, 4));
    assert_true(closed_within(body, 9));
    close(headers);
    close(body);
}

static void test_outage__waiting_longer_than_the_idle_timeout_is_fine(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    char path[128];
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_SUBMITTER],
             "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: {}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    long long run = (long long)mlo_json_i64(reply.json, "id", 0);
    mlo_http_stop(api->http, 0);
    struct mlo_http_options options = {
        .db = api->pg->server, .blobs = api->blobs, .idle_timeout_s = 1, .quiet = true};
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/events?after=1000&wait_ms=2500", run);
    uint64_t before = mlo_clock_ns();
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_true(mlo_clock_ns() - before > 2000000000ULL);
    int idle = open_socket(api); /* while one that says nothing is closed */
    assert_true(closed_within(idle, 10));
    close(idle);
    reply_clear(&reply);
}

static void test_outage__stop_lets_a_request_end(void **state)
{
    struct api *api = *state;
    int idle = open_socket(api);
    uint64_t before = mlo_clock_ns();
    mlo_http_stop(api->http, 5000);
    api->http = NULL;
    assert_true(mlo_clock_ns() - before < 3000000000ULL); /* an idle connection holds nothing up */
    assert_true(closed_within(idle, 1));
    close(idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_outage__slow_headers_are_cut_off),
        API_TEST(test_outage__waiting_longer_than_the_idle_timeout_is_fine),
        API_TEST(test_outage__stop_lets_a_request_end),
        API_TEST(test_outage__postgres_down_is_503_and_heals),
    };
    API_MAIN(tests);
}
