/* Products in FP16 by AVX512-FP16. Assembly for the one instruction, so that it needs neither a compiler that
 * knows _Float16 nor one that keeps its hands off it; nothing else of that instruction set is used. */
#include <immintrin.h>
#include <string.h>

#include "engines/cpu/fast/tile_f16_impl.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512fp16")))
#define INLINE TARGET static inline __attribute__((always_inline))
#ifdef MLOPT_SANITIZED /* the checks in unrolled loops cost the compiler a minute */
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 14")
#endif

#define HALF32 __m512i

INLINE HALF32 half_zero(void)
{
    return _mm512_setzero_si512();
}

INLINE HALF32 half_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* A broadcast of 32 bits is made while loading; one of 16 bits takes one of the units that multiply. */
INLINE HALF32 half_pair(const void *p)
{
    return _mm512_set1_epi32(*(const int32_t *)p);
}

INLINE HALF32 half_fma(HALF32 x, HALF32 w, HALF32 acc)
{
    __asm__("vfmadd231ph %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
}

INLINE void half_add_to(HALF32 acc, float *sums)
{
    __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(acc)),
           high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(acc, 1));
    _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), low));
    _mm512_store_ps(sums + 16, _mm512_add_ps(_mm512_load_ps(sums + 16), high));
}

#include "engines/cpu/fast/tile_f16.inc"

const struct tile_kernels tile_f16_native = KERNELS("avx512-fp16 f16");
