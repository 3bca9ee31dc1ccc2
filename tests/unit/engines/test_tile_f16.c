/* Products of float16 models in FP16. The emulated kernels against exact sums, rounded once by other code
 * than theirs; what a whole model gives against float64, within the bounds that tile_f16_impl.h derives; the
 * machine's own instructions against the emulated kernels, where it has them. */
#include "engines/cpu/fast/tile_f16_impl.h"
#include "helpers.h"

static const struct mlo_compile_options two_threads = {.threads = 2};

/* NULL: as the machine is. */
static void set_fp16(const char *how)
{
    assert_int_equal(how ? setenv("MLOPT_FP16", how, 1) : unsetenv("MLOPT_FP16"), 0);
}

static void need_fp16(const char *how)
{
    need_isa(MLO_ISA_AVX2);
    set_fp16(how);
    if (cpu_half_current() == CPU_HALF_NONE)
        skip();
}

/* --- arithmetic -------------------------------------------------------------------------------------------
 */

/* To the nearest half, ties to even. */
static double rounded(double v)
{
    if (!isfinite(v) || v == 0)
        return v;
    double unit = ldexp(1, MLO_MAX(ilogb(v), -14) - 10), r = nearbyint(v / unit) * unit;
    return fabs(r) > 65504 ? copysign(INFINITY, v) : r;
}

enum { LANES = 32, GROUPS = 6 };

static struct tile_epilogue plain_epilogue(void)
{
    static float zeros[LANES], ones[LANES];
    for (int i = 0; i < LANES; i++)
        ones[i] = 1.0f;
    return (struct tile_epilogue){.bias = zeros,
                                  .scale = ones,
                                  .unit = 1.0f,
                                  .low = -INFINITY,
                                  .high = INFINITY,
                                  .residual_dtype = MLO_DTYPE_NONE,
                                  .y_dtype = MLO_FLOAT32};
}

/* One row and 16 columns: y[c] is that of lane 2c, lane 2c + 1 is 0. */
static void multiply(const struct tile_kernels *k, const uint16_t x[GROUPS * 2],
                     const uint16_t w[GROUPS * LANES], float y[LANES / 2])
{
    static const ptrdiff_t taps[] = {0};
    struct tile_epilogue e = plain_epilogue();
    struct tile t = {.x0 = (const char *)x,
                     .x1 = (const char *)x,
                     .taps = taps,
                     .tap_count = 1,
                     .depth = GROUPS,
                     .panel = w,
                     .y = (char *)y,
                     .columns = LANES / 2,
                     .epilogue = &e,
                     .ahead = (const char *)w};
    k->run[0][0](&t);
}

/* Multiply-adds of every kind of half: a double holds their sums so far that rounding it is rounding once. */
static void test_kernel__rounds_each_multiply_add_once(void **state)
{
    MLO_UNUSED(state);
    enum { ROUNDS = 40000 };
    uint16_t x[GROUPS * 2], w[GROUPS * LANES];
    uint32_t seed = 1;
    int subnormal = 0, infinite = 0, ties = 0;
    need_fp16("emulate");
    for (int round = 0; round < ROUNDS; round++) {
        float y[LANES / 2];
        /* of any size; such that sums are about as large as products; small; few bits, so that there are ties
         */
        int kind = round % 4;
        memset(x, 0, sizeof x);
        memset(w, 0, sizeof w);
        for (int g = 0; g < GROUPS; g++)
            for (int c = -1; c < LANES / 2; c++) {
                uint32_t bits = (uint32_t)(net_random(&seed) * 32768.0f + 32768.0f);
                uint32_t exponent = kind == 0   ? bits >> 10 & 31
                                    : kind == 1 ? 12 + (bits >> 10) % 4
                                    : kind == 2 ? (bits >> 10) % 8 + (c < 0 ? 3 : 0)
                                                : 8 + (bits >> 10) % 10;
                bits = (bits & (kind == 3 ? 0x8380 : 0x83ff)) | exponent << 10;
                *(c < 0 ? &x[2 * g] : &w[g * LANES + 2 * c]) = (uint16_t)bits;
            }
        multiply(&tile_f16_emulated, x, w, y);
        for (int c = 0; c < LANES / 2; c++) {
            double acc = 0;
            for (int g = 0; g < GROUPS; g++) {
                double exact =
                    (double)mlo_f16_to_f32(x[2 * g]) * (double)mlo_f16_to_f32(w[g * LANES + 2 * c]) + acc;
                acc = rounded(exact);
                ties += fabs(exact) > 0x1p-14 && fabs(exact) < 60000 &&
                        fabs(exact - acc) == ldexp(1, ilogb(exact) - 11);
            }
            subnormal += acc != 0 && fabs(acc) < 0x1p-14;
            infinite += isinf(acc) != 0;
            if (isnan(acc) ? !isnan(y[c]) : (double)y[c] != acc)
                fail_msg("round %d, column %d: %.9g, and rounded once %.9g", round, c, y[c], acc);
        }
    }
    assert_true(subnormal > 1000 && infinite > 1000 && ties > 1000);
}

/* A kernel that is wrong in what CPUs may differ in. */
static void flushing(const struct tile *t)
{
    tile_f16_emulated.run[0][0](t);
    float *y = (float *)(void *)t->y;
    for (size_t c = 0; c < t->columns; c++)
        if (fabsf(y[c]) < 0x1p-20f)
            y[c] = 0.0f;
}

static void test_kernel__known_answers_tell_another_arithmetic(void **state)
{
    MLO_UNUSED(state);
    need_fp16("emulate");
    assert_true(tile_f16_agrees(&tile_f16_emulated));
    struct tile_kernels other = tile_f16_emulated;
    tile_fn *run[TILE_ROWS_MAX];
    memcpy(run, other.run[0], sizeof run);
    run[0] = flushing;
    other.run[0] = run;
    assert_false(tile_f16_agrees(&other));
    memcpy(run, tile_f16_emulated.run[0], sizeof run);
    run[13] = run[12]; /* one row is not computed */
    assert_false(tile_f16_agrees(&other));
    if (mlo_isa_current() >= MLO_ISA_AVX512_FP16)
        assert_true(tile_f16_agrees(&tile_f16_native));
}

/* --- models -----------------------------------------------------------------------------------------------
 */

struct shape {
    int64_t batch, in, out, groups;
    int64_t size[2], kernel[2], stride[2], pads[4], dilation[2];
};

static int64_t out_size(const struct shape *s, int i)
{
    return (s->size[i] + s->pads[i] + s->pads[i + 2] - (s->kernel[i] - 1) * s->dilation[i] - 1) /
               s->stride[i] +
           1;
}

/* The sum and the sum of absolute values of one output. */
static void exact(const struct shape *s, const struct mlo_tensor *x, const struct mlo_tensor *w,
                  const int64_t at[4], double *sum, double *absolute)
{
    int64_t in = s->in / s->groups, group = at[1] / (s->out / s->groups);
    *sum = *absolute = 0;
    for (int64_t i = 0; i < in; i++)
        for (int64_t p = 0; p < s->kernel[0] * s->kernel[1]; p++) {
            int64_t h = at[2] * s->stride[0] - s->pads[0] + p / s->kernel[1] * s->dilation[0];
            int64_t v = at[3] * s->stride[1] - s->pads[1] + p % s->kernel[1] * s->dilation[1];
            if (h < 0 || h >= s->size[0] || v < 0 || v >= s->size[1])
                continue;
            size_t from = (size_t)(((at[0] * s->in + group * in + i) * s->size[0] + h) * s->size[1] + v);
            double product =
                mlo_tensor_get_f64(x, from) *
                mlo_tensor_get_f64(w, (size_t)((at[1] * in + i) * s->kernel[0] * s->kernel[1] + p));
            *sum += product;
            *absolute += fabs(product);
        }
}

/* Every output is within the bound, and all together are nearer by far. */
static void check_conv(const struct shape *s, double amplitude, const char *what)
{
    const double u = 0x1p-11;
    struct net n = net_new(5);
    int64_t xd[] = {s->batch, s->in, s->size[0], s->size[1]},
            wd[] = {s->out, s->in / s->groups, s->kernel[0], s->kernel[1]};
    struct mlo_value *weights = net_numbers(&n, MLO_FLOAT16, 4, wd, -amplitude, amplitude);
    struct mlo_node *node = net_node(&n, "Conv", net_input_of(&n, MLO_FLOAT16, "x", 4, xd), weights, NULL);
    assert_true(mlo_node_set_ints(node, "strides", s->stride, 2));
    assert_true(mlo_node_set_ints(node, "pads", s->pads, 4));
    assert_true(mlo_node_set_ints(node, "dilations", s->dilation, 2));
    assert_true(mlo_node_set_i(node, "group", s->groups));
    net_finish(&n, net_cast(&n, node->outputs[0], MLO_FLOAT32));
    struct mlo_tensor x = random_tensor_of(MLO_FLOAT16, 4, xd, 7);
    json_t *d = NULL;
    struct mlo_tensor y = run_model("cpu", n.model, &two_threads, &x, &d);
    if (count_nodes(d, "Conv", "precision", "f16") != 1)
        fail_with_plan(d, what, "it is not in FP16");
    json_decref(d);
    double depth = (double)(wd[1] * wd[2] * wd[3]), squares = 0, errors = 0;
    int64_t sizes[] = {s->batch, s->out, out_size(s, 0), out_size(s, 1)};
    size_t count = mlo_tensor_count(&y);
    assert_int_equal(count, (size_t)(sizes[0] * sizes[1] * sizes[2] * sizes[3]));
    for (size_t i = 0; i < count; i++) {
        int64_t at[4], rest = (int64_t)i;
        for (int k = 3; k >= 0; k--, rest /= sizes[k + 1])
            at[k] = rest % sizes[k];
        double sum, absolute, got = mlo_tensor_get_f64(&y, i);
        exact(s, &x, weights->constant, at, &sum, &absolute);
        double bound = (1.02 * TILE_F16_RUN * u + depth * 0x1p-24) * absolute + depth * 0x1p-22 * amplitude;
        if (!(fabs(got - sum) <= bound))
            fail_msg("%s: element %zu is %.9g, exact is %.9g, the bound %g", what, i, got, sum, bound);
        squares += sum * sum;
        errors += (got - sum) * (got - sum);
    }
    if (errors > squares * TILE_F16_RUN * u * u)
        fail_msg("%s: the error is %g of the result", what, sqrt(errors / squares));
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_model_free(n.model);
}

static const struct shape shapes[] = {
    {1, 64, 96, 1, {6, 9}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
    {2, 40, 24, 1, {8, 8}, {1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}}, /* strided rows */
    {2, 3, 20, 1, {9, 11}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* an odd number of channels */
    {1, 3, 16, 1, {20, 53}, {7, 7}, {2, 2}, {3, 3, 3, 3}, {1, 1}},
    {1, 1, 17, 1, {9, 8}, {5, 2}, {2, 1}, {2, 0, 1, 3}, {1, 1}},    /* one; uneven padding */
    {3, 16, 33, 1, {7, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* two lines a tile, an odd one left */
    {1, 33, 48, 1, {14, 14}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}}, /* dilation */
    {2, 32, 64, 2, {6, 6}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* groups */
    {1, 64, 64, 1, {12, 12}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* what float32 does by Winograd */
    {1, 4, 1, 1, {5, 5}, {5, 5}, {1, 1}, {0, 0, 0, 0}, {1, 1}},     /* one output */
    {1, 3, 8, 1, {3, 3}, {3, 3}, {3, 3}, {4, 4, 4, 4}, {1, 1}},     /* outputs of padding only */
    {1, 600, 20, 1, {1, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},  /* deep */
};

static void check_convs(const char *how)
{
    need_fp16(how);
    for (size_t i = 0; i < MLO_COUNT(shapes); i++) {
        char what[64];
        snprintf(what, sizeof what, "conv %zu", i);
        check_conv(&shapes[i], 0.5, what);
    }
    check_conv(&shapes[0], 3e-4, "weights of which many are subnormal");
    check_conv(&shapes[0], 60000, "large weights");
    set_fp16(NULL);
}

static void test_conv__is_within_the_bound(void **state)
{
    MLO_UNUSED(state);
    check_convs("emulate");
}

static void test_conv__is_within_the_bound_natively(void **state)
{
    MLO_UNUSED(state);
    check_convs(NULL);
}

/* y = x w of those sizes, with a bias, a residual and activations by `form`. */
static struct net gemm_net(enum mlo_dtype dtype, int64_t rows, int64_t depth, int64_t columns, int form)
{
    struct net n = net_new((uint32_t)(rows + columns));
    struct mlo_value *x = net_input_of(&n, dtype, "x", 2, (int64_t[]){rows, depth});
    struct mlo_value *y =
        net_op(&n, "MatMul", x, net_numbers(&n, dtype, 2, (int64_t[]){depth, columns}, -0.5, 0.5), NULL);
    if (form & 1)
        y = net_op(&n, "Add", y, net_numbers(&n, dtype, 1, &columns, -1, 1), NULL);
    if (form & 2)
        y = net_op(&n, "Relu", depth == columns ? net_op(&n, "Add", y, x, NULL) : y, NULL, NULL);
    if (form & 4)
        y = net_op(&n, "Mul", y, net_op(&n, "Sigmoid", y, NULL, NULL), NULL);
    net_finish(&n, y);
    return n;
}

/* Every number of rows and remainder of columns, and what is fused behind: nearer to the reference than the
 * reference's own roundings of values are. */
static void test_gemm__rows_columns_and_what_follows(void **state)
{
    MLO_UNUSED(state);
    static const int64_t columns[] = {1, 15, 16, 17, 32, 33, 70};
    need_fp16("emulate");
    for (int64_t rows = 1; rows <= 30; rows++)
        for (size_t c = 0; c < MLO_COUNT(columns); c++) {
            char what[64];
            int64_t depth = rows % 3 ? 1 + (rows * 7 + (int64_t)c * 5) % 40 : columns[c];
            snprintf(what, sizeof what, "gemm %lld x %lld x %lld", (long long)rows, (long long)columns[c],
                     (long long)depth);
            struct net n = gemm_net(MLO_FLOAT16, rows, depth, columns[c], (int)(c % 8));
            struct mlo_tensor in = random_tensor_of(MLO_FLOAT16, 2, (int64_t[]){rows, depth}, 9);
            json_t *d = NULL;
            assert_engines_agree(&n, &two_threads, &in, 6e-3f, what, &d);
            if (count_nodes(d, NULL, "precision", "f16") != 1)
                fail_with_plan(d, what, "it is not in FP16");
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
    set_fp16(NULL);
}

/* Infinities and NaN pass where they should and nowhere else, with an odd depth too, whose groups lie next to
 * other rows'. What is finite in the model stays so, though its products leave a half's range. */
static void test_gemm__edge_values(void **state)
{
    MLO_UNUSED(state);
    static const double edges[] = {INFINITY, -INFINITY, NAN, 0x1p-24, 65504, -65504, -0.0};
    enum { ROWS = 29, DEPTH = 19, COLUMNS = 37 };
    int64_t dims[] = {ROWS, DEPTH};
    need_fp16("emulate");
    for (int large = 0; large < 2; large++) {
        struct net n = gemm_net(MLO_FLOAT16, ROWS, DEPTH, COLUMNS, 0);
        struct mlo_tensor in = random_tensor_of(MLO_FLOAT16, 2, dims, 9);
        for (size_t i = 0; i < MLO_COUNT(edges); i++)
            mlo_tensor_set_f64(&in, (3 * i + 1) * DEPTH + i, edges[i]);
        for (int i = 0; large && i < ROWS * DEPTH; i += 2) /* of both signs */
            mlo_tensor_set_f64(&in, (size_t)i, i % 4 ? 40000 : -40000);
        struct mlo_tensor want = run_model("reference", n.model, &two_threads, &in, NULL);
        struct mlo_tensor got = run_model("cpu", n.model, &two_threads, &in, NULL);
        for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
            double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i), size = 1;
            for (size_t k = 0; k < DEPTH; k++) {
                double v = mlo_tensor_get_f64(&in, i / COLUMNS * DEPTH + k);
                size += isfinite(v) ? fabs(v) : 0;
            }
            bool near_the_end = isinf(a) != isinf(b) && fabs(isinf(a) ? b : a) > 60000;
            if (!near_the_end && (isfinite(b) ? !(fabs(a - b) <= 0.01 * size)
                                  : isnan(b)  ? !isnan(a)
                                              : a != b))
                fail_msg("large %d, element %zu: %g, the reference has %g", large, i, a, b);
        }
        mlo_tensor_clear(&want);
        mlo_tensor_clear(&got);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
    set_fp16(NULL);
}

/* --- who uses it ------------------------------------------------------------------------------------------
 */

static int in_fp16(enum mlo_dtype dtype, enum mlo_numerics numerics)
{
    struct net n = gemm_net(dtype, 4, 24, 20, 0);
    struct mlo_tensor in = random_tensor_of(dtype, 2, (int64_t[]){4, 24}, 9);
    struct mlo_compile_options o = {.threads = 1, .numerics = numerics};
    json_t *d = NULL;
    struct mlo_tensor y = run_model("cpu", n.model, &o, &in, &d);
    int count = count_nodes(d, NULL, "precision", "f16");
    json_decref(d);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
    return count;
}

static void test_dispatch__only_fast_float16(void **state)
{
    MLO_UNUSED(state);
    need_fp16("emulate");
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_FAST), 1);
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_INVARIANT), 0);
    assert_int_equal(in_fp16(MLO_FLOAT32, MLO_NUMERICS_FAST), 0);
    assert_int_equal(in_fp16(MLO_BFLOAT16, MLO_NUMERICS_FAST), 0);
    set_fp16("off");
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_FAST), 0);
    set_fp16(NULL);
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_FAST), mlo_isa_current() >= MLO_ISA_AVX512_FP16);
    mlo_isa_override(MLO_ISA_AVX512_VNNI);
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_FAST), 0);
    mlo_isa_override(-1);
}

static void test_dispatch__a_misspelt_environment_is_an_error(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error wrong = {0};
    const struct mlo_engine *e;
    need_isa(MLO_ISA_AVX2);
    MUST(mlo_engine_find("cpu", &e, err));
    set_fp16("emulated");
    assert_int_equal(e->probe(&wrong), MLO_EINVAL);
    assert_non_null(strstr(wrong.message, "'emulated'"));
    assert_non_null(strstr(wrong.hint, "emulate"));
    set_fp16("off");
    MUST(e->probe(err));
    set_fp16(NULL);
}

/* A plan's bits are those of the arithmetic that it was made for. */
static void test_plan__is_not_restored_for_other_arithmetic(void **state)
{
    MLO_UNUSED(state);
    const struct mlo_engine *e;
    struct mlo_plan *plan = NULL;
    struct mlo_error wrong = {0};
    struct plan_copy copy;
    need_fp16("emulate");
    struct net n = gemm_net(MLO_FLOAT16, 4, 24, 20, 0);
    MUST(mlo_engine_find("cpu", &e, err));
    MUST(e->compile(n.model, &two_threads, &plan, err));
    set_fp16("off");
    assert_int_equal(plan_copy(e, plan, &copy, &wrong), MLO_ESTALE);
    assert_non_null(strstr(wrong.message, "emulated"));
    plan_copy_free(e, &copy);
    set_fp16("emulate");
    MUST(plan_copy(e, plan, &copy, err));
    assert_non_null(copy.plan);
    plan_copy_free(e, &copy);
    e->free_plan(plan);
    mlo_model_free(n.model);
    set_fp16(NULL);
}

/* One without products in FP16 is of no such arithmetic. */
static void test_plan__without_halves_is_restored_for_any(void **state)
{
    MLO_UNUSED(state);
    const struct mlo_engine *e;
    struct mlo_plan *plan = NULL;
    struct plan_copy copy;
    need_fp16("emulate");
    struct net n = gemm_net(MLO_FLOAT32, 4, 24, 20, 0);
    MUST(mlo_engine_find("cpu", &e, err));
    MUST(e->compile(n.model, &two_threads, &plan, err));
    set_fp16("off");
    MUST(plan_copy(e, plan, &copy, err));
    assert_non_null(copy.plan);
    plan_copy_free(e, &copy);
    e->free_plan(plan);
    mlo_model_free(n.model);
    set_fp16(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel__rounds_each_multiply_add_once),
        cmocka_unit_test(test_kernel__known_answers_tell_another_arithmetic),
        cmocka_unit_test(test_conv__is_within_the_bound),
        cmocka_unit_test(test_conv__is_within_the_bound_natively),
        cmocka_unit_test(test_gemm__rows_columns_and_what_follows),
        cmocka_unit_test(test_gemm__edge_values),
        cmocka_unit_test(test_dispatch__only_fast_float16),
        cmocka_unit_test(test_dispatch__a_misspelt_environment_is_an_error),
        cmocka_unit_test(test_plan__is_not_restored_for_other_arithmetic),
        cmocka_unit_test(test_plan__without_halves_is_restored_for_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
