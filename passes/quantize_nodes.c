/* Which nodes the quantize pass makes integer, for those who judge nodes one by one. */
#include "passes/quantize_impl.h"

enum mlo_status mlo_quantize_nodes(const struct mlo_model *model, const json_t *options,
                                   struct mlo_arena *arena, const struct mlo_node ***nodes, size_t *count,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_quantize_settings settings;
    struct mlo_quantize_plan plan;
    const struct mlo_graph *graph = model->graph;
    *count = 0;
    mlo_quantize_settings_read(options, &settings);
    MLO_TRY(mlo_quantize_plan_make(graph, &settings, arena, NULL, &plan, err));
    *nodes = mlo_arena_calloc(arena, (size_t)graph->node_count + 1, sizeof **nodes);
    if (!*nodes)
        return mlo_error_nomem(err);
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        if (node->op && (node->op->flags & MLO_OP_WEIGHTED) && mlo_quantize_is_integer(&plan, node))
            (*nodes)[(*count)++] = node;
    }
out:
    return status;
}
