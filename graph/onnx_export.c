/* ONNX out. The message is built in an arena and packed once; fields and lists keep the model's own order, so
 * equal models give equal bytes. Constants are not copied on the way: the packer reads them where they are.
 */
#include <string.h>

#include "graph/onnx_impl.h"

struct writer {
    struct mlo_arena *arena;
    bool failed; /* out of memory, seen at the end */
};

static void *take(struct writer *w, size_t count, size_t size)
{
    void *p = mlo_arena_calloc(w->arena, count, size);
    w->failed = w->failed || !p;
    return p;
}

#define NEW(w, type, init)                                                                                   \
    ({                                                                                                       \
        type *fresh_ = take(w, 1, sizeof(type));                                                             \
        if (fresh_)                                                                                          \
            init(fresh_);                                                                                    \
        fresh_;                                                                                              \
    })

/* Absent and empty are the same in proto's eyes: empty texts are left out. */
static char *text(const char *from)
{
    return from && *from ? (char *)from : NULL;
}

static Onnx__TensorProto *tensor(struct writer *w, const struct mlo_tensor *t, const char *name)
{
    Onnx__TensorProto *p = NEW(w, Onnx__TensorProto, onnx__tensor_proto__init);
    if (!p)
        return NULL;
    p->name = text(name);
    p->has_data_type = 1;
    p->data_type = (int32_t)t->dtype;
    p->n_dims = (size_t)t->rank;
    p->dims = (int64_t *)t->dims;
    p->has_raw_data = 1;
    p->raw_data.data = t->data;
    p->raw_data.len = t->size_bytes;
    return p;
}

static Onnx__TypeProto *type(struct writer *w, const struct mlo_type *from)
{
    Onnx__TypeProto *p = NEW(w, Onnx__TypeProto, onnx__type_proto__init);
    if (p && mlo_holds_values(from->dtype)) {
        Onnx__TypeProto *element = from->element ? type(w, from->element) : NULL;
        if (from->dtype == MLO_SEQUENCE) {
            p->value_case = ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE;
            p->sequence_type = NEW(w, Onnx__TypeProto__Sequence, onnx__type_proto__sequence__init);
            if (p->sequence_type)
                p->sequence_type->elem_type = element;
        } else {
            p->value_case = ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE;
            p->optional_type = NEW(w, Onnx__TypeProto__Optional, onnx__type_proto__optional__init);
            if (p->optional_type)
                p->optional_type->elem_type = element;
        }
        return p;
    }
    Onnx__TypeProto__Tensor *t = NEW(w, Onnx__TypeProto__Tensor, onnx__type_proto__tensor__init);
    if (!p || !t)
        return NULL;
    p->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    p->tensor_type = t;
    t->has_elem_type = 1;
    t->elem_type = (int32_t)from->dtype;
    if (from->rank < 0)
        return p;
    t->shape = NEW(w, Onnx__TensorShapeProto, onnx__tensor_shape_proto__init);
    if (!t->shape || !(t->shape->dim = take(w, (size_t)from->rank, sizeof *t->shape->dim)))
        return NULL;
    t->shape->n_dim = (size_t)from->rank;
    for (int i = 0; i < from->rank; i++) {
        Onnx__TensorShapeProto__Dimension *d =
            NEW(w, Onnx__TensorShapeProto__Dimension, onnx__tensor_shape_proto__dimension__init);
        if (!(t->shape->dim[i] = d))
            return NULL;
        if (from->dims[i].value >= 0) {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            d->dim_value = from->dims[i].value;
        } else if (from->dims[i].name) {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
            d->dim_param = (char *)from->dims[i].name;
        }
    }
    return p;
}

/* Something is known of its type: a shape without an element type counts, so that it is not lost. */
static bool typed(const struct mlo_value *value)
{
    return value->type.dtype != MLO_DTYPE_NONE || value->type.rank >= 0;
}

static Onnx__ValueInfoProto *value_info(struct writer *w, const struct mlo_value *value)
{
    Onnx__ValueInfoProto *p = NEW(w, Onnx__ValueInfoProto, onnx__value_info_proto__init);
    if (!p)
        return NULL;
    p->name = (char *)value->name;
    if (typed(value))
        p->type = type(w, &value->type);
    return p;
}

static ProtobufCBinaryData bytes_of(const char *from, size_t size)
{
    return (ProtobufCBinaryData){size, (uint8_t *)from};
}

static Onnx__GraphProto *graph_message(struct writer *w, const struct mlo_graph *graph);

static Onnx__AttributeProto *attribute(struct writer *w, const struct mlo_attr *a)
{
    Onnx__AttributeProto *p = NEW(w, Onnx__AttributeProto, onnx__attribute_proto__init);
    if (!p)
        return NULL;
    p->name = (char *)a->name;
    p->has_type = 1;
    p->type = (int32_t)a->type;
    switch (a->type) {
    case MLO_ATTR_FLOAT:
        p->has_f = 1;
        p->f = a->f;
        break;
    case MLO_ATTR_INT:
        p->has_i = 1;
        p->i = a->i;
        break;
    case MLO_ATTR_STRING:
        p->has_s = 1;
        p->s = bytes_of(a->s.bytes, a->s.size);
        break;
    case MLO_ATTR_TENSOR:
        p->t = tensor(w, a->tensor, NULL);
        break;
    case MLO_ATTR_TYPE:
        p->tp = type(w, a->value_type);
        break;
    case MLO_ATTR_GRAPH:
        p->g = graph_message(w, a->graph);
        break;
    case MLO_ATTR_FLOATS:
        p->n_floats = a->floats.count;
        p->floats = a->floats.f;
        break;
    case MLO_ATTR_INTS:
        p->n_ints = a->ints.count;
        p->ints = a->ints.i;
        break;
    case MLO_ATTR_STRINGS:
        p->n_strings = a->strings.count;
        p->strings = take(w, a->strings.count, sizeof *p->strings);
        for (size_t i = 0; p->strings && i < a->strings.count; i++)
            p->strings[i] = bytes_of(a->strings.s[i], strlen(a->strings.s[i]));
        break;
    case MLO_ATTR_GRAPHS:
        p->n_graphs = a->graphs.count;
        p->graphs = take(w, a->graphs.count, sizeof *p->graphs);
        for (size_t i = 0; p->graphs && i < a->graphs.count; i++)
            p->graphs[i] = graph_message(w, a->graphs.g[i]);
        break;
    case MLO_ATTR_TENSORS: /* refused by the reader, and nothing else makes one */
        break;
    }
    return p;
}

static char **names(struct writer *w, struct mlo_value *const *values, int count)
{
    char **list = take(w, (size_t)count, sizeof *list);
    for (int i = 0; list && i < count; i++)
        list[i] = values[i] ? (char *)values[i]->name : (char *)"";
    return list;
}

static Onnx__NodeProto *node_message(struct writer *w, const struct mlo_node *node)
{
    Onnx__NodeProto *p = NEW(w, Onnx__NodeProto, onnx__node_proto__init);
    if (!p)
        return NULL;
    p->name = text(node->name);
    p->op_type = (char *)node->op_type;
    p->domain = text(node->domain);
    p->doc_string = text(node->doc);
    p->n_input = (size_t)node->input_count;
    p->input = names(w, node->inputs, node->input_count);
    p->n_output = (size_t)node->output_count;
    p->output = names(w, node->outputs, node->output_count);
    p->n_attribute = (size_t)node->attr_count;
    p->attribute = take(w, p->n_attribute, sizeof *p->attribute);
    for (int i = 0; p->attribute && i < node->attr_count; i++)
        p->attribute[i] = attribute(w, &node->attrs[i]);
    return p;
}

static void values_of_graph(struct writer *w, const struct mlo_graph *graph, Onnx__GraphProto *p)
{
    p->initializer = take(w, (size_t)graph->value_count, sizeof *p->initializer);
    p->value_info = take(w, (size_t)graph->value_count, sizeof *p->value_info);
    for (int i = 0; !w->failed && i < graph->value_count; i++) {
        const struct mlo_value *value = graph->values[i];
        if (value->constant)
            p->initializer[p->n_initializer++] = tensor(w, value->constant, value->name);
        else if (!value->is_input && !value->is_output && value->producer && typed(value))
            p->value_info[p->n_value_info++] = value_info(w, value);
    }
}

static Onnx__GraphProto *graph_message(struct writer *w, const struct mlo_graph *graph)
{
    Onnx__GraphProto *p = NEW(w, Onnx__GraphProto, onnx__graph_proto__init);
    if (!p)
        return NULL;
    p->name = text(graph->name);
    p->doc_string = text(graph->doc);
    p->n_node = (size_t)graph->node_count;
    p->node = take(w, p->n_node, sizeof *p->node);
    p->n_input = (size_t)graph->input_count;
    p->input = take(w, p->n_input, sizeof *p->input);
    p->n_output = (size_t)graph->output_count;
    p->output = take(w, p->n_output, sizeof *p->output);
    values_of_graph(w, graph, p);
    for (int i = 0; !w->failed && i < graph->node_count; i++)
        p->node[i] = node_message(w, graph->nodes[i]);
    for (int i = 0; !w->failed && i < graph->input_count; i++)
        p->input[i] = value_info(w, graph->inputs[i]);
    for (int i = 0; !w->failed && i < graph->output_count; i++)
        p->output[i] = value_info(w, graph->outputs[i]);
    return p;
}

/* Before IR version 4 every initializer had to be an input too; a model that a pass gave a new constant
 * says 4. */
static int64_t ir_version(const struct mlo_model *model)
{
    for (int i = 0; i < model->graph->value_count; i++)
        if (model->graph->values[i]->constant && !model->graph->values[i]->is_input)
            return MLO_MAX(model->ir_version, 4);
    return model->ir_version;
}

static Onnx__ModelProto *model_message(struct writer *w, const struct mlo_model *model)
{
    Onnx__ModelProto *p = NEW(w, Onnx__ModelProto, onnx__model_proto__init);
    if (!p)
        return NULL;
    p->has_ir_version = 1;
    p->ir_version = ir_version(model);
    p->producer_name = text(model->producer_name);
    p->producer_version = text(model->producer_version);
    p->domain = text(model->domain);
    p->has_model_version = model->model_version != 0;
    p->model_version = model->model_version;
    p->doc_string = text(model->doc);
    p->n_opset_import = (size_t)model->opset_count;
    p->opset_import = take(w, p->n_opset_import, sizeof *p->opset_import);
    p->n_metadata_props = (size_t)model->metadata_count;
    p->metadata_props = take(w, p->n_metadata_props, sizeof *p->metadata_props);
    for (int i = 0; !w->failed && i < model->opset_count; i++) {
        Onnx__OperatorSetIdProto *o = NEW(w, Onnx__OperatorSetIdProto, onnx__operator_set_id_proto__init);
        if (!(p->opset_import[i] = o))
            return NULL;
        o->domain = (char *)model->opsets[i].domain; /* written even when empty, as ONNX's own tools do */
        o->has_version = 1;
        o->version = model->opsets[i].version;
    }
    for (int i = 0; !w->failed && i < model->metadata_count; i++) {
        Onnx__StringStringEntryProto *e =
            NEW(w, Onnx__StringStringEntryProto, onnx__string_string_entry_proto__init);
        if (!(p->metadata_props[i] = e))
            return NULL;
        e->key = (char *)model->metadata[i].key;
        e->value = (char *)model->metadata[i].value;
    }
    p->graph = graph_message(w, model->graph);
    return p;
}

enum mlo_status mlo_onnx_serialize(const struct mlo_model *model, struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct writer w = {mlo_arena_new(), false};
    Onnx__ModelProto *p = w.arena ? model_message(&w, model) : NULL;
    if (!p || w.failed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    size_t size = onnx__model_proto__get_packed_size(p);
    if (size > INT32_MAX) {
        status = mlo_error_set(err, MLO_ETOOBIG,
                               "the model needs %zu bytes; an ONNX file holds at most 2 GiB", size);
        mlo_error_hint(err, "quantize or prune it first");
        goto out;
    }
    if (!mlo_buf_reserve(out, size)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    out->len += onnx__model_proto__pack(p, (uint8_t *)out->data + out->len);
    out->data[out->len] = '\0';
out:
    mlo_arena_free(w.arena);
    return status;
}

enum mlo_status mlo_onnx_save(const struct mlo_model *model, const char *path, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf buf = MLO_BUF_INIT;
    MLO_TRY(mlo_onnx_serialize(model, &buf, err));
    MLO_TRY(mlo_fs_write_atomic(path, buf.data, buf.len, err));
out:
    mlo_buf_clear(&buf);
    return status;
}
