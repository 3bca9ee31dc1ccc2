/* BatchNormalization (Ioffe and Szegedy, 2015, arXiv:1502.03167) in inference is an affine map per channel;
 * it moves into the weights before it, so that what is quantized is what runs (Jacob et al., 2018,
 * arXiv:1712.05877, section 3.2): w' = w g / sqrt(v + e), b' = o + (b - m) g / sqrt(v + e). */
#include <math.h>
#include <stdlib.h>

#include "passes/passes_impl.h"

/* The Conv, ConvTranspose or Gemm that makes the input of a BatchNormalization; NULL when none does. */
static struct mlo_node *producer_of(const struct mlo_node *bn)
{
    if (!mlo_node_is(bn, "BatchNormalization"))
        return NULL;
    struct mlo_node *node = mlo_node_producer(bn, 0);
    if (!node ||
        (!mlo_node_is(node, "Conv") && !mlo_node_is(node, "ConvTranspose") && !mlo_node_is(node, "Gemm")))
        return NULL;
    return node;
}

static bool can_fold(const struct mlo_node *bn, const struct mlo_node *node, const char **why)
{
    *why = NULL;
    if (mlo_node_attr_i(bn, "training_mode", 0) != 0 || !mlo_node_only_first_output(bn))
        *why = "the BatchNormalization is in training form";
    else if (mlo_value_sole_user(bn->inputs[0]) != bn)
        *why = "its input has other users";
    else if (!mlo_node_can_scale(node, why))
        return false;
    for (int i = 1; i < 5 && !*why; i++) {
        const struct mlo_tensor *t = mlo_node_fixed(bn, i);
        if (!t || (int64_t)mlo_tensor_count(t) != mlo_node_channels(node))
            *why = "its scale, bias, mean and variance are not constants per channel";
    }
    return !*why;
}

bool mlo_graph_is_bn_folded(const struct mlo_graph *graph)
{
    const char *why;
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = producer_of(graph->nodes[n]);
        if (node && can_fold(graph->nodes[n], node, &why))
            return false;
    }
    return true;
}

static enum mlo_status fold(struct mlo_node *bn, struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t channels = (size_t)mlo_node_channels(node);
    double *scale = calloc(2 * channels + 1, sizeof *scale), *shift = scale + channels;
    const double epsilon = (double)mlo_node_attr_f(bn, "epsilon", 1e-5f);
    if (!scale)
        return mlo_error_nomem(err);
    for (size_t c = 0; c < channels; c++) {
        double gain = mlo_tensor_get_f64(mlo_node_fixed(bn, 1), c),
               offset = mlo_tensor_get_f64(mlo_node_fixed(bn, 2), c);
        double mean = mlo_tensor_get_f64(mlo_node_fixed(bn, 3), c),
               var = mlo_tensor_get_f64(mlo_node_fixed(bn, 4), c);
        scale[c] = gain / sqrt(var + epsilon);
        shift[c] = offset - mean * scale[c];
        if (!isfinite(scale[c]) || !isfinite(shift[c])) {
            status = mlo_error_set(err, MLO_EINVAL, "channel %zu normalises by the variance %g", c, var);
            mlo_error_where(err, "node '%s'", bn->name);
            goto out;
        }
    }
    /* First the rewiring, which may be refused; the weights are final. */
    MLO_TRY(mlo_pass_bypass(bn, bn->inputs[0], done, err));
    if (*done)
        MLO_TRY(mlo_pass_scale_channels(node, scale, shift, err));
out:
    free(scale);
    return status;
}

enum mlo_status mlo_pass_fold_batchnorm(struct mlo_model *model, struct mlo_pass_context *ctx,
                                        struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *bn = graph->nodes[n], *node = producer_of(bn);
        const char *why;
        bool done = false;
        if (!node)
            continue;
        if (!can_fold(bn, node, &why)) {
            mlo_pass_note(ctx, bn->name, "not folded into '%s': %s", node->name, why);
            continue;
        }
        enum mlo_status status = fold(bn, node, &done, err);
        if (status != MLO_OK)
            return status;
        if (done) {
            ctx->changes++;
            n--; /* the next node took its place */
        }
    }
    mlo_graph_remove_unused_values(graph);
    return MLO_OK;
}
