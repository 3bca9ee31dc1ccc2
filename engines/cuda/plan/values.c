/* Where values are, and what brings them there. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

bool lower_dims(const struct mlo_value *value, int64_t dims[MLO_MAX_RANK])
{
    return value->type.rank >= 0 && mlo_type_static(&value->type, dims);
}

size_t lower_count(const struct mlo_value *value)
{
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    return lower_dims(value, dims) && mlo_shape_count(value->type.rank, dims, &count) ? count : 0;
}

bool lower_is_shown(const struct lower *l, const struct mlo_value *value)
{
    for (size_t i = 0; i < l->observed_count; i++)
        if (l->observed[i] == value)
            return true;
    return value->is_output;
}

struct mlo_node *lower_reader(const struct lower *l, const struct mlo_value *value)
{
    struct mlo_node *node = lower_is_shown(l, value) ? NULL : mlo_value_sole_user(value);
    return node && !l->done[node->index] ? node : NULL;
}

const struct mlo_tensor *lower_constant(const struct mlo_value *value)
{
    while (!value->constant && value->producer && mlo_node_is(value->producer, "Identity"))
        value = value->producer->inputs[0];
    return value->constant;
}

bool lower_number(const struct mlo_value *value, double *out)
{
    const struct mlo_tensor *t = value ? lower_constant(value) : NULL;
    if (!t || mlo_tensor_count(t) != 1 || t->dtype == MLO_STRING || mlo_holds_values(t->dtype))
        return false;
    *out = mlo_tensor_get_f64(t, 0);
    return true;
}

enum mlo_status lower_unsupported(const struct mlo_node *node, struct mlo_error *err, const char *fmt, ...)
{
    char why[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    enum mlo_status status =
        mlo_error_set(err, MLO_EUNSUPPORTED, "the cuda engine cannot run %s: %s", node->op_type, why);
    mlo_error_where(err, "node '%s' (%s)", node->name, node->op_type);
    mlo_error_hint(err, "run the model on the cpu engine, or take that node out of it");
    return status;
}

bool lower_is_float(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 || dtype == MLO_FLOAT16 || dtype == MLO_BFLOAT16;
}

bool lower_is_float8(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT8E4M3FN || dtype == MLO_FLOAT8E5M2;
}

bool lower_loads(enum mlo_dtype dtype)
{
    return lower_is_float(dtype) || lower_is_float8(dtype) || dtype == MLO_INT8 || dtype == MLO_UINT8 ||
           dtype == MLO_BOOL || dtype == MLO_INT32 || dtype == MLO_INT64;
}

const char *lower_precision(const struct lower *l, enum mlo_dtype dtype, bool product)
{
    switch (dtype) {
    case MLO_FLOAT16:
        return "f16";
    case MLO_BFLOAT16:
        return "bf16";
    case MLO_INT8:
        return "int8";
    case MLO_FLOAT8E4M3FN:
    case MLO_FLOAT8E5M2:
        return "fp8";
    case MLO_FLOAT32:
        return product && l->tf32 ? "tf32" : "f32";
    default:
        return mlo_dtype_name(dtype);
    }
}

/* --- slots and steps ---------------------------------------------------------------------------------------
 */

int lower_slot(struct lower *l, enum cuda_slot_kind kind, size_t size_bytes)
{
    struct cuda_schedule *s = l->s;
    struct cuda_slot *slots = mlo_arena_grow(l->arena, s->slots, s->slot_count, &s->slot_cap, sizeof *slots);
    if (!slots)
        return -1;
    s->slots = slots;
    slots[s->slot_count] = (struct cuda_slot){
        .kind = kind, .size_bytes = size_bytes, .input = -1, .first = -1, .last = -1, .root = s->slot_count};
    return s->slot_count++;
}

int lower_slot_const(struct lower *l, const void *data, size_t size_bytes)
{
    for (int i = 0; i < l->s->slot_count; i++) {
        const struct cuda_slot *slot = &l->s->slots[i];
        if (slot->kind == CUDA_SLOT_CONST && !slot->is_part && slot->data == data &&
            slot->size_bytes == size_bytes)
            return i;
    }
    int s = lower_slot(l, CUDA_SLOT_CONST, size_bytes);
    if (s >= 0)
        l->s->slots[s].data = data;
    return s;
}

int lower_slot_const_take(struct lower *l, void *data, size_t size_bytes)
{
    int s = data ? lower_slot(l, CUDA_SLOT_CONST, size_bytes) : -1;
    if (s >= 0) {
        l->s->slots[s].data = data;
        l->s->slots[s].owned = true;
    } else {
        free(data);
    }
    return s;
}

int lower_slot_at(struct lower *l, const struct place *place)
{
    if (place->offset == 0)
        return place->slot;
    size_t at = (size_t)place->offset * lower_element(place->dtype);
    for (int i = 0; i < l->s->slot_count; i++) {
        const struct cuda_slot *slot = &l->s->slots[i];
        if (slot->is_part && slot->root == place->slot && slot->part_bytes == at)
            return i;
    }
    const struct cuda_slot whole = l->s->slots[place->slot];
    int s = lower_slot(l, whole.kind, whole.size_bytes - at);
    if (s >= 0) {
        struct cuda_slot *slot = &l->s->slots[s];
        slot->is_part = true;
        slot->part_bytes = at;
        slot->root = place->slot;
        slot->input = whole.input;
        slot->data = whole.data ? (const char *)whole.data + at : NULL;
    }
    return s;
}

struct cuda_step *lower_step(struct lower *l, enum cuda_step_kind kind, const struct mlo_node *node,
                             const char *impl)
{
    struct cuda_schedule *s = l->s;
    struct cuda_step *steps = mlo_arena_grow(l->arena, s->steps, s->step_count, &s->step_cap, sizeof *steps);
    if (!steps)
        return NULL;
    s->steps = steps;
    struct cuda_step *step = &steps[s->step_count++];
    *step = (struct cuda_step){.kind = kind, .node = node, .impl = impl, .precision = "f32", .replaces = -1};
    for (int i = 0; i < CUDA_STEP_SLOTS; i++)
        step->in[i] = step->out[i] = -1;
    return step;
}

enum mlo_status lower_fuse(struct lower *l, struct cuda_step *step, const struct mlo_node *node,
                           struct mlo_error *err)
{
    if (node == step->node)
        return MLO_OK;
    for (int i = 0; i < step->fused_count; i++)
        if (step->fused[i] == node->name)
            return MLO_OK;
    const char **more = mlo_arena_calloc(l->arena, (size_t)step->fused_count + 1, sizeof *more);
    if (!more)
        return mlo_error_nomem(err);
    if (step->fused_count)
        memcpy(more, step->fused, (size_t)step->fused_count * sizeof *more);
    more[step->fused_count++] = node->name;
    step->fused = more;
    return MLO_OK;
}

/* --- places of values
 * ---------------------------------------------------------------------------------------- */

bool lower_is_placed(const struct lower *l, const struct mlo_value *value)
{
    return value->index < l->g->value_count && l->values[value->index].count > 0;
}

void lower_set(struct lower *l, const struct mlo_value *value, const struct place *place)
{
    struct known *k = &l->values[value->index];
    if (k->count < (int)MLO_COUNT(k->at))
        k->at[k->count++] = *place;
}

enum mlo_status lower_place_new(struct lower *l, const struct mlo_value *value, enum want order,
                                struct place *out, struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    if (!lower_dims(value, dims))
        return lower_unsupported(value->producer, err, "the shape of '%s' is not known before it runs",
                                 value->name);
    place_dense(out, value->type.dtype, value->type.rank, dims, order);
    out->slot = lower_slot(l, CUDA_SLOT_ARENA, place_bytes(out));
    return out->slot < 0 ? mlo_error_nomem(err) : MLO_OK;
}

enum mlo_status lower_tensor_place(struct lower *l, const struct mlo_tensor *t, struct place *out,
                                   struct mlo_error *err)
{
    place_dense(out, t->dtype, t->rank, t->dims, WANT_ROWS);
    out->slot = lower_slot_const(l, t->data, t->size_bytes);
    return out->slot < 0 ? mlo_error_nomem(err) : MLO_OK;
}

/* A constant in another order: made here, not by a step. */
static enum mlo_status constant_in(struct lower *l, const struct mlo_tensor *t, enum want order,
                                   struct place *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place from;
    MLO_TRY(lower_tensor_place(l, t, &from, err));
    *out = from;
    if (place_is(&from, order))
        return MLO_OK;
    place_dense(out, t->dtype, t->rank, t->dims, order);
    size_t size = lower_element(t->dtype), count = mlo_tensor_count(t);
    char *data = mlo_engine_aligned(t->size_bytes);
    for (size_t i = 0; data && i < count; i++) {
        size_t rest = i;
        int64_t at = 0;
        for (int k = t->rank - 1; k >= 0; k--) {
            at += (int64_t)(rest % (size_t)t->dims[k]) * out->strides[k];
            rest /= (size_t)t->dims[k];
        }
        memcpy(data + (size_t)at * size, (const char *)t->data + i * size, size);
    }
    out->slot = lower_slot_const_take(l, data, t->size_bytes);
    status = out->slot < 0 ? mlo_error_nomem(err) : MLO_OK;
out:
    return status;
}

bool lower_is_of_constants(const struct lower *l, const struct mlo_value *value)
{
    const struct mlo_node *node = value->producer;
    if (!node || !l->pending[node->index] || node->output_count != 1)
        return false;
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !lower_constant(node->inputs[i]))
            return false;
    return true;
}

/* Weights that are dequantized for a product in floats, and the like: computed now. */
static enum mlo_status evaluate(struct lower *l, const struct mlo_value *value, enum want order,
                                struct place *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *in[FORM_INPUTS] = {NULL};
    const struct mlo_node *node = value->producer;
    struct mlo_tensor *t = mlo_arena_calloc(l->arena, 1, sizeof *t), *outs[] = {t};
    if (!t || node->input_count > FORM_INPUTS)
        return mlo_error_nomem(err);
    for (int i = 0; i < node->input_count; i++)
        in[i] = node->inputs[i] ? lower_constant(node->inputs[i]) : NULL;
    MLO_TRY(mlo_node_eval(node, in, outs, err));
    int slot = lower_slot_const_take(l, t->data, t->size_bytes);
    if (slot < 0)
        return mlo_error_nomem(err);
    t->owned = false; /* the slot's */
    MLO_TRY(constant_in(l, t, order, out, err));
    lower_set(l, value, out);
out:
    return status;
}

static bool find_place(const struct lower *l, const struct mlo_value *value, enum want order,
                       struct place *out)
{
    const struct known *k = &l->values[value->index];
    for (int i = 0; i < k->count; i++)
        if (place_is(&k->at[i], order)) {
            *out = k->at[i];
            return true;
        }
    return false;
}

enum mlo_status lower_demand(struct lower *l, const struct mlo_value *value, enum want order,
                             struct place *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *constant = lower_constant(value);
    const struct mlo_node *node = value->producer    ? value->producer
                                  : value->use_count ? value->uses[0].node
                                                     : NULL;
    struct place from;
    if (find_place(l, value, order, out))
        return MLO_OK;
    if (constant) {
        MLO_TRY(constant_in(l, constant, order, out, err));
        lower_set(l, value, out);
        return MLO_OK;
    }
    if (!lower_is_placed(l, value) && lower_is_of_constants(l, value))
        return evaluate(l, value, order, out, err);
    if (!lower_is_placed(l, value)) {
        if (!value->producer || !l->pending[value->producer->index])
            return mlo_error_set(err, MLO_EINTERNAL, "value '%s' is read before a step makes it",
                                 value->name);
        MLO_TRY(chain_emit(l, value, order, NULL, err));
        if (find_place(l, value, order, out))
            return MLO_OK;
    }
    from = l->values[value->index].at[0];
    MLO_TRY(lower_place_new(l, value, order, out, err));
    MLO_TRY(chain_copy(l, node, &from, out, err));
    lower_set(l, value, out);
out:
    return status;
}

enum mlo_status lower_into(struct lower *l, const struct mlo_value *value, const struct place *to,
                           const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place from;
    if (!lower_is_placed(l, value) && !lower_constant(value) && value->producer &&
        l->pending[value->producer->index])
        return chain_emit(l, value, WANT_ANY, to, err);
    MLO_TRY(lower_demand(l, value, WANT_ANY, &from, err));
    MLO_TRY(chain_copy(l, node, &from, to, err));
out:
    return status;
}
