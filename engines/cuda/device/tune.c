/* What only the device can do for the tuner (../tune): compile a way, time it in replays of a graph over
 * buffers that take turns, and compare it with the step's own kernel. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"
#include "engines/cuda/tune/tune.h"

enum {
    WAYS_OF_ENGINE = 24,
    WAYS_OF_PRODUCT = 32,
    SETS_MAX = 16,
    RUNS_MIN = 16,
    POINTERS = 2 * CUDA_STEP_SLOTS
};
#define WORKSPACE_MAX ((size_t)1 << 30)
#define LT_WORKSPACE ((size_t)32 << 20)
#define SETS_BYTES ((size_t)1 << 30) /* of all buffers that take turns, at most */
enum { PLACE_ALIGN = 256 };

struct bench {
    struct mlo_plan *plan;
    struct mlo_program *program; /* NULL: nothing is measured */
    double l2_bytes;
};

/* A step's slots in buffers of their own: slots that share memory share it here too. */
struct place {
    CUdeviceptr base, at[POINTERS];
    void *params[POINTERS];
    size_t bytes;
};

/* A way, loaded for one place. */
struct loaded {
    CUmodule module;
    CUfunction function;
    struct cuda_dnn_program *dnn;
    struct cuda_lt_program *lt;
    const struct cuda_work *work;
};

static int index_of(const struct bench *b, const struct cuda_step *step)
{
    return (int)(step - b->plan->schedule->steps);
}

/* --- ways ------------------------------------------------------------------------------------------------
 */

static enum mlo_status ways_of(void *arg, const struct cuda_step *step, json_t **ways, struct mlo_error *err)
{
    struct bench *b = arg;
    enum mlo_status status = MLO_OK;
    struct mlo_error refused = {0};
    if (!(*ways = json_array()))
        return mlo_error_nomem(err);
    if (step->kind == CUDA_STEP_CONV || step->kind == CUDA_STEP_ATTENTION)
        status = cuda_dnn_ways(b->plan->schedule, step, b->plan->sm, WAYS_OF_ENGINE, *ways, &refused);
    else if (step->kind == CUDA_STEP_GEMM && cuda_gemm_fuses(step->gemm) && b->program) {
        status = cuda_library_handles(b->program, CUDA_WORK_CUBLASLT, &refused);
        if (status == MLO_OK)
            status = cuda_lt_ways(b->program->lt, step, b->program->steps[index_of(b, step)].pointers,
                                  LT_WORKSPACE, WAYS_OF_PRODUCT, *ways, &refused);
    } else if (step->kind != CUDA_STEP_GEMM) {
        return MLO_OK; /* an own kernel alone can do it */
    }
    if (status == MLO_ENOMEM || !cuda_ways_add(*ways, json_pack("{s:s}", "library", "own"))) {
        json_decref(*ways);
        *ways = NULL;
        return mlo_error_nomem(err);
    }
    return MLO_OK; /* a library that knows no way leaves the own kernel */
}

static enum mlo_status build_own(const struct bench *b, const struct cuda_step *step, struct cuda_work *work,
                                 struct mlo_error *err)
{
    struct cuda_source source = {0};
    enum mlo_status status = cuda_step_source(b->plan->schedule, step, &source, err);
    if (status != MLO_OK)
        return status;
    *work = (struct cuda_work){.kind = CUDA_WORK_KERNEL, .shared_bytes = source.shared_bytes, .owned = true};
    memcpy(work->entry, source.entry, sizeof work->entry);
    memcpy(work->grid, source.grid, sizeof work->grid);
    memcpy(work->block, source.block, sizeof work->block);
    status = cuda_compile_text(&source, b->plan->sm, &work->image, &work->image_bytes, &work->resources, err);
    cuda_source_clear(&source);
    return status;
}

static enum mlo_status build(void *arg, const struct cuda_step *step, const json_t *way,
                             struct cuda_built *out, struct mlo_error *err)
{
    struct bench *b = arg;
    const char *library = mlo_json_str(way, "library", "");
    enum mlo_status status;
    struct cuda_work *work = calloc(1, sizeof *work);
    if (!work)
        return mlo_error_nomem(err);
    if (strcmp(library, "own") == 0)
        status = build_own(b, step, work, err);
    else if (strcmp(library, "cublaslt") == 0)
        status = cuda_lt_work(way, work, err);
    else
        status = cuda_dnn_build(b->plan->schedule, step, b->plan->sm, way, work, err);
    if (status != MLO_OK) {
        cuda_work_clear(work);
        free(work);
        return status;
    }
    *out = (struct cuda_built){.code = work,
                               .registers = work->resources.registers,
                               .threads = work->block[0] * work->block[1] * work->block[2],
                               .shared_bytes = work->resources.shared_bytes + work->shared_bytes,
                               .workspace_bytes = (size_t)MLO_MAX(work->workspace_bytes, (int64_t)0)};
    return MLO_OK;
}

static void release(void *arg, struct cuda_built *built)
{
    (void)arg;
    cuda_work_clear(built->code);
    free(built->code);
}

/* --- places ----------------------------------------------------------------------------------------------
 */

static int slot_of(const struct cuda_step *step, int i)
{
    return i < step->in_count ? step->in[i] : step->out[i - step->in_count];
}

/* Offsets of the step's slots from the base; returns the bytes of a place. */
static size_t lay_place(const struct cuda_schedule *s, const struct cuda_step *step, size_t *at)
{
    size_t end = 0;
    int count = step->in_count + step->out_count;
    for (int i = 0; i < count; i++) {
        const struct cuda_slot *slot = &s->slots[slot_of(step, i)];
        int root = slot->root, k = 0;
        while (k < i && s->slots[slot_of(step, k)].root != root)
            k++;
        const struct cuda_slot *whole = &s->slots[root];
        size_t base = k < i ? at[k] - (s->slots[slot_of(step, k)].offset - whole->offset) : end;
        at[i] = base + (slot->offset - whole->offset);
        if (k == i)
            end += (whole->size_bytes + PLACE_ALIGN - 1) & ~(size_t)(PLACE_ALIGN - 1);
    }
    return end;
}

/* Numbers that are finite and of moderate size whichever type reads them, negative ones too: a float16
 * between 1/16 and 1, of whose bytes neither is a float8 of 2 or more. */
static void fill_host(unsigned char *bytes, size_t size, uint32_t seed)
{
    for (size_t i = 0; i + 1 < size; i += 2) {
        seed = seed * 1664525u + 1013904223u;
        uint16_t word = (uint16_t)(((0x2c00 + (seed >> 8) % 0x1000) & ~0x40u) | (seed >> 16 & 0x8000));
        memcpy(bytes + i, &word, 2);
    }
}

static void place_free(const struct bench *b, struct place *p)
{
    if (p->base)
        b->program->device->driver->cuMemFree(p->base);
    *p = (struct place){0};
}

static enum mlo_status place_new(const struct bench *b, const struct cuda_step *step, struct place *p,
                                 struct mlo_error *err)
{
    const struct cuda_schedule *s = b->plan->schedule;
    const struct cuda_driver *d = b->program->device->driver;
    enum mlo_status status = MLO_OK;
    size_t at[POINTERS];
    unsigned char *host = NULL;
    *p = (struct place){.bytes = lay_place(s, step, at)};
    CUDA_TRY(d->cuMemAlloc(&p->base, p->bytes), "taking memory to try a way");
    if (!(host = calloc(1, p->bytes + 1))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    fill_host(host, p->bytes, 7);
    CUDA_TRY(d->cuMemcpyHtoD(p->base, host, p->bytes), "filling memory");
    for (int i = 0; i < step->in_count + step->out_count; i++) {
        const struct cuda_slot *slot = &s->slots[slot_of(step, i)];
        p->at[i] = p->base + at[i];
        p->params[i] = &p->at[i];
        if (slot->kind == CUDA_SLOT_CONST && slot->size_bytes) /* scales and weights as they are */
            CUDA_TRY(d->cuMemcpyDtoDAsync(p->at[i], b->program->at[slot_of(step, i)], slot->size_bytes,
                                          b->program->stream),
                     "copying constants");
    }
    MLO_TRY(cuda_program_wait(b->program, err));
out:
    free(host);
    if (status != MLO_OK)
        place_free(b, p);
    return status;
}

/* --- running a way ---------------------------------------------------------------------------------------
 */

static void loaded_free(const struct bench *b, struct loaded *l)
{
    if (l->module)
        b->program->device->driver->cuModuleUnload(l->module);
    cuda_dnn_free(l->dnn);
    cuda_lt_free(l->lt);
    *l = (struct loaded){0};
}

static enum mlo_status load_way(const struct bench *b, const struct cuda_step *step,
                                const struct cuda_work *work, const struct place *p, struct loaded *l,
                                size_t *workspace, struct mlo_error *err)
{
    enum { DEFAULT_SHARED_MAX = 48 << 10 };
    const struct cuda_driver *d = b->program->device->driver;
    enum mlo_status status = MLO_OK;
    *l = (struct loaded){.work = work};
    if (work->kind == CUDA_WORK_KERNEL) {
        CUDA_TRY(d->cuModuleLoadData(&l->module, work->image), "loading a kernel");
        CUDA_TRY(d->cuModuleGetFunction(&l->function, l->module, work->entry), "loading a kernel");
        if (work->shared_bytes > DEFAULT_SHARED_MAX)
            CUDA_TRY(d->cuFuncSetAttribute(l->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                           (int)work->shared_bytes),
                     "loading a kernel");
        return MLO_OK;
    }
    MLO_TRY(cuda_library_handles(b->program, work->kind, err));
    if (work->kind == CUDA_WORK_CUDNN)
        MLO_TRY(cuda_dnn_load(b->program->dnn, b->plan->schedule, step, work, b->plan->sm, p->at, &l->dnn,
                              workspace, err));
    else
        MLO_TRY(cuda_lt_load(b->program->lt, step, work, p->at, LT_WORKSPACE, &l->lt, workspace, err));
out:
    if (status != MLO_OK)
        loaded_free(b, l);
    return status;
}

static enum mlo_status enqueue(const struct bench *b, const struct loaded *l, struct place *p,
                               CUdeviceptr workspace, size_t workspace_bytes, struct mlo_error *err)
{
    const struct cuda_work *w = l->work;
    enum mlo_status status = MLO_OK;
    if (l->dnn)
        return cuda_dnn_run(b->program->dnn, l->dnn, workspace, err);
    if (l->lt)
        return cuda_lt_run(b->program->lt, l->lt, workspace, workspace_bytes, b->program->stream, err);
    CUDA_TRY(b->program->device->driver->cuLaunchKernel(l->function, w->grid[0], w->grid[1], w->grid[2],
                                                        w->block[0], w->block[1], w->block[2],
                                                        w->shared_bytes, b->program->stream, p->params, NULL),
             "starting a kernel");
out:
    return status;
}

/* --- timing ----------------------------------------------------------------------------------------------
 */

static enum mlo_status record_turns(struct bench *b, struct loaded *ways, struct place *places, int sets,
                                    int runs, CUdeviceptr workspace, size_t workspace_bytes, CUgraphExec *out,
                                    struct mlo_error *err)
{
    enum mlo_status status = cuda_capture_begin(b->program, err), ended;
    if (status != MLO_OK)
        return status;
    for (int r = 0; r < runs && status == MLO_OK; r++)
        status = enqueue(b, &ways[r % sets], &places[r % sets], workspace, workspace_bytes, err);
    ended = cuda_capture_end(b->program, out, status == MLO_OK ? err : NULL);
    return status == MLO_OK ? ended : status;
}

static enum mlo_status time_way(void *arg, const struct cuda_step *step, const struct cuda_built *built,
                                int count, double *us, struct mlo_error *err)
{
    struct bench *b = arg;
    const struct cuda_driver *d = b->program->device->driver;
    enum mlo_status status = MLO_OK;
    struct place places[SETS_MAX] = {0};
    struct loaded ways[SETS_MAX] = {0};
    CUevent events[2] = {NULL, NULL};
    CUgraphExec graph = NULL;
    CUdeviceptr workspace = 0;
    size_t workspace_bytes = 0, at[POINTERS], place_bytes = lay_place(b->plan->schedule, step, at);
    int sets = MLO_MIN(cuda_rotation((double)place_bytes, b->l2_bytes), (int)SETS_MAX);
    sets = MLO_MAX(MLO_MIN(sets, (int)(SETS_BYTES / MLO_MAX(place_bytes, (size_t)1))), 1);
    int runs = MLO_MAX(sets, (int)RUNS_MIN);
    for (int i = 0; i < sets; i++) {
        size_t needs = 0;
        MLO_TRY(place_new(b, step, &places[i], err));
        MLO_TRY(load_way(b, step, built->code, &places[i], &ways[i], &needs, err));
        workspace_bytes = MLO_MAX(workspace_bytes, needs);
    }
    if (workspace_bytes)
        CUDA_TRY(d->cuMemAlloc(&workspace, workspace_bytes), "taking workspace");
    for (int i = 0; i < sets; i++) /* libraries load their kernels when they first run */
        MLO_TRY(enqueue(b, &ways[i], &places[i], workspace, workspace_bytes, err));
    MLO_TRY(cuda_program_wait(b->program, err));
    MLO_TRY(record_turns(b, ways, places, sets, runs, workspace, workspace_bytes, &graph, err));
    for (size_t i = 0; i < MLO_COUNT(events); i++)
        CUDA_TRY(d->cuEventCreate(&events[i], CU_EVENT_DEFAULT), "timing");
    for (int i = -1; i < count; i++) { /* the first one warms up */
        float ms = 0;
        CUDA_TRY(d->cuEventRecord(events[0], b->program->stream), "timing");
        CUDA_TRY(d->cuGraphLaunch(graph, b->program->stream), "starting the graph");
        CUDA_TRY(d->cuEventRecord(events[1], b->program->stream), "timing");
        CUDA_TRY(d->cuEventSynchronize(events[1]), "running a way");
        CUDA_TRY(d->cuEventElapsedTime(&ms, events[0], events[1]), "timing");
        if (i >= 0)
            us[i] = 1000.0 * (double)ms / runs;
    }
out:
    if (graph)
        d->cuGraphExecDestroy(graph);
    for (size_t i = 0; i < MLO_COUNT(events); i++)
        if (events[i])
            d->cuEventDestroy(events[i]);
    for (int i = 0; i < sets; i++) {
        loaded_free(b, &ways[i]);
        place_free(b, &places[i]);
    }
    if (workspace)
        d->cuMemFree(workspace);
    return status;
}

/* --- checking --------------------------------------------------------------------------------------------
 */

/* Runs a way once into poison, and brings what it wrote. */
static enum mlo_status run_once(struct bench *b, const struct cuda_step *step, const struct cuda_work *work,
                                unsigned char *host, size_t bytes, struct mlo_error *err)
{
    const struct cuda_driver *d = b->program->device->driver;
    enum mlo_status status;
    struct place place = {0};
    struct loaded way = {0};
    CUdeviceptr workspace = 0;
    size_t needs = 0;
    int out = step->in_count;
    bool in_place = false;
    MLO_TRY(place_new(b, step, &place, err));
    for (int i = 0; i < step->in_count; i++)
        in_place = in_place ||
                   b->plan->schedule->slots[step->in[i]].root == b->plan->schedule->slots[step->out[0]].root;
    if (!in_place)
        CUDA_TRY(d->cuMemsetD8Async(place.at[out], 0xff, bytes, b->program->stream), "poisoning memory");
    MLO_TRY(load_way(b, step, work, &place, &way, &needs, err));
    if (needs)
        CUDA_TRY(d->cuMemAlloc(&workspace, needs), "taking workspace");
    MLO_TRY(enqueue(b, &way, &place, workspace, needs, err));
    CUDA_TRY(d->cuMemcpyDtoHAsync(host, place.at[out], bytes, b->program->stream), "bringing the result");
    MLO_TRY(cuda_program_wait(b->program, err));
out:
    loaded_free(b, &way);
    place_free(b, &place);
    if (workspace)
        d->cuMemFree(workspace);
    return status;
}

static const struct cuda_tensor *tensor_out(const struct cuda_step *step)
{
    return step->kind == CUDA_STEP_CONV ? &step->conv->y : &step->attention->o;
}

/* An error counts in steps: relative to the largest value a small one would hide many. */
static bool counts_steps(enum mlo_dtype type)
{
    return type == MLO_INT8 || type == MLO_UINT8;
}

/* What rounding may do to the largest value, by the type of the result and that of the products. */
static double tolerance_of(enum mlo_dtype type, const char *precision)
{
    if (counts_steps(type))
        return 1.5; /* one, and no second */
    if (type == MLO_BFLOAT16 || strcmp(precision, "bf16") == 0)
        return 0x1p-6;
    if (type == MLO_FLOAT16 || strcmp(precision, "f16") == 0 || strcmp(precision, "tf32") == 0 ||
        strcmp(precision, "fp8") == 0) /* of float8, products are exact, but sums are no full float32 */
        return 0x1p-8;
    return 1e-4;
}

static enum mlo_status check(void *arg, const struct cuda_step *step, const struct cuda_built *built,
                             double *error, double *tolerance, struct mlo_error *err)
{
    struct bench *b = arg;
    enum mlo_dtype type = step->kind == CUDA_STEP_GEMM ? step->gemm->d : tensor_out(step)->dtype;
    size_t bytes = b->plan->schedule->slots[step->out[0]].size_bytes,
           count = bytes * 8 / MLO_MAX(mlo_dtype_info(type)->bits, 1u);
    enum mlo_status status;
    struct cuda_work own = {0};
    unsigned char *got = calloc(1, bytes + 1), *want = calloc(1, bytes + 1);
    double largest = 0, most = 0;
    if (!got || !want) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(build_own(b, step, &own, err));
    MLO_TRY(run_once(b, step, built->code, got, bytes, err));
    MLO_TRY(run_once(b, step, &own, want, bytes, err));
    struct mlo_tensor x = {.dtype = type,
                           .rank = 1,
                           .dims = {(int64_t)count},
                           .data = got,
                           .size_bytes = bytes},
                      y = x;
    y.data = want;
    for (size_t i = 0; i < count; i++) {
        double a = mlo_tensor_get_f64(&x, i), w = mlo_tensor_get_f64(&y, i);
        if (isnan(a) && isnan(w)) /* neither writes it: what lies between the parts of a slot */
            continue;
        largest = fmax(largest, fabs(w));
        /* against what is not finite nothing can be held */
        most = isnan(a) || !isfinite(w) ? NAN : isnan(most) ? most : fmax(most, fabs(a - w));
    }
    *error = largest > 0 && !counts_steps(type) ? most / largest : most;
    *tolerance = tolerance_of(type, step->precision);
out:
    cuda_work_clear(&own);
    free(got);
    free(want);
    return status;
}

/* A context that saw a fault is lost, and the process with it: what was kept goes on in another one. */
static enum mlo_status recover(void *arg, struct mlo_error *err)
{
    struct bench *b = arg;
    if (cuda_program_wait(b->program, NULL) == MLO_OK)
        return MLO_OK;
    mlo_error_set(err, MLO_EUNAVAILABLE, "the GPU does not go on after a way that failed");
    mlo_error_hint(err, "run the same command again, with --keep: it goes on without that way");
    return MLO_EUNAVAILABLE;
}

enum mlo_status cuda_program_tune(const struct mlo_model *model, const struct mlo_compile_options *options,
                                  const struct mlo_tuning_request *request, json_t **out,
                                  struct mlo_error *err)
{
    static const struct cuda_tune_ops ops = {.ways = ways_of,
                                             .build = build,
                                             .release = release,
                                             .time = time_way,
                                             .check = check,
                                             .recover = recover};
    enum mlo_status status;
    struct bench b = {0};
    struct cuda_peaks peaks;
    json_t *machine = NULL;
    MLO_TRY(cuda_plan_compile(model, options, &b.plan, err));
    if (!request->prepare_only) {
        struct cuda_gpu gpu;
        MLO_TRY(cuda_gpu_find(&gpu, err));
        if (gpu.sm != b.plan->sm) { /* it may run that code, but what is fast on it is another thing */
            status = mlo_error_set(err, MLO_EUNAVAILABLE,
                                   "nothing is measured for sm_%d on this GPU (%s), which is sm_%d",
                                   b.plan->sm, gpu.name, gpu.sm);
            mlo_error_hint(err, "tune for it: --target cuda:sm%d; or run this on a GPU of sm_%d", gpu.sm,
                           b.plan->sm);
            goto out;
        }
        MLO_TRY(cuda_program_load(b.plan, &b.program, err));
    }
    MLO_TRY(cuda_engine.identity_of(b.plan, &machine, err));
    bool known = b.program && cuda_device_peaks(&b.program->device->gpu, &peaks, NULL) == MLO_OK;
    b.l2_bytes = known ? peaks.l2_bytes : 0;
    json_object_set_new(machine, "version", json_string(cuda_engine.version()));
    if (b.program) {
        const struct cuda_gpu *gpu = &b.program->device->gpu;
        json_object_set_new(machine, "gpu", json_string(gpu->name));
        json_object_set_new(machine, "multiprocessors", json_integer(gpu->multiprocessors));
        json_object_set_new(machine, "driver", json_integer(gpu->driver));
    }
    const struct cuda_tuning tuning = {.schedule = b.plan->schedule,
                                       .machine = machine,
                                       .peaks = known ? &peaks : NULL,
                                       .max_workspace_bytes = WORKSPACE_MAX,
                                       .ops = &ops,
                                       .arg = &b};
    MLO_TRY(cuda_tune(&tuning, request, out, err));
out:
    cuda_program_unload(b.program);
    cuda_plan_free(b.plan);
    json_decref(machine);
    return status;
}
