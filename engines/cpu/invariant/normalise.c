/* BatchNormalization with constant statistics, with the very results of its op-table row: in double, rounded
 * once. */
#include <math.h>
#include <stdlib.h>

#include "engines/cpu/invariant/invariant_impl.h"
#include "engines/cpu/invariant/post_impl.h"

struct norm {
    size_t planes, size; /* samples times channels, and elements of one */
    size_t channels;
    const struct inv_lanes *lanes;
    struct inv_affine *channel;
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

static void norm_free(void *data)
{
    struct norm *n = data;
    if (n)
        free(n->channel);
    free(n);
}

static const struct cpu_step_class norm_class = {
    .name = "elementwise", .run = norm_run, .free_data = norm_free};

/* A parameter, possibly behind nodes that pass it on (exporters share equal ones so). */
static const struct mlo_tensor *parameter(const struct mlo_node *node, int i)
{
    const struct mlo_value *v = mlo_node_input(node, i);
    while (v && !v->constant && v->producer && mlo_node_is(v->producer, "Identity"))
        v = v->producer->inputs[0];
    return v ? v->constant : NULL;
}

struct inv_affine *inv_channels_of(const struct mlo_node *node, const int64_t *dims, bool *failed)
{
    const struct mlo_tensor *t[5] = {NULL};
    size_t channels = (size_t)dims[1];
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f);
    for (int i = 1; i < 5; i++)
        if (!(t[i] = parameter(node, i)) || t[i]->dtype != MLO_FLOAT32 || mlo_tensor_count(t[i]) != channels)
            return NULL;
    struct inv_affine *channel = calloc(channels + 1, sizeof *channel);
    if (!channel) {
        *failed = true;
        return NULL;
    }
    for (size_t c = 0; c < channels; c++)
        channel[c] = (struct inv_affine){.mean = mlo_tensor_get_f64(t[3], c),
                                         .scale = mlo_tensor_get_f64(t[1], c) /
                                                  sqrt(mlo_tensor_get_f64(t[4], c) + epsilon),
                                         .bias = mlo_tensor_get_f64(t[2], c)};
    return channel;
}

enum mlo_status inv_lower_normalise(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                    struct mlo_error *err)
{
    int64_t x[MLO_MAX_RANK];
    size_t count;
    bool failed = false;
    const struct mlo_value *in = node->input_count ? node->inputs[0] : NULL;
    if (!mlo_node_is(node, "BatchNormalization") || in->type.dtype != MLO_FLOAT32 || in->type.rank < 2 ||
        !cpu_value_dims(in, x, &count) || count == 0)
        return MLO_OK;
    struct inv_affine *channel = inv_channels_of(node, x, &failed);
    if (!channel)
        return failed ? mlo_error_nomem(err) : MLO_OK;
    struct norm *n = malloc(sizeof *n);
    if (!n) {
        free(channel);
        return mlo_error_nomem(err);
    }
    size_t planes = (size_t)(x[0] * x[1]);
    *n = (struct norm){planes, count / planes, (size_t)x[1], inv_lanes_for(plan->isa), channel};
    *done = true;
    return inv_emit(plan, &norm_class, node, 1, n, err);
}
