/* 3x3 convolutions by Winograd's F(2x2, 3x3) or F(4x4, 3x3): blocks of 4x4 (6x6) pixels are transformed into
 * a row of 16 (36) planes each, planes are multiplied by the transformed weights with the kernels of own
 * products, and the sums transformed back. Little precision is lost: against sums in double, of 256 channels
 * of 14x14 in [-1, 1), outputs up to 1.6, the largest error of 2x2 is 1.0e-6 (root mean square 1.9e-7), of
 * 4x4 5.8e-6 (5.9e-7). An infinity or NaN reaches all outputs of a block. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/tiling_impl.h"
#include "engines/cpu/fast/winograd_impl.h"
#include "engines/cpu/image_impl.h"

enum { W_X, W_PANELS, W_BIAS, W_RESIDUAL, W_COUNT };
/* Bytes of the planes that a part of the work has, about, or as many as 48 blocks take; what columns and
 * depths are multiples of. */
enum { PART_BYTES = 1024 * 1024, ALIGNMENT = 16, LANES = 16 };

struct winograd {
    struct tile_product product; /* without its pointers */
    enum winograd_form form;
    size_t step, side, planes; /* outputs and pixels of a block along each dim; side * side */
    struct tile_panels panels; /* of one plane's product */
    size_t high, wide, tiles;  /* blocks by image, and in all */
    size_t cycles;             /* that one thread takes, about */
    size_t parts;
    size_t in_plane, out_plane, part_floats; /* floats of a plane of a part, and of all its planes */
};

static const struct winograd_kernels *kernels_of(enum mlo_isa isa, enum winograd_form form)
{
    return isa >= MLO_ISA_AVX512 ? &winograd_avx512[form] : &winograd_avx2[form];
}

/* Measured over the shapes of ResNet-50 and of small nets: few blocks (images of 7x7 and less) do not pay for
 * reading weights that are 16/9 as large (of 2x2) where these fill the second-level cache, and 16 channels
 * not for the transforms. */
bool winograd_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    enum { LEAST_CHANNELS = 32, LEAST_PIXELS = 144, FEW_WEIGHTS = 128 * 128, MOST_WEIGHTS = 300 * 300 };
    bool shape = p->type == TILE_F32 && p->groups == 1 && p->in[0] == 1 && p->out[0] == 1;
    for (int i = 0; i < 3; i++)
        shape &= p->kernel[i] == (i ? 3 : 1) && p->stride[i] == 1 && p->dilation[i] == 1;
    return shape && p->pad[0] == 0 && p->batch >= 1 && p->in_channels >= LEAST_CHANNELS &&
           p->out_channels >= LEAST_CHANNELS && p->in_channels % ALIGNMENT == 0 &&
           p->out_channels % ALIGNMENT == 0 && p->in_channels * p->out_channels <= MOST_WEIGHTS &&
           p->out[1] >= 4 && p->out[2] >= 4 &&
           (p->out[1] * p->out[2] >= LEAST_PIXELS || p->in_channels * p->out_channels <= FEW_WEIGHTS) &&
           tiling_kernels(TILE_F32, plan);
}

static const size_t form_steps[WINOGRAD_FORMS] = {[WINOGRAD_2] = 2, [WINOGRAD_4] = 4};

static size_t blocks_of(const struct tile_product *p, enum winograd_form form)
{
    size_t step = form_steps[form], blocks = (size_t)p->batch;
    for (int i = 1; i < 3; i++)
        blocks *= ((size_t)p->out[i] + step - 1) / step;
    return blocks;
}

/* What one thread takes: products, and the transforms. */
static size_t cycles_of(const struct tile_product *p, enum winograd_form form)
{
    size_t side = form_steps[form] + 2, in = (size_t)p->in_channels, out = (size_t)p->out_channels;
    return blocks_of(p, form) * side * side * (in * out / 2 + 4 * (in + out)) / LANES;
}

/* Large blocks, but where too much of them would lie outside of the image, and where a thread has too few for
 * reading weights that are 4 times as large: measured over images of 4x4 to 20x20 with 32 to 256 channels. */
static enum winograd_form form_of(const struct mlo_plan *plan, const struct tile_product *p)
{
    enum { LEAST_BLOCKS = 16, FEW_BLOCKS = 4, FEW_WEIGHTS = 64 * 64 };
    size_t least = p->in_channels * p->out_channels > FEW_WEIGHTS ? LEAST_BLOCKS : FEW_BLOCKS;
    size_t threads = fast_sharing(plan->threads, cycles_of(p, WINOGRAD_4));
    return blocks_of(p, WINOGRAD_4) >= least * threads && cycles_of(p, WINOGRAD_4) < cycles_of(p, WINOGRAD_2)
               ? WINOGRAD_4
               : WINOGRAD_2;
}

static void set_sizes(struct winograd *w, const struct mlo_plan *plan, const struct tile_product *p)
{
    struct tile_product plane = {
        .groups = 1, .in_channels = p->in_channels, .out_channels = p->out_channels, .kernel = {1, 1, 1}};
    plane.dilation[2] = 1;
    size_t in = (size_t)p->in_channels, out = (size_t)p->out_channels;
    w->product = *p;
    w->product.weights = NULL;
    w->product.bias = NULL;
    tile_panels_init(&w->panels, tiling_kernels(TILE_F32, plan), &plane);
    w->form = form_of(plan, p);
    w->step = form_steps[w->form];
    w->side = w->step + 2;
    w->planes = w->side * w->side;
    w->high = ((size_t)p->out[1] + w->step - 1) / w->step;
    w->wide = ((size_t)p->out[2] + w->step - 1) / w->step;
    w->tiles = w->high * w->wide * (size_t)p->batch;
    size_t each = w->planes * (in + out) * sizeof(float);
    w->cycles = cycles_of(p, w->form);
    size_t threads = fast_sharing(plan->threads, w->cycles);
    size_t most = MLO_MAX(PART_BYTES / each, (size_t)48);
    w->parts = (w->tiles + most - 1) / most;
    w->parts = MLO_MIN((w->parts + threads - 1) / threads * threads, w->tiles);
    size_t rows = (w->tiles + w->parts - 1) / w->parts;
    /* planes begin in different lines of the first-level cache */
    w->in_plane = rows * in + 16;
    w->out_plane = rows * out + 16;
    w->part_floats = w->planes * (w->in_plane + w->out_plane);
}

struct winograd_call {
    const struct winograd *w;
    const struct winograd_kernels *kernels;
    const struct tile_kernels *tiles;
    const struct fast_math_kernels *math;
    const float *x, *bias, *residual;
    const char *panels;
    float *y, *scratch;
};

/* Where a block begins in the output. */
struct block {
    int64_t image, h, col;
};

static struct block block_at(const struct winograd *w, size_t tile)
{
    return (struct block){.image = (int64_t)(tile / w->wide / w->high),
                          .h = (int64_t)(w->step * (tile / w->wide % w->high)),
                          .col = (int64_t)(w->step * (tile % w->wide))};
}

static void next_block(const struct winograd *w, struct block *b)
{
    if ((size_t)(b->col += (int64_t)w->step) < w->step * w->wide)
        return;
    b->col = 0;
    if ((size_t)(b->h += (int64_t)w->step) < w->step * w->high)
        return;
    b->h = 0;
    b->image++;
}

static void to_planes(const struct winograd_call *call, const struct block *b, float *planes)
{
    const struct winograd *w = call->w;
    const struct tile_product *p = &w->product;
    int64_t r = b->h - p->pad[1], c = b->col - p->pad[2], line = p->in[2] * p->in_channels;
    int64_t at = (b->image * p->in[1] + r) * line + c * p->in_channels;
    struct winograd_source s = {.channels = (size_t)p->in_channels, .planes = planes, .plane = w->in_plane};
    const int side = (int)w->side;
    if (r >= 0 && c >= 0 && r + side <= p->in[1] && c + side <= p->in[2]) {
        s.inside = call->x + at;
        s.line = (size_t)line;
    } else {
        for (int i = 0; i < side; i++)
            for (int j = 0; j < side; j++)
                if (r + i >= 0 && r + i < p->in[1] && c + j >= 0 && c + j < p->in[2])
                    s.x[i * side + j] = call->x + (at + i * line + j * p->in_channels);
    }
    call->kernels->source(&s);
}

static void from_planes(const struct winograd_call *call, const struct block *b, const float *planes)
{
    const struct winograd *w = call->w;
    const struct tile_product *p = &w->product;
    int64_t line = p->out[2] * p->out_channels,
            first = (b->image * p->out[1] + b->h) * line + b->col * p->out_channels;
    struct winograd_result r = {.planes = planes,
                                .plane = w->out_plane,
                                .channels = (size_t)p->out_channels,
                                .bias = call->bias,
                                .low = p->epilogue.low,
                                .high = p->epilogue.high};
    const int step = (int)w->step;
    for (int i = 0; i < step * step; i++) {
        if (b->h + i / step >= p->out[1] || b->col + i % step >= p->out[2])
            continue;
        int64_t at = first + i / step * line + i % step * p->out_channels;
        r.y[i] = call->y + at;
        r.residual[i] = call->residual ? call->residual + at : NULL;
    }
    call->kernels->result(&r);
    for (int i = 0; i < step * step && p->post_count; i++)
        for (int k = 0; r.y[i] && k < p->post_count; k++)
            call->math->fn[p->posts[k].fn](r.y[i], r.channels, p->posts[k].alpha, p->posts[k].beta, r.y[i]);
}

/* y[rows] = x[rows] times one plane's weights. */
static void multiply(const struct winograd_call *call, const char *panels, const float *x, float *y,
                     size_t rows)
{
    static const float zeros[64];
    static const ptrdiff_t taps[1];
    enum { LINE = 64 };
    const struct winograd *w = call->w;
    const struct tile_epilogue epilogue = {
        .bias = zeros, .low = -INFINITY, .high = INFINITY, .y_dtype = MLO_FLOAT32};
    size_t depth = w->panels.depth, most = (size_t)MLO_MIN(call->tiles->rows_max[w->panels.width_index],
                                                           call->tiles->rows_max[w->panels.tail_index]);
    size_t count = (rows + most - 1) / most;
    for (size_t i = 0; i < w->panels.per_group; i++) {
        struct tile_panel panel = tile_panel_at(&w->panels, i);
        struct tile t = {.x_stride = depth * sizeof(float),
                         .taps = taps,
                         .tap_count = 1,
                         .depth = depth,
                         .panel = panels + panel.offset_bytes,
                         .y_stride = w->panels.columns * sizeof(float),
                         .columns = panel.columns,
                         .epilogue = &epilogue};
        /* the next panel, or the next plane's first */
        const size_t group = call->tiles->widths[panel.width_index] * sizeof(float);
        t.ahead = (const char *)t.panel + group * depth;
        t.ahead_step = MLO_MIN((group + count - 1) / count, (size_t)LINE);
        for (size_t k = 0; k < count; k++) {
            size_t begin = rows * k / count, end = rows * (k + 1) / count;
            t.x0 = (const char *)(x + begin * depth);
            t.x1 = t.x0 + (end - begin + 1) / 2 * t.x_stride;
            t.y = (char *)(y + begin * w->panels.columns + panel.first);
            call->tiles->run[panel.width_index][end - begin - 1](&t);
            t.ahead += depth * t.ahead_step;
        }
    }
}

/* Index: a part of the blocks. Each worker has planes of its own. */
static void run_parts(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct winograd_call *call = arg;
    const struct winograd *w = call->w;
    size_t in = (size_t)w->product.in_channels, out = (size_t)w->product.out_channels,
           panels = tile_panels_bytes(&w->panels);
    float *sources = call->scratch + worker * w->part_floats, *sums = sources + w->planes * w->in_plane;
    for (size_t i = begin; i < end; i++) {
        size_t first = w->tiles * i / w->parts, rows = w->tiles * (i + 1) / w->parts - first;
        struct block from = block_at(w, first), to = from;
        for (size_t t = 0; t < rows; t++, next_block(w, &from))
            to_planes(call, &from, sources + t * in);
        for (size_t e = 0; e < w->planes; e++)
            multiply(call, call->panels + e * panels, sources + e * w->in_plane, sums + e * w->out_plane,
                     rows);
        for (size_t t = 0; t < rows; t++, next_block(w, &to))
            from_planes(call, &to, sums + t * out);
    }
}

static enum mlo_status winograd_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                    struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct winograd *w = step->data;
    struct winograd_call call = {.w = w,
                                 .kernels = kernels_of(program->plan->isa, w->form),
                                 .tiles = tiling_kernels(TILE_F32, program->plan),
                                 .math = fast_math_kernels_for(program->plan->isa),
                                 .x = program->at[step->in[W_X]],
                                 .panels = program->at[step->in[W_PANELS]],
                                 .bias = program->at[step->in[W_BIAS]],
                                 .residual =
                                     step->in[W_RESIDUAL] >= 0 ? program->at[step->in[W_RESIDUAL]] : NULL,
                                 .y = program->at[step->out[0]],
                                 .scratch = (float *)(void *)program->scratch};
    mlo_pool_run(program->pool, w->parts, 1, run_parts, &call);
    return MLO_OK;
}

static enum mlo_status winograd_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                     struct cpu_writer *writer, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    tile_product_save(writer, &((const struct winograd *)step->data)->product);
    return MLO_OK;
}

static size_t scratch_bytes(const struct winograd *w, const struct mlo_plan *plan)
{
    return cpu_product(w->part_floats, sizeof(float), plan->threads);
}

static enum mlo_status winograd_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                        struct mlo_error *err)
{
    struct tile_product p = {0};
    if (!cpu_check(r, step->in_count == W_COUNT && step->out_count == 1, "a step has other operands"))
        return cpu_reader_status(r, err);
    p.residual = step->in[W_RESIDUAL];
    tile_product_restore(r, &p);
    if (cpu_failed(r) || !cpu_check(r, winograd_supports(plan, &p), "there are no kernels for a convolution"))
        return cpu_reader_status(r, err);
    size_t batch = cpu_product((size_t)p.batch, sizeof(float), 1);
    size_t x = cpu_product(tile_volume(p.in, (size_t)p.in_channels, 1), batch, 1),
           y = cpu_product(tile_volume(p.out, (size_t)p.out_channels, 1), batch, 1);
    if (!cpu_slot_holds(r, plan, step->in[W_X], x) || !cpu_slot_holds(r, plan, step->out[0], y))
        return cpu_reader_status(r, err);
    struct winograd *w = calloc(1, sizeof *w);
    if (!w)
        return mlo_error_nomem(err);
    step->data = w;
    set_sizes(w, plan, &p);
    plan->product_cycles += w->cycles;
    if (cpu_slot_holds(r, plan, step->in[W_PANELS], w->planes * tile_panels_bytes(&w->panels)) &&
        cpu_slot_holds(r, plan, step->in[W_BIAS], (size_t)p.out_channels * sizeof(float)) &&
        cpu_check(r, scratch_bytes(w, plan) <= plan->scratch_bytes, "planes do not fit the scratch memory") &&
        p.residual >= 0)
        cpu_slot_holds(r, plan, p.residual, y);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_winograd_class = {.name = "winograd",
                                                   .run = winograd_run,
                                                   .free_data = free,
                                                   .id = "winograd",
                                                   .save = winograd_save,
                                                   .restore = winograd_restore};

/* --- weights ----------------------------------------------------------------------------------------------
 */

/* G of each form: a row for each point, divided by its distances from the others. */
static const double weights_2[][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
#define A ((double)WINOGRAD_A)
#define B ((double)WINOGRAD_B)
#define TO_A (2 * A * A * (A * A - B * B)) /* a product of distances */
#define TO_B (2 * B * B * (B * B - A * A))
static const double weights_4[][3] = {{1 / (A * A * B * B), 0, 0},        {1 / TO_A, A / TO_A, A *A / TO_A},
                                      {1 / TO_A, -A / TO_A, A *A / TO_A}, {1 / TO_B, B / TO_B, B *B / TO_B},
                                      {1 / TO_B, -B / TO_B, B *B / TO_B}, {0, 0, 1}};
static const double (*const form_weights[WINOGRAD_FORMS])[3] = {
    [WINOGRAD_2] = weights_2, [WINOGRAD_4] = weights_4};

/* G g G^T in double, rounded once: `out` has its numbers `step` apart. */
static void transform_weights(const struct winograd *w, const float *g, size_t tap, float *out, size_t step)
{
    enum { SIDE_MAX = 6 };
    const double(*m)[3] = form_weights[w->form];
    double half[SIDE_MAX][3] = {{0}};
    for (size_t i = 0; i < w->side; i++)
        for (size_t j = 0; j < 3; j++)
            for (size_t k = 0; k < 3; k++)
                half[i][j] += m[i][k] * (double)g[(k * 3 + j) * tap];
    for (size_t i = 0; i < w->side; i++)
        for (size_t j = 0; j < w->side; j++) {
            double sum = 0;
            for (int k = 0; k < 3; k++)
                sum += half[i][k] * m[j][k];
            out[(i * w->side + j) * step] = (float)sum;
        }
}

struct weights_request {
    const struct winograd *w;
    const struct tile_product *product;
};

static bool make_weights(void *arg, void *out)
{
    const struct weights_request *request = arg;
    const struct tile_product *p = request->product;
    size_t in = (size_t)p->in_channels, plane = in * (size_t)p->out_channels;
    const size_t planes = request->w->planes;
    float *all = malloc(planes * plane * sizeof *all);
    if (!all)
        return false;
    for (size_t o = 0; o < (size_t)p->out_channels; o++)
        for (size_t i = 0; i < in; i++)
            transform_weights(request->w, (const float *)p->weights + o * p->w_out + i * p->w_in, p->w_tap,
                              all + o * in + i, plane);
    struct tile_product one = {.in_channels = p->in_channels, .w_out = in, .w_in = 1, .w_tap = 1};
    for (size_t e = 0; e < planes; e++) {
        one.weights = all + e * plane;
        tile_pack(&request->w->panels, &one, (char *)out + e * tile_panels_bytes(&request->w->panels));
    }
    free(all);
    return true;
}

enum mlo_status winograd_emit(struct mlo_plan *plan, const struct mlo_node *node,
                              const struct tile_product *p, struct cpu_step **out, struct mlo_error *err)
{
    size_t bias_bytes = (size_t)p->out_channels * sizeof(float);
    struct winograd *w = calloc(1, sizeof *w);
    struct cpu_step *step = w ? cpu_step_new(plan, &fast_winograd_class, node, W_COUNT, 1) : NULL;
    float *bias = cpu_aligned(bias_bytes);
    if (!step || !bias) {
        free(bias);
        if (!step)
            free(w);
        return mlo_error_nomem(err);
    }
    set_sizes(w, plan, p);
    plan->product_cycles += w->cycles;
    step->data = w;
    if (p->bias)
        memcpy(bias, p->bias, bias_bytes);
    plan->scratch_bytes = MLO_MAX(plan->scratch_bytes, scratch_bytes(w, plan));
    struct weights_request request = {w, p};
    uint64_t params[] = {w->step,         w->panels.columns, w->panels.channels,
                         w->panels.width, w->panels.tail,    p->w_out,
                         p->w_in,         p->w_tap};
    struct cpu_const_key key = {.kind = "winograd f32",
                                .source = p->weights,
                                .source_bytes = p->weights_bytes,
                                .params = params,
                                .params_bytes = sizeof params};
    step->in[W_X] = p->x;
    step->in[W_PANELS] =
        cpu_shared_const(plan, &key, w->planes * tile_panels_bytes(&w->panels), make_weights, &request);
    step->in[W_BIAS] = cpu_slot_const_take(plan, bias, bias_bytes);
    step->in[W_RESIDUAL] = p->residual;
    step->out[0] = p->y;
    step->impl = mlo_arena_printf(plan->arena, "winograd %zux%zu:%s", w->step, w->step,
                                  kernels_of(plan->isa, w->form)->name);
    *out = step;
    return step->in[W_PANELS] < 0 || step->in[W_BIAS] < 0 || !step->impl ? mlo_error_nomem(err) : MLO_OK;
}
