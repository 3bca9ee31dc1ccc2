/* equalize and smooth: rewrite a float model so that it quantizes better; what it computes stays. */
#include "pipeline/steps/step_impl.h"

static enum mlo_status run_equalize(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                                    struct mlo_error *err)
{
    return mlo_step_run_observed(ctx, "equalize", mlo_equalize_wanted, "equalizing", out, err);
}

static enum mlo_status smooth_wanted(const struct mlo_model *model, const json_t *options,
                                     struct mlo_stats_wants *wants, struct mlo_error *err)
{
    MLO_UNUSED(options);
    return mlo_smooth_wanted(model, wants, err);
}

static enum mlo_status run_smooth(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                                  struct mlo_error *err)
{
    return mlo_step_run_observed(ctx, "smooth", smooth_wanted, "smoothing", out, err);
}

const struct mlo_step mlo_step_equalize = {
    .name = "equalize",
    .kind = MLO_STEP_DERIVE,
    .revision = 2,
    .needs_calibrate = true,
    .options = mlo_equalize_options,
    .run = run_equalize,
    .pass = "equalize",
    .description = "gives channels the same range of weights before and behind an activation",
};

const struct mlo_step mlo_step_smooth = {
    .name = "smooth",
    .kind = MLO_STEP_DERIVE,
    .revision = 2,
    .needs_calibrate = true,
    .options = mlo_smooth_options,
    .run = run_smooth,
    .pass = "smooth",
    .description = "moves outliers of matrix products' inputs into the weights",
};
