/* DequantizeLinear behind what only moves or chooses elements: these work on bytes then, and what quantizes
 * again with the same parameters is nothing at all. */
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

static const char *const movers[] = {"MaxPool",   "Reshape", "Transpose", "Flatten", "Squeeze",
                                     "Unsqueeze", "Slice",   "Identity",  "Gather"};

static bool moves(const struct mlo_node *node)
{
    for (size_t i = 0; i < MLO_COUNT(movers); i++)
        if (mlo_node_is(node, movers[i]))
            return node->output_count == 1 && node->outputs[0];
    return false;
}

/* One scale and zero point, and bytes that are no weights. */
static const struct mlo_node *whole_dequantize(const struct mlo_value *value)
{
    const struct mlo_node *node = value ? value->producer : NULL;
    double number;
    /* a maximum is the maximum of the bytes only where more is more */
    if (!node || !mlo_node_is(node, "DequantizeLinear") || node->inputs[0]->constant ||
        !lower_number(node->inputs[1], &number) || !(number > 0) || mlo_node_attr_i(node, "block_size", 0) ||
        (mlo_node_input(node, 2) && !lower_number(node->inputs[2], &number)))
        return NULL;
    enum mlo_dtype dtype = node->inputs[0]->type.dtype;
    return dtype == MLO_INT8 || dtype == MLO_UINT8 || lower_is_float8(dtype) ? node : NULL;
}

static double zero_of(const struct mlo_node *node)
{
    double zero = 0;
    return mlo_node_input(node, 2) && lower_number(node->inputs[2], &zero) ? zero : 0;
}

/* Q(DQ(x)) with equal parameters is x. */
static bool cancel(const struct prepare *p, struct mlo_node *node)
{
    const struct mlo_node *dq =
        mlo_node_is(node, "QuantizeLinear") ? whole_dequantize(node->inputs[0]) : NULL;
    double a, b;
    if (!dq || prepare_shows(p, node->outputs[0]) || !lower_number(node->inputs[1], &a) ||
        !lower_number(dq->inputs[1], &b) || a != b ||
        (mlo_node_input(node, 2) && !lower_constant(node->inputs[2])) || zero_of(node) != zero_of(dq) ||
        node->outputs[0]->type.dtype != dq->inputs[0]->type.dtype)
        return false;
    return mlo_value_replace_uses(node->outputs[0], dq->inputs[0]);
}

/* Models that were made half after they were quantized have a Cast before each QuantizeLinear and behind each
 * DequantizeLinear. Chains compute in float32 whatever lies in memory, so these say nothing there. */
static bool drop_cast(const struct prepare *p, const struct mlo_node *node)
{
    struct mlo_value *x = node->inputs[0], *y = node->output_count ? node->outputs[0] : NULL;
    if (!mlo_node_is(node, "Cast") || !y || prepare_shows(p, y) || !lower_is_float(x->type.dtype) ||
        !lower_is_float(y->type.dtype))
        return false;
    const struct mlo_node *dq = whole_dequantize(x);
    if (dq && mlo_value_sole_user(x) == node && !prepare_shows(p, x)) {
        x->type.dtype = y->type.dtype;
        return mlo_value_replace_uses(y, x);
    }
    for (int i = 0; i < y->use_count; i++)
        if (!mlo_node_is(y->uses[i].node, "QuantizeLinear") || y->uses[i].index != 0)
            return false;
    return y->use_count > 0 && mlo_value_replace_uses(y, x);
}

enum mlo_status prepare_sink(const struct prepare *p, struct mlo_node *node, bool *done,
                             struct mlo_error *err)
{
    const struct mlo_node *dq = moves(node) ? whole_dequantize(node->inputs[0]) : NULL;
    if (cancel(p, node) || drop_cast(p, node)) {
        mlo_graph_remove_node(node);
        *done = true;
        return MLO_OK;
    }
    if (!dq || node->outputs[0]->type.rank < 0)
        return MLO_OK;
    struct mlo_arena *arena = p->g->model->arena;
    size_t size = (size_t)node->input_count * sizeof(struct mlo_value *);
    struct mlo_value **in = mlo_arena_memdup(arena, node->inputs, size), *y = node->outputs[0];
    struct mlo_value *params[] = {NULL, dq->inputs[1], mlo_node_input(dq, 2)};
    struct mlo_type type = y->type;
    type.dtype = dq->inputs[0]->type.dtype;
    struct mlo_value *bytes = mlo_graph_add_value(p->g, y->name, &type);
    struct mlo_node *before = node->index + 1 < p->g->node_count ? p->g->nodes[node->index + 1] : NULL;
    int64_t version = node->version;
    const struct mlo_op *op = node->op;
    if (!in || !bytes)
        return mlo_error_nomem(err);
    in[0] = dq->inputs[0];
    params[0] = bytes;
    mlo_graph_remove_node(node);
    struct mlo_node *moved =
        mlo_graph_add_node(p->g, before, "", node->op_type, node->name, in, node->input_count, &bytes, 1);
    struct mlo_node *again = moved ? mlo_graph_add_node(p->g, before, "", "DequantizeLinear", dq->name,
                                                        params, params[2] ? 3 : 2, &y, 1)
                                   : NULL;
    if (!again)
        return mlo_error_nomem(err);
    moved->attrs = node->attrs;
    moved->attr_count = node->attr_count;
    moved->version = version;
    moved->op = op;
    again->version = dq->version;
    again->op = dq->op;
    *done = true;
    return MLO_OK;
}
