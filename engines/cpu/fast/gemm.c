/* Gemm and MatMul: an inner product where the right operand is constant (int8 when both are dequantized), a
 * batched matmul otherwise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

struct gemm {
    const struct mlo_node *node;
    const struct mlo_value *x, *w, *bias;
    struct mlo_value *y;
    int64_t m, n, k;
    bool transposed; /* weights are [n, k] */
    float alpha, beta;
};

struct request {
    const void *weights;
    dnnl_data_type_t x_type, w_type, y_type;
    const float *bias, *scales;
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
                            const struct request *r, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    dnnl_memory_desc_t x, w, w_plain, b, y;
    dnnl_inner_product_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    int64_t xd[] = {g->m, g->k}, yd[] = {g->m, g->n};
    dnnl_dims_t wd = {g->n, g->k}, strides = {g->transposed ? g->k : 1, g->transposed ? 1 : g->n};
    dnnl_primitive_attr_t attr = fast_attr();
    if (!attr || !fast_md(&x, 2, xd, r->x_type, CPU_PLAIN) || !fast_md(&y, 2, yd, r->y_type, CPU_PLAIN) ||
        !fast_md(&b, 1, &g->n, dnnl_f32, CPU_PLAIN) ||
        dnnl_memory_desc_init_by_tag(&w, 2, wd, r->w_type, dnnl_format_tag_any) != dnnl_success ||
        dnnl_memory_desc_init_by_strides(&w_plain, 2, wd, r->w_type, strides) != dnnl_success ||
        !fast_chain_attr(chain, attr, NULL, true))
        goto out;
    if (r->scales && dnnl_primitive_attr_set_output_scales(attr, g->n, 2, r->scales) != dnnl_success)
        goto out;
    if (dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_inference, &x, &w, r->bias ? &b : NULL,
                                             &y) != dnnl_success ||
        !fast_pd(&desc, attr, &pd))
        goto out;
    int in;
    if (r->scales)
        MLO_TRY(fast_qvalue(plan, g->x, CPU_PLAIN, &in, err));
    else
        MLO_TRY(fast_value(plan, g->x, CPU_PLAIN, &in, err));
    dnnl_memory_desc_t w_used = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    int weights = fast_const_reordered(plan, r->weights, &w_plain, &w_used);
    int bias = r->bias ? fast_const_floats(plan, r->bias, (size_t)g->n) : -1;
    int to = fast_new_slot(plan, chain->end, false);
    if (weights < 0 || to < 0 || (r->bias && bias < 0)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct cpu_step *step;
    dnnl_primitive_desc_t taken = pd;
    pd = NULL;
    MLO_TRY(fast_step(plan, g->node, taken, &step, err));
    step->precision = r->scales ? "int8" : "f32";
    fast_reads(step, DNNL_ARG_SRC, in, &x);
    fast_reads(step, DNNL_ARG_WEIGHTS, weights, &w_used);
    if (r->bias)
        fast_reads(step, DNNL_ARG_BIAS, bias, &b);
    fast_writes(step, DNNL_ARG_DST, to, &y);
    MLO_TRY(fast_chain_take(plan, chain, step, err));
    fast_set(plan, chain->end, CPU_PLAIN, to);
    *done = true;
out:
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static enum mlo_status lower_int8(struct mlo_plan *plan, const struct gemm *g, const struct mlo_tensor *bias,
                                  bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_weights w;
    size_t n = (size_t)g->n, k = (size_t)g->k, row = g->transposed ? k : 1, step = g->transposed ? 1 : n;
    float *scales = NULL, *shifts = NULL;
    if (!fast_is_quantized(plan, g->x) || !fast_int8_weights(g->w, g->transposed ? 0 : 1, &w) ||
        !fast_int8_exact(plan, w.q->data, n, k, row, step))
        return MLO_OK;
    struct cpu_qparams xq = plan->values[g->x->index].q;
    struct fast_chain chain;
    fast_chain_follow(plan, g->y, false, true, &chain);
    scales = calloc(n, sizeof *scales);
    shifts = calloc(n, sizeof *shifts);
    if (!scales || !shifts) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t j = 0; j < n; j++) {
        double unit = (double)xq.scale * (double)w.scales[w.scale_count > 1 ? j : 0] * (double)g->alpha;
        double shift = bias ? (double)((const float *)bias->data)[j] * (double)g->beta / unit : 0.0;
        int64_t sum = 0;
        for (size_t i = 0; xq.zero_point && i < k; i++)
            sum += ((const int8_t *)w.q->data)[j * row + i * step];
        shifts[j] = (float)(shift - (double)sum * (double)xq.zero_point);
        scales[j] = (float)(unit / fast_chain_unit(&chain));
    }
    struct request r = {.weights = w.q->data,
                        .x_type = fast_dtype(xq.dtype),
                        .w_type = dnnl_s8,
                        .y_type = chain.quantized ? fast_dtype(chain.q.dtype) : dnnl_f32,
                        .bias = bias || xq.zero_point ? shifts : NULL,
                        .scales = scales};
    MLO_TRY(emit(plan, g, &chain, &r, done, err));
out:
    free(scales);
    free(shifts);
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

static enum mlo_status lower_constant(struct mlo_plan *plan, struct gemm *g, bool *done,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *bias = NULL, *w = NULL;
    float *scaled = NULL, *shifts = NULL;
    const struct mlo_node *add = find_bias(plan, g, &g->bias);
    if (add)
        g->y = add->outputs[0];
    if (g->bias) {
        MLO_TRY(fast_const_f32(plan, g->bias, &bias, err));
        if (!bias)
            return MLO_OK;
    }
    MLO_TRY(lower_int8(plan, g, bias, done, err));
    if (!*done) {
        MLO_TRY(fast_const_f32(plan, g->w, &w, err));
        if (!w)
            return MLO_OK;
        size_t count = (size_t)(g->n * g->k);
        const float *weights = w->data;
        if (g->alpha != 1.0f) {
            scaled = malloc(count * sizeof *scaled);
            if (!scaled) {
                status = mlo_error_nomem(err);
                goto out;
            }
            for (size_t i = 0; i < count; i++)
                scaled[i] = weights[i] * g->alpha;
            weights = scaled;
        }
        if (bias) {
            shifts = malloc((size_t)g->n * sizeof *shifts);
            if (!shifts) {
                status = mlo_error_nomem(err);
                goto out;
            }
            for (int64_t i = 0; i < g->n; i++)
                shifts[i] = ((const float *)bias->data)[i] * g->beta;
        }
        struct request r = {
            .weights = weights, .x_type = dnnl_f32, .w_type = dnnl_f32, .y_type = dnnl_f32, .bias = shifts};
        struct fast_chain chain;
        fast_chain_follow(plan, g->y, false, false, &chain);
        MLO_TRY(emit(plan, g, &chain, &r, done, err));
    }
    if (*done && add) {
        fast_mark_done(plan, add);
        if (!cpu_step_fuse(plan, &plan->steps[plan->step_count - 1], add))
            status = mlo_error_nomem(err);
    }
out:
    free(scaled);
    free(shifts);
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
