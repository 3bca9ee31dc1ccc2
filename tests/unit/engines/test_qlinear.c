/* Models whose ops carry quantization parameters (QLinearConv, QGemm, …), and uint8 weights: on the cpu
 * engine they run on its int8 steps, at most one off from the reference, and that only at ties. */
#include "qhelpers.h"

enum { MAX_IN = 9 };

static struct mlo_value *bytes(struct net *n, enum mlo_dtype dtype, int rank, const int64_t *dims)
{
    double middle = dtype == MLO_UINT8 ? 127.5 : 0;
    return net_numbers(n, dtype, rank, dims, middle - 127, middle + 127);
}

static struct mlo_value *list(struct net *n, enum mlo_dtype dtype, int64_t count, double middle,
                              double spread)
{
    return net_numbers(n, dtype, 1, &count, middle - spread, middle + spread);
}

static struct mlo_tensor random_bytes(enum mlo_dtype dtype, int rank, const int64_t *dims, uint32_t seed)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, rank, dims, err));
    for (size_t i = 0; i < t.size_bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((uint8_t *)t.data)[i] = (uint8_t)(seed >> 20);
    }
    return t;
}

static void check_bytes(struct net *n, struct mlo_tensor *in, const char *what, const char *op,
                        double quantum)
{
    struct mlo_compile_options o = {.batch = 0, .threads = 1};
    json_t *d = NULL;
    struct mlo_tensor want = run_model("reference", n->model, &o, in, NULL);
    struct mlo_tensor got = run_model("cpu", n->model, &o, in, &d);
    size_t off = 0, count = mlo_tensor_count(&got), different = 0;
    assert_int_equal(got.dtype, want.dtype);
    assert_true(mlo_tensor_same_shape(&got, &want));
    for (size_t i = 0; i < count; i++) {
        double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
        if (fabs(a - b) > 1.001 * quantum)
            fail_msg("%s: element %zu is %g, the reference has %g", what, i, a, b);
        off += fabs(a - b) > 0.001 * quantum;
        different += b != mlo_tensor_get_f64(&want, 0);
    }
    if ((double)off > 0.002 * (double)count + 1.0)
        fail_msg("%s: %zu of %zu elements are off", what, off, count);
    assert_true(different > count / 4);
    if (op && mlo_isa_current() >= MLO_ISA_AVX512_VNNI && int8_ops(d, op) != 1)
        fail_with_plan(d, what, "it did not run in int8");
    json_decref(d);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(in);
}

static void test_conv__of_every_kind_of_weights(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        enum mlo_dtype x, w, y;
        int x_zero, w_zero;
        bool per_channel, zero_list, bias, padded,
            exact; /* exact: the weights are int8 around a zero point */
        const char *domain;
    } cases[] = {
        {MLO_UINT8, MLO_INT8, MLO_UINT8, 0, 0, false, false, true, true, true, ""},
        {MLO_UINT8, MLO_INT8, MLO_UINT8, 120, 0, true, true, true, true, true, ""},
        {MLO_UINT8, MLO_UINT8, MLO_UINT8, 120, 128, false, false, true, true, true, ""},
        {MLO_UINT8, MLO_UINT8, MLO_UINT8, 3, 128, true, true, false, false, true, ""},
        {MLO_UINT8, MLO_UINT8, MLO_UINT8, 3, 128, true, false, true, false, true, ""},
        {MLO_INT8, MLO_INT8, MLO_INT8, 7, 0, true, false, true, true, true, ""},
        {MLO_UINT8, MLO_UINT8, MLO_UINT8, 120, 90, false, false, true, true, false, ""},
        {MLO_UINT8, MLO_UINT8, MLO_UINT8, 120, 90, true, false, true, true, false, ""},
        {MLO_UINT8, MLO_INT8, MLO_UINT8, 120, 5, false, false, true, true, false, ""},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        char what[32];
        snprintf(what, sizeof what, "conv %zu", i);
        struct net n = ms_net(17, (uint32_t)i + 1);
        int64_t xd[] = {2, 16, 9, 9}, wd[] = {24, 16, 3, 3}, channels = 24;
        struct mlo_value *in[MAX_IN] = {
            net_input_of(&n, cases[i].x, "x", 4, xd),
            net_scalar(&n, MLO_FLOAT32, 0.02),
            net_scalar(&n, cases[i].x, cases[i].x_zero),
            bytes(&n, cases[i].w, 4, wd),
            cases[i].per_channel ? list(&n, MLO_FLOAT32, channels, 0.01, 0.005)
                                 : net_scalar(&n, MLO_FLOAT32, 0.01),
            cases[i].zero_list ? list(&n, cases[i].w, channels, cases[i].w_zero, 0)
                               : net_scalar(&n, cases[i].w, cases[i].w_zero),
            net_scalar(&n, MLO_FLOAT32, 0.17),
            net_scalar(&n, cases[i].y, cases[i].y == MLO_INT8 ? 3 : 125),
            cases[i].bias ? list(&n, MLO_INT32, channels, 100, 5000) : NULL,
        };
        struct mlo_node *c = net_node_of(&n, cases[i].domain, "QLinearConv", in, cases[i].bias ? 9 : 8);
        int64_t p = cases[i].padded;
        assert_true(mlo_node_set_ints(c, "pads", (int64_t[]){p, p, p, p}, 4));
        net_finish(&n, c->outputs[0]);
        struct mlo_tensor x = random_bytes(cases[i].x, 4, xd, (uint32_t)i + 3);
        check_bytes(&n, &x, what, cases[i].exact ? "Conv" : NULL, 1);
        mlo_model_free(n.model);
    }
}

static void test_matmul__constant_and_computed_operands(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 6; i++) {
        char what[32];
        snprintf(what, sizeof what, "matmul %d", i);
        struct net n = ms_net(17, (uint32_t)i + 1);
        bool both = i == 4, list_of_scales = i % 2 == 1;
        enum mlo_dtype w = i < 2 ? MLO_INT8 : MLO_UINT8;
        int64_t xd[] = {3, 7, 37}, wd[] = {37, 21};
        struct mlo_value *x = net_input_of(&n, MLO_UINT8, "x", 3, xd);
        struct mlo_value *in[MAX_IN] = {
            x,
            net_scalar(&n, MLO_FLOAT32, 0.02),
            net_scalar(&n, MLO_UINT8, 113),
            bytes(&n, w, 2, wd),
            list_of_scales ? list(&n, MLO_FLOAT32, 21, 0.01, 0.005) : net_scalar(&n, MLO_FLOAT32, 0.01),
            net_scalar(&n, w,
                       w == MLO_INT8 ? 0
                       : i == 5      ? 100
                                     : 128),
            net_scalar(&n, MLO_FLOAT32, both ? 0.9 : 0.09),
            net_scalar(&n, MLO_UINT8, 125),
        };
        if (both) { /* x times its own transpose */
            struct mlo_node *t = net_node(&n, "Transpose", x, NULL, NULL);
            assert_true(mlo_node_set_ints(t, "perm", (int64_t[]){0, 2, 1}, 3));
            in[3] = t->outputs[0];
            in[4] = in[1];
            in[5] = in[2];
        }
        net_finish(&n, net_node_of(&n, "", "QLinearMatMul", in, 8)->outputs[0]);
        struct mlo_tensor t = random_bytes(MLO_UINT8, 3, xd, (uint32_t)i + 3);
        check_bytes(&n, &t, what, i < 4 ? "MatMul" : NULL, 1);
        mlo_model_free(n.model);
    }
}

static void test_gemm__with_and_without_a_quantized_result(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 8; i++) {
        char what[32];
        snprintf(what, sizeof what, "gemm %d", i);
        struct net n = ms_net(17, (uint32_t)i + 1);
        bool turned = i & 1, real = i & 2, bias = i & 4;
        int64_t xd[] = {5, 37}, wd[] = {turned ? 21 : 37, turned ? 37 : 21};
        struct mlo_value *in[MAX_IN] = {
            net_input_of(&n, MLO_UINT8, "x", 2, xd),
            net_scalar(&n, MLO_FLOAT32, 0.02),
            net_scalar(&n, MLO_UINT8, 113),
            bytes(&n, MLO_INT8, 2, wd),
            list(&n, MLO_FLOAT32, 21, 0.01, 0.005),
            list(&n, MLO_INT8, 21, 0, 0),
            bias ? list(&n, MLO_INT32, 21, 0, 9000) : NULL,
            net_scalar(&n, MLO_FLOAT32, 0.09),
            net_scalar(&n, MLO_UINT8, 125),
        };
        struct mlo_node *g = net_node_of(&n, "com.microsoft", "QGemm", in, real ? bias ? 7 : 6 : 9);
        assert_true(mlo_node_set_i(g, "transB", turned) && mlo_node_set_f(g, "alpha", 0.75f));
        net_finish(&n, g->outputs[0]);
        struct mlo_tensor t = random_bytes(MLO_UINT8, 2, xd, (uint32_t)i + 3);
        check_bytes(&n, &t, what, "Gemm", real ? 0.05 : 1);
        mlo_model_free(n.model);
    }
}

/* Each reads a byte in every state it can have. */
static void test_functions__of_bytes_are_exact(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"};
    for (int i = 0; i < 6; i++) {
        struct net n = ms_net(17, (uint32_t)i + 1);
        enum mlo_dtype dtype = i < 3 ? MLO_UINT8 : MLO_INT8;
        int64_t xd[] = {3, 7, 37};
        struct mlo_value *in[MAX_IN] = {
            net_input_of(&n, dtype, "x", 3, xd),
            net_scalar(&n, MLO_FLOAT32, 0.03),
            net_scalar(&n, dtype, dtype == MLO_INT8 ? -4 : 113),
            net_scalar(&n, MLO_FLOAT32,
                       i % 3 == 0   ? 0.025
                       : i % 3 == 1 ? 1.0 / 256
                                    : 1.0 / 2048),
            net_scalar(&n, dtype, dtype == MLO_INT8 ? -128 : 0),
        };
        struct mlo_node *f = net_node_of(&n, "com.microsoft", ops[i % 3], in, 5);
        if (i % 3 == 2)
            assert_true(mlo_node_set_i(f, "opset", 13));
        net_finish(&n, f->outputs[0]);
        struct mlo_tensor t = random_bytes(dtype, 3, xd, (uint32_t)i + 3);
        for (size_t k = 0; k < 256; k++)
            ((uint8_t *)t.data)[k] = (uint8_t)k;
        check_bytes(&n, &t, ops[i % 3], i % 3 == 2 ? NULL : ops[i % 3] + 7, i % 3 == 2 ? 1 : 1e-9);
        mlo_model_free(n.model);
    }
}

static void test_sums_and_products__of_bytes(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 6; i++) {
        char what[32];
        snprintf(what, sizeof what, "binary %d", i);
        struct net n = ms_net(17, (uint32_t)i + 1);
        bool add = i & 1;
        int64_t xd[] = {2, 8, 5, 5}, one[] = {2, 8, 1, 1};
        struct mlo_value *x = net_input_of(&n, MLO_UINT8, "x", 4, xd);
        struct mlo_value *y = i < 2   ? x
                              : i < 4 ? bytes(&n, MLO_UINT8, 4, one)
                                      : bytes(&n, MLO_UINT8, 0, NULL);
        struct mlo_value *in[MAX_IN] = {
            x,
            net_scalar(&n, MLO_FLOAT32, 0.03),
            net_scalar(&n, MLO_UINT8, 113),
            y,
            net_scalar(&n, MLO_FLOAT32, 0.02),
            net_scalar(&n, MLO_UINT8, 20),
            net_scalar(&n, MLO_FLOAT32, 0.05),
            net_scalar(&n, MLO_UINT8, 60),
        };
        net_finish(&n,
                   net_node_of(&n, "com.microsoft", add ? "QLinearAdd" : "QLinearMul", in, 8)->outputs[0]);
        struct mlo_tensor t = random_bytes(MLO_UINT8, 4, xd, (uint32_t)i + 3);
        check_bytes(&n, &t, what, i == 1 ? "Add" : NULL, 1);
        mlo_model_free(n.model);
    }
}

static void test_pooling_and_concat__of_bytes(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 5; i++) {
        char what[32];
        snprintf(what, sizeof what, "case %d", i);
        struct net n = ms_net(17, (uint32_t)i + 1);
        int64_t xd[] = {2, 8, 5, 5};
        struct mlo_value *x = net_input_of(&n, MLO_UINT8, "x", 4, xd);
        struct mlo_value *xs = net_scalar(&n, MLO_FLOAT32, 0.03), *xz = net_scalar(&n, MLO_UINT8, 113);
        struct mlo_value *ys = net_scalar(&n, MLO_FLOAT32, 0.005), *yz = net_scalar(&n, MLO_UINT8, 60);
        struct mlo_node *node;
        if (i < 3) {
            node = net_node_of(&n, "com.microsoft", "QLinearGlobalAveragePool",
                               (struct mlo_value *[]){x, xs, xz, ys, yz}, 5);
            assert_true(mlo_node_set_i(node, "channels_last", i == 2));
        } else {
            struct mlo_value *more = net_scalar(&n, MLO_FLOAT32, 0.01);
            struct mlo_value *in[] = {i == 3 ? xs : more, xz, x, xs, xz, bytes(&n, MLO_UINT8, 4, xd),
                                      i == 3 ? xs : ys,   xz};
            node = net_node_of(&n, "com.microsoft", "QLinearConcat", in, 8);
            assert_true(mlo_node_set_i(node, "axis", 1));
        }
        net_finish(&n, node->outputs[0]);
        struct mlo_tensor t = random_bytes(MLO_UINT8, 4, xd, (uint32_t)i + 3);
        check_bytes(&n, &t, what, i < 2 ? "GlobalAveragePool" : NULL, 1);
        mlo_model_free(n.model);
    }
}

/* Means over windows stay in bytes, and over values on ties too they are the reference's. */
static void test_average_pool__of_bytes(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int64_t x[4], kernel[2], strides[2], pads[4];
        bool with_pad;
    } cases[] = {
        {{2, 8, 6, 6}, {2, 2}, {2, 2}, {0, 0, 0, 0}, false},
        {{1, 3, 9, 7}, {3, 2}, {1, 2}, {1, 0, 1, 1}, false},
        {{1, 70, 7, 9}, {3, 3}, {2, 2}, {1, 1, 1, 1}, true},
        {{2, 33, 5, 5}, {5, 5}, {1, 1}, {2, 2, 2, 2}, false},
        {{1, 16, 12, 12}, {7, 7}, {5, 5}, {0, 0, 0, 0}, true},
    };
    for (uint32_t i = 0; i < 4 * MLO_COUNT(cases); i++) {
        const size_t k = i / 4;
        const bool is_signed = i & 1, whole = i & 2;
        const enum mlo_dtype dtype = is_signed ? MLO_INT8 : MLO_UINT8;
        char what[32];
        snprintf(what, sizeof what, "average %u", i);
        struct net n = ms_net(17, i + 1);
        struct mlo_value *x = net_input_of(&n, dtype, "x", 4, cases[k].x);
        struct mlo_value *xs = net_scalar(&n, MLO_FLOAT32, 0.03125),
                         *xz = net_scalar(&n, dtype, is_signed ? -5 : 113);
        struct mlo_value *ys = net_scalar(&n, MLO_FLOAT32, 0.03),
                         *yz = net_scalar(&n, dtype, is_signed ? 3 : 60);
        struct mlo_node *node =
            whole ? net_node_of(&n, "com.microsoft", "QLinearAveragePool",
                                (struct mlo_value *[]){x, xs, xz, ys, yz}, 5)
                  : net_node(&n, "AveragePool", net_op(&n, "DequantizeLinear", x, xs, xz), NULL, NULL);
        assert_true(mlo_node_set_ints(node, "kernel_shape", cases[k].kernel, 2));
        assert_true(mlo_node_set_ints(node, "strides", cases[k].strides, 2));
        assert_true(mlo_node_set_ints(node, "pads", cases[k].pads, 4));
        assert_true(mlo_node_set_i(node, "count_include_pad", cases[k].with_pad));
        net_finish(&n, node->outputs[0]);
        struct mlo_tensor t = random_bytes(dtype, 4, cases[k].x, i + 3);
        if (whole) {
            check_bytes(&n, &t, what, "AveragePool", 1);
        } else {
            check_on_every_isa(&n, &t, 1e-6, "int8", 1, what);
            mlo_tensor_clear(&t);
        }
        mlo_model_free(n.model);
    }
}

/* QDQ graphs whose weights are uint8, as some tools write them. */
static void test_qdq__uint8_weights(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 4; i++) {
        char what[32];
        snprintf(what, sizeof what, "weights %d", i);
        struct net n = ms_net(17, (uint32_t)i + 1);
        bool per_channel = i & 1;
        int64_t wd[] = {24, 16, 3, 3};
        struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){2, 16, 9, 9});
        struct mlo_value *dq =
            net_op(&n, "DequantizeLinear", bytes(&n, MLO_UINT8, 4, wd),
                   per_channel ? list(&n, MLO_FLOAT32, 24, 0.01, 0.005) : net_scalar(&n, MLO_FLOAT32, 0.01),
                   per_channel ? list(&n, MLO_UINT8, 24, i < 2 ? 128 : 77, 0)
                               : net_scalar(&n, MLO_UINT8, i < 2 ? 128 : 77));
        assert_true(mlo_node_set_i(dq->producer, "axis", -4));
        struct mlo_value *c = net_op(&n, "Conv", qdq(&n, x, 0.008f, 120, MLO_UINT8), dq, NULL);
        net_finish(&n, qdq(&n, c, 0.1f, 128, MLO_UINT8));
        struct mlo_tensor in = random_tensor(4, (int64_t[]){2, 16, 9, 9}, 3);
        check_bytes(&n, &in, what, i < 2 ? "Conv" : NULL, 0.1);
        mlo_model_free(n.model);
    }
}

/* Activations alone between two quantized values. */
static void test_qdq__activations_are_tables(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"Sigmoid", "HardSwish", "Tanh", "Relu", "swish", "Sub"};
    for (size_t i = 0; i < MLO_COUNT(ops); i++) {
        struct net n = ms_net(17, (uint32_t)i + 1);
        struct mlo_value *x = net_input(&n, "x", 3, (int64_t[]){2, 16, 301});
        x = qdq(&n, x, 0.008f, 120, MLO_UINT8);
        struct mlo_value *y;
        if (strcmp(ops[i], "swish") == 0)
            y = net_op(&n, "Mul", x, net_op(&n, "Sigmoid", x, NULL, NULL), NULL);
        else if (strcmp(ops[i], "Sub") == 0)
            y = net_op(&n, "Sub", net_scalar(&n, MLO_FLOAT32, 1), x, NULL);
        else
            y = net_op(&n, ops[i], x, NULL, NULL);
        net_finish(&n, qdq(&n, y, 0.005f, i == 0 ? 0 : 100, MLO_UINT8));
        struct mlo_tensor in = random_tensor(3, (int64_t[]){2, 16, 301}, 3);
        check_bytes(&n, &in, ops[i],
                    strcmp(ops[i], "swish") == 0 ? "Sigmoid"
                    : strcmp(ops[i], "Sub") == 0 ? NULL
                                                 : ops[i],
                    1e-9);
        mlo_model_free(n.model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv__of_every_kind_of_weights),
        cmocka_unit_test(test_matmul__constant_and_computed_operands),
        cmocka_unit_test(test_gemm__with_and_without_a_quantized_result),
        cmocka_unit_test(test_functions__of_bytes_are_exact),
        cmocka_unit_test(test_sums_and_products__of_bytes),
        cmocka_unit_test(test_pooling_and_concat__of_bytes),
        cmocka_unit_test(test_average_pool__of_bytes),
        cmocka_unit_test(test_qdq__uint8_weights),
        cmocka_unit_test(test_qdq__activations_are_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
