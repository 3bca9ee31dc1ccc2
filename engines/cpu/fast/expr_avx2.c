/* The operations of interpreted elementwise programs for AVX2 with FMA. */
#include <immintrin.h>

#include "engines/cpu/fast/expr.h"

#define SIMD_LANES 8
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/vecmath.inc"

#include "engines/cpu/fast/expr_kernels.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct expr_kernels expr_kernels_avx2 = EXPR_KERNELS;
