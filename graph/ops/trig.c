/* Circular and hyperbolic functions, Mish, Swish, Shrink, IsNaN and IsInf. In double, rounded once. */
#include <math.h>

#include "graph/ops/ops_impl.h"

typedef double unary_fn(double x);

static double mish(double x)
{
    return x * mlo_math_tanh(mlo_math_softplus(x));
}

static const struct {
    const char *op;
    unary_fn *fn;
} functions[] = {
    {"Acos", mlo_math_acos}, {"Acosh", mlo_math_acosh}, {"Asin", mlo_math_asin}, {"Asinh", mlo_math_asinh},
    {"Atan", mlo_math_atan}, {"Atanh", mlo_math_atanh}, {"Cos", mlo_math_cos},   {"Cosh", mlo_math_cosh},
    {"Mish", mish},          {"Sin", mlo_math_sin},     {"Sinh", mlo_math_sinh}, {"Tan", mlo_math_tan},
};

static enum mlo_status eval_unary(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t f = 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    while (strcmp(functions[f].op, node->op_type) != 0)
        f++;
    for (size_t i = 0; i < mlo_tensor_count(in[0]); i++)
        mlo_tensor_set_f64(out[0], i, functions[f].fn(mlo_tensor_get_f64(in[0], i)));
out:
    return status;
}

static enum mlo_status eval_swish(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double alpha = mlo_node_attr_f(node, "alpha", 1);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    for (size_t i = 0; i < mlo_tensor_count(in[0]); i++) {
        double x = mlo_tensor_get_f64(in[0], i);
        mlo_tensor_set_f64(out[0], i, x * mlo_math_sigmoid(alpha * x));
    }
out:
    return status;
}

static enum mlo_status eval_shrink(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double bias = mlo_node_attr_f(node, "bias", 0), bound = mlo_node_attr_f(node, "lambd", 0.5f);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    const struct mlo_dtype_info *info = mlo_dtype_info(in[0]->dtype);
    if (!info->is_float && !info->is_integer) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    for (size_t i = 0; i < mlo_tensor_count(in[0]); i++) {
        double x = mlo_tensor_get_f64(in[0], i), y = x < -bound ? x + bias : x > bound ? x - bias : 0;
        mlo_tensor_set_f64(out[0], i, info->is_integer ? trunc(y) : y);
    }
out:
    return status;
}

static enum mlo_status infer_is(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    MLO_UNUSED(err);
    out[0] = *mlo_op_in(node, 0);
    out[0].dtype = MLO_BOOL;
    return MLO_OK;
}

static enum mlo_status eval_is(const struct mlo_node *node, const struct mlo_tensor *const *in,
                               struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool nan = mlo_node_is(node, "IsNaN");
    bool plus = mlo_node_attr_i(node, "detect_positive", 1) != 0;
    bool minus = mlo_node_attr_i(node, "detect_negative", 1) != 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    for (size_t i = 0; i < mlo_tensor_count(in[0]); i++) {
        double x = mlo_tensor_get_f64(in[0], i);
        ((uint8_t *)out[0]->data)[i] = nan ? isnan(x) : isinf(x) && (x > 0 ? plus : minus);
    }
out:
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_ELEMENTWISE };
#define UNARY(name, since)                                                                                   \
    {                                                                                                        \
        "", name, since, mlo_op_infer_same, eval_unary, FLAGS, 1, 1, 1, 1                                    \
    }
#define IS(name, since)                                                                                      \
    {                                                                                                        \
        "", name, since, infer_is, eval_is, FLAGS, 1, 1, 1, 1                                                \
    }
static const struct mlo_op rows[] = {
    UNARY("Acos", 7),
    UNARY("Acos", 22),
    UNARY("Acosh", 9),
    UNARY("Acosh", 22),
    UNARY("Asin", 7),
    UNARY("Asin", 22),
    UNARY("Asinh", 9),
    UNARY("Asinh", 22),
    UNARY("Atan", 7),
    UNARY("Atan", 22),
    UNARY("Atanh", 9),
    UNARY("Atanh", 22),
    UNARY("Cos", 7),
    UNARY("Cos", 22),
    UNARY("Cosh", 9),
    UNARY("Cosh", 22),
    UNARY("Mish", 18),
    UNARY("Mish", 22),
    UNARY("Sin", 7),
    UNARY("Sin", 22),
    UNARY("Sinh", 9),
    UNARY("Sinh", 22),
    UNARY("Tan", 7),
    UNARY("Tan", 22),
    {"", "Swish", 24, mlo_op_infer_same, eval_swish, FLAGS, 1, 1, 1, 1},
    {"", "Shrink", 9, mlo_op_infer_same, eval_shrink, FLAGS, 1, 1, 1, 1},
    IS("IsInf", 10),
    IS("IsInf", 20),
    IS("IsNaN", 9),
    IS("IsNaN", 13),
    IS("IsNaN", 20),
};
const struct mlo_op_family mlo_ops_trig = {rows, MLO_COUNT(rows)};
