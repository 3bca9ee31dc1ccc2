/* sparsify: single weights of a float model become zero, by magnitude or, with calibration data, by
 * SparseGPT. Constants and BatchNormalization are folded first, so that weights are those that run. */
#include <string.h>

#include "passes/sparsify.h"
#include "pipeline/steps/step_impl.h"

static size_t names_of(const json_t *options, const char *names[MLO_STEP_FOLDING])
{
    return mlo_step_folding(mlo_json_bool(options, "freeze_initializers", false), NULL, names);
}

static enum mlo_status check_data(const struct mlo_step_context *ctx, struct mlo_error *err)
{
    if (ctx->calibrate_path || strcmp(mlo_json_str(ctx->options, "criterion", "auto"), "sparsegpt") != 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "the criterion sparsegpt reads calibration data, and there is none");
    mlo_error_where(err, "option 'criterion'");
    mlo_error_hint(err, "give data, or the criterion magnitude, which does without and loses more accuracy");
    return MLO_EINVAL;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    struct mlo_stats_wants wants = {0};
    struct mlo_stats stats;
    struct mlo_pass_context pass = {.options = ctx->options, .notes = json_array()};
    const char *names[MLO_STEP_FOLDING];
    json_t *passes = NULL, *report = NULL, *storage = NULL;
    mlo_stats_init(&stats);
    if (!pass.notes) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_sparsify_check(ctx->options, err));
    MLO_TRY(check_data(ctx, err));
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(mlo_step_fold(model, names, names_of(ctx->options, names), &passes, err));
    if (ctx->calibrate_path) {
        MLO_TRY(mlo_sparsify_wanted(model, ctx->options, &wants, err));
        MLO_TRY(mlo_step_open_calibration(ctx, model, &dataset, err));
        MLO_TRY(mlo_step_note_channels(model, dataset, pass.notes, err));
        MLO_TRY(mlo_step_observe_grams(ctx, model, dataset, &wants, 0.05, 0.6, &stats, err));
    }
    mlo_step_progress(ctx, 0.6, "making weights zero");
    MLO_TRY(
        mlo_sparsify_model(model, ctx->options, ctx->calibrate_path ? &stats : NULL, &pass, &report, err));
    if (mlo_sparsify_packs(ctx->options))
        MLO_TRY(mlo_sparse_pack(model, &pass, &storage, err));
    else
        storage = json_pack("{s:s}", "form", "dense");
    json_array_append_new(passes, json_pack("{s:s,s:i,s:i,s:f,s:O}", "pass", "sparsify", "revision",
                                            mlo_pass_find("sparsify")->revision, "changes", pass.changes,
                                            "ms", 0.0, "notes", pass.notes));
    MLO_TRY(mlo_graph_infer(model->graph, err));
    MLO_TRY(mlo_graph_verify(model->graph, err));
    MLO_TRY(mlo_step_save(ctx, model, passes, out, err));
    if (json_object_set(report, "storage", storage) != 0 ||
        json_object_set(out->report, "sparsity", report) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_dataset_close(dataset);
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&stats);
    mlo_model_free(model);
    json_decref(pass.notes);
    json_decref(passes);
    json_decref(report);
    json_decref(storage);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    const char *names[MLO_STEP_FOLDING];
    size_t count = names_of(options, names);
    names[count++] = "sparsify";
    *out = mlo_step_pass_revisions(names, count);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

const struct mlo_step mlo_step_sparsify = {
    .name = "sparsify",
    .kind = MLO_STEP_DERIVE,
    .revision = 2,
    .takes_calibrate = true,
    .options = mlo_sparsify_options,
    .check = mlo_sparsify_check,
    .run = run,
    .passes = passes,
    .description =
        "makes single weights zero, anywhere or two of four, and the others make good what that does",
};
