/* Gather as copies of rows by index. A table of constants that is quantized behind the Gather is quantized
 * once, when the plan is made, and what is quantized already is gathered in bytes. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

struct gather {
    uint64_t outer, size, picks, row_bytes; /* result: [outer][picks][row]; the table has `size` rows */
    uint32_t index_bytes;                   /* 4 or 8 */
};

static int64_t index_at(const void *indices, const struct gather *g, size_t i)
{
    return g->index_bytes == 8 ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
}

static inline __attribute__((always_inline)) void copy_rows(const struct gather *g, const char *x, char *y,
                                                            const void *indices, size_t row)
{
    for (size_t o = 0; o < g->outer; o++, x += g->size * row)
        for (size_t k = 0; k < g->picks; k++, y += row) {
            int64_t index = index_at(indices, g, k);
            memcpy(y, x + (size_t)(index < 0 ? index + (int64_t)g->size : index) * row, row);
        }
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, void *state,
                           struct mlo_error *err)
{
    MLO_UNUSED(state);
    const struct gather *g = step->data;
    const void *indices = program->at[step->in[1]];
    const char *x = program->at[step->in[0]];
    char *y = program->at[step->out[0]];
    int64_t size = (int64_t)g->size;
    for (size_t k = 0; k < g->picks; k++) {
        int64_t index = index_at(indices, g, k);
        if (index < -size || index >= size)
            return mlo_error_set(err, MLO_EINVAL, "index %lld is outside of [%lld, %lld]", (long long)index,
                                 (long long)-size, (long long)size - 1);
    }
    if (g->row_bytes == 4)
        copy_rows(g, x, y, indices, 4);
    else if (g->row_bytes == 8)
        copy_rows(g, x, y, indices, 8);
    else if (g->row_bytes == 32)
        copy_rows(g, x, y, indices, 32);
    else
        copy_rows(g, x, y, indices, g->row_bytes);
    return MLO_OK;
}

static enum mlo_status save(const struct mlo_plan *plan, const struct cpu_step *step, struct cpu_writer *w,
                            struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct gather *g = step->data;
    cpu_put_u64(w, g->outer);
    cpu_put_u64(w, g->size);
    cpu_put_u64(w, g->picks);
    cpu_put_u64(w, g->row_bytes);
    cpu_put_u32(w, g->index_bytes);
    return MLO_OK;
}

static enum mlo_status restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                               struct mlo_error *err)
{
    struct gather *g = calloc(1, sizeof *g);
    if (!g)
        return mlo_error_nomem(err);
    step->data = g;
    g->outer = cpu_get_u64(r);
    g->size = cpu_get_u64(r);
    g->picks = cpu_get_u64(r);
    g->row_bytes = cpu_get_u64(r);
    g->index_bytes = cpu_get_u32(r);
    bool sizes = g->outer > 0 && g->size > 0 && g->size <= INT64_MAX && g->picks > 0 && g->row_bytes > 0 &&
                 (g->index_bytes == 4 || g->index_bytes == 8);
    if (cpu_check(r, step->in_count == 2 && step->out_count == 1 && sizes, "a gather is of nothing") &&
        cpu_slot_holds(r, plan, step->in[0], cpu_product(g->outer, g->size, g->row_bytes)) &&
        cpu_slot_holds(r, plan, step->in[1], cpu_product(g->picks, g->index_bytes, 1)))
        cpu_slot_holds(r, plan, step->out[0], cpu_product(g->outer, g->picks, g->row_bytes));
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_gather_class = {
    .name = "gather", .run = run, .free_data = free, .id = "gather", .save = save, .restore = restore};

/* --- lowering ------------------------------------------------------------------------------------------- */

static size_t element_size(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    bool whole = info && info->bits >= 8 && info->bits % 8 == 0;
    return whole && dtype != MLO_STRING && !mlo_holds_values(dtype) ? (size_t)info->bits / 8 : 0;
}

struct quantizing {
    const struct fast_kernels *kernels;
    const float *x;
    size_t count;
    struct cpu_qparams q;
};

static bool make_bytes(void *arg, void *out)
{
    const struct quantizing *t = arg;
    t->kernels->quantize(t->x, t->count, &t->q, out);
    return true;
}

/* The QuantizeLinear that alone reads what is gathered of constant floats; or NULL. */
static const struct mlo_node *quantized_behind(const struct mlo_plan *plan, const struct mlo_node *node,
                                               struct cpu_qparams *q)
{
    const struct mlo_tensor *table = fast_initializer(node->inputs[0]);
    const struct mlo_node *next = fast_reader(plan, node->outputs[0]);
    return table && table->dtype == MLO_FLOAT32 && next && mlo_node_is(next, "QuantizeLinear") &&
                   next->inputs[0] == node->outputs[0] && fast_qparams(next, q)
               ? next
               : NULL;
}

static int quantized_table(struct mlo_plan *plan, const struct mlo_tensor *table, const struct cpu_qparams *q)
{
    struct quantizing t = {fast_kernels_for(plan->isa), table->data, mlo_tensor_count(table), *q};
    int32_t params[] = {0, q->zero_point, (int32_t)q->dtype, (int32_t)plan->isa};
    memcpy(params, &q->scale, sizeof q->scale);
    struct cpu_const_key key = {.kind = "quantized table",
                                .source = table->data,
                                .source_bytes = table->size_bytes,
                                .params = params,
                                .params_bytes = sizeof params};
    return cpu_shared_const(plan, &key, t.count, make_bytes, &t);
}

/* Bytes of a constant that DequantizeLinear turns into the values of x: its slot, or -1. */
static int constant_bytes(const struct mlo_plan *plan, const struct mlo_value *x, struct cpu_qparams *q)
{
    const struct mlo_node *dq = x->producer;
    bool known = dq && mlo_node_is(dq, "DequantizeLinear") && dq->inputs[0]->constant && fast_qparams(dq, q);
    return known ? plan->values[dq->inputs[0]->index].slot[CPU_PLAIN] : -1;
}

enum mlo_status fast_lower_gather(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape x, index, y;
    struct cpu_qparams q;
    if (!mlo_node_is(node, "Gather") || !fast_shape(node->inputs[0], &x) ||
        !fast_shape(node->inputs[1], &index) || !fast_shape(node->outputs[0], &y) || y.count == 0 ||
        x.count == 0)
        return MLO_OK;
    const struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    enum mlo_dtype itype = node->inputs[1]->type.dtype;
    size_t size = element_size(in->type.dtype);
    int64_t axis = mlo_node_attr_i(node, "axis", 0);
    axis += axis < 0 ? x.rank : 0;
    if (!size || axis < 0 || axis >= x.rank || (itype != MLO_INT64 && itype != MLO_INT32))
        return MLO_OK;
    const struct mlo_node *behind = quantized_behind(plan, node, &q);
    int table = -1, indices;
    bool bytes = false;
    if (behind) {
        table = quantized_table(plan, fast_initializer(in), &q);
        if (table < 0)
            return mlo_error_nomem(err);
        out = behind->outputs[0];
        size = 1;
    } else if ((table = constant_bytes(plan, in, &q)) >= 0) {
        bytes = true;
    } else if (fast_is_quantized(plan, in)) {
        q = plan->values[in->index].q;
        bytes = true;
        MLO_TRY(fast_qvalue(plan, in, CPU_PLAIN, &table, err));
    } else if (fast_is_available(plan, in)) {
        MLO_TRY(fast_value(plan, in, CPU_PLAIN, &table, err));
    } else {
        return MLO_OK;
    }
    size = bytes ? 1 : size;
    MLO_TRY(fast_value(plan, node->inputs[1], CPU_PLAIN, &indices, err));
    struct gather *g = calloc(1, sizeof *g);
    int to = fast_new_slot(plan, out, bytes);
    struct cpu_step *step = g && to >= 0 ? cpu_step_new(plan, &fast_gather_class, node, 2, 1) : NULL;
    if (!step) {
        free(g);
        return mlo_error_nomem(err);
    }
    *g = (struct gather){.outer = 1,
                         .size = (uint64_t)x.dims[axis],
                         .picks = index.count,
                         .row_bytes = size,
                         .index_bytes = itype == MLO_INT64 ? 8 : 4};
    for (int i = 0; i < x.rank; i++)
        if (i != axis)
            *(i < axis ? &g->outer : &g->row_bytes) *= (uint64_t)x.dims[i];
    step->data = g;
    step->precision = bytes || behind                 ? "8 bits"
                      : in->type.dtype == MLO_FLOAT32 ? "f32"
                                                      : mlo_dtype_name(in->type.dtype);
    step->in[0] = table;
    step->in[1] = indices;
    step->out[0] = to;
    if (behind) {
        fast_mark_done(plan, behind);
        if (!cpu_step_fuse(plan, step, behind))
            return mlo_error_nomem(err);
    }
    if (bytes)
        fast_set_q(plan, out, CPU_PLAIN, to, &q);
    else
        fast_set(plan, out, CPU_PLAIN, to);
    *done = true;
out:
    return status;
}
