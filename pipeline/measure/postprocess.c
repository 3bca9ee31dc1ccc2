/* Postprocessing: a second model between a model's outputs and the metric, which decodes boxes, takes logits
 * apart or joins heads, so that variants are compared by what their user sees. */
#include <stdlib.h>
#include <string.h>

#include "passes/sparsify.h"
#include "pipeline/measure/dataset_impl.h"
#include "pipeline/measure/inputs_impl.h"
#include "pipeline/measure/run_impl.h"

enum { CHUNK = 32 };

/* The postprocessing model, and which output of the model feeds each input of it. */
struct post {
    struct mlo_model *model;
    int inputs;
    int *from;
};

void mlo_outputs_free(struct mlo_tensor *outputs, int count)
{
    for (int i = 0; outputs && i < count; i++)
        mlo_tensor_clear(&outputs[i]);
    free(outputs);
}

/* --- what feeds what ------------------------------------------------------------------------------- */

static int output_named(const struct mlo_graph *graph, const char *name)
{
    for (int i = 0; i < graph->output_count; i++)
        if (strcmp(graph->outputs[i]->name, name) == 0)
            return i;
    return -1;
}

static enum mlo_status no_match(const struct post *p, const struct mlo_graph *graph, struct mlo_error *err)
{
    struct mlo_buf takes = MLO_BUF_INIT, makes = MLO_BUF_INIT;
    for (int i = 0; i < p->inputs; i++)
        mlo_buf_printf(&takes, "%s'%s'", i ? ", " : "", mlo_model_input(p->model, i)->name);
    for (int i = 0; i < graph->output_count; i++)
        mlo_buf_printf(&makes, "%s'%s'", i ? ", " : "", graph->outputs[i]->name);
    mlo_error_set(err, MLO_EINVAL,
                  "its inputs are %s, the model's outputs %s: neither the same names nor as many",
                  mlo_buf_str(&takes), mlo_buf_str(&makes));
    mlo_error_hint(err, "name the inputs of the postprocessing model like the outputs that they read");
    mlo_buf_clear(&takes);
    mlo_buf_clear(&makes);
    return MLO_EINVAL;
}

/* By name where each input is named like an output; else by position where there are as many. */
static enum mlo_status match(struct post *p, const struct mlo_graph *graph, struct mlo_error *err)
{
    bool named = true;
    p->inputs = mlo_model_input_count(p->model);
    if (!p->inputs)
        return mlo_error_set(err, MLO_EINVAL, "it has no inputs: it reads none of the model's outputs");
    p->from = calloc((size_t)p->inputs, sizeof *p->from);
    if (!p->from)
        return mlo_error_nomem(err);
    for (int i = 0; i < p->inputs; i++) {
        p->from[i] = output_named(graph, mlo_model_input(p->model, i)->name);
        named &= p->from[i] >= 0;
    }
    if (!named && p->inputs != graph->output_count)
        return no_match(p, graph, err);
    for (int i = 0; i < p->inputs && !named; i++)
        p->from[i] = i;
    return MLO_OK;
}

/* --- running --------------------------------------------------------------------------------------- */

static enum mlo_status keep(const struct mlo_tensor *part, const char *name, int64_t at, int64_t rows,
                            int64_t samples, struct mlo_tensor *all, struct mlo_error *err)
{
    char text[160];
    if (part->rank < 1 || part->dims[0] != rows)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "its output '%s' is %s for %lld samples: it has no row per sample", name,
                             mlo_tensor_describe(part, text, sizeof text), (long long)rows);
    if (!all->data) {
        int64_t dims[MLO_MAX_RANK];
        memcpy(dims, part->dims, sizeof dims);
        dims[0] = samples;
        enum mlo_status status = mlo_tensor_init(all, part->dtype, part->rank, dims, err);
        if (status != MLO_OK)
            return status;
    }
    if (all->rank != part->rank || all->dtype != part->dtype ||
        memcmp(all->dims + 1, part->dims + 1, (size_t)(all->rank - 1) * sizeof *all->dims) != 0)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "its output '%s' changes its shape from sample to sample, to %s", name,
                             mlo_tensor_describe(part, text, sizeof text));
    size_t row = part->size_bytes / (size_t)rows;
    memcpy((char *)all->data + (size_t)at * row, part->data, part->size_bytes);
    return MLO_OK;
}

/* One chunk through a program made for its shapes. */
static enum mlo_status run_chunk(const struct post *p, const struct mlo_engine *engine,
                                 struct mlo_program *program, const struct mlo_tensor *before, int64_t at,
                                 int64_t rows, int64_t samples, struct mlo_tensor *after,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *graph = p->model->graph;
    struct mlo_tensor *in = calloc((size_t)p->inputs, sizeof *in),
                      *out = calloc((size_t)graph->output_count + 1, sizeof *out);
    if (!in || !out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < p->inputs; i++)
        in[i] = mlo_tensor_rows(&before[p->from[i]], at, rows);
    MLO_TRY(engine->run(program, in, out, err));
    for (int o = 0; o < graph->output_count; o++)
        MLO_TRY(keep(&out[o], graph->outputs[o]->name, at, rows, samples, &after[o], err));
out:
    free(in);
    mlo_outputs_free(out, graph->output_count);
    return status;
}

/* The postprocessing model for chunks of so many rows, its dims those of the outputs. */
static enum mlo_status bound(const struct post *p, const struct mlo_tensor *before, int64_t rows,
                             struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor *in = calloc((size_t)p->inputs, sizeof *in);
    *out = NULL;
    if (!in)
        return mlo_error_nomem(err);
    for (int i = 0; i < p->inputs; i++)
        in[i] = mlo_tensor_rows(&before[p->from[i]], 0, rows);
    MLO_TRY(mlo_model_clone_borrowing(p->model, out, err));
    MLO_TRY(mlo_graph_bind_inputs((*out)->graph, in, (size_t)p->inputs, err));
out:
    free(in);
    return status;
}

static enum mlo_status run_all(const struct post *p, const struct mlo_tensor *before, int64_t samples,
                               unsigned threads, struct mlo_tensor *after, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine;
    struct mlo_model *model = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    int64_t fixed, made_for = 0;
    MLO_TRY(mlo_engine_find("cpu", &engine, err));
    MLO_TRY(mlo_model_fixed_batch(p->model, &fixed, err));
    if (fixed && samples % fixed) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "its batch is fixed at %lld, of which %lld samples are no multiple",
                               (long long)fixed, (long long)samples);
        mlo_error_hint(err, "leave its batch open, or fix it at 1");
        goto out;
    }
    for (int64_t at = 0, rows; at < samples; at += rows) {
        rows = fixed ? fixed : MLO_MIN(samples - at, (int64_t)CHUNK);
        if (rows != made_for) {
            if (program)
                engine->unload(program);
            if (plan)
                engine->free_plan(plan);
            program = NULL;
            plan = NULL;
            mlo_model_free(model);
            MLO_TRY(bound(p, before, rows, &model, err));
            const struct mlo_compile_options options = {
                .numerics = MLO_NUMERICS_INVARIANT, .threads = MLO_MAX(threads, 1u), .batch = rows};
            MLO_TRY(engine->compile(model, &options, &plan, err));
            MLO_TRY(engine->load(plan, &program, err));
            made_for = rows;
        }
        MLO_TRY(run_chunk(p, engine, program, before, at, rows, samples, after, err));
    }
out:
    if (program)
        engine->unload(program);
    if (plan)
        engine->free_plan(plan);
    mlo_model_free(model);
    return status;
}

static void post_clear(struct post *p)
{
    mlo_model_free(p->model);
    free(p->from);
}

static enum mlo_status post_open(struct post *p, const char *path, const struct mlo_model *model,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_sparse_load(path, &p->model, err));
    MLO_TRY(mlo_graph_check_supported(p->model->graph, err));
    MLO_TRY(match(p, model->graph, err));
out:
    return status;
}

/* Replaces the model's outputs by what is made of them. */
static enum mlo_status post_apply(const struct post *p, unsigned threads, struct mlo_tensor **outputs,
                                  int *count, struct mlo_error *err)
{
    int made = p->model->graph->output_count;
    struct mlo_tensor *after = calloc((size_t)made + 1, sizeof *after);
    if (!after)
        return mlo_error_nomem(err);
    enum mlo_status status = run_all(p, *outputs, (*outputs)[p->from[0]].dims[0], threads, after, err);
    if (status != MLO_OK) {
        mlo_outputs_free(after, made);
        return status;
    }
    mlo_outputs_free(*outputs, *count);
    *outputs = after;
    *count = made;
    return MLO_OK;
}

struct mlo_evaluator {
    const struct mlo_model *model;
    struct mlo_runner *runner;
    struct post post;
    const char *path; /* of the postprocessing model; NULL: none */
    unsigned threads;
    int64_t multiple;
};

void mlo_evaluator_close(struct mlo_evaluator *e)
{
    if (!e)
        return;
    mlo_runner_close(e->runner);
    post_clear(&e->post);
    free(e);
}

static enum mlo_status of_post(const struct mlo_evaluator *e, enum mlo_status status, struct mlo_error *err)
{
    if (status != MLO_OK)
        mlo_error_prefix(err, "the postprocessing model %s", mlo_fs_basename(e->path));
    return status;
}

enum mlo_status mlo_evaluator_open(const struct mlo_model *model, struct mlo_dataset *dataset,
                                   const struct mlo_run_options *options, struct mlo_evaluator **out,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_evaluator *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e)
        return mlo_error_nomem(err);
    e->model = model;
    e->path = mlo_dataset_postprocess(dataset);
    e->threads = options ? options->threads : 1;
    e->multiple = 1;
    if (e->path) {
        MLO_TRY(of_post(e, post_open(&e->post, e->path, model, err), err));
        MLO_TRY(of_post(e, mlo_model_fixed_batch(e->post.model, &e->multiple, err), err));
        e->multiple = MLO_MAX(e->multiple, (int64_t)1);
    }
    MLO_TRY(mlo_runner_open(model, dataset, options, &e->runner, err));
    *out = e;
    e = NULL;
out:
    mlo_evaluator_close(e);
    return status;
}

int64_t mlo_evaluator_multiple(const struct mlo_evaluator *evaluator)
{
    return evaluator->multiple;
}

const struct mlo_graph *mlo_evaluator_graph(const struct mlo_evaluator *evaluator)
{
    return evaluator->path ? evaluator->post.model->graph : evaluator->model->graph;
}

enum mlo_status mlo_evaluator_run(struct mlo_evaluator *e, int64_t begin, int64_t count,
                                  struct mlo_tensor **outputs, int *output_count, mlo_progress_fn *progress,
                                  void *progress_arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    *output_count = e->model->graph->output_count;
    *outputs = calloc((size_t)*output_count + 1, sizeof **outputs);
    if (!*outputs)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_runner_run(e->runner, begin, count, *outputs, progress, progress_arg, err));
    if (e->path)
        MLO_TRY(of_post(e, post_apply(&e->post, e->threads, outputs, output_count, err), err));
out:
    if (status != MLO_OK) {
        mlo_outputs_free(*outputs, *output_count);
        *outputs = NULL;
        *output_count = 0;
    }
    return status;
}

enum mlo_status mlo_run_evaluation(const struct mlo_model *model, struct mlo_dataset *dataset,
                                   const struct mlo_run_options *options, struct mlo_tensor **outputs,
                                   int *count, mlo_progress_fn *progress, void *progress_arg,
                                   struct mlo_error *err)
{
    struct mlo_evaluator *evaluator;
    *outputs = NULL;
    *count = 0;
    enum mlo_status status = mlo_evaluator_open(model, dataset, options, &evaluator, err);
    if (status != MLO_OK)
        return status;
    status = mlo_evaluator_run(evaluator, 0, mlo_runner_samples(evaluator->runner), outputs, count, progress,
                               progress_arg, err);
    mlo_evaluator_close(evaluator);
    return status;
}
