#include "passes/calibrators.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BINS = MLO_HIST_BINS, HALF = MLO_HIST_BINS / 2 };

/* --- from extremes and ranks -----------------------------------------------------------------------------
 */

static void minmax(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low, float *high)
{
    MLO_UNUSED(c);
    *low = t->min;
    *high = t->max;
}

/* The average of the samples' extremes, later ones weighing more (Jacob et al. 2018, section 3.1). */
static void moving_average(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low,
                           float *high)
{
    MLO_UNUSED(c);
    *low = t->ema_weight > 0 ? (float)(t->ema_min / t->ema_weight) : t->min;
    *high = t->ema_weight > 0 ? (float)(t->ema_max / t->ema_weight) : t->max;
}

static void percentile(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low,
                       float *high)
{
    mlo_tensor_stats_percentile(t, c->percentile, low, high);
}

/* --- searching the histogram ------------------------------------------------------------------------------
 */

static double edge(const struct mlo_tensor_stats *t, int bin)
{
    return ldexp(bin - HALF, t->log2_width);
}

/* A range as candidates are compared: from bin edge to bin edge. */
typedef double cost_fn(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, double low,
                       double high);

/* Integral of (x - v)^2 over [a, b], by its width: the mean error of what lies there and becomes v. */
static double mean_square(double a, double b, double v)
{
    double p = a - v, q = b - v;
    return (p * p + p * q + q * q) / 3;
}

/* Mean squared error of quantizing to [low, high]: exact for values spread evenly over their bins. */
static double squared_error(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, double low,
                            double high)
{
    double width = ldexp(1, t->log2_width), step = (high - low) / (c->levels - 1), sum = 0;
    for (int b = 0; b < BINS; b++) {
        if (!t->bins[b])
            continue;
        double a = edge(t, b), z = a + width, error = 0;
        if (!(step > 0) || z <= low || a >= high) {
            error = mean_square(a, z, z <= low ? low : high);
        } else if (width > step / 8) { /* a bin over several levels, or a good part of one: piece by piece */
            enum { PIECES = 8 };
            for (int p = 0; p < PIECES; p++) {
                double x = a + width * (p + 0.5) / PIECES;
                double q = low + step * rint((fmin(fmax(x, low), high) - low) / step);
                error += (x - q) * (x - q) / PIECES;
            }
        } else {
            double x = fmin(fmax(a + width / 2, low), high);
            error = mean_square(a, z, low + step * rint((x - low) / step));
        }
        sum += (double)t->bins[b] * error;
    }
    return sum / (double)t->count;
}

/* A logarithm of additions, multiplications and divisions only: the same bits wherever IEEE 754 holds, which
 * the C library's does not promise. x > 0. */
static double ordered_log(double x)
{
    int exponent;
    double m = frexp(x, &exponent);
    if (m < M_SQRT1_2) {
        m *= 2;
        exponent--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 23; k >= 1; k -= 2) /* 2 artanh(s), |s| < 0.172 */
        sum = sum * s2 + 1.0 / k;
    return 2 * s * sum + exponent * M_LN2;
}

static int level_of(int bin, int count, int levels)
{
    return count <= levels ? bin : (int)((int64_t)bin * levels / count);
}

static double counted(const struct mlo_tensor_stats *t, int bin)
{
    return bin == HALF ? 0 : (double)t->bins[bin];
}

/* Relative entropy of the observed distribution, clipped to the range, to the quantized one (Migacz 2017,
 * "8-bit inference with TensorRT"): within each level, the count is spread evenly over its bins that hold
 * anything. The bin of zero is left out, as there: every range has zero among its levels, so the spike that
 * a Relu leaves loses nothing, and spread over its neighbours it would outweigh all else. */
static double divergence(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, double low,
                         double high)
{
    int first = HALF + (int)floor(ldexp(low, -t->log2_width)),
        end = HALF + (int)ceil(ldexp(high, -t->log2_width));
    double below = 0, above = 0, inside = 0, sum = 0;
    for (int b = 0; b < BINS; b++) {
        double *part = b < first ? &below : b >= end ? &above : &inside;
        *part += counted(t, b);
    }
    if (first >= end || inside <= 0)
        return INFINITY;
    for (int b = first, next; b < end; b = next) {
        double mass = 0, filled = 0;
        int level = level_of(b - first, end - first, c->levels);
        for (next = b; next < end && level_of(next - first, end - first, c->levels) == level; next++) {
            mass += counted(t, next);
            filled += counted(t, next) > 0;
        }
        for (int k = b; k < next; k++) {
            double p = counted(t, k) + (k == first ? below : 0) + (k == end - 1 ? above : 0);
            /* what was clipped onto a bin that held nothing is as unlikely as one value in all */
            double q = counted(t, k) > 0 ? mass / filled : 1;
            if (p > 0)
                sum += p * ordered_log(p / q);
        }
    }
    double total = below + inside + above;
    return sum / total - ordered_log(total / inside);
}

/* Shrinks one end after the other, each over all bin edges within the extremes. Symmetric ranges have one
 * end. */
static void search(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, cost_fn *cost,
                   float *low, float *high)
{
    enum { STEPS = 256 };
    double a = fmin((double)t->min, 0), z = fmax((double)t->max, 0), width = ldexp(1, t->log2_width);
    if (c->symmetric) {
        z = fmax(-a, z);
        a = -z;
    }
    double best = cost(t, c, a, z), best_a = a, best_z = z;
    for (int end = 0; end < (c->symmetric ? 1 : 2); end++) {
        double reach = end == 0 ? z : -a;
        int bins = (int)(reach / width), stride = MLO_MAX(bins / STEPS, 1);
        for (int b = bins; b >= MLO_MAX(stride, bins / 16); b -= stride) {
            double x = b * width, from = end == 0 && !c->symmetric ? best_a : -x, to = end == 0 ? x : best_z;
            double here = cost(t, c, from, to);
            if (here < best) {
                best = here;
                best_a = from;
                best_z = to;
            }
        }
    }
    *low = (float)best_a;
    *high = (float)best_z;
}

static void entropy(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low,
                    float *high)
{
    search(t, c, divergence, low, high);
}

static void mse(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low, float *high)
{
    search(t, c, squared_error, low, high);
}

void mlo_calibration_power(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float low,
                           float high, double *signal, double *noise)
{
    enum { PIECES = 8 };
    double width = ldexp(1, t->log2_width), from = (double)low, to = (double)high,
           step = (to - from) / (c->levels - 1);
    *signal = *noise = 0;
    for (int b = 0; b < BINS; b++) {
        /* where nothing is negative, what lies in the bin that begins with 0 is what a Relu made 0 */
        if (!t->bins[b] || (b == HALF && !(t->min < 0)))
            continue;
        for (int p = 0; p < PIECES; p++) {
            double x = fmin(fmax(edge(t, b) + width * (p + 0.5) / PIECES, from), to);
            double error = x - (from + step * rint((x - from) / step));
            *signal += (double)t->bins[b] * x * x / PIECES;
            *noise += (double)t->bins[b] * (width < step ? error * error : step * step / 12) / PIECES;
        }
    }
}

double mlo_calibration_decibels(double signal, double noise)
{
    return signal > 0 && noise > 0 ? 10 / M_LN10 * ordered_log(signal / noise) : (double)INFINITY;
}

double mlo_calibration_sqnr(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float low,
                            float high)
{
    double noise = t->count ? squared_error(t, c, (double)low, (double)high) : 0;
    double signal = t->count ? t->sum_sq / (double)t->count : 0;
    return noise > 0 && signal > 0 ? 10 * log10(signal / noise) : 0;
}

/* Each value takes the calibrator that leaves it the best signal to noise ratio; among equals, the first. */
static void automatic(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low,
                      float *high)
{
    static mlo_calibrate_fn *const ways[] = {minmax, moving_average, percentile, entropy, mse};
    double best = -INFINITY;
    for (size_t i = 0; i < MLO_COUNT(ways); i++) {
        float from, to;
        ways[i](t, c, &from, &to);
        double noise = t->count ? squared_error(t, c, (double)fminf(from, 0), (double)fmaxf(to, 0)) : 0;
        if (-noise <= best)
            continue;
        best = -noise;
        *low = from;
        *high = to;
    }
}

/* --- the table ---------------------------------------------------------------------------------------------
 */

static const struct mlo_calibrator table[] = {
    {"minmax", minmax, "the extremes"},
    {"moving_average", moving_average, "the average of the samples' extremes, later ones weighing more"},
    {"percentile", percentile, "the central share of all values"},
    {"entropy", entropy, "the least relative entropy between observed and quantized values"},
    {"mse", mse, "the least mean squared error"},
    {"auto", automatic, "for each value, the one of the others with the best signal to noise ratio"},
};
const char *const mlo_calibrator_names[] = {"minmax", "moving_average", "percentile", "entropy",
                                            "mse",    "auto",           NULL};

const struct mlo_calibrator *mlo_calibrator_find(const char *name)
{
    for (size_t i = 0; i < MLO_COUNT(table); i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}
