/* Elementwise programs: a short list of operations on float32 that is computed for every element of a tensor
 * in one pass, with broadcast operands and 8-bit ends. A program says nothing of shapes: it is run over
 * blocks of rows, in which each operand has one stride from row to row and is dense or one value along a row.
 */
#ifndef MLO_ENGINES_CPU_FAST_EXPR_H
#define MLO_ENGINES_CPU_FAST_EXPR_H

#include <stddef.h>
#include <stdint.h>

#include "engines/cpu/fast/vecmath.h"

enum { EXPR_OPS_MAX = 32, EXPR_INPUTS_MAX = 8, EXPR_BUFFERS_MAX = 8, EXPR_BLOCK = 1024 };

enum expr_kind {
    EXPR_LOAD,       /* operand a, as it is */
    EXPR_DEQUANTIZE, /* (a - beta) * alpha, of a value on a grid of integers */
    EXPR_QUANTIZE,   /* round_half_even(a / alpha) + beta, saturated to [low, high]; NaN gives beta */
    EXPR_CONSTANT,   /* alpha */
    EXPR_MATH,       /* function `math` of a */
    EXPR_ADD,
    EXPR_SUB,
    EXPR_MUL,
    EXPR_DIV,
    EXPR_MIN, /* NaN where either is */
    EXPR_MAX,
    EXPR_PRELU, /* a < 0 ? a * b : a */
    EXPR_KINDS
};

/* Operation i computes register i of earlier registers a and b. */
struct expr_op {
    enum expr_kind kind;
    enum fast_math math;
    int a, b;
    float alpha, beta, low, high;
};

struct expr_program {
    struct expr_op ops[EXPR_OPS_MAX];
    int op_count; /* the last one is the result */
    int input_count;
    struct {
        enum mlo_dtype dtype; /* MLO_FLOAT32, MLO_UINT8, MLO_INT8 */
        int splat;            /* not 0: one value for a whole row (no bool: it may come out of a file) */
    } inputs[EXPR_INPUTS_MAX];
    enum mlo_dtype result;    /* the same; 8 bits: the last operation is EXPR_QUANTIZE */
    int buffer[EXPR_OPS_MAX]; /* by register, for interpretation; -1: an operand or a constant itself */
    int buffer_count;
};

/* rows x n elements: operand i begins at in[i], its rows are in_stride[i] bytes apart. */
struct expr_block {
    const void *in[EXPR_INPUTS_MAX];
    ptrdiff_t in_stride[EXPR_INPUTS_MAX];
    void *out;
    ptrdiff_t out_stride;
    size_t rows, n;
};

/* Compiled code: the same, for one program. */
typedef void expr_fn(const void *const *in, const ptrdiff_t *in_stride, void *out, ptrdiff_t out_stride,
                     size_t rows, size_t n);

/* Whether a program that came from outside is one: registers before their use, known kinds and types. */
bool expr_is_sound(const struct expr_program *program);
/* Gives registers buffers; false when the program needs too many. Run it when the program is complete. */
bool expr_finish(struct expr_program *program);
/* Interprets: operation by operation over blocks that stay in the first-level cache. */
void expr_interpret(enum mlo_isa isa, const struct expr_program *program, const struct expr_block *block);

/* --- the operations over a block, by instruction set ---------------------------------------------------- */

/* A splat operand is read at its first element only. */
typedef void expr_binary_fn(const float *a, bool a_splat, const float *b, bool b_splat, size_t n, float *y);
struct expr_kernels {
    expr_binary_fn *binary[EXPR_KINDS];
    void (*load_u8)(const void *x, size_t n, float *y);
    void (*load_s8)(const void *x, size_t n, float *y);
    void (*dequantize)(const float *x, size_t n, float scale, float zero, float *y);
    void (*quantize)(const float *x, size_t n, const struct expr_op *op, float *y);
    /* the same, stored as bytes, within whose range the operation clamps */
    void (*quantize_8)(const float *x, size_t n, const struct expr_op *op, void *y);
};
extern const struct expr_kernels expr_kernels_avx2, expr_kernels_avx512;

/* --- expr_codegen.c: compiled programs ------------------------------------------------------------------ */

/* The C text of a program; yours (free), NULL: out of memory. */
char *expr_source(enum mlo_isa isa, const struct expr_program *program);
/* The compiled program, from the cache or by the system's compiler; NULL where there is none of these, or
 * compilation is switched off (MLOPT_CODEGEN=off). It stays loaded as long as the process lives. */
expr_fn *expr_compiled(enum mlo_isa isa, const struct expr_program *program);

#endif
