/* Schedules: what a stage holds is measured again by the clock (docs/schedules.md). A schedule fires at the
 * times of its cron expression, on one server, once a time: for each variant of the stage's release it
 * submits a run of its recipe, which holds observing steps alone. When the runs are over, their expectations
 * and the stage's gates on evidence say how the firing ended; nothing is moved, ever.
 *
 * Part of service.h. Times are RFC 3339 UTC; all JSON results are new references, yours. */
#ifndef MLO_SERVICE_SCHEDULES_H
#define MLO_SERVICE_SCHEDULES_H

#include "pipeline/steps/steps.h"
#include "registry/registry.h"

/* Background work, which waits for everybody else's. */
#define MLO_SCHEDULE_PRIORITY (-10)
/* Of a project, removed ones not counted. */
enum { MLO_SCHEDULES_MAX = 100 };

struct mlo_schedule_request {
    int64_t project, model; /* registry ids */
    const char *name;       /* in the project: lowercase letters, digits, '.', '_', '-' */
    const char *stage;      /* "staging" or "production" */
    const char *cron;       /* base/cron.h */
    const char *time_zone;  /* NULL: "UTC" */
    const struct mlo_recipe *recipe;
    int priority;
    bool paused; /* from the beginning */
    const struct mlo_actor *actor;
};

/* A schedule, as it is answered: {"id","name","model","stage","cron","time_zone","recipe_name","priority",
 * "state":"enabled"|"paused","state_reason","next_at","succeeded","failed","skipped","cancelled"
 * (firings),"failing", "last_success_at","last": the newest firing or null,"created_at","created_by"}. A
 * firing: {"id","due_at" (null: by
 * hand),"at","fired_by","state":"running"|"succeeded"|"failed"|"cancelled"|"skipped","release","version","runs":
 * [{"run","target","variant","state"}],"error","conditions" (what the gates said),"ended_at"}. */

/* Adds one; production needs the role promoter in the project, staging that of a submitter. MLO_EEXISTS: the
 * name is taken. MLO_EINVAL: the expression, the zone, or a recipe with steps that make something. Where the
 * stage holds a release, what the recipe names must be there. MLO_EQUOTA: the project has MLO_SCHEDULES_MAX.
 * Audited ("schedule.create"). */
MLO_MUST_USE enum mlo_status mlo_schedule_add(struct mlo_db_conn *conn,
                                              const struct mlo_schedule_request *request, json_t **out,
                                              struct mlo_error *err);
/* Array of all of a project that were not removed, by name. */
MLO_MUST_USE enum mlo_status mlo_schedule_list(struct mlo_db_conn *conn, int64_t project, json_t **out,
                                               struct mlo_error *err);
/* One, with "recipe" (canonical text); MLO_ENOTFOUND. */
MLO_MUST_USE enum mlo_status mlo_schedule_get(struct mlo_db_conn *conn, int64_t project, const char *name,
                                              json_t **out, struct mlo_error *err);
/* Its firings, newest first: {"items","next": text to give as `before`, or null}; `before` 0: from the
 * newest; `limit` 0: 50. */
MLO_MUST_USE enum mlo_status mlo_schedule_firings(struct mlo_db_conn *conn, int64_t project, const char *name,
                                                  int64_t before, int limit, json_t **out,
                                                  struct mlo_error *err);

/* Pausing and resuming what is so already changes nothing. One that is resumed is due at its next time: what
 * was missed meanwhile is not made up for. Removing leaves its firings and runs; the name is free again.
 * Roles as for adding; audited ("schedule.pause", "schedule.resume", "schedule.remove"). *out (may be NULL)
 * is as it is now; a removed one is JSON null. `reason` may be NULL. */
enum mlo_schedule_change { MLO_SCHEDULE_PAUSE, MLO_SCHEDULE_RESUME, MLO_SCHEDULE_REMOVE };
MLO_MUST_USE enum mlo_status mlo_schedule_set(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project, const char *name,
                                              enum mlo_schedule_change change, const char *reason,
                                              json_t **out, struct mlo_error *err);
/* Fires it now, paused or not, beside its times; needs the role submitter. MLO_ECONFLICT while a firing runs,
 * MLO_ENOTFOUND when the stage is empty. *out is the firing. */
MLO_MUST_USE enum mlo_status mlo_schedule_run(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project, const char *name, json_t **out,
                                              struct mlo_error *err);

struct mlo_schedule_tick {
    int fired, skipped, failed; /* firings that began, that others were in the way of, that could not begin */
    int ended;                  /* firings whose runs are over */
};
/* Fires what is due and ends what is over, until nothing is left to do; what another server does at the
 * moment is left to it. One that fails is in nobody's way: the others go on, the first failure is returned,
 * with the schedule's name, and the next tick tries again. `now` (RFC 3339) stands for the database's clock
 * where it is not NULL. Times that were missed are one firing, due at the first of them. `tick` (may be NULL)
 * counts. */
MLO_MUST_USE enum mlo_status mlo_schedule_tick(struct mlo_db *db, const char *now,
                                               struct mlo_schedule_tick *tick, struct mlo_error *err);

/* Ticks every so often, on a thread of its own. Any number of servers may. `db` is borrowed; `every_ms` 0:
 * 1,000. Failures are logged; the next tick goes on. */
struct mlo_schedules;
MLO_MUST_USE enum mlo_status mlo_schedules_start(struct mlo_db *db, uint32_t every_ms,
                                                 struct mlo_schedules **out, struct mlo_error *err);
/* Waits for the transaction under way, not for all that is due. NULL is allowed. */
void mlo_schedules_stop(struct mlo_schedules *schedules);

#endif
