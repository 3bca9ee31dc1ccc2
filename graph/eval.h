/* Evaluation of graphs by the kernels of the op table, node by node, subgraphs included.
 *
 * One mlo_eval holds the contents of one graph's values. That of a subgraph (the body of a Loop, a branch of
 * an If) points to that of the graph around it, where values of outer graphs are found. Contents are dropped
 * behind the last node that reads them. Loops are bounded: all bodies of one evaluation together run at most
 * MLO_EVAL_MAX_TRIPS times, so that a hostile trip count ends in an error. */
#ifndef MLO_GRAPH_EVAL_H
#define MLO_GRAPH_EVAL_H

#include "graph/op.h"

enum { MLO_EVAL_MAX_TRIPS = 1 << 24 };

struct mlo_eval {
    const struct mlo_graph *graph;
    struct mlo_eval *outer;       /* of the graph around; NULL: there is none, or it has no contents */
    struct mlo_eval *root;        /* the outermost one */
    int64_t trips_left;           /* of the root: how many more times bodies may run */
    struct mlo_tensor *values;    /* private: by value index; dtype NONE: no content now */
    int *last_use;                /* private: by value index, the last node that reads it */
    const struct mlo_tensor **in; /* private: the operands of the node at hand */
    struct mlo_tensor **out;
};

/* Prepares the evaluation of a graph, which must outlive it and not change. mlo_eval_clear it, after errors
 * too. */
MLO_MUST_USE enum mlo_status mlo_eval_init(struct mlo_eval *eval, const struct mlo_graph *graph,
                                           struct mlo_eval *outer, struct mlo_error *err);
void mlo_eval_clear(struct mlo_eval *eval);
/* Keeps a value's content until mlo_eval_drop, as the graph's outputs are kept. */
void mlo_eval_keep(struct mlo_eval *eval, const struct mlo_value *value);
/* Gives a value of the graph its content, which is borrowed until it is dropped. An initializer with content
 * is overridden. */
void mlo_eval_feed(struct mlo_eval *eval, const struct mlo_value *value, const struct mlo_tensor *tensor);
/* Runs all nodes. Every input without an initializer must have content. */
MLO_MUST_USE enum mlo_status mlo_eval_run(struct mlo_eval *eval, struct mlo_error *err);
/* The content of a value of this graph or one around it; NULL when there is none. */
const struct mlo_tensor *mlo_eval_content(const struct mlo_eval *eval, const struct mlo_value *value);
/* Moves the content of the graph's output i out (copies what is borrowed, a constant, or wanted again by a
 * later output) into *out, which owns it. */
MLO_MUST_USE enum mlo_status mlo_eval_output(struct mlo_eval *eval, int i, struct mlo_tensor *out,
                                             struct mlo_error *err);
/* Drops all contents: ready to be fed again. */
void mlo_eval_drop(struct mlo_eval *eval);
/* Counts one run of a body: MLO_ETOOBIG when there were too many. */
MLO_MUST_USE enum mlo_status mlo_eval_spend_trip(struct mlo_eval *eval, struct mlo_error *err);

/* The values of the node's own graph that its subgraphs read, each once; at most `max` are written to out.
 * When more than `max` are returned, some may have been counted several times. */
size_t mlo_node_captured(const struct mlo_node *node, struct mlo_value **out, size_t max);

/* All at once. inputs: one per graph input without an initializer, in order. outputs: zeroed structs, one per
 * graph output, which become yours. */
MLO_MUST_USE enum mlo_status mlo_graph_eval(const struct mlo_graph *graph, const struct mlo_tensor *inputs,
                                            struct mlo_tensor *outputs, struct mlo_error *err);

#endif
