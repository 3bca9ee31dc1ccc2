/* Models, and reading the graph. */
#include "graph/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model_impl.h"
#include "graph/op.h"

struct mlo_graph *mlo_graph_new(struct mlo_model *model, struct mlo_node *owner, const char *name)
{
    struct mlo_graph *graph = mlo_arena_alloc(model->arena, sizeof *graph);
    if (!graph)
        return NULL;
    graph->name = mlo_arena_strdup(model->arena, name ? name : "");
    graph->doc = "";
    graph->model = model;
    graph->owner = owner;
    graph->parent = owner ? owner->graph : NULL;
    return graph->name ? graph : NULL;
}

static void unmap(void *arg)
{
    struct mlo_shared_mapping *shared = arg;
    if (atomic_fetch_sub(&shared->users, 1) == 1) {
        mlo_fs_unmap(&shared->mapping);
        while (shared->files) {
            struct mlo_mapped_file *file = shared->files;
            shared->files = file->next;
            mlo_fs_unmap(&file->mapping);
            free(file->path);
            free(file);
        }
        free(shared);
    }
}

bool mlo_model_share_mapping(struct mlo_model *model, struct mlo_shared_mapping *shared)
{
    if (mlo_arena_on_free(model->arena, unmap, shared) != 0)
        return false;
    atomic_fetch_add(&shared->users, 1);
    model->shared = shared;
    model->mapping = shared->mapping;
    return true;
}

enum mlo_status mlo_model_map_take(struct mlo_model *model, struct mlo_mapping *mapping,
                                   struct mlo_error *err)
{
    struct mlo_shared_mapping *shared = calloc(1, sizeof *shared);
    if (shared) {
        shared->mapping = *mapping;
        atomic_init(&shared->users, 0);
        if (mlo_model_share_mapping(model, shared)) {
            *mapping = (struct mlo_mapping){0};
            return MLO_OK;
        }
    }
    free(shared);
    return mlo_error_nomem(err);
}

enum mlo_status mlo_model_new(int64_t opset, struct mlo_model **out, struct mlo_error *err)
{
    *out = NULL;
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_model *model = arena ? mlo_arena_alloc(arena, sizeof *model) : NULL;
    if (!model)
        goto nomem;
    model->arena = arena;
    model->ir_version = 8;
    model->producer_name = model->producer_version = model->domain = model->doc = "";
    model->opsets = mlo_arena_alloc(arena, sizeof *model->opsets);
    model->graph = mlo_graph_new(model, NULL, "main");
    if (!model->opsets || !model->graph)
        goto nomem;
    model->opsets[0] = (struct mlo_opset){"", opset};
    model->opset_count = 1;
    *out = model;
    return MLO_OK;
nomem:
    mlo_arena_free(arena);
    return mlo_error_nomem(err);
}

void mlo_model_free(struct mlo_model *model)
{
    if (model)
        mlo_arena_free(model->arena);
}

int64_t mlo_model_opset(const struct mlo_model *model, const char *domain)
{
    for (int i = 0; i < model->opset_count; i++)
        if (strcmp(model->opsets[i].domain, domain) == 0)
            return model->opsets[i].version;
    return 0;
}

static void free_tensor(void *arg)
{
    mlo_tensor_clear(arg);
}

struct mlo_tensor *mlo_model_tensor_take(struct mlo_model *model, struct mlo_tensor *tensor)
{
    struct mlo_tensor *copy = mlo_arena_alloc(model->arena, sizeof *copy);
    if (!copy || mlo_arena_on_free(model->arena, free_tensor, copy) != 0) {
        mlo_tensor_clear(tensor);
        return NULL;
    }
    *copy = *tensor;
    *tensor = (struct mlo_tensor){0};
    return copy;
}

static bool lies_in(const struct mlo_mapping *mapping, const struct mlo_tensor *tensor)
{
    uintptr_t begin = (uintptr_t)mapping->data, at = (uintptr_t)tensor->data;
    return begin && at >= begin && at - begin < mapping->size &&
           tensor->size_bytes <= mapping->size - (at - begin);
}

void mlo_model_tensor_drop(const struct mlo_model *model, struct mlo_tensor *tensor)
{
    if (!tensor->owned && model->shared) {
        bool ours = lies_in(&model->shared->mapping, tensor);
        for (const struct mlo_mapped_file *f = model->shared->files; f && !ours; f = f->next)
            ours = lies_in(&f->mapping, tensor);
        if (ours)
            mlo_fs_forget(tensor->data, tensor->size_bytes);
    }
    mlo_tensor_clear(tensor);
}

struct mlo_value *mlo_graph_value(const struct mlo_graph *graph, const char *name)
{
    return mlo_names_find(graph, name);
}

bool mlo_node_is(const struct mlo_node *node, const char *op_type)
{
    bool legacy = node->op && (node->op->flags & MLO_OP_LEGACY);
    return node->domain[0] == '\0' && !legacy && strcmp(node->op_type, op_type) == 0;
}

const struct mlo_attr *mlo_node_attr(const struct mlo_node *node, const char *name)
{
    for (int i = 0; i < node->attr_count; i++)
        if (strcmp(node->attrs[i].name, name) == 0)
            return &node->attrs[i];
    return NULL;
}

static const struct mlo_attr *typed(const struct mlo_node *node, const char *name, enum mlo_attr_type type)
{
    const struct mlo_attr *attr = mlo_node_attr(node, name);
    return attr && attr->type == type ? attr : NULL;
}

int64_t mlo_node_attr_i(const struct mlo_node *node, const char *name, int64_t fallback)
{
    const struct mlo_attr *attr = typed(node, name, MLO_ATTR_INT);
    return attr ? attr->i : fallback;
}

float mlo_node_attr_f(const struct mlo_node *node, const char *name, float fallback)
{
    const struct mlo_attr *attr = typed(node, name, MLO_ATTR_FLOAT);
    return attr ? attr->f : fallback;
}

const char *mlo_node_attr_s(const struct mlo_node *node, const char *name, const char *fallback)
{
    const struct mlo_attr *attr = typed(node, name, MLO_ATTR_STRING);
    return attr ? attr->s.bytes : fallback;
}

const int64_t *mlo_node_attr_ints(const struct mlo_node *node, const char *name, size_t *count)
{
    const struct mlo_attr *attr = typed(node, name, MLO_ATTR_INTS);
    *count = attr ? attr->ints.count : 0;
    return attr ? attr->ints.i : NULL;
}

const float *mlo_node_attr_floats(const struct mlo_node *node, const char *name, size_t *count)
{
    const struct mlo_attr *attr = typed(node, name, MLO_ATTR_FLOATS);
    *count = attr ? attr->floats.count : 0;
    return attr ? attr->floats.f : NULL;
}

struct mlo_value *mlo_node_input(const struct mlo_node *node, int i)
{
    return i >= 0 && i < node->input_count ? node->inputs[i] : NULL;
}

const struct mlo_tensor *mlo_node_const(const struct mlo_node *node, int i)
{
    const struct mlo_value *value = mlo_node_input(node, i);
    return value ? value->constant : NULL;
}

struct mlo_node *mlo_value_sole_user(const struct mlo_value *value)
{
    bool sole = value->use_count == 1 && !value->is_output && value->uses[0].node->graph == value->graph;
    return sole ? value->uses[0].node : NULL;
}

bool mlo_type_static(const struct mlo_type *type, int64_t *dims)
{
    if (type->rank < 0)
        return false;
    for (int i = 0; i < type->rank; i++) {
        if (type->dims[i].value < 0)
            return false;
        if (dims)
            dims[i] = type->dims[i].value;
    }
    return true;
}

char *mlo_type_describe(const struct mlo_type *type, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "%s", mlo_dtype_name(type->dtype));
    if (mlo_holds_values(type->dtype) && type->element && at + 2 < size) {
        out[at++] = '(';
        mlo_type_describe(type->element, out + at, size - at - 1);
        at += strlen(out + at);
        snprintf(out + at, size - at, ")");
        return out;
    }
    if (type->rank < 0)
        return out;
    for (int i = 0; i < type->rank && at < size; i++) {
        const struct mlo_dim *dim = &type->dims[i];
        const char *before = i ? "," : "[";
        if (dim->value >= 0)
            at += (size_t)snprintf(out + at, size - at, "%s%lld", before, (long long)dim->value);
        else
            at += (size_t)snprintf(out + at, size - at, "%s%s", before, dim->name ? dim->name : "?");
    }
    if (at < size)
        snprintf(out + at, size - at, "%s", type->rank ? "]" : "[]");
    return out;
}

struct mlo_type mlo_type_of(const struct mlo_tensor *tensor)
{
    struct mlo_type type = {.dtype = tensor->dtype, .rank = tensor->rank};
    if (mlo_holds_values(tensor->dtype))
        type.rank = -1;
    for (int i = 0; i < type.rank; i++)
        type.dims[i].value = tensor->dims[i];
    return type;
}

bool mlo_node_each_subgraph(const struct mlo_node *node, mlo_subgraph_fn *fn, void *arg)
{
    for (int i = 0; i < node->attr_count; i++) {
        const struct mlo_attr *attr = &node->attrs[i];
        if (attr->type == MLO_ATTR_GRAPH && !fn(attr->graph, arg))
            return false;
        for (size_t k = 0; attr->type == MLO_ATTR_GRAPHS && k < attr->graphs.count; k++)
            if (!fn(attr->graphs.g[k], arg))
                return false;
    }
    return true;
}

struct mlo_node *mlo_node_ancestor(struct mlo_node *node, const struct mlo_graph *graph)
{
    while (node && node->graph != graph)
        node = node->graph->owner;
    return node;
}
