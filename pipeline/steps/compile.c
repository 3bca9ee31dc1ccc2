/* compile: a plan of the variant for the machine that runs this step. It is an accelerator beside the
 * variant: who has another machine compiles the variant there. */
#include <stdio.h>

#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    MLO_STEP_OPT_BATCH("batch sizes, a plan for each"),
    MLO_STEP_OPT_THREADS,
    {NULL},
};

static enum mlo_status compile_one(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                                   const struct mlo_model *model, struct mlo_plan_source *source,
                                   json_t *plans, struct mlo_error *err)
{
    enum mlo_status status;
    char name[64], machine_class[256];
    struct mlo_plan *plan = NULL;
    json_t *fingerprint = NULL;
    char *path = NULL;
    snprintf(name, sizeof name, "batch%lld-threads%u.plan", (long long)source->batch, source->threads);
    path = mlo_fs_join(ctx->out_dir, name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    struct mlo_compile_options options = {
        .batch = source->batch, .numerics = source->numerics, .threads = source->threads};
    MLO_TRY(engine->compile(model, &options, &plan, err));
    MLO_TRY(mlo_plan_write(engine, plan, source, NULL, path, err));
    MLO_TRY(mlo_plan_fingerprint(engine, plan, source, &fingerprint, err));
    json_t *row = json_pack("{s:s, s:O, s:s}", "path", path, "fingerprint", fingerprint, "machine_class",
                            mlo_machine_class(machine_class, sizeof machine_class));
    if (!row || json_array_append_new(plans, row) != 0)
        status = mlo_error_nomem(err);
out:
    if (plan)
        engine->free_plan(plan);
    json_decref(fingerprint);
    free(path);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    const struct mlo_engine *engine;
    struct mlo_plan_source source = {.numerics = MLO_NUMERICS_FAST,
                                     .threads = (unsigned)mlo_json_i64(ctx->options, "threads", 1)};
    const json_t *batches = json_object_get(ctx->options, "batch");
    int64_t fixed = 0;
    out->plans = json_array();
    MLO_TRY(mlo_engine_find("cpu", &engine, err));
    MLO_TRY(engine->probe(err));
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(mlo_digest_of_file(ctx->model_path, &source.model, NULL, err));
    MLO_TRY(mlo_model_fixed_batch(model, &fixed, err));
    for (size_t i = 0; i < json_array_size(batches); i++) {
        source.batch = json_integer_value(json_array_get(batches, i));
        if (fixed && fixed != source.batch && json_array_size(batches) > 1)
            continue; /* what a free batch would have got besides */
        source.batch = fixed ? fixed : source.batch;
        mlo_step_progress(ctx, (double)i / (double)json_array_size(batches), "compiling");
        MLO_TRY(compile_one(ctx, engine, model, &source, out->plans, err));
    }
    out->report = json_pack("{s:i}", "plans", (int)json_array_size(out->plans));
    if (!out->report)
        status = mlo_error_nomem(err);
out:
    mlo_model_free(model);
    return status;
}

const struct mlo_step mlo_step_compile = {
    .name = "compile",
    .kind = MLO_STEP_OBSERVE,
    .revision = 1,
    .makes_plans = true,
    .options = OPTIONS,
    .run = run,
    .description = "compiles the variant into a signed plan for the worker's kind of machine",
};
