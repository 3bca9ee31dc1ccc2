/* Sparse weights, private to passes/: which weights of a matrix become zero, what the others become, and what
 * that does to the outputs. */
#ifndef MLO_PASSES_SPARSIFY_IMPL_H
#define MLO_PASSES_SPARSIFY_IMPL_H

#include "passes/round_impl.h"
#include "passes/sparsify.h"

/* Hands out zeros of a layer so that any first part of it has its share, rounded down. */
struct sparse_quota {
    uint64_t total, zeros; /* weights of the layer; those that are to be zero */
    uint64_t seen, made;
};
/* How many of the next `count` weights. */
uint64_t mlo_sparse_quota_take(struct sparse_quota *quota, uint64_t count);

enum { MLO_SPARSE_GROUP = 4, MLO_SPARSE_GROUP_ZEROS = 2 }; /* of 2:4 */

/* Rows of weights that read the same inputs. Matrices are [n][rows]: one input after the other, in the order
 * of the sweep; for 2:4 every four inputs from a multiple of four on are a group. */
struct sparse_rows {
    size_t n, rows;
    const double *w; /* as they are: float32 */
    double *made;    /* out: as they become, float32 too */
    bool groups;     /* 2:4; else the quota says how many */
    size_t block;    /* inputs whose zeros are chosen at once (by SparseGPT), a multiple of 4 */
    struct sparse_quota *quota;
};

/* Marks the `count` least of scores[n], of equal ones those in front. MLO_ENOMEM. */
MLO_MUST_USE enum mlo_status mlo_sparse_mark_least(const double *scores, size_t n, uint64_t count,
                                                   uint8_t *marks, struct mlo_error *err);

/* Weights of least magnitude become zero, the others stay. */
MLO_MUST_USE enum mlo_status mlo_sparse_magnitude(const struct sparse_rows *s, struct mlo_error *err);
/* SparseGPT, by the factor of mlo_gram_factor of the inputs in this order. */
MLO_MUST_USE enum mlo_status mlo_sparse_gpt(const struct sparse_rows *s, const double *l,
                                            struct mlo_error *err);

/* Sum over rows of e^T H e, H = R R^T of the factor `l`; e is [n][rows]. */
MLO_MUST_USE enum mlo_status mlo_sparse_energy(const double *l, size_t n, size_t rows, const double *e,
                                               double *out, struct mlo_error *err);

#endif
