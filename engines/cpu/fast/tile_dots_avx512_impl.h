/* Private to the kernels of integers for AVX-512 VNNI: the loop over groups, which is assembly (compilers
 * keep too few accumulators in registers), for bytes (tile_u8s8_avx512.c) and for 16-bit numbers
 * (tile_fixed_avx512.c). Tiles have up to 15 accumulators: more leave the out-of-order window too little of
 * the next tile. */
#ifndef MLO_ENGINES_CPU_FAST_TILE_DOTS_AVX512_IMPL_H
#define MLO_ENGINES_CPU_FAST_TILE_DOTS_AVX512_IMPL_H

#include <immintrin.h>

#include "engines/cpu/fast/tile_impl.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE TARGET static inline __attribute__((always_inline))
#ifdef MLOPT_SANITIZED /* the checks in unrolled loops cost the compiler a minute */
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { SUMS_MAX = 15, BYTES_MAX = 48 };

/* --- sums -------------------------------------------------------------------------------------------- */

/* Rows 0 to 6 from a begin: s, s3 and s5 are 1, 3 and 5 strides. */
#define A0(b) "(%[" b "])"
#define A1(b) "(%[" b "],%[s])"
#define A2(b) "(%[" b "],%[s],2)"
#define A3(b) "(%[" b "],%[s3])"
#define A4(b) "(%[" b "],%[s],4)"
#define A5(b) "(%[" b "],%[s5])"
#define A6(b) "(%[" b "],%[s3],2)"

/* LOWv_n: M for the first n rows of the tile's first half, with v vectors of columns: an argument of M, the
 * row's address and its accumulators. HIGHv_n: the same of the second half. */
#define LOW1_1(M, d) M(d, A0("b0"), 0)
#define LOW1_2(M, d) LOW1_1(M, d) M(d, A1("b0"), 1)
#define LOW1_3(M, d) LOW1_2(M, d) M(d, A2("b0"), 2)
#define LOW1_4(M, d) LOW1_3(M, d) M(d, A3("b0"), 3)
#define LOW1_5(M, d) LOW1_4(M, d) M(d, A4("b0"), 4)
#define LOW1_6(M, d) LOW1_5(M, d) M(d, A5("b0"), 5)
#define LOW1_7(M, d) LOW1_6(M, d) M(d, A6("b0"), 6)
#define HIGH1_0(M, d)
#define HIGH1_1(M, d) M(d, A0("b1"), 7)
#define HIGH1_2(M, d) HIGH1_1(M, d) M(d, A1("b1"), 8)
#define HIGH1_3(M, d) HIGH1_2(M, d) M(d, A2("b1"), 9)
#define HIGH1_4(M, d) HIGH1_3(M, d) M(d, A3("b1"), 10)
#define HIGH1_5(M, d) HIGH1_4(M, d) M(d, A4("b1"), 11)
#define HIGH1_6(M, d) HIGH1_5(M, d) M(d, A5("b1"), 12)
#define HIGH1_7(M, d) HIGH1_6(M, d) M(d, A6("b1"), 13)

#define LOW2_1(M, d) M(d, A0("b0"), 0, 1)
#define LOW2_2(M, d) LOW2_1(M, d) M(d, A1("b0"), 2, 3)
#define LOW2_3(M, d) LOW2_2(M, d) M(d, A2("b0"), 4, 5)
#define LOW2_4(M, d) LOW2_3(M, d) M(d, A3("b0"), 6, 7)
#define HIGH2_0(M, d)
#define HIGH2_1(M, d) M(d, A0("b1"), 8, 9)
#define HIGH2_2(M, d) HIGH2_1(M, d) M(d, A1("b1"), 10, 11)
#define HIGH2_3(M, d) HIGH2_2(M, d) M(d, A2("b1"), 12, 13)

#define LOW3_1(M, d) M(d, A0("b0"), 0, 1, 2)
#define LOW3_2(M, d) LOW3_1(M, d) M(d, A1("b0"), 3, 4, 5)
#define LOW3_3(M, d) LOW3_2(M, d) M(d, A2("b0"), 6, 7, 8)
#define HIGH3_0(M, d)
#define HIGH3_1(M, d) M(d, A0("b1"), 9, 10, 11)
#define HIGH3_2(M, d) HIGH3_1(M, d) M(d, A1("b1"), 12, 13, 14)

/* zmm27 to 29: weights of a group; zmm30: a group of a row; zmm31: 0x80…, for bytes with sign */
#define DOT(w, a) "vpdpbusd %%zmm" #w ",%%zmm30,%" #a "\n\t"
#define DOT16(w, a) "vpdpwssd %%zmm" #w ",%%zmm30,%" #a "\n\t"
#define MOVE(w, a) "vmovdqa64 %%zmm" #w ",%" #a "\n\t"
#define LOAD(from, d, v, j, w) "vmovdqu64 64*(" #d "*" #v "+" #j ")(%[" from "]),%%zmm" #w "\n\t"
#define GET(d, at) "vpbroadcastd 4*" #d at ",%%zmm30\n\t"
#define FLIPS_U8 ""
#define FLIPS_S8 "mov $0x80808080,%k[n]\n\tvpbroadcastd %k[n],%%zmm31\n\t"
#define FLIPS_I16 ""
#define FLIP "vpxord %%zmm31,%%zmm30,%%zmm30\n\t"

#define DOTS_U8_1(d, at, a) GET(d, at) DOT(29, a)
#define DOTS_U8_2(d, at, a, b) GET(d, at) DOT(28, a) DOT(29, b)
#define DOTS_U8_3(d, at, a, b, c) GET(d, at) DOT(27, a) DOT(28, b) DOT(29, c)
#define DOTS_S8_1(d, at, a) GET(d, at) FLIP DOT(29, a)
#define DOTS_S8_2(d, at, a, b) GET(d, at) FLIP DOT(28, a) DOT(29, b)
#define DOTS_S8_3(d, at, a, b, c) GET(d, at) FLIP DOT(27, a) DOT(28, b) DOT(29, c)
#define DOTS_I16_1(d, at, a) GET(d, at) DOT16(29, a)
#define DOTS_I16_2(d, at, a, b) GET(d, at) DOT16(28, a) DOT16(29, b)
#define DOTS_I16_3(d, at, a, b, c) GET(d, at) DOT16(27, a) DOT16(28, b) DOT16(29, c)
#define BEGIN_1(d, at, a) MOVE(29, a)
#define BEGIN_2(d, at, a, b) MOVE(28, a) MOVE(29, b)
#define BEGIN_3(d, at, a, b, c) MOVE(27, a) MOVE(28, b) MOVE(29, c)
#define LOAD_1(from, d) LOAD(from, d, 1, 0, 29)
#define LOAD_2(from, d) LOAD(from, d, 2, 0, 28) LOAD(from, d, 2, 1, 29)
#define LOAD_3(from, d) LOAD(from, d, 3, 0, 27) LOAD(from, d, 3, 1, 28) LOAD(from, d, 3, 2, 29)

#define AHEAD "prefetcht1 (%[from])\n\tadd %[step],%[from]\n\t"
#define GROUP(x, v, low, high, d)                                                                            \
    AHEAD LOAD_##v("w", d) LOW##v##_##low(DOTS_##x##_##v, d) HIGH##v##_##high(DOTS_##x##_##v, d)

static const int32_t no_init[BYTES_MAX] __attribute__((aligned(64)));

/* What the loop over taps reads from the tile, one field at a time: a load of two that were just written one
 * by one would wait for both to reach the cache. */
_Static_assert(offsetof(struct tile, x0) == 0 && offsetof(struct tile, x1) == 8 &&
                   offsetof(struct tile, depth) == 40 && offsetof(struct tile, ahead) == 104,
               "the assembly below has these offsets");

/* The sums of low + high rows times v vectors of columns; where they are: index_of. */
/* clang-format off */
#define SUMS(x, v, low, high)                                                                                \
    INLINE void sums_##x##_##v##_##low##_##high(const struct tile *t, __m512i a[SUMS_MAX])                   \
    {                                                                                                        \
        const char *w = t->panel, *b0, *b1;                                                                  \
        const ptrdiff_t *tap = t->taps, *end = tap + t->tap_count;                                           \
        const void *from = t->epilogue->init ? t->epilogue->init : no_init;                                  \
        size_t s = t->x_stride, s3 = 3 * s, s5 = 5 * s, n;                                                   \
        __asm__ volatile(FLIPS_##x                                                                           \
            LOAD_##v("from", 0) LOW##v##_##low(BEGIN_##v, 0) HIGH##v##_##high(BEGIN_##v, 0)                  \
            "mov 104(%[t]),%[from]\n\t" /* what is ahead */                                                   \
            "1:\n\t" /* each tap */                                                                          \
            "mov (%[tap]),%[b1]\n\t"                                                                         \
            "mov (%[t]),%[b0]\n\t"                                                                           \
            "add %[b1],%[b0]\n\t"                                                                            \
            "add 8(%[t]),%[b1]\n\t"                                                                          \
            "mov 40(%[t]),%[n]\n\t"                                                                          \
            "sub $4,%[n]\n\t"                                                                                \
            "jb 3f\n\t"                                                                                      \
            ".p2align 5\n"                                                                                   \
            "2:\n\t" /* four groups */                                                                       \
            GROUP(x, v, low, high, 0) GROUP(x, v, low, high, 1)                                              \
            GROUP(x, v, low, high, 2) GROUP(x, v, low, high, 3)                                              \
            "add $16,%[b0]\n\t"                                                                              \
            "add $16,%[b1]\n\t"                                                                              \
            "add $256*" #v ",%[w]\n\t"                                                                       \
            "sub $4,%[n]\n\t"                                                                                \
            "jae 2b\n"                                                                                       \
            "3:\n\t"                                                                                         \
            "add $4,%[n]\n\t"                                                                                \
            "jz 5f\n"                                                                                        \
            "4:\n\t" /* one */                                                                               \
            GROUP(x, v, low, high, 0)                                                                        \
            "add $4,%[b0]\n\t"                                                                               \
            "add $4,%[b1]\n\t"                                                                               \
            "add $64*" #v ",%[w]\n\t"                                                                        \
            "sub $1,%[n]\n\t"                                                                                \
            "jnz 4b\n"                                                                                       \
            "5:\n\t"                                                                                         \
            "add $8,%[tap]\n\t"                                                                              \
            "cmp %[tap],%[end]\n\t"                                                                        \
            "jne 1b\n\t"                                                                                     \
            : "=&v"(a[0]), "=&v"(a[1]), "=&v"(a[2]), "=&v"(a[3]), "=&v"(a[4]), "=&v"(a[5]), "=&v"(a[6]),     \
              "=&v"(a[7]), "=&v"(a[8]), "=&v"(a[9]), "=&v"(a[10]), "=&v"(a[11]), "=&v"(a[12]), "=&v"(a[13]), \
              "=&v"(a[14]), [w] "+r"(w), [tap] "+r"(tap), [from] "+r"(from), [b0] "=&r"(b0),                 \
              [b1] "=&r"(b1), [n] "=&r"(n)                                                                   \
            : [t] "r"(t), [end] "m"(end), [s] "r"(s), [s3] "r"(s3), [s5] "r"(s5),                      \
              [step] "r"(t->ahead_step)                                                                      \
            : "memory", "cc", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31");                                  \
    }
/* clang-format on */

INLINE size_t index_of(size_t v, size_t low, size_t r, size_t j)
{
    static const size_t high_begins[] = {0, 7, 8, 9};
    return (r < low ? r * v : high_begins[v] + (r - low) * v) + j;
}

/* TILE(x, v, low, high) for all tiles there are, and tables of them: tiles_X_v[rows - 1]. */
#define TILES(x)                                                                                             \
    TILE(x, 1, 1, 0)                                                                                         \
    TILE(x, 1, 1, 1)                                                                                         \
    TILE(x, 1, 2, 1)                                                                                         \
    TILE(x, 1, 2, 2)                                                                                         \
    TILE(x, 1, 3, 2)                                                                                         \
    TILE(x, 1, 3, 3)                                                                                         \
    TILE(x, 1, 4, 3)                                                                                         \
    TILE(x, 1, 4, 4)                                                                                         \
    TILE(x, 1, 5, 4)                                                                                         \
    TILE(x, 1, 5, 5)                                                                                         \
    TILE(x, 1, 6, 5)                                                                                         \
    TILE(x, 1, 6, 6)                                                                                         \
    TILE(x, 1, 7, 6)                                                                                         \
    TILE(x, 1, 7, 7)                                                                                         \
    TILE(x, 2, 1, 0)                                                                                         \
    TILE(x, 2, 1, 1)                                                                                         \
    TILE(x, 2, 2, 1)                                                                                         \
    TILE(x, 2, 2, 2)                                                                                         \
    TILE(x, 2, 3, 2)                                                                                         \
    TILE(x, 2, 3, 3)                                                                                         \
    TILE(x, 2, 4, 3)                                                                                         \
    TILE(x, 3, 1, 0)                                                                                         \
    TILE(x, 3, 1, 1)                                                                                         \
    TILE(x, 3, 2, 1)                                                                                         \
    TILE(x, 3, 2, 2)                                                                                         \
    TILE(x, 3, 3, 2)                                                                                         \
    static tile_fn *const tiles_##x##_1[] = {                                                                \
        tile_##x##_1_1_0, tile_##x##_1_1_1, tile_##x##_1_2_1, tile_##x##_1_2_2, tile_##x##_1_3_2,            \
        tile_##x##_1_3_3, tile_##x##_1_4_3, tile_##x##_1_4_4, tile_##x##_1_5_4, tile_##x##_1_5_5,            \
        tile_##x##_1_6_5, tile_##x##_1_6_6, tile_##x##_1_7_6, tile_##x##_1_7_7};                             \
    static tile_fn *const tiles_##x##_2[] = {tile_##x##_2_1_0, tile_##x##_2_1_1, tile_##x##_2_2_1,           \
                                             tile_##x##_2_2_2, tile_##x##_2_3_2, tile_##x##_2_3_3,           \
                                             tile_##x##_2_4_3};                                              \
    static tile_fn *const tiles_##x##_3[] = {tile_##x##_3_1_0, tile_##x##_3_1_1, tile_##x##_3_2_1,           \
                                             tile_##x##_3_2_2, tile_##x##_3_3_2};

#endif
