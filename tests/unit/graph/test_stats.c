#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"

enum { SAMPLES = 24, SIZE = 50 };

static float value(int sample, int i)
{
    unsigned h = (unsigned)(sample * SIZE + i) * 2654435761u;
    float v = ((float)(h >> 8) / 16777216.0f - 0.5f) * 6;
    return h % 97 == 0 ? v * 1000 : h % 89 == 0 ? NAN : h % 83 == 0 ? 0 : v; /* rare ones widen the bins */
}

static char *text_of(const struct mlo_stats *stats)
{
    json_t *json;
    struct mlo_buf text = MLO_BUF_INIT;
    assert_int_equal(mlo_stats_to_json(stats, &json, NULL), MLO_OK);
    mlo_json_canonical(json, &text);
    json_decref(json);
    return mlo_buf_take(&text);
}

static void add(struct mlo_stats *stats, int first, int end)
{
    stats->first = (uint64_t)first;
    struct mlo_tensor_stats *t = mlo_stats_get(stats, "a");
    struct mlo_channel_stats *c = mlo_stats_get_channels(stats, "a", 5);
    for (int s = first; s < end; s++) {
        float values[SIZE];
        for (int i = 0; i < SIZE; i++)
            values[i] = value(s, i);
        assert_int_equal(mlo_tensor_stats_add(t, values, SIZE, NULL), MLO_OK);
        assert_int_equal(mlo_channel_stats_add(c, values, 1, SIZE / 5, NULL), MLO_OK);
    }
}

/* Whichever shards there are, and in whatever order they are put together, all is the same to the bit. */
static void test_stats__any_sharding_gives_the_same(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats whole;
    mlo_stats_init(&whole);
    add(&whole, 0, SAMPLES);
    whole.first = 0;
    char *expected = text_of(&whole);
    for (int shards = 1; shards <= SAMPLES; shards++)
        for (int order = 0; order < 2; order++) {
            struct mlo_stats all;
            mlo_stats_init(&all);
            for (int i = 0; i < shards; i++) {
                struct mlo_stats one;
                int shard = order ? shards - 1 - i : (i * 7 + 3) % shards; /* backwards, or mixed up */
                if (!order && shards % 7 == 0)
                    shard = i;
                mlo_stats_init(&one);
                add(&one, SAMPLES * shard / shards, SAMPLES * (shard + 1) / shards);
                assert_int_equal(mlo_stats_merge(&all, &one, NULL), MLO_OK);
                mlo_stats_clear(&one);
            }
            char *text = text_of(&all);
            assert_string_equal(text, expected);
            free(text);
            mlo_stats_clear(&all);
        }
    free(expected);
    mlo_stats_clear(&whole);
}

static void test_stats__a_sample_counts_once(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats a, b;
    mlo_stats_init(&a);
    mlo_stats_init(&b);
    add(&a, 0, 9);
    add(&b, 8, 12);
    assert_int_equal(mlo_stats_merge(&a, &b, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "sample 8 is there twice"));
    mlo_stats_clear(&a);
    mlo_stats_clear(&b);
}

/* Three samples: the first two are joined, then the third. 0.1 + 0.2 + 0.3 is 0.6000000000000001 so, and 0.6
 * the other way round; a shard of the last two must not show. */
static void test_stats__sums_follow_the_tree(void **state)
{
    MLO_UNUSED(state);
    static const float values[] = {0.1f, 0.2f, 0.3f};
    struct mlo_stats a, b;
    mlo_stats_init(&a);
    mlo_stats_init(&b);
    assert_int_equal(mlo_tensor_stats_add(mlo_stats_get(&a, "x"), values, 1, NULL), MLO_OK);
    b.first = 1;
    for (int i = 1; i < 3; i++)
        assert_int_equal(mlo_tensor_stats_add(mlo_stats_get(&b, "x"), &values[i], 1, NULL), MLO_OK);
    assert_int_equal(mlo_stats_merge(&b, &a, NULL), MLO_OK);
    const struct mlo_tensor_stats *t = mlo_stats_find(&b, "x");
    assert_true(t->sum == ((double)values[0] + (double)values[1]) + (double)values[2]);
    const double e = MLO_STATS_EMA, keeps = 1 - e;
    double pair = e * (double)values[0] * keeps + e * (double)values[1];
    assert_true(t->ema_min == pair * keeps + e * (double)values[2]);
    assert_true(fabs(t->ema_weight - (1 - keeps * keeps * keeps)) < 1e-15);
    assert_int_equal(t->sums.count, 2);
    mlo_stats_clear(&a);
    mlo_stats_clear(&b);
}

/* Blocks, lanes and threads against plain loops; with values that are not finite and ones that underflow. */
static void test_stats__walk_is_what_plain_loops_do(void **state)
{
    MLO_UNUSED(state);
    enum { COUNT = 5003, LANES = 8 };
    static float values[3 * COUNT];
    for (int special = 0; special < 3; special++) {
        for (int i = 0; i < 3 * COUNT; i++) {
            unsigned h = (unsigned)(i + special) * 2654435761u;
            values[i] = h % 3 == 0 ? 0 : ((float)(h >> 8) / 16777216.0f - 0.4f) * (i < 2000 ? 1e-3f : 5);
            if (special == 1 && h % 701 == 0)
                values[i] = h % 2 ? NAN : -INFINITY;
            if (special == 2 && h % 11 == 0)
                values[i] = h % 2 ? -1e-45f : 1e-42f;
        }
        struct mlo_stats stats[2];
        struct mlo_pool *pool = mlo_pool_new(2);
        for (int p = 0; p < 2; p++) {
            mlo_stats_init(&stats[p]);
            assert_int_equal(mlo_tensor_stats_add_all(mlo_stats_get(&stats[p], "x"), values, COUNT, 3,
                                                      p ? pool : NULL, NULL),
                             MLO_OK);
        }
        mlo_pool_free(pool);
        char *one = text_of(&stats[0]), *two = text_of(&stats[1]);
        assert_string_equal(one, two);
        free(one);
        free(two);
        const struct mlo_tensor_stats *t = mlo_stats_find(&stats[0], "x");
        uint64_t bins[MLO_HIST_BINS] = {0}, finite = 0;
        float low = INFINITY, high = -INFINITY;
        double sum = 0, sums[3];
        for (int s = 0; s < 3; s++) {
            double lanes[LANES] = {0};
            for (int i = 0; i < COUNT; i++) {
                float v = values[s * COUNT + i];
                if (!isfinite(v))
                    continue;
                finite++;
                low = fminf(low, v);
                high = fmaxf(high, v);
                lanes[i % 1024 % LANES] += (double)v;
                bins[MLO_HIST_BINS / 2 + (int)floor((double)v * ldexp(1, -t->log2_width))]++;
            }
            sums[s] = lanes[0];
            for (int l = 1; l < LANES; l++)
                sums[s] += lanes[l];
        }
        sum = (sums[0] + sums[1]) + sums[2];
        assert_true(t->count == finite && t->min == low && t->max == high);
        assert_memory_equal(t->bins, bins, sizeof bins);
        assert_true(t->sum == sum);
        assert_int_equal(t->nan_count + t->inf_count + finite, 3 * COUNT);
        mlo_stats_clear(&stats[0]);
        mlo_stats_clear(&stats[1]);
    }
}

static void test_stats__order_does_not_matter_to_bins(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats up, down;
    mlo_stats_init(&up);
    mlo_stats_init(&down);
    add(&up, 0, SAMPLES);
    for (int s = SAMPLES - 1; s >= 0; s--) {
        struct mlo_stats one;
        mlo_stats_init(&one);
        add(&one, s, s + 1);
        assert_int_equal(mlo_stats_merge(&down, &one, NULL), MLO_OK);
        mlo_stats_clear(&one);
    }
    assert_memory_equal(up.tensors[0].bins, down.tensors[0].bins, MLO_HIST_BINS * sizeof(uint64_t));
    mlo_stats_clear(&up);
    mlo_stats_clear(&down);
}

static void test_stats__json_round_trip(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats stats, back;
    json_t *json;
    mlo_stats_init(&stats);
    add(&stats, 0, SAMPLES);
    mlo_stats_get(&stats, "empty");
    assert_int_equal(mlo_stats_to_json(&stats, &json, NULL), MLO_OK);
    assert_int_equal(mlo_stats_from_json(json, &back, NULL), MLO_OK);
    char *a = text_of(&stats), *b = text_of(&back);
    assert_string_equal(a, b);
    free(a);
    free(b);
    struct mlo_error err = {0};
    json_object_set_new(json_array_get(json_object_get(json, "tensors"), 0), "count", json_integer(3));
    struct mlo_stats bad;
    assert_int_equal(mlo_stats_from_json(json, &bad, &err), MLO_EFORMAT);
    json_decref(json);
    mlo_stats_clear(&stats);
    mlo_stats_clear(&back);
}

static void test_stats__percentile(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats stats;
    float values[1000], low, high;
    mlo_stats_init(&stats);
    for (int i = 0; i < 1000; i++)
        values[i] = (float)i / 1000 - 0.25f; /* -0.25 … 0.749 */
    struct mlo_tensor_stats *t = mlo_stats_get(&stats, "u");
    assert_int_equal(mlo_tensor_stats_add(t, values, 1000, NULL), MLO_OK);
    mlo_tensor_stats_percentile(t, 100, &low, &high);
    assert_true(low == -0.25f && high == values[999]);
    mlo_tensor_stats_percentile(t, 90, &low, &high);
    assert_true(fabsf(low + 0.2f) < 0.003f && fabsf(high - 0.7f) < 0.003f);
    mlo_stats_clear(&stats);
}

static void test_stats__extreme_values_have_a_bin(void **state)
{
    MLO_UNUSED(state);
    static const float values[] = {0, -0.0f, 1e-45f,   -1e-45f, 3.4028235e38f, -3.4028235e38f,
                                   1, -1,    INFINITY, NAN};
    struct mlo_stats stats;
    uint64_t sum = 0;
    mlo_stats_init(&stats);
    struct mlo_tensor_stats *t = mlo_stats_get(&stats, "x");
    for (size_t i = 0; i < MLO_COUNT(values); i++)
        assert_int_equal(mlo_tensor_stats_add(t, &values[i], 1, NULL), MLO_OK);
    for (int b = 0; b < MLO_HIST_BINS; b++)
        sum += t->bins[b];
    assert_int_equal(sum, 8);
    assert_int_equal(t->count, 8);
    assert_int_equal(t->inf_count + t->nan_count, 2);
    mlo_stats_clear(&stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats__any_sharding_gives_the_same),
        cmocka_unit_test(test_stats__a_sample_counts_once),
        cmocka_unit_test(test_stats__sums_follow_the_tree),
        cmocka_unit_test(test_stats__walk_is_what_plain_loops_do),
        cmocka_unit_test(test_stats__order_does_not_matter_to_bins),
        cmocka_unit_test(test_stats__json_round_trip),
        cmocka_unit_test(test_stats__percentile),
        cmocka_unit_test(test_stats__extreme_values_have_a_bin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
