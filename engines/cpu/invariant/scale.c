/* A product with a number for each channel of a sample (squeeze and excitation) in front of a pointwise
 * convolution is left to that, which multiplies while it packs its columns. */
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

/* Whether a Conv of one weight per pair of channels reads pixels where they are. */
static bool is_pointwise(const struct mlo_node *node)
{
    struct mlo_window w;
    struct mlo_error err = {0};
    const struct mlo_tensor *weight = mlo_node_const(node, 1);
    int64_t x[MLO_MAX_RANK];
    if (!mlo_node_is(node, "Conv") || !weight || weight->dtype != MLO_FLOAT32 || weight->rank != 4 ||
        mlo_tensor_count(weight) == 0 || (mlo_node_input(node, 2) && !mlo_node_const(node, 2)) ||
        mlo_node_attr_i(node, "group", 1) != 1 || !cpu_value_dims(node->inputs[0], x, NULL) ||
        mlo_window_init(&w, node, 2, x + 2, weight->dims + 2, &err) != MLO_OK)
        return false;
    for (int d = 0; d < 2; d++)
        if (w.kernel[d] != 1 || w.stride[d] != 1 || w.pad_begin[d] || w.pad_end[d])
            return false;
    return true;
}

enum mlo_status inv_lower_scale(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    int64_t x[MLO_MAX_RANK], w[MLO_MAX_RANK], y[MLO_MAX_RANK];
    size_t count;
    const struct mlo_value *out = node->outputs[0];
    MLO_UNUSED(err);
    if (!mlo_node_is(node, "Mul") || out->is_output || cpu_is_observed(plan, out) || out->use_count != 1)
        return MLO_OK;
    const struct mlo_node *reader = out->uses[0].node;
    for (int i = 0; i < 2; i++)
        if (node->inputs[i]->type.dtype != MLO_FLOAT32 || node->inputs[i]->type.rank != 4 ||
            cpu_value_plain(plan, node->inputs[i]) < 0)
            return MLO_OK;
    if (!cpu_value_dims(node->inputs[0], x, NULL) || !cpu_value_dims(node->inputs[1], w, NULL) ||
        !cpu_value_dims(out, y, &count) || count == 0 || memcmp(x, y, 4 * sizeof *x) != 0 || w[0] != x[0] ||
        w[1] != x[1] || w[2] != 1 || w[3] != 1 || reader->graph != plan->model->graph ||
        reader->inputs[0] != out || !is_pointwise(reader))
        return MLO_OK;
    *done = true;
    return MLO_OK;
}

const struct mlo_node *inv_scale_of(const struct mlo_plan *plan, const struct mlo_value *value)
{
    return cpu_value_plain(plan, value) < 0 ? value->producer : NULL;
}
