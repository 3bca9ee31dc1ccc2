/* A constant that is added to each channel of a convolution is its bias (CNTK and Keras write it that way).
 */
#include <string.h>

#include "engines/cpu/fast/normalise_impl.h"

/* One number a channel, or one for all, when it is added to a value of that shape. */
static bool by_channel(const struct mlo_tensor *t, const struct fast_shape *y)
{
    for (int i = 0; i < t->rank; i++) {
        int axis = y->rank - t->rank + i;
        if (t->dims[i] != 1 && (axis != 1 || t->dims[i] != y->dims[1]))
            return false;
    }
    return t->dtype == MLO_FLOAT32 && t->rank <= y->rank;
}

enum mlo_status norm_bias(struct mlo_plan *plan, struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape y, sum;
    struct norm_site site;
    struct mlo_tensor t = {0};
    if (!mlo_node_is(node, "Conv") || !fast_shape(node->outputs[0], &y) || y.rank < 3)
        return MLO_OK;
    struct mlo_value *bias = mlo_node_input(node, 2);
    const struct mlo_tensor *old = bias ? fast_initializer(bias) : NULL;
    struct mlo_node *add = fast_reader(plan, node->outputs[0]);
    if (!add || !mlo_node_is(add, "Add") || (bias && (!old || old->dtype != MLO_FLOAT32)))
        return MLO_OK;
    const struct mlo_tensor *added = fast_initializer(add->inputs[add->inputs[0] == node->outputs[0]]);
    struct mlo_value *out = add->outputs[0];
    if (!added || !by_channel(added, &y) || !fast_shape(out, &sum) || sum.rank != y.rank ||
        memcmp(sum.dims, y.dims, (size_t)y.rank * sizeof *y.dims) != 0)
        return MLO_OK;
    MLO_TRY(mlo_tensor_init(&t, MLO_FLOAT32, 1, &y.dims[1], err));
    size_t step = mlo_tensor_count(added) > 1;
    for (size_t c = 0; c < (size_t)y.dims[1]; c++)
        ((float *)t.data)[c] =
            ((const float *)added->data)[c * step] + (old ? ((const float *)old->data)[c] : 0.0f);
    mlo_graph_remove_node(add);
    if (!norm_begin(plan, node, &site)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct mlo_value *in[] = {site.in[0], site.in[1], norm_constant(&site, &t)};
    if (!in[2] || !norm_add(&site, "Conv", "", in, 3, MLO_FLOAT32, out, out)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    norm_share_attrs(&site, out->producer);
    *done = true;
out:
    mlo_tensor_clear(&t);
    return status;
}
