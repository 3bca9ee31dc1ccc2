#include "engines/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of its interface that is used. Every function returns 0 when it could. */
#define FUNCTIONS(X)                                                                                         \
    X(init, "nvmlInit_v2", (void), true)                                                                     \
    X(shutdown, "nvmlShutdown", (void), true)                                                                \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *count), true)                                               \
    X(handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned index, void **device), true)                        \
    X(handle_by_uuid, "nvmlDeviceGetHandleByUUID", (const char *uuid, void **device), true)                  \
    X(name, "nvmlDeviceGetName", (void *device, char *name, unsigned size), true)                            \
    X(uuid, "nvmlDeviceGetUUID", (void *device, char *uuid, unsigned size), true)                            \
    X(capability, "nvmlDeviceGetCudaComputeCapability", (void *device, int *major, int *minor), true)        \
    X(driver, "nvmlSystemGetDriverVersion", (char *text, unsigned size), false)                              \
    X(memory, "nvmlDeviceGetMemoryInfo", (void *device, unsigned long long *total_free_used), false)         \
    X(bus, "nvmlDeviceGetMemoryBusWidth", (void *device, unsigned *bits), false)                             \
    X(clock, "nvmlDeviceGetClockInfo", (void *device, int kind, unsigned *mhz), false)                       \
    X(max_clock, "nvmlDeviceGetMaxClockInfo", (void *device, int kind, unsigned *mhz), false)                \
    X(power, "nvmlDeviceGetPowerUsage", (void *device, unsigned *milliwatts), false)                         \
    X(energy, "nvmlDeviceGetTotalEnergyConsumption", (void *device, unsigned long long *millijoules), false) \
    X(temperature, "nvmlDeviceGetTemperature", (void *device, int sensor, unsigned *celsius), false)         \
    X(utilization, "nvmlDeviceGetUtilizationRates", (void *device, unsigned *gpu_memory), false)             \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", (void *device, unsigned long long *bits), false)

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 };

struct mlo_nvml {
    void *library;
    bool started;
    char driver_version[80];
#define SLOT(name, symbol, arguments, needed) int(*name) arguments;
    FUNCTIONS(SLOT)
#undef SLOT
};

static enum mlo_status load(struct mlo_nvml *n, const char *library, struct mlo_error *err)
{
    const struct {
        const char *symbol;
        void *slot;
        bool needed;
    } functions[] = {
#define ROW(name, symbol, arguments, needed) {symbol, &n->name, needed},
        FUNCTIONS(ROW)
#undef ROW
    };
    n->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!n->library)
        return mlo_error_set(err, MLO_EUNAVAILABLE, "there is no NVIDIA driver: %.200s is not here", library);
    for (size_t i = 0; i < MLO_COUNT(functions); i++) {
        void *found = dlsym(n->library, functions[i].symbol);
        if (!found && functions[i].needed)
            return mlo_error_set(err, MLO_EUNAVAILABLE, "%.200s is too old: it has no %s", library,
                                 functions[i].symbol);
        memcpy(functions[i].slot, &found, sizeof found);
    }
    int code = n->init();
    if (code != 0)
        return mlo_error_set(err, MLO_EUNAVAILABLE,
                             "the NVIDIA driver does not answer (nvmlInit: %d); `nvidia-smi` says more",
                             code);
    n->started = true;
    return MLO_OK;
}

enum mlo_status mlo_nvml_open(const char *library, struct mlo_nvml **out, struct mlo_error *err)
{
    struct mlo_nvml *n = calloc(1, sizeof *n);
    *out = NULL;
    if (!n)
        return mlo_error_nomem(err);
    enum mlo_status status = load(n, library ? library : "libnvidia-ml.so.1", err);
    if (status == MLO_OK && n->driver)
        n->driver(n->driver_version, sizeof n->driver_version);
    if (status != MLO_OK) {
        mlo_nvml_close(n);
        return status;
    }
    *out = n;
    return MLO_OK;
}

void mlo_nvml_close(struct mlo_nvml *n)
{
    if (!n)
        return;
    if (n->started)
        n->shutdown();
    if (n->library)
        dlclose(n->library);
    free(n);
}

const char *mlo_nvml_driver(const struct mlo_nvml *n)
{
    return n->driver_version;
}

static bool read_info(struct mlo_nvml *n, unsigned index, struct mlo_gpu_info *out)
{
    void *device;
    int major = 0, minor = 0;
    unsigned long long memory[3] = {0};
    *out = (struct mlo_gpu_info){0};
    if (n->handle(index, &device) != 0 || n->name(device, out->name, sizeof out->name) != 0 ||
        n->uuid(device, out->uuid, sizeof out->uuid) != 0 || n->capability(device, &major, &minor) != 0)
        return false;
    out->sm = major * 10 + minor;
    if (n->memory && n->memory(device, memory) == 0)
        out->memory_bytes = memory[0];
    if (!n->bus || n->bus(device, &out->memory_bus_bits) != 0)
        out->memory_bus_bits = 0;
    if (!n->max_clock || n->max_clock(device, CLOCK_SM, &out->max_sm_mhz) != 0)
        out->max_sm_mhz = 0;
    if (!n->max_clock || n->max_clock(device, CLOCK_MEMORY, &out->max_memory_mhz) != 0)
        out->max_memory_mhz = 0;
    return true;
}

void mlo_gpus_visible(const char *value, const char *const *uuids, size_t count, bool *visible)
{
    if (!value) {
        for (size_t i = 0; i < count; i++)
            visible[i] = true;
        return;
    }
    while (*value) {
        size_t length = strcspn(value, ","), found = count;
        char word[96];
        int64_t number;
        snprintf(word, sizeof word, "%.*s", (int)length, value);
        for (size_t i = 0; i < count && *word && found == count; i++)
            if (strncmp(uuids[i], word, strlen(word)) == 0)
                found = i;
        if (mlo_str_to_i64(word, &number))
            found = number >= 0 && (uint64_t)number < count ? (size_t)number : count;
        if (found == count)
            return;
        visible[found] = true;
        value += length + (value[length] == ',');
    }
}

size_t mlo_nvml_gpus(struct mlo_nvml *n, struct mlo_gpu_info *out, size_t max)
{
    struct mlo_gpu_info all[MLO_NVML_GPUS_MAX];
    const char *uuids[MLO_NVML_GPUS_MAX];
    bool visible[MLO_NVML_GPUS_MAX] = {false};
    unsigned devices = 0;
    size_t count = 0, kept = 0;
    if (n->count(&devices) != 0)
        return 0;
    for (unsigned i = 0; i < devices && count < MLO_NVML_GPUS_MAX; i++)
        if (read_info(n, i, &all[count])) {
            uuids[count] = all[count].uuid;
            count++;
        }
    mlo_gpus_visible(getenv("CUDA_VISIBLE_DEVICES"), uuids, count, visible);
    for (size_t i = 0; i < count && kept < max; i++)
        if (visible[i])
            out[kept++] = all[i];
    return kept;
}

bool mlo_nvml_gpu(struct mlo_nvml *n, const char *uuid, struct mlo_gpu_info *out)
{
    unsigned devices = 0;
    if (n->count(&devices) != 0)
        return false;
    for (unsigned i = 0; i < devices; i++)
        if (read_info(n, i, out) && strcmp(out->uuid, uuid) == 0)
            return true;
    return false;
}

bool mlo_nvml_state(struct mlo_nvml *n, const char *uuid, struct mlo_gpu_state *out)
{
    void *device;
    unsigned value, rates[2];
    unsigned long long memory[3], large;
    *out = (struct mlo_gpu_state){-1, -1, -1, -1, -1, -1, -1, -1, 0};
    if (n->handle_by_uuid(uuid, &device) != 0)
        return false;
    if (n->power && n->power(device, &value) == 0)
        out->power_w = value * 1e-3;
    if (n->energy && n->energy(device, &large) == 0)
        out->energy_j = (double)large * 1e-3;
    if (n->temperature && n->temperature(device, 0, &value) == 0)
        out->temperature_c = value;
    if (n->clock && n->clock(device, CLOCK_SM, &value) == 0)
        out->sm_mhz = value;
    if (n->clock && n->clock(device, CLOCK_MEMORY, &value) == 0)
        out->memory_mhz = value;
    if (n->utilization && n->utilization(device, rates) == 0) {
        out->busy = rates[0] * 0.01;
        out->memory_busy = rates[1] * 0.01;
    }
    if (n->memory && n->memory(device, memory) == 0)
        out->memory_used_bytes = (double)memory[2];
    if (n->throttle && n->throttle(device, &large) == 0)
        out->throttle = large;
    return true;
}

char *mlo_nvml_throttle_words(uint64_t bits, char *out, size_t size)
{
    /* of nvmlClocksEventReasons; an idle GPU and clocks that somebody chose are no slowing down */
    static const struct {
        uint64_t bit;
        const char *word;
    } words[] = {{0x04, "power cap"},      {0x08, "hardware slowdown"}, {0x10, "sync boost"},
                 {0x20, "thermal"},        {0x40, "hardware thermal"},  {0x80, "power brake"},
                 {0x100, "display clocks"}};
    size_t length = 0;
    out[0] = '\0';
    for (size_t i = 0; i < MLO_COUNT(words); i++)
        if (bits & words[i].bit && length < size)
            length +=
                (size_t)snprintf(out + length, size - length, "%s%s", length ? ", " : "", words[i].word);
    return out;
}
