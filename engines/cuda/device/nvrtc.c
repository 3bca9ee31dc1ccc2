/* Text of kernels into images, by NVRTC. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"

enum { LOG_LINES = 3, OPTIONS = 4 };

static enum mlo_status refuse(const struct cuda_nvrtc *api, nvrtcProgram program, const char *entry,
                              nvrtcResult result, struct mlo_error *err)
{
    size_t size = 0;
    char *log = api->nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS ? calloc(1, size + 1) : NULL;
    if (log && api->nvrtcGetProgramLog(program, log) == NVRTC_SUCCESS) {
        char *end = log;
        for (int i = 0; i < LOG_LINES && end; i++)
            end = strchr(end + (i > 0), '\n');
        if (end)
            *end = 0;
        for (char *c = log; *c; c++)
            if (*c == '\n')
                *c = ' ';
    }
    enum mlo_status status = mlo_error_set(err, MLO_EINTERNAL, "NVRTC does not compile kernel '%s' (%s): %s",
                                           entry, api->nvrtcGetErrorString(result), log ? log : "");
    free(log);
    return status;
}

static enum mlo_status compile(const struct cuda_nvrtc *api, const struct cuda_source *source,
                               const char *const *options, struct mlo_buf *out, struct mlo_error *err)
{
    nvrtcProgram program = NULL;
    size_t size = 0;
    enum mlo_status status = MLO_OK;
    nvrtcResult result = api->nvrtcCreateProgram(&program, source->text, "kernel.cu", 0, NULL, NULL);
    if (result != NVRTC_SUCCESS)
        return mlo_error_set(err, MLO_EIO, "NVRTC answers %s", api->nvrtcGetErrorString(result));
    result = api->nvrtcCompileProgram(program, OPTIONS, options);
    if (result != NVRTC_SUCCESS)
        status = refuse(api, program, source->entry, result, err);
    else if (api->nvrtcGetCUBINSize(program, &size) != NVRTC_SUCCESS || size == 0)
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "NVRTC makes no image for %s", options[0]);
    else if (!mlo_buf_reserve(out, size))
        status = mlo_error_nomem(err);
    else if (api->nvrtcGetCUBIN(program, out->data + out->len) != NVRTC_SUCCESS)
        status = mlo_error_set(err, MLO_EIO, "NVRTC does not hand over an image");
    else
        out->len += size;
    api->nvrtcDestroyProgram(&program);
    return status;
}

/* False: out of memory. */
static bool key_of(const char *const *options, const char *version, const char *text, struct mlo_digest *out)
{
    struct mlo_hasher *h = mlo_hasher_new();
    if (!h)
        return false;
    mlo_hasher_update(h, version, strlen(version) + 1);
    for (int i = 0; i < OPTIONS; i++)
        mlo_hasher_update(h, options[i], strlen(options[i]) + 1);
    mlo_hasher_update(h, text, strlen(text));
    mlo_hasher_final(h, out);
    mlo_hasher_free(h);
    return true;
}

enum mlo_status cuda_compile_text(const struct cuda_source *source, int sm, void **image, size_t *size_bytes,
                                  struct cuda_resources *resources, struct mlo_error *err)
{
    const struct cuda_nvrtc *api;
    enum mlo_status status = cuda_get_nvrtc(&api, err);
    if (status != MLO_OK)
        return status;
    const char *version = cuda_library_open(CUDA_LIB_NVRTC)->version;
    char arch[32];
    struct mlo_buf bytes = MLO_BUF_INIT;
    struct mlo_digest key;
    snprintf(arch, sizeof arch, "-arch=sm_%d", sm);
    /* As the CPU computes it: a product and a sum become one rounding only where the text says fmaf. */
    const char *const options[OPTIONS] = {arch, "--std=c++17", "-default-device", "--fmad=false"};
    if (!key_of(options, version, source->text, &key))
        return mlo_error_nomem(err);
    bool known = cuda_cache_get(&key, "cubin", &bytes) &&
                 cuda_cubin_read(bytes.data, bytes.len, source->entry, resources, NULL) == MLO_OK;
    if (!known) {
        mlo_buf_reset(&bytes);
        MLO_TRY(compile(api, source, options, &bytes, err));
        MLO_TRY(cuda_cubin_read(bytes.data, bytes.len, source->entry, resources, err));
        cuda_cache_put(&key, "cubin", bytes.data, bytes.len);
    }
    *size_bytes = bytes.len;
    *image = mlo_buf_take(&bytes);
    if (!*image)
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&bytes);
    return status;
}
