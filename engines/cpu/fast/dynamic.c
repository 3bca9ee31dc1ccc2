/* Dynamic quantization: rows are brought to bytes by the range that they have, and multiplied with constant
 * 8-bit weights; integer sums are exact. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/wonly_impl.h"
#include "engines/cpu/image_impl.h"

enum { GRAIN = 32768, MAX_DEPTH = 65536, PANELS_AT_ONCE = 8, MIN_PANELS = 4 };

/* --- DynamicQuantizeLinear --------------------------------------------------------------------------------
 */

struct dynamic {
    const struct wonly_kernels *kernels;
    size_t count;
    unsigned threads;
};

struct range {
    float low, high;
    char apart[56]; /* one cache line each */
};

struct dynamic_call {
    const struct dynamic *d;
    const float *x;
    uint8_t *y;
    struct range *ranges; /* by worker */
    float scale, zero;
};

static void range_of(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct dynamic_call *c = arg;
    struct range *r = &c->ranges[worker];
    c->d->kernels->range(c->x + begin, end - begin, &r->low, &r->high);
}

static void quantize_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct dynamic_call *c = arg;
    c->d->kernels->quantize(c->x + begin, end - begin, c->scale, c->zero, c->y + begin);
}

static enum mlo_status dynamic_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                    struct mlo_error *err)
{
    MLO_UNUSED(program);
    const struct dynamic *d = step->data;
    *state = calloc(d->threads, sizeof(struct range));
    return *state ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status dynamic_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                   struct mlo_error *err)
{
    MLO_UNUSED(err);
    const struct dynamic *d = step->data;
    struct dynamic_call c = {
        .d = d, .x = program->at[step->in[0]], .y = program->at[step->out[0]], .ranges = state};
    float low = 0.0f, high = 0.0f; /* the range includes 0 */
    memset(c.ranges, 0, d->threads * sizeof *c.ranges);
    mlo_pool_run(program->pool, d->count, GRAIN, range_of, &c);
    for (unsigned i = 0; i < d->threads; i++) {
        low = fminf(low, c.ranges[i].low);
        high = fmaxf(high, c.ranges[i].high);
    }
    c.scale = (high - low) / 255.0f;
    if (c.scale > 0.0f) {
        float q = rintf(-low / c.scale);
        c.zero = q > 255.0f ? 255.0f : q > 0.0f ? q : 0.0f; /* 0 for infinity / infinity */
        mlo_pool_run(program->pool, d->count, GRAIN, quantize_range, &c);
    } else {
        memset(c.y, 0, d->count);
    }
    *(float *)program->at[step->out[1]] = c.scale;
    *(uint8_t *)program->at[step->out[2]] = (uint8_t)c.zero;
    return MLO_OK;
}

static enum mlo_status dynamic_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                    struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    cpu_put_u64(w, ((const struct dynamic *)step->data)->count);
    return MLO_OK;
}

static enum mlo_status dynamic_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                       struct mlo_error *err)
{
    struct dynamic *d = calloc(1, sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    *d = (struct dynamic){wonly_kernels_for(plan->isa), cpu_get_u64(r), plan->threads};
    if (cpu_check(r, step->in_count == 1 && step->out_count == 3 && d->threads,
                  "a step has other operands")) {
        cpu_slot_holds(r, plan, step->in[0], cpu_product(d->count, 4, 1));
        cpu_slot_holds(r, plan, step->out[0], d->count);
        cpu_slot_holds(r, plan, step->out[1], 4);
        cpu_slot_holds(r, plan, step->out[2], 1);
    }
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_dynamic_class = {.name = "dynamic-quantize",
                                                  .load = dynamic_load,
                                                  .run = dynamic_run,
                                                  .unload = free,
                                                  .free_data = free,
                                                  .id = "dynamic-quantize",
                                                  .save = dynamic_save,
                                                  .restore = dynamic_restore};

enum mlo_status fast_lower_dynamic_quantize(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape s;
    int from;
    if (!mlo_node_is(node, "DynamicQuantizeLinear") || node->inputs[0]->constant ||
        node->inputs[0]->type.dtype != MLO_FLOAT32 || !fast_shape(node->inputs[0], &s) || !node->outputs[0] ||
        !node->outputs[1] || !node->outputs[2])
        return MLO_OK;
    enum cpu_layout layout = fast_layout(plan, node->inputs[0], false);
    MLO_TRY(fast_value(plan, node->inputs[0], layout, &from, err));
    int to[3];
    bool ok = true;
    for (int i = 0; i < 3; i++)
        ok &= (to[i] = fast_new_slot(plan, node->outputs[i], false)) >= 0;
    struct dynamic *d = calloc(1, sizeof *d);
    struct cpu_step *step = d && ok ? cpu_step_new(plan, &fast_dynamic_class, node, 1, 3) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    *d = (struct dynamic){wonly_kernels_for(plan->isa), s.count, plan->threads};
    step->data = d;
    step->precision = "dynamic int8";
    step->in[0] = from;
    for (int i = 0; i < 3; i++) {
        step->out[i] = to[i];
        fast_set(plan, node->outputs[i], i ? CPU_PLAIN : layout, to[i]);
    }
    *done = true;
out:
    return status;
}

/* --- MatMulInteger, ConvInteger and MatMulIntegerToFloat
 * ----------------------------------------------------------------
 */

enum { IN_X, IN_SCALE, IN_ZERO, IN_W, IN_W_SCALE, IN_W_SUM, IN_BY_SUM, IN_BIAS, INS };

struct integer {
    const struct wonly_kernels *kernels;
    struct wonly_weights w;
    size_t m;
    int32_t is_signed; /* x is int8 */
    int32_t to_float;
    size_t group_rows, groups, group_bytes;
};

struct integer_call {
    const struct integer *p;
    const uint8_t *x, *w;
    const float *w_scale, *bias;
    const int32_t *w_sum, *by_sum;
    int32_t minus; /* what all bytes of a row have too much or too little */
    float scale;
    char *groups, *y;
};

static size_t panels_of(const struct integer *p)
{
    return (p->w.n + WONLY_COLUMNS - 1) / WONLY_COLUMNS;
}

static size_t arrange(struct integer *p)
{
    size_t count = (p->m + (size_t)p->kernels->exact_rows - 1) / (size_t)p->kernels->exact_rows;
    p->group_rows = (p->m + count - 1) / count;
    p->groups = (p->m + p->group_rows - 1) / p->group_rows;
    p->group_bytes = (64 + p->w.block * p->group_rows + p->group_rows * 12 + 63) & ~(size_t)63;
    return p->group_bytes * p->groups;
}

static struct wonly_rows *rows_of(const struct integer_call *c, size_t group, size_t *rows)
{
    const struct integer *p = c->p;
    *rows = MLO_MIN(p->m - group * p->group_rows, p->group_rows);
    return (struct wonly_rows *)(void *)(c->groups + group * p->group_bytes);
}

static void fix_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct integer_call *c = arg;
    const struct integer *p = c->p;
    for (size_t g = begin; g < end; g++) {
        size_t rows;
        struct wonly_rows *r = rows_of(c, g, &rows);
        r->x = (int32_t *)(void *)((char *)r + 64);
        r->init = r->x + p->w.block / 4 * rows;
        r->scale = (float *)(r->init + rows);
        r->sum = r->scale + rows;
        p->kernels->fix_bytes(c->x + g * p->group_rows * p->w.k, p->w.k, rows, p->w.k, p->w.block,
                              p->is_signed ? 0 : 128, r);
        for (size_t i = 0; i < rows; i++)
            r->scale[i] = c->scale;
    }
}

static void product_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct integer_call *c = arg;
    const struct integer *p = c->p;
    for (size_t from = begin; from < end; from += PANELS_AT_ONCE)
        for (size_t g = 0; g < p->groups; g++) {
            size_t rows, to = MLO_MIN(from + PANELS_AT_ONCE, end);
            const struct wonly_rows *x = rows_of(c, g, &rows);
            for (size_t panel = from; panel < to; panel++) {
                int32_t init[WONLY_COLUMNS];
                size_t at = panel * WONLY_COLUMNS;
                char *y = c->y + (g * p->group_rows * p->w.n + at) * 4;
                for (int j = 0; j < WONLY_COLUMNS; j++)
                    init[j] = (int32_t)((uint32_t)c->minus * (uint32_t)c->w_sum[at + (size_t)j]);
                struct wonly_tile t = {.w = c->w + at * p->w.block,
                                       .w_scale = c->w_scale ? c->w_scale + at : NULL,
                                       .block = p->w.block,
                                       .blocks = 1,
                                       .x = x,
                                       .bias = c->bias ? c->bias + at : NULL,
                                       .y = p->to_float ? (float *)(void *)y : NULL,
                                       .yi = p->to_float ? NULL : (int32_t *)(void *)y,
                                       .y_stride = p->w.n,
                                       .columns = MLO_MIN(p->w.n - at, (size_t)WONLY_COLUMNS),
                                       .column_init = init,
                                       .column_by_sum = c->by_sum ? c->by_sum + at : NULL};
                p->kernels->exact[rows - 1](&t);
            }
        }
}

static const void *operand(const struct mlo_program *program, const struct cpu_step *step, int i)
{
    return step->in[i] >= 0 ? program->at[step->in[i]] : NULL;
}

static enum mlo_status integer_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                   struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct integer *p = step->data;
    const float *scale = operand(program, step, IN_SCALE);
    const void *zero = operand(program, step, IN_ZERO);
    int z = !zero ? 0 : p->is_signed ? *(const int8_t *)zero : *(const uint8_t *)zero;
    struct integer_call c = {.p = p,
                             .x = operand(program, step, IN_X),
                             .w = operand(program, step, IN_W),
                             .w_scale = operand(program, step, IN_W_SCALE),
                             .w_sum = operand(program, step, IN_W_SUM),
                             .by_sum = operand(program, step, IN_BY_SUM),
                             .bias = operand(program, step, IN_BIAS),
                             .minus = (p->is_signed ? 0 : 128) - z,
                             .scale = scale ? *scale : 1.0f,
                             .groups = program->scratch,
                             .y = program->at[step->out[0]]};
    mlo_pool_run(program->pool, p->groups, p->groups > 1 ? 1 : 2, fix_range, &c);
    mlo_pool_run(program->pool, panels_of(p), MIN_PANELS, product_range, &c);
    return MLO_OK;
}

static enum mlo_status integer_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                    struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct integer *p = step->data;
    cpu_put_u64(w, p->w.n);
    cpu_put_u64(w, p->w.k);
    cpu_put_u64(w, p->m);
    cpu_put_i32(w, p->is_signed);
    cpu_put_i32(w, p->to_float);
    return MLO_OK;
}

static size_t packed_depth(size_t k)
{
    return (k + WONLY_GROUP - 1) / WONLY_GROUP * WONLY_GROUP;
}

static enum mlo_status integer_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                       struct mlo_error *err)
{
    struct integer *p = calloc(1, sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    step->data = p;
    p->kernels = wonly_kernels_for(plan->isa);
    p->w = (struct wonly_weights){.bits = 8, .blocks = 1};
    p->w.n = cpu_get_u64(r);
    p->w.k = cpu_get_u64(r);
    p->m = cpu_get_u64(r);
    p->is_signed = cpu_get_i32(r);
    p->to_float = cpu_get_i32(r);
    if (!cpu_check(r,
                   step->in_count == INS && step->out_count == 1 && p->w.n >= 1 && p->w.n <= 1 << 28 &&
                       p->w.k >= 1 && p->w.k <= MAX_DEPTH && p->m >= 1 && p->m <= 1 << 28,
                   "an integer product has impossible sizes"))
        return cpu_reader_status(r, err);
    p->w.block = packed_depth(p->w.k);
    size_t columns = panels_of(p) * WONLY_COLUMNS, optional[INS] = {0};
    optional[IN_SCALE] = 4;
    optional[IN_ZERO] = 1;
    optional[IN_BY_SUM] = optional[IN_BIAS] = columns * 4;
    cpu_check(r, arrange(p) <= plan->scratch_bytes, "a step needs more scratch memory");
    for (int i = 0; i < INS && !cpu_failed(r); i++)
        if (optional[i] && step->in[i] >= 0)
            cpu_slot_holds(r, plan, step->in[i], optional[i]);
    if (!cpu_failed(r) && cpu_slot_holds(r, plan, step->in[IN_X], cpu_product(p->m, p->w.k, 1)) &&
        cpu_slot_holds(r, plan, step->in[IN_W], cpu_product(columns, p->w.block, 1)) &&
        cpu_slot_holds(r, plan, step->in[IN_W_SUM], columns * 4) &&
        (!p->to_float || cpu_slot_holds(r, plan, step->in[IN_W_SCALE], columns * 4)))
        cpu_slot_holds(r, plan, step->out[0], cpu_product(p->m, p->w.n, 4));
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_integer_class = {.name = "integer-product",
                                                  .run = integer_run,
                                                  .free_data = free,
                                                  .id = "integer-product",
                                                  .save = integer_save,
                                                  .restore = integer_restore};

/* --- lowering
 * ----------------------------------------------------------------------------------------------- */

/* Where the operands are; -1: there is none. */
struct form {
    int a_scale, b_scale, a_zero, b_zero, bias;
};
static const struct form integer_form = {-1, -1, 2, 3, -1}, float_form = {2, 3, 4, 5, 6};

static unsigned number(const struct wonly_source *s, size_t j, size_t k)
{
    const uint8_t *q = s->q->data;
    return s->q->dtype == MLO_INT8 ? q[k * s->n + j] ^ 0x80u : q[k * s->n + j];
}

/* Of [column][channel][tap]; rows have [tap][channel]. */
static unsigned number_of_conv(const struct wonly_source *s, size_t j, size_t k)
{
    size_t channels = (size_t)s->q->dims[1], taps = s->k / channels;
    uint8_t q = ((const uint8_t *)s->q->data)[(j * channels + k % channels) * taps + k / channels];
    return s->q->dtype == MLO_INT8 ? q ^ 0x80u : q;
}

static const struct mlo_value *in_of(const struct mlo_node *node, int i)
{
    return i < 0 ? NULL : mlo_node_input(node, i);
}

/* Absent, or constant of one element or one for each column. */
static bool is_list(const struct mlo_node *node, int i, size_t n)
{
    const struct mlo_value *v = in_of(node, i);
    return !v || (v->constant && (mlo_tensor_count(v->constant) == 1 || mlo_tensor_count(v->constant) == n));
}

static bool is_single(const struct mlo_node *node, int i)
{
    const struct mlo_value *v = in_of(node, i);
    size_t count;
    return !v || (cpu_value_dims(v, NULL, &count) && count == 1);
}

static double pick(const struct mlo_node *node, int i, size_t j, double fallback)
{
    const struct mlo_value *v = in_of(node, i);
    return !v ? fallback : mlo_tensor_get_f64(v->constant, mlo_tensor_count(v->constant) == 1 ? 0 : j);
}

/* Constants of columns, padded to whole panels. */
struct columns {
    float *scale, *bias;
    int32_t *sum, *by_sum;
};

static bool fill_columns(const struct mlo_node *node, const struct form *f, const struct wonly_source *s,
                         size_t padded, struct columns *c)
{
    bool is_signed = s->q->dtype == MLO_INT8, any = false, bias = in_of(node, f->bias) != NULL;
    *c = (struct columns){cpu_aligned(padded * 4), bias ? cpu_aligned(padded * 4) : NULL,
                          cpu_aligned(padded * 4), cpu_aligned(padded * 4)};
    if (!c->scale || !c->sum || !c->by_sum || (bias && !c->bias))
        return false;
    for (size_t j = 0; j < s->n; j++) {
        int32_t zero = (int32_t)pick(node, f->b_zero, j, 0) + (is_signed ? 128 : 0), sum = 0;
        for (size_t k = 0; k < s->k; k++)
            sum += (int32_t)s->number(s, j, k) - zero;
        c->sum[j] = sum;
        c->by_sum[j] = 128 - zero;
        any |= zero != 128;
        c->scale[j] = (float)pick(node, f->b_scale, j, 1);
        if (bias)
            c->bias[j] = (float)pick(node, f->bias, j, 0);
    }
    if (!any) {
        free(c->by_sum);
        c->by_sum = NULL;
    }
    return true;
}

static int take(struct mlo_plan *plan, void *data, size_t padded, bool *ok)
{
    int slot = data ? cpu_slot_const_take(plan, data, padded * 4) : -1;
    *ok &= !data || slot >= 0;
    return slot;
}

static const struct form *form_of(const struct mlo_node *node)
{
    if (mlo_node_is(node, "MatMulInteger") || mlo_node_is(node, "ConvInteger"))
        return &integer_form;
    return strcmp(node->domain, "com.microsoft") == 0 && strcmp(node->op_type, "MatMulIntegerToFloat") == 0
               ? &float_form
               : NULL;
}

static enum mlo_status bring(struct mlo_plan *plan, const struct mlo_value *v, int *slot,
                             struct mlo_error *err)
{
    if (!v)
        return MLO_OK;
    if (v->constant) {
        *slot = plan->values[v->index].slot[CPU_PLAIN];
        return MLO_OK;
    }
    return fast_value(plan, v, CPU_PLAIN, slot, err);
}

/* The weights as a matrix of k rows and n columns; false where there is none. */
static bool as_matrix(const struct mlo_node *node, const struct fast_shape *x, bool conv,
                      struct wonly_source *s)
{
    size_t count = s->q ? mlo_tensor_count(s->q) : 0;
    if (!count || (conv ? s->q->rank != x->rank || x->rank < 3 || x->rank > 5 : s->q->rank != 2))
        return false;
    s->n = (size_t)s->q->dims[!conv];
    s->k = s->block = count / s->n;
    s->number = conv ? number_of_conv : number;
    s->form = conv ? 4 + (int)s->q->dims[1] : 3; /* equal bytes of other dims are other weights */
    return s->k <= MAX_DEPTH && (conv ? mlo_node_attr_i(node, "group", 1) == 1 && s->q->dims[1] == x->dims[1]
                                      : x->dims[x->rank - 1] == s->q->dims[0]);
}

enum mlo_status fast_lower_integer_product(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                           struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct form *f = form_of(node);
    struct fast_shape x;
    struct integer *p = NULL;
    if (!f)
        return MLO_OK;
    const struct mlo_value *a = node->inputs[0], *y = node->outputs[0];
    struct fast_shape ys;
    struct wonly_source s = {.q = mlo_node_const(node, 1), .bits = 8};
    bool conv = mlo_node_is(node, "ConvInteger");
    if (a->constant || !fast_shape(a, &x) || !fast_shape(y, &ys) || x.rank < 1 || x.count == 0 ||
        ys.count == 0 || !as_matrix(node, &x, conv, &s) ||
        (a->type.dtype != MLO_UINT8 && a->type.dtype != MLO_INT8))
        return MLO_OK;
    if (!is_single(node, f->a_scale) || !is_single(node, f->a_zero) || !is_list(node, f->b_scale, s.n) ||
        !is_list(node, f->b_zero, s.n) || !is_list(node, f->bias, s.n))
        return MLO_OK;
    struct columns c = {0};
    int slots[INS];
    for (int i = 0; i < INS; i++)
        slots[i] = -1;
    p = calloc(1, sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    *p = (struct integer){.kernels = wonly_kernels_for(plan->isa),
                          .w = {.bits = 8, .n = s.n, .k = s.k, .block = packed_depth(s.k), .blocks = 1},
                          .m = ys.count / s.n,
                          .is_signed = a->type.dtype == MLO_INT8,
                          .to_float = f == &float_form};
    size_t padded = panels_of(p) * WONLY_COLUMNS;
    bool ok = fill_columns(node, f, &s, padded, &c);
    slots[IN_W_SCALE] = take(plan, c.scale, padded, &ok);
    slots[IN_BIAS] = take(plan, c.bias, padded, &ok);
    slots[IN_W_SUM] = take(plan, c.sum, padded, &ok);
    slots[IN_BY_SUM] = take(plan, c.by_sum, padded, &ok);
    ok = ok && wonly_pack_data(plan, &s, &p->w);
    int to = ok ? fast_new_slot(plan, y, false) : -1;
    if (to < 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    slots[IN_W] = p->w.data;
    MLO_TRY(bring(plan, in_of(node, f->a_scale), &slots[IN_SCALE], err));
    MLO_TRY(bring(plan, in_of(node, f->a_zero), &slots[IN_ZERO], err));
    MLO_TRY(fast_value(plan, a, conv ? CPU_LAST : CPU_PLAIN, &slots[IN_X], err));
    if (conv)
        MLO_TRY(fast_emit_unfold(plan, node, slots[IN_X], slots[IN_ZERO], &slots[IN_X], err));
    struct cpu_step *step = cpu_step_new(plan, &fast_integer_class, node, INS, 1);
    if (!step) {
        status = mlo_error_nomem(err);
        goto out;
    }
    plan->scratch_bytes = MLO_MAX(plan->scratch_bytes, arrange(p));
    step->data = p;
    p = NULL;
    step->precision = f == &float_form ? "dynamic int8" : "int8";
    memcpy(step->in, slots, sizeof slots);
    step->out[0] = to;
    fast_set(plan, y, conv ? CPU_LAST : CPU_PLAIN, to);
    *done = true;
out:
    free(p);
    return status;
}
