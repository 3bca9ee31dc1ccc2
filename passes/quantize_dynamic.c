/* Dynamic quantization: weights become integers once, what they are multiplied by in every call, with a range
 * of its own (DynamicQuantizeLinear, then MatMulInteger or ConvInteger, and floats again behind the sums).
 * Needs no data. Affine integers: Jacob et al., 2018, arXiv:1712.05877, section 2.1, with s_x taken from the
 * values themselves; the nodes are those of ONNX and in the order that ONNX Runtime fuses. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/targets.h"
#include "passes/weight_only_impl.h"

static const char *const types[] = {"int8", "uint8", NULL};
/* Those of the targets that run the integer nodes as such. */
static const char *const targets[] = {"mlopt-cpu", "ort-x86-avx2", "ort-x86-vnni", NULL};

const struct mlo_option_spec mlo_quantize_dynamic_options[] = {
    {.name = "type",
     .type = MLO_OPT_STRING,
     .fallback = "int8",
     .choices = types,
     .description = "of the weights of MatMul and Gemm; those of Conv are uint8, which runtimes take"},
    {.name = "per_channel",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "One weight scale per output channel, else one per tensor"},
    {.name = "target",
     .type = MLO_OPT_STRING,
     .fallback = "mlopt-cpu",
     .choices = targets,
     .description = "The runtime that it is made for"},
    {.name = "reduce_range",
     .type = MLO_OPT_SWITCH,
     .fallback = "auto",
     .description =
         "Weights in 7 bits, for CPUs whose sums of two products saturate at 16 bits; auto: as the "
         "target wants"},
    {.name = "convolutions",
     .type = MLO_OPT_BOOL,
     .fallback = "false",
     .description = "Conv too; finding the range of an image costs more than most runtimes win"},
    MLO_OPTION_MIN_WEIGHTS,
    MLO_OPTION_EXCLUDE,
    {NULL},
};

struct settings {
    enum mlo_dtype type;
    bool per_channel;
    int most; /* the largest |q - zero point| of a weight */
    struct mlo_weights_choice choice;
};

/* --- which nodes ------------------------------------------------------------------------------- */

static const char *bias_obstacle(const struct mlo_node *node)
{
    const struct mlo_value *bias = mlo_node_input(node, 2);
    if (mlo_node_is(node, "MatMul") || !bias)
        return NULL;
    if (bias->type.dtype != MLO_FLOAT32)
        return "its bias is not float32";
    if (mlo_node_is(node, "Conv") && !mlo_node_fixed(node, 2))
        return "its bias is not constant";
    if (mlo_node_attr_f(node, "beta", 1.0f) != 1.0f && !mlo_node_fixed(node, 2))
        return "its bias is not constant, and its beta is not 1";
    return NULL;
}

/* Why a weighted node stays in float; NULL when it becomes an integer one. */
static const char *obstacle(const struct settings *s, const struct mlo_node *node)
{
    bool conv = mlo_node_is(node, "Conv");
    const struct mlo_value *x = mlo_node_input(node, 0);
    if (!conv && !mlo_node_is(node, "Gemm") && !mlo_node_is(node, "MatMul"))
        return "there is no dynamic form of this op";
    const char *why = mlo_weights_obstacle(&s->choice, node);
    if (why)
        return why;
    if (!x || x->constant)
        return "its input is constant";
    if (x->type.dtype != MLO_FLOAT32)
        return "it does not compute in float32";
    if (!conv && x->type.rank == 1)
        return "it is no product of matrices";
    if (mlo_node_is(node, "Gemm") && mlo_node_attr_i(node, "transA", 0) != 0)
        return "it transposes its input";
    return bias_obstacle(node);
}

/* --- weights ----------------------------------------------------------------------------------- */

/* The integer weights of one node: [inputs, outputs] of a product, as they were of a Conv. */
struct weights {
    struct mlo_tensor q, scales, zero; /* zero: of uint8 alone */
};

static void clear(struct weights *w)
{
    mlo_tensor_clear(&w->q);
    mlo_tensor_clear(&w->scales);
    mlo_tensor_clear(&w->zero);
}

/* s = max |w| / most over a channel, or over all; where all are 0 any scale does. */
static void find_scales(const float *w, const struct mlo_weight_layout *l, float alpha, int most,
                        bool per_channel, float *scales)
{
    float all = 0;
    for (size_t r = 0; r < l->rows; r++) {
        float largest = 0;
        for (size_t c = 0; c < l->columns; c++)
            largest = fmaxf(largest, fabsf(w[r * l->row_step + c * l->column_step] * alpha));
        all = fmaxf(all, largest);
        if (per_channel)
            scales[r] = largest;
    }
    for (size_t r = 0; r < (per_channel ? l->rows : 1); r++) {
        float largest = per_channel && scales[r] > 0 ? scales[r] : all;
        scales[r] = fmaxf((largest > 0 ? largest : 1.0f) / (float)most, 0x1p-100f);
    }
}

static enum mlo_status pack(const struct settings *s, const struct mlo_node *node, struct weights *out,
                            struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    struct mlo_weight_layout l = mlo_weight_layout_of(node);
    bool conv = mlo_node_is(node, "Conv");
    enum mlo_dtype dtype = conv ? MLO_UINT8 : s->type;
    int zero = dtype == MLO_UINT8 ? 128 : 0, dims_of_scales = s->per_channel ? 1 : 0;
    float alpha = mlo_node_is(node, "Gemm") ? mlo_node_attr_f(node, "alpha", 1.0f) : 1.0f;
    int64_t matrix[] = {(int64_t)l.columns, (int64_t)l.rows}, list[MLO_MAX_RANK];
    for (int d = 0; d < MLO_MAX_RANK; d++)
        list[d] = 1;
    list[0] = (int64_t)l.rows;
    if (conv && s->per_channel) /* along the channels of [batch, channels, …] */
        dims_of_scales = w->rank - 1;
    MLO_TRY(mlo_tensor_init(&out->q, dtype, w->rank, conv ? w->dims : matrix, err));
    MLO_TRY(mlo_tensor_init(&out->scales, MLO_FLOAT32, dims_of_scales, list, err));
    if (zero) {
        MLO_TRY(mlo_tensor_init(&out->zero, dtype, 0, NULL, err));
        *(uint8_t *)out->zero.data = (uint8_t)zero;
    }
    float *scales = out->scales.data;
    const float *from = w->data;
    uint8_t *q = out->q.data; /* both types store the low 8 bits */
    find_scales(from, &l, alpha, s->most, s->per_channel, scales);
    for (size_t r = 0; r < l.rows; r++)
        for (size_t c = 0; c < l.columns; c++) {
            float v =
                rintf(from[r * l.row_step + c * l.column_step] * alpha / scales[s->per_channel ? r : 0]);
            v = fminf(fmaxf(v, (float)-s->most), (float)s->most) + (float)zero;
            q[conv ? r * l.columns + c : c * l.rows + r] = (uint8_t)(int)v;
        }
out:
    return status;
}

/* --- rewriting --------------------------------------------------------------------------------- */

/* What a value is in integers; made once for all that read it. */
struct dynamic {
    const struct mlo_value *source;
    struct mlo_value *q, *scale, *zero;
};

/* Weights that are integers already, for a second user of the same ones. */
struct done {
    const struct mlo_value *source;
    int row_axis;
    bool conv;
    struct mlo_value *q, *scales, *zero; /* zero: of uint8 alone */
};

/* What was made so far. */
struct made {
    struct dynamic *inputs;
    struct done *weights;
    int input_count, weight_count;
};

/* One node while it is replaced. */
struct site {
    struct mlo_graph *graph;
    struct mlo_node *node, *before;
};

/* "<base>_<suffix>" */
static struct mlo_value *new_value(struct site *site, const char *base, const char *suffix,
                                   enum mlo_dtype dtype)
{
    char text[256];
    struct mlo_type type = {.dtype = dtype, .rank = -1};
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(base, 230), base, suffix);
    return mlo_graph_add_value(site->graph, text, &type);
}

static struct mlo_value *new_constant(struct site *site, const char *base, const char *suffix,
                                      struct mlo_tensor *tensor)
{
    char text[256];
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(base, 230), base, suffix);
    return mlo_graph_add_constant_take(site->graph, text, tensor);
}

static struct mlo_node *add(struct site *site, const char *op, const char *base, const char *suffix,
                            struct mlo_value *const *in, int count, struct mlo_value *const *out,
                            int out_count)
{
    char text[256];
    for (int i = 0; i < count; i++)
        if (!in[i])
            return NULL;
    for (int i = 0; i < out_count; i++)
        if (!out[i])
            return NULL;
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(base, 230), base, suffix);
    return mlo_graph_add_node(site->graph, site->before, "", op, text, in, count, out, out_count);
}

static bool quantize_input(struct site *site, struct mlo_value *x, struct made *made, struct dynamic *out)
{
    for (int i = 0; i < made->input_count; i++)
        if (made->inputs[i].source == x) {
            *out = made->inputs[i];
            return true;
        }
    *out = (struct dynamic){x, new_value(site, x->name, "quantized", MLO_UINT8),
                            new_value(site, x->name, "scale", MLO_FLOAT32),
                            new_value(site, x->name, "zero_point", MLO_UINT8)};
    struct mlo_value *three[] = {out->q, out->scale, out->zero};
    if (!add(site, "DynamicQuantizeLinear", x->name, "DynamicQuantizeLinear", &x, 1, three, 3))
        return false;
    made->inputs[made->input_count++] = *out;
    return true;
}

static enum mlo_status quantize_weights(const struct settings *s, struct site *site, struct made *made,
                                        struct done *out, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_node *node = site->node;
    struct weights w = {0};
    struct mlo_value *source = node->inputs[1];
    int row_axis = mlo_weight_layout_of(node).row_axis;
    bool conv = mlo_node_is(node, "Conv");
    /* alpha is part of the weights: with another one they are other weights */
    bool shared = conv || mlo_node_attr_f(node, "alpha", 1.0f) == 1.0f;
    for (int i = 0; shared && i < made->weight_count; i++) {
        *out = made->weights[i];
        if (out->source == source && out->row_axis == row_axis && out->conv == conv)
            return MLO_OK;
    }
    MLO_TRY(pack(s, node, &w, err));
    bool zero = w.zero.data != NULL;
    *out = (struct done){source,
                         row_axis,
                         conv,
                         new_constant(site, source->name, "quantized", &w.q),
                         new_constant(site, source->name, "scale", &w.scales),
                         zero ? new_constant(site, source->name, "zero_point", &w.zero) : NULL};
    if (!out->q || !out->scales || (zero && !out->zero))
        status = mlo_error_nomem(err);
    else if (shared)
        made->weights[made->weight_count++] = *out;
out:
    clear(&w);
    return status;
}

/* What is added behind: a Gemm's bias times beta, a Conv's along the channels. *out NULL: nothing. */
static enum mlo_status bias_of(struct site *site, struct mlo_value **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_node *node = site->node;
    struct mlo_tensor t = {0};
    float beta = mlo_node_is(node, "Gemm") ? mlo_node_attr_f(node, "beta", 1.0f) : 1.0f;
    bool conv = mlo_node_is(node, "Conv");
    *out = mlo_node_is(node, "MatMul") ? NULL : mlo_node_input(node, 2);
    if (!*out || (!conv && beta == 1.0f))
        return MLO_OK;
    MLO_TRY(mlo_tensor_copy((*out)->constant, &t, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        ((float *)t.data)[i] *= beta;
    for (int d = 1; conv && d < mlo_node_fixed(node, 1)->rank - 1; d++)
        t.dims[t.rank++] = 1;
    if (!(*out = new_constant(site, (*out)->name, "added", &t)))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&t);
    return status;
}

static enum mlo_status convert(const struct settings *s, struct mlo_node *node, struct made *so_far,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct site site = {node->graph, node, node};
    struct done w;
    struct dynamic x;
    struct mlo_value *bias, *y = node->outputs[0];
    const char *name = node->name;
    bool conv = mlo_node_is(node, "Conv");
    MLO_TRY(quantize_weights(s, &site, so_far, &w, err));
    MLO_TRY(bias_of(&site, &bias, err));
    if (!quantize_input(&site, node->inputs[0], so_far, &x)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    site.before = node->index + 1 < site.graph->node_count ? site.graph->nodes[node->index + 1] : NULL;
    mlo_graph_remove_node(node);
    struct mlo_value *product[] = {x.q, w.q, x.zero, w.zero}, *factors[] = {x.scale, w.scales};
    struct mlo_value *sums = new_value(&site, y->name, "sums", MLO_INT32),
                     *floats = new_value(&site, y->name, "float_sums", MLO_FLOAT32),
                     *scale = new_value(&site, y->name, "scale", MLO_FLOAT32),
                     *scaled = bias ? new_value(&site, y->name, "scaled", MLO_FLOAT32) : y;
    struct mlo_node *made = add(&site, conv ? "ConvInteger" : "MatMulInteger", name, "quantized", product,
                                w.zero ? 4 : 3, &sums, 1);
    struct mlo_node *cast = add(&site, "Cast", name, "cast", &sums, 1, &floats, 1);
    if (!made || !cast || (conv && !mlo_pass_copy_attrs(node, made)) ||
        !mlo_node_set_i(cast, "to", MLO_FLOAT32) ||
        !add(&site, "Mul", name, "scales", factors, 2, &scale, 1) ||
        !add(&site, "Mul", name, "scale", (struct mlo_value *[]){floats, scale}, 2, &scaled, 1) ||
        (bias && !add(&site, "Add", name, "bias", (struct mlo_value *[]){scaled, bias}, 2, &y, 1)))
        status = mlo_error_nomem(err);
out:
    return status;
}

/* --- the pass ---------------------------------------------------------------------------------- */

/* Nodes that can be converted, in order; notes why others cannot. */
static enum mlo_status choose(const struct settings *s, struct mlo_graph *graph, struct mlo_node **chosen,
                              int *count, struct mlo_pass_context *ctx, struct mlo_error *err)
{
    const struct mlo_node *left = NULL;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        if (!node->op || !(node->op->flags & MLO_OP_WEIGHTED))
            continue;
        const char *why = obstacle(s, node);
        if (!why) {
            chosen[(*count)++] = node;
            continue;
        }
        mlo_pass_note(ctx, node->name, "%s stays in float: %s", node->op_type, why);
        left = left ? left : node;
    }
    if (*count)
        return MLO_OK;
    mlo_error_set(err, MLO_EUNSUPPORTED, "the model has no node that can be quantized dynamically");
    if (left)
        mlo_error_hint(err, "'%s' (%s) stays in float: %s", left->name, left->op_type, obstacle(s, left));
    else
        mlo_error_hint(err, "it has no MatMul, Gemm or Conv at all");
    return MLO_EUNSUPPORTED;
}

enum mlo_status mlo_pass_quantize_dynamic(struct mlo_model *model, struct mlo_pass_context *ctx,
                                          struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_graph *graph = model->graph;
    const json_t *options = ctx->options;
    const struct mlo_target *target = mlo_target_find(mlo_json_str(options, "target", targets[0]));
    const struct settings s = {
        .type = strcmp(mlo_json_str(options, "type", "int8"), "uint8") == 0 ? MLO_UINT8 : MLO_INT8,
        .per_channel = mlo_json_bool(options, "per_channel", true),
        .most = mlo_json_bool(options, "reduce_range", target->reduce_range) ? 64 : 127,
        .choice = mlo_weights_choice_read(options),
    };
    int count = 0;
    struct mlo_arena *arena = mlo_arena_new();
    size_t slots = (size_t)graph->node_count + 1;
    struct mlo_node **chosen = arena ? mlo_arena_calloc(arena, slots, sizeof(struct mlo_node *)) : NULL;
    struct made made = {0};
    if (chosen) {
        made.inputs = mlo_arena_calloc(arena, slots, sizeof *made.inputs);
        made.weights = mlo_arena_calloc(arena, slots, sizeof *made.weights);
    }
    if (!made.inputs || !made.weights) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_pass_refuse_quantized(graph, err));
    MLO_TRY(mlo_pass_check_named(graph, s.choice.exclude, err));
    MLO_TRY(choose(&s, graph, chosen, &count, ctx, err));
    MLO_TRY(mlo_pass_raise_opset_to(model, 11, ctx, err));
    for (int i = 0; i < count; i++) {
        MLO_TRY(convert(&s, chosen[i], &made, err));
        ctx->changes++;
    }
    mlo_pass_note(
        ctx, graph->name,
        "ranges are taken from all samples of a call: in a batch, what a sample gives depends on the "
        "others");
    mlo_graph_remove_unused_values(graph);
out:
    mlo_arena_free(arena);
    return status;
}
