/* Depthwise convolutions by AVX2 with FMA. */
#include <immintrin.h>

#include "engines/cpu/fast/depthwise_impl.h"

#define SIMD_LANES 8
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/depthwise.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct depthwise_kernels depthwise_avx2 = {"avx2 f32", DW_ROWS};
