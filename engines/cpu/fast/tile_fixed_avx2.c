/* Products in 16-bit fixed point by AVX2: vpmaddwd adds two products of 16-bit numbers, vpaddd adds that up.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/tile_fixed_impl.h"

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))
#ifdef MLOPT_SANITIZED /* the checks in unrolled loops cost the compiler a minute */
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { ROWS = 6, WIDTH = 16 };

INLINE void add_to(float *to, __m256i integers, __m256 units)
{
    _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), units, _mm256_load_ps(to)));
}

/* The epilogue. A NaN stays. */
TARGET static void finish(const struct tile *t, size_t rows, const float *sums)
{
    const struct tile_epilogue *e = t->epilogue;
    const bool residual = e->residual_dtype != MLO_DTYPE_NONE;
    const __m256 low = _mm256_set1_ps(e->low), high = _mm256_set1_ps(e->high);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < t->columns; j += 8) {
            const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                          some = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(t->columns - j)), lanes);
            float *y = (float *)(void *)(t->y + r * t->y_stride) + j;
            __m256 f = _mm256_fmadd_ps(_mm256_load_ps(sums + r * WIDTH + j), _mm256_loadu_ps(e->scale + j),
                                       _mm256_loadu_ps(e->bias + j));
            if (residual)
                f = _mm256_add_ps(
                    f, _mm256_maskload_ps(
                           (const float *)(const void *)(t->residual + r * t->residual_stride) + j, some));
            f = _mm256_max_ps(low, _mm256_min_ps(high, f)); /* the second, where one is NaN */
            if (t->columns - j >= 8) /* what is stored by a mask is not forwarded to loads */
                _mm256_storeu_ps(y, f);
            else
                _mm256_maskstore_ps(y, some, f);
        }
}

INLINE void tile_rows(const struct tile *t, const size_t rows)
{
    float sums[ROWS * WIDTH] __attribute__((aligned(32)));
    const size_t low = (rows + 1) / 2, s = t->x_stride;
    const char *panel = t->panel, *ahead = t->ahead;
    /* parts of about the same depth, as all instruction sets have them: the same bits */
    const size_t parts = fast_quotient(t->depth + t->run - 1, t->run);
    const size_t step = fast_quotient(t->depth + parts - 1, parts);
    memset(sums, 0, rows * WIDTH * sizeof *sums);
    for (size_t tap = 0; tap < t->tap_count; tap++) {
        const char *a = t->x0 + t->taps[tap], *b = t->x1 + t->taps[tap];
        for (size_t k = 0, n; k < t->depth; k += n) {
            __m256i acc[ROWS][2];
            n = MLO_MIN(t->depth - k, step);
            UNROLL for (size_t r = 0; r < rows; r++) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
            for (size_t g = 0; g < n; g++, a += 4, b += 4, panel += 64, ahead += t->ahead_step) {
                const __m256i w0 = _mm256_load_si256((const __m256i *)(const void *)panel),
                              w1 = _mm256_load_si256((const __m256i *)(const void *)(panel + 32));
                _mm_prefetch(ahead, _MM_HINT_T1);
                UNROLL for (size_t r = 0; r < rows; r++)
                {
                    int32_t pair;
                    memcpy(&pair, r < low ? a + r * s : b + (r - low) * s, sizeof pair);
                    const __m256i x = _mm256_set1_epi32(pair);
                    acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(x, w0));
                    acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(x, w1));
                }
            }
            UNROLL for (size_t r = 0; r < rows; r++)
            {
                const float *u =
                    r < low ? t->units0 + r * t->unit_step : t->units1 + (r - low) * t->unit_step;
                const __m256 units = _mm256_set1_ps(u[t->unit_taps[tap]]);
                add_to(sums + r * WIDTH, acc[r][0], units);
                add_to(sums + r * WIDTH + 8, acc[r][1], units);
            }
        }
    }
    finish(t, rows, sums);
}

#define TILE(ROWS)                                                                                           \
    TARGET static void tile_##ROWS(const struct tile *t)                                                     \
    {                                                                                                        \
        tile_rows(t, ROWS);                                                                                  \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
static tile_fn *const tiles[ROWS] = {tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};

const struct tile_kernels tile_fixed_avx2 = {
    .name = "avx2 fixed16",
    .group_bytes = 4,
    .group_depth = 2,
    .whole_groups = true,
    .width_count = 1,
    .widths = {WIDTH},
    .rows_max = {ROWS},
    .run = {tiles},
};

/* --- x ------------------------------------------------------------------------------------------------ */

static uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & INT32_MAX;
}

TARGET static float largest_of(const float *x, size_t n, bool *special)
{
    enum { END = 0x7f800000 };
    const __m256i sign = _mm256_set1_epi32(INT32_MAX), end = _mm256_set1_epi32(END);
    __m256i most = _mm256_setzero_si256(), odd = most;
    uint32_t lanes[8], largest = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(x + i)), sign),
                number = _mm256_cmpgt_epi32(end, v);
        most = _mm256_max_epi32(most, _mm256_and_si256(v, number));
        odd = _mm256_or_si256(odd, _mm256_andnot_si256(number, sign));
    }
    _mm256_storeu_si256((__m256i *)(void *)lanes, most);
    for (int k = 0; k < 8; k++)
        largest = MLO_MAX(largest, lanes[k]);
    *special = !_mm256_testz_si256(odd, odd);
    for (; i < n; i++) {
        uint32_t v = magnitude(x[i]);
        *special |= v >= END;
        largest = v < END ? MLO_MAX(largest, v) : largest;
    }
    float value;
    memcpy(&value, &largest, sizeof value);
    return value;
}

TARGET static int16_t number_of(float x, float factor)
{
    if (!isfinite(x))
        return isnan(x) ? TILE_FIXED_NAN : x > 0 ? TILE_FIXED_INFINITE : -TILE_FIXED_INFINITE;
    return (int16_t)_mm_cvtss_si32(_mm_set_ss(x * factor));
}

TARGET float tile_fixed_line_avx2(const float *x, size_t pixels, size_t channels, size_t padded, int16_t *out)
{
    bool odd;
    const float largest = fmaxf(largest_of(x, pixels * channels, &odd), TILE_FIXED_LEAST),
                factor = TILE_FIXED_X / largest;
    const __m256 factors = _mm256_set1_ps(factor);
    if (channels == padded) {
        channels *= pixels;
        padded = channels;
        pixels = 1;
    }
    for (size_t p = 0; p < pixels; p++, x += channels, out += padded) {
        size_t i = 0;
        for (; !odd && i + 16 <= channels; i += 16) {
            __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factors)),
                    b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), factors)),
                    n = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), _MM_SHUFFLE(3, 1, 2, 0));
            _mm256_storeu_si256((__m256i *)(void *)(out + i), n);
        }
        for (; i < channels; i++)
            out[i] = number_of(x[i], factor);
        for (; i < padded; i++)
            out[i] = 0;
    }
    const float unit = largest / TILE_FIXED_X;
    return odd || largest > TILE_FIXED_MOST ? -unit : unit;
}
