/* The GPUs of this machine, and which of them a job has: each one or none, whole. */
#ifndef MLO_SERVICE_GPUS_IMPL_H
#define MLO_SERVICE_GPUS_IMPL_H

#include "pipeline/steps/needs.h"

struct mlo_gpu {
    char uuid[64];                  /* as CUDA_VISIBLE_DEVICES takes it */
    char model[MLO_GPU_MODEL_SIZE]; /* mlo_gpu_model */
    char node[256];                 /* its device: /dev/nvidia0 */
    uint64_t memory_bytes;          /* 0: not known */
    int lock_fd;                    /* -1: not held by this process */
    bool given;                     /* to a job of this process */
};

struct mlo_gpus {
    struct mlo_gpu items[MLO_GPUS_MAX];
    size_t count;
};

/* What the driver's management library says (NVML, opened here and nowhere linked), else what the driver
 * shows in /proc; of that only what CUDA_VISIBLE_DEVICES lets this process see, where it is set. No driver:
 * none, and that is no error.
 * With a file: what it says instead, [{"uuid","name","node"?,"memory"?}], for tests of assignment on machines
 * without such devices. */
MLO_MUST_USE enum mlo_status mlo_gpus_find(const char *inventory, struct mlo_gpus *out,
                                           struct mlo_error *err);
/* Of what the driver shows below `root` ("/proc/driver/nvidia/gpus"); what cannot be read is left out. */
void mlo_gpus_of_proc(const char *root, struct mlo_gpus *out);
/* Leaves only those that `visible` names, by UUID, its beginning, or number; as the driver does, it ends at
 * the first that is none. */
void mlo_gpus_keep(struct mlo_gpus *gpus, const char *visible);
/* [{"uuid","model","memory_bytes"}]; yours. */
json_t *mlo_gpus_json(const struct mlo_gpus *gpus);

/* Takes hold of all that no job of this process has, against the other workers with this folder: a lock each,
 * which ends with the process. What somebody else has is left. */
void mlo_gpus_hold(struct mlo_gpus *gpus, const char *dir);
/* Lets go of what is held and not given. */
void mlo_gpus_unhold(struct mlo_gpus *gpus);
/* The models of those (all, or those held and not given) as an array literal of PostgreSQL. */
void mlo_gpus_models(const struct mlo_gpus *gpus, bool free_only, struct mlo_buf *out);
/* Gives a job so many held ones of that model ("": any); their places in `out`. False, and nothing is given,
 * when there are not so many. */
bool mlo_gpus_give(struct mlo_gpus *gpus, const char *model, int count, int *out);
/* Takes them back, and lets go of them. */
void mlo_gpus_take(struct mlo_gpus *gpus, const int *places, int count);

#endif
