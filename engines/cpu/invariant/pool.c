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

/* Outputs [from, to) of a row, some of whose taps are outside. */
static void run_border(const struct pool *p, const struct inv_windows *w, const float *row, int64_t from,
                       int64_t to, float *y)
{
    for (int64_t j = from; j < to; j++)
        y[j] = -INFINITY;
    for (size_t kh = 0; from < to && kh < w->rows; kh++)
        for (int64_t kw = 0; kw < p->kernel[1]; kw++) {
            int64_t begin, end, at = kw * p->dilation[1] - p->pad[1];
            inside(p, 1, kw, &begin, &end);
            begin = MLO_MAX(begin, from), end = MLO_MIN(end, to);
            if (begin < end)
                p->lanes->most((size_t)(end - begin), (size_t)p->stride[1],
                               row + (int64_t)(kh * w->row_step) + at + begin * p->stride[1], y + begin);
        }
}

/* Index: an output row (plane, row). */
static void run_rows(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct pool_call *call = arg;
    const struct pool *p = call->p;
    int64_t first, last, k, ends[2], middle[2] = {0, 0};
    struct inv_windows w = {.step = (size_t)p->stride[1],
                            .row_step = p->kernel[0] > 1 ? (size_t)(p->dilation[0] * p->in[1]) : 0,
                            .taps = (size_t)p->kernel[1],
                            .tap_step = (size_t)p->dilation[1]};
    inside(p, 1, 0, &middle[0], &ends[0]);
    inside(p, 1, p->kernel[1] - 1, &ends[1], &middle[1]);
    middle[1] = MLO_MAX(MLO_MIN(middle[1], ends[0]), middle[0]);
    if (p->stride[1] > 2)
        middle[1] = middle[0];
    for (size_t i = begin; i < end; i++) {
        int64_t oh = (int64_t)i % p->out[0], plane = (int64_t)i / p->out[0];
        int64_t top = oh * p->stride[0] - p->pad[0];
        for (first = 0; first < p->kernel[0] && top + first * p->dilation[0] < 0;)
            first++;
        for (last = p->kernel[0]; last > first && top + (last - 1) * p->dilation[0] >= p->in[0];)
            last--;
        w.rows = (size_t)(last - first);
        float *y = call->y + (int64_t)i * p->out[1];
        k = (plane * p->in[0] + top + first * p->dilation[0]) * p->in[1];
        bool some = w.rows > 0 && middle[0] < middle[1];
        if (some)
            p->lanes->windows(&w, (size_t)(middle[1] - middle[0]),
                              call->x + k + middle[0] * p->stride[1] - p->pad[1],
                              call->x + p->planes * p->in[0] * p->in[1], y + middle[0]);
        run_border(p, &w, call->x + k, 0, some ? middle[0] : p->out[1], y);
        run_border(p, &w, call->x + k, some ? middle[1] : p->out[1], p->out[1], y);
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
