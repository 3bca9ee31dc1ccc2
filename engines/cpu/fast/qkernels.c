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

/* Adds up n columns in 16 bits, as long as that holds them. */
#define SUM_COLUMNS(NAME, T, SUM)                                                                            \
    BODY void NAME(const T *restrict x, size_t rows, size_t columns, size_t n, int32_t *restrict sums)       \
    {                                                                                                        \
        for (size_t r = 0; r < rows;) {                                                                      \
            SUM part[SUM_COLUMNS_MAX] = {0};                                                                 \
            const size_t end = MLO_MIN(rows, r + 256);                                                       \
            for (; r < end; r++)                                                                             \
                for (size_t i = 0; i < n; i++)                                                               \
                    part[i] = (SUM)(part[i] + x[r * columns + i]);                                           \
            for (size_t i = 0; i < n; i++)                                                                   \
                sums[i] += part[i];                                                                          \
        }                                                                                                    \
    }
enum { SUM_COLUMNS_MAX = 64 };
SUM_COLUMNS(sum_u8, uint8_t, uint16_t)
SUM_COLUMNS(sum_s8, int8_t, int16_t)

BODY void sum_columns(const void *restrict x, bool is_signed, size_t rows, size_t columns, size_t n,
                      int32_t *restrict sums)
{
    if (is_signed)
        sum_s8(x, rows, columns, n, sums);
    else
        sum_u8(x, rows, columns, n, sums);
}

/* By columns that stay in registers, and at the end by as many as are left of them. */
BODY void sum_rows_body(const void *restrict x, bool is_signed, size_t rows, size_t columns,
                        int32_t *restrict sums)
{
    size_t c = 0;
    for (; c + 64 <= columns; c += 64)
        sum_columns((const char *)x + c, is_signed, rows, columns, 64, sums + c);
    if (c + 32 <= columns) {
        sum_columns((const char *)x + c, is_signed, rows, columns, 32, sums + c);
        c += 32;
    }
    if (c + 16 <= columns) {
        sum_columns((const char *)x + c, is_signed, rows, columns, 16, sums + c);
        c += 16;
    }
    if (c < columns)
        sum_columns((const char *)x + c, is_signed, rows, columns, columns - c, sums + c);
}

BODY void interleave_body(const uint8_t *restrict x, size_t plane, size_t channels, size_t count,
                          uint8_t *restrict y)
{
    if (channels == 2)
        for (size_t i = 0; i < count; i++) {
            y[2 * i] = x[i];
            y[2 * i + 1] = x[plane + i];
        }
    else if (channels == 3)
        for (size_t i = 0; i < count; i++) {
            y[3 * i] = x[i];
            y[3 * i + 1] = x[plane + i];
            y[3 * i + 2] = x[2 * plane + i];
        }
    else
        for (size_t i = 0; i < count; i++) {
            y[4 * i] = x[i];
            y[4 * i + 1] = x[plane + i];
            y[4 * i + 2] = x[2 * plane + i];
            y[4 * i + 3] = x[3 * plane + i];
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
    TARGET static void interleave_##NAME(const uint8_t *x, size_t plane, size_t channels, size_t count,      \
                                         uint8_t *y)                                                         \
    {                                                                                                        \
        interleave_body(x, plane, channels, count, y);                                                       \
    }                                                                                                        \
    static const struct fast_kernels kernels_##NAME = {quantize_##NAME, dequantize_##NAME, add_##NAME,       \
                                                       sum_rows_##NAME, interleave_##NAME};

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
