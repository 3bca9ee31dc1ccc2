/* The pages: signing in, tokens, escaping, what is found and exported; models and forms have programs of
 * their own. What they look like is shown by the browser test. */
#include "tests/integration/api/pages_fixture.h"

#include "api/html/html.h"

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
    char csrf[96], seen[96], body[256];
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
    reply_field(&reply, "seen", seen);
    snprintf(body, sizeof body, "csrf=%s&seen=%s&token_name=one-more&may=read&days=30", csrf, seen);
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
    size_t entries = json_array_size(json_object_get(reply.json, "items")), lines = 0;
    json_t *items = json_incref(json_object_get(reply.json, "items"));
    api_call(api, &reply, "GET", "/audit/demo/export?format=jsonl", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "filename=\"audit-demo.jsonl\"");
    assert_holds(mlo_buf_str(&reply.headers), "Content-Type: application/jsonl");
    size_t ends = 0; /* an empty line is none of the format's */
    for (const char *at = reply.body.data; (at = strchr(at, '\n')); at++)
        ends++;
    assert_int_equal(ends, entries);
    char *next = NULL;
    for (char *line = strtok_r(reply.body.data, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *entry = json_loads(line, 0, NULL);
        assert_true(json_equal(entry, json_array_get(items, lines++)));
        json_decref(entry);
    }
    assert_int_equal(lines, entries);
    json_decref(items);
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
        API_TEST(test_pages__a_one_time_link_signs_in_once),
        API_TEST(test_pages__who_signs_in_and_out_is_in_the_log),
        API_TEST(test_pages__tokens_are_made_shown_once_and_revoked),
        API_TEST(test_pages__lists_go_on_behind_a_form),
        API_TEST(test_pages__nothing_that_a_user_wrote_becomes_markup),
        API_TEST(test_pages__facts_are_shown_and_found),
        API_TEST(test_pages__the_audit_log_is_exported),
        API_TEST(test_pages__assets_are_served),
    };
    API_MAIN(tests);
}
