/* The numbers of the distillation evaluation.
 *
 * Softmax at a temperature and the divergence of the softened rows: Hinton, Vinyals and Dean (2015). Expected
 * calibration error: Naeini et al. (2015), Guo et al. (2017); its bins of equal mass: Nguyen and O'Connor
 * (2015). Step-down correction: Holm (1979). Paired difference of proportions: Agresti and Min (2005). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/distill.h"

static const double LOG_LEAST = -69.07755278982137; /* log 1e-30: stands for the logarithm of 0 */

bool mlo_log_softmax(const double *scores, size_t count, double temperature, bool probabilities, double *out)
{
    double high = -INFINITY, sum = 0;
    for (size_t k = 0; k < count; k++) {
        if (isnan(scores[k]))
            return false;
        out[k] = !probabilities ? scores[k] : scores[k] > 1e-30 ? log(scores[k]) : LOG_LEAST;
        out[k] /= temperature;
        high = fmax(high, out[k]);
    }
    if (!isfinite(high))
        return false;
    for (size_t k = 0; k < count; k++)
        sum += exp(out[k] - high);
    double shift = high + log(sum);
    for (size_t k = 0; k < count; k++)
        out[k] -= shift;
    return true;
}

void mlo_divergence(const double *log_p, const double *log_q, size_t count, double *kl, double *cross_entropy)
{
    double divergence = 0, entropy = 0;
    for (size_t k = 0; k < count; k++) {
        double p = exp(log_p[k]), q = isinf(log_q[k]) ? LOG_LEAST : log_q[k];
        if (p <= 0)
            continue;
        divergence += p * (log_p[k] - (isinf(log_p[k]) ? log_p[k] : q));
        entropy -= p * q;
    }
    *kl = fmax(divergence, 0); /* rounding may leave -1e-17 */
    *cross_entropy = fmax(entropy, 0);
}

/* --- calibration ---------------------------------------------------------------------------------------- */

void mlo_bins_of_width(const double *confidence, size_t count, int bins, uint16_t *of)
{
    for (size_t i = 0; i < count; i++) {
        double at = ceil(confidence[i] * bins) - 1;
        of[i] = (uint16_t)fmax(0, fmin(at, bins - 1));
    }
}

struct confident {
    double confidence;
    size_t sample;
};

static int by_confidence(const void *a, const void *b)
{
    const struct confident *x = a, *y = b;
    int order = (x->confidence > y->confidence) - (x->confidence < y->confidence);
    return order ? order : (x->sample > y->sample) - (x->sample < y->sample);
}

bool mlo_bins_of_mass(const double *confidence, size_t count, int bins, uint16_t *of)
{
    struct confident *sorted = malloc((count + 1) * sizeof *sorted);
    if (!sorted)
        return false;
    for (size_t i = 0; i < count; i++)
        sorted[i] = (struct confident){confidence[i], i};
    qsort(sorted, count, sizeof *sorted, by_confidence);
    for (size_t i = 0; i < count; i++) /* run b holds the places from b * count / bins on, rounded up */
        of[sorted[i].sample] = (uint16_t)(i * (size_t)bins / count);
    free(sorted);
    return true;
}

double mlo_calibration_error(const double *confidence, const bool *right, const uint16_t *bin, size_t count,
                             int bins)
{
    double sum = 0, *gap = calloc((size_t)bins + 1, sizeof *gap);
    if (!gap || !count) {
        free(gap);
        return NAN;
    }
    for (size_t i = 0; i < count; i++)
        gap[bin[i]] += (double)right[i] - confidence[i];
    for (int b = 0; b < bins; b++)
        sum += fabs(gap[b]);
    free(gap);
    return sum / (double)count;
}

/* --- comparisons ---------------------------------------------------------------------------------------- */

struct ranked {
    double p;
    size_t at;
};

static int by_p(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    int order = (x->p > y->p) - (x->p < y->p);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

bool mlo_holm(double *p, size_t count)
{
    struct ranked *ranked = malloc((count + 1) * sizeof *ranked);
    double least = 0;
    if (!ranked)
        return false;
    for (size_t i = 0; i < count; i++)
        ranked[i] = (struct ranked){p[i], i};
    qsort(ranked, count, sizeof *ranked, by_p);
    for (size_t i = 0; i < count; i++) {
        least = fmax(least, fmin(1, ranked[i].p * (double)(count - i)));
        p[ranked[i].at] = least;
    }
    free(ranked);
    return true;
}

/* The z that a standard normal exceeds with probability `tail`, by bisection of erfc. */
static double normal_quantile(double tail)
{
    double low = 0, high = 40;
    for (int i = 0; i < 100; i++) {
        double middle = (low + high) / 2;
        if (erfc(middle / M_SQRT2) / 2 > tail)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

void mlo_paired_interval(int64_t only_a, int64_t only_b, int64_t n, double alpha, double *low, double *high)
{
    double N = (double)n + 2, d = (double)(only_a - only_b), value = n > 0 ? d / (double)n : 0;
    double half = normal_quantile(alpha / 2) * sqrt((double)(only_a + only_b) + 1 - d * d / N) / N;
    *low = fmax(-1, fmin(value, d / N - half));
    *high = fmin(1, fmax(value, d / N + half));
}
