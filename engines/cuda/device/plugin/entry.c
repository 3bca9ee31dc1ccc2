/* The plugin's only symbol: a table of what it does. */
#include "engines/cuda/device/device_impl.h"
#include "engines/cuda/plugin_impl.h"

static const struct cuda_plugin table = {
    .abi = cuda_plugin_abi,
    .engine = &cuda_engine,
};

const struct cuda_plugin *mlopt_cuda_plugin(void);
const struct cuda_plugin *mlopt_cuda_plugin(void)
{
    return &table;
}
