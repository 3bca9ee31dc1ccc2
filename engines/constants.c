/* Constants that plans of one model have in common: made once, counted, freed with the last plan. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engines/engines_impl.h"

enum { BUCKETS = 256 };

struct mlo_constant {
    struct mlo_digest key;
    struct mlo_constant *next;
    struct mlo_constants *owner;
    void *data;
    size_t size_bytes;
    unsigned users;
    bool made; /* else a thread is making it */
};

struct mlo_constants {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mlo_constant *buckets[BUCKETS];
    size_t bytes;
};

struct mlo_constants *mlo_constants_new(void)
{
    struct mlo_constants *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    return c;
}

void mlo_constants_free(struct mlo_constants *constants)
{
    if (!constants)
        return;
    pthread_cond_destroy(&constants->changed);
    pthread_mutex_destroy(&constants->lock);
    free(constants);
}

size_t mlo_constants_bytes(struct mlo_constants *constants)
{
    pthread_mutex_lock(&constants->lock);
    size_t bytes = constants->bytes;
    pthread_mutex_unlock(&constants->lock);
    return bytes;
}

static struct mlo_constant **bucket_of(struct mlo_constants *c, const struct mlo_digest *key)
{
    return &c->buckets[key->bytes[0] % BUCKETS];
}

/* Takes a user away; the lock is held. */
static void drop(struct mlo_constants *c, struct mlo_constant *entry)
{
    if (--entry->users)
        return;
    struct mlo_constant **at = bucket_of(c, &entry->key);
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    c->bytes -= entry->made ? entry->size_bytes : 0;
    free(entry->data);
    free(entry);
}

/* The entry with one user more, made or to be made by this thread; NULL: out of memory. The lock is held. */
static struct mlo_constant *take(struct mlo_constants *c, const struct mlo_digest *key, size_t size_bytes,
                                 bool *mine)
{
    struct mlo_constant *entry = *bucket_of(c, key);
    while (entry && !mlo_digest_eq(&entry->key, key))
        entry = entry->next;
    *mine = !entry;
    if (!entry) {
        entry = calloc(1, sizeof *entry);
        if (!entry)
            return NULL;
        *entry = (struct mlo_constant){.key = *key, .owner = c, .size_bytes = size_bytes, .users = 1};
        entry->next = *bucket_of(c, key);
        *bucket_of(c, key) = entry;
        return entry;
    }
    entry->users++;
    while (!entry->made && entry->owner)
        pthread_cond_wait(&c->changed, &c->lock);
    return entry;
}

struct mlo_constant *mlo_constants_get(struct mlo_constants *c, const struct mlo_digest *key,
                                       size_t size_bytes, mlo_make_constant_fn *make, void *arg)
{
    bool mine;
    pthread_mutex_lock(&c->lock);
    struct mlo_constant *entry = take(c, key, size_bytes, &mine);
    if (entry && mine) {
        pthread_mutex_unlock(&c->lock);
        void *data = mlo_engine_aligned(size_bytes);
        bool ok = data && make(arg, data);
        pthread_mutex_lock(&c->lock);
        entry->data = data;
        entry->made = ok;
        if (ok)
            c->bytes += size_bytes;
        else
            entry->owner = NULL; /* whoever waits for it fails too */
        pthread_cond_broadcast(&c->changed);
    }
    if (entry && !entry->made) {
        drop(c, entry);
        entry = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    return entry;
}

const void *mlo_constant_data(const struct mlo_constant *constant)
{
    return constant->data;
}

void mlo_constant_release(struct mlo_constant *constant)
{
    if (!constant)
        return;
    struct mlo_constants *c = constant->owner;
    pthread_mutex_lock(&c->lock);
    drop(c, constant);
    pthread_mutex_unlock(&c->lock);
}
