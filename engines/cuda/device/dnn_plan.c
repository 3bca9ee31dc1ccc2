/* cuDNN's plans: chosen by its heuristics for a device that need not be here, written as JSON (which holds
 * the compiled kernel), loaded and run. */
#include "engines/cuda/device/dnn_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/tune/tune.h"

enum { ADVISED_MAX = 32, NOTES_MAX = 16, PLAN_MAX = 16 << 20 };

/* --- devices -------------------------------------------------------------------------------------------- */

static enum mlo_status export_profile(const struct cuda_gpu *gpu, struct mlo_buf *out, struct mlo_error *err)
{
    struct dnn_scope s;
    int32_t device = gpu->index;
    enum mlo_status status = dnn_scope_init(&s, err);
    if (status != MLO_OK)
        return status;
    cudnnBackendDescriptor_t d = dnn_new(&s, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    dnn_set(&s, d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device);
    dnn_finalize(&s, d);
    int64_t size = dnn_get(&s, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, NULL);
    if (size > 0 && size < PLAN_MAX && mlo_buf_reserve(out, (size_t)size)) {
        int64_t got = dnn_get(&s, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, size,
                              out->data + out->len);
        out->len += got > 0 ? (size_t)got : 0;
        while (out->len && !out->data[out->len - 1]) /* its end is counted */
            out->len--;
    }
    status = dnn_status(&s, err);
    dnn_scope_clear(&s);
    return status == MLO_OK && !out->len ? mlo_error_set(err, MLO_EIO, "cuDNN does not describe the GPU")
                                         : status;
}

enum mlo_status cuda_profile(int sm, struct mlo_buf *out, struct mlo_error *err)
{
    struct cuda_gpu gpu;
    char name[32];
    if (cuda_library_open(CUDA_LIB_DRIVER)->usable && cuda_gpu_find(&gpu, NULL) == MLO_OK && gpu.sm == sm &&
        export_profile(&gpu, out, NULL) == MLO_OK)
        return MLO_OK;
    mlo_buf_reset(out);
    snprintf(name, sizeof name, "sm%d.json", sm);
    for (size_t i = 0; i < cuda_profiles_count; i++)
        if (strcmp(cuda_profiles[i].name, name) == 0) {
            size_t size = cuda_profiles[i].size;
            while (size &&
                   cuda_profiles[i].text[size - 1] == '\n') /* cuDNN takes nothing behind the object */
                size--;
            mlo_buf_append(out, cuda_profiles[i].text, size);
            return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
        }
    return mlo_error_set(err, MLO_EUNSUPPORTED, "no device of sm_%d is described to cuDNN", sm);
}

static cudnnBackendDescriptor_t device_of(struct dnn_scope *s, const struct mlo_buf *profile)
{
    cudnnBackendDescriptor_t d = dnn_new(s, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    dnn_set(s, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)profile->len,
            mlo_buf_str(profile));
    dnn_finalize(s, d);
    return d;
}

/* --- engines and their configurations ------------------------------------------------------------------- */

struct asked {
    struct dnn_scope scope;
    struct mlo_buf profile;
    cudnnBackendDescriptor_t graph, device;
};

static void asked_clear(struct asked *a)
{
    dnn_scope_clear(&a->scope);
    mlo_buf_clear(&a->profile);
}

static enum mlo_status ask(const struct cuda_schedule *schedule, const struct cuda_step *step, int sm,
                           struct asked *out, struct mlo_error *err)
{
    *out = (struct asked){0};
    enum mlo_status status = dnn_scope_init(&out->scope, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(cuda_profile(sm, &out->profile, err));
    MLO_TRY(dnn_graph(&out->scope, schedule, step, &out->graph, err));
    out->device = device_of(&out->scope, &out->profile);
    MLO_TRY(dnn_status(&out->scope, err));
out:
    if (status != MLO_OK)
        asked_clear(out);
    return status;
}

static int64_t advised(struct asked *a, cudnnBackendHeurMode_t mode, cudnnBackendDescriptor_t *out)
{
    struct dnn_scope *s = &a->scope;
    cudnnBackendDescriptor_t h = dnn_new(s, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    dnn_set(s, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a->graph);
    dnn_set(s, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    dnn_set(s, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a->device);
    dnn_finalize(s, h);
    for (int i = 0; i < ADVISED_MAX; i++)
        out[i] = dnn_new(s, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t count =
        dnn_get(s, h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ADVISED_MAX, out);
    return MLO_MIN(count, ADVISED_MAX);
}

/* What an engine does to numbers that the step did not ask for. */
static bool is_exact_enough(struct dnn_scope *s, cudnnBackendDescriptor_t engine,
                            const struct cuda_step *step)
{
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    int64_t count =
        dnn_get(s, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, notes);
    bool full = strcmp(step->precision, "f32") == 0; /* not even TF32 */
    for (int64_t i = 0; i < MLO_MIN(count, NOTES_MAX); i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
            notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
            (full && (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                      notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)))
            return false;
    cudnnBackendBehaviorNote_t needs[NOTES_MAX];
    count = dnn_get(s, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, NOTES_MAX, needs);
    bool compiled = false;
    for (int64_t i = 0; i < MLO_MIN(count, NOTES_MAX); i++) {
        compiled |= needs[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
        if (needs[i] == CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER ||
            needs[i] == CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER)
            return false; /* weights lie otherwise here */
    }
    /* Precompiled ones take a product by a tensor for one by a number, which they read on the host: 9.19's
     * engine 11 ends the process. */
    return compiled || step->kind != CUDA_STEP_CONV || !step->conv->has_scale;
}

static cudnnBackendDescriptor_t engine_of(struct dnn_scope *s, cudnnBackendDescriptor_t config)
{
    cudnnBackendDescriptor_t engine = dnn_new(s, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    dnn_get(s, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    return engine;
}

/* {"library":"cudnn","engine":2,"knobs":{"7":3}}; NULL: out of memory. */
static json_t *way_of(struct dnn_scope *s, cudnnBackendDescriptor_t config)
{
    int64_t engine = -1, count;
    cudnnBackendDescriptor_t choices[CUDNN_KNOB_TYPE_COUNTS];
    json_t *knobs = json_object();
    dnn_get(s, engine_of(s, config), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine);
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; i++)
        choices[i] = dnn_new(s, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    count = dnn_get(s, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                    CUDNN_KNOB_TYPE_COUNTS, choices);
    for (int64_t i = 0; i < MLO_MIN(count, (int64_t)CUDNN_KNOB_TYPE_COUNTS); i++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        int64_t value = 0;
        char name[16];
        if (!dnn_get(s, choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type) ||
            !dnn_get(s, choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value))
            continue;
        snprintf(name, sizeof name, "%d", (int)type);
        json_object_set_new(knobs, name, json_integer(value));
    }
    return json_pack("{s:s, s:I, s:o}", "library", "cudnn", "engine", (json_int_t)engine, "knobs", knobs);
}

static cudnnBackendDescriptor_t engine_by_index(struct asked *a, int64_t index)
{
    struct dnn_scope *s = &a->scope;
    cudnnBackendDescriptor_t engine = dnn_new(s, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    dnn_set(s, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a->graph);
    dnn_set(s, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    dnn_set(s, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a->device);
    dnn_finalize(s, engine);
    return engine;
}

static cudnnBackendDescriptor_t config_of(struct asked *a, const json_t *way)
{
    struct dnn_scope *s = &a->scope;
    cudnnBackendDescriptor_t knobs[CUDNN_KNOB_TYPE_COUNTS];
    const char *name;
    json_t *value;
    int64_t count = 0;
    cudnnBackendDescriptor_t engine = engine_by_index(a, mlo_json_i64(way, "engine", -1));
    json_object_foreach(json_object_get(way, "knobs"), name, value)
    {
        int64_t number = -1, chosen = json_integer_value(value);
        if (count == CUDNN_KNOB_TYPE_COUNTS || !mlo_str_to_i64(name, &number) || number < 0 ||
            number >= CUDNN_KNOB_TYPE_COUNTS)
            continue;
        cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)number;
        cudnnBackendDescriptor_t d = dnn_new(s, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        dnn_set(s, d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
        dnn_set(s, d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &chosen);
        dnn_finalize(s, d);
        knobs[count++] = d;
    }
    cudnnBackendDescriptor_t config = dnn_new(s, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    dnn_set(s, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    if (count)
        dnn_set(s, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, knobs);
    dnn_finalize(s, config);
    return config;
}

static void engine_ways(struct asked *a, const struct cuda_step *step, int64_t index, int limit, json_t *ways,
                        enum mlo_status *status, struct mlo_error *err)
{
    struct dnn_scope *s = &a->scope;
    struct cuda_knob knobs[CUDA_KNOBS_MAX];
    cudnnBackendDescriptor_t infos[CUDNN_KNOB_TYPE_COUNTS];
    cudnnBackendDescriptor_t engine = engine_by_index(a, index);
    int n = 0;
    if (s->failed || !is_exact_enough(s, engine, step)) {
        dnn_scope_retry(s);
        return;
    }
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; i++)
        infos[i] = dnn_new(s, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
    int64_t count = dnn_get(s, engine, CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                            CUDNN_KNOB_TYPE_COUNTS, infos);
    for (int64_t i = 0; i < MLO_MIN(count, (int64_t)CUDNN_KNOB_TYPE_COUNTS) && n < CUDA_KNOBS_MAX; i++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        struct cuda_knob k = {0};
        if (dnn_get(s, infos[i], CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type) &&
            dnn_get(s, infos[i], CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, 1, &k.min) &&
            dnn_get(s, infos[i], CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, 1, &k.max) &&
            dnn_get(s, infos[i], CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, 1, &k.stride) &&
            k.stride > 0) {
            k.type = type;
            knobs[n++] = k;
        }
    }
    *status = cuda_ways_engine(ways, index, knobs, n, limit, err);
}

enum mlo_status cuda_dnn_ways(const struct cuda_schedule *schedule, const struct cuda_step *step, int sm,
                              int limit, json_t *ways, struct mlo_error *err)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    struct asked a;
    cudnnBackendDescriptor_t configs[ADVISED_MAX];
    enum mlo_status status = ask(schedule, step, sm, &a, err);
    if (status != MLO_OK)
        return status;
    for (size_t m = 0; m < MLO_COUNT(modes); m++) {
        int64_t count = advised(&a, modes[m], configs);
        for (int64_t i = 0; i < count; i++)
            if (is_exact_enough(&a.scope, engine_of(&a.scope, configs[i]), step) &&
                !cuda_ways_add(ways, way_of(&a.scope, configs[i]))) {
                status = mlo_error_nomem(err);
                goto out;
            }
        dnn_scope_retry(&a.scope);
    }
    int64_t engines = 0;
    dnn_get(&a.scope, a.graph, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, 1, &engines);
    for (int64_t i = 0; i < engines && status == MLO_OK; i++)
        engine_ways(&a, step, i, limit, ways, &status, err);
out:
    asked_clear(&a);
    return status;
}

/* --- building ------------------------------------------------------------------------------------------- */

static enum mlo_status take_plan(struct dnn_scope *s, cudnnBackendDescriptor_t plan, struct cuda_work *out,
                                 struct mlo_error *err)
{
    struct mlo_buf json = MLO_BUF_INIT;
    int64_t got = 0, workspace = 0;
    dnn_get(s, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
    int64_t size = dnn_get(s, plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, NULL);
    if (size > 0 && size <= PLAN_MAX && mlo_buf_reserve(&json, (size_t)size))
        got =
            dnn_get(s, plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, size, json.data);
    if (got <= 0) {
        mlo_buf_clear(&json);
        return mlo_error_set(err, MLO_EIO, "cuDNN does not write its plan down");
    }
    json.len = (size_t)MLO_MIN(got, size);
    *out = (struct cuda_work){.kind = CUDA_WORK_CUDNN, .image_bytes = json.len, .owned = true};
    out->workspace_bytes = MLO_MAX(workspace, 0);
    out->image = mlo_buf_take(&json);
    return out->image ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status build_config(struct asked *a, cudnnBackendDescriptor_t config, struct cuda_work *out,
                                    struct mlo_error *err)
{
    struct dnn_scope *s = &a->scope;
    cudnnBackendDescriptor_t plan = dnn_new(s, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    dnn_set(s, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    dnn_set(s, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a->device);
    dnn_finalize(s, plan);
    enum mlo_status status = dnn_status(s, err);
    if (status == MLO_OK)
        status = take_plan(s, plan, out, err);
    if (status != MLO_OK)
        return status;
    json_t *way = way_of(s, config);
    out->choice = way ? json_dumps(way, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(way);
    return out->choice ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status build_advised(struct asked *a, const struct cuda_step *step, struct cuda_work *out,
                                     struct mlo_error *err)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    cudnnBackendDescriptor_t configs[ADVISED_MAX];
    struct mlo_error first = {0};
    for (size_t m = 0; m < MLO_COUNT(modes); m++) {
        int64_t count = advised(a, modes[m], configs);
        for (int64_t i = 0; i < count; i++) {
            struct mlo_error why = {0};
            if (!is_exact_enough(&a->scope, engine_of(&a->scope, configs[i]), step))
                continue;
            enum mlo_status status = build_config(a, configs[i], out, &why);
            if (status == MLO_OK || status == MLO_ENOMEM) {
                if (err && status != MLO_OK)
                    *err = why;
                return status;
            }
            cuda_work_clear(out);
            if (first.status == MLO_OK)
                first = why;
            dnn_scope_retry(&a->scope);
        }
        if (first.status == MLO_OK)
            first.status = dnn_status(&a->scope, &first);
        dnn_scope_retry(&a->scope);
    }
    return mlo_error_set(err, MLO_EUNSUPPORTED, "cuDNN has no engine for it%s%s",
                         first.message[0] ? ": " : "", first.message);
}

/* What a plan that was built before is known by. */
static enum mlo_status key_of(const struct cuda_schedule *schedule, const struct cuda_step *step,
                              const struct asked *a, const json_t *way, struct mlo_digest *out,
                              struct mlo_error *err)
{
    struct mlo_digest what;
    char hex[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = cuda_step_key(schedule, step, &what, err);
    if (status != MLO_OK)
        return status;
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(&text, "cudnn %s\n%s\n%s\n%s\n", cuda_library_open(CUDA_LIB_CUDNN)->version,
                   cuda_source_revision, mlo_digest_hex(&what, hex), step->precision);
    mlo_buf_puts(&text, mlo_buf_str(&a->profile));
    mlo_buf_puts(&text, "\n");
    if (way)
        mlo_json_canonical(way, &text);
    mlo_digest_of(mlo_buf_str(&text), text.len, out);
    status = mlo_buf_ok(&text) ? MLO_OK : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    return status;
}

/* In the user's cache: the size of the workspace, the way's text with its end, the plan. */
static bool known(const struct mlo_digest *key, struct cuda_work *out)
{
    struct mlo_buf bytes = MLO_BUF_INIT;
    int64_t workspace;
    bool good = false;
    if (cuda_cache_get(key, "plan", &bytes) && bytes.len > sizeof workspace) {
        const char *choice = bytes.data + sizeof workspace;
        const char *end = memchr(choice, 0, bytes.len - sizeof workspace);
        size_t size = end ? (size_t)(bytes.data + bytes.len - end - 1) : 0;
        memcpy(&workspace, bytes.data, sizeof workspace);
        *out = (struct cuda_work){.kind = CUDA_WORK_CUDNN, .image_bytes = size, .workspace_bytes = workspace};
        out->owned = true;
        out->image = size ? malloc(size + 1) : NULL;
        out->choice = end ? strdup(choice) : NULL;
        good = out->image && out->choice;
        if (good)
            memcpy(out->image, end + 1, size);
        else
            cuda_work_clear(out);
    }
    mlo_buf_clear(&bytes);
    return good;
}

static void remember(const struct mlo_digest *key, const struct cuda_work *work)
{
    struct mlo_buf bytes = MLO_BUF_INIT;
    mlo_buf_append(&bytes, &work->workspace_bytes, sizeof work->workspace_bytes);
    mlo_buf_append(&bytes, work->choice, strlen(work->choice) + 1);
    mlo_buf_append(&bytes, work->image, work->image_bytes);
    if (mlo_buf_ok(&bytes))
        cuda_cache_put(key, "plan", bytes.data, bytes.len);
    mlo_buf_clear(&bytes);
}

enum mlo_status cuda_dnn_build(const struct cuda_schedule *schedule, const struct cuda_step *step, int sm,
                               const json_t *way, struct cuda_work *out, struct mlo_error *err)
{
    struct asked a;
    struct mlo_digest key;
    *out = (struct cuda_work){0};
    enum mlo_status status = ask(schedule, step, sm, &a, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(key_of(schedule, step, &a, way, &key, err));
    if (known(&key, out))
        goto out;
    if (way) {
        cudnnBackendDescriptor_t config = config_of(&a, way);
        MLO_TRY(dnn_status(&a.scope, err));
        status = build_config(&a, config, out, err);
    } else {
        status = build_advised(&a, step, out, err);
    }
    if (status == MLO_OK)
        remember(&key, out);
out:
    if (status != MLO_OK)
        cuda_work_clear(out);
    asked_clear(&a);
    return status;
}

/* --- running -------------------------------------------------------------------------------------------- */

struct cuda_dnn_program {
    struct dnn_scope scope;
    struct dnn_scalars scalars;
    cudnnBackendDescriptor_t plan, pack;
    void *workspace; /* that the pack has */
    int count;
    int64_t uids[CUDA_STEP_SLOTS + 1 + DNN_SCALARS_MAX];
    void *pointers[CUDA_STEP_SLOTS + 1 + DNN_SCALARS_MAX];
};

void cuda_dnn_free(struct cuda_dnn_program *p)
{
    if (!p)
        return;
    dnn_scope_clear(&p->scope);
    free(p);
}

static enum mlo_status load_plan(struct cuda_dnn_program *p, cudnnHandle_t handle,
                                 const struct cuda_work *work, size_t *workspace_bytes, struct mlo_error *err)
{
    struct dnn_scope *s = &p->scope;
    int64_t workspace = 0;
    p->plan = dnn_new(s, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    dnn_set(s, p->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    dnn_set(s, p->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
            (int64_t)work->image_bytes, work->image);
    dnn_finalize(s, p->plan);
    dnn_get(s, p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
    *workspace_bytes = (size_t)MLO_MAX(workspace, 0);
    return dnn_status(s, err);
}

/* The workspace is shared, so its place is known only when all steps were loaded. */
static enum mlo_status make_pack(struct cuda_dnn_program *p, void *workspace, struct mlo_error *err)
{
    struct dnn_scope *s = &p->scope;
    p->pack = dnn_new(s, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    dnn_set(s, p->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, p->count, p->pointers);
    dnn_set(s, p->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, p->count, p->uids);
    dnn_set(s, p->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    dnn_finalize(s, p->pack);
    p->workspace = workspace;
    return dnn_status(s, err);
}

static void add_pointer(struct cuda_dnn_program *p, int64_t uid, void *pointer)
{
    p->uids[p->count] = uid;
    p->pointers[p->count++] = pointer;
}

enum mlo_status cuda_dnn_load(cudnnHandle_t handle, const struct cuda_schedule *schedule,
                              const struct cuda_step *step, const struct cuda_work *work, int sm,
                              const CUdeviceptr *at, struct cuda_dnn_program **out, size_t *workspace_bytes,
                              struct mlo_error *err)
{
    struct cuda_work again = {0};
    struct cuda_dnn_program *p = calloc(1, sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    enum mlo_status status = dnn_scope_init(&p->scope, err);
    if (status != MLO_OK)
        goto out;
    status = work->image_bytes ? load_plan(p, handle, work, workspace_bytes, err) : MLO_EUNSUPPORTED;
    if (status == MLO_ESTALE ||
        status == MLO_EUNSUPPORTED) { /* of another device or version: heuristics again */
        dnn_scope_retry(&p->scope);
        MLO_TRY(cuda_dnn_build(schedule, step, sm, NULL, &again, err));
        MLO_TRY(load_plan(p, handle, &again, workspace_bytes, err));
    } else if (status != MLO_OK) {
        goto out;
    }
    dnn_scalars_of(step, &p->scalars);
    for (int i = 0; i < step->in_count; i++)
        add_pointer(p, DNN_UID_IN + i, (void *)(uintptr_t)at[i]);
    add_pointer(p, DNN_UID_OUT, (void *)(uintptr_t)at[step->in_count]);
    for (int i = 0; i < p->scalars.count; i++)
        add_pointer(p, DNN_UID_SCALAR + i, &p->scalars.values[i]);
    *out = p;
    p = NULL;
out:
    cuda_work_clear(&again);
    cuda_dnn_free(p);
    return status;
}

enum mlo_status cuda_dnn_run(cudnnHandle_t handle, struct cuda_dnn_program *p, CUdeviceptr workspace,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    void *where = (void *)(uintptr_t)workspace;
    if (!p->pack || p->workspace != where)
        status = make_pack(p, where, err);
    if (status != MLO_OK)
        return status;
    cudnnStatus_t result = p->scope.api->cudnnBackendExecute(handle, p->plan, p->pack);
    return result == CUDNN_STATUS_SUCCESS
               ? MLO_OK
               : mlo_error_set(err, MLO_EIO, "cuDNN: %s", p->scope.api->cudnnGetErrorString(result));
}
