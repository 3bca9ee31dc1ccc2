/* Ops with subgraphs: their evaluation (control_eval.c) beside their rows and inference (control.c). */
#ifndef MLO_GRAPH_OPS_CONTROL_IMPL_H
#define MLO_GRAPH_OPS_CONTROL_IMPL_H

#include "graph/eval.h"
#include "graph/ops/pieces_impl.h"

/* The node's subgraph of that name, with as many inputs and outputs as wanted. */
MLO_MUST_USE enum mlo_status mlo_op_body(const struct mlo_node *node, const char *name, int inputs,
                                         int outputs, struct mlo_graph **out, struct mlo_error *err);

/* A Scan's geometry: its node's inputs are (opset 8: lengths,) states, then scanned tensors; its outputs
 * states, then stacked tensors. */
struct mlo_scan {
    struct mlo_graph *body;
    bool batched;                 /* opset 8: a leading batch dim; scanned along the dim behind it */
    int states, scanned, stacked; /* counts */
    int first;                    /* of the node's inputs that are states */
};
MLO_MUST_USE enum mlo_status mlo_scan_init(struct mlo_scan *scan, const struct mlo_node *node,
                                           struct mlo_error *err);
/* Element i of a list attribute, 0 when it is absent or shorter. */
int64_t mlo_scan_option(const struct mlo_node *node, const char *name, int i);

mlo_op_eval_in_fn mlo_eval_if, mlo_eval_loop, mlo_eval_scan, mlo_eval_sequence_map;

#endif
