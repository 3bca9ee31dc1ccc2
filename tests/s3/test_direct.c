/* Uploads whose parts go straight to the bucket: what an address is good for, that nothing is a blob before
 * it was read back, and `mlopt push` with it. */
#include "tests/s3/direct_fixture.h"

#include <openssl/evp.h>

#include "registry/blob_s3_impl.h"
#include "registry/gc.h"
#include "registry/upload.h"

enum { PART = 8 << 20, SIZE = 2 * PART + 1000003 };

static int setup(void **state)
{
    return start(state, "&redirect=yes&direct=parts");
}

static int setup_outside(void **state)
{
    char more[128];
    snprintf(more, sizeof more, "&direct=parts&redirect=%s", s3_proxy.endpoint);
    return start(state, more);
}

static int setup_nowhere(void **state)
{
    return start(state, "&direct=parts&redirect=http://127.0.0.1:1");
}

static int setup_downloads_only(void **state)
{
    return start(state, "&redirect=yes");
}

static void md5_of(const char *bytes, size_t size, char out[32])
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n;
    assert_int_equal(EVP_Digest(bytes, size, sum, &n, EVP_md5(), NULL), 1);
    EVP_EncodeBlock((unsigned char *)out, sum, (int)n);
}

/* Of one part; `md5` NULL: without that header. */
static long put_with(const char *url, const char *bytes, size_t size, const char *md5)
{
    char header[64];
    snprintf(header, sizeof header, "Content-MD5: %s", md5 ? md5 : "");
    return put(url, bytes, size, (const char *const[]){md5 ? header : NULL, NULL});
}

/* Begins a direct upload of SIZE bytes; its path. */
static void begin(struct api *api, char path[128])
{
    struct reply reply = {0};
    char body[96];
    snprintf(body, sizeof body, "{\"direct\": true, \"size\": %d}", SIZE);
    api_call(api, &reply, "POST", UPLOADS, api->token[MLO_SUBMITTER], body, NULL);
    assert_http(&reply, 201);
    const json_t *direct = json_object_get(reply.json, "direct");
    assert_non_null(direct);
    assert_int_equal(mlo_json_i64(direct, "part_size", 0), PART);
    assert_int_equal(mlo_json_i64(direct, "parts", 0), 3);
    snprintf(path, 128, UPLOADS "/%s", mlo_json_str(reply.json, "id", "?"));
    reply_clear(&reply);
}

/* The address of a part of g_bytes; yours (free). */
static char *address(struct api *api, const char *path, int number, char md5[32])
{
    struct reply reply = {0};
    char body[128], parts[160];
    size_t first = (size_t)(number - 1) * PART;
    md5_of(g_bytes + first, MLO_MIN((size_t)PART, SIZE - first), md5);
    snprintf(body, sizeof body, "{\"parts\": [{\"number\": %d, \"md5\": \"%s\"}]}", number, md5);
    snprintf(parts, sizeof parts, "%s/parts", path);
    api_call(api, &reply, "POST", parts, api->token[MLO_SUBMITTER], body, NULL);
    assert_http(&reply, 200);
    const json_t *item = json_array_get(json_object_get(reply.json, "items"), 0);
    assert_int_equal(mlo_json_i64(item, "number", 0), number);
    char *url = strdup(mlo_json_str(item, "url", ""));
    reply_clear(&reply);
    return url;
}

static void put_part(struct api *api, const char *path, int number)
{
    size_t first = (size_t)(number - 1) * PART;
    char md5[32], *url = address(api, path, number, md5);
    assert_int_equal(put_with(url, g_bytes + first, MLO_MIN((size_t)PART, SIZE - first), md5), 200);
    free(url);
}

static void test_direct__parts_become_a_blob_when_they_were_read_back(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_digest digest, other;
    char path[128];
    mlo_digest_of(g_bytes, SIZE, &digest);
    mlo_digest_of("x", 1, &other);
    begin(api, path);
    put_part(api, path, 3);
    put_part(api, path, 1);
    api_call(api, &reply, "GET", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 200);
    char *arrived =
        json_dumps(json_object_get(json_object_get(reply.json, "direct"), "arrived"), JSON_COMPACT);
    assert_string_equal(arrived, "[[1,1],[3,3]]");
    free(arrived);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 409);
    assert_holds(mlo_json_str(reply.json, "detail", ""), "part 2 of 3 has not arrived");
    put_part(api, path, 2);
    assert_int_equal(head_blob(api, &digest), 404);
    finish(api, &reply, path, &other); /* it is what its bytes are, not what it is said to be */
    assert_http(&reply, 422);
    assert_code(&reply, "digest-mismatch");
    assert_int_equal(head_blob(api, &other), 404);
    assert_int_equal(head_blob(api, &digest), 404);
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

/* Of one part, of that size and MD5; to nobody but the project; not after the object was made. */
static void test_direct__an_address_is_for_exactly_that(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct reply reply = {0};
    struct mlo_digest digest;
    int64_t project;
    char path[128], parts[160], md5[32], wrong[32], stranger[MLO_TOKEN_TEXT_SIZE];
    begin(api, path);
    char *url = address(api, path, 1, md5);
    md5_of(g_bytes + 1, PART, wrong);
    assert_int_equal(put_with(url, g_bytes + 1, PART, md5), 400);   /* S3 itself looks */
    assert_int_equal(put_with(url, g_bytes + 1, PART, wrong), 403); /* another MD5 was signed */
    assert_int_equal(put_with(url, g_bytes, PART, NULL), 403);      /* as was that there is one */
    assert_int_equal(put_with(url, g_bytes, PART - 1, md5), 403);   /* and the size */
    snprintf(parts, sizeof parts, "%s/parts", path);
    static const char *const bad[] = {
        "{\"parts\": []}",
        "{\"parts\": [{\"number\": 0, \"md5\": \"1B2M2Y8AsgTpgAmY7PhCfg==\"}]}",
        "{\"parts\": [{\"number\": 4, \"md5\": \"1B2M2Y8AsgTpgAmY7PhCfg==\"}]}",
        "{\"parts\": [{\"number\": 1, \"md5\": \"short\"}]}",
        "{\"parts\": [{\"number\": 1, \"md5\": \"1B2M2Y8AsgTpgAmY7PhC\\r\\ng=\"}]}",
        "{\"parts\": [{\"number\": 1}]}",
    };
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        api_call(api, &reply, "POST", parts, api->token[MLO_SUBMITTER], bad[i], NULL);
        assert_http(&reply, 422);
    }
    api_call(api, &reply, "PATCH", path, api->token[MLO_SUBMITTER], "bytes", NULL);
    assert_http(&reply, 409);
    assert_mlo_ok(mlo_project_create(api->pg->conn, &system, "other", "", &project, &err), &err);
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "stranger", MLO_ADMIN, project, 0, stranger, NULL, &err),
        &err);
    snprintf(parts, sizeof parts, "/v1/projects/other/uploads/%s/parts", strrchr(path, '/') + 1);
    api_call(api, &reply, "POST", parts, stranger,
             "{\"parts\": [{\"number\": 1, \"md5\": \"1B2M2Y8AsgTpgAmY7PhCfg==\"}]}", NULL);
    assert_http(&reply, 404);
    for (int number = 1; number <= 3; number++)
        put_part(api, path, number);
    mlo_digest_of("x", 1, &digest);
    finish(api, &reply, path, &digest);
    assert_http(&reply, 422); /* the object is made */
    assert_int_not_equal(put_with(url, g_bytes, PART, md5), 200);
    api_call(api, &reply, "DELETE", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 204);
    assert_int_equal(leftovers(), 0);
    begin(api, path);
    put_part(api, path, 2);
    api_call(api, &reply, "DELETE", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 204);
    assert_int_equal(leftovers(), 0);
    free(url);
    reply_clear(&reply);
}

/* Any server goes on with reading back what another began; what changed meanwhile is found. */
static void test_direct__verifying_goes_on(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_upload upload;
    struct reply reply = {0};
    struct mlo_digest digest, got;
    char path[128], key[128];
    bool done;
    int steps = 0;
    mlo_digest_of(g_bytes, SIZE, &digest);
    for (int changed = 0; changed < 2; changed++) {
        begin(api, path);
        for (int number = 1; number <= 3; number++)
            put_part(api, path, number);
        assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, strrchr(path, '/') + 1, &upload, &err),
                      &err);
        assert_mlo_ok(mlo_blob_direct_verify(api->blobs, &upload.session, 0, &done, &err), &err);
        assert_false(done);
        assert_mlo_status(mlo_blob_session_publish(api->blobs, &upload.session, &err), MLO_EINTERNAL, &err);
        if (changed) {
            struct mlo_s3 *s3 = s3_fixture_open(g_bucket);
            snprintf(key, sizeof key, "here/uploads/%s", upload.session.id);
            assert_ok(mlo_s3_put(s3, key, g_bytes + 1, SIZE, NULL, &err));
            mlo_s3_close(s3);
            assert_mlo_status(mlo_blob_direct_verify(api->blobs, &upload.session, 0, &done, &err),
                              MLO_EDIGEST, &err);
            break;
        }
        while (!done) {
            uint64_t before = upload.session.size_bytes;
            assert_mlo_ok(mlo_upload_keep(api->pg->conn, &upload, steps ? before : 0, &err), &err);
            assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, strrchr(path, '/') + 1, &upload, &err),
                          &err);
            assert_mlo_ok(mlo_blob_direct_verify(api->blobs, &upload.session, 0, &done, &err), &err);
            steps++;
        }
        assert_true(steps > 0);
        assert_mlo_ok(mlo_blob_session_digest(api->blobs, &upload.session, &got, &err), &err);
        assert_true(mlo_digest_eq(&got, &digest));
        finish(api, &reply, path, &digest);
        assert_http(&reply, 201);
    }
    reply_clear(&reply);
}

/* Garbage collection ends what nobody went on with, parts and made objects alike. */
static void test_direct__abandoned_ones_go(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    const struct mlo_gc_options options = {.blobs = api->blobs, .grace_s = 3600};
    struct mlo_gc_result result;
    struct mlo_digest other;
    char path[128];
    mlo_digest_of("x", 1, &other);
    begin(api, path);
    put_part(api, path, 1);
    begin(api, path);
    for (int number = 1; number <= 3; number++)
        put_part(api, path, number);
    finish(api, &reply, path, &other);
    assert_http(&reply, 422);
    assert_int_equal(leftovers(), 2);
    assert_mlo_ok(mlo_gc_run(api->pg->conn, &system, &options, &result, NULL, &err), &err);
    assert_int_equal(leftovers(), 2); /* not yet */
    pg_fixture_number(api->pg->server, "UPDATE upload SET expires_at = now() - interval '1 s'");
    assert_mlo_ok(mlo_gc_run(api->pg->conn, &system, &options, &result, NULL, &err), &err);
    assert_int_equal(leftovers(), 0);
    reply_clear(&reply);
}

static void test_direct__not_unless_told_to(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_blob_store *store;
    api_call(api, &reply, "POST", UPLOADS, api->token[MLO_SUBMITTER],
             "{\"direct\": true, \"size\": 100000000}", NULL);
    assert_http(&reply, 201);
    assert_null(json_object_get(reply.json, "direct"));
    snprintf(g_url, sizeof g_url, "s3:%s/here?endpoint=%s&direct=yes", g_bucket, s3_server.endpoint);
    assert_int_equal(mlo_blob_store_open(g_url, &store, &err), MLO_EINVAL);
    reply_clear(&reply);
}

/* --- mlopt push ----------------------------------------------------------------------------------------- */

static void test_direct__push_sends_parts_without_its_token(void **state)
{
    char said[4096];
    int log;
    s3_proxy_set(S3_FAULT_CUT_REQUEST, 2, 3000000); /* two parts have to be sent again */
    pid_t pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
    s3_proxy_assert_struck();
    assert_int_equal(atomic_load(&s3_proxy.authorized), 0);
    assert_in_range(atomic_load(&s3_proxy.puts), 8, 12);
    assert_string_equal(said, "");
}

/* Killed as soon as a part has arrived, and run again: what arrived is not sent again. */
static void test_direct__push_goes_on_after_a_kill(void **state)
{
    char said[4096];
    int log, how;
    pid_t pid = push(*state, &log);
    bool ended = false;
    while (atomic_load(&s3_proxy.puts) < 5 && !ended) { /* four at a time: one is there */
        mlo_clock_sleep_ms(1);
        ended = waitpid(pid, &how, WNOHANG) != 0;
    }
    if (!ended) {
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &how, 0), pid);
    }
    close(log);
    int before = atomic_load(&s3_proxy.puts);
    pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
    assert_true(atomic_load(&s3_proxy.puts) - before < 6);
}

static void test_direct__push_goes_round_a_bucket_that_it_cannot_reach(void **state)
{
    char said[4096];
    int log;
    pid_t pid = push(*state, &log);
    assert_pushed(*state, pid, log, said);
    assert_holds(said, "sending the file through the server");
}

/* The operator switches direct uploads off while one is on its way. */
static void test_direct__push_goes_on_through_a_server_that_ended_it(void **state)
{
    struct api *api = *state;
    struct mlo_blob_s3 *store = api->blobs->state;
    char said[4096];
    int log, how;
    pid_t pid = push(api, &log);
    bool ended = false;
    while (atomic_load(&s3_proxy.puts) < 5 && !ended) { /* four at a time: one is there */
        mlo_clock_sleep_ms(1);
        ended = waitpid(pid, &how, WNOHANG) != 0;
    }
    if (!ended) {
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &how, 0), pid);
    }
    close(log);
    store->direct = false;
    pid = push(api, &log);
    assert_pushed(api, pid, log, said);
    if (!ended)
        assert_holds(said, "sending the file through the server");
}

static enum mlo_status open_ended(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                  uint32_t budget_ms, bool *done, struct mlo_error *err)
{
    MLO_UNUSED(store);
    MLO_UNUSED(session);
    MLO_UNUSED(budget_ms);
    *done = false;
    return mlo_error_set(err, MLO_EUNSUPPORTED, "parts can be replaced after the object was made of them");
}

/* A store that turns out to be none for it, at the end, as Swift does: the server keeps nothing alive, the
 * client sends the file another way. */
static void test_direct__push_goes_round_a_store_that_lets_parts_be_replaced(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_digest digest;
    struct mlo_blob_backend swift = *api->blobs->backend;
    const struct mlo_blob_backend *ceph = api->blobs->backend;
    char said[4096], path[128];
    int log;
    swift.direct_verify = open_ended;
    api->blobs->backend = &swift;
    mlo_digest_of(g_bytes, SIZE, &digest);
    begin(api, path);
    pg_fixture_number(api->pg->server, "UPDATE upload SET expires_at = now() + interval '100 s'");
    finish(api, &reply, path, &digest);
    assert_http(&reply, 422);
    assert_code(&reply, "unsupported");
    assert_int_equal(
        pg_fixture_number(api->pg->server,
                          "SELECT count(*) FROM upload WHERE expires_at < now() + interval '101 s'"),
        1);
    api_call(api, &reply, "DELETE", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 204);
    pid_t pid = push(api, &log);
    assert_pushed(api, pid, log, said);
    assert_holds(said, "sending the file through the server");
    api->blobs->backend = ceph;
    reply_clear(&reply);
}

static struct {
    struct mlo_blob_store *store;
    struct mlo_blob_session session;
    enum mlo_status status;
    struct mlo_error err;
} g_other;

static void verify_at_another(void)
{
    bool done;
    g_other.status =
        mlo_blob_direct_verify(g_other.store, &g_other.session, API_PATIENCE_S * 1000, &done, &g_other.err);
}

static void find_upload(struct api *api, const char *path, struct mlo_upload *out)
{
    struct mlo_error err = {0};
    int64_t project = pg_fixture_number(api->pg->owner, "select id from project where name = 'demo'");
    assert_mlo_ok(mlo_upload_find(api->pg->conn, project, strrchr(path, '/') + 1, out, &err), &err);
}

/* Another server makes the object of the parts between two looks of one who asks whether they are there. */
static void test_direct__one_that_is_ended_meanwhile_is_not_lost(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_upload upload;
    struct mlo_blob_store *store;
    char path[128], url[256];
    begin(api, path);
    for (int part = 1; part <= 3; part++)
        put_part(api, path, part);
    find_upload(api, path, &upload);
    snprintf(url, sizeof url, "s3:%s/here?endpoint=%s", g_bucket, s3_proxy.endpoint);
    assert_mlo_ok(mlo_blob_store_open(url, &store, &err), &err);
    g_other.store = api->blobs;
    g_other.session = upload.session;
    g_other.status = MLO_EINTERNAL;
    s3_proxy.then = verify_at_another;
    snprintf(s3_proxy.seldom, sizeof s3_proxy.seldom, "uploadId=");
    enum mlo_status status = mlo_blob_session_check(store, &upload.session, &err);
    assert_mlo_ok(g_other.status, &g_other.err);
    assert_mlo_ok(status, &err);
    mlo_blob_store_close(store);
}

static enum mlo_status count_lost(void *arg, const struct mlo_upload *upload, struct mlo_error *err)
{
    MLO_UNUSED(upload);
    MLO_UNUSED(err);
    ++*(int *)arg;
    return MLO_OK;
}

/* Of which nothing was verified: that there is an empty blob says nothing about it. */
static void test_direct__a_lost_one_was_not_published_empty(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_upload upload;
    struct mlo_s3 *s3 = s3_fixture_open(g_bucket);
    char path[128], key[96], name[160], at[MLO_BLOB_SESSION_ID_SIZE] = "";
    int lost = 0;
    bool done;
    begin(api, path);
    put_part(api, path, 1);
    find_upload(api, path, &upload);
    assert_mlo_ok(mlo_blob_put_bytes(api->blobs, "", 0, NULL, &err), &err);
    const struct mlo_upload_lost_options o = {.store = api->blobs, .fn = count_lost, .arg = &lost};
    assert_mlo_ok(mlo_upload_lost(api->pg->conn, &o, at, &done, &err), &err);
    assert_int_equal(lost, 0);
    assert_int_equal(sscanf(upload.session.place, "direct %159s", name), 1);
    snprintf(key, sizeof key, "here/uploads/%s", upload.session.id);
    assert_mlo_ok(mlo_s3_multipart_abort(s3, key, name, &err), &err); /* as a rule of the bucket does */
    at[0] = '\0';
    assert_mlo_ok(mlo_upload_lost(api->pg->conn, &o, at, &done, &err), &err);
    assert_true(done);
    assert_int_equal(lost, 1);
    mlo_s3_close(s3);
}

/* --- a collector that loses its database while it deletes ------------------------------------------------
 */

static struct {
    struct api *api;
    struct mlo_digest digest;
    pthread_t thread;
    int64_t lost;
    bool begun;
    enum mlo_status status;
    struct mlo_error err;
} g_bringer;

static const char BROUGHT[] = "brought again";

/* Another client brings the same bytes. */
static enum mlo_status bring(struct mlo_error *err)
{
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_db_conn *conn = NULL;
    int64_t project =
        pg_fixture_number(g_bringer.api->pg->owner, "select id from project where name = 'demo'");
    enum mlo_status status;
    MLO_TRY(mlo_blob_put_bytes(g_bringer.api->blobs, BROUGHT, strlen(BROUGHT), &g_bringer.digest, err));
    MLO_TRY(mlo_db_acquire(g_bringer.api->pg->server, &conn, err));
    MLO_TRY(mlo_blob_record_stored(conn, g_bringer.api->blobs, &system, project, &g_bringer.digest,
                                   strlen(BROUGHT), err));
out:
    mlo_db_release(conn);
    return status;
}

static void *bring_beside(void *arg)
{
    MLO_UNUSED(arg);
    g_bringer.status = bring(&g_bringer.err);
    return NULL;
}

/* The delete is on its way, and stays there for a while; the database that waits for it does not. */
static void lose_the_database(void)
{
    /* of its own role, which may end them */
    g_bringer.lost = pg_fixture_number(g_bringer.api->pg->server,
                                       "select count(pg_terminate_backend(pid)) from pg_stat_activity where "
                                       "usename = current_user and state like 'idle in transaction%'");
    g_bringer.begun = pthread_create(&g_bringer.thread, NULL, bring_beside, NULL) == 0;
    mlo_clock_sleep_ms(1500);
}

static int64_t live_rows(struct api *api)
{
    return pg_fixture_number(api->pg->owner, "select count(*) from blob where removed_at is null");
}

static void test_direct__a_delete_that_nobody_noted_takes_no_new_bytes(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_db_conn *conn;
    struct mlo_gc_result result;
    struct mlo_gc_options options = {.grace_s = 0};
    char url[256];
    g_bringer.api = api;
    assert_mlo_ok(bring(&err), &err);
    assert_int_equal(live_rows(api), 1);
    snprintf(url, sizeof url, "s3:%s/here?endpoint=%s", g_bucket, s3_proxy.endpoint);
    assert_mlo_ok(mlo_blob_store_open(url, &options.blobs, &err), &err);
    s3_proxy.then = lose_the_database;
    snprintf(s3_proxy.seldom, sizeof s3_proxy.seldom, "DELETE /");
    assert_mlo_ok(mlo_db_acquire(api->pg->server, &conn, &err), &err);
    assert_int_not_equal(mlo_gc_run(conn, &system, &options, &result, NULL, &err), MLO_OK);
    mlo_db_release(conn);
    assert_int_equal(g_bringer.lost, 1);
    assert_true(g_bringer.begun);
    /* what was brought meanwhile went with the delete, and nobody was told that it was kept: who brings it
     * waits for the lease, which ends by its time, and sends it again */
    assert_int_equal(live_rows(api), 0);
    assert_mlo_status(mlo_blob_size(api->blobs, &g_bringer.digest, NULL, &err), MLO_ENOTFOUND, &err);
    assert_int_equal(pg_fixture_number(api->pg->owner, "select count(*) from blob where going_until > now()"),
                     1);
    pg_fixture_number(api->pg->owner, "update blob set going_until = now()");
    pthread_join(g_bringer.thread, NULL);
    assert_int_equal(g_bringer.status, MLO_EIO);
    assert_int_equal(live_rows(api), 0);
    /* the next collector ends what that one began, and all is as ever */
    assert_mlo_ok(mlo_db_acquire(api->pg->server, &conn, &err), &err);
    assert_mlo_ok(mlo_gc_run(conn, &system, &options, &result, NULL, &err), &err);
    assert_int_equal(result.removed, 1);
    assert_mlo_ok(bring(&err), &err);
    assert_int_equal(live_rows(api), 1);
    assert_mlo_ok(mlo_blob_check(api->blobs, &g_bringer.digest, NULL, &err), &err);
    /* one that ends as it should leaves no lease */
    assert_mlo_ok(mlo_gc_run(conn, &system, &options, &result, NULL, &err), &err);
    assert_int_equal(result.removed, 1);
    assert_int_equal(
        pg_fixture_number(api->pg->owner, "select count(*) from blob where going_until is not null"), 0);
    assert_mlo_ok(bring(&err), &err);
    mlo_db_release(conn);
    mlo_blob_store_close(options.blobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(test_direct__parts_become_a_blob_when_they_were_read_back, setup),
        WITH(test_direct__an_address_is_for_exactly_that, setup),
        WITH(test_direct__verifying_goes_on, setup),
        WITH(test_direct__one_that_is_ended_meanwhile_is_not_lost, setup),
        WITH(test_direct__a_lost_one_was_not_published_empty, setup),
        WITH(test_direct__abandoned_ones_go, setup),
        WITH(test_direct__a_delete_that_nobody_noted_takes_no_new_bytes, setup),
        WITH(test_direct__not_unless_told_to, setup_downloads_only),
        WITH(test_direct__push_sends_parts_without_its_token, setup_outside),
        WITH(test_direct__push_goes_on_after_a_kill, setup_outside),
        WITH(test_direct__push_goes_round_a_bucket_that_it_cannot_reach, setup_nowhere),
        WITH(test_direct__push_goes_on_through_a_server_that_ended_it, setup_outside),
        WITH(test_direct__push_goes_round_a_store_that_lets_parts_be_replaced, setup_outside),
    };
    direct_fixture_start();
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    free(g_bytes);
    return s3_fixture_end(failed);
}
