/* What a step is, without names: the key under which is remembered how it is computed best. */
#include <string.h>

#include "engines/cuda/tune/tune.h"

/* By its bits: JSON has no infinities, and equal numbers must be equal texts. */
static json_t *bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return json_integer(bits);
}

static json_t *integers(const int64_t *values, int count)
{
    json_t *out = json_array();
    for (int i = 0; out && i < count; i++)
        json_array_append_new(out, json_integer(values[i]));
    return out;
}

static json_t *floats(const float *values, int count)
{
    json_t *out = json_array();
    for (int i = 0; out && i < count; i++)
        json_array_append_new(out, bits_of(values[i]));
    return out;
}

static json_t *tensor(const struct cuda_tensor *t)
{
    return json_pack("{s:s, s:o, s:o}", "type", mlo_dtype_name(t->dtype), "dims", integers(t->dims, t->rank),
                     "strides", integers(t->strides, t->rank));
}

static json_t *conv(const struct cuda_conv *c)
{
    json_t *out = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:b, s:b, s:b, s:o, s:i, s:o, s:o}", "x", tensor(&c->x),
        "w", tensor(&c->w), "y", tensor(&c->y), "before", integers(c->pad_before, c->spatial), "after",
        integers(c->pad_after, c->spatial), "stride", integers(c->stride, c->spatial), "dilation",
        integers(c->dilation, c->spatial), "groups", (json_int_t)c->groups, "residual", c->has_residual,
        "bias", c->has_bias, "scale", c->has_scale, "residual_scale", bits_of(c->residual_scale),
        "activation", (int)c->activation, "low", bits_of(c->low), "high", bits_of(c->high));
    if (out && c->has_residual)
        json_object_set_new(out, "r", tensor(&c->residual));
    return out;
}

static json_t *gemm(const struct cuda_gemm *g)
{
    const int64_t numbers[] = {g->m,   g->n,   g->k,       g->batch,   g->lda,     g->ldb,
                               g->ldc, g->ldd, g->batch_a, g->batch_b, g->batch_c, g->batch_d};
    return json_pack("{s:o, s:b, s:b, s:[s,s,s,s], s:o, s:b, s:b, s:b, s:b, s:i}", "n",
                     integers(numbers, (int)MLO_COUNT(numbers)), "ta", g->ta, "tb", g->tb, "types",
                     mlo_dtype_name(g->a), mlo_dtype_name(g->b), mlo_dtype_name(g->c), mlo_dtype_name(g->d),
                     "alpha", bits_of(g->alpha), "c", g->has_c, "bias", g->has_bias, "scale", g->has_scale,
                     "per_column", g->scale_per_column, "activation", (int)g->activation);
}

static json_t *attention(const struct cuda_attention *a)
{
    json_t *out =
        json_pack("{s:o, s:o, s:o, s:o, s:b, s:o}", "q", tensor(&a->q), "k", tensor(&a->k), "v",
                  tensor(&a->v), "o", tensor(&a->o), "causal", a->causal, "scale", bits_of(a->scale));
    if (out && a->has_mask)
        json_object_set_new(out, "mask", tensor(&a->mask));
    return out;
}

static json_t *operand(const struct cuda_operand *o, int rank)
{
    return json_pack("{s:s, s:o, s:I, s:i}", "type", mlo_dtype_name(o->dtype), "strides",
                     integers(o->strides, rank), "offset", (json_int_t)o->offset, "reg", o->reg);
}

static json_t *chain(const struct cuda_chain *c)
{
    json_t *code = json_array(), *in = json_array(), *out = json_array();
    for (int i = 0; i < c->count; i++) {
        const struct cuda_chain_instruction *x = &c->code[i];
        json_array_append_new(code, json_pack("[i,i,i,i,i,o,o,o,o]", (int)x->op, (int)x->math, x->a, x->b,
                                              x->c, bits_of(x->alpha), bits_of(x->beta), bits_of(x->low),
                                              bits_of(x->high)));
    }
    for (int i = 0; i < c->operand_count; i++)
        json_array_append_new(in, operand(&c->operands[i], c->rank));
    for (int i = 0; i < c->result_count; i++)
        json_array_append_new(out, operand(&c->results[i], c->rank));
    return json_pack("{s:o, s:i, s:o, s:o, s:o}", "dims", integers(c->dims, c->rank), "reduced", c->reduced,
                     "code", code, "in", in, "out", out);
}

static json_t *kernel(const struct cuda_step *step)
{
    const struct cuda_kernel_use *u = step->kernel;
    json_t *types = json_array();
    for (size_t i = 0; i < MLO_COUNT(u->types); i++)
        json_array_append_new(types, json_string(mlo_dtype_name(u->types[i])));
    return json_pack("{s:s, s:o, s:o, s:o}", "name", step->impl, "n", integers(u->n, CUDA_KERNEL_NUMBERS),
                     "f", floats(u->f, (int)MLO_COUNT(u->f)), "types", types);
}

/* What its place is aligned to, up to 256: a power of two. */
static int alignment(const struct cuda_schedule *s, int slot)
{
    size_t offset = s->slots[slot].offset, align = 256;
    while (align > 1 && offset % align)
        align /= 2;
    return (int)align;
}

static json_t *alignments(const struct cuda_schedule *s, const int *slots, int count)
{
    json_t *out = json_array();
    for (int i = 0; out && i < count; i++)
        json_array_append_new(out, json_integer(slots[i] < 0 ? 0 : alignment(s, slots[i])));
    return out;
}

enum mlo_status cuda_step_canonical(const struct cuda_schedule *s, const struct cuda_step *step, json_t **out,
                                    struct mlo_error *err)
{
    static const char *const kinds[] = {
        [CUDA_STEP_CHAIN] = "chain",         [CUDA_STEP_KERNEL] = "kernel", [CUDA_STEP_CONV] = "conv",
        [CUDA_STEP_ATTENTION] = "attention", [CUDA_STEP_GEMM] = "gemm",     [CUDA_STEP_COPY] = "copy"};
    json_t *what = NULL;
    switch (step->kind) {
    case CUDA_STEP_CHAIN:
        what = chain(step->chain);
        break;
    case CUDA_STEP_KERNEL:
        what = kernel(step);
        break;
    case CUDA_STEP_CONV:
        what = conv(step->conv);
        break;
    case CUDA_STEP_ATTENTION:
        what = attention(step->attention);
        break;
    case CUDA_STEP_GEMM:
        what = gemm(step->gemm);
        break;
    case CUDA_STEP_COPY:
        what = json_integer((json_int_t)step->copy_bytes);
        break;
    }
    *out = json_pack("{s:s, s:o, s:s, s:o, s:o}", "kind", kinds[step->kind], "step", what, "precision",
                     step->precision ? step->precision : "", "in", alignments(s, step->in, step->in_count),
                     "out", alignments(s, step->out, step->out_count));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status cuda_step_key(const struct cuda_schedule *s, const struct cuda_step *step,
                              struct mlo_digest *out, struct mlo_error *err)
{
    json_t *canonical = NULL;
    enum mlo_status status = cuda_step_canonical(s, step, &canonical, err);
    if (status == MLO_OK)
        status = mlo_json_digest(canonical, out, err);
    json_decref(canonical);
    return status;
}

const json_t *cuda_step_choice(const struct cuda_schedule *s, const struct cuda_step *step,
                               const json_t *choices)
{
    struct mlo_digest key;
    if (!choices || cuda_step_key(s, step, &key, NULL) != MLO_OK)
        return NULL;
    return json_object_get(mlo_choices_find(choices, &key), "choice");
}
