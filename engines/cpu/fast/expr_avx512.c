/* The operations of interpreted elementwise programs for AVX-512. */
#include <immintrin.h>

#include "engines/cpu/fast/expr.h"

#define SIMD_LANES 16
#define SIMD_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/vecmath.inc"

#include "engines/cpu/fast/expr_kernels.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct expr_kernels expr_kernels_avx512 = EXPR_KERNELS;
