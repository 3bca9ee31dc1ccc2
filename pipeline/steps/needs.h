/* What a job needs of the worker that takes it, and how long it may take: as a recipe writes it, and where
 * it says nothing, from the model's size. */
#ifndef MLO_STEPS_NEEDS_H
#define MLO_STEPS_NEEDS_H

#include "base/base.h"

enum { MLO_GPUS_MAX = 64, MLO_GPU_MODEL_SIZE = 48 };

struct mlo_needs {
    uint64_t memory_bytes, disk_bytes; /* kept free for the job; 0: not said */
    int gpus;                          /* whole ones, its own; -1: not said */
    char gpu[MLO_GPU_MODEL_SIZE];      /* their model, as mlo_gpu_model writes it; "": any */
    uint32_t timeout_s;                /* of one attempt; 0: not said */
};
#define MLO_NEEDS_INIT                                                                                       \
    (struct mlo_needs)                                                                                       \
    {                                                                                                        \
        .gpus = -1                                                                                           \
    }

/* The keys of a recipe's `needs`: memory, disk, gpus, gpu. */
const char *const *mlo_needs_keys(size_t *count);

/* Sets what one of these keys, or "timeout", says: memory and disk are sizes (a number of bytes, "8GB",
 * "1.5 GiB"), gpus a number up to MLO_GPUS_MAX, gpu a model ("H100"), timeout a time (seconds, "2h",
 * "1h30m"). `path` stands for the value in errors ("steps[1].needs.memory"). MLO_EINVAL. */
MLO_MUST_USE enum mlo_status mlo_needs_set(struct mlo_needs *needs, const char *key, const char *path,
                                           const json_t *value, struct mlo_error *err);
/* Whether it can be met at all: a model of GPU needs a GPU. `path`: of the whole. */
MLO_MUST_USE enum mlo_status mlo_needs_check(const struct mlo_needs *needs, const char *path,
                                             struct mlo_error *err);
/* What `own` says, and where it says nothing, what `all` says; then no GPU, where neither speaks of one. */
struct mlo_needs mlo_needs_over(const struct mlo_needs *all, const struct mlo_needs *own);
/* What was said, but for the timeout: {"memory": bytes, "disk": bytes, "gpus", "gpu"}; yours. */
json_t *mlo_needs_json(const struct mlo_needs *needs);

/* Fills in memory and disk where nothing is said: what the step (of the step table) takes of a model of this
 * size, rounded up from what was measured, and to one of 16 sizes between a power of two and the next: jobs
 * of few kinds are quickly claimed (docs/queue.md). */
void mlo_needs_estimate(const char *step, uint64_t model_bytes, struct mlo_needs *needs);
/* Whether a step has a row of its own there. */
bool mlo_needs_known(const char *step);

/* A GPU's model as people write it, from what the driver calls it: "NVIDIA H100 80GB HBM3" is "H100",
 * "NVIDIA GeForce RTX 4090" is "RTX-4090", and so is "rtx 4090". Returns out. */
char *mlo_gpu_model(const char *name, char out[MLO_GPU_MODEL_SIZE]);

#endif
