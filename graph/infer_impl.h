/* Shared by the files of shape inference. */
#ifndef MLO_GRAPH_INFER_IMPL_H
#define MLO_GRAPH_INFER_IMPL_H

#include "graph/expr.h"
#include "graph/infer.h"

enum { MLO_KNOWN_MAX = 64 }; /* elements of content that is worth following: shapes, not data */

/* Fills value->symbols of a node's output, where its content is a shape computation with symbolic parts, and
 * value->known when it turns out to be numbers alone. */
MLO_MUST_USE enum mlo_status mlo_symbols_derive(struct mlo_node *node, struct mlo_error *err);

#endif
