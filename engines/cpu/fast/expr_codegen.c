/* Elementwise programs as C: one loop in which every intermediate result stays in a register. The text is
 * made of indices and numbers only, never of anything a model says in words; engines/native.c compiles and
 * keeps it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "engines/cpu/fast/expr.h"
#include "engines/cpu/fast/expr_text.h"
#include "engines/native_impl.h"

/* To be raised when the same program should give another text. */
#define GENERATOR "mlopt elementwise kernels 1"

/* --- the text ------------------------------------------------------------------------------------------- */

static const char *const binary_names[EXPR_KINDS] = {
    [EXPR_ADD] = "v_add",      [EXPR_SUB] = "v_sub",      [EXPR_MUL] = "v_mul",     [EXPR_DIV] = "v_div",
    [EXPR_MIN] = "vm_minimum", [EXPR_MAX] = "vm_maximum", [EXPR_PRELU] = "vm_prelu"};

/* Functions take the register, and alpha and beta as far as they have them. */
static const struct {
    const char *name;
    int parameters;
} math_names[FAST_MATH_COUNT] = {
    [FAST_MATH_ABS] = {"v_abs", 0},
    [FAST_MATH_NEG] = {"v_neg", 0},
    [FAST_MATH_SQRT] = {"v_sqrt", 0},
    [FAST_MATH_RECIPROCAL] = {"vm_reciprocal", 0},
    [FAST_MATH_FLOOR] = {"v_floor", 0},
    [FAST_MATH_CEIL] = {"v_ceil", 0},
    [FAST_MATH_ROUND] = {"v_rint", 0},
    [FAST_MATH_EXP] = {"vm_exp", 0},
    [FAST_MATH_LOG] = {"vm_log", 0},
    [FAST_MATH_ERF] = {"vm_erf", 0},
    [FAST_MATH_SIGMOID] = {"vm_sigmoid", 0},
    [FAST_MATH_TANH] = {"vm_tanh", 0},
    [FAST_MATH_SOFTPLUS] = {"vm_softplus", 0},
    [FAST_MATH_SOFTSIGN] = {"vm_softsign", 0},
    [FAST_MATH_RELU] = {"vm_relu", 0},
    [FAST_MATH_LEAKY_RELU] = {"vm_leaky_relu", 1},
    [FAST_MATH_THRESHOLDED_RELU] = {"vm_thresholded_relu", 1},
    [FAST_MATH_CLIP] = {"vm_clip", 2},
    [FAST_MATH_ELU] = {"vm_elu", 1},
    [FAST_MATH_SELU] = {"vm_selu", 2},
    [FAST_MATH_CELU] = {"vm_celu", 1},
    [FAST_MATH_HARD_SIGMOID] = {"vm_hard_sigmoid", 2},
    [FAST_MATH_HARD_SWISH] = {"vm_hard_swish", 0},
    [FAST_MATH_SWISH] = {"vm_swish", 1},
    [FAST_MATH_MISH] = {"vm_mish", 0},
    [FAST_MATH_GELU] = {"vm_gelu", 0},
    [FAST_MATH_GELU_TANH] = {"vm_gelu_tanh", 0},
};

static void number(struct mlo_buf *b, float v)
{
    if (isnan(v))
        mlo_buf_puts(b, "v_set(__builtin_nanf(\"\"))");
    else if (isinf(v))
        mlo_buf_puts(b, v > 0 ? "v_set(__builtin_inff())" : "v_set(-__builtin_inff())");
    else
        mlo_buf_printf(b, "v_set(%af)", (double)v);
}

static void operation(struct mlo_buf *b, int i, const struct expr_op *op)
{
    mlo_buf_printf(b, "    const vf r%d = ", i);
    switch (op->kind) {
    case EXPR_LOAD:
        mlo_buf_printf(b, "x%d", op->a);
        break;
    case EXPR_CONSTANT:
        number(b, op->alpha);
        break;
    case EXPR_DEQUANTIZE:
        mlo_buf_printf(b, "vm_dequantize(r%d, ", op->a);
        number(b, op->alpha);
        mlo_buf_puts(b, ", ");
        number(b, op->beta);
        mlo_buf_puts(b, ")");
        break;
    case EXPR_QUANTIZE: {
        const float numbers[] = {op->alpha, op->beta, op->low, op->high};
        mlo_buf_printf(b, "vm_quantize(r%d", op->a);
        for (size_t k = 0; k < MLO_COUNT(numbers); k++) {
            mlo_buf_puts(b, ", ");
            number(b, numbers[k]);
        }
        mlo_buf_puts(b, ")");
        break;
    }
    case EXPR_MATH: {
        const float numbers[] = {op->alpha, op->beta};
        mlo_buf_printf(b, "%s(r%d", math_names[op->math].name, op->a);
        for (int k = 0; k < math_names[op->math].parameters; k++) {
            mlo_buf_puts(b, ", ");
            number(b, numbers[k]);
        }
        mlo_buf_puts(b, ")");
        break;
    }
    default:
        mlo_buf_printf(b, "%s(r%d, r%d)", binary_names[op->kind], op->a, op->b);
    }
    mlo_buf_puts(b, ";\n");
}

static const char *element_name(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? "float" : dtype == MLO_UINT8 ? "unsigned char" : "signed char";
}

static const char *load_name(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? "v_load" : dtype == MLO_UINT8 ? "v_load_u8" : "v_load_s8";
}

/* What one pass of the loop over columns does; `tail`: with fewer elements than a vector has. */
static void columns(struct mlo_buf *b, const struct expr_program *p, bool tail)
{
    for (int i = 0; i < p->input_count; i++) {
        enum mlo_dtype type = p->inputs[i].dtype;
        if (p->inputs[i].splat)
            continue;
        if (tail)
            mlo_buf_printf(b, "            const vf x%d = %s_n(p%d + i, n - i);\n", i, load_name(type), i);
        else
            mlo_buf_printf(b, "            const vf x%d = %s(p%d + i);\n", i, load_name(type), i);
    }
    mlo_buf_puts(b, "            const vf r = element(");
    for (int i = 0; i < p->input_count; i++)
        mlo_buf_printf(b, "%sx%d", i ? ", " : "", i);
    mlo_buf_puts(b, ");\n");
    const char *store = p->result == MLO_FLOAT32 ? "v_store" : "v_store_i8";
    if (tail)
        mlo_buf_printf(b, "            %s_n(y + i, n - i, r);\n", store);
    else
        mlo_buf_printf(b, "            %s(y + i, r);\n", store);
}

char *expr_source(enum mlo_isa isa, const struct expr_program *p)
{
    struct mlo_buf b = {0};
    mlo_buf_printf(&b, "/* %s */\n#include <immintrin.h>\n#include <stddef.h>\n#define SIMD_LANES %d\n",
                   GENERATOR, isa >= MLO_ISA_AVX512 ? 16 : 8);
    for (size_t i = 0; i < fast_kernel_texts_count; i++)
        mlo_buf_append(&b, fast_kernel_texts[i].text, fast_kernel_texts[i].size);
    mlo_buf_puts(&b, "\nV_FN vf element(");
    for (int i = 0; i < p->input_count; i++)
        mlo_buf_printf(&b, "%svf x%d", i ? ", " : "", i);
    mlo_buf_printf(&b, "%s)\n{\n", p->input_count ? "" : "void");
    for (int i = 0; i < p->op_count; i++)
        operation(&b, i, &p->ops[i]);
    mlo_buf_printf(
        &b,
        "    return r%d;\n}\n\nvoid mlopt_kernel(const void *const *in, const ptrdiff_t *in_stride, void "
        "*out, ptrdiff_t out_stride,\n                  size_t rows, size_t n)\n{\n"
        "    for (size_t row = 0; row < rows; row++) {\n        %s *y = (void *)((char *)out + "
        "(ptrdiff_t)row * out_stride);\n        size_t i = 0;\n",
        p->op_count - 1, element_name(p->result));
    for (int i = 0; i < p->input_count; i++) {
        const char *type = element_name(p->inputs[i].dtype);
        mlo_buf_printf(&b,
                       "        const %s *p%d = (const void *)((const char *)in[%d] + (ptrdiff_t)row * "
                       "in_stride[%d]);\n",
                       type, i, i, i);
        if (p->inputs[i].splat)
            mlo_buf_printf(&b, "        const vf x%d = v_set((float)p%d[0]);\n", i, i);
    }
    mlo_buf_puts(&b, "        for (; i + SIMD_LANES <= n; i += SIMD_LANES) {\n");
    columns(&b, p, false);
    mlo_buf_puts(&b, "        }\n        if (i < n) {\n");
    columns(&b, p, true);
    mlo_buf_puts(&b, "        }\n    }\n}\n");
    if (!mlo_buf_ok(&b)) {
        mlo_buf_clear(&b);
        return NULL;
    }
    return mlo_buf_take(&b);
}

/* --- compiled --------------------------------------------------------------------------------------------
 */

static const char *const flags_avx2[] = {"-std=gnu11",
                                         "-O2",
                                         "-fPIC",
                                         "-shared",
                                         "-nostdlib",
                                         "-ffp-contract=off",
                                         "-fno-math-errno",
                                         "-fno-trapping-math",
                                         "-fno-strict-aliasing",
                                         "-w",
                                         "-mavx2",
                                         "-mfma",
                                         NULL};
static const char *const flags_avx512[] = {"-std=gnu11",
                                           "-O2",
                                           "-fPIC",
                                           "-shared",
                                           "-nostdlib",
                                           "-ffp-contract=off",
                                           "-fno-math-errno",
                                           "-fno-trapping-math",
                                           "-fno-strict-aliasing",
                                           "-w",
                                           "-mavx2",
                                           "-mfma",
                                           "-mavx512f",
                                           "-mavx512bw",
                                           "-mavx512vl",
                                           "-mavx512dq",
                                           NULL};

expr_fn *expr_compiled(enum mlo_isa isa, const struct expr_program *p)
{
    const char *wish = getenv("MLOPT_CODEGEN");
    if ((wish && strcmp(wish, "off") == 0) || p->input_count == 0)
        return NULL;
    char *text = expr_source(isa, p);
    void *symbol =
        text ? mlo_native_function(text, isa >= MLO_ISA_AVX512 ? flags_avx512 : flags_avx2, "mlopt_kernel")
             : NULL;
    expr_fn *fn = NULL;
    if (symbol)
        memcpy(&fn, &symbol, sizeof fn); /* ISO C has no cast from an object's to a function's pointer */
    free(text);
    return fn;
}
