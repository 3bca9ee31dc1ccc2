/* Own products: how a step is cut into tiles of rows and panels of columns, and emitted. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/tile_f16_impl.h"
#include "engines/cpu/fast/tile_fixed_impl.h"
#include "engines/cpu/fast/tiling_impl.h"

/* What one pass over the panels works on should leave room in a second-level cache of 1 MB. */
enum { SHORT_DEPTH = 64, BLOCK_BYTES = 384 * 1024, LINES_BYTES = 192 * 1024, BLOCK_DEPTH = 1024 };

const struct tile_kernels *tiling_kernels(enum tile_type type, const struct mlo_plan *plan)
{
    static const struct tile_kernels *(*const tables[TILE_TYPES])(enum mlo_isa isa) = {
        [TILE_F32] = tile_kernels_f32,
        [TILE_U8S8] = tile_kernels_u8s8,
        [TILE_S8S8] = tile_kernels_s8s8,
        [TILE_FIXED] = tile_kernels_fixed,
    };
    return type == TILE_F16 ? tile_kernels_f16(plan->half) : tables[type](plan->isa);
}

enum mlo_status tile_slots(struct mlo_plan *plan, const struct mlo_value *x, enum cpu_layout layout,
                           const struct fast_chain *chain, struct tile_product *p, struct mlo_error *err)
{
    enum mlo_status status;
    if (p->type == TILE_F32)
        MLO_TRY(fast_value(plan, x, p->planar ? CPU_PLAIN : layout, &p->x, err));
    else
        MLO_TRY(fast_qvalue(plan, x, layout, &p->x, err));
    if (chain->residual && p->epilogue.residual_dtype == MLO_FLOAT32)
        MLO_TRY(fast_value(plan, chain->residual, layout, &p->residual, err));
    else if (chain->residual)
        MLO_TRY(fast_qvalue(plan, chain->residual, layout, &p->residual, err));
    p->y = fast_new_slot(plan, chain->end, false);
    if (p->y < 0)
        status = mlo_error_nomem(err);
out:
    return status;
}

void tile_conv_geometry(const struct mlo_window *w, const struct fast_shape *x,
                        const struct fast_shape *weights, int64_t groups, struct tile_product *out)
{
    out->batch = x->dims[0];
    out->groups = groups;
    out->in_channels = weights->dims[1];
    out->out_channels = weights->dims[0] / groups;
    for (int i = 0; i < 3; i++) {
        int from = i - (3 - w->spatial);
        bool there = from >= 0;
        out->in[i] = there ? w->in[from] : 1;
        out->out[i] = there ? w->out[from] : 1;
        out->kernel[i] = there ? w->kernel[from] : 1;
        out->stride[i] = there ? w->stride[from] : 1;
        out->dilation[i] = there ? w->dilation[from] : 1;
        out->pad[i] = there ? w->pad_begin[from] : 0;
    }
    size_t positions = (size_t)(out->kernel[0] * out->kernel[1] * out->kernel[2]);
    out->w_tap = 1;
    out->w_in = positions;
    out->w_out = positions * (size_t)out->in_channels;
}

bool tile_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    const struct tile_kernels *kernels = tiling_kernels(p->type, plan);
    if (!kernels || p->batch < 1 || p->groups < 1 || p->in_channels < 1 || p->out_channels < 1)
        return false;
    for (int i = 0; i < 3; i++)
        if (p->in[i] < 1 || p->out[i] < 1 || p->kernel[i] < 1)
            return false;
    if (kernels->whole_groups && p->groups > 1 && (size_t)p->in_channels % kernels->group_depth)
        return false;
    /* a tap's sums have a unit, so that short ones are no faster than float32 */
    struct tile_panels panels;
    tile_panels_init(&panels, kernels, p);
    if (p->type == TILE_FIXED && panels.tap_elements / panels.channels * (size_t)p->in_channels < SHORT_DEPTH)
        return false;
    /* groups of few channels would multiply padding */
    return p->groups == 1 || (size_t)p->out_channels * 2 > kernels->widths[0];
}

/* oneDNN's name of an activation -> ours. */
static bool find_math(const struct fast_post *post, struct tile_post *out)
{
    static const struct {
        dnnl_alg_kind_t alg;
        enum fast_math fn;
    } table[] = {
        {dnnl_eltwise_logistic, FAST_MATH_SIGMOID},
        {dnnl_eltwise_tanh, FAST_MATH_TANH},
        {dnnl_eltwise_elu, FAST_MATH_ELU},
        {dnnl_eltwise_abs, FAST_MATH_ABS},
        {dnnl_eltwise_exp, FAST_MATH_EXP},
        {dnnl_eltwise_sqrt, FAST_MATH_SQRT},
        {dnnl_eltwise_swish, FAST_MATH_SWISH},
        {dnnl_eltwise_gelu_erf, FAST_MATH_GELU},
        {dnnl_eltwise_relu, FAST_MATH_LEAKY_RELU},
        {dnnl_eltwise_clip, FAST_MATH_CLIP},
        {dnnl_eltwise_hardswish, FAST_MATH_HARD_SWISH},
    };
    for (size_t i = 0; i < MLO_COUNT(table); i++)
        if (table[i].alg == post->alg) {
            *out = (struct tile_post){table[i].fn, post->alpha, post->beta};
            return true;
        }
    return false;
}

bool tile_chain(const struct fast_chain *chain, struct tile_product *out)
{
    struct tile_epilogue *e = &out->epilogue;
    e->low = -INFINITY;
    e->high = INFINITY;
    out->post_count = 0;
    for (int i = 0; i < chain->post_count; i++) {
        const struct fast_post *post = &chain->posts[i];
        bool clamps = !out->post_count; /* nothing but clamps yet */
        if (post->sum) {
            if (i > 0)
                return false;
            e->residual_dtype = MLO_FLOAT32;
        } else if (clamps && post->alg == dnnl_eltwise_relu && post->alpha == 0.0f) {
            e->low = fmaxf(e->low, 0.0f);
            e->high = fmaxf(e->high, 0.0f);
        } else if (clamps && post->alg == dnnl_eltwise_clip) {
            /* the bounds of a Clip without one stand for none */
            float low = post->alpha <= -FLT_MAX ? -INFINITY : post->alpha,
                  high = post->beta >= FLT_MAX ? INFINITY : post->beta;
            e->low = fminf(fmaxf(e->low, low), high);
            e->high = fminf(fmaxf(e->high, low), high);
        } else if (out->post_count == TILE_POSTS_MAX || !find_math(post, &out->posts[out->post_count++])) {
            return false;
        }
    }
    return true;
}

bool tile_product_swish(const struct tile_product *p, struct tile_swish *out)
{
    const struct tile_epilogue *e = &p->epilogue;
    *out = (struct tile_swish){p->posts[0].alpha, p->y_scale, e->y_zero_point};
    return tile_is_int8(p) && p->post_count == 1 && p->posts[0].fn == FAST_MATH_SWISH &&
           e->y_dtype != MLO_FLOAT32 && e->residual_dtype == MLO_DTYPE_NONE && !e->inner &&
           e->low == -INFINITY && e->high == INFINITY;
}

bool tiling_is_plain(const struct tile_product *p)
{
    bool plain = true;
    for (int i = 0; i < 3; i++)
        plain &= p->kernel[i] == 1 && p->stride[i] == 1 && p->pad[i] == 0 && p->in[i] == p->out[i];
    return plain;
}

/* Whether x with its border, were it copied, would be of a possible size: weights may lie anyhow far apart.
 */
static bool border_is_possible(const struct tiling *s, size_t element)
{
    const struct tile_product *p = &s->product;
    const size_t most = (size_t)1 << 46;
    size_t bytes = (size_t)p->groups * s->panels.channels * element;
    bool fits = !__builtin_mul_overflow(bytes, (size_t)p->batch, &bytes);
    for (int i = 0; i < 3; i++) {
        int64_t reach = (p->out[i] - 1) * p->stride[i] + (p->kernel[i] - 1) * p->dilation[i] + 1;
        fits = fits && !__builtin_mul_overflow(bytes, (size_t)reach, &bytes);
    }
    return fits && bytes <= most;
}

/* Where the units of x are, behind its copy. */
static void plan_units(struct tiling *s)
{
    enum { ALIGNMENT = 64 };
    struct border *b = &s->border;
    size_t lines = b->images * b->to[0] * b->to[1];
    b->units_offset = (b->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    b->bytes = b->units_offset + (b->by_pixel ? lines * b->to[2] : lines) * sizeof(float);
}

/* Where the border is, and how rows are found in x. */
static void plan_source(struct tiling *s, bool roomy, size_t element)
{
    const struct tile_product *p = &s->product;
    struct border *b = &s->border;
    size_t pixel = (size_t)p->groups * s->panels.channels * element, pitch[3];
    bool narrowed = tile_is_narrowed(p), fixed = p->type == TILE_FIXED;
    *b = (struct border){.copy = p->planar || narrowed,
                         .images = (size_t)p->batch,
                         .pixel_bytes = pixel,
                         .source_bytes =
                             narrowed ? (size_t)(p->groups * p->in_channels) * sizeof(float) : pixel,
                         .fill = p->fill,
                         .by_pixel = fixed && tiling_is_plain(p)};
    for (int i = 0; i < 3; i++) {
        int64_t reach = (p->out[i] - 1) * p->stride[i] + (p->kernel[i] - 1) * p->dilation[i] + 1;
        b->from[i] = (size_t)p->in[i];
        b->to[i] = (size_t)reach;
        b->pad[i] = (size_t)p->pad[i];
        b->copy |= p->pad[i] > 0 || reach > p->in[i];
    }
    /* groups of several elements read beyond a row, which only memory of the plan allows for */
    if (s->panels.tap_elements % s->panels.group_depth && !roomy)
        b->copy = true;
    for (int i = 0; i < 3; i++)
        pitch[i] = b->copy ? b->to[i] : b->from[i];
    size_t line = pitch[2] * pixel, plane = pitch[1] * line, image = pitch[0] * plane;
    b->bytes = b->copy ? image * b->images : 0;
    s->x_stride = (size_t)p->stride[2] * pixel;
    s->x_group = s->panels.channels * element;
    s->counts[0] = (size_t)p->out[0];
    s->counts[1] = (size_t)p->out[1];
    s->steps[0] = image;
    s->steps[1] = (size_t)p->stride[0] * plane;
    s->steps[2] = (size_t)p->stride[1] * line;
    s->line_rows = (size_t)p->out[2];
    s->lines = (size_t)(p->batch * p->out[0] * p->out[1]);
    /* lines that follow each other as rows do are one, but where each has its unit */
    size_t run = s->line_rows * s->x_stride;
    if (!s->by_line && (!fixed || b->by_pixel) && (p->out[1] == 1 || s->steps[2] == run) &&
        (p->out[0] == 1 || s->steps[1] == run * s->counts[1]) &&
        (p->batch == 1 || s->steps[0] == run * s->counts[1] * s->counts[0])) {
        s->line_rows *= s->lines;
        s->lines = s->counts[0] = s->counts[1] = 1;
    }
    if (fixed)
        plan_units(s);
    size_t columns = s->panels.taps / (size_t)(p->kernel[0] * p->kernel[1]), n = 0;
    ptrdiff_t *unit_taps = s->taps + s->panels.taps;
    s->unit_taps = unit_taps;
    for (int64_t d = 0; d < p->kernel[0]; d++)
        for (int64_t h = 0; h < p->kernel[1]; h++)
            for (size_t w = 0; w < columns; w++, n++) {
                size_t lines = (size_t)(d * p->dilation[0]) * pitch[1] + (size_t)(h * p->dilation[1]);
                s->taps[n] = (ptrdiff_t)(lines * line + w * (size_t)p->dilation[2] * pixel);
                unit_taps[n] = b->by_pixel ? 0 : (ptrdiff_t)lines;
            }
}

static size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* What each thread does: the split that costs the longest part least, in cycles that are right to a factor of
 * two. Threads that share the columns of a row write to the same lines of the cache, which then travel from
 * core to core with every tile: that matters where a tile has little to multiply. */
static void plan_split(struct tiling *s, size_t lanes, unsigned threads, size_t x_bytes)
{
    enum { SUMS_A_CYCLE = 2, TILE_CYCLES = 64, SHARED_CYCLES = 256, BYTES_A_CYCLE = 32 };
    size_t count = s->panels.groups * s->panels.per_group, least = SIZE_MAX;
    size_t sums = s->rows_max * s->panels.width / lanes * s->panels.taps * s->panels.depth;
    s->split_tiles = s->split_panels = 1;
    s->cycles = s->tiles * count * (sums / SUMS_A_CYCLE + TILE_CYCLES);
    threads = fast_sharing(threads, s->cycles);
    for (size_t r = 1; r <= threads; r++) {
        size_t c = threads / r;
        if (threads % r || r > s->tiles || c > count)
            continue;
        size_t tile = sums / SUMS_A_CYCLE + TILE_CYCLES + (c > 1 ? SHARED_CYCLES : 0);
        size_t cost = ceil_div(s->tiles, r) * ceil_div(count, c) * tile +
                      (x_bytes / r + tile_panels_bytes(&s->panels) / c) / BYTES_A_CYCLE;
        if (cost >= least)
            continue;
        least = cost;
        s->split_tiles = r;
        s->split_panels = c;
    }
}

static void plan_tiles(struct tiling *s, const struct tile_kernels *kernels, unsigned threads, size_t element)
{
    const struct tile_panels *panels = &s->panels;
    s->rows_max =
        (size_t)MLO_MIN(kernels->rows_max[panels->width_index], kernels->rows_max[panels->tail_index]);
    if (s->lines > 1 && 2 * s->line_rows <= s->rows_max) {
        s->tiles_per_line = 0;
        s->tiles = ceil_div(s->lines, 2);
    } else {
        s->tiles_per_line = ceil_div(s->line_rows, s->rows_max);
        s->tiles = s->lines * s->tiles_per_line;
        s->part_rows = s->line_rows / s->tiles_per_line;
        s->longer_parts = s->line_rows % s->tiles_per_line;
    }
    size_t rows = s->lines * s->line_rows;
    bool plain = s->product.kernel[0] * s->product.kernel[1] * s->product.kernel[2] == 1;
    size_t row_bytes = plain ? s->x_group : s->x_stride; /* of x that a row has for itself */
    s->block_depth = panels->depth;
    /* float sums may be continued from y */
    if (s->product.type == TILE_F32 && panels->taps == 1 && panels->depth > BLOCK_DEPTH * 3 / 2 &&
        row_bytes * rows > BLOCK_BYTES)
        s->block_depth = ceil_div(panels->depth, ceil_div(panels->depth, BLOCK_DEPTH));
    size_t tile_bytes = MLO_MAX(row_bytes * rows / s->tiles, (size_t)1);
    tile_bytes = MLO_MAX(tile_bytes * s->block_depth / panels->depth, (size_t)1);
    s->block_tiles = MLO_MAX((size_t)BLOCK_BYTES / tile_bytes, (size_t)4);
    /* int8 panels that stay in the second-level cache are read again soon enough: rather keep there what a
     * pass writes, in parts of lines, though a pass of few tiles costs more than it saves */
    size_t out_bytes = (s->y_stride + s->residual_stride) * rows / s->tiles;
    if (tile_is_int8(&s->product) && tile_panels_bytes(panels) <= BLOCK_BYTES * 3 / 2)
        s->block_tiles = MLO_MAX(LINES_BYTES / (tile_bytes + out_bytes), (size_t)2);
    s->block_tiles = MLO_MIN(s->block_tiles, (size_t)TILING_BLOCK_MAX);
    plan_split(s, kernels->widths[0], threads, s->product.groups * row_bytes * rows * element);
}

static void plan_epilogue(struct tiling *s, const struct tile_kernels *kernels)
{
    const struct tile_product *p = &s->product;
    struct tile_epilogue *e = &s->epilogue;
    *e = p->epilogue;
    e->unit = 1.0f;
    if (p->post_count && kernels->swish && tile_product_swish(p, &s->swish))
        e->swish = &s->swish;
    s->staged = p->post_count && e->y_dtype != MLO_FLOAT32 && !e->swish;
    if (s->staged)
        e->y_dtype = MLO_FLOAT32;
    if (kernels->prepare)
        kernels->prepare(e);
}

static struct tiling *new_tiling(const struct mlo_plan *plan, const struct tile_product *product, bool roomy,
                                 bool by_line)
{
    const struct tile_kernels *kernels = tiling_kernels(product->type, plan);
    struct tile_panels panels;
    tile_panels_init(&panels, kernels, product);
    struct tiling *s = calloc(1, sizeof *s + 2 * panels.taps * sizeof s->taps[0]);
    if (!s)
        return NULL;
    size_t element = kernels->group_bytes / kernels->group_depth;
    s->by_line = by_line;
    s->product = *product;
    s->product.weights = NULL;
    s->product.bias = s->product.scale = NULL;
    s->product.init = NULL;
    s->product.epilogue.bias = s->product.epilogue.scale = NULL;
    s->product.epilogue.init = NULL;
    s->panels = panels;
    s->y_element = mlo_dtype_info(product->epilogue.y_dtype)->bits / 8;
    s->y_stride = panels.groups * panels.columns * s->y_element;
    if (product->residual >= 0) {
        s->residual_element = mlo_dtype_info(product->epilogue.residual_dtype)->bits / 8;
        s->residual_stride = panels.groups * panels.columns * s->residual_element;
    }
    plan_epilogue(s, kernels);
    if (!border_is_possible(s, element)) {
        free(s);
        return NULL;
    }
    plan_source(s, roomy, element);
    plan_tiles(s, kernels, plan->threads, element);
    return s;
}

struct tiling *tiling_new(const struct mlo_plan *plan, const struct tile_product *product, bool roomy)
{
    return new_tiling(plan, product, roomy, false);
}

struct tiling *tiling_new_by_line(const struct mlo_plan *plan, const struct tile_product *product)
{
    struct tiling *s = new_tiling(plan, product, true, true);
    if (s && s->tiles_per_line)
        return s;
    free(s);
    return NULL;
}

struct packing {
    const struct tile_panels *panels;
    const struct tile_product *product;
};

static bool make_panels(void *arg, void *out)
{
    const struct packing *p = arg;
    tile_pack(p->panels, p->product, out);
    return true;
}

static int panels_slot(struct mlo_plan *plan, const struct tile_panels *n, const struct tile_product *p)
{
    struct packing packing = {n, p};
    uint64_t params[] = {n->groups,      n->columns,  n->width, n->tail, n->taps, n->tap_elements,
                         n->group_depth, n->channels, p->w_out, p->w_in, p->w_tap};
    static const char *const kinds[TILE_TYPES] = {"tile f32", "tile int8", "tile int8", "tile f16",
                                                  "tile fixed16"};
    struct cpu_const_key key = {.kind = kinds[p->type],
                                .source = p->weights,
                                .source_bytes = p->weights_bytes,
                                .params = params,
                                .params_bytes = sizeof params};
    return cpu_shared_const(plan, &key, tile_panels_bytes(n), make_panels, &packing);
}

/* Numbers by output channel, padded as the panels are. */
static int columns_slot(struct mlo_plan *plan, const struct tile_panels *panels, const void *numbers)
{
    size_t bytes = panels->groups * panels->padded * sizeof(float);
    char *copy = cpu_aligned(bytes);
    for (size_t g = 0; copy && numbers && g < panels->groups; g++)
        memcpy(copy + g * panels->padded * sizeof(float),
               (const char *)numbers + g * panels->columns * sizeof(float), panels->columns * sizeof(float));
    return cpu_slot_const_take(plan, copy, bytes);
}

enum mlo_status tile_emit(struct mlo_plan *plan, const struct mlo_node *node, const struct tile_product *p,
                          struct cpu_step **out, struct mlo_error *err)
{
    static const char *const precisions[TILE_TYPES] = {"f32", "int8", "int8", "f16", "fixed16"};
    const struct tile_kernels *kernels = tiling_kernels(p->type, plan);
    struct tiling *s = tiling_new(plan, p, plan->slots[p->x].kind == CPU_SLOT_ARENA);
    struct cpu_step *step = s ? cpu_step_new(plan, &fast_tile_class, node, IN_COUNT, 1) : NULL;
    if (!step) {
        free(s);
        return mlo_error_nomem(err);
    }
    step->data = s;
    plan->product_cycles += s->cycles;
    plan->scratch_bytes = MLO_MAX(plan->scratch_bytes, s->border.bytes);
    step->in[IN_X] = p->x;
    step->in[IN_PANELS] = panels_slot(plan, &s->panels, p);
    step->in[IN_BIAS] = columns_slot(plan, &s->panels, p->bias);
    step->in[IN_SCALE] = p->scale ? columns_slot(plan, &s->panels, p->scale) : -1;
    step->in[IN_INIT] = p->init ? columns_slot(plan, &s->panels, p->init) : -1;
    step->in[IN_RESIDUAL] = p->residual;
    if (p->residual >= 0 && s->residual_element == s->y_element)
        step->begins_as = p->residual;
    step->out[0] = p->y;
    step->impl = mlo_arena_printf(plan->arena, "tile:%s", kernels->name);
    step->precision = precisions[p->type];
    *out = step;
    if (step->in[IN_PANELS] < 0 || step->in[IN_BIAS] < 0 || !step->impl ||
        (p->scale && step->in[IN_SCALE] < 0) || (p->init && step->in[IN_INIT] < 0))
        return mlo_error_nomem(err);
    return MLO_OK;
}
