/* Changes of state that several operations share. All of them happen inside the caller's transaction. */
#include <stdio.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum {
    S_LOCK_JOBS,
    S_TRY_LOCK_JOBS,
    S_TOKEN,
    S_EVENT,
    S_JOB_EVENT,
    S_CLOSE_JOBS,
    S_END_ATTEMPT,
    S_CLOSE_ATTEMPTS,
    S_END_RUN,
    S_RUN
};

/* A job for a GPU holds one as long as its attempt lasts. */
#define GPU_SECONDS(job)                                                                                     \
    "gpu_s = (select case when t.target like 'cuda%' then "                                                  \
    "extract(epoch from clock_timestamp() - a.started_at) else 0 end from job t where t.id = " job ")"

const struct mlo_sql MLO_RUNS_SQL[] = {
    [S_LOCK_JOBS] = {"runs_lock_jobs",
                     "select id, run from job where run = (select run from job where id = $1) "
                     "order by id for update",
                     1},
    [S_TRY_LOCK_JOBS] = {"runs_try_lock_jobs",
                         "select id, run from job where run = (select run from job where id = $1) "
                         "order by id for update nowait",
                         1},
    [S_TOKEN] = {"runs_token", "select state, token::text from job where id = $1", 1},
    /* the run's row is locked by the increment, so numbers appear in the order in which they are given */
    [S_EVENT] = {"runs_event",
                 "with s as (update run set event_seq = event_seq + 1 where id = $1 returning event_seq) "
                 "insert into run_event (run, seq, at, kind, data) "
                 "select $1, event_seq, clock_timestamp(), $2, $3 from s",
                 3},
    [S_JOB_EVENT] = {"runs_job_event",
                     "with s as (update run set event_seq = event_seq + 1 "
                     "  where id = (select run from job where id = $1) returning id, event_seq) "
                     "insert into run_event (run, seq, at, kind, data) "
                     "select s.id, s.event_seq, clock_timestamp(), $2, job_event_data(j.id, j.step, j.name, "
                     "  j.state, j.progress, j.message) from s, job j where j.id = $1",
                     2},
    [S_CLOSE_JOBS] = {"runs_close_jobs",
                      "update job set state = 'cancelled', token = null, lease_until = null, "
                      "finished_at = clock_timestamp() "
                      "where run = $1 and state in ('waiting', 'ready', 'running') returning id",
                      1},
    [S_END_ATTEMPT] =
        {"runs_end_attempt",
         "update attempt a set ended_at = clock_timestamp(), outcome = $3, error = $4, cpu_s = $5, "
         "  read_bytes = $6, written_bytes = $7, " GPU_SECONDS("a.job") " where job = $1 and "
                                                                        "token = $2::uuid",
         7},
    [S_CLOSE_ATTEMPTS] =
        {"runs_close_attempts",
         "update attempt a set ended_at = clock_timestamp(), outcome = 'cancelled', " GPU_SECONDS(
             "a.job") " "
                      "from job j where j.run = $1 and a.job = j.id and a.ended_at is null",
         1},
    /* with its last event: a row that a transaction changes twice has its foreign keys checked */
    [S_END_RUN] = {"runs_end",
                   "with r as (update run set state = $2, error = $3, results = coalesce($5, results), "
                   "  finished_at = clock_timestamp(), event_seq = event_seq + 1 where id = $1 "
                   "  returning event_seq) "
                   "insert into run_event (run, seq, at, kind, data) "
                   "select $1, event_seq, clock_timestamp(), 'run', $4 from r",
                   5},
    [S_RUN] = {"runs_describe",
               "select r.project, p.name || '/' || m.name || '@' || v.number, r.recipe_name from run r "
               "join version v on v.id = r.version join model m on m.id = v.model_id "
               "join project p on p.id = r.project where r.id = $1",
               1},
};
const size_t MLO_RUNS_SQL_COUNT = MLO_COUNT(MLO_RUNS_SQL);

static enum mlo_status lock_jobs(struct mlo_db_conn *conn, int statement, int64_t job, int64_t *run,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job);
    MLO_TRY(mlo_db_exec(conn, &MLO_RUNS_SQL[statement], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no job %lld", (long long)job);
    else if (run)
        *run = mlo_rows_i64(&rows, 0, 1);
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_lock_jobs_of(struct mlo_db_conn *conn, int64_t job, int64_t *run, struct mlo_error *err)
{
    return lock_jobs(conn, S_LOCK_JOBS, job, run, err);
}

enum mlo_status mlo_try_lock_jobs_of(struct mlo_db_conn *conn, int64_t job, int64_t *run,
                                     struct mlo_error *err)
{
    return lock_jobs(conn, S_TRY_LOCK_JOBS, job, run, err);
}

enum mlo_status mlo_lock_and_check(struct mlo_db_conn *conn, int64_t job, const char *token,
                                   struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job);
    enum mlo_status status = mlo_db_queue(conn, &MLO_RUNS_SQL[S_LOCK_JOBS], &p, NULL, err);
    return status == MLO_OK ? mlo_check_token(conn, job, token, err) : status;
}

enum mlo_status mlo_check_token(struct mlo_db_conn *conn, int64_t job, const char *token,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job);
    MLO_TRY(mlo_db_exec(conn, &MLO_RUNS_SQL[S_TOKEN], &p, &rows, err));
    if (mlo_rows_count(&rows) == 1 && mlo_str_eq(mlo_rows_text(&rows, 0, 1), token))
        goto out;
    if (mlo_rows_count(&rows) == 1 && mlo_str_eq(mlo_rows_text(&rows, 0, 0), "cancelled"))
        status = mlo_error_set(err, MLO_ECANCELLED, "job %lld was cancelled", (long long)job);
    else
        status = mlo_error_set(err, MLO_ELEASE, "the lease on job %lld is lost: another attempt owns it",
                               (long long)job);
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_run_event(struct mlo_db_conn *conn, int64_t run, const char *kind, const json_t *data,
                              struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_json_canonical(data, &text);
    mlo_param_i64(&p, run);
    mlo_param_text(&p, kind);
    mlo_param_text(&p, mlo_buf_str(&text));
    enum mlo_status status =
        mlo_buf_ok(&text) ? mlo_db_queue(conn, &MLO_RUNS_SQL[S_EVENT], &p, NULL, err) : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_job_event(struct mlo_db_conn *conn, int64_t job, const char *kind, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job);
    mlo_param_text(&p, kind);
    return mlo_db_queue(conn, &MLO_RUNS_SQL[S_JOB_EVENT], &p, NULL, err);
}

enum mlo_status mlo_attempt_end_row(struct mlo_db_conn *conn, int64_t job, const char *token,
                                    const char *outcome, const char *error, const struct mlo_cost *cost,
                                    struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job);
    mlo_param_text(&p, token);
    mlo_param_text(&p, outcome);
    mlo_param_text(&p, error);
    if (cost) {
        mlo_param_f64(&p, cost->cpu_s);
        mlo_param_i64(&p, (int64_t)cost->read_bytes);
        mlo_param_i64(&p, (int64_t)cost->written_bytes);
    } else {
        for (int i = 0; i < 3; i++)
            mlo_param_null(&p);
    }
    return mlo_db_queue(conn, &MLO_RUNS_SQL[S_END_ATTEMPT], &p, NULL, err);
}

/* State changes of a run in the project's audit chain: "run.submitted", "run.finished". */
static enum mlo_status audit_end(struct mlo_db_conn *conn, const struct mlo_ended_run *run, const char *state,
                                 const char *error, const struct mlo_actor *actor, struct mlo_error *err)
{
    json_t *why = NULL;
    char object[64];
    snprintf(object, sizeof object, "run %lld", (long long)run->id);
    if (error && mlo_json_parse(error, strlen(error), "error", &why, NULL) != MLO_OK)
        why = NULL;
    json_t *after = json_pack("{s:s, s:s, s:s, s:O?}", "state", state, "on", run->on, "recipe",
                              run->recipe_name, "error", why);
    struct mlo_audit_event event = {
        .action = strcmp(state, "cancelled") == 0 ? "run.cancel" : "run.finish",
        .object = object,
        .after = after,
    };
    /* with the COMMIT, behind all else: the chain's lock is held for no round trip */
    enum mlo_status status =
        after ? mlo_audit_append(conn, run->project, actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    json_decref(why);
    return status;
}

static enum mlo_status describe(struct mlo_db_conn *conn, int64_t run, struct mlo_rows *rows,
                                struct mlo_ended_run *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    enum mlo_status status = mlo_db_exec(conn, &MLO_RUNS_SQL[S_RUN], &p, rows, err);
    if (status == MLO_OK && mlo_rows_count(rows) != 1)
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no run %lld", (long long)run);
    if (status == MLO_OK)
        *out = (struct mlo_ended_run){.id = run,
                                      .project = mlo_rows_i64(rows, 0, 0),
                                      .on = mlo_rows_text(rows, 0, 1),
                                      .recipe_name = mlo_rows_text(rows, 0, 2)};
    return status;
}

enum mlo_status mlo_run_end_done(struct mlo_db_conn *conn, const struct mlo_ended_run *run, const char *state,
                                 const char *error, const struct mlo_actor *actor, struct mlo_error *err)
{
    char event[64];
    struct mlo_params p = MLO_PARAMS_INIT;
    snprintf(event, sizeof event, "{\"state\":\"%s\"}", state); /* a word of ours */
    mlo_param_i64(&p, run->id);
    mlo_param_text(&p, state);
    mlo_param_text(&p, error);
    mlo_param_text(&p, event);
    mlo_param_text(&p, run->results);
    enum mlo_status status = mlo_db_queue(conn, &MLO_RUNS_SQL[S_END_RUN], &p, NULL, err);
    return status == MLO_OK ? audit_end(conn, run, state, error, actor, err) : status;
}

enum mlo_status mlo_run_end(struct mlo_db_conn *conn, int64_t run, const char *state, const char *error,
                            const struct mlo_actor *actor, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows closed = {0}, described = {0};
    struct mlo_ended_run ended;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    MLO_TRY(mlo_db_queue(conn, &MLO_RUNS_SQL[S_CLOSE_ATTEMPTS], &p, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_RUNS_SQL[S_CLOSE_JOBS], &p, &closed, err));
    MLO_TRY(describe(conn, run, &described, &ended, err));
    for (int i = 0; i < mlo_rows_count(&closed); i++)
        MLO_TRY(mlo_job_event(conn, mlo_rows_i64(&closed, i, 0), "job", err));
    /* also wakes workers whose attempts were taken away, and jobs that waited for a derivation in flight */
    MLO_TRY(mlo_queue_notify(conn, err));
    MLO_TRY(mlo_run_end_done(conn, &ended, state, error, actor, err));
out:
    mlo_rows_clear(&closed);
    mlo_rows_clear(&described);
    return status;
}
