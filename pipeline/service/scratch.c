/* Scratch folders: <work_dir>/scratch/<worker id>, each with a lock that its worker holds while it lives. A
 * lock tells the living from the dead where a process number, which is used again, does not. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "pipeline/service/worker_impl.h"

static int open_lock(const char *dir, int flags)
{
    char *path = mlo_fs_join(dir, "lock", NULL);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC | flags, 0600) : -1;
    free(path);
    return fd;
}

/* A step of the dead one's may be dying as well, and write a last file. */
static void remove_now(const char *path)
{
    for (int tries = 0; tries < 100 && mlo_fs_exists(path); tries++) {
        if (tries)
            mlo_clock_sleep_ms(10);
        mlo_fs_remove_tree(path);
    }
}

static void remove_dead(const char *root)
{
    DIR *dir = opendir(root);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "lock") == 0)
            continue;
        char *path = mlo_fs_join(root, entry->d_name, NULL);
        int fd = path ? open_lock(path, 0) : -1;
        if (path && (fd < 0 ? errno == ENOENT : flock(fd, LOCK_EX | LOCK_NB) == 0))
            remove_now(path);
        if (fd >= 0)
            close(fd);
        free(path);
    }
    closedir(dir);
}

enum mlo_status mlo_scratch_open(struct mlo_worker *worker, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int root_fd = -1;
    char *root = mlo_fs_join(worker->o.work_dir, "scratch", NULL);
    worker->scratch_dir = root ? mlo_fs_join(root, worker->id, NULL) : NULL;
    if (!worker->scratch_dir) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_mkdirs(root, err));
    root_fd = open_lock(root, O_CREAT); /* one at a time: a folder without a lock is then a dead one's */
    if (root_fd < 0 || flock(root_fd, LOCK_EX) < 0) {
        status = mlo_error_errno(err, errno, "cannot lock %s", root);
        goto out;
    }
    remove_dead(root);
    MLO_TRY(mlo_fs_mkdirs(worker->scratch_dir, err));
    worker->scratch_fd = open_lock(worker->scratch_dir, O_CREAT);
    if (worker->scratch_fd < 0 || flock(worker->scratch_fd, LOCK_EX | LOCK_NB) < 0)
        status = mlo_error_errno(err, errno, "cannot lock %s", worker->scratch_dir);
out:
    if (root_fd >= 0)
        close(root_fd);
    free(root);
    return status;
}

void mlo_scratch_close(struct mlo_worker *worker)
{
    if (worker->scratch_fd >= 0) {
        mlo_fs_remove_tree(worker->scratch_dir);
        close(worker->scratch_fd);
    }
    free(worker->scratch_dir);
    worker->scratch_dir = NULL;
    worker->scratch_fd = -1;
}
