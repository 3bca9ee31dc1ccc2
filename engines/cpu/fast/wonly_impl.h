/* Private to the fast numerics: products with weights that stay packed in 4 or 8 bits and are unpacked in
 * registers.
 *
 * Weights w = (u - zero) * scale, u in 0 … 15 or 0 … 255, are packed into panels of 16 columns. A panel is a
 * list of *groups* of 8 depths: 64 bytes of 4-bit numbers (dword j is column j; byte i of it holds depth i in
 * its low half and depth 4 + i in its high half), or 128 bytes of 8-bit numbers (dword j is column j, depths
 * 0 … 3, then 4 … 7). Scales (and zero points other than the middle of the range, 8 or 128) belong to blocks
 * of depth.
 *
 * The integer kernels take rows x as fixed-point numbers of 1, 2 or 3 signed bytes (*planes*) with one scale
 * for each block: x = scale * (planes as one number). Three keep 24 bits, as float32 does. */
#ifndef MLO_ENGINES_CPU_FAST_WONLY_IMPL_H
#define MLO_ENGINES_CPU_FAST_WONLY_IMPL_H

#include "engines/cpu/fast/fast_impl.h"

enum { WONLY_COLUMNS = 16, WONLY_GROUP = 8, WONLY_BLOCK_MAX = 256, WONLY_PLANES_MAX = 3, WONLY_ROWS_MAX = 8 };

/* Loops over rows, planes and depths of a group are unrolled, so that sums stay in registers. Sanitizers put
 * code into them that no compiler unrolls, and it says so. */
#ifdef MLOPT_SANITIZED
#define WONLY_UNROLL
#else
#define WONLY_UNROLL _Pragma("GCC unroll 8")
#endif

/* What rows of x are for the integer kernels: `rows` of them side by side. */
struct wonly_rows {
    int32_t *x;    /* [depth / 4][row][plane]: four bytes each */
    int32_t *init; /* [block][row][plane]: what sums begin with, -middle * (sum of the plane) */
    float *scale;  /* [block][row] */
    float *sum;    /* [block][row]: sum of x / scale */
    bool fits;     /* false: an infinity, a NaN, or too small numbers; the float kernels do those */
};

/* One panel times some rows. */
struct wonly_tile {
    const uint8_t *w;
    const float *w_scale;  /* [block][16] */
    const uint8_t *w_zero; /* [block][16], or NULL: the middle of the range */
    size_t block, blocks;  /* depth of a block: a multiple of 8 */
    const struct wonly_rows *x;
    const float *xf; /* for the float kernels: rows, x_stride floats apart, zeros behind the depth */
    size_t x_stride;
    const float *bias; /* of the panel, or NULL */
    float *y;
    size_t y_stride, columns; /* floats from row to row; at most 16 columns are written */
    /* One block only: exact integer sums. The zero points of w come in here, w_zero is NULL. */
    const int32_t *column_init;   /* [16] */
    const int32_t *column_by_sum; /* [16]: times the sum of the row's bytes; or NULL */
    int32_t *yi;                  /* sums are stored as integers; else NULL */
};
typedef void wonly_fn(const struct wonly_tile *t);

struct wonly_kernels {
    const char *name;
    /* [bits == 8][rows - 1]: on floats */
    int float_rows;
    wonly_fn *on_floats[2][WONLY_ROWS_MAX];
    /* [bits == 8][planes - 1][rows - 1]: on fixed-point rows; NULL: none. Rows by planes: */
    int fixed_rows[WONLY_PLANES_MAX];
    wonly_fn *fixed[2][WONLY_PLANES_MAX][WONLY_ROWS_MAX];
    /* [rows - 1]: one block, bytes times bytes, exact sums */
    wonly_fn *exact[WONLY_ROWS_MAX];
    /* Brings `rows` rows of `depth` floats, x_stride apart, into blocks of fixed-point numbers. */
    void (*fix)(const float *x, size_t x_stride, size_t rows, size_t depth, size_t block, size_t blocks,
                int planes, int middle, struct wonly_rows *out);
    /* The same from bytes, minus `middle` (128: they are unsigned), in one block; the scale is the caller's.
     */
    void (*fix_bytes)(const uint8_t *x, size_t x_stride, size_t rows, size_t depth, size_t block, int middle,
                      struct wonly_rows *out);
    int exact_rows;
    /* Widens [*low, *high] to hold n numbers; NaN is passed over. */
    void (*range)(const float *x, size_t n, float *low, float *high);
    /* round_half_even(x / scale) + zero, saturated to 0 … 255; NaN becomes zero. */
    void (*quantize)(const float *x, size_t n, float scale, float zero, uint8_t *y);
};
extern const struct wonly_kernels wonly_kernels_avx2, wonly_kernels_avx512, wonly_kernels_vnni;
const struct wonly_kernels *wonly_kernels_for(enum mlo_isa isa);

/* Packed weights; columns behind n and depths behind k are 0. */
struct wonly_weights {
    int bits;
    size_t n, k, block, blocks;
    int data, scale, zero; /* slots; zero -1: the middle of the range */
};

/* Where weights come from: how a model's tensors hold them. Column j, depth k; numbers are unsigned. */
struct wonly_source {
    const struct mlo_tensor *q, *scales, *zeros;
    int form;                   /* which functions these are, for keys of shared constants */
    size_t n, k, block, blocks; /* of the source */
    int bits;
    bool turned;  /* the source is [n][k], not [k][n] */
    float factor; /* of scales */
    unsigned (*number)(const struct wonly_source *s, size_t j, size_t k);
    float (*scale)(const struct wonly_source *s, size_t j, size_t k);
    unsigned (*zero)(const struct wonly_source *s, size_t j, size_t k);
};
bool wonly_pack_data(struct mlo_plan *plan, const struct wonly_source *from, struct wonly_weights *w);
/* The numbers alone, and with their parameters. Packs; w's bits, n, k, block and blocks are set. false: out
 * of memory. */
bool wonly_pack(struct mlo_plan *plan, const struct wonly_source *from, struct wonly_weights *w);

struct wonly_request {
    struct wonly_weights w;
    size_t m;
    int planes;     /* 1 … 3: the precision of x */
    int x, bias, y; /* slots; the bias is padded to whole panels; -1: none */
};
MLO_MUST_USE enum mlo_status wonly_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                        const struct wonly_request *request, struct cpu_step **step,
                                        struct mlo_error *err);

/* --- unfold.c ------------------------------------------------------------------------------------------- */

/* The rows that a ConvInteger of one group multiplies, of bytes with channels last in slot x; the zero point
 * (slot, or -1) fills the border. *to is x where that is them already. */
MLO_MUST_USE enum mlo_status fast_emit_unfold(struct mlo_plan *plan, const struct mlo_node *node, int x,
                                              int zero, int *to, struct mlo_error *err);

#endif
