#include <string.h>

#include "engines/cuda/kernels/host.h"
#include "engines/native_impl.h"

/* Only where the system's compiler (GCC, mostly) made this program too: two runtimes do not go together. */
#if defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define WITH_ADDRESS 1
#endif

/* Contraction is off: what a GPU fuses differs from it by less than one rounding. */
static const char *const flags[] = {"-std=gnu11",
                                    "-fPIC",
                                    "-shared",
                                    "-ffp-contract=off",
                                    "-fno-strict-aliasing",
                                    "-w",
#ifdef WITH_ADDRESS
                                    "-O0",
                                    "-g",
                                    "-fsanitize=address,undefined",
                                    "-fno-sanitize-recover=all",
#else
                                    "-O1",
#endif
                                    NULL};

bool cuda_host_possible(void)
{
    return mlo_native_possible();
}

enum mlo_status cuda_host_compile(const char *text, const char *entry, cuda_host_fn **out,
                                  struct mlo_error *err)
{
    if (!cuda_host_possible())
        return mlo_error_set(err, MLO_EUNAVAILABLE, "there is no C compiler that could make kernels");
    void *symbol = mlo_native_function(text, flags, entry);
    if (!symbol)
        return mlo_error_set(err, MLO_EINTERNAL, "the text of kernel '%s' does not compile for a CPU", entry);
    memcpy(out, &symbol, sizeof symbol);
    return MLO_OK;
}
