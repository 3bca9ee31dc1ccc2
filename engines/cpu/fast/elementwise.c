/* The sum of two dequantized values in bytes. */
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

/* Add of two quantized values, with Relu behind it or not, that is quantized again. */
static enum mlo_status lower_qadd(struct mlo_plan *plan, const struct mlo_node *node,
                                  const struct fast_shape *s, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_chain chain;
    int from[2];
    const struct mlo_value *a = node->inputs[0], *b = node->inputs[1];
    fast_chain_follow(plan, node->outputs[0], false, true, &chain);
    bool relu =
        chain.post_count == 1 && chain.posts[0].alg == dnnl_eltwise_relu && chain.posts[0].alpha == 0.0f;
    if (!chain.quantized || chain.post_count > 1 || (chain.post_count == 1 && !relu))
        return MLO_OK;
    enum cpu_layout layout = fast_layout(plan, a, true);
    MLO_TRY(fast_qvalue(plan, a, layout, &from[0], err));
    MLO_TRY(fast_qvalue(plan, b, layout, &from[1], err));
    int to = fast_new_slot(plan, chain.end, false);
    struct cpu_step *step;
    MLO_TRY(fast_emit_qadd(plan, node, from, &plan->values[a->index].q, &plan->values[b->index].q, to,
                           &chain.q, relu, s->count, &step, err));
    MLO_TRY(fast_chain_take(plan, &chain, step, err));
    fast_set(plan, chain.end, layout, to);
    *done = true;
out:
    return status;
}

/* What the chains of elementwise nodes would do too, in one kernel that is made for it. */
enum mlo_status fast_lower_qadd(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    struct fast_shape a, b;
    if (!mlo_node_is(node, "Add") || !fast_shape(node->inputs[0], &a) || !fast_shape(node->inputs[1], &b) ||
        a.rank != b.rank || a.rank < 1 || a.count == 0 ||
        memcmp(a.dims, b.dims, (size_t)a.rank * sizeof *a.dims) != 0 ||
        !fast_is_quantized(plan, node->inputs[0]) || !fast_is_quantized(plan, node->inputs[1]))
        return MLO_OK;
    return lower_qadd(plan, node, &a, done, err);
}
