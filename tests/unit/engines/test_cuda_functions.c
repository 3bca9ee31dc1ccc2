/* What chains make of one element, against the reference kernels of graph/: functions within a few ulp,
 * arithmetic, rounding and casts exactly, with all the values at the edges. */
#include "cuda_helpers.h"
#include "engines/cuda/kernels/kernels_impl.h"
#include "helpers.h"

static const float edges[] = {0.0f,       -0.0f,         1.0f,         -1.0f,      0.5f,        1.5f,
                              2.5f,       -2.5f,         0x1p-149f,    -0x1p-140f, 0x1p-126f,   1e-20f,
                              3.0f,       88.0f,         -88.0f,       127.5f,     -128.5f,     255.5f,
                              65504.f,    65520.f,       -65536.f,     1e30f,      -1e30f,      FLT_MAX,
                              -FLT_MAX,   INFINITY,      -INFINITY,    NAN,        0.99999994f, 8388607.5f,
                              16777217.f, -2147483648.f, 2147483520.f, 5e18f,      1e19f,       -1e19f};
enum { COUNT = 512 };

/* The edges, then random ones of all magnitudes up to `most`; `least`: of all. */
static void inputs(float *x, uint32_t seed, float least, float most)
{
    for (int i = 0; i < COUNT; i++) {
        float v =
            i < (int)MLO_COUNT(edges) ? edges[i] : unit_random(&seed) * powf(2, (float)below(&seed, 40) - 28);
        x[i] = v < least || v > most ? unit_random(&seed) * (i % 2 ? 1.0f : 6.0f) : v; /* NaN stays */
        x[i] = x[i] < least ? -x[i] : x[i];
    }
}

/* Distance in units in the last place of float32, of values that may be denormal. */
static double ulps(float got, double want)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0 : 1e30;
    if ((double)got == want || (float)want == got)
        return 0;
    int exponent;
    frexp(want, &exponent);
    return isinf(got) || isinf(want) ? (fabs(want) > (double)FLT_MAX ? (isinf(got) ? 0 : 1) : 1e30)
                                     : fabs((double)got - want) / ldexp(1, MLO_MAX(exponent - 24, -149));
}

struct function {
    enum cuda_math math;
    const char *op;
    const char *a_name, *b_name;
    float a, b;
    double ulps, absolute; /* one of them must hold */
    float least, most;     /* where it is defined, or does not overflow in the middle */
};
#define ALL -INFINITY, INFINITY
static const struct function functions[] = {
    {CUDA_MATH_ABS, "Abs", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_NEG, "Neg", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_EXP, "Exp", NULL, NULL, 0, 0, 2, 0, ALL},
    {CUDA_MATH_LOG, "Log", NULL, NULL, 0, 0, 2, 0, ALL},
    {CUDA_MATH_SQRT, "Sqrt", NULL, NULL, 0, 0, 0.5, 0, ALL},
    {CUDA_MATH_RECIPROCAL, "Reciprocal", NULL, NULL, 0, 0, 0.5, 0, ALL},
    {CUDA_MATH_ERF, "Erf", NULL, NULL, 0, 0, 2, 0, ALL},
    {CUDA_MATH_TANH, "Tanh", NULL, NULL, 0, 0, 3, 0, ALL},
    {CUDA_MATH_SIGMOID, "Sigmoid", NULL, NULL, 0, 0, 4, 0x1p-126, ALL},
    {CUDA_MATH_RELU, "Relu", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_LEAKY_RELU, "LeakyRelu", "alpha", NULL, 0.1f, 0, 0.5, 0, ALL},
    {CUDA_MATH_ELU, "Elu", "alpha", NULL, 1.5f, 0, 3, 0, ALL},
    {CUDA_MATH_HARD_SIGMOID, "HardSigmoid", "alpha", "beta", 0.2f, 0.5f, 2, 1.2e-7, ALL},
    {CUDA_MATH_HARD_SWISH, "HardSwish", NULL, NULL, 0, 0, 4, 5e-7, ALL},
    {CUDA_MATH_GELU, "Gelu", NULL, NULL, 0, 0, 8, 1e-6, -1e30f, INFINITY},
    {CUDA_MATH_SOFTPLUS, "Softplus", NULL, NULL, 0, 0, 3, 1e-7, ALL},
    {CUDA_MATH_FLOOR, "Floor", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_CEIL, "Ceil", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_ROUND, "Round", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_SIN, "Sin", NULL, NULL, 0, 0, 2, 1e-7, -1e4f, 1e4f},
    {CUDA_MATH_COS, "Cos", NULL, NULL, 0, 0, 2, 1e-7, -1e4f, 1e4f},
    {CUDA_MATH_TAN, "Tan", NULL, NULL, 0, 0, 4, 1e-7, -1e4f, 1e4f},
    {CUDA_MATH_SIGN, "Sign", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_SOFTSIGN, "Softsign", NULL, NULL, 0, 0, 2, 0, ALL},
    {CUDA_MATH_SELU, "Selu", "alpha", "gamma", 1.67326f, 1.0507f, 4, 0, ALL},
    {CUDA_MATH_CELU, "Celu", "alpha", NULL, 2.0f, 0, 4, 0, ALL},
    {CUDA_MATH_THRESHOLDED_RELU, "ThresholdedRelu", "alpha", NULL, 0.75f, 0, 0, 0, ALL},
    {CUDA_MATH_MISH, "Mish", NULL, NULL, 0, 0, 8, 2e-7, -80, 1e30f},
    {CUDA_MATH_ISNAN, "IsNaN", NULL, NULL, 0, 0, 0, 0, ALL},
    {CUDA_MATH_ISINF, "IsInf", NULL, NULL, 0, 0, 0, 0, ALL},
};

/* A chain of one row of COUNT elements. */
static struct cuda_chain line(void)
{
    return (struct cuda_chain){.rank = 1, .dims = {COUNT}};
}
static int load(struct cuda_chain *c, enum mlo_dtype dtype, bool exactly)
{
    c->operands[c->operand_count].dtype = dtype;
    c->operands[c->operand_count].strides[0] = 1;
    c->code[c->count] = (struct cuda_chain_instruction){.op = exactly ? CUDA_OP_LOAD_INTEGER : CUDA_OP_LOAD,
                                                        .a = c->operand_count++};
    return c->count++;
}
static void store(struct cuda_chain *c, enum mlo_dtype dtype, int reg)
{
    c->results[c->result_count].dtype = dtype;
    c->results[c->result_count].strides[0] = 1;
    c->results[c->result_count++].reg = reg;
}

static void run_chain(const struct cuda_chain *c, struct mlo_tensor *const *tensors)
{
    struct mlo_error err = {0};
    struct cuda_source source;
    void *parameters[16];
    size_t sizes[16];
    int count = c->operand_count + c->result_count;
    assert_ok(cuda_chain_source(c, &source, &err));
    for (int i = 0; i < count; i++) {
        parameters[i] = tensors[i]->data;
        sizes[i] = tensors[i]->size_bytes;
    }
    run_source(&source, parameters, sizes, count, c->result_count);
    cuda_source_clear(&source);
}

static struct mlo_tensor tensor_of(enum mlo_dtype dtype)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, 1, (int64_t[]){COUNT}, err));
    return t;
}

/* Of one node with inputs of such types. */
static struct mlo_tensor reference(const char *op, int64_t opset, const struct function *f,
                                   const struct mlo_tensor *in, int count, enum mlo_dtype cast_to)
{
    struct net n = net_of_opset(opset, 1);
    struct mlo_value *v[2] = {NULL};
    struct mlo_tensor out = {0};
    for (int i = 0; i < count; i++)
        v[i] = net_input_of(&n, in[i].dtype, i ? "b" : "a", 1, in[i].dims);
    struct mlo_node *node = net_node(&n, op, v[0], v[1], NULL);
    if (f && f->a_name)
        assert_true(mlo_node_set_f(node, f->a_name, f->a));
    if (f && f->b_name)
        assert_true(mlo_node_set_f(node, f->b_name, f->b));
    if (cast_to)
        assert_true(mlo_node_set_i(node, "to", cast_to));
    net_finish(&n, node->outputs[0]);
    MUST(mlo_graph_eval(n.graph, in, &out, err));
    mlo_model_free(n.model);
    return out;
}

static void test_functions__are_within_their_ulps(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    for (size_t at = 0; at < MLO_COUNT(functions); at += 4) { /* four in a chain: compiled together */
        struct cuda_chain c = line();
        struct mlo_tensor t[8];
        struct mlo_tensor *order[8];
        int together = (int)MLO_MIN(MLO_COUNT(functions) - at, 4);
        for (int i = 0; i < together; i++) {
            const struct function *f = &functions[at + (size_t)i];
            t[i] = tensor_of(MLO_FLOAT32);
            t[together + i] = tensor_of(MLO_FLOAT32);
            inputs(t[i].data, (uint32_t)at, f->least, f->most);
            int x = load(&c, MLO_FLOAT32, false);
            c.code[c.count] = (struct cuda_chain_instruction){
                .op = CUDA_OP_UNARY, .math = f->math, .a = x, .alpha = f->a, .beta = f->b};
            store(&c, MLO_FLOAT32, c.count++);
        }
        for (int i = 0; i < 2 * together; i++)
            order[i] = &t[i];
        run_chain(&c, order);
        for (int i = 0; i < together; i++) {
            const struct function *f = &functions[at + (size_t)i];
            struct mlo_tensor want = reference(f->op, 20, f, &t[i], 1, MLO_DTYPE_NONE);
            for (size_t k = 0; k < COUNT; k++) {
                float got = ((float *)t[together + i].data)[k];
                double w = mlo_tensor_get_f64(&want, k);
                if (!(ulps(got, w) <= f->ulps + 0.5) && !(fabs((double)got - w) <= f->absolute))
                    fail_msg("%s(%g) is %.9g, the reference has %.9g: %.1f ulp", f->op,
                             (double)((float *)t[i].data)[k], (double)got, w, ulps(got, w));
            }
            mlo_tensor_clear(&want);
        }
        for (int i = 0; i < 2 * together; i++)
            mlo_tensor_clear(&t[i]);
    }
}

static const struct {
    enum cuda_chain_op op;
    const char *name;
    double ulps;
    bool whole;
} pairs[] = {{CUDA_OP_ADD, "Add", 0, true},     {CUDA_OP_SUB, "Sub", 0, true},
             {CUDA_OP_MUL, "Mul", 0, true},     {CUDA_OP_DIV, "Div", 0, true},
             {CUDA_OP_MIN, "Min", 0, true},     {CUDA_OP_MAX, "Max", 0, true},
             {CUDA_OP_POW, "Pow", 4, true},     {CUDA_OP_LESS, "Less", 0, true},
             {CUDA_OP_EQUAL, "Equal", 0, true}, {CUDA_OP_MOD, "Mod", 0, true}};

/* Both orders of arguments, in float32 and in int64. */
static void test_pairs__are_the_references(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    for (int whole = 0; whole < 2; whole++)
        for (size_t at = 0; at < MLO_COUNT(pairs); at += 4) {
            enum mlo_dtype dtype = whole ? MLO_INT64 : MLO_FLOAT32;
            int together = (int)MLO_MIN(MLO_COUNT(pairs) - at, 4);
            struct cuda_chain c = line();
            struct mlo_tensor t[6] = {tensor_of(dtype), tensor_of(dtype)};
            struct mlo_tensor *order[6] = {&t[0], &t[1]};
            float x[COUNT], y[COUNT];
            uint32_t seed = 77;
            inputs(x, 5, ALL);
            inputs(y, 6, ALL);
            for (int i = 0; i < COUNT; i++) {
                if (i < (int)MLO_COUNT(edges)) /* edges with others than themselves */
                    y[i] = edges[(i * 7 + 3) % (int)MLO_COUNT(edges)];
                if (whole) { /* Div and Mod refuse 0 */
                    ((int64_t *)t[0].data)[i] =
                        i % 5 ? below(&seed, 2001) - 1000 : INT64_MIN + below(&seed, 3);
                    ((int64_t *)t[1].data)[i] = i % 7 == 0 ? -1 : 1 + below(&seed, 9) - (i % 3 ? 0 : 12);
                    if (((int64_t *)t[1].data)[i] == 0)
                        ((int64_t *)t[1].data)[i] = 7;
                } else {
                    ((float *)t[0].data)[i] = x[i];
                    ((float *)t[1].data)[i] = y[i];
                }
            }
            int a = load(&c, dtype, whole), b = load(&c, dtype, whole);
            for (int i = 0; i < together; i++) {
                t[2 + i] = tensor_of(dtype);
                order[2 + i] = &t[2 + i];
                c.code[c.count] =
                    (struct cuda_chain_instruction){.op = pairs[at + (size_t)i].op, .a = a, .b = b};
                store(&c, dtype, c.count++);
            }
            run_chain(&c, order);
            for (int i = 0; i < together; i++) {
                const char *name = pairs[at + (size_t)i].name;
                struct mlo_tensor want;
                if (!whole &&
                    strcmp(name, "Mod") == 0) { /* of floats, ONNX has C's; the chain's is Python's */
                    mlo_tensor_clear(&t[2 + i]);
                    continue;
                }
                want = reference(name, 15, NULL, t, 2, MLO_DTYPE_NONE);
                for (size_t k = 0; k < COUNT; k++)
                    if (whole ? mlo_tensor_get_i64(&t[2 + i], k) != mlo_tensor_get_i64(&want, k)
                              : !(ulps(((float *)t[2 + i].data)[k], mlo_tensor_get_f64(&want, k)) <=
                                  pairs[at + (size_t)i].ulps))
                        fail_msg("%s(%.9g, %.9g) is %.9g, the reference has %.9g", name,
                                 mlo_tensor_get_f64(&t[0], k), mlo_tensor_get_f64(&t[1], k),
                                 mlo_tensor_get_f64(&t[2 + i], k), mlo_tensor_get_f64(&want, k));
                mlo_tensor_clear(&want);
                mlo_tensor_clear(&t[2 + i]);
            }
            mlo_tensor_clear(&t[0]);
            mlo_tensor_clear(&t[1]);
        }
}

/* From float32 at all edges, and from int64, to every type. */
static void test_casts__are_the_references(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_FLOAT16, MLO_BFLOAT16, MLO_FLOAT8E4M3FN, MLO_FLOAT8E5M2,
                                           MLO_INT8,    MLO_UINT8,    MLO_INT16,        MLO_UINT16,
                                           MLO_INT32,   MLO_UINT32,   MLO_INT64,        MLO_BOOL};
    if (no_compiler())
        return;
    for (int whole = 0; whole < 2; whole++)
        for (size_t at = 0; at < MLO_COUNT(types); at += 4) {
            struct cuda_chain c = line();
            enum mlo_dtype from = whole ? MLO_INT64 : MLO_FLOAT32;
            struct mlo_tensor t[5] = {tensor_of(from)}, *order[5] = {&t[0]};
            uint32_t seed = 8;
            if (!whole)
                inputs(t[0].data, 3, ALL);
            for (int i = 0; whole && i < COUNT; i++)
                ((int64_t *)t[0].data)[i] = i % 2 ? (int64_t)below(&seed, 1 << 20) - (1 << 19)
                                                  : (int64_t)((uint64_t)next_random(&seed) << 40);
            int x = load(&c, from, whole);
            for (int i = 0; i < 4; i++) {
                t[1 + i] = tensor_of(types[at + (size_t)i]);
                order[1 + i] = &t[1 + i];
                store(&c, types[at + (size_t)i], x);
            }
            run_chain(&c, order);
            for (int i = 0; i < 4; i++) {
                enum mlo_dtype to = types[at + (size_t)i];
                struct mlo_tensor want = reference("Cast", 19, NULL, t, 1, to);
                for (size_t k = 0; k < COUNT; k++) {
                    double a = mlo_tensor_get_f64(&t[1 + i], k), b = mlo_tensor_get_f64(&want, k);
                    bool through_float = whole && !cuda_type_is_whole(to); /* rounded twice */
                    if (!(isnan(a) && isnan(b)) && a != b &&
                        !(through_float && fabs(a - b) <= fabs(b) * 0.07))
                        fail_msg("%.17g as %s is %.9g, the reference has %.9g", mlo_tensor_get_f64(&t[0], k),
                                 mlo_dtype_name(to), a, b);
                }
                mlo_tensor_clear(&want);
                mlo_tensor_clear(&t[1 + i]);
            }
            mlo_tensor_clear(&t[0]);
        }
}

/* Every bit pattern of a small float is loaded as what it is. */
static void test_small_floats__are_loaded_exactly(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_FLOAT16, MLO_BFLOAT16, MLO_FLOAT8E4M3FN, MLO_FLOAT8E5M2};
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(types); i++) {
        int64_t n = (int64_t)1 << mlo_dtype_info(types[i])->bits;
        struct cuda_chain c = {.rank = 1, .dims = {n}};
        struct mlo_tensor x = {0}, y = {0};
        MUST(mlo_tensor_init(&x, types[i], 1, &n, err));
        MUST(mlo_tensor_init(&y, MLO_FLOAT32, 1, &n, err));
        for (int64_t k = 0; k < n; k++)
            memcpy((char *)x.data + (size_t)k * (mlo_dtype_info(types[i])->bits / 8), &k,
                   mlo_dtype_info(types[i])->bits / 8);
        store(&c, MLO_FLOAT32, load(&c, types[i], false));
        run_chain(&c, (struct mlo_tensor *[]){&x, &y});
        for (int64_t k = 0; k < n; k++) {
            double want = mlo_tensor_get_f64(&x, (size_t)k), got = (double)((float *)y.data)[k];
            if (got != want && !(isnan(got) && isnan(want)))
                fail_msg("%s %llx is %g, not %g", mlo_dtype_name(types[i]), (long long)k, got, want);
        }
        mlo_tensor_clear(&x);
        mlo_tensor_clear(&y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions__are_within_their_ulps),
        cmocka_unit_test(test_pairs__are_the_references),
        cmocka_unit_test(test_casts__are_the_references),
        cmocka_unit_test(test_small_floats__are_loaded_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
