/* Sequences and optionals: SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase, SequenceAt,
 * SequenceLength, SplitToSequence, ConcatFromSequence, Optional, OptionalHasElement, OptionalGetElement.
 * A sequence holds tensors, an optional holds a tensor or a sequence; nothing nests deeper. */
#include <pthread.h>

#include "graph/ops/pieces_impl.h"

static struct mlo_type bare[MLO_DTYPE_COUNT], bare_sequences[MLO_DTYPE_COUNT];
static pthread_once_t bare_once = PTHREAD_ONCE_INIT;

static void make_bare(void)
{
    for (int i = 0; i < MLO_DTYPE_COUNT; i++) {
        bare[i] = (struct mlo_type){.dtype = (enum mlo_dtype)i, .rank = -1};
        bare_sequences[i] = (struct mlo_type){.dtype = MLO_SEQUENCE, .rank = -1, .element = &bare[i]};
    }
}

const struct mlo_type *mlo_type_bare(enum mlo_dtype dtype, bool sequence)
{
    pthread_once(&bare_once, make_bare);
    if ((int)dtype < 0 || dtype >= MLO_DTYPE_COUNT)
        dtype = MLO_DTYPE_NONE;
    return sequence ? &bare_sequences[dtype] : &bare[dtype];
}

/* The element type of what should be a sequence, as far as it is known. */
static enum mlo_dtype element_of(const struct mlo_type *type)
{
    return type && type->element ? type->element->dtype : MLO_DTYPE_NONE;
}

static enum mlo_status want_sequence(enum mlo_dtype dtype, struct mlo_error *err)
{
    if (dtype == MLO_SEQUENCE || dtype == MLO_DTYPE_NONE)
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "a sequence is wanted, not a value of type %s",
                         mlo_dtype_name(dtype));
}

static enum mlo_status want_tensor(enum mlo_dtype dtype, struct mlo_error *err)
{
    return mlo_holds_values(dtype) ? mlo_op_bad_dtype(dtype, err) : MLO_OK;
}

/* --- inference -------------------------------------------------------------------------------------------
 */

static enum mlo_status infer_construct(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    enum mlo_dtype dtype = MLO_DTYPE_NONE;
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (!t || (dtype && t->dtype && t->dtype != dtype)) {
            status =
                mlo_error_set(err, MLO_EINVAL, "input %d is omitted, or of another type than the others", i);
            goto out;
        }
        MLO_TRY(want_tensor(t->dtype, err));
        dtype = dtype ? dtype : t->dtype;
    }
    out[0] = *mlo_type_bare(dtype, true);
out:
    return status;
}

static enum mlo_status infer_empty(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    int64_t dtype = mlo_node_attr_i(node, "dtype", MLO_FLOAT32);
    if (dtype <= 0 || dtype >= MLO_DTYPE_COUNT)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'dtype' is %lld, which is no element type",
                             (long long)dtype);
    out[0] = *mlo_type_bare((enum mlo_dtype)dtype, true);
    return MLO_OK;
}

/* SequenceInsert and SequenceErase give a sequence of the same type. */
static enum mlo_status infer_edit(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_dtype dtype = element_of(mlo_op_in(node, 0));
    if (mlo_node_is(node, "SequenceInsert")) {
        enum mlo_dtype added = mlo_op_in(node, 1)->dtype;
        if (dtype && added && added != dtype)
            return mlo_error_set(err, MLO_EINVAL, "a tensor of type %s does not go into a sequence of %s",
                                 mlo_dtype_name(added), mlo_dtype_name(dtype));
        dtype = dtype ? dtype : added;
    }
    out[0] = *mlo_type_bare(dtype, true);
    return want_sequence(mlo_op_in(node, 0)->dtype, err);
}

/* SequenceAt, and ConcatFromSequence: a tensor of a shape that the type does not tell. */
static enum mlo_status infer_element(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    out[0] = *mlo_type_bare(element_of(mlo_op_in(node, 0)), false);
    return want_sequence(mlo_op_in(node, 0)->dtype, err);
}

static enum mlo_status infer_length(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    out[0] = (struct mlo_type){.dtype = MLO_INT64};
    return want_sequence(mlo_op_in(node, 0)->dtype, err);
}

static enum mlo_status infer_split(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    out[0] = *mlo_type_bare(mlo_op_in(node, 0)->dtype, true);
    return want_tensor(mlo_op_in(node, 0)->dtype, err);
}

static enum mlo_status infer_optional(const struct mlo_node *node, struct mlo_type *out,
                                      struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    const struct mlo_attr *stated = mlo_node_attr(node, "type");
    if (!x && stated && stated->type == MLO_ATTR_TYPE)
        x = stated->value_type;
    if (!x)
        return mlo_error_set(err, MLO_EINVAL, "it has neither an input nor an attribute 'type'");
    if (x->dtype == MLO_OPTIONAL)
        return mlo_op_bad_dtype(x->dtype, err);
    bool sequence = x->dtype == MLO_SEQUENCE;
    out[0] = (struct mlo_type){.dtype = MLO_OPTIONAL,
                               .rank = -1,
                               .element = mlo_type_bare(sequence ? element_of(x) : x->dtype, sequence)};
    return MLO_OK;
}

static enum mlo_status infer_has_element(const struct mlo_node *node, struct mlo_type *out,
                                         struct mlo_error *err)
{
    MLO_UNUSED(node), MLO_UNUSED(err);
    out[0] = (struct mlo_type){.dtype = MLO_BOOL};
    return MLO_OK;
}

/* From opset 18 on, what is no optional stands for itself. */
static enum mlo_status infer_get_element(const struct mlo_node *node, struct mlo_type *out,
                                         struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    MLO_UNUSED(err);
    if (x->dtype != MLO_OPTIONAL)
        out[0] = *x;
    else if (x->element)
        out[0] =
            *mlo_type_bare(x->element->dtype == MLO_SEQUENCE ? element_of(x->element) : x->element->dtype,
                           x->element->dtype == MLO_SEQUENCE);
    return MLO_OK;
}

/* --- evaluation ------------------------------------------------------------------------------------------
 */

static enum mlo_status eval_construct(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_error *err)
{
    size_t count = (size_t)node->input_count;
    enum mlo_status status = mlo_values_init(out[0], MLO_SEQUENCE, count, err);
    for (size_t i = 0; i < count && status == MLO_OK; i++) {
        if (!in[i] || in[i]->dtype != in[0]->dtype || mlo_holds_values(in[i]->dtype))
            return mlo_error_set(err, MLO_EINVAL, "input %zu is no tensor of the first one's type", i);
        status = mlo_tensor_copy(in[i], &mlo_values(out[0])[i], err);
    }
    return status;
}

static enum mlo_status eval_empty(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    MLO_UNUSED(node), MLO_UNUSED(in);
    return mlo_values_init(out[0], MLO_SEQUENCE, 0, err);
}

/* A position in a sequence of `count`: negative ones count from the end. */
static enum mlo_status position(const struct mlo_tensor *t, size_t count, size_t fallback, size_t *out,
                                struct mlo_error *err)
{
    *out = fallback;
    if (!t)
        return MLO_OK;
    if ((t->dtype != MLO_INT32 && t->dtype != MLO_INT64) || mlo_tensor_count(t) != 1)
        return mlo_error_set(err, MLO_EINVAL, "the position is no integer scalar");
    int64_t at = mlo_tensor_get_i64(t, 0), length = (int64_t)count;
    if (at < -length || at >= length)
        return mlo_error_set(err, MLO_EINVAL, "position %lld is outside of a sequence of %lld", (long long)at,
                             (long long)length);
    *out = (size_t)(at < 0 ? at + length : at);
    return MLO_OK;
}

static enum mlo_status eval_insert(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count, at;
    MLO_TRY(want_sequence(in[0]->dtype, err));
    MLO_TRY(want_tensor(in[1]->dtype, err));
    count = mlo_tensor_count(in[0]);
    if (count && mlo_values(in[0])[0].dtype != in[1]->dtype) {
        status = mlo_error_set(err, MLO_EINVAL, "a tensor of type %s does not go into a sequence of %s",
                               mlo_dtype_name(in[1]->dtype), mlo_dtype_name(mlo_values(in[0])[0].dtype));
        goto out;
    }
    at = count;
    if (node->input_count > 2 && in[2]) {
        int64_t p = mlo_tensor_count(in[2]) == 1 ? mlo_tensor_get_i64(in[2], 0) : INT64_MAX;
        if (p < -(int64_t)count || p > (int64_t)count) {
            status = mlo_error_set(err, MLO_EINVAL, "position %lld is outside of a sequence of %zu",
                                   (long long)p, count);
            goto out;
        }
        at = (size_t)(p < 0 ? p + (int64_t)count : p);
    }
    MLO_TRY(mlo_values_init(out[0], MLO_SEQUENCE, count + 1, err));
    for (size_t i = 0; i <= count; i++)
        MLO_TRY(
            mlo_tensor_copy(i == at ? in[1] : &mlo_values(in[0])[i - (i > at)], &mlo_values(out[0])[i], err));
out:
    return status;
}

static enum mlo_status eval_erase(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count, at;
    MLO_TRY(want_sequence(in[0]->dtype, err));
    count = mlo_tensor_count(in[0]);
    if (!count) {
        status = mlo_error_set(err, MLO_EINVAL, "the sequence is empty: nothing can be erased");
        goto out;
    }
    MLO_TRY(position(node->input_count > 1 ? in[1] : NULL, count, count - 1, &at, err));
    MLO_TRY(mlo_values_init(out[0], MLO_SEQUENCE, count - 1, err));
    for (size_t i = 0; i + 1 < count; i++)
        MLO_TRY(mlo_tensor_copy(&mlo_values(in[0])[i + (i >= at)], &mlo_values(out[0])[i], err));
out:
    return status;
}

static enum mlo_status eval_at(const struct mlo_node *node, const struct mlo_tensor *const *in,
                               struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t at;
    MLO_UNUSED(node);
    MLO_TRY(want_sequence(in[0]->dtype, err));
    MLO_TRY(position(in[1], mlo_tensor_count(in[0]), 0, &at, err));
    MLO_TRY(mlo_tensor_copy(&mlo_values(in[0])[at], out[0], err));
out:
    return status;
}

static enum mlo_status eval_length(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_UNUSED(node);
    MLO_TRY(want_sequence(in[0]->dtype, err));
    MLO_TRY(mlo_tensor_init(out[0], MLO_INT64, 0, NULL, err));
    *(int64_t *)out[0]->data = (int64_t)mlo_tensor_count(in[0]);
out:
    return status;
}

/* How many pieces a dim of `size` is cut into, by the operand `split`: one size for all (the last piece may
 * be smaller), a size for each, or none, which means 1. */
static enum mlo_status split_count(const struct mlo_tensor *split, int64_t size, size_t *count, int64_t *each,
                                   struct mlo_error *err)
{
    *each = 1;
    if (split && split->dtype != MLO_INT32 && split->dtype != MLO_INT64)
        return mlo_op_bad_dtype(split->dtype, err);
    if (split && split->rank > 0) {
        int64_t total = 0;
        *count = mlo_tensor_count(split);
        *each = -1;
        for (size_t i = 0; i < *count; i++) {
            int64_t piece = mlo_tensor_get_i64(split, i);
            if (piece < 0 || __builtin_add_overflow(total, piece, &total))
                return mlo_error_set(err, MLO_EINVAL, "split[%zu] is %lld", i, (long long)piece);
        }
        return total == size ? MLO_OK
                             : mlo_error_set(err, MLO_EINVAL, "the sizes sum to %lld, not %lld",
                                             (long long)total, (long long)size);
    }
    if (split)
        *each = mlo_tensor_get_i64(split, 0);
    if (*each < 1)
        return mlo_error_set(err, MLO_EINVAL, "split is %lld", (long long)*each);
    *count = (size_t)(size / *each + (size % *each != 0));
    return MLO_OK;
}

static enum mlo_status eval_split(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *split = node->input_count > 1 ? in[1] : NULL;
    bool drop = !split && !mlo_node_attr_i(node, "keepdims", 1);
    size_t count = 0;
    int64_t each, begin = 0;
    int axis;
    MLO_TRY(want_tensor(x->dtype, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err));
    MLO_TRY(split_count(split, x->dims[axis], &count, &each, err));
    MLO_TRY(mlo_values_init(out[0], MLO_SEQUENCE, count, err));
    for (size_t i = 0; i < count; i++) {
        int64_t length = each < 0 ? mlo_tensor_get_i64(split, i) : MLO_MIN(each, x->dims[axis] - begin);
        MLO_TRY(mlo_piece_cut(x, axis, begin, length, drop, &mlo_values(out[0])[i], err));
        begin += length;
    }
out:
    return status;
}

static enum mlo_status eval_concat(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool fresh = mlo_node_attr_i(node, "new_axis", 0) != 0;
    int64_t total = 0, dims[MLO_MAX_RANK + 1];
    int axis;
    MLO_TRY(want_sequence(in[0]->dtype, err));
    size_t count = mlo_tensor_count(in[0]);
    const struct mlo_tensor *items = mlo_values(in[0]);
    if (!count) {
        status = mlo_error_set(err, MLO_EINVAL, "the sequence is empty: its shape cannot be told");
        goto out;
    }
    int rank = items[0].rank + fresh;
    if (rank > MLO_MAX_RANK) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "a result of rank %d; at most %d is supported", rank,
                               MLO_MAX_RANK);
        goto out;
    }
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), rank, &axis, err));
    for (size_t i = 0; i < count; i++) {
        bool fits = items[i].dtype == items[0].dtype && items[i].rank == items[0].rank;
        for (int d = 0; fits && d < items[0].rank; d++)
            fits = (!fresh && d == axis) || items[i].dims[d] == items[0].dims[d];
        if (!fits || __builtin_add_overflow(total, fresh ? 1 : items[i].dims[axis], &total)) {
            status = mlo_error_set(err, MLO_EINVAL, "element %zu does not fit the first one", i);
            goto out;
        }
    }
    for (int d = 0; d < rank; d++)
        dims[d] = d == axis ? total : items[0].dims[fresh && d > axis ? d - 1 : d];
    MLO_TRY(mlo_tensor_init(out[0], items[0].dtype, rank, dims, err));
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t length = fresh ? 1 : items[i].dims[axis];
        MLO_TRY(mlo_piece_put(&items[i], out[0], axis, at, length, err));
        at += length;
    }
out:
    return status;
}

static enum mlo_status eval_optional(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    const struct mlo_tensor *x = node->input_count ? in[0] : NULL;
    if (x && x->dtype == MLO_OPTIONAL)
        return mlo_op_bad_dtype(x->dtype, err);
    enum mlo_status status = mlo_values_init(out[0], MLO_OPTIONAL, x ? 1 : 0, err);
    return status == MLO_OK && x ? mlo_tensor_copy(x, &mlo_values(out[0])[0], err) : status;
}

static enum mlo_status eval_has_element(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        struct mlo_tensor *const *out, struct mlo_error *err)
{
    const struct mlo_tensor *x = node->input_count ? in[0] : NULL;
    enum mlo_status status = mlo_tensor_init(out[0], MLO_BOOL, 0, NULL, err);
    if (status == MLO_OK)
        *(uint8_t *)out[0]->data = x && (x->dtype != MLO_OPTIONAL || mlo_tensor_count(x) > 0);
    return status;
}

static enum mlo_status eval_get_element(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        struct mlo_tensor *const *out, struct mlo_error *err)
{
    MLO_UNUSED(node);
    if (in[0]->dtype != MLO_OPTIONAL)
        return mlo_tensor_copy(in[0], out[0], err);
    if (!mlo_tensor_count(in[0]))
        return mlo_error_set(err, MLO_EINVAL, "the optional is empty");
    return mlo_tensor_copy(&mlo_values(in[0])[0], out[0], err);
}

#define ROW(name, since, infer, eval, least, most)                                                           \
    {                                                                                                        \
        "", name, since, infer, eval, MLO_OP_PURE | MLO_OP_VALUES, least, most, 1, 1                         \
    }
static const struct mlo_op rows[] = {
    ROW("SequenceConstruct", 11, infer_construct, eval_construct, 1, ANY_COUNT),
    ROW("SequenceEmpty", 11, infer_empty, eval_empty, 0, 0),
    ROW("SequenceInsert", 11, infer_edit, eval_insert, 2, 3),
    ROW("SequenceErase", 11, infer_edit, eval_erase, 1, 2),
    ROW("SequenceAt", 11, infer_element, eval_at, 2, 2),
    ROW("SequenceLength", 11, infer_length, eval_length, 1, 1),
    ROW("SplitToSequence", 11, infer_split, eval_split, 1, 2),
    ROW("ConcatFromSequence", 11, infer_element, eval_concat, 1, 1),
    ROW("Optional", 15, infer_optional, eval_optional, 0, 1),
    ROW("OptionalHasElement", 15, infer_has_element, eval_has_element, 1, 1),
    ROW("OptionalHasElement", 18, infer_has_element, eval_has_element, 0, 1),
    ROW("OptionalGetElement", 15, infer_get_element, eval_get_element, 1, 1),
    ROW("OptionalGetElement", 18, infer_get_element, eval_get_element, 1, 1),
};
const struct mlo_op_family mlo_ops_sequence = {rows, MLO_COUNT(rows)};
