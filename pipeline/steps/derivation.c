#include <stdlib.h>
#include <string.h>

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

/* Where two documents differ first, as "passes.fold": that member of both (NULL: absent there). */
static bool first_difference(const json_t *a, const json_t *b, char *path, size_t size, const json_t **in_a,
                             const json_t **in_b)
{
    const char *key;
    json_t *value;
    size_t used = strlen(path);
    if (json_equal((json_t *)a, (json_t *)b))
        return false;
    *in_a = a;
    *in_b = b;
    if (!json_is_object(a) || !json_is_object(b))
        return true;
    for (int side = 0; side < 2; side++) {
        json_object_foreach((json_t *)(side ? b : a), key, value)
        {
            snprintf(path + used, size - used, "%s%s", used ? "." : "", key);
            if (first_difference(json_object_get(a, key), json_object_get(b, key), path, size, in_a, in_b))
                return true;
            path[used] = '\0';
        }
    }
    return true;
}

enum mlo_status mlo_step_derivation_same(const char *step, const json_t *recorded, const json_t *ours,
                                         struct mlo_error *err)
{
    char path[200] = "";
    const json_t *was = NULL, *is = NULL;
    if (!first_difference(recorded, ours, path, sizeof path, &was, &is))
        return MLO_OK;
    char *a = was ? json_dumps(was, JSON_ENCODE_ANY | JSON_COMPACT) : NULL,
         *b = is ? json_dumps(is, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    enum mlo_status status = mlo_error_set(
        err, MLO_EUNSUPPORTED,
        "this program would make another derivation: its %.100s is %.100s, and %.100s was recorded", path,
        b ? b : "absent", a ? a : "nothing");
    mlo_error_where(err, "step '%s'", step);
    mlo_error_hint(err, "run it with the version of mlopt that made it");
    free(a);
    free(b);
    return status;
}
