/* The kernels of attention for AVX2 with FMA. */
#include <immintrin.h>

#include "engines/cpu/fast/attention.h"

#define SIMD_LANES 8
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/vecmath.inc"

#include "engines/cpu/fast/attention.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct attention_kernels attention_kernels_avx2 = {prepare, rows};
