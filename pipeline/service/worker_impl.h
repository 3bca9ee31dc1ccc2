/* A worker's slots, and the attempt that each of them runs. */
#ifndef MLO_SERVICE_WORKER_IMPL_H
#define MLO_SERVICE_WORKER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "pipeline/service/gpus_impl.h"
#include "pipeline/service/job_log_impl.h"
#include "pipeline/service/sandbox_impl.h"
#include "pipeline/service/service_impl.h"

/* Completions of several threads in one call (together.c). `calls`: how many there were. */
struct mlo_together {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t ended;
    struct mlo_waiting *waiting; /* oldest first */
    size_t count;                /* of those */
    bool sending;
    uint64_t calls;
};
void mlo_together_init(struct mlo_together *together);
void mlo_together_clear(struct mlo_together *together);
/* mlo_queue_complete, with those that other threads complete meanwhile. */
MLO_MUST_USE enum mlo_status mlo_together_complete(struct mlo_together *together, struct mlo_db *db,
                                                   const struct mlo_job *job,
                                                   const struct mlo_completion *what, struct mlo_error *err);

/* How attempts of this process ended, as it saw them. */
enum mlo_worker_end {
    MLO_END_DONE,
    MLO_END_FAILED,
    MLO_END_LOST,
    MLO_END_CANCELLED,
    MLO_END_RETURNED,
    MLO_WORKER_ENDS
};

struct mlo_worker {
    struct mlo_worker_options o; /* with the defaults filled in */
    char id[160];                /* host-pid-random: one per process start */
    char host[128];
    char *gpu_dir;                                  /* where the locks of GPUs are */
    char *exe, *work_dir, *scratch_dir, *cache_dir; /* absolute; scratch_dir: of this worker */
    int scratch_fd;                                 /* its lock: held as long as we live */
    struct mlo_buf targets, own_targets;            /* array literals; own: those that the caller named */
    struct mlo_buf lacking;                         /* layers of isolation; array literal */
    atomic_bool paused;                             /* it claims nothing until it is resumed */
    atomic_bool stopping;                           /* no new jobs */
    atomic_bool hand_back;                          /* running ones are given up */
    _Atomic uint64_t ends[MLO_WORKER_ENDS], cache_hits, cache_misses;
    bool metrics_failed;  /* of the main thread: it was logged */
    pthread_mutex_t lock; /* of wake and the generation */
    pthread_cond_t wake;
    uint64_t generation; /* notifications so far */
    struct mlo_slot *slots;
    pthread_mutex_t claiming; /* of what follows: one slot claims for all that are idle */
    struct mlo_slot **idle;   /* room for all slots */
    struct mlo_job *claimed;  /* the same */
    struct mlo_gpus gpus;
    uint64_t memory_bytes;              /* for all of its jobs together */
    _Atomic uint64_t disk_bytes;        /* free when last no job ran */
    struct mlo_buf models, free_models; /* of GPUs; array literals */
    struct mlo_beat *beats;             /* the same; of the main thread */
    struct mlo_together together;
};

/* What an attempt does, one thing after the other; names are constants. */
struct mlo_phases {
    uint64_t began_ns;
    struct {
        const char *name;
        uint64_t from_ns;
    } list[8];
    size_t count;
};
void mlo_phases_begin(struct mlo_phases *phases);
/* The one before it ends. */
void mlo_phases_next(struct mlo_phases *phases, const char *name);
/* Writes them into the attempt's row, if it is still ours; nothing depends on it (trace.c). */
void mlo_phases_send(const struct mlo_phases *phases, struct mlo_db *db, const struct mlo_job *job);

struct mlo_slot {
    struct mlo_worker *worker;
    pthread_t thread;
    bool started;
    bool assigned, gone; /* under worker->claiming: it has a job that it has not begun; it takes no more */
    int gpus[MLO_GPUS_MAX], gpu_count; /* of worker->gpus, the job's; changed under worker->claiming */
    pthread_mutex_t lock;              /* of what follows: the heartbeat comes from the main thread */
    bool busy;
    struct mlo_job job;
    enum mlo_status taken; /* MLO_ELEASE or MLO_ECANCELLED once the job is not ours any more */
    uint64_t lease_end_ns; /* by our own clock: past it we no longer know */
    uint64_t next_beat_ns;
    /* of the slot's own thread */
    struct mlo_job_log log;
    struct mlo_cost cost;
    struct mlo_phases phases;
    double fraction, sent_fraction;
    char message[200];
    uint64_t sent_ns;
    bool final; /* what it failed with does not pass: the time that its recipe gives was over */
};

/* Writes options.metrics_file, where there is one (worker_metrics.c); removes it. */
void mlo_worker_metrics_write(struct mlo_worker *worker);
void mlo_worker_metrics_end(struct mlo_worker *worker);

/* Runs the slot's claimed job to its end, whatever that is: completed, failed, handed back or lost. */
void mlo_attempt_run(struct mlo_slot *slot);

/* Of the thread of a slot, while it works: whether what only asks PostgreSQL is to be tried again after this
 * status. As long as the lease lasts, a connection that is lost costs no attempt, and not the work of one
 * that the child has done. Waits a moment before. */
bool mlo_attempt_once_more(enum mlo_status status);

/* Fills <dir>/in with the job's inputs and writes <dir>/out/job.json. */
MLO_MUST_USE enum mlo_status mlo_attempt_inputs(struct mlo_worker *worker, const struct mlo_job *job,
                                                const char *dir, const char *checkpoints,
                                                struct mlo_error *err);

/* The folders of a job, <dir>/in and <dir>/out and those that it shares with the other jobs of its project,
 * which are made; what its process may do, once its inputs are placed, and its environment. */
struct mlo_confinement {
    struct mlo_arena *arena;
    const char *out, *checkpoints, *kernels;
    struct mlo_sandbox *sandbox;
    const char *env[8];
};
MLO_MUST_USE enum mlo_status mlo_confinement_init(const struct mlo_slot *slot, const char *dir,
                                                  struct mlo_confinement *out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_confinement_close(const struct mlo_slot *slot, const char *dir,
                                                   struct mlo_confinement *c, struct mlo_error *err);
void mlo_confinement_clear(struct mlo_confinement *c);

/* What the machine does while a job has it to itself: {"seconds","cpus","own_cpus","other_cpus"}, CPUs at
 * work on average, by the job's processes and by all others; yours, NULL where the kernel does not tell. */
struct mlo_load {
    uint64_t at_ns;
    double busy_s, own_s;
};
void mlo_load_begin(struct mlo_load *load);
json_t *mlo_load_end(const struct mlo_load *load);

/* The statement of what a job made, as canonical JSON of a signed envelope. *out is yours (free); `signer`
 * gets the worker's key. */
struct mlo_attest_run {
    int64_t started_us;  /* UTC */
    const char *version; /* of mlopt */
};
MLO_MUST_USE enum mlo_status mlo_attest_completion(struct mlo_worker *worker, const struct mlo_job *job,
                                                   const struct mlo_completion *made,
                                                   const struct mlo_attest_run *how, char **out,
                                                   char signer[MLO_PUBLIC_KEY_TEXT_SIZE],
                                                   struct mlo_error *err);

/* Removes what was written longest ago until the folder has no more bytes (kept.c). */
void mlo_kept_trim(const char *folder, uint64_t max_bytes);
/* What this machine has (room.c): memory that processes of our control group may take, physical memory where
 * it has no limit; what is free on the disk of a folder. */
uint64_t mlo_room_memory(void);
uint64_t mlo_room_disk(const char *dir);
/* Of a disk that had `alone` free when no job ran, and has `free` now: what jobs were given is in use whether
 * it is written yet or not, and comes back; what others wrote meanwhile does not. */
struct mlo_disk_room {
    uint64_t there_bytes, free_bytes; /* that a job could have if it were alone; beside those that run */
};
struct mlo_disk_room mlo_room_of_disk(uint64_t alone_bytes, uint64_t free_bytes, uint64_t given_bytes);
/* Finds the memory and GPUs that the worker offers. */
MLO_MUST_USE enum mlo_status mlo_room_find(struct mlo_worker *worker, struct mlo_error *err);
/* What a job can have there, when it is alone. */
uint64_t mlo_room_memory_of_job(const struct mlo_worker *worker);
uint64_t mlo_room_disk_of_job(struct mlo_worker *worker);
/* What is free: no memory and disk that a running job was given, whether it uses them yet or not; in
 * worker->free_models the GPUs that no job of this machine has, held until mlo_gpus_unhold. Under
 * worker->claiming, as what follows. */
void mlo_room_offer(struct mlo_worker *worker, uint64_t *memory, uint64_t *disk);
/* Gives the slot the GPUs that its job was claimed with; without them the job is broken. */
void mlo_room_give(struct mlo_slot *slot, struct mlo_job *job);
/* Takes them back once the job's process has ended, however it did. Takes worker->claiming. */
void mlo_room_take(struct mlo_slot *slot);

/* Makes this worker's scratch folder, and removes those that dead workers left (scratch.c). */
MLO_MUST_USE enum mlo_status mlo_scratch_open(struct mlo_worker *worker, struct mlo_error *err);
void mlo_scratch_close(struct mlo_worker *worker);

#endif
