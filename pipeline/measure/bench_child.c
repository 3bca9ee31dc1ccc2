/* One side of a benchmark, in a process of its own. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pipeline/measure/cpus_impl.h"
#include "pipeline/measure/inputs_impl.h"
#include "pipeline/measure/measure.h"
#include "pipeline/measure/random_impl.h"

enum {
    WARM_UP_CALLS = 3,  /* at least, */
    MIN_CALLS = 10,     /* however long one takes */
    KEPT_CALLS = 20000, /* samples in the report */
};
static const double WARM_UP_SHARE = 0.1; /* of the measuring time */
static const uint64_t INPUT_SEED = 20260101, RESERVOIR_SEED = 20260102;

static double now_us(void)
{
    return (double)mlo_clock_ns() / 1000;
}

/* Finite and harmless for any op: floats in [-1, 1), bytes over their whole range (images), other integers
 * and bools 0 or 1, which is a valid index wherever there are two of something. */
static void fill_input(struct mlo_tensor *tensor, struct mlo_rng *rng)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(tensor->dtype);
    for (size_t i = 0, n = mlo_tensor_count(tensor); i < n; i++) {
        double v = info->is_float ? mlo_rng_unit(rng) * 2 - 1 : (double)mlo_rng_below(rng, 2);
        if (tensor->dtype == MLO_UINT8)
            v = (double)mlo_rng_below(rng, 256);
        mlo_tensor_set_f64(tensor, i, v);
    }
}

static enum mlo_status make_inputs(const struct mlo_model *model, struct mlo_tensor *inputs,
                                   struct mlo_error *err)
{
    struct mlo_rng rng;
    mlo_rng_seed(&rng, INPUT_SEED);
    for (int i = 0, n = mlo_model_input_count(model); i < n; i++) {
        const struct mlo_value *input = mlo_model_input(model, i);
        int64_t dims[MLO_MAX_RANK];
        char text[160];
        if (input->type.rank < 0 || !mlo_type_static(&input->type, dims)) {
            mlo_error_set(err, MLO_EUNSUPPORTED,
                          "model input '%s' (%s) has open dimensions besides the batch", input->name,
                          mlo_type_describe(&input->type, text, sizeof text));
            mlo_error_hint(err, "export the model with the sizes it will run with");
            return MLO_EUNSUPPORTED;
        }
        enum mlo_status status = mlo_tensor_init(&inputs[i], input->type.dtype, input->type.rank, dims, err);
        if (status != MLO_OK)
            return status;
        fill_input(&inputs[i], &rng);
    }
    return MLO_OK;
}

/* The highest resident size this program has had since exec. (getrusage would count its parent's at the
 * fork.) */
static uint64_t peak_rss_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

static void pin(unsigned threads)
{
    cpu_set_t cpus;
    if (mlo_cpus_choose(threads, &cpus)) /* a refusal leaves it where it may run: slower, not wrong */
        sched_setaffinity(0, sizeof cpus, &cpus);
}

struct timed {
    const struct mlo_engine *engine;
    struct mlo_program *program;
    const struct mlo_tensor *inputs;
    struct mlo_tensor *outputs;
};

/* Every call is timed; of more than KEPT_CALLS a uniform random choice is kept (reservoir sampling, Vitter's
 * algorithm R), so that a fast model is watched for the whole time and its report stays small. */
static enum mlo_status time_calls(const struct timed *t, double seconds, json_t *report,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *samples = json_object_get(report, "samples");
    struct mlo_rng rng;
    uint64_t calls = 0;
    double *us = malloc(KEPT_CALLS * sizeof *us);
    double end = now_us() + seconds * WARM_UP_SHARE * 1e6;
    if (!us)
        return mlo_error_nomem(err);
    mlo_rng_seed(&rng, RESERVOIR_SEED);
    for (int i = 0; i < WARM_UP_CALLS || now_us() < end; i++)
        MLO_TRY(t->engine->run(t->program, t->inputs, t->outputs, err));
    end = now_us() + seconds * 1e6;
    while (calls < MIN_CALLS || now_us() < end) {
        uint64_t start_ns = mlo_clock_ns();
        status = t->engine->run(t->program, t->inputs, t->outputs, err);
        double took_us = (double)(mlo_clock_ns() - start_ns) / 1000;
        if (status != MLO_OK)
            goto out;
        uint64_t slot = calls < KEPT_CALLS ? calls : mlo_rng_below(&rng, calls + 1);
        if (slot < KEPT_CALLS)
            us[slot] = took_us;
        calls++;
    }
    for (uint64_t i = 0; i < MLO_MIN(calls, (uint64_t)KEPT_CALLS); i++)
        if (json_array_append_new(samples, json_real(us[i])) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
    json_object_set_new(report, "calls", json_integer((json_int_t)calls));
out:
    free(us);
    return status;
}

static enum mlo_status measure(const char *path, const struct mlo_bench_options *o, json_t *report,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *model = NULL;
    struct mlo_plan *plan = NULL;
    struct timed t = {.engine = o->engine};
    struct mlo_tensor *inputs = NULL;
    int input_count = 0, output_count = 0;
    int64_t fixed, batch = o->batch > 0 ? o->batch : 1;
    unsigned threads = MLO_MAX(o->threads, 1u);
    json_t *samples = json_array();
    json_object_set_new(report, "samples", samples);
    pin(threads); /* before the engine starts threads, which inherit it */
    if (!t.engine)
        MLO_TRY(mlo_engine_find("cpu", &t.engine, err));
    MLO_TRY(t.engine->probe(err));
    MLO_TRY(mlo_onnx_load(path, &model, err));
    MLO_TRY(mlo_model_fixed_batch(model, &fixed, err));
    if (fixed && fixed != batch) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "the model's batch is fixed at %lld: it cannot be measured at %lld",
                               (long long)fixed, (long long)batch);
        mlo_error_hint(err, "use --batch %lld, or export the model with a dynamic batch axis",
                       (long long)fixed);
        goto out;
    }
    if (!fixed)
        MLO_TRY(mlo_graph_bind_batch(model->graph, batch, err));
    input_count = mlo_model_input_count(model);
    output_count = model->graph->output_count;
    inputs = calloc((size_t)input_count + 1, sizeof *inputs);
    t.outputs = calloc((size_t)output_count + 1, sizeof *t.outputs);
    if (!inputs || !t.outputs || !samples) {
        status = mlo_error_nomem(err);
        goto out;
    }
    t.inputs = inputs;
    MLO_TRY(make_inputs(model, inputs, err));
    struct mlo_compile_options compile = {.batch = batch, .numerics = MLO_NUMERICS_FAST, .threads = threads};
    MLO_TRY(t.engine->compile(model, &compile, &plan, err));
    MLO_TRY(t.engine->load(plan, &t.program, err));
    MLO_TRY(time_calls(&t, o->seconds > 0 ? o->seconds : 1, report, err));
    json_object_set_new(report, "protocol", json_string(MLO_BENCH_PROTOCOL));
    json_object_set_new(report, "engine", json_string(t.engine->version()));
    json_object_set_new(report, "batch", json_integer(batch));
    json_object_set_new(report, "threads", json_integer(threads));
    json_object_set_new(report, "peak_rss_bytes", json_integer((json_int_t)peak_rss_bytes()));
out:
    if (t.program)
        t.engine->unload(t.program);
    if (plan)
        t.engine->free_plan(plan);
    for (int i = 0; inputs && i < input_count; i++)
        mlo_tensor_clear(&inputs[i]);
    for (int i = 0; t.outputs && i < output_count; i++)
        mlo_tensor_clear(&t.outputs[i]);
    free(inputs);
    free(t.outputs);
    mlo_model_free(model);
    return status;
}

/* A failure goes to the parent as JSON too, so that it can report it as its own. */
static json_t *error_report(const struct mlo_error *e)
{
    return json_pack("{s:{s:s,s:s,s:s,s:s}}", "error", "code", mlo_status_info(e->status)->code, "message",
                     e->message, "where", e->where, "hint", e->hint);
}

enum mlo_status mlo_bench_child(const char *path, const struct mlo_bench_options *options, int stdout_fd,
                                struct mlo_error *err)
{
    struct mlo_error local = {0}, *e = err ? err : &local;
    json_t *report = json_object();
    enum mlo_status status = report ? measure(path, options, report, e) : mlo_error_nomem(e);
    if (status != MLO_OK) {
        json_decref(report);
        report = error_report(e);
    }
    char *text = report ? json_dumps(report, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(report);
    if (!text)
        return status != MLO_OK ? status : mlo_error_nomem(err);
    if (!mlo_fs_write_full(stdout_fd, text, strlen(text)) && status == MLO_OK)
        status = mlo_error_set(err, MLO_EIO, "cannot write the benchmark's report");
    free(text);
    return status;
}

enum mlo_status mlo_bench_child_args(int argc, char *const *argv, int stdout_fd, struct mlo_error *err)
{
    struct mlo_bench_options o = {.batch = 1, .threads = 1, .seconds = 1};
    enum mlo_status status = MLO_OK;
    if (argc < 1 || argc % 2 == 0)
        return mlo_error_set(err, MLO_EUSAGE, "bench-child takes a model and pairs of option and value");
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        int64_t n = 0;
        bool ok = true;
        if (strcmp(name, "--engine") == 0) {
            MLO_TRY(mlo_engine_find(value, &o.engine, err));
        } else if (strcmp(name, "--batch") == 0) {
            ok = mlo_str_to_i64(value, &o.batch) && o.batch >= 1;
        } else if (strcmp(name, "--threads") == 0) {
            ok = mlo_str_to_i64(value, &n) && n >= 1 && n <= 4096;
            o.threads = (unsigned)n;
        } else if (strcmp(name, "--seconds") == 0) {
            ok = mlo_str_to_f64(value, &o.seconds) && o.seconds > 0;
        } else {
            return mlo_error_set(err, MLO_EUSAGE, "bench-child has no option '%s'", name);
        }
        if (!ok)
            return mlo_error_set(err, MLO_EUSAGE, "bench-child: %s must be a number above 0, not '%s'", name,
                                 value);
    }
    status = mlo_bench_child(argv[0], &o, stdout_fd, err);
out:
    return status;
}
