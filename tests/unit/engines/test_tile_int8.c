/* int8 product kernels against a plain loop: exact sums, and the same float operations behind them, bit for
 * bit. */
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/tile_impl.h"
#include "helpers.h"

enum { MAX_WIDTH = 64, MAX_ROWS = 14, MAX_DEPTH = 24, MAX_TAPS = 3, GUARD = 0x5a };

static uint32_t seed = 12345;

static int any(int low, int high)
{
    seed = seed * 1664525u + 1013904223u;
    return low + (int)((seed >> 8) % (uint32_t)(high - low + 1));
}

struct sample {
    struct tile t;
    struct tile_epilogue e;
    size_t rows, width;
    bool x_signed;
    uint8_t x[2 * (MAX_ROWS + MAX_TAPS) * MAX_DEPTH * 4 + 512];
    int8_t panel[MAX_TAPS * MAX_DEPTH * MAX_WIDTH * 4];
    ptrdiff_t taps[MAX_TAPS];
    float bias[MAX_WIDTH], scale[MAX_WIDTH], float_residual[MAX_ROWS][MAX_WIDTH];
    int32_t init[MAX_WIDTH];
    uint8_t residual[MAX_ROWS][MAX_WIDTH];
    union {
        uint8_t bytes[MAX_ROWS + 1][MAX_WIDTH * 4];
        float floats[MAX_ROWS + 1][MAX_WIDTH];
    } y, want;
};

static float clamped(float v, float low, float high)
{
    v = v > high ? high : v;
    return v < low ? low : v;
}

static int32_t sum_of(const struct sample *s, size_t r, size_t j)
{
    const struct tile *t = &s->t;
    size_t half = (s->rows + 1) / 2;
    const char *row = r < half ? t->x0 + r * t->x_stride : t->x1 + (r - half) * t->x_stride;
    int32_t sum = s->e.init ? s->e.init[j] : 0;
    for (size_t p = 0; p < t->tap_count; p++)
        for (size_t k = 0; k < 4 * t->depth; k++) {
            int x = ((const uint8_t *)row)[t->taps[p] + (ptrdiff_t)k] ^ (s->x_signed ? 0x80 : 0);
            sum += x * s->panel[((p * t->depth + k / 4) * s->width + j) * 4 + k % 4];
        }
    return sum;
}

static void expect(struct sample *s)
{
    const struct tile *t = &s->t;
    const struct tile_epilogue *e = &s->e;
    for (size_t r = 0; r < s->rows; r++)
        for (size_t j = 0; j < t->columns; j++) {
            float v = fmaf((float)sum_of(s, r, j), e->scale[j], e->bias[j]);
            float shift = e->residual_shift - (float)e->residual_zero_point * e->residual_scale;
            if (e->inner)
                v = fmaf(clamped(rintf(v), e->inner_low, e->inner_high), e->inner_scale, shift);
            else if (e->residual_dtype == MLO_UINT8 || e->residual_dtype == MLO_INT8)
                v += shift;
            if (e->residual_dtype == MLO_FLOAT32)
                v += s->float_residual[r][j];
            else if (e->residual_dtype != MLO_DTYPE_NONE) {
                int b = e->residual_dtype == MLO_INT8 ? (int8_t)s->residual[r][j] : s->residual[r][j];
                v = fmaf((float)b, e->residual_scale, v);
            }
            if (e->y_dtype == MLO_FLOAT32)
                s->want.floats[r][j] = clamped(v, e->low, e->high);
            else
                s->want.bytes[r][j] =
                    isnan(v) ? (uint8_t)(int)e->low
                             : (uint8_t)(int)clamped(rintf(v) + (float)e->y_zero_point, e->low, e->high);
        }
}

static void check(struct sample *s, tile_fn *run, const char *what)
{
    memset(&s->y, GUARD, sizeof s->y);
    memset(&s->want, GUARD, sizeof s->want);
    expect(s);
    run(&s->t);
    for (size_t r = 0; r <= s->rows && r < MAX_ROWS; r++)
        for (size_t i = 0; i < sizeof s->y.bytes[r]; i++)
            if (s->y.bytes[r][i] != s->want.bytes[r][i]) {
                bool f = s->e.y_dtype == MLO_FLOAT32;
                fail_msg(
                    "%s, %zu rows of %zu columns of %zu, %zu taps of %zu groups, residual %d%s, output %d: "
                    "row %zu, byte %zu is %u, wanted %u (%g, %g)",
                    what, s->rows, s->t.columns, s->width, s->t.tap_count, s->t.depth,
                    (int)s->e.residual_dtype, s->e.inner ? " quantized before" : "", (int)s->e.y_dtype, r, i,
                    s->y.bytes[r][i], s->want.bytes[r][i], f ? (double)s->y.floats[r][i / 4] : 0.0,
                    f ? (double)s->want.floats[r][i / 4] : 0.0);
            }
}

static void fill(struct sample *s, const struct tile_kernels *k, int width, size_t rows, bool x_signed)
{
    static const enum mlo_dtype outs[] = {MLO_UINT8, MLO_INT8, MLO_FLOAT32};
    static const enum mlo_dtype residuals[] = {MLO_DTYPE_NONE, MLO_UINT8, MLO_INT8, MLO_FLOAT32};
    s->width = k->widths[width];
    s->rows = rows;
    s->x_signed = x_signed;
    size_t depth = (size_t)any(1, MAX_DEPTH), stride = depth * 4 + (size_t)any(0, 9);
    bool extreme = any(0, 3) == 0;
    for (size_t i = 0; i < sizeof s->x; i++)
        s->x[i] = (uint8_t)(extreme ? any(0, 1) * 255 : any(0, 255));
    for (size_t i = 0; i < sizeof s->panel; i++)
        s->panel[i] = (int8_t)(extreme ? any(0, 1) * 255 - 128 : any(-128, 127));
    for (int i = 0; i < MAX_TAPS; i++)
        s->taps[i] = (ptrdiff_t)(any(0, 2) * (int)stride + any(0, 3));
    size_t half = (rows + 1) / 2;
    bool powers = any(0, 1) != 0; /* products that are exact meet ties of rounding */
    float typical = 60.0f / (73.0f * 73.0f * sqrtf((float)(4 * depth)));
    for (int j = 0; j < MAX_WIDTH; j++) {
        s->init[j] = any(-100000, 100000);
        s->scale[j] = powers ? ldexpf(1.0f, -any(1, 10)) : typical * (float)any(500, 2000) / 1000.0f;
        s->bias[j] = powers ? (float)any(-40, 40) * 0.5f : (float)any(-30000, 30000) / 1000.0f;
    }
    enum mlo_dtype y = outs[any(0, 2)], residual = residuals[any(0, 3)];
    if (any(0, 7) == 0)
        s->bias[3] = NAN;
    if (any(0, 7) == 0 && y == MLO_FLOAT32) {
        s->scale[0] = 1e30f;
        s->bias[1] = INFINITY;
        s->bias[2] = -INFINITY;
        s->scale[4] = 1e-42f;
        s->bias[5] = 1e-42f;
    }
    for (size_t r = 0; r < MAX_ROWS; r++)
        for (int j = 0; j < MAX_WIDTH; j++) {
            s->residual[r][j] = (uint8_t)any(0, 255);
            s->float_residual[r][j] = (float)any(-50000, 50000) / 1000.0f;
        }
    s->e = (struct tile_epilogue){
        .bias = s->bias,
        .scale = s->scale,
        .init = any(0, 1) ? s->init : NULL,
        .low = y == MLO_INT8 ? -128.0f : 0.0f,
        .high = y == MLO_INT8 ? 127.0f : 255.0f,
        .residual_dtype = residual,
        .residual_scale = powers ? 0.5f : 0.37f,
        .residual_shift = (float)any(-20, 130),
        .residual_zero_point = residual == MLO_INT8 ? any(-128, 127) : any(0, 255),
        .inner = (residual == MLO_UINT8 || residual == MLO_INT8) && any(0, 1),
        .inner_low = (float)any(-128, -1),
        .inner_high = (float)any(1, 127),
        .inner_scale = powers ? 0.5f : 0.71f,
        .y_dtype = y,
        .y_zero_point = y == MLO_INT8 ? any(-128, 127) : any(0, 1) * any(0, 255),
    };
    if (y == MLO_FLOAT32 || any(0, 2) == 0) {
        s->e.low = y == MLO_FLOAT32 && any(0, 1) ? -INFINITY : (float)any(0, 20);
        s->e.high = y == MLO_FLOAT32 && any(0, 1) ? INFINITY : (float)any(30, 120);
    }
    s->t = (struct tile){
        .x0 = (const char *)s->x,
        .x1 = (const char *)s->x + half * stride + (size_t)any(0, 200),
        .x_stride = stride,
        .taps = s->taps,
        .tap_count = (size_t)any(1, MAX_TAPS),
        .depth = depth,
        .panel = s->panel,
        .y = (char *)s->y.bytes,
        .y_stride = sizeof s->y.bytes[0],
        .residual = residual == MLO_FLOAT32 ? (const char *)s->float_residual : (const char *)s->residual,
        .residual_stride = residual == MLO_FLOAT32 ? sizeof s->float_residual[0] : sizeof s->residual[0],
        .ahead = (const char *)s->panel,
        .columns = any(0, 1) ? s->width : (size_t)any(1, (int)s->width),
        .epilogue = &s->e,
    };
    if (residual == MLO_DTYPE_NONE)
        s->t.residual = NULL;
}

static void check_all(const struct tile_kernels *k, bool x_signed)
{
    static struct sample s;
    if (!k)
        skip();
    assert_int_equal(k->group_bytes, 4);
    assert_int_equal(k->group_depth, 4);
    for (int w = 0; w < k->width_count; w++) {
        assert_true(k->widths[w] <= MAX_WIDTH && k->rows_max[w] <= TILE_ROWS_MAX);
        for (int rows = 1; rows <= k->rows_max[w]; rows++)
            for (int i = 0; i < 150; i++) {
                fill(&s, k, w, (size_t)rows, x_signed);
                k->prepare(&s.e);
                check(&s, k->run[w][rows - 1], k->name);
            }
    }
}

/* Of y as a byte: how far it may be from the exact number of steps, which rounding alone makes 0.5. */
#define SWISH_STEPS 0.501

static void check_swish(struct sample *s, const struct tile_swish *swish, tile_fn *run)
{
    const bool is_signed = s->e.y_dtype == MLO_INT8;
    const double lowest = is_signed ? -128.0 : 0.0;
    memset(&s->y, GUARD, sizeof s->y);
    run(&s->t);
    for (size_t r = 0; r < MAX_ROWS; r++)
        for (size_t j = 0; j < sizeof s->y.bytes[r]; j++) {
            const int got = is_signed ? (int8_t)s->y.bytes[r][j] : s->y.bytes[r][j];
            if (r >= s->rows || j >= s->t.columns) {
                assert_int_equal(s->y.bytes[r][j], GUARD);
                continue;
            }
            const double x = (double)fmaf((float)sum_of(s, r, j), s->e.scale[j], s->e.bias[j]);
            double y = x / (1.0 + exp(-(double)swish->alpha * x)) / (double)swish->scale;
            y = isnan(y) ? lowest : fmin(fmax(y + (double)swish->zero_point, lowest), lowest + 255.0);
            if (fabs(y - got) > SWISH_STEPS)
                fail_msg("%zu rows of %zu columns, alpha %g, scale %g, zero point %d: swish(%g) is %d, "
                         "wanted %g",
                         s->rows, s->t.columns, (double)swish->alpha, (double)swish->scale, swish->zero_point,
                         x, got, y);
        }
}

static void swish_all(const struct tile_kernels *k, bool x_signed)
{
    static struct sample s;
    static const float scales[] = {0.001f, 0.02f, 0.1f, 1.0f, 1e-30f, 1e30f};
    if (!k)
        skip();
    assert_true(k->swish);
    for (int w = 0; w < k->width_count; w++)
        for (int rows = 1; rows <= k->rows_max[w]; rows++)
            for (int i = 0; i < 100; i++) {
                fill(&s, k, w, (size_t)rows, x_signed);
                const enum mlo_dtype y = any(0, 1) ? MLO_INT8 : MLO_UINT8;
                const struct tile_swish swish = {.alpha = any(0, 2) ? 1.0f : 1.7f,
                                                 .scale = scales[any(0, 5)],
                                                 .zero_point = any(0, 255) - (y == MLO_INT8 ? 128 : 0)};
                s.e = (struct tile_epilogue){.bias = s.bias,
                                             .scale = s.scale,
                                             .init = s.e.init,
                                             .low = -INFINITY,
                                             .high = INFINITY,
                                             .y_dtype = y,
                                             .swish = &swish};
                k->prepare(&s.e);
                s.t.residual = NULL;
                s.bias[1] = INFINITY;
                s.bias[2] = -INFINITY; /* x * 0 is a NaN */
                s.bias[5] = -120.0f;
                check_swish(&s, &swish, k->run[w][rows - 1]);
            }
}

static void test_swish__is_what_doubles_say(void **state)
{
    MLO_UNUSED(state);
    swish_all(tile_kernels_u8s8(mlo_isa_current()), false);
    swish_all(tile_kernels_s8s8(mlo_isa_current()), true);
}

static void test_u8s8__equals_a_plain_loop(void **state)
{
    MLO_UNUSED(state);
    check_all(tile_kernels_u8s8(mlo_isa_current()), false);
}

static void test_s8s8__equals_a_plain_loop(void **state)
{
    MLO_UNUSED(state);
    check_all(tile_kernels_s8s8(mlo_isa_current()), true);
}

static void test_kernels__none_without_vnni(void **state)
{
    MLO_UNUSED(state);
    for (int isa = MLO_ISA_GENERIC; isa < MLO_ISA_AVX512_VNNI; isa++) {
        assert_null(tile_kernels_u8s8((enum mlo_isa)isa));
        assert_null(tile_kernels_s8s8((enum mlo_isa)isa));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_u8s8__equals_a_plain_loop),
        cmocka_unit_test(test_s8s8__equals_a_plain_loop),
        cmocka_unit_test(test_swish__is_what_doubles_say),
        cmocka_unit_test(test_kernels__none_without_vnni),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
