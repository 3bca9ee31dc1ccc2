/* Weights alone in integers: both forms by hand, what stays in float and why. */
#include "tests/unit/passes/passes_helpers.h"

/* y = x W, W of 18 x 2: blocks of 16 and of 2 along the 18. */
static struct mlo_model *product(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_error err = {0};
    struct mlo_tensor w = {0};
    assert_ok(mlo_tensor_init(&w, MLO_FLOAT32, 2, DIMS(18, 2), &err));
    float *v = w.data;
    v[0] = 7; /* (0, 0): column 0, block 0 has steps of 1 */
    v[2] = -3;
    v[4] = 2.5f;     /* to even: 2 */
    v[1] = -4;       /* column 1, block 0: -8 steps of 0.5 */
    v[3] = 1.5f;     /* 3 */
    v[2 * 16] = 70;  /* column 0, block 1: steps of 10 */
    v[2 * 17] = -20; /* -2 */
    finish(m, op(m, "MatMul", "y", input(m, "x", -1, 18), constant_take(m, "w", &w)));
    return m;
}

#define SMALL "\"min_weights\": 0, \"search_scale\": false"

static void test_weights__blocks_of_int4_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = product(), *before = product();
    assert_ok(run_pass(m, "quantize-weights", "{\"block\": 16, " SMALL "}", NULL, &report, &err));
    assert_int_equal(mlo_model_opset(m, ""), 21);
    assert_true(has_note(report, m->graph->name, "opset raised from 13 to 21"));
    assert_constant(m, "w_scale", MLO_FLOAT32, 1, 0.5, 10, 1 /* zeros only */);
    const struct mlo_tensor *q = constant_named(m, "w_quantized");
    assert_int_equal(q->dtype, MLO_INT4);
    static const int AT[][2] = {{0, 7}, {2, -3}, {4, 2}, {1, -8}, {3, 3}, {32, 7}, {34, -2}, {35, 0}};
    for (size_t i = 0; i < MLO_COUNT(AT); i++)
        assert_int_equal(mlo_tensor_get_i64(q, (size_t)AT[i][0]), AT[i][1]);
    const struct mlo_node *dq = node_named(m, "w_DequantizeLinear");
    assert_int_equal(mlo_node_attr_i(dq, "axis", -9), 0);
    assert_int_equal(mlo_node_attr_i(dq, "block_size", -9), 16);
    assert_int_equal(dq->input_count, 2);
    assert_null(mlo_graph_value(m->graph, "w"));
    assert_true(deviation(before, m) <= 0.5); /* 2.5 became 2 */
    json_decref(report);
    mlo_model_free(m);
    mlo_model_free(before);
}

static void test_weights__uint4_has_zero_points(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    /* Gemm with transB: rows of 2; one block of a whole channel each. -5 .. 10: steps of 1, zero at 5. */
    struct mlo_value *y = op(m, "Gemm", "y", input(m, "x", -1, 2), floats(m, "w", LIST(-5, 10, 0, 30), 2, 2),
                             floats(m, "b", LIST(1, 2), 2));
    assert_true(mlo_node_set_i(y->producer, "transB", 1));
    finish(m, y);
    assert_ok(
        run_pass(m, "quantize-weights", "{\"type\": \"uint4\", \"block\": 0, " SMALL "}", NULL, NULL, &err));
    assert_constant(m, "w_scale", MLO_FLOAT32, 1, 2);
    assert_constant(m, "w_zero_point", MLO_UINT4, 5, 0);
    assert_constant(m, "w_quantized", MLO_UINT4, 0, 15, 0, 15);
    assert_int_equal(mlo_node_attr_i(node_named(m, "w_DequantizeLinear"), "axis", -9), 0);
    assert_null(mlo_node_attr(node_named(m, "w_DequantizeLinear"), "block_size"));
    mlo_model_free(m);
}

static void test_weights__mat_mul_n_bits_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = product(), *other = product();
    assert_ok(run_pass(m, "quantize-weights", "{\"form\": \"matmulnbits\", \"block\": 16, " SMALL "}", NULL,
                       NULL, &err));
    assert_int_equal(mlo_model_opset(m, ""), 13);
    assert_int_equal(mlo_model_opset(m, "com.microsoft"), 1);
    const struct mlo_node *node = m->graph->outputs[0]->producer;
    assert_string_equal(node->op_type, "MatMulNBits");
    assert_int_equal(mlo_node_attr_i(node, "K", 0), 18);
    assert_int_equal(mlo_node_attr_i(node, "N", 0), 2);
    assert_constant(m, "w_scale", MLO_FLOAT32, 1, 10, 0.5, 1); /* by column, then block */
    const uint8_t *b = constant_named(m, "w_packed")->data;
    assert_int_equal(b[0], (7 + 8) | (-3 + 8) << 4);
    assert_int_equal(b[1], (2 + 8) | 8 << 4);
    assert_int_equal(b[8], (7 + 8) | (-2 + 8) << 4);
    assert_int_equal(b[9], 0x88); /* beyond the last row */
    assert_int_equal(b[16], 0 | (3 + 8) << 4);
    assert_ok(run_pass(other, "quantize-weights", "{\"block\": 16, " SMALL "}", NULL, NULL, &err));
    assert_true(deviation(other, m) < 1e-5);
    mlo_model_free(m);
    mlo_model_free(other);
}

static void test_weights__mat_mul_n_bits_of_a_gemm_keeps_its_bias(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    for (int eight = 0; eight < 2; eight++) {
        struct mlo_model *m = new_model(13), *before = NULL;
        finish(m,
               op(m, "Gemm", "y", input(m, "x", -1, 40), ramp(m, "w", 0.1f, 40, 6), ramp(m, "b", 1, 1, 6)));
        assert_ok(mlo_model_clone(m, &before, &err));
        assert_ok(run_pass(m, "quantize-weights",
                           eight ? "{\"form\": \"matmulnbits\", \"type\": \"uint8\", " SMALL "}"
                                 : "{\"form\": \"matmulnbits\", \"type\": \"uint4\", " SMALL "}",
                           NULL, NULL, &err));
        assert_string_equal(m->graph->outputs[0]->producer->op_type, "MatMulNBits");
        assert_true(deviation(before, m) < (eight ? 0.04 : 0.6));
        mlo_model_free(m);
        mlo_model_free(before);
    }
}

static void test_weights__convolutions_take_8_bits_per_channel(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(11);
    finish(m, op(m, "Conv", "y", input(m, "x", -1, 1, 2), floats(m, "w", LIST(127, -64, 254, 1), 2, 1, 2)));
    assert_ok(run_pass(m, "quantize-weights", "{" SMALL "}", NULL, NULL, &err));
    assert_int_equal(mlo_model_opset(m, ""), 13); /* a list of scales; 4 bits are not used */
    assert_constant(m, "w_scale", MLO_FLOAT32, 1, 2);
    assert_constant(m, "w_quantized", MLO_INT8, 127, -64, 127, 0 /* 0.5 to even */);
    mlo_model_free(m);
}

/* One scale a channel, 4 bits, and the opset that has them; only where the others have 4 bits too. */
static void test_weights__convolutions_take_4_bits_where_asked(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(17), *before = NULL;
    finish(m, op(m, "Conv", "y", input(m, "x", -1, 1, 2), floats(m, "w", LIST(7, -3, 14, 3), 2, 1, 2)));
    assert_int_equal(run_pass(m, "quantize-weights",
                              "{\"type\": \"int8\", \"convolution_bits\": \"4\", " SMALL "}", NULL, NULL,
                              &err),
                     MLO_EINVAL);
    assert_non_null(strstr(err.message, "go with the types int4 and uint4"));
    assert_ok(mlo_model_clone(m, &before, &err));
    assert_ok(run_pass(m, "quantize-weights", "{\"convolution_bits\": \"4\", " SMALL "}", NULL, NULL, &err));
    assert_int_equal(mlo_model_opset(m, ""), 21);
    assert_constant(m, "w_scale", MLO_FLOAT32, 1, 2);
    assert_constant(m, "w_quantized", MLO_INT4, 7, -3, 7, 2 /* 1.5 to even */);
    assert_true(deviation(before, m) > 0);
    mlo_model_free(before);
    mlo_model_free(m);
}

static void test_weights__search_gives_up_the_outlier_s_exactness(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    float w[64];
    for (int i = 0; i < 64; i++)
        w[i] = (float)(i % 7 - 3) * 0.3f;
    w[5] = 10;
    double errors[2];
    for (int search = 0; search < 2; search++) {
        struct mlo_model *m = new_model(21);
        finish(m, op(m, "MatMul", "y", input(m, "x", -1, 64), floats(m, "w", w, 64, 1)));
        assert_ok(run_pass(m, "quantize-weights",
                           search ? "{\"block\": 64, \"min_weights\": 0}" : "{\"block\": 64, " SMALL "}",
                           NULL, NULL, &err));
        double scale = mlo_tensor_get_f64(constant_named(m, "w_scale"), 0);
        errors[search] = 0;
        for (size_t i = 0; i < 64; i++)
            errors[search] +=
                pow((double)w[i] - scale * mlo_tensor_get_f64(constant_named(m, "w_quantized"), i), 2);
        mlo_model_free(m);
    }
    assert_true(errors[1] < 0.95 * errors[0]);
}

static void test_weights__gptq_reads_what_was_observed(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    for (int seen = 0; seen < 2; seen++) {
        struct mlo_model *m = new_model(21);
        json_t *report = NULL;
        struct mlo_stats stats;
        mlo_stats_init(&stats);
        /* As in the test of rounding: two equal inputs, weights of 0.4 steps. */
        struct mlo_value *y =
            op(m, "MatMul", "y", input(m, "x", -1, 3), floats(m, "w", LIST(0.4f, 0.4f, 7), 3, 1));
        finish(m, y);
        struct mlo_tensor x = {
            .dtype = MLO_FLOAT32, .rank = 2, .dims = {2, 3}, .data = (void *)LIST(1, 1, 0, 0, 0, 1)};
        if (seen)
            assert_ok(
                mlo_gram_add(mlo_stats_get_gram(&stats, y->producer, true), y->producer, &x, NULL, &err));
        assert_ok(run_pass(m, "quantize-weights", "{\"rounding\": \"gptq\", \"block\": 0, " SMALL "}", &stats,
                           &report, &err));
        if (seen)
            assert_constant(m, "w_quantized", MLO_INT4, 0, 1, 7);
        else
            assert_constant(m, "w_quantized", MLO_INT4, 0, 0, 7);
        assert_int_equal(has_note(report, "y_node", "its input was not observed"), !seen);
        json_decref(report);
        mlo_stats_clear(&stats);
        mlo_model_free(m);
    }
}

static void test_weights__what_stays_in_float_and_why(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 16, 16);
    struct mlo_value *a = op(m, "MatMul", "a", x, x);
    struct mlo_value *b = op(m, "MatMul", "b", a, ramp(m, "small", 1, 16, 2));
    struct mlo_value *c = op(m, "MatMul", "c", b, floats(m, "bad", LIST(1, INFINITY), 2, 1));
    finish(m, op(m, "MatMul", "y", c, ramp(m, "large", 1, 1, 64)));
    assert_ok(run_pass(m, "quantize-weights", "{\"min_weights\": 33}", NULL, &report, &err));
    assert_true(has_note(report, "a_node", "its weights are not constant"));
    assert_true(has_note(report, "b_node", "min_weights"));
    assert_true(has_note(report, "c_node", "few weights"));
    assert_int_equal(count_ops(m, "DequantizeLinear"), 1);
    json_decref(report);
    mlo_model_free(m);

    m = product();
    assert_int_equal(run_pass(m, "quantize-weights", NULL, NULL, NULL, &err), MLO_EUNSUPPORTED);
    mlo_model_free(m);
    m = product();
    assert_int_equal(run_pass(m, "quantize-weights", "{\"block\": 24}", NULL, NULL, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "16, 32"));
    mlo_model_free(m);
    m = product();
    assert_int_equal(run_pass(m, "quantize-weights", "{\"exclude\": [\"nobody\"]}", NULL, NULL, &err),
                     MLO_EINVAL);
    mlo_model_free(m);
}

static void test_weights__shared_ones_are_quantized_once(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(21);
    struct mlo_value *w = ramp(m, "w", 0.3f, 32, 32);
    finish(m, op(m, "MatMul", "y", op(m, "MatMul", "h", input(m, "x", -1, 32), w), w));
    assert_ok(run_pass(m, "quantize-weights", "{\"min_weights\": 0}", NULL, NULL, &err));
    assert_int_equal(count_ops(m, "DequantizeLinear"), 1);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights__blocks_of_int4_by_hand),
        cmocka_unit_test(test_weights__uint4_has_zero_points),
        cmocka_unit_test(test_weights__mat_mul_n_bits_by_hand),
        cmocka_unit_test(test_weights__mat_mul_n_bits_of_a_gemm_keeps_its_bias),
        cmocka_unit_test(test_weights__convolutions_take_8_bits_per_channel),
        cmocka_unit_test(test_weights__convolutions_take_4_bits_where_asked),
        cmocka_unit_test(test_weights__search_gives_up_the_outlier_s_exactness),
        cmocka_unit_test(test_weights__gptq_reads_what_was_observed),
        cmocka_unit_test(test_weights__what_stays_in_float_and_why),
        cmocka_unit_test(test_weights__shared_ones_are_quantized_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
