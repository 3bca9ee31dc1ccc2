/* Softmax and LogSoftmax. Up to opset 12 the input is seen as a matrix, split before `axis` (default 1), and
 * each row is one distribution; from 13 on it is along one axis (default the last). */
#include <math.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status infer_softmax(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    int axis;
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank < 0)
        return MLO_OK;
    return mlo_op_axis(mlo_node_attr_i(node, "axis", node->op->since >= 13 ? -1 : 1), out[0].rank, &axis,
                       err);
}

/* One distribution: `count` elements, `step` apart. */
static void distribute(const struct mlo_tensor *x, struct mlo_tensor *y, size_t first, size_t count,
                       size_t step, bool logarithm)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++)
        top = fmax(top, mlo_tensor_get_f64(x, first + i * step));
    for (size_t i = 0; i < count; i++)
        sum += mlo_math_exp(mlo_tensor_get_f64(x, first + i * step) - top);
    double log_sum = logarithm ? mlo_math_log(sum) : 0;
    for (size_t i = 0; i < count; i++) {
        double d = mlo_tensor_get_f64(x, first + i * step) - top;
        mlo_tensor_set_f64(y, first + i * step, logarithm ? d - log_sum : mlo_math_exp(d) / sum);
    }
}

static enum mlo_status eval_softmax(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    bool matrix = node->op->since < 13;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", matrix ? 1 : -1), x->rank, &axis, err));
    if (!mlo_dtype_info(x->dtype)->is_float) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    size_t outer = 1, count = 1, inner = 1;
    for (int i = 0; i < x->rank; i++)
        *(i < axis ? &outer : i == axis || matrix ? &count : &inner) *= (size_t)x->dims[i];
    for (size_t o = 0; count && o < outer; o++)
        for (size_t i = 0; i < inner; i++)
            distribute(x, out[0], o * count * inner + i, count, inner, node->op_type[0] == 'L');
out:
    return status;
}

#define SOFTMAX(name, since)                                                                                 \
    {                                                                                                        \
        "", name, since, infer_softmax, eval_softmax, MLO_OP_PURE, 1, 1, 1, 1                                \
    }
static const struct mlo_op rows[] = {
    SOFTMAX("Softmax", 1),    SOFTMAX("Softmax", 11),    SOFTMAX("Softmax", 13),
    SOFTMAX("LogSoftmax", 1), SOFTMAX("LogSoftmax", 11), SOFTMAX("LogSoftmax", 13),
};
const struct mlo_op_family mlo_ops_softmax = {rows, MLO_COUNT(rows)};
