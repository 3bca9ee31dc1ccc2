/* 8 x 48 tiles on AVX-512: 24 accumulators, 3 columns' vectors and a broadcast. */
#include <immintrin.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

enum { MR = 8, NR = 48 };

__attribute__((target("avx512f"))) static void tile(size_t depth, const float *const *rows, const float *b,
                                                    float *c)
{
    __m512 acc[MR][3];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            acc[i][j] = _mm512_loadu_ps(c + i * NR + j * 16);
    for (size_t k = 0; k < depth; k++, b += NR) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16), b2 = _mm512_loadu_ps(b + 32);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            __m512 w = _mm512_set1_ps(rows[i][k]);
            acc[i][0] = _mm512_fmadd_ps(w, b0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(w, b1, acc[i][1]);
            acc[i][2] = _mm512_fmadd_ps(w, b2, acc[i][2]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            _mm512_storeu_ps(c + i * NR + j * 16, acc[i][j]);
}

__attribute__((target("avx512f"))) static void axpy(size_t count, float w, const float *x, float *acc)
{
    __m512 v = _mm512_set1_ps(w);
    for (size_t i = 0; i < count; i += 16) {
        __mmask16 m = count - i >= 16 ? 0xffff : (__mmask16)((1u << (count - i)) - 1);
        __m512 sum = _mm512_fmadd_ps(v, _mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, acc + i));
        _mm512_mask_storeu_ps(acc + i, m, sum);
    }
}

#define INV_TARGET __attribute__((target("avx512f")))
#include "engines/cpu/invariant/columns.inc"

const struct inv_kernels inv_avx512 = {
    .mr = MR, .nr = NR, .block = 128, .tile = tile, .columns = columns, .axpy = axpy};
