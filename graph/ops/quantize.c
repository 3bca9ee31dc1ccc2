/* QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.
 * q = saturate(round_half_even(x / s) + zp), x / s in float32; x = (q - zp) * s in float32. */
#include <math.h>

#include "graph/ops/ops_impl.h"

/* Which scale belongs to an element: one for all, one for each index along an axis, or one for each block
 * along it. */
struct groups {
    size_t inner, size, per_block,
        scales; /* elements behind the axis; along it; of a block; scales along it */
    bool single;
};

/* Scale's shape says which: a scalar (or one element), a list of the axis' size, or (blocked, opset 21) like
 * x with the axis divided by block_size. */
static enum mlo_status check_scale(const struct mlo_node *node, const struct mlo_type *x,
                                   const struct mlo_type *scale, int *axis, struct mlo_error *err)
{
    int64_t block = mlo_node_attr_i(node, "block_size", 0), one[MLO_MAX_RANK];
    *axis = -1;
    if (x->rank < 0 || scale->rank < 0)
        return MLO_OK;
    if (scale->rank == 0 || (scale->rank == 1 && mlo_type_static(scale, one) && one[0] == 1 && !block))
        return MLO_OK;
    if (node->op->since < 13 && !*node->op->domain)
        return mlo_error_set(err, MLO_EINVAL, "the scale is no scalar; per-channel scales need opset 13");
    enum mlo_status status = mlo_op_axis(mlo_node_attr_i(node, "axis", 1), x->rank, axis, err);
    if (status != MLO_OK)
        return status;
    struct mlo_dim d = x->dims[*axis];
    if (!block) {
        if (scale->rank != 1 ||
            (d.value >= 0 && scale->dims[0].value >= 0 && d.value != scale->dims[0].value))
            return mlo_error_set(err, MLO_EINVAL, "%lld scales for %lld channels along axis %d",
                                 (long long)scale->dims[0].value, (long long)d.value, *axis);
        return MLO_OK;
    }
    bool fits = block > 0 && scale->rank == x->rank;
    for (int i = 0; fits && i < x->rank; i++) {
        int64_t want = x->dims[i].value;
        if (i == *axis && want >= 0)
            want = want / block + (want % block != 0);
        fits = want < 0 || scale->dims[i].value < 0 || scale->dims[i].value == want;
    }
    return fits ? MLO_OK
                : mlo_error_set(err, MLO_EINVAL, "the scale's shape does not fit blocks of %lld",
                                (long long)block);
}

static struct groups groups_of(const struct mlo_node *node, const struct mlo_tensor *x,
                               const struct mlo_tensor *scale, int axis)
{
    struct groups g = {.inner = 1, .size = 1, .per_block = 1, .scales = 1, .single = axis < 0};
    if (g.single)
        return g;
    for (int i = axis + 1; i < x->rank; i++)
        g.inner *= (size_t)x->dims[i];
    g.size = (size_t)x->dims[axis];
    int64_t block = mlo_node_attr_i(node, "block_size", 0);
    g.per_block = block > 0 ? (size_t)block : 0; /* 0: per axis, the scale is a list */
    g.scales = block > 0 ? (size_t)scale->dims[axis] : g.size;
    return g;
}

static size_t scale_index(const struct groups *g, size_t i)
{
    if (g->single)
        return 0;
    size_t along = i / g->inner % g->size;
    if (!g->per_block)
        return along;
    return (i / (g->inner * g->size) * g->scales + along / g->per_block) * g->inner + i % g->inner;
}

static enum mlo_status check_zero_point(const struct mlo_node *node, struct mlo_error *err)
{
    const struct mlo_type *scale = mlo_op_in(node, 1), *zero = mlo_op_in(node, 2);
    int64_t a[MLO_MAX_RANK], b[MLO_MAX_RANK];
    size_t n, m;
    if (!zero || !mlo_type_static(scale, a) || !mlo_type_static(zero, b))
        return MLO_OK;
    if (!mlo_shape_count(scale->rank, a, &n) || !mlo_shape_count(zero->rank, b, &m) || n != m)
        return mlo_error_set(err, MLO_EINVAL, "scale and zero point are of different shapes");
    return MLO_OK;
}

static bool quantized(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    return info && ((info->is_integer && info->bits <= 16) || (info->is_float && info->bits == 8));
}

static enum mlo_status infer_quantize(const struct mlo_node *node, struct mlo_type *out,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *zero = mlo_op_in(node, 2);
    int64_t stated = mlo_node_attr_i(node, "output_dtype", 0);
    int axis;
    MLO_TRY(check_scale(node, mlo_op_in(node, 0), mlo_op_in(node, 1), &axis, err));
    MLO_TRY(check_zero_point(node, err));
    out[0] = *mlo_op_in(node, 0);
    out[0].dtype = zero ? zero->dtype : stated ? (enum mlo_dtype)stated : MLO_UINT8;
    if (out[0].dtype && !quantized(out[0].dtype))
        status = mlo_op_bad_dtype(out[0].dtype, err);
out:
    return status;
}

static void integer_range(enum mlo_dtype dtype, int64_t *low, int64_t *high)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    *low = info->is_signed ? -((int64_t)1 << (info->bits - 1)) : 0;
    *high = ((int64_t)1 << (info->bits - info->is_signed)) - 1;
}

static int64_t quantize_one(float x, float scale, int64_t zero, int64_t low, int64_t high)
{
    double q = rint((double)(x / scale)) + (double)zero;
    return isnan(q) ? zero : q <= (double)low ? low : q >= (double)high ? high : (int64_t)q;
}

static enum mlo_status eval_quantize(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *zero = node->input_count > 2 ? in[2] : NULL;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct mlo_tensor *y = out[0];
    struct mlo_type tx = mlo_type_of(x), ts = mlo_type_of(in[1]);
    MLO_TRY(check_scale(node, &tx, &ts, &axis, err));
    const struct mlo_dtype_info *from = mlo_dtype_info(x->dtype), *to = mlo_dtype_info(y->dtype);
    if ((!from->is_float && x->dtype != MLO_INT32) || !mlo_dtype_info(in[1]->dtype)->is_float) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    struct groups g = groups_of(node, x, in[1], axis);
    int64_t low = 0, high = 0;
    bool overflow = mlo_dtype_is_float8(y->dtype) && !mlo_node_attr_i(node, "saturate", 1);
    if (to->is_integer)
        integer_range(y->dtype, &low, &high);
    for (size_t i = 0; i < mlo_tensor_count(x); i++) {
        size_t k = scale_index(&g, i);
        float v = (float)mlo_tensor_get_f64(x, i), scale = (float)mlo_tensor_get_f64(in[1], k);
        if (overflow)
            ((uint8_t *)y->data)[i] = mlo_f32_to_f8_overflow(y->dtype, v / scale);
        else if (to->is_integer)
            mlo_store_i64(y, i, quantize_one(v, scale, zero ? mlo_tensor_get_i64(zero, k) : 0, low, high));
        else
            mlo_tensor_set_f64(y, i, v / scale);
    }
out:
    return status;
}

static enum mlo_status infer_dequantize(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *scale = mlo_op_in(node, 1), *zero = mlo_op_in(node, 2);
    int axis;
    MLO_TRY(check_scale(node, x, scale, &axis, err));
    MLO_TRY(check_zero_point(node, err));
    if (zero && zero->dtype && x->dtype && zero->dtype != x->dtype) {
        status = mlo_error_set(err, MLO_EINVAL, "the input is %s and the zero point %s",
                               mlo_dtype_name(x->dtype), mlo_dtype_name(zero->dtype));
        goto out;
    }
    out[0] = *x;
    out[0].dtype = scale->dtype;
out:
    return status;
}

static enum mlo_status eval_dequantize(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *zero = node->input_count > 2 ? in[2] : NULL;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct mlo_type tx = mlo_type_of(x), ts = mlo_type_of(in[1]);
    MLO_TRY(check_scale(node, &tx, &ts, &axis, err));
    if (!quantized(x->dtype) && x->dtype != MLO_INT32) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    struct groups g = groups_of(node, x, in[1], axis);
    for (size_t i = 0; i < mlo_tensor_count(x); i++) {
        size_t k = scale_index(&g, i);
        float centred = (float)(mlo_tensor_get_f64(x, i) - (zero ? mlo_tensor_get_f64(zero, k) : 0));
        mlo_tensor_set_f64(out[0], i, centred * (float)mlo_tensor_get_f64(in[1], k));
    }
out:
    return status;
}

static enum mlo_status infer_dynamic(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    MLO_UNUSED(err);
    out[0] = *mlo_op_in(node, 0);
    out[0].dtype = MLO_UINT8;
    for (int i = 1; i < node->output_count; i++)
        out[i] = (struct mlo_type){.dtype = i == 1 ? MLO_FLOAT32 : MLO_UINT8};
    return MLO_OK;
}

/* The range always includes 0, which is then exact. */
static enum mlo_status eval_dynamic(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    float low = 0, high = 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    if (in[0]->dtype != MLO_FLOAT32) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    const float *x = in[0]->data;
    size_t count = mlo_tensor_count(in[0]);
    for (size_t i = 0; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float scale = (high - low) / 255.0f;
    int64_t zero = scale > 0 ? quantize_one(-low, scale, 0, 0, 255) : 0;
    for (size_t i = 0; out[0] && i < count; i++)
        ((uint8_t *)out[0]->data)[i] = scale > 0 ? (uint8_t)quantize_one(x[i], scale, zero, 0, 255) : 0;
    if (out[1])
        *(float *)out[1]->data = scale;
    if (out[2])
        *(uint8_t *)out[2]->data = (uint8_t)zero;
out:
    return status;
}

#define QUANTIZE(since)                                                                                      \
    {                                                                                                        \
        "", "QuantizeLinear", since, infer_quantize, eval_quantize, MLO_OP_PURE, 2, 3, 1, 1                  \
    }
#define DEQUANTIZE(since)                                                                                    \
    {                                                                                                        \
        "", "DequantizeLinear", since, infer_dequantize, eval_dequantize, MLO_OP_PURE, 2, 3, 1, 1            \
    }

static const struct mlo_op rows[] = {
    QUANTIZE(10),
    QUANTIZE(13),
    QUANTIZE(19),
    QUANTIZE(21),
    DEQUANTIZE(10),
    DEQUANTIZE(13),
    DEQUANTIZE(19),
    DEQUANTIZE(21),
    {"com.microsoft", "QuantizeLinear", 1, infer_quantize, eval_quantize, MLO_OP_PURE, 2, 3, 1, 1},
    {"com.microsoft", "DequantizeLinear", 1, infer_dequantize, eval_dequantize, MLO_OP_PURE, 2, 3, 1, 1},
    {"", "DynamicQuantizeLinear", 11, infer_dynamic, eval_dynamic, MLO_OP_PURE, 1, 1, 3, 3},
};
const struct mlo_op_family mlo_ops_quantize = {rows, MLO_COUNT(rows)};
