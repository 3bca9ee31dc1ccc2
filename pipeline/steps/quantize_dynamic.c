/* quantize-dynamic: integer weights, and activations that become integers in every call; needs no data. */
#include "pipeline/steps/step_impl.h"

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    return mlo_step_run_unobserved(ctx, "quantize-dynamic", out, err);
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
