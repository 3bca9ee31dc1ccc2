/* What a machine has for jobs, and what is left of it beside those that run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "pipeline/service/worker_impl.h"

/* A limit of a control group: a number, or "max". */
static uint64_t limit_in(const char *path)
{
    struct mlo_buf text = MLO_BUF_INIT;
    int64_t bytes = 0;
    if (mlo_fs_read(path, 64, &text, NULL) == MLO_OK && text.len && mlo_buf_str(&text)[text.len - 1] == '\n')
        text.data[text.len - 1] = '\0';
    if (!text.len || !mlo_str_to_i64(text.data, &bytes) || bytes < 0)
        bytes = 0;
    mlo_buf_clear(&text);
    return (uint64_t)bytes;
}

static void lower(uint64_t *to, uint64_t limit)
{
    if (limit && limit < *to)
        *to = limit;
}

/* Of the group that we are in and of all above it (control groups v2), and of a container's (v1). */
static uint64_t memory_limit(void)
{
    struct mlo_buf text = MLO_BUF_INIT;
    uint64_t limit = UINT64_MAX;
    char path[512], group[400] = "";
    if (mlo_fs_read("/proc/self/cgroup", 1 << 16, &text, NULL) == MLO_OK) {
        const char *at = strstr(mlo_buf_str(&text), "0::/");
        if (at)
            snprintf(group, sizeof group, "%.*s", (int)strcspn(at + 3, "\n"), at + 3);
    }
    mlo_buf_clear(&text);
    for (;;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        lower(&limit, limit_in(path));
        char *slash = strrchr(group, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    lower(&limit, limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    return limit;
}

uint64_t mlo_room_memory(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    lower(&bytes, memory_limit());
    return bytes;
}

uint64_t mlo_room_disk(const char *dir)
{
    struct statvfs fs;
    return statvfs(dir, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : (uint64_t)1 << 60; /* who knows */
}

/* --- what is left of it -------------------------------------------------------------------------------- */

/* What the running jobs were given, and how many there are. */
static struct mlo_needs used(struct mlo_worker *worker, unsigned *jobs)
{
    struct mlo_needs sum = {.memory_bytes = 0};
    *jobs = 0;
    for (unsigned i = 0; i < worker->o.slots; i++) {
        struct mlo_slot *slot = &worker->slots[i];
        pthread_mutex_lock(&slot->lock);
        if (slot->busy) {
            ++*jobs;
            sum.memory_bytes += slot->job.needs.memory_bytes;
            sum.disk_bytes += slot->job.needs.disk_bytes;
        }
        pthread_mutex_unlock(&slot->lock);
    }
    return sum;
}

struct mlo_disk_room mlo_room_of_disk(uint64_t alone_bytes, uint64_t free_bytes, uint64_t given_bytes)
{
    uint64_t back = given_bytes < UINT64_MAX - free_bytes ? free_bytes + given_bytes : UINT64_MAX,
             there = MLO_MIN(back, alone_bytes);
    return (struct mlo_disk_room){.there_bytes = there,
                                  .free_bytes = there > given_bytes ? there - given_bytes : 0};
}

/* The disk that there is when no job runs is measured when none does. */
static struct mlo_disk_room disk_room(struct mlo_worker *worker, const struct mlo_needs *given, unsigned jobs)
{
    uint64_t on_disk = mlo_room_disk(worker->o.work_dir);
    if (jobs == 0)
        atomic_store(&worker->disk_bytes, on_disk);
    return mlo_room_of_disk(atomic_load(&worker->disk_bytes), on_disk, given->disk_bytes);
}

enum mlo_status mlo_room_find(struct mlo_worker *worker, struct mlo_error *err)
{
    worker->memory_bytes = worker->o.memory_bytes ? worker->o.memory_bytes : mlo_room_memory();
    enum mlo_status status = mlo_gpus_find(worker->o.gpu_inventory, &worker->gpus, err);
    mlo_gpus_models(&worker->gpus, false, &worker->models);
    if (status == MLO_OK && worker->gpus.count) {
        worker->gpu_dir = mlo_fs_join(worker->work_dir, "gpus", NULL);
        status = worker->gpu_dir ? mlo_fs_mkdirs_private(worker->gpu_dir, err) : mlo_error_nomem(err);
    }
    return status == MLO_OK && !mlo_buf_ok(&worker->models) ? mlo_error_nomem(err) : status;
}

uint64_t mlo_room_memory_of_job(const struct mlo_worker *worker)
{
    uint64_t most = worker->o.max_memory_bytes;
    return most ? MLO_MIN(most, worker->memory_bytes) : worker->memory_bytes;
}

uint64_t mlo_room_disk_of_job(struct mlo_worker *worker)
{
    unsigned jobs;
    const struct mlo_needs given = used(worker, &jobs);
    uint64_t most = worker->o.max_scratch_bytes, there = disk_room(worker, &given, jobs).there_bytes;
    return most ? MLO_MIN(most, there) : there;
}

void mlo_room_offer(struct mlo_worker *worker, uint64_t *memory, uint64_t *disk)
{
    unsigned jobs;
    const struct mlo_needs taken = used(worker, &jobs);
    *memory = worker->memory_bytes - MLO_MIN(taken.memory_bytes, worker->memory_bytes);
    *disk = disk_room(worker, &taken, jobs).free_bytes;
    if (worker->gpus.count)
        mlo_gpus_hold(&worker->gpus, worker->gpu_dir);
    mlo_buf_reset(&worker->free_models);
    mlo_gpus_models(&worker->gpus, true, &worker->free_models);
}

void mlo_room_give(struct mlo_slot *slot, struct mlo_job *job)
{
    slot->gpu_count = 0;
    if (job->needs.gpus <= 0)
        return;
    if (job->needs.gpus <= MLO_GPUS_MAX &&
        mlo_gpus_give(&slot->worker->gpus, job->needs.gpu, job->needs.gpus, slot->gpus)) {
        slot->gpu_count = job->needs.gpus;
        return;
    }
    (void)mlo_error_set(&job->broken, MLO_EUNAVAILABLE, "the worker has no %d GPUs for the job any more",
                        job->needs.gpus);
}

void mlo_room_take(struct mlo_slot *slot)
{
    struct mlo_worker *worker = slot->worker;
    if (slot->gpu_count == 0)
        return;
    pthread_mutex_lock(&worker->claiming);
    mlo_gpus_take(&worker->gpus, slot->gpus, slot->gpu_count);
    slot->gpu_count = 0;
    pthread_mutex_unlock(&worker->claiming);
}
