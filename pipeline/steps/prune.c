/* prune: takes channels, heads and neurons out of a float model, and fits what is behind them to what the
 * model made before. Constants, BatchNormalization and shapes are folded first: what is folded can be
 * followed. */
#include <string.h>

#include "pipeline/steps/refit.h"

static bool keeps_scales(const json_t *options)
{
    return strcmp(mlo_json_str(options, "criterion", "auto"), "bn-scale") == 0;
}

/* Scales of BatchNormalization stay where they rank. */
static size_t names_of(const json_t *options, const char *names[MLO_STEP_FOLDING])
{
    return mlo_step_folding(mlo_json_bool(options, "freeze_initializers", false),
                            keeps_scales(options) ? "fold-batchnorm" : NULL, names);
}

static bool reconstructs(const json_t *options)
{
    return strcmp(mlo_json_str(options, "reconstruct", "least-squares"), "none") != 0;
}

static enum mlo_status check_data(const struct mlo_step_context *ctx, const struct mlo_stats_wants *wants,
                                  struct mlo_error *err)
{
    const char *criterion = mlo_json_str(ctx->options, "criterion", "auto");
    if (ctx->calibrate_path)
        return MLO_OK;
    bool asked = strcmp(criterion, "auto") != 0 && wants->count > 0;
    if (!asked && !reconstructs(ctx->options))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "%s %s reads calibration data, and there is none",
                  asked ? "the criterion" : "reconstruction by",
                  asked ? criterion : mlo_json_str(ctx->options, "reconstruct", ""));
    mlo_error_where(err, "option '%s'", asked ? "criterion" : "reconstruct");
    mlo_error_hint(err,
                   "give data, or the criterion l2 and reconstruct: none, which do without and lose more "
                   "accuracy");
    return MLO_EINVAL;
}

/* Ranks, prunes and, where it is to, reconstructs. */
static enum mlo_status prune(const struct mlo_step_context *ctx, struct mlo_model *model,
                             struct mlo_dataset *dataset, const struct mlo_stats *stats,
                             struct mlo_pass_context *pass, json_t **report, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *source = NULL;
    struct mlo_prune_result result = {0};
    struct mlo_arena *arena = mlo_arena_new();
    json_t *layers = json_array();
    if (!arena || !layers) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_model_clone(model, &source, err));
    MLO_TRY(mlo_prune_model(model, ctx->options, stats, arena, pass, &result, err));
    if (reconstructs(ctx->options)) {
        const struct mlo_refit_request request = {
            .ctx = ctx,
            .source = source,
            .pruned = model,
            .result = &result,
            .dataset = dataset,
            .samples = mlo_json_i64(ctx->options, "samples", 512),
            .weights = strcmp(mlo_json_str(ctx->options, "reconstruct", ""), "bias") != 0,
            .damp = mlo_json_f64(ctx->options, "damp", 0),
            .from = 0.5,
            .to = 0.98,
        };
        MLO_TRY(mlo_step_refit(&request, layers, pass->notes, err));
    }
    *report = result.report;
    result.report = NULL;
    if (json_object_set(*report, "layers", layers) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(result.report);
    json_decref(layers);
    mlo_model_free(source);
    mlo_arena_free(arena);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_step_changing c = {0};
    struct mlo_pass_request last = {"remove-dead", NULL};
    struct mlo_pass_driver driver = {0};
    const char *names[MLO_STEP_FOLDING];
    MLO_TRY(mlo_step_changing_init(&c, ctx, names, names_of(ctx->options, names), err));
    MLO_TRY(mlo_prune_wanted(c.model, ctx->options, &c.wants, err));
    MLO_TRY(check_data(ctx, &c.wants, err));
    MLO_TRY(mlo_step_changing_observe(&c, ctx, 0.05, 0.4, err));
    mlo_step_progress(ctx, 0.4, "ranking channels");
    MLO_TRY(prune(ctx, c.model, c.dataset, &c.stats, &c.pass, &c.report, err));
    MLO_TRY(mlo_step_changing_note(&c, "prune", err));
    MLO_TRY(
        mlo_passes_run(c.model, &last, 1, &driver, err)); /* shapes that were computed and are stated now */
    MLO_TRY(mlo_step_changing_save(&c, ctx, "pruning", out, err));
out:
    mlo_step_changing_clear(&c);
    json_decref(driver.report);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    const char *names[MLO_STEP_FOLDING];
    return mlo_step_changing_passes(names, names_of(options, names), "prune", out, err);
}

const struct mlo_step mlo_step_prune = {
    .name = "prune",
    .kind = MLO_STEP_DERIVE,
    .revision = 2,
    .takes_calibrate = true,
    .options = mlo_prune_options,
    .run = run,
    .passes = passes,
    .description =
        "takes channels, heads and neurons out and fits the layers behind them on calibration data",
};
