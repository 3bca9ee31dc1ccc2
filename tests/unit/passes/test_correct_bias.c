/* Full bias correction and the calibrator auto, by hand. */
#include "passes/calibrators.h"
#include "tests/unit/passes/passes_helpers.h"

static void add_channels(struct mlo_stats *stats, const char *name, const float *values)
{
    struct mlo_channel_stats *c = mlo_stats_get_channels(stats, name, 2);
    assert_non_null(c);
    assert_int_equal(mlo_channel_stats_add(c, values, 2, 1, NULL), MLO_OK); /* two samples of two channels */
}

/* y's means are (3, -1) in the float model and (2.5, 1) in the quantized one; the bias has steps of 0.25. */
static void test_correct_bias__by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_tensor q = {0};
    assert_ok(mlo_tensor_init(&q, MLO_INT32, 1, DIMS(2), &err));
    ((int32_t *)q.data)[0] = 8;
    ((int32_t *)q.data)[1] = -5;
    struct mlo_value *b = op(m, "DequantizeLinear", "b", constant_take(m, "bq", &q), scalar(m, "bs", 0.25f));
    struct mlo_value *x = input(m, "x", -1, 2);
    struct mlo_value *y = op(m, "Gemm", "y", x, ramp(m, "w", 1, 2, 2), b);
    finish(m, op(m, "MatMul", "z", y, ramp(m, "w2", 1, 2, 2)));
    mlo_stats_init(&stats);
    add_channels(&stats, "y", LIST(2, 0, 4, -2));
    add_channels(&stats, "quantized:y", LIST(2.5f, 0, 2.5f, 2));
    assert_ok(run_pass(m, "correct-bias", "{\"nodes\": [\"y_node\", \"z_node\"]}", &stats, &report, &err));
    const struct mlo_tensor *bias = mlo_graph_value(m->graph, "bq")->constant;
    assert_int_equal(mlo_tensor_get_i64(bias, 0), 8 + 2);
    assert_int_equal(mlo_tensor_get_i64(bias, 1), -5 - 8);
    assert_true(has_note(report, "z_node", "its outputs were not observed"));
    assert_int_equal(mlo_json_i64(json_array_get(report, 0), "changes", 0), 1);
    json_decref(report);
    assert_int_equal(run_pass(m, "correct-bias", "{\"nodes\": [\"nobody\"]}", &stats, NULL, &err),
                     MLO_EINVAL);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* Uniform values have no outliers: nearly all of their range is best. With one far outlier in many values
 * something narrower is. auto is never worse than any. */
static void test_auto__takes_the_best_of_all(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    const struct mlo_calibrator *automatic = mlo_calibrator_find("auto");
    assert_non_null(automatic);
    for (int outlier = 0; outlier < 2; outlier++) {
        struct mlo_stats stats;
        mlo_stats_init(&stats);
        struct mlo_tensor_stats *t = mlo_stats_get(&stats, "x");
        static float values[4096];
        for (int i = 0; i < 4096; i++)
            values[i] = (float)i / 4096;
        for (int k = 0; k < 64; k++)
            assert_ok(mlo_tensor_stats_add(t, values, 4096, &err));
        if (outlier)
            assert_ok(mlo_tensor_stats_add(t, LIST(40), 1, &err));
        const struct mlo_calibration c = {99.99, false, 256};
        float low, high;
        automatic->range(t, &c, &low, &high);
        if (outlier)
            assert_true(high < 36);
        else
            assert_true(high > 0.99f);
        double best = mlo_calibration_sqnr(t, &c, low, high);
        for (size_t i = 0; mlo_calibrator_names[i]; i++) {
            float from, to;
            mlo_calibrator_find(mlo_calibrator_names[i])->range(t, &c, &from, &to);
            assert_true(mlo_calibration_sqnr(t, &c, fminf(from, 0), to) <= best);
        }
        mlo_stats_clear(&stats);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_correct_bias__by_hand),
        cmocka_unit_test(test_auto__takes_the_best_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
