/* Pictures of few planes, channels last: what the first convolution of a net reads. */
#include <immintrin.h>

#include "engines/cpu/fast/tile_impl.h"

static void plain(const float *x, size_t distance, size_t planes, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++, out += planes)
        for (size_t p = 0; p < planes; p++)
            out[p] = x[p * distance + i];
}

/* 16 pixels of three planes: each vector of the result takes lanes of the first two, then of the third. */
__attribute__((target("avx512f"))) static void three(const float *x, size_t distance, size_t count,
                                                     float *out)
{
    static const int32_t two[3][16] = {{0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5},
                                       {21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26},
                                       {0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0}};
    static const int32_t last[3][16] = {{0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0},
                                        {0, 5, 0, 0, 6, 0, 0, 7, 0, 0, 8, 0, 0, 9, 0, 0},
                                        {10, 0, 0, 11, 0, 0, 12, 0, 0, 13, 0, 0, 14, 0, 0, 15}};
    static const __mmask16 of_last[3] = {0x4924, 0x2492, 0x9249};
    size_t i = 0;
    for (; i + 16 <= count; i += 16, out += 48) {
        const __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + distance + i),
                     c = _mm512_loadu_ps(x + 2 * distance + i);
        for (int v = 0; v < 3; v++) {
            const __m512 ab = _mm512_permutex2var_ps(a, _mm512_loadu_si512(two[v]), b);
            _mm512_storeu_ps(out + v * 16,
                             _mm512_mask_permutexvar_ps(ab, of_last[v], _mm512_loadu_si512(last[v]), c));
        }
    }
    plain(x + i, distance, 3, count - i, out);
}

static void avx512(const float *x, size_t distance, size_t planes, size_t count, float *out)
{
    if (planes == 3)
        three(x, distance, count, out);
    else
        plain(x, distance, planes, count, out);
}

tile_interleave_fn *tile_interleave_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? avx512 : plain;
}
