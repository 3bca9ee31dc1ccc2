/* A management library of NVIDIA's that is made up: two GPUs; what it cannot say is not exported. The
 * environment variable FAKE_NVML is "off": the driver does not answer. */
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetName(void *device, char *name, unsigned size);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size);
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
int nvmlSystemGetDriverVersion(char *text, unsigned size);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz);
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits);

static struct gpu {
    const char *name, *uuid;
    int major, minor;
} gpus[] = {{"NVIDIA H200", "GPU-aaaa", 9, 0}, {"NVIDIA A10", "GPU-bbbb", 8, 6}};

int nvmlInit_v2(void)
{
    const char *how = getenv("FAKE_NVML");
    return how && strcmp(how, "off") == 0 ? 9 : 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &gpus[index];
    return index < 2 ? 0 : 2;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    for (int i = 0; i < 2; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0) {
            *device = &gpus[i];
            return 0;
        }
    return 6;
}

static int text(const char *from, char *to, unsigned size)
{
    if (strlen(from) >= size)
        return 7;
    memcpy(to, from, strlen(from) + 1);
    return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size)
{
    return text(((struct gpu *)device)->name, name, size);
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
    return text(((struct gpu *)device)->uuid, uuid, size);
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    *major = ((struct gpu *)device)->major;
    *minor = ((struct gpu *)device)->minor;
    return 0;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size)
{
    return text("580.95.05", to, size);
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{
    (void)device;
    memory[0] = 150000000000ull;
    memory[1] = 149000000000ull;
    memory[2] = 1000000000ull;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    (void)device;
    *milliwatts = 412500;
    return 0;
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz)
{
    (void)device;
    *mhz = kind == 1 ? 1755 : 3201;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates)
{
    (void)device;
    rates[0] = 97;
    rates[1] = 41;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits)
{
    (void)device;
    *bits = 0x24;
    return 0;
}
