/* Rounding of a matrix of weights to an integer grid: to the nearest, or so that the outputs of the node
 * change least. Private to passes/. */
#ifndef MLO_PASSES_ROUND_IMPL_H
#define MLO_PASSES_ROUND_IMPL_H

#include "passes/passes_impl.h"

/* Where the weights [rows][columns] of a node may go: w is (q - zero) * scale. A row is an output channel. */
struct mlo_weight_grid {
    size_t rows, columns;
    size_t block, blocks; /* columns that share a scale, and how many such blocks a row has */
    int low, high;        /* the least and greatest q */
    const float *scales;  /* [rows][blocks] */
    const int *zeros;     /* [rows][blocks]; NULL: all 0 */
};

/* The integers that are nearest: round half to even of w / scale, within the grid. */
int mlo_grid_nearest(const struct mlo_weight_grid *grid, size_t row, size_t column, double w);
/* What q stands for. */
double mlo_grid_value(const struct mlo_weight_grid *grid, size_t row, size_t column, int q);

enum mlo_rounding_method { MLO_ROUND_NEAREST, MLO_ROUND_GPTQ, MLO_ROUND_ADAROUND };
struct mlo_rounding {
    enum mlo_rounding_method method;
    double damp;    /* of GPTQ: what is added to the diagonal, as a share of its mean */
    bool act_order; /* of GPTQ: columns of large inputs first */
    int64_t sweeps; /* of GPTQ: coordinate descent behind it, at most so often over each row */
};
/* NULL-terminated, for options; in the order of the enum. */
extern const char *const mlo_rounding_names[];
/* The options "rounding", "damp", "act_order" and "sweeps" of a pass. */
void mlo_rounding_read(const json_t *options, struct mlo_rounding *out);

/* Chooses q[rows][columns] for w[rows][columns]. Rows belong to the groups of `gram` in equal shares; NULL,
 * or a diagonal alone, leaves nothing to do but rounding to the nearest. Plain loops in a fixed order: equal
 * bits on every machine. */
MLO_MUST_USE enum mlo_status mlo_round_weights(const struct mlo_rounding *how,
                                               const struct mlo_weight_grid *grid, const float *w,
                                               const struct mlo_gram *gram, int16_t *q,
                                               struct mlo_error *err);

/* The methods on one group: rows [first, first + count) of the grid; `g` is its Gram matrix. */
MLO_MUST_USE enum mlo_status mlo_round_gptq(const struct mlo_rounding *how,
                                            const struct mlo_weight_grid *grid, size_t first, size_t count,
                                            const float *w, const struct mlo_gram *gram, int64_t g,
                                            int16_t *q, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_round_adaround(const struct mlo_rounding *how,
                                                const struct mlo_weight_grid *grid, size_t first,
                                                size_t count, const float *w, const struct mlo_gram *gram,
                                                int64_t g, int16_t *q, struct mlo_error *err);

/* The squared error of a row's outputs, (w - q)^T G (w - q). */
double mlo_round_error(const struct mlo_weight_grid *grid, size_t row, const float *w,
                       const struct mlo_gram *gram, int64_t g, const int16_t *q);

/* How H is made of the Gram matrix G: damped, and about the means of the inputs where a bias takes these. */
struct mlo_gram_damping {
    double damp; /* of the mean of the diagonal, which is added to it */
    bool centred;
};
/* The factor of H = R R^T, R upper triangular, for columns in `order` (a permutation of the gram->dim
 * inputs): R_ji, j <= i, is (*out)[(n-1-j) * n + (n-1-i)]. *out is yours (free), also on failure; *added is
 * what stands on the diagonal. Damps more where it must; MLO_EINVAL where nothing helps. */
MLO_MUST_USE enum mlo_status mlo_gram_factor(const struct mlo_gram *gram, int64_t g,
                                             const struct mlo_gram_damping *how, const size_t *order,
                                             double **out, double *added, struct mlo_error *err);

/* The lower Cholesky factor of the symmetric matrix a[n][n], of which the lower triangle is read and
 * overwritten. False: it is not positive definite. */
bool mlo_cholesky(double *a, size_t n);
/* y[i] += factor * x[i]. */
void mlo_add_scaled(double *y, const double *x, double factor, size_t count);

#endif
