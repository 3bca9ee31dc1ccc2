/* Shape inference and the reference kernels, on small models: an error that names the node or a result, and a
 * result is of the type that inference promised. */
#include "graph/graph.h"
#include "tests/fuzz/fuzz.h"

enum {
    TENSOR_MAX = 1 << 16, /* bytes of one tensor: a model is a few hundred bytes, and time is dear */
    NODES_MAX = 64,
};
static const uint64_t macs_max = 1u << 24;

static bool agrees(const struct mlo_type *type, const struct mlo_tensor *t)
{
    if (type->dtype != MLO_DTYPE_NONE && type->dtype != t->dtype)
        return false;
    if (type->rank >= 0 && type->rank != t->rank)
        return false;
    for (int d = 0; d < type->rank; d++)
        if (type->dims[d].value >= 0 && type->dims[d].value != t->dims[d])
            return false;
    return true;
}

static bool feed(const struct mlo_graph *graph, struct mlo_tensor *held)
{
    for (int i = 0; i < graph->input_count; i++) {
        int64_t dims[MLO_MAX_RANK];
        const struct mlo_value *x = graph->inputs[i];
        struct mlo_tensor *t = &held[x->index];
        if (x->constant)
            continue;
        if (x->type.dtype == MLO_DTYPE_NONE || !mlo_type_static(&x->type, dims) ||
            mlo_tensor_init(t, x->type.dtype, x->type.rank, dims, NULL) != MLO_OK)
            return false;
        for (size_t k = 0; k < mlo_tensor_count(t); k++)
            mlo_tensor_set_f64(t, k, (double)(k * 7 % 13) - 4);
    }
    return true;
}

/* What inference promises is binding as long as the types it was told are true: a file may state anything
 * about values that nothing can be told of. */
static void check_promise(const struct mlo_node *node, const struct mlo_tensor *const *in,
                          struct mlo_tensor *const *out)
{
    struct mlo_error err = {0};
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !agrees(&node->inputs[i]->type, in[i]))
            return;
    struct mlo_type *types = calloc((size_t)node->output_count + 1, sizeof *types);
    if (types && mlo_node_infer(node, types, &err) == MLO_OK)
        for (int i = 0; i < node->output_count; i++) {
            char promised[256], made[256];
            FUZZ_CHECK(!out[i] || agrees(&types[i], out[i]), "%s version %lld: output %d is %s, not %s",
                       node->op_type, (long long)node->version, i,
                       mlo_tensor_describe(out[i], made, sizeof made),
                       mlo_type_describe(&types[i], promised, sizeof promised));
        }
    free(types);
}

static bool run_node(const struct mlo_node *node, struct mlo_tensor *held)
{
    struct mlo_error err = {0};
    bool ok = mlo_node_macs(node) <= macs_max;
    const struct mlo_tensor **in = calloc((size_t)node->input_count + 1, sizeof *in);
    struct mlo_tensor **out = calloc((size_t)node->output_count + 1, sizeof *out);
    for (int i = 0; ok && i < node->input_count; i++) {
        const struct mlo_value *x = node->inputs[i];
        in[i] = !x ? NULL : x->constant ? x->constant : &held[x->index];
    }
    for (int i = 0; ok && i < node->output_count; i++)
        out[i] = node->outputs[i] ? &held[node->outputs[i]->index] : NULL;
    if (ok && !fuzz_accepted(mlo_node_eval(node, in, out, &err), &err)) {
        FUZZ_CHECK(err.where[0], "an error without a place: %s", err.message);
        ok = false;
    } else if (ok) {
        check_promise(node, in, out);
    }
    free(in);
    free(out);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_model *model = NULL;
    struct mlo_tensor *held = NULL;
    mlo_tensor_set_limit(TENSOR_MAX);
    if (!fuzz_accepted(mlo_onnx_parse(data, size, "input.onnx", &model, &err), &err))
        goto out;
    const struct mlo_graph *graph = model->graph;
    if (graph->node_count > NODES_MAX || !fuzz_accepted(mlo_graph_check_supported(graph, &err), &err) ||
        !fuzz_accepted(mlo_graph_bind(model->graph, NULL, 0, 2, &err), &err) ||
        !fuzz_accepted(mlo_graph_bind_batch(model->graph, 2, &err), &err))
        goto out;
    held = calloc((size_t)graph->value_count + 1, sizeof *held);
    bool ok = held && feed(graph, held);
    for (int n = 0; ok && n < graph->node_count; n++)
        ok = run_node(graph->nodes[n], held);
    for (int i = 0; held && i < graph->value_count; i++)
        mlo_tensor_clear(&held[i]);
out:
    free(held);
    mlo_model_free(model);
    return 0;
}
