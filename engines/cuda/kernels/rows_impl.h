/* Private to the table of kernels with fixed bodies. A row is a text (kernel_NAME.inc) and what it is told by
 * names: numbers, floats, types and parameters. How to add one: a text, and a row in rows.c. */
#ifndef MLO_ENGINES_CUDA_ROWS_IMPL_H
#define MLO_ENGINES_CUDA_ROWS_IMPL_H

#include "engines/cuda/kernels/kernels_impl.h"

enum { ROW_TYPES = 4, ROW_PARAMETERS = 10 };
/* Of what type a parameter is: types[0 … 3]; always the same; or types[2] when the last number says so,
 * float32 when not. */
enum row_type { ROW_T0, ROW_T1, ROW_T2, ROW_T3, ROW_F32, ROW_I64, ROW_BIAS };

struct row_plan {
    int vector;       /* elements that a thread takes at once, VECTOR in the text */
    int tile;         /* what the text calls TILE */
    int threads;      /* of a block */
    int64_t blocks;   /* that have something to do */
    int64_t items;    /* what the text calls ITEMS */
    int64_t furthest; /* an index that none exceeds */
};
struct cuda_kernel {
    const char *name, *text, *before;         /* names of files; before: in front of the text, or NULL */
    const char *numbers[CUDA_KERNEL_NUMBERS]; /* by position; NULL: not used */
    const char *floats[8];
    const char *types[ROW_TYPES]; /* X: the text has X_T, X_GET, X_PUT and X_WHOLE */
    struct {
        const char *name;
        enum row_type type;
        int when; /* the number that must not be 0 for it to be there; 0: always */
        bool written;
    } parameters[ROW_PARAMETERS];
    int budget; /* registers of a thread */
    void (*plan)(const struct cuda_kernel_use *use, struct row_plan *p);
    /* Whether a parameter is there, besides `when`; NULL: yes. */
    bool (*there)(const struct cuda_kernel_use *use, int parameter);
    bool (*check)(const struct cuda_kernel_use *use); /* of numbers that the text could not take; or NULL */
};
/* The largest power of two up to 16 bytes of every type (by role) that divides n; 1 when the slots are not
 * aligned to it. */
int row_vector(const struct cuda_kernel_use *use, int64_t n, int types);

void row_plan_pool(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_depthwise(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_conv(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_conv_transpose(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_gather(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_matmul(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_attention(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_transpose(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_search(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_lines(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_pad(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_resize(const struct cuda_kernel_use *use, struct row_plan *p);
void row_plan_embedding(const struct cuda_kernel_use *use, struct row_plan *p);
bool row_check_window(const struct cuda_kernel_use *use);
bool row_check_groups(const struct cuda_kernel_use *use);
bool row_check_order(const struct cuda_kernel_use *use);
bool row_check_topk(const struct cuda_kernel_use *use);
bool row_check_resize(const struct cuda_kernel_use *use);
bool row_embedding_has(const struct cuda_kernel_use *use, int parameter);
bool row_check_pad(const struct cuda_kernel_use *use);
bool row_check_tables(const struct cuda_kernel_use *use);

#endif
