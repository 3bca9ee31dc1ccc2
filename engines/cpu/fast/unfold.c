/* Bytes of an image as the rows of a matrix, one for each pixel of a convolution's result: [tap][channel],
 * and the zero point where there is padding. What ConvInteger multiplies. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/wonly_impl.h"
#include "engines/cpu/image_impl.h"

enum { IN_X, IN_ZERO, INS, GRAIN = 16 };

struct unfold {
    int64_t batch, channels;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
};

struct call {
    const struct unfold *u;
    const char *x;
    char *y;
    int zero;
};

static int64_t taps_of(const struct unfold *u)
{
    return u->kernel[0] * u->kernel[1] * u->kernel[2];
}

/* Index: a pixel of the result. */
static void rows(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *c = arg;
    const struct unfold *u = c->u;
    size_t each = (size_t)u->channels;
    char *y = c->y + begin * (size_t)taps_of(u) * each;
    for (size_t i = begin; i < end; i++) {
        int64_t at = (int64_t)i, place[3], tap[3];
        for (int k = 2; k >= 0; k--) {
            place[k] = at % u->out[k] * u->stride[k] - u->pad[k];
            at /= u->out[k];
        }
        const char *image = c->x + at * u->in[0] * u->in[1] * u->in[2] * u->channels;
        for (tap[0] = 0; tap[0] < u->kernel[0]; tap[0]++)
            for (tap[1] = 0; tap[1] < u->kernel[1]; tap[1]++)
                for (tap[2] = 0; tap[2] < u->kernel[2]; tap[2]++, y += each) {
                    int64_t from = 0;
                    bool inside = true;
                    for (int k = 0; k < 3; k++) {
                        int64_t p = place[k] + tap[k] * u->dilation[k];
                        inside &= p >= 0 && p < u->in[k];
                        from = from * u->in[k] + p;
                    }
                    if (inside)
                        memcpy(y, image + from * u->channels, each);
                    else
                        memset(y, c->zero, each);
                }
    }
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, void *state,
                           struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct unfold *u = step->data;
    const uint8_t *zero = step->in[IN_ZERO] >= 0 ? program->at[step->in[IN_ZERO]] : NULL;
    struct call c = {u, program->at[step->in[IN_X]], program->at[step->out[0]], zero ? *zero : 0};
    mlo_pool_run(program->pool, (size_t)(u->batch * u->out[0] * u->out[1] * u->out[2]), GRAIN, rows, &c);
    return MLO_OK;
}

static enum mlo_status save(const struct mlo_plan *plan, const struct cpu_step *step, struct cpu_writer *w,
                            struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    cpu_put_bytes(w, step->data, sizeof(struct unfold));
    return MLO_OK;
}

static size_t volume(int64_t first, int64_t second, const int64_t dims[3])
{
    return cpu_product(cpu_product((size_t)first, (size_t)second, 1), (size_t)dims[0],
                       cpu_product((size_t)dims[1], (size_t)dims[2], 1));
}

static enum mlo_status restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                               struct mlo_error *err)
{
    enum { MOST = 1 << 24 };
    struct unfold *u = calloc(1, sizeof *u);
    if (!u)
        return mlo_error_nomem(err);
    step->data = u;
    cpu_get_bytes(r, u, sizeof *u);
    bool ok = step->in_count == INS && step->out_count == 1 && u->batch >= 1 && u->batch <= MOST &&
              u->channels >= 1 && u->channels <= MOST;
    for (int i = 0; i < 3; i++) {
        const int64_t sizes[] = {u->in[i], u->out[i], u->kernel[i], u->stride[i], u->dilation[i]};
        for (size_t k = 0; k < MLO_COUNT(sizes); k++)
            ok &= sizes[k] >= 1 && sizes[k] <= MOST;
        ok &= u->pad[i] >= 0 && u->pad[i] <= MOST;
    }
    if (!cpu_check(r, ok, "an unfolded image has impossible sizes"))
        return cpu_reader_status(r, err);
    size_t result = cpu_product(volume(u->batch, u->channels, u->out), volume(1, 1, u->kernel), 1);
    if (cpu_slot_holds(r, plan, step->in[IN_X], volume(u->batch, u->channels, u->in)) &&
        cpu_slot_holds(r, plan, step->out[0], result) && step->in[IN_ZERO] >= 0)
        cpu_slot_holds(r, plan, step->in[IN_ZERO], 1);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_unfold_class = {
    .name = "unfold", .run = run, .free_data = free, .id = "unfold", .save = save, .restore = restore};

enum mlo_status fast_emit_unfold(struct mlo_plan *plan, const struct mlo_node *node, int x, int zero, int *to,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    struct fast_shape xs, ws;
    struct mlo_window w;
    fast_shape(node->inputs[0], &xs);
    fast_shape(node->inputs[1], &ws);
    MLO_TRY(mlo_window_init(&w, node, xs.rank - 2, xs.dims + 2, ws.dims + 2, err));
    struct unfold u = {.batch = xs.dims[0], .channels = xs.dims[1]};
    bool same = true; /* one tap, and every pixel in turn */
    for (int i = 0; i < 3; i++) {
        int from = i - (3 - w.spatial);
        bool there = from >= 0;
        u.in[i] = there ? w.in[from] : 1;
        u.out[i] = there ? w.out[from] : 1;
        u.kernel[i] = there ? w.kernel[from] : 1;
        u.stride[i] = there ? w.stride[from] : 1;
        u.dilation[i] = there ? w.dilation[from] : 1;
        u.pad[i] = there ? w.pad_begin[from] : 0;
        same &= u.kernel[i] == 1 && u.out[i] == u.in[i] && u.stride[i] == 1 && u.pad[i] == 0;
    }
    *to = x;
    if (same)
        return MLO_OK;
    struct unfold *copy = malloc(sizeof *copy);
    size_t bytes = volume(u.batch * taps_of(&u), u.channels, u.out);
    *to = copy && bytes < SIZE_MAX / 2 ? cpu_slot_new(plan, CPU_SLOT_ARENA, bytes) : -1;
    struct cpu_step *step = *to >= 0 ? cpu_step_new(plan, &fast_unfold_class, node, INS, 1) : NULL;
    if (!step) {
        free(copy);
        return mlo_error_nomem(err);
    }
    *copy = u;
    step->data = copy;
    step->precision = "8 bits";
    step->in[IN_X] = x;
    step->in[IN_ZERO] = zero;
    step->out[0] = *to;
out:
    return status;
}
