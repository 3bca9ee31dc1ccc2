/* float32 tiles: rows are broadcast, columns are vectors; each output is one chain of fused multiply-adds
 * that begins at the bias, or in tiles of few rows the sum of several, one for each depth modulo their
 * number: a product of one row would else wait for each multiply-add to end. Written once per instruction
 * set, compiled for every number of rows. */
#include <immintrin.h>

#include "engines/cpu/fast/tile_impl.h"

#define BODY(TARGET) static inline __attribute__((always_inline, target(TARGET)))

/* --- AVX-512 -------------------------------------------------------------------------------------------- */

enum { ROWS_512 = 14, VECTORS_512 = 2, CHAINS = 4, CHAINS_ROWS = 3 };

BODY("avx512f") __mmask16 mask_512(size_t columns, int vector)
{
    size_t before = (size_t)vector * 16;
    return columns >= before + 16 ? (__mmask16)0xffff
           : columns > before     ? (__mmask16)((1u << (columns - before)) - 1)
                                  : (__mmask16)0;
}

BODY("avx512f")
void finish_512(const struct tile *t, const int rows, const int vectors, const bool full,
                __m512 acc[ROWS_512][VECTORS_512])
{
    const struct tile_epilogue *e = t->epilogue;
    const __m512 low = _mm512_set1_ps(e->low), high = _mm512_set1_ps(e->high);
    const bool sum = e->residual_dtype != MLO_DTYPE_NONE;
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            const __mmask16 m = full ? (__mmask16)0xffff : mask_512(t->columns, j);
            char *y = t->y + (size_t)i * t->y_stride + j * 64;
            __m512 v = acc[i][j];
            if (sum) {
                const char *residual = t->residual + (size_t)i * t->residual_stride + j * 64;
                v = _mm512_add_ps(v, full ? _mm512_loadu_ps(residual) : _mm512_maskz_loadu_ps(m, residual));
            }
            /* the second operand is what a NaN leaves */
            v = _mm512_min_ps(high, _mm512_max_ps(low, v));
            if (full)
                _mm512_storeu_ps(y, v);
            else
                _mm512_mask_storeu_ps(y, m, v);
        }
}

BODY("avx512f") void tile_512(const struct tile *t, const int rows, const int vectors)
{
    const struct tile_epilogue *e = t->epilogue;
    __m512 acc[ROWS_512][VECTORS_512];
    const size_t half = (size_t)(rows + 1) / 2;
    const float *panel = t->panel;
    const char *ahead = t->ahead;
    const size_t ahead_step = t->ahead_step;
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            acc[i][j] = _mm512_loadu_ps(e->bias + j * 16);
    if (e->residual_dtype != MLO_DTYPE_NONE) /* read at the end: on its way meanwhile */
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++)
                _mm_prefetch(t->residual + (size_t)i * t->residual_stride + j * 64, _MM_HINT_T0);
    for (size_t tap = 0; tap < t->tap_count; tap++) {
        /* four rows from each of up to four addresses: one, two and three strides away */
        const size_t s = t->x_stride;
        const char *a = t->x0 + t->taps[tap], *b = a + 4 * s, *c = t->x1 + t->taps[tap], *d = c + 4 * s;
        for (size_t k = 0; k < t->depth; k++) {
            __m512 w[VECTORS_512];
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += ahead_step;
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++)
                w[j] = _mm512_loadu_ps(panel + j * 16);
            panel += vectors * 16;
#pragma GCC unroll 14
            for (int i = 0; i < rows; i++) {
                const size_t r = (size_t)i < half ? (size_t)i : (size_t)i - half;
                const char *base = (size_t)i < half ? (r < 4 ? a : b) : (r < 4 ? c : d);
                const __m512 x = _mm512_set1_ps(*(const float *)(base + r % 4 * s));
#pragma GCC unroll 2
                for (int j = 0; j < vectors; j++)
                    acc[i][j] = _mm512_fmadd_ps(x, w[j], acc[i][j]);
            }
            a += 4, b += 4, c += 4, d += 4;
        }
    }
    /* stores without a mask are read back fast, by activations */
    if (t->columns == (size_t)vectors * 16)
        finish_512(t, rows, vectors, true, acc);
    else
        finish_512(t, rows, vectors, false, acc);
}

/* At most CHAINS_ROWS rows. Reading the weights takes as long as multiplying them: they are brought from
 * where they are, so many bytes ahead. */
enum { FEW_AHEAD = 2048 };
BODY("avx512f") void few_512(const struct tile *t, const int rows, const int vectors)
{
    const struct tile_epilogue *e = t->epilogue;
    __m512 acc[ROWS_512][VECTORS_512], more[CHAINS - 1][CHAINS_ROWS][VECTORS_512];
    const float *panel = t->panel;
#pragma GCC unroll 3
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            acc[i][j] = _mm512_loadu_ps(e->bias + j * 16);
#pragma GCC unroll 3
            for (int c = 0; c < CHAINS - 1; c++)
                more[c][i][j] = _mm512_setzero_ps();
        }
    for (size_t tap = 0; tap < t->tap_count; tap++) {
        const char *a = t->x0 + t->taps[tap], *b = t->x1 + t->taps[tap];
        const char *x[CHAINS_ROWS] = {a, rows < 3 ? b : a + t->x_stride, b};
        size_t k = 0;
        for (; k + CHAINS <= t->depth; k += CHAINS) {
#pragma GCC unroll 4
            for (int c = 0; c < CHAINS; c++) {
#pragma GCC unroll 2
                for (int j = 0; j < vectors; j++) {
                    const float *from = panel + (c * vectors + j) * 16;
                    const __m512 w = _mm512_loadu_ps(from);
                    _mm_prefetch((const char *)from + FEW_AHEAD, _MM_HINT_T0);
#pragma GCC unroll 3
                    for (int i = 0; i < rows; i++) {
                        __m512 *to = c ? &more[c - 1][i][j] : &acc[i][j];
                        *to = _mm512_fmadd_ps(_mm512_set1_ps(((const float *)x[i])[k + (size_t)c]), w, *to);
                    }
                }
            }
            panel += CHAINS * vectors * 16;
        }
        for (; k < t->depth; k++) {
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) {
                const __m512 w = _mm512_loadu_ps(panel + j * 16);
#pragma GCC unroll 3
                for (int i = 0; i < rows; i++)
                    acc[i][j] = _mm512_fmadd_ps(_mm512_set1_ps(((const float *)x[i])[k]), w, acc[i][j]);
            }
            panel += vectors * 16;
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            acc[i][j] = _mm512_add_ps(_mm512_add_ps(acc[i][j], more[0][i][j]),
                                      _mm512_add_ps(more[1][i][j], more[2][i][j]));
    if (t->columns == (size_t)vectors * 16)
        finish_512(t, rows, vectors, true, acc);
    else
        finish_512(t, rows, vectors, false, acc);
}

#define TILE_512(ROWS, VECTORS)                                                                              \
    __attribute__((target("avx512f"))) static void tile_512_##ROWS##_##VECTORS(const struct tile *t)         \
    {                                                                                                        \
        if (ROWS <= CHAINS_ROWS)                                                                             \
            few_512(t, MLO_MIN(ROWS, CHAINS_ROWS), VECTORS);                                                 \
        else                                                                                                 \
            tile_512(t, ROWS, VECTORS);                                                                      \
    }
#define TILES_512(VECTORS)                                                                                   \
    TILE_512(1, VECTORS)                                                                                     \
    TILE_512(2, VECTORS)                                                                                     \
    TILE_512(3, VECTORS)                                                                                     \
    TILE_512(4, VECTORS)                                                                                     \
    TILE_512(5, VECTORS)                                                                                     \
    TILE_512(6, VECTORS)                                                                                     \
    TILE_512(7, VECTORS)                                                                                     \
    TILE_512(8, VECTORS)                                                                                     \
    TILE_512(9, VECTORS)                                                                                     \
    TILE_512(10, VECTORS)                                                                                    \
    TILE_512(11, VECTORS)                                                                                    \
    TILE_512(12, VECTORS)                                                                                    \
    TILE_512(13, VECTORS)                                                                                    \
    TILE_512(14, VECTORS)                                                                                    \
    static tile_fn *const run_512_##VECTORS[] = {                                                            \
        tile_512_1_##VECTORS,  tile_512_2_##VECTORS,  tile_512_3_##VECTORS,  tile_512_4_##VECTORS,           \
        tile_512_5_##VECTORS,  tile_512_6_##VECTORS,  tile_512_7_##VECTORS,  tile_512_8_##VECTORS,           \
        tile_512_9_##VECTORS,  tile_512_10_##VECTORS, tile_512_11_##VECTORS, tile_512_12_##VECTORS,          \
        tile_512_13_##VECTORS, tile_512_14_##VECTORS};
TILES_512(1)
TILES_512(2)

static const struct tile_kernels avx512 = {.name = "avx512 f32",
                                           .group_bytes = 4,
                                           .group_depth = 1,
                                           .width_count = 2,
                                           .widths = {16, 32},
                                           .rows_max = {14, 14},
                                           .narrow_tail = true,
                                           .run = {run_512_1, run_512_2}};

/* --- AVX2 ----------------------------------------------------------------------------------------------- */

enum { ROWS_256 = 12, VECTORS_256 = 2 };

BODY("avx2,fma") __m256i mask_256(size_t columns, int vector)
{
    static const int32_t lanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    size_t before = (size_t)vector * 8, n = columns > before ? MLO_MIN(columns - before, (size_t)8) : 0;
    return _mm256_loadu_si256((const __m256i *)(lanes + 8 - n));
}

BODY("avx2,fma")
void finish_256(const struct tile *t, const int rows, const int vectors, const bool full,
                __m256 acc[ROWS_256][VECTORS_256])
{
    const struct tile_epilogue *e = t->epilogue;
    const __m256 low = _mm256_set1_ps(e->low), high = _mm256_set1_ps(e->high);
    const bool sum = e->residual_dtype != MLO_DTYPE_NONE;
#pragma GCC unroll 2
    for (int j = 0; j < vectors; j++) {
        const __m256i m = full ? _mm256_set1_epi32(-1) : mask_256(t->columns, j);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            float *y = (float *)(t->y + (size_t)i * t->y_stride + j * 32);
            __m256 v = acc[i][j];
            if (sum) {
                const float *residual =
                    (const float *)(t->residual + (size_t)i * t->residual_stride + j * 32);
                v = _mm256_add_ps(v, full ? _mm256_loadu_ps(residual) : _mm256_maskload_ps(residual, m));
            }
            v = _mm256_min_ps(high, _mm256_max_ps(low, v));
            if (full)
                _mm256_storeu_ps(y, v);
            else
                _mm256_maskstore_ps(y, m, v);
        }
    }
}

BODY("avx2,fma") void tile_256(const struct tile *t, const int rows, const int vectors)
{
    const struct tile_epilogue *e = t->epilogue;
    __m256 acc[ROWS_256][VECTORS_256];
    const size_t half = (size_t)(rows + 1) / 2;
    const float *panel = t->panel;
    const char *ahead = t->ahead;
    const size_t ahead_step = t->ahead_step;
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            acc[i][j] = _mm256_loadu_ps(e->bias + j * 8);
    for (size_t tap = 0; tap < t->tap_count; tap++) {
        const size_t s = t->x_stride;
        const char *a = t->x0 + t->taps[tap], *b = a + 4 * s, *c = t->x1 + t->taps[tap], *d = c + 4 * s;
        for (size_t k = 0; k < t->depth; k++) {
            __m256 w[VECTORS_256];
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += ahead_step;
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++)
                w[j] = _mm256_loadu_ps(panel + j * 8);
            panel += vectors * 8;
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) {
                const size_t r = (size_t)i < half ? (size_t)i : (size_t)i - half;
                const char *base = (size_t)i < half ? (r < 4 ? a : b) : (r < 4 ? c : d);
                const __m256 x = _mm256_broadcast_ss((const float *)(base + r % 4 * s));
#pragma GCC unroll 2
                for (int j = 0; j < vectors; j++)
                    acc[i][j] = _mm256_fmadd_ps(x, w[j], acc[i][j]);
            }
            a += 4, b += 4, c += 4, d += 4;
        }
    }
    if (t->columns == (size_t)vectors * 8)
        finish_256(t, rows, vectors, true, acc);
    else
        finish_256(t, rows, vectors, false, acc);
}

#define TILE_256(ROWS, VECTORS)                                                                              \
    __attribute__((target("avx2,fma"))) static void tile_256_##ROWS##_##VECTORS(const struct tile *t)        \
    {                                                                                                        \
        tile_256(t, ROWS, VECTORS);                                                                          \
    }
TILE_256(1, 1)
TILE_256(2, 1)
TILE_256(3, 1)
TILE_256(4, 1)
TILE_256(5, 1)
TILE_256(6, 1)
TILE_256(7, 1)
TILE_256(8, 1)
TILE_256(9, 1)
TILE_256(10, 1)
TILE_256(11, 1)
TILE_256(12, 1)
TILE_256(1, 2)
TILE_256(2, 2)
TILE_256(3, 2)
TILE_256(4, 2)
TILE_256(5, 2)
TILE_256(6, 2)
static tile_fn *const run_256_1[] = {tile_256_1_1, tile_256_2_1,  tile_256_3_1,  tile_256_4_1,
                                     tile_256_5_1, tile_256_6_1,  tile_256_7_1,  tile_256_8_1,
                                     tile_256_9_1, tile_256_10_1, tile_256_11_1, tile_256_12_1};
static tile_fn *const run_256_2[] = {tile_256_1_2, tile_256_2_2, tile_256_3_2,
                                     tile_256_4_2, tile_256_5_2, tile_256_6_2};

static const struct tile_kernels avx2 = {.name = "avx2 f32",
                                         .group_bytes = 4,
                                         .group_depth = 1,
                                         .width_count = 2,
                                         .widths = {8, 16},
                                         .rows_max = {12, 6},
                                         .narrow_tail = true,
                                         .run = {run_256_1, run_256_2}};

const struct tile_kernels *tile_kernels_f32(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &avx512 : isa >= MLO_ISA_AVX2 ? &avx2 : NULL;
}
