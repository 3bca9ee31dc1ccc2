/* com.microsoft: elementwise and pooling ops of quantized tensors. Each is dequantize, compute, quantize:
 * x = (q - zp) * s in float32; q = saturate(round_half_even(y / s) + zp). Scales are scalars. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

#define DOMAIN "com.microsoft"

static enum mlo_status check_scalar(const struct mlo_node *node, int i, struct mlo_error *err)
{
    const struct mlo_type *t = mlo_op_in(node, i);
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    if (!t || !mlo_type_static(t, dims))
        return MLO_OK;
    if (!mlo_shape_count(t->rank, dims, &count) || count != 1)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "input %d holds several numbers; a scalar is supported",
                             i);
    return MLO_OK;
}

/* A scale and, behind it, a zero point, which may be omitted. */
static enum mlo_status check_params(const struct mlo_node *node, int scale, struct mlo_error *err)
{
    const struct mlo_type *s = mlo_op_in(node, scale), *zero = mlo_op_in(node, scale + 1);
    if (!s)
        return mlo_error_set(err, MLO_EFORMAT, "input %d, a scale, is omitted", scale);
    if (s->dtype && s->dtype != MLO_FLOAT32)
        return mlo_op_bad_dtype(s->dtype, err);
    if (zero && !mlo_op_maybe_int8(zero->dtype))
        return mlo_op_bad_dtype(zero->dtype, err);
    enum mlo_status status = check_scalar(node, scale, err);
    return status != MLO_OK ? status : check_scalar(node, scale + 1, err);
}

/* A quantized tensor with its parameters behind it. */
static enum mlo_status check_tensor(const struct mlo_node *node, int i, struct mlo_error *err)
{
    const struct mlo_type *t = mlo_op_in(node, i);
    if (!t)
        return mlo_error_set(err, MLO_EFORMAT, "input %d is omitted", i);
    return mlo_op_maybe_int8(t->dtype) ? check_params(node, i + 1, err) : mlo_op_bad_dtype(t->dtype, err);
}

struct params {
    float scale;
    int64_t zero;
};

static struct params params_of(const struct mlo_node *node, const struct mlo_tensor *const *in, int scale)
{
    const struct mlo_tensor *zero = mlo_op_operand(node, in, scale + 1);
    return (struct params){(float)mlo_tensor_get_f64(in[scale], 0), zero ? mlo_tensor_get_i64(zero, 0) : 0};
}

static double value_of(const struct mlo_tensor *t, size_t i, struct params p)
{
    return (float)(mlo_tensor_get_i64(t, i) - p.zero) * p.scale;
}

static void store(struct mlo_tensor *t, size_t i, double value, struct params p)
{
    double q = rint((double)((float)value / p.scale)) + (double)p.zero;
    double low = t->dtype == MLO_INT8 ? -128 : 0, high = t->dtype == MLO_INT8 ? 127 : 255;
    mlo_store_i64(t, i, isnan(q) ? p.zero : (int64_t)(q < low ? low : q > high ? high : q));
}

/* A, its scale and zero point, B, its, C's. */
static enum mlo_status infer_binary(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *a = mlo_op_in(node, 0), *b = mlo_op_in(node, 3);
    MLO_TRY(check_tensor(node, 0, err));
    MLO_TRY(check_tensor(node, 3, err));
    MLO_TRY(check_params(node, 6, err));
    out[0].dtype = a->dtype;
    MLO_TRY(mlo_op_broadcast(a, b, &out[0], err));
out:
    return status;
}

static enum mlo_status eval_binary(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool add = strcmp(node->op_type, "QLinearAdd") == 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct params a = params_of(node, in, 1), b = params_of(node, in, 4), c = params_of(node, in, 6);
    struct mlo_strides s;
    mlo_strides_init(&s, out[0], in[0], in[3]);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++, mlo_strides_next(&s)) {
        double x = value_of(in[0], s.offset[0], a), y = value_of(in[3], s.offset[1], b);
        store(out[0], i, add ? x + y : x * y, c);
    }
out:
    return status;
}

/* X, its scale and zero point, Y's. */
static enum mlo_status infer_unary(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(check_tensor(node, 0, err));
    MLO_TRY(check_params(node, 3, err));
    out[0] = *mlo_op_in(node, 0);
out:
    return status;
}

static enum mlo_status eval_unary(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool sigmoid = strcmp(node->op_type, "QLinearSigmoid") == 0;
    double alpha = mlo_node_attr_f(node, "alpha", 0.01f);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct params x = params_of(node, in, 1), y = params_of(node, in, 3);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++) {
        double v = value_of(in[0], i, x);
        store(out[0], i, sigmoid ? mlo_math_sigmoid(v) : v < 0 ? alpha * v : v, y);
    }
out:
    return status;
}

static enum mlo_status softmax_axis(const struct mlo_node *node, int rank, int *axis, struct mlo_error *err)
{
    return mlo_op_axis(mlo_node_attr_i(node, "axis", -1), rank, axis, err);
}

static enum mlo_status infer_softmax(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    int axis;
    enum mlo_status status = infer_unary(node, out, err);
    return status != MLO_OK || out[0].rank < 0 ? status : softmax_axis(node, out[0].rank, &axis, err);
}

/* Attribute `opset` below 13: all dims from the axis on are one distribution. */
static enum mlo_status eval_softmax(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(softmax_axis(node, in[0]->rank, &axis, err));
    struct params x = params_of(node, in, 1), y = params_of(node, in, 3);
    struct mlo_spans s = mlo_op_spans(in[0], axis);
    if (mlo_node_attr_i(node, "opset", 13) < 13) {
        s.size *= s.inner;
        s.inner = 1;
    }
    for (size_t r = 0; r < s.outer * s.inner; r++) {
        size_t base = r / s.inner * s.size * s.inner + r % s.inner;
        double top = -INFINITY, sum = 0;
        for (size_t k = 0; k < s.size; k++)
            top = fmax(top, value_of(in[0], base + k * s.inner, x));
        for (size_t k = 0; k < s.size; k++)
            sum += mlo_math_exp(value_of(in[0], base + k * s.inner, x) - top);
        for (size_t k = 0; k < s.size; k++)
            store(out[0], base + k * s.inner,
                  mlo_math_exp(value_of(in[0], base + k * s.inner, x) - top) / sum, y);
    }
out:
    return status;
}

static enum mlo_status infer_global_average(const struct mlo_node *node, struct mlo_type *out,
                                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool last = mlo_node_attr_i(node, "channels_last", 0) != 0;
    MLO_TRY(infer_unary(node, out, err));
    if (out[0].rank >= 0 && out[0].rank < 2) {
        status = mlo_error_set(err, MLO_EINVAL, "global pooling needs rank 2 or more, not %d", out[0].rank);
        goto out;
    }
    for (int i = last ? 1 : 2; i < out[0].rank - last; i++)
        out[0].dims[i] = mlo_dim_fixed(1);
out:
    return status;
}

static enum mlo_status eval_global_average(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                           struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool last = mlo_node_attr_i(node, "channels_last", 0) != 0;
    const struct mlo_tensor *x = in[0];
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct params px = params_of(node, in, 1), py = params_of(node, in, 3);
    size_t results = mlo_tensor_count(out[0]), size = results ? mlo_tensor_count(x) / results : 0;
    size_t channels = (size_t)x->dims[last ? x->rank - 1 : 1];
    for (size_t r = 0; size && r < results; r++) {
        int64_t sum = 0;
        for (size_t i = 0; i < size; i++) {
            size_t at = last ? (r / channels * size + i) * channels + r % channels : r * size + i;
            sum += mlo_tensor_get_i64(x, at) - px.zero;
        }
        store(out[0], r, (double)sum / (double)size * px.scale, py);
    }
out:
    return status;
}

/* The node as the pooling of ONNX that it is, of floats. */
static struct mlo_node plain_average(const struct mlo_node *node)
{
    struct mlo_node plain = *node;
    plain.domain = "";
    plain.op_type = "AveragePool";
    plain.version = 11;
    plain.op = mlo_op_find("", "AveragePool", 11);
    plain.input_count = 1;
    return plain;
}

static enum mlo_status infer_average(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_node plain = plain_average(node);
    MLO_TRY(infer_unary(node, out, err));
    if (mlo_node_attr_i(node, "channels_last", 0)) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "attribute 'channels_last' is 1");
        goto out;
    }
    MLO_TRY(plain.op->infer(&plain, out, err));
out:
    return status;
}

static enum mlo_status eval_average(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor x = {0}, y = {0}, *result = &y;
    const struct mlo_tensor *operand = &x;
    struct mlo_node plain = plain_average(node);
    struct params px = params_of(node, in, 1), py = params_of(node, in, 3);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_tensor_init(&x, MLO_FLOAT32, in[0]->rank, in[0]->dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&x); i++)
        ((float *)x.data)[i] = (float)value_of(in[0], i, px);
    MLO_TRY(mlo_node_eval(&plain, &operand, &result, err));
    for (size_t i = 0; i < mlo_tensor_count(&y); i++)
        store(out[0], i, mlo_tensor_get_f64(&y, i), py);
out:
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    return status;
}

/* Y's scale and zero point, then a tensor with its own for each part. */
static enum mlo_status infer_concat(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis = 0;
    MLO_TRY(check_params(node, 0, err));
    if (node->input_count % 3 != 2 || !mlo_node_attr(node, "axis")) {
        status =
            mlo_error_set(err, MLO_EFORMAT, "attribute 'axis' is missing, or parts lack scale or zero point");
        goto out;
    }
    for (int i = 2; i < node->input_count; i += 3)
        MLO_TRY(check_tensor(node, i, err));
    const struct mlo_type *zero = mlo_op_in(node, 1), *first = mlo_op_in(node, 2);
    out[0] = *first;
    out[0].dtype = zero && zero->dtype ? zero->dtype : first->dtype;
    if (first->rank >= 0)
        MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), first->rank, &axis, err));
    for (int i = 5; i < node->input_count; i += 3) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (t->rank < 0 || out[0].rank < 0) {
            out[0].rank = -1;
            continue;
        }
        MLO_TRY(mlo_op_want_rank(node, i, out[0].rank, err));
        for (int d = 0; d < t->rank; d++) {
            struct mlo_dim *sum = &out[0].dims[d];
            if (d == axis)
                *sum = mlo_op_dim_add(node, *sum, t->dims[d]);
            else if (sum->value >= 0 && t->dims[d].value >= 0 && sum->value != t->dims[d].value) {
                status = mlo_error_set(err, MLO_EINVAL, "dim %d of input %d is %lld, not %lld", d, i,
                                       (long long)t->dims[d].value, (long long)sum->value);
                goto out;
            } else if (sum->value < 0)
                *sum = t->dims[d];
        }
    }
out:
    return status;
}

static enum mlo_status eval_concat(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis;
    size_t before = 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), out[0]->rank, &axis, err));
    struct mlo_spans s = mlo_op_spans(out[0], axis);
    struct params y = params_of(node, in, 0);
    for (int i = 2; i < node->input_count; i += 3) {
        struct params x = params_of(node, in, i + 1);
        size_t part = (size_t)in[i]->dims[axis] * s.inner;
        for (size_t k = 0; k < mlo_tensor_count(in[i]); k++)
            store(out[0], k / part * s.size * s.inner + before + k % part, value_of(in[i], k, x), y);
        before += part;
    }
out:
    return status;
}

static const struct mlo_op rows[] = {
    {DOMAIN, "QLinearAdd", 1, infer_binary, eval_binary, MLO_OP_PURE, 1, 8, 1, 1},
    {DOMAIN, "QLinearMul", 1, infer_binary, eval_binary, MLO_OP_PURE, 1, 8, 1, 1},
    {DOMAIN, "QLinearLeakyRelu", 1, infer_unary, eval_unary, MLO_OP_PURE, 1, 5, 1, 1},
    {DOMAIN, "QLinearSigmoid", 1, infer_unary, eval_unary, MLO_OP_PURE, 1, 5, 1, 1},
    {DOMAIN, "QLinearSoftmax", 1, infer_softmax, eval_softmax, MLO_OP_PURE, 1, 5, 1, 1},
    {DOMAIN, "QLinearGlobalAveragePool", 1, infer_global_average, eval_global_average, MLO_OP_PURE, 1, 5, 1,
     1},
    {DOMAIN, "QLinearAveragePool", 1, infer_average, eval_average, MLO_OP_PURE, 1, 5, 1, 1},
    {DOMAIN, "QLinearConcat", 1, infer_concat, eval_concat, MLO_OP_PURE, 1, ANY_COUNT, 1, 1},
};
const struct mlo_op_family mlo_ops_ms_quantized = {rows, MLO_COUNT(rows)};
