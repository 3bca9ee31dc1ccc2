/* Indices of Gather that exporters send through floats and back (Keras keeps its inputs as floats): the
 * integers are read where they were. What the floats cannot hold is outside of the table either way. */
#include "engines/cpu/fast/normalise_impl.h"

/* Integers of magnitude up to this are exact in the type. */
static int64_t exact_up_to(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT64 ? (int64_t)1 << 53 : dtype == MLO_FLOAT32 ? (int64_t)1 << 24 : 0;
}

static bool is_index(enum mlo_dtype dtype)
{
    return dtype == MLO_INT32 || dtype == MLO_INT64;
}

/* Nobody but one node sees it, and nothing is known of it. */
static bool is_private(const struct mlo_plan *plan, const struct mlo_value *v)
{
    return fast_reader(plan, v) && !v->known && !v->constant;
}

static bool is_view(const struct mlo_node *node)
{
    return mlo_node_is(node, "Reshape") || mlo_node_is(node, "Flatten") || mlo_node_is(node, "Squeeze") ||
           mlo_node_is(node, "Unsqueeze") || mlo_node_is(node, "Identity");
}

/* Cast to floats -> views -> Cast to integers -> Gather */
enum mlo_status norm_index(struct mlo_plan *plan, struct mlo_node *node, bool *done, struct mlo_error *err)
{
    MLO_UNUSED(err);
    if (!mlo_node_is(node, "Gather") || !node->inputs[1] || !node->inputs[1]->producer ||
        !is_private(plan, node->inputs[1]))
        return MLO_OK;
    struct mlo_node *last = node->inputs[1]->producer, *view = NULL, *first = last;
    struct fast_shape table;
    int64_t axis = mlo_node_attr_i(node, "axis", 0);
    if (!mlo_node_is(last, "Cast") || !is_index(last->outputs[0]->type.dtype) ||
        !fast_shape(node->inputs[0], &table))
        return MLO_OK;
    axis += axis < 0 ? table.rank : 0;
    do {
        struct mlo_value *in = first->inputs[0];
        if (!in || !in->producer || !is_private(plan, in))
            return MLO_OK;
        first = in->producer;
        view = is_view(first) ? first : view;
    } while (is_view(first));
    enum mlo_dtype between = first->outputs[0]->type.dtype;
    if (!mlo_node_is(first, "Cast") || !first->inputs[0] || !is_index(first->inputs[0]->type.dtype) ||
        axis < 0 || axis >= table.rank || table.dims[axis] > MLO_MIN(exact_up_to(between), INT32_MAX))
        return MLO_OK;
    struct mlo_value *x = first->inputs[0], *index = view ? last->inputs[0] : x;
    for (struct mlo_node *n = view ? index->producer : first; n != first; n = n->inputs[0]->producer)
        n->outputs[0]->type.dtype = x->type.dtype;
    if ((view && !mlo_node_set_input(view, 0, x)) || !mlo_node_set_input(node, 1, index))
        return mlo_error_nomem(err);
    mlo_graph_remove_node(last);
    mlo_graph_remove_node(first);
    *done = true;
    return MLO_OK;
}
