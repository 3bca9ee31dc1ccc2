/* Private to the fast numerics: float32 convolutions with one channel a group, channels last. */
#ifndef MLO_ENGINES_CPU_FAST_DEPTHWISE_IMPL_H
#define MLO_ENGINES_CPU_FAST_DEPTHWISE_IMPL_H

#include "engines/cpu/fast/tile_impl.h"

enum { DEPTHWISE_PIXELS_MAX = 8 };

/* Neighbouring pixels of an output line. Distances in floats. */
struct depthwise {
    const float *x; /* of the first pixel, at its first tap: may be outside of the line, */
    int begin, end; /* whose columns are those of the pixels [begin, end) from x on (known shapes) */
    size_t x_pixel, x_row, x_column;
    size_t rows, columns; /* of the kernel; unknown shapes: those that all of the pixels read */
    const float *w;       /* of the first tap: [row][column][channel] */
    size_t w_row;
    const float *bias;
    size_t channels;       /* to compute; all of them lie between a pixel and the next: */
    size_t pixel;          /* of y, the residual, w, and x where columns are neighbours */
    const float *residual; /* where y is, or NULL */
    float *y;
    float low, high;
};
typedef void depthwise_fn(const struct depthwise *d);

/* The columns of the kernel and the stride that a row's functions are for; 0: any. */
struct depthwise_kernels {
    const char *name;
    struct {
        int columns, stride; /* of neighbouring columns (no dilation) */
        depthwise_fn *run[DEPTHWISE_PIXELS_MAX];
    } by_shape[5]; /* the last one is for any */
};
extern const struct depthwise_kernels depthwise_avx2, depthwise_avx512;

bool depthwise_supports(const struct mlo_plan *plan, const struct tile_product *p);
/* As tile_emit. */
MLO_MUST_USE enum mlo_status depthwise_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                            const struct tile_product *p, struct cpu_step **step,
                                            struct mlo_error *err);
/* Lines [begin, end) of the output, by packed weights. Only the lines that are read and written need be
 * there: x and y are where the first line would be. residual: NULL, or where y is. */
void depthwise_run_lines(const struct mlo_plan *plan, const struct tile_product *p, const float *x,
                         const float *weights, const float *bias, const float *residual, float *y,
                         size_t begin, size_t end);
extern const struct cpu_step_class fast_depthwise_class;

#endif
