/* Builds ONNX messages in few words, for tests of models that the graph's own functions do not make:
 * subgraphs and functions. Lists are texts: "a,b". A value is "name:type", where the type is a letter (f
 * float32, i int64, b bool) and its dims: "x:f2x3", "s:f." for a scalar, "u:f" for an unknown shape. Memory
 * is the arena's. */
#ifndef MLO_TESTS_PROTO_H
#define MLO_TESTS_PROTO_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "graph/onnx_impl.h"

#define PROTO_NEW(arena, type, init)                                                                         \
    ({                                                                                                       \
        type *fresh_ = mlo_arena_alloc(arena, sizeof(type));                                                 \
        assert_non_null(fresh_);                                                                             \
        init(fresh_);                                                                                        \
        fresh_;                                                                                              \
    })

static inline char **proto_list(struct mlo_arena *arena, const char *text, size_t *count)
{
    char **list = mlo_arena_calloc(arena, strlen(text) + 1, sizeof *list),
         *rest = mlo_arena_strdup(arena, text);
    *count = 0;
    for (char *item; *text && (item = strsep(&rest, ","));)
        list[(*count)++] = item;
    return list;
}

static inline Onnx__NodeProto *proto_node(struct mlo_arena *arena, const char *op, const char *inputs,
                                          const char *outputs)
{
    Onnx__NodeProto *node = PROTO_NEW(arena, Onnx__NodeProto, onnx__node_proto__init);
    const char *dot = strchr(op, '.'); /* "domain.Op" */
    node->op_type = mlo_arena_strdup(arena, dot ? dot + 1 : op);
    if (dot)
        node->domain = mlo_arena_strndup(arena, op, (size_t)(dot - op));
    node->input = proto_list(arena, inputs, &node->n_input);
    node->output = proto_list(arena, outputs, &node->n_output);
    node->attribute = mlo_arena_calloc(arena, 8, sizeof *node->attribute);
    return node;
}

static inline Onnx__AttributeProto *proto_attr(struct mlo_arena *arena, Onnx__NodeProto *node,
                                               const char *name, enum mlo_attr_type type)
{
    Onnx__AttributeProto *attr = PROTO_NEW(arena, Onnx__AttributeProto, onnx__attribute_proto__init);
    attr->name = mlo_arena_strdup(arena, name);
    attr->has_type = 1;
    attr->type = type;
    if (node)
        node->attribute[node->n_attribute++] = attr;
    return attr;
}

static inline Onnx__NodeProto *proto_i(struct mlo_arena *arena, Onnx__NodeProto *node, const char *name,
                                       int64_t value)
{
    Onnx__AttributeProto *attr = proto_attr(arena, node, name, MLO_ATTR_INT);
    attr->has_i = 1;
    attr->i = value;
    return node;
}

static inline Onnx__NodeProto *proto_ints(struct mlo_arena *arena, Onnx__NodeProto *node, const char *name,
                                          const int64_t *values, size_t count)
{
    Onnx__AttributeProto *attr = proto_attr(arena, node, name, MLO_ATTR_INTS);
    attr->ints = mlo_arena_memdup(arena, values, count * sizeof *values);
    attr->n_ints = count;
    return node;
}

static inline Onnx__NodeProto *proto_f(struct mlo_arena *arena, Onnx__NodeProto *node, const char *name,
                                       float value)
{
    Onnx__AttributeProto *attr = proto_attr(arena, node, name, MLO_ATTR_FLOAT);
    attr->has_f = 1;
    attr->f = value;
    return node;
}

static inline Onnx__NodeProto *proto_g(struct mlo_arena *arena, Onnx__NodeProto *node, const char *name,
                                       Onnx__GraphProto *graph)
{
    proto_attr(arena, node, name, MLO_ATTR_GRAPH)->g = graph;
    return node;
}

static inline Onnx__ValueInfoProto *proto_value(struct mlo_arena *arena, const char *text)
{
    Onnx__ValueInfoProto *value = PROTO_NEW(arena, Onnx__ValueInfoProto, onnx__value_info_proto__init);
    const char *colon = strchr(text, ':'), *dims = colon + 2;
    value->name = mlo_arena_strndup(arena, text, (size_t)(colon - text));
    value->type = PROTO_NEW(arena, Onnx__TypeProto, onnx__type_proto__init);
    value->type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    Onnx__TypeProto__Tensor *t = PROTO_NEW(arena, Onnx__TypeProto__Tensor, onnx__type_proto__tensor__init);
    value->type->tensor_type = t;
    t->has_elem_type = 1;
    t->elem_type = colon[1] == 'f' ? MLO_FLOAT32 : colon[1] == 'i' ? MLO_INT64 : MLO_BOOL;
    if (!*dims)
        return value;
    t->shape = PROTO_NEW(arena, Onnx__TensorShapeProto, onnx__tensor_shape_proto__init);
    t->shape->dim = mlo_arena_calloc(arena, MLO_MAX_RANK, sizeof *t->shape->dim);
    while (*dims && *dims != '.') {
        Onnx__TensorShapeProto__Dimension *d =
            PROTO_NEW(arena, Onnx__TensorShapeProto__Dimension, onnx__tensor_shape_proto__dimension__init);
        char *end;
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        d->dim_value = strtoll(dims, &end, 10);
        t->shape->dim[t->shape->n_dim++] = d;
        dims = *end == 'x' ? end + 1 : end;
    }
    return value;
}

/* The nodes end with NULL. */
static inline Onnx__GraphProto *proto_graph(struct mlo_arena *arena, const char *inputs, const char *outputs,
                                            ...)
{
    Onnx__GraphProto *graph = PROTO_NEW(arena, Onnx__GraphProto, onnx__graph_proto__init);
    char **in = proto_list(arena, inputs, &graph->n_input),
         **out = proto_list(arena, outputs, &graph->n_output);
    graph->name = (char *)"g";
    graph->input = mlo_arena_calloc(arena, graph->n_input, sizeof *graph->input);
    graph->output = mlo_arena_calloc(arena, graph->n_output, sizeof *graph->output);
    for (size_t i = 0; i < graph->n_input; i++)
        graph->input[i] = proto_value(arena, in[i]);
    for (size_t i = 0; i < graph->n_output; i++)
        graph->output[i] = proto_value(arena, out[i]);
    graph->node = mlo_arena_calloc(arena, 64, sizeof *graph->node);
    va_list nodes;
    va_start(nodes, outputs);
    for (Onnx__NodeProto *node; (node = va_arg(nodes, Onnx__NodeProto *));)
        graph->node[graph->n_node++] = node;
    va_end(nodes);
    return graph;
}

static inline Onnx__OperatorSetIdProto *proto_opset(struct mlo_arena *arena, const char *domain,
                                                    int64_t version)
{
    Onnx__OperatorSetIdProto *opset =
        PROTO_NEW(arena, Onnx__OperatorSetIdProto, onnx__operator_set_id_proto__init);
    opset->domain = mlo_arena_strdup(arena, domain);
    opset->has_version = 1;
    opset->version = version;
    return opset;
}

static inline Onnx__FunctionProto *proto_function(struct mlo_arena *arena, const char *name,
                                                  const char *inputs, const char *outputs, ...)
{
    Onnx__FunctionProto *fn = PROTO_NEW(arena, Onnx__FunctionProto, onnx__function_proto__init);
    fn->name = mlo_arena_strdup(arena, name);
    fn->domain = (char *)"local";
    fn->input = proto_list(arena, inputs, &fn->n_input);
    fn->output = proto_list(arena, outputs, &fn->n_output);
    fn->attribute_proto = mlo_arena_calloc(arena, 8, sizeof *fn->attribute_proto);
    fn->opset_import = mlo_arena_calloc(arena, 2, sizeof *fn->opset_import);
    fn->opset_import[fn->n_opset_import++] = proto_opset(arena, "", 17);
    fn->node = mlo_arena_calloc(arena, 64, sizeof *fn->node);
    va_list nodes;
    va_start(nodes, outputs);
    for (Onnx__NodeProto *node; (node = va_arg(nodes, Onnx__NodeProto *));)
        fn->node[fn->n_node++] = node;
    va_end(nodes);
    return fn;
}

static inline Onnx__ModelProto *proto_model(struct mlo_arena *arena, Onnx__GraphProto *graph, int64_t opset)
{
    Onnx__ModelProto *model = PROTO_NEW(arena, Onnx__ModelProto, onnx__model_proto__init);
    model->has_ir_version = 1;
    model->ir_version = 8;
    model->graph = graph;
    model->opset_import = mlo_arena_calloc(arena, 2, sizeof *model->opset_import);
    model->opset_import[model->n_opset_import++] = proto_opset(arena, "", opset);
    model->functions = mlo_arena_calloc(arena, 64, sizeof *model->functions);
    return model;
}

/* Packs and parses. */
static inline enum mlo_status proto_load(const Onnx__ModelProto *model, struct mlo_model **out,
                                         struct mlo_error *err)
{
    size_t size = onnx__model_proto__get_packed_size(model);
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    onnx__model_proto__pack(model, bytes);
    enum mlo_status status = mlo_onnx_parse(bytes, size, "test", out, err);
    free(bytes);
    return status;
}

/* A float tensor over the caller's numbers. */
static inline struct mlo_tensor proto_floats(float *data, int64_t count)
{
    return (struct mlo_tensor){MLO_FLOAT32, 1, {count}, data, (size_t)count * sizeof *data, false};
}

/* What a test builds, and the model that comes of it. */
struct proto_fixture {
    struct mlo_arena *arena;
    struct mlo_model *model;
    struct mlo_error err;
};

static inline int proto_set_up(void **state)
{
    struct proto_fixture *f = calloc(1, sizeof *f);
    f->arena = mlo_arena_new();
    *state = f;
    return f->arena ? 0 : -1;
}

static inline int proto_tear_down(void **state)
{
    struct proto_fixture *f = *state;
    mlo_model_free(f->model);
    mlo_arena_free(f->arena);
    free(f);
    return 0;
}

#endif
