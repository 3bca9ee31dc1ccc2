/* Which nodes run in integers and which values therefore get a QuantizeLinear/DequantizeLinear pair.
 *
 * It starts from the weighted nodes (Conv, Gemm, MatMul) whose weights are constant: their input 0 is wanted
 * in integers. From there it goes against the data flow: what makes a wanted value, and can itself run in
 * integers (a residual Add, pooling, anything that only moves values), wants its own inputs in integers too.
 * An activation that fuses into the node before it is passed over: the pair stands behind the activation. */
#include <stdio.h>
#include <string.h>

#include "passes/quantize_impl.h"

int mlo_quantize_root(struct mlo_quantize_plan *plan, int i)
{
    while (plan->values[i].parent != i) {
        plan->values[i].parent = plan->values[plan->values[i].parent].parent;
        i = plan->values[i].parent;
    }
    return i;
}

/* The smaller index becomes the root, so that it does not depend on the order of unions. */
static void unite(struct mlo_quantize_plan *plan, int a, int b)
{
    a = mlo_quantize_root(plan, a);
    b = mlo_quantize_root(plan, b);
    plan->values[MLO_MAX(a, b)].parent = MLO_MIN(a, b);
}

static bool is_activation_value(const struct mlo_value *value)
{
    return value && !value->constant && value->type.dtype == MLO_FLOAT32;
}

/* --- weighted nodes ---------------------------------------------------------------------------- */

int mlo_quantize_weight_axis(const struct mlo_node *node)
{
    if (mlo_node_is(node, "Conv"))
        return 0;
    if (mlo_node_is(node, "Gemm"))
        return mlo_node_attr_i(node, "transB", 0) ? 0 : 1;
    return mlo_node_fixed(node, 1)->rank - 1;
}

static bool all_finite(const struct mlo_tensor *t)
{
    const float *x = t->data;
    size_t count = mlo_tensor_count(t);
    for (size_t i = 0; i < count; i++)
        if (!(x[i] - x[i] == 0.0f))
            return false;
    return true;
}

/* Why a Conv's or Gemm's input 2 cannot become an int32 vector; NULL when it can. */
static const char *bias_obstacle(const struct mlo_node *node)
{
    if (!mlo_node_input(node, 2))
        return NULL;
    const struct mlo_tensor *bias = mlo_node_fixed(node, 2), *w = mlo_node_fixed(node, 1);
    if (!bias)
        return "its bias is not constant";
    if (bias->dtype != MLO_FLOAT32)
        return "its bias is not float32";
    int64_t channels = w->dims[mlo_quantize_weight_axis(node)], count = (int64_t)mlo_tensor_count(bias);
    if (count != 1 && (count != channels || bias->dims[bias->rank - 1] != channels))
        return "its bias is not one number per output channel";
    return all_finite(bias) ? NULL : "its bias holds NaN or infinity";
}

/* Why a node stays in float; NULL when it can run in integers. */
static const char *obstacle(const struct mlo_node *node)
{
    bool conv = mlo_node_is(node, "Conv"), gemm = mlo_node_is(node, "Gemm");
    if (!conv && !gemm && !mlo_node_is(node, "MatMul"))
        return "there is no integer form of this op";
    const struct mlo_value *x = mlo_node_input(node, 0);
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    if (!w)
        return "its weights are not constant";
    if (!x || x->constant)
        return "its input is constant";
    if (x->type.dtype != MLO_FLOAT32 || w->dtype != MLO_FLOAT32)
        return "it does not compute in float32";
    if (conv ? w->rank < 3 : w->rank < 2)
        return "its weights have too few dimensions";
    if (mlo_tensor_count(w) == 0)
        return "its weights are empty";
    if (!all_finite(w))
        return "its weights hold NaN or infinity";
    if (gemm && mlo_node_attr_i(node, "transA", 0) != 0)
        return "it transposes its input";
    return conv || gemm ? bias_obstacle(node) : NULL;
}

static bool is_excluded(const struct mlo_quantize_settings *settings, const struct mlo_node *node)
{
    size_t i;
    json_t *name;
    json_array_foreach((json_t *)settings->exclude, i, name)
    {
        if (strcmp(json_string_value(name), node->name) == 0)
            return true;
    }
    return false;
}

static enum mlo_status check_excluded(const struct mlo_graph *graph,
                                      const struct mlo_quantize_settings *settings, struct mlo_arena *arena,
                                      struct mlo_error *err)
{
    size_t i;
    json_t *item;
    const char **names = mlo_arena_calloc(arena, (size_t)graph->node_count + 1, sizeof *names);
    if (!names)
        return mlo_error_nomem(err);
    for (int n = 0; n < graph->node_count; n++)
        names[n] = graph->nodes[n]->name;
    json_array_foreach((json_t *)settings->exclude, i, item)
    {
        const char *wanted = json_string_value(item);
        int n = 0;
        while (n < graph->node_count && strcmp(names[n], wanted) != 0)
            n++;
        if (n < graph->node_count)
            continue;
        mlo_error_set(err, MLO_EINVAL, "the model has no node '%s' to exclude", wanted);
        mlo_error_where(err, "option 'exclude'");
        const char *nearest = mlo_suggest(wanted, names, (size_t)graph->node_count);
        if (nearest)
            mlo_error_hint(err, "did you mean '%s'?", nearest);
        return MLO_EINVAL;
    }
    return MLO_OK;
}

/* --- going back from wanted values ------------------------------------------------------------- */

enum rule_kind {
    RULE_OWN,       /* all float inputs in integers, each with its own parameters */
    RULE_UNITED,    /* the same, with the parameters of the output */
    RULE_ACTIVATION /* fuses into the node before it; else like RULE_OWN */
};
static const struct {
    const char *op_type;
    enum rule_kind kind;
} rules[] = {
    {"Add", RULE_OWN},         {"AveragePool", RULE_OWN},       {"Clip", RULE_ACTIVATION},
    {"Concat", RULE_UNITED},   {"GlobalAveragePool", RULE_OWN}, {"ReduceMean", RULE_OWN},
    {"Relu", RULE_ACTIVATION},
};

/* Whether an activation disappears into the node that makes its input. */
static bool fuses(const struct mlo_node *activation)
{
    const struct mlo_node *before = mlo_node_producer(activation, 0);
    return before && mlo_value_sole_user(activation->inputs[0]) == activation &&
           (mlo_node_is(before, "Conv") || mlo_node_is(before, "Gemm") || mlo_node_is(before, "MatMul") ||
            mlo_node_is(before, "Add"));
}

/* The inputs of `node` whose values are moved or combined: true when they want to be integer because the
 * output is. *united: with its parameters. */
static bool wants_inputs(const struct mlo_node *node, bool *united)
{
    *united = false;
    for (size_t i = 0; i < MLO_COUNT(rules); i++) {
        if (!mlo_node_is(node, rules[i].op_type))
            continue;
        if (rules[i].kind == RULE_ACTIVATION)
            return !fuses(node);
        *united = rules[i].kind == RULE_UNITED;
        return true;
    }
    *united = node->op && (node->op->flags & MLO_OP_RANGE_KEEP);
    return *united;
}

static bool all_inputs_float(const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        if (!is_activation_value(node->inputs[i]))
            return false;
    return node->input_count > 0;
}

/* The node whose inputs decide: behind a fused activation, the one before it. */
static const struct mlo_node *effective_producer(const struct mlo_value *value)
{
    const struct mlo_node *node = value->producer;
    if (node && (mlo_node_is(node, "Relu") || mlo_node_is(node, "Clip")) && fuses(node))
        return mlo_node_producer(node, 0);
    return node;
}

static void choose(struct mlo_quantize_plan *plan, const struct mlo_value *value, int *stack, int *depth)
{
    struct mlo_quantize_value *v = &plan->values[value->index];
    if (v->chosen)
        return;
    v->chosen = true;
    stack[(*depth)++] = value->index;
}

static bool is_planned(const struct mlo_quantize_plan *plan, const struct mlo_node *node)
{
    for (int i = 0; i < plan->weighted_count; i++)
        if (plan->weighted[i] == node)
            return true;
    return false;
}

/* The input of a residual Add that comes straight from the integer node which can add the other one to its
 * accumulators: the later one when both do. -1: none does. */
static int accumulating_input(const struct mlo_quantize_plan *plan, const struct mlo_node *add)
{
    int found = -1;
    for (int i = 0; i < add->input_count; i++) {
        const struct mlo_node *before = add->inputs[i]->producer;
        if (!before || mlo_value_sole_user(add->inputs[i]) != add || !is_planned(plan, before))
            continue;
        if (found < 0 || before->index > add->inputs[found]->producer->index)
            found = i;
    }
    return found;
}

static void spread(const struct mlo_graph *graph, const struct mlo_quantize_settings *settings,
                   struct mlo_quantize_plan *plan, int *stack, int *depth)
{
    while (*depth > 0) {
        const struct mlo_value *value = graph->values[stack[--*depth]];
        const struct mlo_node *node = effective_producer(value);
        bool united;
        if (!node || node->outputs[0] == NULL || !wants_inputs(node, &united))
            continue;
        bool many = mlo_node_is(node, "Add") || mlo_node_is(node, "Concat");
        if (many ? !all_inputs_float(node) : !is_activation_value(mlo_node_input(node, 0)))
            continue;
        int left = settings->skip_only && mlo_node_is(node, "Add") ? accumulating_input(plan, node) : -1;
        for (int i = 0; i < (many ? node->input_count : 1); i++) {
            if (i == left)
                continue;
            choose(plan, node->inputs[i], stack, depth);
            if (united)
                unite(plan, node->inputs[i]->index, value->index);
        }
    }
}

enum mlo_status mlo_quantize_plan_make(const struct mlo_graph *graph,
                                       const struct mlo_quantize_settings *settings, struct mlo_arena *arena,
                                       struct mlo_pass_context *ctx, struct mlo_quantize_plan *plan,
                                       struct mlo_error *err)
{
    size_t count = (size_t)graph->value_count + 1;
    *plan = (struct mlo_quantize_plan){.arena = arena, .value_count = graph->value_count};
    plan->values = mlo_arena_calloc(arena, count, sizeof *plan->values);
    plan->weighted = mlo_arena_calloc(arena, (size_t)graph->node_count + 1, sizeof(struct mlo_node *));
    int *stack = mlo_arena_calloc(arena, count, sizeof *stack), depth = 0;
    if (!plan->values || !plan->weighted || !stack)
        return mlo_error_nomem(err);
    enum mlo_status status = check_excluded(graph, settings, arena, err);
    if (status != MLO_OK)
        return status;
    for (int v = 0; v < graph->value_count; v++)
        plan->values[v].parent = v;

    const struct mlo_node *left = NULL;
    const char *left_why = NULL;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        if (!node->op || !(node->op->flags & MLO_OP_WEIGHTED))
            continue;
        const char *why = is_excluded(settings, node) ? "it is excluded by the options" : obstacle(node);
        if (why) {
            left = left ? left : node;
            left_why = left_why ? left_why : why;
            if (ctx)
                mlo_pass_note(ctx, node->name, "%s stays in float: %s", node->op_type, why);
            continue;
        }
        plan->weighted[plan->weighted_count++] = node;
        choose(plan, node->inputs[0], stack, &depth);
    }
    if (plan->weighted_count == 0) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the model has no node that can be quantized");
        if (left)
            mlo_error_hint(err, "'%s' (%s) stays in float: %s", left->name, left->op_type, left_why);
        else
            mlo_error_hint(err, "it has no Conv, Gemm or MatMul at all");
        return status;
    }
    spread(graph, settings, plan, stack, &depth);
    return MLO_OK;
}
