/* From a group of elementwise nodes to a step: layouts, slots, whether it is compiled. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/expr_impl.h"

enum { COMPILE_FROM = 16384 };

/* The layout in which most elements of the operands already are. */
static enum cpu_layout choose_layout(const struct expr_group *g)
{
    size_t plain = 0, last = 0;
    if (g->shape.rank < 3 || g->shape.rank > 5)
        return CPU_PLAIN;
    for (int i = 0; i < g->program.input_count; i++) {
        const struct expr_operand *o = &g->operands[i];
        struct fast_shape s;
        if (!o->value || o->value->constant || !fast_shape(o->value, &s) || s.rank != g->shape.rank)
            continue;
        const struct cpu_value *v = &g->plan->values[o->value->index];
        const int *slots = o->quantized ? v->qslot : v->slot;
        if (slots[CPU_PLAIN] >= 0 && slots[CPU_LAST] >= 0)
            continue;
        *(slots[CPU_LAST] >= 0 ? &last : &plain) += s.count;
    }
    return last > plain ? CPU_LAST : CPU_PLAIN;
}

/* The slot and layout of an operand, for a result in `layout`. */
static enum mlo_status bring(struct expr_group *g, int i, enum cpu_layout layout, int *slot,
                             struct fast_shape *s, enum cpu_layout *in_layout, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct expr_operand *o = &g->operands[i];
    if (o->norm) {
        *s = (struct fast_shape){.rank = g->shape.rank - 1, .count = (size_t)g->shape.dims[1]};
        for (int k = 0; k < s->rank; k++)
            s->dims[k] = k == 0 ? g->shape.dims[1] : 1;
        *in_layout = CPU_PLAIN;
        *slot = fast_const_floats(g->plan, o->norm, s->count);
        return *slot < 0 ? mlo_error_nomem(err) : MLO_OK;
    }
    fast_shape(o->value, s);
    *in_layout = s->rank == g->shape.rank ? layout : CPU_PLAIN;
    if (o->quantized)
        MLO_TRY(fast_qvalue(g->plan, o->value, *in_layout, slot, err));
    else
        MLO_TRY(fast_value(g->plan, o->value, *in_layout, slot, err));
    if (s->rank < 3 || s->rank > 5)
        *in_layout = CPU_PLAIN;
out:
    return status;
}

static enum mlo_status emit(struct expr_group *g, enum cpu_layout layout, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_plan *plan = g->plan;
    struct fast_shape shapes[EXPR_INPUTS_MAX];
    enum cpu_layout layouts[EXPR_INPUTS_MAX];
    int slots[EXPR_INPUTS_MAX], count = g->program.input_count;
    struct mlo_value *end = g->members[g->count - 1];
    struct expr_step *d = calloc(1, sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    for (int i = 0; i < count; i++) { /* a try without emitting anything */
        if (g->operands[i].norm) {
            shapes[i] = (struct fast_shape){.rank = g->shape.rank - 1, .count = (size_t)g->shape.dims[1]};
            for (int k = 0; k < shapes[i].rank; k++)
                shapes[i].dims[k] = k == 0 ? g->shape.dims[1] : 1;
            layouts[i] = CPU_PLAIN;
        } else {
            fast_shape(g->operands[i].value, &shapes[i]);
            layouts[i] = shapes[i].rank == g->shape.rank && shapes[i].rank >= 3 && shapes[i].rank <= 5
                             ? layout
                             : CPU_PLAIN;
        }
    }
    g->program.result = end->type.dtype;
    d->program = g->program;
    if (!expr_lay_out(d, &g->shape, layout, shapes, layouts) || !expr_finish(&d->program))
        goto out;
    for (int i = 0; i < count; i++)
        MLO_TRY(bring(g, i, layout, &slots[i], &shapes[i], &layouts[i], err));
    int to = fast_new_slot(plan, end, false);
    struct cpu_step *step =
        to >= 0 ? cpu_step_new(plan, &fast_elementwise_class, g->nodes[0], count, 1) : NULL;
    if (!step) {
        status = mlo_error_nomem(err);
        goto out;
    }
    d->isa = plan->isa;
    /* interpretation costs 10 to 400 ps more an element; a compilation takes a third of a second, once */
    const char *wish = getenv("MLOPT_CODEGEN");
    if (g->shape.count >= COMPILE_FROM || (wish && strcmp(wish, "always") == 0))
        d->compiled = expr_compiled(plan->isa, &d->program);
    step->impl = expr_step_impl(d);
    step->data = d;
    step->precision = end->type.dtype == MLO_FLOAT32 ? "f32" : "int8";
    for (int i = 0; i < count; i++)
        step->in[i] = slots[i];
    step->out[0] = to;
    d = NULL;
    for (int i = 0; i < g->count; i++) {
        fast_mark_done(plan, g->nodes[i]);
        if (i > 0 && !cpu_step_fuse(plan, step, g->nodes[i])) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    fast_set(plan, end, layout, to);
    *done = true;
out:
    free(d);
    return status;
}

enum mlo_status fast_lower_elementwise(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (!expr_begins(node))
        return MLO_OK;
    struct expr_group *g = calloc(1, sizeof *g);
    if (!g)
        return mlo_error_nomem(err);
    g->plan = plan;
    if (!fast_shape(node->outputs[0], &g->shape) || g->shape.count == 0 || !expr_group_add(g, node))
        goto out;
    expr_group_grow(g);
    expr_group_drop_dequantize(g);
    enum cpu_layout layout = choose_layout(g);
    MLO_TRY(emit(g, layout, done, err));
    if (!*done && layout == CPU_LAST) /* an operand of lower rank may be dense in row-major order only */
        MLO_TRY(emit(g, CPU_PLAIN, done, err));
out:
    free(g);
    return status;
}
