/* AttributeProto -> attribute. */
#include <string.h>

#include "graph/onnx_impl.h"

static const char *bytes_copy(struct mlo_arena *arena, const ProtobufCBinaryData *from)
{
    char *copy = mlo_arena_calloc(arena, from->len + 1, 1);
    if (copy && from->len)
        memcpy(copy, from->data, from->len);
    return copy;
}

static enum mlo_status read_strings(struct mlo_arena *arena, const Onnx__AttributeProto *p,
                                    struct mlo_attr *attr, struct mlo_error *err)
{
    const char **list = mlo_arena_calloc(arena, p->n_strings, sizeof *list);
    for (size_t i = 0; list && i < p->n_strings; i++)
        if (!(list[i] = bytes_copy(arena, &p->strings[i])))
            list = NULL;
    attr->strings.s = list;
    attr->strings.count = p->n_strings;
    return list ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status read_one_tensor(const struct mlo_onnx_reader *reader, const Onnx__AttributeProto *p,
                                       struct mlo_attr *attr, struct mlo_error *err)
{
    struct mlo_tensor tensor;
    if (!p->t)
        return mlo_error_set(err, MLO_EFORMAT, "its tensor is missing");
    enum mlo_status status = mlo_onnx_read_tensor(reader, p->t, (struct mlo_span){0}, &tensor, err);
    if (status != MLO_OK)
        return status;
    attr->tensor = mlo_model_tensor_take(reader->model, &tensor);
    return attr->tensor ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status read_graphs(const struct mlo_onnx_reader *reader, const Onnx__AttributeProto *p,
                                   struct mlo_node *node, mlo_onnx_graph_fn *graph_fn, struct mlo_attr *attr,
                                   struct mlo_error *err)
{
    if (attr->type == MLO_ATTR_GRAPH)
        return p->g ? graph_fn(reader, p->g, node, &attr->graph, err)
                    : mlo_error_set(err, MLO_EFORMAT, "its graph is missing");
    struct mlo_graph **list = mlo_arena_calloc(reader->model->arena, p->n_graphs, sizeof *list);
    if (!list)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < p->n_graphs; i++) {
        enum mlo_status status = graph_fn(reader, p->graphs[i], node, &list[i], err);
        if (status != MLO_OK)
            return status;
    }
    attr->graphs.g = list;
    attr->graphs.count = p->n_graphs;
    return MLO_OK;
}

/* Files of IR version 1 leave the type out: it is the field that is set. */
static int type_of(const Onnx__AttributeProto *p)
{
    if (p->has_type && p->type)
        return p->type;
    if (p->has_f)
        return MLO_ATTR_FLOAT;
    if (p->has_i)
        return MLO_ATTR_INT;
    if (p->has_s)
        return MLO_ATTR_STRING;
    if (p->t)
        return MLO_ATTR_TENSOR;
    if (p->g)
        return MLO_ATTR_GRAPH;
    if (p->tp)
        return MLO_ATTR_TYPE;
    if (p->n_floats)
        return MLO_ATTR_FLOATS;
    if (p->n_strings)
        return MLO_ATTR_STRINGS;
    return p->n_graphs ? MLO_ATTR_GRAPHS : p->n_ints ? MLO_ATTR_INTS : 0;
}

static enum mlo_status fill(const struct mlo_onnx_reader *reader, const Onnx__AttributeProto *p,
                            struct mlo_node *node, mlo_onnx_graph_fn *graph_fn, struct mlo_attr *attr,
                            struct mlo_error *err)
{
    struct mlo_arena *arena = reader->model->arena;
    switch (attr->type) {
    case MLO_ATTR_FLOAT:
        attr->f = p->f;
        return MLO_OK;
    case MLO_ATTR_INT:
        attr->i = p->i;
        return MLO_OK;
    case MLO_ATTR_STRING:
        attr->s.size = p->s.len;
        attr->s.bytes = bytes_copy(arena, &p->s);
        return attr->s.bytes ? MLO_OK : mlo_error_nomem(err);
    case MLO_ATTR_TENSOR:
        return read_one_tensor(reader, p, attr, err);
    case MLO_ATTR_FLOATS:
        attr->floats.count = p->n_floats;
        attr->floats.f = mlo_arena_memdup(arena, p->floats, p->n_floats * sizeof(float));
        return attr->floats.f ? MLO_OK : mlo_error_nomem(err);
    case MLO_ATTR_INTS:
        attr->ints.count = p->n_ints;
        attr->ints.i = mlo_arena_memdup(arena, p->ints, p->n_ints * sizeof(int64_t));
        return attr->ints.i ? MLO_OK : mlo_error_nomem(err);
    case MLO_ATTR_STRINGS:
        return read_strings(arena, p, attr, err);
    case MLO_ATTR_TYPE: {
        struct mlo_type *type = mlo_arena_alloc(arena, sizeof *type);
        attr->value_type = type;
        return type ? mlo_onnx_read_type(arena, p->tp, type, err) : mlo_error_nomem(err);
    }
    case MLO_ATTR_GRAPH:
    case MLO_ATTR_GRAPHS:
        return read_graphs(reader, p, node, graph_fn, attr, err);
    default:
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "attributes of type %d (lists of tensors or types, sparse tensors) "
                             "are not supported",
                             (int)attr->type);
    }
}

enum mlo_status mlo_onnx_read_attr(const struct mlo_onnx_reader *reader, const Onnx__AttributeProto *p,
                                   struct mlo_node *node, mlo_onnx_graph_fn *graph_fn, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int type = type_of(p);
    struct mlo_attr *attr = NULL;
    if (!p->name || !*p->name)
        status = mlo_error_set(err, MLO_EFORMAT, "an attribute has no name");
    else if (p->ref_attr_name && *p->ref_attr_name)
        status = mlo_error_set(err, MLO_EFORMAT, "it refers to an attribute of a function, outside of one");
    else if (mlo_node_attr(node, p->name))
        status = mlo_error_set(err, MLO_EFORMAT, "it is there twice");
    else if (!type) /* an empty list of unknown type: as good as absent */
        return MLO_OK;
    else if (!(attr = mlo_node_attr_slot(node, p->name)))
        status = mlo_error_nomem(err);
    if (status == MLO_OK) {
        /* filled aside and then stored: a failed one must not be walked as if it were complete */
        struct mlo_attr filled = {.name = attr->name, .type = (enum mlo_attr_type)type};
        attr->type = MLO_ATTR_INT;
        status = fill(reader, p, node, graph_fn, &filled, err);
        if (status == MLO_OK)
            node->attrs[node->attr_count - 1] = filled;
    }
    if (status != MLO_OK)
        mlo_error_prefix(err, "attribute '%.80s'", p->name ? p->name : "");
    return status;
}
