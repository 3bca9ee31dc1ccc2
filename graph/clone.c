/* Deep copies of models. */
#include <stdlib.h>
#include <string.h>

#include "graph/model_impl.h"

/* Old values by index -> new ones, for a graph and the graphs around it. */
struct scope {
    const struct mlo_graph *from;
    struct mlo_value **map;
    struct scope *outer;
};

static struct mlo_value *mapped(const struct scope *scope, const struct mlo_value *value)
{
    while (value && scope && scope->from != value->graph)
        scope = scope->outer;
    return value && scope ? scope->map[value->index] : NULL;
}

static struct mlo_tensor *clone_tensor(struct mlo_model *to, const struct mlo_tensor *from)
{
    struct mlo_tensor copy = *from;
    struct mlo_error err;
    if (to->borrows)
        copy.owned = false;
    else if (from->owned && mlo_tensor_copy(from, &copy, &err) != MLO_OK)
        return NULL;
    return mlo_model_tensor_take(to, &copy); /* what is not owned lies in the shared mapping */
}

static struct mlo_type *clone_element(struct mlo_arena *arena, const struct mlo_type *from);

static struct mlo_type clone_type(struct mlo_arena *arena, const struct mlo_type *from)
{
    struct mlo_type type = *from;
    for (int i = 0; i < type.rank; i++)
        if (type.dims[i].name)
            type.dims[i].name = mlo_arena_strdup(arena, type.dims[i].name);
    if (type.element)
        type.element = clone_element(arena, type.element);
    return type;
}

static struct mlo_type *clone_element(struct mlo_arena *arena, const struct mlo_type *from)
{
    struct mlo_type *copy = mlo_arena_alloc(arena, sizeof *copy);
    if (copy)
        *copy = clone_type(arena, from);
    return copy;
}

static struct mlo_graph *clone_graph(const struct mlo_graph *from, struct mlo_model *model,
                                     struct mlo_node *owner, struct scope *outer);

static bool clone_attr(const struct mlo_attr *from, struct mlo_node *node, struct scope *scope)
{
    struct mlo_model *model = node->graph->model;
    struct mlo_attr *to = mlo_node_attr_slot(node, from->name);
    if (!to)
        return false;
    const char *name = to->name;
    *to = *from;
    to->name = name;
    switch (from->type) {
    case MLO_ATTR_STRING: {
        char *bytes = mlo_arena_calloc(model->arena, from->s.size + 1, 1);
        if (bytes && from->s.size)
            memcpy(bytes, from->s.bytes, from->s.size);
        to->s.bytes = bytes;
        return bytes != NULL;
    }
    case MLO_ATTR_TENSOR:
        to->tensor = clone_tensor(model, from->tensor);
        return to->tensor != NULL;
    case MLO_ATTR_FLOATS:
        to->floats.f = mlo_arena_memdup(model->arena, from->floats.f, from->floats.count * sizeof(float));
        return to->floats.f != NULL;
    case MLO_ATTR_INTS:
        to->ints.i = mlo_arena_memdup(model->arena, from->ints.i, from->ints.count * sizeof(int64_t));
        return to->ints.i != NULL;
    case MLO_ATTR_STRINGS:
        to->strings.s = mlo_arena_calloc(model->arena, from->strings.count, sizeof(char *));
        for (size_t i = 0; to->strings.s && i < from->strings.count; i++)
            if (!(to->strings.s[i] = mlo_arena_strdup(model->arena, from->strings.s[i])))
                return false;
        return to->strings.s != NULL;
    case MLO_ATTR_TYPE:
        to->value_type = clone_element(model->arena, from->value_type);
        return to->value_type != NULL;
    case MLO_ATTR_GRAPH:
        to->graph = clone_graph(from->graph, model, node, scope);
        return to->graph != NULL;
    case MLO_ATTR_GRAPHS: {
        size_t count = from->graphs.count;
        struct mlo_graph **graphs = mlo_arena_calloc(model->arena, count, sizeof *graphs);
        to->graphs.count = 0;
        to->graphs.g = graphs;
        for (size_t i = 0; graphs && i < count; i++) {
            if (!(graphs[i] = clone_graph(from->graphs.g[i], model, node, scope)))
                return false;
            to->graphs.count++;
        }
        return graphs != NULL;
    }
    default:
        return true;
    }
}

/* False: out of memory. */
static bool clone_extras(struct mlo_arena *arena, const struct mlo_extras *from,
                         const struct mlo_extras **out)
{
    *out = NULL;
    if (!from)
        return true;
    size_t size = sizeof *from + (size_t)from->count * sizeof *from->list;
    struct mlo_extras *copy = mlo_arena_memdup(arena, from, size);
    for (int i = 0; copy && i < copy->count; i++)
        if (!(copy->list[i].bytes = mlo_arena_memdup(arena, from->list[i].bytes, from->list[i].size)))
            return false;
    *out = copy;
    return copy != NULL;
}

static bool clone_node(const struct mlo_node *from, struct mlo_graph *to, struct scope *scope)
{
    size_t ins = (size_t)from->input_count, outs = (size_t)from->output_count;
    struct mlo_value **ends = calloc(ins + outs + 1, sizeof *ends);
    struct mlo_node *node = NULL;
    if (!ends)
        return false;
    for (size_t i = 0; i < ins; i++)
        ends[i] = mapped(scope, from->inputs[i]);
    for (size_t i = 0; i < outs; i++)
        ends[ins + i] = mapped(scope, from->outputs[i]);
    node = mlo_graph_add_node(to, NULL, from->domain, from->op_type, from->name, ends, from->input_count,
                              ends + ins, from->output_count);
    free(ends);
    if (!node || !(node->doc = mlo_arena_strdup(to->model->arena, from->doc)))
        return false;
    if (!clone_extras(to->model->arena, from->extras, &node->extras))
        return false;
    node->version = from->version;
    node->op = from->op;
    for (int i = 0; i < from->attr_count; i++)
        if (!clone_attr(&from->attrs[i], node, scope))
            return false;
    return true;
}

static bool clone_values(const struct mlo_graph *from, struct mlo_graph *to, struct scope *scope)
{
    struct mlo_error err;
    for (int i = 0; i < from->value_count; i++) {
        const struct mlo_value *value = from->values[i];
        struct mlo_type type = clone_type(to->model->arena, &value->type);
        struct mlo_value *copy = mlo_graph_add_value(to, value->name, &type);
        if (!copy || (value->constant && !(copy->constant = clone_tensor(to->model, value->constant))))
            return false;
        if ((value->doc && !(copy->doc = mlo_arena_strdup(to->model->arena, value->doc))) ||
            !clone_extras(to->model->arena, value->extras, &copy->extras))
            return false;
        scope->map[i] = copy;
    }
    for (int i = 0; i < from->input_count; i++)
        if (mlo_graph_add_input(to, mapped(scope, from->inputs[i]), &err) != MLO_OK)
            return false;
    return true;
}

static struct mlo_graph *clone_graph(const struct mlo_graph *from, struct mlo_model *model,
                                     struct mlo_node *owner, struct scope *outer)
{
    struct mlo_error err;
    struct mlo_graph *to = mlo_graph_new(model, owner, from->name);
    struct scope scope = {from, calloc((size_t)from->value_count + 1, sizeof *scope.map), outer};
    bool ok = to && scope.map && (to->doc = mlo_arena_strdup(model->arena, from->doc)) != NULL;
    ok = ok && clone_extras(model->arena, from->extras, &to->extras) && clone_values(from, to, &scope);
    for (int i = 0; ok && i < from->node_count; i++)
        ok = clone_node(from->nodes[i], to, &scope);
    for (int i = 0; ok && i < from->output_count; i++)
        ok = mlo_graph_add_output(to, mapped(&scope, from->outputs[i]), &err) == MLO_OK;
    free(scope.map);
    return ok ? to : NULL;
}

static bool clone_texts(const struct mlo_model *from, struct mlo_model *to)
{
    struct mlo_arena *arena = to->arena;
    to->producer_name = mlo_arena_strdup(arena, from->producer_name);
    to->producer_version = mlo_arena_strdup(arena, from->producer_version);
    to->domain = mlo_arena_strdup(arena, from->domain);
    to->doc = mlo_arena_strdup(arena, from->doc);
    to->opsets = mlo_arena_calloc(arena, (size_t)from->opset_count, sizeof *to->opsets);
    to->metadata = mlo_arena_calloc(arena, (size_t)from->metadata_count, sizeof *to->metadata);
    if (!to->producer_name || !to->producer_version || !to->domain || !to->doc || !to->opsets ||
        !to->metadata)
        return false;
    for (int i = 0; i < from->opset_count; i++) {
        to->opsets[i].version = from->opsets[i].version;
        if (!(to->opsets[i].domain = mlo_arena_strdup(arena, from->opsets[i].domain)))
            return false;
    }
    for (int i = 0; i < from->metadata_count; i++) {
        to->metadata[i].key = mlo_arena_strdup(arena, from->metadata[i].key);
        to->metadata[i].value = mlo_arena_strdup(arena, from->metadata[i].value);
        if (!to->metadata[i].key || !to->metadata[i].value)
            return false;
    }
    to->opset_count = from->opset_count;
    to->metadata_count = from->metadata_count;
    return true;
}

static enum mlo_status clone(const struct mlo_model *model, bool borrow, struct mlo_model **out,
                             struct mlo_error *err)
{
    struct mlo_model *copy;
    enum mlo_status status = mlo_model_new(0, &copy, err);
    *out = NULL;
    if (status != MLO_OK)
        return status;
    copy->ir_version = model->ir_version;
    copy->model_version = model->model_version;
    copy->borrows = borrow || model->borrows;
    if (model->shared) {
        if (!mlo_model_share_mapping(copy, model->shared))
            goto nomem;
    }
    if (!clone_texts(model, copy) || !clone_extras(copy->arena, model->extras, &copy->extras) ||
        !(copy->graph = clone_graph(model->graph, copy, NULL, NULL)))
        goto nomem;
    *out = copy;
    return MLO_OK;
nomem:
    mlo_model_free(copy);
    return mlo_error_nomem(err);
}

enum mlo_status mlo_model_clone(const struct mlo_model *model, struct mlo_model **out, struct mlo_error *err)
{
    return clone(model, false, out, err);
}

enum mlo_status mlo_model_clone_borrowing(const struct mlo_model *model, struct mlo_model **out,
                                          struct mlo_error *err)
{
    return clone(model, true, out, err);
}
