/* The cuda engine's table of functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"

static const char *version(void)
{
    static char text[160];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!text[0]) {
        const struct cuda_library_state *nvrtc = cuda_library_open(CUDA_LIB_NVRTC),
                                        *cudnn = cuda_library_open(CUDA_LIB_CUDNN),
                                        *lt = cuda_library_open(CUDA_LIB_CUBLASLT);
        snprintf(text, sizeof text, "cuda 1 (NVRTC %s, cuDNN %s, cuBLASLt %s)",
                 nvrtc->usable ? nvrtc->version : "absent", cudnn->usable ? cudnn->version : "absent",
                 lt->usable ? lt->version : "absent");
    }
    pthread_mutex_unlock(&lock);
    return text;
}

static enum mlo_status probe(struct mlo_error *err)
{
    struct cuda_gpu gpu;
    return cuda_gpu_find(&gpu, err);
}

static enum mlo_status can_compile(const char *target, struct mlo_error *err)
{
    const struct cuda_nvrtc *api;
    int sm = mlo_cuda_target_sm(target), count = 0, *known = NULL;
    bool good = false;
    if (!sm)
        return mlo_error_set(err, MLO_EINVAL, "'%s' is no target of the cuda engine: cuda:sm90, say", target);
    enum mlo_status status = cuda_get_nvrtc(&api, err);
    if (status != MLO_OK)
        return status;
    if (api->nvrtcGetNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0 &&
        (known = calloc((size_t)count, sizeof *known)) && api->nvrtcGetSupportedArchs(known) == NVRTC_SUCCESS)
        for (int i = 0; i < count; i++)
            good |= known[i] == sm;
    if (!good) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "NVRTC %s does not compile for sm_%d",
                               cuda_library_open(CUDA_LIB_NVRTC)->version, sm);
        mlo_error_hint(err, "it compiles for sm_%d to sm_%d", count && known ? known[0] : 0,
                       count && known ? known[count - 1] : 0);
    }
    free(known);
    return status;
}

static void footprint(const struct mlo_plan *plan, struct mlo_footprint *out)
{
    *out = (struct mlo_footprint){.plan_bytes = plan->schedule->constant_bytes,
                                  .program_bytes = plan->schedule->arena_bytes};
    for (int i = 0; i < plan->work_count; i++)
        out->plan_bytes += plan->works[i].owned ? plan->works[i].image_bytes : 0;
}

static const struct mlo_model *interface(const struct mlo_plan *plan)
{
    return plan->schedule->model;
}

/* What every plan of this engine has in common with the machine; libraries may differ, since what they made
 * is made again where it does not fit. */
static enum mlo_status identity(json_t **out, struct mlo_error *err)
{
    struct cuda_gpu gpu;
    *out = json_pack("{s:s, s:s}", "engine", "cuda", "revision", cuda_source_revision);
    if (*out && cuda_gpu_find(&gpu, NULL) == MLO_OK) {
        char target[32];
        snprintf(target, sizeof target, "cuda:sm%d", gpu.sm);
        json_object_set_new(*out, "target", json_string(target));
        json_object_set_new(*out, "gpu", json_string(gpu.name));
    }
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status identity_of(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    char target[32];
    snprintf(target, sizeof target, "cuda:sm%d", plan->sm);
    *out = json_pack("{s:s, s:s, s:s}", "engine", "cuda", "revision", cuda_source_revision, "target", target);
    if (*out && plan->gpu[0])
        json_object_set_new(*out, "gpu", json_string(plan->gpu));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static const char *const work_names[CUDA_WORK_KINDS] = {
    [CUDA_WORK_KERNEL] = "kernel",
    [CUDA_WORK_CUDNN] = "cudnn",
    [CUDA_WORK_CUBLASLT] = "cublaslt",
    [CUDA_WORK_COPY] = "copy",
};

static json_t *describe_step(const struct mlo_plan *plan, int i)
{
    const struct cuda_step *step = &plan->schedule->steps[i];
    const struct cuda_chosen *chosen = &plan->chosen[i];
    const struct cuda_work *w = &plan->works[plan->work_of[i]];
    json_t *fused = json_array();
    for (int k = 0; k < step->fused_count; k++)
        json_array_append_new(fused, json_string(step->fused[k]));
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o}", "node", step->node ? step->node->name : "",
                            "op", step->node ? step->node->op_type : "", "impl", step->impl, "by",
                            work_names[w->kind], "precision", step->precision, "chosen",
                            chosen->instead               ? "stand-in"
                            : !cuda_step_has_choice(step) ? "only way"
                            : chosen->measured            ? "measured"
                                                          : "heuristic",
                            "fused", fused);
    if (chosen->instead)
        json_object_set_new(row, "instead", json_string(chosen->instead));
    if (w->choice)
        json_object_set_new(row, "choice", json_string(w->choice));
    if (w->kind == CUDA_WORK_KERNEL)
        json_object_set_new(row, "kernel",
                            json_pack("{s:s, s:[iii], s:[iii], s:i, s:i, s:i}", "entry", w->entry, "grid",
                                      (int)w->grid[0], (int)w->grid[1], (int)w->grid[2], "block",
                                      (int)w->block[0], (int)w->block[1], (int)w->block[2], "registers",
                                      (int)w->resources.registers, "local_bytes",
                                      (int)w->resources.frame_bytes, "shared_bytes",
                                      (int)(w->resources.shared_bytes + w->shared_bytes)));
    return row;
}

enum mlo_status cuda_plan_describe(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    char target[32];
    int int8_nodes = 0, measured = 0;
    size_t image_bytes = 0;
    json_t *nodes = json_array();
    pthread_mutex_lock((pthread_mutex_t *)&plan->lock);
    for (int i = 0; i < plan->schedule->step_count; i++) {
        json_array_append_new(nodes, describe_step(plan, i));
        int8_nodes += strcmp(plan->schedule->steps[i].precision, "int8") == 0;
        measured += plan->chosen[i].measured;
    }
    for (int i = 0; i < plan->work_count; i++)
        image_bytes += plan->works[i].image_bytes;
    pthread_mutex_unlock((pthread_mutex_t *)&plan->lock);
    snprintf(target, sizeof target, "cuda:sm%d", plan->sm);
    *out = json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:i, s:I, s:I, s:I, s:i}", "engine", "cuda", "version",
                     version(), "target", target, "choice", measured ? "measured" : "heuristic", "numerics",
                     "fast", "nodes", nodes, "int8_nodes", int8_nodes, "arena_bytes",
                     (json_int_t)plan->schedule->arena_bytes, "constant_bytes",
                     (json_int_t)plan->schedule->constant_bytes, "image_bytes", (json_int_t)image_bytes,
                     "images", plan->work_count);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

const struct mlo_engine cuda_engine = {
    .name = "cuda",
    .version = version,
    .probe = probe,
    .compile = cuda_plan_compile,
    .load = cuda_program_load,
    .run = cuda_program_run,
    .observe = cuda_program_observe,
    .profile = cuda_program_profile,
    .describe = cuda_plan_describe,
    .unload = cuda_program_unload,
    .footprint = footprint,
    .free_plan = cuda_plan_free,
    .save = cuda_plan_save,
    .restore = cuda_plan_restore,
    .interface = interface,
    .identity = identity,
    .can_compile = can_compile,
    .identity_of = identity_of,
    .may_lack = "gpu",
    .inventory = cuda_inventory,
    .tune = cuda_program_tune,
    .measure = cuda_program_measure,
};
