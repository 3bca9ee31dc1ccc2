/* Kernels of the cuda engine on a CPU: the very text that NVRTC compiles, compiled by the system's compiler,
 * one thread of one block after the other. For tests, and for devices that are not there. */
#ifndef MLO_ENGINES_CUDA_KERNELS_HOST_H
#define MLO_ENGINES_CUDA_KERNELS_HOST_H

#include "engines/cuda/cuda_impl.h"

/* parameters: pointers, as the kernel has them; blocks: of the grid; backwards: threads take turns last to
 * first, which must not change a bit of the results. */
typedef void cuda_host_fn(void *const *parameters, unsigned blocks, int backwards);

/* Whether kernels can be compiled on this machine. */
bool cuda_host_possible(void);
/* The kernel `entry` of a source's text. In builds with AddressSanitizer (of GCC) it is compiled with it too,
 * and with UBSan. MLO_EUNAVAILABLE: there is no compiler; MLO_EINTERNAL: it does not compile. Borrowed, for
 * as long as the process lives. */
MLO_MUST_USE enum mlo_status cuda_host_compile(const char *text, const char *entry, cuda_host_fn **out,
                                               struct mlo_error *err);

#endif
