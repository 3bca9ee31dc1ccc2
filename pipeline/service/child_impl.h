/* A step's child process: started, listened to, and ended when somebody says so. */
#ifndef MLO_SERVICE_CHILD_IMPL_H
#define MLO_SERVICE_CHILD_IMPL_H

#include "pipeline/service/sandbox_impl.h"

/* Called at least every 100 ms while the child runs; a status other than MLO_OK ends its process group and
 * becomes the outcome. Fills err. */
typedef enum mlo_status mlo_child_watch_fn(void *arg, struct mlo_error *err);
/* What it wrote on stderr so far is in the file; called as often as mlo_child_watch_fn, and when it has
 * ended. */
typedef void mlo_child_log_fn(void *arg, int stderr_fd, bool last);
typedef void mlo_child_progress_fn(void *arg, double fraction, const char *message);

struct mlo_child {
    const char *exe;
    const char *dir;                   /* holds job.json; gets result.json and stderr.log */
    const char *folder;                /* of all that the attempt has on the disk */
    const char *kept[2];               /* folders that outlive it: what it adds there counts; or NULL */
    const struct mlo_sandbox *sandbox; /* or NULL */
    const char *const *env;            /* "NAME=value", NULL-terminated, beside what is passed on; or NULL */
    /* Of all its processes together; 0: none. A job that goes beyond fails with MLO_ETOOBIG: trying again
     * does not help. */
    uint64_t max_memory_bytes, max_scratch_bytes;
    unsigned max_tasks;
    uint32_t max_s;        /* wall time; 0: none */
    bool *out_of_time;     /* gets true when that is over */
    const char *time_hint; /* says who set it */
    double *cpu_s;         /* gets what it and the processes that it waited for used, when it was started */
    mlo_child_watch_fn *watch;
    mlo_child_progress_fn *progress;
    mlo_child_log_fn *log; /* or NULL */
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
