/* MaxPool of one or two dims, with the very results of its op-table row: of equal values the first, and NaN
 * wherever a window holds one. */
#include <math.h>
#include <stdlib.h>

#include "engines/cpu/invariant/invariant_impl.h"

/* One-dimensional pooling has a height of 1. */
struct pool {
    const struct inv_lanes *lanes;
    int64_t planes, in[2], out[2], kernel[2], stride[2], dilation[2], pad[2];
};

struct pool_call {
    const struct pool *p;
    const float *x;
    float *y;
};

/* Outputs [begin, end) along dim d for which tap k is inside of the input. */
static void inside(const struct pool *p, int d, int64_t k, int64_t *begin, int64_t *end)
{
    int64_t first = p->pad[d] - k * p->dilation[d]; /* o * stride >= first, < first + in */
    *begin = MLO_MIN(MLO_MAX((first + p->stride[d] - 1) / p->stride[d], 0), p->out[d]);
    *end = first + p->in[d] <= 0 ? 0 : (first + p->in[d] - 1) / p->stride[d] + 1;
    *end = MLO_MAX(MLO_MIN(*end, p->out[d]), *begin);
}

/* Index: an output row (plane, row). */
static void run_rows(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct pool_call *call = arg;
    const struct pool *p = call->p;
    for (size_t i = begin; i < end; i++) {
        int64_t oh = (int64_t)i % p->out[0], plane = (int64_t)i / p->out[0];
        float *y = call->y + (int64_t)i * p->out[1];
        for (int64_t j = 0; j < p->out[1]; j++)
            y[j] = -INFINITY;
        for (int64_t kh = 0; kh < p->kernel[0]; kh++) {
            int64_t h = oh * p->stride[0] - p->pad[0] + kh * p->dilation[0];
            if (h < 0 || h >= p->in[0])
                continue;
            for (int64_t kw = 0; kw < p->kernel[1]; kw++) {
                int64_t from, to;
                inside(p, 1, kw, &from, &to);
                const float *x =
                    call->x + (plane * p->in[0] + h) * p->in[1] - p->pad[1] + kw * p->dilation[1];
                if (from < to)
                    p->lanes->most((size_t)(to - from), (size_t)p->stride[1], x + from * p->stride[1],
                                   y + from);
            }
        }
    }
}

static enum mlo_status pool_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct pool *p = step->data;
    struct pool_call call = {p, program->at[step->in[0]], program->at[step->out[0]]};
    mlo_pool_run(program->pool, (size_t)(p->planes * p->out[0]), 8, run_rows, &call);
    return MLO_OK;
}

static const struct cpu_step_class pool_class = {.name = "max pool", .run = pool_run, .free_data = free};

enum mlo_status inv_lower_pool(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t x[MLO_MAX_RANK], y[MLO_MAX_RANK];
    struct mlo_window w;
    size_t bytes;
    if (!mlo_node_is(node, "MaxPool") || node->output_count != 1)
        return MLO_OK;
    struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    int spatial = in->type.rank - 2;
    if (in->type.dtype != MLO_FLOAT32 || spatial < 1 || spatial > 2 || !cpu_value_dims(in, x, NULL) ||
        !cpu_value_dims(out, y, NULL) || !cpu_value_bytes(out, &bytes))
        return MLO_OK;
    MLO_TRY(mlo_window_init(&w, node, spatial, x + 2, NULL, err));
    struct pool *p = malloc(sizeof *p);
    int slot = p ? cpu_slot_new(plan, CPU_SLOT_ARENA, bytes) : -1;
    struct cpu_step *step = slot < 0 ? NULL : cpu_step_new(plan, &pool_class, node, 1, 1);
    if (!step) {
        free(p);
        return mlo_error_nomem(err);
    }
    *p = (struct pool){inv_lanes_for(plan->isa), x[0] * x[1], {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}};
    for (int d = 0; d < spatial; d++) {
        int to = d + 2 - spatial;
        p->in[to] = x[2 + d];
        p->out[to] = y[2 + d];
        p->kernel[to] = w.kernel[d];
        p->stride[to] = w.stride[d];
        p->dilation[to] = w.dilation[d];
        p->pad[to] = w.pad_begin[d];
    }
    step->in[0] = cpu_value_plain(plan, in);
    step->out[0] = slot;
    step->data = p;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    *done = true;
out:
    return status;
}
