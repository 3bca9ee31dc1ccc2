/* The cpu engine: compile, load and run plans of steps; which steps is up to the two numerics. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/image_impl.h"

static const char *version(void)
{
    return cpu_fast_version();
}

static enum mlo_status probe(struct mlo_error *err)
{
    enum mlo_status status = mlo_isa_check(err);
    if (status != MLO_OK || mlo_isa_current() >= MLO_ISA_AVX2)
        return status;
    mlo_error_set(err, MLO_EUNAVAILABLE, "the cpu engine needs AVX2 and FMA, which this machine lacks");
    mlo_error_hint(err, "unset MLOPT_ISA, or use the engine 'reference'");
    return MLO_EUNAVAILABLE;
}

void cpu_plan_free(struct mlo_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->step_count; i++)
        if (plan->steps[i].cls->free_data)
            plan->steps[i].cls->free_data(plan->steps[i].data);
    for (int i = 0; i < plan->slot_count; i++) {
        if (plan->slots[i].owned)
            free((void *)(uintptr_t)plan->slots[i].data);
        mlo_constant_release(plan->slots[i].shared);
    }
    mlo_model_free(plan->model);
    mlo_arena_free(plan->arena);
    free(plan);
}

static enum mlo_status init_values(struct mlo_plan *plan, struct mlo_error *err)
{
    const struct mlo_graph *g = plan->model->graph;
    memset(plan->values, 0xff, (size_t)g->value_count * sizeof *plan->values);
    for (int i = 0; i < g->value_count; i++) {
        const struct mlo_tensor *c = g->values[i]->constant;
        if (!c)
            continue;
        int s = cpu_slot_const(plan, c->data, c->size_bytes);
        if (s < 0)
            return mlo_error_nomem(err);
        plan->values[i].slot[CPU_PLAIN] = s;
    }
    for (int i = 0; i < plan->input_count; i++) {
        size_t bytes = 0;
        cpu_value_bytes(plan->inputs[i], &bytes);
        bool holds = mlo_holds_values(plan->inputs[i]->type.dtype);
        int s = cpu_slot_new(plan, holds ? CPU_SLOT_TENSOR : CPU_SLOT_INPUT, bytes);
        if (s < 0)
            return mlo_error_nomem(err);
        plan->slots[s].input = i;
        plan->values[plan->inputs[i]->index].slot[CPU_PLAIN] = s;
    }
    return MLO_OK;
}

static enum mlo_status compile(const struct mlo_model *model, const struct mlo_compile_options *options,
                               struct mlo_plan **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return mlo_error_nomem(err);
    plan->numerics = options->numerics;
    plan->isa = mlo_isa_current();
    plan->half = plan->numerics == MLO_NUMERICS_FAST ? cpu_half_current() : CPU_HALF_NONE;
    plan->threads = options->threads ? options->threads : 1;
    plan->batch = options->batch;
    plan->constants = options->constants;
    plan->arena = mlo_arena_new();
    if (!plan->arena) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_engine_bind(model, options, &plan->model, err));
    const struct mlo_graph *g = plan->model->graph;
    plan->observed = mlo_arena_calloc(plan->arena, options->observe_count + 1, sizeof(struct mlo_value *));
    if (!plan->observed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    plan->observed_count = options->observe_count;
    MLO_TRY(mlo_engine_observed(g, options, plan->observed, err));
    if (plan->numerics == MLO_NUMERICS_FAST)
        MLO_TRY(cpu_fast_normalise(plan, err));
    plan->inputs = mlo_arena_calloc(plan->arena, (size_t)g->input_count + 1, sizeof(struct mlo_value *));
    plan->values = mlo_arena_calloc(plan->arena, (size_t)g->value_count + 1, sizeof *plan->values);
    plan->done = mlo_arena_calloc(plan->arena, (size_t)g->node_count + 1, sizeof *plan->done);
    plan->output_slots = mlo_arena_calloc(plan->arena, (size_t)g->output_count + 1, sizeof(int));
    plan->observed_slots = mlo_arena_calloc(plan->arena, options->observe_count + 1, sizeof(int));
    plan->observed_behind = mlo_arena_calloc(plan->arena, options->observe_count + 1, sizeof(int));
    if (!plan->inputs || !plan->values || !plan->done || !plan->output_slots || !plan->observed_slots ||
        !plan->observed_behind) {
        status = mlo_error_nomem(err);
        goto out;
    }
    plan->input_count = mlo_engine_inputs(g, plan->inputs);
    MLO_TRY(init_values(plan, err));
    MLO_TRY(plan->numerics == MLO_NUMERICS_FAST ? cpu_fast_lower(plan, err) : cpu_invariant_lower(plan, err));
    if (!plan->has_half)
        plan->half = CPU_HALF_NONE;
    cpu_plan_memory(plan);
    *out = plan;
    plan = NULL;
out:
    cpu_plan_free(plan);
    return status;
}

static void footprint(const struct mlo_plan *plan, struct mlo_footprint *out)
{
    *out = (struct mlo_footprint){.program_bytes = plan->arena_bytes + plan->scratch_bytes};
    for (int i = 0; i < plan->slot_count; i++) {
        const struct cpu_slot *s = &plan->slots[i];
        out->plan_bytes += s->kind == CPU_SLOT_CONST && s->owned ? s->size_bytes : 0;
        out->program_bytes += s->kind == CPU_SLOT_TENSOR ? s->size_bytes : 0;
    }
}

static void unload(struct mlo_program *program)
{
    if (!program)
        return;
    const struct mlo_plan *plan = program->plan;
    for (int i = 0; program->states && i < plan->step_count; i++)
        if (plan->steps[i].cls->unload)
            plan->steps[i].cls->unload(program->states[i]);
    for (int i = 0; program->tensors && i < plan->slot_count; i++)
        mlo_tensor_clear(&program->tensors[i]);
    cpu_fast_unload(program);
    mlo_pool_free(program->pool);
    free(program->states);
    free(program->tensors);
    free(program->at);
    free(program->arena);
    free(program->scratch);
    free(program);
}

bool mlo_cpu_splits_all;

/* A run that is over when another thread has just been woken is the caller's alone. */
static unsigned threads_of(const struct mlo_plan *plan)
{
    enum { BYTES_A_CYCLE = 8, LEAST_CYCLES = 300000 };
    size_t bytes = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const struct cpu_step *step = &plan->steps[i];
        for (int k = 0; k < step->in_count; k++)
            bytes += step->in[k] >= 0 ? plan->slots[step->in[k]].size_bytes : 0;
        for (int k = 0; k < step->out_count; k++)
            bytes += step->out[k] >= 0 ? plan->slots[step->out[k]].size_bytes : 0;
    }
    bool small = plan->product_cycles + bytes / BYTES_A_CYCLE < LEAST_CYCLES;
    return small && plan->numerics == MLO_NUMERICS_FAST && !mlo_cpu_splits_all ? 1 : plan->threads;
}

static enum mlo_status load(struct mlo_plan *plan, struct mlo_program **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_program *program = calloc(1, sizeof *program);
    if (!program)
        return mlo_error_nomem(err);
    program->plan = plan;
    program->arena = cpu_aligned(plan->arena_bytes);
    program->scratch = cpu_aligned(plan->scratch_bytes);
    program->at = calloc((size_t)plan->slot_count + 1, sizeof(void *));
    program->tensors = calloc((size_t)plan->slot_count + 1, sizeof *program->tensors);
    program->states = calloc((size_t)plan->step_count + 1, sizeof(void *));
    program->pool = mlo_pool_new(threads_of(plan));
    if (!program->arena || !program->scratch || !program->at || !program->tensors || !program->states ||
        !program->pool) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < plan->slot_count; i++) {
        const struct cpu_slot *slot = &plan->slots[i];
        if (slot->kind == CPU_SLOT_CONST)
            program->at[i] = (void *)(uintptr_t)slot->data;
        else if (slot->kind == CPU_SLOT_ARENA && slot->offset != SIZE_MAX)
            program->at[i] = program->arena + slot->offset;
    }
    if (plan->numerics == MLO_NUMERICS_FAST)
        MLO_TRY(cpu_fast_load(program, err));
    for (int i = 0; i < plan->step_count; i++)
        if (plan->steps[i].cls->load)
            MLO_TRY(plan->steps[i].cls->load(program, &plan->steps[i], &program->states[i], err));
    *out = program;
    program = NULL;
out:
    unload(program);
    return status;
}

/* The value in row-major order, as a tensor that borrows the program's memory. */
static void view(const struct mlo_program *program, const struct mlo_value *value, int slot,
                 struct mlo_tensor *out)
{
    if (value->constant) {
        *out = *value->constant;
    } else if (program->plan->slots[slot].kind == CPU_SLOT_TENSOR &&
               !cpu_value_bytes(value, &out->size_bytes)) {
        *out = program->tensors[slot];
    } else {
        *out = (struct mlo_tensor){
            .dtype = value->type.dtype, .rank = value->type.rank, .data = program->at[slot]};
        cpu_value_dims(value, out->dims, NULL);
        cpu_value_bytes(value, &out->size_bytes);
    }
    out->owned = false;
}

/* Who is shown observed values; fn NULL: nobody. */
struct audience {
    mlo_observe_fn *fn;
    void *arg;
};

static enum mlo_status show(const struct mlo_program *program, int behind, const struct audience *to,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_plan *plan = program->plan;
    struct mlo_tensor t = {0};
    for (size_t i = 0; to->fn && i < plan->observed_count; i++) {
        if (plan->observed_behind[i] != behind)
            continue;
        view(program, plan->observed[i], plan->observed_slots[i], &t);
        MLO_TRY(mlo_engine_show(plan->observed[i]->name, &t, to->fn, to->arg, err));
    }
out:
    return status;
}

static enum mlo_status run_steps(struct mlo_program *program, const struct audience *to,
                                 struct mlo_error *err)
{
    const struct mlo_plan *plan = program->plan;
    enum mlo_status status = show(program, -1, to, err);
    if (status != MLO_OK)
        return status;
    for (int i = 0; i < plan->step_count; i++) {
        const struct cpu_step *step = &plan->steps[i];
        uint64_t start_ns = program->step_ns ? mlo_clock_ns() : 0;
        if (step->begins_as >= 0 && !step->cls->replaces &&
            program->at[step->begins_as] != program->at[step->out[0]])
            memcpy(program->at[step->out[0]], program->at[step->begins_as],
                   plan->slots[step->out[0]].size_bytes);
        status = step->cls->run(program, step, program->states[i], err);
        if (status != MLO_OK) {
            mlo_error_where(err, "node '%s' (%s)", step->node ? step->node->name : "",
                            step->node ? step->node->op_type : step->impl);
            return status;
        }
        if (program->step_ns)
            program->step_ns[i] = mlo_clock_ns() - start_ns;
        status = show(program, i, to, err);
        if (status != MLO_OK)
            return status;
        for (int k = 0; k < step->in_count; k++)
            if (step->in[k] >= 0 && plan->slots[step->in[k]].kind == CPU_SLOT_TENSOR &&
                plan->slots[step->in[k]].last == i)
                mlo_tensor_clear(&program->tensors[step->in[k]]);
    }
    return MLO_OK;
}

static enum mlo_status observe(struct mlo_program *program, const struct mlo_tensor *inputs,
                               struct mlo_tensor *outputs, mlo_observe_fn *fn, void *arg,
                               struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_plan *plan = program->plan;
    const struct mlo_graph *g = plan->model->graph;
    struct mlo_tensor t = {0};
    for (int i = 0; i < plan->input_count; i++) {
        status = mlo_engine_check_input(plan->inputs[i], &inputs[i], err);
        if (status != MLO_OK)
            return status;
        int slot = plan->values[plan->inputs[i]->index].slot[CPU_PLAIN];
        program->at[slot] = inputs[i].data;
        if (plan->slots[slot].kind == CPU_SLOT_TENSOR) { /* a sequence or an optional, borrowed */
            program->tensors[slot] = inputs[i];
            program->tensors[slot].owned = false;
        }
    }
    bool fast = plan->numerics == MLO_NUMERICS_FAST;
    int token = fast ? cpu_fast_enter() : 0;
    mlo_pool_busy(program->pool, true);
    status = run_steps(program, &(struct audience){fn, arg}, err);
    mlo_pool_busy(program->pool, false);
    if (fast)
        cpu_fast_leave(token);
    if (status != MLO_OK)
        return status;
    for (int i = 0; i < g->output_count; i++) {
        view(program, g->outputs[i], plan->output_slots[i], &t);
        MLO_TRY(mlo_engine_deliver(&t, &outputs[i], err));
    }
out:
    return status;
}

static enum mlo_status run(struct mlo_program *program, const struct mlo_tensor *inputs,
                           struct mlo_tensor *outputs, struct mlo_error *err)
{
    return observe(program, inputs, outputs, NULL, NULL, err);
}

static enum mlo_status describe(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    int int8_nodes = 0;
    json_t *nodes = json_array();
    for (int i = 0; nodes && i < plan->step_count; i++) {
        const struct cpu_step *step = &plan->steps[i];
        json_t *fused = json_array();
        for (int k = 0; k < step->fused_count; k++)
            json_array_append_new(fused, json_string(step->fused[k]));
        int8_nodes += strcmp(step->precision, "int8") == 0 || strcmp(step->precision, "dynamic int8") == 0;
        json_array_append_new(nodes, json_pack("{s:s, s:s, s:s, s:s, s:o}", "node",
                                               step->node ? step->node->name : "", "op",
                                               step->node ? step->node->op_type : "Reorder", "impl",
                                               step->impl, "precision", step->precision, "fused", fused));
    }
    *out = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:o, s:i, s:I}", "engine", "cpu", "version", version(),
                     "isa", mlo_isa_name(plan->isa), "numerics",
                     plan->numerics == MLO_NUMERICS_FAST ? "fast" : "invariant", "threads",
                     (int)plan->threads, "batch", (json_int_t)plan->batch, "nodes", nodes, "int8_nodes",
                     int8_nodes, "arena_bytes", (json_int_t)plan->arena_bytes);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum mlo_status profile(struct mlo_program *program, const struct mlo_tensor *inputs, int calls,
                               json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_plan *plan = program->plan;
    int outputs_count = plan->model->graph->output_count;
    size_t steps = (size_t)plan->step_count;
    json_t *all = NULL;
    struct mlo_tensor *outputs = calloc((size_t)outputs_count + 1, sizeof *outputs);
    uint64_t *ns = calloc(steps * (size_t)calls + 1, sizeof *ns),
             *column = calloc((size_t)calls + 1, sizeof *ns);
    if (!outputs || !ns || !column) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int c = -1; c < calls; c++) { /* the first one warms up */
        program->step_ns = ns + steps * (size_t)MLO_MAX(c, 0);
        MLO_TRY(run(program, inputs, outputs, err));
    }
    MLO_TRY(describe(plan, &all, err));
    for (size_t i = 0; i < steps; i++) {
        for (int c = 0; c < calls; c++)
            column[c] = ns[steps * (size_t)c + i];
        qsort(column, (size_t)calls, sizeof *column, by_value);
        json_object_set_new(json_array_get(json_object_get(all, "nodes"), i), "us",
                            json_real((double)column[calls / 2] / 1000));
    }
    *out = all;
    all = NULL;
out:
    program->step_ns = NULL;
    json_decref(all);
    for (int i = 0; outputs && i < outputs_count; i++)
        mlo_tensor_clear(&outputs[i]);
    free(outputs);
    free(ns);
    free(column);
    return status;
}

static const struct mlo_model *interface(const struct mlo_plan *plan)
{
    return plan->model;
}

/* What a saved plan is bound to: the processor (oneDNN chooses by its caches and cores too), the instruction
 * set that was used of it, this very engine, and by what products of models in 16 bits are computed. */
static enum mlo_status identity(json_t **out, struct mlo_error *err)
{
    json_t *cpu = NULL;
    enum mlo_status status = mlo_cpu_identity(&cpu, err);
    if (status != MLO_OK)
        return status;
    *out = json_pack("{s:s, s:s, s:s, s:o, s:s, s:s}", "engine", "cpu", "version", version(), "revision",
                     cpu_source_revision, "cpu", cpu, "isa", mlo_isa_name(mlo_isa_current()), "fp16",
                     cpu_half_name(cpu_half_current()));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status identity_of(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = identity(out, err);
    if (status == MLO_OK && plan->half == CPU_HALF_NONE) /* it has no such products */
        json_object_del(*out, "fp16");
    return status;
}

const struct mlo_engine mlo_engine_cpu = {
    .name = "cpu",
    .version = version,
    .probe = probe,
    .compile = compile,
    .load = load,
    .run = run,
    .observe = observe,
    .profile = profile,
    .describe = describe,
    .unload = unload,
    .footprint = footprint,
    .free_plan = cpu_plan_free,
    .save = cpu_plan_save,
    .restore = cpu_plan_restore,
    .interface = interface,
    .identity = identity,
    .identity_of = identity_of,
    .may_lack = "fp16",
};
