/* Attention of one head over rows of queries: softmax(scale Q K^T + mask) V without the matrix between. */
#ifndef MLO_ENGINES_CPU_FAST_ATTENTION_H
#define MLO_ENGINES_CPU_FAST_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "engines/engines.h"

enum { ATTENTION_ROWS = 6 }; /* queries that are worked on at once */

/* Strides in elements. Rows are queries or keys, columns the head's dims; the mask has a row a query and a
 * column a key (stride 0 or 1). */
struct attention_head {
    const float *q, *k, *v, *mask; /* mask: added to the scores; may be NULL */
    ptrdiff_t q_row, q_col, k_row, k_col, v_row, v_col, mask_row, mask_col;
    size_t queries, keys, depth, width; /* of q and k; of v and y */
    float scale;
    void *y; /* floats, or bytes when quantized */
    ptrdiff_t y_row, y_col;
    int quantized, is_signed; /* or 0; no bools: they may come out of a file */
    float y_scale, y_zero;
};

/* Bytes of scratch that a head takes; 64-byte aligned, the same for all rows of it. */
size_t attention_scratch(size_t keys, size_t depth, size_t width);
/* Brings keys and values into `scratch`, then rows [begin, end) may be computed, in any order. A row of which
 * every key is masked by -infinity is NaN, as a softmax of it is. */
struct attention_kernels {
    void (*prepare)(const struct attention_head *h, float *scratch);
    void (*rows)(const struct attention_head *h, float *scratch, size_t begin, size_t end);
};
const struct attention_kernels *attention_kernels_for(enum mlo_isa isa);
extern const struct attention_kernels attention_kernels_avx2, attention_kernels_avx512;

#endif
