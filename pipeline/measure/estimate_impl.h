/* Order statistics and the bootstrap that estimates and benchmarks share. */
#ifndef MLO_MEASURE_ESTIMATE_IMPL_H
#define MLO_MEASURE_ESTIMATE_IMPL_H

#include <stddef.h>

#include "pipeline/measure/measure.h"

enum { MLO_BOOTSTRAP_RESAMPLES = 2000 };

/* Sorts ascending, in place. */
void mlo_sort_f64(double *values, size_t count);
/* The q-quantile (0 … 1) of sorted values, linear between neighbours (Hyndman and Fan's type 7). */
double mlo_quantile_sorted(const double *sorted, size_t count, double q);
double mlo_median(double *values, size_t count); /* sorts */

/* Percentile bootstrap of the median of `count` values (one a process): value and 95% interval. Sets n to
 * `samples`. */
void mlo_estimate_median(const double *values, size_t count, int64_t samples, struct mlo_estimate *out);

#endif
