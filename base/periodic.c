#include "base/periodic.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct mlo_periodic {
    mlo_periodic_fn *fn;
    void *arg;
    uint64_t first_ms, every_ms;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool stopping;
};

static struct timespec after(uint64_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

static void *run(void *arg)
{
    struct mlo_periodic *p = arg;
    uint64_t wait_ms = p->first_ms;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        const struct timespec until = after(wait_ms);
        int woken = 0;
        while (!p->stopping && wait_ms && woken == 0)
            woken = pthread_cond_timedwait(&p->woken, &p->lock, &until);
        if (p->stopping)
            break;
        pthread_mutex_unlock(&p->lock);
        p->fn(p, p->arg);
        pthread_mutex_lock(&p->lock);
        wait_ms = p->every_ms;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void release(struct mlo_periodic *p)
{
    pthread_cond_destroy(&p->woken);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

enum mlo_status mlo_periodic_start(mlo_periodic_fn *fn, void *arg, uint64_t first_ms, uint64_t every_ms,
                                   const char *what, struct mlo_periodic **out, struct mlo_error *err)
{
    pthread_condattr_t attributes;
    struct mlo_periodic *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return mlo_error_nomem(err);
    p->fn = fn;
    p->arg = arg;
    p->first_ms = first_ms;
    p->every_ms = every_ms ? every_ms : 1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->woken, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&p->thread, NULL, run, p) != 0) {
        release(p);
        return mlo_error_set(err, MLO_EUNAVAILABLE, "cannot start the thread that %s", what);
    }
    *out = p;
    return MLO_OK;
}

bool mlo_periodic_stopping(struct mlo_periodic *periodic)
{
    if (!periodic)
        return false;
    pthread_mutex_lock(&periodic->lock);
    bool stopping = periodic->stopping;
    pthread_mutex_unlock(&periodic->lock);
    return stopping;
}

void mlo_periodic_stop(struct mlo_periodic *periodic)
{
    if (!periodic)
        return;
    pthread_mutex_lock(&periodic->lock);
    periodic->stopping = true;
    pthread_cond_signal(&periodic->woken);
    pthread_mutex_unlock(&periodic->lock);
    pthread_join(periodic->thread, NULL);
    release(periodic);
}
