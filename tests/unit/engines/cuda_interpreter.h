/* Runs a schedule of the cuda engine on the CPU, by plain loops that share nothing with its kernels: what the
 * lowering says is computed as it says it, in an arena of exactly the planned size, poisoned before. */
#ifndef MLO_TEST_ENGINES_CUDA_INTERPRETER_H
#define MLO_TEST_ENGINES_CUDA_INTERPRETER_H

#include "tests/unit/engines/helpers.h"

#include "engines/cuda/kernels/host.h"

struct machine {
    const struct cuda_schedule *s;
    char *arena, *constants; /* as on a device */
};

static inline void *slot_at(const struct machine *m, int slot)
{
    const struct cuda_slot *at = &m->s->slots[slot];
    return (at->kind == CUDA_SLOT_CONST ? m->constants : m->arena) + at->offset;
}

static inline struct mlo_tensor as_tensor(const void *data, enum mlo_dtype dtype)
{
    return (struct mlo_tensor){.dtype = dtype, .data = (void *)(uintptr_t)data};
}

static inline double element(const void *data, enum mlo_dtype dtype, int64_t at)
{
    struct mlo_tensor t = as_tensor(data, dtype);
    assert_true(at >= 0);
    return mlo_tensor_get_f64(&t, (size_t)at);
}

/* Integers are rounded to nearest here; chains cut off before. */
static inline void put(void *data, enum mlo_dtype dtype, int64_t at, double value)
{
    struct mlo_tensor t = as_tensor(data, dtype);
    assert_true(at >= 0);
    mlo_tensor_set_f64(&t, (size_t)at, value);
}

/* --- functions
 * ----------------------------------------------------------------------------------------------- */

static inline double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static inline double gelu(double x)
{
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

static inline double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static inline double math_of(enum cuda_math math, double x, double a, double b)
{
    switch (math) {
    case CUDA_MATH_ABS:
        return fabs(x);
    case CUDA_MATH_NEG:
        return -x;
    case CUDA_MATH_EXP:
        return exp(x);
    case CUDA_MATH_LOG:
        return log(x);
    case CUDA_MATH_SQRT:
        return sqrt(x);
    case CUDA_MATH_RECIPROCAL:
        return 1 / x;
    case CUDA_MATH_ERF:
        return erf(x);
    case CUDA_MATH_TANH:
        return tanh(x);
    case CUDA_MATH_SIGMOID:
        return sigmoid(x);
    case CUDA_MATH_RELU:
        return x < 0 ? 0 : x;
    case CUDA_MATH_LEAKY_RELU:
        return x < 0 ? a * x : x;
    case CUDA_MATH_ELU:
        return x < 0 ? a * expm1(x) : x;
    case CUDA_MATH_HARD_SIGMOID:
        return fmin(fmax(a * x + b, 0), 1);
    case CUDA_MATH_HARD_SWISH:
        return x * fmin(fmax(x / 6 + 0.5, 0), 1);
    case CUDA_MATH_GELU:
        return gelu(x);
    case CUDA_MATH_GELU_TANH:
        return gelu_tanh(x);
    case CUDA_MATH_SOFTPLUS:
        return log1p(exp(x));
    case CUDA_MATH_FLOOR:
        return floor(x);
    case CUDA_MATH_CEIL:
        return ceil(x);
    case CUDA_MATH_ROUND:
        return nearbyint(x);
    case CUDA_MATH_SIN:
        return sin(x);
    case CUDA_MATH_COS:
        return cos(x);
    case CUDA_MATH_TAN:
        return tan(x);
    case CUDA_MATH_SIGN:
        return (x > 0) - (x < 0);
    case CUDA_MATH_SWISH:
        return x * sigmoid((a != 0 ? a : 1) * x);
    case CUDA_MATH_MISH:
        return x * tanh(log1p(exp(x)));
    case CUDA_MATH_SOFTSIGN:
        return x / (1 + fabs(x));
    case CUDA_MATH_SELU:
        return b * (x < 0 ? a * expm1(x) : x);
    case CUDA_MATH_CELU:
        return x < 0 ? a * expm1(x / a) : x;
    case CUDA_MATH_THRESHOLDED_RELU:
        return x > a ? x : 0;
    case CUDA_MATH_CLIP:
        return x < a ? a : x > b ? b : x;
    case CUDA_MATH_ISNAN:
        return isnan(x);
    case CUDA_MATH_ISINF:
        return isinf(x);
    default:
        fail_msg("a function of chains that the interpreter does not know");
        return 0;
    }
}

static inline double activate(enum cuda_activation a, double x, double low, double high)
{
    switch (a) {
    case CUDA_ACT_NONE:
        return x;
    case CUDA_ACT_RELU:
        return x < 0 ? 0 : x;
    case CUDA_ACT_CLIP:
        return x < low ? low : x > high ? high : x;
    case CUDA_ACT_SIGMOID:
        return sigmoid(x);
    case CUDA_ACT_TANH:
        return tanh(x);
    case CUDA_ACT_GELU:
        return gelu(x);
    case CUDA_ACT_GELU_TANH:
        return gelu_tanh(x);
    default:
        return x * sigmoid(x);
    }
}

/* --- chains
 * -------------------------------------------------------------------------------------------------- */

struct number {
    double f;
    int64_t i;
    bool integer;
};

static inline struct number real(double f)
{
    return (struct number){(float)f, 0, false}; /* registers are float32 */
}

static inline struct number whole(int64_t i)
{
    return (struct number){(double)i, i, true};
}

/* As if stored and loaded again: cut off, saturated; booleans are whether it differs from 0. */
static inline struct number cast_to(struct number x, enum mlo_dtype dtype)
{
    if (dtype == MLO_BOOL)
        return whole(x.f != 0);
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    if (info->is_float && info->bits == 8) { /* the only floats that chains round to */
        uint8_t bits;
        put(&bits, dtype, 0, x.f);
        return real(element(&bits, dtype, 0));
    }
    if (info->is_float)
        return real(x.f);
    if (!x.integer)
        x = isnan(x.f)       ? whole(0)
            : x.f >= 9.2e18  ? whole(INT64_MAX)
            : x.f <= -9.2e18 ? whole(INT64_MIN)
                             : whole((int64_t)x.f);
    if (info->bits < 64) {
        int64_t high =
            info->is_signed ? ((int64_t)1 << (info->bits - 1)) - 1 : ((int64_t)1 << info->bits) - 1;
        int64_t low = info->is_signed ? -high - 1 : 0;
        x = whole(x.i < low ? low : x.i > high ? high : x.i);
    }
    return x;
}

static inline struct number binary_of(enum cuda_chain_op op, struct number a, struct number b)
{
    bool integer = a.integer && b.integer;
    switch (op) {
    case CUDA_OP_ADD:
        return integer ? whole(a.i + b.i) : real(a.f + b.f);
    case CUDA_OP_SUB:
        return integer ? whole(a.i - b.i) : real(a.f - b.f);
    case CUDA_OP_MUL:
        return integer ? whole(a.i * b.i) : real(a.f * b.f);
    case CUDA_OP_DIV:
        return integer ? whole(b.i ? a.i / b.i : 0) : real(a.f / b.f);
    case CUDA_OP_POW:
        return real(pow(a.f, b.f));
    case CUDA_OP_MIN:
        return integer ? (a.i < b.i ? a : b) : real(isnan(a.f) ? a.f : isnan(b.f) ? b.f : fmin(a.f, b.f));
    case CUDA_OP_MAX:
        return integer ? (a.i > b.i ? a : b) : real(isnan(a.f) ? a.f : isnan(b.f) ? b.f : fmax(a.f, b.f));
    case CUDA_OP_MOD:
        if (integer)
            return whole(b.i ? (a.i % b.i + b.i) % b.i : 0);
        return real(a.f - b.f * floor(a.f / b.f));
    case CUDA_OP_LESS:
        return whole(integer ? a.i < b.i : a.f < b.f);
    case CUDA_OP_EQUAL:
        return whole(integer ? a.i == b.i : a.f == b.f);
    case CUDA_OP_AND:
        return whole(a.f != 0 && b.f != 0);
    case CUDA_OP_OR:
        return whole(a.f != 0 || b.f != 0);
    default:
        fail_msg("an operation of chains that the interpreter does not know");
        return real(0);
    }
}

static inline int64_t at_index(const struct cuda_chain *c, const struct cuda_operand *o, int64_t index)
{
    int64_t at = o->offset;
    for (int k = c->rank - 1; k >= 0; k--) {
        at += index % c->dims[k] * o->strides[k];
        index /= c->dims[k];
    }
    return at;
}

static inline struct number load_number(const struct machine *m, const struct cuda_step *step, int operand,
                                        int64_t index, bool integer)
{
    const struct cuda_operand *o = &step->chain->operands[operand];
    struct mlo_tensor t = as_tensor(slot_at(m, step->in[operand]), o->dtype);
    int64_t at = at_index(step->chain, o, index);
    assert_true(at >= 0);
    if (integer || (step->chain->count == 1 && !mlo_dtype_info(o->dtype)->is_float && o->dtype != MLO_BOOL))
        return whole(mlo_tensor_get_i64(&t, (size_t)at));
    return real(mlo_tensor_get_f64(&t, (size_t)at));
}

static inline void store_number(const struct machine *m, const struct cuda_step *step, int result,
                                int64_t index, struct number x)
{
    const struct cuda_operand *o = &step->chain->results[result];
    void *data = slot_at(m, step->out[result]);
    int64_t at = at_index(step->chain, o, index);
    if (mlo_dtype_info(o->dtype)->is_float) {
        put(data, o->dtype, at, x.f);
        return;
    }
    x = cast_to(x, o->dtype);
    if (o->dtype == MLO_INT64)
        ((int64_t *)data)[at] = x.i;
    else
        put(data, o->dtype, at, x.f);
}

static inline void run_chain(const struct machine *m, const struct cuda_step *step)
{
    const struct cuda_chain *c = step->chain;
    int64_t rows = 1, width = 1;
    for (int i = 0; i < c->rank; i++)
        *(i < c->rank - c->reduced ? &rows : &width) *= c->dims[i];
    struct number *registers = calloc((size_t)(width * c->count) + 1, sizeof *registers);
    assert_non_null(registers);
    for (int64_t row = 0; row < rows; row++) {
        for (int i = 0; i < c->count; i++) {
            const struct cuda_chain_instruction *n = &c->code[i];
            struct number *y = registers + i * width, *a = registers + n->a * width,
                          *b = registers + n->b * width, *d = registers + n->c * width;
            bool reduces = n->op == CUDA_OP_SUM || n->op == CUDA_OP_PRODUCT || n->op == CUDA_OP_REDUCE_MAX ||
                           n->op == CUDA_OP_REDUCE_MIN;
            assert_true(!reduces || c->reduced > 0);
            if (n->op != CUDA_OP_LOAD && n->op != CUDA_OP_LOAD_INTEGER && n->op != CUDA_OP_CONSTANT)
                assert_true(n->a < i);
            if (reduces) {
                struct number all = a[0];
                for (int64_t k = 1; k < width; k++)
                    all = binary_of(n->op == CUDA_OP_SUM          ? CUDA_OP_ADD
                                    : n->op == CUDA_OP_PRODUCT    ? CUDA_OP_MUL
                                    : n->op == CUDA_OP_REDUCE_MAX ? CUDA_OP_MAX
                                                                  : CUDA_OP_MIN,
                                    all, a[k]);
                for (int64_t k = 0; k < width; k++)
                    y[k] = all;
                continue;
            }
            for (int64_t k = 0; k < width; k++) {
                int64_t index = row * width + k;
                switch (n->op) {
                case CUDA_OP_LOAD:
                case CUDA_OP_LOAD_INTEGER:
                    y[k] = load_number(m, step, n->a, index, n->op == CUDA_OP_LOAD_INTEGER);
                    break;
                case CUDA_OP_CONSTANT:
                    y[k] = n->alpha == floorf(n->alpha) && fabsf(n->alpha) < 1e15f ? whole((int64_t)n->alpha)
                                                                                   : real(n->alpha);
                    break;
                case CUDA_OP_UNARY:
                    y[k] = real(math_of(n->math, a[k].f, n->alpha, n->beta));
                    break;
                case CUDA_OP_NOT:
                    y[k] = whole(a[k].f == 0);
                    break;
                case CUDA_OP_SELECT:
                    y[k] = a[k].f != 0 ? b[k] : d[k];
                    break;
                case CUDA_OP_CAST:
                    y[k] = cast_to(a[k], (enum mlo_dtype)n->b);
                    break;
                case CUDA_OP_QUANTIZE: {
                    double q = nearbyint((double)((float)a[k].f / n->alpha)) + n->beta;
                    y[k] = real(isnan(q) ? n->beta : fmin(fmax(q, n->low), n->high));
                    break;
                }
                case CUDA_OP_DEQUANTIZE:
                    y[k] = real((a[k].f - n->beta) * n->alpha);
                    break;
                default:
                    y[k] = binary_of(n->op, a[k], b[k]);
                }
            }
        }
        for (int r = 0; r < c->result_count; r++)
            for (int64_t k = 0; k < width; k++)
                store_number(m, step, r, row * width + k, registers[c->results[r].reg * width + k]);
    }
    free(registers);
}

/* --- convolutions, products, attention
 * ----------------------------------------------------------------------- */

struct epilogue_in {
    const void *residual, *bias, *scale;
    enum mlo_dtype residual_dtype, bias_dtype;
    double residual_scale, low, high;
    enum cuda_activation activation;
};

static inline double finish_sum(const struct epilogue_in *e, double sum, int64_t column, int64_t residual_at)
{
    if (e->scale)
        sum *= element(e->scale, MLO_FLOAT32, column);
    if (e->residual)
        sum += e->residual_scale * element(e->residual, e->residual_dtype, residual_at);
    if (e->bias)
        sum += element(e->bias, e->bias_dtype, column);
    return activate(e->activation, sum, e->low, e->high);
}

struct window_in {
    int64_t n, c, k, groups, in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
    const void *x, *w;
    void *y;
    enum mlo_dtype x_dtype, w_dtype, y_dtype;
    bool k_first; /* w is k x taps x c/groups, else taps x c/groups x k */
    bool clipped; /* x, before it is multiplied */
    double x_low, x_high;
};

/* All channels last. */
static inline void convolve(const struct window_in *v, const struct epilogue_in *e)
{
    int64_t cg = v->c / v->groups, kg = v->k / v->groups, taps = v->kernel[0] * v->kernel[1] * v->kernel[2];
    for (int64_t n = 0, at = 0; n < v->n; n++)
        for (int64_t p = 0; p < v->out[0] * v->out[1] * v->out[2]; p++) {
            int64_t o[] = {p / (v->out[1] * v->out[2]), p / v->out[2] % v->out[1], p % v->out[2]};
            for (int64_t k = 0; k < v->k; k++, at++) {
                double sum = 0;
                for (int64_t t = 0; t < taps; t++) {
                    int64_t r[] = {t / (v->kernel[1] * v->kernel[2]), t / v->kernel[2] % v->kernel[1],
                                   t % v->kernel[2]},
                            place = n;
                    bool inside = true;
                    for (int i = 0; i < 3; i++) {
                        int64_t q = o[i] * v->stride[i] + r[i] * v->dilation[i] - v->pad[i];
                        inside &= q >= 0 && q < v->in[i];
                        place = place * v->in[i] + q;
                    }
                    for (int64_t c = 0; inside && c < cg; c++) {
                        int64_t w = v->k_first ? (k * taps + t) * cg + c : (t * cg + c) * v->k + k;
                        double x = element(v->x, v->x_dtype, place * v->c + k / kg * cg + c);
                        if (v->clipped)
                            x = x < v->x_low ? v->x_low : x > v->x_high ? v->x_high : x;
                        sum += x * element(v->w, v->w_dtype, w);
                    }
                }
                put(v->y, v->y_dtype, at, finish_sum(e, sum, k, at));
            }
        }
}

static inline void run_conv(const struct machine *m, const struct cuda_step *step)
{
    const struct cuda_conv *c = step->conv;
    int k = 2;
    struct epilogue_in e = {.residual_scale = c->residual_scale,
                            .residual_dtype = c->residual.dtype,
                            .bias_dtype = c->has_scale ? MLO_FLOAT32 : c->y.dtype,
                            .activation = c->activation,
                            .low = c->low,
                            .high = c->high};
    struct window_in v = {.n = c->x.dims[0],
                          .c = c->x.dims[1],
                          .k = c->y.dims[1],
                          .groups = c->groups,
                          .x = slot_at(m, step->in[0]),
                          .w = slot_at(m, step->in[1]),
                          .y = slot_at(m, step->out[0]),
                          .x_dtype = c->x.dtype,
                          .w_dtype = c->w.dtype,
                          .y_dtype = c->y.dtype,
                          .k_first = true};
    e.residual = c->has_residual ? slot_at(m, step->in[k++]) : NULL;
    e.bias = c->has_bias ? slot_at(m, step->in[k++]) : NULL;
    e.scale = c->has_scale ? slot_at(m, step->in[k++]) : NULL;
    assert_int_equal(k, step->in_count);
    for (int i = 0; i < 3; i++) {
        int s = i - (3 - c->spatial);
        v.in[i] = s >= 0 ? c->x.dims[2 + s] : 1;
        v.out[i] = s >= 0 ? c->y.dims[2 + s] : 1;
        v.kernel[i] = s >= 0 ? c->w.dims[2 + s] : 1;
        v.stride[i] = s >= 0 ? c->stride[s] : 1;
        v.dilation[i] = s >= 0 ? c->dilation[s] : 1;
        v.pad[i] = s >= 0 ? c->pad_before[s] : 0;
    }
    convolve(&v, &e);
}

static inline struct window_in window_of(const struct machine *m, const struct cuda_step *step)
{
    const int64_t *n = step->kernel->n;
    struct window_in v = {.n = n[0], .c = n[1], .x = slot_at(m, step->in[0]), .y = slot_at(m, step->out[0])};
    for (int i = 0; i < 3; i++) {
        v.in[i] = n[2 + i];
        v.out[i] = n[5 + i];
        v.kernel[i] = n[8 + i];
        v.stride[i] = n[11 + i];
        v.dilation[i] = n[14 + i];
        v.pad[i] = n[17 + i];
    }
    return v;
}

static inline void run_conv_kernel(const struct machine *m, const struct cuda_step *step, bool depthwise)
{
    const struct cuda_kernel_use *u = step->kernel;
    struct window_in v = window_of(m, step);
    int k = 2;
    struct epilogue_in e = {.residual_scale = u->f[2],
                            .residual_dtype = u->types[3],
                            .bias_dtype = MLO_FLOAT32,
                            .activation = (enum cuda_activation)u->n[23],
                            .low = u->f[0],
                            .high = u->f[1]};
    v.w = slot_at(m, step->in[1]);
    v.clipped = depthwise && u->n[27];
    v.x_low = (double)u->f[4];
    v.x_high = (double)u->f[5];
    v.k = depthwise ? v.c : u->n[27];
    v.groups = depthwise ? v.c : u->n[28];
    v.x_dtype = u->types[0];
    v.w_dtype = u->types[1];
    v.y_dtype = u->types[2];
    e.residual = u->n[24] ? slot_at(m, step->in[k++]) : NULL;
    e.bias = u->n[25] ? slot_at(m, step->in[k++]) : NULL;
    e.scale = u->n[26] ? slot_at(m, step->in[k++]) : NULL;
    assert_int_equal(k, step->in_count);
    convolve(&v, &e);
}

static inline void run_pool(const struct machine *m, const struct cuda_step *step)
{
    const struct cuda_kernel_use *u = step->kernel;
    struct window_in v = window_of(m, step);
    for (int64_t n = 0, at = 0; n < v.n; n++)
        for (int64_t p = 0; p < v.out[0] * v.out[1] * v.out[2]; p++) {
            int64_t o[] = {p / (v.out[1] * v.out[2]), p / v.out[2] % v.out[1], p % v.out[2]};
            for (int64_t c = 0; c < v.c; c++, at++) {
                double sum = 0, most = -INFINITY;
                int64_t count = 0;
                for (int64_t t = 0; t < v.kernel[0] * v.kernel[1] * v.kernel[2]; t++) {
                    int64_t r[] = {t / (v.kernel[1] * v.kernel[2]), t / v.kernel[2] % v.kernel[1],
                                   t % v.kernel[2]},
                            place = n;
                    bool inside = true, padded = true;
                    for (int i = 0; i < 3; i++) {
                        int64_t q = o[i] * v.stride[i] + r[i] * v.dilation[i] - v.pad[i];
                        inside &= q >= 0 && q < v.in[i];
                        padded &= q < v.in[i] + u->n[20 + i];
                        place = place * v.in[i] + q;
                    }
                    count += inside || (u->n[24] && padded);
                    if (!inside)
                        continue;
                    double x = element(v.x, u->types[0], place * v.c + c);
                    sum += x;
                    most = fmax(most, x);
                }
                put(v.y, u->types[1], at, u->n[23] ? sum * u->f[0] / (double)count : most);
            }
        }
}

static inline void run_gather(const struct machine *m, const struct cuda_step *step)
{
    const struct cuda_kernel_use *u = step->kernel;
    const void *x = slot_at(m, step->in[0]), *index = slot_at(m, step->in[1]);
    size_t size = mlo_dtype_info(u->types[0])->bits / 8;
    char *y = slot_at(m, step->out[0]);
    for (int64_t o = 0; o < u->n[0]; o++)
        for (int64_t j = 0; j < u->n[3]; j++) {
            int64_t at = (int64_t)element(index, u->types[1], j);
            at += at < 0 ? u->n[1] : 0;
            assert_true(at >= 0 && at < u->n[1]);
            memcpy(y + (size_t)((o * u->n[3] + j) * u->n[2]) * size,
                   (const char *)x + (size_t)((o * u->n[1] + at) * u->n[2]) * size, (size_t)u->n[2] * size);
        }
}

static inline void run_gemm(const struct machine *m, const struct cuda_step *step)
{
    const struct cuda_gemm *g = step->gemm;
    const void *a = slot_at(m, step->in[0]), *b = slot_at(m, step->in[1]);
    void *d = slot_at(m, step->out[0]);
    int at = 2;
    struct epilogue_in e = {
        .residual_scale = 1, .residual_dtype = g->c, .bias_dtype = g->has_scale ? MLO_FLOAT32 : g->d};
    e.residual = g->has_c ? slot_at(m, step->in[at++]) : NULL;
    e.bias = g->has_bias ? slot_at(m, step->in[at++]) : NULL;
    e.scale = g->has_scale ? slot_at(m, step->in[at++]) : NULL;
    e.activation = g->activation;
    assert_int_equal(at, step->in_count);
    for (int64_t t = 0; t < g->batch; t++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0;
                for (int64_t k = 0; k < g->k; k++)
                    sum += element(a, g->a, t * g->batch_a + (g->ta ? k * g->lda + i : i * g->lda + k)) *
                           element(b, g->b, t * g->batch_b + (g->tb ? j * g->ldb + k : k * g->ldb + j));
                put(d, g->d, t * g->batch_d + i * g->ldd + j,
                    finish_sum(&e, sum * g->alpha, j, t * g->batch_c + i * g->ldc + j));
            }
}

static inline int64_t at4(const struct cuda_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return a * t->strides[0] + b * t->strides[1] + c * t->strides[2] + d * t->strides[3];
}

static inline void run_attention(const struct machine *m, const struct cuda_step *step)
{
    const struct cuda_attention *a = step->attention;
    const void *q = slot_at(m, step->in[0]), *k = slot_at(m, step->in[1]), *v = slot_at(m, step->in[2]),
               *mask = a->has_mask ? slot_at(m, step->in[3]) : NULL;
    void *o = slot_at(m, step->out[0]);
    int64_t keys = a->k.dims[2];
    double *score = calloc((size_t)keys + 1, sizeof *score);
    assert_non_null(score);
    for (int64_t b = 0; b < a->q.dims[0]; b++)
        for (int64_t h = 0; h < a->q.dims[1]; h++)
            for (int64_t i = 0; i < a->q.dims[2]; i++) {
                double most = -INFINITY, sum = 0;
                for (int64_t j = 0; j < keys; j++) {
                    double s = 0;
                    for (int64_t d = 0; d < a->q.dims[3]; d++)
                        s += element(q, a->q.dtype, at4(&a->q, b, h, i, d)) *
                             element(k, a->k.dtype, at4(&a->k, b, h, j, d));
                    s = s * a->scale + (mask ? element(mask, a->mask.dtype, at4(&a->mask, b, h, i, j)) : 0);
                    score[j] = s;
                    most = fmax(most, s);
                }
                for (int64_t j = 0; j < keys; j++)
                    sum += score[j] = exp(score[j] - most);
                for (int64_t d = 0; d < a->v.dims[3]; d++) {
                    double y = 0;
                    for (int64_t j = 0; j < keys; j++)
                        y += score[j] / sum * element(v, a->v.dtype, at4(&a->v, b, h, j, d));
                    put(o, a->o.dtype, at4(&a->o, b, h, i, d), y);
                }
            }
    free(score);
}

/* --- all
 * ------------------------------------------------------------------------------------------------------- */

/* The step's own kernel, compiled for the CPU (library-free for what a library would compute). False: there
 * is no compiler here. */
static inline bool run_source(const struct machine *m, const struct cuda_step *step)
{
    struct mlo_error e = {0};
    struct cuda_source source = {0};
    cuda_host_fn *fn = NULL;
    void *parameters[2 * CUDA_STEP_SLOTS];
    int count = 0;
    if (!cuda_host_possible())
        return false;
    MUST(cuda_step_source(m->s, step, &source, err));
    if (cuda_host_compile(source.text, source.entry, &fn, &e) != MLO_OK)
        fail_msg("%s (%s)\n%s", e.message, step->impl, source.text);
    for (int i = 0; i < step->in_count; i++)
        parameters[count++] = slot_at(m, step->in[i]);
    for (int i = 0; i < step->out_count; i++)
        parameters[count++] = slot_at(m, step->out[i]);
    fn(parameters, source.grid[0], 0);
    cuda_source_clear(&source);
    return true;
}

/* What the interpreter does not know runs by its kernel. */
static inline bool run_kernel(const struct machine *m, const struct cuda_step *step)
{
    if (strcmp(step->impl, "pool") == 0)
        run_pool(m, step);
    else if (strcmp(step->impl, "gather") == 0)
        run_gather(m, step);
    else if (strcmp(step->impl, "depthwise") == 0 || strcmp(step->impl, "conv") == 0)
        run_conv_kernel(m, step, step->impl[0] == 'd');
    else
        return run_source(m, step);
    return true;
}

/* Runs the schedule on the model's inputs; outputs are yours. by_kernels: each step by the text that a GPU
 * would get. False: there is no compiler for that. */
static inline bool interpret_with(const struct cuda_schedule *s, bool by_kernels,
                                  const struct mlo_tensor *inputs, struct mlo_tensor *outputs)
{
    struct machine m = {
        .s = s, .arena = malloc(s->arena_bytes + 1), .constants = malloc(s->constant_bytes + 1)};
    bool ok = true;
    assert_true(m.arena && m.constants);
    for (int i = 0; i < s->slot_count; i++) /* all that there are, in the order in which a device gets them */
        if (s->slots[i].kind == CUDA_SLOT_CONST && !s->slots[i].is_part && s->slots[i].size_bytes)
            memcpy(m.constants + s->slots[i].offset, s->slots[i].data, s->slots[i].size_bytes);
    memset(m.arena, 0xff, s->arena_bytes + 1); /* NaN in every type of floats */
    for (int i = 0; i < s->slot_count; i++)
        if (s->slots[i].kind == CUDA_SLOT_INPUT && !s->slots[i].is_part) {
            assert_int_equal(inputs[s->slots[i].input].size_bytes, s->slots[i].size_bytes);
            memcpy(m.arena + s->slots[i].offset, inputs[s->slots[i].input].data, s->slots[i].size_bytes);
        }
    for (int i = 0; i < s->step_count && ok; i++) {
        const struct cuda_step *step = &s->steps[i];
        if (by_kernels && step->kind != CUDA_STEP_COPY) {
            ok = run_source(&m, step);
            continue;
        }
        switch (step->kind) {
        case CUDA_STEP_CHAIN:
            run_chain(&m, step);
            break;
        case CUDA_STEP_CONV:
            run_conv(&m, step);
            break;
        case CUDA_STEP_GEMM:
            run_gemm(&m, step);
            break;
        case CUDA_STEP_ATTENTION:
            run_attention(&m, step);
            break;
        case CUDA_STEP_KERNEL:
            ok = run_kernel(&m, step);
            break;
        case CUDA_STEP_COPY:
            memcpy(slot_at(&m, step->out[0]), slot_at(&m, step->in[0]), step->copy_bytes);
            break;
        }
    }
    for (int i = 0; i < s->model->graph->output_count && ok; i++) {
        const struct cuda_tensor *t = &s->output_tensors[i];
        MUST(mlo_tensor_init(&outputs[i], t->dtype, t->rank, t->dims, err));
        memcpy(outputs[i].data, slot_at(&m, s->output_slots[i]), outputs[i].size_bytes);
    }
    free(m.arena);
    free(m.constants);
    return ok;
}

static inline bool interpret(const struct cuda_schedule *s, const struct mlo_tensor *inputs,
                             struct mlo_tensor *outputs)
{
    return interpret_with(s, false, inputs, outputs);
}

#endif
