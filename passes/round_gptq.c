/* GPTQ (Frantar et al., 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
 * Transformers", arXiv:2210.17323): columns are rounded one after the other, and what a column's rounding did
 * to the outputs is made good by the columns that follow.
 *
 * The paper updates the remaining weights by rows of the Cholesky factor of the inverse of H = G + damp. With
 * H = R R^T, R upper triangular, the same choice is: round w_i + (sum over j < i of R_ji e_j) / R_ii, where
 * e_j is the error that column j was left with. So the inverse is never made. */
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

/* The factor in reverse: l[n-1-i][n-1-j] is R_ji of the columns in the order they are rounded in. */
static enum mlo_status factor(const struct mlo_gram *gram, int64_t g, double damp, const struct column *order,
                              size_t n, double **out, struct mlo_error *err)
{
    double *l = malloc(n * n * sizeof *l), mean = 0;
    *out = l;
    if (!l)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < n; i++)
        mean += mlo_gram_at(gram, g, (int64_t)i, (int64_t)i);
    mean /= (double)n;
    double lambda = mean > 0 ? damp * mean : 1;
    for (int attempt = 0; attempt < 6; attempt++, lambda *= 10) {
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++)
                l[i * n + j] =
                    mlo_gram_at(gram, g, (int64_t)order[n - 1 - i].index, (int64_t)order[n - 1 - j].index) +
                    (i == j ? lambda : 0);
        if (mlo_cholesky(l, n))
            return MLO_OK;
        if (lambda == 0)
            lambda = mean * 1e-4;
    }
    return mlo_error_set(err, MLO_EINVAL, "the matrix of inputs has no Cholesky factor, however damped");
}

/* Rows [first, first + count) of the weights, at most SLAB. `shift` and `error` are [n][SLAB]. */
static void round_slab(const struct mlo_weight_grid *grid, size_t first, size_t count, const float *w,
                       const double *l, const struct column *order, double *shift, double *error, int16_t *q)
{
    size_t n = grid->columns;
    for (size_t i = 0; i < n * SLAB; i++)
        shift[i] = 0;
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t end = MLO_MIN(b + BLOCK, n);
        for (size_t i = b; i < end; i++) {
            size_t column = order[i].index;
            double rii = l[(n - 1 - i) * n + (n - 1 - i)];
            for (size_t r = 0; r < count; r++) {
                size_t row = first + r, at = row * n + column;
                int chosen = mlo_grid_nearest(grid, row, column, (double)w[at] + shift[i * SLAB + r] / rii);
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

enum mlo_status mlo_round_gptq(const struct mlo_rounding *how, const struct mlo_weight_grid *grid,
                               size_t first, size_t count, const float *w, const struct mlo_gram *gram,
                               int64_t g, int16_t *q, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t n = grid->columns;
    double *l = NULL;
    struct column *order = malloc((n + 1) * sizeof *order);
    double *shift = malloc((2 * n * SLAB + 1) * sizeof *shift);
    if (!order || !shift) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        order[i] = (struct column){i, mlo_gram_at(gram, g, (int64_t)i, (int64_t)i)};
    if (how->act_order)
        qsort(order, n, sizeof *order, heavier);
    MLO_TRY(factor(gram, g, how->damp, order, n, &l, err));
    for (size_t r = 0; r < count; r += SLAB)
        round_slab(grid, first + r, MLO_MIN((size_t)SLAB, count - r), w, l, order, shift, shift + n * SLAB,
                   q);
out:
    free(order);
    free(shift);
    free(l);
    return status;
}
