/* Hashing beside writing: a large upload's bytes are hashed by a thread while the next ones are read and
 * written, so that it takes as long as the slower of both. */
#include "registry/blob_hash_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4, SLOT_BYTES = 256 << 10, BESIDE_FROM = 4 << 20 /* bytes; a thread for fewer is no gain */ };

struct mlo_blob_hash {
    struct mlo_hasher *hasher;
    pthread_t thread;
    pthread_mutex_t lock; /* taken, filled, ended */
    pthread_cond_t changed;
    unsigned taken, filled; /* slots so far, by the thread and by the writer */
    bool ended;
    size_t fill; /* of the slot that is being filled: the writer's own */
    size_t sizes[SLOTS];
    unsigned char bytes[SLOTS][SLOT_BYTES];
};

static void *run(void *arg)
{
    struct mlo_blob_hash *h = arg;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (h->taken == h->filled && !h->ended)
            pthread_cond_wait(&h->changed, &h->lock);
        if (h->taken == h->filled)
            break;
        unsigned slot = h->taken % SLOTS;
        pthread_mutex_unlock(&h->lock);
        mlo_hasher_update(h->hasher, h->bytes[slot], h->sizes[slot]);
        pthread_mutex_lock(&h->lock);
        h->taken++;
        pthread_cond_signal(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* NULL: no thread or no memory to be had. */
static struct mlo_blob_hash *start(struct mlo_hasher *hasher)
{
    struct mlo_blob_hash *h = malloc(sizeof *h);
    if (!h)
        return NULL;
    memset(h, 0, offsetof(struct mlo_blob_hash, bytes));
    h->hasher = hasher;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    if (pthread_create(&h->thread, NULL, run, h) == 0)
        return h;
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
    return NULL;
}

/* The slot that was filled last is the thread's. A wake-up costs more than the copy of what a connection
 * gives at a time: only full slots, and the last one, are handed over. */
static void hand_over(struct mlo_blob_hash *h)
{
    pthread_mutex_lock(&h->lock);
    h->filled++;
    pthread_cond_signal(&h->changed);
    while (h->filled - h->taken == SLOTS)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    h->fill = 0;
}

static void update(struct mlo_blob_hash *h, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    while (size > 0) {
        unsigned slot = h->filled % SLOTS; /* only this side changes `filled` */
        size_t n = MLO_MIN(size, SLOT_BYTES - h->fill);
        memcpy(h->bytes[slot] + h->fill, at, n);
        h->sizes[slot] = h->fill += n;
        at += n;
        size -= n;
        if (h->fill == SLOT_BYTES)
            hand_over(h);
    }
}

void mlo_blob_hash_add(struct mlo_blob_hash **beside, struct mlo_hasher *hasher, uint64_t so_far,
                       const void *bytes, size_t size)
{
    if (!*beside && so_far >= BESIDE_FROM)
        *beside = start(hasher);
    if (*beside)
        update(*beside, bytes, size);
    else
        mlo_hasher_update(hasher, bytes, size);
}

void mlo_blob_hash_end(struct mlo_blob_hash **beside)
{
    struct mlo_blob_hash *h = *beside;
    *beside = NULL;
    if (!h)
        return;
    if (h->fill)
        hand_over(h);
    pthread_mutex_lock(&h->lock);
    h->ended = true;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
