/* int8 products of one row with few weights as steps. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/row_int8_impl.h"
#include "engines/cpu/fast/tiling_impl.h"
#include "engines/cpu/image_impl.h"

enum { ROW8_X, ROW8_WEIGHTS, ROW8_NUMBERS, ROW8_IN };

struct row_data {
    struct tile_product product; /* without its pointers */
    struct row8 row;             /* without its pointers */
    row8_fn *run;
    bool copy; /* x may not be read behind its end */
};

const struct row8_kernels *row8_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? &row8_avx512_vnni : isa >= MLO_ISA_AVX2 ? &row8_avx2 : NULL;
}

bool row8_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    bool one = tile_is_int8(p) && p->batch == 1 && p->groups == 1;
    for (int i = 0; i < 3; i++)
        one &= p->in[i] == 1 && p->out[i] == 1 && p->kernel[i] == 1 && p->pad[i] == 0;
    return one && row8_kernels_for(plan->isa) && p->in_channels >= 1 && p->in_channels <= ROW8_DEPTH_MAX &&
           p->out_channels >= 1 && p->out_channels <= ROW8_WEIGHTS_MAX / p->in_channels;
}

bool row8_finishes(const struct tile_product *p)
{
    const struct tile_epilogue *e = &p->epilogue;
    return e->residual_dtype == MLO_DTYPE_NONE && !e->inner &&
           (e->y_dtype == MLO_FLOAT32 || p->post_count == 0);
}

static enum mlo_status row8_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct row_data *d = step->data;
    uint8_t x[ROW8_DEPTH_MAX];
    struct row8 row = d->row;
    row.x = program->at[step->in[ROW8_X]];
    row.weights = program->at[step->in[ROW8_WEIGHTS]];
    row.numbers = program->at[step->in[ROW8_NUMBERS]];
    row.y = program->at[step->out[0]];
    if (d->copy)
        row.x = memcpy(x, row.x, row.depth);
    d->run(&row);
    for (int i = 0; i < d->product.post_count; i++) {
        const struct tile_post *post = &d->product.posts[i];
        fast_math_kernels_for(program->plan->isa)
            ->fn[post->fn](row.y, (size_t)d->product.out_channels, post->alpha, post->beta, row.y);
    }
    return MLO_OK;
}

static size_t groups_of(const struct row8_kernels *kernels, const struct tile_product *p)
{
    size_t groups = ((size_t)p->in_channels + kernels->group_depth - 1) / kernels->group_depth;
    return (groups + ROW8_GROUPS - 1) / ROW8_GROUPS * ROW8_GROUPS;
}

static size_t blocks_of(const struct tile_product *p)
{
    return ((size_t)p->out_channels + ROW8_COLUMNS - 1) / ROW8_COLUMNS;
}

static size_t weights_bytes(const struct row8_kernels *kernels, const struct tile_product *p)
{
    return groups_of(kernels, p) * blocks_of(p) * ROW8_COLUMNS * 4;
}

static size_t numbers_bytes(const struct tile_product *p)
{
    return blocks_of(p) * ROW8_COLUMNS * 3 * sizeof(float);
}

/* What follows from the product. Its columns, when they are written whole, end at most 60 bytes behind those
 * that exist: less than what lies behind every slot of the arena. */
static struct row_data *data_new(const struct mlo_plan *plan, const struct tile_product *p, int x)
{
    const struct row8_kernels *kernels = row8_kernels_for(plan->isa);
    const struct tile_epilogue *e = &p->epilogue;
    const bool floats = e->y_dtype == MLO_FLOAT32;
    struct row_data *d = malloc(sizeof *d);
    if (!d)
        return NULL;
    *d = (struct row_data){.product = *p,
                           .run = kernels->run,
                           .copy = p->in_channels % 16 && plan->slots[x].kind != CPU_SLOT_ARENA,
                           .row = {.depth = (size_t)p->in_channels,
                                   .groups = groups_of(kernels, p),
                                   .blocks = blocks_of(p),
                                   .flip = p->type == TILE_S8S8,
                                   .floats = floats,
                                   .low = e->low,
                                   .high = e->high,
                                   .zero_point = e->y_zero_point,
                                   .lowest = floats ? 0 : (int32_t)e->low,
                                   .highest = floats ? 0 : (int32_t)e->high}};
    d->product.weights = NULL;
    d->product.bias = d->product.scale = NULL;
    d->product.init = NULL;
    return d;
}

/* --- in a plan's file -------------------------------------------------------------------------------------
 */

static enum mlo_status row8_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                 struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    tile_product_save(w, &((const struct row_data *)step->data)->product);
    return MLO_OK;
}

static enum mlo_status row8_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                    struct mlo_error *err)
{
    struct tile_product p = {.residual = -1};
    if (!cpu_check(r, step->in_count == ROW8_IN && step->out_count == 1, "a step has other operands"))
        return cpu_reader_status(r, err);
    tile_product_restore(r, &p);
    const struct tile_epilogue *e = &p.epilogue;
    bool range = e->y_dtype == MLO_FLOAT32 ||
                 (e->low >= -128.0f && e->low <= 255.0f && e->high >= -128.0f && e->high <= 255.0f);
    if (!cpu_check(r, row8_supports(plan, &p) && row8_finishes(&p) && range,
                   "there are no kernels for a product of one row"))
        return cpu_reader_status(r, err);
    const struct row8_kernels *kernels = row8_kernels_for(plan->isa);
    size_t element = e->y_dtype == MLO_FLOAT32 ? sizeof(float) : 1;
    if (cpu_slot_holds(r, plan, step->in[ROW8_X], (size_t)p.in_channels) &&
        cpu_slot_holds(r, plan, step->in[ROW8_WEIGHTS], weights_bytes(kernels, &p)) &&
        cpu_slot_holds(r, plan, step->in[ROW8_NUMBERS], numbers_bytes(&p)) &&
        cpu_slot_holds(r, plan, step->out[0], (size_t)p.out_channels * element)) {
        step->data = data_new(plan, &p, step->in[ROW8_X]);
        if (!step->data)
            return mlo_error_nomem(err);
    }
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_row8_class = {.name = "row",
                                               .run = row8_run,
                                               .free_data = free,
                                               .id = "row int8",
                                               .save = row8_save,
                                               .restore = row8_restore};

/* --- lowering ---------------------------------------------------------------------------------------------
 */

struct packing {
    const struct row8_kernels *kernels;
    const struct tile_product *product;
};

static bool make_weights(void *arg, void *out)
{
    const struct packing *packing = arg;
    const struct tile_product *p = packing->product;
    const size_t each = packing->kernels->group_depth, groups = groups_of(packing->kernels, p);
    for (size_t o = 0; o < (size_t)p->out_channels; o++)
        for (size_t k = 0; k < (size_t)p->in_channels; k++) {
            const int8_t w = ((const int8_t *)p->weights)[o * p->w_out + k * p->w_in];
            const size_t group = (o / ROW8_COLUMNS * groups + k / each) * ROW8_COLUMNS + o % ROW8_COLUMNS;
            if (each == 4)
                ((int8_t *)out)[group * 4 + k % 4] = w;
            else
                ((int16_t *)out)[group * 2 + k % 2] = w;
        }
    return true;
}

static int32_t *make_numbers(const struct tile_product *p)
{
    const size_t columns = (size_t)p->out_channels, padded = blocks_of(p) * ROW8_COLUMNS;
    int32_t *out = cpu_aligned(numbers_bytes(p));
    if (!out)
        return NULL;
    if (p->init)
        memcpy(out, p->init, columns * sizeof *out);
    memcpy(out + padded, p->scale, columns * sizeof *out);
    if (p->bias)
        memcpy(out + 2 * padded, p->bias, columns * sizeof *out);
    return out;
}

enum mlo_status row8_emit(struct mlo_plan *plan, const struct mlo_node *node, const struct tile_product *p,
                          struct cpu_step **out, struct mlo_error *err)
{
    const struct row8_kernels *kernels = row8_kernels_for(plan->isa);
    struct row_data *d = data_new(plan, p, p->x);
    struct cpu_step *step = d ? cpu_step_new(plan, &fast_row8_class, node, ROW8_IN, 1) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    step->data = d;
    struct packing packing = {kernels, p};
    uint64_t params[] = {(uint64_t)p->in_channels, (uint64_t)p->out_channels, p->w_out, p->w_in,
                         kernels->group_depth};
    struct cpu_const_key key = {.kind = "row int8",
                                .source = p->weights,
                                .source_bytes = p->weights_bytes,
                                .params = params,
                                .params_bytes = sizeof params};
    step->in[ROW8_X] = p->x;
    step->in[ROW8_WEIGHTS] = cpu_shared_const(plan, &key, weights_bytes(kernels, p), make_weights, &packing);
    step->in[ROW8_NUMBERS] = cpu_slot_const_take(plan, make_numbers(p), numbers_bytes(p));
    step->out[0] = p->y;
    step->impl = mlo_arena_printf(plan->arena, "row:%s", kernels->name);
    step->precision = "int8";
    *out = step;
    return step->in[ROW8_WEIGHTS] < 0 || step->in[ROW8_NUMBERS] < 0 || !step->impl ? mlo_error_nomem(err)
                                                                                   : MLO_OK;
}
