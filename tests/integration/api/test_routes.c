/* Every row of the tables: sign-in, roles, docs; and what the server refuses before any handler. */
#include "tests/integration/api/api_fixture.h"
#include "tests/integration/api/contract_fixture.h"

/* A path that fits the row: every {segment} filled in. */
static void concrete(const char *pattern, char *out, size_t size)
{
    size_t used = 0;
    while (*pattern && used + 80 < size) {
        if (*pattern == '{') {
            const char *end = strchr(pattern, '}');
            used += (size_t)snprintf(out + used, size - used, "%s",
                                     strncmp(pattern, "{p}", 3) == 0 ? "demo" : "1");
            pattern = end + 1;
        } else {
            out[used++] = *pattern++;
        }
    }
    out[used] = '\0';
}

static void test_routes__every_row_needs_a_token_and_says_what_it_is(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    size_t count;
    const struct mlo_route *routes = mlo_http_api_routes(&count);
    char path[512];
    assert_true(count > 30);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(routes[i].docs) > 10);
        assert_true(routes[i].open || strncmp(routes[i].path, "/v1/", 4) == 0 ||
                    mlo_str_starts(routes[i].path, "/api/") || strcmp(routes[i].path, "/metrics") == 0);
        concrete(routes[i].path, path, sizeof path);
        const char *body = strcmp(routes[i].method, "POST") == 0 ? "{}" : NULL;
        api_call(api, &reply, routes[i].method, path, NULL, body, NULL);
        if (routes[i].open) {
            assert_http(&reply, 200);
            continue;
        }
        assert_http(&reply, 401);
        assert_code(&reply, "unauthorized");
        assert_holds(mlo_buf_str(&reply.headers), "WWW-Authenticate: Bearer");
        assert_holds(mlo_buf_str(&reply.headers), "application/problem+json");
        api_call(api, &reply, routes[i].method, path, "mlopt_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
                 body, NULL);
        assert_http(&reply, 401);
    }
    reply_clear(&reply);
}

/* All routes by all roles: below the row's it is a 403, from there on never; and never a failure of the
 * server. */
static void test_routes__every_row_asks_for_its_role(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    size_t count, checked = 0;
    const struct mlo_route *routes = mlo_http_api_routes(&count);
    char path[512];
    for (size_t i = 0; i < count; i++) {
        concrete(routes[i].path, path, sizeof path);
        bool post = strcmp(routes[i].method, "POST") == 0;
        if (strcmp(routes[i].path, "/v1/tokens/{id}") == 0) /* none of those that are still to ask */
            snprintf(path, sizeof path, "/v1/tokens/999999");
        for (int role = MLO_VIEWER; role < MLO_ROLE_COUNT; role++) {
            api_call(api, &reply, routes[i].method, path, api->token[role], post ? "{}" : NULL, NULL);
            bool low = !routes[i].open && role < (int)routes[i].role;
            if ((reply.status == 403) != low || reply.status == 401 || reply.status >= 500)
                fail_msg("%s %s as %s: %ld %s", routes[i].method, path, mlo_role_name((enum mlo_role)role),
                         reply.status, mlo_buf_str(&reply.body));
            if (low)
                assert_code(&reply, "forbidden");
            checked++;
        }
    }
    assert_int_equal(checked, count * MLO_ROLE_COUNT);
    reply_clear(&reply);
}

/* The same for members of a project, people and service accounts, with a higher role in one stage: what moves
 * or judges a stage is open to them, all else as to their role; and for tokens that are for less than their
 * member.
 */
static void test_routes__members_have_roles_by_stage(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    static const struct {
        const char *name, *settings, *token;
        enum mlo_role role, most;
    } cases[] = {
        {"a", "{\"role\": \"viewer\", \"stages\": {\"staging\": \"promoter\"}}", "{\"name\": \"t\"}",
         MLO_VIEWER, MLO_PROMOTER},
        {"b", "{\"role\": \"submitter\", \"stages\": {\"production\": \"approver\"}}", "{\"name\": \"t\"}",
         MLO_SUBMITTER, MLO_APPROVER},
        {"c", "{\"role\": \"admin\"}", "{\"name\": \"t\", \"read_only\": true}", MLO_VIEWER, MLO_VIEWER},
        {"d", "{\"role\": \"promoter\"}", "{\"name\": \"t\", \"stage\": \"staging\"}", MLO_VIEWER,
         MLO_PROMOTER},
        {"e", "{\"kind\": \"service\", \"role\": \"submitter\"}", "{\"name\": \"t\"}", MLO_SUBMITTER,
         MLO_SUBMITTER},
        {"f", "{\"kind\": \"service\", \"role\": \"admin\"}", "{\"name\": \"t\"}", MLO_ADMIN, MLO_ADMIN},
    };
    size_t count, checked = 0;
    const struct mlo_route *routes = mlo_http_api_routes(&count);
    char path[512], token[MLO_TOKEN_TEXT_SIZE];
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        api_member(api, cases[c].name, cases[c].settings, cases[c].token, token);
        for (size_t i = 0; i < count; i++) {
            const struct mlo_route *row = &routes[i];
            concrete(row->path, path, sizeof path);
            if (row->open || strncmp(path, "/v1/projects/demo", 17) != 0)
                continue; /* the installation's own: below */
            bool post = strcmp(row->method, "POST") == 0 || strcmp(row->method, "PUT") == 0;
            api_call(api, &reply, row->method, path, token, post ? "{}" : NULL, NULL);
            bool low = (row->by_stage ? cases[c].most : cases[c].role) < row->role;
            if ((reply.status == 403) != low || reply.status == 401 || reply.status >= 500)
                fail_msg("%s %s as %s: %ld %s", row->method, path, cases[c].name, reply.status,
                         mlo_buf_str(&reply.body));
            checked++;
        }
        /* whatever it is in its project, it is nothing elsewhere */
        api_call(api, &reply, "GET", "/v1/tokens", token, NULL, NULL);
        assert_http(&reply, 403);
        api_call(api, &reply, "POST", "/v1/projects", token, "{\"name\": \"mine\"}", NULL);
        assert_http(&reply, 403);
    }
    assert_true(checked > 400);
    /* the last of them, a service account that is an admin, does not say who may what, itself included */
    api_call(api, &reply, "GET", "/v1/projects/demo/members/a/tokens", token, NULL, NULL);
    assert_http(&reply, 200);
    const long long id =
        (long long)mlo_json_i64(json_array_get(json_object_get(reply.json, "items"), 0), "id", 0);
    snprintf(path, sizeof path, "/v1/projects/demo/members/a/tokens/%lld", id);
    const struct {
        const char *method, *path, *body;
    } refused[] = {
        {"PUT", "/v1/projects/demo/members/f", "{\"kind\":\"service\",\"role\":\"admin\",\"approve\":true}"},
        {"PUT", "/v1/projects/demo/members/new", "{\"role\":\"approver\"}"},
        {"POST", "/v1/projects/demo/members/a/tokens", "{\"name\":\"mine\"}"},
        {"DELETE", path, NULL},
        {"DELETE", "/v1/projects/demo/members/a", NULL},
    };
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        api_call(api, &reply, refused[i].method, refused[i].path, token, refused[i].body, NULL);
        assert_http(&reply, 403);
        assert_holds(mlo_json_str(reply.json, "detail", ""), "service:demo/f is a service account");
    }
    reply_clear(&reply);
}

static void test_routes__members_tokens_end_with_them(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *admin = api->token[MLO_ADMIN];
    char token[MLO_TOKEN_TEXT_SIZE], path[128], body[128];
    static const char member[] = "/v1/projects/demo/members/ci";
    static const char *const bad[] = {"{}",
                                      "{\"role\": \"king\"}",
                                      "{\"role\": \"viewer\", \"stages\": {\"testing\": \"promoter\"}}",
                                      "{\"role\": \"viewer\", \"stages\": {\"staging\": \"admin\"}}",
                                      "{\"role\": \"viewer\", \"stages\": []}",
                                      "{\"role\": \"viewer\", \"kind\": \"robot\"}",
                                      "{\"role\": \"viewer\", \"approve\": true}"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        api_call(api, &reply, "PUT", member, admin, bad[i], NULL);
        assert_http(&reply, 422);
    }
    api_member(api, "ci", "{\"kind\": \"service\", \"role\": \"submitter\"}", "{\"name\": \"builds\"}",
               token);
    api_call(api, &reply, "GET", "/v1/me", token, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "name", ""), "service:demo/ci");
    assert_string_equal(mlo_json_str(reply.json, "kind", ""), "service");
    /* pages are for people, by whichever way in */
    snprintf(body, sizeof body, "token=%s", token);
    api_call(api, &reply, "POST", "/login", NULL, body, NULL);
    assert_http(&reply, 403);
    assert_null(strstr(mlo_buf_str(&reply.headers), "Set-Cookie"));
    snprintf(body, sizeof body, "Cookie: mlopt_session=%s", token);
    const char *const cookie[] = {body, NULL};
    api_call(api, &reply, "GET", "/", NULL, NULL, cookie);
    assert_http(&reply, 403);
    /* what it does is told as what it is */
    snprintf(path, sizeof path, "/v1/projects/demo/models/cnn/versions");
    char digest[MLO_DIGEST_TEXT_SIZE], version[256];
    api_upload(api, "demo", "a model", digest);
    snprintf(version, sizeof version,
             "{\"files\": [{\"role\": \"model\", \"name\": \"m.onnx\", \"digest\": \"%s\"}]}", digest);
    api_call(api, &reply, "POST", path, token, version, NULL);
    assert_http(&reply, 201);
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?who=service:demo/ci", admin, NULL, NULL);
    assert_http(&reply, 200);
    assert_true(json_array_size(json_object_get(reply.json, "items")) >= 1);
    /* no token has a name like that by itself */
    api_call(api, &reply, "POST", "/v1/tokens", admin,
             "{\"name\": \"service:demo/ci\", \"role\": \"viewer\"}", NULL);
    assert_http(&reply, 422);
    /* its role changes under it */
    api_call(api, &reply, "PUT", member, admin, "{\"kind\": \"service\", \"role\": \"viewer\"}", NULL);
    assert_http(&reply, 200);
    assert_int_equal(mlo_json_i64(reply.json, "tokens", 0), 1);
    assert_true(mlo_json_str(reply.json, "last_used_at", NULL) != NULL);
    api_call(api, &reply, "POST", path, token, version, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "PUT", member, admin, "{\"kind\": \"person\", \"role\": \"viewer\"}", NULL);
    assert_http(&reply, 409);
    /* one token, then the rest with it; another member's are none of its */
    api_call(api, &reply, "GET", "/v1/projects/demo/members/ci/tokens", admin, NULL, NULL);
    assert_http(&reply, 200);
    assert_null(strstr(mlo_buf_str(&reply.body), token));
    long long id = (long long)mlo_json_i64(json_array_get(json_object_get(reply.json, "items"), 0), "id", 0);
    api_call(api, &reply, "PUT", "/v1/projects/demo/members/eve", admin, "{\"role\": \"viewer\"}", NULL);
    assert_http(&reply, 201);
    snprintf(path, sizeof path, "/v1/projects/demo/members/eve/tokens/%lld", id);
    api_call(api, &reply, "DELETE", path, admin, NULL, NULL);
    assert_http(&reply, 404);
    snprintf(path, sizeof path, "/v1/projects/demo/members/ci/tokens/%lld", id);
    api_call(api, &reply, "DELETE", path, admin, NULL, NULL);
    assert_http(&reply, 204);
    api_call(api, &reply, "GET", "/v1/me", token, NULL, NULL);
    assert_http(&reply, 401);
    api_member(api, "ci", "{\"kind\": \"service\", \"role\": \"viewer\"}", "{\"name\": \"builds\"}", token);
    api_call(api, &reply, "DELETE", "/v1/projects/demo/members/ci?reason=over", admin, NULL, NULL);
    assert_http(&reply, 204);
    api_call(api, &reply, "GET", "/v1/me", token, NULL, NULL);
    assert_http(&reply, 401);
    api_call(api, &reply, "GET", member, admin, NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/v1/projects/demo/audit?action=member.", admin, NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 5);
    assert_string_equal(mlo_json_str(json_array_get(json_object_get(reply.json, "items"), 0), "reason", ""),
                        "over");
    /* a program of before looks tokens up by their own hash: there is none */
    struct mlo_digest hash;
    struct mlo_db_conn *conn;
    struct mlo_error err = {0};
    mlo_digest_of(token, strlen(token), &hash);
    char hex[MLO_DIGEST_TEXT_SIZE], sql[256];
    snprintf(sql, sizeof sql,
             "do $$ begin if exists (select from mlopt.token where hash = decode('%s', 'hex')) then raise "
             "exception 'found'; end if; end $$",
             mlo_digest_hex(&hash, hex));
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &err), &err);
    mlo_db_release(conn);
    reply_clear(&reply);
}

static void test_routes__pages_need_a_session(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const struct mlo_http_module *pages = mlo_web_module();
    char path[512];
    int closed = 0;
    for (size_t i = 0; i < pages->count; i++) {
        const struct mlo_route *route = &pages->routes[i];
        assert_true(strlen(route->docs) > 5);
        if (route->open)
            continue;
        concrete(route->path, path, sizeof path);
        bool get = strcmp(route->method, "GET") == 0;
        /* a bearer token is no session: a page answers to the cookie alone */
        api_call(api, &reply, route->method, path, api->token[MLO_ADMIN], get ? NULL : "reason=x", NULL);
        assert_http(&reply, get ? 303 : 401);
        if (get)
            assert_holds(mlo_buf_str(&reply.headers), "Location: /login");
        closed++;
    }
    reply_clear(&reply);
    assert_true(closed > 8);
}

static void test_routes__a_problem_has_its_members(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *id[] = {"X-Request-Id: my-request.7", NULL};
    api_call(api, &reply, "GET", "/v1/projects/nope/models", api->token[MLO_VIEWER], NULL, id);
    assert_http(&reply, 404);
    assert_string_equal(mlo_json_str(reply.json, "type", ""), "about:blank");
    assert_string_equal(mlo_json_str(reply.json, "request_id", ""), "my-request.7");
    assert_int_equal(mlo_json_i64(reply.json, "status", 0), 404);
    assert_code(&reply, "not-found");
    assert_true(mlo_json_str(reply.json, "detail", "")[0] && mlo_json_str(reply.json, "title", "")[0]);
    assert_holds(mlo_buf_str(&reply.headers), "X-Request-Id: my-request.7");
    api_call(api, &reply, "GET", "/v1/nothing", NULL, NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "DELETE", "/v1/projects", api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 405);
    assert_holds(mlo_buf_str(&reply.headers), "Allow: GET, POST");
    /* of the address that it is, not of those that have its shape */
    api_call(api, &reply, "OPTIONS", "/v1/projects/demo/runs/batch", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 405);
    assert_holds(mlo_buf_str(&reply.headers), "Allow: POST\r\n");
    reply_clear(&reply);
}

/* What is wrong with a problem; NULL: nothing. `mlflow`: with what its client reads of it. */
static const char *wrong_problem(const json_t *codes, bool mlflow, const struct reply *reply)
{
    static const char *const members[] = {"type", "title",      "status", "code",     "detail",   "where",
                                          "hint", "request_id", "retry",  "blockers", "decision", "checks"};
    const char *headers = mlo_buf_str(&reply->headers), *id = strstr(headers, "X-Request-Id: "), *key;
    char own[80] = "";
    bool known = false;
    json_t *value;
    size_t i;
    if (!strstr(headers, "Content-Type: application/problem+json\r\n"))
        return "its content type";
    if (!reply->json)
        return "that it is no JSON";
    if (id)
        snprintf(own, sizeof own, "%.*s", (int)strcspn(id + 14, "\r"), id + 14);
    if (!own[0] || strcmp(mlo_json_str(reply->json, "request_id", ""), own) != 0)
        return "its request_id";
    if (strcmp(mlo_json_str(reply->json, "type", ""), "about:blank") != 0 ||
        !mlo_json_str(reply->json, "title", "")[0])
        return "type or title";
    if (mlo_json_i64(reply->json, "status", 0) != reply->status)
        return "its status";
    if (!mlo_json_str(reply->json, "detail", "")[0])
        return "that it says nothing";
    if (!json_is_boolean(json_object_get(reply->json, "retry")))
        return "retry";
    json_array_foreach((json_t *)codes, i, value) known =
        known || strcmp(json_string_value(value), mlo_json_str(reply->json, "code", "")) == 0;
    if (!known)
        return "its code";
    json_object_foreach(reply->json, key, value)
    {
        known = false;
        for (i = 0; i < MLO_COUNT(members); i++)
            known = known || strcmp(members[i], key) == 0;
        if (!known && !(mlflow && (strcmp(key, "error_code") == 0 || strcmp(key, "message") == 0)))
            return "a member that no problem has";
    }
    if (mlflow &&
        (!mlo_json_str(reply->json, "error_code", "")[0] || !mlo_json_str(reply->json, "message", "")[0]))
        return "that MLflow's client cannot tell it";
    if ((reply->status == 422 || reply->status == 428) && !mlo_json_str(reply->json, "where", "")[0])
        return "that it does not say where";
    /* a place is named as every place is */
    static const char *const places[] = {"field '", "header",  "request body", "query argument '",
                                         "path",    "stage '", "facts",        "file '",
                                         "recipe"};
    const char *where = mlo_json_str(reply->json, "where", "path");
    known = false;
    for (i = 0; i < MLO_COUNT(places); i++)
        known = known || mlo_str_starts(where, places[i]);
    return known ? NULL : "how it says where";
}

/* Each row is asked wrongly in every way that it can be: the answer is a problem with all its members. */
static void test_routes__every_row_answers_what_is_wrong_as_a_problem(void **state)
{
    enum { FORM, BROKEN, LIST, EMPTY, TYPES, QUERY, NAME, ANONYMOUS, LOW, KINDS };
    static const char *const bodies[KINDS] = {
        [FORM] = "name=x",
        [BROKEN] = "{\"a\":",
        [LIST] = "[1]",
        [EMPTY] = "{}",
        [TYPES] =
            "{\"name\":[],\"model\":{},\"text\":7,\"reason\":[],\"stage\":7,\"role\":1,\"url\":1,\"files\":"
            "{},\"cron\":{},\"fingerprint\":[],\"parts\":7,\"digests\":[7],\"runs\":[\"x\"],\"models\":[7],"
            "\"recipe\":7,\"cursor\":7,\"direct\":7,\"size\":\"x\",\"overlap_s\":[],\"dry_run\":7,\"shown\":"
            "7,"
            "\"weight\":\"x\"}"};
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_buf wrong = MLO_BUF_INIT;
    size_t count, problems = 0;
    json_t *contract = contract_load();
    const struct mlo_route *routes = mlo_http_api_routes(&count);
    const json_t *codes = contract_codes(contract);
    api_version(api, "1", "a model", "");
    for (size_t i = 0; i < count; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            char path[800], form[64] = "Content-Type: application/x-www-form-urlencoded",
                            json[40] = "Content-Type: application/json", match[24] = "If-Match: \"0\"";
            const char *headers[3] = {match, NULL, NULL}, *token = api->token[MLO_ADMIN];
            bool takes = routes[i].max_body && !routes[i].upload;
            if ((bodies[kind] && !takes) || (routes[i].open && kind >= ANONYMOUS))
                continue;
            concrete(routes[i].path, path, sizeof path - 160);
            if (kind == QUERY)
                snprintf(
                    path + strlen(path), 128, "%s",
                    "?limit=none&cursor=%FF&at=never&since=soon&revision=x&wait_ms=x&all=7&redirect=7&job=x");
            if (kind == NAME && strchr(routes[i].path, '{'))
                snprintf(strrchr(path, '1') ? strrchr(path, '1') : path + strlen(path), 80, "..%%20%%27no");
            headers[1] = kind == FORM ? form : bodies[kind] ? json : NULL;
            token = kind == ANONYMOUS ? NULL : kind == LOW ? api->token[MLO_VIEWER] : token;
            api_call(api, &reply, routes[i].method, path, token,
                     bodies[kind] ? bodies[kind]
                     : takes      ? "{}"
                                  : NULL,
                     headers);
            if (reply.status < 400)
                continue;
            problems++;
            const char *what = reply.status >= 500
                                   ? "that it is the server's"
                                   : wrong_problem(codes, mlo_str_starts(path, "/api/"), &reply);
            if (what)
                mlo_buf_printf(&wrong, "%s %s (%d): %ld, wrong is %s: %.300s", routes[i].method, path, kind,
                               reply.status, what, mlo_buf_str(&reply.body));
        }
    if (wrong.len) {
        print_error("%s", mlo_buf_str(&wrong));
        fail();
    }
    assert_true(problems > 400);
    json_decref(contract);
    reply_clear(&reply);
}

static void test_routes__a_size_that_is_said_is_compared(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], body[256];
    static const struct {
        const char *size;
        int http;
    } cases[] = {{"8", 422}, {"-1", 422}, {"\"7\"", 422}, {"7", 201}};
    api_upload(api, "demo", "a model", digest);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        snprintf(
            body, sizeof body,
            "{\"files\": [{\"role\": \"model\", \"name\": \"m.onnx\", \"digest\": \"%s\", \"size\": %s}]}",
            digest, cases[i].size);
        api_call(api, &reply, "POST", "/v1/projects/demo/models/cnn/versions", api->token[MLO_ADMIN], body,
                 NULL);
        assert_http(&reply, cases[i].http);
    }
    reply_clear(&reply);
}

static void test_routes__an_empty_argument_is_none(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    static const char *const paths[] = {
        "runs?state=&model=&cursor=&limit=",
        "runs/1/log?job=",
        "runs/1/trace?format=",
        "history?stage=&cursor=",
        "models/cnn/history?stage=&at=",
        "models/cnn/versions/1/evidence?variant=&metric=",
        "models/cnn/versions/1/lineage?variant=",
        "ledger?cursor=",
        "audit?who=&action=&object=&since=&until=",
    };
    char path[128];
    api_version(api, "cnn", "a model", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_ADMIN],
             "{\"model\": \"cnn\", \"recipe\": \"name: mine\\nsteps:\\n  - benchmark: {batch: [1]}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    for (size_t i = 0; i < MLO_COUNT(paths); i++) {
        snprintf(path, sizeof path, "/v1/projects/demo/%s", paths[i]);
        api_call(api, &reply, "GET", path, api->token[MLO_ADMIN], NULL, NULL);
        if (reply.status != 200)
            fail_msg("%s: %ld %s", path, reply.status, mlo_buf_str(&reply.body));
    }
    reply_clear(&reply);
}

static void test_routes__bodies_are_strict_and_bounded(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *bad[] = {"{\"name\":\"a\",\"name\":\"b\"}", "{\"name\":", "{\"name\":7}", "{}",
                         "{\"name\":\"..\"}"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        api_call(api, &reply, "POST", "/v1/projects", api->token[MLO_ADMIN], bad[i], NULL);
        assert_http(&reply, 422);
    }
    /* also where nothing of the body is needed, and what is not of the type it must have */
    const char *json[] = {"Content-Type: application/json", NULL};
    const char *const rotations[] = {"[null, null]", "{", "7", "{\"a\": 1, \"a\": 1}"};
    for (size_t i = 0; i < MLO_COUNT(rotations); i++) {
        api_call(api, &reply, "POST", "/v1/keys/rotations", api->token[MLO_ADMIN], rotations[i],
                 rotations[i][0] == '{' ? NULL : json);
        assert_http(&reply, 422);
    }
    api_version(api, "cnn", "a model", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/plans", api->token[MLO_ADMIN],
             "{\"model\": \"cnn\", \"recipe\": \"name: mine\\nsteps:\\n  - benchmark: {batch: [1]}\\n\", "
             "\"set\": {}}",
             NULL);
    assert_http(&reply, 422);
    assert_string_equal(mlo_json_str(reply.json, "where", ""), "field 'set'");
    api_call(api, &reply, "GET", "/v1/projects/demo/models/cnn/quarantine?all=null", api->token[MLO_ADMIN],
             NULL, NULL);
    assert_http(&reply, 422);
    const char *form[] = {"Content-Type: application/x-www-form-urlencoded", NULL};
    api_call(api, &reply, "POST", "/v1/projects", api->token[MLO_ADMIN], "name=x", form);
    assert_http(&reply, 415);
    assert_code(&reply, "unsupported-media-type");
    char *large = malloc((size_t)MLO_BODY_JSON_MAX + 64);
    memset(large, ' ', (size_t)MLO_BODY_JSON_MAX + 63);
    large[0] = '{';
    large[(size_t)MLO_BODY_JSON_MAX + 63] = '\0';
    api_call(api, &reply, "POST", "/v1/projects", api->token[MLO_ADMIN], large, NULL);
    assert_http(&reply, 413);
    assert_code(&reply, "too-large");
    free(large);
    reply_clear(&reply);
}

static void test_routes__ambiguous_requests_are_refused(void **state)
{
    struct api *api = *state;
    static const char *const requests[] = {
        "POST /v1/projects HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        ("POST /v1/projects HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
         "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /v1/me HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nAuthorization: Bearer y\r\n\r\n",
    };
    for (size_t i = 0; i < MLO_COUNT(requests); i++) {
        struct mlo_buf answer = MLO_BUF_INIT;
        api_raw(api, requests[i], strlen(requests[i]), &answer);
        assert_holds(mlo_buf_str(&answer), "HTTP/1.1 400");
        assert_holds(mlo_buf_str(&answer), "Connection: close");
        mlo_buf_clear(&answer);
    }
    struct reply reply = {0};
    api_call(api, &reply, "GET", "/healthz%00/v1", NULL, NULL, NULL); /* not cut short to another address */
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_routes__tokens_are_made_listed_and_revoked(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char token[MLO_TOKEN_TEXT_SIZE], path[64];
    const char *admin = api->token[MLO_ADMIN];
    api_call(api, &reply, "POST", "/v1/tokens", admin,
             "{\"name\":\"ci\",\"role\":\"viewer\",\"project\":\"demo\",\"expires_days\":1}", NULL);
    assert_http(&reply, 201);
    snprintf(token, sizeof token, "%s", mlo_json_str(reply.json, "token", ""));
    snprintf(path, sizeof path, "/v1/tokens/%lld", (long long)mlo_json_i64(reply.json, "id", 0));
    api_call(api, &reply, "GET", "/v1/me", token, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "name", ""), "ci");
    /* bound to its project: others are as if they were not there, and so is the installation's own */
    api_call(api, &reply, "POST", "/v1/projects", admin, "{\"name\":\"other\"}", NULL);
    assert_http(&reply, 201);
    api_call(api, &reply, "GET", "/v1/projects/other/models", token, NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/v1/queue", token, NULL, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "GET", "/v1/tokens", admin, NULL, NULL);
    assert_http(&reply, 200);
    assert_null(strstr(mlo_buf_str(&reply.body), token));
    api_call(api, &reply, "DELETE", path, admin, NULL, NULL);
    assert_http(&reply, 204);
    api_call(api, &reply, "GET", "/v1/me", token, NULL, NULL);
    assert_http(&reply, 401);
    api_call(api, &reply, "POST", "/v1/tokens", admin, "{\"name\":\"x\",\"role\":\"king\"}", NULL);
    assert_http(&reply, 422);
    assert_holds(mlo_buf_str(&reply.body), "promoter");
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_routes__every_row_needs_a_token_and_says_what_it_is),
        API_TEST(test_routes__every_row_asks_for_its_role),
        API_TEST(test_routes__members_have_roles_by_stage),
        API_TEST(test_routes__members_tokens_end_with_them),
        API_TEST(test_routes__pages_need_a_session),
        API_TEST(test_routes__a_problem_has_its_members),
        API_TEST(test_routes__every_row_answers_what_is_wrong_as_a_problem),
        API_TEST(test_routes__a_size_that_is_said_is_compared),
        API_TEST(test_routes__an_empty_argument_is_none),
        API_TEST(test_routes__bodies_are_strict_and_bounded),
        API_TEST(test_routes__ambiguous_requests_are_refused),
        API_TEST(test_routes__tokens_are_made_listed_and_revoked),
    };
    API_MAIN(tests);
}
