/* trial: what a search wants to know of a candidate, in one job: its metrics on data that selects (the step
 * screen), and its latency beside the source (what the step benchmark times; a search reads no profile). */
#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    MLO_STEP_OPT_METRICS,
    MLO_STEP_OPT_SELECT_SAMPLES,
    MLO_STEP_OPT_BATCH("batch sizes of latencies"),
    MLO_STEP_OPT_THREADS,
    MLO_STEP_OPT_SOURCE_THREADS,
    MLO_STEP_OPT_COMPARE_TO("judge and time the source as well, and compare"),
    MLO_STEP_OPT_ENGINE,
    MLO_STEP_OPT_SECONDS,
    MLO_STEP_OPT_ROUNDS,
    {NULL},
};

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_step_result timed = {0};
    MLO_TRY(mlo_step_screen.run(ctx, out, err));
    MLO_TRY(mlo_step_time(ctx, false, &timed, err));
    if (json_array_extend(out->observations, timed.observations) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_step_result_clear(&timed);
    return status;
}

const struct mlo_step mlo_step_trial = {
    .name = "trial",
    .kind = MLO_STEP_OBSERVE,
    .revision = 1,
    .needs_select = true,
    .exclusive = true,
    .offer = mlo_step_engine_offer,
    .options = OPTIONS,
    .run = run,
    .description = "what a search wants to know of a candidate: metrics on data that selects, and latency",
};
