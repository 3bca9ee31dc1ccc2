/* Normalisation. Sums and the per-element arithmetic are in double, rounded once. */
#include <math.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status want_float(const struct mlo_tensor *t, struct mlo_error *err)
{
    return mlo_dtype_info(t->dtype)->is_float ? MLO_OK : mlo_op_bad_dtype(t->dtype, err);
}

/* Inputs 1 … last hold one number for each channel (dim 1) of input 0. */
static enum mlo_status check_channels(const struct mlo_node *node, int last, struct mlo_error *err)
{
    if (!mlo_op_ranked(node, 0))
        return MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    if (x->rank < 1)
        return mlo_error_set(err, MLO_EINVAL, "a scalar has no channels");
    int64_t channels = x->rank > 1 ? x->dims[1].value : 1;
    for (int i = 1; i <= last; i++) {
        if (!mlo_op_ranked(node, i))
            continue;
        const struct mlo_type *t = mlo_op_in(node, i);
        if (t->rank != 1 || (channels >= 0 && t->dims[0].value >= 0 && t->dims[0].value != channels))
            return mlo_error_set(err, MLO_EINVAL,
                                 "input %d ('%.100s') does not hold one number for each of %lld channels", i,
                                 node->inputs[i]->name, (long long)channels);
    }
    return MLO_OK;
}

static enum mlo_status infer_batch_norm(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err)
{
    enum mlo_status status = check_channels(node, 4, err);
    out[0] = *mlo_op_in(node, 0);
    for (int i = 1; status == MLO_OK && i < node->output_count; i++)
        if (node->outputs[i] || mlo_node_attr_i(node, "training_mode", 0))
            status = mlo_error_set(err, MLO_EUNSUPPORTED, "BatchNormalization in training mode");
    if (status == MLO_OK && mlo_node_attr_i(node, "training_mode", 0))
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "BatchNormalization in training mode");
    if (status == MLO_EUNSUPPORTED)
        mlo_error_hint(err, "export the model for inference: model.eval() before torch.onnx.export");
    return status;
}

static enum mlo_status eval_batch_norm(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 5; i++)
        MLO_TRY(want_float(in[i], err));
    const struct mlo_tensor *x = in[0];
    size_t channels = x->rank > 1 ? (size_t)x->dims[1] : 1, images = (size_t)x->dims[0];
    size_t count = mlo_tensor_count(x), size = images && channels ? count / (images * channels) : 0;
    for (size_t n = 0, i = 0; n < images * channels; n++) {
        size_t c = n % channels;
        double mean = mlo_tensor_get_f64(in[3], c), bias = mlo_tensor_get_f64(in[2], c);
        double scale = mlo_tensor_get_f64(in[1], c) / sqrt(mlo_tensor_get_f64(in[4], c) + epsilon);
        for (size_t k = 0; k < size; k++, i++)
            mlo_tensor_set_f64(out[0], i, (mlo_tensor_get_f64(x, i) - mean) * scale + bias);
    }
out:
    return status;
}

void mlo_op_moments(const struct mlo_tensor *x, size_t first, size_t count, double *mean, double *variance)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++)
        sum += mlo_tensor_get_f64(x, first + i);
    *mean = sum / (double)count;
    for (size_t i = 0; i < count; i++) {
        double d = mlo_tensor_get_f64(x, first + i) - *mean;
        squares += d * d;
    }
    *variance = squares / (double)count;
}

static enum mlo_status infer_instance_norm(const struct mlo_node *node, struct mlo_type *out,
                                           struct mlo_error *err)
{
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank >= 0 && out[0].rank < 3)
        return mlo_error_set(err, MLO_EINVAL, "InstanceNormalization needs rank 3 or more, not %d",
                             out[0].rank);
    return check_channels(node, 2, err);
}

static enum mlo_status eval_instance_norm(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                          struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f), mean, variance;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 3; i++)
        MLO_TRY(want_float(in[i], err));
    const struct mlo_tensor *x = in[0];
    size_t channels = (size_t)x->dims[1], groups = (size_t)x->dims[0] * channels;
    size_t size = groups ? mlo_tensor_count(x) / groups : 0;
    for (size_t g = 0; g < groups; g++) {
        mlo_op_moments(x, g * size, size, &mean, &variance);
        double scale = mlo_tensor_get_f64(in[1], g % channels) / sqrt(variance + epsilon);
        double bias = mlo_tensor_get_f64(in[2], g % channels);
        for (size_t i = g * size; i < (g + 1) * size; i++)
            mlo_tensor_set_f64(out[0], i, (mlo_tensor_get_f64(x, i) - mean) * scale + bias);
    }
out:
    return status;
}

/* Outputs 1 and 2 are mean and 1/deviation, of the type that `stash_type` names. */
static enum mlo_status infer_layer_norm(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis;
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank < 0)
        goto out;
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), out[0].rank, &axis, err));
    for (int i = 1; i < node->input_count; i++) { /* scale and bias broadcast to the normalised dims */
        if (!mlo_op_ranked(node, i))
            continue;
        MLO_TRY(mlo_op_want_broadcast(node, i, &out[0], err));
        if (mlo_op_in(node, i)->rank > out[0].rank - axis) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d does not broadcast to the normalised dims", i);
            goto out;
        }
    }
    for (int o = 1; o < node->output_count; o++) {
        out[o] = out[0];
        out[o].dtype = (enum mlo_dtype)mlo_node_attr_i(node, "stash_type", MLO_FLOAT32);
        for (int d = axis; d < out[o].rank; d++)
            out[o].dims[d] = mlo_dim_fixed(1);
    }
out:
    return status;
}

static enum mlo_status eval_layer_norm(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f), mean, variance;
    const struct mlo_tensor *x = in[0], *bias = node->input_count > 2 ? in[2] : NULL;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), x->rank, &axis, err));
    MLO_TRY(want_float(x, err));
    MLO_TRY(want_float(in[1], err));
    size_t size = 1, groups = 1;
    for (int i = 0; i < x->rank; i++)
        *(i < axis ? &groups : &size) *= (size_t)x->dims[i];
    if (!size)
        goto out;
    struct mlo_strides s;
    mlo_strides_init(&s, out[0], in[1], bias ? bias : in[1]);
    for (size_t g = 0; g < groups; g++) {
        mlo_op_moments(x, g * size, size, &mean, &variance);
        double inverse = 1 / sqrt(variance + epsilon);
        for (size_t i = g * size; i < (g + 1) * size; i++, mlo_strides_next(&s)) {
            double v = (mlo_tensor_get_f64(x, i) - mean) * inverse * mlo_tensor_get_f64(in[1], s.offset[0]);
            mlo_tensor_set_f64(out[0], i, v + (bias ? mlo_tensor_get_f64(bias, s.offset[1]) : 0));
        }
        if (node->output_count > 1 && out[1])
            mlo_tensor_set_f64(out[1], g, mean);
        if (node->output_count > 2 && out[2])
            mlo_tensor_set_f64(out[2], g, inverse);
    }
out:
    return status;
}

static enum mlo_status infer_lrn(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank >= 0 && out[0].rank < 2)
        return mlo_error_set(err, MLO_EINVAL, "LRN needs rank 2 or more, not %d", out[0].rank);
    if (mlo_node_attr_i(node, "size", 0) < 1)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'size' is missing or below 1");
    return MLO_OK;
}

static enum mlo_status eval_lrn(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double alpha = mlo_node_attr_f(node, "alpha", 1e-4f), beta = mlo_node_attr_f(node, "beta", 0.75f);
    double bias = mlo_node_attr_f(node, "bias", 1);
    int64_t size = mlo_node_attr_i(node, "size", 1);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(want_float(in[0], err));
    const struct mlo_tensor *x = in[0];
    int64_t channels = x->dims[1], before = MLO_MIN((size - 1) / 2, channels),
            after = MLO_MIN(size - 1 - (size - 1) / 2, channels);
    size_t planes = (size_t)(x->dims[0] * channels), plane = planes ? mlo_tensor_count(x) / planes : 0;
    for (size_t n = 0; n < planes; n++) {
        int64_t c = (int64_t)n % channels;
        int64_t first = MLO_MAX(c - before, 0), last = MLO_MIN(c + after, channels - 1);
        for (size_t i = 0; i < plane; i++) {
            double sum = 0;
            for (int64_t k = first; k <= last; k++) {
                double v = mlo_tensor_get_f64(x, (size_t)((int64_t)n - c + k) * plane + i);
                sum += v * v;
            }
            double base = bias + alpha / (double)size * sum;
            mlo_tensor_set_f64(out[0], n * plane + i,
                               mlo_tensor_get_f64(x, n * plane + i) / mlo_math_pow(base, beta));
        }
    }
out:
    return status;
}

static const struct mlo_op rows[] = {
    {"", "BatchNormalization", 7, infer_batch_norm, eval_batch_norm, MLO_OP_PURE, 5, 5, 1, 5},
    {"", "BatchNormalization", 9, infer_batch_norm, eval_batch_norm, MLO_OP_PURE, 5, 5, 1, 5},
    {"", "BatchNormalization", 14, infer_batch_norm, eval_batch_norm, MLO_OP_PURE, 5, 5, 1, 3},
    {"", "BatchNormalization", 15, infer_batch_norm, eval_batch_norm, MLO_OP_PURE, 5, 5, 1, 3},
    {"", "InstanceNormalization", 6, infer_instance_norm, eval_instance_norm, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "LayerNormalization", 17, infer_layer_norm, eval_layer_norm, MLO_OP_PURE, 2, 3, 1, 3},
    {"", "LRN", 1, infer_lrn, eval_lrn, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "LRN", 13, infer_lrn, eval_lrn, MLO_OP_PURE, 1, 1, 1, 1},
};
const struct mlo_op_family mlo_ops_norm = {rows, MLO_COUNT(rows)};
