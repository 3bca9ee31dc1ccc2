#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "passes/sparsify.h"
#include "pipeline/steps/step_impl.h"

const char *const mlo_step_compare_choices[] = {"none", "source", NULL};
const char *const mlo_step_engine_choices[] = {"cpu", "cuda", "reference", NULL};

const char *mlo_step_engine_offer(const json_t *options, const char *target)
{
    bool gpu = strcmp(mlo_json_str(options, "engine", "cpu"), "cuda") == 0;
    return gpu && !mlo_cuda_target_sm(target) ? "cuda" : NULL;
}

void mlo_step_result_clear(struct mlo_step_result *result)
{
    free(result->artifact_path);
    free(result->document_path);
    free(result->decision_path);
    json_decref(result->report);
    json_decref(result->observations);
    json_decref(result->plans);
    *result = (struct mlo_step_result){0};
}

void mlo_steps_return_memory(void)
{
    enum { LARGE = 1 << 18 };
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, LARGE);
#endif
}

enum mlo_status mlo_step_open_dataset(const struct mlo_step_context *ctx, const char *path, int64_t limit,
                                      struct mlo_dataset **out, struct mlo_error *err)
{
    struct mlo_dataset_options options = {0};
    if (ctx->reading)
        options = *ctx->reading;
    options.limit = limit;
    return mlo_dataset_open(path, &options, out, err);
}

void mlo_step_progress(const struct mlo_step_context *ctx, double fraction, const char *message)
{
    if (ctx->progress)
        ctx->progress(ctx->progress_arg, fraction, message);
}

enum mlo_status mlo_step_load(const char *path, struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = mlo_sparse_load(path, out, err);
    if (status == MLO_OK)
        status = mlo_graph_check_supported((*out)->graph, err);
    if (status == MLO_OK) /* weights that stay there come back when they are read */
        mlo_fs_forget((*out)->mapping.data, (*out)->mapping.size);
    if (status != MLO_OK && err && !strstr(err->message, mlo_fs_basename(path)))
        mlo_error_prefix(err, "%s", mlo_fs_basename(path));
    return status;
}

json_t *mlo_step_pass_revisions(const char *const *names, size_t count)
{
    json_t *out = json_object();
    for (size_t i = 0; i < count && out; i++) {
        const struct mlo_pass *pass = mlo_pass_find(names[i]);
        if (json_object_set_new(out, names[i], json_integer(pass ? pass->revision : 0))) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

size_t mlo_step_folding(bool freeze, const char *but, const char *names[MLO_STEP_FOLDING])
{
    size_t count, n = 0;
    const char *const *all = mlo_passes_optimize(&count);
    if (freeze)
        names[n++] = "freeze-initializers"; /* first, so that the others see constants */
    for (size_t i = 0; i < count && n < MLO_STEP_FOLDING - 1; i++)
        if (!but || strcmp(all[i], but) != 0)
            names[n++] = all[i];
    return n;
}

enum mlo_status mlo_step_fold(struct mlo_model *model, const char *const *names, size_t count,
                              json_t **report, struct mlo_error *err)
{
    struct mlo_pass_request requests[MLO_STEP_FOLDING] = {0};
    struct mlo_pass_driver driver = {0};
    for (size_t i = 0; i < count; i++)
        requests[i].name = names[i];
    enum mlo_status status = mlo_passes_run(model, requests, count, &driver, err);
    *report = driver.report;
    return status;
}

enum mlo_status mlo_step_check_size(const struct mlo_model *model, struct mlo_error *err)
{
    struct mlo_error told = {0};
    enum mlo_status status = mlo_onnx_check_one_file(model, &told);
    if (status == MLO_OK)
        return MLO_OK;
    mlo_error_set(err, status, "a variant is one file: %s", told.message);
    mlo_error_hint(
        err, "a step that quantizes the upload makes it four times smaller; 'mlopt optimize' on a machine of "
             "yours writes the weights of larger models into a second file, which 'mlopt push' takes");
    return status;
}

enum mlo_status mlo_step_save(const struct mlo_step_context *ctx, const struct mlo_model *model,
                              json_t *passes, struct mlo_step_result *out, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_step_check_size(model, err));
    out->artifact_path = mlo_fs_join(ctx->out_dir, "model.onnx", NULL);
    out->report = json_pack("{s:O}", "passes", passes);
    if (!out->artifact_path || !out->report) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_onnx_save(model, out->artifact_path, err));
out:
    return status;
}

enum mlo_status mlo_step_run_passes(const struct mlo_step_context *ctx, struct mlo_model *model,
                                    const struct mlo_pass_request *requests, size_t count,
                                    const struct mlo_stats *stats, struct mlo_step_result *out,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_pass_driver driver = {.stats = stats};
    MLO_TRY(mlo_passes_run(model, requests, count, &driver, err));
    MLO_TRY(mlo_step_save(ctx, model, driver.report, out, err));
out:
    json_decref(driver.report);
    return status;
}

enum mlo_status mlo_step_note_deviation(const struct mlo_step_context *ctx, const struct mlo_model *made,
                                        struct mlo_step_result *out, struct mlo_error *err)
{
    struct mlo_model *source = NULL;
    struct mlo_synthetic *synthetic = NULL;
    struct mlo_error why = {0};
    json_t *deviation = NULL;
    unsigned threads = ctx->threads ? ctx->threads : 1;
    enum mlo_status status =
        mlo_step_load(ctx->source_path ? ctx->source_path : ctx->model_path, &source, &why);
    if (status == MLO_OK)
        status = mlo_synthetic_new(source, threads, &synthetic, &why);
    mlo_model_free(source); /* one of them is in memory at a time */
    if (status == MLO_OK)
        status = mlo_synthetic_compare(synthetic, made, &deviation, &why);
    mlo_synthetic_free(synthetic);
    if (status != MLO_OK) { /* the variant is there all the same */
        json_decref(deviation);
        deviation = json_pack("{s:s,s:s}", "inputs", "synthetic", "unavailable", why.message);
    }
    if (!deviation || json_object_set_new(out->report, "deviation", deviation) != 0)
        return mlo_error_nomem(err);
    return MLO_OK;
}

enum mlo_status mlo_step_run_unobserved(const struct mlo_step_context *ctx, const char *pass,
                                        struct mlo_step_result *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    const struct mlo_pass_request request = {pass, ctx->options};
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    mlo_step_progress(ctx, 0.2, "quantizing weights");
    MLO_TRY(mlo_step_run_passes(ctx, model, &request, 1, NULL, out, err));
    mlo_step_progress(ctx, 0.6, "comparing outputs");
    MLO_TRY(mlo_step_note_deviation(ctx, model, out, err));
out:
    mlo_model_free(model);
    return status;
}

static json_t *estimate_json(const struct mlo_estimate *e)
{
    return json_pack("{s:f,s:f,s:f}", "value", e->value, "low", e->low, "high", e->high);
}

json_t *mlo_step_observation(const char *subject, const char *metric, json_t *params, const char *unit,
                             const struct mlo_estimate *estimate, const char *protocol,
                             const struct mlo_engine *engine)
{
    char machine_class[128];
    json_t *machine = NULL;
    if (mlo_machine_describe(&machine, NULL) != MLO_OK)
        return NULL;
    return json_pack("{s:s,s:s,s:O,s:s,s:f,s:f,s:f,s:I,s:s,s:s,s:s,s:o}", "subject", subject, "metric",
                     metric, "params", params, "unit", unit, "value", estimate->value, "low", estimate->low,
                     "high", estimate->high, "n", (json_int_t)estimate->n, "protocol", protocol, "engine",
                     engine->version(), "machine_class",
                     mlo_machine_class(machine_class, sizeof machine_class), "machine", machine);
}

bool mlo_step_compare(json_t *observation, const char *kind, const struct mlo_estimate *estimate)
{
    json_t *against = json_pack("{s:s,s:o}", "subject", "source", kind, estimate_json(estimate));
    return json_object_set_new(observation, "against", against) == 0;
}

struct mlo_bench_options mlo_step_bench_options(const struct mlo_step_context *ctx,
                                                const struct mlo_engine *engine)
{
    return (struct mlo_bench_options){
        .engine = engine,
        .threads = (unsigned)mlo_json_i64(ctx->options, "threads", 1),
        .seconds = mlo_json_f64(ctx->options, "seconds", 1.5),
        .rounds = (int)mlo_json_i64(ctx->options, "rounds", 6),
        .exe = ctx->exe,
    };
}

enum mlo_status mlo_step_engine(const struct mlo_step_context *ctx, const struct mlo_engine **out,
                                struct mlo_error *err)
{
    enum mlo_status status = mlo_engine_find(mlo_json_str(ctx->options, "engine", "cpu"), out, err);
    return status == MLO_OK ? (*out)->probe(err) : status;
}

bool mlo_step_compares(const struct mlo_step_context *ctx)
{
    return strcmp(mlo_json_str(ctx->options, "compare_to", "none"), "source") == 0 &&
           strcmp(ctx->model_path, ctx->source_path) != 0;
}
