/* The pairs of an imported model: checks, integer weights, duplicates, Clip between the two, types. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/import_qat_impl.h"

static bool is_q(const struct mlo_node *node)
{
    return mlo_node_is(node, "QuantizeLinear");
}

static bool is_dq(const struct mlo_node *node)
{
    return mlo_node_is(node, "DequantizeLinear");
}

/* --- checks -----------------------------------------------------------------------------------------------
 */

static enum mlo_status bad(const struct mlo_node *node, struct mlo_error *err, enum mlo_status status,
                           const char *hint)
{
    mlo_error_where(err, "node '%s' (%s of '%s')", node->name, node->op_type, node->inputs[0]->name);
    if (hint)
        mlo_error_hint(err, "%s", hint);
    return status;
}

/* Input i is there and no constant. */
static bool is_open(const struct mlo_node *node, int i)
{
    return mlo_node_input(node, i) && !mlo_node_fixed(node, i);
}

static enum mlo_status check_params(const struct mlo_node *node, struct mlo_error *err)
{
    struct mlo_qat_params p;
    if (!mlo_qat_params(node, &p)) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "its %s is not constant",
                      is_open(node, 1) ? "scale" : "zero point");
        return bad(node, err, MLO_EUNSUPPORTED,
                   "freeze the observers before the export, so that their parameters are constants");
    }
    if (p.scale->dtype != MLO_FLOAT32) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "its scale is %s, not float32", mlo_dtype_name(p.scale->dtype));
        return bad(node, err, MLO_EUNSUPPORTED, "export the model in float32");
    }
    for (size_t i = 0; i < p.count; i++) {
        double scale = mlo_tensor_get_f64(p.scale, i);
        if (scale > 0 && scale <= (double)3.4028234663852886e38f)
            continue;
        mlo_error_set(err, MLO_EINVAL, "scale %zu of %zu is %g: a scale is finite and above 0", i, p.count,
                      scale);
        return bad(node, err, MLO_EINVAL,
                   "an observer that saw no data, or only zeros, leaves such a scale: run data through the "
                   "model before the export");
    }
    const struct mlo_dtype_info *info = mlo_dtype_info(p.dtype);
    bool bias = is_dq(node) && p.dtype == MLO_INT32;
    if (!info || !info->is_integer || (info->bits > 16 && !bias)) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "its integers would be %s", mlo_dtype_name(p.dtype));
        return bad(node, err, MLO_EUNSUPPORTED, "zero points of 4, 8 or 16 bits are read");
    }
    for (size_t i = 0; bias && i < p.count; i++)
        if (mlo_qat_zero(&p, i) != 0) {
            mlo_error_set(err, MLO_EINVAL, "zero point %zu of an int32 tensor is %lld, not 0", i,
                          (long long)mlo_qat_zero(&p, i));
            return bad(node, err, MLO_EINVAL, NULL);
        }
    return MLO_OK;
}

/* What may read integers: it ends in a DequantizeLinear, or moves them to one. */
static bool carries(const struct mlo_use *use)
{
    const struct mlo_node *node = use->node;
    if (use->index != 0)
        return false;
    return is_dq(node) || mlo_node_is(node, "Clip") || mlo_node_is(node, "Concat") ||
           (node->op && (node->op->flags & MLO_OP_RANGE_KEEP));
}

static enum mlo_status check_readers(const struct mlo_node *q, struct mlo_pass_context *ctx,
                                     struct mlo_error *err)
{
    const struct mlo_value *y = q->outputs[0];
    if (y->is_output)
        mlo_pass_note(ctx, q->name, "the output '%s' of the model is integer: %s", y->name,
                      mlo_dtype_name(y->type.dtype));
    for (int u = 0; u < y->use_count; u++) {
        const struct mlo_use *use = &y->uses[u];
        if (carries(use) || (mlo_node_is(use->node, "Concat")))
            continue;
        mlo_error_set(err, MLO_EINVAL, "no DequantizeLinear stands behind it: %s '%s' reads its integers",
                      use->node->op_type, use->node->name);
        return bad(q, err, MLO_EINVAL,
                   "fake quantization is QuantizeLinear, then DequantizeLinear with the "
                   "same scale and zero point");
    }
    return MLO_OK;
}

enum mlo_status mlo_qat_check(const struct mlo_graph *graph, struct mlo_pass_context *ctx,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        if (!is_q(node) && !is_dq(node))
            continue;
        MLO_TRY(check_params(node, err));
        if (is_q(node))
            MLO_TRY(check_readers(node, ctx, err));
    }
out:
    return status;
}

/* --- cleaning ---------------------------------------------------------------------------------------------
 */

static bool all_fixed(const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !mlo_value_is_fixed(node->inputs[i]))
            return false;
    return true;
}

/* Evaluates a QuantizeLinear, or a Clip of integers, of constants. */
static enum mlo_status fold(struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor result = {0}, *out = &result;
    const struct mlo_tensor *in[3] = {0};
    for (int i = 0; i < node->input_count && i < 3; i++)
        in[i] = node->inputs[i] ? node->inputs[i]->constant : NULL;
    if (in[0]->dtype == MLO_FLOAT32)
        for (size_t e = 0; e < mlo_tensor_count(in[0]); e++)
            if (!isfinite(((const float *)in[0]->data)[e])) {
                mlo_error_set(err, MLO_EINVAL, "weight %zu of '%s' is not finite", e, node->inputs[0]->name);
                return bad(node, err, MLO_EINVAL, "the training diverged, or the export is broken");
            }
    MLO_TRY(mlo_node_eval(node, in, &out, err));
    MLO_TRY(mlo_value_make_constant_take(node->outputs[0], &result, err));
    mlo_graph_remove_node(node);
out:
    mlo_tensor_clear(&result);
    return status;
}

/* The same pair of parameters on the same value, made before: its output; NULL: there is none. */
static struct mlo_value *made_before(const struct mlo_node *node, const struct mlo_qat_params *params)
{
    const struct mlo_value *x = node->inputs[0];
    struct mlo_node *found = NULL;
    for (int u = 0; u < x->use_count; u++) {
        struct mlo_node *other = x->uses[u].node;
        struct mlo_qat_params theirs;
        if (other->index < node->index && x->uses[u].index == 0 &&
            strcmp(other->op_type, node->op_type) == 0 && other->graph == node->graph &&
            mlo_qat_params(other, &theirs) && mlo_qat_same_params(params, &theirs) &&
            (!found || other->index < found->index))
            found = other;
    }
    return found ? found->outputs[0] : NULL;
}

/* A QuantizeLinear of what a DequantizeLinear with the same parameters made gives back its integers: see the
 * proof at mlo_qat_move_clips. */
static struct mlo_value *undone(const struct mlo_node *q, const struct mlo_qat_params *params)
{
    struct mlo_node *dq = mlo_node_producer(q, 0);
    struct mlo_qat_params theirs;
    return dq && is_dq(dq) && mlo_qat_params(dq, &theirs) && mlo_qat_same_params(params, &theirs)
               ? dq->inputs[0]
               : NULL;
}

/* A list of one number becomes the number: torch writes lists, and ONNX Runtime refuses them where it makes
 * integer ops of the pairs. */
static enum mlo_status make_scalar(struct mlo_node *node, int i, bool *changed, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_value *value = mlo_node_input(node, i);
    const struct mlo_tensor *list = mlo_node_fixed(node, i);
    struct mlo_tensor t = {0};
    if (!list || list->rank == 0 || mlo_tensor_count(list) != 1)
        return MLO_OK;
    *changed = true;
    MLO_TRY(mlo_tensor_init(&t, list->dtype, 0, NULL, err));
    memcpy(t.data, list->data, MLO_MIN(t.size_bytes, list->size_bytes));
    bool ours = !value->is_input && !value->is_output;
    for (int u = 0; u < value->use_count; u++)
        ours = ours && value->uses[u].index > 0 &&
               (is_q(value->uses[u].node) || is_dq(value->uses[u].node)) &&
               !mlo_node_attr_i(value->uses[u].node, "block_size", 0);
    if (ours) {
        MLO_TRY(mlo_value_set_constant_take(value, &t, err));
        goto out;
    }
    struct mlo_value *made = mlo_graph_add_constant_take(node->graph, value->name, &t);
    if (!made || !mlo_node_set_input(node, i, made))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&t);
    return status;
}

static enum mlo_status make_scalars(struct mlo_graph *graph, struct mlo_pass_context *ctx,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        bool changed = false;
        if (!(is_q(node) || is_dq(node)) || mlo_node_attr_i(node, "block_size", 0))
            continue;
        MLO_TRY(make_scalar(node, 1, &changed, err));
        MLO_TRY(make_scalar(node, 2, &changed, err));
        ctx->changes += changed;
    }
out:
    return status;
}

enum mlo_status mlo_qat_clean_pairs(struct mlo_graph *graph, struct mlo_pass_context *ctx,
                                    struct mlo_error *err)
{
    enum mlo_status status = make_scalars(graph, ctx, err);
    if (status != MLO_OK)
        return status;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        struct mlo_qat_params params;
        bool q = is_q(node);
        bool clip = mlo_node_is(node, "Clip") && node->outputs[0]->type.dtype != MLO_FLOAT32;
        if (!(q || clip || is_dq(node)) || node->outputs[0]->is_output)
            continue;
        if ((q || clip) && all_fixed(node)) {
            MLO_TRY(fold(node, err));
            ctx->changes++;
            n--;
            continue;
        }
        if (clip || !mlo_qat_params(node, &params))
            continue;
        struct mlo_value *same = made_before(node, &params);
        if (!same && q)
            same = undone(node, &params);
        if (!same)
            continue;
        if (!mlo_value_replace_uses(node->outputs[0], same)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        mlo_graph_remove_node(node);
        ctx->changes++;
        n--;
    }
out:
    return status;
}

/* --- Clip between the two ----------------------------------------------------------------------------------
 */

/* What a constant bound is; `open` where there is none; false when it is not constant. */
static bool bound_of(const struct mlo_node *clip, int i, double open, double *out)
{
    const struct mlo_tensor *t = mlo_node_fixed(clip, i);
    *out = t ? mlo_tensor_get_f64(t, 0) : open;
    return t || !mlo_node_input(clip, i);
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* As QuantizeLinear computes it. */
static double quantized(float x, float scale, int64_t zero)
{
    return rint((double)(x / scale)) + (double)zero;
}

/* Takes the Relu or Clip that makes `x` into the bounds: clamping twice is clamping once, to the first bounds
 * clamped by the second. */
static struct mlo_value *absorb(struct mlo_value *x, double *low, double *high)
{
    double before_low = 0, before_high = INFINITY;
    struct mlo_node *node = x->producer;
    if (!node || !mlo_value_sole_user(x) || x->type.dtype != MLO_FLOAT32)
        return x;
    if (mlo_node_is(node, "Clip")) {
        if (!bound_of(node, 1, -INFINITY, &before_low) || !bound_of(node, 2, INFINITY, &before_high) ||
            !(before_low <= before_high))
            return x;
    } else if (!mlo_node_is(node, "Relu")) {
        return x;
    }
    *low = clamp(before_low, *low, *high);
    *high = clamp(before_high, *low, *high);
    return node->inputs[0];
}

static struct mlo_value *number(struct mlo_graph *graph, const char *name, const char *suffix, double value)
{
    struct mlo_tensor t = {0};
    struct mlo_error ignored;
    char text[256];
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(name, 230), name, suffix);
    if (mlo_tensor_init(&t, MLO_FLOAT32, 0, NULL, &ignored) != MLO_OK)
        return NULL;
    *(float *)t.data = (float)value;
    struct mlo_value *made = mlo_graph_add_constant_take(graph, text, &t);
    mlo_tensor_clear(&t);
    return made;
}

/* Makes the QuantizeLinear read Clip(x, low, high), or Relu(x). */
static enum mlo_status put_before(struct mlo_node *q, struct mlo_value *x, double low, double high,
                                  struct mlo_error *err)
{
    char text[256];
    struct mlo_graph *graph = q->graph;
    struct mlo_value *bounds[3] = {x, NULL, NULL};
    int count = 1;
    snprintf(text, sizeof text, "%.*s_clipped", mlo_pass_cut(x->name, 230), x->name);
    struct mlo_value *y = mlo_graph_add_value(graph, text, &x->type);
    bool relu = low == 0 && high == INFINITY, ok = y != NULL;
    if (!relu && low > -INFINITY)
        ok = (bounds[1] = number(graph, x->name, "least", low)) && ok;
    if (high < INFINITY)
        ok = (bounds[2] = number(graph, x->name, "greatest", high)) && ok;
    for (int i = 1; i < 3; i++)
        count = bounds[i] ? i + 1 : count;
    snprintf(text, sizeof text, "%.*s_Clip", mlo_pass_cut(q->name, 230), q->name);
    ok = ok && mlo_graph_add_node(graph, q, "", relu ? "Relu" : "Clip", text, bounds, count, &y, 1) &&
         mlo_node_set_input(q, 0, y);
    return ok ? MLO_OK : mlo_error_nomem(err);
}

/* The QuantizeLinear of a Clip of integers that the rewriting can be applied to; else NULL, and why not. */
static struct mlo_node *clipped_by(const struct mlo_node *clip, struct mlo_qat_params *params,
                                   const char **why)
{
    struct mlo_node *q = mlo_node_producer(clip, 0);
    *why = "it clips integers, and no QuantizeLinear makes them for it alone";
    if (!q || !is_q(q) || mlo_value_sole_user(q->outputs[0]) != clip || !mlo_qat_params(q, params))
        return NULL;
    *why = "it clips integers of a list of scales";
    if (params->axis >= 0 || params->block)
        return NULL;
    *why = "it clips integers that are read by more than a DequantizeLinear with their parameters";
    for (int u = 0; u < clip->outputs[0]->use_count; u++) {
        const struct mlo_node *dq = clip->outputs[0]->uses[u].node;
        struct mlo_qat_params theirs;
        if (!is_dq(dq) || !mlo_qat_params(dq, &theirs) || !mlo_qat_same_params(params, &theirs))
            return NULL;
    }
    return clip->outputs[0]->is_output ? NULL : q;
}

/* The zero point of the pair that a QuantizeLinear begins becomes `zero`, of another type. */
static enum mlo_status retype(struct mlo_node *q, enum mlo_dtype dtype, int64_t zero, struct mlo_error *err)
{
    enum mlo_status status;
    char text[256];
    struct mlo_tensor t = {0};
    const struct mlo_tensor *scale = mlo_node_fixed(q, 1);
    MLO_TRY(mlo_tensor_init(&t, dtype, scale->rank, scale->dims, err));
    mlo_tensor_set_f64(&t, 0, (double)zero);
    snprintf(text, sizeof text, "%.*s_zero_point", mlo_pass_cut(q->inputs[0]->name, 230), q->inputs[0]->name);
    struct mlo_value *made = mlo_graph_add_constant_take(q->graph, text, &t), *y = q->outputs[0];
    bool ok = made && mlo_node_set_input(q, 2, made);
    for (int u = 0; ok && u < y->use_count; u++)
        ok = mlo_node_set_input(y->uses[u].node, 2, made);
    y->type.dtype = dtype;
    if (!ok)
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&t);
    return status;
}

/* With q(x) = saturate(rint(x / s) + z) in float32, L <= z <= H within the type, l = (L - z) * s and
 * h = (H - z) * s rounded to float32: clamp(q(x), L, H) = q(clamp(x, l, h)) for every float x.
 *
 * q is monotone: division by s > 0, rint, adding z and saturation are. And q(l) = L, q(h) = H: with k = L -
 * z, |k| < 2^17, the product k * s and the quotient by s are each off by at most 2^-24 of their size,
 * together less than 2^17 * 2^-22 < 1/2, and rint gives k (where s is so small that k * s is denormal, the
 * product is exact; where it overflows, the check below keeps the Clip as it is). So for l <= x <= h, L <=
 * q(x) <= H and both sides are q(x); for x < l the left side is L, as q(x) <= q(l) = L, and the right one
 * q(l) = L; for x > h the same with H. A NaN passes a Clip of floats, and q(NaN) = z lies in [L, H]. */
static enum mlo_status move_clip(struct mlo_node *clip, const struct mlo_target *target,
                                 struct mlo_pass_context *ctx, bool *moved, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_qat_params params;
    const char *why;
    double low, high;
    int64_t least, most;
    struct mlo_node *q = clipped_by(clip, &params, &why);
    *moved = false;
    if (!q || !bound_of(clip, 1, -INFINITY, &low) || !bound_of(clip, 2, INFINITY, &high)) {
        mlo_pass_note(ctx, clip->name, "Clip stays: %s", q ? "its bounds are not constant" : why);
        return MLO_OK;
    }
    mlo_qat_limits(params.dtype, &least, &most);
    low = fmax(low, (double)least);
    high = fmin(high, (double)most);
    int64_t zero = mlo_qat_zero(&params, 0);
    float scale = *(const float *)params.scale->data;
    if (!((double)zero >= low && (double)zero <= high)) {
        mlo_error_set(err, MLO_EINVAL,
                      "zero point %lld lies outside of the range %g to %g that it is clipped to",
                      (long long)zero, low, high);
        return bad(q, err, MLO_EINVAL, "0 would not be among the values, which padding and Relu need");
    }
    float l = (float)(low - (double)zero) * scale, h = (float)(high - (double)zero) * scale;
    if (quantized(l, scale, zero) != low || quantized(h, scale, zero) != high) {
        mlo_pass_note(ctx, clip->name, "Clip stays: its bounds are beyond float32");
        return MLO_OK;
    }
    /* A half range that is not negative fits int8 with the same zero point: what symmetric runtimes take. */
    bool narrow = target && target->symmetric && params.dtype == MLO_UINT8 && zero == 0 && high <= 127;
    if (narrow) {
        least = -128;
        most = 127;
    }
    double float_low = low > (double)least ? (double)l : -INFINITY;
    double float_high = high < (double)most ? (double)h : INFINITY;
    if (!mlo_value_replace_uses(clip->outputs[0], q->outputs[0]))
        return mlo_error_nomem(err);
    mlo_graph_remove_node(clip);
    if (narrow)
        MLO_TRY(retype(q, MLO_INT8, 0, err));
    if (float_low > -INFINITY || float_high < INFINITY) {
        struct mlo_value *x = absorb(q->inputs[0], &float_low, &float_high);
        MLO_TRY(put_before(q, x, float_low, float_high, err));
    }
    ctx->changes++;
    *moved = true;
out:
    return status;
}

enum mlo_status mlo_qat_move_clips(struct mlo_graph *graph, const struct mlo_target *target,
                                   struct mlo_pass_context *ctx, struct mlo_error *err)
{
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        const struct mlo_dtype_info *info =
            mlo_dtype_info(node->outputs[0] ? node->outputs[0]->type.dtype : 0);
        bool moved;
        if (!mlo_node_is(node, "Clip") || !info || !info->is_integer || info->bits > 16)
            continue;
        enum mlo_status status = move_clip(node, target, ctx, &moved, err);
        if (status != MLO_OK)
            return status;
        if (moved) /* others stand where it stood */
            n = -1;
    }
    return MLO_OK;
}

/* --- types ------------------------------------------------------------------------------------------------
 */

/* Whether all that reads the integers is a DequantizeLinear with the parameters that made them. */
static bool is_closed(const struct mlo_node *q, const struct mlo_qat_params *params)
{
    const struct mlo_value *y = q->outputs[0];
    struct mlo_qat_params theirs;
    for (int u = 0; u < y->use_count; u++)
        if (!is_dq(y->uses[u].node) || y->uses[u].index != 0 || !mlo_qat_params(y->uses[u].node, &theirs) ||
            !mlo_qat_same_params(params, &theirs))
            return false;
    return !y->is_output;
}

/* int8 with zero point z is uint8 with z + 128: each integer moves by 128 and means the same number. */
enum mlo_status mlo_qat_suit_target(struct mlo_graph *graph, const struct mlo_target *target,
                                    struct mlo_pass_context *ctx, struct mlo_error *err)
{
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *q = graph->nodes[n];
        struct mlo_qat_params params;
        if (!is_q(q) || !mlo_qat_params(q, &params))
            continue;
        int64_t zero = mlo_qat_zero(&params, 0);
        bool eight = params.dtype == MLO_INT8 || params.dtype == MLO_UINT8;
        int64_t shift = params.dtype == MLO_INT8 ? 128 : -128;
        bool other = eight && params.dtype != target->activations && params.axis < 0 && !params.block &&
                     is_closed(q, &params) && (!target->symmetric || zero + shift == 0);
        if (other) {
            enum mlo_status status = retype(q, target->activations, zero + shift, err);
            if (status != MLO_OK)
                return status;
            ctx->changes++;
        } else if (target->only && (params.dtype != target->activations || zero != 0)) {
            mlo_pass_note(ctx, q->name,
                          "%s takes %s, and this is %s with zero point %lld: it will compute in float or "
                          "refuse the model",
                          target->name, target->only, mlo_dtype_name(params.dtype), (long long)zero);
        } else if (!eight) {
            mlo_pass_note(ctx, q->name, "%s activations: few operators take them in integers",
                          mlo_dtype_name(params.dtype));
        }
    }
    return MLO_OK;
}
