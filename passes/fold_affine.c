/* Mul, Div, Add and Sub by a constant per channel, behind a Conv, ConvTranspose or Gemm, move into its
 * weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/passes_impl.h"

/* result = value * (scale) + (shift), from the constant k. */
struct affine_op {
    const char *op_type;
    bool constant_first_too;  /* constant may be input 0 (commutes) */
    bool multiplies, inverts; /* by k or 1/k; else adds k or -k */
};
static const struct affine_op affine_ops[] = {
    {"Mul", true, true, false},
    {"Div", false, true, true},
    {"Add", true, false, false},
    {"Sub", false, false, true},
};

static const struct affine_op *affine_find(const struct mlo_node *node)
{
    for (size_t i = 0; i < MLO_COUNT(affine_ops); i++)
        if (mlo_node_is(node, affine_ops[i].op_type))
            return &affine_ops[i];
    return NULL;
}

/* Which input of `node` is the constant; -1 when none can be. */
static int constant_index(const struct affine_op *op, const struct mlo_node *node)
{
    if (mlo_node_fixed(node, 1))
        return 1;
    return op->constant_first_too && mlo_node_fixed(node, 0) ? 0 : -1;
}

/* A constant that broadcasts along a [N, C, …] value so that it is one number per channel. */
static bool per_channel(const struct mlo_tensor *k, int64_t channels, int rank)
{
    if (k->dtype != MLO_FLOAT32 || k->rank > rank)
        return false;
    size_t count = mlo_tensor_count(k);
    if (count == 1)
        return true;
    int axis = k->rank - (rank - 1); /* of the channel, in k's own dims */
    return count == (size_t)channels && axis >= 0 && k->dims[axis] == channels;
}

static enum mlo_status fold(struct mlo_node *node, struct mlo_node *producer, const struct affine_op *op,
                            const struct mlo_tensor *k, struct mlo_value *value, bool *done,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t channels = (size_t)mlo_node_channels(producer), step = mlo_tensor_count(k) > 1 ? 1 : 0;
    double *scale = calloc(2 * channels + 1, sizeof *scale), *shift = scale + channels;
    if (!scale)
        return mlo_error_nomem(err);
    *done = false;
    for (size_t c = 0; c < channels; c++) {
        double v = mlo_tensor_get_f64(k, c * step);
        scale[c] = !op->multiplies ? 1.0 : op->inverts ? 1.0 / v : v;
        shift[c] = op->multiplies ? 0.0 : op->inverts ? -v : v;
        if (!isfinite(scale[c]) || !isfinite(shift[c]))
            goto out; /* dividing by zero stays where it is */
    }
    MLO_TRY(mlo_pass_bypass(node, value, done, err));
    if (*done)
        MLO_TRY(mlo_pass_scale_channels(producer, scale, shift, err));
out:
    free(scale);
    return status;
}

static enum mlo_status try_node(struct mlo_node *node, bool *done, struct mlo_error *err)
{
    const char *why;
    const struct affine_op *op = affine_find(node);
    *done = false;
    int at = op ? constant_index(op, node) : -1;
    if (at < 0)
        return MLO_OK;
    const struct mlo_tensor *k = mlo_node_fixed(node, at);
    struct mlo_value *value = mlo_node_input(node, 1 - at);
    struct mlo_node *producer = value ? value->producer : NULL;
    if (!producer || mlo_value_sole_user(value) != node || mlo_node_channels(producer) == 0 ||
        !mlo_node_can_scale(producer, &why))
        return MLO_OK;
    int rank = mlo_node_is(producer, "Gemm") ? 2 : mlo_node_fixed(producer, 1)->rank;
    if (!per_channel(k, mlo_node_channels(producer), rank))
        return MLO_OK;
    return fold(node, producer, op, k, value, done, err);
}

enum mlo_status mlo_pass_fold_affine(struct mlo_model *model, struct mlo_pass_context *ctx,
                                     struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    for (int n = 0; n < graph->node_count; n++) {
        bool done = false;
        enum mlo_status status = try_node(graph->nodes[n], &done, err);
        if (status != MLO_OK)
            return status;
        if (done) {
            ctx->changes++;
            n--;
        }
    }
    mlo_graph_remove_unused_values(graph);
    return MLO_OK;
}
