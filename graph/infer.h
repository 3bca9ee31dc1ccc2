/* Shape inference over a whole graph, and binding of symbolic dims. */
#ifndef MLO_GRAPH_INFER_H
#define MLO_GRAPH_INFER_H

#include "graph/model.h"

/* Infers types and shapes of all values in order. What a file states and what is inferred must agree
 * (MLO_EFORMAT names node and value otherwise); named dims survive. */
MLO_MUST_USE enum mlo_status mlo_graph_infer(struct mlo_graph *graph, struct mlo_error *err);

/* The same, again and again while a graph with bodies (of If, Loop, Scan) tells more: what is accepted has no
 * contradiction that comes to light only when it is written and read again. */
MLO_MUST_USE enum mlo_status mlo_graph_infer_settled(struct mlo_graph *graph, struct mlo_error *err);

struct mlo_binding {
    const char *name; /* of a symbolic dim */
    int64_t value;
};
/* Replaces named dims of the graph's inputs by numbers (unnamed unknown dims of inputs: by `default_dim`, or
 * an error when it is negative), clears inferred types and infers again. */
MLO_MUST_USE enum mlo_status mlo_graph_bind(struct mlo_graph *graph, const struct mlo_binding *bindings,
                                            size_t count, int64_t default_dim, struct mlo_error *err);
/* Binds the batch: the first dim of every (non-initializer) input when it is symbolic or unknown. */
MLO_MUST_USE enum mlo_status mlo_graph_bind_batch(struct mlo_graph *graph, int64_t batch,
                                                  struct mlo_error *err);
/* Gives the inputs that are fed (those without an initializer, in order) exactly the types and shapes of
 * these tensors, whose data is not read. MLO_EINVAL where one contradicts what the model states, or where a
 * name would stand for two sizes. */
MLO_MUST_USE enum mlo_status mlo_graph_bind_inputs(struct mlo_graph *graph, const struct mlo_tensor *inputs,
                                                   size_t count, struct mlo_error *err);
/* Whether the first dim of every input is symbolic, that is, any batch can be run. */
bool mlo_graph_dynamic_batch(const struct mlo_graph *graph);

#endif
