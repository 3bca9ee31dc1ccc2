/* Own steps on rows of floats: layer normalization; and transposition: of matrices by an own step, else by
 * oneDNN's reorder. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

/* --- LayerNormalization ------------------------------------------------------------------------------- */

struct norm_data {
    const struct fast_row_kernels *kernels;
    size_t rows, width;
    float epsilon;
};

struct norm_call {
    const struct norm_data *d;
    const float *x, *scale, *bias;
    float *y;
};

static void norm_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct norm_call *c = arg;
    size_t width = c->d->width;
    for (size_t r = begin; r < end; r++)
        c->d->kernels->normalize(c->x + r * width, width, c->scale, c->bias, c->d->epsilon, c->y + r * width);
}

static enum mlo_status norm_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    struct norm_call call = {.d = step->data,
                             .x = program->at[step->in[0]],
                             .scale = program->at[step->in[1]],
                             .bias = step->in[2] >= 0 ? program->at[step->in[2]] : NULL,
                             .y = program->at[step->out[0]]};
    mlo_pool_run(program->pool, call.d->rows, 16384 / (call.d->width + 1) + 1, norm_range, &call);
    return MLO_OK;
}

static enum mlo_status norm_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                 struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    struct norm_data d = *(const struct norm_data *)step->data;
    d.kernels = NULL;
    cpu_put_bytes(w, &d, sizeof d);
    return MLO_OK;
}

static enum mlo_status norm_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                    struct mlo_error *err)
{
    struct norm_data *d = malloc(sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    cpu_get_bytes(r, d, sizeof *d);
    d->kernels = fast_row_kernels_for(plan->isa);
    size_t row = cpu_product(d->width, sizeof(float), 1);
    if (cpu_check(r, step->in_count == 3 && step->out_count == 1 && d->width > 0,
                  "a step has other operands") &&
        cpu_slot_holds(r, plan, step->in[0], cpu_product(d->rows, d->width, sizeof(float))) &&
        cpu_slot_holds(r, plan, step->out[0], cpu_product(d->rows, d->width, sizeof(float))) &&
        cpu_slot_holds(r, plan, step->in[1], row) && step->in[2] >= 0)
        cpu_slot_holds(r, plan, step->in[2], row);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_norm_class = {.name = "layer-normalization",
                                               .run = norm_run,
                                               .free_data = free,
                                               .id = "layer-normalization",
                                               .save = norm_save,
                                               .restore = norm_restore};

enum mlo_status fast_emit_norm(struct mlo_plan *plan, const struct mlo_node *node, const int slots[3],
                               const struct mlo_value *end, size_t width, float epsilon,
                               struct cpu_step **out, struct mlo_error *err)
{
    struct fast_shape s;
    int to = fast_shape(end, &s) ? fast_new_slot(plan, end, false) : -1;
    struct norm_data *d = malloc(sizeof *d);
    struct cpu_step *step = d && to >= 0 ? cpu_step_new(plan, &fast_norm_class, node, 3, 1) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    *d = (struct norm_data){.kernels = fast_row_kernels_for(plan->isa),
                            .rows = s.count / width,
                            .width = width,
                            .epsilon = epsilon};
    step->data = d;
    memcpy(step->in, slots, 3 * sizeof *slots);
    step->out[0] = to;
    fast_set(plan, end, CPU_PLAIN, to);
    *out = step;
    return MLO_OK;
}

enum mlo_status fast_lower_layer_norm(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape x, s, b;
    const struct mlo_value *bias = mlo_node_input(node, 2);
    if (!mlo_node_is(node, "LayerNormalization") || node->inputs[0]->type.dtype != MLO_FLOAT32 ||
        !fast_shape(node->inputs[0], &x) || !fast_shape(node->inputs[1], &s) || x.count == 0 ||
        (bias && !fast_shape(bias, &b)) || mlo_node_attr_i(node, "stash_type", 1) != 1)
        return MLO_OK;
    for (int i = 1; i < node->output_count; i++)
        if (node->outputs[i])
            return MLO_OK;
    int64_t axis = mlo_node_attr_i(node, "axis", -1);
    axis += axis < 0 ? x.rank : 0;
    size_t width = 1;
    for (int64_t i = MLO_MAX(axis, 0); i < x.rank; i++)
        width *= (size_t)x.dims[i];
    if (axis < 0 || axis >= x.rank || s.count != width || (bias && b.count != width))
        return MLO_OK;
    int slots[3] = {-1, -1, -1};
    MLO_TRY(fast_value(plan, node->inputs[0], CPU_PLAIN, &slots[0], err));
    MLO_TRY(fast_value(plan, node->inputs[1], CPU_PLAIN, &slots[1], err));
    if (bias)
        MLO_TRY(fast_value(plan, bias, CPU_PLAIN, &slots[2], err));
    struct cpu_step *step;
    MLO_TRY(fast_emit_norm(plan, node, slots, node->outputs[0], width,
                           mlo_node_attr_f(node, "epsilon", 1e-5f), &step, err));
    *done = true;
out:
    return status;
}

/* --- Transpose ---------------------------------------------------------------------------------------- */

/* Moving the channels to the end, or from there to where they belong, only changes what the bytes are called:
 * channels last of one value is row-major of the other. */
static bool transpose_is_name(struct mlo_plan *plan, const struct mlo_value *in, const struct mlo_value *out,
                              const int64_t *perm, int rank)
{
    bool to_last = perm && rank >= 3 && rank <= 5 && perm[0] == 0 && perm[rank - 1] == 1;
    bool from_last = perm && rank >= 3 && rank <= 5 && perm[0] == 0 && perm[1] == rank - 1;
    for (int i = 1; i < rank - 1 && to_last; i++)
        to_last = perm[i] == i + 1;
    for (int i = 2; i < rank && from_last; i++)
        from_last = perm[i] == i - 1;
    const struct cpu_value *v = &plan->values[in->index];
    bool bytes = fast_is_quantized(plan, in), known = false;
    const int *slots = bytes ? v->qslot : v->slot;
    struct cpu_qparams q = v->q;
    for (int way = 0; way < 2; way++) {
        enum cpu_layout from = way ? CPU_PLAIN : CPU_LAST, to = way ? CPU_LAST : CPU_PLAIN;
        if (!(way ? from_last : to_last) || slots[from] < 0)
            continue;
        if (bytes)
            fast_set_q(plan, out, to, slots[from], &q);
        else
            fast_set(plan, out, to, slots[from]);
        known = true;
    }
    return known;
}

/* Whether it turns matrices: axes of the input, those of one element left out, [outer, a, b] -> [outer, b,
 * a], where a and b may be several axes each. */
static bool turns_matrices(const struct fast_shape *x, const int64_t *perm, size_t *count, size_t *rows,
                           size_t *columns)
{
    int order[MLO_MAX_RANK] = {0}, axes[MLO_MAX_RANK] = {0}, n = 0, m = 0, same = 0;
    for (int i = 0; i < x->rank; i++) {
        int p = (int)(perm ? perm[i] : x->rank - 1 - i);
        if (x->dims[p] != 1)
            order[n++] = p;
    }
    for (int i = 0; i < x->rank; i++)
        if (x->dims[i] != 1)
            axes[m++] = i;
    while (same < n && order[same] == axes[same])
        same++;
    int first = same; /* where the second group begins in the input */
    while (first < n && axes[first] != order[same])
        first++;
    for (int i = same; i < n; i++)
        if (order[i] != axes[same + (i - same + first - same) % (n - same)])
            return false;
    *count = *rows = *columns = 1;
    for (int i = 0; i < n; i++)
        *(i < same ? count : i < first ? rows : columns) *= (size_t)x->dims[axes[i]];
    return same < n;
}

enum mlo_status fast_lower_transpose(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape x, y;
    size_t count = 0;
    int from, next = 0;
    dnnl_dims_t strides = {0}, own = {0}, dims = {0};
    if (!mlo_node_is(node, "Transpose") || !fast_shape(node->inputs[0], &x) ||
        !fast_shape(node->outputs[0], &y) || x.count == 0 || x.rank < 1 || x.rank > 6)
        return MLO_OK;
    const struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    const int64_t *perm = mlo_node_attr_ints(node, "perm", &count);
    bool bytes = fast_is_quantized(plan, in), view = true;
    dnnl_data_type_t type = bytes ? fast_dtype(plan->values[in->index].q.dtype) : fast_dtype(in->type.dtype);
    if (type == dnnl_data_type_undef)
        return MLO_OK;
    if (transpose_is_name(plan, in, out, perm, x.rank)) {
        *done = true;
        return MLO_OK;
    }
    for (int64_t i = x.rank - 1, stride = 1; i >= 0; i--) {
        own[i] = stride;
        stride *= x.dims[i];
    }
    for (int i = 0; i < x.rank; i++) {
        int64_t p = perm ? perm[i] : x.rank - 1 - i;
        dims[i] = y.dims[i];
        strides[i] = own[p];
        if (y.dims[i] != 1) { /* axes of one element may stand anywhere */
            view = view && p >= next;
            next = (int)p;
        }
    }
    if (bytes)
        MLO_TRY(fast_qvalue(plan, in, CPU_PLAIN, &from, err));
    else
        MLO_TRY(fast_value(plan, in, CPU_PLAIN, &from, err));
    int to = from;
    size_t matrices, rows, columns;
    if (!view && type == dnnl_f32 && !bytes && turns_matrices(&x, perm, &matrices, &rows, &columns) &&
        fast_turns(rows, columns)) {
        struct cpu_step *step;
        if ((to = fast_new_slot(plan, out, false)) < 0)
            return mlo_error_nomem(err);
        MLO_TRY(fast_emit_transpose(plan, node, from, to, matrices, rows, columns, &step, err));
    } else if (!view) {
        dnnl_memory_desc_t a, b;
        dnnl_primitive_desc_t pd = NULL;
        struct cpu_step *step;
        dnnl_primitive_attr_t attr = fast_attr();
        bool ok = attr && fast_engine() &&
                  dnnl_memory_desc_init_by_strides(&a, x.rank, dims, type, strides) == dnnl_success &&
                  fast_md(&b, x.rank, y.dims, type, CPU_PLAIN) &&
                  dnnl_reorder_primitive_desc_create(&pd, &a, fast_engine(), &b, fast_engine(), attr) ==
                      dnnl_success;
        dnnl_primitive_attr_destroy(attr);
        if (!ok)
            return MLO_OK;
        MLO_TRY(fast_step(plan, node, pd, &step, err));
        if ((to = fast_new_slot(plan, out, bytes)) < 0)
            return mlo_error_nomem(err);
        fast_reads(step, DNNL_ARG_FROM, from, &a);
        fast_writes(step, DNNL_ARG_TO, to, &b);
        step->precision = type == dnnl_f32 ? "f32" : "8 bits";
    }
    if (bytes)
        fast_set_q(plan, out, CPU_PLAIN, to, &plan->values[in->index].q);
    else
        fast_set(plan, out, CPU_PLAIN, to);
    *done = true;
out:
    return status;
}
