/* Interpreted nodes: the step that runs a node by its row of the op table. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/image_impl.h"

/* What a node's subgraphs read of the graph around it. */
struct captured {
    struct mlo_value **values;
    int count;
};

struct eval_state {
    struct mlo_eval scope;     /* holds what is captured, for a node with subgraphs */
    struct mlo_tensor *values; /* inputs, then outputs */
    const struct mlo_tensor **in;
    struct mlo_tensor **out;
};

static void eval_unload(void *state)
{
    struct eval_state *s = state;
    if (!s)
        return;
    if (s->scope.graph)
        mlo_eval_clear(&s->scope);
    free(s->values);
    free(s->in);
    free(s->out);
    free(s);
}

static enum mlo_status eval_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                 struct mlo_error *err)
{
    MLO_UNUSED(program);
    struct eval_state *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    s->values = calloc((size_t)(step->in_count + step->out_count) + 1, sizeof *s->values);
    s->in = calloc((size_t)step->in_count + 1, sizeof(const struct mlo_tensor *));
    s->out = calloc((size_t)step->out_count + 1, sizeof(struct mlo_tensor *));
    if (!s->values || !s->in || !s->out) {
        eval_unload(s);
        return mlo_error_nomem(err);
    }
    if (step->data) {
        enum mlo_status status = mlo_eval_init(&s->scope, step->node->graph, NULL, err);
        if (status != MLO_OK) {
            eval_unload(s);
            return status;
        }
    }
    *state = s;
    return MLO_OK;
}

/* The value's content, borrowed. */
static const struct mlo_tensor *content(struct mlo_program *program, const struct mlo_value *v, int slot,
                                        struct mlo_tensor *t)
{
    if (v->constant)
        return v->constant;
    if (program->plan->slots[slot].kind == CPU_SLOT_TENSOR && !cpu_value_bytes(v, &t->size_bytes)) {
        *t = program->tensors[slot];
        t->owned = false;
    } else {
        *t = (struct mlo_tensor){.dtype = v->type.dtype, .rank = v->type.rank, .data = program->at[slot]};
        cpu_value_dims(v, t->dims, NULL);
        cpu_value_bytes(v, &t->size_bytes);
    }
    return t;
}

/* Later steps trust the shape that is known at compile time, which a file may have stated for a node whose
 * shape depends on data. */
static enum mlo_status check_result(const struct mlo_value *v, const struct mlo_tensor *t,
                                    struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    char got[256], want[256];
    bool fits = v->type.dtype == MLO_DTYPE_NONE || v->type.dtype == t->dtype;
    if (fits && cpu_value_dims(v, dims, NULL))
        fits = t->rank == v->type.rank &&
               (!t->rank || memcmp(dims, t->dims, (size_t)t->rank * sizeof *dims) == 0);
    return fits ? MLO_OK
                : mlo_error_set(err, MLO_EFORMAT, "output '%.120s' is stated to be %.200s, but is %.200s",
                                v->name, mlo_type_describe(&v->type, want, sizeof want),
                                mlo_tensor_describe(t, got, sizeof got));
}

static enum mlo_status eval_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    struct eval_state *s = state;
    const struct mlo_node *node = step->node;
    const struct captured *captured = step->data;
    for (int i = 0; i < node->input_count; i++)
        s->in[i] = node->inputs[i] ? content(program, node->inputs[i], step->in[i], &s->values[i]) : NULL;
    for (int i = 0; captured && i < captured->count; i++) {
        struct mlo_tensor t;
        mlo_eval_feed(&s->scope, captured->values[i],
                      content(program, captured->values[i], step->in[node->input_count + i], &t));
    }
    s->scope.trips_left = MLO_EVAL_MAX_TRIPS;
    for (int i = 0; i < node->output_count; i++) {
        s->out[i] = node->outputs[i] ? &program->tensors[step->out[i]] : NULL;
        if (s->out[i])
            mlo_tensor_clear(s->out[i]);
    }
    enum mlo_status status =
        mlo_node_eval_in(node, s->in, (struct mlo_tensor *const *)s->out, captured ? &s->scope : NULL, err);
    if (captured)
        mlo_eval_drop(&s->scope);
    for (int i = 0; i < node->output_count; i++) {
        if (s->out[i])
            program->at[step->out[i]] = s->out[i]->data;
        if (s->out[i] && status == MLO_OK)
            status = check_result(node->outputs[i], s->out[i], err);
    }
    return status;
}

static struct captured *capture(struct mlo_plan *plan, const struct mlo_node *node)
{
    size_t count = mlo_node_captured(node, NULL, 0);
    struct captured *c = mlo_arena_alloc(plan->arena, sizeof *c);
    if (!c || !(c->values = mlo_arena_calloc(plan->arena, count, sizeof(struct mlo_value *))))
        return NULL;
    c->count = (int)mlo_node_captured(node, c->values, count);
    return c;
}

/* Of the file only the names behind captured slots: the rest is the node's. */
static enum mlo_status eval_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                 struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct captured *captured = step->data;
    cpu_put_i32(w, captured ? captured->count : -1);
    for (int i = 0; captured && i < captured->count; i++)
        cpu_put_text(w, captured->values[i]->name);
    return MLO_OK;
}

static enum mlo_status eval_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                    struct mlo_error *err)
{
    const struct mlo_node *node = step->node;
    struct captured *captured = NULL;
    bool scoped = node->op && node->op->eval_in;
    int count = cpu_get_i32(r);
    if (scoped && !(captured = capture(plan, node)))
        return mlo_error_nomem(err);
    int own = captured ? captured->count : 0;
    cpu_check(r,
              count == (scoped ? own : -1) && step->in_count == node->input_count + own &&
                  step->out_count == node->output_count,
              "an interpreted step is not its node's");
    for (int i = 0; i < own && !cpu_failed(r); i++)
        cpu_check(r, strcmp(cpu_get_text(r), captured->values[i]->name) == 0, "captured values are mixed up");
    for (int i = 0; i < node->input_count + own && !cpu_failed(r); i++) {
        const struct mlo_value *v =
            i < node->input_count ? node->inputs[i] : captured->values[i - node->input_count];
        if (v && !v->constant) /* constants are the skeleton's */
            cpu_value_fits(r, plan, v, step->in[i]);
    }
    for (int i = 0; i < node->output_count && !cpu_failed(r); i++) {
        size_t bytes = 0;
        const struct mlo_value *out = node->outputs[i];
        if (out)
            cpu_value_bytes(out, &bytes);
        cpu_check(r,
                  out ? step->out[i] >= 0 && plan->slots[step->out[i]].size_bytes == bytes : step->out[i] < 0,
                  "an interpreted step's slot is not its output's");
    }
    step->data = captured;
    return cpu_reader_status(r, err);
}

const struct cpu_step_class cpu_eval_class = {.name = "reference",
                                              .load = eval_load,
                                              .run = eval_run,
                                              .unload = eval_unload,
                                              .id = "eval",
                                              .save = eval_save,
                                              .restore = eval_restore};

static const char *precision_of(const struct mlo_node *node)
{
    const struct mlo_value *v = node->output_count ? node->outputs[0] : NULL;
    return !v || v->type.dtype == MLO_FLOAT32 ? "f32" : mlo_dtype_name(v->type.dtype);
}

enum mlo_status cpu_lower_eval(struct mlo_plan *plan, const struct mlo_node *node, struct mlo_error *err)
{
    struct captured *captured = NULL;
    if (node->op && node->op->eval_in && !(captured = capture(plan, node)))
        return mlo_error_nomem(err);
    int ins = node->input_count + (captured ? captured->count : 0);
    struct cpu_step *step = cpu_step_new(plan, &cpu_eval_class, node, ins, node->output_count);
    if (!step)
        return mlo_error_nomem(err);
    step->precision = precision_of(node);
    step->data = captured;
    for (int i = 0; i < ins; i++) {
        const struct mlo_value *value =
            i < node->input_count ? node->inputs[i] : captured->values[i - node->input_count];
        if (!value || value->constant)
            continue;
        step->in[i] = cpu_value_plain(plan, value);
        if (step->in[i] < 0) {
            mlo_error_set(err, MLO_EINTERNAL, "value '%s' is read before it is made", value->name);
            mlo_error_where(err, "node '%s' (%s)", node->name, node->op_type);
            return MLO_EINTERNAL;
        }
    }
    for (int i = 0; i < node->output_count; i++) {
        if (!node->outputs[i])
            continue;
        size_t bytes = 0;
        cpu_value_bytes(node->outputs[i], &bytes);
        step->out[i] = cpu_slot_new(plan, CPU_SLOT_TENSOR, bytes);
        if (step->out[i] < 0)
            return mlo_error_nomem(err);
        plan->values[node->outputs[i]->index].slot[CPU_PLAIN] = step->out[i];
    }
    return MLO_OK;
}
