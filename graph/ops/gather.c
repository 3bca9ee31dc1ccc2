/* Gather: https://onnx.ai/onnx/operators/onnx__Gather.html */
#include "graph/ops/ops_impl.h"

static enum mlo_status infer_gather(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0), *index = mlo_op_in(node, 1);
    int axis;
    out[0].dtype = x->dtype;
    if (index->dtype && index->dtype != MLO_INT32 && index->dtype != MLO_INT64)
        return mlo_error_set(err, MLO_EINVAL, "the indices are %s", mlo_dtype_name(index->dtype));
    if (x->rank < 0)
        return MLO_OK;
    enum mlo_status status = mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err);
    if (status != MLO_OK || index->rank < 0)
        return status;
    if (x->rank - 1 + index->rank > MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a result of more than %d dims", MLO_MAX_RANK);
    out[0].rank = 0;
    for (int i = 0; i < x->rank; i++) {
        if (i != axis) {
            out[0].dims[out[0].rank++] = x->dims[i];
            continue;
        }
        for (int k = 0; k < index->rank; k++)
            out[0].dims[out[0].rank++] = index->dims[k];
    }
    return MLO_OK;
}

static enum mlo_status eval_gather(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err));
    size_t width = mlo_dtype_bytes(x->dtype), outer = 1, inner = 1, picks = mlo_tensor_count(in[1]);
    if (!width) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    for (int i = 0; i < x->rank; i++)
        if (i != axis)
            *(i < axis ? &outer : &inner) *= (size_t)x->dims[i];
    int64_t size = x->dims[axis];
    for (size_t k = 0; k < picks; k++) {
        int64_t index = mlo_tensor_get_i64(in[1], k);
        if (index < -size || index >= size) {
            status = mlo_error_set(err, MLO_EINVAL, "index %lld is outside of [%lld, %lld]", (long long)index,
                                   (long long)-size, (long long)size - 1);
            goto out;
        }
        size_t from = (size_t)(index < 0 ? index + size : index), row = inner * width;
        for (size_t o = 0; o < outer && row; o++)
            memcpy((char *)out[0]->data + (o * picks + k) * row,
                   (const char *)x->data + (o * (size_t)size + from) * row, row);
    }
out:
    return status;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
#define GATHER(since)                                                                                        \
    {                                                                                                        \
        "", "Gather", since, infer_gather, eval_gather, KEEP, 2, 2, 1, 1                                     \
    }
static const struct mlo_op rows[] = {GATHER(1), GATHER(11), GATHER(13)};
const struct mlo_op_family mlo_ops_gather = {rows, MLO_COUNT(rows)};
