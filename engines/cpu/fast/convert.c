/* Cast between float32, float16 and bfloat16, and of integers to float32: round to nearest even, as the
 * reference does. */
#include <cpuid.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

enum { GRAIN = 65536 };

static size_t width(enum mlo_dtype dtype)
{
    return mlo_dtype_info(dtype)->bits / 8;
}

static bool is_float(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 || dtype == MLO_FLOAT16 || dtype == MLO_BFLOAT16;
}

static bool is_integer(enum mlo_dtype dtype)
{
    return dtype == MLO_INT8 || dtype == MLO_UINT8 || dtype == MLO_INT32 || dtype == MLO_INT64;
}

static bool is_known(enum mlo_dtype from, enum mlo_dtype to)
{
    return (is_float(from) && is_float(to)) || (is_integer(from) && to == MLO_FLOAT32);
}

static void one(const char *x, enum mlo_dtype from, char *y, enum mlo_dtype to)
{
    float f;
    uint16_t h;
    memcpy(&f, x, width(from) == 4 ? 4 : 0);
    memcpy(&h, x, 2);
    if (from != MLO_FLOAT32)
        f = from == MLO_FLOAT16 ? mlo_f16_to_f32(h) : mlo_bf16_to_f32(h);
    h = to == MLO_FLOAT16 ? mlo_f32_to_f16(f) : mlo_f32_to_bf16(f);
    memcpy(y, to == MLO_FLOAT32 ? (const void *)&f : &h, width(to));
}

static void plain(const void *x, enum mlo_dtype from, size_t count, void *y, enum mlo_dtype to)
{
    for (size_t i = 0; i < count; i++)
        one((const char *)x + i * width(from), from, (char *)y + i * width(to), to);
}

#define F16C __attribute__((target("avx2,f16c")))

F16C static inline __attribute__((always_inline)) __m256 load8(const char *x, enum mlo_dtype from)
{
    if (from == MLO_FLOAT32)
        return _mm256_loadu_ps((const float *)(const void *)x);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)x);
    return from == MLO_FLOAT16 ? _mm256_cvtph_ps(h)
                               : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* bfloat16: the upper half, rounded to even; a NaN stays one. */
F16C static inline __attribute__((always_inline)) void store8(char *y, enum mlo_dtype to, __m256 v)
{
    if (to == MLO_FLOAT32) {
        _mm256_storeu_ps((float *)(void *)y, v);
        return;
    }
    __m128i h;
    if (to == MLO_FLOAT16) {
        h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    } else {
        __m256i bits = _mm256_castps_si256(v);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
        up = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(nan), is_nan));
        up = _mm256_srli_epi32(up, 16);
        h = _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
    }
    _mm_storeu_si128((__m128i *)(void *)y, h);
}

F16C static void eight(const void *x, enum mlo_dtype from, size_t count, void *y, enum mlo_dtype to)
{
    const char *a = x;
    char *b = y;
    size_t i = 0;
#define LOOP(F, T)                                                                                           \
    if (from == F && to == T)                                                                                \
        for (; i + 8 <= count; i += 8)                                                                       \
    store8(b + i * width(T), T, load8(a + i * width(F), F))
    LOOP(MLO_FLOAT16, MLO_FLOAT32);
    LOOP(MLO_BFLOAT16, MLO_FLOAT32);
    LOOP(MLO_FLOAT32, MLO_FLOAT16);
    LOOP(MLO_FLOAT32, MLO_BFLOAT16);
    plain(a + i * width(from), from, count - i, b + i * width(to), to);
}

/* By cpuid, since not every compiler's __builtin_cpu_supports knows the name. */
bool fast_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

fast_convert_fn *fast_convert_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX2 && fast_has_f16c() ? eight : plain;
}

/* By way of double, as the reference goes. */
static void integers(const void *x, enum mlo_dtype from, size_t count, float *y)
{
#define TO_FLOAT(DTYPE, C_TYPE)                                                                              \
    if (from == (DTYPE))                                                                                     \
        for (size_t i = 0; i < count; i++)                                                                   \
    y[i] = (float)(double)((const C_TYPE *)x)[i]
    TO_FLOAT(MLO_INT8, int8_t);
    TO_FLOAT(MLO_UINT8, uint8_t);
    TO_FLOAT(MLO_INT32, int32_t);
    TO_FLOAT(MLO_INT64, int64_t);
}

struct cast {
    fast_convert_fn *convert;
    enum mlo_dtype from, to;
    size_t count;
};

struct call {
    const struct cast *c;
    const char *x;
    char *y;
};

static void range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *c = arg;
    const char *x = c->x + begin * width(c->c->from);
    char *y = c->y + begin * width(c->c->to);
    if (is_integer(c->c->from))
        integers(x, c->c->from, end - begin, (float *)(void *)y);
    else
        c->c->convert(x, c->c->from, end - begin, y, c->c->to);
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, void *state,
                           struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    struct call call = {step->data, program->at[step->in[0]], program->at[step->out[0]]};
    mlo_pool_run(program->pool, call.c->count, GRAIN, range, &call);
    return MLO_OK;
}

static enum mlo_status save(const struct mlo_plan *plan, const struct cpu_step *step, struct cpu_writer *w,
                            struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct cast *c = step->data;
    cpu_put_u32(w, c->from);
    cpu_put_u32(w, c->to);
    cpu_put_u64(w, c->count);
    return MLO_OK;
}

static enum mlo_status restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                               struct mlo_error *err)
{
    struct cast *c = calloc(1, sizeof *c);
    if (!c)
        return mlo_error_nomem(err);
    step->data = c;
    c->convert = fast_convert_for(plan->isa);
    c->from = (enum mlo_dtype)cpu_get_u32(r);
    c->to = (enum mlo_dtype)cpu_get_u32(r);
    c->count = cpu_get_u64(r);
    if (cpu_check(r, step->in_count == 1 && step->out_count == 1 && is_known(c->from, c->to),
                  "a cast has other operands")) {
        cpu_slot_holds(r, plan, step->in[0], cpu_product(c->count, width(c->from), 1));
        cpu_slot_holds(r, plan, step->out[0], cpu_product(c->count, width(c->to), 1));
    }
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_cast_class = {
    .name = "cast", .run = run, .free_data = free, .id = "cast", .save = save, .restore = restore};

enum mlo_status fast_lower_cast(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct fast_shape s;
    int from;
    if (!mlo_node_is(node, "Cast") || node->inputs[0]->constant || !fast_shape(node->inputs[0], &s) ||
        s.count == 0)
        return MLO_OK;
    const struct mlo_value *x = node->inputs[0], *y = node->outputs[0];
    if (!is_known(x->type.dtype, y->type.dtype) || !fast_is_available(plan, x))
        return MLO_OK;
    if (x->type.dtype == y->type.dtype) { /* the same value, in whichever forms it is */
        struct cpu_value *a = &plan->values[x->index];
        for (int l = 0; l < CPU_LAYOUTS; l++) {
            if (a->slot[l] >= 0)
                fast_set(plan, y, (enum cpu_layout)l, a->slot[l]);
            if (a->qslot[l] >= 0)
                fast_set_q(plan, y, (enum cpu_layout)l, a->qslot[l], &a->q);
        }
        *done = fast_is_available(plan, y);
        return MLO_OK;
    }
    enum cpu_layout layout = is_integer(x->type.dtype) ? fast_layout(plan, x, false) : CPU_PLAIN;
    MLO_TRY(fast_value(plan, x, layout, &from, err));
    int to = fast_new_slot(plan, y, false);
    struct cast *c = malloc(sizeof *c);
    struct cpu_step *step = c && to >= 0 ? cpu_step_new(plan, &fast_cast_class, node, 1, 1) : NULL;
    if (!step) {
        free(c);
        return mlo_error_nomem(err);
    }
    *c = (struct cast){fast_convert_for(plan->isa), x->type.dtype, y->type.dtype, s.count};
    step->data = c;
    step->precision = mlo_dtype_name(x->type.dtype == MLO_FLOAT32 ? y->type.dtype : x->type.dtype);
    step->in[0] = from;
    step->out[0] = to;
    fast_set(plan, y, layout, to);
    *done = true;
out:
    return status;
}
