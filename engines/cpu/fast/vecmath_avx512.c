/* The functions of vecmath.h for AVX-512. */
#include <immintrin.h>

#include "engines/cpu/fast/vecmath.h"

#define SIMD_LANES 16
#define SIMD_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/vecmath.inc"

#include "engines/cpu/fast/vecmath_table.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct fast_math_kernels fast_math_kernels_avx512 = ROWS;
