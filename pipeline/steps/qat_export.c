/* qat-export: a model that was trained with fake quantization becomes one of integer weights for a target. */
#include <string.h>

#include "pipeline/steps/step_impl.h"

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    bool integer = strcmp(mlo_json_str(ctx->options, "form", "qdq"), "qoperator") == 0;
    const struct mlo_pass_request requests[] = {{"import-qat", ctx->options}, {"to-qoperator", NULL}};
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    mlo_step_progress(ctx, 0.2, "importing");
    MLO_TRY(mlo_step_run_passes(ctx, model, requests, integer ? 2 : 1, NULL, out, err));
out:
    mlo_model_free(model);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    static const char *const NAMES[] = {"import-qat", "to-qoperator"};
    bool integer = strcmp(mlo_json_str(options, "form", "qdq"), "qoperator") == 0;
    *out = mlo_step_pass_revisions(NAMES, integer ? 2 : 1);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

const struct mlo_step mlo_step_qat_export = {
    .name = "qat-export",
    .kind = MLO_STEP_DERIVE,
    .revision = 1,
    .options = mlo_import_qat_options,
    .run = run,
    .passes = passes,
    .description = "makes fake quantization of a training integer weights in pairs or integer operators",
};
