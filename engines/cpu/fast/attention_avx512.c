/* The kernels of attention for AVX-512. */
#include <immintrin.h>

#include "engines/cpu/fast/attention.h"

#define SIMD_LANES 16
#define SIMD_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/vecmath.inc"

#include "engines/cpu/fast/attention.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct attention_kernels attention_kernels_avx512 = {prepare, rows};
