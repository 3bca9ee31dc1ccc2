/* A compiled plan out of a file of its own: for tests that run models, so that they run them a second way. */
#ifndef MLO_TEST_PLAN_COPY_H
#define MLO_TEST_PLAN_COPY_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engines/engines.h"

struct plan_copy {
    struct mlo_plan *plan; /* NULL: a kind of step in it has no form in a file */
    void *bytes;
    size_t size;
};

/* Writes the plan to a file without a name and maps it back. */
static inline enum mlo_status plan_copy(const struct mlo_engine *engine, const struct mlo_plan *plan,
                                        struct plan_copy *out, struct mlo_error *err)
{
    *out = (struct plan_copy){0};
    if (!engine->save)
        return MLO_OK;
    int fd = memfd_create("plan", MFD_CLOEXEC);
    if (fd < 0)
        return mlo_error_set(err, MLO_EIO, "no memory file");
    enum mlo_status status = engine->save(plan, fd, err);
    off_t size = lseek(fd, 0, SEEK_CUR);
    if (status == MLO_OK) {
        out->size = (size_t)size;
        out->bytes = mmap(NULL, out->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (out->bytes == MAP_FAILED)
            abort();
        status = engine->restore(out->bytes, out->size, &out->plan, err);
    } else if (status == MLO_EUNSUPPORTED) {
        status = MLO_OK;
    }
    close(fd);
    return status;
}

static inline void plan_copy_free(const struct mlo_engine *engine, struct plan_copy *copy)
{
    if (copy->plan)
        engine->free_plan(copy->plan);
    if (copy->bytes)
        munmap(copy->bytes, copy->size);
    *copy = (struct plan_copy){0};
}

#endif
