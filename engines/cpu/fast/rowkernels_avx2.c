/* The kernels on rows for AVX2 with FMA. */
#include <immintrin.h>

#include "engines/cpu/fast/fast_impl.h"

#define SIMD_LANES 8
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/vecmath.inc"

#include "engines/cpu/fast/rowkernels.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct fast_row_kernels fast_row_kernels_avx2 = ROW_KERNELS;
