/* What the tests of the cuda engine's device side have in common: libraries that stand in for NVIDIA's, found
 * through the environment, which must be set before the first of them is opened. */
#ifndef MLO_TEST_CUDA_CASE_H
#define MLO_TEST_CUDA_CASE_H

#include <dlfcn.h>

#include "engines/cuda/device/device_impl.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/unit/engines/helpers.h"

static char *case_folder;

/* Libraries are sought in `libraries` only; kernels are cached in a folder of this process. */
static inline void case_begin(const char *libraries)
{
    struct mlo_error problem = {0};
    if (mlo_fs_tempdir(NULL, "cuda-test", &case_folder, &problem) != MLO_OK)
        exit(1);
    setenv("MLOPT_CUDA_LIBS", libraries, 1);
    setenv("MLOPT_CUDA_LIBS_ONLY", "1", 1);
    setenv("XDG_CACHE_HOME", case_folder, 1);
}

static inline int case_end(int result)
{
    mlo_fs_remove_tree(case_folder);
    free(case_folder);
    return result;
}

#endif
