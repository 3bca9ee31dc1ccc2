/* Constants folded at compile time: what is computed of nothing but constants is computed once. */
#include <stdlib.h>

#include "engines/cpu/fast/fast_impl.h"

/* A result may be this large, or twice what it is computed from: a plan should not hold a filled tensor of
 * any size in the place of the few bytes that say so. */
enum { FREE_BYTES = 1 << 20 };

static bool foldable(const struct mlo_node *node)
{
    size_t in = 0;
    if (!node->op || !(node->op->flags & MLO_OP_PURE) || (node->op->flags & MLO_OP_VALUES) ||
        node->op->eval_in || mlo_node_is(node, "DequantizeLinear") || mlo_node_is(node, "Identity"))
        return false; /* weights stay bytes, and equal ones shared */
    for (int i = 0; i < node->input_count; i++) {
        if (node->inputs[i] && !node->inputs[i]->constant)
            return false;
        in += node->inputs[i] ? node->inputs[i]->constant->size_bytes : 0;
    }
    for (int i = 0; i < node->output_count; i++) {
        size_t bytes;
        if (node->outputs[i] &&
            (!cpu_value_bytes(node->outputs[i], &bytes) || bytes > MLO_MAX((size_t)FREE_BYTES, 2 * in)))
            return false;
    }
    return node->output_count > 0;
}

/* The slots' data is the plan's: freed with it. */
static enum mlo_status keep(struct mlo_plan *plan, struct mlo_value *value, struct mlo_tensor *t,
                            struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    bool same = t->dtype == value->type.dtype && t->rank == value->type.rank && t->owned && t->data;
    cpu_value_dims(value, dims, NULL);
    for (int i = 0; same && i < t->rank; i++)
        same = dims[i] == t->dims[i];
    if (!same)
        return MLO_EFORMAT; /* the run says what is wrong with it */
    return fast_set_constant(plan, value, t, err);
}

static enum mlo_status fold(struct mlo_plan *plan, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_error ignored = {0};
    const struct mlo_tensor **in = calloc((size_t)node->input_count + 1, sizeof(const struct mlo_tensor *));
    struct mlo_tensor **out = calloc((size_t)node->output_count + 1, sizeof(struct mlo_tensor *));
    struct mlo_tensor *results =
        mlo_arena_calloc(plan->arena, (size_t)node->output_count, sizeof(struct mlo_tensor));
    if (!in || !out || !results) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < node->input_count; i++)
        in[i] = node->inputs[i] ? node->inputs[i]->constant : NULL;
    for (int i = 0; i < node->output_count; i++)
        out[i] = node->outputs[i] ? &results[i] : NULL;
    bool good = mlo_node_eval(node, in, (struct mlo_tensor *const *)out, &ignored) == MLO_OK;
    for (int i = 0; good && i < node->output_count; i++)
        good = !node->outputs[i] || keep(plan, node->outputs[i], &results[i], err) == MLO_OK;
    for (int i = 0; good && i < node->output_count; i++)
        if (node->outputs[i])
            node->outputs[i]->constant = &results[i];
    plan->done[node->index] = good;
out:
    for (int i = 0; results && !plan->done[node->index] && i < node->output_count; i++)
        mlo_tensor_clear(&results[i]); /* what the plan did not take */
    free(in);
    free(out);
    return status;
}

enum mlo_status fast_fold_constants(struct mlo_plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *g = plan->model->graph;
    for (int n = 0; n < g->node_count; n++) {
        struct mlo_value *out = g->nodes[n]->output_count == 1 ? g->nodes[n]->outputs[0] : NULL;
        if (out && out->known && out->known->dtype == out->type.dtype && !out->constant) {
            /* inference knows it already: a shape */
            int slot = cpu_slot_const(plan, out->known->data, out->known->size_bytes);
            if (slot < 0) {
                status = mlo_error_nomem(err);
                goto out;
            }
            fast_set(plan, out, CPU_PLAIN, slot);
            out->constant = out->known;
            plan->done[n] = true;
        } else if (foldable(g->nodes[n])) {
            MLO_TRY(fold(plan, g->nodes[n], err));
        }
    }
out:
    return status;
}
