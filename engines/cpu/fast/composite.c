/* Activations that exporters spell out in several nodes: swish as x * Sigmoid(x), GELU by Erf. */
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"

/* The number as a model that stores it in that type has it. */
static double rounded(double number, enum mlo_dtype stored)
{
    return stored == MLO_FLOAT16    ? (double)mlo_f16_to_f32(mlo_f32_to_f16((float)number))
           : stored == MLO_BFLOAT16 ? (double)mlo_bf16_to_f32(mlo_f32_to_bf16((float)number))
                                    : number;
}

/* A constant of one element that is `expected` but for rounding. */
static bool is_number(const struct mlo_plan *plan, const struct mlo_value *value, double expected)
{
    const struct mlo_tensor *t = value ? value->constant : NULL;
    if (!t || t->dtype != MLO_FLOAT32 || mlo_tensor_count(t) != 1)
        return false;
    return fabs(mlo_tensor_get_f64(t, 0) - rounded(expected, fast_stored(plan, value))) <= 1e-6;
}

/* The operand of a node with two that is not `value`. */
static struct mlo_value *other_operand(const struct mlo_node *node, const struct mlo_value *value)
{
    return node->inputs[node->inputs[0] == value];
}

static bool is_scaling(const struct mlo_plan *plan, const struct mlo_node *node, const struct mlo_value *x,
                       double factor)
{
    if (!node || (!mlo_node_is(node, "Mul") && !mlo_node_is(node, "Div")))
        return false;
    if (mlo_node_is(node, "Div"))
        return node->inputs[0] == x && is_number(plan, node->inputs[1], 1 / factor);
    return (node->inputs[0] == x && is_number(plan, node->inputs[1], factor)) ||
           (node->inputs[1] == x && is_number(plan, node->inputs[0], factor));
}

static bool is_product(const struct mlo_node *node, const struct mlo_value *a, const struct mlo_value *b)
{
    return node && mlo_node_is(node, "Mul") &&
           ((node->inputs[0] == a && node->inputs[1] == b) || (node->inputs[0] == b && node->inputs[1] == a));
}

static bool take(struct fast_composite *out, dnnl_alg_kind_t alg, float alpha, int count,
                 const struct mlo_node *const *nodes)
{
    *out = (struct fast_composite){.node_count = count, .post = {.alg = alg, .alpha = alpha}};
    memcpy(out->nodes, nodes, (size_t)count * sizeof(const struct mlo_node *));
    out->end = nodes[count - 1]->outputs[0];
    return true;
}

/* x * sigmoid(x) */
static bool swish(const struct mlo_plan *plan, const struct mlo_value *x, const struct mlo_node *first,
                  struct fast_composite *out)
{
    if (!mlo_node_is(first, "Sigmoid"))
        return false;
    const struct mlo_node *mul = fast_reader(plan, first->outputs[0]);
    const struct mlo_node *nodes[] = {first, mul};
    return is_product(mul, x, first->outputs[0]) && take(out, dnnl_eltwise_swish, 1.0f, 2, nodes);
}

/* x / 2 * (1 + erf(x / sqrt(2))), whose factors stand in any order */
static bool gelu(const struct mlo_plan *plan, const struct mlo_value *x, const struct mlo_node *first,
                 struct fast_composite *out)
{
    if (!is_scaling(plan, first, x, sqrt(0.5)))
        return false;
    const struct mlo_node *erf = fast_reader(plan, first->outputs[0]);
    if (!erf || !mlo_node_is(erf, "Erf"))
        return false;
    const struct mlo_node *add = fast_reader(plan, erf->outputs[0]);
    if (!add || !mlo_node_is(add, "Add") || !is_number(plan, other_operand(add, erf->outputs[0]), 1.0))
        return false;
    const struct mlo_value *sum = add->outputs[0];
    const struct mlo_node *mul = fast_reader(plan, sum);
    if (!mul || (!mlo_node_is(mul, "Mul") && !mlo_node_is(mul, "Div")))
        return false;
    const struct mlo_node *last = fast_reader(plan, mul->outputs[0]);
    if ((is_product(mul, sum, x) && is_scaling(plan, last, mul->outputs[0], 0.5)) ||
        (is_scaling(plan, mul, sum, 0.5) && is_product(last, mul->outputs[0], x))) {
        const struct mlo_node *nodes[] = {first, erf, add, mul, last};
        return take(out, dnnl_eltwise_gelu_erf, 0.0f, 5, nodes);
    }
    const struct mlo_value *half = mlo_node_is(mul, "Mul") ? other_operand(mul, sum) : NULL;
    const struct mlo_node *scaled = half ? half->producer : NULL;
    if (scaled && fast_reader(plan, half) == mul && is_scaling(plan, scaled, x, 0.5)) {
        const struct mlo_node *nodes[] = {first, erf, add, scaled, mul};
        return take(out, dnnl_eltwise_gelu_erf, 0.0f, 5, nodes);
    }
    return false;
}

static bool same_shape(const struct mlo_value *a, const struct mlo_value *b)
{
    struct fast_shape x, y;
    return fast_shape(a, &x) && fast_shape(b, &y) && x.rank == y.rank &&
           memcmp(x.dims, y.dims, (size_t)x.rank * sizeof *x.dims) == 0;
}

bool fast_composite(const struct mlo_plan *plan, const struct mlo_value *x, const struct mlo_node *first,
                    struct fast_composite *out)
{
    return x->type.dtype == MLO_FLOAT32 && first->inputs[0] && x->use_count >= 2 &&
           (swish(plan, x, first, out) || gelu(plan, x, first, out)) && same_shape(x, out->end);
}

bool fast_composite_alone(const struct mlo_plan *plan, const struct mlo_value *x, struct fast_composite *out)
{
    if (x->is_output || x->use_count != 2 || cpu_is_observed(plan, x))
        return false;
    return fast_composite(plan, x, x->uses[0].node, out) || fast_composite(plan, x, x->uses[1].node, out);
}

enum mlo_status fast_lower_composite(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_composite c;
    struct fast_shape s;
    dnnl_eltwise_desc_t desc;
    dnnl_primitive_desc_t pd;
    struct cpu_step *step;
    for (int i = 0; i < node->input_count; i++) { /* x may be either operand of a Mul */
        struct mlo_value *x = node->inputs[i];
        if (!x || !fast_is_available(plan, x) || !fast_composite(plan, x, node, &c))
            continue;
        if (!fast_shape(x, &s) || s.count == 0 || s.rank < 1)
            return MLO_OK;
        struct fast_unary u = {.x = x, .y = c.end, .layout = fast_layout(plan, x, false)};
        dnnl_primitive_attr_t attr = fast_attr();
        bool ok = attr && fast_md(&u.x_md, s.rank, s.dims, dnnl_f32, u.layout) &&
                  dnnl_eltwise_forward_desc_init(&desc, dnnl_forward_inference, c.post.alg, &u.x_md,
                                                 c.post.alpha, c.post.beta) == dnnl_success &&
                  fast_pd(&desc, attr, &pd);
        dnnl_primitive_attr_destroy(attr);
        if (!ok)
            return MLO_OK;
        u.y_md = u.x_md;
        MLO_TRY(fast_emit_unary(plan, node, pd, &u, &step, err));
        for (int k = 0; k < c.node_count; k++) {
            fast_mark_done(plan, c.nodes[k]);
            if (c.nodes[k] != node && !cpu_step_fuse(plan, step, c.nodes[k]))
                return mlo_error_nomem(err);
        }
        *done = true;
        return MLO_OK;
    }
out:
    return status;
}
