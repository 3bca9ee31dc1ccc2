/* The installation that the examples of api/openapi.yaml speak of. */
#ifndef MLO_TESTS_WORLD_FIXTURE_H
#define MLO_TESTS_WORLD_FIXTURE_H

#include "tests/integration/api/api_fixture.h"

#define DEMO "/v1/projects/demo"

static inline void as_admin(struct api *api, struct reply *reply, const char *method, const char *path,
                            const char *body, const char *if_match, int wanted)
{
    char header[64];
    snprintf(header, sizeof header, "If-Match: \"%s\"", if_match ? if_match : "");
    const char *const headers[] = {if_match ? header : NULL, NULL};
    api_call(api, reply, method, path, api->token[MLO_ADMIN], body, headers);
    if (reply->status != wanted)
        fail_msg("%s %s: %ld %s", method, path, reply->status, mlo_buf_str(&reply->body));
}

#define CHOICE "\"variants\": {\"any\": \"source\"}, "
#define RECIPE "\"recipe\": \"name: mine\\nsteps:\\n  - benchmark: {batch: [1]}\\n\""

static inline void make_world(struct api *api)
{
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    char digest[MLO_DIGEST_TEXT_SIZE], body[512];
    const char *const models[] = {"cnn", "old", "gone"}, *const versions[] = {"a model", "b model",
                                                                              "c model"};
    for (size_t i = 0; i < 3; i++)
        api_version(api, models[i], "a model", "");
    for (size_t i = 1; i < 3; i++)
        api_version(api, "cnn", versions[i], "");
    api_upload(api, "demo", "a model", digest);
    snprintf(body, sizeof body,
             "{\"files\": [{\"role\": \"data\", \"name\": \"test.npz\", \"digest\": \"%s\"}]}", digest);
    as_admin(api, &reply, "POST", DEMO "/datasets/test/versions", body, NULL, 201);
    as_admin(api, &reply, "POST", DEMO "/deletions", "{\"model\": \"gone\", \"reason\": \"not needed\"}",
             NULL, 201);
    for (int v = 1; v <= 2; v++) {
        char generation[4] = {(char)('0' + v - 1)};
        snprintf(body, sizeof body,
                 "{\"stage\": \"production\", \"version\": %d, " CHOICE "\"reason\": \"it is good\"}", v);
        as_admin(api, &reply, "POST", DEMO "/models/cnn/promotions", body, generation, 201);
    }
    as_admin(api, &reply, "POST", DEMO "/models/cnn/promotions",
             "{\"stage\": \"staging\", \"version\": 1, " CHOICE "\"reason\": \"why not\", \"dry_run\": true}",
             "0", 200);
    snprintf(body, sizeof body, "{\"stage\": \"staging\", \"version\": 1, " CHOICE "\"shown\": \"%s\"}",
             mlo_json_str(json_object_get(reply.json, "decision"), "shown", ""));
    as_admin(api, &reply, "POST", DEMO "/models/cnn/approvals", body, NULL, 201);
    as_admin(api, &reply, "PUT", DEMO "/members/anna", "{\"role\": \"viewer\"}", NULL, 201);
    as_admin(api, &reply, "POST", DEMO "/members/anna/tokens", "{\"name\": \"laptop\"}", NULL, 201);
    as_admin(api, &reply, "PUT", DEMO "/members/bot", "{\"kind\": \"service\", \"role\": \"viewer\"}", NULL,
             201);
    as_admin(api, &reply, "POST", DEMO "/runs", "{\"model\": \"cnn\", \"version\": 1, " RECIPE "}", NULL,
             201);
    as_admin(api, &reply, "POST", DEMO "/schedules",
             "{\"name\": \"nightly\", \"model\": \"cnn\", \"cron\": \"0 3 * * *\", " RECIPE "}", NULL, 201);
    as_admin(api, &reply, "POST", DEMO "/webhooks", "{\"url\": \"https://hooks.invalid/in\"}", NULL, 201);
    as_admin(api, &reply, "POST", DEMO "/webhooks/1/pings", "{}", NULL, 202);
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(conn,
                                   "insert into mlopt.worker (id, host, pid, machine_class, targets, slots, "
                                   "state, lacking) values ('host-1', 'host', 1, 'test', '{any,cpu}', 2, "
                                   "'active', '{namespaces}')",
                                   &err),
                  &err);
    mlo_db_release(conn);
    reply_clear(&reply);
}

#endif
