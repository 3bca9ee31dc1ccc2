/* What the files of graph/ share about models. */
#ifndef MLO_GRAPH_MODEL_IMPL_H
#define MLO_GRAPH_MODEL_IMPL_H

#include <stdatomic.h>

#include "graph/model.h"

/* A file of weights beside a model, mapped as a whole. */
struct mlo_mapped_file {
    char *path;
    struct mlo_mapping mapping;
    struct mlo_mapped_file *next;
};

/* File mappings that several models (clones) point into; the last one unmaps them. Files are added while a
 * model is read, when nobody shares it yet. */
struct mlo_shared_mapping {
    struct mlo_mapping mapping;
    struct mlo_mapped_file *files;
    atomic_int users;
};

/* Makes a model without a mapping one more user of it; false: out of memory. */
bool mlo_model_share_mapping(struct mlo_model *model, struct mlo_shared_mapping *shared);
/* Takes a mapping over (emptying it) into a model that has none; on failure it stays the caller's. */
MLO_MUST_USE enum mlo_status mlo_model_map_take(struct mlo_model *model, struct mlo_mapping *mapping,
                                                struct mlo_error *err);

/* An empty graph; owner is the node it is an attribute of (NULL: a main graph). NULL: out of memory. */
struct mlo_graph *mlo_graph_new(struct mlo_model *model, struct mlo_node *owner, const char *name);

/* The tensor's struct in the model's arena, its data freed with the model; *tensor is emptied. NULL: out of
 * memory, and the data is freed. */
struct mlo_tensor *mlo_model_tensor_take(struct mlo_model *model, struct mlo_tensor *tensor);

/* Frees a constant's data, or, where it lies in the model's file, gives its pages back. */
void mlo_model_tensor_drop(const struct mlo_model *model, struct mlo_tensor *tensor);

bool mlo_value_add_use(struct mlo_value *value, struct mlo_node *node, int index);
void mlo_value_drop_use(struct mlo_value *value, const struct mlo_node *node, int index);
/* A slot for the attribute `name`, emptied when it exists. NULL: out of memory. */
struct mlo_attr *mlo_node_attr_slot(struct mlo_node *node, const char *name);

/* Name tables: values by name, and the set of node names in use. */
struct mlo_value *mlo_names_find(const struct mlo_graph *graph, const char *name);
bool mlo_names_put(struct mlo_graph *graph, struct mlo_value *value);
void mlo_names_drop(struct mlo_graph *graph, struct mlo_value *value);
/* `name` itself when free in this graph, else with a suffix; from the arena; NULL: out of memory. */
const char *mlo_names_unique(struct mlo_graph *graph, const char *name);
const char *mlo_names_unique_node(struct mlo_graph *graph, const char *name);

/* The node of `graph` that `node` is, or is nested in; NULL when it is in neither. */
struct mlo_node *mlo_node_ancestor(struct mlo_node *node, const struct mlo_graph *graph);
/* Forgets the types of all values that nodes with a row produce, in subgraphs too: before inferring anew. */
void mlo_graph_forget_types(struct mlo_graph *graph);
/* The type of a constant. */
struct mlo_type mlo_type_of(const struct mlo_tensor *tensor);

#endif
