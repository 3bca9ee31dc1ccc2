/* Several programs of one plan at once, each on a stream of its own: how many calls a device does in a time
 * when one call does not fill it. Constants and modules are the plan's; values, workspace and graph are each
 * program's. */
#include <stdlib.h>

#include "engines/cuda/device/device_impl.h"

enum { ROUNDS = 16 }; /* of calls between two events: what starting costs the host is then no part of it */

struct cuda_together {
    const struct cuda_driver *driver;
    struct mlo_program **programs; /* the first is the caller's */
    CUevent *done;                 /* by program: its calls of a sample are over */
    CUevent begin, end;            /* on the first one's stream */
    unsigned count;
};

void cuda_together_free(struct cuda_together *t)
{
    if (!t)
        return;
    for (unsigned i = 0; t->done && i < t->count; i++)
        if (t->done[i])
            t->driver->cuEventDestroy(t->done[i]);
    if (t->begin)
        t->driver->cuEventDestroy(t->begin);
    if (t->end)
        t->driver->cuEventDestroy(t->end);
    for (unsigned i = 1; t->programs && i < t->count; i++)
        cuda_program_unload(t->programs[i]);
    free(t->programs);
    free(t->done);
    free(t);
}

enum mlo_status cuda_together_new(struct mlo_program *first, const struct mlo_tensor *inputs, unsigned count,
                                  struct cuda_together **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct cuda_together *t = calloc(1, sizeof *t);
    if (!t)
        return mlo_error_nomem(err);
    t->driver = first->device->driver;
    t->count = count;
    t->programs = calloc(count, sizeof(struct mlo_program *));
    t->done = calloc(count, sizeof *t->done);
    if (!t->programs || !t->done) {
        status = mlo_error_nomem(err);
        goto out;
    }
    t->programs[0] = first;
    for (unsigned i = 0; i < count; i++) {
        if (i > 0)
            MLO_TRY(cuda_program_load(first->plan, &t->programs[i], err));
        MLO_TRY(cuda_program_upload(t->programs[i], inputs, err));
        MLO_TRY(cuda_program_record(t->programs[i], err));
        CUDA_TRY(t->driver->cuEventCreate(&t->done[i], CU_EVENT_DISABLE_TIMING), "timing");
    }
    CUDA_TRY(t->driver->cuEventCreate(&t->begin, CU_EVENT_DEFAULT), "timing");
    CUDA_TRY(t->driver->cuEventCreate(&t->end, CU_EVENT_DEFAULT), "timing");
    *out = t;
    t = NULL;
out:
    cuda_together_free(t);
    return status;
}

enum mlo_status cuda_together_time(struct cuda_together *t, double *us, struct mlo_error *err)
{
    const struct cuda_driver *d = t->driver;
    CUstream first = t->programs[0]->stream;
    enum mlo_status status = MLO_OK;
    float ms = 0;
    CUDA_TRY(d->cuEventRecord(t->begin, first), "timing");
    for (unsigned i = 1; i < t->count; i++)
        CUDA_TRY(d->cuStreamWaitEvent(t->programs[i]->stream, t->begin, 0), "timing");
    for (unsigned call = 0; call < ROUNDS * t->count; call++) { /* in turn, so that none runs dry */
        const struct mlo_program *p = t->programs[call % t->count];
        CUDA_TRY(d->cuGraphLaunch(p->device_only, p->stream), "starting the graph");
    }
    for (unsigned i = 1; i < t->count; i++) {
        CUDA_TRY(d->cuEventRecord(t->done[i], t->programs[i]->stream), "timing");
        CUDA_TRY(d->cuStreamWaitEvent(first, t->done[i], 0), "timing");
    }
    CUDA_TRY(d->cuEventRecord(t->end, first), "timing");
    CUDA_TRY(d->cuEventSynchronize(t->end), "running the steps");
    CUDA_TRY(d->cuEventElapsedTime(&ms, t->begin, t->end), "timing");
    *us = 1000.0 * (double)ms / (ROUNDS * t->count);
out:
    return status;
}
