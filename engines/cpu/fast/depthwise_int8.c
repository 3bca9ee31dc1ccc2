/* Depthwise convolutions of quantized values with int8 weights: line by line, without a copy for the padding.
 * What lies outside reads as the zero point, so that the term of zero points is one number a channel. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/depthwise_int8_impl.h"
#include "engines/cpu/fast/tiling_impl.h"
#include "engines/cpu/image_impl.h"

enum { DW8_X, DW8_WEIGHTS, DW8_NUMBERS, DW8_COUNT };
enum { BLOCK = DEPTHWISE8_BLOCK, SUMS_A_CYCLE = 16 };

struct depthwise8_call {
    const struct tile_product *p;
    const struct depthwise8_kernels *kernels;
    const struct tile_kernels *tiles;
    const struct fast_math_kernels *math;
    const uint8_t *x;
    const int8_t *w;
    const int32_t *numbers;
    char *y;
    size_t shape, element, vector_bytes;
    int64_t parts; /* of a line */
    const uint8_t *fill;
    struct tile_swish swish;
    bool fused, staged; /* posts: by the kernels, or on floats behind them */
};

static size_t blocks_of(const struct tile_product *p)
{
    return ((size_t)p->groups + BLOCK - 1) / BLOCK;
}

/* Vectors of the block that begins at channel c. All before it have 4. */
static size_t vectors_of(const struct tile_product *p, size_t c)
{
    size_t left = (size_t)p->groups - c;
    return left <= 16 ? 1 : left <= 32 ? 2 : 4;
}

static size_t fours_of(const struct tile_product *p)
{
    return ((size_t)p->kernel[1] + 3) / 4;
}

/* Bytes of weights for each vector. */
static size_t vector_bytes(const struct tile_product *p)
{
    return fours_of(p) * (size_t)p->kernel[2] * 64;
}

/* Vectors of all channels. */
static size_t vectors_in_all(const struct tile_product *p)
{
    size_t whole = (blocks_of(p) - 1) * 4;
    return whole + vectors_of(p, whole * 16);
}

/* The functions for the kernel's shape; the last row of the table is for any. */
static size_t find(const struct depthwise8_kernels *kernels, const struct tile_product *p)
{
    size_t i = 0;
    while (kernels->by_shape[i].size &&
           (kernels->by_shape[i].size != p->kernel[1] || kernels->by_shape[i].size != p->kernel[2] ||
            kernels->by_shape[i].stride != p->stride[2] || p->dilation[2] != 1))
        i++;
    return i;
}

/* Activations on floats in the cache, then where they belong. */
static void run_posts(const struct depthwise8_call *call, float *stage, size_t pixels, size_t width,
                      size_t channels, char *y, size_t y_stride)
{
    const struct tile_product *p = call->p;
    for (int k = 0; k < p->post_count; k++)
        call->math->fn[p->posts[k].fn](stage, pixels * width, p->posts[k].alpha, p->posts[k].beta, stage);
    if (p->epilogue.y_dtype != MLO_FLOAT32) {
        struct cpu_qparams q = {p->y_scale, p->epilogue.y_zero_point, p->epilogue.y_dtype};
        call->tiles->quantize(stage, pixels, width, channels, &q, y, y_stride);
        return;
    }
    for (size_t i = 0; i < pixels; i++)
        memcpy(y + i * y_stride, stage + i * width, channels * sizeof *stage);
}

/* What holds for a line of the output. */
static void begin_line(const struct depthwise8_call *call, size_t line, struct depthwise8 *d)
{
    const struct tile_product *p = call->p;
    const int64_t image = (int64_t)line / p->out[1],
                  top = (int64_t)line % p->out[1] * p->stride[1] - p->pad[1];
    for (int64_t r = 0; r < (int64_t)d->fours * 4; r++) {
        const int64_t at = top + r * p->dilation[1];
        const bool exists = r < p->kernel[1] && at >= 0 && at < p->in[1];
        d->row[r] = exists ? call->x + (image * p->in[1] + at) * p->in[2] * p->groups : call->fill;
        d->step[r] = exists ? (ptrdiff_t)p->groups : 0;
    }
}

/* Pixels of a part of a line of the output, of blocks [begin, end) of channels. */
static void run_part(const struct depthwise8_call *call, struct depthwise8 *d, size_t line, int64_t part,
                     size_t begin, size_t end)
{
    const struct tile_product *p = call->p;
    const int64_t from = p->out[2] * part / call->parts, to = p->out[2] * (part + 1) / call->parts;
    const size_t channels = (size_t)p->groups, pixel = channels * call->element, pixels = (size_t)(to - from);
    float stage[DEPTHWISE8_PIXELS_MAX * BLOCK] __attribute__((aligned(64)));
    const bool staged = call->staged;
    char *y = call->y + (line * (size_t)p->out[2] + (size_t)from) * pixel;
    d->first = from * p->stride[2] - p->pad[2];
    for (size_t b = begin; b < end; b++) {
        const size_t c = b * BLOCK, vectors = vectors_of(p, c), width = vectors * 16;
        d->channel = c;
        d->w = call->w + b * 4 * call->vector_bytes;
        d->numbers = call->numbers + b * 4 * 48;
        d->channels = MLO_MIN(channels - c, width);
        d->written = staged ? width : d->channels;
        d->y = staged ? (char *)stage : y + c * call->element;
        d->y_stride = staged ? width * sizeof *stage : pixel;
        call->kernels->by_shape[call->shape].run[vectors / 2][pixels - 1](d);
        if (staged)
            run_posts(call, stage, pixels, width, d->channels, y + c * call->element, pixel);
    }
}

/* Index: a part of a line of the output. All channels of a pixel follow each other, as x is read in order
 * then, unless their weights do not stay in the first-level cache. */
static void run_parts(void *arg, size_t begin, size_t end, unsigned worker)
{
    enum { BYTES = 24 * 1024 };
    MLO_UNUSED(worker);
    const struct depthwise8_call *call = arg;
    const struct tile_product *p = call->p;
    const size_t blocks = blocks_of(p), parts = (size_t)call->parts;
    const size_t at_once = vectors_in_all(p) * (call->vector_bytes + 3 * 64) > BYTES ? 1 : blocks;
    struct depthwise8 d = {.fill = call->fill,
                           .width = (size_t)p->in[2],
                           .stride = p->stride[2],
                           .dilation = p->dilation[2],
                           .columns = (size_t)p->kernel[2],
                           .fours = fours_of(p),
                           .flip = p->type == TILE_S8S8 ? 0x80808080u : 0,
                           .low = p->epilogue.low,
                           .high = p->epilogue.high,
                           .y_dtype = call->staged ? MLO_FLOAT32 : p->epilogue.y_dtype,
                           .swish = call->fused ? &call->swish : NULL};
    if (d.y_dtype != MLO_FLOAT32 && !call->fused)
        d.shift = (int16_t)(p->epilogue.y_zero_point - (int32_t)d.low);
    for (size_t b = 0; b < blocks; b += at_once)
        for (size_t i = begin; i < end;) {
            const size_t line = i / parts, last = MLO_MIN(end, (line + 1) * parts);
            begin_line(call, line, &d);
            for (; i < last; i++)
                run_part(call, &d, line, (int64_t)(i - line * parts), b, b + at_once);
        }
}

static enum mlo_status depthwise8_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                      struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct tile_product *p = step->data;
    struct depthwise8_call call = {.p = p,
                                   .kernels = &depthwise8_avx512,
                                   .tiles = tile_kernels_u8s8(program->plan->isa),
                                   .math = fast_math_kernels_for(program->plan->isa),
                                   .x = program->at[step->in[DW8_X]],
                                   .w = program->at[step->in[DW8_WEIGHTS]],
                                   .numbers = program->at[step->in[DW8_NUMBERS]],
                                   .y = program->at[step->out[0]],
                                   .shape = find(&depthwise8_avx512, p),
                                   .element = p->epilogue.y_dtype == MLO_FLOAT32 ? sizeof(float) : 1,
                                   .vector_bytes = vector_bytes(p),
                                   .parts = (p->out[2] + DEPTHWISE8_PIXELS_MAX - 1) / DEPTHWISE8_PIXELS_MAX};
    call.fused = tile_product_swish(p, &call.swish);
    call.staged = p->post_count > 0 && !call.fused;
    call.fill = (const uint8_t *)(call.numbers + vectors_in_all(p) * 48);
    size_t parts = (size_t)(p->batch * p->out[1] * call.parts);
    size_t sums = (size_t)p->kernel[1] * (size_t)p->kernel[2] + 4;
    size_t cycles =
        (size_t)(p->batch * p->out[1]) * (size_t)p->out[2] * (size_t)p->groups * sums / SUMS_A_CYCLE;
    mlo_pool_run(program->pool, parts, fast_grain(program->pool, parts, cycles), run_parts, &call);
    return MLO_OK;
}

static enum mlo_status depthwise8_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                       struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    tile_product_save(w, step->data);
    return MLO_OK;
}

/* Three numbers and a zero point a lane. */
static size_t numbers_bytes(const struct tile_product *p)
{
    return vectors_in_all(p) * 16 * (3 * sizeof(float) + 1);
}

static enum mlo_status depthwise8_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                          struct mlo_error *err)
{
    if (!cpu_check(r, step->in_count == DW8_COUNT && step->out_count == 1, "a step has other operands"))
        return cpu_reader_status(r, err);
    struct tile_product *p = calloc(1, sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    step->data = p;
    p->residual = -1;
    tile_product_restore(r, p);
    if (!cpu_check(r, depthwise8_supports(plan, p), "there are no kernels for a convolution"))
        return cpu_reader_status(r, err);
    size_t channels = (size_t)p->groups, element = p->epilogue.y_dtype == MLO_FLOAT32 ? sizeof(float) : 1;
    if (cpu_slot_holds(r, plan, step->in[DW8_X], tile_volume(p->in, channels, (size_t)p->batch)) &&
        cpu_slot_holds(r, plan, step->in[DW8_WEIGHTS], vectors_in_all(p) * vector_bytes(p)) &&
        cpu_slot_holds(r, plan, step->in[DW8_NUMBERS], numbers_bytes(p)))
        cpu_slot_holds(r, plan, step->out[0],
                       tile_volume(p->out, channels, cpu_product((size_t)p->batch, element, 1)));
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_depthwise8_class = {.name = "depthwise",
                                                     .run = depthwise8_run,
                                                     .free_data = free,
                                                     .id = "depthwise int8",
                                                     .save = depthwise8_save,
                                                     .restore = depthwise8_restore};

bool depthwise8_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    return plan->isa >= MLO_ISA_AVX512_VNNI && tile_is_int8(p) && p->in_channels == 1 &&
           p->out_channels == 1 && p->in[0] == 1 && p->out[0] == 1 && p->kernel[0] == 1 && p->pad[0] == 0 &&
           p->batch >= 1 && p->in[1] >= 1 && p->in[2] >= 1 && p->out[1] >= 1 && p->out[2] >= 1 &&
           p->kernel[1] >= 1 && p->kernel[1] <= DEPTHWISE8_ROWS_MAX && p->kernel[2] >= 1 &&
           p->kernel[2] <= INT32_MAX && p->groups >= 2 && p->epilogue.residual_dtype == MLO_DTYPE_NONE &&
           !p->epilogue.inner;
}

/* The lanes of a vector of a block that exist have their channels' numbers. */
static bool make_weights(void *arg, void *out)
{
    const struct tile_product *p = arg;
    int8_t *to = out;
    const size_t channels = (size_t)p->groups, columns = (size_t)p->kernel[2], rows = (size_t)p->kernel[1];
    memset(out, 0, vectors_in_all(p) * vector_bytes(p));
    for (size_t c = 0; c < channels; c += BLOCK) {
        const size_t vectors = vectors_of(p, c);
        for (size_t k = 0; k < fours_of(p) * columns * vectors * 64; k++, to++) {
            const size_t row = k / (columns * vectors * 64) * 4 + k % 4,
                         column = k / (vectors * 64) % columns;
            const size_t o = c + depthwise8_channel(vectors, k / 64 % vectors, k / 4 % 16);
            if (row < rows && o < channels)
                *to = ((const int8_t *)p->weights)[o * p->w_out + (row * columns + column) * p->w_tap];
        }
    }
    return true;
}

static void make_numbers(const struct tile_product *p, int32_t *out)
{
    const size_t channels = (size_t)p->groups;
    memset(out, 0, numbers_bytes(p));
    memset(out + vectors_in_all(p) * 48, p->fill, vectors_in_all(p) * 16);
    for (size_t c = 0; c < channels; c += BLOCK) {
        const size_t vectors = vectors_of(p, c), width = vectors * 16;
        for (size_t i = 0; i < width; i++) {
            const size_t o = c + depthwise8_channel(vectors, i / 16, i % 16);
            if (o >= channels)
                continue;
            out[i] = p->init ? p->init[o] : 0;
            memcpy(out + width + i, p->scale + o, sizeof *out);
            if (p->bias)
                memcpy(out + 2 * width + i, p->bias + o, sizeof *out);
        }
        out += 3 * width;
    }
}

enum mlo_status depthwise8_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                const struct tile_product *p, struct cpu_step **out, struct mlo_error *err)
{
    struct tile_product *data = malloc(sizeof *data);
    struct cpu_step *step = data ? cpu_step_new(plan, &fast_depthwise8_class, node, DW8_COUNT, 1) : NULL;
    int32_t *numbers = cpu_aligned(numbers_bytes(p));
    if (!step || !numbers) {
        free(data);
        free(numbers);
        return mlo_error_nomem(err);
    }
    *data = *p;
    data->weights = NULL;
    data->bias = data->scale = NULL;
    data->init = NULL;
    step->data = data;
    make_numbers(p, numbers);
    uint64_t params[] = {(uint64_t)p->groups, (uint64_t)p->kernel[1], (uint64_t)p->kernel[2], p->w_out,
                         p->w_tap};
    struct cpu_const_key key = {.kind = "depthwise int8",
                                .source = p->weights,
                                .source_bytes = p->weights_bytes,
                                .params = params,
                                .params_bytes = sizeof params};
    struct tile_product source = *p;
    step->in[DW8_X] = p->x;
    step->in[DW8_WEIGHTS] =
        cpu_shared_const(plan, &key, vectors_in_all(p) * vector_bytes(p), make_weights, &source);
    step->in[DW8_NUMBERS] = cpu_slot_const_take(plan, numbers, numbers_bytes(p));
    step->out[0] = p->y;
    step->precision = "int8";
    step->impl = mlo_arena_printf(plan->arena, "depthwise:%s", depthwise8_avx512.name);
    *out = step;
    return step->in[DW8_WEIGHTS] < 0 || step->in[DW8_NUMBERS] < 0 || !step->impl ? mlo_error_nomem(err)
                                                                                 : MLO_OK;
}
