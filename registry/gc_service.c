#include "registry/gc_service.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct mlo_gc_service {
    struct mlo_gc_service_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool stopping;
};

enum { PIECE_MS = 5000, FIRST_AFTER_S = 60 };

static bool stopping(struct mlo_gc_service *s)
{
    pthread_mutex_lock(&s->lock);
    bool now = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return now;
}

/* In pieces, so that a stop need not wait for all of it. */
static void collect(struct mlo_gc_service *s)
{
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    struct mlo_gc_options options = {.blobs = s->o.blobs, .grace_s = s->o.grace_s, .budget_ms = PIECE_MS};
    struct mlo_gc_result r = {.more = true};
    struct mlo_error err = {0};
    enum mlo_status status = MLO_OK;
    while (status == MLO_OK && r.more && !stopping(s)) {
        struct mlo_db_conn *conn = NULL;
        status = mlo_db_acquire(s->o.db, &conn, &err);
        if (status == MLO_OK)
            status = mlo_gc_run(conn, &actor, &options, &r, NULL, &err);
        mlo_db_release(conn);
        options.behind = r.next;
        if (status == MLO_OK && (r.purged || r.marked || r.removed)) {
            char removed[24], bytes[32];
            snprintf(removed, sizeof removed, "%lld", (long long)r.removed);
            mlo_log(MLO_LOG_INFO, "garbage was collected", "blobs", removed, "bytes",
                    mlo_str_size((uint64_t)r.removed_bytes, bytes), NULL);
        }
    }
    if (status != MLO_OK)
        mlo_log_error(MLO_LOG_WARN, "garbage collection failed; the next one goes on", &err);
}

static void *keep_clean(void *arg)
{
    struct mlo_gc_service *s = arg;
    int64_t wait_s = MLO_MIN((int64_t)FIRST_AFTER_S, s->o.every_s);
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct timespec until;
        int woken = 0;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += wait_s;
        while (!s->stopping && woken == 0)
            woken = pthread_cond_timedwait(&s->woken, &s->lock, &until);
        if (s->stopping)
            break;
        pthread_mutex_unlock(&s->lock);
        collect(s);
        pthread_mutex_lock(&s->lock);
        wait_s = s->o.every_s;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum mlo_status mlo_gc_service_start(const struct mlo_gc_service_options *options,
                                     struct mlo_gc_service **out, struct mlo_error *err)
{
    pthread_condattr_t attributes;
    struct mlo_gc_service *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return mlo_error_nomem(err);
    s->o = *options;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->woken, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&s->thread, NULL, keep_clean, s) != 0) {
        pthread_cond_destroy(&s->woken);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return mlo_error_set(err, MLO_EUNAVAILABLE, "cannot start the thread that collects garbage");
    }
    *out = s;
    return MLO_OK;
}

void mlo_gc_service_stop(struct mlo_gc_service *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->woken);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->woken);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
