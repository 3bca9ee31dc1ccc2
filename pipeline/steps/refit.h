/* Reconstruction of a model that was pruned: layer by layer in the order of the graph, what its inputs are
 * now and what the float model made there are streamed side by side, and the layer is fitted to that
 * (passes/prune.h). A layer thus makes good the errors of those before it. */
#ifndef MLO_STEPS_REFIT_H
#define MLO_STEPS_REFIT_H

#include "passes/prune.h"
#include "pipeline/steps/step_impl.h"

struct mlo_refit_request {
    const struct mlo_step_context *ctx;
    const struct mlo_model *source; /* with the same nodes in the same places */
    struct mlo_model *pruned;
    const struct mlo_prune_result *result;
    struct mlo_dataset *dataset;
    int64_t first, samples; /* of the dataset: one, and how many from it on at most */
    bool weights;           /* else biases alone */
    double damp;
    int64_t probe; /* > 0: only layers whose own inputs went are fitted, on no more rows than that needs, and
                    * so many samples give these, where each has enough; 0: all layers, on all samples */
    double from, to; /* of the step's progress */
};
/* Fits all weighted nodes whose inputs changed. `layers` (an array) gets {"node","before","after","to"}:
 * squared errors over what the outputs vary by; `notes`, what was left as it is, and why. */
MLO_MUST_USE enum mlo_status mlo_step_refit(const struct mlo_refit_request *request, json_t *layers,
                                            json_t *notes, struct mlo_error *err);

#endif
