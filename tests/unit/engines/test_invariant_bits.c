/* The kernels of the invariant numerics next to what they promise to equal: the op table's rows one element
 * at a time, the documented chain, and the same nodes without fusion. To the last bit, on every instruction
 * set. */
#include <fenv.h>

#include "engines/cpu/invariant/lanes_impl.h"
#include "invariant_helpers.h"

static void test_unary__has_the_bits_of_the_op_table(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"Sigmoid", "Tanh", "Erf", "Exp",  "Relu",        "Clip",
                                      "Neg",     "Sqrt", "Log", "Celu", "HardSigmoid", "Softplus"};
    static const int64_t sizes[] = {1, 3, 4, 7, 8, 15, 33, 67, 5000};
    for (size_t i = 0; i < MLO_COUNT(ops); i++)
        for (size_t s = 0; s < MLO_COUNT(sizes); s++) {
            struct net n = net_new(1);
            bool clip = strcmp(ops[i], "Clip") == 0;
            struct mlo_value *x = net_input(&n, "x", 1, &sizes[s]);
            net_finish(&n, net_op(&n, ops[i], x, clip ? net_scalar(&n, MLO_FLOAT32, -0.25) : NULL,
                                  clip ? net_scalar(&n, MLO_FLOAT32, 6) : NULL));
            check_bits(&n, "elementwise", ops[i]);
        }
}

/* Enough of them that the op table is asked about some, and evenly over the floats between two. */
static void test_unary__decides_the_last_bit_as_the_op_table(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *op;
        float low, high;
    } ranges[] = {
        {"Sigmoid", 0x1p-20f, 120}, {"Tanh", 0x1p-14f, 24}, {"Erf", 0x1p-14f, 7}, {"Exp", 0x1p-20f, 120}};
    const int64_t count = 60000;
    for (size_t r = 0; r < MLO_COUNT(ranges); r++) {
        struct net n = net_new(1);
        net_finish(&n, net_op(&n, ranges[r].op, net_input(&n, "x", 1, &count), NULL, NULL));
        struct mlo_tensor x = random_tensor(1, &count, 3);
        uint32_t low, high;
        memcpy(&low, &ranges[r].low, sizeof low);
        memcpy(&high, &ranges[r].high, sizeof high);
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits = low + (uint32_t)((uint64_t)(high - low) * (uint64_t)i / (uint64_t)count);
            bits |= i % 2 ? 0x80000000u : 0;
            memcpy((float *)x.data + i, &bits, sizeof bits);
        }
        struct mlo_compile_options o = {.threads = 1};
        struct mlo_tensor want = run_model("reference", n.model, &o, &x, NULL);
        for (int isa = MLO_ISA_AVX2; isa <= MLO_ISA_AVX512; isa++) {
            struct mlo_tensor got = invariant(n.model, isa, 1, &x, NULL);
            assert_bits(&got, &want, ranges[r].op, isa);
            mlo_tensor_clear(&got);
        }
        mlo_tensor_clear(&want);
        mlo_tensor_clear(&x);
        mlo_model_free(n.model);
    }
}

/* A function whose float is known, to tell which elements are asked about. */
static int asked;
static double ask(double x, double a, double b)
{
    MLO_UNUSED(x), MLO_UNUSED(a), MLO_UNUSED(b);
    asked++;
    return 42;
}

/* e^x is a middle of two floats to within 2^-40 there, so that neither is certain. */
static void test_exp__asks_where_the_float_is_in_doubt(void **state)
{
    MLO_UNUSED(state);
    const struct mlo_scalar scalar = {.fn = ask};
    for (int isa = MLO_ISA_AVX2; isa <= MLO_ISA_AVX512 && isa <= (int)mlo_isa_current(); isa++) {
        const struct inv_lanes *lanes = inv_lanes_for((enum mlo_isa)isa);
        float x[64], y[64];
        int doubtful = 0;
        asked = 0;
        for (uint32_t bits = 0x3f000000; doubtful < 8; bits++) { /* 1/2 and on */
            float at;
            memcpy(&at, &bits, sizeof at);
            double e = mlo_math_exp((double)at);
            if ((float)(e * (1 - 0x1p-41)) == (float)(e * (1 + 0x1p-41)))
                continue;
            for (int i = 0; i < 64; i++)
                x[i] = i == doubtful * 7 ? at : 0;
            lanes->exp(&scalar, 64, x, y);
            assert_true(y[doubtful * 7] == 42);
            doubtful++;
        }
        assert_int_equal(asked, 8);
        x[0] = NAN;
        lanes->sigmoid(&scalar, 64, x, y);
        assert_true(y[0] == 42);
    }
}

/* Sigmoid, swish, Tanh, Erf and e^x of floats that are `step` apart, against the op table one by one. With
 * MLOPT_FLOATS=all that is each of them, in some minutes. */
static void test_unary__has_the_bits_of_the_op_table_everywhere(void **state)
{
    MLO_UNUSED(state);
    enum { SOME = 4096 };
    const char *floats = getenv("MLOPT_FLOATS");
    const uint64_t step = floats && strcmp(floats, "all") == 0 ? 1 : 65521;
    static const char *const ops[] = {"Sigmoid", "Tanh", "Erf", "Exp"};
    static float x[SOME], y[SOME], swish[SOME];
    for (size_t op = 0; op < MLO_COUNT(ops); op++) {
        struct net n = net_new(1);
        struct mlo_value *out = net_op(&n, ops[op], net_input(&n, "x", 1, (int64_t[]){1}), NULL, NULL);
        struct mlo_scalar exact;
        net_finish(&n, out);
        assert_true(mlo_node_scalar(out->producer, &exact));
        for (uint64_t at = 0; at < UINT64_C(1) << 32; at += SOME * step) {
            for (uint64_t i = 0; i < SOME; i++) {
                uint32_t bits = (uint32_t)(at + i * step);
                bits |= bits << 1 > 0xff000000u ? 0x400000u : 0; /* as in fill */
                memcpy(&x[i], &bits, sizeof bits);
            }
            for (int isa = MLO_ISA_AVX2; isa <= MLO_ISA_AVX512 && isa <= (int)mlo_isa_current(); isa++) {
                const struct inv_lanes *lanes = inv_lanes_for((enum mlo_isa)isa);
                inv_unary_fn *const many[] = {lanes->sigmoid, lanes->tanh, lanes->erf, lanes->exp};
                many[op](&exact, SOME, x, y);
                if (op == 0)
                    lanes->swish(&exact, SOME, x, swish);
                for (int i = 0; i < SOME; i++) {
                    const float want = (float)exact.fn((double)x[i], exact.a, exact.b), times = x[i] * want;
                    if (memcmp(&y[i], &want, sizeof want) != 0 ||
                        (op == 0 && memcmp(&swish[i], &times, sizeof times) != 0))
                        fail_msg("%s of %a on %s: %a (swish %a), not %a", ops[op], (double)x[i],
                                 mlo_isa_name((enum mlo_isa)isa), (double)y[i], (double)swish[i],
                                 (double)want);
                }
            }
        }
        mlo_model_free(n.model);
    }
}

/* Programs that the library runs in may round otherwise: the bits are theirs then, the memory is not. */
static void test_unary__writes_no_more_in_any_rounding_mode(void **state)
{
    MLO_UNUSED(state);
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const struct mlo_scalar scalar = {.fn = ask};
    for (int isa = MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512 && isa <= (int)mlo_isa_current(); isa++) {
        const struct inv_lanes *lanes = inv_lanes_for((enum mlo_isa)isa);
        inv_unary_fn *const many[] = {lanes->sigmoid, lanes->swish, lanes->tanh, lanes->erf, lanes->exp};
        for (size_t f = 0; f < MLO_COUNT(many); f++)
            for (size_t mode = 0; mode < MLO_COUNT(modes); mode++)
                for (size_t count = 1; count <= 20; count++) {
                    float x[20], y[64];
                    for (int i = 0; i < 64; i++)
                        y[i] = 7, x[i % 20] = 1;
                    fesetround(modes[mode]);
                    many[f](&scalar, count, x, y);
                    fesetround(FE_TONEAREST);
                    for (size_t i = count; i < 64; i++)
                        assert_true(y[i] == 7);
                }
    }
}

static void test_binary__has_the_bits_of_the_op_table(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"Add", "Sub", "Mul", "Div"};
    static const struct {
        int ranks[2];
        int64_t dims[2][4];
    } shapes[] = {
        {{1, 1}, {{7}, {7}}},
        {{0, 0}, {{0}, {0}}},
        {{1, 0}, {{37}, {0}}},
        {{3, 1}, {{3, 5, 17}, {17}}},
        {{3, 2}, {{3, 5, 17}, {5, 1}}},
        {{3, 3}, {{3, 5, 17}, {3, 1, 17}}},
        {{3, 1}, {{3, 5, 17}, {1}}},
        {{4, 3}, {{2, 3, 4, 9}, {3, 1, 1}}},
        {{4, 4}, {{2, 3, 4, 9}, {2, 3, 1, 1}}},
        {{3, 2}, {{2, 1, 4}, {3, 1}}},
        {{2, 2}, {{1, 19}, {5, 1}}},
        {{4, 4}, {{2, 3, 1, 5}, {1, 1, 4, 1}}},
        {{2, 1}, {{40, 1000}, {1000}}}, /* parts begin within a row */
        {{3, 3}, {{40, 3, 333}, {40, 3, 1}}},
    };
    for (size_t i = 0; i < MLO_COUNT(ops); i++)
        for (size_t s = 0; s < MLO_COUNT(shapes); s++)
            for (int turned = 0; turned < 2; turned++) {
                struct net n = net_new(1);
                struct mlo_value *a = net_input(&n, "a", shapes[s].ranks[0], shapes[s].dims[0]);
                struct mlo_value *b = net_input(&n, "b", shapes[s].ranks[1], shapes[s].dims[1]);
                net_finish(&n, net_op(&n, ops[i], turned ? b : a, turned ? a : b, NULL));
                check_bits(&n, "elementwise", ops[i]);
            }
}

static void test_lines__have_the_bits_of_the_op_table(void **state)
{
    MLO_UNUSED(state);
    static const int64_t shapes[][2] = {{1, 1},   {1, 5},  {7, 8},   {8, 9},
                                        {17, 16}, {3, 33}, {9, 100}, {2, 5000}};
    for (size_t s = 0; s < MLO_COUNT(shapes); s++) {
        struct net n = net_new(2);
        net_finish(&n, net_op(&n, "Softmax", net_input(&n, "x", 2, shapes[s]), NULL, NULL));
        check_bits(&n, "lines", "Softmax");
        n = net_of_opset(11, 2);
        int64_t cut[3] = {shapes[s][0], shapes[s][1], 3};
        net_finish(&n, net_op(&n, "Softmax", net_input(&n, "x", 3, cut), NULL, NULL));
        check_bits(&n, "lines", "Softmax of matrices");
        for (int bias = 0; bias < 2; bias++) {
            n = net_new(2);
            struct mlo_value *scale = net_floats(&n, 1, &shapes[s][1], 2);
            struct mlo_value *x = net_input(&n, "x", 2, shapes[s]);
            net_finish(&n, net_op(&n, "LayerNormalization", x, scale,
                                  bias ? net_floats(&n, 1, &shapes[s][1], 1) : NULL));
            check_bits(&n, "lines", "LayerNormalization");
        }
        n = net_new(2);
        int64_t planes[4] = {1, shapes[s][0], 1, shapes[s][1]};
        net_finish(&n, net_op(&n, "GlobalAveragePool", net_input(&n, "x", 4, planes), NULL, NULL));
        check_bits(&n, "lines", "GlobalAveragePool");
    }
    struct net n = net_new(2);
    struct mlo_node *middle =
        net_node(&n, "Softmax", net_input(&n, "x", 3, (int64_t[]){3, 4, 5}), NULL, NULL);
    assert_true(mlo_node_set_i(middle, "axis", 1));
    net_finish(&n, middle->outputs[0]);
    check_bits(&n, "reference", "Softmax of columns");
}

/* Masked places have next to nothing, and a line without any other NaN: the op table's way. */
static void test_softmax__of_masked_lines(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(2);
    int64_t dims[] = {6, 40};
    net_finish(&n, net_op(&n, "Softmax", net_input(&n, "x", 2, dims), NULL, NULL));
    struct mlo_tensor x = random_tensor(2, dims, 4);
    float *v = x.data;
    for (int i = 0; i < 40; i++) {
        v[i] = i < 20 ? v[i] : -10000 + v[i];
        v[40 + i] = i % 3 ? -INFINITY : v[40 + i];
        v[80 + i] = 8 * v[80 + i] - (i > 30 ? 745 : 0);
        v[120 + i] = i ? -3e38f : 3e38f;
    }
    for (int all = 0; all < 2; all++) {
        struct mlo_compile_options o = {.threads = 1};
        struct mlo_tensor want = run_model("reference", n.model, &o, &x, NULL);
        for (int isa = MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512; isa++) {
            struct mlo_tensor got = invariant(n.model, isa, 2, &x, NULL);
            assert_bits(&got, &want, "masked", isa);
            mlo_tensor_clear(&got);
        }
        mlo_tensor_clear(&want);
        for (int i = 0; i < 40; i++)
            v[160 + i] = -INFINITY;
    }
    mlo_tensor_clear(&x);
    mlo_model_free(n.model);
}

static void test_moves__have_the_bits_of_the_op_table(void **state)
{
    MLO_UNUSED(state);
    static const int64_t perms[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {0, 2, 3, 1}, {0, 3, 1, 2},
                                       {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 0, 1, 2}, {1, 2, 3, 0}};
    static const int64_t dims[][4] = {{2, 3, 5, 7}, {1, 20, 1, 33}, {3, 1, 17, 16}, {1, 1, 1, 1}};
    for (size_t p = 0; p < MLO_COUNT(perms); p++)
        for (size_t s = 0; s < MLO_COUNT(dims); s++) {
            struct net n = net_new(2);
            struct mlo_node *t = net_node(&n, "Transpose", net_input(&n, "x", 4, dims[s]), NULL, NULL);
            assert_true(mlo_node_set_ints(t, "perm", perms[p], 4));
            struct mlo_value *flat = net_op(&n, "Flatten", t->outputs[0], NULL, NULL);
            net_output(&n, t->outputs[0]); /* and what has the same memory */
            net_finish(&n, net_op(&n, "Identity", flat, NULL, NULL));
            check_bits(&n, "transpose", "Transpose");
        }
    struct net n = net_new(2);
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){4, 6});
    x = net_op(&n, "Reshape", x, net_ints(&n, 3, (int64_t[]){3, 2, 4}), NULL); /* of an input */
    net_finish(&n, x);
    check_bits(&n, NULL, "Reshape");
}

/* A shape that is known at run only need not be the one that the file states. */
static void test_reshape__of_a_fed_shape_is_checked(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(2);
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){3, 4});
    struct mlo_value *shape = net_input_of(&n, MLO_INT64, "shape", 1, (int64_t[]){2});
    struct mlo_value *y = net_op(&n, "Reshape", x, shape, NULL);
    y->type = net_type(MLO_FLOAT32, 2, (int64_t[]){6, 2});
    net_finish(&n, y);
    int64_t fed[2] = {6, 2};
    struct mlo_tensor in[2] = {random_tensor(2, (int64_t[]){3, 4}, 3),
                               {.dtype = MLO_INT64, .rank = 1, .dims = {2}, .data = fed, .size_bytes = 16}};
    struct mlo_tensor got = invariant(n.model, MLO_ISA_AVX2, 1, in, NULL), out = {0};
    assert_memory_equal(got.data, in[0].data, in[0].size_bytes);
    fed[0] = 4, fed[1] = 3;
    for (int fast = 0; fast < 2; fast++) {
        struct mlo_compile_options o = {.numerics = fast ? MLO_NUMERICS_FAST : MLO_NUMERICS_INVARIANT};
        struct mlo_error problem = {0};
        struct mlo_plan *plan;
        struct mlo_program *program;
        MUST(mlo_engine_cpu.compile(n.model, &o, &plan, err));
        MUST(mlo_engine_cpu.load(plan, &program, err));
        assert_int_equal(mlo_engine_cpu.run(program, in, &out, &problem), MLO_EFORMAT);
        mlo_engine_cpu.unload(program);
        mlo_engine_cpu.free_plan(plan);
    }
    mlo_tensor_clear(&in[0]);
    mlo_tensor_clear(&got);
    mlo_model_free(n.model);
}

static const struct conv_spec convs[] = {
    {3, 8, 3, 1, 1, 1, 1, 9, true},        {70, 9, 3, 1, 1, 1, 1, 6, true},
    {8, 8, 1, 1, 0, 1, 1, 7, false},       {16, 24, 3, 2, 1, 1, 1, 11, true},
    {3, 5, 5, 1, 2, 1, 1, 30, true},       {8, 12, 3, 1, 2, 2, 1, 12, true},
    {16, 16, 3, 1, 1, 1, 4, 8, true},      {12, 12, 3, 1, 1, 1, 12, 9, true},
    {10, 20, 3, 2, 1, 1, 10, 9, true},     {4, 70, 3, 1, 1, 1, 1, 7, true},
    {9, 65, 1, 2, 0, 1, 1, 15, true},      {6, 6, 5, 1, 2, 1, 6, 14, false},
    {6, 6, 5, 2, 2, 1, 6, 28, true},       {4, 4, 3, 1, 6, 6, 4, 8, true},
    {4, 8, 3, 1, 6, 6, 1, 8, true},        {6, 12, 3, 3, 1, 1, 6, 20, true},
    {12, 6, 3, 1, 0, 1, 3, 8, false},      {5, 1, 3, 1, 0, 1, 1, 60, true},
    {3, 7, 7, 2, 3, 1, 1, 32, true},       {300, 40, 1, 1, 0, 1, 1, 5, true},
    {8, 16, 3, 2, 0, 3, 8, 17, true},      {2, 3, 2, 3, 0, 2, 1, 20, true},
    {130, 66, 3, 1, 1, 1, 1, 5, false},    {8, 8, 3, 1, 1, 1, 8, 1, true},
    {4, 8, 3, 1 << 30, 1, 1, 1, 20, true}, {6, 6, 3, 1 << 20, 0, 2, 6, 5, true},
    {5, 70, 3, 1, 1, 1, 1, 14, true},      {4, 9, 5, 1, 2, 1, 1, 14, true},
    {3, 4, 3, 1, 2, 2, 1, 13, true},       {2, 5, 3, 1, 1, 1, 1, 150, true},
    {3, 3, 3, 1, 1, 1, 3, 140, true},      {6, 20, 3, 1, 3, 1, 1, 7, true},
    {2, 8, 1, 2, 0, 1, 1, 28, true},       {3, 7, 2, 1, 0, 1, 1, 8, false},
    {200, 96, 3, 1, 1, 1, 1, 7, true},     {3, 16, 3, 2, 1, 1, 1, 28, true},
};

/* acc = bias; acc = fma(w, x, acc) over channel, row, column of the kernel, zeros in the border. */
static void plain_conv(const struct conv_spec *s, int64_t batch, int64_t out, const float *x, const float *w,
                       const float *bias, float *y)
{
    int64_t icg = s->ic / s->groups, ocg = s->oc / s->groups;
    for (int64_t n = 0; n < batch; n++)
        for (int64_t o = 0; o < s->oc; o++)
            for (int64_t i = 0; i < out * out; i++) {
                float acc = bias ? bias[o] : 0;
                for (int64_t k = 0; k < icg * s->kernel * s->kernel; k++) {
                    int64_t c = k / (s->kernel * s->kernel) + o / ocg * icg;
                    int64_t h = i / out * s->stride - s->pad + k / s->kernel % s->kernel * s->dilation;
                    int64_t v = i % out * s->stride - s->pad + k % s->kernel * s->dilation;
                    bool inside = h >= 0 && h < s->size && v >= 0 && v < s->size;
                    float at = inside ? x[((n * s->ic + c) * s->size + h) * s->size + v] : 0;
                    acc = fmaf(w[o * icg * s->kernel * s->kernel + k], at, acc);
                }
                *y++ = acc;
            }
}

static void test_conv__is_the_chain_in_all_its_forms(void **state)
{
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(convs); i++)
        for (int64_t batch = 1; batch <= 3; batch += 2) {
            const struct conv_spec *s = &convs[i];
            struct net n = net_new((uint32_t)i + 5);
            int64_t dims[] = {batch, s->ic, s->size, s->size};
            struct mlo_value *y = net_conv(&n, net_input(&n, "x", 4, dims), s);
            net_finish(&n, y);
            const struct mlo_value *const *in = (const struct mlo_value *const *)y->producer->inputs;
            struct mlo_tensor x = random_tensor(4, dims, 11), want = {0};
            int64_t to[MLO_MAX_RANK];
            char what[32];
            snprintf(what, sizeof what, "conv %zu, batch %d", i, (int)batch);
            assert_true(mlo_type_static(&y->type, to));
            MUST(mlo_tensor_init(&want, MLO_FLOAT32, 4, to, err));
            plain_conv(s, batch, to[2], x.data, in[1]->constant->data, s->bias ? in[2]->constant->data : NULL,
                       want.data);
            assert_everywhere(n.model, &x, &want, what);
            mlo_tensor_clear(&want);
            mlo_tensor_clear(&x);
            mlo_model_free(n.model);
        }
}

enum tail { RELU, CLIP, SIGMOID, SWISH, TURNED_SWISH, TAILS };

/* Conv, BatchNormalization, Add and a function; every value an output, or only the last. *nodes: how many
 * nodes were merged into others. */
static struct mlo_tensor run_tail(const struct conv_spec *s, enum tail tail, int parts, bool apart, int isa,
                                  int *merged)
{
    struct net n = net_new(77);
    int64_t dims[] = {2, s->ic, s->size, s->size}, channels = s->oc;
    struct mlo_value *in = net_input(&n, "x", 4, dims), *chain[8];
    int count = 0;
    struct mlo_value *y = chain[count++] = net_conv(&n, in, s);
    MUST(mlo_graph_infer(n.graph, err));
    int64_t to[MLO_MAX_RANK];
    assert_true(mlo_type_static(&y->type, to));
    if (parts & 1) {
        struct mlo_value *operands[] = {
            y, net_floats(&n, 1, &channels, 3.0f), net_floats(&n, 1, &channels, 0.5f),
            net_floats(&n, 1, &channels, 0.7f), net_numbers(&n, MLO_FLOAT32, 1, &channels, 1e-6, 2.0)};
        y = chain[count++] = net_node_of(&n, "", "BatchNormalization", operands, 5)->outputs[0];
    }
    if (parts & 2) {
        struct mlo_value *other = net_floats(&n, 4, to, 1);
        y = chain[count++] = net_op(&n, "Add", parts & 4 ? other : y, parts & 4 ? y : other, NULL);
    }
    if (tail == RELU)
        y = net_op(&n, "Relu", y, NULL, NULL);
    if (tail == CLIP)
        y = net_op(&n, "Clip", y, net_scalar(&n, MLO_FLOAT32, 0), net_scalar(&n, MLO_FLOAT32, 0.75));
    if (tail >= SIGMOID)
        chain[count++] = net_op(&n, "Sigmoid", y, NULL, NULL);
    if (tail == SIGMOID)
        y = chain[--count];
    if (tail >= SWISH)
        y = net_op(&n, "Mul", tail == SWISH ? y : chain[count - 1], tail == SWISH ? chain[count - 1] : y,
                   NULL);
    net_output(&n, y);
    const char *names[8];
    for (int i = 0; i < count; i++)
        names[i] = chain[i]->name;
    MUST(mlo_graph_infer(n.graph, err));
    struct mlo_tensor x = random_tensor(4, dims, 19);
    ((float *)x.data)[1] = NAN;
    ((float *)x.data)[4] = -INFINITY;
    ((float *)x.data)[dims[1] * dims[2] * dims[3] - 1] = 1e-41f;
    struct mlo_compile_options o = {.threads = 2,
                                    .numerics = MLO_NUMERICS_INVARIANT,
                                    .observe = names,
                                    .observe_count = apart ? (size_t)count : 0};
    json_t *d = NULL, *node;
    size_t i;
    mlo_isa_override(isa);
    struct mlo_tensor out = run_model("cpu", n.model, &o, &x, &d);
    mlo_isa_override(-1);
    *merged = 0;
    json_array_foreach(json_object_get(d, "nodes"), i, node) *merged +=
        (int)json_array_size(json_object_get(node, "fused"));
    json_decref(d);
    mlo_tensor_clear(&x);
    mlo_model_free(n.model);
    return out;
}

static void test_conv__with_what_follows_has_the_bits_of_the_single_nodes(void **state)
{
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(convs); i++)
        for (int tail = 0; tail < TAILS; tail++)
            for (int parts = 0; parts < 8; parts++) {
                if ((parts & 6) == 4 || (tail + parts + (int)i) % 4)
                    continue;
                int merged;
                bool planes = convs[i].groups > 1 && convs[i].oc / convs[i].groups < 4;
                int nodes = (parts & 1) + (parts >> 1 & 1) + (tail >= SWISH ? 2 : 1);
                char what[48];
                snprintf(what, sizeof what, "conv %zu, tail %d, parts %d", i, tail, parts);
                struct mlo_tensor want =
                    run_tail(&convs[i], (enum tail)tail, parts, true, MLO_ISA_AVX2, &merged);
                assert_int_equal(merged, 0);
                for (int isa = i % 4 ? MLO_ISA_AVX2 : MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512; isa++) {
                    struct mlo_tensor got = run_tail(&convs[i], (enum tail)tail, parts, false, isa, &merged);
                    assert_bits(&got, &want, what, isa);
                    assert_int_equal(merged, planes && parts & 2 ? parts & 1 : nodes);
                    mlo_tensor_clear(&got);
                }
                mlo_tensor_clear(&want);
            }
}

/* A product with a number for each channel, computed while a pointwise convolution packs its columns. */
static void test_scale__within_a_convolution_has_the_bits_of_the_single_nodes(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[][4] = {
        {1, 5, 7, 3}, {3, 8, 2, 2}, {2, 130, 1, 40}, {4, 3, 1, 1}, {2, 9, 11, 13}};
    for (size_t s = 0; s < MLO_COUNT(sizes); s++)
        for (int kind = 0; kind < NUMBERS - 1; kind++) {
            struct net n = net_new(6);
            const int64_t *dims = sizes[s];
            struct mlo_value *x = net_input(&n, "x", 4, dims);
            struct mlo_value *g = net_input(&n, "g", 4, (int64_t[]){dims[0], dims[1], 1, 1});
            struct mlo_value *product = net_op(&n, "Mul", x, g, NULL);
            struct mlo_value *w = net_floats(&n, 4, (int64_t[]){11, dims[1], 1, 1}, 1);
            net_finish(&n, net_op(&n, "Conv", product, w, NULL));
            struct mlo_tensor in[2] = {random_tensor(4, dims, 1),
                                       random_tensor(4, (int64_t[]){dims[0], dims[1], 1, 1}, 2)};
            for (int i = 0; i < 2 && kind < 4; i++)
                fill(in[i].data, mlo_tensor_count(&in[i]), kind, (uint32_t)kind + 5);
            ((float *)in[0].data)[1] = NAN;
            ((float *)in[1].data)[2] = kind == 4 ? -NAN : INFINITY;
            const char *name = product->name;
            for (int isa = MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512; isa++) {
                struct mlo_compile_options o = {
                    .numerics = MLO_NUMERICS_INVARIANT, .observe = &name, .observe_count = 1};
                json_t *d = NULL;
                mlo_isa_override(isa);
                struct mlo_tensor want = run_model("cpu", n.model, &o, in, NULL);
                struct mlo_tensor got = invariant(n.model, isa, 2, in, &d);
                assert_int_equal(json_array_size(json_object_get(d, "nodes")), 1);
                assert_bits(&got, &want, "scaled", isa);
                json_decref(d);
                mlo_tensor_clear(&want);
                mlo_tensor_clear(&got);
            }
            mlo_tensor_clear(&in[0]);
            mlo_tensor_clear(&in[1]);
            mlo_model_free(n.model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary__has_the_bits_of_the_op_table),
        cmocka_unit_test(test_unary__decides_the_last_bit_as_the_op_table),
        cmocka_unit_test(test_exp__asks_where_the_float_is_in_doubt),
        cmocka_unit_test(test_unary__has_the_bits_of_the_op_table_everywhere),
        cmocka_unit_test(test_unary__writes_no_more_in_any_rounding_mode),
        cmocka_unit_test(test_binary__has_the_bits_of_the_op_table),
        cmocka_unit_test(test_lines__have_the_bits_of_the_op_table),
        cmocka_unit_test(test_softmax__of_masked_lines),
        cmocka_unit_test(test_moves__have_the_bits_of_the_op_table),
        cmocka_unit_test(test_reshape__of_a_fed_shape_is_checked),
        cmocka_unit_test(test_conv__is_the_chain_in_all_its_forms),
        cmocka_unit_test(test_conv__with_what_follows_has_the_bits_of_the_single_nodes),
        cmocka_unit_test(test_scale__within_a_convolution_has_the_bits_of_the_single_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
