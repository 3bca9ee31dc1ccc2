/* Checkpoints of long steps: what was computed so far, in a file whose name is the digest of all that
 * determines it, so that a step that was killed goes on where it was instead of beginning again. What the
 * file holds is up to the step; it is written whole or not at all (mlo_fs_write_atomic, mlo_stats_save). A
 * file that cannot be read is as good as none. */
#ifndef MLO_STEPS_CHECKPOINT_H
#define MLO_STEPS_CHECKPOINT_H

#include "pipeline/steps/steps.h"

struct mlo_checkpoint {
    char *path;     /* where it is read; NULL: none is kept */
    char *fresh;    /* where a new one is written */
    double seconds; /* at least that long between two */
    double fraction;
    uint64_t last_ns;
};

/* The checkpoint of this work in ctx->checkpoint_dir, which is made (NULL there: none is kept). `identity`,
 * canonical JSON, says all that the content follows from: "observe", digests of model and data, options. */
MLO_MUST_USE enum mlo_status mlo_checkpoint_open(const struct mlo_step_context *ctx, const json_t *identity,
                                                 struct mlo_checkpoint *out, struct mlo_error *err);
/* Whether one is worth its while: a twentieth of the work has been done since the last, and some seconds have
 * gone by. A step that is killed repeats no more than that. */
bool mlo_checkpoint_due(const struct mlo_checkpoint *checkpoint, double fraction);
/* Puts the new one in place that has been written to `fresh` (`ok`), or gives up: no further one is tried. */
void mlo_checkpoint_written(struct mlo_checkpoint *checkpoint, double fraction, bool ok);
/* Keeps the file. */
void mlo_checkpoint_close(struct mlo_checkpoint *checkpoint);
/* Removes the oldest checkpoints of a folder beyond what is worth keeping. */
void mlo_checkpoint_trim(const char *dir);

#endif
