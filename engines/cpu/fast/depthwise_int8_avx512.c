/* int8 depthwise convolutions by AVX-512 VNNI. Bytes of four rows of x are interleaved, so that a lane has
 * four rows of one channel: one instruction adds their products. An interleaved column serves all pixels that
 * read it. int8 values become unsigned as x + 128. */
#include <immintrin.h>

#include "engines/cpu/fast/depthwise_int8_impl.h"
#include "engines/cpu/fast/swish_avx512_impl.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE TARGET static inline __attribute__((always_inline))
#ifdef MLOPT_SANITIZED /* the checks in unrolled loops cost the compiler a minute */
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

enum { SUMS_MAX = 4 * DEPTHWISE8_PIXELS_MAX };

INLINE __mmask64 mask_of(size_t channels)
{
    return channels >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << channels) - 1;
}

/* A block's bytes of a row, spread over the lanes of 128 bits. */
INLINE __m512i load(const uint8_t *x, size_t vectors, __mmask64 mask, __m512i flip)
{
    __m512i v = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, x), flip);
    if (vectors == 2)
        v = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), v);
    if (vectors == 1)
        v = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), v);
    return v;
}

/* Column i of `rows` rows from row r on, interleaved. */
INLINE void column_at(const struct depthwise8 *d, size_t r, size_t rows, ptrdiff_t i, size_t vectors,
                      __mmask64 mask, __m512i flip, __m512i out[4])
{
    const ptrdiff_t at = d->first + i;
    const bool exists = (size_t)at < d->width;
    __m512i v[4];
    UNROLL for (size_t k = 0; k < 4; k++) v[k] =
        k < rows
            ? load((exists ? d->row[r + k] + at * d->step[r + k] : d->fill) + d->channel, vectors, mask, flip)
            : _mm512_setzero_si512();
    const __m512i a = _mm512_unpacklo_epi8(v[0], v[1]), b = _mm512_unpacklo_epi8(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi16(a, b);
    if (vectors > 1)
        out[1] = _mm512_unpackhi_epi16(a, b);
    if (vectors == 4) {
        const __m512i c = _mm512_unpackhi_epi8(v[0], v[1]), e = _mm512_unpackhi_epi8(v[2], v[3]);
        out[2] = _mm512_unpacklo_epi16(c, e);
        out[3] = _mm512_unpackhi_epi16(c, e);
    }
}

/* The weights come from memory each time: registers are for sums. */
INLINE __m512i dot(__m512i sum, __m512i x, const int8_t *w)
{
    __asm__("vpdpbusd %2,%1,%0" : "+v"(sum) : "v"(x), "m"(*(const __m512i *)w));
    return sum;
}

/* All products with `rows` rows of the kernel. */
INLINE void add_rows(const struct depthwise8 *d, const int8_t *w, size_t r, size_t rows, size_t pixels,
                     ptrdiff_t columns, ptrdiff_t stride, size_t vectors, __mmask64 mask, __m512i flip,
                     __m512i sums[SUMS_MAX])
{
    __m512i x[4];
    if (columns) {
        UNROLL for (ptrdiff_t i = 0; i < ((ptrdiff_t)pixels - 1) * stride + columns; i++)
        {
            column_at(d, r, rows, i, vectors, mask, flip, x);
            UNROLL for (size_t p = 0; p < pixels; p++)
            {
                const ptrdiff_t c = i - (ptrdiff_t)p * stride;
                if (c >= 0 && c < columns)
                    UNROLL for (size_t j = 0; j < vectors; j++) sums[p * vectors + j] =
                        dot(sums[p * vectors + j], x[j], w + ((size_t)c * vectors + j) * 64);
            }
        }
        return;
    }
    for (size_t c = 0; c < d->columns; c++)
        UNROLL for (size_t p = 0; p < pixels; p++)
        {
            column_at(d, r, rows, (ptrdiff_t)p * d->stride + (ptrdiff_t)c * d->dilation, vectors, mask, flip,
                      x);
            UNROLL for (size_t j = 0; j < vectors; j++) sums[p * vectors + j] =
                dot(sums[p * vectors + j], x[j], w + (c * vectors + j) * 64);
        }
}

INLINE __m512 scaled(const struct depthwise8 *d, __m512i sum, size_t vectors, size_t j)
{
    const float *scale = (const float *)d->numbers + vectors * 16 + 16 * j;
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(scale),
                           _mm512_loadu_ps(scale + vectors * 16));
}

/* Bytes as packing leaves them, the first ones of each 128 bits together. */
INLINE __m512i gathered(size_t vectors, __m512i bytes)
{
    if (vectors == 2)
        return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6), bytes);
    if (vectors == 1)
        return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12),
                                        bytes);
    return bytes;
}

/* Rounded, moved so that the lowest byte is 0 (without `shifted`, that is where it is) and saturated above
 * it, for bytes of either sign. Packing undoes the order of unpacking. A NaN becomes the lowest value: so do
 * its 32 bits as an integer. */
INLINE void to_bytes(const struct depthwise8 *d, size_t pixels, size_t vectors, __mmask64 mask, bool shifted,
                     const __m512i sums[SUMS_MAX])
{
    const __m512i low = _mm512_set1_epi8((char)(int32_t)d->low),
                  span = _mm512_set1_epi8((char)(int32_t)MLO_MAX(d->high - d->low, 0.0f)),
                  shift = _mm512_set1_epi16(d->shift);
    UNROLL for (size_t p = 0; p < pixels; p++)
    {
        __m512i v[4];
        UNROLL for (size_t j = 0; j < 4; j++) v[j] =
            j < vectors ? _mm512_cvtps_epi32(scaled(d, sums[p * vectors + j], vectors, j)) : v[j - vectors];
        __m512i a = _mm512_packs_epi32(v[0], v[1]), b = vectors == 4 ? _mm512_packs_epi32(v[2], v[3]) : a;
        if (shifted) {
            a = _mm512_adds_epi16(a, shift);
            b = vectors == 4 ? _mm512_adds_epi16(b, shift) : a;
        }
        __m512i bytes = _mm512_add_epi8(low, _mm512_min_epu8(span, _mm512_packus_epi16(a, b)));
        _mm512_mask_storeu_epi8(d->y + p * d->y_stride, mask, gathered(vectors, bytes));
    }
}

/* Lanes of 128 bits into the order of channels. */
INLINE void in_order(size_t vectors, __m512 f[4])
{
    if (vectors == 1)
        return;
    const __m512 a = _mm512_shuffle_f32x4(f[0], f[1], 0x44), b = _mm512_shuffle_f32x4(f[0], f[1], 0xee);
    if (vectors == 2) {
        f[0] = _mm512_shuffle_f32x4(a, a, 0xd8);
        f[1] = _mm512_shuffle_f32x4(b, b, 0xd8);
        return;
    }
    const __m512 c = _mm512_shuffle_f32x4(f[2], f[3], 0x44), e = _mm512_shuffle_f32x4(f[2], f[3], 0xee);
    f[0] = _mm512_shuffle_f32x4(a, c, 0x88);
    f[1] = _mm512_shuffle_f32x4(a, c, 0xdd);
    f[2] = _mm512_shuffle_f32x4(b, e, 0x88);
    f[3] = _mm512_shuffle_f32x4(b, e, 0xdd);
}

INLINE void to_floats(const struct depthwise8 *d, size_t pixels, size_t vectors, const __m512i *sums)
{
    const __m512 low = _mm512_set1_ps(d->low), high = _mm512_set1_ps(d->high);
    for (size_t p = 0; p < pixels; p++) {
        __m512 f[4];
        char *y = d->y + p * d->y_stride;
        UNROLL for (size_t j = 0; j < vectors; j++) f[j] =
            _mm512_max_ps(low, _mm512_min_ps(high, scaled(d, sums[p * vectors + j], vectors, j)));
        in_order(vectors, f);
        UNROLL for (size_t j = 0; j < vectors; j++)
        {
            const size_t left = d->written > 16 * j ? d->written - 16 * j : 0;
            if (left >= 16) /* what is stored by a mask is not forwarded to loads */
                _mm512_storeu_ps(y + 64 * j, f[j]);
            else
                _mm512_mask_storeu_ps(y + 64 * j, (__mmask16)mask_of(left), f[j]);
        }
    }
}

INLINE void swish_to_bytes(const struct depthwise8 *d, size_t pixels, size_t vectors, const __m512i *sums)
{
    const struct swish_numbers s = swish_numbers(d->swish);
    const __mmask64 mask = mask_of(d->written);
    const size_t at_once = 4 / vectors; /* pixels */
    for (size_t first = 0; first < pixels; first += at_once) {
        __m512 f[4];
        __m512i q[4];
        UNROLL for (size_t i = 0; i < 4; i++)
        {
            const size_t p = first + i / vectors < pixels ? first + i / vectors : pixels - 1;
            f[i] = scaled(d, sums[p * vectors + i % vectors], vectors, i % vectors);
        }
        swish_rounded(&s, 4, f, q);
        UNROLL for (size_t k = 0; k < at_once; k++) if (first + k < pixels)
        {
            const __m512i *of = q + k * vectors,
                          of_pixel[4] = {of[0], of[1 % vectors], of[2 % vectors], of[3 % vectors]};
            const __m512i bytes =
                d->y_dtype == MLO_INT8 ? swish_packed(&s, true, of_pixel) : swish_packed(&s, false, of_pixel);
            _mm512_mask_storeu_epi8(d->y + (first + k) * d->y_stride, mask, gathered(vectors, bytes));
        }
    }
}

#define FLOATS(v)                                                                                            \
    TARGET static __attribute__((noinline)) void floats_##v(const struct depthwise8 *d, size_t pixels,       \
                                                            const __m512i *sums)                             \
    {                                                                                                        \
        to_floats(d, pixels, v, sums);                                                                       \
    }                                                                                                        \
    TARGET static __attribute__((noinline)) void swish_##v(const struct depthwise8 *d, size_t pixels,        \
                                                           const __m512i *sums)                              \
    {                                                                                                        \
        swish_to_bytes(d, pixels, v, sums);                                                                  \
    }
FLOATS(1)
FLOATS(2)
FLOATS(4)

INLINE void run(const struct depthwise8 *d, size_t pixels, size_t size, size_t stride, size_t vectors)
{
    const __mmask64 mask = mask_of(d->channels);
    const __m512i flip = _mm512_set1_epi32((int32_t)d->flip);
    const int8_t *w = d->w;
    __m512i sums[SUMS_MAX];
    UNROLL for (size_t p = 0; p < pixels; p++) UNROLL for (size_t j = 0; j < vectors; j++)
        sums[p * vectors + j] = _mm512_loadu_si512((const int32_t *)d->numbers + 16 * j);
    if (size == 3) {
        add_rows(d, w, 0, 3, pixels, 3, (ptrdiff_t)stride, vectors, mask, flip, sums);
    } else if (size == 5) {
        add_rows(d, w, 0, 4, pixels, 5, (ptrdiff_t)stride, vectors, mask, flip, sums);
        add_rows(d, w + 5 * vectors * 64, 4, 1, pixels, 5, (ptrdiff_t)stride, vectors, mask, flip, sums);
    } else {
        for (size_t k = 0; k < d->fours; k++, w += d->columns * vectors * 64)
            add_rows(d, w, 4 * k, 4, pixels, 0, 0, vectors, mask, flip, sums);
    }
    if (d->swish || d->y_dtype == MLO_FLOAT32) {
        __m512i buffer[SUMS_MAX]; /* so that the sums themselves are in registers */
        UNROLL for (size_t i = 0; i < pixels * vectors; i++) buffer[i] = sums[i];
        if (d->swish)
            (vectors == 4 ? swish_4 : vectors == 2 ? swish_2 : swish_1)(d, pixels, buffer);
        else
            (vectors == 4 ? floats_4 : vectors == 2 ? floats_2 : floats_1)(d, pixels, buffer);
    } else if (d->shift == 0) { /* behind Relu */
        to_bytes(d, pixels, vectors, mask, false, sums);
    } else {
        to_bytes(d, pixels, vectors, mask, true, sums);
    }
}

#define RUN(size, stride, v, pixels)                                                                         \
    TARGET static void run_##size##_##stride##_##v##_##pixels(const struct depthwise8 *d)                    \
    {                                                                                                        \
        run(d, pixels, size, stride, v);                                                                     \
    }
#define RUNS(size, stride, v)                                                                                \
    RUN(size, stride, v, 1)                                                                                  \
    RUN(size, stride, v, 2)                                                                                  \
    RUN(size, stride, v, 3)                                                                                  \
    RUN(size, stride, v, 4)                                                                                  \
    RUN(size, stride, v, 5)                                                                                  \
    RUN(size, stride, v, 6)
#define SHAPE(size, stride) RUNS(size, stride, 1) RUNS(size, stride, 2) RUNS(size, stride, 4)
SHAPE(3, 1)
SHAPE(3, 2)
SHAPE(5, 1)
SHAPE(5, 2)
SHAPE(0, 0)

#define ROW(size, stride, v)                                                                                 \
    {                                                                                                        \
        run_##size##_##stride##_##v##_1, run_##size##_##stride##_##v##_2, run_##size##_##stride##_##v##_3,   \
            run_##size##_##stride##_##v##_4, run_##size##_##stride##_##v##_5,                                \
            run_##size##_##stride##_##v##_6                                                                  \
    }
#define ROWS(size, stride)                                                                                   \
    {                                                                                                        \
        size, stride,                                                                                        \
        {                                                                                                    \
            ROW(size, stride, 1), ROW(size, stride, 2), ROW(size, stride, 4)                                 \
        }                                                                                                    \
    }
const struct depthwise8_kernels depthwise8_avx512 = {
    "avx512-vnni int8", {ROWS(3, 1), ROWS(3, 2), ROWS(5, 1), ROWS(5, 2), ROWS(0, 0)}};
