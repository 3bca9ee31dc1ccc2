/* Shape inference and the reference kernels, on small models: an error that names the node or a result, and a
 * result is of the type that inference promised. */
#include "graph/graph.h"
#include "tests/fuzz/fuzz.h"

enum {
    TENSOR_MAX = 1 << 16, /* bytes of one tensor: a model is a few hundred bytes, and time is dear */
    NODES_MAX = 64,
    TRIPS_MAX = 1000, /* runs of bodies */
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

/* Inputs of open dims were bound; what has no static type cannot be fed. */
static bool feed(struct mlo_eval *eval, struct mlo_tensor *inputs)
{
    const struct mlo_graph *graph = eval->graph;
    for (int i = 0; i < graph->input_count; i++) {
        int64_t dims[MLO_MAX_RANK];
        const struct mlo_value *x = graph->inputs[i];
        if (x->constant)
            continue;
        if (x->type.dtype == MLO_DTYPE_NONE || !mlo_type_static(&x->type, dims) ||
            mlo_tensor_init(&inputs[i], x->type.dtype, x->type.rank, dims, NULL) != MLO_OK)
            return false;
        for (size_t k = 0; k < mlo_tensor_count(&inputs[i]); k++)
            mlo_tensor_set_f64(&inputs[i], k, (double)(k * 7 % 13) - 4);
        mlo_eval_feed(eval, x, &inputs[i]);
    }
    return true;
}

/* What inference promises is binding as long as the types it was told are true: a file may state anything
 * about values that nothing can be told of. */
static void check_promise(const struct mlo_eval *eval, const struct mlo_node *node)
{
    struct mlo_error err = {0};
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_tensor *in = node->inputs[i] ? mlo_eval_content(eval, node->inputs[i]) : NULL;
        if (in && !agrees(&node->inputs[i]->type, in))
            return;
    }
    struct mlo_type *types = calloc((size_t)node->output_count + 1, sizeof *types);
    if (types && mlo_node_infer(node, types, &err) == MLO_OK)
        for (int i = 0; i < node->output_count; i++) {
            char promised[256], made[256];
            const struct mlo_tensor *out = node->outputs[i] ? mlo_eval_content(eval, node->outputs[i]) : NULL;
            FUZZ_CHECK(!out || agrees(&types[i], out), "%s version %lld: output %d is %s, not %s",
                       node->op_type, (long long)node->version, i,
                       mlo_tensor_describe(out, made, sizeof made),
                       mlo_type_describe(&types[i], promised, sizeof promised));
        }
    free(types);
}

static void evaluate(const struct mlo_graph *graph)
{
    struct mlo_error err = {0};
    struct mlo_eval eval = {0};
    struct mlo_tensor *inputs = calloc((size_t)graph->input_count + 1, sizeof *inputs);
    if (!inputs || !fuzz_accepted(mlo_eval_init(&eval, graph, NULL, &err), &err))
        goto out;
    eval.trips_left = TRIPS_MAX;
    for (int i = 0; i < graph->value_count; i++)
        mlo_eval_keep(&eval, graph->values[i]);
    if (!feed(&eval, inputs))
        goto out;
    if (!fuzz_accepted(mlo_eval_run(&eval, &err), &err))
        FUZZ_CHECK(err.where[0], "an error without a place: %s", err.message);
    for (int n = 0; n < graph->node_count; n++)
        check_promise(&eval, graph->nodes[n]);
out:
    mlo_eval_clear(&eval);
    for (int i = 0; inputs && i < graph->input_count; i++)
        mlo_tensor_clear(&inputs[i]);
    free(inputs);
}

static bool small(const struct mlo_graph *graph)
{
    uint64_t macs = 0;
    for (int n = 0; n < graph->node_count; n++) {
        uint64_t more = mlo_node_macs(graph->nodes[n]);
        macs = more > macs_max - MLO_MIN(macs, macs_max) ? UINT64_MAX : macs + more;
    }
    return graph->node_count <= NODES_MAX && macs <= macs_max;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_model *model = NULL;
    mlo_tensor_set_limit(TENSOR_MAX);
    if (!fuzz_accepted(mlo_onnx_parse(data, size, "input.onnx", &model, &err), &err))
        goto out;
    if (fuzz_accepted(mlo_graph_check_supported(model->graph, &err), &err) &&
        fuzz_accepted(mlo_graph_bind(model->graph, NULL, 0, 2, &err), &err) &&
        fuzz_accepted(mlo_graph_bind_batch(model->graph, 2, &err), &err) && small(model->graph))
        evaluate(model->graph);
out:
    mlo_model_free(model);
    return 0;
}
