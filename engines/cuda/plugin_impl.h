/* Private to engines/: what libmlopt_engine_cuda.so gives the program that opens it. The two have copies of
 * base/, graph/ and the engines' common parts of their own, so both must be of one build: `abi` is a digest
 * of the headers that they have in common. */
#ifndef MLO_ENGINES_CUDA_PLUGIN_IMPL_H
#define MLO_ENGINES_CUDA_PLUGIN_IMPL_H

#include "engines/engines.h"

extern const char cuda_plugin_abi[];

struct cuda_plugin {
    const char *abi;                 /* must stay first, whatever changes */
    const struct mlo_engine *engine; /* with all members for a device but `time` */
};

/* The only symbol that the plugin exports. */
#define CUDA_PLUGIN_ENTRY "mlopt_cuda_plugin"
typedef const struct cuda_plugin *cuda_plugin_fn(void);

#endif
