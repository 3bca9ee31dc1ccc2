/* Deleting, bringing back, archiving, collecting, checking over HTTP. */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/integration/api/api_fixture.h"

#define VERSIONS "/v1/projects/demo/models/cnn/versions"
#define DELETIONS "/v1/projects/demo/deletions"

static void post(struct api *api, struct reply *reply, const char *path, const char *body, int wanted)
{
    api_call(api, reply, "POST", path, api->token[MLO_ADMIN], body, NULL);
    assert_http(reply, wanted);
}

static void get(struct api *api, struct reply *reply, const char *path, int wanted)
{
    api_call(api, reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(reply, wanted);
}

static void test_upkeep__delete_and_undelete(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[200];
    const char *etag[] = {"If-Match: \"0\"", NULL};
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/models/cnn/promotions", api->token[MLO_ADMIN],
             "{\"version\":1,\"variants\":{\"any\":\"source\"},\"stage\":\"production\",\"reason\":\"r\"}",
             etag);
    assert_http(&reply, 201);
    post(api, &reply, DELETIONS, "{\"model\":\"cnn\",\"version\":1,\"reason\":\"old\"}", 409);
    assert_code(&reply, "conflict");
    assert_holds(json_string_value(json_array_get(json_object_get(reply.json, "blockers"), 0)), "production");
    post(api, &reply, DELETIONS, "{\"model\":\"cnn\",\"version\":2}", 422); /* why? */
    post(api, &reply, DELETIONS, "{\"version\":2,\"reason\":\"r\"}", 422);
    post(api, &reply, DELETIONS, "{\"model\":\"cnn\",\"version\":2,\"dry_run\":true}", 200);
    get(api, &reply, VERSIONS "/2", 200);
    post(api, &reply, DELETIONS, "{\"model\":\"cnn\",\"version\":2,\"reason\":\"wrong data\"}", 201);
    assert_string_equal(mlo_json_str(reply.json, "object", ""), "demo/cnn@2");
    long long id = mlo_json_i64(reply.json, "id", 0);
    get(api, &reply, VERSIONS "/2/variants/source/artifact", 404);
    get(api, &reply, VERSIONS "/2/variants", 404);
    get(api, &reply, VERSIONS "/2/evidence", 200); /* what stays */
    get(api, &reply, VERSIONS "/2", 200);
    assert_int_equal(mlo_json_i64(reply.json, "deletion", 0), id);
    get(api, &reply, VERSIONS, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    get(api, &reply, VERSIONS "/latest", 200);
    assert_int_equal(mlo_json_i64(reply.json, "version", 0), 1);
    get(api, &reply, DELETIONS, 200);
    assert_string_equal(mlo_json_str(json_array_get(json_object_get(reply.json, "items"), 0), "state", ""),
                        "deleted");
    snprintf(path, sizeof path, DELETIONS "/%lld/undo", id);
    post(api, &reply, path, "{}", 422);
    post(api, &reply, path, "{\"reason\":\"it was needed\"}", 200);
    get(api, &reply, VERSIONS "/2/variants/source/artifact", 200);
    post(api, &reply, path, "{\"reason\":\"again\"}", 409);
    post(api, &reply, DELETIONS "/999/undo", "{\"reason\":\"r\"}", 404);
    reply_clear(&reply);
}

static void test_upkeep__archive(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    post(api, &reply, VERSIONS "/2/archive", "{\"reason\":\"superseded\"}", 200);
    assert_string_equal(mlo_json_str(json_object_get(reply.json, "archived"), "reason", ""), "superseded");
    get(api, &reply, VERSIONS "/latest", 200);
    assert_int_equal(mlo_json_i64(reply.json, "version", 0), 1);
    post(api, &reply, VERSIONS "/2/unarchive", "{\"reason\":\"needed\"}", 200);
    assert_true(json_is_null(json_object_get(reply.json, "archived")));
    reply_clear(&reply);
}

static void test_upkeep__collects_what_was_uploaded_for_nothing(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], path[200];
    api_version(api, "cnn", "one", "");
    api_upload(api, "demo", "for nothing", digest);
    post(api, &reply, "/v1/gc", "{}", 200);
    assert_int_equal(mlo_json_i64(reply.json, "removed", -1), 0);
    post(api, &reply, "/v1/gc", "{\"dry_run\":true,\"grace_s\":0}", 200);
    assert_int_equal(mlo_json_i64(reply.json, "marked_bytes", 0), 11);
    assert_true(json_is_null(json_object_get(reply.json, "next")));
    post(api, &reply, "/v1/gc", "{\"grace_s\":-1}", 422);
    post(api, &reply, "/v1/gc", "{\"cursor\":\"elsewhere\"}", 422);
    post(api, &reply, "/v1/gc", "{\"grace_s\":0}", 200);
    assert_int_equal(mlo_json_i64(reply.json, "removed", 0), 1);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", digest);
    get(api, &reply, path, 404);
    api_upload(api, "demo", "for nothing", digest); /* comes back as if it had never been */
    get(api, &reply, path, 200);
    post(api, &reply, "/v1/fsck", "{\"bytes\":true}", 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "problems")), 0);
    assert_true(json_is_null(json_object_get(reply.json, "next")));
    reply_clear(&reply);
}

/* A row whose bytes were lost: HEAD says so, and the same upload heals it. */
static void test_upkeep__lost_bytes_are_uploaded_again(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_digest d;
    struct mlo_error err = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], path[200];
    api_version(api, "cnn", "one", "");
    mlo_digest_of("one", 3, &d);
    assert_mlo_ok(mlo_blob_remove(api->blobs, &d, &err), &err);
    post(api, &reply, "/v1/fsck", "{}", 200);
    const json_t *row = json_array_get(json_object_get(reply.json, "problems"), 0);
    assert_string_equal(mlo_json_str(row, "kind", ""), "missing");
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", mlo_digest_text(&d, digest));
    api_call(api, &reply, "HEAD", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 404);
    api_upload(api, "demo", "one", digest);
    get(api, &reply, VERSIONS "/1/variants/source/artifact", 200);
    assert_string_equal(mlo_buf_str(&reply.body), "one");
    post(api, &reply, "/v1/fsck", "{\"bytes\":true}", 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "problems")), 0);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_upkeep__delete_and_undelete),
        API_TEST(test_upkeep__archive),
        API_TEST(test_upkeep__collects_what_was_uploaded_for_nothing),
        API_TEST(test_upkeep__lost_bytes_are_uploaded_again),
    };
    API_MAIN(tests);
}
