/* Nodes that compute nothing: those that change a shape only give the value the same memory, and Transpose of
 * elements of four bytes copies in blocks. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

enum mlo_status inv_lower_view(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                               struct mlo_error *err)
{
    static const char *const views[] = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"};
    MLO_UNUSED(err);
    bool known = false;
    size_t a, b;
    for (size_t i = 0; i < MLO_COUNT(views); i++)
        known |= mlo_node_is(node, views[i]);
    if (!known)
        return MLO_OK;
    const struct mlo_value *in = mlo_node_input(node, 0), *out = node->outputs[0];
    const struct mlo_value *how = mlo_node_input(node, 1);
    if (how && !how->constant && !how->known) /* its row sees at run whether the stated shape is the one */
        return MLO_OK;
    if (!in || in->constant || !out || in->type.dtype != out->type.dtype ||
        mlo_holds_values(in->type.dtype) || !cpu_value_dims(in, NULL, &a) || !cpu_value_dims(out, NULL, &b) ||
        a != b || cpu_value_plain(plan, in) < 0)
        return MLO_OK;
    plan->values[out->index].slot[CPU_PLAIN] = cpu_value_plain(plan, in);
    *done = true;
    return MLO_OK;
}

enum { BLOCK = 16 };

/* The result's dims from the innermost on, as few as there can be, and where its elements are in the input.
 * Elements along dim `inner` lie together in the input; 0: runs are copied. */
struct transpose {
    int rank, inner;
    size_t dims[MLO_MAX_RANK], from[MLO_MAX_RANK], to[MLO_MAX_RANK];
    size_t blocks, parts; /* of dim `inner`, and of all */
};

struct transpose_call {
    const struct transpose *t;
    const uint32_t *x;
    uint32_t *y;
};

/* Index: a place along all dims but the first and `inner`, and a block of `inner`. */
static void run_parts(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct transpose_call *call = arg;
    const struct transpose *t = call->t;
    for (size_t part = begin; part < end; part++) {
        size_t rest = part / t->blocks, from = 0, to = 0, first = part % t->blocks * BLOCK;
        for (int d = 1; d < t->rank; d++) {
            if (d == t->inner)
                continue;
            from += rest % t->dims[d] * t->from[d];
            to += rest % t->dims[d] * t->to[d];
            rest /= t->dims[d];
        }
        const uint32_t *x = call->x + from;
        uint32_t *y = call->y + to;
        if (!t->inner) {
            memcpy(y, x, t->dims[0] * sizeof *y);
            continue;
        }
        size_t last = MLO_MIN(first + BLOCK, t->dims[t->inner]), stride = t->from[0], line = t->to[t->inner];
        for (size_t j = 0; j < t->dims[0]; j += BLOCK)
            for (size_t i = first; i < last; i++)
                for (size_t k = j; k < MLO_MIN(j + BLOCK, t->dims[0]); k++)
                    y[i * line + k] = x[k * stride + i];
    }
}

static enum mlo_status transpose_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                     struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    struct transpose_call call = {step->data, program->at[step->in[0]], program->at[step->out[0]]};
    size_t each = call.t->dims[0] * (call.t->inner ? BLOCK : 1);
    mlo_pool_run(program->pool, call.t->parts, 16384 / each + 1, run_parts, &call);
    return MLO_OK;
}

static const struct cpu_step_class transpose_class = {
    .name = "transpose", .run = transpose_run, .free_data = free};

static void set_dims(struct transpose *t, const int64_t *x, int rank, const int64_t *perm)
{
    size_t stride[MLO_MAX_RANK], at = 1, to = 1;
    for (int d = rank - 1; d >= 0; at *= (size_t)x[d--])
        stride[d] = at;
    t->rank = 0;
    for (int d = rank - 1; d >= 0; d--) {
        size_t n = (size_t)x[perm[d]], from = stride[perm[d]];
        int last = t->rank - 1;
        if (n != 1 && last >= 0 && from == t->from[last] * t->dims[last]) {
            t->dims[last] *= n;
        } else if (n != 1) {
            t->dims[t->rank] = n;
            t->from[t->rank] = from;
            t->to[t->rank++] = to;
        }
        to *= n;
    }
    if (t->rank == 0) {
        t->rank = 1;
        t->dims[0] = t->from[0] = t->to[0] = 1;
    }
    t->inner = 0;
    for (int d = 1; d < t->rank; d++)
        t->inner = t->from[d] == 1 ? d : t->inner;
    t->blocks = t->inner ? (t->dims[t->inner] + BLOCK - 1) / BLOCK : 1;
    t->parts = t->blocks;
    for (int d = 1; d < t->rank; d++)
        t->parts *= d == t->inner ? 1 : t->dims[d];
}

enum mlo_status inv_lower_transpose(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                    struct mlo_error *err)
{
    int64_t x[MLO_MAX_RANK], perm[MLO_MAX_RANK];
    size_t count, listed;
    const struct mlo_value *in = mlo_node_input(node, 0);
    if (!mlo_node_is(node, "Transpose") || in->type.dtype != MLO_FLOAT32 || !cpu_value_dims(in, x, &count) ||
        count == 0)
        return MLO_OK;
    int rank = in->type.rank;
    const int64_t *given = mlo_node_attr_ints(node, "perm", &listed);
    if (given && listed != (size_t)rank)
        return MLO_OK;
    for (int d = 0; d < rank; d++)
        perm[d] = given ? given[d] : rank - 1 - d;
    for (int d = 0; d < rank; d++)
        if (perm[d] < 0 || perm[d] >= rank)
            return MLO_OK;
    struct transpose *t = malloc(sizeof *t);
    if (!t)
        return mlo_error_nomem(err);
    set_dims(t, x, rank, perm);
    *done = true;
    return inv_emit(plan, &transpose_class, node, 1, t, err);
}
