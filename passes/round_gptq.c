/* GPTQ (Frantar et al., 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
 * Transformers", arXiv:2210.17323): columns are rounded one after the other, and what a column's rounding did
 * to the outputs is made good by the columns that follow.
 *
 * Sweeps of coordinate descent may follow (Behdin et al., 2023, "QuantEase: Optimization-based Quantization
 * for Language Models", arXiv:2309.01885): each integer in turn is the best one for those that the others
 * have now, so that e^T H e only falls, and columns that GPTQ rounded early see the errors of those behind
 * them.
 *
 * The paper updates the remaining weights by rows of the Cholesky factor of the inverse of H = G + damp. With
 * H = R R^T, R upper triangular, the same choice is: round w_i + (sum over j < i of R_ji e_j) / R_ii, where
 * e_j is the error that column j was left with. So the inverse is never made.
 *
 * Weights that are zero stay zero, whatever others were left with: they were pruned, and what a sparse model
 * saves, or a pattern of 2:4 promises, must outlast its quantization. */
#include <math.h>
#include <stdlib.h>

#include "passes/round_impl.h"

enum { SLAB = 128 /* rows of the weights at a time */, BLOCK = 32 /* columns between two updates */ };

struct column {
    size_t index;
    double weight;
};

static int heavier(const void *a, const void *b)
{
    const struct column *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

enum mlo_status mlo_gram_factor(const struct mlo_gram *gram, int64_t g, const struct mlo_gram_damping *how,
                                const size_t *order, double **out, double *added, struct mlo_error *err)
{
    size_t n = (size_t)gram->dim;
    const double *sum = gram->sum + (size_t)g * n;
    double *l = malloc((n * n + 1) * sizeof *l), mean = 0, rows = how->centred ? (double)gram->rows : 0;
    *out = l;
    if (!l)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < n; i++) {
        double d = mlo_gram_at(gram, g, (int64_t)i, (int64_t)i);
        mean += how->centred ? fmax(d - sum[i] * sum[i] / rows, 0) : d;
    }
    mean /= (double)n;
    double lambda = mean > 0 ? how->damp * mean : 1;
    for (int attempt = 0; attempt < 6; attempt++, lambda *= 10) {
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++) {
                size_t a = order[n - 1 - i], b = order[n - 1 - j];
                double v = mlo_gram_at(gram, g, (int64_t)a, (int64_t)b);
                if (how->centred)
                    v -= sum[a] * sum[b] / rows;
                l[i * n + j] = v + (i == j ? lambda : 0);
            }
        *added = lambda;
        if (mlo_cholesky(l, n))
            return MLO_OK;
        if (lambda == 0)
            lambda = mean * 1e-4;
    }
    return mlo_error_set(err, MLO_EINVAL, "the matrix of inputs has no Cholesky factor, however damped");
}

/* Rows [first, first + count) of the weights, at most SLAB. `shift` and `error` are [n][SLAB]. */
static void round_slab(const struct mlo_weight_grid *grid, size_t first, size_t count, const float *w,
                       const double *l, const size_t *order, double *shift, double *error, int16_t *q)
{
    size_t n = grid->columns;
    for (size_t i = 0; i < n * SLAB; i++)
        shift[i] = 0;
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t end = MLO_MIN(b + BLOCK, n);
        for (size_t i = b; i < end; i++) {
            size_t column = order[i];
            double rii = l[(n - 1 - i) * n + (n - 1 - i)];
            for (size_t r = 0; r < count; r++) {
                size_t row = first + r, at = row * n + column;
                double good = w[at] == 0 ? 0 : shift[i * SLAB + r] / rii;
                int chosen = mlo_grid_nearest(grid, row, column, (double)w[at] + good);
                q[at] = (int16_t)chosen;
                error[i * SLAB + r] = (double)w[at] - mlo_grid_value(grid, row, column, chosen);
            }
            for (size_t k = i + 1; k < end; k++)
                mlo_add_scaled(shift + k * SLAB, error + i * SLAB, l[(n - 1 - i) * n + (n - 1 - k)], count);
        }
        for (size_t k = end; k < n; k++)
            for (size_t i = b; i < end; i++)
                mlo_add_scaled(shift + k * SLAB, error + i * SLAB, l[(n - 1 - i) * n + (n - 1 - k)], count);
    }
}

/* One row: `slope` [n] is H e for the errors e of its integers. Returns whether an integer changed. */
static bool descend(const struct mlo_weight_grid *grid, size_t row, const float *w, const double *h,
                    double *error, double *slope, int16_t *q)
{
    size_t n = grid->columns;
    bool changed = false;
    for (size_t i = 0; i < n; i++) {
        if (w[i] == 0)
            continue;
        double hii = h[i * n + i], others = slope[i] - hii * error[i];
        int chosen = mlo_grid_nearest(grid, row, i, (double)w[i] + others / hii);
        if (chosen == q[i])
            continue;
        double now = (double)w[i] - mlo_grid_value(grid, row, i, chosen), step = now - error[i];
        /* the nearest of what a grid has is not always better: its ends, and rounding of what is computed */
        if (!(step * (2 * slope[i] + hii * step) < 0))
            continue;
        mlo_add_scaled(slope, h + i * n, step, n);
        q[i] = (int16_t)chosen;
        error[i] = now;
        changed = true;
    }
    return changed;
}

/* Sweeps over the rows [first, first + count) until none changes. h is [n][n], e and slope are [n]. */
static void sweep(const struct mlo_rounding *how, const struct mlo_weight_grid *grid, size_t first,
                  size_t count, const float *w, const double *h, double *error, double *slope, int16_t *q)
{
    size_t n = grid->columns;
    for (size_t row = first; row < first + count; row++) {
        for (size_t i = 0; i < n; i++)
            slope[i] = 0;
        for (size_t i = 0; i < n; i++) {
            error[i] = (double)w[row * n + i] - mlo_grid_value(grid, row, i, q[row * n + i]);
            mlo_add_scaled(slope, h + i * n, error[i], n);
        }
        for (int64_t s = 0; s < how->sweeps; s++)
            if (!descend(grid, row, w + row * n, h, error, slope, q + row * n))
                break;
    }
}

enum mlo_status mlo_round_gptq(const struct mlo_rounding *how, const struct mlo_weight_grid *grid,
                               size_t first, size_t count, const float *w, const struct mlo_gram *gram,
                               int64_t g, int16_t *q, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t n = grid->columns;
    double *l = NULL;
    const struct mlo_gram_damping damping = {.damp = how->damp};
    struct column *columns = malloc((n + 1) * sizeof *columns);
    size_t *order = malloc((n + 1) * sizeof *order);
    double *shift = malloc((2 * n * SLAB + 1) * sizeof *shift), added;
    if (!columns || !order || !shift) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        columns[i] = (struct column){i, mlo_gram_at(gram, g, (int64_t)i, (int64_t)i)};
    if (how->act_order)
        qsort(columns, n, sizeof *columns, heavier);
    for (size_t i = 0; i < n; i++)
        order[i] = columns[i].index;
    MLO_TRY(mlo_gram_factor(gram, g, &damping, order, &l, &added, err));
    for (size_t r = 0; r < count; r += SLAB)
        round_slab(grid, first + r, MLO_MIN((size_t)SLAB, count - r), w, l, order, shift, shift + n * SLAB,
                   q);
    if (how->sweeps > 0) { /* the factor has done its work: its room is H's */
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                l[i * n + j] = mlo_gram_at(gram, g, (int64_t)i, (int64_t)j) + (i == j ? added : 0);
        sweep(how, grid, first, count, w, l, shift, shift + n, q);
    }
out:
    free(columns);
    free(order);
    free(shift);
    free(l);
    return status;
}
