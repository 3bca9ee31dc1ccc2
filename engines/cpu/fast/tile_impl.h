/* Private to the fast numerics: own kernels for products with packed weights. Conv and Gemm are the same sum
 * over *taps* (kernel positions; one for Gemm) and depth, whose rows are found by address instead of being
 * copied into a matrix first: Dukhan, "The Indirect Convolution Algorithm", 2019.
 *
 * A row of the output is a pixel (channels last) or a sample; a column is an output channel. Weights are
 * packed into *panels* of `width` columns, [tap][depth][width] groups, zero where a column or a depth does
 * not exist. A group is what one lane multiplies at a time: a float; four bytes (u8 or s8 times s8); two
 * numbers of 16 bits (tile_fixed_impl.h). In FP16 (tile_f16_impl.h) it is two halves, for two lanes. */
#ifndef MLO_ENGINES_CPU_FAST_TILE_IMPL_H
#define MLO_ENGINES_CPU_FAST_TILE_IMPL_H

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/fast/vecmath.h"

enum { TILE_ROWS_MAX = 14, TILE_WIDTH_MAX = 64 };
#define TILE_SCALE_MAX 0.25f
#define TILE_BIAS_MAX 0x1p29f

/* x sigmoid(alpha x), quantized. */
struct tile_swish {
    float alpha, scale;
    int32_t zero_point;
};

/* What follows from the rest of an epilogue, found once for a step. */
struct tile_ready {
    float residual_shift, high;
    int32_t shift, span, low_bytes; /* repeated in 32 bits; see bytes_of */
    int finish;
};

/* What happens to the sums of a panel's columns, in this order: bias is where the sum begins (float32), or is
 * added to it after `scale` (int8: sum * scale[j] + bias[j], in units of the output when that is quantized);
 * with `inner`, what the graph quantizes before the residual is added: the units of scale and bias are those
 * of that quantization, the zero point left out, and the result is rounded, clamped to [inner_low,
 * inner_high] and multiplied by inner_scale; the residual is added (bytes: (byte - residual_zero_point) *
 * residual_scale + residual_shift). Floats are then clamped to [low, high]. A quantized output is rounded to
 * the nearest, ties to even; then y_zero_point is added (before, an odd one would turn ties around), and the
 * sum is saturated by low and high, which are integers. int8 with a quantized output or `inner`: |scale[j]|
 * <= TILE_SCALE_MAX and |bias[j]| <= TILE_BIAS_MAX, so that no result leaves the range of int32.
 * With `swish`, which only kernels that say so know, the result is x = sum * scale[j] + bias[j] in its own
 * units, then x sigmoid(alpha x), then bytes by division, rounding and the zero point; there is no residual,
 * no `inner` and no clamp but the range of the type. FP16: sum * unit * scale[j] + bias[j], then as float32;
 * fixed point: sum * scale[j] + bias[j], the units being in the sum.
 */
struct tile_epilogue {
    const float *bias;   /* by column of the panel, padded to its width; never NULL */
    const float *scale;  /* all but float32: the same */
    float unit;          /* FP16 only: the driver's, a power of two that x was divided by */
    const int32_t *init; /* int8 only: what the integer sums begin with (terms of zero points); or NULL */
    float low, high;
    bool inner; /* int8 with a residual of bytes only */
    float inner_low, inner_high, inner_scale;
    float residual_scale, residual_shift; /* bytes only */
    int32_t residual_zero_point;
    enum mlo_dtype residual_dtype;  /* MLO_DTYPE_NONE: no residual; MLO_FLOAT32, MLO_UINT8, MLO_INT8 */
    enum mlo_dtype y_dtype;         /* MLO_FLOAT32, MLO_UINT8, MLO_INT8 */
    int32_t y_zero_point;           /* bytes only: -128 to 255 */
    const struct tile_swish *swish; /* or NULL; the driver's */
    struct tile_ready ready;        /* int8 only: by the kernels' `prepare` */
};

/* One call of a kernel: `rows` x `columns` outputs. The first (rows + 1) / 2 rows begin at x0, the others at
 * x1 (the next line of an image that is narrower than a tile; else just the rows that follow), x_stride bytes
 * apart. Up to 64 bytes behind any row may be read. */
struct tile {
    const char *x0, *x1;
    size_t x_stride;
    const ptrdiff_t *taps; /* byte offset of each tap from the row's begin */
    size_t tap_count;
    size_t depth; /* groups a tap */
    const void *panel;
    char *y;
    const char *residual;
    size_t y_stride, residual_stride; /* bytes from row to row */
    size_t columns;                   /* at most the panel's width; what lies beyond is not written */
    const struct tile_epilogue *epilogue;
    /* A hint: what may be prefetched with the first group of depth (of the panel that comes next), and how
     * many bytes further it is with each group: just enough for all tiles of a panel together to reach the
     * next one's end, but 64 at most. Never NULL. */
    const char *ahead;
    size_t ahead_step;
    /* Fixed point only (tile_fixed_impl.h). Row i of those at x0 (x1) has, for tap k, the unit
     * units0[unit_taps[k] + i * unit_step] (units1). */
    size_t run; /* groups that integers may add up */
    size_t width;
    const float *units0, *units1;
    const ptrdiff_t *unit_taps;
    size_t unit_step;
};
typedef void tile_fn(const struct tile *t);

/* The kernels of one element type on one instruction set: run[width index][rows - 1]. */
struct tile_kernels {
    const char *name;   /* for describe: "avx512 f32" */
    size_t group_bytes; /* 4 */
    size_t group_depth; /* elements in a group: 1 float, 4 bytes, 2 numbers of 16 bits */
    /* The channels of x are padded to whole groups: what lies beyond may not be multiplied by 0 where it may
     * be infinite. */
    bool whole_groups;
    int width_count;
    size_t widths[4];       /* columns of a panel, ascending, at most TILE_WIDTH_MAX */
    int rows_max[4];        /* by width: the most rows a tile has, at most TILE_ROWS_MAX */
    tile_fn *const *run[4]; /* by width: [rows - 1] */
    bool narrow_tail; /* wide panels and a narrow one for the rest are faster than narrow ones for all */
    /* Quantizes rows of a tile: `width` floats each, one behind the other, of which `columns` are written. By
     * a product with 1 / scale; a NaN becomes the lowest value. NULL for kernels of floats. */
    void (*quantize)(const float *x, size_t rows, size_t width, size_t columns, const struct cpu_qparams *q,
                     char *y, size_t y_stride);
    /* Fills in e->ready from what holds for all columns; or NULL. */
    void (*prepare)(struct tile_epilogue *e);
    bool swish; /* they know the epilogue's `swish` */
};
/* NULL: none for that instruction set (int8 without VNNI). */
const struct tile_kernels *tile_kernels_f32(enum mlo_isa isa);
const struct tile_kernels *tile_kernels_u8s8(enum mlo_isa isa); /* x is uint8 */
/* x is int8; init holds -128 times the sum of the column's weights, besides the other terms: the kernel takes
 * x + 128. */
const struct tile_kernels *tile_kernels_s8s8(enum mlo_isa isa);

/* --- the driver: tile_plan.c plans and emits, tile.c runs --------------------------------------------- */

/* TILE_F16, TILE_FIXED: x, bias, residual and y are float32, x becomes halves or numbers of 16 bits in the
 * copy with border. */
enum tile_type { TILE_F32, TILE_U8S8, TILE_S8S8, TILE_F16, TILE_FIXED, TILE_TYPES };
enum { TILE_POSTS_MAX = 4, TILE_PLANES_MAX = 4 };

/* An activation that is more than a clamp: done on a tile's rows of floats while they are in the cache, or by
 * the kernel where it is all that is between the sums and bytes and the kernel knows it. */
struct tile_post {
    enum fast_math fn;
    float alpha, beta;
};

/* A product that a lowering wants done by a step. A Gemm of M rows is a line of M pixels, kernel 1. */
struct tile_product {
    enum tile_type type;
    int64_t batch, groups, in_channels, out_channels; /* channels of one group */
    /* Depth, height, width; 1 where there is no such dim (pad: at the begin; 0). */
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
    /* Row-major constant weights: that of output channel o (of all groups), input channel i (of its group)
     * and kernel position t (counted row-major) is at o * w_out + i * w_in + t * w_tap elements. */
    const void *weights;
    size_t weights_bytes, w_out, w_in, w_tap;
    const float *bias;   /* by output channel of all groups, or NULL: 0 */
    const float *scale;  /* all but float32: the same, not NULL */
    const int32_t *init; /* int8 only: the same, or NULL */
    uint8_t fill;        /* bytes in the padding: int8's zero point */
    bool half;           /* float32: fast_is_half of the weights */
    uint32_t run;        /* fixed point only: the tile's */
    /* x is row-major: its planes become channels last in the copy with border. float32 of one group and 2 to
     * TILE_PLANES_MAX channels. */
    bool planar;
    /* What holds for all columns: low, high, y_dtype and the residual's; the pointers are the driver's. */
    struct tile_epilogue epilogue;
    /* Behind it, in the values' own units. The epilogue's clamp comes before them; where y_dtype is of bytes,
     * they are then quantized by y_scale and the epilogue's zero point. */
    struct tile_post posts[TILE_POSTS_MAX];
    int post_count;
    float y_scale;
    int x, residual, y; /* slots: channels last; residual -1: none */
};

/* Its x is made 16 bits wide from float32. */
static inline bool tile_is_narrowed(const struct tile_product *p)
{
    return p->type == TILE_F16 || p->type == TILE_FIXED;
}
/* Its values are bytes. */
static inline bool tile_is_int8(const struct tile_product *p)
{
    return p->type == TILE_U8S8 || p->type == TILE_S8S8;
}
/* The geometry and type are ones that there are kernels for. Slots and arrays need not be there yet. */
bool tile_supports(const struct mlo_plan *plan, const struct tile_product *p);
/* What the kernels of int8 are to do behind the sums, where that is swish and nothing else. */
bool tile_product_swish(const struct tile_product *p, struct tile_swish *out);
/* Emits the step; tile_supports must hold. */
MLO_MUST_USE enum mlo_status tile_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                       const struct tile_product *p, struct cpu_step **step,
                                       struct mlo_error *err);
/* The same for a float32 product with `half` that FP16 or fixed point is to compute (tile_half.c). */
bool tile_half_supports(const struct mlo_plan *plan, const struct tile_product *p);
MLO_MUST_USE enum mlo_status tile_half_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                            const struct tile_product *p, struct cpu_step **step,
                                            struct mlo_error *err);
/* Sets the epilogue's clamp and residual and the posts from a float chain: [residual] then activations.
 * False where there is more in it. */
bool tile_chain(const struct fast_chain *chain, struct tile_product *out);
/* Sets the slots of x, the chain's residual (its bytes, where the epilogue says so) and the chain's end. */
MLO_MUST_USE enum mlo_status tile_slots(struct mlo_plan *plan, const struct mlo_value *x,
                                        enum cpu_layout layout, const struct fast_chain *chain,
                                        struct tile_product *p, struct mlo_error *err);
/* Geometry of a convolution (1 to 3 spatial dims, all groups) of shapes x and weights. */
void tile_conv_geometry(const struct mlo_window *w, const struct fast_shape *x,
                        const struct fast_shape *weights, int64_t groups, struct tile_product *out);

/* --- tile_planar.c -------------------------------------------------------------------------------------- */

/* out[i * planes + p] = x[p * distance + i] for i < count. */
typedef void tile_interleave_fn(const float *x, size_t distance, size_t planes, size_t count, float *out);
tile_interleave_fn *tile_interleave_for(enum mlo_isa isa);

/* --- tile_int8.c ---------------------------------------------------------------------------------------- */

/* A product of the quantized value x with constant int8 weights. */
struct tile_int8 {
    const struct mlo_node *node;
    const struct mlo_value *x;
    struct mlo_value *y;
    enum cpu_layout layout;
    const float *w_scales; /* one, or one a column */
    size_t w_scale_count;
    const float *bias; /* by column, times beta; or NULL */
    float alpha, beta;
    struct tile_product product; /* geometry and weights; the rest is found out */
};
MLO_MUST_USE enum mlo_status tile_lower_int8(struct mlo_plan *plan, const struct tile_int8 *p, bool *done,
                                             struct mlo_error *err);

/* --- tile_pack.c ---------------------------------------------------------------------------------------- */

/* How a product's columns are cut: panels of widths[main], and one of widths[tail] for the rest. */
struct tile_panels {
    size_t groups, columns;   /* columns of a group */
    size_t per_group, padded; /* panels and columns of a group, with what is padding */
    size_t width, tail;       /* of the last panel of a group */
    int width_index, tail_index;
    size_t taps, depth; /* depth in groups, padded */
    size_t group_bytes, group_depth;
    size_t tap_elements, channels; /* (channels: see whole_groups) unpadded depth of a tap; it covers
                                      tap_elements / channels positions */
};
void tile_panels_init(struct tile_panels *out, const struct tile_kernels *kernels,
                      const struct tile_product *p);
size_t tile_panels_bytes(const struct tile_panels *panels);
/* Of a panel: where it begins in the packed weights, its first column in its group, its width and its padded
 * first column over all groups. */
struct tile_panel {
    size_t offset_bytes, group, first, columns, padded_first;
    int width_index;
};
struct tile_panel tile_panel_at(const struct tile_panels *panels, size_t index);
void tile_pack(const struct tile_panels *panels, const struct tile_product *p, char *out);

#endif
