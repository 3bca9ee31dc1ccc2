/* Nodes that work line by line: Softmax, LayerNormalization and GlobalAveragePool, with the very results of
 * their op-table rows. Their sums are in double, in the order of the elements: those of several lines at a
 * time do not wait for each other. Which NaN a sum of several becomes depends on how the row was compiled, so
 * a node that meets one is left to its row. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

enum { TOGETHER = INV_LINES, GRAIN = 16384 };

struct lines {
    const struct inv_lanes *lanes;
    size_t count, size; /* lines, and elements of one */
    double epsilon;     /* of LayerNormalization */
    bool has_bias;
};

struct lines_call {
    const struct lines *l;
    const float *x, *scale, *bias;
    float *y;
    atomic_bool *nan; /* the row is asked */
};

/* mean NULL: sums, else those of squared distances. The last lines are added up one by one. */
static void add_up(const struct inv_lanes *lanes, size_t lines, size_t n, const float *x, const double *mean,
                   double *sum)
{
    if (lines == TOGETHER) {
        (mean ? lanes->squares : lanes->sums)(n, x, mean, sum);
        return;
    }
    for (size_t k = 0; k < lines; k++) {
        double s = 0;
        for (size_t i = 0; i < n; i++) {
            double d = (double)x[k * n + i] - (mean ? mean[k] : 0);
            s += mean ? d * d : (double)x[k * n + i];
        }
        sum[k] = s;
    }
}

static void average(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct lines_call *call = arg;
    size_t n = call->l->size;
    double sum[TOGETHER];
    for (size_t i = begin, lines; i < end; i += lines) {
        lines = MLO_MIN(end - i, (size_t)TOGETHER);
        add_up(call->l->lanes, lines, n, call->x + i * n, NULL, sum);
        for (size_t k = 0; k < lines; k++)
            call->y[i + k] = (float)(sum[k] / (double)n);
        for (size_t k = 0; k < lines; k++)
            if (isnan(sum[k]))
                atomic_store(call->nan, true);
    }
}

static void layer_norm(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct lines_call *call = arg;
    size_t n = call->l->size;
    double mean[TOGETHER], variance[TOGETHER];
    for (size_t i = begin, lines; i < end; i += lines) {
        lines = MLO_MIN(end - i, (size_t)TOGETHER);
        const float *x = call->x + i * n;
        add_up(call->l->lanes, lines, n, x, NULL, mean);
        for (size_t k = 0; k < lines; k++)
            mean[k] /= (double)n;
        add_up(call->l->lanes, lines, n, x, mean, variance);
        for (size_t k = 0; k < lines; k++)
            if (isnan(variance[k]))
                atomic_store(call->nan, true);
        for (size_t k = 0; k < lines; k++)
            call->l->lanes->normalise(n, mean[k], 1 / sqrt(variance[k] / (double)n + call->l->epsilon),
                                      call->scale, call->bias, x + k * n, call->y + (i + k) * n);
    }
}

static void softmax(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct lines_call *call = arg;
    size_t n = call->l->size;
    for (size_t i = begin; i < end; i++)
        if (!call->l->lanes->softmax(n, call->x + i * n, call->y + i * n))
            atomic_store(call->nan, true);
}

static enum mlo_status run_row(struct mlo_program *program, const struct cpu_step *step,
                               struct mlo_error *err)
{
    const struct mlo_node *node = step->node;
    struct mlo_tensor in[3] = {{0}}, out = {0}, *result = &out;
    const struct mlo_tensor *operands[3] = {NULL};
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        if (!v)
            continue;
        in[i] = (struct mlo_tensor){
            .dtype = v->type.dtype, .rank = v->type.rank, .data = program->at[step->in[i]]};
        cpu_value_dims(v, in[i].dims, NULL);
        cpu_value_bytes(v, &in[i].size_bytes);
        operands[i] = &in[i];
    }
    enum mlo_status status = mlo_node_eval(node, operands, &result, err);
    if (status == MLO_OK)
        memcpy(program->at[step->out[0]], out.data, out.size_bytes);
    mlo_tensor_clear(&out);
    return status;
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, mlo_range_fn *fn,
                           struct mlo_error *err)
{
    const struct lines *l = step->data;
    atomic_bool nan = false;
    struct lines_call call = {
        .l = l, .x = program->at[step->in[0]], .y = program->at[step->out[0]], .nan = &nan};
    if (step->in_count > 1)
        call.scale = program->at[step->in[1]];
    if (l->has_bias)
        call.bias = program->at[step->in[2]];
    size_t grain = (GRAIN / l->size / TOGETHER + 1) * TOGETHER;
    mlo_pool_run(program->pool, l->count, grain, fn, &call);
    return atomic_load(&nan) ? run_row(program, step, err) : MLO_OK;
}

#define RUN(fn)                                                                                              \
    static enum mlo_status fn##_run(struct mlo_program *program, const struct cpu_step *step, void *state,   \
                                    struct mlo_error *err)                                                   \
    {                                                                                                        \
        MLO_UNUSED(state);                                                                                   \
        return run(program, step, fn, err);                                                                  \
    }                                                                                                        \
    static const struct cpu_step_class fn##_class = {.name = "lines", .run = fn##_run, .free_data = free};

/* clang-format off */
RUN(average)
RUN(layer_norm)
RUN(softmax)
/* clang-format on */

/* Elements before the axis, and from it on. */
static void split(const int64_t *dims, int rank, int axis, struct lines *l)
{
    l->count = l->size = 1;
    for (int i = 0; i < rank; i++)
        *(i < axis ? &l->count : &l->size) *= (size_t)dims[i];
}

static bool axis_of(const struct mlo_node *node, int64_t fallback, int rank, int *out)
{
    int64_t axis = mlo_node_attr_i(node, "axis", fallback);
    if (axis < -rank || axis >= rank)
        return false;
    *out = (int)(axis < 0 ? axis + rank : axis);
    return true;
}

static const struct cpu_step_class *class_of(const struct mlo_node *node, const int64_t *dims,
                                             struct lines *l)
{
    int rank = node->inputs[0]->type.rank, axis;
    if (mlo_node_is(node, "GlobalAveragePool") && rank >= 2) {
        split(dims, rank, 2, l);
        return &average_class;
    }
    if (mlo_node_is(node, "Softmax")) {
        bool matrix = node->op->since < 13;
        if (!axis_of(node, matrix ? 1 : -1, rank, &axis))
            return NULL;
        split(dims, rank, axis, l);
        return matrix || l->size == (size_t)dims[axis] ? &softmax_class : NULL;
    }
    if (!mlo_node_is(node, "LayerNormalization") || !axis_of(node, -1, rank, &axis))
        return NULL;
    split(dims, rank, axis, l);
    for (int i = 1; i < node->output_count; i++)
        if (node->outputs[i])
            return NULL;
    for (int i = 1; i < node->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        size_t count;
        if (v && (v->type.dtype != MLO_FLOAT32 || !cpu_value_dims(v, NULL, &count) || count != l->size))
            return NULL;
    }
    l->has_bias = mlo_node_input(node, 2) != NULL;
    l->epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f);
    return &layer_norm_class;
}

enum mlo_status inv_lower_lines(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    struct lines like = {.lanes = inv_lanes_for(plan->isa)};
    int64_t dims[MLO_MAX_RANK];
    const struct mlo_value *in = mlo_node_input(node, 0);
    if (!in || in->type.dtype != MLO_FLOAT32 || !cpu_value_dims(in, dims, NULL))
        return MLO_OK;
    const struct cpu_step_class *cls = class_of(node, dims, &like);
    if (!cls || like.count == 0 || like.size == 0)
        return MLO_OK;
    struct lines *l = malloc(sizeof *l);
    if (!l)
        return mlo_error_nomem(err);
    *l = like;
    *done = true;
    return inv_emit(plan, cls, node, cls == &layer_norm_class ? node->input_count : 1, l, err);
}
