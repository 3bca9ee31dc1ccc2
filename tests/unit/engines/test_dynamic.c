/* Dynamic quantization on the cpu engine against the reference, on every instruction set of the machine:
 * integers are equal, floats but for one rounding or two. */
#include "helpers.h"

static struct mlo_value *bytes(struct net *n, enum mlo_dtype dtype, int rank, const int64_t *dims)
{
    bool is_signed = dtype == MLO_INT8;
    return net_numbers(n, dtype, rank, dims, is_signed ? -128.4 : -0.4, is_signed ? 127.4 : 255.4);
}

static void quantized(struct net *n, struct mlo_value *x, struct mlo_value *out[3])
{
    for (int i = 0; i < 3; i++)
        out[i] = mlo_graph_add_value(n->graph, "dynamic", NULL);
    assert_non_null(
        mlo_graph_add_node(n->graph, NULL, "", "DynamicQuantizeLinear", "quantize", &x, 1, out, 3));
}

static void test_quantize__is_exact_for_all_inputs(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[] = {1, 7, 16, 33, 1000, 70001};
    static const float edges[] = {0.0f,  -0.0f,  NAN,   INFINITY,  -INFINITY, 1e-42f,
                                  3e38f, -3e38f, 1e30f, 0x1p-126f, 1.0f};
    for (size_t s = 0; s < MLO_COUNT(sizes); s++)
        for (size_t e = 0; e < MLO_COUNT(edges) + 4; e++)
            for (int out = 0; out < 3; out++) {
                struct net n = ms_net(17, 1);
                struct mlo_value *q[3];
                quantized(&n, net_input(&n, "x", 1, &sizes[s]), q);
                net_finish(&n, q[out]);
                struct mlo_tensor x = random_tensor(1, &sizes[s], (uint32_t)(e + 5));
                float *f = x.data;
                for (int64_t i = 0; i < sizes[s]; i++) {
                    if (e == MLO_COUNT(edges)) /* ties */
                        f[i] = (float)(i % 511) * 0.5f;
                    else if (e == MLO_COUNT(edges) + 1) /* above 0 only */
                        f[i] = 3.0f + f[i];
                    else if (e == MLO_COUNT(edges) + 2)
                        f[i] = -3.0f + f[i];
                    else if (e == MLO_COUNT(edges) + 3)
                        f[i] = 0.0f;
                }
                if (e < MLO_COUNT(edges))
                    f[sizes[s] / 2] = edges[e];
                char what[64];
                snprintf(what, sizeof what, "size %d edge %zu output %d", (int)sizes[s], e, out);
                check_on_every_isa(&n, &x, 0, "dynamic int8", 1, what);
                mlo_tensor_clear(&x);
                mlo_model_free(n.model);
            }
}

/* x is made of bytes by the graph itself, so that every byte is there. */
static void test_integers__are_equal(void **state)
{
    MLO_UNUSED(state);
    static const int64_t rows[] = {1, 2, 3, 5, 8, 11, 17}, columns[] = {1, 15, 16, 40},
                         depths[] = {1, 8, 37, 64, 300};
    for (uint32_t i = 0; i < 96; i++) {
        struct net n = ms_net(17, i + 1);
        enum mlo_dtype a = i & 1 ? MLO_INT8 : MLO_UINT8, b = i & 2 ? MLO_INT8 : MLO_UINT8;
        int64_t m = rows[i % 7], cols = columns[i / 4 % 4], k = depths[i % 5], xd[] = {1, m, k},
                wd[] = {k, cols};
        struct mlo_value *in[4] = {net_input_of(&n, a, "x", 3, xd), bytes(&n, b, 2, wd)};
        if (i & 4)
            in[2] = net_scalar(&n, a, a == MLO_INT8 ? -17 : 201);
        if (i & 8)
            in[3] = i & 16 ? bytes(&n, b, 1, &cols) : net_scalar(&n, b, b == MLO_INT8 ? 5 : 100);
        net_finish(&n, net_node_of(&n, "", "MatMulInteger", in, i & 8 ? 4 : i & 4 ? 3 : 2)->outputs[0]);
        struct mlo_tensor v = {0};
        MUST(mlo_tensor_init(&v, a, 3, xd, err));
        for (size_t e = 0; e < v.size_bytes; e++)
            ((uint8_t *)v.data)[e] = (uint8_t)(e * 151 + i);
        char what[64];
        snprintf(what, sizeof what, "case %u m %d n %d k %d", i, (int)m, (int)cols, (int)k);
        check_on_every_isa(&n, &v, 0, "int8", 1, what);
        mlo_tensor_clear(&v);
        mlo_model_free(n.model);
    }
}

struct conv_case {
    int rank;
    int64_t x[5], w[5], strides[3], pads[6], dilations[3];
};

static struct mlo_value *conv_integer(struct net *n, const struct conv_case *c, struct mlo_value *const *in,
                                      int count)
{
    size_t spatial = (size_t)c->rank - 2;
    struct mlo_node *node = net_node_of(n, "", "ConvInteger", in, count);
    assert_true(mlo_node_set_ints(node, "strides", c->strides, spatial));
    assert_true(mlo_node_set_ints(node, "pads", c->pads, 2 * spatial));
    assert_true(mlo_node_set_ints(node, "dilations", c->dilations, spatial));
    return node->outputs[0];
}

static const struct conv_case conv_cases[] = {
    {4, {2, 5, 9, 7}, {17, 5, 1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}}, /* the image as it is */
    {4, {1, 3, 9, 12}, {16, 3, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
    {4, {2, 6, 8, 11}, {7, 6, 3, 2}, {2, 1}, {0, 1, 2, 0}, {1, 2}},
    {4, {1, 70, 6, 6}, {40, 70, 3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
    {3, {2, 4, 19}, {6, 4, 5}, {2}, {2, 1}, {1}},
    {5, {1, 2, 4, 5, 3}, {3, 2, 2, 3, 1}, {1, 1, 1}, {1, 0, 0, 0, 2, 0}, {1, 1, 1}},
};

static void test_conv__integers_are_equal(void **state)
{
    MLO_UNUSED(state);
    for (uint32_t i = 0; i < 16 * MLO_COUNT(conv_cases); i++) {
        const struct conv_case *c = &conv_cases[i / 16];
        struct net n = ms_net(17, i + 1);
        enum mlo_dtype a = i & 1 ? MLO_INT8 : MLO_UINT8, b = i & 2 ? MLO_INT8 : MLO_UINT8;
        struct mlo_value *in[4] = {net_input_of(&n, a, "x", c->rank, c->x), bytes(&n, b, c->rank, c->w)};
        if (i & 4)
            in[2] = net_scalar(&n, a, a == MLO_INT8 ? -17 : 201);
        if (i & 8)
            in[3] = i & 1 ? bytes(&n, b, 1, c->w) : net_scalar(&n, b, b == MLO_INT8 ? 5 : 100);
        net_finish(&n, conv_integer(&n, c, in, i & 8 ? 4 : i & 4 ? 3 : 2));
        struct mlo_tensor v = {0};
        MUST(mlo_tensor_init(&v, a, c->rank, c->x, err));
        for (size_t e = 0; e < v.size_bytes; e++)
            ((uint8_t *)v.data)[e] = (uint8_t)(e * 151 + i);
        char what[64];
        snprintf(what, sizeof what, "convolution %u", i);
        check_on_every_isa(&n, &v, 0, "int8", 1, what);
        mlo_tensor_clear(&v);
        mlo_model_free(n.model);
    }
}

/* As tools write a dynamically quantized Conv: nothing of it is interpreted, and the floats are the same. */
static void test_conv__dynamic(void **state)
{
    MLO_UNUSED(state);
    for (uint32_t i = 0; i < 2 * MLO_COUNT(conv_cases); i++) {
        const struct conv_case *c = &conv_cases[i / 2];
        struct net n = ms_net(17, i + 1);
        struct mlo_value *x = net_input(&n, "x", c->rank, c->x), *q[3];
        int64_t each[5] = {1, c->w[0], 1, 1, 1}, one[3] = {1, 1, 1};
        if (i & 1) { /* floats that are channels last */
            x = net_op(&n, "MaxPool", x, NULL, NULL);
            assert_true(mlo_node_set_ints(x->producer, "kernel_shape", one, (size_t)c->rank - 2));
        }
        quantized(&n, x, q);
        struct mlo_value *in[] = {q[0], bytes(&n, MLO_INT8, c->rank, c->w), q[2],
                                  net_scalar(&n, MLO_INT8, 0)};
        struct mlo_value *y = net_cast(&n, conv_integer(&n, c, in, 4), MLO_FLOAT32);
        y = net_op(&n, "Mul", y, net_op(&n, "Mul", q[1], net_scalar(&n, MLO_FLOAT32, 0.01), NULL), NULL);
        net_finish(&n, net_op(&n, "Add", y, net_floats(&n, c->rank, each, 1.0f), NULL));
        struct mlo_tensor v = random_tensor(c->rank, c->x, i + 3);
        struct mlo_compile_options o = {.threads = 1};
        json_t *d = NULL, *node;
        struct mlo_tensor want = run_model("reference", n.model, &o, &v, NULL);
        struct mlo_tensor got = run_model("cpu", n.model, &o, &v, &d);
        assert_close(&got, &want, 1e-6f, "a dynamic convolution");
        size_t k;
        json_array_foreach(json_object_get(d, "nodes"), k, node)
            assert_string_not_equal(mlo_json_str(node, "impl", ""), "reference");
        json_decref(d);
        mlo_tensor_clear(&v);
        mlo_tensor_clear(&want);
        mlo_tensor_clear(&got);
        mlo_model_free(n.model);
    }
}

struct product {
    enum mlo_dtype w;
    bool list; /* a scale and a zero point a column */
    struct mlo_value *x, *b, *scale, *bias, *integers;
};

/* As quantize_dynamic of ONNX Runtime writes it. */
static struct mlo_value *spelt_out(struct net *n, struct product *p)
{
    struct mlo_value *q[3];
    quantized(n, p->x, q);
    struct mlo_value *in[4] = {q[0], p->b, q[2], net_scalar(n, p->w, p->w == MLO_INT8 ? 0 : 117)};
    p->integers = net_node_of(n, "", "MatMulInteger", in, 4)->outputs[0];
    struct mlo_value *scale = net_op(n, "Mul", q[1], p->scale, NULL);
    struct mlo_value *y = net_op(n, "Mul", net_cast(n, p->integers, MLO_FLOAT32), scale, NULL);
    return p->bias ? net_op(n, "Add", p->bias, y, NULL) : y;
}

static struct mlo_value *zero_point(struct net *n, const struct product *p)
{
    return p->list ? bytes(n, p->w, 1, (int64_t[]){33}) : net_scalar(n, p->w, 3);
}

static struct mlo_value *whole(struct net *n, struct product *p)
{
    struct mlo_value *in[] = {p->x, p->b, p->scale, zero_point(n, p), p->bias};
    return net_node_of(n, "com.microsoft", "DynamicQuantizeMatMul", in, p->bias ? 5 : 4)->outputs[0];
}

static struct mlo_value *in_two(struct net *n, struct product *p)
{
    struct mlo_value *q[3];
    quantized(n, p->x, q);
    struct mlo_value *in[] = {q[0], p->b, q[1], p->scale, q[2], zero_point(n, p), p->bias};
    return net_node_of(n, "com.microsoft", "MatMulIntegerToFloat", in, p->bias ? 7 : 6)->outputs[0];
}

static void test_products__with_float_results(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *name;
        struct mlo_value *(*build)(struct net *, struct product *);
        int rank;
        int64_t dims[3];
        bool observed; /* the integers are wanted too: nothing is joined */
    } forms[] = {
        {"spelt out", spelt_out, 3, {2, 9, 50}, false},
        {"spelt out, observed", spelt_out, 3, {2, 9, 50}, true},
        {"whole", whole, 2, {7, 50}, false},
        {"in two", in_two, 2, {7, 50}, false},
    };
    for (uint32_t i = 0; i < 8 * MLO_COUNT(forms); i++) {
        const size_t f = i / 8;
        const bool list = i & 2, bias = i & 4;
        const int64_t columns = 33, wd[] = {50, columns};
        struct net n = ms_net(17, i + 1);
        struct product p = {.w = i & 1 ? MLO_INT8 : MLO_UINT8, .list = list};
        p.x = net_input(&n, "x", forms[f].rank, forms[f].dims);
        p.b = bytes(&n, p.w, 2, wd);
        p.scale =
            list ? net_numbers(&n, MLO_FLOAT32, 1, &columns, 0.01, 0.02) : net_scalar(&n, MLO_FLOAT32, 0.01);
        p.bias = bias ? net_numbers(&n, MLO_FLOAT32, 1, &columns, -3, 3) : NULL;
        net_output(&n, forms[f].build(&n, &p));
        if (forms[f].observed)
            net_output(&n, p.integers);
        MUST(mlo_graph_infer(n.graph, err));
        MUST(mlo_graph_verify(n.graph, err));
        struct mlo_tensor v = random_tensor(forms[f].rank, forms[f].dims, i + 3);
        char what[64];
        snprintf(what, sizeof what, "%s %u", forms[f].name, i);
        check_on_every_isa(&n, &v, 1e-6, "dynamic int8", forms[f].observed ? 1 : 2, what);
        mlo_tensor_clear(&v);
        mlo_model_free(n.model);
    }
}

/* Several products of one input, as attention has them, in another order of nodes. */
static void test_products__of_one_input(void **state)
{
    MLO_UNUSED(state);
    struct net n = ms_net(17, 5);
    int64_t xd[] = {9, 50}, wd[] = {50, 33};
    enum { COUNT = 3 };
    struct mlo_value *q[3], *scales[COUNT], *products[COUNT], *sum = NULL;
    quantized(&n, net_input(&n, "x", 2, xd), q);
    for (int i = 0; i < COUNT; i++)
        scales[i] = net_op(&n, "Mul", net_scalar(&n, MLO_FLOAT32, 0.01 + i), q[1], NULL);
    for (int i = 0; i < COUNT; i++)
        products[i] = net_node_of(&n, "", "MatMulInteger",
                                  (struct mlo_value *[]){q[0], bytes(&n, MLO_INT8, 2, wd), q[2]}, 3)
                          ->outputs[0];
    for (int i = 0; i < COUNT; i++) {
        struct mlo_value *y = net_op(&n, "Mul", scales[i], net_cast(&n, products[i], MLO_FLOAT32), NULL);
        sum = sum ? net_op(&n, "Sub", sum, y, NULL) : y;
    }
    net_finish(&n, sum);
    struct mlo_tensor v = random_tensor(2, xd, 3);
    check_on_every_isa(&n, &v, 1e-6, "dynamic int8", 1 + COUNT, "products");
    mlo_tensor_clear(&v);
    mlo_model_free(n.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize__is_exact_for_all_inputs),
        cmocka_unit_test(test_integers__are_equal),
        cmocka_unit_test(test_conv__integers_are_equal),
        cmocka_unit_test(test_conv__dynamic),
        cmocka_unit_test(test_products__with_float_results),
        cmocka_unit_test(test_products__of_one_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
