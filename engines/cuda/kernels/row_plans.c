/* How the work of each kernel with a fixed body is cut. */
#include "engines/cuda/kernels/rows_impl.h"

enum { BLOCK = 256, ENOUGH = 1 << 16 /* threads that keep a large GPU busy */ };

/* Positions in n[] of what convolutions and pooling have in common. */
enum {
    N,
    C,
    IN,
    OUT = 5,
    KERNEL = 8,
    STRIDE = 11,
    DILATION = 14,
    PAD = 17,
    RESIDUAL = 24,
    FILTERS = 27,
    GROUPS = 28,
    BY_FILTER = 30
};

static int64_t product(const int64_t *n, int count)
{
    int64_t p = 1;
    for (int i = 0; i < count; i++)
        p = n[i] <= 0 ? 0 : p > MLO_MAX_DIM * 64 / n[i] ? MLO_MAX_DIM * 64 : p * n[i];
    return p;
}

static int64_t volume(const struct cuda_kernel_use *use, int first, int64_t channels)
{
    return product((int64_t[]){use->n[N], use->n[first], use->n[first + 1], use->n[first + 2], channels}, 5);
}

bool row_check_window(const struct cuda_kernel_use *use)
{
    for (int d = 0; d < 3; d++) {
        int64_t reach = (use->n[KERNEL + d] - 1) * use->n[DILATION + d];
        if (use->n[IN + d] < 0 || use->n[OUT + d] < 0 || use->n[KERNEL + d] < 1 || use->n[STRIDE + d] < 1 ||
            use->n[DILATION + d] < 1 || use->n[PAD + d] < -(1 << 28) || use->n[PAD + d] > 1 << 28 ||
            use->n[IN + d] > 1 << 28 || use->n[KERNEL + d] > 1 << 20 || use->n[DILATION + d] > 1 << 20 ||
            reach > 1 << 28 || use->n[OUT + d] > 1 << 28 || use->n[STRIDE + d] > 1 << 28 ||
            use->n[OUT + d] * use->n[STRIDE + d] > 1 << 29)
            return false;
    }
    return use->n[N] >= 0 && use->n[C] >= 1;
}

bool row_check_groups(const struct cuda_kernel_use *use)
{
    return row_check_window(use) && use->n[GROUPS] >= 1 && use->n[FILTERS] >= 1 &&
           use->n[C] % use->n[GROUPS] == 0 && use->n[FILTERS] % use->n[GROUPS] == 0;
}

static void blocks_of(struct row_plan *p, int64_t items)
{
    p->blocks = cuda_ceil_div(items, p->threads);
}

void row_plan_pool(const struct cuda_kernel_use *use, struct row_plan *p)
{
    p->vector = row_vector(use, use->n[C], 3);
    p->furthest = MLO_MAX(volume(use, IN, use->n[C]), volume(use, OUT, use->n[C]));
    blocks_of(p, volume(use, OUT, use->n[C] / p->vector));
}

/* The most neighbouring columns a thread, of those that leave enough threads. */
static int columns(const struct cuda_kernel_use *use, int64_t units, int most)
{
    int tile = most;
    while (tile > 1 && (units / tile < ENOUGH || use->n[OUT + 2] < tile))
        tile /= 2;
    return tile;
}

void row_plan_depthwise(const struct cuda_kernel_use *use, struct row_plan *p)
{
    p->vector = MLO_MIN(row_vector(use, use->n[C], use->n[RESIDUAL] ? 15 : 7), 8);
    int64_t units = volume(use, OUT, use->n[C] / p->vector);
    int64_t reach = (use->n[KERNEL + 2] - 1) * use->n[DILATION + 2];
    p->tile = columns(use, units,
                      reach <= 8 ? (use->n[STRIDE + 2] == 1   ? 4
                                    : use->n[STRIDE + 2] == 2 ? 2
                                                              : 1)
                                 : 1);
    if (!cuda_type_is_whole(use->types[0]) && use->types[0] && mlo_dtype_info(use->types[0])->bits == 8)
        p->tile = MLO_MIN(p->tile, 2); /* float8 is taken apart by hand, which needs registers */
    p->furthest = MLO_MAX(volume(use, IN, use->n[C]), volume(use, OUT, use->n[C]));
    blocks_of(p, product((int64_t[]){use->n[N], use->n[OUT], use->n[OUT + 1],
                                     cuda_ceil_div(use->n[OUT + 2], p->tile), use->n[C] / p->vector},
                         5));
}

static int64_t taps(const struct cuda_kernel_use *use)
{
    return product(
        (int64_t[]){use->n[KERNEL], use->n[KERNEL + 1], use->n[KERNEL + 2], use->n[C], use->n[FILTERS]}, 5);
}

void row_plan_conv(const struct cuda_kernel_use *use, struct row_plan *p)
{
    int64_t together = use->n[FILTERS] / use->n[GROUPS];
    p->vector =
        MLO_MIN(row_vector(use, together, (use->n[BY_FILTER] ? 4 : 6) | (use->n[RESIDUAL] ? 8 : 0)), 8);
    p->tile = columns(use, volume(use, OUT, use->n[FILTERS] / p->vector), 4);
    p->furthest = MLO_MAX(MLO_MAX(volume(use, IN, use->n[C]), volume(use, OUT, use->n[FILTERS])), taps(use));
    blocks_of(p, product((int64_t[]){use->n[N], use->n[OUT], use->n[OUT + 1],
                                     cuda_ceil_div(use->n[OUT + 2], p->tile), use->n[FILTERS] / p->vector},
                         5));
}

void row_plan_conv_transpose(const struct cuda_kernel_use *use, struct row_plan *p)
{
    p->vector = MLO_MIN(row_vector(use, use->n[FILTERS] / use->n[GROUPS], 6 | (use->n[RESIDUAL] ? 8 : 0)), 8);
    p->furthest = MLO_MAX(MLO_MAX(volume(use, IN, use->n[C]), volume(use, OUT, use->n[FILTERS])), taps(use));
    blocks_of(p, volume(use, OUT, use->n[FILTERS] / p->vector));
}

void row_plan_gather(const struct cuda_kernel_use *use, struct row_plan *p)
{
    const int64_t *n = use->n; /* OUTER AXIS INNER COUNT */
    p->vector = row_vector(use, n[2], 1);
    p->furthest =
        MLO_MAX(product((int64_t[]){n[0], n[1], n[2]}, 3), product((int64_t[]){n[0], n[3], n[2]}, 3));
    blocks_of(p, product((int64_t[]){n[0], n[3], n[2] / p->vector}, 3));
}

/* An index into a matrix of each operand, and their distance. */
void row_plan_matmul(const struct cuda_kernel_use *use, struct row_plan *p)
{
    enum { M, COLS, K, BATCH, TA, TB, LDA, STRIDE_A = 10 };
    const int64_t *n = use->n;
    const int64_t lines[] = {n[TA] ? n[K] : n[M], n[TB] ? n[COLS] : n[K], n[M], n[M]};
    p->tile = n[M] <= 16 ? 16 : 64;
    for (int i = 0; i < 4; i++)
        p->furthest = MLO_MAX(p->furthest, product((int64_t[]){lines[i] + 64, n[LDA + i]}, 2) +
                                               product((int64_t[]){n[BATCH], n[STRIDE_A + i]}, 2));
    p->blocks = product((int64_t[]){cuda_ceil_div(n[M], p->tile), cuda_ceil_div(n[COLS], 64), n[BATCH]}, 3);
    p->furthest = MLO_MAX(p->furthest, p->blocks);
}

void row_plan_attention(const struct cuda_kernel_use *use, struct row_plan *p)
{
    enum { BATCH, HEADS, QUERIES, KEYS, DEPTH, V_DEPTH, Q = 6, K = 10, V = 14, O = 18, MASK = 22 };
    const int64_t *n = use->n;
    const int64_t extents[][4] = {{n[BATCH], n[HEADS], n[QUERIES], n[DEPTH]},
                                  {n[BATCH], n[HEADS], n[KEYS], n[DEPTH]},
                                  {n[BATCH], n[HEADS], n[KEYS], n[V_DEPTH]},
                                  {n[BATCH], n[HEADS], n[QUERIES], n[V_DEPTH]},
                                  {n[BATCH], n[HEADS], n[QUERIES], n[KEYS]}};
    for (int t = 0; t < 5; t++) {
        int64_t last = 0;
        for (int d = 0; d < 4; d++)
            last += product((int64_t[]){extents[t][d], n[Q + 4 * t + d]}, 2);
        p->furthest = MLO_MAX(p->furthest, last);
    }
    p->threads = 128;
    p->blocks = cuda_ceil_div(product(n, 3), p->threads / 32);
}

void row_plan_transpose(const struct cuda_kernel_use *use, struct row_plan *p)
{
    const int64_t *n = use->n; /* BATCH ROWS COLUMNS */
    p->furthest = product(n, 3);
    p->blocks = product((int64_t[]){n[0], cuda_ceil_div(n[1], 32), cuda_ceil_div(n[2], 32)}, 3);
}

static void lines(const struct cuda_kernel_use *use, struct row_plan *p, int tile)
{
    p->tile = tile;
    p->furthest = product(use->n, 3);
    p->blocks = cuda_ceil_div(product((int64_t[]){use->n[0], use->n[2]}, 2), p->threads / tile);
}

/* OUTER LENGTH INNER: a thread has a line along the dim. */
void row_plan_lines(const struct cuda_kernel_use *use, struct row_plan *p)
{
    lines(use, p, 1);
}

/* A warp has a line whose elements are neighbours. */
void row_plan_search(const struct cuda_kernel_use *use, struct row_plan *p)
{
    lines(use, p, use->n[2] == 1 && use->n[1] >= 32 ? 32 : 1);
}

/* Values that float32 has, and positions of 32 bits. */
bool row_check_order(const struct cuda_kernel_use *use)
{
    enum mlo_dtype x = use->types[0];
    return use->n[0] >= 0 && use->n[1] >= 1 && use->n[2] >= 0 && use->n[1] <= (int64_t)1 << 31 &&
           (x == MLO_FLOAT32 || x == MLO_FLOAT16 || x == MLO_BFLOAT16 || x == MLO_INT8 || x == MLO_UINT8);
}

bool row_check_topk(const struct cuda_kernel_use *use)
{
    return row_check_order(use) && use->n[3] >= 0 && use->n[3] <= use->n[1];
}

void row_plan_pad(const struct cuda_kernel_use *use, struct row_plan *p)
{
    p->items = product(use->n + 13, (int)use->n[0]);
    p->furthest = MLO_MAX(p->items, product(use->n + 1, (int)use->n[0]));
    blocks_of(p, p->items);
}

bool row_check_pad(const struct cuda_kernel_use *use)
{
    enum { CONSTANT };
    if (use->n[0] < 0 || use->n[0] > CUDA_RANK || use->n[19] < 0 || use->n[19] > 3)
        return false;
    for (int i = 0; i < use->n[0]; i++) /* where there is nothing, there is only the value */
        if (use->n[13 + i] < 0 || use->n[1 + i] < (use->n[19] == CONSTANT ? 0 : 1))
            return false;
    return true;
}

void row_plan_resize(const struct cuda_kernel_use *use, struct row_plan *p)
{
    const int64_t *n = use->n; /* BATCH CHANNELS IN_H IN_W OUT_H OUT_W */
    p->vector = MLO_MIN(row_vector(use, n[1], 3), 8);
    p->furthest = MLO_MAX(product(n, 4), product((int64_t[]){n[0], n[1], n[4], n[5]}, 4));
    blocks_of(p, product((int64_t[]){n[0], n[1] / p->vector, n[4], n[5]}, 4));
}

bool row_check_resize(const struct cuda_kernel_use *use)
{
    const int64_t *n = use->n;
    for (int i = 2; i < 6; i++)
        if (n[i] < 1 || n[i] > 1 << 30)
            return false;
    return n[0] >= 0 && n[1] >= 1 && n[6] == 1 && n[8] >= 0 && n[8] <= 3 && n[9] >= 0 && n[9] <= 3;
}

void row_plan_embedding(const struct cuda_kernel_use *use, struct row_plan *p)
{
    enum { ROWS, WIDTH, TABLES, SIZE };
    const int64_t *n = use->n;
    p->vector = MLO_MIN(row_vector(use, n[WIDTH], 5), 8);
    p->tile = n[WIDTH] <= 1024 ? 32 : p->threads;
    for (int i = 0; i < n[TABLES]; i++)
        p->furthest = MLO_MAX(p->furthest, product((int64_t[]){n[SIZE + i], n[WIDTH]}, 2));
    p->furthest = MLO_MAX(p->furthest, product(n, 2));
    p->blocks = cuda_ceil_div(n[ROWS], p->threads / p->tile);
}

bool row_check_tables(const struct cuda_kernel_use *use)
{
    const int64_t *n = use->n;
    bool whole = use->types[1] == MLO_INT32 || use->types[1] == MLO_INT64;
    return n[0] >= 0 && n[1] >= 1 && n[1] <= 8192 && n[2] >= 1 && n[2] <= 3 && whole;
}

/* indices0 table0 indices1 … : of as many tables as there are, and no indices where rows are counted. */
bool row_embedding_has(const struct cuda_kernel_use *use, int parameter)
{
    if (parameter >= 6)
        return true;
    return parameter / 2 < use->n[2] && (parameter % 2 || use->n[6 + parameter / 2] == 0);
}
