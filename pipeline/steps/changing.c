/* What the steps share that fold a float model, observe it and change it: prune, sparsify. */
#include "pipeline/steps/step_impl.h"

enum mlo_status mlo_step_changing_init(struct mlo_step_changing *c, const struct mlo_step_context *ctx,
                                       const char *const *names, size_t count, struct mlo_error *err)
{
    enum mlo_status status;
    *c = (struct mlo_step_changing){.pass = {.options = ctx->options, .notes = json_array()}};
    mlo_stats_init(&c->stats);
    if (!c->pass.notes)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_step_load(ctx->model_path, &c->model, err));
    MLO_TRY(mlo_step_fold(c->model, names, count, &c->passes, err));
out:
    return status;
}

enum mlo_status mlo_step_changing_observe(struct mlo_step_changing *c, const struct mlo_step_context *ctx,
                                          double from, double to, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (!ctx->calibrate_path)
        return MLO_OK;
    MLO_TRY(mlo_step_open_calibration(ctx, c->model, &c->dataset, err));
    MLO_TRY(mlo_step_note_channels(c->model, c->dataset, c->pass.notes, err));
    MLO_TRY(mlo_step_observe_grams(ctx, c->model, c->dataset, &c->wants, from, to, &c->stats, err));
out:
    return status;
}

enum mlo_status mlo_step_changing_note(struct mlo_step_changing *c, const char *pass, struct mlo_error *err)
{
    json_t *row = json_pack("{s:s,s:i,s:i,s:f,s:O}", "pass", pass, "revision", mlo_pass_find(pass)->revision,
                            "changes", c->pass.changes, "ms", 0.0, "notes", c->pass.notes);
    return json_array_append_new(c->passes, row) == 0 ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_step_changing_save(struct mlo_step_changing *c, const struct mlo_step_context *ctx,
                                       const char *section, struct mlo_step_result *out,
                                       struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_step_save(ctx, c->model, c->passes, out, err));
    if (json_object_set(out->report, section, c->report) != 0)
        status = mlo_error_nomem(err);
out:
    return status;
}

void mlo_step_changing_clear(struct mlo_step_changing *c)
{
    mlo_dataset_close(c->dataset);
    mlo_stats_wants_clear(&c->wants);
    mlo_stats_clear(&c->stats);
    mlo_model_free(c->model);
    json_decref(c->pass.notes);
    json_decref(c->passes);
    json_decref(c->report);
}

enum mlo_status mlo_step_changing_passes(const char **names, size_t count, const char *pass, json_t **out,
                                         struct mlo_error *err)
{
    names[count++] = pass;
    *out = mlo_step_pass_revisions(names, count);
    return *out ? MLO_OK : mlo_error_nomem(err);
}
