/* Weight-only quantization: weights in 8 or 4 bits, in blocks along what is summed over, dequantized where
 * they are used; activations stay float. Needs no data; with Gram matrices of the inputs, GPTQ
 * (arXiv:2210.17323) or AdaRound (arXiv:2004.10568) choose the integers. */
#include <math.h>
#include <string.h>

#include "passes/weight_only_impl.h"

static const char *const types[] = {"int4", "uint4", "int8", "uint8", NULL};
static const char *const conv_bits[] = {"8", "4", NULL};
static const char *const forms[] = {"qdq", "matmulnbits", NULL};

const struct mlo_option_spec mlo_quantize_weights_options[] = {
    {.name = "type",
     .type = MLO_OPT_STRING,
     .fallback = "int4",
     .choices = types,
     .description = "int4, int8: symmetric; uint4, uint8: with zero points"},
    {.name = "block",
     .type = MLO_OPT_INT,
     .fallback = "32",
     .min = 0,
     .max = 256,
     .description = "Weights that share a scale, along what is summed over: 16 to 256; 0: a whole channel"},
    {.name = "form",
     .type = MLO_OPT_STRING,
     .fallback = "qdq",
     .choices = forms,
     .description = "qdq: DequantizeLinear in front of MatMul and Gemm (blocks and 4 bits need opset 21); "
                    "matmulnbits: com.microsoft's MatMulNBits"},
    {.name = "rounding",
     .type = MLO_OPT_STRING,
     .fallback = "nearest",
     .choices = mlo_rounding_names,
     .description = "nearest needs no data; gptq and adaround observe the inputs"},
    {.name = "damp",
     .type = MLO_OPT_FLOAT,
     .fallback = "0.01",
     .min = 0,
     .max = 1,
     .description = "gptq: what is added to the diagonal of the inputs' matrix, as a share of its mean"},
    {.name = "act_order",
     .type = MLO_OPT_BOOL,
     .fallback = "false",
     .description = "gptq: rounds the weights of the largest inputs first"},
    {.name = "sweeps",
     .type = MLO_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 100,
     .description =
         "gptq: then each weight is rounded again for what the others have become, so often at most"},
    {.name = "search_scale",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "Chooses each scale by least squared error instead of by the extremes"},
    {.name = "convolutions",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "Weights of Conv too, with one scale an output channel"},
    {.name = "convolution_bits",
     .type = MLO_OPT_STRING,
     .fallback = "8",
     .choices = conv_bits,
     .description = "Of these: 8, or 4 (with a 4-bit type; needs opset 21)"},
    MLO_OPTION_MIN_WEIGHTS,
    MLO_OPTION_EXCLUDE,
    {NULL},
};

struct settings {
    bool four_bits, conv_four_bits, is_unsigned, nbits, search;
    size_t block;
    struct mlo_rounding rounding;
    struct mlo_weights_choice choice;
};

static enum mlo_status read_settings(const json_t *options, struct settings *s, struct mlo_error *err)
{
    const char *type = mlo_json_str(options, "type", "int4");
    *s = (struct settings){
        .four_bits = mlo_str_ends(type, "int4"),
        .conv_four_bits = strcmp(mlo_json_str(options, "convolution_bits", "8"), "4") == 0,
        .is_unsigned = type[0] == 'u',
        .nbits = strcmp(mlo_json_str(options, "form", "qdq"), "matmulnbits") == 0,
        .search = mlo_json_bool(options, "search_scale", true),
        .block = (size_t)mlo_json_i64(options, "block", 32),
        .choice = mlo_weights_choice_read(options),
    };
    mlo_rounding_read(options, &s->rounding);
    bool power = (s->block & (s->block - 1)) == 0;
    if (s->block != 0 && (s->block < 16 || !power)) {
        mlo_error_set(err, MLO_EINVAL, "blocks of %zu weights: 16, 32, 64, 128 and 256 are possible",
                      s->block);
        mlo_error_where(err, "option 'block'");
        return MLO_EINVAL;
    }
    if (s->conv_four_bits && !s->four_bits) {
        mlo_error_set(err, MLO_EINVAL, "convolutions in 4 bits go with the types int4 and uint4, not %s",
                      type);
        mlo_error_where(err, "option 'convolution_bits'");
        return MLO_EINVAL;
    }
    if (s->nbits && s->block == 0) {
        mlo_error_set(err, MLO_EINVAL, "MatMulNBits has its weights in blocks");
        mlo_error_where(err, "option 'block'");
        mlo_error_hint(err, "set block to 16, 32, 64, 128 or 256, or form to qdq");
        return MLO_EINVAL;
    }
    return MLO_OK;
}

/* --- which nodes ------------------------------------------------------------------------------- */

struct mlo_weight_layout mlo_weight_layout_of(const struct mlo_node *node)
{
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    size_t count = mlo_tensor_count(w);
    bool rows_first =
        mlo_node_is(node, "Conv") || (mlo_node_is(node, "Gemm") && mlo_node_attr_i(node, "transB", 0) != 0);
    size_t rows = (size_t)w->dims[rows_first ? 0 : 1], columns = rows ? count / rows : 0;
    if (rows_first)
        return (struct mlo_weight_layout){rows, columns, columns, 1, 0, mlo_node_is(node, "Conv") ? -1 : 1};
    return (struct mlo_weight_layout){rows, columns, 1, rows, 1, 0};
}

struct mlo_weights_choice mlo_weights_choice_read(const json_t *options)
{
    return (struct mlo_weights_choice){
        .convolutions = mlo_json_bool(options, "convolutions", true),
        .min_weights = mlo_json_i64(options, "min_weights", 0),
        .exclude = json_object_get(options, "exclude"),
    };
}

const char *mlo_weights_obstacle(const struct mlo_weights_choice *choice, const struct mlo_node *node)
{
    bool conv = mlo_node_is(node, "Conv");
    if (mlo_pass_is_named(choice->exclude, node->name))
        return "it is excluded by the options";
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    if (!w)
        return "its weights are not constant";
    if (w->dtype != MLO_FLOAT32)
        return "its weights are not float32";
    if (conv && !choice->convolutions)
        return "the options leave convolutions in float";
    if (conv ? w->rank < 3 : w->rank != 2)
        return "its weights are no matrix";
    int64_t count = (int64_t)mlo_tensor_count(w);
    if (count == 0)
        return "its weights are empty";
    if (count < choice->min_weights)
        return "it has few weights (the option min_weights)";
    return mlo_tensor_is_finite(w) ? NULL : "its weights hold NaN or infinity";
}

/* Why a weighted node keeps float weights; NULL when they become integers. */
static const char *obstacle(const struct settings *s, const struct mlo_node *node)
{
    if (!mlo_node_is(node, "Conv") && !mlo_node_is(node, "Gemm") && !mlo_node_is(node, "MatMul"))
        return "there is no weight-only form of this op";
    return mlo_weights_obstacle(&s->choice, node);
}

/* --- grids ------------------------------------------------------------------------------------- */

/* Scale and zero point of the extremes [low, high], with 0 in the range, shrunk by a factor. */
static void fit(const struct mlo_packed *p, double low, double high, double factor, float *scale, int *zero)
{
    double steps = p->grid.high - p->grid.low;
    low = fmin(low, 0) * factor;
    high = fmax(high, 0) * factor;
    double s = p->zeros ? (high - low) / steps : fmax(-low / -p->grid.low, high / p->grid.high);
    *scale = (float)s > 0 ? (float)s : 1.0f;
    if (p->zeros)
        *zero = (int)fmin(fmax(rint(-low / (double)*scale) + p->grid.low, p->grid.low), p->grid.high);
}

/* The squared error of one block, weighed by the inputs' squares where they are known. */
static double block_error(const struct mlo_packed *p, const float *w, const double *weigh, size_t count,
                          float scale, int zero)
{
    double total = 0;
    for (size_t i = 0; i < count; i++) {
        double q = fmin(fmax(rint((double)w[i] / (double)scale) + zero, p->grid.low), p->grid.high);
        double e = (double)w[i] - (q - zero) * (double)scale;
        total += e * e * (weigh ? weigh[i] : 1);
    }
    return total;
}

/* Extremes first; a search tries smaller ranges, which cut off the extremes and halve the steps of the rest.
 */
static void block_scale(struct mlo_packed *p, size_t at, const float *w, const double *weigh, size_t count,
                        bool search)
{
    enum { TRIES = 24 };
    double low = 0, high = 0, least = INFINITY;
    for (size_t i = 0; i < count; i++) {
        low = fmin(low, (double)w[i]);
        high = fmax(high, (double)w[i]);
    }
    for (int t = 0; t < (search ? TRIES : 1); t++) {
        float scale;
        int zero = 0;
        fit(p, low, high, 1 - t / 50.0, &scale, &zero);
        double error = search ? block_error(p, w, weigh, count, scale, zero) : 0;
        if (error >= least)
            continue;
        least = error;
        p->scales[at] = scale;
        if (p->zeros)
            p->zeros[at] = zero;
    }
}

/* Chooses type and block of a node's weights, its scales, and its integers. */
static enum mlo_status pack(const struct settings *s, const struct mlo_node *node,
                            const struct mlo_stats *stats, struct mlo_arena *arena, struct mlo_packed *p,
                            struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_gram *gram = mlo_stats_find_gram(stats, node);
    struct mlo_weight_layout l = mlo_weight_layout_of(node);
    bool four = l.column_axis >= 0 ? s->four_bits : s->conv_four_bits;
    bool blocked = s->block != 0 && l.column_axis >= 0;
    *p = (struct mlo_packed){.blocked = blocked};
    p->dtype = s->is_unsigned ? (four ? MLO_UINT4 : MLO_UINT8) : (four ? MLO_INT4 : MLO_INT8);
    p->grid = (struct mlo_weight_grid){.rows = l.rows, .columns = l.columns};
    p->grid.block = blocked ? s->block : l.columns;
    p->grid.blocks = (l.columns + p->grid.block - 1) / p->grid.block;
    p->grid.high = s->is_unsigned ? (four ? 15 : 255) : (four ? 7 : 127);
    p->grid.low = s->is_unsigned ? 0 : four ? -8 : -127;
    size_t scales = l.rows * p->grid.blocks;
    float *w = mlo_arena_calloc(arena, l.rows * l.columns + 1, sizeof *w);
    double *weigh =
        gram ? mlo_arena_calloc(arena, (size_t)(gram->groups * gram->dim) + 1, sizeof *weigh) : NULL;
    p->scales = mlo_arena_calloc(arena, scales + 1, sizeof *p->scales);
    p->zeros = s->is_unsigned ? mlo_arena_calloc(arena, scales + 1, sizeof *p->zeros) : NULL;
    p->q = mlo_arena_calloc(arena, l.rows * l.columns + 1, sizeof *p->q);
    if (!w || !p->scales || !p->q || (s->is_unsigned && !p->zeros) || (gram && !weigh))
        return mlo_error_nomem(err);
    p->grid.scales = p->scales;
    p->grid.zeros = p->zeros;
    const float *from = mlo_node_fixed(node, 1)->data;
    for (size_t r = 0; r < l.rows; r++)
        for (size_t c = 0; c < l.columns; c++)
            w[r * l.columns + c] = from[r * l.row_step + c * l.column_step];
    for (int64_t i = 0; gram && i < gram->groups * gram->dim; i++)
        weigh[i] = mlo_gram_at(gram, i / gram->dim, i % gram->dim, i % gram->dim);
    for (size_t r = 0; r < l.rows; r++)
        for (size_t b = 0; b < p->grid.blocks; b++) {
            size_t c = b * p->grid.block, count = MLO_MIN(p->grid.block, l.columns - c);
            size_t group = gram ? r / (l.rows / (size_t)gram->groups) : 0;
            block_scale(p, r * p->grid.blocks + b, w + r * l.columns + c,
                        weigh ? weigh + group * l.columns + c : NULL, count, s->search);
        }
    MLO_TRY(mlo_round_weights(&s->rounding, &p->grid, w, gram, p->q, err));
out:
    return status;
}

/* --- the pass ---------------------------------------------------------------------------------- */

/* Weights that are integer already, for a second user of the same ones. */
struct done {
    const struct mlo_value *source;
    int row_axis;
    struct mlo_value *dequantized;
};

static struct mlo_value *find_done(const struct done *done, int count, const struct mlo_value *source,
                                   int row_axis)
{
    for (int i = 0; i < count; i++)
        if (done[i].source == source && done[i].row_axis == row_axis)
            return done[i].dequantized;
    return NULL;
}

/* What the rounding that was asked for could not be. */
static void note_rounding(const struct settings *s, const struct mlo_node *node,
                          const struct mlo_stats *stats, struct mlo_pass_context *ctx)
{
    const struct mlo_gram *gram = mlo_stats_find_gram(stats, node);
    if (s->rounding.method == MLO_ROUND_NEAREST || (gram && gram->full && gram->rows > 0))
        return;
    if (gram && gram->rows > 0)
        mlo_pass_note(ctx, node->name, "rounded to the nearest: %lld inputs are too many for a whole matrix",
                      (long long)gram->dim);
    else
        mlo_pass_note(ctx, node->name, "rounded to the nearest: its input was not observed");
}

static enum mlo_status convert(const struct settings *s, struct mlo_node *node, struct mlo_arena *arena,
                               struct done *done, int *done_count, struct mlo_pass_context *ctx,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_packed packed;
    struct mlo_value *source = node->inputs[1];
    int row_axis = mlo_weight_layout_of(node).row_axis;
    struct mlo_value *shared = find_done(done, *done_count, source, row_axis);
    if (shared)
        return mlo_node_set_input(node, 1, shared) ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(pack(s, node, ctx->stats, arena, &packed, err));
    note_rounding(s, node, ctx->stats, ctx);
    const char *why = s->nbits && packed.blocked ? mlo_packed_nbits_obstacle(node) : NULL;
    if (s->nbits && packed.blocked && !why) {
        MLO_TRY(mlo_packed_nbits(node, &packed, err));
        goto out;
    }
    if (why)
        mlo_pass_note(ctx, node->name, "DequantizeLinear instead of MatMulNBits: %s", why);
    MLO_TRY(mlo_packed_dequantize(node, &packed, &shared, err));
    done[(*done_count)++] = (struct done){source, row_axis, shared};
out:
    return status;
}

enum mlo_status mlo_pass_quantize_weights(struct mlo_model *model, struct mlo_pass_context *ctx,
                                          struct mlo_error *err)
{
    enum mlo_status status;
    struct settings s;
    struct mlo_graph *graph = model->graph;
    struct mlo_arena *arena = mlo_arena_new(), *scratch = NULL;
    int done_count = 0, opset = 13;
    if (!arena)
        return mlo_error_nomem(err);
    MLO_TRY(read_settings(ctx->options, &s, err));
    MLO_TRY(mlo_pass_check_named(graph, s.choice.exclude, err));
    size_t slots = (size_t)graph->node_count + 1;
    struct mlo_node **chosen = mlo_arena_calloc(arena, slots, sizeof(struct mlo_node *));
    struct done *done = mlo_arena_calloc(arena, slots, sizeof *done);
    int count = 0;
    if (!chosen || !done) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        if (!node->op || !(node->op->flags & MLO_OP_WEIGHTED))
            continue;
        const char *why = obstacle(&s, node);
        if (why) {
            mlo_pass_note(ctx, node->name, "%s keeps float weights: %s", node->op_type, why);
            continue;
        }
        chosen[count++] = node;
        if (mlo_node_is(node, "Conv")
                ? s.conv_four_bits
                : (s.four_bits || s.block) && (!s.nbits || mlo_packed_nbits_obstacle(node)))
            opset = 21;
    }
    if (count == 0) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the model has no weights that can be quantized");
        mlo_error_hint(err,
                       "it needs MatMul, Gemm or Conv nodes with constant float32 weights, at least %lld "
                       "of them (the option min_weights)",
                       (long long)s.choice.min_weights);
        goto out;
    }
    MLO_TRY(mlo_pass_raise_opset_to(model, opset, ctx, err));
    for (int i = 0; i < count; i++) {
        mlo_arena_free(scratch);
        if (!(scratch = mlo_arena_new())) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(convert(&s, chosen[i], scratch, done, &done_count, ctx, err));
        ctx->changes++;
    }
    mlo_graph_remove_unused_values(graph);
out:
    mlo_arena_free(scratch);
    mlo_arena_free(arena);
    return status;
}

enum mlo_status mlo_quantize_weights_wanted(const struct mlo_model *model, const json_t *options,
                                            struct mlo_stats_wants *wants, struct mlo_error *err)
{
    struct settings s;
    int64_t groups, dim;
    enum mlo_status status = read_settings(options, &s, err);
    if (status != MLO_OK || s.rounding.method == MLO_ROUND_NEAREST)
        return status;
    for (int n = 0; n < model->graph->node_count; n++) {
        const struct mlo_node *node = model->graph->nodes[n];
        if (!node->op || !(node->op->flags & MLO_OP_WEIGHTED) || obstacle(&s, node) || !node->inputs[0] ||
            node->inputs[0]->constant || mlo_gram_shape(node, &groups, &dim))
            continue;
        struct mlo_stats_want want = {.name = node->inputs[0]->name, .gram = node, .full = true};
        if (!mlo_stats_wants_add(wants, &want))
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}
