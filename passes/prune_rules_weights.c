/* Rules of ops that multiply with weights: what the weights read is the input's channels, what they make the
 * output's. */
#include "passes/prune_impl.h"

static const char SPATIAL[] = "it is a spatial axis";

static void windows(struct prune *p, const struct mlo_node *node)
{
    mlo_prune_link(p, node, node->inputs[0], 0, node->outputs[0], 0);
    mlo_prune_fix_from(p, node, node->inputs[0], 2, SPATIAL);
    mlo_prune_fix_from(p, node, node->outputs[0], 2, SPATIAL);
}

static void add_weighted(struct prune *p, const struct mlo_node *node, int weight, int w_out, int w_in,
                         int out_axis, int x_axis)
{
    if (mlo_node_fixed(node, weight))
        mlo_prune_add_weighted(p, &(struct prune_weighted){node, weight, w_out, w_in, out_axis, x_axis});
}

/* With as many groups as channels, each input channel has output channels of its own, which go with it. With
 * fewer, all groups must stay equal: index j of each goes, or of none. */
static void conv(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *x = node->inputs[0], *w = node->inputs[1], *y = node->outputs[0],
                           *bias = mlo_node_input(node, 2);
    int64_t groups = mlo_node_attr_i(node, "group", 1), in = mlo_prune_dim(x, 1), out = mlo_prune_dim(w, 0),
            per = mlo_prune_dim(w, 1);
    if (groups < 1 || in < 1 || out < 1 || per < 1 || mlo_prune_dim(y, 1) != out || in != groups * per ||
        out % groups != 0) {
        mlo_prune_fix_node(p, node, "its channels are not known");
        return;
    }
    windows(p, node);
    if (bias)
        mlo_prune_link(p, node, bias, 0, y, 1);
    mlo_prune_link(p, node, w, 0, y, 1);
    if (groups == 1) {
        mlo_prune_link(p, node, x, 1, w, 1);
        add_weighted(p, node, 1, 0, 1, 1, 1);
    } else if (per == 1) {
        for (int64_t o = 0; o < out; o++)
            mlo_prune_join(p, x, 1, o / (out / groups), y, 1, o);
        add_weighted(p, node, 1, 0, -1, 1, 1);
    } else {
        for (int64_t i = 0; i < in; i++)
            mlo_prune_join(p, x, 1, i, w, 1, i % per);
        for (int64_t o = out / groups; o < out; o++)
            mlo_prune_join(p, y, 1, o, y, 1, o % (out / groups));
        add_weighted(p, node, 1, 0, 1, 1, 1);
    }
}

static enum mlo_status fix_conv(const struct prune *p, struct mlo_node *node, struct mlo_error *err)
{
    int64_t groups = mlo_node_attr_i(node, "group", 1);
    if (groups == 1 || mlo_prune_dim(node->inputs[1], 1) != 1)
        return MLO_OK;
    int64_t kept = mlo_prune_kept(p, node->inputs[0], 1, NULL);
    if (kept > 0 && kept != groups && !mlo_node_set_i(node, "group", kept))
        return mlo_error_nomem(err);
    return MLO_OK;
}

static void conv_transpose(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *x = node->inputs[0], *w = node->inputs[1], *y = node->outputs[0],
                           *bias = mlo_node_input(node, 2);
    int64_t groups = mlo_node_attr_i(node, "group", 1), in = mlo_prune_dim(w, 0), per = mlo_prune_dim(w, 1),
            out = mlo_prune_dim(y, 1);
    if (groups < 1 || in < 1 || per < 1 || mlo_prune_dim(x, 1) != in || out != per * groups ||
        in % groups != 0) {
        mlo_prune_fix_node(p, node, "its channels are not known");
        return;
    }
    windows(p, node);
    if (bias)
        mlo_prune_link(p, node, bias, 0, y, 1);
    mlo_prune_link(p, node, x, 1, w, 0);
    for (int64_t o = 0; o < out; o++)
        mlo_prune_join(p, w, 1, o % per, y, 1, o);
    for (int64_t i = in / groups; i < in; i++)
        mlo_prune_join(p, w, 0, i, w, 0, i % (in / groups));
    add_weighted(p, node, 1, 1, 0, 1, 1);
}

static void gemm(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
    int ka = mlo_node_attr_i(node, "transA", 0) ? 0 : 1, kb = mlo_node_attr_i(node, "transB", 0) ? 1 : 0;
    if (a->type.rank != 2 || b->type.rank != 2 || y->type.rank != 2) {
        mlo_prune_fix_node(p, node, "its operands are no matrices");
        return;
    }
    mlo_prune_link(p, node, a, ka, b, kb);
    mlo_prune_link(p, node, a, 1 - ka, y, 0);
    mlo_prune_link(p, node, b, 1 - kb, y, 1);
    mlo_prune_broadcast(p, node, mlo_node_input(node, 2), y);
    add_weighted(p, node, 1, 1 - kb, kb, 1, ka);
}

static void matmul(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
    int ra = a->type.rank, rb = b->type.rank, ry = y->type.rank;
    if (ra < 2 || rb < 2 || ry != MLO_MAX(ra, rb)) {
        mlo_prune_fix_node(p, node, "one of its operands is a vector");
        return;
    }
    mlo_prune_link(p, node, a, ra - 1, b, rb - 2);
    mlo_prune_link(p, node, a, ra - 2, y, ry - 2);
    mlo_prune_link(p, node, b, rb - 1, y, ry - 1);
    for (int k = 3; k <= ry; k++) { /* batches, broadcast */
        if (ra >= k && a->type.dims[ra - k].value != 1)
            mlo_prune_link(p, node, a, ra - k, y, ry - k);
        if (rb >= k && b->type.dims[rb - k].value != 1)
            mlo_prune_link(p, node, b, rb - k, y, ry - k);
    }
    if (rb == 2)
        add_weighted(p, node, 1, 1, 0, ry - 1, ra - 1);
}

/* An index chooses rows, so none of them goes; what a row consists of may. */
static void gather(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *data = node->inputs[0], *index = node->inputs[1], *y = node->outputs[0];
    int rank = data->type.rank, many = index->type.rank;
    int64_t axis = mlo_node_attr_i(node, "axis", 0);
    axis += axis < 0 ? rank : 0;
    if (axis < 0 || axis >= rank || y->type.rank != rank + many - 1) {
        mlo_prune_fix_node(p, node, "its axes are not known");
        return;
    }
    mlo_prune_fix_axis(p, node, data, (int)axis, "Gather numbers its indices");
    for (int d = 0; d < rank; d++)
        if (d != axis)
            mlo_prune_link(p, node, data, d, y, d < axis ? d : d + many - 1);
    for (int d = 0; d < many; d++)
        mlo_prune_link(p, node, index, d, y, (int)axis + d);
    if (rank == 2 && axis == 0)
        add_weighted(p, node, 0, 1, -1, y->type.rank - 1, -1);
}

static const struct prune_rule ROWS[] = {
    {"Conv", conv, fix_conv}, {"ConvTranspose", conv_transpose, NULL},
    {"Gather", gather, NULL}, {"Gemm", gemm, NULL},
    {"MatMul", matmul, NULL},
};
const struct prune_rules mlo_prune_rules_weights = {ROWS, MLO_COUNT(ROWS)};
