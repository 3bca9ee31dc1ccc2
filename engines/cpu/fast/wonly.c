/* Products with packed weights as steps: the rows are brought into the kernels' form, then panels are
 * computed. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/wonly_impl.h"
#include "engines/cpu/image_impl.h"

enum { PANELS_AT_ONCE = 8, MIN_PANELS = 4 };

const struct wonly_kernels *wonly_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? &wonly_kernels_vnni
           : isa >= MLO_ISA_AVX512    ? &wonly_kernels_avx512
                                      : &wonly_kernels_avx2;
}

/* --- packing -----------------------------------------------------------------------------------------------
 */

struct pack {
    const struct wonly_weights *w;
    const struct wonly_source *from;
};

static size_t panels_of(const struct wonly_weights *w)
{
    return (w->n + WONLY_COLUMNS - 1) / WONLY_COLUMNS;
}

static size_t panel_bytes(const struct wonly_weights *w)
{
    return w->blocks * w->block * WONLY_COLUMNS * (size_t)w->bits / 8;
}

static bool pack_data(void *arg, void *out)
{
    const struct pack *p = arg;
    const struct wonly_weights *w = p->w;
    uint8_t *to = out;
    for (size_t j = 0; j < w->n; j++)
        for (size_t k = 0; k < w->k; k++) {
            unsigned u = p->from->number(p->from, j, k);
            uint8_t *group =
                to + j / WONLY_COLUMNS * panel_bytes(w) + k / WONLY_GROUP * (16 * (size_t)w->bits);
            size_t d = k % WONLY_GROUP, dword = 4 * (j % WONLY_COLUMNS);
            if (w->bits == 4)
                group[dword + d % 4] |= (uint8_t)(u << (d < 4 ? 0 : 4));
            else
                group[(d < 4 ? 0 : 64) + dword + d % 4] = (uint8_t)u;
        }
    return true;
}

/* Parameters of blocks: [panel][block][column]. A source's block may be several of ours. */
static size_t parameter_at(const struct wonly_weights *w, size_t j, size_t b)
{
    return (j / WONLY_COLUMNS * w->blocks + b) * WONLY_COLUMNS + j % WONLY_COLUMNS;
}

static bool pack_scales(void *arg, void *out)
{
    const struct pack *p = arg;
    for (size_t j = 0; j < p->w->n; j++)
        for (size_t b = 0; b < p->w->blocks; b++)
            ((float *)out)[parameter_at(p->w, j, b)] = p->from->scale(p->from, j, b * p->w->block);
    return true;
}

static bool pack_zeros(void *arg, void *out)
{
    const struct pack *p = arg;
    memset(out, p->w->bits == 4 ? 8 : 128, panels_of(p->w) * p->w->blocks * WONLY_COLUMNS);
    for (size_t j = 0; j < p->w->n; j++)
        for (size_t b = 0; b < p->w->blocks; b++)
            ((uint8_t *)out)[parameter_at(p->w, j, b)] = (uint8_t)p->from->zero(p->from, j, b * p->w->block);
    return true;
}

struct params {
    uint64_t bits, n, k, block, form, source_block;
};

static struct params params_of(const struct wonly_source *from, const struct wonly_weights *w)
{
    return (struct params){(uint64_t)w->bits, w->n, w->k, w->block, (uint64_t)from->form, from->block};
}

bool wonly_pack_data(struct mlo_plan *plan, const struct wonly_source *from, struct wonly_weights *w)
{
    struct pack pack = {w, from};
    struct params params = params_of(from, w);
    struct cpu_const_key key = {"packed weights", from->q->data, from->q->size_bytes, &params, sizeof params};
    w->data = cpu_shared_const(plan, &key, panels_of(w) * panel_bytes(w), pack_data, &pack);
    return w->data >= 0;
}

bool wonly_pack(struct mlo_plan *plan, const struct wonly_source *from, struct wonly_weights *w)
{
    struct pack pack = {w, from};
    struct params params = params_of(from, w);
    size_t parameters = panels_of(w) * w->blocks * WONLY_COLUMNS;
    struct cpu_const_key key;
    key = (struct cpu_const_key){"packed scales", from->scales->data, from->scales->size_bytes, &params,
                                 sizeof params};
    w->scale = cpu_shared_const(plan, &key, parameters * sizeof(float), pack_scales, &pack);
    w->zero = -1;
    bool middle = true;
    for (size_t j = 0; j < w->n && middle; j++)
        for (size_t b = 0; b < w->blocks && middle; b++)
            middle = from->zero(from, j, b * w->block) == (w->bits == 4 ? 8u : 128u);
    if (!middle) {
        const struct mlo_tensor *zeros = from->zeros ? from->zeros : from->q; /* none: all are 0 */
        key = (struct cpu_const_key){"packed zero points", zeros->data, zeros->size_bytes, &params,
                                     sizeof params};
        w->zero = cpu_shared_const(plan, &key, parameters, pack_zeros, &pack);
    }
    return wonly_pack_data(plan, from, w) && w->scale >= 0 && (middle || w->zero >= 0);
}

/* --- running -----------------------------------------------------------------------------------------------
 */

struct product {
    const struct wonly_kernels *kernels;
    struct wonly_weights w;
    size_t m;
    int planes; /* 0: the float kernels */
    size_t group_rows, groups;
    size_t group_bytes; /* of the program's scratch memory */
};

struct call {
    const struct product *p;
    const float *x, *bias;
    const char *w;
    const float *scale;
    const uint8_t *zero;
    float *y, *padded;
    char *groups;
};

static struct wonly_rows *rows_of(const struct call *c, size_t group, size_t *rows)
{
    const struct product *p = c->p;
    *rows = MLO_MIN(p->m - group * p->group_rows, p->group_rows);
    return (struct wonly_rows *)(void *)(c->groups + group * p->group_bytes);
}

/* Where the pieces of a group of rows are in its part of the scratch memory. */
static void lay_out(const struct product *p, size_t rows, struct wonly_rows *r)
{
    size_t blocks = p->w.blocks, planes = (size_t)p->planes;
    r->x = (int32_t *)(void *)((char *)r + 64);
    r->init = r->x + blocks * p->w.block / 4 * rows * planes;
    r->scale = (float *)(r->init + blocks * rows * planes);
    r->sum = r->scale + blocks * rows;
}

static void fix_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *c = arg;
    const struct product *p = c->p;
    for (size_t g = begin; g < end; g++) {
        size_t rows;
        struct wonly_rows *r = rows_of(c, g, &rows);
        lay_out(p, rows, r);
        p->kernels->fix(c->x + g * p->group_rows * p->w.k, p->w.k, rows, p->w.k, p->w.block, p->w.blocks,
                        p->planes, p->w.bits == 4 ? 8 : 128, r);
    }
}

static void pad_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *c = arg;
    size_t k = c->p->w.k, padded = c->p->w.block * c->p->w.blocks;
    for (size_t r = begin; r < end; r++) {
        memcpy(c->padded + r * padded, c->x + r * k, k * sizeof(float));
        memset(c->padded + r * padded + k, 0, (padded - k) * sizeof(float));
    }
}

static struct wonly_tile tile_of(const struct call *c, size_t panel)
{
    const struct wonly_weights *w = &c->p->w;
    size_t parameters = panel * w->blocks * WONLY_COLUMNS;
    return (struct wonly_tile){.w = (const uint8_t *)c->w + panel * panel_bytes(w),
                               .w_scale = c->scale + parameters,
                               .w_zero = c->zero ? c->zero + parameters : NULL,
                               .block = w->block,
                               .blocks = w->blocks,
                               .bias = c->bias ? c->bias + panel * WONLY_COLUMNS : NULL,
                               .y_stride = w->n,
                               .columns = MLO_MIN(w->n - panel * WONLY_COLUMNS, (size_t)WONLY_COLUMNS)};
}

static void fixed_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *c = arg;
    const struct product *p = c->p;
    for (size_t from = begin; from < end; from += PANELS_AT_ONCE) /* they stay in the cache for all rows */
        for (size_t g = 0; g < p->groups; g++) {
            size_t rows, to = MLO_MIN(from + PANELS_AT_ONCE, end);
            const struct wonly_rows *x = rows_of(c, g, &rows);
            for (size_t panel = from; panel < to; panel++) {
                struct wonly_tile t = tile_of(c, panel);
                t.x = x;
                t.y = c->y + g * p->group_rows * p->w.n + panel * WONLY_COLUMNS;
                p->kernels->fixed[p->w.bits == 8][p->planes - 1][rows - 1](&t);
            }
        }
}

static void float_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *c = arg;
    const struct product *p = c->p;
    size_t step = (size_t)p->kernels->float_rows, stride = p->w.block * p->w.blocks;
    for (size_t from = begin; from < end; from += PANELS_AT_ONCE)
        for (size_t r = 0; r < p->m; r += step) {
            size_t rows = MLO_MIN(p->m - r, step), to = MLO_MIN(from + PANELS_AT_ONCE, end);
            for (size_t panel = from; panel < to; panel++) {
                struct wonly_tile t = tile_of(c, panel);
                t.xf = c->padded + r * stride;
                t.x_stride = stride;
                t.y = c->y + r * p->w.n + panel * WONLY_COLUMNS;
                p->kernels->on_floats[p->w.bits == 8][rows - 1](&t);
            }
        }
}

static bool all_fit(const struct call *c)
{
    for (size_t g = 0; g < c->p->groups; g++) {
        size_t rows;
        if (!rows_of(c, g, &rows)->fits)
            return false;
    }
    return true;
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, void *state,
                           struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct product *p = step->data;
    struct call c = {.p = p,
                     .x = program->at[step->in[0]],
                     .w = program->at[p->w.data],
                     .scale = program->at[p->w.scale],
                     .zero = p->w.zero >= 0 ? program->at[p->w.zero] : NULL,
                     .bias = step->in[1] >= 0 ? program->at[step->in[1]] : NULL,
                     .y = program->at[step->out[0]],
                     .padded = (float *)(void *)program->scratch,
                     .groups = program->scratch};
    size_t panels = panels_of(&p->w);
    if (p->planes) {
        mlo_pool_run(program->pool, p->groups, p->groups > 1 ? 1 : 2, fix_range, &c);
        if (all_fit(&c)) {
            mlo_pool_run(program->pool, panels, MIN_PANELS, fixed_range, &c);
            return MLO_OK;
        }
    }
    mlo_pool_run(program->pool, p->m, 16, pad_range, &c);
    mlo_pool_run(program->pool, panels, MIN_PANELS, float_range, &c);
    return MLO_OK;
}

/* How the rows are cut, and how much scratch memory that takes. */
static size_t arrange(struct product *p)
{
    const struct wonly_weights *w = &p->w;
    size_t depth = w->block * w->blocks;
    if (p->kernels->fix) {
        size_t most = (size_t)p->kernels->fixed_rows[p->planes - 1], count = (p->m + most - 1) / most;
        p->group_rows = (p->m + count - 1) / count; /* even groups */
        p->groups = (p->m + p->group_rows - 1) / p->group_rows;
        p->group_bytes = 64 + depth * p->group_rows * (size_t)p->planes +
                         w->blocks * p->group_rows * ((size_t)p->planes + 2) * 4;
        p->group_bytes = (p->group_bytes + 63) & ~(size_t)63;
    } else {
        p->planes = 0;
    }
    return MLO_MAX(p->m * depth * sizeof(float), p->group_bytes * p->groups);
}

static enum mlo_status save(const struct mlo_plan *plan, const struct cpu_step *step, struct cpu_writer *w,
                            struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    struct product p = *(const struct product *)step->data;
    p.kernels = NULL;
    cpu_put_bytes(w, &p, sizeof p);
    return MLO_OK;
}

enum { SANE = 1 << 28 }; /* rows, columns and depths of a file: products of two are far from overflow */

static enum mlo_status restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                               struct mlo_error *err)
{
    struct product *p = calloc(1, sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    step->data = p;
    cpu_get_bytes(r, p, sizeof *p);
    p->kernels = wonly_kernels_for(plan->isa);
    p->groups = p->group_rows = p->group_bytes = 0;
    const struct wonly_weights *w = &p->w;
    bool sane = step->in_count == 5 && step->out_count == 1 && (w->bits == 4 || w->bits == 8) && w->n >= 1 &&
                w->n <= SANE && w->k >= 1 && w->k <= SANE && w->block >= WONLY_GROUP &&
                w->block <= WONLY_BLOCK_MAX && w->block % WONLY_GROUP == 0 &&
                w->blocks == (w->k + w->block - 1) / w->block && p->m >= 1 && p->m <= SANE &&
                p->planes >= 0 && p->planes <= WONLY_PLANES_MAX && (p->planes || !p->kernels->fix) &&
                w->data == step->in[2] && w->scale == step->in[3] && w->zero == step->in[4];
    if (!cpu_check(r, sane, "packed weights have impossible sizes"))
        return cpu_reader_status(r, err);
    size_t parameters = panels_of(w) * w->blocks * WONLY_COLUMNS;
    if (cpu_check(r, arrange(p) <= plan->scratch_bytes, "a step needs more scratch memory") &&
        cpu_slot_holds(r, plan, step->in[0], cpu_product(p->m, w->k, 4)) &&
        cpu_slot_holds(r, plan, w->data, cpu_product(panels_of(w), panel_bytes(w), 1)) &&
        cpu_slot_holds(r, plan, w->scale, cpu_product(parameters, 4, 1)) &&
        (step->in[1] < 0 ||
         cpu_slot_holds(r, plan, step->in[1], cpu_product(panels_of(w), WONLY_COLUMNS, 4))) &&
        (w->zero < 0 || cpu_slot_holds(r, plan, w->zero, parameters)))
        cpu_slot_holds(r, plan, step->out[0], cpu_product(p->m, w->n, 4));
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_packed_class = {.name = "packed-weights",
                                                 .run = run,
                                                 .free_data = free,
                                                 .id = "packed-weights",
                                                 .save = save,
                                                 .restore = restore};

enum mlo_status wonly_emit(struct mlo_plan *plan, const struct mlo_node *node,
                           const struct wonly_request *request, struct cpu_step **out, struct mlo_error *err)
{
    const struct wonly_weights *w = &request->w;
    struct product *p = calloc(1, sizeof *p);
    struct cpu_step *step = p ? cpu_step_new(plan, &fast_packed_class, node, 5, 1) : NULL;
    if (!step) {
        free(p);
        return mlo_error_nomem(err);
    }
    step->data = p;
    *p = (struct product){
        .kernels = wonly_kernels_for(plan->isa), .w = *w, .m = request->m, .planes = request->planes};
    plan->scratch_bytes = MLO_MAX(plan->scratch_bytes, arrange(p));
    step->precision = w->bits == 4 ? "w4" : "w8";
    step->impl = mlo_arena_printf(plan->arena, "packed-weights:%s", p->kernels->name);
    if (!step->impl)
        return mlo_error_nomem(err);
    step->in[0] = request->x;
    step->in[1] = request->bias;
    step->in[2] = w->data;
    step->in[3] = w->scale;
    step->in[4] = w->zero;
    step->out[0] = request->y;
    *out = step;
    return MLO_OK;
}
