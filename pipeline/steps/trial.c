/* trial: what a search wants to know of a candidate, in one job: its latency beside the source (what the step
 * benchmark times; a search reads no profile), and its metrics on data that selects (the step screen). */
#include <math.h>
#include <string.h>

#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    MLO_STEP_OPT_METRICS,
    MLO_STEP_OPT_SELECT_SAMPLES,
    {.name = "all_within",
     .type = MLO_OPT_FLOAT,
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .description = "or all, where that takes no more seconds, by the time that was measured of the source"},
    MLO_STEP_OPT_BATCH("batch sizes of latencies"),
    MLO_STEP_OPT_THREADS,
    MLO_STEP_OPT_SOURCE_THREADS,
    MLO_STEP_OPT_COMPARE_TO("judge and time the source as well, and compare"),
    MLO_STEP_OPT_ENGINE,
    MLO_STEP_OPT_SECONDS,
    MLO_STEP_OPT_ROUNDS,
    {NULL},
};

/* The time of one sample: the source's, which is the same for all that it is compared with, where it was
 * timed. */
static double sample_us(const struct mlo_step_context *ctx, const json_t *observations)
{
    const char *whose = mlo_step_compares(ctx) ? "source" : "variant";
    const json_t *seen;
    size_t i;
    json_array_foreach(observations, i, seen)
    {
        if (strcmp(mlo_json_str(seen, "subject", ""), whose) == 0 &&
            strcmp(mlo_json_str(seen, "metric", ""), "latency.p50") == 0)
            return mlo_json_f64(seen, "value", INFINITY) /
                   (double)mlo_json_i64(json_object_get(seen, "params"), "batch", 1);
    }
    return INFINITY;
}

/* A part of the data is judged on to save time: whether there is any to save. */
static enum mlo_status is_cheap(const struct mlo_step_context *ctx, const json_t *observations, bool *cheap,
                                struct mlo_error *err)
{
    struct mlo_dataset *dataset = NULL;
    double within = mlo_json_f64(ctx->options, "all_within", 0),
           each = sample_us(ctx, observations) * (mlo_step_compares(ctx) ? 2 : 1);
    *cheap = false;
    if (within == 0)
        return MLO_OK;
    enum mlo_status status = mlo_step_open_dataset(ctx, ctx->select_path, 0, &dataset, err);
    *cheap = status == MLO_OK && (double)mlo_dataset_count(dataset) * each <= within * 1e6;
    mlo_dataset_close(dataset);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_step_result timed = {0};
    struct mlo_step_context judges = *ctx;
    json_t *options = json_copy((json_t *)ctx->options);
    bool cheap;
    MLO_TRY(mlo_step_time(ctx, false, &timed, err));
    MLO_TRY(is_cheap(ctx, timed.observations, &cheap, err));
    if (!options || (cheap && json_object_set_new(options, "samples", json_integer(0)) != 0)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    judges.options = options;
    MLO_TRY(mlo_step_screen.run(&judges, out, err));
    if (json_array_extend(out->observations, timed.observations) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(options);
    mlo_step_result_clear(&timed);
    return status;
}

const struct mlo_step mlo_step_trial = {
    .name = "trial",
    .kind = MLO_STEP_OBSERVE,
    .revision = 2,
    .needs_select = true,
    .exclusive = true,
    .offer = mlo_step_engine_offer,
    .options = OPTIONS,
    .run = run,
    .description = "what a search wants to know of a candidate: metrics on data that selects, and latency",
};
