/* Products in 16-bit fixed point by AVX-512 VNNI: vpdpwssd adds two products of 16-bit numbers to an int32.
 */
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/tile_dots_avx512_impl.h"
#include "engines/cpu/fast/tile_fixed_impl.h"

enum { WIDTH_MAX = 48 };

/* The integers of a part of the depth in float32, times each row's unit. */
INLINE void add_to(const struct tile *t, ptrdiff_t unit, size_t v, size_t low, size_t rows,
                   const __m512i a[SUMS_MAX], float *sums)
{
    UNROLL for (size_t r = 0; r < rows; r++)
    {
        const float *u = r < low ? t->units0 + r * t->unit_step : t->units1 + (r - low) * t->unit_step;
        const __m512 units = _mm512_set1_ps(u[unit]);
        UNROLL for (size_t j = 0; j < v; j++)
        {
            float *to = sums + (r * v + j) * 16;
            _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[index_of(v, low, r, j)]), units,
                                                _mm512_load_ps(to)));
        }
    }
}

/* The epilogue. A NaN stays. */
INLINE void finish(const struct tile *t, size_t v, size_t rows, bool residual, const float *sums)
{
    const struct tile_epilogue *e = t->epilogue;
    const __m512 low = _mm512_set1_ps(e->low), high = _mm512_set1_ps(e->high);
    __m512 scale[3], bias[3];
    __mmask16 mask[3];
    UNROLL for (size_t j = 0; j < v; j++)
    {
        size_t left = t->columns > 16 * j ? t->columns - 16 * j : 0;
        scale[j] = _mm512_loadu_ps(e->scale + 16 * j);
        bias[j] = _mm512_loadu_ps(e->bias + 16 * j);
        mask[j] = left < 16 ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
    }
    for (size_t r = 0; r < rows; r++) {
        char *y = t->y + r * t->y_stride;
        UNROLL for (size_t j = 0; j < v; j++)
        {
            __m512 f = _mm512_fmadd_ps(_mm512_load_ps(sums + (r * v + j) * 16), scale[j], bias[j]);
            if (residual)
                f = _mm512_add_ps(
                    f, _mm512_maskz_loadu_ps(mask[j], t->residual + r * t->residual_stride + 64 * j));
            f = _mm512_max_ps(low, _mm512_min_ps(high, f)); /* the second, where one is NaN */
            /* what is stored by a mask is not forwarded to loads */
            if (mask[j] == 0xffff)
                _mm512_storeu_ps(y + 64 * j, f);
            else
                _mm512_mask_storeu_ps(y + 64 * j, mask[j], f);
        }
    }
}

typedef void finish_fn(const struct tile *t, size_t rows, const float *sums);
#define FINISH(v)                                                                                            \
    TARGET static void plain_##v(const struct tile *t, size_t rows, const float *sums)                       \
    {                                                                                                        \
        finish(t, v, rows, false, sums);                                                                     \
    }                                                                                                        \
    TARGET static void added_##v(const struct tile *t, size_t rows, const float *sums)                       \
    {                                                                                                        \
        finish(t, v, rows, true, sums);                                                                      \
    }
FINISH(1)
FINISH(2)
FINISH(3)
static finish_fn *const finishes[2][3] = {{plain_1, plain_2, plain_3}, {added_1, added_2, added_3}};

/* Each tap by itself, since its line has its own unit, in parts of about the same depth. */
#define TILE(x, v, low, high)                                                                                \
    SUMS(x, v, low, high)                                                                                    \
    TARGET static void tile_##x##_##v##_##low##_##high(const struct tile *t)                                 \
    {                                                                                                        \
        float sums[(low + high) * v * 16] __attribute__((aligned(64)));                                      \
        __m512i a[SUMS_MAX];                                                                                 \
        struct tile part = *t;                                                                               \
        const size_t parts = fast_quotient(t->depth + t->run - 1, t->run);                                   \
        const size_t step = fast_quotient(t->depth + parts - 1, parts);                                      \
        const char *panel = t->panel;                                                                        \
        memset(sums, 0, sizeof sums);                                                                        \
        part.tap_count = 1;                                                                                  \
        for (size_t tap = 0; tap < t->tap_count; tap++) {                                                    \
            part.taps = t->taps + tap;                                                                       \
            for (size_t k = 0; k < t->depth; k += step) {                                                    \
                part.x0 = t->x0 + 4 * k;                                                                     \
                part.x1 = t->x1 + 4 * k;                                                                     \
                part.depth = MLO_MIN(step, t->depth - k);                                                    \
                part.panel = panel;                                                                          \
                sums_##x##_##v##_##low##_##high(&part, a);                                                   \
                add_to(t, t->unit_taps[tap], v, low, low + high, a, sums);                                   \
                panel += 64 * v * part.depth;                                                                \
                part.ahead += t->ahead_step * part.depth;                                                    \
            }                                                                                                \
        }                                                                                                    \
        finishes[t->epilogue->residual_dtype != MLO_DTYPE_NONE][v - 1](t, low + high, sums);                 \
    }
TILES(I16)

const struct tile_kernels tile_fixed_vnni = {
    .name = "avx512-vnni fixed16",
    .group_bytes = 4,
    .group_depth = 2,
    .whole_groups = true,
    .width_count = 3,
    .widths = {16, 32, WIDTH_MAX},
    .rows_max = {14, 7, 5},
    .run = {tiles_I16_1, tiles_I16_2, tiles_I16_3},
};

/* --- x ------------------------------------------------------------------------------------------------ */

INLINE __m512i numbers_of(__m512 v, __m512 factor, __mmask16 *special)
{
    const __m512i infinite = _mm512_set1_epi32(TILE_FIXED_INFINITE);
    __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
    __mmask16 odd = _mm512_fpclass_ps_mask(v, 0x99); /* NaN of both kinds, infinities */
    *special |= odd;
    if (__builtin_expect(odd, 0)) {
        n = _mm512_mask_mov_epi32(n, _mm512_fpclass_ps_mask(v, 0x81), _mm512_set1_epi32(TILE_FIXED_NAN));
        n = _mm512_mask_mov_epi32(n, _mm512_fpclass_ps_mask(v, 0x08), infinite);
        n = _mm512_mask_sub_epi32(n, _mm512_fpclass_ps_mask(v, 0x10), _mm512_setzero_si512(), infinite);
    }
    return n;
}

TARGET static float largest_of(const float *x, size_t n)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MAX), end = _mm512_set1_epi32(0x7f800000);
    __m512i a = _mm512_setzero_si512(), b = a;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512i v = _mm512_and_si512(_mm512_loadu_si512(x + i), sign),
                w = _mm512_and_si512(_mm512_loadu_si512(x + i + 16), sign);
        a = _mm512_mask_max_epi32(a, _mm512_cmplt_epi32_mask(v, end), a, v);
        b = _mm512_mask_max_epi32(b, _mm512_cmplt_epi32_mask(w, end), b, w);
    }
    for (; i < n; i += 16) {
        __mmask16 some = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        __m512i v = _mm512_and_si512(_mm512_maskz_loadu_epi32(some, x + i), sign);
        a = _mm512_mask_max_epi32(a, _mm512_cmplt_epi32_mask(v, end), a, v);
    }
    return _mm512_reduce_max_ps(_mm512_castsi512_ps(_mm512_max_epi32(a, b)));
}

TARGET float tile_fixed_line_avx512(const float *x, size_t pixels, size_t channels, size_t padded,
                                    int16_t *out)
{
    const float largest = fmaxf(largest_of(x, pixels * channels), TILE_FIXED_LEAST);
    const __m512 factor = _mm512_set1_ps(TILE_FIXED_X / largest);
    __mmask16 odd = 0;
    if (channels == padded) {
        channels *= pixels;
        padded = channels;
        pixels = 1;
    }
    for (size_t p = 0; p < pixels; p++, x += channels, out += padded) {
        size_t i = 0;
        for (; i + 32 <= channels; i += 32) {
            __m256i a = _mm512_cvtepi32_epi16(numbers_of(_mm512_loadu_ps(x + i), factor, &odd)),
                    b = _mm512_cvtepi32_epi16(numbers_of(_mm512_loadu_ps(x + i + 16), factor, &odd));
            _mm512_storeu_si512(out + i, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
        }
        for (; i < padded; i += 16) {
            size_t here = channels > i ? channels - i : 0, room = padded - i;
            __mmask16 some = here < 16 ? (__mmask16)((1u << here) - 1) : (__mmask16)0xffff,
                      all = room < 16 ? (__mmask16)((1u << room) - 1) : (__mmask16)0xffff;
            __m512i n = numbers_of(_mm512_maskz_loadu_ps(some, x + i), factor, &odd);
            _mm512_mask_cvtepi32_storeu_epi16(out + i, all, n);
        }
    }
    const float unit = largest / TILE_FIXED_X;
    return odd || largest > TILE_FIXED_MOST ? -unit : unit;
}
