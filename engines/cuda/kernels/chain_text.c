/* One operation of a chain as an expression of the subset. */
#include "engines/cuda/kernels/chain_impl.h"

/* Functions of a float register, with alpha and beta as far as they have them; %0: the register itself. */
static const struct {
    const char *before;
    int parameters;
    const char *whole; /* of an integer register, where it stays one */
} functions[CUDA_MATHS] = {
    [CUDA_MATH_ABS] = {"fabsf", 0, "mlk_abs_whole"},
    [CUDA_MATH_NEG] = {"-", 0, "mlk_sub_whole(0, "},
    [CUDA_MATH_EXP] = {"expf", 0, NULL},
    [CUDA_MATH_LOG] = {"logf", 0, NULL},
    [CUDA_MATH_SQRT] = {"sqrtf", 0, NULL},
    [CUDA_MATH_RECIPROCAL] = {"1.0f / ", 0, NULL},
    [CUDA_MATH_ERF] = {"erff", 0, NULL},
    [CUDA_MATH_TANH] = {"tanhf", 0, NULL},
    [CUDA_MATH_SIGMOID] = {"mlk_sigmoid", 0, NULL},
    [CUDA_MATH_RELU] = {"mlk_relu", 0, "mlk_max_whole(0, "},
    [CUDA_MATH_LEAKY_RELU] = {"mlk_leaky_relu", 1, NULL},
    [CUDA_MATH_ELU] = {"mlk_elu", 1, NULL},
    [CUDA_MATH_HARD_SIGMOID] = {"mlk_hard_sigmoid", 2, NULL},
    [CUDA_MATH_HARD_SWISH] = {"mlk_hard_swish", 0, NULL},
    [CUDA_MATH_GELU] = {"mlk_gelu", 0, NULL},
    [CUDA_MATH_SOFTPLUS] = {"mlk_softplus", 0, NULL},
    [CUDA_MATH_FLOOR] = {"floorf", 0, NULL},
    [CUDA_MATH_CEIL] = {"ceilf", 0, NULL},
    [CUDA_MATH_ROUND] = {"rintf", 0, NULL},
    [CUDA_MATH_SIN] = {"sinf", 0, NULL},
    [CUDA_MATH_COS] = {"cosf", 0, NULL},
    [CUDA_MATH_SIGN] = {"mlk_sign", 0, "mlk_sign_whole"},
    [CUDA_MATH_TAN] = {"tanf", 0, NULL},
    [CUDA_MATH_GELU_TANH] = {"mlk_gelu_tanh", 0, NULL},
    [CUDA_MATH_SWISH] = {"mlk_swish", 1, NULL},
    [CUDA_MATH_MISH] = {"mlk_mish", 0, NULL},
    [CUDA_MATH_SOFTSIGN] = {"mlk_softsign", 0, NULL},
    [CUDA_MATH_SELU] = {"mlk_selu", 2, NULL},
    [CUDA_MATH_CELU] = {"mlk_celu", 1, NULL},
    [CUDA_MATH_THRESHOLDED_RELU] = {"mlk_thresholded_relu", 1, NULL},
    [CUDA_MATH_CLIP] = {"mlk_clip", 2, NULL},
    [CUDA_MATH_ISNAN] = {"mlk_isnan", 0, NULL},
    [CUDA_MATH_ISINF] = {"mlk_isinf", 0, NULL},
};

/* Operations of two registers: %s is left of, between and right of them, for floats and for integers. */
static const struct {
    const char *floats[3], *wholes[3];
} pairs[CUDA_CHAIN_OPS] = {
    [CUDA_OP_ADD] = {{"", " + ", ""}, {"mlk_add_whole(", ", ", ")"}},
    [CUDA_OP_SUB] = {{"", " - ", ""}, {"mlk_sub_whole(", ", ", ")"}},
    [CUDA_OP_MUL] = {{"", " * ", ""}, {"mlk_mul_whole(", ", ", ")"}},
    [CUDA_OP_DIV] = {{"", " / ", ""}, {"mlk_div_whole(", ", ", ")"}},
    [CUDA_OP_POW] = {{"powf(", ", ", ")"}, {"mlk_pow_whole(", ", ", ")"}},
    [CUDA_OP_MIN] = {{"mlk_min(", ", ", ")"}, {"mlk_min_whole(", ", ", ")"}},
    [CUDA_OP_MAX] = {{"mlk_max(", ", ", ")"}, {"mlk_max_whole(", ", ", ")"}},
    [CUDA_OP_LESS] = {{"", " < ", ""}, {"", " < ", ""}},
    [CUDA_OP_EQUAL] = {{"", " == ", ""}, {"", " == ", ""}},
};

static void constant(struct mlo_buf *b, float v, enum chain_kind as)
{
    if (as == CHAIN_WHOLE)
        mlo_buf_printf(b, v < 0 ? "((mlk_i64)%d)" : "(mlk_i64)%d", (int)v);
    else
        cuda_float_append(b, v);
}

void chain_value(struct mlo_buf *b, const struct chain_form *f, int reg, enum chain_kind as,
                 chain_name_fn *name, const void *arg)
{
    if (f->kind[reg] == CHAIN_EITHER) {
        constant(b, f->chain->code[reg].alpha, as);
        return;
    }
    if (as == CHAIN_FLOAT && f->kind[reg] == CHAIN_WHOLE)
        mlo_buf_puts(b, "(float)");
    bool cut = as == CHAIN_WHOLE && f->kind[reg] == CHAIN_FLOAT;
    mlo_buf_puts(b, cut ? "mlk_i64_of(" : "");
    name(b, arg, reg);
    mlo_buf_puts(b, cut ? ")" : "");
}

/* As a condition: not 0. */
static void truth(struct mlo_buf *b, const struct chain_form *f, int reg, chain_name_fn *name,
                  const void *arg)
{
    mlo_buf_putc(b, '(');
    chain_value(b, f, reg, f->kind[reg] == CHAIN_WHOLE ? CHAIN_WHOLE : CHAIN_FLOAT, name, arg);
    mlo_buf_puts(b, f->kind[reg] == CHAIN_WHOLE ? " != 0)" : " != 0.0f)");
}

static void unary(struct mlo_buf *b, const struct chain_form *f, int reg, chain_name_fn *name,
                  const void *arg)
{
    const struct cuda_chain_instruction *in = &f->chain->code[reg];
    const float numbers[] = {in->math == CUDA_MATH_SWISH && in->alpha == 0 ? 1 : in->alpha, in->beta};
    if (f->kind[reg] == CHAIN_WHOLE) {
        const char *whole = functions[in->math].whole;
        mlo_buf_puts(b, whole);
        mlo_buf_puts(b, mlo_str_ends(whole, ", ") ? "" : "(");
        chain_value(b, f, in->a, CHAIN_WHOLE, name, arg);
        mlo_buf_putc(b, ')');
        return;
    }
    mlo_buf_printf(b, "%s(", functions[in->math].before);
    chain_value(b, f, in->a, CHAIN_FLOAT, name, arg);
    for (int k = 0; k < functions[in->math].parameters; k++) {
        mlo_buf_puts(b, ", ");
        cuda_float_append(b, numbers[k]);
    }
    mlo_buf_putc(b, ')');
}

/* Exponents that need no powf: squares and cubes, and roots. */
static bool easy_power(struct mlo_buf *b, const struct chain_form *f, int reg, chain_name_fn *name,
                       const void *arg)
{
    const struct cuda_chain_instruction *in = &f->chain->code[reg];
    float y = f->kind[in->b] == CHAIN_EITHER ? f->chain->code[in->b].alpha : 0;
    if (f->kind[reg] != CHAIN_FLOAT || (y != 2 && y != 3))
        return false;
    for (int k = 0; k < (int)y; k++) {
        mlo_buf_puts(b, k ? " * " : "");
        chain_value(b, f, in->a, CHAIN_FLOAT, name, arg);
    }
    return true;
}

static void pair(struct mlo_buf *b, const struct chain_form *f, int reg, chain_name_fn *name, const void *arg)
{
    const struct cuda_chain_instruction *in = &f->chain->code[reg];
    bool compares = in->op == CUDA_OP_LESS || in->op == CUDA_OP_EQUAL;
    /* what is compared are integers only when both are */
    bool either = f->kind[in->a] == CHAIN_WHOLE || f->kind[in->b] == CHAIN_WHOLE;
    bool whole = compares ? either && f->kind[in->a] != CHAIN_FLOAT && f->kind[in->b] != CHAIN_FLOAT
                          : f->kind[reg] == CHAIN_WHOLE;
    for (int k = 0; whole && compares && k < 2; k++) {
        const struct cuda_chain_instruction *side = &f->chain->code[k ? in->b : in->a];
        if (side->op == CUDA_OP_CONSTANT && !chain_is_integral(side->alpha))
            whole = false;
    }
    if (in->op == CUDA_OP_MOD) {
        const char *fn = whole ? (in->alpha != 0 ? "mlk_rem_whole(" : "mlk_mod_whole(")
                               : (in->alpha != 0 ? "fmodf(" : "mlk_mod(");
        mlo_buf_puts(b, fn);
    } else {
        mlo_buf_puts(b, whole ? pairs[in->op].wholes[0] : pairs[in->op].floats[0]);
    }
    chain_value(b, f, in->a, whole ? CHAIN_WHOLE : CHAIN_FLOAT, name, arg);
    mlo_buf_puts(b, in->op == CUDA_OP_MOD ? ", " : whole ? pairs[in->op].wholes[1] : pairs[in->op].floats[1]);
    chain_value(b, f, in->b, whole ? CHAIN_WHOLE : CHAIN_FLOAT, name, arg);
    mlo_buf_puts(b, in->op == CUDA_OP_MOD ? ")" : whole ? pairs[in->op].wholes[2] : pairs[in->op].floats[2]);
}

void chain_expression(struct mlo_buf *b, const struct chain_form *f, int reg, chain_name_fn *name,
                      const void *arg)
{
    const struct cuda_chain_instruction *in = &f->chain->code[reg];
    switch (in->op) {
    case CUDA_OP_UNARY:
        unary(b, f, reg, name, arg);
        break;
    case CUDA_OP_AND:
    case CUDA_OP_OR:
        truth(b, f, in->a, name, arg);
        mlo_buf_puts(b, in->op == CUDA_OP_AND ? " && " : " || ");
        truth(b, f, in->b, name, arg);
        break;
    case CUDA_OP_NOT:
        mlo_buf_putc(b, '!');
        truth(b, f, in->a, name, arg);
        break;
    case CUDA_OP_SELECT:
        truth(b, f, in->a, name, arg);
        mlo_buf_puts(b, " ? ");
        chain_value(b, f, in->b, f->kind[reg], name, arg);
        mlo_buf_puts(b, " : ");
        chain_value(b, f, in->c, f->kind[reg], name, arg);
        break;
    case CUDA_OP_QUANTIZE:
    case CUDA_OP_DEQUANTIZE: {
        const float numbers[] = {in->alpha, in->beta, in->low, in->high};
        mlo_buf_puts(b, in->op == CUDA_OP_QUANTIZE ? "mlk_quantize(" : "mlk_dequantize(");
        chain_value(b, f, in->a, CHAIN_FLOAT, name, arg);
        for (int k = 0; k < (in->op == CUDA_OP_QUANTIZE ? 4 : 2); k++) {
            mlo_buf_puts(b, ", ");
            cuda_float_append(b, numbers[k]);
        }
        mlo_buf_putc(b, ')');
        break;
    }
    case CUDA_OP_CAST: {
        const char *type = cuda_type_name((enum mlo_dtype)in->b);
        bool whole = f->kind[in->a] == CHAIN_WHOLE;
        mlo_buf_printf(b, "%s_%s(%s_%s(", f->kind[reg] == CHAIN_WHOLE ? "mlk_whole" : "mlk_get", type,
                       whole ? "mlk_put_whole" : "mlk_put", type);
        chain_value(b, f, in->a, whole ? CHAIN_WHOLE : CHAIN_FLOAT, name, arg);
        mlo_buf_puts(b, "))");
        break;
    }
    case CUDA_OP_POW:
        if (easy_power(b, f, reg, name, arg))
            break;
        pair(b, f, reg, name, arg);
        break;
    default:
        pair(b, f, reg, name, arg);
    }
}
