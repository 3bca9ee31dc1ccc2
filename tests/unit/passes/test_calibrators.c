#include "tests/cm.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "passes/calibrators.h"

static const struct mlo_calibration ASYMMETRIC = {.percentile = 99, .levels = 256};
static const struct mlo_calibration SYMMETRIC = {.percentile = 99, .levels = 255, .symmetric = true};

static struct mlo_tensor_stats *observe(struct mlo_stats *stats, const float *values, size_t count)
{
    struct mlo_error err = {0};
    mlo_stats_init(stats);
    struct mlo_tensor_stats *t = mlo_stats_get(stats, "x");
    assert_ok(mlo_tensor_stats_add(t, values, count, &err));
    return t;
}

static float uniform(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (1 << 24);
}

/* About normal: the sum of twelve. */
static float normal(uint32_t *seed)
{
    float sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(seed);
    return sum;
}

static double sqnr_of(const char *name, const struct mlo_tensor_stats *t, const struct mlo_calibration *c)
{
    float low, high;
    mlo_calibrator_find(name)->range(t, c, &low, &high);
    return mlo_calibration_sqnr(t, c, low, high);
}

static void test_calibrators__table_and_names_agree(void **state)
{
    (void)state;
    for (size_t i = 0; mlo_calibrator_names[i]; i++) {
        const struct mlo_calibrator *row = mlo_calibrator_find(mlo_calibrator_names[i]);
        assert_non_null(row);
        assert_string_equal(row->name, mlo_calibrator_names[i]);
        assert_non_null(row->range);
        assert_non_null(row->description);
    }
    assert_null(mlo_calibrator_find("magic"));
}

static void test_calibrators__moving_average_by_hand(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_stats stats;
    float low, high;
    struct mlo_tensor_stats *t = observe(&stats, (float[]){-1, 1}, 2);
    assert_ok(mlo_tensor_stats_add(t, (float[]){-2, 3}, 2, &err));
    mlo_calibrator_find("moving_average")->range(t, &ASYMMETRIC, &low, &high);
    double keep = 1 - MLO_STATS_EMA, weight = keep + 1;
    assert_true(fabs((double)low - -(keep * 1 + 2) / weight) < 1e-6);
    assert_true(fabs((double)high - (keep * 1 + 3) / weight) < 1e-6);
    mlo_stats_clear(&stats);
}

static void test_calibrators__minmax_and_percentile_by_hand(void **state)
{
    (void)state;
    struct mlo_stats stats;
    float values[100], low, high;
    for (int i = 0; i < 100; i++) /* 0, 1, … 97, and one far out at each end */
        values[i] = i == 0 ? -1000 : i == 99 ? 1000 : (float)(i - 1);
    const struct mlo_tensor_stats *t = observe(&stats, values, 100);
    mlo_calibrator_find("minmax")->range(t, &ASYMMETRIC, &low, &high);
    assert_true(low == -1000 && high == 1000);
    /* 1.5 of 100 go at either end: the range ends in the bins that hold 0 and 97 */
    const struct mlo_calibration c = {.percentile = 97, .levels = 256};
    float width = ldexpf(1, t->log2_width);
    mlo_calibrator_find("percentile")->range(t, &c, &low, &high);
    if (!(fabsf(low) <= width && fabsf(high - 97) <= width))
        fail_msg("[%g, %g] in bins of %g", (double)low, (double)high, (double)width);
    mlo_stats_clear(&stats);
}

/* Bins of width 1, two levels: 0 and the end z. 100 values in [10, 11), some in [100, 101), spread evenly.
 * With one far out, z = 11 costs 100/3 + (89^2 + 89 90 + 90^2)/3 = 8044; z = 12 costs 233 + 7832 = 8066, z =
 * 10 costs 33 + 8190 = 8224, and where the ten become 0 they alone cost 11033. With as many far out, the
 * extremes cost 11033 + 15, and z = 11 some 800000. `auto` takes the same, as the extremes and the average
 * lose more in the first case, and the least first in the second. */
static void test_calibrators__mse_by_hand(void **state)
{
    (void)state;
    static const struct {
        uint64_t far;
        float high;
    } cases[] = {{1, 11}, {100, 100.75f}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        float low, high;
        uint64_t *bins = calloc(MLO_HIST_BINS, sizeof *bins);
        assert_non_null(bins);
        bins[MLO_HIST_BINS / 2 + 10] = 100;
        bins[MLO_HIST_BINS / 2 + 100] = cases[i].far;
        const struct mlo_tensor_stats t = {
            .name = "x", .count = 100 + cases[i].far, .min = 10.25f, .max = 100.75f, .bins = bins};
        const struct mlo_calibration c = {.levels = 2, .percentile = 100};
        static const char *const names[] = {"mse", "auto"};
        for (size_t n = 0; n < MLO_COUNT(names); n++) {
            mlo_calibrator_find(names[n])->range(&t, &c, &low, &high);
            if (fminf(low, 0) != 0 || high != cases[i].high)
                fail_msg("%s, %d far out: [%g, %g]", names[n], (int)cases[i].far, (double)low, (double)high);
        }
        free(bins);
    }
}

/* Numbers from 0 to 1 and one large. By squared error the large one goes when it costs each of a million
 * small ones a coarse step, and stays when there are ten; by entropy what is even stays and what is rare
 * goes. */
static void test_calibrators__weigh_an_outlier(void **state)
{
    (void)state;
    enum { MANY = 1000000 };
    static const struct {
        const char *calibrator;
        uint32_t seed;
        int count, at;
        float large, low_from, low_to, high_above, high_below;
    } cases[] = {
        {"mse", 7, MANY, MANY / 2, 32, 0, 0, 13.5f, 14.5f},
        {"mse", 7, 10, 3, 32, -INFINITY, INFINITY, 30, INFINITY},
        {"entropy", 5, 200000, 0, 0.5f, -INFINITY, 0.01f, 0.99f, INFINITY},
        {"entropy", 5, 200000, 0, 20, -INFINITY, INFINITY, 0.99f, 10},
    };
    float *values = malloc(MANY * sizeof *values), low, high;
    assert_non_null(values);
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        struct mlo_stats stats;
        uint32_t seed = cases[c].seed;
        for (int i = 0; i < cases[c].count; i++)
            values[i] = uniform(&seed);
        values[cases[c].at] = cases[c].large;
        mlo_calibrator_find(cases[c].calibrator)
            ->range(observe(&stats, values, (size_t)cases[c].count), &ASYMMETRIC, &low, &high);
        if (!(low >= cases[c].low_from && low <= cases[c].low_to && high > cases[c].high_above &&
              high < cases[c].high_below))
            fail_msg("%s of %d values up to %g: [%g, %g]", cases[c].calibrator, cases[c].count,
                     (double)cases[c].large, (double)low, (double)high);
        mlo_stats_clear(&stats);
    }
    free(values);
}

/* Migacz 2017, on bins of width 1 and two levels of |x| (four integers). Bins 1 to 3 hold 8, 4, 4 and bin 7
 * holds 1; bin 0 counts as bin 1. Up to 8, the first level spreads 24 over four bins: (16 ln(8/6) + 8
 * ln(4/6)) / 25 = 0.054. Up to 4, all that is lost is the one in the last bin: 5 ln(5/4) / 25 - ln(25/24) =
 * 0.004. Up to 3 and 2 that is 0.069 and 0.066; up to 5 and 6 it is 0.035, 7 as 8. */
static void test_calibrators__entropy_by_hand(void **state)
{
    (void)state;
    static const struct {
        int outlier, sign;
        uint64_t spike;
        float low, high;
    } cases[] = {
        {7, 1, 0, 0, 4},
        {7, 1, 1000, 0, 4}, /* zeros of a Relu change nothing */
        {7, -1, 0, -4, 0},  /* the magnitude counts */
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        float low, high;
        uint64_t *bins = calloc(MLO_HIST_BINS, sizeof *bins);
        assert_non_null(bins);
        static const uint64_t counts[] = {0, 8, 4, 4};
        for (int k = 0; k < MLO_HIST_BINS / 2; k++) {
            int b = cases[i].sign > 0 ? MLO_HIST_BINS / 2 + k : MLO_HIST_BINS / 2 - 1 - k;
            bins[b] = k == 0 ? cases[i].spike : k < 4 ? counts[k] : k == cases[i].outlier;
        }
        float most = (float)cases[i].outlier + 0.75f;
        const struct mlo_tensor_stats t = {.name = "x",
                                           .count = 17 + cases[i].spike,
                                           .min = cases[i].sign > 0 ? 0 : -most,
                                           .max = cases[i].sign > 0 ? most : 0,
                                           .bins = bins};
        const struct mlo_calibration c = {.levels = 4};
        mlo_calibrator_find("entropy")->range(&t, &c, &low, &high);
        if (low != cases[i].low || high != cases[i].high)
            fail_msg("case %zu: [%g, %g]", i, (double)low, (double)high);
        free(bins);
    }
}

/* 8-bit pixels behind a normalization: a level for each, wherever the range ends, and most at one of them.
 * Clipping gains nothing; a smooth tail of the same width is clipped. */
static void test_calibrators__entropy_keeps_pixels(void **state)
{
    (void)state;
    enum { N = 65536 };
    struct mlo_stats stats;
    uint32_t seed = 5;
    float low, high, *values = malloc(N * sizeof *values);
    assert_non_null(values);
    for (int i = 0; i < N; i++)
        values[i] = ((i % 2 ? uniform(&seed) > 0.9f ? 255 * uniform(&seed) : 9 : 0));
    for (int i = 0; i < N; i++)
        values[i] = (floorf(values[i]) / 255 - 0.2860f) / 0.3530f;
    const struct mlo_tensor_stats *t = observe(&stats, values, N);
    mlo_calibrator_find("entropy")->range(t, &ASYMMETRIC, &low, &high);
    assert_true(low == t->min && high == t->max);
    mlo_stats_clear(&stats);
    for (int i = 0; i < N; i++)
        values[i] = normal(&seed) * normal(&seed) * normal(&seed);
    t = observe(&stats, values, N);
    mlo_calibrator_find("entropy")->range(t, &ASYMMETRIC, &low, &high);
    assert_true(low > t->min && high < t->max);
    mlo_stats_clear(&stats);
    free(values);
}

/* The half of the values that a Relu made zero is exact in every range, and does not decide it. */
static void test_calibrators__entropy_keeps_the_range_behind_a_relu(void **state)
{
    (void)state;
    enum { N = 100000 };
    float *values = malloc(N * sizeof *values), with[2], without[2];
    assert_non_null(values);
    for (int zeros = 0; zeros < 2; zeros++) {
        uint32_t seed = 11;
        struct mlo_stats stats;
        float *range = zeros ? with : without;
        for (int i = 0; i < N; i++) {
            float x = normal(&seed);
            values[i] = zeros ? fmaxf(x, 0) : fabsf(x);
        }
        mlo_calibrator_find("entropy")->range(observe(&stats, values, N), &ASYMMETRIC, &range[0], &range[1]);
        mlo_stats_clear(&stats);
    }
    free(values);
    assert_true(with[0] == 0 && without[0] == 0);
    print_message("up to %g with zeros, %g without\n", (double)with[1], (double)without[1]);
    assert_true(with[1] > 0.9f * without[1]);
}

/* The error that the histogram predicts is that of quantizing the values themselves. */
static void test_calibrators__sqnr_is_that_of_the_values(void **state)
{
    (void)state;
    enum { N = 20000 };
    float values[N];
    uint32_t seed = 3;
    struct mlo_stats stats;
    double signal = 0, noise = 0;
    const float low = -2.5f, high = 2.5f;
    for (int i = 0; i < N; i++) {
        values[i] = normal(&seed);
        double step = ((double)high - (double)low) / 255, x = (double)values[i];
        double q = (double)low + step * rint((fmin(fmax(x, (double)low), (double)high) - (double)low) / step);
        signal += x * x;
        noise += (x - q) * (x - q);
    }
    double predicted = mlo_calibration_sqnr(observe(&stats, values, N), &ASYMMETRIC, low, high);
    assert_true(fabs(predicted - 10 * log10(signal / noise)) < 0.1);
    mlo_stats_clear(&stats);
}

static void test_calibrators__mse_is_best_by_squared_error(void **state)
{
    (void)state;
    enum { N = 20000, SHAPES = 4 };
    static float values[N];
    for (int shape = 0; shape < SHAPES; shape++) {
        uint32_t seed = 11;
        struct mlo_stats stats;
        for (int i = 0; i < N; i++) {
            float v = normal(&seed);
            values[i] = shape == 0 ? v : shape == 1 ? fmaxf(v, 0) : shape == 2 ? v * v * v : expf(v) - 3;
        }
        const struct mlo_tensor_stats *t = observe(&stats, values, N);
        for (int symmetric = 0; symmetric < 2; symmetric++) {
            const struct mlo_calibration *c = symmetric ? &SYMMETRIC : &ASYMMETRIC;
            double best = sqnr_of("mse", t, c);
            /* clipping a percent of a heavy tail is worse than keeping it; minmax is never better */
            static const char *const others[] = {"minmax", "percentile", "entropy"};
            for (size_t k = 0; !symmetric && k < MLO_COUNT(others); k++)
                assert_true(best >= sqnr_of(others[k], t, c) - 1e-9);
            float low, high;
            mlo_calibrator_find("mse")->range(t, c, &low, &high);
            if (symmetric)
                assert_true(low == -high);
            for (int k = 1; k <= 20; k++) { /* no range of a grid over both ends is better by 0.1 dB */
                float a = c->symmetric ? -high : t->min * (float)k / 20,
                      z = c->symmetric ? high : t->max * (float)k / 20;
                assert_true(mlo_calibration_sqnr(t, c, a, z) <= best + 0.1);
            }
        }
        mlo_stats_clear(&stats);
    }
}

static void test_calibrators__odd_tensors_have_a_range(void **state)
{
    (void)state;
    static const float zeros[] = {0, 0, 0}, one[] = {5, 5, 5}, negative[] = {-5, -4}, tiny[] = {1e-42f, 0},
                       huge[] = {FLT_MAX, -FLT_MAX};
    const struct {
        const float *values;
        size_t count;
    } cases[] = {{zeros, 3}, {one, 3}, {negative, 2}, {tiny, 2}, {huge, 2}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        for (size_t n = 0; mlo_calibrator_names[n]; n++)
            for (int symmetric = 0; symmetric < 2; symmetric++) {
                struct mlo_stats stats;
                float low = NAN, high = NAN;
                const struct mlo_tensor_stats *t = observe(&stats, cases[i].values, cases[i].count);
                mlo_calibrator_find(mlo_calibrator_names[n])
                    ->range(t, symmetric ? &SYMMETRIC : &ASYMMETRIC, &low, &high);
                if (!(isfinite(low) && isfinite(high) && low <= high))
                    fail_msg("%s of case %zu: [%g, %g]", mlo_calibrator_names[n], i, (double)low,
                             (double)high);
                mlo_stats_clear(&stats);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibrators__table_and_names_agree),
        cmocka_unit_test(test_calibrators__moving_average_by_hand),
        cmocka_unit_test(test_calibrators__minmax_and_percentile_by_hand),
        cmocka_unit_test(test_calibrators__mse_by_hand),
        cmocka_unit_test(test_calibrators__weigh_an_outlier),
        cmocka_unit_test(test_calibrators__entropy_by_hand),
        cmocka_unit_test(test_calibrators__entropy_keeps_pixels),
        cmocka_unit_test(test_calibrators__entropy_keeps_the_range_behind_a_relu),
        cmocka_unit_test(test_calibrators__sqnr_is_that_of_the_values),
        cmocka_unit_test(test_calibrators__mse_is_best_by_squared_error),
        cmocka_unit_test(test_calibrators__odd_tensors_have_a_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
