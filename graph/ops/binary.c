/* Elementwise ops of two or more broadcast tensors. Floats: in double, rounded once to the element type (for
 * +, -, * and / this is the same as rounding in the type itself). Integers: exact, wrapping as two's
 * complement. */
#include <math.h>

#include "graph/ops/ops_impl.h"

typedef double float_fn(double a, double b);
typedef int64_t int_fn(int64_t a, int64_t b);

static double f_add(double a, double b)
{
    return a + b;
}
static double f_sub(double a, double b)
{
    return a - b;
}
static double f_mul(double a, double b)
{
    return a * b;
}
static double f_div(double a, double b)
{
    return a / b;
}
static double f_min(double a, double b)
{
    return isnan(a) || a < b ? a : b; /* a NaN on either side is kept */
}
static double f_max(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}
static double f_prelu(double a, double b)
{
    return a < 0 ? a * b : a;
}
static int64_t i_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
static int64_t i_sub(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}
static int64_t i_mul(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
static int64_t i_div(int64_t a, int64_t b)
{
    return b == 0 ? 0 : b == -1 ? i_sub(0, a) : a / b; /* division by zero is refused before */
}
static int64_t i_min(int64_t a, int64_t b)
{
    return MLO_MIN(a, b);
}
static int64_t i_max(int64_t a, int64_t b)
{
    return MLO_MAX(a, b);
}
static int64_t i_prelu(int64_t a, int64_t b)
{
    return a < 0 ? i_mul(a, b) : a;
}
static int64_t i_pow(int64_t a, int64_t b)
{
    uint64_t result = 1, base = (uint64_t)a;
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    for (; b; b >>= 1) {
        result *= b & 1 ? base : 1;
        base *= base;
    }
    return (int64_t)result;
}
static int64_t i_mod(int64_t a, int64_t b) /* the divisor's sign, as Python's */
{
    int64_t r = b == -1 || b == 0 ? 0 : a % b;
    return r && (r < 0) != (b < 0) ? r + b : r;
}
static double f_mod(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static int64_t i_fmod(int64_t a, int64_t b)
{
    return b == -1 || b == 0 ? 0 : a % b;
}

static const struct function {
    const char *op;
    float_fn *floats;
    int_fn *ints; /* NULL: not defined for integers */
} functions[] = {
    {"Add", f_add, i_add}, {"Sub", f_sub, i_sub}, {"Mul", f_mul, i_mul},        {"Div", f_div, i_div},
    {"Min", f_min, i_min}, {"Max", f_max, i_max}, {"Pow", mlo_math_pow, i_pow}, {"PRelu", f_prelu, i_prelu},
    {"Sum", f_add, NULL},  {"Mean", f_add, NULL}, {"Mod", f_mod, i_mod},
};

static const struct function *function_of(const struct mlo_node *node)
{
    for (size_t i = 0; i < MLO_COUNT(functions); i++)
        if (strcmp(functions[i].op, node->op_type) == 0)
            return &functions[i];
    return NULL;
}

static bool any_zero(const struct mlo_tensor *t)
{
    for (size_t i = 0; i < mlo_tensor_count(t); i++)
        if (mlo_tensor_get_i64(t, i) == 0)
            return true;
    return false;
}

/* y = fn(a, b); y may be a itself when it has y's shape. */
static enum mlo_status combine(const struct mlo_node *node, const struct mlo_tensor *a,
                               const struct mlo_tensor *b, struct mlo_tensor *y, struct mlo_error *err)
{
    const struct function *f = function_of(node);
    const struct mlo_dtype_info *info = mlo_dtype_info(a->dtype);
    size_t count = mlo_tensor_count(y);
    bool truncated = f->ints == i_mod && mlo_node_attr_i(node, "fmod", 0);
    float_fn *floats = truncated ? fmod : f->floats;
    struct mlo_strides s;
    mlo_strides_init(&s, y, a, b);
    if (a->dtype == MLO_FLOAT32 && b->dtype == MLO_FLOAT32) {
        const float *x = a->data, *z = b->data;
        for (size_t i = 0; i < count; i++, mlo_strides_next(&s))
            ((float *)y->data)[i] = (float)floats(x[s.offset[0]], z[s.offset[1]]);
        return MLO_OK;
    }
    bool ints = info->is_integer && mlo_dtype_info(b->dtype)->is_integer;
    if (!info->is_float && !(info->is_integer && (f->ints || !ints)))
        return mlo_op_bad_dtype(a->dtype, err);
    if (ints) {
        int_fn *fn = truncated ? i_fmod : f->ints;
        if ((fn == i_div || fn == i_mod || fn == i_fmod) && any_zero(b))
            return mlo_error_set(err, MLO_EINVAL, "an integer is divided by zero");
        for (size_t i = 0; i < count; i++, mlo_strides_next(&s))
            mlo_store_i64(y, i, fn(mlo_tensor_get_i64(a, s.offset[0]), mlo_tensor_get_i64(b, s.offset[1])));
        return MLO_OK;
    }
    for (size_t i = 0; i < count; i++, mlo_strides_next(&s)) {
        double v = floats(mlo_tensor_get_f64(a, s.offset[0]), mlo_tensor_get_f64(b, s.offset[1]));
        mlo_tensor_set_f64(y, i, info->is_integer ? trunc(v) : v); /* Pow of an integer by a float */
    }
    return MLO_OK;
}

static enum mlo_status infer_broadcast(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    bool mixed = mlo_node_is(node, "Pow"); /* its exponent may be of another type */
    struct mlo_type result = *mlo_op_in(node, 0);
    for (int i = 1; i < node->input_count; i++) {
        const struct mlo_type *type = mlo_op_in(node, i);
        if (!type)
            return mlo_error_set(err, MLO_EFORMAT, "input %d is omitted", i);
        if (!mixed && result.dtype && type->dtype && result.dtype != type->dtype)
            return mlo_error_set(err, MLO_EINVAL, "input %d is %s, and input 0 %s", i,
                                 mlo_dtype_name(type->dtype), mlo_dtype_name(result.dtype));
        result.dtype = result.dtype || mixed ? result.dtype : type->dtype;
        enum mlo_status status = mlo_op_broadcast(&result, type, &result, err);
        if (status != MLO_OK)
            return status;
    }
    out[0] = result;
    return MLO_OK;
}

/* PRelu's slope must broadcast to the input, not widen it. */
static enum mlo_status infer_prelu(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = infer_broadcast(node, out, err);
    if (status == MLO_OK && mlo_op_ranked(node, 0) && out[0].rank > mlo_op_in(node, 0)->rank)
        status = mlo_error_set(err, MLO_EINVAL, "the slope does not broadcast to the input's shape");
    return status;
}

static enum mlo_status eval_binary(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    return status != MLO_OK ? status : combine(node, in[0], in[1], out[0], err);
}

/* Left to right: ((in0 . in1) . in2) … */
static enum mlo_status eval_variadic(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct mlo_tensor *y = out[0];
    struct mlo_strides s;
    mlo_strides_init(&s, y, in[0], in[0]);
    size_t width = mlo_dtype_bytes(y->dtype);
    if (!width) {
        status = mlo_op_bad_dtype(y->dtype, err);
        goto out;
    }
    for (size_t i = 0; i < mlo_tensor_count(y); i++, mlo_strides_next(&s))
        memcpy((char *)y->data + i * width, (const char *)in[0]->data + s.offset[0] * width, width);
    for (int k = 1; k < node->input_count; k++)
        MLO_TRY(combine(node, y, in[k], y, err));
    if (strcmp(node->op_type, "Mean") == 0)
        for (size_t i = 0; i < mlo_tensor_count(y); i++)
            mlo_tensor_set_f64(y, i, mlo_tensor_get_f64(y, i) / node->input_count);
out:
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_ELEMENTWISE };
#define BINARY(name, since)                                                                                  \
    {                                                                                                        \
        "", name, since, infer_broadcast, eval_binary, FLAGS, 2, 2, 1, 1                                     \
    }
#define VARIADIC(name, since)                                                                                \
    {                                                                                                        \
        "", name, since, infer_broadcast, eval_variadic, FLAGS, 1, ANY_COUNT, 1, 1                           \
    }

static const struct mlo_op rows[] = {
    BINARY("Add", 7),
    BINARY("Add", 13),
    BINARY("Add", 14),
    BINARY("Sub", 7),
    BINARY("Sub", 13),
    BINARY("Sub", 14),
    BINARY("Mul", 7),
    BINARY("Mul", 13),
    BINARY("Mul", 14),
    BINARY("Div", 7),
    BINARY("Div", 13),
    BINARY("Div", 14),
    BINARY("Pow", 7),
    BINARY("Pow", 12),
    BINARY("Pow", 13),
    BINARY("Pow", 15),
    BINARY("Mod", 10),
    BINARY("Mod", 13),
    VARIADIC("Min", 8),
    VARIADIC("Min", 12),
    VARIADIC("Min", 13),
    VARIADIC("Max", 8),
    VARIADIC("Max", 12),
    VARIADIC("Max", 13),
    VARIADIC("Sum", 8),
    VARIADIC("Sum", 13),
    VARIADIC("Mean", 8),
    VARIADIC("Mean", 13),
    {"", "PRelu", 7, infer_prelu, eval_binary, FLAGS, 2, 2, 1, 1},
    {"", "PRelu", 9, infer_prelu, eval_binary, FLAGS, 2, 2, 1, 1},
    {"", "PRelu", 16, infer_prelu, eval_binary, FLAGS, 2, 2, 1, 1},
};
const struct mlo_op_family mlo_ops_binary = {rows, MLO_COUNT(rows)};
