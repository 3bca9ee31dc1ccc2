/* Products of uint8 or int8 rows with packed int8 panels by AVX-512 VNNI, sums exact in int32. The loop is
 * assembly (compilers keep too few accumulators in registers); what is done with the sums is not. Tiles have
 * up to 15 accumulators: more leave the out-of-order window too little of the next tile.
 *
 * vpdpbusd multiplies unsigned by signed bytes. int8 rows are made unsigned by x ^ 0x80 = x + 128; `init`
 * then holds -128 times the sum of the column's weights besides the other terms. */
#include <immintrin.h>

#include "engines/cpu/fast/swish_avx512_impl.h"
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

/* zmm27 to 29: weights of a group; zmm30: four bytes of a row; zmm31: 0x80… */
#define DOT(w, a) "vpdpbusd %%zmm" #w ",%%zmm30,%" #a "\n\t"
#define MOVE(w, a) "vmovdqa64 %%zmm" #w ",%" #a "\n\t"
#define LOAD(from, d, v, j, w) "vmovdqu64 64*(" #d "*" #v "+" #j ")(%[" from "]),%%zmm" #w "\n\t"
#define GET(d, at) "vpbroadcastd 4*" #d at ",%%zmm30\n\t"
#define FLIP "vpxord %%zmm31,%%zmm30,%%zmm30\n\t"

#define DOTS_U8_1(d, at, a) GET(d, at) DOT(29, a)
#define DOTS_U8_2(d, at, a, b) GET(d, at) DOT(28, a) DOT(29, b)
#define DOTS_U8_3(d, at, a, b, c) GET(d, at) DOT(27, a) DOT(28, b) DOT(29, c)
#define DOTS_S8_1(d, at, a) GET(d, at) FLIP DOT(29, a)
#define DOTS_S8_2(d, at, a, b) GET(d, at) FLIP DOT(28, a) DOT(29, b)
#define DOTS_S8_3(d, at, a, b, c) GET(d, at) FLIP DOT(27, a) DOT(28, b) DOT(29, c)
#define BEGIN_1(d, at, a) MOVE(29, a)
#define BEGIN_2(d, at, a, b) MOVE(28, a) MOVE(29, b)
#define BEGIN_3(d, at, a, b, c) MOVE(27, a) MOVE(28, b) MOVE(29, c)
#define LOAD_1(from, d) LOAD(from, d, 1, 0, 29)
#define LOAD_2(from, d) LOAD(from, d, 2, 0, 28) LOAD(from, d, 2, 1, 29)
#define LOAD_3(from, d) LOAD(from, d, 3, 0, 27) LOAD(from, d, 3, 1, 28) LOAD(from, d, 3, 2, 29)

#define AHEAD(d) "prefetcht1 64*" #d "(%[from])\n\t"
#define GROUP(x, v, low, high, d)                                                                            \
    AHEAD(d) LOAD_##v("w", d) LOW##v##_##low(DOTS_##x##_##v, d) HIGH##v##_##high(DOTS_##x##_##v, d)

static const int32_t flip = INT32_C(-2139062144); /* 0x80808080 */
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
        __asm__ volatile("vpbroadcastd %[flip],%%zmm31\n\t"                                                  \
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
            "add $256,%[from]\n\t"                                                                           \
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
            "add $64,%[from]\n\t"                                                                            \
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
            : [t] "r"(t), [end] "m"(end), [s] "r"(s), [s3] "r"(s3), [s5] "r"(s5), [flip] "m"(flip)                          \
            : "memory", "cc", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31");                                  \
    }
/* clang-format on */

INLINE size_t index_of(size_t v, size_t low, size_t r, size_t j)
{
    static const size_t high_begins[] = {0, 7, 8, 9};
    return (r < low ? r * v : high_begins[v] + (r - low) * v) + j;
}

/* --- epilogues --------------------------------------------------------------------------------------- */

/* What is added; constant where it is used. INNER: the sums are quantized first, as the graph says. */
enum residual { NONE, FLOATS, U8, S8, INNER_U8, INNER_S8, RESIDUALS };

/* What exists of columns j to j + n - 1. */
static inline uint64_t mask_of(size_t columns, size_t j, size_t n)
{
    size_t count = columns <= j ? 0 : columns - j < n ? columns - j : n;
    return (UINT64_C(1) << count) - 1;
}

struct pass {
    __m512 scale[3], bias[3], residual_scale, residual_shift, inner_low, inner_high, inner_scale;
    __m512 low, high;
    __m512i shift, span, low_bytes; /* bytes: see bytes_of */
    __mmask16 mask[3];
};

/* From what is rounded to how far it is above the lowest byte. */
static inline int32_t shift_of(const struct tile_epilogue *e)
{
    return e->y_zero_point - (int32_t)e->low;
}

INLINE struct pass pass_of(const struct tile *t, size_t v)
{
    const struct tile_epilogue *e = t->epilogue;
    struct pass p = {
        .inner_low = _mm512_set1_ps(e->inner_low),
        .inner_high = _mm512_set1_ps(e->inner_high),
        .inner_scale = _mm512_set1_ps(e->inner_scale),
        .residual_scale = _mm512_set1_ps(e->residual_scale),
        .residual_shift =
            _mm512_set1_ps(e->residual_shift - (float)e->residual_zero_point * e->residual_scale),
        .low = _mm512_set1_ps(e->low),
        .high = _mm512_set1_ps(e->high),
    };
    if (e->y_dtype != MLO_FLOAT32) {
        p.shift = _mm512_set1_epi16((short)shift_of(e));
        p.span = _mm512_set1_epi8((char)(int32_t)MLO_MAX(e->high - e->low, 0.0f));
        p.low_bytes = _mm512_set1_epi8((char)(int32_t)e->low);
        p.high = _mm512_set1_ps(e->high - (float)e->y_zero_point);
    }
    UNROLL for (size_t j = 0; j < v; j++)
    {
        p.scale[j] = _mm512_loadu_ps(e->scale + 16 * j);
        p.bias[j] = _mm512_loadu_ps(e->bias + 16 * j);
        p.mask[j] = (__mmask16)mask_of(t->columns, 16 * j, 16);
    }
    return p;
}

/* Masked, so that what is not there is not read either; the intrinsics take two instructions for that. */
INLINE __m512i widened_u8(const char *from, __mmask16 mask)
{
    __m512i wide;
    __asm__("vpmovzxbd %1,%0%{%2%}%{z%}" : "=v"(wide) : "m"(*(const __m128i_u *)from), "Yk"(mask));
    return wide;
}

INLINE __m512i widened_s8(const char *from, __mmask16 mask)
{
    __m512i wide;
    __asm__("vpmovsxbd %1,%0%{%2%}%{z%}" : "=v"(wide) : "m"(*(const __m128i_u *)from), "Yk"(mask));
    return wide;
}

/* Sums of columns 16 j to 16 j + 15 of a row, in the output's units, not clamped. */
INLINE __m512 finished(const struct pass *p, enum residual kind, __m512i sums, size_t j, const char *residual)
{
    __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), p->scale[j], p->bias[j]);
    if (kind == INNER_U8 || kind == INNER_S8) {
        v = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        v = _mm512_max_ps(p->inner_low, _mm512_min_ps(p->inner_high, v));
        v = _mm512_fmadd_ps(v, p->inner_scale, p->residual_shift);
    } else if (kind == U8 || kind == S8) {
        v = _mm512_add_ps(v, p->residual_shift);
    }
    if (kind == FLOATS) {
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(p->mask[j], residual + 16 * j * sizeof(float)));
    } else if (kind != NONE) {
        __m512i wide = kind == U8 || kind == INNER_U8 ? widened_u8(residual + 16 * j, p->mask[j])
                                                      : widened_s8(residual + 16 * j, p->mask[j]);
        v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), p->residual_scale, v);
    }
    return v;
}

/* Four vectors as bytes in order: rounded, then moved so that the lowest byte is 0 and saturated above it,
 * for bytes of either sign; without `shifted` that is where they are. A NaN becomes the lowest value: so do
 * its 32 bits as an integer. */
INLINE __m512i bytes_of(const struct pass *p, bool shifted, __m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    __m512i cd = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
    if (shifted) {
        ab = _mm512_adds_epi16(ab, p->shift);
        cd = _mm512_adds_epi16(cd, p->shift);
    }
    __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd));
    return _mm512_add_epi8(p->low_bytes, _mm512_min_epu8(p->span, bytes));
}

/* Bytes of four vectors, of rows from `first` on: one row of three, two of two, four of one. */
INLINE void store_rows(const struct tile *t, size_t v, size_t first, size_t rows, __mmask64 mask,
                       __m512i bytes)
{
    char *y = t->y + first * t->y_stride;
    if (v == 3)
        _mm512_mask_storeu_epi8(y, mask, bytes);
    if (v == 2)
        _mm256_mask_storeu_epi8(y, (__mmask32)mask, _mm512_castsi512_si256(bytes));
    if (v == 2 && first + 1 < rows)
        _mm256_mask_storeu_epi8(y + t->y_stride, (__mmask32)mask, _mm512_extracti64x4_epi64(bytes, 1));
    if (v == 1)
        _mm_mask_storeu_epi8(y, (__mmask16)mask, _mm512_castsi512_si128(bytes));
    if (v == 1 && first + 1 < rows)
        _mm_mask_storeu_epi8(y + t->y_stride, (__mmask16)mask, _mm512_extracti32x4_epi32(bytes, 1));
    if (v == 1 && first + 2 < rows)
        _mm_mask_storeu_epi8(y + 2 * t->y_stride, (__mmask16)mask, _mm512_extracti32x4_epi32(bytes, 2));
    if (v == 1 && first + 3 < rows)
        _mm_mask_storeu_epi8(y + 3 * t->y_stride, (__mmask16)mask, _mm512_extracti32x4_epi32(bytes, 3));
}

/* Rows of bytes, four vectors at a time: one row of three, two of two, four of one. */
INLINE void to_bytes(const struct tile *t, size_t v, size_t low, size_t rows, enum residual kind,
                     bool shifted, const __m512i sums[SUMS_MAX])
{
    const struct pass p = pass_of(t, v);
    const size_t at_once = v == 3 ? 1 : 4 / v;
    const __mmask64 mask = mask_of(t->columns, 0, 16 * v);
    UNROLL for (size_t first = 0; first < rows; first += at_once)
    {
        __m512 f[4];
        UNROLL for (size_t i = 0; i < at_once * v; i++)
        {
            size_t r = first + i / v < rows ? first + i / v : rows - 1, j = i % v;
            f[i] = finished(&p, kind, sums[index_of(v, low, r, j)], j,
                            kind == NONE ? NULL : t->residual + r * t->residual_stride);
        }
        __m512i bytes = bytes_of(&p, shifted, f[0], f[1], f[2], v == 3 ? f[0] : f[3]);
        store_rows(t, v, first, rows, mask, bytes);
    }
}

/* The rest goes through memory, one function for all numbers of rows. */

INLINE void rest_to_bytes(const struct tile *t, const __m512i *sums, size_t rows, size_t v,
                          enum residual kind)
{
    const struct pass p = pass_of(t, v);
    for (size_t r = 0; r < rows; r++) {
        __m512 f[4];
        const char *residual = kind == NONE ? NULL : t->residual + r * t->residual_stride;
        UNROLL for (size_t j = 0; j < v; j++)
        {
            f[j] = finished(&p, kind, sums[r * v + j], j, residual);
            if (kind == FLOATS)
                f[j] = _mm512_min_ps(p.high, f[j]);
        }
        for (size_t j = v; j < 4; j++)
            f[j] = f[0];
        __m512i bytes = bytes_of(&p, true, f[0], f[1], f[2], f[3]);
        _mm512_mask_storeu_epi8(t->y + r * t->y_stride, mask_of(t->columns, 0, 16 * v), bytes);
    }
}

INLINE void rest_to_floats(const struct tile *t, const __m512i *sums, size_t rows, size_t v,
                           enum residual kind)
{
    const struct pass p = pass_of(t, v);
    for (size_t r = 0; r < rows; r++) {
        const char *residual = kind == NONE ? NULL : t->residual + r * t->residual_stride;
        UNROLL for (size_t j = 0; j < v; j++)
        {
            __m512 f = finished(&p, kind, sums[r * v + j], j, residual);
            f = _mm512_max_ps(p.low, _mm512_min_ps(p.high, f));
            /* what is stored by a mask is not forwarded to loads */
            if (p.mask[j] == 0xffff)
                _mm512_storeu_ps(t->y + r * t->y_stride + 64 * j, f);
            else
                _mm512_mask_storeu_ps(t->y + r * t->y_stride + 64 * j, p.mask[j], f);
        }
    }
}

INLINE void swish_to_bytes(const struct tile *t, const __m512i *sums, size_t rows, size_t v)
{
    const struct swish_numbers s = swish_numbers(t->epilogue->swish);
    const size_t at_once = v == 3 ? 1 : 4 / v; /* rows */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __mmask64 mask = mask_of(t->columns, 0, 16 * v);
    __m512 scale[3], bias[3];
    UNROLL for (size_t j = 0; j < v; j++)
    {
        scale[j] = _mm512_loadu_ps(t->epilogue->scale + 16 * j);
        bias[j] = _mm512_loadu_ps(t->epilogue->bias + 16 * j);
    }
    for (size_t first = 0; first < rows; first += at_once) {
        __m512 f[4];
        __m512i q[4], bytes;
        UNROLL for (size_t i = 0; i < at_once * v; i++)
        {
            const size_t r = first + i / v < rows ? first + i / v : rows - 1;
            f[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r * v + i % v]), scale[i % v], bias[i % v]);
        }
        swish_rounded(&s, at_once * v, f, q);
        if (v == 3)
            q[3] = q[2];
        bytes = t->epilogue->y_dtype == MLO_INT8 ? swish_packed(&s, true, q) : swish_packed(&s, false, q);
        store_rows(t, v, first, rows, mask, _mm512_permutexvar_epi32(order, bytes));
    }
}

typedef void rest_fn(const struct tile *t, const __m512i *sums, size_t rows);

#define REST(v, kind)                                                                                        \
    TARGET static void bytes_##v##_##kind(const struct tile *t, const __m512i *sums, size_t rows)            \
    {                                                                                                        \
        rest_to_bytes(t, sums, rows, v, kind);                                                               \
    }                                                                                                        \
    TARGET static void floats_##v##_##kind(const struct tile *t, const __m512i *sums, size_t rows)           \
    {                                                                                                        \
        rest_to_floats(t, sums, rows, v, kind);                                                              \
    }
#define RESTS(v) REST(v, NONE) REST(v, FLOATS) REST(v, U8) REST(v, S8) REST(v, INNER_U8) REST(v, INNER_S8)
RESTS(1)
RESTS(2)
RESTS(3)

#define SWISH(v)                                                                                             \
    TARGET static void swish_##v(const struct tile *t, const __m512i *sums, size_t rows)                     \
    {                                                                                                        \
        swish_to_bytes(t, sums, rows, v);                                                                    \
    }
SWISH(1)
SWISH(2)
SWISH(3)
static rest_fn *const swishes[] = {swish_1, swish_2, swish_3};

#define REST_ROW(to, v)                                                                                      \
    {                                                                                                        \
        to##_##v##_NONE, to##_##v##_FLOATS, to##_##v##_U8, to##_##v##_S8, to##_##v##_INNER_U8,               \
            to##_##v##_INNER_S8                                                                              \
    }
/* by output (bytes, floats), vectors of columns, residual */
static rest_fn *const rests[2][3][RESIDUALS] = {
    {REST_ROW(bytes, 1), REST_ROW(bytes, 2), REST_ROW(bytes, 3)},
    {REST_ROW(floats, 1), REST_ROW(floats, 2), REST_ROW(floats, 3)},
};

INLINE void finish(const struct tile *t, size_t v, size_t low, size_t rows, const __m512i sums[SUMS_MAX])
{
    const struct tile_epilogue *e = t->epilogue;
    enum residual kind = NONE;
    if (e->residual_dtype == MLO_FLOAT32)
        kind = FLOATS;
    else if (e->residual_dtype == MLO_UINT8)
        kind = e->inner ? INNER_U8 : U8;
    else if (e->residual_dtype == MLO_INT8)
        kind = e->inner ? INNER_S8 : S8;
    if (e->swish) {
        kind = RESIDUALS;
    } else if (v * rows >= 10 && e->y_dtype != MLO_FLOAT32) { /* nearly whole tiles, as nets have them */
        if (kind == NONE && shift_of(e) == 0)                 /* behind Relu */
            return to_bytes(t, v, low, rows, NONE, false, sums);
        if (kind == NONE)
            return to_bytes(t, v, low, rows, NONE, true, sums);
        if (kind == U8)
            return to_bytes(t, v, low, rows, U8, true, sums);
        if (kind == S8)
            return to_bytes(t, v, low, rows, S8, true, sums);
        if (kind == INNER_U8)
            return to_bytes(t, v, low, rows, INNER_U8, true, sums);
        if (kind == INNER_S8)
            return to_bytes(t, v, low, rows, INNER_S8, true, sums);
    }
    __m512i buffer[SUMS_MAX];
    UNROLL for (size_t r = 0; r < rows; r++) UNROLL for (size_t j = 0; j < v; j++) buffer[r * v + j] =
        sums[index_of(v, low, r, j)];
    if (e->swish)
        swishes[v - 1](t, buffer, rows);
    else
        rests[e->y_dtype == MLO_FLOAT32][v - 1][kind](t, buffer, rows);
}

/* --- tiles ------------------------------------------------------------------------------------------- */

/* The rows behind the tile's are most often the next ones; what is written and added comes from further away
 * than what the sums read. Prefetching never faults. */
INLINE void fetch_next(const struct tile *t, size_t rows)
{
    const char *y = t->y + rows * t->y_stride, *residual = t->residual;
    UNROLL for (size_t r = 0; r < rows; r++) __asm__ volatile("prefetchw %0" : : "m"(y[r * t->y_stride]));
    if (residual)
        UNROLL for (size_t r = rows; r < 2 * rows; r++)
            _mm_prefetch(residual + r * t->residual_stride, _MM_HINT_T0);
}

#define TILE(x, v, low, high)                                                                                \
    SUMS(x, v, low, high)                                                                                    \
    TARGET static void tile_##x##_##v##_##low##_##high(const struct tile *t)                                 \
    {                                                                                                        \
        __m512i sums[SUMS_MAX];                                                                              \
        fetch_next(t, low + high);                                                                           \
        sums_##x##_##v##_##low##_##high(t, sums);                                                            \
        finish(t, v, low, low + high, sums);                                                                 \
    }
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

TILES(U8)
TILES(S8)

TARGET static void quantize(const float *x, size_t rows, size_t width, size_t columns,
                            const struct cpu_qparams *q, char *y, size_t y_stride)
{
    const float lowest = q->dtype == MLO_INT8 ? -128.0f : 0.0f, zero = (float)q->zero_point;
    const __m512 inverse = _mm512_set1_ps(1.0f / q->scale), low = _mm512_set1_ps(lowest - zero),
                 high = _mm512_set1_ps(lowest + 255.0f - zero);
    const __m512i shift = _mm512_set1_epi32(q->zero_point);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < columns; j += 16) {
            __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + r * width + j), inverse);
            v = _mm512_min_ps(_mm512_max_ps(v, low), high);
            __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(v), shift));
            _mm_mask_storeu_epi8(y + r * y_stride + j, (__mmask16)mask_of(columns, j, 16), bytes);
        }
}

#define KERNELS(x, label)                                                                                    \
    static const struct tile_kernels kernels_##x = {                                                         \
        .name = label,                                                                                       \
        .group_bytes = 4,                                                                                    \
        .group_depth = 4,                                                                                    \
        .width_count = 3,                                                                                    \
        .widths = {16, 32, 48},                                                                              \
        .rows_max = {14, 7, 5},                                                                              \
        .quantize = quantize,                                                                                \
        .swish = true,                                                                                       \
        .run = {tiles_##x##_1, tiles_##x##_2, tiles_##x##_3},                                                \
    };
KERNELS(U8, "avx512-vnni u8s8")
KERNELS(S8, "avx512-vnni s8s8")

const struct tile_kernels *tile_kernels_u8s8(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? &kernels_U8 : NULL;
}

const struct tile_kernels *tile_kernels_s8s8(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? &kernels_S8 : NULL;
}
