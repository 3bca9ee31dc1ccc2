/* What the steps that make plans share: `compile` and `tune`. */
#ifndef MLO_STEPS_PLANS_H
#define MLO_STEPS_PLANS_H

#include "pipeline/steps/step_impl.h"

/* The value of the option "target" that stands for the recipe's own, or for the machine that runs the step.
 */
#define MLO_STEP_TARGET_RECIPE "recipe"
#define MLO_STEP_OPT_TARGET(what)                                                                            \
    {                                                                                                        \
        .name = "target", .type = MLO_OPT_STRING, .fallback = MLO_STEP_TARGET_RECIPE, .description = what    \
    }

/* What the (resolved) option names: "cuda:sm90"; NULL: the processor of the machine that runs the step. */
const char *mlo_step_plan_target(const json_t *options);

/* The engine that compiles for the option's target, once it is known that it can here. */
MLO_MUST_USE enum mlo_status mlo_step_plan_engine(const json_t *options, const struct mlo_engine **out,
                                                  struct mlo_error *err);

/* A model, and the batch sizes that plans of it are for. */
struct mlo_step_planning {
    const struct mlo_step_context *ctx;
    const struct mlo_engine *engine;
    struct mlo_model *model;
    struct mlo_plan_source source; /* but for the batch */
    int64_t batches[64];
    size_t count;
};
/* Reads the model and the options "batch" and "threads". Clear it in any case. */
MLO_MUST_USE enum mlo_status mlo_step_planning_init(struct mlo_step_planning *p,
                                                    const struct mlo_step_context *ctx,
                                                    const struct mlo_engine *engine, struct mlo_error *err);
void mlo_step_planning_clear(struct mlo_step_planning *p);
/* Compiles a plan for each batch size, by these choices (NULL: the engine's own), and fills out->plans and
 * out->report: {"plans","target","steps","measured","note"?}. */
MLO_MUST_USE enum mlo_status mlo_step_make_plans(struct mlo_step_planning *p, const json_t *choices,
                                                 struct mlo_step_result *out, struct mlo_error *err);

/* The newest of the context's tunings that was measured on such a device; NULL: there is none. *out is yours.
 */
MLO_MUST_USE enum mlo_status mlo_step_known_choices(const struct mlo_step_context *ctx, const char *target,
                                                    json_t **out, struct mlo_error *err);

#endif
