/* 4 x 24 tiles on AVX2: 12 accumulators, 3 columns' vectors and a broadcast fill the 16 registers. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

enum { MR = 4, NR = 24 };

__attribute__((target("avx2,fma"))) static void tile(size_t depth, const float *const *rows, const float *b,
                                                     float *c)
{
    __m256 acc[MR][3];
#pragma GCC unroll 4
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            acc[i][j] = _mm256_loadu_ps(c + i * NR + j * 8);
    for (size_t k = 0; k < depth; k++, b += NR) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8), b2 = _mm256_loadu_ps(b + 16);
#pragma GCC unroll 4
        for (int i = 0; i < MR; i++) {
            __m256 w = _mm256_broadcast_ss(rows[i] + k);
            acc[i][0] = _mm256_fmadd_ps(w, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(w, b1, acc[i][1]);
            acc[i][2] = _mm256_fmadd_ps(w, b2, acc[i][2]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            _mm256_storeu_ps(c + i * NR + j * 8, acc[i][j]);
}

__attribute__((target("avx2,fma"))) static void axpy(size_t count, float w, const float *x, float *acc)
{
    size_t i = 0;
    __m256 v = _mm256_set1_ps(w);
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(acc + i, _mm256_fmadd_ps(v, _mm256_loadu_ps(x + i), _mm256_loadu_ps(acc + i)));
    for (; i < count; i++)
        acc[i] = fmaf(w, x[i], acc[i]);
}

#define INV_TARGET __attribute__((target("avx2,fma")))
#include "engines/cpu/invariant/columns.inc"

const struct inv_kernels inv_avx2 = {
    .mr = MR, .nr = NR, .block = 256, .tile = tile, .columns = columns, .axpy = axpy};
