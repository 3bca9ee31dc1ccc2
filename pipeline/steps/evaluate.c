/* evaluate: runs the variant (and the source, on the same samples) over evaluation data and reports metrics
 * with intervals; the comparison is paired. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    MLO_STEP_OPT_METRICS,
    MLO_STEP_OPT_COMPARE_TO("evaluate the source as well and compare on the same samples"),
    MLO_STEP_OPT_ENGINE,
    {NULL},
};

static const struct mlo_option_spec SCREEN_OPTIONS[] = {
    MLO_STEP_OPT_METRICS,
    MLO_STEP_OPT_SELECT_SAMPLES,
    MLO_STEP_OPT_COMPARE_TO("run the source as well and compare on the same samples"),
    MLO_STEP_OPT_ENGINE,
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
    mlo_outputs_free(s->outputs, s->output_count);
    mlo_model_free(s->model);
}

static enum mlo_status side_run(struct side *s, struct mlo_dataset *dataset, const struct mlo_engine *engine,
                                struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_run_options run = {.engine = engine, .threads = s->ctx->threads, .batch = s->ctx->batch};
    MLO_TRY(mlo_step_load(s->path, &s->model, err));
    MLO_TRY(mlo_dataset_check(dataset, s->model, err));
    MLO_TRY(
        mlo_run_evaluation(s->model, dataset, &run, &s->outputs, &s->output_count, side_progress, s, err));
out:
    if (status != MLO_OK)
        mlo_error_prefix(err, "evaluating the %s", s->subject);
    return status;
}

static enum mlo_status check_names(const json_t *names, struct mlo_error *err)
{
    struct mlo_metric_use metric;
    for (size_t i = 0; i < json_array_size(names); i++) {
        enum mlo_status status = mlo_metric_find(json_string_value(json_array_get(names, i)), &metric, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

/* What was recorded of each sample, as a file of the result: what the estimate was made of. */
static enum mlo_status save_scores(const struct mlo_step_context *ctx, const char *metric,
                                   const char *subject, const struct mlo_scores *scores, json_t *observation,
                                   struct mlo_error *err)
{
    char file[128];
    snprintf(file, sizeof file, "%s-%s.json", metric, subject);
    char *path = mlo_fs_join(ctx->out_dir, file, NULL);
    json_t *whole = mlo_scores_json(scores);
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    if (!path || !whole || json_object_set_new(whole, "metric", json_string(metric)) ||
        json_object_set_new(whole, "subject", json_string(subject))) {
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

/* Which data: screen has an option of its own. */
static const char *role_of(const struct mlo_step_context *ctx)
{
    return json_object_get(ctx->options, "samples") ? "select" : "evaluate";
}

/* What a number is of, beside the metric and the data: the recipe's postprocessing model (one of the
 * dataset's own is in the dataset's digest). */
static enum mlo_status params_of(const struct mlo_step_context *ctx, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE];
    const char *post = ctx->reading ? ctx->reading->postprocess : NULL;
    *out = json_object();
    if (post)
        MLO_TRY(mlo_digest_of_file(post, &digest, NULL, err));
    int64_t first = mlo_json_i64(ctx->options, "samples", 0); /* of fewer samples it is another number */
    if (!*out || (first && json_object_set_new(*out, "samples", json_integer(first)) != 0) ||
        (post && json_object_set_new(*out, "postprocess", json_string(mlo_digest_text(&digest, text))) != 0))
        status = mlo_error_nomem(err);
out:
    return status;
}

static enum mlo_status observe(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                               const struct mlo_metric_use *metric, const char *subject,
                               const struct mlo_scores *scores, const struct mlo_scores *paired_with,
                               json_t *observations, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_estimate estimate, difference;
    json_t *params = NULL, *o = NULL;
    MLO_TRY(params_of(ctx, &params, err));
    MLO_TRY(mlo_scores_estimate(scores, &estimate, err));
    o = mlo_step_observation(subject, metric->name, params, metric->row->unit, &estimate, MLO_EVAL_PROTOCOL,
                             engine);
    if (!o || json_object_set_new(o, "data_role", json_string(role_of(ctx)))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (paired_with) {
        MLO_TRY(mlo_scores_paired(scores, paired_with, &difference, err));
        if (!mlo_step_compare(o, "difference", &difference)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    MLO_TRY(save_scores(ctx, metric->name, subject, scores, o, err));
    if (json_array_append(observations, o))
        status = mlo_error_nomem(err);
out:
    json_decref(params);
    json_decref(o);
    return status;
}

static enum mlo_status measure(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                               const struct mlo_metric_use *metric, const struct side *variant,
                               const struct side *source, const struct mlo_metric_data *known,
                               json_t *observations, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_scores *a = NULL, *b = NULL;
    struct mlo_metric_data data = *known;
    bool compares = source && !(metric->row->needs & MLO_METRIC_REFERENCE);
    data.output = &variant->outputs[0];
    data.reference = source ? &source->outputs[0] : NULL;
    MLO_TRY(mlo_metric_score(metric, &data, &a, err));
    if (compares) {
        data.output = &source->outputs[0];
        MLO_TRY(mlo_metric_score(metric, &data, &b, err));
        MLO_TRY(observe(ctx, engine, metric, source->subject, b, NULL, observations, err));
    }
    MLO_TRY(observe(ctx, engine, metric, variant->subject, a, b, observations, err));
out:
    mlo_scores_free(a);
    mlo_scores_free(b);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine;
    struct mlo_dataset *dataset = NULL;
    bool compares = mlo_step_compares(ctx);
    struct side variant = {.subject = "variant",
                           .path = ctx->model_path,
                           .ctx = ctx,
                           .from = compares ? 0.5 : 0,
                           .share = compares ? 0.5 : 1};
    struct side source = {.subject = "source", .path = ctx->source_path, .ctx = ctx, .from = 0, .share = 0.5};
    const json_t *names = json_object_get(ctx->options, "metrics");
    struct mlo_tensor target = {0};
    out->observations = json_array();
    out->report = json_object();
    MLO_TRY(check_names(names, err));
    MLO_TRY(mlo_step_engine(ctx, &engine, err));
    bool screens = strcmp(role_of(ctx), "select") == 0;
    MLO_TRY(mlo_step_open_dataset(ctx, screens ? ctx->select_path : ctx->evaluate_path,
                                  mlo_json_i64(ctx->options, "samples", 0), &dataset, err));
    MLO_TRY(mlo_dataset_target(dataset, &target, err));
    if (compares)
        MLO_TRY(side_run(&source, dataset, engine, err));
    MLO_TRY(side_run(&variant, dataset, engine, err));
    struct mlo_metric_data known = {.target = target.data ? &target : NULL,
                                    .groups = mlo_dataset_groups(dataset)};
    for (size_t i = 0; i < json_array_size(names); i++) {
        struct mlo_metric_use metric;
        MLO_TRY(mlo_metric_find(json_string_value(json_array_get(names, i)), &metric, err));
        MLO_TRY(measure(ctx, engine, &metric, &variant, compares ? &source : NULL, &known, out->observations,
                        err));
    }
out:
    mlo_dataset_close(dataset);
    mlo_tensor_clear(&target);
    side_clear(&variant);
    side_clear(&source);
    return status;
}

const struct mlo_step mlo_step_evaluate = {
    .name = "evaluate",
    .kind = MLO_STEP_OBSERVE,
    .revision = 1,
    .needs_evaluate = true,
    .offer = mlo_step_engine_offer,
    .options = OPTIONS,
    .run = run,
    .description = "measures accuracy on evaluation data, paired with the source",
};

const struct mlo_step mlo_step_screen = {
    .name = "screen",
    .kind = MLO_STEP_OBSERVE,
    .revision = 1,
    .needs_select = true,
    .offer = mlo_step_engine_offer,
    .options = SCREEN_OPTIONS,
    .run = run,
    .description =
        "measures accuracy on data that selects, paired with the source: for a choice, not for gates",
};
