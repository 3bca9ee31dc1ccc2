/* Lowering for the invariant numerics: every value stays in row-major order; what has no kernel here runs by
 * its op-table row, whose plain C is deterministic already. */
#include "engines/cpu/invariant/invariant_impl.h"

typedef enum mlo_status inv_lower_fn(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                     struct mlo_error *err);

static inv_lower_fn *const lowerings[] = {inv_lower_conv,     inv_lower_gemm,      inv_lower_pool,
                                          inv_lower_quantize, inv_lower_normalise, inv_lower_simple};

enum mlo_status cpu_invariant_lower(struct mlo_plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *g = plan->model->graph;
    for (int n = 0; n < g->node_count; n++) {
        bool done = false;
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
