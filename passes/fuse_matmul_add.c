/* MatMul of a matrix by a constant matrix, plus a constant vector: Gemm, whose bias can become integer. */
#include "passes/passes_impl.h"

static bool matches(const struct mlo_node *add, int *bias_at)
{
    if (!mlo_node_is(add, "Add"))
        return false;
    for (int i = 0; i < 2; i++) {
        const struct mlo_node *matmul = mlo_node_producer(add, 1 - i);
        const struct mlo_tensor *bias = mlo_node_fixed(add, i);
        if (!matmul || !bias || !mlo_node_is(matmul, "MatMul") ||
            mlo_value_sole_user(add->inputs[1 - i]) != add)
            continue;
        const struct mlo_value *x = mlo_node_input(matmul, 0);
        const struct mlo_tensor *w = mlo_node_fixed(matmul, 1);
        if (!w || w->rank != 2 || w->dtype != MLO_FLOAT32 || !x || x->type.rank != 2)
            continue;
        /* [N] or [1,N]: ONNX Runtime would make a Gemm of either, too late for the bias to become int32. */
        bool row = bias->rank == 1 || (bias->rank == 2 && bias->dims[0] == 1);
        if (bias->dtype != MLO_FLOAT32 || !row || bias->dims[bias->rank - 1] != w->dims[1])
            continue;
        *bias_at = i;
        return true;
    }
    return false;
}

static enum mlo_status fuse(struct mlo_node *add, int bias_at, struct mlo_error *err)
{
    struct mlo_node *matmul = add->inputs[1 - bias_at]->producer;
    struct mlo_value *inputs[] = {matmul->inputs[0], matmul->inputs[1], add->inputs[bias_at]};
    struct mlo_value *out = add->outputs[0];
    struct mlo_graph *graph = add->graph;
    const char *name = matmul->name;
    /* The output goes over from the Add to the Gemm, which stands where the Add stood. */
    struct mlo_node *before = NULL;
    for (int n = 0; n + 1 < graph->node_count; n++)
        if (graph->nodes[n] == add)
            before = graph->nodes[n + 1];
    mlo_graph_remove_node(add);
    mlo_graph_remove_node(matmul);
    struct mlo_node *gemm = mlo_graph_add_node(graph, before, "", "Gemm", name, inputs, 3, &out, 1);
    return gemm ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_pass_fuse_matmul_add(struct mlo_model *model, struct mlo_pass_context *ctx,
                                         struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    for (int n = 0; n < graph->node_count; n++) {
        int bias_at;
        if (!matches(graph->nodes[n], &bias_at))
            continue;
        enum mlo_status status = fuse(graph->nodes[n], bias_at, err);
        if (status != MLO_OK)
            return status;
        ctx->changes++;
        n -= 2; /* two nodes went, one came */
        if (n < -1)
            n = -1;
    }
    mlo_graph_remove_unused_values(graph);
    return MLO_OK;
}
