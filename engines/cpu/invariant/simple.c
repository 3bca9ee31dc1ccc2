/* Cheap nodes that would be slow through the op table: element by element, in parallel over elements. */
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

struct simple_call {
    const float *a, *b;
    float *y;
};

static void relu(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct simple_call *c = arg;
    const float *restrict a = c->a;
    float *restrict y = c->y;
    for (size_t i = begin; i < end; i++)
        y[i] = a[i] < 0.0f ? 0.0f : a[i];
}

static void add(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct simple_call *c = arg;
    const float *a = c->a, *b = c->b;
    float *restrict y = c->y;
    for (size_t i = begin; i < end; i++)
        y[i] = a[i] + b[i];
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, mlo_range_fn *fn)
{
    struct simple_call call = {program->at[step->in[0]], step->in_count > 1 ? program->at[step->in[1]] : NULL,
                               program->at[step->out[0]]};
    mlo_pool_run(program->pool, program->plan->slots[step->out[0]].size_bytes / sizeof(float), 16384, fn,
                 &call);
    return MLO_OK;
}

static enum mlo_status relu_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    return run(program, step, relu);
}

static enum mlo_status add_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                               struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    return run(program, step, add);
}

static const struct cpu_step_class relu_class = {.name = "elementwise", .run = relu_run};
static const struct cpu_step_class add_class = {.name = "elementwise", .run = add_run};

static bool same_shape(const struct mlo_value *a, const struct mlo_value *b)
{
    int64_t da[MLO_MAX_RANK], db[MLO_MAX_RANK];
    return a->type.dtype == MLO_FLOAT32 && b->type.dtype == MLO_FLOAT32 && a->type.rank == b->type.rank &&
           cpu_value_dims(a, da, NULL) && cpu_value_dims(b, db, NULL) &&
           memcmp(da, db, (size_t)a->type.rank * sizeof *da) == 0;
}

enum mlo_status inv_lower_simple(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                 struct mlo_error *err)
{
    int operands = mlo_node_is(node, "Relu") ? 1 : mlo_node_is(node, "Add") ? 2 : 0;
    if (!operands)
        return MLO_OK;
    struct mlo_value *out = node->outputs[0];
    for (int i = 0; i < operands; i++)
        if (!same_shape(node->inputs[i], out))
            return MLO_OK;
    size_t bytes;
    cpu_value_bytes(out, &bytes);
    int slot = cpu_slot_new(plan, CPU_SLOT_ARENA, bytes);
    struct cpu_step *step =
        slot < 0 ? NULL : cpu_step_new(plan, operands == 1 ? &relu_class : &add_class, node, operands, 1);
    if (!step)
        return mlo_error_nomem(err);
    for (int i = 0; i < operands; i++)
        step->in[i] = cpu_value_plain(plan, node->inputs[i]);
    step->out[0] = slot;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    *done = true;
    return MLO_OK;
}
