/* What follows a node and can be computed in its step: activations, a residual Add, a QuantizeLinear. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

static const struct {
    const char *op;
    dnnl_alg_kind_t alg;
    const char *alpha; /* attribute, or NULL */
    float alpha_default;
    bool homogeneous; /* f(s x) = s f(x) for s > 0 */
} eltwises[] = {
    {"Relu", dnnl_eltwise_relu, NULL, 0.0f, true},
    {"LeakyRelu", dnnl_eltwise_relu, "alpha", 0.01f, true},
    {"Sigmoid", dnnl_eltwise_logistic, NULL, 0.0f, false},
    {"Tanh", dnnl_eltwise_tanh, NULL, 0.0f, false},
    {"Elu", dnnl_eltwise_elu, "alpha", 1.0f, false},
    {"HardSwish", dnnl_eltwise_hardswish, NULL, 0.0f, false},
    {"Abs", dnnl_eltwise_abs, NULL, 0.0f, true},
    {"Exp", dnnl_eltwise_exp, NULL, 0.0f, false},
    {"Sqrt", dnnl_eltwise_sqrt, NULL, 0.0f, false},
};

/* A bound of Clip: an attribute before opset 11, then an input. */
static bool clip_bound(const struct mlo_node *node, int input, const char *attr, float fallback, float *out)
{
    *out = mlo_node_attr_f(node, attr, fallback);
    if (!mlo_node_input(node, input))
        return true;
    const struct mlo_tensor *t = mlo_node_const(node, input);
    if (!t || mlo_tensor_count(t) != 1)
        return false;
    *out = (float)mlo_tensor_get_f64(t, 0);
    return true;
}

bool fast_eltwise(const struct mlo_node *node, struct fast_post *out, bool *homogeneous)
{
    *out = (struct fast_post){0};
    *homogeneous = true;
    if (node->input_count < 1 || !node->inputs[0] || node->inputs[0]->type.dtype != MLO_FLOAT32)
        return false;
    if (mlo_node_is(node, "Clip")) {
        out->alg = dnnl_eltwise_clip;
        return clip_bound(node, 1, "min", -FLT_MAX, &out->alpha) &&
               clip_bound(node, 2, "max", FLT_MAX, &out->beta) && isfinite(out->alpha) &&
               isfinite(out->beta) && out->alpha <= out->beta;
    }
    for (size_t i = 0; i < MLO_COUNT(eltwises); i++) {
        if (!mlo_node_is(node, eltwises[i].op))
            continue;
        out->alg = eltwises[i].alg;
        out->alpha =
            eltwises[i].alpha ? mlo_node_attr_f(node, eltwises[i].alpha, eltwises[i].alpha_default) : 0.0f;
        *homogeneous = eltwises[i].homogeneous;
        return true;
    }
    return false;
}

struct mlo_node *fast_reader(const struct mlo_plan *plan, const struct mlo_value *value)
{
    return cpu_is_observed(plan, value) ? NULL : mlo_value_sole_user(value);
}

static bool same_dims(const struct mlo_value *a, const struct mlo_value *b)
{
    struct fast_shape x, y;
    return fast_shape(a, &x) && fast_shape(b, &y) && x.rank == y.rank &&
           memcmp(x.dims, y.dims, (size_t)x.rank * sizeof *x.dims) == 0 && a->type.dtype == b->type.dtype;
}

static bool try_sum(const struct mlo_plan *plan, const struct mlo_node *node, const struct mlo_value *v,
                    struct fast_chain *out)
{
    if (!mlo_node_is(node, "Add") || out->residual)
        return false;
    struct mlo_value *other = node->inputs[node->inputs[0] == v];
    if (other == v || !same_dims(other, v) || !fast_is_available(plan, other))
        return false;
    out->residual = other;
    out->posts[out->post_count++] = (struct fast_post){.sum = true};
    return true;
}

static bool try_composite(const struct mlo_plan *plan, struct fast_chain *out)
{
    struct fast_composite c;
    if (!fast_composite_alone(plan, out->end, &c) || out->node_count + c.node_count > FAST_CHAIN_MAX)
        return false;
    for (int i = 0; i < c.node_count; i++)
        out->nodes[out->node_count++] = c.nodes[i];
    out->posts[out->post_count++] = c.post;
    out->own_units = true;
    out->end = c.end;
    return true;
}

double fast_chain_unit(const struct fast_chain *chain)
{
    return chain->quantized && !chain->own_units ? (double)chain->q.scale : 1.0;
}

void fast_chain_follow(const struct mlo_plan *plan, struct mlo_value *start, bool may_sum, bool may_quantize,
                       struct fast_chain *out)
{
    *out = (struct fast_chain){.end = start};
    while (out->node_count < FAST_CHAIN_MAX) {
        if (try_composite(plan, out))
            continue;
        const struct mlo_node *node = fast_reader(plan, out->end);
        struct fast_post post;
        bool scales;
        if (!node)
            return;
        if (may_quantize && mlo_node_is(node, "QuantizeLinear") && node->inputs[0] == out->end &&
            fast_qparams(node, &out->q)) {
            out->quantized = true;
            out->nodes[out->node_count++] = node;
            out->end = node->outputs[0];
            return;
        }
        if (fast_eltwise(node, &post, &scales) && node->inputs[0] == out->end) {
            out->posts[out->post_count++] = post;
            out->own_units |= !scales;
        } else if (!may_sum || !try_sum(plan, node, out->end, out)) {
            return;
        }
        out->nodes[out->node_count++] = node;
        out->end = node->outputs[0];
    }
}

void fast_mark_done(struct mlo_plan *plan, const struct mlo_node *node)
{
    const struct mlo_graph *g = plan->model->graph;
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i] == node)
            plan->done[i] = true;
}

enum mlo_status fast_chain_take(struct mlo_plan *plan, const struct fast_chain *chain, struct cpu_step *step,
                                struct mlo_error *err)
{
    for (int i = 0; i < chain->node_count; i++) {
        fast_mark_done(plan, chain->nodes[i]);
        if (!cpu_step_fuse(plan, step, chain->nodes[i]))
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}

/* Relu is what saturation at a zero point of 0 does anyway. */
static bool relu_is_implied(const struct fast_chain *chain, int i)
{
    const struct fast_post *p = &chain->posts[i];
    return i == chain->post_count - 1 && p->alg == dnnl_eltwise_relu && p->alpha == 0.0f &&
           chain->quantized && chain->q.dtype == MLO_UINT8 && chain->q.zero_point == 0;
}

/* oneDNN 2.6 keeps one set of numbers for each algorithm of a chain (outside of its reference kernels): a
 * second step of the same algorithm would compute with those of the first. */
static bool is_told_apart(const_dnnl_post_ops_t posts)
{
    struct {
        dnnl_alg_kind_t alg;
        float scale, alpha, beta;
    } seen[FAST_CHAIN_MAX + 4];
    int count = 0, all = dnnl_post_ops_len(posts);
    for (int i = 0; i < all; i++) {
        if (dnnl_post_ops_get_kind(posts, i) != dnnl_eltwise)
            continue;
        if (count == (int)MLO_COUNT(seen) ||
            dnnl_post_ops_get_params_eltwise(posts, i, &seen[count].scale, &seen[count].alg,
                                             &seen[count].alpha, &seen[count].beta) != dnnl_success)
            return false;
        for (int k = 0; k < count; k++)
            if (seen[k].alg == seen[count].alg &&
                (seen[k].scale != seen[count].scale || seen[k].alpha != seen[count].alpha ||
                 seen[k].beta != seen[count].beta))
                return false;
        count++;
    }
    return true;
}

bool fast_chain_attr(const struct fast_chain *chain, dnnl_primitive_attr_t attr,
                     const struct cpu_qparams *residual)
{
    dnnl_post_ops_t posts = NULL;
    bool ok = dnnl_post_ops_create(&posts) == dnnl_success;
    float unit = (float)(1.0 / fast_chain_unit(chain));
    /* What takes the outputs to steps of the QuantizeLinear: the scale of the last activation, where that
     * can. */
    float steps = chain->quantized && chain->own_units ? 1.0f / chain->q.scale : 1.0f;
    for (int i = 0; ok && i < chain->post_count; i++) {
        struct fast_post p = chain->posts[i];
        if (p.sum && residual) {
            ok = dnnl_post_ops_append_sum_v3(posts, residual->scale * unit, residual->zero_point,
                                             fast_dtype(residual->dtype)) == dnnl_success;
        } else if (p.sum) {
            ok = dnnl_post_ops_append_sum(posts, 1.0f) == dnnl_success;
        } else if (!relu_is_implied(chain, i)) {
            float scale = i == chain->post_count - 1 ? steps : 1.0f;
            if (p.alg == dnnl_eltwise_clip)
                p.alpha = fmaxf(p.alpha * unit, -FLT_MAX), p.beta = fminf(p.beta * unit, FLT_MAX);
            ok = dnnl_post_ops_append_eltwise(posts, scale, p.alg, p.alpha, p.beta) == dnnl_success;
            steps = i == chain->post_count - 1 ? 1.0f : steps;
        }
    }
    if (ok && steps != 1.0f)
        ok = dnnl_post_ops_append_eltwise(posts, 1.0f, dnnl_eltwise_linear, steps, 0.0f) == dnnl_success;
    if (ok && chain->quantized &&
        chain->q.zero_point) /* behind rounding: an odd one would turn ties around */
        ok = dnnl_post_ops_append_eltwise(posts, 1.0f, dnnl_eltwise_round, 0.0f, 0.0f) == dnnl_success &&
             dnnl_post_ops_append_eltwise(posts, 1.0f, dnnl_eltwise_linear, 1.0f,
                                          (float)chain->q.zero_point) == dnnl_success;
    ok = ok && is_told_apart(posts) && dnnl_primitive_attr_set_post_ops(attr, posts) == dnnl_success;
    dnnl_post_ops_destroy(posts);
    return ok;
}
