/* Winograd's transforms by AVX-512. */
#include <immintrin.h>

#include "engines/cpu/fast/winograd_impl.h"

#define SIMD_LANES 16
#define SIMD_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#include "engines/cpu/fast/winograd.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct winograd_kernels winograd_avx512[WINOGRAD_FORMS] = {
    [WINOGRAD_2] = {"avx512 f32", winograd_source_2, winograd_result_2},
    [WINOGRAD_4] = {"avx512 f32", winograd_source_4, winograd_result_4}};
