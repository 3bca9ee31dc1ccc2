/* Quantization is q = saturate(round_half_even(x / scale) + zero point): the zero point is added behind the
 * rounding. With an odd one, a tie would go the other way before it. All scales here are powers of two, so
 * that about half of the results are ties and none has an error: bytes are those of the reference engine. The
 * suite runs this once for each instruction set (MLOPT_ISA). */
#include "qhelpers.h"

#include "tests/isa_case.h"

enum form {
    ALONE,
    RELU,
    CLIP,
    LEAKY,        /* commutes with a scale */
    HARD_SIGMOID, /* does not: computed in the values' own units */
    ADD,          /* a residual of bytes */
    ADD_RELU,
    QUANTIZED_ADD, /* what is quantized once more before it */
    FORMS,
};

struct types {
    enum mlo_dtype x, y;
    int x_zero, y_zero;
};

static const struct types types[] = {
    {MLO_UINT8, MLO_UINT8, 0, 101},  {MLO_UINT8, MLO_UINT8, 127, 37}, {MLO_UINT8, MLO_INT8, 63, -1},
    {MLO_INT8, MLO_INT8, 0, 3},      {MLO_INT8, MLO_UINT8, -5, 129},  {MLO_UINT8, MLO_UINT8, 0, 0},
    {MLO_UINT8, MLO_UINT8, 11, 128},
};

static const float x_scale = 0.5f, y_scale = 1.0f;

/* Weights of -2 to 2 times 1/2 or 1/4. Few: no result is far from its tie, and sums stay within bytes. */
static struct mlo_value *small_weights(struct net *n, int rank, const int64_t *dims, int axis)
{
    struct mlo_tensor q = {0}, s = {0};
    MUST(mlo_tensor_init(&q, MLO_INT8, rank, dims, err));
    MUST(mlo_tensor_init(&s, MLO_FLOAT32, 1, &dims[axis], err));
    for (size_t i = 0; i < mlo_tensor_count(&q); i++)
        ((int8_t *)q.data)[i] = (int8_t)lrintf(2.4f * net_random(&n->seed));
    for (int64_t i = 0; i < dims[axis]; i++)
        ((float *)s.data)[i] = i % 2 ? 0.5f : 0.25f;
    struct mlo_node *dq = net_node(n, "DequantizeLinear", net_take(n, "wq", &q), net_take(n, "ws", &s), NULL);
    assert_true(mlo_node_set_i(dq, "axis", axis));
    return dq->outputs[0];
}

static struct mlo_value *small_bias(struct net *n, int64_t count)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, MLO_FLOAT32, 1, &count, err));
    for (int64_t i = 0; i < count; i++)
        ((float *)t.data)[i] = 0.125f * rintf(16.0f * net_random(&n->seed));
    return net_take(n, "b", &t);
}

/* Numbers that x's quantization keeps. */
static struct mlo_tensor grid_tensor(int rank, const int64_t *dims, float step, uint32_t seed)
{
    struct mlo_tensor t = random_tensor(rank, dims, seed);
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        ((float *)t.data)[i] = step * rintf(12.0f * ((float *)t.data)[i]);
    return t;
}

/* What comes behind a product; `other` has its shape, and is dequantized bytes. */
static struct mlo_value *behind(struct net *n, struct mlo_value *y, struct mlo_value *other, enum form form,
                                const struct types *t)
{
    struct mlo_node *node;
    switch (form) {
    case RELU:
        return net_op(n, "Relu", y, NULL, NULL);
    case CLIP:
        return net_op(n, "Clip", y, net_scalar(n, MLO_FLOAT32, -6.5), net_scalar(n, MLO_FLOAT32, 7.5));
    case LEAKY:
        node = net_node(n, "LeakyRelu", y, NULL, NULL);
        assert_true(mlo_node_set_f(node, "alpha", 0.5f));
        return node->outputs[0];
    case HARD_SIGMOID:
        node = net_node(n, "HardSigmoid", y, NULL, NULL);
        assert_true(mlo_node_set_f(node, "alpha", 0.125f) && mlo_node_set_f(node, "beta", 0.5f));
        return net_op(n, "Mul", node->outputs[0], net_scalar(n, MLO_FLOAT32, 16.0), NULL);
    case QUANTIZED_ADD:
        y = qdq(n, y, y_scale, t->y_zero, t->y); /* fall through */
    case ADD:
        return net_op(n, "Add", y, other, NULL);
    case ADD_RELU:
        return net_op(n, "Relu", net_op(n, "Add", y, other, NULL), NULL, NULL);
    default:
        return y;
    }
}

/* The same bytes as the reference engine's, some of them ties. */
static void check_bytes(struct net *n, struct mlo_value *y, float scale, const struct types *t,
                        const struct mlo_tensor *in, const char *what)
{
    net_output(n, qdq(n, y, scale, t->y_zero, t->y));
    MUST(mlo_graph_infer(n->graph, err));
    MUST(mlo_graph_verify(n->graph, err));
    for (int threads = 1; threads <= 2; threads++) {
        struct mlo_compile_options o = {.threads = threads};
        struct mlo_tensor want = run_model("reference", n->model, &o, in, NULL);
        struct mlo_tensor got = run_model("cpu", n->model, &o, in, NULL);
        assert_true(mlo_tensor_same_shape(&got, &want));
        size_t off = 0, first = 0, count = mlo_tensor_count(&got);
        for (size_t i = count; i-- > 0;)
            if (((const float *)got.data)[i] != ((const float *)want.data)[i])
                off++, first = i;
        if (off)
            fail_msg("%s, x %d around %d, y %d around %d: %zu of %zu are off; element %zu is %g, not %g",
                     what, (int)t->x, t->x_zero, (int)t->y, t->y_zero, off, count, first,
                     (double)((const float *)got.data)[first], (double)((const float *)want.data)[first]);
        mlo_tensor_clear(&got);
        mlo_tensor_clear(&want);
    }
}

static void check_conv(const struct conv_spec *s, enum form form, const struct types *t)
{
    char what[96];
    struct net n = net_new(7);
    int64_t dims[] = {1, s->ic, s->size, s->size}, w[] = {s->oc, s->ic / s->groups, s->kernel, s->kernel};
    int64_t out = (s->size + 2 * s->pad - s->kernel) / s->stride + 1, r_dims[] = {1, s->oc, out, out};
    struct mlo_tensor in[] = {grid_tensor(4, dims, x_scale, 3), grid_tensor(4, r_dims, 1.0f, 4)};
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, dims), x_scale, t->x_zero, t->x);
    struct mlo_value *other = qdq(&n, net_input(&n, "r", 4, r_dims), 0.5f, t->y_zero, t->y);
    struct mlo_node *c =
        net_node(&n, "Conv", x, small_weights(&n, 4, w, 0), s->bias ? small_bias(&n, s->oc) : NULL);
    net_conv_attrs(c, s);
    snprintf(what, sizeof what, "conv %dx%d, %d groups, form %d", (int)s->kernel, (int)s->kernel,
             (int)s->groups, (int)form);
    check_bytes(&n, behind(&n, c->outputs[0], other, form, t), y_scale, t, in, what);
    mlo_tensor_clear(&in[0]);
    mlo_tensor_clear(&in[1]);
    mlo_model_free(n.model);
}

static void check_convs(const struct conv_spec *specs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (enum form form = ALONE; form < FORMS; form++)
            for (size_t k = 0; k < MLO_COUNT(types); k++)
                check_conv(&specs[i], form, &types[k]);
}

static void test_conv__adds_the_zero_point_behind_rounding(void **state)
{
    MLO_UNUSED(state);
    static const struct conv_spec specs[] = {
        {16, 64, 3, 1, 1, 1, 1, 7, true}, {8, 20, 3, 2, 0, 1, 1, 9, false}, {32, 48, 1, 1, 0, 1, 1, 8, true},
        {3, 16, 3, 1, 1, 1, 1, 9, true},  {8, 8, 3, 1, 1, 1, 2, 6, true},   {8, 17, 1, 1, 0, 1, 1, 5, true},
        {8, 18, 3, 1, 1, 1, 1, 6, true},
    };
    check_convs(specs, MLO_COUNT(specs));
}

static void test_depthwise__adds_the_zero_point_behind_rounding(void **state)
{
    MLO_UNUSED(state);
    static const struct conv_spec specs[] = {
        {64, 64, 3, 1, 1, 1, 64, 7, true},
        {40, 40, 5, 2, 2, 1, 40, 9, true},
        {17, 17, 2, 1, 0, 1, 17, 6, false},
    };
    check_convs(specs, MLO_COUNT(specs));
}

static void check_product(bool gemm, int64_t m, int64_t k, int64_t columns, enum form form,
                          const struct types *t)
{
    struct net n = net_new(9);
    int64_t dims[] = {m, k}, w[] = {k, columns}, r_dims[] = {m, columns};
    struct mlo_tensor in[] = {grid_tensor(2, dims, x_scale, 5), grid_tensor(2, r_dims, 1.0f, 6)};
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 2, dims), x_scale, t->x_zero, t->x);
    struct mlo_value *other = qdq(&n, net_input(&n, "r", 2, r_dims), 0.5f, t->y_zero, t->y);
    struct mlo_value *y = net_op(&n, gemm ? "Gemm" : "MatMul", x, small_weights(&n, 2, w, 1),
                                 gemm ? small_bias(&n, columns) : NULL);
    check_bytes(&n, behind(&n, y, other, form, t), y_scale, t, in, gemm ? "gemm" : "matmul");
    mlo_tensor_clear(&in[0]);
    mlo_tensor_clear(&in[1]);
    mlo_model_free(n.model);
}

static void test_products__add_the_zero_point_behind_rounding(void **state)
{
    MLO_UNUSED(state);
    for (enum form form = ALONE; form < FORMS; form++)
        for (size_t i = 0; i < MLO_COUNT(types); i++) {
            check_product(true, 5, 24, 40, form, &types[i]);
            check_product(true, 1, 9, 7, form, &types[i]);
            check_product(false, 17, 32, 64, form, &types[i]);
        }
}

/* Steps that are no products. */
static void check_other(const char *op, const struct types *t)
{
    struct net n = net_new(11);
    int64_t dims[] = {1, 24, 4, 4};
    struct mlo_tensor in[] = {grid_tensor(4, dims, x_scale, 7), grid_tensor(4, dims, 1.0f, 8)};
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, dims), x_scale, t->x_zero, t->x), *y;
    struct mlo_value *other = qdq(&n, net_input(&n, "r", 4, dims), 0.5f, t->y_zero, t->y);
    if (strcmp(op, "Identity") == 0)
        y = x;
    else if (strcmp(op, "AveragePool") == 0) {
        struct mlo_node *node = net_node(&n, op, x, NULL, NULL);
        assert_true(mlo_node_set_ints(node, "kernel_shape", (int64_t[]){2, 2}, 2));
        y = node->outputs[0];
    } else if (strcmp(op, "Mul") == 0) {
        y = net_op(&n, op, x, net_scalar(&n, MLO_FLOAT32, 0.5), NULL);
    } else {
        y = net_op(&n, op, x, strcmp(op, "Add") == 0 || strcmp(op, "Sub") == 0 ? other : NULL, NULL);
    }
    check_bytes(&n, y, y_scale, t, in, op);
    mlo_tensor_clear(&in[0]);
    mlo_tensor_clear(&in[1]);
    mlo_model_free(n.model);
}

static void test_others__add_the_zero_point_behind_rounding(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"Identity",    "Add",  "Sub", "Mul", "GlobalAveragePool",
                                      "AveragePool", "Relu", "Abs", "Neg"};
    for (size_t i = 0; i < MLO_COUNT(ops); i++)
        for (size_t k = 0; k < MLO_COUNT(types); k++)
            check_other(ops[i], &types[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv__adds_the_zero_point_behind_rounding),
        cmocka_unit_test(test_depthwise__adds_the_zero_point_behind_rounding),
        cmocka_unit_test(test_products__add_the_zero_point_behind_rounding),
        cmocka_unit_test(test_others__add_the_zero_point_behind_rounding),
    };
    if (isa_case_is_elsewhere())
        return ISA_CASE_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
