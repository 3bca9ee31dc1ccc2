/* Building blocks of plans: slots, steps, and the memory plan. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/cpu_impl.h"

void *cpu_aligned(size_t size_bytes)
{
    return mlo_engine_aligned(size_bytes);
}

bool cpu_value_dims(const struct mlo_value *value, int64_t dims[MLO_MAX_RANK], size_t *count)
{
    int64_t own[MLO_MAX_RANK];
    size_t n;
    if (value->type.rank < 0 || !mlo_type_static(&value->type, own) ||
        !mlo_shape_count(value->type.rank, own, &n))
        return false;
    if (dims)
        memcpy(dims, own, sizeof own);
    if (count)
        *count = n;
    return true;
}

bool cpu_value_bytes(const struct mlo_value *value, size_t *bytes)
{
    int64_t dims[MLO_MAX_RANK];
    return cpu_value_dims(value, dims, NULL) &&
           mlo_shape_bytes(value->type.dtype, value->type.rank, dims, bytes);
}

int cpu_slot_new(struct mlo_plan *plan, enum cpu_slot_kind kind, size_t size_bytes)
{
    struct cpu_slot *slots =
        mlo_arena_grow(plan->arena, plan->slots, plan->slot_count, &plan->slot_cap, sizeof *slots);
    if (!slots)
        return -1;
    plan->slots = slots;
    slots[plan->slot_count] = (struct cpu_slot){
        .kind = kind, .size_bytes = size_bytes, .first = -1, .last = -1, .root = plan->slot_count};
    return plan->slot_count++;
}

int cpu_slot_const(struct mlo_plan *plan, const void *data, size_t size_bytes)
{
    int s = cpu_slot_new(plan, CPU_SLOT_CONST, size_bytes);
    if (s >= 0)
        plan->slots[s].data = data;
    return s;
}

int cpu_slot_const_take(struct mlo_plan *plan, void *data, size_t size_bytes)
{
    int s = data ? cpu_slot_const(plan, data, size_bytes) : -1;
    if (s >= 0)
        plan->slots[s].owned = true;
    else
        free(data);
    return s;
}

/* Whether the memory is an initializer's of a model that outlives the plan, so that its address says which.
 * (What a lowering added to the plan's own copy goes with it.) */
static bool is_borrowed(const struct mlo_plan *plan, const void *data)
{
    const struct mlo_graph *g = plan->model->graph;
    for (int i = 0; plan->model->borrows && i < g->value_count; i++) {
        const struct mlo_tensor *c = g->values[i]->constant;
        if (c && !c->owned && c->data == data)
            return true;
    }
    return false;
}

static bool digest_key(const struct mlo_plan *plan, const struct cpu_const_key *key, size_t size_bytes,
                       struct mlo_digest *out)
{
    struct mlo_hasher *hasher = mlo_hasher_new();
    if (!hasher)
        return false;
    bool borrowed = is_borrowed(plan, key->source);
    uint64_t sizes[] = {size_bytes, key->source_bytes, key->params_bytes, borrowed};
    mlo_hasher_update(hasher, key->kind, strlen(key->kind) + 1);
    mlo_hasher_update(hasher, sizes, sizeof sizes);
    mlo_hasher_update(hasher, key->params, key->params_bytes);
    if (borrowed)
        mlo_hasher_update(hasher, &key->source, sizeof key->source);
    else
        mlo_hasher_update(hasher, key->source, key->source_bytes);
    mlo_hasher_final(hasher, out);
    mlo_hasher_free(hasher);
    return true;
}

int cpu_shared_const(struct mlo_plan *plan, const struct cpu_const_key *key, size_t size_bytes,
                     mlo_make_constant_fn *make, void *arg)
{
    struct mlo_digest digest;
    if (!plan->constants) {
        void *data = cpu_aligned(size_bytes);
        if (data && !make(arg, data)) {
            free(data);
            data = NULL;
        }
        return cpu_slot_const_take(plan, data, size_bytes);
    }
    if (!digest_key(plan, key, size_bytes, &digest))
        return -1;
    struct mlo_constant *shared = mlo_constants_get(plan->constants, &digest, size_bytes, make, arg);
    int s = shared ? cpu_slot_const(plan, mlo_constant_data(shared), size_bytes) : -1;
    if (s >= 0)
        plan->slots[s].shared = shared;
    else
        mlo_constant_release(shared);
    return s;
}

struct cpu_step *cpu_step_new(struct mlo_plan *plan, const struct cpu_step_class *cls,
                              const struct mlo_node *node, int in_count, int out_count)
{
    struct cpu_step *steps =
        mlo_arena_grow(plan->arena, plan->steps, plan->step_count, &plan->step_cap, sizeof *steps);
    int *slots = mlo_arena_calloc(plan->arena, (size_t)(in_count + out_count + 1), sizeof *slots);
    if (!steps || !slots)
        return NULL;
    plan->steps = steps;
    memset(slots, 0xff, (size_t)(in_count + out_count + 1) * sizeof *slots);
    struct cpu_step *step = &steps[plan->step_count++];
    *step = (struct cpu_step){.cls = cls,
                              .node = node,
                              .impl = cls->name,
                              .precision = "f32",
                              .in = slots,
                              .out = slots + in_count,
                              .in_count = in_count,
                              .out_count = out_count,
                              .begins_as = -1};
    return step;
}

bool cpu_step_fuse(struct mlo_plan *plan, struct cpu_step *step, const struct mlo_node *node)
{
    const char **more = mlo_arena_calloc(plan->arena, (size_t)step->fused_count + 1, sizeof *more);
    if (!more)
        return false;
    if (step->fused_count)
        memcpy(more, step->fused, (size_t)step->fused_count * sizeof *more);
    more[step->fused_count++] = node->name;
    step->fused = more;
    return true;
}

int cpu_value_plain(const struct mlo_plan *plan, const struct mlo_value *value)
{
    return plan->values[value->index].slot[CPU_PLAIN];
}

bool cpu_is_observed(const struct mlo_plan *plan, const struct mlo_value *value)
{
    for (size_t i = 0; i < plan->observed_count; i++)
        if (plan->observed[i] == value)
            return true;
    return false;
}

/* --- memory --------------------------------------------------------------------------------------- */

static void touch(struct cpu_slot *slot, int step)
{
    if (slot->first < 0)
        slot->first = step;
    slot->last = MLO_MAX(slot->last, step);
}

static int root_of(const struct mlo_plan *plan, int slot)
{
    while (plan->slots[slot].root != slot)
        slot = plan->slots[slot].root;
    return slot;
}

/* A step that starts from a residual sums into its memory when that is read no more. */
static void share_in_place(struct mlo_plan *plan)
{
    for (int i = 0; i < plan->step_count; i++) {
        const struct cpu_step *step = &plan->steps[i];
        if (step->begins_as < 0)
            continue;
        int from = root_of(plan, step->begins_as);
        struct cpu_slot *to = &plan->slots[step->out[0]], *residual = &plan->slots[from];
        bool read_too = false; /* also an ordinary operand of this step */
        for (int k = 0; k < step->in_count; k++)
            read_too |=
                step->in[k] >= 0 && root_of(plan, step->in[k]) == from && step->in[k] != step->begins_as;
        int readers = 0;
        for (int k = 0; k < step->in_count; k++)
            readers += step->in[k] == step->begins_as;
        if (residual->kind != CPU_SLOT_ARENA || residual->last != i || read_too || readers > 1 ||
            residual->size_bytes < to->size_bytes)
            continue;
        to->root = from;
        residual->last = MLO_MAX(residual->last, to->last);
    }
}

/* Greedy by first use: the lowest offset where no live slot is. */
static void place(struct mlo_plan *plan, int s)
{
    struct cpu_slot *slot = &plan->slots[s];
    size_t size = (slot->size_bytes + 127) & ~(size_t)63, at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int o = 0; o < plan->slot_count; o++) {
            const struct cpu_slot *other = &plan->slots[o];
            if (o == s || other->kind != CPU_SLOT_ARENA || other->root != o || other->offset == SIZE_MAX ||
                other->last < slot->first || other->first > slot->last)
                continue;
            size_t end = other->offset + ((other->size_bytes + 127) & ~(size_t)63);
            if (at < end && other->offset < at + size) {
                at = end;
                moved = true;
            }
        }
    }
    slot->offset = at;
    plan->arena_bytes = MLO_MAX(plan->arena_bytes, at + size);
}

void cpu_plan_lifetimes(struct mlo_plan *plan)
{
    for (int i = 0; i < plan->step_count; i++) {
        const struct cpu_step *step = &plan->steps[i];
        for (int k = 0; k < step->in_count; k++)
            if (step->in[k] >= 0)
                touch(&plan->slots[step->in[k]], i);
        for (int k = 0; k < step->out_count; k++)
            if (step->out[k] >= 0)
                touch(&plan->slots[step->out[k]], i);
    }
    for (int i = 0; i < plan->model->graph->output_count; i++)
        if (plan->output_slots[i] >= 0)
            plan->slots[plan->output_slots[i]].last = plan->step_count;
    /* Observed values are shown as soon as they are whole, and kept no longer than their readers want. */
    for (size_t i = 0; i < plan->observed_count; i++) {
        int s = plan->observed_slots[i], behind = -1;
        for (int k = 0; s >= 0 && k < plan->step_count; k++)
            for (int o = 0; o < plan->steps[k].out_count; o++)
                behind = plan->steps[k].out[o] == s ? k : behind;
        plan->observed_behind[i] = behind;
    }
}

void cpu_plan_memory(struct mlo_plan *plan)
{
    cpu_plan_lifetimes(plan);
    share_in_place(plan);
    for (int s = 0; s < plan->slot_count; s++)
        plan->slots[s].offset = SIZE_MAX;
    for (int s = 0; s < plan->slot_count; s++)
        if (plan->slots[s].kind == CPU_SLOT_ARENA && plan->slots[s].root == s && plan->slots[s].first >= 0)
            place(plan, s);
    for (int s = 0; s < plan->slot_count; s++)
        if (plan->slots[s].kind == CPU_SLOT_ARENA)
            plan->slots[s].offset = plan->slots[root_of(plan, s)].offset;
}
