/* Kernels on rows of floats, written once with the compiler's vectors and compiled for each instruction set:
 * a sum needs several accumulators, which a plain loop without -ffast-math does not get. */
#include <math.h>

#include "engines/cpu/fast/fast_impl.h"

#define BODY static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(64), aligned(4)));
enum { LANES = 16 };

BODY float lanes_total(const lanes *v)
{
    float part[LANES], total = 0;
    for (int i = 0; i < LANES; i++)
        part[i] = (*v)[i];
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            part[i] += part[i + step];
    total = part[0];
    return total;
}

/* Two passes over the row, which is in the first-level cache: the variance is that of differences from the
 * mean, so that a large mean does not drown it. */
BODY void normalize_body(const float *x, size_t n, const float *scale, const float *bias, float epsilon,
                         float *y)
{
    lanes s0 = {0}, s1 = {0};
    float rest = 0;
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        s0 += *(const lanes *)(x + i);
        s1 += *(const lanes *)(x + i + LANES);
    }
    for (; i < n; i++)
        rest += x[i];
    s0 += s1;
    float mean = (lanes_total(&s0) + rest) / (float)n;
    lanes v0 = {0}, v1 = {0};
    rest = 0;
    for (i = 0; i + 2 * LANES <= n; i += 2 * LANES) {
        lanes a = *(const lanes *)(x + i) - mean, b = *(const lanes *)(x + i + LANES) - mean;
        v0 += a * a;
        v1 += b * b;
    }
    for (; i < n; i++)
        rest += (x[i] - mean) * (x[i] - mean);
    v0 += v1;
    float unit = 1.0f / sqrtf((lanes_total(&v0) + rest) / (float)n + epsilon);
    if (bias)
        for (i = 0; i < n; i++)
            y[i] = (x[i] - mean) * unit * scale[i] + bias[i];
    else
        for (i = 0; i < n; i++)
            y[i] = (x[i] - mean) * unit * scale[i];
}

#define KERNELS(NAME, TARGET)                                                                                \
    TARGET static void normalize_##NAME(const float *x, size_t n, const float *scale, const float *bias,     \
                                        float epsilon, float *y)                                             \
    {                                                                                                        \
        normalize_body(x, n, scale, bias, epsilon, y);                                                       \
    }                                                                                                        \
    static const struct fast_row_kernels kernels_##NAME = {normalize_##NAME};

KERNELS(generic, )
KERNELS(avx2, __attribute__((target("avx2,fma"))))
#ifdef __clang__ /* has no such attribute: it is 256 bits wide there, and right */
#define WIDE ""
#else
#define WIDE ",prefer-vector-width=512"
#endif
KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq" WIDE))))

const struct fast_row_kernels *fast_row_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &kernels_avx512 : isa >= MLO_ISA_AVX2 ? &kernels_avx2 : &kernels_generic;
}
