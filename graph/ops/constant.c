/* Ops that make tensors of attributes and shapes: Constant, ConstantOfShape, Shape, Size, Range, Expand,
 * Tile. */
#include <math.h>

#include "graph/ops/ops_impl.h"

/* The one attribute of a Constant as a tensor; the scalar kinds are put in *scratch. */
static enum mlo_status constant_value(const struct mlo_node *node, struct mlo_tensor *view,
                                      struct mlo_error *err)
{
    const struct mlo_attr *a;
    if ((a = mlo_node_attr(node, "value")) && a->type == MLO_ATTR_TENSOR)
        *view = *a->tensor;
    else if ((a = mlo_node_attr(node, "value_float")) && a->type == MLO_ATTR_FLOAT)
        *view = (struct mlo_tensor){.dtype = MLO_FLOAT32, .data = (void *)&a->f, .size_bytes = 4};
    else if ((a = mlo_node_attr(node, "value_int")) && a->type == MLO_ATTR_INT)
        *view = (struct mlo_tensor){.dtype = MLO_INT64, .data = (void *)&a->i, .size_bytes = 8};
    else if ((a = mlo_node_attr(node, "value_floats")) && a->type == MLO_ATTR_FLOATS)
        *view = (struct mlo_tensor){MLO_FLOAT32,         1,    {(int64_t)a->floats.count}, a->floats.f,
                                    a->floats.count * 4, false};
    else if ((a = mlo_node_attr(node, "value_ints")) && a->type == MLO_ATTR_INTS)
        *view =
            (struct mlo_tensor){MLO_INT64, 1, {(int64_t)a->ints.count}, a->ints.i, a->ints.count * 8, false};
    else
        return mlo_error_set(err, MLO_EUNSUPPORTED, "its value is missing, sparse, or made of strings");
    view->owned = false;
    return MLO_OK;
}

static enum mlo_status infer_constant(const struct mlo_node *node, struct mlo_type *out,
                                      struct mlo_error *err)
{
    struct mlo_tensor view;
    enum mlo_status status = constant_value(node, &view, err);
    if (status == MLO_OK)
        out[0] = mlo_type_of(&view);
    return status;
}

static enum mlo_status eval_constant(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    struct mlo_tensor view;
    MLO_UNUSED(in);
    enum mlo_status status = constant_value(node, &view, err);
    return status == MLO_OK ? mlo_tensor_copy(&view, out[0], err) : status;
}

/* A shape given as an input: its dims, or at least how many. */
static enum mlo_status shape_operand(const struct mlo_node *node, int i, struct mlo_type *out,
                                     struct mlo_error *err)
{
    const struct mlo_tensor *shape = mlo_op_content(node, i);
    const struct mlo_type *list = mlo_op_in(node, i);
    int64_t dims[MLO_MAX_RANK];
    int rank;
    struct mlo_expr symbols[MLO_MAX_RANK];
    size_t count;
    if (!shape && mlo_op_exprs(node, i, symbols, MLO_MAX_RANK, &count)) {
        out->rank = (int)count;
        for (size_t k = 0; k < count; k++)
            out->dims[k] = mlo_dim_of_expr(symbols[k]);
        return MLO_OK;
    }
    if (!shape) {
        bool counted = list->rank == 1 && list->dims[0].value >= 0 && list->dims[0].value <= MLO_MAX_RANK;
        out->rank = counted ? (int)list->dims[0].value : -1;
        for (int k = 0; k < out->rank; k++)
            out->dims[k] = mlo_dim_unknown();
        return MLO_OK;
    }
    enum mlo_status status = mlo_op_read_ints(shape, dims, MLO_MAX_RANK, &rank, err);
    if (status != MLO_OK)
        return status;
    out->rank = rank;
    for (int k = 0; k < rank; k++) {
        if (dims[k] < 0)
            return mlo_error_set(err, MLO_EINVAL, "shape[%d] is %lld", k, (long long)dims[k]);
        out->dims[k] = mlo_dim_fixed(dims[k]);
    }
    return MLO_OK;
}

static enum mlo_status infer_filled(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_attr *value = mlo_node_attr(node, "value");
    out[0].dtype = MLO_FLOAT32;
    if (value && (value->type != MLO_ATTR_TENSOR || mlo_tensor_count(value->tensor) != 1))
        return mlo_error_set(err, MLO_EINVAL, "attribute 'value' is no tensor of one element");
    if (value)
        out[0].dtype = value->tensor->dtype;
    return shape_operand(node, 0, &out[0], err);
}

static enum mlo_status eval_filled(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    const struct mlo_attr *value = mlo_node_attr(node, "value");
    if (status != MLO_OK || !value)
        return status;
    size_t width = mlo_dtype_bytes(out[0]->dtype);
    if (!width)
        return mlo_op_bad_dtype(out[0]->dtype, err);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++)
        memcpy((char *)out[0]->data + i * width, value->tensor->data, width);
    return MLO_OK;
}

static void shape_range(const struct mlo_node *node, int rank, int *first, int *end)
{
    int64_t start = mlo_node_attr_i(node, "start", 0), stop = mlo_node_attr_i(node, "end", rank);
    start = start < 0 ? start + rank : start;
    stop = stop < 0 ? stop + rank : stop;
    *first = (int)MLO_MIN(MLO_MAX(start, 0), rank);
    *end = MLO_MAX((int)MLO_MIN(MLO_MAX(stop, 0), rank), *first);
}

static enum mlo_status infer_shape(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    MLO_UNUSED(err);
    int first, end;
    out[0] = (struct mlo_type){MLO_INT64, 1, {mlo_dim_unknown()}};
    if (mlo_op_ranked(node, 0)) {
        shape_range(node, mlo_op_in(node, 0)->rank, &first, &end);
        out[0].dims[0] = mlo_dim_fixed(end - first);
    }
    return MLO_OK;
}

static enum mlo_status eval_shape(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    int first, end;
    if (status != MLO_OK)
        return status;
    shape_range(node, in[0]->rank, &first, &end);
    for (int i = first; i < end; i++)
        ((int64_t *)out[0]->data)[i - first] = in[0]->dims[i];
    return MLO_OK;
}

static enum mlo_status infer_size(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    MLO_UNUSED(node), MLO_UNUSED(err);
    out[0] = (struct mlo_type){.dtype = MLO_INT64};
    return MLO_OK;
}

static enum mlo_status eval_size(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status == MLO_OK)
        *(int64_t *)out[0]->data = (int64_t)mlo_tensor_count(in[0]);
    return status;
}

/* start, limit, delta: how many steps; -1 when not known. */
static enum mlo_status range_count(const struct mlo_tensor *const *ends, int64_t *count,
                                   struct mlo_error *err)
{
    *count = -1;
    for (int i = 0; i < 3; i++) {
        if (!ends[i])
            return MLO_OK;
        if (mlo_tensor_count(ends[i]) != 1 || ends[i]->dtype != ends[0]->dtype)
            return mlo_error_set(err, MLO_EINVAL, "start, limit and delta are not scalars of one type");
    }
    double start = mlo_tensor_get_f64(ends[0], 0), limit = mlo_tensor_get_f64(ends[1], 0);
    double delta = mlo_tensor_get_f64(ends[2], 0), steps = ceil((limit - start) / delta);
    if (delta == 0 || !isfinite(steps) || steps > 1e12)
        return mlo_error_set(err, MLO_EINVAL, "a range from %g to %g by %g", start, limit, delta);
    *count = steps > 0 ? (int64_t)steps : 0;
    return MLO_OK;
}

/* The same of symbolic ends: (limit - start) / delta, rounded up, and taken to be no less than 0. */
static struct mlo_dim symbolic_count(const struct mlo_node *node)
{
    struct mlo_arena *arena = node->graph->model->arena;
    struct mlo_expr ends[3];
    size_t count;
    for (int i = 0; i < 3; i++)
        if (!mlo_op_exprs(node, i, &ends[i], 1, &count) || count != 1)
            return mlo_dim_unknown();
    if (ends[2].kind != MLO_EXPR_NUMBER || ends[2].number < 1)
        return mlo_dim_unknown();
    struct mlo_expr room = mlo_expr_sub(arena, ends[1], ends[0]);
    room = mlo_expr_add(arena, room, mlo_expr_number(ends[2].number - 1));
    return mlo_dim_of_expr(mlo_expr_div(arena, room, ends[2]));
}

static enum mlo_status infer_range(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_tensor *ends[3] = {mlo_op_content(node, 0), mlo_op_content(node, 1),
                                        mlo_op_content(node, 2)};
    int64_t count;
    enum mlo_status status = range_count(ends, &count, err);
    out[0] = (struct mlo_type){mlo_op_in(node, 0)->dtype, 1, {{count, NULL}}};
    if (status == MLO_OK && count < 0)
        out[0].dims[0] = symbolic_count(node);
    return status;
}

static enum mlo_status eval_range(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status != MLO_OK)
        return status;
    bool integer = mlo_dtype_info(in[0]->dtype)->is_integer;
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++)
        if (integer)
            mlo_store_i64(out[0], i, /* it wraps where the type's own sums would */
                          (int64_t)((uint64_t)mlo_tensor_get_i64(in[0], 0) +
                                    (uint64_t)i * (uint64_t)mlo_tensor_get_i64(in[2], 0)));
        else
            mlo_tensor_set_f64(out[0], i,
                               mlo_tensor_get_f64(in[0], 0) + (double)i * mlo_tensor_get_f64(in[2], 0));
    return MLO_OK;
}

static enum mlo_status infer_expand(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    struct mlo_type target = {.rank = -1};
    enum mlo_status status = shape_operand(node, 1, &target, err);
    if (status == MLO_OK)
        status = mlo_op_broadcast(mlo_op_in(node, 0), &target, &out[0], err);
    out[0].dtype = mlo_op_in(node, 0)->dtype;
    return status;
}

static enum mlo_status eval_expand(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status != MLO_OK)
        return status;
    size_t width = mlo_dtype_bytes(in[0]->dtype);
    struct mlo_strides s;
    if (!width)
        return mlo_op_bad_dtype(in[0]->dtype, err);
    mlo_strides_init(&s, out[0], in[0], in[0]);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++, mlo_strides_next(&s))
        memcpy((char *)out[0]->data + i * width, (const char *)in[0]->data + s.offset[0] * width, width);
    return MLO_OK;
}

static enum mlo_status infer_tile(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    struct mlo_type repeats = {.rank = -1};
    enum mlo_status status = shape_operand(node, 1, &repeats, err);
    out[0] = *mlo_op_in(node, 0);
    if (status != MLO_OK || out[0].rank < 0)
        return status;
    if (repeats.rank >= 0 && repeats.rank != out[0].rank)
        return mlo_error_set(err, MLO_EINVAL, "%d repeats for %d dims", repeats.rank, out[0].rank);
    for (int i = 0; i < out[0].rank; i++) {
        struct mlo_dim *dim = &out[0].dims[i];
        struct mlo_dim factor = repeats.rank < 0 ? mlo_dim_unknown() : repeats.dims[i];
        int64_t times = factor.value, product = -1;
        if (times >= 0 && dim->value >= 0 && __builtin_mul_overflow(times, dim->value, &product))
            return mlo_error_set(err, MLO_EINVAL, "the result is too large");
        *dim = mlo_op_dim_mul(node, *dim, factor);
    }
    return MLO_OK;
}

static enum mlo_status eval_tile(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status != MLO_OK)
        return status;
    const struct mlo_tensor *x = in[0], *y = out[0];
    size_t width = mlo_dtype_bytes(x->dtype);
    if (!width)
        return mlo_op_bad_dtype(x->dtype, err);
    for (size_t i = 0; i < mlo_tensor_count(y); i++) {
        size_t from = 0, left = i, step = 1;
        for (int d = x->rank - 1; d >= 0; d--) {
            from += left % (size_t)y->dims[d] % (size_t)x->dims[d] * step;
            left /= (size_t)y->dims[d];
            step *= (size_t)x->dims[d];
        }
        memcpy((char *)y->data + i * width, (const char *)x->data + from * width, width);
    }
    return MLO_OK;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
#define CONSTANT(since)                                                                                      \
    {                                                                                                        \
        "", "Constant", since, infer_constant, eval_constant, MLO_OP_PURE, 0, 0, 1, 1                        \
    }
#define SHAPE(name, since, infer, eval)                                                                      \
    {                                                                                                        \
        "", name, since, infer, eval, MLO_OP_PURE, 1, 1, 1, 1                                                \
    }

static const struct mlo_op rows[] = {
    CONSTANT(1),
    CONSTANT(9),
    CONSTANT(11),
    CONSTANT(12),
    CONSTANT(13),
    SHAPE("ConstantOfShape", 9, infer_filled, eval_filled),
    SHAPE("Shape", 1, infer_shape, eval_shape),
    SHAPE("Shape", 13, infer_shape, eval_shape),
    SHAPE("Shape", 15, infer_shape, eval_shape),
    SHAPE("Size", 1, infer_size, eval_size),
    SHAPE("Size", 13, infer_size, eval_size),
    {"", "Range", 11, infer_range, eval_range, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "Expand", 8, infer_expand, eval_expand, KEEP, 2, 2, 1, 1},
    {"", "Expand", 13, infer_expand, eval_expand, KEEP, 2, 2, 1, 1},
    {"", "Tile", 6, infer_tile, eval_tile, KEEP, 2, 2, 1, 1},
    {"", "Tile", 13, infer_tile, eval_tile, KEEP, 2, 2, 1, 1},
};
const struct mlo_op_family mlo_ops_constant = {rows, MLO_COUNT(rows)};
