/* The op table: one row per operator and the opset version where that row begins.
 *
 * Rows are sorted by domain, name, since; mlo_op_table_check asserts it at start. A node's row is the one
 * with the greatest `since` that is not above the model's opset. `eval` is the plain, correct reference
 * kernel: sequential, in the order the specification writes, without contraction, so its bits do not depend
 * on the machine. */
#ifndef MLO_GRAPH_OP_H
#define MLO_GRAPH_OP_H

#include "graph/model.h"

/* Infers the types of node's outputs from its inputs' types (and constants) into out[0 … output_count), which
 * come in as unknown. An input's type may be unknown: infer what can be inferred. */
typedef enum mlo_status mlo_op_infer_fn(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err);

/* Computes the outputs. in[i] is NULL for an omitted input. out[i] comes in zeroed (NULL where the output is
 * omitted); the kernel calls mlo_tensor_init on it and fills it; on error the caller clears. */
typedef enum mlo_status mlo_op_eval_fn(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err);

struct mlo_eval;
/* The same for an op with subgraphs: `scope` holds the contents of the graph around the node (graph/eval.h);
 * NULL when nothing is known of them, and then bodies that read outer values (but constants) fail. */
typedef enum mlo_status mlo_op_eval_in_fn(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                          struct mlo_tensor *const *out, struct mlo_eval *scope,
                                          struct mlo_error *err);

enum mlo_op_flags {
    MLO_OP_PURE = 1,        /* same inputs, same outputs: may be folded and merged */
    MLO_OP_RANGE_KEEP = 2,  /* outputs hold only values of the first input: equal quantization parameters */
    MLO_OP_ELEMENTWISE = 4, /* output i depends on element i (after broadcast) only */
    MLO_OP_WEIGHTED = 8,    /* multiply-accumulate with a weight operand (input 1): worth quantizing */
    MLO_OP_FLOPS_MAC = 16,  /* cost is counted in multiply-adds */
    MLO_OP_LEGACY = 32,     /* a form from before opset 7: mlo_node_is does not take it for the later op */
    MLO_OP_VALUES = 64,     /* takes sequences and optionals; without it an op sees tensors only */
};

struct mlo_op {
    const char *domain; /* "" is ai.onnx */
    const char *name;
    int since;
    mlo_op_infer_fn *infer;
    mlo_op_eval_fn *eval;
    unsigned flags;
    int min_inputs, max_inputs; /* max < 0: any number */
    int min_outputs, max_outputs;
    mlo_op_eval_in_fn *eval_in; /* in the place of `eval`, for ops with subgraphs */
};

/* The row for an op at an opset version; NULL when the table has none. */
const struct mlo_op *mlo_op_find(const char *domain, const char *name, int64_t opset);
/* Whether any version of it is known: tells "unknown op" from "opset too new or old". */
bool mlo_op_known(const char *domain, const char *name);
/* The whole table. */
const struct mlo_op *mlo_op_table(size_t *count);
/* Asserts order, uniqueness and non-NULL functions. */
MLO_MUST_USE enum mlo_status mlo_op_table_check(struct mlo_error *err);

/* Every node must have a row: MLO_EUNSUPPORTED names the first node without (name, domain, op, opset) and
 * suggests the nearest known op. */
MLO_MUST_USE enum mlo_status mlo_graph_check_supported(const struct mlo_graph *graph, struct mlo_error *err);

/* The same for one node. */
MLO_MUST_USE enum mlo_status mlo_node_check_supported(const struct mlo_node *node, struct mlo_error *err);

/* Checks counts and runs the row's infer; out[0 … output_count) is set, to unknown where nothing can be told.
 * Errors get the node as place. */
MLO_MUST_USE enum mlo_status mlo_node_infer(const struct mlo_node *node, struct mlo_type *out,
                                            struct mlo_error *err);

/* Evaluates one node by its row; checks input counts. Errors get "node 'name' (Op)" as place. */
MLO_MUST_USE enum mlo_status mlo_node_eval(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                           struct mlo_tensor *const *out, struct mlo_error *err);

/* The same within a scope, which ops with subgraphs read outer values from. */
MLO_MUST_USE enum mlo_status mlo_node_eval_in(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                              struct mlo_tensor *const *out, struct mlo_eval *scope,
                                              struct mlo_error *err);

/* Multiply-adds of a node for its (static) types; 0 when not counted or not static. */
uint64_t mlo_node_macs(const struct mlo_node *node);

/* Window geometry shared by Conv and pooling, with auto_pad resolved. */
struct mlo_window {
    int spatial; /* 1, 2 or 3 dims */
    int64_t kernel[3], stride[3], dilation[3], pad_begin[3], pad_end[3], in[3], out[3];
    bool same, ceil; /* auto_pad SAME_…, ceil_mode */
};
/* From the node's attributes and the input's spatial dims (and the kernel's, where there is no kernel_shape).
 */
MLO_MUST_USE enum mlo_status mlo_window_init(struct mlo_window *w, const struct mlo_node *node, int spatial,
                                             const int64_t *in_dims, const int64_t *kernel_dims,
                                             struct mlo_error *err);

#endif
