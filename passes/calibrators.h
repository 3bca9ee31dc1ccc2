/* Calibrators: how observed values become the range that is quantized. Private to passes/. */
#ifndef MLO_PASSES_CALIBRATORS_H
#define MLO_PASSES_CALIBRATORS_H

#include "graph/graph.h"

/* What the range is for. */
struct mlo_calibration {
    double percentile; /* the central share of values that is kept, for `percentile` */
    bool symmetric;    /* zero point 0: the range is [-t, t] */
    int levels;        /* integers there are: 255 or 256 */
};

/* Chooses [*low, *high] within the observed extremes; it need not contain 0 yet. Plain sums in order of the
 * bins: equal statistics give equal bits on every machine. */
typedef void mlo_calibrate_fn(const struct mlo_tensor_stats *stats, const struct mlo_calibration *c,
                              float *low, float *high);

struct mlo_calibrator {
    const char *name;
    mlo_calibrate_fn *range;
    const char *description;
};
/* NULL: there is none of that name. */
const struct mlo_calibrator *mlo_calibrator_find(const char *name);
/* NULL-terminated, for options. */
extern const char *const mlo_calibrator_names[];

/* Sums over the histogram (a value is taken to lie anywhere in its bin): the squares of the values clipped to
 * the range, and of what rounding then changes them by. Clipping is the calibrator's choice and no noise
 * here: granular noise without overload (Gersho and Gray, 1992, section 5.2). */
void mlo_calibration_power(const struct mlo_tensor_stats *stats, const struct mlo_calibration *c, float low,
                           float high, double *signal, double *noise);
/* 10 log10(signal / noise), the same bits on every machine; infinite where there is no signal to lose, or no
 * noise. */
double mlo_calibration_decibels(double signal, double noise);

/* The signal to quantization noise ratio in dB that a range gives the observed values, by the histogram (a
 * value is taken for the middle of its bin, spread evenly over it). */
double mlo_calibration_sqnr(const struct mlo_tensor_stats *stats, const struct mlo_calibration *c, float low,
                            float high);

#endif
