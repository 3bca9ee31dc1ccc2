/* Conv as one oneDNN primitive with what follows it: in int8 where its operands are dequantized constants and
 * activations, else in float32 with a BatchNormalization behind it folded into the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/depthwise_impl.h"
#include "engines/cpu/fast/winograd_impl.h"

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

/* Marks what the step computes besides the node. */
static enum mlo_status finish(struct mlo_plan *plan, const struct conv *c, const struct fast_chain *chain,
                              struct cpu_step *step, struct mlo_error *err)
{
    if (c->norm) {
        fast_mark_done(plan, c->norm);
        if (!cpu_step_fuse(plan, step, c->norm))
            return mlo_error_nomem(err);
    }
    return fast_chain_take(plan, chain, step, err);
}

/* Without AVX2, oneDNN adds to a depthwise result by instructions that want rows of whole 16 bytes. */
static bool adds_unaligned(const struct mlo_plan *plan, const struct conv *c, const struct fast_chain *chain)
{
    return plan->isa < MLO_ISA_AVX2 && chain->residual && c->groups > 1 && c->ys.dims[1] % 4 != 0;
}

/* With AVX-512, oneDNN 2.6 adds wrongly, or where it may not, to what a convolution of groups makes of
 * padding alone. */
static bool adds_to_padding(const struct conv *c, const struct fast_chain *chain)
{
    const struct mlo_window *w = &c->window;
    bool found = false;
    for (int i = 0; i < w->spatial; i++) {
        int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1;
        found |= w->pad_begin[i] >= reach || w->pad_end[i] >= reach;
    }
    return found && chain->residual && c->groups > 1;
}

/* Emits the step; *done stays false where oneDNN has no good implementation. */
static enum mlo_status emit(struct mlo_plan *plan, const struct conv *c, const struct fast_chain *chain,
                            const struct fast_product *request, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    dnnl_dims_t strides, dilations, begin, end;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd;
    struct cpu_step *step;
    struct fast_product p = *request;
    p.node = c->node;
    p.x = c->x;
    p.layout = CPU_LAST;
    p.chain = chain;
    p.columns = c->ys.dims[1];
    if (adds_unaligned(plan, c, chain) || adds_to_padding(c, chain))
        return MLO_OK;
    dnnl_primitive_attr_t attr = fast_product_attr(&p);
    bool ok = attr && geometry(c, strides, dilations, begin, end) &&
              fast_md(&p.x_md, c->xs.rank, c->xs.dims, p.x_type, CPU_LAST) &&
              fast_md(&p.y_md, c->ys.rank, c->ys.dims, p.y_type, CPU_LAST) &&
              fast_md(&p.bias_md, 1, &p.columns, dnnl_f32, CPU_PLAIN) &&
              weights_md(c, p.w_type, true, &p.w_md) && weights_md(c, p.w_type, false, &p.w_plain) &&
              dnnl_dilated_convolution_forward_desc_init(
                  &desc, dnnl_forward_inference, dnnl_convolution_direct, &p.x_md, &p.w_md,
                  p.bias ? &p.bias_md : NULL, &p.y_md, strides, dilations, begin, end) == dnnl_success &&
              fast_pd(&desc, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    if (!ok)
        return MLO_OK;
    MLO_TRY(fast_emit_product(plan, &p, pd, &step, err));
    MLO_TRY(finish(plan, c, chain, step, err));
    *done = true;
out:
    return status;
}

static bool half_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    /* fixed point is no faster than what Winograd leaves of the sums */
    return !(plan->half == CPU_HALF_FIXED && winograd_supports(plan, p)) && tile_half_supports(plan, p);
}

/* Own kernels for float32, and for models of 16 bits where there is something faster: the first that can. */
static const struct {
    bool (*supports)(const struct mlo_plan *plan, const struct tile_product *p);
    enum mlo_status (*emit)(struct mlo_plan *plan, const struct mlo_node *node, const struct tile_product *p,
                            struct cpu_step **step, struct mlo_error *err);
} ways[] = {
    {depthwise_supports, depthwise_emit},
    {half_supports, tile_half_emit},
    {winograd_supports, winograd_emit},
    {tile_supports, tile_emit},
};

/* Nobody else needs the picture with its channels last, and it is copied with a border anyway. */
static bool is_planar(const struct mlo_plan *plan, const struct conv *c)
{
    const struct cpu_value *v = &plan->values[c->x->index];
    return v->slot[CPU_PLAIN] >= 0 && v->slot[CPU_LAST] < 0 && c->x->use_count == 1 && c->padded &&
           c->groups == 1 && c->ws.dims[1] > 1 && c->ws.dims[1] <= TILE_PLANES_MAX;
}

/* The same by own kernels, in float32. */
static enum mlo_status emit_tile(struct mlo_plan *plan, const struct conv *c, const struct fast_chain *chain,
                                 const struct fast_product *r, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct tile_product p = {.type = TILE_F32,
                             .weights = r->weights,
                             .weights_bytes = c->ws.count * sizeof(float),
                             .bias = r->bias,
                             .half = fast_is_half(plan, c->node->inputs[1]),
                             .epilogue = {.y_dtype = MLO_FLOAT32},
                             .residual = -1};
    tile_conv_geometry(&c->window, &c->xs, &c->ws, c->groups, &p);
    size_t way = 0;
    while (way < MLO_COUNT(ways) && !ways[way].supports(plan, &p))
        way++;
    if (way == MLO_COUNT(ways) || !tile_chain(chain, &p))
        return MLO_OK;
    p.planar = ways[way].emit == tile_emit && is_planar(plan, c);
    MLO_TRY(tile_slots(plan, c->x, CPU_LAST, chain, &p, err));
    struct cpu_step *step;
    MLO_TRY(ways[way].emit(plan, c->node, &p, &step, err));
    MLO_TRY(finish(plan, c, chain, step, err));
    fast_set(plan, chain->end, CPU_LAST, p.y);
    *done = true;
out:
    return status;
}

/* --- int8 ------------------------------------------------------------------------------------------------
 */

/* With a residual where there can be one: the sum reads the output's memory, so that behind it there are
 * bytes only if the residual is bytes too. */
static void int8_chain(const struct mlo_plan *plan, const struct conv *c, struct fast_chain *chain)
{
    fast_chain_follow(plan, c->y, true, true, chain);
    if (chain->residual && chain->quantized && !fast_is_quantized(plan, chain->residual))
        fast_chain_follow(plan, c->y, false, true, chain);
}

/* By oneDNN: with the sum, or else without. */
static enum mlo_status emit_int8(struct mlo_plan *plan, const struct conv *c,
                                 struct fast_int8_numbers *numbers, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *w = numbers->w->q;
    size_t channels = (size_t)c->ws.dims[0], depth = c->ws.count / channels;
    /* without padding every product is there, so that the zero point is a constant */
    bool fold = numbers->x->zero_point != 0 && !c->padded;
    float *scales = calloc(channels, sizeof *scales), *shifts = calloc(channels, sizeof *shifts);
    int32_t *sums = calloc(channels, sizeof *sums);
    if (!scales || !shifts || !sums) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (fold)
        fast_add_columns(w->data, channels, depth, depth, 1, sums);
    numbers->sums = sums;
    struct fast_product p = {.weights = w->data,
                             .x_type = fast_dtype(numbers->x->dtype),
                             .w_type = dnnl_s8,
                             .bias = numbers->bias || fold ? shifts : NULL,
                             .scales = scales,
                             .x_zero_point = fold ? 0 : numbers->x->zero_point};
    struct fast_chain chain;
    struct cpu_qparams residual_q;
    int8_chain(plan, c, &chain);
    for (bool again = true; again && !*done;) {
        again = chain.residual != NULL;
        if (chain.residual && chain.quantized)
            residual_q = plan->values[chain.residual->index].q;
        p.residual_q = chain.residual && chain.quantized ? &residual_q : NULL;
        p.y_type = chain.quantized ? fast_dtype(chain.q.dtype) : dnnl_f32;
        fast_product_numbers(numbers, &chain, channels, scales, shifts);
        MLO_TRY(emit(plan, c, &chain, &p, done, err));
        if (again && !*done)
            fast_chain_follow(plan, c->y, false, true, &chain);
    }
out:
    free(scales);
    free(shifts);
    free(sums);
    return status;
}

static enum mlo_status lower_int8(struct mlo_plan *plan, const struct conv *c, bool *done,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_weights w;
    const struct mlo_value *bias_value = mlo_node_input(c->node, 2);
    const struct mlo_tensor *bias = NULL;
    size_t channels = (size_t)c->ws.dims[0], depth = c->ws.count / channels;
    if (!fast_is_quantized(plan, c->x) || !fast_int8_weights(c->node->inputs[1], 0, &w))
        return MLO_OK;
    struct cpu_qparams xq = plan->values[c->x->index].q;
    if (bias_value) {
        MLO_TRY(fast_const_f32(plan, bias_value, &bias, err));
        if (!bias)
            return MLO_OK;
    }
    struct tile_int8 own = {.node = c->node,
                            .x = c->x,
                            .y = c->y,
                            .layout = CPU_LAST,
                            .w_scales = w.scales,
                            .w_scale_count = w.scale_count,
                            .bias = bias ? bias->data : NULL,
                            .alpha = 1.0f,
                            .beta = 1.0f,
                            .product = {.weights = w.q->data, .weights_bytes = c->ws.count}};
    tile_conv_geometry(&c->window, &c->xs, &c->ws, c->groups, &own.product);
    MLO_TRY(tile_lower_int8(plan, &own, done, err));
    /* for int8 inputs, oneDNN halves the weights where there is no VNNI, and rounds them */
    if ((xq.dtype == MLO_INT8 && plan->isa < MLO_ISA_AVX512_VNNI) ||
        !fast_int8_exact(plan, w.q->data, channels, depth, depth, 1))
        return MLO_OK;
    struct fast_int8_numbers numbers = {.x = &xq, .w = &w, .bias = own.bias, .alpha = 1.0f, .beta = 1.0f};
    if (!*done)
        MLO_TRY(emit_int8(plan, c, &numbers, done, err));
out:
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

/* The weights and, in place, the bias of a convolution together with the norm. */
static void fold_norm(const struct mlo_node *norm, const float *w, size_t channels, size_t depth, float *out,
                      float *bias)
{
    const float *gamma = fast_initializer(norm->inputs[1])->data,
                *beta = fast_initializer(norm->inputs[2])->data;
    const float *mean = fast_initializer(norm->inputs[3])->data,
                *var = fast_initializer(norm->inputs[4])->data;
    double epsilon = (double)mlo_node_attr_f(norm, "epsilon", 1e-5f);
    for (size_t oc = 0; oc < channels; oc++) {
        double factor = (double)gamma[oc] / sqrt((double)var[oc] + epsilon);
        for (size_t k = 0; k < depth; k++)
            out[oc * depth + k] = (float)((double)w[oc * depth + k] * factor);
        bias[oc] = (float)(((double)bias[oc] - (double)mean[oc]) * factor + (double)beta[oc]);
    }
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
        weights = malloc(c->ws.count * sizeof *weights);
        if (!weights) {
            status = mlo_error_nomem(err);
            goto out;
        }
        fold_norm(c->norm, w->data, channels, depth, weights, bias);
        c->y = c->norm->outputs[0];
    }
    struct fast_product r = {.weights = weights ? (const void *)weights : w->data,
                             .x_type = dnnl_f32,
                             .w_type = dnnl_f32,
                             .y_type = dnnl_f32,
                             .bias = b || c->norm ? bias : NULL};
    struct fast_chain chain;
    for (int may_sum = 1; may_sum >= 0 && !*done; may_sum--) {
        fast_chain_follow(plan, c->y, may_sum != 0, false, &chain);
        MLO_TRY(emit_tile(plan, c, &chain, &r, done, err));
        if (!*done)
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
