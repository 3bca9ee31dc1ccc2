/* AdaRound (Nagel et al., 2020, "Up or Down? Adaptive Rounding for Post-Training Quantization",
 * arXiv:2004.10568): every weight goes up or down, to where the outputs of its layer change least: the
 * quadratic problem min (w - q)^T G (w - q) of the paper's equation 13, with G from the layer's real inputs.
 *
 * The paper relaxes the choice to a sigmoid and descends by Adam. With G at hand the exact change that one
 * weight's flip makes is a multiply-add, so this one descends on the choices themselves: sweep over the
 * weights, flip where the error falls, until nothing falls any more. It starts from rounding to the nearest
 * and from GPTQ's choice, and keeps the better end. No step size, no random numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/round_impl.h"

enum { SWEEPS_MAX = 64 };

/* One row of weights. */
struct row {
    const struct mlo_weight_grid *grid;
    size_t index, n;
    const float *w;
    const double *g;  /* [n][n] */
    double *gradient; /* G e */
    double error;     /* e^T G e */
};

/* The other one of floor and ceiling; q itself where there is none within the grid. */
static int other_side(const struct row *row, size_t i, int q)
{
    double e = (double)row->w[i] - mlo_grid_value(row->grid, row->index, i, q);
    int other = e > 0 ? q + 1 : e < 0 ? q - 1 : q;
    return other < row->grid->low || other > row->grid->high ? q : other;
}

static double error_of(const struct row *row, size_t i, int q)
{
    return (double)row->w[i] - mlo_grid_value(row->grid, row->index, i, q);
}

static void start(struct row *row, const int16_t *q)
{
    memset(row->gradient, 0, row->n * sizeof *row->gradient);
    for (size_t i = 0; i < row->n; i++)
        mlo_add_scaled(row->gradient, row->g + i * row->n, error_of(row, i, q[i]), row->n);
    row->error = 0;
    for (size_t i = 0; i < row->n; i++)
        row->error += error_of(row, i, q[i]) * row->gradient[i];
}

static void descend(struct row *row, int16_t *q)
{
    start(row, q);
    const double least = row->error * 1e-12; /* smaller steps are rounding of these sums */
    for (int sweep = 0, flips = 1; sweep < SWEEPS_MAX && flips; sweep++) {
        flips = 0;
        for (size_t i = 0; i < row->n; i++) {
            int other = other_side(row, i, q[i]);
            if (other == q[i])
                continue;
            double step = error_of(row, i, other) - error_of(row, i, q[i]);
            double change = step * (2 * row->gradient[i] + step * row->g[i * row->n + i]);
            if (!(change < -least))
                continue;
            q[i] = (int16_t)other;
            mlo_add_scaled(row->gradient, row->g + i * row->n, step, row->n);
            row->error += change;
            flips++;
        }
    }
}

/* GPTQ may go beyond floor and ceiling; this is its nearest choice that does not. */
static int to_a_side(const struct row *row, size_t i, int q)
{
    int nearest = mlo_grid_nearest(row->grid, row->index, i, (double)row->w[i]);
    int other = other_side(row, i, nearest);
    return q > MLO_MAX(nearest, other) ? MLO_MAX(nearest, other) : MLO_MAX(q, MLO_MIN(nearest, other));
}

enum mlo_status mlo_round_adaround(const struct mlo_rounding *how, const struct mlo_weight_grid *grid,
                                   size_t first, size_t count, const float *w, const struct mlo_gram *gram,
                                   int64_t g, int16_t *q, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t n = grid->columns;
    double *full = malloc((n * n + n) * sizeof *full);
    int16_t *nearest = malloc((n + 1) * sizeof *nearest);
    if (!full || !nearest) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_round_gptq(how, grid, first, count, w, gram, g, q, err));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            full[i * n + j] = mlo_gram_at(gram, g, (int64_t)i, (int64_t)j);
    struct row row = {.grid = grid, .n = n, .g = full, .gradient = full + n * n};
    for (size_t r = first; r < first + count; r++) {
        row.index = r;
        row.w = w + r * n;
        int16_t *chosen = q + r * n;
        for (size_t i = 0; i < n; i++) {
            nearest[i] = (int16_t)mlo_grid_nearest(grid, r, i, (double)row.w[i]);
            chosen[i] = (int16_t)to_a_side(&row, i, chosen[i]);
        }
        descend(&row, chosen);
        double error = row.error;
        descend(&row, nearest);
        if (row.error < error)
            memcpy(chosen, nearest, n * sizeof *nearest);
    }
out:
    free(full);
    free(nearest);
    return status;
}
