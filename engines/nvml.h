/* NVIDIA's management library (NVML), opened when somebody asks and linked nowhere: which GPUs there are, and
 * what they are doing. It needs the driver, and no CUDA. "NVML API Reference", docs.nvidia.com. */
#ifndef MLO_ENGINES_NVML_H
#define MLO_ENGINES_NVML_H

#include "base/base.h"

enum { MLO_NVML_GPUS_MAX = 64 };

struct mlo_nvml; /* the opened library; one thread at a time */

/* MLO_EUNAVAILABLE, with why, where there is no driver or it does not answer. `library` NULL:
 * "libnvidia-ml.so.1", as the loader finds it. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_nvml_open(const char *library, struct mlo_nvml **out, struct mlo_error *err);
void mlo_nvml_close(struct mlo_nvml *nvml); /* NULL is fine */
/* "580.95.05"; borrowed. */
const char *mlo_nvml_driver(const struct mlo_nvml *nvml);

/* What it is; a number that the driver does not tell is 0. */
struct mlo_gpu_info {
    char name[96], uuid[96]; /* "NVIDIA H200", "GPU-…" */
    int sm;                  /* compute capability: 90 for 9.0, 103 for 10.3 */
    uint64_t memory_bytes;
    unsigned max_sm_mhz, max_memory_mhz, memory_bus_bits;
};
/* All that the environment variable CUDA_VISIBLE_DEVICES leaves visible, in the order of NVML; how many. */
size_t mlo_nvml_gpus(struct mlo_nvml *nvml, struct mlo_gpu_info *out, size_t max);

/* The one with that UUID; false: there is none. CUDA and NVML may number the same GPUs in different orders.
 */
bool mlo_nvml_gpu(struct mlo_nvml *nvml, const char *uuid, struct mlo_gpu_info *out);

/* What it does at this moment; a number that is not told is negative. */
struct mlo_gpu_state {
    double power_w, energy_j, temperature_c;
    double sm_mhz, memory_mhz;
    double busy, memory_busy; /* of the last sampling period (a second or less), 0 to 1 */
    double memory_used_bytes;
    uint64_t throttle; /* nvmlClocksEventReasons: bits; 0: none, or not told */
};
/* False: there is no such GPU. */
bool mlo_nvml_state(struct mlo_nvml *nvml, const char *uuid, struct mlo_gpu_state *out);
/* The words for the bits that slow a GPU down ("power cap, thermal"), written to `out`; "" for none. */
char *mlo_nvml_throttle_words(uint64_t bits, char *out, size_t size);

/* Which of `count` GPUs with these UUIDs a value of CUDA_VISIBLE_DEVICES names: marks them in `visible`,
 * which is false before; as the driver does, it ends at the first word that names none. NULL: all of them. */
void mlo_gpus_visible(const char *value, const char *const *uuids, size_t count, bool *visible);

#endif
