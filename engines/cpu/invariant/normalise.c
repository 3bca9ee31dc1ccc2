/* BatchNormalization with constant statistics, with the very results of its op-table row: in double, rounded
 * once. */
#include <math.h>
#include <stdlib.h>

#include "engines/cpu/invariant/invariant_impl.h"

struct norm {
    size_t planes, size; /* samples times channels, and elements of one */
    size_t channels;
    const struct inv_lanes *lanes;
    struct inv_affine channel[];
};

struct norm_call {
    const struct norm *n;
    const float *x;
    float *y;
};

/* Index: a plane. */
static void run_planes(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct norm_call *call = arg;
    const struct norm *n = call->n;
    for (size_t i = begin; i < end; i++)
        n->lanes->affine(n->size, &n->channel[i % n->channels], call->x + i * n->size, call->y + i * n->size);
}

static enum mlo_status norm_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct norm *n = step->data;
    struct norm_call call = {n, program->at[step->in[0]], program->at[step->out[0]]};
    mlo_pool_run(program->pool, n->planes, 8, run_planes, &call);
    return MLO_OK;
}

static const struct cpu_step_class norm_class = {.name = "elementwise", .run = norm_run, .free_data = free};

/* NULL: not a form that is taken, or out of memory (*failed). */
static struct norm *norm_of(const struct mlo_node *node, const int64_t *dims, size_t count, bool *failed)
{
    const struct mlo_tensor *t[5] = {NULL};
    size_t channels = (size_t)dims[1], images = (size_t)dims[0];
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f);
    for (int i = 1; i < 5; i++)
        if (!(t[i] = mlo_node_const(node, i)) || t[i]->dtype != MLO_FLOAT32 ||
            mlo_tensor_count(t[i]) != channels)
            return NULL;
    struct norm *n = calloc(1, sizeof *n + channels * sizeof n->channel[0]);
    if (!n) {
        *failed = true;
        return NULL;
    }
    n->channels = channels;
    n->planes = images * channels;
    n->size = count / n->planes;
    for (size_t c = 0; c < channels; c++)
        n->channel[c] = (struct inv_affine){.mean = mlo_tensor_get_f64(t[3], c),
                                            .scale = mlo_tensor_get_f64(t[1], c) /
                                                     sqrt(mlo_tensor_get_f64(t[4], c) + epsilon),
                                            .bias = mlo_tensor_get_f64(t[2], c)};
    return n;
}

enum mlo_status inv_lower_normalise(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                    struct mlo_error *err)
{
    int64_t x[MLO_MAX_RANK];
    size_t bytes, count;
    bool failed = false;
    struct mlo_value *in = node->input_count ? node->inputs[0] : NULL, *out = node->outputs[0];
    if (!mlo_node_is(node, "BatchNormalization") || in->type.dtype != MLO_FLOAT32 || in->type.rank < 2 ||
        !cpu_value_dims(in, x, &count) || count == 0)
        return MLO_OK;
    struct norm *n = norm_of(node, x, count, &failed);
    if (!n)
        return failed ? mlo_error_nomem(err) : MLO_OK;
    n->lanes = inv_lanes_for(plan->isa);
    cpu_value_bytes(out, &bytes);
    int slot = cpu_slot_new(plan, CPU_SLOT_ARENA, bytes);
    struct cpu_step *step = slot < 0 ? NULL : cpu_step_new(plan, &norm_class, node, 1, 1);
    if (!step) {
        free(n);
        return mlo_error_nomem(err);
    }
    step->in[0] = cpu_value_plain(plan, in);
    step->out[0] = slot;
    step->data = n;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    *done = true;
    return MLO_OK;
}
