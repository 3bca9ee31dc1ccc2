/* What is quantized to int8 around zero: the only form that the GPU's matrix units multiply. */
#include "engines/cuda/plan/plan_impl.h"

static bool is_zero(const struct mlo_node *node, int i)
{
    const struct mlo_tensor *t = mlo_node_input(node, i) ? lower_constant(node->inputs[i]) : NULL;
    for (size_t k = 0; t && k < mlo_tensor_count(t); k++)
        if (mlo_tensor_get_i64(t, k) != 0)
            return false;
    return t || !mlo_node_input(node, i);
}

const struct mlo_value *quant_source(const struct lower *l, const struct mlo_value *value, float *scale)
{
    const struct mlo_node *node = value->producer;
    double number;
    if (!node || !mlo_node_is(node, "DequantizeLinear") || lower_is_shown(l, value) ||
        node->inputs[0]->type.dtype != MLO_INT8 || lower_constant(node->inputs[0]) ||
        !lower_number(node->inputs[1], &number) || !(number > 0) || !is_zero(node, 2) ||
        mlo_node_attr_i(node, "block_size", 0))
        return NULL;
    *scale = (float)number;
    return node->inputs[0];
}

bool quant_weights(const struct mlo_value *value, int axis, struct quant_weights *out)
{
    const struct mlo_node *node = value->producer;
    if (!node || !mlo_node_is(node, "DequantizeLinear") || mlo_node_attr_i(node, "block_size", 0) ||
        !is_zero(node, 2))
        return false;
    out->q = lower_constant(node->inputs[0]);
    out->scales = lower_constant(node->inputs[1]);
    if (!out->q || !out->scales || out->q->dtype != MLO_INT8 || out->q->rank < 2)
        return false;
    int64_t at = mlo_node_attr_i(node, "axis", 1), count = (int64_t)mlo_tensor_count(out->scales);
    at += at < 0 ? out->q->rank : 0;
    return count == 1 || (at == axis && count == out->q->dims[axis]);
}

bool quant_to_int8(const struct mlo_node *node, float *scale)
{
    double number;
    if (!mlo_node_is(node, "QuantizeLinear") || node->outputs[0]->type.dtype != MLO_INT8 ||
        !lower_number(node->inputs[1], &number) || !(number > 0) || !is_zero(node, 2) ||
        mlo_node_attr_i(node, "block_size", 0))
        return false;
    *scale = (float)number;
    return true;
}
