/* What the files of graph/ops/ share. A family of ops is one file: rows, their infer and their eval
 * functions.
 *
 * All checks of ranks, types and attributes are infer's: an eval function begins with mlo_op_alloc, which
 * runs infer on the actual tensors and makes the outputs; after it, shapes are consistent and only element
 * types are left to check. */
#ifndef MLO_GRAPH_OPS_IMPL_H
#define MLO_GRAPH_OPS_IMPL_H

#include <string.h>

#include "graph/dtype_impl.h"
#include "graph/expr.h"
#include "graph/model_impl.h"
#include "graph/op.h"
#include "graph/scalar.h"

struct mlo_op_family {
    const struct mlo_op *rows;
    size_t count;
};
extern const struct mlo_op_family mlo_ops_unary, mlo_ops_binary, mlo_ops_compare, mlo_ops_conv, mlo_ops_pool,
    mlo_ops_matmul, mlo_ops_norm, mlo_ops_softmax, mlo_ops_reduce, mlo_ops_view, mlo_ops_move, mlo_ops_slice,
    mlo_ops_gather, mlo_ops_constant, mlo_ops_cast, mlo_ops_quantize, mlo_ops_qlinear, mlo_ops_resize;
extern const struct mlo_op_family mlo_ops_trig, mlo_ops_bits, mlo_ops_scatter, mlo_ops_select, mlo_ops_sort;
extern const struct mlo_op_family mlo_ops_legacy, mlo_ops_control, mlo_ops_sequence;
extern const struct mlo_op_family mlo_ops_rnn, mlo_ops_einsum, mlo_ops_conv_transpose, mlo_ops_loss,
    mlo_ops_detect, mlo_ops_grid, mlo_ops_norm_more, mlo_ops_signal, mlo_ops_image, mlo_ops_attention;
extern const struct mlo_op_family mlo_ops_ms_fused, mlo_ops_ms_quantized, mlo_ops_ms_matmul,
    mlo_ops_ms_transformer;

enum { ANY_COUNT = -1 };

/* Runs infer on the tensors as they are, and makes the outputs. */
MLO_MUST_USE enum mlo_status mlo_op_alloc(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                          struct mlo_tensor *const *out, struct mlo_error *err);
/* "not defined for element type X". */
enum mlo_status mlo_op_bad_dtype(enum mlo_dtype dtype, struct mlo_error *err);

/* The type of input i; NULL when it is omitted, or i is negative: the op has none. */
const struct mlo_type *mlo_op_in(const struct mlo_node *node, int i);
/* Whether input i is there and of known rank. */
bool mlo_op_ranked(const struct mlo_node *node, int i);
/* Input i's content, when it is a constant or was derived; else NULL. */
const struct mlo_tensor *mlo_op_content(const struct mlo_node *node, int i);
/* Input i's content as a list of integers, numbers or symbolic; false when nothing is known, or more than
 * `max` elements are there. */
bool mlo_op_exprs(const struct mlo_node *node, int i, struct mlo_expr *out, size_t max, size_t *count);
/* The output's spatial dim `i` of a window over a dim of the input that may be symbolic. */
struct mlo_dim mlo_window_dim(const struct mlo_node *node, const struct mlo_window *w, int i,
                              struct mlo_dim in);
/* Brings a window to three spatial dims: those in front are of size 1, without padding. */
void mlo_window_widen(struct mlo_window *w);
/* Arithmetic of dims, unknown where a result cannot be told; texts are the model's. */
struct mlo_dim mlo_op_dim_add(const struct mlo_node *node, struct mlo_dim a, struct mlo_dim b);
struct mlo_dim mlo_op_dim_mul(const struct mlo_node *node, struct mlo_dim a, struct mlo_dim b);
struct mlo_dim mlo_op_dim_div(const struct mlo_node *node, struct mlo_dim a, int64_t by); /* rounded down */
/* (dim + plus) / by, rounded down, + 1 behind it: how many windows fit. */
struct mlo_dim mlo_op_dim_steps(const struct mlo_node *node, struct mlo_dim dim, int64_t plus, int64_t by);
/* MLO_EINVAL unless input i, when ranked, has that rank. */
MLO_MUST_USE enum mlo_status mlo_op_want_rank(const struct mlo_node *node, int i, int rank,
                                              struct mlo_error *err);
/* Adds rank to a negative axis and checks it; `count` is the number of valid positions. */
MLO_MUST_USE enum mlo_status mlo_op_axis(int64_t axis, int count, int *out, struct mlo_error *err);
/* Reads a 1-D (or scalar) integer tensor of at most `max` elements. */
MLO_MUST_USE enum mlo_status mlo_op_read_ints(const struct mlo_tensor *t, int64_t *out, int max, int *count,
                                              struct mlo_error *err);
/* Combines the dims of two broadcast operands (numpy's rule). */
MLO_MUST_USE enum mlo_status mlo_op_broadcast(const struct mlo_type *a, const struct mlo_type *b,
                                              struct mlo_type *out, struct mlo_error *err);
/* MLO_EINVAL unless input i, when its shape and that of `to` are known, broadcasts to it without widening it.
 */
MLO_MUST_USE enum mlo_status mlo_op_want_broadcast(const struct mlo_node *node, int i,
                                                   const struct mlo_type *to, struct mlo_error *err);
/* out[0] is like input 0. */
mlo_op_infer_fn mlo_op_infer_same;
/* infer of ops of two broadcast operands of one element type. */
mlo_op_infer_fn mlo_op_infer_broadcast;
/* MLO_EUNSUPPORTED unless the tensor's elements are floating-point numbers. */
MLO_MUST_USE enum mlo_status mlo_op_want_float(const struct mlo_tensor *t, struct mlo_error *err);
/* int8, uint8, or not known yet. */
bool mlo_op_maybe_int8(enum mlo_dtype dtype);
/* Input i as a tensor; NULL when it is omitted, the node has fewer, or i is negative: the op has none. */
const struct mlo_tensor *mlo_op_operand(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        int i);
/* All elements of a numeric or bool tensor as doubles; free() them. A NULL tensor gives NULL. */
MLO_MUST_USE enum mlo_status mlo_op_doubles(const struct mlo_tensor *t, double **out, struct mlo_error *err);
/* Rounds `values`, one for each element, into a tensor. */
void mlo_op_store_doubles(struct mlo_tensor *t, const double *values);
/* The position in `names` of a string attribute's value; MLO_EINVAL names attribute and value. */
MLO_MUST_USE enum mlo_status mlo_op_choose(const struct mlo_node *node, const char *name,
                                           const char *fallback, const char *const *names, size_t count,
                                           unsigned *out, struct mlo_error *err);
/* A shape cut at an axis: elements before it, along it, behind it. */
struct mlo_spans {
    size_t outer, size, inner;
};
struct mlo_spans mlo_op_spans(const struct mlo_tensor *t, int axis);
struct mlo_dim mlo_dim_fixed(int64_t value);
struct mlo_dim mlo_dim_unknown(void);

/* Walks a broadcast operand: element offsets for each output element, in row-major order. */
struct mlo_strides {
    int rank;
    int64_t dims[MLO_MAX_RANK], step[2][MLO_MAX_RANK];
    int64_t at[MLO_MAX_RANK];
    size_t offset[2];
};
void mlo_strides_init(struct mlo_strides *s, const struct mlo_tensor *out, const struct mlo_tensor *a,
                      const struct mlo_tensor *b);
void mlo_strides_next(struct mlo_strides *s);

/* Element sizes in bytes; 0 for types that have no whole bytes. */
size_t mlo_dtype_bytes(enum mlo_dtype dtype);

/* Mean and variance of `count` elements from `first` on, in double, in the order of the elements (norm.c). */
void mlo_op_moments(const struct mlo_tensor *x, size_t first, size_t count, double *mean, double *variance);

/* Elementary functions in double, from additions, multiplications and divisions only, so that their bits
 * depend on no machine and no C library (whose own are chosen by the CPU at run time). Relative error below
 * 1e-13. mlo_math_exp is in scalar.h. */
/* x[i] = mlo_math_exp(x[i]), the same bits, some at a time: the divisions of one number wait for each other.
 */
void mlo_math_exps(double *x, size_t n);
double mlo_math_log(double x);
double mlo_math_tanh(double x);
double mlo_math_erf(double x);
double mlo_math_pow(double x, double y);
double mlo_math_log1p(double x);
/* Arguments of more than 2^50 have lost their phase: it is that of the double nearest to 2 pi. */
double mlo_math_sin(double x);
double mlo_math_cos(double x);
double mlo_math_tan(double x);
double mlo_math_asin(double x);
double mlo_math_acos(double x);
double mlo_math_atan(double x);
double mlo_math_sinh(double x);
double mlo_math_cosh(double x);
double mlo_math_asinh(double x);
double mlo_math_acosh(double x);
double mlo_math_atanh(double x);
double mlo_math_sigmoid(double x);
double mlo_math_softplus(double x);
#define MLO_MATH_PI 3.14159265358979323846

#endif
