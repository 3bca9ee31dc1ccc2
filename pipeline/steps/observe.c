/* Running calibration data through a model, for the steps that observe it. */
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/step_impl.h"

enum { DEFAULT_BATCH = 16 };

struct feed {
    const struct mlo_step_context *ctx;
    const struct mlo_model *model;
    struct mlo_dataset *dataset;
    int64_t at, count;
    double from, to; /* of the step's progress */
};

/* Fills the engine's tensors; where fewer samples are left, the rest of the batch is not counted. */
static enum mlo_status next_batch(void *arg, int64_t batch, struct mlo_tensor *inputs, int64_t *got,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct feed *f = arg;
    *got = MLO_MIN(batch, f->count - f->at);
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
    mlo_step_progress(f->ctx, f->from + (f->to - f->from) * (double)f->at / (double)f->count, "calibrating");
out:
    for (int i = 0; i < slots; i++)
        mlo_tensor_clear(&read[i]);
    free(read);
    return status;
}

enum mlo_status mlo_step_open_calibration(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                          struct mlo_dataset **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_dataset_options data = {0};
    MLO_TRY(mlo_dataset_open(ctx->calibrate_path, &data, out, err));
    MLO_TRY(mlo_dataset_check(*out, model, err));
    if (mlo_dataset_count(*out) == 0)
        status = mlo_error_set(err, MLO_EINVAL, "the calibration set is empty");
out:
    return status;
}

enum mlo_status mlo_step_observe(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                 struct mlo_dataset *dataset, const struct mlo_stats_wants *wants,
                                 int64_t samples, double from, double to, struct mlo_stats *stats,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    struct feed feed = {ctx, model, dataset, 0, mlo_dataset_count(dataset), from, to};
    struct mlo_model *fitted = NULL;
    int64_t batch;
    if (samples)
        feed.count = MLO_MIN(feed.count, samples);
    MLO_TRY(mlo_model_fixed_batch(model, &batch, err));
    if (!batch)
        batch = ctx->batch ? ctx->batch : DEFAULT_BATCH;
    MLO_TRY(mlo_dataset_fit(dataset, model, &fitted, err));
    MLO_TRY(mlo_engine_observe_wants(fitted ? fitted : model, wants, batch, ctx->threads, next_batch, &feed,
                                     stats, err));
out:
    mlo_model_free(fitted);
    return status;
}

enum mlo_status mlo_step_run_observed(const struct mlo_step_context *ctx, const char *pass,
                                      mlo_step_wanted_fn *wanted, const char *message,
                                      struct mlo_step_result *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    struct mlo_stats_wants wants = {0};
    struct mlo_stats stats;
    struct mlo_pass_request request = {pass, ctx->options};
    mlo_stats_init(&stats);
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(wanted(model, ctx->options, &wants, err));
    MLO_TRY(mlo_step_open_calibration(ctx, model, &dataset, err));
    if (wants.count > 0)
        MLO_TRY(mlo_step_observe(ctx, model, dataset, &wants, 0, 0.05, 0.6, &stats, err));
    mlo_step_progress(ctx, 0.6, message);
    MLO_TRY(mlo_step_run_passes(ctx, model, &request, 1, &stats, out, err));
out:
    mlo_dataset_close(dataset);
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&stats);
    mlo_model_free(model);
    return status;
}
