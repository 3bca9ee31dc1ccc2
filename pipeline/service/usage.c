/* What all processes of a job use together: a limit of the kernel holds for one process, and a job can have
 * many. They are found by descent, in the lists of children that the kernel keeps of each thread. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pipeline/service/sandbox_impl.h"

enum { STATUS_MAX = 1 << 14, CHILDREN_MAX = 1 << 20, SEEN_MAX = 1 << 16 };

struct found {
    pid_t *pids;
    size_t count, room;
};

static void add(struct found *found, pid_t pid)
{
    if (found->count == found->room && found->count < SEEN_MAX) {
        size_t room = found->room ? 2 * found->room : 64;
        pid_t *more = realloc(found->pids, room * sizeof *more);
        if (!more)
            return;
        found->pids = more;
        found->room = room;
    }
    if (found->count < found->room)
        found->pids[found->count++] = pid;
}

static uint64_t field_kib(const char *status, const char *name)
{
    const char *at = strstr(status, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static uint64_t memory_of(pid_t pid)
{
    char path[48];
    uint64_t kib = 0;
    struct mlo_buf text = MLO_BUF_INIT;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    if (mlo_fs_read(path, STATUS_MAX, &text, NULL) == MLO_OK)
        kib = field_kib(mlo_buf_str(&text), "RssAnon:") + field_kib(mlo_buf_str(&text), "RssShmem:") +
              field_kib(mlo_buf_str(&text), "VmSwap:");
    mlo_buf_clear(&text);
    return kib << 10;
}

static void add_children(pid_t pid, const char *thread, struct found *found)
{
    char path[96];
    struct mlo_buf text = MLO_BUF_INIT;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)pid, thread);
    if (mlo_fs_read(path, CHILDREN_MAX, &text, NULL) == MLO_OK) {
        char *end;
        const char *at = mlo_buf_str(&text);
        for (long child; (child = strtol(at, &end, 10)) > 0 && end != at; at = end)
            add(found, (pid_t)child);
    }
    mlo_buf_clear(&text);
}

void mlo_usage_of(pid_t leader, struct mlo_usage *out)
{
    struct found found = {0};
    *out = (struct mlo_usage){0};
    add(&found, leader);
    for (size_t i = 0; i < found.count; i++) { /* what is found is looked at in its turn */
        char path[48];
        snprintf(path, sizeof path, "/proc/%d/task", (int)found.pids[i]);
        DIR *dir = opendir(path);
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
            if (!isdigit((unsigned char)entry->d_name[0]))
                continue;
            out->tasks++;
            add_children(found.pids[i], entry->d_name, &found);
        }
        if (dir)
            closedir(dir);
        out->memory_bytes += memory_of(found.pids[i]);
    }
    free(found.pids);
}

uint64_t mlo_usage_of_folder(const char *path, uint64_t enough)
{
    uint64_t bytes = 0;
    bool hidden = false;
    char *const roots[] = {(char *)path, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *entry; walk && !hidden && bytes <= enough && (entry = fts_read(walk));) {
        if (entry->fts_info == FTS_F || entry->fts_info == FTS_D || entry->fts_info == FTS_DEFAULT)
            bytes += (uint64_t)entry->fts_statp->st_blocks * 512;
        else if ((entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS) &&
                 entry->fts_errno != ENOENT)
            hidden = true;
    }
    if (walk)
        fts_close(walk);
    return hidden ? MLO_USAGE_HIDDEN : bytes;
}
