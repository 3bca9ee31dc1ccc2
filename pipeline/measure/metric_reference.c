/* mse and cosine: how far outputs are from those of the baseline model, sample by sample, in float64. */
#include <math.h>

#include "pipeline/measure/metric_impl.h"

struct sums {
    double squared_error, dot, norm, reference_norm;
};

/* Sums over one sample's elements; the score functions below make of them what they need. */
static enum mlo_status each_sample(const struct mlo_tensor *output, const struct mlo_tensor *reference,
                                   double (*score)(const struct sums *, size_t elements), double *scores,
                                   struct mlo_error *err)
{
    char a[160], b[160];
    if (!reference)
        return mlo_error_set(err, MLO_EINVAL,
                             "this metric compares with a baseline model, and none is given");
    if (!mlo_tensor_same_shape(output, reference) || output->rank < 1)
        return mlo_error_set(
            err, MLO_EINVAL, "the outputs %s and those of the baseline, %s, cannot be compared",
            mlo_tensor_describe(output, a, sizeof a), mlo_tensor_describe(reference, b, sizeof b));
    size_t samples = (size_t)output->dims[0], elements = samples ? mlo_tensor_count(output) / samples : 0;
    for (size_t s = 0; s < samples; s++) {
        struct sums sums = {0};
        for (size_t i = s * elements; i < (s + 1) * elements; i++) {
            double x = mlo_tensor_get_f64(output, i), y = mlo_tensor_get_f64(reference, i);
            sums.squared_error += (x - y) * (x - y);
            sums.dot += x * y;
            sums.norm += x * x;
            sums.reference_norm += y * y;
        }
        scores[s] = score(&sums, elements);
        if (!isfinite(scores[s]))
            return mlo_error_set(err, MLO_EINVAL,
                                 "the model's or the baseline's output for sample %zu is not finite", s);
    }
    return MLO_OK;
}

static double mse(const struct sums *sums, size_t elements)
{
    return elements ? sums->squared_error / (double)elements : 0;
}

static double cosine(const struct sums *sums, size_t elements)
{
    MLO_UNUSED(elements);
    if (sums->norm == 0 || sums->reference_norm == 0) /* no direction: the same only when both have none */
        return sums->norm == sums->reference_norm;
    return sums->dot / (sqrt(sums->norm) * sqrt(sums->reference_norm));
}

enum mlo_status mlo_scores_mse(const struct mlo_tensor *output, const int64_t *labels,
                               const struct mlo_tensor *reference, double *scores, struct mlo_error *err)
{
    MLO_UNUSED(labels);
    return each_sample(output, reference, mse, scores, err);
}

enum mlo_status mlo_scores_cosine(const struct mlo_tensor *output, const int64_t *labels,
                                  const struct mlo_tensor *reference, double *scores, struct mlo_error *err)
{
    MLO_UNUSED(labels);
    return each_sample(output, reference, cosine, scores, err);
}
