/* The functions of vecmath.h for AVX2 with FMA. */
#include <immintrin.h>

#include "engines/cpu/fast/vecmath.h"

#define SIMD_LANES 8
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/vecmath.inc"

#include "engines/cpu/fast/vecmath_table.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct fast_math_kernels fast_math_kernels_avx2 = ROWS;
