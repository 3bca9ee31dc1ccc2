/* Estimates with 95% intervals.
 *
 * Wilson's score interval (1927) for proportions; Agresti and Min's adjusted interval (2005) for differences
 * of paired proportions; Efron's percentile bootstrap for other means; McNemar's exact test (binomial) for
 * pairs. */
#include "pipeline/measure/estimate_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/random_impl.h"

static const double Z95 = 1.959963984540054;
static const uint64_t BOOTSTRAP_SEED = 0x6d6c6f7074; /* fixed: equal scores give equal intervals */

static int compare_f64(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void mlo_sort_f64(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_f64);
}

double mlo_quantile_sorted(const double *sorted, size_t count, double q)
{
    if (!count)
        return 0;
    double at = q * (double)(count - 1);
    size_t i = (size_t)at;
    if (i + 1 >= count)
        return sorted[count - 1];
    return sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]);
}

double mlo_median(double *values, size_t count)
{
    mlo_sort_f64(values, count);
    return mlo_quantile_sorted(values, count, 0.5);
}

static void percentile_interval(double *resampled, struct mlo_estimate *out)
{
    mlo_sort_f64(resampled, MLO_BOOTSTRAP_RESAMPLES);
    out->low = mlo_quantile_sorted(resampled, MLO_BOOTSTRAP_RESAMPLES, 0.025);
    out->high = mlo_quantile_sorted(resampled, MLO_BOOTSTRAP_RESAMPLES, 0.975);
}

static double mean_of(const double *values, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += values[i];
    return sum / (double)n;
}

static void bootstrap_mean(const double *values, int64_t n, struct mlo_estimate *out)
{
    double resampled[MLO_BOOTSTRAP_RESAMPLES];
    struct mlo_rng rng;
    mlo_rng_seed(&rng, BOOTSTRAP_SEED);
    for (int r = 0; r < MLO_BOOTSTRAP_RESAMPLES; r++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += values[mlo_rng_below(&rng, (uint64_t)n)];
        resampled[r] = sum / (double)n;
    }
    *out = (struct mlo_estimate){.value = mean_of(values, n), .n = n};
    percentile_interval(resampled, out);
}

void mlo_estimate_median(const double *values, size_t count, int64_t samples, struct mlo_estimate *out)
{
    double resampled[MLO_BOOTSTRAP_RESAMPLES];
    struct mlo_rng rng;
    double *copy = malloc((count + 1) * sizeof *copy);
    *out = (struct mlo_estimate){.n = samples};
    if (!copy || !count) {
        free(copy);
        out->n = 0;
        return;
    }
    memcpy(copy, values, count * sizeof *copy);
    out->value = mlo_median(copy, count);
    mlo_rng_seed(&rng, BOOTSTRAP_SEED);
    for (int r = 0; r < MLO_BOOTSTRAP_RESAMPLES; r++) {
        for (size_t i = 0; i < count; i++)
            copy[i] = values[mlo_rng_below(&rng, count)];
        resampled[r] = mlo_median(copy, count);
    }
    percentile_interval(resampled, out);
    free(copy);
}

void mlo_estimate_mean(const double *scores, int64_t n, bool proportion, struct mlo_estimate *out)
{
    *out = (struct mlo_estimate){0};
    if (n <= 0)
        return;
    if (!proportion) {
        bootstrap_mean(scores, n, out);
        return;
    }
    double p = mean_of(scores, n), z2 = Z95 * Z95, N = (double)n;
    double centre = (p + z2 / (2 * N)) / (1 + z2 / N);
    double half = Z95 / (1 + z2 / N) * sqrt(p * (1 - p) / N + z2 / (4 * N * N));
    *out = (struct mlo_estimate){.value = p, .n = n};
    out->low = p == 0 ? 0 : fmax(0, centre - half);
    out->high = p == 1 ? 1 : fmin(1, centre + half);
}

/* Counts of pairs that disagree: a alone right, b alone right. */
static void discordant(const double *a, const double *b, int64_t n, int64_t *only_a, int64_t *only_b)
{
    *only_a = *only_b = 0;
    for (int64_t i = 0; i < n; i++) {
        *only_a += a[i] > b[i];
        *only_b += a[i] < b[i];
    }
}

void mlo_estimate_paired(const double *a, const double *b, int64_t n, bool proportion,
                         struct mlo_estimate *out)
{
    *out = (struct mlo_estimate){0};
    if (n <= 0)
        return;
    if (proportion) {
        int64_t only_a, only_b;
        discordant(a, b, n, &only_a, &only_b);
        double N = (double)n + 2, d = (double)(only_a - only_b);
        double half = Z95 * sqrt((double)(only_a + only_b) + 1 - d * d / N) / N;
        *out = (struct mlo_estimate){.value = d / (double)n, .n = n};
        out->low = fmax(-1, fmin(out->value, d / N - half));
        out->high = fmin(1, fmax(out->value, d / N + half));
        return;
    }
    double *differences = malloc((size_t)n * sizeof *differences);
    if (!differences)
        return;
    for (int64_t i = 0; i < n; i++)
        differences[i] = a[i] - b[i];
    bootstrap_mean(differences, n, out);
    free(differences);
}

static double log_factorial(double n)
{
    int sign;
    return lgamma_r(n + 1, &sign);
}

double mlo_mcnemar(const double *a, const double *b, int64_t n)
{
    int64_t only_a, only_b;
    discordant(a, b, n, &only_a, &only_b);
    int64_t total = only_a + only_b, least = MLO_MIN(only_a, only_b);
    if (only_a == only_b)
        return 1;
    double N = (double)total, tail = 0;
    for (int64_t k = 0; k <= least; k++)
        tail += exp(log_factorial(N) - log_factorial((double)k) - log_factorial(N - (double)k) - N * M_LN2);
    return fmin(1, 2 * tail);
}
