/* Convolution in the invariant numerics. Ordinary ones are a matrix product whose columns (output pixels of
 * the whole batch) are packed on the fly; those with few output channels per group (depthwise) go plane by
 * plane. Both run the same chain for an output. Weights are read where the model has them, x where
 * conv_impl.h says. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/invariant/conv_impl.h"

enum {
    PANELS = 4, /* that meet a block of weights one after the other */
    LONG = 28,  /* a line that is worth a call of its own */
};

struct conv_state {
    float *columns, *tiles; /* per worker */
    size_t columns_each, tiles_each;
    size_t room; /* by_planes: of each of the three that tiles are */
};

struct conv_call {
    const struct conv *c;
    const struct conv_state *state;
    const float *x, *source, *end; /* the input; what columns are read from */
    float *copy, *y;
    const float *adds, *scales; /* or NULL */
};

static size_t panels_of(const struct conv *c)
{
    return inv_packed_columns(c->kernels, (size_t)(c->n * c->pixels)) / (size_t)c->kernels->nr;
}

/* A channel's plane into its parts, with zeros around it; clean: they are there. */
static void copy_plane(const struct conv *c, const float *x, bool clean, float *to)
{
    for (int i = 0; i < c->part_count; i++) {
        const struct part *p = &c->parts[i];
        float *part = to + p->at;
        if (!clean)
            memset(part, 0, p->zeros_before * sizeof *part);
        if (p->bordered)
            c->kernels->bordered(p->lines, p->column, p->count, (size_t)c->pitch, x + p->from,
                                 (size_t)(c->sh * c->iw), part + p->first);
        else
            c->kernels->lines(p->lines, p->count, (size_t)c->sw, x + p->from, (size_t)(c->sh * c->iw),
                              part + p->first + p->column, (size_t)c->pitch);
        if (!clean)
            memset(part + p->behind, 0, (c->part - p->behind) * sizeof *part);
    }
}

/* Index: a plane of the input. */
static void copy_planes(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct conv_call *call = arg;
    const struct conv *c = call->c;
    for (size_t i = begin; i < end; i++)
        copy_plane(c, call->x + (int64_t)i * c->ih * c->iw, false, call->copy + i * c->plane);
}

/* The first pixel of a panel. Panels are `nr` wide; where that leaves the last one a single vector, whose
 * products would wait for each other, the last two share what there is (two vectors each, of three and one).
 */
static int64_t panel_at(const struct conv *c, size_t i)
{
    size_t nr = (size_t)c->kernels->nr, lanes = (size_t)c->kernels->lanes;
    size_t total = (size_t)(c->n * c->pixels), rest = (total + lanes - 1) / lanes % (nr / lanes);
    bool evens = nr > 2 * lanes && rest == 1 && i > 0 && i + 1 == panels_of(c);
    return (int64_t)MLO_MIN(i * nr - (evens ? lanes : 0), total);
}

/* The runs of pixels that a panel holds, as what they read for the first k of the group. */
static int runs_of(const struct conv *c, const float *source, int64_t group, int64_t first, int64_t columns,
                   struct inv_run *out)
{
    int count = 0;
    int64_t width = c->joined ? c->pixels : c->ow;
    for (int64_t at = 0; at < columns;) {
        int64_t n = first / c->pixels, pixel = first % c->pixels;
        int64_t run = MLO_MIN(width - pixel % width, columns - at);
        const float *from = source +
                            ((size_t)n * inv_conv_channels(c) + (size_t)(group * c->icg)) * c->plane +
                            (size_t)(c->joined ? pixel : pixel / c->ow * c->pitch + pixel % c->ow);
        out[count++] = (struct inv_run){from, (size_t)at, (size_t)run};
        at += run;
        first += run;
    }
    return count;
}

/* The outputs among the pixels from `first` on, and where they are in y's plane of the first channel. */
static int pieces_of(const struct conv *c, int64_t first, int64_t width, struct inv_piece *out)
{
    int count = 0;
    int64_t plane = c->oh * c->ow, total = MLO_MIN(c->n * c->pixels, first + width);
    bool gaps = c->joined && c->pitch > c->ow;
    int64_t line = gaps ? c->pitch : c->pixels, row = gaps ? c->ow : c->pixels;
    for (int64_t at = 0; first < total;) {
        int64_t n = first / c->pixels, pixel = first % c->pixels, column = pixel % line;
        int64_t run = MLO_MIN(MLO_MIN(line - column, c->pixels - pixel), total - first);
        int64_t outputs = MLO_MIN(row - column, run);
        if (outputs > 0)
            out[count++] =
                (struct inv_piece){(size_t)at, (size_t)outputs,
                                   (size_t)(n * c->groups * c->ocg * plane + pixel / line * row + column)};
        at += run;
        first += run;
    }
    return count;
}

struct panel {
    struct inv_run runs[INV_MAX_NR];
    struct inv_piece pieces[INV_MAX_NR];
    int run_count, piece_count;
    int64_t first; /* pixel */
    size_t columns;
};

/* Rows of a tile, from the group's channel `first` on. */
static void finish(const struct conv_call *call, int64_t group, size_t first, size_t rows, const float *tile,
                   const struct panel *panel)
{
    const struct conv *c = call->c;
    float buffers[2 * INV_MAX_TILE + INV_BEHIND] __attribute__((aligned(64)));
    size_t plane = (size_t)(c->oh * c->ow), channel = (size_t)(group * c->ocg) + first, to = channel * plane;
    inv_post_tile(&c->post, channel, rows, (size_t)c->kernels->nr, panel->columns, tile, panel->pieces,
                  panel->piece_count, call->adds ? call->adds + to : NULL, call->y + to, plane, buffers);
}

/* Rows of the group's weights from channel `first` on, and what their chains start from. */
static size_t rows_of(const struct conv *c, int64_t group, size_t first, size_t k, const float **rows,
                      float *start)
{
    size_t mr = (size_t)c->kernels->mr, left = MLO_MIN(mr, (size_t)c->ocg - first);
    size_t channel = (size_t)(group * c->ocg) + first;
    for (size_t j = 0; j < mr; j++)
        start[j] = c->bias && j < left ? c->bias[channel + j] : 0.0f;
    inv_rows(c->kernels, c->weights + channel * c->depth + k, c->depth, left, rows);
    return left;
}

/* Panels whose columns are read where they are. */
static void run_direct(const struct conv_call *call, int64_t group, const struct panel *panel, size_t some)
{
    const struct conv *c = call->c;
    const float *rows[INV_MAX_MR];
    float start[INV_MAX_MR], tile[INV_MAX_TILE + INV_BEHIND] __attribute__((aligned(64)));
    for (size_t r = 0, left; r < (size_t)c->ocg; r += left) {
        left = rows_of(c, group, r, 0, rows, start);
        for (size_t p = 0; p < some; p++) {
            size_t which = inv_tile(c->kernels, panel[p].columns);
            c->kernels->tile_at[which](c->depth, rows, panel[p].runs[0].from, c->offsets, start, tile);
            finish(call, group, r, left, tile, &panel[p]);
        }
    }
}

/* What was packed of a panel, times the scales of each sample. */
static void scale_columns(const struct conv_call *call, const struct panel *panel, size_t k, size_t depth,
                          float *columns)
{
    const struct conv *c = call->c;
    for (int r = 0; r < panel->run_count; r++) {
        const struct inv_run *run = &panel->runs[r];
        size_t sample = (size_t)((panel->first + (int64_t)run->at) / c->pixels);
        c->kernels->scale(depth, call->scales + sample * inv_conv_channels(c) + k, run->at,
                          run->at + run->count, r + 1 == panel->run_count, columns);
    }
}

/* Panels whose columns are packed, block by block of k. */
static void run_packed(const struct conv_call *call, int64_t group, const struct panel *panel, size_t some,
                       unsigned worker)
{
    const struct conv *c = call->c;
    const struct inv_kernels *kn = c->kernels;
    float *columns = call->state->columns + worker * call->state->columns_each;
    float *tiles = call->state->tiles + worker * call->state->tiles_each;
    size_t nr = (size_t)kn->nr, column_size = (kn->block + 1) * nr, tile_size = c->rows * nr;
    for (size_t k0 = 0; k0 < c->depth; k0 += kn->block) {
        size_t depth = MLO_MIN(kn->block, c->depth - k0);
        for (size_t p = 0; p < some; p++) {
            kn->columns(depth, c->offsets + k0, panel[p].runs, panel[p].run_count, call->end,
                        columns + p * column_size);
            if (c->scaled)
                scale_columns(call, &panel[p], k0, depth, columns + p * column_size);
        }
        for (size_t r = 0, left; r < (size_t)c->ocg; r += left) {
            const float *rows[INV_MAX_MR];
            float start[INV_MAX_MR];
            left = rows_of(c, group, r, k0, rows, start);
            for (size_t p = 0; p < some; p++) {
                float *tile = tiles + (c->depth > kn->block ? p * tile_size + r * nr : 0);
                size_t which = inv_tile(kn, panel[p].columns);
                kn->tile[which](depth, rows, columns + p * column_size, k0 ? NULL : start, tile);
                if (k0 + depth == c->depth)
                    finish(call, group, r, left, tile, &panel[p]);
            }
        }
    }
}

/* Index: a panel of columns of one group. */
static void run_panels(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct conv_call *call = arg;
    const struct conv *c = call->c;
    size_t panels = panels_of(c);
    struct panel panel[PANELS];
    for (size_t i = begin, some; i < end; i += some) {
        int64_t group = (int64_t)(i / panels);
        size_t first = i % panels;
        bool direct = c->direct;
        some = MLO_MIN(MLO_MIN(end - i, panels - first), (size_t)PANELS);
        for (size_t p = 0; p < some; p++) {
            int64_t at = panel_at(c, first + p), columns = panel_at(c, first + p + 1) - at;
            panel[p].run_count = runs_of(c, call->source, group, at, columns, panel[p].runs);
            panel[p].piece_count = pieces_of(c, at, columns, panel[p].pieces);
            panel[p].first = at;
            panel[p].columns = (size_t)columns;
            direct &= panel[p].run_count == 1;
        }
        if (direct)
            run_direct(call, group, panel, some);
        else
            run_packed(call, group, panel, some, worker);
    }
}

/* Index: a group of one sample. */
static void run_planes(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct conv_call *call = arg;
    const struct conv *c = call->c;
    float *copy = call->state->columns + worker * call->state->columns_each;
    float *out = call->state->tiles + worker * call->state->tiles_each;
    size_t plane = (size_t)(c->oh * c->ow), room = call->state->room;
    memset(copy, 0, (size_t)c->icg * c->plane * sizeof *copy);
    for (size_t i = begin; i < end; i++) {
        for (int64_t ic = 0; ic < c->icg; ic++)
            copy_plane(c, call->x + ((int64_t)i * c->icg + ic) * c->ih * c->iw, true,
                       copy + (size_t)ic * c->plane);
        for (int64_t o = 0; o < c->ocg; o++) {
            size_t oc = i % (size_t)c->groups * (size_t)c->ocg + (size_t)o;
            float *y = call->y + (i * (size_t)c->ocg + (size_t)o) * plane;
            const float *w = c->weights + oc * c->depth;
            float start = c->bias ? c->bias[oc] : 0.0f;
            size_t count = (size_t)(c->joined ? c->pixels : c->ow), lines = c->joined ? 1 : (size_t)c->oh;
            bool works = inv_post_works(&c->post), by_line = works && c->ow >= LONG;
            float *dense = works ? out + room : y;
            for (size_t h = 0; h < lines; h++) {
                c->kernels->taps(c->depth, c->offsets, w, start, count, copy + h * (size_t)c->pitch, out);
                size_t outputs = c->joined ? (size_t)c->oh : 1, width = (size_t)c->ow;
                for (size_t r = 0; by_line && r < outputs; r++)
                    inv_post_line(&c->post, oc, width, out + r * (size_t)c->pitch, y + (h + r) * width,
                                  dense);
                if (!by_line)
                    c->kernels->lines(outputs, width, 1, out, (size_t)c->pitch, dense + h * width, width);
            }
            if (works && !by_line)
                inv_post_line(&c->post, oc, plane, dense, y, out + 2 * room);
        }
    }
}

static void conv_unload(void *state)
{
    struct conv_state *s = state;
    if (!s)
        return;
    free(s->columns);
    free(s->tiles);
    free(s);
}

static size_t whole_lines(size_t floats)
{
    enum { LINE_FLOATS = 16 };
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

static enum mlo_status conv_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                 struct mlo_error *err)
{
    const struct conv *c = step->data;
    struct conv_state *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    size_t nr = (size_t)c->kernels->nr, some = MLO_MIN(panels_of(c), (size_t)PANELS);
    /* Behind a panel's columns is the last run's rest; behind planes and outputs that of the last vectors. */
    s->room = (size_t)MLO_MAX(c->pixels, c->oh * c->ow) + 8 * nr;
    s->columns_each = c->by_planes ? (size_t)c->icg * c->plane + 8 * nr : some * (c->kernels->block + 1) * nr;
    s->tiles_each = c->by_planes                   ? 3 * s->room
                    : c->depth > c->kernels->block ? some * c->rows * nr
                                                   : (size_t)c->kernels->mr * nr;
    s->columns_each = whole_lines(s->columns_each); /* of one worker each */
    s->tiles_each = whole_lines(s->tiles_each + INV_BEHIND);
    s->columns = cpu_aligned(program->plan->threads * s->columns_each * sizeof(float));
    s->tiles = cpu_aligned(program->plan->threads * s->tiles_each * sizeof(float));
    if (!s->columns || !s->tiles) {
        conv_unload(s);
        return mlo_error_nomem(err);
    }
    *state = s;
    return MLO_OK;
}

static enum mlo_status conv_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(err);
    const struct conv *c = step->data;
    const float *x = program->at[step->in[0]];
    size_t planes = (size_t)c->n * inv_conv_channels(c);
    struct conv_call call = {.c = c, .state = state, .x = x, .source = x, .y = program->at[step->out[0]]};
    if (c->post.adds)
        call.adds = program->at[step->in[1]];
    if (c->scaled)
        call.scales = program->at[step->in[step->in_count - 1]];
    if (c->by_planes) {
        mlo_pool_run(program->pool, (size_t)(c->n * c->groups), 1, run_planes, &call);
        return MLO_OK;
    }
    if (c->copies) {
        call.source = call.copy = (float *)program->scratch;
        mlo_pool_run(program->pool, planes, 1, copy_planes, &call);
    }
    call.end = call.source + planes * c->plane;
    mlo_pool_run(program->pool, panels_of(c) * (size_t)c->groups, 1, run_panels, &call);
    return MLO_OK;
}

static void conv_free(void *data)
{
    struct conv *c = data;
    if (c) {
        free(c->offsets);
        free(c->parts);
        free(c->post.channels);
    }
    free(c);
}

static const struct cpu_step_class conv_class = {
    .name = "fma-chain", .load = conv_load, .run = conv_run, .unload = conv_unload, .free_data = conv_free};

enum mlo_status inv_lower_conv(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                               struct mlo_error *err)
{
    enum mlo_status status;
    int64_t x[MLO_MAX_RANK], y[MLO_MAX_RANK];
    size_t outputs;
    const struct mlo_tensor *w = mlo_node_const(node, 1), *b = mlo_node_const(node, 2);
    struct mlo_value *in = mlo_node_input(node, 0), *out = node->outputs[0];
    struct conv *c = NULL;
    if (!mlo_node_is(node, "Conv") || !w || w->dtype != MLO_FLOAT32 || (mlo_node_input(node, 2) && !b) ||
        in->type.dtype != MLO_FLOAT32 || in->type.rank < 3 || in->type.rank > 4 ||
        !cpu_value_dims(in, x, NULL) || !cpu_value_dims(out, y, &outputs) || outputs == 0)
        return MLO_OK;
    struct mlo_window window;
    MLO_TRY(mlo_window_init(&window, node, in->type.rank - 2, x + 2, w->dims + 2, err));
    c = calloc(1, sizeof *c);
    if (!c) {
        status = mlo_error_nomem(err);
        goto out;
    }
    c->kernels = inv_kernels_for(plan->isa);
    c->n = x[0];
    c->groups = mlo_node_attr_i(node, "group", 1);
    c->icg = w->dims[1];
    c->ocg = w->dims[0] / c->groups;
    c->rows = inv_packed_rows(c->kernels, (size_t)c->ocg);
    c->weights = w->data;
    c->bias = b ? b->data : NULL;
    c->by_planes = c->groups > 1 && c->ocg < 4;
    if (!inv_conv_shape(c, &window))
        goto out;
    if (!inv_conv_places(c)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (c->copies && !c->by_planes)
        plan->scratch_bytes = MLO_MAX(plan->scratch_bytes, inv_conv_copy_bytes(c));
    const struct mlo_node *product = inv_scale_of(plan, in);
    c->scaled = product != NULL;
    MLO_TRY(inv_post_find(plan, node, y, !c->by_planes, &c->post, err));
    size_t bytes;
    struct mlo_value *result = c->post.result;
    cpu_value_bytes(out, &bytes);
    int slot = cpu_slot_new(plan, CPU_SLOT_ARENA, bytes), operands = 1 + (c->post.adds != NULL) + c->scaled;
    struct cpu_step *step = slot < 0 ? NULL : cpu_step_new(plan, &conv_class, node, operands, 1);
    bool ok = step != NULL && (!product || cpu_step_fuse(plan, step, product));
    for (int i = 0; ok && i < c->post.node_count; i++) {
        ok = cpu_step_fuse(plan, step, c->post.nodes[i]);
        plan->done[c->post.nodes[i]->index] = true;
    }
    if (!ok) {
        status = mlo_error_nomem(err);
        goto out;
    }
    step->in[0] = cpu_value_plain(plan, product ? product->inputs[0] : in);
    if (product)
        step->in[operands - 1] = cpu_value_plain(plan, product->inputs[1]);
    if (c->post.adds)
        step->in[1] = cpu_value_plain(plan, c->post.adds);
    step->out[0] = slot;
    step->data = c;
    c = NULL;
    plan->values[result->index].slot[CPU_PLAIN] = slot;
    *done = true;
out:
    conv_free(c);
    return status;
}
