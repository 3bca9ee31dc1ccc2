/* What metric files share. */
#ifndef MLO_MEASURE_METRIC_IMPL_H
#define MLO_MEASURE_METRIC_IMPL_H

#include "pipeline/measure/measure.h"

typedef enum mlo_status mlo_scores_fn(const struct mlo_tensor *output, const int64_t *labels,
                                      const struct mlo_tensor *reference, double *scores,
                                      struct mlo_error *err);

mlo_scores_fn mlo_scores_top1, mlo_scores_top5;  /* metric_topk.c */
mlo_scores_fn mlo_scores_mse, mlo_scores_cosine; /* metric_reference.c */

#endif
