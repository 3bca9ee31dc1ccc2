/* Dynamic quantization: weights, nodes and numbers by hand; what stays in float and why. */
#include "tests/unit/passes/passes_helpers.h"

/* y = x W + b / 2 (Gemm), W as columns of steps 1 and 2. */
static struct mlo_model *gemm(bool turned)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *w =
        turned ? floats(m, "w", LIST(127, 50, -254, 4), 2, 2) : floats(m, "w", LIST(127, -254, 50, 4), 2, 2);
    struct mlo_value *y = op(m, "Gemm", "y", input(m, "x", -1, 2), w, floats(m, "b", LIST(10, -6), 2));
    assert_true(mlo_node_set_i(y->producer, "transB", turned) && mlo_node_set_f(y->producer, "beta", 0.5f));
    finish(m, y);
    return m;
}

#define ALL "\"min_weights\": 0"

static void test_dynamic__gemm_by_hand(void **state)
{
    MLO_UNUSED(state);
    static const char *const OPS[] = {"DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul", "Add"};
    for (int turned = 0; turned < 2; turned++) {
        struct mlo_error err = {0};
        struct mlo_model *m = gemm(turned);
        struct mlo_tensor inputs[4] = {0}, y = {0};
        assert_ok(run_pass(m, "quantize-dynamic", "{" ALL "}", NULL, NULL, &err));
        assert_constant(m, "w_quantized", MLO_INT8, 127, -127, 50, 2);
        assert_constant(m, "w_scale", MLO_FLOAT32, 1, 2);
        assert_constant(m, "b_added", MLO_FLOAT32, 5, -3);
        assert_int_equal(m->graph->node_count, MLO_COUNT(OPS));
        for (size_t i = 0; i < MLO_COUNT(OPS); i++)
            assert_string_equal(m->graph->nodes[i]->op_type, OPS[i]);
        assert_string_equal(m->graph->outputs[0]->name, "y");
        /* x from 0 to 255 has steps of 1: all of it is exact */
        assert_ok(mlo_tensor_init(&inputs[0], MLO_FLOAT32, 2, DIMS(1, 2), &err));
        memcpy(inputs[0].data, LIST(255, 51), 2 * sizeof(float));
        assert_ok(mlo_graph_eval(m->graph, inputs, &y, &err));
        assert_true(mlo_tensor_get_f64(&y, 0) == 255 * 127 + 51 * 50 + 5);
        assert_true(mlo_tensor_get_f64(&y, 1) == 255 * -254 + 51 * 4 - 3);
        mlo_tensor_clear(&inputs[0]);
        mlo_tensor_clear(&y);
        mlo_model_free(m);
    }
}

/* 127.5 steps of x round to 128; a weight of 50 in steps of 254/64 is 12.6, hence 13 behind the middle. */
static void test_dynamic__uint8_in_seven_bits_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = gemm(false);
    struct mlo_tensor inputs[4] = {0}, y = {0};
    /* as the target wants it, if nobody says otherwise */
    assert_ok(run_pass(m, "quantize-dynamic", "{" ALL ", \"target\": \"ort-x86-avx2\"}", NULL, NULL, &err));
    assert_constant(m, "w_quantized", MLO_INT8, 64, -64, 25, 1);
    mlo_model_free(m);
    m = gemm(false);
    assert_ok(run_pass(m, "quantize-dynamic",
                       "{" ALL ", \"target\": \"ort-x86-avx2\", \"reduce_range\": false}", NULL, NULL, &err));
    assert_constant(m, "w_quantized", MLO_INT8, 127, -127, 50, 2);
    mlo_model_free(m);
    m = gemm(false);
    assert_ok(run_pass(m, "quantize-dynamic",
                       "{" ALL ", \"type\": \"uint8\", \"reduce_range\": true, \"per_channel\": false}", NULL,
                       NULL, &err));
    const double step = (double)(254.0f / 64);
    assert_constant(m, "w_scale", MLO_FLOAT32, step);
    assert_constant(m, "w_quantized", MLO_UINT8, 128 + 32, 128 - 64, 128 + 13, 128 + 1);
    assert_constant(m, "w_zero_point", MLO_UINT8, 128);
    assert_int_equal(constant_named(m, "w_scale")->rank, 0);
    assert_ok(mlo_tensor_init(&inputs[0], MLO_FLOAT32, 2, DIMS(1, 2), &err));
    memcpy(inputs[0].data, LIST(510, 255), 2 * sizeof(float)); /* steps of 2 */
    assert_ok(mlo_graph_eval(m->graph, inputs, &y, &err));
    assert_float_equal(mlo_tensor_get_f64(&y, 0), (255 * 32 + 128 * 13) * 2 * step + 5, 1e-2);
    assert_float_equal(mlo_tensor_get_f64(&y, 1), (255 * -64 + 128) * 2 * step - 3, 1e-2);
    mlo_tensor_clear(&inputs[0]);
    mlo_tensor_clear(&y);
    mlo_model_free(m);
}

/* Padding is 0 in floats, hence the zero point in integers; the bias goes along the channels. */
static void test_dynamic__convolutions_keep_their_form(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    for (int per_channel = 0; per_channel < 2; per_channel++) {
        struct mlo_model *m = new_model(13), *before = NULL;
        struct mlo_value *y = op(m, "Conv", "y", input(m, "x", -1, 4, 5, 5), ramp(m, "w", 0.1f, 6, 2, 3, 3),
                                 floats(m, "b", LIST(1, -1, 2, -2, 3, 0), 6));
        assert_true(mlo_node_set_i(y->producer, "group", 2));
        set_ints(y, "pads", 1, 0, 1, 1);
        set_ints(y, "strides", 2, 1);
        finish(m, op(m, "Relu", "z", y));
        assert_ok(mlo_model_clone(m, &before, &err));
        assert_ok(run_pass(m, "quantize-dynamic",
                           per_channel ? "{\"convolutions\": true, " ALL "}"
                                       : "{\"convolutions\": true, \"per_channel\": false, " ALL "}",
                           NULL, NULL, &err));
        const struct mlo_node *made = node_named(m, "y_node_quantized");
        assert_string_equal(made->op_type, "ConvInteger");
        assert_int_equal(made->input_count, 4);
        assert_int_equal(constant_named(m, "w_quantized")->dtype, MLO_UINT8);
        assert_int_equal(constant_named(m, "b_added")->rank, 3);
        assert_int_equal(mlo_tensor_count(constant_named(m, "w_scale")), per_channel ? 6 : 1);
        assert_true(deviation(before, m) < 0.1);
        mlo_model_free(m);
        mlo_model_free(before);
    }
}

/* Projections of one value quantize it once; tied weights are stored once. */
static void test_dynamic__what_is_shared_is_made_once(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13), *before = NULL;
    struct mlo_value *x = input(m, "x", -1, 3, 4), *w = ramp(m, "w", 0.1f, 4, 4);
    struct mlo_value *a = op(m, "MatMul", "a", x, w), *b = op(m, "MatMul", "b", x, ramp(m, "v", 0.2f, 4, 4));
    finish(m, op(m, "Add", "y", op(m, "MatMul", "c", a, w), b));
    assert_ok(mlo_model_clone(m, &before, &err));
    assert_ok(run_pass(m, "quantize-dynamic", "{" ALL "}", NULL, NULL, &err));
    assert_int_equal(count_ops(m, "DynamicQuantizeLinear"), 2);
    assert_int_equal(count_ops(m, "MatMulInteger"), 3);
    assert_ptr_equal(node_named(m, "a_node_quantized")->inputs[1],
                     node_named(m, "c_node_quantized")->inputs[1]);
    assert_true(deviation(before, m) < 0.2);
    mlo_model_free(m);
    mlo_model_free(before);
}

static void test_dynamic__what_stays_in_float_and_why(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(10);
    struct mlo_value *x = input(m, "x", 4, 4);
    struct mlo_value *nan = op(m, "MatMul", "n", x, floats(m, "u", LIST(NAN, 0, 0, 0, 0, 0, 0, 0), 4, 2));
    struct mlo_value *p = op(m, "MatMul", "p", x, x), *g = op(m, "MatMul", "g", p, ramp(m, "w", 1, 4, 2));
    finish(m, op(m, "Add", "y", op(m, "MatMul", "e", g, ramp(m, "v", 1, 2, 2)), nan));
    assert_ok(run_pass(m, "quantize-dynamic", "{\"exclude\": \"e_node\", " ALL "}", NULL, &report, &err));
    assert_true(has_note(report, "n_node", "MatMul stays in float: its weights hold NaN or infinity"));
    assert_true(has_note(report, "p_node", "MatMul stays in float: its weights are not constant"));
    assert_true(has_note(report, "e_node", "MatMul stays in float: it is excluded"));
    assert_true(has_note(report, m->graph->name, "opset raised from 10 to 11"));
    assert_true(has_note(report, m->graph->name, "what a sample gives depends on the others"));
    assert_int_equal(count_ops(m, "MatMulInteger"), 1);
    json_decref(report);
    assert_int_equal(run_pass(m, "quantize-dynamic", "{" ALL "}", NULL, NULL, &err), MLO_ECONFLICT);
    assert_contains(err.message, "quantized already");
    mlo_model_free(m);

    m = gemm(false);
    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "quantize-dynamic", NULL, NULL, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "no node that can be quantized dynamically");
    assert_contains(err.hint, "'y_node' (Gemm) stays in float: it has few weights (the option min_weights)");
    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "quantize-dynamic", "{\"exclude\": \"y_nod\", " ALL "}", NULL, NULL, &err),
                     MLO_EINVAL);
    assert_contains(err.hint, "y_node");
    mlo_model_free(m);
    m = new_model(13);
    finish(m, op(m, "Relu", "y", input(m, "x", -1, 2)));
    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "quantize-dynamic", NULL, NULL, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.hint, "no MatMul, Gemm or Conv at all");
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dynamic__gemm_by_hand),
        cmocka_unit_test(test_dynamic__uint8_in_seven_bits_by_hand),
        cmocka_unit_test(test_dynamic__convolutions_keep_their_form),
        cmocka_unit_test(test_dynamic__what_is_shared_is_made_once),
        cmocka_unit_test(test_dynamic__what_stays_in_float_and_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
