/* Own steps on 8-bit values: quantize, dequantize, add, mean. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

enum { GRAIN = 32768 };

struct qdata {
    const struct fast_kernels *kernels;
    struct cpu_qparams a, b, y;
    int relu, quantized_out;     /* or 0; no bools: they may come out of a file */
    int64_t n, pixels, channels; /* of a mean or an exchange of layouts */
    size_t count;
};

struct qcall {
    const struct qdata *d;
    const char *a, *b;
    char *y;
};

static struct qcall call_of(const struct mlo_program *program, const struct cpu_step *step)
{
    return (struct qcall){step->data, program->at[step->in[0]],
                          step->in_count > 1 ? program->at[step->in[1]] : NULL, program->at[step->out[0]]};
}

static void quantize_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct qcall *c = arg;
    c->d->kernels->quantize((const float *)c->a + begin, end - begin, &c->d->y, c->y + begin);
}

static void dequantize_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct qcall *c = arg;
    c->d->kernels->dequantize(c->a + begin, end - begin, &c->d->a, (float *)c->y + begin);
}

static void add_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct qcall *c = arg;
    const struct qdata *d = c->d;
    d->kernels->add(c->a + begin, &d->a, c->b + begin, &d->b, end - begin, d->relu, &d->y, c->y + begin);
}

/* Index: a pixel of all images. */
static void interleave_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct qcall *call = arg;
    const size_t pixels = (size_t)call->d->pixels, channels = (size_t)call->d->channels;
    while (begin < end) {
        const size_t image = begin / pixels, first = begin % pixels,
                     count = MLO_MIN(end - begin, pixels - first);
        call->d->kernels->interleave((const uint8_t *)call->a + image * pixels * channels + first, pixels,
                                     channels, count, (uint8_t *)call->y + begin * channels);
        begin += count;
    }
}

static enum mlo_status run_range(struct mlo_program *program, const struct cpu_step *step, mlo_range_fn *fn)
{
    struct qcall call = call_of(program, step);
    mlo_pool_run(program->pool, call.d->count, GRAIN, fn, &call);
    return MLO_OK;
}

static enum mlo_status quantize_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                    struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    return run_range(program, step, quantize_range);
}

static enum mlo_status dequantize_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                      struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    return run_range(program, step, dequantize_range);
}

static enum mlo_status add_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                               struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    return run_range(program, step, add_range);
}

static enum mlo_status interleave_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                      struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    return run_range(program, step, interleave_range);
}

static enum mlo_status mean_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                 struct mlo_error *err)
{
    MLO_UNUSED(program);
    const struct qdata *d = step->data;
    *state = calloc((size_t)d->channels + 16, sizeof(int32_t) + sizeof(float));
    return *state ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status mean_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(err);
    struct qcall call = call_of(program, step);
    const struct qdata *d = call.d;
    size_t channels = (size_t)d->channels, pixels = (size_t)d->pixels;
    float *means = state;
    int32_t *sums = (int32_t *)(means + channels);
    double unit = (double)d->a.scale / (double)pixels;
    for (size_t n = 0; n < (size_t)d->n; n++) {
        memset(sums, 0, channels * sizeof *sums);
        d->kernels->sum_rows(call.a + n * pixels * channels, d->a.dtype == MLO_INT8, pixels, channels, sums);
        float *to = d->quantized_out ? means : (float *)call.y + n * channels;
        for (size_t c = 0; c < channels; c++)
            to[c] = (float)(((double)sums[c] - (double)d->a.zero_point * (double)pixels) * unit);
        if (d->quantized_out)
            d->kernels->quantize(means, channels, &d->y, call.y + n * channels);
    }
    return MLO_OK;
}

static enum mlo_status qdata_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                  struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    struct qdata d = *(const struct qdata *)step->data;
    d.kernels = NULL;
    cpu_put_bytes(w, &d, sizeof d);
    return MLO_OK;
}

static bool is_8_bit(const struct cpu_qparams *q)
{
    return q->dtype == MLO_UINT8 || q->dtype == MLO_INT8;
}

/* Reads the data; the operands have a_each and b_each bytes an element, the result y_each. */
static enum mlo_status qdata_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                     size_t a_each, size_t b_each, size_t y_each, struct mlo_error *err)
{
    struct qdata *d = malloc(sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    cpu_get_bytes(r, d, sizeof *d);
    d->kernels = fast_kernels_for(plan->isa);
    if (cpu_check(r, step->in_count == 1 + (b_each > 0) && step->out_count == 1,
                  "a step has other operands") &&
        cpu_slot_holds(r, plan, step->in[0], cpu_product(d->count, a_each, 1)) && b_each)
        cpu_slot_holds(r, plan, step->in[1], cpu_product(d->count, b_each, 1));
    if (!cpu_failed(r))
        cpu_slot_holds(r, plan, step->out[0], cpu_product(d->count, y_each, 1));
    return cpu_reader_status(r, err);
}

static enum mlo_status quantize_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                        struct mlo_error *err)
{
    enum mlo_status status = qdata_restore(plan, step, r, 4, 0, 1, err);
    if (status != MLO_OK)
        return status;
    cpu_check(r, is_8_bit(&((struct qdata *)step->data)->y), "a step is not of 8 bits");
    return cpu_reader_status(r, err);
}

static enum mlo_status dequantize_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                          struct mlo_error *err)
{
    return qdata_restore(plan, step, r, 1, 0, 4, err);
}

static enum mlo_status add_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                   struct mlo_error *err)
{
    return qdata_restore(plan, step, r, 1, 1, 1, err);
}

static enum mlo_status mean_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                    struct mlo_error *err)
{
    enum mlo_status status = qdata_restore(plan, step, r, 0, 0, 0, err);
    if (status != MLO_OK)
        return status;
    const struct qdata *d = step->data;
    bool sizes =
        d->n >= 0 && d->pixels >= 1 && d->pixels <= 1 << 20 && d->channels >= 1 && d->channels <= INT32_MAX;
    if (cpu_check(r, sizes, "a mean is of nothing")) {
        size_t rows = cpu_product((size_t)d->n, (size_t)d->channels, 1);
        cpu_slot_holds(r, plan, step->in[0], cpu_product(rows, (size_t)d->pixels, 1));
        cpu_slot_holds(r, plan, step->out[0], cpu_product(rows, d->quantized_out ? 1 : 4, 1));
    }
    return cpu_reader_status(r, err);
}

static enum mlo_status interleave_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                          struct mlo_error *err)
{
    enum mlo_status status = qdata_restore(plan, step, r, 0, 0, 0, err);
    if (status != MLO_OK)
        return status;
    const struct qdata *d = step->data;
    bool sizes = d->n >= 0 && d->pixels >= 1 && d->channels >= 2 && d->channels <= 4 &&
                 d->count == cpu_product((size_t)d->n, (size_t)d->pixels, 1);
    if (cpu_check(r, sizes, "an exchange of layouts is of other sizes")) {
        size_t bytes = cpu_product(d->count, (size_t)d->channels, 1);
        cpu_slot_holds(r, plan, step->in[0], bytes);
        cpu_slot_holds(r, plan, step->out[0], bytes);
    }
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_quantize_class = {.name = "quantize",
                                                   .run = quantize_run,
                                                   .free_data = free,
                                                   .id = "quantize",
                                                   .save = qdata_save,
                                                   .restore = quantize_restore};
const struct cpu_step_class fast_dequantize_class = {.name = "dequantize",
                                                     .run = dequantize_run,
                                                     .free_data = free,
                                                     .id = "dequantize",
                                                     .save = qdata_save,
                                                     .restore = dequantize_restore};
const struct cpu_step_class fast_qadd_class = {.name = "int8-add",
                                               .run = add_run,
                                               .free_data = free,
                                               .id = "int8-add",
                                               .save = qdata_save,
                                               .restore = add_restore};
const struct cpu_step_class fast_interleave_class = {.name = "interleave",
                                                     .run = interleave_run,
                                                     .free_data = free,
                                                     .id = "interleave",
                                                     .save = qdata_save,
                                                     .restore = interleave_restore};
const struct cpu_step_class fast_qmean_class = {.name = "int8-mean",
                                                .load = mean_load,
                                                .run = mean_run,
                                                .unload = free,
                                                .free_data = free,
                                                .id = "int8-mean",
                                                .save = qdata_save,
                                                .restore = mean_restore};

static enum mlo_status emit(struct mlo_plan *plan, const struct cpu_step_class *cls,
                            const struct mlo_node *node, const struct qdata *data, int a, int b, int to,
                            struct cpu_step **out, struct mlo_error *err)
{
    struct qdata *copy = malloc(sizeof *copy);
    struct cpu_step *step = copy && to >= 0 ? cpu_step_new(plan, cls, node, b >= 0 ? 2 : 1, 1) : NULL;
    if (!step) {
        free(copy);
        return mlo_error_nomem(err);
    }
    *copy = *data;
    copy->kernels = fast_kernels_for(plan->isa);
    step->data = copy;
    step->in[0] = a;
    if (b >= 0)
        step->in[1] = b;
    step->out[0] = to;
    if (out)
        *out = step;
    return MLO_OK;
}

enum mlo_status fast_emit_quantize(struct mlo_plan *plan, const struct mlo_node *node, int from, int to,
                                   size_t count, const struct cpu_qparams *q, struct mlo_error *err)
{
    struct qdata d = {.y = *q, .count = count};
    return emit(plan, &fast_quantize_class, node, &d, from, -1, to, NULL, err);
}

enum mlo_status fast_emit_dequantize(struct mlo_plan *plan, const struct mlo_node *node, int from, int to,
                                     size_t count, const struct cpu_qparams *q, struct mlo_error *err)
{
    struct qdata d = {.a = *q, .count = count};
    return emit(plan, &fast_dequantize_class, node, &d, from, -1, to, NULL, err);
}

enum mlo_status fast_emit_qadd(struct mlo_plan *plan, const struct mlo_node *node, const int from[2],
                               const struct cpu_qparams *qa, const struct cpu_qparams *qb, int to,
                               const struct cpu_qparams *q, bool relu, size_t count, struct cpu_step **step,
                               struct mlo_error *err)
{
    struct qdata d = {.a = *qa, .b = *qb, .y = *q, .relu = relu, .count = count};
    enum mlo_status status = emit(plan, &fast_qadd_class, node, &d, from[0], from[1], to, step, err);
    if (status == MLO_OK)
        (*step)->precision = "int8";
    return status;
}

enum mlo_status fast_emit_qmean(struct mlo_plan *plan, const struct mlo_node *node, int from,
                                const struct cpu_qparams *qx, int64_t n, int64_t pixels, int64_t channels,
                                int to, const struct cpu_qparams *q, struct cpu_step **step,
                                struct mlo_error *err)
{
    struct qdata d = {.a = *qx, .n = n, .pixels = pixels, .channels = channels, .quantized_out = q != NULL};
    if (q)
        d.y = *q;
    enum mlo_status status = emit(plan, &fast_qmean_class, node, &d, from, -1, to, step, err);
    if (status == MLO_OK)
        (*step)->precision = "int8";
    return status;
}

enum mlo_status fast_emit_interleave(struct mlo_plan *plan, int from, int64_t n, int64_t pixels,
                                     int64_t channels, int to, struct mlo_error *err)
{
    struct qdata d = {.n = n, .pixels = pixels, .channels = channels, .count = (size_t)n * (size_t)pixels};
    struct cpu_step *step;
    enum mlo_status status = emit(plan, &fast_interleave_class, NULL, &d, from, -1, to, &step, err);
    if (status == MLO_OK)
        step->precision = "8 bits";
    return status;
}
