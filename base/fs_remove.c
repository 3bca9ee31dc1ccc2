/* Removing a folder with all that is in it, whatever made it: folders that nobody may enter, paths longer
 * than the kernel takes, and more levels than there are descriptors. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

enum {
    LEVELS = 64,    /* what lies deeper is moved up to the top first */
    PASSES = 65536, /* over a folder: somebody may write into it faster than this removes */
};

struct removal {
    int top;
    dev_t device; /* what is mounted there stays */
    unsigned moved;
};

/* Opens a folder, and unlocks it. By its descriptor: the name may be another's by now. */
static int open_folder(int parent, const char *name)
{
    char link[40];
    struct stat st;
    int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && (st.st_mode & S_IRWXU) != S_IRWXU) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        chmod(link, S_IRWXU);
    }
    int open_fd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(fd);
    return open_fd;
}

static void empty_wholly(struct removal *r, int fd, int level);

static bool remove_one(struct removal *r, int parent, const char *name, int level)
{
    struct stat st;
    char up[32];
    if (unlinkat(parent, name, 0) == 0)
        return true;
    if (errno != EISDIR && errno != EPERM)
        return false;
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0)
        return true;
    if (level == LEVELS) {
        int unlocked = open_folder(parent, name); /* one that nobody may write to keeps its parent */
        if (unlocked >= 0)
            close(unlocked);
        snprintf(up, sizeof up, ".mlopt-removing-%u", r->moved++);
        return renameat(parent, name, r->top, up) == 0;
    }
    int fd = open_folder(parent, name);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && st.st_dev == r->device)
        empty_wholly(r, fd, level + 1);
    close(fd);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

/* Returns how many entries went, or were moved up: names may be passed over while others go. */
static unsigned empty(struct removal *r, int fd, int level)
{
    unsigned removed = 0;
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = own >= 0 ? fdopendir(own) : NULL;
    if (!dir) {
        if (own >= 0)
            close(own);
        return 0;
    }
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            removed += remove_one(r, fd, entry->d_name, level);
    closedir(dir);
    return removed;
}

static void empty_wholly(struct removal *r, int fd, int level)
{
    for (unsigned pass = 0; pass < PASSES && empty(r, fd, level); pass++)
        ;
}

void mlo_fs_remove_tree(const char *path)
{
    struct stat st;
    struct removal r = {.top = -1};
    if (!path || unlink(path) == 0 || (errno != EISDIR && errno != EPERM))
        return;
    r.top = open_folder(AT_FDCWD, path);
    if (r.top >= 0 && fstat(r.top, &st) == 0) {
        r.device = st.st_dev;
        empty_wholly(&r, r.top, 0);
    }
    if (r.top >= 0)
        close(r.top);
    rmdir(path);
}
