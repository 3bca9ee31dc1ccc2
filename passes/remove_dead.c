/* Dead code: nodes that no graph output depends on. */
#include "passes/passes_impl.h"

static bool is_dead(const struct mlo_node *node)
{
    for (int i = 0; i < node->output_count; i++) {
        const struct mlo_value *value = node->outputs[i];
        if (value && (value->use_count > 0 || value->is_output))
            return false;
    }
    return true;
}

bool mlo_graph_has_no_dead(const struct mlo_graph *graph)
{
    for (int n = 0; n < graph->node_count; n++)
        if (is_dead(graph->nodes[n]))
            return false;
    for (int v = 0; v < graph->value_count; v++) {
        const struct mlo_value *value = graph->values[v];
        if (value->constant && value->use_count == 0 && !value->is_input && !value->is_output)
            return false;
    }
    return true;
}

static int constant_count(const struct mlo_graph *graph)
{
    int count = 0;
    for (int v = 0; v < graph->value_count; v++)
        count += graph->values[v]->constant != NULL;
    return count;
}

enum mlo_status mlo_pass_remove_dead(struct mlo_model *model, struct mlo_pass_context *ctx,
                                     struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    MLO_UNUSED(err);
    mlo_pass_unlist_initializers(model);
    /* From the end: users come after producers, so one sweep finds whole dead chains. */
    for (int n = graph->node_count - 1; n >= 0; n--)
        if (is_dead(graph->nodes[n])) {
            mlo_graph_remove_node(graph->nodes[n]);
            ctx->changes++;
        }
    ctx->changes += constant_count(graph);
    mlo_graph_remove_unused_values(graph);
    ctx->changes -= constant_count(graph);
    return MLO_OK;
}
