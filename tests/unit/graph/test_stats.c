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
    struct mlo_tensor_stats *t = mlo_stats_get(stats, "a");
    for (int s = first; s < end; s++) {
        float values[SIZE];
        for (int i = 0; i < SIZE; i++)
            values[i] = value(s, i);
        assert_int_equal(mlo_tensor_stats_add(t, values, SIZE, NULL), MLO_OK);
    }
}

static void test_stats__bins_do_not_depend_on_the_split(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats whole;
    mlo_stats_init(&whole);
    add(&whole, 0, SAMPLES);
    for (int cut = 0; cut <= SAMPLES; cut++) {
        struct mlo_stats a, b;
        mlo_stats_init(&a);
        mlo_stats_init(&b);
        add(&a, 0, cut);
        add(&b, cut, SAMPLES);
        assert_int_equal(mlo_stats_merge(&a, &b, NULL), MLO_OK);
        const struct mlo_tensor_stats *x = &a.tensors[0], *y = &whole.tensors[0];
        assert_int_equal(x->log2_width, y->log2_width);
        assert_memory_equal(x->bins, y->bins, MLO_HIST_BINS * sizeof *x->bins);
        assert_true(x->min == y->min && x->max == y->max && x->count == y->count);
        assert_int_equal(x->nan_count, y->nan_count);
        assert_int_equal(x->samples, SAMPLES);
        mlo_stats_clear(&a);
        mlo_stats_clear(&b);
    }
    mlo_stats_clear(&whole);
}

static void test_stats__order_does_not_matter_to_bins(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats up, down;
    mlo_stats_init(&up);
    mlo_stats_init(&down);
    add(&up, 0, SAMPLES);
    for (int s = SAMPLES - 1; s >= 0; s--)
        add(&down, s, s + 1);
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
        cmocka_unit_test(test_stats__bins_do_not_depend_on_the_split),
        cmocka_unit_test(test_stats__order_does_not_matter_to_bins),
        cmocka_unit_test(test_stats__json_round_trip),
        cmocka_unit_test(test_stats__percentile),
        cmocka_unit_test(test_stats__extreme_values_have_a_bin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
