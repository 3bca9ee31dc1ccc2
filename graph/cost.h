/* What a graph costs, told from its types alone: operations, bytes moved, memory of activations. */
#ifndef MLO_GRAPH_COST_H
#define MLO_GRAPH_COST_H

#include "graph/op.h"

struct mlo_node_cost {
    bool known;          /* all types are static and the op is in the table */
    uint64_t flops;      /* floating or integer operations; a multiply-add is two, moving data none */
    uint64_t bytes_read; /* inputs and weights, each once */
    uint64_t bytes_written;
    uint64_t weight_bytes; /* the constants among what is read */
};
void mlo_node_cost(const struct mlo_node *node, struct mlo_node_cost *out);

struct mlo_peak {
    bool known;       /* all sizes are static */
    uint64_t bytes;   /* inputs and activations alive at the same time, nothing computed in place */
    const char *node; /* while this one runs; NULL in a graph without nodes */
};
/* Walks the nodes in order: a value is alive from its node to its last reader, an input from the start, an
 * output to the end. */
MLO_MUST_USE enum mlo_status mlo_graph_peak(const struct mlo_graph *graph, struct mlo_peak *out,
                                            struct mlo_error *err);

#endif
