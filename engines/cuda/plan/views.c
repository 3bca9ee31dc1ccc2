/* Nodes that only say how elements are to be seen: other places of the same memory. */
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

static bool ints_of(const struct mlo_value *v, int64_t *out, size_t max, size_t *count)
{
    const struct mlo_tensor *t = v ? (v->known ? v->known : lower_constant(v)) : NULL;
    if (!t || mlo_tensor_count(t) > max)
        return false;
    *count = mlo_tensor_count(t);
    for (size_t i = 0; i < *count; i++)
        out[i] = mlo_tensor_get_i64(t, i);
    return true;
}

static bool is_reshape(const struct mlo_node *node)
{
    return mlo_node_is(node, "Reshape") || mlo_node_is(node, "Flatten") || mlo_node_is(node, "Squeeze") ||
           mlo_node_is(node, "Unsqueeze") || mlo_node_is(node, "Identity") || mlo_node_is(node, "Dropout");
}

static enum mlo_status reshape(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *x = node->inputs[0], *y = node->outputs[0];
    int64_t dims[MLO_MAX_RANK];
    struct place p;
    if (!lower_dims(y, dims))
        return lower_unsupported(node, err, "the shape of its result is not known before it runs");
    bool flat = !lower_is_placed(l, x) && !lower_constant(x) && x->type.rank != y->type.rank;
    MLO_TRY(lower_demand(l, x, flat ? WANT_ROWS : WANT_ANY, &p, err));
    if (!place_reshape(&p, y->type.rank, dims)) {
        MLO_TRY(lower_demand(l, x, WANT_ROWS, &p, err));
        if (!place_reshape(&p, y->type.rank, dims))
            return mlo_error_set(err, MLO_EINTERNAL, "'%s' cannot be reshaped", x->name);
    }
    lower_set(l, y, &p);
out:
    return status;
}

static enum mlo_status transpose(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place p;
    size_t count;
    MLO_TRY(lower_demand(l, node->inputs[0], WANT_ANY, &p, err));
    place_transpose(&p, mlo_node_attr_ints(node, "perm", &count));
    lower_set(l, node->outputs[0], &p);
out:
    return status;
}

static enum mlo_status expand(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t dims[MLO_MAX_RANK];
    struct place p;
    if (!lower_dims(node->outputs[0], dims))
        return lower_unsupported(node, err, "the shape of its result is not known before it runs");
    MLO_TRY(lower_demand(l, node->inputs[0], WANT_ANY, &p, err));
    place_expand(&p, node->outputs[0]->type.rank, dims);
    lower_set(l, node->outputs[0], &p);
out:
    return status;
}

/* Starts, axes and steps: attributes before opset 10, then inputs. */
static bool slice_lists(const struct mlo_node *node, int64_t *starts, int64_t *axes, int64_t *steps,
                        size_t *count)
{
    size_t n = 0, given;
    const int64_t *list = mlo_node_attr_ints(node, "starts", count), *axis_list;
    if (list) {
        if (*count > MLO_MAX_RANK)
            return false;
        memcpy(starts, list, *count * sizeof *list);
        axis_list = mlo_node_attr_ints(node, "axes", &given);
        for (size_t i = 0; i < *count; i++) {
            axes[i] = axis_list ? axis_list[i] : (int64_t)i;
            steps[i] = 1;
        }
        return true;
    }
    if (!ints_of(mlo_node_input(node, 1), starts, MLO_MAX_RANK, count))
        return false;
    for (size_t i = 0; i < *count; i++) {
        axes[i] = (int64_t)i;
        steps[i] = 1;
    }
    return (!mlo_node_input(node, 3) || (ints_of(node->inputs[3], axes, MLO_MAX_RANK, &n) && n == *count)) &&
           (!mlo_node_input(node, 4) || (ints_of(node->inputs[4], steps, MLO_MAX_RANK, &n) && n == *count));
}

static enum mlo_status slice(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t starts[MLO_MAX_RANK], axes[MLO_MAX_RANK], steps[MLO_MAX_RANK], dims[MLO_MAX_RANK];
    size_t count;
    struct place p;
    if (!slice_lists(node, starts, axes, steps, &count) || !lower_dims(node->outputs[0], dims))
        return lower_unsupported(node, err, "where it begins and ends is not known before it runs");
    MLO_TRY(lower_demand(l, node->inputs[0], WANT_ANY, &p, err));
    for (size_t i = 0; i < count; i++) {
        int axis = (int)(axes[i] < 0 ? axes[i] + p.rank : axes[i]);
        int64_t size = p.dims[axis], start = starts[i] < 0 ? starts[i] + size : starts[i];
        start = steps[i] > 0 ? MLO_MIN(MLO_MAX(start, 0), size) : MLO_MIN(MLO_MAX(start, 0), size - 1);
        place_slice(&p, axis, start, steps[i], dims[axis]);
    }
    lower_set(l, node->outputs[0], &p);
out:
    return status;
}

static enum mlo_status split(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *x = node->inputs[0];
    int axis = (int)mlo_node_attr_i(node, "axis", 0);
    int64_t at = 0, dims[MLO_MAX_RANK];
    struct place p, part;
    axis += axis < 0 ? x->type.rank : 0;
    MLO_TRY(lower_demand(l, x, WANT_ANY, &p, err));
    for (int i = 0; i < node->output_count; i++) {
        if (!node->outputs[i] || !lower_dims(node->outputs[i], dims))
            return lower_unsupported(node, err, "the sizes of its parts are not known before it runs");
        part = p;
        place_slice(&part, axis, at, 1, dims[axis]);
        at += dims[axis];
        lower_set(l, node->outputs[i], &part);
    }
out:
    return status;
}

/* (n, c, h*b, w*b) <-> (n, c*b*b, h, w): a reshape, a permutation, a reshape. */
static enum mlo_status blocks(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    static const int64_t dcr[] = {0, 3, 4, 1, 5, 2}, crd[] = {0, 1, 4, 2, 5, 3},
                         to_depth[] = {0, 3, 5, 1, 2, 4};
    enum mlo_status status = MLO_OK;
    const struct mlo_value *x = node->inputs[0], *y = node->outputs[0];
    bool deep = mlo_node_is(node, "SpaceToDepth");
    bool by_column = strcmp(mlo_node_attr_s(node, "mode", "DCR"), "CRD") == 0;
    int64_t b = mlo_node_attr_i(node, "blocksize", 1), d[MLO_MAX_RANK], y_dims[MLO_MAX_RANK];
    struct place p, to;
    if (!lower_dims(x, d) || !lower_dims(y, y_dims) || x->type.rank != 4 || b < 1)
        return lower_unsupported(node, err, "its operand has not four known dims");
    int64_t split_dims[] = {d[0], b, b, d[1] / (b * b), d[2], d[3]};
    if (deep) {
        memcpy(split_dims, (int64_t[]){d[0], d[1], d[2] / b, b, d[3] / b, b}, sizeof split_dims);
    } else if (by_column) {
        memcpy(split_dims, (int64_t[]){d[0], d[1] / (b * b), b, b, d[2], d[3]}, sizeof split_dims);
    }
    MLO_TRY(lower_demand(l, x, WANT_ANY, &p, err));
    if (!place_reshape(&p, 6, split_dims)) {
        MLO_TRY(lower_demand(l, x, WANT_ROWS, &p, err));
        if (!place_reshape(&p, 6, split_dims))
            return mlo_error_set(err, MLO_EINTERNAL, "'%s' cannot be reshaped", x->name);
    }
    place_transpose(&p, deep ? to_depth : by_column ? crd : dcr);
    MLO_TRY(lower_place_new(l, y, WANT_ROWS, &to, err));
    struct place whole = to;
    if (!place_reshape(&to, 6, p.dims))
        return mlo_error_set(err, MLO_EINTERNAL, "'%s' cannot be reshaped", y->name);
    MLO_TRY(chain_copy(l, node, &p, &to, err));
    lower_set(l, y, &whole);
out:
    return status;
}

/* Tile is a copy whose repeated dims are read with strides of 0. */
static enum mlo_status tile(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *x = node->inputs[0], *y = node->outputs[0];
    int64_t repeats[MLO_MAX_RANK], d[MLO_MAX_RANK], dims[MLO_MAX_RANK];
    struct place p, to, whole, from = {0};
    size_t count;
    int rank = 0;
    if (!ints_of(mlo_node_input(node, 1), repeats, MLO_MAX_RANK, &count) || !lower_dims(x, d) ||
        (int)count != x->type.rank)
        return lower_unsupported(node, err, "how often it repeats is not known before it runs");
    MLO_TRY(lower_demand(l, x, WANT_ANY, &p, err));
    from = p;
    for (int i = 0; i < p.rank; i++) {
        if (rank + 1 + (repeats[i] > 1) > MLO_MAX_RANK)
            return lower_unsupported(node, err, "it repeats more dims than a kernel has");
        if (repeats[i] > 1) {
            from.strides[rank] = 0;
            dims[rank++] = repeats[i];
        }
        from.strides[rank] = p.strides[i];
        dims[rank++] = d[i];
    }
    from.rank = rank;
    memcpy(from.dims, dims, sizeof dims);
    MLO_TRY(lower_place_new(l, y, WANT_ROWS, &whole, err));
    to = whole;
    if (!place_reshape(&to, rank, dims))
        return mlo_error_set(err, MLO_EINTERNAL, "'%s' cannot be reshaped", y->name);
    MLO_TRY(chain_copy(l, node, &from, &to, err));
    lower_set(l, y, &whole);
out:
    return status;
}

static const struct {
    const char *op;
    enum mlo_status (*lower)(struct lower *l, const struct mlo_node *node, struct mlo_error *err);
} views[] = {{"Transpose", transpose}, {"Expand", expand},       {"Slice", slice}, {"Split", split},
             {"DepthToSpace", blocks}, {"SpaceToDepth", blocks}, {"Tile", tile}};

enum mlo_status lower_view(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (is_reshape(node)) {
        for (int i = 1; i < node->output_count; i++)
            if (node->outputs[i] && (node->outputs[i]->use_count || lower_is_shown(l, node->outputs[i])))
                return lower_unsupported(node, err, "its mask is wanted");
        MLO_TRY(reshape(l, node, err));
        *done = true;
        return MLO_OK;
    }
    for (size_t i = 0; i < MLO_COUNT(views); i++)
        if (mlo_node_is(node, views[i].op)) {
            MLO_TRY(views[i].lower(l, node, err));
            *done = true;
        }
out:
    return status;
}
