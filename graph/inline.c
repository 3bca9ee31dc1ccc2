/* A subgraph without inputs takes the place of its node: the branch of an If that is always taken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model_impl.h"

static bool lacks_name(struct mlo_graph *graph, void *name)
{
    bool lacks = !mlo_graph_value(graph, name);
    for (int n = 0; lacks && n < graph->node_count; n++)
        lacks = mlo_node_each_subgraph(graph->nodes[n], lacks_name, name);
    return lacks;
}

/* A name that no graph of the model has: a value that moves outwards must neither hide another from the
 * bodies around nor be hidden. */
static const char *free_name(const struct mlo_model *model, const char *name)
{
    size_t size = strlen(name) + 16;
    char *text = mlo_arena_alloc(model->arena, size);
    for (unsigned k = 1; text; k++) {
        snprintf(text, size, "%s_%u", name, k);
        if (lacks_name(model->graph, text))
            break;
    }
    return text;
}

/* The values of `body` move to `graph`: map, by index, says which is which. */
static bool move_values(struct mlo_graph *body, struct mlo_graph *graph, struct mlo_value **map)
{
    for (int i = 0; i < body->value_count; i++) {
        struct mlo_value *old = body->values[i], *fresh;
        const char *name = old->name;
        mlo_names_drop(body, old);
        if (!lacks_name(graph->model->graph, (void *)name))
            name = free_name(graph->model, name);
        if (!name)
            return false;
        if (old->constant) {
            struct mlo_tensor tensor = *old->constant;
            old->constant->owned = false;
            fresh = mlo_graph_add_constant_take(graph, name, &tensor);
            if (!fresh)
                mlo_tensor_clear(&tensor);
        } else {
            fresh = mlo_graph_add_value(graph, name, &old->type);
        }
        if (!fresh)
            return false;
        fresh->doc = old->doc;
        fresh->extras = old->extras;
        map[i] = fresh;
    }
    return true;
}

struct move {
    struct mlo_node *owner;
};

static bool adopt(struct mlo_graph *graph, void *arg)
{
    const struct move *move = arg;
    graph->owner = move->owner;
    graph->parent = move->owner->graph;
    return true;
}

/* A node of `body` in front of `before`, with the same attributes, whose own subgraphs come along. */
static bool move_node(struct mlo_node *from, struct mlo_node *before, struct mlo_value *const *map)
{
    size_t ins = (size_t)from->input_count, outs = (size_t)from->output_count;
    struct mlo_value **ends = calloc(ins + outs + 1, sizeof *ends);
    if (!ends)
        return false;
    for (size_t i = 0; i < ins + outs; i++) {
        struct mlo_value *end = i < ins ? from->inputs[i] : from->outputs[i - ins];
        ends[i] = end && end->graph == from->graph ? map[end->index] : end;
    }
    struct mlo_node *node = mlo_graph_add_node(before->graph, before, from->domain, from->op_type, from->name,
                                               ends, from->input_count, ends + ins, from->output_count);
    free(ends);
    if (!node)
        return false;
    node->doc = from->doc;
    node->extras = from->extras;
    node->attrs = from->attrs;
    node->attr_count = from->attr_count;
    from->attr_count = 0;
    return mlo_node_each_subgraph(node, adopt, &(struct move){node});
}

/* Who read output i of the node reads `value`; an output of the graph keeps its name, behind an Identity. */
static bool connect(struct mlo_graph *graph, struct mlo_node *before, struct mlo_value *out,
                    struct mlo_value *value)
{
    if (!out->is_output)
        return mlo_value_replace_uses(out, value);
    return mlo_graph_add_node(graph, before, "", "Identity", out->name, &value, 1, &out, 1) != NULL;
}

enum mlo_status mlo_node_inline(struct mlo_node *node, struct mlo_graph *body, struct mlo_error *err)
{
    struct mlo_graph *graph = node->graph;
    int count = node->output_count, next = node->index + body->node_count;
    if (body->owner != node || body->input_count || body->output_count != count)
        return mlo_error_set(err, MLO_EINVAL, "subgraph '%.160s' cannot take the place of node '%.160s'",
                             body->name, node->name);
    struct mlo_value **map = calloc((size_t)body->value_count + 1, sizeof *map);
    struct mlo_value **outs = calloc((size_t)count + 1, sizeof *outs);
    bool ok = map && outs && move_values(body, graph, map);
    for (int n = 0; ok && n < body->node_count; n++)
        ok = move_node(body->nodes[n], node, map);
    while (ok && body->node_count)
        mlo_graph_remove_node(body->nodes[body->node_count - 1]);
    for (int v = 0; ok && v < body->value_count; v++) /* what nested subgraphs still read */
        ok = mlo_value_replace_uses(body->values[v], map[v]);
    for (int i = 0; ok && i < count; i++)
        outs[i] = node->outputs[i];
    if (ok) {
        mlo_graph_remove_node(node);
        struct mlo_node *behind = next < graph->node_count ? graph->nodes[next] : NULL;
        for (int i = 0; ok && i < count; i++)
            ok = !outs[i] || connect(graph, behind, outs[i], map[body->outputs[i]->index]);
    }
    free(map);
    free(outs);
    return ok ? MLO_OK : mlo_error_nomem(err);
}
