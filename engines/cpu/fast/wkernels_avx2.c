/* Packed weights on AVX2 with FMA: unpacked to floats. */
#include "engines/cpu/fast/wonly_impl.h"

#include <immintrin.h>
#include <string.h>

#define SIMD_LANES 8
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#define vi_load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define vi_xor(a, b) _mm256_xor_si256(a, b)

#include "engines/cpu/fast/wkernels_float.inc"

#include "engines/cpu/fast/wkernels_exact.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct wonly_kernels wonly_kernels_avx2 = {.name = "avx2", FLOAT_TABLE, EXACT_TABLE};
