/* evaluate: runs the variant (and the source, on the same samples) over evaluation data and reports metrics
 * with intervals; the comparison is paired. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    {.name = "metrics",
     .type = MLO_OPT_STRINGS,
     .fallback = "top1",
     .description = "names of the metric table"},
    {.name = "compare_to",
     .type = MLO_OPT_STRING,
     .fallback = "none",
     .choices = mlo_step_compare_choices,
     .description = "evaluate the source as well and compare on the same samples"},
    {.name = "engine",
     .type = MLO_OPT_STRING,
     .fallback = "cpu",
     .choices = mlo_step_engine_choices,
     .description = "the engine that runs the model"},
    {NULL},
};

/* One model run over the whole dataset. */
struct side {
    const char *subject, *path;
    struct mlo_model *model;
    struct mlo_tensor *outputs;
    int output_count;
    double from, share; /* its part of the progress */
    const struct mlo_step_context *ctx;
};

static void side_progress(void *arg, double fraction, const char *message)
{
    const struct side *s = arg;
    mlo_step_progress(s->ctx, s->from + s->share * fraction, message);
}

static void side_clear(struct side *s)
{
    for (int i = 0; i < s->output_count && s->outputs; i++)
        mlo_tensor_clear(&s->outputs[i]);
    free(s->outputs);
    mlo_model_free(s->model);
}

static enum mlo_status side_run(struct side *s, struct mlo_dataset *dataset, const struct mlo_engine *engine,
                                struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_run_options run = {.engine = engine, .threads = s->ctx->threads, .batch = s->ctx->batch};
    MLO_TRY(mlo_step_load(s->path, &s->model, err));
    MLO_TRY(mlo_dataset_check(dataset, s->model, err));
    s->output_count = s->model->graph->output_count;
    s->outputs = calloc((size_t)s->output_count, sizeof *s->outputs);
    if (!s->outputs)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_run_dataset(s->model, dataset, &run, s->outputs, side_progress, s, err));
out:
    if (status != MLO_OK)
        mlo_error_prefix(err, "evaluating the %s", s->subject);
    return status;
}

static enum mlo_status check_names(const json_t *names, struct mlo_error *err)
{
    const struct mlo_metric *metric;
    for (size_t i = 0; i < json_array_size(names); i++) {
        enum mlo_status status = mlo_metric_find(json_string_value(json_array_get(names, i)), &metric, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

/* The per-sample scores as a file of the result: what the estimate was made of. */
static enum mlo_status save_scores(const struct mlo_step_context *ctx, const struct mlo_metric *metric,
                                   const char *subject, const double *scores, int64_t n, json_t *observation,
                                   struct mlo_error *err)
{
    char file[128];
    snprintf(file, sizeof file, "%s-%s.json", metric->name, subject);
    char *path = mlo_fs_join(ctx->out_dir, file, NULL);
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(list, json_real(scores[i]));
    json_t *whole = json_pack("{s:s,s:s,s:o}", "metric", metric->name, "subject", subject, "scores", list);
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    if (!path || !whole) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_json_canonical(whole, &text);
    MLO_TRY(mlo_fs_write_atomic(path, mlo_buf_str(&text), text.len, err));
    if (json_object_set_new(observation, "samples", json_string(path)))
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&text);
    json_decref(whole);
    free(path);
    return status;
}

static enum mlo_status observe(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                               const struct mlo_metric *metric, const struct side *side, const double *scores,
                               const double *paired_with, int64_t n, json_t *observations,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_estimate estimate, difference;
    json_t *params = json_object();
    mlo_estimate_mean(scores, n, metric->proportion, &estimate);
    json_t *o = mlo_step_observation(side->subject, metric->name, params, metric->unit, &estimate,
                                     MLO_EVAL_PROTOCOL, engine);
    if (!o || json_object_set_new(o, "data_role", json_string("evaluate"))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (paired_with) {
        mlo_estimate_paired(scores, paired_with, n, metric->proportion, &difference);
        if (!mlo_step_compare(o, "difference", &difference)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    MLO_TRY(save_scores(ctx, metric, side->subject, scores, n, o, err));
    if (json_array_append(observations, o))
        status = mlo_error_nomem(err);
out:
    json_decref(params);
    json_decref(o);
    return status;
}

static enum mlo_status measure(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                               const struct mlo_metric *metric, const struct side *variant,
                               const struct side *source, const struct mlo_dataset *dataset,
                               json_t *observations, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t n = mlo_dataset_count(dataset);
    const int64_t *labels = mlo_dataset_labels(dataset);
    double *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b);
    if (!a || !b) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (metric->needs_labels && !labels) {
        status = mlo_error_set(err, MLO_EINVAL, "the metric '%s' needs labels, and the dataset has none",
                               metric->name);
        mlo_error_hint(err, "add an array 'y' with one label a sample to the dataset");
        goto out;
    }
    if (metric->needs_reference && !source) {
        status = mlo_error_set(err, MLO_EINVAL, "the metric '%s' compares with another model's outputs",
                               metric->name);
        mlo_error_hint(err, "set compare_to: source in the step 'evaluate'");
        goto out;
    }
    const struct mlo_tensor *reference = metric->needs_reference ? &source->outputs[0] : NULL;
    MLO_TRY(metric->scores(&variant->outputs[0], labels, reference, a, err));
    if (source && !metric->needs_reference) {
        MLO_TRY(metric->scores(&source->outputs[0], labels, NULL, b, err));
        MLO_TRY(observe(ctx, engine, metric, source, b, NULL, n, observations, err));
        MLO_TRY(observe(ctx, engine, metric, variant, a, b, n, observations, err));
    } else {
        MLO_TRY(observe(ctx, engine, metric, variant, a, NULL, n, observations, err));
    }
out:
    free(a);
    free(b);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine;
    struct mlo_dataset *dataset = NULL;
    struct mlo_dataset_options data = {0};
    bool compares = mlo_step_compares(ctx);
    struct side variant = {.subject = "variant",
                           .path = ctx->model_path,
                           .ctx = ctx,
                           .from = compares ? 0.5 : 0,
                           .share = compares ? 0.5 : 1};
    struct side source = {.subject = "source", .path = ctx->source_path, .ctx = ctx, .from = 0, .share = 0.5};
    const json_t *names = json_object_get(ctx->options, "metrics");
    out->observations = json_array();
    out->report = json_object();
    MLO_TRY(check_names(names, err));
    MLO_TRY(mlo_step_engine(ctx, &engine, err));
    MLO_TRY(mlo_dataset_open(ctx->evaluate_path, &data, &dataset, err));
    if (compares)
        MLO_TRY(side_run(&source, dataset, engine, err));
    MLO_TRY(side_run(&variant, dataset, engine, err));
    for (size_t i = 0; i < json_array_size(names); i++) {
        const struct mlo_metric *metric;
        MLO_TRY(mlo_metric_find(json_string_value(json_array_get(names, i)), &metric, err));
        MLO_TRY(measure(ctx, engine, metric, &variant, compares ? &source : NULL, dataset, out->observations,
                        err));
    }
out:
    mlo_dataset_close(dataset);
    side_clear(&variant);
    side_clear(&source);
    return status;
}

const struct mlo_step mlo_step_evaluate = {
    .name = "evaluate",
    .kind = MLO_STEP_OBSERVE,
    .revision = 1,
    .needs_evaluate = true,
    .options = OPTIONS,
    .run = run,
    .description = "measures accuracy on evaluation data, paired with the source",
};
