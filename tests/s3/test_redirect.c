/* Downloads from a bucket by redirect: what a client is handed, who is handed it, and that `mlopt pull` keeps
 * its token to itself and nothing that was changed on the way. */
#include "tests/s3/proxy.h"

#include "tests/integration/api/api_fixture.h"

static const char TEXT[] = "0123456789 bytes of a model";
static char g_bucket[32]; /* of the test */

/* A server whose store is a bucket of its own; `more` are settings. */
static int start(void **state, const char *more)
{
    static int number;
    char url[256];
    snprintf(g_bucket, sizeof g_bucket, "redirect-%d", ++number);
    mlo_s3_close(s3_fixture_open(g_bucket));
    snprintf(url, sizeof url, "s3:%s/here?endpoint=%s%s", g_bucket, s3_server.endpoint, more);
    s3_proxy_set(S3_FAULT_NONE, 0, 0);
    atomic_store(&s3_proxy.authorized, 0);
    atomic_store(&s3_proxy.connections, 0);
    return api_setup_with(state, url, API_MAX_BLOB);
}

static int setup(void **state)
{
    return start(state, "&redirect=yes");
}

/* Clients reach the bucket by another address than the server does. */
static int setup_outside(void **state)
{
    char more[128];
    snprintf(more, sizeof more, "&redirect=%s", s3_proxy.endpoint);
    return start(state, more);
}

static int setup_without(void **state)
{
    return start(state, "");
}

static int setup_customer_key(void **state)
{
    struct mlo_error err = {0};
    char more[256], key[128];
    snprintf(key, sizeof key, "%s/customer.key", s3_server.dir);
    assert_ok(mlo_fs_write_atomic(key, "0123456789abcdef0123456789abcdef", 32, &err));
    snprintf(more, sizeof more, "&redirect=yes&encryption=customer&customer_key=%s", key);
    return start(state, more);
}

/* The value of a header of the answer; NULL when it is not there. Yours (free). */
static char *header_of(const struct reply *reply, const char *name)
{
    const char *at = strcasestr(mlo_buf_str(&reply->headers), name);
    if (!at)
        return NULL;
    at += strlen(name);
    return strndup(at, strcspn(at, "\r\n"));
}

/* Asks S3 as anybody may: no token of ours. The status. */
static long fetch(const char *url, const char *method, const char *range, struct mlo_buf *headers,
                  struct mlo_buf *body)
{
    CURL *curl = curl_easy_init();
    long http = 0;
    mlo_buf_reset(headers);
    mlo_buf_reset(body);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)API_PATIENCE_S);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_RANGE, range);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, headers);
    assert_int_equal(curl_easy_perform(curl), CURLE_OK);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    curl_easy_cleanup(curl);
    return http;
}

static void blob_path(const char *query, char path[256])
{
    struct mlo_digest digest;
    char name[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of(TEXT, strlen(TEXT), &digest);
    snprintf(path, 256, "/v1/projects/demo/blobs/%s%s", mlo_digest_text(&digest, name), query);
}

static void test_redirect__hands_out_an_address_for_exactly_that(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_buf headers = MLO_BUF_INIT, body = MLO_BUF_INIT;
    char digest[MLO_DIGEST_TEXT_SIZE], quoted[96], *url, *etag, *caching, *place;
    api_version(api, "cnn", TEXT, "");
    api_upload(api, "demo", "other bytes", digest);
    api_upload(api, "demo", TEXT, digest);
    snprintf(quoted, sizeof quoted, "\"%s\"", digest);
    api_call(api, &reply, "GET", "/v1/projects/demo/models/cnn/versions/1/variants/source/artifact",
             api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 307);
    assert_int_equal(reply.body.len, 0);
    etag = header_of(&reply, "ETag: ");
    caching = header_of(&reply, "Cache-Control: ");
    assert_string_equal(etag, quoted);
    assert_string_equal(caching, "no-store");
    assert_holds(mlo_buf_str(&reply.headers), digest);
    assert_holds(mlo_buf_str(&reply.headers), "X-Mlopt-Variant: source");
    url = header_of(&reply, "Location: ");
    assert_non_null(url);
    assert_true(mlo_str_starts(url, s3_server.endpoint));
    assert_holds(url, "X-Amz-Expires=300&");

    assert_int_equal(fetch(url, "GET", NULL, &headers, &body), 200);
    assert_string_equal(mlo_buf_str(&body), TEXT);
    assert_non_null(
        strcasestr(mlo_buf_str(&headers), "Content-Disposition: attachment; filename=\"cnn-1-source.onnx\""));
    assert_non_null(strcasestr(mlo_buf_str(&headers), "Content-Type: application/octet-stream"));
    assert_int_equal(fetch(url, "GET", "4-7", &headers, &body), 206);
    assert_string_equal(mlo_buf_str(&body), "4567");
    /* to read, not to write or remove; not another object, not another answer */
    assert_int_equal(fetch(url, "PUT", NULL, &headers, &body), 403);
    assert_int_equal(fetch(url, "DELETE", NULL, &headers, &body), 403);
    place = strstr(url, digest + strlen("sha256:"));
    assert_non_null(place);
    place[0] = place[0] == 'a' ? 'b' : 'a';
    assert_int_equal(fetch(url, "GET", NULL, &headers, &body), 403);
    place[0] = digest[strlen("sha256:")];
    assert_int_equal(fetch(url, "GET", NULL, &headers, &body), 200);
    place = strstr(url, "cnn-1-source");
    assert_non_null(place);
    place[0] = 'x';
    assert_int_equal(fetch(url, "GET", NULL, &headers, &body), 403);
    free(url);
    free(etag);
    free(caching);
    mlo_buf_clear(&headers);
    mlo_buf_clear(&body);
    reply_clear(&reply);
}

static void test_redirect__the_server_sends_the_bytes_when_asked_to(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[256], digest[MLO_DIGEST_TEXT_SIZE], match[128], if_range[128];
    const char *viewer = api->token[MLO_VIEWER];
    const char *range[] = {"Range: bytes=4-7", NULL}, *known[] = {match, NULL},
               *same[] = {"Range: bytes=4-7", if_range, NULL};
    api_upload(api, "demo", TEXT, digest);
    snprintf(match, sizeof match, "If-None-Match: \"%s\"", digest);
    snprintf(if_range, sizeof if_range, "If-Range: \"%s\"", digest);
    blob_path("?redirect=no", path);
    api_call(api, &reply, "GET", path, viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), TEXT);
    api_call(api, &reply, "GET", path, viewer, NULL, range);
    assert_http(&reply, 206);
    assert_string_equal(mlo_buf_str(&reply.body), "4567");
    blob_path("", path);
    api_call(api, &reply, "GET", path, viewer, NULL, range); /* of whom he is sent to */
    assert_http(&reply, 307);
    /* S3 knows other ETags than ours */
    api_call(api, &reply, "GET", path, viewer, NULL, same);
    assert_http(&reply, 206);
    assert_string_equal(mlo_buf_str(&reply.body), "4567");
    api_call(api, &reply, "GET", path, viewer, NULL, known);
    assert_http(&reply, 304);
    api_call(api, &reply, "HEAD", path, viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "Content-Length: 27");
    blob_path("?redirect=perhaps", path);
    api_call(api, &reply, "GET", path, viewer, NULL, NULL);
    assert_http(&reply, 422);
    reply_clear(&reply);
}

/* No address for who may not read, nor of what is not there. */
static void test_redirect__access_is_asked_first(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_digest digest;
    char path[256], text[MLO_DIGEST_TEXT_SIZE], other[256], stranger[MLO_TOKEN_TEXT_SIZE];
    int64_t project;
    assert_mlo_ok(mlo_project_create(api->pg->conn, &system, "other", "", &project, &err), &err);
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "stranger", MLO_ADMIN, project, 0, stranger, NULL, &err),
        &err);
    api_upload(api, "demo", TEXT, text);
    blob_path("", path);
    snprintf(other, sizeof other, "/v1/projects/other/blobs/%s", text);
    const struct {
        const char *path, *token;
        int http;
    } refused[] = {{path, NULL, 401}, {path, stranger, 404}, {other, stranger, 404}};
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        api_call(api, &reply, "GET", refused[i].path, refused[i].token, NULL, NULL);
        if (reply.status != 403) /* as for any blob: another project is forbidden or unknown */
            assert_http(&reply, refused[i].http);
        assert_null(strstr(mlo_buf_str(&reply.headers), "X-Amz-"));
        assert_null(strstr(mlo_buf_str(&reply.headers), "X-Mlopt-Digest"));
    }
    assert_true(mlo_digest_parse(text, &digest));
    assert_mlo_ok(mlo_blob_remove(api->blobs, &digest, &err), &err);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    assert_null(strstr(mlo_buf_str(&reply.headers), "X-Amz-"));
    reply_clear(&reply);
}

static void assert_streams(struct api *api)
{
    struct reply reply = {0};
    char path[256], digest[MLO_DIGEST_TEXT_SIZE];
    api_upload(api, "demo", TEXT, digest);
    blob_path("", path);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), TEXT);
    reply_clear(&reply);
}

static void test_redirect__not_unless_told_to(void **state)
{
    assert_streams(*state);
}

static void test_redirect__not_with_a_customers_key(void **state)
{
    assert_streams(*state);
}

/* --- mlopt pull --------------------------------------------------------------------------------------- */

/* Pulls the model into an empty folder; its exit code. `text` gets what was written. */
static int pull(struct api *api, struct mlo_buf *text, struct mlo_buf *said)
{
    struct mlo_error err = {0};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    char url[64], token[128], home[160], *out = mlo_fs_join(api->dir, "pulled", NULL);
    char *file = mlo_fs_join(out, "m.onnx", NULL), *log = mlo_fs_join(api->dir, "log", NULL);
    const char *const argv[] = {getenv("MLOPT"), "pull", "demo/cnn", "--out", out, NULL};
    const char *const env[] = {url, token, home, "LC_ALL=C", NULL};
    int code = -1;
    snprintf(url, sizeof url, "MLOPT_URL=http://127.0.0.1:%u", mlo_http_port(api->http));
    snprintf(token, sizeof token, "MLOPT_TOKEN=%s", api->token[MLO_VIEWER]);
    snprintf(home, sizeof home, "HOME=%s", api->dir);
    mlo_fs_remove_tree(out);
    o.argv = argv;
    o.env = env;
    o.stderr_fd = open(log, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_mlo_ok(mlo_process_run(&o, API_PATIENCE_S * 1000, 1 << 20, NULL, &code, &err), &err);
    close(o.stderr_fd);
    mlo_buf_reset(text);
    mlo_buf_reset(said);
    assert_mlo_ok(mlo_fs_read(log, 1 << 20, said, &err), &err);
    if (code == 0)
        assert_mlo_ok(mlo_fs_read(file, 1 << 20, text, &err), &err);
    else
        assert_int_not_equal(access(file, F_OK), 0);
    free(file);
    free(log);
    free(out);
    return code;
}

static void test_redirect__pull_follows_without_its_token(void **state)
{
    struct api *api = *state;
    struct mlo_buf text = MLO_BUF_INIT, said = MLO_BUF_INIT;
    api_version(api, "cnn", TEXT, "");
    assert_int_equal(pull(api, &text, &said), 0);
    assert_string_equal(mlo_buf_str(&text), TEXT);
    assert_string_equal(mlo_buf_str(&said), "");
    assert_int_equal(atomic_load(&s3_proxy.connections), 1);
    assert_int_equal(atomic_load(&s3_proxy.authorized), 0);
    mlo_buf_clear(&text);
    mlo_buf_clear(&said);
}

/* What does not come whole from there comes through the server. */
static void test_redirect__pull_keeps_nothing_that_was_changed(void **state)
{
    struct api *api = *state;
    struct mlo_buf text = MLO_BUF_INIT, said = MLO_BUF_INIT, bytes = MLO_BUF_INIT;
    static const struct {
        enum s3_fault fault;
        size_t after;
        const char *said;
    } cases[] = {{S3_FAULT_FLIP_ANSWER, 30000, "hash to"},
                 {S3_FAULT_CUT_ANSWER, 30000, "asking the server"},
                 {S3_FAULT_BUSY, 0, "answered 503"},
                 {S3_FAULT_LOST_ANSWER, 0, "asking the server"}};
    for (int i = 0; i < 60000; i++)
        mlo_buf_putc(&bytes, (char)('a' + i % 23));
    api_version(api, "cnn", mlo_buf_str(&bytes), "");
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        s3_proxy_set(cases[i].fault, 1, cases[i].after);
        assert_int_equal(pull(api, &text, &said), 0);
        s3_proxy_assert_struck();
        assert_int_equal(text.len, bytes.len);
        assert_memory_equal(text.data, bytes.data, bytes.len);
        assert_holds(mlo_buf_str(&said), cases[i].said);
        assert_null(strstr(mlo_buf_str(&said), "X-Amz-")); /* who reads the log cannot read the bucket */
    }
    mlo_buf_clear(&text);
    mlo_buf_clear(&said);
    mlo_buf_clear(&bytes);
}

/* Bytes that are damaged in the bucket: the server finds out, and says so. */
static void test_redirect__damage_in_the_bucket_is_found(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT, said = MLO_BUF_INIT;
    struct mlo_digest digest;
    struct reply reply = {0};
    char hex[MLO_DIGEST_TEXT_SIZE], key[160], path[256];
    api_version(api, "cnn", TEXT, "");
    mlo_digest_of(TEXT, strlen(TEXT), &digest);
    mlo_digest_hex(&digest, hex);
    snprintf(key, sizeof key, "here/sha256/%.2s/%.2s/%s", hex, hex + 2, hex);
    struct mlo_s3 *s3 = s3_fixture_open(g_bucket);
    assert_ok(mlo_s3_put(s3, key, "1123456789 bytes of a model", strlen(TEXT), NULL, &err));
    assert_int_not_equal(pull(api, &text, &said), 0);
    assert_holds(mlo_buf_str(&said), "is damaged in the store: its bytes were put aside");
    blob_path("", path);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    mlo_s3_close(s3);
    mlo_buf_clear(&text);
    mlo_buf_clear(&said);
    reply_clear(&reply);
}

#define WITH(test, setup_) cmocka_unit_test_setup_teardown(test, setup_, api_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(test_redirect__hands_out_an_address_for_exactly_that, setup),
        WITH(test_redirect__the_server_sends_the_bytes_when_asked_to, setup),
        WITH(test_redirect__access_is_asked_first, setup),
        WITH(test_redirect__not_unless_told_to, setup_without),
        WITH(test_redirect__not_with_a_customers_key, setup_customer_key),
        WITH(test_redirect__pull_follows_without_its_token, setup_outside),
        WITH(test_redirect__pull_keeps_nothing_that_was_changed, setup_outside),
        WITH(test_redirect__damage_in_the_bucket_is_found, setup),
    };
    curl_global_init(CURL_GLOBAL_DEFAULT);
    s3_fixture_start("memstore");
    s3_proxy_start();
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    return s3_fixture_end(failed);
}
