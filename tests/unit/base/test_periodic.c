/* Threads that do something now and then. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/periodic.h"
#include "tests/cm.h"

enum { PATIENCE_MS = 60000, NEVER_MS = 3600 * 1000 };

struct work {
    atomic_int begun, ended, stops_seen;
    atomic_bool hold; /* a call lasts until it is told to stop */
};

static void work_on(struct mlo_periodic *self, void *arg)
{
    struct work *w = arg;
    atomic_fetch_add(&w->begun, 1);
    while (atomic_load(&w->hold) && !mlo_periodic_stopping(self))
        mlo_clock_sleep_ms(1);
    if (mlo_periodic_stopping(self))
        atomic_fetch_add(&w->stops_seen, 1);
    atomic_fetch_add(&w->ended, 1);
}

static void wait_for(atomic_int *count, int least)
{
    for (int ms = 0; ms < PATIENCE_MS && atomic_load(count) < least; ms++)
        mlo_clock_sleep_ms(1);
    assert_true(atomic_load(count) >= least);
}

static struct mlo_periodic *start(struct work *w, uint64_t first_ms, uint64_t every_ms)
{
    struct mlo_periodic *p = NULL;
    struct mlo_error err = {0};
    assert_ok(mlo_periodic_start(work_on, w, first_ms, every_ms, "works", &p, &err));
    return p;
}

static void test_periodic__calls_at_once_and_again(void **state)
{
    struct work w = {0};
    (void)state;
    struct mlo_periodic *p = start(&w, 0, 1);
    wait_for(&w.ended, 3);
    mlo_periodic_stop(p);
    int begun = atomic_load(&w.begun);
    assert_int_equal(begun, atomic_load(&w.ended));
    mlo_clock_sleep_ms(20);
    assert_int_equal(begun, atomic_load(&w.begun)); /* nothing comes after a stop */
}

/* Who stops waits for no time that is far away, neither for the first call nor for the next. */
static void test_periodic__stops_while_it_waits(void **state)
{
    struct work w = {0};
    (void)state;
    mlo_periodic_stop(start(&w, NEVER_MS, NEVER_MS));
    assert_int_equal(atomic_load(&w.begun), 0);
    struct mlo_periodic *p = start(&w, 1, NEVER_MS);
    wait_for(&w.ended, 1);
    mlo_periodic_stop(p);
    assert_int_equal(atomic_load(&w.begun), 1);
}

static void test_periodic__waits_for_the_call_and_tells_it(void **state)
{
    struct work w = {.hold = true};
    (void)state;
    struct mlo_periodic *p = start(&w, 0, 1);
    wait_for(&w.begun, 1);
    assert_false(mlo_periodic_stopping(p));
    mlo_periodic_stop(p);
    assert_int_equal(atomic_load(&w.begun), 1);
    assert_int_equal(atomic_load(&w.ended), 1);
    assert_int_equal(atomic_load(&w.stops_seen), 1);
}

static void test_periodic__none_is_no_error(void **state)
{
    (void)state;
    assert_false(mlo_periodic_stopping(NULL));
    mlo_periodic_stop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_periodic__calls_at_once_and_again),
        cmocka_unit_test(test_periodic__stops_while_it_waits),
        cmocka_unit_test(test_periodic__waits_for_the_call_and_tells_it),
        cmocka_unit_test(test_periodic__none_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
