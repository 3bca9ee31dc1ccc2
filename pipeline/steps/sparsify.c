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
    struct mlo_step_changing c = {0};
    const char *names[MLO_STEP_FOLDING];
    json_t *storage = NULL;
    MLO_TRY(mlo_sparsify_check(ctx->options, err));
    MLO_TRY(check_data(ctx, err));
    MLO_TRY(mlo_step_changing_init(&c, ctx, names, names_of(ctx->options, names), err));
    if (ctx->calibrate_path)
        MLO_TRY(mlo_sparsify_wanted(c.model, ctx->options, &c.wants, err));
    MLO_TRY(mlo_step_changing_observe(&c, ctx, 0.05, 0.6, err));
    mlo_step_progress(ctx, 0.6, "making weights zero");
    MLO_TRY(mlo_sparsify_model(c.model, ctx->options, ctx->calibrate_path ? &c.stats : NULL, &c.pass,
                               &c.report, err));
    if (mlo_sparsify_packs(ctx->options))
        MLO_TRY(mlo_sparse_pack(c.model, &c.pass, &storage, err));
    else
        storage = json_pack("{s:s}", "form", "dense");
    if (json_object_set(c.report, "storage", storage) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_step_changing_note(&c, "sparsify", err));
    MLO_TRY(mlo_graph_infer(c.model->graph, err));
    MLO_TRY(mlo_graph_verify(c.model->graph, err));
    MLO_TRY(mlo_step_changing_save(&c, ctx, "sparsity", out, err));
out:
    mlo_step_changing_clear(&c);
    json_decref(storage);
    return status;
}

static enum mlo_status passes(const json_t *options, json_t **out, struct mlo_error *err)
{
    const char *names[MLO_STEP_FOLDING];
    return mlo_step_changing_passes(names, names_of(options, names), "sparsify", out, err);
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
