/* Products of uint8 or int8 rows with packed int8 panels by AVX-512 VNNI, sums exact in int32. The loop is
 * assembly (tile_dots_avx512_impl.h); what is done with the sums is not.
 *
 * vpdpbusd multiplies unsigned by signed bytes. int8 rows are made unsigned by x ^ 0x80 = x + 128; `init`
 * then holds -128 times the sum of the column's weights besides the other terms. */
#include <math.h>

#include "engines/cpu/fast/swish_avx512_impl.h"
#include "engines/cpu/fast/tile_dots_avx512_impl.h"

/* --- epilogues --------------------------------------------------------------------------------------- */

/* What is added; constant where it is used. INNER: the sums are quantized first, as the graph says. */
enum residual { NONE, FLOATS, U8, S8, INNER_U8, INNER_S8, RESIDUALS };

/* What exists of columns j to j + n - 1. */
static inline uint64_t mask_of(size_t columns, size_t j, size_t n)
{
    size_t count = columns <= j ? 0 : columns - j < n ? columns - j : n;
    return (UINT64_C(1) << count) - 1;
}

/* How a nearly whole tile of bytes ends, besides the kinds of residual; PLAIN: the output has all of uint8's
 * values, and zero point 0, as behind Relu. */
enum { PLAIN = RESIDUALS, PLAIN_INNER_U8, SWISH_BYTES };

static enum residual residual_of(const struct tile_epilogue *e)
{
    if (e->residual_dtype == MLO_FLOAT32)
        return FLOATS;
    if (e->residual_dtype == MLO_UINT8)
        return e->inner ? INNER_U8 : U8;
    if (e->residual_dtype == MLO_INT8)
        return e->inner ? INNER_S8 : S8;
    return NONE;
}

static void prepare(struct tile_epilogue *e)
{
    const enum residual kind = residual_of(e);
    struct tile_ready r = {.residual_shift =
                               e->residual_shift - (float)e->residual_zero_point * e->residual_scale,
                           .high = e->high,
                           .finish = (int)kind};
    if (e->swish) {
        r.finish = SWISH_BYTES;
    } else if (e->y_dtype != MLO_FLOAT32) {
        /* a plan's file may say anything */
        const int32_t low = (int32_t)fminf(fmaxf(e->low, -128.0f), 255.0f),
                      high = (int32_t)fminf(fmaxf(e->high, -128.0f), 255.0f), shift = e->y_zero_point - low,
                      span = MLO_MAX(high - low, 0);
        r.shift = (int32_t)((uint32_t)(uint16_t)shift * 0x10001u);
        r.span = (int32_t)((uint32_t)(uint8_t)span * 0x1010101u);
        r.low_bytes = (int32_t)((uint32_t)(uint8_t)low * 0x1010101u);
        r.high = e->high - (float)e->y_zero_point;
        const bool plain = shift == 0 && low == 0 && span == UINT8_MAX;
        if (plain && kind == NONE)
            r.finish = PLAIN;
        if (plain && kind == INNER_U8)
            r.finish = PLAIN_INNER_U8;
    }
    e->ready = r;
}

struct pass {
    __m512 scale[3], bias[3], residual_scale, residual_shift, inner_low, inner_high, inner_scale;
    __m512 low, high;
    __m512i shift, span, low_bytes; /* bytes: see bytes_of */
    __mmask16 mask[3];
};

INLINE struct pass pass_of(const struct tile *t, size_t v, bool whole)
{
    const struct tile_epilogue *e = t->epilogue;
    struct pass p = {
        .inner_low = _mm512_set1_ps(e->inner_low),
        .inner_high = _mm512_set1_ps(e->inner_high),
        .inner_scale = _mm512_set1_ps(e->inner_scale),
        .residual_scale = _mm512_set1_ps(e->residual_scale),
        .residual_shift = _mm512_set1_ps(e->ready.residual_shift),
        .low = _mm512_set1_ps(e->low),
        .high = _mm512_set1_ps(e->ready.high),
        .shift = _mm512_set1_epi32(e->ready.shift),
        .span = _mm512_set1_epi32(e->ready.span),
        .low_bytes = _mm512_set1_epi32(e->ready.low_bytes),
    };
    UNROLL for (size_t j = 0; j < v; j++)
    {
        p.scale[j] = _mm512_loadu_ps(e->scale + 16 * j);
        p.bias[j] = _mm512_loadu_ps(e->bias + 16 * j);
        p.mask[j] = whole ? UINT16_MAX : (__mmask16)mask_of(t->columns, 16 * j, 16);
    }
    return p;
}

INLINE __m512i widened_u8(const char *from, __mmask16 mask)
{
    __m512i wide;
    __asm__("vpmovzxbd %1,%0%{%2%}%{z%}" : "=v"(wide) : "m"(*(const __m128i_u *)from), "Yk"(mask));
    return wide;
}

INLINE __m512i widened_s8(const char *from, __mmask16 mask)
{
    __m512i wide;
    __asm__("vpmovsxbd %1,%0%{%2%}%{z%}" : "=v"(wide) : "m"(*(const __m128i_u *)from), "Yk"(mask));
    return wide;
}

/* Sums of columns 16 j to 16 j + 15 of a row, in the output's units, not clamped. */
INLINE __m512 finished(const struct pass *p, enum residual kind, __m512i sums, size_t j, const char *residual)
{
    __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), p->scale[j], p->bias[j]);
    if (kind == INNER_U8 || kind == INNER_S8) {
        v = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        v = _mm512_max_ps(p->inner_low, _mm512_min_ps(p->inner_high, v));
        v = _mm512_fmadd_ps(v, p->inner_scale, p->residual_shift);
    } else if (kind == U8 || kind == S8) {
        v = _mm512_add_ps(v, p->residual_shift);
    }
    if (kind == FLOATS) {
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(p->mask[j], residual + 16 * j * sizeof(float)));
    } else if (kind != NONE) {
        __m512i wide = kind == U8 || kind == INNER_U8 ? widened_u8(residual + 16 * j, p->mask[j])
                                                      : widened_s8(residual + 16 * j, p->mask[j]);
        v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), p->residual_scale, v);
    }
    return v;
}

/* Four vectors as bytes in order: rounded, then moved so that the lowest byte is 0 and saturated above it,
 * for bytes of either sign; if `plain`, that is where they are, up to 255. A NaN becomes the lowest value: so
 * do its 32 bits as an integer. */
INLINE __m512i bytes_of(const struct pass *p, bool plain, __m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    __m512i cd = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
    if (!plain) {
        ab = _mm512_adds_epi16(ab, p->shift);
        cd = _mm512_adds_epi16(cd, p->shift);
    }
    __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd));
    return plain ? bytes : _mm512_add_epi8(p->low_bytes, _mm512_min_epu8(p->span, bytes));
}

/* Bytes of four vectors, of rows from `first` on: one row of three, two of two, four of one. */
INLINE void store_rows(const struct tile *t, size_t v, size_t first, size_t rows, __mmask64 mask,
                       __m512i bytes)
{
    char *y = t->y + first * t->y_stride;
    if (v == 3)
        _mm512_mask_storeu_epi8(y, mask, bytes);
    if (v == 2)
        _mm256_mask_storeu_epi8(y, (__mmask32)mask, _mm512_castsi512_si256(bytes));
    if (v == 2 && first + 1 < rows)
        _mm256_mask_storeu_epi8(y + t->y_stride, (__mmask32)mask, _mm512_extracti64x4_epi64(bytes, 1));
    if (v == 1)
        _mm_mask_storeu_epi8(y, (__mmask16)mask, _mm512_castsi512_si128(bytes));
    if (v == 1 && first + 1 < rows)
        _mm_mask_storeu_epi8(y + t->y_stride, (__mmask16)mask, _mm512_extracti32x4_epi32(bytes, 1));
    if (v == 1 && first + 2 < rows)
        _mm_mask_storeu_epi8(y + 2 * t->y_stride, (__mmask16)mask, _mm512_extracti32x4_epi32(bytes, 2));
    if (v == 1 && first + 3 < rows)
        _mm_mask_storeu_epi8(y + 3 * t->y_stride, (__mmask16)mask, _mm512_extracti32x4_epi32(bytes, 3));
}

/* Rows of bytes, four vectors at a time: one row of three, two of two, four of one. `plain`: see bytes_of;
 * there are all columns. */
INLINE void to_bytes(const struct tile *t, size_t v, size_t low, size_t rows, enum residual kind, bool plain,
                     const __m512i sums[SUMS_MAX])
{
    const struct pass p = pass_of(t, v, plain);
    const size_t at_once = v == 3 ? 1 : 4 / v;
    const __mmask64 mask = plain ? (UINT64_C(1) << 16 * v) - 1 : mask_of(t->columns, 0, 16 * v);
    UNROLL for (size_t first = 0; first < rows; first += at_once)
    {
        __m512 f[4];
        UNROLL for (size_t i = 0; i < at_once * v; i++)
        {
            size_t r = first + i / v < rows ? first + i / v : rows - 1, j = i % v;
            f[i] = finished(&p, kind, sums[index_of(v, low, r, j)], j,
                            kind == NONE ? NULL : t->residual + r * t->residual_stride);
        }
        __m512i bytes = bytes_of(&p, plain, f[0], f[1], f[2], v == 3 ? f[0] : f[3]);
        store_rows(t, v, first, rows, mask, bytes);
    }
}

/* The rest goes through memory, one function for all numbers of rows. */

INLINE void rest_to_bytes(const struct tile *t, const __m512i *sums, size_t rows, size_t v,
                          enum residual kind)
{
    const struct pass p = pass_of(t, v, false);
    for (size_t r = 0; r < rows; r++) {
        __m512 f[4];
        const char *residual = kind == NONE ? NULL : t->residual + r * t->residual_stride;
        UNROLL for (size_t j = 0; j < v; j++)
        {
            f[j] = finished(&p, kind, sums[r * v + j], j, residual);
            if (kind == FLOATS)
                f[j] = _mm512_min_ps(p.high, f[j]);
        }
        for (size_t j = v; j < 4; j++)
            f[j] = f[0];
        __m512i bytes = bytes_of(&p, false, f[0], f[1], f[2], f[3]);
        _mm512_mask_storeu_epi8(t->y + r * t->y_stride, mask_of(t->columns, 0, 16 * v), bytes);
    }
}

INLINE void rest_to_floats(const struct tile *t, const __m512i *sums, size_t rows, size_t v,
                           enum residual kind)
{
    const struct pass p = pass_of(t, v, false);
    for (size_t r = 0; r < rows; r++) {
        const char *residual = kind == NONE ? NULL : t->residual + r * t->residual_stride;
        UNROLL for (size_t j = 0; j < v; j++)
        {
            __m512 f = finished(&p, kind, sums[r * v + j], j, residual);
            f = _mm512_max_ps(p.low, _mm512_min_ps(p.high, f));
            /* what is stored by a mask is not forwarded to loads */
            if (p.mask[j] == 0xffff)
                _mm512_storeu_ps(t->y + r * t->y_stride + 64 * j, f);
            else
                _mm512_mask_storeu_ps(t->y + r * t->y_stride + 64 * j, p.mask[j], f);
        }
    }
}

INLINE void swish_to_bytes(const struct tile *t, const __m512i *sums, size_t rows, size_t v)
{
    const struct swish_numbers s = swish_numbers(t->epilogue->swish);
    const size_t at_once = v == 3 ? 1 : 4 / v; /* rows */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __mmask64 mask = mask_of(t->columns, 0, 16 * v);
    __m512 scale[3], bias[3];
    UNROLL for (size_t j = 0; j < v; j++)
    {
        scale[j] = _mm512_loadu_ps(t->epilogue->scale + 16 * j);
        bias[j] = _mm512_loadu_ps(t->epilogue->bias + 16 * j);
    }
    for (size_t first = 0; first < rows; first += at_once) {
        __m512 f[4];
        __m512i q[4], bytes;
        UNROLL for (size_t i = 0; i < at_once * v; i++)
        {
            const size_t r = first + i / v < rows ? first + i / v : rows - 1;
            f[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r * v + i % v]), scale[i % v], bias[i % v]);
        }
        swish_rounded(&s, at_once * v, f, q);
        if (v == 3)
            q[3] = q[2];
        bytes = t->epilogue->y_dtype == MLO_INT8 ? swish_packed(&s, true, q) : swish_packed(&s, false, q);
        store_rows(t, v, first, rows, mask, _mm512_permutexvar_epi32(order, bytes));
    }
}

typedef void rest_fn(const struct tile *t, const __m512i *sums, size_t rows);

#define REST(v, kind)                                                                                        \
    TARGET static void bytes_##v##_##kind(const struct tile *t, const __m512i *sums, size_t rows)            \
    {                                                                                                        \
        rest_to_bytes(t, sums, rows, v, kind);                                                               \
    }                                                                                                        \
    TARGET static void floats_##v##_##kind(const struct tile *t, const __m512i *sums, size_t rows)           \
    {                                                                                                        \
        rest_to_floats(t, sums, rows, v, kind);                                                              \
    }
#define RESTS(v) REST(v, NONE) REST(v, FLOATS) REST(v, U8) REST(v, S8) REST(v, INNER_U8) REST(v, INNER_S8)
RESTS(1)
RESTS(2)
RESTS(3)

#define SWISH(v)                                                                                             \
    TARGET static void swish_##v(const struct tile *t, const __m512i *sums, size_t rows)                     \
    {                                                                                                        \
        swish_to_bytes(t, sums, rows, v);                                                                    \
    }
SWISH(1)
SWISH(2)
SWISH(3)
static rest_fn *const swishes[] = {swish_1, swish_2, swish_3};

#define REST_ROW(to, v)                                                                                      \
    {                                                                                                        \
        to##_##v##_NONE, to##_##v##_FLOATS, to##_##v##_U8, to##_##v##_S8, to##_##v##_INNER_U8,               \
            to##_##v##_INNER_S8                                                                              \
    }
/* by output (bytes, floats), vectors of columns, residual */
static rest_fn *const rests[2][3][RESIDUALS] = {
    {REST_ROW(bytes, 1), REST_ROW(bytes, 2), REST_ROW(bytes, 3)},
    {REST_ROW(floats, 1), REST_ROW(floats, 2), REST_ROW(floats, 3)},
};

INLINE void finish(const struct tile *t, size_t v, size_t low, size_t rows, const __m512i sums[SUMS_MAX])
{
    const struct tile_epilogue *e = t->epilogue;
    const int how = e->ready.finish;
    if (v * rows >= 10 && e->y_dtype != MLO_FLOAT32) { /* nearly whole tiles, as nets have them */
        const bool whole = t->columns == 16 * v;
        if (whole && how == PLAIN)
            return to_bytes(t, v, low, rows, NONE, true, sums);
        if (whole && how == PLAIN_INNER_U8)
            return to_bytes(t, v, low, rows, INNER_U8, true, sums);
        if (how == NONE || how == PLAIN)
            return to_bytes(t, v, low, rows, NONE, false, sums);
        if (how == U8)
            return to_bytes(t, v, low, rows, U8, false, sums);
        if (how == S8)
            return to_bytes(t, v, low, rows, S8, false, sums);
        if (how == INNER_U8 || how == PLAIN_INNER_U8)
            return to_bytes(t, v, low, rows, INNER_U8, false, sums);
        if (how == INNER_S8)
            return to_bytes(t, v, low, rows, INNER_S8, false, sums);
    }
    __m512i buffer[SUMS_MAX];
    UNROLL for (size_t r = 0; r < rows; r++) UNROLL for (size_t j = 0; j < v; j++) buffer[r * v + j] =
        sums[index_of(v, low, r, j)];
    if (how == SWISH_BYTES)
        swishes[v - 1](t, buffer, rows);
    else
        rests[e->y_dtype == MLO_FLOAT32][v - 1][residual_of(e)](t, buffer, rows);
}

/* --- tiles ------------------------------------------------------------------------------------------- */

/* The rows behind the tile's are most often the next ones; what is written and added comes from further away
 * than what the sums read. Prefetching never faults. */
INLINE void fetch_next(const struct tile *t, size_t rows)
{
    const char *y = t->y + rows * t->y_stride, *residual = t->residual;
    UNROLL for (size_t r = 0; r < rows; r++) __asm__ volatile("prefetchw %0" : : "m"(y[r * t->y_stride]));
    if (residual)
        UNROLL for (size_t r = rows; r < 2 * rows; r++)
            _mm_prefetch(residual + r * t->residual_stride, _MM_HINT_T0);
}

#define TILE(x, v, low, high)                                                                                \
    SUMS(x, v, low, high)                                                                                    \
    TARGET static void tile_##x##_##v##_##low##_##high(const struct tile *t)                                 \
    {                                                                                                        \
        __m512i sums[SUMS_MAX];                                                                              \
        fetch_next(t, low + high);                                                                           \
        sums_##x##_##v##_##low##_##high(t, sums);                                                            \
        finish(t, v, low, low + high, sums);                                                                 \
    }
TILES(U8)
TILES(S8)

TARGET static void quantize(const float *x, size_t rows, size_t width, size_t columns,
                            const struct cpu_qparams *q, char *y, size_t y_stride)
{
    const float lowest = q->dtype == MLO_INT8 ? -128.0f : 0.0f, zero = (float)q->zero_point;
    const __m512 inverse = _mm512_set1_ps(1.0f / q->scale), low = _mm512_set1_ps(lowest - zero),
                 high = _mm512_set1_ps(lowest + 255.0f - zero);
    const __m512i shift = _mm512_set1_epi32(q->zero_point);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < columns; j += 16) {
            __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + r * width + j), inverse);
            v = _mm512_min_ps(_mm512_max_ps(v, low), high);
            __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(v), shift));
            _mm_mask_storeu_epi8(y + r * y_stride + j, (__mmask16)mask_of(columns, j, 16), bytes);
        }
}

#define KERNELS(x, label)                                                                                    \
    static const struct tile_kernels kernels_##x = {                                                         \
        .name = label,                                                                                       \
        .group_bytes = 4,                                                                                    \
        .group_depth = 4,                                                                                    \
        .width_count = 3,                                                                                    \
        .widths = {16, 32, 48},                                                                              \
        .rows_max = {14, 7, 5},                                                                              \
        .quantize = quantize,                                                                                \
        .prepare = prepare,                                                                                  \
        .swish = true,                                                                                       \
        .run = {tiles_##x##_1, tiles_##x##_2, tiles_##x##_3},                                                \
    };
KERNELS(U8, "avx512-vnni u8s8")
KERNELS(S8, "avx512-vnni s8s8")

const struct tile_kernels *tile_kernels_u8s8(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? &kernels_U8 : NULL;
}

const struct tile_kernels *tile_kernels_s8s8(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? &kernels_S8 : NULL;
}
