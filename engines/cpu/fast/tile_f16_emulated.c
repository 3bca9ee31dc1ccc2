/* What AVX512-FP16 computes, by AVX2 and F16C: the same bits, much slower. For tests, for what a model will
 * give on such a CPU, and to check one (tile_f16_agrees). */
#include <immintrin.h>
#include <string.h>

#include "engines/cpu/fast/tile_f16_impl.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL

struct half32 {
    __m128i part[4];
};
#define HALF32 struct half32

INLINE HALF32 half_zero(void)
{
    return (HALF32){{_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()}};
}

INLINE HALF32 half_load(const void *p)
{
    HALF32 h;
    memcpy(&h, p, sizeof h);
    return h;
}

INLINE HALF32 half_pair(const void *p)
{
    const __m128i v = _mm_set1_epi32(*(const int32_t *)p);
    return (HALF32){{v, v, v, v}};
}

/* x w + c, rounded once. The product of two halves is a float, and nothing here leaves a float's range. The
 * sum is rounded to odd (where it is not exact, to the neighbour whose last bit is set), from which rounding
 * to a half is right, a float being more than two bits longer: Boldo and Melquiond, "Emulation of FMA and
 * correctly rounded sums: proved algorithms using rounding to odd", 2008. What the sum lost is known exactly:
 * Knuth's TwoSum. (A compiler that contracts p + c to a multiply-add changes nothing, p being exact.) */
INLINE __m128i fma8(__m128i x, __m128i w, __m128i c)
{
    const __m256 p = _mm256_mul_ps(_mm256_cvtph_ps(x), _mm256_cvtph_ps(w)), f = _mm256_cvtph_ps(c);
    const __m256 s = _mm256_add_ps(p, f), t = _mm256_sub_ps(s, p);
    const __m256 lost = _mm256_add_ps(_mm256_sub_ps(p, _mm256_sub_ps(s, t)), _mm256_sub_ps(f, t));
    const __m256i bits = _mm256_castps_si256(s), one = _mm256_set1_epi32(1);
    const __m256i inexact = _mm256_castps_si256(_mm256_cmp_ps(lost, _mm256_setzero_ps(), _CMP_NEQ_OQ));
    const __m256i even = _mm256_cmpeq_epi32(_mm256_and_si256(bits, one), _mm256_setzero_si256());
    /* away from zero where what was lost has the sum's sign: 1, else -1 */
    const __m256i apart = _mm256_srai_epi32(_mm256_castps_si256(_mm256_xor_ps(s, lost)), 31);
    const __m256i step = _mm256_and_si256(_mm256_or_si256(apart, one), _mm256_and_si256(inexact, even));
    return _mm256_cvtps_ph(_mm256_castsi256_ps(_mm256_add_epi32(bits, step)), _MM_FROUND_TO_NEAREST_INT);
}

INLINE HALF32 half_fma(HALF32 x, HALF32 w, HALF32 acc)
{
    for (int i = 0; i < 4; i++)
        acc.part[i] = fma8(x.part[i], w.part[i], acc.part[i]);
    return acc;
}

INLINE void half_add_to(HALF32 acc, float *sums)
{
    for (int i = 0; i < 4; i++)
        _mm256_store_ps(sums + 8 * i,
                        _mm256_add_ps(_mm256_load_ps(sums + 8 * i), _mm256_cvtph_ps(acc.part[i])));
}

#include "engines/cpu/fast/tile_f16.inc"

const struct tile_kernels tile_f16_emulated = KERNELS("emulated f16");
