/* A multipart upload by a few threads: the caller fills one part while the ones before it are on their way.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

enum {
    BUFFERS_MAX = MLO_BLOB_S3_PARALLEL + 1,
    GROW_EVERY = 2000 /* parts: of a size that is not known, parts double, which makes 10,000 hold 496 GiB */
};

struct mlo_blob_s3_parts {
    struct mlo_blob_s3 *store;
    char *key, *upload;
    uint64_t size_hint;
    char *buffer; /* being filled */
    size_t fill, part_size;
    struct mlo_s3_part *parts; /* of MLO_S3_PARTS_MAX */
    size_t count;              /* handed over */
    bool spent;                /* completed, or perhaps: the parts may be the object's */

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    pthread_t threads[MLO_BLOB_S3_PARALLEL];
    size_t thread_count, idle; /* idle: wait for a job */
    char *job;                 /* a full part that nobody has taken */
    size_t job_size, job_index, busy;
    char *spare[BUFFERS_MAX];
    size_t spare_count, buffers; /* buffers: that there are */
    bool stop;
    enum mlo_status failed;
    struct mlo_error error;
};

static size_t part_size(const struct mlo_blob_s3_parts *p)
{
    uint64_t size = MLO_BLOB_S3_PART;
    if (p->size_hint)
        return (size_t)MLO_MAX(size, (p->size_hint + MLO_S3_PARTS_MAX - 1) / MLO_S3_PARTS_MAX);
    return (size_t)(size << p->count / GROW_EVERY);
}

static void drop_buffer(struct mlo_blob_s3_parts *p, char *buffer)
{
    if (!buffer)
        return;
    free(buffer);
    p->buffers--;
    atomic_fetch_sub(&p->store->memory, p->part_size);
}

/* A buffer for the next part: a spare one, a new one while there is room, else the first that becomes free.
 */
static char *take_buffer(struct mlo_blob_s3_parts *p)
{
    char *buffer = NULL;
    size_t most = MLO_MIN(MLO_MAX(MLO_BLOB_S3_WRITER / p->part_size, (size_t)2), (size_t)BUFFERS_MAX);
    pthread_mutex_lock(&p->lock);
    bool room = p->buffers == 0 ||
                (p->buffers < most && atomic_load(&p->store->memory) + p->part_size <= MLO_BLOB_S3_MEMORY);
    while (!p->spare_count && !room)
        pthread_cond_wait(&p->changed, &p->lock);
    if (p->spare_count) {
        buffer = p->spare[--p->spare_count];
    } else if ((buffer = malloc(p->part_size))) {
        p->buffers++;
        atomic_fetch_add(&p->store->memory, p->part_size);
    }
    pthread_mutex_unlock(&p->lock);
    return buffer;
}

static void *carry(void *arg)
{
    struct mlo_blob_s3_parts *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        p->idle++;
        while (!p->job && !p->stop)
            pthread_cond_wait(&p->changed, &p->lock);
        p->idle--;
        if (!p->job)
            break;
        char *bytes = p->job;
        size_t size = p->job_size, index = p->job_index;
        struct mlo_error error = {0};
        enum mlo_status status = p->failed;
        p->job = NULL;
        p->busy++;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        if (status == MLO_OK)
            status = mlo_s3_multipart_put(p->store->s3, p->key, p->upload, (int)index + 1, bytes, size,
                                          &p->parts[index], &error);
        pthread_mutex_lock(&p->lock);
        p->busy--;
        p->spare[p->spare_count++] = bytes;
        if (status != MLO_OK && p->failed == MLO_OK) {
            p->failed = status;
            p->error = error;
        }
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static enum mlo_status report(const struct mlo_blob_s3_parts *p, struct mlo_error *err)
{
    if (p->failed != MLO_OK && err)
        *err = p->error;
    return p->failed;
}

/* Gives the filled buffer to a thread, which may be a new one. */
static enum mlo_status hand_over(struct mlo_blob_s3_parts *p, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (p->count == MLO_S3_PARTS_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "the blob is larger than %d parts can hold", MLO_S3_PARTS_MAX);
    if (!p->upload)
        status = mlo_s3_multipart_create(p->store->s3, p->key, &p->upload, err);
    if (status != MLO_OK)
        return status;
    pthread_mutex_lock(&p->lock);
    while (p->job && p->failed == MLO_OK)
        pthread_cond_wait(&p->changed, &p->lock);
    status = report(p, err);
    if (status == MLO_OK && !p->idle && p->thread_count < MLO_BLOB_S3_PARALLEL) {
        if (pthread_create(&p->threads[p->thread_count], NULL, carry, p) == 0)
            p->thread_count++;
        else if (!p->thread_count)
            status = mlo_error_set(err, MLO_EUNAVAILABLE, "no thread can be started to upload with");
    }
    if (status == MLO_OK) {
        p->job = p->buffer;
        p->job_size = p->fill;
        p->job_index = p->count++;
        p->buffer = NULL;
        p->fill = 0;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

static enum mlo_status wait_for_threads(struct mlo_blob_s3_parts *p, struct mlo_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (p->job || p->busy)
        pthread_cond_wait(&p->changed, &p->lock);
    enum mlo_status status = report(p, err);
    pthread_mutex_unlock(&p->lock);
    return status;
}

enum mlo_status mlo_blob_s3_parts_wait(struct mlo_blob_s3_parts *p, struct mlo_error *err)
{
    enum mlo_status status = p->fill == p->part_size ? hand_over(p, err) : MLO_OK;
    return status == MLO_OK ? wait_for_threads(p, err) : status;
}

/* Parts are to be larger from now on: none of the old buffers fits. */
static enum mlo_status grow(struct mlo_blob_s3_parts *p, struct mlo_error *err)
{
    enum mlo_status status = wait_for_threads(p, err);
    while (p->spare_count)
        drop_buffer(p, p->spare[--p->spare_count]);
    p->part_size = part_size(p);
    return status;
}

enum mlo_status mlo_blob_s3_parts_write(struct mlo_blob_s3_parts *p, const void *bytes, size_t size,
                                        struct mlo_error *err)
{
    const char *from = bytes;
    while (size) {
        enum mlo_status status = MLO_OK;
        if (p->fill == p->part_size && p->buffer) /* only now: the last part is for who completes */
            status = hand_over(p, err);
        if (status == MLO_OK && !p->buffer && part_size(p) != p->part_size)
            status = grow(p, err);
        if (status == MLO_OK && !p->buffer && !(p->buffer = take_buffer(p)))
            status = mlo_error_nomem(err);
        if (status != MLO_OK)
            return status;
        size_t n = MLO_MIN(size, p->part_size - p->fill);
        memcpy(p->buffer + p->fill, from, n);
        p->fill += n;
        from += n;
        size -= n;
    }
    return MLO_OK;
}

const char *mlo_blob_s3_parts_rest(const struct mlo_blob_s3_parts *p, size_t *size)
{
    *size = p->fill;
    return p->buffer ? p->buffer : "";
}

const struct mlo_s3_part *mlo_blob_s3_parts_stored(const struct mlo_blob_s3_parts *p, size_t *count)
{
    *count = p->count;
    return p->parts;
}

const char *mlo_blob_s3_parts_upload(const struct mlo_blob_s3_parts *p)
{
    return p->upload;
}

enum mlo_status mlo_blob_s3_parts_complete(struct mlo_blob_s3_parts *p, struct mlo_error *err)
{
    enum mlo_status status = p->fill ? hand_over(p, err) : MLO_OK;
    if (status == MLO_OK)
        status = wait_for_threads(p, err);
    if (status != MLO_OK)
        return status;
    bool refused;
    status = mlo_s3_multipart_complete(p->store->s3, p->key, p->upload, p->parts, p->count, &refused, err);
    p->spent = status == MLO_OK || !refused;
    return status;
}

enum mlo_status mlo_blob_s3_parts_new(struct mlo_blob_s3 *s, const char *key, const char *upload,
                                      const struct mlo_s3_part *parts, size_t count, uint64_t size_bytes,
                                      struct mlo_blob_s3_parts **out, struct mlo_error *err)
{
    struct mlo_blob_s3_parts *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return mlo_error_nomem(err);
    p->store = s;
    p->size_hint = size_bytes;
    p->count = count;
    p->part_size = part_size(p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->key = strdup(key);
    p->upload = upload ? strdup(upload) : NULL;
    p->parts = calloc(MLO_S3_PARTS_MAX, sizeof *p->parts); /* pages that are not used cost nothing */
    if (!p->key || !p->parts || (upload && !p->upload)) {
        mlo_blob_s3_parts_free(p, false);
        return mlo_error_nomem(err);
    }
    if (count)
        memcpy(p->parts, parts, count * sizeof *parts);
    *out = p;
    return MLO_OK;
}

void mlo_blob_s3_parts_free(struct mlo_blob_s3_parts *p, bool abort)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    if (p->failed == MLO_OK && !p->spent)
        p->failed = MLO_ECANCELLED; /* what no thread has taken is not sent any more */
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->thread_count; i++)
        pthread_join(p->threads[i], NULL);
    if (abort && p->upload && !p->spent)
        (void)!mlo_s3_multipart_abort(p->store->s3, p->key, p->upload, NULL); /* else the sweep finds it */
    drop_buffer(p, p->buffer);
    drop_buffer(p, p->job);
    while (p->spare_count)
        drop_buffer(p, p->spare[--p->spare_count]);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->key);
    free(p->upload);
    free(p->parts);
    free(p);
}
