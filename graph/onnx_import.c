/* ONNX in: scan, take apart, unpack, and build the graph. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "graph/infer.h"
#include "graph/onnx_impl.h"
#include "graph/op.h"

static const char *text(struct mlo_arena *arena, const char *from)
{
    return mlo_arena_strdup(arena, from ? from : "");
}

static enum mlo_status read_tensor_type(struct mlo_arena *arena, const Onnx__TypeProto__Tensor *tensor,
                                        struct mlo_type *out, struct mlo_error *err)
{
    out->dtype = (enum mlo_dtype)tensor->elem_type;
    if (tensor->elem_type < 0 || tensor->elem_type >= MLO_DTYPE_COUNT)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "elem_type %d is not known", tensor->elem_type);
    if (!tensor->shape)
        return MLO_OK;
    if (tensor->shape->n_dim > MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "it has %zu dims; at most %d are supported",
                             tensor->shape->n_dim, MLO_MAX_RANK);
    out->rank = (int)tensor->shape->n_dim;
    for (int i = 0; i < out->rank; i++) {
        const Onnx__TensorShapeProto__Dimension *dim = tensor->shape->dim[i];
        out->dims[i].value = -1;
        if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) {
            if (dim->dim_value < 0 || dim->dim_value > MLO_MAX_DIM)
                return mlo_error_set(err, MLO_EFORMAT, "shape.dim[%d] is %lld", i, (long long)dim->dim_value);
            out->dims[i].value = dim->dim_value;
        } else if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM &&
                   *dim->dim_param) {
            out->dims[i].name = mlo_arena_strdup(arena, dim->dim_param);
            if (!out->dims[i].name)
                return mlo_error_nomem(err);
        }
    }
    return MLO_OK;
}

enum mlo_status mlo_onnx_read_type(struct mlo_arena *arena, const Onnx__TypeProto *p, struct mlo_type *out,
                                   struct mlo_error *err)
{
    const Onnx__TypeProto *inner;
    *out = (struct mlo_type){.rank = -1};
    if (!p)
        return MLO_OK;
    switch (p->value_case) {
    case ONNX__TYPE_PROTO__VALUE__NOT_SET:
        return MLO_OK;
    case ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE:
        return read_tensor_type(arena, p->tensor_type, out, err);
    case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE:
        out->dtype = MLO_SEQUENCE;
        inner = p->sequence_type->elem_type;
        break;
    case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE:
        out->dtype = MLO_OPTIONAL;
        inner = p->optional_type->elem_type;
        break;
    default:
        return mlo_error_set(err, MLO_EUNSUPPORTED, "it is a map or a sparse tensor");
    }
    struct mlo_type *element = mlo_arena_alloc(arena, sizeof *element);
    if (!element)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_onnx_read_type(arena, inner, element, err); /* the scan bounds the depth */
    if (status == MLO_OK && (element->dtype != MLO_DTYPE_NONE || element->rank >= 0))
        out->element = element;
    return status;
}

static enum mlo_status read_type(struct mlo_arena *arena, const Onnx__ValueInfoProto *info,
                                 struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_onnx_read_type(arena, info->type, out, err);
    if (status != MLO_OK)
        mlo_error_prefix(err, "value '%.120s'", info->name ? info->name : "");
    return status;
}

/* What a message holds beyond onnx.proto, copied. */
static enum mlo_status keep_extras(struct mlo_arena *arena, const ProtobufCMessage *from,
                                   const struct mlo_extras **out, struct mlo_error *err)
{
    size_t count = from->n_unknown_fields;
    if (!count)
        return MLO_OK;
    struct mlo_extras *kept = mlo_arena_alloc(arena, sizeof *kept + count * sizeof *kept->list);
    if (!kept)
        return mlo_error_nomem(err);
    kept->count = (int)count;
    for (size_t i = 0; i < count; i++) {
        const ProtobufCMessageUnknownField *f = &from->unknown_fields[i];
        kept->list[i] =
            (struct mlo_extra){f->tag, (int)f->wire_type, f->len, mlo_arena_memdup(arena, f->data, f->len)};
        if (!kept->list[i].bytes)
            return mlo_error_nomem(err);
    }
    *out = kept;
    return MLO_OK;
}

/* A value that is described twice keeps the first. */
static enum mlo_status keep_doc(struct mlo_value *value, const char *doc, struct mlo_error *err)
{
    if (!doc || !*doc || value->doc)
        return MLO_OK;
    value->doc = mlo_arena_strdup(value->graph->model->arena, doc);
    return value->doc ? MLO_OK : mlo_error_nomem(err);
}

/* The doc string and the rest of a value's description. */
static enum mlo_status keep_info(struct mlo_value *value, const Onnx__ValueInfoProto *info,
                                 struct mlo_error *err)
{
    enum mlo_status status = keep_doc(value, info->doc_string, err);
    if (status != MLO_OK || value->extras)
        return status;
    return keep_extras(value->graph->model->arena, &info->base, &value->extras, err);
}

static const char *required_name(const char *name, const char *what, struct mlo_error *err,
                                 enum mlo_status *status)
{
    if (name && *name)
        return name;
    *status = mlo_error_set(err, MLO_EFORMAT, "%s has no name", what);
    return NULL;
}

/* A new value; a name that is there already, here or outside of a subgraph, breaks the single assignment. */
static enum mlo_status define(struct mlo_graph *graph, const char *name, const struct mlo_type *type,
                              struct mlo_value **out, struct mlo_error *err)
{
    for (const struct mlo_graph *g = graph; g; g = g->parent)
        if (mlo_graph_value(g, name))
            return mlo_error_set(err, MLO_EFORMAT, "two values have the name '%.200s'", name);
    *out = mlo_graph_add_value(graph, name, type);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status read_inputs(struct mlo_graph *graph, const Onnx__GraphProto *p, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < p->n_input; i++) {
        struct mlo_type type;
        struct mlo_value *value;
        const char *name = required_name(p->input[i]->name, "an input of the graph", err, &status);
        if (!name)
            goto out;
        MLO_TRY(read_type(graph->model->arena, p->input[i], &type, err));
        MLO_TRY(define(graph, name, &type, &value, err));
        MLO_TRY(mlo_graph_add_input(graph, value, err));
        MLO_TRY(keep_info(value, p->input[i], err));
    }
out:
    return status;
}

/* An initializer may repeat an input: then it is that input's default. */
static enum mlo_status add_initializer(struct mlo_graph *graph, const char *name, struct mlo_tensor *tensor,
                                       struct mlo_error *err)
{
    struct mlo_value *value = mlo_graph_value(graph, name);
    struct mlo_type type = mlo_type_of(tensor);
    if (value && (!value->is_input || value->constant)) {
        mlo_tensor_clear(tensor);
        return mlo_error_set(err, MLO_EFORMAT, "two initializers have the name '%.200s'", name);
    }
    if (!value) {
        enum mlo_status status = define(graph, name, &type, &value, err);
        if (status != MLO_OK) {
            mlo_tensor_clear(tensor);
            return status;
        }
    }
    bool agrees = value->type.dtype == MLO_DTYPE_NONE || value->type.dtype == type.dtype;
    for (int i = 0; i < type.rank && value->type.rank == type.rank; i++)
        agrees = agrees && (value->type.dims[i].value < 0 || value->type.dims[i].value == type.dims[i].value);
    if (!agrees || (value->type.rank >= 0 && value->type.rank != type.rank)) {
        char stated[256], found[256];
        enum mlo_status status =
            mlo_error_set(err, MLO_EFORMAT,
                          "initializer '%.120s' is %.120s, but the input of that name is declared as %.120s",
                          name, mlo_type_describe(&type, found, sizeof found),
                          mlo_type_describe(&value->type, stated, sizeof stated));
        mlo_tensor_clear(tensor);
        return status;
    }
    value->type = type;
    value->constant = mlo_model_tensor_take(graph->model, tensor);
    return value->constant ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status read_initializer(const struct mlo_onnx_reader *reader, struct mlo_graph *graph,
                                        const Onnx__TensorProto *p, struct mlo_span raw,
                                        struct mlo_error *err)
{
    struct mlo_tensor tensor;
    enum mlo_status status = MLO_OK;
    if (!required_name(p->name, "an initializer", err, &status))
        goto out;
    MLO_TRY(mlo_onnx_read_tensor(reader, p, raw, &tensor, err));
    MLO_TRY(add_initializer(graph, p->name, &tensor, err));
    MLO_TRY(keep_doc(mlo_graph_value(graph, p->name), p->doc_string, err));
out:
    return status;
}

/* The main graph's initializers, each unpacked alone and without its raw data. */
static enum mlo_status read_spans(const struct mlo_onnx_reader *reader, struct mlo_graph *graph,
                                  const struct mlo_onnx_parts *parts, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf rest = MLO_BUF_INIT;
    for (size_t i = 0; i < parts->initializer_count && status == MLO_OK; i++) {
        struct mlo_span raw;
        mlo_buf_reset(&rest);
        MLO_TRY(mlo_onnx_split_tensor(parts->initializers[i], &rest, &raw, err));
        Onnx__TensorProto *p =
            onnx__tensor_proto__unpack(NULL, rest.len, (const uint8_t *)mlo_buf_str(&rest));
        if (!p) {
            status = mlo_error_set(err, MLO_EFORMAT, "initializer %zu of the graph cannot be read", i);
            goto out;
        }
        status = read_initializer(reader, graph, p, raw, err);
        onnx__tensor_proto__free_unpacked(p, NULL);
    }
out:
    mlo_buf_clear(&rest);
    return status;
}

static enum mlo_status define_outputs(struct mlo_graph *graph, const Onnx__NodeProto *p,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < p->n_output; i++) {
        struct mlo_value *value;
        if (*p->output[i])
            MLO_TRY(define(graph, p->output[i], NULL, &value, err));
    }
out:
    if (status != MLO_OK)
        mlo_error_where(err, "node '%.120s' (%.60s)", p->name ? p->name : "", p->op_type ? p->op_type : "");
    return status;
}

static struct mlo_value *visible(const struct mlo_graph *graph, const char *name)
{
    struct mlo_value *value = NULL;
    for (; graph && !value; graph = graph->parent)
        value = mlo_graph_value(graph, name);
    return value;
}

static enum mlo_status read_graph(const struct mlo_onnx_reader *reader, const Onnx__GraphProto *p,
                                  struct mlo_node *owner, struct mlo_graph **out, struct mlo_error *err);

static enum mlo_status add_node(struct mlo_graph *graph, const Onnx__NodeProto *p, struct mlo_node **out,
                                struct mlo_error *err)
{
    size_t ends = p->n_input + p->n_output;
    struct mlo_value **values = calloc(ends + 1, sizeof *values);
    enum mlo_status status = MLO_OK;
    if (!values)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < ends; i++) {
        const char *name = i < p->n_input ? p->input[i] : p->output[i - p->n_input];
        if (*name && !(values[i] = visible(graph, name))) {
            status = mlo_error_set(err, MLO_EFORMAT, "input %zu, '%.200s', is defined nowhere", i, name);
            goto out;
        }
    }
    *out = mlo_graph_add_node(graph, NULL, p->domain ? p->domain : "", p->op_type, p->name, values,
                              (int)p->n_input, values + p->n_input, (int)p->n_output);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    free(values);
    return status;
}

static enum mlo_status read_node(const struct mlo_onnx_reader *reader, struct mlo_graph *graph,
                                 const Onnx__NodeProto *p, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_node *node = NULL;
    if (!p->op_type || !*p->op_type) {
        status = mlo_error_set(err, MLO_EFORMAT, "a node has no op_type");
        goto out;
    }
    MLO_TRY(add_node(graph, p, &node, err));
    if (!node->version) {
        status = mlo_error_set(err, MLO_EFORMAT, "the model imports no opset for its domain '%.80s'",
                               *node->domain ? node->domain : "ai.onnx");
        mlo_error_hint(err, "the file may be cut off, or lacks an opset_import entry");
        goto out;
    }
    if (p->doc_string && !(node->doc = text(graph->model->arena, p->doc_string))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(keep_extras(graph->model->arena, &p->base, &node->extras, err));
    for (size_t i = 0; i < p->n_attribute; i++)
        MLO_TRY(mlo_onnx_read_attr(reader, p->attribute[i], node, read_graph, err));
out:
    if (status != MLO_OK)
        mlo_error_where(err, "node '%.120s' (%.60s)", p->name ? p->name : "", p->op_type ? p->op_type : "");
    return status;
}

static enum mlo_status read_outputs(struct mlo_graph *graph, const Onnx__GraphProto *p, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_type type;
    for (size_t i = 0; i < p->n_output + p->n_value_info; i++) {
        bool is_output = i < p->n_output;
        const Onnx__ValueInfoProto *info = is_output ? p->output[i] : p->value_info[i - p->n_output];
        struct mlo_value *value = info->name ? mlo_graph_value(graph, info->name) : NULL;
        if (!value) {
            if (!is_output)
                continue; /* a note about a value that was optimised away */
            status = mlo_error_set(err, MLO_EFORMAT, "the graph's output '%.200s' is produced by no node",
                                   info->name ? info->name : "");
            goto out;
        }
        MLO_TRY(read_type(graph->model->arena, info, &type, err));
        if (!value->constant && !value->is_input && (is_output || value->type.dtype == MLO_DTYPE_NONE))
            value->type = type;
        MLO_TRY(keep_info(value, info, err));
        if (is_output)
            MLO_TRY(mlo_graph_add_output(graph, value, err));
    }
out:
    return status;
}

static enum mlo_status fill_graph(const struct mlo_onnx_reader *reader, struct mlo_graph *graph,
                                  const Onnx__GraphProto *p, const struct mlo_onnx_parts *parts,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (p->n_sparse_initializer) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "sparse initializers are not supported");
        goto out;
    }
    MLO_TRY(read_inputs(graph, p, err));
    for (size_t i = 0; i < p->n_initializer; i++)
        MLO_TRY(read_initializer(reader, graph, p->initializer[i], (struct mlo_span){0}, err));
    if (parts)
        MLO_TRY(read_spans(reader, graph, parts, err));
    for (size_t i = 0; i < p->n_node; i++)
        MLO_TRY(define_outputs(graph, p->node[i], err));
    for (size_t i = 0; i < p->n_node; i++)
        MLO_TRY(read_node(reader, graph, p->node[i], err));
    MLO_TRY(read_outputs(graph, p, err));
out:
    return status;
}

static enum mlo_status read_graph(const struct mlo_onnx_reader *reader, const Onnx__GraphProto *p,
                                  struct mlo_node *owner, struct mlo_graph **out, struct mlo_error *err)
{
    struct mlo_graph *graph = mlo_graph_new(reader->model, owner, p->name);
    if (!graph || !(graph->doc = text(reader->model->arena, p->doc_string)))
        return mlo_error_nomem(err);
    *out = graph;
    enum mlo_status status = keep_extras(reader->model->arena, &p->base, &graph->extras, err);
    return status == MLO_OK ? fill_graph(reader, graph, p, NULL, err) : status;
}

static enum mlo_status read_header(struct mlo_model *model, const Onnx__ModelProto *p, struct mlo_error *err)
{
    struct mlo_arena *arena = model->arena;
    model->ir_version = p->ir_version;
    model->model_version = p->model_version;
    model->producer_name = text(arena, p->producer_name);
    model->producer_version = text(arena, p->producer_version);
    model->domain = text(arena, p->domain);
    model->doc = text(arena, p->doc_string);
    /* files of IR versions before 3 import nothing and mean opset 1 */
    bool old = p->n_opset_import == 0 && p->ir_version < 3;
    model->opset_count = old ? 1 : (int)p->n_opset_import;
    model->opsets = mlo_arena_calloc(arena, (size_t)model->opset_count, sizeof *model->opsets);
    model->metadata_count = (int)p->n_metadata_props;
    model->metadata = mlo_arena_calloc(arena, p->n_metadata_props, sizeof *model->metadata);
    if (!model->producer_name || !model->producer_version || !model->domain || !model->doc ||
        !model->opsets || !model->metadata)
        return mlo_error_nomem(err);
    if (old)
        model->opsets[0] = (struct mlo_opset){"", 1};
    for (size_t i = 0; i < p->n_opset_import; i++) {
        const char *domain = p->opset_import[i]->domain;
        model->opsets[i].version = p->opset_import[i]->version;
        model->opsets[i].domain = text(arena, domain && strcmp(domain, "ai.onnx") == 0 ? "" : domain);
        if (!model->opsets[i].domain)
            return mlo_error_nomem(err);
    }
    for (size_t i = 0; i < p->n_metadata_props; i++) {
        model->metadata[i].key = text(arena, p->metadata_props[i]->key);
        model->metadata[i].value = text(arena, p->metadata_props[i]->value);
        if (!model->metadata[i].key || !model->metadata[i].value)
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}

static enum mlo_status build(const struct mlo_onnx_reader *reader, const struct mlo_onnx_parts *parts,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *model = reader->model;
    struct mlo_arena *inlined = NULL; /* of the messages that calls of functions became */
    Onnx__ModelProto *m =
        onnx__model_proto__unpack(NULL, parts->model.len, (const uint8_t *)mlo_buf_str(&parts->model));
    Onnx__GraphProto *g =
        onnx__graph_proto__unpack(NULL, parts->graph.len, (const uint8_t *)mlo_buf_str(&parts->graph));
    if (!m || !g) {
        status = mlo_error_set(err, MLO_EFORMAT, "no valid ONNX model: the %s cannot be read",
                               m ? "graph" : "header");
        goto out;
    }
    MLO_TRY(read_header(model, m, err));
    Onnx__GraphProto *flat = g;
    if (m->n_functions) {
        if (!(inlined = mlo_arena_new())) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(mlo_onnx_inline(model, m, g, inlined, &flat, err));
    }
    model->graph = mlo_graph_new(model, NULL, g->name);
    if (!model->graph || !(model->graph->doc = text(model->arena, g->doc_string))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(keep_extras(model->arena, &m->base, &model->extras, err));
    MLO_TRY(keep_extras(model->arena, &g->base, &model->graph->extras, err));
    MLO_TRY(fill_graph(reader, model->graph, flat, parts, err));
    if (!model->graph->output_count) {
        status = mlo_error_set(err, MLO_EFORMAT, "the graph has no outputs");
        goto out;
    }
    MLO_TRY(mlo_graph_sort(model->graph, err));
    MLO_TRY(mlo_graph_verify(model->graph, err));
    MLO_TRY(mlo_graph_infer_settled(model->graph, err)); /* behind unknown ops, what the file states */
out:
    mlo_arena_free(inlined);
    if (m)
        onnx__model_proto__free_unpacked(m, NULL);
    if (g)
        onnx__graph_proto__free_unpacked(g, NULL);
    return status;
}

static enum mlo_status parse(const void *bytes, size_t size, const char *name, const char *folder,
                             struct mlo_mapping *mapping, struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_onnx_parts parts = {0};
    struct mlo_model *model = NULL;
    *out = NULL;
    if (!size) {
        status = mlo_error_set(err, MLO_EFORMAT, "the file is empty");
        goto out;
    }
    status = mlo_onnx_scan(bytes, size, &onnx__model_proto__descriptor, err);
    if (status == MLO_OK)
        MLO_TRY(mlo_onnx_split(bytes, size, &parts, err));
    if (!parts.has_graph) {
        struct mlo_error foreign = {0};
        enum mlo_status told = mlo_onnx_check_foreign(bytes, size, name, &foreign);
        if (told != MLO_OK) {
            if (err)
                *err = foreign;
            status = told;
        } else if (status == MLO_OK) {
            status = mlo_error_set(err, MLO_EFORMAT, "no valid ONNX model: it has no graph");
        }
        goto out;
    }
    MLO_TRY(mlo_model_new(0, &model, err));
    if (mapping)
        MLO_TRY(mlo_model_map_take(model, mapping, err));
    struct mlo_onnx_reader reader = {model, folder, model->shared != NULL};
    MLO_TRY(build(&reader, &parts, err));
    *out = model;
    model = NULL;
out:
    if (status == MLO_EFORMAT)
        mlo_error_hint(
            err,
            "the file may be incomplete or of another format: compare its size and digest with the "
            "original; python3 -c \"import onnx; onnx.checker.check_model('%.100s')\" tells what ONNX's "
            "own checker says",
            mlo_fs_basename(name));
    mlo_onnx_parts_clear(&parts);
    mlo_model_free(model);
    return status;
}

enum mlo_status mlo_onnx_parse(const void *bytes, size_t size, const char *name, struct mlo_model **out,
                               struct mlo_error *err)
{
    enum mlo_status status = parse(bytes, size, name, NULL, NULL, out, err);
    if (status != MLO_OK)
        mlo_error_where(err, "%.200s", name);
    return status;
}

enum mlo_status mlo_onnx_load(const char *path, struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_mapping mapping = {0};
    struct stat st;
    char *folder = NULL;
    *out = NULL;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        status = mlo_error_set(err, MLO_EFORMAT, "%.300s is a folder, not an ONNX file", path);
        mlo_error_hint(
            err,
            "a TensorFlow SavedModel is turned into ONNX by: python3 -m tf2onnx.convert --saved-model "
            "%.120s --output model.onnx",
            path);
        goto out;
    }
    MLO_TRY(mlo_fs_map(path, &mapping, err));
    size_t n = (size_t)(mlo_fs_basename(path) - path);
    folder = n ? strndup(path, n) : strdup(".");
    if (!folder) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(parse(mapping.data, mapping.size, path, folder, &mapping, out, err));
out:
    if (status != MLO_OK)
        mlo_error_where(err, "%.200s", path);
    mlo_fs_unmap(&mapping);
    free(folder);
    return status;
}
