/* Webhooks against a real HTTP server: what is sent and signed, and who may have it. */
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "webhook_fixture.h"

/* The signature by OpenSSL's own functions, from what came over the wire. */
static void check_signature(const struct call *call, const char *secret)
{
    unsigned char key[64], mac[EVP_MAX_MD_SIZE], text[96] = "v1,";
    struct mlo_buf signed_text = MLO_BUF_INIT;
    unsigned size = 0;
    int key_size = EVP_DecodeBlock(key, (const unsigned char *)secret + 6, (int)strlen(secret + 6));
    key_size -= mlo_str_ends(secret, "==") ? 2 : mlo_str_ends(secret, "=");
    assert_int_equal(key_size, 32);
    mlo_buf_printf(&signed_text, "%s.%s.%s", call->id, call->timestamp, call->body);
    HMAC(EVP_sha256(), key, key_size, (unsigned char *)signed_text.data, signed_text.len, mac, &size);
    EVP_EncodeBlock(text + 3, mac, (int)size);
    if (!strstr(call->signature, (char *)text))
        fail_msg("%s is not in %s", text, call->signature);
    mlo_buf_clear(&signed_text);
}

static void test_webhooks__a_promotion_is_told_signed(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    struct call call;
    json_t *payload, *data;
    hooks_start(&h);
    shop_promote(&h.shop, "better");
    wait_for(number(&h, DELIVERED) == 1);
    assert_int_equal(calls_on("/ok", &call), 1);
    assert_true(mlo_str_starts(call.id, "msg_") && strlen(call.id) == 36);
    assert_true(llabs(strtoll(call.timestamp, NULL, 10) - mlo_clock_utc_us() / 1000000) < 2 * PATIENCE_S);
    check_signature(&call, h.secret);
    assert_mlo_ok(mlo_json_parse(call.body, strlen(call.body), "body", &payload, &h.f->err), &h.f->err);
    data = json_object_get(payload, "data");
    assert_string_equal(mlo_json_str(payload, "type", ""), "stage.promote");
    assert_string_equal(mlo_json_str(data, "project", ""), "shop");
    assert_string_equal(mlo_json_str(data, "object", ""), "shop/cnn:production");
    assert_string_equal(mlo_json_str(data, "reason", ""), "better");
    assert_int_equal(mlo_json_i64(json_object_get(data, "after"), "version", 0), 1);
    assert_null(json_object_get(data, "address"));
    assert_null(json_object_get(data, "token_id"));
    /* the hash is the audit log's */
    assert_int_equal(number(&h,
                            "select count(*) from mlopt.audit a join mlopt.webhook_delivery d on d.audit_seq "
                            "= a.seq and d.project_id = a.project_id"),
                     1);
    json_decref(payload);
    /* what the history shows is what was sent */
    json_t *list, *one;
    assert_mlo_ok(mlo_webhook_deliveries(h.f->conn, &root, h.shop.project_id, h.id, NULL, &list, &h.f->err),
                  &h.f->err);
    one = json_array_get(json_object_get(list, "items"), 0);
    assert_string_equal(mlo_json_str(one, "message", ""), call.id);
    assert_int_equal(mlo_json_i64(one, "http_status", 0), 200);
    int64_t delivery = mlo_json_i64(one, "id", 0);
    json_decref(list);
    assert_mlo_ok(mlo_webhook_delivery(h.f->conn, &root, h.shop.project_id, h.id, delivery, &one, &h.f->err),
                  &h.f->err);
    assert_string_equal(mlo_json_str(one, "body", ""), call.body);
    json_decref(one);
    /* and can be sent again, as the same message */
    assert_mlo_ok(mlo_webhook_replay(h.f->conn, &root, h.shop.project_id, h.id, delivery, &h.f->err),
                  &h.f->err);
    struct call again;
    wait_for(calls_on("/ok", &again) == 2);
    assert_string_equal(again.id, call.id);
    assert_string_equal(again.body, call.body);
    hooks_close(&h);
}

static void test_webhooks__only_what_was_committed_and_asked_for(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    struct pg_fixture *f = h.f;
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    shop_promote(&h.shop, "never");
    assert_int_equal(mlo_db_end(f->conn, MLO_ECANCELLED, &f->err), MLO_ECANCELLED);
    h.shop.generation = 0;
    h.shop.version = 0;
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 0);
    shop_promote(&h.shop, "first");
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 1); /* not version.create */
    const struct mlo_webhook_guard guard = loopback();
    const struct mlo_webhook_settings paused = {.state = "paused"}, enabled = {.state = "enabled"};
    json_t *webhook;
    assert_mlo_ok(
        mlo_webhook_change(f->conn, &root, &guard, h.shop.project_id, h.id, &paused, &webhook, &f->err),
        &f->err);
    json_decref(webhook);
    shop_promote(&h.shop, "while it is paused");
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 1);
    hooks_start(&h);
    assert_mlo_ok(
        mlo_webhook_change(f->conn, &root, &guard, h.shop.project_id, h.id, &enabled, &webhook, &f->err),
        &f->err);
    json_decref(webhook);
    wait_for(number(&h, DELIVERED) == 1);
    assert_mlo_ok(mlo_webhook_remove(f->conn, &root, h.shop.project_id, h.id, &f->err), &f->err);
    shop_promote(&h.shop, "to nobody");
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 1);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_secret"), 0);
    assert_mlo_status(mlo_webhook_get(f->conn, &root, h.shop.project_id, h.id, &webhook, &f->err),
                      MLO_ENOTFOUND, &f->err);
    hooks_close(&h);
}

/* An audit entry by this connection, as a promotion makes one. */
static enum mlo_status try_append(struct mlo_db_conn *conn, int64_t project_id, const char *via,
                                  const char *action, struct mlo_error *err)
{
    char sql[200];
    snprintf(sql, sizeof sql,
             "SELECT audit_append(%lld, convert_to('{\"action\":\"%s\",\"via\":\"%s\"}', 'UTF8'))",
             (long long)project_id, action, via);
    return mlo_db_exec_text(conn, sql, err);
}

static void append(struct mlo_db_conn *conn, int64_t project_id, const char *action)
{
    struct mlo_error err = {0};
    assert_mlo_ok(try_append(conn, project_id, "api", action, &err), &err);
}

/* What is told is signed as true: nothing of what a worker says in the log, which is not everything. */
static void test_webhooks__a_worker_forges_nothing(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    struct pg_fixture *f = h.f;
    struct mlo_db_conn *worker, *owner;
    add_hook(&h, "127.0.0.1", "/all", NULL);
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    assert_mlo_status(try_append(worker, h.shop.project_id, "worker", "stage.promote", &f->err),
                      MLO_EFORBIDDEN, &f->err);
    assert_mlo_ok(try_append(worker, h.shop.project_id, "worker", "variant.name", &f->err), &f->err);
    mlo_db_release(worker);
    assert_int_equal(
        number(&h, "select count(*) from mlopt.audit where convert_from(body, 'UTF8')::json ->> 'via' = "
                   "'worker'"),
        1);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 0);
    append(f->conn, h.shop.project_id, "stage.promote");
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 2);
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    append(owner, h.shop.project_id, "policy.set");
    mlo_db_release(owner);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 3);
    /* told of the run's row, not of the entry besides */
    append(f->conn, h.shop.project_id, "run.finish");
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 3);
    hooks_close(&h);
}

struct changing {
    struct hooks *h;
    enum mlo_status status;
    struct mlo_error err;
};

static void *change(void *arg)
{
    struct changing *c = arg;
    struct mlo_db_conn *conn;
    c->status = mlo_db_acquire(c->h->f->server, &conn, &c->err);
    if (c->status != MLO_OK)
        return NULL;
    c->status = mlo_webhook_rotate(conn, &root, c->h->shop.project_id, c->h->id, 0, c->h->secret, &c->err);
    mlo_db_release(conn);
    return NULL;
}

/* A promotion has the log's head and wants to write a delivery; whoever changes the webhook has its row and
 * wants the head. */
static void test_webhooks__changed_beside_a_promotion(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    struct changing c = {.h = &h};
    struct pg_fixture *f = h.f;
    pthread_t thread;
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    append(f->conn, h.shop.project_id, "stage.note");
    assert_int_equal(pthread_create(&thread, NULL, change, &c), 0);
    wait_for(number(&h, "select count(*) from pg_locks where not granted") > 0);
    append(f->conn, h.shop.project_id, "stage.promote");
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    pthread_join(thread, NULL);
    assert_mlo_ok(c.status, &c.err);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery"), 1);
    hooks_close(&h);
}

static void test_webhooks__a_run_that_ends_is_told(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    struct call call;
    add_hook(&h, "127.0.0.1", "/runs", "run.finish");
    shop_promote(&h.shop, "so that there is a version");
    number(
        &h,
        "insert into mlopt.run (project, version, recipe_name, recipe, target, source, datasets, created_by) "
        "select m.project_id, v.id, 'r', '', 'any', b.digest, '{}', 'x' from mlopt.version v join "
        "mlopt.model "
        "m on m.id = v.model_id join mlopt.version_blob b on b.version_id = v.id");
    hooks_start(&h);
    number(&h, "update mlopt.run set state = 'running', started_at = now()");
    number(&h, "update mlopt.run set state = 'succeeded', finished_at = now()");
    wait_for(calls_on("/runs", &call) == 1);
    check_signature(&call, h.secret);
    assert_non_null(strstr(call.body, "\"state\":\"succeeded\""));
    assert_non_null(strstr(call.body, "\"model\":\"cnn\""));
    hooks_close(&h);
}

static void test_webhooks__two_secrets_sign_while_one_takes_over(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    struct call call;
    char old[MLO_WEBHOOK_SECRET_SIZE];
    snprintf(old, sizeof old, "%s", h.secret);
    assert_mlo_ok(mlo_webhook_rotate(h.f->conn, &root, h.shop.project_id, h.id, 3600, h.secret, &h.f->err),
                  &h.f->err);
    assert_string_not_equal(old, h.secret);
    hooks_start(&h);
    shop_promote(&h.shop, "one");
    wait_for(number(&h, DELIVERED) == 1);
    calls_on("/ok", &call);
    check_signature(&call, old);
    check_signature(&call, h.secret);
    number(&h, "update mlopt.webhook_secret set expires_at = now() where expires_at is not null");
    shop_promote(&h.shop, "two");
    wait_for(number(&h, DELIVERED) == 2);
    calls_on("/ok", &call);
    check_signature(&call, h.secret);
    assert_null(strchr(call.signature, ' '));
    hooks_close(&h);
}

static void test_webhooks__need_an_admin(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    const struct mlo_actor promoter = {.name = "p", .role = MLO_PROMOTER, .via = "api"};
    const struct mlo_actor other = {
        .name = "o", .role = MLO_ADMIN, .project_id = h.shop.project_id + 1, .via = "api"};
    const struct mlo_actor *actors[] = {&promoter, &other};
    const struct mlo_webhook_guard guard = loopback();
    const struct mlo_webhook_settings settings = {.url = "https://example.com/"};
    struct pg_fixture *f = h.f;
    int64_t p = h.shop.project_id, n;
    json_t *out;
    for (size_t i = 0; i < MLO_COUNT(actors); i++) {
        const struct mlo_actor *a = actors[i];
        assert_mlo_status(mlo_webhook_list(f->conn, a, p, &out, &f->err), MLO_EFORBIDDEN, &f->err);
        assert_mlo_status(mlo_webhook_get(f->conn, a, p, h.id, &out, &f->err), MLO_EFORBIDDEN, &f->err);
        assert_mlo_status(mlo_webhook_create(f->conn, a, &guard, p, &settings, h.secret, &out, &f->err),
                          MLO_EFORBIDDEN, &f->err);
        assert_mlo_status(mlo_webhook_change(f->conn, a, &guard, p, h.id, &settings, &out, &f->err),
                          MLO_EFORBIDDEN, &f->err);
        assert_mlo_status(mlo_webhook_remove(f->conn, a, p, h.id, &f->err), MLO_EFORBIDDEN, &f->err);
        assert_mlo_status(mlo_webhook_rotate(f->conn, a, p, h.id, 0, h.secret, &f->err), MLO_EFORBIDDEN,
                          &f->err);
        assert_mlo_status(mlo_webhook_ping(f->conn, a, p, h.id, &n, &f->err), MLO_EFORBIDDEN, &f->err);
        assert_mlo_status(mlo_webhook_deliveries(f->conn, a, p, h.id, NULL, &out, &f->err), MLO_EFORBIDDEN,
                          &f->err);
        assert_mlo_status(mlo_webhook_delivery(f->conn, a, p, h.id, 1, &out, &f->err), MLO_EFORBIDDEN,
                          &f->err);
        assert_mlo_status(mlo_webhook_replay(f->conn, a, p, h.id, 1, &f->err), MLO_EFORBIDDEN, &f->err);
    }
    /* another project's number is nobody's */
    int64_t elsewhere;
    assert_mlo_ok(mlo_project_create(f->conn, &root, "elsewhere", "", &elsewhere, &f->err), &f->err);
    assert_mlo_status(mlo_webhook_get(f->conn, &root, elsewhere, h.id, &out, &f->err), MLO_ENOTFOUND,
                      &f->err);
    assert_mlo_status(mlo_webhook_rotate(f->conn, &root, elsewhere, h.id, 0, h.secret, &f->err),
                      MLO_ENOTFOUND, &f->err);
    hooks_close(&h);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_webhooks__a_promotion_is_told_signed),
        TEST(test_webhooks__only_what_was_committed_and_asked_for),
        TEST(test_webhooks__a_worker_forges_nothing),
        TEST(test_webhooks__changed_beside_a_promotion),
        TEST(test_webhooks__a_run_that_ends_is_told),
        TEST(test_webhooks__two_secrets_sign_while_one_takes_over),
        TEST(test_webhooks__need_an_admin),
    };
    return cmocka_run_group_tests(tests, webhook_group_start, webhook_group_stop);
}
