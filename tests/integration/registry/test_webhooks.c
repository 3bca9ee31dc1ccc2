/* Webhooks against a real HTTP server: what is sent, signed and tried again, and where nothing is sent to. */
#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <sys/socket.h>

#include "ledger_fixture.h"

#define PATIENCE_S 120 /* for what takes a moment where the machine has nothing else to do */

/* --- the receiver -------------------------------------------------------------------------------- */

enum { CALLS_MAX = 256 };

struct call {
    char path[64], id[64], timestamp[24], signature[256], body[8192];
};

static struct {
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_mutex_t lock;
    pthread_cond_t released;
    bool broken, held; /* /flaky answers 500; /hold answers nothing yet */
    struct call calls[CALLS_MAX];
    size_t count;
} receiver = {.lock = PTHREAD_MUTEX_INITIALIZER, .released = PTHREAD_COND_INITIALIZER};

static void keep_header(char *to, size_t size, struct MHD_Connection *c, const char *name)
{
    const char *value = MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
    snprintf(to, size, "%s", value ? value : "");
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **state)
{
    struct mlo_buf *body = *state;
    int code = 200;
    MLO_UNUSED(arg), MLO_UNUSED(method), MLO_UNUSED(version);
    if (!body) {
        *state = calloc(1, sizeof *body);
        return MHD_YES;
    }
    if (*size) {
        mlo_buf_append(body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    pthread_mutex_lock(&receiver.lock);
    if (receiver.count < CALLS_MAX) {
        struct call *call = &receiver.calls[receiver.count++];
        snprintf(call->path, sizeof call->path, "%s", url);
        keep_header(call->id, sizeof call->id, c, "webhook-id");
        keep_header(call->timestamp, sizeof call->timestamp, c, "webhook-timestamp");
        keep_header(call->signature, sizeof call->signature, c, "webhook-signature");
        snprintf(call->body, sizeof call->body, "%s", mlo_buf_str(body));
    }
    while (strcmp(url, "/hold") == 0 && receiver.held)
        pthread_cond_wait(&receiver.released, &receiver.lock);
    if (strcmp(url, "/flaky") == 0 && receiver.broken)
        code = 500;
    pthread_mutex_unlock(&receiver.lock);
    if (strcmp(url, "/gone") == 0)
        code = 410;
    struct MHD_Response *response = MHD_create_response_from_buffer(2, "ok", MHD_RESPMEM_PERSISTENT);
    if (strcmp(url, "/redirect") == 0) {
        code = 302;
        MHD_add_response_header(response, "Location", "/elsewhere");
    }
    enum MHD_Result result = MHD_queue_response(c, (unsigned)code, response);
    MHD_destroy_response(response);
    return result;
}

static void on_end(void *arg, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why)
{
    MLO_UNUSED(arg), MLO_UNUSED(c), MLO_UNUSED(why);
    if (*state)
        mlo_buf_clear(*state);
    free(*state);
}

static int group_start(void **state)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    receiver.daemon =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION, 0, NULL, NULL,
                         on_request, NULL, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&here,
                         MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_END);
    if (!receiver.daemon)
        return -1;
    receiver.port = MHD_get_daemon_info(receiver.daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    mlo_log_setup(MLO_LOG_ERROR, MLO_LOG_TEXT, 2, "test");
    return pg_fixture_start(state);
}

static void set_receiver(bool broken, bool held)
{
    pthread_mutex_lock(&receiver.lock);
    receiver.broken = broken;
    receiver.held = held;
    pthread_cond_broadcast(&receiver.released);
    pthread_mutex_unlock(&receiver.lock);
}

static int group_stop(void **state)
{
    set_receiver(false, false);
    MHD_stop_daemon(receiver.daemon);
    return pg_fixture_stop(state);
}

/* How many calls there were on this path (NULL: on any), and the last of them. */
static size_t calls_on(const char *path, struct call *last)
{
    size_t n = 0;
    pthread_mutex_lock(&receiver.lock);
    for (size_t i = 0; i < receiver.count; i++)
        if (!path || strcmp(receiver.calls[i].path, path) == 0) {
            n++;
            if (last)
                *last = receiver.calls[i];
        }
    pthread_mutex_unlock(&receiver.lock);
    return n;
}

/* --- the project, the webhook, the sender --------------------------------------------------------- */

struct hooks {
    struct pg_fixture *f;
    struct shop shop;
    struct mlo_webhooks *sender;
    char secret[MLO_WEBHOOK_SECRET_SIZE];
    int64_t id;
};

static struct mlo_webhook_guard loopback(void)
{
    struct mlo_webhook_guard guard = {.allow_http = true};
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_webhook_guard_allow(&guard, "127.0.0.0/8", &err), &err);
    return guard;
}

static struct mlo_webhooks *sender(struct pg_fixture *f, const struct mlo_webhooks_options *more)
{
    struct mlo_webhooks_options o = *more;
    struct mlo_webhooks *w;
    o.db = f->server;
    o.poll_ms = 20;
    assert_mlo_ok(mlo_webhooks_start(&o, &w, &f->err), &f->err);
    return w;
}

static int64_t add_hook(struct hooks *h, const char *host, const char *path, const char *event)
{
    const struct mlo_webhook_guard guard = loopback();
    char url[160];
    json_t *webhook;
    snprintf(url, sizeof url, "http://%s:%u%s", host, receiver.port, path);
    const struct mlo_webhook_settings settings = {
        .url = url, .events = event ? &event : NULL, .event_count = event ? 1 : 0};
    assert_mlo_ok(mlo_webhook_create(h->f->conn, &root, &guard, h->shop.project_id, &settings, h->secret,
                                     &webhook, &h->f->err),
                  &h->f->err);
    int64_t id = mlo_json_i64(webhook, "id", 0);
    json_decref(webhook);
    return id;
}

/* A project with a webhook of this path; nothing is sent yet. */
static struct hooks hooks_open(void **state, const char *path)
{
    struct hooks h = {.f = *state};
    pthread_mutex_lock(&receiver.lock);
    receiver.count = 0;
    pthread_mutex_unlock(&receiver.lock);
    set_receiver(false, false);
    h.shop = shop_open(h.f);
    h.id = add_hook(&h, "127.0.0.1", path, "stage.promote");
    return h;
}

static void hooks_start(struct hooks *h)
{
    const struct mlo_webhooks_options o = {.guard = loopback()};
    h->sender = sender(h->f, &o);
}

static void hooks_close(struct hooks *h)
{
    set_receiver(false, false);
    mlo_webhooks_stop(h->sender);
    shop_close(&h->shop);
}

static int64_t number(struct hooks *h, const char *sql)
{
    struct mlo_db_conn *owner;
    assert_mlo_ok(mlo_db_acquire(h->f->owner, &owner, &h->f->err), &h->f->err);
    PGresult *r = PQexec(mlo_db_pg(owner), sql);
    if (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQresultErrorMessage(r));
    int64_t n = PQntuples(r) ? strtoll(PQgetvalue(r, 0, 0), NULL, 10) : 0;
    PQclear(r);
    mlo_db_release(owner);
    return n;
}

#define wait_for(condition)                                                                                  \
    do {                                                                                                     \
        uint64_t begin_ns_ = mlo_clock_ns();                                                                 \
        while (!(condition)) {                                                                               \
            if (mlo_clock_ns() - begin_ns_ > PATIENCE_S * 1000000000ull)                                     \
                fail_msg("not within %d s: %s", PATIENCE_S, #condition);                                     \
            mlo_clock_sleep_ms(10);                                                                          \
        }                                                                                                    \
    } while (0)

#define DELIVERED "select count(*) from mlopt.webhook_delivery where state = 'delivered'"

/* --- what is sent --------------------------------------------------------------------------------- */

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
static void append(struct mlo_db_conn *conn, int64_t project_id, const char *action)
{
    struct mlo_error err = {0};
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT audit_append(%lld, convert_to('{\"action\":\"%s\"}', 'UTF8'))",
             (long long)project_id, action);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &err), &err);
}

/* The log takes what a worker says; what is told of it is signed as true, so nothing is. */
static void test_webhooks__a_worker_forges_nothing(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    struct pg_fixture *f = h.f;
    struct mlo_db_conn *worker, *owner;
    add_hook(&h, "127.0.0.1", "/all", NULL);
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    append(worker, h.shop.project_id, "stage.promote");
    append(worker, h.shop.project_id, "version.create");
    mlo_db_release(worker);
    assert_int_equal(number(&h, "select count(*) from mlopt.audit where convert_from(body, 'UTF8') = "
                                "'{\"action\":\"stage.promote\"}'"),
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

/* --- failures ------------------------------------------------------------------------------------- */

static void test_webhooks__what_fails_is_tried_again(void **state)
{
    struct hooks h = hooks_open(state, "/flaky");
    struct call first, second;
    set_receiver(true, false);
    hooks_start(&h);
    shop_promote(&h.shop, "better");
    wait_for(number(&h, "select count(*) from mlopt.webhook_attempt where http_status = 500") == 1);
    wait_for(number(&h, "select count(*) from mlopt.webhook_delivery where lease is null") == 1);
    calls_on("/flaky", &first);
    /* not at once: 5 s, a little more or less */
    assert_int_equal(
        number(&h, "select count(*) from mlopt.webhook_delivery where state = 'pending' and next_at - "
                   "(select at from mlopt.webhook_attempt) between interval '3 s' and interval '7 s'"),
        1);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook where failing_since is not null"), 1);
    set_receiver(false, false);
    number(&h, "update mlopt.webhook_delivery set next_at = now()");
    wait_for(number(&h, DELIVERED) == 1);
    calls_on("/flaky", &second);
    assert_string_equal(first.id, second.id);
    assert_string_equal(first.body, second.body);
    assert_int_equal(number(&h, "select attempts from mlopt.webhook_delivery"), 2);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook where failing_since is not null"), 0);
    hooks_close(&h);
}

static void test_webhooks__the_last_attempt_fails_it_and_long_failure_disables(void **state)
{
    struct hooks h = hooks_open(state, "/flaky");
    set_receiver(true, false);
    shop_promote(&h.shop, "one");
    number(&h, "update mlopt.webhook_delivery set tries = 10");
    hooks_start(&h);
    wait_for(number(&h, "select count(*) from mlopt.webhook_delivery where state = 'failed'") == 1);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook where state = 'enabled'"), 1);
    number(&h, "update mlopt.webhook set failing_since = now() - interval '6 days'");
    shop_promote(&h.shop, "two");
    wait_for(number(&h,
                    "select count(*) from mlopt.webhook where state = 'disabled' and state_reason like 'no "
                    "attempt worked%'") == 1);
    assert_int_equal(number(&h, "select count(*) from mlopt.audit where convert_from(body, 'UTF8')::json ->> "
                                "'action' = 'webhook.disable'"),
                     1);
    /* a receiver that says it is gone, at once */
    add_hook(&h, "127.0.0.1", "/gone", "stage.promote");
    shop_promote(&h.shop, "three");
    wait_for(
        number(&h,
               "select count(*) from mlopt.webhook where state = 'disabled' and state_reason like '%410%'") ==
        1);
    hooks_close(&h);
}

static void test_webhooks__an_attempt_has_an_end(void **state)
{
    struct hooks h = hooks_open(state, "/hold");
    struct mlo_webhooks_options o = {.guard = loopback(), .timeout_ms = 1000};
    set_receiver(false, true);
    h.sender = sender(h.f, &o);
    shop_promote(&h.shop, "one");
    wait_for(number(&h, "select count(*) from mlopt.webhook_attempt where http_status is null and error ~* "
                        "'time'") >= 1);
    hooks_close(&h);
}

/* Two receivers hang, with more for them than there are threads, and go on hanging: a third gets all of its.
 */
static void test_webhooks__hanging_receivers_hold_up_no_other(void **state)
{
    struct hooks h = hooks_open(state, "/hold");
    struct mlo_webhooks_options o = {.guard = loopback(), .timeout_ms = 600000};
    set_receiver(false, true);
    add_hook(&h, "127.0.0.1", "/hold", "stage.promote");
    add_hook(&h, "127.0.0.1", "/ok", "stage.promote");
    for (int i = 0; i < 3; i++)
        shop_promote(&h.shop, "before");
    h.sender = sender(h.f, &o);
    wait_for(calls_on("/ok", NULL) == 3);
    /* the other threads have nothing else to do but what hangs */
    wait_for(calls_on("/hold", NULL) == 2);
    for (int i = 0; i < 3; i++)
        shop_promote(&h.shop, "while they hang");
    wait_for(calls_on("/ok", NULL) == 6);
    assert_int_equal(calls_on("/hold", NULL), 2);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_attempt where http_status is null"), 0);
    hooks_close(&h);
}

/* Those that are known to fail have one attempt each, and a thread less than there are, all together. */
static void test_webhooks__failing_receivers_hold_up_no_other(void **state)
{
    struct hooks h = hooks_open(state, "/hold");
    struct mlo_webhooks_options o = {.guard = loopback(), .timeout_ms = 600000, .threads = 4};
    set_receiver(false, true);
    for (int i = 0; i < 4; i++)
        add_hook(&h, "127.0.0.1", "/hold", "stage.promote");
    for (int i = 0; i < 2; i++)
        shop_promote(&h.shop, "before");
    number(&h, "update mlopt.webhook set failing_since = now()");
    h.sender = sender(h.f, &o);
    wait_for(calls_on("/hold", NULL) == 3);
    assert_int_equal(number(&h,
                            "select count(distinct webhook_id) from mlopt.webhook_delivery where lease is "
                            "not null"),
                     3);
    add_hook(&h, "127.0.0.1", "/ok", "stage.promote");
    for (int i = 0; i < 3; i++)
        shop_promote(&h.shop, "while they hang");
    wait_for(calls_on("/ok", NULL) == 3);
    assert_int_equal(calls_on("/hold", NULL), 3);
    hooks_close(&h);
}

/* Old ones go, however many; what waits for a webhook that can still get it stays. */
static void test_webhooks__old_deliveries_go(void **state)
{
    struct hooks h = hooks_open(state, "/ok");
    int64_t paused = add_hook(&h, "127.0.0.1", "/ok", "stage.promote"), removed;
    char sql[512];
    number(&h,
           "insert into mlopt.webhook_delivery (webhook_id, project_id, type, state, created_at) select "
           "w.id, w.project_id, 'webhook.ping', 'delivered', now() - interval '31 days' from mlopt.webhook "
           "w, generate_series(1, 1200) where w.state = 'enabled'");
    shop_promote(&h.shop, "to both");
    snprintf(sql, sizeof sql, "update mlopt.webhook set state = 'paused' where id = %lld", (long long)paused);
    number(&h, sql);
    /* pending for long, of both; that of the enabled one is not due yet */
    number(&h, "update mlopt.webhook_delivery set created_at = now() - interval '31 days', next_at = now() + "
               "interval '1 day' where state = 'pending'");
    removed = add_hook(&h, "127.0.0.1", "/ok", "stage.promote");
    shop_promote(&h.shop, "new");
    number(&h,
           "update mlopt.webhook_delivery set next_at = now() + interval '1 day' where state = 'pending'");
    assert_mlo_ok(mlo_webhook_remove(h.f->conn, &root, h.shop.project_id, removed, &h.f->err), &h.f->err);
    snprintf(sql, sizeof sql,
             "select count(*) from mlopt.webhook_delivery where webhook_id = %lld and state = 'failed'",
             (long long)removed);
    assert_int_equal(number(&h, sql), 1);
    hooks_start(&h);
    wait_for(number(&h, "select count(*) from mlopt.webhook_delivery") == 3);
    assert_int_equal(number(&h, sql), 1);
    snprintf(sql, sizeof sql, "select count(*) from mlopt.webhook_delivery where webhook_id = %lld",
             (long long)h.id);
    assert_int_equal(number(&h, sql), 2);
    snprintf(sql, sizeof sql, "select count(*) from mlopt.webhook_delivery where webhook_id = %lld",
             (long long)paused);
    assert_int_equal(number(&h, sql), 0);
    hooks_close(&h);
}

/* Removed while an attempt is under way, which then fails: it is not tried again. */
static void test_webhooks__removed_in_mid_delivery(void **state)
{
    struct hooks h = hooks_open(state, "/hold");
    struct mlo_webhooks_options o = {.guard = loopback(), .timeout_ms = 3000};
    set_receiver(false, true);
    shop_promote(&h.shop, "one");
    h.sender = sender(h.f, &o);
    wait_for(calls_on("/hold", NULL) == 1);
    assert_mlo_ok(mlo_webhook_remove(h.f->conn, &root, h.shop.project_id, h.id, &h.f->err), &h.f->err);
    wait_for(number(&h, "select count(*) from mlopt.webhook_delivery where lease is null") == 1);
    assert_int_equal(number(&h, "select count(*) from mlopt.webhook_delivery where state = 'failed'"), 1);
    hooks_close(&h);
}

/* A server that is killed in the middle of an attempt: another one makes it again, as the same message. */
static void test_webhooks__killed_in_mid_delivery_it_is_sent_again(void **state)
{
    struct hooks h = hooks_open(state, "/hold");
    struct call first, second;
    int how;
    set_receiver(false, true);
    shop_promote(&h.shop, "better");
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct pg_fixture mine = *h.f;
        const struct mlo_webhooks_options o = {.guard = loopback(), .timeout_ms = 600000};
        mine.server = pg_fixture_pool(h.f, MLO_ROLE_SERVER, 4);
        sender(&mine, &o);
        for (;;)
            pause();
    }
    wait_for(calls_on("/hold", &first) == 1);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    set_receiver(false, false);
    hooks_start(&h);
    mlo_clock_sleep_ms(200);
    assert_int_equal(calls_on("/hold", NULL), 1); /* it is leased still */
    number(&h, "update mlopt.webhook_delivery set lease_until = now()");
    wait_for(number(&h, DELIVERED) == 1);
    assert_int_equal(calls_on("/hold", &second), 2);
    assert_string_equal(first.id, second.id);
    hooks_close(&h);
}

static void test_webhooks__several_servers_send_each_once(void **state)
{
    enum { SERVERS = 3, MESSAGES = 40 };
    struct hooks h = hooks_open(state, "/ok");
    struct mlo_webhooks *servers[SERVERS];
    const struct mlo_webhooks_options o = {.guard = loopback()};
    for (int i = 0; i < MESSAGES; i++) {
        int64_t id;
        assert_mlo_ok(mlo_webhook_ping(h.f->conn, &root, h.shop.project_id, h.id, &id, &h.f->err), &h.f->err);
    }
    for (int i = 0; i < SERVERS; i++)
        servers[i] = sender(h.f, &o);
    wait_for(number(&h, DELIVERED) == MESSAGES);
    for (int i = 0; i < SERVERS; i++)
        mlo_webhooks_stop(servers[i]);
    assert_int_equal(calls_on("/ok", NULL), MESSAGES);
    for (size_t i = 0; i < MESSAGES; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(receiver.calls[i].id, receiver.calls[j].id);
    assert_int_equal(number(&h, "select max(attempts) from mlopt.webhook_delivery"), 1);
    hooks_close(&h);
}

/* --- where nothing is sent to ---------------------------------------------------------------------- */

static bool may_go(const struct mlo_webhook_guard *guard, const char *address)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, address, &v4.sin_addr) == 1)
        return mlo_webhook_guard_address(guard, (const struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
    return mlo_webhook_guard_address(guard, (const struct sockaddr *)&v6);
}

static void test_webhooks__addresses_inside_are_refused(void **state)
{
    static const char *const inside[] = {
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "192.0.0.8",
        "198.18.0.1",
        "198.19.255.255",
        "203.0.113.9",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fdff::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001:db8::1",
        "2001::1",
        "64:ff9b:1::1",
        "100::1",
        "fec0::1",
        "2002:a9fe:a9fe::1",
        "fd00:ec2::254",
        "240.0.0.1",
        "192.88.99.1",
    };
    static const char *const outside[] = {
        "8.8.8.8",        "1.1.1.1",          "172.15.255.255", "172.32.0.1",
        "100.63.255.255", "100.128.0.1",      "11.0.0.1",       "9.255.0.1",
        "198.17.0.1",     "169.253.0.1",      "223.255.255.1",  "2606:4700::1111",
        "2a00::1",        "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::1",
    };
    struct mlo_webhook_guard guard = {0};
    struct mlo_error err = {0};
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(inside); i++)
        if (may_go(&guard, inside[i]))
            fail_msg("%s may be reached", inside[i]);
    for (size_t i = 0; i < MLO_COUNT(outside); i++)
        if (!may_go(&guard, outside[i]))
            fail_msg("%s may not be reached", outside[i]);
    assert_mlo_ok(mlo_webhook_guard_allow(&guard, "10.1.0.0/16", &err), &err);
    assert_mlo_ok(mlo_webhook_guard_allow(&guard, "fd12::/16", &err), &err);
    assert_true(may_go(&guard, "10.1.255.255") && may_go(&guard, "::ffff:10.1.0.1") &&
                may_go(&guard, "fd12::1"));
    assert_false(may_go(&guard, "10.2.0.0") || may_go(&guard, "fd13::1"));
    static const char *const no_nets[] = {"10.1.0.0/33", "x", "", "10.1/16", "::/129", "10.0.0.0/-1"};
    for (size_t i = 0; i < MLO_COUNT(no_nets); i++)
        assert_mlo_status(mlo_webhook_guard_allow(&guard, no_nets[i], &err), MLO_EINVAL, &err);
}

static void test_webhooks__urls_inside_are_refused(void **state)
{
    static const char *const bad[] = {
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://169.254.169.254/x",
        "https://u:p@a.com/",
        "https://[::ffff:127.0.0.1]/",
        "nonsense",
        "https://",
        "gopher://a.com/",
        "https://[fe80::1]/",
    };
    const struct mlo_webhook_guard strict = {0};
    struct mlo_error err = {0};
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(bad); i++)
        if (mlo_webhook_guard_url(&strict, bad[i], &err) != MLO_EINVAL)
            fail_msg("%s is taken", bad[i]);
    assert_mlo_ok(mlo_webhook_guard_url(&strict, "https://example.com:8443/a?b=c", &err), &err);
    assert_mlo_ok(mlo_webhook_guard_url(&strict, "https://8.8.8.8/", &err), &err);
}

/* A name that means an address inside is found out when the connection is made, and a redirect is not
 * followed. */
static void test_webhooks__names_and_redirects_lead_nowhere(void **state)
{
    struct hooks h = hooks_open(state, "/redirect");
    hooks_start(&h);
    shop_promote(&h.shop, "one");
    wait_for(number(&h, "select count(*) from mlopt.webhook_attempt where http_status = 302") == 1);
    assert_int_equal(calls_on("/elsewhere", NULL), 0);
    mlo_webhooks_stop(h.sender);
    /* http is allowed here, the network is not */
    const struct mlo_webhooks_options strict = {.guard = {.allow_http = true}};
    h.sender = sender(h.f, &strict);
    add_hook(&h, "localhost", "/named", "stage.promote");
    setenv("http_proxy", "http://127.0.0.1:1", 1); /* which would connect for us */
    shop_promote(&h.shop, "two");
    wait_for(
        number(&h, "select count(*) from mlopt.webhook_attempt where http_status is null and error like '%an "
                   "address inside%'") >= 1);
    unsetenv("http_proxy");
    assert_int_equal(calls_on("/named", NULL), 0);
    hooks_close(&h);
}

/* The name has two addresses, of which one is refused; the other takes it. */
static void test_webhooks__a_second_address_is_as_good(void **state)
{
    struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_IPv6, 0,
                         NULL, NULL, on_request, NULL, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&here,
                         MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_END);
    if (!daemon)
        skip(); /* no IPv6 here */
    struct hooks h = hooks_open(state, "/ok");
    struct mlo_webhooks_options o = {.guard = {.allow_http = true}};
    uint16_t port = receiver.port;
    char sql[256];
    assert_mlo_ok(mlo_webhook_guard_allow(&o.guard, "::1", &h.f->err), &h.f->err);
    receiver.port = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    int64_t id = add_hook(&h, "localhost", "/named", "stage.promote");
    receiver.port = port;
    h.sender = sender(h.f, &o);
    shop_promote(&h.shop, "one");
    wait_for(number(&h, DELIVERED) == 1);
    assert_int_equal(calls_on("/named", NULL), 1);
    snprintf(sql, sizeof sql,
             "select count(*) from mlopt.webhook_attempt a join mlopt.webhook_delivery d on d.id = "
             "a.delivery_id where d.webhook_id = %lld and a.address = '::1' and a.error is null",
             (long long)id);
    assert_int_equal(number(&h, sql), 1);
    hooks_close(&h);
    MHD_stop_daemon(daemon);
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
        TEST(test_webhooks__what_fails_is_tried_again),
        TEST(test_webhooks__the_last_attempt_fails_it_and_long_failure_disables),
        TEST(test_webhooks__an_attempt_has_an_end),
        TEST(test_webhooks__hanging_receivers_hold_up_no_other),
        TEST(test_webhooks__failing_receivers_hold_up_no_other),
        TEST(test_webhooks__old_deliveries_go),
        TEST(test_webhooks__removed_in_mid_delivery),
        TEST(test_webhooks__killed_in_mid_delivery_it_is_sent_again),
        TEST(test_webhooks__several_servers_send_each_once),
        cmocka_unit_test(test_webhooks__addresses_inside_are_refused),
        cmocka_unit_test(test_webhooks__urls_inside_are_refused),
        TEST(test_webhooks__names_and_redirects_lead_nowhere),
        TEST(test_webhooks__a_second_address_is_as_good),
        TEST(test_webhooks__need_an_admin),
    };
    return cmocka_run_group_tests(tests, group_start, group_stop);
}
