/* Private to the invariant numerics: every output is one chain of fused multiply-adds,
 *     acc = bias (or 0);  for k in order: acc = fma(a[k], b[k], acc)
 * where k runs over input channel, then kernel row, then kernel column (padding multiplies a real zero). The
 * kernels are vectorised over outputs only, so width, threads and batch never change a bit. */
#ifndef MLO_ENGINES_CPU_INVARIANT_IMPL_H
#define MLO_ENGINES_CPU_INVARIANT_IMPL_H

#include "engines/cpu/cpu_impl.h"

enum { INV_MAX_MR = 8, INV_MAX_NR = 48, INV_KC = 256 };

/* One instruction set's kernels. */
struct inv_kernels {
    int mr, nr; /* tile: rows and columns */
    /* c[mr][nr] continues its chains: c[i][j] = fma(a[k][i], b[k][j], c[i][j]) for k = 0 … depth-1. */
    void (*tile)(size_t depth, const float *a, const float *b, float *c);
    /* acc[i] = fma(w, x[i], acc[i]) */
    void (*axpy)(size_t count, float w, const float *x, float *acc);
};

extern const struct inv_kernels inv_generic, inv_avx2, inv_avx512;
const struct inv_kernels *inv_kernels_for(enum mlo_isa isa);

/* Packs rows of a matrix into panels [row / mr][k][mr], zero rows at the end. Element (i, k) is
 * a[i * row_stride + k * k_stride]. */
void inv_pack_rows(const struct inv_kernels *kernels, const float *a, size_t rows, size_t depth,
                   size_t row_stride, size_t k_stride, float *out);
/* Packs columns into panels [column / nr][k][nr], zero columns at the end. */
void inv_pack_columns(const struct inv_kernels *kernels, const float *b, size_t columns, size_t depth,
                      size_t column_stride, size_t k_stride, float *out);
size_t inv_packed_rows(const struct inv_kernels *kernels, size_t rows);
size_t inv_packed_columns(const struct inv_kernels *kernels, size_t columns);

/* Each emits steps for the node and sets *done, or leaves it alone (other types, unusual forms). */
enum mlo_status inv_lower_conv(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                               struct mlo_error *err);
enum mlo_status inv_lower_gemm(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                               struct mlo_error *err);
enum mlo_status inv_lower_simple(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                 struct mlo_error *err);

#endif
