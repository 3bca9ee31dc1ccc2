/* Private to the fast numerics: int8 products of one row with few weights, as the layers of recommenders,
 * classifiers' heads and squeeze-and-excitation have them at batch 1. There is nothing to cut into tiles;
 * what counts is how soon such a step begins, and that no sum waits for its last addition. */
#ifndef MLO_ENGINES_CPU_FAST_ROW_INT8_IMPL_H
#define MLO_ENGINES_CPU_FAST_ROW_INT8_IMPL_H

#include "engines/cpu/fast/tile_impl.h"

/* Depth and weights that are few: they stay in the first-level cache, and the row on the stack. */
enum { ROW8_DEPTH_MAX = 1024, ROW8_WEIGHTS_MAX = 16384, ROW8_COLUMNS = 16, ROW8_GROUPS = 4 };

/* One product. Columns are in blocks of ROW8_COLUMNS, the last one with what is padding; depth is in groups
 * of four bytes (of 8 or 16 bits, as the kernels say), a multiple of ROW8_GROUPS of them, zero where a weight
 * does not exist. */
struct row8 {
    size_t depth, groups, blocks;
    bool flip;              /* x is int8: x + 128 is what the weights multiply */
    const uint8_t *x;       /* `depth` bytes; those up to the next multiple of 16 may be read */
    const void *weights;    /* [block][group][column] groups */
    const int32_t *numbers; /* what the sums begin with, of all columns; behind it, as float: the scales, then
                               the biases */
    bool floats;            /* y has float32, else bytes; all columns of the blocks are written */
    float low, high;        /* of floats */
    /* Of bytes: what is added to them, rounded to the nearest, ties to even; and their range behind that. */
    int32_t zero_point, lowest, highest;
    void *y;
};
typedef void row8_fn(const struct row8 *r);

/* The kernels of an instruction set. */
struct row8_kernels {
    const char *name;
    size_t group_depth; /* weights in a group: 4 of 8 bits, or 2 of 16 */
    row8_fn *run;
};
extern const struct row8_kernels row8_avx2, row8_avx512_vnni;
const struct row8_kernels *row8_kernels_for(enum mlo_isa isa); /* NULL: none */

/* The geometry is one row's, and of few weights. */
bool row8_supports(const struct mlo_plan *plan, const struct tile_product *p);
/* What is behind the sums is what such a step can do: no residual, and activations only in front of floats.
 */
bool row8_finishes(const struct tile_product *p);
/* As tile_emit. */
MLO_MUST_USE enum mlo_status row8_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                       const struct tile_product *p, struct cpu_step **step,
                                       struct mlo_error *err);

#endif
