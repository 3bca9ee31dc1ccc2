/* The rows' functions. */
#ifndef MLO_MEASURE_METRIC_IMPL_H
#define MLO_MEASURE_METRIC_IMPL_H

#include "pipeline/measure/scores_impl.h"

typedef enum mlo_status mlo_record_fn(const struct mlo_metric_data *data, struct mlo_scores *out,
                                      struct mlo_error *err);

/* metric_class.c: scores of classes */
mlo_record_fn mlo_record_top, mlo_record_f1, mlo_record_auc, mlo_record_agreement, mlo_record_kl;
/* metric_error.c: distances, from the baseline's outputs or from y */
mlo_record_fn mlo_record_mse, mlo_record_mae, mlo_record_psnr, mlo_record_cosine;
mlo_record_fn mlo_record_target_mse, mlo_record_target_mae, mlo_record_target_psnr, mlo_record_target_cosine;
/* metric_rank.c: orders */
mlo_record_fn mlo_record_spearman, mlo_record_hit, mlo_record_ndcg;
/* metric_tokens.c and metric_boxes.c */
mlo_record_fn mlo_record_perplexity, mlo_record_boxes;

#endif
