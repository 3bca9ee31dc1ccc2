/* Comments, making variants again, and signatures, through the API and the pages. */
#include "tests/integration/api/api_fixture.h"

#define MODEL "/v1/projects/demo/models/cnn"

static void test_comments__by_the_api(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *if_match[] = {"If-Match: \"0\"", NULL};
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "POST", MODEL "/promotions", api->token[MLO_PROMOTER],
             "{\"stage\":\"staging\",\"variants\":{\"any\":\"source\"},\"reason\":\"try\"}", if_match);
    assert_http(&reply, 201);
    api_call(api, &reply, "POST", MODEL "/versions/latest/comments", api->token[MLO_VIEWER],
             "{\"text\":\"x\"}", NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", MODEL "/versions/latest/comments", api->token[MLO_SUBMITTER], "{}", NULL);
    assert_http(&reply, 422);
    api_call(api, &reply, "POST", MODEL "/versions/latest/comments", api->token[MLO_SUBMITTER],
             "{\"text\":\" \"}", NULL);
    assert_http(&reply, 422);
    api_call(api, &reply, "POST", MODEL "/versions/latest/comments", api->token[MLO_SUBMITTER],
             "{\"text\":\"trained without the night images\"}", NULL);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "version", 0), 1);
    assert_true(json_is_null(json_object_get(reply.json, "release")));
    api_call(api, &reply, "POST", MODEL "/releases/1/comments", api->token[MLO_PROMOTER],
             "{\"text\":\"watch p99\"}", NULL);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "release", 0), 1);
    api_call(api, &reply, "POST", MODEL "/releases/7/comments", api->token[MLO_PROMOTER], "{\"text\":\"x\"}",
             NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", MODEL "/releases/x/comments", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", MODEL "/versions/1/comments", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 2);
    api_call(api, &reply, "GET", MODEL "/releases/1/comments", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    reply_clear(&reply);
}

static void test_comments__on_the_page_of_a_model(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char cookie[160], csrf[96], body[512];
    const char *headers[] = {cookie, NULL};
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_SUBMITTER]);
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, headers);
    assert_http(&reply, 200);
    static const char mark[] = "name=\"csrf\" value=\"";
    const char *at = strstr(mlo_buf_str(&reply.body), "action=\"/models/demo/cnn/comment\"");
    assert_non_null(at);
    at = strstr(at, mark);
    assert_non_null(at);
    at += strlen(mark);
    snprintf(csrf, sizeof csrf, "%.*s", (int)strcspn(at, "\""), at);
    snprintf(body, sizeof body, "csrf=%s&version=1&release=&text=%%3Cscript%%3Efine", csrf);
    api_call(api, &reply, "POST", "/models/demo/cnn/comment", NULL, body + strlen("csrf=") + strlen(csrf) + 1,
             headers);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", "/models/demo/cnn/comment", NULL, body, headers);
    assert_http(&reply, 303);
    snprintf(body, sizeof body, "csrf=%s&version=1&release=5&text=x", csrf);
    api_call(api, &reply, "POST", "/models/demo/cnn/comment", NULL, body, headers);
    assert_http(&reply, 404);
    /* who only looks sees what was said, and no form */
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    api_call(api, &reply, "GET", "/models/demo/cnn?version=1", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "&lt;script&gt;fine");
    assert_null(strstr(mlo_buf_str(&reply.body), "<script>fine"));
    assert_null(strstr(mlo_buf_str(&reply.body), "/models/demo/cnn/comment"));
    reply_clear(&reply);
}

static void test_reproduce__by_the_api(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "GET", MODEL "/versions/1/variants/source/reproductions", api->token[MLO_VIEWER],
             NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0);
    api_call(api, &reply, "POST", MODEL "/versions/1/variants/source/reproductions", api->token[MLO_VIEWER],
             "{}", NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", MODEL "/versions/1/variants/source/reproductions",
             api->token[MLO_SUBMITTER], "{}", NULL);
    assert_http(&reply, 422);
    assert_holds(mlo_json_str(reply.json, "detail", ""), "is the upload itself");
    api_call(api, &reply, "POST", MODEL "/versions/1/variants/none/reproductions", api->token[MLO_SUBMITTER],
             "{}", NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_signature__is_shown_and_checked(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], cookie[160];
    const char *headers[] = {cookie, NULL};
    api_upload(api, "demo", "one", digest);
    json_t *body = json_pack("{s:[{s:s, s:s, s:s}], s:{s:i}}", "files", "role", "model", "name", "m.onnx",
                             "digest", digest, "signature", "inputs", 7);
    char *text = json_dumps(body, 0);
    api_call(api, &reply, "POST", MODEL "/versions", api->token[MLO_SUBMITTER], text, NULL);
    assert_http(&reply, 422);
    assert_holds(mlo_json_str(reply.json, "where", ""), "signature.inputs");
    free(text);
    json_object_set_new(body, "signature",
                        json_pack("{s:[{s:s, s:s, s:[s, i]}], s:[], s:n}", "inputs", "name", "<b>x", "type",
                                  "float32", "shape", "N", 28, "outputs", "labels"));
    text = json_dumps(body, 0);
    api_call(api, &reply, "POST", MODEL "/versions", api->token[MLO_SUBMITTER], text, NULL);
    assert_http(&reply, 201);
    free(text);
    json_decref(body);
    api_call(api, &reply, "GET", MODEL "/versions/1/variants/source/signature", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_http(&reply, 200);
    assert_true(json_is_null(json_object_get(reply.json, "read")));
    assert_true(json_is_object(json_object_get(reply.json, "declared")));
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "&lt;b&gt;x");
    assert_holds(mlo_buf_str(&reply.body), "float32 [N, 28]");
    assert_holds(mlo_buf_str(&reply.body), "no worker has read it yet");
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_comments__by_the_api),
        API_TEST(test_comments__on_the_page_of_a_model),
        API_TEST(test_reproduce__by_the_api),
        API_TEST(test_signature__is_shown_and_checked),
    };
    API_MAIN(tests);
}
