/* tune: measures on a GPU which way to compute each step is the fastest, and compiles plans of the variant by
 * that. What it found is a decision: plans that follow from it are made again without measuring, and later
 * tunings and compilations in the project begin with it. */
#include <stdlib.h>

#include "engines/choices.h"
#include "pipeline/steps/decision.h"
#include "pipeline/steps/plans.h"

static const struct mlo_option_spec OPTIONS[] = {
    MLO_STEP_OPT_BATCH("batch sizes, each tuned and compiled"),
    MLO_STEP_OPT_THREADS,
    MLO_STEP_OPT_TARGET("a GPU by its compute capability, cuda:sm90; recipe: the recipe's"),
    {.name = "seconds",
     .type = MLO_OPT_FLOAT,
     .fallback = "600",
     .min = 1,
     .max = 864000,
     .description = "of measuring, over all batch sizes; steps that are left are computed as heuristics say"},
    {NULL},
};

/* A GPU of that very compute capability: one that only runs its code finds other ways fast, and is refused.
 */
static const char *offer(const json_t *options, const char *target)
{
    static const struct {
        int sm;
        const char *word;
    } known[] = {{70, "cuda:sm70" MLO_TARGET_EXACT},   {75, "cuda:sm75" MLO_TARGET_EXACT},
                 {80, "cuda:sm80" MLO_TARGET_EXACT},   {86, "cuda:sm86" MLO_TARGET_EXACT},
                 {87, "cuda:sm87" MLO_TARGET_EXACT},   {88, "cuda:sm88" MLO_TARGET_EXACT},
                 {89, "cuda:sm89" MLO_TARGET_EXACT},   {90, "cuda:sm90" MLO_TARGET_EXACT},
                 {100, "cuda:sm100" MLO_TARGET_EXACT}, {103, "cuda:sm103" MLO_TARGET_EXACT},
                 {110, "cuda:sm110" MLO_TARGET_EXACT}, {120, "cuda:sm120" MLO_TARGET_EXACT},
                 {121, "cuda:sm121" MLO_TARGET_EXACT}};
    const char *own = mlo_step_plan_target(options);
    own = own ? own : target;
    for (size_t i = 0; i < MLO_COUNT(known); i++)
        if (known[i].sm == mlo_cuda_target_sm(own))
            return known[i].word;
    return mlo_cuda_target_sm(own) ? own : "cuda"; /* one that is newer than this list runs nobody else's */
}

struct part {
    const struct mlo_step_context *ctx;
    double from, share;
};

static void part_progress(void *arg, double fraction, const char *message)
{
    const struct part *p = arg;
    mlo_step_progress(p->ctx, p->from + p->share * fraction, message);
}

/* Measures each batch size; *choices is of all of them. */
static enum mlo_status measure(struct mlo_step_planning *p, const char *target, json_t **choices,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_step_context *ctx = p->ctx;
    json_t *made = NULL;
    char *keep = ctx->checkpoint_dir ? mlo_fs_join(ctx->checkpoint_dir, "choices.json", NULL) : NULL;
    uint64_t begin = mlo_clock_ns();
    double seconds = mlo_json_f64(ctx->options, "seconds", 600);
    for (size_t i = 0; i < p->count; i++) {
        struct part part = {ctx, 0.8 * (double)i / (double)p->count, 0.8 / (double)p->count};
        double left = seconds - (double)(mlo_clock_ns() - begin) * 1e-9;
        struct mlo_compile_options options = {.batch = p->batches[i],
                                              .numerics = p->source.numerics,
                                              .threads = p->source.threads,
                                              .target = target};
        struct mlo_tuning_request request = {.seconds = MLO_MAX(left, 0.001),
                                             .known = *choices,
                                             .keep = keep,
                                             .progress = part_progress,
                                             .progress_arg = &part};
        MLO_TRY(p->engine->tune(p->model, &options, &request, &made, err));
        MLO_TRY(mlo_choices_check(made, "what was tuned", err));
        if (*choices && mlo_choices_same_machine(made, *choices))
            MLO_TRY(mlo_choices_merge(made, *choices, err));
        json_decref(*choices);
        *choices = made;
        made = NULL;
    }
out:
    json_decref(made);
    free(keep);
    return status;
}

static enum mlo_status keep_decision(const struct mlo_step_context *ctx, const struct mlo_digest *model,
                                     const json_t *choices, struct mlo_step_result *out,
                                     struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = MLO_OK;
    json_t *shared = mlo_choices_shareable(choices);
    json_t *decision = json_pack("{s:s, s:s, s:s, s:O}", "format", MLO_DECISION_FORMAT, "step", "tune",
                                 "model", mlo_digest_text(model, text), "choices", shared);
    out->decision_path = mlo_fs_join(ctx->out_dir, "decision.json", NULL);
    if (!decision || !out->decision_path)
        status = mlo_error_nomem(err);
    else
        status = mlo_decision_save(decision, out->decision_path, err);
    json_decref(decision);
    json_decref(shared);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine;
    struct mlo_step_planning planning = {0};
    const char *target = mlo_step_plan_target(ctx->options);
    json_t *choices = NULL, *decision = NULL;
    if (!target) {
        status = mlo_error_set(err, MLO_EINVAL, "the step tune has no target");
        mlo_error_where(err, "option 'target'");
        mlo_error_hint(err, "name a GPU, in the recipe (target: cuda:sm90) or in the step");
        goto out;
    }
    MLO_TRY(mlo_step_plan_engine(ctx->options, &engine, err));
    if (ctx->decision_path) { /* what is repeated is not measured again */
        MLO_TRY(mlo_decision_load(ctx, ctx->decision_path, "tune", &decision, err));
        choices = json_incref(json_object_get(decision, "choices"));
    } else {
        MLO_TRY(engine->probe(err));
        if (!engine->tune) {
            status =
                mlo_error_set(err, MLO_EUNSUPPORTED, "the engine '%s' has nothing to tune", engine->name);
            goto out;
        }
        MLO_TRY(mlo_step_known_choices(ctx, target, &choices, err));
    }
    MLO_TRY(mlo_step_planning_init(&planning, ctx, engine, err));
    if (!ctx->decision_path)
        MLO_TRY(measure(&planning, target, &choices, err));
    MLO_TRY(mlo_step_make_plans(&planning, choices, out, err));
    MLO_TRY(keep_decision(ctx, &planning.source.model, choices, out, err));
    if (json_object_set_new(out->report, "machine", json_incref(json_object_get(choices, "machine"))) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_step_planning_clear(&planning);
    json_decref(choices);
    json_decref(decision);
    return status;
}

const struct mlo_step mlo_step_tune = {
    .name = "tune",
    .kind = MLO_STEP_OBSERVE,
    .revision = 1,
    .exclusive = true,
    .makes_plans = true,
    .makes_decision = true,
    .reads_tunings = true,
    .offer = offer,
    .options = OPTIONS,
    .run = run,
    .description = "measures on a GPU how each step is computed fastest, and compiles signed plans by that",
};
