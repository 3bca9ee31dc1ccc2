/* NVIDIA's libraries: found, opened, and said plainly when they are not there. */
#include "engines/cuda/device/libs_impl.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define NAME_ROW(name) TEXT(name),

static const char *const driver_names[] = {CUDA_DRIVER_FUNCTIONS(NAME_ROW) NULL};
static const char *const nvrtc_names[] = {CUDA_NVRTC_FUNCTIONS(NAME_ROW) NULL};
static const char *const cudnn_names[] = {CUDA_CUDNN_FUNCTIONS(NAME_ROW) NULL};
static const char *const cublaslt_names[] = {CUDA_CUBLASLT_FUNCTIONS(NAME_ROW) NULL};
static struct cuda_driver driver;
static struct cuda_nvrtc nvrtc;
static struct cuda_cudnn cudnn;
static struct cuda_cublaslt cublaslt;

static enum mlo_status start_driver(char *version, size_t size, struct mlo_error *err)
{
    int number = 0;
    CUresult result = driver.cuInit(0);
    if (driver.cuDriverGetVersion(&number) == CUDA_SUCCESS)
        snprintf(version, size, "%d.%d", number / 1000, number % 1000 / 10);
    if (result == CUDA_SUCCESS)
        return MLO_OK;
    const char *text = NULL;
    driver.cuGetErrorString(result, &text);
    enum mlo_status status = mlo_error_set(err, MLO_EUNAVAILABLE, "NVIDIA's driver finds no GPU: %s",
                                           text ? text : "it gives no reason");
    mlo_error_hint(err, "nvidia-smi shows what the driver sees; CUDA_VISIBLE_DEVICES can hide devices");
    return status;
}

static enum mlo_status start_nvrtc(char *version, size_t size, struct mlo_error *err)
{
    int major = 0, minor = 0;
    if (nvrtc.nvrtcVersion(&major, &minor) != NVRTC_SUCCESS)
        return mlo_error_set(err, MLO_EUNAVAILABLE, "NVRTC does not say its version");
    snprintf(version, size, "%d.%d", major, minor);
    return MLO_OK;
}

static enum mlo_status start_cudnn(char *version, size_t size, struct mlo_error *err)
{
    size_t v = cudnn.cudnnGetVersion();
    snprintf(version, size, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return v >= 90800 ? MLO_OK
                      : mlo_error_set(err, MLO_EUNAVAILABLE,
                                      "cuDNN is %s, and the cuda engine needs 9.8 or later", version);
}

static enum mlo_status start_cublaslt(char *version, size_t size, struct mlo_error *err)
{
    MLO_UNUSED(err);
    size_t v = cublaslt.cublasLtGetVersion();
    snprintf(version, size, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return MLO_OK;
}

static const struct row {
    const char *name, *purpose, *const *names;
    const char *files[3];
    void *functions;
    enum mlo_status (*start)(char *version, size_t size, struct mlo_error *err);
    const char *hint;
} rows[CUDA_LIBRARIES] = {
    [CUDA_LIB_DRIVER] = {"driver",
                         "running anything on a GPU",
                         driver_names,
                         {"libcuda.so.1"},
                         &driver,
                         start_driver,
                         "install NVIDIA's driver; compiling works without it"},
    [CUDA_LIB_NVRTC] = {"NVRTC",
                        "compiling own kernels",
                        nvrtc_names,
                        {"libnvrtc.so.13", "libnvrtc.so.12"},
                        &nvrtc,
                        start_nvrtc,
                        "install the CUDA toolkit 12 or 13, or set MLOPT_CUDA_LIBS to its folder"},
    [CUDA_LIB_CUDNN] = {"cuDNN",
                        "convolutions and attention",
                        cudnn_names,
                        {"libcudnn_graph.so.9"},
                        &cudnn,
                        start_cudnn,
                        "install cuDNN 9.8 or later, or set MLOPT_CUDA_LIBS to its folder"},
    [CUDA_LIB_CUBLASLT] = {"cuBLASLt",
                           "matrix products",
                           cublaslt_names,
                           {"libcublasLt.so.13", "libcublasLt.so.12"},
                           &cublaslt,
                           start_cublaslt,
                           "install the CUDA toolkit 12 or 13, or set MLOPT_CUDA_LIBS to its folder"},
};

/* --- places --------------------------------------------------------------------------------------------- */

/* Kept in a library's row until it is opened. */
struct search {
    const struct row *row;
    struct cuda_library_state *state;
    void *library;
    struct mlo_buf seen; /* a file that is there and cannot be opened: why */
};

static char *real_path(void *library)
{
    struct link_map *map = NULL;
    return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0] ? realpath(map->l_name, NULL)
                                                                                : NULL;
}

static bool try_path(struct search *s, const char *path, bool must_exist)
{
    if (must_exist && !mlo_fs_exists(path))
        return false;
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (s->library) {
        s->state->path = real_path(s->library);
        if (!s->state->path)
            s->state->path = strdup(path);
    } else if (must_exist && !s->seen.len) {
        mlo_buf_puts(&s->seen, dlerror());
    }
    return s->library != NULL;
}

static bool try_folder(struct search *s, const char *folder)
{
    for (int i = 0; s->row->files[i] && folder[0]; i++) {
        char *path = mlo_fs_join(folder, s->row->files[i], (char *)NULL);
        bool found = path && try_path(s, path, true);
        free(path);
        if (found)
            return true;
    }
    return false;
}

static bool try_list(struct search *s, const char *folders)
{
    bool found = false;
    char *copy = folders ? strdup(folders) : NULL;
    for (char *at = copy, *folder; !found && (folder = strsep(&at, ":"));)
        found = try_folder(s, folder);
    free(copy);
    return found;
}

static bool try_pattern(struct search *s, const char *root, const char *rest)
{
    bool found = false;
    glob_t g = {0};
    char *pattern = root && root[0] == '/' ? mlo_fs_join(root, rest, (char *)NULL) : NULL;
    if (pattern && glob(pattern, 0, NULL, &g) == 0)
        for (size_t i = 0; i < g.gl_pathc && !found; i++)
            found = try_folder(s, g.gl_pathv[i]);
    globfree(&g);
    free(pattern);
    return found;
}

static bool find(struct search *s, bool toolkit)
{
    const char *only = getenv("MLOPT_CUDA_LIBS_ONLY");
    if (try_list(s, getenv("MLOPT_CUDA_LIBS")))
        return true;
    if (only && only[0] && strcmp(only, "0") != 0)
        return false;
    static const char *const homes[] = {"CUDA_HOME", "CUDA_PATH"};
    for (size_t i = 0; toolkit && i < MLO_COUNT(homes); i++)
        if (try_pattern(s, getenv(homes[i]), "lib64"))
            return true;
    if (toolkit && try_folder(s, "/usr/local/cuda/lib64"))
        return true;
    for (int i = 0; s->row->files[i]; i++)
        if (try_path(s, s->row->files[i], false))
            return true;
    const char *home = getenv("HOME");
    char *user = home ? mlo_fs_join(home, ".local", (char *)NULL) : NULL;
    const char *const roots[] = {getenv("VIRTUAL_ENV"), user, "/usr/local", "/usr"};
    bool found = false;
    for (size_t i = 0; toolkit && !found && i < MLO_COUNT(roots); i++)
        found = try_pattern(s, roots[i], "lib/python3*/site-packages/nvidia/*/lib") ||
                try_pattern(s, roots[i], "lib/python3*/dist-packages/nvidia/*/lib");
    free(user);
    return found;
}

/* --- opening -------------------------------------------------------------------------------------------- */

static enum mlo_status resolve(const struct search *s, struct mlo_error *err)
{
    void **functions = s->row->functions;
    for (int i = 0; s->row->names[i]; i++) {
        void *symbol = dlsym(s->library, s->row->names[i]);
        if (!symbol)
            return mlo_error_set(err, MLO_EUNAVAILABLE, "%s (%s) has no function %s: it is too old",
                                 s->row->name, s->state->path ? s->state->path : "?", s->row->names[i]);
        memcpy(&functions[i], &symbol, sizeof symbol); /* all fields are pointers to functions */
    }
    return MLO_OK;
}

static void open_library(const struct row *row, struct cuda_library_state *state)
{
    struct search s = {.row = row, .state = state};
    enum mlo_status status;
    *state = (struct cuda_library_state){.name = row->name, .purpose = row->purpose};
    if (!find(&s, row->functions != &driver)) {
        status = s.seen.len
                     ? mlo_error_set(&state->problem, MLO_EUNAVAILABLE, "%s cannot be opened: %s", row->name,
                                     mlo_buf_str(&s.seen))
                     : mlo_error_set(&state->problem, MLO_EUNAVAILABLE,
                                     "%s (%s) is not installed on this machine", row->name, row->files[0]);
    } else {
        status = resolve(&s, &state->problem);
        if (status == MLO_OK)
            status = row->start(state->version, sizeof state->version, &state->problem);
        /* Never closed: these libraries leave threads and handlers behind. */
    }
    mlo_error_hint(&state->problem, "%s", row->hint);
    state->usable = status == MLO_OK;
    mlo_buf_clear(&s.seen);
}

static struct cuda_library_state states[CUDA_LIBRARIES];
static bool tried[CUDA_LIBRARIES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const struct cuda_library_state *cuda_library_open(enum cuda_library which)
{
    pthread_mutex_lock(&lock);
    if (!tried[which])
        open_library(&rows[which], &states[which]);
    tried[which] = true;
    pthread_mutex_unlock(&lock);
    return &states[which];
}

static enum mlo_status get(enum cuda_library which, const void **out, struct mlo_error *err)
{
    const struct cuda_library_state *state = cuda_library_open(which);
    *out = rows[which].functions;
    if (!state->usable && err)
        *err = state->problem;
    return state->usable ? MLO_OK : MLO_EUNAVAILABLE;
}

#define GETTER(name, which)                                                                                  \
    enum mlo_status cuda_get_##name(const struct cuda_##name **out, struct mlo_error *err)                   \
    {                                                                                                        \
        const void *functions;                                                                               \
        enum mlo_status status = get(which, &functions, err);                                                \
        *out = functions;                                                                                    \
        return status;                                                                                       \
    }
GETTER(driver, CUDA_LIB_DRIVER)
GETTER(nvrtc, CUDA_LIB_NVRTC)
GETTER(cudnn, CUDA_LIB_CUDNN)
GETTER(cublaslt, CUDA_LIB_CUBLASLT)

enum mlo_status cuda_failed(CUresult result, const char *what, struct mlo_error *err)
{
    const char *name = NULL, *text = NULL;
    driver.cuGetErrorName(result, &name);
    driver.cuGetErrorString(result, &text);
    enum mlo_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? MLO_ENOMEM
                             : result == CUDA_ERROR_NO_DEVICE   ? MLO_EUNAVAILABLE
                                                                : MLO_EIO;
    return mlo_error_set(err, status, "%s: the GPU answers %s (%s)", what, text ? text : "an unknown error",
                         name ? name : "?");
}
