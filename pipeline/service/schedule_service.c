/* The clock of schedules: a thread of each server, which looks what is due and what is over. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "pipeline/service/schedule_impl.h"

/* Of one tick: what is left comes with the next. */
enum { TICK_MAX = 1000, EVERY_MS = 1000 };

struct mlo_schedules {
    struct mlo_db *db;
    uint32_t every_ms;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool stopping;
};

enum mlo_status mlo_schedule_tick(struct mlo_db *db, const char *now, struct mlo_schedule_tick *tick,
                                  struct mlo_error *err)
{
    struct mlo_schedule_tick ignored;
    enum mlo_status status = MLO_OK;
    bool none = false;
    tick = tick ? tick : &ignored;
    *tick = (struct mlo_schedule_tick){0};
    /* ends first: what is over is in nobody's way */
    for (int i = 0; i < TICK_MAX && !none; i++)
        MLO_TRY(mlo_schedule_end_over(db, now, tick, &none, err));
    none = false;
    for (int i = 0; i < TICK_MAX && !none; i++)
        MLO_TRY(mlo_schedule_fire_due(db, now, tick, &none, err));
out:
    return status;
}

static void *keep_time(void *arg)
{
    struct mlo_schedules *s = arg;
    bool trouble = false;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct timespec until;
        struct mlo_error err = {0};
        int woken = 0;
        pthread_mutex_unlock(&s->lock);
        bool failed = mlo_schedule_tick(s->db, NULL, NULL, &err) != MLO_OK;
        if (failed && !trouble) /* once, and not each second that a database is away */
            mlo_log_error(MLO_LOG_WARN, "schedules wait: the next look goes on", &err);
        trouble = failed;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += s->every_ms / 1000;
        until.tv_nsec += (long)(s->every_ms % 1000) * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&s->lock);
        while (!s->stopping && woken == 0)
            woken = pthread_cond_timedwait(&s->woken, &s->lock, &until);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum mlo_status mlo_schedules_start(struct mlo_db *db, uint32_t every_ms, struct mlo_schedules **out,
                                    struct mlo_error *err)
{
    pthread_condattr_t attributes;
    struct mlo_schedules *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return mlo_error_nomem(err);
    s->db = db;
    s->every_ms = every_ms ? every_ms : EVERY_MS;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->woken, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&s->thread, NULL, keep_time, s) != 0) {
        pthread_cond_destroy(&s->woken);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return mlo_error_set(err, MLO_EUNAVAILABLE, "cannot start the thread that keeps schedules");
    }
    *out = s;
    return MLO_OK;
}

void mlo_schedules_stop(struct mlo_schedules *s)
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
