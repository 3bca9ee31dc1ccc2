/* The budget of accuracy as the option of a step: its data, its progress, what the report says. */
#include <stdio.h>
#include <string.h>

#include "pipeline/steps/checkpoint.h"
#include "pipeline/steps/decision.h"
#include "pipeline/steps/step_impl.h"

/* Raised when the same request is searched in another way. */
enum { SEARCH_REVISION = 1 };
/* Enough to tell a node that is ruined from one that is not; the drop itself is judged on all samples. */
enum { SAMPLES = 64 };

bool mlo_step_has_budget(const json_t *options)
{
    return strcmp(mlo_json_str(options, "accuracy_drop", "none"), "none") != 0;
}

enum mlo_status mlo_step_check_budget(const struct mlo_step_context *ctx, struct mlo_error *err)
{
    double budget;
    struct mlo_metric_use metric;
    if (!mlo_step_has_budget(ctx->options) || ctx->decision_path)
        return MLO_OK;
    if (!ctx->select_path) {
        mlo_error_set(err, MLO_EINVAL,
                      "accuracy_drop is judged on the data of the role select, and there is none");
        mlo_error_where(err, "option 'accuracy_drop'");
        mlo_error_hint(err,
                       "add data.select to the recipe (--select LABELLED on the command line); it must not "
                       "be what evaluates");
        return MLO_EINVAL;
    }
    enum mlo_status status = mlo_budget_parse(mlo_json_str(ctx->options, "accuracy_drop", ""), &budget, err);
    if (status == MLO_OK)
        status = mlo_metric_find(mlo_json_str(ctx->options, "metric", "top1"), &metric, err);
    return status;
}

struct choice {
    const struct mlo_step_context *ctx;
    mlo_mix_make_fn *make;
    void *make_arg;
    struct mlo_checkpoint checkpoint;
    char best[112]; /* so far, in words */
    int mixes;      /* made */
};

static void progress(void *arg, double fraction, const char *message)
{
    const struct choice *choice = arg;
    char text[160];
    snprintf(text, sizeof text, "sensitivity of %.120s", message);
    mlo_step_progress(choice->ctx, 0.35 + 0.3 * fraction, text);
}

static enum mlo_status make(void *arg, const json_t *options, struct mlo_model **out, struct mlo_error *err)
{
    struct choice *choice = arg;
    char text[160];
    /* nobody knows how many there will be; what does not grow is not told */
    snprintf(text, sizeof text, "judging a mix%s", choice->best);
    mlo_step_progress(choice->ctx, MLO_MIN(0.65 + 0.011 * choice->mixes, 0.85), text);
    choice->mixes++;
    return choice->make(choice->make_arg, options, out, err);
}

/* Keeps the best so far: for the next attempt, and where the caller wants it. A folder that cannot be written
 * is no reason to end the search; a file that was asked for is. */
static enum mlo_status keep(void *arg, const json_t *decision, struct mlo_error *err)
{
    struct choice *choice = arg;
    const json_t *drop = json_object_get(decision, "drop");
    snprintf(choice->best, sizeof choice->best, "; best so far: %zu given back, a drop of %.4g [%.4g, %.4g]",
             json_array_size(json_object_get(decision, "given_back")), mlo_json_f64(drop, "value", 0),
             mlo_json_f64(drop, "low", 0), mlo_json_f64(drop, "high", 0));
    if (choice->checkpoint.path)
        mlo_checkpoint_written(&choice->checkpoint, 0,
                               mlo_decision_save(decision, choice->checkpoint.fresh, NULL) == MLO_OK);
    return choice->ctx->decision_out ? mlo_decision_save(decision, choice->ctx->decision_out, err) : MLO_OK;
}

static enum mlo_status note(json_t *notes, const char *node, const char *text, struct mlo_error *err)
{
    return json_array_append_new(notes, json_pack("{s:s,s:s}", "node", node, "note", text)) == 0
               ? MLO_OK
               : mlo_error_nomem(err);
}

static enum mlo_status note_choice(const json_t *decision, json_t *notes, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t i;
    json_t *row;
    char text[320];
    const json_t *drop = json_object_get(decision, "drop");
    bool holds = mlo_json_bool(decision, "holds", false);
    if (!mlo_json_bool(decision, "complete", true)) {
        snprintf(text, sizeof text,
                 "the search was not finished: this is the best mix so far, whose drop in %s of %.4g [%.4g, "
                 "%.4g] %s the budget of %s",
                 mlo_json_str(decision, "metric", ""), mlo_json_f64(drop, "value", 0),
                 mlo_json_f64(drop, "low", 0), mlo_json_f64(drop, "high", 0),
                 holds ? "holds" : "does not hold", mlo_json_str(decision, "budget", ""));
        MLO_TRY(note(notes, "", text, err));
    }
    json_array_foreach(json_object_get(decision, "given_back"), i, row)
    {
        const char *to = mlo_json_str(row, "to", "");
        snprintf(text, sizeof text, "%.40s %s %s: %.200s", mlo_json_str(row, "op", ""),
                 strcmp(to, "float") == 0 ? "stays in" : "is made", to, mlo_json_str(row, "why", ""));
        MLO_TRY(note(notes, mlo_json_str(row, "node", ""), text, err));
    }
out:
    return status;
}

/* The members that every decision of this search has: what it is of. *identity: all that it follows from. */
static enum mlo_status describe(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                struct mlo_dataset *dataset, struct mlo_dataset *select, json_t **head,
                                json_t **identity, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_digest digest;
    char of[MLO_DIGEST_TEXT_SIZE], calibrate[MLO_DIGEST_TEXT_SIZE], judged[MLO_DIGEST_TEXT_SIZE];
    json_t *options = json_copy((json_t *)ctx->options), *passes = NULL;
    MLO_TRY(mlo_digest_of_file(ctx->model_path, &digest, NULL, err));
    mlo_digest_text(&digest, of);
    MLO_TRY(mlo_step_fed_digest(model, dataset, false, &digest, err));
    mlo_digest_text(&digest, calibrate);
    MLO_TRY(mlo_step_fed_digest(model, select, true, &digest, err));
    mlo_digest_text(&digest, judged);
    MLO_TRY(mlo_step_quantize.passes(ctx->options, &passes, err));
    json_object_del(options, "time_limit"); /* a longer search goes on where a shorter one ended */
    *head = json_pack("{s:s,s:s,s:s,s:{s:s,s:s}}", "format", MLO_DECISION_FORMAT, "step", "quantize", "model",
                      of, "data", "calibrate", calibrate, "select", judged);
    *identity =
        json_pack("{s:i,s:O*,s:O*,s:O*,s:i,s:s}", "search", SEARCH_REVISION, "of", *head, "options", options,
                  "passes", passes, "step", mlo_step_quantize.revision, "numerics", MLO_NUMERICS_ID);
    if (!options || !*head || !*identity)
        status = mlo_error_nomem(err);
out:
    json_decref(options);
    json_decref(passes);
    return status;
}

static enum mlo_status search(struct choice *choice, const struct mlo_model *model,
                              struct mlo_dataset *dataset, const struct mlo_stats *stats, json_t **decision,
                              struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_step_context *ctx = choice->ctx;
    struct mlo_dataset *select = NULL;
    struct mlo_judge judge = {0};
    json_t *head = NULL, *identity = NULL, *before = NULL;
    mlo_step_progress(ctx, 0.3, "running the float model");
    MLO_TRY(mlo_step_open_dataset(ctx, ctx->select_path, 0, &select, err));
    MLO_TRY(mlo_judge_init(&judge, model, select, mlo_json_str(ctx->options, "metric", "top1"), ctx->threads,
                           ctx->batch, err));
    MLO_TRY(describe(ctx, model, dataset, select, &head, &identity, err));
    MLO_TRY(mlo_checkpoint_open(ctx, identity, &choice->checkpoint, err));
    if (choice->checkpoint.path && mlo_fs_exists(choice->checkpoint.path) &&
        mlo_decision_load(ctx, choice->checkpoint.path, "quantize", &before, NULL) == MLO_OK)
        mlo_step_progress(ctx, 0.35, "judging mixes, where it was");
    const struct mlo_mix_request request = {.sensitivity = {.model = model,
                                                            .options = ctx->options,
                                                            .stats = stats,
                                                            .dataset = dataset,
                                                            .samples = SAMPLES,
                                                            .judge = &judge,
                                                            .threads = ctx->threads,
                                                            .batch = ctx->batch,
                                                            .progress = progress,
                                                            .progress_arg = choice},
                                            .budget = mlo_json_str(ctx->options, "accuracy_drop", ""),
                                            .time_limit_s = mlo_json_i64(ctx->options, "time_limit", 0),
                                            .head = head,
                                            .before = before,
                                            .keep = keep,
                                            .keep_arg = choice,
                                            .make = make,
                                            .make_arg = choice};
    MLO_TRY(mlo_mix_choose(&request, decision, err));
out:
    mlo_checkpoint_close(&choice->checkpoint);
    mlo_judge_clear(&judge);
    mlo_dataset_close(select);
    json_decref(head);
    json_decref(identity);
    json_decref(before);
    return status;
}

enum mlo_status mlo_step_choose_precision(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                          struct mlo_dataset *dataset, const struct mlo_stats *stats,
                                          mlo_mix_make_fn *make_model, void *make_arg, json_t *notes,
                                          json_t **options, json_t **decision, struct mlo_error *err)
{
    enum mlo_status status;
    struct choice choice = {.ctx = ctx, .make = make_model, .make_arg = make_arg};
    *options = *decision = NULL;
    if (ctx->decision_path)
        status = mlo_decision_load(ctx, ctx->decision_path, "quantize", decision, err);
    else if (mlo_step_has_budget(ctx->options))
        status = search(&choice, model, dataset, stats, decision, err);
    else
        return MLO_OK;
    MLO_TRY(status);
    MLO_TRY(note_choice(*decision, notes, err));
    MLO_TRY(mlo_decision_options(*decision, ctx->options, options, err));
out:
    return status;
}
