/* What a model loses in a metric against its source, on the same samples. */
#include <stdlib.h>

#include "pipeline/steps/sensitivity.h"

static enum mlo_status score(const struct mlo_judge *judge, const struct mlo_tensor *outputs,
                             struct mlo_scores **out, struct mlo_error *err)
{
    const struct mlo_metric_data data = {.output = &outputs[0],
                                         .reference = &judge->reference[0],
                                         .target = judge->target.data ? &judge->target : NULL,
                                         .groups = mlo_dataset_groups(judge->dataset)};
    return mlo_metric_score(&judge->metric, &data, out, err);
}

enum mlo_status mlo_judge_init(struct mlo_judge *judge, const struct mlo_model *source,
                               struct mlo_dataset *dataset, const char *metric, unsigned threads,
                               int64_t batch, struct mlo_error *err)
{
    enum mlo_status status;
    *judge = (struct mlo_judge){.dataset = dataset};
    judge->run =
        (struct mlo_run_options){.threads = threads, .batch = batch, .numerics = MLO_NUMERICS_INVARIANT};
    MLO_TRY(mlo_metric_find(metric, &judge->metric, err));
    MLO_TRY(mlo_dataset_target(dataset, &judge->target, err));
    MLO_TRY(mlo_run_evaluation(source, dataset, &judge->run, &judge->reference, &judge->output_count, NULL,
                               NULL, err));
    MLO_TRY(score(judge, judge->reference, &judge->source, err));
out:
    if (status != MLO_OK)
        mlo_error_prefix(err, "the data that selects");
    return status;
}

void mlo_judge_clear(struct mlo_judge *judge)
{
    mlo_outputs_free(judge->reference, judge->output_count);
    mlo_tensor_clear(&judge->target);
    mlo_scores_free(judge->source);
    *judge = (struct mlo_judge){0};
}

enum mlo_status mlo_judge_drop(const struct mlo_judge *judge, const struct mlo_model *model,
                               struct mlo_estimate *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_scores *scores = NULL;
    if (!model)
        return mlo_scores_paired(judge->source, judge->source, out, err);
    struct mlo_tensor *outputs = NULL;
    int count = 0;
    MLO_TRY(mlo_run_evaluation(model, judge->dataset, &judge->run, &outputs, &count, NULL, NULL, err));
    MLO_TRY(score(judge, outputs, &scores, err));
    if (judge->metric.row->higher_is_better)
        MLO_TRY(mlo_scores_paired(judge->source, scores, out, err));
    else
        MLO_TRY(mlo_scores_paired(scores, judge->source, out, err));
out:
    mlo_scores_free(scores);
    mlo_outputs_free(outputs, count);
    return status;
}
