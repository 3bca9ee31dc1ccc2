/* 4 x 24 tiles on AVX2: 12 accumulators, 3 columns' vectors and a broadcast fill the 16 registers. */
#include <immintrin.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

enum { MR = 4, NR = 24, LANES = 8 };

#define INV_TARGET __attribute__((target("avx2,fma")))
typedef __m256 vf;
#define v_set(x) _mm256_set1_ps(x)
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, a) _mm256_storeu_ps(p, a)
typedef __m256i vm; /* of a vector's places */
#define v_places _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define v_between(first, end)                                                                                \
    _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)(first)), v_places),                       \
                        _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(end)), v_places))
#define v_load_of(m, p) _mm256_maskload_ps(p, m)
#define v_store_of(m, p, a) _mm256_maskstore_ps(p, m, a)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_hold(a) __asm__("" : "+x"(a))
#include "engines/cpu/invariant/chains.inc"

#include "engines/cpu/invariant/columns.inc"

const struct inv_kernels inv_avx2 = {.mr = MR,
                                     .nr = NR,
                                     .lanes = LANES,
                                     .block = 256,
                                     .tile = {tile_1, tile_2, tile_3},
                                     .tile_at = {tile_at_1, tile_at_2, tile_at_3},
                                     .row = row,
                                     .columns = columns,
                                     .taps = taps,
                                     .scale = scale,
                                     .bordered = bordered,
                                     .lines = lines};
