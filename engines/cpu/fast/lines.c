/* Convolutions that follow each other, line by line: what a depthwise or a 1x1 convolution makes of some
 * lines is read by the next one while it is in the cache, and is never whole. Each thread has a buffer for
 * some lines of every value between two of them; those that the next lines read again move to its front. Sums
 * are those of the steps one by one. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/depthwise_impl.h"
#include "engines/cpu/fast/lines_impl.h"
#include "engines/cpu/fast/tiling_impl.h"
#include "engines/cpu/image_impl.h"

enum { STAGES_MAX = 3, OPERANDS = 3 /* of a stage: */, L_WEIGHTS = 0, L_BIAS, L_RESIDUAL, ALIGNMENT = 64 };
/* Measured with a second-level cache of 1 MB on MobileNetV2, whose blocks are three such steps: more of them
 * need more lines that are read twice. Bytes of buffers that a thread has, about; of a value that is worth
 * not being written, and of each thread's share of one where there are several (which compute lines at their
 * borders twice: with two, shares of 0.8 to 2.4 MB lost 5%); of weights that are read again for each few
 * lines. */
enum {
    BUFFER_BYTES = 400 * 1024,
    LEAST_BYTES = 512 * 1024,
    LEAST_SHARED_BYTES = 4 * 1024 * 1024,
    WEIGHTS_BYTES = 128 * 1024
};

bool mlo_cpu_joins_all;

struct stage {
    struct tile_product product; /* without its pointers */
    struct tiling *tiling;       /* NULL: depthwise */
    size_t line_bytes;           /* of its output */
    size_t held, offset;         /* lines of its output in the buffer, and where they are (not of the last) */
};

struct lines {
    int count;
    size_t strip, strips; /* lines of the last output at a time; how many times an image */
    size_t border_offset, buffer_bytes;
    size_t cycles;
    struct stage stages[STAGES_MAX];
};

static size_t padded(size_t bytes) /* 64 bytes behind a row may be read */
{
    return (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The lines [*first, *end) of the input that lines [begin, last) of an output read. */
static void reads(const struct tile_product *p, size_t begin, size_t last, size_t *first, size_t *end)
{
    int64_t a = (int64_t)begin * p->stride[1] - p->pad[1];
    int64_t b = ((int64_t)last - 1) * p->stride[1] - p->pad[1] + (p->kernel[1] - 1) * p->dilation[1] + 1;
    *first = (size_t)MLO_MIN(MLO_MAX(a, 0), p->in[1]);
    *end = MLO_MAX((size_t)MLO_MIN(MLO_MAX(b, 0), p->in[1]), *first);
}

/* The buffers for `strip` lines at a time. */
static void set_strip(struct lines *l, size_t strip)
{
    size_t lines = strip, border = 0;
    l->strip = strip;
    l->buffer_bytes = 0;
    for (int i = l->count - 1; i >= 0; i--) {
        struct stage *s = &l->stages[i];
        const struct tile_product *p = &s->product;
        s->held = MLO_MIN(lines, (size_t)p->out[1]);
        s->offset = l->buffer_bytes;
        l->buffer_bytes += i < l->count - 1 ? padded(s->held * s->line_bytes) : 0;
        if (s->tiling)
            border = MLO_MAX(border, tiling_border_bytes(s->tiling, s->held));
        lines = (s->held - 1) * (size_t)p->stride[1] + (size_t)((p->kernel[1] - 1) * p->dilation[1]) + 1;
    }
    l->border_offset = l->buffer_bytes;
    l->buffer_bytes += padded(border);
}

static void lines_free(void *data)
{
    struct lines *l = data;
    for (int i = 0; l && i < l->count; i++)
        free(l->stages[i].tiling);
    free(l);
}

/* NULL: no memory. The products are ones that can be joined. */
static struct lines *lines_new(const struct mlo_plan *plan, const struct tile_product *const *products,
                               int count)
{
    struct lines *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    for (int i = 0; i < count; i++, l->count++) {
        struct stage *s = &l->stages[i];
        s->product = *products[i];
        s->product.weights = NULL;
        s->product.bias = NULL;
        const struct tile_product *p = &s->product;
        s->line_bytes = (size_t)(p->out[2] * p->groups * p->out_channels) * sizeof(float);
        if (depthwise_supports(plan, p)) {
            enum { SUMS_A_CYCLE = 8 };
            l->cycles +=
                (size_t)(p->batch * p->out[1] * p->out[2] * p->groups * (p->kernel[1] * p->kernel[2] + 2)) /
                SUMS_A_CYCLE;
            continue;
        }
        s->tiling = tiling_new_by_line(plan, p);
        if (!s->tiling) {
            lines_free(l);
            return NULL;
        }
        l->cycles += s->tiling->cycles;
    }
    size_t high = (size_t)l->stages[count - 1].product.out[1],
           strip = mlo_cpu_joins_all ? MLO_MIN(2, high) : 1;
    while (strip < high && !mlo_cpu_joins_all) {
        set_strip(l, strip + 1);
        if (l->buffer_bytes > BUFFER_BYTES)
            break;
        strip++;
    }
    /* all of them alike, and as many for each thread */
    size_t strips = (high + strip - 1) / strip, threads = fast_sharing(plan->threads, l->cycles);
    strips = MLO_MIN((strips + threads - 1) / threads * threads, high);
    set_strip(l, (high + strips - 1) / strips);
    l->strips = (high + l->strip - 1) / l->strip;
    return l;
}

struct lines_call {
    const struct mlo_plan *plan;
    const struct lines *l;
    const struct cpu_step *step;
    void *const *at;
    char *scratch;
};

static const void *operand(const struct lines_call *call, int stage, int which)
{
    int slot = call->step->in[1 + stage * OPERANDS + which];
    return slot >= 0 ? call->at[slot] : NULL;
}

/* Where line 0 of all images would be, when `line` is at `at`. */
static char *as_if_whole(void *at, size_t line, size_t line_bytes)
{
    return (char *)((uintptr_t)at - line * line_bytes);
}

static void run_stage(const struct lines_call *call, int i, const void *x, char *y, char *border,
                      size_t begin, size_t end)
{
    const struct stage *s = &call->l->stages[i];
    const void *weights = operand(call, i, L_WEIGHTS), *residual = operand(call, i, L_RESIDUAL);
    if (s->tiling)
        tiling_run_lines(call->plan, s->tiling,
                         &(struct tiling_lines){.x = x,
                                                .panels = weights,
                                                .residual = residual,
                                                .bias = operand(call, i, L_BIAS),
                                                .y = y,
                                                .border = border},
                         begin, end);
    else
        depthwise_run_lines(call->plan, &s->product, x, weights, operand(call, i, L_BIAS), residual,
                            (float *)(void *)y, begin, end);
}

/* Index: some lines of the last output. */
static void run_strips(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct lines_call *call = arg;
    const struct lines *l = call->l;
    const int last = l->count - 1;
    char *buffers = call->scratch + worker * l->buffer_bytes;
    /* of each output: lines [from, to) of the image are there */
    size_t from[STAGES_MAX] = {0}, to[STAGES_MAX] = {0};
    for (size_t i = begin; i < end; i++) {
        size_t image = i / l->strips, first[STAGES_MAX], want[STAGES_MAX];
        size_t line = (i - image * l->strips) * l->strip;
        if (line == 0)
            memset(to, 0, sizeof to), memset(from, 0, sizeof from);
        first[last] = line;
        want[last] = MLO_MIN(line + l->strip, (size_t)l->stages[last].product.out[1]);
        to[last] = line;
        for (int s = last; s > 0; s--) { /* what is new of each, and what that reads of the one before */
            size_t fresh = MLO_MAX(to[s], first[s]);
            first[s - 1] = from[s - 1];
            want[s - 1] = to[s - 1];
            if (fresh >= want[s])
                continue;
            reads(&l->stages[s].product, fresh, want[s], &first[s - 1], &want[s - 1]);
            want[s - 1] = MLO_MAX(want[s - 1], to[s - 1]);
        }
        const char *x = call->at[call->step->in[0]];
        for (int s = 0; s <= last; s++) {
            const struct stage *stage = &l->stages[s];
            size_t before = image * (size_t)stage->product.out[1];
            char *buffer = buffers + stage->offset, *y = call->at[call->step->out[0]];
            if (s < last) {
                if (first[s] >= to[s])
                    to[s] = first[s];
                else if (first[s] > from[s])
                    memmove(buffer, buffer + (first[s] - from[s]) * stage->line_bytes,
                            (to[s] - first[s]) * stage->line_bytes);
                from[s] = first[s];
                y = as_if_whole(buffer, before + from[s], stage->line_bytes);
            }
            if (to[s] < want[s])
                run_stage(call, s, x, y, buffers + l->border_offset, before + to[s], before + want[s]);
            to[s] = want[s];
            x = y;
        }
    }
}

static enum mlo_status lines_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                 struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct lines *l = step->data;
    struct lines_call call = {
        .plan = program->plan, .l = l, .step = step, .at = program->at, .scratch = program->scratch};
    size_t count = (size_t)l->stages[0].product.batch * l->strips;
    mlo_pool_run(program->pool, count, fast_grain(program->pool, count, l->cycles), run_strips, &call);
    return MLO_OK;
}

/* --- which -----------------------------------------------------------------------------------------------
 */

static const struct tile_product *product_of(const struct cpu_step *step)
{
    return step->cls == &fast_depthwise_class ? step->data
           : step->cls == &fast_tile_class    ? &((const struct tiling *)step->data)->product
                                              : NULL;
}

/* A picture's depthwise or 1x1 convolution; as the first one any, if x has a border. */
static bool can_join(const struct mlo_plan *plan, const struct tile_product *p, bool first)
{
    if (p->type != TILE_F32 || p->in[0] != 1 || p->out[0] != 1 || p->kernel[0] != 1 || p->pad[0] != 0)
        return false;
    if (depthwise_supports(plan, p))
        return true;
    bool plain = p->kernel[1] == 1 && p->kernel[2] == 1 && p->stride[1] == 1 && p->stride[2] == 1 &&
                 p->in[1] == p->out[1] && p->in[2] == p->out[2];
    return p->groups == 1 && 2 * p->out[2] > TILE_ROWS_MAX && (plain ? !p->planar : first);
}

static bool follows(const struct tile_product *p, const struct tile_product *next)
{
    return p->batch == next->batch && p->out[1] == next->in[1] && p->out[2] == next->in[2] &&
           p->groups * p->out_channels == next->groups * next->in_channels && !next->planar;
}

/* Nobody else reads what the step writes but the next one, as its x. */
static bool is_private(const struct mlo_plan *plan, int at)
{
    int slot = plan->steps[at].out[0], readers = 0;
    for (int i = 0; i < plan->step_count; i++)
        for (int k = 0; k < plan->steps[i].in_count; k++)
            readers += plan->steps[i].in[k] == slot;
    for (int i = 0; i < plan->model->graph->output_count; i++)
        readers += plan->output_slots[i] == slot;
    for (size_t i = 0; i < plan->observed_count; i++)
        readers += plan->observed_slots[i] == slot;
    return readers == 1 && plan->steps[at + 1].in[0] == slot && plan->slots[slot].kind == CPU_SLOT_ARENA;
}

static size_t weights_bytes(const struct mlo_plan *plan, const struct cpu_step *step)
{
    return plan->slots[step->in[1]].size_bytes;
}

/* How many steps from `at` on are to be one. */
static int length_at(const struct mlo_plan *plan, int at)
{
    const size_t least = plan->threads == 1 ? LEAST_BYTES : LEAST_SHARED_BYTES * plan->threads;
    int count = 0;
    for (int i = at; i < plan->step_count && count < STAGES_MAX; i++, count++) {
        const struct tile_product *p = product_of(&plan->steps[i]);
        if (!p || !can_join(plan, p, count == 0) ||
            (weights_bytes(plan, &plan->steps[i]) > WEIGHTS_BYTES && !mlo_cpu_joins_all))
            break;
        if (count > 0 && (!is_private(plan, i - 1) || !follows(product_of(&plan->steps[i - 1]), p) ||
                          (plan->slots[plan->steps[i - 1].out[0]].size_bytes < least && !mlo_cpu_joins_all)))
            break;
    }
    return count;
}

/* Steps [at, at + count) become one. */
static enum mlo_status join(struct mlo_plan *plan, int at, int count, bool *done, struct mlo_error *err)
{
    static const int operands[2][OPERANDS] = {{1, 2, 3}, {1, 2, 5}}; /* depthwise.c, tiling_impl.h */
    const struct tile_product *products[STAGES_MAX];
    struct cpu_step *steps = plan->steps + at, joined = steps[0];
    int fused = count - 1;
    for (int i = 0; i < count; i++) {
        products[i] = product_of(&steps[i]);
        fused += steps[i].fused_count;
    }
    joined.cls = &fast_lines_class;
    joined.in_count = 1 + count * OPERANDS;
    joined.in = mlo_arena_calloc(plan->arena, (size_t)joined.in_count, sizeof *joined.in);
    joined.fused = mlo_arena_calloc(plan->arena, (size_t)fused + 1, sizeof *joined.fused);
    joined.impl = mlo_arena_printf(plan->arena, "lines:%s", tiling_kernels(TILE_F32, plan)->name);
    if (!joined.in || !joined.fused || !joined.impl)
        return mlo_error_nomem(err);
    struct lines *l = lines_new(plan, products, count);
    if (!l) /* a line is too short, or there is no memory for it: as they are */
        return MLO_OK;
    joined.data = l;
    joined.begins_as = -1;
    joined.out = steps[count - 1].out;
    joined.in[0] = steps[0].in[0];
    joined.fused_count = 0;
    for (int i = 0; i < count; i++) {
        const int *from = operands[steps[i].cls == &fast_tile_class];
        for (int k = 0; k < OPERANDS; k++)
            joined.in[1 + i * OPERANDS + k] = steps[i].in[from[k]];
        if (i > 0)
            joined.fused[joined.fused_count++] = steps[i].node->name;
        for (int k = 0; k < steps[i].fused_count; k++)
            joined.fused[joined.fused_count++] = steps[i].fused[k];
    }
    for (int i = 0; i < count; i++)
        steps[i].cls->free_data(steps[i].data);
    steps[0] = joined;
    memmove(steps + 1, steps + count, (size_t)(plan->step_count - at - count) * sizeof *steps);
    plan->step_count -= count - 1;
    plan->scratch_bytes = MLO_MAX(plan->scratch_bytes, l->buffer_bytes * plan->threads);
    *done = true;
    return MLO_OK;
}

enum mlo_status fast_join_lines(struct mlo_plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < plan->step_count; i++) {
        int count = length_at(plan, i);
        bool done = false;
        if (count > 1)
            MLO_TRY(join(plan, i, count, &done, err));
    }
out:
    return status;
}

/* --- in a plan's file ------------------------------------------------------------------------------------
 */

static enum mlo_status lines_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                  struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct lines *l = step->data;
    cpu_put_u32(w, (uint32_t)l->count);
    for (int i = 0; i < l->count; i++)
        tile_product_save(w, &l->stages[i].product);
    return MLO_OK;
}

static size_t value_bytes(const int64_t dims[3], const struct tile_product *p, int64_t channels)
{
    return cpu_product(tile_volume(dims, (size_t)(p->groups * channels), 1),
                       cpu_product((size_t)p->batch, sizeof(float), 1), 1);
}

/* The product's own numbers and its operands but for what follows from the step as a whole. */
static bool check_stage(struct cpu_reader *r, const struct mlo_plan *plan, const int *in,
                        const struct tile_product *p, bool first)
{
    int64_t reach = (p->out[1] - 1) * p->stride[1] + (p->kernel[1] - 1) * p->dilation[1] + 1,
            width = (p->out[2] - 1) * p->stride[2] + (p->kernel[2] - 1) * p->dilation[2] + 1;
    bool depthwise = depthwise_supports(plan, p);
    size_t weights = cpu_product(tile_volume(p->kernel, (size_t)p->in_channels, (size_t)p->groups),
                                 (size_t)p->out_channels, sizeof(float)),
           y = value_bytes(p->out, p, p->out_channels),
           border = value_bytes((const int64_t[]){1, reach, width}, p, p->in_channels);
    bool small = weights < SIZE_MAX / 128 && y < SIZE_MAX / 128 && border < SIZE_MAX / 128;
    if (!cpu_check(r, (depthwise || tile_supports(plan, p)) && can_join(plan, p, first) && small,
                   "there are no kernels for a product") ||
        !cpu_slot_holds(r, plan, in[L_WEIGHTS], weights) ||
        !cpu_slot_holds(r, plan, in[L_BIAS], (size_t)(p->groups * p->out_channels) * sizeof(float)))
        return false;
    return p->residual < 0 || cpu_slot_holds(r, plan, in[L_RESIDUAL], y);
}

static enum mlo_status lines_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                     struct mlo_error *err)
{
    struct tile_product own[STAGES_MAX];
    const struct tile_product *products[STAGES_MAX];
    memset(own, 0, sizeof own);
    int count = (int)cpu_get_u32(r);
    cpu_check(
        r, count > 1 && count <= STAGES_MAX && step->in_count == 1 + count * OPERANDS && step->out_count == 1,
        "a step has other operands");
    for (int i = 0; i < count && !cpu_failed(r); i++) {
        const int *in = step->in + 1 + i * OPERANDS;
        products[i] = &own[i];
        own[i].residual = in[L_RESIDUAL];
        tile_product_restore(r, &own[i]);
        if (!cpu_failed(r) && check_stage(r, plan, in, &own[i], i == 0) && i > 0)
            cpu_check(r, follows(&own[i - 1], &own[i]), "a product does not follow the one before");
    }
    if (cpu_failed(r) ||
        !cpu_slot_holds(r, plan, step->in[0], value_bytes(own[0].in, &own[0], own[0].in_channels)) ||
        !cpu_slot_holds(r, plan, step->out[0],
                        value_bytes(own[count - 1].out, &own[count - 1], own[count - 1].out_channels)))
        return cpu_reader_status(r, err);
    struct lines *l = lines_new(plan, products, count);
    if (!l)
        return mlo_error_nomem(err);
    step->data = l;
    for (int i = 0; i < count && !cpu_failed(r); i++) {
        const struct tiling *s = l->stages[i].tiling;
        if (!s)
            continue;
        plan->product_cycles += s->cycles;
        const int *in = step->in + 1 + i * OPERANDS;
        if (cpu_slot_holds(r, plan, in[L_WEIGHTS], tile_panels_bytes(&s->panels)))
            cpu_slot_holds(r, plan, in[L_BIAS], s->panels.groups * s->panels.padded * sizeof(float));
    }
    cpu_check(r, cpu_product(l->buffer_bytes, plan->threads, 1) <= plan->scratch_bytes,
              "lines do not fit the scratch memory");
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_lines_class = {.name = "lines",
                                                .run = lines_run,
                                                .free_data = lines_free,
                                                .id = "lines",
                                                .save = lines_save,
                                                .restore = lines_restore};
