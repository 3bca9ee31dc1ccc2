/* Reductions of floats over axes that lie together in memory, as rows or as columns. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

enum { STRIP = 64 }; /* columns that are worked on at once */

struct reduce_data {
    const struct fast_row_kernels *kernels;
    enum fast_reduction kind;
    size_t outer, n, inner; /* [outer][n][inner] becomes [outer][inner] */
};

struct reduce_call {
    const struct reduce_data *d;
    const float *x;
    float *y;
};

static void rows_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct reduce_call *c = arg;
    c->d->kernels->reduce_rows[c->d->kind](c->x + begin * c->d->n, end - begin, c->d->n, c->y + begin);
}

static size_t strips(const struct reduce_data *d)
{
    return (d->inner + STRIP - 1) / STRIP;
}

static void columns_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct reduce_call *c = arg;
    const struct reduce_data *d = c->d;
    for (size_t i = begin; i < end; i++) {
        size_t o = i / strips(d), first = i % strips(d) * STRIP;
        d->kernels->reduce_columns[d->kind](c->x + o * d->n * d->inner + first, d->n, d->inner,
                                            MLO_MIN(d->inner - first, STRIP), c->y + o * d->inner + first);
    }
}

static enum mlo_status reduce_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                  struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct reduce_data *d = step->data;
    struct reduce_call c = {d, program->at[step->in[0]], program->at[step->out[0]]};
    if (d->inner == 1)
        mlo_pool_run(program->pool, d->outer, 32768 / (d->n + 8) + 1, rows_range, &c);
    else
        mlo_pool_run(program->pool, d->outer * strips(d), 32768 / (d->n * MLO_MIN(d->inner, STRIP) + 8) + 1,
                     columns_range, &c);
    return MLO_OK;
}

static enum mlo_status reduce_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                   struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct reduce_data *d = step->data;
    cpu_put_u32(w, (uint32_t)d->kind);
    cpu_put_u64(w, d->outer);
    cpu_put_u64(w, d->n);
    cpu_put_u64(w, d->inner);
    return MLO_OK;
}

static enum mlo_status reduce_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                      struct mlo_error *err)
{
    struct reduce_data *d = calloc(1, sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    d->kernels = fast_row_kernels_for(plan->isa);
    uint32_t kind = cpu_get_u32(r);
    d->kind = (enum fast_reduction)kind;
    d->outer = cpu_get_u64(r);
    d->n = cpu_get_u64(r);
    d->inner = cpu_get_u64(r);
    size_t out = cpu_product(d->outer, d->inner, sizeof(float));
    if (cpu_check(r, step->in_count == 1 && step->out_count == 1, "a step has other operands") &&
        cpu_check(r, kind < FAST_REDUCTIONS && d->outer > 0 && d->n > 0 && d->inner > 0,
                  "a reduction has impossible sizes") &&
        cpu_slot_holds(r, plan, step->out[0], out))
        cpu_slot_holds(r, plan, step->in[0], cpu_product(out, d->n, 1));
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_reduce_class = {.name = "reduction",
                                                 .run = reduce_run,
                                                 .free_data = free,
                                                 .id = "reduction",
                                                 .save = reduce_save,
                                                 .restore = reduce_restore};

/* --- lowering ------------------------------------------------------------------------------------------- */

static const struct {
    const char *op_type;
    enum fast_reduction kind;
    bool pool; /* over all axes behind the channels */
} kinds[] = {
    {"ReduceMean", FAST_REDUCE_MEAN, false},
    {"ReduceSum", FAST_REDUCE_SUM, false},
    {"ReduceMax", FAST_REDUCE_MAX, false},
    {"ReduceMin", FAST_REDUCE_MIN, false},
    {"ReduceL1", FAST_REDUCE_L1, false},
    {"ReduceL2", FAST_REDUCE_L2, false},
    {"ReduceSumSquare", FAST_REDUCE_SUM_SQUARE, false},
    {"GlobalAveragePool", FAST_REDUCE_MEAN, true},
    {"GlobalMaxPool", FAST_REDUCE_MAX, true},
};

bool fast_reduced_axes(const struct mlo_node *node, int rank, bool reduced[MLO_MAX_RANK])
{
    size_t count = 0;
    const int64_t *ints = mlo_node_attr_ints(node, "axes", &count);
    const struct mlo_value *input = mlo_node_input(node, 1);
    const struct mlo_tensor *t = input ? fast_initializer(input) : NULL;
    if (input && (!t || t->dtype != MLO_INT64))
        return false;
    count = input ? mlo_tensor_count(t) : count;
    if (count == 0 && mlo_node_attr_i(node, "noop_with_empty_axes", 0))
        return false;
    for (int i = 0; i < MLO_MAX_RANK; i++)
        reduced[i] = count == 0 && i < rank;
    for (size_t i = 0; i < count; i++) {
        int64_t axis = input ? mlo_tensor_get_i64(t, i) : ints[i];
        axis += axis < 0 ? rank : 0;
        if (axis < 0 || axis >= rank)
            return false;
        reduced[axis] = true;
    }
    return true;
}

static bool pooled_axes(int rank, bool reduced[MLO_MAX_RANK])
{
    for (int i = 0; i < MLO_MAX_RANK; i++)
        reduced[i] = i >= 2 && i < rank;
    return rank > 2;
}

/* False where what is reduced does not lie together in that layout, or the result would have none that has a
 * name. */
static bool geometry(const struct fast_shape *s, const bool *reduced, enum cpu_layout layout, bool keeps,
                     struct reduce_data *d, enum cpu_layout *to)
{
    int order[MLO_MAX_RANK], n = 0;
    bool last = layout == CPU_LAST, before = true, after = false, channels, pixels = false;
    if (last && (s->rank < 3 || s->rank > 5))
        return false;
    for (int i = 0; i < s->rank; i++)
        if (!last || i != 1)
            order[n++] = i;
    if (last)
        order[n++] = 1;
    d->outer = d->n = d->inner = 1;
    for (int i = 0; i < n; i++) {
        size_t dim = (size_t)s->dims[order[i]];
        if (dim == 1)
            continue;
        if (reduced[order[i]]) {
            if (after)
                return false;
            before = false;
            d->n *= dim;
        } else if (before) {
            d->outer *= dim;
        } else {
            after = true;
            d->inner *= dim;
        }
        pixels |= order[i] > 1 && !reduced[order[i]];
    }
    channels = last && s->dims[1] > 1 && !reduced[1];
    *to = last && keeps ? CPU_LAST : CPU_PLAIN;
    return !last || keeps || !channels || !pixels;
}

enum mlo_status fast_lower_reduce(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape x, y;
    bool reduced[MLO_MAX_RANK];
    struct reduce_data found = {.kind = FAST_REDUCTIONS};
    enum cpu_layout from, to;
    int slot;
    bool pool = false;
    for (size_t k = 0; k < MLO_COUNT(kinds); k++)
        if (mlo_node_is(node, kinds[k].op_type)) {
            found.kind = kinds[k].kind;
            pool = kinds[k].pool;
        }
    if (found.kind == FAST_REDUCTIONS || node->inputs[0]->type.dtype != MLO_FLOAT32 ||
        !fast_shape(node->inputs[0], &x) || !fast_shape(node->outputs[0], &y) || x.count == 0 || x.rank < 1 ||
        !fast_is_available(plan, node->inputs[0]) ||
        !(pool ? pooled_axes(x.rank, reduced) : fast_reduced_axes(node, x.rank, reduced)))
        return MLO_OK;
    const struct cpu_value *v = &plan->values[node->inputs[0]->index];
    bool bytes = v->slot[CPU_PLAIN] < 0 && v->slot[CPU_LAST] < 0, keeps = y.rank == x.rank;
    from = fast_layout(plan, node->inputs[0], bytes);
    if (!geometry(&x, reduced, from, keeps, &found, &to) &&
        !geometry(&x, reduced, from = CPU_PLAIN, keeps, &found, &to))
        return MLO_OK;
    if (found.outer * found.inner != y.count)
        return MLO_OK;
    MLO_TRY(fast_value(plan, node->inputs[0], from, &slot, err));
    int out = fast_new_slot(plan, node->outputs[0], false);
    struct reduce_data *d = malloc(sizeof *d);
    struct cpu_step *step = d && out >= 0 ? cpu_step_new(plan, &fast_reduce_class, node, 1, 1) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    *d = found;
    d->kernels = fast_row_kernels_for(plan->isa);
    step->data = d;
    step->precision = "f32";
    step->in[0] = slot;
    step->out[0] = out;
    fast_set(plan, node->outputs[0], to, out);
    *done = true;
out:
    return status;
}
