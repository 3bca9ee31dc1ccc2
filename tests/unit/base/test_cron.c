#include "base/cron.h"
#include "tests/cm.h"

#include <stdio.h>
#include <stdlib.h>

static struct mlo_minute at(const char *text)
{
    struct mlo_minute m;
    if (sscanf(text, "%d-%d-%d %d:%d", &m.year, &m.month, &m.day, &m.hour, &m.minute) != 5)
        fail_msg("'%s' is no minute", text);
    return m;
}

static void show(const struct mlo_minute *m, char out[64])
{
    snprintf(out, 64, "%04d-%02d-%02d %02d:%02d", m->year, m->month, m->day, m->hour, m->minute);
}

static void test_cron__finds_the_next_time(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *cron, *after, *next[3];
    } CASES[] = {
        {"* * * * *", "2026-12-31 23:59", {"2027-01-01 00:00", "2027-01-01 00:01", "2027-01-01 00:02"}},
        {"*/15 * * * *", "2026-11-22 18:15", {"2026-11-22 18:30", "2026-11-22 18:45", "2026-11-22 19:00"}},
        {"0 3 * * *", "2026-11-22 03:00", {"2026-11-23 03:00", "2026-11-24 03:00", "2026-11-25 03:00"}},
        {"  5,10-12 0  1 jan *",
         "2026-01-01 00:05",
         {"2026-01-01 00:10", "2026-01-01 00:11", "2026-01-01 00:12"}},
        {"0 8-20/4 * * *", "2026-06-01 12:01", {"2026-06-01 16:00", "2026-06-01 20:00", "2026-06-02 08:00"}},
        {"30 2 * * MON-fri",
         "2026-11-20 02:30",
         {"2026-11-23 02:30", "2026-11-24 02:30", "2026-11-25 02:30"}},
        {"0 0 * * 7", "2026-11-21 12:00", {"2026-11-22 00:00", "2026-11-29 00:00", "2026-12-06 00:00"}},
        {"0 0 * * 0", "2026-11-21 12:00", {"2026-11-22 00:00", "2026-11-29 00:00", "2026-12-06 00:00"}},
        {"0 0 * * fri-sun", "2026-11-19 12:00", {"2026-11-20 00:00", "2026-11-21 00:00", "2026-11-22 00:00"}},
        /* leap years: not 2100 */
        {"0 0 29 2 *", "2026-01-01 00:00", {"2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"}},
        {"0 0 29 Feb *", "2092-03-01 00:00", {"2096-02-29 00:00", "2104-02-29 00:00", "2108-02-29 00:00"}},
        /* leap day on a Sunday: a weekday that begins with * restricts as well */
        {"0 0 29 2 */7", "2088-03-01 00:00", {"2128-02-29 00:00", "2156-02-29 00:00", "2184-02-29 00:00"}},
        {"0 0 31 * *", "2026-01-31 00:00", {"2026-03-31 00:00", "2026-05-31 00:00", "2026-07-31 00:00"}},
        /* both days restricted: either */
        {"0 0 13 * fri", "2026-02-01 00:00", {"2026-02-06 00:00", "2026-02-13 00:00", "2026-02-20 00:00"}},
        {"0 0 1,2 * mon", "2026-06-29 01:00", {"2026-07-01 00:00", "2026-07-02 00:00", "2026-07-06 00:00"}},
        {"59 23 31 12 *", "2026-12-31 23:59", {"2027-12-31 23:59", "2028-12-31 23:59", "2029-12-31 23:59"}},
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        struct mlo_cron cron;
        struct mlo_minute m = at(CASES[i].after);
        assert_ok(mlo_cron_parse(CASES[i].cron, &cron, &err));
        for (size_t n = 0; n < MLO_COUNT(CASES[i].next); n++) {
            char text[64];
            assert_true(mlo_cron_next(&cron, &m, &m));
            show(&m, text);
            if (strcmp(text, CASES[i].next[n]) != 0)
                fail_msg("'%s' after %s: %s instead of %s", CASES[i].cron, CASES[i].after, text,
                         CASES[i].next[n]);
        }
    }
}

static void test_cron__names_the_field_of_a_mistake(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *cron, *part, *where;
    } CASES[] = {
        {"", "has 0 fields, not five", "cron expression"},
        {"0 3 * *", "has 4 fields, not five", "cron expression"},
        {"0 0 3 * * *", "has 6 fields, not five", "cron expression"},
        {"@daily", "has 1 field, not five", "cron expression"},
        {"60 * * * *", "minute '60' is none", "field 1"},
        {"* 24 * * *", "hour '24' is none", "field 2"},
        {"* * 0 * *", "day of the month '0' is none", "field 3"},
        {"* * * 13 *", "month '13' is none", "field 4"},
        {"* * * janu *", "month 'janu' is none", "field 4"},
        {"* * * * 8", "day of the week '8' is none", "field 5"},
        {"* * * * mon-", "day of the week '' is none", "field 5"},
        {"1,,2 * * * *", "minute '' is empty", "field 1"},
        {"1, * * * *", "minute '' is empty", "field 1"},
        {"5-1 * * * *", "minute '5-1' ends before it begins", "field 1"},
        {"5/10 * * * *", "minute '5/10' has a step and is no range", "field 1"},
        {"*/0 * * * *", "minute '*/0' has no step that there is", "field 1"},
        {"*/ * * * *", "minute '*/' has no step that there is", "field 1"},
        {"*/100 * * * *", "has no step that there is", "field 1"},
        {"-1 * * * *", "minute '' is none", "field 1"},
        {"0x1 * * * *", "minute '0x1' is none", "field 1"},
        {"0 0 30 2 *", "no date ever matches", "fields 3 to 5"},
        {"0 0 31 4,6,9,11 *", "no date ever matches", "fields 3 to 5"},
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        struct mlo_cron cron;
        if (mlo_cron_parse(CASES[i].cron, &cron, &err) != MLO_EINVAL)
            fail_msg("'%s' was accepted", CASES[i].cron);
        assert_contains(err.message, CASES[i].part);
        assert_contains(err.where, CASES[i].where);
        assert_true(err.hint[0] != '\0');
    }
}

static void test_cron__knows_which_run_in_every_hour(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *cron;
        bool every;
    } CASES[] = {{"0 * * * *", true}, {"*/5 0-23 * * *", true}, {"0 */2 * * *", false}, {"0 2 * * *", false}};
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        struct mlo_cron cron;
        assert_ok(mlo_cron_parse(CASES[i].cron, &cron, &err));
        assert_true(mlo_cron_every_hour(&cron) == CASES[i].every);
    }
}

static void test_cron__counts_days(void **state)
{
    MLO_UNUSED(state);
    struct mlo_minute m = {1970, 1, 1, 0, 0}, back;
    assert_int_equal(mlo_minute_day(&m), 0);
    for (int64_t day = -200000; day <= 200000; day += 37) {
        mlo_minute_of_day(day, &back);
        assert_int_equal(mlo_minute_day(&back), day);
    }
    mlo_minute_add(&m, -1);
    assert_int_equal(m.year, 1969);
    assert_int_equal(m.minute, 59);
    m = at("2024-02-28 23:59");
    mlo_minute_add(&m, 1);
    assert_int_equal(m.day, 29);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cron__finds_the_next_time),
        cmocka_unit_test(test_cron__names_the_field_of_a_mistake),
        cmocka_unit_test(test_cron__knows_which_run_in_every_hour),
        cmocka_unit_test(test_cron__counts_days),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
