/* Pooling. Averages are summed in double, in order of the window, and rounded once. */
#include <math.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status infer_pool(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    struct mlo_window w;
    int64_t in[MLO_MAX_RANK];
    out[0].dtype = x->dtype;
    if (node->output_count > 1)
        out[1].dtype = MLO_INT64;
    if (x->rank < 0)
        return MLO_OK;
    if (x->rank < 3)
        return mlo_error_set(err, MLO_EINVAL, "pooling needs rank 3 to 5, not %d", x->rank);
    for (int i = 2; i < x->rank; i++)
        in[i - 2] = x->dims[i].value;
    enum mlo_status status = mlo_window_init(&w, node, x->rank - 2, in, NULL, err);
    if (status != MLO_OK)
        return status;
    out[0] = *x;
    for (int i = 2; i < x->rank; i++)
        out[0].dims[i] = mlo_window_dim(node, &w, i - 2, x->dims[i]);
    if (node->output_count > 1) {
        out[1] = out[0];
        out[1].dtype = MLO_INT64;
    }
    return MLO_OK;
}

static enum mlo_status infer_global(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank >= 0 && out[0].rank < 2)
        return mlo_error_set(err, MLO_EINVAL, "global pooling needs rank 2 or more, not %d", out[0].rank);
    for (int i = 2; i < out[0].rank; i++)
        out[0].dims[i] = mlo_dim_fixed(1);
    return MLO_OK;
}

/* The window over one image, brought to three dims. */
struct pool {
    struct mlo_window w;
    bool maximum, count_pad, column_major;
};

struct best {
    double value, sum;
    int64_t at[3], inside, counted;
};

/* How many of the window's positions along dim i, counted from the first, lie before `end`. */
static int64_t before(const struct pool *p, int i, int64_t begin, int64_t end)
{
    int64_t count = end > begin ? (end - begin - 1) / p->w.dilation[i] + 1 : 0;
    return MLO_MIN(count, p->w.kernel[i]);
}

/* Visits the window whose output position is o, where it lies inside: it may be much larger than the input.
 */
static void visit(const struct pool *p, const struct mlo_tensor *x, size_t base, const int64_t *o,
                  struct best *b)
{
    int64_t k[3], at[3], begin[3], from[3], to[3];
    *b = (struct best){.value = -INFINITY, .at = {-1, -1, -1}, .counted = 1};
    for (int i = 0; i < 3; i++) {
        begin[i] = o[i] * p->w.stride[i] - p->w.pad_begin[i];
        from[i] = before(p, i, begin[i], 0);
        to[i] = before(p, i, begin[i], p->w.in[i]);
        b->counted *=
            before(p, i, begin[i], p->w.in[i] + p->w.pad_end[i]); /* ceil_mode may leave the padding too */
    }
    for (k[0] = from[0]; k[0] < to[0]; k[0]++)
        for (k[1] = from[1]; k[1] < to[1]; k[1]++)
            for (k[2] = from[2]; k[2] < to[2]; k[2]++) {
                for (int i = 0; i < 3; i++)
                    at[i] = begin[i] + k[i] * p->w.dilation[i];
                size_t index = base + (size_t)((at[0] * p->w.in[1] + at[1]) * p->w.in[2] + at[2]);
                double v = mlo_tensor_get_f64(x, index);
                b->inside++;
                b->sum += v;
                if (v > b->value || isnan(v) || b->at[0] < 0) {
                    b->value = v;
                    memcpy(b->at, at, sizeof at);
                }
            }
}

static int64_t flat_index(const struct pool *p, const int64_t *at)
{
    if (p->column_major) /* of two dims: the leading one is of size 1 */
        return at[2] * p->w.in[1] + at[1];
    return (at[0] * p->w.in[1] + at[1]) * p->w.in[2] + at[2];
}

static void run(const struct pool *p, const struct mlo_tensor *x, struct mlo_tensor *y, int64_t *indices)
{
    size_t in_size = (size_t)(p->w.in[0] * p->w.in[1] * p->w.in[2]), to = 0;
    size_t images = (size_t)(x->dims[0] * x->dims[1]);
    int64_t o[3];
    struct best b;
    for (size_t n = 0; n < images; n++)
        for (o[0] = 0; o[0] < p->w.out[0]; o[0]++)
            for (o[1] = 0; o[1] < p->w.out[1]; o[1]++)
                for (o[2] = 0; o[2] < p->w.out[2]; o[2]++, to++) {
                    visit(p, x, n * in_size, o, &b);
                    int64_t divisor = p->count_pad ? b.counted : b.inside;
                    mlo_tensor_set_f64(y, to, p->maximum ? b.value : divisor ? b.sum / (double)divisor : 0);
                    if (indices)
                        indices[to] = b.inside ? (int64_t)(n * in_size) + flat_index(p, b.at) : -1;
                }
}

static bool poolable(enum mlo_dtype dtype, bool maximum)
{
    return mlo_dtype_info(dtype)->is_float || (maximum && (dtype == MLO_INT8 || dtype == MLO_UINT8));
}

static enum mlo_status eval_pool(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct pool p = {.maximum = mlo_node_is(node, "MaxPool"),
                     .count_pad = mlo_node_attr_i(node, "count_include_pad", 0) != 0};
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_window_init(&p.w, node, in[0]->rank - 2, in[0]->dims + 2, NULL, err));
    if (!poolable(in[0]->dtype, p.maximum)) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    mlo_window_widen(&p.w);
    p.column_major = mlo_node_attr_i(node, "storage_order", 0) != 0;
    if (p.column_major && in[0]->rank != 4) {
        status =
            mlo_error_set(err, MLO_EUNSUPPORTED, "storage_order 1 is supported for two spatial dims only");
        goto out;
    }
    run(&p, in[0], out[0], node->output_count > 1 && out[1] ? out[1]->data : NULL);
out:
    return status;
}

static enum mlo_status eval_global(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool maximum = mlo_node_is(node, "GlobalMaxPool");
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    if (!mlo_dtype_info(in[0]->dtype)->is_float) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    size_t images = mlo_tensor_count(out[0]), size = images ? mlo_tensor_count(in[0]) / images : 0;
    for (size_t n = 0; n < images; n++) {
        double best = -INFINITY, sum = 0;
        for (size_t i = 0; i < size; i++) {
            double v = mlo_tensor_get_f64(in[0], n * size + i);
            sum += v;
            best = v > best || isnan(v) ? v : best;
        }
        mlo_tensor_set_f64(out[0], n, maximum ? best : sum / (double)size);
    }
out:
    return status;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
static const struct mlo_op rows[] = {
    {"", "AveragePool", 7, infer_pool, eval_pool, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "AveragePool", 10, infer_pool, eval_pool, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "AveragePool", 11, infer_pool, eval_pool, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "AveragePool", 19, infer_pool, eval_pool, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "GlobalAveragePool", 1, infer_global, eval_global, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "GlobalMaxPool", 1, infer_global, eval_global, KEEP, 1, 1, 1, 1},
    {"", "MaxPool", 1, infer_pool, eval_pool, KEEP, 1, 1, 1, 1},
    {"", "MaxPool", 8, infer_pool, eval_pool, KEEP, 1, 1, 1, 2},
    {"", "MaxPool", 10, infer_pool, eval_pool, KEEP, 1, 1, 1, 2},
    {"", "MaxPool", 11, infer_pool, eval_pool, KEEP, 1, 1, 1, 2},
    {"", "MaxPool", 12, infer_pool, eval_pool, KEEP, 1, 1, 1, 2},
};
const struct mlo_op_family mlo_ops_pool = {rows, MLO_COUNT(rows)};
