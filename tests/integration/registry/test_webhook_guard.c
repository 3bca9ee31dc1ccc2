/* Where webhooks are not sent to. */
#include <arpa/inet.h>

#include "webhook_fixture.h"

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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_webhooks__addresses_inside_are_refused),
        cmocka_unit_test(test_webhooks__urls_inside_are_refused),
        TEST(test_webhooks__names_and_redirects_lead_nowhere),
        TEST(test_webhooks__a_second_address_is_as_good),
    };
    return cmocka_run_group_tests(tests, webhook_group_start, webhook_group_stop);
}
