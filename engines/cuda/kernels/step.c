/* The source of a step: what its slots are aligned to, and kernels in the place of libraries. */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/kernels/kernels_impl.h"

/* The largest power of two, up to 256, that a slot's place is a multiple of. */
static int alignment(const struct cuda_schedule *schedule, int slot)
{
    size_t at = schedule->slots[slot].offset;
    int align = 256;
    while (at % (size_t)align)
        align /= 2;
    return align;
}

static int least_alignment(const struct cuda_schedule *schedule, const struct cuda_step *step)
{
    int least = 256;
    for (int i = 0; i < step->in_count; i++)
        least = MLO_MIN(least, alignment(schedule, step->in[i]));
    for (int i = 0; i < step->out_count; i++)
        least = MLO_MIN(least, alignment(schedule, step->out[i]));
    return least;
}

enum mlo_status cuda_conv_kernel(const struct cuda_conv *c, struct cuda_kernel_use *out,
                                 struct mlo_error *err)
{
    enum { IN = 2, OUT = 5, KERNEL = 8, STRIDE = 11, DILATION = 14, PAD = 17, PAD_AFTER = 20 };
    memset(out, 0, sizeof *out);
    if (c->x.rank != c->spatial + 2 || c->spatial < 1 || c->spatial > 3)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a convolution over %d dimensions has no kernel",
                             c->spatial);
    const struct cuda_tensor *dense[] = {&c->x, &c->y, c->has_residual ? &c->residual : NULL};
    for (size_t t = 0; t < MLO_COUNT(dense); t++) { /* channels innermost, nothing between */
        int64_t stride = dense[t] ? dense[t]->dims[1] : 0;
        bool good = !dense[t] || dense[t]->strides[1] == 1 || dense[t]->dims[1] == 1;
        for (int d = c->spatial + 1; dense[t] && d >= 0; d--)
            if (d != 1) {
                good &= dense[t]->strides[d] == stride || dense[t]->dims[d] == 1;
                stride *= dense[t]->dims[d];
            }
        if (!good)
            return mlo_error_set(err, MLO_EUNSUPPORTED,
                                 "a convolution's kernel wants dense, channels-last images");
    }
    out->kernel = cuda_kernel_find("conv");
    out->n[0] = c->x.dims[0];
    out->n[1] = c->x.dims[1];
    for (int d = 0; d < 3; d++) {
        int from = d - (3 - c->spatial); /* the last of three is the innermost */
        bool there = from >= 0;
        out->n[IN + d] = there ? c->x.dims[2 + from] : 1;
        out->n[OUT + d] = there ? c->y.dims[2 + from] : 1;
        out->n[KERNEL + d] = there ? c->w.dims[2 + from] : 1;
        out->n[STRIDE + d] = there ? c->stride[from] : 1;
        out->n[DILATION + d] = there ? c->dilation[from] : 1;
        out->n[PAD + d] = there ? c->pad_before[from] : 0;
        out->n[PAD_AFTER + d] = there ? c->pad_after[from] : 0;
    }
    out->n[23] = c->activation;
    out->n[24] = c->has_residual;
    out->n[25] = c->has_bias;
    out->n[26] = c->has_scale;
    out->n[27] = c->y.dims[1];
    out->n[28] = c->groups;
    out->n[30] = 1;
    out->f[0] = c->low;
    out->f[1] = c->high;
    out->f[2] = c->residual_scale;
    out->f[3] = 1;
    out->types[0] = c->x.dtype;
    out->types[1] = c->w.dtype;
    out->types[2] = c->y.dtype;
    out->types[3] = c->has_residual ? c->residual.dtype : c->y.dtype;
    out->n[31] = !c->has_scale; /* then the bias has y's type */
    return MLO_OK;
}

enum mlo_status cuda_gemm_kernel(const struct cuda_gemm *g, struct cuda_kernel_use *out,
                                 struct mlo_error *err)
{
    if (g->activation == CUDA_ACT_CLIP)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a product has no bounds to clip to");
    *out = (struct cuda_kernel_use){.kernel = cuda_kernel_find("matmul"),
                                    .n = {g->m, g->n, g->k, g->batch, g->ta, g->tb, g->lda, g->ldb, g->ldc,
                                          g->ldd, g->batch_a, g->batch_b, g->batch_c, g->batch_d, g->has_c,
                                          g->has_bias, g->has_scale, g->scale_per_column, g->activation},
                                    .f = {g->alpha, 0, 0, 1},
                                    .types = {g->a, g->b, g->d, g->c}};
    out->n[31] = !g->has_scale; /* then the bias has d's type */
    return MLO_OK;
}

enum mlo_status cuda_attention_kernel(const struct cuda_attention *a, struct cuda_kernel_use *out,
                                      struct mlo_error *err)
{
    const struct cuda_tensor *tensors[] = {&a->q, &a->k, &a->v, &a->o, &a->mask};
    memset(out, 0, sizeof *out);
    for (size_t t = 0; t < MLO_COUNT(tensors); t++) {
        if (t == 4 && !a->has_mask)
            break;
        if (tensors[t]->rank != 4)
            return mlo_error_set(err, MLO_EUNSUPPORTED, "attention's operands have four dimensions");
        for (int d = 0; d < 4; d++) /* of one element: no matter what its stride is */
            out->n[6 + 4 * t + (size_t)d] = tensors[t]->dims[d] == 1 ? 0 : tensors[t]->strides[d];
    }
    out->kernel = cuda_kernel_find("attention");
    out->n[0] = a->q.dims[0];
    out->n[1] = a->q.dims[1];
    out->n[2] = a->q.dims[2];
    out->n[3] = a->k.dims[2];
    out->n[4] = a->q.dims[3];
    out->n[5] = a->v.dims[3];
    out->n[26] = a->has_mask;
    out->n[27] = a->causal;
    out->f[0] = a->scale;
    out->types[0] = a->q.dtype;
    out->types[1] = a->has_mask ? a->mask.dtype : a->q.dtype;
    return MLO_OK;
}

enum mlo_status cuda_step_source(const struct cuda_schedule *schedule, const struct cuda_step *step,
                                 struct cuda_source *out, struct mlo_error *err)
{
    struct cuda_kernel_use use;
    enum mlo_status status = MLO_OK;
    if (step->kind == CUDA_STEP_CHAIN) {
        struct cuda_chain chain = *step->chain;
        for (int i = 0; i < chain.operand_count; i++)
            chain.operands[i].align_bytes = alignment(schedule, step->in[i]);
        for (int i = 0; i < chain.result_count; i++)
            chain.results[i].align_bytes = alignment(schedule, step->out[i]);
        return chain_source(&chain, step->replaces >= 0, out, err);
    }
    if (step->kind == CUDA_STEP_KERNEL)
        use = *step->kernel;
    else if (step->kind == CUDA_STEP_CONV)
        status = cuda_conv_kernel(step->conv, &use, err);
    else if (step->kind == CUDA_STEP_GEMM)
        status = cuda_gemm_kernel(step->gemm, &use, err);
    else if (step->kind == CUDA_STEP_ATTENTION)
        status = cuda_attention_kernel(step->attention, &use, err);
    else
        status = mlo_error_set(err, MLO_EINVAL, "a step that copies has no source");
    if (status != MLO_OK)
        return status;
    use.align_bytes = least_alignment(schedule, step);
    return kernel_source(&use, step->replaces >= 0, out, err);
}
