/* Rewrites of the schedule's own copy of the model, before it is lowered: constants are computed, affine
 * nodes behind a Conv go into its weights, and products of one value with several weights become one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

/* A folded result may be this large, or twice what it is computed from. */
enum { FREE_BYTES = 1 << 20 };

bool prepare_shows(const struct prepare *p, const struct mlo_value *v)
{
    for (size_t i = 0; i < p->observed_count; i++)
        if (p->observed[i] == v)
            return true;
    return v->is_output;
}

struct mlo_node *prepare_reader(const struct prepare *p, const struct mlo_value *v)
{
    return prepare_shows(p, v) ? NULL : mlo_value_sole_user(v);
}

/* --- constants
 * ----------------------------------------------------------------------------------------------- */

static bool foldable(const struct mlo_node *node)
{
    size_t in = 0;
    int64_t dims[MLO_MAX_RANK];
    bool weights = mlo_node_is(node, "DequantizeLinear") && mlo_node_const(node, 0) &&
                   mlo_node_const(node, 0)->dtype != MLO_INT32;
    if (!node->op || !(node->op->flags & MLO_OP_PURE) || (node->op->flags & MLO_OP_VALUES) ||
        node->op->eval_in || weights || mlo_node_is(node, "Identity") || node->output_count < 1)
        return false; /* weights stay bytes */
    for (int i = 0; i < node->input_count; i++) {
        if (node->inputs[i] && !node->inputs[i]->constant)
            return false;
        in += node->inputs[i] ? node->inputs[i]->constant->size_bytes : 0;
    }
    for (int i = 0; i < node->output_count; i++) {
        const struct mlo_value *v = node->outputs[i];
        size_t bytes = 0;
        if (v && (!lower_dims(v, dims) || !mlo_shape_bytes(v->type.dtype, v->type.rank, dims, &bytes) ||
                  bytes > MLO_MAX((size_t)FREE_BYTES, 2 * in)))
            return false;
    }
    return true;
}

/* Leaves the node alone when it cannot be computed: lowering says why. */
static enum mlo_status fold(struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_error ignored = {0};
    const struct mlo_tensor **in = calloc((size_t)node->input_count + 1, sizeof(const struct mlo_tensor *));
    struct mlo_tensor **out = calloc((size_t)node->output_count + 1, sizeof(struct mlo_tensor *));
    struct mlo_tensor *results = calloc((size_t)node->output_count + 1, sizeof *results);
    if (!in || !out || !results) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < node->input_count; i++)
        in[i] = node->inputs[i] ? node->inputs[i]->constant : NULL;
    for (int i = 0; i < node->output_count; i++)
        out[i] = node->outputs[i] ? &results[i] : NULL;
    if (mlo_node_eval(node, in, (struct mlo_tensor *const *)out, &ignored) != MLO_OK)
        goto out;
    for (int i = 0; i < node->output_count; i++)
        if (node->outputs[i])
            MLO_TRY(mlo_value_make_constant_take(node->outputs[i], &results[i], err));
    mlo_graph_remove_node(node);
    *done = true;
out:
    for (int i = 0; results && i < node->output_count; i++)
        mlo_tensor_clear(&results[i]);
    free(in);
    free(out);
    free(results);
    return status;
}

/* Inference knows the content of shape computations. */
static enum mlo_status take_known(struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor t = {0};
    struct mlo_value *v = node->output_count == 1 ? node->outputs[0] : NULL;
    if (!v || !v->known || v->known->dtype != v->type.dtype || v->constant)
        return MLO_OK;
    MLO_TRY(mlo_tensor_copy(v->known, &t, err));
    MLO_TRY(mlo_value_make_constant_take(v, &t, err));
    mlo_graph_remove_node(node);
    *done = true;
out:
    mlo_tensor_clear(&t);
    return status;
}

static enum mlo_status fold_constants(struct mlo_graph *g, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int n = 0; n < g->node_count;) {
        bool done = false;
        MLO_TRY(take_known(g->nodes[n], &done, err));
        if (!done && foldable(g->nodes[n]))
            MLO_TRY(fold(g->nodes[n], &done, err));
        n += !done;
    }
out:
    return status;
}

/* --- BatchNormalization behind a Conv
 * ------------------------------------------------------------------------ */

static const struct mlo_tensor *floats_of(const struct mlo_node *node, int i, int64_t count)
{
    const struct mlo_tensor *t = mlo_node_input(node, i) ? lower_constant(node->inputs[i]) : NULL;
    return t && lower_is_float(t->dtype) && (int64_t)mlo_tensor_count(t) == count ? t : NULL;
}

static enum mlo_status fold_norm(const struct prepare *p, struct mlo_node *conv, bool *done,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor w = {0}, b = {0};
    if (!mlo_node_is(conv, "Conv"))
        return MLO_OK;
    struct mlo_node *norm = prepare_reader(p, conv->outputs[0]);
    const struct mlo_tensor *weights = lower_constant(conv->inputs[1]), *bias = NULL, *n[5] = {NULL};
    if (!norm || !mlo_node_is(norm, "BatchNormalization") || norm->inputs[0] != conv->outputs[0] ||
        !weights || !lower_is_float(weights->dtype) || weights->rank < 3 ||
        mlo_node_attr_i(norm, "training_mode", 0))
        return MLO_OK;
    int64_t k = weights->dims[0];
    for (int i = 1; i < 5; i++)
        if (!(n[i] = floats_of(norm, i, k)))
            return MLO_OK;
    for (int i = 1; i < norm->output_count; i++)
        if (norm->outputs[i] && norm->outputs[i]->use_count)
            return MLO_OK;
    if (mlo_node_input(conv, 2) && !(bias = floats_of(conv, 2, k)))
        return MLO_OK;
    double epsilon = mlo_node_attr_f(norm, "epsilon", 1e-5f);
    size_t row = mlo_tensor_count(weights) / (size_t)k;
    MLO_TRY(mlo_tensor_init(&w, weights->dtype, weights->rank, weights->dims, err));
    MLO_TRY(mlo_tensor_init(&b, weights->dtype, 1, &k, err));
    for (size_t c = 0; c < (size_t)k; c++) {
        double scale = mlo_tensor_get_f64(n[1], c) / sqrt(mlo_tensor_get_f64(n[4], c) + epsilon);
        double at = (bias ? mlo_tensor_get_f64(bias, c) : 0) - mlo_tensor_get_f64(n[3], c);
        mlo_tensor_set_f64(&b, c, at * scale + mlo_tensor_get_f64(n[2], c));
        for (size_t i = c * row; i < (c + 1) * row; i++)
            mlo_tensor_set_f64(&w, i, mlo_tensor_get_f64(weights, i) * scale);
    }
    struct mlo_value *wv = mlo_graph_add_constant_take(p->g, "weights", &w);
    struct mlo_value *bv = mlo_graph_add_constant_take(p->g, "bias", &b), *y = norm->outputs[0];
    struct mlo_value *in[] = {conv->inputs[0], wv, bv};
    struct mlo_node *before = conv->index + 1 < p->g->node_count ? p->g->nodes[conv->index + 1] : NULL;
    if (before == norm)
        before = norm->index + 1 < p->g->node_count ? p->g->nodes[norm->index + 1] : NULL;
    mlo_graph_remove_node(norm);
    mlo_graph_remove_node(conv);
    struct mlo_node *fresh =
        wv && bv ? mlo_graph_add_node(p->g, before, "", "Conv", conv->name, in, 3, &y, 1) : NULL;
    if (!fresh) {
        status = mlo_error_nomem(err);
        goto out;
    }
    fresh->attrs = conv->attrs;
    fresh->attr_count = conv->attr_count;
    *done = true;
out:
    mlo_tensor_clear(&w);
    mlo_tensor_clear(&b);
    return status;
}

/* --- all
 * ------------------------------------------------------------------------------------------------------- */

enum mlo_status cuda_prepare(struct mlo_model *model, struct mlo_value *const *observed,
                             size_t observed_count, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct prepare p = {.g = model->graph, .observed = observed, .observed_count = observed_count};
    MLO_TRY(fold_constants(p.g, err));
    for (int n = 0; n < p.g->node_count; n++) {
        bool done = false;
        MLO_TRY(fold_norm(&p, p.g->nodes[n], &done, err));
        if (!done)
            MLO_TRY(prepare_sink(&p, p.g->nodes[n], &done, err));
        if (!done)
            MLO_TRY(prepare_merge(&p, p.g->nodes[n], &done, err));
        if (done)
            n = MLO_MAX(n - 4, -1);
    }
out:
    return status;
}
