/* Ops that pick, mask, mark or add up along an axis: NonZero, Compress, OneHot, Trilu, EyeLike, CumSum,
 * ReverseSequence, Hardmax. */
#include <math.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status want_width(const struct mlo_tensor *t, size_t *width, struct mlo_error *err)
{
    *width = mlo_dtype_bytes(t->dtype);
    return *width ? MLO_OK : mlo_op_bad_dtype(t->dtype, err);
}

/* How many there are is known only from the numbers. */
static enum mlo_status infer_nonzero(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    MLO_UNUSED(err);
    out[0] = (struct mlo_type){.dtype = MLO_INT64, .rank = 2};
    out[0].dims[0] = x->rank < 0 ? mlo_dim_unknown() : mlo_dim_fixed(x->rank);
    out[0].dims[1] = mlo_dim_unknown();
    return MLO_OK;
}

static enum mlo_status eval_nonzero(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    const struct mlo_dtype_info *info = mlo_dtype_info(x->dtype);
    size_t count = mlo_tensor_count(x);
    int64_t dims[2] = {x->rank, 0};
    MLO_UNUSED(node);
    if (!info->is_float && !info->is_integer && x->dtype != MLO_BOOL) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        dims[1] += mlo_tensor_get_f64(x, i) != 0;
    MLO_TRY(mlo_tensor_init(out[0], MLO_INT64, 2, dims, err));
    int64_t *to = out[0]->data;
    for (size_t i = 0, n = 0; i < count; i++) {
        size_t rest = i;
        if (mlo_tensor_get_f64(x, i) == 0)
            continue;
        for (int d = x->rank - 1; d >= 0; d--) {
            to[(size_t)d * (size_t)dims[1] + n] = (int64_t)(rest % (size_t)x->dims[d]);
            rest /= (size_t)x->dims[d];
        }
        n++;
    }
out:
    return status;
}

static enum mlo_status infer_compress(const struct mlo_node *node, struct mlo_type *out,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *condition = mlo_op_in(node, 1);
    int axis = 0;
    out[0].dtype = x->dtype;
    MLO_TRY(mlo_op_want_rank(node, 1, 1, err));
    if (condition->dtype && condition->dtype != MLO_BOOL) {
        status =
            mlo_error_set(err, MLO_EINVAL, "input 1, the condition, is %s", mlo_dtype_name(condition->dtype));
        goto out;
    }
    if (!mlo_node_attr(node, "axis")) {
        out[0].rank = 1;
        out[0].dims[0] = mlo_dim_unknown();
        goto out;
    }
    if (x->rank < 0)
        goto out;
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err));
    out[0] = *x;
    out[0].dims[axis] = mlo_dim_unknown();
out:
    return status;
}

static enum mlo_status eval_compress(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    const uint8_t *keep = in[1]->data;
    struct mlo_spans s = {1, mlo_tensor_count(x), 1};
    struct mlo_type type = {.rank = -1};
    int64_t dims[MLO_MAX_RANK] = {0};
    int axis = 0;
    size_t width, kept = 0;
    MLO_TRY(infer_compress(node, &type, err));
    MLO_TRY(want_width(x, &width, err));
    if (in[1]->dtype != MLO_BOOL || in[1]->rank != 1) {
        status = mlo_op_bad_dtype(in[1]->dtype, err);
        goto out;
    }
    bool flat = !mlo_node_attr(node, "axis");
    if (!flat) {
        MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err));
        s = mlo_op_spans(x, axis);
        memcpy(dims, x->dims, sizeof dims);
    }
    size_t size = MLO_MIN(s.size, mlo_tensor_count(in[1])); /* a short condition leaves the rest out */
    for (size_t i = 0; i < size; i++)
        kept += keep[i] != 0;
    dims[axis] = (int64_t)kept;
    MLO_TRY(mlo_tensor_init(out[0], x->dtype, flat ? 1 : x->rank, dims, err));
    char *to = out[0]->data;
    size_t row = s.inner * width;
    for (size_t o = 0; row && o < s.outer; o++)
        for (size_t i = 0; i < size; i++)
            if (keep[i]) {
                memcpy(to, (const char *)x->data + (o * s.size + i) * row, row);
                to += row;
            }
out:
    return status;
}

static enum mlo_status infer_one_hot(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *index = mlo_op_in(node, 0);
    const struct mlo_tensor *depth = mlo_op_content(node, 1);
    int64_t n = -1;
    int axis;
    out[0].dtype = mlo_op_in(node, 2)->dtype;
    if (index->rank < 0)
        return MLO_OK;
    if (index->rank + 1 > MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a result of more than %d dims", MLO_MAX_RANK);
    enum mlo_status status = mlo_op_axis(mlo_node_attr_i(node, "axis", -1), index->rank + 1, &axis, err);
    if (status != MLO_OK)
        return status;
    if (depth) {
        n = mlo_tensor_count(depth) == 1 ? mlo_tensor_get_i64(depth, 0) : -1;
        if (n < 0)
            return mlo_error_set(err, MLO_EINVAL, "input 1, the depth, is not one number of 0 or more");
    }
    out[0].rank = index->rank + 1;
    for (int i = 0, k = 0; i < out[0].rank; i++)
        out[0].dims[i] = i == axis ? (struct mlo_dim){n, NULL} : index->dims[k++];
    return MLO_OK;
}

static enum mlo_status eval_one_hot(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int axis;
    size_t width;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(want_width(in[2], &width, err));
    if (mlo_tensor_count(in[2]) != 2) {
        status = mlo_error_set(err, MLO_EINVAL, "input 2 holds %zu values, not off and on",
                               mlo_tensor_count(in[2]));
        goto out;
    }
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), out[0]->rank, &axis, err));
    struct mlo_spans s = mlo_op_spans(out[0], axis);
    for (size_t o = 0, i = 0; o < s.outer; o++)
        for (size_t k = 0; k < s.size; k++)
            for (size_t n = 0; n < s.inner; n++, i++) {
                double at = mlo_tensor_get_f64(in[0], o * s.inner + n);
                at += at < 0 ? (double)s.size : 0;
                bool on = at >= 0 && floor(at) == (double)k;
                memcpy((char *)out[0]->data + i * width, (const char *)in[2]->data + (on ? width : 0), width);
            }
out:
    return status;
}

static enum mlo_status infer_trilu(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank >= 0 && out[0].rank < 2)
        return mlo_error_set(err, MLO_EINVAL, "Trilu needs rank 2 or more, not %d", out[0].rank);
    return MLO_OK;
}

static enum mlo_status eval_trilu(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *at = mlo_op_operand(node, in, 1);
    bool upper = mlo_node_attr_i(node, "upper", 1) != 0;
    size_t width;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(want_width(x, &width, err));
    if (at && mlo_tensor_count(at) != 1) {
        status = mlo_error_set(err, MLO_EINVAL, "input 1, the diagonal, is no scalar");
        goto out;
    }
    int64_t rows = x->dims[x->rank - 2], columns = x->dims[x->rank - 1];
    int64_t k = at ? MLO_MIN(MLO_MAX(mlo_tensor_get_i64(at, 0), -rows - 1), columns + 1) : 0;
    for (size_t i = 0; i < mlo_tensor_count(x); i++) {
        int64_t column = (int64_t)i % columns, row = (int64_t)i / columns % rows, d = column - row;
        if (upper ? d >= k : d <= k)
            memcpy((char *)out[0]->data + i * width, (const char *)x->data + i * width, width);
    }
out:
    return status;
}

static enum mlo_status infer_eye_like(const struct mlo_node *node, struct mlo_type *out,
                                      struct mlo_error *err)
{
    int64_t dtype = mlo_node_attr_i(node, "dtype", 0);
    out[0] = *mlo_op_in(node, 0);
    if (dtype) {
        if (dtype < 0 || dtype >= MLO_DTYPE_COUNT)
            return mlo_error_set(err, MLO_EINVAL, "attribute 'dtype' is %lld, which is no element type",
                                 (long long)dtype);
        out[0].dtype = (enum mlo_dtype)dtype;
    }
    return mlo_op_want_rank(node, 0, 2, err);
}

static enum mlo_status eval_eye_like(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t k = mlo_node_attr_i(node, "k", 0);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    const struct mlo_dtype_info *info = mlo_dtype_info(out[0]->dtype);
    if (!info->is_float && !info->is_integer && out[0]->dtype != MLO_BOOL) {
        status = mlo_op_bad_dtype(out[0]->dtype, err);
        goto out;
    }
    int64_t rows = out[0]->dims[0], columns = out[0]->dims[1];
    k = MLO_MIN(MLO_MAX(k, -rows - 1), columns + 1);
    for (int64_t r = 0; r < rows; r++)
        if (r + k >= 0 && r + k < columns)
            mlo_tensor_set_f64(out[0], (size_t)(r * columns + r + k), 1);
out:
    return status;
}

static enum mlo_status eval_cumsum(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    const struct mlo_dtype_info *info = mlo_dtype_info(x->dtype);
    bool exclusive = mlo_node_attr_i(node, "exclusive", 0) != 0;
    bool reverse = mlo_node_attr_i(node, "reverse", 0) != 0;
    int64_t given[1];
    int axis, n;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_read_ints(in[1], given, 1, &n, err));
    if (n != 1 || (!info->is_float && !info->is_integer)) {
        status = n != 1 ? mlo_error_set(err, MLO_EINVAL, "input 1, the axis, is not one number")
                        : mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    MLO_TRY(mlo_op_axis(given[0], x->rank, &axis, err));
    struct mlo_spans s = mlo_op_spans(x, axis);
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++) {
            double sum = 0;
            uint64_t whole = 0;
            for (size_t k = 0; k < s.size; k++) {
                size_t at = (o * s.size + (reverse ? s.size - 1 - k : k)) * s.inner + i;
                double before = sum;
                uint64_t whole_before = whole;
                if (info->is_integer) {
                    whole += (uint64_t)mlo_tensor_get_i64(x, at);
                    mlo_store_i64(out[0], at, (int64_t)(exclusive ? whole_before : whole));
                } else {
                    sum += mlo_tensor_get_f64(x, at);
                    mlo_tensor_set_f64(out[0], at, exclusive ? before : sum);
                }
            }
        }
out:
    return status;
}

static enum mlo_status infer_reverse_sequence(const struct mlo_node *node, struct mlo_type *out,
                                              struct mlo_error *err)
{
    int64_t batch = mlo_node_attr_i(node, "batch_axis", 1), time = mlo_node_attr_i(node, "time_axis", 0);
    out[0] = *mlo_op_in(node, 0);
    if (batch < 0 || batch > 1 || time < 0 || time > 1 || batch == time)
        return mlo_error_set(err, MLO_EINVAL,
                             "attributes 'batch_axis' and 'time_axis' are %lld and %lld, not 0 and 1",
                             (long long)batch, (long long)time);
    if (out[0].rank >= 0 && out[0].rank < 2)
        return mlo_error_set(err, MLO_EINVAL, "ReverseSequence needs rank 2 or more, not %d", out[0].rank);
    enum mlo_status status = mlo_op_want_rank(node, 1, 1, err);
    if (status == MLO_OK && out[0].rank >= 0 && mlo_op_ranked(node, 1)) {
        int64_t want = out[0].dims[batch].value, have = mlo_op_in(node, 1)->dims[0].value;
        if (want >= 0 && have >= 0 && want != have)
            status = mlo_error_set(err, MLO_EINVAL, "input 1 holds %lld lengths for %lld sequences",
                                   (long long)have, (long long)want);
    }
    return status;
}

static enum mlo_status eval_reverse_sequence(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                             struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    bool batch_first = mlo_node_attr_i(node, "batch_axis", 1) == 0;
    size_t width;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(want_width(x, &width, err));
    size_t batch = (size_t)x->dims[batch_first ? 0 : 1], time = (size_t)x->dims[batch_first ? 1 : 0];
    size_t row = batch && time ? x->size_bytes / (batch * time) : 0;
    for (size_t b = 0; row && b < batch; b++) {
        int64_t length = mlo_tensor_get_i64(in[1], b);
        if (length < 0 || (size_t)length > time) {
            status = mlo_error_set(err, MLO_EINVAL, "sequence %zu is stated to be %lld long, of %zu", b,
                                   (long long)length, time);
            goto out;
        }
        for (size_t t = 0; t < time; t++) {
            size_t from = t < (size_t)length ? (size_t)length - 1 - t : t;
            size_t a = batch_first ? b * time + t : t * batch + b;
            size_t c = batch_first ? b * time + from : from * batch + b;
            memcpy((char *)out[0]->data + a * row, (const char *)x->data + c * row, row);
        }
    }
out:
    return status;
}

/* As Softmax: up to opset 12 a matrix split before the axis, from 13 on along one axis. */
static enum mlo_status infer_hardmax(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    int axis;
    out[0] = *mlo_op_in(node, 0);
    return out[0].rank < 0 ? MLO_OK
                           : mlo_op_axis(mlo_node_attr_i(node, "axis", node->op->since >= 13 ? -1 : 1),
                                         out[0].rank, &axis, err);
}

static enum mlo_status eval_hardmax(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool matrix = node->op->since < 13;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", matrix ? 1 : -1), in[0]->rank, &axis, err));
    struct mlo_spans s = mlo_op_spans(in[0], axis);
    if (matrix) {
        s.size *= s.inner;
        s.inner = 1;
    }
    for (size_t o = 0; s.size && o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++) {
            size_t base = o * s.size * s.inner + i, best = base;
            for (size_t k = 1; k < s.size; k++)
                if (mlo_tensor_get_f64(in[0], base + k * s.inner) > mlo_tensor_get_f64(in[0], best))
                    best = base + k * s.inner;
            mlo_tensor_set_f64(out[0], best, 1);
        }
out:
    return status;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
static const struct mlo_op rows[] = {
    {"", "NonZero", 9, infer_nonzero, eval_nonzero, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "NonZero", 13, infer_nonzero, eval_nonzero, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "Compress", 9, infer_compress, eval_compress, KEEP, 2, 2, 1, 1},
    {"", "Compress", 11, infer_compress, eval_compress, KEEP, 2, 2, 1, 1},
    {"", "OneHot", 9, infer_one_hot, eval_one_hot, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "OneHot", 11, infer_one_hot, eval_one_hot, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "Trilu", 14, infer_trilu, eval_trilu, MLO_OP_PURE, 1, 2, 1, 1},
    {"", "EyeLike", 9, infer_eye_like, eval_eye_like, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "EyeLike", 22, infer_eye_like, eval_eye_like, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "CumSum", 11, mlo_op_infer_same, eval_cumsum, MLO_OP_PURE, 2, 2, 1, 1},
    {"", "CumSum", 14, mlo_op_infer_same, eval_cumsum, MLO_OP_PURE, 2, 2, 1, 1},
    {"", "ReverseSequence", 10, infer_reverse_sequence, eval_reverse_sequence, KEEP, 2, 2, 1, 1},
    {"", "Hardmax", 1, infer_hardmax, eval_hardmax, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "Hardmax", 11, infer_hardmax, eval_hardmax, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "Hardmax", 13, infer_hardmax, eval_hardmax, MLO_OP_PURE, 1, 1, 1, 1},
};
const struct mlo_op_family mlo_ops_select = {rows, MLO_COUNT(rows)};
