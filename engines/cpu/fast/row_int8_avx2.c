/* One row of bytes times int8 weights by AVX2: both widened to 16 bits, so that the sums are exact for all
 * weights. */
#include <immintrin.h>
#include <string.h>

#include "engines/cpu/fast/row_int8_impl.h"

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 4")

/* Sixteen columns. */
INLINE void finish(const struct row8 *r, size_t block, const __m256i sums[2])
{
    const size_t columns = r->blocks * ROW8_COLUMNS, first = block * ROW8_COLUMNS;
    const float *scales = (const float *)(const void *)(r->numbers + columns), *biases = scales + columns;
    __m256 v[2];
    UNROLL for (size_t i = 0; i < 2; i++) v[i] =
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[i]), _mm256_loadu_ps(scales + first + 8 * i),
                        _mm256_loadu_ps(biases + first + 8 * i));
    if (r->floats) {
        const __m256 low = _mm256_set1_ps(r->low), high = _mm256_set1_ps(r->high);
        UNROLL for (size_t i = 0; i < 2; i++)
            _mm256_storeu_ps((float *)r->y + first + 8 * i, _mm256_max_ps(low, _mm256_min_ps(high, v[i])));
        return;
    }
    const __m256i zero = _mm256_set1_epi32(r->zero_point), low = _mm256_set1_epi32(r->lowest),
                  high = _mm256_set1_epi32(r->highest);
    __m256i q[2];
    UNROLL for (size_t i = 0; i < 2; i++)
    {
        q[i] = _mm256_add_epi32(_mm256_cvtps_epi32(v[i]), zero);
        q[i] = _mm256_max_epi32(low, _mm256_min_epi32(high, q[i]));
        q[i] = _mm256_and_si256(q[i], _mm256_set1_epi32(255)); /* of either sign: its byte */
    }
    const __m256i wide = _mm256_permute4x64_epi64(_mm256_packus_epi32(q[0], q[1]), 0xd8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128((__m128i_u *)((char *)r->y + first), bytes);
}

INLINE void blocks_of(const struct row8 *r, const int16_t *x, size_t block, size_t n)
{
    const size_t stride = r->groups * 64;
    const char *w = (const char *)r->weights + block * stride;
    __m256i sums[2][2];
    UNROLL for (size_t j = 0; j < n; j++) UNROLL for (size_t i = 0; i < 2; i++) sums[j][i] =
        _mm256_loadu_si256((const __m256i_u *)(r->numbers + (block + j) * ROW8_COLUMNS + 8 * i));
    for (size_t g = 0; g < r->groups; g++, w += 64) {
        int32_t two;
        memcpy(&two, x + 2 * g, sizeof two);
        const __m256i both = _mm256_set1_epi32(two);
        UNROLL for (size_t j = 0; j < n; j++) UNROLL for (size_t i = 0; i < 2; i++)
        {
            const __m256i weights = _mm256_loadu_si256((const __m256i_u *)(w + j * stride + 32 * i));
            sums[j][i] = _mm256_add_epi32(sums[j][i], _mm256_madd_epi16(both, weights));
        }
    }
    UNROLL for (size_t j = 0; j < n; j++) finish(r, block + j, sums[j]);
}

TARGET static void run(const struct row8 *r)
{
    int16_t x[ROW8_DEPTH_MAX] __attribute__((aligned(32)));
    const __m128i flip = _mm_set1_epi8(r->flip ? (char)-128 : 0);
    for (size_t k = 0; k < r->depth; k += 16) {
        const __m128i bytes = _mm_xor_si128(_mm_loadu_si128((const __m128i_u *)(r->x + k)), flip);
        _mm256_store_si256((__m256i *)(x + k), _mm256_cvtepu8_epi16(bytes));
    }
    size_t block = 0;
    for (; block + 2 <= r->blocks; block += 2)
        blocks_of(r, x, block, 2);
    if (block < r->blocks)
        blocks_of(r, x, block, 1);
}

const struct row8_kernels row8_avx2 = {.name = "avx2", .group_depth = 2, .run = run};
