/* Elementwise kernels in plain C, and what the others fall back to. */
#include <math.h>

#include "engines/cpu/invariant/lanes_impl.h"

#include "engines/cpu/invariant/loops.inc"

void inv_each(const struct mlo_scalar *exact, size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (float)exact->fn(x[i], exact->a, exact->b);
}

static void windows(const struct inv_windows *w, size_t n, const float *x, const float *end, float *y)
{
    MLO_UNUSED(end);
    windows_each(w, n, x, y);
}

static void finish(const struct inv_tail *tail, size_t lines, const float *x, size_t pitch,
                   const struct inv_piece *pieces, int piece_count, float *y, size_t plane)
{
    for (size_t r = 0; r < lines; r++)
        for (int i = 0; i < piece_count; i++) {
            const struct inv_piece *p = &pieces[i];
            for (size_t j = 0; j < p->count; j++) {
                float v, from = x[r * pitch + p->at + j];
                v = from;
                if (tail->channels)
                    affine(1, &tail->channels[r], &from, &v);
                if (tail->adds) {
                    float a = tail->adds[r * plane + p->to + j];
                    v = tail->adds_left ? inv_first_nan(a, a + v) : inv_first_nan(v, v + a);
                }
                clip(1, tail->low, tail->high, &v, &y[r * plane + p->to + j]);
            }
        }
}

static void swish(const struct mlo_scalar *exact, size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * (float)exact->fn(x[i], exact->a, exact->b);
}

double inv_softmax_sum(size_t n, double top, const float *x)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += mlo_math_exp((double)x[i] - top);
    return sum;
}

static bool softmax(size_t n, const float *x, float *y)
{
    float top = -INFINITY;
    bool nan = false;
    for (size_t i = 0; i < n; i++) {
        top = x[i] > top ? x[i] : top;
        nan |= x[i] != x[i];
    }
    if (nan || isinf(top))
        return false;
    double sum = inv_softmax_sum(n, top, x);
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(mlo_math_exp((double)x[i] - (double)top) / sum);
    return true;
}

static void sums(size_t n, const float *x, const double *mean, double *sum)
{
    MLO_UNUSED(mean);
    for (size_t k = 0; k < INV_LINES; k++)
        sum[k] = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < INV_LINES; k++)
            sum[k] += (double)x[k * n + i];
}

static void squares(size_t n, const float *x, const double *mean, double *sum)
{
    for (size_t k = 0; k < INV_LINES; k++)
        sum[k] = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < INV_LINES; k++) {
            double d = (double)x[k * n + i] - mean[k];
            sum[k] += d * d;
        }
}

const struct inv_lanes inv_lanes_generic = {.binary = {add, sub, mul, divide},
                                            .exp = inv_each,
                                            .sigmoid = inv_each,
                                            .tanh = inv_each,
                                            .erf = inv_each,
                                            .swish = swish,
                                            .clip = clip,
                                            .affine = affine,
                                            .finish = finish,
                                            .normalise = normalise,
                                            .most = most,
                                            .windows = windows,
                                            .sums = sums,
                                            .squares = squares,
                                            .softmax = softmax};

const struct inv_lanes *inv_lanes_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &inv_lanes_avx512
           : isa >= MLO_ISA_AVX2 ? &inv_lanes_avx2
                                 : &inv_lanes_generic;
}
