/* ONNX import: what is accepted is a graph whose invariants hold, that can be inferred, copied and written,
 * and what was written is read back to the same bytes. */
#include "graph/graph.h"
#include "tests/fuzz/fuzz.h"

static void round_trip(const struct mlo_model *model)
{
    struct mlo_error err = {0};
    struct mlo_model *again = NULL;
    struct mlo_buf first = MLO_BUF_INIT, second = MLO_BUF_INIT;
    if (!fuzz_accepted(mlo_onnx_serialize(model, &first, &err), &err))
        goto out;
    if (mlo_onnx_parse(first.data, first.len, "written", &again, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "what was written is not accepted: %s [%s]", err.message, err.where);
    if (mlo_onnx_serialize(again, &second, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "cannot be written twice: %s [%s]", err.message, err.where);
    FUZZ_CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0,
               "written again it differs: %zu and %zu bytes", first.len, second.len);
out:
    mlo_model_free(again);
    mlo_buf_clear(&first);
    mlo_buf_clear(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_model *model = NULL, *copy = NULL;
    struct mlo_buf text = MLO_BUF_INIT;
    if (!fuzz_accepted(mlo_onnx_parse(data, size, "input.onnx", &model, &err), &err)) {
        FUZZ_CHECK(!model, "refused, but a model is given");
        goto out;
    }
    if (mlo_graph_verify(model->graph, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "accepted, but: %s [%s]", err.message, err.where);
    mlo_graph_dump(model->graph, &text);
    fuzz_accepted(mlo_graph_check_supported(model->graph, &err), &err);
    for (int i = 0; i < model->graph->node_count; i++)
        mlo_node_macs(model->graph->nodes[i]);
    round_trip(model);
    if (mlo_model_clone(model, &copy, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "cannot be copied: %s [%s]", err.message, err.where);
    fuzz_accepted(mlo_graph_infer(copy->graph, &err), &err);
    if (mlo_graph_verify(copy->graph, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "inferred, but: %s [%s]", err.message, err.where);
out:
    mlo_model_free(model);
    mlo_model_free(copy);
    mlo_buf_clear(&text);
    return 0;
}
