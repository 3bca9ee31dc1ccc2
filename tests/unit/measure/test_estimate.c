#include <math.h>

#include "pipeline/measure/estimate_impl.h"
#include "pipeline/measure/random_impl.h"
#include "tests/unit/measure/fixture.h"

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%.12g is not within %g of %.12g", value, tolerance, expected);
}

/* `ones` of n scores are 1. */
static void proportion(int64_t ones, int64_t n, struct mlo_estimate *out)
{
    double scores[2000];
    for (int64_t i = 0; i < n; i++)
        scores[i] = i < ones;
    mlo_estimate_mean(scores, n, true, out);
}

static void test_estimate__wilson_gives_published_values(void **state)
{
    (void)state;
    /* Newcombe (1998), table I, method 3 (score interval without continuity correction), to four digits */
    static const struct {
        int64_t ones, n;
        double low, high;
    } cases[] = {
        {81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718}};
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        struct mlo_estimate e;
        proportion(cases[c].ones, cases[c].n, &e);
        assert_true(e.value == (double)cases[c].ones / (double)cases[c].n);
        assert_int_equal(e.n, cases[c].n);
        assert_near(e.low, cases[c].low, 5e-5);
        assert_near(e.high, cases[c].high, 5e-5);
    }
    struct mlo_estimate all;
    proportion(20, 20, &all);
    assert_true(all.value == 1 && all.high == 1);
    assert_near(all.low, 1 - 0.1611, 5e-5);
}

static void test_estimate__nothing_measured_is_all_zero(void **state)
{
    (void)state;
    struct mlo_estimate e = {1, 1, 1, 1};
    mlo_estimate_mean(NULL, 0, true, &e);
    assert_true(e.value == 0 && e.low == 0 && e.high == 0 && e.n == 0);
    mlo_estimate_paired(NULL, NULL, 0, true, &e);
    assert_int_equal(e.n, 0);
    mlo_estimate_median(NULL, 0, 5, &e);
    assert_int_equal(e.n, 0);
}

static void test_random__gives_the_reference_sequence(void **state)
{
    (void)state;
    /* xoshiro256** from the state {1, 2, 3, 4}, as its authors' implementation gives it */
    struct mlo_rng rng = {{1, 2, 3, 4}};
    assert_true(mlo_rng_next(&rng) == 11520u);
    assert_true(mlo_rng_next(&rng) == 0u);
    assert_true(mlo_rng_next(&rng) == 1509978240u);
    assert_true(mlo_rng_next(&rng) == 1215971899390074240u);
    mlo_rng_seed(&rng, 0); /* SplitMix64 from 0 begins with this number */
    assert_true(rng.s[0] == 0xe220a8397b1dcdafu);
    int64_t counts[10] = {0};
    for (int i = 0; i < 100000; i++)
        counts[mlo_rng_below(&rng, 10)]++;
    for (int i = 0; i < 10; i++)
        assert_true(counts[i] > 9600 && counts[i] < 10400);
}

/* A sum of 12 uniform numbers: close to normal, mean 0, variance 1. */
static double normal(struct mlo_rng *rng)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += mlo_rng_unit(rng);
    return sum;
}

static void test_estimate__bootstrap_covers_as_it_claims(void **state)
{
    (void)state;
    enum { TRIALS = 200, SIZE = 40 };
    struct mlo_rng rng;
    int covered = 0;
    double width = 0;
    mlo_rng_seed(&rng, 7);
    for (int t = 0; t < TRIALS; t++) {
        double scores[SIZE];
        struct mlo_estimate e;
        for (int i = 0; i < SIZE; i++)
            scores[i] = 3 + normal(&rng);
        mlo_estimate_mean(scores, SIZE, false, &e);
        assert_true(e.low <= e.value && e.value <= e.high);
        covered += e.low <= 3 && 3 <= e.high;
        width += (e.high - e.low) / TRIALS;
    }
    assert_true(covered >= 178 && covered <= 199);   /* about 94% of 200 */
    assert_near(width, 2 * 1.96 / sqrt(SIZE), 0.05); /* what the normal distribution gives */
}

static void test_estimate__is_repeatable(void **state)
{
    (void)state;
    const double scores[] = {0.5, 2, 3.25, 8, 1};
    struct mlo_estimate a, b;
    mlo_estimate_mean(scores, 5, false, &a);
    mlo_estimate_mean(scores, 5, false, &b);
    assert_memory_equal(&a, &b, sizeof a);
    assert_near(a.value, 2.95, 1e-12);
    assert_true(a.low >= 0.5 && a.high <= 8 && a.low < a.high);
}

static void test_estimate__scores_that_happen_to_be_zero_are_no_proportion(void **state)
{
    (void)state;
    const double errors[50] = {0};
    struct mlo_estimate e;
    mlo_estimate_mean(errors, 50, false, &e);
    assert_true(e.value == 0 && e.low == 0 && e.high == 0);
    mlo_estimate_mean(errors, 50, true, &e);
    assert_true(e.high > 0.05);
}

static void test_estimate__pairs_are_tighter_than_two_averages(void **state)
{
    (void)state;
    enum { SIZE = 200 };
    double a[SIZE], b[SIZE];
    struct mlo_rng rng;
    struct mlo_estimate paired, alone;
    mlo_rng_seed(&rng, 3);
    for (int i = 0; i < SIZE; i++) {
        a[i] = 10 * normal(&rng);
        b[i] = a[i] - 0.25 + 0.1 * normal(&rng);
    }
    mlo_estimate_paired(a, b, SIZE, false, &paired);
    mlo_estimate_mean(a, SIZE, false, &alone);
    assert_near(paired.value, 0.25, 0.03);
    assert_true(paired.low > 0.2 && paired.high < 0.3);
    assert_true(alone.high - alone.low > 2);
}

static void test_estimate__paired_proportions_never_claim_certainty(void **state)
{
    (void)state;
    double a[1000], b[1000];
    struct mlo_estimate e;
    for (int i = 0; i < 1000; i++)
        a[i] = b[i] = i % 10 != 0;
    mlo_estimate_paired(a, b, 10, true, &e);
    assert_true(e.value == 0 && e.low < -0.1 && e.high > 0.1); /* ten equal pairs show little */
    mlo_estimate_paired(a, b, 1000, true, &e);
    assert_true(e.value == 0 && e.low < 0 && e.low > -0.005 && e.high == -e.low);
    /* 150 against 86 of 1600 pairs: 0.04, and with so many pairs nearly 1.96 standard errors of 0.0095 about
     * it */
    double x[1600] = {0}, y[1600] = {0};
    for (int i = 0; i < 150; i++)
        x[i] = 1;
    for (int i = 150; i < 236; i++)
        y[i] = 1;
    mlo_estimate_paired(x, y, 1600, true, &e);
    assert_near(e.value, 0.04, 1e-12);
    assert_near(e.low, 0.0213, 3e-4);
    assert_near(e.high, 0.0587, 3e-4);
}

static void pairs(int only_a, int only_b, int both, double *a, double *b)
{
    int n = 0;
    for (int i = 0; i < only_a; i++, n++)
        a[n] = 1, b[n] = 0;
    for (int i = 0; i < only_b; i++, n++)
        a[n] = 0, b[n] = 1;
    for (int i = 0; i < both; i++, n++)
        a[n] = b[n] = 1;
}

static void test_estimate__mcnemar_gives_known_values(void **state)
{
    (void)state;
    static const struct {
        int only_a, only_b;
        double p;
    } cases[] = {
        {0, 0, 1},
        {4, 4, 1},
        {1, 0, 1},
        {5, 0, 0.0625},
        {6, 1, 0.125},
        {10, 2, 0.03857421875},
        {2, 10, 0.03857421875},
        {8, 7, 1},
        {121, 59, 4.434e-6},
    };
    double a[400], b[400];
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        pairs(cases[c].only_a, cases[c].only_b, 50, a, b);
        double p = mlo_mcnemar(a, b, cases[c].only_a + cases[c].only_b + 50);
        assert_near(p, cases[c].p, MLO_MAX(cases[c].p * 1e-3, 1e-12));
    }
    /* thousands of discordant pairs neither overflow nor vanish */
    static double x[9000], y[9000];
    pairs(4600, 4400, 0, x, y);
    double p = mlo_mcnemar(x, y, 9000);
    assert_true(p > 0.03 && p < 0.04);
}

static void test_estimate__median_is_resampled_by_process(void **state)
{
    (void)state;
    const double p50[] = {10, 11, 12, 13, 30}, same[] = {5, 5, 5};
    struct mlo_estimate e;
    mlo_estimate_median(p50, 5, 1234, &e);
    assert_true(e.value == 12 && e.n == 1234);
    assert_true(e.low >= 10 && e.low < 12 && e.high > 12 && e.high <= 30);
    mlo_estimate_median(same, 3, 3, &e);
    assert_true(e.value == 5 && e.low == 5 && e.high == 5);
    const double sorted[] = {1, 2, 3, 4};
    assert_near(mlo_quantile_sorted(sorted, 4, 0.5), 2.5, 0);
    assert_near(mlo_quantile_sorted(sorted, 4, 0.9), 3.7, 1e-12);
    assert_near(mlo_quantile_sorted(sorted, 4, 1), 4, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_estimate__wilson_gives_published_values),
        cmocka_unit_test(test_estimate__nothing_measured_is_all_zero),
        cmocka_unit_test(test_random__gives_the_reference_sequence),
        cmocka_unit_test(test_estimate__bootstrap_covers_as_it_claims),
        cmocka_unit_test(test_estimate__is_repeatable),
        cmocka_unit_test(test_estimate__scores_that_happen_to_be_zero_are_no_proportion),
        cmocka_unit_test(test_estimate__pairs_are_tighter_than_two_averages),
        cmocka_unit_test(test_estimate__paired_proportions_never_claim_certainty),
        cmocka_unit_test(test_estimate__mcnemar_gives_known_values),
        cmocka_unit_test(test_estimate__median_is_resampled_by_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
