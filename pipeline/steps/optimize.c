/* optimize: folding and fusion that keep what the model computes. Needs no data. */
#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    {.name = "freeze_initializers",
     .type = MLO_OPT_BOOL,
     .fallback = "false",
     .description = "Weights that are listed as graph inputs too are made constants: nobody feeds others"},
    {NULL},
};

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_pass_request requests[MLO_STEP_FOLDING] = {0};
    const char *names[MLO_STEP_FOLDING];
    size_t count = mlo_step_folding(mlo_json_bool(ctx->options, "freeze_initializers", false), NULL, names);
    for (size_t i = 0; i < count; i++)
        requests[i].name = names[i];
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(mlo_step_check_size(model, err)); /* before any work: folding does not make weights fit */
    mlo_step_progress(ctx, 0.3, "folding and fusing");
    MLO_TRY(mlo_step_run_passes(ctx, model, requests, count, NULL, out, err));
out:
    mlo_model_free(model);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    const char *names[MLO_STEP_FOLDING];
    size_t count = mlo_step_folding(mlo_json_bool(options, "freeze_initializers", false), NULL, names);
    *out = mlo_step_pass_revisions(names, count);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

const struct mlo_step mlo_step_optimize = {
    .name = "optimize",
    .kind = MLO_STEP_DERIVE,
    .revision = 1,
    .options = OPTIONS,
    .run = run,
    .passes = passes,
    .description = "folds constants and BatchNormalization, removes what does nothing",
};
