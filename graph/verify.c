/* The invariants of model.h, checked after every pass. A failure is a bug of whoever changed the graph. */
#include <stdlib.h>
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

static int compare_uses(const void *a, const void *b)
{
    const struct mlo_use *x = a, *y = b;
    if (x->node != y->node)
        return (uintptr_t)x->node < (uintptr_t)y->node ? -1 : 1;
    return x->index - y->index;
}

/* No use is listed twice. Together with every use pointing back, and their number being that of the inputs
 * that read the value, each input has its use. Sorted, so that a value with very many users takes no square
 * of it. */
static enum mlo_status check_uses(const struct mlo_value *value, struct mlo_error *err)
{
    size_t count = (size_t)value->use_count;
    struct mlo_use few[16], *sorted = count <= MLO_COUNT(few) ? few : malloc(count * sizeof *sorted);
    enum mlo_status status = MLO_OK;
    if (!sorted)
        return mlo_error_nomem(err);
    if (count > 1) {
        memcpy(sorted, value->uses, count * sizeof *sorted);
        qsort(sorted, count, sizeof *sorted, compare_uses);
    }
    for (size_t u = 1; u < count && status == MLO_OK; u++)
        if (compare_uses(&sorted[u - 1], &sorted[u]) == 0)
            status = broken(err, sorted[u].node, "a use is listed twice for", value->name);
    if (sorted != few)
        free(sorted);
    return status;
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
    enum mlo_status status = check_uses(value, err);
    return status == MLO_OK && value->constant ? check_constant(value, err) : status;
}

static bool verify_subgraph(struct mlo_graph *graph, void *arg)
{
    return mlo_graph_verify(graph, arg) == MLO_OK;
}

/* `reads` counts, by a value's position, the inputs of the graph's own nodes that read it. */
static enum mlo_status check_node(const struct mlo_graph *graph, int n, int *reads, struct mlo_error *err)
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
        if (value->graph == graph)
            reads[value->index]++;
        else if (!has_use(value, node, i))
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
    int *reads = calloc((size_t)graph->value_count + 1, sizeof *reads);
    if (!reads)
        return mlo_error_nomem(err);
    for (int i = 0; i < graph->value_count; i++)
        MLO_TRY(check_value(graph, i, err));
    for (int n = 0; n < graph->node_count; n++)
        MLO_TRY(check_node(graph, n, reads, err));
    for (int i = 0; i < graph->value_count; i++) {
        const struct mlo_value *value = graph->values[i];
        int own = 0;
        for (int u = 0; u < value->use_count; u++)
            own += value->uses[u].node->graph == graph;
        if (own != reads[i]) {
            status = broken(err, NULL, "a use is missing in", value->name);
            goto out;
        }
    }
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
    free(reads);
    return status;
}
