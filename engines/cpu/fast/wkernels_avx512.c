/* Packed weights on AVX-512 without VNNI: unpacked to floats. */
#include "engines/cpu/fast/wonly_impl.h"

#include <immintrin.h>
#include <string.h>

#define SIMD_LANES 16
#define SIMD_TARGET "avx512f,avx512bw,avx512vl,avx512dq,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/fast/simd.inc"

#define vi_load(p) _mm512_loadu_si512(p)
#define vi_xor(a, b) _mm512_xor_si512(a, b)

#include "engines/cpu/fast/wkernels_float.inc"

#include "engines/cpu/fast/wkernels_exact.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct wonly_kernels wonly_kernels_avx512 = {.name = "avx512", FLOAT_TABLE, EXACT_TABLE};
