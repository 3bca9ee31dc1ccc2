/* What the quantize pass knows of a node's inputs, put to use: weights rounded so that the outputs change
 * least (GPTQ, arXiv:2210.17323; AdaRound, arXiv:2004.10568), and biases that take back what rounding did to
 * the outputs' means (bias correction: Nagel et al., 2019, "Data-Free Quantization Through Weight
 * Equalization and Bias Correction", arXiv:1906.04721, with observed means instead of those of
 * BatchNormalization). */
#include <math.h>
#include <stdio.h>

#include "passes/quantize_impl.h"
#include "passes/weight_only_impl.h"

/* The node's inputs' matrix, when it has seen anything. */
static const struct mlo_gram *seen(const struct mlo_node *node, const struct mlo_stats *stats)
{
    int64_t groups, dim;
    const struct mlo_gram *gram =
        mlo_gram_shape(node, &groups, &dim) ? NULL : mlo_stats_find_gram(stats, node);
    return gram && gram->rows > 0 ? gram : NULL;
}

enum mlo_status mlo_quantize_refine(const struct mlo_node *node, const struct mlo_quantize_grid *from,
                                    const struct mlo_rounding *how, struct mlo_arena *arena, uint8_t *q,
                                    struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status;
    if (how->method == MLO_ROUND_NEAREST)
        return MLO_OK;
    const struct mlo_gram *gram = seen(node, ctx->stats);
    if (!gram || !gram->full) {
        mlo_pass_note(ctx, node->name, "its weights are rounded to the nearest: %s",
                      gram ? "it has too many inputs for a whole matrix" : "its input was not observed");
        return MLO_OK;
    }
    struct mlo_weight_layout l = mlo_weight_layout_of(node);
    size_t count = l.rows * l.columns;
    float *w = mlo_arena_calloc(arena, count + 1, sizeof *w);
    float *scales = mlo_arena_calloc(arena, l.rows + 1, sizeof *scales);
    int *zeros = mlo_arena_calloc(arena, l.rows + 1, sizeof *zeros);
    int16_t *chosen = mlo_arena_calloc(arena, count + 1, sizeof *chosen);
    if (!w || !scales || !zeros || !chosen)
        return mlo_error_nomem(err);
    const float *weights = mlo_node_fixed(node, 1)->data;
    for (size_t r = 0; r < l.rows; r++) {
        scales[r] = from->scales[from->count > 1 ? r : 0];
        zeros[r] = from->zeros[from->count > 1 ? r : 0];
        for (size_t c = 0; c < l.columns; c++)
            w[r * l.columns + c] = weights[r * l.row_step + c * l.column_step] * from->alpha;
    }
    const struct mlo_weight_grid grid = {.rows = l.rows,
                                         .columns = l.columns,
                                         .block = l.columns,
                                         .blocks = 1,
                                         .low = from->low,
                                         .high = from->high,
                                         .scales = scales,
                                         .zeros = zeros};
    MLO_TRY(mlo_round_weights(how, &grid, w, gram, chosen, err));
    for (size_t r = 0; r < l.rows; r++)
        for (size_t c = 0; c < l.columns; c++)
            q[r * l.row_step + c * l.column_step] = (uint8_t)chosen[r * l.columns + c];
out:
    return status;
}

/* How much of each output the integer weights take away in the mean: (w - q) times the inputs' means. */
static void mean_losses(const struct mlo_node *node, const struct mlo_gram *gram, float alpha,
                        const struct mlo_tensor *q, const struct mlo_tensor *scales,
                        const struct mlo_tensor *zeros, double *out)
{
    struct mlo_weight_layout l = mlo_weight_layout_of(node);
    const float *weights = mlo_node_fixed(node, 1)->data;
    size_t share = l.rows / (size_t)gram->groups, scale_count = mlo_tensor_count(scales);
    for (size_t r = 0; r < l.rows; r++) {
        const double *sum = gram->sum + r / share * (size_t)gram->dim;
        size_t s = scale_count > 1 ? r : 0;
        double scale = (double)((const float *)scales->data)[s];
        int64_t zero = zeros ? mlo_tensor_get_i64(zeros, s) : 0;
        double total = 0;
        for (size_t c = 0; c < l.columns; c++) {
            size_t at = r * l.row_step + c * l.column_step;
            double now = (double)(mlo_tensor_get_i64(q, at) - zero) * scale;
            total += ((double)(weights[at] * alpha) - now) * sum[c];
        }
        out[r] = total / (double)gram->rows;
    }
}

/* The node adds these numbers, all of them, under a name of its own. */
static enum mlo_status set_bias_take(struct mlo_node *node, struct mlo_tensor *bias, struct mlo_error *err)
{
    char name[256];
    snprintf(name, sizeof name, "%.*s_bias", mlo_pass_cut(node->name, 240), node->name);
    enum mlo_status status = mlo_pass_set_const_take(node, 2, name, bias, err);
    if (status == MLO_OK && mlo_node_attr(node, "beta") && !mlo_node_set_f(node, "beta", 1.0f))
        status = mlo_error_nomem(err);
    return status;
}

enum mlo_status mlo_quantize_correct_bias(struct mlo_node *node, const struct mlo_value *dequantized,
                                          struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                          struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor bias = {0};
    const struct mlo_gram *gram = seen(node, ctx->stats);
    const struct mlo_value *old = mlo_node_input(node, 2);
    const struct mlo_tensor *before = mlo_node_fixed(node, 2);
    const char *why = NULL;
    if (!gram)
        why = "its input was not observed";
    else if (mlo_node_is(node, "MatMul"))
        why = "a MatMul has none";
    else if (old && !before)
        why = "it is not constant";
    if (why) {
        mlo_pass_note(ctx, node->name, "its bias is not corrected: %s", why);
        return MLO_OK;
    }
    const struct mlo_node *dq = dequantized->producer;
    float alpha = mlo_node_is(node, "Gemm") ? mlo_node_attr_f(node, "alpha", 1.0f) : 1.0f;
    double beta = mlo_node_is(node, "Gemm") ? (double)mlo_node_attr_f(node, "beta", 1.0f) : 1.0;
    int64_t rows = (int64_t)mlo_weight_layout_of(node).rows;
    size_t step = before && mlo_tensor_count(before) > 1 ? 1 : 0;
    double *losses = mlo_arena_calloc(arena, (size_t)rows + 1, sizeof *losses);
    if (!losses)
        return mlo_error_nomem(err);
    mean_losses(node, gram, alpha, mlo_node_const(dq, 0), mlo_node_const(dq, 1), mlo_node_const(dq, 2),
                losses);
    MLO_TRY(mlo_tensor_init(&bias, MLO_FLOAT32, 1, &rows, err));
    for (size_t r = 0; r < (size_t)rows; r++)
        ((float *)bias.data)[r] =
            (float)((before ? beta * (double)((const float *)before->data)[r * step] : 0) + losses[r]);
    status = set_bias_take(node, &bias, err);
out:
    mlo_tensor_clear(&bias);
    return status;
}

enum mlo_status mlo_quantize_add_bias(struct mlo_node *node, int64_t outputs, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor bias = {0};
    if (mlo_node_is(node, "MatMul") || mlo_node_input(node, 2))
        return MLO_OK;
    MLO_TRY(mlo_tensor_init(&bias, MLO_FLOAT32, 1, &outputs, err));
    status = set_bias_take(node, &bias, err);
out:
    mlo_tensor_clear(&bias);
    return status;
}

enum mlo_status mlo_quantize_wants(const struct mlo_model *model, const json_t *options,
                                   struct mlo_arena *arena, struct mlo_stats_wants *wants,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_quantize_settings settings;
    struct mlo_quantize_plan plan;
    const char **names;
    size_t count;
    int64_t groups, dim;
    mlo_quantize_settings_read(options, &settings);
    MLO_TRY(mlo_quantize_wanted(model, options, arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        struct mlo_stats_want want = {.name = names[i], .histogram = true};
        if (!mlo_stats_wants_add(wants, &want))
            return mlo_error_nomem(err);
    }
    if (settings.rounding.method == MLO_ROUND_NEAREST && !settings.correct_bias)
        return MLO_OK;
    MLO_TRY(mlo_quantize_plan_make(model->graph, &settings, arena, NULL, &plan, err));
    for (int i = 0; i < plan.weighted_count; i++) {
        const struct mlo_node *node = plan.weighted[i];
        struct mlo_stats_want want = {.name = node->inputs[0]->name,
                                      .gram = node,
                                      .full = settings.rounding.method != MLO_ROUND_NEAREST};
        if (!mlo_gram_shape(node, &groups, &dim) && !mlo_stats_wants_add(wants, &want))
            return mlo_error_nomem(err);
    }
out:
    return status;
}

bool mlo_quantize_makes_integer_ops(const json_t *options)
{
    struct mlo_quantize_settings settings;
    mlo_quantize_settings_read(options, &settings);
    return settings.qoperator;
}
