/* MLflow's API: its filters, and the requests that its stock client was seen to send
 * (tests/e2e/test_mlflow.sh runs the client itself, where there is one). */
#include "tests/integration/api/api_fixture.h"

#include "api/http/mlflow_impl.h"

#define R "/api/2.0/mlflow/"
#define FILES "/api/2.0/mlflow-artifacts/artifacts"

/* --- filters, without a server ------------------------------------------------------------------- */

static void check_filter(enum mlo_mlflow_kind kind, const char *filter, const char *wanted)
{
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *conditions = NULL;
    enum mlo_status status = mlo_mlflow_filter(kind, filter, &conditions, &err);
    if (status == MLO_OK)
        mlo_json_canonical(conditions, &text);
    const char *got = status == MLO_OK ? mlo_buf_str(&text) : err.where;
    if (strcmp(got, wanted) != 0)
        fail_msg("%s\n   gives %s (%s)\n  wanted %s", filter, got, err.message, wanted);
    if (status != MLO_OK)
        assert_true(status == MLO_EINVAL && err.message[0] && err.hint[0]);
    json_decref(conditions);
    mlo_buf_clear(&text);
}

static void test_mlflow__filters_are_read_or_refused(void **state)
{
    static const struct {
        enum mlo_mlflow_kind kind;
        const char *filter, *wanted; /* canonical conditions, or where it fails */
    } cases[] = {
        {MLO_MLFLOW_MODELS, NULL, "[]"},
        {MLO_MLFLOW_MODELS, "  ", "[]"},
        {MLO_MLFLOW_MODELS, "name = 'a.b'", "[{\"field\":\"name\",\"op\":\"=\",\"text\":\"a.b\"}]"},
        {MLO_MLFLOW_MODELS, "name='it''s'", "[{\"field\":\"name\",\"op\":\"=\",\"text\":\"it's\"}]"},
        {MLO_MLFLOW_MODELS, "attribute.name ilike \"A%\" and tag.x != 'y'",
         "[{\"field\":\"name\",\"op\":\"ILIKE\",\"text\":\"A%\"},"
         "{\"field\":\"tag\",\"key\":\"x\",\"op\":\"!=\",\"text\":\"y\"}]"},
        {MLO_MLFLOW_MODELS, "tags.`a b`.c = ''", "filter, column 11"},
        {MLO_MLFLOW_MODELS, "tags.`a b.c` = ''",
         "[{\"field\":\"tag\",\"key\":\"a b.c\",\"op\":\"=\",\"text\":\"\"}]"},
        {MLO_MLFLOW_MODELS, "tags.a.b/c-d LIKE '%'",
         "[{\"field\":\"tag\",\"key\":\"a.b/c-d\",\"op\":\"LIKE\",\"text\":\"%\"}]"},
        {MLO_MLFLOW_MODELS, "name IN ('a','b' , 'c')",
         "[{\"field\":\"name\",\"list\":[\"a\",\"b\",\"c\"],\"op\":\"IN\"}]"},
        {MLO_MLFLOW_MODELS, "name not  in ('a')",
         "[{\"field\":\"name\",\"list\":[\"a\"],\"op\":\"NOT IN\"}]"},
        /* what the stock client adds to every search, and its opposite */
        {MLO_MLFLOW_MODELS, "name LIKE 'x%' AND tag.`mlflow.prompt.is_prompt` != 'true'",
         "[{\"field\":\"name\",\"op\":\"LIKE\",\"text\":\"x%\"}]"},
        {MLO_MLFLOW_MODELS, "tag.`mlflow.prompt.is_prompt` = 'true'",
         "[{\"field\":\"tag\",\"key\":\"mlflow.prompt.is_prompt\",\"op\":\"=\",\"text\":\"true\"}]"},
        {MLO_MLFLOW_VERSIONS, "version_number >= 3 AND run_id = 'r'",
         "[{\"field\":\"version\",\"number\":3,\"op\":\">=\"},"
         "{\"field\":\"none\",\"op\":\"=\",\"text\":\"r\"}]"},
        {MLO_MLFLOW_VERSIONS, "version_number<-1", "[{\"field\":\"version\",\"number\":-1,\"op\":\"<\"}]"},
        {MLO_MLFLOW_MODELS, "version_number = 3", "filter, column 1"},
        {MLO_MLFLOW_MODELS, "description = 'x'", "filter, column 1"},
        {MLO_MLFLOW_MODELS, "params.x = 'x'", "filter, column 1"},
        {MLO_MLFLOW_MODELS, "name > 'x'", "filter, column 6"},
        {MLO_MLFLOW_MODELS, "tags.x IN ('x')", "filter, column 8"},
        {MLO_MLFLOW_MODELS, "name = x", "filter, column 8"},
        {MLO_MLFLOW_MODELS, "name = 'x", "filter, column 10"},
        {MLO_MLFLOW_MODELS, "name = 'x' OR name = 'y'", "filter, column 12"},
        {MLO_MLFLOW_MODELS, "name = 'x' AND", "filter, column 15"},
        {MLO_MLFLOW_MODELS, "name = 'x' name = 'y'", "filter, column 12"},
        {MLO_MLFLOW_MODELS, "(name = 'x')", "filter, column 1"},
        {MLO_MLFLOW_MODELS, "name IN ()", "filter, column 10"},
        {MLO_MLFLOW_MODELS, "name IN ('a'", "filter, column 13"},
        {MLO_MLFLOW_MODELS, "name NOT LIKE 'a'", "filter, column 6"},
        {MLO_MLFLOW_VERSIONS, "version_number = 99999999999999999999", "filter, column 18"},
        {MLO_MLFLOW_VERSIONS, "version_number = 1.5", "filter, column 18"},
        {MLO_MLFLOW_VERSIONS, "version_number LIKE '1'", "filter, column 16"},
        {MLO_MLFLOW_MODELS, "name = '\xff'", "filter, column 1"},
        {MLO_MLFLOW_MODELS, "tags. = 'x'", "filter, column 6"},
        {MLO_MLFLOW_MODELS, "tags.`` = 'x'", "filter, column 8"},
    };
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        check_filter(cases[i].kind, cases[i].filter, cases[i].wanted);
}

static void test_mlflow__orders_are_read_or_refused(void **state)
{
    static const struct {
        enum mlo_mlflow_kind kind;
        const char *entries[3];
        int by; /* -1: refused */
        bool falling;
    } cases[] = {
        {MLO_MLFLOW_MODELS, {NULL}, MLO_MLFLOW_NAME, false},
        {MLO_MLFLOW_VERSIONS, {NULL}, MLO_MLFLOW_CHANGED, true},
        {MLO_MLFLOW_MODELS, {"name DESC"}, MLO_MLFLOW_NAME, true},
        {MLO_MLFLOW_MODELS, {"  attribute.creation_timestamp  asc "}, MLO_MLFLOW_CREATED, false},
        {MLO_MLFLOW_MODELS, {"last_updated_timestamp DESC", "name ASC"}, MLO_MLFLOW_CHANGED, true},
        {MLO_MLFLOW_VERSIONS, {"name", "version_number DESC"}, MLO_MLFLOW_NAME, false},
        {MLO_MLFLOW_VERSIONS, {"version_number DESC", "name"}, MLO_MLFLOW_VERSION, true},
        {MLO_MLFLOW_VERSIONS,
         {"creation_timestamp", "name", "version_number DESC"},
         MLO_MLFLOW_CREATED,
         false},
        {MLO_MLFLOW_MODELS, {"version_number"}, -1, false},
        {MLO_MLFLOW_MODELS, {"name", "name"}, -1, false},
        {MLO_MLFLOW_VERSIONS, {"name", "version_number ASC"}, -1, false},
        {MLO_MLFLOW_MODELS, {"name; DROP TABLE x"}, -1, false},
        {MLO_MLFLOW_MODELS, {"name ASC DESC"}, -1, false},
        {MLO_MLFLOW_MODELS, {"tags.x"}, -1, false},
        {MLO_MLFLOW_MODELS, {" "}, -1, false},
    };
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_error err = {0};
        struct mlo_mlflow_order order;
        size_t count = 0;
        while (count < 3 && cases[i].entries[count])
            count++;
        enum mlo_status status = mlo_mlflow_order(cases[i].kind, cases[i].entries, count, &order, &err);
        if (cases[i].by < 0
                ? status != MLO_EINVAL
                : status != MLO_OK || (int)order.by != cases[i].by || order.falling != cases[i].falling)
            fail_msg("case %zu: %s", i, err.message);
    }
}

static void test_mlflow__names_are_read_in_one_way(void **state)
{
    static const struct {
        const char *name, *project, *model;
    } cases[] = {
        {"a.b", "a", "b"},       {"a.b.c", "a", "b.c"}, {"a..b.c", "a.b", "c"}, {"a...b", "a.", "b"},
        {"a.b..c", "a", "b..c"}, {"a..b", NULL, NULL},  {"a", NULL, NULL},      {"a.", NULL, NULL},
        {".a", NULL, NULL},      {"a/b", NULL, NULL},   {"", NULL, NULL},       {"a.-b", NULL, NULL},
    };
    char project[104], model[104];
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        assert_int_equal(mlo_catalog_name_parse(cases[i].name, project, model), cases[i].project != NULL);
        if (cases[i].project) {
            assert_string_equal(project, cases[i].project);
            assert_string_equal(model, cases[i].model);
        }
    }
}

static void test_mlflow__an_mlmodel_says_what_mlflow_can_say(void **state)
{
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *signature = json_loads(
        "{\"inputs\": [{\"name\": \"\xc3\xa9\\\"\", \"type\": \"float32\", \"shape\": [\"N\", null, 3]}],"
        " \"outputs\": [{\"name\": \"y\", \"type\": \"int64\", \"shape\": [1]}]}",
        0, NULL);
    struct mlo_mlmodel model = {"a\xf0\x9f\x98\x80.onnx", "p/m@1/source", "2026", "sha256:0", 7, signature};
    MLO_UNUSED(state);
    mlo_mlmodel_write(&model, &text);
    assert_holds(mlo_buf_str(&text), "    data: \"a\\U0001f600.onnx\"\n");
    assert_holds(mlo_buf_str(&text), "\"\\\\u00E9\\\\\\\"\\\"");
    assert_holds(mlo_buf_str(&text), "\\\"shape\\\":[-1,-1,3]");
    assert_holds(mlo_buf_str(&text), "    loader_module: mlflow.onnx\n");
    mlo_buf_reset(&text);
    json_object_set_new(json_array_get(json_object_get(signature, "inputs"), 0), "type",
                        json_string("bfloat16"));
    mlo_mlmodel_write(&model, &text); /* NumPy has no such type */
    assert_null(strstr(mlo_buf_str(&text), "signature"));
    json_decref(signature);
    mlo_buf_clear(&text);
}

/* --- as the client asks -------------------------------------------------------------------------- */

static void get(struct api *api, struct reply *reply, const char *path, int wanted)
{
    api_call(api, reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    if (reply->status != wanted)
        fail_msg("%s: %ld, not %d: %s", path, reply->status, wanted, mlo_buf_str(&reply->body));
}

static void expect_error(const struct reply *reply, const char *code, const char *part)
{
    assert_string_equal(mlo_json_str(reply->json, "error_code", "?"), code);
    assert_holds(mlo_json_str(reply->json, "message", ""), part);
    assert_non_null(json_object_get(reply->json, "request_id")); /* a problem as well */
}

static void post(struct api *api, struct reply *reply, const char *path, const char *body,
                 const char *generation)
{
    char header[48];
    snprintf(header, sizeof header, "If-Match: \"%s\"", generation ? generation : "");
    const char *const headers[] = {generation ? header : NULL, NULL};
    api_call(api, reply, "POST", path, api->token[MLO_ADMIN], body, headers);
    if (reply->status != 201)
        fail_msg("%s: %ld %s", path, reply->status, mlo_buf_str(&reply->body));
}

/* The values of `member` in an array, as "a b". */
static const char *joined(const json_t *array, const char *member, char out[400])
{
    json_t *item;
    size_t i, used = 0;
    out[0] = '\0';
    json_array_foreach((json_t *)array, i, item) used +=
        (size_t)snprintf(out + used, 400 - used, "%s%s", i ? " " : "", mlo_json_str(item, member, "?"));
    return out;
}

static void expect_names(struct api *api, const char *path, const char *list, const char *member,
                         const char *wanted)
{
    struct reply reply = {0};
    char got[400];
    get(api, &reply, path, 200);
    joined(json_object_get(reply.json, list), member, got);
    if (strcmp(got, wanted) != 0)
        fail_msg("%s: '%s', not '%s'", path, got, wanted);
    reply_clear(&reply);
}

#define MODELS(query, wanted)                                                                                \
    expect_names(api, R "registered-models/search" query, "registered_models", "name", wanted)
#define VERSIONS(query, wanted)                                                                              \
    expect_names(api, R "model-versions/search" query, "model_versions", "version", wanted)

static const char *tag(const json_t *version, const char *key)
{
    json_t *item;
    size_t i;
    json_array_foreach(json_object_get(version, "tags"), i,
                       item) if (strcmp(mlo_json_str(item, "key", ""), key) ==
                                 0) return mlo_json_str(item, "value", "");
    return "none";
}

/* demo/cnn with versions 1 (int8, in production), 2 (with weights beside it, in staging) and 3; demo/net;
 * a.lab/b.c. */
static void make_world(struct api *api)
{
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_version_info version;
    struct mlo_digest digest;
    char one[MLO_DIGEST_TEXT_SIZE], two[MLO_DIGEST_TEXT_SIZE], body[1024];
    int64_t model;
    static const char *const teams[] = {"vision", "edge", "Edge"};
    api_upload(api, "demo", "weights", two);
    for (int i = 0; i < 3; i++) {
        char text[16];
        snprintf(text, sizeof text, "cnn %d", i + 1);
        api_upload(api, "demo", text, one);
        snprintf(body, sizeof body,
                 "{\"files\":[{\"role\":\"model\",\"name\":\"net.onnx\",\"digest\":\"%s\"}%s%s%s],"
                 "\"description\":\"number %d\",\"facts\":{\"tags\":{\"team\":\"%s\",\"n%d\":\"\","
                 "\"mlopt.production.release\":\"9\",\"mlopt.staging.digests\":\"any=forged\","
                 "\"mlopt.own\":\"forged\"}}}",
                 one, i == 1 ? ",{\"role\":\"data\",\"name\":\"net.bin\",\"digest\":\"" : "",
                 i == 1 ? two : "", i == 1 ? "\"}" : "", i + 1, teams[i], i + 1);
        post(api, &reply, "/v1/projects/demo/models/cnn/versions", body, NULL);
    }
    api_version(api, "net", "net", "");
    post(api, &reply, "/v1/projects", "{\"name\":\"a.lab\"}", NULL);
    api_upload(api, "a.lab", "c", one);
    snprintf(body, sizeof body, "{\"files\":[{\"role\":\"model\",\"name\":\"c.bin\",\"digest\":\"%s\"}]}",
             one);
    post(api, &reply, "/v1/projects/a.lab/models/b.c/versions", body, NULL);
    api_upload(api, "demo", "int8", one);
    assert_true(mlo_digest_parse(one, &digest));
    assert_mlo_ok(mlo_model_find(api->pg->conn, api->project, "cnn", &model, &err), &err);
    assert_mlo_ok(mlo_version_find(api->pg->conn, model, 1, &version, &err), &err);
    assert_mlo_ok(mlo_variant_name(api->pg->conn, &system, version.id, "int8", &digest, NULL, 0, NULL, &err),
                  &err);
    post(api, &reply, "/v1/projects/demo/models/cnn/promotions",
         "{\"stage\":\"production\",\"version\":1,\"variants\":{\"any\":\"int8\",\"cpu:avx2\":\"source\"},"
         "\"reason\":\"good\"}",
         "0");
    post(api, &reply, "/v1/projects/demo/models/cnn/promotions",
         "{\"stage\":\"staging\",\"version\":2,\"variants\":{\"any\":\"source\"},\"reason\":\"good\"}", "0");
    reply_clear(&reply);
}

static void test_mlflow__models_versions_and_aliases_are_read(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char got[400];
    make_world(api);
    get(api, &reply, R "registered-models/get?name=demo.cnn", 200);
    const json_t *model = json_object_get(reply.json, "registered_model");
    assert_string_equal(joined(json_object_get(model, "aliases"), "alias", got), "production staging");
    assert_string_equal(joined(json_object_get(model, "aliases"), "version", got), "1 2");
    assert_string_equal(joined(json_object_get(model, "latest_versions"), "version", got), "1 2 3");
    assert_string_equal(tag(model, "mlopt.project"), "demo");
    assert_true(mlo_json_i64(model, "last_updated_timestamp", 0) >=
                mlo_json_i64(model, "creation_timestamp", 0));
    assert_true(mlo_json_i64(model, "creation_timestamp", 0) > 1500000000000);
    get(api, &reply, R "registered-models/alias?name=demo.cnn&alias=production", 200);
    const json_t *version = json_object_get(reply.json, "model_version");
    assert_string_equal(mlo_json_str(version, "version", ""), "1");
    assert_string_equal(mlo_json_str(version, "description", ""), "number 1");
    assert_string_equal(mlo_json_str(version, "current_stage", ""), "Production");
    assert_string_equal(mlo_json_str(version, "source", ""), "mlflow-artifacts:/demo.cnn/1");
    assert_string_equal(mlo_json_str(version, "status", ""), "READY");
    assert_string_equal(tag(version, "team"), "vision");
    assert_string_equal(tag(version, "mlopt.variants"), "int8,source");
    assert_string_equal(tag(version, "mlopt.production.release"), "1");
    assert_string_equal(tag(version, "mlopt.production.variants"), "any=int8,cpu:avx2=source");
    assert_string_equal(tag(version, "mlopt.staging.release"), "none");
    assert_string_equal(tag(version, "mlopt.staging.digests"), "none"); /* what its uploader says of it */
    assert_string_equal(tag(version, "mlopt.own"), "none");
    assert_true(mlo_str_starts(tag(version, "mlopt.digest"), "sha256:"));
    assert_holds(tag(version, "mlopt.production.digests"), tag(version, "mlopt.digest"));
    get(api, &reply, R "model-versions/get-download-uri?name=demo.cnn&version=1", 200);
    assert_string_equal(mlo_json_str(reply.json, "artifact_uri", ""), "mlflow-artifacts:/demo.cnn/1");
    /* stages, as the client asks for them: by POST first, or as arguments */
    api_call(api, &reply, "POST", R "registered-models/get-latest-versions", api->token[MLO_VIEWER],
             "{\"name\":\"demo.cnn\",\"stages\":[\"Staging\",\"none\",\"Archived\"]}", NULL);
    assert_http(&reply, 200);
    assert_string_equal(joined(json_object_get(reply.json, "model_versions"), "version", got), "2 3");
    expect_names(api,
                 R "registered-models/get-latest-versions?name=demo.cnn&stages=Production&stages=Staging",
                 "model_versions", "version", "1 2");
    expect_names(api, R "registered-models/get-latest-versions?name=demo.cnn", "model_versions", "version",
                 "1 2 3");
    /* what is archived is no longer the latest */
    api_call(api, &reply, "POST", "/v1/projects/demo/models/cnn/versions/3/archive", api->token[MLO_ADMIN],
             "{\"reason\":\"old\"}", NULL);
    assert_http(&reply, 200);
    expect_names(api, R "registered-models/get-latest-versions?name=demo.cnn", "model_versions", "version",
                 "1 2");
    expect_names(api, R "registered-models/get-latest-versions?name=demo.cnn&stages=Archived",
                 "model_versions", "current_stage", "Archived");
    get(api, &reply, "/api/3.0/mlflow/server-info", 200);
    assert_false(mlo_json_bool(reply.json, "workspaces_enabled", true));
    reply_clear(&reply);
}

#define PROMPT "tag.%60mlflow.prompt.is_prompt%60%20!%3D%20%27true%27"

static void test_mlflow__searches_find_what_fits(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[512];
    make_world(api);
    MODELS("", "a..lab.b.c demo.cnn demo.net");
    MODELS("?filter=" PROMPT "&max_results=100", "a..lab.b.c demo.cnn demo.net");
    MODELS("?filter=tag.%60mlflow.prompt.is_prompt%60%20%3D%20'true'", "");
    MODELS("?filter=name%20LIKE%20'demo.%25'", "demo.cnn demo.net");
    MODELS("?filter=name%20LIKE%20'demo._et'", "demo.net");
    MODELS("?filter=name%20LIKE%20'demo%5C'", "");
    MODELS("?filter=name%20ILIKE%20'%25CNN'", "demo.cnn");
    MODELS("?filter=name%20%3D%20'demo.net'", "demo.net");
    MODELS("?filter=name%20%3D%20'demo.none'", "");
    MODELS("?filter=name%20!%3D%20'demo.net'%20AND%20tags.mlopt.project%20%3D%20'demo'", "demo.cnn");
    MODELS("?filter=name%20IN%20('demo.net','x','a..lab.b.c')", "a..lab.b.c demo.net");
    MODELS("?filter=name%20NOT%20IN%20('demo.net')", "a..lab.b.c demo.cnn");
    MODELS("?filter=tags.other%20!%3D%20'x'", "");
    MODELS("?order_by=name%20DESC", "demo.net demo.cnn a..lab.b.c");
    MODELS("?order_by=creation_timestamp%20DESC&order_by=name%20ASC", "a..lab.b.c demo.net demo.cnn");
    MODELS("?order_by=last_updated_timestamp%20DESC", "demo.cnn a..lab.b.c demo.net"); /* it was promoted */
    VERSIONS("?filter=name%20%3D%20'demo.cnn'&max_results=10000", "3 2 1");
    VERSIONS("?filter=name%20%3D%20'demo.cnn'&order_by=version_number", "1 2 3");
    VERSIONS("?filter=name%20%3D%20'demo.cnn'%20and%20version_number%20%3E%201", "3 2");
    VERSIONS("?filter=tags.team%20%3D%20'edge'", "2");
    VERSIONS("?filter=tags.team%20ILIKE%20'EDGE'", "3 2");
    VERSIONS("?filter=tags.team%20!%3D%20'edge'", "3 1");
    VERSIONS("?filter=tags.n1%20%3D%20''", "1");
    VERSIONS("?filter=tags.%60mlopt.production.release%60%20%3D%20'1'", "1");
    VERSIONS("?filter=tags.%60mlopt.production.release%60%20%3D%20'9'", ""); /* its uploader's */
    VERSIONS("?filter=tags.%60mlopt.staging.digests%60%20LIKE%20'%25forged'", "");
    VERSIONS("?filter=tags.mlopt.own%20%3D%20'forged'", "");
    VERSIONS("?filter=tags.mlopt.manifest%20LIKE%20'sha256:%25'%20AND%20tags.mlopt.model%20%3D%20'cnn'",
             "3 2 1");
    VERSIONS("?filter=tags.mlopt.variants%20LIKE%20'%25int8%25'", "1");
    VERSIONS("?filter=run_id%20%3D%20'x'", "");
    expect_names(api, R "model-versions/search?order_by=name&order_by=version_number%20DESC",
                 "model_versions", "name", "a..lab.b.c demo.cnn demo.cnn demo.cnn demo.net");
    /* pages: each order, one by one */
    static const char *const orders[] = {"name", "name%20DESC", "creation_timestamp", "version_number%20DESC",
                                         "last_updated_timestamp%20DESC"};
    for (size_t i = 0; i < MLO_COUNT(orders); i++) {
        char token[400] = "", seen[400], all[400];
        size_t used = 0, pages = 0;
        snprintf(path, sizeof path, R "model-versions/search?order_by=%s", orders[i]);
        get(api, &reply, path, 200);
        joined(json_object_get(reply.json, "model_versions"), "source", all);
        do {
            snprintf(path, sizeof path, R "model-versions/search?max_results=1&order_by=%s%s%.300s",
                     orders[i], *token ? "&page_token=" : "", token);
            get(api, &reply, path, 200);
            const json_t *items = json_object_get(reply.json, "model_versions");
            assert_int_equal(json_array_size(items), 1);
            used += (size_t)snprintf(seen + used, sizeof seen - used, "%s%s", pages++ ? " " : "",
                                     mlo_json_str(json_array_get(items, 0), "source", "?"));
            snprintf(token, sizeof token, "%s", mlo_json_str(reply.json, "next_page_token", ""));
        } while (*token && pages < 9);
        assert_string_equal(seen, all);
        assert_int_equal(pages, 5);
    }
    get(api, &reply, R "registered-models/search?max_results=1", 200);
    snprintf(path, sizeof path, R "registered-models/search?order_by=name%%20DESC&page_token=%s",
             mlo_json_str(reply.json, "next_page_token", ""));
    get(api, &reply, path, 422); /* of another search */
    expect_error(&reply, "INVALID_PARAMETER_VALUE", "page_token");
    get(api, &reply, R "registered-models/search?max_results=1", 200);
    snprintf(path, sizeof path, R "registered-models/search?page_token=%.17s0~0~demo.%%ff",
             mlo_json_str(reply.json, "next_page_token", ""));
    get(api, &reply, path, 422); /* made by somebody else */
    expect_error(&reply, "INVALID_PARAMETER_VALUE", "page_token");
    reply_clear(&reply);
}

static void expect_files(struct api *api, const char *path, const char *wanted)
{
    char url[300];
    snprintf(url, sizeof url, FILES "?path=%s", path);
    expect_names(api, url, "files", "path", wanted);
}

static void expect_bytes(struct api *api, const char *path, const char *wanted)
{
    struct reply reply = {0};
    char url[300];
    snprintf(url, sizeof url, FILES "/%s", path);
    get(api, &reply, url, 200);
    assert_string_equal(mlo_buf_str(&reply.body), wanted);
    assert_holds(mlo_buf_str(&reply.headers), "X-Mlopt-Digest: sha256:");
    reply_clear(&reply);
}

static void test_mlflow__files_are_those_of_the_registry(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    make_world(api);
    expect_files(api, "demo.cnn/2", "net.bin net.onnx MLmodel");
    expect_files(api, "/demo.cnn//2/", "net.bin net.onnx MLmodel");
    expect_files(api, "demo.cnn/2/net.onnx", ""); /* a file has nothing in it */
    expect_files(api, "demo.cnn/1/variants", "int8 source");
    expect_files(api, "demo.cnn/1/stages", "production");
    expect_files(api, "demo.cnn/1/variants/int8", "model.onnx MLmodel");
    expect_files(api, "demo.cnn/2/variants/source", "net.bin net.onnx MLmodel");
    expect_files(api, "demo.cnn/1/stages/production", "model.onnx MLmodel");
    expect_files(api, "demo.cnn/1/stages/production/model.onnx", "");
    expect_files(api, "a..lab.b.c/1", "c.bin"); /* nobody says that it is ONNX */
    expect_bytes(api, "demo.cnn/2/net.onnx", "cnn 2");
    expect_bytes(api, "demo.cnn/2/net.bin", "weights");
    expect_bytes(api, "demo.cnn/1/variants/int8/model.onnx", "int8");
    expect_bytes(api, "demo.cnn/1/variants/source/net.onnx", "cnn 1");
    expect_bytes(api, "demo.cnn/1/stages/production/model.onnx", "int8");
    expect_bytes(api, "demo.cnn/2/stages/staging/net.bin", "weights");
    get(api, &reply, FILES "/demo.cnn/1/stages/production/MLmodel", 200);
    assert_holds(mlo_buf_str(&reply.body), "    data: \"model.onnx\"\n");
    assert_holds(mlo_buf_str(&reply.body), "  mlopt.ref: \"demo/cnn@1/int8\"\n");
    size_t size = reply.body.len;
    get(api, &reply, FILES "?path=demo.cnn/1/stages/production", 200);
    assert_int_equal(mlo_json_i64(json_array_get(json_object_get(reply.json, "files"), 1), "file_size", 0),
                     (int64_t)size);
    static const char *const missing[] = {
        "/demo.cnn/1/none",
        "/demo.cnn/9/net.onnx",
        "/demo.cnn/1/variants/none/model.onnx",
        "/demo.none/1/net.onnx",
        "/demo.cnn/x/net.onnx",
        "/demo.cnn/2/stages/production/net.onnx",
        "?path=demo.cnn/1/none",
        "?path=demo.cnn/1/a/b",
        "?path=demo.cnn/1/stages/archived",
        "?path=demo.cnn/1/../2/x/y",
        "?path=demo.cnn/1/variants/x/y/z",
    };
    for (size_t i = 0; i < MLO_COUNT(missing); i++) {
        char url[200];
        snprintf(url, sizeof url, FILES "%s", missing[i]);
        get(api, &reply, url, 404);
        expect_error(&reply, "RESOURCE_DOES_NOT_EXIST", "");
    }
    get(api, &reply, FILES "?path=demo.cnn", 422);
    get(api, &reply, FILES, 422);
    reply_clear(&reply);
}

static void test_mlflow__what_is_not_done_is_refused_in_its_words(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    static const struct {
        const char *path;
        int http;
        const char *code, *part;
    } reads[] = {
        {R "registered-models/get?name=demo.none", 404, "RESOURCE_DOES_NOT_EXIST",
         "name=demo.none not found"},
        {R "registered-models/get?name=demo", 404, "RESOURCE_DOES_NOT_EXIST", "PROJECT.MODEL"},
        {R "registered-models/get", 422, "INVALID_PARAMETER_VALUE", "name"},
        {R "registered-models/alias?name=demo.net&alias=champion", 404, "RESOURCE_DOES_NOT_EXIST",
         "champion"},
        {R "model-versions/get?name=demo.net&version=7", 404, "RESOURCE_DOES_NOT_EXIST", "version=7"},
        {R "model-versions/get?name=demo.net&version=x", 404, "RESOURCE_DOES_NOT_EXIST", "number"},
        {R "registered-models/search?filter=metrics.x%3E1", 422, "INVALID_PARAMETER_VALUE", "column 1"},
        {R "registered-models/search?order_by=size", 422, "INVALID_PARAMETER_VALUE", "order_by"},
        {R "registered-models/search?max_results=1001", 422, "INVALID_PARAMETER_VALUE", "max_results"},
        {R "model-versions/search?max_results=0", 422, "INVALID_PARAMETER_VALUE", "max_results"},
        {R "registered-models/get-latest-versions?name=demo.net&stages=Old", 422, "INVALID_PARAMETER_VALUE",
         "Old"},
        {R "experiments/search", 404, "ENDPOINT_NOT_FOUND", "docs/mlflow.md"},
    };
    static const struct {
        const char *method, *path;
        int http;
        const char *part;
    } writes[] = {
        {"POST", R "registered-models/create", 403, "mlopt push"},
        {"POST", R "registered-models/alias", 405, "mlopt promote"},
        {"DELETE", R "registered-models/alias", 405, "mlopt rollback"},
        {"POST", R "model-versions/transition-stage", 403, "mlopt promote"},
        {"DELETE", R "model-versions/delete", 403, "mlopt delete"},
        {"PATCH", R "registered-models/update", 403, "mlopt push"},
        {"PUT", FILES "/demo.net/1/m.onnx", 405, "mlopt push"},
    };
    api_version(api, "net", "net", "");
    for (size_t i = 0; i < MLO_COUNT(reads); i++) {
        get(api, &reply, reads[i].path, reads[i].http);
        expect_error(&reply, reads[i].code, reads[i].part);
    }
    for (size_t i = 0; i < MLO_COUNT(writes); i++) {
        api_call(api, &reply, writes[i].method, writes[i].path, api->token[MLO_ADMIN], "{\"name\":\"x\"}",
                 NULL);
        assert_http(&reply, writes[i].http);
        expect_error(&reply, "PERMISSION_DENIED", writes[i].part);
    }
    api_call(api, &reply, "POST", R "model-versions/search", api->token[MLO_ADMIN], "{}", NULL);
    assert_http(&reply, 405);
    expect_error(&reply, "ENDPOINT_NOT_FOUND", "method");
    get(api, &reply, "/v1/projects/none/models", 404); /* elsewhere problems are as they were */
    assert_null(json_object_get(reply.json, "error_code"));
    reply_clear(&reply);
}

static void test_mlflow__one_sees_what_the_token_may(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_buf pair = MLO_BUF_INIT, header = MLO_BUF_INIT;
    char token[MLO_TOKEN_TEXT_SIZE], got[400];
    make_world(api);
    api_call(api, &reply, "POST", "/v1/tokens", api->token[MLO_ADMIN],
             "{\"name\":\"lab\",\"role\":\"viewer\",\"project\":\"a.lab\"}", NULL);
    assert_http(&reply, 201);
    snprintf(token, sizeof token, "%s", mlo_json_str(reply.json, "token", ""));
    /* with MLFLOW_TRACKING_USERNAME and _PASSWORD */
    mlo_buf_printf(&pair, "me:%s", token);
    mlo_buf_puts(&header, "Authorization: Basic ");
    mlo_base64_encode(pair.data, pair.len, &header);
    const char *const basic[] = {mlo_buf_str(&header), NULL};
    api_call(api, &reply, "GET", R "registered-models/search", NULL, NULL, basic);
    assert_http(&reply, 200);
    assert_string_equal(joined(json_object_get(reply.json, "registered_models"), "name", got), "a..lab.b.c");
    api_call(api, &reply, "GET", R "model-versions/search", token, NULL, NULL);
    assert_string_equal(joined(json_object_get(reply.json, "model_versions"), "name", got), "a..lab.b.c");
    api_call(api, &reply, "GET", R "model-versions/search?filter=name%3D'demo.cnn'", token, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(joined(json_object_get(reply.json, "model_versions"), "name", got), "");
    static const char *const others[] = {R "registered-models/get?name=demo.cnn",
                                         R "registered-models/alias?name=demo.cnn&alias=production",
                                         R "model-versions/get?name=demo.cnn&version=1",
                                         R "model-versions/get-download-uri?name=demo.cnn&version=1",
                                         R "registered-models/get-latest-versions?name=demo.cnn",
                                         FILES "?path=demo.cnn/1",
                                         FILES "/demo.cnn/1/net.onnx",
                                         FILES "/demo.cnn/1/variants/int8/model.onnx",
                                         FILES "/demo.cnn/1/stages/production/model.onnx"};
    for (size_t i = 0; i < MLO_COUNT(others); i++) {
        api_call(api, &reply, "GET", others[i], token, NULL, NULL);
        assert_http(&reply, 404);
        expect_error(&reply, "RESOURCE_DOES_NOT_EXIST", "demo.cnn not found");
    }
    api_call(api, &reply, "GET", R "registered-models/search", NULL, NULL, NULL);
    assert_http(&reply, 401);
    expect_error(&reply, "UNAUTHENTICATED", "token");
    mlo_buf_clear(&pair);
    mlo_buf_clear(&header);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlflow__filters_are_read_or_refused),
        cmocka_unit_test(test_mlflow__orders_are_read_or_refused),
        cmocka_unit_test(test_mlflow__names_are_read_in_one_way),
        cmocka_unit_test(test_mlflow__an_mlmodel_says_what_mlflow_can_say),
        API_TEST(test_mlflow__models_versions_and_aliases_are_read),
        API_TEST(test_mlflow__searches_find_what_fits),
        API_TEST(test_mlflow__files_are_those_of_the_registry),
        API_TEST(test_mlflow__what_is_not_done_is_refused_in_its_words),
        API_TEST(test_mlflow__one_sees_what_the_token_may),
    };
    API_MAIN(tests);
}
