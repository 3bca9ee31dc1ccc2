/* A step's child process: started, listened to, and ended when somebody says so. */
#ifndef MLO_SERVICE_CHILD_IMPL_H
#define MLO_SERVICE_CHILD_IMPL_H

#include "base/base.h"

/* Called at least every 100 ms while the child runs; a status other than MLO_OK ends its process group and
 * becomes the outcome. Fills err. */
typedef enum mlo_status mlo_child_watch_fn(void *arg, struct mlo_error *err);
typedef void mlo_child_progress_fn(void *arg, double fraction, const char *message);

struct mlo_child {
    const char *exe;
    const char *dir; /* holds job.json; gets result.json and stderr.log */
    uint64_t max_memory_bytes;
    uint32_t max_s; /* wall time; 0: none */
    mlo_child_watch_fn *watch;
    mlo_child_progress_fn *progress;
    void *arg;
};

/* Runs `exe step-exec dir` to its end and reads result.json: *result is yours when MLO_OK is returned. The
 * step's own error is returned as it stands. A process that crashed, was killed or left no result is
 * MLO_EJOB. */
MLO_MUST_USE enum mlo_status mlo_child_run(const struct mlo_child *child, json_t **result, bool *crashed,
                                           struct mlo_error *err);

/* The machine's lock: a benchmark has the machine to itself, all else shares it. Whoever waits keeps
 * newcomers out, so that a benchmark gets its turn. */
struct mlo_machine_lock {
    int turnstile_fd, machine_fd;
};
#define MLO_MACHINE_LOCK_INIT                                                                                \
    {                                                                                                        \
        -1, -1                                                                                               \
    }
/* Waits; `watch` as above can end the waiting. */
MLO_MUST_USE enum mlo_status mlo_machine_lock(const char *dir, bool exclusive, mlo_child_watch_fn *watch,
                                              void *arg, struct mlo_machine_lock *lock,
                                              struct mlo_error *err);
void mlo_machine_unlock(struct mlo_machine_lock *lock);

#endif
