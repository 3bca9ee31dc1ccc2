/* Products of float16 models in FP16. The emulated kernels against exact sums, rounded once by other code
 * than theirs; what a whole model gives against float64, within the bounds that tile_f16_impl.h derives; the
 * machine's own instructions against the emulated kernels, where it has them. */
#include "engines/cpu/fast/tile_f16_impl.h"
#include "half_nets.h"

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

static double bound(const struct sums *sums, double depth, double amplitude)
{
    return (1.02 * TILE_F16_RUN * 0x1p-11 + depth * 0x1p-24) * sums->absolute + depth * 0x1p-22 * amplitude;
}

static struct promise promise(void)
{
    return (struct promise){.precision = "f16", .bound = bound, .typical = sqrt(TILE_F16_RUN) * 0x1p-11};
}

static void check_all_convs(const char *how)
{
    struct promise promised = promise();
    need_fp16(how);
    if (cpu_half_current() == CPU_HALF_FIXED) {
        set_fp16(NULL);
        skip();
    }
    check_convs(&promised);
    set_fp16(NULL);
}

static void test_conv__is_within_the_bound(void **state)
{
    MLO_UNUSED(state);
    check_all_convs("emulate");
}

static void test_conv__is_within_the_bound_natively(void **state)
{
    MLO_UNUSED(state);
    check_all_convs("native");
}

/* Every number of rows and remainder of columns, and what is fused behind. */
static void test_gemm__rows_columns_and_what_follows(void **state)
{
    MLO_UNUSED(state);
    need_fp16("emulate");
    check_gemms("f16", 1, 0);
    set_fp16(NULL);
}

static void test_gemm__edge_values(void **state)
{
    MLO_UNUSED(state);
    need_fp16("emulate");
    check_edge_values(19);
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
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_FAST), 0);
    set_fp16("native");
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_FAST), mlo_isa_current() >= MLO_ISA_AVX512_FP16);
    mlo_isa_override(MLO_ISA_AVX512_VNNI);
    assert_int_equal(in_fp16(MLO_FLOAT16, MLO_NUMERICS_FAST), 0);
    mlo_isa_override(-1);
    set_fp16(NULL);
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
