/* A schedule as text: for golden tests, and for who wants to know what became of a graph. */
#include <inttypes.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

static const char *const kinds[] = {
    [CUDA_STEP_CHAIN] = "chain",         [CUDA_STEP_KERNEL] = "kernel", [CUDA_STEP_CONV] = "conv",
    [CUDA_STEP_ATTENTION] = "attention", [CUDA_STEP_GEMM] = "gemm",     [CUDA_STEP_COPY] = "copy"};
static const char *const activations[] = {
    [CUDA_ACT_RELU] = "relu",  [CUDA_ACT_CLIP] = "clip", [CUDA_ACT_SIGMOID] = "sigmoid",
    [CUDA_ACT_TANH] = "tanh",  [CUDA_ACT_GELU] = "gelu", [CUDA_ACT_GELU_TANH] = "gelu_tanh",
    [CUDA_ACT_SWISH] = "swish"};

static void dims(struct mlo_buf *out, int rank, const int64_t *d)
{
    for (int i = 0; i < rank; i++)
        mlo_buf_printf(out, "%s%" PRId64, i ? "x" : "", d[i]);
}

static void parts(struct mlo_buf *out, bool scale, bool residual, bool bias, enum cuda_activation a)
{
    mlo_buf_printf(out, "%s%s%s", scale ? " scale" : "", residual ? " residual" : "", bias ? " bias" : "");
    if (a != CUDA_ACT_NONE)
        mlo_buf_printf(out, " %s", activations[a]);
}

static void dump_conv(struct mlo_buf *out, const struct cuda_conv *c)
{
    dims(out, c->x.rank, c->x.dims);
    mlo_buf_printf(out, " * ");
    dims(out, c->w.rank, c->w.dims);
    mlo_buf_printf(out, " -> %s ", mlo_dtype_name(c->y.dtype));
    dims(out, c->y.rank, c->y.dims);
    parts(out, c->has_scale, c->has_residual, c->has_bias, c->activation);
}

static void dump_gemm(struct mlo_buf *out, const struct cuda_gemm *g)
{
    mlo_buf_printf(out, "%" PRId64 " x (m %" PRId64 " n %" PRId64 " k %" PRId64 ")%s%s -> %s", g->batch, g->m,
                   g->n, g->k, g->ta ? " a^T" : "", g->tb ? " b^T" : "", mlo_dtype_name(g->d));
    parts(out, g->has_scale, g->has_c, g->has_bias, g->activation);
}

static void dump_attention(struct mlo_buf *out, const struct cuda_attention *a)
{
    mlo_buf_printf(out, "q ");
    dims(out, 4, a->q.dims);
    mlo_buf_printf(out, " k ");
    dims(out, 4, a->k.dims);
    mlo_buf_printf(out, "%s", a->has_mask ? " mask" : "");
}

static void dump_chain(struct mlo_buf *out, const struct cuda_chain *c)
{
    dims(out, c->rank, c->dims);
    if (c->reduced)
        mlo_buf_printf(out, " reduces %d", c->reduced);
    mlo_buf_printf(out, ", %d in, %d out, %d instructions", c->operand_count, c->result_count, c->count);
}

/* The numbers up to the last that is not 0. */
static void dump_kernel(struct mlo_buf *out, const struct cuda_kernel_use *u)
{
    int count = CUDA_KERNEL_NUMBERS;
    while (count && !u->n[count - 1])
        count--;
    for (int i = 0; i < count; i++)
        mlo_buf_printf(out, "%s%" PRId64, i ? " " : "", u->n[i]);
}

static void dump_step(struct mlo_buf *out, const struct cuda_step *step)
{
    mlo_buf_printf(out, "%s [%s] %s: ", kinds[step->kind], step->impl, step->precision);
    switch (step->kind) {
    case CUDA_STEP_CHAIN:
        dump_chain(out, step->chain);
        break;
    case CUDA_STEP_KERNEL:
        dump_kernel(out, step->kernel);
        break;
    case CUDA_STEP_CONV:
        dump_conv(out, step->conv);
        break;
    case CUDA_STEP_ATTENTION:
        dump_attention(out, step->attention);
        break;
    case CUDA_STEP_GEMM:
        dump_gemm(out, step->gemm);
        break;
    case CUDA_STEP_COPY:
        mlo_buf_printf(out, "%zu bytes", step->copy_bytes);
        break;
    }
    mlo_buf_printf(out, " | %s", step->node ? step->node->name : "");
    for (int i = 0; i < step->fused_count; i++)
        mlo_buf_printf(out, " + %s", step->fused[i]);
    mlo_buf_printf(out, "\n");
}

void cuda_schedule_dump(const struct cuda_schedule *s, struct mlo_buf *out)
{
    int counts[MLO_COUNT(kinds)] = {0};
    size_t bound = cuda_memory_bound(s);
    for (int i = 0; i < s->step_count; i++) {
        counts[s->steps[i].kind]++;
        dump_step(out, &s->steps[i]);
    }
    mlo_buf_printf(out, "= %d steps:", s->step_count);
    for (size_t i = 0; i < MLO_COUNT(kinds); i++)
        if (counts[i])
            mlo_buf_printf(out, " %d %s", counts[i], kinds[i]);
    mlo_buf_printf(out, "\n= constants %zu, arena %zu, bound %zu (%.3f)\n", s->constant_bytes, s->arena_bytes,
                   bound, bound ? (double)s->arena_bytes / (double)bound : 1.0);
}
