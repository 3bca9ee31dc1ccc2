/* What jobs of a project keep for one another on this machine: checkpoints and compiled kernels. All of it
 * can be made again, so what was written longest ago goes first. */
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pipeline/service/worker_impl.h"

struct kept_file {
    char *path;
    struct timespec written;
    uint64_t bytes;
};

struct kept_files {
    struct kept_file *items;
    size_t count, room;
};

static bool add(struct kept_files *files, const FTSENT *entry)
{
    if (files->count == files->room) {
        size_t room = files->room ? 2 * files->room : 64;
        struct kept_file *more = realloc(files->items, room * sizeof *more);
        if (!more)
            return false;
        files->items = more;
        files->room = room;
    }
    struct kept_file *file = &files->items[files->count];
    file->path = strdup(entry->fts_path);
    file->written = entry->fts_statp->st_mtim;
    file->bytes = (uint64_t)entry->fts_statp->st_blocks * 512;
    files->count += file->path != NULL;
    return file->path != NULL;
}

static int by_age(const void *a, const void *b)
{
    const struct timespec *x = &((const struct kept_file *)a)->written,
                          *y = &((const struct kept_file *)b)->written;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

void mlo_kept_trim(const char *folder, uint64_t max_bytes)
{
    struct kept_files files = {0};
    char *const roots[] = {(char *)folder, NULL};
    uint64_t bytes = mlo_usage_of_folder(folder, MLO_USAGE_HIDDEN);
    if (bytes <= max_bytes)
        return;
    if (bytes == MLO_USAGE_HIDDEN) { /* it locks out who looks after it */
        mlo_fs_remove_tree(folder);
        return;
    }
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *entry; walk && (entry = fts_read(walk));)
        if ((entry->fts_info == FTS_F || entry->fts_info == FTS_DEFAULT) && !add(&files, entry))
            break;
    if (walk)
        fts_close(walk);
    if (files.count)
        qsort(files.items, files.count, sizeof *files.items, by_age);
    for (size_t i = 0; i < files.count; i++) {
        if (bytes > max_bytes && unlink(files.items[i].path) == 0)
            bytes -= files.items[i].bytes < bytes ? files.items[i].bytes : bytes;
        free(files.items[i].path);
    }
    free(files.items);
    if (bytes > max_bytes) /* of folders alone */
        mlo_fs_remove_tree(folder);
}
