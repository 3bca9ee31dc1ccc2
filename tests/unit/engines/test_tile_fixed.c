/* Products of float16 models in 16-bit fixed point: kernels against sums in 64 bits, whose sets for different
 * instruction sets give the same bits; runs that end before integers overflow; what whole models give against
 * float64, within the bound that tile_fixed_impl.h derives; values that are not finite. */
#include "engines/cpu/fast/tile_fixed_impl.h"
#include "half_nets.h"

/* --- kernels ----------------------------------------------------------------------------------------------
 */

enum { DEPTH = 37, TAPS = 3, ROWS = TILE_ROWS_MAX, WIDTH = 48, STRIDE = 2 * DEPTH };

/* x: rows one behind the other, a tap further is a row further. */
struct numbers {
    _Alignas(64) int16_t w[TAPS * DEPTH * WIDTH * 2];
    int16_t x[(ROWS + TAPS) * STRIDE];
    float units[ROWS + TAPS], scale[WIDTH], bias[WIDTH], residual[ROWS * WIDTH];
};

static void fill(struct numbers *n, int x_most, int w_most, bool exact, uint32_t *seed)
{
    for (size_t i = 0; i < MLO_COUNT(n->x); i++)
        n->x[i] = (int16_t)(net_random(seed) * (float)x_most);
    for (size_t i = 0; i < MLO_COUNT(n->w); i++)
        n->w[i] = (int16_t)(net_random(seed) * (float)w_most);
    for (size_t i = 0; i < MLO_COUNT(n->units); i++)
        n->units[i] = exact ? ldexpf(1.0f, (int)i % 3) : 0.5f + 0.3f * net_random(seed);
    for (size_t c = 0; c < WIDTH; c++) {
        n->scale[c] = exact ? 1.0f : net_random(seed);
        n->bias[c] = exact ? 0.0f : net_random(seed);
    }
    for (size_t i = 0; i < MLO_COUNT(n->residual); i++)
        n->residual[i] = net_random(seed);
}

static void run(tile_fn *fn, const struct numbers *n, size_t rows, size_t width, size_t columns,
                size_t groups, bool residual, float *y)
{
    static const ptrdiff_t taps[] = {0, STRIDE * 2, STRIDE * 4}, unit_taps[] = {0, 1, 2};
    struct tile_epilogue e = {.bias = n->bias,
                              .scale = n->scale,
                              .low = residual ? -1.0f : -INFINITY,
                              .high = residual ? 1e4f : INFINITY,
                              .residual_dtype = residual ? MLO_FLOAT32 : MLO_DTYPE_NONE,
                              .y_dtype = MLO_FLOAT32};
    const size_t half = (rows + 1) / 2;
    struct tile t = {.x0 = (const char *)n->x,
                     .x1 = (const char *)(n->x + half * STRIDE),
                     .x_stride = STRIDE * sizeof(int16_t),
                     .taps = taps,
                     .tap_count = TAPS,
                     .depth = DEPTH,
                     .panel = n->w,
                     .y = (char *)y,
                     .y_stride = WIDTH * sizeof(float),
                     .residual = (const char *)n->residual,
                     .residual_stride = WIDTH * sizeof(float),
                     .columns = columns,
                     .epilogue = &e,
                     .ahead = (const char *)n->w,
                     .run = groups,
                     .width = width,
                     .units0 = n->units,
                     .units1 = n->units + half,
                     .unit_taps = unit_taps,
                     .unit_step = 1};
    fn(&t);
}

static const struct tile_kernels *const sets[] = {&tile_fixed_avx2, &tile_fixed_vnni};

static bool have(const struct tile_kernels *k)
{
    return mlo_isa_current() >= (k == &tile_fixed_vnni ? MLO_ISA_AVX512_VNNI : MLO_ISA_AVX2);
}

/* With units that are powers of two and sums below 2^24 all is exact, however it is cut into runs. */
static void check_exact(const struct numbers *n, tile_fn *fn, size_t rows, size_t width, size_t groups)
{
    float y[ROWS * WIDTH];
    for (size_t i = 0; i < MLO_COUNT(y); i++)
        y[i] = -7.0f;
    const size_t columns = width - groups % 3;
    run(fn, n, rows, width, columns, groups, false, y);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < WIDTH; c++) {
            const bool there = r < rows && c < columns;
            double want = there ? 0 : -7;
            for (size_t k = 0; there && k < (size_t)TAPS * DEPTH * 2; k++) {
                size_t tap = k / (2 * DEPTH), d = k % (2 * DEPTH);
                want += (double)n->units[r + tap] * n->x[(r + tap) * STRIDE + d] *
                        n->w[((tap * DEPTH + d / 2) * width + c) * 2 + d % 2];
            }
            if ((double)y[r * WIDTH + c] != want)
                fail_msg("%zu rows of %zu, runs of %zu: row %zu, column %zu is %g, exact %g", rows, width,
                         groups, r, c, y[r * WIDTH + c], want);
        }
}

static void test_kernel__sums_are_exact(void **state)
{
    MLO_UNUSED(state);
    static const size_t runs[] = {8, 19, 37, 1000};
    struct numbers *n = mlo_engine_aligned(sizeof *n);
    uint32_t seed = 3;
    need_isa(MLO_ISA_AVX2);
    assert_non_null(n);
    fill(n, 60, 60, true, &seed);
    for (size_t s = 0; s < MLO_COUNT(sets); s++)
        for (int w = 0; have(sets[s]) && w < sets[s]->width_count; w++)
            for (size_t rows = 1; rows <= (size_t)sets[s]->rows_max[w]; rows++)
                for (size_t g = 0; g < MLO_COUNT(runs); g++) {
                    check_exact(n, sets[s]->run[w][rows - 1], rows, sets[s]->widths[w], runs[g]);
                    check_exact(n, sets[s]->careful[rows - 1], rows, sets[s]->widths[w], runs[g]);
                }
    free(n);
}

/* Runs of 8 groups of the largest numbers of both signs are the most that int32 holds. */
static void test_kernel__the_largest_numbers(void **state)
{
    MLO_UNUSED(state);
    struct numbers *n = mlo_engine_aligned(sizeof *n);
    float y[ROWS * WIDTH];
    uint32_t seed = 3;
    need_isa(MLO_ISA_AVX2);
    assert_non_null(n);
    for (int sign = -1; sign <= 1; sign += 2) {
        fill(n, 1, 1, true, &seed);
        for (size_t i = 0; i < MLO_COUNT(n->x); i++)
            n->x[i] = (int16_t)(sign * TILE_FIXED_X);
        for (size_t i = 0; i < MLO_COUNT(n->w); i++)
            n->w[i] = TILE_FIXED_W;
        for (size_t i = 0; i < MLO_COUNT(n->units); i++)
            n->units[i] = 1.0f;
        for (size_t s = 0; s < MLO_COUNT(sets); s++)
            for (int w = 0; have(sets[s]) && w < sets[s]->width_count; w++) {
                run(sets[s]->run[w][2], n, 3, sets[s]->widths[w], sets[s]->widths[w],
                    2 * TILE_FIXED_BLOCK / 2, false, y);
                double want = (double)sign * TILE_FIXED_X * TILE_FIXED_W * 2 * DEPTH * TAPS;
                assert_true(fabs((double)y[0] - want) <= 1e-6 * fabs(want));
            }
    }
    free(n);
}

/* Bit for bit, with all that follows the sums. */
static void test_kernel__all_sets_give_the_same_bits(void **state)
{
    MLO_UNUSED(state);
    struct numbers *n = mlo_engine_aligned(sizeof *n);
    uint32_t seed = 5;
    need_isa(MLO_ISA_AVX512_VNNI);
    assert_non_null(n);
    for (int round = 0; round < 50; round++) {
        float a[ROWS * WIDTH] = {0}, b[ROWS * WIDTH] = {0};
        size_t rows = 1 + (size_t)round % 6, columns = 1 + (size_t)(round * 5) % 16,
               groups = 8 + (size_t)round;
        fill(n, TILE_FIXED_X / 4, TILE_FIXED_W / 4, false, &seed);
        run(tile_fixed_avx2.run[0][rows - 1], n, rows, 16, columns, groups, round % 2, a);
        run(tile_fixed_vnni.run[0][rows - 1], n, rows, 16, columns, groups, round % 2, b);
        assert_memory_equal(a, b, sizeof a);
    }
    free(n);
}

/* --- x ----------------------------------------------------------------------------------------------------
 */

static void test_line__numbers_and_codes(void **state)
{
    MLO_UNUSED(state);
    enum { CHANNELS = 45, PADDED = 46, PIXELS = 3 };
    static tile_fixed_line_fn *const ways[] = {tile_fixed_line_avx2, tile_fixed_line_avx512};
    float x[CHANNELS * PIXELS];
    int16_t out[2][PADDED * PIXELS];
    need_isa(MLO_ISA_AVX2);
    for (int special = 0; special < 2; special++) {
        uint32_t seed = 7;
        for (size_t i = 0; i < MLO_COUNT(x); i++)
            x[i] = net_random(&seed) * 3.0f;
        x[50] = -5.0f;
        if (special) {
            x[3] = INFINITY, x[44] = -INFINITY, x[45] = NAN, x[134] = -NAN;
        }
        for (int w = 0; w < (mlo_isa_current() >= MLO_ISA_AVX512_VNNI ? 2 : 1); w++) {
            bool met = false;
            memset(out[w], 0x55, sizeof out[w]);
            assert_true(ways[w](x, PIXELS, CHANNELS, PADDED, out[w], &met) == 5.0f / TILE_FIXED_X);
            assert_int_equal(met, special);
            for (int p = 0; p < PIXELS; p++) {
                assert_int_equal(out[w][p * PADDED + CHANNELS], 0);
                for (int c = 0; c < CHANNELS; c++) {
                    float v = x[p * CHANNELS + c];
                    int got = out[w][p * PADDED + c];
                    if (isnan(v))
                        assert_int_equal(got, TILE_FIXED_NAN);
                    else if (isinf(v))
                        assert_int_equal(got, v > 0 ? TILE_FIXED_INFINITE : -TILE_FIXED_INFINITE);
                    else
                        assert_true(fabs(got - (double)v * TILE_FIXED_X / 5) <= 0.502);
                }
            }
            assert_int_equal(out[w][PADDED + 5], -TILE_FIXED_X);
            assert_memory_equal(out[w], out[0], sizeof out[0]);
        }
    }
    /* none, and smaller ones than there is a unit for */
    float small[16] = {0}, unit;
    bool met = false;
    for (int w = 0; w < (mlo_isa_current() >= MLO_ISA_AVX512_VNNI ? 2 : 1); w++) {
        small[3] = 0x1p-140f;
        unit = ways[w](small, 1, 16, 16, out[0], &met);
        assert_true(isfinite(unit) && unit > 0 && !met);
        for (int i = 0; i < 16; i++)
            assert_int_equal(out[0][i], 0);
    }
}

/* --- models -----------------------------------------------------------------------------------------------
 */

/* tile_fixed_impl.h's, for x of at most 1. */
static double bound(const struct sums *sums, double depth, double amplitude)
{
    const double x = 0.5 / TILE_FIXED_X, w = 0.502 * amplitude / TILE_FIXED_W;
    return sums->w * x + sums->x * w + depth * x * w +
           (depth / 8 + 4) * 0x1p-24 * (sums->absolute + amplitude);
}

/* Short sums stay in float32, and what Winograd's algorithm takes. */
static bool takes(const struct shape *s)
{
    bool winograd = s->kernel[0] == 3 && s->kernel[1] == 3 && s->stride[0] == 1 && s->dilation[0] == 1 &&
                    s->groups == 1 && s->in % 16 == 0 && s->out % 16 == 0 && s->in >= 32;
    return !winograd && s->in / s->groups * s->kernel[1] >= 64;
}

static const struct promise promised = {
    .precision = "fixed16", .bound = bound, .typical = 4e-4, .takes = takes};

static const enum mlo_isa isas[] = {MLO_ISA_AVX2, MLO_ISA_AVX512_VNNI};

static void test_conv__is_within_the_bound(void **state)
{
    MLO_UNUSED(state);
    need_fp16("fixed");
    for (size_t i = 0; i < MLO_COUNT(isas); i++) {
        mlo_isa_override((int)isas[i]);
        check_convs(&promised);
    }
    mlo_isa_override(-1);
    set_fp16(NULL);
}

static void test_gemm__rows_columns_and_what_follows(void **state)
{
    MLO_UNUSED(state);
    need_fp16("fixed");
    for (size_t i = 0; i < MLO_COUNT(isas); i++) {
        mlo_isa_override((int)isas[i]);
        check_gemms("fixed16", 64, 50);
    }
    mlo_isa_override(-1);
    set_fp16(NULL);
}

static void test_gemm__edge_values(void **state)
{
    MLO_UNUSED(state);
    need_fp16("fixed");
    for (size_t i = 0; i < MLO_COUNT(isas); i++) {
        mlo_isa_override((int)isas[i]);
        check_edge_values(67);
    }
    mlo_isa_override(-1);
    set_fp16(NULL);
}

/* bfloat16 has float32's range: weights and rows far outside of float16's. */
static void test_gemm__bfloat16_of_any_size(void **state)
{
    MLO_UNUSED(state);
    enum { DEEP = 90, OUT = 21, LINES = 5 };
    need_fp16("fixed");
    for (int e = -60; e <= 60; e += 30) {
        struct net n = net_new(2);
        int64_t xd[] = {LINES, DEEP}, wd[] = {DEEP, OUT};
        float size = ldexpf(1.0f, e);
        struct mlo_value *w = net_numbers(&n, MLO_BFLOAT16, 2, wd, -size, size);
        struct mlo_node *node = net_node(&n, "MatMul", net_input_of(&n, MLO_BFLOAT16, "x", 2, xd), w, NULL);
        net_finish(&n, net_cast(&n, node->outputs[0], MLO_FLOAT32));
        struct mlo_tensor x = random_tensor_of(MLO_BFLOAT16, 2, xd, 7);
        for (size_t i = 0; i < mlo_tensor_count(&x); i++)
            mlo_tensor_set_f64(&x, i, ldexp(mlo_tensor_get_f64(&x, i), -e + (int)(i / DEEP) * 4));
        json_t *d = NULL;
        struct mlo_tensor y = run_model("cpu", n.model, &two_threads, &x, &d);
        if (count_nodes(d, NULL, "precision", "fixed16") != 1)
            fail_with_plan(d, "bfloat16", "it is in another precision");
        json_decref(d);
        for (size_t i = 0; i < mlo_tensor_count(&y); i++) {
            double sum = 0, absolute = 0;
            for (size_t k = 0; k < DEEP; k++) {
                double p = mlo_tensor_get_f64(&x, i / OUT * DEEP + k) *
                           mlo_tensor_get_f64(w->constant, k * OUT + i % OUT);
                sum += p;
                absolute += fabs(p);
            }
            double got = mlo_tensor_get_f64(&y, i);
            if (!(fabs(got - sum) <= 5e-4 * absolute))
                fail_msg("2^%d, element %zu: %g, exact %g of %g", e, i, got, sum, absolute);
        }
        mlo_tensor_clear(&x);
        mlo_tensor_clear(&y);
        mlo_model_free(n.model);
    }
    set_fp16(NULL);
}

/* A row's or line's own size is what its errors are measured by, whatever is elsewhere. */
static void check_size_of_its_own(bool conv)
{
    enum { LINES = 12, WIDE = 7, CHANNELS = 70, OUT = 24, LARGE = 5 };
    struct net n = net_new(11);
    int64_t xd[] = {1, CHANNELS, LINES, WIDE}, rd[] = {LINES, CHANNELS}, wd[] = {OUT, CHANNELS, 3, 3},
            md[] = {CHANNELS, OUT};
    struct mlo_node *node;
    if (conv) {
        static const int64_t pads[] = {1, 1, 1, 1};
        node = net_node(&n, "Conv", net_input_of(&n, MLO_FLOAT16, "x", 4, xd),
                        net_numbers(&n, MLO_FLOAT16, 4, wd, -0.5, 0.5), NULL);
        assert_true(mlo_node_set_ints(node, "pads", pads, 4));
    } else {
        node = net_node(&n, "MatMul", net_input_of(&n, MLO_FLOAT16, "x", 2, rd),
                        net_numbers(&n, MLO_FLOAT16, 2, md, -0.5, 0.5), NULL);
    }
    net_finish(&n, net_cast(&n, node->outputs[0], MLO_FLOAT32));
    struct mlo_tensor x = random_tensor_of(MLO_FLOAT16, conv ? 4 : 2, conv ? xd : rd, 7);
    for (size_t c = 0; c < CHANNELS; c++)
        for (size_t i = 0; i < (conv ? WIDE : 1); i++)
            mlo_tensor_set_f64(&x, conv ? (c * LINES + LARGE) * WIDE + i : LARGE * CHANNELS + c,
                               c % 2 ? 30000 : -20000);
    json_t *d = NULL;
    struct mlo_tensor got = run_model("cpu", n.model, &two_threads, &x, &d);
    if (count_nodes(d, NULL, "precision", "fixed16") != 1)
        fail_with_plan(d, "lines", "it is in another precision");
    json_decref(d);
    struct mlo_tensor want = run_model("reference", n.model, &two_threads, &x, NULL);
    for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
        int64_t line = (int64_t)(conv ? i / WIDE % LINES : i / OUT);
        if (line >= LARGE - conv && line <= LARGE + conv)
            continue;
        double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
        if (!(fabs(a - b) <= 0.01)) /* the reference rounds to float16 */
            fail_msg("conv %d, element %zu: %g, the reference has %g", conv, i, a, b);
    }
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
    mlo_model_free(n.model);
}

static void test_units__are_those_of_lines_and_rows(void **state)
{
    MLO_UNUSED(state);
    need_fp16("fixed");
    check_size_of_its_own(false);
    check_size_of_its_own(true);
    set_fp16(NULL);
}

/* y = x w with all weights of the largest size: the sums would leave int32 soon, and must not. */
static void test_run__ends_before_integers_overflow(void **state)
{
    MLO_UNUSED(state);
    enum { ROWS_OF_X = 3, DEEP = 1501, OUT = 20 };
    need_fp16("fixed");
    for (size_t i = 0; i < MLO_COUNT(isas); i++) {
        mlo_isa_override((int)isas[i]);
        struct net n = net_new(11);
        int64_t xd[] = {ROWS_OF_X, DEEP}, wd[] = {DEEP, OUT};
        struct mlo_value *w = net_numbers(&n, MLO_FLOAT16, 2, wd, 0.5, 0.5);
        /* from somewhere on they are small, so that runs elsewhere could be longer */
        for (size_t k = DEEP / 2; k < DEEP; k++)
            for (size_t c = 0; c < OUT / 2; c++)
                mlo_tensor_set_f64(w->constant, k * OUT + c, 0x1p-10);
        struct mlo_node *node = net_node(&n, "MatMul", net_input_of(&n, MLO_FLOAT16, "x", 2, xd), w, NULL);
        net_finish(&n, net_cast(&n, node->outputs[0], MLO_FLOAT32));
        struct mlo_tensor x;
        MUST(mlo_tensor_init(&x, MLO_FLOAT16, 2, xd, err));
        for (size_t k = 0; k < mlo_tensor_count(&x); k++)
            mlo_tensor_set_f64(&x, k, k < DEEP ? 1.0 : -2.0);
        struct mlo_tensor y = run_model("cpu", n.model, &two_threads, &x, NULL);
        for (size_t k = 0; k < mlo_tensor_count(&y); k++) {
            bool half = k % OUT < OUT / 2;
            double want =
                (k < OUT ? 1.0 : -2.0) * (half ? DEEP / 2 * 0.5 + (DEEP - DEEP / 2) * 0x1p-10 : DEEP * 0.5);
            double got = mlo_tensor_get_f64(&y, k);
            if (!(fabs(got - want) <= 2e-4 * fabs(want)))
                fail_msg("%zu: %g, not %g", k, got, want);
        }
        mlo_tensor_clear(&x);
        mlo_tensor_clear(&y);
        mlo_model_free(n.model);
    }
    mlo_isa_override(-1);
    set_fp16(NULL);
}

/* --- who uses it -------------------------------------------------------------------------------------------
 */

static int in_fixed(enum mlo_dtype dtype, enum mlo_numerics numerics, double weight)
{
    struct net n = net_new(3);
    struct mlo_value *w = net_numbers(&n, dtype, 2, (int64_t[]){64, 20}, -0.5, 0.5);
    mlo_tensor_set_f64(w->constant, 17, weight);
    net_finish(&n, net_op(&n, "MatMul", net_input_of(&n, dtype, "x", 2, (int64_t[]){4, 64}), w, NULL));
    struct mlo_tensor in = random_tensor_of(dtype, 2, (int64_t[]){4, 64}, 9);
    struct mlo_compile_options o = {.threads = 1, .numerics = numerics};
    json_t *d = NULL;
    struct mlo_tensor y = run_model("cpu", n.model, &o, &in, &d);
    int count = count_nodes(d, NULL, "precision", "fixed16");
    json_decref(d);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
    return count;
}

static void test_dispatch__only_fast_halves_of_finite_weights(void **state)
{
    MLO_UNUSED(state);
    need_fp16("fixed");
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_FAST, 0), 1);
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_FAST, INFINITY), 0);
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_FAST, NAN), 0);
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_INVARIANT, 0), 0);
    assert_int_equal(in_fixed(MLO_FLOAT32, MLO_NUMERICS_FAST, 0), 0);
    assert_int_equal(in_fixed(MLO_BFLOAT16, MLO_NUMERICS_FAST, 0), 1);
    set_fp16("off");
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_FAST, 0), 0);
    set_fp16(NULL);
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_FAST, 0), mlo_isa_current() == MLO_ISA_AVX512_VNNI);
    mlo_isa_override(MLO_ISA_AVX512);
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_FAST, 0), 0);
    mlo_isa_override(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel__sums_are_exact),
        cmocka_unit_test(test_kernel__the_largest_numbers),
        cmocka_unit_test(test_kernel__all_sets_give_the_same_bits),
        cmocka_unit_test(test_line__numbers_and_codes),
        cmocka_unit_test(test_conv__is_within_the_bound),
        cmocka_unit_test(test_gemm__rows_columns_and_what_follows),
        cmocka_unit_test(test_gemm__edge_values),
        cmocka_unit_test(test_gemm__bfloat16_of_any_size),
        cmocka_unit_test(test_units__are_those_of_lines_and_rows),
        cmocka_unit_test(test_run__ends_before_integers_overflow),
        cmocka_unit_test(test_dispatch__only_fast_halves_of_finite_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
