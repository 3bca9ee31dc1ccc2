/* The GPU: found, described, and with what a plan's programs have in common on it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"

static const struct {
    CUdevice_attribute attribute;
    size_t offset;
} facts[] = {
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, offsetof(struct cuda_gpu, multiprocessors)},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, offsetof(struct cuda_gpu, clock_khz)},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, offsetof(struct cuda_gpu, memory_clock_khz)},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, offsetof(struct cuda_gpu, memory_bus_bits)},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, offsetof(struct cuda_gpu, l2_bytes)},
};

/* As nvidia-smi writes it: hexadecimal, in groups of 4, 2, 2, 2 and 6 bytes. */
static void write_uuid(const CUuuid *id, char *out, size_t size)
{
    static const char hyphen_behind[16] = {[3] = 1, [5] = 1, [7] = 1, [9] = 1};
    size_t at = (size_t)snprintf(out, size, "GPU-");
    for (size_t i = 0; i < sizeof id->bytes && at + 4 < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%02x%s", (unsigned)(unsigned char)id->bytes[i],
                               hyphen_behind[i] ? "-" : "");
}

static bool read_gpu(const struct cuda_driver *d, int index, struct cuda_gpu *out)
{
    CUdevice device;
    CUuuid id;
    int major = 0, minor = 0;
    *out = (struct cuda_gpu){.index = index};
    if (d->cuDeviceGet(&device, index) != CUDA_SUCCESS ||
        d->cuDeviceGetName(out->name, sizeof out->name, device) != CUDA_SUCCESS ||
        d->cuDeviceTotalMem(&out->memory_bytes, device) != CUDA_SUCCESS ||
        d->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) !=
            CUDA_SUCCESS ||
        d->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) != CUDA_SUCCESS)
        return false;
    for (size_t i = 0; i < MLO_COUNT(facts); i++) /* what a driver does not know stays 0 */
        (void)d->cuDeviceGetAttribute((int *)((char *)out + facts[i].offset), facts[i].attribute, device);
    out->name[sizeof out->name - 1] = 0;
    if (d->cuDeviceGetUuid(&id, device) == CUDA_SUCCESS)
        write_uuid(&id, out->uuid, sizeof out->uuid);
    out->sm = 10 * major + minor;
    (void)d->cuDriverGetVersion(&out->driver);
    return true;
}

enum mlo_status cuda_gpu_find(struct cuda_gpu *out, struct mlo_error *err)
{
    const struct cuda_driver *d;
    int count = 0;
    *out = (struct cuda_gpu){0};
    enum mlo_status status = cuda_get_driver(&d, err);
    if (status != MLO_OK)
        return status;
    CUresult result = d->cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, "looking for GPUs", err);
    if (count < 1 || !read_gpu(d, 0, out)) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "there is no NVIDIA GPU on this machine");
        mlo_error_hint(err, "a plan for one can be compiled here all the same: --target cuda:sm90");
        return status;
    }
    return MLO_OK;
}

enum mlo_status cuda_inventory(json_t **out, struct mlo_error *err)
{
    const struct cuda_driver *d;
    struct cuda_gpu gpu;
    int count = 0;
    json_t *parts = json_array(), *gpus = json_array();
    for (int i = 0; i < CUDA_LIBRARIES; i++) {
        const struct cuda_library_state *s = cuda_library_open((enum cuda_library)i);
        json_array_append_new(
            parts,
            json_pack("{s:s, s:s, s:b, s:s, s:s?, s:s, s:s, s:s, s:s}", "name", s->name, "kind",
                      i == CUDA_LIB_DRIVER ? "driver" : "library", "found", s->usable, "version", s->version,
                      "path", s->path, "why", s->problem.message, "hint", s->problem.hint, "purpose",
                      s->purpose, "for", i == CUDA_LIB_NVRTC || i == CUDA_LIB_CUDNN ? "compile" : "run"));
    }
    if (cuda_get_driver(&d, NULL) == MLO_OK && d->cuDeviceGetCount(&count) == CUDA_SUCCESS)
        for (int i = 0; i < count; i++)
            if (read_gpu(d, i, &gpu))
                json_array_append_new(gpus, json_pack("{s:s, s:s, s:i, s:i, s:I}", "name", gpu.name, "uuid",
                                                      gpu.uuid, "sm", gpu.sm, "multiprocessors",
                                                      gpu.multiprocessors, "memory_bytes",
                                                      (json_int_t)gpu.memory_bytes));
    *out = json_pack("{s:o, s:o}", "parts", parts, "gpus", gpus);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

/* --- a plan on the device ------------------------------------------------------------------------------- */

static void close_device(struct cuda_device *device)
{
    const struct cuda_driver *d = device->driver;
    for (int i = 0; device->modules && i <= device->works; i++) /* the last one may have failed halfway */
        if (device->modules[i])
            d->cuModuleUnload(device->modules[i]);
    if (device->constants)
        d->cuMemFree(device->constants);
    if (device->context)
        d->cuDevicePrimaryCtxRelease(device->handle);
    free(device->modules);
    free(device->functions);
    free(device);
}

static enum mlo_status load_module(struct cuda_device *device, const struct cuda_work *work, int index,
                                   struct mlo_error *err)
{
    enum { DEFAULT_SHARED_MAX = 48 << 10 };
    const struct cuda_driver *d = device->driver;
    CUresult result = d->cuModuleLoadData(&device->modules[index], work->image);
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE)
        return mlo_error_set(err, MLO_ESTALE, "kernel '%s' was not compiled for this GPU (%s)", work->entry,
                             device->gpu.name);
    if (result == CUDA_SUCCESS)
        result = d->cuModuleGetFunction(&device->functions[index], device->modules[index], work->entry);
    if (result == CUDA_SUCCESS && work->shared_bytes > DEFAULT_SHARED_MAX)
        result =
            d->cuFuncSetAttribute(device->functions[index], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  (int)work->shared_bytes);
    return result == CUDA_SUCCESS ? MLO_OK : cuda_failed(result, "loading a kernel", err);
}

/* Of the works that are new. */
static enum mlo_status load_modules(const struct mlo_plan *plan, struct cuda_device *device,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    while (status == MLO_OK && device->works < plan->work_count) {
        int i = device->works;
        if (plan->works[i].kind == CUDA_WORK_KERNEL)
            status = load_module(device, &plan->works[i], i, err);
        device->works += status == MLO_OK;
    }
    return status;
}

static enum mlo_status upload_constants(const struct mlo_plan *plan, struct cuda_device *device,
                                        struct mlo_error *err)
{
    const struct cuda_schedule *s = plan->schedule;
    const struct cuda_driver *d = device->driver;
    if (!s->constant_bytes)
        return MLO_OK;
    CUresult result = d->cuMemAlloc(&device->constants, s->constant_bytes);
    if (result != CUDA_SUCCESS) {
        enum mlo_status status = cuda_failed(result, "taking memory for the constants", err);
        mlo_error_hint(err, "they need %zu bytes of the GPU's memory", s->constant_bytes);
        return status;
    }
    for (int i = 0; i < s->slot_count && result == CUDA_SUCCESS; i++) {
        const struct cuda_slot *slot = &s->slots[i];
        if (slot->kind == CUDA_SLOT_CONST && !slot->is_part && slot->data && slot->size_bytes)
            result = d->cuMemcpyHtoD(device->constants + slot->offset, slot->data, slot->size_bytes);
    }
    return result == CUDA_SUCCESS ? MLO_OK : cuda_failed(result, "bringing constants to the GPU", err);
}

static enum mlo_status open_device(const struct mlo_plan *plan, struct cuda_device **out,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    struct cuda_device *device = calloc(1, sizeof *device);
    if (!device)
        return mlo_error_nomem(err);
    MLO_TRY(cuda_get_driver(&device->driver, err));
    MLO_TRY(cuda_gpu_find(&device->gpu, err));
    const struct cuda_driver *d = device->driver;
    if (device->gpu.sm / 10 != plan->sm / 10 || device->gpu.sm < plan->sm) {
        status = mlo_error_set(err, MLO_ESTALE, "the plan was compiled for sm_%d, and this GPU (%s) is sm_%d",
                               plan->sm, device->gpu.name, device->gpu.sm);
        mlo_error_hint(err, "compile the model again: --target cuda:sm%d", device->gpu.sm);
        goto out;
    }
    CUresult result = d->cuDeviceGet(&device->handle, device->gpu.index);
    if (result == CUDA_SUCCESS)
        result = d->cuDevicePrimaryCtxRetain(&device->context, device->handle);
    if (result == CUDA_SUCCESS)
        result = d->cuCtxSetCurrent(device->context);
    if (result != CUDA_SUCCESS) {
        status = cuda_failed(result, "opening the GPU", err);
        goto out;
    }
    size_t works = (size_t)plan->work_count + (size_t)plan->schedule->step_count + 1;
    device->modules = calloc(works, sizeof *device->modules);
    device->functions = calloc(works, sizeof *device->functions);
    if (!device->modules || !device->functions) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(upload_constants(plan, device, err));
    MLO_TRY(load_modules(plan, device, err));
    *out = device;
    device = NULL;
out:
    if (device)
        close_device(device);
    return status;
}

/* What cuDNN could not be asked for when the plan was compiled, without a GPU. MLO_EUNSUPPORTED: it has no
 * engine for it. */
static enum mlo_status ask_again(struct mlo_plan *plan, int step, struct mlo_error *err)
{
    struct cuda_work *work = &plan->works[plan->work_of[step]], made;
    enum mlo_status status =
        cuda_dnn_build(plan->schedule, &plan->schedule->steps[step], plan->sm, NULL, &made, err);
    if (status != MLO_OK)
        return status;
    made.key = work->key;
    made.step = work->step;
    mlo_digest_of(made.image, made.image_bytes, &made.image_digest);
    cuda_work_clear(work);
    *work = made;
    return MLO_OK;
}

/* Where a library is absent or has nothing for a step, own kernels compute it. */
static enum mlo_status without_libraries(struct mlo_plan *plan, struct mlo_error *err)
{
    static const enum cuda_library needs[CUDA_WORK_KINDS] = {
        [CUDA_WORK_KERNEL] = CUDA_LIB_DRIVER,
        [CUDA_WORK_CUDNN] = CUDA_LIB_CUDNN,
        [CUDA_WORK_CUBLASLT] = CUDA_LIB_CUBLASLT,
        [CUDA_WORK_COPY] = CUDA_LIB_DRIVER,
    };
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < plan->schedule->step_count && status == MLO_OK; i++) {
        const struct cuda_work *work = &plan->works[plan->work_of[i]];
        enum cuda_library needed = needs[work->kind];
        struct mlo_error why = {0};
        if (needed != CUDA_LIB_DRIVER && !cuda_library_open(needed)->usable)
            why = cuda_library_open(needed)->problem;
        else if (work->kind == CUDA_WORK_CUDNN && !work->image_bytes)
            status = ask_again(plan, i, &why);
        if (status != MLO_OK && status != MLO_EUNSUPPORTED) {
            if (err)
                *err = why;
        } else if (why.status != MLO_OK) {
            status = cuda_plan_stand_in(plan, i, &why, err);
        }
    }
    return status;
}

enum mlo_status cuda_device_get(struct mlo_plan *plan, struct cuda_device **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    pthread_mutex_lock(&plan->lock);
    if (!plan->device)
        status = without_libraries(plan, err);
    if (status == MLO_OK && !plan->device && !cuda_plan_reserve(plan))
        status = mlo_error_nomem(err);
    if (status == MLO_OK && !plan->device)
        status = open_device(plan, &plan->device, err);
    if (status == MLO_OK) {
        plan->device->references++;
        CUresult result = plan->device->driver->cuCtxSetCurrent(plan->device->context);
        if (result != CUDA_SUCCESS)
            status = cuda_failed(result, "opening the GPU", err);
        if (status == MLO_OK) { /* who has it puts it back: nobody does who was refused it */
            *out = plan->device;
        } else if (--plan->device->references == 0) {
            close_device(plan->device);
            plan->device = NULL;
        }
    }
    pthread_mutex_unlock(&plan->lock);
    return status;
}

int cuda_device_work(struct mlo_plan *plan, int step)
{
    pthread_mutex_lock(&plan->lock);
    int work = plan->work_of[step];
    pthread_mutex_unlock(&plan->lock);
    return work;
}

enum mlo_status cuda_device_stand_in(struct mlo_plan *plan, int step, const struct mlo_error *why, int *work,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    pthread_mutex_lock(&plan->lock);
    if (plan->works[plan->work_of[step]].kind != CUDA_WORK_KERNEL) /* else another program found it, too */
        status = cuda_plan_stand_in(plan, step, why, err);
    if (status == MLO_OK)
        status = load_modules(plan, plan->device, err);
    *work = plan->work_of[step];
    pthread_mutex_unlock(&plan->lock);
    return status;
}

void cuda_device_put(struct mlo_plan *plan)
{
    pthread_mutex_lock(&plan->lock);
    if (--plan->device->references == 0) {
        close_device(plan->device);
        plan->device = NULL;
    }
    pthread_mutex_unlock(&plan->lock);
}
