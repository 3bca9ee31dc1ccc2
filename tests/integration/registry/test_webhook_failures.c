/* Webhooks whose receivers fail, hang or go, and senders that are killed. */

#include "webhook_fixture.h"

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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_webhooks__what_fails_is_tried_again),
        TEST(test_webhooks__the_last_attempt_fails_it_and_long_failure_disables),
        TEST(test_webhooks__an_attempt_has_an_end),
        TEST(test_webhooks__hanging_receivers_hold_up_no_other),
        TEST(test_webhooks__failing_receivers_hold_up_no_other),
        TEST(test_webhooks__old_deliveries_go),
        TEST(test_webhooks__removed_in_mid_delivery),
        TEST(test_webhooks__killed_in_mid_delivery_it_is_sent_again),
        TEST(test_webhooks__several_servers_send_each_once),
    };
    return cmocka_run_group_tests(tests, webhook_group_start, webhook_group_stop);
}
