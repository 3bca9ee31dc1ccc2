/* Nodes that own kernels with fixed bodies compute: pooling, gathering, padding, resizing, searching. */
#include <math.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

enum mlo_status lower_kernel(struct lower *l, const struct mlo_node *node, const char *name,
                             struct cuda_kernel_use **use, struct cuda_step **step, struct mlo_error *err)
{
    const struct cuda_kernel *row = cuda_kernel_find(name);
    if (!row)
        return lower_unsupported(node, err, "there is no kernel named %s", name);
    *use = mlo_arena_calloc(l->arena, 1, sizeof **use);
    *step = *use ? lower_step(l, CUDA_STEP_KERNEL, node, name) : NULL;
    if (!*step)
        return mlo_error_nomem(err);
    (*use)->kernel = row;
    (*step)->kernel = *use;
    l->done[node->index] = true;
    return MLO_OK;
}

/* The step's only operands and result. */
static enum mlo_status connect(struct lower *l, struct cuda_step *step, const struct place *x,
                               const struct place *second, const struct place *y, struct mlo_error *err)
{
    step->in[0] = lower_slot_at(l, x);
    step->in_count = 1;
    if (second) {
        step->in[1] = lower_slot_at(l, second);
        step->in_count = 2;
    }
    step->out[0] = lower_slot_at(l, y);
    step->out_count = 1;
    step->precision = lower_precision(l, x->dtype, false);
    return step->in[0] < 0 || step->out[0] < 0 || (second && step->in[1] < 0) ? mlo_error_nomem(err) : MLO_OK;
}

enum mlo_status lower_pool(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool max = mlo_node_is(node, "MaxPool");
    int64_t d[MLO_MAX_RANK];
    struct mlo_window w;
    struct place x, y;
    struct cuda_kernel_use *use;
    struct cuda_step *step;
    if (!max && !mlo_node_is(node, "AveragePool"))
        return MLO_OK;
    const struct mlo_value *v = node->inputs[0];
    if (!lower_dims(v, d) || v->type.rank < 3 || v->type.rank > 5)
        return lower_unsupported(node, err, "its operand has not three to five known dims");
    if (!lower_only_first(node))
        return lower_unsupported(node, err, "its indices are wanted");
    if (!lower_loads(v->type.dtype))
        return lower_unsupported(node, err, "it pools %s", mlo_dtype_name(v->type.dtype));
    MLO_TRY(mlo_window_init(&w, node, v->type.rank - 2, d + 2, NULL, err));
    MLO_TRY(product_demand(l, v, WANT_LAST, &x, err));
    MLO_TRY(lower_place_new(l, node->outputs[0], WANT_LAST, &y, err));
    MLO_TRY(lower_kernel(l, node, "pool", &use, &step, err));
    geometry_of(d[0], d[1], &w, use->n);
    use->n[23] = !max;
    use->n[24] = mlo_node_attr_i(node, "count_include_pad", 0);
    use->f[0] = 1;
    use->types[0] = x.dtype;
    use->types[1] = y.dtype;
    MLO_TRY(connect(l, step, &x, NULL, &y, err));
    lower_set(l, node->outputs[0], &y);
    *done = true;
out:
    return status;
}

/* --- Gather
 * -------------------------------------------------------------------------------------------------- */

static int64_t product_of(const int64_t *dims, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++)
        n *= dims[i];
    return n;
}

/* Constant indices that are one after the other: a view. */
static bool as_slice(const struct mlo_tensor *t, int64_t size, int64_t *start, int64_t *step)
{
    size_t n = t ? mlo_tensor_count(t) : 0;
    if (!n)
        return false;
    *start = mlo_tensor_get_i64(t, 0);
    *start += *start < 0 ? size : 0;
    int64_t second = n > 1 ? mlo_tensor_get_i64(t, 1) : *start + 1;
    second += second < 0 ? size : 0;
    *step = second - *start;
    for (size_t i = 0; i < n; i++) {
        int64_t at = mlo_tensor_get_i64(t, i);
        at += at < 0 ? size : 0;
        if (at < 0 || at >= size || at != *start + (int64_t)i * *step)
            return false;
    }
    return *step != 0;
}

/* Casts between integers say nothing new of indices. */
static const struct mlo_value *index_source(const struct lower *l, const struct mlo_value *v)
{
    while (
        v->producer && mlo_node_is(v->producer, "Cast") && l->pending[v->producer->index] &&
        (v->producer->inputs[0]->type.dtype == MLO_INT32 || v->producer->inputs[0]->type.dtype == MLO_INT64))
        v = v->producer->inputs[0];
    return v;
}

enum mlo_status lower_gather(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t d[MLO_MAX_RANK], dims[MLO_MAX_RANK], start, by;
    struct place x, index, y;
    struct cuda_kernel_use *use;
    struct cuda_step *step;
    if (!mlo_node_is(node, "Gather"))
        return MLO_OK;
    const struct mlo_value *v = node->inputs[0], *iv = index_source(l, node->inputs[1]);
    int axis = (int)mlo_node_attr_i(node, "axis", 0);
    axis += axis < 0 ? v->type.rank : 0;
    if (!lower_dims(v, d) || !lower_dims(node->outputs[0], dims) || axis < 0 || axis >= v->type.rank)
        return lower_unsupported(node, err, "its shapes are not known before it runs");
    const struct mlo_tensor *t = lower_constant(iv);
    if (as_slice(t, d[axis], &start, &by) && t->rank <= 1) {
        MLO_TRY(lower_demand(l, v, WANT_ANY, &x, err));
        place_slice(&x, axis, start, by, (int64_t)mlo_tensor_count(t));
        if (t->rank == 0) {
            x.rank--;
            for (int i = axis; i < x.rank; i++) {
                x.dims[i] = x.dims[i + 1];
                x.strides[i] = x.strides[i + 1];
            }
        }
        lower_set(l, node->outputs[0], &x);
        *done = true;
        return MLO_OK;
    }
    if (iv->type.dtype != MLO_INT32 && iv->type.dtype != MLO_INT64)
        return lower_unsupported(node, err, "its indices are %s", mlo_dtype_name(iv->type.dtype));
    if (!lower_loads(v->type.dtype))
        return lower_unsupported(node, err, "it gathers %s", mlo_dtype_name(v->type.dtype));
    MLO_TRY(product_demand(l, v, WANT_ROWS, &x, err));
    MLO_TRY(product_demand(l, iv, WANT_ROWS, &index, err));
    MLO_TRY(lower_place_new(l, node->outputs[0], WANT_ROWS, &y, err));
    MLO_TRY(lower_kernel(l, node, "gather", &use, &step, err));
    use->n[0] = product_of(d, 0, axis);
    use->n[1] = d[axis];
    use->n[2] = product_of(d, axis + 1, v->type.rank);
    use->n[3] = (int64_t)lower_count(iv);
    use->types[0] = x.dtype;
    use->types[1] = index.dtype;
    MLO_TRY(connect(l, step, &x, &index, &y, err));
    lower_set(l, node->outputs[0], &y);
    *done = true;
out:
    return status;
}

/* --- Concat
 * -------------------------------------------------------------------------------------------------- */

enum mlo_status lower_concat(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t dims[MLO_MAX_RANK], at = 0;
    struct place y, part;
    if (!mlo_node_is(node, "Concat"))
        return MLO_OK;
    const struct mlo_value *out = node->outputs[0];
    int axis = (int)mlo_node_attr_i(node, "axis", 0);
    axis += axis < 0 ? out->type.rank : 0;
    if (!lower_loads(out->type.dtype))
        return lower_unsupported(node, err, "it joins %s", mlo_dtype_name(out->type.dtype));
    bool last = out->type.rank >= 4;
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        if (!lower_dims(v, dims))
            return lower_unsupported(node, err, "the shape of '%s' is not known before it runs", v->name);
        if (lower_is_placed(l, v) && !place_is(&l->values[v->index].at[0], WANT_LAST))
            last = false;
    }
    MLO_TRY(lower_place_new(l, out, last ? WANT_LAST : WANT_ROWS, &y, err));
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        if (!lower_dims(v, dims) || dims[axis] == 0)
            continue;
        part = y;
        place_slice(&part, axis, at, 1, dims[axis]);
        at += dims[axis];
        MLO_TRY(lower_into(l, v, &part, node, err));
    }
    lower_set(l, out, &y);
    l->done[node->index] = true;
    *done = true;
out:
    return status;
}

/* --- Pad
 * ------------------------------------------------------------------------------------------------------ */

static const char *const pad_modes[] = {"constant", "reflect", "edge", "wrap"};

/* pads: attribute before opset 11, then an input; with axes from opset 18 on. */
static bool pads_of(const struct mlo_node *node, int rank, int64_t *before, int64_t *after)
{
    size_t count = 0, axis_count = 0;
    const int64_t *list = mlo_node_attr_ints(node, "pads", &count);
    const struct mlo_tensor *t = mlo_node_input(node, 1) ? lower_constant(node->inputs[1]) : NULL;
    const struct mlo_tensor *axes = mlo_node_input(node, 3) ? lower_constant(node->inputs[3]) : NULL;
    if ((!list && !t) || (mlo_node_input(node, 3) && !axes))
        return false;
    count = t ? mlo_tensor_count(t) : count;
    axis_count = axes ? mlo_tensor_count(axes) : (size_t)rank;
    if (count != 2 * axis_count || axis_count > (size_t)rank)
        return false;
    for (size_t i = 0; i < axis_count; i++) {
        int64_t axis = axes ? mlo_tensor_get_i64(axes, i) : (int64_t)i;
        axis += axis < 0 ? rank : 0;
        if (axis < 0 || axis >= rank)
            return false;
        before[axis] = t ? mlo_tensor_get_i64(t, i) : list[i];
        after[axis] = t ? mlo_tensor_get_i64(t, i + axis_count) : list[i + axis_count];
    }
    return true;
}

enum mlo_status lower_pad(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t before[MLO_MAX_RANK] = {0}, after[MLO_MAX_RANK] = {0}, d[MLO_MAX_RANK];
    double value = mlo_node_attr_f(node, "value", 0.0f);
    const char *mode = mlo_node_attr_s(node, "mode", "constant");
    struct place x, y;
    struct cuda_kernel_use *use;
    struct cuda_step *step;
    if (!mlo_node_is(node, "Pad"))
        return MLO_OK;
    const struct mlo_value *v = node->inputs[0];
    int rank = v->type.rank;
    size_t which = 0;
    while (which < MLO_COUNT(pad_modes) && strcmp(mode, pad_modes[which]) != 0)
        which++;
    if (!lower_dims(v, d) || rank > CUDA_RANK || !pads_of(node, rank, before, after) ||
        which == MLO_COUNT(pad_modes) || (mlo_node_input(node, 2) && !lower_number(node->inputs[2], &value)))
        return lower_unsupported(node, err, "what it pads with is not known before it runs");
    if (!lower_is_float(v->type.dtype))
        return lower_unsupported(node, err, "it pads %s", mlo_dtype_name(v->type.dtype));
    MLO_TRY(lower_demand(l, v, WANT_ANY, &x, err));
    for (int i = 0; i < rank; i++) { /* a negative one takes away */
        if (before[i] < 0 || after[i] < 0) {
            int64_t cut = MLO_MAX(-before[i], 0), end = MLO_MAX(-after[i], 0);
            if (which != 0 || cut + end >= x.dims[i])
                return lower_unsupported(node, err, "it takes away more than there is");
            place_slice(&x, i, cut, 1, x.dims[i] - cut - end);
            before[i] = MLO_MAX(before[i], 0);
            after[i] = MLO_MAX(after[i], 0);
        }
    }
    if (which == 0) {
        MLO_TRY(lower_place_new(l, node->outputs[0],
                                place_is(&x, WANT_LAST) && !place_is(&x, WANT_ROWS) ? WANT_LAST : WANT_ROWS,
                                &y, err));
        struct place part = y;
        for (int i = 0; i < rank; i++)
            place_slice(&part, i, before[i], 1, x.dims[i]);
        MLO_TRY(chain_fill(l, node, &y, value, err));
        MLO_TRY(chain_copy(l, node, &x, &part, err));
    } else {
        MLO_TRY(product_demand(l, v, WANT_ROWS, &x, err));
        MLO_TRY(lower_place_new(l, node->outputs[0], WANT_ROWS, &y, err));
        MLO_TRY(lower_kernel(l, node, "pad", &use, &step, err));
        use->n[0] = rank;
        for (int i = 0; i < rank; i++) {
            use->n[1 + i] = x.dims[i];
            use->n[7 + i] = before[i];
            use->n[13 + i] = y.dims[i];
        }
        use->n[19] = (int64_t)which;
        use->types[0] = x.dtype;
        MLO_TRY(connect(l, step, &x, NULL, &y, err));
    }
    lower_set(l, node->outputs[0], &y);
    l->done[node->index] = true;
    *done = true;
out:
    return status;
}

/* --- Resize
 * --------------------------------------------------------------------------------------------------- */

static int named(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

enum mlo_status lower_resize(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    static const char *const modes[] = {"nearest", "linear"};
    static const char *const coordinates[] = {"half_pixel", "asymmetric", "align_corners",
                                              "pytorch_half_pixel"};
    static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    enum mlo_status status = MLO_OK;
    int64_t d[MLO_MAX_RANK], dims[MLO_MAX_RANK];
    struct place x, y;
    struct cuda_kernel_use *use;
    struct cuda_step *step;
    bool old = mlo_node_is(node, "Upsample") || (mlo_node_is(node, "Resize") && node->version < 11);
    if (!mlo_node_is(node, "Resize") && !old)
        return MLO_OK;
    int mode = named(mlo_node_attr_s(node, "mode", "nearest"), modes, 2);
    int how =
        old ? 1
            : named(mlo_node_attr_s(node, "coordinate_transformation_mode", "half_pixel"), coordinates, 4);
    int rounding = old ? 2 : named(mlo_node_attr_s(node, "nearest_mode", "round_prefer_floor"), roundings, 4);
    const struct mlo_value *v = node->inputs[0];
    const struct mlo_tensor *scales =
        mlo_node_input(node, old ? 1 : 2) ? lower_constant(node->inputs[old ? 1 : 2]) : NULL;
    if (!lower_dims(v, d) || !lower_dims(node->outputs[0], dims) || v->type.rank != 4 || d[0] != dims[0] ||
        d[1] != dims[1] || !lower_is_float(v->type.dtype))
        return lower_unsupported(node, err, "it does not resize the last two dims of four");
    if (mlo_node_input(node, old ? 1 : 2) && !scales && !mlo_node_input(node, 3))
        return lower_unsupported(node, err, "its scales are not known before it runs");
    if (mode < 0 || how < 0 || rounding < 0 || mlo_node_attr_i(node, "antialias", 0) ||
        mlo_node_attr(node, "axes") || mlo_node_attr(node, "keep_aspect_ratio_policy"))
        return lower_unsupported(node, err, "its mode has no kernel");
    MLO_TRY(product_demand(l, v, WANT_LAST, &x, err));
    MLO_TRY(lower_place_new(l, node->outputs[0], WANT_LAST, &y, err));
    MLO_TRY(lower_kernel(l, node, "resize", &use, &step, err));
    memcpy(use->n, (int64_t[]){d[0], d[1], d[2], d[3], dims[2], dims[3], 1, mode, how, rounding},
           10 * sizeof *use->n);
    for (int i = 0; i < 2; i++)
        use->f[i] = scales && mlo_tensor_count(scales) == 4 ? (float)mlo_tensor_get_f64(scales, (size_t)i + 2)
                                                            : (float)((double)dims[2 + i] / (double)d[2 + i]);
    use->types[0] = x.dtype;
    use->types[1] = y.dtype;
    MLO_TRY(connect(l, step, &x, NULL, &y, err));
    lower_set(l, node->outputs[0], &y);
    *done = true;
out:
    return status;
}

/* --- along one axis
 * ------------------------------------------------------------------------------------------- */

/* ArgMax, ArgMin, CumSum: rows that are `inner` apart. */
enum mlo_status lower_search(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool least = mlo_node_is(node, "ArgMin"), arg = least || mlo_node_is(node, "ArgMax");
    int64_t d[MLO_MAX_RANK];
    double axis = (double)mlo_node_attr_i(node, "axis", 0);
    struct place x, y;
    struct cuda_kernel_use *use;
    struct cuda_step *step;
    if (!arg && !mlo_node_is(node, "CumSum"))
        return MLO_OK;
    const struct mlo_value *v = node->inputs[0];
    if (!lower_dims(v, d) || !lower_is_float(v->type.dtype) ||
        (!arg && (!mlo_node_input(node, 1) || !lower_number(node->inputs[1], &axis))))
        return lower_unsupported(node, err,
                                 "its axis or shape is not known before it runs, or it is of integers");
    int rank = v->type.rank, at = (int)(axis < 0 ? axis + rank : axis);
    MLO_TRY(product_demand(l, v, WANT_ROWS, &x, err));
    MLO_TRY(lower_place_new(l, node->outputs[0], WANT_ROWS, &y, err));
    MLO_TRY(lower_kernel(l, node, arg ? "argmax" : "cumsum", &use, &step, err));
    use->n[0] = product_of(d, 0, at);
    use->n[1] = d[at];
    use->n[2] = product_of(d, at + 1, rank);
    use->n[3] = arg ? least : mlo_node_attr_i(node, "exclusive", 0);
    use->n[4] = mlo_node_attr_i(node, arg ? "select_last_index" : "reverse", 0);
    use->types[0] = x.dtype;
    MLO_TRY(connect(l, step, &x, NULL, &y, err));
    lower_set(l, node->outputs[0], &y);
    *done = true;
out:
    return status;
}

/* The k largest or smallest, one after the other: for a k that is known before it runs. */
enum mlo_status lower_topk(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t d[MLO_MAX_RANK], dims[MLO_MAX_RANK];
    struct place x, values, places;
    struct cuda_kernel_use *use;
    struct cuda_step *step;
    if (!mlo_node_is(node, "TopK"))
        return MLO_OK;
    const struct mlo_value *v = node->inputs[0];
    const struct mlo_value *of = node->outputs[0] ? node->outputs[0] : node->outputs[1];
    int rank = v->type.rank, axis = (int)mlo_node_attr_i(node, "axis", -1);
    axis += axis < 0 ? rank : 0;
    if (!lower_dims(v, d) || !of || !lower_dims(of, dims) || axis < 0 || axis >= rank)
        return lower_unsupported(node, err, "its shape or k is not known before it runs");
    if (!lower_is_float(v->type.dtype))
        return lower_unsupported(node, err, "it sorts %s", mlo_dtype_name(v->type.dtype));
    MLO_TRY(product_demand(l, v, WANT_ROWS, &x, err));
    place_dense(&values, x.dtype, rank, dims, WANT_ROWS);
    place_dense(&places, MLO_INT64, rank, dims, WANT_ROWS);
    values.slot = lower_slot(l, CUDA_SLOT_ARENA, place_bytes(&values));
    places.slot = lower_slot(l, CUDA_SLOT_ARENA, place_bytes(&places));
    if (values.slot < 0 || places.slot < 0)
        return mlo_error_nomem(err);
    MLO_TRY(lower_kernel(l, node, "topk", &use, &step, err));
    use->n[0] = product_of(d, 0, axis);
    use->n[1] = d[axis];
    use->n[2] = product_of(d, axis + 1, rank);
    use->n[3] = dims[axis];
    use->n[4] = mlo_node_attr_i(node, "largest", 1) != 0;
    use->types[0] = x.dtype;
    MLO_TRY(connect(l, step, &x, NULL, &values, err));
    step->out[step->out_count++] = places.slot;
    if (node->outputs[0])
        lower_set(l, node->outputs[0], &values);
    if (node->output_count > 1 && node->outputs[1])
        lower_set(l, node->outputs[1], &places);
    *done = true;
out:
    return status;
}
