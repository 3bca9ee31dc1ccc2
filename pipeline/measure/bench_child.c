/* One side of a benchmark, in a process of its own. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "passes/sparsify.h"
#include "pipeline/measure/bench_impl.h"
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
        if (mlo_holds_values(input->type.dtype))
            return mlo_error_set(err, MLO_EUNSUPPORTED, "model input '%s' is no tensor", input->name);
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

/* Every call is timed; of more than are kept a uniform random choice is (reservoir sampling, Vitter's
 * algorithm R), so that a fast model is watched for the whole time and its report stays small. */
static enum mlo_status time_runs(const struct mlo_bench_loaded *l, struct mlo_program *program,
                                 struct mlo_tensor *outputs, const struct mlo_timing_request *r,
                                 struct mlo_timing *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rng rng;
    double end = now_us() + r->warm_up_seconds * 1e6;
    *out = (struct mlo_timing){.samples_us = malloc(r->max_samples * sizeof *out->samples_us)};
    if (!out->samples_us)
        return mlo_error_nomem(err);
    mlo_rng_seed(&rng, RESERVOIR_SEED);
    for (uint64_t i = 0; i < r->warm_up_calls || now_us() < end; i++)
        MLO_TRY(l->engine->run(program, l->inputs, outputs, err));
    end = now_us() + r->seconds * 1e6;
    while (out->calls < r->min_calls || now_us() < end) {
        uint64_t start_ns = r->cpu_clock ? mlo_clock_cpu_ns() : mlo_clock_ns();
        status = l->engine->run(program, l->inputs, outputs, err);
        uint64_t end_ns = r->cpu_clock ? mlo_clock_cpu_ns() : mlo_clock_ns();
        double took_us = (double)(end_ns - start_ns) / 1000;
        if (status != MLO_OK)
            goto out;
        uint64_t slot = out->calls < r->max_samples ? out->calls : mlo_rng_below(&rng, out->calls + 1);
        if (slot < r->max_samples)
            out->samples_us[slot] = took_us;
        out->calls++;
    }
    out->count = (size_t)MLO_MIN(out->calls, (uint64_t)r->max_samples);
out:
    return status;
}

enum mlo_status mlo_bench_time(const struct mlo_bench_loaded *l, struct mlo_program *program,
                               struct mlo_tensor *outputs, const struct mlo_timing_request *r,
                               struct mlo_timing *out, struct mlo_error *err)
{
    return l->engine->time ? l->engine->time(program, l->inputs, r, out, err)
                           : time_runs(l, program, outputs, r, out, err);
}

static enum mlo_status report_timing(const struct mlo_bench_loaded *l, const struct mlo_bench_options *o,
                                     json_t *report, struct mlo_error *err)
{
    double seconds = o->seconds > 0 ? o->seconds : 1;
    struct mlo_timing_request request = {.warm_up_seconds = seconds * WARM_UP_SHARE,
                                         .seconds = seconds,
                                         .warm_up_calls = WARM_UP_CALLS,
                                         .min_calls = MIN_CALLS,
                                         .max_samples = KEPT_CALLS,
                                         .cpu_clock = o->cpu_clock};
    struct mlo_timing timing = {0};
    json_t *samples = json_array();
    unsigned together = MLO_MAX(o->concurrency, 1u);
    double throughput = 0;
    enum mlo_status status = together > 1
                                 ? mlo_bench_time_together(l, together, &request, &timing, &throughput, err)
                                 : mlo_bench_time(l, l->program, l->outputs, &request, &timing, err);
    for (size_t i = 0; status == MLO_OK && i < timing.count; i++)
        if (json_array_append_new(samples, json_real(timing.samples_us[i])) != 0)
            status = mlo_error_nomem(err);
    uint64_t rss = timing.peak_rss_bytes ? timing.peak_rss_bytes : peak_rss_bytes();
    json_object_set_new(report, "samples", samples);
    if (together > 1) {
        json_object_set_new(report, "concurrency", json_integer(together));
        json_object_set_new(report, "throughput", json_real(throughput));
    }
    json_object_set_new(report, "calls", json_integer((json_int_t)timing.calls));
    json_object_set_new(report, "peak_rss_bytes", json_integer((json_int_t)rss));
    free(timing.samples_us);
    return status;
}

void mlo_bench_close(struct mlo_bench_loaded *l)
{
    if (l->program)
        l->engine->unload(l->program);
    if (l->plan)
        l->engine->free_plan(l->plan);
    for (int i = 0; l->inputs && i < l->input_count; i++)
        mlo_tensor_clear(&l->inputs[i]);
    for (int i = 0; l->outputs && i < l->output_count; i++)
        mlo_tensor_clear(&l->outputs[i]);
    free(l->inputs);
    free(l->outputs);
    mlo_model_free(l->model);
    mlo_plan_close(l->file);
}

/* A plan out of a file: its engine, threads and batch are what it was compiled with. */
static enum mlo_status open_plan(const char *path, const struct mlo_bench_options *o,
                                 struct mlo_bench_loaded *l, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_plan_open(path, NULL, &l->file, err));
    unsigned threads = mlo_plan_file_threads(l->file);
    const struct mlo_engine *engine = mlo_plan_file_engine(l->file);
    if ((o->engine && o->engine != engine) || threads != l->threads) {
        status = mlo_error_set(err, MLO_EINVAL, "the plan was compiled for %u thread%s of the engine %s",
                               threads, threads == 1 ? "" : "s", engine->name);
        mlo_error_hint(err, "use --threads %u --engine %s, or compile the model for what you want", threads,
                       engine->name);
        goto out;
    }
    l->engine = engine;
    MLO_TRY(mlo_model_clone(mlo_plan_file_model(l->file), &l->model, err));
out:
    return status;
}

enum mlo_status mlo_bench_open(const char *path, const struct mlo_bench_options *o,
                               struct mlo_bench_loaded *l, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t fixed;
    *l = (struct mlo_bench_loaded){.engine = o->engine, .batch = o->batch > 0 ? o->batch : 1};
    l->threads = MLO_MAX(o->threads, 1u);
    pin(l->threads * MLO_MAX(o->concurrency, 1u)); /* before the engine starts threads, which inherit it */
    if (!l->engine)
        MLO_TRY(mlo_engine_find("cpu", &l->engine, err));
    if (!l->engine->time) /* one that has it starts a process: compile says it as well */
        MLO_TRY(l->engine->probe(err));
    if (mlo_plan_is_file(path))
        MLO_TRY(open_plan(path, o, l, err));
    else
        MLO_TRY(mlo_sparse_load(path, &l->model, err));
    MLO_TRY(mlo_model_fixed_batch(l->model, &fixed, err));
    if (fixed && fixed != l->batch) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "the model's batch is fixed at %lld: it cannot be measured at %lld",
                               (long long)fixed, (long long)l->batch);
        mlo_error_hint(err, "use --batch %lld, or export the model with a dynamic batch axis",
                       (long long)fixed);
        goto out;
    }
    MLO_TRY(mlo_model_bind_dims(l->model, o->dims, o->dim_count, l->batch, err));
    l->input_count = mlo_model_input_count(l->model);
    l->output_count = l->model->graph->output_count;
    l->inputs = calloc((size_t)l->input_count + 1, sizeof *l->inputs);
    l->outputs = calloc((size_t)l->output_count + 1, sizeof *l->outputs);
    if (!l->inputs || !l->outputs) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(make_inputs(l->model, l->inputs, err));
    struct mlo_compile_options compile = {
        .batch = l->batch, .numerics = MLO_NUMERICS_FAST, .threads = l->threads};
    if (!l->file)
        MLO_TRY(l->engine->compile(l->model, &compile, &l->plan, err));
    l->ready = l->file ? mlo_plan_file_plan(l->file) : l->plan;
    MLO_TRY(l->engine->load(l->ready, &l->program, err));
out:
    return status;
}

static enum mlo_status measure(const char *path, const struct mlo_bench_options *o, json_t *report,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_bench_loaded l;
    double start_us = now_us();
    MLO_TRY(mlo_bench_open(path, o, &l, err));
    json_object_set_new(report, "start_us", json_real(now_us() - start_us));
    MLO_TRY(report_timing(&l, o, report, err));
    json_object_set_new(report, "protocol", json_string(MLO_BENCH_PROTOCOL));
    json_object_set_new(report, "engine", json_string(l.engine->version()));
    json_object_set_new(report, "batch", json_integer(l.batch));
    json_object_set_new(report, "threads", json_integer(l.threads));
out:
    mlo_bench_close(&l);
    return status;
}

enum mlo_status mlo_profile(const char *path, const struct mlo_bench_options *options, json_t **out,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_bench_loaded l;
    size_t timed = 0;
    double total = 0;
    json_t *description = NULL;
    cpu_set_t own; /* what this process measures next chooses among all that it had */
    bool pinned = sched_getaffinity(0, sizeof own, &own) == 0;
    MLO_TRY(mlo_bench_open(path, options, &l, err));
    if (l.engine->profile)
        MLO_TRY(l.engine->profile(l.program, l.inputs, MLO_PROFILE_CALLS, &description, err));
    else
        MLO_TRY(l.engine->describe(l.ready, &description, err));
    const json_t *nodes = json_object_get(description, "nodes");
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *us = json_object_get(json_array_get(nodes, i), "us");
        timed += us != NULL;
        total += json_number_value(us);
    }
    if (!timed) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the engine '%s' does not tell how long its nodes take",
                               l.engine->name);
        goto out;
    }
    json_object_set_new(description, "total_us", json_real(total));
    struct mlo_peaks peaks; /* the roof of this machine says nothing of an engine that runs elsewhere; plans'
                               files hold no graph */
    if (!options->no_roof && !l.engine->time && !l.engine->measure && !l.file &&
        mlo_peaks_measure(l.threads, &peaks, NULL) == MLO_OK)
        MLO_TRY(mlo_roofline(description, l.model, &peaks, err));
    *out = description;
    description = NULL;
out:
    json_decref(description);
    mlo_bench_close(&l);
    if (pinned)
        sched_setaffinity(0, sizeof own, &own);
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
    struct mlo_binding dims[32];
    char names[32][96];
    struct mlo_bench_options o = {.batch = 1, .threads = 1, .seconds = 1, .dims = dims};
    enum mlo_status status = MLO_OK;
    if (argc < 1 || argc % 2 == 0)
        return mlo_error_set(err, MLO_EUSAGE, "bench-child takes a model and pairs of option and value");
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1], *wants = "a number above 0";
        int64_t n = 0;
        bool ok = true;
        if (strcmp(name, "--engine") == 0) {
            MLO_TRY(mlo_engine_find(value, &o.engine, err));
        } else if (strcmp(name, "--batch") == 0) {
            ok = mlo_str_to_i64(value, &o.batch) && o.batch >= 1;
        } else if (strcmp(name, "--threads") == 0) {
            ok = mlo_str_to_i64(value, &n) && n >= 1 && n <= 4096;
            o.threads = (unsigned)n;
        } else if (strcmp(name, "--concurrency") == 0) {
            ok = mlo_str_to_i64(value, &n) && n >= 1 && n <= 4096;
            o.concurrency = (unsigned)n;
        } else if (strcmp(name, "--dim") == 0) {
            const char *equals = strrchr(value, '=');
            size_t len = equals ? (size_t)(equals - value) : 0;
            wants = "NAME=NUMBER";
            ok = o.dim_count < MLO_COUNT(dims) && len && len < sizeof names[0] &&
                 mlo_str_to_i64(equals + 1, &n) && n >= 0;
            if (ok) {
                snprintf(names[o.dim_count], sizeof names[0], "%.*s", (int)len, value);
                dims[o.dim_count] = (struct mlo_binding){names[o.dim_count], n};
                o.dim_count++;
            }
        } else if (strcmp(name, "--clock") == 0) {
            o.cpu_clock = strcmp(value, "cpu") == 0;
            ok = o.cpu_clock || strcmp(value, "wall") == 0;
            wants = "wall or cpu";
        } else if (strcmp(name, "--seconds") == 0) {
            ok = mlo_str_to_f64(value, &o.seconds) && o.seconds > 0;
        } else {
            return mlo_error_set(err, MLO_EUSAGE, "bench-child has no option '%s'", name);
        }
        if (!ok)
            return mlo_error_set(err, MLO_EUSAGE, "bench-child: %s must be %s, not '%s'", name, wants, value);
    }
    status = mlo_bench_child(argv[0], &o, stdout_fd, err);
out:
    return status;
}
