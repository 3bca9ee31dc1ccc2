/* The machine: instruction sets, CPU model, and the class that evidence belongs to. */
#include <cpuid.h>
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "engines/engines_impl.h"
#include "engines/nvml.h"

static const char *const isa_names[] = {"generic", "avx2", "avx512", "avx512-vnni", "avx512-fp16"};

/* -1: none. Set by tests only, while no plan is being compiled. */
static atomic_int override_isa = -1;

void mlo_isa_override(int isa)
{
    atomic_store(&override_isa, isa);
}

const char *mlo_isa_name(enum mlo_isa isa)
{
    return (size_t)isa < MLO_COUNT(isa_names) ? isa_names[isa] : "unknown";
}

/* For a CPU and an operating system with AVX-512. */
static bool has_fp16(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 23 & 1);
}

static enum mlo_isa machine_isa(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return MLO_ISA_GENERIC;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return MLO_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512vnni"))
        return MLO_ISA_AVX512;
    return has_fp16() ? MLO_ISA_AVX512_FP16 : MLO_ISA_AVX512_VNNI;
}

enum mlo_isa mlo_isa_current(void)
{
    enum mlo_isa have = machine_isa();
    int forced = atomic_load(&override_isa);
    if (forced >= 0)
        return MLO_MIN((enum mlo_isa)forced, have);
    const char *env = getenv("MLOPT_ISA");
    for (size_t i = 0; env && i < MLO_COUNT(isa_names); i++)
        if (strcmp(env, isa_names[i]) == 0)
            return MLO_MIN((enum mlo_isa)i, have);
    return have;
}

static const char *const fp16_names[] = {[MLO_FP16_DEFAULT] = "",
                                         [MLO_FP16_OFF] = "off",
                                         [MLO_FP16_NATIVE] = "native",
                                         [MLO_FP16_EMULATE] = "emulate",
                                         [MLO_FP16_FIXED] = "fixed"};

enum mlo_fp16 mlo_fp16_asked(void)
{
    const char *env = getenv("MLOPT_FP16");
    for (size_t i = 0; env && i < MLO_COUNT(fp16_names); i++)
        if (strcmp(env, fp16_names[i]) == 0)
            return (enum mlo_fp16)i;
    return MLO_FP16_DEFAULT;
}

/* What is set to none of the names. */
static bool is_misspelt(const char *env, const char *const *names, size_t count)
{
    bool known = !env || !*env;
    for (size_t i = 0; env && i < count; i++)
        known |= strcmp(env, names[i]) == 0;
    return !known;
}

enum mlo_status mlo_isa_check(struct mlo_error *err)
{
    const char *isa = getenv("MLOPT_ISA"), *fp16 = getenv("MLOPT_FP16"), *near;
    if (is_misspelt(fp16, fp16_names, MLO_COUNT(fp16_names))) {
        mlo_error_set(err, MLO_EINVAL, "MLOPT_FP16 is '%.40s', which it cannot be", fp16);
        mlo_error_hint(err, "off computes models of 16-bit floats in float32, fixed in 16-bit fixed point, "
                            "native by the CPU's FP16 instructions where it has them, emulate gives what "
                            "these give; or unset it");
        return MLO_EINVAL;
    }
    if (!is_misspelt(isa, isa_names, MLO_COUNT(isa_names)))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "MLOPT_ISA is '%.40s', which is no instruction set", isa);
    near = mlo_suggest(isa, isa_names, MLO_COUNT(isa_names));
    mlo_error_hint(err,
                   near ? "did you mean %s? There are generic, avx2, avx512, avx512-vnni and avx512-fp16"
                        : "there are generic, avx2, avx512, avx512-vnni and avx512-fp16",
                   near);
    return MLO_EINVAL;
}

/* The text behind "key : " in /proc/cpuinfo's first processor. */
static void cpuinfo_field(const char *text, const char *key, char *out, size_t size)
{
    size_t key_len = strlen(key);
    out[0] = 0;
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, key, key_len) != 0 || !strchr("\t :", line[key_len]))
            continue;
        const char *colon = strchr(line, ':');
        if (!colon)
            return;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(colon, "\n"), colon);
        return;
    }
}

static void cpu_model(char *out, size_t size)
{
    struct mlo_buf text = MLO_BUF_INIT;
    out[0] = 0;
    if (mlo_fs_read("/proc/cpuinfo", (size_t)16 << 20, &text, NULL) == MLO_OK)
        cpuinfo_field(mlo_buf_str(&text), "model name", out, size);
    mlo_buf_clear(&text);
    if (!out[0])
        snprintf(out, size, "unknown cpu");
}

/* "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz" -> "intel-xeon-platinum-8481c": words that do not tell
 * machines apart are dropped. */
static void slug(const char *model, char *out, size_t size)
{
    static const char *const noise[] = {"cpu", "processor", "r", "tm"};
    size_t len = 0;
    const char *p = model;
    while (*p && *p != '@') {
        char word[64];
        size_t n = 0;
        while (*p && *p != '@' && !isalnum((unsigned char)*p))
            p++;
        while (isalnum((unsigned char)*p)) {
            if (n + 1 < sizeof word)
                word[n++] = (char)tolower((unsigned char)*p);
            p++;
        }
        word[n] = 0;
        bool drop = n == 0;
        for (size_t i = 0; i < MLO_COUNT(noise); i++)
            drop |= strcmp(word, noise[i]) == 0;
        if (!drop && len < size)
            len += (size_t)snprintf(out + len, size - len, "%s%s", len ? "-" : "", word);
    }
    if (!len)
        snprintf(out, size, "unknown-cpu");
}

enum mlo_status mlo_cpu_identity(json_t **out, struct mlo_error *err)
{
    static const struct {
        const char *key, *field;
    } fields[] = {
        {"vendor", "vendor_id"}, {"family", "cpu family"}, {"model", "model"}, {"name", "model name"}};
    struct mlo_buf text = MLO_BUF_INIT;
    char value[256];
    enum mlo_status status;
    *out = json_object();
    MLO_TRY(mlo_fs_read("/proc/cpuinfo", (size_t)16 << 20, &text, err));
    for (size_t i = 0; *out && i < MLO_COUNT(fields); i++) {
        cpuinfo_field(mlo_buf_str(&text), fields[i].field, value, sizeof value);
        json_object_set_new(*out, fields[i].key, json_string(value));
    }
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&text);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

char *mlo_machine_class(char *out, size_t size)
{
    char model[256], name[128];
    cpu_model(model, sizeof model);
    slug(model, name, sizeof name);
    const char *fp16 = fp16_names[mlo_fp16_asked()];
    snprintf(out, size, "%s/%s%s%s", name, mlo_isa_name(mlo_isa_current()), *fp16 ? "-fp16-" : "", fp16);
    return out;
}

static const char *const target_names[] = {
    "any",       "cpu",       "cpu:avx2",  "cpu:avx512", "cpu:avx512-vnni", "cpu:avx512-fp16", "cuda:sm80",
    "cuda:sm86", "cuda:sm89", "cuda:sm90", "cuda:sm100", "cuda:sm103",      "cuda:sm120"};
/* Of processors: the first of target_names. */
static const enum mlo_isa cpu_targets[] = {MLO_ISA_GENERIC, MLO_ISA_GENERIC,     MLO_ISA_AVX2,
                                           MLO_ISA_AVX512,  MLO_ISA_AVX512_VNNI, MLO_ISA_AVX512_FP16};

const char *const *mlo_targets(size_t *count)
{
    *count = MLO_COUNT(target_names);
    return target_names;
}

/* The GPUs, asked for once: they do not change while a program runs. */
static struct mlo_gpu_info gpus[MLO_NVML_GPUS_MAX];
static size_t gpu_count;
static bool gpus_usable;
static pthread_once_t gpus_asked = PTHREAD_ONCE_INIT;

static void ask_gpus(void)
{
    struct mlo_nvml *nvml;
    const struct mlo_engine *cuda;
    if (mlo_nvml_open(NULL, &nvml, NULL) != MLO_OK)
        return;
    gpu_count = mlo_nvml_gpus(nvml, gpus, MLO_COUNT(gpus));
    mlo_nvml_close(nvml);
    gpus_usable =
        gpu_count > 0 && mlo_engine_find("cuda", &cuda, NULL) == MLO_OK && cuda->probe(NULL) == MLO_OK;
}

size_t mlo_machine_gpus(int *sm, size_t max)
{
    size_t count = 0;
    pthread_once(&gpus_asked, ask_gpus);
    for (size_t i = 0; gpus_usable && i < gpu_count && count < max; i++)
        sm[count++] = gpus[i].sm;
    return count;
}

static bool satisfies_gpu(int need)
{
    int have[MLO_NVML_GPUS_MAX];
    size_t count = mlo_machine_gpus(have, MLO_COUNT(have));
    for (size_t i = 0; i < count; i++)
        if (mlo_sm_runs(have[i], need))
            return true;
    return false;
}

bool mlo_machine_satisfies(const char *target)
{
    for (size_t i = 0; i < MLO_COUNT(cpu_targets); i++)
        if (strcmp(target, target_names[i]) == 0)
            return mlo_isa_current() >= cpu_targets[i];
    int sm = mlo_cuda_target_sm(target);
    return sm && satisfies_gpu(sm);
}

enum mlo_status mlo_machine_describe(json_t **out, struct mlo_error *err)
{
    char model[256], class_name[256];
    struct utsname os = {0};
    cpu_model(model, sizeof model);
    mlo_machine_class(class_name, sizeof class_name);
    uname(&os);
    json_t *fits = json_array();
    for (size_t i = 0; fits && i < MLO_COUNT(target_names); i++)
        if (mlo_machine_satisfies(target_names[i]))
            json_array_append_new(fits, json_string(target_names[i]));
    *out = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:o}", "class", class_name, "cpu", model, "isa",
                     mlo_isa_name(mlo_isa_current()), "machine_isa", mlo_isa_name(machine_isa()), "cores",
                     (int)mlo_cpu_count(), "os", os.sysname, "kernel", os.release, "targets", fits);
    if (*out && gpus_usable) {
        json_t *names = json_array();
        for (size_t i = 0; names && i < gpu_count; i++)
            json_array_append_new(names, json_string(gpus[i].name));
        json_object_set_new(*out, "gpus", names);
    }
    return *out ? MLO_OK : mlo_error_nomem(err);
}
