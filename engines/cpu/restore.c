/* A plan out of a mapped file. Everything is checked as if the bytes were hostile: what a step reads and
 * writes lies inside of its slots, slots lie inside of the arena or the file, and a tensor that a reference
 * kernel makes exists before it is read. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/image_fields.h"

enum { SLOTS_MAX = 1 << 20, STEPS_MAX = 1 << 20, ENDS_MAX = 1 << 16, FUSED_MAX = 1 << 12 };
#define BYTES_MAX ((size_t)1 << 40)

struct restorer {
    struct mlo_plan *plan;
    struct cpu_reader r;
    bool *made; /* by slot: an input's, or a tensor that an earlier step made */
};

static void *take(struct restorer *s, size_t count, size_t size)
{
    void *p = mlo_arena_calloc(s->plan->arena, count + 1, size);
    cpu_check(&s->r, p != NULL, "there is no memory for it");
    return p;
}

/* --- the skeleton ------------------------------------------------------------------------------------- */

struct lifted {
    const char *name;
    struct mlo_tensor tensor;
};

static void get_lifted(struct restorer *s, struct lifted *l)
{
    struct mlo_tensor *t = &l->tensor;
    l->name = cpu_get_text(&s->r);
    uint32_t dtype = cpu_get_u32(&s->r), rank = cpu_get_u32(&s->r);
    if (!cpu_check(&s->r, dtype < MLO_DTYPE_COUNT && rank <= MLO_MAX_RANK, "a constant has no type"))
        return;
    t->dtype = (enum mlo_dtype)dtype;
    t->rank = (int)rank;
    for (uint32_t i = 0; i < rank; i++)
        t->dims[i] = cpu_get_i64(&s->r);
    size_t bytes = 0, size = (size_t)cpu_get_u64(&s->r);
    if (cpu_check(&s->r, mlo_shape_bytes(t->dtype, t->rank, t->dims, &bytes) && bytes == size,
                  "a constant's size is not that of its shape"))
        t->data = (void *)(uintptr_t)cpu_get_const(&s->r, size);
    t->size_bytes = size;
}

static void attach(struct restorer *s, const struct lifted *l)
{
    struct mlo_model *model = s->plan->model;
    struct mlo_value *v = mlo_graph_value(model->graph, l->name);
    int64_t dims[MLO_MAX_RANK];
    bool fits = v && !v->constant && !v->producer && v->type.dtype == l->tensor.dtype &&
                v->type.rank == l->tensor.rank && mlo_type_static(&v->type, dims) &&
                memcmp(dims, l->tensor.dims, (size_t)l->tensor.rank * sizeof *dims) == 0;
    if (cpu_check(&s->r, fits, "a constant fits no value of its skeleton") &&
        !(v->constant = mlo_arena_memdup(model->arena, &l->tensor, sizeof l->tensor)))
        cpu_check(&s->r, false, "there is no memory for it");
}

static enum mlo_status get_skeleton(struct restorer *s, struct mlo_error *err)
{
    enum mlo_status status;
    int count = cpu_get_count(&s->r, ENDS_MAX, 24);
    struct lifted *lifted = take(s, (size_t)count, sizeof *lifted);
    for (int i = 0; lifted && i < count; i++)
        get_lifted(s, &lifted[i]);
    size_t size = (size_t)cpu_get_u64(&s->r);
    const void *onnx = cpu_get_run(&s->r, size);
    MLO_TRY(cpu_reader_status(&s->r, err));
    status = mlo_onnx_parse(onnx, size, "the plan's skeleton", &s->plan->model, err);
    if (status == MLO_OK)
        status = mlo_graph_check_supported(s->plan->model->graph, err);
    if (status != MLO_OK)
        goto out;
    for (int i = 0; i < count; i++)
        attach(s, &lifted[i]);
    status = cpu_reader_status(&s->r, err);
out:
    return status;
}

/* --- slots and ends ----------------------------------------------------------------------------------- */

static void get_slots(struct restorer *s)
{
    struct mlo_plan *plan = s->plan;
    int count = cpu_get_count(&s->r, SLOTS_MAX, 4);
    plan->slots = take(s, (size_t)count, sizeof *plan->slots);
    s->made = take(s, (size_t)count, sizeof *s->made);
    if (!plan->slots || !s->made)
        return;
    plan->slot_count = count;
    size_t end = 0;
    for (int i = 0; i < count; i++) {
        struct cpu_slot *slot = &plan->slots[i];
        *slot = (struct cpu_slot){
            .kind = CPU_SLOT_CONST, .first = -1, .last = -1, .root = i, .offset = SIZE_MAX, .input = -1};
        uint32_t kind = cpu_get_u32(&s->r);
        if (kind == CPU_IMAGE_NO_SLOT ||
            !cpu_check(&s->r, kind <= CPU_SLOT_TENSOR, "a slot is of no known kind"))
            continue;
        slot->kind = (enum cpu_slot_kind)kind;
        slot->size_bytes = (size_t)cpu_get_u64(&s->r);
        cpu_check(&s->r, slot->size_bytes <= BYTES_MAX, "a slot is too large");
        if (slot->kind == CPU_SLOT_ARENA) {
            slot->offset = (size_t)cpu_get_u64(&s->r);
            if (cpu_check(&s->r, slot->offset <= BYTES_MAX && slot->offset % 64 == 0,
                          "a slot lies outside of the arena"))
                end = MLO_MAX(end, slot->offset + ((slot->size_bytes + 127) & ~(size_t)63));
        } else if (slot->kind == CPU_SLOT_INPUT) {
            slot->input = cpu_get_i32(&s->r);
        } else if (slot->kind == CPU_SLOT_CONST) {
            slot->data = cpu_get_const(&s->r, slot->size_bytes);
        }
    }
    cpu_check(&s->r, end <= plan->arena_bytes && plan->arena_bytes <= BYTES_MAX, "the arena is too small");
}

/* Only the plan's own inputs stay: the skeleton has more, where a part of the graph is missing. */
static void keep_inputs(struct mlo_plan *plan)
{
    struct mlo_graph *g = plan->model->graph;
    int kept = 0;
    for (int i = 0; i < g->input_count; i++) {
        bool own = false;
        for (int k = 0; k < plan->input_count; k++)
            own |= plan->inputs[k] == g->inputs[i];
        g->inputs[i]->is_input = own;
        if (own)
            g->inputs[kept++] = g->inputs[i];
    }
    g->input_count = kept;
}

/* A tensor is where the caller has it; a sequence is handed to a tensor of the program. */
static bool input_fits(const struct mlo_value *v, const struct cpu_slot *slot, int input)
{
    size_t bytes;
    if (mlo_holds_values(v->type.dtype))
        return slot->kind == CPU_SLOT_TENSOR && slot->size_bytes == 0;
    return slot->kind == CPU_SLOT_INPUT && slot->input == input && cpu_value_bytes(v, &bytes) &&
           bytes == slot->size_bytes;
}

static void get_inputs(struct restorer *s)
{
    struct mlo_plan *plan = s->plan;
    const struct mlo_graph *g = plan->model->graph;
    int count = cpu_get_count(&s->r, ENDS_MAX, 8);
    plan->inputs = take(s, (size_t)count, sizeof(struct mlo_value *));
    plan->values = take(s, (size_t)g->value_count, sizeof *plan->values);
    if (!plan->inputs || !plan->values)
        return;
    memset(plan->values, 0xff, (size_t)g->value_count * sizeof *plan->values);
    for (int i = 0; i < count; i++) {
        struct mlo_value *v = mlo_graph_value(g, cpu_get_text(&s->r));
        int slot = cpu_get_i32(&s->r);
        bool ok = v && v->is_input && !v->constant && slot >= 0 && slot < plan->slot_count &&
                  plan->values[v->index].slot[CPU_PLAIN] < 0 && input_fits(v, &plan->slots[slot], i);
        if (!cpu_check(&s->r, ok && !s->made[slot], "an input fits no slot"))
            return;
        s->made[slot] = true;
        plan->values[v->index].slot[CPU_PLAIN] = slot;
        plan->inputs[plan->input_count++] = v;
    }
    for (int i = 0; i < plan->slot_count; i++)
        cpu_check(&s->r, plan->slots[i].kind != CPU_SLOT_INPUT || s->made[i], "a slot is of no input");
    /* in the order of the graph, as callers give them */
    keep_inputs(plan);
    int at = 0;
    for (int i = 0; i < g->input_count; i++)
        cpu_check(&s->r, at < count && plan->inputs[at] == g->inputs[i] && ++at, "inputs are mixed up");
}

static void get_outputs(struct restorer *s)
{
    struct mlo_plan *plan = s->plan;
    const struct mlo_graph *g = plan->model->graph;
    int count = cpu_get_count(&s->r, ENDS_MAX, 8);
    plan->output_slots = take(s, (size_t)count, sizeof *plan->output_slots);
    plan->observed = take(s, 0, sizeof(struct mlo_value *));
    plan->observed_slots = take(s, 0, sizeof *plan->observed_slots);
    plan->observed_behind = take(s, 0, sizeof *plan->observed_behind);
    cpu_check(&s->r, count == g->output_count, "outputs are missing");
    for (int i = 0; i < count; i++) {
        const char *name = cpu_get_text(&s->r);
        int slot = cpu_get_i32(&s->r);
        if (s->r.refused || !cpu_check(&s->r, strcmp(name, g->outputs[i]->name) == 0, "outputs are mixed up"))
            return;
        plan->output_slots[i] = slot;
        if (!g->outputs[i]->constant)
            cpu_value_fits(&s->r, plan, g->outputs[i], slot);
    }
}

/* --- steps -------------------------------------------------------------------------------------------- */

/* What an interpreted step's node is; other steps only keep its name and op, for people. */
static const struct mlo_node *node_of(struct restorer *s, const char *id, const char *name, const char *op)
{
    const struct mlo_graph *g = s->plan->model->graph;
    if (strcmp(id, "eval") == 0) {
        for (int i = 0; i < g->node_count; i++)
            if (strcmp(g->nodes[i]->name, name) == 0 && strcmp(g->nodes[i]->op_type, op) == 0)
                return g->nodes[i];
        cpu_check(&s->r, false, "a node is not in its skeleton");
        return NULL;
    }
    if (!*op)
        return NULL;
    struct mlo_node *node = take(s, 1, sizeof *node);
    if (node) {
        node->name = name;
        node->op_type = op;
        node->domain = "";
    }
    return node;
}

static int *get_slot_list(struct restorer *s, int *count)
{
    *count = cpu_get_count(&s->r, ENDS_MAX, 4);
    int *list = take(s, (size_t)*count, sizeof *list);
    for (int i = 0; list && i < *count; i++) {
        list[i] = cpu_get_i32(&s->r);
        cpu_check(&s->r, list[i] >= -1 && list[i] < s->plan->slot_count,
                  "a step names a slot that is not there");
    }
    return list;
}

/* A slot with memory when the step runs. */
static bool is_ready(const struct restorer *s, int slot)
{
    const struct cpu_slot *at = &s->plan->slots[slot];
    switch (at->kind) {
    case CPU_SLOT_TENSOR:
        return s->made[slot];
    case CPU_SLOT_ARENA:
        return at->offset != SIZE_MAX;
    case CPU_SLOT_CONST:
        return at->data != NULL || at->size_bytes == 0;
    default:
        return true;
    }
}

static void check_step(struct restorer *s, const struct cpu_step *step)
{
    bool interprets = strcmp(step->cls->id, "eval") == 0;
    const struct mlo_plan *plan = s->plan;
    for (int k = 0; k < step->in_count && !s->r.refused; k++)
        cpu_check(&s->r, step->in[k] < 0 || is_ready(s, step->in[k]), "a step reads what no step made");
    for (int k = 0; k < step->out_count && !s->r.refused; k++) {
        if (step->out[k] < 0)
            continue;
        enum cpu_slot_kind kind = plan->slots[step->out[k]].kind;
        cpu_check(&s->r, kind == (interprets ? CPU_SLOT_TENSOR : CPU_SLOT_ARENA) && !s->made[step->out[k]],
                  "a step writes where it may not");
        s->made[step->out[k]] = interprets;
    }
    int from = step->begins_as;
    if (from < 0 || s->r.refused)
        return;
    cpu_check(&s->r,
              !interprets && from < plan->slot_count && step->out_count > 0 && step->out[0] >= 0 &&
                  is_ready(s, from) && plan->slots[from].size_bytes >= plan->slots[step->out[0]].size_bytes,
              "a step begins with what is not there");
}

static enum mlo_status get_step(struct restorer *s, struct cpu_step *step, struct mlo_error *err)
{
    const char *id = cpu_get_text(&s->r), *name = cpu_get_text(&s->r), *op = cpu_get_text(&s->r);
    *step = (struct cpu_step){.cls = cpu_step_class_find(id)};
    bool known = step->cls != NULL;
    if (known && s->plan->numerics != MLO_NUMERICS_FAST)
        known = strcmp(id, "eval") == 0; /* the other kinds are of the fast numerics */
    if (!cpu_check(&s->r, known, "a step is of no known kind")) {
        step->cls = NULL;
        return cpu_reader_status(&s->r, err);
    }
    step->node = node_of(s, id, name, op);
    step->impl = cpu_get_text(&s->r);
    step->precision = cpu_get_text(&s->r);
    step->fused_count = cpu_get_count(&s->r, FUSED_MAX, 5);
    step->fused = take(s, (size_t)step->fused_count, sizeof *step->fused);
    for (int i = 0; step->fused && i < step->fused_count; i++)
        step->fused[i] = cpu_get_text(&s->r);
    step->in = get_slot_list(s, &step->in_count);
    step->out = get_slot_list(s, &step->out_count);
    step->begins_as = cpu_get_i32(&s->r);
    cpu_check(&s->r, step->begins_as >= -1, "a step begins with what is not there");
    if (!s->r.refused)
        check_step(s, step);
    enum mlo_status status = cpu_reader_status(&s->r, err);
    if (status == MLO_OK && step->cls->restore)
        status = step->cls->restore(s->plan, step, &s->r, err);
    return status;
}

/* The skeleton's values are where steps put them: for an interpreted step's inputs and outputs. */
static enum mlo_status get_steps(struct restorer *s, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_plan *plan = s->plan;
    int count = cpu_get_count(&s->r, STEPS_MAX, 32);
    plan->steps = take(s, (size_t)count, sizeof *plan->steps);
    MLO_TRY(cpu_reader_status(&s->r, err));
    for (int i = 0; i < count; i++) {
        status = get_step(s, &plan->steps[i], err);
        plan->step_count = plan->steps[i].cls ? i + 1 : i;
        if (status != MLO_OK)
            goto out;
    }
    const struct mlo_graph *g = plan->model->graph;
    for (int i = 0; i < g->output_count; i++)
        if (plan->output_slots[i] >= 0 && !g->outputs[i]->constant)
            cpu_check(&s->r, is_ready(s, plan->output_slots[i]), "an output is made by no step");
    cpu_check(&s->r, s->r.at == s->r.fields_bytes, "there is more behind its end");
    status = cpu_reader_status(&s->r, err);
out:
    return status;
}

static enum mlo_status get_head(struct restorer *s, struct mlo_error *err)
{
    struct mlo_plan *plan = s->plan;
    uint32_t numerics = cpu_get_u32(&s->r), isa = cpu_get_u32(&s->r), half = cpu_get_u32(&s->r);
    plan->threads = cpu_get_u32(&s->r);
    plan->batch = cpu_get_i64(&s->r);
    plan->arena_bytes = (size_t)cpu_get_u64(&s->r);
    plan->scratch_bytes = (size_t)cpu_get_u64(&s->r);
    plan->numerics = numerics == MLO_NUMERICS_FAST ? MLO_NUMERICS_FAST : MLO_NUMERICS_INVARIANT;
    plan->isa = mlo_isa_current();
    enum cpu_half here = plan->numerics == MLO_NUMERICS_FAST ? cpu_half_current() : CPU_HALF_NONE;
    plan->half = half == CPU_HALF_NONE ? CPU_HALF_NONE : here; /* without products in FP16: on any */
    cpu_check(&s->r, numerics <= MLO_NUMERICS_INVARIANT && plan->threads >= 1 && plan->threads <= 4096,
              "its head is no plan's");
    cpu_check(&s->r, plan->scratch_bytes <= BYTES_MAX, "the scratch memory is too large");
    enum mlo_status status = cpu_reader_status(&s->r, err);
    if (status == MLO_OK && isa != (uint32_t)plan->isa)
        status = mlo_error_set(err, MLO_ESTALE, "the plan was made for %s, and this is %s",
                               mlo_isa_name((enum mlo_isa)isa), mlo_isa_name(plan->isa));
    if (status == MLO_OK && half != (uint32_t)plan->half)
        status =
            mlo_error_set(err, MLO_ESTALE, "the plan has 16-bit products by %s arithmetic, and here is %s",
                          cpu_half_name((enum cpu_half)half), cpu_half_name(here));
    return status;
}

enum mlo_status cpu_plan_restore(const void *bytes, size_t size, struct mlo_plan **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct restorer s = {.plan = calloc(1, sizeof *s.plan)};
    if (!s.plan || !(s.plan->arena = mlo_arena_new())) {
        free(s.plan);
        return mlo_error_nomem(err);
    }
    MLO_TRY(cpu_fields_open(&s.r, CPU_IMAGE_MAGIC, bytes, size, err));
    MLO_TRY(get_head(&s, err));
    MLO_TRY(get_skeleton(&s, err));
    get_slots(&s);
    get_inputs(&s);
    get_outputs(&s);
    MLO_TRY(cpu_reader_status(&s.r, err));
    int token = cpu_fast_enter();
    status = get_steps(&s, err);
    cpu_fast_leave(token);
    if (status != MLO_OK)
        goto out;
    cpu_plan_lifetimes(s.plan);
    *out = s.plan;
    s.plan = NULL;
out:
    cpu_plan_free(s.plan);
    return status;
}
