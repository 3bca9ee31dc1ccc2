/* What a model loses in a metric against its source, on the same samples. */
#include <stdlib.h>

#include "pipeline/steps/sensitivity.h"

static void clear_outputs(struct mlo_tensor *outputs, int count)
{
    for (int i = 0; outputs && i < count; i++)
        mlo_tensor_clear(&outputs[i]);
    free(outputs);
}

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
    judge->output_count = source->graph->output_count;
    judge->reference = calloc((size_t)judge->output_count + 1, sizeof *judge->reference);
    if (!judge->reference)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_run_dataset(source, dataset, &judge->run, judge->reference, NULL, NULL, err));
    MLO_TRY(score(judge, judge->reference, &judge->source, err));
out:
    if (status != MLO_OK)
        mlo_error_prefix(err, "the data that selects");
    return status;
}

void mlo_judge_clear(struct mlo_judge *judge)
{
    clear_outputs(judge->reference, judge->output_count);
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
    struct mlo_tensor *outputs = calloc((size_t)judge->output_count + 1, sizeof *outputs);
    if (!outputs)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_run_dataset(model, judge->dataset, &judge->run, outputs, NULL, NULL, err));
    MLO_TRY(score(judge, outputs, &scores, err));
    if (judge->metric.row->higher_is_better)
        MLO_TRY(mlo_scores_paired(judge->source, scores, out, err));
    else
        MLO_TRY(mlo_scores_paired(scores, judge->source, out, err));
out:
    mlo_scores_free(scores);
    clear_outputs(outputs, judge->output_count);
    return status;
}
