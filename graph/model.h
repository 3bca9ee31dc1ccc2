/* The graph: values (SSA edges) and nodes, in one arena per model.
 *
 * A value has one producer (a node's output), or is a graph input, or an initializer (a constant). Nodes
 * are kept in a topological order. Everything is allocated from the model's arena and lives until
 * mlo_model_free; pointers between values and nodes are borrowed. Passes change the graph through the
 * functions below only, which keep uses and producers consistent; mlo_graph_verify checks that. */
#ifndef MLO_GRAPH_MODEL_H
#define MLO_GRAPH_MODEL_H

#include "graph/tensor.h"

struct mlo_op;
struct mlo_node;
struct mlo_graph;
struct mlo_exprs;

/* One dimension: fixed (value >= 0), named (value < 0, name set) or unknown (value < 0, name NULL). */
struct mlo_dim {
    int64_t value;
    const char *name;
};

/* A static type and shape; dtype MLO_DTYPE_NONE: unknown; rank < 0: unknown rank. */
struct mlo_type {
    enum mlo_dtype dtype;
    int rank;
    struct mlo_dim dims[MLO_MAX_RANK];
    const struct mlo_type *element; /* of a sequence or optional (whose rank is -1); NULL: unknown */
};

/* Fields of a file that mlopt has no use for, kept as they came so that a round trip loses nothing:
 * quantization annotations, training information, metadata of nodes and values, and what later versions add.
 */
struct mlo_extra {
    uint32_t field;
    int wire; /* protobuf's wire type */
    size_t size;
    const uint8_t *bytes;
};
struct mlo_extras {
    int count;
    struct mlo_extra list[];
};

struct mlo_use {
    struct mlo_node *node;
    int index; /* which input of it */
};

struct mlo_value {
    const char *name; /* unique in its graph, never NULL or "" */
    struct mlo_type type;
    struct mlo_node *producer; /* NULL for inputs and initializers */
    int producer_index;
    struct mlo_tensor *constant; /* initializer's data (arena or file mapping); else NULL */
    struct mlo_tensor *known;  /* content that the last inference derived (of shape computations), or NULL */
    struct mlo_exprs *symbols; /* the same where some of it is symbolic (graph/expr.h), or NULL */
    bool is_input, is_output;  /* of the graph. An initializer may be a (default-valued) input too. */
    struct mlo_use *uses;
    int use_count, use_cap;
    struct mlo_graph *graph;
    int index;                       /* position in graph->values */
    const char *doc;                 /* of an input, output or initializer, or NULL */
    const struct mlo_extras *extras; /* or NULL; as in nodes, graphs and models */
};

enum mlo_attr_type { /* numbers of onnx.AttributeProto.AttributeType */
                     MLO_ATTR_FLOAT = 1,
                     MLO_ATTR_INT = 2,
                     MLO_ATTR_STRING = 3,
                     MLO_ATTR_TENSOR = 4,
                     MLO_ATTR_GRAPH = 5,
                     MLO_ATTR_FLOATS = 6,
                     MLO_ATTR_INTS = 7,
                     MLO_ATTR_STRINGS = 8,
                     MLO_ATTR_TENSORS = 9,
                     MLO_ATTR_GRAPHS = 10,
                     MLO_ATTR_TYPE = 13,
};

struct mlo_attr {
    const char *name;
    enum mlo_attr_type type;
    union {
        float f;
        int64_t i;
        struct {
            const char *bytes; /* NUL-terminated behind its size */
            size_t size;
        } s;
        struct mlo_tensor *tensor;
        struct mlo_graph *graph;
        const struct mlo_type *value_type;
        struct {
            size_t count;
            float *f;
        } floats;
        struct {
            size_t count;
            int64_t *i;
        } ints;
        struct {
            size_t count;
            const char **s;
        } strings;
        struct {
            size_t count;
            struct mlo_graph **g;
        } graphs;
    };
};

struct mlo_node {
    const char *name;   /* may be "" in a file; import gives every node a unique name */
    const char *domain; /* "" is ai.onnx */
    const char *op_type;
    int64_t version;           /* opset version of its domain in the model */
    const struct mlo_op *op;   /* its row in the op table; NULL when the table has none */
    struct mlo_value **inputs; /* NULL for an omitted optional input */
    int input_count;
    struct mlo_value **outputs; /* NULL for an omitted optional output */
    int output_count;
    struct mlo_attr *attrs;
    int attr_count;
    struct mlo_graph *graph;
    int index; /* position in graph->nodes */
    const char *doc;
    const struct mlo_extras *extras;
};

struct mlo_graph {
    const char *name;
    struct mlo_model *model;
    const char *doc;
    struct mlo_graph *parent; /* of a subgraph: values are looked up outwards */
    struct mlo_node *owner;   /* of a subgraph: the node whose attribute it is */
    struct mlo_value **values;
    int value_count, value_cap;
    struct mlo_node **nodes; /* topological order */
    int node_count, node_cap;
    struct mlo_value **inputs; /* in order, with default-valued ones */
    int input_count, input_cap;
    struct mlo_value **outputs;
    int output_count, output_cap;
    const struct mlo_extras *extras;
    struct mlo_names *names; /* private: name -> value, and node names in use */
};

struct mlo_opset {
    const char *domain;
    int64_t version;
};

struct mlo_meta {
    const char *key, *value;
};

struct mlo_model {
    struct mlo_arena *arena;
    struct mlo_graph *graph;
    int64_t ir_version;
    struct mlo_opset *opsets;
    int opset_count;
    const char *producer_name, *producer_version, *domain, *doc;
    int64_t model_version;
    struct mlo_meta *metadata;
    int metadata_count;
    const struct mlo_extras *extras;
    struct mlo_mapping mapping;        /* the file that initializers may point into; may be empty */
    struct mlo_shared_mapping *shared; /* private: counts the models that use the mapping */
    bool borrows; /* its constants are another model's, which outlives it: read them only */
};

/* --- models ------------------------------------------------------------------------------------- */

/* An empty model with an empty main graph, opset ai.onnx `opset`. */
MLO_MUST_USE enum mlo_status mlo_model_new(int64_t opset, struct mlo_model **out, struct mlo_error *err);
void mlo_model_free(struct mlo_model *model);
/* A deep copy that shares nothing with the original (constants too, unless in a file mapping, which is
 * then mapped again or copied). *out is yours. */
MLO_MUST_USE enum mlo_status mlo_model_clone(const struct mlo_model *model, struct mlo_model **out,
                                             struct mlo_error *err);
/* The same, but constants (of nodes' attributes too) are the original's memory: it must outlive the copy,
 * unchanged. */
MLO_MUST_USE enum mlo_status mlo_model_clone_borrowing(const struct mlo_model *model, struct mlo_model **out,
                                                       struct mlo_error *err);
/* The opset version imported for a domain ("" for ai.onnx); 0 when it is not imported. */
int64_t mlo_model_opset(const struct mlo_model *model, const char *domain);

/* --- reading the graph -------------------------------------------------------------------------- */

/* The value of that name in this graph (not in outer ones); NULL when there is none. */
struct mlo_value *mlo_graph_value(const struct mlo_graph *graph, const char *name);
/* Whether it is that op of the ai.onnx domain, in a form of opset 7 or later where older ones differ. */
bool mlo_node_is(const struct mlo_node *node, const char *op_type);
const struct mlo_attr *mlo_node_attr(const struct mlo_node *node, const char *name);
int64_t mlo_node_attr_i(const struct mlo_node *node, const char *name, int64_t fallback);
float mlo_node_attr_f(const struct mlo_node *node, const char *name, float fallback);
const char *mlo_node_attr_s(const struct mlo_node *node, const char *name, const char *fallback);
/* The list, borrowed, and its length; NULL and 0 when absent. */
const int64_t *mlo_node_attr_ints(const struct mlo_node *node, const char *name, size_t *count);
const float *mlo_node_attr_floats(const struct mlo_node *node, const char *name, size_t *count);
/* Input i: NULL when there is none or it is omitted. */
struct mlo_value *mlo_node_input(const struct mlo_node *node, int i);
/* Input i's constant, or NULL. */
const struct mlo_tensor *mlo_node_const(const struct mlo_node *node, int i);
/* Calls fn for every subgraph of a node, in order of attributes, until it says false; false: it did. */
typedef bool mlo_subgraph_fn(struct mlo_graph *graph, void *arg);
bool mlo_node_each_subgraph(const struct mlo_node *node, mlo_subgraph_fn *fn, void *arg);
/* The only user of a value that is no graph output; NULL when it has none or several, or one in a subgraph.
 */
struct mlo_node *mlo_value_sole_user(const struct mlo_value *value);
/* True when every dim is fixed; fills dims (may be NULL). */
bool mlo_type_static(const struct mlo_type *type, int64_t *dims);
char *mlo_type_describe(const struct mlo_type *type, char *out, size_t size); /* "float32[batch,1,28,28]" */

/* --- changing the graph ------------------------------------------------------------------------- */

/* A new value; the name is made unique by a suffix when it is taken (NULL: "v"). NULL: out of memory. */
struct mlo_value *mlo_graph_add_value(struct mlo_graph *graph, const char *name, const struct mlo_type *type);
/* A new initializer; takes over tensor->data if it is owned (the struct itself is copied). */
struct mlo_value *mlo_graph_add_constant_take(struct mlo_graph *graph, const char *name,
                                              struct mlo_tensor *tensor);
/* Replaces an initializer's data, keeping value and users; takes over like the above. */
MLO_MUST_USE enum mlo_status mlo_value_set_constant_take(struct mlo_value *value, struct mlo_tensor *tensor,
                                                         struct mlo_error *err);
/* Turns an existing produced value into a constant (its producer loses it); used by folding. */
MLO_MUST_USE enum mlo_status mlo_value_make_constant_take(struct mlo_value *value, struct mlo_tensor *tensor,
                                                          struct mlo_error *err);
/* Appends to the graph's inputs or outputs. */
MLO_MUST_USE enum mlo_status mlo_graph_add_input(struct mlo_graph *graph, struct mlo_value *value,
                                                 struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_graph_add_output(struct mlo_graph *graph, struct mlo_value *value,
                                                  struct mlo_error *err);
/* A new node in front of `before` (NULL: at the end). inputs/outputs are copied; outputs must have no
 * producer yet. The op row is looked up. The name is made unique. NULL: out of memory. */
struct mlo_node *mlo_graph_add_node(struct mlo_graph *graph, struct mlo_node *before, const char *domain,
                                    const char *op_type, const char *name, struct mlo_value *const *inputs,
                                    int input_count, struct mlo_value *const *outputs, int output_count);
/* Sets or replaces an attribute; false: out of memory. */
bool mlo_node_set_i(struct mlo_node *node, const char *name, int64_t value);
bool mlo_node_set_f(struct mlo_node *node, const char *name, float value);
bool mlo_node_set_s(struct mlo_node *node, const char *name, const char *value);
bool mlo_node_set_ints(struct mlo_node *node, const char *name, const int64_t *values, size_t count);
/* Removes an attribute; false: it was not there. */
bool mlo_node_unset(struct mlo_node *node, const char *name);
/* Replaces or appends input i (missing ones between become omitted). false: out of memory. */
bool mlo_node_set_input(struct mlo_node *node, int i, struct mlo_value *value);
/* Makes every user of `from` (graph outputs excepted) use `to`. */
bool mlo_value_replace_uses(struct mlo_value *from, struct mlo_value *to);
/* Makes `value` lose its name to `taker`: taker is renamed to value's name and value to a fresh one; graph
 * output slots move too. For keeping output names when a pass replaces what produces them. */
bool mlo_value_swap_name(struct mlo_value *value, struct mlo_value *taker);
/* Unlinks a node: its uses end, its outputs become producer-less. It stays in the arena. */
void mlo_graph_remove_node(struct mlo_node *node);
/* Puts the nodes and values of `body`, a subgraph of the node that takes no inputs (the branch of an If that
 * is always taken), in the node's place; the node and its other subgraphs go. Values get new names where
 * theirs are taken anywhere in the model; graph outputs keep theirs, behind an Identity. */
MLO_MUST_USE enum mlo_status mlo_node_inline(struct mlo_node *node, struct mlo_graph *body,
                                             struct mlo_error *err);
/* Unlinks values that nobody produces, uses, or sees from outside. */
void mlo_graph_remove_unused_values(struct mlo_graph *graph);
/* Takes a value off the graph's inputs (for an initializer that was listed there as a default). */
void mlo_graph_unlist_input(struct mlo_graph *graph, struct mlo_value *value);
/* Sets the version of ai.onnx and looks every node's row up again. The nodes must have that version's form.
 */
void mlo_model_set_opset(struct mlo_model *model, int64_t version);
/* Imports a domain, so that nodes of it may be added; nothing changes where it is imported already. false:
 * out of memory. */
bool mlo_model_import(struct mlo_model *model, const char *domain, int64_t version);
/* Restores the topological order (stable: Kahn by original position); MLO_EFORMAT names a node on a cycle. */
MLO_MUST_USE enum mlo_status mlo_graph_sort(struct mlo_graph *graph, struct mlo_error *err);
/* Checks every invariant of this page: order, uses, producers, unique names, types of constants. */
MLO_MUST_USE enum mlo_status mlo_graph_verify(const struct mlo_graph *graph, struct mlo_error *err);

/* A stable text form for golden tests and dumps: one line a node, values with types, small constants
 * spelled out, larger ones as type, shape and digest. */
void mlo_graph_dump(const struct mlo_graph *graph, struct mlo_buf *out);

#endif
