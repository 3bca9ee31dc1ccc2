/* Webhooks over the REST API: what is shown, to whom, and what is refused. What is sent:
 * registry/test_webhooks.c. */
#include "tests/integration/api/api_fixture.h"

#define HOOKS "/v1/projects/demo/webhooks"

static void test_webhooks__are_made_changed_and_removed(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *admin = api->token[MLO_ADMIN];
    char path[128], first[128];
    api_call(
        api, &reply, "POST", HOOKS, admin,
        "{\"url\": \"https://example.com/in?key=hidden\", \"events\": [\"stage.promote\", \"run.finish\"]}",
        NULL);
    assert_http(&reply, 201);
    snprintf(first, sizeof first, "%s", mlo_json_str(reply.json, "secret", ""));
    assert_true(mlo_str_starts(first, "whsec_") && strlen(first) == 50);
    snprintf(path, sizeof path, HOOKS "/%lld", (long long)mlo_json_i64(reply.json, "id", 0));
    /* the secret is shown once, and the URL to admins only: its path may be a secret too */
    api_call(api, &reply, "GET", path, admin, NULL, NULL);
    assert_http(&reply, 200);
    assert_null(strstr(mlo_buf_str(&reply.body), "whsec_"));
    assert_int_equal(mlo_json_i64(reply.json, "secrets", 0), 1);
    assert_int_equal(json_array_size(json_object_get(reply.json, "events")), 2);
    api_call(api, &reply, "GET", HOOKS, api->token[MLO_APPROVER], NULL, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?action=webhook.", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "webhook.create");
    assert_holds(mlo_buf_str(&reply.body), "example.com");
    assert_null(strstr(mlo_buf_str(&reply.body), "hidden"));

    api_call(api, &reply, "PUT", path, admin, "{\"state\": \"paused\"}", NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "state", ""), "paused");
    assert_holds(mlo_buf_str(&reply.body), "run.finish");
    snprintf(path + strlen(path), sizeof path - strlen(path), "/pings");
    api_call(api, &reply, "POST", path, admin, "{}", NULL);
    assert_http(&reply, 409);
    *strrchr(path, '/') = '\0';
    api_call(api, &reply, "PUT", path, admin, "{\"state\": \"enabled\"}", NULL);
    assert_http(&reply, 200);
    snprintf(path + strlen(path), sizeof path - strlen(path), "/secrets");
    api_call(api, &reply, "POST", path, admin, "{\"overlap_s\": 60}", NULL);
    assert_http(&reply, 201);
    assert_string_not_equal(mlo_json_str(reply.json, "secret", ""), first);
    *strrchr(path, '/') = '\0';

    /* this server sends nothing: the ping waits, and can be read */
    snprintf(path + strlen(path), sizeof path - strlen(path), "/pings");
    api_call(api, &reply, "POST", path, admin, "{}", NULL);
    assert_http(&reply, 202);
    long long delivery = (long long)mlo_json_i64(reply.json, "delivery", 0);
    *strrchr(path, '/') = '\0';
    size_t base = strlen(path);
    snprintf(path + base, sizeof path - base, "/deliveries/%lld", delivery);
    api_call(api, &reply, "GET", path, admin, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "type", ""), "webhook.ping");
    assert_holds(mlo_json_str(reply.json, "body", ""), "\"project\":\"demo\"");
    snprintf(path + base, sizeof path - base, "/deliveries/%lld/replays", delivery);
    api_call(api, &reply, "POST", path, admin, "{}", NULL);
    assert_http(&reply, 409);
    snprintf(path + base, sizeof path - base, "/deliveries/999999/replays");
    api_call(api, &reply, "POST", path, admin, "{}", NULL);
    assert_http(&reply, 404);
    path[base] = '\0';
    api_call(api, &reply, "DELETE", path, admin, NULL, NULL);
    assert_http(&reply, 204);
    api_call(api, &reply, "GET", path, admin, NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_webhooks__bad_ones_are_refused(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{\"url\": \"http://example.com/\"}",
        "{\"url\": \"https://127.0.0.1/\"}",
        "{\"url\": \"https://[::1]:8443/\"}",
        "{\"url\": \"https://user@example.com/\"}",
        "{\"url\": \"https://example.com/\", \"events\": []}",
        "{\"url\": \"https://example.com/\", \"events\": [\"stage.\"]}",
        "{\"url\": \"https://example.com/\", \"events\": [7]}",
        "{\"url\": \"https://example.com/\", \"events\": \"stage.promote\"}",
        "{\"url\": \"https://example.com/\", \"state\": \"disabled\"}",
        "{\"url\": 7}",
    };
    struct api *api = *state;
    struct reply reply = {0};
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        api_call(api, &reply, "POST", HOOKS, api->token[MLO_ADMIN], bad[i], NULL);
        if (reply.status != 422)
            fail_msg("%s: %ld %s", bad[i], reply.status, mlo_buf_str(&reply.body));
    }
    api_call(api, &reply, "GET", HOOKS, api->token[MLO_ADMIN], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_webhooks__are_made_changed_and_removed, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_webhooks__bad_ones_are_refused, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
