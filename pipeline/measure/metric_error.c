/* How far outputs are from those of the baseline model, or from y, sample by sample, in float64. */
#include <math.h>

#include "pipeline/measure/metric_impl.h"

struct sums {
    double squared, absolute, dot, norm, reference_norm, elements, peak;
};
typedef double score_fn(const struct sums *sums);

static double mse(const struct sums *s)
{
    return s->elements > 0 ? s->squared / s->elements : 0;
}

static double mae(const struct sums *s)
{
    return s->elements > 0 ? s->absolute / s->elements : 0;
}

/* A perfect copy has no noise: 150 dB stands for it, which is what float32 can tell from it. */
static double psnr(const struct sums *s)
{
    double noise = mse(s);
    return noise > 0 ? fmin(150, 10 * log10(s->peak * s->peak / noise)) : 150;
}

static double cosine(const struct sums *s)
{
    if (s->norm == 0 || s->reference_norm == 0) /* no direction: the same only when both have none */
        return s->norm == s->reference_norm;
    return s->dot / (sqrt(s->norm) * sqrt(s->reference_norm));
}

static enum mlo_status each_sample(const struct mlo_tensor *output, const struct mlo_tensor *other,
                                   const char *what, score_fn *score, struct mlo_scores *out,
                                   struct mlo_error *err)
{
    char a[160], b[160];
    size_t samples, elements, other_samples, other_elements;
    enum mlo_status status;
    MLO_TRY(mlo_scores_shape(output, "the model's output", &samples, &elements, err));
    MLO_TRY(mlo_scores_shape(other, what, &other_samples, &other_elements, err));
    if (samples != other_samples || elements != other_elements)
        return mlo_error_set(err, MLO_EINVAL, "the model's output %s and %s, %s, cannot be compared",
                             mlo_tensor_describe(output, a, sizeof a), what,
                             mlo_tensor_describe(other, b, sizeof b));
    MLO_TRY(mlo_scores_init(out, samples, 1, err));
    for (size_t s = 0; s < samples; s++) {
        struct sums sums = {.elements = (double)elements, .peak = other->dtype == MLO_UINT8 ? 255 : 1};
        for (size_t i = s * elements; i < (s + 1) * elements; i++) {
            double x = mlo_tensor_get_f64(output, i), y = mlo_tensor_get_f64(other, i);
            sums.squared += (x - y) * (x - y);
            sums.absolute += fabs(x - y);
            sums.dot += x * y;
            sums.norm += x * x;
            sums.reference_norm += y * y;
        }
        out->values[s] = score(&sums);
        if (!isfinite(out->values[s]))
            return mlo_error_set(err, MLO_EINVAL, "the model's output or %s for sample %zu is not finite",
                                 what, s);
    }
out:
    return status;
}

#define RECORD(name, score, member, what)                                                                    \
    enum mlo_status mlo_record_##name(const struct mlo_metric_data *data, struct mlo_scores *out,            \
                                      struct mlo_error *err)                                                 \
    {                                                                                                        \
        return each_sample(data->output, data->member, what, score, out, err);                               \
    }
RECORD(mse, mse, reference, "the baseline's")
RECORD(mae, mae, reference, "the baseline's")
RECORD(psnr, psnr, reference, "the baseline's")
RECORD(cosine, cosine, reference, "the baseline's")
RECORD(target_mse, mse, target, "array y")
RECORD(target_mae, mae, target, "array y")
RECORD(target_psnr, psnr, target, "array y")
RECORD(target_cosine, cosine, target, "array y")
