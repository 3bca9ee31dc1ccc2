/* Private to engines/cuda/plan: how a graph becomes steps.
 *
 * A value is a *place*: a slot, an offset and strides. Transpose, Reshape, Slice, Split and Expand only make
 * other places of the same memory, so they never become steps. What is elementwise or reduces stays *pending*
 * until a step wants it (lower_demand); then one chain is made of all that is pending behind it. A pending
 * value may be computed twice, but only where reading what it is made of costs no more than reading itself.
 */
#ifndef MLO_ENGINES_CUDA_PLAN_IMPL_H
#define MLO_ENGINES_CUDA_PLAN_IMPL_H

#include "engines/cuda/cuda_impl.h"

enum { LOWER_ALIGN = 256, LIBRARY_ALIGN = 16, INT8_CHANNELS = 16 };
enum { FLOAT8_SM = 89 }; /* matrix units multiply float8 from there on */

/* Where a value's elements are. */
struct place {
    int slot;       /* -1: nowhere */
    int64_t offset; /* of its first element from the slot's beginning, in elements */
    enum mlo_dtype dtype;
    int rank;
    int64_t dims[MLO_MAX_RANK], strides[MLO_MAX_RANK]; /* in elements */
};

/* The order in which a step wants a value's elements. */
enum want {
    WANT_ANY,
    WANT_ROWS, /* dense, the last dim innermost */
    WANT_LAST, /* dense, dim 1 innermost (rank 3 and more), the others in order */
    WANT_WIDE  /* the same with room for channels in multiples of INT8_CHANNELS, of any content behind the
                  last:  matrix units read 16 bytes at a time, and weights are 0 there */
};

struct known {
    struct place at[3]; /* the same content in several orders; the first is the one that was computed */
    int count;
};

struct attention_match;

struct lower {
    struct cuda_schedule *s;
    struct mlo_arena *arena; /* the schedule's */
    struct mlo_graph *g;
    struct known *values;           /* by value index */
    bool *done;                     /* by node: a step computes it */
    bool *pending;                  /* by node: a chain will, when somebody wants it */
    struct attention_match **ahead; /* by node: what the product with V is the end of; or NULL */
    struct mlo_value **observed;
    size_t observed_count;
    int sm;
    bool tf32;
};

typedef enum mlo_status lower_fn(struct lower *l, const struct mlo_node *node, bool *done,
                                 struct mlo_error *err);

/* --- prepare.c: rewrites of the schedule's own copy of the model -----------------------------------------
 */

MLO_MUST_USE enum mlo_status cuda_prepare(struct mlo_model *model, struct mlo_value *const *observed,
                                          size_t observed_count, struct mlo_error *err);

/* DequantizeLinear goes behind what only moves or chooses elements; pairs of equal parameters go. */
struct prepare;
MLO_MUST_USE enum mlo_status prepare_sink(const struct prepare *p, struct mlo_node *node, bool *done,
                                          struct mlo_error *err);
struct prepare {
    struct mlo_graph *g;
    struct mlo_value *const *observed;
    size_t observed_count;
};
bool prepare_shows(const struct prepare *p, const struct mlo_value *v); /* an output, or observed */
struct mlo_node *prepare_reader(const struct prepare *p, const struct mlo_value *v);
/* Joins a MatMul with those of the same value behind it. */
MLO_MUST_USE enum mlo_status prepare_merge(const struct prepare *p, struct mlo_node *node, bool *done,
                                           struct mlo_error *err);

/* --- values.c ----------------------------------------------------------------------------------------------
 */

bool lower_dims(const struct mlo_value *value, int64_t dims[MLO_MAX_RANK]); /* false: not static */
size_t lower_count(const struct mlo_value *value);                          /* elements; 0: not static */
bool lower_is_shown(const struct lower *l, const struct mlo_value *value);  /* an output, or observed */
/* The only reader of a value that nobody else needs to see; or NULL. */
struct mlo_node *lower_reader(const struct lower *l, const struct mlo_value *value);
/* The constant behind a value, through Identity nodes; or NULL. */
const struct mlo_tensor *lower_constant(const struct mlo_value *value);
/* A constant of one element. */
bool lower_number(const struct mlo_value *value, double *out);

/* New slots, and steps behind the others; negative or NULL: out of memory. */
int lower_slot(struct lower *l, enum cuda_slot_kind kind, size_t size_bytes);
int lower_slot_const(struct lower *l, const void *data, size_t size_bytes);
int lower_slot_const_take(struct lower *l, void *data, size_t size_bytes); /* frees data when it fails */
/* A slot that begins where the place does: the place's own, or a part of it. */
int lower_slot_at(struct lower *l, const struct place *place);
struct cuda_step *lower_step(struct lower *l, enum cuda_step_kind kind, const struct mlo_node *node,
                             const char *impl);
MLO_MUST_USE enum mlo_status lower_fuse(struct lower *l, struct cuda_step *step, const struct mlo_node *node,
                                        struct mlo_error *err);

/* Places. */
void place_dense(struct place *p, enum mlo_dtype dtype, int rank, const int64_t *dims, enum want order);
bool place_is(const struct place *p, enum want order);              /* dense in that order */
size_t place_bytes(const struct place *p);                          /* of a dense one */
size_t lower_element(enum mlo_dtype dtype);                         /* bytes */
bool place_aligned(const struct lower *l, const struct place *p);   /* for a library */
void place_transpose(struct place *p, const int64_t *perm);         /* NULL: reversed */
bool place_reshape(struct place *p, int rank, const int64_t *dims); /* false: strides cannot say it */
void place_slice(struct place *p, int axis, int64_t start, int64_t step, int64_t count);
void place_expand(struct place *p, int rank, const int64_t *dims); /* the broadcast */
bool place_tensor(const struct place *p, struct cuda_tensor *out); /* false: too many dims */

/* A new arena slot for it. */
MLO_MUST_USE enum mlo_status lower_place_new(struct lower *l, const struct mlo_value *value, enum want order,
                                             struct place *out, struct mlo_error *err);
/* The value is there. */
void lower_set(struct lower *l, const struct mlo_value *value, const struct place *place);
/* Pending, and of nothing but constants: it is computed here, not by a step. */
bool lower_is_of_constants(const struct lower *l, const struct mlo_value *value);
bool lower_is_placed(const struct lower *l, const struct mlo_value *value);
/* Where the value is, in that order: emits what is pending and copies as it must. */
MLO_MUST_USE enum mlo_status lower_demand(struct lower *l, const struct mlo_value *value, enum want order,
                                          struct place *out, struct mlo_error *err);
/* Makes the value's elements be in `to` (of its shape, in a slot that exists). */
MLO_MUST_USE enum mlo_status lower_into(struct lower *l, const struct mlo_value *value,
                                        const struct place *to, const struct mlo_node *node,
                                        struct mlo_error *err);
/* A constant tensor's place, uploaded once. */
MLO_MUST_USE enum mlo_status lower_tensor_place(struct lower *l, const struct mlo_tensor *t,
                                                struct place *out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status lower_unsupported(const struct mlo_node *node, struct mlo_error *err,
                                               const char *fmt, ...) MLO_PRINTF(3, 4);
/* What the kernels of chains load and store. */
bool lower_loads(enum mlo_dtype dtype);
bool lower_is_float(enum mlo_dtype dtype);  /* float32, float16, bfloat16 */
bool lower_is_float8(enum mlo_dtype dtype); /* of the two that GPUs have */
const char *lower_precision(const struct lower *l, enum mlo_dtype dtype, bool product);

/* --- forms.c: nodes as instructions of a chain
 * -------------------------------------------------------------- */

enum { FORM_INPUTS = 12 };
/* How the dims of an operand lie on those of the result (or, of a reduction, of input 0). */
enum form_align { ALIGN_RIGHT, ALIGN_CHANNEL /* one dim, which is `axis` */ };
struct form;
struct chain_builder;
/* Appends instructions; in[] has the operands' registers (-1: omitted or in the form's numbers). The
 * register of the result; negative: no room. */
typedef int form_emit_fn(struct chain_builder *b, const struct form *f, const int *in);
struct form {
    form_emit_fn *emit;
    int input_count;
    enum form_align align[FORM_INPUTS];
    bool skip[FORM_INPUTS]; /* operands that are in the form's numbers */
    int axis;
    unsigned reduced; /* dims of input 0 that are reduced, a bit each */
    bool keeps;       /* they stay, as dims of one element (or in full: `whole`) */
    bool whole;       /* the result has the shape of input 0 */
    double elements;  /* that a reduction is over */
    enum cuda_chain_op op;
    enum cuda_math math;
    float alpha, beta, low, high;
    int64_t attr;
};
/* Whether a chain can compute the node; *why (else) is text for an error, or NULL when it is no chain's
 * matter. */
bool form_of(const struct mlo_node *node, struct form *out, const char **why);

int chain_add(struct chain_builder *b, enum cuda_chain_op op, int a, int b_, int c);
int chain_unary(struct chain_builder *b, enum cuda_math math, int a, float alpha, float beta);
int chain_number(struct chain_builder *b, double value);
int chain_quantize(struct chain_builder *b, enum cuda_chain_op op, int a, float scale, float zero, float low,
                   float high);

/* --- chains.c ------------------------------------------------------------------------------------------- */

/* Emits the chain that computes a pending value, in that order of elements, or into `to`. */
MLO_MUST_USE enum mlo_status chain_emit(struct lower *l, const struct mlo_value *value, enum want order,
                                        const struct place *to, struct mlo_error *err);
/* A view of what is pending may stay pending too: a permutation, or dims of one element that come and go. */
bool chain_takes_view(const struct lower *l, const struct mlo_node *node);
/* A copy of elements between places of one shape; the type may differ. */
MLO_MUST_USE enum mlo_status chain_copy(struct lower *l, const struct mlo_node *node,
                                        const struct place *from, const struct place *to,
                                        struct mlo_error *err);
/* Behind the bare sums of 8-bit operands (int32, float32): y = activation(sums * scale + bias + residual),
 * quantized where the epilogue says so. scale and bias: the slots in `numbers`, one a column of the last dim;
 * residual: NULL: none.
 */
struct product_numbers;
struct epilogue;
MLO_MUST_USE enum mlo_status chain_product(struct lower *l, const struct mlo_node *node,
                                           const struct place *sums, const struct product_numbers *numbers,
                                           const struct epilogue *e, const struct place *residual,
                                           const struct place *y, struct mlo_error *err);
/* Writes one number everywhere. */
MLO_MUST_USE enum mlo_status chain_fill(struct lower *l, const struct mlo_node *node, const struct place *to,
                                        double number, struct mlo_error *err);
/* `planes` of x (a dim 1 of up to 3 channels) side by side in to, whose dim 1 has one more than them or the
 * same: the others become 0. */
MLO_MUST_USE enum mlo_status chain_interleave(struct lower *l, const struct mlo_node *node,
                                              const struct place *from, const struct place *to,
                                              struct mlo_error *err);

/* --- epilogue.c: what follows a product and can be computed with it ------------------------------------- */

enum { EPILOGUE_NODES = 12 };
struct epilogue {
    const struct mlo_node *nodes[EPILOGUE_NODES];
    int node_count;
    const struct mlo_value *end, *residual; /* residual: or NULL */
    const struct mlo_tensor *bias;          /* one a column, a constant; or NULL */
    enum cuda_activation activation;
    float low, high;
    bool quantized; /* the last node is a QuantizeLinear by `scale` to the type of `end` */
    float scale;
};
struct epilogue_wish {
    int axis; /* of the columns, which a bias has one of each */
    int64_t columns;
    bool gemm; /* only what cuBLASLt computes */
    bool conv; /* only what cuDNN's convolutions with matrix units compute: ReLU */
    bool no_activation;
    bool chain; /* a chain computes it: any activation, and quantization after it */
    bool may_quantize;
    bool takes_bytes; /* a residual may be int8 */
    bool keeps_type;  /* the result has no more bits than `start` */
};
/* The bounds of a Clip, where they are constants. */
bool epilogue_clip(const struct mlo_node *node, double *low, double *high);
/* Follows the only readers of `start`. */
void epilogue_follow(struct lower *l, const struct mlo_value *start, const struct epilogue_wish *wish,
                     struct epilogue *out);
MLO_MUST_USE enum mlo_status epilogue_take(struct lower *l, const struct epilogue *e, struct cuda_step *step,
                                           struct mlo_error *err);

/* --- quant.c ----------------------------------------------------------------------------------------------
 */

/* The value of that type, zero point 0 and one scale that a value is dequantized from; NULL: none. */
const struct mlo_value *quant_source(const struct lower *l, const struct mlo_value *value,
                                     enum mlo_dtype dtype, float *scale);
/* Weights of that type and zero points 0 behind a value, with one scale or one along `axis`. */
struct quant_weights {
    const struct mlo_tensor *q;
    const struct mlo_tensor *scales;
};
bool quant_weights(const struct mlo_value *value, enum mlo_dtype dtype, int axis, struct quant_weights *out);
/* A QuantizeLinear to that type with zero point 0 and one scale. */
bool quant_to(const struct mlo_node *node, enum mlo_dtype dtype, float *scale);

/* --- products.c: what convolutions and products have in common -------------------------------------------
 */

/* A float constant behind a value: an initializer, or what constants give. False: none. */
bool product_constant(struct lower *l, const struct mlo_value *value, struct mlo_tensor *out);
/* `count` numbers as a constant of that type, zeros up to `padded` behind them; negative: out of memory. */
int product_vector(struct lower *l, const double *numbers, int64_t count, int64_t padded,
                   enum mlo_dtype dtype);
/* Slots of the bias and of the scales of a step with that epilogue, or -1 where it needs none. `own`: the
 * bias that the node has itself (NULL: none), times beta; x_scale: of int8 operands (0: none). */
struct product_numbers {
    const struct mlo_tensor *own;
    double alpha, beta;
    float x_scale;
    const struct quant_weights *w;
    int64_t columns, padded; /* padded: with columns of zeros */
    enum mlo_dtype bias_dtype;
    int bias, scale; /* results */
    double unit;     /* of the result: its scale, when it is quantized; else 1 */
};
MLO_MUST_USE enum mlo_status product_slots(struct lower *l, const struct epilogue *e,
                                           struct product_numbers *n, struct mlo_error *err);
/* As lower_demand, where a library can read it: aligned. */
MLO_MUST_USE enum mlo_status product_demand(struct lower *l, const struct mlo_value *value, enum want order,
                                            struct place *out, struct mlo_error *err);

/* --- lowerings
 * ---------------------------------------------------------------------------------------------- */

lower_fn lower_view, lower_conv, lower_conv_transpose, lower_matmul, lower_gemm, lower_pool, lower_gather,
    lower_concat, lower_pad, lower_resize, lower_search, lower_topk;
/* Nobody wants the node's other outputs. */
bool lower_only_first(const struct mlo_node *node);
/* A step of an own kernel, by the name of its row. */
MLO_MUST_USE enum mlo_status lower_kernel(struct lower *l, const struct mlo_node *node, const char *name,
                                          struct cuda_kernel_use **use, struct cuda_step **step,
                                          struct mlo_error *err);
/* What rows with a window say first: batch, channels, three dims each of input, output, kernel, stride,
 * dilation, pads before and after. */
void geometry_of(int64_t n, int64_t c, const struct mlo_window *w, int64_t *out);
/* Softmax between two MatMuls, found before anything is lowered. */
MLO_MUST_USE enum mlo_status attention_find(struct lower *l, struct mlo_error *err);
MLO_MUST_USE enum mlo_status attention_lower(struct lower *l, const struct mlo_node *node,
                                             struct mlo_error *err);

/* --- memory.c ---------------------------------------------------------------------------------------------
 */

/* Lifetimes, sharing in place, offsets. */
MLO_MUST_USE enum mlo_status cuda_memory_plan(struct cuda_schedule *s, int observed, struct mlo_error *err);

#endif
