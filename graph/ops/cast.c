/* Cast: by value. Floats to integers truncate towards zero (saturating); integers to narrower ones wrap. */
#include <math.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status infer_cast(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    int64_t to = mlo_node_attr_i(node, "to", 0);
    out[0] = *mlo_op_in(node, 0);
    if (to <= 0 || !mlo_dtype_info((enum mlo_dtype)to) || to >= MLO_DTYPE_COUNT)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'to' is %lld, which is no element type",
                             (long long)to);
    out[0].dtype = (enum mlo_dtype)to;
    return MLO_OK;
}

static enum mlo_status infer_cast_like(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    MLO_UNUSED(err);
    out[0] = *mlo_op_in(node, 0);
    out[0].dtype = mlo_op_in(node, 1)->dtype;
    return MLO_OK;
}

static bool numeric(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    return info->is_float || info->is_integer || dtype == MLO_BOOL;
}

static enum mlo_status eval_cast(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (!numeric(in[0]->dtype)) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    const struct mlo_tensor *x = in[0];
    struct mlo_tensor *y = out[0];
    if (!numeric(y->dtype)) {
        status = mlo_op_bad_dtype(y->dtype, err);
        goto out;
    }
    bool from_float = mlo_dtype_info(x->dtype)->is_float, to_integer = mlo_dtype_info(y->dtype)->is_integer;
    bool overflow = mlo_dtype_is_float8(y->dtype) && !mlo_node_attr_i(node, "saturate", 1);
    for (size_t i = 0; i < mlo_tensor_count(x); i++)
        if (overflow)
            ((uint8_t *)y->data)[i] = mlo_f32_to_f8_overflow(y->dtype, (float)mlo_tensor_get_f64(x, i));
        else if (to_integer && !from_float)
            mlo_store_i64(y, i, mlo_tensor_get_i64(x, i));
        else if (to_integer)
            mlo_tensor_set_f64(y, i, trunc(mlo_tensor_get_f64(x, i)));
        else
            mlo_tensor_set_f64(y, i, mlo_tensor_get_f64(x, i));
out:
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_ELEMENTWISE };
#define CAST(since)                                                                                          \
    {                                                                                                        \
        "", "Cast", since, infer_cast, eval_cast, FLAGS, 1, 1, 1, 1                                          \
    }
static const struct mlo_op rows[] = {
    CAST(6),
    CAST(9),
    CAST(13),
    CAST(19),
    {"", "CastLike", 15, infer_cast_like, eval_cast, FLAGS, 2, 2, 1, 1},
    {"", "CastLike", 19, infer_cast_like, eval_cast, FLAGS, 2, 2, 1, 1},
};
const struct mlo_op_family mlo_ops_cast = {rows, MLO_COUNT(rows)};
