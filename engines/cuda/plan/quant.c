/* What is quantized around zero to a type that the GPU's matrix units multiply: int8 and float8. */
#include "engines/cuda/plan/plan_impl.h"

static bool is_zero(const struct mlo_node *node, int i)
{
    const struct mlo_tensor *t = mlo_node_input(node, i) ? lower_constant(node->inputs[i]) : NULL;
    for (size_t k = 0; t && k < mlo_tensor_count(t); k++)
        if (mlo_tensor_get_f64(t, k) != 0) /* NaN is none either */
            return false;
    return t || !mlo_node_input(node, i);
}

/* What a value is dequantized by: also behind a Cast to 16 bits, in models that were made half after they
 * were quantized. */
static const struct mlo_node *dequantize_of(const struct mlo_value *value)
{
    const struct mlo_node *node = value->producer;
    if (node && mlo_node_is(node, "Cast") && lower_is_float(node->outputs[0]->type.dtype) &&
        lower_is_float(node->inputs[0]->type.dtype))
        node = node->inputs[0]->producer;
    return node && mlo_node_is(node, "DequantizeLinear") ? node : NULL;
}

const struct mlo_value *quant_source(const struct lower *l, const struct mlo_value *value,
                                     enum mlo_dtype dtype, float *scale)
{
    const struct mlo_node *node = dequantize_of(value);
    double number;
    if (!node || lower_is_shown(l, value) || lower_is_shown(l, node->outputs[0]) ||
        node->inputs[0]->type.dtype != dtype || lower_constant(node->inputs[0]) ||
        !lower_number(node->inputs[1], &number) || !(number > 0) || !is_zero(node, 2) ||
        mlo_node_attr_i(node, "block_size", 0))
        return NULL;
    *scale = (float)number;
    return node->inputs[0];
}

bool quant_weights(const struct mlo_value *value, enum mlo_dtype dtype, int axis, struct quant_weights *out)
{
    const struct mlo_node *node = dequantize_of(value);
    if (!node || mlo_node_attr_i(node, "block_size", 0) || !is_zero(node, 2))
        return false;
    out->q = lower_constant(node->inputs[0]);
    out->scales = lower_constant(node->inputs[1]);
    if (!out->q || !out->scales || out->q->dtype != dtype || out->q->rank < 2)
        return false;
    int64_t at = mlo_node_attr_i(node, "axis", 1), count = (int64_t)mlo_tensor_count(out->scales);
    at += at < 0 ? out->q->rank : 0;
    return count == 1 || (at == axis && count == out->q->dims[axis]);
}

bool quant_to(const struct mlo_node *node, enum mlo_dtype dtype, float *scale)
{
    double number;
    if (!mlo_node_is(node, "QuantizeLinear") || node->outputs[0]->type.dtype != dtype ||
        (lower_is_float8(dtype) && !mlo_node_attr_i(node, "saturate", 1)) ||
        !lower_number(node->inputs[1], &number) || !(number > 0) || !is_zero(node, 2) ||
        mlo_node_attr_i(node, "block_size", 0))
        return false;
    *scale = (float)number;
    return true;
}
