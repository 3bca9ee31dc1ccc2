#include "pipeline/steps/step_impl.h"

static bool set_digest(json_t *object, const char *key, const struct mlo_digest *digest)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    return !digest || json_object_set_new(object, key, json_string(mlo_digest_text(digest, text))) == 0;
}

enum mlo_status mlo_step_derivation(const struct mlo_step *step, const json_t *options,
                                    const struct mlo_digest *model, const struct mlo_digest *calibrate,
                                    const struct mlo_digest *select, const struct mlo_digest *postprocess,
                                    const json_t *decisions, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *inputs = json_object(), *datasets = json_object(), *passes = NULL;
    *out = NULL;
    if (step->kind != MLO_STEP_DERIVE) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the step %s measures; it has no derivation", step->name);
        goto out;
    }
    if (step->passes) {
        MLO_TRY(step->passes(options, &passes, err));
    } else if (!(passes = mlo_step_pass_revisions(&step->pass, 1))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    /* a step's datasets enter its key only where the step reads them */
    if (!inputs || !datasets || !set_digest(inputs, "model", model) ||
        !set_digest(inputs, "postprocess", mlo_step_reads_select(step, options) ? postprocess : NULL) ||
        !set_digest(datasets, "calibrate", mlo_step_reads_calibrate(step) ? calibrate : NULL) ||
        !set_digest(datasets, "select", mlo_step_reads_select(step, options) ? select : NULL)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    json_t *none = decisions ? NULL : json_array();
    *out = json_pack("{s:s,s:i,s:O,s:O,s:O,s:O,s:s,s:O}", "step", step->name, "revision", step->revision,
                     "options", options, "inputs", inputs, "datasets", datasets, "passes", passes, "numerics",
                     MLO_NUMERICS_ID, "decisions", decisions ? decisions : none);
    json_decref(none);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(inputs);
    json_decref(datasets);
    json_decref(passes);
    return status;
}
