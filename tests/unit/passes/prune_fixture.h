/* Nets whose odd channels are zero (their weights are): these go first, and what is left must compute the
 * same. */
#ifndef MLO_TESTS_PRUNE_FIXTURE_H
#define MLO_TESTS_PRUNE_FIXTURE_H

#include "passes/passes_impl.h"
#include "passes/prune.h"
#include "tests/unit/passes/passes_helpers.h"

#define HALF "{\"remove\": \"30%\", \"ratios\": \"uniform\", \"round\": 1, \"criterion\": \"l2\"}"

/* A ramp whose odd blocks of indices along `axis` are zero. */
#define holes(model, name, step, axis, block, ...)                                                           \
    holes_of(model, name, step, axis, block, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))
static inline struct mlo_value *holes_of(struct mlo_model *m, const char *name, float step, int axis,
                                         int64_t block, int rank, const int64_t *dims)
{
    struct mlo_value *v = ramp_of(m, name, step, rank, dims);
    float *x = v->constant->data;
    int64_t inner = 1;
    for (int d = axis + 1; d < rank; d++)
        inner *= dims[d];
    for (size_t e = 0; e < mlo_tensor_count(v->constant); e++)
        if ((int64_t)e / inner % dims[axis] / block % 2)
            x[e] = 0;
    return v;
}

/* The last layer: 1x1, two outputs. */
static inline void conclude(struct mlo_model *m, struct mlo_value *x, int64_t channels)
{
    finish(m, op(m, "Conv", "y", x, ramp(m, "last", 0.1f, 2, channels, 1, 1)));
}

static inline struct mlo_value *first(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t in,
                                      int64_t out)
{
    char w[32];
    snprintf(w, sizeof w, "%s_w", name);
    struct mlo_value *y = op(m, "Conv", name, x, holes(m, w, 0.1f, 0, 1, out, in, 3, 3));
    set_ints(y, "pads", 1, 1, 1, 1);
    return y;
}

static inline struct mlo_value *image(struct mlo_model *m)
{
    return input(m, "x", -1, 2, 4, 4);
}

#endif
