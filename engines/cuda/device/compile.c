/* A schedule's steps become works: images for one compute capability, each made once. No GPU is needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"
#include "engines/cuda/tune/tune.h"

struct mlo_plan *cuda_plan_new_take(struct cuda_schedule *schedule, int sm)
{
    struct mlo_plan *plan = calloc(1, sizeof *plan);
    int *work_of = calloc((size_t)schedule->step_count + 1, sizeof *work_of);
    struct cuda_chosen *chosen = calloc((size_t)schedule->step_count + 1, sizeof *chosen);
    const struct mlo_graph *g = schedule->model->graph;
    struct mlo_value **inputs = calloc((size_t)g->input_count + 1, sizeof(struct mlo_value *));
    if (!plan || !work_of || !chosen || !inputs || pthread_mutex_init(&plan->lock, NULL) != 0) {
        free(inputs);
        free(work_of);
        free(chosen);
        free(plan);
        return NULL;
    }
    plan->schedule = schedule;
    plan->sm = sm;
    plan->work_of = work_of;
    plan->chosen = chosen;
    plan->inputs = inputs;
    plan->input_count = mlo_engine_inputs(g, inputs);
    return plan;
}

void cuda_work_clear(struct cuda_work *work)
{
    if (work->owned)
        free(work->image);
    free(work->choice);
    *work = (struct cuda_work){0};
}

void cuda_plan_free(struct mlo_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->work_count; i++)
        cuda_work_clear(&plan->works[i]);
    pthread_mutex_destroy(&plan->lock);
    for (int i = 0; plan->chosen && i < plan->schedule->step_count; i++)
        free(plan->chosen[i].instead);
    free(plan->chosen);
    cuda_schedule_free(plan->schedule);
    free(plan->observed);
    free(plan->inputs);
    free(plan->works);
    free(plan->work_of);
    free(plan);
}

/* --- keys: equal ones are computed by one image ----------------------------------------------------------
 */

/* False: out of memory, and there is no key. */
static bool source_key(const struct cuda_source *s, struct mlo_digest *out)
{
    struct mlo_hasher *h = mlo_hasher_new();
    if (!h)
        return false;
    mlo_hasher_update(h, "kernel", 7);
    mlo_hasher_update(h, s->text, strlen(s->text) + 1);
    mlo_hasher_update(h, s->grid, sizeof s->grid);
    mlo_hasher_update(h, s->block, sizeof s->block);
    mlo_hasher_update(h, &s->shared_bytes, sizeof s->shared_bytes);
    mlo_hasher_final(h, out);
    mlo_hasher_free(h);
    return true;
}

/* The structs come zeroed from an arena, so that their padding is zero too. */
static bool library_key(const struct cuda_step *step, struct mlo_digest *out)
{
    struct mlo_hasher *h = mlo_hasher_new();
    if (!h)
        return false;
    mlo_hasher_update(h, &step->kind, sizeof step->kind);
    mlo_hasher_update(h, step->precision, strlen(step->precision) + 1);
    if (step->kind == CUDA_STEP_CONV)
        mlo_hasher_update(h, step->conv, sizeof *step->conv);
    else if (step->kind == CUDA_STEP_ATTENTION)
        mlo_hasher_update(h, step->attention, sizeof *step->attention);
    else if (step->kind == CUDA_STEP_GEMM)
        mlo_hasher_update(h, step->gemm, sizeof *step->gemm);
    else if (step->kind == CUDA_STEP_COPY)
        mlo_hasher_update(h, &step->copy_bytes, sizeof step->copy_bytes);
    mlo_hasher_final(h, out);
    mlo_hasher_free(h);
    return true;
}

static int find_work(const struct mlo_plan *plan, const struct mlo_digest *key)
{
    for (int i = 0; i < plan->work_count; i++)
        if (mlo_digest_eq(&plan->works[i].key, key))
            return i;
    return -1;
}

/* Room for so many works; those that are there move only then. False: out of memory. */
static bool make_room(struct mlo_plan *plan, int cap)
{
    struct cuda_work *grown = realloc(plan->works, (size_t)cap * sizeof *grown);
    if (!grown)
        return false;
    plan->works = grown;
    plan->work_cap = cap;
    return true;
}

bool cuda_plan_reserve(struct mlo_plan *plan)
{
    int cap = plan->work_count + plan->schedule->step_count + 1;
    return cap <= plan->work_cap || make_room(plan, cap);
}

/* Takes the work over, also when it fails. */
static enum mlo_status add_work(struct mlo_plan *plan, int step, struct cuda_work *work,
                                struct mlo_error *err)
{
    if (plan->work_count == plan->work_cap && !make_room(plan, plan->work_cap ? 2 * plan->work_cap : 64)) {
        cuda_work_clear(work);
        return mlo_error_nomem(err);
    }
    work->step = step;
    if (work->image)
        mlo_digest_of(work->image, work->image_bytes, &work->image_digest);
    plan->work_of[step] = plan->work_count;
    plan->works[plan->work_count++] = *work;
    return MLO_OK;
}

/* --- own kernels ---------------------------------------------------------------------------------------- */

static enum mlo_status kernel_work(const struct mlo_plan *plan, const struct cuda_source *source,
                                   struct cuda_work *out, struct mlo_error *err)
{
    *out = (struct cuda_work){.kind = CUDA_WORK_KERNEL, .shared_bytes = source->shared_bytes, .owned = true};
    memcpy(out->entry, source->entry, sizeof out->entry);
    memcpy(out->grid, source->grid, sizeof out->grid);
    memcpy(out->block, source->block, sizeof out->block);
    return cuda_compile_text(source, plan->sm, &out->image, &out->image_bytes, &out->resources, err);
}

enum mlo_status cuda_plan_own_kernel(struct mlo_plan *plan, int step, struct mlo_error *err)
{
    struct cuda_source source = {0};
    struct cuda_work work = {0};
    struct mlo_digest key;
    enum mlo_status status = cuda_step_source(plan->schedule, &plan->schedule->steps[step], &source, err);
    if (status != MLO_OK)
        return status;
    if (!source_key(&source, &key)) {
        cuda_source_clear(&source);
        return mlo_error_nomem(err);
    }
    int known = find_work(plan, &key);
    if (known >= 0)
        plan->work_of[step] = known;
    else
        status = kernel_work(plan, &source, &work, err);
    cuda_source_clear(&source);
    work.key = key;
    return status == MLO_OK && known < 0 ? add_work(plan, step, &work, err) : status;
}

enum mlo_status cuda_plan_stand_in(struct mlo_plan *plan, int step, const struct mlo_error *why,
                                   struct mlo_error *err)
{
    const struct cuda_step *s = &plan->schedule->steps[step];
    struct mlo_error own = {0};
    enum mlo_status status = cuda_plan_own_kernel(plan, step, &own);
    if (status == MLO_ENOMEM)
        return mlo_error_nomem(err);
    if (status != MLO_OK) {
        mlo_error_set(err, status, "%s, and there is no own kernel for it: %s", why->message, own.message);
        mlo_error_where(err, "node '%s' (%s)", s->node ? s->node->name : "", s->impl);
        mlo_error_hint(err, "%s",
                       own.hint[0] ? own.hint
                                   : "compile the model again on this machine, with these libraries");
        return status;
    }
    plan->chosen[step].measured = false;
    free(plan->chosen[step].instead);
    plan->chosen[step].instead = strdup(why->message);
    return plan->chosen[step].instead ? MLO_OK : mlo_error_nomem(err);
}

/* --- libraries ------------------------------------------------------------------------------------------ */

/* A way that was measured before but is refused here gives way to the heuristics. */
static enum mlo_status library_work(struct mlo_plan *plan, const struct cuda_step *step, const json_t *way,
                                    struct cuda_work *out, struct mlo_error *err)
{
    const char *library = mlo_json_str(way, "library", "");
    enum mlo_status status = MLO_EUNSUPPORTED;
    *out = (struct cuda_work){.kind = step->kind == CUDA_STEP_COPY ? CUDA_WORK_COPY : CUDA_WORK_CUBLASLT};
    if (step->kind == CUDA_STEP_GEMM && strcmp(library, "cublaslt") == 0)
        status = cuda_lt_work(way, out, NULL);
    if (step->kind == CUDA_STEP_CONV || step->kind == CUDA_STEP_ATTENTION) {
        if (strcmp(library, "cudnn") == 0)
            status = cuda_dnn_build(plan->schedule, step, plan->sm, way, out, NULL);
        if (status != MLO_OK && status != MLO_ENOMEM) {
            status = cuda_dnn_build(plan->schedule, step, plan->sm, NULL, out, err);
            memcpy(plan->cudnn, cuda_library_open(CUDA_LIB_CUDNN)->version, sizeof plan->cudnn);
            /* Engines that it compiles itself (int8, attention) it only offers where a driver can load them:
             * without one, load asks again. */
            if (status == MLO_EUNSUPPORTED && !cuda_library_open(CUDA_LIB_DRIVER)->usable) {
                *out = (struct cuda_work){.kind = CUDA_WORK_CUDNN};
                status = MLO_OK;
            }
            return status;
        }
    }
    out->measured = status == MLO_OK;
    return status == MLO_ENOMEM ? mlo_error_nomem(err) : MLO_OK;
}

bool cuda_step_has_choice(const struct cuda_step *step)
{
    return step->kind == CUDA_STEP_CONV || step->kind == CUDA_STEP_ATTENTION ||
           (step->kind == CUDA_STEP_GEMM && cuda_gemm_fuses(step->gemm));
}

static enum mlo_status add_step(struct mlo_plan *plan, int index, const json_t *choices,
                                struct mlo_error *err)
{
    const struct cuda_step *step = &plan->schedule->steps[index];
    const json_t *way = choices ? cuda_step_choice(plan->schedule, step, choices) : NULL;
    struct cuda_work work;
    struct mlo_digest key;
    struct mlo_error refused = {0};
    bool own = strcmp(mlo_json_str(way, "library", ""), "own") == 0;
    if (own || (step->kind != CUDA_STEP_COPY && !cuda_step_has_choice(step))) {
        enum mlo_status done = cuda_plan_own_kernel(plan, index, err);
        plan->chosen[index].measured = done == MLO_OK && own && cuda_step_has_choice(step);
        return done;
    }
    if (!library_key(step, &key))
        return mlo_error_nomem(err);
    int known = find_work(plan, &key);
    if (known >= 0) {
        plan->work_of[index] = known;
        plan->chosen[index].measured = way && plan->works[known].measured;
        return MLO_OK;
    }
    enum mlo_status status = library_work(plan, step, way, &work, &refused);
    if (status == MLO_EUNSUPPORTED || status == MLO_EUNAVAILABLE) /* not this one, or not on this machine */
        return cuda_plan_stand_in(plan, index, &refused, err);
    if (status != MLO_OK) {
        if (err)
            *err = refused;
        return status;
    }
    work.key = key;
    plan->chosen[index].measured = work.measured;
    return add_work(plan, index, &work, err);
}

/* --- the plan ------------------------------------------------------------------------------------------- */

static enum mlo_status target_sm(const struct mlo_compile_options *options, int *sm, struct mlo_error *err)
{
    struct cuda_gpu gpu;
    if (options->target) {
        *sm = mlo_cuda_target_sm(options->target);
        return *sm ? MLO_OK
                   : mlo_error_set(err, MLO_EINVAL, "'%s' is no target of the cuda engine: cuda:sm90, say",
                                   options->target);
    }
    enum mlo_status status = cuda_gpu_find(&gpu, err);
    *sm = gpu.sm;
    return status;
}

/* Choices that were measured with these libraries on such a GPU; else none. */
static const json_t *fitting(const json_t *choices, int sm)
{
    const json_t *machine = json_object_get(choices, "machine");
    bool fits = machine && mlo_cuda_target_sm(mlo_json_str(machine, "target", "")) == sm &&
                strcmp(mlo_json_str(machine, "version", ""), cuda_engine.version()) == 0;
    return fits ? choices : NULL;
}

/* A plan that follows measurements is for the GPU that they were made on. */
static void note_gpu(struct mlo_plan *plan, const json_t *choices)
{
    for (int i = 0; i < plan->schedule->step_count; i++)
        if (plan->chosen[i].measured)
            snprintf(plan->gpu, sizeof plan->gpu, "%s",
                     mlo_json_str(json_object_get(choices, "machine"), "gpu", ""));
}

enum mlo_status cuda_plan_compile(const struct mlo_model *model, const struct mlo_compile_options *options,
                                  struct mlo_plan **out, struct mlo_error *err)
{
    struct cuda_schedule *schedule = NULL;
    struct mlo_plan *plan = NULL;
    int sm = 0;
    enum mlo_status status = target_sm(options, &sm, err);
    if (status != MLO_OK)
        return status;
    if (options->numerics != MLO_NUMERICS_FAST) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the cuda engine has no invariant numerics");
        mlo_error_hint(err, "use the fast ones here, or the engine 'cpu'");
        return status;
    }
    status = cuda_schedule_new(model, options, sm, &schedule, err);
    if (status != MLO_OK)
        return status;
    plan = cuda_plan_new_take(schedule, sm);
    if (!plan) {
        cuda_schedule_free(schedule);
        return mlo_error_nomem(err);
    }
    memcpy(plan->nvrtc, cuda_library_open(CUDA_LIB_NVRTC)->version, sizeof plan->nvrtc);
    plan->observed = calloc(options->observe_count + 1, sizeof(struct mlo_value *));
    if (!plan->observed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    plan->observed_count = options->observe_count;
    MLO_TRY(mlo_engine_observed(schedule->model->graph, options, plan->observed, err));
    const json_t *choices = fitting(options->choices, sm);
    for (int i = 0; i < schedule->step_count; i++) {
        const struct mlo_node *node = schedule->steps[i].node;
        status = add_step(plan, i, choices, err);
        if (status != MLO_OK) {
            mlo_error_where(err, "node '%s' (%s)", node ? node->name : "", schedule->steps[i].impl);
            goto out;
        }
    }
    note_gpu(plan, choices);
    *out = plan;
    plan = NULL;
out:
    cuda_plan_free(plan);
    return status;
}
