/* How many requests a token may make, and answers in gzip. */
#include "tests/integration/api/api_fixture.h"

#include <zlib.h>

#include "api/http/http_impl.h"

#define S 1000000000ull

static void test_rate__fills_again_and_holds_ten_seconds(void **state)
{
    struct mlo_error err = {0};
    struct mlo_rate *rate;
    unsigned wait_s;
    MLO_UNUSED(state);
    assert_true(mlo_rate_take(NULL, 1, S, &wait_s));
    assert_mlo_ok(mlo_rate_new(2, &rate, &err), &err);
    for (int i = 0; i < 20; i++)
        assert_true(mlo_rate_take(rate, 1, 100 * S, &wait_s));
    assert_false(mlo_rate_take(rate, 1, 100 * S, &wait_s));
    assert_int_equal(wait_s, 1);
    assert_true(mlo_rate_take(rate, 2, 100 * S, &wait_s)); /* another's */
    assert_false(mlo_rate_take(rate, 1, 99 * S, &wait_s)); /* time that ran back gives nothing */
    assert_true(mlo_rate_take(rate, 1, 100 * S + S / 2, &wait_s));
    assert_false(mlo_rate_take(rate, 1, 100 * S + S / 2, &wait_s));
    int given = 0;
    while (mlo_rate_take(rate, 1, 100000 * S, &wait_s))
        given++;
    assert_int_equal(given, 20);
    for (int64_t token = 10; token < 5000; token++) /* others' buckets make room, and theirs are full */
        assert_true(mlo_rate_take(rate, token, 200000 * S, &wait_s));
    mlo_rate_free(rate);
    mlo_rate_free(NULL);
}

static void test_rate__is_a_429_that_says_when_to_come_again(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_http_options options = {.db = api->pg->server,
                                             .blobs = api->blobs,
                                             .modules = mlo_web_module(),
                                             .module_count = 1,
                                             .rate_limit = 1,
                                             .header_timeout_ms = API_PATIENCE_S * 1000,
                                             .quiet = true};
    mlo_http_stop(api->http, 1000);
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    for (int i = 0; i < 1000 && reply.status != 429; i++) { /* one comes back each second */
        api_call(api, &reply, "GET", "/v1/me", api->token[MLO_VIEWER], NULL, NULL);
        if (i < 10)
            assert_http(&reply, 200);
    }
    assert_http(&reply, 429);
    assert_code(&reply, "rate-limited");
    assert_true(mlo_json_bool(reply.json, "retry", false));
    assert_holds(mlo_buf_str(&reply.headers), "Retry-After: 1\r\n");
    assert_holds(mlo_buf_str(&reply.headers), "application/problem+json");
    assert_int_equal(mlo_status_from_code("rate-limited"), MLO_EUNAVAILABLE);
    api_call(api, &reply, "GET", "/v1/me", api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 200);
    api_call(api, &reply, "GET", "/healthz", NULL, NULL, NULL);
    assert_http(&reply, 200);
    /* a session's pages count for its token, and it is a page that says so */
    char cookie[160];
    const char *const headers[] = {cookie, NULL};
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_PROMOTER]);
    for (int i = 0; i < 1000 && reply.status != 429; i++)
        api_call(api, &reply, "GET", "/projects", NULL, NULL, headers);
    assert_http(&reply, 429);
    assert_holds(mlo_buf_str(&reply.headers), "Retry-After: 1\r\n");
    assert_holds(mlo_buf_str(&reply.headers), "Content-Type: text/html");
    assert_holds(mlo_buf_str(&reply.body), "makes more requests");
    api_call(api, &reply, "GET", "/docs/api", NULL, NULL, headers);
    assert_http(&reply, 200);
    reply_clear(&reply);
}

/* The bytes that a gzip stream stands for; fails when it is none. */
static void inflate_all(const struct mlo_buf *in, struct mlo_buf *out)
{
    z_stream z = {.next_in = (Bytef *)in->data, .avail_in = (uInt)in->len};
    unsigned char piece[8192];
    int result = Z_OK;
    assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
    while (result == Z_OK) {
        z.next_out = piece;
        z.avail_out = sizeof piece;
        result = inflate(&z, Z_NO_FLUSH);
        mlo_buf_append(out, piece, sizeof piece - z.avail_out);
    }
    assert_int_equal(result, Z_STREAM_END);
    assert_int_equal(z.avail_in, 0);
    inflateEnd(&z);
}

static void test_gzip__is_for_who_takes_it(void **state)
{
    static const struct {
        const char *accept;
        bool gzip;
    } CASES[] = {
        {"Accept-Encoding: gzip", true},
        {"Accept-Encoding: br, GZIP;q=0.5", true},
        {"Accept-Encoding: *", true},
        {"Accept-Encoding: deflate, *;q=0.1", true},
        {"Accept-Encoding: gzip;q=0", false},
        {"Accept-Encoding: gzip; q=0.000, *", false},
        {"Accept-Encoding: *;q=0", false},
        {"Accept-Encoding: identity", false},
        {"Accept-Encoding: *, gzip;q=0.0", false},
        {"Accept-Encoding: gzip ; x=1;Q=0", false},
        {"Accept-Encoding: gzipped", false},
        {"X-Nothing: gzip", false},
    };
    struct api *api = *state;
    struct reply reply = {0};
    size_t size;
    const char *text = mlo_http_contract(&size);
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        const char *const headers[] = {CASES[i].accept, NULL};
        struct mlo_buf whole = MLO_BUF_INIT;
        api_call(api, &reply, "GET", "/v1/openapi.json", NULL, NULL, headers);
        assert_http(&reply, 200);
        assert_holds(mlo_buf_str(&reply.headers), "Vary: Accept-Encoding\r\n");
        if (!!strstr(mlo_buf_str(&reply.headers), "Content-Encoding: gzip\r\n") != CASES[i].gzip)
            fail_msg("%s: %s", CASES[i].accept, mlo_buf_str(&reply.headers));
        if (CASES[i].gzip) {
            assert_true(reply.body.len * 4 < size);
            inflate_all(&reply.body, &whole);
        } else {
            mlo_buf_append(&whole, reply.body.data, reply.body.len);
        }
        assert_int_equal(whole.len, size);
        assert_memory_equal(whole.data, text, size);
        mlo_buf_clear(&whole);
    }
    /* not what is small, no page, no artifact */
    static const char *const plain[] = {"/healthz", "/docs/api", "/assets/style.css"};
    const char *const takes[] = {"Accept-Encoding: gzip", NULL};
    for (size_t i = 0; i < MLO_COUNT(plain); i++) {
        api_call(api, &reply, "GET", plain[i], NULL, NULL, takes);
        assert_http(&reply, 200);
        assert_null(strstr(mlo_buf_str(&reply.headers), "Content-Encoding"));
    }
    char *bytes = calloc(1, 5001), digest[MLO_DIGEST_TEXT_SIZE], path[160];
    memset(bytes, 'x', 5000);
    api_upload(api, "demo", bytes, digest);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", digest);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, takes);
    assert_http(&reply, 200);
    assert_int_equal(reply.body.len, 5000);
    assert_null(strstr(mlo_buf_str(&reply.headers), "Content-Encoding"));
    free(bytes);
    reply_clear(&reply);
}

/* What changes with the program is asked for once. */
static void test_etag__of_the_contract(void **state)
{
    static const char *const paths[] = {"/v1/openapi.json", "/docs/api", "/docs/api/runs"};
    struct api *api = *state;
    struct reply reply = {0};
    for (size_t i = 0; i < MLO_COUNT(paths); i++) {
        char tag[64], line[96];
        const char *const headers[] = {line, NULL};
        api_call(api, &reply, "GET", paths[i], NULL, NULL, NULL);
        assert_http(&reply, 200);
        const char *at = strstr(mlo_buf_str(&reply.headers), "ETag: W/\"");
        assert_non_null(at);
        assert_holds(mlo_buf_str(&reply.headers), "Cache-Control: no-cache\r\n");
        snprintf(tag, sizeof tag, "%.*s", (int)strcspn(at + 6, "\r"), at + 6);
        snprintf(line, sizeof line, "If-None-Match: \"x\", %s", tag);
        api_call(api, &reply, "GET", paths[i], NULL, NULL, headers);
        assert_http(&reply, 304);
        assert_int_equal(reply.body.len, 0);
        assert_holds(mlo_buf_str(&reply.headers), tag);
        snprintf(line, sizeof line, "If-None-Match: \"x\"");
        api_call(api, &reply, "GET", paths[i], NULL, NULL, headers);
        assert_http(&reply, 200);
    }
    reply_clear(&reply);
}

/* Nobody allows another site's pages to read answers. */
static void test_cors__is_off(void **state)
{
    static const char *const headers[] = {"Origin: https://evil.example",
                                          "Access-Control-Request-Method: GET", NULL};
    struct api *api = *state;
    struct reply reply = {0};
    static const char *const methods[] = {"GET", "OPTIONS"};
    for (size_t i = 0; i < MLO_COUNT(methods); i++) {
        api_call(api, &reply, methods[i], "/v1/me", api->token[MLO_VIEWER], NULL, headers);
        assert_http(&reply, i ? 405 : 200);
        assert_null(strcasestr(mlo_buf_str(&reply.headers), "Access-Control-"));
    }
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate__fills_again_and_holds_ten_seconds),
        API_TEST(test_rate__is_a_429_that_says_when_to_come_again),
        API_TEST(test_gzip__is_for_who_takes_it),
        API_TEST(test_etag__of_the_contract),
        API_TEST(test_cors__is_off),
    };
    API_MAIN(tests);
}
