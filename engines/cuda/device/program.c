/* Programs: a plan's memory and stream, its steps as one CUDA graph, and runs of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"

/* Ranges in the staging memory, and what a library may take of the shared workspace. */
enum { STAGING_ALIGN = 256 };
#define LT_WORKSPACE ((size_t)32 << 20)

static size_t rounded(size_t size)
{
    return (size + STAGING_ALIGN - 1) & ~(size_t)(STAGING_ALIGN - 1);
}

void cuda_program_unload(struct mlo_program *program)
{
    if (!program)
        return;
    const struct mlo_plan *plan = program->plan;
    if (program->device) {
        const struct cuda_driver *d = program->device->driver;
        d->cuCtxSetCurrent(program->device->context);
        if (program->stream)
            d->cuStreamSynchronize(program->stream);
        if (program->whole)
            d->cuGraphExecDestroy(program->whole);
        if (program->device_only)
            d->cuGraphExecDestroy(program->device_only);
        for (int i = 0; program->steps && i < plan->schedule->step_count; i++) {
            cuda_dnn_free(program->steps[i].dnn);
            cuda_lt_free(program->steps[i].lt);
        }
        cuda_library_handles_free(program);
        if (program->workspace)
            d->cuMemFree(program->workspace);
        if (program->arena)
            d->cuMemFree(program->arena);
        if (program->staging)
            d->cuMemFreeHost(program->staging);
        if (program->stream)
            d->cuStreamDestroy(program->stream);
        cuda_device_put(program->plan);
    }
    free(program->at);
    free(program->work_of);
    free(program->steps);
    free(program->input_at);
    free(program->output_at);
    free(program);
}

/* --- memory --------------------------------------------------------------------------------------------- */

/* Bytes from a tensor's first element to behind its last. */
static bool span(const struct cuda_tensor *t, size_t *bytes)
{
    uint64_t last = 0;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] == 0) {
            *bytes = 0;
            return true;
        }
        if (t->dims[i] < 0 || t->strides[i] < 0 ||
            __builtin_mul_overflow((uint64_t)(t->dims[i] - 1), (uint64_t)t->strides[i], &(uint64_t){0}))
            return false;
        last += (uint64_t)(t->dims[i] - 1) * (uint64_t)t->strides[i];
        if (last > (uint64_t)1 << 48)
            return false;
    }
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    size_t each = info ? info->bits / 8 : 0;
    *bytes = ((size_t)last + 1) * each;
    return each != 0;
}

static enum mlo_status lay_out(struct mlo_program *program, struct mlo_error *err)
{
    const struct cuda_schedule *s = program->plan->schedule;
    const struct mlo_graph *g = s->model->graph;
    size_t at = 0, bytes = 0;
    program->input_at = calloc((size_t)g->input_count + 1, sizeof(size_t));
    program->output_at = calloc((size_t)g->output_count + 1, sizeof(size_t));
    program->at = calloc((size_t)s->slot_count + 1, sizeof *program->at);
    program->steps = calloc((size_t)s->step_count + 1, sizeof *program->steps);
    program->work_of = calloc((size_t)s->step_count + 1, sizeof *program->work_of);
    if (!program->input_at || !program->output_at || !program->at || !program->steps || !program->work_of)
        return mlo_error_nomem(err);
    for (int i = 0; i < program->plan->input_count; i++) {
        program->input_at[i] = at;
        at += s->input_slots[i] >= 0 ? rounded(s->slots[s->input_slots[i]].size_bytes) : 0;
    }
    for (int i = 0; i < g->output_count; i++) {
        int slot = s->output_slots[i];
        program->output_at[i] = at;
        if (slot < 0 || s->slots[slot].kind == CUDA_SLOT_CONST)
            continue;
        if (!span(&s->output_tensors[i], &bytes) || bytes > s->slots[slot].size_bytes)
            return mlo_error_set(err, MLO_EINTERNAL, "output %d does not lie in its slot", i);
        at += rounded(bytes);
    }
    program->staging_bytes = at;
    return MLO_OK;
}

static enum mlo_status take_memory(struct mlo_program *program, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct cuda_schedule *s = program->plan->schedule;
    const struct cuda_driver *d = program->device->driver;
    if (program->staging_bytes) {
        void *staging = NULL;
        CUDA_TRY(d->cuMemAllocHost(&staging, program->staging_bytes), "taking pinned memory");
        program->staging = staging;
        memset(program->staging, 0, program->staging_bytes);
    }
    if (s->arena_bytes) {
        CUresult result = d->cuMemAlloc(&program->arena, s->arena_bytes);
        if (result != CUDA_SUCCESS) {
            status = cuda_failed(result, "taking memory for the values", err);
            mlo_error_hint(err, "they need %zu bytes of the GPU's memory: a smaller batch needs less",
                           s->arena_bytes);
            goto out;
        }
        /* Indices and the like that were never written are then in bounds. */
        CUDA_TRY(d->cuMemsetD8Async(program->arena, 0, s->arena_bytes, program->stream), "clearing memory");
    }
    for (int i = 0; i < s->slot_count; i++)
        program->at[i] = (s->slots[i].kind == CUDA_SLOT_CONST ? program->device->constants : program->arena) +
                         s->slots[i].offset;
out:
    return status;
}

/* --- steps ---------------------------------------------------------------------------------------------- */

static enum mlo_status load_library(struct mlo_program *program, int index, struct mlo_error *err)
{
    const struct mlo_plan *plan = program->plan;
    const struct cuda_step *step = &plan->schedule->steps[index];
    const struct cuda_work *work = &plan->works[program->work_of[index]];
    struct cuda_step_state *state = &program->steps[index];
    size_t workspace = 0;
    enum mlo_status status = cuda_library_handles(program, work->kind, err);
    if (status == MLO_OK && work->kind == CUDA_WORK_CUDNN)
        status = cuda_dnn_load(program->dnn, plan->schedule, step, work, plan->sm, state->pointers,
                               &state->dnn, &workspace, err);
    else if (status == MLO_OK)
        status =
            cuda_lt_load(program->lt, step, work, state->pointers, LT_WORKSPACE, &state->lt, &workspace, err);
    program->workspace_bytes = MLO_MAX(program->workspace_bytes, workspace);
    return status;
}

/* What a library has nothing for on this device, an own kernel computes, and the plan remembers why. */
static enum mlo_status load_step(struct mlo_program *program, int index, struct mlo_error *err)
{
    const struct cuda_step *step = &program->plan->schedule->steps[index];
    struct cuda_step_state *state = &program->steps[index];
    struct mlo_error why = {0};
    enum mlo_status status = MLO_OK;
    int n = 0;
    program->work_of[index] = cuda_device_work(program->plan, index);
    enum cuda_work_kind kind = program->plan->works[program->work_of[index]].kind;
    for (int i = 0; i < step->in_count; i++)
        state->pointers[n++] = program->at[step->in[i]];
    for (int i = 0; i < step->out_count; i++)
        state->pointers[n++] = program->at[step->out[i]];
    for (int i = 0; i < n; i++)
        state->params[i] = &state->pointers[i];
    if (kind == CUDA_WORK_CUDNN || kind == CUDA_WORK_CUBLASLT)
        status = load_library(program, index, &why);
    if (status == MLO_EUNSUPPORTED)
        status = cuda_device_stand_in(program->plan, index, &why, &program->work_of[index], err);
    else if (status != MLO_OK && err)
        *err = why;
    if (status != MLO_OK)
        mlo_error_where(err, "node '%s' (%s)", step->node ? step->node->name : "", step->impl);
    return status;
}

enum mlo_status cuda_program_enqueue(struct mlo_program *program, int index, struct mlo_error *err)
{
    const struct mlo_plan *plan = program->plan;
    const struct cuda_driver *d = program->device->driver;
    const struct cuda_step *step = &plan->schedule->steps[index];
    int which = program->work_of[index];
    const struct cuda_work *w = &plan->works[which];
    struct cuda_step_state *state = &program->steps[index];
    enum mlo_status status = MLO_OK;
    switch (w->kind) {
    case CUDA_WORK_KERNEL:
        CUDA_TRY(d->cuLaunchKernel(program->device->functions[which], w->grid[0], w->grid[1], w->grid[2],
                                   w->block[0], w->block[1], w->block[2], w->shared_bytes, program->stream,
                                   state->params, NULL),
                 "starting a kernel");
        break;
    case CUDA_WORK_COPY:
        CUDA_TRY(d->cuMemcpyDtoDAsync(program->at[step->out[0]], program->at[step->in[0]], step->copy_bytes,
                                      program->stream),
                 "copying on the GPU");
        break;
    case CUDA_WORK_CUDNN:
        MLO_TRY(cuda_dnn_run(program->dnn, state->dnn, program->workspace, err));
        break;
    case CUDA_WORK_CUBLASLT:
        MLO_TRY(cuda_lt_run(program->lt, state->lt, program->workspace, program->workspace_bytes,
                            program->stream, err));
        break;
    case CUDA_WORK_KINDS:
        break;
    }
out:
    if (status != MLO_OK)
        mlo_error_where(err, "node '%s' (%s)", step->node ? step->node->name : "", step->impl);
    return status;
}

enum mlo_status cuda_program_enqueue_all(struct mlo_program *program, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < program->plan->schedule->step_count && status == MLO_OK; i++)
        status = cuda_program_enqueue(program, i, err);
    return status;
}

enum mlo_status cuda_program_enqueue_inputs(struct mlo_program *program, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct cuda_schedule *s = program->plan->schedule;
    for (int i = 0; i < program->plan->input_count; i++) {
        int slot = s->input_slots[i];
        if (slot >= 0 && s->slots[slot].size_bytes)
            CUDA_TRY(program->device->driver->cuMemcpyHtoDAsync(program->at[slot],
                                                                program->staging + program->input_at[i],
                                                                s->slots[slot].size_bytes, program->stream),
                     "bringing inputs to the GPU");
    }
out:
    return status;
}

enum mlo_status cuda_program_enqueue_outputs(struct mlo_program *program, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct cuda_schedule *s = program->plan->schedule;
    for (int i = 0; i < s->model->graph->output_count; i++) {
        int slot = s->output_slots[i];
        size_t bytes = 0;
        if (slot >= 0 && s->slots[slot].kind != CUDA_SLOT_CONST && span(&s->output_tensors[i], &bytes) &&
            bytes)
            CUDA_TRY(program->device->driver->cuMemcpyDtoHAsync(program->staging + program->output_at[i],
                                                                program->at[slot], bytes, program->stream),
                     "bringing outputs from the GPU");
    }
out:
    return status;
}

enum mlo_status cuda_program_wait(struct mlo_program *program, struct mlo_error *err)
{
    CUresult result = program->device->driver->cuStreamSynchronize(program->stream);
    if (result == CUDA_SUCCESS)
        return MLO_OK;
    enum mlo_status status = cuda_failed(result, "running the steps", err);
    mlo_error_hint(err, "MLOPT_CUDA_GRAPHS=off runs them one by one, for compute-sanitizer to say which");
    return status;
}

/* --- graphs --------------------------------------------------------------------------------------------- */

enum mlo_status cuda_capture_begin(struct mlo_program *program, struct mlo_error *err)
{
    CUresult result =
        program->device->driver->cuStreamBeginCapture(program->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    return result == CUDA_SUCCESS ? MLO_OK : cuda_failed(result, "recording a graph", err);
}

enum mlo_status cuda_capture_end(struct mlo_program *program, CUgraphExec *out, struct mlo_error *err)
{
    const struct cuda_driver *d = program->device->driver;
    CUgraph graph = NULL;
    CUresult result = d->cuStreamEndCapture(program->stream, &graph);
    if (result == CUDA_SUCCESS)
        result = d->cuGraphInstantiateWithFlags(out, graph, 0);
    if (graph)
        d->cuGraphDestroy(graph);
    return result == CUDA_SUCCESS ? MLO_OK : cuda_failed(result, "recording a graph", err);
}

static bool wants_graphs(void)
{
    const char *wish = getenv("MLOPT_CUDA_GRAPHS");
    return !wish || strcmp(wish, "off") != 0;
}

/* Libraries load their kernels when they first run, which must not happen while a graph is recorded. */
static enum mlo_status record(struct mlo_program *program, struct mlo_error *err)
{
    enum mlo_status status, ended;
    CUgraphExec graph = NULL;
    MLO_TRY(cuda_program_enqueue_inputs(program, err));
    MLO_TRY(cuda_program_enqueue_all(program, err));
    MLO_TRY(cuda_program_wait(program, err));
    if (!wants_graphs())
        return MLO_OK;
    MLO_TRY(cuda_capture_begin(program, err));
    status = cuda_program_enqueue_inputs(program, err);
    if (status == MLO_OK)
        status = cuda_program_enqueue_all(program, err);
    if (status == MLO_OK)
        status = cuda_program_enqueue_outputs(program, err);
    ended = cuda_capture_end(program, &graph, status == MLO_OK ? err : NULL);
    status = status == MLO_OK ? ended : status;
    if (status == MLO_OK)
        program->whole = graph;
    else if (graph)
        program->device->driver->cuGraphExecDestroy(graph);
out:
    return status;
}

enum mlo_status cuda_program_load(struct mlo_plan *plan, struct mlo_program **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_program *program = calloc(1, sizeof *program);
    if (!program)
        return mlo_error_nomem(err);
    program->plan = plan;
    MLO_TRY(cuda_device_get(plan, &program->device, err));
    const struct cuda_driver *d = program->device->driver;
    CUDA_TRY(d->cuStreamCreate(&program->stream, CU_STREAM_NON_BLOCKING), "making a stream");
    MLO_TRY(lay_out(program, err));
    MLO_TRY(take_memory(program, err));
    for (int i = 0; i < plan->schedule->step_count; i++)
        MLO_TRY(load_step(program, i, err));
    if (program->workspace_bytes)
        CUDA_TRY(d->cuMemAlloc(&program->workspace, program->workspace_bytes),
                 "taking memory for the libraries' workspace");
    MLO_TRY(record(program, err));
    *out = program;
    program = NULL;
out:
    cuda_program_unload(program);
    return status;
}

/* --- runs ----------------------------------------------------------------------------------------------- */

/* Into the staging memory. */
static enum mlo_status stage(struct mlo_program *program, const struct mlo_tensor *inputs,
                             struct mlo_error *err)
{
    const struct mlo_plan *plan = program->plan;
    CUresult result = program->device->driver->cuCtxSetCurrent(program->device->context);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, "opening the GPU", err);
    for (int i = 0; i < plan->input_count; i++) {
        enum mlo_status status = mlo_engine_check_input(plan->inputs[i], &inputs[i], err);
        if (status != MLO_OK)
            return status;
        int slot = plan->schedule->input_slots[i];
        if (slot >= 0 && inputs[i].size_bytes)
            memcpy(program->staging + program->input_at[i], inputs[i].data,
                   MLO_MIN(inputs[i].size_bytes, plan->schedule->slots[slot].size_bytes));
    }
    return MLO_OK;
}

enum mlo_status cuda_program_upload(struct mlo_program *program, const struct mlo_tensor *inputs,
                                    struct mlo_error *err)
{
    enum mlo_status status = stage(program, inputs, err);
    if (status == MLO_OK)
        status = cuda_program_enqueue_inputs(program, err);
    return status == MLO_OK ? cuda_program_wait(program, err) : status;
}

/* Row-major, from where the elements lie. */
static void gather(const struct cuda_tensor *t, const unsigned char *from, unsigned char *to)
{
    size_t each = mlo_dtype_info(t->dtype)->bits / 8;
    int64_t index[CUDA_RANK] = {0}, at = 0;
    for (;;) {
        memcpy(to, from + (size_t)at * each, each);
        to += each;
        int d = t->rank - 1;
        for (; d >= 0; d--) {
            at += t->strides[d];
            if (++index[d] < t->dims[d])
                break;
            at -= index[d] * t->strides[d];
            index[d] = 0;
        }
        if (d < 0)
            return;
    }
}

/* A value out of host memory, in its graph's shape. */
static enum mlo_status view(const struct mlo_value *value, const struct cuda_tensor *t, const void *bytes,
                            struct mlo_tensor *out, struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    size_t count = 1;
    if (!mlo_type_static(&value->type, dims))
        return mlo_error_set(err, MLO_EINTERNAL, "the shape of '%s' is not known", value->name);
    enum mlo_status status = mlo_tensor_init(out, value->type.dtype, value->type.rank, dims, err);
    if (status != MLO_OK)
        return status;
    for (int i = 0; i < t->rank; i++)
        count *= (size_t)t->dims[i];
    if (t->dtype != value->type.dtype || count != mlo_tensor_count(out)) {
        mlo_tensor_clear(out);
        return mlo_error_set(err, MLO_EINTERNAL, "'%s' was computed in another type or shape", value->name);
    }
    if (count)
        gather(t, bytes, out->data);
    return MLO_OK;
}

static enum mlo_status deliver(const struct mlo_program *program, struct mlo_tensor *outputs,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct cuda_schedule *s = program->plan->schedule;
    struct mlo_tensor t = {0};
    for (int i = 0; i < s->model->graph->output_count; i++) {
        const struct mlo_value *value = s->model->graph->outputs[i];
        int slot = s->output_slots[i];
        if (value->constant) {
            MLO_TRY(mlo_engine_deliver(value->constant, &outputs[i], err));
            continue;
        }
        const void *bytes = slot >= 0 && s->slots[slot].kind == CUDA_SLOT_CONST
                                ? s->slots[slot].data
                                : program->staging + program->output_at[i];
        MLO_TRY(view(value, &s->output_tensors[i], bytes, &t, err));
        MLO_TRY(mlo_engine_deliver(&t, &outputs[i], err));
        mlo_tensor_clear(&t);
    }
out:
    mlo_tensor_clear(&t);
    return status;
}

enum mlo_status cuda_program_run(struct mlo_program *program, const struct mlo_tensor *inputs,
                                 struct mlo_tensor *outputs, struct mlo_error *err)
{
    enum mlo_status status = stage(program, inputs, err);
    if (status != MLO_OK)
        return status;
    if (program->whole) {
        CUDA_TRY(program->device->driver->cuGraphLaunch(program->whole, program->stream),
                 "starting the graph");
    } else {
        MLO_TRY(cuda_program_enqueue_inputs(program, err));
        MLO_TRY(cuda_program_enqueue_all(program, err));
        MLO_TRY(cuda_program_enqueue_outputs(program, err));
    }
    MLO_TRY(cuda_program_wait(program, err));
    MLO_TRY(deliver(program, outputs, err));
out:
    return status;
}

/* --- observation ---------------------------------------------------------------------------------------- */

/* The step behind which a slot holds its value: the last that writes it or a part of it; -1: it is an input
 * or a constant. */
static int made_by(const struct cuda_schedule *s, int slot)
{
    int behind = -1;
    for (int i = 0; i < s->step_count; i++)
        for (int k = 0; k < s->steps[i].out_count; k++) {
            int out = s->steps[i].out[k];
            if (out == slot || (s->slots[out].is_part && s->slots[out].root == slot))
                behind = i;
        }
    return behind;
}

static enum mlo_status show(struct mlo_program *program, size_t which, mlo_observe_fn *fn, void *arg,
                            struct mlo_error *err)
{
    const struct mlo_plan *plan = program->plan;
    const struct cuda_schedule *s = plan->schedule;
    const struct mlo_value *value = plan->observed[which];
    const struct cuda_tensor *tensor = &s->observed_tensors[which];
    int slot = s->observed_slots[which];
    enum mlo_status status;
    struct mlo_tensor t = {0};
    size_t bytes = 0;
    void *copy = NULL;
    if (value->constant)
        return mlo_engine_show(value->name, value->constant, fn, arg, err);
    if (slot < 0 || !span(tensor, &bytes) || bytes > s->slots[slot].size_bytes)
        return mlo_error_set(err, MLO_EINTERNAL, "the value '%s' does not lie in its slot", value->name);
    copy = malloc(bytes + 1);
    if (!copy)
        return mlo_error_nomem(err);
    if (bytes)
        CUDA_TRY(program->device->driver->cuMemcpyDtoHAsync(copy, program->at[slot], bytes, program->stream),
                 "bringing a value from the GPU");
    MLO_TRY(cuda_program_wait(program, err));
    MLO_TRY(view(value, tensor, copy, &t, err));
    MLO_TRY(mlo_engine_show(value->name, &t, fn, arg, err));
out:
    mlo_tensor_clear(&t);
    free(copy);
    return status;
}

enum mlo_status cuda_program_observe(struct mlo_program *program, const struct mlo_tensor *inputs,
                                     struct mlo_tensor *outputs, mlo_observe_fn *fn, void *arg,
                                     struct mlo_error *err)
{
    const struct mlo_plan *plan = program->plan;
    const struct cuda_schedule *s = plan->schedule;
    enum mlo_status status;
    MLO_TRY(cuda_program_upload(program, inputs, err));
    for (int i = -1; i < s->step_count; i++) {
        if (i >= 0)
            MLO_TRY(cuda_program_enqueue(program, i, err));
        for (size_t k = 0; k < plan->observed_count; k++)
            if (made_by(s, s->observed_slots[k]) == i)
                MLO_TRY(show(program, k, fn, arg, err));
    }
    MLO_TRY(cuda_program_enqueue_outputs(program, err));
    MLO_TRY(cuda_program_wait(program, err));
    MLO_TRY(deliver(program, outputs, err));
out:
    return status;
}
