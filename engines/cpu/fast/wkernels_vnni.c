/* Packed weights on AVX-512 with VNNI: rows as fixed-point numbers, sums of blocks in integers. */
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/wonly_impl.h"

#include <immintrin.h>

#define SIMD_LANES 16
#define SIMD_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#define vi_load(p) _mm512_loadu_si512(p)
#define vi_xor(a, b) _mm512_xor_si512(a, b)

#include "engines/cpu/fast/wkernels_float.inc"

/* acc += four unsigned bytes times four signed ones, the same four for every column. The compiler would load
 * and broadcast first, and run out of registers. */
#define DOT(acc, bytes, four) __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(bytes), "m"(*(four)))

#define UNROLL WONLY_UNROLL

V_FN void store_columns(const struct wonly_tile *t, int r, vf sum)
{
    float *y = t->y + (size_t)r * t->y_stride;
    if (t->bias)
        sum = v_add(sum, v_load(t->bias));
    if (t->columns == WONLY_COLUMNS)
        v_store(y, sum);
    else
        v_store_n(y, (int)t->columns, sum);
}

/* Sums of one block into acc[row][plane]; one row is split over two sums, since each addition waits for the
 * one before. */
#define SUM_BLOCK()                                                                                          \
    for (size_t g = 0; g < t->block; g += WONLY_GROUP) {                                                     \
        vi low, high;                                                                                        \
        if (bits == 4) {                                                                                     \
            vi both = vi_load(w);                                                                            \
            low = vi_and(both, nibbles);                                                                     \
            high = vi_and(_mm512_srli_epi16(both, 4), nibbles);                                              \
            w += 64;                                                                                         \
        } else {                                                                                             \
            low = vi_load(w);                                                                                \
            high = vi_load(w + 64);                                                                          \
            w += 128;                                                                                        \
        }                                                                                                    \
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < planes; p++)                        \
            DOT(acc[r][p], low, x + r * planes + p);                                                         \
        x += rows * planes;                                                                                  \
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < planes; p++)                        \
            DOT(acc[rows == 1 ? 1 : r][p], high, x + r * planes + p);                                        \
        x += rows * planes;                                                                                  \
    }                                                                                                        \
    if (rows == 1)                                                                                           \
        UNROLL for (int p = 0; p < planes; p++) acc[0][p] = vi_add(acc[0][p], acc[1][p]);

V_FN void wonly_fixed(const struct wonly_tile *t, const int bits, const int planes, const int rows)
{
    vf total[WONLY_ROWS_MAX];
    const uint8_t *w = t->w;
    const int32_t *x = t->x->x, *init = t->x->init;
    const float *x_scale = t->x->scale, *x_sum = t->x->sum;
    const vi nibbles = _mm512_set1_epi8(15);
    UNROLL for (int r = 0; r < rows; r++) total[r] = v_set(0.0f);
    for (size_t b = 0; b < t->blocks; b++) {
        vi acc[WONLY_ROWS_MAX][WONLY_PLANES_MAX];
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < planes; p++)
        {
            acc[r][p] = vi_set(init[r * planes + p]);
            if (rows == 1)
                acc[1][p] = _mm512_setzero_si512();
        }
        init += rows * planes;
        SUM_BLOCK()
        vf scale = v_load(t->w_scale + b * WONLY_COLUMNS);
        UNROLL for (int r = 0; r < rows; r++)
        {
            vf f = v_from_int(acc[r][0]);
            UNROLL for (int p = 1; p < planes; p++) f = v_fma(f, v_set(256.0f), v_from_int(acc[r][p]));
            if (t->w_zero) {
                vf zero = v_sub(v_load_u8(t->w_zero + b * WONLY_COLUMNS), v_set(bits == 4 ? 8.0f : 128.0f));
                f = v_fnma(zero, v_set(x_sum[r]), f);
            }
            total[r] = v_fma(v_mul(f, v_set(x_scale[r])), scale, total[r]);
        }
        x_scale += rows;
        x_sum += rows;
    }
    UNROLL for (int r = 0; r < rows; r++) store_columns(t, r, total[r]);
}

/* One block and one plane: all terms of the zero points are integers, and so may the results be. */
V_FN void wonly_exact(const struct wonly_tile *t, const int rows)
{
    enum { bits = 8, planes = 1 };
    const uint8_t *w = t->w;
    const int32_t *x = t->x->x;
    const vi nibbles = _mm512_set1_epi8(15);
    vi acc[WONLY_ROWS_MAX][1];
    UNROLL for (int r = 0; r < rows; r++)
    {
        acc[r][0] = vi_add(vi_set(t->x->init[r]), vi_load(t->column_init));
        if (t->column_by_sum)
            acc[r][0] = vi_add(acc[r][0],
                               _mm512_mullo_epi32(vi_load(t->column_by_sum), vi_set((int32_t)t->x->sum[r])));
        if (rows == 1)
            acc[1][0] = _mm512_setzero_si512();
    }
    SUM_BLOCK()
    if (t->yi) {
        __mmask16 m = (__mmask16)((1u << t->columns) - 1u);
        UNROLL for (int r = 0; r < rows; r++)
            _mm512_mask_storeu_epi32(t->yi + (size_t)r * t->y_stride, m, acc[r][0]);
        return;
    }
    vf scale = v_load(t->w_scale);
    UNROLL for (int r = 0; r < rows; r++)
        store_columns(t, r, v_mul(v_from_int(acc[r][0]), v_mul(scale, v_set(t->x->scale[r]))));
}

#define FIXED(bits, planes, rows)                                                                            \
    static void fixed_##bits##_##planes##_##rows(const struct wonly_tile *t)                                 \
    {                                                                                                        \
        wonly_fixed(t, bits, planes, rows);                                                                  \
    }
#define FIXED_4(bits, planes)                                                                                \
    FIXED(bits, planes, 1) FIXED(bits, planes, 2) FIXED(bits, planes, 3) FIXED(bits, planes, 4)
#define FIXED_8(bits, planes)                                                                                \
    FIXED_4(bits, planes)                                                                                    \
    FIXED(bits, planes, 5) FIXED(bits, planes, 6) FIXED(bits, planes, 7) FIXED(bits, planes, 8)
FIXED_8(4, 1)
FIXED_4(4, 2)
FIXED_4(4, 3)
FIXED_8(8, 1)
FIXED_4(8, 2)
FIXED_4(8, 3)
#define NAMES_4(bits, planes)                                                                                \
    fixed_##bits##_##planes##_1, fixed_##bits##_##planes##_2, fixed_##bits##_##planes##_3,                   \
        fixed_##bits##_##planes##_4
#define NAMES_8(bits, planes)                                                                                \
    NAMES_4(bits, planes), fixed_##bits##_##planes##_5, fixed_##bits##_##planes##_6,                         \
        fixed_##bits##_##planes##_7, fixed_##bits##_##planes##_8
#define EXACT(rows)                                                                                          \
    static void exact_##rows(const struct wonly_tile *t)                                                     \
    {                                                                                                        \
        wonly_exact(t, rows);                                                                                \
    }
EXACT(1)
EXACT(2)
EXACT(3)
EXACT(4)
EXACT(5)
EXACT(6)
EXACT(7)
EXACT(8)

/* The largest number that so many signed bytes hold is 127 in each; of three, one that rounding cannot
 * exceed. */
static const float largest[WONLY_PLANES_MAX] = {127.0f, 32639.0f, 8355000.0f};

static float greatest(const float *x, size_t n)
{
    vf most = v_set(0.0f);
    vm odd = 0;
    for (size_t i = 0; i < n; i += SIMD_LANES) {
        vf v = n - i >= SIMD_LANES ? v_load(x + i) : v_load_n(x + i, n - i);
        odd |= _mm512_fpclass_ps_mask(v, 0x99); /* NaN, infinities */
        most = v_max(v_abs(v), most);
    }
    return odd ? INFINITY : v_most(most);
}

static void fix(const float *x, size_t x_stride, size_t rows, size_t depth, size_t block, size_t blocks,
                int planes, int middle, struct wonly_rows *out)
{
    size_t width = rows * (size_t)planes; /* dwords of four depths */
    out->fits = true;
    for (size_t r = 0; r < rows; r++)
        for (size_t b = 0; b < blocks; b++) {
            const float *from = x + r * x_stride + b * block;
            size_t n = depth > b * block ? MLO_MIN(depth - b * block, block) : 0;
            int32_t *to = out->x + b * (block / 4) * width + r * (size_t)planes;
            float most = greatest(from, n);
            if (!(most == 0.0f || (most > 0x1p-100f && most < INFINITY))) {
                out->fits = false;
                return;
            }
            vf inverse = v_set(most > 0.0f ? largest[planes - 1] / most : 0.0f);
            vi sums[WONLY_PLANES_MAX] = {_mm512_setzero_si512(), _mm512_setzero_si512(),
                                         _mm512_setzero_si512()};
            for (size_t i = 0; i < block; i += SIMD_LANES) {
                size_t have = i < n ? n - i : 0, dwords = MLO_MIN((block - i) / 4, (size_t)4);
                vf v = have >= SIMD_LANES ? v_load(from + i) : v_load_n(from + (have ? i : 0), have);
                vi q = v_to_int(v_mul(v, inverse));
                for (int p = planes - 1; p >= 0; p--) { /* the low bytes first */
                    __m128i bytes = _mm512_cvtepi32_epi8(q);
                    vi low = _mm512_cvtepi8_epi32(bytes);
                    int32_t four[4];
                    _mm_storeu_si128((__m128i *)(void *)four, bytes);
                    sums[p] = vi_add(sums[p], low);
                    q = vi_sar(vi_sub(q, low), 8);
                    for (size_t d = 0; d < dwords; d++)
                        to[(i / 4 + d) * width + (size_t)p] = four[d];
                }
            }
            double sum = 0;
            for (int p = 0; p < planes; p++) {
                int32_t s = _mm512_reduce_add_epi32(sums[p]);
                sum = sum * 256 + s;
                out->init[b * width + r * (size_t)planes + (size_t)p] = -middle * s;
            }
            out->scale[b * rows + r] = most / largest[planes - 1];
            out->sum[b * rows + r] = (float)sum;
        }
}

static void fix_bytes(const uint8_t *x, size_t x_stride, size_t rows, size_t depth, size_t block, int middle,
                      struct wonly_rows *out)
{
    const vi ones = _mm512_set1_epi8(1), flip = _mm512_set1_epi8((char)-middle);
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *from = x + r * x_stride;
        vi sum = _mm512_setzero_si512();
        for (size_t i = 0; i < block; i += 64) {
            size_t have = i < depth ? MLO_MIN(depth - i, (size_t)64) : 0;
            __mmask64 m = have == 64 ? ~(__mmask64)0 : ((__mmask64)1 << have) - 1;
            vi v = _mm512_maskz_mov_epi8(m, vi_xor(_mm512_maskz_loadu_epi8(m, from + i), flip));
            int32_t four[16];
            _mm512_storeu_si512(four, v);
            sum = _mm512_dpbusd_epi32(sum, ones, v);
            for (size_t d = 0; d < 16 && i + 4 * d < block; d++)
                out->x[(i / 4 + d) * rows + r] = four[d];
        }
        int32_t s = _mm512_reduce_add_epi32(sum);
        out->init[r] = -128 * s;
        out->sum[r] = (float)s;
    }
    out->fits = true;
}

#include "engines/cpu/fast/simd_end.inc"

const struct wonly_kernels wonly_kernels_vnni = {
    .name = "avx512-vnni",
    FLOAT_TABLE,
    .fixed_rows = {8, 4, 4},
    .fixed = {{{NAMES_8(4, 1)}, {NAMES_4(4, 2)}, {NAMES_4(4, 3)}},
              {{NAMES_8(8, 1)}, {NAMES_4(8, 2)}, {NAMES_4(8, 3)}}},
    .exact = {exact_1, exact_2, exact_3, exact_4, exact_5, exact_6, exact_7, exact_8},
    .exact_rows = 8,
    .fix = fix,
    .fix_bytes = fix_bytes,
};
