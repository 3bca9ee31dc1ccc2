/* Normalisations of groups, of root mean squares and by norms; MeanVarianceNormalization; LpPool and
 * GlobalLpPool. In double, rounded once. */
#include <math.h>

#include "graph/ops/ops_impl.h"

/* Scale and bias hold one number for each group (opset 18) or each channel (from 21 on). */
static enum mlo_status infer_group_norm(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    int64_t groups = mlo_node_attr_i(node, "num_groups", 0);
    out[0] = *x;
    if (groups < 1)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'num_groups' is missing or below 1");
    if (x->rank < 0)
        return MLO_OK;
    if (x->rank < 2)
        return mlo_error_set(err, MLO_EINVAL, "GroupNormalization needs rank 2 or more, not %d", x->rank);
    int64_t channels = x->dims[1].value, want = node->op->since < 21 ? groups : channels;
    if (channels >= 0 && channels % groups)
        return mlo_error_set(err, MLO_EINVAL, "%lld groups do not divide %lld channels", (long long)groups,
                             (long long)channels);
    for (int i = 1; i <= 2; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (t->rank >= 0 &&
            (t->rank != 1 || (want >= 0 && t->dims[0].value >= 0 && t->dims[0].value != want)))
            return mlo_error_set(err, MLO_EINVAL, "input %d does not hold %lld numbers", i, (long long)want);
    }
    return MLO_OK;
}

static enum mlo_status eval_group_norm(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f), mean, variance;
    size_t groups = (size_t)mlo_node_attr_i(node, "num_groups", 1);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 3; i++)
        MLO_TRY(mlo_op_want_float(in[i], err));
    const struct mlo_tensor *x = in[0];
    size_t channels = (size_t)x->dims[1], batch = (size_t)x->dims[0], count = mlo_tensor_count(x);
    size_t each = channels / groups, plane = count ? count / (batch * channels) : 0;
    for (size_t g = 0; count && g < batch * groups; g++) {
        size_t first = g * each * plane;
        mlo_op_moments(x, first, each * plane, &mean, &variance);
        double inverse = 1 / sqrt(variance + epsilon);
        for (size_t i = 0; i < each * plane; i++) {
            size_t k = node->op->since < 21 ? g % groups : g % groups * each + i / plane;
            double v = (mlo_tensor_get_f64(x, first + i) - mean) * inverse;
            mlo_tensor_set_f64(out[0], first + i,
                               v * mlo_tensor_get_f64(in[1], k) + mlo_tensor_get_f64(in[2], k));
        }
    }
out:
    return status;
}

static enum mlo_status infer_rms_norm(const struct mlo_node *node, struct mlo_type *out,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *scale = mlo_op_in(node, 1);
    int axis;
    out[0] = *x;
    out[0].dtype = scale->dtype ? scale->dtype : x->dtype;
    if (x->rank < 0)
        goto out;
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), x->rank, &axis, err));
    MLO_TRY(mlo_op_want_broadcast(node, 1, x, err));
out:
    return status;
}

static enum mlo_status eval_rms_norm(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                     struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f);
    const struct mlo_tensor *x = in[0];
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), x->rank, &axis, err));
    MLO_TRY(mlo_op_want_float(x, err));
    MLO_TRY(mlo_op_want_float(in[1], err));
    struct mlo_spans s = mlo_op_spans(x, axis);
    size_t size = s.size * s.inner;
    struct mlo_strides at;
    mlo_strides_init(&at, out[0], in[1], in[1]);
    for (size_t g = 0; size && g < s.outer; g++) {
        double squares = 0;
        for (size_t i = g * size; i < (g + 1) * size; i++)
            squares += mlo_tensor_get_f64(x, i) * mlo_tensor_get_f64(x, i);
        double inverse = 1 / sqrt(squares / (double)size + epsilon);
        for (size_t i = g * size; i < (g + 1) * size; i++, mlo_strides_next(&at))
            mlo_tensor_set_f64(out[0], i,
                               mlo_tensor_get_f64(x, i) * inverse * mlo_tensor_get_f64(in[1], at.offset[0]));
    }
out:
    return status;
}

static enum mlo_status read_p(const struct mlo_node *node, bool any, int64_t *p, struct mlo_error *err)
{
    *p = mlo_node_attr_i(node, "p", 2);
    if (*p < 1 || (!any && *p > 2))
        return mlo_error_set(err, MLO_EINVAL, "attribute 'p' is %lld", (long long)*p);
    return MLO_OK;
}

static double powered(double v, int64_t p)
{
    v = fabs(v);
    return p == 1 ? v : p == 2 ? v * v : mlo_math_pow(v, (double)p);
}

static double rooted(double sum, int64_t p)
{
    return p == 1 ? sum : p == 2 ? sqrt(sum) : mlo_math_pow(sum, 1 / (double)p);
}

static enum mlo_status infer_lp_norm(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    int axis;
    int64_t p;
    out[0] = *mlo_op_in(node, 0);
    enum mlo_status status = read_p(node, false, &p, err);
    if (status == MLO_OK && out[0].rank >= 0)
        status = mlo_op_axis(mlo_node_attr_i(node, "axis", -1), out[0].rank, &axis, err);
    return status;
}

static enum mlo_status eval_lp_norm(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    int axis;
    int64_t p;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(x, err));
    MLO_TRY(read_p(node, false, &p, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), x->rank, &axis, err));
    struct mlo_spans s = mlo_op_spans(x, axis);
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++) {
            size_t base = o * s.size * s.inner + i;
            double sum = 0;
            for (size_t k = 0; k < s.size; k++)
                sum += powered(mlo_tensor_get_f64(x, base + k * s.inner), p);
            sum = rooted(sum, p);
            for (size_t k = 0; k < s.size; k++) { /* a zero vector stays zero */
                double v = mlo_tensor_get_f64(x, base + k * s.inner);
                mlo_tensor_set_f64(out[0], base + k * s.inner, sum == 0 ? 0 : v / sum);
            }
        }
out:
    return status;
}

/* The axes that are normalised over: by default all but the channels. */
static enum mlo_status mvn_axes(const struct mlo_node *node, int rank, bool *over, struct mlo_error *err)
{
    static const int64_t standard[] = {0, 2, 3};
    size_t count;
    const int64_t *axes = mlo_node_attr_ints(node, "axes", &count);
    memset(over, 0, MLO_MAX_RANK * sizeof *over);
    if (!axes) {
        axes = standard;
        count = 3;
    }
    for (size_t i = 0; i < count; i++) {
        int axis;
        enum mlo_status status = mlo_op_axis(axes[i], rank, &axis, err);
        if (status != MLO_OK)
            return status;
        over[axis] = true;
    }
    return MLO_OK;
}

static enum mlo_status infer_mvn(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    bool over[MLO_MAX_RANK];
    out[0] = *mlo_op_in(node, 0);
    return out[0].rank < 0 ? MLO_OK : mvn_axes(node, out[0].rank, over, err);
}

static enum mlo_status eval_mvn(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool over[MLO_MAX_RANK];
    const struct mlo_tensor *x = in[0];
    struct mlo_tensor mean = {0}, square = {0};
    int64_t dims[MLO_MAX_RANK];
    size_t cells, count = mlo_tensor_count(x);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(x, err));
    MLO_TRY(mvn_axes(node, x->rank, over, err));
    for (int i = 0; i < x->rank; i++)
        dims[i] = over[i] ? 1 : x->dims[i];
    MLO_TRY(mlo_tensor_init(&mean, MLO_FLOAT64, x->rank, dims, err));
    MLO_TRY(mlo_tensor_init(&square, MLO_FLOAT64, x->rank, dims, err));
    double *m = mean.data, *sq = square.data;
    struct mlo_strides s;
    mlo_strides_init(&s, x, &mean, &mean);
    for (size_t i = 0; i < count; i++, mlo_strides_next(&s)) {
        double v = mlo_tensor_get_f64(x, i);
        m[s.offset[0]] += v;
        sq[s.offset[0]] += v * v;
    }
    cells = mlo_tensor_count(&mean);
    for (size_t i = 0; count && i < cells; i++) {
        m[i] /= (double)(count / cells);
        sq[i] = sqrt(fmax(sq[i] / (double)(count / cells) - m[i] * m[i], 0));
    }
    mlo_strides_init(&s, x, &mean, &mean);
    for (size_t i = 0; i < count; i++, mlo_strides_next(&s)) /* as specified: 1e-9 keeps from dividing by 0 */
        mlo_tensor_set_f64(out[0], i, (mlo_tensor_get_f64(x, i) - m[s.offset[0]]) / (sq[s.offset[0]] + 1e-9));
out:
    mlo_tensor_clear(&mean);
    mlo_tensor_clear(&square);
    return status;
}

static enum mlo_status infer_lp_pool(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    struct mlo_window w;
    int64_t in[MLO_MAX_RANK], p;
    out[0].dtype = x->dtype;
    MLO_TRY(read_p(node, true, &p, err));
    if (x->rank < 0)
        goto out;
    if (x->rank < 3) {
        status = mlo_error_set(err, MLO_EINVAL, "pooling needs rank 3 to 5, not %d", x->rank);
        goto out;
    }
    for (int i = 2; i < x->rank; i++)
        in[i - 2] = x->dims[i].value;
    MLO_TRY(mlo_window_init(&w, node, x->rank - 2, in, NULL, err));
    out[0] = *x;
    for (int i = 2; i < x->rank; i++)
        out[0].dims[i] = mlo_window_dim(node, &w, i - 2, x->dims[i]);
out:
    return status;
}

static double lp_window(const struct mlo_window *w, const struct mlo_tensor *x, size_t base, size_t out_at,
                        int64_t p)
{
    int64_t o[3] = {0}, taps = 1;
    double sum = 0;
    for (int i = w->spatial - 1; i >= 0; i--) {
        o[i] = (int64_t)(out_at % (size_t)w->out[i]);
        out_at /= (size_t)w->out[i];
        taps *= w->kernel[i];
    }
    for (int64_t k = 0; k < taps; k++) {
        int64_t rest = k;
        size_t at = 0, stride = 1;
        bool inside = true;
        for (int i = w->spatial - 1; i >= 0 && inside; i--) {
            int64_t pos = o[i] * w->stride[i] - w->pad_begin[i] + rest % w->kernel[i] * w->dilation[i];
            rest /= w->kernel[i];
            inside = pos >= 0 && pos < w->in[i];
            at += (size_t)pos * stride;
            stride *= (size_t)w->in[i];
        }
        sum += inside ? powered(mlo_tensor_get_f64(x, base + at), p) : 0;
    }
    return rooted(sum, p);
}

static enum mlo_status eval_lp_pool(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    struct mlo_window w;
    int64_t p;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(x, err));
    MLO_TRY(read_p(node, true, &p, err));
    MLO_TRY(mlo_window_init(&w, node, x->rank - 2, x->dims + 2, NULL, err));
    size_t size = 1, area = 1;
    for (int i = 0; i < w.spatial; i++) {
        size *= (size_t)w.in[i];
        area *= (size_t)w.out[i];
    }
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++)
        mlo_tensor_set_f64(out[0], i, lp_window(&w, x, i / area * size, i % area, p));
out:
    return status;
}

static enum mlo_status infer_global_lp(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    int64_t p;
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank >= 0 && out[0].rank < 2)
        return mlo_error_set(err, MLO_EINVAL, "global pooling needs rank 2 or more, not %d", out[0].rank);
    for (int i = 2; i < out[0].rank; i++)
        out[0].dims[i] = mlo_dim_fixed(1);
    return read_p(node, true, &p, err);
}

static enum mlo_status eval_global_lp(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t p;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(read_p(node, true, &p, err));
    size_t images = mlo_tensor_count(out[0]), size = images ? mlo_tensor_count(in[0]) / images : 0;
    for (size_t n = 0; n < images; n++) {
        double sum = 0;
        for (size_t i = 0; i < size; i++)
            sum += powered(mlo_tensor_get_f64(in[0], n * size + i), p);
        mlo_tensor_set_f64(out[0], n, rooted(sum, p));
    }
out:
    return status;
}

#define ONE(name, since, infer, eval)                                                                        \
    {                                                                                                        \
        "", name, since, infer, eval, MLO_OP_PURE, 1, 1, 1, 1                                                \
    }
static const struct mlo_op rows[] = {
    {"", "GroupNormalization", 18, infer_group_norm, eval_group_norm, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "GroupNormalization", 21, infer_group_norm, eval_group_norm, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "RMSNormalization", 23, infer_rms_norm, eval_rms_norm, MLO_OP_PURE, 2, 2, 1, 1},
    ONE("LpNormalization", 1, infer_lp_norm, eval_lp_norm),
    ONE("LpNormalization", 22, infer_lp_norm, eval_lp_norm),
    ONE("MeanVarianceNormalization", 9, infer_mvn, eval_mvn),
    ONE("MeanVarianceNormalization", 13, infer_mvn, eval_mvn),
    ONE("LpPool", 2, infer_lp_pool, eval_lp_pool),
    ONE("LpPool", 11, infer_lp_pool, eval_lp_pool),
    ONE("LpPool", 18, infer_lp_pool, eval_lp_pool),
    ONE("LpPool", 22, infer_lp_pool, eval_lp_pool),
    ONE("GlobalLpPool", 2, infer_global_lp, eval_global_lp),
    ONE("GlobalLpPool", 22, infer_global_lp, eval_global_lp),
};
const struct mlo_op_family mlo_ops_norm_more = {rows, MLO_COUNT(rows)};
