/* Workers and what their steps wrote, over HTTP and on the pages. */
#include "tests/integration/api/api_fixture.h"

#define WORKER "host-1-abc"

/* As the tables' owner: what a worker would have written. */
static void as_owner(struct api *api, const char *sql)
{
    struct mlo_db_conn *conn;
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &err), &err);
    mlo_db_release(conn);
}

static void add_worker(struct api *api)
{
    as_owner(api,
             "insert into mlopt.worker (id, host, pid, machine_class, targets, slots, state, lacking) values "
             "('" WORKER "', 'host', 1, 'test', '{any,cpu}', 2, 'active', '{namespaces}')");
}

static void ask(struct api *api, struct reply *reply, enum mlo_role role, const char *what, const char *body,
                int wanted)
{
    char path[96];
    snprintf(path, sizeof path, "/v1/workers/%s", what);
    api_call(api, reply, "POST", path, api->token[role], body, NULL);
    assert_http(reply, wanted);
}

static void test_workers__are_paused_resumed_and_drained(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    char bound[MLO_TOKEN_TEXT_SIZE];
    add_worker(api);
    ask(api, &reply, MLO_APPROVER, WORKER "/pause", "{}", 403);
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "bound", MLO_ADMIN, api->project, 0, bound, NULL, &err),
        &err);
    api_call(api, &reply, "POST", "/v1/workers/" WORKER "/pause", bound, "{}", NULL);
    assert_http(&reply, 403); /* of one project alone */
    ask(api, &reply, MLO_ADMIN, "nobody/pause", "{}", 404);
    ask(api, &reply, MLO_ADMIN, WORKER "/stop", "{}", 404);
    ask(api, &reply, MLO_ADMIN, WORKER "/pause", "{\"reason\":\"new disk\"}", 200);
    assert_string_equal(mlo_json_str(reply.json, "wish", ""), "pause");
    assert_string_equal(mlo_json_str(reply.json, "wish_reason", ""), "new disk");
    assert_string_equal(mlo_json_str(reply.json, "wish_by", ""), "admin");
    assert_string_equal(json_string_value(json_array_get(json_object_get(reply.json, "lacking"), 0)),
                        "namespaces");
    ask(api, &reply, MLO_ADMIN, WORKER "/resume", NULL, 200);
    assert_string_equal(mlo_json_str(reply.json, "wish", ""), "run");
    ask(api, &reply, MLO_ADMIN, WORKER "/drain", "{}", 200);
    ask(api, &reply, MLO_ADMIN, WORKER "/resume", "{}", 409);
    as_owner(api, "update mlopt.worker set state = 'stopped'");
    ask(api, &reply, MLO_ADMIN, WORKER "/drain", "{}", 409);
    reply_clear(&reply);
}

static void test_workers__have_a_page(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char cookie[160], csrf[160], body[256];
    const char *const headers[] = {cookie, NULL};
    static const char mark[] = "name=\"csrf\" value=\"";
    add_worker(api);
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    api_call(api, &reply, "GET", "/workers", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), WORKER);
    assert_holds(mlo_buf_str(&reply.body), "namespaces");
    assert_null(strstr(mlo_buf_str(&reply.body), "/workers/" WORKER "/pause")); /* no button for a viewer */
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_ADMIN]);
    api_call(api, &reply, "GET", "/workers", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "/workers/" WORKER "/pause");
    const char *at = strstr(mlo_buf_str(&reply.body), mark);
    assert_non_null(at);
    at += strlen(mark);
    snprintf(csrf, sizeof csrf, "%.*s", (int)strcspn(at, "\""), at);
    api_call(api, &reply, "POST", "/workers/" WORKER "/pause", NULL, "reason=x", headers);
    assert_http(&reply, 403); /* from another page */
    snprintf(body, sizeof body, "csrf=%s&reason=%%3Cb%%3Edisk", csrf);
    api_call(api, &reply, "POST", "/workers/" WORKER "/pause", NULL, body, headers);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/workers", NULL, NULL, headers);
    assert_holds(mlo_buf_str(&reply.body), "pause by admin: &lt;b&gt;disk");
    assert_holds(mlo_buf_str(&reply.body), "/workers/" WORKER "/resume");
    reply_clear(&reply);
}

static void test_workers__say_what_they_have_and_jobs_what_they_lack(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char cookie[160], path[96];
    const char *const headers[] = {cookie, NULL};
    add_worker(api);
    as_owner(api, "update mlopt.worker set memory_bytes = 16e9, disk_bytes = 100e9, gpus = "
                  "'[{\"uuid\":\"GPU-<b>\",\"model\":\"H100\",\"memory_bytes\":80000000000}]'");
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_SUBMITTER],
             "{\"model\":\"cnn\",\"version\":1,\"recipe\":\"name: x\\ntarget: any\\nneeds: {memory: "
             "64GB}\\nsteps:\\n  - optimize: {}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld", (long long)mlo_json_i64(reply.json, "id", 0));
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_holds(mlo_buf_str(&reply.body), "needs 64.0 GB of memory; the largest worker has 16.0 GB");
    api_call(api, &reply, "GET", "/v1/queue", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "stuck")), 1);
    api_call(api, &reply, "GET", "/v1/workers", api->token[MLO_VIEWER], NULL, NULL);
    const json_t *gpu =
        json_array_get(json_object_get(json_array_get(json_object_get(reply.json, "items"), 0), "gpus"), 0);
    assert_string_equal(mlo_json_str(gpu, "model", ""), "H100");
    assert_true(json_is_null(json_object_get(gpu, "job")));
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    api_call(api, &reply, "GET", "/workers", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "16.0 GB of memory");
    assert_holds(mlo_buf_str(&reply.body), "GPU-&lt;b&gt;");
    assert_holds(mlo_buf_str(&reply.body), "the largest worker has 16.0 GB");
    reply_clear(&reply);
}

static void test_workers__steps_have_a_log(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char cookie[160], path[96];
    const char *const headers[] = {cookie, NULL};
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_SUBMITTER],
             "{\"model\":\"cnn\",\"version\":1,\"recipe\":\"name: x\\ntarget: any\\nsteps:\\n  - optimize: "
             "{}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    long long run = mlo_json_i64(reply.json, "id", 0);
    as_owner(
        api,
        "insert into mlopt.attempt (job, number, token, worker) select id, 1, gen_random_uuid(), 'w' from "
        "mlopt.job; insert into mlopt.attempt_log (job, number, part, text) select id, 1, p.part, p.text "
        "from mlopt.job, (values (1, 'two'), (0, E'<i>one\\n')) p(part, text)");
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/log", run);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    const json_t *items = json_object_get(reply.json, "items");
    assert_int_equal(json_array_size(items), 1);
    assert_string_equal(mlo_json_str(json_array_get(items, 0), "text", ""), "<i>one\ntwo");
    assert_string_equal(mlo_json_str(json_array_get(items, 0), "step", ""), "optimize");
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/log?job=999999", run);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/log?job=x", run);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 422);
    api_call(api, &reply, "GET", "/v1/projects/demo/runs/999999/log", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    snprintf(path, sizeof path, "/runs/demo/%lld", run);
    api_call(api, &reply, "GET", path, NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "&lt;i&gt;one\ntwo</pre>");
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_workers__are_paused_resumed_and_drained),
        API_TEST(test_workers__have_a_page),
        API_TEST(test_workers__say_what_they_have_and_jobs_what_they_lack),
        API_TEST(test_workers__steps_have_a_log),
    };
    API_MAIN(tests);
}
