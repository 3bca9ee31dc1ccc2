#include "pipeline/steps/needs.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define MB ((uint64_t)1000000)
#define SIZE_MAX_BYTES ((uint64_t)1000000000 * MB) /* 1 PB */
enum { TIMEOUT_MAX_S = 30 * 86400 };

/* --- reading ------------------------------------------------------------------------------------------- */

static enum mlo_status bad(struct mlo_error *err, const char *path, const char *what, const char *hint)
{
    mlo_error_set(err, MLO_EINVAL, "'%s' must be %s", path, what);
    mlo_error_where(err, "field '%s'", path);
    mlo_error_hint(err, "%s", hint);
    return MLO_EINVAL;
}

static enum mlo_status read_size(const char *path, const json_t *value, uint64_t *out, struct mlo_error *err)
{
    bool read = false;
    if (json_is_string(value)) {
        read = mlo_str_to_size(json_string_value(value), out);
    } else if (json_is_integer(value) && json_integer_value(value) > 0) {
        *out = (uint64_t)json_integer_value(value);
        read = true;
    }
    if (read && *out >= MB && *out <= SIZE_MAX_BYTES)
        return MLO_OK;
    *out = 0;
    return bad(err, path, "a size of 1 MB to 1 PB", "write a number with its unit: 8GB, 512MB, 1.5GiB");
}

static enum mlo_status set_memory(struct mlo_needs *n, const char *path, const json_t *v, struct mlo_error *e)
{
    return read_size(path, v, &n->memory_bytes, e);
}

static enum mlo_status set_disk(struct mlo_needs *n, const char *path, const json_t *v, struct mlo_error *e)
{
    return read_size(path, v, &n->disk_bytes, e);
}

static enum mlo_status set_gpus(struct mlo_needs *n, const char *path, const json_t *v, struct mlo_error *e)
{
    json_int_t count = json_integer_value(v);
    if (!json_is_integer(v) || count < 0 || count > MLO_GPUS_MAX)
        return bad(e, path, "a whole number of GPUs, 0 to 64", "a job has whole GPUs, for itself alone");
    n->gpus = (int)count;
    return MLO_OK;
}

static enum mlo_status set_gpu(struct mlo_needs *n, const char *path, const json_t *v, struct mlo_error *e)
{
    const char *text = json_string_value(v);
    size_t length = text ? strlen(text) : 0;
    if (length == 0 || length >= MLO_GPU_MODEL_SIZE)
        return bad(e, path, "the model of a GPU",
                   "write it as `mlopt workers list` does, H100 or RTX-4090; a number in quotes");
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr(" -._", text[i]))
            return bad(e, path, "the model of a GPU",
                       "letters, digits, spaces, '-', '.' and '_': H100, RTX-4090");
    mlo_gpu_model(text, n->gpu);
    return MLO_OK;
}

static enum mlo_status set_timeout(struct mlo_needs *n, const char *path, const json_t *v,
                                   struct mlo_error *e)
{
    uint64_t seconds = 0;
    bool read = json_is_string(v) && mlo_str_to_seconds(json_string_value(v), &seconds);
    if (json_is_integer(v) && json_integer_value(v) > 0) {
        seconds = (uint64_t)json_integer_value(v);
        read = true;
    }
    if (!read || seconds < 1 || seconds > TIMEOUT_MAX_S)
        return bad(e, path, "a time of 1 s to 30 d", "write 2h, 90m, 1h30m, or a number of seconds");
    n->timeout_s = (uint32_t)seconds;
    return MLO_OK;
}

static const char *const KEYS[] = {"memory", "disk", "gpus", "gpu"};
static const struct {
    const char *key;
    enum mlo_status (*set)(struct mlo_needs *, const char *, const json_t *, struct mlo_error *);
} SETTERS[] = {{"memory", set_memory},
               {"disk", set_disk},
               {"gpus", set_gpus},
               {"gpu", set_gpu},
               {"timeout", set_timeout}};

const char *const *mlo_needs_keys(size_t *count)
{
    *count = MLO_COUNT(KEYS);
    return KEYS;
}

enum mlo_status mlo_needs_set(struct mlo_needs *needs, const char *key, const char *path, const json_t *value,
                              struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(SETTERS); i++)
        if (strcmp(SETTERS[i].key, key) == 0)
            return SETTERS[i].set(needs, path, value, err);
    enum mlo_status status = mlo_error_set(err, MLO_EINVAL, "a job has no need '%.60s'", key);
    mlo_error_where(err, "field '%s'", path);
    if (!mlo_error_suggest(err, key, KEYS, MLO_COUNT(KEYS)))
        mlo_error_hint(err, "known are: memory, disk, gpus, gpu");
    return status;
}

enum mlo_status mlo_needs_check(const struct mlo_needs *needs, const char *path, struct mlo_error *err)
{
    if (!needs->gpu[0] || needs->gpus != 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%s' names the model of a GPU, %s, and wants none", path, needs->gpu);
    mlo_error_where(err, "field '%s.gpus'", path);
    mlo_error_hint(err, "leave 'gpu' out, or 'gpus', which is 1 then");
    return MLO_EINVAL;
}

struct mlo_needs mlo_needs_over(const struct mlo_needs *all, const struct mlo_needs *own)
{
    struct mlo_needs out = *own;
    if (!out.memory_bytes)
        out.memory_bytes = all->memory_bytes;
    if (!out.disk_bytes)
        out.disk_bytes = all->disk_bytes;
    if (!out.timeout_s)
        out.timeout_s = all->timeout_s;
    if (!out.gpu[0] && out.gpus != 0)
        memcpy(out.gpu, all->gpu, sizeof out.gpu);
    if (out.gpus < 0)
        out.gpus = own->gpu[0] && all->gpus <= 0 ? 1 : all->gpus;
    if (out.gpus < 0)
        out.gpus = out.gpu[0] ? 1 : 0;
    return out;
}

json_t *mlo_needs_json(const struct mlo_needs *needs)
{
    json_t *out = json_object();
    int failed = out ? 0 : -1;
    if (needs->memory_bytes)
        failed |= json_object_set_new(out, "memory", json_integer((json_int_t)needs->memory_bytes));
    if (needs->disk_bytes)
        failed |= json_object_set_new(out, "disk", json_integer((json_int_t)needs->disk_bytes));
    if (needs->gpus >= 0)
        failed |= json_object_set_new(out, "gpus", json_integer(needs->gpus));
    if (needs->gpu[0])
        failed |= json_object_set_new(out, "gpu", json_string(needs->gpu));
    if (failed) {
        json_decref(out);
        return NULL;
    }
    return out;
}

/* --- estimates ----------------------------------------------------------------------------------------- */

/* Of memory, and of the job's folder on the disk: so much in any case, and so many times the model's file. */
static const struct estimate {
    const char *step;
    double memory_times;
    double disk_times;
} ESTIMATES[] = {
    {"optimize", 7, 2},      {"equalize", 6, 2},         {"smooth", 6, 2},
    {"quantize", 6, 2},      {"quantize-dynamic", 3, 2}, {"quantize-weights", 3, 2},
    {"round-weights", 6, 2}, {"to-float16", 3, 2},       {"qat-export", 4, 2},
    {"evaluate", 5, 1},      {"benchmark", 5, 1},        {"compile", 5, 3},
    {"tune", 8, 4},          {"report", 7, 1},           {"distill-eval", 10, 2},
    {"prune", 7, 2},         {"sparsify", 9, 2},         {"screen", 5, 1},
    {"trial", 5, 1},         {"search", 5, 1},
};
static const struct estimate OTHER = {NULL, 6, 2};
#define MEMORY_BASE_BYTES (64 * MB)
#define DISK_BASE_BYTES (16 * MB)

bool mlo_needs_known(const char *step)
{
    for (size_t i = 0; i < MLO_COUNT(ESTIMATES); i++)
        if (strcmp(ESTIMATES[i].step, step) == 0)
            return true;
    return false;
}

/* Up, by a sixteenth at most: models of about one size need one and the same, so that a claim has few kinds
 * of needs to look at (migrations/0030_kinds.sql). */
static uint64_t rounded(uint64_t bytes)
{
    uint64_t grain = 1;
    while (bytes / grain >= 32)
        grain *= 2;
    return (bytes + grain - 1) / grain * grain;
}

static uint64_t times(uint64_t base, double factor, uint64_t model_bytes)
{
    double sum = (double)base + factor * (double)model_bytes;
    return sum < (double)SIZE_MAX_BYTES ? MLO_MIN(rounded((uint64_t)sum), SIZE_MAX_BYTES) : SIZE_MAX_BYTES;
}

void mlo_needs_estimate(const char *step, uint64_t model_bytes, struct mlo_needs *needs)
{
    const struct estimate *row = &OTHER;
    for (size_t i = 0; i < MLO_COUNT(ESTIMATES); i++)
        if (strcmp(ESTIMATES[i].step, step) == 0)
            row = &ESTIMATES[i];
    if (!needs->memory_bytes)
        needs->memory_bytes = times(MEMORY_BASE_BYTES, row->memory_times, model_bytes);
    if (!needs->disk_bytes)
        needs->disk_bytes = times(DISK_BASE_BYTES, row->disk_times, model_bytes);
}

/* --- the name of a GPU -----------------------------------------------------------------------------------
 */

/* Words that say who made it, and not what it is. */
static bool is_vendor(const char *word)
{
    static const char *const words[] = {"NVIDIA", "TESLA", "GEFORCE", "QUADRO"};
    for (size_t i = 0; i < MLO_COUNT(words); i++)
        if (strcmp(words[i], word) == 0)
            return true;
    return false;
}

/* How much memory it has and how it is mounted: "80GB", "HBM3", "SXM4", "PCIE", "NVL". */
static bool is_form(const char *word)
{
    static const char *const beginnings[] = {"HBM", "SXM", "PCIE", "NVL"};
    size_t digits = strspn(word, "0123456789");
    if (digits && strcmp(word + digits, "GB") == 0)
        return true;
    for (size_t i = 0; i < MLO_COUNT(beginnings); i++)
        if (mlo_str_starts(word, beginnings[i]))
            return true;
    return false;
}

char *mlo_gpu_model(const char *name, char out[MLO_GPU_MODEL_SIZE])
{
    char text[96], *rest = NULL;
    size_t length = 0;
    snprintf(text, sizeof text, "%s", name);
    for (char *c = text; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    out[0] = '\0';
    for (char *word = strtok_r(text, " -_", &rest); word; word = strtok_r(NULL, " -_", &rest)) {
        if (length && is_form(word))
            break;
        if (is_vendor(word))
            continue;
        int n = snprintf(out + length, MLO_GPU_MODEL_SIZE - length, "%s%s", length ? "-" : "", word);
        length = MLO_MIN(length + (size_t)n, (size_t)MLO_GPU_MODEL_SIZE - 1);
    }
    return out;
}
