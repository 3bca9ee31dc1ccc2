/* A library with cuBLASLt's functions that multiplies nothing: it tells what it is asked for, and has no
 * algorithm for the types that FAKE_LT_REFUSES names ("f8 f16 f32 i8"). The environment variable FAKE_LT_LOG
 * is a file to which each product that is described is written, a line each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

struct description {
    int compute, scale, ta, tb, epilogue, bias_type, fast;
    const void *bias;
};
struct layout {
    int type;
    unsigned long long rows, columns;
    long long leading;
};

/* The structs that the header leaves open hold a pointer to ours, a copy of `size` bytes of `of`. */
static void *outside(size_t outer_size, const void *of, size_t size)
{
    void *outer = calloc(1, outer_size), *ours = malloc(size);
    memcpy(ours, of, size);
    memcpy(outer, &ours, sizeof ours);
    return outer;
}

static void *inside(const void *outer)
{
    void *p;
    memcpy(&p, outer, sizeof p);
    return p;
}

static cublasStatus_t destroy(void *outer)
{
    free(inside(outer));
    free(outer);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "failure";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)calloc(1, 16);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    const struct description d = {.compute = compute, .scale = scale, .epilogue = 1, .bias_type = -1};
    *out = outside(sizeof **out, &d, sizeof d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    return destroy(d);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t outer,
                                              cublasLtMatmulDescAttributes_t which, const void *value,
                                              size_t size)
{
    struct description *d = inside(outer);
    const struct {
        cublasLtMatmulDescAttributes_t which;
        void *to;
        size_t size;
    } fields[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &d->ta, 4},
                  {CUBLASLT_MATMUL_DESC_TRANSB, &d->tb, 4},
                  {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, 4},
                  {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &d->bias_type, 4},
                  {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, sizeof d->bias}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].which == which && fields[i].size == size) {
            memcpy(fields[i].to, value, size);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading)
{
    const struct layout l = {type, rows, columns, leading};
    *out = outside(sizeof **out, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    return destroy(l);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t which, const void *value,
                                                size_t size)
{
    (void)l, (void)which, (void)value, (void)size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = calloc(1, sizeof **out);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t size)
{
    (void)p, (void)which, (void)value, (void)size;
    return CUBLAS_STATUS_SUCCESS;
}

static const char *type_name(int type)
{
    return type == CUDA_R_8F_E4M3 ? "f8"
           : type == CUDA_R_16F   ? "f16"
           : type == CUDA_R_32F   ? "f32"
           : type == CUDA_R_8I    ? "i8"
           : type == CUDA_R_32I   ? "i32"
                                  : "other";
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t outer,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int max,
                                              cublasLtMatmulHeuristicResult_t *out, int *count)
{
    const struct description *m = inside(outer);
    const struct layout *la = inside(a), *lb = inside(b), *lc = inside(c), *ld = inside(d);
    const char *refuses = getenv("FAKE_LT_REFUSES"), *path = getenv("FAKE_LT_LOG");
    FILE *log = path ? fopen(path, "ae") : NULL;
    (void)handle, (void)p, (void)max;
    if (log) {
        fprintf(log,
                "%s%s x %s%s + %s -> %s compute %d epilogue %d bias %s: %llux%llu %llux%llu %llux%llu ld "
                "%lld %lld %lld\n",
                type_name(la->type), m->ta ? "^T" : "", type_name(lb->type), m->tb ? "^T" : "",
                type_name(lc->type), type_name(ld->type), m->compute == CUBLAS_COMPUTE_32F ? 32 : m->compute,
                m->epilogue, m->bias ? type_name(m->bias_type) : "none", la->rows, la->columns, lb->rows,
                lb->columns, ld->rows, ld->columns, la->leading, lb->leading, ld->leading);
        fclose(log);
    }
    *count = 0;
    if (refuses && strstr(refuses, type_name(la->type)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute,
                                      cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                      cudaDataType_t c, cudaDataType_t d, int id, cublasLtMatmulAlgo_t *out)
{
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d, (void)id, (void)out;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t m,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    (void)handle, (void)m, (void)a, (void)b, (void)c, (void)d, (void)algorithm, (void)result;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t which, void *value,
                                                    size_t size, size_t *written)
{
    (void)algorithm, (void)which, (void)value, (void)size, (void)written;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t which,
                                                    const void *value, size_t size)
{
    (void)algorithm, (void)which, (void)value, (void)size;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t m, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    (void)handle, (void)m, (void)alpha, (void)A, (void)a, (void)B, (void)b, (void)beta, (void)C, (void)c,
        (void)D, (void)d, (void)algorithm, (void)workspace, (void)workspace_bytes, (void)stream;
    return CUBLAS_STATUS_SUCCESS;
}
