/* Rules of ops that give the same elements another shape: an axis that several axes become, or the other way
 * round. Elements keep their order, so axes correspond where what lies before them, or behind them, does. */
#include "passes/prune_impl.h"

static bool dim_equal(const struct mlo_value *a, int i, const struct mlo_value *b, int j)
{
    return mlo_dim_same(&a->type.dims[i], &b->type.dims[j]);
}

static void fix_span(struct prune *p, const struct mlo_node *node, const struct mlo_value *v, int begin,
                     int end, const char *why)
{
    for (int a = begin; a < end; a++)
        mlo_prune_fix_axis(p, node, v, a, why);
}

/* Axis `whole` of one value is axes [begin, end) of the other: index i of part `axis` is all indices of the
 * whole that have i there. */
static void link_part(struct prune *p, const struct mlo_value *one, int whole, const struct mlo_value *many,
                      int begin, int end, int axis)
{
    int64_t inner = 1, size = mlo_prune_dim(many, axis), total = mlo_prune_dim(one, whole);
    MLO_UNUSED(begin);
    for (int a = axis + 1; a < end; a++)
        inner *= mlo_prune_dim(many, a);
    for (int64_t i = 0; i < total; i++)
        mlo_prune_join(p, one, whole, i, many, axis, i / inner % size);
}

/* Axes of more than one index in [begin, end). */
static int wide_axes(const struct mlo_value *v, int begin, int end, int *list)
{
    int count = 0;
    for (int a = begin; a < end; a++)
        if (v->type.dims[a].value != 1)
            list[count++] = a;
    return count;
}

/* Input axes [ib, ie) and output axes [ob, oe) hold the same elements, all sizes known. */
static void segment(struct prune *p, const struct mlo_node *node, const struct mlo_value *x, int ib, int ie,
                    const struct mlo_value *y, int ob, int oe)
{
    static const char WHOLE[] = "a Reshape makes one axis of it and others, of which one can shrink";
    int in[MLO_MAX_RANK], out[MLO_MAX_RANK], n = wide_axes(x, ib, ie, in), m = wide_axes(y, ob, oe, out);
    if (n == 1 && m == 1) {
        mlo_prune_link(p, node, x, in[0], y, out[0]);
    } else if (n == 1 && m > 1) {
        bool inside = mlo_prune_width_of(p->turned, y) != NULL;
        int chosen = out[inside ? m - 1 : MLO_MIN(p->choice[node->index], m - 1)];
        p->choices[node->index] = inside ? 0 : m;
        p->split[node->index] = y;
        p->split_axis[node->index] = chosen;
        link_part(p, x, in[0], y, ob, oe, chosen);
        for (int k = 0; k < m; k++)
            if (out[k] != chosen)
                mlo_prune_fix_axis(p, node, y, out[k], WHOLE);
    } else if (m == 1 && n > 1) {
        int k = 0;
        while (k + 1 < n && !mlo_prune_axis_free(p, x, in[k]))
            k++;
        link_part(p, y, out[0], x, ib, ie, in[k]);
        for (int i = 0; i < n; i++)
            if (i != k)
                mlo_prune_fix_axis(p, node, x, in[i], WHOLE);
    } else if (n || m) {
        fix_span(p, node, x, ib, ie, "a Reshape mixes it with other axes");
        fix_span(p, node, y, ob, oe, "a Reshape mixes it with other axes");
    }
}

/* The shortest runs of axes from *i and *j on that hold equally many elements; false: a size is not known. */
static bool next_run(const struct mlo_value *x, int *i, int rx, const struct mlo_value *y, int *j, int ry)
{
    int64_t a = 1, b = 1;
    bool any = false;
    while (!any || a != b) {
        bool left = a < b || (a == b && *i < rx);
        any = true;
        if (left ? *i >= rx : *j >= ry)
            return false;
        int64_t d = left ? mlo_prune_dim(x, (*i)++) : mlo_prune_dim(y, (*j)++);
        if (d < 1 || (left ? a : b) > MLO_MAX_DIM / d)
            return false;
        if (left)
            a *= d;
        else
            b *= d;
    }
    return true;
}

static void reshaped(struct prune *p, const struct mlo_node *node, const struct mlo_value *x,
                     const struct mlo_value *y)
{
    static const char UNKNOWN[] = "the sizes that a Reshape is about are not known";
    int i = 0, j = 0, ix = x->type.rank, jy = y->type.rank;
    /* from the back, as far as axes are the same */
    while (ix > 0 && jy > 0 && dim_equal(x, ix - 1, y, jy - 1)) {
        mlo_prune_link(p, node, x, ix - 1, y, jy - 1);
        ix--;
        jy--;
    }
    while (i < ix || j < jy) {
        if (i < ix && j < jy && dim_equal(x, i, y, j)) {
            mlo_prune_link(p, node, x, i++, y, j++);
            continue;
        }
        if (i < ix && x->type.dims[i].value == 1) {
            i++;
            continue;
        }
        if (j < jy && y->type.dims[j].value == 1) {
            j++;
            continue;
        }
        int ib = i, jb = j;
        if (!next_run(x, &i, ix, y, &j, jy)) {
            fix_span(p, node, x, ib, ix, UNKNOWN);
            fix_span(p, node, y, jb, jy, UNKNOWN);
            return;
        }
        segment(p, node, x, ib, i, y, jb, j);
    }
}

static void flatten(struct prune *p, const struct mlo_node *node)
{
    reshaped(p, node, node->inputs[0], node->outputs[0]);
}

/* Whether sizes that a shape states can be stated anew: it is a constant of ours. */
static bool shape_known(const struct mlo_node *node)
{
    const struct mlo_tensor *shape = mlo_node_fixed(node, 1);
    return shape && shape->dtype == MLO_INT64 && shape->rank == 1;
}

/* Where the shape is computed, one that says the sizes behind an open batch can stand in its place. */
static int open_dims(const struct mlo_value *v)
{
    int count = 0;
    for (int d = 0; d < mlo_prune_rank(v); d++)
        count += v->type.dims[d].value < 0;
    return count;
}

static void reshape(struct prune *p, const struct mlo_node *node)
{
    if (!shape_known(node) && open_dims(node->outputs[0]) > 1) {
        mlo_prune_fix_node(p, node, "the shape of a Reshape is computed while it runs");
        return;
    }
    reshaped(p, node, node->inputs[0], node->outputs[0]);
}

static enum mlo_status state_shape(const struct prune *p, struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *y = node->outputs[0];
    struct mlo_tensor shape = {0};
    int64_t rank = mlo_prune_rank(y);
    bool changed = false;
    MLO_TRY(mlo_tensor_init(&shape, MLO_INT64, 1, &rank, err));
    int64_t *d = shape.data;
    for (int i = 0; i < (int)rank; i++) {
        d[i] = mlo_prune_dim(y, i) < 0 ? -1 : mlo_prune_kept(p, y, i, NULL);
        changed = changed || (d[i] >= 0 && d[i] != mlo_prune_dim(y, i));
    }
    if (changed && mlo_node_is(node, "Reshape"))
        status = mlo_pass_set_const_take(node, 1, "shape", &shape, err);
out:
    mlo_tensor_clear(&shape);
    return status;
}

/* Sizes of axes that shrank, where the shape states them (not as 0: "as before", nor -1: "the rest"). */
static enum mlo_status fix_shape(const struct prune *p, struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor shape = {0};
    bool changed = false;
    if (!shape_known(node))
        return state_shape(p, node, err);
    MLO_TRY(mlo_tensor_copy(mlo_node_fixed(node, 1), &shape, err));
    int64_t *d = shape.data;
    int lead = mlo_prune_rank(node->outputs[0]) - (int)mlo_tensor_count(&shape); /* of an Expand */
    for (int i = 0; i < (int)mlo_tensor_count(&shape); i++) {
        int64_t kept = mlo_prune_kept(p, node->outputs[0], i + lead, NULL);
        if (d[i] > 1 && kept > 0 && kept != d[i]) {
            d[i] = kept;
            changed = true;
        }
    }
    if (changed)
        status = mlo_pass_set_const_take(node, 1, "shape", &shape, err);
out:
    mlo_tensor_clear(&shape);
    return status;
}

static void expand(struct prune *p, const struct mlo_node *node)
{
    if (!shape_known(node)) {
        mlo_prune_fix_node(p, node, "the shape of an Expand is computed while it runs");
        return;
    }
    mlo_prune_broadcast(p, node, node->inputs[0], node->outputs[0]);
    for (int i = 0; i < mlo_prune_rank(node->outputs[0]); i++) { /* what is repeated stays as often */
        int k = i - (mlo_prune_rank(node->outputs[0]) - mlo_prune_rank(node->inputs[0]));
        if (k < 0 || mlo_prune_dim(node->inputs[0], k) == 1)
            mlo_prune_fix_axis(p, node, node->outputs[0], i, "an Expand repeats it");
    }
}

/* What reads a size: that axis stays. */
static void shape_of(struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *x = node->inputs[0], *out = node->outputs[0];
    bool each = !mlo_node_attr(node, "start") && !mlo_node_attr(node, "end") && !out->is_output;
    for (int i = 0; each && i < out->use_count; i++) {
        const struct mlo_node *user = out->uses[i].node;
        const struct mlo_tensor *index = mlo_node_is(user, "Gather") ? mlo_node_fixed(user, 1) : NULL;
        each = user->graph == p->graph && out->uses[i].index == 0 && index;
    }
    for (int i = 0; each && i < out->use_count; i++) {
        const struct mlo_tensor *index = mlo_node_fixed(out->uses[i].node, 1);
        for (size_t k = 0; k < mlo_tensor_count(index); k++) {
            int64_t axis = mlo_tensor_get_i64(index, k);
            mlo_prune_fix_axis(p, node, x, (int)(axis < 0 ? axis + x->type.rank : axis),
                               "its size is read while it runs");
        }
    }
    if (!each)
        mlo_prune_fix_value(p, node, x, "its size is read while it runs");
    mlo_prune_fix_value(p, node, out, "it is a shape");
}

static const struct prune_rule ROWS[] = {
    {"Expand", expand, fix_shape}, {"Flatten", flatten, NULL}, {"Reshape", reshape, fix_shape},
    {"Shape", shape_of, NULL},     {"Squeeze", flatten, NULL}, {"Unsqueeze", flatten, NULL},
};
const struct prune_rules mlo_prune_rules_shape = {ROWS, MLO_COUNT(ROWS)};
