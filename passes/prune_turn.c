/* Channels that only sums and averages stand between, from the weights that make them to those that read
 * them, can be any others that say the same: with z = T^-1 x, weights T^-1 W make them and W T reads them.
 * The ones chosen here are uncorrelated and ordered by what those that read them see of each (reduced rank
 * regression: the eigenvectors of C^1/2 A C^1/2, of the covariance C of channels and A = W^T W), so that
 * pruning takes the least of what is read, and not the least of what happens to be a channel. The idea is
 * that of SliceGPT (Ashkboos et al. 2024, arXiv:2401.15024) with T from both sides. Plain loops in a fixed
 * order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/prune.h"
#include "passes/prune_impl.h"

#define FLOOR 1e-3 /* share of the mean variance that each channel has at least */

enum { SWEEPS = 40 };

/* --- which groups ---------------------------------------------------------------------------------- */

struct stream {
    const struct prune *p;
    int group;
    int64_t n;
    const int *unit; /* [n]: of index i */
};

/* Whether the axis of the value is that of the group: 1 and index by index, 0 not at all, -1 otherwise. */
static int has_axis(const struct stream *s, const struct mlo_value *v, int axis)
{
    int64_t dim = mlo_prune_dim(v, axis), same = 0, some = 0;
    for (int64_t i = 0; i < dim; i++) {
        int u = mlo_prune_unit_at(s->p, v, axis, i);
        some += u >= 0 && s->p->units[u].group == s->group;
        same += i < s->n && u >= 0 && u == s->unit[i];
    }
    return some == 0 ? 0 : same == s->n && dim == s->n ? 1 : -1;
}

static bool is_product(const struct mlo_node *node)
{
    return mlo_node_is(node, "Gemm") || mlo_node_is(node, "MatMul") ||
           (mlo_node_is(node, "Conv") && mlo_node_attr_i(node, "group", 1) == 1);
}

static bool averages(const struct mlo_node *node)
{
    return mlo_node_is(node, "AveragePool") || mlo_node_is(node, "GlobalAveragePool");
}

/* A sum has the group's channels in all that it adds: a number for all channels would be another one. */
static bool sums(const struct stream *s, const struct mlo_node *node, int axis)
{
    if (!mlo_node_is(node, "Add"))
        return false;
    for (int i = 0; i < node->input_count; i++) {
        int at = axis - (node->outputs[0]->type.rank - mlo_prune_rank(node->inputs[i]));
        if (at < 0 || has_axis(s, node->inputs[i], at) != 1)
            return false;
    }
    return true;
}

/* Whether a node may have the group's channels on that axis of its output, or of its input number `in`. */
static bool allows(const struct stream *s, const struct mlo_node *node, int in, int axis)
{
    const struct prune_weighted *w = mlo_prune_weighted_of(s->p, node);
    if (in < 0 && is_product(node)) {
        const struct mlo_value *bias = mlo_node_is(node, "MatMul") ? NULL : mlo_node_input(node, 2);
        return w && w->weight == 1 && w->out_axis == axis &&
               (!bias || has_axis(s, bias, mlo_prune_rank(bias) - 1) == 1);
    }
    if (is_product(node) && in == 0)
        return w && w->weight == 1 && w->x_axis == axis && mlo_prune_has_gram(w);
    if (is_product(node))
        return w && ((in == 1 && (axis == w->w_out || axis == w->w_in)) || in == 2);
    if (averages(node))
        return in <= 0;
    return mlo_node_is(node, "Add") &&
           sums(s, node,
                in < 0 ? axis : axis + node->outputs[0]->type.rank - mlo_prune_rank(node->inputs[in]));
}

static bool allows_value(const struct stream *s, const struct mlo_value *v, int axis)
{
    if (v->constant && (v->use_count != 1 || v->constant->dtype != MLO_FLOAT32 || v->is_input))
        return false;
    if (v->is_output || (!v->constant && !v->producer))
        return false;
    if (v->producer && !allows(s, v->producer, -1, axis))
        return false;
    for (int u = 0; u < v->use_count; u++) {
        const struct mlo_node *node = v->uses[u].node;
        if (node->graph != s->p->graph)
            return false;
        for (int i = 0; i < node->input_count; i++)
            if (node->inputs[i] == v && !allows(s, node, i, axis))
                return false;
    }
    return true;
}

static bool is_linear(const struct stream *s)
{
    for (int i = 0; i < s->p->value_count; i++) {
        const struct mlo_value *v = s->p->graph->values[i];
        for (int a = 0; a < mlo_prune_rank(v); a++) {
            int has = has_axis(s, v, a);
            if (has < 0 || (has && !allows_value(s, v, a)))
                return false;
        }
    }
    return true;
}

/* --- covariance, and what is read ------------------------------------------------------------------ */

/* Adds a reader's share: c, of its inputs about their means; a, of its weights over what its outputs vary by.
 */
static bool add_reader(const struct stream *s, const struct prune_weighted *w, const struct mlo_gram *gram,
                       double *c, double *a)
{
    size_t n = (size_t)s->n, dim = (size_t)gram->dim, kernel = dim / n;
    const struct mlo_tensor *t = mlo_node_fixed(w->node, 1);
    size_t outs = mlo_tensor_count(t) / dim;
    const float *x = t->data;
    bool rows_first = !mlo_node_is(w->node, "Conv") && w->w_in == 0;
    double *mine = calloc(2 * n * n + 1, sizeof *mine), *seen = mine + n * n, varies = 0, energy = 0;
    if (!mine)
        return false;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t k = 0; k < kernel; k++) {
                size_t p = i * kernel + k, q = j * kernel + k;
                double both = mlo_gram_at(gram, 0, (int64_t)p, (int64_t)q);
                mine[i * n + j] += (both - gram->sum[p] * gram->sum[q] / (double)gram->rows) /
                                   (double)gram->rows / (double)kernel;
                for (size_t o = 0; o < outs && rows_first; o++)
                    seen[i * n + j] += (double)x[p * outs + o] * (double)x[q * outs + o];
            }
    for (size_t o = 0; o < outs && !rows_first; o++) { /* an output's weights are neighbours */
        const float *row = x + o * dim;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                for (size_t k = 0; k < kernel; k++)
                    seen[i * n + j] += (double)row[i * kernel + k] * (double)row[j * kernel + k];
    }
    for (size_t i = 0; i < n * n; i++)
        energy += mine[i] * seen[i];
    for (size_t i = 0; i < n; i++)
        varies += mine[i * n + i];
    for (size_t i = 0; i < n * n; i++) {
        c[i] += varies > 0 ? mine[i] : 0;
        a[i] += energy > 0 ? seen[i] / energy : 0;
    }
    free(mine);
    return true;
}

/* Eigenvectors of the symmetric m[n][n] as columns of v, eigenvalues on m's diagonal (Jacobi's rotations). */
static void eigen(double *m, double *v, size_t n)
{
    for (size_t i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off = 0, on = 0;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                *(i == j ? &on : &off) += m[i * n + j] * m[i * n + j];
        if (!(off > 1e-24 * on))
            return;
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) {
                double apq = m[p * n + q];
                if (apq == 0)
                    continue;
                double theta = (m[q * n + q] - m[p * n + p]) / (2 * apq);
                double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
                double c = 1 / sqrt(t * t + 1), s = t * c;
                for (size_t k = 0; k < n; k++) {
                    double x = m[k * n + p], y = m[k * n + q];
                    m[k * n + p] = c * x - s * y;
                    m[k * n + q] = s * x + c * y;
                }
                for (size_t k = 0; k < n; k++) {
                    double x = m[p * n + k], y = m[q * n + k];
                    m[p * n + k] = c * x - s * y;
                    m[q * n + k] = s * x + c * y;
                    x = v[k * n + p];
                    y = v[k * n + q];
                    v[k * n + p] = c * x - s * y;
                    v[k * n + q] = s * x + c * y;
                }
            }
    }
}

/* out = x y, or x y^T. */
static void multiply(const double *x, const double *y, bool transposed, double *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++)
                sum += x[i * n + k] * (transposed ? y[j * n + k] : y[k * n + j]);
            out[i * n + j] = sum;
        }
}

void mlo_prune_choose(double *c, const double *a, double *t, double *inverse, double *b[3], size_t n)
{
    double mean = 0, *b0 = b[0], *b1 = b[1], *b2 = b[2];
    for (size_t i = 0; i < n; i++)
        mean += c[i * n + i] / (double)n;
    for (size_t i = 0; i < n; i++)
        c[i * n + i] += FLOOR * mean;
    eigen(c, b0, n); /* c = b0 diag b0^T */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double root = sqrt(fmax(c[j * n + j], 0.5 * FLOOR * mean));
            b1[i * n + j] = b0[i * n + j] * root;
            b2[i * n + j] = b0[i * n + j] / root;
        }
    multiply(b1, b0, true, t, n);       /* C^1/2 */
    multiply(b2, b0, true, inverse, n); /* C^-1/2 */
    multiply(t, a, false, b0, n);
    multiply(b0, t, false, b1, n); /* C^1/2 A C^1/2 */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            b1[i * n + j] = b1[j * n + i] = 0.5 * (b1[i * n + j] + b1[j * n + i]);
    eigen(b1, b2, n);
    for (size_t j = 0; j < n; j++) { /* columns by eigenvalue, the largest in front */
        size_t best = j;
        for (size_t k = j + 1; k < n; k++)
            best = b1[k * n + k] > b1[best * n + best] ? k : best;
        double value = b1[best * n + best];
        b1[best * n + best] = b1[j * n + j];
        b1[j * n + j] = value;
        for (size_t i = 0; i < n; i++) {
            double x = b2[i * n + best];
            b2[i * n + best] = b2[i * n + j];
            b2[i * n + j] = x;
        }
    }
    multiply(t, b2, false, b0, n);
    memcpy(t, b0, n * n * sizeof *t);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++)
                sum += b2[k * n + i] * inverse[k * n + j];
            b0[i * n + j] = sum;
        }
    memcpy(inverse, b0, n * n * sizeof *t);
}

/* --- taking them ----------------------------------------------------------------------------------- */

enum mlo_status mlo_prune_turn_axis(struct mlo_value *v, int axis, int64_t first, size_t n, const double *m,
                                    bool transposed, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor now = {0};
    size_t dim = (size_t)v->constant->dims[axis], inner = 1;
    for (int d = axis + 1; d < v->constant->rank; d++)
        inner *= (size_t)v->constant->dims[d];
    size_t outer = mlo_tensor_count(v->constant) / dim / inner;
    MLO_TRY(mlo_tensor_copy(v->constant, &now, err));
    const float *x = v->constant->data;
    float *y = now.data;
    for (size_t o = 0; o < outer; o++) {
        size_t at = o * dim + (size_t)first;
        for (size_t j = 0; j < n; j++)
            for (size_t k = 0; k < inner; k++) {
                double sum = 0;
                for (size_t i = 0; i < n; i++)
                    sum += m[transposed ? i * n + j : j * n + i] * (double)x[(at + i) * inner + k];
                y[(at + j) * inner + k] = (float)sum;
            }
    }
    if (!mlo_tensor_is_finite(&now)) {
        status = mlo_error_set(err, MLO_EINVAL, "the turned weights of '%.200s' are not finite", v->name);
        goto out;
    }
    status = mlo_value_set_constant_take(v, &now, err);
out:
    mlo_tensor_clear(&now);
    return status;
}

static enum mlo_status turn_all(const struct stream *s, const double *t, const double *inverse,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < s->p->value_count; i++) {
        struct mlo_value *v = s->p->graph->values[i];
        for (int a = 0; v->constant && a < mlo_prune_rank(v); a++) {
            if (has_axis(s, v, a) != 1)
                continue;
            const struct prune_weighted *w = mlo_prune_weighted_of(s->p, v->uses[0].node);
            bool reads = w && w->node->inputs[1] == v && a == w->w_in;
            MLO_TRY(mlo_prune_turn_axis(v, a, 0, (size_t)s->n, reads ? t : inverse, reads, err));
        }
    }
out:
    return status;
}

bool mlo_prune_varies(const double *m, size_t n)
{
    double trace = 0;
    for (size_t i = 0; i < n; i++)
        trace += m[i * (n + 1)];
    return trace > 0 && isfinite(trace);
}

static enum mlo_status turn_group(struct prune *p, int g, const struct mlo_stats *stats, bool *turned,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct prune_group *group = &p->groups[g];
    struct stream s = {p, g, group->count, group->order};
    size_t square = (size_t)group->count * (size_t)group->count, readers = 0;
    double *all = NULL;
    *turned = false;
    if (group->block != 1 || group->count < 2 || group->count > MLO_PRUNE_TURN_MAX || !is_linear(&s))
        return MLO_OK;
    all = calloc(7 * square + 1, sizeof *all);
    if (!all)
        return mlo_error_nomem(err);
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        if (w->w_in < 0 || w->x_axis < 0 || has_axis(&s, w->node->inputs[0], w->x_axis) != 1)
            continue;
        const struct mlo_gram *gram = mlo_stats_find_gram(stats, w->node);
        if (!gram || !gram->full || gram->rows == 0 || gram->groups != 1)
            goto out;
        if (!add_reader(&s, w, gram, all, all + square)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        readers++;
    }
    if (!readers || !mlo_prune_varies(all, (size_t)group->count) ||
        !mlo_prune_varies(all + square, (size_t)group->count))
        goto out;
    double *t = all + 2 * square, *inverse = all + 3 * square;
    double *scratch[] = {all + 4 * square, all + 5 * square, all + 6 * square};
    mlo_prune_choose(all, all + square, t, inverse, scratch, (size_t)group->count);
    MLO_TRY(turn_all(&s, t, inverse, err));
    *turned = true;
out:
    free(all);
    return status;
}

enum mlo_status mlo_prune_turn(struct mlo_model *model, const json_t *options, const struct mlo_stats *stats,
                               struct mlo_pass_context *ctx, mlo_prune_tell_fn *tell, void *arg,
                               struct mlo_arena *arena, struct mlo_prune_turned *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct prune *p;
    const json_t *exclude = json_object_get(options, "exclude");
    struct mlo_arena *own = mlo_arena_new(); /* of analyses: they are large */
    *out = (struct mlo_prune_turned){0};
    if (!own)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_prune_analyse(model->graph, exclude, NULL, own, &p, err));
    MLO_TRY(mlo_prune_check_finite(p, err));
    /* before the streams that they read, of which something else would be observed then */
    if (!mlo_prune_keeps_heads(options))
        MLO_TRY(mlo_prune_turn_heads(p, exclude, stats, ctx, arena, out, err));
    for (int g = 0; g < p->group_count; g++) {
        bool turned;
        if (tell)
            tell(arg, g, p->group_count);
        MLO_TRY(turn_group(p, g, stats, &turned, err));
        if (!turned)
            continue;
        out->groups++;
        if (p->groups[g].maker)
            mlo_pass_note(
                ctx, p->groups[g].maker->node->name,
                "its %d channels are turned: nothing but sums stand between them and what reads them",
                p->groups[g].count);
    }
out:
    mlo_arena_free(own);
    return status;
}
