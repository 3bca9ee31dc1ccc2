/* Engines that run another runtime in a child process: so that a variant is measured where it will run. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/external/external_impl.h"

enum { CALL_TIMEOUT_MS = 600000, TIMING_SAMPLES_MAX = 20000 };

struct mlo_plan {
    const struct ext_runtime *runtime;
    struct mlo_model *model; /* bound; its outputs are the model's, then what is observed */
    struct mlo_buf onnx;
    struct mlo_value **inputs, **observed;
    int input_count, output_count; /* outputs of the model, without what was added to observe it */
    size_t observed_count;
    unsigned threads;
    int64_t batch;
    pthread_mutex_t lock;
    struct ext_child *spare; /* has the model loaded: compile and describe leave it for the next load */
};

struct mlo_program {
    struct mlo_plan *plan;
    struct ext_child *child;
    struct mlo_tensor *extra; /* observed values, borrowed from a reply */
};

static void free_plan(struct mlo_plan *plan)
{
    if (!plan)
        return;
    ext_child_stop(plan->spare);
    mlo_model_free(plan->model);
    mlo_buf_clear(&plan->onnx);
    free(plan->inputs);
    free(plan->observed);
    pthread_mutex_destroy(&plan->lock);
    free(plan);
}

/* --- sessions ---------------------------------------------------------------------------------------- */

/* A child with the plan's model in it: the spare one, or a new one. */
static enum mlo_status session_open(struct mlo_plan *plan, struct ext_child **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct ext_reply reply = {0};
    pthread_mutex_lock(&plan->lock);
    struct ext_child *child = plan->spare;
    plan->spare = NULL;
    pthread_mutex_unlock(&plan->lock);
    if (!child) {
        MLO_TRY(ext_child_start(plan->runtime, &child, err));
        struct ext_bytes model = {plan->onnx.data, plan->onnx.len};
        MLO_TRY(ext_child_ask(child, "load", json_pack("{s:i}", "threads", (int)plan->threads), &model, 1,
                              CALL_TIMEOUT_MS, &reply, err));
    }
    *out = child;
    child = NULL;
out:
    ext_reply_clear(&reply);
    ext_child_stop(child);
    return status;
}

static void session_keep(struct mlo_plan *plan, struct ext_child *child)
{
    pthread_mutex_lock(&plan->lock);
    bool keep = !plan->spare && child->fd >= 0;
    if (keep)
        plan->spare = child;
    pthread_mutex_unlock(&plan->lock);
    if (!keep)
        ext_child_stop(child);
}

/* --- versions: known once an adapter has said hello --------------------------------------------------- */

static pthread_mutex_t version_lock = PTHREAD_MUTEX_INITIALIZER;

struct version {
    const struct ext_runtime *runtime;
    char text[128]; /* written once */
};

static const char *version_of(const struct version *v)
{
    pthread_mutex_lock(&version_lock);
    const char *text = v->text[0] ? v->text : v->runtime->name;
    pthread_mutex_unlock(&version_lock);
    return text;
}

static void version_learn(struct version *v, const struct ext_child *child)
{
    pthread_mutex_lock(&version_lock);
    if (!v->text[0])
        snprintf(v->text, sizeof v->text, "%s", child->version);
    pthread_mutex_unlock(&version_lock);
}

static enum mlo_status probe_runtime(struct version *v, struct mlo_error *err)
{
    struct ext_child *child;
    enum mlo_status status = ext_child_start(v->runtime, &child, err);
    if (status != MLO_OK) {
        if (err) /* whatever keeps it from starting: it cannot be used here */
            err->status = MLO_EUNAVAILABLE;
        return MLO_EUNAVAILABLE;
    }
    version_learn(v, child);
    ext_child_stop(child);
    return MLO_OK;
}

/* --- compile, load ----------------------------------------------------------------------------------- */

static enum mlo_status take_graph(struct mlo_plan *plan, const struct mlo_model *model,
                                  const struct mlo_compile_options *options, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_engine_bind(model, options, &plan->model, err));
    struct mlo_graph *g = plan->model->graph;
    for (int i = 0; i < g->input_count; i++)
        if (mlo_holds_values(g->inputs[i]->type.dtype)) {
            status = mlo_error_set(err, MLO_EUNSUPPORTED,
                                   "input '%s' is no tensor; other runtimes are fed with tensors",
                                   g->inputs[i]->name);
            goto out;
        }
    plan->inputs = calloc((size_t)g->input_count + 1, sizeof(struct mlo_value *));
    plan->observed = calloc(options->observe_count + 1, sizeof(struct mlo_value *));
    if (!plan->inputs || !plan->observed)
        return mlo_error_nomem(err);
    plan->input_count = mlo_engine_inputs(g, plan->inputs);
    plan->output_count = g->output_count;
    plan->observed_count = options->observe_count;
    MLO_TRY(mlo_engine_observed(g, options, plan->observed, err));
    for (size_t i = 0; i < plan->observed_count; i++)
        if (!plan->observed[i]->is_output && !plan->observed[i]->is_input && !plan->observed[i]->constant)
            MLO_TRY(mlo_graph_add_output(g, plan->observed[i], err));
    MLO_TRY(mlo_onnx_serialize(plan->model, &plan->onnx, err));
out:
    return status;
}

static enum mlo_status compile_runtime(struct version *v, const struct mlo_model *model,
                                       const struct mlo_compile_options *options, struct mlo_plan **out,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct ext_child *child;
    struct mlo_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return mlo_error_nomem(err);
    pthread_mutex_init(&plan->lock, NULL);
    plan->runtime = v->runtime;
    plan->threads = options->threads ? options->threads : 1;
    plan->batch = options->batch;
    MLO_TRY(take_graph(plan, model, options, err));
    MLO_TRY(session_open(plan, &child, err)); /* what the runtime refuses is said now */
    version_learn(v, child);
    session_keep(plan, child);
    *out = plan;
    plan = NULL;
out:
    free_plan(plan);
    return status;
}

static void unload(struct mlo_program *program)
{
    if (!program)
        return;
    if (program->child)
        session_keep(program->plan, program->child);
    free(program->extra);
    free(program);
}

static enum mlo_status load(struct mlo_plan *plan, struct mlo_program **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_program *program = calloc(1, sizeof *program);
    if (!program)
        return mlo_error_nomem(err);
    program->plan = plan;
    program->extra = calloc((size_t)plan->model->graph->output_count + 1, sizeof *program->extra);
    if (!program->extra) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(session_open(plan, &program->child, err));
    *out = program;
    program = NULL;
out:
    unload(program);
    return status;
}

/* --- run --------------------------------------------------------------------------------------------- */

static json_t *shape_json(const struct mlo_tensor *t)
{
    json_t *dims = json_array();
    for (int i = 0; i < t->rank; i++)
        json_array_append_new(dims, json_integer(t->dims[i]));
    return dims;
}

/* {"tensors": […]} for the inputs, and their bytes. */
static enum mlo_status describe_inputs(const struct mlo_plan *plan, const struct mlo_tensor *inputs,
                                       json_t **request, struct ext_bytes *parts, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *list = json_array();
    for (int i = 0; i < plan->input_count; i++) {
        MLO_TRY(mlo_engine_check_input(plan->inputs[i], &inputs[i], err));
        if (inputs[i].dtype == MLO_STRING) {
            status = mlo_error_set(err, MLO_EUNSUPPORTED, "input '%s' holds strings", plan->inputs[i]->name);
            goto out;
        }
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:o}", "name", plan->inputs[i]->name, "dtype",
                                        mlo_dtype_name(inputs[i].dtype), "dims", shape_json(&inputs[i])));
        parts[i] = (struct ext_bytes){inputs[i].data, inputs[i].size_bytes};
    }
    if (!(*request = json_pack("{s:O}", "tensors", list)))
        status = mlo_error_nomem(err);
out:
    json_decref(list);
    return status;
}

/* A tensor of the reply, borrowed from its payload. */
static enum mlo_status reply_tensor(const struct ext_reply *reply, const json_t *entry, size_t *at,
                                    struct mlo_tensor *out, struct mlo_error *err)
{
    const json_t *dims = json_object_get(entry, "dims");
    size_t rank = json_array_size(dims);
    *out = (struct mlo_tensor){.dtype = mlo_dtype_parse(mlo_json_str(entry, "dtype", "")), .rank = (int)rank};
    for (size_t i = 0; i < rank && i < MLO_MAX_RANK; i++)
        out->dims[i] = json_integer_value(json_array_get(dims, i));
    if (!json_is_array(dims) || rank > MLO_MAX_RANK || out->dtype == MLO_DTYPE_NONE ||
        out->dtype == MLO_STRING || !mlo_shape_bytes(out->dtype, out->rank, out->dims, &out->size_bytes) ||
        out->size_bytes > reply->payload_bytes - *at)
        return mlo_error_set(err, MLO_EFORMAT, "the adapter sent a tensor that cannot be read");
    out->data = reply->payload + *at;
    *at += out->size_bytes;
    return MLO_OK;
}

static enum mlo_status take_outputs(struct mlo_program *program, const struct ext_reply *reply,
                                    struct mlo_tensor *outputs, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_plan *plan = program->plan;
    const struct mlo_graph *g = plan->model->graph;
    const json_t *list = json_object_get(reply->header, "tensors");
    size_t at = 0;
    if (json_array_size(list) != (size_t)g->output_count)
        return mlo_error_set(err, MLO_EFORMAT, "%s: the model has %d outputs, the adapter sent %zu",
                             plan->runtime->name, g->output_count, json_array_size(list));
    for (int i = 0; i < g->output_count; i++) {
        struct mlo_tensor *t = &program->extra[i];
        MLO_TRY(reply_tensor(reply, json_array_get(list, (size_t)i), &at, t, err));
        if (i < plan->output_count)
            MLO_TRY(mlo_engine_deliver(t, &outputs[i], err));
    }
out:
    return status;
}

static enum mlo_status show(const struct mlo_program *program, const struct mlo_tensor *inputs,
                            mlo_observe_fn *fn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_plan *plan = program->plan;
    const struct mlo_graph *g = plan->model->graph;
    for (size_t k = 0; k < plan->observed_count; k++) {
        const struct mlo_value *v = plan->observed[k];
        const struct mlo_tensor *t = v->constant;
        for (int i = 0; i < plan->input_count; i++)
            if (plan->inputs[i] == v)
                t = &inputs[i];
        for (int i = 0; i < g->output_count; i++)
            if (g->outputs[i] == v)
                t = &program->extra[i];
        MLO_TRY(mlo_engine_show(v->name, t, fn, arg, err));
    }
out:
    return status;
}

static enum mlo_status ask_with_inputs(struct mlo_program *program, const char *verb, json_t *options,
                                       const struct mlo_tensor *inputs, uint64_t timeout_ms,
                                       struct ext_reply *reply, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_plan *plan = program->plan;
    json_t *request = NULL;
    struct ext_bytes *parts = calloc((size_t)plan->input_count + 1, sizeof *parts);
    *reply = (struct ext_reply){0};
    if (!parts) {
        json_decref(options);
        return mlo_error_nomem(err);
    }
    MLO_TRY(describe_inputs(plan, inputs, &request, parts, err));
    if (options)
        json_object_update(request, options);
    MLO_TRY(ext_child_ask(program->child, verb, request, parts, (size_t)plan->input_count, timeout_ms, reply,
                          err));
out:
    json_decref(options);
    free(parts);
    return status;
}

static enum mlo_status observe(struct mlo_program *program, const struct mlo_tensor *inputs,
                               struct mlo_tensor *outputs, mlo_observe_fn *fn, void *arg,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct ext_reply reply = {0};
    MLO_TRY(ask_with_inputs(program, "run", NULL, inputs, CALL_TIMEOUT_MS, &reply, err));
    MLO_TRY(take_outputs(program, &reply, outputs, err));
    if (fn)
        MLO_TRY(show(program, inputs, fn, arg, err));
out:
    ext_reply_clear(&reply);
    return status;
}

static enum mlo_status run(struct mlo_program *program, const struct mlo_tensor *inputs,
                           struct mlo_tensor *outputs, struct mlo_error *err)
{
    return observe(program, inputs, outputs, NULL, NULL, err);
}

/* The adapter times its own calls: what goes through the socket is no part of the runtime's latency. */
static enum mlo_status time_calls(struct mlo_program *program, const struct mlo_tensor *inputs,
                                  const struct mlo_timing_request *request, struct mlo_timing *out,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct ext_reply reply = {0};
    json_t *options =
        json_pack("{s:b,s:f,s:f,s:I,s:I,s:I}", "cpu_clock", request->cpu_clock, "warm_up_seconds",
                  request->warm_up_seconds, "seconds", request->seconds, "warm_up_calls",
                  (json_int_t)request->warm_up_calls, "min_calls", (json_int_t)request->min_calls,
                  "max_samples", (json_int_t)MLO_MIN(request->max_samples, (size_t)TIMING_SAMPLES_MAX));
    uint64_t timeout_ms = CALL_TIMEOUT_MS + (uint64_t)(request->seconds * 20000);
    *out = (struct mlo_timing){0};
    if (!options)
        return mlo_error_nomem(err);
    MLO_TRY(ask_with_inputs(program, "bench", options, inputs, timeout_ms, &reply, err));
    const json_t *samples = json_object_get(reply.header, "samples_us");
    size_t count = MLO_MIN(json_array_size(samples), request->max_samples);
    if (!count) {
        status =
            mlo_error_set(err, MLO_EFORMAT, "%s: the adapter timed no call", program->plan->runtime->name);
        goto out;
    }
    if (!(out->samples_us = malloc(count * sizeof *out->samples_us))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        out->samples_us[i] = json_number_value(json_array_get(samples, i));
    out->count = count;
    out->calls = (uint64_t)mlo_json_i64(reply.header, "calls", (int64_t)count);
    out->peak_rss_bytes = (uint64_t)mlo_json_i64(reply.header, "peak_rss_bytes", 0);
out:
    ext_reply_clear(&reply);
    return status;
}

/* --- describe ---------------------------------------------------------------------------------------- */

static enum mlo_status describe(const struct mlo_plan *constant, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_plan *plan = (struct mlo_plan *)(uintptr_t)constant; /* only its spare child changes */
    struct ext_child *child = NULL;
    struct ext_reply reply = {0};
    int int8_nodes = 0;
    MLO_TRY(session_open(plan, &child, err));
    MLO_TRY(ext_child_ask(child, "describe", NULL, NULL, 0, CALL_TIMEOUT_MS, &reply, err));
    json_t *nodes = json_object_get(reply.header, "nodes");
    for (size_t i = 0; i < json_array_size(nodes); i++)
        int8_nodes += strcmp(mlo_json_str(json_array_get(nodes, i), "precision", ""), "int8") == 0;
    *out = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:O, s:i, s:I}", "engine", plan->runtime->name,
                     "version", child->version, "isa", "external", "numerics", "external", "threads",
                     (int)plan->threads, "batch", (json_int_t)plan->batch, "nodes", nodes, "int8_nodes",
                     int8_nodes, "arena_bytes", (json_int_t)0);
    if (!*out)
        status = mlo_error_set(err, MLO_EFORMAT, "%s: the adapter described no nodes", plan->runtime->name);
out:
    if (child)
        session_keep(plan, child);
    ext_reply_clear(&reply);
    return status;
}

/* --- the engines: one vtable each, since its members do not say whose they are -------------------------- */

#define EXTERNAL_ENGINE(id, engine_name, script_name)                                                        \
    static const struct ext_runtime id##_runtime = {.name = engine_name, .script = script_name};             \
    static struct version id##_known = {.runtime = &id##_runtime};                                           \
    static const char *id##_version(void)                                                                    \
    {                                                                                                        \
        return version_of(&id##_known);                                                                      \
    }                                                                                                        \
    static enum mlo_status id##_probe(struct mlo_error *err)                                                 \
    {                                                                                                        \
        return probe_runtime(&id##_known, err);                                                              \
    }                                                                                                        \
    static enum mlo_status id##_compile(const struct mlo_model *model,                                       \
                                        const struct mlo_compile_options *options, struct mlo_plan **plan,   \
                                        struct mlo_error *err)                                               \
    {                                                                                                        \
        return compile_runtime(&id##_known, model, options, plan, err);                                      \
    }                                                                                                        \
    const struct mlo_engine mlo_engine_##id = {                                                              \
        .name = engine_name,                                                                                 \
        .version = id##_version,                                                                             \
        .probe = id##_probe,                                                                                 \
        .compile = id##_compile,                                                                             \
        .load = load,                                                                                        \
        .run = run,                                                                                          \
        .observe = observe,                                                                                  \
        .time = time_calls,                                                                                  \
        .describe = describe,                                                                                \
        .unload = unload,                                                                                    \
        .free_plan = free_plan,                                                                              \
    }

EXTERNAL_ENGINE(external, "external", NULL);
EXTERNAL_ENGINE(openvino, "openvino", "mlopt_adapter_openvino.py");
EXTERNAL_ENGINE(ort, "ort", "mlopt_adapter_ort.py");
EXTERNAL_ENGINE(tensorrt, "tensorrt", "mlopt_adapter_tensorrt.py");
