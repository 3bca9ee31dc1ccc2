/* Steps of oneDNN's primitives, as the lowerings have them in common: what they read and write, and where the
 * results are known to be. */
#include "engines/cpu/fast/prim_impl.h"

static enum mlo_status source(struct mlo_plan *plan, const struct mlo_value *value, enum cpu_layout layout,
                              bool quantized, int *slot, struct mlo_error *err)
{
    return quantized ? fast_qvalue(plan, value, layout, slot, err)
                     : fast_value(plan, value, layout, slot, err);
}

enum mlo_status fast_emit_unary(struct mlo_plan *plan, const struct mlo_node *node, dnnl_primitive_desc_t pd,
                                const struct fast_unary *u, struct cpu_step **step, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int from, to;
    MLO_TRY(source(plan, u->x, u->layout, u->quantized, &from, err));
    if ((to = fast_new_slot(plan, u->y, u->quantized)) < 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    dnnl_primitive_desc_t taken = pd;
    pd = NULL;
    MLO_TRY(fast_step(plan, node, taken, step, err));
    fast_reads(*step, DNNL_ARG_SRC, from, &u->x_md);
    fast_writes(*step, DNNL_ARG_DST, to, &u->y_md);
    if (u->quantized) {
        struct cpu_qparams q = plan->values[u->x->index].q;
        fast_set_q(plan, u->y, u->layout, to, &q);
    } else {
        fast_set(plan, u->y, u->layout, to);
    }
out:
    dnnl_primitive_desc_destroy(pd);
    return status;
}

/* --- products ------------------------------------------------------------------------------------------- */

dnnl_primitive_attr_t fast_product_attr(const struct fast_product *p)
{
    dnnl_primitive_attr_t attr = fast_attr();
    bool ok = attr && fast_chain_attr(p->chain, attr, p->residual_q) &&
              (!p->scales ||
               dnnl_primitive_attr_set_output_scales(attr, p->columns, 2, p->scales) == dnnl_success) &&
              (!p->x_zero_point || dnnl_primitive_attr_set_zero_points(attr, DNNL_ARG_SRC, 1, 0,
                                                                       &p->x_zero_point) == dnnl_success);
    if (ok)
        return attr;
    dnnl_primitive_attr_destroy(attr);
    return NULL;
}

enum mlo_status fast_emit_product(struct mlo_plan *plan, const struct fast_product *p,
                                  dnnl_primitive_desc_t pd, struct cpu_step **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *added = p->chain->residual;
    int in, residual = -1;
    MLO_TRY(source(plan, p->x, p->layout, p->scales != NULL, &in, err));
    if (added)
        MLO_TRY(source(plan, added, p->layout, p->residual_q != NULL, &residual, err));
    dnnl_memory_desc_t used = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    int weights = fast_const_reordered(plan, p->weights, &p->w_plain, &used);
    int bias = p->bias ? fast_const_floats(plan, p->bias, (size_t)p->columns) : -1;
    int to = fast_new_slot(plan, p->chain->end, false);
    if (weights < 0 || to < 0 || (p->bias && bias < 0)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct cpu_step *step;
    dnnl_primitive_desc_t taken = pd;
    pd = NULL;
    MLO_TRY(fast_step(plan, p->node, taken, &step, err));
    step->precision = p->scales ? "int8" : "f32";
    fast_reads(step, DNNL_ARG_SRC, in, &p->x_md);
    fast_reads(step, DNNL_ARG_WEIGHTS, weights, &used);
    if (p->bias)
        fast_reads(step, DNNL_ARG_BIAS, bias, &p->bias_md);
    fast_writes(step, DNNL_ARG_DST, to, &p->y_md);
    if (residual >= 0) {
        step->in[step->in_count++] = residual;
        step->begins_as = residual;
    }
    fast_set(plan, p->chain->end, p->layout, to);
    *out = step;
out:
    dnnl_primitive_desc_destroy(pd);
    return status;
}

void fast_product_numbers(const struct fast_int8_numbers *n, const struct fast_chain *chain, size_t columns,
                          float *scales, float *shifts)
{
    for (size_t j = 0; j < columns; j++) {
        double unit =
            (double)n->x->scale * (double)n->w->scales[n->w->scale_count > 1 ? j : 0] * (double)n->alpha;
        double shift = n->bias ? (double)n->bias[j] * (double)n->beta / unit : 0.0;
        double zero = n->sums ? (double)n->sums[j] * (double)n->x->zero_point : 0.0;
        shifts[j] = (float)(shift - zero);
        scales[j] = (float)(unit / fast_chain_unit(chain));
    }
}
