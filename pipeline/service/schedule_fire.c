/* Schedules that are due: each is fired by one server, in the transaction that says when it is due next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/schedule_impl.h"

enum { S_DUE, S_THIS, S_RUNNING, S_FIRING, S_RUN, S_ADVANCE, S_PAUSE };

#define NOW(parameter) "coalesce(" parameter "::timestamptz, clock_timestamp())"

const struct mlo_sql MLO_SCHEDULE_FIRE_SQL[] = {
    /* one that another server fires at the moment is its own */
    [S_DUE] = {"schedule_due",
               "select " MLO_SCHEDULE_COLUMNS "where s.state = 'enabled' and s.next_at <= " NOW(
                   "$1") " and (s.next_at, s.id) > (coalesce($2::timestamptz, '-infinity'), $3) "
                         "order by s.next_at, s.id limit 1 for update of s skip locked",
               3},
    [S_THIS] = {"schedule_this_due",
                "select " MLO_SCHEDULE_COLUMNS
                "where s.id = $1 and s.state = 'enabled' and s.next_at = $2::timestamptz for update of s",
                2},
    [S_RUNNING] =
        {"schedule_running",
         "select f.id, f.at from schedule_firing f where f.schedule_id = $1 and f.state = 'running'", 1},
    [S_FIRING] =
        {"schedule_add_firing",
         "insert into schedule_firing (schedule_id, due_at, at, fired_by, state, release, version, error, "
         "ended_at) select $1, $2::timestamptz, n.at, $4, $5, $6, $7, $8, "
         "case when $5 <> 'running' then n.at end from (select " NOW(
             "$3") " as at) n "
                   /* a clock that was put back comes to the same time again */
                   "on conflict (schedule_id, due_at) do nothing returning id",
         8},
    [S_RUN] = {"schedule_add_run",
               "insert into schedule_run (firing_id, run_id, target, variant) values ($1, $2, $3, $4)", 4},
    [S_ADVANCE] =
        {"schedule_advance",
         "update schedule set next_at = $2::timestamptz, skipped = skipped + ($3 = 'skipped')::integer, "
         "failed = failed + ($3 = 'failed')::integer, failing = failing or $3 = 'failed' where id = $1",
         3},
    [S_PAUSE] =
        {"schedule_pause",
         "update schedule set state = 'paused', next_at = null, state_reason = $2, failed = failed + 1, "
         "failing = true where id = $1",
         2},
};
const size_t MLO_SCHEDULE_FIRE_SQL_COUNT = MLO_COUNT(MLO_SCHEDULE_FIRE_SQL);

/* --- what a firing submits ----------------------------------------------------------------------------- */

/* The upload compared with itself says nothing: for it, what the recipe expects in relation to it is left
 * out. */
static enum mlo_status recipe_for(const struct mlo_schedule_row *row, bool of_source, struct mlo_recipe **out,
                                  struct mlo_error *err)
{
    json_t *expect;
    size_t kept = 0;
    enum mlo_status status =
        mlo_recipe_parse(row->recipe, strlen(row->recipe), "the schedule's recipe", out, err);
    if (status != MLO_OK || !of_source)
        return status;
    if (!(expect = json_array()))
        return mlo_error_nomem(err);
    for (size_t i = 0; i < (*out)->expect_count; i++) {
        if ((*out)->expect[i].base[0])
            continue;
        json_array_append_new(expect, json_string((*out)->expect[i].text));
        (*out)->expect[kept++] = (*out)->expect[i];
    }
    (*out)->expect_count = kept;
    return json_object_set_new((*out)->canonical, "expect", expect) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status note_run(struct mlo_db_conn *conn, int64_t firing, int64_t run,
                                const struct mlo_run_subject *on, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, firing);
    mlo_param_i64(&p, run);
    mlo_param_text(&p, on->target);
    mlo_param_text(&p, on->variant);
    return mlo_db_exec(conn, &MLO_SCHEDULE_FIRE_SQL[S_RUN], &p, NULL, err);
}

/* One variant of the release, `item` of mlo_stage_get; firing 0: planned, and not submitted. */
static enum mlo_status submit_one(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                  const struct mlo_actor *actor, int64_t version, const json_t *item,
                                  int64_t firing, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_recipe *recipe = NULL;
    struct mlo_run_subject on = {.variant = mlo_json_str(item, "variant", ""),
                                 .target = mlo_json_str(item, "target", "any")};
    json_t *plan = NULL;
    int64_t run;
    if (!mlo_digest_parse(mlo_json_str(item, "artifact", ""), &on.artifact))
        return mlo_error_set(err, MLO_EINTERNAL, "the release in %s has no artifact", row->stage);
    MLO_TRY(recipe_for(row, strcmp(on.variant, MLO_VARIANT_SOURCE) == 0, &recipe, err));
    const struct mlo_run_request request = {.project = row->project,
                                            .version = version,
                                            .recipe = recipe,
                                            .priority = row->priority,
                                            .actor = actor,
                                            .on = &on};
    if (firing) {
        MLO_TRY(mlo_run_submit(conn, &request, &run, err));
        MLO_TRY(note_run(conn, firing, run, &on, err));
    } else {
        MLO_TRY(mlo_run_plan(conn, &request, &plan, err));
    }
out:
    json_decref(plan);
    mlo_recipe_free(recipe);
    return status;
}

/* Each variant of the release. */
static enum mlo_status submit_all(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                  const struct mlo_actor *actor, const json_t *release, int64_t firing,
                                  struct mlo_error *err)
{
    struct mlo_version_info version;
    const json_t *variants = json_object_get(release, "variants"), *item;
    size_t i;
    enum mlo_status status =
        mlo_version_find(conn, row->model, mlo_json_i64(release, "version", -1), &version, err);
    MLO_TRY(status);
    json_array_foreach((json_t *)variants, i, item)
        MLO_TRY(submit_one(conn, row, actor, version.id, item, firing, err));
out:
    return status;
}

enum mlo_status mlo_schedule_try(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                 const struct mlo_actor *actor, struct mlo_error *err)
{
    json_t *held = NULL;
    enum mlo_status status = mlo_stage_get(conn, row->model, row->stage, &held, err);
    const json_t *release = json_object_get(held, "release");
    if (status == MLO_OK && json_is_object(release))
        status = submit_all(conn, row, actor, release, 0, err);
    json_decref(held);
    return status;
}

/* --- firings ------------------------------------------------------------------------------------------- */

struct firing {
    const char *due_at, *now, *by, *state, *error;
    int64_t release, version; /* 0: none */
};

/* *id 0: there is one for that time. */
static enum mlo_status add_firing(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                  const struct firing *f, int64_t *id, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, row->id);
    mlo_param_text(&p, f->due_at);
    mlo_param_text(&p, f->now);
    mlo_param_text(&p, f->by);
    mlo_param_text(&p, f->state);
    mlo_param_id(&p, f->release);
    mlo_param_id(&p, f->version);
    mlo_param_text(&p, f->error);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SCHEDULE_FIRE_SQL[S_FIRING], &p, &rows, err);
    if (status == MLO_OK)
        *id = mlo_rows_count(&rows) ? mlo_rows_i64(&rows, 0, 0) : 0;
    mlo_rows_clear(&rows);
    return status;
}

/* The firing that still runs; 0: none. */
static enum mlo_status running(struct mlo_db_conn *conn, const struct mlo_schedule_row *row, int64_t *firing,
                               struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, row->id);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SCHEDULE_FIRE_SQL[S_RUNNING], &p, &rows, err);
    *firing = status == MLO_OK && mlo_rows_count(&rows) ? mlo_rows_i64(&rows, 0, 0) : 0;
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status in_the_way(int64_t before, struct mlo_error *err)
{
    mlo_error_set(err, MLO_ECONFLICT, "firing %lld of this schedule is still running", (long long)before);
    mlo_error_hint(err, "its runs take longer than the time between two firings, or no worker takes them");
    return MLO_ECONFLICT;
}

enum mlo_status mlo_schedule_fire(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                  const char *due_at, const char *now, const struct mlo_actor *by,
                                  int64_t *firing, struct mlo_error *err)
{
    enum mlo_status status;
    char name[100];
    json_t *held = NULL;
    int64_t before;
    snprintf(name, sizeof name, "schedule %s", row->name);
    const struct mlo_actor actor = {
        .name = name, .role = MLO_SUBMITTER, .project_id = row->project, .via = "system"};
    struct firing f = {.due_at = due_at, .now = now, .by = by ? by->name : name, .state = "running"};
    MLO_TRY(running(conn, row, &before, err));
    if (before) {
        status = in_the_way(before, err);
        goto out;
    }
    MLO_TRY(mlo_stage_get(conn, row->model, row->stage, &held, err));
    const json_t *release = json_object_get(held, "release");
    if (!json_is_object(release)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "%s of %s/%s is empty: there is nothing to measure",
                               row->stage, row->project_name, row->model_name);
        goto out;
    }
    f.release = mlo_json_i64(release, "release", 0);
    f.version = mlo_json_i64(release, "version", 0);
    MLO_TRY(add_firing(conn, row, &f, firing, err));
    if (!*firing)
        goto out;
    MLO_TRY(submit_all(conn, row, &actor, release, *firing, err));
    if (by)
        MLO_TRY(mlo_schedule_audit(
            conn, row, by, "schedule.run",
            json_pack("{s:I, s:I}", "firing", (json_int_t)*firing, "release", (json_int_t)f.release), NULL,
            err));
out:
    json_decref(held);
    return status;
}

/* --- what is due --------------------------------------------------------------------------------------- */

/* One schedule that is due, through the transactions that it takes. */
struct due {
    const char *now;
    const struct mlo_schedule_walk *behind;
    bool none, skipped; /* nothing is due; a firing before it is in the way */
    int64_t firing;     /* that was added; 0: none */
    int64_t id;         /* of the schedule */
    char at[MLO_SCHEDULE_TIME_SIZE], name[MLO_SCHEDULE_LABEL_SIZE];
    struct mlo_error why; /* why it could not be fired */
    bool pause;           /* nor is there a next time */
};

static enum mlo_status advance(struct mlo_db_conn *conn, const struct mlo_schedule_row *row, const char *now,
                               const char *outcome, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_cron cron;
    struct mlo_params p = MLO_PARAMS_INIT;
    char next[MLO_SCHEDULE_TIME_SIZE];
    MLO_TRY(mlo_cron_parse(row->cron, &cron, err));
    MLO_TRY(mlo_schedule_next(conn, &cron, row->time_zone, now, next, err));
    mlo_param_i64(&p, row->id);
    mlo_param_text(&p, next);
    mlo_param_text(&p, outcome);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_FIRE_SQL[S_ADVANCE], &p, NULL, err));
out:
    return status;
}

/* Records a firing that began nothing; `why` is no failure of this function. */
static enum mlo_status record(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                              const struct due *due, const char *outcome, const struct mlo_error *why,
                              int64_t *firing, struct mlo_error *err)
{
    char name[100], *error = mlo_error_json(why, 0);
    snprintf(name, sizeof name, "schedule %s", row->name);
    const struct firing f = {
        .due_at = due->at, .now = due->now, .by = name, .state = outcome, .error = error};
    enum mlo_status status = error ? add_firing(conn, row, &f, firing, err) : mlo_error_nomem(err);
    free(error);
    return status;
}

static enum mlo_status due_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status;
    struct due *due = arg;
    struct mlo_schedule_row row = {.id = 0};
    struct mlo_error why = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t before;
    due->none = due->skipped = false;
    due->id = due->firing = 0;
    mlo_param_text(&p, due->now);
    mlo_param_text(&p, due->behind->due_at[0] ? due->behind->due_at : NULL);
    mlo_param_i64(&p, due->behind->schedule);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_FIRE_SQL[S_DUE], &p, &row.rows, err));
    if (mlo_rows_count(&row.rows) == 0) {
        due->none = true;
        goto out;
    }
    mlo_schedule_read_row(&row);
    due->id = row.id;
    snprintf(due->at, sizeof due->at, "%s", row.next_at);
    mlo_schedule_label(&row, due->name);
    MLO_TRY(running(conn, &row, &before, err));
    due->skipped = before != 0;
    if (due->skipped) {
        (void)in_the_way(before, &why);
        MLO_TRY(record(conn, &row, due, "skipped", &why, &due->firing, err));
    } else {
        MLO_TRY(mlo_schedule_fire(conn, &row, due->at, due->now, NULL, &due->firing, err));
    }
    due->skipped = due->skipped && due->firing;
    MLO_TRY(advance(conn, &row, due->now, due->skipped ? "skipped" : "running", err));
out:
    mlo_rows_clear(&row.rows);
    return status;
}

/* It could not be fired: that is recorded and told, and its next time comes; or it is paused. */
static enum mlo_status failed_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status;
    const struct due *due = arg;
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_schedule_row row = {.id = 0};
    struct mlo_params p = MLO_PARAMS_INIT, q = MLO_PARAMS_INIT;
    int64_t firing;
    mlo_param_i64(&p, due->id);
    mlo_param_text(&p, due->at);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_FIRE_SQL[S_THIS], &p, &row.rows, err));
    if (mlo_rows_count(&row.rows) == 0)
        goto out; /* somebody else was faster, or it was paused */
    mlo_schedule_read_row(&row);
    MLO_TRY(record(conn, &row, due, "failed", &due->why, &firing, err));
    if (due->pause) {
        mlo_param_i64(&q, row.id);
        mlo_param_text(&q, due->why.message);
        MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_FIRE_SQL[S_PAUSE], &q, NULL, err));
    } else {
        MLO_TRY(advance(conn, &row, due->now, firing ? "failed" : "running", err));
        if (!firing)
            goto out; /* what came of that time is recorded and told */
    }
    MLO_TRY(mlo_schedule_audit(conn, &row, &system, "schedule.fail",
                               json_pack("{s:o, s:b, s:{s:s, s:s}}", "firing",
                                         firing ? json_integer(firing) : json_null(), "paused", due->pause,
                                         "error", "code", mlo_status_info(due->why.status)->code, "message",
                                         due->why.message),
                               NULL, err));
out:
    mlo_rows_clear(&row.rows);
    return status;
}

bool mlo_schedule_passes(enum mlo_status status)
{
    return mlo_status_info(status)->retry || status == MLO_ECONFLICT; /* a deadlock */
}

enum mlo_status mlo_schedule_fire_due(struct mlo_db *db, const char *now, struct mlo_schedule_walk *walk,
                                      struct mlo_schedule_tick *tick, struct mlo_error *err)
{
    struct due due = {.now = now, .behind = walk};
    enum mlo_status status = mlo_service_pool_tx(db, due_tx, &due, err);
    walk->none = due.id == 0; /* also of an error: then it is nobody's */
    if (walk->none)
        return status;
    walk->schedule = due.id;
    snprintf(walk->due_at, sizeof walk->due_at, "%s", due.at);
    if (status == MLO_OK) {
        tick->fired += due.firing && !due.skipped;
        tick->skipped += due.skipped;
        return MLO_OK;
    }
    if (!mlo_schedule_passes(status)) {
        due.why = *err;
        status = mlo_service_pool_tx(db, failed_tx, &due, err);
        if (status != MLO_OK && !mlo_schedule_passes(status)) {
            due.pause = true;
            due.why = *err;
            status = mlo_service_pool_tx(db, failed_tx, &due, err);
        }
        tick->failed += status == MLO_OK;
    }
    if (status != MLO_OK)
        mlo_error_prefix(err, "%s", due.name);
    return status;
}
