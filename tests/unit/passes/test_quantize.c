#include "tests/unit/passes/passes_helpers.h"

/* --- models ------------------------------------------------------------------------------------ */

static struct mlo_value *conv3x3(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t from,
                                 int64_t to)
{
    char w[32], b[32];
    snprintf(w, sizeof w, "%s_w", name);
    snprintf(b, sizeof b, "%s_b", name);
    struct mlo_value *y = op(m, "Conv", name, x, ramp(m, w, 0.05f, to, from, 3, 3), ramp(m, b, 0.1f, to));
    set_ints(y, "pads", 1, 1, 1, 1);
    return y;
}

/* A residual block, pooling, and a classifier. */
static struct mlo_model *residual(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2, 6, 6);
    struct mlo_value *r1 = op(m, "Relu", "r1", conv3x3(m, "c1", x, 2, 4));
    struct mlo_value *c2 = conv3x3(m, "c2", r1, 4, 4);
    struct mlo_value *r2 = op(m, "Relu", "r2", op(m, "Add", "sum", c2, r1));
    struct mlo_value *pool = op(m, "GlobalAveragePool", "pool", r2);
    struct mlo_value *flat = op(m, "Flatten", "flat", pool);
    finish(m, op(m, "Gemm", "y", flat, ramp(m, "fc_w", 0.1f, 4, 3), ramp(m, "fc_b", 0.1f, 3)));
    return m;
}

/* --- tests ------------------------------------------------------------------------------------- */

static void test_quantize__gemm_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = gemm_2x2();
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(-55, 200, 3), 3);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    /* x: 255 steps of 1, zero at 55. W: one scale per column. b: steps of s_x * s_w, -3.5 goes to the even
     * -4. */
    assert_constant(m, "x_scale", MLO_FLOAT32, 1);
    assert_constant(m, "x_zero_point", MLO_UINT8, 55);
    assert_constant(m, "w_quantized", MLO_INT8, 127, -127, 50, 2);
    assert_constant(m, "w_scale", MLO_FLOAT32, 1, 2);
    assert_constant(m, "w_zero_point", MLO_INT8, 0, 0);
    assert_constant(m, "b_quantized", MLO_INT32, 10, -4);
    assert_constant(m, "b_scale", MLO_FLOAT32, 1, 2);
    assert_int_equal(mlo_node_attr_i(node_named(m, "w_DequantizeLinear"), "axis", -9), 1);
    assert_int_equal(mlo_node_attr_i(node_named(m, "b_DequantizeLinear"), "axis", -9), 0);
    assert_null(mlo_graph_value(m->graph, "w")); /* the float weights are gone */
    assert_string_equal(m->graph->outputs[0]->producer->op_type, "Gemm");

    struct mlo_tensor x = {0}, y = {0};
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 2, DIMS(1, 2), &err));
    ((float *)x.data)[1] = 2;
    evaluate(m, &x, NULL, NULL, &y);
    assert_float_equal(((float *)y.data)[0], 50 * 2 + 10, 0);
    assert_float_equal(((float *)y.data)[1], 4 * 2 - 8, 0);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_quantize__per_tensor_and_symmetric_activations(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = gemm_2x2();
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(-55, 254), 2);
    assert_ok(
        run_pass(m, "quantize", "{\"per_channel\": false, \"activations\": \"int8\"}", &stats, NULL, &err));
    assert_constant(m, "x_scale", MLO_FLOAT32, 2);
    assert_constant(m, "x_zero_point", MLO_INT8, 0);
    assert_constant(m, "w_scale", MLO_FLOAT32, 2);
    assert_constant(m, "w_quantized", MLO_INT8, 64 /* 63.5 to even */, -127, 25, 2);
    assert_constant(m, "b_quantized", MLO_INT32, 2 /* 2.5 to even */, -2);
    assert_int_equal(constant_named(m, "w_scale")->rank, 0);
    assert_null(mlo_node_attr(node_named(m, "w_DequantizeLinear"), "axis"));
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_quantize__alpha_beta_and_trans_b_are_folded(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = gemm_2x2();
    struct mlo_node *gemm = m->graph->nodes[0];
    assert_true(mlo_node_set_f(gemm, "alpha", 2) && mlo_node_set_f(gemm, "beta", 0.5f));
    assert_true(mlo_node_set_i(gemm, "transB", 1));
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(0, 255), 2);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    assert_constant(m, "w_scale", MLO_FLOAT32, 4, (double)(100.0f / 127.0f));
    assert_constant(m, "w_quantized", MLO_INT8, 64 /* 63.5 */, -127, 127, 10);
    assert_constant(m, "b_quantized", MLO_INT32, 1 /* 5 / 4 */, -4 /* -3.5 / 0.787 */);
    assert_float_equal(mlo_node_attr_f(gemm, "alpha", 1), 1, 0);
    assert_float_equal(mlo_node_attr_f(gemm, "beta", 1), 1, 0);
    assert_int_equal(mlo_node_attr_i(node_named(m, "w_DequantizeLinear"), "axis", -9), 0);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_quantize__covers_a_residual_block(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *before = residual(), *m = residual();
    observe(m, 8, &stats);
    assert_ok(run_pass(m, "quantize", NULL, &stats, &report, &err));
    assert_int_equal(mlo_json_i64(json_array_get(report, 0), "changes", 0), 3);
    /* x, r1, c2, r2, pool and flat; the Add reads both branches in integers and writes behind its Relu. */
    assert_int_equal(count_ops(m, "QuantizeLinear"), 6);
    assert_int_equal(count_ops(m, "DequantizeLinear"), 6 + 2 * 3);
    static const char *const PAIRS[] = {"x", "r1", "c2", "r2", "pool", "flat"};
    for (size_t i = 0; i < MLO_COUNT(PAIRS); i++) {
        const struct mlo_value *v = mlo_graph_value(m->graph, PAIRS[i]);
        assert_non_null(v);
        const struct mlo_node *q =
            mlo_value_sole_user(v); /* nothing else reads it: the node before can fuse */
        if (!q || strcmp(q->op_type, "QuantizeLinear") != 0)
            fail_msg("'%s' is not read by one QuantizeLinear only", PAIRS[i]);
    }
    const struct mlo_node *relu = mlo_value_sole_user(mlo_graph_value(m->graph, "c1"));
    assert_string_equal(relu->op_type, "Relu"); /* the range is the one behind the activation */
    assert_int_equal(mlo_tensor_get_i64(mlo_node_const(node_named(m, "r1_QuantizeLinear"), 2), 0), 0);
    for (int i = 0; i < 2; i++)
        assert_string_equal(node_named(m, "sum_node")->inputs[i]->producer->op_type, "DequantizeLinear");
    /* Flatten only moves values: its parameters are those of its input. */
    assert_ptr_equal(node_named(m, "flat_QuantizeLinear")->inputs[1],
                     node_named(m, "pool_QuantizeLinear")->inputs[1]);
    assert_true(mlo_graph_dynamic_batch(m->graph));
    double worst = deviation(before, m);
    assert_true(worst > 0 && worst < 0.05);
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(before);
    mlo_model_free(m);
}

static void test_quantize__may_leave_the_accumulating_branch_of_a_residual(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *before = residual(), *m = residual();
    observe(m, 8, &stats);
    assert_ok(run_pass(m, "quantize", "{\"residual\": \"skip\"}", &stats, NULL, &err));
    assert_int_equal(count_ops(m, "QuantizeLinear"), 5);
    const struct mlo_node *sum = node_named(m, "sum_node");
    assert_string_equal(sum->inputs[0]->producer->op_type, "Conv");
    assert_string_equal(sum->inputs[1]->producer->op_type, "DequantizeLinear");
    assert_true(deviation(before, m) < 0.05);
    mlo_stats_clear(&stats);
    mlo_model_free(before);
    mlo_model_free(m);
}

/* Where the Conv that accumulates is kept in float, its Add wants no more than before. */
static void test_quantize__wants_no_more_where_a_node_is_excluded(void **state)
{
    MLO_UNUSED(state);
    static const char *const targets[] = {"tensorrt", "mlopt-cpu", "ort-x86-vnni"};
    for (size_t t = 0; t < MLO_COUNT(targets); t++) {
        struct mlo_error err = {0};
        struct mlo_stats stats;
        json_t *options = NULL, *given = json_pack("{s:s}", "target", targets[t]);
        const char **names;
        size_t count;
        char text[128];
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_model *m = residual();
        assert_ok(mlo_options_resolve(mlo_quantize_options, given, &options, &err));
        assert_ok(mlo_quantize_wanted(m, options, arena, &names, &count, &err));
        mlo_stats_init(&stats);
        for (size_t i = 0; i < count; i++)
            saw(&stats, names[i], LIST(0, 1), 2);
        snprintf(text, sizeof text, "{\"target\": \"%s\", \"exclude\": [\"c2_node\"]}", targets[t]);
        assert_ok(run_pass(m, "quantize", text, &stats, NULL, &err));
        mlo_stats_clear(&stats);
        json_decref(options);
        json_decref(given);
        mlo_arena_free(arena);
        mlo_model_free(m);
    }
}

static void test_quantize__wants_what_it_quantizes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *options = NULL;
    const char **names;
    size_t count;
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_model *m = residual();
    assert_ok(mlo_options_resolve(mlo_quantize_options, NULL, &options, &err));
    assert_ok(mlo_quantize_wanted(m, options, arena, &names, &count, &err));
    assert_int_equal(count, 6);
    mlo_stats_init(&stats);
    for (size_t i = 0; i < count; i++)
        saw(&stats, names[i], LIST(0, 1), 2);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err)); /* it needs no more than it asked for */
    mlo_stats_clear(&stats);
    json_decref(options);
    mlo_arena_free(arena);
    mlo_model_free(m);
}

static void test_quantize__same_input_gives_same_bytes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf bytes[2] = {MLO_BUF_INIT, MLO_BUF_INIT};
    for (int i = 0; i < 2; i++) {
        struct mlo_stats stats;
        struct mlo_model *m = residual();
        observe(m, 4, &stats);
        assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
        assert_ok(mlo_onnx_serialize(m, &bytes[i], &err));
        mlo_stats_clear(&stats);
        mlo_model_free(m);
    }
    assert_int_equal(bytes[0].len, bytes[1].len);
    assert_memory_equal(bytes[0].data, bytes[1].data, bytes[0].len);
    mlo_buf_clear(&bytes[0]);
    mlo_buf_clear(&bytes[1]);
}

/* Tiny weights beside a normal bias: without the guard the bias would be clipped to a fraction of itself. */
static void test_quantize__raises_weight_scales_for_large_biases(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2, 1, 1);
    finish(m, op(m, "Conv", "y", x, floats(m, "w", LIST(1e-9f, 2e-9f, 1, 0.5f), 2, 2, 1, 1),
                 floats(m, "b", LIST(5, 0.25f), 2)));
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(0, 255), 2);
    assert_ok(run_pass(m, "quantize", NULL, &stats, &report, &err));
    const struct mlo_tensor *q = constant_named(m, "b_quantized"), *s = constant_named(m, "b_scale");
    for (size_t c = 0; c < 2; c++) {
        double wanted = c ? 0.25 : 5.0;
        assert_true(fabs(mlo_tensor_get_f64(q, c)) <= 1073741824.0);
        assert_float_equal(mlo_tensor_get_f64(q, c) * mlo_tensor_get_f64(s, c), wanted,
                           0.5 * mlo_tensor_get_f64(s, c) + 1e-6 * wanted);
    }
    assert_true(has_note(report, "y_node", "weight scale raised for 1 bias value"));
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* Steps of x are 1, those of the weights 2^-33: a bias of 4 would be 2^35 of their product. The guard leaves
 * 2^30 of them: steps of 2^-28, in which the weight 127 2^-33 is 127/32, rounded to 4. */
static void test_quantize__bias_guard_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "Gemm", "y", input(m, "x", -1, 1), floats(m, "w", LIST(127 * 0x1p-33f), 1, 1),
                 floats(m, "b", LIST(4), 1)));
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(0, 255), 2);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    assert_constant(m, "w_scale", MLO_FLOAT32, 0x1p-28);
    assert_constant(m, "w_quantized", MLO_INT8, 4);
    assert_constant(m, "b_quantized", MLO_INT32, 0x1p30);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_quantize__shared_weights_are_stored_once(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2), *w = ramp(m, "w", 0.1f, 2, 2),
                     *b = floats(m, "b", LIST(3, 4), 2);
    struct mlo_value *h = op(m, "Relu", "h", op(m, "Gemm", "g1", x, w, b));
    finish(m, op(m, "Gemm", "g2", h, w, b));
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(0, 255), 2);
    saw(&stats, "h", LIST(0, 510), 2);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    const struct mlo_node *g1 = node_named(m, "g1_node"), *g2 = node_named(m, "g2_node");
    assert_ptr_equal(g1->inputs[1], g2->inputs[1]);
    assert_ptr_not_equal(g1->inputs[2], g2->inputs[2]); /* the bias scale has the input's scale in it */
    double s1 = mlo_tensor_get_f64(mlo_node_const(g1->inputs[2]->producer, 1), 0);
    double s2 = mlo_tensor_get_f64(mlo_node_const(g2->inputs[2]->producer, 1), 0);
    assert_float_equal(s2 / s1, 2, 0);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_quantize__percentile_ignores_outliers(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    float numbers[10000];
    for (int i = 0; i < 10000; i++)
        numbers[i] = (float)i / 10000.0f;
    numbers[77] = 1000;
    mlo_stats_init(&stats);
    saw(&stats, "x", numbers, MLO_COUNT(numbers));
    struct mlo_model *m = gemm_2x2();
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    assert_float_equal(mlo_tensor_get_f64(constant_named(m, "x_scale"), 0), 1000.0 / 255, 1e-4);
    mlo_model_free(m);
    m = gemm_2x2();
    assert_ok(
        run_pass(m, "quantize", "{\"calibrator\": \"percentile\", \"percentile\": 99}", &stats, NULL, &err));
    double high = mlo_tensor_get_f64(constant_named(m, "x_scale"), 0) * 255;
    assert_true(high > 0.5 && high < 1.6);
    mlo_model_free(m);
    mlo_stats_clear(&stats);
}

static void test_quantize__zeros_are_noted_not_fatal(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2);
    finish(m,
           op(m, "Gemm", "y", x, floats(m, "w", LIST(0, 1, 0, 2), 2, 2), floats(m, "b", LIST(0.3f, 1), 2)));
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(0, 0, 0), 3);
    assert_ok(run_pass(m, "quantize", NULL, &stats, &report, &err));
    assert_true(has_note(report, "x", "always 0"));
    const struct mlo_tensor *q = constant_named(m, "b_quantized"), *s = constant_named(m, "b_scale");
    assert_float_equal(mlo_tensor_get_f64(q, 0) * mlo_tensor_get_f64(s, 0), 0.3, 1e-4);
    assert_constant(m, "w_quantized", MLO_INT8, 0, 64, 0, 127);
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_quantize__bad_statistics_are_precise_errors(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    mlo_stats_init(&stats);
    saw(&stats, "z", LIST(1), 1);
    struct mlo_model *m = gemm_2x2();
    assert_int_equal(run_pass(m, "quantize", NULL, &stats, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "no statistics for value 'x'");
    assert_string_equal(err.where, "value 'x'");
    mlo_model_free(m);

    saw(&stats, "x", LIST(1, NAN, INFINITY), 3);
    m = gemm_2x2();
    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "quantize", NULL, &stats, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "'x' was NaN 1 times and infinite 1 times");
    mlo_model_free(m);
    mlo_stats_clear(&stats);
}

static void test_quantize__says_what_stays_in_float(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 2, 2);
    struct mlo_value *p = op(m, "MatMul", "p", x, x);
    struct mlo_value *g = op(m, "Gemm", "g", p, ramp(m, "w1", 1, 2, 2));
    finish(m, op(m, "Gemm", "y", g, ramp(m, "w2", 1, 2, 2)));
    mlo_stats_init(&stats);
    saw(&stats, "g", LIST(0, 1), 2);
    assert_ok(run_pass(m, "quantize", "{\"exclude\": [\"g_node\"]}", &stats, &report, &err));
    assert_true(has_note(report, "p_node", "MatMul stays in float: its weights are not constant"));
    assert_true(has_note(report, "g_node", "Gemm stays in float: it is excluded"));
    assert_int_equal(count_ops(m, "QuantizeLinear"), 1);
    json_decref(report);

    err = (struct mlo_error){0}; /* a second time: refused, not done twice */
    assert_int_equal(run_pass(m, "quantize", NULL, &stats, NULL, &err), MLO_ECONFLICT);
    assert_contains(err.message, "quantized already");
    mlo_model_free(m);

    m = gemm_2x2();
    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "quantize", "{\"exclude\": \"y_nod\"}", &stats, NULL, &err), MLO_EINVAL);
    assert_contains(err.hint, "y_node");
    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "quantize", "{\"exclude\": \"y_node\"}", &stats, NULL, &err),
                     MLO_EUNSUPPORTED);
    assert_contains(err.message, "no node that can be quantized");
    assert_contains(err.hint, "'y_node' (Gemm) stays in float: it is excluded");
    mlo_model_free(m);
    mlo_stats_clear(&stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize__gemm_by_hand),
        cmocka_unit_test(test_quantize__per_tensor_and_symmetric_activations),
        cmocka_unit_test(test_quantize__alpha_beta_and_trans_b_are_folded),
        cmocka_unit_test(test_quantize__covers_a_residual_block),
        cmocka_unit_test(test_quantize__may_leave_the_accumulating_branch_of_a_residual),
        cmocka_unit_test(test_quantize__wants_what_it_quantizes),
        cmocka_unit_test(test_quantize__wants_no_more_where_a_node_is_excluded),
        cmocka_unit_test(test_quantize__same_input_gives_same_bytes),
        cmocka_unit_test(test_quantize__raises_weight_scales_for_large_biases),
        cmocka_unit_test(test_quantize__bias_guard_by_hand),
        cmocka_unit_test(test_quantize__shared_weights_are_stored_once),
        cmocka_unit_test(test_quantize__percentile_ignores_outliers),
        cmocka_unit_test(test_quantize__zeros_are_noted_not_fatal),
        cmocka_unit_test(test_quantize__bad_statistics_are_precise_errors),
        cmocka_unit_test(test_quantize__says_what_stays_in_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
