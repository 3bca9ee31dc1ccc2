/* Policies, gates, approvals and quarantine through the API and the pages. */
#include "tests/integration/api/api_fixture.h"

#define PROJECT "/v1/projects/demo"
#define MODEL PROJECT "/models/cnn"

static void send_with(struct api *api, struct reply *reply, enum mlo_role role, const char *method,
                      const char *path, const char *if_match, const json_t *body)
{
    char header[64], *text = json_dumps(body, 0);
    const char *headers[] = {header, NULL};
    snprintf(header, sizeof header, "If-Match: \"%s\"", if_match ? if_match : "");
    api_call(api, reply, method, path, api->token[role], text, if_match ? headers : NULL);
    free(text);
}

static void set_policy(struct api *api, struct reply *reply, const char *if_match, const char *text)
{
    json_t *body = json_pack("{s:s, s:s}", "text", text, "reason", "by the test");
    send_with(api, reply, MLO_ADMIN, "PUT", PROJECT "/policy", if_match, body);
    json_decref(body);
}

static void promote(struct api *api, struct reply *reply, const char *if_match, int version, bool dry_run)
{
    json_t *body = json_pack("{s:s, s:i, s:{s:s}, s:s, s:b}", "stage", "production", "version", version,
                             "variants", "any", "source", "reason", "why not", "dry_run", dry_run);
    send_with(api, reply, MLO_PROMOTER, "POST", MODEL "/promotions", if_match, body);
    json_decref(body);
}

static const char *first_why(const json_t *decision)
{
    return mlo_json_str(json_array_get(json_object_get(decision, "conditions"), 0), "why", "");
}

static void test_gates__a_policy_has_revisions(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    api_call(api, &reply, "GET", PROJECT "/policy", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "ETag: \"0\"");
    json_t *body = json_pack("{s:s}", "text", "stages: {}");
    send_with(api, &reply, MLO_ADMIN, "PUT", PROJECT "/policy", NULL, body);
    assert_http(&reply, 428);
    send_with(api, &reply, MLO_APPROVER, "PUT", PROJECT "/policy", "0", body);
    assert_http(&reply, 403);
    json_decref(body);
    set_policy(api, &reply, "0", "stages:\n  production:\n    - evidence: top1 >= 0.9\n      dateset: x\n");
    assert_http(&reply, 422);
    assert_holds(mlo_buf_str(&reply.body), "policy:4: unknown key 'dateset'");
    assert_holds(mlo_json_str(reply.json, "hint", ""), "did you mean 'dataset'?");
    set_policy(api, &reply, "0", "stages: {production: [{evidence: size <= 3}]}");
    assert_http(&reply, 201);
    assert_holds(mlo_buf_str(&reply.headers), "ETag: \"1\"");
    set_policy(api, &reply, "0", "stages: {}");
    assert_http(&reply, 412);
    set_policy(api, &reply, "1", "stages: {}");
    assert_http(&reply, 201);
    api_call(api, &reply, "GET", PROJECT "/policy?revision=1", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "text", ""),
                        "stages: {production: [{evidence: size <= 3}]}");
    api_call(api, &reply, "GET", PROJECT "/policy/history", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 2);
    api_call(api, &reply, "GET", PROJECT "/policy?revision=9", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_gates__a_refusal_shows_the_numbers(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    api_version(api, "cnn", "one", "");
    set_policy(api, &reply, "0", "stages: {production: [{evidence: size <= 2}]}");
    assert_http(&reply, 201);
    promote(api, &reply, "0", 1, true);
    assert_http(&reply, 200);
    const json_t *decision = json_object_get(reply.json, "decision");
    assert_string_equal(mlo_json_str(decision, "verdict", ""), "refused");
    assert_holds(first_why(decision), "size is 3, which is not <= 2");
    assert_null(json_object_get(decision, "id")); /* there is no such decision */
    assert_null(json_object_get(decision, "audit_seq"));
    api_call(api, &reply, "GET", MODEL "/decisions", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 0); /* a dry run keeps nothing */
    promote(api, &reply, "0", 1, false);
    assert_http(&reply, 409);
    assert_code(&reply, "gate-refused");
    assert_holds(mlo_json_str(reply.json, "detail", ""), "size is 3");
    decision = json_object_get(reply.json, "decision");
    assert_true(mlo_json_f64(json_array_get(json_object_get(decision, "conditions"), 0), "limit", 0) == 2);
    char path[128];
    snprintf(path, sizeof path, MODEL "/decisions/%lld", (long long)mlo_json_i64(decision, "id", 0));
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_json_str(reply.json, "verdict", ""), "refused");
    api_call(api, &reply, "GET", MODEL "/decisions/999999", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    set_policy(api, &reply, "1", "stages: {production: [{evidence: size <= 3}]}");
    promote(api, &reply, "0", 1, false);
    assert_http(&reply, 201);
    assert_string_equal(mlo_json_str(json_object_get(reply.json, "decision"), "verdict", ""), "accepted");
    reply_clear(&reply);
}

static long promote_as(struct api *api, struct reply *reply, const char *token, const char *stage,
                       const char *if_match, int version, bool dry_run)
{
    char body[256], header[32];
    const char *const headers[] = {header, NULL};
    snprintf(header, sizeof header, "If-Match: \"%s\"", if_match);
    snprintf(
        body, sizeof body,
        "{\"stage\": \"%s\", \"version\": %d, \"variants\": {\"any\": \"source\"}, \"reason\": \"why not\", "
        "\"dry_run\": %s}",
        stage, version, dry_run ? "true" : "false");
    api_call(api, reply, "POST", MODEL "/promotions", token, body, headers);
    return reply->status;
}

static long approve_as(struct api *api, struct reply *reply, const char *token, const char *stage,
                       const char *shown)
{
    char body[256];
    snprintf(body, sizeof body,
             "{\"stage\": \"%s\", \"version\": 1, \"variants\": {\"any\": \"source\"}, \"shown\": \"%s\"}",
             stage, shown);
    api_call(api, reply, "POST", MODEL "/approvals", token, body, NULL);
    return reply->status;
}

/* A promoter of staging alone moves no production; an approver of production alone counts there as one, and
 * in staging is nobody; a service account approves where that was granted. */
static void test_gates__roles_are_by_stage(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char stager[MLO_TOKEN_TEXT_SIZE], both[MLO_TOKEN_TEXT_SIZE], judge[MLO_TOKEN_TEXT_SIZE],
        robot[MLO_TOKEN_TEXT_SIZE], shown[96];
    const char *const whole = "{\"name\": \"t\"}";
    api_member(api, "stager", "{\"role\": \"submitter\", \"stages\": {\"staging\": \"promoter\"}}", whole,
               stager);
    api_member(api, "both", "{\"role\": \"promoter\"}", whole, both);
    api_member(api, "judge", "{\"role\": \"viewer\", \"stages\": {\"production\": \"approver\"}}", whole,
               judge);
    api_member(api, "robot", "{\"kind\": \"service\", \"role\": \"approver\"}", whole, robot);
    api_version(api, "cnn", "one", "");
    assert_int_equal(promote_as(api, &reply, stager, "staging", "0", 1, false), 201);
    assert_int_equal(promote_as(api, &reply, stager, "production", "0", 1, true), 403);
    assert_holds(mlo_json_str(reply.json, "detail", ""), "is a submitter for production");
    assert_holds(mlo_json_str(reply.json, "hint", ""),
                 "mlopt members set PROJECT stager --role ROLE --stage production=promoter");
    set_policy(api, &reply, "0",
               "stages: {production: [{approvals: 1}], staging: [{approvals: 1, role: promoter}]}");
    assert_http(&reply, 201);
    assert_int_equal(promote_as(api, &reply, both, "production", "0", 1, true), 200);
    snprintf(shown, sizeof shown, "%s", mlo_json_str(json_object_get(reply.json, "decision"), "shown", ""));
    assert_int_equal(approve_as(api, &reply, stager, "production", shown), 403);
    assert_int_equal(approve_as(api, &reply, robot, "production", shown), 403);
    assert_holds(mlo_json_str(reply.json, "detail", ""), "service account");
    assert_holds(mlo_json_str(reply.json, "hint", ""),
                 "mlopt members set PROJECT robot --service --role ROLE --approve");
    assert_int_equal(approve_as(api, &reply, judge, "staging", shown), 403);
    assert_int_equal(approve_as(api, &reply, both, "production", shown),
                     201); /* of a lesser role: it does not count */
    assert_holds(first_why(json_object_get(reply.json, "decision")), "0 of 1 given; 1 by a lesser role");
    assert_int_equal(promote_as(api, &reply, both, "production", "0", 1, false), 409);
    assert_int_equal(approve_as(api, &reply, judge, "production", shown), 201);
    assert_holds(first_why(json_object_get(reply.json, "decision")), "1 of 1 given: judge");
    /* granted, it counts too, under its own name */
    api_member(api, "robot", "{\"kind\": \"service\", \"role\": \"approver\", \"approve\": true}", whole,
               robot);
    assert_int_equal(approve_as(api, &reply, robot, "production", shown), 201);
    assert_holds(first_why(json_object_get(reply.json, "decision")), "service:demo/robot");
    /* a token for the other stage takes the right away from who has it */
    char narrow[MLO_TOKEN_TEXT_SIZE];
    api_member(api, "both", "{\"role\": \"promoter\"}", "{\"name\": \"t\", \"stage\": \"staging\"}", narrow);
    assert_int_equal(promote_as(api, &reply, narrow, "production", "0", 1, false), 403);
    assert_int_equal(promote_as(api, &reply, both, "production", "0", 1, false), 201);
    /* and so it is with what goes back */
    const char *const match[] = {"If-Match: \"1\"", NULL};
    const char *const back = "{\"stage\": \"production\", \"reason\": \"no\"}";
    api_call(api, &reply, "POST", MODEL "/rollbacks", narrow, back, match);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", MODEL "/rollbacks", stager, back, match);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", MODEL "/rollbacks", both, back, match);
    assert_http(&reply, 409); /* there is nothing to go back to */
    reply_clear(&reply);
}

static void test_gates__approvals_and_quarantine(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char shown[96], path[160];
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    promote(api, &reply, "0", 1, false);
    assert_http(&reply, 201);
    set_policy(api, &reply, "0", "stages: {production: [{approvals: 1}]}");
    promote(api, &reply, "1", 2, true);
    snprintf(shown, sizeof shown, "%s", mlo_json_str(json_object_get(reply.json, "decision"), "shown", ""));
    json_t *body = json_pack("{s:s, s:i, s:{s:s}, s:s}", "stage", "production", "version", 2, "variants",
                             "any", "source", "shown", "sha256:nothing");
    send_with(api, &reply, MLO_APPROVER, "POST", MODEL "/approvals", NULL, body);
    assert_http(&reply, 422);
    json_object_set_new(body, "shown", json_string(shown));
    json_object_set_new(body, "version", json_integer(1)); /* another version than was shown */
    send_with(api, &reply, MLO_APPROVER, "POST", MODEL "/approvals", NULL, body);
    assert_http(&reply, 412);
    json_object_set_new(body, "version", json_integer(2));
    send_with(api, &reply, MLO_APPROVER, "POST", MODEL "/approvals", NULL, body);
    assert_http(&reply, 201);
    assert_holds(first_why(json_object_get(reply.json, "decision")), "1 of 1 given: approver");
    long long id = (long long)mlo_json_i64(reply.json, "id", 0);
    send_with(api, &reply, MLO_APPROVER, "POST", MODEL "/approvals", NULL, body);
    assert_http(&reply, 409);
    json_decref(body);
    snprintf(path, sizeof path, MODEL "/approvals/%lld/withdraw", id);
    api_call(api, &reply, "POST", path, api->token[MLO_PROMOTER], "{\"reason\":\"no\"}", NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "GET", MODEL "/approvals?stage=production", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    promote(api, &reply, "1", 2, false);
    assert_http(&reply, 201);

    const char *headers[] = {"If-Match: \"2\"", NULL};
    api_call(api, &reply, "POST", MODEL "/rollbacks", api->token[MLO_VIEWER],
             "{\"stage\":\"production\",\"reason\":\"it was slow\"}", headers);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", "/v1/tokens", api->token[MLO_ADMIN],
             "{\"name\":\"on-call\",\"role\":\"viewer\",\"rollback\":true}", NULL);
    assert_http(&reply, 201);
    char on_call[96];
    snprintf(on_call, sizeof on_call, "%s", mlo_json_str(reply.json, "token", ""));
    api_call(api, &reply, "POST", MODEL "/rollbacks", on_call,
             "{\"stage\":\"production\",\"reason\":\"it was slow\"}", headers);
    assert_http(&reply, 201);
    set_policy(api, &reply, "1", "stages: {}");
    promote(api, &reply, "3", 2, false);
    assert_http(&reply, 409);
    assert_code(&reply, "gate-refused");
    assert_holds(mlo_json_str(reply.json, "detail", ""), "rolled back from production by on-call");
    api_call(api, &reply, "GET", MODEL "/quarantine", api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(reply.json, "items")), 1);
    api_call(api, &reply, "POST", MODEL "/quarantine/2/release", api->token[MLO_PROMOTER],
             "{\"reason\":\"x\"}", NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", MODEL "/quarantine/2/release", api->token[MLO_APPROVER],
             "{\"reason\":\"the disk was at fault\"}", NULL);
    assert_http(&reply, 200);
    promote(api, &reply, "3", 2, false);
    assert_http(&reply, 201);
    reply_clear(&reply);
}

static void test_gates__pages_show_and_approve(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char cookie[160], csrf[96], shown[96], body[1024];
    const char *headers[] = {cookie, NULL};
    api_version(api, "cnn", "one", "");
    set_policy(api, &reply, "0", "stages: {production: [{approvals: 1}, {evidence: size <= 10}]}");
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_APPROVER]);
    api_call(api, &reply, "GET", "/models/demo/cnn", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "formaction=\"/models/demo/cnn/check\"");
    reply_field(&reply, "csrf", csrf);
    snprintf(
        body, sizeof body,
        "csrf=%s&stage=production&version=1&generation_production=0&target0=any&variant0=source&reason=ok",
        csrf);
    api_call(api, &reply, "POST", "/models/demo/cnn/check", NULL, body, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "0 of 1 given");
    assert_holds(mlo_buf_str(&reply.body), "size is 3");
    assert_null(strstr(mlo_buf_str(&reply.body), "The gates refused."));
    reply_field(&reply, "shown", shown);
    api_call(api, &reply, "POST", "/models/demo/cnn/promote", NULL, body, headers);
    assert_http(&reply, 409);
    assert_holds(mlo_buf_str(&reply.body), "The gates refused.");
    assert_holds(mlo_buf_str(&reply.body), "0 of 1 given");
    snprintf(body + strlen(body), sizeof body - strlen(body), "&shown=%s", shown);
    api_call(api, &reply, "POST", "/models/demo/cnn/approve", NULL, body + strlen("csrf="), headers);
    assert_http(&reply, 403); /* a form of nobody's session */
    api_call(api, &reply, "POST", "/models/demo/cnn/approve", NULL, body, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "1 of 1 given: approver");
    api_call(api, &reply, "POST", "/models/demo/cnn/promote", NULL, body, headers);
    assert_http(&reply, 303);
    api_call(api, &reply, "GET", "/promotions/demo/cnn", NULL, NULL, headers);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "id=\"decisions\"");
    reply_clear(&reply);
}

/* A consumer asks the stage for its kind of machine, and reads in ranges. */
static void test_gates__a_stage_serves_what_fits(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], etag[128], range[160];
    api_version(api, "cnn", "0123456789", "");
    promote(api, &reply, "0", 1, false);
    assert_http(&reply, 201);
    struct mlo_digest d;
    mlo_digest_of("0123456789", 10, &d);
    mlo_digest_text(&d, digest);
    static const char *const path = MODEL "/stages/production/artifact?target=cuda:sm90";
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL); /* falls back to any */
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "X-Mlopt-Target: any");
    assert_holds(mlo_buf_str(&reply.headers), digest);
    const char *at = strstr(mlo_buf_str(&reply.headers), "ETag: ");
    assert_non_null(at);
    snprintf(etag, sizeof etag, "%.*s", (int)strcspn(at + 6, "\r\n"), at + 6);
    const char *part[] = {"Range: bytes=2-5", NULL};
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, part);
    assert_http(&reply, 206);
    assert_string_equal(mlo_buf_str(&reply.body), "2345");
    assert_holds(mlo_buf_str(&reply.headers), "Content-Range: bytes 2-5/10");
    snprintf(range, sizeof range, "If-Range: %s", etag);
    const char *same[] = {"Range: bytes=8-", range, NULL};
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, same);
    assert_http(&reply, 206);
    assert_string_equal(mlo_buf_str(&reply.body), "89");
    const char *other[] = {"Range: bytes=8-", "If-Range: \"sha256:0\"",
                           NULL}; /* it was another file: all of it */
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, other);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), "0123456789");
    const char *outside[] = {"Range: bytes=99-", NULL};
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, outside);
    assert_http(&reply, 416);
    snprintf(range, sizeof range, "If-None-Match: %s", etag);
    const char *known[] = {range, NULL};
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, known);
    assert_http(&reply, 304);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_gates__a_policy_has_revisions), API_TEST(test_gates__a_refusal_shows_the_numbers),
        API_TEST(test_gates__roles_are_by_stage),     API_TEST(test_gates__approvals_and_quarantine),
        API_TEST(test_gates__pages_show_and_approve), API_TEST(test_gates__a_stage_serves_what_fits),
    };
    API_MAIN(tests);
}
