/* Layer normalization as exporters spell it out: ReduceMean, Sub, Pow or Mul, ReduceMean, Add, Sqrt, Div, and
 * the scale and bias behind. */
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

struct spelled {
    const struct mlo_node *nodes[12]; /* the last one begins the step */
    int count;
    const struct mlo_value *x, *scale, *bias; /* scale and bias: constants of a row, or NULL */
    struct mlo_value *end;
    size_t width;
    float epsilon;
};

static void take(struct spelled *s, const struct mlo_node *node)
{
    s->nodes[s->count++] = node;
    s->end = node->outputs[0];
}

static bool number(const struct mlo_value *value, double *out)
{
    const struct mlo_tensor *t = value ? fast_initializer(value) : NULL;
    if (!t || mlo_tensor_count(t) != 1 || (t->dtype != MLO_FLOAT32 && t->dtype != MLO_INT64))
        return false;
    *out = mlo_tensor_get_f64(t, 0);
    return true;
}

/* A mean over all axes from some one on that keeps them; their length. */
static bool is_row_mean(const struct mlo_node *node, size_t *width)
{
    struct fast_shape s;
    bool reduced[MLO_MAX_RANK];
    if (!node || !mlo_node_is(node, "ReduceMean") || node->inputs[0]->type.dtype != MLO_FLOAT32 ||
        !fast_shape(node->inputs[0], &s) || s.count == 0 || s.rank < 1 ||
        !mlo_node_attr_i(node, "keepdims", 1) || !fast_reduced_axes(node, s.rank, reduced))
        return false;
    int i = s.rank;
    for (*width = 1; i > 0 && reduced[i - 1]; i--)
        *width *= (size_t)s.dims[i - 1];
    for (int k = 0; k < i; k++)
        if (reduced[k])
            return false;
    return i < s.rank;
}

/* The square of the one difference is Pow(d, 2) or Mul(d, d). */
static bool is_square(const struct mlo_node *node, const struct mlo_value *d)
{
    double two;
    if (mlo_node_is(node, "Mul"))
        return node->inputs[0] == d && node->inputs[1] == d;
    return mlo_node_is(node, "Pow") && node->inputs[0] == d && number(node->inputs[1], &two) && two == 2.0;
}

/* A constant with an element for each of a row, in the row's own dims. */
static bool is_row(const struct mlo_value *value, const struct fast_shape *x, size_t width)
{
    const struct mlo_tensor *t = value ? fast_initializer(value) : NULL;
    size_t count = 1;
    if (!t || t->dtype != MLO_FLOAT32 || t->rank > x->rank || mlo_tensor_count(t) != width)
        return false;
    for (int i = 0; i < t->rank && count < width; i++) {
        int64_t dim = t->dims[t->rank - 1 - i];
        if (dim != x->dims[x->rank - 1 - i])
            return false;
        count *= (size_t)dim;
    }
    return true;
}

static bool same_shape(const struct mlo_value *a, const struct fast_shape *s)
{
    struct fast_shape o;
    return fast_shape(a, &o) && o.rank == s->rank && memcmp(o.dims, s->dims, (size_t)s->rank * 8) == 0;
}

/* Mul by a row, and Add of one, behind the division. */
static void find_affine(const struct mlo_plan *plan, const struct fast_shape *s, struct spelled *out)
{
    static const char *const ops[] = {"Mul", "Add"};
    const struct mlo_value **rows[] = {&out->scale, &out->bias};
    for (int i = 0; i < 2; i++) {
        const struct mlo_node *node = fast_reader(plan, out->end);
        if (!node || !mlo_node_is(node, ops[i]) || plan->done[node->index])
            continue;
        const struct mlo_value *row = node->inputs[node->inputs[0] == out->end];
        if (!is_row(row, s, out->width) || !same_shape(node->outputs[0], s))
            continue;
        *rows[i] = row;
        take(out, node);
    }
}

/* Of a difference the readers are the square and the division; some exporters compute it twice. */
static bool find_differences(const struct mlo_plan *plan, const struct mlo_node *mean, struct spelled *out,
                             const struct mlo_node *subs[2])
{
    const struct mlo_value *m = mean->outputs[0];
    if (m->use_count < 1 || m->use_count > 2 || m->is_output || cpu_is_observed(plan, m))
        return false;
    for (int i = 0; i < m->use_count; i++) {
        const struct mlo_node *sub = m->uses[i].node;
        if (sub->graph != m->graph || !mlo_node_is(sub, "Sub") || sub->inputs[0] != out->x ||
            sub->inputs[1] != m || sub->outputs[0]->is_output || plan->done[sub->index] ||
            cpu_is_observed(plan, sub->outputs[0]))
            return false;
        subs[i] = sub;
        take(out, sub);
    }
    if (m->use_count == 1)
        subs[1] = subs[0];
    return true;
}

static bool match(const struct mlo_plan *plan, const struct mlo_node *mean, struct spelled *out)
{
    *out = (struct spelled){.x = mean->inputs[0]};
    const struct mlo_node *subs[2] = {NULL, NULL}, *square = NULL, *div = NULL;
    struct fast_shape s;
    size_t width;
    double epsilon;
    if (plan->done[mean->index] || !is_row_mean(mean, &out->width) || !fast_shape(out->x, &s))
        return false;
    take(out, mean);
    if (!find_differences(plan, mean, out, subs))
        return false;
    int uses = 0;
    for (int i = 0; i < 2; i++) {
        const struct mlo_value *d = subs[i]->outputs[0];
        for (int k = 0; k < d->use_count && (i == 0 || subs[1] != subs[0]); k++, uses++) {
            const struct mlo_node *node = d->uses[k].node;
            if (node->graph != d->graph)
                return false;
            if (is_square(node, d) && (!square || square == node))
                square = node;
            else if (mlo_node_is(node, "Div") && node->inputs[0] == d && !div)
                div = node;
            else
                return false;
        }
    }
    if (!square || !div || plan->done[square->index] || plan->done[div->index])
        return false;
    take(out, square);
    const struct mlo_node *variance = fast_reader(plan, square->outputs[0]);
    if (!is_row_mean(variance, &width) || width != out->width)
        return false;
    take(out, variance);
    const struct mlo_node *add = fast_reader(plan, out->end);
    if (!add || !mlo_node_is(add, "Add") || !number(add->inputs[add->inputs[0] == out->end], &epsilon) ||
        !(epsilon >= 0.0))
        return false;
    take(out, add);
    const struct mlo_node *root = fast_reader(plan, out->end);
    if (!root || !mlo_node_is(root, "Sqrt"))
        return false;
    take(out, root);
    if (fast_reader(plan, out->end) != div || div->inputs[1] != out->end || !same_shape(div->outputs[0], &s))
        return false;
    take(out, div);
    out->epsilon = (float)epsilon;
    find_affine(plan, &s, out);
    return true;
}

enum mlo_status fast_find_norm(struct mlo_plan *plan, struct mlo_error *err)
{
    const struct mlo_graph *g = plan->model->graph;
    for (int n = 0; n < g->node_count; n++) {
        struct spelled s, *kept;
        if (!mlo_node_is(g->nodes[n], "ReduceMean") || !match(plan, g->nodes[n], &s))
            continue;
        kept = mlo_arena_alloc(plan->arena, sizeof *kept);
        if (!kept)
            return mlo_error_nomem(err);
        *kept = s;
        plan->ahead[s.nodes[s.count - 1]->index] = kept;
        for (int i = 0; i + 1 < s.count; i++)
            plan->done[s.nodes[i]->index] = true;
    }
    return MLO_OK;
}

enum mlo_status fast_lower_spelled_norm(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct spelled *s =
        plan->ahead && !mlo_node_is(node, "MatMul") ? plan->ahead[node->index] : NULL; /* attention's */
    int slots[3] = {-1, -1, -1};
    struct cpu_step *step;
    if (!s)
        return MLO_OK;
    MLO_TRY(fast_value(plan, s->x, CPU_PLAIN, &slots[0], err));
    if (s->scale) {
        MLO_TRY(fast_value(plan, s->scale, CPU_PLAIN, &slots[1], err));
    } else {
        float *ones = cpu_aligned(s->width * sizeof *ones);
        for (size_t i = 0; ones && i < s->width; i++)
            ones[i] = 1.0f;
        slots[1] = cpu_slot_const_take(plan, ones, s->width * sizeof *ones);
        if (slots[1] < 0)
            return mlo_error_nomem(err);
    }
    if (s->bias)
        MLO_TRY(fast_value(plan, s->bias, CPU_PLAIN, &slots[2], err));
    MLO_TRY(fast_emit_norm(plan, node, slots, s->end, s->width, s->epsilon, &step, err));
    step->precision = "f32";
    for (int i = 0; i + 1 < s->count; i++)
        if (!cpu_step_fuse(plan, step, s->nodes[i]))
            return mlo_error_nomem(err);
    *done = true;
out:
    return status;
}
