/* Raising the opset of a model: per-channel QuantizeLinear needs 13. Nodes whose form changed since the
 * model's own opset are converted one by one; what cannot be converted is refused by name. Types that newer
 * versions merely add need nothing. */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "passes/passes_impl.h"

/* Brings one node into the form of the row's opset. MLO_EUNSUPPORTED with the reason as message refuses. */
typedef enum mlo_status convert_fn(struct mlo_node *node, struct mlo_error *err);

static enum mlo_status set_constant(struct mlo_node *node, int input, const char *suffix,
                                    struct mlo_tensor *tensor, struct mlo_error *err)
{
    char name[256];
    snprintf(name, sizeof name, "%.230s_%s", node->name, suffix);
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
    MLO_UNUSED(err);
    mlo_node_unset(node, "ratio");
    return MLO_OK;
}

/* Before 13, Softmax and its like flattened their input to two dims at `axis` (default 1). That is the same
 * as along one axis exactly when all dims behind it are 1. */
static enum mlo_status softmax_13(struct mlo_node *node, struct mlo_error *err)
{
    const struct mlo_type *type = &node->inputs[0]->type;
    int64_t axis = mlo_node_attr_i(node, "axis", 1);
    if (type->rank < 0)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "the rank of its input is not known");
    axis += axis < 0 ? type->rank : 0;
    for (int64_t d = axis + 1; d < type->rank; d++)
        if (type->dims[d].value != 1)
            return mlo_error_set(err, MLO_EUNSUPPORTED,
                                 "it runs over several axes at once (axis=%lld of rank %d)", (long long)axis,
                                 type->rank);
    return mlo_node_set_i(node, "axis", axis) ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status axes_13(struct mlo_node *node, struct mlo_error *err)
{
    return ints_to_input(node, "axes", 1, err);
}

static enum mlo_status split_13(struct mlo_node *node, struct mlo_error *err)
{
    return ints_to_input(node, "split", 1, err);
}

/* What changed its form between opset 7 and 13, by op; NULL: refused. */
static const struct {
    const char *op_type;
    int since;
    convert_fn *convert;
} changes[] = {
    {"BatchNormalization", 9, batchnorm_9},
    {"Clip", 11, clip_11},
    {"Dropout", 12, dropout_12},
    {"Hardmax", 13, softmax_13},
    {"If", 13, NULL}, /* their subgraphs would need converting too */
    {"LogSoftmax", 13, softmax_13},
    {"Loop", 13, NULL},
    {"Pad", 11, pad_11},
    {"ReduceSum", 13, axes_13},
    {"Resize", 11, NULL},
    {"Scan", 13, NULL},
    {"Scatter", 11, NULL},
    {"Slice", 10, slice_10},
    {"Softmax", 13, softmax_13},
    {"Split", 13, split_13},
    {"Squeeze", 13, axes_13},
    {"TopK", 10, topk_10},
    {"Unsqueeze", 13, axes_13},
    {"Upsample", 10, NULL},
};

enum { OLDEST = 7, IR_OF_13 = 7 };

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

static enum mlo_status convert_node(struct mlo_node *node, int64_t from, int64_t to,
                                    struct mlo_pass_context *ctx, struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(changes); i++) {
        if (changes[i].since <= from || changes[i].since > to || !mlo_node_is(node, changes[i].op_type))
            continue;
        if (!changes[i].convert)
            return refuse(node, from, to, "its meaning changed in between", err);
        struct mlo_error detail = {0};
        enum mlo_status status = changes[i].convert(node, &detail);
        if (status == MLO_EUNSUPPORTED)
            return refuse(node, from, to, detail.message, err);
        if (status != MLO_OK) {
            if (err)
                *err = detail;
            return status;
        }
        mlo_pass_note(ctx, node->name, "%s converted to its form of opset %d", node->op_type,
                      changes[i].since);
    }
    return MLO_OK;
}

enum mlo_status mlo_pass_raise_opset(struct mlo_model *model, int64_t version, struct mlo_pass_context *ctx,
                                     struct mlo_error *err)
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
    for (int n = 0; n < model->graph->node_count; n++) {
        enum mlo_status status = convert_node(model->graph->nodes[n], from, version, ctx, err);
        if (status != MLO_OK)
            return status;
    }
    mlo_model_set_opset(model, version);
    mlo_pass_unlist_initializers(model);
    model->ir_version = MLO_MAX(model->ir_version, IR_OF_13);
    mlo_pass_note(ctx, model->graph->name, "opset raised from %lld to %lld", (long long)from,
                  (long long)version);
    return MLO_OK;
}
