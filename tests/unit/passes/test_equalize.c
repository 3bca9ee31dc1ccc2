/* Cross-layer equalization, absorption of biases, and SmoothQuant: factors by hand, and what is computed
 * stays. */
#include "tests/unit/passes/passes_helpers.h"

static const float *numbers(const struct mlo_model *m, const char *name)
{
    const struct mlo_value *v = mlo_graph_value(m->graph, name);
    if (!v || !v->constant)
        fail_msg("there is no constant '%s'", name);
    return v->constant->data;
}

/* Channel 0: 8 in, 2 out; channel 1: 1 in, 4 out. s_0 = sqrt(8 / 2) = 2, s_1 = sqrt(1 / 4) = 1/2. */
static void test_equalize__a_pair_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13), *before = NULL;
    struct mlo_value *h = op(m, "Gemm", "h", input(m, "x", -1, 2),
                             floats(m, "w1", LIST(8, 1, -4, 0.5f), 2, 2), floats(m, "b1", LIST(2, 3), 2));
    finish(m, op(m, "Gemm", "y", op(m, "Relu", "r", h), floats(m, "w2", LIST(2, -1, 4, 0), 2, 2)));
    assert_ok(mlo_model_clone(m, &before, &err));
    assert_ok(run_pass(m, "equalize", NULL, NULL, NULL, &err));
    static const float W1[] = {4, 2, -2, 1}, B1[] = {1, 6}, W2[] = {4, -2, 2, 0};
    assert_memory_equal(numbers(m, "w1"), W1, sizeof W1);
    assert_memory_equal(numbers(m, "b1"), B1, sizeof B1);
    assert_memory_equal(numbers(m, "w2"), W2, sizeof W2);
    assert_true(deviation(before, m) == 0);
    mlo_model_free(m);
    mlo_model_free(before);
}

static struct mlo_value *conv(struct mlo_model *m, const char *name, struct mlo_value *x, float step,
                              int64_t out, int64_t per_group, int64_t kernel, int64_t group)
{
    char w[32], b[32];
    snprintf(w, sizeof w, "%s_w", name);
    snprintf(b, sizeof b, "%s_b", name);
    struct mlo_value *y =
        op(m, "Conv", name, x, ramp(m, w, step, out, per_group, kernel, kernel), ramp(m, b, 0.1f, out));
    set_ints(y, "pads", kernel / 2, kernel / 2, kernel / 2, kernel / 2);
    assert_true(mlo_node_set_i(y->producer, "group", group));
    return y;
}

/* Expansion, depthwise, projection, pooling and a classifier, as in a mobile net; `activation` in between. */
static struct mlo_model *mobile(const char *activation)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *low = scalar(m, "low", 0), *high = scalar(m, "high", 6);
    struct mlo_value *h = conv(m, "expand", input(m, "x", -1, 3, 6, 6), 0.2f, 8, 3, 1, 1);
    bool clip = strcmp(activation, "Clip") == 0;
    h = clip ? op(m, "Clip", "a1", h, low, high) : op(m, activation, "a1", h);
    h = conv(m, "depth", h, 0.03f, 8, 1, 3, 8);
    h = clip ? op(m, "Clip", "a2", h, low, high) : op(m, activation, "a2", h);
    h = conv(m, "project", h, 0.7f, 6, 8, 1, 1);
    h = op(m, "MaxPool", "pool", h);
    set_ints(h, "kernel_shape", 2, 2);
    set_ints(h, "strides", 2, 2);
    h = op(m, "Flatten", "flat", h);
    finish(m, op(m, "Gemm", "y", h, ramp(m, "fc", 0.05f, 54, 4)));
    return m;
}

/* max |w| of output o, or of input i, of a Conv of one kernel position or a Gemm behind Flatten. */
static double range(const float *w, size_t count, size_t step, size_t first, size_t run, size_t every)
{
    double most = 0;
    for (size_t k = 0; k < count; k++)
        for (size_t e = 0; e < run; e++)
            most = fmax(most, fabs((double)w[first + k * every + e * step]));
    return most;
}

static void test_equalize__a_chain_ends_with_equal_ranges_and_equal_outputs(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = mobile("Relu"), *before = mobile("Relu");
    assert_ok(run_pass(m, "equalize", NULL, NULL, &report, &err));
    assert_int_equal(mlo_json_i64(json_array_get(report, 0), "changes", 0), 3);
    assert_true(has_note(report, "depth_node", "was not observed"));
    assert_true(has_note(report, "expand_node", "pads with zeros"));
    for (size_t c = 0; c < 8; c++) { /* channel c: expand's row, depth's kernel; then depth's and project's */
        double e = range(numbers(m, "expand_w"), 1, 1, c * 3, 3, 0);
        double d = range(numbers(m, "depth_w"), 1, 1, c * 9, 9, 0);
        double p = range(numbers(m, "project_w"), 6, 0, c, 1, 8);
        if (fabs(e / d - 1) > 1e-3 || fabs(d / p - 1) > 1e-3)
            fail_msg("channel %zu: %g, %g, %g", c, e, d, p);
    }
    for (size_t c = 0; c < 6; c++) { /* nine places of the image for each channel */
        double p = range(numbers(m, "project_w"), 1, 1, c * 8, 8, 0);
        double f = range(numbers(m, "fc"), 9, 1, c * 9 * 4, 4, 4);
        if (fabs(p / f - 1) > 1e-3)
            fail_msg("output %zu: %g, %g", c, p, f);
    }
    assert_true(deviation(before, m) < 1e-5);
    json_decref(report);
    mlo_model_free(m);
    mlo_model_free(before);
}

static void test_equalize__relu6_stays_unless_asked(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = mobile("Clip"), *before = mobile("Clip");
    assert_ok(run_pass(m, "equalize", NULL, NULL, &report, &err));
    assert_true(has_note(report, "a1_node", "no equalization across this Clip"));
    assert_int_equal(count_ops(m, "Clip"), 2);
    assert_true(deviation(before, m) < 1e-5);
    json_decref(report);
    assert_ok(run_pass(m, "equalize", "{\"relu6\": \"relu\"}", NULL, &report, &err));
    assert_int_equal(count_ops(m, "Clip"), 0);
    assert_int_equal(count_ops(m, "Relu"), 2);
    assert_true(has_note(report, "a1_node", "became a Relu"));
    json_decref(report);
    mlo_model_free(m);
    mlo_model_free(before);
}

/* h is 10 or 10 (mean 10, deviation 0): 10 is absorbed, and comes back through W2 = 3 as 30. */
static void test_equalize__absorbs_a_high_bias(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = new_model(13), *before = NULL;
    struct mlo_value *h = op(m, "Gemm", "h", input(m, "x", -1, 1), floats(m, "w1", LIST(3), 1, 1),
                             floats(m, "b1", LIST(12), 1));
    finish(m, op(m, "Gemm", "y", op(m, "Relu", "r", h), floats(m, "w2", LIST(3), 1, 1)));
    assert_ok(mlo_model_clone(m, &before, &err));
    mlo_stats_init(&stats);
    assert_ok(mlo_channel_stats_add(mlo_stats_get_channels(&stats, "h", 1), LIST(10, 10), 2, 1, &err));
    assert_ok(run_pass(m, "equalize", NULL, &stats, &report, &err));
    assert_true(numbers(m, "b1")[0] == 2);
    assert_true(numbers(m, "y_node_bias")[0] == 30);
    assert_true(has_note(report, "h_node", "the biases of 1 channels are absorbed"));
    struct mlo_tensor x = {0}, y = {0}; /* where h is above what was absorbed, nothing changed */
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 2, DIMS(1, 1), &err));
    assert_ok(mlo_graph_eval(m->graph, &x, &y, &err));
    assert_float_equal(((float *)y.data)[0], 36, 0);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
    mlo_model_free(before);
}

/* |x| up to 16 and 1; |w| up to 1 and 4: s = sqrt(16 / 1) = 4 and sqrt(1 / 4) = 1/2. */
static void test_smooth__moves_outliers_into_a_layer_normalization(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = new_model(17), *before = NULL;
    struct mlo_value *n = op(m, "LayerNormalization", "n", input(m, "x", -1, 3, 2),
                             floats(m, "g", LIST(8, 1), 2), floats(m, "b", LIST(4, -1), 2));
    struct mlo_value *q = op(m, "MatMul", "q", n, floats(m, "wq", LIST(1, 0, -2, 4), 2, 2));
    struct mlo_value *k = op(m, "MatMul", "k", n, floats(m, "wk", LIST(0.5f, 1, 3, 1), 2, 2));
    finish(m, op(m, "Add", "y", q, k));
    assert_ok(mlo_model_clone(m, &before, &err));
    mlo_stats_init(&stats);
    assert_ok(
        mlo_channel_stats_add(mlo_stats_get_channels(&stats, "n", 2), LIST(-16, 1, 3, 0.5f), 2, 1, &err));
    assert_ok(run_pass(m, "smooth", NULL, &stats, NULL, &err));
    static const float G[] = {2, 2}, B[] = {1, -2}, Q[] = {4, 0, -1, 2}, K[] = {2, 4, 1.5f, 0.5f};
    assert_memory_equal(numbers(m, "g"), G, sizeof G);
    assert_memory_equal(numbers(m, "b"), B, sizeof B);
    assert_memory_equal(numbers(m, "wq"), Q, sizeof Q);
    assert_memory_equal(numbers(m, "wk"), K, sizeof K);
    assert_int_equal(count_ops(m, "Mul"), 0);
    assert_true(deviation(before, m) < 1e-5);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
    mlo_model_free(before);
}

/* A graph input takes a Mul; a normalization that is spelled out (Mul, Add), a Gemm behind a Relu, take the
 * factors themselves. */
static void test_smooth__finds_what_takes_the_factors(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = new_model(13), *before = NULL;
    struct mlo_value *x = input(m, "x", -1, 4);
    struct mlo_value *a =
        op(m, "Add", "a", op(m, "Mul", "scaled", x, ramp(m, "gamma", 0.3f, 4)), ramp(m, "beta", 0.2f, 4));
    struct mlo_value *h = op(m, "Gemm", "h", a, ramp(m, "w1", 0.2f, 4, 5), ramp(m, "b1", 0.1f, 5));
    struct mlo_value *p = op(m, "MatMul", "p", op(m, "Relu", "r", h), ramp(m, "w2", 0.4f, 5, 3));
    finish(m, op(m, "Add", "y", p, op(m, "MatMul", "direct", x, ramp(m, "w3", 0.1f, 4, 3))));
    assert_ok(mlo_model_clone(m, &before, &err));
    mlo_stats_init(&stats);
    assert_ok(mlo_channel_stats_add(mlo_stats_get_channels(&stats, "x", 4), LIST(1, 20, -1, 0), 1, 1, &err));
    assert_ok(mlo_channel_stats_add(mlo_stats_get_channels(&stats, "a", 4), LIST(3, 1, -7, 0), 1, 1, &err));
    assert_ok(
        mlo_channel_stats_add(mlo_stats_get_channels(&stats, "r", 5), LIST(0, 1, 9, 2, 30), 1, 1, &err));
    assert_ok(run_pass(m, "smooth", NULL, &stats, &report, &err));
    assert_int_equal(mlo_json_i64(json_array_get(report, 0), "changes", 0), 3);
    assert_int_equal(count_ops(m, "Mul"), 2); /* the one for x, which 'scaled' reads too */
    assert_true(has_note(report, "direct_node", "others read it too"));
    assert_string_equal(node_named(m, "direct_node")->inputs[0]->producer->op_type, "Mul");
    assert_true(deviation(before, m) < 1e-5);
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
    mlo_model_free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equalize__a_pair_by_hand),
        cmocka_unit_test(test_equalize__a_chain_ends_with_equal_ranges_and_equal_outputs),
        cmocka_unit_test(test_equalize__relu6_stays_unless_asked),
        cmocka_unit_test(test_equalize__absorbs_a_high_bias),
        cmocka_unit_test(test_smooth__moves_outliers_into_a_layer_normalization),
        cmocka_unit_test(test_smooth__finds_what_takes_the_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
