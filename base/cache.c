#include "base/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"

enum { NAME_SIZE = 96, UNFINISHED_S = 3600 };

struct entry {
    char name[NAME_SIZE];
    struct timespec used;
    uint64_t size;
};

struct entries {
    struct entry *all;
    size_t count, cap;
};

static int newest_first(const void *a, const void *b)
{
    const struct timespec *x = &((const struct entry *)a)->used, *y = &((const struct entry *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? 1 : -1;
    return (x->tv_nsec < y->tv_nsec) - (x->tv_nsec > y->tv_nsec);
}

/* A file that was never finished: whoever made it is gone. */
static bool is_left_over(const char *name, const struct stat *st, const char *const *unfinished)
{
    for (size_t i = 0; unfinished[i]; i++)
        if (mlo_str_starts(name, unfinished[i]))
            return st->st_mtim.tv_sec < time(NULL) - UNFINISHED_S;
    return false;
}

static bool add(struct entries *e, const char *name, const struct stat *st)
{
    if (e->count == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 64;
        struct entry *more = realloc(e->all, cap * sizeof *more);
        if (!more)
            return false;
        e->all = more;
        e->cap = cap;
    }
    struct entry *entry = &e->all[e->count++];
    memcpy(entry->name, name, strlen(name) + 1);
    entry->used = st->st_mtim;
    entry->size = (uint64_t)st->st_size;
    return true;
}

void mlo_cache_trim(int folder, const struct mlo_cache_limits *limits)
{
    struct entries e = {0};
    uint64_t bytes = 0;
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (const struct dirent *d = readdir(dir); d; d = readdir(dir)) {
        struct stat st;
        if (fstatat(folder, d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (is_left_over(d->d_name, &st, limits->unfinished))
            unlinkat(folder, d->d_name, 0);
        else if (mlo_str_ends(d->d_name, limits->suffix) && strlen(d->d_name) < NAME_SIZE &&
                 !add(&e, d->d_name, &st))
            break;
    }
    closedir(dir);
    if (e.count)
        qsort(e.all, e.count, sizeof *e.all, newest_first);
    for (size_t i = 0; i < e.count; i++) {
        bytes += e.all[i].size;
        if (i >= limits->max_files || (i > 0 && bytes > limits->max_bytes))
            unlinkat(folder, e.all[i].name, 0);
    }
    free(e.all);
}
