/* Softmax and LogSoftmax of rows by own kernels, over other axes by oneDNN. */
#include <stdlib.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

struct softmax_data {
    const struct fast_row_kernels *kernels;
    size_t rows, width;
    bool log;
};

struct softmax_call {
    const struct softmax_data *d;
    const float *x;
    float *y;
};

static void softmax_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct softmax_call *c = arg;
    const struct softmax_data *d = c->d;
    d->kernels->softmax(c->x + begin * d->width, end - begin, d->width, d->log, c->y + begin * d->width);
}

static enum mlo_status softmax_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                   struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    struct softmax_call c = {step->data, program->at[step->in[0]], program->at[step->out[0]]};
    mlo_pool_run(program->pool, c.d->rows, 8192 / c.d->width + 1, softmax_range, &c);
    return MLO_OK;
}

static enum mlo_status softmax_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                    struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct softmax_data *d = step->data;
    cpu_put_u64(w, d->rows);
    cpu_put_u64(w, d->width);
    cpu_put_u32(w, d->log);
    return MLO_OK;
}

static enum mlo_status softmax_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                       struct mlo_error *err)
{
    struct softmax_data *d = calloc(1, sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    d->kernels = fast_row_kernels_for(plan->isa);
    d->rows = cpu_get_u64(r);
    d->width = cpu_get_u64(r);
    uint32_t log = cpu_get_u32(r);
    d->log = log == 1;
    size_t bytes = cpu_product(d->rows, d->width, sizeof(float));
    if (cpu_check(r, step->in_count == 1 && step->out_count == 1, "a step has other operands") &&
        cpu_check(r, d->rows > 0 && d->width > 0 && log <= 1, "a softmax has impossible sizes") &&
        cpu_slot_holds(r, plan, step->in[0], bytes))
        cpu_slot_holds(r, plan, step->out[0], bytes);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_softmax_class = {.name = "softmax",
                                                  .run = softmax_run,
                                                  .free_data = free,
                                                  .id = "softmax",
                                                  .save = softmax_save,
                                                  .restore = softmax_restore};

/* --- lowering ------------------------------------------------------------------------------------------- */

static enum mlo_status lower_rows(struct mlo_plan *plan, const struct mlo_node *node, size_t rows,
                                  size_t width, bool log, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int from;
    MLO_TRY(fast_value(plan, node->inputs[0], CPU_PLAIN, &from, err));
    int to = fast_new_slot(plan, node->outputs[0], false);
    struct softmax_data *d = malloc(sizeof *d);
    struct cpu_step *step = d && to >= 0 ? cpu_step_new(plan, &fast_softmax_class, node, 1, 1) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    *d = (struct softmax_data){
        .kernels = fast_row_kernels_for(plan->isa), .rows = rows, .width = width, .log = log};
    step->data = d;
    step->precision = "f32";
    step->in[0] = from;
    step->out[0] = to;
    fast_set(plan, node->outputs[0], CPU_PLAIN, to);
out:
    return status;
}

static enum mlo_status lower_axis(struct mlo_plan *plan, const struct mlo_node *node,
                                  const struct fast_shape *s, int axis, bool log, bool *done,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_unary u = {.x = node->inputs[0], .y = node->outputs[0], .layout = CPU_PLAIN};
    dnnl_softmax_v2_desc_t desc;
    dnnl_primitive_desc_t pd;
    struct cpu_step *step;
    dnnl_primitive_attr_t attr = fast_attr();
    bool ok = attr && fast_md(&u.x_md, s->rank, s->dims, dnnl_f32, CPU_PLAIN) &&
              dnnl_softmax_v2_forward_desc_init(&desc, dnnl_forward_inference,
                                                log ? dnnl_softmax_log : dnnl_softmax_accurate, &u.x_md,
                                                &u.x_md, axis) == dnnl_success &&
              fast_pd(&desc, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    if (!ok)
        return MLO_OK;
    u.y_md = u.x_md;
    MLO_TRY(fast_emit_unary(plan, node, pd, &u, &step, err));
    *done = true;
out:
    return status;
}

enum mlo_status fast_lower_softmax(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                   struct mlo_error *err)
{
    struct fast_shape s;
    bool log = mlo_node_is(node, "LogSoftmax");
    if ((!log && !mlo_node_is(node, "Softmax")) || node->inputs[0]->type.dtype != MLO_FLOAT32 ||
        !fast_shape(node->inputs[0], &s) || s.count == 0 || s.rank < 1)
        return MLO_OK;
    int64_t axis = mlo_node_attr_i(node, "axis", node->version < 13 ? 1 : -1);
    axis += axis < 0 ? s.rank : 0;
    if (axis < 0 || axis >= s.rank)
        return MLO_OK;
    size_t width = 1, behind = 1;
    for (int64_t i = axis; i < s.rank; i++)
        width *= (size_t)s.dims[i];
    for (int64_t i = axis + 1; i < s.rank; i++)
        behind *= (size_t)s.dims[i];
    if (node->version < 13 || behind == 1) { /* before opset 13 all dims from the axis on are one row */
        *done = true;
        return lower_rows(plan, node, s.count / width, width, log, err);
    }
    return s.rank <= 6 ? lower_axis(plan, node, &s, (int)axis, log, done, err) : MLO_OK;
}
