/* The budget of accuracy as the option of a step: its data, its progress, what the report says. */
#include <stdio.h>
#include <string.h>

#include "pipeline/steps/step_impl.h"

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
    if (!mlo_step_has_budget(ctx->options))
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
    const struct choice *choice = arg;
    mlo_step_progress(choice->ctx, 0.65, "judging a mix");
    return choice->make(choice->make_arg, options, out, err);
}

static enum mlo_status note_choice(const json_t *decision, json_t *notes, struct mlo_error *err)
{
    size_t i;
    json_t *row;
    const json_t *drop = json_object_get(decision, "drop");
    if (!mlo_json_bool(decision, "complete", true)) {
        char text[256];
        snprintf(text, sizeof text,
                 "the time limit was reached: this is the best mix so far, whose drop in %s of %.4g [%.4g, "
                 "%.4g] %s the budget of %s",
                 mlo_json_str(decision, "metric", ""), mlo_json_f64(drop, "value", 0),
                 mlo_json_f64(drop, "low", 0), mlo_json_f64(drop, "high", 0),
                 mlo_json_bool(decision, "holds", false) ? "holds" : "does not hold",
                 mlo_json_str(decision, "budget", ""));
        if (json_array_append_new(notes, json_pack("{s:s,s:s}", "node", "", "note", text)) != 0)
            return mlo_error_nomem(err);
    }
    json_array_foreach(json_object_get(decision, "float"), i, row)
    {
        json_t *note =
            json_pack("{s:s,s:s++}", "node", mlo_json_str(row, "node", ""), "note",
                      mlo_json_str(row, "op", ""), " stays in float: ", mlo_json_str(row, "why", ""));
        if (!note || json_array_append_new(notes, note) != 0)
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}

enum mlo_status mlo_step_choose_float(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                      struct mlo_dataset *dataset, const struct mlo_stats *stats,
                                      mlo_mix_make_fn *make_model, void *make_arg, json_t *notes,
                                      json_t **options, json_t **decision, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_dataset *select = NULL;
    struct mlo_judge judge = {0};
    struct choice choice = {ctx, make_model, make_arg};
    json_t *exclude = NULL;
    *options = *decision = NULL;
    if (!mlo_step_has_budget(ctx->options))
        return MLO_OK;
    mlo_step_progress(ctx, 0.3, "running the float model");
    MLO_TRY(mlo_step_open_dataset(ctx, ctx->select_path, 0, &select, err));
    MLO_TRY(mlo_judge_init(&judge, model, select, mlo_json_str(ctx->options, "metric", "top1"), ctx->threads,
                           ctx->batch, err));
    const struct mlo_mix_request request = {.sensitivity = {.model = model,
                                                            .options = ctx->options,
                                                            .stats = stats,
                                                            .dataset = dataset,
                                                            .samples = SAMPLES,
                                                            .judge = &judge,
                                                            .threads = ctx->threads,
                                                            .batch = ctx->batch,
                                                            .progress = progress,
                                                            .progress_arg = &choice},
                                            .budget = mlo_json_str(ctx->options, "accuracy_drop", ""),
                                            .time_limit_s = mlo_json_i64(ctx->options, "time_limit", 0),
                                            .make = make,
                                            .make_arg = &choice};
    MLO_TRY(mlo_mix_choose(&request, &exclude, decision, err));
    MLO_TRY(note_choice(*decision, notes, err));
    *options = json_copy((json_t *)ctx->options);
    if (!*options || json_object_set(*options, "exclude", exclude) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_judge_clear(&judge);
    mlo_dataset_close(select);
    json_decref(exclude);
    return status;
}
