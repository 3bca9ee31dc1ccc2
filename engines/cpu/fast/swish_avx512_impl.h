/* Private to the int8 kernels of AVX-512: x sigmoid(x) of sums as bytes, without a way through memory. */
#ifndef MLO_ENGINES_CPU_FAST_SWISH_AVX512_IMPL_H
#define MLO_ENGINES_CPU_FAST_SWISH_AVX512_IMPL_H

#include <immintrin.h>

#include "engines/cpu/fast/tile_impl.h"

#define SWISH_FN                                                                                             \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))) static inline                   \
        __attribute__((always_inline))
#define SWISH_EACH(i, n) _Pragma("GCC unroll 4") for (size_t i = 0; i < (n); i++)

struct swish_numbers {
    __m512 power, y_scale;
    __m512i zero_point; /* of 16 bits */
};

SWISH_FN struct swish_numbers swish_numbers(const struct tile_swish *s)
{
    return (struct swish_numbers){.power = _mm512_set1_ps(-0x1.715476p+0f * s->alpha),
                                  .y_scale = _mm512_set1_ps(s->scale),
                                  .zero_point = _mm512_set1_epi16((short)s->zero_point)};
}

/* Up to four vectors, in step, as each is a long chain: x / ((1 + e^(-alpha x)) scale), rounded, in at most
 * 32 bits. e^(-alpha x) = 2^t = 2^floor(t) 2^r by a minimax polynomial with an error of 2e-7; that of
 * rounding t matters only where the result is near 0. Infinity in the denominator gives 0. A NaN becomes
 * INT32_MIN. */
SWISH_FN void swish_rounded(const struct swish_numbers *s, size_t n, const __m512 x[4], __m512i y[4])
{
    __m512 t[4], r[4], p[4];
    SWISH_EACH(i, n) t[i] = _mm512_mul_ps(x[i], s->power);
    SWISH_EACH(i, n) r[i] = _mm512_reduce_ps(t[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    SWISH_EACH(i, n)
    p[i] = _mm512_fmadd_ps(_mm512_set1_ps(0x1.ec320ap-10f), r[i], _mm512_set1_ps(0x1.26900cp-7f));
    SWISH_EACH(i, n) p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(0x1.c95446p-5f));
    SWISH_EACH(i, n) p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(0x1.ebd5a8p-3f));
    SWISH_EACH(i, n) p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(0x1.62e4f6p-1f));
    SWISH_EACH(i, n) p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(1.0f));
    SWISH_EACH(i, n) p[i] = _mm512_scalef_ps(p[i], t[i]);
    SWISH_EACH(i, n) p[i] = _mm512_fmadd_ps(p[i], s->y_scale, s->y_scale);
    SWISH_EACH(i, n) p[i] = _mm512_div_ps(x[i], p[i]);
    SWISH_EACH(i, n) p[i] = _mm512_min_ps(_mm512_set1_ps(0x1p30f), p[i]);
    SWISH_EACH(i, n) y[i] = _mm512_cvtps_epi32(p[i]);
}

/* Four vectors of sums as bytes, in the order of packing within 128 bits. */
SWISH_FN __m512i swish_packed(const struct swish_numbers *s, bool is_signed, const __m512i y[4])
{
    const __m512i a = _mm512_adds_epi16(_mm512_packs_epi32(y[0], y[1]), s->zero_point),
                  b = _mm512_adds_epi16(_mm512_packs_epi32(y[2], y[3]), s->zero_point);
    return is_signed ? _mm512_packs_epi16(a, b) : _mm512_packus_epi16(a, b);
}

#endif
