/* Versions, promotions, rollbacks, history, audit: through the API. */
#include "tests/integration/api/api_fixture.h"

#include <pthread.h>

#define MODEL "/v1/projects/demo/models/cnn"

static void promote(struct api *api, struct reply *reply, const char *if_match, const char *stage,
                    int version, const char *reason, bool dry_run)
{
    char body[512], header[64];
    const char *headers[] = {header, NULL};
    snprintf(header, sizeof header, "If-Match: %s", if_match ? if_match : "");
    snprintf(body, sizeof body,
             "{\"stage\":\"%s\",\"version\":%d,\"variants\":{\"any\":\"source\"},\"reason\":\"%s\",\"dry_"
             "run\":%s}",
             stage, version, reason, dry_run ? "true" : "false");
    api_call(api, reply, "POST", MODEL "/promotions", api->token[MLO_PROMOTER], body,
             if_match ? headers : NULL);
}

static void rollback(struct api *api, struct reply *reply, const char *if_match)
{
    char header[64];
    const char *headers[] = {header, NULL};
    snprintf(header, sizeof header, "If-Match: %s", if_match);
    api_call(api, reply, "POST", MODEL "/rollbacks", api->token[MLO_PROMOTER],
             "{\"stage\":\"production\",\"reason\":\"it was slower\"}", headers);
}

static void test_stages__versions_count_up_and_the_same_is_the_same(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], body[512];
    api_version(api, "cnn", "one", "first");
    api_version(api, "cnn", "two", "second");
    api_upload(api, "demo", "three", digest);
    snprintf(body, sizeof body,
             "{\"files\":[{\"role\":\"model\",\"name\":\"m.onnx\",\"digest\":\"%s\"}],\"metadata\":{\"git\":"
             "\"abc\"}}",
             digest);
    api_call(api, &reply, "POST", MODEL "/versions", api->token[MLO_SUBMITTER], body, NULL);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "version", 0), 3);
    assert_holds(mlo_buf_str(&reply.headers), "Location: " MODEL "/versions/3");
    api_call(api, &reply, "POST", MODEL "/versions", api->token[MLO_SUBMITTER], body, NULL);
    assert_http(&reply, 200);
    assert_int_equal(mlo_json_i64(reply.json, "version", 0), 3);
    api_call(api, &reply, "GET", MODEL "/versions/latest", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(json_object_get(reply.json, "metadata"), "git", ""), "abc");
    api_call(api, &reply, "GET", MODEL "/versions/1/variants", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    const json_t *source = json_array_get(json_object_get(reply.json, "items"), 0);
    assert_string_equal(mlo_json_str(source, "variant", ""), "source");
    assert_true(json_is_null(json_object_get(source, "accuracy")));
    api_call(api, &reply, "GET", MODEL "/versions/1/variants/source/artifact", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), "one");
    assert_holds(mlo_buf_str(&reply.headers), "X-Mlopt-Variant: source");
    api_call(api, &reply, "GET", MODEL "/versions/9", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/v1/projects/demo/models?q=CN", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    api_call(api, &reply, "GET", "/v1/projects/demo/models?q=zzz", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
    api_call(api, &reply, "GET", "/v1/projects/demo/models?limit=0", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 422);
    reply_clear(&reply);
}

static void test_stages__a_move_needs_what_was_seen(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "GET", MODEL "/stages/production", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "ETag: \"0\"");
    assert_true(json_is_null(json_object_get(reply.json, "release")));
    promote(api, &reply, NULL, "production", 1, "first", false);
    assert_http(&reply, 428);
    assert_code(&reply, "precondition-required");
    promote(api, &reply, "\"7\"", "production", 1, "first", false);
    assert_http(&reply, 412);
    assert_code(&reply, "precondition-failed");
    promote(api, &reply, "0", "production", 1, "first", false);
    assert_http(&reply, 412);
    promote(api, &reply, "\"0\"", "production", 1, "  ", false);
    assert_http(&reply, 422);
    promote(api, &reply, "\"0\"", "moon", 1, "why", false);
    assert_http(&reply, 422);
    promote(api, &reply, "\"0\"", "production", 4, "why", false);
    assert_http(&reply, 404);
    promote(api, &reply, "\"0\"", "production", 1, "first", true);
    assert_http(&reply, 200);
    promote(api, &reply, "\"0\"", "production", 1, "first", false); /* the dry run moved nothing */
    assert_http(&reply, 201);
    assert_holds(mlo_buf_str(&reply.headers), "ETag: \"1\"");
    assert_string_equal(mlo_json_str(reply.json, "kind", ""), "promotion");
    promote(api, &reply, "\"1\"", "production", 1, "again", false);
    assert_http(&reply, 409);
    reply_clear(&reply);
}

struct racer {
    struct api *api;
    long status;
};

static void *race(void *arg)
{
    struct racer *racer = arg;
    struct reply reply = {0};
    promote(racer->api, &reply, "\"1\"", "production", 2, "me first", false);
    racer->status = reply.status;
    reply_clear(&reply);
    return NULL;
}

static void test_stages__of_many_at_once_one_wins(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct racer racers[100];
    pthread_t threads[100];
    int won = 0, stale = 0;
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    promote(api, &reply, "\"0\"", "production", 1, "first", false);
    assert_http(&reply, 201);
    for (size_t i = 0; i < MLO_COUNT(racers); i++) {
        racers[i] = (struct racer){.api = api};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (size_t i = 0; i < MLO_COUNT(racers); i++) {
        pthread_join(threads[i], NULL);
        won += racers[i].status == 201;
        stale += racers[i].status == 412;
    }
    assert_int_equal(won, 1);
    assert_int_equal(stale, (int)MLO_COUNT(racers) - 1);
    api_call(api, &reply, "GET", MODEL "/history", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 2);
    reply_clear(&reply);
}

static void test_stages__rollback_history_and_resolution(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char between[40], path[256];
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    promote(api, &reply, "\"0\"", "production", 1, "first", false);
    assert_http(&reply, 201);
    rollback(api, &reply, "\"1\"");
    assert_http(&reply, 409);
    mlo_clock_sleep_ms(20);
    mlo_clock_format(mlo_clock_utc_us(), between);
    mlo_clock_sleep_ms(20);
    promote(api, &reply, "\"1\"", "production", 2, "faster", false);
    assert_http(&reply, 201);
    api_call(api, &reply, "GET", MODEL "/stages/production/artifact?target=cpu:avx2", api->token[MLO_VIEWER],
             NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), "two");
    assert_holds(mlo_buf_str(&reply.headers), "X-Mlopt-Version: 2");
    rollback(api, &reply, "\"1\"");
    assert_http(&reply, 412);
    rollback(api, &reply, "\"2\"");
    assert_http(&reply, 201);
    assert_string_equal(mlo_json_str(reply.json, "kind", ""), "rollback");
    assert_int_equal(mlo_json_i64(json_object_get(reply.json, "to"), "version", 0), 1);
    api_call(api, &reply, "GET", MODEL "/history", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 3);
    snprintf(path, sizeof path, MODEL "/history?stage=production&at=%s", between);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    const json_t *then = json_array_get(json_object_get(reply.json, "items"), 0);
    assert_int_equal(mlo_json_i64(json_object_get(then, "to"), "version", 0), 1);
    api_call(api, &reply, "GET", MODEL "/history?at=yesterday-ish", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 422);
    api_call(api, &reply, "GET", "/v1/projects/demo/history", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 3);
    api_call(api, &reply, "GET", MODEL "/stages/staging/artifact", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_stages__a_client_verifies_the_audit_chain(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    api_version(api, "cnn", "one", "");
    promote(api, &reply, "\"0\"", "staging", 1, "first", false);
    assert_http(&reply, 201);
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?limit=500", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    const json_t *items = json_object_get(reply.json, "items");
    struct mlo_digest link = {{0}}, computed;
    char text[MLO_DIGEST_TEXT_SIZE];
    size_t count = json_array_size(items);
    assert_true(count >= 2);
    for (size_t i = count; i-- > 0;) { /* newest first: from the end */
        const json_t *item = json_array_get(items, i);
        const char *body = mlo_json_str(item, "body", "");
        uint64_t seq = (uint64_t)mlo_json_i64(item, "seq", 0);
        uint8_t number[8];
        struct mlo_hasher *hasher = mlo_hasher_new();
        for (int b = 0; b < 8; b++)
            number[b] = (uint8_t)(seq >> (8 * (7 - b)));
        assert_string_equal(mlo_json_str(item, "prev_hash", ""), mlo_digest_text(&link, text));
        mlo_hasher_update(hasher, link.bytes, sizeof link.bytes);
        mlo_hasher_update(hasher, number, sizeof number);
        mlo_hasher_update(hasher, body, strlen(body));
        mlo_hasher_final(hasher, &computed);
        mlo_hasher_free(hasher);
        assert_string_equal(mlo_json_str(item, "hash", ""), mlo_digest_text(&computed, text));
        link = computed;
    }
    api_call(api, &reply, "GET", "/v1/projects/demo/audit/verify", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_true(mlo_json_bool(reply.json, "ok", false));
    assert_string_equal(mlo_json_str(reply.json, "head", ""), mlo_digest_text(&link, text));
    static const char *const moments[] = {"AAA",
                                          "2026-1-1",
                                          "2026-13-01",
                                          "2026-01-31T12",
                                          "2026-01-31T24:00",
                                          "2026-01-31T12:60",
                                          "2026-01-31Z",
                                          "2026-01-31T12:00:00+01:00"};
    for (size_t i = 0; i < MLO_COUNT(moments); i++) {
        char url[128];
        snprintf(url, sizeof url, "/v1/projects/demo/audit?since=%s", moments[i]);
        api_call(api, &reply, "GET", url, api->token[MLO_VIEWER], NULL, NULL);
        assert_http(&reply, 422);
    }
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?since=2020-01-31&until=2020-02-01T12:00:00.5Z",
             api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?action=stage.&who=promoter", api->token[MLO_VIEWER],
             NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    const char *at = mlo_json_str(json_array_get(json_object_get(reply.json, "items"), 0), "at", "");
    char when[32], url[192];
    snprintf(when, sizeof when, "%s", at); /* a day, a minute and a second are whole, at both ends */
    for (size_t i = 0; i < 3; i++) {
        static const int lengths[] = {10, 16, 19};
        snprintf(url, sizeof url, "/v1/projects/demo/audit?action=stage.&since=%.*s&until=%.*s", lengths[i],
                 when, lengths[i], when);
        api_call(api, &reply, "GET", url, api->token[MLO_VIEWER], NULL, NULL);
        assert_http(&reply, 200);
        assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    }
    api_call(api, &reply, "GET", "/v1/projects/-/audit", api->token[MLO_APPROVER], NULL, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "GET", "/v1/projects/-/audit", api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 200);
    reply_clear(&reply);
}

static void test_stages__runs_are_submitted_once_per_key(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *key[] = {"Idempotency-Key: nightly-7", NULL}, *token = api->token[MLO_SUBMITTER];
    const char *body = "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: "
                       "{}\\n\",\"recipe_file\":\"mine.yaml\"}";
    char path[128];
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", token, body, key);
    assert_http(&reply, 201);
    long long id = (long long)mlo_json_i64(reply.json, "id", 0);
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", token, body, key);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "id", 0), id);
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/events?wait_ms=200", id);
    api_call(api, &reply, "GET", path, token, NULL, NULL);
    assert_http(&reply, 200);
    assert_true(json_is_array(json_object_get(reply.json, "items")));
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/cancel", id);
    api_call(api, &reply, "POST", path, token, "{\"reason\":\"a mistake\"}", NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "state", ""), "cancelled");
    api_call(api, &reply, "POST", path, token, NULL, NULL);
    assert_http(&reply, 409);
    api_call(api, &reply, "GET", "/v1/projects/demo/runs?state=cancelled", token, NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    api_call(api, &reply, "GET", "/v1/projects/demo/runs?state=odd", token, NULL, NULL);
    assert_http(&reply, 422);
    /* a recipe with a typo names its line and the nearest word */
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", token,
             "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimise: "
             "{}\\n\",\"recipe_file\":\"mine.yaml\"}",
             NULL);
    assert_http(&reply, 422);
    assert_holds(mlo_buf_str(&reply.body), "mine.yaml:4");
    assert_holds(mlo_buf_str(&reply.body), "optimize");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", token,
             "{\"model\":\"cnn\",\"recipe_name\":\"int8-cqu\"}", NULL);
    assert_http(&reply, 404);
    assert_holds(mlo_buf_str(&reply.body), "int8-cpu");
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_stages__versions_count_up_and_the_same_is_the_same),
        API_TEST(test_stages__a_move_needs_what_was_seen),
        API_TEST(test_stages__of_many_at_once_one_wins),
        API_TEST(test_stages__rollback_history_and_resolution),
        API_TEST(test_stages__a_client_verifies_the_audit_chain),
        API_TEST(test_stages__runs_are_submitted_once_per_key),
    };
    API_MAIN(tests);
}
