/* optimize: folding and fusion that keep what the model computes. Needs no data. */
#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {{NULL}};

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_pass_request *requests = NULL;
    struct mlo_arena *arena = mlo_arena_new();
    size_t count;
    const char *const *names = mlo_passes_optimize(&count);
    requests = arena ? mlo_arena_calloc(arena, count, sizeof *requests) : NULL;
    if (!requests) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        requests[i].name = names[i];
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    mlo_step_progress(ctx, 0.3, "folding and fusing");
    MLO_TRY(mlo_step_run_passes(ctx, model, requests, count, NULL, out, err));
out:
    mlo_model_free(model);
    mlo_arena_free(arena);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    MLO_UNUSED(options);
    size_t count;
    const char *const *names = mlo_passes_optimize(&count);
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
