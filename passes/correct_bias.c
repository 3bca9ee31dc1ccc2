/* Bias correction by measurement, the full form of Nagel et al. (2019, arXiv:1906.04721, section 4.2 and
 * appendix D): what quantization did to the mean of each output channel of a node is taken off its bias. The
 * statistics hold the channels of the float model's outputs and, under names that begin with "quantized:", of
 * the quantized model's. A caller goes through the layers from the front, since correcting one changes the
 * inputs of those behind it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/passes_impl.h"

const struct mlo_option_spec mlo_correct_bias_options[] = {
    {.name = "nodes",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "Names of the nodes whose biases are corrected"},
    {NULL},
};

#define QUANTIZED "quantized:"

/* Integers behind a DequantizeLinear, or floats. */
struct bias {
    struct mlo_value *value;
    const struct mlo_tensor *numbers, *scales; /* scales: NULL for floats */
};

static bool find_bias(const struct mlo_node *node, struct bias *out)
{
    struct mlo_value *v = mlo_node_input(node, 2);
    *out = (struct bias){.value = v};
    if (mlo_value_is_fixed(v)) {
        out->numbers = v->constant;
        return v->constant->dtype == MLO_FLOAT32;
    }
    struct mlo_node *dq = v ? v->producer : NULL;
    if (!dq || !mlo_node_is(dq, "DequantizeLinear") || !mlo_node_fixed(dq, 0) || !mlo_node_fixed(dq, 1))
        return false;
    out->value = dq->inputs[0];
    out->numbers = mlo_node_fixed(dq, 0);
    out->scales = mlo_node_fixed(dq, 1);
    return out->numbers->dtype == MLO_INT32;
}

/* Why a node's bias cannot be corrected; NULL when it can. */
static const char *obstacle(const struct mlo_node *node, const struct mlo_channel_stats *is,
                            const struct mlo_channel_stats *was, struct bias *bias)
{
    if (!is || !was || is->channels != was->channels)
        return "its outputs were not observed";
    if (is->bad_count || was->bad_count)
        return "its outputs were NaN or infinite";
    if (!find_bias(node, bias))
        return "it has no constant bias";
    if (bias->value->use_count != 1)
        return "its bias has other users";
    if ((int64_t)mlo_tensor_count(bias->numbers) != is->channels)
        return "its bias is not one number per channel";
    return NULL;
}

static enum mlo_status correct(const struct bias *bias, const struct mlo_channel_stats *is,
                               const struct mlo_channel_stats *was, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor fresh = {0};
    size_t scales = bias->scales ? mlo_tensor_count(bias->scales) : 0;
    MLO_TRY(mlo_tensor_copy(bias->numbers, &fresh, err));
    for (size_t c = 0; c < (size_t)is->channels; c++) {
        if (!is->count[c] || !was->count[c])
            continue;
        double change = was->sum[c] / (double)was->count[c] - is->sum[c] / (double)is->count[c];
        double scale = scales ? (double)((const float *)bias->scales->data)[scales > 1 ? c : 0] : 1;
        double number = mlo_tensor_get_f64(&fresh, c) + change / scale;
        /* Not beyond the bound that keeps sums within int32. */
        mlo_tensor_set_f64(&fresh, c, scales ? fmin(fmax(rint(number), -0x1p30), 0x1p30) : number);
    }
    MLO_TRY(mlo_value_set_constant_take(bias->value, &fresh, err));
out:
    mlo_tensor_clear(&fresh);
    return status;
}

enum mlo_status mlo_pass_correct_bias(struct mlo_model *model, struct mlo_pass_context *ctx,
                                      struct mlo_error *err)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(ctx->options, "nodes"), i, name)
    {
        const struct mlo_graph *graph = model->graph;
        struct mlo_node *node = NULL;
        struct bias bias;
        char key[512];
        for (int n = 0; n < graph->node_count && !node; n++)
            if (strcmp(graph->nodes[n]->name, json_string_value(name)) == 0)
                node = graph->nodes[n];
        if (!node) {
            mlo_error_set(err, MLO_EINVAL, "the model has no node '%s'", json_string_value(name));
            mlo_error_where(err, "option 'nodes'");
            return MLO_EINVAL;
        }
        snprintf(key, sizeof key, QUANTIZED "%s", node->outputs[0]->name);
        const struct mlo_channel_stats *is = mlo_stats_find_channels(ctx->stats, key);
        const struct mlo_channel_stats *was = mlo_stats_find_channels(ctx->stats, node->outputs[0]->name);
        const char *why = obstacle(node, is, was, &bias);
        if (why) {
            mlo_pass_note(ctx, node->name, "its bias is not corrected: %s", why);
            continue;
        }
        enum mlo_status status = correct(&bias, is, was, err);
        if (status != MLO_OK)
            return status;
        ctx->changes++;
    }
    return MLO_OK;
}

bool mlo_correct_bias_wanted(const struct mlo_node *node, struct mlo_stats_want *want)
{
    struct bias bias;
    const struct mlo_value *w = mlo_node_input(node, 1);
    if ((!mlo_node_is(node, "Conv") && !mlo_node_is(node, "Gemm")) || !w || !w->producer ||
        !mlo_node_is(w->producer, "DequantizeLinear") || !find_bias(node, &bias))
        return false;
    *want = (struct mlo_stats_want){.name = node->outputs[0]->name, .channel_axis = 1};
    return true;
}
