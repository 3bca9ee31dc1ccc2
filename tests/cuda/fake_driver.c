/* A library with the driver's functions, for machines without a GPU. Device memory is the process's own, each
 * block by itself (AddressSanitizer sees a kernel that leaves it); kernels run one thread after the other;
 * what is put on a stream happens at once, or, between the ends of a capture, when the graph is launched. */
#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#include "engines/cuda/kernels/host.h"
#include "tests/cuda/fake_cuda.h"

enum { PARAMETERS_MAX = 24 };

static struct mlo_buf text;
static size_t live_bytes;
static struct {
    char function[48];
    int nth;
    CUresult result;
} failing;

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mlo_buf_vprintf(&text, format, args);
    va_end(args);
    mlo_buf_putc(&text, '\n');
}

static CUresult answer(const char *function)
{
    size_t length = strlen(failing.function); /* the header may map it to a version of it */
    if (!length || strncmp(failing.function, function, length) != 0 ||
        (function[length] && strcmp(function + length, "_v2") != 0) || --failing.nth > 0)
        return CUDA_SUCCESS;
    failing.function[0] = 0;
    return failing.result;
}
#define MAY_FAIL()                                                                                           \
    do {                                                                                                     \
        CUresult wished = answer(__func__);                                                                  \
        if (wished != CUDA_SUCCESS)                                                                          \
            return wished;                                                                                   \
    } while (0)

/* --- what tests ask ------------------------------------------------------------------------------------- */

static const char *log_text(void)
{
    return mlo_buf_str(&text);
}

static void clear_all(void)
{
    mlo_buf_reset(&text);
    failing.function[0] = 0;
}

static void fail_next(const char *function, int nth, int result)
{
    snprintf(failing.function, sizeof failing.function, "%s", function);
    failing.nth = nth;
    failing.result = (CUresult)result;
}

static size_t live(void)
{
    return live_bytes;
}

extern const struct fake_cuda fake_cuda_table;
const struct fake_cuda fake_cuda_table = {log_text, clear_all, fail_next, live};

/* --- memory that is counted ----------------------------------------------------------------------------- */

struct block {
    size_t size;
    size_t padding[31]; /* what the driver gives is aligned to 256 */
};

static void *take(size_t size)
{
    struct block *b = NULL;
    if (posix_memalign((void **)&b, 256, sizeof *b + size) != 0)
        return NULL;
    b->size = size;
    live_bytes += size + 1;
    return b + 1;
}

static void give(void *p)
{
    struct block *b = (struct block *)p - 1;
    live_bytes -= b->size + 1;
    free(b);
}

/* --- the driver ----------------------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return getenv("FAKE_CUDA_NO_DEVICE") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    *name = result == CUDA_ERROR_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                                 : "CUDA_ERROR_OTHER";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **name)
{
    *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
            : result == CUDA_ERROR_NO_DEVICE   ? "no CUDA-capable device is detected"
                                               : "unspecified launch failure";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int index)
{
    *device = 7;
    return index == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)size, "Fake GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *id, CUdevice device)
{
    (void)device;
    for (int i = 0; i < (int)sizeof id->bytes; i++)
        id->bytes[i] = (char)(0xa0 + i);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    static const struct {
        CUdevice_attribute attribute;
        int value;
    } facts[] = {{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
                 {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
                 {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
                 {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
                 {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
                 {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20}};
    const char *sm = getenv("FAKE_CUDA_SM");
    int number = sm ? (int)strtol(sm, NULL, 10) : 90;
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? number / 10
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? number % 10
                                                                         : 1000;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i].attribute == attribute)
            *value = facts[i].value;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)80 << 30;
    return CUDA_SUCCESS;
}

static CUcontext primary, current;
static int holders; /* of the primary one */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)device;
    MAY_FAIL();
    if (!holders++)
        primary = take(1);
    *context = primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    if (--holders == 0)
        give(primary);
    current = holders ? current : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    MAY_FAIL();
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

/* --- modules -------------------------------------------------------------------------------------------- */

struct CUmod_st {
    char *text;
    char entry[64];
};

/* Section i of an image, whose parts may lie at any address. */
static Elf64_Shdr section_of(const unsigned char *bytes, const Elf64_Ehdr *head, int i)
{
    Elf64_Shdr section;
    memcpy(&section, bytes + head->e_shoff + (size_t)i * sizeof section, sizeof section);
    return section;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    const unsigned char *bytes = image;
    Elf64_Ehdr head;
    MAY_FAIL();
    if (memcmp(bytes, ELFMAG, SELFMAG) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&head, bytes, sizeof head);
    const char *names = (const char *)bytes + section_of(bytes, &head, head.e_shstrndx).sh_offset;
    for (int i = 0; i < head.e_shnum; i++) {
        Elf64_Shdr section = section_of(bytes, &head, i);
        if (strcmp(names + section.sh_name, FAKE_TEXT_SECTION) == 0) {
            *module = take(sizeof **module);
            (*module)->text = strdup((const char *)bytes + section.sh_offset);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult cuModuleUnload(CUmodule module)
{
    free(module->text);
    give(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    snprintf(module->entry, sizeof module->entry, "%s", name);
    *function = (CUfunction)(void *)module;
    note("module %s", name);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function;
    note("cuFuncSetAttribute %d %d", (int)attribute, value);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    (void)attribute, (void)function;
    *value = 0;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared)
{
    (void)function, (void)shared;
    *blocks = 2048 / (threads ? threads : 1) / 2;
    return CUDA_SUCCESS;
}

/* --- memory --------------------------------------------------------------------------------------------- */

CUresult cuMemAlloc(CUdeviceptr *out, size_t size)
{
    MAY_FAIL();
    note("cuMemAlloc %zu", size);
    void *p = take(size);
    memset(p, 0xa5, size); /* poisoned: what was never written shows */
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr p)
{
    give((void *)(uintptr_t)p);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocHost(void **out, size_t size)
{
    MAY_FAIL();
    note("cuMemAllocHost %zu", size);
    *out = take(size);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *p)
{
    give(p);
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *unused, size_t *total)
{
    *unused = *total = (size_t)80 << 30;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size)
{
    MAY_FAIL();
    note("constant %zu", size);
    memcpy((void *)(uintptr_t)to, from, size);
    return CUDA_SUCCESS;
}

/* --- streams, which may be captured --------------------------------------------------------------------- */

enum op_kind { OP_COPY, OP_SET, OP_LAUNCH, OP_EVENT };
struct op {
    enum op_kind kind;
    const char *name;
    void *to;
    const void *from;
    size_t size;
    int value;
    CUmodule module;
    unsigned grid[3], block[3];
    void *parameters[PARAMETERS_MAX];
};

struct CUgraph_st {
    struct op *ops;
    size_t count;
};
struct CUstream_st {
    CUgraph capturing;
    int number; /* by age */
};
struct CUevent_st {
    int recorded, stream;
};

static CUresult launch(const struct op *op)
{
    struct mlo_error err = {0};
    cuda_host_fn *fn;
    unsigned blocks = op->grid[0] * op->grid[1] * op->grid[2];
    if (cuda_host_compile(op->module->text, op->module->entry, &fn, &err) != MLO_OK) {
        note("cannot run %s: %s", op->module->entry, err.message);
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    fn(op->parameters, blocks, 0);
    return CUDA_SUCCESS;
}

static CUresult perform(const struct op *op)
{
    switch (op->kind) {
    case OP_COPY:
        note("%s %zu", op->name, op->size);
        memmove(op->to, op->from, op->size);
        break;
    case OP_SET:
        memset(op->to, op->value, op->size);
        break;
    case OP_LAUNCH:
        note("launch %s %u %u", op->module->entry, op->grid[0] * op->grid[1] * op->grid[2],
             op->block[0] * op->block[1] * op->block[2]);
        return launch(op);
    case OP_EVENT:
        ((CUevent)op->to)->recorded++;
        break;
    }
    return CUDA_SUCCESS;
}

static CUresult put(CUstream stream, const struct op *op)
{
    CUgraph g = stream->capturing;
    if (!g)
        return perform(op);
    g->ops = realloc(g->ops, (g->count + 1) * sizeof *g->ops);
    g->ops[g->count++] = *op;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    MAY_FAIL();
    return put(
        stream,
        &(struct op){
            .kind = OP_COPY, .name = "upload", .to = (void *)(uintptr_t)to, .from = from, .size = size});
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    MAY_FAIL();
    return put(
        stream,
        &(struct op){
            .kind = OP_COPY, .name = "download", .to = to, .from = (void *)(uintptr_t)from, .size = size});
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return put(stream, &(struct op){.kind = OP_COPY,
                                    .name = "copy",
                                    .to = (void *)(uintptr_t)to,
                                    .from = (void *)(uintptr_t)from,
                                    .size = size});
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream)
{
    return put(stream,
               &(struct op){.kind = OP_SET, .to = (void *)(uintptr_t)to, .value = value, .size = size});
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    struct op op = {
        .kind = OP_LAUNCH, .module = (CUmodule)(void *)function, .grid = {gx, gy, gz}, .block = {bx, by, bz}};
    (void)shared, (void)extra;
    MAY_FAIL();
    for (int i = 0; i < PARAMETERS_MAX && parameters[i]; i++)
        memcpy(&op.parameters[i], parameters[i], sizeof(void *));
    return put(stream, &op);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    MAY_FAIL();
    static int streams;
    *stream = take(sizeof **stream);
    (*stream)->capturing = NULL;
    (*stream)->number = streams++;
    return CUDA_SUCCESS;
}

/* What is put on a stream happens at once, so there is nothing to wait for but what was never put. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    MAY_FAIL();
    note("stream %d waits for %d", stream->number, event->stream);
    return event->recorded ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static void free_graph(CUgraph g)
{
    free(g->ops);
    give(g);
}

CUresult cuStreamDestroy(CUstream stream)
{
    give(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    MAY_FAIL();
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    MAY_FAIL();
    stream->capturing = take(sizeof *stream->capturing);
    *stream->capturing = (struct CUgraph_st){0};
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    *graph = stream->capturing;
    stream->capturing = NULL;
    CUresult wished = answer(__func__);
    if (wished != CUDA_SUCCESS) {
        free_graph(*graph);
        *graph = NULL;
    }
    return wished;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    MAY_FAIL();
    CUgraph copy = take(sizeof *copy);
    copy->count = graph->count;
    copy->ops = malloc((graph->count + 1) * sizeof *copy->ops);
    if (graph->count)
        memcpy(copy->ops, graph->ops, graph->count * sizeof *copy->ops);
    note("graph of %zu", graph->count);
    *out = (CUgraphExec)(void *)copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    const struct CUgraph_st *g = (const struct CUgraph_st *)(void *)exec;
    MAY_FAIL();
    note("replay of %zu", g->count);
    if (getenv("FAKE_CUDA_STREAMS"))
        note("on stream %d", stream->number);
    for (size_t i = 0; i < g->count; i++) {
        CUresult result = perform(&g->ops[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    free_graph((CUgraph)(void *)exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    free_graph(graph);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    MAY_FAIL();
    *event = take(sizeof **event);
    (*event)->recorded = 0;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    give(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    event->stream = stream->number;
    return put(stream, &(struct op){.kind = OP_EVENT, .to = event});
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return cuEventRecord(event, stream);
}

CUresult cuEventSynchronize(CUevent event)
{
    return event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    *ms = 0.25f;
    return start->recorded && end->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
