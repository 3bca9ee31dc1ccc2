/* Slice and Pad. */
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

/* For each dim of the input: where reading starts, its step, and how many are taken (-1: not known). */
struct cut {
    int64_t start[MLO_MAX_RANK], step[MLO_MAX_RANK], count[MLO_MAX_RANK];
    int64_t end[MLO_MAX_RANK]; /* as given, for a dim that is not known */
};

struct slice_lists {
    int64_t starts[MLO_MAX_RANK], ends[MLO_MAX_RANK], axes[MLO_MAX_RANK], steps[MLO_MAX_RANK];
    int count;
    bool known;
};

static enum mlo_status copy_attr(const struct mlo_node *node, const char *name, int64_t *out, int *count,
                                 struct mlo_error *err)
{
    size_t n;
    const int64_t *list = mlo_node_attr_ints(node, name, &n);
    if (n > MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EINVAL, "attribute '%s' has %zu numbers", name, n);
    if (n)
        memcpy(out, list, n * sizeof *list);
    *count = (int)n;
    return MLO_OK;
}

/* Attributes up to opset 9 (no steps), inputs from 10 on. */
static enum mlo_status read_lists(const struct mlo_node *node, struct slice_lists *l, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int ends = 0, axes = 0, steps = 0;
    *l = (struct slice_lists){.known = true};
    if (node->op->since < 10) {
        MLO_TRY(copy_attr(node, "starts", l->starts, &l->count, err));
        MLO_TRY(copy_attr(node, "ends", l->ends, &ends, err));
        MLO_TRY(copy_attr(node, "axes", l->axes, &axes, err));
    } else {
        for (int i = 1; i < node->input_count; i++)
            l->known = l->known && (!mlo_op_in(node, i) || mlo_op_content(node, i));
        if (!l->known)
            goto out;
        MLO_TRY(mlo_op_read_ints(mlo_op_content(node, 1), l->starts, MLO_MAX_RANK, &l->count, err));
        MLO_TRY(mlo_op_read_ints(mlo_op_content(node, 2), l->ends, MLO_MAX_RANK, &ends, err));
        if (mlo_op_content(node, 3))
            MLO_TRY(mlo_op_read_ints(mlo_op_content(node, 3), l->axes, MLO_MAX_RANK, &axes, err));
        if (mlo_op_content(node, 4))
            MLO_TRY(mlo_op_read_ints(mlo_op_content(node, 4), l->steps, MLO_MAX_RANK, &steps, err));
    }
    if (ends != l->count || (axes && axes != l->count) || (steps && steps != l->count)) {
        status = mlo_error_set(err, MLO_EINVAL, "starts, ends, axes and steps are of different lengths");
        goto out;
    }
    for (int i = 0; i < l->count; i++) {
        l->axes[i] = axes ? l->axes[i] : i;
        l->steps[i] = steps ? l->steps[i] : 1;
    }
out:
    return status;
}

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* As Python's slices: ends are clamped to the dim. */
static void cut_dim(int64_t size, int64_t start, int64_t end, int64_t step, struct cut *cut, int axis)
{
    start = start < 0 ? start + size : start;
    end = end < 0 ? (end < -size ? -1 : end + size) : end;
    if (step > 0) {
        start = clamp(start, 0, size);
        end = clamp(end, 0, size);
        cut->count[axis] = end > start ? (end - start - 1) / step + 1 : 0;
    } else {
        start = clamp(start, -1, size - 1);
        end = clamp(end, -1, size - 1);
        cut->count[axis] = start > end ? (start - end - 1) / -step + 1 : 0;
    }
    cut->start[axis] = start;
    cut->step[axis] = step;
}

static enum mlo_status make_cut(const struct slice_lists *l, const struct mlo_type *x, struct cut *cut,
                                struct mlo_error *err)
{
    bool seen[MLO_MAX_RANK] = {0};
    for (int i = 0; i < x->rank; i++) {
        cut->start[i] = 0;
        cut->step[i] = 1;
        cut->count[i] = x->dims[i].value;
    }
    for (int i = 0; i < l->count; i++) {
        int axis;
        enum mlo_status status = mlo_op_axis(l->axes[i], x->rank, &axis, err);
        if (status != MLO_OK)
            return status;
        if (l->steps[i] == 0 || l->steps[i] == INT64_MIN || seen[axis])
            return mlo_error_set(err, MLO_EINVAL,
                                 seen[axis] ? "axis %d is there twice" : "the step of axis %d is 0", axis);
        seen[axis] = true;
        if (x->dims[axis].value >= 0)
            cut_dim(x->dims[axis].value, l->starts[i], l->ends[i], l->steps[i], cut, axis);
        else if (l->starts[i] == 0 && l->ends[i] >= INT32_MAX && l->steps[i] == 1)
            seen[axis] = true; /* all of an unknown dim: it stays as it is */
        else {
            cut->count[axis] = -2;
            cut->start[axis] = l->starts[i];
            cut->end[axis] = l->ends[i];
            cut->step[axis] = l->steps[i];
        }
    }
    return MLO_OK;
}

/* A position of a slice whose step is 1, as one in [0, size]: negative ones count from the end. */
static struct mlo_expr position(struct mlo_arena *arena, struct mlo_expr at, struct mlo_expr size)
{
    bool negative =
        at.kind == MLO_EXPR_NUMBER ? at.number < 0 : at.kind == MLO_EXPR_TEXT && at.text[0] == '-';
    if (at.kind == MLO_EXPR_NUMBER && at.number >= INT32_MAX)
        return size;
    if (negative)
        return mlo_expr_max(arena, mlo_expr_number(0), mlo_expr_add(arena, at, size));
    return at.kind == MLO_EXPR_NUMBER && at.number == 0 ? at : mlo_expr_min(arena, at, size);
}

/* No dim is longer than MLO_MAX_DIM, so no end means more than that: sums below do not overflow. */
static struct mlo_expr within_any_dim(struct mlo_expr e)
{
    if (e.kind == MLO_EXPR_NUMBER)
        e.number = MLO_MAX(-MLO_MAX_DIM, MLO_MIN(MLO_MAX_DIM, e.number));
    return e;
}

/* How much a slice of step 1 takes of a dim, when that or the ends are symbolic. A start behind the beginning
 * is taken to lie inside of the dim, as in every slice that means to take something. */
static struct mlo_dim symbolic_cut(const struct mlo_node *node, struct mlo_dim dim, struct mlo_expr from,
                                   struct mlo_expr to)
{
    struct mlo_arena *arena = node->graph->model->arena;
    struct mlo_expr size = mlo_expr_of_dim(dim), taken;
    from = within_any_dim(from);
    to = within_any_dim(to);
    bool to_end = to.kind == MLO_EXPR_NUMBER && to.number >= INT32_MAX;
    if (from.kind == MLO_EXPR_NUMBER && from.number < 0 && to_end) /* the last few */
        return mlo_dim_of_expr(mlo_expr_min(arena, mlo_expr_number(-from.number), size));
    if (from.kind == MLO_EXPR_NUMBER && from.number >= 0 && to.kind == MLO_EXPR_NUMBER && to.number > 0 &&
        !to_end &&
        (from.number > 0 || to.number == 1)) /* one is taken, or none of an empty dim, which nobody means */
        return from.number + 1 == to.number ? mlo_dim_fixed(1) : mlo_dim_unknown();
    if (from.kind == MLO_EXPR_NUMBER && from.number > 0) {
        struct mlo_expr end = to_end ? size : position(arena, to, size);
        return mlo_dim_of_expr(mlo_expr_sub(arena, end, from));
    }
    taken = position(arena, to, size);
    if (from.kind == MLO_EXPR_TEXT && mlo_expr_same(taken, mlo_expr_add(arena, from, mlo_expr_number(1))))
        return mlo_dim_fixed(1);
    taken = mlo_expr_sub(arena, taken, position(arena, from, size));
    return mlo_dim_of_expr(taken);
}

/* Starts and ends that are symbolic, for the axes and steps that are numbers; false when nothing can be told.
 */
static bool symbolic_slice(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err,
                           enum mlo_status *status)
{
    struct mlo_expr list[4][MLO_MAX_RANK];
    size_t counts[4] = {0};
    *status = MLO_OK;
    for (int i = 1; i < MLO_MIN(node->input_count, 5); i++)
        if (mlo_op_in(node, i) &&
            (!mlo_op_exprs(node, i, list[i - 1], MLO_MAX_RANK, &counts[i - 1]) || counts[i - 1] != counts[0]))
            return false;
    struct mlo_type result = *mlo_op_in(node, 0);
    for (size_t i = 0; i < counts[0]; i++) {
        int axis;
        struct mlo_expr at = counts[2] ? list[2][i] : mlo_expr_number((int64_t)i);
        struct mlo_expr step = counts[3] ? list[3][i] : mlo_expr_number(1);
        if (at.kind != MLO_EXPR_NUMBER)
            return false;
        if ((*status = mlo_op_axis(at.number, result.rank, &axis, err)) != MLO_OK)
            return false;
        bool forward = step.kind == MLO_EXPR_NUMBER && step.number == 1;
        result.dims[axis] =
            forward ? symbolic_cut(node, result.dims[axis], list[0][i], list[1][i]) : mlo_dim_unknown();
    }
    *out = result;
    return true;
}

static enum mlo_status infer_slice(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct slice_lists l;
    struct cut cut;
    out[0] = *mlo_op_in(node, 0);
    MLO_TRY(read_lists(node, &l, err));
    if (out[0].rank < 0)
        goto out;
    if (!l.known) {
        if (symbolic_slice(node, &out[0], err, &status) || status != MLO_OK)
            goto out;
        for (int i = 0; i < out[0].rank; i++)
            out[0].dims[i] = mlo_dim_unknown();
        goto out;
    }
    MLO_TRY(make_cut(&l, mlo_op_in(node, 0), &cut, err));
    for (int i = 0; i < out[0].rank; i++)
        if (cut.count[i] >= 0)
            out[0].dims[i] = mlo_dim_fixed(cut.count[i]);
        else if (cut.count[i] == -2)
            out[0].dims[i] = cut.step[i] == 1
                                 ? symbolic_cut(node, out[0].dims[i], mlo_expr_number(cut.start[i]),
                                                mlo_expr_number(cut.end[i]))
                                 : mlo_dim_unknown();
out:
    return status;
}

/* Short runs of the usual sizes without a call. */
static void copy_run(char *to, const char *from, size_t bytes)
{
    if (bytes == 4)
        memcpy(to, from, 4);
    else if (bytes == 8)
        memcpy(to, from, 8);
    else if (bytes == 16)
        memcpy(to, from, 16);
    else
        memcpy(to, from, bytes);
}

static void copy_cut(const struct mlo_tensor *x, struct mlo_tensor *y, const struct cut *cut, size_t width)
{
    int64_t at[MLO_MAX_RANK] = {0}, stride[MLO_MAX_RANK], step = 1;
    for (int i = x->rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= x->dims[i];
    }
    size_t count = mlo_tensor_count(y), run = 1;
    int outer = x->rank; /* what lies behind it is taken in runs */
    while (count && outer > 0 && cut->step[outer - 1] == 1) {
        outer--;
        run *= (size_t)y->dims[outer];
        if (y->dims[outer] != x->dims[outer])
            break;
    }
    int64_t begin = 0;
    for (int k = 0; k < x->rank; k++)
        begin += cut->start[k] * stride[k];
    for (size_t i = 0; i < count; i += run) {
        int64_t from = begin;
        for (int k = 0; k < outer; k++)
            from += at[k] * cut->step[k] * stride[k];
        copy_run((char *)y->data + i * width, (const char *)x->data + (size_t)from * width, run * width);
        for (int k = outer - 1; k >= 0 && ++at[k] == y->dims[k]; k--)
            at[k] = 0;
    }
}

static enum mlo_status eval_slice(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct slice_lists l;
    struct cut cut;
    struct mlo_value values[5] = {0}, *inputs[5] = {0};
    struct mlo_node stand_in = *node; /* the lists are read through the node, of the tensors at hand */
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < node->input_count; i++)
        if (in[i]) {
            values[i].constant = (struct mlo_tensor *)in[i];
            inputs[i] = &values[i];
        }
    stand_in.inputs = inputs;
    MLO_TRY(read_lists(&stand_in, &l, err));
    struct mlo_type x = mlo_type_of(in[0]);
    MLO_TRY(make_cut(&l, &x, &cut, err));
    size_t width = mlo_dtype_bytes(in[0]->dtype);
    if (!width) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    copy_cut(in[0], out[0], &cut, width);
out:
    return status;
}

enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };

static enum mlo_status pad_mode(const struct mlo_node *node, enum pad_mode *mode, struct mlo_error *err)
{
    static const char *const names[] = {"constant", "reflect", "edge", "wrap"};
    const char *text = mlo_node_attr_s(node, "mode", "constant");
    for (unsigned i = 0; i < MLO_COUNT(names); i++)
        if (strcmp(names[i], text) == 0) {
            *mode = (enum pad_mode)i;
            return MLO_OK;
        }
    return mlo_error_set(err, MLO_EINVAL, "attribute 'mode' is '%.40s'", text);
}

/* Padding before and behind each dim. The list is an attribute up to opset 10, input 1 (for the axes of input
 * 3, from 18 on) from there on. */
static enum mlo_status read_pads(const struct mlo_node *node, const struct mlo_tensor *list,
                                 const struct mlo_tensor *axes, int rank, int64_t *begin, int64_t *end,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t pads[2 * MLO_MAX_RANK], chosen[MLO_MAX_RANK];
    int count = 0, axis_count = rank;
    for (int i = 0; i < rank; i++) {
        begin[i] = end[i] = 0;
        chosen[i] = i;
    }
    if (list) {
        MLO_TRY(mlo_op_read_ints(list, pads, 2 * MLO_MAX_RANK, &count, err));
        if (axes)
            MLO_TRY(mlo_op_read_ints(axes, chosen, MLO_MAX_RANK, &axis_count, err));
    } else {
        size_t n;
        const int64_t *attr = mlo_node_attr_ints(node, "pads", &n);
        count = n <= MLO_COUNT(pads) ? (int)n : -1;
        for (int i = 0; i < count; i++)
            pads[i] = attr[i];
    }
    if (count != 2 * axis_count) {
        status = mlo_error_set(err, MLO_EINVAL, "%d paddings for %d dims; two for each are wanted", count,
                               axis_count);
        goto out;
    }
    for (int i = 0; i < axis_count; i++) {
        int axis;
        MLO_TRY(mlo_op_axis(chosen[i], rank, &axis, err));
        begin[axis] = pads[i];
        end[axis] = pads[axis_count + i];
        if (begin[axis] < -INT32_MAX || begin[axis] > INT32_MAX || end[axis] < -INT32_MAX ||
            end[axis] > INT32_MAX) {
            status = mlo_error_set(err, MLO_EINVAL, "the padding of axis %d is too large", axis);
            goto out;
        }
    }
out:
    return status;
}

static enum mlo_status infer_pad(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t begin[MLO_MAX_RANK], end[MLO_MAX_RANK];
    enum pad_mode mode = PAD_CONSTANT;
    out[0] = *mlo_op_in(node, 0);
    MLO_TRY(pad_mode(node, &mode, err));
    if (out[0].rank < 0)
        goto out;
    if ((mlo_op_in(node, 1) && !mlo_op_content(node, 1)) ||
        (mlo_op_in(node, 3) && !mlo_op_content(node, 3))) {
        for (int i = 0; i < out[0].rank; i++)
            out[0].dims[i] = mlo_dim_unknown();
        goto out;
    }
    MLO_TRY(read_pads(node, mlo_op_content(node, 1), mlo_op_content(node, 3), out[0].rank, begin, end, err));
    for (int i = 0; i < out[0].rank; i++) {
        struct mlo_dim *dim = &out[0].dims[i];
        if (!begin[i] && !end[i])
            continue;
        int64_t size = dim->value, wide = size + begin[i] + end[i];
        if (size < 0) {
            struct mlo_arena *arena = node->graph->model->arena;
            *dim = mlo_dim_of_expr(
                mlo_expr_add(arena, mlo_expr_of_dim(*dim), mlo_expr_number(begin[i] + end[i])));
            continue;
        }
        int64_t most = MLO_MAX(begin[i], end[i]);
        if (wide < 0 || (mode == PAD_REFLECT && most >= size) || (mode != PAD_CONSTANT && size == 0)) {
            status = mlo_error_set(err, MLO_EINVAL, "dim %d, %lld, cannot be padded by %lld and %lld (%s)", i,
                                   (long long)size, (long long)begin[i], (long long)end[i],
                                   mlo_node_attr_s(node, "mode", "constant"));
            goto out;
        }
        *dim = mlo_dim_fixed(wide);
    }
out:
    return status;
}

/* The input position that an output position shows; -1: the constant. */
static int64_t source(enum pad_mode mode, int64_t at, int64_t size)
{
    if (at >= 0 && at < size)
        return at;
    switch (mode) {
    case PAD_REFLECT:
        return at < 0 ? -at : 2 * (size - 1) - at;
    case PAD_EDGE:
        return at < 0 ? 0 : size - 1;
    case PAD_WRAP:
        return (at % size + size) % size;
    default:
        return -1;
    }
}

static enum mlo_status eval_pad(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t begin[MLO_MAX_RANK], end[MLO_MAX_RANK], at[MLO_MAX_RANK] = {0}, stride[MLO_MAX_RANK], step = 1;
    enum pad_mode mode = PAD_CONSTANT;
    const struct mlo_tensor *x = in[0], *fill = node->input_count > 2 ? in[2] : NULL;
    struct mlo_tensor value = {0};
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(pad_mode(node, &mode, err));
    MLO_TRY(read_pads(node, node->input_count > 1 ? in[1] : NULL, node->input_count > 3 ? in[3] : NULL,
                      x->rank, begin, end, err));
    size_t width = mlo_dtype_bytes(x->dtype);
    if (!width || (fill && fill->dtype != x->dtype) || (fill && mlo_tensor_count(fill) != 1)) {
        status = mlo_op_bad_dtype(fill ? fill->dtype : x->dtype, err);
        goto out;
    }
    MLO_TRY(mlo_tensor_init(&value, x->dtype, 0, NULL, err));
    if (fill)
        memcpy(value.data, fill->data, width);
    else
        mlo_tensor_set_f64(&value, 0, mlo_node_attr_f(node, "value", 0));
    for (int i = x->rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= x->dims[i];
    }
    size_t count = mlo_tensor_count(out[0]);
    for (size_t i = 0; i < count; i++) {
        int64_t from = 0;
        for (int k = 0; k < x->rank && from >= 0; k++) {
            int64_t pos = source(mode, at[k] - begin[k], x->dims[k]);
            from = pos < 0 ? -1 : from + pos * stride[k];
        }
        const char *src = from < 0 ? value.data : (const char *)x->data + (size_t)from * width;
        memcpy((char *)out[0]->data + i * width, src, width);
        for (int k = x->rank - 1; k >= 0 && ++at[k] == out[0]->dims[k]; k--)
            at[k] = 0;
    }
out:
    mlo_tensor_clear(&value);
    return status;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
#define SLICE(since, least, most)                                                                            \
    {                                                                                                        \
        "", "Slice", since, infer_slice, eval_slice, KEEP, least, most, 1, 1                                 \
    }
#define PAD(since, least, most)                                                                              \
    {                                                                                                        \
        "", "Pad", since, infer_pad, eval_pad, MLO_OP_PURE, least, most, 1, 1                                \
    }

static const struct mlo_op rows[] = {
    SLICE(1, 1, 1), SLICE(10, 3, 5), SLICE(11, 3, 5), SLICE(13, 3, 5), PAD(2, 1, 1),
    PAD(11, 2, 3),  PAD(13, 2, 3),   PAD(18, 2, 4),   PAD(19, 2, 4),
};
const struct mlo_op_family mlo_ops_slice = {rows, MLO_COUNT(rows)};
