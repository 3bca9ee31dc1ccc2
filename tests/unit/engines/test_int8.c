/* QDQ graphs on the cpu engine against their float evaluation by the reference engine: at most one quantum
 * off, and rarely; and the plan says what really runs in int8. */
#include "qhelpers.h"

static void test_conv__runs_in_int8_and_agrees(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        struct conv_spec conv;
        int x_zp, y_zp;
        enum mlo_dtype x_type, y_type;
        const char *act;
    } cases[] = {
        {{16, 32, 3, 1, 1, 1, 1, 10, true}, 0, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{16, 32, 3, 1, 1, 1, 1, 10, true}, 0, 131, MLO_UINT8, MLO_UINT8, NULL},
        {{16, 32, 3, 1, 1, 1, 1, 10, true}, 121, 7, MLO_UINT8, MLO_UINT8, NULL},
        {{16, 32, 3, 2, 1, 1, 1, 11, false}, 121, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{16, 24, 1, 1, 0, 1, 1, 9, false}, 113, 99, MLO_UINT8, MLO_UINT8, NULL},
        {{16, 24, 1, 2, 0, 1, 1, 9, true}, 0, 128, MLO_UINT8, MLO_UINT8, NULL},
        {{3, 16, 3, 1, 1, 1, 1, 16, true}, 116, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{1, 16, 3, 1, 1, 1, 1, 28, true}, 90, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{1, 16, 3, 1, 1, 1, 1, 28, true}, 0, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{16, 16, 3, 1, 1, 1, 16, 12, true}, 0, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{16, 16, 3, 1, 1, 1, 16, 12, true}, 128, 100, MLO_UINT8, MLO_UINT8, NULL},
        {{16, 32, 3, 1, 1, 1, 1, 10, true}, 0, 0, MLO_INT8, MLO_INT8, NULL},
        {{16, 32, 3, 1, 1, 1, 1, 10, true}, -5, 3, MLO_INT8, MLO_INT8, NULL},
        {{17, 19, 3, 1, 1, 1, 1, 7, true}, 0, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{8, 8, 3, 1, 2, 2, 1, 9, true}, 111, 0, MLO_UINT8, MLO_UINT8, "Relu"},
        {{16, 16, 5, 2, 2, 1, 4, 9, true}, 0, 0, MLO_UINT8, MLO_UINT8, "Clip"},
        {{16, 40, 3, 1, 1, 1, 1, 10, true}, 3, 20, MLO_UINT8, MLO_UINT8, "HardSwish"},
        {{16, 40, 1, 1, 0, 1, 1, 10, true}, -7, -100, MLO_INT8, MLO_INT8, "Sigmoid"},
        {{16, 40, 3, 1, 1, 1, 1, 10, true}, -128, -20, MLO_INT8, MLO_INT8, "Tanh"},
        {{16, 100, 3, 2, 1, 1, 1, 10, true}, 77, -3, MLO_UINT8, MLO_INT8, "LeakyRelu"},
        {{70, 100, 1, 2, 0, 1, 1, 10, true}, -77, 128, MLO_INT8, MLO_UINT8, "Elu"},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        char what[32];
        snprintf(what, sizeof what, "conv %zu", i);
        struct net n = net_new((uint32_t)i + 1);
        const struct conv_spec *s = &cases[i].conv;
        int64_t dims[] = {-1, s->ic, s->size, s->size};
        struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, dims), 0.008f, cases[i].x_zp, cases[i].x_type);
        struct mlo_value *y = qconv(&n, x, 0.008f, s);
        if (cases[i].act && strcmp(cases[i].act, "Clip") == 0)
            y = net_op(&n, "Clip", y, net_scalar(&n, MLO_FLOAT32, 0.0), net_scalar(&n, MLO_FLOAT32, 1.5));
        else if (cases[i].act)
            y = net_op(&n, cases[i].act, y, NULL, NULL);
        net_finish(&n, qdq(&n, y, 0.02f, cases[i].y_zp, cases[i].y_type));
        dims[0] = 2;
        struct mlo_tensor in = random_tensor(4, dims, 3);
        json_t *d = NULL;
        check(&n, &in, 2, 0.02f, what, &d);
        if (mlo_isa_current() >= MLO_ISA_AVX512_VNNI && int8_ops(d, "Conv") != 1)
            fail_with_plan(d, what, "it did not run in int8");
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Pictures of few channels come to channels last by a step of their own, in parts that begin anywhere. */
static void test_pictures__are_interleaved(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[] = {1, 7, 61, 190};
    for (int64_t channels = 2; channels <= 5; channels++)
        for (size_t i = 0; i < MLO_COUNT(sizes); i++) {
            char what[48];
            snprintf(what, sizeof what, "%d channels, size %d", (int)channels, (int)sizes[i]);
            struct net n = net_new((uint32_t)channels);
            struct conv_spec s = {channels, 4, 1, 1, 0, 1, 1, sizes[i], true};
            struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, (int64_t[]){-1, channels, s.size, s.size}),
                                      0.008f, -3, MLO_INT8);
            net_finish(&n, qdq(&n, qconv(&n, x, 0.008f, &s), 0.02f, 100, MLO_UINT8));
            struct mlo_compile_options o = {.batch = 2, .threads = 2};
            struct mlo_tensor in = random_tensor(4, (int64_t[]){2, channels, s.size, s.size}, 3);
            json_t *d = NULL;
            assert_engines_agree(&n, &o, &in, 0.021f, what, &d);
            if (mlo_isa_current() >= MLO_ISA_AVX512_VNNI)
                assert_int_equal(count_nodes(d, "Reorder", "impl", "interleave"),
                                 channels <= 4 && s.size > 1);
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* Sums of the largest bytes too, and numbers of channels that vectors do not divide. */
static void test_means__of_any_size_agree(void **state)
{
    MLO_UNUSED(state);
    static const int64_t channels[] = {2, 15, 16, 33, 79, 130}, sizes[] = {1, 7, 16, 24};
    for (size_t i = 0; i < MLO_COUNT(channels) * MLO_COUNT(sizes) * 4; i++) {
        const int64_t c = channels[i % 6], size = sizes[i / 6 % 4];
        const bool is_signed = i / 24 % 2, extreme = i / 48;
        char what[64];
        snprintf(what, sizeof what, "%d channels, size %d, %s%s", (int)c, (int)size, is_signed ? "s8" : "u8",
                 extreme ? ", extreme" : "");
        struct net n = net_new((uint32_t)i + 1);
        struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, (int64_t[]){-1, c, size, size}), 0.008f,
                                  is_signed ? -3 : 125, is_signed ? MLO_INT8 : MLO_UINT8);
        net_finish(&n, net_op(&n, "GlobalAveragePool", x, NULL, NULL));
        struct mlo_tensor in = random_tensor(4, (int64_t[]){2, c, size, size}, 3);
        for (size_t k = 0; extreme && k < mlo_tensor_count(&in); k++)
            ((float *)in.data)[k] = is_signed ? -9.0f : 9.0f;
        struct mlo_compile_options o = {.batch = 2, .threads = 1};
        json_t *d = NULL;
        assert_engines_agree(&n, &o, &in, 1e-5f, what, &d);
        assert_int_equal(count_nodes(d, "GlobalAveragePool", "impl", "int8-mean"), 1);
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Blocks as the quantize pass writes them: Q/DQ behind every Conv(+Relu), Add, pool; a float Gemm at the end.
 */
static struct net quantized_net(bool fused_residual)
{
    struct net n = net_new(77);
    struct conv_spec stem = {3, 16, 3, 1, 1, 1, 1, 0, true}, same = {16, 16, 3, 1, 1, 1, 1, 0, true};
    struct conv_spec down = {16, 32, 3, 2, 1, 1, 1, 0, true}, skip = {16, 32, 1, 2, 0, 1, 1, 0, true};
    struct conv_spec more = {32, 32, 3, 1, 1, 1, 1, 0, true};
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, (int64_t[]){-1, 3, 16, 16}), 0.008f, 125, MLO_UINT8);
    x = qdq(&n, net_op(&n, "Relu", qconv(&n, x, 0.008f, &stem), NULL, NULL), 0.015f, 0, MLO_UINT8);
    struct mlo_value *y = qconv(&n, x, 0.015f, &same);
    y = qdq(&n, net_op(&n, "Relu", y, NULL, NULL), 0.02f, 0, MLO_UINT8);
    y = qconv(&n, y, 0.02f, &same);
    if (!fused_residual)
        y = qdq(&n, y, 0.04f, 130, MLO_UINT8);
    y = qdq(&n, net_op(&n, "Relu", net_op(&n, "Add", y, x, NULL), NULL, NULL), 0.03f, 0, MLO_UINT8);
    struct mlo_value *z =
        qdq(&n, net_op(&n, "Relu", qconv(&n, y, 0.03f, &down), NULL, NULL), 0.03f, 0, MLO_UINT8);
    struct mlo_value *s = qdq(&n, qconv(&n, y, 0.03f, &skip), 0.05f, 120, MLO_UINT8);
    z = qconv(&n, z, 0.03f, &more);
    if (!fused_residual)
        z = qdq(&n, z, 0.05f, 127, MLO_UINT8);
    z = qdq(&n, net_op(&n, "Add", z, s, NULL), 0.06f, 126, MLO_UINT8);
    struct mlo_node *pool = net_node(&n, "MaxPool", z, NULL, NULL);
    assert_true(mlo_node_set_ints(pool, "kernel_shape", (int64_t[]){2, 2}, 2));
    assert_true(mlo_node_set_ints(pool, "strides", (int64_t[]){2, 2}, 2));
    z = qdq(&n, pool->outputs[0], 0.06f, 126, MLO_UINT8);
    z = qdq(&n, net_op(&n, "GlobalAveragePool", z, NULL, NULL), 0.03f, 110, MLO_UINT8);
    z = qdq(&n, net_op(&n, "Flatten", z, NULL, NULL), 0.03f, 110, MLO_UINT8);
    const float *w_scales;
    struct mlo_value *w = weights(&n, 2, (int64_t[]){10, 32}, 0.5f, 127.0f, &w_scales);
    struct mlo_node *g = net_node(&n, "Gemm", z, w, bias(&n, 10, 0.03f, w_scales));
    assert_true(mlo_node_set_i(g, "transB", 1));
    net_finish(&n, g->outputs[0]);
    return n;
}

static void test_net__runs_in_int8_throughout(void **state)
{
    MLO_UNUSED(state);
    for (int fused = 0; fused < 2; fused++) {
        struct net n = quantized_net(fused != 0);
        for (int64_t batch = 1; batch <= 3; batch += 2) {
            struct mlo_compile_options o = {.batch = batch, .threads = 1};
            struct mlo_tensor in = random_tensor(4, (int64_t[]){batch, 3, 16, 16}, 3);
            json_t *d = NULL;
            /* single quanta inside the net move the logits a little */
            assert_engines_agree(&n, &o, &in, 0.02f, "quantized net", &d);
            if (mlo_isa_current() >= MLO_ISA_AVX512_VNNI) {
                assert_int_equal(int8_ops(d, "Conv"), 6);
                assert_int_equal(int8_ops(d, "Gemm"), 1);
                assert_int_equal(int8_ops(d, "Add"), 0);
                assert_int_equal(int8_ops(d, "MaxPool"), 1);
                assert_int_equal(int8_ops(d, "GlobalAveragePool"), 1);
                assert_int_equal(json_integer_value(json_object_get(d, "int8_nodes")), 9);
            }
            json_decref(d);
            mlo_tensor_clear(&in);
        }
        mlo_model_free(n.model);
    }
}

static void test_gemm__runs_in_int8_and_agrees(void **state)
{
    MLO_UNUSED(state);
    for (int zp = 0; zp <= 120; zp += 120) {
        struct net n = net_new(8);
        const float *w_scales;
        struct mlo_value *x = qdq(&n, net_input(&n, "x", 2, (int64_t[]){-1, 50}), 0.008f, zp, MLO_UINT8);
        struct mlo_value *w = weights(&n, 2, (int64_t[]){12, 50}, 0.3f, 127.0f, &w_scales);
        struct mlo_node *g = net_node(&n, "Gemm", x, w, bias(&n, 12, 0.008f, w_scales));
        assert_true(mlo_node_set_i(g, "transB", 1));
        net_finish(&n, qdq(&n, g->outputs[0], 0.01f, 128, MLO_UINT8));
        struct mlo_tensor in = random_tensor(2, (int64_t[]){40, 50}, 3);
        json_t *d = NULL;
        check(&n, &in, 40, 0.01f, "gemm", &d);
        if (mlo_isa_current() >= MLO_ISA_AVX512_VNNI)
            assert_int_equal(int8_ops(d, "Gemm"), 1);
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

static void test_observed__float_values_inside_a_quantized_net(void **state)
{
    MLO_UNUSED(state);
    struct net n = quantized_net(true);
    const char *names[1] = {NULL};
    for (int i = 0; i < n.graph->node_count && !names[0]; i++)
        if (mlo_node_is(n.graph->nodes[i], "Relu"))
            names[0] = n.graph->nodes[i]->outputs[0]->name;
    struct mlo_compile_options o = {.batch = 1, .threads = 1, .observe = names, .observe_count = 1};
    struct mlo_tensor in = random_tensor(4, (int64_t[]){1, 3, 16, 16}, 3);
    assert_engines_agree(&n, &o, &in, 0.02f, "observed quantized net", NULL);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv__runs_in_int8_and_agrees),
        cmocka_unit_test(test_pictures__are_interleaved),
        cmocka_unit_test(test_means__of_any_size_agree),
        cmocka_unit_test(test_net__runs_in_int8_throughout),
        cmocka_unit_test(test_gemm__runs_in_int8_and_agrees),
        cmocka_unit_test(test_observed__float_values_inside_a_quantized_net),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
