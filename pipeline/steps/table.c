#include <string.h>

#include "pipeline/steps/step_impl.h"

/* A new step is one file and one line here. */
static const struct mlo_step *const STEPS[] = {
    &mlo_step_optimize,      &mlo_step_equalize,         &mlo_step_smooth,
    &mlo_step_quantize,      &mlo_step_quantize_dynamic, &mlo_step_quantize_weights,
    &mlo_step_round_weights, &mlo_step_to_float16,       &mlo_step_qat_export,
    &mlo_step_evaluate,      &mlo_step_benchmark,        &mlo_step_compile,
    &mlo_step_tune,          &mlo_step_report,           &mlo_step_distill_eval,
    &mlo_step_prune,         &mlo_step_sparsify,         &mlo_step_screen,
    &mlo_step_trial,         &mlo_step_search,
};

const struct mlo_step *const *mlo_step_table(size_t *count)
{
    *count = MLO_COUNT(STEPS);
    return STEPS;
}

const struct mlo_step *mlo_step_find(const char *name)
{
    for (size_t i = 0; i < MLO_COUNT(STEPS); i++)
        if (strcmp(STEPS[i]->name, name) == 0)
            return STEPS[i];
    return NULL;
}

enum mlo_status mlo_step_table_check(struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(STEPS); i++) {
        const struct mlo_step *s = STEPS[i];
        if (!s->name || !s->run || !s->options || !s->description || s->revision < 1)
            return mlo_error_set(err, MLO_EINTERNAL, "row %zu of the step table (%s) is incomplete", i,
                                 s->name ? s->name : "no name");
        if (s->kind == MLO_STEP_DERIVE && !s->passes == !s->pass)
            return mlo_error_set(err, MLO_EINTERNAL,
                                 "the step %s derives and does not name its passes, in one way", s->name);
        if (mlo_step_find(s->name) != s)
            return mlo_error_set(err, MLO_EINTERNAL, "the step %s stands twice in the table", s->name);
        json_t *defaults;
        enum mlo_status status = mlo_options_resolve(s->options, NULL, &defaults, err);
        if (status != MLO_OK) {
            mlo_error_prefix(err, "defaults of the step %s", s->name);
            return status;
        }
        json_decref(defaults);
    }
    return MLO_OK;
}
