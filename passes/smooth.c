/* SmoothQuant (Xiao et al., 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
 * Language Models", arXiv:2211.10438): channels of activations with outliers are divided by s_j, and the
 * weights that they meet multiplied, s_j = max|X_j|^alpha / max|W_j|^(1 - alpha). What the model computes
 * stays. The division goes into what makes the activation (LayerNormalization, Mul, Add, Gemm, MatMul); where
 * that cannot take it, a Mul is put in front. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/passes_impl.h"

const struct mlo_option_spec mlo_smooth_options[] = {
    {.name = "alpha",
     .type = MLO_OPT_FLOAT,
     .fallback = "0.5",
     .min = 0,
     .max = 1,
     .description = "How much of the difficulty moves from activations to weights"},
    {NULL},
};

enum { USERS_MAX = 64 };

/* A value, and the nodes that multiply it with constant weights. */
struct site {
    struct mlo_value *x;
    struct mlo_node *users[USERS_MAX];
    int count;
    int64_t channels; /* of x's last dim */
    bool only;        /* nobody else reads x */
};

static bool is_product(const struct mlo_node *node)
{
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    bool gemm = mlo_node_is(node, "Gemm");
    return (gemm || mlo_node_is(node, "MatMul")) && w && w->rank == 2 && w->dtype == MLO_FLOAT32 &&
           (!gemm || mlo_node_attr_i(node, "transA", 0) == 0);
}

static bool rows_last(const struct mlo_node *node)
{
    return mlo_node_is(node, "Gemm") && mlo_node_attr_i(node, "transB", 0) != 0;
}

static int64_t depth_of(const struct mlo_node *node)
{
    return mlo_node_fixed(node, 1)->dims[rows_last(node)];
}

/* False: nothing multiplies it. */
static bool find_site(struct mlo_value *x, struct site *site)
{
    *site = (struct site){.x = x, .only = !x->is_output};
    if (x->constant || x->type.dtype != MLO_FLOAT32)
        return false;
    for (int u = 0; u < x->use_count; u++) {
        struct mlo_node *node = x->uses[u].node;
        bool fits = x->uses[u].index == 0 && node->graph == x->graph && is_product(node) &&
                    site->count < USERS_MAX && (!site->count || depth_of(node) == site->channels);
        if (!fits) {
            site->only = false;
            continue;
        }
        site->channels = depth_of(node);
        site->users[site->count++] = node;
    }
    return site->count > 0 && site->channels > 0;
}

/* --- the factors ------------------------------------------------------------------------------- */

static double weight_at(const struct mlo_node *node, int64_t j, int64_t column)
{
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    size_t at = rows_last(node) ? (size_t)(column * w->dims[1] + j) : (size_t)(j * w->dims[1] + column);
    return (double)((const float *)w->data)[at];
}

static void factors(const struct site *site, const struct mlo_channel_stats *seen, double alpha, double *s)
{
    for (int64_t j = 0; j < site->channels; j++) {
        double x = fmax(fabs((double)seen->min[j]), fabs((double)seen->max[j])), w = 0;
        for (int u = 0; u < site->count; u++) {
            const struct mlo_tensor *t = mlo_node_fixed(site->users[u], 1);
            int64_t columns = t->dims[!rows_last(site->users[u])];
            for (int64_t c = 0; c < columns; c++)
                w = fmax(w, fabs(weight_at(site->users[u], j, c)));
        }
        /* A channel that is always 0, or that no weight reads, has nothing to move. */
        s[j] = x > 0 && w > 0 ? fmin(fmax(pow(x, alpha) / pow(w, 1 - alpha), 1e-5), 1e5) : 1;
        s[j] = (double)(float)s[j];
    }
}

static enum mlo_status scale_weights(struct mlo_node *node, const double *s, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor w = {0};
    MLO_TRY(mlo_tensor_copy(mlo_node_fixed(node, 1), &w, err));
    float *v = w.data;
    for (int64_t r = 0; r < w.dims[0]; r++)
        for (int64_t c = 0; c < w.dims[1]; c++)
            v[r * w.dims[1] + c] = (float)((double)v[r * w.dims[1] + c] * s[rows_last(node) ? c : r]);
    MLO_TRY(mlo_pass_set_const_take(node, 1, "weight", &w, err));
out:
    mlo_tensor_clear(&w);
    return status;
}

/* --- dividing what makes the activation -------------------------------------------------------- */

/* Input i is a constant with one number for each channel of the last dim, or one for all. */
static bool is_vector(const struct mlo_node *node, int i, int64_t channels)
{
    const struct mlo_tensor *t = mlo_node_fixed(node, i);
    if (!t || t->dtype != MLO_FLOAT32)
        return false;
    int64_t count = (int64_t)mlo_tensor_count(t);
    return count == 1 ? t->rank <= 1 : count == channels && t->dims[t->rank - 1] == channels;
}

static enum mlo_status divide_vector(struct mlo_node *node, int i, int64_t channels, const double *s,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor fresh = {0};
    const struct mlo_tensor *old = mlo_node_fixed(node, i);
    size_t step = mlo_tensor_count(old) > 1 ? 1 : 0;
    int rank = MLO_MAX(old->rank, 1);
    int64_t dims[MLO_MAX_RANK] = {0};
    for (int d = 0; d < rank; d++)
        dims[d] = d == rank - 1 ? channels : old->dims[d];
    MLO_TRY(mlo_tensor_init(&fresh, MLO_FLOAT32, rank, dims, err));
    for (size_t c = 0; c < (size_t)channels; c++)
        ((float *)fresh.data)[c] = (float)((double)((const float *)old->data)[c * step] / s[c]);
    MLO_TRY(mlo_pass_set_const_take(node, i, "vector", &fresh, err));
out:
    mlo_tensor_clear(&fresh);
    return status;
}

/* The factors, and their inverses and zeros for mlo_pass_scale_channels. */
struct change {
    int64_t channels;
    const double *s, *inverse, *zeros;
    bool write; /* else only whether it is possible */
};

/* Columns of a constant matrix on the right of a MatMul. */
static bool divide_columns(struct mlo_node *node, const struct change *c, enum mlo_status *status,
                           struct mlo_error *err)
{
    struct mlo_tensor w = {0};
    if (!is_product(node) || mlo_node_fixed(node, 1)->dims[1] != c->channels)
        return false;
    if (!c->write)
        return true;
    *status = mlo_tensor_copy(mlo_node_fixed(node, 1), &w, err);
    for (int64_t e = 0; *status == MLO_OK && e < w.dims[0] * w.dims[1]; e++)
        ((float *)w.data)[e] = (float)((double)((float *)w.data)[e] * c->inverse[e % c->channels]);
    if (*status == MLO_OK)
        *status = mlo_pass_set_const_take(node, 1, "weight", &w, err);
    return true;
}

/* The constant operand of a Mul or Add that is one number a channel: its input number; -1: there is none. */
static int vector_operand(const struct mlo_node *node, int64_t channels)
{
    for (int i = 1; i >= 0; i--)
        if (node->input_count == 2 && is_vector(node, i, channels) && !mlo_node_fixed(node, 1 - i))
            return i;
    return -1;
}

/* Divides a value in what makes it. False: that cannot be, and nothing has changed. Its users are the
 * caller's concern; values further back must have one. */
static bool divide(const struct mlo_value *v, const struct change *c, enum mlo_status *status,
                   struct mlo_error *err)
{
    const char *why;
    struct mlo_node *node = v->producer;
    *status = MLO_OK;
    if (!node || v->producer_index != 0 || !mlo_node_only_first_output(node) || v->type.rank < 1 ||
        v->type.dims[v->type.rank - 1].value != c->channels)
        return false;
    if (mlo_node_is(node, "MatMul"))
        return divide_columns(node, c, status, err);
    if (mlo_node_is(node, "Gemm")) {
        if (!mlo_node_can_scale(node, &why) || mlo_node_channels(node) != c->channels)
            return false;
        if (c->write)
            *status = mlo_pass_scale_channels(node, c->inverse, c->zeros, err);
        return true;
    }
    if (mlo_node_is(node, "LayerNormalization")) {
        bool bias = mlo_node_input(node, 2) != NULL;
        int64_t axis = mlo_node_attr_i(node, "axis", -1);
        if (!is_vector(node, 1, c->channels) || (bias && !is_vector(node, 2, c->channels)) ||
            (axis != -1 && axis != v->type.rank - 1))
            return false;
        if (c->write)
            *status = divide_vector(node, 1, c->channels, c->s, err);
        if (c->write && bias && *status == MLO_OK)
            *status = divide_vector(node, 2, c->channels, c->s, err);
        return true;
    }
    if (mlo_node_is(node, "Relu"))
        return mlo_value_sole_user(node->inputs[0]) == node && divide(node->inputs[0], c, status, err);
    bool add = mlo_node_is(node, "Add");
    int i = add || mlo_node_is(node, "Mul") ? vector_operand(node, c->channels) : -1;
    if (i < 0)
        return false;
    struct mlo_value *other = node->inputs[1 - i];
    if (add && (mlo_value_sole_user(other) != node || !divide(other, c, status, err)))
        return false;
    if (c->write && *status == MLO_OK)
        *status = divide_vector(node, i, c->channels, c->s, err);
    return true;
}

/* A Mul by 1 / s in front of the site's nodes. */
static enum mlo_status put_mul(const struct site *site, const double *inverse, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor vector = {0};
    struct mlo_graph *graph = site->x->graph;
    char name[256];
    MLO_TRY(mlo_tensor_init(&vector, MLO_FLOAT32, 1, &site->channels, err));
    for (size_t c = 0; c < (size_t)site->channels; c++)
        ((float *)vector.data)[c] = (float)inverse[c];
    snprintf(name, sizeof name, "%.*s_smooth_scale", mlo_pass_cut(site->x->name, 230), site->x->name);
    struct mlo_value *scale = mlo_graph_add_constant_take(graph, name, &vector);
    snprintf(name, sizeof name, "%.*s_smooth", mlo_pass_cut(site->x->name, 230), site->x->name);
    struct mlo_type type = site->x->type;
    struct mlo_value *y = mlo_graph_add_value(graph, name, &type), *inputs[] = {site->x, scale};
    struct mlo_node *first = site->users[0];
    for (int u = 1; u < site->count; u++)
        if (site->users[u]->index < first->index)
            first = site->users[u];
    if (!scale || !y || !mlo_graph_add_node(graph, first, "", "Mul", name, inputs, 2, &y, 1))
        status = mlo_error_nomem(err);
    for (int u = 0; u < site->count && status == MLO_OK; u++)
        if (!mlo_node_set_input(site->users[u], 0, y))
            status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&vector);
    return status;
}

/* --- the pass ---------------------------------------------------------------------------------- */

static enum mlo_status smooth(const struct site *site, double alpha, struct mlo_arena *arena,
                              struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_channel_stats *seen =
        ctx->stats ? mlo_stats_find_channels(ctx->stats, site->x->name) : NULL;
    if (!seen || seen->channels != site->channels) {
        mlo_pass_note(ctx, site->users[0]->name, "not smoothed: its input was not observed");
        return MLO_OK;
    }
    if (seen->bad_count) {
        mlo_error_set(err, MLO_EINVAL, "value '%s' was NaN or infinite on calibration data", site->x->name);
        mlo_error_where(err, "value '%s'", site->x->name);
        return MLO_EINVAL;
    }
    size_t n = (size_t)site->channels;
    double *s = mlo_arena_calloc(arena, 3 * n, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    factors(site, seen, alpha, s);
    for (size_t c = 0; c < n; c++)
        s[n + c] = 1 / s[c];
    struct change change = {site->channels, s, s + n, s + 2 * n, false};
    bool moved = site->only && divide(site->x, &change, &status, err);
    change.write = true;
    if (moved)
        divide(site->x, &change, &status, err);
    else
        status = put_mul(site, change.inverse, err);
    if (status == MLO_OK && !moved)
        mlo_pass_note(ctx, site->users[0]->name, "a Mul divides its input: %s",
                      site->only ? "what makes it cannot take the factors" : "others read it too");
    for (int u = 0; u < site->count && status == MLO_OK; u++)
        status = scale_weights(site->users[u], s, err);
    ctx->changes++;
    return status;
}

enum mlo_status mlo_pass_smooth(struct mlo_model *model, struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *graph = model->graph;
    double alpha = mlo_json_f64(ctx->options, "alpha", 0.5);
    struct mlo_arena *arena = mlo_arena_new();
    if (!arena)
        return mlo_error_nomem(err);
    mlo_pass_unlist_initializers(model);
    for (int v = 0, count = graph->value_count; v < count && status == MLO_OK; v++) {
        struct site site;
        if (find_site(graph->values[v], &site))
            status = smooth(&site, alpha, arena, ctx, err);
    }
    mlo_graph_remove_unused_values(graph);
    mlo_arena_free(arena);
    return status;
}

enum mlo_status mlo_smooth_wanted(const struct mlo_model *model, struct mlo_stats_wants *wants,
                                  struct mlo_error *err)
{
    for (int v = 0; v < model->graph->value_count; v++) {
        struct site site;
        struct mlo_value *x = model->graph->values[v];
        struct mlo_stats_want want = {.name = x->name, .channel_axis = -1};
        if (find_site(x, &site) && !mlo_stats_wants_add(wants, &want))
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}
