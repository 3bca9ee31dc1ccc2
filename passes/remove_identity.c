/* Nodes whose output provably equals one of their inputs. */
#include <string.h>

#include "passes/passes_impl.h"

/* Returns the index of the input that the first output equals, or -1. Types are inferred. */
typedef int identity_fn(const struct mlo_node *node);

static const struct mlo_type *in_type(const struct mlo_node *node)
{
    return &node->inputs[0]->type;
}
static const struct mlo_type *out_type(const struct mlo_node *node)
{
    return &node->outputs[0]->type;
}

static int always(const struct mlo_node *node)
{
    MLO_UNUSED(node);
    return 0;
}

/* Sum, Max, Min, Mean and Concat of one input. */
static int single_input(const struct mlo_node *node)
{
    return node->input_count == 1 ? 0 : -1;
}

static int dropout(const struct mlo_node *node)
{
    if (node->version < 7)
        return mlo_node_attr_i(node, "is_test", 0) != 0 ? 0 : -1;
    if (node->version < 12 || !mlo_node_input(node, 2))
        return 0;
    const struct mlo_tensor *training = mlo_node_fixed(node, 2);
    return training && mlo_tensor_count(training) == 1 && mlo_tensor_get_i64(training, 0) == 0 ? 0 : -1;
}

static int same_dtype(const struct mlo_node *node)
{
    return in_type(node)->dtype != MLO_DTYPE_NONE &&
                   (int64_t)in_type(node)->dtype == mlo_node_attr_i(node, "to", -1)
               ? 0
               : -1;
}

/* Element count and order are kept, so it is enough to know all dims but one to be equal. */
static int same_shape(const struct mlo_node *node)
{
    const struct mlo_type *a = in_type(node), *b = out_type(node);
    if (a->rank < 0 || a->rank != b->rank)
        return -1;
    int unknown = 0;
    for (int i = 0; i < a->rank; i++)
        if (!mlo_dim_same(&a->dims[i], &b->dims[i])) {
            if (a->dims[i].value >= 0 && b->dims[i].value >= 0)
                return -1;
            unknown++;
        } else if (a->dims[i].value == 0) {
            return -1;
        }
    return unknown <= 1 ? 0 : -1;
}

static int transpose(const struct mlo_node *node)
{
    size_t count;
    const int64_t *perm = mlo_node_attr_ints(node, "perm", &count);
    if (!perm)
        return in_type(node)->rank == 0 || in_type(node)->rank == 1 ? 0 : -1;
    for (size_t i = 0; i < count; i++)
        if (perm[i] != (int64_t)i)
            return -1;
    return 0;
}

static int pad(const struct mlo_node *node)
{
    size_t count;
    const int64_t *pads = mlo_node_attr_ints(node, "pads", &count);
    if (!pads) {
        const struct mlo_tensor *t = mlo_node_fixed(node, 1);
        if (!t || t->dtype != MLO_INT64)
            return -1;
        pads = t->data;
        count = mlo_tensor_count(t);
    }
    for (size_t i = 0; i < count; i++)
        if (pads[i] != 0)
            return -1;
    return 0;
}

/* Expand to the shape that is there already. */
static int same_type(const struct mlo_node *node)
{
    return mlo_type_same(in_type(node), out_type(node)) ? 0 : -1;
}

static bool all_equal(const struct mlo_tensor *t, double wanted)
{
    if (!t || t->dtype == MLO_STRING)
        return false;
    size_t count = mlo_tensor_count(t);
    for (size_t i = 0; i < count; i++)
        if (mlo_tensor_get_f64(t, i) != wanted)
            return false;
    return count > 0;
}

/* The constant's dims are 1 or equal to the value's, so that broadcasting does not enlarge the value. */
static bool broadcasts_into(const struct mlo_tensor *k, const struct mlo_type *type)
{
    if (type->rank < k->rank)
        return false;
    for (int i = 0; i < k->rank; i++)
        if (k->dims[i] != 1 && k->dims[i] != type->dims[type->rank - k->rank + i].value)
            return false;
    return true;
}

static int neutral(const struct mlo_node *node, double element, bool commutes)
{
    for (int i = 1; i >= (commutes ? 0 : 1); i--) {
        const struct mlo_tensor *k = mlo_node_fixed(node, i);
        const struct mlo_value *other = mlo_node_input(node, 1 - i);
        if (k && other && !other->constant && all_equal(k, element) && broadcasts_into(k, &other->type))
            return 1 - i;
    }
    return -1;
}

static int add_zero(const struct mlo_node *node)
{
    return neutral(node, 0.0, true);
}
static int sub_zero(const struct mlo_node *node)
{
    return neutral(node, 0.0, false);
}
static int mul_one(const struct mlo_node *node)
{
    return neutral(node, 1.0, true);
}
static int div_one(const struct mlo_node *node)
{
    return neutral(node, 1.0, false);
}

static const struct {
    const char *op_type;
    identity_fn *find;
} rules[] = {
    {"Add", add_zero},     {"Cast", same_dtype},   {"Concat", single_input}, {"Div", div_one},
    {"Dropout", dropout},  {"Expand", same_type},  {"Flatten", same_shape},  {"Identity", always},
    {"Max", single_input}, {"Mean", single_input}, {"Min", single_input},    {"Mul", mul_one},
    {"Pad", pad},          {"Pow", div_one},       {"Reshape", same_shape},  {"Squeeze", same_shape},
    {"Sub", sub_zero},     {"Sum", single_input},  {"Transpose", transpose}, {"Unsqueeze", same_shape},
};

static int find_identity(const struct mlo_node *node)
{
    if (!mlo_node_input(node, 0) || node->output_count < 1 || !node->outputs[0])
        return -1;
    for (size_t i = 0; i < MLO_COUNT(rules); i++)
        if (mlo_node_is(node, rules[i].op_type))
            return mlo_node_only_first_output(node) ? rules[i].find(node) : -1;
    return -1;
}

enum mlo_status mlo_pass_remove_identity(struct mlo_model *model, struct mlo_pass_context *ctx,
                                         struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        bool done;
        int at = find_identity(node);
        if (at < 0)
            continue;
        enum mlo_status status = mlo_pass_bypass(node, node->inputs[at], &done, err);
        if (status != MLO_OK)
            return status;
        if (!done) {
            mlo_pass_note(ctx, node->name, "left: it gives a graph output its name");
            continue;
        }
        ctx->changes++;
        n--;
    }
    mlo_graph_remove_unused_values(graph);
    return MLO_OK;
}
