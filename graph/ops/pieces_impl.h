/* Pieces of tensors along an axis, and bare types: what sequences and bodies of loops are made with. */
#ifndef MLO_GRAPH_OPS_PIECES_IMPL_H
#define MLO_GRAPH_OPS_PIECES_IMPL_H

#include "graph/ops/ops_impl.h"

/* Copies [begin, begin + length) along an axis into *out, which owns it; `drop` leaves the axis (of length 1)
 * out. The range must lie inside. */
MLO_MUST_USE enum mlo_status mlo_piece_cut(const struct mlo_tensor *x, int axis, int64_t begin,
                                           int64_t length, bool drop, struct mlo_tensor *out,
                                           struct mlo_error *err);
/* Copies a piece, whose dims are those of `into` but for the axis (or lack it, with a length of 1), to
 * [begin, begin + length) along the axis. */
MLO_MUST_USE enum mlo_status mlo_piece_put(const struct mlo_tensor *piece, struct mlo_tensor *into, int axis,
                                           int64_t begin, int64_t length, struct mlo_error *err);

/* Tensors of one type and shape, gathered one by one, to be stacked along a new axis. */
struct mlo_stack {
    struct mlo_tensor like; /* the first one's type and shape, no data */
    struct mlo_buf bytes;
    int64_t count;
};
MLO_MUST_USE enum mlo_status mlo_stack_add(struct mlo_stack *stack, const struct mlo_tensor *t,
                                           struct mlo_error *err);
/* The stack as one tensor: `axis` of its rank becomes `count` long. `backwards`: the last one added comes
 * first. An empty stack takes its type from `type`, unknown dims as 0. */
MLO_MUST_USE enum mlo_status mlo_stack_finish(const struct mlo_stack *stack, int64_t axis, bool backwards,
                                              const struct mlo_type *type, struct mlo_tensor *out,
                                              struct mlo_error *err);
void mlo_stack_clear(struct mlo_stack *stack);

/* A type of which nothing is known but the element type: a tensor, or a sequence of such tensors. Static. */
const struct mlo_type *mlo_type_bare(enum mlo_dtype dtype, bool sequence);

#endif
