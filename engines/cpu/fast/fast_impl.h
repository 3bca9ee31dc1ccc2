/* Private to the fast numerics: oneDNN primitives on channels-last values, int8 where the graph's Q/DQ nodes
 * say so, own kernels between them, and the op table for the rest. */
#ifndef MLO_ENGINES_CPU_FAST_IMPL_H
#define MLO_ENGINES_CPU_FAST_IMPL_H

#include <dnnl.h>

#include "engines/cpu/cpu_impl.h"

/* i / n of an index that is mostly below n: beside a small product, a division is long. */
static inline size_t fast_quotient(size_t i, size_t n)
{
    return i < n ? 0 : i / n;
}

/* How many of the threads share a step that one of them does in so many cycles, which are right to a factor
 * of two. What another one costs is some thousand: it looks for work, values travel from core to core, and
 * who is done first waits. Where it sleeps it must be woken, besides. */
static inline unsigned fast_sharing(unsigned threads, size_t cycles)
{
    enum { PART_CYCLES = 10000 };
    size_t parts = mlo_cpu_splits_all ? threads : cycles / PART_CYCLES;
    return parts < 2 ? 1 : parts < threads ? (unsigned)parts : threads;
}

/* The same for a loop of `count` on a pool: its grain. */
static inline size_t fast_grain(const struct mlo_pool *pool, size_t count, size_t cycles)
{
    unsigned parts = fast_sharing(mlo_pool_threads(pool), cycles);
    return (count + parts - 1) / parts;
}

/* --- dnnl.c: primitives as steps -------------------------------------------------------------------- */

dnnl_engine_t fast_engine(void); /* NULL: oneDNN did not start */
/* The error of a oneDNN call that should not fail. */
enum mlo_status fast_failed(dnnl_status_t code, const char *what, struct mlo_error *err);
bool fast_md(dnnl_memory_desc_t *md, int rank, const int64_t *dims, dnnl_data_type_t type,
             enum cpu_layout layout);
dnnl_data_type_t fast_dtype(enum mlo_dtype dtype); /* dnnl_data_type_undef when oneDNN has none */
/* Attributes with a scratchpad of ours; NULL: out of memory. */
dnnl_primitive_attr_t fast_attr(void);
/* A primitive descriptor, or false where oneDNN has no optimised implementation ("ref…"). */
bool fast_pd(const_dnnl_op_desc_t desc, dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *pd);
/* The step that runs pd (which is destroyed in any case). */
MLO_MUST_USE enum mlo_status fast_step(struct mlo_plan *plan, const struct mlo_node *node,
                                       dnnl_primitive_desc_t pd, struct cpu_step **step,
                                       struct mlo_error *err);
/* Binds an argument of the primitive to a slot: what the step reads, or the one that it writes. */
void fast_reads(struct cpu_step *step, int arg, int slot, const dnnl_memory_desc_t *md);
void fast_writes(struct cpu_step *step, int arg, int slot, const dnnl_memory_desc_t *md);
/* Converts constant data into the layout `to` at compile time: a new slot, negative on failure. */
int fast_const_reordered(struct mlo_plan *plan, const void *data, const dnnl_memory_desc_t *from,
                         const dnnl_memory_desc_t *to);
int fast_const_floats(struct mlo_plan *plan, const float *data, size_t count);

/* --- fold.c ------------------------------------------------------------------------------------------- */

/* Computes what depends on constants only, and marks those nodes done. */
MLO_MUST_USE enum mlo_status fast_fold_constants(struct mlo_plan *plan, struct mlo_error *err);

/* --- attention.c ---------------------------------------------------------------------------------------- */

/* Finds attention as exporters write it, and marks its nodes done but the one that fast_lower_attention
 * takes. */
MLO_MUST_USE enum mlo_status fast_find_attention(struct mlo_plan *plan, struct mlo_error *err);

/* --- values.c: where values are --------------------------------------------------------------------- */

struct fast_shape {
    int rank;
    int64_t dims[MLO_MAX_RANK];
    size_t count;
};
bool fast_shape(const struct mlo_value *value, struct fast_shape *out); /* false: not static */
/* The slot with the value in that layout; emits what is needed (reorder, dequantize, folding of constants).
 */
MLO_MUST_USE enum mlo_status fast_value(struct mlo_plan *plan, const struct mlo_value *value,
                                        enum cpu_layout layout, int *slot, struct mlo_error *err);
/* The same for the quantized bytes that stand for a float value (fast_is_quantized must hold). */
MLO_MUST_USE enum mlo_status fast_qvalue(struct mlo_plan *plan, const struct mlo_value *value,
                                         enum cpu_layout layout, int *slot, struct mlo_error *err);
bool fast_is_quantized(const struct mlo_plan *plan, const struct mlo_value *value);
/* The 16-bit type that the model has the value in (what computes it here has float32); MLO_DTYPE_NONE:
 * another. */
enum mlo_dtype fast_stored(const struct mlo_plan *plan, const struct mlo_value *value);
/* The model has it in 16 bits that a product here need not have more of: in float16, or in bfloat16, too,
 * which has a range that fixed point allows for and FP16 does not. (What computes it otherwise has float32.)
 */
bool fast_is_half(const struct mlo_plan *plan, const struct mlo_value *value);
bool fast_is_available(const struct mlo_plan *plan, const struct mlo_value *value);
/* The layout in which the value is already (its bytes when quantized is set); channels last when both. */
enum cpu_layout fast_layout(const struct mlo_plan *plan, const struct mlo_value *value, bool quantized);
/* A new arena slot for the value's static type, or for as many bytes when it is quantized. Negative: no
 * memory. */
int fast_new_slot(struct mlo_plan *plan, const struct mlo_value *value, bool quantized);
void fast_set(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout, int slot);
void fast_set_q(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout, int slot,
                const struct cpu_qparams *q);
/* The value is the tensor's content, which becomes the plan's. */
MLO_MUST_USE enum mlo_status fast_set_constant(struct mlo_plan *plan, const struct mlo_value *value,
                                               struct mlo_tensor *t, struct mlo_error *err);
/* Per-tensor parameters of a QuantizeLinear or DequantizeLinear node on 8 bits; false when it is another
 * kind. */
bool fast_qparams(const struct mlo_node *node, struct cpu_qparams *out);
bool fast_same_q(const struct cpu_qparams *a, const struct cpu_qparams *b);
/* The initializer behind a value, through Identity nodes (exporters share equal ones that way); or NULL. */
const struct mlo_tensor *fast_initializer(const struct mlo_value *value);
/* Constant floats behind a value: an initializer, or DequantizeLinear of one (computed once, kept in the
 * plan). *out is NULL when it is no such constant. */
MLO_MUST_USE enum mlo_status fast_const_f32(struct mlo_plan *plan, const struct mlo_value *value,
                                            const struct mlo_tensor **out, struct mlo_error *err);
/* int8 weights behind a value: DequantizeLinear of an int8 initializer with zero points 0, scales along
 * `axis` or one for all. */
struct fast_weights {
    const struct mlo_tensor *q;
    const float *scales;
    size_t scale_count; /* 1 or the axis' length */
};
bool fast_int8_weights(const struct mlo_value *value, int axis, struct fast_weights *out);
/* Adds up int8 weights: sums[o] += those at o * column_stride + i * row_stride, i < rows; in order of memory.
 */
void fast_add_columns(const int8_t *w, size_t columns, size_t rows, size_t column_stride, size_t row_stride,
                      int32_t *sums);
/* False where int8 dot products of this machine would saturate at 16 bits with these weights: rows of `depth`
 * elements, `row_stride` and `k_stride` apart. */
bool fast_int8_exact(const struct mlo_plan *plan, const int8_t *w, size_t rows, size_t depth,
                     size_t row_stride, size_t k_stride);

/* --- chain.c: what follows a node and can be computed with it ---------------------------------------- */

enum { FAST_CHAIN_MAX = 16, FAST_COMPOSITE_MAX = 5 };

struct fast_post {
    bool sum; /* adds the residual; else an activation */
    dnnl_alg_kind_t alg;
    float alpha, beta;
};

struct fast_chain {
    const struct mlo_node *nodes[FAST_CHAIN_MAX];
    int node_count;
    struct fast_post posts[FAST_CHAIN_MAX];
    int post_count;
    struct mlo_value *end; /* what the fused step produces */
    struct mlo_value *residual;
    bool quantized; /* a QuantizeLinear ends it; its parameters: */
    struct cpu_qparams q;
    /* An activation does not commute with a scale: the step computes in the values' own units, and divides by
     * the output's scale at the end. */
    bool own_units;
};

/* Several nodes that are one activation of x. */
struct fast_composite {
    const struct mlo_node *nodes[FAST_COMPOSITE_MAX];
    int node_count;
    struct fast_post post;
    struct mlo_value *end;
};
/* The one that begins with the node `first`, a reader of x. What is between x and its end has no other
 * reader. */
bool fast_composite(const struct mlo_plan *plan, const struct mlo_value *x, const struct mlo_node *first,
                    struct fast_composite *out);
/* The same when nobody else reads x, so that x need not exist. */
bool fast_composite_alone(const struct mlo_plan *plan, const struct mlo_value *x, struct fast_composite *out);
/* What an int8 step's results are divided by before its post-ops. */
double fast_chain_unit(const struct fast_chain *chain);

/* The only reader of a value that nobody else needs to see; or NULL. */
struct mlo_node *fast_reader(const struct mlo_plan *plan, const struct mlo_value *value);
/* Walks from `start` over activations, one residual Add whose other operand is there already, and a final
 * QuantizeLinear. */
void fast_chain_follow(const struct mlo_plan *plan, struct mlo_value *start, bool may_sum, bool may_quantize,
                       struct fast_chain *out);
/* Marks its nodes done and lists them in the step. */
MLO_MUST_USE enum mlo_status fast_chain_take(struct mlo_plan *plan, const struct fast_chain *chain,
                                             struct cpu_step *step, struct mlo_error *err);
/* Adds the chain to attr as post-ops. int8 steps compute in units of the output's scale. */
bool fast_chain_attr(const struct fast_chain *chain, dnnl_primitive_attr_t attr,
                     const struct cpu_qparams *residual);
void fast_mark_done(struct mlo_plan *plan, const struct mlo_node *node);
/* oneDNN's elementwise algorithm for a node with constant parameters; false when it has none. */
bool fast_eltwise(const struct mlo_node *node, struct fast_post *out, bool *homogeneous);

/* --- prim_emit.c: steps that lowerings have in common -------------------------------------------------- */

/* y is made of x, in the same layout and form. */
struct fast_unary {
    const struct mlo_value *x, *y;
    enum cpu_layout layout;
    bool quantized; /* on the bytes that stand for x, with the same parameters */
    dnnl_memory_desc_t x_md, y_md;
};
/* The step that runs pd (which is destroyed in any case), and where y is. */
MLO_MUST_USE enum mlo_status fast_emit_unary(struct mlo_plan *plan, const struct mlo_node *node,
                                             dnnl_primitive_desc_t pd, const struct fast_unary *u,
                                             struct cpu_step **step, struct mlo_error *err);

/* A convolution or an inner product with constant weights, and a chain behind it. */
struct fast_product {
    const struct mlo_node *node;
    const struct mlo_value *x;
    enum cpu_layout layout; /* of x, a residual and the result */
    const struct fast_chain *chain;
    int64_t columns;     /* output channels */
    const void *weights; /* as w_plain says */
    dnnl_data_type_t x_type, w_type, y_type;
    const float *bias;                    /* one a column, or NULL */
    const float *scales;                  /* int8 only: output scales, one a column */
    int32_t x_zero_point;                 /* given to oneDNN when not 0 */
    const struct cpu_qparams *residual_q; /* of a residual of bytes, or NULL */
    dnnl_memory_desc_t x_md, w_md, w_plain, bias_md, y_md;
};
/* Attributes for its primitive; NULL: oneDNN has none. */
dnnl_primitive_attr_t fast_product_attr(const struct fast_product *p);
/* The step that runs pd (which is destroyed in any case), and where the chain's end is. */
MLO_MUST_USE enum mlo_status fast_emit_product(struct mlo_plan *plan, const struct fast_product *p,
                                               dnnl_primitive_desc_t pd, struct cpu_step **step,
                                               struct mlo_error *err);

/* What int8 sums are multiplied by and what is added to them before. */
struct fast_int8_numbers {
    const struct cpu_qparams *x;
    const struct fast_weights *w;
    const float *bias;   /* by column, times beta; or NULL */
    const int32_t *sums; /* of each column's weights, where x's zero point goes into the shifts; or NULL */
    float alpha, beta;
};
void fast_product_numbers(const struct fast_int8_numbers *n, const struct fast_chain *chain, size_t columns,
                          float *scales, float *shifts);

/* --- lowerings: each handles a node and sets *done, or leaves it alone -------------------------------- */

typedef enum mlo_status fast_lower_fn(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                      struct mlo_error *err);
fast_lower_fn fast_lower_spelled_norm, fast_lower_attention, fast_lower_copy, fast_lower_gather,
    fast_lower_table, fast_lower_packed, fast_lower_conv, fast_lower_gemm, fast_lower_pool,
    fast_lower_global_pool, fast_lower_qadd, fast_lower_composite, fast_lower_elementwise, fast_lower_softmax,
    fast_lower_reduce, fast_lower_layer_norm, fast_lower_transpose, fast_lower_view, fast_lower_quantize,
    fast_lower_dequantize;

fast_lower_fn fast_lower_cast, fast_lower_dynamic_quantize, fast_lower_integer_product;

/* --- rows.c and spelled_norm.c -------------------------------------------------------------------------- */

/* Layer normalization of rows of `width` in slots[0] by the scale and bias (or -1) in the others. */
MLO_MUST_USE enum mlo_status fast_emit_norm(struct mlo_plan *plan, const struct mlo_node *node,
                                            const int slots[3], const struct mlo_value *end, size_t width,
                                            float epsilon, struct cpu_step **step, struct mlo_error *err);
/* Finds layer normalization in several nodes, and marks them done but the last, which
 * fast_lower_spelled_norm takes. After fast_find_attention, which makes plan->ahead. */
MLO_MUST_USE enum mlo_status fast_find_norm(struct mlo_plan *plan, struct mlo_error *err);

/* --- reduce.c ------------------------------------------------------------------------------------------- */

/* Which axes a reduction takes; false when that is not known, or none by its attribute. */
bool fast_reduced_axes(const struct mlo_node *node, int rank, bool reduced[MLO_MAX_RANK]);

/* --- convert.c --------------------------------------------------------------------------------------------
 */

/* Between float32, float16 and bfloat16, to nearest even. */
typedef void fast_convert_fn(const void *x, enum mlo_dtype from, size_t count, void *y, enum mlo_dtype to);
fast_convert_fn *fast_convert_for(enum mlo_isa isa);
bool fast_has_f16c(void);

/* --- qsteps.c and qkernels.c: own kernels on 8-bit values ---------------------------------------------- */

MLO_MUST_USE enum mlo_status fast_emit_quantize(struct mlo_plan *plan, const struct mlo_node *node, int from,
                                                int to, size_t count, const struct cpu_qparams *q,
                                                struct mlo_error *err);
MLO_MUST_USE enum mlo_status fast_emit_dequantize(struct mlo_plan *plan, const struct mlo_node *node,
                                                  int from, int to, size_t count, const struct cpu_qparams *q,
                                                  struct mlo_error *err);
/* q(dq(a) + dq(b)), with Relu between when asked. */
MLO_MUST_USE enum mlo_status fast_emit_qadd(struct mlo_plan *plan, const struct mlo_node *node,
                                            const int from[2], const struct cpu_qparams *qa,
                                            const struct cpu_qparams *qb, int to, const struct cpu_qparams *q,
                                            bool relu, size_t count, struct cpu_step **step,
                                            struct mlo_error *err);
/* Mean over the pixels of channels-last bytes; q NULL: float32 out. */
MLO_MUST_USE enum mlo_status fast_emit_qmean(struct mlo_plan *plan, const struct mlo_node *node, int from,
                                             const struct cpu_qparams *qx, int64_t n, int64_t pixels,
                                             int64_t channels, int to, const struct cpu_qparams *q,
                                             struct cpu_step **step, struct mlo_error *err);

/* Row-major bytes of 2 to 4 channels to channels last: what a picture needs. */
MLO_MUST_USE enum mlo_status fast_emit_interleave(struct mlo_plan *plan, int from, int64_t n, int64_t pixels,
                                                  int64_t channels, int to, struct mlo_error *err);

/* average.c: AveragePool of quantized bytes; leaves *done where rounding up or dilation asks for more. */
MLO_MUST_USE enum mlo_status fast_lower_qaverage(struct mlo_plan *plan, const struct mlo_node *node,
                                                 const struct mlo_window *w, bool *done,
                                                 struct mlo_error *err);

struct fast_kernels {
    void (*quantize)(const float *x, size_t count, const struct cpu_qparams *q, void *y);
    void (*dequantize)(const void *x, size_t count, const struct cpu_qparams *q, float *y);
    void (*add)(const void *a, const struct cpu_qparams *qa, const void *b, const struct cpu_qparams *qb,
                size_t count, bool relu, const struct cpu_qparams *q, void *y);
    void (*sum_rows)(const void *x, bool is_signed, size_t rows, size_t columns,
                     int32_t *sums); /* adds to sums */
    /* `count` pixels of 2 to 4 channels, whose planes are `plane` bytes apart, one behind the other. */
    void (*interleave)(const uint8_t *x, size_t plane, size_t channels, size_t count, uint8_t *y);
};
const struct fast_kernels *fast_kernels_for(enum mlo_isa isa);

/* --- rowkernels.inc ------------------------------------------------------------------------------------- */

enum fast_reduction {
    FAST_REDUCE_MEAN,
    FAST_REDUCE_SUM,
    FAST_REDUCE_MAX, /* NaN where there is one */
    FAST_REDUCE_MIN,
    FAST_REDUCE_L1,
    FAST_REDUCE_L2,
    FAST_REDUCE_SUM_SQUARE,
    FAST_REDUCTIONS
};

/* --- transpose.c ------------------------------------------------------------------------------------------
 */

/* Worth it: blocks of a few rows would be mostly empty. */
static inline bool fast_turns(size_t rows, size_t columns)
{
    return rows > 4 && columns > 4;
}
/* The step that turns each of `count` matrices of floats, rows x columns, that lie behind each other. */
MLO_MUST_USE enum mlo_status fast_emit_transpose(struct mlo_plan *plan, const struct mlo_node *node, int from,
                                                 int to, size_t count, size_t rows, size_t columns,
                                                 struct cpu_step **step, struct mlo_error *err);

struct fast_row_kernels {
    /* y = (x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias over n floats; bias may be NULL */
    void (*normalize)(const float *x, size_t n, const float *scale, const float *bias, float epsilon,
                      float *y);
    /* Softmax, or its logarithm, of dense rows; y is not x. A row with NaN or infinity is NaN. */
    void (*softmax)(const float *x, size_t rows, size_t width, bool log, float *y);
    /* Of dense rows of n > 0 floats each, one result a row. */
    void (*reduce_rows[FAST_REDUCTIONS])(const float *x, size_t rows, size_t n, float *y);
    /* Over n > 0 rows that are `step` apart, one result for each of `width` columns. */
    void (*reduce_columns[FAST_REDUCTIONS])(const float *x, size_t n, size_t step, size_t width, float *y);
    /* y[c * rows + r] = x[r * step + c] for r < rows, c < columns; they do not overlap. */
    void (*transpose)(const float *x, size_t step, size_t rows, size_t columns, float *y);
};
extern const struct fast_row_kernels fast_row_kernels_avx2, fast_row_kernels_avx512;
const struct fast_row_kernels *fast_row_kernels_for(enum mlo_isa isa);

#endif
