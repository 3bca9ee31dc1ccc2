/* QuantizeLinear and DequantizeLinear with the results of their op-table rows. Those of constants are
 * computed once, so that weights behind pairs are weights to what reads them; those with one constant scale
 * for bytes run in a loop over elements. */
#include <math.h>
#include <stdlib.h>

#include "engines/cpu/invariant/invariant_impl.h"

struct quantizing {
    float scale;
    int32_t zero, low, high;
    size_t count;
};

struct quantizing_call {
    const struct quantizing *q;
    const void *x;
    void *y;
};

/* NaN becomes the zero point. Beyond 2^24, where float sums are not exact, all is saturated. */
static inline __attribute__((always_inline)) int32_t quantized(const struct quantizing *q, float x)
{
    float v = rintf(x / q->scale);
    v = v == v ? v + (float)q->zero : (float)q->zero;
    v = v > (float)q->low ? v : (float)q->low;
    v = v < (float)q->high ? v : (float)q->high;
    return (int32_t)v;
}

#define LOOPS(isa, attribute)                                                                                \
    attribute static void to_uint8_##isa(void *arg, size_t begin, size_t end, unsigned worker)               \
    {                                                                                                        \
        MLO_UNUSED(worker);                                                                                  \
        const struct quantizing_call *c = arg;                                                               \
        const struct quantizing q = *c->q;                                                                   \
        const float *restrict x = c->x;                                                                      \
        uint8_t *restrict y = c->y;                                                                          \
        for (size_t i = begin; i < end; i++)                                                                 \
            y[i] = (uint8_t)quantized(&q, x[i]);                                                             \
    }                                                                                                        \
    attribute static void to_int8_##isa(void *arg, size_t begin, size_t end, unsigned worker)                \
    {                                                                                                        \
        MLO_UNUSED(worker);                                                                                  \
        const struct quantizing_call *c = arg;                                                               \
        const struct quantizing q = *c->q;                                                                   \
        const float *restrict x = c->x;                                                                      \
        int8_t *restrict y = c->y;                                                                           \
        for (size_t i = begin; i < end; i++)                                                                 \
            y[i] = (int8_t)quantized(&q, x[i]);                                                              \
    }                                                                                                        \
    attribute static void from_uint8_##isa(void *arg, size_t begin, size_t end, unsigned worker)             \
    {                                                                                                        \
        MLO_UNUSED(worker);                                                                                  \
        const struct quantizing_call *c = arg;                                                               \
        const struct quantizing q = *c->q;                                                                   \
        const uint8_t *restrict x = c->x;                                                                    \
        float *restrict y = c->y;                                                                            \
        for (size_t i = begin; i < end; i++)                                                                 \
            y[i] = (float)((int32_t)x[i] - q.zero) * q.scale;                                                \
    }                                                                                                        \
    attribute static void from_int8_##isa(void *arg, size_t begin, size_t end, unsigned worker)              \
    {                                                                                                        \
        MLO_UNUSED(worker);                                                                                  \
        const struct quantizing_call *c = arg;                                                               \
        const struct quantizing q = *c->q;                                                                   \
        const int8_t *restrict x = c->x;                                                                     \
        float *restrict y = c->y;                                                                            \
        for (size_t i = begin; i < end; i++)                                                                 \
            y[i] = (float)((int32_t)x[i] - q.zero) * q.scale;                                                \
    }                                                                                                        \
    static mlo_range_fn *const loops_##isa[2][2] = {{from_uint8_##isa, from_int8_##isa},                     \
                                                    {to_uint8_##isa, to_int8_##isa}};

LOOPS(plain, )
LOOPS(avx2, __attribute__((target("avx2,fma"))))

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, bool to, bool is_signed)
{
    const struct quantizing *q = step->data;
    struct quantizing_call call = {q, program->at[step->in[0]], program->at[step->out[0]]};
    mlo_range_fn *const(*loops)[2] = program->plan->isa >= MLO_ISA_AVX2 ? loops_avx2 : loops_plain;
    mlo_pool_run(program->pool, q->count, 16384, loops[to][is_signed], &call);
    return MLO_OK;
}

#define STEP(what, to, is_signed)                                                                            \
    static enum mlo_status run_##what(struct mlo_program *program, const struct cpu_step *step, void *state, \
                                      struct mlo_error *err)                                                 \
    {                                                                                                        \
        MLO_UNUSED(state);                                                                                   \
        MLO_UNUSED(err);                                                                                     \
        return run(program, step, to, is_signed);                                                            \
    }                                                                                                        \
    static const struct cpu_step_class class_##what = {                                                      \
        .name = "elementwise", .run = run_##what, .free_data = free};
STEP(from_uint8, false, false)
STEP(from_int8, false, true)
STEP(to_uint8, true, false)
STEP(to_int8, true, true)
static const struct cpu_step_class *const classes[2][2] = {{&class_from_uint8, &class_from_int8},
                                                           {&class_to_uint8, &class_to_int8}};

/* Computes a node of constants now; *done stays false where it cannot be (the run says why). */
static enum mlo_status fold(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                            struct mlo_error *err)
{
    const struct mlo_tensor *in[3] = {NULL};
    struct mlo_tensor *result = mlo_arena_calloc(plan->arena, 1, sizeof *result);
    struct mlo_value *out = node->outputs[0];
    struct mlo_error ignored = {0};
    if (!result)
        return mlo_error_nomem(err);
    for (int i = 0; i < node->input_count; i++)
        in[i] = node->inputs[i] ? node->inputs[i]->constant : NULL;
    int64_t dims[MLO_MAX_RANK];
    bool good = mlo_node_eval(node, in, &result, &ignored) == MLO_OK && result->owned && result->data &&
                result->dtype == out->type.dtype && result->rank == out->type.rank &&
                cpu_value_dims(out, dims, NULL);
    for (int i = 0; good && i < result->rank; i++)
        good = dims[i] == result->dims[i];
    if (!good) {
        mlo_tensor_clear(result);
        return MLO_OK;
    }
    int slot = cpu_slot_const_take(plan, result->data, result->size_bytes); /* freed with the plan */
    result->owned = false;
    if (slot < 0)
        return mlo_error_nomem(err);
    out->constant = result;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    *done = true;
    return MLO_OK;
}

static bool one_float(const struct mlo_tensor *t)
{
    return t && t->dtype == MLO_FLOAT32 && mlo_tensor_count(t) == 1;
}

enum mlo_status inv_lower_quantize(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                   struct mlo_error *err)
{
    bool to = mlo_node_is(node, "QuantizeLinear");
    if ((!to && !mlo_node_is(node, "DequantizeLinear")) || node->input_count < 2 || node->input_count > 3)
        return MLO_OK;
    bool constant = true;
    for (int i = 0; i < node->input_count; i++)
        constant = constant && (!node->inputs[i] || node->inputs[i]->constant);
    if (constant && !to)
        return fold(plan, node, done, err);
    const struct mlo_tensor *scale = mlo_node_const(node, 1), *zero = mlo_node_const(node, 2);
    struct mlo_value *in = node->inputs[0], *out = node->outputs[0];
    enum mlo_dtype bytes_type = to ? out->type.dtype : in->type.dtype,
                   float_type = to ? in->type.dtype : out->type.dtype;
    size_t bytes, count;
    if (!one_float(scale) || (mlo_node_input(node, 2) && (!zero || mlo_tensor_count(zero) != 1)) ||
        (bytes_type != MLO_UINT8 && bytes_type != MLO_INT8) || (zero && zero->dtype != bytes_type) ||
        float_type != MLO_FLOAT32 || mlo_node_attr_i(node, "block_size", 0) ||
        !cpu_value_dims(out, NULL, &count) || !cpu_value_bytes(out, &bytes) || in->constant)
        return MLO_OK;
    bool is_signed = bytes_type == MLO_INT8;
    struct quantizing *q = malloc(sizeof *q);
    int slot = q ? cpu_slot_new(plan, CPU_SLOT_ARENA, bytes) : -1;
    struct cpu_step *step = slot < 0 ? NULL : cpu_step_new(plan, classes[to][is_signed], node, 1, 1);
    if (!step) {
        free(q);
        return mlo_error_nomem(err);
    }
    *q = (struct quantizing){.scale = ((const float *)scale->data)[0],
                             .zero = zero ? (int32_t)mlo_tensor_get_i64(zero, 0) : 0,
                             .low = is_signed ? -128 : 0,
                             .high = is_signed ? 127 : 255,
                             .count = count};
    step->in[0] = cpu_value_plain(plan, in);
    step->out[0] = slot;
    step->data = q;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    *done = true;
    return MLO_OK;
}
