/* Interpretation of elementwise programs. */
#include <string.h>

#include "engines/cpu/fast/expr.h"

static bool reads_two(enum expr_kind kind)
{
    return kind >= EXPR_ADD;
}

static bool reads_register(enum expr_kind kind)
{
    return kind != EXPR_LOAD && kind != EXPR_CONSTANT;
}

static bool is_type(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 || dtype == MLO_UINT8 || dtype == MLO_INT8;
}

bool expr_is_sound(const struct expr_program *p)
{
    if (p->op_count < 1 || p->op_count > EXPR_OPS_MAX || p->input_count < 1 ||
        p->input_count > EXPR_INPUTS_MAX || !is_type(p->result))
        return false;
    for (int i = 0; i < p->input_count; i++)
        if (!is_type(p->inputs[i].dtype))
            return false;
    for (int i = 0; i < p->op_count; i++) {
        const struct expr_op *op = &p->ops[i];
        int limit = op->kind == EXPR_LOAD ? p->input_count : i;
        if ((unsigned)op->kind >= EXPR_KINDS || (unsigned)op->math >= FAST_MATH_COUNT)
            return false;
        if (op->kind != EXPR_CONSTANT && (op->a < 0 || op->a >= limit))
            return false;
        if (reads_two(op->kind) && (op->b < 0 || op->b >= limit))
            return false;
    }
    /* bytes are stored without saturation */
    const struct expr_op *last = &p->ops[p->op_count - 1];
    bool is_signed = p->result == MLO_INT8;
    return p->result == MLO_FLOAT32 ||
           (last->kind == EXPR_QUANTIZE && last->low >= (is_signed ? -128.0f : 0.0f) &&
            last->high <= (is_signed ? 127.0f : 255.0f) && last->low <= last->high);
}

bool expr_finish(struct expr_program *p)
{
    int last[EXPR_OPS_MAX], owner[EXPR_BUFFERS_MAX];
    for (int i = 0; i < p->op_count; i++) {
        last[i] = i;
        if (reads_register(p->ops[i].kind))
            last[p->ops[i].a] = i;
        if (reads_two(p->ops[i].kind))
            last[p->ops[i].b] = i;
    }
    p->buffer_count = 0;
    for (int i = 0; i < EXPR_BUFFERS_MAX; i++)
        owner[i] = -1;
    for (int i = 0; i < p->op_count; i++) {
        const struct expr_op *op = &p->ops[i];
        int b = 0;
        p->buffer[i] = -1;
        if (op->kind == EXPR_CONSTANT)
            continue;
        /* an operand that dies here gives its buffer: every operation reads an element before it writes it.
         * One that is loaded may need a buffer too, when its rows must be brought together. */
        while (b < EXPR_BUFFERS_MAX && owner[b] >= 0 && (last[owner[b]] > i || op->kind == EXPR_LOAD))
            b++;
        if (b == EXPR_BUFFERS_MAX)
            return false;
        owner[b] = i;
        p->buffer[i] = b;
        p->buffer_count = p->buffer_count > b + 1 ? p->buffer_count : b + 1;
        for (int k = 0; k < EXPR_BUFFERS_MAX; k++)
            if (owner[k] >= 0 && owner[k] != i && last[owner[k]] <= i)
                owner[k] = -1;
    }
    return p->op_count > 0;
}

/* A register during a block: where it is, and whether one value stands for the row. */
struct reg {
    const float *at;
    bool splat;
};

static size_t element(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? sizeof(float) : 1;
}

static float one(const void *x, enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? *(const float *)x
           : dtype == MLO_UINT8 ? (float)*(const uint8_t *)x
                                : (float)*(const int8_t *)x;
}

/* Brings rows x n of an operand into the buffer, as floats, unless it can be read where it is. */
static struct reg load(const struct expr_kernels *kernels, const struct expr_program *p, int input,
                       const struct expr_block *b, size_t first_row, size_t rows, size_t from, size_t n,
                       float *buffer)
{
    enum mlo_dtype dtype = p->inputs[input].dtype;
    bool splat = p->inputs[input].splat;
    ptrdiff_t stride = b->in_stride[input];
    const char *x = (const char *)b->in[input] + (ptrdiff_t)first_row * stride;
    x += splat ? 0 : from * element(dtype);
    if (splat && (rows == 1 || stride == 0)) {
        buffer[0] = one(x, dtype);
        return (struct reg){buffer, true};
    }
    if (dtype == MLO_FLOAT32 && !splat && (rows == 1 || stride == (ptrdiff_t)(n * sizeof(float))))
        return (struct reg){(const float *)(const void *)x, false};
    size_t own =
        stride ? rows : 1; /* the same row each time is brought once, and repeated in larger pieces */
    for (size_t r = 0; r < own; r++, x += stride) {
        float *y = buffer + r * n;
        if (splat) {
            float v = one(x, dtype);
            for (size_t i = 0; i < n; i++)
                y[i] = v;
        } else if (dtype == MLO_FLOAT32) {
            memcpy(y, x, n * sizeof *y);
        } else {
            (dtype == MLO_UINT8 ? kernels->load_u8 : kernels->load_s8)(x, n, y);
        }
    }
    for (size_t done = own * n, all = rows * n; done < all; done += MLO_MIN(done, all - done))
        memcpy(buffer + done, buffer, MLO_MIN(done, all - done) * sizeof *buffer);
    return (struct reg){buffer, false};
}

/* What the last operation made, where it did not write the rows itself. */
static void store(const struct expr_program *p, const struct expr_block *b, struct reg result,
                  size_t first_row, size_t rows, size_t from, size_t n)
{
    size_t size = element(p->result);
    char *y = (char *)b->out + (ptrdiff_t)first_row * b->out_stride + from * size;
    for (size_t r = 0; r < rows; r++, y += b->out_stride) {
        const float *x = result.splat ? result.at : result.at + r * n;
        if (result.splat) {
            for (size_t i = 0; i < n; i++)
                if (size == 1)
                    ((uint8_t *)y)[i] = (uint8_t)(int32_t)x[0];
                else
                    memcpy(y + i * size, x, size);
        } else if ((const void *)x != (const void *)y) {
            memcpy(y, x, n * size);
        }
    }
}

/* Rows of bytes straight from the last operation, which quantizes. */
static void quantize_rows(const struct expr_kernels *kernels, const struct expr_op *op,
                          const struct expr_block *b, const float *x, size_t first_row, size_t rows,
                          size_t from, size_t n)
{
    char *y = (char *)b->out + (ptrdiff_t)first_row * b->out_stride + from;
    for (size_t r = 0; r < rows; r++, y += b->out_stride, x += n)
        kernels->quantize_8(x, n, op, y);
}

static void block(const struct expr_kernels *kernels, const struct fast_math_kernels *math,
                  const struct expr_program *p, const struct expr_block *b, size_t first_row, size_t rows,
                  size_t from, size_t n, float (*buffers)[EXPR_BLOCK])
{
    struct reg regs[EXPR_OPS_MAX];
    size_t count = rows * n;
    /* the last operation writes the result itself where that is one piece of floats */
    float *direct = NULL;
    if (p->result == MLO_FLOAT32 && (rows == 1 || b->out_stride == (ptrdiff_t)(n * sizeof(float))))
        direct = (float *)(void *)((char *)b->out + (ptrdiff_t)first_row * b->out_stride) + from;
    for (int i = 0; i < p->op_count; i++) {
        const struct expr_op *op = &p->ops[i];
        float *y = op->kind == EXPR_CONSTANT ? NULL : buffers[p->buffer[i]];
        if (op->kind == EXPR_LOAD) {
            regs[i] = load(kernels, p, op->a, b, first_row, rows, from, n, y);
            continue;
        }
        if (op->kind == EXPR_CONSTANT) {
            regs[i] = (struct reg){&op->alpha, true};
            continue;
        }
        struct reg a = regs[op->a], c = reads_two(op->kind) ? regs[op->b] : a;
        bool splat = a.splat && c.splat;
        size_t m = splat ? 1 : count;
        if (i == p->op_count - 1 && direct && !splat)
            y = direct;
        if (i == p->op_count - 1 && p->result != MLO_FLOAT32 && !splat) {
            quantize_rows(kernels, op, b, a.at, first_row, rows, from, n);
            return;
        }
        if (reads_two(op->kind))
            kernels->binary[op->kind](a.at, a.splat, c.at, c.splat, m, y);
        else if (op->kind == EXPR_MATH)
            math->fn[op->math](a.at, m, op->alpha, op->beta, y);
        else if (op->kind == EXPR_DEQUANTIZE)
            kernels->dequantize(a.at, m, op->alpha, op->beta, y);
        else
            kernels->quantize(a.at, m, op, y);
        regs[i] = (struct reg){y, splat};
    }
    struct reg result = regs[p->op_count - 1];
    if (result.at != direct)
        store(p, b, result, first_row, rows, from, n);
}

void expr_interpret(enum mlo_isa isa, const struct expr_program *p, const struct expr_block *b)
{
    const struct expr_kernels *kernels = isa >= MLO_ISA_AVX512 ? &expr_kernels_avx512 : &expr_kernels_avx2;
    const struct fast_math_kernels *math = fast_math_kernels_for(isa);
    float buffers[EXPR_BUFFERS_MAX][EXPR_BLOCK] __attribute__((aligned(64)));
    size_t rows_at_once = b->n < EXPR_BLOCK / 2 && b->n ? EXPR_BLOCK / b->n : 1;
    for (size_t r = 0; r < b->rows; r += rows_at_once) {
        size_t rows = b->rows - r < rows_at_once ? b->rows - r : rows_at_once;
        for (size_t i = 0; i < b->n; i += EXPR_BLOCK)
            block(kernels, math, p, b, r, rows, i, b->n - i < EXPR_BLOCK ? b->n - i : EXPR_BLOCK, buffers);
    }
}
