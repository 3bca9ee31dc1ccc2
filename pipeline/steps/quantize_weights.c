/* quantize-weights: weights alone in 8 or 4 bits, rounded to the nearest; needs no data. round-weights: the
 * same with data, whose inputs choose the integers (GPTQ, AdaRound). */
#include <string.h>

#include "pipeline/steps/step_impl.h"

static enum mlo_status run_nearest(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                                   struct mlo_error *err)
{
    const char *rounding = mlo_json_str(ctx->options, "rounding", "nearest");
    if (strcmp(rounding, "nearest") != 0) {
        mlo_error_set(err, MLO_EINVAL, "rounding by %s observes data, and this step has none", rounding);
        mlo_error_where(err, "option 'rounding'");
        mlo_error_hint(err, "the step round-weights takes the same options, and data for calibration");
        return MLO_EINVAL;
    }
    return mlo_step_run_unobserved(ctx, "quantize-weights", out, err);
}

static enum mlo_status run_observed(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                                    struct mlo_error *err)
{
    return mlo_step_run_observed(ctx, "quantize-weights", mlo_quantize_weights_wanted, "rounding weights",
                                 out, err);
}

const struct mlo_step mlo_step_quantize_weights = {
    .name = "quantize-weights",
    .kind = MLO_STEP_DERIVE,
    .revision = 1,
    .options = mlo_quantize_weights_options,
    .run = run_nearest,
    .pass = "quantize-weights",
    .description = "makes weights alone integers of 8 or 4 bits; needs no data",
};

const struct mlo_step mlo_step_round_weights = {
    .name = "round-weights",
    .kind = MLO_STEP_DERIVE,
    .revision = 1,
    .needs_calibrate = true,
    .options = mlo_quantize_weights_options,
    .run = run_observed,
    .pass = "quantize-weights",
    .description = "makes weights alone integers of 8 or 4 bits, chosen by what calibration data feeds them",
};
