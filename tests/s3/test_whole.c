/* Direct uploads of one request, which the bucket's server checks: what an address is good for, that a digest
 * alone is worth nothing, and `mlopt push` with it. */
#include "tests/s3/direct_fixture.h"

#include "registry/blob_s3_impl.h"
#include "registry/fsck.h"
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

static void finish_in(struct api *api, struct reply *reply, const char *path, const char *token)
{
    struct mlo_digest digest;
    char url[256], text[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of(g_bytes, SIZE, &digest);
    snprintf(url, sizeof url, "%s?digest=%s", path, mlo_digest_text(&digest, text));
    api_call(api, reply, "PUT", url, token, NULL, NULL);
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

static void test_whole__becomes_a_blob_without_being_read_back(void **state)
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
    assert_holds(mlo_json_str(reply.json, "detail", ""), "have not arrived");
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

/* Of those bytes, with that mark: S3 looks. */
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
    assert_non_null(address.headers[1]);
    assert_null(address.headers[2]);
    assert_int_equal(put(address.url, g_bytes + 1, SIZE, address.headers), 400); /* other bytes */
    assert_int_equal(put(address.url, g_bytes, SIZE - 1, address.headers), 403); /* another size */
    assert_int_equal(put(address.url, g_bytes, SIZE, (const char *const[]){NULL}), 403);
    for (size_t i = 0; i < 2; i++) { /* one of the headers is missing, or says something else */
        const char *const one[] = {address.headers[i], NULL};
        assert_int_equal(put(address.url, g_bytes, SIZE, one), 403);
        snprintf(other, sizeof other, "%s", address.headers[i]);
        other[strlen(other) - 1] = other[strlen(other) - 1] == '0' ? '1' : '0';
        const char *const both[] = {other, address.headers[1 - i], NULL};
        assert_int_equal(put(address.url, g_bytes, SIZE, both), 403);
    }
    assert_int_equal(mlo_blob_exists(api->blobs, &digest), false);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 409);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200); /* an answer was lost */
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);
    api_call(api, &reply, "POST", UPLOADS, api->token[MLO_SUBMITTER],
             "{\"direct\": true, \"size\": 10, \"digest\": \"sha256:12\"}", NULL);
    assert_http(&reply, 422);
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
    finish_in(api, &reply, path, stranger);
    assert_http(&reply, 409);
    get_address(api, path, stranger, &address);
    mlo_digest_hex(&digest, text);
    snprintf(copy, sizeof copy, "x-amz-copy-source: /%s/here/sha256/%.2s/%.2s/%s", g_bucket, text, text + 2,
             text);
    const char *const headers[] = {address.headers[0], address.headers[1], copy,
                                   "x-amz-metadata-directive: REPLACE", NULL};
    assert_int_not_equal(put(address.url, g_bytes + 1, SIZE, headers), 200);
    finish_in(api, &reply, path, stranger);
    assert_http(&reply, 409);
    assert_int_equal(put(address.url, g_bytes + 1, SIZE, address.headers), 400);
    finish_in(api, &reply, path, stranger);
    assert_http(&reply, 409);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select count(*) from project_blob"), 1);
    assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err); /* it is as it was */
    send_whole(api, path, stranger);
    finish_in(api, &reply, path, stranger);
    assert_http(&reply, 201);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select count(*) from project_blob"), 2);
    reply_clear(&reply);
}

/* Two of the same bytes at the same time: who came last has shown that he has them, and so has who was seen
 * before. */
static void test_whole__two_at_the_same_time(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest;
    struct mlo_upload upload;
    char first[128], second[128], third[128];
    bool done;
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, first);
    begin(api, second);
    begin(api, third);
    send_whole(api, first, api->token[MLO_SUBMITTER]);
    assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, strrchr(first, '/') + 1, &upload, &err), &err);
    assert_mlo_ok(mlo_blob_direct_verify(api->blobs, &upload.session, 0, &done, &err), &err);
    assert_true(done);
    assert_mlo_ok(mlo_upload_keep(api->pg->conn, &upload, 0, &err), &err);
    send_whole(api, second, api->token[MLO_SUBMITTER]);
    send_whole(api, third, api->token[MLO_SUBMITTER]);
    finish(api, &reply, second, &digest);
    assert_http(&reply, 409);
    assert_arrived(api, second, "[]");
    finish(api, &reply, first, &digest); /* it had been seen */
    assert_http(&reply, 201);
    finish(api, &reply, third, &digest);
    assert_http(&reply, 201);
    send_whole(api, second, api->token[MLO_SUBMITTER]);
    finish(api, &reply, second, &digest);
    assert_http(&reply, 201);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select count(*) from upload"), 0);
    reply_clear(&reply);
}

/* Bytes that were seen and are gone do not become a row. */
static void test_whole__what_is_gone_is_sent_again(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest;
    struct mlo_upload upload;
    char path[128];
    bool done;
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, strrchr(path, '/') + 1, &upload, &err), &err);
    assert_mlo_ok(mlo_blob_session_check(api->blobs, &upload.session, &err), &err); /* nothing to be lost */
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    assert_mlo_ok(mlo_blob_direct_verify(api->blobs, &upload.session, 0, &done, &err), &err);
    assert_mlo_ok(mlo_upload_keep(api->pg->conn, &upload, 0, &err), &err);
    assert_mlo_ok(mlo_blob_session_check(api->blobs, &upload.session, &err), &err);
    assert_mlo_ok(api->blobs->backend->remove(api->blobs, &digest, &err), &err);
    assert_mlo_status(mlo_blob_session_check(api->blobs, &upload.session, &err), MLO_ENOTFOUND, &err);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 409);
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);
    assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err);
    reply_clear(&reply);
}

/* What nobody finished is bytes without a row. */
static void test_whole__abandoned_ones_go(void **state)
{
    struct api *api = *state;
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest;
    struct mlo_fsck_options options = {.blobs = api->blobs, .repair = true, .grace_s = 3600};
    char path[128];
    json_t *found;
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    send_whole(api, path, api->token[MLO_SUBMITTER]);
    api_call(api, &reply, "DELETE", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 204);
    for (int pass = 0; pass < 2; pass++) {
        options.grace_s = pass ? 0 : 3600;
        assert_mlo_ok(mlo_fsck_run(api->pg->conn, &system, &options, NULL, &found, &err), &err);
        json_t *problems = json_object_get(found, "problems");
        assert_int_equal(json_array_size(problems), pass);
        if (pass)
            assert_string_equal(mlo_json_str(json_array_get(problems, 0), "kind", ""), "orphan");
        assert_int_equal(mlo_blob_exists(api->blobs, &digest), !pass);
        json_decref(found);
    }
    reply_clear(&reply);
}

static void test_whole__encrypted_by_the_bucket(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest;
    struct address address;
    char path[128];
    size_t count = 0;
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    get_address(api, path, api->token[MLO_SUBMITTER], &address);
    while (address.headers[count])
        count++;
    assert_int_equal(count, 4);
    assert_int_equal(put(address.url, g_bytes, SIZE, address.headers), 200);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 201);
    assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err);
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

static void test_whole__push_goes_on_after_a_kill(void **state)
{
    char said[4096];
    int log, how;
    pid_t pid = push(*state, &log);
    bool ended = false;
    while (atomic_load(&s3_proxy.puts) < 1 && !ended) {
        mlo_clock_sleep_ms(1);
        ended = waitpid(pid, &how, WNOHANG) != 0;
    }
    if (!ended) {
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &how, 0), pid);
    }
    close(log);
    pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
}

static void test_whole__push_goes_round_a_bucket_that_it_cannot_reach(void **state)
{
    char said[4096];
    int log;
    pid_t pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
    assert_holds(said, "sending the file through the server");
}

static struct api *g_api;

/* The same file arrives in another upload, between the end of this one's bytes and its last request. */
static void come_in_between(void)
{
    struct mlo_error err = {0};
    struct mlo_blob_session session;
    struct mlo_blob_part_address address;
    struct mlo_digest digest;
    char lines[2][256];
    mlo_digest_of(g_bytes, PUSHED, &digest);
    assert_mlo_ok(mlo_blob_direct_begin(g_api->blobs, PUSHED, &digest, &session, &err), &err);
    assert_mlo_ok(mlo_blob_direct_address(g_api->blobs, &session, 1, NULL, &address, &err), &err);
    for (size_t i = 0; i < 2; i++)
        snprintf(lines[i], sizeof lines[i], "%s: %s", address.headers[i].name, address.headers[i].value);
    assert_int_equal(put(address.url, g_bytes, PUSHED, (const char *const[]){lines[0], lines[1], NULL}), 200);
    mlo_blob_part_address_clear(&address);
}

static enum mlo_status verify_late(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                   uint32_t budget_ms, bool *done, struct mlo_error *err)
{
    static bool once;
    if (!once) {
        once = true;
        come_in_between();
    }
    return mlo_blob_s3_direct_verify(store, session, budget_ms, done, err);
}

static void test_whole__push_sends_again_where_another_came_last(void **state)
{
    struct api *api = g_api = *state;
    struct mlo_blob_backend late = *api->blobs->backend;
    const struct mlo_blob_backend *own = api->blobs->backend;
    char said[4096];
    int log;
    late.direct_verify = verify_late;
    api->blobs->backend = &late;
    pid_t pid = push(api, &log);
    assert_pushed(api, pid, log, said);
    api->blobs->backend = own;
    assert_int_equal(atomic_load(&s3_proxy.puts), 3); /* its two, and the other one */
    assert_string_equal(said, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(test_whole__becomes_a_blob_without_being_read_back, setup),
        WITH(test_whole__an_address_is_for_exactly_that, setup),
        WITH(test_whole__a_digest_alone_is_worth_nothing, setup),
        WITH(test_whole__two_at_the_same_time, setup),
        WITH(test_whole__what_is_gone_is_sent_again, setup),
        WITH(test_whole__abandoned_ones_go, setup),
        WITH(test_whole__encrypted_by_the_bucket, setup_encrypted),
        WITH(test_whole__not_where_the_bucket_does_not_look, setup),
        WITH(test_whole__not_where_the_operator_wants_parts, setup_parts_only),
        WITH(test_whole__push_sends_it_without_its_token, setup_outside),
        WITH(test_whole__push_goes_on_after_a_kill, setup_outside),
        WITH(test_whole__push_goes_round_a_bucket_that_it_cannot_reach, setup_nowhere),
        WITH(test_whole__push_sends_again_where_another_came_last, setup_outside),
    };
    direct_fixture_start();
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    free(g_bytes);
    return s3_fixture_end(failed);
}
