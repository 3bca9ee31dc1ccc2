/* Private to the invariant numerics: elementwise kernels and those of lines, with the very bits of the op
 * table's rows, on each instruction set. */
#ifndef MLO_ENGINES_CPU_INVARIANT_LANES_IMPL_H
#define MLO_ENGINES_CPU_INVARIANT_LANES_IMPL_H

#include <string.h>

#include "engines/cpu/cpu_impl.h"

/* Of two NaN the first one stays, as in the op table: instructions keep the first operand, but a compiler may
 * turn the operands of + and * round. Made quiet by hand: a + a behind the condition is merged with other
 * sums, and then -b may stand for b. */
static inline __attribute__((always_inline)) float inv_first_nan(float a, float result)
{
    uint32_t bits;
    float quiet;
    memcpy(&bits, &a, sizeof bits);
    bits |= 0x400000;
    memcpy(&quiet, &bits, sizeof quiet);
    return a != a ? quiet : result;
}

/* y[i] = a[i] . b[i]; an operand whose step is 0 is one number for all. */
typedef void inv_binary_fn(size_t n, const float *a, size_t a_step, const float *b, size_t b_step, float *y);
/* y[i] = (float)exact(x[i]), where x and y are apart. */
typedef void inv_unary_fn(const struct mlo_scalar *exact, size_t n, const float *x, float *y);

/* What an element becomes: (x - mean) * scale + bias, in double, rounded once. */
struct inv_affine {
    double mean, scale, bias;
};

/* Part of a line of results, and where it goes in the plane (and batch). */
struct inv_piece {
    size_t at, count, to;
};

/* What becomes of lines of results, one channel each. */
struct inv_tail {
    const struct inv_affine *channels; /* the first one's; or NULL */
    const float *adds;                 /* to the first one's plane; or NULL */
    bool adds_left;                    /* it is the sum's first operand */
    float low, high;                   /* NaN stays */
};

/* Windows beside each other: their taps, row by row. */
struct inv_windows {
    size_t step; /* from one window to the next: 1 or 2 */
    size_t rows, row_step, taps, tap_step;
};

enum { INV_LINES = 8 }; /* added up at a time, so that one does not wait for itself */

enum inv_binary { INV_ADD, INV_SUB, INV_MUL, INV_DIV, INV_BINARIES };

struct inv_lanes {
    inv_binary_fn *binary[INV_BINARIES];
    inv_unary_fn *exp, *sigmoid, *tanh, *erf;
    inv_unary_fn *swish; /* y[i] = x[i] * (float)exact(x[i]), exact being Sigmoid's */
    void (*clip)(size_t n, float low, float high, const float *x, float *y); /* NaN stays */
    void (*affine)(size_t n, const struct inv_affine *f, const float *x, float *y);
    /* Of each of the lines of x, which lie `pitch` apart, the pieces: affine, sum and clip, each rounded;
     * into planes of y. So far as a vector x is read behind a piece. */
    void (*finish)(const struct inv_tail *tail, size_t lines, const float *x, size_t pitch,
                   const struct inv_piece *pieces, int piece_count, float *y, size_t plane);
    /* Layer normalisation of a line: ((x - mean) * inverse) * scale[i] + bias[i]; bias NULL: zeros. */
    void (*normalise)(size_t n, double mean, double inverse, const float *scale, const float *bias,
                      const float *x, float *y);
    /* y[i] = x[i * step] > y[i] or NaN ? x[i * step] : y[i] */
    void (*most)(size_t n, size_t step, const float *x, float *y);
    /* The same from -infinity on over all taps of n windows, whose first one is at x; nothing at or behind
     * `end` is read. */
    void (*windows)(const struct inv_windows *w, size_t n, const float *x, const float *end, float *y);
    /* Of INV_LINES lines of n elements, one behind the other: the sum of each in the order of its elements,
     * or that of the squared distances from mean[line]. `sums` does not look at mean. */
    void (*sums)(size_t n, const float *x, const double *mean, double *sum);
    void (*squares)(size_t n, const float *x, const double *mean, double *sum);
    /* Of one line; false: it holds NaN or its largest is infinite, and y is garbage. */
    bool (*softmax)(size_t n, const float *x, float *y);
};
extern const struct inv_lanes inv_lanes_generic, inv_lanes_avx2, inv_lanes_avx512;
const struct inv_lanes *inv_lanes_for(enum mlo_isa isa);

/* One by one. */
inv_unary_fn inv_each;
/* The sum of e^(x - top) in the order of the elements, as the op table has it. */
double inv_softmax_sum(size_t n, double top, const float *x);

#endif
