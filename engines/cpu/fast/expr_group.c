/* Elementwise nodes that follow each other as one program over one pass through memory. A group of nodes
 * grows in graph order from the first while what they need is there; the largest group of which one value is
 * needed outside becomes a step. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engines/cpu/fast/expr_impl.h"

enum { WINDOW = 64 };

/* --- what a node computes ------------------------------------------------------------------------------- */

static const struct {
    const char *op;
    enum fast_math math;
    const char *a_name, *b_name; /* attributes, or NULL */
    float a, b;                  /* their defaults */
} unaries[] = {
    {"Abs", FAST_MATH_ABS, NULL, NULL, 0, 0},
    {"Ceil", FAST_MATH_CEIL, NULL, NULL, 0, 0},
    {"Celu", FAST_MATH_CELU, "alpha", NULL, 1, 0},
    {"Elu", FAST_MATH_ELU, "alpha", NULL, 1, 0},
    {"Erf", FAST_MATH_ERF, NULL, NULL, 0, 0},
    {"Exp", FAST_MATH_EXP, NULL, NULL, 0, 0},
    {"Floor", FAST_MATH_FLOOR, NULL, NULL, 0, 0},
    {"HardSigmoid", FAST_MATH_HARD_SIGMOID, "alpha", "beta", 0.2f, 0.5f},
    {"HardSwish", FAST_MATH_HARD_SWISH, NULL, NULL, 0, 0},
    {"LeakyRelu", FAST_MATH_LEAKY_RELU, "alpha", NULL, 0.01f, 0},
    {"Log", FAST_MATH_LOG, NULL, NULL, 0, 0},
    {"Mish", FAST_MATH_MISH, NULL, NULL, 0, 0},
    {"Neg", FAST_MATH_NEG, NULL, NULL, 0, 0},
    {"Reciprocal", FAST_MATH_RECIPROCAL, NULL, NULL, 0, 0},
    {"Relu", FAST_MATH_RELU, NULL, NULL, 0, 0},
    {"Round", FAST_MATH_ROUND, NULL, NULL, 0, 0},
    {"Selu", FAST_MATH_SELU, "alpha", "gamma", 1.67326319217681884765625f, 1.05070102214813232421875f},
    {"Sigmoid", FAST_MATH_SIGMOID, NULL, NULL, 0, 0},
    {"Softplus", FAST_MATH_SOFTPLUS, NULL, NULL, 0, 0},
    {"Softsign", FAST_MATH_SOFTSIGN, NULL, NULL, 0, 0},
    {"Sqrt", FAST_MATH_SQRT, NULL, NULL, 0, 0},
    {"Tanh", FAST_MATH_TANH, NULL, NULL, 0, 0},
    {"ThresholdedRelu", FAST_MATH_THRESHOLDED_RELU, "alpha", NULL, 1, 0},
};

static const struct {
    const char *op;
    enum expr_kind kind;
} binaries[] = {{"Add", EXPR_ADD}, {"Sub", EXPR_SUB}, {"Mul", EXPR_MUL},    {"Div", EXPR_DIV},
                {"Min", EXPR_MIN}, {"Max", EXPR_MAX}, {"PRelu", EXPR_PRELU}};

enum node_kind { NODE_NONE, NODE_UNARY, NODE_BINARY, NODE_POW, NODE_NORM, NODE_QUANTIZE, NODE_DEQUANTIZE };

struct node_form {
    enum node_kind kind;
    enum fast_math math;
    enum expr_kind binary;
    float alpha, beta;
    struct cpu_qparams q;
};

static bool is_f32(const struct mlo_value *value)
{
    return value && value->type.dtype == MLO_FLOAT32;
}

/* A bound of Clip: an attribute before opset 11, then an input. */
static bool bound(const struct mlo_node *node, int input, const char *attr, float fallback, float *out)
{
    *out = mlo_node_attr_f(node, attr, fallback);
    if (!mlo_node_input(node, input))
        return true;
    const struct mlo_tensor *t = fast_initializer(node->inputs[input]);
    if (!t || mlo_tensor_count(t) != 1)
        return false;
    *out = (float)mlo_tensor_get_f64(t, 0);
    return true;
}

static bool form_of_gelu(const struct mlo_node *node, struct node_form *f)
{
    bool ms = strcmp(node->domain, "com.microsoft") == 0;
    if (strcmp(node->op_type, "QuickGelu") == 0 && ms) {
        f->math = FAST_MATH_SWISH;
        f->alpha = mlo_node_attr_f(node, "alpha", 1.702f);
        return true;
    }
    bool by_tanh = strcmp(mlo_node_attr_s(node, "approximate", "none"), "tanh") == 0;
    f->math = by_tanh ? FAST_MATH_GELU_TANH : FAST_MATH_GELU;
    return mlo_node_is(node, "Gelu") || (ms && strcmp(node->op_type, "Gelu") == 0);
}

static bool form_of_norm(const struct mlo_node *node)
{
    if (!mlo_node_is(node, "BatchNormalization") || mlo_node_attr_i(node, "training_mode", 0) ||
        node->inputs[0]->type.rank < 2)
        return false;
    for (int i = 1; i < node->output_count; i++)
        if (node->outputs[i])
            return false;
    for (int i = 1; i < 5; i++) {
        const struct mlo_tensor *t = fast_initializer(node->inputs[i]);
        if (!t || t->dtype != MLO_FLOAT32)
            return false;
    }
    return true;
}

static bool form_of(const struct mlo_node *node, struct node_form *f)
{
    *f = (struct node_form){NODE_NONE};
    if (node->input_count < 1 || !node->inputs[0] || node->output_count < 1 || !node->outputs[0])
        return false;
    if (mlo_node_is(node, "QuantizeLinear"))
        f->kind = fast_qparams(node, &f->q) ? NODE_QUANTIZE : NODE_NONE;
    else if (mlo_node_is(node, "DequantizeLinear"))
        f->kind = !node->inputs[0]->constant && fast_qparams(node, &f->q) ? NODE_DEQUANTIZE : NODE_NONE;
    if (f->kind != NODE_NONE || !is_f32(node->inputs[0]) || !is_f32(node->outputs[0]))
        return f->kind != NODE_NONE;
    if (mlo_node_is(node, "Clip")) {
        f->kind = NODE_UNARY;
        f->math = FAST_MATH_CLIP;
        float most = node->version < 11 ? FLT_MAX : INFINITY;
        return bound(node, 1, "min", -most, &f->alpha) && bound(node, 2, "max", most, &f->beta);
    }
    if (mlo_node_is(node, "Pow") && node->input_count == 2 && fast_initializer(node->inputs[1]) &&
        mlo_tensor_count(fast_initializer(node->inputs[1])) == 1) {
        f->kind = NODE_POW;
        f->alpha = (float)mlo_tensor_get_f64(fast_initializer(node->inputs[1]), 0);
        return f->alpha == 2.0f || f->alpha == 3.0f || f->alpha == 0.5f;
    }
    if (form_of_gelu(node, f)) {
        f->kind = NODE_UNARY;
        return true;
    }
    if (form_of_norm(node)) {
        f->kind = NODE_NORM;
        return true;
    }
    for (size_t i = 0; i < MLO_COUNT(unaries); i++)
        if (mlo_node_is(node, unaries[i].op)) {
            *f = (struct node_form){.kind = NODE_UNARY, .math = unaries[i].math};
            f->alpha = unaries[i].a_name ? mlo_node_attr_f(node, unaries[i].a_name, unaries[i].a) : 0;
            f->beta = unaries[i].b_name ? mlo_node_attr_f(node, unaries[i].b_name, unaries[i].b) : 0;
            return f->math != FAST_MATH_CELU || f->alpha > 0;
        }
    for (size_t i = 0; i < MLO_COUNT(binaries); i++)
        if (mlo_node_is(node, binaries[i].op) && node->input_count == 2 && is_f32(node->inputs[1])) {
            *f = (struct node_form){.kind = NODE_BINARY, .binary = binaries[i].kind};
            return true;
        }
    return false;
}

/* --- a group under construction ------------------------------------------------------------------------- */

static int add_op(struct expr_group *g, struct expr_op op)
{
    if (g->program.op_count == EXPR_OPS_MAX)
        return -1;
    g->program.ops[g->program.op_count] = op;
    return g->program.op_count++;
}

static int add_operand(struct expr_group *g, const struct expr_operand *o, enum mlo_dtype dtype)
{
    for (int i = 0; i < g->program.input_count; i++)
        if (g->operands[i].value == o->value && g->operands[i].norm == o->norm && o->value) {
            for (int k = 0; k < g->program.op_count; k++)
                if (g->program.ops[k].kind == EXPR_LOAD && g->program.ops[k].a == i)
                    return k;
        }
    if (g->program.input_count == EXPR_INPUTS_MAX)
        return -1;
    int i = g->program.input_count++;
    g->operands[i] = *o;
    g->program.inputs[i].dtype = dtype;
    return add_op(g, (struct expr_op){.kind = EXPR_LOAD, .a = i});
}

static struct expr_op quantize_op(int a, const struct cpu_qparams *q)
{
    bool is_signed = q->dtype == MLO_INT8;
    return (struct expr_op){.kind = EXPR_QUANTIZE,
                            .a = a,
                            .alpha = q->scale,
                            .beta = (float)q->zero_point,
                            .low = is_signed ? -128.0f : 0.0f,
                            .high = is_signed ? 127.0f : 255.0f};
}

static int dequantize(struct expr_group *g, int a, const struct cpu_qparams *q)
{
    return add_op(g, (struct expr_op){
                         .kind = EXPR_DEQUANTIZE, .a = a, .alpha = q->scale, .beta = (float)q->zero_point});
}

static bool broadcasts(const struct mlo_value *value, const struct fast_shape *to)
{
    struct fast_shape s;
    if (!fast_shape(value, &s) || s.rank > to->rank)
        return false;
    for (int i = 0; i < s.rank; i++)
        if (s.dims[i] != 1 && s.dims[i] != to->dims[to->rank - s.rank + i])
            return false;
    return true;
}

/* The register of a value: a member's, a constant, or that of an operand. -1: it cannot be had. */
static int reg_of(struct expr_group *g, const struct mlo_value *value)
{
    struct mlo_plan *plan = g->plan;
    for (int i = 0; i < g->count; i++)
        if (g->members[i] == value)
            return g->regs[i];
    if (!broadcasts(value, &g->shape))
        return -1;
    const struct mlo_tensor *c = fast_initializer(value);
    if (c && c->dtype == MLO_FLOAT32 && mlo_tensor_count(c) == 1)
        return add_op(g, (struct expr_op){.kind = EXPR_CONSTANT, .alpha = *(const float *)c->data});
    if (!fast_is_available(plan, value)) { /* weights behind DequantizeLinear */
        struct mlo_error ignored = {0};
        if (fast_const_f32(plan, value, &c, &ignored) != MLO_OK || !c)
            return -1;
    }
    const struct cpu_value *v = &plan->values[value->index];
    if (!is_f32(value) && value->type.dtype != MLO_UINT8 && value->type.dtype != MLO_INT8)
        return -1;
    bool floats = v->slot[CPU_PLAIN] >= 0 || v->slot[CPU_LAST] >= 0;
    struct expr_operand o = {.value = value, .quantized = !floats && fast_is_quantized(plan, value)};
    int reg = add_operand(g, &o, o.quantized ? v->q.dtype : value->type.dtype);
    if (reg < 0 || !o.quantized)
        return reg;
    for (int k = reg + 1; k < g->program.op_count; k++) /* the same bytes are dequantized once */
        if (g->program.ops[k].kind == EXPR_DEQUANTIZE && g->program.ops[k].a == reg &&
            g->program.ops[k].alpha == v->q.scale && g->program.ops[k].beta == (float)v->q.zero_point)
            return k;
    return dequantize(g, reg, &v->q);
}

/* y = x * factor + shift, by channel. */
static int add_norm(struct expr_group *g, const struct mlo_node *node, int x)
{
    size_t channels = (size_t)g->shape.dims[1];
    const float *p[4];
    for (int i = 0; i < 4; i++) {
        const struct mlo_tensor *t = fast_initializer(node->inputs[i + 1]);
        if (mlo_tensor_count(t) != channels)
            return -1;
        p[i] = t->data;
    }
    float *both = mlo_arena_alloc(g->plan->arena, 2 * channels * sizeof *both);
    if (!both)
        return -1;
    double epsilon = (double)mlo_node_attr_f(node, "epsilon", 1e-5f);
    for (size_t c = 0; c < channels; c++) {
        double factor = (double)p[0][c] / sqrt((double)p[3][c] + epsilon);
        both[c] = (float)factor;
        both[channels + c] = (float)((double)p[1][c] - (double)p[2][c] * factor);
    }
    struct expr_operand factor = {.norm = both}, shift = {.norm = both + channels};
    int f = add_operand(g, &factor, MLO_FLOAT32), s = add_operand(g, &shift, MLO_FLOAT32);
    if (f < 0 || s < 0)
        return -1;
    int y = add_op(g, (struct expr_op){.kind = EXPR_MUL, .a = x, .b = f});
    return y < 0 ? -1 : add_op(g, (struct expr_op){.kind = EXPR_ADD, .a = y, .b = s});
}

static int add_pow(struct expr_group *g, const struct node_form *f, int a)
{
    if (f->alpha == 0.5f)
        return add_op(g, (struct expr_op){.kind = EXPR_MATH, .math = FAST_MATH_SQRT, .a = a});
    int square = add_op(g, (struct expr_op){.kind = EXPR_MUL, .a = a, .b = a});
    return square < 0 || f->alpha == 2.0f
               ? square
               : add_op(g, (struct expr_op){.kind = EXPR_MUL, .a = square, .b = a});
}

static bool same_dims(const struct fast_shape *a, const struct fast_shape *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

bool expr_group_add(struct expr_group *g, const struct mlo_node *node)
{
    struct node_form f;
    struct fast_shape y;
    int ops = g->program.op_count, inputs = g->program.input_count, reg = -1;
    if (g->count == EXPR_GROUP_MAX || !form_of(node, &f) || !fast_shape(node->outputs[0], &y) ||
        !same_dims(&y, &g->shape))
        return false;
    int a = reg_of(g, node->inputs[0]), b = f.kind == NODE_BINARY && a >= 0 ? reg_of(g, node->inputs[1]) : a;
    if (a < 0 || b < 0)
        reg = -1;
    else if (f.kind == NODE_UNARY)
        reg = add_op(
            g, (struct expr_op){.kind = EXPR_MATH, .math = f.math, .a = a, .alpha = f.alpha, .beta = f.beta});
    else if (f.kind == NODE_BINARY)
        reg = add_op(g, (struct expr_op){.kind = f.binary, .a = a, .b = b});
    else if (f.kind == NODE_POW)
        reg = add_pow(g, &f, a);
    else if (f.kind == NODE_NORM)
        reg = add_norm(g, node, a);
    else if (f.kind == NODE_QUANTIZE)
        reg = add_op(g, quantize_op(a, &f.q));
    else
        reg = dequantize(g, a, &f.q);
    if (reg < 0) {
        g->program.op_count = ops;
        g->program.input_count = inputs;
        return false;
    }
    g->nodes[g->count] = node;
    g->members[g->count] = node->outputs[0];
    g->regs[g->count++] = reg;
    return true;
}

static bool is_member(const struct expr_group *g, int count, const struct mlo_node *node)
{
    for (int i = 0; i < count; i++)
        if (g->nodes[i] == node)
            return true;
    return false;
}

static bool escapes(const struct expr_group *g, int count, const struct mlo_value *value)
{
    if (value->is_output || cpu_is_observed(g->plan, value))
        return true;
    for (int i = 0; i < value->use_count; i++)
        if (value->uses[i].node->graph != value->graph || !is_member(g, count, value->uses[i].node))
            return true;
    return false;
}

/* Whether of the first `count` nodes only the last one's result is needed. */
static bool closed(const struct expr_group *g, int count)
{
    for (int i = 0; i < count - 1; i++)
        if (escapes(g, count, g->members[i]))
            return false;
    return true;
}

static bool touches(const struct expr_group *g, const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        for (int k = 0; k < g->count; k++)
            if (node->inputs[i] == g->members[k])
                return true;
    return false;
}

void expr_group_grow(struct expr_group *g)
{
    const struct mlo_graph *graph = g->plan->model->graph;
    int best = 1, best_ops = g->program.op_count, best_inputs = g->program.input_count;
    for (int n = g->nodes[0]->index + 1; n < graph->node_count && n < g->nodes[0]->index + WINDOW; n++) {
        const struct mlo_node *node = graph->nodes[n];
        if (g->plan->done[n] || !touches(g, node) || !expr_group_add(g, node) || !closed(g, g->count))
            continue;
        best = g->count;
        best_ops = g->program.op_count;
        best_inputs = g->program.input_count;
    }
    g->count = best;
    g->program.op_count = best_ops;
    g->program.input_count = best_inputs;
}

void expr_group_drop_dequantize(struct expr_group *g)
{
    while (g->count > 1 && mlo_node_is(g->nodes[g->count - 1], "DequantizeLinear") &&
           g->program.ops[g->program.op_count - 1].kind == EXPR_DEQUANTIZE && closed(g, g->count - 1)) {
        g->count--;
        g->program.op_count--;
    }
}

/* What begins with a quantization ends there: it has a kernel of its own. */
bool expr_begins(const struct mlo_node *node)
{
    struct node_form f;
    return form_of(node, &f) && f.kind != NODE_DEQUANTIZE && f.kind != NODE_QUANTIZE;
}
