/* Winograd's transforms by AVX2. */
#include <immintrin.h>

#include "engines/cpu/fast/winograd_impl.h"

#define SIMD_LANES 8
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/winograd.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct winograd_kernels winograd_avx2[WINOGRAD_FORMS] = {
    [WINOGRAD_2] = {"avx2 f32", winograd_source_2, winograd_result_2},
    [WINOGRAD_4] = {"avx2 f32", winograd_source_4, winograd_result_4}};
