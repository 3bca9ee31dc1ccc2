/* What a node computes, as instructions of a chain. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

/* --- one operand -------------------------------------------------------------------------------------------
 */

static const struct {
    const char *op;
    enum cuda_math math;
    const char *a_name, *b_name; /* attributes, or NULL */
    float a, b;                  /* their defaults */
} unaries[] = {
    {"Abs", CUDA_MATH_ABS, NULL, NULL, 0, 0},
    {"Ceil", CUDA_MATH_CEIL, NULL, NULL, 0, 0},
    {"Celu", CUDA_MATH_CELU, "alpha", NULL, 1, 0},
    {"Cos", CUDA_MATH_COS, NULL, NULL, 0, 0},
    {"Elu", CUDA_MATH_ELU, "alpha", NULL, 1, 0},
    {"Erf", CUDA_MATH_ERF, NULL, NULL, 0, 0},
    {"Exp", CUDA_MATH_EXP, NULL, NULL, 0, 0},
    {"Floor", CUDA_MATH_FLOOR, NULL, NULL, 0, 0},
    {"HardSigmoid", CUDA_MATH_HARD_SIGMOID, "alpha", "beta", 0.2f, 0.5f},
    {"HardSwish", CUDA_MATH_HARD_SWISH, NULL, NULL, 0, 0},
    {"IsNaN", CUDA_MATH_ISNAN, NULL, NULL, 0, 0},
    {"LeakyRelu", CUDA_MATH_LEAKY_RELU, "alpha", NULL, 0.01f, 0},
    {"Log", CUDA_MATH_LOG, NULL, NULL, 0, 0},
    {"Mish", CUDA_MATH_MISH, NULL, NULL, 0, 0},
    {"Neg", CUDA_MATH_NEG, NULL, NULL, 0, 0},
    {"Reciprocal", CUDA_MATH_RECIPROCAL, NULL, NULL, 0, 0},
    {"Relu", CUDA_MATH_RELU, NULL, NULL, 0, 0},
    {"Round", CUDA_MATH_ROUND, NULL, NULL, 0, 0},
    {"Selu", CUDA_MATH_SELU, "alpha", "gamma", 1.67326319217681884765625f, 1.05070102214813232421875f},
    {"Sigmoid", CUDA_MATH_SIGMOID, NULL, NULL, 0, 0},
    {"Sign", CUDA_MATH_SIGN, NULL, NULL, 0, 0},
    {"Sin", CUDA_MATH_SIN, NULL, NULL, 0, 0},
    {"Softplus", CUDA_MATH_SOFTPLUS, NULL, NULL, 0, 0},
    {"Softsign", CUDA_MATH_SOFTSIGN, NULL, NULL, 0, 0},
    {"Sqrt", CUDA_MATH_SQRT, NULL, NULL, 0, 0},
    {"Tan", CUDA_MATH_TAN, NULL, NULL, 0, 0},
    {"Tanh", CUDA_MATH_TANH, NULL, NULL, 0, 0},
    {"ThresholdedRelu", CUDA_MATH_THRESHOLDED_RELU, "alpha", NULL, 1, 0},
};

static int emit_unary(struct chain_builder *b, const struct form *f, const int *in)
{
    return chain_unary(b, f->math, in[0], f->alpha, f->beta);
}

static bool form_unary(const struct mlo_node *node, struct form *f)
{
    for (size_t i = 0; i < MLO_COUNT(unaries); i++)
        if (mlo_node_is(node, unaries[i].op)) {
            f->emit = emit_unary;
            f->math = unaries[i].math;
            f->alpha = unaries[i].a_name ? mlo_node_attr_f(node, unaries[i].a_name, unaries[i].a) : 0;
            f->beta = unaries[i].b_name ? mlo_node_attr_f(node, unaries[i].b_name, unaries[i].b) : 0;
            return true;
        }
    return false;
}

static bool is_ms(const struct mlo_node *node, const char *op)
{
    return strcmp(node->domain, "com.microsoft") == 0 && strcmp(node->op_type, op) == 0;
}

/* Gelu and its relatives, some of which add a bias first. */
static int emit_gelu(struct chain_builder *b, const struct form *f, const int *in)
{
    int x = f->input_count > 1 && in[1] >= 0 ? chain_add(b, CUDA_OP_ADD, in[0], in[1], 0) : in[0];
    return chain_unary(b, f->math, x, f->alpha, 0);
}

static bool form_gelu(const struct mlo_node *node, struct form *f)
{
    f->emit = emit_gelu;
    f->math = CUDA_MATH_GELU;
    if (is_ms(node, "QuickGelu")) {
        f->math = CUDA_MATH_SWISH;
        f->alpha = mlo_node_attr_f(node, "alpha", 1.702f);
        return true;
    }
    if (is_ms(node, "FastGelu"))
        f->math = CUDA_MATH_GELU_TANH;
    else if (mlo_node_is(node, "Gelu") && strcmp(mlo_node_attr_s(node, "approximate", "none"), "tanh") == 0)
        f->math = CUDA_MATH_GELU_TANH;
    else if (!mlo_node_is(node, "Gelu") && !is_ms(node, "Gelu") && !is_ms(node, "BiasGelu"))
        return false;
    return true;
}

static int emit_same(struct chain_builder *b, const struct form *f, const int *in)
{
    MLO_UNUSED(b);
    MLO_UNUSED(f);
    return in[0];
}

/* Float types are not rounded between the nodes of a chain. */
static int emit_cast(struct chain_builder *b, const struct form *f, const int *in)
{
    return chain_add(b, CUDA_OP_CAST, in[0], (int)f->attr, 0);
}

static int emit_not(struct chain_builder *b, const struct form *f, const int *in)
{
    MLO_UNUSED(f);
    return chain_add(b, CUDA_OP_NOT, in[0], 0, 0);
}

static int emit_isinf(struct chain_builder *b, const struct form *f, const int *in)
{
    MLO_UNUSED(f);
    return chain_unary(b, CUDA_MATH_ISINF, in[0], 0, 0);
}

/* Kernels store the largest float8 where a value is beyond it. */
static bool overflows(const struct mlo_node *node, const char **why)
{
    if (!lower_is_float8(node->outputs[0]->type.dtype) || mlo_node_attr_i(node, "saturate", 1))
        return false;
    *why = "it does not saturate (saturate = 0), as every kernel that stores float8 does";
    return true;
}

static bool form_cast(const struct mlo_node *node, struct form *f, const char **why)
{
    if ((!mlo_node_is(node, "Cast") && !mlo_node_is(node, "CastLike")) || overflows(node, why))
        return false;
    enum mlo_dtype to = node->outputs[0]->type.dtype, from = node->inputs[0]->type.dtype;
    bool widens = lower_is_float(to) && lower_is_float(from);
    f->emit = widens ? emit_same : emit_cast;
    f->attr = lower_is_float(to) ? MLO_FLOAT32 : to;
    f->input_count = 1;
    return true;
}

/* A bound of Clip: an attribute before opset 11, then an input. */
static bool clip_bound(const struct mlo_node *node, int input, const char *attr, float fallback, float *out)
{
    double number;
    *out = mlo_node_attr_f(node, attr, fallback);
    if (!mlo_node_input(node, input))
        return true;
    if (!lower_number(node->inputs[input], &number))
        return false;
    *out = (float)number;
    return true;
}

static bool form_clip(const struct mlo_node *node, struct form *f)
{
    if (!mlo_node_is(node, "Clip") || !lower_is_float(node->inputs[0]->type.dtype))
        return false;
    float most = node->version < 11 ? FLT_MAX : INFINITY;
    f->emit = emit_unary;
    f->math = CUDA_MATH_CLIP;
    f->input_count = 1;
    return clip_bound(node, 1, "min", -most, &f->alpha) && clip_bound(node, 2, "max", most, &f->beta);
}

/* --- several operands
 * ---------------------------------------------------------------------------------------- */

static int emit_binary(struct chain_builder *b, const struct form *f, const int *in)
{
    return chain_add(b, f->op, in[0], in[1], 0);
}

static int emit_greater(struct chain_builder *b, const struct form *f, const int *in)
{
    MLO_UNUSED(f);
    return chain_add(b, CUDA_OP_LESS, in[1], in[0], 0);
}

static int emit_less_or_equal(struct chain_builder *b, const struct form *f, const int *in)
{
    int less = chain_add(b, CUDA_OP_LESS, in[f->attr], in[!f->attr], 0);
    return chain_add(b, CUDA_OP_OR, less, chain_add(b, CUDA_OP_EQUAL, in[0], in[1], 0), 0);
}

static int emit_xor(struct chain_builder *b, const struct form *f, const int *in)
{
    MLO_UNUSED(f);
    return chain_add(b, CUDA_OP_NOT, chain_add(b, CUDA_OP_EQUAL, in[0], in[1], 0), 0, 0);
}

static int emit_prelu(struct chain_builder *b, const struct form *f, const int *in)
{
    MLO_UNUSED(f);
    int negative = chain_add(b, CUDA_OP_LESS, in[0], chain_number(b, 0), 0);
    return chain_add(b, CUDA_OP_SELECT, negative, chain_add(b, CUDA_OP_MUL, in[0], in[1], 0), in[0]);
}

static int emit_where(struct chain_builder *b, const struct form *f, const int *in)
{
    MLO_UNUSED(f);
    return chain_add(b, CUDA_OP_SELECT, in[0], in[1], in[2]);
}

static int emit_many(struct chain_builder *b, const struct form *f, const int *in)
{
    int sum = in[0];
    for (int i = 1; i < f->input_count; i++)
        sum = chain_add(b, f->op, sum, in[i], 0);
    return f->attr ? chain_add(b, CUDA_OP_MUL, sum, chain_number(b, 1.0 / f->input_count), 0) : sum;
}

static const struct {
    const char *op;
    form_emit_fn *emit;
    enum cuda_chain_op code;
    int attr, inputs; /* inputs 0: any number */
    bool any_type;    /* integers narrower than 32 bits too */
} binaries[] = {
    {"Add", emit_binary, CUDA_OP_ADD, 0, 2, false},
    {"Sub", emit_binary, CUDA_OP_SUB, 0, 2, false},
    {"Mul", emit_binary, CUDA_OP_MUL, 0, 2, false},
    {"Div", emit_binary, CUDA_OP_DIV, 0, 2, false},
    {"And", emit_binary, CUDA_OP_AND, 0, 2, true},
    {"Or", emit_binary, CUDA_OP_OR, 0, 2, true},
    {"Xor", emit_xor, CUDA_OP_EQUAL, 0, 2, true},
    {"Equal", emit_binary, CUDA_OP_EQUAL, 0, 2, true},
    {"Less", emit_binary, CUDA_OP_LESS, 0, 2, true},
    {"Greater", emit_greater, CUDA_OP_LESS, 0, 2, true},
    {"LessOrEqual", emit_less_or_equal, CUDA_OP_LESS, 0, 2, true},
    {"GreaterOrEqual", emit_less_or_equal, CUDA_OP_LESS, 1, 2, true},
    {"PRelu", emit_prelu, CUDA_OP_MUL, 0, 2, false},
    {"Where", emit_where, CUDA_OP_SELECT, 0, 3, true},
    {"Min", emit_many, CUDA_OP_MIN, 0, 0, true},
    {"Max", emit_many, CUDA_OP_MAX, 0, 0, true},
    {"Sum", emit_many, CUDA_OP_ADD, 0, 0, false},
    {"Mean", emit_many, CUDA_OP_ADD, 1, 0, false},
};

static bool is_wide(enum mlo_dtype dtype)
{
    return lower_is_float(dtype) || dtype == MLO_INT32 || dtype == MLO_INT64;
}

static bool form_binary(const struct mlo_node *node, struct form *f, const char **why)
{
    enum mlo_dtype dtype = node->inputs[0]->type.dtype;
    if ((mlo_node_is(node, "Pow") && lower_is_float(dtype)) ||
        (mlo_node_is(node, "Mod") && is_wide(dtype) && !mlo_node_attr_i(node, "fmod", 0))) {
        f->emit = emit_binary;
        f->op = mlo_node_is(node, "Pow") ? CUDA_OP_POW : CUDA_OP_MOD;
        return true;
    }
    for (size_t i = 0; i < MLO_COUNT(binaries); i++) {
        if (!mlo_node_is(node, binaries[i].op))
            continue;
        if ((binaries[i].inputs && node->input_count != binaries[i].inputs) ||
            node->input_count > FORM_INPUTS) {
            *why = "it has more operands than a chain";
            return false;
        }
        if (!binaries[i].any_type && !is_wide(dtype)) {
            *why = "arithmetic on 8-bit and unsigned integers wraps around, which no kernel does";
            return false;
        }
        f->emit = binaries[i].emit;
        f->op = binaries[i].code;
        f->attr = binaries[i].attr;
        return true;
    }
    return false;
}

/* --- reductions
 * ---------------------------------------------------------------------------------------------- */

static int square(struct chain_builder *b, int x)
{
    return chain_add(b, CUDA_OP_MUL, x, x, 0);
}

static int mean_of(struct chain_builder *b, const struct form *f, int x)
{
    int sum = chain_add(b, CUDA_OP_SUM, x, 0, 0);
    return chain_add(b, CUDA_OP_MUL, sum, chain_number(b, 1.0 / f->elements), 0);
}

enum {
    REDUCE_SUM,
    REDUCE_MEAN,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_PROD,
    REDUCE_L1,
    REDUCE_L2,
    REDUCE_SQUARES,
    REDUCE_LOG_SUM,
    REDUCE_LOG_SUM_EXP
};
static const struct {
    const char *op;
    int kind;
} reductions[] = {
    {"ReduceSum", REDUCE_SUM},
    {"ReduceMean", REDUCE_MEAN},
    {"ReduceMax", REDUCE_MAX},
    {"ReduceMin", REDUCE_MIN},
    {"ReduceProd", REDUCE_PROD},
    {"ReduceL1", REDUCE_L1},
    {"ReduceL2", REDUCE_L2},
    {"ReduceSumSquare", REDUCE_SQUARES},
    {"ReduceLogSum", REDUCE_LOG_SUM},
    {"ReduceLogSumExp", REDUCE_LOG_SUM_EXP},
    {"GlobalAveragePool", REDUCE_MEAN},
    {"GlobalMaxPool", REDUCE_MAX},
};

static int emit_reduction(struct chain_builder *b, const struct form *f, const int *in)
{
    int x = in[0], m;
    switch (f->attr) {
    case REDUCE_SUM:
        return chain_add(b, CUDA_OP_SUM, x, 0, 0);
    case REDUCE_MEAN:
        return mean_of(b, f, x);
    case REDUCE_MAX:
        return chain_add(b, CUDA_OP_REDUCE_MAX, x, 0, 0);
    case REDUCE_MIN:
        return chain_add(b, CUDA_OP_REDUCE_MIN, x, 0, 0);
    case REDUCE_PROD:
        return chain_add(b, CUDA_OP_PRODUCT, x, 0, 0);
    case REDUCE_L1:
        return chain_add(b, CUDA_OP_SUM, chain_unary(b, CUDA_MATH_ABS, x, 0, 0), 0, 0);
    case REDUCE_L2:
        return chain_unary(b, CUDA_MATH_SQRT, chain_add(b, CUDA_OP_SUM, square(b, x), 0, 0), 0, 0);
    case REDUCE_SQUARES:
        return chain_add(b, CUDA_OP_SUM, square(b, x), 0, 0);
    case REDUCE_LOG_SUM:
        return chain_unary(b, CUDA_MATH_LOG, chain_add(b, CUDA_OP_SUM, x, 0, 0), 0, 0);
    default: /* around the greatest, so that nothing overflows */
        m = chain_add(b, CUDA_OP_REDUCE_MAX, x, 0, 0);
        x = chain_unary(b, CUDA_MATH_EXP, chain_add(b, CUDA_OP_SUB, x, m, 0), 0, 0);
        x = chain_unary(b, CUDA_MATH_LOG, chain_add(b, CUDA_OP_SUM, x, 0, 0), 0, 0);
        return chain_add(b, CUDA_OP_ADD, x, m, 0);
    }
}

static int emit_softmax(struct chain_builder *b, const struct form *f, const int *in)
{
    int m = chain_add(b, CUDA_OP_REDUCE_MAX, in[0], 0, 0), d = chain_add(b, CUDA_OP_SUB, in[0], m, 0);
    int e = chain_unary(b, CUDA_MATH_EXP, d, 0, 0), sum = chain_add(b, CUDA_OP_SUM, e, 0, 0);
    if (f->attr)
        return chain_add(b, CUDA_OP_SUB, d, chain_unary(b, CUDA_MATH_LOG, sum, 0, 0), 0);
    return chain_add(b, CUDA_OP_DIV, e, sum, 0);
}

/* x, scale, bias; attr: without the mean (RMS) */
static int emit_norm(struct chain_builder *b, const struct form *f, const int *in)
{
    int d = f->attr ? in[0] : chain_add(b, CUDA_OP_SUB, in[0], mean_of(b, f, in[0]), 0);
    int variance = chain_add(b, CUDA_OP_ADD, mean_of(b, f, square(b, d)), chain_number(b, f->alpha), 0);
    int y = chain_add(b, CUDA_OP_DIV, d, chain_unary(b, CUDA_MATH_SQRT, variance, 0, 0), 0);
    if (f->input_count > 1 && in[1] >= 0)
        y = chain_add(b, CUDA_OP_MUL, y, in[1], 0);
    return f->input_count > 2 && in[2] >= 0 ? chain_add(b, CUDA_OP_ADD, y, in[2], 0) : y;
}

/* x, scale, bias, mean, variance */
static int emit_batch_norm(struct chain_builder *b, const struct form *f, const int *in)
{
    int d = chain_add(b, CUDA_OP_SUB, in[0], in[3], 0);
    int v = chain_add(b, CUDA_OP_ADD, in[4], chain_number(b, f->alpha), 0);
    int y = chain_add(b, CUDA_OP_DIV, d, chain_unary(b, CUDA_MATH_SQRT, v, 0, 0), 0);
    return chain_add(b, CUDA_OP_ADD, chain_add(b, CUDA_OP_MUL, y, in[1], 0), in[2], 0);
}

static int emit_lp(struct chain_builder *b, const struct form *f, const int *in)
{
    int x = in[0],
        sum = chain_add(b, CUDA_OP_SUM, f->attr == 1 ? chain_unary(b, CUDA_MATH_ABS, x, 0, 0) : square(b, x),
                        0, 0);
    return chain_add(b, CUDA_OP_DIV, x, f->attr == 1 ? sum : chain_unary(b, CUDA_MATH_SQRT, sum, 0, 0), 0);
}

static bool in_rank(int64_t *axis, int rank)
{
    *axis += *axis < 0 ? rank : 0;
    return *axis >= 0 && *axis < rank;
}

static bool axes_of(const struct mlo_node *node, int rank, unsigned *out)
{
    const struct mlo_value *input = mlo_node_input(node, 1);
    size_t count;
    const int64_t *axes = mlo_node_attr_ints(node, "axes", &count);
    const struct mlo_tensor *t = input ? (input->known ? input->known : lower_constant(input)) : NULL;
    if (input && !t)
        return false;
    count = t ? mlo_tensor_count(t) : count;
    *out = 0;
    if (!count && mlo_node_attr_i(node, "noop_with_empty_axes", 0))
        return false;
    for (int i = 0; !count && i < rank; i++)
        *out |= 1u << i;
    for (size_t i = 0; i < count; i++) {
        int64_t axis = t ? mlo_tensor_get_i64(t, i) : axes[i];
        if (!in_rank(&axis, rank))
            return false;
        *out |= 1u << axis;
    }
    return true;
}

static unsigned from_axis(int64_t axis, int rank)
{
    unsigned mask = 0;
    for (int i = (int)axis; i < rank; i++)
        mask |= 1u << i;
    return mask;
}

bool lower_only_first(const struct mlo_node *node)
{
    for (int i = 1; i < node->output_count; i++)
        if (node->outputs[i] && (node->outputs[i]->use_count || node->outputs[i]->is_output))
            return false;
    return true;
}

static bool form_norm(const struct mlo_node *node, struct form *f, int rank, const char **why)
{
    bool layer = mlo_node_is(node, "LayerNormalization"),
         instance = mlo_node_is(node, "InstanceNormalization");
    bool rms = mlo_node_is(node, "RMSNormalization") || mlo_node_is(node, "SimplifiedLayerNormalization");
    int64_t axis = instance ? 2 : mlo_node_attr_i(node, "axis", -1);
    if (mlo_node_is(node, "BatchNormalization")) {
        if (mlo_node_attr_i(node, "training_mode", 0) || rank < 2 || !lower_only_first(node)) {
            *why = "it is in training mode";
            return false;
        }
        f->emit = emit_batch_norm;
        f->alpha = mlo_node_attr_f(node, "epsilon", 1e-5f);
        f->axis = 1;
        for (int i = 1; i < 5; i++)
            f->align[i] = ALIGN_CHANNEL;
        return true;
    }
    if ((!layer && !instance && !rms) || (axis != rank && !in_rank(&axis, rank)))
        return false;
    if (!lower_only_first(node)) {
        *why = "its mean or deviation is wanted too";
        return false;
    }
    f->emit = emit_norm;
    f->attr = rms;
    f->alpha = mlo_node_attr_f(node, "epsilon", 1e-5f);
    f->reduced = from_axis(axis, rank);
    f->whole = true;
    f->axis = 1;
    for (int i = 1; i < 3 && instance; i++)
        f->align[i] = ALIGN_CHANNEL;
    return true;
}

static bool form_reduction(const struct mlo_node *node, struct form *f, int rank, const char **why)
{
    bool log = mlo_node_is(node, "LogSoftmax");
    if (mlo_node_is(node, "Softmax") || log) {
        int64_t axis = mlo_node_attr_i(node, "axis", node->version < 13 ? 1 : -1);
        if (!in_rank(&axis, rank))
            return false;
        f->emit = emit_softmax;
        f->attr = log;
        f->whole = true;
        f->reduced = node->version < 13 ? from_axis(axis, rank) : 1u << axis;
        return true;
    }
    if (mlo_node_is(node, "LpNormalization")) {
        int64_t axis = mlo_node_attr_i(node, "axis", -1);
        f->emit = emit_lp;
        f->attr = mlo_node_attr_i(node, "p", 2);
        f->whole = true;
        if (!in_rank(&axis, rank))
            return false;
        f->reduced = 1u << axis;
        return true;
    }
    for (size_t i = 0; i < MLO_COUNT(reductions); i++) {
        if (!mlo_node_is(node, reductions[i].op))
            continue;
        bool global = strncmp(node->op_type, "Global", 6) == 0;
        if (rank == 0 || (global && rank < 3))
            return false;
        f->emit = emit_reduction;
        f->attr = reductions[i].kind;
        f->input_count = 1;
        f->keeps = global || mlo_node_attr_i(node, "keepdims", 1) != 0;
        if (!lower_is_float(node->inputs[0]->type.dtype) && f->attr != REDUCE_SUM && f->attr != REDUCE_MAX &&
            f->attr != REDUCE_MIN) {
            *why = "it reduces integers";
            return false;
        }
        f->reduced = from_axis(2, rank);
        if (!global && !axes_of(node, rank, &f->reduced)) {
            *why = "its axes are not known before it runs";
            return false;
        }
        return true;
    }
    return false;
}

/* --- quantization
 * -------------------------------------------------------------------------------------------- */

static const struct {
    enum mlo_dtype dtype;
    float low, high;
} quantized_types[] = {{MLO_INT8, -128, 127},
                       {MLO_UINT8, 0, 255},
                       {MLO_FLOAT8E4M3FN, -448, 448},
                       {MLO_FLOAT8E5M2, -57344, 57344}};

static int emit_quantize(struct chain_builder *b, const struct form *f, const int *in)
{
    bool small_float = lower_is_float8((enum mlo_dtype)f->attr);
    int y;
    if (f->op == CUDA_OP_QUANTIZE && small_float) { /* the type itself rounds and saturates; no zero point */
        int scale = f->skip[1] ? chain_number(b, f->alpha) : in[1];
        return chain_add(b, CUDA_OP_CAST, chain_add(b, CUDA_OP_DIV, in[0], scale, 0), (int)f->attr, 0);
    }
    if (f->skip[1])
        return chain_quantize(b, f->op, in[0], f->alpha, f->beta, f->low, f->high);
    if (f->op == CUDA_OP_DEQUANTIZE) {
        y = f->input_count > 2 && in[2] >= 0 ? chain_add(b, CUDA_OP_SUB, in[0], in[2], 0) : in[0];
        return chain_add(b, CUDA_OP_MUL, y, in[1], 0);
    }
    y = chain_unary(b, CUDA_MATH_ROUND, chain_add(b, CUDA_OP_DIV, in[0], in[1], 0), 0, 0);
    y = f->input_count > 2 && in[2] >= 0 ? chain_add(b, CUDA_OP_ADD, y, in[2], 0) : y;
    return chain_add(b, CUDA_OP_CAST, y, (int)f->attr, 0);
}

static bool form_quantize(const struct mlo_node *node, struct form *f, int rank, const char **why)
{
    bool to = mlo_node_is(node, "QuantizeLinear"), from = mlo_node_is(node, "DequantizeLinear");
    double scale, zero = 0;
    if (!to && !from)
        return false;
    enum mlo_dtype dtype = to ? node->outputs[0]->type.dtype : node->inputs[0]->type.dtype;
    size_t row = 0;
    while (row < MLO_COUNT(quantized_types) && quantized_types[row].dtype != dtype)
        row++;
    if ((row == MLO_COUNT(quantized_types) && (to || dtype != MLO_INT32)) ||
        mlo_node_attr_i(node, "block_size", 0)) {
        *why = "only int8, uint8, float8_e4m3fn and float8_e5m2 with one scale, or one a channel, are "
               "quantized types here";
        return false;
    }
    if (to && overflows(node, why))
        return false;
    f->emit = emit_quantize;
    f->op = to ? CUDA_OP_QUANTIZE : CUDA_OP_DEQUANTIZE;
    f->attr = dtype;
    if (lower_number(node->inputs[1], &scale) &&
        (!mlo_node_input(node, 2) || lower_number(node->inputs[2], &zero))) {
        f->skip[1] = f->skip[2] = true;
        f->alpha = (float)scale;
        f->beta = (float)zero;
        if (to) {
            f->low = quantized_types[row].low;
            f->high = quantized_types[row].high;
        }
        return true;
    }
    if (node->inputs[1]->type.rank == 1) {
        int64_t axis = mlo_node_attr_i(node, "axis", 1);
        if (!in_rank(&axis, rank))
            return false;
        f->axis = (int)axis;
        f->align[1] = f->align[2] = ALIGN_CHANNEL;
    }
    return true;
}

/* --- all
 * ------------------------------------------------------------------------------------------------------- */

static bool computes(const struct mlo_node *node, struct form *f, const char **why)
{
    int rank = node->inputs[0]->type.rank;
    if (form_unary(node, f) || form_gelu(node, f) || form_cast(node, f, why) || *why || form_clip(node, f) ||
        form_binary(node, f, why) || *why || form_reduction(node, f, rank, why) || *why ||
        form_norm(node, f, rank, why) || *why || form_quantize(node, f, rank, why))
        return *why == NULL;
    if (mlo_node_is(node, "Not")) {
        f->emit = emit_not;
        return true;
    }
    if (mlo_node_is(node, "IsInf") && mlo_node_attr_i(node, "detect_negative", 1) &&
        mlo_node_attr_i(node, "detect_positive", 1)) {
        f->emit = emit_isinf;
        return true;
    }
    return false;
}

bool form_of(const struct mlo_node *node, struct form *out, const char **why)
{
    int64_t dims[MLO_MAX_RANK];
    *why = NULL;
    *out = (struct form){.input_count = node->input_count};
    if (node->input_count < 1 || node->output_count < 1 || !node->inputs[0] || !node->outputs[0])
        return false;
    if (!computes(node, out, why))
        return false;
    out->input_count = MLO_MIN(out->input_count, FORM_INPUTS);
    for (int i = 0; i < out->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        double number;
        if (!v || out->skip[i])
            continue;
        if (!lower_dims(v, dims)) {
            *why = "the shape of an operand is not known before it runs";
            return false;
        }
        if (!lower_loads(v->type.dtype) && !lower_number(v, &number)) {
            *why = "an operand has an element type that no kernel loads";
            return false;
        }
    }
    if (!lower_dims(node->outputs[0], dims) || !lower_loads(node->outputs[0]->type.dtype)) {
        *why = "no kernel stores its result";
        return false;
    }
    if (out->reduced && lower_dims(node->inputs[0], dims)) {
        out->elements = 1;
        for (int i = 0; i < node->inputs[0]->type.rank; i++)
            if (out->reduced >> i & 1)
                out->elements *= (double)dims[i];
    }
    return true;
}
