/* What follows a convolution or a product and is computed with it: a bias, a residual, an activation, and
 * quantization of the result. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

static void take(struct epilogue *e, const struct mlo_node *node)
{
    e->nodes[e->node_count++] = node;
    e->end = node->outputs[0];
}

static bool same_shape(const struct mlo_value *a, const struct mlo_value *b)
{
    int64_t x[MLO_MAX_RANK], y[MLO_MAX_RANK];
    return a->type.rank == b->type.rank && a->type.dtype == b->type.dtype && lower_dims(a, x) &&
           lower_dims(b, y) && (a->type.rank == 0 || memcmp(x, y, (size_t)a->type.rank * sizeof *x) == 0);
}

/* One number a column, when it is added to a value of that shape. */
static bool by_column(const struct mlo_tensor *t, const struct mlo_value *y, int axis, int64_t columns)
{
    for (int i = 0; i < t->rank; i++) {
        int at = y->type.rank - t->rank + i;
        if (t->dims[i] != 1 && (at != axis || t->dims[i] != columns))
            return false;
    }
    return t->rank <= y->type.rank && lower_is_float(t->dtype) && (int64_t)mlo_tensor_count(t) == columns;
}

static bool add(struct lower *l, const struct mlo_node *node, const struct mlo_value *v,
                const struct epilogue_wish *wish, struct epilogue *e)
{
    float scale;
    if (!mlo_node_is(node, "Add") || node->inputs[0] == node->inputs[1] || !same_shape(v, node->outputs[0]))
        return false;
    const struct mlo_value *other = node->inputs[node->inputs[0] == v];
    const struct mlo_tensor *t = lower_constant(other);
    if (t && !e->bias && by_column(t, v, wish->axis, wish->columns)) {
        e->bias = t;
        return true;
    }
    bool there = lower_is_placed(l, other) || (other->producer && l->pending[other->producer->index]);
    /* Bytes that stand for a residual are read by a chain, which dequantizes on the way; an int8 convolution
     * takes them itself. */
    bool quantized =
        quant_source(l, other, MLO_INT8, &scale) || quant_source(l, other, MLO_FLOAT8E4M3FN, &scale);
    bool bytes = quantized && !lower_is_placed(l, other) && !wish->takes_bytes;
    if (t || e->residual || !there || bytes || !same_shape(v, other))
        return false;
    e->residual = other;
    return true;
}

static bool is_number(const struct mlo_value *v, double expected)
{
    double number;
    return lower_number(v, &number) && fabs(number - expected) <= 1e-3 * fabs(expected);
}

static const struct mlo_value *other_of(const struct mlo_node *node, const struct mlo_value *v)
{
    return node->inputs[node->inputs[0] == v];
}

static bool is_product(const struct mlo_node *node, const struct mlo_value *a, const struct mlo_value *b)
{
    return node && mlo_node_is(node, "Mul") &&
           ((node->inputs[0] == a && node->inputs[1] == b) || (node->inputs[0] == b && node->inputs[1] == a));
}

static bool is_scaling(const struct mlo_node *node, const struct mlo_value *x, double factor)
{
    if (node && mlo_node_is(node, "Div"))
        return node->inputs[0] == x && is_number(node->inputs[1], 1 / factor);
    return node && mlo_node_is(node, "Mul") && (node->inputs[0] == x || node->inputs[1] == x) &&
           is_number(other_of(node, x), factor);
}

/* x * sigmoid(x) */
static bool swish(struct lower *l, const struct mlo_value *x, const struct mlo_node *first,
                  struct epilogue *e)
{
    const struct mlo_node *mul = mlo_node_is(first, "Sigmoid") ? lower_reader(l, first->outputs[0]) : NULL;
    if (x->use_count != 2 || !is_product(mul, x, first->outputs[0]))
        return false;
    take(e, first);
    take(e, mul);
    e->activation = CUDA_ACT_SWISH;
    return true;
}

/* x / 2 * (1 + erf(x / sqrt(2))), whose factors stand in any order */
static bool gelu(struct lower *l, const struct mlo_value *x, const struct mlo_node *first, struct epilogue *e)
{
    if (!is_scaling(first, x, sqrt(0.5)))
        return false;
    const struct mlo_node *erf = lower_reader(l, first->outputs[0]);
    const struct mlo_node *one = erf && mlo_node_is(erf, "Erf") ? lower_reader(l, erf->outputs[0]) : NULL;
    if (!one || !mlo_node_is(one, "Add") || !is_number(other_of(one, erf->outputs[0]), 1))
        return false;
    const struct mlo_value *sum = one->outputs[0];
    const struct mlo_node *mul = lower_reader(l, sum), *last = mul ? lower_reader(l, mul->outputs[0]) : NULL;
    if (!mul || x->use_count != 2)
        return false;
    const struct mlo_node *list[] = {first, erf, one, mul, last};
    bool two = (is_product(mul, sum, x) && is_scaling(last, mul->outputs[0], 0.5)) ||
               (is_scaling(mul, sum, 0.5) && is_product(last, mul->outputs[0], x));
    if (!two) {
        const struct mlo_value *half = mlo_node_is(mul, "Mul") ? other_of(mul, sum) : NULL;
        if (!half || !half->producer || lower_reader(l, half) != mul || !is_scaling(half->producer, x, 0.5))
            return false;
        list[3] = half->producer;
        list[4] = mul;
    }
    for (size_t i = 0; i < MLO_COUNT(list); i++)
        take(e, list[i]);
    e->activation = CUDA_ACT_GELU;
    return true;
}

/* Activations of several nodes that begin at x. */
static bool spelled(struct lower *l, const struct mlo_value *x, bool only_gelu, struct epilogue *e)
{
    if (lower_is_shown(l, x) || x->use_count != 2 || x->uses[0].node->graph != l->g ||
        x->uses[1].node->graph != l->g)
        return false;
    for (int i = 0; i < 2; i++)
        if ((!only_gelu && swish(l, x, x->uses[i].node, e)) || gelu(l, x, x->uses[i].node, e))
            return true;
    return false;
}

static const struct {
    const char *op;
    enum cuda_activation activation;
    bool with_gemm;
} activations[] = {
    {"Relu", CUDA_ACT_RELU, true}, {"Sigmoid", CUDA_ACT_SIGMOID, false}, {"Tanh", CUDA_ACT_TANH, false}};

bool epilogue_clip(const struct mlo_node *node, double *low, double *high)
{
    *low = (double)mlo_node_attr_f(node, "min", -FLT_MAX);
    *high = (double)mlo_node_attr_f(node, "max", FLT_MAX);
    return (!mlo_node_input(node, 1) || lower_number(node->inputs[1], low)) &&
           (!mlo_node_input(node, 2) || lower_number(node->inputs[2], high));
}

static bool activation(const struct mlo_node *node, bool gemm, bool exact, struct epilogue *e)
{
    for (size_t i = 0; i < MLO_COUNT(activations); i++)
        if (mlo_node_is(node, activations[i].op) && (!gemm || activations[i].with_gemm)) {
            e->activation = activations[i].activation;
            return true;
        }
    bool ms = strcmp(node->domain, "com.microsoft") == 0 && strcmp(node->op_type, "Gelu") == 0;
    if (mlo_node_is(node, "Gelu") || ms) {
        bool tanh = !ms && strcmp(mlo_node_attr_s(node, "approximate", "none"), "tanh") == 0;
        e->activation = tanh ? CUDA_ACT_GELU_TANH : CUDA_ACT_GELU;
        return tanh || !exact;
    }
    double low, high;
    if (!gemm && mlo_node_is(node, "Clip") && epilogue_clip(node, &low, &high)) {
        e->low = (float)low;
        e->high = (float)high;
        e->activation = CUDA_ACT_CLIP;
        return true;
    }
    return false;
}

/* A product's result may have more bits than its operands. */
static bool is_widening(const struct mlo_node *node)
{
    return mlo_node_is(node, "Cast") && node->outputs[0]->type.dtype == MLO_FLOAT32;
}

/* cuBLASLt has float32 results of 16-bit operands (gemm.c), but its GELU is near enough in 16 bits only, and
 * what it adds has the type of the result. */
static bool may_widen(const struct epilogue_wish *wish, const struct epilogue *e)
{
    return wish->chain || (wish->gemm && !wish->keeps_type && !e->residual && e->activation != CUDA_ACT_GELU);
}

/* Commutes with a positive scale. */
static bool is_homogeneous(enum cuda_activation a)
{
    return a == CUDA_ACT_NONE || a == CUDA_ACT_RELU || a == CUDA_ACT_CLIP;
}

static void follow(struct lower *l, const struct mlo_value *start, const struct epilogue_wish *wish,
                   struct epilogue *out)
{
    *out = (struct epilogue){.end = start};
    /* The product's library rounds GELU as its tanh form: within float16, but not within float32. */
    bool exact = wish->gemm && start->type.dtype == MLO_FLOAT32;
    while (out->node_count + 5 < EPILOGUE_NODES) {
        const struct mlo_value *v = out->end;
        struct epilogue next = *out;
        if (out->activation == CUDA_ACT_NONE && !exact && !wish->no_activation &&
            spelled(l, v, wish->gemm, &next)) {
            *out = next;
            continue;
        }
        const struct mlo_node *node = lower_reader(l, v);
        if (!node || node->graph != l->g || node->inputs[0] == NULL)
            return;
        bool free = out->activation == CUDA_ACT_NONE;
        /* Of int8, residual and activation together were not seen to run on any GPU (device/dnn_plan.c). */
        bool acts = free && !wish->no_activation && !(wish->conv && wish->may_quantize && out->residual);
        if (free && add(l, node, v, wish, &next)) {
            take(&next, node);
        } else if (acts && node->inputs[0] == v && activation(node, wish->gemm, exact, &next)) {
            take(&next, node);
        } else if (may_widen(wish, out) && is_widening(node) && lower_is_float(v->type.dtype)) {
            take(&next, node);
            *out = next;
            return;
        } else if (wish->may_quantize && (wish->chain || is_homogeneous(out->activation)) &&
                   node->inputs[0] == v &&
                   (quant_to(node, MLO_INT8, &next.scale) ||
                    (wish->chain && quant_to(node, MLO_FLOAT8E4M3FN, &next.scale)))) {
            take(&next, node);
            next.quantized = true;
            *out = next;
            return;
        } else {
            return;
        }
        *out = next;
    }
}

/* What is cut off at the ends of int8 anyway is no Clip; float8 holds more. */
static void absorb_clip(struct epilogue *e)
{
    bool bytes = e->quantized && e->end->type.dtype == MLO_INT8;
    bool low = (double)e->low <= -128.0 * (double)e->scale,
         high = (double)e->high >= 127.0 * (double)e->scale;
    if (e->activation == CUDA_ACT_CLIP && bytes && high && (low || e->low == 0))
        e->activation = low ? CUDA_ACT_NONE : CUDA_ACT_RELU;
}

void epilogue_follow(struct lower *l, const struct mlo_value *start, const struct epilogue_wish *wish,
                     struct epilogue *out)
{
    follow(l, start, wish, out);
    absorb_clip(out);
    if (!wish->conv || out->activation == CUDA_ACT_NONE || out->activation == CUDA_ACT_RELU)
        return;
    /* The only engine of cuDNN's that computes another activation does not use the matrix units: ten times as
     * slow as a convolution and a pass over its result. */
    struct epilogue_wish less = *wish;
    less.no_activation = true;
    follow(l, start, &less, out);
}

enum mlo_status epilogue_take(struct lower *l, const struct epilogue *e, struct cuda_step *step,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < e->node_count; i++) {
        l->done[e->nodes[i]->index] = true;
        MLO_TRY(lower_fuse(l, step, e->nodes[i], err));
    }
out:
    return status;
}
