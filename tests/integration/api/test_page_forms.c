/* What the pages' forms do: a model with its files, a recipe and its run, members. */
#include "tests/integration/api/pages_fixture.h"

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

static void test_page_forms__a_model_is_uploaded_by_a_form(void **state)
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

/* Run 1 gets forty jobs before its own, each with an attempt that wrote, the first the newest: all are done,
 * but that one failed and the last goes on. It is looked at, and when it has ended. */
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
            "interval '1 hour', repeat('x', 5000) from mlopt.job where id >= 1000; "
            "update mlopt.job set state = 'failed' where id = 1020; "
            "update mlopt.job j set state = 'running', token = a.token, lease_until = now() + interval '1 "
            "day' "
            "from mlopt.attempt a where a.job = j.id and j.id = 1039; "
            "insert into mlopt.attempt (job, number, token, worker, ended_at, outcome) "
            "select 1033, n, gen_random_uuid(), 'w', now(), 'lost' from generate_series(2, 30) n",
            &err),
        &err);
    api_call(api, &reply, "GET", "/runs/demo/1", NULL, NULL, cookie); /* where it is, not where it failed */
    assert_http(&reply, 200);
    assert_in_range(reply.body.len, 1, 100000);
    assert_holds(mlo_buf_str(&reply.body), "<td><b>early-39</b>");
    assert_null(strstr(mlo_buf_str(&reply.body), "<td><b>early-31</b>"));
    assert_holds(mlo_buf_str(&reply.body), "<a href=\"/runs/demo/1?cursor=0\">The 32 jobs before</a>");
    assert_holds(mlo_buf_str(&reply.body), "<div id=\"live\" data-from=\"32\">");
    assert_holds(mlo_buf_str(&reply.body), "<div id=\"times\" data-from=\"32\">");
    /* of a job that was tried again and again, the newest attempts */
    assert_holds(mlo_buf_str(&reply.body), "<td>early-33</td><td colspan=\"6\" class=\"muted\">20 attempts "
                                           "before: mlopt runs trace 1</td>");
    assert_holds(mlo_buf_str(&reply.body), "early-33: attempt 21, ");
    assert_null(strstr(mlo_buf_str(&reply.body), "early-33: attempt 20, "));
    assert_holds(mlo_buf_str(&reply.body),
                 "id=\"log-1030-1\" data-end=\"5000\"><summary>early-30, attempt 1<");
    assert_holds(mlo_buf_str(&reply.body), "<small>The first 3976 bytes are left out here.</small>");
    assert_null(strstr(mlo_buf_str(&reply.body), "id=\"log-1031-1\""));
    /* what goes on is there however long it is quiet */
    assert_holds(mlo_buf_str(&reply.body), "id=\"log-1039-1\" data-end=\"5000\" open>");
    assert_holds(mlo_buf_str(&reply.body),
                 "The 32 attempts that go on or wrote last; 8 more are left out here.");
    api_call(api, &reply, "GET", "/runs/demo/1?cursor=0", NULL, NULL, cookie);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "<td><b>early-0</b>");
    assert_null(strstr(mlo_buf_str(&reply.body), "<td><b>early-16</b>"));
    api_call(api, &reply, "GET", "/runs/demo/1/log", NULL, NULL, cookie);
    assert_in_range(reply.body.len, 200000, 300000); /* all of it */
    /* over: what failed first, unless somebody followed it to an end that is good all the same */
    static const struct {
        const char *state, *path, *from;
    } ends[] = {{"succeeded", "/runs/demo/1", "16"},         {"succeeded", "/runs/demo/1?shown=32", "32"},
                {"succeeded", "/runs/demo/1?shown=x", "16"}, {"succeeded", "/runs/demo/1?shown=999", "16"},
                {"failed", "/runs/demo/1?shown=32", "16"},   {"failed", "/runs/demo/1?cursor=32", "32"}};
    char sql[512], from[64];
    for (size_t i = 0; i < MLO_COUNT(ends); i++) {
        snprintf(
            sql, sizeof sql,
            "update mlopt.job set state = 'succeeded', token = null, lease_until = null where run = 1 and "
            "state <> 'failed'; update mlopt.run set state = '%s', finished_at = now() where id = 1",
            ends[i].state);
        assert_mlo_ok(mlo_db_exec_text(conn, sql, &err), &err);
        api_call(api, &reply, "GET", ends[i].path, NULL, NULL, cookie);
        assert_http(&reply, 200);
        snprintf(from, sizeof from, "<div id=\"times\" data-from=\"%s\">", ends[i].from);
        assert_holds(mlo_buf_str(&reply.body), from);
        assert_null(strstr(mlo_buf_str(&reply.body), " open><summary>"));
    }
    mlo_db_release(conn);
    reply_clear(&reply);
}

static void test_page_forms__a_recipe_is_submitted_by_a_form(void **state)
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

/* What changes members, by whoever may not: without the session's field, with a role that is too low, from
 * another project. Nothing of it is done. */
static void test_page_forms__members_are_changed_by_their_admins_alone(void **state)
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
static void test_page_forms__members_are_their_projects(void **state)
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
    static const char *const stale[] = {"token", "remove"}; /* `seen` is of before she was changed */
    for (size_t i = 0; i < MLO_COUNT(stale); i++) {
        char path[64];
        snprintf(path, sizeof path, "/members/demo/rosa/%s", stale[i]);
        snprintf(body, sizeof body, "csrf=%s&seen=%s&token_name=desk&may=&days=30", csrf, seen);
        api_call(api, &reply, "POST", path, NULL, body, cookie);
        assert_http(&reply, 409);
        assert_holds(mlo_buf_str(&reply.body), "was changed meanwhile");
        snprintf(body, sizeof body, "csrf=%s&token_name=desk&may=&days=30", csrf);
        api_call(api, &reply, "POST", path, NULL, body, cookie); /* nor without it */
        assert_http(&reply, 409);
    }
    api_call(api, &reply, "GET", "/members/demo/rosa", NULL, NULL, cookie);
    reply_field(&reply, "seen", seen);
    assert_null(strstr(mlo_buf_str(&reply.body), ">desk<"));
    snprintf(body, sizeof body, "csrf=%s&seen=%s&token_name=desk&may=&days=30", csrf, seen);
    api_call(api, &reply, "POST", "/members/demo/rosa/token", NULL, body, cookie);
    assert_http(&reply, 201);
    assert_holds(mlo_buf_str(&reply.body), "</code></small></td><td>as the member");
    assert_null(strstr(mlo_buf_str(&reply.body), "<td>reads"));
    /* a token, shown this once, for less than its member may; revoked; and gone with its member */
    snprintf(body, sizeof body, "csrf=%s&seen=%s&token_name=laptop&may=read&days=30", csrf, seen);
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
    /* another one under her name is not who the forms were shown for */
    snprintf(body, sizeof body, "csrf=%s&seen=%s&reason=left", csrf, seen);
    api_call(api, &reply, "POST", "/members/demo/rosa/remove", NULL, body, cookie);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/members/demo/rosa", NULL, NULL, cookie);
    assert_http(&reply, 404);
    api_call(api, &reply, "PUT", "/v1/projects/demo/members/rosa", admin,
             "{\"role\": \"viewer\", \"stages\": {\"staging\": \"promoter\"}, \"description\": \"tests\"}",
             NULL);
    assert_http(&reply, 201);
    api_call(api, &reply, "POST", "/members/demo/rosa/remove", NULL, body, cookie);
    assert_http(&reply, 409);
    snprintf(body, sizeof body, "csrf=%s&seen=%s&token_name=again&may=&days=30", csrf, seen);
    api_call(api, &reply, "POST", "/members/demo/rosa/token", NULL, body, cookie);
    assert_http(&reply, 409);
    api_call(api, &reply, "GET", "/v1/projects/demo/members/rosa/tokens", admin, NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_page_forms__a_model_is_uploaded_by_a_form),
        API_TEST(test_page_forms__a_recipe_is_submitted_by_a_form),
        API_TEST(test_page_forms__members_are_changed_by_their_admins_alone),
        API_TEST(test_page_forms__members_are_their_projects),
    };
    API_MAIN(tests);
}
