/* quantize-dynamic: integer weights, and activations that become integers in every call; needs no data. */
#include "pipeline/steps/step_impl.h"

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    const struct mlo_pass_request request = {"quantize-dynamic", ctx->options};
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    mlo_step_progress(ctx, 0.2, "quantizing weights");
    MLO_TRY(mlo_step_run_passes(ctx, model, &request, 1, NULL, out, err));
    mlo_step_progress(ctx, 0.6, "comparing outputs");
    MLO_TRY(mlo_step_note_deviation(ctx, model, out, err));
out:
    mlo_model_free(model);
    return status;
}

const struct mlo_step mlo_step_quantize_dynamic = {
    .name = "quantize-dynamic",
    .kind = MLO_STEP_DERIVE,
    .revision = 1,
    .options = mlo_quantize_dynamic_options,
    .run = run,
    .pass = "quantize-dynamic",
    .description = "makes weights integers, and what they multiply in every call; needs no data",
};
