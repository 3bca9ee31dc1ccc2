/* What the quantize pass makes of small graphs for each target, and the numbers of each scheme. */
#include "passes/targets.h"
#include "tests/unit/passes/passes_helpers.h"

static struct mlo_value *conv1x1(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t from,
                                 int64_t to)
{
    char w[32], b[32];
    snprintf(w, sizeof w, "%s_w", name);
    snprintf(b, sizeof b, "%s_b", name);
    return op(m, "Conv", name, x, ramp(m, w, 0.05f, to, from, 1, 1), ramp(m, b, 0.1f, to));
}

/* Conv, x * sigmoid(x), Conv, and a pooling head: what ONNX Runtime needs pairs inside of. */
static struct mlo_model *silu(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *c = conv1x1(m, "c1", input(m, "x", -1, 2, 4, 4), 2, 4);
    struct mlo_value *s = op(m, "Mul", "s", c, op(m, "Sigmoid", "g", c));
    struct mlo_value *c2 = conv1x1(m, "c2", s, 4, 4);
    struct mlo_value *flat = op(m, "Flatten", "flat", op(m, "GlobalAveragePool", "pool", c2));
    finish(m, op(m, "Gemm", "y", flat, ramp(m, "fc_w", 0.1f, 4, 3), ramp(m, "fc_b", 0.1f, 3)));
    return m;
}

/* softmax(q k) v, each a Gemm of x. */
static struct mlo_model *attention(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 3, 3);
    struct mlo_value *q = op(m, "MatMul", "q", x, ramp(m, "wq", 0.1f, 3, 3));
    struct mlo_value *k = op(m, "MatMul", "k", x, ramp(m, "wk", 0.2f, 3, 3));
    struct mlo_value *a = op(m, "Softmax", "a", op(m, "MatMul", "qk", q, k));
    finish(m, op(m, "MatMul", "y", a, op(m, "MatMul", "v", x, ramp(m, "wv", 0.1f, 3, 2))));
    return m;
}

static double number(const struct mlo_model *m, const char *name, size_t i)
{
    const struct mlo_value *v = mlo_graph_value(m->graph, name);
    if (!v || !v->constant || i >= mlo_tensor_count(v->constant))
        fail_msg("there is no constant '%s'", name);
    return mlo_tensor_get_f64(v->constant, i);
}

/* Observes the model on its own inputs, and quantizes it. */
static void quantize(struct mlo_model *m, const char *options, json_t **report)
{
    struct mlo_error err = {0};
    struct mlo_stats stats;
    observe(m, 4, &stats);
    assert_ok(run_pass(m, "quantize", options, &stats, report, &err));
    mlo_stats_clear(&stats);
}

static bool has_pair(const struct mlo_model *m, const char *value)
{
    char name[64];
    snprintf(name, sizeof name, "%s_QuantizeLinear", value);
    return node_named(m, name) != NULL;
}

static bool reads_pair(const struct mlo_model *m, const char *node, int i)
{
    const struct mlo_node *before = node_named(m, node)->inputs[i]->producer;
    return before && mlo_node_is(before, "DequantizeLinear");
}

static void test_targets__table_is_whole(void **state)
{
    MLO_UNUSED(state);
    size_t count;
    const struct mlo_target *table = mlo_target_table(&count);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(mlo_target_names[i], table[i].name);
        assert_ptr_equal(mlo_target_find(table[i].name), &table[i]);
        assert_true(i == 0 || strcmp(table[i - 1].name, table[i].name) < 0);
        assert_non_null(table[i].description);
        struct mlo_model *m = silu(); /* every op has one of the letters for every target */
        for (int n = 0; n < m->graph->node_count; n++) {
            char rule = mlo_target_rule(&table[i], m->graph->nodes[n]);
            assert_true(rule != '\0' && strchr("-wopiua", rule));
        }
        mlo_model_free(m);
    }
    assert_null(mlo_target_names[count]);
    assert_null(mlo_target_find("tpu"));
}

static void test_targets__schemes_by_hand(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *options;
        double x_scale, x_zero, w[4], w_scale[2], w_zero, opset;
    } cases[] = {
        /* seen: -55 to 200 */
        {"{}", 1, 55, {127, -127, 50, 2}, {1, 2}, 0, 13},
        {"{\"activations\": \"int8\"}", 200.0 / 127, 0, {127, -127, 50, 2}, {1, 2}, 0, 13},
        {"{\"activations\": \"int8\", \"symmetric\": false}", 1, -73, {127, -127, 50, 2}, {1, 2}, 0, 13},
        {"{\"symmetric\": true}", 200.0 / 127, 128, {127, -127, 50, 2}, {1, 2}, 0, 13},
        {"{\"activations\": \"uint16\"}", 255.0 / 65535, 14135, {127, -127, 50, 2}, {1, 2}, 0, 21},
        {"{\"activations\": \"int16\"}", 200.0 / 32767, 0, {127, -127, 50, 2}, {1, 2}, 0, 21},
        {"{\"scheme\": \"uint8\"}", 1, 55, {255, 1, 178, 130}, {1, 2}, 128, 13},
        {"{\"scheme\": \"uint8\", \"reduce_range\": true}",
         1,
         55,
         {192, 64, 153, 129},
         {127.0 / 64, 254.0 / 64},
         128,
         13},
        /* column 0: 0 to 127, 255 steps of 127/255 */
        {"{\"symmetric_weights\": false}",
         1,
         55,
         {127, -128, -28, 127},
         {127.0 / 255, 258.0 / 255},
         -128,
         13},
        {"{\"target\": \"ort-x86-avx2\"}", 1, 55, {64, -64, 25, 1}, {127.0 / 64, 254.0 / 64}, 0, 13},
        {"{\"target\": \"openvino-avx2\"}", 1, 55, {64, -64, 25, 1}, {127.0 / 64, 254.0 / 64}, 0, 13},
        {"{\"target\": \"tensorrt\"}", 200.0 / 127, 0, {127, -127, 50, 2}, {1, 2}, 0, 13},
        {"{\"target\": \"mlopt-cuda\"}", 200.0 / 127, 0, {127, -127, 50, 2}, {1, 2}, 0, 13},
    };
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        struct mlo_error err = {0};
        struct mlo_stats stats;
        struct mlo_model *m = gemm_2x2();
        mlo_stats_init(&stats);
        saw(&stats, "x", LIST(-55, 200, 3), 3);
        assert_ok(run_pass(m, "quantize", cases[c].options, &stats, NULL, &err));
        if (fabs(number(m, "x_scale", 0) / cases[c].x_scale - 1) > 1e-6 ||
            number(m, "x_zero_point", 0) != cases[c].x_zero ||
            number(m, "w_zero_point", 0) != cases[c].w_zero)
            fail_msg("%s: scale %.9g, zero points %g and %g", cases[c].options, number(m, "x_scale", 0),
                     number(m, "x_zero_point", 0), number(m, "w_zero_point", 0));
        for (size_t i = 0; i < 4; i++)
            if (number(m, "w_quantized", i) != cases[c].w[i])
                fail_msg("%s: weight %zu is %g", cases[c].options, i, number(m, "w_quantized", i));
        for (size_t i = 0; i < 2; i++)
            assert_float_equal(number(m, "w_scale", i), cases[c].w_scale[i], 1e-5);
        assert_int_equal(mlo_model_opset(m, ""), cases[c].opset);
        mlo_stats_clear(&stats);
        mlo_model_free(m);
    }
}

/* The largest float8 is 448: scales are extremes / 448, one a tensor; what does not fit that is refused. */
static void test_targets__float8_by_hand(void **state)
{
    MLO_UNUSED(state);
    static const double w[] = {224, -448, 88, 7}; /* of 127, -254, 50, 4 in steps of 254 / 448 */
    static const struct {
        const char *options, *message, *hint;
    } refused[] = {
        {"\"activations\": \"uint8\"", "float8_e4m3fn", "mlopt-cuda"},
        {"\"scheme\": \"uint8\"", "float8_e4m3fn", "scheme"},
        {"\"rounding\": \"gptq\"", "rounding", "nearest"},
        {"\"bias_correction\": \"fast\"", "bias_correction", "full"},
        {"\"form\": \"qoperator\"", "integer operators", "qdq"},
    };
    struct mlo_model *m = gemm_2x2();
    struct mlo_stats stats;
    struct mlo_error err = {0};
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(-55, 200, 3), 3);
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        char options[160];
        snprintf(options, sizeof options, "{\"target\": \"mlopt-cuda-fp8\", %s}", refused[i].options);
        assert_int_equal(run_pass(m, "quantize", options, &stats, NULL, &err), MLO_EINVAL);
        if (!strstr(err.message, refused[i].message) || !strstr(err.hint, refused[i].hint))
            fail_msg("%s: %s (%s)", options, err.message, err.hint);
    }
    mlo_model_free(m);
    m = gemm_2x2();
    json_t *report = NULL;
    assert_ok(run_pass(m, "quantize", "{\"target\": \"mlopt-cuda-fp8\", \"calibrator\": \"mse\"}", &stats,
                       &report, &err));
    assert_true(has_note(report, "", "ranges are the extremes"));
    json_decref(report);
    assert_float_equal(number(m, "x_scale", 0), 200.0 / 448, 1e-6);
    assert_float_equal(number(m, "w_scale", 0), 254.0 / 448, 1e-6);
    assert_int_equal(constant_named(m, "w_quantized")->dtype, MLO_FLOAT8E4M3FN);
    assert_int_equal(constant_named(m, "x_zero_point")->dtype, MLO_FLOAT8E4M3FN);
    assert_true(number(m, "x_zero_point", 0) == 0 && number(m, "w_zero_point", 0) == 0);
    for (size_t i = 0; i < MLO_COUNT(w); i++)
        assert_float_equal(number(m, "w_quantized", i), w[i], 0);
    assert_string_equal(node_named(m, "y_node")->inputs[2]->name, "b"); /* in float */
    assert_int_equal(mlo_model_opset(m, ""), 19);
    mlo_model_free(m);
    mlo_stats_clear(&stats);
}

static void test_targets__biases_stay_float_where_the_target_wants_it(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = gemm_2x2();
    assert_true(mlo_node_set_f(node_named(m, "y_node"), "beta", 0.5f));
    quantize(m, "{\"target\": \"tensorrt\"}", NULL);
    assert_string_equal(node_named(m, "y_node")->inputs[2]->name, "b");
    assert_float_equal(mlo_node_attr_f(node_named(m, "y_node"), "beta", 1), 0.5f, 0);
    mlo_model_free(m);
}

static void test_targets__onnx_runtime_needs_pairs_on_both_sides(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *before = silu(), *m = silu();
    quantize(m, "{\"target\": \"ort-x86-vnni\"}", NULL);
    static const char *const PAIRS[] = {"x", "c1", "g", "s", "c2", "pool", "flat"};
    for (size_t i = 0; i < MLO_COUNT(PAIRS); i++)
        if (!has_pair(m, PAIRS[i]))
            fail_msg("'%s' has no pair", PAIRS[i]);
    assert_int_equal(count_ops(m, "QuantizeLinear"), MLO_COUNT(PAIRS));
    const struct mlo_node *user = mlo_value_sole_user(mlo_graph_value(m->graph, "c1"));
    assert_string_equal(user->op_type, "QuantizeLinear"); /* or the Conv would not become QLinearConv */
    assert_true(reads_pair(m, "s_node", 0) && reads_pair(m, "s_node", 1) && reads_pair(m, "g_node", 0));
    assert_true(deviation(before, m) < 0.05);
    mlo_model_free(m);

    /* The engine of mlopt and OpenVINO compute the activation behind the sums, in float. */
    static const char *const FUSING[] = {NULL, "{\"target\": \"openvino\"}",
                                         "{\"target\": \"openvino-avx2\"}"};
    for (size_t i = 0; i < MLO_COUNT(FUSING); i++) {
        m = silu();
        quantize(m, FUSING[i], NULL);
        assert_false(has_pair(m, "c1") || has_pair(m, "g"));
        assert_true(has_pair(m, "s"));
        mlo_model_free(m);
    }
    mlo_model_free(before);
}

static void test_targets__a_conv_that_ends_the_model_is_noted(void **state)
{
    MLO_UNUSED(state);
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "Relu", "y", conv1x1(m, "c", input(m, "x", -1, 2, 4, 4), 2, 4)));
    quantize(m, "{\"target\": \"ort-x86-vnni\"}", &report);
    assert_true(has_note(report, "c_node", "'y' is an output of the model"));
    assert_false(has_pair(m, "c") || has_pair(m, "y"));
    json_decref(report);
    mlo_model_free(m);
}

static void test_targets__products_of_two_activations(void **state)
{
    MLO_UNUSED(state);
    json_t *report = NULL;
    struct mlo_model *before = attention(), *m = attention();
    quantize(m, "{\"target\": \"ort-x86-vnni\"}", NULL);
    assert_true(reads_pair(m, "qk_node", 0) && reads_pair(m, "qk_node", 1));
    assert_true(reads_pair(m, "y_node", 0) && reads_pair(m, "y_node", 1));
    assert_false(has_pair(m, "qk"));                              /* Softmax stays in float */
    assert_float_equal(number(m, "a_scale", 0), 1.0 / 255, 1e-9); /* its range is known: 0 to 1 */
    assert_true(deviation(before, m) < 0.05);
    mlo_model_free(m);

    m = attention();
    quantize(m, NULL, &report);
    assert_true(has_note(report, "qk_node", "MatMul stays in float: its weights are not constant"));
    assert_false(has_pair(m, "q") || has_pair(m, "a"));
    json_decref(report);
    mlo_model_free(m);
    mlo_model_free(before);
}

/* LayerNormalization reads the float value beside the pair; for ONNX Runtime everything reads the pair. */
static void test_targets__what_stays_in_float_reads_floats(void **state)
{
    MLO_UNUSED(state);
    for (int apart = 0; apart < 2; apart++) {
        struct mlo_model *m = new_model(17);
        struct mlo_value *x = input(m, "x", -1, 4);
        struct mlo_value *t = op(m, "Tanh", "t", x);
        struct mlo_value *n = op(m, "LayerNormalization", "n", t, floats(m, "gain", LIST(1, 1, 1, 1), 4));
        struct mlo_value *p = op(m, "MatMul", "p", t, ramp(m, "w", 0.1f, 4, 4));
        finish(m, op(m, "Sub", "y", n, p));
        quantize(m, apart ? "{\"target\": \"tensorrt\"}" : "{\"target\": \"ort-x86-vnni\"}", NULL);
        assert_true(reads_pair(m, "p_node", 0));
        assert_int_equal(reads_pair(m, "n_node", 0), !apart);
        mlo_model_free(m);
    }
}

static void test_targets__conv_transpose(void **state)
{
    MLO_UNUSED(state);
    json_t *report = NULL;
    for (int64_t group = 1; group <= 2; group++) {
        struct mlo_model *m = new_model(13), *before = new_model(13);
        for (int i = 0; i < 2; i++) {
            struct mlo_model *k = i ? m : before;
            struct mlo_value *x = input(k, "x", -1, 2, 3, 3);
            struct mlo_value *y =
                op(k, "ConvTranspose", "y", x, ramp(k, "w", 0.1f, 2, 3, 2, 2), ramp(k, "b", 0.3f, 3 * group));
            assert_true(mlo_node_set_i(y->producer, "group", group));
            finish(k, y);
        }
        quantize(m, "{\"target\": \"openvino\"}", NULL);
        const struct mlo_node *dq = node_named(m, "w_DequantizeLinear");
        if (group == 1) /* one scale per output channel, which is dim 1 of its weights */
            assert_int_equal(mlo_node_attr_i(dq, "axis", -9), 1);
        assert_int_equal(mlo_tensor_count(mlo_node_const(dq, 1)), group == 1 ? 3 : 1);
        assert_true(deviation(before, m) < 0.05);
        mlo_model_free(m);
        mlo_model_free(before);
    }
    struct mlo_model *m = new_model(13);
    struct mlo_value *c = conv1x1(m, "c", input(m, "x", -1, 2, 3, 3), 2, 2);
    finish(m, op(m, "ConvTranspose", "y", c, ramp(m, "w", 0.1f, 2, 3, 2, 2)));
    quantize(m, "{\"target\": \"ort-x86-vnni\"}", &report);
    assert_true(has_note(report, "y_node", "the target has no integer form of this op"));
    assert_false(has_pair(m, "w"));
    json_decref(report);
    mlo_model_free(m);
}

/* ONNX Runtime has no scale per column for matrices in a batch. */
static void test_targets__weights_in_a_batch_have_one_scale(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "MatMul", "y", input(m, "x", -1, 2, 3, 4), ramp(m, "w", 0.1f, 2, 4, 5)));
    quantize(m, NULL, NULL);
    assert_int_equal(mlo_graph_value(m->graph, "w_scale")->constant->rank, 0);
    mlo_model_free(m);
}

static void test_targets__concat_is_united_where_there_is_no_requantizing(void **state)
{
    MLO_UNUSED(state);
    for (int united = 0; united < 2; united++) {
        struct mlo_model *m = new_model(13);
        struct mlo_value *x = input(m, "x", -1, 2, 3, 3);
        struct mlo_value *a = conv1x1(m, "a", x, 2, 2), *b = conv1x1(m, "b", x, 2, 2);
        struct mlo_value *c = op(m, "Concat", "c", op(m, "Relu", "r", a), b);
        assert_true(mlo_node_set_i(c->producer, "axis", 1));
        finish(m, conv1x1(m, "y", c, 4, 2));
        quantize(m, united ? "{\"target\": \"tensorrt\"}" : "{\"target\": \"ort-x86-vnni\"}", NULL);
        bool same =
            node_named(m, "r_QuantizeLinear")->inputs[1] == node_named(m, "c_QuantizeLinear")->inputs[1];
        assert_int_equal(same, united);
        mlo_model_free(m);
    }
}

static void test_targets__options_against_the_target_are_noted(void **state)
{
    MLO_UNUSED(state);
    json_t *report = NULL;
    struct mlo_model *m = gemm_2x2();
    quantize(m, "{\"target\": \"tensorrt\", \"activations\": \"uint8\"}", &report);
    assert_true(has_note(report, "", "tensorrt takes int8 activations with zero point 0"));
    json_decref(report);
    mlo_model_free(m);
    m = gemm_2x2();
    quantize(m, "{\"target\": \"ort-x86-avx2\", \"reduce_range\": false}", &report);
    assert_true(has_note(report, "", "saturate sums of two products"));
    json_decref(report);
    mlo_model_free(m);
}

static void test_targets__excluded_nodes_of_any_kind_stay_out(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = silu();
    quantize(m, "{\"target\": \"ort-x86-vnni\", \"exclude\": [\"s_node\"]}", NULL);
    assert_true(has_pair(m, "s") && has_pair(m, "c1"));
    assert_false(has_pair(m, "g")); /* nobody wants it any more */
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets__table_is_whole),
        cmocka_unit_test(test_targets__schemes_by_hand),
        cmocka_unit_test(test_targets__float8_by_hand),
        cmocka_unit_test(test_targets__biases_stay_float_where_the_target_wants_it),
        cmocka_unit_test(test_targets__onnx_runtime_needs_pairs_on_both_sides),
        cmocka_unit_test(test_targets__a_conv_that_ends_the_model_is_noted),
        cmocka_unit_test(test_targets__products_of_two_activations),
        cmocka_unit_test(test_targets__what_stays_in_float_reads_floats),
        cmocka_unit_test(test_targets__conv_transpose),
        cmocka_unit_test(test_targets__weights_in_a_batch_have_one_scale),
        cmocka_unit_test(test_targets__concat_is_united_where_there_is_no_requantizing),
        cmocka_unit_test(test_targets__options_against_the_target_are_noted),
        cmocka_unit_test(test_targets__excluded_nodes_of_any_kind_stay_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
