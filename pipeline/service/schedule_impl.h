/* Private to pipeline/service/schedule*.c. */
#ifndef MLO_SERVICE_SCHEDULE_IMPL_H
#define MLO_SERVICE_SCHEDULE_IMPL_H

#include "base/cron.h"
#include "pipeline/service/service_impl.h"

enum { MLO_SCHEDULE_TIME_SIZE = 40, MLO_SCHEDULE_LABEL_SIZE = 200 };

/* The first time of the expression behind `after` (NULL: now, by the database), as text of a timestamptz. In
 * the zone, a local time that a change of the clock leaves out is as much later as the clock was moved, and
 * one that comes twice counts the second time; an expression of every hour goes by the hours that pass. */
MLO_MUST_USE enum mlo_status mlo_schedule_next(struct mlo_db_conn *conn, const struct mlo_cron *cron,
                                               const char *time_zone, const char *after,
                                               char out[MLO_SCHEDULE_TIME_SIZE], struct mlo_error *err);
/* MLO_EINVAL unless PostgreSQL knows the zone by this name. */
MLO_MUST_USE enum mlo_status mlo_schedule_zone(struct mlo_db_conn *conn, const char *time_zone,
                                               struct mlo_error *err);

/* A schedule's row, locked; texts are of `rows`. */
struct mlo_schedule_row {
    struct mlo_rows rows;
    int64_t id, project, model;
    const char *project_name, *model_name, *name, *stage, *cron, *time_zone, *recipe, *state, *next_at;
    int priority;
};
/* Begins a firing on a locked row: submits the runs of what the stage holds. `due_at` NULL: by hand.
 * MLO_ECONFLICT while another one runs; *firing 0: it was fired for that time before. */
MLO_MUST_USE enum mlo_status mlo_schedule_fire(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                               const char *due_at, const char *now,
                                               const struct mlo_actor *by, int64_t *firing,
                                               struct mlo_error *err);
/* How far a tick came: it goes on behind a row that failed, which the next tick meets again. Begin with 0. */
struct mlo_schedule_walk {
    bool none;                           /* there was no row behind: the end */
    int64_t firing;                      /* the last one that was over */
    int64_t schedule;                    /* the last one that was due, */
    char due_at[MLO_SCHEDULE_TIME_SIZE]; /* and when; "": none yet */
};
/* Fires the next schedule that is due, or records why it could not be. Counts in `tick`. An error is of that
 * schedule, and names it, unless walk->none. */
MLO_MUST_USE enum mlo_status mlo_schedule_fire_due(struct mlo_db *db, const char *now,
                                                   struct mlo_schedule_walk *walk,
                                                   struct mlo_schedule_tick *tick, struct mlo_error *err);
/* So the next firing whose runs are over is ended; it failed where how it ended cannot be found out. */
MLO_MUST_USE enum mlo_status mlo_schedule_end_over(struct mlo_db *db, const char *now,
                                                   struct mlo_schedule_walk *walk,
                                                   struct mlo_schedule_tick *tick, struct mlo_error *err);
/* Whether the status says nothing of the schedule: the next tick asks again. */
bool mlo_schedule_passes(enum mlo_status status);
/* Plans what firing it now would submit, where the stage holds something: whether all that the recipe names
 * is there.
 */
MLO_MUST_USE enum mlo_status mlo_schedule_try(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                              const struct mlo_actor *actor, struct mlo_error *err);
/* Locks the project's schedule of that name. Clear `rows`. */
MLO_MUST_USE enum mlo_status mlo_schedule_lock(struct mlo_db_conn *conn, int64_t project, const char *name,
                                               struct mlo_schedule_row *out, struct mlo_error *err);
/* The statement's rows hold MLO_SCHEDULE_COLUMNS. */
void mlo_schedule_read_row(struct mlo_schedule_row *out);
#define MLO_SCHEDULE_COLUMNS                                                                                 \
    "s.id, s.project_id, s.model_id, s.name, s.stage, s.cron, s.time_zone, s.recipe, s.state, s.next_at, "   \
    "s.priority, p.name, m.name from schedule s join project p on p.id = s.project_id "                      \
    "join model m on m.id = s.model_id "
/* "schedule nightly of vision/resnet", for errors. */
void mlo_schedule_label(const struct mlo_schedule_row *row, char out[MLO_SCHEDULE_LABEL_SIZE]);
/* One firing as JSON. */
MLO_MUST_USE enum mlo_status mlo_schedule_firing_get(struct mlo_db_conn *conn, int64_t firing, json_t **out,
                                                     struct mlo_error *err);
/* An entry of the project's audit log: "schedule nightly", with the members of `after` (taken over). */
MLO_MUST_USE enum mlo_status mlo_schedule_audit(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                                const struct mlo_actor *actor, const char *action,
                                                json_t *after_take, const char *reason,
                                                struct mlo_error *err);

#endif
