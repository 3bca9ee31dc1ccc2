/* Where values are: layouts, quantized forms, and constants behind DequantizeLinear. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

bool fast_shape(const struct mlo_value *value, struct fast_shape *out)
{
    out->rank = value->type.rank;
    return cpu_value_dims(value, out->dims, &out->count);
}

/* Channels last is the same bytes as row-major: no channels or no pixels to exchange. */
static bool layouts_equal(const struct fast_shape *s)
{
    if (s->rank < 3 || s->rank > 5)
        return true;
    int64_t pixels = 1;
    for (int i = 2; i < s->rank; i++)
        pixels *= s->dims[i];
    return s->dims[1] == 1 || pixels == 1;
}

static void set(const struct mlo_value *value, enum cpu_layout layout, int slot, int slots[CPU_LAYOUTS])
{
    struct fast_shape s;
    slots[layout] = slot;
    if (!fast_shape(value, &s))
        return;
    if (layouts_equal(&s))
        slots[CPU_PLAIN] = slots[CPU_LAST] = slot;
}

void fast_set(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout, int slot)
{
    set(value, layout, slot, plan->values[value->index].slot);
}

void fast_set_q(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout, int slot,
                const struct cpu_qparams *q)
{
    plan->values[value->index].q = *q;
    set(value, layout, slot, plan->values[value->index].qslot);
}

static bool any(const int slots[CPU_LAYOUTS])
{
    return slots[CPU_PLAIN] >= 0 || slots[CPU_LAST] >= 0;
}

bool fast_is_quantized(const struct mlo_plan *plan, const struct mlo_value *value)
{
    return any(plan->values[value->index].qslot);
}

bool fast_is_available(const struct mlo_plan *plan, const struct mlo_value *value)
{
    return any(plan->values[value->index].slot) || fast_is_quantized(plan, value);
}

enum cpu_layout fast_layout(const struct mlo_plan *plan, const struct mlo_value *value, bool quantized)
{
    const struct cpu_value *v = &plan->values[value->index];
    const int *slots = quantized || !any(v->slot) ? v->qslot : v->slot;
    return slots[CPU_LAST] >= 0 ? CPU_LAST : CPU_PLAIN;
}

int fast_new_slot(struct mlo_plan *plan, const struct mlo_value *value, bool quantized)
{
    struct fast_shape s;
    size_t bytes;
    if (!fast_shape(value, &s) || !cpu_value_bytes(value, &bytes))
        return -1;
    return cpu_slot_new(plan, CPU_SLOT_ARENA, quantized ? s.count : bytes);
}

enum { INTERLEAVE_MAX = 4 };

/* Emits a copy of `from` in the other layout. */
static enum mlo_status reorder(struct mlo_plan *plan, const struct mlo_value *value, dnnl_data_type_t type,
                               int slots[CPU_LAYOUTS], enum cpu_layout to, struct mlo_error *err)
{
    struct fast_shape s;
    dnnl_memory_desc_t a, b;
    dnnl_primitive_desc_t pd = NULL;
    enum cpu_layout from = to == CPU_PLAIN ? CPU_LAST : CPU_PLAIN;
    if (!fast_shape(value, &s))
        return mlo_error_set(err, MLO_EINTERNAL, "value '%s' has no static shape", value->name);
    if (layouts_equal(&s)) {
        slots[to] = slots[from];
        return MLO_OK;
    }
    const bool bytes = type == dnnl_u8 || type == dnnl_s8;
    if (bytes && to == CPU_LAST && s.dims[1] <= INTERLEAVE_MAX && s.count > 0) {
        slots[to] = fast_new_slot(plan, value, true);
        return fast_emit_interleave(plan, slots[from], s.dims[0], (int64_t)s.count / s.dims[0] / s.dims[1],
                                    s.dims[1], slots[to], err);
    }
    const size_t channels = (size_t)s.dims[1],
                 pixels = s.count / MLO_MAX((size_t)(s.dims[0] * s.dims[1]), (size_t)1);
    if (type == dnnl_f32 && fast_turns(channels, pixels)) {
        struct cpu_step *turn;
        int turned = fast_new_slot(plan, value, false);
        if (turned < 0)
            return mlo_error_nomem(err);
        const bool last = to == CPU_LAST;
        slots[to] = turned;
        return fast_emit_transpose(plan, NULL, slots[from], turned, (size_t)s.dims[0],
                                   last ? channels : pixels, last ? pixels : channels, &turn, err);
    }
    dnnl_primitive_attr_t attr = fast_attr();
    if (!fast_engine() || !attr || !fast_md(&a, s.rank, s.dims, type, from) ||
        !fast_md(&b, s.rank, s.dims, type, to) ||
        dnnl_reorder_primitive_desc_create(&pd, &a, fast_engine(), &b, fast_engine(), attr) != dnnl_success) {
        dnnl_primitive_attr_destroy(attr);
        return mlo_error_set(err, MLO_EINTERNAL, "value '%s' cannot be brought into another layout",
                             value->name);
    }
    dnnl_primitive_attr_destroy(attr);
    struct cpu_step *step;
    enum mlo_status status = fast_step(plan, NULL, pd, &step, err);
    if (status != MLO_OK)
        return status;
    int slot = fast_new_slot(plan, value, bytes);
    if (slot < 0)
        return mlo_error_nomem(err);
    fast_reads(step, DNNL_ARG_FROM, slots[from], &a);
    fast_writes(step, DNNL_ARG_TO, slot, &b);
    step->precision = type == dnnl_f32 ? "f32" : "8 bits";
    slots[to] = slot;
    return MLO_OK;
}

enum mlo_status fast_qvalue(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout,
                            int *slot, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cpu_value *v = &plan->values[value->index];
    if (v->qslot[layout] < 0)
        MLO_TRY(reorder(plan, value, fast_dtype(v->q.dtype), v->qslot, layout, err));
    *slot = v->qslot[layout];
out:
    return status;
}

enum mlo_status fast_value(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout,
                           int *slot, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cpu_value *v = &plan->values[value->index];
    if (value->type.rank < 3 || value->type.rank > 5)
        layout = CPU_PLAIN;
    if (!any(v->slot) && !any(v->qslot)) {
        const struct mlo_tensor *t;
        MLO_TRY(fast_const_f32(plan, value, &t, err));
        if (!t) {
            status = mlo_error_set(err, MLO_EINTERNAL, "value '%s' is read before it is made", value->name);
            goto out;
        }
    }
    if (!any(v->slot)) {
        struct fast_shape s;
        enum cpu_layout from = v->qslot[layout] >= 0 ? layout : fast_layout(plan, value, true);
        int to = fast_new_slot(plan, value, false);
        if (to < 0 || !fast_shape(value, &s)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(fast_emit_dequantize(plan, value->producer, v->qslot[from], to, s.count, &v->q, err));
        fast_set(plan, value, from, to);
    }
    if (v->slot[layout] < 0)
        MLO_TRY(reorder(plan, value, fast_dtype(value->type.dtype), v->slot, layout, err));
    *slot = v->slot[layout];
out:
    return status;
}

/* --- quantization parameters ------------------------------------------------------------------------- */

bool fast_qparams(const struct mlo_node *node, struct cpu_qparams *out)
{
    bool q = mlo_node_is(node, "QuantizeLinear");
    const struct mlo_tensor *scale = mlo_node_const(node, 1), *zp = mlo_node_const(node, 2);
    enum mlo_dtype dtype = q ? node->outputs[0]->type.dtype : node->inputs[0]->type.dtype;
    const struct mlo_value *real = q ? node->inputs[0] : node->outputs[0];
    if ((dtype != MLO_UINT8 && dtype != MLO_INT8) || real->type.dtype != MLO_FLOAT32 || !scale ||
        scale->dtype != MLO_FLOAT32 || mlo_tensor_count(scale) != 1 || (mlo_node_input(node, 2) && !zp) ||
        (zp && mlo_tensor_count(zp) != 1) || mlo_node_attr_i(node, "block_size", 0) != 0)
        return false;
    *out = (struct cpu_qparams){.scale = *(const float *)scale->data,
                                .zero_point = zp ? (int32_t)mlo_tensor_get_i64(zp, 0) : 0,
                                .dtype = dtype};
    return isfinite(out->scale) && out->scale > 0.0f;
}

bool fast_same_q(const struct cpu_qparams *a, const struct cpu_qparams *b)
{
    return a->scale == b->scale && a->zero_point == b->zero_point && a->dtype == b->dtype;
}

const struct mlo_tensor *fast_initializer(const struct mlo_value *value)
{
    while (value && !value->constant && value->producer && mlo_node_is(value->producer, "Identity"))
        value = value->producer->inputs[0];
    return value ? value->constant : NULL;
}

enum mlo_status fast_set_constant(struct mlo_plan *plan, const struct mlo_value *value, struct mlo_tensor *t,
                                  struct mlo_error *err)
{
    int slot = cpu_slot_const_take(plan, t->data, t->size_bytes);
    t->owned = false;
    if (slot < 0)
        return mlo_error_nomem(err);
    fast_set(plan, value, CPU_PLAIN, slot);
    return MLO_OK;
}

enum mlo_status fast_const_f32(struct mlo_plan *plan, const struct mlo_value *value,
                               const struct mlo_tensor **out, struct mlo_error *err)
{
    const struct mlo_tensor *initializer = fast_initializer(value);
    *out = initializer && initializer->dtype == MLO_FLOAT32 ? initializer : NULL;
    if (initializer)
        return MLO_OK;
    const struct mlo_node *dq = value->producer;
    if (!dq || !mlo_node_is(dq, "DequantizeLinear"))
        return MLO_OK;
    const struct mlo_tensor *in[3] = {0};
    for (int i = 0; i < dq->input_count && i < 3; i++) {
        in[i] = mlo_node_const(dq, i);
        if (dq->inputs[i] && !in[i])
            return MLO_OK;
    }
    struct mlo_tensor *t = mlo_arena_alloc(plan->arena, sizeof *t);
    if (!t)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_node_eval(dq, in, &t, err);
    if (status != MLO_OK) {
        mlo_tensor_clear(t);
        return status;
    }
    status = fast_set_constant(plan, value, t, err);
    if (status != MLO_OK)
        return status;
    *out = t->dtype == MLO_FLOAT32 ? t : NULL;
    return MLO_OK;
}

bool fast_int8_weights(const struct mlo_value *value, int axis, struct fast_weights *out)
{
    const struct mlo_node *dq = value->producer;
    if (!dq || !mlo_node_is(dq, "DequantizeLinear"))
        return false;
    const struct mlo_tensor *q = mlo_node_const(dq, 0), *scale = mlo_node_const(dq, 1),
                            *zp = mlo_node_const(dq, 2);
    if (!q || q->dtype != MLO_INT8 || !scale || scale->dtype != MLO_FLOAT32 ||
        (mlo_node_input(dq, 2) && !zp) || mlo_node_attr_i(dq, "block_size", 0) != 0)
        return false;
    for (size_t i = 0; zp && i < mlo_tensor_count(zp); i++)
        if (mlo_tensor_get_i64(zp, i) != 0)
            return false;
    *out = (struct fast_weights){q, scale->data, mlo_tensor_count(scale)};
    int64_t given = mlo_node_attr_i(dq, "axis", 1);
    given += given < 0 ? q->rank : 0;
    for (size_t i = 0; i < out->scale_count; i++)
        if (!(out->scales[i] > 0.0f) || !isfinite(out->scales[i]))
            return false;
    return out->scale_count == 1 || (given == axis && (int64_t)out->scale_count == q->dims[axis]);
}

void fast_add_columns(const int8_t *w, size_t columns, size_t rows, size_t column_stride, size_t row_stride,
                      int32_t *sums)
{
    if (column_stride > row_stride) {
        for (size_t o = 0; o < columns; o++)
            for (size_t i = 0; i < rows; i++)
                sums[o] += w[o * column_stride + i * row_stride];
    } else {
        for (size_t i = 0; i < rows; i++)
            for (size_t o = 0; o < columns; o++)
                sums[o] += w[o * column_stride + i * row_stride];
    }
}

bool fast_int8_exact(const struct mlo_plan *plan, const int8_t *w, size_t rows, size_t depth,
                     size_t row_stride, size_t k_stride)
{
    if (plan->isa >= MLO_ISA_AVX512_VNNI)
        return true;
    /* Two products are added at 16 bits: 255 * (|a| + |b|) must stay below 2^15 for any two of a row. */
    for (size_t r = 0; r < rows; r++) {
        int first = 0, second = 0;
        for (size_t k = 0; k < depth; k++) {
            int v = abs(w[r * row_stride + k * k_stride]);
            if (v > first)
                second = first, first = v;
            else if (v > second)
                second = v;
        }
        if (first + second > 128)
            return false;
    }
    return true;
}
