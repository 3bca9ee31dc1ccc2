/* top1 and top5: 1 where the label is among the k highest scores. Of equal scores the one with the lower
 * class number counts as higher, as argmax has it. */
#include <math.h>

#include "pipeline/measure/metric_impl.h"

static enum mlo_status score_sample(const struct mlo_tensor *output, int64_t sample, int64_t classes,
                                    int64_t label, int k, double *score, struct mlo_error *err)
{
    size_t row = (size_t)(sample * classes);
    if (label < 0 || label >= classes)
        return mlo_error_set(
            err, MLO_EINVAL,
            "label %lld of sample %lld is out of range: the model has %lld classes (0 to %lld)",
            (long long)label, (long long)sample, (long long)classes, (long long)classes - 1);
    double own = mlo_tensor_get_f64(output, row + (size_t)label);
    int64_t above = 0;
    bool nan = false;
    for (int64_t c = 0; c < classes; c++) {
        double v = mlo_tensor_get_f64(output, row + (size_t)c);
        nan |= isnan(v);
        above += v > own || (v == own && c < label);
    }
    if (nan)
        return mlo_error_set(err, MLO_EINVAL, "the model's output for sample %lld holds NaN",
                             (long long)sample);
    *score = above < k;
    return MLO_OK;
}

static enum mlo_status top_k(const struct mlo_tensor *output, const int64_t *labels, int k, double *scores,
                             struct mlo_error *err)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(output->dtype);
    int64_t samples = output->rank > 0 ? output->dims[0] : 0, classes = 1;
    int wide = 0; /* axes besides the batch that are not 1 */
    if (!labels)
        return mlo_error_set(err, MLO_EINVAL, "top%d needs labels, and the dataset has no array 'y'", k);
    for (int i = 1; i < output->rank; i++) {
        classes *= output->dims[i];
        wide += output->dims[i] != 1;
    }
    bool predicts = info && info->is_integer && classes == 1; /* the model gives class numbers itself */
    if (predicts && k == 1) {
        for (int64_t i = 0; i < samples; i++)
            scores[i] = mlo_tensor_get_i64(output, (size_t)i) == labels[i];
        return MLO_OK;
    }
    if (wide != 1 || !info) {
        char text[160];
        mlo_error_set(err, MLO_EINVAL, "top%d needs one score per class and sample; the output is %s", k,
                      mlo_tensor_describe(output, text, sizeof text));
        mlo_error_hint(err, "the first output of the model must be [batch, classes]");
        return MLO_EINVAL;
    }
    for (int64_t i = 0; i < samples; i++) {
        enum mlo_status status = score_sample(output, i, classes, labels[i], k, &scores[i], err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

enum mlo_status mlo_scores_top1(const struct mlo_tensor *output, const int64_t *labels,
                                const struct mlo_tensor *reference, double *scores, struct mlo_error *err)
{
    MLO_UNUSED(reference);
    return top_k(output, labels, 1, scores, err);
}

enum mlo_status mlo_scores_top5(const struct mlo_tensor *output, const int64_t *labels,
                                const struct mlo_tensor *reference, double *scores, struct mlo_error *err)
{
    MLO_UNUSED(reference);
    return top_k(output, labels, 5, scores, err);
}
