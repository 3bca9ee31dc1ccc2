/* Conv: https://onnx.ai/onnx/operators/onnx__Conv.html */
#include <stdlib.h>

#include "graph/ops/kernels_impl.h"
#include "graph/ops/ops_impl.h"

static enum mlo_status infer_conv(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0), *weight = mlo_op_in(node, 1), *bias = mlo_op_in(node, 2);
    out[0].dtype = x->dtype;
    if (x->dtype && weight->dtype && x->dtype != weight->dtype)
        return mlo_error_set(err, MLO_EINVAL, "the input is %s and the weight %s", mlo_dtype_name(x->dtype),
                             mlo_dtype_name(weight->dtype));
    return mlo_conv_infer(node, x, weight, bias, &out[0], err);
}

static float *widened(const struct mlo_tensor *t)
{
    size_t count = mlo_tensor_count(t);
    float *copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        copy[i] = (float)mlo_tensor_get_f64(t, i);
    return copy;
}

/* Half precision: computed in float32, rounded at the end. */
static enum mlo_status conv_half(const struct mlo_conv *conv, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *y, struct mlo_error *err)
{
    size_t count = mlo_tensor_count(y);
    float *x = widened(in[0]), *weight = widened(in[1]), *sum = widened(y);
    if (x && weight && sum) {
        mlo_conv_f32(conv, x, weight, sum);
        for (size_t i = 0; i < count; i++)
            mlo_tensor_set_f64(y, i, sum[i]);
    }
    bool ok = x && weight && sum;
    free(x);
    free(weight);
    free(sum);
    return ok ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status eval_conv(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_conv conv;
    const struct mlo_tensor *bias = node->input_count > 2 ? in[2] : NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_conv_init(&conv, node, in[0], in[1], err));
    struct mlo_tensor *y = out[0];
    size_t count = mlo_tensor_count(y), spatial = (size_t)(conv.w.out[0] * conv.w.out[1] * conv.w.out[2]);
    for (size_t i = 0; bias && i < count; i++)
        mlo_tensor_set_f64(y, i, mlo_tensor_get_f64(bias, i / spatial % (size_t)conv.out_channels));
    switch (in[0]->dtype) {
    case MLO_FLOAT32:
        mlo_conv_f32(&conv, in[0]->data, in[1]->data, y->data);
        break;
    case MLO_FLOAT64:
        mlo_conv_f64(&conv, in[0]->data, in[1]->data, y->data);
        break;
    case MLO_FLOAT16:
    case MLO_BFLOAT16:
        status = conv_half(&conv, in, y, err);
        break;
    default:
        status = mlo_op_bad_dtype(in[0]->dtype, err);
    }
out:
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_WEIGHTED | MLO_OP_FLOPS_MAC };
static const struct mlo_op rows[] = {
    {"", "Conv", 1, infer_conv, eval_conv, FLAGS, 2, 3, 1, 1},
    {"", "Conv", 11, infer_conv, eval_conv, FLAGS, 2, 3, 1, 1},
};
const struct mlo_op_family mlo_ops_conv = {rows, MLO_COUNT(rows)};
