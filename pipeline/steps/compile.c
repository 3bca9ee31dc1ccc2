/* compile: a plan of the variant for the machine that runs this step, or for a GPU that need not be there. It
 * is an accelerator beside the variant: who has another machine compiles the variant there. */
#include "pipeline/steps/plans.h"

static const struct mlo_option_spec OPTIONS[] = {
    MLO_STEP_OPT_BATCH("batch sizes, a plan for each"),
    MLO_STEP_OPT_THREADS,
    MLO_STEP_OPT_TARGET("a GPU by its compute capability, cuda:sm90; recipe: the recipe's where that is one, "
                        "else the processor of the worker"),
    {NULL},
};

static const char *offer(const json_t *options, const char *target)
{
    (void)target;
    return mlo_step_plan_target(options) ? MLO_TARGET_COMPILE_CUDA : NULL;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine;
    struct mlo_step_planning planning = {0};
    const char *target = mlo_step_plan_target(ctx->options);
    json_t *choices = NULL;
    MLO_TRY(mlo_step_plan_engine(ctx->options, &engine, err));
    if (target)
        MLO_TRY(mlo_step_known_choices(ctx, target, &choices, err));
    MLO_TRY(mlo_step_planning_init(&planning, ctx, engine, err));
    MLO_TRY(mlo_step_make_plans(&planning, choices, out, err));
out:
    mlo_step_planning_clear(&planning);
    json_decref(choices);
    return status;
}

const struct mlo_step mlo_step_compile = {
    .name = "compile",
    .kind = MLO_STEP_OBSERVE,
    .revision = 2,
    .makes_plans = true,
    .reads_tunings = true,
    .offer = offer,
    .options = OPTIONS,
    .run = run,
    .description = "compiles the variant into a signed plan for the worker's kind of machine, or for a GPU",
};
