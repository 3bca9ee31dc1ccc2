/* What a program takes on the device: times by events in graph replay, apart from copies, and step by step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"
#include "engines/cuda/tune/tune.h"

/* --- samples -------------------------------------------------------------------------------------------- */

/* Of more samples than there is room for, a uniform random choice (Vitter 1985, algorithm R). */
struct reservoir {
    double *us;
    size_t count, room;
    uint64_t seen, state;
};

static bool reservoir_init(struct reservoir *r, size_t room)
{
    *r = (struct reservoir){.room = MLO_MAX(room, 1), .state = 0x9e3779b97f4a7c15u};
    r->us = calloc(r->room, sizeof *r->us);
    return r->us != NULL;
}

static void reservoir_add(struct reservoir *r, double us)
{
    r->seen++;
    if (r->count < r->room) {
        r->us[r->count++] = us;
        return;
    }
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    uint64_t at = r->state % r->seen;
    if (at < r->room)
        r->us[at] = us;
}

static json_t *reservoir_json(const struct reservoir *r)
{
    json_t *out = json_array();
    for (size_t i = 0; i < r->count; i++)
        json_array_append_new(out, json_real(r->us[i]));
    return out;
}

/* --- the whole ------------------------------------------------------------------------------------------ */

/* Puts the program's work between two events, or measures something else; *us is what it took. */
typedef enum mlo_status enqueue_fn(struct mlo_program *program, struct mlo_error *err);
typedef enum mlo_status time_fn(void *arg, double *us, struct mlo_error *err);
struct timed_part {
    struct mlo_program *program;
    enqueue_fn *fn;
    CUevent *events; /* two */
};

static enum mlo_status replay(struct mlo_program *program, struct mlo_error *err)
{
    CUresult result = program->device->driver->cuGraphLaunch(program->device_only, program->stream);
    return result == CUDA_SUCCESS ? MLO_OK : cuda_failed(result, "starting the graph", err);
}

static enum mlo_status time_once(void *arg, double *us, struct mlo_error *err)
{
    const struct timed_part *p = arg;
    const struct cuda_driver *d = p->program->device->driver;
    enum mlo_status status;
    float ms = 0;
    CUDA_TRY(d->cuEventRecord(p->events[0], p->program->stream), "timing");
    MLO_TRY(p->fn(p->program, err));
    CUDA_TRY(d->cuEventRecord(p->events[1], p->program->stream), "timing");
    CUDA_TRY(d->cuEventSynchronize(p->events[1]), "running the steps");
    CUDA_TRY(d->cuEventElapsedTime(&ms, p->events[0], p->events[1]), "timing");
    *us = 1000.0 * (double)ms;
out:
    return status;
}

static enum mlo_status time_many(time_fn *fn, void *arg, const struct mlo_timing_request *request,
                                 struct reservoir *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double us = 0;
    for (int warm = 1; warm >= 0; warm--) {
        uint64_t start_ns = mlo_clock_ns(), calls = 0;
        double seconds = warm ? request->warm_up_seconds : request->seconds;
        uint64_t least = warm ? request->warm_up_calls : MLO_MAX(request->min_calls, 1u);
        while (calls < least || (double)(mlo_clock_ns() - start_ns) < seconds * 1e9) {
            MLO_TRY(fn(arg, &us, err));
            calls++;
            if (!warm)
                reservoir_add(out, us);
        }
    }
out:
    return status;
}

static enum mlo_status record_steps(struct mlo_program *program, CUevent *between, CUgraphExec *out,
                                    struct mlo_error *err)
{
    const struct cuda_driver *d = program->device->driver;
    int count = program->plan->schedule->step_count;
    enum mlo_status status = cuda_capture_begin(program, err), ended;
    if (status != MLO_OK)
        return status;
    for (int i = 0; i <= count && status == MLO_OK; i++) {
        if (between) {
            CUresult result =
                d->cuEventRecordWithFlags(between[i], program->stream, CU_EVENT_RECORD_EXTERNAL);
            if (result != CUDA_SUCCESS)
                status = cuda_failed(result, "timing", err);
        }
        if (i < count && status == MLO_OK)
            status = cuda_program_enqueue(program, i, err);
    }
    ended = cuda_capture_end(program, out, status == MLO_OK ? err : NULL);
    return status == MLO_OK ? ended : status;
}

enum mlo_status cuda_program_record(struct mlo_program *program, struct mlo_error *err)
{
    return program->device_only ? MLO_OK : record_steps(program, NULL, &program->device_only, err);
}

/* --- steps ---------------------------------------------------------------------------------------------- */

/* The median time of each step over some replays of a graph with an event before and behind each. */
static enum mlo_status time_steps(struct mlo_program *program, int calls, double **out, struct mlo_error *err)
{
    const struct cuda_driver *d = program->device->driver;
    enum mlo_status status = MLO_OK;
    size_t count = (size_t)program->plan->schedule->step_count, runs = (size_t)MLO_MAX(calls, 1);
    CUgraphExec graph = NULL;
    CUevent *events = calloc(count + 1, sizeof(CUevent));
    double *us = calloc(count * runs + 1, sizeof *us), *medians = calloc(count + 1, sizeof *medians);
    if (!events || !us || !medians) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i <= count; i++)
        CUDA_TRY(d->cuEventCreate(&events[i], CU_EVENT_DEFAULT), "timing");
    MLO_TRY(record_steps(program, events, &graph, err));
    for (size_t r = 0; r <= runs; r++) { /* the first one warms up */
        CUDA_TRY(d->cuGraphLaunch(graph, program->stream), "starting the graph");
        MLO_TRY(cuda_program_wait(program, err));
        for (size_t i = 0; r > 0 && i < count; i++) {
            float ms = 0;
            CUDA_TRY(d->cuEventElapsedTime(&ms, events[i], events[i + 1]), "timing");
            us[i * runs + r - 1] = 1000.0 * (double)ms;
        }
    }
    for (size_t i = 0; i < count; i++)
        medians[i] = cuda_median_of(us + i * runs, (int)runs).value;
    *out = medians;
    medians = NULL;
out:
    if (graph)
        d->cuGraphExecDestroy(graph);
    for (size_t i = 0; events && i <= count; i++)
        if (events[i])
            d->cuEventDestroy(events[i]);
    free(events);
    free(us);
    free(medians);
    return status;
}

/* The share of a multiprocessor's threads that a kernel's blocks fill; negative: it is not known. */
static double occupancy(const struct mlo_program *program, int step)
{
    const struct cuda_driver *d = program->device->driver;
    int which = program->work_of[step], blocks = 0, most = 0;
    const struct cuda_work *w = &program->plan->works[which];
    unsigned threads = w->block[0] * w->block[1] * w->block[2];
    if (w->kind != CUDA_WORK_KERNEL ||
        d->cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, program->device->functions[which],
                                                       (int)threads, w->shared_bytes) != CUDA_SUCCESS ||
        d->cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                program->device->handle) != CUDA_SUCCESS ||
        most < 1)
        return -1;
    return MLO_MIN(1.0, (double)blocks * threads / most);
}

static json_t *step_rows(const struct mlo_program *program, const double *us)
{
    const struct mlo_plan *plan = program->plan;
    json_t *rows = json_array();
    for (int i = 0; i < plan->schedule->step_count; i++) {
        const struct cuda_step *step = &plan->schedule->steps[i];
        const struct cuda_work *w = &plan->works[program->work_of[i]];
        double filled = occupancy(program, i);
        json_t *row = json_pack("{s:s, s:s, s:s, s:f}", "node", step->node ? step->node->name : "", "op",
                                step->node ? step->node->op_type : "", "impl", step->impl, "us", us[i]);
        if (w->kind == CUDA_WORK_KERNEL)
            json_object_set_new(row, "registers", json_integer(w->resources.registers));
        if (filled >= 0)
            json_object_set_new(row, "occupancy", json_real(filled));
        json_array_append_new(rows, row);
    }
    return rows;
}

static void add_floor(const struct mlo_program *program, json_t *out)
{
    struct cuda_peaks peaks;
    json_t *floor = NULL;
    if (cuda_device_peaks(&program->device->gpu, &peaks, NULL) == MLO_OK &&
        cuda_floor_report(program->plan->schedule, &peaks, json_object_get(out, "steps"), &floor, NULL) ==
            MLO_OK)
        json_object_set_new(out, "floor", floor);
}

static json_t *device_json(const struct cuda_gpu *g)
{
    return json_pack("{s:s, s:i, s:i, s:I, s:i, s:i, s:i}", "name", g->name, "sm", g->sm, "multiprocessors",
                     g->multiprocessors, "memory_bytes", (json_int_t)g->memory_bytes, "driver", g->driver,
                     "clock_khz", g->clock_khz, "memory_clock_khz", g->memory_clock_khz);
}

static enum mlo_status time_together(void *arg, double *us, struct mlo_error *err)
{
    return cuda_together_time(arg, us, err);
}

/* Appends {"streams","call_us":[…]} for each number of streams that is asked for. */
static enum mlo_status measure_together(struct mlo_program *program, const struct mlo_tensor *inputs,
                                        const struct mlo_timing_request *request, json_t *out,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cuda_together *together = NULL;
    struct reservoir r = {0};
    for (size_t i = 0; i < request->stream_count; i++) {
        if (request->streams[i] < 1 || request->streams[i] > MLO_STREAMS_MAX) {
            status = mlo_error_set(err, MLO_EINVAL, "%u streams: 1 to %d run at once", request->streams[i],
                                   MLO_STREAMS_MAX);
            goto out;
        }
        if (!reservoir_init(&r, request->max_samples)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(cuda_together_new(program, inputs, request->streams[i], &together, err));
        MLO_TRY(time_many(time_together, together, request, &r, err));
        json_array_append_new(
            out, json_pack("{s:i, s:o}", "streams", (int)request->streams[i], "call_us", reservoir_json(&r)));
        cuda_together_free(together);
        free(r.us);
        together = NULL;
        r.us = NULL;
    }
out:
    cuda_together_free(together);
    free(r.us);
    return status;
}

enum mlo_status cuda_program_measure(struct mlo_program *program, const struct mlo_tensor *inputs,
                                     const struct mlo_timing_request *request, bool steps, json_t **out,
                                     struct mlo_error *err)
{
    enum { STEP_CALLS = 50 };
    static const struct {
        const char *name;
        enqueue_fn *fn;
    } parts[] = {{"replay_us", replay},
                 {"upload_us", cuda_program_enqueue_inputs},
                 {"download_us", cuda_program_enqueue_outputs}};
    const struct mlo_plan *plan = program->plan;
    const struct cuda_driver *d = program->device->driver;
    enum mlo_status status;
    CUevent events[2] = {NULL, NULL};
    struct reservoir r = {0};
    double *us = NULL;
    json_t *all = NULL;
    MLO_TRY(cuda_program_upload(program, inputs, err));
    MLO_TRY(cuda_program_record(program, err));
    for (size_t i = 0; i < MLO_COUNT(events); i++)
        CUDA_TRY(d->cuEventCreate(&events[i], CU_EVENT_DEFAULT), "timing");
    all = json_pack("{s:I, s:I, s:I, s:o}", "arena_bytes", (json_int_t)plan->schedule->arena_bytes,
                    "constant_bytes", (json_int_t)plan->schedule->constant_bytes, "workspace_bytes",
                    (json_int_t)program->workspace_bytes, "device", device_json(&program->device->gpu));
    for (size_t i = 0; i < MLO_COUNT(parts); i++) {
        struct mlo_timing_request part = *request;
        if (i > 0) { /* copies vary less */
            part.seconds /= 10;
            part.warm_up_seconds /= 10;
        }
        if (!reservoir_init(&r, request->max_samples)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        struct timed_part timed = {program, parts[i].fn, events};
        MLO_TRY(time_many(time_once, &timed, &part, &r, err));
        json_object_set_new(all, parts[i].name, reservoir_json(&r));
        free(r.us);
        r.us = NULL;
    }
    if (request->stream_count) {
        json_t *together = json_array();
        json_object_set_new(all, "together", together);
        MLO_TRY(measure_together(program, inputs, request, together, err));
    }
    if (steps) {
        MLO_TRY(time_steps(program, STEP_CALLS, &us, err));
        json_object_set_new(all, "steps", step_rows(program, us));
        add_floor(program, all);
    }
    if (!all) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *out = all;
    all = NULL;
out:
    for (size_t i = 0; i < MLO_COUNT(events); i++)
        if (events[i])
            d->cuEventDestroy(events[i]);
    json_decref(all);
    free(us);
    free(r.us);
    return status;
}

enum mlo_status cuda_program_profile(struct mlo_program *program, const struct mlo_tensor *inputs, int calls,
                                     json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    double *us = NULL;
    json_t *all = NULL;
    MLO_TRY(cuda_program_upload(program, inputs, err));
    MLO_TRY(time_steps(program, calls, &us, err));
    MLO_TRY(cuda_plan_describe(program->plan, &all, err));
    json_t *nodes = json_object_get(all, "nodes");
    for (int i = 0; i < program->plan->schedule->step_count; i++)
        json_object_set_new(json_array_get(nodes, (size_t)i), "us", json_real(us[i]));
    *out = all;
out:
    free(us);
    return status;
}
