/* What tests ask of the driver that stands in for NVIDIA's (fake_driver.c): it runs own kernels on the CPU,
 * by the C form of their text, records what is asked of it, and fails on demand. The image of a kernel is a
 * real ELF file for EM_CUDA in which the text lies in a section of its own (fake_nvrtc.c). */
#ifndef MLO_TEST_FAKE_CUDA_H
#define MLO_TEST_FAKE_CUDA_H

#include <stddef.h>

#define FAKE_TEXT_SECTION ".mlopt.text"

/* Exported by the driver; found by dlsym. */
struct fake_cuda {
    const char *(*log)(void); /* a line a call: "cuMemAlloc 1024", "launch chain_0 4 256", "graph begin", … */
    void (*clear)(void);      /* forgets the log and what was to fail */
    void (*fail_next)(const char *function, int nth, int result); /* the nth call from now on answers that */
    size_t (*live)(
        void); /* device memory, host memory, modules, graphs, events, streams that are not freed */
};
#define FAKE_CUDA_SYMBOL "fake_cuda_table"

#endif
