/* prune: takes channels, heads and neurons out of a float model, and fits what is behind them to what the
 * model made before. Constants, BatchNormalization and shapes are folded first: what is folded can be
 * followed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/refit.h"

static bool keeps_scales(const json_t *options)
{
    return strcmp(mlo_json_str(options, "criterion", "auto"), "bn-scale") == 0;
}

/* Scales of BatchNormalization stay where they rank. */
static size_t names_of(const json_t *options, const char *names[MLO_STEP_FOLDING])
{
    return mlo_step_folding(mlo_json_bool(options, "freeze_initializers", false),
                            keeps_scales(options) ? "fold-batchnorm" : NULL, names);
}

static bool reconstructs(const json_t *options)
{
    return strcmp(mlo_json_str(options, "reconstruct", "least-squares"), "none") != 0;
}

/* Where ratios follow from errors, and layers are fitted, it is tried what errors do to the outputs. */
static bool weighs(const json_t *options)
{
    return reconstructs(options) && strcmp(mlo_json_str(options, "ratios", ""), "sensitivity") == 0;
}

static enum mlo_status check_data(const struct mlo_step_context *ctx, const struct mlo_stats_wants *wants,
                                  struct mlo_error *err)
{
    const char *criterion = mlo_json_str(ctx->options, "criterion", "auto");
    if (ctx->calibrate_path)
        return MLO_OK;
    bool asked = strcmp(criterion, "auto") != 0 && wants->count > 0;
    if (!asked && !reconstructs(ctx->options))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "%s %s reads calibration data, and there is none",
                  asked ? "the criterion" : "reconstruction by",
                  asked ? criterion : mlo_json_str(ctx->options, "reconstruct", ""));
    mlo_error_where(err, "option '%s'", asked ? "criterion" : "reconstruct");
    mlo_error_hint(err,
                   "give data, or the criterion l2 and reconstruct: none, which do without and lose more "
                   "accuracy");
    return MLO_EINVAL;
}

static int64_t samples_asked(const struct mlo_step_context *ctx)
{
    return mlo_json_i64(ctx->options, "samples", 512);
}

static struct mlo_refit_request refit_request(const struct mlo_step_context *ctx)
{
    return (struct mlo_refit_request){
        .ctx = ctx,
        .samples = samples_asked(ctx),
        .weights = strcmp(mlo_json_str(ctx->options, "reconstruct", ""), "bias") != 0,
        .damp = mlo_json_f64(ctx->options, "damp", 0),
    };
}

/* --- what a group's errors weigh ------------------------------------------------------------------- */

/* A probe is judged by samples that nothing was fitted on: a layer that reads more than it sees rows makes
 * those rows good, whatever went, and no others. */
enum {
    PROBE_SAMPLES =
        128,         /* that judge a probe, and that the rows of its fit come from, where each has enough */
    PROBE_SHARE = 4, /* of all that are there, one in so many judges at most */
};

/* Of what the criterion says of all of a group: where less goes there is nothing to divide by but rounding.
 */
static const double ERROR_LEAST = 1e-9;
/* So much more than any other group weighs one without half of which outputs are no numbers. */
static const double RUINOUS = 1e6;

/* The squared difference of float outputs, as a share of what each varies by; the mean over them. Infinite
 * where one is no number any more, NaN where none can tell. */
static double outputs_error(const struct mlo_tensor *was, const struct mlo_tensor *now, int count)
{
    double sum = 0;
    int counted = 0;
    for (int o = 0; o < count; o++) {
        const float *x = was[o].data, *y = now[o].data;
        size_t n = mlo_tensor_count(&was[o]);
        double mean = 0, varies = 0, error = 0;
        if (was[o].dtype != MLO_FLOAT32 || mlo_tensor_count(&now[o]) != n)
            continue;
        for (size_t i = 0; i < n; i++)
            mean += (double)x[i] / (double)n;
        for (size_t i = 0; i < n; i++) {
            double d = (double)x[i] - (double)y[i], v = (double)x[i] - mean;
            error += d * d;
            varies += v * v;
        }
        if (!(varies > 0) || !isfinite(varies))
            continue;
        if (!isfinite(error))
            return INFINITY;
        sum += error / varies;
        counted++;
    }
    return counted ? sum / counted : NAN;
}

struct probing {
    const struct mlo_step_context *ctx;
    struct mlo_model *model;
    struct mlo_dataset *dataset;
    struct mlo_prune_ranking *ranking;
    struct mlo_run_options run;
    struct mlo_tensor *reference, *outputs;
    int count; /* of outputs */
};

static int64_t judging(const struct mlo_step_context *ctx, const struct mlo_dataset *dataset)
{
    int64_t there = MLO_MIN(samples_asked(ctx), mlo_dataset_count(dataset));
    return MLO_MAX(MLO_MIN(PROBE_SAMPLES, there / PROBE_SHARE), MLO_MIN(there, 2));
}

/* As mlo_run_dataset; *told is why it cannot be told what the outputs are. */
static enum mlo_status outputs_of(const struct probing *b, const struct mlo_model *model,
                                  struct mlo_tensor *outputs, struct mlo_error *told, struct mlo_error *err)
{
    *told = (struct mlo_error){0};
    enum mlo_status status = mlo_run_dataset(model, b->dataset, &b->run, outputs, NULL, NULL, told);
    if (status == MLO_EUNSUPPORTED || status == MLO_ETOOBIG)
        return MLO_OK;
    if (status != MLO_OK && err)
        *err = *told;
    *told = (struct mlo_error){0};
    return status;
}

/* Half of a group goes, alone; what reads it is fitted. *weight is what that does to the outputs for each
 * unit of the criterion's error; NaN where it cannot be told. */
static enum mlo_status probe(struct probing *b, int g, double *weight, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *copy = NULL;
    struct mlo_prune_result result;
    struct mlo_refit_request request = refit_request(b->ctx);
    struct mlo_arena *arena = mlo_arena_new();
    json_t *layers = json_array(), *notes = json_array();
    struct mlo_error told;
    const struct mlo_prune_group *group = &b->ranking->groups[g];
    double error;
    *weight = NAN;
    if (!arena || !layers || !notes) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_model_clone(b->model, &copy, err));
    MLO_TRY(mlo_prune_probe(copy, b->ctx->options, b->ranking, g, arena, &result, &error, err));
    if (!(error > ERROR_LEAST * group->error[group->count]))
        goto out;
    request.source = b->model;
    request.pruned = copy;
    request.result = &result;
    request.dataset = b->dataset;
    request.first = b->run.samples;
    request.samples -= request.first;
    request.probe = PROBE_SAMPLES;
    MLO_TRY(mlo_step_refit(&request, layers, notes, err));
    MLO_TRY(outputs_of(b, copy, b->outputs, &told, err));
    if (!*told.message)
        *weight = outputs_error(b->reference, b->outputs, b->count) / error;
    for (int i = 0; i < b->count; i++)
        mlo_tensor_clear(&b->outputs[i]);
out:
    json_decref(layers);
    json_decref(notes);
    mlo_model_free(copy);
    mlo_arena_free(arena);
    return status;
}

/* Weights on one scale: a group that no probe could tell of is as the others are. */
static void settle(struct mlo_prune_ranking *ranking, const double *weights)
{
    double sum = 0, most = 0;
    int known = 0;
    for (int g = 0; g < ranking->count; g++)
        if (isfinite(weights[g])) {
            sum += weights[g];
            most = MLO_MAX(most, weights[g]);
            known++;
        }
    for (int g = 0; g < ranking->count; g++)
        ranking->groups[g].weight = isfinite(weights[g]) ? weights[g]
                                    : isinf(weights[g])  ? RUINOUS * (most > 0 ? most : 1)
                                    : sum > 0            ? sum / known
                                                         : 1;
}

/* What the criterion calls the same error is not the same to the model: one layer's drowns, another's is what
 * is left at the outputs. So each group is tried alone. */
static enum mlo_status weigh(const struct mlo_step_context *ctx, struct mlo_model *model,
                             struct mlo_dataset *dataset, struct mlo_prune_ranking *ranking, json_t *notes,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int count = model->graph->output_count;
    struct probing b = {.ctx = ctx,
                        .model = model,
                        .dataset = dataset,
                        .ranking = ranking,
                        .run = {.threads = ctx->threads,
                                .batch = ctx->batch,
                                .numerics = MLO_NUMERICS_INVARIANT,
                                .samples = judging(ctx, dataset)},
                        .count = count};
    struct mlo_error told;
    struct mlo_tensor *all = calloc(2 * (size_t)count + 1, sizeof *all);
    double *weights = calloc((size_t)ranking->count + 1, sizeof *weights);
    if (!all || !weights) {
        status = mlo_error_nomem(err);
        goto out;
    }
    b.reference = all;
    b.outputs = all + count;
    MLO_TRY(outputs_of(&b, model, b.reference, &told, err));
    if (*told.message) { /* ratios follow from errors alone then */
        json_array_append_new(notes, json_pack("{s:s,s:s+}", "node", "", "note",
                                               "errors of all groups count alike, what outputs suffer is "
                                               "not tried: ",
                                               told.message));
        goto out;
    }
    bool any = false;
    for (int g = 0; g < ranking->count; g++) {
        mlo_step_progress(ctx, 0.42 + 0.1 * g / ranking->count, "trying each group");
        MLO_TRY(probe(&b, g, &weights[g], err));
        any = any || !isnan(weights[g]);
    }
    if (!any)
        json_array_append_new(notes,
                              json_pack("{s:s,s:s}", "node", "", "note",
                                        "errors of all groups count alike: no group could be tried, or "
                                        "the model's outputs do not vary"));
    settle(ranking, weights);
out:
    for (int i = 0; all && i < count; i++)
        mlo_tensor_clear(&all[i]);
    free(all);
    free(weights);
    return status;
}

/* Ranks, prunes and, where it is to, reconstructs. */
static enum mlo_status prune(const struct mlo_step_context *ctx, struct mlo_model *model,
                             struct mlo_dataset *dataset, const struct mlo_stats *stats,
                             const struct mlo_prune_turned *turned, struct mlo_pass_context *pass,
                             json_t **report, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *source = NULL;
    struct mlo_prune_result result = {0};
    struct mlo_prune_ranking ranking;
    struct mlo_arena *arena = mlo_arena_new();
    json_t *layers = json_array();
    if (!arena || !layers) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_prune_rank_model(model, ctx->options, stats, turned, arena, pass, &ranking, err));
    if (weighs(ctx->options))
        MLO_TRY(weigh(ctx, model, dataset, &ranking, pass->notes, err));
    MLO_TRY(mlo_model_clone(model, &source, err));
    MLO_TRY(mlo_prune_take(model, ctx->options, &ranking, arena, pass, &result, err));
    if (reconstructs(ctx->options)) {
        struct mlo_refit_request request = refit_request(ctx);
        request.source = source;
        request.pruned = model;
        request.result = &result;
        request.dataset = dataset;
        request.from = 0.55;
        request.to = 0.98;
        MLO_TRY(mlo_step_refit(&request, layers, pass->notes, err));
    }
    *report = result.report;
    result.report = NULL;
    if (json_object_set(*report, "layers", layers) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(result.report);
    json_decref(layers);
    mlo_model_free(source);
    mlo_arena_free(arena);
    return status;
}

static void tell_turning(void *arg, int group, int groups)
{
    mlo_step_progress(arg, 0.25 + 0.05 * group / groups, "turning channels");
}

/* Turns what can be turned, and observes it anew. */
static enum mlo_status turn(const struct mlo_step_context *ctx, struct mlo_step_changing *c,
                            struct mlo_arena *arena, struct mlo_prune_turned *turned, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *criterion = mlo_json_str(ctx->options, "criterion", "auto");
    bool ranks = strcmp(criterion, "auto") == 0 || strcmp(criterion, "second-order") == 0;
    if (!ranks || !reconstructs(ctx->options) || !c->stats.gram_count)
        return MLO_OK;
    MLO_TRY(mlo_prune_turn(c->model, ctx->options, &c->stats, &c->pass, tell_turning, (void *)ctx, arena,
                           turned, err));
    if (turned->groups) {
        mlo_stats_clear(&c->stats);
        mlo_stats_init(&c->stats);
        mlo_stats_wants_clear(&c->wants);
        MLO_TRY(mlo_prune_wanted(c->model, ctx->options, false, &c->wants, err));
        MLO_TRY(mlo_step_observe_grams(ctx, c->model, c->dataset, &c->wants, 0.3, 0.4, &c->stats, err));
    }
out:
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_step_changing c = {0};
    struct mlo_pass_request last = {"remove-dead", NULL};
    struct mlo_pass_driver driver = {0};
    struct mlo_prune_turned turned = {0};
    struct mlo_arena *arena = mlo_arena_new();
    const char *names[MLO_STEP_FOLDING];
    if (!arena) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_step_changing_init(&c, ctx, names, names_of(ctx->options, names), err));
    MLO_TRY(mlo_prune_wanted(c.model, ctx->options, true, &c.wants, err));
    MLO_TRY(check_data(ctx, &c.wants, err));
    MLO_TRY(mlo_step_changing_observe(&c, ctx, 0.05, 0.25, err));
    MLO_TRY(turn(ctx, &c, arena, &turned, err));
    mlo_step_progress(ctx, 0.4, "ranking channels");
    MLO_TRY(prune(ctx, c.model, c.dataset, &c.stats, &turned, &c.pass, &c.report, err));
    MLO_TRY(mlo_step_changing_note(&c, "prune", err));
    MLO_TRY(
        mlo_passes_run(c.model, &last, 1, &driver, err)); /* shapes that were computed and are stated now */
    MLO_TRY(mlo_step_changing_save(&c, ctx, "pruning", out, err));
out:
    mlo_step_changing_clear(&c);
    mlo_arena_free(arena);
    json_decref(driver.report);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    const char *names[MLO_STEP_FOLDING];
    return mlo_step_changing_passes(names, names_of(options, names), "prune", out, err);
}

const struct mlo_step mlo_step_prune = {
    .name = "prune",
    .kind = MLO_STEP_DERIVE,
    .revision = 5,
    .takes_calibrate = true,
    .options = mlo_prune_options,
    .run = run,
    .passes = passes,
    .description =
        "takes channels, heads and neurons out and fits the layers behind them on calibration data",
};
