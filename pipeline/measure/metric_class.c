/* Metrics on the scores of classes. Of equal scores the one with the lower class number counts as higher, as
 * argmax has it. */
#include <math.h>

#include "pipeline/measure/metric_impl.h"

/* One score per class and sample; or one class number (`predicts`). */
struct classes {
    const struct mlo_tensor *tensor;
    size_t samples, count;
    bool predicts;
};

static enum mlo_status open_classes(const struct mlo_tensor *t, struct classes *out, struct mlo_error *err)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    int wide = 0; /* axes besides the batch that are not 1 */
    enum mlo_status status = mlo_scores_shape(t, "the output", &out->samples, &out->count, err);
    if (status != MLO_OK)
        return status;
    for (int i = 1; i < t->rank; i++)
        wide += t->dims[i] != 1;
    out->tensor = t;
    out->predicts = info && info->is_integer && out->count == 1; /* the model gives class numbers itself */
    if (out->predicts || (wide == 1 && info && out->count))
        return MLO_OK;
    char text[160];
    mlo_error_set(err, MLO_EINVAL, "one score per class and sample is needed; the output is %s",
                  mlo_tensor_describe(t, text, sizeof text));
    mlo_error_hint(err, "the output that is judged must be [batch, classes]");
    return MLO_EINVAL;
}

static double score_at(const struct classes *c, size_t sample, size_t class_number)
{
    return mlo_tensor_get_f64(c->tensor, sample * c->count + class_number);
}

static enum mlo_status has_nan(size_t sample, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_EINVAL, "the model's output for sample %zu holds NaN", sample);
}

static enum mlo_status best(const struct classes *c, size_t sample, size_t *out, struct mlo_error *err)
{
    *out = 0;
    if (c->predicts) {
        int64_t v = mlo_tensor_get_i64(c->tensor, sample);
        if (v < 0)
            return mlo_error_set(err, MLO_EINVAL, "the model predicts class %lld for sample %zu",
                                 (long long)v, sample);
        *out = (size_t)v;
        return MLO_OK;
    }
    for (size_t k = 0; k < c->count; k++) {
        double v = score_at(c, sample, k);
        if (isnan(v))
            return has_nan(sample, err);
        if (v > score_at(c, sample, *out))
            *out = k;
    }
    return MLO_OK;
}

/* y as one class number a sample; below `classes` where that is not 0. */
static enum mlo_status label(const struct mlo_tensor *y, size_t sample, size_t samples, size_t classes,
                             int64_t *out, struct mlo_error *err)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(y->dtype);
    char text[160];
    if (y->rank < 1 || (size_t)y->dims[0] != samples || mlo_tensor_count(y) != samples ||
        (!info->is_integer && y->dtype != MLO_BOOL)) {
        mlo_error_set(err, MLO_EINVAL,
                      "array 'y' must hold one class number for each of %zu samples; it is %s", samples,
                      mlo_tensor_describe(y, text, sizeof text));
        mlo_error_hint(err, "save labels as class numbers: y.astype(numpy.int64)");
        return MLO_EINVAL;
    }
    *out = mlo_tensor_get_i64(y, sample);
    if (*out < 0 || (classes && *out >= (int64_t)classes))
        return mlo_error_set(err, MLO_EINVAL,
                             "label %lld of sample %zu is out of range: the model has %zu classes (0 to %zu)",
                             (long long)*out, sample, classes, classes ? classes - 1 : 0);
    return MLO_OK;
}

enum mlo_status mlo_record_top(const struct mlo_metric_data *data, struct mlo_scores *out,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct classes c;
    MLO_TRY(open_classes(data->output, &c, err));
    MLO_TRY(mlo_scores_init(out, c.samples, 1, err));
    for (size_t s = 0; s < c.samples; s++) {
        int64_t y, above = 0;
        if (c.predicts && out->k == 1) {
            MLO_TRY(label(data->target, s, c.samples, 0, &y, err));
            out->values[s] = mlo_tensor_get_i64(c.tensor, s) == y;
            continue;
        }
        MLO_TRY(label(data->target, s, c.samples, c.count, &y, err));
        double own = score_at(&c, s, (size_t)y);
        bool nan = false;
        for (size_t k = 0; k < c.count; k++) {
            double v = score_at(&c, s, k);
            nan |= isnan(v);
            above += v > own || (v == own && (int64_t)k < y);
        }
        if (nan)
            return has_nan(s, err);
        out->values[s] = above < out->k;
    }
out:
    return status;
}

enum mlo_status mlo_record_f1(const struct mlo_metric_data *data, struct mlo_scores *out,
                              struct mlo_error *err)
{
    enum { CLASSES_MAX = 1 << 20 };
    enum mlo_status status;
    struct classes c;
    size_t classes;
    MLO_TRY(open_classes(data->output, &c, err));
    MLO_TRY(mlo_scores_init(out, c.samples, 3, err));
    classes = c.predicts ? 0 : c.count;
    for (size_t s = 0; s < c.samples; s++) {
        size_t predicted;
        int64_t y;
        MLO_TRY(label(data->target, s, c.samples, c.predicts ? 0 : c.count, &y, err));
        MLO_TRY(best(&c, s, &predicted, err));
        classes = MLO_MAX(classes, MLO_MAX((size_t)y, predicted) + 1);
        out->values[3 * s] = (double)y;
        out->values[3 * s + 1] = (double)predicted;
    }
    if (classes > CLASSES_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "class numbers up to %zu are no classes", classes - 1);
    for (size_t s = 0; s < c.samples; s++)
        out->values[3 * s + 2] = (double)classes;
out:
    return status;
}

enum mlo_status mlo_record_auc(const struct mlo_metric_data *data, struct mlo_scores *out,
                               struct mlo_error *err)
{
    enum mlo_status status;
    size_t samples, elements;
    char text[160];
    MLO_TRY(mlo_scores_shape(data->output, "the output", &samples, &elements, err));
    if (elements != 1 && elements != 2) {
        mlo_error_set(err, MLO_EINVAL,
                      "one score a sample, or those of two classes, are needed; the output is %s",
                      mlo_tensor_describe(data->output, text, sizeof text));
        return MLO_EINVAL;
    }
    MLO_TRY(mlo_scores_init(out, samples, 2, err));
    for (size_t s = 0; s < samples; s++) {
        int64_t y;
        MLO_TRY(label(data->target, s, samples, 2, &y, err));
        double score = mlo_tensor_get_f64(data->output, s * elements + elements - 1);
        if (elements == 2) /* of logits and of probabilities alike, the difference has their order */
            score -= mlo_tensor_get_f64(data->output, s * elements);
        if (isnan(score))
            return has_nan(s, err);
        out->values[2 * s] = score;
        out->values[2 * s + 1] = (double)y;
    }
    MLO_TRY(mlo_scores_sort(out, 0, false, NULL, &out->order, err));
out:
    return status;
}

enum mlo_status mlo_record_agreement(const struct mlo_metric_data *data, struct mlo_scores *out,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    struct classes a, b;
    MLO_TRY(open_classes(data->output, &a, err));
    MLO_TRY(open_classes(data->reference, &b, err));
    if (a.samples != b.samples || (!a.predicts && !b.predicts && a.count != b.count))
        return mlo_error_set(err, MLO_EINVAL, "the model has %zu classes and the baseline %zu", a.count,
                             b.count);
    MLO_TRY(mlo_scores_init(out, a.samples, 1, err));
    for (size_t s = 0; s < a.samples; s++) {
        size_t x, y;
        MLO_TRY(best(&a, s, &x, err));
        MLO_TRY(best(&b, s, &y, err));
        out->values[s] = x == y;
    }
out:
    return status;
}

/* Whether all rows are probabilities already: none negative, each adding up to 1. */
static bool are_probabilities(const struct classes *c)
{
    for (size_t s = 0; s < c->samples; s++) {
        double sum = 0;
        for (size_t k = 0; k < c->count; k++) {
            double v = score_at(c, s, k);
            if (!(v >= 0))
                return false;
            sum += v;
        }
        if (fabs(sum - 1) > 1e-3)
            return false;
    }
    return true;
}

/* What turns a row of scores into log-probabilities: log p = (probabilities ? log v : v - shift). */
static double log_sum(const struct classes *c, size_t sample)
{
    double high = -INFINITY, sum = 0;
    for (size_t k = 0; k < c->count; k++)
        high = fmax(high, score_at(c, sample, k));
    for (size_t k = 0; k < c->count; k++)
        sum += exp(score_at(c, sample, k) - high);
    return high + log(sum);
}

enum mlo_status mlo_record_kl(const struct mlo_metric_data *data, struct mlo_scores *out,
                              struct mlo_error *err)
{
    static const double LEAST = 1e-30; /* stands for a probability of 0, whose logarithm nobody can use */
    enum mlo_status status;
    struct classes a, b;
    MLO_TRY(open_classes(data->output, &a, err));
    MLO_TRY(open_classes(data->reference, &b, err));
    if (a.samples != b.samples || a.count != b.count || a.predicts || b.predicts || a.count < 2)
        return mlo_error_set(err, MLO_EINVAL, "class scores of %zu and of %zu classes have no divergence",
                             a.count, b.count);
    MLO_TRY(mlo_scores_init(out, a.samples, 1, err));
    bool is_probability = are_probabilities(&a) && are_probabilities(&b);
    for (size_t s = 0; s < a.samples; s++) {
        double sum = 0, shift_a = is_probability ? 0 : log_sum(&a, s),
               shift_b = is_probability ? 0 : log_sum(&b, s);
        for (size_t k = 0; k < a.count; k++) {
            double x = score_at(&a, s, k), y = score_at(&b, s, k);
            double log_q = is_probability ? log(fmax(x, LEAST)) : x - shift_a;
            double log_p = is_probability ? log(fmax(y, LEAST)) : y - shift_b;
            double p = is_probability ? y : exp(log_p);
            sum += p > 0 ? p * (log_p - log_q) : 0;
        }
        out->values[s] = fmax(sum, 0); /* rounding may leave -1e-17 */
        if (!isfinite(sum))
            return mlo_error_set(err, MLO_EINVAL,
                                 "the model's or the baseline's output for sample %zu is not finite", s);
    }
out:
    return status;
}
