/* A model that is run over a dataset piece by piece: what mlo_run_dataset and mlo_run_evaluation are made of,
 * for callers that do not want all outputs in memory at once. */
#ifndef MLO_MEASURE_RUN_IMPL_H
#define MLO_MEASURE_RUN_IMPL_H

#include "pipeline/measure/measure.h"

struct mlo_runner;
/* Checks the dataset against the model. `model` and `dataset` are borrowed until it is closed. */
MLO_MUST_USE enum mlo_status mlo_runner_open(const struct mlo_model *model, struct mlo_dataset *dataset,
                                             const struct mlo_run_options *options, struct mlo_runner **out,
                                             struct mlo_error *err);
void mlo_runner_close(struct mlo_runner *runner);
int64_t mlo_runner_samples(const struct mlo_runner *runner);
/* Outputs of samples [begin, begin+count), as mlo_run_dataset gives them. Plans are kept from call to call.
 */
MLO_MUST_USE enum mlo_status mlo_runner_run(struct mlo_runner *runner, int64_t begin, int64_t count,
                                            struct mlo_tensor *outputs, mlo_progress_fn *progress,
                                            void *progress_arg, struct mlo_error *err);

/* The same, and then through the dataset's postprocessing model where it has one (postprocess.c). */
struct mlo_evaluator;
MLO_MUST_USE enum mlo_status mlo_evaluator_open(const struct mlo_model *model, struct mlo_dataset *dataset,
                                                const struct mlo_run_options *options,
                                                struct mlo_evaluator **out, struct mlo_error *err);
void mlo_evaluator_close(struct mlo_evaluator *evaluator);
/* What a piece's number of samples must be a multiple of (all but the last one's): the batch that the
 * postprocessing model fixes, or 1. */
int64_t mlo_evaluator_multiple(const struct mlo_evaluator *evaluator);
/* The outputs' names, of the postprocessing model where there is one. */
const struct mlo_graph *mlo_evaluator_graph(const struct mlo_evaluator *evaluator);
/* *outputs is an array of *count tensors, yours (mlo_outputs_free); NULL on failure. */
MLO_MUST_USE enum mlo_status mlo_evaluator_run(struct mlo_evaluator *evaluator, int64_t begin, int64_t count,
                                               struct mlo_tensor **outputs, int *output_count,
                                               mlo_progress_fn *progress, void *progress_arg,
                                               struct mlo_error *err);

#endif
