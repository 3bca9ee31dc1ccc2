/* Pooling: maxima of bytes stay bytes, means of bytes have an own kernel, small global pools of floats are
 * reductions, the rest is oneDNN in float32. */
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

enum { SMALL_POOL = 16384 /* elements */ };

/* The primitive for one window on `x`; pd stays NULL where oneDNN has none. */
static bool describe(const struct fast_shape *xs, const struct fast_shape *ys, const struct mlo_window *w,
                     dnnl_alg_kind_t alg, dnnl_data_type_t type, dnnl_memory_desc_t *x, dnnl_memory_desc_t *y,
                     dnnl_primitive_desc_t *pd)
{
    dnnl_pooling_desc_t desc;
    dnnl_dims_t strides, kernel, begin, end;
    for (int i = 0; i < w->spatial; i++) {
        if (w->dilation[i] != 1)
            return false;
        strides[i] = w->stride[i];
        kernel[i] = w->kernel[i];
        begin[i] = w->pad_begin[i];
        end[i] = (w->out[i] - 1) * w->stride[i] + w->kernel[i] - w->in[i] - begin[i];
        if (alg != dnnl_pooling_max && end[i] > w->pad_end[i])
            return false; /* rounding up changes the mean's divisor */
    }
    dnnl_primitive_attr_t attr = fast_attr();
    bool ok = fast_md(x, xs->rank, xs->dims, type, CPU_LAST) &&
              fast_md(y, ys->rank, ys->dims, type, CPU_LAST) &&
              dnnl_pooling_forward_desc_init(&desc, dnnl_forward_inference, alg, x, y, strides, kernel, begin,
                                             end) == dnnl_success &&
              fast_pd(&desc, attr, pd);
    dnnl_primitive_attr_destroy(attr);
    return ok;
}

static enum mlo_status emit(struct mlo_plan *plan, const struct mlo_node *node, const struct mlo_window *w,
                            dnnl_alg_kind_t alg, bool quantized, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    struct fast_shape xs, ys;
    struct fast_unary u = {.x = in, .y = out, .layout = CPU_LAST, .quantized = quantized};
    dnnl_primitive_desc_t pd;
    struct cpu_step *step;
    fast_shape(in, &xs);
    fast_shape(out, &ys);
    dnnl_data_type_t type = quantized ? fast_dtype(plan->values[in->index].q.dtype) : dnnl_f32;
    if (!describe(&xs, &ys, w, alg, type, &u.x_md, &u.y_md, &pd))
        return MLO_OK;
    MLO_TRY(fast_emit_unary(plan, node, pd, &u, &step, err));
    step->precision = quantized ? "int8" : "f32";
    *done = true;
out:
    return status;
}

static bool fits(const struct mlo_node *node, struct fast_shape *xs)
{
    struct fast_shape ys;
    return node->inputs[0]->type.dtype == MLO_FLOAT32 && fast_shape(node->inputs[0], xs) &&
           fast_shape(node->outputs[0], &ys) && xs->rank >= 3 && xs->rank <= 5 && xs->count && ys.count;
}

enum mlo_status fast_lower_pool(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    enum mlo_status status;
    struct fast_shape xs;
    struct mlo_window w;
    bool max = mlo_node_is(node, "MaxPool");
    if ((!max && !mlo_node_is(node, "AveragePool")) || !fits(node, &xs) ||
        (node->output_count > 1 && node->outputs[1]))
        return MLO_OK;
    MLO_TRY(mlo_window_init(&w, node, xs.rank - 2, xs.dims + 2, NULL, err));
    if (max)
        MLO_TRY(emit(plan, node, &w, dnnl_pooling_max, fast_is_quantized(plan, node->inputs[0]), done, err));
    else if (fast_is_quantized(plan, node->inputs[0]))
        MLO_TRY(fast_lower_qaverage(plan, node, &w, done, err));
    if (!max && !*done)
        MLO_TRY(emit(plan, node, &w,
                     mlo_node_attr_i(node, "count_include_pad", 0) ? dnnl_pooling_avg_include_padding
                                                                   : dnnl_pooling_avg_exclude_padding,
                     false, done, err));
out:
    return status;
}

/* Mean of bytes, quantized again when a QuantizeLinear follows. */
static enum mlo_status lower_qmean(struct mlo_plan *plan, const struct mlo_node *node,
                                   const struct fast_shape *xs, bool *done, struct mlo_error *err)
{
    enum mlo_status status;
    struct fast_chain chain;
    struct cpu_step *step;
    struct cpu_qparams q = plan->values[node->inputs[0]->index].q;
    int from;
    int64_t pixels = 1;
    for (int i = 2; i < xs->rank; i++)
        pixels *= xs->dims[i];
    if (pixels > 1 << 20) /* keeps the sums inside 32 bits */
        return MLO_OK;
    fast_chain_follow(plan, node->outputs[0], false, true, &chain);
    bool quantize = chain.quantized && chain.post_count == 0;
    const struct mlo_value *end = quantize ? chain.end : node->outputs[0];
    MLO_TRY(fast_qvalue(plan, node->inputs[0], CPU_LAST, &from, err));
    int to = fast_new_slot(plan, end, false);
    if (to < 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(fast_emit_qmean(plan, node, from, &q, xs->dims[0], pixels, xs->dims[1], to,
                            quantize ? &chain.q : NULL, &step, err));
    if (quantize)
        MLO_TRY(fast_chain_take(plan, &chain, step, err));
    fast_set(plan, end, CPU_LAST, to);
    *done = true;
out:
    return status;
}

enum mlo_status fast_lower_global_pool(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape xs;
    bool max = mlo_node_is(node, "GlobalMaxPool");
    if ((!max && !mlo_node_is(node, "GlobalAveragePool")) || !fits(node, &xs))
        return MLO_OK;
    bool quantized = fast_is_quantized(plan, node->inputs[0]);
    if (!max && quantized)
        MLO_TRY(lower_qmean(plan, node, &xs, done, err));
    /* the library's call costs 0.3 us more, and its loops over much less */
    if (!*done && !quantized && xs.count <= SMALL_POOL)
        MLO_TRY(fast_lower_reduce(plan, node, done, err));
    if (*done)
        goto out;
    struct mlo_window w = {.spatial = xs.rank - 2};
    for (int i = 0; i < w.spatial; i++) {
        w.kernel[i] = w.in[i] = xs.dims[i + 2];
        w.stride[i] = w.dilation[i] = w.out[i] = 1;
    }
    MLO_TRY(emit(plan, node, &w, max ? dnnl_pooling_max : dnnl_pooling_avg_include_padding, max && quantized,
                 done, err));
out:
    return status;
}
