/* Least squares reconstruction: weights that make, of what a node reads in the pruned model, what it made in
 * the float one (He et al. 2017, "Channel Pruning for Accelerating Very Deep Neural Networks",
 * arXiv:1707.06168; Luo et al. 2017, "ThiNet", arXiv:1707.06342). With x and y about their means, W' = W +
 * (X^T X + lambda)^-1 X^T (Y - X W): what the data does not tell stays what it was; the bias takes the means.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/prune.h"
#include "passes/round_impl.h"

const char *mlo_refit_refuses(const struct mlo_node *node)
{
    int64_t outs;
    const char *why = mlo_gram_outs(node, &outs);
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    if (why)
        return why;
    if (!w || w->dtype != MLO_FLOAT32)
        return "its weights are no constants of float32";
    if (mlo_node_is(node, "Gemm") &&
        (mlo_node_attr_f(node, "alpha", 1) != 1 || mlo_node_attr_f(node, "beta", 1) != 1))
        return "it scales its product";
    return NULL;
}

struct mlo_node *mlo_refit_bias_node(struct mlo_node *node, int *input)
{
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    *input = 2;
    if (!mlo_node_is(node, "MatMul"))
        return !mlo_node_input(node, 2) || mlo_node_fixed(node, 2) ? node : NULL;
    struct mlo_node *add = mlo_value_sole_user(node->outputs[0]);
    if (!add || !mlo_node_is(add, "Add") || !w)
        return NULL;
    *input = add->inputs[0] == node->outputs[0];
    const struct mlo_tensor *b = mlo_node_fixed(add, *input);
    bool fits = b && b->dtype == MLO_FLOAT32 && b->rank >= 1 &&
                b->dims[b->rank - 1] == w->dims[w->rank - 1] &&
                (int64_t)mlo_tensor_count(b) == b->dims[b->rank - 1];
    return fits ? add : NULL;
}

/* One group: n inputs, m outputs; matrices lie by rows. */
struct fit {
    size_t n, m;
    const struct mlo_gram *pair;
    int64_t g;
    bool centred;
    double *a;     /* [n][n]: X^T X, then its factor */
    double *w, *r; /* [n][m]: weights; X^T Y - X^T X W, then the step */
    double *bias;  /* [m]: as it is, then as it becomes */
};

static double moment(const struct fit *f, size_t i, size_t j)
{
    double v = mlo_gram_at(f->pair, f->g, (int64_t)i, (int64_t)j);
    const double *sum = f->pair->sum + (size_t)f->g * (size_t)f->pair->dim;
    return f->centred ? v - sum[i] * sum[j] / (double)f->pair->rows : v;
}

static double mean(const struct fit *f, size_t i)
{
    return f->pair->sum[(size_t)f->g * (size_t)f->pair->dim + i] / (double)f->pair->rows;
}

/* r = X^T Y - X^T X W, and the squared error of Y - X W. */
static double residual(struct fit *f)
{
    double error = 0;
    for (size_t i = 0; i < f->n; i++) {
        double *row = f->r + i * f->m;
        for (size_t o = 0; o < f->m; o++)
            row[o] = moment(f, i, f->n + o);
        for (size_t k = 0; k < f->n; k++)
            mlo_add_scaled(row, f->w + k * f->m, -moment(f, i, k), f->m);
        /* |Y - XW|^2 = |Y|^2 - W.(X^T Y) - W.(X^T Y - X^T X W) */
        for (size_t o = 0; o < f->m; o++)
            error -= f->w[i * f->m + o] * (row[o] + moment(f, i, f->n + o));
    }
    for (size_t o = 0; o < f->m; o++)
        error += moment(f, f->n + o, f->n + o);
    return error;
}

/* Solves A step = r in place of r. */
static enum mlo_status solve(struct fit *f, double damp, struct mlo_error *err)
{
    double level = 0;
    for (size_t i = 0; i < f->n; i++)
        level += moment(f, i, i) / (double)f->n;
    if (!(level > 0)) { /* nothing comes in: nothing can be said of the weights */
        memset(f->r, 0, f->n * f->m * sizeof *f->r);
        return MLO_OK;
    }
    double lambda = MLO_MAX(damp, 1e-9) * level;
    for (int attempt = 0;; attempt++, lambda *= 10) {
        for (size_t i = 0; i < f->n; i++)
            for (size_t j = 0; j <= i; j++)
                f->a[i * f->n + j] = moment(f, i, j) + (i == j ? lambda : 0);
        if (mlo_cholesky(f->a, f->n))
            break;
        if (attempt == 6)
            return mlo_error_set(err, MLO_EUNSUPPORTED,
                                 "the matrix of inputs has no Cholesky factor, however damped");
    }
    for (size_t i = 0; i < f->n; i++) {
        double *row = f->r + i * f->m;
        for (size_t k = 0; k < i; k++)
            mlo_add_scaled(row, f->r + k * f->m, -f->a[i * f->n + k], f->m);
        for (size_t o = 0; o < f->m; o++)
            row[o] /= f->a[i * f->n + i];
    }
    for (size_t i = f->n; i-- > 0;) {
        double *row = f->r + i * f->m;
        for (size_t k = i + 1; k < f->n; k++)
            mlo_add_scaled(row, f->r + k * f->m, -f->a[k * f->n + i], f->m);
        for (size_t o = 0; o < f->m; o++)
            row[o] /= f->a[i * f->n + i];
    }
    return MLO_OK;
}

/* What the means are off by with the bias as it is, squared and summed over rows. */
static double mean_error(const struct fit *f)
{
    double error = 0;
    for (size_t o = 0; o < f->m; o++) {
        double off = mean(f, f->n + o) - f->bias[o];
        for (size_t i = 0; i < f->n; i++)
            off -= mean(f, i) * f->w[i * f->m + o];
        error += off * off;
    }
    return error * (double)f->pair->rows;
}

static void take_means(struct fit *f)
{
    for (size_t o = 0; o < f->m; o++) {
        double b = mean(f, f->n + o);
        for (size_t i = 0; i < f->n; i++)
            b -= mean(f, i) * f->w[i * f->m + o];
        f->bias[o] = b;
    }
}

static enum mlo_status fit_group(struct fit *f, bool weights, double damp, double *before, double *after,
                                 double *total, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t o = 0; o < f->m; o++)
        *total += moment(f, f->n + o, f->n + o);
    double was = residual(f) + (f->centred ? mean_error(f) : 0);
    *before += was;
    if (weights) {
        MLO_TRY(solve(f, damp, err));
        mlo_add_scaled(f->w, f->r, 1, f->n * f->m);
        for (size_t i = 0; i < f->n * f->m; i++)
            f->w[i] = (double)(float)f->w[i]; /* as it is stored */
    }
    if (f->centred)
        take_means(f);
    *after += residual(f);
out:
    return status;
}

enum mlo_status mlo_refit(struct mlo_node *node, const struct mlo_gram *pair, bool weights, double damp,
                          struct mlo_refit *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int input;
    int64_t outs;
    const char *why = mlo_refit_refuses(node);
    struct mlo_node *biased = mlo_refit_bias_node(node, &input);
    struct mlo_tensor w = {0}, b = {0};
    struct fit f = {.pair = pair, .centred = biased != NULL};
    double total = 0, before = 0, after = 0;
    char name[256];
    if (!why)
        why = mlo_gram_outs(node, &outs);
    if (!why && pair->rows == 0)
        why = "no row of its inputs was observed, or all held NaN or infinity";
    if (why) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "%s", why);
        mlo_error_where(err, "node '%s'", node->name);
        return MLO_EUNSUPPORTED;
    }
    f.m = (size_t)outs;
    f.n = (size_t)pair->dim - f.m;
    f.a = malloc((f.n * f.n + 1) * sizeof *f.a);
    f.w = malloc((f.n * f.m + 1) * sizeof *f.w);
    f.r = malloc((f.n * f.m + 1) * sizeof *f.r);
    f.bias = calloc(f.m + 1, sizeof *f.bias);
    if (!f.a || !f.w || !f.r || !f.bias) {
        status = mlo_error_nomem(err);
        goto out;
    }
    const struct mlo_tensor *old = biased ? mlo_node_fixed(biased, input) : NULL;
    int64_t all = pair->groups * outs;
    size_t old_count = old ? mlo_tensor_count(old) : 0;
    if (old && (old->dtype != MLO_FLOAT32 || (old_count != 1 && old_count != (size_t)all))) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "node '%s': its bias is not one number a channel",
                               node->name);
        goto out;
    }
    MLO_TRY(mlo_tensor_copy(mlo_node_fixed(node, 1), &w, err));
    MLO_TRY(mlo_tensor_init(&b, MLO_FLOAT32, 1, &all, err));
    bool rows_first =
        mlo_node_is(node, "MatMul") || (mlo_node_is(node, "Gemm") && !mlo_node_attr_i(node, "transB", 0));
    float *x = w.data, *bias = b.data;
    for (f.g = 0; f.g < pair->groups; f.g++) {
        size_t first = (size_t)f.g * f.m;
        for (size_t i = 0; i < f.n; i++)
            for (size_t o = 0; o < f.m; o++)
                f.w[i * f.m + o] = (double)x[rows_first ? i * f.m + o : (first + o) * f.n + i];
        for (size_t o = 0; o < f.m; o++)
            f.bias[o] = old ? (double)((const float *)old->data)[old_count > 1 ? first + o : 0] : 0;
        MLO_TRY(fit_group(&f, weights, damp, &before, &after, &total, err));
        for (size_t i = 0; i < f.n; i++)
            for (size_t o = 0; o < f.m; o++)
                x[rows_first ? i * f.m + o : (first + o) * f.n + i] = (float)f.w[i * f.m + o];
        for (size_t o = 0; o < f.m; o++)
            bias[first + o] = (float)f.bias[o];
    }
    *out = (struct mlo_refit){total > 0 ? before / total : 0, total > 0 ? after / total : 0, biased != NULL};
    if (!mlo_tensor_is_finite(&w) || !mlo_tensor_is_finite(&b)) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "node '%s': its fit is not finite", node->name);
        goto out;
    }
    if (weights)
        MLO_TRY(mlo_pass_set_const_take(node, 1, "weight", &w, err));
    if (biased) {
        snprintf(name, sizeof name, "%.*s_bias", mlo_pass_cut(node->name, 240), node->name);
        if (old) { /* of the shape that it has */
            b.rank = old_count > 1 ? old->rank : 1;
            for (int d = 0; old_count > 1 && d < old->rank; d++)
                b.dims[d] = old->dims[d];
        }
        MLO_TRY(mlo_pass_set_const_take(biased, input, name, &b, err));
    }
out:
    mlo_tensor_clear(&w);
    mlo_tensor_clear(&b);
    free(f.a);
    free(f.w);
    free(f.r);
    free(f.bias);
    return status;
}
