/* The sums that several ops share, for float, double and (wrapping) 32-bit integers.
 *
 * Order, which defines the bits of the result: every output element is one chain s = s + a*b, product rounded
 * and then sum rounded (no fused multiply-add), that begins at the bias and runs in order of k (matmul) or of
 * (input channel, kernel depth, row, column) (conv); positions in the padding are left out. Loops run over
 * outputs inside, which does not change any chain. */
#ifndef MLO_GRAPH_OPS_KERNELS_IMPL_H
#define MLO_GRAPH_OPS_KERNELS_IMPL_H

#include "graph/op.h"

/* A convolution with its spatial dims brought to three (leading ones of size 1). */
struct mlo_conv {
    struct mlo_window w;
    int64_t batch, groups, in_channels, out_channels; /* of all groups */
};
MLO_MUST_USE enum mlo_status mlo_conv_init(struct mlo_conv *conv, const struct mlo_node *node,
                                           const struct mlo_tensor *x, const struct mlo_tensor *weight,
                                           struct mlo_error *err);

/* y is preset with the bias. Layouts NCDHW and MCDHW, dense. */
void mlo_conv_f32(const struct mlo_conv *conv, const float *x, const float *weight, float *y);
void mlo_conv_f64(const struct mlo_conv *conv, const double *x, const double *weight, double *y);
void mlo_conv_u32(const struct mlo_conv *conv, const uint32_t *x, const uint32_t *weight, uint32_t *y);

/* y[m,n] += a[m,k] b[k,n], dense; strides in elements between rows and columns of a and b. */
struct mlo_product {
    int64_t m, n, k, a_row, a_col, b_row, b_col;
};
void mlo_matmul_f32(const struct mlo_product *p, const float *a, const float *b, float *y);
void mlo_matmul_f64(const struct mlo_product *p, const double *a, const double *b, double *y);
void mlo_matmul_u32(const struct mlo_product *p, const uint32_t *a, const uint32_t *b, uint32_t *y);

/* numpy.matmul's geometry: batch dims broadcast, 1-D operands. */
struct mlo_matmul_dims {
    struct mlo_product each;
    size_t batches;
    int64_t out_dims[MLO_MAX_RANK];
    int out_rank;
    int64_t batch_dims[MLO_MAX_RANK], a_step[MLO_MAX_RANK], b_step[MLO_MAX_RANK];
    int batch_rank;
};
MLO_MUST_USE enum mlo_status mlo_matmul_init(struct mlo_matmul_dims *d, const struct mlo_tensor *a,
                                             const struct mlo_tensor *b, struct mlo_error *err);
/* Element offsets of the operands of batch i. */
void mlo_matmul_offsets(const struct mlo_matmul_dims *d, size_t i, size_t *a, size_t *b);

/* infer of MatMul for inputs at positions ia and ib: the dtype stays unknown. */
MLO_MUST_USE enum mlo_status mlo_matmul_infer(const struct mlo_type *a, const struct mlo_type *b,
                                              struct mlo_type *out, struct mlo_error *err);
/* infer of Conv for types of x, weight and bias (NULL: none): the dtype stays unknown. */
MLO_MUST_USE enum mlo_status mlo_conv_infer(const struct mlo_node *node, const struct mlo_type *x,
                                            const struct mlo_type *weight, const struct mlo_type *bias,
                                            struct mlo_type *out, struct mlo_error *err);

#endif
