/* Pad by zeros, then Conv: the Conv pads itself. */
#include <string.h>

#include "passes/passes_impl.h"

/* The pads of a Pad node that adds constant zeros, as 2 * rank numbers; false when it does something else. */
static bool zero_pads(const struct mlo_node *pad, int64_t *pads, int *rank)
{
    size_t count = 0;
    if (strcmp(mlo_node_attr_s(pad, "mode", "constant"), "constant") != 0 || mlo_node_input(pad, 3))
        return false;
    const int64_t *list = mlo_node_attr_ints(pad, "pads", &count);
    if (list) { /* before opset 11 */
        if (mlo_node_attr_f(pad, "value", 0.0f) != 0.0f)
            return false;
    } else {
        const struct mlo_tensor *t = mlo_node_fixed(pad, 1), *value = mlo_node_fixed(pad, 2);
        if (!t || t->dtype != MLO_INT64)
            return false;
        if (mlo_node_input(pad, 2) &&
            (!value || mlo_tensor_count(value) != 1 || mlo_tensor_get_f64(value, 0) != 0.0))
            return false;
        list = t->data;
        count = mlo_tensor_count(t);
    }
    if (count % 2 || count > 2 * MLO_MAX_RANK)
        return false;
    *rank = (int)(count / 2);
    memcpy(pads, list, count * sizeof *list);
    return true;
}

static bool sum_pads(const struct mlo_node *conv, const struct mlo_node *pad, int64_t *sums, size_t *count)
{
    int64_t outer[2 * MLO_MAX_RANK];
    int rank;
    const char *auto_pad = mlo_node_attr_s(conv, "auto_pad", "NOTSET");
    bool valid = strcmp(auto_pad, "VALID") == 0;
    if ((!valid && strcmp(auto_pad, "NOTSET") != 0) || !zero_pads(pad, outer, &rank) || rank < 3)
        return false;
    size_t own_count = 0, spatial = (size_t)rank - 2;
    const int64_t *own = valid ? NULL : mlo_node_attr_ints(conv, "pads", &own_count);
    if (own && own_count != 2 * spatial)
        return false;
    for (int i = 0; i < 2 * rank; i++)
        if (outer[i] < 0 || (i % rank < 2 && outer[i] != 0))
            return false;
    for (size_t i = 0; i < spatial; i++) {
        sums[i] = outer[2 + i] + (own ? own[i] : 0);
        sums[spatial + i] = outer[(size_t)rank + 2 + i] + (own ? own[spatial + i] : 0);
    }
    *count = 2 * spatial;
    return true;
}

enum mlo_status mlo_pass_fuse_pad(struct mlo_model *model, struct mlo_pass_context *ctx,
                                  struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *conv = graph->nodes[n];
        struct mlo_node *pad = mlo_node_is(conv, "Conv") ? mlo_node_producer(conv, 0) : NULL;
        int64_t pads[2 * MLO_MAX_RANK];
        size_t count;
        if (!pad || !mlo_node_is(pad, "Pad") || mlo_value_sole_user(pad->outputs[0]) != conv ||
            !sum_pads(conv, pad, pads, &count))
            continue;
        if (!mlo_node_set_ints(conv, "pads", pads, count) ||
            (mlo_node_attr(conv, "auto_pad") && !mlo_node_set_s(conv, "auto_pad", "NOTSET")) ||
            !mlo_node_set_input(conv, 0, pad->inputs[0]))
            return mlo_error_nomem(err);
        mlo_graph_remove_node(pad);
        ctx->changes++;
        n--; /* the Pad stood before it */
    }
    mlo_graph_remove_unused_values(graph);
    return MLO_OK;
}
