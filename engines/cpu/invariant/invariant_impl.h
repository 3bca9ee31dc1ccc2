/* Private to the invariant numerics: every output is one chain of fused multiply-adds,
 *     acc = bias (or 0);  for k in order: acc = fma(a[k], b[k], acc)
 * where k runs over input channel, then kernel row, then kernel column (padding multiplies a real zero). The
 * kernels are vectorised over outputs only, so width, threads and batch never change a bit. */
#ifndef MLO_ENGINES_CPU_INVARIANT_IMPL_H
#define MLO_ENGINES_CPU_INVARIANT_IMPL_H

#include "engines/cpu/cpu_impl.h"
#include "engines/cpu/invariant/lanes_impl.h"

enum { INV_MAX_MR = 8, INV_MAX_NR = 48, INV_MAX_TILE = INV_MAX_MR * INV_MAX_NR, INV_BEHIND = 16 };

/* Values that lie together, and their place among the columns of a panel. */
struct inv_run {
    const float *from;
    size_t at, count;
};

/* c continues its chains: c[i * nr + j] = fma(rows[i][k], b[k * nr + j], c[i * nr + j]) for k = 0 … depth-1;
 * or they start from start[i], unless that is NULL. */
typedef void inv_tile_fn(size_t depth, const float *const *rows, const float *b, const float *start,
                         float *c);
/* The same where column j of k is b[offsets[k] + j]. */
typedef void inv_tile_at_fn(size_t depth, const float *const *rows, const float *b, const size_t *offsets,
                            const float *start, float *c);

/* One instruction set's kernels. */
struct inv_kernels {
    int mr, nr;           /* tile: rows and columns */
    int lanes;            /* columns of a vector */
    size_t block;         /* of k: so that the columns of a block stay in the first-level cache */
    inv_tile_fn *tile[3]; /* mr rows; the first vector of columns, two, three: nr / lanes of them are there */
    inv_tile_at_fn *tile_at[3]; /* the same */
    inv_tile_fn *row;           /* one row, nr columns */
    /* Packs columns: out[k][run.at + j] = run.from[offsets[k] + j] for all runs, which come in order of their
     * places and of their sources. Nothing at or behind `end` is read; what is behind the last run's columns
     * is garbage, also in the nr floats behind the last k. */
    void (*columns)(size_t depth, const size_t *offsets, const struct inv_run *runs, int run_count,
                    const float *end, float *out);
    /* y[i] = the chain from `start` over fma(w[k], x[offsets[k] + i], …). `count` may be exceeded to whole
     * vectors: so far x is read and y written. */
    void (*taps)(size_t depth, const size_t *offsets, const float *w, float start, size_t count,
                 const float *x, float *y);
    /* Packed columns: those from `at` to `end` of each k times w[k], where of two NaN the column's stays.
     * What is behind the last run is garbage and may become other garbage. */
    void (*scale)(size_t depth, const float *w, size_t at, size_t end, bool last, float *columns);
    /* Lines of `pitch` floats, one behind the other: `before` zeros, `count` floats of x, and zeros. */
    void (*bordered)(size_t lines, size_t before, size_t count, size_t pitch, const float *x, size_t x_pitch,
                     float *y);
    /* y[i * y_pitch + j] = x[i * x_pitch + j * step] for j < count */
    void (*lines)(size_t lines, size_t count, size_t step, const float *x, size_t x_pitch, float *y,
                  size_t y_pitch);
};

extern const struct inv_kernels inv_generic, inv_avx2, inv_avx512;
const struct inv_kernels *inv_kernels_for(enum mlo_isa isa);

/* Which tile is for so many columns. */
static inline size_t inv_tile(const struct inv_kernels *kernels, size_t columns)
{
    return (columns - 1) / (size_t)kernels->lanes;
}

/* The mr rows of a tile, k by k: the last of the matrix again where it has no more. */
static inline void inv_rows(const struct inv_kernels *kernels, const float *a, size_t stride, size_t left,
                            const float *rows[INV_MAX_MR])
{
    for (int i = 0; i < kernels->mr; i++)
        rows[i] = a + MLO_MIN((size_t)i, left - 1) * stride;
}

/* Packs columns into panels [column / nr][k][nr], zero columns at the end. */
void inv_pack_columns(const struct inv_kernels *kernels, const float *b, size_t columns, size_t depth,
                      size_t column_stride, size_t k_stride, float *out);
size_t inv_packed_rows(const struct inv_kernels *kernels, size_t rows);
size_t inv_packed_columns(const struct inv_kernels *kernels, size_t columns);

/* Each emits steps for the node and sets *done, or leaves it alone (other types, unusual forms). */
typedef enum mlo_status inv_lower_fn(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                     struct mlo_error *err);
inv_lower_fn inv_lower_conv, inv_lower_gemm, inv_lower_pool, inv_lower_quantize, inv_lower_normalise,
    inv_lower_unary, inv_lower_scale, inv_lower_binary, inv_lower_lines, inv_lower_view, inv_lower_transpose;
/* The Mul behind a value that inv_lower_scale left to the convolution that reads it; NULL: the value is
 * there. */
const struct mlo_node *inv_scale_of(const struct mlo_plan *plan, const struct mlo_value *value);
/* Emits a step of one result over the node's first inputs, with a new slot for it; takes `data`. */
MLO_MUST_USE enum mlo_status inv_emit(struct mlo_plan *plan, const struct cpu_step_class *cls,
                                      const struct mlo_node *node, int inputs, void *data,
                                      struct mlo_error *err);

#endif
