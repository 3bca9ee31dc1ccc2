/* Dynamic quantization, as tools write it, in one form: DynamicQuantizeLinear, then MatMulIntegerToFloat. */
#include <string.h>

#include "engines/cpu/fast/normalise_impl.h"

#define MS "com.microsoft"

static bool is_ms(const struct mlo_node *node, const char *op)
{
    return strcmp(node->domain, MS) == 0 && strcmp(node->op_type, op) == 0;
}

static struct mlo_node *add_ms(struct norm_site *site, const char *domain, const char *op,
                               struct mlo_value *const *in, int in_count, struct mlo_value *const *out,
                               int out_count)
{
    struct mlo_node *node = mlo_graph_add_node(site->graph, site->before, domain, op, site->old->name, in,
                                               in_count, out, out_count);
    if (node) {
        node->version = *domain ? 1 : 21;
        node->op = mlo_op_find(domain, op, node->version);
    }
    return node;
}

/* DynamicQuantizeMatMul: A, B, B's scale and zero point, bias. */
static enum mlo_status split(struct mlo_plan *plan, struct mlo_node *node, bool *done, struct mlo_error *err)
{
    struct norm_site s;
    struct mlo_type scalar = {.dtype = MLO_FLOAT32};
    if (!mlo_node_const(node, 1) || !cpu_value_dims(node->inputs[0], NULL, NULL))
        return MLO_OK;
    if (!norm_begin(plan, node, &s))
        return mlo_error_nomem(err);
    struct mlo_type bytes = s.in[0]->type;
    struct mlo_value *q[3];
    bytes.dtype = MLO_UINT8;
    q[0] = mlo_graph_add_value(s.graph, "quantized", &bytes);
    q[1] = mlo_graph_add_value(s.graph, "scale", &scalar);
    scalar.dtype = MLO_UINT8;
    q[2] = mlo_graph_add_value(s.graph, "zero_point", &scalar);
    struct mlo_value *in[] = {q[0], s.in[1], q[1], s.in[2], q[2], norm_in(&s, 3), norm_in(&s, 4)};
    if (!q[0] || !q[1] || !q[2] || !add_ms(&s, "", "DynamicQuantizeLinear", s.in, 1, q, 3) ||
        !add_ms(&s, MS, "MatMulIntegerToFloat", in, 7, s.out, 1))
        return mlo_error_nomem(err);
    *done = true;
    return MLO_OK;
}

/* The operand of a node with two that is not `value`. */
static struct mlo_value *other(const struct mlo_node *node, const struct mlo_value *value)
{
    return node->input_count == 2 ? node->inputs[node->inputs[0] == value] : NULL;
}

static bool is_count(const struct mlo_value *v, int64_t count)
{
    size_t n;
    return v && v->constant && cpu_value_dims(v, NULL, &n) && (n == 1 || (int64_t)n == count);
}

/* MatMulInteger, Cast, Mul by the product of both scales, and perhaps Add of a constant row. */
static enum mlo_status join(struct mlo_plan *plan, struct mlo_node *node, bool *done, struct mlo_error *err)
{
    const struct mlo_tensor *b = mlo_node_const(node, 1);
    if (!b || b->rank != 2 || !cpu_value_dims(node->inputs[0], NULL, NULL))
        return MLO_OK;
    int64_t n = b->dims[1];
    struct mlo_node *cast = fast_reader(plan, node->outputs[0]);
    if (!cast || !mlo_node_is(cast, "Cast") || cast->outputs[0]->type.dtype != MLO_FLOAT32)
        return MLO_OK;
    struct mlo_node *mul = fast_reader(plan, cast->outputs[0]);
    struct mlo_value *scales = mul && mlo_node_is(mul, "Mul") ? other(mul, cast->outputs[0]) : NULL;
    struct mlo_node *product = scales ? scales->producer : NULL;
    if (!product || !mlo_node_is(product, "Mul") || product->input_count != 2)
        return MLO_OK;
    bool second = product->inputs[1]->constant != NULL;
    struct mlo_value *b_scale = product->inputs[second], *a_scale = product->inputs[!second];
    size_t one;
    if (!is_count(b_scale, n) || a_scale->constant || a_scale->type.dtype != MLO_FLOAT32 ||
        !cpu_value_dims(a_scale, NULL, &one) || one != 1)
        return MLO_OK;
    struct mlo_node *add = fast_reader(plan, mul->outputs[0]), *last = mul;
    struct mlo_value *bias = add && mlo_node_is(add, "Add") ? other(add, mul->outputs[0]) : NULL;
    if (bias && is_count(bias, n) && bias->constant->rank == 1 && bias->constant->dtype == MLO_FLOAT32 &&
        mlo_tensor_count(bias->constant) == (size_t)n &&
        add->outputs[0]->type.rank == mul->outputs[0]->type.rank)
        last = add;
    else
        bias = NULL;
    /* it must come behind the product of the scales */
    struct norm_site s;
    struct mlo_node *chain[] = {cast, mul, add};
    struct mlo_value *in[] = {node->inputs[0],         node->inputs[1],         a_scale, b_scale,
                              mlo_node_input(node, 2), mlo_node_input(node, 3), bias};
    struct mlo_node *name = node;
    if (!norm_begin(plan, last, &s))
        return mlo_error_nomem(err);
    mlo_graph_remove_node(node);
    for (int i = 0; i < 3 && chain[i] != last; i++)
        mlo_graph_remove_node(chain[i]);
    s.old = name;
    if (!add_ms(&s, MS, "MatMulIntegerToFloat", in, bias ? 7 : 6, s.out, 1))
        return mlo_error_nomem(err);
    if (!scales->use_count && !scales->is_output && !cpu_is_observed(plan, scales))
        mlo_graph_remove_node(product);
    *done = true;
    return MLO_OK;
}

enum mlo_status norm_dynamic(struct mlo_plan *plan, struct mlo_node *node, bool *done, struct mlo_error *err)
{
    if (is_ms(node, "DynamicQuantizeMatMul"))
        return split(plan, node, done, err);
    return mlo_node_is(node, "MatMulInteger") ? join(plan, node, done, err) : MLO_OK;
}
