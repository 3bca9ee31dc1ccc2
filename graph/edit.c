/* Changing the graph: every function keeps uses, producers, names and positions consistent. */
#include <string.h>

#include "graph/model_impl.h"
#include "graph/op.h"

bool mlo_value_add_use(struct mlo_value *value, struct mlo_node *node, int index)
{
    struct mlo_use *uses = mlo_arena_grow(node->graph->model->arena, value->uses, value->use_count,
                                          &value->use_cap, sizeof *uses);
    if (!uses)
        return false;
    value->uses = uses;
    value->uses[value->use_count++] = (struct mlo_use){node, index};
    return true;
}

void mlo_value_drop_use(struct mlo_value *value, const struct mlo_node *node, int index)
{
    for (int i = 0; i < value->use_count; i++) {
        if (value->uses[i].node != node || value->uses[i].index != index)
            continue;
        value->use_count--; /* in order: users are visited in a stable order */
        memmove(&value->uses[i], &value->uses[i + 1], (size_t)(value->use_count - i) * sizeof value->uses[0]);
        return;
    }
}

struct mlo_value *mlo_graph_add_value(struct mlo_graph *graph, const char *name, const struct mlo_type *type)
{
    struct mlo_arena *arena = graph->model->arena;
    struct mlo_value *value = mlo_arena_alloc(arena, sizeof *value);
    struct mlo_value **values =
        mlo_arena_grow(arena, graph->values, graph->value_count, &graph->value_cap, sizeof *values);
    if (!value || !values)
        return NULL;
    graph->values = values;
    value->name = mlo_names_unique(graph, name);
    value->type = type ? *type : (struct mlo_type){.rank = -1};
    value->graph = graph;
    value->index = graph->value_count;
    if (!value->name || !mlo_names_put(graph, value))
        return NULL;
    graph->values[graph->value_count++] = value;
    return value;
}

struct mlo_value *mlo_graph_add_constant_take(struct mlo_graph *graph, const char *name,
                                              struct mlo_tensor *tensor)
{
    struct mlo_type type = mlo_type_of(tensor);
    struct mlo_tensor *constant = mlo_model_tensor_take(graph->model, tensor);
    struct mlo_value *value = constant ? mlo_graph_add_value(graph, name, &type) : NULL;
    if (value)
        value->constant = constant;
    return value;
}

enum mlo_status mlo_value_set_constant_take(struct mlo_value *value, struct mlo_tensor *tensor,
                                            struct mlo_error *err)
{
    if (!value->constant) {
        mlo_tensor_clear(tensor);
        return mlo_error_set(err, MLO_EINVAL, "value '%s' is no constant", value->name);
    }
    value->type = mlo_type_of(tensor);
    mlo_model_tensor_drop(value->graph->model, value->constant);
    *value->constant = *tensor;
    *tensor = (struct mlo_tensor){0};
    return MLO_OK;
}

enum mlo_status mlo_value_make_constant_take(struct mlo_value *value, struct mlo_tensor *tensor,
                                             struct mlo_error *err)
{
    if (value->constant)
        return mlo_value_set_constant_take(value, tensor, err);
    struct mlo_type type = mlo_type_of(tensor);
    struct mlo_tensor *constant = mlo_model_tensor_take(value->graph->model, tensor);
    if (!constant)
        return mlo_error_nomem(err);
    if (value->producer)
        value->producer->outputs[value->producer_index] = NULL;
    value->producer = NULL;
    value->producer_index = 0;
    value->constant = constant;
    value->type = type;
    return MLO_OK;
}

enum mlo_status mlo_graph_add_input(struct mlo_graph *graph, struct mlo_value *value, struct mlo_error *err)
{
    if (value->producer)
        return mlo_error_set(err, MLO_EINVAL, "value '%s' is produced by a node and cannot be an input",
                             value->name);
    struct mlo_value **inputs = mlo_arena_grow(graph->model->arena, graph->inputs, graph->input_count,
                                               &graph->input_cap, sizeof *inputs);
    if (!inputs)
        return mlo_error_nomem(err);
    graph->inputs = inputs;
    graph->inputs[graph->input_count++] = value;
    value->is_input = true;
    return MLO_OK;
}

enum mlo_status mlo_graph_add_output(struct mlo_graph *graph, struct mlo_value *value, struct mlo_error *err)
{
    struct mlo_value **outputs = mlo_arena_grow(graph->model->arena, graph->outputs, graph->output_count,
                                                &graph->output_cap, sizeof *outputs);
    if (!outputs)
        return mlo_error_nomem(err);
    graph->outputs = outputs;
    graph->outputs[graph->output_count++] = value;
    value->is_output = true;
    return MLO_OK;
}

static void renumber(struct mlo_graph *graph, int from)
{
    for (int i = from; i < graph->node_count; i++)
        graph->nodes[i]->index = i;
}

struct mlo_node *mlo_graph_add_node(struct mlo_graph *graph, struct mlo_node *before, const char *domain,
                                    const char *op_type, const char *name, struct mlo_value *const *inputs,
                                    int input_count, struct mlo_value *const *outputs, int output_count)
{
    struct mlo_arena *arena = graph->model->arena;
    struct mlo_node *node = mlo_arena_alloc(arena, sizeof *node);
    struct mlo_node **nodes =
        mlo_arena_grow(arena, graph->nodes, graph->node_count, &graph->node_cap, sizeof *nodes);
    if (!node || !nodes)
        return NULL;
    graph->nodes = nodes;
    if (strcmp(domain, "ai.onnx") == 0)
        domain = "";
    node->graph = graph;
    node->domain = mlo_arena_strdup(arena, domain);
    node->op_type = mlo_arena_strdup(arena, op_type);
    node->name = mlo_names_unique_node(graph, name && *name ? name : op_type);
    node->doc = "";
    node->version = mlo_model_opset(graph->model, domain);
    node->inputs = mlo_arena_calloc(arena, (size_t)input_count, sizeof *node->inputs);
    node->outputs = mlo_arena_calloc(arena, (size_t)output_count, sizeof *node->outputs);
    if (!node->domain || !node->op_type || !node->name || !node->inputs || !node->outputs)
        return NULL;
    node->op = mlo_op_find(domain, op_type, node->version);
    node->input_count = input_count;
    node->output_count = output_count;
    for (int i = 0; i < input_count; i++) {
        if (inputs[i] && !mlo_value_add_use(inputs[i], node, i))
            return NULL;
        node->inputs[i] = inputs[i];
    }
    for (int i = 0; i < output_count; i++) {
        node->outputs[i] = outputs[i];
        if (outputs[i]) {
            outputs[i]->producer = node;
            outputs[i]->producer_index = i;
        }
    }
    int at = before ? before->index : graph->node_count;
    memmove(&graph->nodes[at + 1], &graph->nodes[at], (size_t)(graph->node_count - at) * sizeof node);
    graph->nodes[at] = node;
    graph->node_count++;
    renumber(graph, at);
    return node;
}

struct mlo_attr *mlo_node_attr_slot(struct mlo_node *node, const char *name)
{
    for (int i = 0; i < node->attr_count; i++)
        if (strcmp(node->attrs[i].name, name) == 0) {
            node->attrs[i] = (struct mlo_attr){.name = node->attrs[i].name};
            return &node->attrs[i];
        }
    struct mlo_arena *arena = node->graph->model->arena;
    struct mlo_attr *attrs = mlo_arena_calloc(arena, (size_t)node->attr_count + 1, sizeof *attrs);
    const char *copy = mlo_arena_strdup(arena, name);
    if (!attrs || !copy)
        return NULL;
    if (node->attr_count)
        memcpy(attrs, node->attrs, (size_t)node->attr_count * sizeof *attrs);
    node->attrs = attrs;
    struct mlo_attr *slot = &attrs[node->attr_count++];
    slot->name = copy;
    return slot;
}

bool mlo_node_set_i(struct mlo_node *node, const char *name, int64_t value)
{
    struct mlo_attr *attr = mlo_node_attr_slot(node, name);
    if (!attr)
        return false;
    attr->type = MLO_ATTR_INT;
    attr->i = value;
    return true;
}

bool mlo_node_set_f(struct mlo_node *node, const char *name, float value)
{
    struct mlo_attr *attr = mlo_node_attr_slot(node, name);
    if (!attr)
        return false;
    attr->type = MLO_ATTR_FLOAT;
    attr->f = value;
    return true;
}

bool mlo_node_set_s(struct mlo_node *node, const char *name, const char *value)
{
    char *copy = mlo_arena_strdup(node->graph->model->arena, value);
    struct mlo_attr *attr = copy ? mlo_node_attr_slot(node, name) : NULL;
    if (!attr)
        return false;
    attr->type = MLO_ATTR_STRING;
    attr->s.bytes = copy;
    attr->s.size = strlen(copy);
    return true;
}

bool mlo_node_set_ints(struct mlo_node *node, const char *name, const int64_t *values, size_t count)
{
    int64_t *copy = mlo_arena_memdup(node->graph->model->arena, values, count * sizeof *values);
    struct mlo_attr *attr = copy ? mlo_node_attr_slot(node, name) : NULL;
    if (!attr)
        return false;
    attr->type = MLO_ATTR_INTS;
    attr->ints.count = count;
    attr->ints.i = copy;
    return true;
}

bool mlo_node_set_input(struct mlo_node *node, int i, struct mlo_value *value)
{
    if (i >= node->input_count) {
        struct mlo_value **inputs =
            mlo_arena_calloc(node->graph->model->arena, (size_t)i + 1, sizeof *inputs);
        if (!inputs)
            return false;
        if (node->input_count)
            memcpy(inputs, node->inputs, (size_t)node->input_count * sizeof *inputs);
        node->inputs = inputs;
        node->input_count = i + 1;
    }
    if (value && !mlo_value_add_use(value, node, i))
        return false;
    struct mlo_value *old = node->inputs[i];
    node->inputs[i] = value;
    if (old)
        mlo_value_drop_use(old, node, i);
    return true;
}

bool mlo_value_replace_uses(struct mlo_value *from, struct mlo_value *to)
{
    if (from == to)
        return true;
    while (from->use_count) {
        struct mlo_use use = from->uses[0];
        if (!mlo_node_set_input(use.node, use.index, to))
            return false;
    }
    return true;
}

bool mlo_value_swap_name(struct mlo_value *value, struct mlo_value *taker)
{
    struct mlo_graph *graph = value->graph;
    const char *fresh = mlo_names_unique(graph, value->name);
    if (!fresh)
        return false;
    const char *kept = value->name;
    mlo_names_drop(graph, value);
    mlo_names_drop(graph, taker);
    value->name = fresh;
    taker->name = kept;
    if (!mlo_names_put(graph, value) || !mlo_names_put(graph, taker))
        return false;
    for (int i = 0; i < graph->output_count; i++)
        if (graph->outputs[i] == value) {
            graph->outputs[i] = taker;
            taker->is_output = true;
        }
    value->is_output = false;
    return true;
}

static bool end_uses(struct mlo_graph *graph, void *arg);

static void end_uses_of(struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i])
            mlo_value_drop_use(node->inputs[i], node, i);
    mlo_node_each_subgraph(node, end_uses, NULL);
}

static bool end_uses(struct mlo_graph *graph, void *arg)
{
    MLO_UNUSED(arg);
    for (int i = 0; i < graph->node_count; i++)
        end_uses_of(graph->nodes[i]);
    return true;
}

void mlo_graph_remove_node(struct mlo_node *node)
{
    struct mlo_graph *graph = node->graph;
    if (node->index >= graph->node_count || graph->nodes[node->index] != node)
        return;
    end_uses_of(node);
    for (int i = 0; i < node->output_count; i++)
        if (node->outputs[i]) {
            node->outputs[i]->producer = NULL;
            node->outputs[i]->producer_index = 0;
        }
    graph->node_count--;
    memmove(&graph->nodes[node->index], &graph->nodes[node->index + 1],
            (size_t)(graph->node_count - node->index) * sizeof node);
    renumber(graph, node->index);
}

void mlo_graph_remove_unused_values(struct mlo_graph *graph)
{
    int kept = 0;
    for (int i = 0; i < graph->value_count; i++) {
        struct mlo_value *value = graph->values[i];
        if (value->is_input || value->is_output || value->producer || value->use_count) {
            value->index = kept;
            graph->values[kept++] = value;
            continue;
        }
        mlo_names_drop(graph, value);
        if (value->constant)
            mlo_model_tensor_drop(graph->model, value->constant);
    }
    graph->value_count = kept;
}
