/* The invariants of model.h, checked after every pass. A failure is a bug of whoever changed the graph. */
#include <string.h>

#include "graph/model_impl.h"

static enum mlo_status broken(struct mlo_error *err, const struct mlo_node *node, const char *what,
                              const char *name)
{
    enum mlo_status status =
        mlo_error_set(err, MLO_EINTERNAL, "the graph is inconsistent: %s '%.200s'", what, name);
    if (node)
        mlo_error_where(err, "node '%.200s'", node->name);
    return status;
}

static bool sees(const struct mlo_graph *from, const struct mlo_graph *graph)
{
    while (from && from != graph)
        from = from->parent;
    return from != NULL;
}

static bool has_use(const struct mlo_value *value, const struct mlo_node *node, int index)
{
    int found = 0;
    for (int u = 0; u < value->use_count; u++)
        found += value->uses[u].node == node && value->uses[u].index == index;
    return found == 1;
}

static bool listed(const struct mlo_value *value)
{
    return value->index >= 0 && value->index < value->graph->value_count &&
           value->graph->values[value->index] == value;
}

static enum mlo_status check_constant(const struct mlo_value *value, struct mlo_error *err)
{
    const struct mlo_tensor *t = value->constant;
    size_t bytes;
    if (value->producer)
        return broken(err, NULL, "a constant has a producer:", value->name);
    if (!mlo_shape_bytes(t->dtype, t->rank, t->dims, &bytes) || bytes != t->size_bytes)
        return broken(err, NULL, "a constant's size does not fit its shape:", value->name);
    int64_t dims[MLO_MAX_RANK];
    if (value->type.dtype != t->dtype || value->type.rank != t->rank ||
        !mlo_type_static(&value->type, dims) ||
        (t->rank && memcmp(dims, t->dims, (size_t)t->rank * sizeof dims[0]) != 0))
        return broken(err, NULL, "a constant's type differs from its data:", value->name);
    return MLO_OK;
}

static enum mlo_status check_value(const struct mlo_graph *graph, int i, struct mlo_error *err)
{
    const struct mlo_value *value = graph->values[i];
    if (!value->name || !*value->name)
        return broken(err, NULL, "a value has no name", "");
    if (value->graph != graph || value->index != i)
        return broken(err, NULL, "a value does not know its place:", value->name);
    if (mlo_names_find(graph, value->name) != value)
        return broken(err, NULL, "two values share the name", value->name);
    if (value->producer) {
        const struct mlo_node *p = value->producer;
        if (p->graph != graph || p->index >= graph->node_count || graph->nodes[p->index] != p ||
            value->producer_index >= p->output_count || p->outputs[value->producer_index] != value)
            return broken(err, NULL, "the producer is not in the graph of value", value->name);
        if (value->is_input)
            return broken(err, p, "a node produces the input", value->name);
    }
    for (int u = 0; u < value->use_count; u++) {
        const struct mlo_use *use = &value->uses[u];
        const struct mlo_graph *g = use->node->graph;
        if (use->node->index >= g->node_count || g->nodes[use->node->index] != use->node)
            return broken(err, use->node, "a removed node is listed as a user of", value->name);
        if (use->index >= use->node->input_count || use->node->inputs[use->index] != value)
            return broken(err, use->node, "a use does not point back to", value->name);
    }
    if (!value->producer && !value->is_input && !value->constant && (value->use_count || value->is_output))
        return broken(err, value->use_count ? value->uses[0].node : NULL, "nothing produces", value->name);
    return value->constant ? check_constant(value, err) : MLO_OK;
}

static bool verify_subgraph(struct mlo_graph *graph, void *arg)
{
    return mlo_graph_verify(graph, arg) == MLO_OK;
}

static enum mlo_status check_node(const struct mlo_graph *graph, int n, struct mlo_error *err)
{
    struct mlo_node *node = graph->nodes[n];
    if (node->graph != graph || node->index != n)
        return broken(err, node, "a node does not know its place:", node->name);
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *value = node->inputs[i];
        if (!value)
            continue;
        if (!sees(graph, value->graph) || !listed(value))
            return broken(err, node, "an input is not a value of the graph:", value->name);
        if (!has_use(value, node, i))
            return broken(err, node, "a use is missing in", value->name);
        if (value->producer) {
            const struct mlo_node *here = mlo_node_ancestor(node, value->graph);
            if (!here || value->producer->index >= here->index)
                return broken(err, node, "a node stands before what produces its input", value->name);
        }
    }
    for (int o = 0; o < node->output_count; o++) {
        const struct mlo_value *value = node->outputs[o];
        if (value && (value->graph != graph || !listed(value) || value->producer != node ||
                      value->producer_index != o))
            return broken(err, node, "an output does not point back to its producer:", value->name);
    }
    struct mlo_error inner = {0};
    if (!mlo_node_each_subgraph(node, verify_subgraph, &inner)) {
        if (err)
            *err = inner;
        return inner.status;
    }
    return MLO_OK;
}

enum mlo_status mlo_graph_verify(const struct mlo_graph *graph, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < graph->value_count; i++)
        MLO_TRY(check_value(graph, i, err));
    for (int n = 0; n < graph->node_count; n++)
        MLO_TRY(check_node(graph, n, err));
    for (int i = 0; i < graph->input_count; i++)
        if (!graph->inputs[i]->is_input || !listed(graph->inputs[i])) {
            status = broken(err, NULL, "an input is not marked as one:", graph->inputs[i]->name);
            goto out;
        }
    for (int i = 0; i < graph->output_count; i++)
        if (!graph->outputs[i]->is_output || !listed(graph->outputs[i])) {
            status = broken(err, NULL, "an output is not marked as one:", graph->outputs[i]->name);
            goto out;
        }
out:
    return status;
}
