/* What the files of the steps share: each step is one file that ends in its own row. */
#ifndef MLO_STEPS_STEP_IMPL_H
#define MLO_STEPS_STEP_IMPL_H

#include "pipeline/steps/steps.h"

extern const struct mlo_step mlo_step_optimize;
extern const struct mlo_step mlo_step_quantize;
extern const struct mlo_step mlo_step_evaluate;
extern const struct mlo_step mlo_step_benchmark;

/* {"name": revision} for the named passes; new reference, NULL when out of memory. */
json_t *mlo_step_pass_revisions(const char *const *names, size_t count);

/* Tells progress when somebody listens. */
void mlo_step_progress(const struct mlo_step_context *ctx, double fraction, const char *message);

/* Reads a model and checks that every op of it is known; an error begins with the file's name. */
MLO_MUST_USE enum mlo_status mlo_step_load(const char *path, struct mlo_model **out, struct mlo_error *err);

/* Runs passes on the model at ctx->model_path and saves the result as <out_dir>/model.onnx: the common end of
 * steps that derive. `stats` may be NULL. Fills out->artifact_path and out->report. */
MLO_MUST_USE enum mlo_status mlo_step_run_passes(const struct mlo_step_context *ctx, struct mlo_model *model,
                                                 const struct mlo_pass_request *requests, size_t count,
                                                 const struct mlo_stats *stats, struct mlo_step_result *out,
                                                 struct mlo_error *err);

/* A new observation with what every one has: subject, metric, params (borrowed), unit, estimate, protocol,
 * engine, machine. NULL when out of memory. */
json_t *mlo_step_observation(const char *subject, const char *metric, json_t *params, const char *unit,
                             const struct mlo_estimate *estimate, const char *protocol,
                             const struct mlo_engine *engine);
/* Adds "against": the comparison with the source, by "difference" or "ratio". false: out of memory. */
bool mlo_step_compare(json_t *observation, const char *kind, const struct mlo_estimate *estimate);

/* The engine that the option "engine" names. */
MLO_MUST_USE enum mlo_status mlo_step_engine(const struct mlo_step_context *ctx,
                                             const struct mlo_engine **out, struct mlo_error *err);
/* Whether the option compare_to is "source" and the variant is another file than the source. */
bool mlo_step_compares(const struct mlo_step_context *ctx);

/* Choices shared by steps that measure. */
extern const char *const mlo_step_compare_choices[];
extern const char *const mlo_step_engine_choices[];

#endif
