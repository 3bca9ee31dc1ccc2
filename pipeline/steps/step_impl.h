/* What the files of the steps share: each step is one file that ends in its own row. */
#ifndef MLO_STEPS_STEP_IMPL_H
#define MLO_STEPS_STEP_IMPL_H

#include "engines/engines.h"
#include "pipeline/steps/sensitivity.h"
#include "pipeline/steps/steps.h"

extern const struct mlo_step mlo_step_optimize;
extern const struct mlo_step mlo_step_equalize;
extern const struct mlo_step mlo_step_smooth;
extern const struct mlo_step mlo_step_prune;
extern const struct mlo_step mlo_step_sparsify;
extern const struct mlo_step mlo_step_qat_export;
extern const struct mlo_step mlo_step_quantize;
extern const struct mlo_step mlo_step_quantize_dynamic;
extern const struct mlo_step mlo_step_quantize_weights;
extern const struct mlo_step mlo_step_round_weights;
extern const struct mlo_step mlo_step_to_float16;
extern const struct mlo_step mlo_step_evaluate;
extern const struct mlo_step mlo_step_screen;
extern const struct mlo_step mlo_step_trial;
extern const struct mlo_step mlo_step_search;
extern const struct mlo_step mlo_step_benchmark;
extern const struct mlo_step mlo_step_compile;
extern const struct mlo_step mlo_step_tune;
extern const struct mlo_step mlo_step_report;
extern const struct mlo_step mlo_step_distill_eval;

/* Whether the option "target" of a step can be this: MLO_EINVAL. */
MLO_MUST_USE enum mlo_status mlo_step_check_target(const char *target, struct mlo_error *err);

/* {"name": revision} for the named passes; new reference, NULL when out of memory. */
json_t *mlo_step_pass_revisions(const char *const *names, size_t count);

/* The passes of optimize, for steps that begin by them: freeze-initializers in front (so that the others see
 * constants) where asked for, `but` (or NULL) left out. Returns how many; there is room for one more. */
enum { MLO_STEP_FOLDING = 32 };
size_t mlo_step_folding(bool freeze, const char *but, const char *names[MLO_STEP_FOLDING]);
/* Runs them; *report is the driver's, yours, also on failure. */
MLO_MUST_USE enum mlo_status mlo_step_fold(struct mlo_model *model, const char *const *names, size_t count,
                                           json_t **report, struct mlo_error *err);

/* Tells progress when somebody listens. */
void mlo_step_progress(const struct mlo_step_context *ctx, double fraction, const char *message);

/* Reads a model and checks that every op of it is known; an error begins with the file's name. */
MLO_MUST_USE enum mlo_status mlo_step_load(const char *path, struct mlo_model **out, struct mlo_error *err);

/* MLO_ETOOBIG, with what can be done, for a model whose weights are more than the one file that a variant is.
 */
MLO_MUST_USE enum mlo_status mlo_step_check_size(const struct mlo_model *model, struct mlo_error *err);

/* Runs passes on the model at ctx->model_path and saves the result as <out_dir>/model.onnx: the common end of
 * steps that derive. `stats` may be NULL. Fills out->artifact_path and out->report. */
MLO_MUST_USE enum mlo_status mlo_step_run_passes(const struct mlo_step_context *ctx, struct mlo_model *model,
                                                 const struct mlo_pass_request *requests, size_t count,
                                                 const struct mlo_stats *stats, struct mlo_step_result *out,
                                                 struct mlo_error *err);

/* Saves the model as <out_dir>/model.onnx and fills out->artifact_path and out->report; `passes` is the
 * driver's report (borrowed). */
MLO_MUST_USE enum mlo_status mlo_step_save(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                           json_t *passes, struct mlo_step_result *out,
                                           struct mlo_error *err);

/* Opens a set of the context, as the context says that it is read: its first `limit` samples (0: all). */
MLO_MUST_USE enum mlo_status mlo_step_open_dataset(const struct mlo_step_context *ctx, const char *path,
                                                   int64_t limit, struct mlo_dataset **out,
                                                   struct mlo_error *err);
/* Puts into out->report, as "deviation", how far the outputs are from the source's on synthetic inputs
 * (mlo_synthetic_compare), or {"unavailable": why} where that cannot be told. For variants made without
 * data. */
MLO_MUST_USE enum mlo_status mlo_step_note_deviation(const struct mlo_step_context *ctx,
                                                     const struct mlo_model *made,
                                                     struct mlo_step_result *out, struct mlo_error *err);
/* The whole of a step that runs a pass with its own options and without data: load, run, save, deviation. */
MLO_MUST_USE enum mlo_status mlo_step_run_unobserved(const struct mlo_step_context *ctx, const char *pass,
                                                     struct mlo_step_result *out, struct mlo_error *err);
/* The calibration data, checked against the model and not empty. *out is yours, also on failure. */
MLO_MUST_USE enum mlo_status mlo_step_open_calibration(const struct mlo_step_context *ctx,
                                                       const struct mlo_model *model,
                                                       struct mlo_dataset **out, struct mlo_error *err);
/* Appends notes, in the form of a pass's, on inputs that are fed in a way that may not be meant
 * (mlo_dataset_feed_note), and on channels (dim 1) of float inputs that are the same number in the
 * whole set: they say nothing of what the model will see. */
MLO_MUST_USE enum mlo_status mlo_step_note_channels(const struct mlo_model *model,
                                                    struct mlo_dataset *dataset, json_t *notes,
                                                    struct mlo_error *err);
/* SHA-256 of all that the dataset feeds the model, normalised as it is; `labelled`: of the labels, groups and
 * postprocessing model too. What work that is kept goes by. */
MLO_MUST_USE enum mlo_status mlo_step_fed_digest(const struct mlo_model *model, struct mlo_dataset *dataset,
                                                 bool labelled, struct mlo_digest *out,
                                                 struct mlo_error *err);
/* Runs all of it through the model and adds what is wanted to `stats`; the step's progress goes from `from`
 * to `to`. */
MLO_MUST_USE enum mlo_status mlo_step_observe(const struct mlo_step_context *ctx,
                                              const struct mlo_model *model, struct mlo_dataset *dataset,
                                              const struct mlo_stats_wants *wants, int64_t samples,
                                              double from, double to, struct mlo_stats *stats,
                                              struct mlo_error *err);
/* The same for Gram matrices, with the option `samples` of the step: a Conv, which has hundreds of rows in
 * each image, is observed on 96 images, a Gemm and a Conv whose output is one position, which have one, on
 * all. */
MLO_MUST_USE enum mlo_status
mlo_step_observe_grams(const struct mlo_step_context *ctx, const struct mlo_model *model,
                       struct mlo_dataset *dataset, const struct mlo_stats_wants *wants, double from,
                       double to, struct mlo_stats *stats, struct mlo_error *err);
/* The same for a step's calibration, which may be long: goes on where an attempt before was, does one shard
 * of it, or reads what shards wrote, as the context says. `stats` comes in empty. */
MLO_MUST_USE enum mlo_status mlo_step_calibrate(const struct mlo_step_context *ctx,
                                                const struct mlo_model *model, struct mlo_dataset *dataset,
                                                const struct mlo_stats_wants *wants, double from, double to,
                                                struct mlo_stats *stats, struct mlo_error *err);
/* What a pass wants observed of the model with these (resolved) options. */
typedef enum mlo_status mlo_step_wanted_fn(const struct mlo_model *model, const json_t *options,
                                           struct mlo_stats_wants *wants, struct mlo_error *err);
/* The whole of a step that observes what its pass wants on the calibration data and runs it; `message` is
 * what progress says then. The data is checked also where nothing is wanted. */
MLO_MUST_USE enum mlo_status mlo_step_run_observed(const struct mlo_step_context *ctx, const char *pass,
                                                   mlo_step_wanted_fn *wanted, const char *message,
                                                   struct mlo_step_result *out, struct mlo_error *err);
/* What a step holds that folds a float model, observes it on calibration data, changes it, and keeps a report
 * of its own beside the passes'. Clear it in any case. */
struct mlo_step_changing {
    struct mlo_model *model;
    struct mlo_dataset *dataset;
    struct mlo_stats_wants wants;
    struct mlo_stats stats;
    struct mlo_pass_context pass;
    json_t *passes, *report; /* the driver's, the step's */
};
/* Loads the model and folds it by these passes. */
MLO_MUST_USE enum mlo_status mlo_step_changing_init(struct mlo_step_changing *c,
                                                    const struct mlo_step_context *ctx,
                                                    const char *const *names, size_t count,
                                                    struct mlo_error *err);
/* Observes what c->wants says; nothing without calibration data. */
MLO_MUST_USE enum mlo_status mlo_step_changing_observe(struct mlo_step_changing *c,
                                                       const struct mlo_step_context *ctx, double from,
                                                       double to, struct mlo_error *err);
/* The pass that changed the model, with its notes, behind those that folded it. */
MLO_MUST_USE enum mlo_status mlo_step_changing_note(struct mlo_step_changing *c, const char *pass,
                                                    struct mlo_error *err);
/* Saves the model, with c->report as the member `section` of the step's. */
MLO_MUST_USE enum mlo_status mlo_step_changing_save(struct mlo_step_changing *c,
                                                    const struct mlo_step_context *ctx, const char *section,
                                                    struct mlo_step_result *out, struct mlo_error *err);
void mlo_step_changing_clear(struct mlo_step_changing *c);
/* {"name": revision} of the passes that fold (there is room for one more in `names`) and of that one. */
MLO_MUST_USE enum mlo_status mlo_step_changing_passes(const char **names, size_t count, const char *pass,
                                                      json_t **out, struct mlo_error *err);

/* Full bias correction: layer by layer from the front, what quantization did to the means of a node's outputs
 * is taken off its bias. Appends to `report`, a driver's. */
MLO_MUST_USE enum mlo_status mlo_step_correct_biases(const struct mlo_step_context *ctx,
                                                     const struct mlo_model *source,
                                                     struct mlo_model *quantized, struct mlo_dataset *dataset,
                                                     double from, double to, json_t *report,
                                                     struct mlo_error *err);

/* Where the option accuracy_drop asks for it, chooses on the data of the role select which nodes are given
 * back, or follows the decision of the context: *options is a copy of the step's with these nodes (else
 * NULL), *decision what was chosen and why (decision.h); notes say which. `make` makes the model to judge.
 * The search is kept in the context's folder of checkpoints and in its decision_out after each mix. */
MLO_MUST_USE enum mlo_status mlo_step_choose_precision(const struct mlo_step_context *ctx,
                                                       const struct mlo_model *model,
                                                       struct mlo_dataset *dataset,
                                                       const struct mlo_stats *stats, mlo_mix_make_fn *make,
                                                       void *make_arg, json_t *notes, json_t **options,
                                                       json_t **decision, struct mlo_error *err);
/* What can be said of the budget before any work: its data, its form, its metric. */
MLO_MUST_USE enum mlo_status mlo_step_check_budget(const struct mlo_step_context *ctx, struct mlo_error *err);
/* Whether the option accuracy_drop asks for a choice. */
bool mlo_step_has_budget(const json_t *options);

/* A new observation with what every one has: subject, metric, params (borrowed), unit, estimate, protocol,
 * engine, machine. NULL when out of memory. */
json_t *mlo_step_observation(const char *subject, const char *metric, json_t *params, const char *unit,
                             const struct mlo_estimate *estimate, const char *protocol,
                             const struct mlo_engine *engine);
/* Adds "against": the comparison with the source, by "difference" or "ratio". false: out of memory. */
bool mlo_step_compare(json_t *observation, const char *kind, const struct mlo_estimate *estimate);

/* What the step benchmark does by its options: latency, throughput, memory and size as observations, beside
 * the source where it compares; `profiles`: where the time goes, too. */
MLO_MUST_USE enum mlo_status mlo_step_time(const struct mlo_step_context *ctx, bool profiles,
                                           struct mlo_step_result *out, struct mlo_error *err);
/* Appends where the variant's time goes as an observation "profile.total" (microseconds, the sum over its
 * nodes), whose samples are a file of the nodes as the engine's plan has them (profile.c), with the variant's
 * threads. Nothing where the engine cannot tell. */
MLO_MUST_USE enum mlo_status mlo_step_observe_profile(const struct mlo_step_context *ctx,
                                                      const struct mlo_bench_options *bench, json_t *params,
                                                      json_t *observations, struct mlo_error *err);

/* The engine that the option "engine" names. */
MLO_MUST_USE enum mlo_status mlo_step_engine(const struct mlo_step_context *ctx,
                                             const struct mlo_engine **out, struct mlo_error *err);
/* Whether the option compare_to is "source" and the variant is another file than the source. */
bool mlo_step_compares(const struct mlo_step_context *ctx);

/* Choices shared by steps that measure. */
extern const char *const mlo_step_compare_choices[];
extern const char *const mlo_step_engine_choices[];

/* Rows of option tables that several steps have; what they are for differs. */
#define MLO_STEP_OPT_METRICS                                                                                 \
    {                                                                                                        \
        .name = "metrics", .type = MLO_OPT_STRINGS, .fallback = "top1",                                      \
        .description = "names of the metric table"                                                           \
    }
#define MLO_STEP_OPT_SELECT_SAMPLES                                                                          \
    {                                                                                                        \
        .name = "samples", .type = MLO_OPT_INT, .fallback = "0", .min = 0, .max = 1 << 30,                   \
        .description = "the first so many of the data of the role select; 0: all"                            \
    }
#define MLO_STEP_OPT_BATCH(what)                                                                             \
    {                                                                                                        \
        .name = "batch", .type = MLO_OPT_INTS, .fallback = "1", .min = 1, .max = 4096, .description = what   \
    }
#define MLO_STEP_OPT_THREADS                                                                                 \
    {                                                                                                        \
        .name = "threads", .type = MLO_OPT_INT, .fallback = "1", .min = 1, .max = 1024,                      \
        .description = "threads of the engine"                                                               \
    }
#define MLO_STEP_OPT_SOURCE_THREADS                                                                          \
    {                                                                                                        \
        .name = "source_threads", .type = MLO_OPT_INT, .fallback = "0", .min = 0, .max = 1024,               \
        .description = "threads that the source is measured with; 0: the same"                               \
    }
#define MLO_STEP_OPT_COMPARE_TO(what)                                                                        \
    {                                                                                                        \
        .name = "compare_to", .type = MLO_OPT_STRING, .fallback = "none",                                    \
        .choices = mlo_step_compare_choices, .description = what                                             \
    }
#define MLO_STEP_OPT_SECONDS                                                                                 \
    {                                                                                                        \
        .name = "seconds", .type = MLO_OPT_FLOAT, .fallback = "1.5", .min = 0.05, .max = 3600,               \
        .description = "measuring time per model and batch size"                                             \
    }
#define MLO_STEP_OPT_ROUNDS                                                                                  \
    {                                                                                                        \
        .name = "rounds", .type = MLO_OPT_INT, .fallback = "6", .min = 2, .max = 1000,                       \
        .description = "processes per model and batch size"                                                  \
    }
/* What those options say, of a measurement on that engine; the batch is the caller's. */
struct mlo_bench_options mlo_step_bench_options(const struct mlo_step_context *ctx,
                                                const struct mlo_engine *engine);
/* A measurement on the engine "cuda" is made where there is a GPU. */
const char *mlo_step_engine_offer(const json_t *options, const char *target);
#define MLO_STEP_OPT_ENGINE                                                                                  \
    {                                                                                                        \
        .name = "engine", .type = MLO_OPT_STRING, .fallback = "cpu", .choices = mlo_step_engine_choices,     \
        .description = "the engine that runs the model"                                                      \
    }

#endif
