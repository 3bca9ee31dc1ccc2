/* A project's queue over the REST API and the pages: share, limits, pause, usage, runs taken up again. */
#include "tests/integration/api/api_fixture.h"

#define QUEUE "/v1/projects/demo/queue"
#define USAGE "/v1/projects/demo/usage"

static void run_sql(struct api *api, const char *sql)
{
    struct mlo_db_conn *conn;
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &err), &err);
    mlo_db_release(conn);
}

static void test_queue__is_changed_by_admins_and_audited(void **state)
{
    static const char *const bad[] = {
        "{\"weight\": 0}",        "{\"weight\": \"2\"}",           "{\"max_running\": -1}",
        "{\"max_running\": 1.5}", "{\"gpu_seconds_month\": true}", "{\"paused\": 1}",
        "{\"max_runing\": 3}",    "{\"storage_bytes\": -1}",       "{\"storage_bytes\": 1.5}",
    };
    struct api *api = *state;
    struct reply reply = {0};
    const char *admin = api->token[MLO_ADMIN];
    api_call(api, &reply, "GET", QUEUE, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_float_equal(mlo_json_f64(reply.json, "weight", 0), 1, 0);
    assert_true(json_is_null(json_object_get(reply.json, "max_running")));
    api_call(api, &reply, "PUT", QUEUE, api->token[MLO_APPROVER], "{\"paused\": true}", NULL);
    assert_http(&reply, 403);
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        api_call(api, &reply, "PUT", QUEUE, admin, bad[i], NULL);
        if (reply.status != 422)
            fail_msg("%s: %ld %s", bad[i], reply.status, mlo_buf_str(&reply.body));
    }
    api_call(api, &reply, "PUT", QUEUE, admin,
             "{\"weight\": 2.5, \"max_running\": 4, \"gpu_seconds_month\": 3600, \"paused\": true, "
             "\"reason\": \"the quarter's accounts\"}",
             NULL);
    assert_http(&reply, 200);
    assert_float_equal(mlo_json_f64(reply.json, "weight", 0), 2.5, 0);
    assert_int_equal(mlo_json_i64(reply.json, "max_running", 0), 4);
    assert_true(mlo_json_bool(reply.json, "paused", false));
    assert_string_equal(mlo_json_str(reply.json, "paused_reason", ""), "the quarter's accounts");
    assert_false(json_is_null(json_object_get(reply.json, "paused_at")));
    /* what is not given stays, null removes */
    api_call(api, &reply, "PUT", QUEUE, admin, "{\"max_running\": null, \"paused\": false}", NULL);
    assert_http(&reply, 200);
    assert_float_equal(mlo_json_f64(reply.json, "weight", 0), 2.5, 0);
    assert_true(json_is_null(json_object_get(reply.json, "max_running")));
    assert_float_equal(mlo_json_f64(reply.json, "gpu_seconds_month", 0), 3600, 0);
    assert_false(mlo_json_bool(reply.json, "paused", true));
    assert_true(json_is_null(json_object_get(reply.json, "paused_by")));
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?action=queue.", admin, NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 2);
    assert_holds(mlo_buf_str(&reply.body), "the quarter's accounts");
    reply_clear(&reply);
}

static void test_storage__is_limited(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *admin = api->token[MLO_ADMIN], *submitter = api->token[MLO_SUBMITTER];
    struct mlo_digest small, large;
    char text[MLO_DIGEST_TEXT_SIZE], path[160], body[4096], limit[64];
    memset(body, 'x', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    mlo_digest_of("tiny", 4, &small);
    mlo_digest_of(body, strlen(body), &large);
    api_call(api, &reply, "GET", QUEUE, admin, NULL, NULL);
    assert_http(&reply, 200);
    int64_t used = mlo_json_i64(reply.json, "storage_used", -1);
    assert_true(used >= 0);
    snprintf(limit, sizeof limit, "{\"storage_bytes\": %lld}", (long long)used + 100);
    api_call(api, &reply, "PUT", QUEUE, admin, limit, NULL);
    assert_http(&reply, 200);
    assert_int_equal(mlo_json_i64(reply.json, "storage_bytes", 0), used + 100);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", mlo_digest_text(&large, text));
    api_call(api, &reply, "PUT", path, submitter, body, NULL);
    assert_http(&reply, 507);
    assert_code(&reply, "quota-exceeded");
    assert_holds(mlo_buf_str(&reply.body), "the project demo would keep");
    assert_holds(mlo_buf_str(&reply.body), "--storage");
    api_call(api, &reply, "POST", "/v1/projects/demo/uploads", submitter, "{\"size\": 101}", NULL);
    assert_http(&reply, 507);
    api_call(api, &reply, "POST", "/v1/projects/demo/uploads", submitter, "{\"size\": 100}", NULL);
    assert_http(&reply, 201);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", mlo_digest_text(&small, text));
    api_call(api, &reply, "PUT", path, submitter, "tiny", NULL);
    assert_http(&reply, 201);
    /* who has it already brings nothing new */
    run_sql(api, "update project_queue set storage_bytes = 0");
    api_call(api, &reply, "PUT", path, submitter, "tiny", NULL);
    assert_http(&reply, 200);
    char cookie[160];
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", admin);
    const char *const headers[] = {cookie, NULL};
    api_call(api, &reply, "GET", "/usage/demo", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "<dt>Storage</dt>");
    api_call(api, &reply, "PUT", QUEUE, admin, "{\"storage_bytes\": null}", NULL);
    assert_http(&reply, 200);
    assert_int_equal(mlo_json_i64(reply.json, "storage_used", 0), used + 4);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", mlo_digest_text(&large, text));
    api_call(api, &reply, "PUT", path, submitter, body, NULL);
    assert_http(&reply, 201);
    reply_clear(&reply);
}

static void put_digest(struct api *api, struct reply *reply, const char *path, const char *text,
                       struct mlo_digest *digest)
{
    char url[256], name[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of(text, strlen(text), digest);
    snprintf(url, sizeof url, "%s?digest=%s", path, mlo_digest_text(digest, name));
    api_call(api, reply, "PUT", url, api->token[MLO_SUBMITTER], NULL, NULL);
}

static void begin_upload(struct api *api, char path[160], const char *text)
{
    struct reply reply = {0};
    api_call(api, &reply, "POST", "/v1/projects/demo/uploads", api->token[MLO_SUBMITTER], "{}", NULL);
    assert_http(&reply, 201);
    snprintf(path, 160, "/v1/projects/demo/uploads/%s", mlo_json_str(reply.json, "id", "?"));
    api_call(api, &reply, "PATCH", path, api->token[MLO_SUBMITTER], text, NULL);
    assert_http(&reply, 202);
    reply_clear(&reply);
}

/* What the limit refuses is not in the store afterwards, in whatever way it came. */
static void test_storage__keeps_nothing_of_what_it_refuses(void **state)
{
    static const char *const chunked[] = {"Transfer-Encoding: chunked", NULL};
    struct api *api = *state;
    struct reply reply = {0};
    const char *submitter = api->token[MLO_SUBMITTER];
    struct mlo_digest digest;
    char name[MLO_DIGEST_TEXT_SIZE], path[160], upload[160], again[160];
    api_version(api, "cnn", "has it", "");
    begin_upload(api, upload, "in pieces");
    begin_upload(api, again, "has it");
    run_sql(api, "insert into project_queue (project) select id from project where name = 'demo' "
                 "on conflict do nothing");
    run_sql(api, "update project_queue set storage_bytes = project_storage(project) + 5");
    mlo_digest_of("of no said size", 15, &digest);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", mlo_digest_text(&digest, name));
    api_call(api, &reply, "PUT", path, submitter, "of no said size", chunked);
    assert_http(&reply, 507);
    assert_code(&reply, "quota-exceeded");
    assert_false(mlo_blob_exists(api->blobs, &digest));
    put_digest(api, &reply, upload, "in pieces", &digest);
    assert_http(&reply, 507);
    assert_code(&reply, "quota-exceeded");
    assert_false(mlo_blob_exists(api->blobs, &digest));
    api_call(api, &reply, "PATCH", upload, submitter, "more", NULL);
    assert_http(&reply, 507);
    run_sql(api, "update project_queue set storage_bytes = 0");
    put_digest(api, &reply, again, "has it", &digest); /* that brings nothing new */
    assert_http(&reply, 201);
    run_sql(api, "update project_queue set storage_bytes = null");
    put_digest(api, &reply, upload, "in pieces", &digest);
    assert_http(&reply, 201);
    assert_true(mlo_blob_exists(api->blobs, &digest));
    reply_clear(&reply);
}

static void test_usage__is_listed_and_exported(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *viewer = api->token[MLO_VIEWER];
    run_sql(
        api,
        "insert into usage_month select id, '2026-01-01', 3, 1, 1, 10.5, 7.25, 2, 100, 50 from project where "
        "name = 'demo'; insert into usage_month select id, '2026-02-01', 1, 0, 0, 1, 1, 0, 7, 0 from project "
        "where name = 'demo'");
    api_call(api, &reply, "GET", USAGE, viewer, NULL, NULL);
    assert_http(&reply, 200);
    const json_t *first = json_array_get(json_object_get(reply.json, "items"), 0);
    assert_string_equal(mlo_json_str(first, "month", ""), "2026-02");
    assert_int_equal(mlo_json_i64(first, "read_bytes", 0), 7);
    api_call(api, &reply, "GET", USAGE "?format=csv", viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(
        mlo_buf_str(&reply.body),
        "project,month,attempts,reused,failed,wall_s,cpu_s,gpu_s,read_bytes,written_bytes\r\n"
        "demo,2026-02,1,0,0,1.000,1.000,0.000,7,0\r\ndemo,2026-01,3,1,1,10.500,7.250,2.000,100,50\r\n");
    api_call(api, &reply, "GET", USAGE "?format=xls", viewer, NULL, NULL);
    assert_http(&reply, 422);
    reply_clear(&reply);
}

static void test_requeue__takes_a_failed_run_up_again(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *token = api->token[MLO_SUBMITTER];
    char path[128], of[96], sql[400];
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", token,
             "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: {}\\n  - "
             "to-float16: "
             "{}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    long long run = (long long)mlo_json_i64(reply.json, "id", 0);
    snprintf(of, sizeof of, "/v1/projects/demo/runs/%lld", run);
    snprintf(path, sizeof path, "%s/requeue", of);
    api_call(api, &reply, "POST", path, token, NULL, NULL);
    assert_http(&reply, 409); /* it waits as it is */
    snprintf(
        sql, sizeof sql,
        "update job set state = case position when 0 then 'failed' else 'cancelled' end, attempts = 3, error "
        "= "
        "'{\"code\":\"internal\",\"message\":\"m\"}', finished_at = now() where run = %lld; update run set "
        "state = "
        "'failed', finished_at = now(), error = '{\"code\":\"internal\",\"message\":\"m\"}' where id = %lld",
        run, run);
    run_sql(api, sql);
    api_call(api, &reply, "POST", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", path, token, "{\"reason\": \"the disk was full\"}", NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "state", ""), "queued");
    assert_true(json_is_null(json_object_get(reply.json, "error")));
    const json_t *jobs = json_object_get(reply.json, "jobs");
    assert_string_equal(mlo_json_str(json_array_get(jobs, 0), "state", ""), "queued");
    assert_int_equal(mlo_json_i64(json_array_get(jobs, 0), "attempt", -1), 0);
    assert_string_equal(mlo_json_str(json_array_get(jobs, 1), "state", ""), "blocked");
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?action=run.requeue", token, NULL, NULL);
    assert_holds(mlo_buf_str(&reply.body), "the disk was full");
    /* all jobs are done, and an expectation did not hold: no try helps */
    snprintf(sql, sizeof sql,
             "update job set state = 'succeeded', finished_at = now() where run = %lld; update run set state "
             "= 'failed', "
             "finished_at = now() where id = %lld",
             run, run);
    run_sql(api, sql);
    api_call(api, &reply, "POST", path, token, NULL, NULL);
    assert_http(&reply, 409);
    assert_holds(mlo_buf_str(&reply.body), "expectation");
    reply_clear(&reply);
}

static void test_plan__submits_nothing(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *body =
        "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: {}\\n\"}";
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/plans", api->token[MLO_VIEWER], body, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", "/v1/projects/demo/plans", api->token[MLO_SUBMITTER], body, NULL);
    assert_http(&reply, 200);
    const json_t *job = json_array_get(json_object_get(reply.json, "jobs"), 0);
    assert_string_equal(mlo_json_str(job, "step", ""), "optimize");
    assert_false(mlo_json_bool(job, "cached", true));
    assert_true(mlo_str_starts(mlo_json_str(job, "derivation", ""), "sha256:"));
    api_call(api, &reply, "GET", "/v1/projects/demo/runs", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_queue__is_changed_by_admins_and_audited, api_setup,
                                        api_teardown),
        cmocka_unit_test_setup_teardown(test_storage__is_limited, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_storage__keeps_nothing_of_what_it_refuses, api_setup,
                                        api_teardown),
        cmocka_unit_test_setup_teardown(test_usage__is_listed_and_exported, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_plan__submits_nothing, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_requeue__takes_a_failed_run_up_again, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
