/* The row `cuda` of the engines' table: opens the plugin at first use and passes calls on. Where there is no
 * plugin, every call answers with one line that says so; nothing of CUDA is ever linked here. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plugin_impl.h"
#include "engines/engines_impl.h"

#define FILE_NAME "libmlopt_engine_cuda.so"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cuda_plugin *plugin;
static char *plugin_path;
static struct mlo_error problem; /* why there is no plugin */

static const struct cuda_plugin *open_plugin(const char *path)
{
    cuda_plugin_fn *entry = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, CUDA_PLUGIN_ENTRY) : NULL;
    if (!symbol) {
        (void)mlo_error_set(&problem, MLO_EUNAVAILABLE, "the cuda engine's plugin %s cannot be opened: %s",
                            path, dlerror());
        mlo_error_hint(&problem, "it must be the one that was built with this program");
        return NULL;
    }
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object's to a function's pointer */
    const struct cuda_plugin *p = entry();
    if (strcmp(p->abi, cuda_plugin_abi) != 0) {
        (void)mlo_error_set(&problem, MLO_EUNAVAILABLE,
                            "the cuda engine's plugin %s belongs to another build of mlopt (%s, here: %s)",
                            path, p->abi, cuda_plugin_abi);
        mlo_error_hint(&problem, "install program and plugin from the same build");
        return NULL;
    }
    return p;
}

/* Beside what this code is in (the program, or libmlopt.so), and where both are installed. */
static void find_plugin(void)
{
    static const char *const places[] = {"", "../", "../" MLOPT_LIBDIR "/"};
    const char *wish = getenv("MLOPT_CUDA_PLUGIN");
    Dl_info here;
    if (wish && wish[0]) {
        plugin_path = strdup(wish);
        plugin = plugin_path ? open_plugin(plugin_path) : NULL;
        return;
    }
    char *self = mlo_process_self();
    const char *object = dladdr((void *)(uintptr_t)&plugin, &here) ? here.dli_fname : NULL;
    const char *beside[] = {object && object[0] == '/' ? object : NULL, self};
    for (size_t i = 0; i < MLO_COUNT(beside) * MLO_COUNT(places) && !plugin_path; i++) {
        const char *file = beside[i / MLO_COUNT(places)];
        struct mlo_buf path = MLO_BUF_INIT;
        if (!file)
            continue;
        mlo_buf_append(&path, file, (size_t)(mlo_fs_basename(file) - file));
        mlo_buf_printf(&path, "%s%s", places[i % MLO_COUNT(places)], FILE_NAME);
        if (mlo_buf_ok(&path) && mlo_fs_exists(mlo_buf_str(&path)))
            plugin_path = mlo_buf_take(&path);
        mlo_buf_clear(&path);
    }
    free(self);
    if (plugin_path) {
        plugin = open_plugin(plugin_path);
        return;
    }
    (void)mlo_error_set(&problem, MLO_EUNAVAILABLE, "the cuda engine's plugin (%s) is not installed",
                        FILE_NAME);
    mlo_error_hint(
        &problem,
        "build mlopt where CUDA's headers are (cmake -DMLOPT_CUDA=ON), or set MLOPT_CUDA_PLUGIN to it");
}

static enum mlo_status get(const struct cuda_plugin **out, struct mlo_error *err)
{
    pthread_once(&once, find_plugin);
    *out = plugin;
    if (plugin)
        return MLO_OK;
    if (problem.status == MLO_OK)
        return mlo_error_nomem(err);
    if (err)
        *err = problem;
    return problem.status;
}

/* --- the vtable ----------------------------------------------------------------------------------------- */

static const char *version(void)
{
    const struct cuda_plugin *p;
    return get(&p, NULL) == MLO_OK ? p->engine->version() : "cuda (no plugin)";
}

static enum mlo_status probe(struct mlo_error *err)
{
    const struct cuda_plugin *p;
    enum mlo_status status = get(&p, err);
    return status == MLO_OK ? p->engine->probe(err) : status;
}

static enum mlo_status compile(const struct mlo_model *model, const struct mlo_compile_options *options,
                               struct mlo_plan **plan, struct mlo_error *err)
{
    const struct cuda_plugin *p;
    enum mlo_status status = get(&p, err);
    return status == MLO_OK ? p->engine->compile(model, options, plan, err) : status;
}

static enum mlo_status restore(const void *bytes, size_t size, struct mlo_plan **plan, struct mlo_error *err)
{
    const struct cuda_plugin *p;
    enum mlo_status status = get(&p, err);
    return status == MLO_OK ? p->engine->restore(bytes, size, plan, err) : status;
}

static enum mlo_status identity(json_t **out, struct mlo_error *err)
{
    const struct cuda_plugin *p;
    enum mlo_status status = get(&p, err);
    return status == MLO_OK ? p->engine->identity(out, err) : status;
}

/* Who has a plan or a program has the plugin. */
static enum mlo_status load(struct mlo_plan *plan, struct mlo_program **program, struct mlo_error *err)
{
    return plugin->engine->load(plan, program, err);
}

static enum mlo_status run(struct mlo_program *program, const struct mlo_tensor *inputs,
                           struct mlo_tensor *outputs, struct mlo_error *err)
{
    return plugin->engine->run(program, inputs, outputs, err);
}

static enum mlo_status observe(struct mlo_program *program, const struct mlo_tensor *inputs,
                               struct mlo_tensor *outputs, mlo_observe_fn *fn, void *arg,
                               struct mlo_error *err)
{
    return plugin->engine->observe(program, inputs, outputs, fn, arg, err);
}

static enum mlo_status describe(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    return plugin->engine->describe(plan, out, err);
}

static void unload(struct mlo_program *program)
{
    if (program)
        plugin->engine->unload(program);
}

static void free_plan(struct mlo_plan *plan)
{
    if (plan)
        plugin->engine->free_plan(plan);
}

static void footprint(const struct mlo_plan *plan, struct mlo_footprint *out)
{
    plugin->engine->footprint(plan, out);
}

static enum mlo_status profile(struct mlo_program *program, const struct mlo_tensor *inputs, int calls,
                               json_t **out, struct mlo_error *err)
{
    return plugin->engine->profile(program, inputs, calls, out, err);
}

static enum mlo_status save(const struct mlo_plan *plan, int fd, struct mlo_error *err)
{
    return plugin->engine->save(plan, fd, err);
}

static const struct mlo_model *interface(const struct mlo_plan *plan)
{
    return plugin->engine->interface(plan);
}

static enum mlo_status can_compile(const char *target, struct mlo_error *err)
{
    const struct cuda_plugin *p;
    enum mlo_status status = get(&p, err);
    return status == MLO_OK ? p->engine->can_compile(target, err) : status;
}

static enum mlo_status identity_of(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    return plugin->engine->identity_of(plan, out, err);
}

static enum mlo_status inventory(json_t **out, struct mlo_error *err)
{
    const struct cuda_plugin *p;
    struct mlo_error why = {0};
    json_t *parts = NULL;
    enum mlo_status status = get(&p, &why);
    if (status == MLO_OK)
        MLO_TRY(p->engine->inventory(out, err));
    else
        *out = json_pack("{s:[], s:[]}", "parts", "gpus");
    parts = json_object_get(*out, "parts");
    json_t *row =
        json_pack("{s:s, s:s, s:b, s:s, s:s?, s:s, s:s}", "name", FILE_NAME, "kind", "plugin", "found",
                  status == MLO_OK, "version", status == MLO_OK ? p->engine->version() : "", "path",
                  plugin_path, "why", why.message, "for", "compile");
    if (json_array_insert_new(parts, 0, row) == 0)
        return MLO_OK;
    json_decref(*out);
    *out = NULL;
    return mlo_error_nomem(err);
out:
    return status;
}

static enum mlo_status tune(const struct mlo_model *model, const struct mlo_compile_options *options,
                            const struct mlo_tuning_request *request, json_t **out, struct mlo_error *err)
{
    const struct cuda_plugin *p;
    enum mlo_status status = get(&p, err);
    if (status == MLO_OK && !p->engine->tune)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "this build of the cuda engine's plugin measures no ways");
    return status == MLO_OK ? p->engine->tune(model, options, request, out, err) : status;
}

static enum mlo_status measure(struct mlo_program *program, const struct mlo_tensor *inputs,
                               const struct mlo_timing_request *request, bool steps, json_t **out,
                               struct mlo_error *err)
{
    return plugin->engine->measure(program, inputs, request, steps, out, err);
}

const struct mlo_engine mlo_engine_cuda = {
    .name = "cuda",
    .version = version,
    .probe = probe,
    .compile = compile,
    .load = load,
    .run = run,
    .observe = observe,
    .describe = describe,
    .unload = unload,
    .free_plan = free_plan,
    .footprint = footprint,
    .profile = profile,
    .save = save,
    .restore = restore,
    .interface = interface,
    .identity = identity,
    .can_compile = can_compile,
    .identity_of = identity_of,
    .may_lack = "gpu",
    .inventory = inventory,
    .tune = tune,
    .measure = measure,
};
