/* One row of bytes times int8 weights by AVX-512 VNNI: exact sums, four chains of them for each vector of
 * columns. */
#include <immintrin.h>
#include <string.h>

#include "engines/cpu/fast/row_int8_impl.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 4")

INLINE void finish(const struct row8 *r, size_t block, __m512i sums)
{
    const size_t columns = r->blocks * ROW8_COLUMNS, first = block * ROW8_COLUMNS;
    const float *scales = (const float *)(const void *)(r->numbers + columns), *biases = scales + columns;
    const __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(scales + first),
                                     _mm512_loadu_ps(biases + first));
    if (r->floats) {
        const __m512 most = _mm512_min_ps(_mm512_set1_ps(r->high), v);
        _mm512_storeu_ps((float *)r->y + first, _mm512_max_ps(_mm512_set1_ps(r->low), most));
        return;
    }
    __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(r->zero_point));
    q = _mm512_min_epi32(_mm512_set1_epi32(r->highest), q);
    q = _mm512_max_epi32(_mm512_set1_epi32(r->lowest), q);
    _mm_storeu_si128((__m128i_u *)((char *)r->y + first), _mm512_cvtepi32_epi8(q));
}

INLINE void blocks_of(const struct row8 *r, size_t block, size_t n, bool flip)
{
    const size_t stride = r->groups * 64;
    const char *w = (const char *)r->weights + block * stride;
    const __m512i signs = _mm512_set1_epi8((char)-128);
    __m512i sums[ROW8_GROUPS][2];
    UNROLL for (size_t j = 0; j < n; j++)
    {
        sums[0][j] = _mm512_loadu_si512(r->numbers + (block + j) * ROW8_COLUMNS);
        UNROLL for (size_t s = 1; s < ROW8_GROUPS; s++) sums[s][j] = _mm512_setzero_si512();
    }
    for (size_t g = 0; g < r->groups; g += ROW8_GROUPS, w += ROW8_GROUPS * 64)
        UNROLL for (size_t s = 0; s < ROW8_GROUPS; s++)
        {
            int32_t four;
            memcpy(&four, r->x + 4 * (g + s), sizeof four);
            __m512i x = _mm512_set1_epi32(four);
            x = flip ? _mm512_xor_si512(x, signs) : x;
            UNROLL for (size_t j = 0; j < n; j++) sums[s][j] =
                _mm512_dpbusd_epi32(sums[s][j], x, _mm512_loadu_si512(w + j * stride + s * 64));
        }
    UNROLL for (size_t j = 0; j < n; j++) finish(
        r, block + j,
        _mm512_add_epi32(_mm512_add_epi32(sums[0][j], sums[1][j]), _mm512_add_epi32(sums[2][j], sums[3][j])));
}

INLINE void all(const struct row8 *r, bool flip)
{
    size_t block = 0;
    for (; block + 2 <= r->blocks; block += 2)
        blocks_of(r, block, 2, flip);
    if (block < r->blocks)
        blocks_of(r, block, 1, flip);
}

TARGET static void run(const struct row8 *r)
{
    if (r->flip)
        all(r, true);
    else
        all(r, false);
}

const struct row8_kernels row8_avx512_vnni = {.name = "avx512-vnni", .group_depth = 4, .run = run};
