/* Products of float16 models in 16-bit fixed point: kernels against sums in 64 bits, whose sets for different
 * instruction sets give the same bits; runs that end before integers overflow; what whole models give against
 * float64, within the bound that tile_fixed_impl.h derives; values that are not finite. */
#include <float.h>

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

#define LOWEST -30000.0f
#define HIGHEST 50000.0f

/* `depth` groups of each tap are read, in runs of at most `groups`; with a residual there are clamps, too. */
static void run_depth(tile_fn *fn, const struct numbers *n, size_t rows, size_t width, size_t columns,
                      size_t depth, size_t groups, bool residual, float *y)
{
    static const ptrdiff_t taps[] = {0, STRIDE * 2, STRIDE * 4}, unit_taps[] = {0, 1, 2};
    struct tile_epilogue e = {.bias = n->bias,
                              .scale = n->scale,
                              .low = residual ? LOWEST : -INFINITY,
                              .high = residual ? HIGHEST : INFINITY,
                              .residual_dtype = residual ? MLO_FLOAT32 : MLO_DTYPE_NONE,
                              .y_dtype = MLO_FLOAT32};
    const size_t half = (rows + 1) / 2;
    struct tile t = {.x0 = (const char *)n->x,
                     .x1 = (const char *)(n->x + half * STRIDE),
                     .x_stride = STRIDE * sizeof(int16_t),
                     .taps = taps,
                     .tap_count = TAPS,
                     .depth = depth,
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

static void run(tile_fn *fn, const struct numbers *n, size_t rows, size_t width, size_t columns,
                size_t groups, bool residual, float *y)
{
    run_depth(fn, n, rows, width, columns, DEPTH, groups, residual, y);
}

static const struct tile_kernels *const sets[] = {&tile_fixed_avx2, &tile_fixed_vnni};

static bool have(const struct tile_kernels *k)
{
    return mlo_isa_current() >= (k == &tile_fixed_vnni ? MLO_ISA_AVX512_VNNI : MLO_ISA_AVX2);
}

/* With units that are powers of two and sums below 2^24 all is exact, however it is cut into runs. */
static void check_exact(const struct numbers *n, tile_fn *fn, size_t rows, size_t width, size_t groups,
                        bool residual)
{
    float y[ROWS * WIDTH];
    for (size_t i = 0; i < MLO_COUNT(y); i++)
        y[i] = -7.0f;
    const size_t columns = width - groups % 3;
    run(fn, n, rows, width, columns, groups, residual, y);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < WIDTH; c++) {
            const bool there = r < rows && c < columns;
            double want = there ? 0 : -7;
            for (size_t k = 0; there && k < (size_t)TAPS * DEPTH * 2; k++) {
                size_t tap = k / (2 * DEPTH), d = k % (2 * DEPTH);
                want += (double)n->units[r + tap] * n->x[(r + tap) * STRIDE + d] *
                        n->w[((tap * DEPTH + d / 2) * width + c) * 2 + d % 2];
            }
            if (there && residual)
                want = fmin(fmax((double)((float)want + n->residual[r * WIDTH + c]), LOWEST), HIGHEST);
            if ((double)y[r * WIDTH + c] != want)
                fail_msg("%zu rows of %zu, runs of %zu: row %zu, column %zu is %g, exact %g", rows, width,
                         groups, r, c, (double)y[r * WIDTH + c], want);
        }
}

static void test_kernel__sums_are_exact(void **state)
{
    MLO_UNUSED(state);
    static const size_t runs[] = {8, 19, 37, 1000};
    uint32_t seed = 3;
    need_isa(MLO_ISA_AVX2);
    struct numbers *n = mlo_engine_aligned(sizeof *n);
    assert_non_null(n);
    fill(n, 60, 60, true, &seed);
    for (size_t s = 0; s < MLO_COUNT(sets); s++)
        for (int w = 0; have(sets[s]) && w < sets[s]->width_count; w++)
            for (size_t g = 0; g < 2 * MLO_COUNT(runs); g++) {
                for (size_t rows = 1; rows <= (size_t)sets[s]->rows_max[w]; rows++)
                    check_exact(n, sets[s]->run[w][rows - 1], rows, sets[s]->widths[w], runs[g / 2], g % 2);
                check_exact(n, tile_fixed_careful, 1, sets[s]->widths[w], runs[g / 2], g % 2);
            }
    free(n);
}

/* As many of the largest numbers of both signs as a run may have are what int32 just holds. */
static void test_kernel__the_largest_numbers(void **state)
{
    MLO_UNUSED(state);
    enum { RUN = 2 * TILE_FIXED_BLOCK / 2 };
    float y[ROWS * WIDTH];
    need_isa(MLO_ISA_AVX2);
    struct numbers *n = mlo_engine_aligned(sizeof *n);
    assert_non_null(n);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (size_t i = 0; i < MLO_COUNT(n->x); i++)
            n->x[i] = (int16_t)(sign * TILE_FIXED_X);
        for (size_t i = 0; i < MLO_COUNT(n->w); i++)
            n->w[i] = TILE_FIXED_W;
        for (size_t i = 0; i < MLO_COUNT(n->units); i++)
            n->units[i] = 1.0f;
        for (size_t c = 0; c < WIDTH; c++) {
            n->scale[c] = 1.0f;
            n->bias[c] = 0.0f;
        }
        for (size_t s = 0; s < MLO_COUNT(sets); s++)
            for (int w = 0; have(sets[s]) && w < sets[s]->width_count; w++) {
                /* a tap of just one run: it is not cut into shorter ones */
                const size_t width = sets[s]->widths[w];
                run_depth(sets[s]->run[w][2], n, 3, width, width, RUN, RUN, false, y);
                double want = (double)sign * TILE_FIXED_X * TILE_FIXED_W * 2 * RUN * TAPS;
                for (size_t r = 0; r < 3; r++)
                    for (size_t c = 0; c < width; c++)
                        assert_true(fabs((double)y[r * WIDTH + c] - want) <= 1e-6 * fabs(want));
            }
    }
    free(n);
}

/* Bit for bit, with all that follows the sums. */
static void test_kernel__all_sets_give_the_same_bits(void **state)
{
    MLO_UNUSED(state);
    uint32_t seed = 5;
    need_isa(MLO_ISA_AVX512_VNNI);
    struct numbers *n = mlo_engine_aligned(sizeof *n);
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
    const int count = mlo_isa_current() >= MLO_ISA_AVX512_VNNI ? 2 : 1;
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
        for (int w = 0; w < count; w++) {
            memset(out[w], 0x55, sizeof out[w]);
            float unit = ways[w](x, PIXELS, CHANNELS, PADDED, out[w]);
            assert_true(unit == (special ? -5.0f : 5.0f) / TILE_FIXED_X);
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
    /* larger ones than sums have room for; smaller ones than there is a unit for; none */
    for (int w = 0; w < count; w++) {
        float few[16] = {0}, unit = ways[w](few, 1, 16, 16, out[0]);
        assert_true(unit > 0);
        few[3] = FLT_MAX;
        unit = ways[w](few, 1, 16, 16, out[0]);
        assert_true(unit < 0 && isfinite(unit) && out[0][3] == TILE_FIXED_X);
        few[3] = 0x1p-140f;
        unit = ways[w](few, 1, 16, 16, out[0]);
        assert_true(unit >= FLT_MIN);
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

/* Short taps stay in float32 (of which a kernel's row is one where its pixels are neighbours), and what
 * Winograd's algorithm takes. */
static bool takes(const struct shape *s)
{
    bool joined = s->groups == 1 && s->dilation[1] == 1;
    bool winograd = s->kernel[0] == 3 && s->kernel[1] == 3 && s->stride[0] == 1 && s->dilation[0] == 1 &&
                    s->groups == 1 && s->in % 16 == 0 && s->out % 16 == 0 && s->in >= 32;
    return !winograd && s->in / s->groups * (joined ? s->kernel[1] : 1) >= 64;
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
    for (int e = -100; e <= 100; e += 20) {
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

struct range {
    int64_t begin, end;
};

/* A product whose sums would leave int32 soon, and must not: the weights of some ranges of its depth are of
 * the largest size, the others small, so that runs elsewhere could be longer. */
static void check_run(int64_t rows, int64_t deep, const struct range *large, size_t count)
{
    enum { OUT = 20 };
    struct net n = net_new(11);
    int64_t xd[] = {rows, deep}, wd[] = {deep, OUT};
    struct mlo_value *w = net_numbers(&n, MLO_FLOAT16, 2, wd, 0, 0x1p-12);
    for (size_t i = 0; i < count; i++)
        for (int64_t k = large[i].begin; k < MLO_MIN(large[i].end, deep); k++)
            for (int64_t c = 0; c < OUT; c += 2)
                mlo_tensor_set_f64(w->constant, (size_t)(k * OUT + c), 0.5);
    struct mlo_node *node = net_node(&n, "MatMul", net_input_of(&n, MLO_FLOAT16, "x", 2, xd), w, NULL);
    net_finish(&n, net_cast(&n, node->outputs[0], MLO_FLOAT32));
    struct mlo_tensor x;
    MUST(mlo_tensor_init(&x, MLO_FLOAT16, 2, xd, err));
    for (size_t k = 0; k < mlo_tensor_count(&x); k++)
        mlo_tensor_set_f64(&x, k, k < (size_t)deep ? 1.0 : -2.0);
    struct mlo_tensor y = run_model("cpu", n.model, &two_threads, &x, NULL);
    for (size_t k = 0; k < mlo_tensor_count(&y); k++) {
        double want = 0;
        for (int64_t i = 0; i < deep; i++)
            want += mlo_tensor_get_f64(w->constant, (size_t)(i * OUT) + k % OUT) * (k < OUT ? 1.0 : -2.0);
        double got = mlo_tensor_get_f64(&y, k);
        if (!(fabs(got - want) <= 2e-4 * fabs(want) + 1e-2))
            fail_msg("large from %lld to %lld of %lld, element %zu: %g, not %g", (long long)large[0].begin,
                     (long long)large[0].end, (long long)deep, k, got, want);
    }
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_model_free(n.model);
}

static void test_run__ends_before_integers_overflow(void **state)
{
    MLO_UNUSED(state);
    need_fp16("fixed");
    for (size_t i = 0; i < MLO_COUNT(isas); i++) {
        mlo_isa_override((int)isas[i]);
        check_run(3, 1501, &(struct range){0, 1501}, 1);
        for (int64_t large = 8; large <= 72; large += 8)
            for (int64_t offset = 0; offset < 40; offset += 5)
                check_run(2, 400, &(struct range){offset, offset + large}, 1);
        /* three blocks of 16 have at most 28 large ones, but three that begin within a block have 36 */
        static const struct range between[] = {{184, 192}, {198, 218}, {224, 232}};
        check_run(2, 400, between, MLO_COUNT(between));
    }
    mlo_isa_override(-1);
    set_fp16(NULL);
}

/* Positions of a kernel of very different sizes, an odd number of channels: runs go by the order of the
 * panels. */
static void test_run__knows_the_order_of_positions(void **state)
{
    MLO_UNUSED(state);
    enum { CHANNELS = 71, OUT = 20, SIZE = 7 };
    need_fp16("fixed");
    for (int64_t large = 0; large < 9; large++) {
        struct net n = net_new(2);
        int64_t xd[] = {1, CHANNELS, SIZE, SIZE}, wd[] = {OUT, CHANNELS, 3, 3};
        struct mlo_value *w = net_numbers(&n, MLO_FLOAT16, 4, wd, 0, 0x1p-12);
        for (size_t k = 0; k < (size_t)(OUT * CHANNELS); k++)
            mlo_tensor_set_f64(w->constant, k * 9 + (size_t)large, 0.5);
        struct mlo_node *node = net_node(&n, "Conv", net_input_of(&n, MLO_FLOAT16, "x", 4, xd), w, NULL);
        net_finish(&n, net_cast(&n, node->outputs[0], MLO_FLOAT32));
        struct mlo_tensor x;
        MUST(mlo_tensor_init(&x, MLO_FLOAT16, 4, xd, err));
        for (size_t k = 0; k < mlo_tensor_count(&x); k++)
            mlo_tensor_set_f64(&x, k, 1.0);
        struct mlo_tensor y = run_model("cpu", n.model, &two_threads, &x, NULL);
        for (size_t k = 0; k < mlo_tensor_count(&y); k++) {
            double got = mlo_tensor_get_f64(&y, k), want = 0.5 * CHANNELS;
            if (!(fabs(got - want) <= 0.1))
                fail_msg("position %lld, element %zu: %g, not %g", (long long)large, k, got, want);
        }
        mlo_tensor_clear(&x);
        mlo_tensor_clear(&y);
        mlo_model_free(n.model);
    }
    set_fp16(NULL);
}

/* A value that is not finite is a matter of the rows that read it: all others keep their bits, in a
 * convolution with a border, a stride and groups, a residual and a clamp behind it. */
static void test_special__lines_are_special_by_themselves(void **state)
{
    MLO_UNUSED(state);
    enum { CHANNELS = 128, SIZE = 9, AT = 4 };
    need_fp16("fixed");
    for (size_t i = 0; i < MLO_COUNT(isas); i++)
        for (int stride = 1; stride <= 2; stride++) {
            mlo_isa_override((int)isas[i]);
            struct net n = net_new(2);
            int64_t xd[] = {2, CHANNELS, SIZE, SIZE}, wd[] = {CHANNELS, CHANNELS / 2, 3, 3};
            int64_t strides[] = {stride, stride}, pads[] = {1, 1, 1, 1};
            struct mlo_value *x = net_input_of(&n, MLO_FLOAT16, "x", 4, xd);
            struct mlo_node *node =
                net_node(&n, "Conv", x, net_numbers(&n, MLO_FLOAT16, 4, wd, -0.1, 0.1), NULL);
            assert_true(mlo_node_set_ints(node, "strides", strides, 2));
            assert_true(mlo_node_set_ints(node, "pads", pads, 4));
            assert_true(mlo_node_set_i(node, "group", 2));
            struct mlo_value *y = node->outputs[0];
            if (stride == 1)
                y = net_op(&n, "Add", y, x, NULL);
            net_finish(&n, net_cast(&n, net_op(&n, "Relu", y, NULL, NULL), MLO_FLOAT32));
            struct mlo_tensor in = random_tensor_of(MLO_FLOAT16, 4, xd, 7);
            struct mlo_tensor before = run_model("cpu", n.model, &two_threads, &in, NULL);
            /* in the second image */
            mlo_tensor_set_f64(&in, ((CHANNELS + 3) * SIZE + AT) * SIZE + AT, INFINITY);
            json_t *d = NULL;
            struct mlo_tensor got = run_model("cpu", n.model, &two_threads, &in, &d);
            if (count_nodes(d, "Conv", "precision", "fixed16") != 1)
                fail_with_plan(d, "special", "it is in another precision");
            json_decref(d);
            struct mlo_tensor want = run_model("reference", n.model, &two_threads, &in, NULL);
            int64_t side = want.dims[2], near = 0;
            for (size_t k = 0; k < mlo_tensor_count(&want); k++) {
                int64_t image = (int64_t)k / side / side / CHANNELS, line = (int64_t)k / side % side * stride;
                double a = mlo_tensor_get_f64(&got, k), b = mlo_tensor_get_f64(&want, k);
                bool reads = image == 1 && line >= AT - 1 && line <= AT + 1;
                near += reads && !isfinite(b);
                if (!reads && a != mlo_tensor_get_f64(&before, k))
                    fail_msg("element %zu of another line changed from %g to %g", k,
                             mlo_tensor_get_f64(&before, k), a);
                if (isfinite(b) ? !(fabs(a - b) <= 4e-3) : isnan(a) == 0 && a != b)
                    fail_msg("element %zu: %g, the reference has %g", k, a, b);
            }
            assert_true(near > 0);
            mlo_tensor_clear(&in);
            mlo_tensor_clear(&before);
            mlo_tensor_clear(&got);
            mlo_tensor_clear(&want);
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
    assert_int_equal(in_fixed(MLO_FLOAT16, MLO_NUMERICS_FAST, 0), mlo_isa_current() >= MLO_ISA_AVX512_VNNI);
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
        cmocka_unit_test(test_run__knows_the_order_of_positions),
        cmocka_unit_test(test_special__lines_are_special_by_themselves),
        cmocka_unit_test(test_run__ends_before_integers_overflow),
        cmocka_unit_test(test_dispatch__only_fast_halves_of_finite_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
