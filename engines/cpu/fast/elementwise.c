/* Elementwise nodes, Softmax and Concat on oneDNN, and the sum of two dequantized values in bytes. */
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

static const struct {
    const char *op;
    dnnl_alg_kind_t alg;
} binaries[] = {
    {"Add", dnnl_binary_add}, {"Sub", dnnl_binary_sub}, {"Mul", dnnl_binary_mul}, {"Div", dnnl_binary_div}};

/* Add of two quantized values, with Relu behind it or not, that is quantized again. */
static enum mlo_status lower_qadd(struct mlo_plan *plan, const struct mlo_node *node,
                                  const struct fast_shape *s, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_chain chain;
    int from[2];
    const struct mlo_value *a = node->inputs[0], *b = node->inputs[1];
    fast_chain_follow(plan, node->outputs[0], false, true, &chain);
    bool relu =
        chain.post_count == 1 && chain.posts[0].alg == dnnl_eltwise_relu && chain.posts[0].alpha == 0.0f;
    if (!chain.quantized || chain.post_count > 1 || (chain.post_count == 1 && !relu))
        return MLO_OK;
    enum cpu_layout layout = fast_layout(plan, a, true);
    MLO_TRY(fast_qvalue(plan, a, layout, &from[0], err));
    MLO_TRY(fast_qvalue(plan, b, layout, &from[1], err));
    int to = fast_new_slot(plan, chain.end, false);
    struct cpu_step *step;
    MLO_TRY(fast_emit_qadd(plan, node, from, &plan->values[a->index].q, &plan->values[b->index].q, to,
                           &chain.q, relu, s->count, &step, err));
    MLO_TRY(fast_chain_take(plan, &chain, step, err));
    fast_set(plan, chain.end, layout, to);
    *done = true;
out:
    return status;
}

/* Aligns a shape to the right of `rank` dims. */
static void widen(struct fast_shape *s, int rank)
{
    int shift = rank - s->rank;
    if (shift <= 0)
        return;
    memmove(s->dims + shift, s->dims, (size_t)s->rank * sizeof *s->dims);
    for (int i = 0; i < shift; i++)
        s->dims[i] = 1;
    s->rank = rank;
}

enum mlo_status fast_lower_binary(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t op = 0;
    while (op < MLO_COUNT(binaries) && !mlo_node_is(node, binaries[op].op))
        op++;
    struct fast_shape s[2], y;
    const struct mlo_value *out = node->outputs[0];
    if (op == MLO_COUNT(binaries) || node->inputs[0]->type.dtype != MLO_FLOAT32 || !fast_shape(out, &y) ||
        !fast_shape(node->inputs[0], &s[0]) || !fast_shape(node->inputs[1], &s[1]) || y.count == 0 ||
        y.rank < 1 || y.rank > 5)
        return MLO_OK;
    bool equal =
        s[0].rank == s[1].rank && memcmp(s[0].dims, s[1].dims, (size_t)s[0].rank * sizeof *s[0].dims) == 0;
    if (op == 0 && equal && fast_is_quantized(plan, node->inputs[0]) &&
        fast_is_quantized(plan, node->inputs[1]))
        MLO_TRY(lower_qadd(plan, node, &y, done, err));
    if (*done)
        goto out;
    /* oneDNN broadcasts its second operand only */
    int full = s[0].count == y.count ? 0 : s[1].count == y.count && op % 2 == 0 ? 1 : -1;
    if (full < 0)
        goto out;
    const struct mlo_value *a = node->inputs[full], *b = node->inputs[!full];
    bool same_rank = a->type.rank == b->type.rank;
    enum cpu_layout layout = fast_layout(plan, a, false);
    widen(&s[0], y.rank);
    widen(&s[1], y.rank);
    /* a narrower operand has one layout only; it must mean the same in channels-last order */
    if (!same_rank && s[!full].count != 1)
        layout = CPU_PLAIN;
    dnnl_memory_desc_t ma, mb, my;
    dnnl_binary_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr = fast_attr();
    struct fast_chain chain;
    fast_chain_follow(plan, node->outputs[0], false, false, &chain);
    bool ok = attr && fast_md(&ma, y.rank, s[full].dims, dnnl_f32, layout) &&
              fast_md(&mb, y.rank, s[!full].dims, dnnl_f32, layout) &&
              fast_md(&my, y.rank, y.dims, dnnl_f32, layout) && fast_chain_attr(&chain, attr, NULL, false) &&
              dnnl_binary_desc_init(&desc, binaries[op].alg, &ma, &mb, &my) == dnnl_success &&
              fast_pd(&desc, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    if (!ok)
        goto out;
    int sa, sb;
    status = fast_value(plan, a, layout, &sa, err);
    if (status == MLO_OK)
        status = fast_value(plan, b, layout, &sb, err);
    int to = status == MLO_OK ? fast_new_slot(plan, chain.end, false) : -1;
    if (to < 0) {
        dnnl_primitive_desc_destroy(pd);
        return status != MLO_OK ? status : mlo_error_nomem(err);
    }
    struct cpu_step *step;
    MLO_TRY(fast_step(plan, node, pd, &step, err));
    fast_reads(step, DNNL_ARG_SRC_0, sa, &ma);
    fast_reads(step, DNNL_ARG_SRC_1, sb, &mb);
    fast_writes(step, DNNL_ARG_DST, to, &my);
    MLO_TRY(fast_chain_take(plan, &chain, step, err));
    fast_set(plan, chain.end, layout, to);
    *done = true;
out:
    return status;
}

/* A primitive from one value to another of the same shape, in the layout where the input is. */
static enum mlo_status emit_unary(struct mlo_plan *plan, const struct mlo_node *node,
                                  dnnl_primitive_desc_t pd, const dnnl_memory_desc_t *md,
                                  enum cpu_layout layout, struct mlo_error *err)
{
    enum mlo_status status;
    int from;
    struct cpu_step *step;
    status = fast_value(plan, node->inputs[0], layout, &from, err);
    int to = status == MLO_OK ? fast_new_slot(plan, node->outputs[0], false) : -1;
    if (to < 0) {
        dnnl_primitive_desc_destroy(pd);
        return status != MLO_OK ? status : mlo_error_nomem(err);
    }
    MLO_TRY(fast_step(plan, node, pd, &step, err));
    fast_reads(step, DNNL_ARG_SRC, from, md);
    fast_writes(step, DNNL_ARG_DST, to, md);
    fast_set(plan, node->outputs[0], layout, to);
out:
    return status;
}

enum mlo_status fast_lower_eltwise(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                   struct mlo_error *err)
{
    struct fast_post post;
    struct fast_shape s;
    bool homogeneous;
    dnnl_memory_desc_t md;
    dnnl_eltwise_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    if (!fast_eltwise(node, &post, &homogeneous) || !fast_shape(node->inputs[0], &s) || s.count == 0 ||
        s.rank < 1)
        return MLO_OK;
    enum cpu_layout layout = fast_layout(plan, node->inputs[0], false);
    dnnl_primitive_attr_t attr = fast_attr();
    bool ok = attr && fast_md(&md, s.rank, s.dims, dnnl_f32, layout) &&
              dnnl_eltwise_forward_desc_init(&desc, dnnl_forward_inference, post.alg, &md, post.alpha,
                                             post.beta) == dnnl_success &&
              fast_pd(&desc, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    if (!ok)
        return MLO_OK;
    *done = true;
    return emit_unary(plan, node, pd, &md, layout, err);
}

enum mlo_status fast_lower_softmax(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                   struct mlo_error *err)
{
    struct fast_shape s;
    dnnl_memory_desc_t md;
    dnnl_softmax_v2_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    bool log = mlo_node_is(node, "LogSoftmax");
    if ((!log && !mlo_node_is(node, "Softmax")) || node->inputs[0]->type.dtype != MLO_FLOAT32 ||
        !fast_shape(node->inputs[0], &s) || s.count == 0 || s.rank < 1 || s.rank > 6)
        return MLO_OK;
    int64_t axis = mlo_node_attr_i(node, "axis", node->version < 13 ? 1 : -1);
    axis += axis < 0 ? s.rank : 0;
    if (axis < 0 || axis >= s.rank || (node->version < 13 && axis != s.rank - 1)) /* then it flattens */
        return MLO_OK;
    dnnl_primitive_attr_t attr = fast_attr();
    bool ok = attr && fast_md(&md, s.rank, s.dims, dnnl_f32, CPU_PLAIN) &&
              dnnl_softmax_v2_forward_desc_init(&desc, dnnl_forward_inference,
                                                log ? dnnl_softmax_log : dnnl_softmax_accurate, &md, &md,
                                                (int)axis) == dnnl_success &&
              fast_pd(&desc, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    if (!ok)
        return MLO_OK;
    *done = true;
    return emit_unary(plan, node, pd, &md, CPU_PLAIN, err);
}
