/* Private to the fast numerics: int8 convolutions with one channel a group, channels last. */
#ifndef MLO_ENGINES_CPU_FAST_DEPTHWISE_INT8_IMPL_H
#define MLO_ENGINES_CPU_FAST_DEPTHWISE_INT8_IMPL_H

#include "engines/cpu/fast/tile_impl.h"

enum { DEPTHWISE8_PIXELS_MAX = 6, DEPTHWISE8_ROWS_MAX = 16, DEPTHWISE8_BLOCK = 64 };

/* Neighbouring pixels of an output line, of a block of channels: 64, or 32 or 16 where no more are left, as
 * 4, 2 or 1 vectors. Numbers of a channel lie in the order in which unpacking bytes puts them: lane i of
 * vector j is channel depthwise8_channel(vectors, j, i). */
struct depthwise8 {
    /* By row of the kernel, to four at a time: the line of x, and what is between its columns; where there is
     * no row, `fill` and 0. */
    const uint8_t *row[DEPTHWISE8_ROWS_MAX];
    ptrdiff_t step[DEPTHWISE8_ROWS_MAX];
    const uint8_t *fill;        /* zero points, for all channels: what is outside */
    size_t width;               /* columns of x */
    ptrdiff_t stride, dilation; /* for a shape that is not known */
    size_t columns, fours;      /* of the kernel; its rows by four */
    uint32_t flip;              /* 0x80808080 for an int8 x, else 0 */
    float low, high;            /* of bytes, integers */
    int16_t shift;              /* bytes: the zero point minus low, added behind rounding */
    enum mlo_dtype y_dtype;
    const struct tile_swish *swish; /* before y's bytes, with no low and high; or NULL */
    size_t y_stride;                /* bytes from pixel to pixel */
    /* Of the pixels and the block: */
    ptrdiff_t first;     /* the first column, which may be outside */
    size_t channel;      /* the first one */
    const int8_t *w;     /* [four rows][column][vector][lane][row] */
    const void *numbers; /* int32 that sums begin with, then float: sum * scale + bias */
    size_t channels;     /* that exist in x; */
    size_t written;      /* in y: that, or all lanes, whose numbers are 0 */
    char *y;
};
typedef void depthwise8_fn(const struct depthwise8 *d);

/* The rows and columns of the kernel and the stride that functions are for; 0: any. */
struct depthwise8_kernels {
    const char *name;
    struct {
        int size, stride;                             /* without dilation */
        depthwise8_fn *run[3][DEPTHWISE8_PIXELS_MAX]; /* by vectors (1, 2, 4), by pixels */
    } by_shape[5];                                    /* the last one is for any */
};
extern const struct depthwise8_kernels depthwise8_avx512;

static inline size_t depthwise8_channel(size_t vectors, size_t vector, size_t lane)
{
    return 4 * vectors * (lane / 4) + 4 * vector + lane % 4;
}

bool depthwise8_supports(const struct mlo_plan *plan, const struct tile_product *p);
/* As tile_emit; without a residual. */
MLO_MUST_USE enum mlo_status depthwise8_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                             const struct tile_product *p, struct cpu_step **step,
                                             struct mlo_error *err);

#endif
