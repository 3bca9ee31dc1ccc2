/* 8 x 48 tiles on AVX-512: 24 accumulators, 3 columns' vectors and a broadcast. */
#include <immintrin.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

enum { MR = 8, NR = 48, LANES = 16 };

#define INV_TARGET __attribute__((target("avx512f")))
typedef __m512 vf;
#define v_set(x) _mm512_set1_ps(x)
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, a) _mm512_storeu_ps(p, a)
typedef __mmask16 vm; /* of a vector's places */
#define v_between(first, end) (__mmask16)((1u << (end)) - (1u << (first)))
#define v_load_of(m, p) _mm512_maskz_loadu_ps(m, p)
#define v_store_of(m, p, a) _mm512_mask_storeu_ps(p, m, a)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_hold(a) __asm__("" : "+v"(a))
#include "engines/cpu/invariant/chains.inc"

#include "engines/cpu/invariant/columns.inc"

const struct inv_kernels inv_avx512 = {.mr = MR,
                                       .nr = NR,
                                       .lanes = LANES,
                                       .block = 128,
                                       .tile = {tile_1, tile_2, tile_3},
                                       .tile_at = {tile_at_1, tile_at_2, tile_at_3},
                                       .row = row,
                                       .columns = columns,
                                       .taps = taps,
                                       .scale = scale,
                                       .bordered = bordered,
                                       .lines = lines};
