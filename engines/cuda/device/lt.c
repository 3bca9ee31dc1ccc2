/* Matrix products by cuBLASLt. It knows column-major matrices: a row-major product D = A B is D' = B' A'
 * there, so that its first operand is our b, and its rows are our columns (which its bias goes along). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"
#include "engines/cuda/tune/tune.h"

enum { ALGORITHMS_MAX = 64, OPERANDS = 4 };

struct cuda_lt_program {
    const struct cuda_cublaslt *api;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t layouts[OPERANDS]; /* b, a, c, d */
    cublasLtMatmulAlgo_t algorithm;
    CUdeviceptr a, b, c, d;
    float alpha, beta;
    int32_t integer_alpha, integer_beta;
    bool integer;
};

void cuda_lt_free(struct cuda_lt_program *p)
{
    if (!p)
        return;
    for (int i = 0; i < OPERANDS; i++)
        if (p->layouts[i])
            p->api->cublasLtMatrixLayoutDestroy(p->layouts[i]);
    if (p->description)
        p->api->cublasLtMatmulDescDestroy(p->description);
    free(p);
}

static const struct {
    enum mlo_dtype dtype;
    cudaDataType_t type;
} types[] = {
    {MLO_FLOAT32, CUDA_R_32F}, {MLO_FLOAT16, CUDA_R_16F},          {MLO_BFLOAT16, CUDA_R_16BF},
    {MLO_INT8, CUDA_R_8I},     {MLO_FLOAT8E4M3FN, CUDA_R_8F_E4M3}, {MLO_FLOAT8E5M2, CUDA_R_8F_E5M2},
    {MLO_INT32, CUDA_R_32I},
};

static bool type_of(enum mlo_dtype dtype, cudaDataType_t *out)
{
    for (size_t i = 0; i < MLO_COUNT(types); i++)
        if (types[i].dtype == dtype) {
            *out = types[i].type;
            return true;
        }
    return false;
}

static enum mlo_status failed(const struct cuda_cublaslt *api, cublasStatus_t result, struct mlo_error *err)
{
    enum mlo_status status = result == CUBLAS_STATUS_NOT_SUPPORTED || result == CUBLAS_STATUS_ARCH_MISMATCH
                                 ? MLO_EUNSUPPORTED
                             : result == CUBLAS_STATUS_ALLOC_FAILED ? MLO_ENOMEM
                                                                    : MLO_EIO;
    return mlo_error_set(err, status, "cuBLASLt: %s", api->cublasLtGetStatusString(result));
}

#define LT(call)                                                                                             \
    do {                                                                                                     \
        cublasStatus_t lt_result = (call);                                                                   \
        if (lt_result != CUBLAS_STATUS_SUCCESS) {                                                            \
            status = failed(api, lt_result, err);                                                            \
            goto out;                                                                                        \
        }                                                                                                    \
    } while (0)

/* --- descriptions --------------------------------------------------------------------------------------- */

/* `rows` x `columns` as cuBLASLt sees it, its columns `leading` elements apart. */
static enum mlo_status layout(const struct cuda_cublaslt *api, enum mlo_dtype dtype, int64_t rows,
                              int64_t columns, int64_t leading, int64_t batch, int64_t stride,
                              cublasLtMatrixLayout_t *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    cudaDataType_t type;
    int32_t count = (int32_t)batch;
    if (!type_of(dtype, &type) || batch > INT32_MAX)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "cuBLASLt does not multiply %s", mlo_dtype_name(dtype));
    LT(api->cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, leading));
    if (batch > 1) {
        LT(api->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                 sizeof count));
        LT(api->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                 sizeof stride));
    }
out:
    return status;
}

static const struct {
    enum cuda_activation activation;
    cublasLtEpilogue_t plain, with_bias;
} epilogues[] = {
    {CUDA_ACT_NONE, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS},
    {CUDA_ACT_RELU, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS},
    {CUDA_ACT_GELU, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
    {CUDA_ACT_GELU_TANH, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
};

static enum mlo_status describe(struct cuda_lt_program *p, const struct cuda_step *step, CUdeviceptr bias,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct cuda_cublaslt *api = p->api;
    const struct cuda_gemm *g = step->gemm;
    cublasComputeType_t sums = p->integer                             ? CUBLAS_COMPUTE_32I
                               : strcmp(step->precision, "tf32") == 0 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                      : CUBLAS_COMPUTE_32F;
    cublasOperation_t first = g->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = g->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT(api->cublasLtMatmulDescCreate(&p->description, sums, p->integer ? CUDA_R_32I : CUDA_R_32F));
    LT(api->cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                           sizeof first));
    LT(api->cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                           sizeof second));
    for (size_t i = 0; i < MLO_COUNT(epilogues); i++) {
        if (epilogues[i].activation != g->activation)
            continue;
        cublasLtEpilogue_t e = g->has_bias ? epilogues[i].with_bias : epilogues[i].plain;
        LT(api->cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e));
    }
    if (g->has_bias) {
        void *pointer = (void *)(uintptr_t)bias;
        cudaDataType_t type;
        if (type_of(g->d, &type))
            LT(api->cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                                   sizeof type));
        LT(api->cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer,
                                               sizeof pointer));
    }
    MLO_TRY(layout(api, g->b, g->tb ? g->k : g->n, g->tb ? g->n : g->k, g->ldb, g->batch, g->batch_b,
                   &p->layouts[0], err));
    MLO_TRY(layout(api, g->a, g->ta ? g->m : g->k, g->ta ? g->k : g->m, g->lda, g->batch, g->batch_a,
                   &p->layouts[1], err));
    MLO_TRY(layout(api, g->has_c ? g->c : g->d, g->n, g->m, g->has_c ? g->ldc : g->ldd, g->batch,
                   g->has_c ? g->batch_c : g->batch_d, &p->layouts[2], err));
    MLO_TRY(layout(api, g->d, g->n, g->m, g->ldd, g->batch, g->batch_d, &p->layouts[3], err));
out:
    return status;
}

static uint32_t alignment(CUdeviceptr at)
{
    enum { MOST = 256 };
    uint64_t low = at & (~at + 1);
    return at == 0 || low > MOST ? MOST : (uint32_t)low;
}

static enum mlo_status new_program(const struct cuda_step *step, const CUdeviceptr *at,
                                   struct cuda_lt_program **out, struct mlo_error *err)
{
    const struct cuda_gemm *g = step->gemm;
    enum mlo_status status;
    struct cuda_lt_program *p = calloc(1, sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    if (!cuda_gemm_fuses(g)) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "cuBLASLt has no such product");
        goto out;
    }
    MLO_TRY(cuda_get_cublaslt(&p->api, err));
    p->integer = g->a == MLO_INT8;
    p->a = at[0];
    p->b = at[1];
    p->d = at[step->in_count];
    p->c = g->has_c ? at[2] : p->d;
    p->alpha = g->alpha;
    p->beta = g->has_c ? 1.0f : 0.0f;
    p->integer_alpha = 1;
    MLO_TRY(describe(p, step, g->has_bias ? at[2 + g->has_c] : 0, err));
    *out = p;
    p = NULL;
out:
    cuda_lt_free(p);
    return status;
}

/* --- algorithms ----------------------------------------------------------------------------------------- */

static enum mlo_status advised(cublasLtHandle_t handle, const struct cuda_lt_program *p, size_t max_workspace,
                               int max, cublasLtMatmulHeuristicResult_t *out, int *count,
                               struct mlo_error *err)
{
    static const cublasLtMatmulPreferenceAttributes_t names[OPERANDS] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const CUdeviceptr at[OPERANDS] = {p->b, p->a, p->c, p->d};
    const struct cuda_cublaslt *api = p->api;
    enum mlo_status status = MLO_OK;
    cublasLtMatmulPreference_t preference = NULL;
    LT(api->cublasLtMatmulPreferenceCreate(&preference));
    LT(api->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &max_workspace, sizeof max_workspace));
    for (int i = 0; i < OPERANDS; i++) {
        uint32_t bytes = alignment(at[i]);
        LT(api->cublasLtMatmulPreferenceSetAttribute(preference, names[i], &bytes, sizeof bytes));
    }
    LT(api->cublasLtMatmulAlgoGetHeuristic(handle, p->description, p->layouts[0], p->layouts[1],
                                           p->layouts[2], p->layouts[3], preference, max, out, count));
    if (*count < 1)
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "cuBLASLt has no algorithm for this product");
out:
    if (preference)
        api->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

enum mlo_status cuda_lt_load(cublasLtHandle_t handle, const struct cuda_step *step,
                             const struct cuda_work *work, const CUdeviceptr *at, size_t max_workspace_bytes,
                             struct cuda_lt_program **out, size_t *workspace_bytes, struct mlo_error *err)
{
    struct cuda_lt_program *p = NULL;
    cublasLtMatmulHeuristicResult_t result = {0};
    int count = 0;
    enum mlo_status status = new_program(step, at, &p, err);
    if (status != MLO_OK)
        return status;
    if (work->image_bytes == sizeof p->algorithm) {
        memcpy(&p->algorithm, work->image, sizeof p->algorithm);
        if (p->api->cublasLtMatmulAlgoCheck(handle, p->description, p->layouts[0], p->layouts[1],
                                            p->layouts[2], p->layouts[3], &p->algorithm,
                                            &result) == CUBLAS_STATUS_SUCCESS &&
            result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= max_workspace_bytes)
            count = 1;
    }
    if (!count) {
        MLO_TRY(advised(handle, p, max_workspace_bytes, 1, &result, &count, err));
        p->algorithm = result.algo;
    }
    *workspace_bytes = result.workspaceSize;
    *out = p;
    p = NULL;
out:
    cuda_lt_free(p);
    return status;
}

enum mlo_status cuda_lt_run(cublasLtHandle_t handle, struct cuda_lt_program *p, CUdeviceptr workspace,
                            size_t workspace_bytes, CUstream stream, struct mlo_error *err)
{
    const void *alpha = p->integer ? (const void *)&p->integer_alpha : &p->alpha;
    const void *beta = p->integer ? (const void *)&p->integer_beta : &p->beta;
    cublasStatus_t result = p->api->cublasLtMatmul(
        handle, p->description, alpha, (const void *)(uintptr_t)p->b, p->layouts[0],
        (const void *)(uintptr_t)p->a, p->layouts[1], beta, (const void *)(uintptr_t)p->c, p->layouts[2],
        (void *)(uintptr_t)p->d, p->layouts[3], &p->algorithm, (void *)(uintptr_t)workspace, workspace_bytes,
        stream);
    return result == CUBLAS_STATUS_SUCCESS ? MLO_OK : failed(p->api, result, err);
}

/* --- the tuner's ---------------------------------------------------------------------------------------- */

static json_t *way_of(const cublasLtMatmulAlgo_t *algorithm)
{
    json_t *words = json_array();
    for (size_t i = 0; i < MLO_COUNT(algorithm->data); i++)
        json_array_append_new(words, json_integer((json_int_t)algorithm->data[i]));
    return json_pack("{s:s, s:o}", "library", "cublaslt", "algo", words);
}

enum mlo_status cuda_lt_ways(cublasLtHandle_t handle, const struct cuda_step *step, const CUdeviceptr *at,
                             size_t max_workspace_bytes, int max, json_t *ways, struct mlo_error *err)
{
    cublasLtMatmulHeuristicResult_t results[ALGORITHMS_MAX];
    struct cuda_lt_program *p = NULL;
    int count = 0;
    enum mlo_status status = new_program(step, at, &p, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(advised(handle, p, max_workspace_bytes, MLO_MIN(max, ALGORITHMS_MAX), results, &count, err));
    for (int i = 0; i < count; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && !cuda_ways_add(ways, way_of(&results[i].algo))) {
            status = mlo_error_nomem(err);
            goto out;
        }
out:
    cuda_lt_free(p);
    return status;
}

enum mlo_status cuda_lt_work(const json_t *way, struct cuda_work *out, struct mlo_error *err)
{
    const json_t *words = json_object_get(way, "algo");
    cublasLtMatmulAlgo_t algorithm = {0};
    if (json_array_size(words) != MLO_COUNT(algorithm.data))
        return mlo_error_set(err, MLO_EFORMAT, "a way of cuBLASLt has no algorithm");
    for (size_t i = 0; i < MLO_COUNT(algorithm.data); i++)
        algorithm.data[i] = (uint64_t)json_integer_value(json_array_get(words, i));
    *out = (struct cuda_work){.kind = CUDA_WORK_CUBLASLT, .image_bytes = sizeof algorithm, .owned = true};
    out->image = malloc(sizeof algorithm);
    out->choice = json_dumps(way, JSON_COMPACT | JSON_SORT_KEYS);
    if (!out->image || !out->choice) {
        cuda_work_clear(out);
        return mlo_error_nomem(err);
    }
    memcpy(out->image, &algorithm, sizeof algorithm);
    return MLO_OK;
}
