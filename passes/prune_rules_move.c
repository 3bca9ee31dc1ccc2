/* Rules of ops that move, join, cut or sum up axes. */
#include "passes/prune_impl.h"

static int64_t wrap(int64_t axis, int rank)
{
    return axis < 0 ? axis + rank : axis;
}

static void transpose(struct prune *p, const struct mlo_node *node)
{
    size_t count;
    const int64_t *perm = mlo_node_attr_ints(node, "perm", &count);
    int rank = node->inputs[0]->type.rank;
    if (node->outputs[0]->type.rank != rank || (perm && (int)count != rank)) {
        mlo_prune_fix_node(p, node, "its axes are not known");
        return;
    }
    for (int i = 0; i < rank; i++)
        mlo_prune_link(p, node, node->inputs[0], perm ? (int)wrap(perm[i], rank) : rank - 1 - i,
                       node->outputs[0], i);
}

/* The axis is made of those of the inputs, one behind the other. */
static void concat(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *y = node->outputs[0];
    int rank = y->type.rank;
    int axis = (int)wrap(mlo_node_attr_i(node, "axis", 1), rank);
    int64_t at = 0, total = mlo_prune_dim(y, axis);
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *x = node->inputs[i];
        int64_t size = mlo_prune_dim(x, axis);
        if (mlo_prune_rank(x) != rank || size < 0 || total < 0) {
            mlo_prune_fix_node(p, node, "the sizes that a Concat joins are not known");
            return;
        }
        for (int d = 0; d < rank; d++)
            if (d != axis)
                mlo_prune_link(p, node, x, d, y, d);
        for (int64_t k = 0; k < size && at < total; k++)
            mlo_prune_join(p, x, axis, k, y, axis, at++);
    }
}

static void split(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *x = node->inputs[0];
    int rank = x->type.rank;
    int axis = (int)wrap(mlo_node_attr_i(node, "axis", 0), rank);
    int64_t at = 0, total = mlo_prune_dim(x, axis);
    if (mlo_node_input(node, 1) && !mlo_node_fixed(node, 1)) {
        mlo_prune_fix_node(p, node, "where it splits is computed while it runs");
        return;
    }
    for (int i = 0; i < node->output_count; i++) {
        const struct mlo_value *y = node->outputs[i];
        int64_t size = mlo_prune_dim(y, axis);
        if (!y || y->type.rank != rank || size < 0 || total < 0) {
            mlo_prune_fix_node(p, node, "the sizes that a Split makes are not known");
            return;
        }
        for (int d = 0; d < rank; d++)
            if (d != axis)
                mlo_prune_link(p, node, x, d, y, d);
        for (int64_t k = 0; k < size && at < total; k++)
            mlo_prune_join(p, y, axis, k, x, axis, at++);
    }
}

/* Says the sizes as they are now; those that it states by being equal may no longer be. */
static enum mlo_status fix_split(const struct prune *p, struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor sizes = {0};
    int axis = (int)wrap(mlo_node_attr_i(node, "axis", 0), node->inputs[0]->type.rank);
    int64_t count = node->output_count;
    bool changed = false;
    MLO_TRY(mlo_tensor_init(&sizes, MLO_INT64, 1, &count, err));
    int64_t *d = sizes.data;
    for (int i = 0; i < node->output_count; i++) {
        d[i] = mlo_prune_kept(p, node->outputs[i], axis, NULL);
        changed = changed || d[i] != mlo_prune_dim(node->outputs[i], axis);
    }
    if (!changed)
        goto out;
    if (node->version >= 13) {
        mlo_node_unset(node, "num_outputs");
        status = mlo_pass_set_const_take(node, 1, "split", &sizes, err);
    } else if (!mlo_node_set_ints(node, "split", d, (size_t)count)) {
        status = mlo_error_nomem(err);
    }
out:
    mlo_tensor_clear(&sizes);
    return status;
}

/* Marks the axes that a list of an input, or of an attribute before, names; false: it is not known. */
static bool listed_axes(const struct mlo_node *node, int input, const char *attr, int rank, bool *out,
                        bool *any)
{
    size_t count;
    const int64_t *list = mlo_node_attr_ints(node, attr, &count);
    const struct mlo_tensor *t = mlo_node_fixed(node, input);
    *any = false;
    if (!list && mlo_node_input(node, input) && !t)
        return false;
    if (!list && t)
        count = mlo_tensor_count(t);
    for (size_t i = 0; (list || t) && i < count; i++) {
        int64_t axis = wrap(list ? list[i] : mlo_tensor_get_i64(t, i), rank);
        if (axis < 0 || axis >= rank)
            return false;
        out[axis] = *any = true;
    }
    return true;
}

static void slice(struct prune *p, const struct mlo_node *node)
{
    static const char WHY[] = "a Slice cuts it at numbered indices";
    const struct mlo_value *x = node->inputs[0], *y = node->outputs[0];
    bool cut[MLO_MAX_RANK] = {false}, any;
    if (!listed_axes(node, 3, "axes", x->type.rank, cut, &any) || y->type.rank != x->type.rank) {
        mlo_prune_fix_node(p, node, "the axes that it cuts are not known");
        return;
    }
    size_t count = 0;
    const int64_t *starts = mlo_node_attr_ints(node, "starts", &count);
    const struct mlo_tensor *t = mlo_node_fixed(node, 1);
    if (!any && !starts && !t)
        count = (size_t)x->type.rank; /* how many it cuts is not known */
    else if (!starts && t)
        count = mlo_tensor_count(t);
    for (int d = 0; d < x->type.rank; d++)
        if (any ? cut[d] : d < (int)count) {
            mlo_prune_fix_axis(p, node, x, d, WHY);
            mlo_prune_fix_axis(p, node, y, d, WHY);
        } else {
            mlo_prune_link(p, node, x, d, y, d);
        }
}

static void pad(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *x = node->inputs[0], *y = node->outputs[0];
    size_t count = 0;
    const int64_t *list = mlo_node_attr_ints(node, "pads", &count);
    const struct mlo_tensor *t = mlo_node_fixed(node, 1);
    int rank = x->type.rank;
    if (!list && t)
        count = mlo_tensor_count(t);
    if ((!list && !t) || mlo_node_input(node, 3) || (int)count != 2 * rank || y->type.rank != rank) {
        mlo_prune_fix_node(p, node, "where it pads is not known");
        return;
    }
    for (int d = 0; d < rank; d++) {
        int64_t before = list ? list[d] : mlo_tensor_get_i64(t, (size_t)d),
                after = list ? list[d + rank] : mlo_tensor_get_i64(t, (size_t)(d + rank));
        if (before == 0 && after == 0) {
            mlo_prune_link(p, node, x, d, y, d);
        } else {
            mlo_prune_fix_axis(p, node, x, d, "a Pad adds to it");
            mlo_prune_fix_axis(p, node, y, d, "a Pad adds to it");
        }
    }
}

static void reduce(struct prune *p, const struct mlo_node *node)
{
    static const char WHY[] = "it is summed up over its indices";
    const struct mlo_value *x = node->inputs[0], *y = node->outputs[0];
    bool gone[MLO_MAX_RANK] = {false}, any;
    bool keep = mlo_node_attr_i(node, "keepdims", 1) != 0;
    if (!listed_axes(node, 1, "axes", x->type.rank, gone, &any)) {
        mlo_prune_fix_node(p, node, "the axes that it sums up are not known");
        return;
    }
    bool none = !any && mlo_node_attr_i(node, "noop_with_empty_axes", 0);
    for (int d = 0, at = 0; d < x->type.rank; d++) {
        bool reduced = any ? gone[d] : !none;
        if (reduced)
            mlo_prune_fix_axis(p, node, x, d, WHY);
        else
            mlo_prune_link(p, node, x, d, y, at);
        at += !reduced || keep;
    }
}

static const struct prune_rule ROWS[] = {
    {"Concat", concat, NULL},       {"Pad", pad, NULL},
    {"ReduceL1", reduce, NULL},     {"ReduceL2", reduce, NULL},
    {"ReduceMax", reduce, NULL},    {"ReduceMean", reduce, NULL},
    {"ReduceMin", reduce, NULL},    {"ReduceSum", reduce, NULL},
    {"Slice", slice, NULL},         {"Split", split, fix_split},
    {"Transpose", transpose, NULL},
};
const struct prune_rules mlo_prune_rules_move = {ROWS, MLO_COUNT(ROWS)};
