/* The clock of schedules: a thread of each server, which looks what is due and what is over. */
#include <stdlib.h>
#include <string.h>

#include "base/periodic.h"
#include "pipeline/service/schedule_impl.h"

/* Of one tick: what is left comes with the next. */
enum { TICK_MAX = 1000, EVERY_MS = 1000 };

struct mlo_schedules {
    struct mlo_db *db;
    struct mlo_periodic *clock;
    struct mlo_error told; /* of the last look: a failure is told once, and not each second that it lasts */
};

typedef enum mlo_status next_fn(struct mlo_db *db, const char *now, struct mlo_schedule_walk *walk,
                                struct mlo_schedule_tick *tick, struct mlo_error *err);

/* Each row, also behind one that fails: the first failure is what is told. */
static enum mlo_status each(next_fn *next, struct mlo_periodic *clock, struct mlo_db *db, const char *now,
                            struct mlo_schedule_tick *tick, struct mlo_error *err)
{
    struct mlo_schedule_walk walk = {.none = false};
    enum mlo_status first = MLO_OK;
    for (int i = 0; i < TICK_MAX && !walk.none && !mlo_periodic_stopping(clock); i++) {
        struct mlo_error failed = {0};
        enum mlo_status status = next(db, now, &walk, tick, &failed);
        if (status != MLO_OK && first == MLO_OK) {
            first = status;
            *err = failed;
        }
    }
    return first;
}

/* clock: whose stop ends it between two rows; NULL: nobody's */
static enum mlo_status tick_of(struct mlo_periodic *clock, struct mlo_db *db, const char *now,
                               struct mlo_schedule_tick *tick, struct mlo_error *err)
{
    struct mlo_error firing = {0};
    /* ends first: what is over is in nobody's way */
    enum mlo_status ended = each(mlo_schedule_end_over, clock, db, now, tick, err);
    enum mlo_status fired = each(mlo_schedule_fire_due, clock, db, now, tick, &firing);
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

static void look(struct mlo_periodic *clock, void *arg)
{
    struct mlo_schedules *s = arg;
    struct mlo_schedule_tick did = {0};
    struct mlo_error err = {0};
    bool failed = tick_of(clock, s->db, NULL, &did, &err) != MLO_OK;
    if (failed && strcmp(err.message, s->told.message) != 0)
        mlo_log_error(MLO_LOG_WARN, "schedules wait: the next look goes on", &err);
    s->told = err;
}

enum mlo_status mlo_schedules_start(struct mlo_db *db, uint32_t every_ms, struct mlo_schedules **out,
                                    struct mlo_error *err)
{
    struct mlo_schedules *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return mlo_error_nomem(err);
    s->db = db;
    enum mlo_status status =
        mlo_periodic_start(look, s, 0, every_ms ? every_ms : EVERY_MS, "keeps schedules", &s->clock, err);
    if (status == MLO_OK)
        *out = s;
    else
        free(s);
    return status;
}

void mlo_schedules_stop(struct mlo_schedules *s)
{
    if (!s)
        return;
    mlo_periodic_stop(s->clock);
    free(s);
}
