/* Perplexity: output [batch, tokens, vocabulary] holds the logits for the token that stands at the same place
 * in y. */
#include <math.h>

#include "pipeline/measure/metric_impl.h"

enum mlo_status mlo_record_perplexity(const struct mlo_metric_data *data, struct mlo_scores *out,
                                      struct mlo_error *err)
{
    const struct mlo_tensor *x = data->output, *y = data->target;
    char a[160], b[160];
    if (x->rank != 3 || y->rank != 2 || y->dims[0] != x->dims[0] || y->dims[1] != x->dims[1] ||
        !mlo_dtype_info(y->dtype)->is_integer) {
        mlo_error_set(err, MLO_EINVAL, "the output is %s and array 'y' %s",
                      mlo_tensor_describe(x, a, sizeof a), mlo_tensor_describe(y, b, sizeof b));
        mlo_error_hint(err,
                       "logits [batch, tokens, vocabulary] and integers [batch, tokens] are needed, where y "
                       "holds the token that each place predicts");
        return MLO_EINVAL;
    }
    size_t tokens = (size_t)x->dims[1], words = (size_t)x->dims[2];
    enum mlo_status status = mlo_scores_init(out, (size_t)x->dims[0], 2, err);
    if (status != MLO_OK)
        return status;
    for (size_t s = 0; s < out->units; s++)
        for (size_t t = 0; t < tokens; t++) {
            int64_t word = mlo_tensor_get_i64(y, s * tokens + t);
            size_t row = (s * tokens + t) * words;
            double high = -INFINITY, sum = 0;
            if (word < 0)
                continue;
            if ((size_t)word >= words)
                return mlo_error_set(err, MLO_EINVAL,
                                     "token %lld of sample %zu is outside the vocabulary of %zu",
                                     (long long)word, s, words);
            for (size_t w = 0; w < words; w++)
                high = fmax(high, mlo_tensor_get_f64(x, row + w));
            for (size_t w = 0; w < words; w++)
                sum += exp(mlo_tensor_get_f64(x, row + w) - high);
            double loss = high + log(sum) - mlo_tensor_get_f64(x, row + (size_t)word);
            if (!isfinite(loss))
                return mlo_error_set(err, MLO_EINVAL,
                                     "the model's output for sample %zu, token %zu is not finite", s, t);
            out->values[2 * s] += loss;
            out->values[2 * s + 1]++;
        }
    return MLO_OK;
}
