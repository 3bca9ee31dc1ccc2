/* The nodes of an imported model that multiply by integer weights: what stands behind them, biases, and which
 * of them run in integers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/import_qat_impl.h"
#include "passes/quantize_impl.h"

/* A node with a constant integer weight operand behind DequantizeLinear. */
struct weighted {
    struct mlo_node *node, *dq_x, *dq_w; /* dq_x: NULL where its input is not quantized */
    const struct mlo_tensor *w;          /* integers */
    struct mlo_qat_params x, p;          /* of the input and of the weights */
    int axis;                            /* of the weights' output channels */
    int64_t channels;
    const char *why; /* why it does not run in integers; NULL: it does */
};

static struct mlo_node *dequantized_by(const struct mlo_node *node, int i, struct mlo_qat_params *params)
{
    struct mlo_node *dq = mlo_node_producer(node, i);
    return dq && mlo_node_is(dq, "DequantizeLinear") && mlo_qat_params(dq, params) ? dq : NULL;
}

/* Reads what there is; false for a node that multiplies nothing. */
static bool read_weighted(struct mlo_node *node, struct weighted *out)
{
    *out = (struct weighted){.node = node};
    if (!node->op || !(node->op->flags & MLO_OP_WEIGHTED) || *node->domain || node->input_count < 2)
        return false;
    out->dq_x = dequantized_by(node, 0, &out->x);
    out->dq_w = dequantized_by(node, 1, &out->p);
    out->w = out->dq_w ? mlo_node_fixed(out->dq_w, 0) : NULL;
    if (out->w && out->w->rank > 0) {
        out->axis = mlo_quantize_channel_axis(node, out->w->rank);
        out->channels = out->axis < out->w->rank ? out->w->dims[out->axis] : 0;
    }
    bool both = out->dq_x && out->dq_w;
    if (!out->dq_x)
        out->why = "its input is not quantized";
    else if (out->x.axis >= 0 || out->x.block)
        out->why = "its input has a list of scales";
    else if (!out->dq_w)
        out->why = mlo_node_fixed(node, 1) ? "its weights have no fake quantization"
                                           : "its second operand is not quantized";
    else if (both && out->w && (out->p.block || (out->p.axis >= 0 && out->p.axis != out->axis)))
        out->why = "the scales of its weights do not follow its output channels";
    return true;
}

static float weight_scale(const struct weighted *w, int64_t channel)
{
    return ((const float *)w->p.scale->data)[w->p.count > 1 ? channel : 0];
}

/* An initializer "<name>_<suffix>"; takes over the tensor. */
static struct mlo_value *constant(struct mlo_graph *graph, const char *name, const char *suffix,
                                  struct mlo_tensor *t)
{
    char text[256];
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(name, 230), name, suffix);
    return mlo_graph_add_constant_take(graph, text, t);
}

/* --- what stands behind a Conv ----------------------------------------------------------------------------
 */

/* y = k[c] * x + d[c]. */
struct affine {
    double *k, *d;
    int64_t channels;
};

/* The constant of input i as one number per channel of an activation (dim 1): element c, or the only one. */
static const float *per_channel(const struct mlo_node *node, int i, int64_t channels, size_t *step)
{
    const struct mlo_tensor *t = mlo_node_fixed(node, i);
    int rank = node->outputs[0]->type.rank;
    if (!t || t->dtype != MLO_FLOAT32 || t->rank > rank || rank < 2)
        return NULL;
    int64_t count = (int64_t)mlo_tensor_count(t);
    *step = count > 1;
    if (count != 1 && (count != channels || t->rank < rank - 1 || t->dims[t->rank - (rank - 1)] != channels))
        return NULL;
    return t->data;
}

static bool add_batchnorm(const struct mlo_node *node, struct affine *a)
{
    const struct mlo_tensor *t[5] = {0};
    if (mlo_node_attr_i(node, "training_mode", 0) || !mlo_node_only_first_output(node))
        return false;
    for (int i = 1; i < 5; i++) {
        t[i] = mlo_node_fixed(node, i);
        if (!t[i] || t[i]->dtype != MLO_FLOAT32 || (int64_t)mlo_tensor_count(t[i]) != a->channels)
            return false;
    }
    const float *gain = t[1]->data, *offset = t[2]->data, *mean = t[3]->data, *variance = t[4]->data;
    double epsilon = (double)mlo_node_attr_f(node, "epsilon", 1e-5f);
    for (int64_t c = 0; c < a->channels; c++) {
        double factor = (double)gain[c] / sqrt((double)variance[c] + epsilon);
        a->k[c] *= factor;
        a->d[c] = (a->d[c] - (double)mean[c]) * factor + (double)offset[c];
    }
    return true;
}

/* Adds what a node does to its input `x` to `a`; false when that is not affine per channel. */
static bool add_node(const struct mlo_node *node, const struct mlo_value *x, struct affine *a)
{
    size_t step = 0;
    if (mlo_node_is(node, "BatchNormalization"))
        return node->inputs[0] == x && add_batchnorm(node, a);
    bool mul = mlo_node_is(node, "Mul"), divides = mlo_node_is(node, "Div"), add = mlo_node_is(node, "Add");
    if (!(mul || divides || add || mlo_node_is(node, "Sub")) || node->input_count != 2)
        return false;
    bool first = node->inputs[0] == x;
    const float *n = first || mul || add ? per_channel(node, first, a->channels, &step) : NULL;
    if (!n)
        return false;
    for (int64_t c = 0; c < a->channels; c++) {
        double v = (double)n[(size_t)c * step];
        a->k[c] = mul ? a->k[c] * v : divides ? a->k[c] / v : a->k[c];
        a->d[c] = mul ? a->d[c] * v : divides ? a->d[c] / v : add ? a->d[c] + v : a->d[c] - v;
    }
    return true;
}

/* The last node of the chain behind `w`; NULL: there is none. */
static struct mlo_node *chain_behind(const struct weighted *w, struct affine *a)
{
    struct mlo_node *last = NULL, *at = w->node;
    for (int64_t c = 0; c < a->channels; c++) {
        a->k[c] = 1;
        a->d[c] = 0;
    }
    while ((at = mlo_value_sole_user(at->outputs[0])) != NULL) {
        const struct mlo_value *x = last ? last->outputs[0] : w->node->outputs[0];
        if (!add_node(at, x, a))
            break;
        last = at;
    }
    return last;
}

/* Whether the factors can go into the scales: integers keep their size, so a negative one needs their
 * negative.
 */
static const char *fold_obstacle(const struct weighted *w, const struct affine *a, const float *bias,
                                 size_t step)
{
    int64_t least, most;
    bool negative = false;
    for (int64_t c = 0; c < a->channels; c++) {
        double scale = (double)weight_scale(w, c) * fabs(a->k[c]);
        double shift = (bias ? (double)bias[(size_t)c * step] * a->k[c] : 0) + a->d[c];
        if (!isfinite(a->k[c]) || !isfinite(shift) || fabs(shift) > 3e38 || scale > 3e38 ||
            (a->k[c] != 0 && scale < 0x1p-100))
            return "its factors or scales are beyond float32";
        negative = negative || a->k[c] <= 0;
    }
    for (size_t i = 0; negative && i < w->p.count; i++)
        if (mlo_qat_zero(&w->p, i) != 0)
            return "a factor is not positive, and the weights have a zero point";
    mlo_qat_limits(w->p.dtype, &least, &most);
    for (size_t e = 0; negative && e < mlo_tensor_count(w->w); e++)
        if (mlo_tensor_get_i64(w->w, e) < -most)
            return "a factor is not positive, and the least integer has no negative";
    return NULL;
}

/* Integers, scales and zero points of the weights with the factors in them, behind a DequantizeLinear. */
static enum mlo_status scale_weights(const struct weighted *w, const struct affine *a, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor q = {0}, scales = {0}, zeros = {0};
    const char *name = w->dq_w->inputs[0]->name;
    size_t inner = mlo_tensor_count(w->w) / (size_t)a->channels; /* the channels are dim 0 */
    MLO_TRY(mlo_tensor_copy(w->w, &q, err));
    MLO_TRY(mlo_tensor_init(&scales, MLO_FLOAT32, 1, &a->channels, err));
    MLO_TRY(mlo_tensor_init(&zeros, w->p.dtype, 1, &a->channels, err));
    for (int64_t c = 0; c < a->channels; c++) {
        float scale = weight_scale(w, c);
        ((float *)scales.data)[c] = a->k[c] != 0 ? (float)((double)scale * fabs(a->k[c])) : scale;
        mlo_tensor_set_f64(&zeros, (size_t)c, (double)mlo_qat_zero(&w->p, w->p.count > 1 ? (size_t)c : 0));
        double sign = a->k[c] > 0 ? 1 : a->k[c] < 0 ? -1 : 0;
        for (size_t i = 0; sign != 1 && i < inner; i++) {
            size_t e = (size_t)c * inner + i;
            mlo_tensor_set_f64(&q, e, sign * (double)mlo_tensor_get_i64(w->w, e));
        }
    }
    struct mlo_graph *graph = w->node->graph;
    struct mlo_value *qv = constant(graph, name, "scaled", &q), *sv = constant(graph, name, "scale", &scales),
                     *zv = constant(graph, name, "zero_point", &zeros);
    struct mlo_value *y = qv && sv && zv ? mlo_quantize_add_dequantize(w->node, name, qv, sv, zv, 0) : NULL;
    if (!y || !mlo_node_set_input(w->node, 1, y))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&q);
    mlo_tensor_clear(&scales);
    mlo_tensor_clear(&zeros);
    return status;
}

static enum mlo_status shift_bias(const struct weighted *w, const struct affine *a, const float *bias,
                                  size_t step, struct mlo_error *err)
{
    char name[256];
    struct mlo_tensor b = {0};
    enum mlo_status status;
    MLO_TRY(mlo_tensor_init(&b, MLO_FLOAT32, 1, &a->channels, err));
    for (int64_t c = 0; c < a->channels; c++)
        ((float *)b.data)[c] = (float)((bias ? (double)bias[(size_t)c * step] * a->k[c] : 0) + a->d[c]);
    snprintf(name, sizeof name, "%.*s_bias", mlo_pass_cut(w->node->name, 240), w->node->name);
    MLO_TRY(mlo_pass_set_const_take(w->node, 2, name, &b, err));
out:
    mlo_tensor_clear(&b);
    return status;
}

enum mlo_status mlo_qat_fold_affine(struct mlo_graph *graph, struct mlo_arena *arena,
                                    struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        struct weighted w;
        bool done;
        if (!mlo_node_is(node, "Conv") || !read_weighted(node, &w) || !w.w || w.channels < 1 || w.p.block ||
            (w.p.axis >= 0 && w.p.axis != 0) || (mlo_node_input(node, 2) && !mlo_node_fixed(node, 2)))
            continue;
        struct affine a = {.channels = w.channels};
        a.k = mlo_arena_calloc(arena, (size_t)w.channels, sizeof *a.k);
        a.d = mlo_arena_calloc(arena, (size_t)w.channels, sizeof *a.d);
        if (!a.k || !a.d)
            return mlo_error_nomem(err);
        struct mlo_node *last = chain_behind(&w, &a);
        if (!last)
            continue;
        const struct mlo_tensor *t = mlo_node_fixed(node, 2);
        const float *bias = t ? t->data : NULL;
        size_t step = t && mlo_tensor_count(t) > 1;
        const char *why = fold_obstacle(&w, &a, bias, step);
        if (why) {
            mlo_pass_note(ctx, last->name, "%s stays behind the Conv: %s", last->op_type, why);
            continue;
        }
        MLO_TRY(scale_weights(&w, &a, err));
        MLO_TRY(shift_bias(&w, &a, bias, step, err));
        MLO_TRY(mlo_pass_bypass(last, node->outputs[0], &done, err));
        ctx->changes += done;
    }
out:
    return status;
}

/* --- biases -----------------------------------------------------------------------------------------------
 */

/* A bias that is integer already has the scale of the products. */
static void check_integer_bias(const struct weighted *w, const struct mlo_qat_params *bias,
                               struct mlo_pass_context *ctx)
{
    for (size_t i = 0; i < MLO_MAX(bias->count, w->p.count); i++) {
        double wanted = (double)*(const float *)w->x.scale->data * (double)weight_scale(w, (int64_t)i);
        double scale = mlo_tensor_get_f64(bias->scale, bias->count > 1 ? i : 0);
        if (bias->dtype == MLO_INT32 && fabs(scale - wanted) <= 1e-6 * wanted)
            continue;
        mlo_pass_note(ctx, w->node->name,
                      "its bias is %s with scale %g, and the products have %g: it is added in float",
                      mlo_dtype_name(bias->dtype), scale, wanted);
        return;
    }
}

static enum mlo_status write_bias(const struct weighted *w, const struct mlo_tensor *b, double beta,
                                  bool *fits, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor q = {0}, scales = {0};
    char name[256];
    int64_t count = w->channels, dim = (int64_t)w->p.count;
    size_t step = mlo_tensor_count(b) > 1;
    snprintf(name, sizeof name, "%.*s", mlo_pass_cut(w->node->inputs[2]->name, 230),
             w->node->inputs[2]->name);
    *fits = true;
    MLO_TRY(mlo_tensor_init(&q, MLO_INT32, 1, &count, err));
    MLO_TRY(mlo_tensor_init(&scales, MLO_FLOAT32, w->p.scale->rank, &dim, err));
    float *s = scales.data, input = *(const float *)w->x.scale->data;
    for (size_t i = 0; i < w->p.count; i++) {
        s[i] = input * weight_scale(w, (int64_t)i);
        *fits = *fits && s[i] > 0 && isfinite(s[i]);
    }
    for (int64_t c = 0; *fits && c < count; c++) {
        double v = rint((double)((const float *)b->data)[(size_t)c * step] * beta /
                        (double)s[w->p.count > 1 ? c : 0]);
        *fits = fabs(v) <= 0x1p30; /* the products are added to it in int32 */
        ((int32_t *)q.data)[c] = *fits ? (int32_t)v : 0;
    }
    if (!*fits)
        goto out;
    struct mlo_value *qv = constant(w->node->graph, name, "quantized", &q),
                     *sv = constant(w->node->graph, name, "scale", &scales);
    struct mlo_value *y = qv && sv ? mlo_quantize_add_dequantize(w->node, name, qv, sv, NULL, 0) : NULL;
    if (!y || !mlo_node_set_input(w->node, 2, y) ||
        (mlo_node_attr(w->node, "beta") && !mlo_node_set_f(w->node, "beta", 1.0f)))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&q);
    mlo_tensor_clear(&scales);
    return status;
}

/* Why a constant bias cannot be int32; NULL: it can. */
static const char *bias_obstacle(const struct weighted *w, const struct mlo_tensor *b)
{
    if (!b)
        return "it is not constant";
    if (b->dtype != MLO_FLOAT32)
        return "it is not float32";
    int64_t count = (int64_t)mlo_tensor_count(b);
    if (count != 1 && (count != w->channels || b->dims[b->rank - 1] != w->channels))
        return "it is not one number per output channel";
    if (mlo_node_is(w->node, "Gemm") && mlo_node_attr_f(w->node, "alpha", 1) != 1.0f)
        return "alpha scales the products";
    if (mlo_node_is(w->node, "ConvTranspose") && mlo_node_attr_i(w->node, "group", 1) != 1)
        return "the Conv is in groups";
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(((const float *)b->data)[i]))
            return "it holds NaN or infinity";
    return NULL;
}

enum mlo_status mlo_qat_biases(struct mlo_graph *graph, struct mlo_pass_context *ctx, struct mlo_error *err)
{
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        struct weighted w;
        struct mlo_qat_params params;
        if (!read_weighted(node, &w) || w.why || !w.w || mlo_node_is(node, "MatMul") ||
            !mlo_node_input(node, 2))
            continue;
        if (dequantized_by(node, 2, &params)) {
            check_integer_bias(&w, &params, ctx);
            continue;
        }
        const struct mlo_tensor *b = mlo_node_fixed(node, 2);
        const char *why = bias_obstacle(&w, b);
        double beta = mlo_node_is(node, "Gemm") ? (double)mlo_node_attr_f(node, "beta", 1.0f) : 1;
        bool fits = true;
        enum mlo_status status = why ? MLO_OK : write_bias(&w, b, beta, &fits, err);
        if (status != MLO_OK)
            return status;
        if (why || !fits)
            mlo_pass_note(ctx, node->name, "its bias stays float: %s",
                          why ? why : "in steps of its products it is beyond int32");
        else
            ctx->changes++;
        n = node->index; /* nodes were put before it */
    }
    return MLO_OK;
}

/* --- coverage ---------------------------------------------------------------------------------------------
 */

/* Whether a QuantizeLinear is all that reads the output, behind an activation that it may fuse with. */
static bool ends_in_q(const struct mlo_node *node)
{
    const struct mlo_node *user = mlo_value_sole_user(node->outputs[0]);
    if (user && (mlo_node_is(user, "Relu") || mlo_node_is(user, "Clip")))
        user = mlo_value_sole_user(user->outputs[0]);
    return user && mlo_node_is(user, "QuantizeLinear");
}

static const char *target_obstacle(const struct weighted *w, const struct mlo_target *target)
{
    enum mlo_target_rule rule = mlo_target_rule(target, w->node);
    if (rule == MLO_RULE_FLOAT)
        return "the target has no integer form of this op";
    if (rule == MLO_RULE_WEIGHTED_OUT && !ends_in_q(w->node))
        return "the target wants its output quantized, and it is not";
    if (rule != MLO_RULE_PRODUCT && !w->w)
        return "the target takes constant weights only";
    return NULL;
}

/* Products of two 8-bit numbers are added in pairs within 16 bits there. */
static bool saturates(const struct weighted *w, const struct mlo_target *target)
{
    int64_t largest = 0;
    if (!target->reduce_range || !w->w || w->x.dtype != MLO_UINT8 || w->p.dtype != MLO_INT8)
        return false;
    for (size_t e = 0; e < mlo_tensor_count(w->w); e++) {
        int64_t v = mlo_tensor_get_i64(w->w, e);
        largest = MLO_MAX(largest, v < 0 ? -v : v);
    }
    return largest > 64;
}

void mlo_qat_note_coverage(const struct mlo_graph *graph, const struct mlo_target *target,
                           struct mlo_pass_context *ctx)
{
    int all = 0, integer = 0;
    for (int n = 0; n < graph->node_count; n++) {
        struct weighted w;
        if (!read_weighted(graph->nodes[n], &w))
            continue;
        const char *why = w.why ? w.why : target ? target_obstacle(&w, target) : NULL;
        all++;
        integer += !why;
        if (why)
            mlo_pass_note(ctx, w.node->name, "%s computes in float: %s", w.node->op_type, why);
        else if (target && saturates(&w, target))
            mlo_pass_note(ctx, w.node->name,
                          "on %s, weights beyond 64 saturate sums of two products at 16 bits where the input "
                          "takes all of uint8: accuracy measured elsewhere does not hold there",
                          target->name);
    }
    mlo_pass_note(ctx, "", "%d of %d nodes that multiply run in integers", integer, all);
}
