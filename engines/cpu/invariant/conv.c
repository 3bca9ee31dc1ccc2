/* Convolution in the invariant numerics. Ordinary ones are a matrix product whose columns (output pixels of
 * the whole batch) are packed on the fly; those with few output channels per group (depthwise) go row by row.
 * Both run the same chain for an output. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

struct conv {
    const struct inv_kernels *kernels;
    int64_t n, groups, icg, ocg;    /* channels per group */
    int64_t ih, iw, oh, ow, kh, kw; /* one-dimensional ones have height 1 */
    int64_t sh, sw, dh, dw, ph, pw;
    size_t depth, rows;   /* icg*kh*kw, and ocg rounded up to panels */
    const float *weights; /* as in the model */
    const float *bias;    /* or NULL */
    float *packed;        /* by group: row panels; NULL on the row-by-row path */
};

/* A run of pixels of one output row. */
struct segment {
    int64_t n, oh, ow;
    int at, count;
};

struct conv_state {
    float *columns, *tiles; /* per worker */
    size_t columns_each, tiles_each;
};

struct conv_call {
    const struct conv *c;
    const struct conv_state *state;
    const float *x;
    float *y;
};

static int segments_of(const struct conv *c, int64_t first, struct segment *out)
{
    int count = 0;
    int64_t total = c->n * c->oh * c->ow;
    for (int at = 0; at < c->kernels->nr && first < total;) {
        int64_t ow = first % c->ow, row = first / c->ow;
        int run = (int)MLO_MIN(c->ow - ow, (int64_t)(c->kernels->nr - at));
        out[count++] = (struct segment){row / c->oh, row % c->oh, ow, at, run};
        at += run;
        first += run;
    }
    return count;
}

/* dst[j] = row[first + j * stride], zero outside [0, width). */
static void gather(const float *row, int64_t width, int64_t first, int64_t stride, int count, float *dst)
{
    if (stride == 1) {
        int64_t lead = MLO_MIN(MLO_MAX(-first, 0), count),
                stop = MLO_MIN(MLO_MAX(width - first, lead), count);
        for (int64_t j = 0; j < lead; j++)
            dst[j] = 0.0f;
        for (int64_t j = lead; j < stop; j++)
            dst[j] = row[first + j];
        for (int64_t j = stop; j < count; j++)
            dst[j] = 0.0f;
        return;
    }
    for (int j = 0; j < count; j++) {
        int64_t at = first + j * stride;
        dst[j] = at >= 0 && at < width ? row[at] : 0.0f;
    }
}

/* Columns [k0, k1) of a panel's depth: out[k - k0][nr]. */
static void pack_panel(const struct conv *c, const float *x, int64_t group, const struct segment *segments,
                       int segment_count, size_t k0, size_t k1, float *out)
{
    int nr = c->kernels->nr;
    int used = segment_count ? segments[segment_count - 1].at + segments[segment_count - 1].count : 0;
    int64_t taps = c->kh * c->kw, plane = c->ih * c->iw, channels = c->groups * c->icg;
    for (size_t k = k0; k < k1; k++, out += nr) {
        int64_t ic = (int64_t)k / taps, kh = (int64_t)k % taps / c->kw, kw = (int64_t)k % c->kw;
        for (int s = 0; s < segment_count; s++) {
            const struct segment *g = &segments[s];
            int64_t h = g->oh * c->sh - c->ph + kh * c->dh;
            float *dst = out + g->at;
            if (h < 0 || h >= c->ih) {
                memset(dst, 0, (size_t)g->count * sizeof *dst);
                continue;
            }
            const float *row = x + (g->n * channels + group * c->icg + ic) * plane + h * c->iw;
            gather(row, c->iw, g->ow * c->sw - c->pw + kw * c->dw, c->sw, g->count, dst);
        }
        for (int j = used; j < nr; j++)
            out[j] = 0.0f;
    }
}

static void start_tiles(const struct conv *c, int64_t group, float *tiles)
{
    int nr = c->kernels->nr;
    for (size_t r = 0; r < c->rows; r++) {
        float start = c->bias && (int64_t)r < c->ocg ? c->bias[group * c->ocg + (int64_t)r] : 0.0f;
        for (int j = 0; j < nr; j++)
            tiles[r * (size_t)nr + (size_t)j] = start;
    }
}

static void store_tiles(const struct conv *c, int64_t group, const struct segment *segments,
                        int segment_count, const float *tiles, float *y)
{
    int64_t plane = c->oh * c->ow, channels = c->groups * c->ocg;
    for (int64_t r = 0; r < c->ocg; r++)
        for (int s = 0; s < segment_count; s++) {
            const struct segment *g = &segments[s];
            memcpy(y + (g->n * channels + group * c->ocg + r) * plane + g->oh * c->ow + g->ow,
                   tiles + r * c->kernels->nr + g->at, (size_t)g->count * sizeof *y);
        }
}

/* Index: a panel of columns of one group. */
static void run_panels(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct conv_call *call = arg;
    const struct conv *c = call->c;
    const struct inv_kernels *kn = c->kernels;
    float *columns = call->state->columns + worker * call->state->columns_each;
    float *tiles = call->state->tiles + worker * call->state->tiles_each;
    size_t panels = inv_packed_columns(kn, (size_t)(c->n * c->oh * c->ow)) / (size_t)kn->nr;
    size_t mr = (size_t)kn->mr, nr = (size_t)kn->nr;
    for (size_t i = begin; i < end; i++) {
        struct segment segments[INV_MAX_NR];
        int64_t group = (int64_t)(i / panels);
        int count = segments_of(c, (int64_t)(i % panels) * kn->nr, segments);
        start_tiles(c, group, tiles);
        for (size_t k0 = 0; k0 < c->depth; k0 += INV_KC) {
            size_t k1 = MLO_MIN(k0 + INV_KC, c->depth);
            pack_panel(c, call->x, group, segments, count, k0, k1, columns);
            for (size_t r = 0; r < c->rows; r += mr)
                kn->tile(k1 - k0, c->packed + ((size_t)group * c->rows + r) * c->depth + k0 * mr, columns,
                         tiles + r * nr);
        }
        store_tiles(c, group, segments, count, tiles, call->y);
    }
}

/* Index: one output row (sample, channel, row). */
static void run_rows(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct conv_call *call = arg;
    const struct conv *c = call->c;
    float *taps = call->state->columns + worker * call->state->columns_each;
    int64_t channels = c->groups * c->ocg;
    for (size_t i = begin; i < end; i++) {
        int64_t oh = (int64_t)i % c->oh, oc = (int64_t)i / c->oh % channels,
                n = (int64_t)i / c->oh / channels;
        float *acc = call->y + (int64_t)i * c->ow;
        for (int64_t j = 0; j < c->ow; j++)
            acc[j] = c->bias ? c->bias[oc] : 0.0f;
        for (size_t k = 0; k < c->depth; k++) {
            int64_t ic = (int64_t)k / (c->kh * c->kw), kh = (int64_t)k / c->kw % c->kh,
                    kw = (int64_t)k % c->kw;
            int64_t h = oh * c->sh - c->ph + kh * c->dh;
            if (h < 0 || h >= c->ih) {
                memset(taps, 0, (size_t)c->ow * sizeof *taps);
            } else {
                int64_t channel = oc / c->ocg * c->icg + ic;
                const float *row = call->x + ((n * c->groups * c->icg + channel) * c->ih + h) * c->iw;
                gather(row, c->iw, kw * c->dw - c->pw, c->sw, (int)c->ow, taps);
            }
            c->kernels->axpy((size_t)c->ow, c->weights[(size_t)oc * c->depth + k], taps, acc);
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

static enum mlo_status conv_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                 struct mlo_error *err)
{
    const struct conv *c = step->data;
    struct conv_state *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    size_t nr = (size_t)c->kernels->nr;
    s->columns_each = c->packed ? INV_KC * nr : ((size_t)c->ow + 15) & ~(size_t)15;
    s->tiles_each = c->packed ? c->rows * nr : 16;
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
    struct conv_call call = {c, state, program->at[step->in[0]], program->at[step->out[0]]};
    size_t panels = inv_packed_columns(c->kernels, (size_t)(c->n * c->oh * c->ow)) / (size_t)c->kernels->nr;
    if (c->packed)
        mlo_pool_run(program->pool, panels * (size_t)c->groups, 1, run_panels, &call);
    else
        mlo_pool_run(program->pool, (size_t)(c->n * c->groups * c->ocg * c->oh), 8, run_rows, &call);
    return MLO_OK;
}

static void conv_free(void *data)
{
    struct conv *c = data;
    if (c)
        free(c->packed);
    free(c);
}

static const struct cpu_step_class conv_class = {
    .name = "fma-chain", .load = conv_load, .run = conv_run, .unload = conv_unload, .free_data = conv_free};

/* Geometry with heights of 1 in front for one-dimensional ones. */
static void set_geometry(struct conv *c, const struct mlo_window *w)
{
    int last = w->spatial - 1;
    c->ih = c->oh = c->kh = c->sh = c->dh = 1;
    c->ph = 0;
    if (w->spatial == 2) {
        c->ih = w->in[0], c->oh = w->out[0], c->kh = w->kernel[0];
        c->sh = w->stride[0], c->dh = w->dilation[0], c->ph = w->pad_begin[0];
    }
    c->iw = w->in[last], c->ow = w->out[last], c->kw = w->kernel[last];
    c->sw = w->stride[last], c->dw = w->dilation[last], c->pw = w->pad_begin[last];
}

enum mlo_status inv_lower_conv(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                               struct mlo_error *err)
{
    enum mlo_status status;
    int64_t x[MLO_MAX_RANK], y[MLO_MAX_RANK];
    const struct mlo_tensor *w = mlo_node_const(node, 1), *b = mlo_node_const(node, 2);
    struct mlo_value *in = mlo_node_input(node, 0), *out = node->outputs[0];
    struct conv *c = NULL;
    if (!mlo_node_is(node, "Conv") || !w || w->dtype != MLO_FLOAT32 || (mlo_node_input(node, 2) && !b) ||
        in->type.dtype != MLO_FLOAT32 || in->type.rank < 3 || in->type.rank > 4 ||
        !cpu_value_dims(in, x, NULL) || !cpu_value_dims(out, y, NULL))
        return MLO_OK;
    struct mlo_window window;
    MLO_TRY(mlo_window_init(&window, node, in->type.rank - 2, x + 2, w->dims + 2, err));
    c = calloc(1, sizeof *c);
    if (!c) {
        status = mlo_error_nomem(err);
        goto out;
    }
    set_geometry(c, &window);
    c->kernels = inv_kernels_for(plan->isa);
    c->n = x[0];
    c->groups = mlo_node_attr_i(node, "group", 1);
    c->icg = w->dims[1];
    c->ocg = w->dims[0] / c->groups;
    c->depth = (size_t)(c->icg * c->kh * c->kw);
    c->rows = inv_packed_rows(c->kernels, (size_t)c->ocg);
    c->weights = w->data;
    c->bias = b ? b->data : NULL;
    if (c->groups == 1 || c->ocg >= 4) {
        c->packed = cpu_aligned((size_t)c->groups * c->rows * c->depth * sizeof(float));
        if (!c->packed) {
            status = mlo_error_nomem(err);
            goto out;
        }
        for (int64_t g = 0; g < c->groups; g++)
            inv_pack_rows(c->kernels, c->weights + (size_t)(g * c->ocg) * c->depth, (size_t)c->ocg, c->depth,
                          c->depth, 1, c->packed + (size_t)g * c->rows * c->depth);
    }
    size_t bytes;
    cpu_value_bytes(out, &bytes);
    int slot = cpu_slot_new(plan, CPU_SLOT_ARENA, bytes);
    struct cpu_step *step = slot < 0 ? NULL : cpu_step_new(plan, &conv_class, node, 1, 1);
    if (!step) {
        status = mlo_error_nomem(err);
        goto out;
    }
    step->in[0] = cpu_value_plain(plan, in);
    step->out[0] = slot;
    step->data = c;
    c = NULL;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    *done = true;
out:
    conv_free(c);
    return status;
}
