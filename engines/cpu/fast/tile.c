/* Own products at run: the kernels of the machine over tiles of rows and panels of columns. Padding is made
 * by a copy of x with its border, so that every row of the output reads the same table of taps. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/tile_f16_impl.h"
#include "engines/cpu/fast/tile_fixed_impl.h"
#include "engines/cpu/fast/tiling_impl.h"
#include "engines/cpu/image_impl.h"

enum { COPIED_A_CYCLE = 16 /* bytes */, LARGEST_PART = 4096 };

struct call {
    const struct tiling *s;
    const struct tile_kernels *kernels;
    const struct fast_math_kernels *math;
    const char *x; /* with border */
    const char *panels;
    const float *bias, *scale;
    const int32_t *init;
    const char *residual;
    char *y;
    const char *source; /* what the border is put around, in `bordered` */
    tile_interleave_fn *interleave;
    char *bordered;
    float x_scale; /* FP16: what x is multiplied by */
    atomic_uint largest;
    tile_fixed_line_fn *fixed_line;
    float *units;        /* fixed point: behind the copy */
    atomic_bool special; /* fixed point: a line of x is */
};

/* Pixels of the copy as numbers of one unit, which fixed point has. */
static float to_numbers(struct call *call, const char *from, size_t pixels, char *to)
{
    const struct border *b = &call->s->border;
    float unit = call->fixed_line((const float *)(const void *)from, pixels, b->source_bytes / sizeof(float),
                                  b->pixel_bytes / sizeof(int16_t), (int16_t *)(void *)to);
    if (unit < 0)
        atomic_store(&call->special, true);
    return unit;
}

/* Index: a line of pixels of the bordered copy. */
static void copy_lines(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    struct call *call = arg;
    const struct border *b = &call->s->border;
    const bool fixed = call->s->product.type == TILE_FIXED;
    size_t line_bytes = b->to[2] * b->pixel_bytes, lead = MLO_MIN(b->pad[2], b->to[2]) * b->pixel_bytes;
    size_t body = MLO_MIN(b->from[2] * b->pixel_bytes, line_bytes - lead), pixels = body / b->pixel_bytes;
    size_t slice = begin / b->to[1], line = begin - slice * b->to[1];
    for (size_t i = begin; i < end; i++, line++) {
        char *to = call->bordered + i * line_bytes;
        if (line == b->to[1]) {
            line = 0;
            slice++;
        }
        const size_t image = fast_quotient(slice, b->to[0]);
        size_t h = line - b->pad[1], d = slice - image * b->to[0] - b->pad[0];
        if (h >= b->from[1] || d >= b->from[0]) { /* in front: wraps around to a large number */
            memset(to, b->fill, line_bytes);
            if (fixed)
                call->units[i] = 0.0f;
            continue;
        }
        const char *from =
            call->source + ((image * b->from[0] + d) * b->from[1] + h) * b->from[2] * b->source_bytes;
        memset(to, b->fill, lead);
        if (call->s->product.planar) {
            size_t planes = b->pixel_bytes / sizeof(float), plane = b->from[0] * b->from[1] * b->from[2];
            const float *x = (const float *)(const void *)call->source + image * planes * plane +
                             (d * b->from[1] + h) * b->from[2];
            call->interleave(x, plane, planes, pixels, (float *)(void *)(to + lead));
        } else if (fixed) {
            call->units[i] = to_numbers(call, from, pixels, to + lead);
        } else if (call->s->product.type == TILE_F16) {
            tile_f16_rows((const float *)(const void *)from, pixels, b->source_bytes / sizeof(float),
                          b->pixel_bytes / sizeof(uint16_t), call->x_scale, (uint16_t *)(void *)(to + lead));
        } else {
            memcpy(to + lead, from, body);
        }
        memset(to + lead + body, b->fill, line_bytes - lead - body);
    }
}

/* Index: a pixel. */
static void narrow_pixels(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    struct call *call = arg;
    const struct border *b = &call->s->border;
    for (size_t i = begin; i < end; i++)
        call->units[i] =
            to_numbers(call, call->source + i * b->source_bytes, 1, call->bordered + i * b->pixel_bytes);
}

/* Index: a part of x, of LARGEST_PART floats. */
static void find_largest(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    struct call *call = arg;
    const struct border *b = &call->s->border;
    size_t count = b->images * b->from[0] * b->from[1] * b->from[2] * (b->source_bytes / sizeof(float));
    size_t first = begin * LARGEST_PART, last = MLO_MIN(end * LARGEST_PART, count);
    uint32_t found = tile_f16_largest((const float *)(const void *)call->source + first, last - first);
    unsigned most = atomic_load(&call->largest);
    while (found > most && !atomic_compare_exchange_weak(&call->largest, &most, found))
        ;
}

/* The values of x as FP16 has room for them. */
static void scale_x(struct call *call, struct mlo_program *program)
{
    const struct border *b = &call->s->border;
    size_t bytes = b->images * b->from[0] * b->from[1] * b->from[2] * b->source_bytes;
    size_t parts = (bytes / sizeof(float) + LARGEST_PART - 1) / LARGEST_PART;
    mlo_pool_run(program->pool, parts, fast_grain(program->pool, parts, bytes / COPIED_A_CYCLE), find_largest,
                 call);
    call->x_scale = tile_f16_scale(atomic_load(&call->largest));
}

/* x as the kernels read it. */
static void copy_x(struct call *call, struct mlo_program *program)
{
    const struct border *b = &call->s->border;
    size_t lines = b->images * b->to[0] * b->to[1], pixels = lines * b->to[2];
    size_t parts = b->by_pixel ? pixels : lines;
    mlo_pool_run(program->pool, parts,
                 fast_grain(program->pool, parts, pixels * b->pixel_bytes / COPIED_A_CYCLE),
                 b->by_pixel ? narrow_pixels : copy_lines, call);
}

static const char *line_at(const struct call *call, size_t line)
{
    const struct tiling *s = call->s;
    size_t slice = fast_quotient(line, s->counts[1]), h = line - slice * s->counts[1];
    size_t image = fast_quotient(slice, s->counts[0]), d = slice - image * s->counts[0];
    return call->x + image * s->steps[0] + d * s->steps[1] + h * s->steps[2];
}

/* Where a tile is: its line, its place there, and where the line begins in x. */
struct cursor {
    size_t line, part;
    const char *x;
};

static struct cursor cursor_at(const struct call *call, size_t i)
{
    const struct tiling *s = call->s;
    size_t line = s->tiles_per_line ? fast_quotient(i, s->tiles_per_line) : 2 * i;
    return (struct cursor){
        .line = line, .part = s->tiles_per_line ? i - line * s->tiles_per_line : 0, .x = line_at(call, line)};
}

/* Where a tile reads and writes: its halves in x, its first row and how many. */
struct spot {
    const char *x0, *x1;
    size_t first, rows;
};

/* The cursor's tile; moves on to the next. */
static struct spot place(const struct call *call, struct cursor *c)
{
    const struct tiling *s = call->s;
    struct spot spot = {.x0 = c->x, .first = c->line * s->line_rows, .rows = s->line_rows};
    size_t line = c->line + 1;
    if (s->tiles_per_line) {
        size_t begin = c->part * s->part_rows + MLO_MIN(c->part, s->longer_parts);
        spot.rows = s->part_rows + (c->part < s->longer_parts);
        spot.first += begin;
        spot.x0 += begin * s->x_stride;
        if (++c->part < s->tiles_per_line)
            line = c->line;
    } else if (line < s->lines) {
        spot.x1 = line_at(call, line++);
        spot.rows *= 2;
    }
    if (!spot.x1)
        spot.x1 = spot.x0 + (spot.rows + 1) / 2 * s->x_stride;
    if (line != c->line && line < s->lines)
        *c = (struct cursor){.line = line, .x = line_at(call, line)};
    return spot;
}

/* On the tile's rows in y, or on all that is in `stage`. */
static void run_posts(const struct call *call, const struct tile *t, size_t rows, float *stage, size_t width)
{
    const struct tile_product *p = &call->s->product;
    for (int i = 0; i < p->post_count; i++) {
        fast_math_fn *fn = call->math->fn[p->posts[i].fn];
        if (stage) {
            fn(stage, rows * width, p->posts[i].alpha, p->posts[i].beta, stage);
            continue;
        }
        for (size_t r = 0; r < rows; r++) {
            float *row = (float *)(t->y + r * t->y_stride);
            fn(row, t->columns, p->posts[i].alpha, p->posts[i].beta, row);
        }
    }
}

/* The units of the tile's rows. */
static void find_units(const struct call *call, size_t first, size_t rows, struct tile *t)
{
    const struct border *b = &call->s->border;
    if (b->by_pixel) {
        t->units0 = call->units + first;
        t->units1 = t->units0 + (rows + 1) / 2;
    } else {
        size_t line_bytes = b->to[2] * b->pixel_bytes;
        t->units0 = call->units + fast_quotient((size_t)(t->x0 - call->x), line_bytes);
        t->units1 = call->units + fast_quotient((size_t)(t->x1 - call->x), line_bytes);
    }
}

/* A tile in fixed point row by row, since some lines of x are special. */
static void run_rows(const struct tile *t, size_t rows, tile_fn *plain)
{
    const size_t low = (rows + 1) / 2;
    for (size_t r = 0; r < rows; r++) {
        const size_t i = r < low ? r : r - low;
        struct tile one = *t;
        bool special = false;
        one.x0 = (r < low ? t->x0 : t->x1) + i * t->x_stride;
        one.units0 = (r < low ? t->units0 : t->units1) + i * t->unit_step;
        one.y += r * t->y_stride;
        one.residual = t->residual ? t->residual + r * t->residual_stride : NULL;
        for (size_t tap = 0; tap < t->tap_count; tap++)
            special |= one.units0[t->unit_taps[tap]] < 0;
        (special ? tile_fixed_careful : plain)(&one);
    }
}

/* What the next panel begins and ends with is read once a step, so that nothing else has brought it near. */
static void fetch_columns(const struct call *call, const struct tile_panel *panel)
{
    enum { LINE_FLOATS = 16 };
    for (size_t i = panel->padded_first; i < panel->padded_first + panel->columns; i += LINE_FLOATS) {
        __builtin_prefetch(call->bias + i);
        if (call->scale)
            __builtin_prefetch(call->scale + i);
        if (call->init)
            __builtin_prefetch(call->init + i);
    }
}

/* What is read after a panel. */
struct upcoming {
    const char *at;
    size_t bytes;
};

/* Groups of depth from `from` on, as many as a part has, of a panel of the call's. */
static struct upcoming upcoming_panel(const struct call *call, size_t index, size_t from)
{
    const struct tile_panels *panels = &call->s->panels;
    const struct tile_panel panel = tile_panel_at(panels, index);
    const size_t group = call->kernels->widths[panel.width_index] * panels->group_bytes;
    return (struct upcoming){call->panels + panel.offset_bytes + from * group,
                             panels->taps * MLO_MIN(call->s->block_depth, panels->depth - from) * group};
}

/* Tiles of one panel, for groups of depth [from, to) of it. */
static void run_panel(const struct call *call, size_t index, struct upcoming next, const struct spot *spots,
                      size_t count, size_t from, size_t to)
{
    enum { LINE = 64 };
    static const float zeros[64];
    const struct tiling *s = call->s;
    const struct tile_panel panel = tile_panel_at(&s->panels, index);
    struct tile_epilogue epilogue = s->epilogue;
    bool last = to == s->panels.depth;
    size_t width = call->kernels->widths[panel.width_index];
    epilogue.bias = from ? zeros : call->bias + panel.padded_first;
    epilogue.scale = call->scale ? call->scale + panel.padded_first : NULL;
    epilogue.init = call->init ? call->init + panel.padded_first : NULL;
    if (s->product.type == TILE_F16)
        epilogue.unit = 1.0f / call->x_scale;
    if (!last) { /* the sums are not complete */
        epilogue.low = -INFINITY;
        epilogue.high = INFINITY;
    }
    if (from)
        epilogue.residual_dtype = MLO_FLOAT32;
    size_t column = panel.group * s->panels.columns + panel.first;
    struct tile t = {.x_stride = s->x_stride,
                     .taps = s->taps,
                     .tap_count = s->panels.taps,
                     .depth = to - from,
                     .panel = call->panels + panel.offset_bytes + from * width * s->panels.group_bytes,
                     .y_stride = s->y_stride,
                     .residual_stride = from ? s->y_stride : s->residual_stride,
                     .columns = panel.columns,
                     .epilogue = &epilogue,
                     .run = s->product.run,
                     .width = width,
                     .unit_taps = s->unit_taps,
                     .unit_step = s->border.by_pixel,
                     .ahead = next.at};
    /* a little with each tile: all at once would keep waiting what this panel reads */
    const size_t groups = s->panels.taps * t.depth, per_pass = count * groups;
    t.ahead_step = MLO_MIN((next.bytes + per_pass - 1) / per_pass, (size_t)LINE);
    size_t x_offset = panel.group * s->x_group + from * s->panels.group_bytes;
    const bool fixed = s->product.type == TILE_FIXED, special = fixed && atomic_load(&call->special);
    tile_fn *const *run = call->kernels->run[panel.width_index];
    float stage[TILE_ROWS_MAX * TILE_WIDTH_MAX] __attribute__((aligned(64)));
    const bool staged = s->staged, posts = last && s->product.post_count && !epilogue.swish;
    const struct cpu_qparams q = {s->product.y_scale, epilogue.y_zero_point, s->product.epilogue.y_dtype};
    if (staged) {
        memset(stage, 0, sizeof stage);
        t.y_stride = width * sizeof(float);
        t.columns = width;
    }
    const size_t step = s->y_stride, residual_step = s->residual_stride;
    char *y = call->y + column * s->y_element;
    const char *residual = call->residual ? call->residual + column * s->residual_element : NULL;
    for (size_t i = 0; i < count; i++) {
        const size_t first = spots[i].first, rows = spots[i].rows;
        t.x0 = spots[i].x0;
        t.x1 = spots[i].x1;
        if (fixed)
            find_units(call, first, rows, &t);
        t.x0 += x_offset;
        t.x1 += x_offset;
        t.y = staged ? (char *)stage : y + first * step;
        t.residual = from ? t.y : residual ? residual + first * residual_step : NULL;
        if (special)
            run_rows(&t, rows, run[0]);
        else
            run[rows - 1](&t);
        t.ahead += groups * t.ahead_step;
        if (posts)
            run_posts(call, &t, rows, staged ? stage : NULL, width);
        if (staged)
            call->kernels->quantize(stage, rows, width, panel.columns, &q, y + first * step, step);
    }
}

/* Where part i of `parts` begins in `count` (part `parts`: where it ends). */
static size_t part_begin(size_t count, size_t i, size_t parts)
{
    return i == 0 ? 0 : i == parts ? count : count * i / parts;
}

/* Tiles [t0, t1) of panels [p0, p1). */
static void run_tiles(const struct call *call, size_t t0, size_t t1, size_t p0, size_t p1)
{
    const struct tiling *s = call->s;
    size_t depth = s->panels.depth;
    struct cursor cursor = cursor_at(call, t0);
    struct spot spots[TILING_BLOCK_MAX];
    for (size_t t = t0; t < t1; t += s->block_tiles) {
        size_t count = MLO_MIN(s->block_tiles, t1 - t);
        for (size_t n = 0; n < count; n++)
            spots[n] = place(call, &cursor);
        for (size_t k = 0; k < depth; k += s->block_depth) {
            const size_t end = MLO_MIN(k + s->block_depth, depth);
            for (size_t p = p0; p < p1; p++) {
                const bool goes_on = p + 1 < p1; /* else the first one again, of what comes then */
                const size_t after = goes_on ? p + 1 : p0, from = goes_on ? k : end < depth ? end : 0;
                if (after != p) {
                    const struct tile_panel panel = tile_panel_at(&s->panels, after);
                    fetch_columns(call, &panel);
                }
                run_panel(call, p, upcoming_panel(call, after, from), spots, count, k, end);
            }
        }
    }
}

/* Index: a part, which is a range of tiles times a range of panels. */
static void run_parts(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *call = arg;
    const struct tiling *s = call->s;
    size_t panels = s->panels.groups * s->panels.per_group;
    for (size_t i = begin; i < end; i++) {
        size_t r = fast_quotient(i, s->split_panels), c = i - r * s->split_panels;
        run_tiles(call, part_begin(s->tiles, r, s->split_tiles), part_begin(s->tiles, r + 1, s->split_tiles),
                  part_begin(panels, c, s->split_panels), part_begin(panels, c + 1, s->split_panels));
    }
}

/* Of x with its border: what lines [begin, end) of the output read. */
static void border_of(const struct tiling *s, size_t begin, size_t end, size_t *first, size_t *last)
{
    const struct tile_product *p = &s->product;
    size_t image = begin / s->counts[1], stride = (size_t)p->stride[1];
    size_t reach = (size_t)((p->kernel[1] - 1) * p->dilation[1]) + 1;
    *first = image * s->border.to[1] + (begin - image * s->counts[1]) * stride;
    *last = *first + (end - begin - 1) * stride + reach;
}

size_t tiling_border_bytes(const struct tiling *s, size_t lines)
{
    size_t first = 0, last = 0;
    if (s->border.copy && lines > 0)
        border_of(s, 0, lines, &first, &last);
    return last * s->border.to[2] * s->border.pixel_bytes;
}

/* Of a product whose lines follow each other without a border: `lines` of them as one. */
union run_of_lines {
    struct tiling tiling;
    char bytes[sizeof(struct tiling) + 2 * sizeof(ptrdiff_t)];
};
static void as_one_line(const struct tiling *s, size_t lines, union run_of_lines *out)
{
    memcpy(out, s, sizeof *out);
    struct tiling *one = &out->tiling;
    one->line_rows = lines * s->line_rows;
    one->lines = one->counts[0] = one->counts[1] = 1;
    one->tiles = one->tiles_per_line = (one->line_rows + s->rows_max - 1) / s->rows_max;
    one->part_rows = one->line_rows / one->tiles;
    one->longer_parts = one->line_rows % one->tiles;
}

void tiling_run_lines(const struct mlo_plan *plan, const struct tiling *s, const struct tiling_lines *at,
                      size_t begin, size_t end)
{
    size_t first, last;
    union run_of_lines one;
    struct call call = {.s = s,
                        .kernels = tiling_kernels(TILE_F32, plan),
                        .math = fast_math_kernels_for(plan->isa),
                        .x = at->x,
                        .panels = at->panels,
                        .bias = at->bias,
                        .residual = at->residual,
                        .y = at->y,
                        .source = at->x,
                        .interleave = tile_interleave_for(plan->isa),
                        .x_scale = 1.0f};
    size_t tile = begin * s->tiles_per_line, end_tile = end * s->tiles_per_line;
    if (s->border.copy) {
        border_of(s, begin, end, &first, &last);
        call.bordered = (char *)((uintptr_t)at->border - first * s->border.to[2] * s->border.pixel_bytes);
        call.x = call.bordered;
        copy_lines(&call, first, last, 0);
    } else if (tiling_is_plain(&s->product)) {
        as_one_line(s, end - begin, &one);
        size_t rows = begin * s->line_rows;
        call.s = &one.tiling;
        call.x += rows * s->x_stride;
        call.y += rows * s->y_stride;
        call.residual = at->residual ? at->residual + rows * s->residual_stride : NULL;
        tile = 0;
        end_tile = one.tiling.tiles;
    }
    run_tiles(&call, tile, end_tile, 0, s->panels.groups * s->panels.per_group);
}

static enum mlo_status tile_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct tiling *s = step->data;
    void *at[IN_COUNT];
    for (int i = 0; i < IN_COUNT; i++)
        at[i] = step->in[i] >= 0 ? program->at[step->in[i]] : NULL;
    struct call call = {.s = s,
                        .kernels = tiling_kernels(s->product.type, program->plan),
                        .math = fast_math_kernels_for(program->plan->isa),
                        .x = at[IN_X],
                        .panels = at[IN_PANELS],
                        .bias = at[IN_BIAS],
                        .scale = at[IN_SCALE],
                        .init = at[IN_INIT],
                        .residual = at[IN_RESIDUAL],
                        .y = program->at[step->out[0]],
                        .source = at[IN_X],
                        .interleave = tile_interleave_for(program->plan->isa),
                        .bordered = program->scratch,
                        .x_scale = 1.0f,
                        .fixed_line = tile_fixed_line_for(program->plan->isa),
                        .units = (float *)(void *)(program->scratch + s->border.units_offset)};
    if (s->product.type == TILE_F16)
        scale_x(&call, program);
    if (s->border.copy) {
        call.x = call.bordered;
        copy_x(&call, program);
    }
    mlo_pool_run(program->pool, s->split_tiles * s->split_panels, 1, run_parts, &call);
    return MLO_OK;
}

/* --- in a plan's file -------------------------------------------------------------------------------------
 */

static enum mlo_status tile_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                 struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    tile_product_save(w, &((const struct tiling *)step->data)->product);
    return MLO_OK;
}

static enum mlo_status tile_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                    struct mlo_error *err)
{
    struct tile_product p = {0};
    if (!cpu_check(r, step->in_count == IN_COUNT && step->out_count == 1, "a step has other operands"))
        return cpu_reader_status(r, err);
    p.residual = step->in[IN_RESIDUAL];
    tile_product_restore(r, &p);
    if (!cpu_check(r, (p.type == TILE_F32) == (step->in[IN_SCALE] < 0), "a step has other operands"))
        return cpu_reader_status(r, err);
    size_t x_element = tile_is_int8(&p) ? 1 : sizeof(float), batch = (size_t)p.batch;
    size_t in_channels = (size_t)(p.groups * p.in_channels),
           out_channels = (size_t)(p.groups * p.out_channels);
    int64_t reach[3];
    for (int i = 0; i < 3; i++)
        reach[i] = (p.out[i] - 1) * p.stride[i] + (p.kernel[i] - 1) * p.dilation[i] + 1;
    size_t rows = tile_volume(p.out, batch, 1), elements = cpu_product(rows, out_channels, 1);
    size_t border = cpu_product(tile_volume(reach, batch, in_channels), x_element, 1);
    size_t weights = cpu_product(tile_volume(p.kernel, in_channels, (size_t)p.out_channels),
                                 tile_is_narrowed(&p) ? sizeof(uint16_t) : x_element, 1);
    bool small = weights < SIZE_MAX / 128 && border < SIZE_MAX / 128 && elements < SIZE_MAX / 128;
    if (!cpu_check(r, tile_supports(plan, &p) && small, "there are no kernels for a product") ||
        !cpu_slot_holds(r, plan, step->in[IN_X],
                        cpu_product(tile_volume(p.in, batch, in_channels), x_element, 1)) ||
        !cpu_slot_holds(r, plan, step->in[IN_PANELS], weights))
        return cpu_reader_status(r, err);
    struct tiling *s = tiling_new(plan, &p, plan->slots[step->in[IN_X]].kind == CPU_SLOT_ARENA);
    if (!s)
        return mlo_error_nomem(err);
    step->data = s;
    plan->product_cycles += s->cycles;
    size_t columns = s->panels.groups * s->panels.padded * sizeof(float);
    if (cpu_slot_holds(r, plan, step->in[IN_PANELS], tile_panels_bytes(&s->panels)) &&
        cpu_slot_holds(r, plan, step->in[IN_BIAS], columns) &&
        cpu_slot_holds(r, plan, step->out[0], elements * s->y_element) &&
        cpu_check(r, s->border.bytes <= plan->scratch_bytes, "a border does not fit the scratch memory") &&
        step->in[IN_RESIDUAL] >= 0)
        cpu_slot_holds(r, plan, step->in[IN_RESIDUAL], elements * s->residual_element);
    if (!cpu_failed(r) && step->in[IN_SCALE] >= 0)
        cpu_slot_holds(r, plan, step->in[IN_SCALE], columns);
    if (!cpu_failed(r) && step->in[IN_INIT] >= 0)
        cpu_slot_holds(r, plan, step->in[IN_INIT], columns);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_tile_class = {.name = "tile",
                                               .replaces = true,
                                               .run = tile_run,
                                               .free_data = free,
                                               .id = "tile",
                                               .save = tile_save,
                                               .restore = tile_restore};
