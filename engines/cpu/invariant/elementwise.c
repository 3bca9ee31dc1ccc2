/* Elementwise nodes of floats, in parallel over elements, with the very bits of their op-table rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"
#include "engines/cpu/invariant/post_impl.h"

enum { GRAIN = 16384 };

/* --- one operand ------------------------------------------------------------------------------------ */

struct unary {
    const struct inv_lanes *lanes;
    struct inv_act act;
    size_t count;
};

struct unary_call {
    const struct unary *u;
    const float *x;
    float *y;
};

static void run_unary(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct unary_call *call = arg;
    const struct unary *u = call->u;
    inv_act_run(u->lanes, &u->act, end - begin, call->x + begin, call->y + begin);
}

static enum mlo_status unary_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                 struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct unary *u = step->data;
    struct unary_call call = {u, program->at[step->in[0]], program->at[step->out[0]]};
    mlo_pool_run(program->pool, u->count, GRAIN, run_unary, &call);
    return MLO_OK;
}

static const struct cpu_step_class unary_class = {.name = "elementwise", .run = unary_run, .free_data = free};

/* A bound of Clip: that of the attribute, or of the constant operand. */
static bool bound_of(const struct mlo_node *node, int i, float *out)
{
    const struct mlo_value *v = mlo_node_input(node, i);
    const struct mlo_tensor *t = mlo_node_const(node, i);
    if (node->op->since < 11)
        *out = mlo_node_attr_f(node, i == 1 ? "min" : "max",
                               i == 1 ? -3.4028234663852886e38f : 3.4028234663852886e38f);
    else if (!v)
        *out = i == 1 ? -INFINITY : INFINITY;
    else if (!t || t->dtype != MLO_FLOAT32 || mlo_tensor_count(t) != 1)
        return false;
    else
        *out = *(const float *)t->data;
    return true;
}

bool inv_act_of(const struct inv_lanes *lanes, const struct mlo_node *node, struct inv_act *out)
{
    *out = (struct inv_act){.many = NULL};
    if (mlo_node_is(node, "Relu")) {
        out->high = INFINITY;
        return true;
    }
    if (mlo_node_is(node, "Clip"))
        return bound_of(node, 1, &out->low) && bound_of(node, 2, &out->high);
    if (!mlo_node_scalar(node, &out->exact))
        return false;
    out->many = mlo_node_is(node, "Sigmoid") ? lanes->sigmoid
                : mlo_node_is(node, "Tanh")  ? lanes->tanh
                : mlo_node_is(node, "Erf")   ? lanes->erf
                : mlo_node_is(node, "Exp")   ? lanes->exp
                                             : inv_each;
    return true;
}

void inv_act_run(const struct inv_lanes *lanes, const struct inv_act *act, size_t n, const float *x, float *y)
{
    if (!act->many)
        lanes->clip(n, act->low, act->high, x, y);
    else
        act->many(&act->exact, n, x, y);
}

enum mlo_status inv_lower_unary(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    struct unary like = {.lanes = inv_lanes_for(plan->isa)};
    struct mlo_value *in = mlo_node_input(node, 0);
    if (!in || node->output_count != 1 || !inv_act_of(like.lanes, node, &like.act) ||
        in->type.dtype != MLO_FLOAT32 || !cpu_value_dims(in, NULL, &like.count))
        return MLO_OK;
    struct unary *u = malloc(sizeof *u);
    if (!u)
        return mlo_error_nomem(err);
    *u = like;
    *done = true;
    return inv_emit(plan, &unary_class, node, 1, u, err);
}

/* --- two operands ----------------------------------------------------------------------------------- */

/* The result's dims from the innermost on, as few as there can be: over the first one the operands are
 * consecutive, or one number each. */
struct binary {
    inv_binary_fn *fn;
    int rank;
    size_t count, dims[MLO_MAX_RANK], step[2][MLO_MAX_RANK];
};

struct binary_call {
    const struct binary *b;
    const float *x[2];
    float *y;
};

static void run_binary(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct binary_call *call = arg;
    const struct binary *b = call->b;
    size_t at[MLO_MAX_RANK], offset[2] = {0, 0}, rest = begin;
    for (int d = 0; d < b->rank; d++) {
        at[d] = rest % b->dims[d];
        rest /= b->dims[d];
        for (int k = 0; k < 2; k++)
            offset[k] += at[d] * b->step[k][d];
    }
    for (size_t i = begin, n; i < end; i += n) {
        n = MLO_MIN(b->dims[0] - at[0], end - i);
        b->fn(n, call->x[0] + offset[0], b->step[0][0], call->x[1] + offset[1], b->step[1][0], call->y + i);
        for (int k = 0; k < 2; k++)
            offset[k] -= at[0] * b->step[k][0];
        at[0] = 0;
        for (int d = 1; d < b->rank; d++) {
            for (int k = 0; k < 2; k++)
                offset[k] += b->step[k][d];
            if (++at[d] < b->dims[d])
                break;
            for (int k = 0; k < 2; k++)
                offset[k] -= b->dims[d] * b->step[k][d];
            at[d] = 0;
        }
    }
}

static enum mlo_status binary_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                  struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    struct binary_call call = {
        step->data, {program->at[step->in[0]], program->at[step->in[1]]}, program->at[step->out[0]]};
    mlo_pool_run(program->pool, call.b->count, GRAIN, run_binary, &call);
    return MLO_OK;
}

static const struct cpu_step_class binary_class = {
    .name = "elementwise", .run = binary_run, .free_data = free};

static void set_dims(struct binary *b, const int64_t *y, int rank, const int64_t *const in[2],
                     const int ranks[2])
{
    size_t stride[2] = {1, 1};
    b->rank = 0;
    for (int d = rank - 1; d >= 0; d--) {
        size_t step[2], n = (size_t)y[d];
        for (int k = 0; k < 2; k++) {
            int own = d - (rank - ranks[k]);
            size_t size = own >= 0 ? (size_t)in[k][own] : 1;
            step[k] = size != 1 ? stride[k] : 0;
            stride[k] *= size;
        }
        int last = b->rank - 1;
        if (n == 1)
            continue;
        if (last >= 0 && step[0] == b->step[0][last] * b->dims[last] &&
            step[1] == b->step[1][last] * b->dims[last]) {
            b->dims[last] *= n;
            continue;
        }
        b->dims[b->rank] = n;
        for (int k = 0; k < 2; k++)
            b->step[k][b->rank] = step[k];
        b->rank++;
    }
    if (b->rank == 0) {
        b->rank = 1;
        b->dims[0] = 1;
        b->step[0][0] = b->step[1][0] = 0;
    }
}

enum mlo_status inv_lower_binary(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                 struct mlo_error *err)
{
    static const char *const ops[INV_BINARIES] = {"Add", "Sub", "Mul", "Div"};
    struct binary like = {.fn = NULL};
    int64_t dims[2][MLO_MAX_RANK], y[MLO_MAX_RANK];
    for (int i = 0; i < INV_BINARIES; i++)
        if (mlo_node_is(node, ops[i]))
            like.fn = inv_lanes_for(plan->isa)->binary[i];
    if (!like.fn || node->input_count != 2)
        return MLO_OK;
    for (int k = 0; k < 2; k++) {
        const struct mlo_value *in = node->inputs[k];
        if (!in || in->type.dtype != MLO_FLOAT32 || !cpu_value_dims(in, dims[k], NULL))
            return MLO_OK;
    }
    const struct mlo_value *out = node->outputs[0];
    if (!cpu_value_dims(out, y, &like.count) || like.count == 0)
        return MLO_OK;
    set_dims(&like, y, out->type.rank, (const int64_t *const[]){dims[0], dims[1]},
             (const int[]){node->inputs[0]->type.rank, node->inputs[1]->type.rank});
    struct binary *b = malloc(sizeof *b);
    if (!b)
        return mlo_error_nomem(err);
    *b = like;
    *done = true;
    return inv_emit(plan, &binary_class, node, 2, b, err);
}
