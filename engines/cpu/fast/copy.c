/* Slice, Split and Concat: parts of values copied to where they belong, in the layout in which they are. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

/* One box of elements: from an operand to the result. Strides and offsets in bytes, dims in memory order; the
 * last dim is a run of `run` bytes on both sides. */
struct part {
    int rank;
    int64_t dims[MLO_MAX_RANK], from[MLO_MAX_RANK], to[MLO_MAX_RANK];
    int64_t from_offset, to_offset, run;
};

struct copy_data {
    int count;
    struct part parts[];
};

static inline __attribute__((always_inline)) void runs(char *y, const char *x, int64_t count, int64_t to,
                                                       int64_t from, size_t run)
{
    for (int64_t i = 0; i < count; i++, y += to, x += from)
        memcpy(y, x, run);
}

static void copy_part(const struct part *p, const char *x, char *y)
{
    int64_t at[MLO_MAX_RANK] = {0};
    int inner = p->rank - 1;
    int64_t count = p->rank > 0 ? p->dims[inner] : 1, to = p->rank > 0 ? p->to[inner] : 0,
            from = p->rank > 0 ? p->from[inner] : 0;
    x += p->from_offset;
    y += p->to_offset;
    for (;;) {
        if (p->run == 4)
            runs(y, x, count, to, from, 4);
        else if (p->run == 8)
            runs(y, x, count, to, from, 8);
        else if (p->run == 16)
            runs(y, x, count, to, from, 16);
        else
            runs(y, x, count, to, from, (size_t)p->run);
        int d = inner - 1;
        for (; d >= 0; d--) {
            x += p->from[d];
            y += p->to[d];
            if (++at[d] < p->dims[d])
                break;
            x -= p->from[d] * p->dims[d];
            y -= p->to[d] * p->dims[d];
            at[d] = 0;
        }
        if (d < 0)
            return;
    }
}

static enum mlo_status copy_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct copy_data *d = step->data;
    for (int i = 0; i < d->count; i++)
        copy_part(&d->parts[i], program->at[step->in[i]], program->at[step->out[0]]);
    return MLO_OK;
}

static enum mlo_status copy_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                 struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct copy_data *d = step->data;
    cpu_put_bytes(w, d->parts, (size_t)d->count * sizeof *d->parts);
    return MLO_OK;
}

/* Whether the walk stays inside of [0, SIZE_MAX / 4), and where it ends. */
static size_t walk(const struct part *p, int64_t offset, const int64_t *strides)
{
    int64_t low = offset, high = offset;
    for (int i = 0; i < p->rank; i++) {
        int64_t far;
        if (p->dims[i] < 1 || __builtin_mul_overflow(p->dims[i] - 1, strides[i], &far) ||
            __builtin_add_overflow(far < 0 ? low : high, far, far < 0 ? &low : &high))
            return SIZE_MAX;
    }
    if (low < 0 || p->run < 1 || __builtin_add_overflow(high, p->run, &high))
        return SIZE_MAX;
    return (size_t)high;
}

static enum mlo_status copy_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                    struct mlo_error *err)
{
    size_t count = (size_t)step->in_count;
    struct copy_data *d = calloc(1, sizeof *d + count * sizeof *d->parts);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    cpu_check(r, step->in_count > 0 && step->out_count == 1, "a step has other operands");
    if (!cpu_get_bytes(r, d->parts, count * sizeof *d->parts))
        return cpu_reader_status(r, err);
    d->count = step->in_count;
    for (int i = 0; i < d->count && !cpu_failed(r); i++) {
        const struct part *p = &d->parts[i];
        size_t all = p->run > 0 ? (size_t)p->run : SIZE_MAX;
        if (!cpu_check(r, p->rank >= 0 && p->rank <= MLO_MAX_RANK, "a copy has too many dims"))
            break;
        for (int k = 0; k < p->rank; k++)
            all = p->dims[k] > 0 ? cpu_product(all, (size_t)p->dims[k], 1) : SIZE_MAX;
        if (cpu_slot_holds(r, plan, step->in[i], walk(p, p->from_offset, p->from)) &&
            cpu_slot_holds(r, plan, step->out[0], walk(p, p->to_offset, p->to)))
            cpu_slot_holds(r, plan, step->out[0], all); /* nothing runs for longer than its result is large */
    }
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_copy_class = {.name = "copy",
                                               .run = copy_run,
                                               .free_data = free,
                                               .id = "copy",
                                               .save = copy_save,
                                               .restore = copy_restore};

/* --- lowering ------------------------------------------------------------------------------------------- */

static size_t element_size(const struct mlo_value *value)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(value->type.dtype);
    return info && info->bits >= 8 && info->bits % 8 == 0 && value->type.dtype != MLO_STRING
               ? (size_t)info->bits / 8
               : 0;
}

/* Byte strides of a dense value by its logical dims. */
static void dense(const struct fast_shape *s, enum cpu_layout layout, size_t size, int64_t *strides)
{
    int64_t stride = (int64_t)size;
    bool last = layout == CPU_LAST;
    if (last) {
        strides[1] = stride;
        stride *= s->dims[1];
    }
    for (int i = s->rank - 1; i >= 0; i--)
        if (!last || i != 1) {
            strides[i] = stride;
            stride *= s->dims[i];
        }
}

/* The box in memory order, its densest dims as runs. */
static struct part make_part(const struct fast_shape *box, enum cpu_layout layout, size_t size,
                             const int64_t *from, const int64_t *to, int64_t from_offset, int64_t to_offset)
{
    struct part p = {.from_offset = from_offset, .to_offset = to_offset, .run = (int64_t)size};
    for (int k = 0; k < box->rank; k++) {
        int i = layout == CPU_LAST && k > 0 ? (k == box->rank - 1 ? 1 : k + 1) : k;
        if (box->dims[i] == 1)
            continue;
        int j = p.rank - 1;
        if (j >= 0 && p.from[j] == from[i] * box->dims[i] && p.to[j] == to[i] * box->dims[i]) {
            p.dims[j] *= box->dims[i];
        } else {
            j = p.rank++;
            p.dims[j] = box->dims[i];
        }
        p.from[j] = from[i];
        p.to[j] = to[i];
    }
    if (p.rank > 0 && p.from[p.rank - 1] == p.run && p.to[p.rank - 1] == p.run)
        p.run *= p.dims[--p.rank];
    return p;
}

/* q: the bytes that stand for floats are copied; or NULL. */
static enum mlo_status emit(struct mlo_plan *plan, const struct mlo_node *node, const struct mlo_value *out,
                            enum cpu_layout layout, const struct cpu_qparams *q, const int *slots,
                            const struct part *parts, int count, struct mlo_error *err)
{
    struct copy_data *d = calloc(1, sizeof *d + (size_t)count * sizeof *d->parts);
    int to = fast_new_slot(plan, out, q != NULL);
    struct cpu_step *step = d && to >= 0 ? cpu_step_new(plan, &fast_copy_class, node, count, 1) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    d->count = count;
    memcpy(d->parts, parts, (size_t)count * sizeof *parts);
    step->data = d;
    step->precision = q ? "8 bits" : out->type.dtype == MLO_FLOAT32 ? "f32" : mlo_dtype_name(out->type.dtype);
    memcpy(step->in, slots, (size_t)count * sizeof *slots);
    step->out[0] = to;
    if (q)
        fast_set_q(plan, out, layout, to, q);
    else
        fast_set(plan, out, layout, to);
    return MLO_OK;
}

/* Channels last where a value is only there, and oneDNN can reorder it if need be. */
static enum cpu_layout layout_of(const struct mlo_plan *plan, const struct mlo_value *value)
{
    const struct cpu_value *v = &plan->values[value->index];
    const int *slots = v->slot[CPU_PLAIN] >= 0 || v->slot[CPU_LAST] >= 0 ? v->slot : v->qslot;
    bool last = slots[CPU_LAST] >= 0 && slots[CPU_PLAIN] < 0 && value->type.dtype == MLO_FLOAT32;
    return last && value->type.rank >= 3 && value->type.rank <= 5 ? CPU_LAST : CPU_PLAIN;
}

/* The parameters of the bytes that stand for a value of floats, when its bytes are to be copied; or NULL. */
static const struct cpu_qparams *bytes_of(const struct mlo_plan *plan, const struct mlo_value *value)
{
    return fast_is_quantized(plan, value) ? &plan->values[value->index].q : NULL;
}

static enum mlo_status slot_of(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout,
                               bool quantized, int *slot, struct mlo_error *err)
{
    return quantized ? fast_qvalue(plan, value, layout, slot, err)
                     : fast_value(plan, value, layout, slot, err);
}

/* The constants of one input of Slice, or its attribute before opset 10. */
static bool list_of(const struct mlo_node *node, int input, const char *attr, int64_t *out, size_t *count)
{
    size_t n = 0;
    const int64_t *ints = node->version < 10 ? mlo_node_attr_ints(node, attr, &n) : NULL;
    const struct mlo_value *value = node->version < 10 ? NULL : mlo_node_input(node, input);
    *count = 0;
    if (!ints && !value)
        return true;
    const struct mlo_tensor *t = value ? fast_initializer(value) : NULL;
    if (!ints && (!t || (t->dtype != MLO_INT64 && t->dtype != MLO_INT32)))
        return false;
    *count = ints ? n : mlo_tensor_count(t);
    if (*count > MLO_MAX_RANK)
        return false;
    for (size_t i = 0; i < *count; i++)
        out[i] = ints ? ints[i] : mlo_tensor_get_i64(t, i);
    return true;
}

static enum mlo_status lower_slice(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    struct fast_shape x, y;
    int64_t starts[MLO_MAX_RANK], axes[MLO_MAX_RANK], steps[MLO_MAX_RANK], from[MLO_MAX_RANK],
        to[MLO_MAX_RANK], offset = 0;
    const struct cpu_qparams *q = bytes_of(plan, in);
    size_t size = q ? 1 : element_size(in), n, axis_count, step_count;
    int slot;
    if (!size || !fast_is_available(plan, in) || !fast_shape(in, &x) || !fast_shape(out, &y) ||
        y.count == 0 || !list_of(node, 1, "starts", starts, &n) ||
        !list_of(node, 3, "axes", axes, &axis_count) || !list_of(node, 4, "steps", steps, &step_count) ||
        (axis_count && axis_count != n) || (step_count && step_count != n))
        return MLO_OK;
    enum cpu_layout layout = layout_of(plan, in);
    dense(&x, layout, size, from);
    dense(&y, layout, size, to);
    for (size_t i = 0; i < n; i++) {
        int64_t axis = axis_count ? axes[i] : (int64_t)i, step = step_count ? steps[i] : 1, start = starts[i];
        axis += axis < 0 ? x.rank : 0;
        if (axis < 0 || axis >= x.rank || step == 0)
            return MLO_OK;
        start += start < 0 ? x.dims[axis] : 0;
        start = MLO_MIN(MLO_MAX(start, 0), x.dims[axis] - (step < 0));
        offset += start * from[axis];
        /* a longer step takes one element only, as one of the whole dim does */
        from[axis] *= MLO_MIN(MLO_MAX(step, -x.dims[axis]), x.dims[axis]);
    }
    MLO_TRY(slot_of(plan, in, layout, q != NULL, &slot, err));
    struct part p = make_part(&y, layout, size, from, to, offset, 0);
    MLO_TRY(emit(plan, node, out, layout, q, &slot, &p, 1, err));
    *done = true;
out:
    return status;
}

static enum mlo_status lower_split(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *in = node->inputs[0];
    struct fast_shape x, y;
    const struct cpu_qparams *q = bytes_of(plan, in);
    size_t size = q ? 1 : element_size(in);
    int64_t from[MLO_MAX_RANK], to[MLO_MAX_RANK], at = 0, axis = mlo_node_attr_i(node, "axis", 0);
    int slot;
    if (!size || !fast_is_available(plan, in) || !fast_shape(in, &x) || x.count == 0)
        return MLO_OK;
    axis += axis < 0 ? x.rank : 0;
    for (int i = 0; i < node->output_count; i++)
        if (!node->outputs[i] || !fast_shape(node->outputs[i], &y) || y.count == 0 || y.rank != x.rank)
            return MLO_OK;
    enum cpu_layout layout = layout_of(plan, in);
    dense(&x, layout, size, from);
    MLO_TRY(slot_of(plan, in, layout, q != NULL, &slot, err));
    for (int i = 0; i < node->output_count; i++) {
        fast_shape(node->outputs[i], &y);
        dense(&y, layout, size, to);
        struct part p = make_part(&y, layout, size, from, to, at * from[axis], 0);
        MLO_TRY(emit(plan, node, node->outputs[i], layout, q, &slot, &p, 1, err));
        at += y.dims[axis];
    }
    *done = true;
out:
    return status;
}

static enum mlo_status lower_concat(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *out = node->outputs[0];
    struct fast_shape x, y;
    size_t size = element_size(out), last = 0, plain = 0;
    int64_t from[MLO_MAX_RANK], to[MLO_MAX_RANK], at = 0, axis = mlo_node_attr_i(node, "axis", 1);
    int *slots = NULL, count = 0;
    struct part *parts = NULL;
    const struct cpu_qparams *q = NULL;
    if (!size || !fast_shape(out, &y) || y.count == 0 || !node->inputs[0])
        return MLO_OK;
    axis += axis < 0 ? y.rank : 0;
    q = bytes_of(plan, node->inputs[0]);
    for (int i = 0; i < node->input_count; i++) {
        if (!node->inputs[i] || !fast_is_available(plan, node->inputs[i]) || !fast_shape(node->inputs[i], &x))
            return MLO_OK;
        const struct cpu_qparams *other = bytes_of(plan, node->inputs[i]);
        q = q && other && fast_same_q(q, other) ? q : NULL;
        *(layout_of(plan, node->inputs[i]) == CPU_LAST ? &last : &plain) += x.count;
    }
    enum cpu_layout layout = last > plain ? CPU_LAST : CPU_PLAIN;
    size = q ? 1 : size;
    slots = calloc((size_t)node->input_count + 1, sizeof *slots);
    parts = calloc((size_t)node->input_count + 1, sizeof *parts);
    if (!slots || !parts) {
        status = mlo_error_nomem(err);
        goto out;
    }
    dense(&y, layout, size, to);
    for (int i = 0; i < node->input_count; i++) {
        fast_shape(node->inputs[i], &x);
        if (x.count == 0)
            continue;
        dense(&x, layout, size, from);
        MLO_TRY(slot_of(plan, node->inputs[i], layout, q != NULL, &slots[count], err));
        parts[count++] = make_part(&x, layout, size, from, to, 0, at * to[axis]);
        at += x.dims[axis];
    }
    MLO_TRY(emit(plan, node, out, layout, q, slots, parts, count, err));
    *done = true;
out:
    free(slots);
    free(parts);
    return status;
}

enum mlo_status fast_lower_copy(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    if (mlo_node_is(node, "Slice"))
        return lower_slice(plan, node, done, err);
    if (mlo_node_is(node, "Split"))
        return lower_split(plan, node, done, err);
    return mlo_node_is(node, "Concat") ? lower_concat(plan, node, done, err) : MLO_OK;
}
