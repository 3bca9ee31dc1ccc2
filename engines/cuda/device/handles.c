/* A program's handles of the libraries. */
#include "engines/cuda/device/device_impl.h"

enum mlo_status cuda_library_handles(struct mlo_program *program, enum cuda_work_kind kind,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    if (kind == CUDA_WORK_CUDNN && !program->dnn) {
        const struct cuda_cudnn *api;
        status = cuda_get_cudnn(&api, err);
        if (status != MLO_OK)
            return status;
        cudnnStatus_t result = api->cudnnCreate(&program->dnn);
        if (result == CUDNN_STATUS_SUCCESS)
            result = api->cudnnSetStream(program->dnn, program->stream);
        if (result != CUDNN_STATUS_SUCCESS)
            return mlo_error_set(err, MLO_EIO, "cuDNN does not start: %s", api->cudnnGetErrorString(result));
    }
    if (kind == CUDA_WORK_CUBLASLT && !program->lt) {
        const struct cuda_cublaslt *api;
        status = cuda_get_cublaslt(&api, err);
        if (status != MLO_OK)
            return status;
        cublasStatus_t result = api->cublasLtCreate(&program->lt);
        if (result != CUBLAS_STATUS_SUCCESS)
            return mlo_error_set(err, MLO_EIO, "cuBLASLt does not start: %s",
                                 api->cublasLtGetStatusString(result));
    }
    return MLO_OK;
}

void cuda_library_handles_free(struct mlo_program *program)
{
    const struct cuda_cudnn *dnn;
    const struct cuda_cublaslt *lt;
    if (program->dnn && cuda_get_cudnn(&dnn, NULL) == MLO_OK)
        dnn->cudnnDestroy(program->dnn);
    if (program->lt && cuda_get_cublaslt(&lt, NULL) == MLO_OK)
        lt->cublasLtDestroy(program->lt);
    program->dnn = NULL;
    program->lt = NULL;
}
