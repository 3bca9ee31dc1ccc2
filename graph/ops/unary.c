/* Elementwise functions of one tensor, and the activation functions.
 * Floats: computed in double and rounded once to the element type. Integers where the specification has them.
 */
#include <math.h>

#include "graph/ops/ops_impl.h"

/* The functions' `a` and `b` are attributes, as the row of `functions` says. */
static double fn_relu(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return x < 0 ? 0 : x; /* keeps NaN */
}
static double fn_leaky_relu(double x, double a, double b)
{
    MLO_UNUSED(b);
    return x < 0 ? a * x : x;
}
static double fn_sigmoid(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    if (x >= 0)
        return 1 / (1 + mlo_math_exp(-x));
    double e = mlo_math_exp(x);
    return e / (1 + e);
}
static double fn_hard_sigmoid(double x, double a, double b)
{
    double y = a * x + b;
    return y < 0 ? 0 : y > 1 ? 1 : y;
}
static double fn_hard_swish(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return x * fn_hard_sigmoid(x, 1.0 / 6, 0.5);
}
static double fn_tanh(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return mlo_math_tanh(x);
}
static double fn_exp(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return mlo_math_exp(x);
}
static double fn_log(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return mlo_math_log(x);
}
static double fn_sqrt(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return sqrt(x); /* correctly rounded everywhere */
}
static double fn_erf(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return mlo_math_erf(x);
}
static double fn_neg(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return -x;
}
static double fn_abs(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return fabs(x);
}
static double fn_floor(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return floor(x);
}
static double fn_ceil(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return ceil(x);
}
static double fn_round(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return rint(x); /* half to even */
}
static double fn_sign(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return (x > 0) - (x < 0);
}
static double fn_reciprocal(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return 1 / x;
}
static double fn_elu(double x, double a, double b)
{
    MLO_UNUSED(b);
    return x < 0 ? a * (mlo_math_exp(x) - 1) : x;
}
static double fn_selu(double x, double a, double b)
{
    return b * fn_elu(x, a, 0);
}
static double fn_celu(double x, double a, double b)
{
    MLO_UNUSED(b);
    return x < 0 ? a * (mlo_math_exp(x / a) - 1) : x;
}
static double fn_softplus(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return x > 0 ? x + mlo_math_log(1 + mlo_math_exp(-x)) : mlo_math_log(1 + mlo_math_exp(x));
}
static double fn_softsign(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return x / (1 + fabs(x));
}
static double fn_thresholded_relu(double x, double a, double b)
{
    MLO_UNUSED(b);
    return x > a ? x : 0;
}
static double fn_gelu(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return 0.5 * x * (1 + mlo_math_erf(x * 0.70710678118654752));
}
static double fn_gelu_tanh(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return 0.5 * x * (1 + mlo_math_tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

/* Many floats at a time, to the bits that fn gives one by one. */
enum { SIGMOIDS = 256 };
static void many_sigmoids(const float *x, size_t n, float *y)
{
    double e[SIGMOIDS];
    for (size_t begin = 0, count; begin < n; begin += count) {
        count = MLO_MIN(n - begin, (size_t)SIGMOIDS);
        for (size_t i = 0; i < count; i++)
            e[i] = x[begin + i] >= 0 ? -(double)x[begin + i] : x[begin + i];
        mlo_math_exps(e, count);
        for (size_t i = 0; i < count; i++)
            y[begin + i] = (float)(x[begin + i] >= 0 ? 1 / (1 + e[i]) : e[i] / (1 + e[i]));
    }
}

/* Sorted by op name; since 1 default first where a default changed. */
static const struct function {
    const char *op;
    mlo_scalar_fn *fn;
    const char *a_name, *b_name;                      /* attributes, or NULL */
    float a, b;                                       /* their defaults */
    bool integers;                                    /* defined for integers too */
    void (*many)(const float *x, size_t n, float *y); /* or NULL */
} functions[] = {
    {"Abs", fn_abs, NULL, NULL, 0, 0, true},
    {"Ceil", fn_ceil, NULL, NULL, 0, 0, false},
    {"Celu", fn_celu, "alpha", NULL, 1, 0, false},
    {"Elu", fn_elu, "alpha", NULL, 1, 0, false},
    {"Erf", fn_erf, NULL, NULL, 0, 0, false},
    {"Exp", fn_exp, NULL, NULL, 0, 0, false},
    {"Floor", fn_floor, NULL, NULL, 0, 0, false},
    {"HardSigmoid", fn_hard_sigmoid, "alpha", "beta", 0.2f, 0.5f, false},
    {"HardSwish", fn_hard_swish, NULL, NULL, 0, 0, false},
    {"LeakyRelu", fn_leaky_relu, "alpha", NULL, 0.01f, 0, false},
    {"Log", fn_log, NULL, NULL, 0, 0, false},
    {"Neg", fn_neg, NULL, NULL, 0, 0, true},
    {"Reciprocal", fn_reciprocal, NULL, NULL, 0, 0, false},
    {"Relu", fn_relu, NULL, NULL, 0, 0, true},
    {"Round", fn_round, NULL, NULL, 0, 0, false},
    {"Selu", fn_selu, "alpha", "gamma", 1.67326319217681884765625f, 1.05070102214813232421875f, false},
    {"Sigmoid", fn_sigmoid, NULL, NULL, 0, 0, false, many_sigmoids},
    {"Sign", fn_sign, NULL, NULL, 0, 0, true},
    {"Softplus", fn_softplus, NULL, NULL, 0, 0, false},
    {"Softsign", fn_softsign, NULL, NULL, 0, 0, false},
    {"Sqrt", fn_sqrt, NULL, NULL, 0, 0, false},
    {"Tanh", fn_tanh, NULL, NULL, 0, 0, false},
    {"ThresholdedRelu", fn_thresholded_relu, "alpha", NULL, 1, 0, false},
};

static enum mlo_status apply(mlo_scalar_fn *fn, double a, double b, bool integers, const struct mlo_tensor *x,
                             struct mlo_tensor *y, struct mlo_error *err)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(x->dtype);
    size_t count = mlo_tensor_count(x);
    if (x->dtype == MLO_FLOAT32) {
        const float *from = x->data;
        float *to = y->data;
        for (size_t i = 0; i < count; i++)
            to[i] = (float)fn(from[i], a, b);
        return MLO_OK;
    }
    if (!info || !(info->is_float || (integers && info->is_integer)))
        return mlo_op_bad_dtype(x->dtype, err);
    for (size_t i = 0; i < count;
         i++) /* 64-bit integers beyond 2^53 lose low bits, which no model relies on */
        mlo_tensor_set_f64(y, i, fn(mlo_tensor_get_f64(x, i), a, b));
    return MLO_OK;
}

static const struct function *function_of(const struct mlo_node *node)
{
    for (size_t i = 0; i < MLO_COUNT(functions); i++)
        if (strcmp(functions[i].op, node->op_type) == 0)
            return &functions[i];
    return NULL;
}

static struct mlo_scalar scalar_of(const struct function *f, const struct mlo_node *node)
{
    return (struct mlo_scalar){.fn = f->fn,
                               .a = f->a_name ? mlo_node_attr_f(node, f->a_name, f->a) : 0,
                               .b = f->b_name ? mlo_node_attr_f(node, f->b_name, f->b) : 0};
}

static enum mlo_status eval_unary(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    const struct function *f = function_of(node);
    if (status != MLO_OK)
        return status;
    if (!f)
        return mlo_error_set(err, MLO_EINTERNAL, "no function for %s", node->op_type);
    if (f->many && in[0]->dtype == MLO_FLOAT32) {
        f->many(in[0]->data, mlo_tensor_count(in[0]), out[0]->data);
        return MLO_OK;
    }
    struct mlo_scalar s = scalar_of(f, node);
    return apply(s.fn, s.a, s.b, f->integers, in[0], out[0], err);
}

bool mlo_node_scalar(const struct mlo_node *node, struct mlo_scalar *out)
{
    const struct function *f = node->op && node->op->eval == eval_unary ? function_of(node) : NULL;
    if (f)
        *out = scalar_of(f, node);
    return f != NULL;
}

static enum mlo_status eval_gelu(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    bool by_tanh = strcmp(mlo_node_attr_s(node, "approximate", "none"), "tanh") == 0;
    return status != MLO_OK ? status
                            : apply(by_tanh ? fn_gelu_tanh : fn_gelu, 0, 0, false, in[0], out[0], err);
}

/* Clip: bounds are attributes up to opset 10, inputs from 11 on. */
static enum mlo_status clip(const struct mlo_tensor *x, const struct mlo_tensor *low,
                            const struct mlo_tensor *high, struct mlo_tensor *y, struct mlo_error *err)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(x->dtype);
    size_t count = mlo_tensor_count(x);
    if (!info || !(info->is_float || info->is_integer))
        return mlo_op_bad_dtype(x->dtype, err);
    if (info->is_integer && x->dtype != MLO_UINT64) {
        int64_t lo = low ? mlo_tensor_get_i64(low, 0) : INT64_MIN,
                hi = high ? mlo_tensor_get_i64(high, 0) : INT64_MAX;
        for (size_t i = 0; i < count; i++) {
            int64_t v = mlo_tensor_get_i64(x, i);
            v = v < lo ? lo : v;
            mlo_store_i64(y, i, v > hi ? hi : v);
        }
        return MLO_OK;
    }
    double lo = low ? mlo_tensor_get_f64(low, 0) : -INFINITY,
           hi = high ? mlo_tensor_get_f64(high, 0) : INFINITY;
    if (x->dtype == MLO_FLOAT32) { /* the same comparisons, without the way to double and back */
        const float *from = x->data, least = (float)lo, most = (float)hi;
        float *to = y->data;
        for (size_t i = 0; i < count; i++) {
            float v = from[i] < least ? least : from[i];
            to[i] = v > most ? most : v;
        }
        return MLO_OK;
    }
    for (size_t i = 0; i < count; i++) {
        double v = mlo_tensor_get_f64(x, i);
        v = v < lo ? lo : v;
        mlo_tensor_set_f64(y, i, v > hi ? hi : v);
    }
    return MLO_OK;
}

static enum mlo_status eval_clip_attrs(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    float bounds[2] = {mlo_node_attr_f(node, "min", -3.4028234663852886e38f),
                       mlo_node_attr_f(node, "max", 3.4028234663852886e38f)};
    struct mlo_tensor low = {.dtype = MLO_FLOAT32, .data = &bounds[0], .size_bytes = 4}, high = low;
    high.data = &bounds[1];
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    return status != MLO_OK ? status : clip(in[0], &low, &high, out[0], err);
}

static enum mlo_status eval_clip_inputs(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        struct mlo_tensor *const *out, struct mlo_error *err)
{
    const struct mlo_tensor *bounds[2] = {0};
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status != MLO_OK)
        return status;
    for (int i = 1; i < node->input_count; i++) {
        bounds[i - 1] = in[i];
        if (in[i] && mlo_tensor_count(in[i]) != 1)
            return mlo_error_set(err, MLO_EINVAL, "input %d, a bound, is no scalar", i);
    }
    return clip(in[0], bounds[0], bounds[1], out[0], err);
}

static enum mlo_status eval_not(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status != MLO_OK)
        return status;
    if (in[0]->dtype != MLO_BOOL)
        return mlo_op_bad_dtype(in[0]->dtype, err);
    for (size_t i = 0; i < in[0]->size_bytes; i++)
        ((uint8_t *)out[0]->data)[i] = !((const uint8_t *)in[0]->data)[i];
    return MLO_OK;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_ELEMENTWISE };
#define UNARY(name, since)                                                                                   \
    {                                                                                                        \
        "", name, since, mlo_op_infer_same, eval_unary, FLAGS, 1, 1, 1, 1                                    \
    }

static const struct mlo_op rows[] = {
    UNARY("Abs", 6),
    UNARY("Abs", 13),
    UNARY("Ceil", 6),
    UNARY("Ceil", 13),
    UNARY("Celu", 12),
    UNARY("Elu", 6),
    UNARY("Erf", 9),
    UNARY("Erf", 13),
    UNARY("Exp", 6),
    UNARY("Exp", 13),
    UNARY("Floor", 6),
    UNARY("Floor", 13),
    UNARY("HardSigmoid", 6),
    UNARY("HardSwish", 14),
    UNARY("LeakyRelu", 6),
    UNARY("LeakyRelu", 16),
    UNARY("Log", 6),
    UNARY("Log", 13),
    UNARY("Neg", 6),
    UNARY("Neg", 13),
    UNARY("Reciprocal", 6),
    UNARY("Reciprocal", 13),
    UNARY("Relu", 6),
    UNARY("Relu", 13),
    UNARY("Relu", 14),
    UNARY("Round", 11),
    UNARY("Selu", 6),
    UNARY("Sigmoid", 6),
    UNARY("Sigmoid", 13),
    UNARY("Sign", 9),
    UNARY("Sign", 13),
    UNARY("Softplus", 1),
    UNARY("Softsign", 1),
    UNARY("Sqrt", 6),
    UNARY("Sqrt", 13),
    UNARY("Tanh", 6),
    UNARY("Tanh", 13),
    UNARY("ThresholdedRelu", 10),
    {"", "Clip", 6, mlo_op_infer_same, eval_clip_attrs, FLAGS, 1, 1, 1, 1},
    {"", "Clip", 11, mlo_op_infer_same, eval_clip_inputs, FLAGS, 1, 3, 1, 1},
    {"", "Clip", 12, mlo_op_infer_same, eval_clip_inputs, FLAGS, 1, 3, 1, 1},
    {"", "Clip", 13, mlo_op_infer_same, eval_clip_inputs, FLAGS, 1, 3, 1, 1},
    {"", "Gelu", 20, mlo_op_infer_same, eval_gelu, FLAGS, 1, 1, 1, 1},
    {"", "Not", 1, mlo_op_infer_same, eval_not, FLAGS, 1, 1, 1, 1},
};
const struct mlo_op_family mlo_ops_unary = {rows, MLO_COUNT(rows)};
