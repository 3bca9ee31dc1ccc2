/* Lowering for the fast numerics: each node is offered to a table of lowerings; what none takes is
 * interpreted. */
#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/fast/lines_impl.h"
#include "engines/cpu/fast/normalise_impl.h"

/* Nodes that change a shape, not the bytes in row-major order. */
static const char *const views[] = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"};

enum mlo_status fast_lower_view(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool known = false;
    for (size_t i = 0; i < MLO_COUNT(views); i++)
        known |= mlo_node_is(node, views[i]);
    struct fast_shape a, b;
    int slot;
    for (int i = 1; i < node->output_count; i++)
        known &= node->outputs[i] == NULL;
    const struct mlo_value *how = mlo_node_input(node, 1);
    if (mlo_node_is(node, "Dropout"))
        how = mlo_node_input(node, 2);
    /* Else its kernel sees at run whether the stated shape is the one, and whether it trains. */
    known &= !how || how->constant || (how->known && !mlo_node_is(node, "Dropout"));
    if (!known || !fast_shape(node->inputs[0], &a) || !fast_shape(node->outputs[0], &b) ||
        a.count != b.count || mlo_node_attr_i(node, "training_mode", 0))
        return MLO_OK;
    const struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    if (fast_is_quantized(plan, in)) {
        MLO_TRY(fast_qvalue(plan, in, CPU_PLAIN, &slot, err));
        fast_set_q(plan, out, CPU_PLAIN, slot, &plan->values[in->index].q);
    } else {
        MLO_TRY(fast_value(plan, in, CPU_PLAIN, &slot, err));
        fast_set(plan, out, CPU_PLAIN, slot);
    }
    *done = true;
out:
    return status;
}

enum mlo_status fast_lower_quantize(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cpu_qparams q;
    struct fast_shape s;
    const struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    if (!mlo_node_is(node, "QuantizeLinear") || !fast_qparams(node, &q) || !fast_shape(in, &s))
        return MLO_OK;
    struct cpu_value *v = &plan->values[in->index];
    *done = true;
    if (fast_is_quantized(plan, in) && fast_same_q(&q, &v->q)) { /* quantizing what was just dequantized */
        for (int l = 0; l < CPU_LAYOUTS; l++)
            if (v->qslot[l] >= 0)
                fast_set(plan, out, (enum cpu_layout)l, v->qslot[l]);
        return MLO_OK;
    }
    enum cpu_layout layout = fast_layout(plan, in, false);
    int from, to = fast_new_slot(plan, out, false);
    if (to < 0)
        return mlo_error_nomem(err);
    MLO_TRY(fast_value(plan, in, layout, &from, err));
    MLO_TRY(fast_emit_quantize(plan, node, from, to, s.count, &q, err));
    fast_set(plan, out, layout, to);
out:
    return status;
}

/* Dequantizing waits until somebody needs the floats. */
enum mlo_status fast_lower_dequantize(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                      struct mlo_error *err)
{
    struct cpu_qparams q;
    struct fast_shape s;
    const struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    if (!mlo_node_is(node, "DequantizeLinear"))
        return MLO_OK;
    bool constant = true;
    for (int i = 0; i < node->input_count; i++)
        constant &= !node->inputs[i] || node->inputs[i]->constant;
    if (constant) { /* computed when asked for: fast_const_f32 */
        *done = true;
        return MLO_OK;
    }
    MLO_UNUSED(err);
    if (in->constant || !fast_qparams(node, &q) || !fast_shape(in, &s))
        return MLO_OK;
    const struct cpu_value *v = &plan->values[in->index];
    for (int l = 0; l < CPU_LAYOUTS; l++)
        if (v->slot[l] >= 0)
            fast_set_q(plan, out, (enum cpu_layout)l, v->slot[l], &q);
    *done = true;
    return MLO_OK;
}

static fast_lower_fn *const lowerings[] = {
    /* clang-format off */
    fast_lower_attention,
    fast_lower_spelled_norm,
    fast_lower_cast,
    fast_lower_dynamic_quantize,
    fast_lower_integer_product,
    fast_lower_table,
    fast_lower_packed,
    fast_lower_conv,
    fast_lower_gemm,
    fast_lower_pool,
    fast_lower_global_pool,
    fast_lower_composite,
    fast_lower_qadd,
    fast_lower_elementwise,
    fast_lower_softmax,
    fast_lower_reduce,
    fast_lower_layer_norm,
    fast_lower_copy,
    fast_lower_gather,
    fast_lower_transpose,
    fast_lower_view,
    fast_lower_quantize,
    fast_lower_dequantize,
    /* clang-format on */
};

/* What the subgraphs of a node read of the graph around them. */
static enum mlo_status bring_captured(struct mlo_plan *plan, const struct mlo_node *node,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count = mlo_node_captured(node, NULL, 0);
    struct mlo_value **values = calloc(count + 1, sizeof *values);
    int slot;
    if (!values)
        return mlo_error_nomem(err);
    count = mlo_node_captured(node, values, count);
    for (size_t i = 0; i < count; i++)
        if (!values[i]->constant)
            MLO_TRY(fast_value(plan, values[i], CPU_PLAIN, &slot, err));
out:
    free(values);
    return status;
}

/* An interpreted node reads rows; its inputs are brought there first. */
static enum mlo_status interpret(struct mlo_plan *plan, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int slot;
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !node->inputs[i]->constant)
            MLO_TRY(fast_value(plan, node->inputs[i], CPU_PLAIN, &slot, err));
    MLO_TRY(bring_captured(plan, node, err));
    MLO_TRY(cpu_lower_eval(plan, node, err));
    for (int i = 0; i < node->output_count; i++)
        if (node->outputs[i])
            fast_set(plan, node->outputs[i], CPU_PLAIN, cpu_value_plain(plan, node->outputs[i]));
out:
    return status;
}

static enum mlo_status lower_all(struct mlo_plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *g = plan->model->graph;
    for (int i = 0; i < g->value_count; i++) /* inputs and constants: equal layouts are known now */
        if (plan->values[i].slot[CPU_PLAIN] >= 0)
            fast_set(plan, g->values[i], CPU_PLAIN, plan->values[i].slot[CPU_PLAIN]);
    MLO_TRY(fast_fold_constants(plan, err));
    MLO_TRY(fast_find_attention(plan, err));
    MLO_TRY(fast_find_norm(plan, err));
    for (int n = 0; n < g->node_count; n++) {
        bool done = plan->done[n];
        for (size_t i = 0; !done && i < MLO_COUNT(lowerings); i++)
            MLO_TRY(lowerings[i](plan, g->nodes[n], &done, err));
        if (!done)
            MLO_TRY(interpret(plan, g->nodes[n], err));
    }
    for (int i = 0; i < g->output_count; i++)
        MLO_TRY(fast_value(plan, g->outputs[i], CPU_PLAIN, &plan->output_slots[i], err));
    for (size_t i = 0; i < plan->observed_count; i++)
        MLO_TRY(fast_value(plan, plan->observed[i], CPU_PLAIN, &plan->observed_slots[i], err));
out:
    return status;
}

enum mlo_status cpu_fast_lower(struct mlo_plan *plan, struct mlo_error *err)
{
    cpu_fast_init();
    int token = cpu_fast_enter();
    enum mlo_status status = lower_all(plan, err);
    if (status == MLO_OK)
        status = norm_label_half(plan, err);
    if (status == MLO_OK)
        status = fast_join_lines(plan, err);
    cpu_fast_leave(token);
    return status;
}
