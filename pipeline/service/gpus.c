#include "pipeline/service/gpus_impl.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define NODE "/dev/nvidia"

/* --- what there is: the driver's library -------------------------------------------------------------------

 * The part of NVML's interface (nvml.h, "NVML API Reference") that is asked: it has been the same since 2013.
 */
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*handle)(unsigned index, void **device);
    int (*name)(void *device, char *name, unsigned length);
    int (*uuid)(void *device, char *uuid, unsigned length);
    int (*minor)(void *device, unsigned *minor);
    int (*memory)(void *device, unsigned long long *total_free_used);
};

static bool load_nvml(void *library, struct nvml *out)
{
    const struct {
        const char *name;
        void *slot;
    } symbols[] = {{"nvmlInit_v2", &out->init},
                   {"nvmlShutdown", &out->shutdown},
                   {"nvmlDeviceGetCount_v2", &out->count},
                   {"nvmlDeviceGetHandleByIndex_v2", &out->handle},
                   {"nvmlDeviceGetName", &out->name},
                   {"nvmlDeviceGetUUID", &out->uuid},
                   {"nvmlDeviceGetMinorNumber", &out->minor},
                   {"nvmlDeviceGetMemoryInfo", &out->memory}};
    for (size_t i = 0; i < MLO_COUNT(symbols); i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return false;
        memcpy(symbols[i].slot, &symbol, sizeof symbol);
    }
    return true;
}

static struct mlo_gpu *add(struct mlo_gpus *gpus, const char *uuid, const char *name)
{
    if (gpus->count == MLO_COUNT(gpus->items) || !uuid[0])
        return NULL;
    struct mlo_gpu *gpu = &gpus->items[gpus->count++];
    *gpu = (struct mlo_gpu){.lock_fd = -1};
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
    mlo_gpu_model(name, gpu->model);
    return gpu;
}

/* False where the library is not there, or does not speak with the driver. */
static bool find_by_nvml(struct mlo_gpus *out)
{
    struct nvml nvml;
    unsigned count = 0;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    bool found = load_nvml(library, &nvml) && nvml.init() == 0;
    bool counted = found && nvml.count(&count) == 0;
    for (unsigned i = 0; counted && i < count; i++) {
        void *device;
        char name[96] = "", uuid[96] = "";
        unsigned minor = 0;
        unsigned long long memory[3] = {0};
        if (nvml.handle(i, &device) != 0 || nvml.uuid(device, uuid, sizeof uuid) != 0 ||
            nvml.minor(device, &minor) != 0 || nvml.name(device, name, sizeof name) != 0)
            continue;
        struct mlo_gpu *gpu = add(out, uuid, name);
        if (!gpu)
            continue;
        snprintf(gpu->node, sizeof gpu->node, NODE "%u", minor);
        if (nvml.memory(device, memory) == 0)
            gpu->memory_bytes = memory[0];
    }
    if (found)
        nvml.shutdown();
    dlclose(library);
    return counted;
}

/* --- what there is: /proc --------------------------------------------------------------------------------
 */

/* The rest of the line "<key>:   <value>". */
static void value_of(const char *text, const char *key, char *out, size_t size)
{
    const char *at = strstr(text, key);
    out[0] = '\0';
    if (!at || !(at = strchr(at, ':')))
        return;
    at += 1 + strspn(at + 1, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
}

static long long minor_of(const struct mlo_gpu *gpu)
{
    return strtoll(gpu->node + strlen(NODE), NULL, 10);
}

/* As numbers: the tenth is not the second. */
static int by_node(const void *a, const void *b)
{
    long long x = minor_of(a), y = minor_of(b);
    return x < y ? -1 : x > y;
}

void mlo_gpus_of_proc(const char *root, struct mlo_gpus *out)
{
    DIR *dir = opendir(root);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct mlo_buf text = MLO_BUF_INIT;
        char *path = mlo_fs_join(root, entry->d_name, "information", NULL), name[96], uuid[96], minor[24];
        int64_t number;
        if (entry->d_name[0] != '.' && path && mlo_fs_read(path, 1 << 16, &text, NULL) == MLO_OK) {
            value_of(mlo_buf_str(&text), "Model:", name, sizeof name);
            value_of(mlo_buf_str(&text), "GPU UUID:", uuid, sizeof uuid);
            value_of(mlo_buf_str(&text), "Device Minor:", minor, sizeof minor);
            struct mlo_gpu *gpu = mlo_str_to_i64(minor, &number) ? add(out, uuid, name) : NULL;
            if (gpu)
                snprintf(gpu->node, sizeof gpu->node, NODE "%lld", (long long)number);
        }
        mlo_buf_clear(&text);
        free(path);
    }
    if (dir)
        closedir(dir);
    qsort(out->items, out->count, sizeof out->items[0], by_node);
}

/* --- what there is: a list -------------------------------------------------------------------------------
 */

static enum mlo_status find_in_file(const char *path, struct mlo_gpus *out, struct mlo_error *err)
{
    json_t *list = NULL, *row;
    size_t i;
    enum mlo_status status = mlo_json_load_file(path, &list, err);
    if (status == MLO_OK && (!json_is_array(list) || json_array_size(list) > MLO_GPUS_MAX))
        status = mlo_error_set(err, MLO_EFORMAT, "%s is no list of at most %d GPUs", path, MLO_GPUS_MAX);
    json_array_foreach(list, i, row)
    {
        const char *uuid = mlo_json_str(row, "uuid", ""), *name = mlo_json_str(row, "name", "");
        size_t plain = strspn(uuid, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
        if (status != MLO_OK)
            break;
        if (!plain || plain != strlen(uuid) || plain >= sizeof out->items[0].uuid || !*name) {
            status = mlo_error_set(err, MLO_EFORMAT, "%s: GPU %zu has no uuid, or no name", path, i);
            break;
        }
        struct mlo_gpu *gpu = add(out, uuid, name);
        if (gpu) {
            snprintf(gpu->node, sizeof gpu->node, "%s", mlo_json_str(row, "node", ""));
            gpu->memory_bytes = (uint64_t)MLO_MAX(mlo_json_i64(row, "memory", 0), 0);
        }
    }
    json_decref(list);
    return status;
}

void mlo_gpus_keep(struct mlo_gpus *gpus, const char *visible)
{
    struct mlo_gpus kept = {.count = 0};
    while (*visible && kept.count < gpus->count) {
        size_t length = strcspn(visible, ","), found = gpus->count;
        char word[96];
        int64_t number;
        snprintf(word, sizeof word, "%.*s", (int)length, visible);
        for (size_t i = 0; i < gpus->count && *word; i++)
            if (strncmp(gpus->items[i].uuid, word, length) == 0)
                found = i;
        if (mlo_str_to_i64(word, &number) && number >= 0 && (uint64_t)number < gpus->count)
            found = (size_t)number;
        bool twice = false;
        for (size_t i = 0; i < kept.count && found < gpus->count; i++)
            twice = twice || strcmp(kept.items[i].uuid, gpus->items[found].uuid) == 0;
        if (found == gpus->count || twice)
            break;
        kept.items[kept.count++] = gpus->items[found];
        visible += length + (visible[length] == ',');
    }
    *gpus = kept;
}

enum mlo_status mlo_gpus_find(const char *inventory, struct mlo_gpus *out, struct mlo_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    out->count = 0;
    if (inventory)
        return find_in_file(inventory, out, err);
    if (!find_by_nvml(out)) {
        out->count = 0;
        mlo_gpus_of_proc("/proc/driver/nvidia/gpus", out);
    }
    if (visible)
        mlo_gpus_keep(out, visible);
    return MLO_OK;
}

json_t *mlo_gpus_json(const struct mlo_gpus *gpus)
{
    json_t *list = json_array();
    for (size_t i = 0; i < gpus->count; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "uuid", gpus->items[i].uuid, "model",
                                              gpus->items[i].model, "memory_bytes",
                                              (json_int_t)gpus->items[i].memory_bytes));
    return list;
}

/* --- who has which ---------------------------------------------------------------------------------------
 */

void mlo_gpus_hold(struct mlo_gpus *gpus, const char *dir)
{
    for (size_t i = 0; i < gpus->count; i++) {
        struct mlo_gpu *gpu = &gpus->items[i];
        if (gpu->lock_fd >= 0)
            continue;
        char *path = mlo_fs_join(dir, gpu->uuid, NULL);
        int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            gpu->lock_fd = fd;
        else if (fd >= 0)
            close(fd);
        free(path);
    }
}

static void let_go(struct mlo_gpu *gpu)
{
    if (gpu->lock_fd >= 0)
        close(gpu->lock_fd);
    gpu->lock_fd = -1;
    gpu->given = false;
}

void mlo_gpus_unhold(struct mlo_gpus *gpus)
{
    for (size_t i = 0; i < gpus->count; i++)
        if (!gpus->items[i].given)
            let_go(&gpus->items[i]);
}

static bool is_free(const struct mlo_gpu *gpu)
{
    return gpu->lock_fd >= 0 && !gpu->given;
}

/* An element of an array literal: whatever a card calls itself. */
static void add_element(struct mlo_buf *out, const char *text)
{
    mlo_buf_putc(out, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            mlo_buf_putc(out, '\\');
        mlo_buf_putc(out, *text);
    }
    mlo_buf_putc(out, '"');
}

void mlo_gpus_models(const struct mlo_gpus *gpus, bool free_only, struct mlo_buf *out)
{
    size_t n = 0;
    mlo_buf_putc(out, '{');
    for (size_t i = 0; i < gpus->count; i++) {
        if (free_only && !is_free(&gpus->items[i]))
            continue;
        if (n++)
            mlo_buf_putc(out, ',');
        add_element(out, gpus->items[i].model);
    }
    mlo_buf_putc(out, '}');
}

bool mlo_gpus_give(struct mlo_gpus *gpus, const char *model, int count, int *out)
{
    int found = 0;
    for (size_t i = 0; i < gpus->count && found < count; i++)
        if (is_free(&gpus->items[i]) && (!*model || strcmp(gpus->items[i].model, model) == 0))
            out[found++] = (int)i;
    if (found < count)
        return false;
    for (int k = 0; k < count; k++)
        gpus->items[out[k]].given = true;
    return true;
}

void mlo_gpus_take(struct mlo_gpus *gpus, const int *places, int count)
{
    for (int k = 0; k < count; k++)
        let_go(&gpus->items[places[k]]);
}
