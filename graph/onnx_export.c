/* ONNX out. The message is built in an arena and packed once; fields and lists keep the model's own order, so
 * equal models give equal bytes. Constants are not copied on the way: the packer reads them where they are
 * (onnx_pack.c). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/onnx_impl.h"

enum { MLO_LOCATION_SIZE = 208 };

/* A tensor whose data goes to another file. */
struct outside {
    const struct mlo_tensor *tensor;
    uint64_t offset;
};

struct writer {
    struct mlo_arena *arena;
    bool failed;            /* out of memory, seen at the end */
    size_t threshold_bytes; /* initializers of that size or more go outside; 0: none */
    char *location;         /* the other file's name, filled in before packing */
    struct outside *outside;
    int outside_count, outside_cap;
    uint64_t end;     /* of the other file so far */
    const char *made; /* its path, when it was not there before */
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

static Onnx__StringStringEntryProto *entry(struct writer *w, const char *key, char *value)
{
    Onnx__StringStringEntryProto *e =
        NEW(w, Onnx__StringStringEntryProto, onnx__string_string_entry_proto__init);
    if (e) {
        e->key = (char *)key;
        e->value = value;
    }
    return e;
}

/* Offsets are multiples of a page, so that readers can map them. */
static void put_outside(struct writer *w, const struct mlo_tensor *t, Onnx__TensorProto *p)
{
    enum { PAGE = 4096, ENTRIES = 3 };
    struct outside *list =
        mlo_arena_grow(w->arena, w->outside, w->outside_count, &w->outside_cap, sizeof *w->outside);
    char *offset, *length;
    if (!list || !(p->external_data = take(w, ENTRIES, sizeof *p->external_data))) {
        w->failed = true;
        return;
    }
    uint64_t at = (w->end + PAGE - 1) / PAGE * PAGE;
    w->outside = list;
    w->outside[w->outside_count++] = (struct outside){t, at};
    w->end = at + t->size_bytes;
    offset = mlo_arena_printf(w->arena, "%llu", (unsigned long long)at);
    length = mlo_arena_printf(w->arena, "%zu", t->size_bytes);
    w->failed = w->failed || !offset || !length;
    p->external_data[0] = entry(w, "location", w->location);
    p->external_data[1] = entry(w, "offset", offset);
    p->external_data[2] = entry(w, "length", length);
    p->n_external_data = ENTRIES;
    p->has_data_location = 1;
    p->data_location = 1;
}

/* Fields that were kept as they came. */
static void put_extras(struct writer *w, const struct mlo_extras *from, ProtobufCMessage *to)
{
    if (!from || !(to->unknown_fields = take(w, (size_t)from->count, sizeof *to->unknown_fields)))
        return;
    to->n_unknown_fields = (unsigned)from->count;
    for (int i = 0; i < from->count; i++)
        to->unknown_fields[i] =
            (ProtobufCMessageUnknownField){from->list[i].field, (ProtobufCWireType)from->list[i].wire,
                                           from->list[i].size, (uint8_t *)from->list[i].bytes};
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
    if (name && w->threshold_bytes && t->size_bytes >= w->threshold_bytes) {
        put_outside(w, t, p);
        return p;
    }
    p->has_raw_data = 1;
    p->raw_data.data = t->data;
    p->raw_data.len = t->size_bytes;
    return p;
}

/* Something is known: a shape without an element type counts, so that it is not lost. */
static bool told(const struct mlo_type *type)
{
    return type->dtype != MLO_DTYPE_NONE || type->rank >= 0;
}

static Onnx__TypeProto *type(struct writer *w, const struct mlo_type *from)
{
    Onnx__TypeProto *p = NEW(w, Onnx__TypeProto, onnx__type_proto__init);
    if (p && mlo_holds_values(from->dtype)) {
        Onnx__TypeProto *element = from->element && told(from->element) ? type(w, from->element) : NULL;
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

static Onnx__ValueInfoProto *value_info(struct writer *w, const struct mlo_value *value)
{
    Onnx__ValueInfoProto *p = NEW(w, Onnx__ValueInfoProto, onnx__value_info_proto__init);
    if (!p)
        return NULL;
    p->name = (char *)value->name;
    if (told(&value->type))
        p->type = type(w, &value->type);
    p->doc_string = text(value->doc);
    put_extras(w, value->extras, &p->base);
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
    put_extras(w, node->extras, &p->base);
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
        if (!value->constant)
            continue;
        Onnx__TensorProto *t = tensor(w, value->constant, value->name);
        if (t && !value->is_input) /* an input says it itself */
            t->doc_string = text(value->doc);
        p->initializer[p->n_initializer++] = t;
    }
    /* in the order of the nodes, as a reader meets them: written again it is the same file */
    for (int n = 0; !w->failed && n < graph->node_count; n++)
        for (int i = 0; i < graph->nodes[n]->output_count; i++) {
            const struct mlo_value *value = graph->nodes[n]->outputs[i];
            if (value && !value->constant && !value->is_output && told(&value->type))
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
    put_extras(w, graph->extras, &p->base);
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
    put_extras(w, model->extras, &p->base);
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

static enum mlo_status check_size(uint64_t size, struct mlo_error *err)
{
    if (size <= INT32_MAX)
        return MLO_OK;
    mlo_error_set(err, MLO_ETOOBIG,
                  "the model needs %llu bytes in one file; an ONNX file holds at most 2 GiB",
                  (unsigned long long)size);
    mlo_error_hint(err, "quantize or prune it first");
    return MLO_ETOOBIG;
}

static uint64_t constant_bytes(const struct mlo_graph *graph)
{
    uint64_t sum = 0;
    for (int i = 0; i < graph->value_count; i++)
        sum += graph->values[i]->constant ? graph->values[i]->constant->size_bytes : 0;
    return sum;
}

enum mlo_status mlo_onnx_check_one_file(const struct mlo_model *model, struct mlo_error *err)
{
    return check_size(constant_bytes(model->graph), err);
}

static bool to_buf(void *arg, const void *bytes, size_t size)
{
    mlo_buf_append(arg, bytes, size);
    return mlo_buf_ok((struct mlo_buf *)arg);
}

static bool to_file(void *arg, const void *bytes, size_t size)
{
    return mlo_fs_write_full(*(const int *)arg, bytes, size);
}

static bool write_message(int fd, void *arg)
{
    errno = ENOMEM; /* what packing fails with when writing does not */
    return mlo_onnx_pack(arg, to_file, &fd);
}

static enum mlo_status save_message(const Onnx__ModelProto *p, const char *path, struct mlo_error *err)
{
    enum mlo_status status = check_size(onnx__model_proto__get_packed_size(p), err);
    return status == MLO_OK ? mlo_fs_write_atomic_with(path, write_message, (void *)p, err) : status;
}

enum mlo_status mlo_onnx_serialize(const struct mlo_model *model, struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct writer w = {.arena = mlo_arena_new()};
    Onnx__ModelProto *p = w.arena ? model_message(&w, model) : NULL;
    if (!p || w.failed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    size_t size = onnx__model_proto__get_packed_size(p);
    MLO_TRY(check_size(size, err));
    if (!mlo_buf_reserve(out, size) || !mlo_onnx_pack(p, to_buf, out))
        status = mlo_error_nomem(err);
out:
    mlo_arena_free(w.arena);
    return status;
}

enum mlo_status mlo_onnx_save(const struct mlo_model *model, const char *path, struct mlo_error *err)
{
    struct writer w = {.arena = mlo_arena_new()};
    Onnx__ModelProto *p = w.arena ? model_message(&w, model) : NULL;
    enum mlo_status status = !p || w.failed ? mlo_error_nomem(err) : save_message(p, path, err);
    mlo_arena_free(w.arena);
    return status;
}

/* --- with a second file ------------------------------------------------------------------------ */

/* Writes and hashes what goes outside, with zeros between. */
static bool write_outside(const struct writer *w, int fd, struct mlo_hasher *hasher)
{
    static const char zeros[4096];
    uint64_t at = 0;
    for (int i = 0; i < w->outside_count; i++) {
        const struct outside *o = &w->outside[i];
        size_t gap = (size_t)(o->offset - at);
        mlo_hasher_update(hasher, zeros, gap);
        mlo_hasher_update(hasher, o->tensor->data, o->tensor->size_bytes);
        if (!mlo_fs_write_full(fd, zeros, gap) ||
            !mlo_fs_write_full(fd, o->tensor->data, o->tensor->size_bytes))
            return false;
        at = o->offset + o->tensor->size_bytes;
    }
    return true;
}

/* The data goes to a file that is named by its content: a model that is there already keeps its own data
 * until it is replaced as a whole. */
static enum mlo_status save_outside(struct writer *w, const char *path, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_hasher *hasher = mlo_hasher_new();
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE];
    struct mlo_buf temp = MLO_BUF_INIT;
    char *final;
    int fd = -1;
    if (!hasher) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if ((fd = mlo_fs_create_beside(path, &temp)) < 0) {
        status = mlo_error_errno(err, errno, "cannot create a file beside %s", path);
        goto out;
    }
    bool ok = write_outside(w, fd, hasher) && fsync(fd) == 0;
    mlo_hasher_final(hasher, &digest);
    snprintf(w->location, MLO_LOCATION_SIZE, "%.160s-%.16s.data", mlo_fs_basename(path),
             mlo_digest_hex(&digest, hex));
    final = mlo_arena_printf(w->arena, "%.*s%s", (int)(mlo_fs_basename(path) - path), path, w->location);
    bool there = final && mlo_fs_exists(final);
    ok = ok && final && rename(temp.data, final) == 0;
    w->made = ok && !there ? final : NULL;
    if (!ok) {
        status = mlo_error_errno(err, errno, "cannot write the weights beside %s", path);
        unlink(temp.data);
    }
out:
    if (fd >= 0)
        close(fd);
    mlo_buf_clear(&temp);
    mlo_hasher_free(hasher);
    return status;
}

enum mlo_status mlo_onnx_save_with(const struct mlo_model *model, const char *path,
                                   const struct mlo_onnx_save_options *options, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char location[MLO_LOCATION_SIZE] = "";
    struct writer w = {.location = location};
    uint64_t limit =
        options->limit_bytes ? options->limit_bytes : INT32_MAX - (1 << 24); /* room for the graph */
    if (!options->external && constant_bytes(model->graph) <= limit)
        return mlo_onnx_save(model, path, err);
    w.threshold_bytes = options->threshold_bytes ? options->threshold_bytes : 1024;
    w.arena = mlo_arena_new();
    Onnx__ModelProto *p = w.arena ? model_message(&w, model) : NULL;
    if (!p || w.failed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (w.outside_count)
        MLO_TRY(save_outside(&w, path, err));
    MLO_TRY(save_message(p, path, err));
out:
    if (status != MLO_OK && w.made)
        unlink(w.made);
    mlo_arena_free(w.arena);
    return status;
}
