#include "passes/calibrators.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BINS = MLO_HIST_BINS, HALF = MLO_HIST_BINS / 2 };
enum { STEPS = 256 }; /* candidates of a search, at most about so many */

/* --- from extremes and ranks -----------------------------------------------------------------------------
 */

/* The extremes themselves (Jacob et al. 2018, section 2.1). */
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

/* What is rare at either end is clipped (Wu et al. 2020, "Integer Quantization for Deep Learning Inference",
 * arXiv:2004.09602, section 4). */
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

/* rint and fmin of fmax for what a search asks them millions of times, where the C library's are calls: the
 * same numbers for 0 <= x < 2^51, and for what is no NaN. */
static double nearest(double x)
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

static double within(double x, double low, double high)
{
    x = x > low ? x : low;
    return x < high ? x : high;
}

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
        double a = (b - HALF) * width, z = a + width, error = 0;
        if (!(step > 0) || z <= low || a >= high) {
            error = mean_square(a, z, z <= low ? low : high);
        } else if (width > step / 8) { /* a bin over several levels, or a good part of one: piece by piece */
            enum { PIECES = 8 };
            for (int p = 0; p < PIECES; p++) {
                double x = a + width * (p + 0.5) / PIECES;
                double q = low + step * nearest((within(x, low, high) - low) / step);
                error += (x - q) * (x - q) / PIECES;
            }
        } else {
            double x = within(a + width / 2, low, high);
            error = mean_square(a, z, low + step * nearest((x - low) / step));
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

/* --- relative entropy --------------------------------------------------------------------------------------
 */

/* Counts of |x| over bins of one width, and what a threshold is judged by (Migacz 2017, "8-bit inference with
 * TensorRT"). */
struct magnitudes {
    double bins[HALF];
    int count;     /* up to the largest observed */
    int distinct;  /* bins of x itself that hold anything */
    bool touching; /* two of these side by side */
};

static void take_magnitudes(const struct mlo_tensor_stats *t, struct magnitudes *m)
{
    *m = (struct magnitudes){0};
    for (int b = 0; b < BINS; b++) {
        int k = b >= HALF ? b - HALF : HALF - 1 - b;
        m->bins[k] += (double)t->bins[b];
        m->distinct += t->bins[b] > 0;
        m->touching = m->touching || (b > 0 && t->bins[b] > 0 && t->bins[b - 1] > 0);
        if (t->bins[b] > 0)
            m->count = MLO_MAX(m->count, k + 1);
    }
    /* Every range has zero among its levels: the spike that a Relu leaves there loses nothing, and spread
     * over its neighbours it would outweigh all else. */
    if (m->count > 1)
        m->bins[0] = m->bins[1];
}

/* Relative entropy of the magnitudes, all beyond `end` bins clipped onto the last of these, to the same ones
 * without what was clipped, in `levels` levels of equal width whose counts are spread evenly over their bins
 * that hold anything. A bin that held nothing, and on which the clipped fall, counts as if it had held one.
 */
static double divergence(const struct magnitudes *m, int end, int levels)
{
    double inside = 0, beyond = 0, sum = 0;
    for (int b = 0; b < m->count; b++)
        *(b < end ? &inside : &beyond) += m->bins[b];
    if (!(inside > 0))
        return INFINITY;
    for (int b = 0, next; b < end; b = next) {
        double mass = 0, filled = 0;
        int64_t level = (int64_t)b * levels / end;
        for (next = b; next < end && (int64_t)next * levels / end == level; next++) {
            mass += m->bins[next];
            filled += m->bins[next] > 0;
        }
        for (int k = b; k < next; k++) {
            double p = m->bins[k] + (k == end - 1 ? beyond : 0);
            if (p > 0)
                sum += p * ordered_log(m->bins[k] > 0 ? p * filled / mass : p);
        }
    }
    double total = inside + beyond, held = inside + (beyond > 0 && !(m->bins[end - 1] > 0));
    return sum / total - ordered_log(total / held);
}

/* The threshold of |x| of least relative entropy, the widest of equals; it starts where each bin is a level.
 * Half of the integers are levels of |x|, also behind a Relu: as in the paper, so that the widest range has
 * several bins for each. Values that lie apart, and are no more than there are levels, keep their extremes:
 * pixels of 8 bits, indicators. */
static void entropy(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low,
                    float *high)
{
    struct magnitudes m;
    int levels = (c->levels + 1) / 2, best_end = 0;
    double best = INFINITY;
    take_magnitudes(t, &m);
    int stride = MLO_MAX((m.count - levels) / STEPS, 1);
    bool levels_do = !m.touching && m.distinct <= c->levels;
    for (int end = m.count; !levels_do && end >= levels; end -= stride) {
        double here = divergence(&m, end, levels);
        if (!(here < best))
            continue;
        best = here;
        best_end = end;
    }
    float reach = best_end > 0 && best_end < m.count ? (float)ldexp(best_end, t->log2_width) : INFINITY;
    *low = fmaxf(fminf(t->min, 0), -reach);
    *high = fminf(fmaxf(t->max, 0), reach);
    if (c->symmetric) {
        *high = fmaxf(*high, -*low);
        *low = -*high;
    }
}

/* --- squared error -----------------------------------------------------------------------------------------
 */

/* Least squared error of clipping and rounding together (Choukroun et al. 2019, "Low-bit Quantization of
 * Neural Networks for Efficient Inference", arXiv:1902.06822). Shrinks one end after the other, each over all
 * bin edges within the extremes. Symmetric ranges have one end. */
static void mse(const struct mlo_tensor_stats *t, const struct mlo_calibration *c, float *low, float *high)
{
    double a = fmin((double)t->min, 0), z = fmax((double)t->max, 0), width = ldexp(1, t->log2_width);
    if (c->symmetric) {
        z = fmax(-a, z);
        a = -z;
    }
    double best = squared_error(t, c, a, z), best_a = a, best_z = z;
    for (int end = 0; end < (c->symmetric ? 1 : 2); end++) {
        double reach = end == 0 ? z : -a;
        int bins = (int)(reach / width), stride = MLO_MAX(bins / STEPS, 1);
        for (int b = bins; b >= MLO_MAX(stride, bins / 16); b -= stride) {
            double x = b * width, from = end == 0 && !c->symmetric ? best_a : -x, to = end == 0 ? x : best_z;
            double here = squared_error(t, c, from, to);
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

/* Each value takes the calibrator that leaves it the best signal to noise ratio (SQNR as what judges a layer:
 * Lin et al. 2016, "Fixed Point Quantization of Deep Convolutional Networks", arXiv:1511.06393); among
 * equals, the first. */
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
    return mlo_named_row(name, table, MLO_COUNT(table), sizeof *table);
}
