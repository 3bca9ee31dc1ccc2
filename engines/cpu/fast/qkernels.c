/* Kernels on 8-bit values, written once in plain C and compiled for each instruction set: the loops are
 * simple enough for the compiler to vectorise, and every element is computed alike everywhere. */
#include <math.h>

#include "engines/cpu/fast/fast_impl.h"

#define BODY static inline __attribute__((always_inline))

/* round_half_even(x / scale) + zero point, saturated; a NaN becomes the low end. */
BODY float to_grid(float x, float scale, float zero_point, float low, float high)
{
    float q = rintf(x / scale) + zero_point;
    q = q > low ? q : low;
    return q < high ? q : high;
}

BODY void quantize_body(const float *restrict x, size_t count, const struct cpu_qparams *q, void *restrict y)
{
    float scale = q->scale, zp = (float)q->zero_point;
    if (q->dtype == MLO_INT8) {
        int8_t *out = y;
        for (size_t i = 0; i < count; i++)
            out[i] = (int8_t)(int32_t)to_grid(x[i], scale, zp, -128.0f, 127.0f);
    } else {
        uint8_t *out = y;
        for (size_t i = 0; i < count; i++)
            out[i] = (uint8_t)(int32_t)to_grid(x[i], scale, zp, 0.0f, 255.0f);
    }
}

BODY void dequantize_body(const void *restrict x, size_t count, const struct cpu_qparams *q,
                          float *restrict y)
{
    float scale = q->scale;
    int32_t zp = q->zero_point;
    if (q->dtype == MLO_INT8) {
        const int8_t *in = x;
        for (size_t i = 0; i < count; i++)
            y[i] = (float)(in[i] - zp) * scale;
    } else {
        const uint8_t *in = x;
        for (size_t i = 0; i < count; i++)
            y[i] = (float)(in[i] - zp) * scale;
    }
}

#define ADD_LOOP(TA, TB, TY, LOW, HIGH)                                                                      \
    do {                                                                                                     \
        const TA *pa = a;                                                                                    \
        const TB *pb = b;                                                                                    \
        TY *py = y;                                                                                          \
        for (size_t i = 0; i < count; i++) {                                                                 \
            float v = (float)(pa[i] - za) * sa + (float)(pb[i] - zb) * sb;                                   \
            v = v > floor ? v : floor;                                                                       \
            py[i] = (TY)(int32_t)to_grid(v, scale, zp, LOW, HIGH);                                           \
        }                                                                                                    \
    } while (0)

BODY void add_body(const void *restrict a, const struct cpu_qparams *qa, const void *restrict b,
                   const struct cpu_qparams *qb, size_t count, bool relu, const struct cpu_qparams *q,
                   void *restrict y)
{
    float sa = qa->scale, sb = qb->scale, scale = q->scale, zp = (float)q->zero_point;
    float floor = relu ? 0.0f : -INFINITY;
    int32_t za = qa->zero_point, zb = qb->zero_point;
    bool ia = qa->dtype == MLO_INT8, ib = qb->dtype == MLO_INT8, iy = q->dtype == MLO_INT8;
    if (!ia && !ib && !iy)
        ADD_LOOP(uint8_t, uint8_t, uint8_t, 0.0f, 255.0f);
    else if (ia && ib && iy)
        ADD_LOOP(int8_t, int8_t, int8_t, -128.0f, 127.0f);
    else if (ia && ib)
        ADD_LOOP(int8_t, int8_t, uint8_t, 0.0f, 255.0f);
    else if (ia && iy)
        ADD_LOOP(int8_t, uint8_t, int8_t, -128.0f, 127.0f);
    else if (ia)
        ADD_LOOP(int8_t, uint8_t, uint8_t, 0.0f, 255.0f);
    else if (ib && iy)
        ADD_LOOP(uint8_t, int8_t, int8_t, -128.0f, 127.0f);
    else if (ib)
        ADD_LOOP(uint8_t, int8_t, uint8_t, 0.0f, 255.0f);
    else
        ADD_LOOP(uint8_t, uint8_t, int8_t, -128.0f, 127.0f);
}

BODY void sum_rows_body(const void *restrict x, bool is_signed, size_t rows, size_t columns,
                        int32_t *restrict sums)
{
    for (size_t r = 0; r < rows; r++) {
        if (is_signed) {
            const int8_t *row = (const int8_t *)x + r * columns;
            for (size_t c = 0; c < columns; c++)
                sums[c] += row[c];
        } else {
            const uint8_t *row = (const uint8_t *)x + r * columns;
            for (size_t c = 0; c < columns; c++)
                sums[c] += row[c];
        }
    }
}

#define KERNELS(NAME, TARGET)                                                                                \
    TARGET static void quantize_##NAME(const float *x, size_t count, const struct cpu_qparams *q, void *y)   \
    {                                                                                                        \
        quantize_body(x, count, q, y);                                                                       \
    }                                                                                                        \
    TARGET static void dequantize_##NAME(const void *x, size_t count, const struct cpu_qparams *q, float *y) \
    {                                                                                                        \
        dequantize_body(x, count, q, y);                                                                     \
    }                                                                                                        \
    TARGET static void add_##NAME(const void *a, const struct cpu_qparams *qa, const void *b,                \
                                  const struct cpu_qparams *qb, size_t count, bool relu,                     \
                                  const struct cpu_qparams *q, void *y)                                      \
    {                                                                                                        \
        add_body(a, qa, b, qb, count, relu, q, y);                                                           \
    }                                                                                                        \
    TARGET static void sum_rows_##NAME(const void *x, bool is_signed, size_t rows, size_t columns,           \
                                       int32_t *sums)                                                        \
    {                                                                                                        \
        sum_rows_body(x, is_signed, rows, columns, sums);                                                    \
    }                                                                                                        \
    static const struct fast_kernels kernels_##NAME = {quantize_##NAME, dequantize_##NAME, add_##NAME,       \
                                                       sum_rows_##NAME};

KERNELS(generic, )
KERNELS(avx2, __attribute__((target("avx2"))))
#ifdef __clang__ /* has no such attribute: it is 256 bits wide there, and right */
#define WIDE ""
#else
#define WIDE ",prefer-vector-width=512"
#endif
KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq" WIDE))))

const struct fast_kernels *fast_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &kernels_avx512 : isa >= MLO_ISA_AVX2 ? &kernels_avx2 : &kernels_generic;
}
