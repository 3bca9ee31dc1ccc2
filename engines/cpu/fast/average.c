/* AveragePool of bytes: sums of a window are exact integers, and each mean is rounded once to float32, then
 * quantized when a QuantizeLinear follows. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

enum { GRAIN = 8, MOST = 1 << 20 };

struct average {
    int64_t batch, channels;
    int64_t in[3], out[3], kernel[3], stride[3], pad[3];
    struct cpu_qparams x, y;
    int32_t quantized, with_pad; /* or 0; no bools: they may come out of a file */
};

struct call {
    const struct average *a;
    const struct fast_kernels *kernels;
    const char *x;
    char *y, *state;
};

static size_t state_bytes(const struct average *a)
{
    return ((size_t)a->channels + 16) * (sizeof(int32_t) + sizeof(float));
}

/* Index: a pixel of the result. */
static void pixels(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct call *c = arg;
    const struct average *a = c->a;
    size_t channels = (size_t)a->channels;
    float *means = (float *)(void *)(c->state + worker * state_bytes(a));
    int32_t *sums = (int32_t *)(void *)(means + channels + 16);
    for (size_t i = begin; i < end; i++) {
        int64_t at = (int64_t)i, from[3], to[3];
        for (int k = 2; k >= 0; k--) {
            int64_t p = at % a->out[k] * a->stride[k] - a->pad[k];
            from[k] = MLO_MAX(p, 0);
            to[k] = MLO_MAX(MLO_MIN(p + a->kernel[k], a->in[k]), from[k]);
            at /= a->out[k];
        }
        int64_t inside = (to[0] - from[0]) * (to[1] - from[1]) * (to[2] - from[2]);
        int64_t count = a->with_pad ? a->kernel[0] * a->kernel[1] * a->kernel[2] : MLO_MAX(inside, 1);
        memset(sums, 0, channels * sizeof *sums);
        for (int64_t d = from[0]; inside && d < to[0]; d++)
            for (int64_t h = from[1]; h < to[1]; h++) {
                int64_t pixel = ((at * a->in[0] + d) * a->in[1] + h) * a->in[2] + from[2];
                c->kernels->sum_rows(c->x + pixel * a->channels, a->x.dtype == MLO_INT8,
                                     (size_t)(to[2] - from[2]), channels, sums);
            }
        double unit = (double)a->x.scale / (double)count;
        float *y = a->quantized ? means : (float *)(void *)c->y + i * channels;
        for (size_t k = 0; k < channels; k++)
            y[k] = (float)(((double)sums[k] - (double)a->x.zero_point * (double)inside) * unit);
        if (a->quantized)
            c->kernels->quantize(means, channels, &a->y, c->y + i * channels);
    }
}

static enum mlo_status load(struct mlo_program *program, const struct cpu_step *step, void **state,
                            struct mlo_error *err)
{
    *state = calloc(program->plan->threads, state_bytes(step->data));
    return *state ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, void *state,
                           struct mlo_error *err)
{
    MLO_UNUSED(err);
    const struct average *a = step->data;
    struct call c = {a, fast_kernels_for(program->plan->isa), program->at[step->in[0]],
                     program->at[step->out[0]], state};
    mlo_pool_run(program->pool, (size_t)(a->batch * a->out[0] * a->out[1] * a->out[2]), GRAIN, pixels, &c);
    return MLO_OK;
}

static enum mlo_status save(const struct mlo_plan *plan, const struct cpu_step *step, struct cpu_writer *w,
                            struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    cpu_put_bytes(w, step->data, sizeof(struct average));
    return MLO_OK;
}

static size_t volume(const struct average *a, const int64_t dims[3], size_t each)
{
    return cpu_product(cpu_product((size_t)a->batch, (size_t)a->channels, each), (size_t)dims[0],
                       cpu_product((size_t)dims[1], (size_t)dims[2], 1));
}

static enum mlo_status restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                               struct mlo_error *err)
{
    struct average *a = calloc(1, sizeof *a);
    if (!a)
        return mlo_error_nomem(err);
    step->data = a;
    cpu_get_bytes(r, a, sizeof *a);
    bool ok = step->in_count == 1 && step->out_count == 1 && a->batch >= 1 && a->batch <= MOST &&
              a->channels >= 1 && a->channels <= MOST;
    for (int i = 0; i < 3; i++) {
        const int64_t sizes[] = {a->in[i], a->out[i], a->kernel[i], a->stride[i]};
        for (size_t k = 0; k < MLO_COUNT(sizes); k++)
            ok &= sizes[k] >= 1 && sizes[k] <= MOST;
        ok &= a->pad[i] >= 0 && a->pad[i] <= MOST;
    }
    ok = ok && cpu_product((size_t)a->kernel[0], (size_t)a->kernel[1], (size_t)a->kernel[2]) <= MOST;
    ok = ok && (!a->quantized || a->y.dtype == MLO_UINT8 || a->y.dtype == MLO_INT8);
    if (cpu_check(r, ok, "a mean has impossible sizes") &&
        cpu_slot_holds(r, plan, step->in[0], volume(a, a->in, 1)))
        cpu_slot_holds(r, plan, step->out[0], volume(a, a->out, a->quantized ? 1 : 4));
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_average_class = {.name = "int8-average",
                                                  .load = load,
                                                  .run = run,
                                                  .unload = free,
                                                  .free_data = free,
                                                  .id = "int8-average",
                                                  .save = save,
                                                  .restore = restore};

enum mlo_status fast_lower_qaverage(struct mlo_plan *plan, const struct mlo_node *node,
                                    const struct mlo_window *w, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape xs;
    struct fast_chain chain;
    int from;
    const struct mlo_value *in = node->inputs[0];
    fast_shape(in, &xs);
    struct average a = {.batch = xs.dims[0],
                        .channels = xs.dims[1],
                        .x = plan->values[in->index].q,
                        .with_pad = mlo_node_attr_i(node, "count_include_pad", 0) != 0};
    int64_t most = 1;
    for (int i = 0; i < 3; i++) {
        int k = i - (3 - w->spatial);
        bool there = k >= 0;
        if (there && (w->dilation[k] != 1 || (w->out[k] - 1) * w->stride[k] + w->kernel[k] >
                                                 w->pad_begin[k] + w->in[k] + w->pad_end[k]))
            return MLO_OK; /* rounding up changes the mean's divisor */
        a.in[i] = there ? w->in[k] : 1;
        a.out[i] = there ? w->out[k] : 1;
        a.kernel[i] = there ? w->kernel[k] : 1;
        a.stride[i] = there ? w->stride[k] : 1;
        a.pad[i] = there ? w->pad_begin[k] : 0;
        if (a.kernel[i] > MOST || a.in[i] > MOST || a.stride[i] > MOST || a.pad[i] > MOST)
            return MLO_OK;
        most *= a.kernel[i];
    }
    if (most > MOST || a.batch > MOST || a.channels > MOST) /* keeps the sums inside 32 bits */
        return MLO_OK;
    fast_chain_follow(plan, node->outputs[0], false, true, &chain);
    a.quantized = chain.quantized && chain.post_count == 0;
    a.y = a.quantized ? chain.q : (struct cpu_qparams){0};
    const struct mlo_value *end = a.quantized ? chain.end : node->outputs[0];
    MLO_TRY(fast_qvalue(plan, in, CPU_LAST, &from, err));
    struct average *copy = malloc(sizeof *copy);
    int to = fast_new_slot(plan, end, false);
    struct cpu_step *step = copy && to >= 0 ? cpu_step_new(plan, &fast_average_class, node, 1, 1) : NULL;
    if (!step) {
        free(copy);
        return mlo_error_nomem(err);
    }
    *copy = a;
    step->data = copy;
    step->precision = "int8";
    step->in[0] = from;
    step->out[0] = to;
    if (a.quantized)
        MLO_TRY(fast_chain_take(plan, &chain, step, err));
    fast_set(plan, end, CPU_LAST, to);
    *done = true;
out:
    return status;
}
