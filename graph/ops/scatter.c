/* GatherElements, GatherND, ScatterElements (and its old name Scatter), ScatterND. Where several updates meet
 * at one place they are applied in order of the updates, each result rounded to the element type. */
#include <math.h>

#include "graph/ops/ops_impl.h"

enum reduction { REDUCE_NONE, REDUCE_ADD, REDUCE_MUL, REDUCE_MAX, REDUCE_MIN };

static enum mlo_status read_reduction(const struct mlo_node *node, enum reduction *out, struct mlo_error *err)
{
    static const char *const names[] = {"none", "add", "mul", "max", "min"};
    unsigned which = 0;
    enum mlo_status status =
        mlo_op_choose(node, "reduction", "none", names, node->op->since >= 18 ? 5 : 3, &which, err);
    *out = (enum reduction)which;
    return status;
}

static enum mlo_status want_indices(const struct mlo_node *node, int i, struct mlo_error *err)
{
    enum mlo_dtype dtype = mlo_op_in(node, i)->dtype;
    if (!dtype || dtype == MLO_INT64 || dtype == MLO_INT32)
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "input %d, the indices, is %s", i, mlo_dtype_name(dtype));
}

static enum mlo_status wrap(int64_t index, int64_t size, size_t *out, struct mlo_error *err)
{
    if (index < -size || index >= size)
        return mlo_error_set(err, MLO_EINVAL, "index %lld is outside of [%lld, %lld]", (long long)index,
                             (long long)-size, (long long)size - 1);
    *out = (size_t)(index < 0 ? index + size : index);
    return MLO_OK;
}

/* y[at] = y[at] . u[i] */
static void update(struct mlo_tensor *y, size_t at, const struct mlo_tensor *u, size_t i, enum reduction how,
                   size_t width)
{
    if (how == REDUCE_NONE) {
        memcpy((char *)y->data + at * width, (const char *)u->data + i * width, width);
    } else if (mlo_dtype_info(y->dtype)->is_float) {
        double a = mlo_tensor_get_f64(y, at), b = mlo_tensor_get_f64(u, i);
        mlo_tensor_set_f64(y, at,
                           how == REDUCE_ADD   ? a + b
                           : how == REDUCE_MUL ? a * b
                           : how == REDUCE_MAX ? (isnan(a) || a > b ? a : b)
                                               : (isnan(a) || a < b ? a : b));
    } else {
        int64_t a = mlo_tensor_get_i64(y, at), b = mlo_tensor_get_i64(u, i);
        mlo_store_i64(y, at,
                      how == REDUCE_ADD   ? (int64_t)((uint64_t)a + (uint64_t)b)
                      : how == REDUCE_MUL ? (int64_t)((uint64_t)a * (uint64_t)b)
                      : how == REDUCE_MAX ? MLO_MAX(a, b)
                                          : MLO_MIN(a, b));
    }
}

/* Walks the elements of a shape that lies inside of a larger one of the same rank. */
struct walk {
    int64_t at[MLO_MAX_RANK], step[MLO_MAX_RANK];
};

static struct walk walk_of(const struct mlo_tensor *around)
{
    struct walk w = {0};
    int64_t stride = 1;
    for (int i = around->rank - 1; i >= 0; i--) {
        w.step[i] = stride;
        stride *= around->dims[i];
    }
    return w;
}

static void walk_next(struct walk *w, const struct mlo_tensor *t)
{
    for (int i = t->rank - 1; i >= 0; i--) {
        if (++w->at[i] < t->dims[i])
            return;
        w->at[i] = 0;
    }
}

/* Offset in the larger one with `index` in place of the coordinate along axis. */
static size_t walk_offset(const struct walk *w, int rank, int axis, size_t index)
{
    size_t offset = 0;
    for (int i = 0; i < rank; i++)
        offset += (i == axis ? index : (size_t)w->at[i]) * (size_t)w->step[i];
    return offset;
}

/* Indices of input 1 must lie inside of input 0's shape, the axis aside. */
static enum mlo_status check_elements(const struct mlo_node *node, int *axis, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0), *index = mlo_op_in(node, 1);
    enum mlo_status status = MLO_OK;
    *axis = 0;
    MLO_TRY(want_indices(node, 1, err));
    if (x->rank < 0)
        goto out;
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, axis, err));
    MLO_TRY(mlo_op_want_rank(node, 1, x->rank, err));
    for (int i = 0; index->rank >= 0 && i < x->rank; i++)
        if (i != *axis && x->dims[i].value >= 0 && index->dims[i].value > x->dims[i].value) {
            status = mlo_error_set(err, MLO_EINVAL, "dim %d of the indices is %lld; the data has only %lld",
                                   i, (long long)index->dims[i].value, (long long)x->dims[i].value);
            goto out;
        }
out:
    return status;
}

static enum mlo_status infer_gather_elements(const struct mlo_node *node, struct mlo_type *out,
                                             struct mlo_error *err)
{
    int axis;
    out[0] = *mlo_op_in(node, 1);
    out[0].dtype = mlo_op_in(node, 0)->dtype;
    return check_elements(node, &axis, err);
}

static enum mlo_status eval_gather_elements(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                            struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err));
    size_t width = mlo_dtype_bytes(x->dtype), index;
    if (!width) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    struct walk w = walk_of(x);
    for (size_t i = 0; i < mlo_tensor_count(in[1]); i++, walk_next(&w, in[1])) {
        MLO_TRY(wrap(mlo_tensor_get_i64(in[1], i), x->dims[axis], &index, err));
        memcpy((char *)out[0]->data + i * width,
               (const char *)x->data + walk_offset(&w, x->rank, axis, index) * width, width);
    }
out:
    return status;
}

static enum mlo_status infer_scatter(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *index = mlo_op_in(node, 1), *u = mlo_op_in(node, 2);
    enum reduction how;
    int axis;
    out[0] = *x;
    MLO_TRY(read_reduction(node, &how, err));
    MLO_TRY(check_elements(node, &axis, err));
    if (x->dtype && u->dtype && x->dtype != u->dtype) {
        status = mlo_error_set(err, MLO_EINVAL, "the data is %s and the updates are %s",
                               mlo_dtype_name(x->dtype), mlo_dtype_name(u->dtype));
        goto out;
    }
    bool fits = index->rank < 0 || u->rank < 0 || index->rank == u->rank;
    for (int i = 0; fits && u->rank >= 0 && i < index->rank; i++)
        fits = index->dims[i].value < 0 || u->dims[i].value < 0 || index->dims[i].value == u->dims[i].value;
    if (!fits)
        status = mlo_error_set(err, MLO_EINVAL, "indices and updates are of different shapes");
out:
    return status;
}

static enum mlo_status start_scatter(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, enum reduction *how, size_t *width,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_reduction(node, how, err));
    const struct mlo_dtype_info *info = mlo_dtype_info(in[0]->dtype);
    *width = mlo_dtype_bytes(in[0]->dtype);
    if (!*width || (*how != REDUCE_NONE && !info->is_float && !info->is_integer))
        status = mlo_op_bad_dtype(in[0]->dtype, err);
    else if (in[0]->size_bytes)
        memcpy(out[0]->data, in[0]->data, in[0]->size_bytes);
out:
    return status;
}

static enum mlo_status eval_scatter(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    enum reduction how;
    size_t width, index;
    int axis;
    MLO_TRY(start_scatter(node, in, out, &how, &width, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), in[0]->rank, &axis, err));
    struct walk w = walk_of(in[0]);
    for (size_t i = 0; i < mlo_tensor_count(in[1]); i++, walk_next(&w, in[1])) {
        MLO_TRY(wrap(mlo_tensor_get_i64(in[1], i), in[0]->dims[axis], &index, err));
        update(out[0], walk_offset(&w, in[0]->rank, axis, index), in[2], i, how, width);
    }
out:
    return status;
}

/* How many leading dims of the data (behind the batch dims) an index tuple fixes; -1: not known. */
static enum mlo_status tuple_size(const struct mlo_node *node, int batch, int *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0), *index = mlo_op_in(node, 1);
    *out = -1;
    if (index->rank < 0)
        return MLO_OK;
    if (index->rank == 0)
        return mlo_error_set(err, MLO_EINVAL, "the indices are a scalar; they need rank 1 or more");
    int64_t size = index->dims[index->rank - 1].value;
    if (x->rank >= 0 && (x->rank < 1 || batch >= MLO_MIN(x->rank, index->rank)))
        return mlo_error_set(err, MLO_EINVAL, "attribute 'batch_dims' is %d for data of rank %d", batch,
                             x->rank);
    if (size >= 0 && x->rank >= 0 && (size < 1 || size > x->rank - batch))
        return mlo_error_set(err, MLO_EINVAL, "index tuples of %lld for data of rank %d", (long long)size,
                             x->rank);
    if (size >= 0 && x->rank >= 0)
        *out = (int)size;
    return MLO_OK;
}

static enum mlo_status infer_gather_nd(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *index = mlo_op_in(node, 1);
    int64_t batch = mlo_node_attr_i(node, "batch_dims", 0);
    int size;
    out[0].dtype = x->dtype;
    MLO_TRY(want_indices(node, 1, err));
    if (batch < 0 || batch >= MLO_MAX_RANK) {
        status = mlo_error_set(err, MLO_EINVAL, "attribute 'batch_dims' is %lld", (long long)batch);
        goto out;
    }
    MLO_TRY(tuple_size(node, (int)batch, &size, err));
    if (size < 0)
        goto out;
    int rest = x->rank - (int)batch - size;
    if (index->rank - 1 + rest > MLO_MAX_RANK) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "a result of more than %d dims", MLO_MAX_RANK);
        goto out;
    }
    for (int i = 0; i < batch; i++)
        if (x->dims[i].value >= 0 && index->dims[i].value >= 0 && x->dims[i].value != index->dims[i].value) {
            status =
                mlo_error_set(err, MLO_EINVAL, "batch dim %d is %lld in the data and %lld in the indices", i,
                              (long long)x->dims[i].value, (long long)index->dims[i].value);
            goto out;
        }
    out[0].rank = 0;
    for (int i = 0; i < index->rank - 1; i++)
        out[0].dims[out[0].rank++] = index->dims[i];
    for (int i = x->rank - rest; i < x->rank; i++)
        out[0].dims[out[0].rank++] = x->dims[i];
out:
    return status;
}

/* Element offset that the index tuple `at` of `size` numbers gives in t's dims from `first` on. */
static enum mlo_status tuple_offset(const struct mlo_tensor *t, int first, const struct mlo_tensor *indices,
                                    size_t at, int size, size_t *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t offset = 0;
    for (int k = 0; k < t->rank - first; k++) {
        size_t index = 0;
        if (k < size)
            MLO_TRY(wrap(mlo_tensor_get_i64(indices, at * (size_t)size + (size_t)k), t->dims[first + k],
                         &index, err));
        offset = offset * (size_t)t->dims[first + k] + index;
    }
    *out = offset;
out:
    return status;
}

static size_t product(const struct mlo_tensor *t, int first, int end)
{
    size_t n = 1;
    for (int i = first; i < end; i++)
        n *= (size_t)t->dims[i];
    return n;
}

static enum mlo_status eval_gather_nd(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *index = in[1];
    int batch = (int)mlo_node_attr_i(node, "batch_dims", 0);
    size_t offset;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    int size = (int)index->dims[index->rank - 1];
    size_t width = mlo_dtype_bytes(x->dtype), tuples = product(index, 0, index->rank - 1);
    size_t batches = product(x, 0, batch), each = product(x, batch, x->rank);
    size_t row = product(x, batch + size, x->rank) * width;
    if (!width) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    for (size_t i = 0; row && i < tuples; i++) {
        MLO_TRY(tuple_offset(x, batch, index, i, size, &offset, err));
        offset += i / (tuples / batches) * each;
        memcpy((char *)out[0]->data + i * row, (const char *)x->data + offset * width, row);
    }
out:
    return status;
}

static enum mlo_status infer_scatter_nd(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *index = mlo_op_in(node, 1), *u = mlo_op_in(node, 2);
    enum reduction how;
    int size;
    out[0] = *x;
    MLO_TRY(read_reduction(node, &how, err));
    MLO_TRY(want_indices(node, 1, err));
    if (x->dtype && u->dtype && x->dtype != u->dtype) {
        status = mlo_error_set(err, MLO_EINVAL, "the data is %s and the updates are %s",
                               mlo_dtype_name(x->dtype), mlo_dtype_name(u->dtype));
        goto out;
    }
    MLO_TRY(tuple_size(node, 0, &size, err));
    if (size < 0 || u->rank < 0)
        goto out;
    bool fits = u->rank == index->rank - 1 + x->rank - size;
    for (int i = 0; fits && i < u->rank; i++) {
        int64_t want = (i < index->rank - 1 ? index->dims[i] : x->dims[size + i - (index->rank - 1)]).value;
        fits = want < 0 || u->dims[i].value < 0 || want == u->dims[i].value;
    }
    if (!fits)
        status = mlo_error_set(err, MLO_EINVAL, "the updates' shape does not fit indices and data");
out:
    return status;
}

static enum mlo_status eval_scatter_nd(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *index = in[1];
    enum reduction how;
    size_t width, offset;
    MLO_TRY(start_scatter(node, in, out, &how, &width, err));
    int size = (int)index->dims[index->rank - 1];
    size_t tuples = product(index, 0, index->rank - 1), row = product(in[0], size, in[0]->rank);
    for (size_t i = 0; row && i < tuples; i++) {
        MLO_TRY(tuple_offset(in[0], 0, index, i, size, &offset, err));
        for (size_t k = 0; k < row; k++)
            update(out[0], offset + k, in[2], i * row + k, how, width);
    }
out:
    return status;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
#define SCATTER(name, since)                                                                                 \
    {                                                                                                        \
        "", name, since, infer_scatter, eval_scatter, MLO_OP_PURE, 3, 3, 1, 1                                \
    }
#define SCATTER_ND(since)                                                                                    \
    {                                                                                                        \
        "", "ScatterND", since, infer_scatter_nd, eval_scatter_nd, MLO_OP_PURE, 3, 3, 1, 1                   \
    }
#define GATHER_ND(since)                                                                                     \
    {                                                                                                        \
        "", "GatherND", since, infer_gather_nd, eval_gather_nd, KEEP, 2, 2, 1, 1                             \
    }
static const struct mlo_op rows[] = {
    {"", "GatherElements", 11, infer_gather_elements, eval_gather_elements, KEEP, 2, 2, 1, 1},
    {"", "GatherElements", 13, infer_gather_elements, eval_gather_elements, KEEP, 2, 2, 1, 1},
    GATHER_ND(11),
    GATHER_ND(12),
    GATHER_ND(13),
    SCATTER("Scatter", 9),
    SCATTER("Scatter", 11),
    SCATTER("ScatterElements", 11),
    SCATTER("ScatterElements", 13),
    SCATTER("ScatterElements", 16),
    SCATTER("ScatterElements", 18),
    SCATTER_ND(11),
    SCATTER_ND(13),
    SCATTER_ND(16),
    SCATTER_ND(18),
};
const struct mlo_op_family mlo_ops_scatter = {rows, MLO_COUNT(rows)};
