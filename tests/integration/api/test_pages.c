/* The pages: signing in, escaping, forms. What they look like is shown by the browser test. */
#include "tests/integration/api/api_fixture.h"

#include "api/html/html.h"

static char g_cookie[160];

/* The cookie header of a session with this token, made by signing in with the form. */
static const char *const *session(struct api *api, const char *token)
{
    static const char *headers[] = {g_cookie, NULL};
    struct reply reply = {0};
    char body[160];
    snprintf(body, sizeof body, "token=%s&next=%%2Fruns", token);
    api_call(api, &reply, "POST", "/login", NULL, body, NULL);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /runs\r\n");
    assert_holds(mlo_buf_str(&reply.headers), "; HttpOnly; SameSite=Strict");
    reply_clear(&reply);
    snprintf(g_cookie, sizeof g_cookie, "Cookie: mlopt_session=%s", token);
    return headers;
}

/* A page that one role may not open and another may: the session of the latter, and what its forms send. */
static const char *const *open_form(struct api *api, struct reply *reply, const char *path,
                                    enum mlo_role refused, enum mlo_role role, char csrf[96])
{
    api_call(api, reply, "GET", path, NULL, NULL, session(api, api->token[refused]));
    assert_http(reply, 403);
    const char *const *cookie = session(api, api->token[role]);
    api_call(api, reply, "GET", path, NULL, NULL, cookie);
    assert_http(reply, 200);
    reply_field(reply, "csrf", csrf);
    return cookie;
}

static void test_pages__html_escapes_what_is_not_the_format(void **state)
{
    struct mlo_buf out = MLO_BUF_INIT;
    MLO_UNUSED(state);
    HTML(&out, "<b title=\"%s\">%s</b> %d %5.2f %zu %lld%% %c", "\"'", "<script>&", -3, 2.5, (size_t)7, 8LL,
         '<');
    assert_string_equal(mlo_buf_str(&out),
                        "<b title=\"&quot;&#39;\">&lt;script&gt;&amp;</b> -3  2.50 7 8% &lt;");
    mlo_buf_clear(&out);
}

static void test_pages__facts_are_shown_and_found(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], body[1024], elsewhere[MLO_TOKEN_TEXT_SIZE];
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    int64_t other;
    api_upload(api, "demo", "weights", digest);
    snprintf(body, sizeof body,
             "{\"files\": [{\"role\": \"model\", \"name\": \"m.onnx\", \"digest\": \"%s\"}], \"facts\": "
             "{\"tags\": {\"team\": \"<b>&\"}, \"metrics\": {\"val/top1\": 0.875}, \"code\": {\"dirty\": "
             "true, \"commit\": \"0123456789abcdef0123456789abcdef01234567\"}}}",
             digest);
    api_call(api, &reply, "POST", "/v1/projects/demo/models/cnn/versions", api->token[MLO_SUBMITTER], body,
             NULL);
    assert_http(&reply, 201);
    const char *search = "/v1/projects/demo/search?filter=metric.val/top1%3E0.8,tag.team%3D%22%3Cb%3E%26%22";
    api_call(api, &reply, "GET", search, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    const json_t *item = json_array_get(json_object_get(reply.json, "items"), 0);
    assert_string_equal(mlo_json_str(item, "model", ""), "cnn");
    assert_true(mlo_json_bool(json_object_get(json_object_get(item, "facts"), "code"), "dirty", false));
    assert_true(json_is_null(json_object_get(reply.json, "next")));
    api_call(api, &reply, "GET", "/v1/projects/demo/search?filter=top1", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 422);
    assert_holds(mlo_buf_str(&reply.body), "filter, column 1");
    /* who is in another project is not told that there is one */
    assert_mlo_ok(mlo_project_ensure(api->pg->conn, &system, "other", &other, &err), &err);
    assert_mlo_ok(mlo_token_create(api->pg->conn, &system, "x", MLO_ADMIN, other, 0, elsewhere, NULL, &err),
                  &err);
    api_call(api, &reply, "GET", search, elsewhere, NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/v1/projects/other/search", elsewhere, NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);

    const char *const *cookie = session(api, api->token[MLO_VIEWER]);
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "&lt;b&gt;&amp;");
    assert_holds(mlo_buf_str(&reply.body), "0.875");
    assert_holds(mlo_buf_str(&reply.body), "changed since");
    assert_null(strstr(mlo_buf_str(&reply.body), "<b>&"));
    api_call(api, &reply, "GET", "/search/demo?filter=metric.val/top1%3E0.8", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "/models/demo/cnn?version=1");
    api_call(api, &reply, "GET", "/search/demo?filter=%3Cscript%3E", NULL, NULL, cookie);
    assert_http(&reply, 422);
    assert_holds(mlo_buf_str(&reply.body), "value=\"&lt;script&gt;\"");
    reply_clear(&reply);
}

static void test_pages__a_one_time_link_signs_in_once(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    char code[48], path[128], token[MLO_TOKEN_TEXT_SIZE], log[1024] = "";
    int64_t id;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_mlo_ok(mlo_http_login_code(api->http, api->token[MLO_ADMIN], code, &err), &err);
    snprintf(path, sizeof path, "/login?token=%s", code);
    api_call(api, &reply, "GET", path, NULL, NULL, NULL);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /\r\n");
    assert_holds(mlo_buf_str(&reply.headers), api->token[MLO_ADMIN]);
    mlo_log_setup(MLO_LOG_WARN, MLO_LOG_TEXT, fds[1], "test");
    api_call(api, &reply, "GET", path, NULL, NULL, NULL);
    assert_http(&reply, 401);
    assert_holds(mlo_buf_str(&reply.body), "used already");
    assert_mlo_ok(mlo_token_create(api->pg->conn, &system, "gone", MLO_VIEWER, 0, 0, token, &id, &err), &err);
    assert_mlo_ok(mlo_http_login_code(api->http, token, code, &err), &err);
    assert_mlo_ok(mlo_token_revoke(api->pg->conn, &system, id, &err), &err);
    snprintf(path, sizeof path, "/login?token=%s", code);
    api_call(api, &reply, "GET", path, NULL, NULL, NULL);
    assert_http(&reply, 401);
    assert_holds(mlo_buf_str(&reply.body), "does not work any more");
    mlo_log_setup(MLO_LOG_INFO, MLO_LOG_TEXT, 2, "mlopt");
    close(fds[1]);
    assert_true(read(fds[0], log, sizeof log - 1) > 0);
    close(fds[0]);
    const char *first = strstr(log, "a sign-in was refused"); /* both are told */
    assert_non_null(first);
    assert_non_null(strstr(first + 1, "a sign-in was refused"));
    api_call(api, &reply, "POST", "/login", NULL, "token=wrong&next=/", NULL);
    assert_http(&reply, 401);
    /* signing in leads to no other server */
    snprintf(path, sizeof path, "token=%s&next=//evil.example", api->token[MLO_VIEWER]);
    api_call(api, &reply, "POST", "/login", NULL, path, NULL);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /\r\n");
    reply_clear(&reply);
}

static void test_pages__who_signs_in_and_out_is_in_the_log(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    char bound[MLO_TOKEN_TEXT_SIZE], body[160], csrf[96];
    int64_t id;
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "bound", MLO_VIEWER, api->project, 0, bound, &id, &err),
        &err);
    api_call(api, &reply, "POST", "/login", NULL, "token=mlopt_wrong", NULL);
    assert_http(&reply, 401);
    const char *const *cookie = session(api, bound);
    api_call(api, &reply, "GET", "/audit/demo", NULL, NULL, cookie);
    assert_http(&reply, 200);
    reply_field(&reply, "csrf", csrf);
    snprintf(body, sizeof body, "csrf=%s", csrf);
    api_call(api, &reply, "POST", "/logout", NULL, body, cookie);
    assert_http(&reply, 303);
    /* in the log of its project; a token of all in the installation's */
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?action=session.", bound, NULL, NULL);
    assert_http(&reply, 200);
    const json_t *items = json_object_get(reply.json, "items"), *out = json_array_get(items, 0),
                 *in = json_array_get(items, 1);
    assert_int_equal(json_array_size(items), 2);
    assert_string_equal(mlo_json_str(out, "action", ""), "session.sign-out");
    assert_string_equal(mlo_json_str(in, "action", ""), "session.sign-in");
    assert_string_equal(mlo_json_str(in, "who", ""), "bound");
    assert_string_equal(mlo_json_str(in, "via", ""), "web");
    assert_string_equal(mlo_json_str(in, "address", ""), "127.0.0.1");
    assert_string_equal(mlo_json_str(json_object_get(in, "after"), "how", ""), "token");
    assert_null(strstr(mlo_buf_str(&reply.body), bound));
    snprintf(body, sizeof body, "token=%s", api->token[MLO_ADMIN]);
    api_call(api, &reply, "POST", "/login", NULL, body, NULL);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/v1/projects/-/audit?action=session.", api->token[MLO_ADMIN], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    reply_clear(&reply);
}

static void test_pages__nothing_that_a_user_wrote_becomes_markup(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *const *cookie = session(api, api->token[MLO_ADMIN]);
    static const char *const paths[] = {
        "/",
        "/models/demo/cnn",
        "/promotions/demo/cnn",
        "/audit/demo",
        "/runs",
        "/audit/demo?who=%22%3E%3Cscript%3E",
        "/?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/promotions/demo/cnn?at=%22%3E%3Cscript%3E&stage=production",
        "/variant/demo/cnn/1/source",
        "/compare/demo/cnn?a=1/source",
        "/projects",
        "/datasets",
        "/tokens",
        "/tokens?project=%3Cscript%3E",
        "/members/demo",
        "/upload?project=%3Cscript%3E&model=%22%3E%3Cscript%3E",
        "/submit/demo/cnn?recipe=%3Cscript%3E&set=%3C/textarea%3E%3Cscript%3E",
        "/audit"};
    api_version(api, "cnn", "one", "<script>alert(1)</script>\"'&");
    const char *headers[] = {"If-Match: \"0\"", NULL};
    api_call(
        api, &reply, "POST", "/v1/projects/demo/models/cnn/promotions", api->token[MLO_PROMOTER],
        "{\"stage\":\"staging\",\"variants\":{\"any\":\"source\"},\"reason\":\"<script>alert(2)</script>\"}",
        headers);
    assert_http(&reply, 201);
    for (size_t i = 0; i < MLO_COUNT(paths); i++) {
        api_call(api, &reply, "GET", paths[i], NULL, NULL, cookie);
        assert_http(&reply, 200);
        const char *html = mlo_buf_str(&reply.body);
        assert_null(strstr(html, "<script>"));
        assert_null(strstr(html, " style=")); /* the policy would ignore it */
        assert_null(strstr(html, " onclick="));
        assert_holds(mlo_buf_str(&reply.headers),
                     "Content-Security-Policy: default-src 'none'; script-src 'self'");
    }
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, cookie);
    assert_holds(mlo_buf_str(&reply.body), "&lt;script&gt;alert(1)&lt;/script&gt;");
    api_call(api, &reply, "GET", "/models/demo/nope", NULL, NULL, cookie);
    assert_http(&reply, 404);
    assert_holds(mlo_buf_str(&reply.headers), "text/html");
    reply_clear(&reply);
}

static void test_pages__forms_follow_the_rules_of_the_api(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char csrf[96], generation[96], body[512];
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    const char *const *cookie = session(api, api->token[MLO_PROMOTER]);
    for (int version = 1; version <= 2; version++) {
        snprintf(body, sizeof body, "/models/demo/cnn?version=%d", version);
        api_call(api, &reply, "GET", body, NULL, NULL, cookie);
        assert_http(&reply, 200);
        reply_field(&reply, "csrf", csrf);
        reply_field(&reply, "generation_production", generation);
        snprintf(body, sizeof body,
                 "csrf=%s&version=%d&stage=production&generation_production=%s&target0=any&variant0=source&"
                 "reason=r%%C3%%A9ason+%d",
                 csrf, version, generation, version);
        api_call(api, &reply, "POST", "/models/demo/cnn/promote", NULL, body, cookie);
        assert_http(&reply, 303);
    }
    api_call(api, &reply, "POST", "/models/demo/cnn/promote", NULL, body, cookie); /* the form is stale now */
    assert_http(&reply, 412);
    api_call(api, &reply, "GET", "/promotions/demo/cnn", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "réason 2");
    assert_holds(mlo_buf_str(&reply.body), "<a href=\"/release/demo/cnn/2\">#2</a>");
    struct reply release = {0};
    api_call(api, &release, "GET", "/release/demo/cnn/2", NULL, NULL, cookie);
    assert_http(&release, 200);
    assert_holds(mlo_buf_str(&release.body), "/models/demo/cnn?version=2\">Version 2</a>");
    assert_holds(mlo_buf_str(&release.body), "No gate is set for production");
    assert_null(strstr(mlo_buf_str(&release.body), "réason 1"));
    static const char *const none[] = {"/release/demo/cnn/3", "/release/demo/cnn/0", "/release/demo/cnn/x",
                                       "/release/demo/no/1"};
    for (size_t i = 0; i < MLO_COUNT(none); i++) {
        api_call(api, &release, "GET", none[i], NULL, NULL, cookie);
        assert_http(&release, 404);
    }
    reply_clear(&release);
    reply_field(&reply, "generation", generation);
    snprintf(body, sizeof body, "csrf=%s&stage=production&generation=%s&reason=", csrf, generation);
    api_call(api, &reply, "POST", "/models/demo/cnn/rollback", NULL, body, cookie);
    assert_http(&reply, 422);
    snprintf(body, sizeof body, "csrf=%064d&stage=production&generation=%s&reason=because", 0, generation);
    api_call(api, &reply, "POST", "/models/demo/cnn/rollback", NULL, body, cookie);
    assert_http(&reply, 403);
    snprintf(body, sizeof body, "csrf=%s&stage=production&generation=%s&reason=because", csrf, generation);
    api_call(api, &reply, "POST", "/models/demo/cnn/rollback", NULL, body, cookie);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/v1/projects/demo/models/cnn/stages/production", api->token[MLO_VIEWER],
             NULL, NULL);
    assert_int_equal(mlo_json_i64(reply.json, "generation", 0), 3);
    assert_int_equal(mlo_json_i64(json_object_get(reply.json, "release"), "version", 0), 1);
    cookie = session(api, api->token[MLO_VIEWER]);
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, cookie);
    assert_null(strstr(mlo_buf_str(&reply.body), "/promote\""));
    api_call(api, &reply, "POST", "/models/demo/cnn/rollback", NULL, body, cookie);
    assert_http(&reply, 403);
    reply_clear(&reply);
}

/* As a worker does, which alone may. */
static void add_report(struct api *api, const char *model_text, const char *report)
{
    struct mlo_error err = {0};
    char digest[MLO_DIGEST_TEXT_SIZE];
    struct mlo_db_conn *worker;
    struct mlo_variant_report row = {.project_id = api->project, .size_bytes = strlen(report), .run_id = 7};
    api_upload(api, "demo", report, digest);
    assert_true(mlo_digest_parse(digest, &row.blob));
    mlo_digest_of(model_text, strlen(model_text), &row.artifact);
    assert_mlo_status(mlo_variant_report_add(api->pg->conn, &row, &err), MLO_EFORBIDDEN, &err);
    assert_mlo_ok(mlo_db_acquire(api->pg->worker, &worker, &err), &err);
    assert_mlo_ok(mlo_variant_report_add(worker, &row, &err), &err);
    mlo_db_release(worker);
}

static void test_pages__a_report_is_linked_and_escaped(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *const *cookie = session(api, api->token[MLO_VIEWER]);
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, cookie);
    assert_null(strstr(mlo_buf_str(&reply.body), "/report/")); /* none yet */
    api_call(api, &reply, "GET", "/report/demo/cnn/1/source", NULL, NULL, cookie);
    assert_http(&reply, 404);
    assert_holds(mlo_buf_str(&reply.body), "- report: {}");
    add_report(api, "one",
               "{\"format\":\"mlopt-report-1\",\"tensors\":[{\"tensor\":\"<script>alert(1)</script>\","
               "\"sqnr_db\":12.5}]}");
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, cookie);
    assert_holds(mlo_buf_str(&reply.body), "<a href=\"/report/demo/cnn/1/source\">Report</a>");
    api_call(api, &reply, "GET", "/report/demo/cnn/1/source", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_null(strstr(mlo_buf_str(&reply.body), "<script"));
    assert_null(strstr(mlo_buf_str(&reply.body), " style="));
    assert_holds(mlo_buf_str(&reply.body), "&lt;script&gt;alert(1)");
    assert_holds(mlo_buf_str(&reply.body), "demo/cnn@1/source");
    assert_holds(mlo_buf_str(&reply.body), "href=\"/models/demo/cnn\"");
    assert_holds(mlo_buf_str(&reply.headers),
                 "Content-Security-Policy: default-src 'none'; style-src 'sha256-");
    api_call(api, &reply, "GET", "/report/demo/cnn/1/source/json", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "format", ""), "mlopt-report-1");
    api_call(api, &reply, "GET", "/v1/projects/demo/models/cnn/versions/latest/variants/source/report",
             api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "application/json");
    assert_string_equal(mlo_json_str(reply.json, "format", ""), "mlopt-report-1");
    api_call(api, &reply, "GET", "/report/demo/cnn/1/source?run=8", NULL, NULL, cookie);
    assert_http(&reply, 404); /* of that run there is none */
    api_call(api, &reply, "GET", "/report/demo/cnn/1/source", NULL, NULL, NULL);
    assert_http(&reply, 303); /* to the sign-in page */
    reply_clear(&reply);
}

/* Where the time of a model went, as a worker measured it. */
static void add_profile(struct api *api, const char *model_text, const char *profile)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *worker;
    struct mlo_digest samples, artifact;
    char digest[MLO_DIGEST_TEXT_SIZE];
    api_upload(api, "demo", profile, digest);
    assert_true(mlo_digest_parse(digest, &samples));
    mlo_digest_of(model_text, strlen(model_text), &artifact);
    json_t *params = json_pack("{s:i, s:i}", "batch", 8, "threads", 2);
    const struct mlo_evidence evidence = {.project_id = api->project,
                                          .artifact = artifact,
                                          .metric = "profile.total",
                                          .unit = "us",
                                          .params = params,
                                          .observed = {40, 40, 40},
                                          .protocol = "bench-1",
                                          .engine = "cpu",
                                          .machine_class = "a-machine",
                                          .samples = &samples,
                                          .run_id = 7};
    assert_mlo_ok(mlo_db_acquire(api->pg->worker, &worker, &err), &err);
    assert_mlo_ok(mlo_evidence_add(worker, &evidence, NULL, &err), &err);
    mlo_db_release(worker);
    json_decref(params);
}

static void test_pages__how_a_variant_runs(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *const *cookie = session(api, api->token[MLO_VIEWER]);
    static const char profile[] =
        "{\"format\":\"mlopt-profile-1\",\"int8_nodes\":1,\"total_us\":40,\"nodes\":[{\"node\":\"<b>slow\","
        "\"op\":"
        "\"Conv\",\"impl\":\"tile\",\"precision\":\"f32\",\"us\":30,\"fused\":[\"/"
        "Relu\"]},{\"node\":\"fast\",\"op\":"
        "\"Gemm\",\"impl\":\"row\",\"precision\":\"int8\",\"us\":10,\"fused\":[]}]}";
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "GET", "/profile/demo/cnn/1/source", NULL, NULL, cookie);
    assert_http(&reply, 404);
    assert_holds(mlo_buf_str(&reply.body), "- benchmark: {}");
    add_report(api, "one",
               "{\"format\":\"mlopt-report-1\",\"precision\":{\"nodes\":[{\"node\":\"<b>slow\",\"runs_in\":"
               "\"float\","
               "\"why\":\"its weights are <i>few\"}]}}");
    add_profile(api, "one", profile);
    api_call(api, &reply, "GET", "/variant/demo/cnn/1/source", NULL, NULL, cookie);
    assert_http(&reply, 200);
    static const char *const parts[] = {
        "batch 8, 2 threads", "on a-machine by cpu", "1 of 2 steps in int8",
        "&lt;b&gt;slow",      "75.0&nbsp;%",         "its weights are &lt;i&gt;few",
        "with /Relu"};
    for (size_t i = 0; i < MLO_COUNT(parts); i++)
        assert_holds(mlo_buf_str(&reply.body), parts[i]);
    assert_null(strstr(mlo_buf_str(&reply.body), "<b>slow"));
    api_call(api, &reply, "GET", "/profile/demo/cnn/1/source", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "nodes")), 2);
    /* what cannot be read costs the page its profile, not all else */
    static const char *const bad[] = {"no JSON", "{\"format\":\"another\",\"nodes\":[]}"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        add_profile(api, "one", bad[i]);
        api_call(api, &reply, "GET", "/variant/demo/cnn/1/source", NULL, NULL, cookie);
        assert_http(&reply, 200);
        assert_holds(mlo_buf_str(&reply.body), i ? "not of the format mlopt-profile-1" : "cannot be shown: ");
        assert_holds(mlo_buf_str(&reply.body), "What the name pointed at");
        api_call(api, &reply, "GET", "/profile/demo/cnn/1/source", NULL, NULL, cookie);
        assert_in_range((unsigned long)reply.status, 400, 499);
    }
    api_version(api, "cnn", "two", "");
    add_report(api, "two", "no JSON either");
    add_profile(api, "two", profile);
    api_call(api, &reply, "GET", "/variant/demo/cnn/2/source", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "75.0&nbsp;%");
    assert_holds(mlo_buf_str(&reply.body), "Why a node is not in integers cannot be said: ");
    reply_clear(&reply);
}

#define FIELD(name, value) "--xx\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n" value "\r\n"
#define FILE_HEAD(field, name)                                                                               \
    "--xx\r\nContent-Disposition: form-data; name=\"" field "\"; filename=\"" name                           \
    "\"\r\nContent-Type: application/octet-stream\r\n\r\n"

/* Sends the form of /upload with these parts behind the field that the session belongs to. */
static void send_upload(struct api *api, struct reply *reply, const char *const *cookie, const char *csrf,
                        const char *parts)
{
    const char *headers[] = {cookie[0], "Content-Type: multipart/form-data; boundary=xx", NULL};
    struct mlo_buf body = MLO_BUF_INIT;
    mlo_buf_printf(&body, FIELD("csrf", "%s") "%s--xx--\r\n", csrf, parts);
    api_call(api, reply, "POST", "/upload", NULL, mlo_buf_str(&body), headers);
    mlo_buf_clear(&body);
}

static void test_pages__a_model_is_uploaded_by_a_form(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char csrf[96], digest[MLO_DIGEST_TEXT_SIZE];
    struct mlo_digest d;
    const char *const *cookie =
        open_form(api, &reply, "/upload?project=demo&model=%3Cb%3E", MLO_VIEWER, MLO_SUBMITTER, csrf);
    assert_holds(mlo_buf_str(&reply.body), "value=\"&lt;b&gt;\"");
    static const char both[] = FIELD("project", "demo") FIELD("model", "cnn") FIELD("description", "by form")
        FILE_HEAD("model_file", "C:\\dir\\m.onnx") "the model\r\n" FILE_HEAD(
            "data_file", "../w.bin") "weights\r\n" FILE_HEAD("data_file", "") "\r\n";
    send_upload(api, &reply, cookie, "no form of this session", both);
    assert_http(&reply, 403);
    send_upload(api, &reply, cookie, csrf, both);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /models/demo/cnn?version=1\r\n");
    api_call(api, &reply, "GET", "/v1/projects/demo/models/cnn/versions/1", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_string_equal(mlo_json_str(reply.json, "description", ""), "by form");
    const json_t *files = json_object_get(reply.json, "files");
    assert_int_equal(json_array_size(files), 2);
    for (size_t i = 0; i < 2; i++) { /* the names are the last parts of what the browser says */
        const json_t *file = json_array_get(files, i);
        bool model = strcmp(mlo_json_str(file, "role", ""), "model") == 0;
        mlo_digest_of(model ? "the model" : "weights", model ? 9 : 7, &d);
        assert_string_equal(mlo_json_str(file, "digest", ""), mlo_digest_text(&d, digest));
        assert_string_equal(mlo_json_str(file, "name", ""), model ? "m.onnx" : "w.bin");
    }
    /* a file of no bytes does not take those of the next */
    send_upload(api, &reply, cookie, csrf,
                FIELD("project", "demo") FIELD("model", "empty")
                    FILE_HEAD("data_file", "none.bin") "\r\n" FILE_HEAD(
                        "model_file", "m.onnx") "the model\r\n" FILE_HEAD("data_file", "last.bin") "\r\n");
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/v1/projects/demo/models/empty/versions/1", api->token[MLO_VIEWER], NULL,
             NULL);
    files = json_object_get(reply.json, "files");
    assert_int_equal(json_array_size(files), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *file = json_array_get(files, i);
        bool model = strcmp(mlo_json_str(file, "name", ""), "m.onnx") == 0;
        assert_string_equal(mlo_json_str(file, "role", ""), model ? "model" : "data");
        assert_int_equal(mlo_json_i64(file, "size", -1), model ? 9 : 0);
    }
    /* what the project has already is not stored once more */
    api_call(api, &reply, "PUT", "/v1/projects/demo/queue", api->token[MLO_ADMIN], "{\"storage_bytes\": 0}",
             NULL);
    assert_http(&reply, 200);
    send_upload(api, &reply, cookie, csrf,
                FIELD("project", "demo") FIELD("model", "cnn") FILE_HEAD("model_file", "m.onnx") "more\r\n");
    assert_http(&reply, 507);
    send_upload(api, &reply, cookie, csrf, both);
    assert_http(&reply, 303);
    api_call(api, &reply, "PUT", "/v1/projects/demo/queue", api->token[MLO_ADMIN],
             "{\"storage_bytes\": null}", NULL);
    assert_http(&reply, 200);
    static const struct {
        const char *parts, *holds;
        int http;
    } bad[] = {
        {FIELD("project", "demo") FIELD("model", "cnn") FILE_HEAD("model_file", "") "\r\n",
         "no model was chosen", 422},
        {FIELD("project", "nope") FIELD("model", "cnn") FILE_HEAD("model_file", "m.onnx") "m\r\n", "nope",
         404},
        {FIELD("project", "demo") FIELD("model", "a b/c") FILE_HEAD("model_file", "m.onnx") "m\r\n", "a b/c",
         422},
        {FILE_HEAD("model_file", "m.onnx") "m\r\n" FIELD("project", "demo"), "", 404},
    };
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        send_upload(api, &reply, cookie, csrf, bad[i].parts);
        if (reply.status != bad[i].http)
            fail_msg("form %zu: %ld %s", i, reply.status, mlo_buf_str(&reply.body));
        assert_holds(mlo_buf_str(&reply.body), bad[i].holds);
    }
    const char *cut[] = {cookie[0], "Content-Type: multipart/form-data; boundary=xx", NULL};
    api_call(api, &reply, "POST", "/upload", NULL, FILE_HEAD("model_file", "m.onnx") "m", cut);
    assert_in_range((unsigned long)reply.status, 400, 499);
    api_call(api, &reply, "POST", "/upload", NULL, "csrf=1", cookie); /* no form with files */
    assert_http(&reply, 400);
    /* who may make projects makes one with the first upload */
    cookie = session(api, api->token[MLO_ADMIN]);
    api_call(api, &reply, "GET", "/upload", NULL, NULL, cookie);
    reply_field(&reply, "csrf", csrf);
    send_upload(api, &reply, cookie, csrf,
                FIELD("project", "fresh") FIELD("model", "net")
                    FILE_HEAD("model_file", "m.onnx") "the model\r\n");
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /models/fresh/net?version=1\r\n");
    /* but none for a model that cannot be */
    send_upload(api, &reply, cookie, csrf,
                FIELD("project", "never") FIELD("model", "a b/c")
                    FILE_HEAD("model_file", "m.onnx") "the model\r\n");
    assert_http(&reply, 422);
    api_call(api, &reply, "GET", "/v1/projects/never", api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

/* Run 1 gets forty jobs before its own, each with an attempt that wrote, the first the newest, and is looked
 * at. */
static void look_at_a_long_run(struct api *api, const char *const *cookie)
{
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(
        mlo_db_exec_text(
            conn,
            "update mlopt.job set position = position + 1000 where run = 1; "
            "insert into mlopt.job overriding system value select (jsonb_populate_record(null::mlopt.job, "
            "to_jsonb(j) || jsonb_build_object('id', 1000 + n, 'position', n, 'name', 'early-' || n, "
            "'state', "
            "'succeeded'))).* from mlopt.job j, generate_series(0, 39) n where j.run = 1 and j.position = "
            "1000; "
            "update mlopt.job set position = position - 960 where run = 1 and position >= 1000; "
            "insert into mlopt.attempt (job, number, token, worker) select id, 1, gen_random_uuid(), 'w' "
            "from "
            "mlopt.job where id >= 1000; "
            "insert into mlopt.attempt_log (job, number, part, at, text) select id, 1, 0, now() - id * "
            "interval '1 hour', repeat('x', 5000) from mlopt.job where id >= 1000",
            &err),
        &err);
    mlo_db_release(conn);
    api_call(api, &reply, "GET", "/runs/demo/1", NULL, NULL, cookie); /* where it is */
    assert_http(&reply, 200);
    assert_in_range(reply.body.len, 1, 100000);
    assert_holds(mlo_buf_str(&reply.body), "<td><b>early-39</b>");
    assert_null(strstr(mlo_buf_str(&reply.body), "<td><b>early-31</b>"));
    assert_holds(mlo_buf_str(&reply.body), "<a href=\"/runs/demo/1?cursor=0\">The 32 jobs before</a>");
    assert_holds(mlo_buf_str(&reply.body), "id=\"log-1031-1\"");
    assert_null(strstr(mlo_buf_str(&reply.body), "id=\"log-1032-1\""));
    assert_holds(mlo_buf_str(&reply.body), "The 32 attempts that wrote last; 8 more are left out here.");
    api_call(api, &reply, "GET", "/runs/demo/1?cursor=0", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "<td><b>early-0</b>");
    assert_null(strstr(mlo_buf_str(&reply.body), "<td><b>early-16</b>"));
    api_call(api, &reply, "GET", "/runs/demo/1/log", NULL, NULL, cookie);
    assert_in_range(reply.body.len, 200000, 300000); /* all of it */
    reply_clear(&reply);
}

static void test_pages__a_recipe_is_submitted_by_a_form(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char csrf[96], key[96], body[512], first[64];
    api_version(api, "cnn", "one", "");
    const char *const *cookie = session(api, api->token[MLO_SUBMITTER]);
    api_call(api, &reply, "GET", "/submit/demo/cnn?version=1", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "<option value=\"int8-cpu\" selected>");
    reply_field(&reply, "csrf", csrf);
    reply_field(&reply, "key", key);
    snprintf(body, sizeof body,
             "csrf=%s&key=%s&version=1&recipe_name=fp16&set=&recipe=%%23+%%3Cb%%3E%%0D%%0Aname%%3A+own%%0D%%"
             "0Atarget%%3A+any%"
             "%0D%%0Asteps%%3A"
             "%%0D%%0A++-+optimise%%3A+%%7B%%7D%%0D%%0A",
             csrf, key);
    api_call(api, &reply, "POST", "/submit/demo/cnn", NULL, body, cookie);
    assert_http(&reply, 422); /* said on the form, which keeps what was typed */
    assert_holds(mlo_buf_str(&reply.body), "role=\"alert\"");
    assert_holds(mlo_buf_str(&reply.body), "# &lt;b&gt;");
    assert_holds(mlo_buf_str(&reply.body), "optimize");
    snprintf(body, sizeof body,
             "csrf=%s&key=%s&version=1&recipe_name=int4-weights&recipe=&"
             "set=quantize-weights.block%%3D64%%0D%%0A%%0D%%0Areport.samples%%3D3",
             csrf, key);
    for (int i = 0; i < 2; i++) { /* sent twice: one run */
        api_call(api, &reply, "POST", "/submit/demo/cnn", NULL, body, cookie);
        assert_http(&reply, 303);
        const char *at = strstr(mlo_buf_str(&reply.headers), "Location: /runs/demo/");
        assert_non_null(at);
        if (i)
            assert_memory_equal(at, first, strcspn(at, "\r"));
        snprintf(first, sizeof first, "%.60s", at);
    }
    snprintf(body + strlen(body), sizeof body - strlen(body), "%%0D%%0Areport.seed%%3D4");
    api_call(api, &reply, "POST", "/submit/demo/cnn", NULL, body, cookie); /* the same form, filled in anew */
    assert_http(&reply, 422);
    assert_holds(mlo_buf_str(&reply.headers), "text/html");
    assert_holds(mlo_buf_str(&reply.body), "open the form again");
    api_call(api, &reply, "GET", "/v1/projects/demo/runs/1", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_json_str(reply.json, "recipe_text", ""), "\"block\":64");
    assert_holds(mlo_json_str(reply.json, "recipe_text", ""), "\"samples\":3");
    api_call(api, &reply, "GET", "/", NULL, NULL, cookie); /* and it waits */
    assert_holds(mlo_buf_str(&reply.body), "id=\"waiting\"");
    api_call(api, &reply, "GET", "/runs/demo/1", NULL, NULL, cookie);
    assert_holds(mlo_buf_str(&reply.body), "Nothing was written yet");
    api_call(api, &reply, "GET", "/runs/demo/1/log", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "text/plain");
    api_call(api, &reply, "GET", "/runs/demo/2/log", NULL, NULL, cookie);
    assert_http(&reply, 404);
    look_at_a_long_run(api, cookie);
    cookie = session(api, api->token[MLO_VIEWER]);
    api_call(api, &reply, "POST", "/submit/demo/cnn", NULL, body, cookie);
    assert_http(&reply, 403);
    reply_clear(&reply);
}

static void test_pages__variants_side_by_side(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    static const struct {
        const char *path, *holds;
        int http;
    } cases[] = {
        {"/variant/demo/cnn/1/source", "Nothing was measured of it yet", 200},
        {"/variant/demo/cnn/latest/source", "cnn@2", 200},
        {"/variant/demo/cnn/1/none", "has no variant &#39;none&#39;", 404},
        {"/variant/demo/cnn/9/source", "", 404},
        {"/compare/demo/cnn", "<select name=\"e\">", 200},
        {"/compare/demo/cnn?a=1/source&b=2/source", "<option selected>2/source</option>", 200},
        {"/compare/demo/cnn?b=2/source", "id=\"compared\"", 200},
        {"/compare/demo/cnn?a=1/%3Cscript%3E", "&lt;script&gt;", 404},
        {"/compare/demo/cnn?a=9/source", "", 404},
        {"/compare/demo/cnn?a=source", "VERSION/VARIANT", 422},
        {"/compare/demo/cnn?a=-1/source", "VERSION/VARIANT", 422},
        {"/compare/demo/none", "", 404},
    };
    const char *const *cookie = session(api, api->token[MLO_VIEWER]);
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        api_call(api, &reply, "GET", cases[i].path, NULL, NULL, cookie);
        assert_http(&reply, cases[i].http);
        assert_holds(mlo_buf_str(&reply.body), cases[i].holds);
        assert_null(strstr(mlo_buf_str(&reply.body), "<script>"));
    }
    reply_clear(&reply);
}

static void test_pages__tokens_are_made_shown_once_and_revoked(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char csrf[96], body[256], made[MLO_TOKEN_TEXT_SIZE] = "";
    const char *const *cookie = open_form(api, &reply, "/tokens", MLO_APPROVER, MLO_ADMIN, csrf);
    api_call(api, &reply, "POST", "/tokens", NULL, "name=x&role=viewer",
             cookie); /* no form of this session */
    assert_http(&reply, 403);
    static const char *const bad[] = {"name=&role=viewer", "name=x&role=king", "name=x&role=viewer&days=0",
                                      "name=x&role=viewer&days=two", "name=x&role=viewer&project=nope"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        snprintf(body, sizeof body, "csrf=%s&%s", csrf, bad[i]);
        api_call(api, &reply, "POST", "/tokens", NULL, body, cookie);
        assert_in_range((unsigned long)reply.status, 400, 499);
    }
    snprintf(body, sizeof body, "csrf=%s&name=%%3Cb%%3Eci&role=submitter&project=demo&days=30", csrf);
    api_call(api, &reply, "POST", "/tokens", NULL, body, cookie);
    assert_http(&reply, 201);
    const char *text = strstr(mlo_buf_str(&reply.body), "id=\"made\">");
    assert_non_null(text);
    text += strlen("id=\"made\">");
    snprintf(made, sizeof made, "%.*s", (int)strcspn(text, "<"), text);
    assert_holds(mlo_buf_str(&reply.headers), "Cache-Control: no-store");
    assert_holds(mlo_buf_str(&reply.body), "&lt;b&gt;ci");
    api_call(api, &reply, "GET", "/v1/projects/demo/models", made, NULL, NULL);
    assert_http(&reply, 200);
    api_call(api, &reply, "GET", "/tokens", NULL, NULL, cookie);
    assert_null(strstr(mlo_buf_str(&reply.body), made));
    api_call(api, &reply, "GET", "/v1/tokens", api->token[MLO_ADMIN], NULL, NULL);
    const json_t *newest = json_array_get(json_object_get(reply.json, "items"), 0);
    assert_string_equal(mlo_json_str(newest, "name", ""), "<b>ci");
    assert_string_equal(mlo_json_str(newest, "project", ""), "demo");
    char path[64];
    snprintf(path, sizeof path, "/tokens/%lld/revoke", (long long)mlo_json_i64(newest, "id", 0));
    snprintf(body, sizeof body, "csrf=%s", csrf);
    api_call(api, &reply, "POST", path, NULL, body, cookie);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/v1/projects/demo/models", made, NULL, NULL);
    assert_http(&reply, 401);
    reply_clear(&reply);
}

/* What the page that answers a form says of more: a form to the page itself, with these fields. */
static void assert_more(const struct reply *reply, const char *path, const char *fields)
{
    char mark[200];
    const char *at;
    snprintf(mark, sizeof mark, "<form class=\"more\" method=\"get\" action=\"%s\">", path);
    at = strstr(mlo_buf_str(&reply->body), mark);
    if (!at)
        fail_msg("no %s", mark);
    snprintf(mark, sizeof mark, "<input type=\"hidden\" name=\"cursor\" value=\"50\">%s", fields);
    at += strcspn(at, ">") + 1;
    if (!mlo_str_starts(at, mark))
        fail_msg("no %s at: %.200s", mark, at);
}

static void test_pages__lists_go_on_behind_a_form(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    char csrf[96], body[256];
    const char *const *cookie = session(api, api->token[MLO_ADMIN]);
    api_call(api, &reply, "PUT", "/v1/projects/demo/members/rosa", api->token[MLO_ADMIN],
             "{\"role\": \"viewer\"}", NULL);
    assert_http(&reply, 201);
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(conn,
                                   "insert into mlopt.token (hash, prefix, name, role, project_id, "
                                   "created_by, member_id) select sha256(n::text::bytea), 'x', 't' || n, "
                                   "'viewer', m.project_id, 'test', m.id from mlopt.member m, "
                                   "generate_series(1, 50) n",
                                   &err),
                  &err);
    mlo_db_release(conn);
    api_call(api, &reply, "GET", "/members/demo/rosa", NULL, NULL, cookie);
    reply_field(&reply, "csrf", csrf);
    snprintf(body, sizeof body, "csrf=%s&token_name=one-more&may=read&days=30", csrf);
    api_call(api, &reply, "POST", "/members/demo/rosa/token", NULL, body, cookie);
    assert_http(&reply, 201);
    assert_more(&reply, "/members/demo/rosa", "<button>More");
    api_call(api, &reply, "GET", "/members/demo/rosa?cursor=50", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "<b>t1</b>");
    snprintf(body, sizeof body, "csrf=%s&name=last&role=viewer&project=&days=30&members_of=demo", csrf);
    api_call(api, &reply, "POST", "/tokens", NULL, body, cookie);
    assert_http(&reply, 201);
    assert_more(&reply, "/tokens", "<input type=\"hidden\" name=\"project\" value=\"demo\"><button>More");
    reply_clear(&reply);
}

/* What changes members, by whoever may not: without the session's field, with a role that is too low, from
 * another project. Nothing of it is done. */
static void test_pages__members_are_changed_by_their_admins_alone(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    char body[320], csrf[96], tokens[2][MLO_TOKEN_TEXT_SIZE];
    int64_t other, id;
    api_call(api, &reply, "PUT", "/v1/projects/demo/members/rosa", api->token[MLO_ADMIN],
             "{\"role\": \"viewer\"}", NULL);
    assert_http(&reply, 201);
    api_call(api, &reply, "POST", "/v1/projects/demo/members/rosa/tokens", api->token[MLO_ADMIN],
             "{\"name\": \"kept\"}", NULL);
    assert_http(&reply, 201);
    id = mlo_json_i64(reply.json, "id", 0);
    assert_mlo_ok(mlo_project_ensure(api->pg->conn, &system, "other", &other, &err), &err);
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "ada", MLO_ADMIN, api->project, 0, tokens[0], NULL, &err),
        &err);
    assert_mlo_ok(mlo_token_create(api->pg->conn, &system, "eve", MLO_ADMIN, other, 0, tokens[1], NULL, &err),
                  &err);
    const struct {
        const char *token, *page; /* page: whose field is sent; NULL: none */
        int http;
    } whos[] = {{tokens[0], NULL, 403},
                {api->token[MLO_VIEWER], "/members/demo", 403},
                {tokens[1], "/members/other", 404}};
    static const struct {
        const char *path, *fields;
    } posts[] = {{"/members/demo", "name=mallory&kind=person&role=admin&seen="},
                 {"/members/demo/rosa/token", "token_name=stolen&may=&days=1"},
                 {"/members/demo/rosa/revoke", ""},
                 {"/members/demo/rosa/remove", "reason=x"}};
    for (size_t w = 0; w < MLO_COUNT(whos); w++) {
        const char *const *cookie = session(api, whos[w].token);
        snprintf(csrf, sizeof csrf, "%064d", 0);
        if (whos[w].page) {
            api_call(api, &reply, "GET", whos[w].page, NULL, NULL, cookie);
            reply_field(&reply, "csrf", csrf);
        }
        for (size_t i = 0; i < MLO_COUNT(posts); i++) {
            snprintf(body, sizeof body, "csrf=%s&id=%lld&%s", csrf, (long long)id, posts[i].fields);
            api_call(api, &reply, "POST", posts[i].path, NULL, body, cookie);
            assert_http(&reply, whos[w].http);
        }
    }
    api_call(api, &reply, "GET", "/v1/projects/demo/members", api->token[MLO_ADMIN], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    api_call(api, &reply, "GET", "/v1/projects/demo/members/rosa/tokens", api->token[MLO_ADMIN], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    assert_true(
        json_is_null(json_object_get(json_array_get(json_object_get(reply.json, "items"), 0), "revoked_at")));
    reply_clear(&reply);
}

/* By the rules of the API: a project's admin for that project, everybody else reads. */
static void test_pages__members_are_their_projects(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    char admin[MLO_TOKEN_TEXT_SIZE], elsewhere[MLO_TOKEN_TEXT_SIZE], made[MLO_TOKEN_TEXT_SIZE], csrf[96],
        seen[96], body[512];
    int64_t other;
    assert_mlo_ok(mlo_project_ensure(api->pg->conn, &system, "other", &other, &err), &err);
    assert_mlo_ok(
        mlo_token_create(api->pg->conn, &system, "ada", MLO_ADMIN, api->project, 0, admin, NULL, &err), &err);
    assert_mlo_ok(mlo_token_create(api->pg->conn, &system, "eve", MLO_ADMIN, other, 0, elsewhere, NULL, &err),
                  &err);
    const char *const *cookie = session(api, admin);
    api_call(api, &reply, "GET", "/projects", NULL, NULL, cookie);
    assert_holds(mlo_buf_str(&reply.body), "/members/demo");
    api_call(api, &reply, "GET", "/tokens", NULL, NULL, cookie); /* the installation's are not its */
    assert_http(&reply, 403);
    api_call(api, &reply, "GET", "/members/other", NULL, NULL, cookie);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/members/demo", NULL, NULL, cookie);
    assert_http(&reply, 200);
    reply_field(&reply, "csrf", csrf);
    static const struct {
        const char *fields;
        int http;
    } sets[] = {
        {"name=rosa&role=king", 422},
        {"name=rosa&role=viewer&staging=admin", 422},
        {"name=%3Cb%3E&kind=person&role=viewer", 422},
        {"name=rosa&kind=robot&role=viewer", 422},
        {"name=rosa&role=viewer", 422},
        {"name=ci&kind=service&role=submitter&description=%3Cb%3Ebuilds", 303},
        {"name=rosa&kind=person&role=viewer&staging=promoter&reason=new", 303},
        {"name=rosa&kind=person&role=admin", 409}, /* is there already */
        {"name=rosa&kind=service&role=submitter", 409},
    };
    for (size_t i = 0; i < MLO_COUNT(sets); i++) {
        snprintf(body, sizeof body, "csrf=%s&seen=&%s", csrf, sets[i].fields);
        api_call(api, &reply, "POST", "/members/demo", NULL, body, cookie);
        assert_http(&reply, sets[i].http);
    }
    assert_holds(mlo_buf_str(&reply.body), "change it on its own page");
    /* a form changes what it showed, and a stale one nothing: it would grant again what was taken away */
    api_call(api, &reply, "GET", "/members/demo/rosa", NULL, NULL, cookie);
    reply_field(&reply, "seen", seen);
    static const struct {
        const char *fields;
        int http;
    } changes[] = {
        {"kind=service&role=submitter", 409}, /* another kind */
        {"kind=person&role=viewer&staging=promoter&description=tests", 303},
        {"kind=person&role=admin", 409},
    };
    for (size_t i = 0; i < MLO_COUNT(changes); i++) {
        snprintf(body, sizeof body, "csrf=%s&name=rosa&seen=%s&%s", csrf, seen, changes[i].fields);
        api_call(api, &reply, "POST", "/members/demo", NULL, body, cookie);
        assert_http(&reply, changes[i].http);
    }
    assert_holds(mlo_buf_str(&reply.body), "was changed meanwhile");
    snprintf(body, sizeof body, "csrf=%s&name=nobody&seen=%s&kind=person&role=viewer", csrf, seen);
    api_call(api, &reply, "POST", "/members/demo", NULL, body, cookie);
    assert_http(&reply, 409);
    assert_holds(mlo_buf_str(&reply.body), "was removed meanwhile");
    api_call(api, &reply, "GET", "/members/demo", NULL, NULL, cookie);
    assert_holds(mlo_buf_str(&reply.body), "promoter of staging");
    assert_holds(mlo_buf_str(&reply.body), "&lt;b&gt;builds");
    assert_null(strstr(mlo_buf_str(&reply.body), "nobody"));
    /* a token of a viewer who promotes to staging is for more than reading */
    snprintf(body, sizeof body, "csrf=%s&token_name=desk&may=&days=30", csrf);
    api_call(api, &reply, "POST", "/members/demo/rosa/token", NULL, body, cookie);
    assert_http(&reply, 201);
    assert_holds(mlo_buf_str(&reply.body), "</code></small></td><td>as the member");
    assert_null(strstr(mlo_buf_str(&reply.body), "<td>reads"));
    /* a token, shown this once, for less than its member may; revoked; and gone with its member */
    snprintf(body, sizeof body, "csrf=%s&token_name=laptop&may=read&days=30", csrf);
    api_call(api, &reply, "POST", "/members/demo/rosa/token", NULL, body, cookie);
    assert_http(&reply, 201);
    const char *text = strstr(mlo_buf_str(&reply.body), "mlopt_");
    assert_non_null(text);
    snprintf(made, sizeof made, "%.*s", (int)strcspn(text, "<"), text);
    api_call(api, &reply, "GET", "/v1/me", made, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "role", ""), "viewer");
    assert_string_equal(mlo_json_str(reply.json, "kind", ""), "person");
    api_call(api, &reply, "GET", "/members/demo/rosa", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_null(strstr(mlo_buf_str(&reply.body), made));
    assert_holds(mlo_buf_str(&reply.body), "</code></small></td><td>reads");
    reply_field(&reply, "id", body);
    long long id = atoll(body);
    snprintf(body, sizeof body, "csrf=%s&id=%lld", csrf, id);
    api_call(api, &reply, "POST", "/members/demo/ci/revoke", NULL, body, cookie); /* another's */
    assert_http(&reply, 404);
    api_call(api, &reply, "POST", "/members/demo/rosa/revoke", NULL, body, cookie);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/v1/me", made, NULL, NULL);
    assert_http(&reply, 401);
    snprintf(body, sizeof body, "csrf=%s&reason=left", csrf);
    api_call(api, &reply, "POST", "/members/demo/rosa/remove", NULL, body, cookie);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/members/demo/rosa", NULL, NULL, cookie);
    assert_http(&reply, 404);
    /* who may only read sees who is there; another project's admin nothing */
    cookie = session(api, api->token[MLO_VIEWER]);
    api_call(api, &reply, "GET", "/members/demo/ci", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_null(strstr(mlo_buf_str(&reply.body), "/members/demo/ci/token"));
    api_call(api, &reply, "POST", "/members/demo/ci/remove", NULL, body, cookie);
    assert_http(&reply, 403);
    cookie = session(api, elsewhere);
    api_call(api, &reply, "GET", "/members/demo", NULL, NULL, cookie);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

/* Bytes that thousands of versions are, and hundreds of variants of one: pages stay small, the root is drawn,
 * and the rest is a page further. */
static void test_pages__lineage_is_bounded(void **state)
{
    enum { VERSIONS = 3000 };
    static const char *const paths[] = {"/models/demo/cnn?version=2", "/variant/demo/cnn/2/source"};
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    char path[320], digest[MLO_DIGEST_TEXT_SIZE];
    size_t seen = 0;
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "another", "");
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(
        mlo_db_exec_text(
            conn,
            "with copied as (insert into mlopt.version (model_id, number, manifest_digest, manifest, "
            "created_by) "
            "select model_id, number + n, manifest_digest, manifest, 'test' from mlopt.version, "
            "generate_series(1, 3000) n where number = 2 returning id) insert into mlopt.variant "
            "(version_id, "
            "name, artifact, size, named_by) select c.id, 'source', va.artifact, va.size, 'test' from copied "
            "c, "
            "mlopt.variant va join mlopt.version v on v.id = va.version_id where v.number = 2; "
            "insert into mlopt.lineage_edge (project_id, child, parent, kind) select m.project_id, "
            "sha256(convert_to(n::text, 'UTF8')), va.artifact, 'derived-from' from mlopt.variant va join "
            "mlopt.version v on v.id = va.version_id join mlopt.model m on m.id = v.model_id, "
            "generate_series(1, 400) n where v.number = 2; "
            "update mlopt.model set next_version = 3003; analyze mlopt.variant; analyze mlopt.version",
            &err),
        &err);
    mlo_db_release(conn);
    const char *const *cookie = session(api, api->token[MLO_VIEWER]);
    for (size_t i = 0; i < MLO_COUNT(paths); i++) {
        api_call(api, &reply, "GET", paths[i], NULL, NULL, cookie);
        assert_http(&reply, 200);
        assert_in_range(reply.body.len, 1, 100000);
        assert_holds(mlo_buf_str(&reply.body), "class=\"node artifact root\"");
        assert_holds(mlo_buf_str(&reply.body), ">cnn@2/source</text>");
        assert_holds(mlo_buf_str(&reply.body), "all 1000 or more names");
        assert_holds(mlo_buf_str(&reply.body), "are not drawn");
    }
    api_call(api, &reply, "GET", "/v1/projects/demo/models/cnn/versions/2/lineage", api->token[MLO_VIEWER],
             NULL, NULL);
    assert_http(&reply, 200);
    snprintf(digest, sizeof digest, "%s", mlo_json_str(reply.json, "root", ""));
    json_t *node;
    size_t i;
    json_array_foreach(json_object_get(reply.json, "nodes"), i,
                       node) if (strcmp(mlo_json_str(node, "digest", ""), digest) == 0)
    {
        assert_int_equal(json_array_size(json_object_get(node, "names")), MLO_LINEAGE_NAMES);
        assert_int_equal(mlo_json_i64(node, "names_count", 0), MLO_LINEAGE_COUNTED);
        assert_string_equal(json_string_value(json_array_get(json_object_get(node, "names"), 0)),
                            "demo/cnn@2/source");
    }
    snprintf(path, sizeof path, "/names/demo/%s", digest);
    api_call(api, &reply, "GET", path, NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_in_range(reply.body.len, 1, 100000);
    assert_holds(mlo_buf_str(&reply.body), "/variant/demo/cnn/3002/source");
    assert_holds(mlo_buf_str(&reply.body), "name=\"cursor\"");
    /* each of them once */
    snprintf(path, sizeof path, "/v1/projects/demo/artifacts/%s/names?limit=500", digest);
    for (;;) {
        api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
        assert_http(&reply, 200);
        const json_t *items = json_object_get(reply.json, "items");
        for (i = 0; i < json_array_size(items); i++, seen++)
            assert_int_equal(mlo_json_i64(json_array_get(items, i), "version", 0), VERSIONS + 2 - (int)seen);
        if (json_is_null(json_object_get(reply.json, "next")))
            break;
        snprintf(path, sizeof path, "/v1/projects/demo/artifacts/%s/names?limit=500&cursor=%s", digest,
                 mlo_json_str(reply.json, "next", ""));
    }
    assert_int_equal(seen, VERSIONS + 1);
    api_call(api, &reply, "GET", "/v1/projects/demo/artifacts/sha256:0/names", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_http(&reply, 422);
    /* what is compared is offered from few versions, and an old one is found by its number */
    api_call(api, &reply, "GET", "/compare/demo/cnn?a=1/source&b=2/source", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_in_range(reply.body.len, 1, 20000);
    assert_holds(mlo_buf_str(&reply.body), "<option selected>1/source</option>");
    assert_holds(mlo_buf_str(&reply.body), "<option>3002/source</option>");
    /* all five lists full of the longest names */
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(
                      conn,
                      "insert into mlopt.variant (version_id, name, artifact, size, named_by) select v.id, "
                      "rpad('v' || n || '-', 100, 'x'), va.artifact, va.size, 'test' from mlopt.version v "
                      "join mlopt.variant va on va.version_id = v.id, generate_series(1, 150) n where "
                      "v.number = 3002",
                      &err),
                  &err);
    mlo_db_release(conn);
    api_call(api, &reply, "GET", "/compare/demo/cnn", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_in_range(reply.body.len, 30000, 100000);
    assert_holds(mlo_buf_str(&reply.body), "more variants are not offered here");
    reply_clear(&reply);
}

static void test_pages__the_audit_log_is_exported(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *const *cookie = session(api, api->token[MLO_ADMIN]);
    const char *headers[] = {"If-Match: \"0\"", NULL};
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/models/cnn/promotions", api->token[MLO_PROMOTER],
             "{\"stage\":\"staging\",\"variants\":{\"any\":\"source\"},\"reason\":\"=1+1, \\\"so\\\"\"}",
             headers);
    assert_http(&reply, 201);
    api_call(api, &reply, "GET", "/audit/demo/export?action=stage.", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "Content-Disposition: attachment; filename=\"audit-demo.csv\"");
    assert_holds(mlo_buf_str(&reply.body),
                 "seq,at,who,via,address,request_id,action,object,reason,before,after,prev_hash,hash\r\n");
    assert_holds(mlo_buf_str(&reply.body), "\"'=1+1, \"\"so\"\"\""); /* no formula, quotes doubled */
    assert_null(strstr(mlo_buf_str(&reply.body), "version.create"));
    api_call(api, &reply, "GET", "/audit/demo/export?format=json", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_true(json_array_size(json_object_get(reply.json, "items")) >= 2);
    assert_string_equal(mlo_json_str(json_array_get(json_object_get(reply.json, "items"), 0), "reason", ""),
                        "=1+1, \"so\"");
    assert_holds(mlo_json_str(json_array_get(json_object_get(reply.json, "items"), 0), "hash", ""),
                 "sha256:");
    api_call(api, &reply, "GET", "/audit/demo/export?format=json&until=2001-01-01", NULL, NULL, cookie);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
    api_call(api, &reply, "GET", "/audit/demo?since=2026-01-31T12:00&until=2101-01-31", NULL, NULL, cookie);
    assert_http(&reply, 200); /* and as a browser's fields take them */
    assert_holds(mlo_buf_str(&reply.body), "name=\"since\" value=\"2026-01-31T12:00:00\"");
    assert_holds(mlo_buf_str(&reply.body), "name=\"until\" value=\"2101-01-31T23:59:59\"");
    assert_holds(mlo_buf_str(&reply.body), "version.create");
    api_call(api, &reply, "GET", "/audit/demo/export?format=xml", NULL, NULL, cookie);
    assert_http(&reply, 422);
    /* a long chain: what is far back is not looked for, unless `since` says that nothing is wanted of it */
    struct mlo_db_conn *conn;
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(
        mlo_db_exec_text(conn,
                         "insert into mlopt.audit select p.id, a.seq, h.hash, convert_to(format('{\"at\": "
                         "\"%s-01-01T00:00:00.000Z\"}', a.year), 'UTF8'), h.hash from mlopt.project p join "
                         "mlopt.audit_head h on h.project_id = p.id, (select 300000 + n, 2031 from "
                         "generate_series(1, 500) n union all select 100000 + n, case when n > 100 then 2031 "
                         "else 2030 end from generate_series(1, 600) n) a(seq, year) where p.name = 'demo'",
                         &err),
        &err);
    api_call(api, &reply, "GET", "/audit/demo/export?format=json&since=2031-01-01", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1000);
    api_call(api, &reply, "GET", "/audit/demo/export?format=json&since=2030-01-01", NULL, NULL, cookie);
    assert_http(&reply, 413);
    api_call(api, &reply, "GET", "/audit/demo/export", NULL, NULL, cookie);
    assert_http(&reply, 413);
    assert_holds(mlo_buf_str(&reply.body), "a later since");
    assert_mlo_ok(mlo_db_exec_text(conn, "delete from mlopt.audit where seq > 100000", &err), &err);
    mlo_db_release(conn);
    api_call(api, &reply, "GET", "/audit/demo/export?format=xml", NULL, NULL, cookie);
    assert_http(&reply, 422);
    api_call(api, &reply, "GET", "/audit/-/export", NULL, NULL, cookie);
    assert_http(&reply, 200);
    cookie = session(api, api->token[MLO_APPROVER]);
    api_call(api, &reply, "GET", "/audit/-/export", NULL, NULL, cookie);
    assert_http(&reply, 403);
    reply_clear(&reply);
}

static void test_pages__assets_are_served(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    api_call(api, &reply, "GET", "/assets/style.css", NULL, NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "text/css");
    api_call(api, &reply, "GET", "/assets/live.js", NULL, NULL, NULL);
    assert_holds(mlo_buf_str(&reply.headers), "text/javascript");
    api_call(api, &reply, "GET", "/assets/..%2f..%2fetc%2fpasswd", NULL, NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages__html_escapes_what_is_not_the_format),
        API_TEST(test_pages__facts_are_shown_and_found),
        API_TEST(test_pages__a_one_time_link_signs_in_once),
        API_TEST(test_pages__who_signs_in_and_out_is_in_the_log),
        API_TEST(test_pages__nothing_that_a_user_wrote_becomes_markup),
        API_TEST(test_pages__forms_follow_the_rules_of_the_api),
        API_TEST(test_pages__a_report_is_linked_and_escaped),
        API_TEST(test_pages__how_a_variant_runs),
        API_TEST(test_pages__a_model_is_uploaded_by_a_form),
        API_TEST(test_pages__a_recipe_is_submitted_by_a_form),
        API_TEST(test_pages__variants_side_by_side),
        API_TEST(test_pages__tokens_are_made_shown_once_and_revoked),
        API_TEST(test_pages__lists_go_on_behind_a_form),
        API_TEST(test_pages__members_are_changed_by_their_admins_alone),
        API_TEST(test_pages__members_are_their_projects),
        API_TEST(test_pages__lineage_is_bounded),
        API_TEST(test_pages__the_audit_log_is_exported),
        API_TEST(test_pages__assets_are_served),
    };
    API_MAIN(tests);
}
