#include "engines/cuda/found.h"

#include <string.h>
#include <strings.h>

#include "engines/nvml.h"

/* What to do about a part that is missing, by a word of its name; the first that fits. */
static const struct {
    const char *kind, *word, *next;
} REMEDIES[] = {
    {"plugin", "",
     "build mlopt where CUDA's headers are (cmake -DMLOPT_CUDA=ON) and install "
     "libmlopt_engine_cuda.so beside the program, or name it in MLOPT_CUDA_PLUGIN"},
    {"driver", "", "install NVIDIA's driver; in a container, start it with the GPU (docker run --gpus all)"},
    {"library", "nvrtc",
     "install NVRTC (pip install nvidia-cuda-nvrtc, or the CUDA toolkit), or name its "
     "folder in MLOPT_CUDA_LIBS"},
    {"library", "cublas",
     "install cuBLAS (pip install nvidia-cublas, or the CUDA toolkit), or name its folder "
     "in MLOPT_CUDA_LIBS"},
    {"library", "cudnn",
     "install cuDNN 9 (pip install nvidia-cudnn-cu13), or name its folder in "
     "MLOPT_CUDA_LIBS"},
    {"library", "", "install it, or name its folder in MLOPT_CUDA_LIBS"},
    {"gpu", "", "`nvidia-smi` lists the GPUs; CUDA_VISIBLE_DEVICES hides those that it does not name"},
};

static const char *remedy(const char *kind, const char *name)
{
    for (size_t i = 0; i < MLO_COUNT(REMEDIES); i++)
        if (strcmp(REMEDIES[i].kind, kind) == 0 && strcasestr(name, REMEDIES[i].word))
            return REMEDIES[i].next;
    return "";
}

static bool add_missing(json_t *missing, const char *kind, const char *name, const char *why, const char *use)
{
    return json_array_append_new(missing, json_pack("{s:s, s:s, s:s, s:s}", "name", name, "why", why, "next",
                                                    remedy(kind, name), "for", use)) == 0;
}

/* One line for what can be done here. */
static void verdict(const struct mlo_cuda_answers *a, const json_t *gpus, struct mlo_buf *out)
{
    size_t count = json_array_size(gpus);
    if (a->run == MLO_OK)
        mlo_buf_printf(out, "models run on %zu GPU%s here", count, count == 1 ? "" : "s");
    else if (a->compile == MLO_OK)
        mlo_buf_puts(out, "no GPU can be used here; plans for GPUs can be compiled all the same");
    else
        mlo_buf_puts(out, "no GPU can be used here, and no plans for GPUs compiled");
    const struct mlo_error *why = a->run != MLO_OK ? a->run_error : NULL;
    if (why && why->message[0])
        mlo_buf_printf(out, ": %s", why->message);
}

enum mlo_status mlo_cuda_found_of(const struct mlo_cuda_answers *a, json_t **out, struct mlo_error *err)
{
    json_t *missing = json_array(), *part;
    json_t *parts = json_object_get(a->inventory, "parts"), *gpus = json_object_get(a->inventory, "gpus");
    json_t *none = json_array();
    struct mlo_buf words = MLO_BUF_INIT;
    bool ok = missing && none, driver = true;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        const char *kind = mlo_json_str(part, "kind", "library"), *use = mlo_json_str(part, "for", "run");
        if (mlo_json_bool(part, "found", false))
            continue;
        driver = driver && strcmp(kind, "driver") != 0;
        ok = ok &&
             add_missing(missing, kind, mlo_json_str(part, "name", "?"), mlo_json_str(part, "why", ""), use);
    }
    if (driver && json_array_size(parts) > 0 && json_array_size(gpus) == 0 && a->run != MLO_OK)
        ok = ok && add_missing(missing, "gpu", "GPU", "no GPU is visible", "run");
    verdict(a, gpus, &words);
    *out = ok && mlo_buf_ok(&words)
               ? json_pack("{s:b, s:b, s:s, s:O, s:O, s:O}", "compile", a->compile == MLO_OK, "run",
                           a->run == MLO_OK, "verdict", mlo_buf_str(&words), "parts", parts ? parts : none,
                           "gpus", gpus ? gpus : none, "missing", missing)
               : NULL;
    mlo_buf_clear(&words);
    json_decref(missing);
    json_decref(none);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

/* Without the plugin nobody but the driver's management library tells of GPUs and driver. */
static enum mlo_status add_nvml(json_t *inventory, struct mlo_error *err)
{
    struct mlo_nvml *nvml = NULL;
    struct mlo_error why = {0};
    struct mlo_gpu_info gpus[MLO_NVML_GPUS_MAX];
    json_t *parts = json_object_get(inventory, "parts"), *list = json_object_get(inventory, "gpus"), *part;
    size_t i, count = 0;
    json_array_foreach(parts, i, part)
    {
        if (strcmp(mlo_json_str(part, "kind", ""), "driver") == 0)
            return MLO_OK;
    }
    bool here = mlo_nvml_open(NULL, &nvml, &why) == MLO_OK;
    int failed = json_array_append_new(parts, json_pack("{s:s, s:s, s:b, s:s, s:s, s:s}", "name",
                                                        "NVIDIA driver", "kind", "driver", "found", here,
                                                        "version", here ? mlo_nvml_driver(nvml) : "", "why",
                                                        why.message, "for", "run"));
    if (here && json_array_size(list) == 0)
        count = mlo_nvml_gpus(nvml, gpus, MLO_COUNT(gpus));
    for (i = 0; i < count; i++)
        failed |= json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:I}", "name", gpus[i].name, "uuid",
                                                        gpus[i].uuid, "sm", gpus[i].sm, "memory_bytes",
                                                        (json_int_t)gpus[i].memory_bytes));
    mlo_nvml_close(nvml);
    return failed ? mlo_error_nomem(err) : MLO_OK;
}

enum mlo_status mlo_cuda_found(json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *cuda;
    struct mlo_error compile_error = {0}, run_error = {0};
    json_t *inventory = NULL;
    *out = NULL;
    MLO_TRY(mlo_engine_find("cuda", &cuda, err));
    MLO_TRY(cuda->inventory(&inventory, err));
    MLO_TRY(add_nvml(inventory, err));
    struct mlo_cuda_answers answers = {.inventory = inventory,
                                       .compile = cuda->can_compile("cuda:sm90", &compile_error),
                                       .run = cuda->probe(&run_error),
                                       .compile_error = &compile_error,
                                       .run_error = &run_error};
    MLO_TRY(mlo_cuda_found_of(&answers, out, err));
out:
    json_decref(inventory);
    return status;
}
