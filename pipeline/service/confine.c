/* A job's folders, and what its process may do: <job>/in to read, <job>/out to write. What jobs keep for one
 * another, checkpoints and compiled kernels, is kept by project: a model that took its process over can spoil
 * what its own project's jobs find there, and nobody else's. */
#include <fts.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/service/worker_impl.h"

/* A list of paths that grows in an arena. */
struct paths {
    struct mlo_arena *arena;
    const char **items;
    size_t count, room;
    bool failed;
};

static void add(struct paths *paths, const char *path)
{
    if (!path || path[0] != '/')
        return;
    if (paths->count + 1 >= paths->room) {
        size_t room = paths->room ? 2 * paths->room : 16;
        const char **more = mlo_arena_alloc(paths->arena, room * sizeof *more);
        if (!more) {
            paths->failed = true;
            return;
        }
        if (paths->count)
            memcpy(more, paths->items, paths->count * sizeof *more);
        paths->items = more;
        paths->room = room;
    }
    const char *copy = mlo_arena_printf(paths->arena, "%s", path);
    paths->failed = paths->failed || !copy;
    paths->items[paths->count++] = copy;
    paths->items[paths->count] = NULL;
}

static void add_all(struct paths *paths, const char *const *list)
{
    for (; list && *list; list++)
        add(paths, *list);
}

/* Where whoever started the worker has libraries: a job gets the same search path. */
static void add_libraries(struct paths *paths)
{
    const char *at = getenv("LD_LIBRARY_PATH");
    char folder[PATH_MAX];
    while (at && *at) {
        size_t length = strcspn(at, ":");
        if (length > 1 && length < sizeof folder) { /* not "/" */
            memcpy(folder, at, length);
            folder[length] = '\0';
            add(paths, folder);
        }
        at += length + (at[length] == ':');
    }
}

/* The inputs; where one is a link since its bytes are on another disk, those. */
static void add_inputs(struct paths *paths, const char *in)
{
    char real[PATH_MAX], *const roots[] = {(char *)in, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    add(paths, in);
    for (FTSENT *entry; walk && (entry = fts_read(walk));)
        if ((entry->fts_info == FTS_SL || entry->fts_info == FTS_SLNONE) && realpath(entry->fts_path, real))
            add(paths, real);
    if (walk)
        fts_close(walk);
}

/* Which GPUs CUDA lets it see: its own; without one, none. The sandbox keeps the others' devices from it. */
static const char *visible_gpus(const struct mlo_slot *slot, struct mlo_arena *arena)
{
    const char *text = "CUDA_VISIBLE_DEVICES=";
    for (int i = 0; text && i < slot->gpu_count; i++)
        text = mlo_arena_printf(arena, "%s%s%s", text, i ? "," : "",
                                slot->worker->gpus.items[slot->gpus[i]].uuid);
    return text;
}

enum mlo_status mlo_confinement_init(const struct mlo_slot *slot, const char *dir,
                                     struct mlo_confinement *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_worker *worker = slot->worker;
    long long project = slot->job.project;
    *out = (struct mlo_confinement){.arena = mlo_arena_new()};
    if (!out->arena)
        return mlo_error_nomem(err);
    const char *work = worker->o.work_dir, *temp = mlo_arena_printf(out->arena, "%s/out/tmp", dir);
    out->out = mlo_arena_printf(out->arena, "%s/out", dir);
    out->checkpoints = mlo_arena_printf(out->arena, "%s/checkpoints/%lld", work, project);
    out->kernels = mlo_arena_printf(out->arena, "%s/kernels/%lld", work, project);
    const char *env[] = {
        mlo_arena_printf(out->arena, "HOME=%s", out->out), mlo_arena_printf(out->arena, "TMPDIR=%s", temp),
        mlo_arena_printf(out->arena, "XDG_CACHE_HOME=%s", out->kernels), visible_gpus(slot, out->arena)};
    for (size_t i = 0; i < MLO_COUNT(env); i++)
        out->env[i] = env[i];
    if (!temp || !out->out || !out->checkpoints || !out->kernels || !env[0] || !env[1] || !env[2] || !env[3])
        return mlo_error_nomem(err);
    if (worker->o.max_scratch_bytes) { /* jobs that failed by it leave what they wrote there */
        mlo_kept_trim(out->checkpoints, worker->o.max_scratch_bytes / 2);
        mlo_kept_trim(out->kernels, worker->o.max_scratch_bytes / 2);
    }
    MLO_TRY(mlo_fs_mkdirs_private(temp, err));
    MLO_TRY(mlo_fs_mkdirs_private(out->checkpoints, err));
    MLO_TRY(mlo_fs_mkdirs_private(out->kernels, err));
out:
    return status;
}

enum mlo_status mlo_confinement_close(const struct mlo_slot *slot, const char *dir, struct mlo_confinement *c,
                                      struct mlo_error *err)
{
    const struct mlo_worker *worker = slot->worker;
    struct paths programs = {.arena = c->arena}, inputs = {.arena = c->arena}, folders = {.arena = c->arena},
                 gpus = {.arena = c->arena};
    const char *in = mlo_arena_printf(c->arena, "%s/in", dir);
    if (!in)
        return mlo_error_nomem(err);
    add(&programs, worker->exe);
    add_libraries(&programs);
    add_all(&programs, worker->o.allow_read);
    add_inputs(&inputs, in);
    add(&folders, c->out);
    add(&folders, c->checkpoints);
    add(&folders, c->kernels);
    add_all(&folders, worker->o.allow_write);
    for (int i = 0; i < slot->gpu_count; i++)
        add(&gpus, worker->gpus.items[slot->gpus[i]].node);
    if (programs.failed || inputs.failed || folders.failed || gpus.failed)
        return mlo_error_nomem(err);
    const struct mlo_sandbox_rules rules = {
        .programs = programs.items, .inputs = inputs.items, .folders = folders.items, .gpus = gpus.items};
    return mlo_sandbox_new(&rules, &c->sandbox, err);
}

void mlo_confinement_clear(struct mlo_confinement *c)
{
    mlo_sandbox_free(c->sandbox);
    mlo_arena_free(c->arena);
    *c = (struct mlo_confinement){.arena = NULL};
}
