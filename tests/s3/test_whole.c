/* Direct uploads of one request, which the bucket's server checks: what an address is good for, that a digest
 * alone is worth nothing, and `mlopt push` with it. */
#include "tests/s3/direct_fixture.h"

#include "registry/blob_s3_impl.h"
#include "registry/fsck.h"
#include "registry/gc.h"
#include "registry/upload.h"

enum { SIZE = 9000001 };

static int setup(void **state)
{
    return start(state, "&redirect=yes&direct=yes");
}

static int setup_outside(void **state)
{
    char more[128];
    snprintf(more, sizeof more, "&direct=yes&redirect=%s", s3_proxy.endpoint);
    return start(state, more);
}

static int setup_nowhere(void **state)
{
    return start(state, "&direct=yes&redirect=http://127.0.0.1:1");
}

static int setup_parts_only(void **state)
{
    return start(state, "&redirect=yes&direct=parts");
}

static int setup_encrypted(void **state)
{
    return start(state, "&redirect=yes&direct=yes&encryption=aws:kms&kms_key=testkey");
}

/* Begins one of g_bytes in a project; its path. */
static void begin_in(struct api *api, const char *project, const char *token, char path[128])
{
    struct reply reply = {0};
    struct mlo_digest digest;
    char body[192], text[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of(g_bytes, SIZE, &digest);
    snprintf(path, 128, "/v1/projects/%s/uploads", project);
    snprintf(body, sizeof body, "{\"direct\": true, \"size\": %d, \"digest\": \"%s\"}", SIZE,
             mlo_digest_text(&digest, text));
    api_call(api, &reply, "POST", path, token, body, NULL);
    assert_http(&reply, 201);
    const json_t *direct = json_object_get(reply.json, "direct");
    assert_non_null(direct);
    assert_string_equal(mlo_json_str(direct, "digest", "none"), text);
    assert_int_equal(mlo_json_i64(direct, "part_size", 0), SIZE);
    assert_int_equal(mlo_json_i64(direct, "parts", 0), 1);
    snprintf(path, 128, "/v1/projects/%s/uploads/%s", project, mlo_json_str(reply.json, "id", "?"));
    reply_clear(&reply);
}

static void begin(struct api *api, char path[128])
{
    begin_in(api, "demo", api->token[MLO_SUBMITTER], path);
}

/* How S3 answers anybody; the head of it. */
static long head_of(const char *url, struct mlo_buf *head)
{
    CURL *curl = curl_easy_init();
    struct mlo_buf ignored = MLO_BUF_INIT;
    long http = 0;
    mlo_buf_reset(head);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)API_PATIENCE_S);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, head);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &ignored);
    assert_int_equal(curl_easy_perform(curl), CURLE_OK);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    curl_easy_cleanup(curl);
    mlo_buf_clear(&ignored);
    return http;
}

/* Where and how to send it. */
struct address {
    char url[2048], lines[6][512];
    const char *headers[7];
};

static void get_address(struct api *api, const char *path, const char *token, struct address *out)
{
    struct reply reply = {0};
    char parts[160];
    const char *name;
    json_t *value;
    size_t n = 0;
    snprintf(parts, sizeof parts, "%s/parts", path);
    api_call(api, &reply, "POST", parts, token, "{\"parts\": [{\"number\": 1}]}", NULL);
    assert_http(&reply, 200);
    json_t *item = json_array_get(json_object_get(reply.json, "items"), 0);
    assert_int_equal(mlo_json_i64(item, "size", 0), SIZE);
    snprintf(out->url, sizeof out->url, "%s", mlo_json_str(item, "url", ""));
    json_object_foreach(json_object_get(item, "headers"), name, value)
    {
        assert_true(n < 6);
        snprintf(out->lines[n], sizeof out->lines[n], "%s: %s", name, json_string_value(value));
        out->headers[n] = out->lines[n];
        n++;
    }
    out->headers[n] = NULL;
    reply_clear(&reply);
}

static void send_whole(struct api *api, const char *path, const char *token)
{
    struct address address;
    get_address(api, path, token, &address);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200);
}

static void assert_arrived(struct api *api, const char *path, const char *what)
{
    struct reply reply = {0};
    api_call(api, &reply, "GET", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 200);
    char *arrived =
        json_dumps(json_object_get(json_object_get(reply.json, "direct"), "arrived"), JSON_COMPACT);
    assert_string_equal(arrived, what);
    free(arrived);
    reply_clear(&reply);
}

static void test_whole__becomes_a_blob(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest, other;
    char path[128];
    mlo_digest_of(g_bytes, SIZE, &digest);
    mlo_digest_of("x", 1, &other);
    begin(api, path);
    assert_arrived(api, path, "[]");
    finish(api, &reply, path, &digest);
    assert_http(&reply, 409);
    assert_holds(mlo_json_str(reply.json, "detail", ""), "part 1 of 1 has not arrived");
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    assert_arrived(api, path, "[[1,1]]");
    assert_int_equal(head_blob(api, &digest), 404);
    finish(api, &reply, path, &other);
    assert_http(&reply, 422);
    assert_code(&reply, "digest-mismatch");
    assert_int_equal(head_blob(api, &other), 404);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "size", 0), SIZE);
    assert_int_equal(head_blob(api, &digest), 200);
    assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err);
    assert_int_equal(leftovers(), 0);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

/* Of those bytes: S3 looks. */
static void test_whole__an_address_is_for_exactly_that(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_digest digest;
    struct address address;
    char path[128], other[512];
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    get_address(api, path, api->token[MLO_SUBMITTER], &address);
    assert_non_null(address.headers[0]);
    assert_null(address.headers[1]);
    assert_int_equal(put(address.url, g_bytes + 1, SIZE, address.headers), 400); /* other bytes */
    assert_int_equal(put(address.url, g_bytes, SIZE - 1, address.headers), 403); /* another size */
    assert_int_equal(put(address.url, g_bytes, SIZE, (const char *const[]){NULL}), 403);
    snprintf(other, sizeof other, "%s", address.headers[0]); /* another digest, that of the bytes or not */
    other[strlen(other) - 1] = other[strlen(other) - 1] == '0' ? '1' : '0';
    assert_int_equal(put(address.url, g_bytes, SIZE, (const char *const[]){other, NULL}), 403);
    assert_int_equal(put(address.url, g_bytes + 1, SIZE,
                         (const char *const[]){"x-amz-content-sha256: UNSIGNED-PAYLOAD", NULL}),
                     403);
    assert_int_equal(leftovers(), 0);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 409);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200); /* an answer was lost */
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);
    static const char *const bad[] = {"\"sha256:12\"", "\"\"", "null", "7"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        snprintf(other, sizeof other, "{\"direct\": true, \"size\": 10, \"digest\": %s}", bad[i]);
        api_call(api, &reply, "POST", UPLOADS, api->token[MLO_SUBMITTER], other, NULL);
        assert_http(&reply, 422);
    }
    reply_clear(&reply);
}

/* Another project's bytes: neither by their digest, nor by a copy in the bucket in their place. */
static void test_whole__a_digest_alone_is_worth_nothing(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct reply reply = {0};
    struct mlo_digest digest;
    struct address address;
    int64_t project;
    char path[128], stranger[MLO_TOKEN_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE], copy[256];
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);

    assert_mlo_ok(mlo_project_create(api->pg->conn, &system, "other", "", &project, &err), &err);
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "stranger", MLO_ADMIN, project, 0, stranger, NULL, &err),
        &err);
    begin_in(api, "other", stranger, path);
    finish_as(api, &reply, path, &digest, stranger);
    assert_http(&reply, 409);
    get_address(api, path, stranger, &address);
    mlo_digest_hex(&digest, text);
    snprintf(copy, sizeof copy, "x-amz-copy-source: /%s/here/sha256/%.2s/%.2s/%s", g_bucket, text, text + 2,
             text);
    const char *const headers[] = {address.headers[0], copy, "x-amz-metadata-directive: REPLACE", NULL};
    assert_int_not_equal(put(address.url, g_bytes + 1, SIZE, headers), 200);
    finish_as(api, &reply, path, &digest, stranger);
    assert_http(&reply, 409);
    assert_int_equal(put(address.url, g_bytes + 1, SIZE, address.headers), 400);
    finish_as(api, &reply, path, &digest, stranger);
    assert_http(&reply, 409);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select count(*) from project_blob"), 1);
    assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err); /* it is as it was */
    send_whole(api, path, stranger);
    finish_as(api, &reply, path, &digest, stranger);
    assert_http(&reply, 201);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select count(*) from project_blob"), 2);
    reply_clear(&reply);
}

/* Headers that nobody signed, which S3 servers take: they harm nobody else, and do not stay. */
static void test_whole__what_else_a_client_sends_does_not_count(void **state)
{
    static const char *const more[][3] = {
        {"Content-Encoding: gzip", "x-amz-acl: public-read", "x-amz-meta-by: somebody"},
        {"x-amz-server-side-encryption-customer-algorithm: AES256",
         "x-amz-server-side-encryption-customer-key: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
         "x-amz-server-side-encryption-customer-key-MD5: hRasmdxgYDKV3nvbahU1MA=="},
    };
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct reply reply = {0};
    struct mlo_buf head = MLO_BUF_INIT;
    struct mlo_digest digest;
    struct address address;
    int64_t project;
    char path[128], stranger[MLO_TOKEN_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE], open[256], *url;
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);
    assert_mlo_ok(mlo_project_create(api->pg->conn, &system, "other", "", &project, &err), &err);
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "stranger", MLO_ADMIN, project, 0, stranger, NULL, &err),
        &err);
    mlo_digest_hex(&digest, text);
    snprintf(open, sizeof open, "%s/%s/here/sha256/%.2s/%.2s/%s", s3_server.endpoint, g_bucket, text,
             text + 2, text);
    for (size_t i = 0; i < MLO_COUNT(more); i++) {
        begin_in(api, "other", stranger, path);
        get_address(api, path, stranger, &address);
        const char *const headers[] = {address.headers[0], more[i][0], more[i][1], more[i][2], NULL};
        assert_int_equal(put(address.url, g_bytes, SIZE, headers), 200);
        finish_as(api, &reply, path, &digest, stranger);
        if (i == 0)
            assert_http(&reply, 201);
        else /* whose key nobody here has */
            assert_int_not_equal(reply.status, 201);
        assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err);
        assert_int_equal(head_of(open, &head), 403);
        assert_mlo_ok(mlo_blob_address(api->blobs, &digest, "m.onnx", &url, &err), &err);
        assert_int_equal(head_of(url, &head), 200);
        assert_null(strcasestr(mlo_buf_str(&head), "Content-Encoding"));
        assert_null(strcasestr(mlo_buf_str(&head), "x-amz-meta-"));
        free(url);
    }
    mlo_buf_clear(&head);
    reply_clear(&reply);
}

/* Two of the same bytes at the same time are two. */
static void test_whole__two_at_the_same_time(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_digest digest;
    char first[128], second[128];
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, first);
    begin(api, second);
    send_whole(api, first, api->token[MLO_SUBMITTER]);
    finish(api, &reply, second, &digest);
    assert_http(&reply, 409);
    finish(api, &reply, first, &digest);
    assert_http(&reply, 201);
    finish(api, &reply, second, &digest);
    assert_http(&reply, 409);
    send_whole(api, second, api->token[MLO_SUBMITTER]);
    finish(api, &reply, second, &digest);
    assert_http(&reply, 201);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select count(*) from upload"), 0);
    assert_int_equal(leftovers(), 0);
    reply_clear(&reply);
}

/* Bytes that were seen and are gone do not become a row. */
static void test_whole__is_not_read_back_and_what_is_gone_is_lost(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest;
    struct mlo_upload upload;
    struct mlo_hash_state before;
    struct mlo_s3 *s3 = s3_fixture_open(g_bucket);
    char path[128], key[96];
    bool done;
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, strrchr(path, '/') + 1, &upload, &err), &err);
    assert_mlo_ok(mlo_blob_session_check(api->blobs, &upload.session, &err), &err); /* nothing to be lost */
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    before = upload.session.hash;
    assert_mlo_ok(mlo_blob_direct_verify(api->blobs, &upload.session, 0, &done, &err), &err);
    assert_true(done);
    assert_memory_equal(&upload.session.hash, &before, sizeof before); /* nothing was read back */
    assert_mlo_ok(mlo_upload_keep(api->pg->conn, &upload, 0, &err), &err);
    assert_mlo_ok(mlo_blob_session_check(api->blobs, &upload.session, &err), &err);
    snprintf(key, sizeof key, "here/uploads/%s", upload.session.id);
    assert_ok(mlo_s3_delete(s3, key, &err));
    assert_mlo_status(mlo_blob_session_check(api->blobs, &upload.session, &err), MLO_ENOTFOUND, &err);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 404);
    assert_int_equal(head_blob(api, &digest), 404);
    mlo_s3_close(s3);
    reply_clear(&reply);
}

static int64_t repaired(struct api *api, int64_t grace_s)
{
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_error err = {0};
    const struct mlo_fsck_options options = {.blobs = api->blobs, .repair = true, .grace_s = grace_s};
    json_t *found;
    assert_mlo_ok(mlo_fsck_run(api->pg->conn, &system, &options, NULL, &found, &err), &err);
    int64_t n = (int64_t)json_array_size(json_object_get(found, "problems"));
    json_decref(found);
    return n;
}

/* Dropped, expired, or sent by an address that outlived its upload. */
static void test_whole__abandoned_ones_go(void **state)
{
    struct api *api = *state;
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    const struct mlo_gc_options options = {.blobs = api->blobs, .grace_s = 3600};
    struct mlo_gc_result result;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct address address;
    char path[128];
    begin(api, path);
    get_address(api, path, api->token[MLO_SUBMITTER], &address);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200);
    assert_int_equal(leftovers(), 1);
    api_call(api, &reply, "DELETE", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 204);
    assert_int_equal(leftovers(), 0);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200);
    assert_int_equal(repaired(api, 3600), 0);
    assert_int_equal(leftovers(), 1);
    assert_int_equal(repaired(api, 0), 1);
    assert_int_equal(leftovers(), 0);
    begin(api, path);
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    pg_fixture_number(api->pg->server, "UPDATE upload SET expires_at = now() - interval '1 s'");
    assert_mlo_ok(mlo_gc_run(api->pg->conn, &system, &options, &result, NULL, &err), &err);
    assert_int_equal(leftovers(), 0);
    reply_clear(&reply);
}

/* How the bucket encrypts is signed as well. Ceph 16 copies nothing that is encrypted, so the end is not
 * tried. */
static void test_whole__encrypted_by_the_bucket(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest;
    struct address address;
    char path[128];
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    get_address(api, path, api->token[MLO_SUBMITTER], &address);
    assert_non_null(address.headers[2]);
    assert_null(address.headers[3]);
    for (size_t i = 0; i < 3; i++) { /* one is missing */
        const char *const two[] = {address.headers[(i + 1) % 3], address.headers[(i + 2) % 3], NULL};
        assert_int_equal(put(address.url, g_bytes, SIZE, two), 403);
    }
    assert_arrived(api, path, "[]");
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200);
    assert_arrived(api, path, "[[1,1]]");
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);
    assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err);
    assert_int_equal(leftovers(), 0);
    reply_clear(&reply);
}

/* One that takes what it should not take gets parts. */
static void test_whole__not_where_the_bucket_does_not_look(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_blob_store *store;
    struct mlo_blob_session session;
    struct mlo_blob_direct direct;
    struct mlo_digest digest;
    char url[256];
    MLO_UNUSED(api);
    mlo_digest_of(g_bytes, SIZE, &digest);
    for (int fault = 0; fault < 2; fault++) {
        snprintf(url, sizeof url, "s3:%s/here?endpoint=%s&redirect=yes&direct=yes", g_bucket,
                 s3_proxy.endpoint);
        assert_mlo_ok(mlo_blob_store_open(url, &store, &err), &err);
        s3_proxy_set(fault ? S3_FAULT_BLIND : S3_FAULT_NONE, fault, 0);
        assert_mlo_ok(mlo_blob_direct_begin(store, SIZE, &digest, &session, &err), &err);
        assert_true(mlo_blob_direct_info(store, &session, &direct));
        assert_int_equal(direct.whole, !fault);
        s3_proxy_assert_struck();
        assert_mlo_ok(mlo_blob_session_drop(store, &session, &err), &err);
        mlo_blob_store_close(store);
    }
    assert_int_equal(leftovers(), 0);
}

static void test_whole__not_where_the_operator_wants_parts(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_blob_session session;
    struct mlo_blob_direct direct;
    struct mlo_digest digest;
    mlo_digest_of(g_bytes, SIZE, &digest);
    assert_mlo_ok(mlo_blob_direct_begin(api->blobs, SIZE, &digest, &session, &err), &err);
    assert_true(mlo_blob_direct_info(api->blobs, &session, &direct));
    assert_false(direct.whole);
    assert_int_equal(direct.parts, 2);
    assert_mlo_ok(mlo_blob_session_drop(api->blobs, &session, &err), &err);
}

/* --- mlopt push ----------------------------------------------------------------------------------------- */

static void test_whole__push_sends_it_without_its_token(void **state)
{
    char said[4096];
    int log;
    s3_proxy_set(S3_FAULT_CUT_REQUEST, 2, 3000000); /* it has to be sent again, twice */
    pid_t pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
    s3_proxy_assert_struck();
    assert_int_equal(atomic_load(&s3_proxy.authorized), 0);
    assert_int_equal(atomic_load(&s3_proxy.puts), 3);
    assert_string_equal(said, "");
}

static atomic_int g_push;

/* As the first bytes pass. */
static void kill_it(void)
{
    while (!atomic_load(&g_push))
        mlo_clock_sleep_ms(1);
    kill(atomic_load(&g_push), SIGKILL);
}

static void test_whole__push_goes_on_after_a_kill(void **state)
{
    char said[4096];
    int log, how;
    atomic_store(&g_push, 0);
    s3_proxy.then = kill_it;
    snprintf(s3_proxy.seldom, sizeof s3_proxy.seldom, "PUT /");
    pid_t pid = push(*state, &log);
    atomic_store(&g_push, pid);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how));
    close(log);
    pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
    assert_int_equal(atomic_load(&s3_proxy.puts), 2);
    assert_int_equal(pg_fixture_number(((struct api *)*state)->pg->owner, "select count(*) from upload"), 0);
}

static void test_whole__push_goes_round_a_bucket_that_it_cannot_reach(void **state)
{
    char said[4096];
    int log;
    pid_t pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
    assert_holds(said, "sending the file through the server");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(test_whole__becomes_a_blob, setup),
        WITH(test_whole__an_address_is_for_exactly_that, setup),
        WITH(test_whole__a_digest_alone_is_worth_nothing, setup),
        WITH(test_whole__what_else_a_client_sends_does_not_count, setup),
        WITH(test_whole__two_at_the_same_time, setup),
        WITH(test_whole__is_not_read_back_and_what_is_gone_is_lost, setup),
        WITH(test_whole__abandoned_ones_go, setup),
        WITH(test_whole__encrypted_by_the_bucket, setup_encrypted),
        WITH(test_whole__not_where_the_bucket_does_not_look, setup),
        WITH(test_whole__not_where_the_operator_wants_parts, setup_parts_only),
        WITH(test_whole__push_sends_it_without_its_token, setup_outside),
        WITH(test_whole__push_goes_on_after_a_kill, setup_outside),
        WITH(test_whole__push_goes_round_a_bucket_that_it_cannot_reach, setup_nowhere),
    };
    direct_fixture_start();
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    free(g_bytes);
    return s3_fixture_end(failed);
}
