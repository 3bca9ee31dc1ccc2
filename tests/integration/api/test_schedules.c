/* Schedules over the REST API: who may, what is answered, what is refused. What they do is in
 * integration.service.schedules. */
#include "tests/integration/api/api_fixture.h"

#define SCHEDULES "/v1/projects/demo/schedules"
#define BODY(stage)                                                                                          \
    "{\"model\": \"cnn\", \"name\": \"nightly\", \"cron\": \"0 3 * * mon-fri\", \"time_zone\": "             \
    "\"Europe/Berlin\", \"stage\": \"" stage "\", \"recipe\": \"name: watch\\nsteps:\\n  - benchmark: "      \
    "{batch: [1]}\\n\", \"recipe_file\": \"watch.yaml\", \"set\": [\"benchmark.threads=2\"]}"

static void promote(struct api *api)
{
    static const char *const first[] = {"If-Match: \"0\"", NULL};
    struct reply reply = {0};
    api_call(api, &reply, "POST", "/v1/projects/demo/models/cnn/promotions", api->token[MLO_PROMOTER],
             "{\"stage\": \"production\", \"version\": 1, \"variants\": {\"any\": \"source\"}, \"reason\": "
             "\"first\"}",
             first);
    assert_http(&reply, 201);
    reply_clear(&reply);
}

static void test_schedules__live_by_their_routes(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *viewer = api->token[MLO_VIEWER], *submitter = api->token[MLO_SUBMITTER],
               *promoter = api->token[MLO_PROMOTER];
    api_version(api, "cnn", "a model", "");
    promote(api);
    api_call(api, &reply, "POST", SCHEDULES, viewer, BODY("staging"), NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", SCHEDULES, submitter, BODY("production"), NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", SCHEDULES, promoter, BODY("production"), NULL);
    assert_http(&reply, 201);
    assert_holds(mlo_buf_str(&reply.headers), "/v1/projects/demo/schedules/nightly");
    assert_int_equal(mlo_json_i64(reply.json, "priority", 0), -10);
    assert_holds(mlo_json_str(reply.json, "recipe", ""), "\"threads\":2");
    assert_int_equal(strlen(mlo_json_str(reply.json, "next_at", "")), strlen("2026-01-31T12:34:56.789Z"));
    api_call(api, &reply, "POST", SCHEDULES, promoter, BODY("production"), NULL);
    assert_http(&reply, 409);
    assert_code(&reply, "already-exists");
    api_call(api, &reply, "GET", SCHEDULES, viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    /* fired by hand, by whoever may submit */
    api_call(api, &reply, "POST", SCHEDULES "/nightly/firings", viewer, "{}", NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", SCHEDULES "/nightly/firings", submitter, "{}", NULL);
    assert_http(&reply, 201);
    assert_string_equal(mlo_json_str(reply.json, "state", ""), "running");
    assert_string_equal(mlo_json_str(reply.json, "fired_by", ""), "submitter");
    int64_t run = mlo_json_i64(json_array_get(json_object_get(reply.json, "runs"), 0), "run", 0);
    api_call(api, &reply, "POST", SCHEDULES "/nightly/firings", submitter, "{}", NULL);
    assert_http(&reply, 409);
    assert_holds(mlo_buf_str(&reply.body), "is still running");
    char path[96];
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld", (long long)run);
    api_call(api, &reply, "GET", path, viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "created_by", ""), "schedule nightly");
    /* a page of what happened */
    api_call(api, &reply, "GET", SCHEDULES "/nightly/firings?limit=1", viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    assert_true(json_is_null(json_object_get(reply.json, "next")));
    api_call(api, &reply, "GET", SCHEDULES "/nightly/firings?cursor=x", viewer, NULL, NULL);
    assert_http(&reply, 422);
    /* changed by who may promote */
    api_call(api, &reply, "POST", SCHEDULES "/nightly/pause", submitter, "{}", NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", SCHEDULES "/nightly/pause", promoter, "{\"reason\": \"a holiday\"}", NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "state", ""), "paused");
    api_call(api, &reply, "POST", SCHEDULES "/nightly/resume", promoter, "{}", NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "state", ""), "enabled");
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?action=schedule.", viewer, NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 4);
    assert_holds(mlo_buf_str(&reply.body), "a holiday");
    api_call(api, &reply, "DELETE", SCHEDULES "/nightly", submitter, NULL, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "DELETE", SCHEDULES "/nightly", promoter, NULL, NULL);
    assert_http(&reply, 204);
    api_call(api, &reply, "GET", SCHEDULES "/nightly", viewer, NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_schedules__have_a_page(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char viewer[160], promoter[160], csrf[96], body[128];
    snprintf(viewer, sizeof viewer, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    snprintf(promoter, sizeof promoter, "Cookie: mlopt_session=%s", api->token[MLO_PROMOTER]);
    const char *const as_viewer[] = {viewer, NULL}, *const as_promoter[] = {
                                                        promoter,
                                                        "Content-Type: application/x-www-form-urlencoded",
                                                        NULL};
    api_version(api, "cnn", "a model", "");
    promote(api);
    api_call(api, &reply, "GET", "/schedules/demo", NULL, NULL, as_viewer);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "mlopt schedule add demo/MODEL");
    api_call(api, &reply, "POST", SCHEDULES, api->token[MLO_PROMOTER], BODY("production"), NULL);
    assert_http(&reply, 201);
    api_call(api, &reply, "GET", "/schedules/demo", NULL, NULL, as_viewer);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "0 3 * * mon-fri");
    assert_holds(mlo_buf_str(&reply.body), "never");
    assert_null(strstr(mlo_buf_str(&reply.body), "/schedules/demo/nightly/")); /* no button for a viewer */
    api_call(api, &reply, "GET", "/schedules/demo", NULL, NULL, as_promoter);
    assert_holds(mlo_buf_str(&reply.body), "/schedules/demo/nightly/pause");
    reply_field(&reply, "csrf", csrf);
    api_call(api, &reply, "POST", "/schedules/demo/nightly/pause", NULL, "x=y", as_promoter);
    assert_http(&reply, 403);
    snprintf(body, sizeof body, "csrf=%s", csrf);
    api_call(api, &reply, "POST", "/schedules/demo/nightly/pause", NULL, body, as_promoter);
    assert_http(&reply, 303);
    api_call(api, &reply, "POST", "/schedules/demo/nightly/run", NULL, body, as_promoter);
    assert_http(&reply, 303);
    api_call(api, &reply, "POST", "/schedules/demo/nightly/explode", NULL, body, as_promoter);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/schedules/demo", NULL, NULL, as_promoter);
    assert_holds(mlo_buf_str(&reply.body), "/schedules/demo/nightly/resume");
    assert_holds(mlo_buf_str(&reply.body), "<a href=\"/runs/demo/1\">#1</a>");
    api_call(api, &reply, "GET", "/runs/demo/1", NULL, NULL, as_viewer);
    assert_holds(mlo_buf_str(&reply.body), "<a href=\"/schedules/demo\">schedule nightly</a>");
    reply_clear(&reply);
}

static void test_schedules__say_what_is_wrong(void **state)
{
    static const struct {
        const char *change, *with, *holds;
    } CASES[] = {
        {"0 3 * * mon-fri", "0 3 * * mon-", "cron expression, field 5 (day of the week)"},
        {"0 3 * * mon-fri", "0 3 30 feb *", "no date ever matches"},
        {"Europe/Berlin", "Berlin", "no time zone 'Berlin'"},
        {"nightly", "../x", "is no name"},
        {"staging", "stagin", "there is no stage 'stagin'"},
        {"benchmark: {batch: [1]}", "optimize: {}\\n  - benchmark: {}", "makes something"},
        {"benchmark: {batch: [1]}", "benchmrk: {}", "watch.yaml:3"},
        {"\"cnn\"", "\"gnn\"", "gnn"},
        {"\"stage\"", "\"priority\": 5000000000, \"stage\"", "priority is 5000000000, not -100 to 100"},
        {"\"stage\"", "\"paused\": \"yes\", \"stage\"", "paused"},
    };
    struct api *api = *state;
    struct reply reply = {0};
    api_version(api, "cnn", "a model", "");
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_buf body = MLO_BUF_INIT;
        const char *text = BODY("staging"), *at = strstr(text, CASES[i].change);
        mlo_buf_append(&body, text, (size_t)(at - text));
        mlo_buf_puts(&body, CASES[i].with);
        mlo_buf_puts(&body, at + strlen(CASES[i].change));
        api_call(api, &reply, "POST", SCHEDULES, api->token[MLO_SUBMITTER], mlo_buf_str(&body), NULL);
        if ((reply.status != 422 && reply.status != 404) || !strstr(mlo_buf_str(&reply.body), CASES[i].holds))
            fail_msg("%s: %ld %s", CASES[i].with, reply.status, mlo_buf_str(&reply.body));
        mlo_buf_clear(&body);
    }
    api_call(api, &reply, "POST", SCHEDULES, api->token[MLO_SUBMITTER], BODY("staging"), NULL);
    assert_http(&reply, 201); /* the stage may be empty still */
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_schedules__live_by_their_routes, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_schedules__have_a_page, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_schedules__say_what_is_wrong, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
