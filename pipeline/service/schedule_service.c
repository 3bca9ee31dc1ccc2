/* The clock of schedules: a thread of each server, which looks what is due and what is over. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
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

static bool told_to_stop(struct mlo_schedules *s)
{
    if (!s)
        return false;
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return stopping;
}

typedef enum mlo_status next_fn(struct mlo_db *db, const char *now, struct mlo_schedule_walk *walk,
                                struct mlo_schedule_tick *tick, struct mlo_error *err);

/* Each row, also behind one that fails: the first failure is what is told. */
static enum mlo_status each(next_fn *next, struct mlo_schedules *s, struct mlo_db *db, const char *now,
                            struct mlo_schedule_tick *tick, struct mlo_error *err)
{
    struct mlo_schedule_walk walk = {.none = false};
    enum mlo_status first = MLO_OK;
    for (int i = 0; i < TICK_MAX && !walk.none && !told_to_stop(s); i++) {
        struct mlo_error failed = {0};
        enum mlo_status status = next(db, now, &walk, tick, &failed);
        if (status != MLO_OK && first == MLO_OK) {
            first = status;
            *err = failed;
        }
    }
    return first;
}

/* s: whose stop ends it between two rows; NULL: nobody's */
static enum mlo_status tick_of(struct mlo_schedules *s, struct mlo_db *db, const char *now,
                               struct mlo_schedule_tick *tick, struct mlo_error *err)
{
    struct mlo_error firing = {0};
    /* ends first: what is over is in nobody's way */
    enum mlo_status ended = each(mlo_schedule_end_over, s, db, now, tick, err);
    enum mlo_status fired = each(mlo_schedule_fire_due, s, db, now, tick, &firing);
    if (ended == MLO_OK && fired != MLO_OK)
        *err = firing;
    return ended != MLO_OK ? ended : fired;
}

enum mlo_status mlo_schedule_tick(struct mlo_db *db, const char *now, struct mlo_schedule_tick *tick,
                                  struct mlo_error *err)
{
    struct mlo_schedule_tick ignored;
    tick = tick ? tick : &ignored;
    *tick = (struct mlo_schedule_tick){0};
    return tick_of(NULL, db, now, tick, err);
}

static void *keep_time(void *arg)
{
    struct mlo_schedules *s = arg;
    struct mlo_error told = {0};
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct timespec until;
        struct mlo_error err = {0};
        int woken = 0;
        pthread_mutex_unlock(&s->lock);
        struct mlo_schedule_tick did = {0};
        bool failed = tick_of(s, s->db, NULL, &did, &err) != MLO_OK;
        if (failed && strcmp(err.message, told.message) != 0) /* once, and not each second that it lasts */
            mlo_log_error(MLO_LOG_WARN, "schedules wait: the next look goes on", &err);
        told = err;
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
