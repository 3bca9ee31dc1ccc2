/* The public header of graph/: the model in memory. Tensors, the graph, the op table, shape inference, ONNX
 * in and out, observed statistics. Depends on base/ only. */
#ifndef MLO_GRAPH_H
#define MLO_GRAPH_H

#include "graph/cost.h"
#include "graph/eval.h"
#include "graph/expr.h"
#include "graph/infer.h"
#include "graph/model.h"
#include "graph/onnx.h"
#include "graph/op.h"
#include "graph/scalar.h"
#include "graph/stats.h"
#include "graph/tensor.h"

#endif
