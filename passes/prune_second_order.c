/* Second order: which units can go so that the outputs of those that read them change least, when the other
 * inputs make good what they can. Of outputs X W with H = X^T X, taking rows u of W away and moving the
 * others costs W_u^T (H^-1_uu)^-1 W_u (Hassibi and Stork 1993, "Second order derivatives for network pruning:
 * Optimal Brain Surgeon"); one unit after the other goes, the cheapest first. Plain loops in a fixed order.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/prune_impl.h"
#include "passes/round_impl.h"

#define DAMP 0.01 /* share of the mean of the diagonal that is added to it */

/* One matrix of a node that reads the group's channels. */
struct reader {
    size_t n, outs;
    double *inverse; /* [n][n] */
    double *w;       /* [n][outs], as moved so far */
    double total;    /* sum of squares of its outputs, without their means */
    int *unit;       /* [n]: of the row, in the group's first order; -1: of no unit of the group */
};

static void reader_clear(struct reader *r)
{
    free(r->inverse);
    free(r->w);
    free(r->unit);
    *r = (struct reader){0};
}

/* a becomes its inverse; `t` is scratch of the same size. */
static bool invert(double *a, double *t, size_t n)
{
    if (!mlo_cholesky(a, n))
        return false;
    for (size_t i = 0; i < n; i++) { /* t: the factor's inverse */
        double *row = t + i * n;
        memset(row, 0, n * sizeof *row);
        row[i] = 1;
        for (size_t k = 0; k < i; k++)
            mlo_add_scaled(row, t + k * n, -a[i * n + k], k + 1);
        for (size_t j = 0; j <= i; j++)
            row[j] /= a[i * n + i];
    }
    memset(a, 0, n * n * sizeof *a);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i <= k; i++)
            mlo_add_scaled(a + i * n, t + k * n, t[k * n + i], k + 1);
    return true;
}

/* Sum of squares of outputs about their means, w^T (H - n m m^T) w over the outputs. */
static double energy(const struct mlo_gram *gram, int64_t g, const double *w, size_t outs)
{
    size_t n = (size_t)gram->dim;
    const double *sum = gram->sum + (size_t)g * n;
    double total = 0, *row = malloc((outs + 1) * sizeof *row);
    for (size_t i = 0; row && i < n; i++) {
        memset(row, 0, outs * sizeof *row);
        for (size_t j = 0; j < n; j++)
            mlo_add_scaled(
                row, w + j * outs,
                mlo_gram_at(gram, g, (int64_t)i, (int64_t)j) - sum[i] * sum[j] / (double)gram->rows, outs);
        for (size_t o = 0; o < outs; o++)
            total += w[i * outs + o] * row[o];
    }
    free(row);
    return total;
}

static void read_weights(const struct prune_weighted *w, const struct mlo_gram *gram, int64_t g, size_t outs,
                         double *to)
{
    const float *x = mlo_node_fixed(w->node, 1)->data;
    bool rows_first = mlo_node_is(w->node, "MatMul") || (mlo_node_is(w->node, "Gemm") && w->w_in == 0);
    size_t n = (size_t)gram->dim;
    for (size_t r = 0; r < n; r++)
        for (size_t o = 0; o < outs; o++)
            to[r * outs + o] = (double)x[rows_first ? r * outs + o : ((size_t)g * outs + o) * n + r];
}

static enum mlo_status reader_init(struct reader *r, const struct prune_weighted *w,
                                   const struct mlo_gram *gram, int64_t g, const int *unit,
                                   struct mlo_error *err)
{
    size_t n = (size_t)gram->dim;
    size_t outs = mlo_tensor_count(mlo_node_fixed(w->node, 1)) / n / (size_t)gram->groups;
    double *t = malloc((n * n + 1) * sizeof *t), mean = 0;
    *r = (struct reader){.n = n, .outs = outs};
    r->inverse = malloc((n * n + 1) * sizeof *r->inverse);
    r->w = malloc((n * outs + 1) * sizeof *r->w);
    r->unit = malloc((n + 1) * sizeof *r->unit);
    if (!t || !r->inverse || !r->w || !r->unit) {
        free(t);
        return mlo_error_nomem(err);
    }
    memcpy(r->unit, unit, n * sizeof *unit);
    read_weights(w, gram, g, outs, r->w);
    r->total = energy(gram, g, r->w, outs);
    const double *sum = gram->sum + (size_t)g * n;
    for (size_t i = 0; i < n; i++) {
        double c = mlo_gram_at(gram, g, (int64_t)i, (int64_t)i) - sum[i] * sum[i] / (double)gram->rows;
        mean += c > 0 ? c / (double)n : 0;
    }
    double lambda = mean > 0 ? DAMP * mean : 1;
    for (int attempt = 0; attempt < 6; attempt++, lambda *= 10) {
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++)
                r->inverse[i * n + j] = mlo_gram_at(gram, g, (int64_t)i, (int64_t)j) -
                                        sum[i] * sum[j] / (double)gram->rows + (i == j ? lambda : 0);
        if (invert(r->inverse, t, n))
            break;
        if (attempt == 5) {
            free(t);
            return mlo_error_set(err, MLO_EINVAL, "node '%s': the matrix of its inputs has no inverse",
                                 w->node->name);
        }
    }
    free(t);
    for (size_t i = 0; i < n; i++) /* only one half was made */
        for (size_t j = i + 1; j < n; j++)
            r->inverse[i * n + j] = r->inverse[j * n + i];
    return MLO_OK;
}

/* Rows of a unit; their number. */
static size_t rows_of(const struct reader *r, int unit, size_t *rows)
{
    size_t m = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->unit[i] == unit)
            rows[m++] = i;
    return m;
}

/* Factor of H^-1_uu in `b` [m][m]; L^-1 W_u in `y` [m][outs]. */
static bool solve(const struct reader *r, const size_t *rows, size_t m, double *b, double *y)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j <= i; j++)
            b[i * m + j] = r->inverse[rows[i] * r->n + rows[j]];
    if (!mlo_cholesky(b, m))
        return false;
    for (size_t i = 0; i < m; i++) {
        double *row = y + i * r->outs;
        memcpy(row, r->w + rows[i] * r->outs, r->outs * sizeof *row);
        for (size_t k = 0; k < i; k++)
            mlo_add_scaled(row, y + k * r->outs, -b[i * m + k], r->outs);
        for (size_t o = 0; o < r->outs; o++)
            row[o] /= b[i * m + i];
    }
    return true;
}

static double price(const struct reader *r, int unit, size_t *rows, double *b, double *y)
{
    size_t m = rows_of(r, unit, rows);
    double sum = 0;
    if (!m || !(r->total > 0))
        return 0;
    if (!solve(r, rows, m, b, y))
        return DBL_MAX / 1e6;
    for (size_t i = 0; i < m * r->outs; i++)
        sum += y[i] * y[i];
    return sum / r->total;
}

/* The unit goes: what is left of the weights moves, and the inverse is that of the other rows. */
static void remove_unit(struct reader *r, int unit, size_t *rows, double *b, double *y, double *c)
{
    size_t m = rows_of(r, unit, rows), n = r->n;
    if (!m || !solve(r, rows, m, b, y))
        return;
    /* c [m][n] = L^-1 H^-1_u,: ; then w -= c^T y and inverse -= c^T c */
    for (size_t i = 0; i < m; i++) {
        double *row = c + i * n;
        memcpy(row, r->inverse + rows[i] * n, n * sizeof *row);
        for (size_t k = 0; k < i; k++)
            mlo_add_scaled(row, c + k * n, -b[i * m + k], n);
        for (size_t j = 0; j < n; j++)
            row[j] /= b[i * m + i];
    }
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < m; i++) {
            mlo_add_scaled(r->w + j * r->outs, y + i * r->outs, -c[i * n + j], r->outs);
            mlo_add_scaled(r->inverse + j * n, c + i * n, -c[i * n + j], n);
        }
    for (size_t i = 0; i < m; i++) {
        r->unit[rows[i]] = -1;
        memset(r->w + rows[i] * r->outs, 0, r->outs * sizeof *r->w);
        for (size_t j = 0; j < n; j++)
            r->inverse[rows[i] * n + j] = r->inverse[j * n + rows[i]] = 0;
    }
}

/* All matrices of nodes that read the group, *whole false where one is not there in full. */
static enum mlo_status find_readers(struct prune *p, const struct prune_group *group,
                                    const struct mlo_stats *stats, struct reader **out, size_t *count,
                                    bool *whole, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int *unit = NULL, *place = malloc(((size_t)p->unit_count + 1) * sizeof *place);
    size_t cap = 0;
    if (!place)
        return mlo_error_nomem(err);
    for (int u = 0; u < p->unit_count; u++)
        place[u] = -1;
    for (int i = 0; i < group->count; i++)
        place[group->order[i]] = i;
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        int64_t groups, dim;
        bool reads = false;
        if (w->w_in < 0 || w->x_axis < 0)
            continue;
        const struct mlo_value *x = w->node->inputs[0];
        for (int64_t i = 0; !reads && i < mlo_prune_dim(x, w->x_axis); i++) {
            int u = mlo_prune_unit_at(p, x, w->x_axis, i);
            reads = u >= 0 && place[u] >= 0;
        }
        if (!reads)
            continue;
        const struct mlo_gram *gram = mlo_prune_has_gram(w) ? mlo_stats_find_gram(stats, w->node) : NULL;
        if (!gram || !gram->full || mlo_gram_shape(w->node, &groups, &dim)) {
            *whole = false;
            goto out;
        }
        cap = *count + (size_t)groups;
        struct reader *grown = realloc(*out, cap * sizeof *grown);
        int *units = realloc(unit, ((size_t)dim + 1) * sizeof *units);
        if (grown)
            *out = grown;
        if (units)
            unit = units;
        if (!grown || !units) {
            status = mlo_error_nomem(err);
            goto out;
        }
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t r = 0; r < dim; r++) {
                int u = mlo_prune_unit_at(p, x, w->x_axis, mlo_prune_gram_channel(w, g, r));
                unit[r] = u < 0 ? -1 : place[u];
            }
            status = reader_init(&(*out)[*count], w, gram, g, unit, err);
            (*count)++;
            if (status != MLO_OK)
                goto out;
        }
    }
    *whole = *count > 0 || group->inside; /* queries and keys read each other, and no weights them */
out:
    free(place);
    free(unit);
    return status;
}

enum mlo_status mlo_prune_second_order(struct prune *p, struct prune_group *group,
                                       const struct mlo_stats *stats, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct reader *readers = NULL;
    size_t count = 0, most = 1, outs = 1, n = 1, *rows = NULL;
    double *b = NULL, *y = NULL, *c = NULL;
    int *first = malloc(((size_t)group->count + 1) * sizeof *first);
    bool *out = calloc((size_t)group->count + 1, sizeof *out);
    *done = true;
    if (!first || !out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(find_readers(p, group, stats, &readers, &count, done, err));
    if (!*done)
        goto out;
    memcpy(first, group->order, (size_t)group->count * sizeof *first);
    for (size_t k = 0; k < count; k++) {
        n = MLO_MAX(n, readers[k].n);
        outs = MLO_MAX(outs, readers[k].outs);
    }
    rows = malloc(n * sizeof *rows);
    if (!rows) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t k = 0; k < count; k++)
        for (int u = 0; u < group->count; u++)
            most = MLO_MAX(most, rows_of(&readers[k], u, rows));
    b = malloc(most * most * sizeof *b);
    y = malloc(most * outs * sizeof *y);
    c = malloc(most * n * sizeof *c);
    if (!b || !y || !c) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < group->count; i++) {
        int best = -1;
        double least = 0;
        for (int u = 0; u < group->count; u++) {
            double cost = p->units[first[u]].seen;
            for (size_t k = 0; !out[u] && k < count; k++)
                cost += price(&readers[k], u, rows, b, y);
            if (isnan(cost))
                cost = HUGE_VAL;
            if (!out[u] && (best < 0 || cost < least)) {
                best = u;
                least = cost;
            }
        }
        out[best] = true;
        group->order[i] = first[best];
        group->error[i + 1] = group->error[i] + least;
        for (size_t k = 0; k < count; k++)
            remove_unit(&readers[k], best, rows, b, y, c);
    }
out:
    for (size_t k = 0; k < count; k++)
        reader_clear(&readers[k]);
    free(readers);
    free(first);
    free(out);
    free(rows);
    free(b);
    free(y);
    free(c);
    return status;
}
