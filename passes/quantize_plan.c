/* Which nodes run in integers and which values therefore get a QuantizeLinear/DequantizeLinear pair, by the
 * rules of the target (targets.c).
 *
 * It starts from the weighted nodes (Conv, Gemm, MatMul…) whose weights are constant: their input 0 is wanted
 * in integers, and where the target asks for it their output too. From there it goes against the data flow:
 * what makes a wanted value, and can itself run in integers (a residual Add, pooling, anything that only
 * moves values), wants its own inputs in integers too. An activation that fuses into the node before it is
 * passed over: the pair stands behind the activation. */
#include <stdint.h>
#include <stdlib.h>
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

int mlo_quantize_channel_axis(const struct mlo_node *node, int rank)
{
    if (mlo_node_is(node, "Conv"))
        return 0;
    if (mlo_node_is(node, "ConvTranspose"))
        return 1;
    if (mlo_node_is(node, "Gemm"))
        return mlo_node_attr_i(node, "transB", 0) ? 0 : 1;
    return rank - 1;
}

int mlo_quantize_weight_axis(const struct mlo_node *node)
{
    return mlo_quantize_channel_axis(node, mlo_node_fixed(node, 1)->rank);
}

/* Why input i is no constant that nobody can replace. */
static const char *open_because(const struct mlo_node *node, int i, const char *plain, const char *listed)
{
    const struct mlo_value *value = mlo_node_input(node, i);
    return value && value->constant ? listed : plain;
}

/* Why a Conv's or Gemm's input 2 cannot become an int32 vector; NULL when it can. */
static const char *bias_obstacle(const struct mlo_node *node)
{
    if (!mlo_node_input(node, 2))
        return NULL;
    const struct mlo_tensor *bias = mlo_node_fixed(node, 2), *w = mlo_node_fixed(node, 1);
    if (!bias)
        return open_because(node, 2, "its bias is not constant",
                            "its bias is a graph input too, which callers may replace; freeze_initializers "
                            "makes it a constant");
    if (bias->dtype != MLO_FLOAT32)
        return "its bias is not float32";
    int64_t channels = w->dims[mlo_quantize_weight_axis(node)], count = (int64_t)mlo_tensor_count(bias);
    if (mlo_node_is(node, "ConvTranspose"))
        channels *= mlo_node_attr_i(node, "group", 1);
    if (count != 1 && (count != channels || bias->dims[bias->rank - 1] != channels))
        return "its bias is not one number per output channel";
    return mlo_tensor_is_finite(bias) ? NULL : "its bias holds NaN or infinity";
}

/* A product of two values that the model computes: both can be integers. */
static bool is_product(const struct mlo_node *node)
{
    return mlo_node_is(node, "MatMul") && is_activation_value(mlo_node_input(node, 0)) &&
           is_activation_value(mlo_node_input(node, 1));
}

/* Why a node stays in float; NULL when it can run in integers. */
static const char *obstacle(const struct mlo_node *node, enum mlo_target_rule rule)
{
    bool conv = mlo_node_is(node, "Conv") || mlo_node_is(node, "ConvTranspose");
    bool gemm = mlo_node_is(node, "Gemm");
    if (!conv && !gemm && !mlo_node_is(node, "MatMul"))
        return "there is no integer form of this op";
    if (rule != MLO_RULE_WEIGHTED && rule != MLO_RULE_WEIGHTED_OUT && rule != MLO_RULE_PRODUCT)
        return "the target has no integer form of this op";
    if (rule == MLO_RULE_PRODUCT && is_product(node))
        return NULL;
    const struct mlo_value *x = mlo_node_input(node, 0);
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    if (!w)
        return open_because(node, 1, "its weights are not constant",
                            "its weights are a graph input too, which callers may replace; the option "
                            "freeze_initializers of the step optimize makes them constants");
    if (!x || x->constant)
        return "its input is constant";
    if (x->type.dtype != MLO_FLOAT32 || w->dtype != MLO_FLOAT32)
        return "it does not compute in float32";
    if (conv ? w->rank < 3 : w->rank < 2)
        return "its weights have too few dimensions";
    if (mlo_tensor_count(w) == 0)
        return "its weights are empty";
    if (!mlo_tensor_is_finite(w))
        return "its weights hold NaN or infinity";
    if (gemm && mlo_node_attr_i(node, "transA", 0) != 0)
        return "it transposes its input";
    return conv || gemm ? bias_obstacle(node) : NULL;
}

/* By the options, it reads no integers. */
static bool is_kept(const struct mlo_quantize_settings *settings, const struct mlo_node *node)
{
    return mlo_pass_is_named(settings->exclude, node->name) || mlo_pass_is_named(settings->half, node->name);
}

static bool is_noisy(const struct mlo_quantize_settings *settings, const struct mlo_node *node)
{
    return settings->noise && settings->noise[node->index].value;
}

/* --- going back from wanted values ------------------------------------------------------------- */

/* What a plan is made from, and where it stands. */
struct walk {
    const struct mlo_graph *graph;
    const struct mlo_quantize_settings *settings;
    struct mlo_quantize_plan *plan;
    int *stack, depth; /* wanted values whose producers have not been looked at */
    bool *integer;     /* by node index: it reads integers */
};

/* Whether an activation disappears into the node that makes its input. */
static bool fuses(const struct mlo_node *activation)
{
    static const char *const takers[] = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"};
    const struct mlo_node *before = mlo_node_producer(activation, 0);
    if (!before || mlo_value_sole_user(activation->inputs[0]) != activation)
        return false;
    for (size_t i = 0; i < MLO_COUNT(takers); i++)
        if (mlo_node_is(before, takers[i]))
            return true;
    return false;
}

static bool is_fused(const struct walk *walk, const struct mlo_node *node)
{
    return mlo_target_rule(walk->settings->target, node) == MLO_RULE_FUSED && fuses(node);
}

/* The inputs of `node` whose values are moved or combined: true when they want to be integer because the
 * output is. *united: with its parameters. */
static bool wants_inputs(const struct walk *walk, const struct mlo_node *node, bool *united)
{
    enum mlo_target_rule rule = mlo_target_rule(walk->settings->target, node);
    *united = rule == MLO_RULE_UNITED;
    return rule == MLO_RULE_OWN || rule == MLO_RULE_UNITED || (rule == MLO_RULE_FUSED && !fuses(node));
}

/* Whether all inputs count, not only the first. */
static bool combines(const struct mlo_node *node)
{
    return mlo_node_is(node, "Add") || mlo_node_is(node, "Mul") || mlo_node_is(node, "Concat");
}

static bool inputs_are_float(const struct mlo_node *node)
{
    for (int i = 0; i < (combines(node) ? node->input_count : 1); i++)
        if (!is_activation_value(mlo_node_input(node, i)))
            return false;
    return node->input_count > 0;
}

/* The node whose inputs decide: behind a fused activation, the one before it. */
static const struct mlo_node *effective_producer(const struct walk *walk, const struct mlo_value *value)
{
    const struct mlo_node *node = value->producer;
    return node && is_fused(walk, node) ? mlo_node_producer(node, 0) : node;
}

static void choose(struct walk *walk, const struct mlo_value *value)
{
    struct mlo_quantize_value *v = &walk->plan->values[value->index];
    if (v->chosen)
        return;
    v->chosen = true;
    walk->stack[walk->depth++] = value->index;
}

/* Wants the value that leaves a weighted node, behind a fused activation, in integers. */
static void choose_output(struct walk *walk, const struct mlo_node *node, struct mlo_pass_context *ctx)
{
    const struct mlo_value *y = node->outputs[0];
    const struct mlo_node *user = mlo_value_sole_user(y);
    if (user && is_fused(walk, user))
        y = user->outputs[0];
    if (!y->is_output)
        choose(walk, y);
    else if (ctx)
        mlo_pass_note(ctx, node->name,
                      "%s %s computes it in float: '%s' is an output of the model, which stays float32",
                      node->op_type, walk->settings->target->name, y->name);
}

/* Whether the node could run in integers with constant weights: also where it is kept from it, so that what
 * an Add wants does not depend on that. */
static bool accumulates(const struct walk *walk, const struct mlo_node *node)
{
    return node->op && (node->op->flags & MLO_OP_WEIGHTED) && mlo_node_fixed(node, 1) &&
           !obstacle(node, mlo_target_rule(walk->settings->target, node));
}

/* The input of a residual Add that comes straight from the integer node which can add the other one to its
 * accumulators: the later one when both do. -1: none does. */
static int accumulating_input(const struct walk *walk, const struct mlo_node *add)
{
    int found = -1;
    for (int i = 0; i < add->input_count; i++) {
        const struct mlo_node *before = add->inputs[i]->producer;
        if (!before || mlo_value_sole_user(add->inputs[i]) != add || !accumulates(walk, before))
            continue;
        if (found < 0 || before->index > add->inputs[found]->producer->index)
            found = i;
    }
    return found;
}

static void spread(struct walk *walk)
{
    struct mlo_quantize_plan *plan = walk->plan;
    while (walk->depth > 0) {
        const struct mlo_value *value = walk->graph->values[walk->stack[--walk->depth]];
        const struct mlo_node *node = effective_producer(walk, value);
        bool united;
        if (!node || node->outputs[0] == NULL || is_noisy(walk->settings, node) ||
            !wants_inputs(walk, node, &united) || !inputs_are_float(node) || is_kept(walk->settings, node))
            continue;
        int left =
            walk->settings->skip_only && mlo_node_is(node, "Add") ? accumulating_input(walk, node) : -1;
        walk->integer[node->index] = true;
        for (int i = 0; i < (combines(node) ? node->input_count : 1); i++) {
            if (i == left)
                continue;
            choose(walk, node->inputs[i]);
            if (united)
                unite(plan, node->inputs[i]->index, value->index);
        }
    }
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const struct mlo_node *const *)a,
              y = (uintptr_t) * (const struct mlo_node *const *)b;
    return (x > y) - (x < y);
}

bool mlo_quantize_is_integer(const struct mlo_quantize_plan *plan, const struct mlo_node *node)
{
    return plan->integer_count > 0 && bsearch(&node, plan->integer, (size_t)plan->integer_count,
                                              sizeof(struct mlo_node *), by_address) != NULL;
}

static enum mlo_status list_integer(const struct walk *walk, struct mlo_error *err)
{
    struct mlo_quantize_plan *plan = walk->plan;
    plan->integer =
        mlo_arena_calloc(plan->arena, (size_t)walk->graph->node_count + 1, sizeof(struct mlo_node *));
    if (!plan->integer)
        return mlo_error_nomem(err);
    for (int n = 0; n < walk->graph->node_count; n++)
        if (walk->integer[n])
            plan->integer[plan->integer_count++] = walk->graph->nodes[n];
    qsort(plan->integer, (size_t)plan->integer_count, sizeof(struct mlo_node *), by_address);
    return MLO_OK;
}

/* Why noise keeps the node in float, in the plan's arena. */
static const char *noise_why(const struct walk *walk, const struct mlo_node *node)
{
    char text[320];
    mlo_quantize_noise_text(walk->settings, node->index, text, sizeof text);
    const char *kept = mlo_arena_strdup(walk->plan->arena, text);
    return kept ? kept : "of noise in what it reads";
}

/* What a node that multiplies wants; *why: what keeps it in float, or NULL. */
static void start_from(struct walk *walk, struct mlo_node *node, struct mlo_pass_context *ctx,
                       const char **why)
{
    enum mlo_target_rule rule = mlo_target_rule(walk->settings->target, node);
    *why = mlo_pass_is_named(walk->settings->half, node->name)      ? "the options want it in float16"
           : mlo_pass_is_named(walk->settings->exclude, node->name) ? "it is excluded by the options"
                                                                    : obstacle(node, rule);
    if (!*why && is_noisy(walk->settings, node))
        *why = noise_why(walk, node);
    if (*why) {
        if (ctx)
            mlo_pass_note(ctx, node->name, "%s stays in float: %s", node->op_type, *why);
        return;
    }
    walk->integer[node->index] = true;
    choose(walk, node->inputs[0]);
    if (mlo_node_fixed(node, 1))
        walk->plan->weighted[walk->plan->weighted_count++] = node;
    else
        choose(walk, node->inputs[1]);
    if (rule == MLO_RULE_WEIGHTED_OUT)
        choose_output(walk, node, ctx);
}

enum mlo_status mlo_quantize_plan_make(const struct mlo_graph *graph,
                                       const struct mlo_quantize_settings *settings, struct mlo_arena *arena,
                                       struct mlo_pass_context *ctx, struct mlo_quantize_plan *plan,
                                       struct mlo_error *err)
{
    size_t count = (size_t)graph->value_count + 1, nodes = (size_t)graph->node_count + 1;
    *plan = (struct mlo_quantize_plan){.arena = arena, .value_count = graph->value_count};
    plan->values = mlo_arena_calloc(arena, count, sizeof *plan->values);
    plan->weighted = mlo_arena_calloc(arena, nodes, sizeof(struct mlo_node *));
    struct walk walk = {graph, settings, plan, .stack = mlo_arena_calloc(arena, count, sizeof(int)),
                        .integer = mlo_arena_calloc(arena, nodes, sizeof(bool))};
    if (!plan->values || !plan->weighted || !walk.stack || !walk.integer)
        return mlo_error_nomem(err);
    if (settings->refusal) {
        (void)mlo_error_set(err, MLO_EINVAL, "the target %s takes no %s", settings->target->name,
                            settings->refused);
        mlo_error_hint(err, "%s", settings->refusal);
        return MLO_EINVAL;
    }
    enum mlo_status status = mlo_pass_check_named(graph, settings->exclude, err);
    if (status == MLO_OK)
        status = mlo_pass_check_named(graph, settings->half, err);
    if (status != MLO_OK)
        return status;
    for (int v = 0; v < graph->value_count; v++)
        plan->values[v].parent = v;

    const struct mlo_node *left = NULL;
    const char *left_why = NULL;
    bool any = false;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        const char *why;
        if (!node->op || !(node->op->flags & MLO_OP_WEIGHTED))
            continue;
        start_from(&walk, node, ctx, &why);
        any = any || !why;
        if (why && !left) {
            left = node;
            left_why = why;
        }
    }
    if (!any) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the model has no node that can be quantized");
        if (left)
            mlo_error_hint(err, "'%s' (%s) stays in float: %s", left->name, left->op_type, left_why);
        else
            mlo_error_hint(err, "it has no Conv, Gemm or MatMul at all");
        return status;
    }
    spread(&walk);
    return list_integer(&walk, err);
}
