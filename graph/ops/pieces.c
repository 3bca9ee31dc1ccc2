/* Cutting and joining tensors along an axis. */
#include <unistd.h>

#include "graph/ops/pieces_impl.h"

#define CHECK_ABOVE ((size_t)1 << 30)

/* Bytes of one index of the axis, and how many of such rows there are before it. */
static void around(const struct mlo_tensor *t, int axis, size_t *outer, size_t *inner)
{
    *outer = 1;
    *inner = mlo_dtype_bytes(t->dtype);
    for (int i = 0; i < t->rank; i++)
        if (i != axis)
            *(i < axis ? outer : inner) *= (size_t)t->dims[i];
}

enum mlo_status mlo_piece_cut(const struct mlo_tensor *x, int axis, int64_t begin, int64_t length, bool drop,
                              struct mlo_tensor *out, struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    int rank = 0;
    size_t outer, inner;
    if (!mlo_dtype_bytes(x->dtype))
        return mlo_op_bad_dtype(x->dtype, err);
    for (int i = 0; i < x->rank; i++)
        if (i != axis || !drop)
            dims[rank++] = i == axis ? length : x->dims[i];
    enum mlo_status status = mlo_tensor_init(out, x->dtype, rank, dims, err);
    if (status != MLO_OK)
        return status;
    around(x, axis, &outer, &inner);
    size_t row = inner * (size_t)x->dims[axis], piece = inner * (size_t)length;
    for (size_t o = 0; o < outer && piece; o++)
        memcpy((char *)out->data + o * piece, (const char *)x->data + o * row + (size_t)begin * inner, piece);
    return MLO_OK;
}

enum mlo_status mlo_piece_put(const struct mlo_tensor *piece, struct mlo_tensor *into, int axis,
                              int64_t begin, int64_t length, struct mlo_error *err)
{
    size_t outer, inner;
    if (!mlo_dtype_bytes(into->dtype))
        return mlo_op_bad_dtype(into->dtype, err);
    around(into, axis, &outer, &inner);
    size_t row = inner * (size_t)into->dims[axis], size = inner * (size_t)length;
    for (size_t o = 0; o < outer && size; o++)
        memcpy((char *)into->data + o * row + (size_t)begin * inner, (const char *)piece->data + o * size,
               size);
    return MLO_OK;
}

enum mlo_status mlo_stack_add(struct mlo_stack *stack, const struct mlo_tensor *t, struct mlo_error *err)
{
    char a[192], b[192];
    if (!mlo_dtype_bytes(t->dtype))
        return mlo_op_bad_dtype(t->dtype, err);
    if (!stack->count) {
        stack->like = *t;
        stack->like.data = NULL;
        stack->like.owned = false;
    } else if (t->dtype != stack->like.dtype || !mlo_tensor_same_shape(t, &stack->like)) {
        return mlo_error_set(err, MLO_EINVAL, "a body gives %s, and gave %s before",
                             mlo_tensor_describe(t, a, sizeof a),
                             mlo_tensor_describe(&stack->like, b, sizeof b));
    }
    size_t total = stack->bytes.len + t->size_bytes;
    /* what a loop gathers grows with its trips: memory is granted freely, and missed when it is touched */
    if (total > CHECK_ABOVE && total > (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 4)
        return mlo_error_set(err, MLO_ETOOBIG,
                             "what the body gives %lld times needs %zu bytes, more than this machine spares",
                             (long long)stack->count + 1, total);
    if (t->size_bytes)
        mlo_buf_append(&stack->bytes, t->data, t->size_bytes);
    stack->count++;
    return mlo_buf_ok(&stack->bytes) ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_stack_finish(const struct mlo_stack *stack, int64_t axis, bool backwards,
                                 const struct mlo_type *type, struct mlo_tensor *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor like = stack->like;
    int64_t dims[MLO_MAX_RANK];
    int at;
    if (!stack->count) {
        like = (struct mlo_tensor){.dtype = type->dtype, .rank = MLO_MAX(type->rank, 0)};
        for (int i = 0; i < like.rank; i++)
            like.dims[i] = MLO_MAX(type->dims[i].value, 0);
        if (!mlo_dtype_bytes(like.dtype)) {
            status = mlo_error_set(err, MLO_EUNSUPPORTED,
                                   "no body ran, and the type of what it gives is not known");
            goto out;
        }
    }
    if (like.rank == MLO_MAX_RANK) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "a result of rank %d; at most %d is supported",
                               like.rank + 1, MLO_MAX_RANK);
        goto out;
    }
    MLO_TRY(mlo_op_axis(axis, like.rank + 1, &at, err));
    for (int i = 0; i <= like.rank; i++)
        dims[i] = i == at ? stack->count : like.dims[i - (i > at)];
    MLO_TRY(mlo_tensor_init(out, like.dtype, like.rank + 1, dims, err));
    like.data = stack->bytes.data;
    for (int64_t i = 0; i < stack->count; i++) {
        MLO_TRY(mlo_piece_put(&like, out, at, backwards ? stack->count - 1 - i : i, 1, err));
        like.data = (char *)like.data + stack->like.size_bytes;
    }
out:
    return status;
}

void mlo_stack_clear(struct mlo_stack *stack)
{
    mlo_buf_clear(&stack->bytes);
    *stack = (struct mlo_stack){0};
}
