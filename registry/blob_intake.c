/* Hashing and writing beside reading: a large upload's bytes are hashed and given to the store by a thread
 * while the next ones come over the connection, so that it takes as long as the slower of both. */
#include "registry/blob_intake_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4, SLOT_BYTES = 256 << 10, BESIDE_FROM = 4 << 20 /* bytes; a thread for fewer is no gain */ };

struct mlo_blob_beside {
    struct mlo_blob_intake *in;
    pthread_t thread;
    pthread_mutex_t lock; /* taken, filled, ended, dropped; in->failed */
    pthread_cond_t changed;
    unsigned taken, filled; /* slots so far, by the thread and by the reader */
    bool ended, dropped;
    size_t sizes[SLOTS]; /* of the one that is being filled: the reader's own */
    unsigned char bytes[SLOTS][SLOT_BYTES];
};

/* All bytes are hashed, also behind a failure: a digest is that of all, or it could be another blob's. */
static void take(struct mlo_blob_intake *in, const void *bytes, size_t size, struct mlo_error *failed)
{
    if (failed->status == MLO_OK)
        failed->status = in->write(in->arg, bytes, size, failed);
    mlo_hasher_update(in->hasher, bytes, size);
}

static void *run(void *arg)
{
    struct mlo_blob_beside *b = arg;
    struct mlo_error failed = b->in->failed;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (b->taken == b->filled && !b->ended)
            pthread_cond_wait(&b->changed, &b->lock);
        if (b->taken == b->filled || b->dropped)
            break;
        unsigned slot = b->taken % SLOTS;
        pthread_mutex_unlock(&b->lock);
        take(b->in, b->bytes[slot], b->sizes[slot], &failed);
        pthread_mutex_lock(&b->lock);
        if (failed.status != b->in->failed.status)
            b->in->failed = failed;
        b->taken++;
        pthread_cond_signal(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* NULL: no thread or no memory to be had. */
static struct mlo_blob_beside *start(struct mlo_blob_intake *in)
{
    struct mlo_blob_beside *b = malloc(sizeof *b);
    if (!b)
        return NULL;
    memset(b, 0, offsetof(struct mlo_blob_beside, bytes));
    b->in = in;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    if (pthread_create(&b->thread, NULL, run, b) == 0)
        return b;
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
    return NULL;
}

/* The slot that was filled last is the thread's, the next one empty. A wake-up costs more than the copy of
 * what a connection gives at a time: only full slots, and the last one, are handed over. */
static enum mlo_status hand_over(struct mlo_blob_beside *b)
{
    pthread_mutex_lock(&b->lock);
    b->filled++;
    pthread_cond_signal(&b->changed);
    while (b->filled - b->taken == SLOTS)
        pthread_cond_wait(&b->changed, &b->lock);
    enum mlo_status failed = b->in->failed.status;
    pthread_mutex_unlock(&b->lock);
    b->sizes[b->filled % SLOTS] = 0; /* only this side changes `filled` */
    return failed;
}

static enum mlo_status copy(struct mlo_blob_beside *b, const unsigned char *bytes, size_t size)
{
    enum mlo_status failed = MLO_OK;
    while (size > 0 && failed == MLO_OK) {
        unsigned slot = b->filled % SLOTS;
        size_t n = MLO_MIN(size, SLOT_BYTES - b->sizes[slot]);
        memcpy(b->bytes[slot] + b->sizes[slot], bytes, n);
        b->sizes[slot] += n;
        bytes += n;
        size -= n;
        if (b->sizes[slot] == SLOT_BYTES)
            failed = hand_over(b);
    }
    return failed;
}

/* The thread is gone then. */
static void join(struct mlo_blob_intake *in, bool drop)
{
    struct mlo_blob_beside *b = in->beside;
    in->beside = NULL;
    if (!b)
        return;
    if (!drop && b->sizes[b->filled % SLOTS])
        (void)!hand_over(b);
    pthread_mutex_lock(&b->lock);
    b->ended = true;
    b->dropped = drop;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

enum mlo_status mlo_blob_intake_open(struct mlo_blob_intake *in, mlo_blob_sink_fn *write, void *arg,
                                     struct mlo_error *err)
{
    *in = (struct mlo_blob_intake){.hasher = mlo_hasher_new(), .write = write, .arg = arg};
    return in->hasher ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_blob_intake_add(struct mlo_blob_intake *in, const void *bytes, size_t size,
                                    struct mlo_error *err)
{
    /* said by no call yet: where a digest was asked for. While there is a thread, hand_over() asks. */
    if (!in->beside && in->failed.status != MLO_OK)
        return mlo_blob_intake_settle(in, err);
    if (!in->beside && in->size_bytes >= BESIDE_FROM)
        in->beside = start(in);
    in->size_bytes += size;
    if (in->beside && copy(in->beside, bytes, size) == MLO_OK)
        return MLO_OK;
    if (!in->beside)
        take(in, bytes, size, &in->failed);
    return mlo_blob_intake_settle(in, err);
}

enum mlo_status mlo_blob_intake_settle(struct mlo_blob_intake *in, struct mlo_error *err)
{
    join(in, false);
    if (in->failed.status != MLO_OK && err)
        *err = in->failed;
    return in->failed.status;
}

void mlo_blob_intake_close(struct mlo_blob_intake *in)
{
    join(in, true);
    mlo_hasher_free(in->hasher);
    in->hasher = NULL;
}
