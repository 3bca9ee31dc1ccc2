#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/inputs_impl.h"
#include "pipeline/measure/run_impl.h"

enum { DEFAULT_BATCH = 32 };
static const uint64_t OUTPUT_BYTES_MAX = (uint64_t)16 << 30;

struct mlo_runner {
    const struct mlo_engine *engine;
    const struct mlo_model *model; /* as fed; compiled is this, or a copy without open dims */
    struct mlo_model *fitted;      /* NULL: nothing was open */
    struct mlo_dataset *dataset;
    struct mlo_compile_options options;
    struct mlo_plan *plan, *given; /* given: the caller's, run as it is */
    struct mlo_program *program;
    int input_count, output_count;
    int64_t samples;                           /* of the dataset, or as many of them as were asked for */
    int64_t fixed, batch;                      /* fixed: what the model's shapes fix; 0: nothing */
    struct mlo_tensor *inputs, *batch_outputs; /* of one batch */
};

static void unload(struct mlo_runner *r)
{
    if (r->program)
        r->engine->unload(r->program);
    if (r->plan)
        r->engine->free_plan(r->plan);
    r->program = NULL;
    r->plan = NULL;
}

/* Compiles for a batch size, unless that is what is loaded. */
static enum mlo_status prepare(struct mlo_runner *r, int64_t batch, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (r->program && (r->given || r->options.batch == batch))
        return MLO_OK;
    if (r->given)
        return r->engine->load(r->given, &r->program, err);
    unload(r);
    r->options.batch = batch;
    MLO_TRY(r->engine->compile(r->fitted ? r->fitted : r->model, &r->options, &r->plan, err));
    MLO_TRY(r->engine->load(r->plan, &r->program, err));
out:
    return status;
}

/* Fills a fixed batch by repeating the last sample; what comes out for the copies is dropped. */
static enum mlo_status pad(struct mlo_tensor *tensor, int64_t batch, struct mlo_error *err)
{
    struct mlo_tensor full = {0};
    int64_t have = tensor->dims[0], dims[MLO_MAX_RANK];
    memcpy(dims, tensor->dims, sizeof dims);
    dims[0] = batch;
    enum mlo_status status = mlo_tensor_init(&full, tensor->dtype, tensor->rank, dims, err);
    if (status != MLO_OK)
        return status;
    size_t row = tensor->size_bytes / (size_t)have;
    memcpy(full.data, tensor->data, tensor->size_bytes);
    for (int64_t i = have; i < batch; i++)
        memcpy((char *)full.data + (size_t)i * row, (const char *)tensor->data + (size_t)(have - 1) * row,
               row);
    mlo_tensor_clear(tensor);
    *tensor = full;
    return MLO_OK;
}

/* Takes the first `rows` rows of one batch's output as samples `at`… of all. */
static enum mlo_status collect(const struct mlo_tensor *batch_output, int64_t batch, int64_t rows, int64_t at,
                               int64_t samples, const char *name, struct mlo_tensor *all,
                               struct mlo_error *err)
{
    char text[160];
    if (batch_output->rank < 1 || batch_output->dims[0] != batch)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "output '%s' is %s for a batch of %lld: it has no row per sample", name,
                             mlo_tensor_describe(batch_output, text, sizeof text), (long long)batch);
    size_t row = batch_output->size_bytes / (size_t)batch;
    if (!all->data) {
        int64_t dims[MLO_MAX_RANK];
        memcpy(dims, batch_output->dims, sizeof dims);
        dims[0] = samples;
        if (row && (uint64_t)samples > OUTPUT_BYTES_MAX / row) {
            mlo_error_set(err, MLO_ETOOBIG, "output '%s' of %lld samples takes more than 16 GiB", name,
                          (long long)samples);
            mlo_error_hint(err, "run fewer samples (--limit)");
            return MLO_ETOOBIG;
        }
        enum mlo_status status = mlo_tensor_init(all, batch_output->dtype, batch_output->rank, dims, err);
        if (status != MLO_OK)
            return status;
    }
    bool same =
        all->rank == batch_output->rank && all->dtype == batch_output->dtype &&
        memcmp(all->dims + 1, batch_output->dims + 1, (size_t)(all->rank - 1) * sizeof *all->dims) == 0;
    if (!same)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "output '%s' changes its shape from batch to batch, to %s", name,
                             mlo_tensor_describe(batch_output, text, sizeof text));
    memcpy((char *)all->data + (size_t)at * row, batch_output->data, (size_t)rows * row);
    return MLO_OK;
}

/* Samples [begin, begin+rows), which are rows `at`… of `total` in the outputs. */
static enum mlo_status run_batch(struct mlo_runner *r, int64_t begin, int64_t rows, int64_t batch, int64_t at,
                                 int64_t total, struct mlo_tensor *outputs, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_dataset_read(r->dataset, r->model, begin, rows, r->inputs, err));
    for (int i = 0; i < r->input_count && rows < batch; i++)
        MLO_TRY(pad(&r->inputs[i], batch, err));
    MLO_TRY(r->engine->run(r->program, r->inputs, r->batch_outputs, err));
    for (int o = 0; o < r->output_count; o++)
        MLO_TRY(collect(&r->batch_outputs[o], batch, rows, at, total, r->model->graph->outputs[o]->name,
                        &outputs[o], err));
out:
    for (int i = 0; i < r->input_count; i++)
        mlo_tensor_clear(&r->inputs[i]);
    return status;
}

enum mlo_status mlo_runner_run(struct mlo_runner *r, int64_t begin, int64_t count, struct mlo_tensor *outputs,
                               mlo_progress_fn *progress, void *progress_arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < r->output_count; i++)
        outputs[i] = (struct mlo_tensor){0};
    for (int64_t at = 0; at < count; at += r->batch) {
        int64_t rows = MLO_MIN(r->batch, count - at);
        int64_t size = r->fixed ? r->fixed : rows; /* a free batch gets a plan of its own for the rest */
        MLO_TRY(prepare(r, size, err));
        MLO_TRY(run_batch(r, begin + at, rows, size, at, count, outputs, err));
        if (progress) {
            char text[96];
            snprintf(text, sizeof text, "%lld of %lld samples", (long long)(at + rows), (long long)count);
            progress(progress_arg, (double)(at + rows) / (double)count, text);
        }
    }
out:
    if (status != MLO_OK)
        for (int i = 0; i < r->output_count; i++)
            mlo_tensor_clear(&outputs[i]);
    return status;
}

int64_t mlo_runner_samples(const struct mlo_runner *runner)
{
    return runner->samples;
}

void mlo_runner_close(struct mlo_runner *r)
{
    if (!r)
        return;
    unload(r);
    mlo_model_free(r->fitted);
    for (int i = 0; r->batch_outputs && i < r->output_count; i++)
        mlo_tensor_clear(&r->batch_outputs[i]);
    free(r->inputs);
    free(r->batch_outputs);
    free(r);
}

enum mlo_status mlo_runner_open(const struct mlo_model *model, struct mlo_dataset *dataset,
                                const struct mlo_run_options *options, struct mlo_runner **out,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    static const struct mlo_run_options defaults = {0};
    const struct mlo_run_options *o = options ? options : &defaults;
    struct mlo_runner *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return mlo_error_nomem(err);
    r->engine = o->engine;
    r->model = model;
    r->dataset = dataset;
    r->given = o->plan;
    r->options = (struct mlo_compile_options){.numerics = o->numerics, .threads = MLO_MAX(o->threads, 1u)};
    r->samples = mlo_dataset_count(dataset);
    if (o->samples > 0)
        r->samples = MLO_MIN(r->samples, o->samples);
    r->input_count = mlo_model_input_count(model);
    r->output_count = model->graph->output_count;
    r->inputs = calloc((size_t)r->input_count + 1, sizeof *r->inputs);
    r->batch_outputs = calloc((size_t)r->output_count + 1, sizeof *r->batch_outputs);
    if (!r->inputs || !r->batch_outputs) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (!r->input_count) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the model has no inputs to feed data to");
        goto out;
    }
    if (r->given && !r->engine) {
        status = mlo_error_set(err, MLO_EINVAL, "a plan was given without its engine");
        goto out;
    }
    if (!r->engine)
        MLO_TRY(mlo_engine_find("cpu", &r->engine, err));
    MLO_TRY(r->engine->probe(err));
    MLO_TRY(mlo_dataset_check(dataset, model, err));
    MLO_TRY(mlo_dataset_fit(dataset, model, &r->fitted, err));
    MLO_TRY(mlo_model_fixed_batch(model, &r->fixed, err));
    r->batch = r->fixed ? r->fixed : o->batch > 0 ? o->batch : DEFAULT_BATCH;
    *out = r;
    r = NULL;
out:
    mlo_runner_close(r);
    return status;
}

enum mlo_status mlo_run_dataset(const struct mlo_model *model, struct mlo_dataset *dataset,
                                const struct mlo_run_options *options, struct mlo_tensor *outputs,
                                mlo_progress_fn *progress, void *progress_arg, struct mlo_error *err)
{
    struct mlo_runner *runner = NULL;
    for (int i = 0; i < model->graph->output_count; i++)
        outputs[i] = (struct mlo_tensor){0};
    enum mlo_status status = mlo_runner_open(model, dataset, options, &runner, err);
    if (status == MLO_OK)
        status = mlo_runner_run(runner, 0, runner->samples, outputs, progress, progress_arg, err);
    mlo_runner_close(runner);
    return status;
}
