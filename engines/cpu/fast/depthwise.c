/* Depthwise convolutions in float32: line by line, without a copy for the padding. Pixels whose kernels reach
 * over the sides go one by one with fewer columns, lines at the top and bottom with fewer rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/depthwise_impl.h"
#include "engines/cpu/fast/tiling_impl.h"
#include "engines/cpu/image_impl.h"

enum { DW_X, DW_WEIGHTS, DW_BIAS, DW_RESIDUAL, DW_COUNT };
enum { SUMS_A_CYCLE = 8 };

struct depthwise_call {
    const struct tile_product *p;
    const struct depthwise_kernels *kernels;
    const struct fast_math_kernels *math;
    const float *x, *w, *bias, *residual;
    float *y;
};

/* The kernel's positions [*first, *end) that lie within `size` for output `at`, of one dim. */
static void reach(const struct tile_product *p, int dim, int64_t at, int64_t *first, int64_t *end)
{
    int64_t begin = at * p->stride[dim] - p->pad[dim], step = p->dilation[dim];
    *first = begin < 0 ? MLO_MIN((-begin + step - 1) / step, p->kernel[dim]) : 0;
    *end = begin >= p->in[dim] ? 0 : MLO_MIN((p->in[dim] - begin + step - 1) / step, p->kernel[dim]);
    *end = MLO_MAX(*end, *first);
}

/* The functions for the kernel's shape; the last row of the table is for any. */
static depthwise_fn *const *find(const struct depthwise_call *call, bool *any)
{
    const struct tile_product *p = call->p;
    size_t i = 0;
    while (call->kernels->by_shape[i].columns &&
           (call->kernels->by_shape[i].columns != p->kernel[2] ||
            call->kernels->by_shape[i].stride != p->stride[2] || p->dilation[2] != 1))
        i++;
    *any = !call->kernels->by_shape[i].columns;
    return call->kernels->by_shape[i].run;
}

/* Pixels [begin, end) of a line, DEPTHWISE_PIXELS_MAX at most. */
static void run_pixels(const struct depthwise_call *call, depthwise_fn *fn, const struct depthwise *line,
                       int64_t begin, int64_t end)
{
    const struct tile_product *p = call->p;
    int64_t channels = p->groups, first = begin * p->stride[2] - p->pad[2];
    struct depthwise d = *line;
    d.x += first * channels;
    d.begin = (int)MLO_MIN(MLO_MAX(-first, 0), 64);
    d.end = (int)MLO_MAX(MLO_MIN(p->in[2] - first, 64), 0);
    d.y += begin * channels;
    d.residual = line->residual ? line->residual + begin * channels : NULL;
    fn(&d);
    for (int k = 0; k < p->post_count; k++)
        for (int64_t w = 0; w < end - begin; w++)
            call->math->fn[p->posts[k].fn](d.y + w * channels, d.channels, p->posts[k].alpha,
                                           p->posts[k].beta, d.y + w * channels);
}

/* Any shape: a run of pixels with all columns of the kernel, and pixels one by one on both sides of it. */
static void run_any(const struct depthwise_call *call, depthwise_fn *const *run, const struct depthwise *line)
{
    const struct tile_product *p = call->p;
    for (int64_t w = 0, next; w < p->out[2]; w = next) {
        struct depthwise d = *line;
        int64_t first, end;
        reach(p, 2, w, &first, &end);
        next = w + 1;
        if (first == 0 && end == p->kernel[2]) {
            int64_t room = p->in[2] + p->pad[2] - (p->kernel[2] - 1) * p->dilation[2] - 1;
            next = MLO_MIN(MLO_MIN(room / p->stride[2] + 1, p->out[2]), w + DEPTHWISE_PIXELS_MAX);
        }
        d.columns = (size_t)(end - first);
        d.x += first * p->dilation[2] * p->groups;
        d.w += first * p->groups;
        run_pixels(call, run[next - w - 1], &d, w, next);
    }
}

/* Channels [c, c + count) of a line of the output. */
static void run_line(const struct depthwise_call *call, size_t i, size_t c, size_t count)
{
    const struct tile_product *p = call->p;
    int64_t channels = p->groups, line = p->in[2] * channels;
    int64_t image = (int64_t)i / p->out[1], h = (int64_t)i % p->out[1], first, last;
    reach(p, 1, h, &first, &last);
    int64_t from = image * p->in[1] + h * p->stride[1] - p->pad[1] + first * p->dilation[1];
    size_t at = i * (size_t)(p->out[2] * channels) + c;
    struct depthwise d = {.x = call->x + from * line + (int64_t)c,
                          .x_pixel = (size_t)(p->stride[2] * channels),
                          .x_row = (size_t)(p->dilation[1] * line),
                          .x_column = (size_t)(p->dilation[2] * channels),
                          .rows = (size_t)(last - first),
                          .columns = (size_t)p->kernel[2],
                          .w = call->w + first * p->kernel[2] * channels + c,
                          .w_row = (size_t)(p->kernel[2] * channels),
                          .bias = call->bias + c,
                          .channels = count,
                          .pixel = (size_t)channels,
                          .residual = call->residual ? call->residual + at : NULL,
                          .y = call->y + at,
                          .low = p->epilogue.low,
                          .high = p->epilogue.high};
    bool any;
    depthwise_fn *const *run = find(call, &any);
    if (any) {
        run_any(call, run, &d);
        return;
    }
    int64_t parts = (p->out[2] + DEPTHWISE_PIXELS_MAX - 1) / DEPTHWISE_PIXELS_MAX, begin = 0;
    for (int64_t k = 1, end; k <= parts; k++, begin = end) {
        end = p->out[2] * k / parts;
        run_pixels(call, run[end - begin - 1], &d, begin, end);
    }
}

/* Index: a line of the output. Of so many channels at a time that the lines of x that are read again for the
 * next line stay in the first-level cache. */
static void run_lines(void *arg, size_t begin, size_t end, unsigned worker)
{
    enum { BYTES = 28 * 1024, LEAST = 64, FAR = 768 * 1024 };
    MLO_UNUSED(worker);
    const struct depthwise_call *call = arg;
    const struct tile_product *p = call->p;
    size_t channels = (size_t)p->groups, line = (size_t)(p->in[2] * p->kernel[1]) * sizeof(float);
    size_t block = MLO_MAX(BYTES / line / LEAST * LEAST, (size_t)LEAST);
    if ((size_t)(p->in[1] * p->in[2]) * channels * sizeof(float) > FAR)
        block = channels; /* x comes from afar, and is read once, in order */
    for (size_t c = 0; c < channels; c += block)
        for (size_t i = begin; i < end; i++)
            run_line(call, i, c, MLO_MIN(block, channels - c));
}

static const struct depthwise_kernels *kernels_of(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &depthwise_avx512 : &depthwise_avx2;
}

void depthwise_run_lines(const struct mlo_plan *plan, const struct tile_product *p, const float *x,
                         const float *weights, const float *bias, const float *residual, float *y,
                         size_t begin, size_t end)
{
    struct depthwise_call call = {.p = p,
                                  .kernels = kernels_of(plan->isa),
                                  .math = fast_math_kernels_for(plan->isa),
                                  .x = x,
                                  .w = weights,
                                  .bias = bias,
                                  .residual = residual,
                                  .y = y};
    run_lines(&call, begin, end, 0);
}

static enum mlo_status depthwise_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                     struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct tile_product *p = step->data;
    struct depthwise_call call = {.p = p,
                                  .kernels = kernels_of(program->plan->isa),
                                  .math = fast_math_kernels_for(program->plan->isa),
                                  .x = program->at[step->in[DW_X]],
                                  .w = program->at[step->in[DW_WEIGHTS]],
                                  .bias = program->at[step->in[DW_BIAS]],
                                  .residual =
                                      step->in[DW_RESIDUAL] >= 0 ? program->at[step->in[DW_RESIDUAL]] : NULL,
                                  .y = program->at[step->out[0]]};
    size_t lines = (size_t)(p->batch * p->out[1]);
    size_t sums = (size_t)p->kernel[1] * (size_t)p->kernel[2] + 2;
    size_t cycles = lines * (size_t)p->out[2] * (size_t)p->groups * sums / SUMS_A_CYCLE;
    mlo_pool_run(program->pool, lines, fast_grain(program->pool, lines, cycles), run_lines, &call);
    return MLO_OK;
}

static enum mlo_status depthwise_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                      struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    tile_product_save(w, step->data);
    return MLO_OK;
}

static size_t weights_bytes(const struct tile_product *p)
{
    return tile_volume(p->kernel, (size_t)p->groups, sizeof(float));
}

static enum mlo_status depthwise_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                         struct mlo_error *err)
{
    if (!cpu_check(r, step->in_count == DW_COUNT && step->out_count == 1, "a step has other operands"))
        return cpu_reader_status(r, err);
    struct tile_product *p = calloc(1, sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    step->data = p;
    p->residual = step->in[DW_RESIDUAL];
    tile_product_restore(r, p);
    if (!cpu_check(r, depthwise_supports(plan, p), "there are no kernels for a convolution"))
        return cpu_reader_status(r, err);
    size_t channels = (size_t)p->groups, batch = cpu_product((size_t)p->batch, sizeof(float), 1);
    size_t x = cpu_product(tile_volume(p->in, channels, 1), batch, 1),
           y = cpu_product(tile_volume(p->out, channels, 1), batch, 1);
    if (cpu_slot_holds(r, plan, step->in[DW_X], x) &&
        cpu_slot_holds(r, plan, step->in[DW_WEIGHTS], weights_bytes(p)) &&
        cpu_slot_holds(r, plan, step->in[DW_BIAS], channels * sizeof(float)) &&
        cpu_slot_holds(r, plan, step->out[0], y) && p->residual >= 0)
        cpu_slot_holds(r, plan, p->residual, y);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_depthwise_class = {.name = "depthwise",
                                                    .run = depthwise_run,
                                                    .free_data = free,
                                                    .id = "depthwise",
                                                    .save = depthwise_save,
                                                    .restore = depthwise_restore};

bool depthwise_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    return plan->isa >= MLO_ISA_AVX2 && p->type == TILE_F32 && p->in_channels == 1 && p->out_channels == 1 &&
           p->in[0] == 1 && p->out[0] == 1 && p->kernel[0] == 1 && p->pad[0] == 0 && p->batch >= 1 &&
           p->out[1] >= 1 && p->out[2] >= 1 && p->groups >= 4;
}

static bool make_weights(void *arg, void *out)
{
    const struct tile_product *p = arg;
    float *to = out;
    size_t positions = (size_t)(p->kernel[1] * p->kernel[2]);
    for (size_t t = 0; t < positions; t++)
        for (size_t c = 0; c < (size_t)p->groups; c++)
            *to++ = ((const float *)p->weights)[c * p->w_out + t * p->w_tap];
    return true;
}

enum mlo_status depthwise_emit(struct mlo_plan *plan, const struct mlo_node *node,
                               const struct tile_product *p, struct cpu_step **out, struct mlo_error *err)
{
    struct tile_product *data = malloc(sizeof *data);
    struct cpu_step *step = data ? cpu_step_new(plan, &fast_depthwise_class, node, DW_COUNT, 1) : NULL;
    float *bias = cpu_aligned((size_t)p->groups * sizeof *bias);
    if (!step || !bias) {
        free(data);
        free(bias);
        return mlo_error_nomem(err);
    }
    *data = *p;
    data->weights = NULL;
    data->bias = NULL;
    step->data = data;
    if (p->bias)
        memcpy(bias, p->bias, (size_t)p->groups * sizeof *bias);
    uint64_t params[] = {(uint64_t)p->groups, p->w_out, p->w_tap};
    struct cpu_const_key key = {.kind = "depthwise f32",
                                .source = p->weights,
                                .source_bytes = p->weights_bytes,
                                .params = params,
                                .params_bytes = sizeof params};
    struct tile_product source = *p;
    step->in[DW_X] = p->x;
    step->in[DW_WEIGHTS] = cpu_shared_const(plan, &key, weights_bytes(p), make_weights, &source);
    step->in[DW_BIAS] = cpu_slot_const_take(plan, bias, (size_t)p->groups * sizeof *bias);
    step->in[DW_RESIDUAL] = p->residual;
    step->out[0] = p->y;
    step->impl = mlo_arena_printf(plan->arena, "depthwise:%s", kernels_of(plan->isa)->name);
    *out = step;
    return step->in[DW_WEIGHTS] < 0 || step->in[DW_BIAS] < 0 || !step->impl ? mlo_error_nomem(err) : MLO_OK;
}
