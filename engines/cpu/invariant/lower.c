/* Lowering for the invariant numerics: every value stays in row-major order; what has no kernel here runs by
 * its op-table row, whose plain C is deterministic already. */
#include "engines/cpu/invariant/invariant_impl.h"

static inv_lower_fn *const lowerings[] = {inv_lower_conv,     inv_lower_gemm,      inv_lower_pool,
                                          inv_lower_quantize, inv_lower_normalise, inv_lower_unary,
                                          inv_lower_scale,    inv_lower_binary,    inv_lower_lines,
                                          inv_lower_view,     inv_lower_transpose};

enum mlo_status inv_emit(struct mlo_plan *plan, const struct cpu_step_class *cls, const struct mlo_node *node,
                         int inputs, void *data, struct mlo_error *err)
{
    size_t bytes = 0;
    struct mlo_value *out = node->outputs[0];
    cpu_value_bytes(out, &bytes);
    int slot = cpu_slot_new(plan, CPU_SLOT_ARENA, bytes);
    struct cpu_step *step = slot < 0 ? NULL : cpu_step_new(plan, cls, node, inputs, 1);
    if (!step) {
        cls->free_data(data);
        return mlo_error_nomem(err);
    }
    for (int i = 0; i < inputs; i++)
        step->in[i] = node->inputs[i] ? cpu_value_plain(plan, node->inputs[i]) : -1;
    step->out[0] = slot;
    step->data = data;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    return MLO_OK;
}

enum mlo_status cpu_invariant_lower(struct mlo_plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *g = plan->model->graph;
    for (int n = 0; n < g->node_count; n++) {
        bool done = plan->done[n];
        for (size_t i = 0; !done && i < MLO_COUNT(lowerings); i++)
            MLO_TRY(lowerings[i](plan, g->nodes[n], &done, err));
        if (!done)
            MLO_TRY(cpu_lower_eval(plan, g->nodes[n], err));
    }
    for (int i = 0; i < g->output_count; i++)
        plan->output_slots[i] = cpu_value_plain(plan, g->outputs[i]);
    for (size_t i = 0; i < plan->observed_count; i++)
        plan->observed_slots[i] = cpu_value_plain(plan, plan->observed[i]);
out:
    return status;
}
