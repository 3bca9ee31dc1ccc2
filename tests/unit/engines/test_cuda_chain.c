/* The generator of chains: what its text computes on a CPU is, bit by bit, what an interpreter makes of the
 * same struct; single functions against the reference kernels; NVRTC takes the text. MLOPT_FUZZ_CHAINS: how
 * many random chains; MLOPT_SEED: from which seed. */
#include "cuda_helpers.h"
#include "engines/cuda/kernels/kernels_impl.h"
#include "graph/op.h"

/* --- the interpreter ------------------------------------------------------------------------------------ */

struct value {
    enum { FLOAT, WHOLE, EITHER } kind;
    float f;
    int64_t i;
};

static float as_float(struct value v)
{
    return v.kind == WHOLE ? (float)v.i : v.f;
}

static bool is_integral(float f)
{
    return fabsf(f) <= 16777216.0f && f == rintf(f);
}

/* Both as integers? Then in a->i and b->i. */
static bool both_whole(struct value *a, struct value *b)
{
    struct value *sides[] = {a, b};
    if (a->kind != WHOLE && b->kind != WHOLE)
        return false;
    for (int k = 0; k < 2; k++) {
        if (sides[k]->kind == FLOAT || (sides[k]->kind == EITHER && !is_integral(sides[k]->f)))
            return false;
        if (sides[k]->kind == EITHER)
            sides[k]->i = (int64_t)sides[k]->f;
    }
    return true;
}

static bool truth(struct value v)
{
    return v.kind == WHOLE ? v.i != 0 : v.f != 0;
}

static struct value whole(int64_t i)
{
    return (struct value){.kind = WHOLE, .i = i};
}
static struct value real(float f)
{
    return (struct value){.kind = FLOAT, .f = f};
}

static float f_max(float a, float b)
{
    return isnan(a) || a > b ? a : b;
}
static float f_min(float a, float b)
{
    return isnan(a) || a < b ? a : b;
}
static float f_clip(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

static void store_value(enum mlo_dtype dtype, void *at, struct value v)
{
    struct mlo_tensor t = {.dtype = dtype, .rank = 0, .data = at};
    if (dtype == MLO_BOOL)
        *(uint8_t *)at = truth(v);
    else if (v.kind == WHOLE && cuda_type_is_whole(dtype))
        memcpy(at, &v.i, mlo_dtype_info(dtype)->bits / 8); /* wraps */
    else if (cuda_type_is_whole(dtype))
        mlo_tensor_set_f64(&t, 0, trunc((double)as_float(v)));
    else
        mlo_tensor_set_f64(&t, 0, (double)as_float(v));
}

static struct value load_value(enum mlo_dtype dtype, const void *at, bool exactly)
{
    uint64_t copy = 0; /* mlo_tensor wants aligned elements, operands have them */
    memcpy(&copy, at, mlo_dtype_info(dtype)->bits / 8);
    struct mlo_tensor t = {.dtype = dtype, .rank = 0, .data = &copy};
    if (dtype == MLO_BOOL)
        return exactly ? whole(copy != 0) : real(copy != 0);
    return exactly              ? whole(mlo_tensor_get_i64(&t, 0))
           : dtype == MLO_INT64 ? real((float)mlo_tensor_get_i64(&t, 0))
                                : real((float)mlo_tensor_get_f64(&t, 0));
}

static struct value cast(enum mlo_dtype dtype, struct value v)
{
    uint64_t at = 0;
    store_value(dtype, &at, v);
    return load_value(dtype, &at, cuda_type_is_whole(dtype));
}

static float function(const struct cuda_chain_instruction *in, float x)
{
    switch (in->math) {
    case CUDA_MATH_ABS:
        return fabsf(x);
    case CUDA_MATH_NEG:
        return -x;
    case CUDA_MATH_EXP:
        return expf(x);
    case CUDA_MATH_SQRT:
        return sqrtf(x);
    case CUDA_MATH_RECIPROCAL:
        return 1.0f / x;
    case CUDA_MATH_ERF:
        return erff(x);
    case CUDA_MATH_TANH:
        return tanhf(x);
    case CUDA_MATH_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case CUDA_MATH_RELU:
        return x < 0 ? 0 : x;
    case CUDA_MATH_LEAKY_RELU:
        return x < 0 ? in->alpha * x : x;
    case CUDA_MATH_FLOOR:
        return floorf(x);
    case CUDA_MATH_CEIL:
        return ceilf(x);
    case CUDA_MATH_ROUND:
        return rintf(x);
    case CUDA_MATH_SIGN:
        return (float)((x > 0) - (x < 0));
    case CUDA_MATH_CLIP:
        return f_clip(x, in->alpha, in->beta);
    default:
        fail_msg("the interpreter has no function %d", in->math);
        return 0;
    }
}

static struct value pair(const struct cuda_chain_instruction *in, struct value a, struct value b)
{
    bool wholes = both_whole(&a, &b);
    float x = as_float(a), y = as_float(b);
    uint64_t i = (uint64_t)a.i, k = (uint64_t)b.i;
    switch (in->op) {
    case CUDA_OP_ADD:
        return wholes ? whole((int64_t)(i + k)) : real(x + y);
    case CUDA_OP_SUB:
        return wholes ? whole((int64_t)(i - k)) : real(x - y);
    case CUDA_OP_MUL:
        return wholes ? whole((int64_t)(i * k)) : real(x * y);
    case CUDA_OP_DIV:
        return wholes ? whole(b.i == 0 ? 0 : b.i == -1 ? (int64_t)(0 - i) : a.i / b.i) : real(x / y);
    case CUDA_OP_MIN:
        return wholes ? whole(MLO_MIN(a.i, b.i)) : real(f_min(x, y));
    case CUDA_OP_MAX:
        return wholes ? whole(MLO_MAX(a.i, b.i)) : real(f_max(x, y));
    case CUDA_OP_LESS:
        return whole(wholes ? a.i < b.i : x < y);
    case CUDA_OP_EQUAL:
        return whole(wholes ? a.i == b.i : x == y);
    case CUDA_OP_AND:
        return whole(truth(a) && truth(b));
    case CUDA_OP_OR:
        return whole(truth(a) || truth(b));
    default:
        fail_msg("the interpreter has no operation %d", in->op);
        return a;
    }
}

struct machine {
    const struct cuda_chain *c;
    char *const *tensors; /* operands, then results */
    struct value r[CUDA_CHAIN_REGISTERS];
    bool known[CUDA_CHAIN_REGISTERS];
};

static char *place(const struct machine *m, int t, const int64_t *at)
{
    const struct cuda_operand *o =
        (const void *)(t < m->c->operand_count ? &m->c->operands[t]
                                               : &m->c->results[t - m->c->operand_count]);
    int64_t index = o->offset;
    for (int d = 0; d < m->c->rank; d++)
        index += at[d] * o->strides[d];
    return m->tensors[t] + index * (mlo_dtype_info(o->dtype)->bits / 8);
}

static bool advance(const struct cuda_chain *c, int64_t *at, int begin, int end)
{
    for (int d = end - 1; d >= begin; d--) {
        if (++at[d] < c->dims[d])
            return true;
        at[d] = 0;
    }
    return false;
}

static struct value reduce(struct machine *m, int reg, const int64_t *row);

/* Register `reg` at a position; reductions go over the row that it is in. */
static struct value value_at(struct machine *m, int reg, const int64_t *at)
{
    const struct cuda_chain_instruction *in = &m->c->code[reg];
    if (m->known[reg])
        return m->r[reg];
    switch (in->op) {
    case CUDA_OP_LOAD:
        return load_value(m->c->operands[in->a].dtype, place(m, in->a, at), false);
    case CUDA_OP_LOAD_INTEGER:
        return load_value(m->c->operands[in->a].dtype, place(m, in->a, at), true);
    case CUDA_OP_CONSTANT:
        return (struct value){.kind = EITHER, .f = in->alpha};
    case CUDA_OP_INDEX:
        return whole(at[in->a]);
    case CUDA_OP_CAST:
        return cast((enum mlo_dtype)in->b, value_at(m, in->a, at));
    case CUDA_OP_NOT:
        return whole(!truth(value_at(m, in->a, at)));
    case CUDA_OP_DEQUANTIZE:
        return real((as_float(value_at(m, in->a, at)) - in->beta) * in->alpha);
    case CUDA_OP_QUANTIZE: {
        float q = rintf(as_float(value_at(m, in->a, at)) / in->alpha) + in->beta;
        return real(isnan(q) ? in->beta : f_clip(q, in->low, in->high));
    }
    case CUDA_OP_UNARY: {
        struct value a = value_at(m, in->a, at);
        if (a.kind == WHOLE && (in->math == CUDA_MATH_ABS || in->math == CUDA_MATH_NEG))
            return whole(in->math == CUDA_MATH_NEG || a.i < 0 ? (int64_t)(0 - (uint64_t)a.i) : a.i);
        if (a.kind == WHOLE && (in->math == CUDA_MATH_RELU || in->math == CUDA_MATH_SIGN))
            return whole(in->math == CUDA_MATH_RELU ? MLO_MAX(a.i, 0) : (a.i > 0) - (a.i < 0));
        return real(function(in, as_float(a)));
    }
    case CUDA_OP_SELECT: {
        struct value b = value_at(m, in->b, at), c = value_at(m, in->c, at);
        bool wholes = both_whole(&b, &c), yes = truth(value_at(m, in->a, at));
        return wholes ? whole(yes ? b.i : c.i) : real(yes ? as_float(b) : as_float(c));
    }
    case CUDA_OP_SUM:
    case CUDA_OP_PRODUCT:
    case CUDA_OP_REDUCE_MAX:
    case CUDA_OP_REDUCE_MIN:
        m->r[reg] = reduce(m, reg, at);
        m->known[reg] = true;
        return m->r[reg];
    default:
        return pair(in, value_at(m, in->a, at), value_at(m, in->b, at));
    }
}

static struct value reduce(struct machine *m, int reg, const int64_t *row)
{
    const struct cuda_chain_instruction *in = &m->c->code[reg];
    int begin = m->c->rank - m->c->reduced;
    int64_t at[CUDA_RANK] = {0};
    struct value sum = {0};
    memcpy(at, row, sizeof at);
    for (int d = begin; d < m->c->rank; d++)
        at[d] = 0;
    bool first = true;
    double total = 0;
    do {
        struct value v = value_at(m, in->a, at);
        float f = as_float(v);
        if (first)
            sum = v.kind == WHOLE ? v : real(f);
        else if (in->op == CUDA_OP_SUM)
            sum = v.kind == WHOLE ? whole((int64_t)((uint64_t)sum.i + (uint64_t)v.i)) : real(0);
        else if (in->op == CUDA_OP_PRODUCT)
            sum = v.kind == WHOLE ? whole((int64_t)((uint64_t)sum.i * (uint64_t)v.i)) : real(sum.f * f);
        else if (in->op == CUDA_OP_REDUCE_MAX)
            sum = v.kind == WHOLE ? whole(MLO_MAX(sum.i, v.i)) : real(f_max(sum.f, f));
        else
            sum = v.kind == WHOLE ? whole(MLO_MIN(sum.i, v.i)) : real(f_min(sum.f, f));
        first = false;
        total += (double)f;
    } while (advance(m->c, at, begin, m->c->rank));
    if (in->op == CUDA_OP_SUM && sum.kind == FLOAT)
        sum.f = (float)total;
    return sum;
}

static void interpret(const struct cuda_chain *c, char *const *tensors)
{
    struct machine m = {.c = c, .tensors = tensors};
    int64_t at[CUDA_RANK] = {0};
    for (int d = 0; d < c->rank; d++)
        if (c->dims[d] == 0)
            return;
    do {
        memset(m.known, 0, sizeof m.known);
        int64_t inside[CUDA_RANK];
        memcpy(inside, at, sizeof inside);
        do {
            for (int i = 0; i < c->result_count; i++)
                store_value(c->results[i].dtype, place(&m, c->operand_count + i, inside),
                            value_at(&m, c->results[i].reg, inside));
        } while (advance(c, inside, c->rank - c->reduced, c->rank));
    } while (advance(c, at, 0, c->rank - c->reduced));
}

/* --- memory of a chain ---------------------------------------------------------------------------------- */

enum { TENSORS = CUDA_CHAIN_OPERANDS + 4 };
struct memory {
    int count;
    char *data[TENSORS];
    size_t size[TENSORS];
};

static size_t span(const struct cuda_chain *c, const struct cuda_operand *o)
{
    int64_t last = o->offset;
    for (int d = 0; d < c->rank; d++) {
        if (c->dims[d] == 0)
            return 0;
        last += o->strides[d] > 0 ? o->strides[d] * (c->dims[d] - 1) : 0;
    }
    return (size_t)(last + 1) * (mlo_dtype_info(o->dtype)->bits / 8);
}

/* Quarters of small integers: sums of them are exact in whatever order. */
static void fill(struct memory *m, const struct cuda_chain *c, uint32_t *seed, bool special)
{
    m->count = c->operand_count + c->result_count;
    for (int t = 0; t < m->count; t++) {
        const struct cuda_operand *o = t < c->operand_count ? (const void *)&c->operands[t]
                                                            : (const void *)&c->results[t - c->operand_count];
        size_t width = mlo_dtype_info(o->dtype)->bits / 8;
        m->size[t] = span(c, o);
        m->data[t] = aligned_alloc(64, (m->size[t] + 64) / 64 * 64);
        memset(m->data[t], 0xa5, m->size[t]);
        for (size_t i = 0; t < c->operand_count && i < m->size[t] / width; i++) {
            static const float odd[] = {NAN,      INFINITY, -INFINITY, -0.0f, 1e-40f,
                                        65504.0f, -3e38f,   0.5f,      2.5f};
            float v = (float)(below(seed, 33) - 16) / 4;
            if (special && below(seed, 8) == 0)
                v = odd[below(seed, MLO_COUNT(odd))];
            store_value(o->dtype, m->data[t] + i * width, real(v));
        }
    }
}

static void drop(struct memory *m)
{
    for (int t = 0; t < m->count; t++)
        free(m->data[t]);
}

static bool same(enum mlo_dtype dtype, const char *a, const char *b)
{
    size_t width = mlo_dtype_info(dtype)->bits / 8;
    if (memcmp(a, b, width) == 0)
        return true;
    if (cuda_type_is_whole(dtype))
        return false;
    float x = load_value(dtype, a, false).f, y = load_value(dtype, b, false).f;
    return (isnan(x) && isnan(y)) || (x == 0 && y == 0); /* any NaN, and zeros of any sign */
}

static void check_chain(const struct cuda_chain *c, uint32_t seed, bool special)
{
    struct mlo_error err = {0};
    struct cuda_source source;
    struct memory m;
    char *expected[TENSORS];
    assert_ok(cuda_chain_source(c, &source, &err));
    fill(&m, c, &seed, special);
    for (int t = 0; t < m.count; t++) {
        expected[t] = malloc(m.size[t] + 1);
        memcpy(expected[t], m.data[t], m.size[t]);
    }
    interpret(c, expected);
    run_source(&source, (void *const *)m.data, m.size, m.count, c->result_count);
    for (int i = 0; i < c->result_count; i++) {
        int t = c->operand_count + i;
        size_t width = mlo_dtype_info(c->results[i].dtype)->bits / 8;
        for (size_t k = 0; k < m.size[t]; k += width)
            if (!same(c->results[i].dtype, m.data[t] + k, expected[t] + k))
                fail_msg("result %d (%s) differs at element %zu: %g, not %g\n%s", i,
                         mlo_dtype_name(c->results[i].dtype), k / width,
                         (double)load_value(c->results[i].dtype, m.data[t] + k, false).f,
                         (double)load_value(c->results[i].dtype, expected[t] + k, false).f, source.text);
    }
    for (int t = 0; t < m.count; t++)
        free(expected[t]);
    drop(&m);
    cuda_source_clear(&source);
}

/* --- making chains -------------------------------------------------------------------------------------- */

static int emit(struct cuda_chain *c, enum cuda_chain_op op, int a, int b)
{
    c->code[c->count] = (struct cuda_chain_instruction){.op = op, .a = a, .b = b};
    return c->count++;
}
static int emit_math(struct cuda_chain *c, enum cuda_math math, int a)
{
    c->code[c->count] = (struct cuda_chain_instruction){.op = CUDA_OP_UNARY, .math = math, .a = a};
    return c->count++;
}
static int emit_constant(struct cuda_chain *c, float v)
{
    c->code[c->count] = (struct cuda_chain_instruction){.op = CUDA_OP_CONSTANT, .alpha = v};
    return c->count++;
}

static void dense(const struct cuda_chain *c, struct cuda_operand *o, enum mlo_dtype dtype, const int *order)
{
    int64_t stride = 1;
    *o = (struct cuda_operand){.dtype = dtype};
    for (int k = c->rank - 1; k >= 0; k--) {
        int d = order ? order[k] : k;
        o->strides[d] = stride;
        stride *= c->dims[d];
    }
}

static int operand(struct cuda_chain *c, enum mlo_dtype dtype)
{
    dense(c, (void *)&c->operands[c->operand_count], dtype, NULL);
    return c->operand_count++;
}
static void result(struct cuda_chain *c, enum mlo_dtype dtype, int reg, bool by_row)
{
    struct cuda_operand *o = (void *)&c->results[c->result_count++];
    struct cuda_chain kept = *c;
    if (by_row)
        kept.rank -= c->reduced;
    dense(&kept, o, dtype, NULL);
    o->reg = reg;
}

static struct cuda_chain chain_of(int rank, int reduced, const int64_t *dims)
{
    struct cuda_chain c = {.rank = rank, .reduced = reduced};
    memcpy(c.dims, dims, (size_t)rank * sizeof *dims);
    return c;
}

static struct cuda_chain softmax(enum mlo_dtype dtype, int64_t rows, int64_t length)
{
    struct cuda_chain c = chain_of(2, 1, (int64_t[]){rows, length});
    int x = emit(&c, CUDA_OP_LOAD, operand(&c, dtype), 0);
    int e = emit_math(&c, CUDA_MATH_EXP, emit(&c, CUDA_OP_SUB, x, emit(&c, CUDA_OP_REDUCE_MAX, x, 0)));
    result(&c, dtype, emit(&c, CUDA_OP_DIV, e, emit(&c, CUDA_OP_SUM, e, 0)), false);
    return c;
}

/* y = (x + r - mean) / sqrt(variance + epsilon) * scale + bias, and x + r itself */
static struct cuda_chain layer_norm(enum mlo_dtype dtype, int64_t rows, int64_t length)
{
    struct cuda_chain c = chain_of(2, 1, (int64_t[]){rows, length});
    int ox = operand(&c, dtype), or = operand(&c, dtype), os = operand(&c, MLO_FLOAT32),
        ob = operand(&c, MLO_FLOAT32);
    c.operands[os].strides[0] = c.operands[ob].strides[0] = 0;
    int x = emit(&c, CUDA_OP_ADD, emit(&c, CUDA_OP_LOAD, ox, 0), emit(&c, CUDA_OP_LOAD, or, 0));
    int n = emit_constant(&c, 1.0f / (float)length);
    int centred = emit(&c, CUDA_OP_SUB, x, emit(&c, CUDA_OP_MUL, emit(&c, CUDA_OP_SUM, x, 0), n));
    int variance =
        emit(&c, CUDA_OP_MUL, emit(&c, CUDA_OP_SUM, emit(&c, CUDA_OP_MUL, centred, centred), 0), n);
    int scale = emit_math(&c, CUDA_MATH_SQRT, emit(&c, CUDA_OP_ADD, variance, emit_constant(&c, 1e-5f)));
    int y = emit(&c, CUDA_OP_MUL, emit(&c, CUDA_OP_DIV, centred, scale), emit(&c, CUDA_OP_LOAD, os, 0));
    result(&c, dtype, emit(&c, CUDA_OP_ADD, y, emit(&c, CUDA_OP_LOAD, ob, 0)), false);
    result(&c, dtype, x, false);
    return c;
}

/* x of N, H, W, C in memory: means over the image. */
static struct cuda_chain global_average(enum mlo_dtype dtype, int64_t n, int64_t channels, int64_t pixels)
{
    struct cuda_chain c = chain_of(3, 1, (int64_t[]){n, channels, pixels});
    int x = operand(&c, dtype);
    c.operands[x].strides[1] = 1;
    c.operands[x].strides[2] = channels;
    int sum = emit(&c, CUDA_OP_SUM, emit(&c, CUDA_OP_LOAD, x, 0), 0);
    result(&c, dtype, emit(&c, CUDA_OP_MUL, sum, emit_constant(&c, 1.0f / (float)pixels)), true);
    return c;
}

/* --- tests ---------------------------------------------------------------------------------------------- */

static void test_rows__are_what_their_sums_say(void **state)
{
    MLO_UNUSED(state);
    static const int64_t lengths[] = {1, 2, 7, 32, 100, 768, 5000};
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(lengths); i++) {
        struct mlo_error err = {0};
        enum mlo_dtype dtype = i % 2 ? MLO_FLOAT16 : MLO_FLOAT32;
        int64_t rows = 5, length = lengths[i];
        struct cuda_chain chains[] = {softmax(dtype, rows, length), layer_norm(dtype, rows, length),
                                      global_average(dtype, 2, 40, length)};
        for (size_t k = 0; k < MLO_COUNT(chains); k++) {
            struct cuda_chain *c = &chains[k];
            struct cuda_source source;
            struct memory m;
            uint32_t seed = (uint32_t)i + 7;
            assert_ok(cuda_chain_source(c, &source, &err));
            fill(&m, c, &seed, false);
            char *expected[TENSORS];
            for (int t = 0; t < m.count; t++) {
                expected[t] = malloc(m.size[t]);
                memcpy(expected[t], m.data[t], m.size[t]);
            }
            interpret(c, expected);
            run_source(&source, (void *const *)m.data, m.size, m.count, c->result_count);
            for (int r = 0; r < c->result_count; r++) {
                int t = c->operand_count + r;
                size_t width = mlo_dtype_info(c->results[r].dtype)->bits / 8;
                for (size_t e = 0; e < m.size[t]; e += width) {
                    float got = load_value(dtype, m.data[t] + e, false).f,
                          want = load_value(dtype, expected[t] + e, false).f;
                    float slack = (dtype == MLO_FLOAT16 ? 1e-3f : 4e-6f) * (1 + fabsf(want));
                    if (!(fabsf(got - want) <= slack))
                        fail_msg("chain %zu of length %lld: %g, not %g, at %zu\n%s", k, (long long)length,
                                 (double)got, (double)want, e / width, source.text);
                }
                free(expected[t]);
            }
            for (int t = 0; t < c->operand_count; t++)
                free(expected[t]);
            drop(&m);
            cuda_source_clear(&source);
        }
    }
}

static void test_copies__keep_bytes_and_gaps(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_INT64, MLO_FLOAT16, MLO_UINT8, MLO_FLOAT32};
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(types); i++) {
        struct cuda_chain c = chain_of(3, 0, (int64_t[]){3, 10, 24});
        int x = operand(&c, types[i]);
        if (i % 2) { /* backwards along the middle, from rows that are wider */
            c.operands[x].strides[0] = 10 * 40;
            c.operands[x].strides[1] = -40;
            c.operands[x].offset = 9 * 40;
        }
        result(&c, types[i], emit(&c, CUDA_OP_LOAD, x, 0), false);
        c.results[0].strides[0] = 12 * 24; /* into a part of something larger */
        c.results[0].offset = 24;
        check_chain(&c, 99, true);
    }
}

static void test_integers__stay_exact(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    struct mlo_error err = {0};
    struct cuda_chain c = chain_of(1, 1, (int64_t[]){4});
    int x = emit(&c, CUDA_OP_LOAD_INTEGER, operand(&c, MLO_INT64), 0);
    int big = emit(&c, CUDA_OP_MUL, x, emit_constant(&c, 3));
    result(&c, MLO_INT64, emit(&c, CUDA_OP_ADD, big, emit(&c, CUDA_OP_INDEX, 0, 0)), false);
    result(&c, MLO_INT64, emit(&c, CUDA_OP_SUM, big, 0), true);
    result(&c, MLO_INT32, emit(&c, CUDA_OP_DIV, x, emit_constant(&c, 0)), false);
    struct cuda_source source;
    assert_ok(cuda_chain_source(&c, &source, &err));
    int64_t in[4] = {9007199254740993, -9007199254740993, 5, INT64_MAX}, out[4], sum = 0;
    int32_t zero[4];
    void *parameters[] = {in, out, &sum, zero};
    run_source(&source, parameters, (size_t[]){sizeof in, sizeof out, sizeof sum, sizeof zero}, 4, 3);
    uint64_t total = 0;
    for (int i = 0; i < 4; i++) {
        assert_true(out[i] == (int64_t)((uint64_t)in[i] * 3 + (uint64_t)i));
        assert_int_equal(zero[i], 0);
        total += (uint64_t)in[i] * 3;
    }
    assert_true(sum == (int64_t)total);
    cuda_source_clear(&source);
}

static void test_wrong_chains__are_refused(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct cuda_source source;
    struct cuda_chain good = softmax(MLO_FLOAT32, 2, 3), c = good;
    c.code[1].a = 1; /* of itself */
    assert_int_equal(cuda_chain_source(&c, &source, &err), MLO_EINVAL);
    c = good;
    c.code[0].a = 1; /* an operand that is not there */
    assert_int_equal(cuda_chain_source(&c, &source, &err), MLO_EINVAL);
    c = good;
    c.results[0].strides[0] = 0; /* rows over each other */
    assert_int_equal(cuda_chain_source(&c, &source, &err), MLO_EINVAL);
    c = good;
    c.results[0].strides[1] = 0; /* elements over each other */
    assert_int_equal(cuda_chain_source(&c, &source, &err), MLO_EINVAL);
    c = good;
    c.operands[0].dtype = MLO_STRING;
    assert_int_equal(cuda_chain_source(&c, &source, &err), MLO_EUNSUPPORTED);
    c = good;
    c.dims[0] = c.dims[1] = (int64_t)1 << 39;
    assert_int_equal(cuda_chain_source(&c, &source, &err), MLO_ETOOBIG);
}

/* --- random chains -------------------------------------------------------------------------------------- */

static void shuffle(uint32_t *seed, int *order, int n)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = below(seed, i + 1), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
}

static const enum mlo_dtype any_type[] = {
    MLO_FLOAT32, MLO_FLOAT16, MLO_FLOAT16,      MLO_BFLOAT16, MLO_INT8,   MLO_UINT8,     MLO_INT32,
    MLO_INT64,   MLO_BOOL,    MLO_FLOAT8E4M3FN, MLO_FLOAT64,  MLO_UINT16, MLO_FLOAT8E5M2};

static void random_layout(uint32_t *seed, const struct cuda_chain *c, struct cuda_operand *o,
                          bool dense_order)
{
    int order[CUDA_RANK];
    enum mlo_dtype dtype = any_type[below(seed, MLO_COUNT(any_type))];
    shuffle(seed, order, c->rank);
    if (dense_order || below(seed, 3) == 0)
        for (int d = 0; d < c->rank; d++)
            order[d] = d;
    dense(c, o, dtype, order);
    if (below(seed, 4) == 0 && c->rank) { /* the outermost with a gap */
        o->strides[order[0]] += 8 * below(seed, 3);
        o->offset = 8 * below(seed, 3) + (below(seed, 2) ? 1 : 0);
    }
}

/* Elements before a reduction: of what stays an exact multiple of a quarter. */
static int random_exact(uint32_t *seed, struct cuda_chain *c)
{
    static const enum cuda_chain_op pairs[] = {CUDA_OP_ADD, CUDA_OP_SUB,  CUDA_OP_MIN,
                                               CUDA_OP_MAX, CUDA_OP_LESS, CUDA_OP_EQUAL};
    static const enum cuda_math maths[] = {CUDA_MATH_ABS,  CUDA_MATH_NEG,   CUDA_MATH_RELU, CUDA_MATH_FLOOR,
                                           CUDA_MATH_CEIL, CUDA_MATH_ROUND, CUDA_MATH_SIGN};
    int a = below(seed, c->count), b = below(seed, c->count);
    if (below(seed, 2))
        return emit_math(c, maths[below(seed, MLO_COUNT(maths))], a);
    return emit(c, pairs[below(seed, MLO_COUNT(pairs))], a, b);
}

static int random_any(uint32_t *seed, struct cuda_chain *c)
{
    static const enum cuda_chain_op pairs[] = {CUDA_OP_MUL, CUDA_OP_DIV, CUDA_OP_AND, CUDA_OP_OR};
    static const enum cuda_math maths[] = {CUDA_MATH_EXP,        CUDA_MATH_SQRT, CUDA_MATH_RECIPROCAL,
                                           CUDA_MATH_ERF,        CUDA_MATH_TANH, CUDA_MATH_SIGMOID,
                                           CUDA_MATH_LEAKY_RELU, CUDA_MATH_CLIP};
    int a = below(seed, c->count), b = below(seed, c->count), r;
    switch (below(seed, 7)) {
    case 0:
        r = emit(c, CUDA_OP_SELECT, a, b);
        c->code[r].c = below(seed, r);
        return r;
    case 1:
        r = emit(c, CUDA_OP_QUANTIZE, a, 0);
        c->code[r].alpha = 0.25f;
        c->code[r].beta = (float)(below(seed, 9) - 4);
        c->code[r].low = -128;
        c->code[r].high = 127;
        return r;
    case 2:
        r = emit(c, CUDA_OP_DEQUANTIZE, a, 0);
        c->code[r].alpha = 0.5f;
        c->code[r].beta = 3;
        return r;
    case 3:
        return emit(c, CUDA_OP_CAST, a, (int)any_type[below(seed, MLO_COUNT(any_type))]);
    case 4:
        while (c->code[a].op == CUDA_OP_CONSTANT) /* which a compiler computes in its own way */
            a = (a + 1) % c->count;
        r = emit_math(c, maths[below(seed, MLO_COUNT(maths))], a);
        c->code[r].alpha = -0.5f;
        c->code[r].beta = 2;
        return r;
    case 5:
        return emit(c, CUDA_OP_NOT, a, 0);
    default:
        return emit(c, pairs[below(seed, MLO_COUNT(pairs))], a, b);
    }
}

static bool varies(const struct cuda_chain *c, int reg)
{
    const struct cuda_chain_instruction *in = &c->code[reg];
    if (in->op >= CUDA_OP_SUM && in->op <= CUDA_OP_REDUCE_MIN)
        return false;
    if (in->op == CUDA_OP_CONSTANT)
        return false;
    return true;
}

static struct cuda_chain random_chain(uint32_t *seed)
{
    static const int64_t sizes[] = {1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 40, 64, 100};
    struct cuda_chain c = {.rank = 1 + below(seed, 5)};
    int64_t total = 1;
    bool zero = below(seed, 25) == 0;
    for (int d = 0; d < c.rank; d++) {
        c.dims[d] = sizes[below(seed, MLO_COUNT(sizes))];
        if (total * c.dims[d] > 20000)
            c.dims[d] = 1 + below(seed, 2);
        total *= c.dims[d];
    }
    c.reduced = below(seed, 2) ? below(seed, c.rank + 1) : 0;
    if (c.reduced && below(seed, 4) == 0 && total < 200)
        c.dims[c.rank - 1] = 300 + below(seed, 3000); /* long rows */
    if (zero)
        c.dims[0] = c.reduced == c.rank ? 1 : 0;
    int n = 1 + below(seed, 4);
    for (int i = 0; i < n; i++) {
        struct cuda_operand *o = (void *)&c.operands[c.operand_count++];
        random_layout(seed, &c, o, i == 0 && below(seed, 2));
        for (int d = 0; i && d < c.rank; d++)
            if (below(seed, 4) == 0)
                o->strides[d] = 0;
        bool exactly = cuda_type_is_whole(o->dtype) && below(seed, 2);
        emit(&c, exactly ? CUDA_OP_LOAD_INTEGER : CUDA_OP_LOAD, i, 0);
    }
    if (below(seed, 2))
        emit(&c, CUDA_OP_INDEX, below(seed, c.rank), 0);
    emit_constant(&c, (float)(below(seed, 9) - 4) / (below(seed, 2) ? 1 : 4));
    for (int rounds = c.reduced ? 1 + below(seed, 3) : 0; rounds > 0; rounds--) {
        for (int k = below(seed, 3); k >= 0; k--)
            random_exact(seed, &c);
        int of = below(seed, c.count), kind = below(seed, 4);
        if (kind == 1) /* products of signs */
            of = emit_math(&c, CUDA_MATH_SIGN, of);
        int r = emit(&c, (enum cuda_chain_op)(CUDA_OP_SUM + kind), of, 0);
        /* small again, and whole, so that the next sums are exact */
        int small = emit_math(&c, CUDA_MATH_CLIP, r);
        c.code[small].alpha = -8;
        c.code[small].beta = 8;
        emit_math(&c, CUDA_MATH_FLOOR, small);
    }
    for (int k = below(seed, 6); k >= 0; k--)
        random_any(seed, &c);
    n = 1 + below(seed, 3);
    for (int i = 0; i < n; i++) {
        int reg = c.count - 1 - below(seed, MLO_MIN(c.count, 4));
        struct cuda_operand *o = (void *)&c.results[c.result_count];
        random_layout(seed, &c, o, below(seed, 2));
        o->reg = reg;
        if (c.reduced && !varies(&c, reg))
            for (int d = c.rank - c.reduced; d < c.rank; d++)
                o->strides[d] = 0;
        c.result_count++;
    }
    return c;
}

static long number_of(const char *name, long otherwise)
{
    int64_t v;
    return getenv(name) && mlo_str_to_i64(getenv(name), &v) ? (long)v : otherwise;
}

static void test_random_chains__are_what_the_interpreter_makes(void **state)
{
    MLO_UNUSED(state);
    long count = number_of("MLOPT_FUZZ_CHAINS", 40), first = number_of("MLOPT_SEED", 20251122);
    if (no_compiler())
        return;
    for (long i = 0; i < count; i++) {
        uint32_t seed = (uint32_t)(first + i);
        print_message("seed %u\n", seed);
        struct cuda_chain c = random_chain(&seed);
        check_chain(&c, seed, c.reduced == 0);
    }
}

static void test_nvrtc__takes_chains(void **state)
{
    MLO_UNUSED(state);
    struct nvrtc n;
    struct mlo_error err = {0};
    struct cuda_source source;
    if (!nvrtc_open(&n))
        return;
    const struct {
        struct cuda_chain chain;
        const char *what;
    } cases[] = {
        {softmax(MLO_FLOAT16, 12 * 128, 128), "softmax of short rows"},
        {softmax(MLO_FLOAT32, 4, 50000), "softmax of long rows"},
        {layer_norm(MLO_FLOAT16, 128, 768), "LayerNormalization with residual"},
        {layer_norm(MLO_FLOAT32, 4096, 1024), "LayerNormalization, float32"},
        {global_average(MLO_FLOAT16, 8, 2048, 49), "mean over an image"},
    };
    static const int architectures[] = {80, 90, 100};
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        for (size_t a = 0; a < MLO_COUNT(architectures); a++) {
            assert_ok(cuda_chain_source(&cases[i].chain, &source, &err));
            check_nvrtc(&n, &source, architectures[a], cases[i].what);
            cuda_source_clear(&source);
        }
    long count = number_of("MLOPT_FUZZ_CHAINS", 16), first = number_of("MLOPT_SEED", 20251122);
    for (long i = 0; i < count; i++) {
        uint32_t seed = (uint32_t)(first + i);
        char what[32];
        snprintf(what, sizeof what, "seed %u", seed);
        struct cuda_chain c = random_chain(&seed);
        assert_ok(cuda_chain_source(&c, &source, &err));
        check_nvrtc(&n, &source, 90, what);
        cuda_source_clear(&source);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows__are_what_their_sums_say),
        cmocka_unit_test(test_copies__keep_bytes_and_gaps),
        cmocka_unit_test(test_integers__stay_exact),
        cmocka_unit_test(test_wrong_chains__are_refused),
        cmocka_unit_test(test_random_chains__are_what_the_interpreter_makes),
        cmocka_unit_test(test_nvrtc__takes_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
