/* ONNX import: what is accepted is a graph whose invariants hold, that can be inferred, copied and written,
 * and what was written is read back, and soon to the same bytes. */
#include "graph/graph.h"
#include "tests/fuzz/fuzz.h"

/* Types that a file states can let inference tell more than it could without, so the first times may add
 * some. */
static void round_trip(const struct mlo_model *model)
{
    enum { ROUNDS = 4 };
    struct mlo_error err = {0};
    struct mlo_buf bytes = MLO_BUF_INIT, next = MLO_BUF_INIT;
    bool same = !fuzz_accepted(mlo_onnx_serialize(model, &bytes, &err), &err);
    for (int round = 0; !same && round < ROUNDS; round++) {
        struct mlo_model *again = NULL;
        enum mlo_status status = mlo_onnx_parse(bytes.data, bytes.len, "written", &again, &err);
        if (status != MLO_OK)
            fuzz_fail(__FILE__, __LINE__, "what was written is not accepted: %s [%s]", err.message,
                      err.where);
        FUZZ_CHECK(again->graph->node_count == model->graph->node_count, "%d nodes became %d",
                   model->graph->node_count, again->graph->node_count);
        if (mlo_onnx_serialize(again, &next, &err) != MLO_OK)
            fuzz_fail(__FILE__, __LINE__, "cannot be written twice: %s [%s]", err.message, err.where);
        mlo_model_free(again);
        same = bytes.len == next.len && memcmp(bytes.data, next.data, bytes.len) == 0;
        FUZZ_CHECK(same || round + 1 < ROUNDS, "written again it differs: %zu and %zu bytes", bytes.len,
                   next.len);
        mlo_buf_clear(&bytes);
        bytes = next;
        next = (struct mlo_buf)MLO_BUF_INIT;
    }
    mlo_buf_clear(&bytes);
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
