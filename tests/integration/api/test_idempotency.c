/* Idempotency-Key: a request that is repeated under its key has one effect and one answer. */
#include "tests/integration/api/api_fixture.h"

#include <pthread.h>

#define DEMO "/v1/projects/demo"
#define CNN DEMO "/models/cnn"
#define RECIPE "\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: {}\\n\""
#define REPLAYED "Idempotency-Replayed: true\r\n"

static void post(struct api *api, struct reply *reply, const char *path, const char *key,
                 const char *if_match, const char *token, const char *body)
{
    char line[200], match[40];
    const char *headers[3] = {0};
    size_t n = 0;
    snprintf(line, sizeof line, "Idempotency-Key: %s", key ? key : "");
    snprintf(match, sizeof match, "If-Match: \"%s\"", if_match ? if_match : "");
    if (key)
        headers[n++] = line;
    if (if_match)
        headers[n++] = match;
    api_call(api, reply, "POST", path, token, body, headers);
}

static bool replayed(const struct reply *reply)
{
    return strstr(mlo_buf_str(&reply->headers), REPLAYED) != NULL;
}

static int64_t count(struct api *api, const char *sql)
{
    return pg_fixture_number(api->pg->owner, sql);
}

/* What creates or acts, in an order in which each can: as sent, and the status that it has. */
static const struct {
    const char *path, *if_match, *body;
    int status;
    const char *secret; /* the member that the second answer lacks */
} ACTS[] = {
    {"/v1/projects", NULL, "{\"name\":\"second\"}", 201, NULL},
    {"/v1/tokens", NULL, "{\"name\":\"ci\",\"role\":\"viewer\"}", 201, "token"},
    {DEMO "/members/anna/tokens", NULL, "{\"name\":\"laptop\"}", 201, "token"},
    {CNN "/versions/1/comments", NULL, "{\"text\":\"seen\"}", 201, NULL},
    {CNN "/versions/2/archive", NULL, "{\"reason\":\"old\"}", 200, NULL},
    {CNN "/versions/2/unarchive", NULL, "{\"reason\":\"not so old\"}", 200, NULL},
    {DEMO "/runs", NULL, "{\"model\":\"cnn\"," RECIPE "}", 201, NULL},
    {DEMO "/runs/1/cancel", NULL, "{}", 200, NULL},
    {DEMO "/schedules", NULL,
     "{\"name\":\"nightly\",\"model\":\"cnn\",\"cron\":\"0 3 * * *\","
     "\"recipe\":\"name: again\\nsteps:\\n  - benchmark: {batch: [1]}\\n\"}",
     201, NULL},
    {DEMO "/schedules/nightly/pause", NULL, "{}", 200, NULL},
    {CNN "/promotions", "0",
     "{\"stage\":\"production\",\"version\":1,\"variants\":{\"any\":\"source\"},\"reason\":\"x\"}", 201,
     NULL},
    {CNN "/promotions", "1",
     "{\"stage\":\"production\",\"version\":2,\"variants\":{\"any\":\"source\"},\"reason\":\"x\"}", 201,
     NULL},
    {CNN "/rollbacks", "2", "{\"stage\":\"production\",\"reason\":\"x\"}", 201, NULL},
    {CNN "/quarantine/2/release", NULL, "{\"reason\":\"fine\"}", 200, NULL},
    {CNN "/approvals", NULL, NULL, 201, NULL},
    {CNN "/approvals/1/withdraw", NULL, "{\"reason\":\"on second thoughts\"}", 200, NULL},
    {DEMO "/webhooks", NULL, "{\"url\":\"https://hooks.invalid/in\"}", 201, "secret"},
    {DEMO "/webhooks/1/secrets", NULL, "{}", 201, "secret"},
    {DEMO "/webhooks/1/pings", NULL, "{}", 202, NULL},
    {DEMO "/deletions", NULL, "{\"model\":\"gone\",\"reason\":\"not needed\"}", 201, NULL},
    {DEMO "/deletions/1/undo", NULL, "{\"reason\":\"needed\"}", 200, NULL},
    {"/v1/keys/revocations", NULL, NULL, 200, NULL},
};

/* All that a request could have done twice leaves an entry in the audit log, or one of these. */
#define EFFECTS                                                                                              \
    "SELECT (SELECT count(*) FROM mlopt.audit) + (SELECT count(*) FROM mlopt.upload) + "                     \
    "(SELECT count(*) FROM mlopt.webhook_delivery) + (SELECT count(*) FROM mlopt.comment)"

/* Bodies that name what only the server knows. */
static const char *body_of(struct api *api, const char *path, char body[320])
{
    const char *admin = api->token[MLO_ADMIN], *const if_match[] = {"If-Match: \"3\"", NULL};
    struct reply reply = {0};
    if (mlo_str_ends(path, "/revocations")) {
        api_call(api, &reply, "GET", "/v1/keys", admin, NULL, NULL);
        const json_t *key = json_array_get(json_object_get(reply.json, "items"), 0);
        snprintf(body, 320, "{\"fingerprint\":\"%s\"}", mlo_json_str(key, "fingerprint", ""));
    } else {
        static const char move[] =
            "{\"stage\":\"production\",\"version\":2,\"variants\":{\"any\":\"source\"}";
        snprintf(body, 320, "%s,\"reason\":\"x\",\"dry_run\":true}", move);
        api_call(api, &reply, "POST", CNN "/promotions", admin, body, if_match);
        assert_http(&reply, 200);
        snprintf(body, 320, "%s,\"shown\":\"%s\"}", move,
                 mlo_json_str(json_object_get(reply.json, "decision"), "shown", ""));
    }
    reply_clear(&reply);
    return body;
}

static void test_idempotency__gives_one_effect_and_one_answer(void **state)
{
    struct api *api = *state;
    struct reply first = {0}, again = {0};
    const char *admin = api->token[MLO_ADMIN];
    char key[32], body[320];
    api_version(api, "cnn", "one", "");
    api_version(api, "cnn", "two", "");
    api_version(api, "gone", "one", "");
    api_call(api, &first, "PUT", DEMO "/members/anna", admin, "{\"role\":\"viewer\"}", NULL);
    assert_http(&first, 201);
    for (size_t i = 0; i < MLO_COUNT(ACTS); i++) {
        const char *text = ACTS[i].body ? ACTS[i].body : body_of(api, ACTS[i].path, body);
        snprintf(key, sizeof key, "key-%zu", i);
        post(api, &first, ACTS[i].path, key, ACTS[i].if_match, admin, text);
        if (first.status != ACTS[i].status || replayed(&first))
            fail_msg("%s: %ld %s", ACTS[i].path, first.status, mlo_buf_str(&first.body));
        int64_t effects = count(api, EFFECTS);
        post(api, &again, ACTS[i].path, key, ACTS[i].if_match, admin, text);
        if (again.status != ACTS[i].status || !replayed(&again) || count(api, EFFECTS) != effects)
            fail_msg("%s again: %ld %s", ACTS[i].path, again.status, mlo_buf_str(&again.body));
        if (ACTS[i].secret) { /* which is kept nowhere */
            assert_true(json_is_string(json_object_get(first.json, ACTS[i].secret)));
            assert_true(json_is_null(json_object_get(again.json, ACTS[i].secret)));
            json_object_del(first.json, ACTS[i].secret);
            json_object_del(again.json, ACTS[i].secret);
        }
        if (!json_equal(first.json, again.json))
            fail_msg("%s: %s, then %s", ACTS[i].path, mlo_buf_str(&first.body), mlo_buf_str(&again.body));
        static const char *const kept[] = {"Location: ", "ETag: "};
        for (size_t h = 0; h < MLO_COUNT(kept); h++) {
            const char *a = strstr(mlo_buf_str(&first.headers), kept[h]),
                       *b = strstr(mlo_buf_str(&again.headers), kept[h]);
            assert_true(!a == !b && (!a || strncmp(a, b, strcspn(a, "\r") + 1) == 0));
        }
    }
    assert_int_equal(
        count(api, "SELECT count(*) FROM mlopt.idempotency WHERE response ~ 'mlopt_[A-Za-z0-9]{20}|whsec_'"),
        0);
    reply_clear(&first);
    reply_clear(&again);
}

static void test_idempotency__a_key_is_one_request_of_one_token(void **state)
{
    static const struct {
        const char *key, *body;
        int status;
        bool again;
    } CASES[] = {
        {"one", "{\"text\":\"seen\"}", 201, false},
        {"one", "{\"text\":\"seen\"}", 201, true},
        {"\"one\"", "{\"text\":\"seen\"}", 201, true},
        {"one", "{\"text\":\"other\"}", 422, false},
        {"", "{\"text\":\"seen\"}", 422, false},
        {"a\\\"b", "{\"text\":\"seen\"}", 422, false},
        {"\"one", "{\"text\":\"seen\"}", 422, false},
        {"two", "{\"text\":\" \"}", 422, false},
        {"two", "{\"text\":\"now it is\"}", 201, false},            /* what failed left no key */
        {"three", "{\"text\":\"x\",\"dry_run\":true}", 201, false}, /* there is no dry run of it */
        {"three", "{\"text\":\"x\",\"dry_run\":true}", 201, true},
    };
    struct api *api = *state;
    struct reply reply = {0};
    char path[96], longest[MLO_IDEMPOTENCY_KEY_MAX + 2];
    const char *token = api->token[MLO_SUBMITTER];
    api_version(api, "cnn", "one", "");
    snprintf(path, sizeof path, CNN "/versions/1/comments");
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        post(api, &reply, path, CASES[i].key[0] ? CASES[i].key : "\"\"", NULL, token, CASES[i].body);
        if (reply.status != CASES[i].status || replayed(&reply) != CASES[i].again)
            fail_msg("case %zu: %ld %s", i, reply.status, mlo_buf_str(&reply.body));
        if (i == 3) {
            assert_code(&reply, "idempotency-key-reused");
            assert_false(mlo_json_bool(reply.json, "retry", true));
            assert_string_equal(mlo_json_str(reply.json, "where", ""), "header Idempotency-Key");
        }
    }
    memset(longest, 'k', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    post(api, &reply, path, longest, NULL, token, "{\"text\":\"x\"}");
    assert_http(&reply, 422);
    assert_code(&reply, "invalid-value");
    /* another path is another request; another token has keys of its own */
    post(api, &reply, CNN "/versions/latest/comments", "one", NULL, token, "{\"text\":\"seen\"}");
    assert_http(&reply, 422);
    post(api, &reply, path, "one", NULL, api->token[MLO_ADMIN], "{\"text\":\"seen\"}");
    assert_http(&reply, 201);
    assert_false(replayed(&reply));
    assert_int_equal(count(api, "SELECT count(*) FROM mlopt.comment"), 4);
    /* after its time the key is free, and goes with the garbage */
    assert_int_equal(
        count(api, "WITH old AS (UPDATE mlopt.idempotency SET created_at = now() - interval '25 hours' "
                   "RETURNING 1) SELECT count(*) FROM old"),
        4);
    post(api, &reply, path, "one", NULL, token, "{\"text\":\"a day later\"}");
    assert_http(&reply, 201);
    assert_false(replayed(&reply));
    api_call(api, &reply, "POST", "/v1/gc", api->token[MLO_ADMIN], "{}", NULL);
    assert_http(&reply, 200);
    assert_int_equal(count(api, "SELECT count(*) FROM mlopt.idempotency"), 1);
    reply_clear(&reply);
}

/* A refusal by gates is recorded, so it is an answer like any other; a dry run does nothing, and needs no
 * key. */
static void test_idempotency__refusals_are_answers_and_dry_runs_take_no_key(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *admin = api->token[MLO_ADMIN], *const if_match[] = {"If-Match: \"0\"", NULL};
    const char
        *dry =
            "{\"stage\":\"production\",\"variants\":{\"any\":\"source\"},\"reason\":\"x\",\"dry_run\":true}",
        *move = "{\"stage\":\"production\",\"variants\":{\"any\":\"source\"},\"reason\":\"x\"}";
    api_version(api, "cnn", "one", "");
    api_call(api, &reply, "PUT", DEMO "/policy", admin,
             "{\"text\":\"stages:\\n  production:\\n    - evidence: size <= 0.3 * "
             "source\\n\",\"reason\":\"tight\"}",
             if_match);
    assert_http(&reply, 201);
    for (int i = 0; i < 2; i++) {
        post(api, &reply, CNN "/promotions", "p", "0", admin, dry);
        assert_http(&reply, 200);
        assert_false(replayed(&reply));
    }
    for (int i = 0; i < 2; i++) {
        post(api, &reply, CNN "/promotions", "p", "0", admin, move);
        assert_http(&reply, 409);
        assert_code(&reply, "gate-refused");
        assert_true(json_is_object(json_object_get(reply.json, "decision")));
        assert_holds(mlo_buf_str(&reply.headers), "application/problem+json");
        assert_int_equal(replayed(&reply), i);
    }
    assert_int_equal(
        count(api, "SELECT count(*) FROM mlopt.audit WHERE convert_from(body, 'UTF8') LIKE '%stage.refuse%'"),
        1);
    reply_clear(&reply);
}

struct client {
    struct api *api;
    struct reply reply;
};

static void *submit(void *arg)
{
    struct client *c = arg;
    post(c->api, &c->reply, DEMO "/runs", "nightly-7", NULL, c->api->token[MLO_SUBMITTER],
         "{\"model\":\"cnn\"," RECIPE "}");
    return NULL;
}

static void test_idempotency__of_many_at_once_one_acts(void **state)
{
    enum { CLIENTS = 6 };
    struct api *api = *state;
    struct client all[CLIENTS] = {0};
    pthread_t threads[CLIENTS];
    struct reply reply = {0};
    struct mlo_db_conn *conn;
    struct mlo_error err = {0};
    int acted = 0;
    api_version(api, "cnn", "one", "");
    for (int i = 0; i < CLIENTS; i++) {
        all[i].api = api;
        pthread_create(&threads[i], NULL, submit, &all[i]);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < CLIENTS; i++) {
        assert_http(&all[i].reply, 201);
        assert_true(json_equal(all[i].reply.json, all[0].reply.json));
        acted += !replayed(&all[i].reply);
    }
    for (int i = 0; i < CLIENTS; i++)
        reply_clear(&all[i].reply);
    assert_int_equal(acted, 1);
    assert_int_equal(count(api, "SELECT count(*) FROM mlopt.run"), 1);
    /* one that is not over in time: the second is told to come again */
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_begin(conn, &err), &err);
    assert_mlo_ok(
        mlo_db_exec_text(conn,
                         "INSERT INTO mlopt.idempotency (token_id, key, method, path, request) SELECT id, "
                         "'slow', 'POST', '/', sha256('') FROM mlopt.token WHERE name = 'submitter'",
                         &err),
        &err);
    post(api, &reply, DEMO "/runs", "slow", NULL, api->token[MLO_SUBMITTER],
         "{\"model\":\"cnn\"," RECIPE "}");
    assert_http(&reply, 409);
    assert_code(&reply, "idempotency-key-in-use");
    assert_true(mlo_json_bool(reply.json, "retry", false));
    assert_holds(mlo_buf_str(&reply.headers), "Retry-After: 1\r\n");
    assert_int_equal(mlo_db_end(conn, MLO_ECANCELLED, NULL), MLO_ECANCELLED); /* it did nothing after all */
    mlo_db_release(conn);
    post(api, &reply, DEMO "/runs", "slow", NULL, api->token[MLO_SUBMITTER],
         "{\"model\":\"cnn\"," RECIPE "}");
    assert_http(&reply, 201);
    assert_int_equal(count(api, "SELECT count(*) FROM mlopt.run"), 2);
    reply_clear(&reply);
}

/* Each server does so, whether it collects garbage or not. */
static void test_idempotency__old_keys_go_by_themselves(void **state)
{
    struct api *api = *state;
    struct mlo_http *second;
    struct mlo_error err = {0};
    char sql[400];
    const struct mlo_http_options options = {
        .db = api->pg->server, .blobs = api->blobs, .keys_every_ms = 20, .quiet = true};
    snprintf(sql, sizeof sql,
             "WITH made AS (INSERT INTO mlopt.idempotency (token_id, key, method, path, request, created_at) "
             "SELECT t.id, 'k' || i, 'POST', '/', sha256(''), now() - make_interval(hours => CASE i WHEN 0 "
             "THEN 23 ELSE 25 END) FROM mlopt.token t, generate_series(0, %d) i WHERE t.name = 'submitter' "
             "RETURNING 1) SELECT count(*) FROM made",
             2 * MLO_IDEMPOTENCY_BATCH + 1); /* more than one look takes at a time */
    assert_int_equal(count(api, sql), 2 * MLO_IDEMPOTENCY_BATCH + 2);
    assert_mlo_ok(mlo_http_start(&options, &second, &err), &err);
    const uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    while (count(api, "SELECT count(*) FROM mlopt.idempotency") > 1 && mlo_clock_ns() < until)
        mlo_clock_sleep_ms(20);
    mlo_http_stop(second, 0);
    assert_int_equal(count(api, "SELECT count(*) FROM mlopt.idempotency WHERE key = 'k0'"), 1);
    assert_int_equal(count(api, "SELECT count(*) FROM mlopt.idempotency"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_idempotency__gives_one_effect_and_one_answer),
        API_TEST(test_idempotency__a_key_is_one_request_of_one_token),
        API_TEST(test_idempotency__refusals_are_answers_and_dry_runs_take_no_key),
        API_TEST(test_idempotency__of_many_at_once_one_acts),
        API_TEST(test_idempotency__old_keys_go_by_themselves),
    };
    API_MAIN(tests);
}
