/* What the GPU at hand can do: cuDNN's description of it, and what the driver says beside that. */
#include "engines/cuda/device/device_impl.h"
#include "engines/cuda/tune/tune.h"

/* The driver goes before a description by hand, which is of the fastest of its generation. */
static void add_facts(const struct cuda_gpu *gpu, json_t *device)
{
    const struct {
        const char *name;
        int value;
    } facts[] = {{"multiProcessorCount", gpu->multiprocessors},
                 {"smClockRateKHz", gpu->clock_khz},
                 {"memClockRateKHz", gpu->memory_clock_khz},
                 {"memoryBusWidth", gpu->memory_bus_bits},
                 {"l2CacheSize", gpu->l2_bytes}};
    for (size_t i = 0; i < MLO_COUNT(facts); i++)
        if (facts[i].value > 0)
            json_object_set_new(device, facts[i].name, json_integer(facts[i].value));
    json_object_set_new(device, "deviceName", json_string(gpu->name));
}

enum mlo_status cuda_device_peaks(const struct cuda_gpu *gpu, struct cuda_peaks *out, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *device = NULL;
    enum mlo_status status;
    MLO_TRY(cuda_profile(gpu->sm, &text, err));
    MLO_TRY(mlo_json_parse(mlo_buf_str(&text), text.len, "the GPU's description", &device, err));
    add_facts(gpu, device);
    MLO_TRY(cuda_peaks_read(device, out, err));
out:
    json_decref(device);
    mlo_buf_clear(&text);
    return status;
}
