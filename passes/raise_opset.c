/* Raising the opset of a model, as a pass and for passes that need a newer one. Nodes whose form changed
 * since the model's own opset are converted one by one; what cannot be converted is refused by name. Types
 * that newer versions merely add need nothing. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/passes_impl.h"

/* Brings one node into the form of the row's opset. MLO_EUNSUPPORTED with the reason as message refuses. */
typedef enum mlo_status convert_fn(struct mlo_node *node, struct mlo_error *err);

static enum mlo_status set_constant(struct mlo_node *node, int input, const char *suffix,
                                    struct mlo_tensor *tensor, struct mlo_error *err)
{
    char name[256];
    snprintf(name, sizeof name, "%.*s_%s", mlo_pass_cut(node->name, 230), node->name, suffix);
    struct mlo_value *value = mlo_graph_add_constant_take(node->graph, name, tensor);
    if (!value) {
        mlo_tensor_clear(tensor);
        return mlo_error_nomem(err);
    }
    return mlo_node_set_input(node, input, value) ? MLO_OK : mlo_error_nomem(err);
}

/* Moves a list attribute, when present, to an int64 input. */
static enum mlo_status ints_to_input(struct mlo_node *node, const char *attr, int input,
                                     struct mlo_error *err)
{
    size_t count;
    struct mlo_tensor tensor = {0};
    const int64_t *values = mlo_node_attr_ints(node, attr, &count);
    if (!values)
        return MLO_OK;
    int64_t dim = (int64_t)count;
    enum mlo_status status = mlo_tensor_init(&tensor, MLO_INT64, 1, &dim, err);
    if (status != MLO_OK)
        return status;
    if (count)
        memcpy(tensor.data, values, count * sizeof *values);
    mlo_node_unset(node, attr);
    return set_constant(node, input, attr, &tensor, err);
}

/* The same for a number, as a scalar of the type of input 0. */
static enum mlo_status float_to_input(struct mlo_node *node, const char *attr, float value, int input,
                                      struct mlo_error *err)
{
    struct mlo_tensor tensor = {0};
    enum mlo_dtype dtype = node->inputs[0]->type.dtype;
    enum mlo_status status =
        mlo_tensor_init(&tensor, dtype == MLO_DTYPE_NONE ? MLO_FLOAT32 : dtype, 0, NULL, err);
    if (status != MLO_OK)
        return status;
    mlo_tensor_set_f64(&tensor, 0, (double)value);
    mlo_node_unset(node, attr);
    return set_constant(node, input, attr, &tensor, err);
}

static enum mlo_status batchnorm_9(struct mlo_node *node, struct mlo_error *err)
{
    if (mlo_node_attr_i(node, "spatial", 1) != 1)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "it normalises each position by itself (spatial=0)");
    mlo_node_unset(node, "spatial");
    return MLO_OK;
}

static enum mlo_status slice_10(struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(ints_to_input(node, "starts", 1, err));
    MLO_TRY(ints_to_input(node, "ends", 2, err));
    MLO_TRY(ints_to_input(node, "axes", 3, err));
out:
    return status;
}

static enum mlo_status topk_10(struct mlo_node *node, struct mlo_error *err)
{
    struct mlo_tensor tensor = {0};
    int64_t one = 1;
    enum mlo_status status = mlo_tensor_init(&tensor, MLO_INT64, 1, &one, err);
    if (status != MLO_OK)
        return status;
    *(int64_t *)tensor.data = mlo_node_attr_i(node, "k", 0);
    mlo_node_unset(node, "k");
    return set_constant(node, 1, "k", &tensor, err);
}

static enum mlo_status clip_11(struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (mlo_node_attr(node, "min"))
        MLO_TRY(float_to_input(node, "min", mlo_node_attr_f(node, "min", -FLT_MAX), 1, err));
    if (mlo_node_attr(node, "max"))
        MLO_TRY(float_to_input(node, "max", mlo_node_attr_f(node, "max", FLT_MAX), 2, err));
out:
    return status;
}

static enum mlo_status pad_11(struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status;
    float value = mlo_node_attr_f(node, "value", 0.0f);
    MLO_TRY(ints_to_input(node, "pads", 1, err));
    if (mlo_node_attr(node, "value"))
        MLO_TRY(float_to_input(node, "value", value, 2, err));
out:
    return status;
}

/* The ratio means something in training only; an inference node needs neither ratio nor training_mode. */
static enum mlo_status dropout_12(struct mlo_node *node, struct mlo_error *err)
{
    if (!mlo_node_only_first_output(node) && node->version < 10)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "its mask is used, which was no bool then");
    mlo_node_unset(node, "ratio");
    return MLO_OK;
}

static struct mlo_node *insert(struct mlo_node *before, const char *op, struct mlo_value *a,
                               struct mlo_value *b)
{
    struct mlo_value *in[2] = {a, b}, *out = mlo_graph_add_value(before->graph, op, NULL);
    return out ? mlo_graph_add_node(before->graph, before, "", op, before->name, in, b ? 2 : 1, &out, 1)
               : NULL;
}

/* Before 13, Softmax and its like flattened their input to two dims at `axis` (default 1). That is the same
 * as along one axis when all dims behind it are 1; else it is written out: flattened, along the last axis,
 * and back. */
static enum mlo_status softmax_13(struct mlo_node *node, struct mlo_error *err)
{
    struct mlo_value *x = node->inputs[0];
    int64_t axis = mlo_node_attr_i(node, "axis", 1);
    bool done = false, alone = true;
    if (x->type.rank < 0)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "the rank of its input is not known");
    axis += axis < 0 ? x->type.rank : 0;
    for (int64_t d = axis + 1; d < x->type.rank; d++)
        alone = alone && x->type.dims[d].value == 1;
    if (alone)
        return mlo_node_set_i(node, "axis", axis) ? MLO_OK : mlo_error_nomem(err);
    struct mlo_node *flat = insert(node, "Flatten", x, NULL);
    struct mlo_node *row = flat ? insert(node, node->op_type, flat->outputs[0], NULL) : NULL;
    struct mlo_node *shape = row ? insert(node, "Shape", x, NULL) : NULL;
    struct mlo_node *back = shape ? insert(node, "Reshape", row->outputs[0], shape->outputs[0]) : NULL;
    if (!back || !mlo_node_set_i(flat, "axis", axis) || !mlo_node_set_i(row, "axis", 1))
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_pass_bypass(node, back->outputs[0], &done, err);
    return status != MLO_OK || done
               ? status
               : mlo_error_set(err, MLO_EUNSUPPORTED,
                               "it runs over several axes at once (axis=%lld of rank %d)", (long long)axis,
                               x->type.rank);
}

static enum mlo_status axes_18(struct mlo_node *node, struct mlo_error *err)
{
    return ints_to_input(node, "axes", 1, err);
}

/* Equal parts, when no sizes are given, must say how many. */
static enum mlo_status split_18(struct mlo_node *node, struct mlo_error *err)
{
    if (mlo_node_input(node, 1))
        return MLO_OK;
    return mlo_node_set_i(node, "num_outputs", node->output_count) ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status batchnorm_14(struct mlo_node *node, struct mlo_error *err)
{
    if (!mlo_node_only_first_output(node))
        return mlo_error_set(err, MLO_EUNSUPPORTED, "it is in training form: its statistics are used");
    for (int o = 1; o < node->output_count; o++)
        if (node->outputs[o])
            node->outputs[o]->producer = NULL;
    node->output_count = 1;
    mlo_graph_remove_unused_values(node->graph);
    return MLO_OK;
}

/* An empty list of numbers, for an operand that must be there and says nothing. */
static enum mlo_status no_numbers(struct mlo_node *node, int input, const char *suffix, struct mlo_error *err)
{
    struct mlo_tensor tensor = {0};
    int64_t none = 0;
    enum mlo_status status = mlo_tensor_init(&tensor, MLO_FLOAT32, 1, &none, err);
    return status == MLO_OK ? set_constant(node, input, suffix, &tensor, err) : status;
}

/* Resize of opset 10: positions are plain multiples, and the nearest is the one below. */
static enum mlo_status resize_11(struct mlo_node *node, struct mlo_error *err)
{
    struct mlo_value *scales = mlo_node_input(node, 1);
    if (!scales || !mlo_node_set_input(node, 2, scales))
        return scales ? mlo_error_nomem(err) : mlo_error_set(err, MLO_EUNSUPPORTED, "it has no scales");
    enum mlo_status status = no_numbers(node, 1, "roi", err);
    if (status != MLO_OK)
        return status;
    if (!mlo_node_set_s(node, "coordinate_transformation_mode", "asymmetric") ||
        !mlo_node_set_s(node, "nearest_mode", "floor"))
        return mlo_error_nomem(err);
    return MLO_OK;
}

static enum mlo_status resize_13(struct mlo_node *node, struct mlo_error *err)
{
    if (strcmp(mlo_node_attr_s(node, "coordinate_transformation_mode", ""), "tf_half_pixel_for_nn") == 0)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "coordinate_transformation_mode tf_half_pixel_for_nn is gone");
    return MLO_OK;
}

/* Scales by attribute, as Upsample of opset 7 has them. */
static enum mlo_status upsample_9(struct mlo_node *node, struct mlo_error *err)
{
    size_t count;
    const float *scales = mlo_node_attr_floats(node, "scales", &count);
    struct mlo_tensor tensor = {0};
    int64_t dim = (int64_t)count;
    if (!scales)
        return MLO_OK;
    enum mlo_status status = mlo_tensor_init(&tensor, MLO_FLOAT32, 1, &dim, err);
    if (status != MLO_OK)
        return status;
    memcpy(tensor.data, scales, count * sizeof *scales);
    mlo_node_unset(node, "scales");
    return set_constant(node, 1, "scales", &tensor, err);
}

static enum mlo_status upsample_10(struct mlo_node *node, struct mlo_error *err)
{
    MLO_UNUSED(err);
    node->op_type = "Resize";
    return MLO_OK;
}

static enum mlo_status scatter_11(struct mlo_node *node, struct mlo_error *err)
{
    MLO_UNUSED(err);
    node->op_type = "ScatterElements";
    return MLO_OK;
}

static enum mlo_status gridsample_20(struct mlo_node *node, struct mlo_error *err)
{
    const char *mode = mlo_node_attr_s(node, "mode", "bilinear");
    const char *now = strcmp(mode, "bilinear") == 0  ? "linear"
                      : strcmp(mode, "bicubic") == 0 ? "cubic"
                                                     : mode;
    return mlo_node_set_s(node, "mode", now) ? MLO_OK : mlo_error_nomem(err);
}

/* Half pixels became the default; before, there was no other way than without them. */
static enum mlo_status roialign_16(struct mlo_node *node, struct mlo_error *err)
{
    return mlo_node_set_s(node, "coordinate_transformation_mode", "output_half_pixel") ? MLO_OK
                                                                                       : mlo_error_nomem(err);
}

/* The axis became an input, with another default. */
static enum mlo_status dft_20(struct mlo_node *node, struct mlo_error *err)
{
    struct mlo_tensor tensor = {0};
    enum mlo_status status = mlo_tensor_init(&tensor, MLO_INT64, 0, NULL, err);
    if (status != MLO_OK)
        return status;
    *(int64_t *)tensor.data = mlo_node_attr_i(node, "axis", 1);
    mlo_node_unset(node, "axis");
    return set_constant(node, 2, "axis", &tensor, err);
}

/* Scale and bias were one number a group, and are one a channel. */
static enum mlo_status groupnorm_21(struct mlo_node *node, struct mlo_error *err)
{
    const struct mlo_type *x = &node->inputs[0]->type;
    int64_t groups = mlo_node_attr_i(node, "num_groups", 0), channels = x->rank > 1 ? x->dims[1].value : -1;
    if (groups < 1 || channels < 0 || channels % groups)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "the number of its channels is not known");
    for (int i = 1; i <= 2; i++) {
        const struct mlo_tensor *old = mlo_node_fixed(node, i);
        struct mlo_tensor wide = {0};
        if (!old || mlo_tensor_count(old) != (size_t)groups)
            return mlo_error_set(err, MLO_EUNSUPPORTED,
                                 "its scale or bias is no constant of one number a group");
        enum mlo_status status = mlo_tensor_init(&wide, old->dtype, 1, &channels, err);
        if (status != MLO_OK)
            return status;
        for (int64_t c = 0; c < channels; c++)
            mlo_tensor_set_f64(&wide, (size_t)c, mlo_tensor_get_f64(old, (size_t)(c / (channels / groups))));
        if ((status = set_constant(node, i, i == 1 ? "scale" : "bias", &wide, err)) != MLO_OK)
            return status;
    }
    return MLO_OK;
}

static enum mlo_status axes_13(struct mlo_node *node, struct mlo_error *err)
{
    return ints_to_input(node, "axes", 1, err);
}

static enum mlo_status split_13(struct mlo_node *node, struct mlo_error *err)
{
    return ints_to_input(node, "split", 1, err);
}

/* What changed its form since opset 7, by op, then by version; NULL: refused. */
static const struct {
    const char *op_type;
    int since;
    convert_fn *convert;
} changes[] = {
    {"BatchNormalization", 9, batchnorm_9},
    {"BatchNormalization", 14, batchnorm_14},
    {"Clip", 11, clip_11},
    {"DFT", 20, dft_20},
    {"Dropout", 12, dropout_12},
    {"GridSample", 20, gridsample_20},
    {"GroupNormalization", 21, groupnorm_21},
    {"Hardmax", 13, softmax_13},
    {"LogSoftmax", 13, softmax_13},
    {"Pad", 11, pad_11},
    {"ReduceL1", 18, axes_18},
    {"ReduceL2", 18, axes_18},
    {"ReduceLogSum", 18, axes_18},
    {"ReduceLogSumExp", 18, axes_18},
    {"ReduceMax", 18, axes_18},
    {"ReduceMean", 18, axes_18},
    {"ReduceMin", 18, axes_18},
    {"ReduceProd", 18, axes_18},
    {"ReduceSum", 13, axes_13},
    {"ReduceSumSquare", 18, axes_18},
    {"RoiAlign", 16, roialign_16},
    {"Scan", 9, NULL}, /* its batch axis went */
    {"Scatter", 11, scatter_11},
    {"Slice", 10, slice_10},
    {"Softmax", 13, softmax_13},
    {"Split", 13, split_13},
    {"Split", 18, split_18},
    {"Squeeze", 13, axes_13},
    {"TopK", 10, topk_10},
    {"Unsqueeze", 13, axes_13},
    {"Upsample", 9, upsample_9},
    {"Upsample", 10, upsample_10},
    {"Resize", 11, resize_11}, /* behind Upsample, which becomes one */
    {"Resize", 13, resize_13},
};

bool mlo_pass_opset_change(size_t i, const char **op_type, int *since)
{
    if (i >= MLO_COUNT(changes))
        return false;
    *op_type = changes[i].op_type;
    *since = changes[i].since;
    return true;
}

enum { OLDEST = 7, NEWEST = 23 };

/* The oldest IR version that may state an opset. */
static int64_t ir_of(int64_t opset)
{
    static const struct {
        int64_t opset, ir;
    } released[] = {{23, 11}, {21, 10}, {19, 9}, {15, 8}, {0, 7}};
    size_t i = 0;
    while (released[i].opset > opset)
        i++;
    return released[i].ir;
}

static enum mlo_status refuse(const struct mlo_node *node, int64_t from, int64_t to, const char *why,
                              struct mlo_error *err)
{
    char reason[256];
    snprintf(reason, sizeof reason, "%.255s", why);
    mlo_error_set(err, MLO_EUNSUPPORTED,
                  "the opset must be raised from %lld to %lld, and %s (node '%s') cannot be "
                  "converted: %s",
                  (long long)from, (long long)to, node->op_type, node->name, reason);
    mlo_error_where(err, "node '%s'", node->name);
    mlo_error_hint(err, "export the model again with opset %lld or newer", (long long)to);
    return MLO_EUNSUPPORTED;
}

static enum mlo_status convert_graph(struct mlo_graph *graph, int64_t from, int64_t to,
                                     struct mlo_pass_context *ctx, struct mlo_error *err);

static enum mlo_status convert_node(struct mlo_node *node, int64_t from, int64_t to,
                                    struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < MLO_COUNT(changes); i++) {
        if (changes[i].since <= from || changes[i].since > to || !mlo_node_is(node, changes[i].op_type))
            continue;
        if (!changes[i].convert)
            return refuse(node, from, to, "its meaning changed in between", err);
        struct mlo_error detail = {0};
        const char *op_type = node->op_type;
        status = changes[i].convert(node, &detail);
        if (status == MLO_EUNSUPPORTED)
            return refuse(node, from, to, detail.message, err);
        if (status != MLO_OK) {
            if (err)
                *err = detail;
            return status;
        }
        ctx->changes++;
        mlo_pass_note(ctx, node->name, "%s converted to its form of opset %d", op_type, changes[i].since);
    }
    for (int a = 0; a < node->attr_count && status == MLO_OK; a++) {
        const struct mlo_attr *attr = &node->attrs[a];
        if (attr->type == MLO_ATTR_GRAPH)
            status = convert_graph(attr->graph, from, to, ctx, err);
        for (size_t k = 0; attr->type == MLO_ATTR_GRAPHS && k < attr->graphs.count && status == MLO_OK; k++)
            status = convert_graph(attr->graphs.g[k], from, to, ctx, err);
    }
    return status;
}

/* Over a copy of the list: a conversion may add nodes and remove its own. */
static enum mlo_status convert_graph(struct mlo_graph *graph, int64_t from, int64_t to,
                                     struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int count = graph->node_count;
    struct mlo_node **nodes = malloc(((size_t)count + 1) * sizeof *nodes);
    if (!nodes)
        return mlo_error_nomem(err);
    if (count)
        memcpy(nodes, graph->nodes, (size_t)count * sizeof *nodes);
    for (int n = 0; n < count && status == MLO_OK; n++)
        status = convert_node(nodes[n], from, to, ctx, err);
    free(nodes);
    return status;
}

enum mlo_status mlo_pass_raise_opset_to(struct mlo_model *model, int64_t version,
                                        struct mlo_pass_context *ctx, struct mlo_error *err)
{
    int64_t from = mlo_model_opset(model, "");
    if (from >= version)
        return MLO_OK;
    if (from < OLDEST) {
        mlo_error_set(err, MLO_EUNSUPPORTED,
                      "the model's opset is %lld; the oldest that can be raised to %lld is %d",
                      (long long)from, (long long)version, OLDEST);
        mlo_error_hint(err, "export the model again with opset %lld or newer", (long long)version);
        return MLO_EUNSUPPORTED;
    }
    enum mlo_status status = convert_graph(model->graph, from, version, ctx, err);
    if (status != MLO_OK)
        return status;
    mlo_model_set_opset(model, version);
    mlo_pass_unlist_initializers(model);
    model->ir_version = MLO_MAX(model->ir_version, ir_of(version));
    ctx->changes++;
    mlo_pass_note(ctx, model->graph->name, "opset raised from %lld to %lld", (long long)from,
                  (long long)version);
    return MLO_OK;
}

const struct mlo_option_spec mlo_raise_opset_options[] = {
    {.name = "to",
     .type = MLO_OPT_INT,
     .fallback = "17",
     .min = OLDEST,
     .max = NEWEST,
     .description = "The version of ai.onnx that the model has at least afterwards"},
    {NULL},
};

enum mlo_status mlo_pass_raise_opset(struct mlo_model *model, struct mlo_pass_context *ctx,
                                     struct mlo_error *err)
{
    return mlo_pass_raise_opset_to(model, mlo_json_i64(ctx->options, "to", 0), ctx, err);
}
