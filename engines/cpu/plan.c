/* Building blocks of plans: slots, steps, and the memory plan. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/cpu_impl.h"

void *cpu_aligned(size_t size_bytes)
{
    void *p = NULL;
    size_t size = (size_bytes + 127) & ~(size_t)63; /* one vector may be read beyond the end */
    if (size < size_bytes || posix_memalign(&p, 64, size) != 0)
        return NULL;
    memset(p, 0, size);
    return p;
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

/* Arenas do not give memory back, so arrays grow by doubling into fresh blocks. */
static void *grow(struct mlo_arena *arena, void *old, int count, int *cap, size_t size)
{
    if (count < *cap)
        return old;
    int more = *cap ? *cap * 2 : 64;
    void *fresh = mlo_arena_calloc(arena, (size_t)more, size);
    if (!fresh)
        return NULL;
    if (count)
        memcpy(fresh, old, (size_t)count * size);
    *cap = more;
    return fresh;
}

int cpu_slot_new(struct mlo_plan *plan, enum cpu_slot_kind kind, size_t size_bytes)
{
    struct cpu_slot *slots = grow(plan->arena, plan->slots, plan->slot_count, &plan->slot_cap, sizeof *slots);
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

struct cpu_step *cpu_step_new(struct mlo_plan *plan, const struct cpu_step_class *cls,
                              const struct mlo_node *node, int in_count, int out_count)
{
    struct cpu_step *steps = grow(plan->arena, plan->steps, plan->step_count, &plan->step_cap, sizeof *steps);
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

/* --- interpreted nodes ---------------------------------------------------------------------------- */

/* What a node's subgraphs read of the graph around it. */
struct captured {
    struct mlo_value **values;
    int count;
};

struct eval_state {
    struct mlo_eval scope;     /* holds what is captured, for a node with subgraphs */
    struct mlo_tensor *values; /* inputs, then outputs */
    const struct mlo_tensor **in;
    struct mlo_tensor **out;
};

static void eval_unload(void *state)
{
    struct eval_state *s = state;
    if (!s)
        return;
    if (s->scope.graph)
        mlo_eval_clear(&s->scope);
    free(s->values);
    free(s->in);
    free(s->out);
    free(s);
}

static enum mlo_status eval_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                 struct mlo_error *err)
{
    MLO_UNUSED(program);
    struct eval_state *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    s->values = calloc((size_t)(step->in_count + step->out_count) + 1, sizeof *s->values);
    s->in = calloc((size_t)step->in_count + 1, sizeof(const struct mlo_tensor *));
    s->out = calloc((size_t)step->out_count + 1, sizeof(struct mlo_tensor *));
    if (!s->values || !s->in || !s->out) {
        eval_unload(s);
        return mlo_error_nomem(err);
    }
    if (step->data) {
        enum mlo_status status = mlo_eval_init(&s->scope, step->node->graph, NULL, err);
        if (status != MLO_OK) {
            eval_unload(s);
            return status;
        }
    }
    *state = s;
    return MLO_OK;
}

/* The value's content, borrowed. */
static const struct mlo_tensor *content(struct mlo_program *program, const struct mlo_value *v, int slot,
                                        struct mlo_tensor *t)
{
    if (v->constant)
        return v->constant;
    if (program->plan->slots[slot].kind == CPU_SLOT_TENSOR && !cpu_value_bytes(v, &t->size_bytes)) {
        *t = program->tensors[slot];
        t->owned = false;
    } else {
        *t = (struct mlo_tensor){.dtype = v->type.dtype, .rank = v->type.rank, .data = program->at[slot]};
        cpu_value_dims(v, t->dims, NULL);
        cpu_value_bytes(v, &t->size_bytes);
    }
    return t;
}

/* Later steps trust the shape that is known at compile time, which a file may have stated for a node whose
 * shape depends on data. */
static enum mlo_status check_result(const struct mlo_value *v, const struct mlo_tensor *t,
                                    struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    char got[256], want[256];
    bool fits = v->type.dtype == MLO_DTYPE_NONE || v->type.dtype == t->dtype;
    if (fits && cpu_value_dims(v, dims, NULL))
        fits = t->rank == v->type.rank &&
               (!t->rank || memcmp(dims, t->dims, (size_t)t->rank * sizeof *dims) == 0);
    return fits ? MLO_OK
                : mlo_error_set(err, MLO_EFORMAT, "output '%.120s' is stated to be %.200s, but is %.200s",
                                v->name, mlo_type_describe(&v->type, want, sizeof want),
                                mlo_tensor_describe(t, got, sizeof got));
}

static enum mlo_status eval_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    struct eval_state *s = state;
    const struct mlo_node *node = step->node;
    const struct captured *captured = step->data;
    for (int i = 0; i < node->input_count; i++)
        s->in[i] = node->inputs[i] ? content(program, node->inputs[i], step->in[i], &s->values[i]) : NULL;
    for (int i = 0; captured && i < captured->count; i++) {
        struct mlo_tensor t;
        mlo_eval_feed(&s->scope, captured->values[i],
                      content(program, captured->values[i], step->in[node->input_count + i], &t));
    }
    s->scope.trips_left = MLO_EVAL_MAX_TRIPS;
    for (int i = 0; i < node->output_count; i++) {
        s->out[i] = node->outputs[i] ? &program->tensors[step->out[i]] : NULL;
        if (s->out[i])
            mlo_tensor_clear(s->out[i]);
    }
    enum mlo_status status =
        mlo_node_eval_in(node, s->in, (struct mlo_tensor *const *)s->out, captured ? &s->scope : NULL, err);
    if (captured)
        mlo_eval_drop(&s->scope);
    for (int i = 0; i < node->output_count; i++) {
        if (s->out[i])
            program->at[step->out[i]] = s->out[i]->data;
        if (s->out[i] && status == MLO_OK)
            status = check_result(node->outputs[i], s->out[i], err);
    }
    return status;
}

static const struct cpu_step_class eval_class = {
    .name = "reference", .load = eval_load, .run = eval_run, .unload = eval_unload};

static const char *precision_of(const struct mlo_node *node)
{
    const struct mlo_value *v = node->output_count ? node->outputs[0] : NULL;
    return !v || v->type.dtype == MLO_FLOAT32 ? "f32" : mlo_dtype_name(v->type.dtype);
}

static struct captured *capture(struct mlo_plan *plan, const struct mlo_node *node)
{
    size_t count = mlo_node_captured(node, NULL, 0);
    struct captured *c = mlo_arena_alloc(plan->arena, sizeof *c);
    if (!c || !(c->values = mlo_arena_calloc(plan->arena, count, sizeof(struct mlo_value *))))
        return NULL;
    c->count = (int)mlo_node_captured(node, c->values, count);
    return c;
}

enum mlo_status cpu_lower_eval(struct mlo_plan *plan, const struct mlo_node *node, struct mlo_error *err)
{
    struct captured *captured = NULL;
    if (node->op && node->op->eval_in && !(captured = capture(plan, node)))
        return mlo_error_nomem(err);
    int ins = node->input_count + (captured ? captured->count : 0);
    struct cpu_step *step = cpu_step_new(plan, &eval_class, node, ins, node->output_count);
    if (!step)
        return mlo_error_nomem(err);
    step->precision = precision_of(node);
    step->data = captured;
    for (int i = 0; i < ins; i++) {
        const struct mlo_value *value =
            i < node->input_count ? node->inputs[i] : captured->values[i - node->input_count];
        if (!value || value->constant)
            continue;
        step->in[i] = cpu_value_plain(plan, value);
        if (step->in[i] < 0) {
            mlo_error_set(err, MLO_EINTERNAL, "value '%s' is read before it is made", value->name);
            mlo_error_where(err, "node '%s' (%s)", node->name, node->op_type);
            return MLO_EINTERNAL;
        }
    }
    for (int i = 0; i < node->output_count; i++) {
        if (!node->outputs[i])
            continue;
        size_t bytes = 0;
        cpu_value_bytes(node->outputs[i], &bytes);
        step->out[i] = cpu_slot_new(plan, CPU_SLOT_TENSOR, bytes);
        if (step->out[i] < 0)
            return mlo_error_nomem(err);
        plan->values[node->outputs[i]->index].slot[CPU_PLAIN] = step->out[i];
    }
    return MLO_OK;
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

void cpu_plan_memory(struct mlo_plan *plan)
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
    for (size_t i = 0; i < plan->observed_count; i++)
        if (plan->observed_slots[i] >= 0)
            plan->slots[plan->observed_slots[i]].last = plan->step_count;
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
