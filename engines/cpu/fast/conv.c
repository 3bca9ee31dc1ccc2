/* Conv as one oneDNN primitive with what follows it: in int8 where its operands are dequantized constants and
 * activations, else in float32 with a BatchNormalization behind it folded into the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

struct conv {
    const struct mlo_node *node;
    const struct mlo_value *x;
    struct mlo_value *y; /* after BatchNormalization, when that is folded */
    const struct mlo_node *norm;
    struct fast_shape xs, ys, ws;
    struct mlo_window window;
    int64_t groups;
    bool padded;
};

struct request {
    const void *weights; /* row-major */
    dnnl_data_type_t x_type, w_type, y_type;
    const float *bias;    /* one a channel, or NULL */
    const float *scales;  /* output scales, one a channel, or NULL */
    int32_t x_zero_point; /* given to oneDNN when not 0 */
    const struct cpu_qparams *residual_q;
};

static bool geometry(const struct conv *c, dnnl_dims_t strides, dnnl_dims_t dilations, dnnl_dims_t begin,
                     dnnl_dims_t end)
{
    const struct mlo_window *w = &c->window;
    for (int i = 0; i < w->spatial; i++) {
        strides[i] = w->stride[i];
        dilations[i] = w->dilation[i] - 1;
        begin[i] = w->pad_begin[i];
        /* oneDNN wants the padding that the output really reads */
        end[i] =
            (w->out[i] - 1) * w->stride[i] + (w->kernel[i] - 1) * w->dilation[i] + 1 - w->in[i] - begin[i];
    }
    return w->spatial >= 1;
}

static bool weights_md(const struct conv *c, dnnl_data_type_t type, bool any, dnnl_memory_desc_t *md)
{
    dnnl_dims_t dims;
    int rank = 0;
    if (c->groups > 1) {
        dims[rank++] = c->groups;
        dims[rank++] = c->ws.dims[0] / c->groups;
    } else {
        dims[rank++] = c->ws.dims[0];
    }
    for (int i = 1; i < c->ws.rank; i++)
        dims[rank++] = c->ws.dims[i];
    if (!any)
        return fast_md(md, rank, dims, type, CPU_PLAIN);
    return dnnl_memory_desc_init_by_tag(md, rank, dims, type, dnnl_format_tag_any) == dnnl_success;
}

/* Emits the step; *done stays false where oneDNN has no good implementation. */
static enum mlo_status emit(struct mlo_plan *plan, const struct conv *c, const struct fast_chain *chain,
                            const struct request *r, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    dnnl_memory_desc_t x, w, w_plain, b, y;
    dnnl_dims_t strides, dilations, begin, end;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    int64_t channels = c->ys.dims[1];
    dnnl_primitive_attr_t attr = fast_attr();
    if (!attr || !geometry(c, strides, dilations, begin, end) ||
        !fast_md(&x, c->xs.rank, c->xs.dims, r->x_type, CPU_LAST) ||
        !fast_md(&y, c->ys.rank, c->ys.dims, r->y_type, CPU_LAST) ||
        !fast_md(&b, 1, &channels, dnnl_f32, CPU_PLAIN) || !weights_md(c, r->w_type, true, &w) ||
        !weights_md(c, r->w_type, false, &w_plain) || !fast_chain_attr(chain, attr, r->residual_q, true))
        goto out;
    if (r->scales && dnnl_primitive_attr_set_output_scales(attr, channels, 2, r->scales) != dnnl_success)
        goto out;
    if (r->x_zero_point &&
        dnnl_primitive_attr_set_zero_points(attr, DNNL_ARG_SRC, 1, 0, &r->x_zero_point) != dnnl_success)
        goto out;
    if (dnnl_dilated_convolution_forward_desc_init(&desc, dnnl_forward_inference, dnnl_convolution_direct, &x,
                                                   &w, r->bias ? &b : NULL, &y, strides, dilations, begin,
                                                   end) != dnnl_success ||
        !fast_pd(&desc, attr, &pd))
        goto out;
    int in, residual = -1;
    if (r->scales)
        MLO_TRY(fast_qvalue(plan, c->x, CPU_LAST, &in, err));
    else
        MLO_TRY(fast_value(plan, c->x, CPU_LAST, &in, err));
    if (chain->residual && r->residual_q)
        MLO_TRY(fast_qvalue(plan, chain->residual, CPU_LAST, &residual, err));
    else if (chain->residual)
        MLO_TRY(fast_value(plan, chain->residual, CPU_LAST, &residual, err));
    const dnnl_memory_desc_t *w_md = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    int weights = fast_const_reordered(plan, r->weights, &w_plain, w_md);
    int bias = r->bias ? fast_const_floats(plan, r->bias, (size_t)channels) : -1;
    int to = fast_new_slot(plan, chain->end, false);
    if (weights < 0 || to < 0 || (r->bias && bias < 0)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    dnnl_memory_desc_t w_used = *w_md;
    struct cpu_step *step;
    dnnl_primitive_desc_t taken = pd;
    pd = NULL;
    MLO_TRY(fast_step(plan, c->node, taken, &step, err));
    step->precision = r->scales ? "int8" : "f32";
    fast_reads(step, DNNL_ARG_SRC, in, &x);
    fast_reads(step, DNNL_ARG_WEIGHTS, weights, &w_used);
    if (r->bias)
        fast_reads(step, DNNL_ARG_BIAS, bias, &b);
    fast_writes(step, DNNL_ARG_DST, to, &y);
    if (residual >= 0) {
        step->in[step->in_count++] = residual;
        step->begins_as = residual;
    }
    if (c->norm && !cpu_step_fuse(plan, step, c->norm)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (c->norm)
        fast_mark_done(plan, c->norm);
    MLO_TRY(fast_chain_take(plan, chain, step, err));
    fast_set(plan, chain->end, CPU_LAST, to);
    *done = true;
out:
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

/* --- int8 ------------------------------------------------------------------------------------------------
 */

static bool int8_chain(const struct mlo_plan *plan, const struct conv *c, struct fast_chain *chain)
{
    fast_chain_follow(plan, c->y, true, true, chain);
    if (!chain->residual || !chain->quantized)
        return true;
    /* the sum reads the output's memory: the residual must be bytes too */
    if (fast_is_quantized(plan, chain->residual))
        return true;
    fast_chain_follow(plan, c->y, false, true, chain);
    return true;
}

static enum mlo_status lower_int8(struct mlo_plan *plan, const struct conv *c, bool *done,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_weights w;
    const struct mlo_value *bias_value = mlo_node_input(c->node, 2);
    const struct mlo_tensor *bias = NULL;
    size_t channels = (size_t)c->ws.dims[0], depth = c->ws.count / channels;
    float *scales = NULL, *shifts = NULL;
    if (!fast_is_quantized(plan, c->x) || !fast_int8_weights(c->node->inputs[1], 0, &w) ||
        !fast_int8_exact(plan, w.q->data, channels, depth, depth, 1))
        return MLO_OK;
    struct cpu_qparams xq = plan->values[c->x->index].q, residual_q;
    struct fast_chain chain;
    if (!int8_chain(plan, c, &chain))
        return MLO_OK;
    if (bias_value) {
        MLO_TRY(fast_const_f32(plan, bias_value, &bias, err));
        if (!bias)
            return MLO_OK;
    }
    scales = calloc(channels, sizeof *scales);
    shifts = calloc(channels, sizeof *shifts);
    if (!scales || !shifts) {
        status = mlo_error_nomem(err);
        goto out;
    }
    bool fold =
        xq.zero_point != 0 && !c->padded; /* every product is there, so the zero point is a constant */
    for (size_t oc = 0; oc < channels; oc++) {
        double unit = (double)xq.scale * (double)w.scales[w.scale_count > 1 ? oc : 0];
        double shift = bias ? (double)((const float *)bias->data)[oc] / unit : 0.0;
        int64_t sum = 0;
        for (size_t k = 0; fold && k < depth; k++)
            sum += ((const int8_t *)w.q->data)[oc * depth + k];
        shifts[oc] = (float)(shift - (double)sum * (double)xq.zero_point);
        scales[oc] = (float)(unit / fast_chain_unit(&chain));
    }
    struct request r = {.weights = w.q->data,
                        .x_type = fast_dtype(xq.dtype),
                        .w_type = dnnl_s8,
                        .y_type = chain.quantized ? fast_dtype(chain.q.dtype) : dnnl_f32,
                        .bias = bias || fold ? shifts : NULL,
                        .scales = scales,
                        .x_zero_point = fold ? 0 : xq.zero_point};
    if (chain.residual && chain.quantized) {
        residual_q = plan->values[chain.residual->index].q;
        r.residual_q = &residual_q;
    }
    MLO_TRY(emit(plan, c, &chain, &r, done, err));
    if (!*done && chain.residual) { /* again without the sum */
        fast_chain_follow(plan, c->y, false, true, &chain);
        for (size_t oc = 0; oc < channels; oc++) {
            double unit = (double)xq.scale * (double)w.scales[w.scale_count > 1 ? oc : 0];
            scales[oc] = (float)(unit / fast_chain_unit(&chain));
        }
        r.residual_q = NULL;
        r.y_type = chain.quantized ? fast_dtype(chain.q.dtype) : dnnl_f32;
        MLO_TRY(emit(plan, c, &chain, &r, done, err));
    }
out:
    free(scales);
    free(shifts);
    return status;
}

/* --- float32 ---------------------------------------------------------------------------------------------
 */

/* BatchNormalization behind the convolution, with constant statistics. */
static const struct mlo_node *find_norm(const struct mlo_plan *plan, const struct mlo_value *y)
{
    const struct mlo_node *n = fast_reader(plan, y);
    if (!n || !mlo_node_is(n, "BatchNormalization") || n->inputs[0] != y ||
        mlo_node_attr_i(n, "training_mode", 0))
        return NULL;
    for (int i = 1; i < n->output_count; i++)
        if (n->outputs[i])
            return NULL;
    for (int i = 1; i < 5; i++) {
        const struct mlo_tensor *t = fast_initializer(n->inputs[i]);
        if (!t || t->dtype != MLO_FLOAT32)
            return NULL;
    }
    return n;
}

static enum mlo_status lower_f32(struct mlo_plan *plan, struct conv *c, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *w = NULL, *b = NULL;
    float *weights = NULL, *bias = NULL;
    size_t channels = (size_t)c->ws.dims[0], depth = c->ws.count / channels;
    MLO_TRY(fast_const_f32(plan, c->node->inputs[1], &w, err));
    if (!w)
        return MLO_OK;
    if (mlo_node_input(c->node, 2)) {
        MLO_TRY(fast_const_f32(plan, c->node->inputs[2], &b, err));
        if (!b)
            return MLO_OK;
    }
    bias = calloc(channels, sizeof *bias);
    if (!bias) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (b)
        memcpy(bias, b->data, channels * sizeof *bias);
    c->norm = find_norm(plan, c->y);
    if (c->norm) {
        const float *gamma = fast_initializer(c->norm->inputs[1])->data,
                    *beta = fast_initializer(c->norm->inputs[2])->data;
        const float *mean = fast_initializer(c->norm->inputs[3])->data,
                    *var = fast_initializer(c->norm->inputs[4])->data;
        double epsilon = (double)mlo_node_attr_f(c->norm, "epsilon", 1e-5f);
        weights = malloc(c->ws.count * sizeof *weights);
        if (!weights) {
            status = mlo_error_nomem(err);
            goto out;
        }
        for (size_t oc = 0; oc < channels; oc++) {
            double factor = (double)gamma[oc] / sqrt((double)var[oc] + epsilon);
            for (size_t k = 0; k < depth; k++)
                weights[oc * depth + k] = (float)((double)((const float *)w->data)[oc * depth + k] * factor);
            bias[oc] = (float)(((double)bias[oc] - (double)mean[oc]) * factor + (double)beta[oc]);
        }
        c->y = c->norm->outputs[0];
    }
    struct request r = {.weights = weights ? (const void *)weights : w->data,
                        .x_type = dnnl_f32,
                        .w_type = dnnl_f32,
                        .y_type = dnnl_f32,
                        .bias = b || c->norm ? bias : NULL};
    struct fast_chain chain;
    for (int may_sum = 1; may_sum >= 0 && !*done; may_sum--) {
        fast_chain_follow(plan, c->y, may_sum != 0, false, &chain);
        MLO_TRY(emit(plan, c, &chain, &r, done, err));
    }
out:
    free(weights);
    free(bias);
    return status;
}

enum mlo_status fast_lower_conv(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    enum mlo_status status;
    struct conv c = {.node = node};
    if (!mlo_node_is(node, "Conv"))
        return MLO_OK;
    c.x = node->inputs[0];
    c.y = node->outputs[0];
    if (c.x->type.dtype != MLO_FLOAT32 || !fast_shape(c.x, &c.xs) || !fast_shape(c.y, &c.ys) ||
        !fast_shape(node->inputs[1], &c.ws) || c.xs.rank < 3 || c.xs.rank > 5 || c.ys.count == 0)
        return MLO_OK;
    c.groups = mlo_node_attr_i(node, "group", 1);
    MLO_TRY(mlo_window_init(&c.window, node, c.xs.rank - 2, c.xs.dims + 2, c.ws.dims + 2, err));
    for (int i = 0; i < c.window.spatial; i++)
        c.padded |= c.window.pad_begin[i] != 0 || c.window.pad_end[i] != 0;
    MLO_TRY(lower_int8(plan, &c, done, err));
    if (!*done)
        MLO_TRY(lower_f32(plan, &c, done, err));
out:
    return status;
}
