/* to-float16: weights and arithmetic in half floats. With calibration data, values that go beyond what a half
 * float holds are found and stay in float32; without, only weights are looked at. */
#include <string.h>

#include "pipeline/steps/step_impl.h"

/* Wants all float values that nodes make or the model is fed. */
static enum mlo_status want_floats(const struct mlo_graph *graph, struct mlo_stats_wants *wants,
                                   struct mlo_error *err)
{
    for (int v = 0; v < graph->value_count; v++) {
        const struct mlo_value *value = graph->values[v];
        const struct mlo_stats_want want = {.name = value->name, .histogram = true};
        if (value->type.dtype == MLO_FLOAT32 && !value->constant && (value->producer || value->is_input) &&
            !mlo_stats_wants_add(wants, &want))
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_stats stats;
    struct mlo_dataset *dataset = NULL;
    struct mlo_stats_wants wants = {0};
    bool half = strcmp(mlo_json_str(ctx->options, "type", "float16"), "float16") == 0;
    mlo_stats_init(&stats);
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(mlo_step_check_size(model, err));
    if (ctx->calibrate_path && half) { /* bfloat16 has the range of float32 */
        MLO_TRY(want_floats(model->graph, &wants, err));
        MLO_TRY(mlo_step_open_calibration(ctx, model, &dataset, err));
        MLO_TRY(mlo_step_observe(ctx, model, dataset, &wants, 0, 0.05, 0.8, &stats, err));
    }
    mlo_step_progress(ctx, 0.85, "converting");
    struct mlo_pass_request request = {"to-float16", ctx->options};
    MLO_TRY(mlo_step_run_passes(ctx, model, &request, 1, stats.count ? &stats : NULL, out, err));
    if (!ctx->calibrate_path)
        MLO_TRY(mlo_step_note_deviation(ctx, model, out, err));
out:
    mlo_stats_clear(&stats);
    mlo_model_free(model);
    mlo_dataset_close(dataset);
    mlo_stats_wants_clear(&wants);
    return status;
}

const struct mlo_step mlo_step_to_float16 = {
    .name = "to-float16",
    .kind = MLO_STEP_DERIVE,
    .revision = 1,
    .takes_calibrate = true,
    .options = mlo_to_float16_options,
    .run = run,
    .pass = "to-float16",
    .description = "computes in float16 or bfloat16, but what must stay in float32",
};
