/* Ops that only change how the same elements are seen: their eval copies the bytes. */
#include "graph/ops/ops_impl.h"

static enum mlo_status eval_copy(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status != MLO_OK)
        return status;
    if (out[0]->size_bytes != in[0]->size_bytes)
        return mlo_error_set(err, MLO_EINTERNAL, "a view of another size");
    if (in[0]->size_bytes)
        memcpy(out[0]->data, in[0]->data, in[0]->size_bytes);
    return MLO_OK;
}

/* The product of the known dims, and of how many unknown ones; false when it overflows. */
static bool known_product(const struct mlo_type *type, int first, int end, int64_t *product, int *unknown)
{
    *product = 1;
    *unknown = 0;
    for (int i = first; i < end; i++)
        if (type->dims[i].value < 0)
            (*unknown)++;
        else if (__builtin_mul_overflow(*product, type->dims[i].value, product))
            return false;
    return true;
}

/* The product of some dims over the product of others, where equal ones cancel out first: what -1 stands for.
 */
static struct mlo_dim left_over(const struct mlo_node *node, const struct mlo_type *have,
                                const struct mlo_type *want)
{
    struct mlo_arena *arena = node->graph->model->arena;
    struct mlo_expr above = mlo_expr_number(1), below = mlo_expr_number(1);
    bool gone[MLO_MAX_RANK] = {0};
    for (int w = 0; w < want->rank; w++) {
        struct mlo_expr e = mlo_expr_of_dim(want->dims[w]);
        bool cancelled = false;
        for (int h = 0; h < have->rank && !cancelled; h++)
            if (!gone[h] && mlo_expr_same(mlo_expr_of_dim(have->dims[h]), e))
                gone[h] = cancelled = true;
        if (!cancelled)
            below = mlo_expr_mul(arena, below, e);
    }
    for (int h = 0; h < have->rank; h++)
        if (!gone[h])
            above = mlo_expr_mul(arena, above, mlo_expr_of_dim(have->dims[h]));
    struct mlo_expr quotient = mlo_expr_div(arena, above, below), back = mlo_expr_mul(arena, quotient, below);
    return mlo_expr_same(back, above) ? mlo_dim_of_expr(quotient) : mlo_dim_unknown();
}

/* What all numbers say: they must fit. */
static enum mlo_status check_count(const struct mlo_type *have, const struct mlo_type *want, bool rest,
                                   struct mlo_error *err)
{
    int64_t x, y;
    int unknown_x, unknown_y;
    if (!known_product(have, 0, have->rank, &x, &unknown_x))
        return mlo_error_set(err, MLO_EINVAL, "the input is too large");
    if (!known_product(want, 0, want->rank, &y, &unknown_y))
        return mlo_error_set(err, MLO_EINVAL, "the shape is too large");
    if (!unknown_x && !unknown_y && (rest ? (y == 0 || x % y) : x != y))
        return mlo_error_set(err, MLO_EINVAL, "%lld elements do not fit a shape of %s%lld", (long long)x,
                             rest ? "a multiple of " : "", (long long)y);
    return MLO_OK;
}

/* 0 copies the input's dim (unless allowzero), -1 is what is left over. */
static enum mlo_status reshape(const struct mlo_node *node, const struct mlo_type *x,
                               const struct mlo_expr *target, int rank, bool allow_zero, struct mlo_type *out,
                               struct mlo_error *err)
{
    struct mlo_type have = *x, want = {.rank = 0}; /* dims that are still to be accounted for */
    int inferred = -1;
    out->rank = rank;
    for (int i = 0; i < rank; i++) {
        bool number = target[i].kind == MLO_EXPR_NUMBER;
        if (number && target[i].number == 0 && !allow_zero) {
            if (x->rank >= 0 && i >= x->rank)
                return mlo_error_set(err, MLO_EINVAL, "shape[%d] is 0 (copy), but the input has rank %d", i,
                                     x->rank);
            out->dims[i] = x->rank < 0 ? mlo_dim_unknown() : x->dims[i];
            if (x->rank >= 0)
                have.dims[i] = mlo_dim_fixed(1); /* cancels out, known or not */
            if (x->rank >= 0 && x->dims[i].value == 0)
                want.dims[want.rank++] = have.dims[i] = mlo_dim_fixed(0);
        } else if (number && target[i].number == -1) {
            if (inferred >= 0)
                return mlo_error_set(err, MLO_EINVAL, "shape[%d] and shape[%d] are both -1", inferred, i);
            inferred = i;
            out->dims[i] = mlo_dim_unknown();
        } else if (number && target[i].number < 0) {
            return mlo_error_set(err, MLO_EINVAL, "shape[%d] is %lld", i, (long long)target[i].number);
        } else {
            out->dims[i] = mlo_dim_of_expr(target[i]);
            want.dims[want.rank++] = out->dims[i];
        }
    }
    if (x->rank < 0)
        return MLO_OK;
    enum mlo_status status = check_count(&have, &want, inferred >= 0, err);
    if (status == MLO_OK && inferred >= 0)
        out->dims[inferred] = left_over(node, &have, &want);
    return status;
}

static enum mlo_status infer_reshape(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0), *list = mlo_op_in(node, 1);
    const struct mlo_tensor *shape = mlo_op_content(node, 1);
    struct mlo_expr target[MLO_MAX_RANK];
    int64_t numbers[MLO_MAX_RANK];
    size_t rank;
    int count;
    out[0].dtype = x->dtype;
    if (shape) { /* numbers: checked */
        enum mlo_status status = mlo_op_read_ints(shape, numbers, MLO_MAX_RANK, &count, err);
        if (status != MLO_OK)
            return status;
    }
    if (mlo_op_exprs(node, 1, target, MLO_MAX_RANK, &rank))
        return reshape(node, x, target, (int)rank, mlo_node_attr_i(node, "allowzero", 0) != 0, &out[0], err);
    if (list->rank == 1 && list->dims[0].value >= 0 && list->dims[0].value <= MLO_MAX_RANK) {
        out[0].rank = (int)list->dims[0].value;
        for (int i = 0; i < out[0].rank; i++)
            out[0].dims[i] = mlo_dim_unknown();
    }
    return MLO_OK;
}

static enum mlo_status infer_flatten(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    int axis;
    out[0].dtype = x->dtype;
    out[0].rank = 2;
    out[0].dims[0] = out[0].dims[1] = mlo_dim_unknown();
    if (x->rank < 0)
        return MLO_OK;
    enum mlo_status status = mlo_op_axis(mlo_node_attr_i(node, "axis", 1), x->rank + 1, &axis, err);
    if (mlo_node_attr_i(node, "axis", 1) < 0) /* counted from rank, which is a valid position here */
        status = mlo_op_axis(mlo_node_attr_i(node, "axis", 1) + x->rank, x->rank + 1, &axis, err);
    if (status != MLO_OK)
        return status;
    for (int side = 0; side < 2; side++) {
        int first = side ? axis : 0, end = side ? x->rank : axis, unknown;
        int64_t product;
        if (!known_product(x, first, end, &product, &unknown))
            return mlo_error_set(err, MLO_EINVAL, "the input is too large");
        out[0].dims[side] = mlo_dim_fixed(1);
        for (int i = first; i < end; i++)
            out[0].dims[side] = mlo_op_dim_mul(node, out[0].dims[side], x->dims[i]);
    }
    return MLO_OK;
}

/* Axes by attribute up to opset 12, by input 1 from there on. *known is false when the input's content is
 * not. */
static enum mlo_status read_axes(const struct mlo_node *node, int rank, bool *chosen, int *count, bool *known,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t from_input[MLO_MAX_RANK];
    size_t n;
    const int64_t *axes = mlo_node_attr_ints(node, "axes", &n);
    const struct mlo_tensor *input = mlo_op_content(node, 1);
    memset(chosen, 0, MLO_MAX_RANK * sizeof *chosen);
    *count = 0;
    *known = input || !mlo_op_in(node, 1);
    if (input) {
        int m;
        MLO_TRY(mlo_op_read_ints(input, from_input, MLO_MAX_RANK, &m, err));
        axes = from_input;
        n = (size_t)m;
    }
    for (size_t i = 0; i < n; i++) {
        int axis;
        MLO_TRY(mlo_op_axis(axes[i], rank, &axis, err));
        if (chosen[axis]) {
            status = mlo_error_set(err, MLO_EINVAL, "axis %d is there twice", axis);
            goto out;
        }
        chosen[axis] = true;
        (*count)++;
    }
out:
    return status;
}

static enum mlo_status infer_squeeze(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    bool chosen[MLO_MAX_RANK], known;
    int count;
    out[0].dtype = x->dtype;
    if (x->rank < 0)
        return MLO_OK;
    enum mlo_status status = read_axes(node, x->rank, chosen, &count, &known, err);
    if (status != MLO_OK || !known)
        return status;
    struct mlo_type result = {.dtype = x->dtype};
    for (int i = 0; i < x->rank; i++) {
        if (!count && x->dims[i].value < 0)
            return MLO_OK; /* whether it goes is not known, and so not the rank */
        bool drop = count ? chosen[i] : x->dims[i].value == 1;
        if (drop && x->dims[i].value >= 0 && x->dims[i].value != 1)
            return mlo_error_set(err, MLO_EINVAL, "dim %d is %lld and cannot be squeezed", i,
                                 (long long)x->dims[i].value);
        if (!drop)
            result.dims[result.rank++] = x->dims[i];
    }
    out[0] = result;
    return MLO_OK;
}

static enum mlo_status infer_unsqueeze(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    const struct mlo_tensor *input = mlo_op_content(node, 1);
    bool chosen[MLO_MAX_RANK], known;
    size_t n;
    int count;
    out[0].dtype = x->dtype;
    mlo_node_attr_ints(node, "axes", &n);
    if (input)
        n = mlo_tensor_count(input);
    if (x->rank < 0 || (mlo_op_in(node, 1) && !input))
        return MLO_OK;
    if (n > (size_t)(MLO_MAX_RANK - x->rank))
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a result of more than %d dims", MLO_MAX_RANK);
    int rank = x->rank + (int)n;
    enum mlo_status status = read_axes(node, rank, chosen, &count, &known, err);
    if (status != MLO_OK)
        return status;
    out[0].rank = rank;
    for (int i = 0, from = 0; i < rank; i++)
        out[0].dims[i] = chosen[i] ? mlo_dim_fixed(1) : x->dims[from++];
    return MLO_OK;
}

static enum mlo_status refuse_training(const struct mlo_tensor *training, struct mlo_error *err)
{
    if (!training || mlo_tensor_count(training) != 1 || !mlo_tensor_get_i64(training, 0))
        return MLO_OK;
    mlo_error_set(err, MLO_EUNSUPPORTED, "Dropout in training mode");
    mlo_error_hint(err, "export the model for inference: model.eval() before torch.onnx.export");
    return MLO_EUNSUPPORTED;
}

/* For inference Dropout passes its input on; the mask, if anybody asks, is all true. */
static enum mlo_status infer_dropout(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = refuse_training(mlo_op_content(node, 2), err);
    if (status != MLO_OK)
        return status;
    out[0] = *mlo_op_in(node, 0);
    if (node->output_count > 1) {
        out[1] = out[0];
        out[1].dtype = node->op->since >= 10 ? MLO_BOOL : out[0].dtype;
    }
    return MLO_OK;
}

static enum mlo_status eval_dropout(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = node->input_count > 2 ? refuse_training(in[2], err) : MLO_OK; /* fed at run */
    if (status == MLO_OK)
        status = eval_copy(node, in, out, err);
    if (status == MLO_OK && node->output_count > 1 && out[1])
        for (size_t i = 0; i < mlo_tensor_count(out[1]); i++)
            mlo_tensor_set_f64(out[1], i, 1);
    return status;
}

/* The only view that takes sequences and optionals too. */
static enum mlo_status eval_identity(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    return mlo_holds_values(in[0]->dtype) ? mlo_tensor_copy(in[0], out[0], err)
                                          : eval_copy(node, in, out, err);
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
#define VIEW(name, since, fn, least, most)                                                                   \
    {                                                                                                        \
        "", name, since, fn, eval_copy, FLAGS, least, most, 1, 1                                             \
    }
#define IDENTITY(since)                                                                                      \
    {                                                                                                        \
        "", "Identity", since, mlo_op_infer_same, eval_identity, FLAGS | MLO_OP_VALUES, 1, 1, 1, 1           \
    }
#define DROPOUT(since, most)                                                                                 \
    {                                                                                                        \
        "", "Dropout", since, infer_dropout, eval_dropout, FLAGS | MLO_OP_ELEMENTWISE, 1, most, 1, 2         \
    }

static const struct mlo_op rows[] = {
    VIEW("Reshape", 5, infer_reshape, 2, 2),
    VIEW("Reshape", 13, infer_reshape, 2, 2),
    VIEW("Reshape", 14, infer_reshape, 2, 2),
    VIEW("Flatten", 1, infer_flatten, 1, 1),
    VIEW("Flatten", 9, infer_flatten, 1, 1),
    VIEW("Flatten", 11, infer_flatten, 1, 1),
    VIEW("Flatten", 13, infer_flatten, 1, 1),
    VIEW("Squeeze", 1, infer_squeeze, 1, 1),
    VIEW("Squeeze", 11, infer_squeeze, 1, 1),
    VIEW("Squeeze", 13, infer_squeeze, 1, 2),
    VIEW("Unsqueeze", 1, infer_unsqueeze, 1, 1),
    VIEW("Unsqueeze", 11, infer_unsqueeze, 1, 1),
    VIEW("Unsqueeze", 13, infer_unsqueeze, 2, 2),
    IDENTITY(1),
    IDENTITY(13),
    IDENTITY(14),
    IDENTITY(16),
    DROPOUT(7, 1),
    DROPOUT(10, 1),
    DROPOUT(12, 3),
    DROPOUT(13, 3),
};
const struct mlo_op_family mlo_ops_view = {rows, MLO_COUNT(rows)};
