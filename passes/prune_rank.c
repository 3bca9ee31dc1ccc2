/* What units are worth: criteria for which of a group go first. Each node's numbers count as shares of the
 * node's total, so that nodes of different scales can be added and groups compared. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/prune_impl.h"

int64_t mlo_prune_gram_channel(const struct prune_weighted *w, int64_t g, int64_t row)
{
    const struct mlo_value *v = w->node->inputs[w->weight];
    if (!mlo_node_is(w->node, "Conv"))
        return row;
    int64_t kernel = 1, per = mlo_prune_dim(v, 1);
    for (int d = 2; d < v->type.rank; d++)
        kernel *= mlo_prune_dim(v, d);
    return g * per + row / kernel;
}

bool mlo_prune_has_gram(const struct prune_weighted *w)
{
    int64_t groups, dim;
    const struct mlo_tensor *weights = mlo_node_fixed(w->node, w->weight);
    return w->w_in >= 0 && w->weight == 1 && w->x_axis >= 0 && weights && weights->dtype == MLO_FLOAT32 &&
           !mlo_node_is(w->node, "ConvTranspose") && !mlo_gram_shape(w->node, &groups, &dim);
}

/* Index along an axis of element e. */
static int64_t index_at(const struct mlo_tensor *t, int axis, size_t e)
{
    size_t inner = 1;
    for (int d = axis + 1; d < t->rank; d++)
        inner *= (size_t)t->dims[d];
    return (int64_t)(e / inner % (size_t)t->dims[axis]);
}

enum { ALL_GROUPS = -1 };

/* Adds each index's share of the sum of |w| or w^2 to its unit, if that is of the group. */
static void add_norms(struct prune *p, const struct mlo_value *v, int axis, bool squares, int group)
{
    const struct mlo_tensor *t = v->constant;
    size_t count = mlo_tensor_count(t);
    double total = 0;
    if (axis < 0 || axis >= t->rank || t->dims[axis] < 2)
        return;
    for (int pass = 0; pass < 2; pass++)
        for (size_t e = 0; e < count; e++) {
            double x = mlo_tensor_get_f64(t, e), size = squares ? x * x : fabs(x);
            int unit = pass ? mlo_prune_unit_at(p, v, axis, index_at(t, axis, e)) : -1;
            if (!pass)
                total += size;
            if (unit < 0 || (group != ALL_GROUPS && p->units[unit].group != group))
                continue;
            p->units[unit].ranked = true;
            if (total > 0)
                p->units[unit].worth += size / total;
        }
}

static void by_norm(struct prune *p, bool squares, int group)
{
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        add_norms(p, w->node->inputs[w->weight], w->w_out, squares, group);
    }
}

/* |gamma| of BatchNormalization (Liu et al. 2017, "Learning Efficient Convolutional Networks through Network
 * Slimming", arXiv:1708.06519). False: no group has one. */
static bool by_bn_scale(struct prune *p)
{
    bool any = false;
    for (int n = 0; n < p->graph->node_count; n++) {
        const struct mlo_node *node = p->graph->nodes[n];
        if (!mlo_node_is(node, "BatchNormalization") || !mlo_node_fixed(node, 1))
            continue;
        any = true;
        add_norms(p, node->inputs[1], 0, false, ALL_GROUPS);
    }
    return any;
}

/* The square of what each input channel brings to the outputs: its mean square times its weights' squares. */
static void by_activation(struct prune *p, const struct prune_weighted *w, const struct mlo_gram *gram)
{
    const struct mlo_tensor *t = mlo_node_fixed(w->node, 1);
    const struct mlo_value *x = w->node->inputs[0];
    const float *weights = t->data;
    bool rows_first = mlo_node_is(w->node, "MatMul") || (mlo_node_is(w->node, "Gemm") && w->w_in == 0);
    int64_t outs = (int64_t)mlo_tensor_count(t) / gram->dim / gram->groups;
    double total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t g = 0; g < gram->groups; g++)
            for (int64_t r = 0; r < gram->dim; r++) {
                double sum = 0;
                for (int64_t o = 0; o < outs; o++) {
                    double v = (double)weights[rows_first ? r * outs + o : (g * outs + o) * gram->dim + r];
                    sum += v * v;
                }
                sum *= mlo_gram_at(gram, g, r, r);
                int unit = pass ? mlo_prune_unit_at(p, x, w->x_axis, mlo_prune_gram_channel(w, g, r)) : -1;
                if (!pass)
                    total += sum;
                if (unit < 0)
                    continue;
                p->units[unit].ranked = true;
                if (total > 0)
                    p->units[unit].worth += sum / total;
            }
}

static enum mlo_status by_statistics(struct prune *p, const struct mlo_stats *stats, struct mlo_error *err)
{
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        const struct mlo_gram *gram = mlo_prune_has_gram(w) ? mlo_stats_find_gram(stats, w->node) : NULL;
        if (!gram)
            continue;
        if (gram->rows == 0) {
            mlo_error_set(err, MLO_EINVAL, "no row of its inputs was observed, or all held NaN or infinity");
            mlo_error_where(err, "node '%s'", w->node->name);
            return MLO_EINVAL;
        }
        by_activation(p, w, gram);
    }
    return MLO_OK;
}

struct ranked {
    int unit;
    double worth;
};

static int lighter(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->worth != y->worth)
        return x->worth < y->worth ? -1 : 1;
    return x->unit < y->unit ? -1 : 1;
}

static enum mlo_status order_group(struct prune *p, struct prune_group *group, struct mlo_error *err)
{
    struct ranked *list = malloc(((size_t)group->count + 1) * sizeof *list);
    if (!list)
        return mlo_error_nomem(err);
    for (int i = 0; i < group->count; i++) {
        double worth = p->units[group->order[i]].worth;
        list[i] = (struct ranked){group->order[i], isnan(worth) ? HUGE_VAL : worth}; /* goes last */
    }
    qsort(list, (size_t)group->count, sizeof *list, lighter);
    for (int i = 0; i < group->count; i++) {
        group->order[i] = list[i].unit;
        group->error[i + 1] = group->error[i] + list[i].worth;
    }
    free(list);
    return MLO_OK;
}

static bool is_ranked(const struct prune *p, const struct prune_group *group)
{
    for (int i = 0; i < group->count; i++)
        if (p->units[group->order[i]].ranked)
            return true;
    return false;
}

/* A criterion that says nothing of a group would call all of it worthless. */
static void rank_rest(struct prune *p, int g, const char *why, struct mlo_pass_context *ctx)
{
    const struct prune_group *group = &p->groups[g];
    by_norm(p, true, g);
    if (group->maker)
        mlo_pass_note(ctx, group->maker->node->name, "ranked by norms of weights: %s", why);
}

enum mlo_status mlo_prune_rank_units(struct prune *p, const struct prune_settings *s,
                                     const struct mlo_stats *stats, struct mlo_pass_context *ctx,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool second = strcmp(s->criterion, "second-order") == 0, done = false;
    const char *unranked = "nothing that reads its channels has a matrix of what it reads";
    for (int u = 0; u < p->unit_count; u++) {
        p->units[u].worth = 0;
        p->units[u].ranked = false;
    }
    if (second || strcmp(s->criterion, "activation") == 0) {
        if (!stats) {
            mlo_error_set(err, MLO_EINVAL, "the criterion %s needs statistics of observed values",
                          s->criterion);
            mlo_error_where(err, "option 'criterion'");
            mlo_error_hint(err, "give calibration data, or use l2");
            return MLO_EINVAL;
        }
        MLO_TRY(by_statistics(p, stats, err));
    } else if (strcmp(s->criterion, "bn-scale") == 0) {
        if (!by_bn_scale(p)) {
            mlo_error_set(err, MLO_EINVAL,
                          "the model has no BatchNormalization whose scales could rank channels");
            mlo_error_where(err, "option 'criterion'");
            mlo_error_hint(err, "it was folded, or never there: use l2 or second-order");
            return MLO_EINVAL;
        }
        unranked = "no BatchNormalization scales its channels";
    } else {
        by_norm(p, strcmp(s->criterion, "l1") != 0, ALL_GROUPS);
    }
    for (int g = 0; g < p->group_count; g++) {
        done = false;
        if (second)
            MLO_TRY(mlo_prune_second_order(p, &p->groups[g], stats, &done, err));
        if (!done && !is_ranked(p, &p->groups[g]))
            rank_rest(p, g, unranked, ctx);
        else if (second && !done && p->groups[g].maker)
            mlo_pass_note(ctx, p->groups[g].maker->node->name,
                          "ranked by activations: no full matrix of what reads its channels (of at most %d "
                          "inputs) was there",
                          MLO_PRUNE_DIM_MAX);
        if (!done)
            MLO_TRY(order_group(p, &p->groups[g], err));
    }
out:
    return status;
}
