/* quantize: observes the float model on calibration data, chooses ranges, and writes integer weights with
 * QuantizeLinear/DequantizeLinear (static quantization; Jacob et al. 2018, arXiv:1712.05877). */
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/step_impl.h"

enum { DEFAULT_BATCH = 16 };

struct feed {
    const struct mlo_step_context *ctx;
    const struct mlo_model *model;
    struct mlo_dataset *dataset;
    int64_t at;
};

/* Fills the engine's tensors; where fewer samples are left, the rest of the batch is not counted. */
static enum mlo_status next_batch(void *arg, int64_t batch, struct mlo_tensor *inputs, int64_t *got,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct feed *f = arg;
    int64_t count = mlo_dataset_count(f->dataset);
    *got = MLO_MIN(batch, count - f->at);
    if (*got <= 0)
        return MLO_OK;
    int slots = f->model->graph->input_count;
    struct mlo_tensor *read = calloc((size_t)slots + 1, sizeof *read);
    if (!read)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_dataset_read(f->dataset, f->model, f->at, *got, read, err));
    for (int i = 0; i < slots && read[i].data; i++) {
        if (read[i].size_bytes > inputs[i].size_bytes) {
            status = mlo_error_set(err, MLO_EINTERNAL, "input %d: %zu bytes read for a tensor of %zu", i,
                                   read[i].size_bytes, inputs[i].size_bytes);
            goto out;
        }
        memcpy(inputs[i].data, read[i].data, read[i].size_bytes);
    }
    f->at += *got;
    mlo_step_progress(f->ctx, 0.05 + 0.75 * (double)f->at / (double)count, "calibrating");
out:
    for (int i = 0; i < slots; i++)
        mlo_tensor_clear(&read[i]);
    free(read);
    return status;
}

/* What was observed and is worth keeping beside the artifact: extremes per tensor. */
static json_t *stats_summary(const struct mlo_stats *stats)
{
    json_t *out = json_array();
    for (size_t i = 0; i < stats->count; i++) {
        const struct mlo_tensor_stats *t = &stats->tensors[i];
        json_array_append_new(out, json_pack("{s:s,s:f,s:f,s:I}", "tensor", t->name, "min", (double)t->min,
                                             "max", (double)t->max, "samples", (json_int_t)t->samples));
    }
    return out;
}

static enum mlo_status calibrate(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                 struct mlo_dataset *dataset, const char *const *names, size_t count,
                                 struct mlo_stats *stats, struct mlo_error *err)
{
    enum mlo_status status;
    struct feed feed = {ctx, model, dataset, 0};
    struct mlo_model *fitted = NULL;
    int64_t batch;
    MLO_TRY(mlo_model_fixed_batch(model, &batch, err));
    if (!batch)
        batch = ctx->batch ? ctx->batch : DEFAULT_BATCH;
    MLO_TRY(mlo_dataset_fit(dataset, model, &fitted, err));
    MLO_TRY(mlo_engine_observe_stats(fitted ? fitted : model, names, count, batch, ctx->threads, next_batch,
                                     &feed, stats, err));
out:
    mlo_model_free(fitted);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    struct mlo_stats stats;
    struct mlo_arena *arena = mlo_arena_new();
    const char **names;
    size_t count;
    mlo_stats_init(&stats);
    if (!arena)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(mlo_quantize_wanted(model, ctx->options, arena, &names, &count, err));
    struct mlo_dataset_options data = {0};
    MLO_TRY(mlo_dataset_open(ctx->calibrate_path, &data, &dataset, err));
    MLO_TRY(mlo_dataset_check(dataset, model, err));
    if (mlo_dataset_count(dataset) == 0) {
        status = mlo_error_set(err, MLO_EINVAL, "the calibration set is empty");
        goto out;
    }
    mlo_step_progress(ctx, 0.05, "calibrating");
    MLO_TRY(calibrate(ctx, model, dataset, names, count, &stats, err));
    mlo_step_progress(ctx, 0.85, "quantizing");
    struct mlo_pass_request request = {"quantize", ctx->options};
    MLO_TRY(mlo_step_run_passes(ctx, model, &request, 1, &stats, out, err));
    if (json_object_set_new(out->report, "calibration", stats_summary(&stats)))
        status = mlo_error_nomem(err);
out:
    mlo_dataset_close(dataset);
    mlo_stats_clear(&stats);
    mlo_model_free(model);
    mlo_arena_free(arena);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    MLO_UNUSED(options);
    static const char *const NAMES[] = {"quantize"};
    *out = mlo_step_pass_revisions(NAMES, MLO_COUNT(NAMES));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

const struct mlo_step mlo_step_quantize = {
    .name = "quantize",
    .kind = MLO_STEP_DERIVE,
    .revision = 1,
    .needs_calibrate = true,
    .options = mlo_quantize_options,
    .run = run,
    .passes = passes,
    .description = "calibrates on data and makes a static int8 variant in QDQ form",
};
