/* The contract and the server are the same: rows and operations one to one; every example of api/openapi.yaml
 * is sent, and the answer must be one that the contract knows. */
#include "tests/integration/api/contract_fixture.h"
#include "tests/integration/api/schema_fixture.h"
#include "tests/integration/api/world_fixture.h"

#define UPLOAD_ID "0123456789abcdef0123456789abcdef" /* the examples' */

static void test_openapi__has_every_route_and_no_other(void **state)
{
    struct mlo_buf wrong = MLO_BUF_INIT;
    size_t routes_count, count, met = 0;
    const struct mlo_route *routes = mlo_http_api_routes(&routes_count);
    const struct mlo_operation *operations = mlo_http_operations(&count);
    MLO_UNUSED(state);
    for (size_t i = 0; i < routes_count; i++) {
        const struct mlo_operation *found = NULL;
        for (size_t j = 0; j < count && !found; j++)
            if (strcmp(routes[i].method, operations[j].method) == 0 &&
                strcmp(routes[i].path, operations[j].path) == 0)
                found = &operations[j];
        if (!found)
            mlo_buf_printf(&wrong, "%s %s is not in api/openapi.yaml\n", routes[i].method, routes[i].path);
        else if (found->handler != routes[i].handler || found->open != routes[i].open ||
                 (!found->open && found->role != routes[i].role))
            mlo_buf_printf(&wrong, "%s %s has another handler or x-role in api/openapi.yaml\n",
                           routes[i].method, routes[i].path);
        else
            met++;
    }
    for (size_t j = 0; j < count; j++) {
        bool head = strcmp(operations[j].method, "HEAD") == 0, found = false;
        const char *method = head ? "GET" : operations[j].method;
        for (size_t i = 0; i < routes_count; i++)
            found = found || (strcmp(routes[i].method, method) == 0 &&
                              strcmp(routes[i].path, operations[j].path) == 0 &&
                              routes[i].handler == operations[j].handler);
        if (!found)
            mlo_buf_printf(&wrong, "%s %s (%s) is no route\n", operations[j].method, operations[j].path,
                           operations[j].id);
    }
    if (wrong.len)
        fail_msg("%s", mlo_buf_str(&wrong));
    assert_true(met > 100);
}

/* Rows that take an Idempotency-Key say so in the contract, and no others; whoever creates or acts takes one,
 * but for these, which only answer, go on where they stand, or make what must not be made in one transaction.
 */
static void test_openapi__says_who_takes_an_idempotency_key(void **state)
{
    static const char *const without[] = {"/plans", "/lookup", "/uploads",  "/parts",
                                          "/gc",    "/fsck",   "/rotations"};
    static const char ref[] = "#/components/parameters/idem";
    json_t *contract = contract_load(), *item;
    size_t count, keyed = 0, j;
    const struct mlo_route *routes = mlo_http_api_routes(&count);
    MLO_UNUSED(state);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(routes[i].method, "POST") != 0 || strncmp(routes[i].path, "/v1/", 4) != 0) {
            assert_false(routes[i].once);
            continue;
        }
        bool takes = true, listed = false;
        for (j = 0; j < MLO_COUNT(without); j++)
            takes = takes && !mlo_str_ends(routes[i].path, without[j]);
        const json_t *operation =
            json_object_get(json_object_get(json_object_get(contract, "paths"), routes[i].path), "post");
        json_array_foreach(json_object_get(operation, "parameters"), j, item) listed =
            listed || strcmp(mlo_json_str(item, "$ref", ""), ref) == 0;
        if (routes[i].once != takes || listed != takes)
            fail_msg("%s: takes a key: %d, listed: %d", routes[i].path, routes[i].once, listed);
        keyed += takes;
    }
    assert_true(keyed > 30);
    json_decref(contract);
}

static bool has_property(const json_t *root, const json_t *schema, const char *name)
{
    json_t *part;
    size_t i;
    schema = schema ? schema_resolve(root, schema) : NULL;
    bool has = json_object_get(json_object_get(schema, "properties"), name) != NULL;
    json_array_foreach(json_object_get(schema, "allOf"), i, part) has = has || has_property(root, part, name);
    return has;
}

/* What a 201 shows this once has its row's `secret`, which is how it is kept nowhere. */
static void test_openapi__secrets_are_named_in_their_rows(void **state)
{
    static const char *const members[] = {"token", "secret"};
    json_t *contract = contract_load();
    size_t count, secrets = 0;
    const struct mlo_route *routes = mlo_http_api_routes(&count);
    MLO_UNUSED(state);
    for (size_t i = 0; i < count; i++) {
        if (!routes[i].once)
            continue;
        const json_t *operation =
            json_object_get(json_object_get(json_object_get(contract, "paths"), routes[i].path), "post");
        const json_t *made = json_object_get(json_object_get(operation, "responses"), "201");
        made = made ? schema_resolve(contract, made) : NULL;
        const json_t *media = json_object_get(json_object_get(made, "content"), "application/json");
        for (size_t m = 0; m < MLO_COUNT(members); m++) {
            bool shown = has_property(contract, json_object_get(media, "schema"), members[m]),
                 named = routes[i].secret && strcmp(routes[i].secret, members[m]) == 0;
            if (shown != named)
                fail_msg("%s: shows '%s': %d, its row says so: %d", routes[i].path, members[m], shown, named);
            secrets += shown;
        }
    }
    assert_true(secrets >= 4);
    json_decref(contract);
}

static void check_refs(const json_t *root, const json_t *at, size_t *seen)
{
    const char *key;
    json_t *value;
    size_t i;
    if (json_object_get(at, "$ref")) {
        ++*seen;
        if (!schema_resolve(root, at))
            fail_msg("%s names nothing", mlo_json_str(at, "$ref", "?"));
    }
    json_object_foreach((json_t *)at, key, value) check_refs(root, value, seen);
    json_array_foreach((json_t *)at, i, value) check_refs(root, value, seen);
}

static void test_openapi__is_whole_and_served(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_buf why = MLO_BUF_INIT;
    json_t *contract = contract_load(), *value, *code;
    const char *name;
    size_t seen = 0, size, i;
    const char *text = mlo_http_contract(&size);
    check_refs(contract, contract, &seen);
    assert_true(seen > 500);
    /* every code that a failure may have, and the examples of problems */
    const json_t *components = json_object_get(contract, "components");
    const json_t *problem = json_object_get(json_object_get(components, "schemas"), "Problem");
    const json_t *codes = contract_codes(contract);
    for (int s = MLO_OK + 1; s < MLO_STATUS_COUNT; s++) {
        bool listed = false;
        json_array_foreach((json_t *)codes, i, code) listed =
            listed || strcmp(json_string_value(code), mlo_status_info((enum mlo_status)s)->code) == 0;
        if (!listed)
            fail_msg("the code '%s' is not in the contract", mlo_status_info((enum mlo_status)s)->code);
    }
    json_object_foreach(json_object_get(components, "responses"), name, value)
    {
        const json_t *media = json_object_get(json_object_get(value, "content"), "application/problem+json");
        if (!schema_fits(contract, problem, json_object_get(media, "example"), name, &why))
            fail_msg("%s", mlo_buf_str(&why));
    }
    api_call(api, &reply, "GET", "/v1/openapi.json", NULL, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), text);
    assert_string_equal(mlo_json_str(reply.json, "openapi", ""), "3.1.0");
    json_decref(contract);
    reply_clear(&reply);
}

/* --- an example ----------------------------------------------------------------------------------------- */

struct example {
    const char *method, *path; /* of the operation */
    const json_t *operation;
    struct mlo_buf url, body;
    char headers[8][256];
    size_t header_count;
};

static void append_value(struct mlo_buf *out, const json_t *value, bool url)
{
    char *text =
        json_is_string(value) ? strdup(json_string_value(value)) : json_dumps(value, JSON_ENCODE_ANY);
    char *safe = url ? curl_easy_escape(NULL, text, 0) : NULL;
    mlo_buf_puts(out, url ? safe : text);
    curl_free(safe);
    free(text);
}

/* Path, query and headers with the examples of the parameters. */
static void fill_in(const json_t *contract, struct example *e)
{
    struct mlo_buf value = MLO_BUF_INIT;
    json_t *item;
    size_t i;
    char mark[64];
    char query = '?';
    mlo_buf_puts(&e->url, e->path);
    json_array_foreach(json_object_get(e->operation, "parameters"), i, item)
    {
        const json_t *parameter = schema_resolve(contract, item),
                     *example = json_object_get(parameter, "example");
        const char *name = mlo_json_str(parameter, "name", ""), *in = mlo_json_str(parameter, "in", "");
        if (!example) {
            assert_false(mlo_json_bool(parameter, "required", false));
            continue;
        }
        if (!schema_fits(contract, json_object_get(parameter, "schema"), example, name, &value))
            fail_msg("%s: example of %s", e->path, mlo_buf_str(&value));
        mlo_buf_reset(&value);
        append_value(&value, example, strcmp(in, "header") != 0);
        if (strcmp(in, "path") == 0) {
            snprintf(mark, sizeof mark, "{%s}", name);
            char *url = strdup(mlo_buf_str(&e->url)), *at = strstr(url, mark);
            assert_non_null(at);
            mlo_buf_reset(&e->url);
            mlo_buf_printf(&e->url, "%.*s%s%s", (int)(at - url), url, mlo_buf_str(&value), at + strlen(mark));
            free(url);
        } else if (strcmp(in, "query") == 0) {
            mlo_buf_printf(&e->url, "%c%s=%s", query, name, mlo_buf_str(&value));
            query = '&';
        } else {
            snprintf(e->headers[e->header_count++], sizeof e->headers[0], "%s: %s", name,
                     mlo_buf_str(&value));
        }
        mlo_buf_reset(&value);
    }
    assert_null(strchr(mlo_buf_str(&e->url), '{'));
    const char *type;
    json_object_foreach(json_object_get(json_object_get(e->operation, "requestBody"), "content"), type, item)
    {
        const json_t *example = json_object_get(item, "example");
        assert_non_null(example);
        if (!schema_fits(contract, json_object_get(item, "schema"), example, "body", &value))
            fail_msg("%s: example of the %s", e->path, mlo_buf_str(&value));
        append_value(&e->body, example, false);
        if (strcmp(type, "application/json") != 0)
            snprintf(e->headers[e->header_count++], sizeof e->headers[0], "Content-Type: %s", type);
    }
    mlo_buf_clear(&value);
}

/* Uploads have ids that nobody foresees: one is begun, and has its bytes unless the example brings them. */
static void with_upload(struct api *api, struct example *e)
{
    struct reply reply = {0};
    char *url = strdup(mlo_buf_str(&e->url)), *at = strstr(url, UPLOAD_ID), path[256];
    if (at) {
        as_admin(api, &reply, "POST", DEMO "/uploads", "{}", NULL, 201);
        mlo_buf_reset(&e->url);
        mlo_buf_printf(&e->url, "%.*s%s%s", (int)(at - url), url, mlo_json_str(reply.json, "id", "?"),
                       at + strlen(UPLOAD_ID));
        snprintf(path, sizeof path, DEMO "/uploads/%s", mlo_json_str(reply.json, "id", "?"));
        if (strcmp(e->method, "PATCH") != 0)
            as_admin(api, &reply, "PATCH", path, "a model", NULL, 202);
    }
    free(url);
    reply_clear(&reply);
}

/* The documented answer of this status; NULL: none. */
static const json_t *response_of(const json_t *contract, const json_t *operation, long status)
{
    char text[16];
    snprintf(text, sizeof text, "%ld", status);
    const json_t *found = json_object_get(json_object_get(operation, "responses"), text);
    return found ? schema_resolve(contract, found) : NULL;
}

static const char *content_type(const struct reply *reply, char out[80])
{
    const char *at = strstr(mlo_buf_str(&reply->headers), "Content-Type: ");
    snprintf(out, 80, "%.*s", at ? (int)strcspn(at + 14, ";\r\n") : 0, at ? at + 14 : "");
    return out;
}

static void check_answer(const json_t *contract, const struct example *e, const struct reply *reply,
                         struct mlo_buf *wrong)
{
    struct mlo_buf why = MLO_BUF_INIT;
    char type[80];
    int64_t expected = mlo_json_i64(e->operation, "x-example-status", 0);
    const json_t *response = response_of(contract, e->operation, reply->status), *content;
    bool good = expected ? reply->status == expected : reply->status >= 200 && reply->status < 300;
    if (!good || !response) {
        mlo_buf_printf(wrong, "%s %s: %ld, %s: %.300s\n", e->method, mlo_buf_str(&e->url), reply->status,
                       response ? "not as its example says" : "which is not documented",
                       mlo_buf_str(&reply->body));
        return;
    }
    content = json_object_get(response, "content");
    content_type(reply, type);
    if (!content && reply->body.len)
        mlo_buf_printf(wrong, "%s %s: a body that is not documented\n", e->method, mlo_buf_str(&e->url));
    const json_t *media = json_object_get(content, type);
    if (content && !media)
        mlo_buf_printf(wrong, "%s %s: '%s' is no documented content type\n", e->method, mlo_buf_str(&e->url),
                       type);
    if (media && mlo_str_ends(type, "json") &&
        !schema_fits(contract, json_object_get(media, "schema"), reply->json, "body", &why))
        mlo_buf_printf(wrong, "%s %s: %s in %.1500s\n", e->method, mlo_buf_str(&e->url), mlo_buf_str(&why),
                       mlo_buf_str(&reply->body));
    if (media && mlo_str_ends(type, "json"))
        schema_unlisted(contract, json_object_get(media, "schema"), reply->json, "body", &why);
    if (why.len)
        mlo_buf_printf(wrong, "%s %s: %s\n", e->method, mlo_buf_str(&e->url), mlo_buf_str(&why));
    mlo_buf_clear(&why);
}

static void test_openapi__answers_every_example(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_buf wrong = MLO_BUF_INIT;
    json_t *contract = contract_load();
    size_t count, sent = 0;
    const struct mlo_operation *operations = mlo_http_operations(&count);
    make_world(api);
    for (int removing = 0; removing < 2; removing++) /* what others need is removed last */
        for (size_t i = 0; i < count; i++) {
            if ((strcmp(operations[i].method, "DELETE") == 0) != removing)
                continue;
            char method[16];
            struct example e = {.method = operations[i].method, .path = operations[i].path};
            snprintf(method, sizeof method, "%s", e.method);
            for (char *c = method; *c; c++)
                *c = (char)(*c | 0x20);
            e.operation =
                json_object_get(json_object_get(json_object_get(contract, "paths"), e.path), method);
            assert_non_null(e.operation);
            fill_in(contract, &e);
            with_upload(api, &e);
            const char *headers[9] = {NULL};
            for (size_t h = 0; h < e.header_count; h++)
                headers[h] = e.headers[h];
            api_call(api, &reply, e.method, mlo_buf_str(&e.url),
                     operations[i].open ? NULL : api->token[MLO_ADMIN],
                     e.body.len ? mlo_buf_str(&e.body) : NULL, headers);
            check_answer(contract, &e, &reply, &wrong);
            mlo_buf_clear(&e.url);
            mlo_buf_clear(&e.body);
            sent++;
        }
    json_decref(contract);
    reply_clear(&reply);
    if (wrong.len)
        fail_msg("%s", mlo_buf_str(&wrong));
    assert_int_equal(sent, count);
    mlo_buf_clear(&wrong);
}

static void test_openapi__can_be_read_as_pages(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    json_t *contract = contract_load(), *tag;
    size_t i, count;
    char path[128];
    const struct mlo_operation *operations = mlo_http_operations(&count);
    struct mlo_buf topics = MLO_BUF_INIT;
    api_call(api, &reply, "GET", "/docs/api", NULL, NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "default-src 'none'");
    for (i = 0; i < count; i++)
        assert_holds(mlo_buf_str(&reply.body), operations[i].path);
    assert_true(reply.body.len < 100000);
    json_array_foreach(json_object_get(contract, "tags"), i, tag)
    {
        snprintf(path, sizeof path, "/docs/api/%s", mlo_json_str(tag, "name", ""));
        assert_holds(mlo_buf_str(&reply.body), path);
    }
    json_array_foreach(json_object_get(contract, "tags"), i, tag)
    {
        snprintf(path, sizeof path, "/docs/api/%s", mlo_json_str(tag, "name", ""));
        api_call(api, &reply, "GET", path, NULL, NULL, NULL);
        assert_http(&reply, 200);
        assert_true(reply.body.len < 100000);
        mlo_buf_append(&topics, reply.body.data, reply.body.len);
    }
    for (i = 0; i < count; i++) { /* each has its section on one of them */
        snprintf(path, sizeof path, "id=\"%s\"", operations[i].id);
        assert_holds(mlo_buf_str(&topics), path);
    }
    api_call(api, &reply, "GET", "/docs/api/schemas", NULL, NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "id=\"Problem\"");
    api_call(api, &reply, "GET", "/docs/api/nothing", NULL, NULL, NULL);
    assert_http(&reply, 404);
    mlo_buf_clear(&topics);
    json_decref(contract);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_openapi__has_every_route_and_no_other),
        cmocka_unit_test(test_openapi__says_who_takes_an_idempotency_key),
        cmocka_unit_test(test_openapi__secrets_are_named_in_their_rows),
        API_TEST(test_openapi__is_whole_and_served),
        API_TEST(test_openapi__answers_every_example),
        API_TEST(test_openapi__can_be_read_as_pages),
    };
    API_MAIN(tests);
}
