/* Ops that copy elements to other places: Transpose, Concat, Split, Pad, DepthToSpace, SpaceToDepth. */
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

/* y's element at (i0, i1, …) is x's at base + sum of ik * step[k]. */
static void gather_strided(const struct mlo_tensor *x, struct mlo_tensor *y, int rank, const int64_t *dims,
                           const int64_t *step, size_t width)
{
    int64_t at[2 * MLO_MAX_RANK] = {0};
    size_t from = 0, count = mlo_tensor_count(y);
    for (size_t i = 0; i < count; i++) {
        memcpy((char *)y->data + i * width, (const char *)x->data + from * width, width);
        for (int k = rank - 1; k >= 0; k--) {
            from += (size_t)step[k];
            if (++at[k] < dims[k])
                break;
            from -= (size_t)(step[k] * dims[k]);
            at[k] = 0;
        }
    }
}

static void steps_of(const struct mlo_tensor *x, int64_t *step)
{
    int64_t stride = 1;
    for (int i = x->rank - 1; i >= 0; i--) {
        step[i] = stride;
        stride *= x->dims[i];
    }
}

static enum mlo_status permutation(const struct mlo_node *node, int rank, int *perm, struct mlo_error *err)
{
    size_t count;
    bool seen[MLO_MAX_RANK] = {0};
    const int64_t *list = mlo_node_attr_ints(node, "perm", &count);
    if (list && count != (size_t)rank)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'perm' has %zu numbers for %d dims", count, rank);
    for (int i = 0; i < rank; i++) {
        int64_t p = list ? list[i] : rank - 1 - i;
        if (p < 0 || p >= rank || seen[p])
            return mlo_error_set(err, MLO_EINVAL, "attribute 'perm' is no permutation of %d dims", rank);
        seen[p] = true;
        perm[i] = (int)p;
    }
    return MLO_OK;
}

static enum mlo_status infer_transpose(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    int perm[MLO_MAX_RANK];
    out[0].dtype = x->dtype;
    if (x->rank < 0)
        return MLO_OK;
    enum mlo_status status = permutation(node, x->rank, perm, err);
    if (status != MLO_OK)
        return status;
    out[0].rank = x->rank;
    for (int i = 0; i < x->rank; i++)
        out[0].dims[i] = x->dims[perm[i]];
    return MLO_OK;
}

static enum mlo_status eval_transpose(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int perm[MLO_MAX_RANK];
    int64_t from[MLO_MAX_RANK], step[MLO_MAX_RANK];
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(permutation(node, in[0]->rank, perm, err));
    size_t width = mlo_dtype_bytes(in[0]->dtype);
    if (!width) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    steps_of(in[0], from);
    for (int i = 0; i < in[0]->rank; i++)
        step[i] = from[perm[i]];
    gather_strided(in[0], out[0], in[0]->rank, out[0]->dims, step, width);
out:
    return status;
}

static enum mlo_status infer_concat(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis = -1;
    int64_t total = 0;
    struct mlo_dim sum = mlo_dim_fixed(0);
    struct mlo_type result = {.rank = -1};
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (!t || (result.dtype && t->dtype && t->dtype != result.dtype)) {
            status =
                mlo_error_set(err, MLO_EINVAL, "input %d is omitted, or of another type than the others", i);
            goto out;
        }
        result.dtype = result.dtype ? result.dtype : t->dtype;
    }
    out[0].dtype = result.dtype;
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (t->rank < 0)
            goto out;
        if (i == 0) {
            result.rank = t->rank;
            memcpy(result.dims, t->dims, sizeof result.dims);
            MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 1), t->rank, &axis, err));
        }
        for (int d = 0; d < t->rank && t->rank == result.rank; d++) {
            struct mlo_dim *both = &result.dims[d];
            if (d != axis && both->value >= 0 && t->dims[d].value >= 0 && both->value != t->dims[d].value) {
                status = mlo_error_set(err, MLO_EINVAL, "dim %d of input %d is %lld, and %lld before", d, i,
                                       (long long)t->dims[d].value, (long long)both->value);
                goto out;
            }
            if (d != axis && both->value < 0)
                *both = t->dims[d].value >= 0 || !both->name ? t->dims[d] : *both;
        }
        if (t->rank != result.rank) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d has rank %d, and those before %d", i, t->rank,
                                   result.rank);
            goto out;
        }
        int64_t here = t->dims[axis].value;
        sum = mlo_op_dim_add(node, sum, t->dims[axis]);
        if (here < 0 || total < 0)
            total = -1;
        else if (__builtin_add_overflow(total, here, &total)) {
            status = mlo_error_set(err, MLO_EINVAL, "the result is too large");
            goto out;
        }
    }
    result.dims[axis] = sum;
    out[0] = result;
out:
    return status;
}

/* Elements before, at and behind an axis: a tensor is `outer` rows of `dims[axis] * inner`. */
static void around(const struct mlo_tensor *t, int axis, size_t *outer, size_t *inner)
{
    *outer = *inner = 1;
    for (int i = 0; i < t->rank; i++)
        if (i != axis)
            *(i < axis ? outer : inner) *= (size_t)t->dims[i];
}

static enum mlo_status eval_concat(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis;
    size_t outer, inner, at = 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 1), out[0]->rank, &axis, err));
    size_t width = mlo_dtype_bytes(out[0]->dtype);
    if (!width) {
        status = mlo_op_bad_dtype(out[0]->dtype, err);
        goto out;
    }
    around(out[0], axis, &outer, &inner);
    size_t row = (size_t)out[0]->dims[axis] * inner * width;
    for (int i = 0; i < node->input_count; i++) {
        size_t piece = (size_t)in[i]->dims[axis] * inner * width;
        for (size_t o = 0; o < outer && piece; o++)
            memcpy((char *)out[0]->data + o * row + at, (const char *)in[i]->data + o * piece, piece);
        at += piece;
    }
out:
    return status;
}

/* Sizes of the parts: stated by attribute (up to opset 12) or input 1, else equal, the last one smaller. */
static enum mlo_status split_sizes(const struct mlo_node *node, const struct mlo_tensor *stated, int64_t size,
                                   int64_t *parts, struct mlo_error *err)
{
    size_t count;
    const int64_t *list = mlo_node_attr_ints(node, "split", &count);
    int64_t outputs = node->output_count, total = 0;
    if (stated)
        count = mlo_tensor_count(stated);
    if (stated || list) {
        if (count != (size_t)outputs)
            return mlo_error_set(err, MLO_EINVAL, "%zu sizes for %lld outputs", count, (long long)outputs);
        for (size_t i = 0; i < count; i++) {
            parts[i] = stated ? mlo_tensor_get_i64(stated, i) : list[i];
            if (parts[i] < 0 || __builtin_add_overflow(total, parts[i], &total))
                return mlo_error_set(err, MLO_EINVAL, "size %zu is %lld", i, (long long)parts[i]);
        }
        if (size >= 0 && total != size)
            return mlo_error_set(err, MLO_EINVAL, "the sizes sum to %lld, not %lld", (long long)total,
                                 (long long)size);
        return MLO_OK;
    }
    if (node->op->since < 18 && size >= 0 && size % outputs)
        return mlo_error_set(err, MLO_EINVAL, "%lld does not split into %lld equal parts", (long long)size,
                             (long long)outputs);
    int64_t each = size < 0 ? -1 : (size + outputs - 1) / outputs;
    for (int64_t i = 0; i < outputs; i++) {
        int64_t left = size - i * each;
        parts[i] = size < 0 ? -1 : MLO_MAX(MLO_MIN(each, left), 0);
    }
    return MLO_OK;
}

/* An equal part of a symbolic dim, when it is known to divide. */
static struct mlo_dim even_part(const struct mlo_node *node, struct mlo_dim dim)
{
    struct mlo_dim part = mlo_op_dim_div(node, dim, node->output_count);
    struct mlo_dim back = mlo_op_dim_mul(node, part, mlo_dim_fixed(node->output_count));
    bool even = !mlo_op_in(node, 1) && mlo_expr_same(mlo_expr_of_dim(back), mlo_expr_of_dim(dim));
    return even ? part : mlo_dim_unknown();
}

static enum mlo_status infer_split(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    int64_t *parts = calloc((size_t)node->output_count + 1, sizeof *parts);
    int axis;
    if (!parts)
        return mlo_error_nomem(err);
    for (int i = 0; i < node->output_count; i++)
        out[i] = *x;
    if (x->rank < 0)
        goto out;
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err));
    bool unknown = mlo_op_in(node, 1) && !mlo_op_content(node, 1);
    if (!unknown)
        MLO_TRY(split_sizes(node, mlo_op_content(node, 1), x->dims[axis].value, parts, err));
    for (int i = 0; i < node->output_count; i++)
        out[i].dims[axis] =
            unknown || parts[i] < 0 ? even_part(node, x->dims[axis]) : mlo_dim_fixed(parts[i]);
out:
    free(parts);
    return status;
}

static enum mlo_status eval_split(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis;
    size_t outer, inner, at = 0;
    int64_t *parts = calloc((size_t)node->output_count + 1, sizeof *parts);
    if (!parts)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), in[0]->rank, &axis, err));
    MLO_TRY(split_sizes(node, node->input_count > 1 ? in[1] : NULL, in[0]->dims[axis], parts, err));
    size_t width = mlo_dtype_bytes(in[0]->dtype);
    if (!width) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    around(in[0], axis, &outer, &inner);
    size_t row = (size_t)in[0]->dims[axis] * inner * width;
    for (int i = 0; i < node->output_count; i++) {
        size_t piece = (size_t)parts[i] * inner * width;
        for (size_t o = 0; out[i] && o < outer && piece; o++)
            memcpy((char *)out[i]->data + o * piece, (const char *)in[0]->data + o * row + at, piece);
        at += piece;
    }
out:
    free(parts);
    return status;
}

/* Both ops see the image as blocks: six dims, permuted. */
static enum mlo_status blocks(const struct mlo_node *node, const struct mlo_type *x, struct mlo_type *out,
                              struct mlo_error *err)
{
    int64_t b = mlo_node_attr_i(node, "blocksize", 0);
    bool to_space = mlo_node_is(node, "DepthToSpace");
    *out = *x;
    if (x->rank >= 0 && x->rank != 4)
        return mlo_error_set(err, MLO_EINVAL, "the input has rank %d, not 4", x->rank);
    if (b < 1 || b > 1 << 15)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'blocksize' is %lld", (long long)b);
    for (int i = 1; i < x->rank; i++) {
        bool grows = (i > 1) == to_space;
        int64_t factor = i == 1 ? b * b : b, value = x->dims[i].value;
        if (value < 0)
            out->dims[i] = grows ? mlo_op_dim_mul(node, x->dims[i], mlo_dim_fixed(factor))
                                 : mlo_op_dim_div(node, x->dims[i], factor);
        else if (!grows && value % factor)
            return mlo_error_set(err, MLO_EINVAL, "dim %d, %lld, is no multiple of %lld", i, (long long)value,
                                 (long long)factor);
        else if (grows && __builtin_mul_overflow(value, factor, &value))
            return mlo_error_set(err, MLO_EINVAL, "the result is too large");
        else
            out->dims[i] = mlo_dim_fixed(grows ? value : value / factor);
    }
    return MLO_OK;
}

static enum mlo_status infer_blocks(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    return blocks(node, mlo_op_in(node, 0), &out[0], err);
}

static enum mlo_status eval_blocks(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_alloc(node, in, out, err);
    if (status != MLO_OK)
        return status;
    int64_t b = mlo_node_attr_i(node, "blocksize", 1);
    const struct mlo_tensor *x = in[0], *y = out[0];
    size_t width = mlo_dtype_bytes(x->dtype);
    if (!width)
        return mlo_op_bad_dtype(x->dtype, err);
    if (mlo_node_is(node, "SpaceToDepth")) {
        /* y[n, (bh, bw, c), h, w] = x[n, c, h * b + bh, w * b + bw] */
        int64_t row = x->dims[3], plane = x->dims[2] * row;
        const int64_t dims[6] = {x->dims[0], b, b, x->dims[1], y->dims[2], y->dims[3]};
        const int64_t step[6] = {x->dims[1] * plane, row, 1, plane, b * row, b};
        gather_strided(x, out[0], 6, dims, step, width);
        return MLO_OK;
    }
    /* y[n, c, h * b + bh, w * b + bw] = x[n, (bh, bw, c) or (c, bh, bw), h, w] */
    bool column_row = strcmp(mlo_node_attr_s(node, "mode", "DCR"), "CRD") == 0;
    int64_t depth = y->dims[1], plane = x->dims[2] * x->dims[3];
    int64_t c_step = column_row ? b * b * plane : plane, b_step = column_row ? plane : depth * plane;
    const int64_t dims[6] = {x->dims[0], depth, x->dims[2], b, x->dims[3], b};
    const int64_t step[6] = {x->dims[1] * plane, c_step, x->dims[3], b * b_step, 1, b_step};
    gather_strided(x, out[0], 6, dims, step, width);
    return MLO_OK;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
#define MOVE(name, since, infer, eval, most, outs)                                                           \
    {                                                                                                        \
        "", name, since, infer, eval, KEEP, 1, most, 1, outs                                                 \
    }

#define CONCAT(since)                                                                                        \
    {                                                                                                        \
        "", "Concat", since, infer_concat, eval_concat, MLO_OP_PURE, 1, ANY_COUNT, 1, 1                      \
    }

static const struct mlo_op rows[] = {
    MOVE("Transpose", 1, infer_transpose, eval_transpose, 1, 1),
    MOVE("Transpose", 13, infer_transpose, eval_transpose, 1, 1),
    CONCAT(4),
    CONCAT(11),
    CONCAT(13),
    MOVE("Split", 2, infer_split, eval_split, 1, ANY_COUNT),
    MOVE("Split", 11, infer_split, eval_split, 1, ANY_COUNT),
    MOVE("Split", 13, infer_split, eval_split, 2, ANY_COUNT),
    MOVE("Split", 18, infer_split, eval_split, 2, ANY_COUNT),
    MOVE("DepthToSpace", 1, infer_blocks, eval_blocks, 1, 1),
    MOVE("DepthToSpace", 11, infer_blocks, eval_blocks, 1, 1),
    MOVE("DepthToSpace", 13, infer_blocks, eval_blocks, 1, 1),
    MOVE("SpaceToDepth", 1, infer_blocks, eval_blocks, 1, 1),
    MOVE("SpaceToDepth", 13, infer_blocks, eval_blocks, 1, 1),
};
const struct mlo_op_family mlo_ops_move = {rows, MLO_COUNT(rows)};
