/* Initializers that are listed as graph inputs too are defaults: from IR version 4 on a caller may feed
 * others. Old exporters list all weights that way. Who knows that nobody feeds them takes them off the list,
 * so that they fold, fuse and quantize like constants. */
#include "passes/passes_impl.h"

enum mlo_status mlo_pass_freeze_initializers(struct mlo_model *model, struct mlo_pass_context *ctx,
                                             struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    const char *first = NULL;
    MLO_UNUSED(err);
    for (int i = graph->input_count - 1; i >= 0; i--)
        if (graph->inputs[i]->constant) {
            first = graph->inputs[i]->name;
            mlo_graph_unlist_input(graph, graph->inputs[i]);
            ctx->changes++;
        }
    if (ctx->changes)
        mlo_pass_note(ctx, graph->name,
                      "%d initializers can no longer be fed as inputs, '%s' the first of them", ctx->changes,
                      first);
    model->ir_version = MLO_MAX(model->ir_version, 4); /* before, all initializers had to be listed */
    return MLO_OK;
}
