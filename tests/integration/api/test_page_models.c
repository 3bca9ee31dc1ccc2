/* The pages of models: stages, reports, profiles, comparisons, lineage. */
#include "tests/integration/api/pages_fixture.h"

static void test_page_models__forms_follow_the_rules_of_the_api(void **state)
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

static void test_page_models__a_report_is_linked_and_escaped(void **state)
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

static void test_page_models__how_a_variant_runs(void **state)
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

static void test_page_models__variants_side_by_side(void **state)
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

/* Bytes that thousands of versions are, and hundreds of variants of one: pages stay small, the root is drawn,
 * and the rest is a page further. */
static void test_page_models__lineage_is_bounded(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_page_models__forms_follow_the_rules_of_the_api),
        API_TEST(test_page_models__a_report_is_linked_and_escaped),
        API_TEST(test_page_models__how_a_variant_runs),
        API_TEST(test_page_models__variants_side_by_side),
        API_TEST(test_page_models__lineage_is_bounded),
    };
    API_MAIN(tests);
}
