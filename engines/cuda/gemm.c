/* Which products cuBLASLt computes with all that belongs to them, known without it: the types that NVIDIA
 * documents for cublasLtMatmul. Of 16-bit operands these have float32 results too, whose bias is float32
 * (cublasLt.h: of the result's type but for float8); that pair was not run on a GPU yet. Of float8 there are
 * none of two float8_e5m2, and a float32 result has a bfloat16 bias. */
#include "engines/cuda/cuda_impl.h"

static bool is_half(enum mlo_dtype t)
{
    return t == MLO_FLOAT16 || t == MLO_BFLOAT16;
}

static bool is_fp8(enum mlo_dtype t)
{
    return t == MLO_FLOAT8E4M3FN || t == MLO_FLOAT8E5M2;
}

/* Its 8-bit kernels read both operands along k, in whole vectors of 16. */
static bool is_packed(const struct cuda_gemm *g)
{
    enum { VECTOR = 16 };
    return !g->ta && g->tb && g->k % VECTOR == 0 && g->n % VECTOR == 0 && g->lda % VECTOR == 0 &&
           g->ldb % VECTOR == 0 && g->ldd % VECTOR == 0;
}

bool cuda_gemm_fuses(const struct cuda_gemm *g)
{
    bool tanh_is_near = is_half(g->d); /* its GELU is the form by tanh, 5e-4 off at most */
    if (g->has_scale || (g->has_c && g->c != g->d))
        return false;
    if (g->a == MLO_INT8) /* sums as they are; scales, biases and the rest are a chain behind it */
        return g->b == MLO_INT8 && g->d == MLO_INT32 && is_packed(g) && g->alpha == 1 && !g->has_bias &&
               !g->has_c && g->activation == CUDA_ACT_NONE;
    if (g->activation != CUDA_ACT_NONE && g->activation != CUDA_ACT_RELU &&
        g->activation != CUDA_ACT_GELU_TANH && !(g->activation == CUDA_ACT_GELU && tanh_is_near))
        return false;
    if (is_fp8(g->a)) /* float32: bare sums */
        return is_fp8(g->b) && !(g->a == MLO_FLOAT8E5M2 && g->b == MLO_FLOAT8E5M2) && is_packed(g) &&
               (is_half(g->d) ||
                (g->d == MLO_FLOAT32 && !g->has_bias && !g->has_c && g->activation == CUDA_ACT_NONE));
    return g->a == g->b && (g->d == g->a || g->d == MLO_FLOAT32) && (is_half(g->a) || g->a == MLO_FLOAT32);
}
