#include "pipeline/steps/plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/choices.h"
#include "pipeline/steps/decision.h"

const char *mlo_step_plan_target(const json_t *options)
{
    const char *target = mlo_json_str(options, "target", MLO_STEP_TARGET_RECIPE);
    return strcmp(target, MLO_STEP_TARGET_RECIPE) == 0 ? NULL : target;
}

enum mlo_status mlo_step_check_target(const char *target, struct mlo_error *err)
{
    if (strcmp(target, MLO_STEP_TARGET_RECIPE) == 0 || mlo_cuda_target_sm(target))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "plans cannot be made for the target '%.60s' on another machine", target);
    mlo_error_where(err, "option 'target'");
    mlo_error_hint(err,
                   "write cuda:sm90 or another GPU's number; plans for processors are made on them: leave "
                   "'target' out");
    return MLO_EINVAL;
}

enum mlo_status mlo_step_plan_engine(const json_t *options, const struct mlo_engine **out,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    const char *target = mlo_step_plan_target(options);
    MLO_TRY(mlo_step_check_target(target ? target : MLO_STEP_TARGET_RECIPE, err));
    MLO_TRY(mlo_engine_find(target ? "cuda" : "cpu", out, err));
    if (!target)
        return (*out)->probe(err);
    if (!(*out)->can_compile)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "the engine '%s' compiles for no other machine",
                             (*out)->name);
    status = (*out)->can_compile(target, err);
out:
    return status;
}

enum mlo_status mlo_step_planning_init(struct mlo_step_planning *p, const struct mlo_step_context *ctx,
                                       const struct mlo_engine *engine, struct mlo_error *err)
{
    enum mlo_status status;
    const json_t *batches = json_object_get(ctx->options, "batch");
    int64_t fixed = 0;
    *p =
        (struct mlo_step_planning){.ctx = ctx,
                                   .engine = engine,
                                   .source = {.numerics = MLO_NUMERICS_FAST,
                                              .threads = (unsigned)mlo_json_i64(ctx->options, "threads", 1)}};
    MLO_TRY(mlo_step_load(ctx->model_path, &p->model, err));
    MLO_TRY(mlo_digest_of_file(ctx->model_path, &p->source.model, NULL, err));
    MLO_TRY(mlo_model_fixed_batch(p->model, &fixed, err));
    for (size_t i = 0; i < json_array_size(batches) && p->count < MLO_COUNT(p->batches); i++) {
        int64_t batch = json_integer_value(json_array_get(batches, i));
        if (fixed && fixed != batch && json_array_size(batches) > 1)
            continue; /* what a free batch would have got besides */
        p->batches[p->count++] = fixed ? fixed : batch;
    }
    if (!p->count) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "the model's batch is fixed at %lld, which is none of those that are wanted",
                               (long long)fixed);
        mlo_error_where(err, "option 'batch'");
        mlo_error_hint(err, "write batch: %lld, or upload the model with a free batch", (long long)fixed);
    }
out:
    return status;
}

void mlo_step_planning_clear(struct mlo_step_planning *p)
{
    mlo_model_free(p->model);
    *p = (struct mlo_step_planning){0};
}

/* How many of the plan's steps can be computed in several ways, and how many of them were measured. */
static enum mlo_status count_steps(const struct mlo_engine *engine, const struct mlo_plan *plan,
                                   int64_t *steps, int64_t *measured, struct mlo_error *err)
{
    json_t *all = NULL, *node;
    size_t i;
    enum mlo_status status = engine->describe(plan, &all, err);
    json_array_foreach(json_object_get(all, "nodes"), i, node)
    {
        const char *chosen = mlo_json_str(node, "chosen", "");
        *steps += strcmp(chosen, "only way") != 0;
        *measured += strcmp(chosen, "measured") == 0;
    }
    json_decref(all);
    return status;
}

static enum mlo_status make_plan(struct mlo_step_planning *p, const json_t *choices, json_t *plans,
                                 int64_t *steps, int64_t *measured, struct mlo_error *err)
{
    enum mlo_status status;
    const char *target = mlo_step_plan_target(p->ctx->options);
    char name[96], machine_class[256];
    struct mlo_plan *plan = NULL;
    json_t *fingerprint = NULL;
    if (target) /* of a device: which one a plan fits stands in its fingerprint */
        snprintf(machine_class, sizeof machine_class, "%s", target);
    else
        mlo_machine_class(machine_class, sizeof machine_class);
    snprintf(name, sizeof name, "batch%lld-threads%u.plan", (long long)p->source.batch, p->source.threads);
    char *path = mlo_fs_join(p->ctx->out_dir, name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    struct mlo_compile_options options = {.batch = p->source.batch,
                                          .numerics = p->source.numerics,
                                          .threads = p->source.threads,
                                          .target = target,
                                          .choices = choices};
    MLO_TRY(p->engine->compile(p->model, &options, &plan, err));
    MLO_TRY(mlo_plan_write(p->engine, plan, &p->source, NULL, path, err));
    MLO_TRY(mlo_plan_fingerprint(p->engine, plan, &p->source, &fingerprint, err));
    if (target)
        MLO_TRY(count_steps(p->engine, plan, steps, measured, err));
    json_t *row = json_pack("{s:s, s:O, s:s}", "path", path, "fingerprint", fingerprint, "machine_class",
                            machine_class);
    if (!row || json_array_append_new(plans, row) != 0)
        status = mlo_error_nomem(err);
out:
    if (plan)
        p->engine->free_plan(plan);
    json_decref(fingerprint);
    free(path);
    return status;
}

enum mlo_status mlo_step_make_plans(struct mlo_step_planning *p, const json_t *choices,
                                    struct mlo_step_result *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *target = mlo_step_plan_target(p->ctx->options);
    int64_t steps = 0, measured = 0;
    out->plans = json_array();
    for (size_t i = 0; i < p->count; i++) {
        p->source.batch = p->batches[i];
        mlo_step_progress(p->ctx, (double)i / (double)p->count, "compiling");
        MLO_TRY(make_plan(p, choices, out->plans, &steps, &measured, err));
    }
    out->report = json_pack("{s:i}", "plans", (int)json_array_size(out->plans));
    if (!out->report || !out->plans) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (!target)
        return MLO_OK;
    const char *note = !steps              ? "no step can be computed in several ways"
                       : measured == steps ? "every step is computed as it was measured to be fastest"
                       : measured          ? "steps that were not measured are computed as heuristics say"
                                  : "nothing was measured: heuristics chose how each step is computed";
    if (json_object_set_new(out->report, "target", json_string(target)) != 0 ||
        json_object_set_new(out->report, "steps", json_integer(steps)) != 0 ||
        json_object_set_new(out->report, "measured", json_integer(measured)) != 0 ||
        json_object_set_new(out->report, "note", json_string(note)) != 0)
        status = mlo_error_nomem(err);
out:
    return status;
}

enum mlo_status mlo_step_known_choices(const struct mlo_step_context *ctx, const char *target, json_t **out,
                                       struct mlo_error *err)
{
    *out = NULL;
    for (size_t i = 0; ctx->tunings && ctx->tunings[i]; i++) {
        struct mlo_error unfit = {0};
        json_t *decision = NULL;
        if (mlo_json_load_file(ctx->tunings[i], &decision, &unfit) != MLO_OK)
            continue;
        json_t *choices = json_object_get(decision, "choices");
        bool fits = strcmp(mlo_json_str(decision, "format", ""), MLO_DECISION_FORMAT) == 0 &&
                    mlo_choices_check(choices, ctx->tunings[i], &unfit) == MLO_OK &&
                    mlo_str_eq(mlo_json_str(json_object_get(choices, "machine"), "target", NULL), target);
        enum mlo_status status = MLO_OK;
        if (fits && !*out)
            *out = json_deep_copy(choices);
        else if (fits && mlo_choices_same_machine(*out, choices)) /* what was measured there before */
            status = mlo_choices_merge(*out, choices, err);
        if (fits && !*out)
            status = mlo_error_nomem(err);
        json_decref(decision);
        if (status != MLO_OK) {
            json_decref(*out);
            *out = NULL;
            return status;
        }
    }
    return MLO_OK;
}
