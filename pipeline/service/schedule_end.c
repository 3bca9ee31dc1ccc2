/* Firings whose runs are over: how they ended, by the runs' expectations and by the stage's gates on
 * evidence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/schedule_impl.h"
#include "registry/gates.h"

enum { S_OVER, S_ROW, S_RUNS, S_END, S_COUNT };

const struct mlo_sql MLO_SCHEDULE_END_SQL[] = {
    /* schedules are locked before firings, as by those that fire */
    [S_OVER] = {"schedule_over",
                "select f.id, f.schedule_id, f.release from schedule s join schedule_firing f on "
                "f.schedule_id = s.id where f.state = 'running' and not exists (select from schedule_run x "
                "  join run r on r.id = x.run_id where x.firing_id = f.id and r.finished_at is null) "
                "and f.id > $1 order by f.id limit 1 for update of s, f skip locked",
                1},
    [S_ROW] = {"schedule_row", "select " MLO_SCHEDULE_COLUMNS "where s.id = $1", 1},
    [S_RUNS] = {"schedule_runs",
                "select x.run_id, x.target, x.variant, r.state, r.error from schedule_run x "
                "join run r on r.id = x.run_id where x.firing_id = $1 order by x.target",
                1},
    [S_END] = {"schedule_end_firing",
               "update schedule_firing set state = $2, error = $3, conditions = $4, "
               "ended_at = coalesce($5::timestamptz, clock_timestamp()) where id = $1",
               5},
    [S_COUNT] =
        {"schedule_count",
         "update schedule set succeeded = succeeded + ($2 = 'succeeded')::integer, "
         "failed = failed + ($2 = 'failed')::integer, cancelled = cancelled + ($2 = 'cancelled')::integer, "
         "failing = case $2 when 'succeeded' then false when 'failed' then true else failing end, "
         "last_success_at = case when $2 = 'succeeded' then coalesce($3::timestamptz, clock_timestamp()) "
         "  else last_success_at end where id = $1",
         3},
};
const size_t MLO_SCHEDULE_END_SQL_COUNT = MLO_COUNT(MLO_SCHEDULE_END_SQL);

enum { R_RUN, R_TARGET, R_VARIANT, R_STATE, R_ERROR };

struct end {
    const char *now;
    int64_t behind;              /* the one to end has a higher number */
    int64_t firing;              /* that is ended; 0: none is over */
    const struct mlo_error *why; /* how the one behind `behind` ended cannot be found out; NULL: not tried */
    char name[MLO_SCHEDULE_LABEL_SIZE];
    const char *state;
    json_t *error, *conditions, *runs; /* NULL: none; runs: their numbers */
};

static void end_clear(struct end *end)
{
    json_decref(end->error);
    json_decref(end->conditions);
    json_decref(end->runs);
    end->error = end->conditions = end->runs = NULL;
}

/* The first run that failed says why, else the first that was cancelled. */
static enum mlo_status by_runs(const struct mlo_rows *rows, struct end *end, struct mlo_error *err)
{
    end->state = "succeeded";
    end->runs = json_array();
    for (int i = 0; end->runs && i < mlo_rows_count(rows); i++) {
        const char *state = mlo_rows_text(rows, i, R_STATE), *text = mlo_rows_text(rows, i, R_ERROR);
        bool failed = strcmp(state, "failed") == 0;
        struct mlo_buf message = MLO_BUF_INIT;
        json_t *why = text ? json_loads(text, 0, NULL) : NULL;
        json_array_append_new(end->runs, json_integer(mlo_rows_i64(rows, i, R_RUN)));
        if (strcmp(state, "succeeded") != 0 &&
            (!end->error || (failed && strcmp(end->state, "failed") != 0))) {
            mlo_buf_printf(&message, "run %lld (%s for %s) %s: %s", (long long)mlo_rows_i64(rows, i, R_RUN),
                           mlo_rows_text(rows, i, R_VARIANT), mlo_rows_text(rows, i, R_TARGET),
                           failed ? "failed" : "was cancelled",
                           mlo_json_str(why, "message", "no reason is recorded"));
            json_decref(end->error);
            end->error = json_pack("{s:s, s:s}", "code", mlo_json_str(why, "code", "job-failed"), "message",
                                   mlo_buf_str(&message));
            end->state = failed ? "failed" : "cancelled";
        }
        mlo_buf_clear(&message);
        json_decref(why);
    }
    return end->runs && (end->error || strcmp(end->state, "succeeded") == 0) ? MLO_OK : mlo_error_nomem(err);
}

/* Where all runs succeeded and the stage holds what they measured: what its gates say now. */
static enum mlo_status by_gates(struct mlo_db_conn *conn, const struct mlo_schedule_row *row, int64_t release,
                                struct end *end, struct mlo_error *err)
{
    json_t *checked = NULL, *condition, *first = NULL;
    struct mlo_buf message = MLO_BUF_INIT;
    size_t i;
    enum mlo_status status = mlo_stage_recheck(conn, row->model, row->stage, &checked, err);
    if (status == MLO_ENOTFOUND) /* it was emptied meanwhile */
        return MLO_OK;
    if (status != MLO_OK)
        return status;
    if (mlo_json_i64(checked, "release", 0) != release)
        goto out;
    end->conditions = json_incref(json_object_get(checked, "conditions"));
    json_array_foreach(end->conditions, i, condition) if (!first && !mlo_json_bool(condition, "holds", false))
        first = condition;
    if (!first)
        goto out;
    mlo_buf_printf(&message, "the gates of %s would refuse release %lld now: \"%s\"%s%s: %s", row->stage,
                   (long long)release, mlo_json_str(first, "condition", ""),
                   mlo_json_str(first, "target", NULL) ? " for " : "", mlo_json_str(first, "target", ""),
                   mlo_json_str(first, "why", ""));
    end->error =
        json_pack("{s:s, s:s}", "code", mlo_status_info(MLO_EGATE)->code, "message", mlo_buf_str(&message));
    end->state = "failed";
    if (!end->error)
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&message);
    json_decref(checked);
    return status;
}

/* It measured, and nobody can say what that means: it failed. */
static enum mlo_status by_error(struct end *end, struct mlo_error *err)
{
    char *text = mlo_error_json(end->why, 0);
    end->error = text ? json_loads(text, 0, NULL) : NULL;
    end->state = "failed";
    free(text);
    return end->error ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status record(struct mlo_db_conn *conn, const struct mlo_schedule_row *row, int64_t firing,
                              const struct end *end, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf error = MLO_BUF_INIT, conditions = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT, q = MLO_PARAMS_INIT;
    if (end->error)
        mlo_json_canonical(end->error, &error);
    if (end->conditions)
        mlo_json_canonical(end->conditions, &conditions);
    if (!mlo_buf_ok(&error) || !mlo_buf_ok(&conditions)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_param_i64(&p, firing);
    mlo_param_text(&p, end->state);
    mlo_param_text(&p, end->error ? mlo_buf_str(&error) : NULL);
    mlo_param_text(&p, end->conditions ? mlo_buf_str(&conditions) : NULL);
    mlo_param_text(&p, end->now);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_END_SQL[S_END], &p, NULL, err));
    mlo_param_i64(&q, row->id);
    mlo_param_text(&q, end->state);
    mlo_param_text(&q, end->now);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_END_SQL[S_COUNT], &q, NULL, err));
out:
    mlo_buf_clear(&error);
    mlo_buf_clear(&conditions);
    return status;
}

static enum mlo_status end_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status;
    struct end *end = arg;
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_schedule_row row = {.id = 0};
    struct mlo_rows over = {0}, runs = {0};
    struct mlo_params o = MLO_PARAMS_INIT, p = MLO_PARAMS_INIT, q = MLO_PARAMS_INIT;
    end_clear(end);
    end->firing = 0;
    mlo_param_i64(&o, end->behind);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_END_SQL[S_OVER], &o, &over, err));
    if (mlo_rows_count(&over) == 0)
        goto out;
    int64_t firing = mlo_rows_i64(&over, 0, 0), release = mlo_rows_i64(&over, 0, 2);
    mlo_param_i64(&p, mlo_rows_i64(&over, 0, 1));
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_END_SQL[S_ROW], &p, &row.rows, err));
    mlo_schedule_read_row(&row);
    if (end->why && firing != end->behind + 1)
        goto out; /* another server ended it meanwhile */
    end->firing = firing;
    mlo_schedule_label(&row, end->name);
    mlo_param_i64(&q, firing);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_END_SQL[S_RUNS], &q, &runs, err));
    MLO_TRY(by_runs(&runs, end, err));
    if (strcmp(end->state, "succeeded") == 0)
        MLO_TRY(end->why ? by_error(end, err) : by_gates(conn, &row, release, end, err));
    MLO_TRY(record(conn, &row, firing, end, err));
    if (strcmp(end->state, "failed") == 0)
        MLO_TRY(mlo_schedule_audit(conn, &row, &system, "schedule.fail",
                                   json_pack("{s:I, s:I, s:O, s:O}", "firing", (json_int_t)firing, "release",
                                             (json_int_t)release, "runs", end->runs, "error", end->error),
                                   NULL, err));
out:
    mlo_rows_clear(&over);
    mlo_rows_clear(&runs);
    mlo_rows_clear(&row.rows);
    return status;
}

enum mlo_status mlo_schedule_end_over(struct mlo_db *db, const char *now, struct mlo_schedule_walk *walk,
                                      struct mlo_schedule_tick *tick, struct mlo_error *err)
{
    struct end end = {.now = now, .behind = walk->firing};
    struct mlo_error why;
    enum mlo_status status = mlo_service_pool_tx(db, end_tx, &end, err);
    walk->none = end.firing == 0; /* also of an error: then it is nobody's */
    if (!walk->none)
        walk->firing = end.firing;
    if (status != MLO_OK && !walk->none && !mlo_schedule_passes(status)) {
        why = *err;
        end.why = &why;
        end.behind = walk->firing - 1;
        status = mlo_service_pool_tx(db, end_tx, &end, err);
    }
    tick->ended += status == MLO_OK && end.firing != 0;
    if (status != MLO_OK && !walk->none)
        mlo_error_prefix(err, "%s", end.name);
    end_clear(&end);
    return status;
}
