/* A plan into a file: slots, steps, constants, and a skeleton of the model for what needs the graph at run.
 */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/image_fields.h"

/* Smaller constants of interpreted nodes stay in the skeleton, where inference of shapes sees them. */
enum { IN_SKELETON_MAX = 1024 };

struct saver {
    const struct mlo_plan *plan;
    struct cpu_writer w;
    struct mlo_model *skeleton; /* a copy of the model that loses what no step interprets */
    bool *kept;                 /* by node of the main graph */
    bool *used;                 /* by slot */
};

/* --- the skeleton ------------------------------------------------------------------------------------- */

static bool is_fed(const struct mlo_value *v)
{
    return !v->producer && !v->constant;
}

/* Inner values that nobody produces any more come from outside; what is known of them is their type. */
static enum mlo_status feed(struct mlo_graph *g, struct mlo_value *v, struct mlo_error *err)
{
    return v && is_fed(v) && !v->is_input && v->graph == g ? mlo_graph_add_input(g, v, err) : MLO_OK;
}

static bool is_large(const struct mlo_tensor *t)
{
    return t->dtype != MLO_STRING && !mlo_holds_values(t->dtype) && t->size_bytes > IN_SKELETON_MAX;
}

/* Large constants go to the section of constants; in the skeleton they are inputs. */
static enum mlo_status lift_constants(struct saver *s, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = s->skeleton->graph;
    uint32_t count = 0;
    for (int i = 0; i < g->value_count; i++)
        count += g->values[i]->constant && is_large(g->values[i]->constant);
    cpu_put_u32(&s->w, count);
    for (int i = 0; i < g->value_count; i++) {
        struct mlo_value *v = g->values[i];
        if (!v->constant || !is_large(v->constant))
            continue;
        const struct mlo_value *original = mlo_graph_value(s->plan->model->graph, v->name);
        if (!original || !original->constant)
            return mlo_error_set(err, MLO_EINTERNAL, "the constant '%s' is lost", v->name);
        const struct mlo_tensor *t = original->constant;
        cpu_put_text(&s->w, v->name);
        cpu_put_u32(&s->w, (uint32_t)t->dtype);
        cpu_put_u32(&s->w, (uint32_t)t->rank);
        for (int d = 0; d < t->rank; d++)
            cpu_put_i64(&s->w, t->dims[d]);
        cpu_put_u64(&s->w, t->size_bytes);
        cpu_put_const(&s->w, t->data, t->size_bytes);
        v->constant = NULL;
        MLO_TRY(feed(g, v, err));
    }
out:
    return status;
}

static enum mlo_status make_skeleton(struct saver *s, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf onnx = MLO_BUF_INIT;
    MLO_TRY(mlo_model_clone(s->plan->model, &s->skeleton, err));
    struct mlo_graph *g = s->skeleton->graph;
    for (int n = g->node_count - 1; n >= 0; n--)
        if (!s->kept[n])
            mlo_graph_remove_node(g->nodes[n]);
    mlo_graph_remove_unused_values(g);
    for (int i = 0; i < g->value_count; i++)
        if (g->values[i]->use_count || g->values[i]->is_output)
            MLO_TRY(feed(g, g->values[i], err));
    MLO_TRY(lift_constants(s, err));
    MLO_TRY(mlo_onnx_serialize(s->skeleton, &onnx, err));
    cpu_put_u64(&s->w, onnx.len);
    cpu_put_bytes(&s->w, mlo_buf_str(&onnx), onnx.len);
out:
    mlo_buf_clear(&onnx);
    return status;
}

/* --- tables ------------------------------------------------------------------------------------------- */

static void use(struct saver *s, int slot)
{
    if (slot >= 0)
        s->used[slot] = true;
}

static void find_used(struct saver *s)
{
    const struct mlo_plan *plan = s->plan;
    for (int i = 0; i < plan->step_count; i++) {
        const struct cpu_step *step = &plan->steps[i];
        for (int k = 0; k < step->in_count; k++)
            use(s, step->in[k]);
        for (int k = 0; k < step->out_count; k++)
            use(s, step->out[k]);
        use(s, step->begins_as);
        if (step->cls->id && strcmp(step->cls->id, "eval") == 0)
            s->kept[step->node->index] = true;
    }
    for (int i = 0; i < plan->input_count; i++)
        use(s, cpu_value_plain(plan, plan->inputs[i]));
    for (int i = 0; i < plan->model->graph->output_count; i++)
        use(s, plan->output_slots[i]);
}

static void put_slots(struct saver *s)
{
    const struct mlo_plan *plan = s->plan;
    cpu_put_u32(&s->w, (uint32_t)plan->slot_count);
    for (int i = 0; i < plan->slot_count; i++) {
        const struct cpu_slot *slot = &plan->slots[i];
        bool used = s->used[i] && (slot->kind != CPU_SLOT_ARENA || slot->offset != SIZE_MAX);
        cpu_put_u32(&s->w, used ? (uint32_t)slot->kind : CPU_IMAGE_NO_SLOT);
        if (!used)
            continue;
        cpu_put_u64(&s->w, slot->size_bytes);
        if (slot->kind == CPU_SLOT_ARENA)
            cpu_put_u64(&s->w, slot->offset);
        else if (slot->kind == CPU_SLOT_INPUT)
            cpu_put_i32(&s->w, slot->input);
        else if (slot->kind == CPU_SLOT_CONST)
            cpu_put_const(&s->w, slot->data, slot->size_bytes);
    }
}

static void put_ends(struct saver *s)
{
    const struct mlo_plan *plan = s->plan;
    const struct mlo_graph *g = plan->model->graph;
    cpu_put_u32(&s->w, (uint32_t)plan->input_count);
    for (int i = 0; i < plan->input_count; i++) {
        cpu_put_text(&s->w, plan->inputs[i]->name);
        cpu_put_i32(&s->w, cpu_value_plain(plan, plan->inputs[i]));
    }
    cpu_put_u32(&s->w, (uint32_t)g->output_count);
    for (int i = 0; i < g->output_count; i++) {
        cpu_put_text(&s->w, g->outputs[i]->name);
        cpu_put_i32(&s->w, g->outputs[i]->constant ? -1 : plan->output_slots[i]);
    }
}

static enum mlo_status put_step(struct saver *s, const struct cpu_step *step, struct mlo_error *err)
{
    const struct cpu_step_class *cls = step->cls;
    if (!cls->id || !cpu_step_class_find(cls->id) || (!cls->save && step->data)) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "a step of the kind '%s' cannot be written into a plan's file",
                      cls->name);
        mlo_error_where(err, "node '%s' (%s)", step->node ? step->node->name : "",
                        step->node ? step->node->op_type : step->impl);
        mlo_error_hint(err, "the model itself runs as before; it is compiled each time");
        return MLO_EUNSUPPORTED;
    }
    cpu_put_text(&s->w, cls->id);
    cpu_put_text(&s->w, step->node ? step->node->name : "");
    cpu_put_text(&s->w, step->node ? step->node->op_type : "");
    cpu_put_text(&s->w, step->impl);
    cpu_put_text(&s->w, step->precision);
    cpu_put_u32(&s->w, (uint32_t)step->fused_count);
    for (int i = 0; i < step->fused_count; i++)
        cpu_put_text(&s->w, step->fused[i]);
    cpu_put_u32(&s->w, (uint32_t)step->in_count);
    for (int i = 0; i < step->in_count; i++)
        cpu_put_i32(&s->w, step->in[i]);
    cpu_put_u32(&s->w, (uint32_t)step->out_count);
    for (int i = 0; i < step->out_count; i++)
        cpu_put_i32(&s->w, step->out[i]);
    cpu_put_i32(&s->w, step->begins_as);
    return cls->save ? cls->save(s->plan, step, &s->w, err) : MLO_OK;
}

/* --- the file ----------------------------------------------------------------------------------------- */

enum mlo_status cpu_plan_save(const struct mlo_plan *plan, int fd, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct saver s = {.plan = plan};
    s.kept = calloc((size_t)plan->model->graph->node_count + 1, sizeof *s.kept);
    s.used = calloc((size_t)plan->slot_count + 1, sizeof *s.used);
    if (!s.kept || !s.used) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (plan->observed_count) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "a plan that observes values is not written to a file");
        goto out;
    }
    find_used(&s);
    cpu_put_u32(&s.w, (uint32_t)plan->numerics);
    cpu_put_u32(&s.w, (uint32_t)plan->isa);
    cpu_put_u32(&s.w, (uint32_t)plan->half);
    cpu_put_u32(&s.w, plan->threads);
    cpu_put_i64(&s.w, plan->batch);
    cpu_put_u64(&s.w, plan->arena_bytes);
    cpu_put_u64(&s.w, plan->scratch_bytes);
    MLO_TRY(make_skeleton(&s, err));
    put_slots(&s);
    put_ends(&s);
    cpu_put_u32(&s.w, (uint32_t)plan->step_count);
    for (int i = 0; i < plan->step_count; i++)
        MLO_TRY(put_step(&s, &plan->steps[i], err));
    MLO_TRY(cpu_fields_write(&s.w, CPU_IMAGE_MAGIC, fd, err));
out:
    mlo_buf_clear(&s.w.fields);
    free(s.w.constants);
    free(s.kept);
    free(s.used);
    mlo_model_free(s.skeleton);
    return status;
}
