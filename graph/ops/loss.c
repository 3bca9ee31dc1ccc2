/* NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: models exported with their loss. In double, rounded
 * once; the mean is weighted by the classes' weights. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

enum reduction { REDUCE_NONE, REDUCE_SUM, REDUCE_MEAN };

static enum mlo_status read_reduction(const struct mlo_node *node, unsigned *out, struct mlo_error *err)
{
    static const char *const names[] = {"none", "sum", "mean"};
    return mlo_op_choose(node, "reduction", "mean", names, 3, out, err);
}

static enum mlo_status infer_loss(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *target = mlo_op_in(node, 1), *weight = mlo_op_in(node, 2);
    unsigned reduction;
    out[0].dtype = x->dtype;
    MLO_TRY(read_reduction(node, &reduction, err));
    if (node->output_count > 1)
        out[1] = *x;
    if (target->dtype && target->dtype != MLO_INT32 && target->dtype != MLO_INT64) {
        status = mlo_error_set(err, MLO_EINVAL, "input 1, the classes, is %s", mlo_dtype_name(target->dtype));
        goto out;
    }
    if (reduction != REDUCE_NONE)
        out[0].rank = 0;
    if (x->rank < 0)
        goto out;
    if (x->rank < 2) {
        status = mlo_error_set(err, MLO_EINVAL, "input 0 has rank %d, not 2 or more", x->rank);
        goto out;
    }
    MLO_TRY(mlo_op_want_rank(node, 1, x->rank - 1, err));
    MLO_TRY(mlo_op_want_rank(node, 2, 1, err));
    bool fits = !weight || weight->rank < 0 || weight->dims[0].value < 0 || x->dims[1].value < 0 ||
                weight->dims[0].value == x->dims[1].value;
    for (int i = 0; i < x->rank && target->rank >= 0; i++) {
        int64_t a = x->dims[i].value, b = i == 1 ? -1 : target->dims[i ? i - 1 : 0].value;
        fits = fits && (a < 0 || b < 0 || a == b);
    }
    if (!fits) {
        status = mlo_error_set(err, MLO_EINVAL, "classes or weights do not fit the shape of input 0");
        goto out;
    }
    if (reduction == REDUCE_NONE) {
        out[0].rank = x->rank - 1;
        for (int i = 0; i < x->rank; i++)
            if (i != 1)
                out[0].dims[i ? i - 1 : 0] = x->dims[i];
    }
out:
    return status;
}

/* x: N x C x D becomes its log-softmax along C. */
static void log_softmax(double *x, size_t batch, size_t classes, size_t size)
{
    for (size_t n = 0; n < batch; n++)
        for (size_t i = 0; i < size; i++) {
            double *p = x + n * classes * size + i, top = -INFINITY, sum = 0;
            for (size_t c = 0; c < classes; c++)
                top = fmax(top, p[c * size]);
            for (size_t c = 0; c < classes; c++)
                sum += mlo_math_exp(p[c * size] - top);
            double log_sum = mlo_math_log(sum);
            for (size_t c = 0; c < classes; c++)
                p[c * size] = p[c * size] - top - log_sum;
        }
}

static enum mlo_status eval_loss(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *target = in[1], *weight = mlo_op_operand(node, in, 2);
    bool ignores = mlo_node_attr(node, "ignore_index") != NULL;
    int64_t ignored = mlo_node_attr_i(node, "ignore_index", 0);
    double *p = NULL, total = 0, weights = 0;
    unsigned reduction = 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_reduction(node, &reduction, err));
    MLO_TRY(mlo_op_want_float(x, err));
    MLO_TRY(mlo_op_doubles(x, &p, err));
    struct mlo_spans s = mlo_op_spans(x, 1);
    if (mlo_node_is(node, "SoftmaxCrossEntropyLoss")) {
        log_softmax(p, s.outer, s.size, s.inner);
        if (node->output_count > 1 && out[1])
            mlo_op_store_doubles(out[1], p);
    }
    for (size_t i = 0; i < s.outer * s.inner; i++) {
        int64_t class = mlo_tensor_get_i64(target, i);
        double loss = 0;
        if (!ignores || class != ignored) {
            if (class < 0 || class >= (int64_t)s.size) {
                status = mlo_error_set(err, MLO_EINVAL, "class %lld is outside of [0, %zu]", (long long)class,
                                       s.size - 1);
                goto out;
            }
            double w = weight ? mlo_tensor_get_f64(weight, (size_t) class) : 1;
            loss = -w * p[(i / s.inner * s.size + (size_t) class) * s.inner + i % s.inner];
            weights += w;
        }
        total += loss;
        if (reduction == REDUCE_NONE && out[0])
            mlo_tensor_set_f64(out[0], i, loss);
    }
    if (reduction != REDUCE_NONE && out[0])
        mlo_tensor_set_f64(out[0], 0, reduction == REDUCE_SUM ? total : total / weights);
out:
    free(p);
    return status;
}

#define NLL(since)                                                                                           \
    {                                                                                                        \
        "", "NegativeLogLikelihoodLoss", since, infer_loss, eval_loss, MLO_OP_PURE, 2, 3, 1, 1               \
    }
#define CROSS_ENTROPY(since)                                                                                 \
    {                                                                                                        \
        "", "SoftmaxCrossEntropyLoss", since, infer_loss, eval_loss, MLO_OP_PURE, 2, 3, 1, 2                 \
    }
static const struct mlo_op rows[] = {NLL(12),           NLL(13),           NLL(22),
                                     CROSS_ENTROPY(12), CROSS_ENTROPY(13), CROSS_ENTROPY(22)};
const struct mlo_op_family mlo_ops_loss = {rows, MLO_COUNT(rows)};
