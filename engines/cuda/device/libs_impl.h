/* Private to engines/cuda/device: NVIDIA's libraries, none of which is ever linked. Each is opened when it is
 * first asked for, and kept. Where the headers are not installed, this one declares nothing of them.
 *
 * Places, in this order: the folders in $MLOPT_CUDA_LIBS (with colons between), $CUDA_HOME/lib64 and
 * $CUDA_PATH/lib64, /usr/local/cuda/lib64, where the system's loader looks, and the folders nvidia/.../lib of
 * Python's packages ($VIRTUAL_ENV, the user's, the system's). The driver is only sought in the first and by
 * the loader: a toolkit has a stub of it. MLOPT_CUDA_LIBS_ONLY=1: nowhere but in $MLOPT_CUDA_LIBS. */
#ifndef MLO_ENGINES_CUDA_DEVICE_LIBS_IMPL_H
#define MLO_ENGINES_CUDA_DEVICE_LIBS_IMPL_H

#include "engines/cuda/cuda_impl.h"

enum cuda_library { CUDA_LIB_DRIVER, CUDA_LIB_NVRTC, CUDA_LIB_CUDNN, CUDA_LIB_CUBLASLT, CUDA_LIBRARIES };

/* One line of what is known about a library, whether it could be opened or not. */
struct cuda_library_state {
    const char *name, *purpose; /* "cuDNN", "convolutions and attention" */
    bool usable;
    char *path; /* NULL: not found */
    char version[32];
    struct mlo_error problem; /* when it is not usable */
};
/* Opens it, if it was not tried yet. Never NULL; lives as long as the process. */
const struct cuda_library_state *cuda_library_open(enum cuda_library which);

#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>) && __has_include(<cublasLt.h>) && __has_include(<cudnn.h>)
#include <cublasLt.h>
#include <cuda.h>
#include <cudnn.h>
#include <nvrtc.h>

#define CUDA_DRIVER_FUNCTIONS(X)                                                                             \
    X(cuInit)                                                                                                \
    X(cuDriverGetVersion)                                                                                    \
    X(cuGetErrorName)                                                                                        \
    X(cuGetErrorString)                                                                                      \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceGetUuid)                                                                                       \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDeviceTotalMem)                                                                                      \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease)                                                                             \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxGetCurrent)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuFuncSetAttribute)                                                                                    \
    X(cuFuncGetAttribute)                                                                                    \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                           \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuMemAllocHost)                                                                                        \
    X(cuMemFreeHost)                                                                                         \
    X(cuMemGetInfo)                                                                                          \
    X(cuMemcpyHtoD)                                                                                          \
    X(cuMemcpyHtoDAsync)                                                                                     \
    X(cuMemcpyDtoHAsync)                                                                                     \
    X(cuMemcpyDtoDAsync)                                                                                     \
    X(cuMemsetD8Async)                                                                                       \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamDestroy)                                                                                       \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuStreamBeginCapture)                                                                                  \
    X(cuStreamEndCapture)                                                                                    \
    X(cuGraphInstantiateWithFlags)                                                                           \
    X(cuGraphLaunch)                                                                                         \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuGraphDestroy)                                                                                        \
    X(cuEventCreate)                                                                                         \
    X(cuEventDestroy)                                                                                        \
    X(cuEventRecord)                                                                                         \
    X(cuEventRecordWithFlags)                                                                                \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)                                                                                    \
    X(cuLaunchKernel)
#define CUDA_NVRTC_FUNCTIONS(X)                                                                              \
    X(nvrtcVersion)                                                                                          \
    X(nvrtcGetErrorString)                                                                                   \
    X(nvrtcCreateProgram)                                                                                    \
    X(nvrtcDestroyProgram)                                                                                   \
    X(nvrtcCompileProgram)                                                                                   \
    X(nvrtcGetProgramLogSize)                                                                                \
    X(nvrtcGetProgramLog)                                                                                    \
    X(nvrtcGetCUBINSize)                                                                                     \
    X(nvrtcGetCUBIN)                                                                                         \
    X(nvrtcGetNumSupportedArchs)                                                                             \
    X(nvrtcGetSupportedArchs)
#define CUDA_CUDNN_FUNCTIONS(X)                                                                              \
    X(cudnnGetVersion)                                                                                       \
    X(cudnnGetErrorString)                                                                                   \
    X(cudnnGetLastErrorString)                                                                               \
    X(cudnnCreate)                                                                                           \
    X(cudnnDestroy)                                                                                          \
    X(cudnnSetStream)                                                                                        \
    X(cudnnBackendCreateDescriptor)                                                                          \
    X(cudnnBackendDestroyDescriptor)                                                                         \
    X(cudnnBackendFinalize)                                                                                  \
    X(cudnnBackendSetAttribute)                                                                              \
    X(cudnnBackendGetAttribute)                                                                              \
    X(cudnnBackendExecute)
#define CUDA_CUBLASLT_FUNCTIONS(X)                                                                           \
    X(cublasLtGetVersion)                                                                                    \
    X(cublasLtGetStatusString)                                                                               \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatrixLayoutSetAttribute)                                                                      \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmulAlgoInit)                                                                                \
    X(cublasLtMatmulAlgoCheck)                                                                               \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                                  \
    X(cublasLtMatmulAlgoConfigSetAttribute)

/* The headers map names to versions of functions (cuMemAlloc to cuMemAlloc_v2): fields are expanded alike. */
#define CUDA_LIBRARY_FIELD(name) __typeof__ (&name)(name);
struct cuda_driver {
    CUDA_DRIVER_FUNCTIONS(CUDA_LIBRARY_FIELD)
};
struct cuda_nvrtc {
    CUDA_NVRTC_FUNCTIONS(CUDA_LIBRARY_FIELD)
};
struct cuda_cudnn {
    CUDA_CUDNN_FUNCTIONS(CUDA_LIBRARY_FIELD)
};
struct cuda_cublaslt {
    CUDA_CUBLASLT_FUNCTIONS(CUDA_LIBRARY_FIELD)
};
/* The functions of a library; MLO_EUNAVAILABLE with one clear line when it is not there. */
MLO_MUST_USE enum mlo_status cuda_get_driver(const struct cuda_driver **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_get_nvrtc(const struct cuda_nvrtc **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_get_cudnn(const struct cuda_cudnn **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_get_cublaslt(const struct cuda_cublaslt **out, struct mlo_error *err);

/* What a failed call of the driver becomes: MLO_ENOMEM, MLO_EUNAVAILABLE (no device) or MLO_EIO. */
MLO_MUST_USE enum mlo_status cuda_failed(CUresult result, const char *what, struct mlo_error *err);
/* MLO_TRY for a call of the driver; `what` says what was done with it. */
#define CUDA_TRY(call, what)                                                                                 \
    do {                                                                                                     \
        CUresult gpu_result = (call);                                                                        \
        if (gpu_result != CUDA_SUCCESS) {                                                                    \
            status = cuda_failed(gpu_result, what, err);                                                     \
            goto out;                                                                                        \
        }                                                                                                    \
    } while (0)
#endif

#endif
