/* Kernels of the cuda engine on this machine's CPU, and under NVRTC where that is installed. */
#ifndef MLO_TEST_CUDA_HELPERS_H
#define MLO_TEST_CUDA_HELPERS_H

#include <dlfcn.h>
#include <elf.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engines/cuda/kernels/host.h"
#include "tests/cm.h"

static inline uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}
static inline int below(uint32_t *seed, int n)
{
    return (int)(next_random(seed) % (uint32_t)n);
}
static inline float unit_random(uint32_t *seed) /* in [-1, 1) */
{
    return (float)next_random(seed) / 8388608.0f - 1.0f;
}

static inline bool no_compiler(void)
{
    if (cuda_host_possible())
        return false;
    print_message("skipped: there is no C compiler, or no private folder for what it makes\n");
    return true;
}

/* --- on the CPU ----------------------------------------------------------------------------------------- */

/* Runs a source with threads in their order and in the reverse one: the results must be the same bits.
 * `sizes`: bytes of each parameter; the last `written` of them are results, which come in as their bytes are.
 */
static inline void run_source(const struct cuda_source *source, void *const *parameters, const size_t *sizes,
                              int count, int written)
{
    struct mlo_error err = {0};
    cuda_host_fn *fn = NULL;
    void *again[CUDA_STEP_SLOTS * 2];
    if (cuda_host_compile(source->text, source->entry, &fn, &err) != MLO_OK)
        fail_msg("%s\n%s", err.message, source->text);
    memcpy(again, parameters, (size_t)count * sizeof *again);
    for (int i = count - written; i < count; i++) {
        again[i] = malloc(sizes[i] + 1);
        memcpy(again[i], parameters[i], sizes[i]);
    }
    fn(parameters, source->grid[0], 0);
    fn(again, source->grid[0], 1);
    for (int i = count - written; i < count; i++) {
        if (memcmp(again[i], parameters[i], sizes[i]) != 0)
            fail_msg("result %d depends on the order of threads:\n%s", i - count + written, source->text);
        free(again[i]);
    }
}

/* --- NVRTC ---------------------------------------------------------------------------------------------- */

struct nvrtc {
    void *library;
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*log_size)(void *, size_t *);
    int (*log)(void *, char *);
    int (*size)(void *, size_t *);
    int (*get)(void *, char *);
    int (*destroy)(void **);
};

static inline bool nvrtc_open(struct nvrtc *n)
{
    static const char *const names[] = {"libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.13",
                                        "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so", NULL};
    memset(n, 0, sizeof *n);
    for (int i = 0; names[i] && !n->library; i++)
        n->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        print_message("skipped: there is no NVRTC on this machine\n");
        return false;
    }
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"nvrtcCreateProgram", &n->create},       {"nvrtcCompileProgram", &n->compile},
                   {"nvrtcGetProgramLogSize", &n->log_size}, {"nvrtcGetProgramLog", &n->log},
                   {"nvrtcGetCUBINSize", &n->size},          {"nvrtcGetCUBIN", &n->get},
                   {"nvrtcDestroyProgram", &n->destroy}};
    for (size_t i = 0; i < MLO_COUNT(symbols); i++) {
        void *symbol = dlsym(n->library, symbols[i].name);
        assert_non_null(symbol);
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}

/* Registers, and bytes of the stack: what did not fit, or is indexed. */
static inline void cubin_resources(const char *cubin, unsigned *registers, unsigned *frame)
{
    const Elf64_Ehdr *head = (const void *)cubin;
    const Elf64_Shdr *sections = (const void *)(cubin + head->e_shoff);
    const char *names = cubin + sections[head->e_shstrndx].sh_offset;
    *registers = *frame = 0;
    for (int i = 0; i < head->e_shnum; i++) {
        const unsigned char *p = (const void *)(cubin + sections[i].sh_offset),
                            *end = p + sections[i].sh_size;
        if (strcmp(names + sections[i].sh_name, ".nv.info") != 0)
            continue;
        while (p < end) {
            unsigned size = p[0] == 4 ? (unsigned)(p[2] | p[3] << 8) : 0, value = 0;
            if (size >= 8)
                memcpy(&value, p + 8, 4);
            if (p[0] == 4 && p[1] == 0x2f)
                *registers = MLO_MAX(*registers, value);
            if (p[0] == 4 && p[1] == 0x11)
                *frame = MLO_MAX(*frame, value);
            p += 4 + size;
        }
    }
}

/* NVRTC must take the source for this architecture, within its budget and without spilling. */
static inline void check_nvrtc(const struct nvrtc *n, const struct cuda_source *source, int sm,
                               const char *what)
{
    char arch[32];
    snprintf(arch, sizeof arch, "-arch=sm_%d", sm);
    const char *options[] = {arch, "-std=c++17"};
    void *program = NULL;
    size_t size = 0;
    unsigned registers = 0, frame = 0;
    assert_int_equal(n->create(&program, source->text, "kernel.cu", 0, NULL, NULL), 0);
    int result = n->compile(program, 2, options);
    if (result != 0) {
        n->log_size(program, &size);
        char *log = calloc(1, size + 1);
        n->log(program, log);
        fail_msg("%s, sm_%d: %s\n%s", what, sm, log, source->text);
    }
    assert_int_equal(n->size(program, &size), 0);
    char *cubin = malloc(size);
    n->get(program, cubin);
    cubin_resources(cubin, &registers, &frame);
    if (getenv("MLOPT_CUDA_SHOW"))
        print_message("%s sm_%d: %u registers of %u, frame %u, cubin %zu bytes\n", what, sm, registers,
                      source->register_budget, frame, size);
    if (registers == 0 || registers > source->register_budget || frame)
        fail_msg("%s, sm_%d: %u registers of %u, %u bytes of stack\n%s", what, sm, registers,
                 source->register_budget, frame, source->text);
    free(cubin);
    n->destroy(&program);
}

#endif
