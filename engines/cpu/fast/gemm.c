/* Gemm and MatMul: an inner product where the right operand is constant (int8 when both are dequantized), a
 * batched matmul otherwise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/tile_impl.h"

struct gemm {
    const struct mlo_node *node;
    const struct mlo_value *x, *w, *bias;
    struct mlo_value *y;
    int64_t m, n, k;
    bool transposed; /* weights are [n, k] */
    float alpha, beta;
};

static bool describe(const struct mlo_node *node, struct gemm *g)
{
    struct fast_shape x, w, y;
    *g = (struct gemm){.node = node,
                       .x = node->inputs[0],
                       .w = node->inputs[1],
                       .y = node->outputs[0],
                       .alpha = 1.0f,
                       .beta = 1.0f};
    if (!fast_shape(g->x, &x) || !fast_shape(g->w, &w) || !fast_shape(g->y, &y) || w.rank != 2 ||
        x.rank < 2 || y.count == 0 || x.count == 0 || g->x->type.dtype != MLO_FLOAT32 ||
        g->w->type.dtype != MLO_FLOAT32)
        return false;
    g->k = x.dims[x.rank - 1];
    g->m = (int64_t)x.count / g->k;
    if (mlo_node_is(node, "Gemm")) {
        if (mlo_node_attr_i(node, "transA", 0))
            return false;
        g->transposed = mlo_node_attr_i(node, "transB", 0) != 0;
        g->alpha = mlo_node_attr_f(node, "alpha", 1.0f);
        g->beta = mlo_node_attr_f(node, "beta", 1.0f);
        g->bias = mlo_node_input(node, 2);
    }
    g->n = w.dims[!g->transposed];
    struct fast_shape b;
    /* a bias per column; anything else is left to the op table */
    return !g->bias || (fast_shape(g->bias, &b) && b.rank <= 2 && (int64_t)b.count == g->n &&
                        (b.rank == 0 || b.dims[b.rank - 1] == g->n));
}

static enum mlo_status emit(struct mlo_plan *plan, const struct gemm *g, const struct fast_chain *chain,
                            const struct fast_product *request, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    dnnl_inner_product_desc_t desc;
    dnnl_primitive_desc_t pd;
    struct cpu_step *step;
    struct fast_product p = *request;
    int64_t xd[] = {g->m, g->k}, yd[] = {g->m, g->n};
    dnnl_dims_t wd = {g->n, g->k}, strides = {g->transposed ? g->k : 1, g->transposed ? 1 : g->n};
    p.node = g->node;
    p.x = g->x;
    p.layout = CPU_PLAIN;
    p.chain = chain;
    p.columns = g->n;
    dnnl_primitive_attr_t attr = fast_product_attr(&p);
    bool ok = attr && fast_md(&p.x_md, 2, xd, p.x_type, CPU_PLAIN) &&
              fast_md(&p.y_md, 2, yd, p.y_type, CPU_PLAIN) &&
              fast_md(&p.bias_md, 1, &p.columns, dnnl_f32, CPU_PLAIN) &&
              dnnl_memory_desc_init_by_tag(&p.w_md, 2, wd, p.w_type, dnnl_format_tag_any) == dnnl_success &&
              dnnl_memory_desc_init_by_strides(&p.w_plain, 2, wd, p.w_type, strides) == dnnl_success &&
              dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_inference, &p.x_md, &p.w_md,
                                                   p.bias ? &p.bias_md : NULL, &p.y_md) == dnnl_success &&
              fast_pd(&desc, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    if (!ok)
        return MLO_OK;
    MLO_TRY(fast_emit_product(plan, &p, pd, &step, err));
    MLO_TRY(fast_chain_take(plan, chain, step, err));
    *done = true;
out:
    return status;
}

/* As a convolution of one line of m pixels by 1. */
static struct tile_product geometry(const struct gemm *g)
{
    return (struct tile_product){.batch = 1,
                                 .groups = 1,
                                 .in_channels = g->k,
                                 .out_channels = g->n,
                                 .in = {1, 1, g->m},
                                 .out = {1, 1, g->m},
                                 .kernel = {1, 1, 1},
                                 .stride = {1, 1, 1},
                                 .dilation = {1, 1, 1},
                                 .w_out = g->transposed ? (size_t)g->k : 1,
                                 .w_in = g->transposed ? 1 : (size_t)g->n,
                                 .residual = -1};
}

/* The same by own kernels, in float32, FP16 or fixed point. */
static enum mlo_status emit_tile(struct mlo_plan *plan, const struct gemm *g, const struct fast_chain *chain,
                                 const struct fast_product *r, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct tile_product p = geometry(g);
    p.type = TILE_F32;
    p.weights = r->weights;
    p.weights_bytes = (size_t)(g->n * g->k) * sizeof(float);
    p.bias = r->bias;
    p.half = fast_is_half(plan, g->w);
    p.epilogue.y_dtype = MLO_FLOAT32;
    if (!tile_chain(chain, &p) || !tile_supports(plan, &p))
        return MLO_OK;
    MLO_TRY(tile_slots(plan, g->x, CPU_PLAIN, chain, &p, err));
    struct cpu_step *step;
    MLO_TRY((tile_half_supports(plan, &p) ? tile_half_emit : tile_emit)(plan, g->node, &p, &step, err));
    MLO_TRY(fast_chain_take(plan, chain, step, err));
    fast_set(plan, chain->end, CPU_PLAIN, p.y);
    *done = true;
out:
    return status;
}

static enum mlo_status lower_int8(struct mlo_plan *plan, const struct gemm *g, const struct mlo_tensor *bias,
                                  bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_weights w;
    size_t n = (size_t)g->n, k = (size_t)g->k, row = g->transposed ? k : 1, step = g->transposed ? 1 : n;
    float *scales = NULL, *shifts = NULL;
    int32_t *sums = NULL;
    if (!fast_is_quantized(plan, g->x) || !fast_int8_weights(g->w, g->transposed ? 0 : 1, &w))
        return MLO_OK;
    struct cpu_qparams xq = plan->values[g->x->index].q;
    struct tile_int8 own = {.node = g->node,
                            .x = g->x,
                            .y = g->y,
                            .layout = CPU_PLAIN,
                            .w_scales = w.scales,
                            .w_scale_count = w.scale_count,
                            .bias = bias ? bias->data : NULL,
                            .alpha = g->alpha,
                            .beta = g->beta,
                            .product = geometry(g)};
    own.product.weights = w.q->data;
    own.product.weights_bytes = n * k;
    MLO_TRY(tile_lower_int8(plan, &own, done, err));
    if (*done || !fast_int8_exact(plan, w.q->data, n, k, row, step))
        return MLO_OK;
    struct fast_chain chain;
    fast_chain_follow(plan, g->y, false, true, &chain);
    scales = calloc(n, sizeof *scales);
    shifts = calloc(n, sizeof *shifts);
    sums = calloc(n, sizeof *sums);
    if (!scales || !shifts || !sums) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (xq.zero_point)
        fast_add_columns(w.q->data, n, k, row, step, sums);
    struct fast_int8_numbers numbers = {
        .x = &xq, .w = &w, .bias = own.bias, .sums = sums, .alpha = g->alpha, .beta = g->beta};
    fast_product_numbers(&numbers, &chain, n, scales, shifts);
    struct fast_product r = {.weights = w.q->data,
                             .x_type = fast_dtype(xq.dtype),
                             .w_type = dnnl_s8,
                             .y_type = chain.quantized ? fast_dtype(chain.q.dtype) : dnnl_f32,
                             .bias = bias || xq.zero_point ? shifts : NULL,
                             .scales = scales};
    MLO_TRY(emit(plan, g, &chain, &r, done, err));
out:
    free(scales);
    free(shifts);
    free(sums);
    return status;
}

/* MatMul behind which a constant row is added: its bias. */
static const struct mlo_node *find_bias(const struct mlo_plan *plan, const struct gemm *g,
                                        const struct mlo_value **bias)
{
    const struct mlo_node *add = g->bias ? NULL : fast_reader(plan, g->y);
    if (!add || !mlo_node_is(add, "Add"))
        return NULL;
    const struct mlo_value *other = add->inputs[add->inputs[0] == g->y];
    struct fast_shape s;
    if (other == g->y || !other->constant || other->constant->dtype != MLO_FLOAT32 ||
        !fast_shape(other, &s) || (int64_t)s.count != g->n || s.rank < 1 || s.dims[s.rank - 1] != g->n ||
        s.rank > g->y->type.rank)
        return NULL;
    *bias = other;
    return add;
}

/* In float32, with alpha in the weights and beta in the bias. */
static enum mlo_status lower_f32(struct mlo_plan *plan, const struct gemm *g, const struct mlo_tensor *bias,
                                 bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *w = NULL;
    float *scaled = NULL, *shifts = NULL;
    size_t count = (size_t)(g->n * g->k), n = (size_t)g->n;
    MLO_TRY(fast_const_f32(plan, g->w, &w, err));
    if (!w)
        return MLO_OK;
    if (g->alpha != 1.0f)
        scaled = malloc(count * sizeof *scaled);
    if (bias)
        shifts = malloc(n * sizeof *shifts);
    if ((g->alpha != 1.0f && !scaled) || (bias && !shifts)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; scaled && i < count; i++)
        scaled[i] = ((const float *)w->data)[i] * g->alpha;
    for (size_t i = 0; shifts && i < n; i++)
        shifts[i] = ((const float *)bias->data)[i] * g->beta;
    struct fast_product r = {.weights = scaled ? (const void *)scaled : w->data,
                             .x_type = dnnl_f32,
                             .w_type = dnnl_f32,
                             .y_type = dnnl_f32,
                             .bias = shifts};
    struct fast_chain chain;
    fast_chain_follow(plan, g->y, true, false, &chain);
    MLO_TRY(emit_tile(plan, g, &chain, &r, done, err));
    if (!*done) {
        fast_chain_follow(plan, g->y, false, false, &chain);
        MLO_TRY(emit(plan, g, &chain, &r, done, err));
    }
out:
    free(scaled);
    free(shifts);
    return status;
}

static enum mlo_status lower_constant(struct mlo_plan *plan, struct gemm *g, bool *done,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *bias = NULL;
    const struct mlo_node *add = find_bias(plan, g, &g->bias);
    if (add) { /* beta is of Gemm's own bias, and there was none */
        g->y = add->outputs[0];
        g->beta = 1.0f;
    }
    if (g->bias) {
        MLO_TRY(fast_const_f32(plan, g->bias, &bias, err));
        if (!bias)
            return MLO_OK;
    }
    MLO_TRY(lower_int8(plan, g, bias, done, err));
    if (!*done)
        MLO_TRY(lower_f32(plan, g, bias, done, err));
    if (*done && add) {
        fast_mark_done(plan, add);
        if (!cpu_step_fuse(plan, &plan->steps[plan->step_count - 1], add))
            status = mlo_error_nomem(err);
    }
out:
    return status;
}

/* Both operands computed at run. */
static enum mlo_status lower_batched(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape a, b, y;
    dnnl_memory_desc_t ma, mb, my;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    int sa, sb;
    if (!mlo_node_is(node, "MatMul") || !fast_shape(node->inputs[0], &a) ||
        !fast_shape(node->inputs[1], &b) || !fast_shape(node->outputs[0], &y) || a.rank != b.rank ||
        a.rank != y.rank || a.rank < 2 || a.rank > 6 || y.count == 0 || a.count == 0 ||
        node->inputs[0]->type.dtype != MLO_FLOAT32)
        return MLO_OK;
    dnnl_primitive_attr_t attr = fast_attr();
    if (!fast_md(&ma, a.rank, a.dims, dnnl_f32, CPU_PLAIN) ||
        !fast_md(&mb, b.rank, b.dims, dnnl_f32, CPU_PLAIN) ||
        !fast_md(&my, y.rank, y.dims, dnnl_f32, CPU_PLAIN) ||
        dnnl_matmul_desc_init(&desc, &ma, &mb, NULL, &my) != dnnl_success || !fast_pd(&desc, attr, &pd))
        goto out;
    MLO_TRY(fast_value(plan, node->inputs[0], CPU_PLAIN, &sa, err));
    MLO_TRY(fast_value(plan, node->inputs[1], CPU_PLAIN, &sb, err));
    int to = fast_new_slot(plan, node->outputs[0], false);
    if (to < 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct cpu_step *step;
    dnnl_primitive_desc_t taken = pd;
    pd = NULL;
    MLO_TRY(fast_step(plan, node, taken, &step, err));
    fast_reads(step, DNNL_ARG_SRC, sa, &ma);
    fast_reads(step, DNNL_ARG_WEIGHTS, sb, &mb);
    fast_writes(step, DNNL_ARG_DST, to, &my);
    fast_set(plan, node->outputs[0], CPU_PLAIN, to);
    *done = true;
out:
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

enum mlo_status fast_lower_gemm(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    struct gemm g;
    if (!mlo_node_is(node, "Gemm") && !mlo_node_is(node, "MatMul"))
        return MLO_OK;
    enum mlo_status status = MLO_OK;
    if (describe(node, &g))
        MLO_TRY(lower_constant(plan, &g, done, err));
    if (!*done)
        MLO_TRY(lower_batched(plan, node, done, err));
out:
    return status;
}
