/* Own float32 products against the reference engine: rows, columns, depths, borders, strides, groups,
 * residuals and clamps, edge values. */
#include "engines/cpu/fast/fast_impl.h"
#include "helpers.h"

#include "tests/isa_case.h"

struct shape {
    int64_t in, out, groups;
    int64_t size[2], kernel[2], stride[2], pads[4], dilation[2];
};

/* Runs on both engines, and checks that one step is of that kind. */
static void compare(const struct mlo_model *model, int64_t batch, const struct mlo_tensor *inputs,
                    const char *kind, const char *what)
{
    struct mlo_compile_options o = {.batch = batch, .threads = 1};
    struct mlo_tensor want = run_model("reference", model, &o, inputs, NULL);
    for (unsigned threads = 1; threads <= 4; threads++) {
        json_t *d = NULL, *node;
        size_t i;
        int found = 0;
        o.threads = threads;
        struct mlo_tensor got = run_model("cpu", model, &o, inputs, &d);
        assert_close(&got, &want, 2e-5f, what);
        json_array_foreach(json_object_get(d, "nodes"), i, node)
        {
            const char *impl = json_string_value(json_object_get(node, "impl"));
            found += strncmp(impl, kind, strlen(kind)) == 0;
        }
        if (found != 1)
            fail_msg("%s: %d steps are of kind %s", what, found, kind);
        json_decref(d);
        mlo_tensor_clear(&got);
    }
    mlo_tensor_clear(&want);
}

static struct mlo_value *conv(struct net *n, struct mlo_value *x, const struct shape *s)
{
    int64_t w[] = {s->out, s->in / s->groups, s->kernel[0], s->kernel[1]};
    struct mlo_node *node =
        net_node(n, "Conv", x, net_floats(n, 4, w, sqrtf(3.0f / (float)(w[1] * w[2] * w[3]))),
                 net_floats(n, 1, &s->out, 0.5f));
    assert_true(mlo_node_set_ints(node, "strides", s->stride, 2));
    assert_true(mlo_node_set_ints(node, "pads", s->pads, 4));
    assert_true(mlo_node_set_ints(node, "dilations", s->dilation, 2));
    assert_true(mlo_node_set_i(node, "group", s->groups));
    return node->outputs[0];
}

static void test_conv__geometry(void **state)
{
    MLO_UNUSED(state);
    static const struct shape shapes[] = {
        {3, 20, 1, {9, 11}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
        {3, 16, 1, {20, 53}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},  /* planes, as pictures are given */
        {3, 8, 1, {9, 40}, {3, 5}, {1, 1}, {0, 3, 2, 0}, {1, 1}},    /* … with a border on some sides */
        {3, 8, 1, {8, 33}, {1, 1}, {2, 3}, {1, 0, 0, 1}, {1, 1}},    /* … of which not all is read */
        {2, 24, 1, {6, 19}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* … two */
        {4, 24, 1, {6, 19}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* … four */
        {16, 32, 1, {7, 7}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* two lines a tile */
        {16, 33, 1, {7, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* an odd line left */
        {24, 96, 1, {6, 9}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},   /* one run of pixels */
        {40, 24, 1, {8, 8}, {1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}},   /* strided rows */
        {8, 144, 1, {15, 31}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}}, /* a split line */
        {5, 17, 1, {13, 12}, {5, 2}, {2, 1}, {2, 0, 1, 3}, {1, 1}},  /* uneven padding */
        {6, 40, 1, {14, 14}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}},  /* dilation */
        {6, 16, 1, {12, 10}, {3, 2}, {1, 1}, {0, 0, 0, 0}, {3, 1}},
        {32, 64, 2, {6, 6}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* groups */
        {48, 72, 3, {5, 5}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
        {30, 48, 3, {9, 9}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {2, 2}},
        {4, 1, 1, {5, 5}, {5, 5}, {1, 1}, {0, 0, 0, 0}, {1, 1}},     /* one output */
        {3, 8, 1, {3, 3}, {3, 3}, {3, 3}, {4, 4, 4, 4}, {1, 1}},     /* outputs of padding only */
        {64, 17, 1, {4, 400}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* more than a block of rows */
    };
    for (size_t i = 0; i < MLO_COUNT(shapes); i++)
        for (int64_t batch = 1; batch <= 3; batch += 2) {
            char what[64];
            snprintf(what, sizeof what, "conv %zu batch %lld", i, (long long)batch);
            struct net n = net_new((uint32_t)i + 1);
            int64_t dims[] = {-1, shapes[i].in, shapes[i].size[0], shapes[i].size[1]};
            net_finish(&n, conv(&n, net_input(&n, "x", 4, dims), &shapes[i]));
            dims[0] = batch;
            struct mlo_tensor x = random_tensor(4, dims, 7);
            compare(n.model, batch, &x, "tile", what);
            mlo_tensor_clear(&x);
            mlo_model_free(n.model);
        }
}

/* Blocks that are cut by the borders, several parts of the work, and what follows a convolution. */
static void test_winograd__geometry(void **state)
{
    MLO_UNUSED(state);
    static const struct shape shapes[] = {
        {64, 64, 1, {12, 12}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
        {64, 64, 1, {6, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* small blocks, which are less outside */
        {48, 80, 1, {13, 15}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* odd sizes, a rest of columns */
        {48, 48, 1, {17, 14}, {3, 3}, {1, 1}, {0, 0, 0, 0}, {1, 1}}, /* no border */
        {48, 64, 1, {12, 11}, {3, 3}, {1, 1}, {2, 0, 1, 3}, {1, 1}}, /* an uneven one */
        {48, 48, 1, {24, 25}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* several parts */
        {32, 32, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* four blocks */
        {96, 112, 1, {7, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},  /* few pixels, few weights */
    };
    for (size_t i = 0; i < MLO_COUNT(shapes); i++)
        for (int form = 0; form < 4; form++) {
            char what[64];
            snprintf(what, sizeof what, "winograd %zu form %d", i, form);
            struct net n = net_new((uint32_t)i + 1);
            int64_t dims[] = {2, shapes[i].in, shapes[i].size[0], shapes[i].size[1]};
            struct mlo_value *x = net_input(&n, "x", 4, dims), *y = conv(&n, x, &shapes[i]);
            if (form == 1 && i == 0)
                y = net_op(&n, "Add", y, x, NULL);
            if (form == 1 || form == 2)
                y = net_op(&n, "Relu", y, NULL, NULL);
            if (form == 3)
                y = net_op(&n, "Mul", y, net_op(&n, "Sigmoid", y, NULL, NULL), NULL);
            net_finish(&n, y);
            struct mlo_tensor in = random_tensor(4, dims, 7);
            const bool small = i == 1 || i == 6 || i == 7;
            compare(n.model, 0, &in, small ? "winograd 2x2" : "winograd 4x4", what);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

static void test_depthwise__geometry(void **state)
{
    MLO_UNUSED(state);
    static const struct shape shapes[] = {
        {32, 32, 32, {12, 13}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
        {40, 40, 40, {15, 14}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}}, /* a rest of channels */
        {17, 17, 17, {9, 9}, {5, 5}, {1, 1}, {2, 2, 2, 2}, {1, 1}},
        {48, 48, 48, {11, 16}, {5, 5}, {2, 2}, {2, 2, 2, 2}, {1, 1}},
        {8, 8, 8, {7, 7}, {5, 5}, {2, 2}, {1, 2, 2, 1}, {1, 1}},
        {24, 24, 24, {10, 9}, {7, 4}, {1, 3}, {3, 0, 2, 1}, {1, 1}},
        {16, 16, 16, {12, 12}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}},
        {33, 33, 33, {1, 30}, {1, 3}, {1, 1}, {0, 1, 0, 1}, {1, 1}},
        {6, 6, 6, {2, 2}, {3, 3}, {3, 3}, {4, 5, 4, 5}, {1, 1}}, /* outputs of padding only */
        {16, 16, 16, {3, 3}, {3, 3}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
    };
    for (size_t i = 0; i < MLO_COUNT(shapes); i++)
        for (int form = 0; form < 3; form++) {
            char what[64];
            snprintf(what, sizeof what, "depthwise %zu form %d", i, form);
            struct net n = net_new((uint32_t)i + 1);
            int64_t dims[] = {2, shapes[i].in, shapes[i].size[0], shapes[i].size[1]};
            struct mlo_value *x = net_input(&n, "x", 4, dims), *y = conv(&n, x, &shapes[i]);
            if (form == 1)
                y = net_op(&n, "Relu", y, NULL, NULL);
            if (form == 2)
                y = net_op(&n, "Mul", y, net_op(&n, "Sigmoid", y, NULL, NULL), NULL);
            net_finish(&n, y);
            struct mlo_tensor in = random_tensor(4, dims, 7);
            compare(n.model, 0, &in, "depthwise", what);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

static void test_depthwise__residual(void **state)
{
    MLO_UNUSED(state);
    static const struct shape s = {20, 20, 20, {9, 8}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}};
    struct net n = net_new(3);
    int64_t dims[] = {2, 20, 9, 8};
    struct mlo_value *x = net_input(&n, "x", 4, dims);
    net_finish(&n, net_op(&n, "Relu", net_op(&n, "Add", conv(&n, x, &s), x, NULL), NULL, NULL));
    struct mlo_tensor in = random_tensor(4, dims, 9);
    compare(n.model, 0, &in, "depthwise", "residual");
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_conv__one_and_three_dims(void **state)
{
    MLO_UNUSED(state);
    for (int spatial = 1; spatial <= 3; spatial += 2) {
        struct net n = net_new(4);
        int64_t dims[] = {2, 6, 9, 8, 7}, w[] = {20, 6, 3, 3, 3}, pads[] = {1, 1, 1, 1, 1, 1},
                strides[] = {2, 1, 1};
        struct mlo_node *c = net_node(&n, "Conv", net_input(&n, "x", 2 + spatial, dims),
                                      net_floats(&n, 2 + spatial, w, 0.2f), NULL);
        assert_true(mlo_node_set_ints(c, "pads", pads, 2 * (size_t)spatial));
        assert_true(mlo_node_set_ints(c, "strides", strides, (size_t)spatial));
        net_finish(&n, c->outputs[0]);
        struct mlo_tensor x = random_tensor(2 + spatial, dims, 7);
        compare(n.model, 0, &x, "tile", spatial == 1 ? "one dim" : "three dims");
        mlo_tensor_clear(&x);
        mlo_model_free(n.model);
    }
}

/* Every number of rows and remainder of columns that a kernel has. */
static void test_gemm__rows_and_columns(void **state)
{
    MLO_UNUSED(state);
    static const int64_t columns[] = {1, 5, 8, 15, 16, 17, 24, 31, 32, 33, 40, 47, 48, 70};
    for (int64_t rows = 1; rows <= 30; rows++)
        for (size_t c = 0; c < MLO_COUNT(columns); c++) {
            char what[64];
            int64_t depth = 1 + (rows * 7 + (int64_t)c * 5) % 40;
            snprintf(what, sizeof what, "gemm %lld x %lld x %lld", (long long)rows, (long long)columns[c],
                     (long long)depth);
            struct net n = net_new((uint32_t)rows);
            int64_t dims[] = {rows, depth};
            struct mlo_value *x = net_input(&n, "x", 2, dims);
            struct mlo_value *w = net_floats(&n, 2, (int64_t[]){depth, columns[c]}, 0.5f);
            struct mlo_value *y = net_op(&n, "MatMul", x, w, NULL);
            if (c % 2)
                y = net_op(&n, "Relu", y, NULL, NULL);
            net_finish(&n, y);
            struct mlo_tensor in = random_tensor(2, dims, 9);
            compare(n.model, 0, &in, "tile", what);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

static void test_chain__residual_and_clamp(void **state)
{
    MLO_UNUSED(state);
    static const struct shape s = {20, 20, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}};
    for (int form = 0; form < 6; form++) {
        char what[64];
        snprintf(what, sizeof what, "chain %d", form);
        struct net n = net_new(3);
        int64_t dims[] = {2, 20, 9, 8};
        struct mlo_value *x = net_input(&n, "x", 4, dims), *y = conv(&n, x, &s);
        if (form & 1)
            y = net_op(&n, "Add", y, x, NULL);
        if (form / 2 == 1)
            y = net_op(&n, "Relu", y, NULL, NULL);
        if (form / 2 == 2)
            y = net_op(&n, "Clip", y, net_scalar(&n, MLO_FLOAT32, -0.25), net_scalar(&n, MLO_FLOAT32, 0.5));
        net_finish(&n, y);
        struct mlo_tensor in = random_tensor(4, dims, 9);
        compare(n.model, 0, &in, "tile", what);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Activations that are functions of a row, behind a residual too. */
static void test_chain__activations(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSwish", "Swish"};
    static const struct shape s = {20, 20, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}};
    for (size_t op = 0; op < MLO_COUNT(ops); op++) {
        struct net n = net_new(3);
        int64_t dims[] = {2, 20, 9, 8};
        struct mlo_value *x = net_input(&n, "x", 4, dims), *y = conv(&n, x, &s);
        if (op % 2)
            y = net_op(&n, "Add", y, x, NULL);
        y = op == 5 ? net_op(&n, "Mul", y, net_op(&n, "Sigmoid", y, NULL, NULL), NULL)
                    : net_op(&n, ops[op], y, NULL, NULL);
        net_finish(&n, net_op(&n, "Relu", y, NULL, NULL));
        struct mlo_tensor in = random_tensor(4, dims, 9);
        compare(n.model, 0, &in, "tile", ops[op]);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* So deep that the sums are made in parts. */
static void test_gemm__parts_of_the_depth(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(8);
    int64_t dims[] = {61, 3100};
    struct mlo_value *y = net_op(&n, "MatMul", net_input(&n, "x", 2, dims),
                                 net_floats(&n, 2, (int64_t[]){3100, 41}, 0.02f), NULL);
    y = net_op(&n, "Add", y, net_floats(&n, 1, (int64_t[]){41}, 0.5f), NULL);
    net_finish(&n, net_op(&n, "Sigmoid", net_op(&n, "Relu", y, NULL, NULL), NULL, NULL));
    struct mlo_tensor in = random_tensor(2, dims, 9);
    compare(n.model, 0, &in, "tile", "a deep product");
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

/* Infinities and NaN pass where they should and nowhere else, through the clamp too. */
static void test_gemm__edge_values(void **state)
{
    MLO_UNUSED(state);
    static const float edges[] = {INFINITY, -INFINITY, NAN, 1e-41f, 3e38f, -3e38f, -0.0f};
    for (int relu = 0; relu < 2; relu++) {
        struct net n = net_new(5);
        int64_t dims[] = {29, 19};
        struct mlo_value *y = net_op(&n, "MatMul", net_input(&n, "x", 2, dims),
                                     net_floats(&n, 2, (int64_t[]){19, 37}, 0.5f), NULL);
        net_finish(&n, relu ? net_op(&n, "Relu", y, NULL, NULL) : y);
        struct mlo_tensor in = random_tensor(2, dims, 9);
        for (size_t i = 0; i < MLO_COUNT(edges); i++)
            ((float *)in.data)[(3 * i + 1) * 19 + i] = edges[i];
        struct mlo_compile_options o = {.threads = 1};
        struct mlo_tensor want = run_model("reference", n.model, &o, &in, NULL);
        struct mlo_tensor got = run_model("cpu", n.model, &o, &in, NULL);
        for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
            double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
            if (isnan(a) != isnan(b) || (!isnan(a) && a != b && !(fabs(a - b) <= 2e-5 * (1.0 + fabs(b)))))
                fail_msg("relu %d, element %zu: %g, the reference has %g", relu, i, a, b);
        }
        mlo_tensor_clear(&want);
        mlo_tensor_clear(&got);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* beta is of Gemm's own bias, not of what is added behind it. */
static void test_gemm__beta_without_a_bias(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(5);
    int64_t dims[] = {4, 6}, w[] = {6, 20};
    struct mlo_node *gemm =
        net_node(&n, "Gemm", net_input(&n, "x", 2, dims), net_floats(&n, 2, w, 0.5f), NULL);
    assert_true(mlo_node_set_f(gemm, "beta", 0.25f));
    net_finish(&n, net_op(&n, "Add", gemm->outputs[0], net_floats(&n, 1, &w[1], 1.0f), NULL));
    struct mlo_tensor in = random_tensor(2, dims, 3);
    compare(n.model, 0, &in, "tile", "beta");
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

#ifndef TEST_ISA
#define TEST_ISA "" /* the best */
#endif

/* How many threads the program of a convolution of so many channels and pixels has. */
static unsigned threads_of_conv(int64_t channels, int64_t size)
{
    struct net n = net_new(3);
    struct conv_spec s = {channels, channels, 3, 1, 1, 1, 1, size, true};
    int64_t dims[] = {1, channels, size, size};
    const struct mlo_engine *e;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    net_finish(&n, net_conv(&n, net_input(&n, "x", 4, dims), &s));
    MUST(mlo_engine_find("cpu", &e, err));
    MUST(e->compile(n.model, &(struct mlo_compile_options){.threads = 2}, &plan, err));
    MUST(e->load(plan, &program, err));
    unsigned threads = mlo_pool_threads(program->pool);
    e->unload(program);
    e->free_plan(plan);
    mlo_model_free(n.model);
    return threads;
}

static void test_threads__small_plans_are_the_callers_alone(void **state)
{
    MLO_UNUSED(state);
    need_isa(MLO_ISA_AVX2);
    mlo_cpu_splits_all = false;
    assert_int_equal(threads_of_conv(16, 16), 1);
    assert_int_equal(threads_of_conv(128, 56), 2);
    assert_int_equal(fast_sharing(4, 1000), 1);
    assert_int_equal(fast_sharing(4, 25000), 2);
    assert_int_equal(fast_sharing(4, 1000000), 4);
    assert_int_equal(fast_sharing(1, 1000000), 1);
    mlo_cpu_splits_all = true;
    assert_int_equal(fast_sharing(4, 1000), 4);
    assert_int_equal(threads_of_conv(16, 16), 2);
}

/* Weights so far apart that the size of x with its border overflows: 2^32 lines of 2^32 columns. */
static void test_tile__of_weights_far_apart_is_refused(void **state)
{
    MLO_UNUSED(state);
    const int64_t apart = ((int64_t)1 << 30) - 1;
    struct net n = net_new(1);
    struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){1, 1, 4, 4});
    struct mlo_node *conv = net_node(&n, "Conv", x, net_floats(&n, 4, (int64_t[]){1, 1, 5, 5}, 1), NULL);
    assert_true(mlo_node_set_ints(conv, "dilations", (int64_t[]){apart, apart}, 2));
    assert_true(mlo_node_set_s(conv, "auto_pad", "SAME_UPPER"));
    net_finish(&n, conv->outputs[0]);
    struct mlo_compile_options o = {.threads = 1};
    struct mlo_error problem = {0};
    struct mlo_plan *plan;
    assert_int_equal(mlo_engine_cpu.compile(n.model, &o, &plan, &problem), MLO_ENOMEM);
    mlo_model_free(n.model);
}

int main(void)
{
    if (TEST_ISA[0] && setenv("MLOPT_ISA", TEST_ISA, 1) != 0)
        return 1;
    if (TEST_ISA[0] && isa_case_is_elsewhere())
        return ISA_CASE_SKIP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv__geometry),
        cmocka_unit_test(test_depthwise__geometry),
        cmocka_unit_test(test_depthwise__residual),
        cmocka_unit_test(test_winograd__geometry),
        cmocka_unit_test(test_conv__one_and_three_dims),
        cmocka_unit_test(test_gemm__rows_and_columns),
        cmocka_unit_test(test_chain__residual_and_clamp),
        cmocka_unit_test(test_gemm__edge_values),
        cmocka_unit_test(test_chain__activations),
        cmocka_unit_test(test_gemm__parts_of_the_depth),
        cmocka_unit_test(test_gemm__beta_without_a_bias),
        cmocka_unit_test(test_threads__small_plans_are_the_callers_alone),
        cmocka_unit_test(test_tile__of_weights_far_apart_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
