/* Rules of ops that compute index by index, normalise or pool: axes stay where they are. */
#include "passes/prune_impl.h"

static void same(struct prune *p, const struct mlo_node *node)
{
    mlo_prune_link_all(p, node, mlo_node_input(node, 0), node->outputs[0]);
    for (int i = 1; i < node->output_count; i++) /* the mask of a Dropout */
        mlo_prune_link_all(p, node, mlo_node_input(node, 0), node->outputs[i]);
}

/* Residual sums, gates (squeeze and excitation, GLU), slopes of a PRelu: index by index after broadcasting.
 */
static void elementwise(struct prune *p, const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        mlo_prune_broadcast(p, node, node->inputs[i], node->outputs[0]);
}

static int axis_of(const struct mlo_node *node, int64_t fallback)
{
    int64_t axis = mlo_node_attr_i(node, "axis", fallback);
    int rank = mlo_prune_rank(node->inputs[0]);
    return (int)(axis < 0 ? axis + rank : axis);
}

/* One number of each index depends on all along the axis; up to opset 12 along those behind it too. */
static void softmax(struct prune *p, const struct mlo_node *node)
{
    static const char WHY[] = "Softmax compares all along the axis";
    int axis = axis_of(node, node->version < 13 ? 1 : -1);
    same(p, node);
    if (node->version < 13)
        mlo_prune_fix_from(p, node, node->outputs[0], axis, WHY);
    else
        mlo_prune_fix_axis(p, node, node->outputs[0], axis, WHY);
}

static void layer_norm(struct prune *p, const struct mlo_node *node)
{
    mlo_prune_link_all(p, node, node->inputs[0], node->outputs[0]);
    mlo_prune_fix_from(p, node, node->outputs[0], axis_of(node, -1),
                       "LayerNormalization takes its mean over all of the axis: the group stays whole");
    for (int i = 1; i < node->input_count; i++) /* which a constant of another node may be too */
        mlo_prune_fix_value(p, node, node->inputs[i], "it scales or shifts what LayerNormalization makes");
    for (int i = 1; i < node->output_count; i++)
        mlo_prune_fix_value(p, node, node->outputs[i], "it is a mean of LayerNormalization");
}

static void batch_norm(struct prune *p, const struct mlo_node *node)
{
    for (int i = 1; i < node->output_count; i++)
        if (node->outputs[i]) {
            mlo_prune_fix_node(p, node, "the BatchNormalization is in the form of training");
            return;
        }
    mlo_prune_link_all(p, node, node->inputs[0], node->outputs[0]);
    for (int i = 1; i < node->input_count; i++)
        mlo_prune_link(p, node, node->inputs[i], 0, node->outputs[0], 1);
}

static void instance_norm(struct prune *p, const struct mlo_node *node)
{
    batch_norm(p, node);
    mlo_prune_fix_from(p, node, node->outputs[0], 2, "InstanceNormalization takes means over it");
}

/* Channels stay, what lies behind them is another size. */
static void pool(struct prune *p, const struct mlo_node *node)
{
    static const char WHY[] = "it is a spatial axis";
    const struct mlo_value *x = node->inputs[0];
    for (int i = 0; i < node->output_count; i++) {
        const struct mlo_value *y = node->outputs[i];
        if (i > 0 && y && (y->use_count > 0 || y->is_output)) { /* positions count over all channels */
            mlo_prune_fix_node(p, node, "the positions that it returns count over the channels");
            return;
        }
        if (!y)
            continue;
        mlo_prune_link(p, node, x, 0, y, 0);
        mlo_prune_link(p, node, x, 1, y, 1);
        mlo_prune_fix_from(p, node, y, 2, WHY);
    }
    mlo_prune_fix_from(p, node, x, 2, WHY);
}

static void resize(struct prune *p, const struct mlo_node *node)
{
    bool old = mlo_node_is(node, "Upsample") || node->version < 11;
    if (!mlo_node_fixed(node, old ? 1 : 2) || (!old && mlo_node_input(node, 3)) ||
        mlo_node_attr(node, "axes")) {
        mlo_prune_fix_node(p, node, "it resizes to sizes that are not told by constant scales of all axes");
        return;
    }
    pool(p, node);
}

static const struct prune_rule ROWS[] = {
    /* one input */
    {"Abs", same, NULL},
    {"Cast", same, NULL},
    {"Ceil", same, NULL},
    {"Celu", same, NULL},
    {"Clip", same, NULL},
    {"Dropout", same, NULL},
    {"Elu", same, NULL},
    {"Erf", same, NULL},
    {"Exp", same, NULL},
    {"Floor", same, NULL},
    {"Gelu", same, NULL},
    {"HardSigmoid", same, NULL},
    {"HardSwish", same, NULL},
    {"Identity", same, NULL},
    {"LeakyRelu", same, NULL},
    {"Log", same, NULL},
    {"Mish", same, NULL},
    {"Neg", same, NULL},
    {"Not", same, NULL},
    {"Reciprocal", same, NULL},
    {"Relu", same, NULL},
    {"Round", same, NULL},
    {"Selu", same, NULL},
    {"Shrink", same, NULL},
    {"Sigmoid", same, NULL},
    {"Sign", same, NULL},
    {"Softplus", same, NULL},
    {"Softsign", same, NULL},
    {"Sqrt", same, NULL},
    {"Tanh", same, NULL},
    {"ThresholdedRelu", same, NULL},
    /* several, broadcast */
    {"Add", elementwise, NULL},
    {"Div", elementwise, NULL},
    {"Equal", elementwise, NULL},
    {"Greater", elementwise, NULL},
    {"Less", elementwise, NULL},
    {"Max", elementwise, NULL},
    {"Mean", elementwise, NULL},
    {"Min", elementwise, NULL},
    {"Mul", elementwise, NULL},
    {"PRelu", elementwise, NULL},
    {"Pow", elementwise, NULL},
    {"Sub", elementwise, NULL},
    {"Sum", elementwise, NULL},
    {"Where", elementwise, NULL},
    /* normalisation */
    {"BatchNormalization", batch_norm, NULL},
    {"InstanceNormalization", instance_norm, NULL},
    {"LayerNormalization", layer_norm, NULL},
    {"LogSoftmax", softmax, NULL},
    {"Softmax", softmax, NULL},
    /* windows */
    {"AveragePool", pool, NULL},
    {"GlobalAveragePool", pool, NULL},
    {"GlobalMaxPool", pool, NULL},
    {"MaxPool", pool, NULL},
    {"Resize", resize, NULL},
    {"Upsample", resize, NULL},
};
const struct prune_rules mlo_prune_rules_plain = {ROWS, MLO_COUNT(ROWS)};
