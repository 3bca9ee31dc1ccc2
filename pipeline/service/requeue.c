/* A failed run taken up again: its failed job is ready, what was cancelled with it waits, what was done
 * stays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum { S_LOCK, S_RUN, S_JOBS, S_OPEN_RUN, S_FAILED };

const struct mlo_sql MLO_REQUEUE_SQL[] = {
    [S_LOCK] = {"requeue_lock", "select id from job where run = $1 order by id for update", 1},
    [S_RUN] =
        {"requeue_run",
         "select r.state, r.project, r.reproduces is not null, p.name || '/' || m.name || '@' || v.number, "
         "  r.recipe_name from run r join version v on v.id = r.version join model m on m.id = v.model_id "
         "join project p on p.id = r.project where r.id = $1 for update of r",
         1},
    /* those that are cancelled have no input of their own yet, unless all that they need is done */
    [S_JOBS] =
        {"requeue_jobs",
         "update job j set state = case when exists (select from job_dep d join job n on n.id = d.needs "
         "    where d.job = j.id and n.state not in ('succeeded', 'reused')) then 'waiting' else 'ready' "
         "end, "
         "  attempts = 0, progress = 0, message = '', error = null, finished_at = null, "
         "  not_before = clock_timestamp(), ready_at = clock_timestamp() "
         "where j.run = $1 and j.state in ('failed', 'cancelled') "
         "and j.spec::json ->> 'candidate' is null returning j.id, j.state",
         1},
    [S_OPEN_RUN] =
        {"requeue_open",
         "update run set state = 'queued', error = null, results = null, finished_at = null where id = $1",
         1},
    [S_FAILED] = {"requeue_failed",
                  /* a search goes on without a candidate that failed */
                  "select count(*), exists (select from job where run = $1 and step = 'search') "
                  "from job where run = $1 and state = 'failed' and spec::json ->> 'candidate' is null",
                  1},
};
const size_t MLO_REQUEUE_SQL_COUNT = MLO_COUNT(MLO_REQUEUE_SQL);

struct requeue {
    const struct mlo_actor *actor;
    int64_t run;
    const char *reason;
};

static enum mlo_status check(struct mlo_db_conn *conn, const struct requeue *r, const struct mlo_rows *rows,
                             struct mlo_error *err)
{
    struct mlo_rows failed = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    const char *state = mlo_rows_text(rows, 0, 0);
    if (strcmp(state, "failed") != 0) {
        mlo_error_set(err, MLO_ECONFLICT, "run %lld has not failed: it is %s", (long long)r->run, state);
        return MLO_ECONFLICT;
    }
    mlo_param_i64(&p, r->run);
    enum mlo_status status = mlo_db_exec(conn, &MLO_REQUEUE_SQL[S_FAILED], &p, &failed, err);
    if (status == MLO_OK && (mlo_rows_i64(&failed, 0, 0) == 0 || mlo_rows_bool(rows, 0, 2))) {
        status = mlo_error_set(err, MLO_ECONFLICT, "%s of run %lld, and trying again would change nothing",
                               mlo_rows_bool(rows, 0, 2)      ? "other bytes came out"
                               : mlo_rows_bool(&failed, 0, 1) ? "nothing kept the goal of the search"
                                                              : "an expectation did not hold",
                               (long long)r->run);
        mlo_error_hint(err, "submit a new run");
    }
    mlo_rows_clear(&failed);
    return status;
}

static enum mlo_status audit(struct mlo_db_conn *conn, const struct requeue *r, const struct mlo_rows *run,
                             struct mlo_error *err)
{
    char object[64];
    snprintf(object, sizeof object, "run %lld", (long long)r->run);
    json_t *after = json_pack("{s:s, s:s, s:s}", "state", "queued", "on", mlo_rows_text(run, 0, 3), "recipe",
                              mlo_rows_text(run, 0, 4));
    const struct mlo_audit_event event = {
        .action = "run.requeue", .object = object, .after = after, .reason = r->reason};
    enum mlo_status status =
        after ? mlo_audit_append(conn, mlo_rows_i64(run, 0, 1), r->actor, &event, NULL, err)
              : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

static enum mlo_status requeue_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct requeue *r = arg;
    struct mlo_rows run = {0}, jobs = {0};
    json_t *data = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, r->run);
    MLO_TRY(mlo_db_exec(conn, &MLO_REQUEUE_SQL[S_LOCK], &p, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_REQUEUE_SQL[S_RUN], &p, &run, err));
    if (mlo_rows_count(&run) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no run %lld", (long long)r->run);
        goto out;
    }
    MLO_TRY(mlo_actor_require(r->actor, mlo_rows_i64(&run, 0, 1), MLO_SUBMITTER, err));
    MLO_TRY(check(conn, r, &run, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_REQUEUE_SQL[S_JOBS], &p, &jobs, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_REQUEUE_SQL[S_OPEN_RUN], &p, NULL, err));
    if (!(data = json_pack("{s:s}", "state", "queued"))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_run_event(conn, r->run, "run", data, err));
    for (int i = 0; i < mlo_rows_count(&jobs); i++)
        MLO_TRY(mlo_job_event(conn, mlo_rows_i64(&jobs, i, 0), "job", err));
    MLO_TRY(mlo_queue_notify(conn, err));
    MLO_TRY(audit(conn, r, &run, err));
out:
    json_decref(data);
    mlo_rows_clear(&run);
    mlo_rows_clear(&jobs);
    return status;
}

enum mlo_status mlo_run_requeue(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t run,
                                const char *reason, struct mlo_error *err)
{
    struct requeue r = {actor, run, reason && *reason ? reason : NULL};
    return mlo_service_tx(conn, requeue_tx, &r, err);
}
