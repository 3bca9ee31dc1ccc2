/* quantize: observes the float model on calibration data, chooses ranges, and writes integer weights with
 * QuantizeLinear/DequantizeLinear (static quantization; Jacob et al. 2018, arXiv:1712.05877). */
#include <string.h>

#include "pipeline/steps/decision.h"
#include "pipeline/steps/step_impl.h"

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

/* What the variant, and those that are judged on the way to it, are made of. */
struct material {
    const struct mlo_step_context *ctx;
    const struct mlo_model *source;
    const struct mlo_stats *stats;
    struct mlo_dataset *dataset;
    double from, to;         /* of the step's progress */
    struct mlo_model *model; /* the last one made; owned */
    json_t *options;         /* of that; owned */
    json_t *report;          /* the driver's of that; owned */
};

/* Full bias correction needs the quantized model to run, and pairs to work on: a model that is to have
 * integer ops gets them afterwards. */
static enum mlo_status correct(struct material *m, const json_t *options, struct mlo_model *model,
                               struct mlo_error *err)
{
    struct mlo_pass_driver last = {0};
    struct mlo_pass_request convert = {.name = "to-qoperator"};
    enum mlo_status status =
        mlo_step_correct_biases(m->ctx, m->source, model, m->dataset, m->from, m->to, m->report, err);
    if (status != MLO_OK || !mlo_quantize_makes_integer_ops(options))
        return status;
    status = mlo_passes_run(model, &convert, 1, &last, err);
    if (last.report && json_array_extend(m->report, last.report) != 0 && status == MLO_OK)
        status = mlo_error_nomem(err);
    json_decref(last.report);
    return status;
}

/* Runs the pass with these options, and what comes behind it, unless that is what was made last. */
static enum mlo_status make(struct material *m, const json_t *options, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_pass_driver driver = {.stats = m->stats};
    bool corrects = strcmp(mlo_json_str(options, "bias_correction", "none"), "full") == 0;
    if (m->model && json_equal(m->options, options))
        return MLO_OK;
    json_t *given = json_copy((json_t *)options);
    struct mlo_pass_request request = {"quantize", given};
    mlo_model_free(m->model);
    json_decref(m->options);
    json_decref(m->report);
    m->model = NULL;
    m->report = NULL;
    m->options = json_deep_copy(options);
    if (!given || !m->options || (corrects && json_object_set_new(given, "form", json_string("qdq")) != 0)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    /* What stays in float is the source's memory, which outlives what is made. */
    MLO_TRY(mlo_model_clone_borrowing(m->source, &m->model, err));
    status = mlo_passes_run(m->model, &request, 1, &driver, err);
    m->report = driver.report;
    if (status == MLO_OK && corrects)
        status = correct(m, options, m->model, err);
out:
    if (status != MLO_OK) {
        mlo_model_free(m->model);
        m->model = NULL;
    }
    json_decref(given);
    return status;
}

/* The same for the judge of a mix: a view of the model, which stays the last one made. */
static enum mlo_status make_view(void *arg, const json_t *options, struct mlo_model **out,
                                 struct mlo_error *err)
{
    struct material *m = arg;
    const struct mlo_step_context *told = m->ctx;
    struct mlo_step_context quiet = *told; /* one mix of many is not how far the step is */
    quiet.progress = NULL;
    m->ctx = &quiet;
    enum mlo_status status = make(m, options, err);
    m->ctx = told;
    return status == MLO_OK ? mlo_model_clone_borrowing(m->model, out, err) : status;
}

/* Keeps the decision beside the artifact. */
static enum mlo_status save_decision(const struct mlo_step_context *ctx, json_t *decision,
                                     struct mlo_step_result *out, struct mlo_error *err)
{
    if (!decision)
        return MLO_OK;
    if (json_object_set(out->report, "mixed_precision", decision) != 0 ||
        !(out->decision_path = mlo_fs_join(ctx->out_dir, "decision.json", NULL)))
        return mlo_error_nomem(err);
    return mlo_decision_save(decision, out->decision_path, err);
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    struct material material = {0};
    struct mlo_stats stats;
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_stats_wants wants = {0};
    json_t *notes = json_array(), *options = NULL, *decision = NULL, *noisy = NULL;
    mlo_stats_init(&stats);
    if (!arena || !notes) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_step_check_budget(ctx, err));
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(mlo_quantize_wants(model, ctx->options, arena, &wants, err));
    MLO_TRY(mlo_step_open_calibration(ctx, model, &dataset, err));
    MLO_TRY(mlo_step_note_channels(model, dataset, notes, err));
    mlo_step_progress(ctx, 0.05, "calibrating");
    double observed = mlo_step_has_budget(ctx->options) ? 0.3 : 0.8;
    MLO_TRY(mlo_step_calibrate(ctx, model, dataset, &wants, 0.05, ctx->shards ? 1 : observed, &stats, err));
    if (ctx->shards) { /* what these are for is made where all of them are */
        MLO_TRY(mlo_stats_save(&stats, ctx->statistics_out, err));
        out->report = json_pack("{s:s,s:O}", "statistics", ctx->statistics_out, "notes", notes);
        status = out->report ? MLO_OK : mlo_error_nomem(err);
        goto out;
    }
    material = (struct material){ctx, model, &stats, dataset, 0.65, 0.85, NULL, NULL, NULL};
    MLO_TRY(mlo_step_choose_precision(ctx, model, dataset, &stats, make_view, &material, notes, &options,
                                      &decision, err));
    MLO_TRY(mlo_quantize_noisy(model, options ? options : ctx->options, &stats, &noisy, err));
    mlo_step_progress(ctx, 0.85, "quantizing");
    material.from = 0.85;
    material.to = 0.98;
    MLO_TRY(make(&material, options ? options : ctx->options, err));
    MLO_TRY(mlo_step_save(ctx, material.model, material.report, out, err));
    if (json_object_set_new(out->report, "calibration", stats_summary(&stats)) ||
        json_object_set(out->report, "notes", notes) || json_object_set(out->report, "noisy", noisy)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(save_decision(ctx, decision, out, err));
out:
    mlo_dataset_close(dataset);
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&stats);
    mlo_model_free(material.model); /* borrows from the other */
    mlo_model_free(model);
    mlo_arena_free(arena);
    json_decref(notes);
    json_decref(options);
    json_decref(decision);
    json_decref(noisy);
    json_decref(material.options);
    json_decref(material.report);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    MLO_UNUSED(options);
    static const char *const NAMES[] = {"quantize", "to-qoperator", "correct-bias", "to-float16"};
    *out = mlo_step_pass_revisions(NAMES, MLO_COUNT(NAMES));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

const struct mlo_step mlo_step_quantize = {
    .name = "quantize",
    .kind = MLO_STEP_DERIVE,
    .revision = 7,
    .needs_calibrate = true,
    .shards = true,
    .selects = mlo_step_has_budget,
    .options = mlo_quantize_options,
    .run = run,
    .passes = passes,
    .description = "calibrates on data and makes a static variant of 8 bits for a target runtime",
};
