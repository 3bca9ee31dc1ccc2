/* What the S3 server, or something before it, changes is found before anything is acknowledged: the client of
 * the API gets an error that names it, the database knows no blob, and the same upload works afterwards. */
#include "registry/s3_sign.h"
#include "tests/integration/api/api_fixture.h"
#include "tests/s3/proxy.h"

enum { SMALL = 100000, PARTS = (9 << 20) + 5 /* two of them */ };

/* Requests whose headers say that their bytes are not signed, seen before TLS. */
static atomic_int unsigned_requests;

struct curl_slist *__real_curl_slist_append(struct curl_slist *list, const char *text);
struct curl_slist *__wrap_curl_slist_append(struct curl_slist *list, const char *text);

struct curl_slist *__wrap_curl_slist_append(struct curl_slist *list, const char *text)
{
    if (strcmp(text, "x-amz-content-sha256: " MLO_S3_UNSIGNED) == 0)
        atomic_fetch_add(&unsigned_requests, 1);
    return __real_curl_slist_append(list, text);
}

static int setup_at(void **state, const char *endpoint, const char *more)
{
    static int number;
    struct mlo_buf url = MLO_BUF_INIT;
    char bucket[32];
    s3_proxy_set(S3_FAULT_NONE, 0, 0);
    snprintf(bucket, sizeof bucket, "integrity-%d", ++number);
    mlo_s3_close(s3_fixture_open(bucket));
    mlo_buf_printf(&url, "s3:%s/x?endpoint=%s%s", bucket, endpoint, more);
    int failed = api_setup_with(state, mlo_buf_str(&url), 64 << 20);
    mlo_buf_clear(&url);
    return failed;
}

static int setup_with(void **state, const char *more)
{
    s3_proxy.to = s3_server.port;
    return setup_at(state, s3_proxy.endpoint, more);
}

static int setup_tls_with(void **state, const char *more)
{
    char endpoint[64], ca[240];
    s3_proxy.to = s3_server.tls_port;
    snprintf(endpoint, sizeof endpoint, "https://127.0.0.1:%u", s3_proxy.port);
    snprintf(ca, sizeof ca, "&ca=%s%s", s3_server.ca_file, more);
    return setup_at(state, endpoint, ca);
}

static int setup_tls(void **state)
{
    return setup_tls_with(state, "");
}

static int setup_unsigned(void **state)
{
    return setup_tls_with(state, "&payload=unsigned");
}

/* A text, yours, and its blob's address. */
static char *text_of(size_t size, unsigned seed, char path[160])
{
    char *text = malloc(size + 1), name[MLO_DIGEST_TEXT_SIZE];
    struct mlo_digest digest;
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1664525u + 1013904223u;
        text[i] = (char)('a' + (seed >> 24) % 26);
    }
    text[size] = '\0';
    mlo_digest_of(text, size, &digest);
    snprintf(path, 160, "/v1/projects/demo/blobs/%s", mlo_digest_text(&digest, name));
    return text;
}

static void assert_stored(struct api *api, const char *path, const char *text)
{
    struct reply reply = {0};
    api_call(api, &reply, "GET", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(reply.body.len, strlen(text));
    assert_memory_equal(reply.body.data, text, reply.body.len);
    reply_clear(&reply);
}

static void test_integrity__what_was_changed_is_never_acknowledged(void **state)
{
    static const struct {
        const char *more;
        enum s3_fault fault;
        size_t size, after;
        const char *says;
    } cases[] = {
        {"", S3_FAULT_ETAG, SMALL, 0, "MD5"},                 /* of the object */
        {"", S3_FAULT_ETAG, PARTS, 0, "InvalidPart"},         /* of a part */
        {"", S3_FAULT_ETAG, PARTS, 2, "of parts that make"},  /* of what the parts became */
        {"", S3_FAULT_FLIP_REQUEST, SMALL, SMALL / 2, "400"}, /* a bit of the object's bytes */
        {"", S3_FAULT_FLIP_REQUEST, PARTS, 4 << 20, "400"},   /* of a part's */
        {"&uploads=stream", S3_FAULT_FLIP_REQUEST, PARTS, 4 << 20, "do not hash to"}, /* of what passes */
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct reply reply = {0};
        char path[160];
        char *text = text_of(cases[i].size, (unsigned)i + 1, path);
        assert_int_equal(setup_with(state, cases[i].more),
                         0); /* new connections, whose bytes `after` counts */
        struct api *api = *state;
        s3_proxy_set(cases[i].fault, 1, cases[i].after);
        api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
        s3_proxy_assert_struck();
        assert_http(&reply, 422);
        assert_code(&reply, "digest-mismatch");
        assert_holds(mlo_json_str(reply.json, "detail", ""), cases[i].says);
        assert_int_equal(pg_fixture_number(api->pg->server, "SELECT count(*) FROM blob"), 0);
        api_call(api, &reply, "HEAD", path, api->token[MLO_SUBMITTER], NULL, NULL);
        assert_int_equal(reply.status, 404);
        api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
        assert_http(&reply, 201);
        assert_stored(api, path, text);
        reply_clear(&reply);
        free(text);
        api_teardown(state);
    }
}

/* TLS finds it, both ways; another connection brings the right bytes. */
static void test_integrity__tls_finds_what_was_changed(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[160];
    char *text = text_of(PARTS, 77, path);
    s3_proxy_set(S3_FAULT_FLIP_REQUEST, 1, 4 << 20);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
    assert_http(&reply, 201);
    s3_proxy_assert_struck();
    s3_proxy_set(S3_FAULT_FLIP_ANSWER, 1, 2 << 20);
    assert_stored(api, path, text);
    s3_proxy_assert_struck();
    reply_clear(&reply);
    free(text);
}

static int setup_passing(void **state)
{
    return setup_tls_with(state, "&uploads=stream&payload=unsigned"); /* which is for parts */
}

/* What passes is not kept, so nothing of it can be sent again: the client does. */
static void test_integrity__what_passes_is_for_the_client_to_repeat(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[160];
    char *text = text_of(PARTS, 78, path);
    atomic_store(&unsigned_requests, 0);
    s3_proxy_set(S3_FAULT_FLIP_REQUEST, 1, 4 << 20);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
    s3_proxy_assert_struck();
    assert_http(&reply, 503);
    api_call(api, &reply, "HEAD", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_int_equal(reply.status, 404);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
    assert_http(&reply, 201);
    assert_stored(api, path, text);
    assert_int_equal(atomic_load(&unsigned_requests), 0);
    reply_clear(&reply);
    free(text);
}

static int setup_mute(void **state)
{
    int failed = setup_with(state, "&uploads=stream&timeout=4");
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_http_options options = {.db = api->pg->server,
                                             .blobs = api->blobs,
                                             .max_blob_bytes = 64 << 20,
                                             .header_timeout_ms = API_PATIENCE_S * 1000,
                                             .idle_timeout_s = 2,
                                             .quiet = true};
    mlo_http_stop(api->http, 0);
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    return failed;
}

/* The server waits for the store, twice its idle timeout, before it asks for the first byte. */
static void test_integrity__waiting_for_the_store_is_not_the_clients_idleness(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[160];
    char *text = text_of(PARTS, 79, path);
    s3_proxy_set(S3_FAULT_MUTE, 1, 0);
    uint64_t began = mlo_clock_ns();
    api_try(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
    assert_http(&reply, 201);
    s3_proxy_assert_struck();
    assert_true(mlo_clock_ns() - began > 3500000000ull);
    assert_stored(api, path, text);
    reply_clear(&reply);
    free(text);
}

static void test_integrity__signed_parts_are_signed_over_tls(void **state)
{
    atomic_store(&unsigned_requests, 0);
    test_integrity__tls_finds_what_was_changed(state);
    assert_int_equal(atomic_load(&unsigned_requests), 0);
}

/* Parts that are not signed over their bytes: TLS is what finds it. Whatever is no part is signed. */
static void test_integrity__unsigned_parts_are_left_to_tls(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    static const struct {
        size_t size;
        int parts;
    } cases[] = {{SMALL, 0}, {PARTS, 2}};
    atomic_store(&unsigned_requests, 0);
    test_integrity__tls_finds_what_was_changed(state); /* first: new connections, whose bytes it counts */
    /* one of them is sent twice; where libcurl does that by itself, its headers are made once */
    assert_in_range(atomic_load(&unsigned_requests), cases[1].parts, cases[1].parts + 1);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        char path[160];
        char *text = text_of(cases[i].size, (unsigned)i + 50, path);
        atomic_store(&unsigned_requests, 0);
        api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
        assert_http(&reply, 201);
        assert_int_equal(atomic_load(&unsigned_requests), cases[i].parts);
        free(text);
    }
    reply_clear(&reply);
}

/* The gateway sends an answer's head and body apart: where the head is acknowledged late, each of them waits
 * the 40 ms of the kernel's timer. That one of many waits less is no matter of load. */
static void test_integrity__answers_on_a_kept_connection_come_at_once(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_s3 *s3 = s3_fixture_open("speed");
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 50; i++) {
        uint64_t began = mlo_clock_ns(), worked = mlo_clock_cpu_ns();
        assert_ok(mlo_s3_check_bucket(s3, &err));
        if (i) /* the first has a new connection */
            least = MLO_MIN(least, mlo_clock_ns() - began - (mlo_clock_cpu_ns() - worked));
    }
    if (least > 35000000)
        fail_msg("no answer was waited for less than %.1f ms", (double)least / 1e6);
    mlo_s3_close(s3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integrity__what_was_changed_is_never_acknowledged),
        cmocka_unit_test_setup_teardown(test_integrity__what_passes_is_for_the_client_to_repeat,
                                        setup_passing, api_teardown),
        cmocka_unit_test_setup_teardown(test_integrity__waiting_for_the_store_is_not_the_clients_idleness,
                                        setup_mute, api_teardown),
        cmocka_unit_test_setup_teardown(test_integrity__signed_parts_are_signed_over_tls, setup_tls,
                                        api_teardown),
        cmocka_unit_test_setup_teardown(test_integrity__unsigned_parts_are_left_to_tls, setup_unsigned,
                                        api_teardown),
        cmocka_unit_test(test_integrity__answers_on_a_kept_connection_come_at_once),
    };
    curl_global_init(CURL_GLOBAL_DEFAULT);
    s3_fixture_start("memstore");
    s3_proxy_start();
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    return s3_fixture_end(failed);
}
