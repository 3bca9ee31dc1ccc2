/* Turns what is inside attention heads. Of queries and keys only the product q^T k is read, which (T^-1 q)^T
 * (T^T k) is too; of values only what weights W read of them, W v = (W T)(T^-1 v). Keys, or W, are to the
 * other side what readers are to a stream of channels, so the same choice makes what is seen of each index
 * independent of the others and orders it: dropping the last ones loses the least squares of Q K^T (singular
 * values of C_q^1/2 C_k^1/2), of what values bring to the output. Keys count about their means in front of a
 * Softmax over them, to which what is added to all scores of a query is nothing. Each head has a T of its
 * own. Plain loops, fixed order.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/prune.h"
#include "passes/prune_impl.h"
#include "passes/round_impl.h"

/* What makes columns of a part: weights, and bias or NULL. */
struct making {
    const struct prune_weighted *w;
    struct mlo_value *weights, *bias;
    const struct mlo_gram *gram;
    size_t columns;
};

struct turning {
    const struct prune_pair *pair;
    struct making from, to;                   /* what makes its parts; of values both the same */
    const struct mlo_gram *read;              /* by its reader, or NULL */
    double *c, *a, *t, *inverse, *scratch[3]; /* [n][n] */
    size_t n;
    double *seen; /* [n]: sums of what queries and keys see of each index, squared */
    int heads;    /* that were turned */
};

static struct making making_of(const struct prune *p, const struct mlo_stats *stats,
                               const struct prune_part *part)
{
    const struct prune_weighted *w = &p->weighted[part->maker];
    int input;
    struct mlo_node *biased = mlo_refit_bias_node((struct mlo_node *)w->node, &input);
    return (struct making){.w = w,
                           .weights = w->node->inputs[1],
                           .bias = biased ? mlo_node_input(biased, input) : NULL,
                           .gram = mlo_stats_find_gram(stats, w->node),
                           .columns = (size_t)mlo_prune_dim(w->node->outputs[0], w->out_axis)};
}

static double weight_at(const struct making *m, size_t row, size_t column)
{
    const float *x = m->weights->constant->data;
    return (double)x[m->w->w_out == 1 ? row * m->columns + column : column * (size_t)m->gram->dim + row];
}

/* Second moments of the columns [first, first + n), about their means or not, from those of what they are
 * made of: W^T G W. */
static bool moments(const struct making *m, size_t first, size_t n, bool centred, double *out)
{
    size_t dim = (size_t)m->gram->dim;
    double rows = (double)m->gram->rows, *w = calloc((dim + 2) * n + 1, sizeof *w), *gw = w + dim * n,
           *mean = gw + n;
    const float *bias = m->bias ? m->bias->constant->data : NULL;
    if (!w)
        return false;
    for (size_t r = 0; r < dim; r++)
        for (size_t j = 0; j < n; j++)
            w[r * n + j] = weight_at(m, r, first + j);
    for (size_t j = 0; bias && j < n; j++)
        mean[j] = (double)bias[first + j];
    for (size_t r = 0; r < dim; r++)
        mlo_add_scaled(mean, w + r * n, m->gram->sum[r] / rows, n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            out[i * n + j] = centred ? 0 : mean[i] * mean[j];
    for (size_t r = 0; r < dim; r++) {
        memset(gw, 0, n * sizeof *gw);
        for (size_t k = 0; k < dim; k++)
            mlo_add_scaled(gw, w + k * n,
                           mlo_gram_at(m->gram, 0, (int64_t)r, (int64_t)k) / rows -
                               (m->gram->sum[r] / rows) * (m->gram->sum[k] / rows),
                           n);
        for (size_t i = 0; i < n; i++)
            mlo_add_scaled(out + i * n, gw, w[r * n + i], n);
    }
    free(w);
    return true;
}

/* Covariance of rows [first, first + n) of what weights read, and those rows' products. */
static void readings(const struct prune_weighted *w, const struct mlo_gram *gram, size_t first, size_t n,
                     double *c, double *a)
{
    const float *x = mlo_node_fixed(w->node, 1)->data;
    size_t dim = (size_t)gram->dim, outs = mlo_tensor_count(mlo_node_fixed(w->node, 1)) / dim;
    double rows = (double)gram->rows;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            size_t p = first + i, q = first + j;
            double sum = 0;
            for (size_t o = 0; o < outs; o++)
                sum += w->w_in == 0 ? (double)x[p * outs + o] * (double)x[q * outs + o]
                                    : (double)x[o * dim + p] * (double)x[o * dim + q];
            a[i * n + j] = sum;
            c[i * n + j] = mlo_gram_at(gram, 0, (int64_t)p, (int64_t)q) / rows -
                           (gram->sum[p] / rows) * (gram->sum[q] / rows);
        }
}

static enum mlo_status turn_made(const struct making *m, size_t first, size_t n, const double *by,
                                 bool transposed, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_prune_turn_axis(m->weights, m->w->w_out, (int64_t)first, n, by, transposed, err));
    if (m->bias)
        MLO_TRY(mlo_prune_turn_axis(m->bias, mlo_prune_rank(m->bias) - 1, (int64_t)first, n, by, transposed,
                                    err));
out:
    return status;
}

static enum mlo_status turn_head(struct turning *t, int64_t head, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct prune_pair *pair = t->pair;
    const struct prune_part *one = &pair->part[0], *other = &pair->part[1];
    size_t first = (size_t)(one->offset + head * one->stride), n = t->n,
           second = (size_t)(other->offset + head * other->stride);
    if (pair->reader) {
        second = (size_t)head * n;
        readings(pair->reader, t->read, second, n, t->c, t->a);
    } else if (!moments(&t->from, first, n, false, t->c) ||
               !moments(&t->to, second, n, pair->softened, t->a)) {
        return mlo_error_nomem(err);
    }
    if (!mlo_prune_varies(t->c, n) || !mlo_prune_varies(t->a, n)) /* never seen: no order */
        return MLO_OK;
    mlo_prune_choose(t->c, t->a, t->t, t->inverse, t->scratch, n);
    for (size_t i = 0; i < n; i++)
        t->seen[i] += fmax(t->scratch[1][i * (n + 1)], 0);
    t->heads++;
    MLO_TRY(turn_made(&t->from, first, n, t->inverse, false, err));
    if (pair->reader)
        MLO_TRY(mlo_prune_turn_axis(pair->reader->node->inputs[1], pair->reader->w_in, (int64_t)second, n,
                                    t->t, true, err));
    else
        MLO_TRY(turn_made(&t->to, second, n, t->t, true, err));
out:
    return status;
}

/* *heads: so many were. `seen` (or NULL) gets each index's share of the products of queries and keys. */
static enum mlo_status turn_pair(struct prune *p, const struct mlo_stats *stats,
                                 const struct prune_pair *pair, double *seen, int *heads,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t n = (size_t)pair->part[0].width, square = n * n;
    double *all = calloc(7 * square + n, sizeof *all), sum = 0;
    if (!all)
        return mlo_error_nomem(err);
    struct turning t = {
        .pair = pair,
        .from = making_of(p, stats, &pair->part[0]),
        .to = making_of(p, stats, &pair->part[1]),
        .read = pair->reader ? mlo_stats_find_gram(stats, pair->reader->node) : NULL,
        .c = all,
        .a = all + square,
        .t = all + 2 * square,
        .inverse = all + 3 * square,
        .scratch = {all + 4 * square, all + 5 * square, all + 6 * square},
        .n = n,
        .seen = all + 7 * square,
    };
    for (int64_t h = 0; h < pair->part[0].heads; h++)
        MLO_TRY(turn_head(&t, h, err));
    for (size_t i = 0; i < n; i++)
        sum += t.seen[i];
    for (size_t i = 0; seen && sum > 0 && i < n; i++)
        seen[i] += t.seen[i] / sum;
out:
    *heads = t.heads;
    free(all);
    return status;
}

enum mlo_status mlo_prune_turn_heads(struct prune *p, const json_t *exclude, const struct mlo_stats *stats,
                                     struct mlo_pass_context *ctx, struct mlo_arena *arena,
                                     struct mlo_prune_turned *list, struct mlo_error *err)
{
    enum mlo_status status;
    struct prune_attention found;
    MLO_TRY(mlo_prune_find_attention(p, exclude, stats, arena, &found, list, err));
    for (int i = 0; i < found.count; i++) {
        const struct prune_pair *pair = &found.pairs[i];
        const struct prune_part *part = &pair->part[0];
        double *seen = pair->reader ? NULL : mlo_prune_width_of(list, part->split)->seen;
        int heads;
        MLO_TRY(turn_pair(p, stats, pair, seen, &heads, err));
        if (!heads)
            continue;
        list->groups++;
        mlo_pass_note(ctx, p->weighted[part->maker].node->name,
                      "%s of %d heads are turned: indices of their width of %lld can go, instead of heads",
                      pair->reader ? "values" : "queries and keys", heads, (long long)part->width);
    }
out:
    return status;
}
