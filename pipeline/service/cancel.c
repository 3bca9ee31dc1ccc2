/* A run that somebody ends before its end. */
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum { S_CANCEL_RUN, S_CANCEL_JOBS };

const struct mlo_sql MLO_CANCEL_SQL[] = {
    [S_CANCEL_RUN] = {"cancel_run", "select state, project from run where id = $1", 1},
    [S_CANCEL_JOBS] = {"cancel_jobs", "select id from job where run = $1 order by id for update", 1},
};
const size_t MLO_CANCEL_SQL_COUNT = MLO_COUNT(MLO_CANCEL_SQL);

struct cancel {
    const struct mlo_actor *actor;
    int64_t run;
    const char *reason;
};

static enum mlo_status cancel_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct cancel *cancel = arg;
    struct mlo_rows rows = {0};
    struct mlo_error why = {0};
    char *error = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, cancel->run);
    MLO_TRY(mlo_db_exec(conn, &MLO_CANCEL_SQL[S_CANCEL_JOBS], &p, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_CANCEL_SQL[S_CANCEL_RUN], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no run %lld", (long long)cancel->run);
        goto out;
    }
    MLO_TRY(mlo_actor_require(cancel->actor, mlo_rows_i64(&rows, 0, 1), MLO_SUBMITTER, err));
    const char *state = mlo_rows_text(&rows, 0, 0);
    if (strcmp(state, "queued") != 0 && strcmp(state, "running") != 0) {
        status = mlo_error_set(err, MLO_ECONFLICT, "run %lld has %s already", (long long)cancel->run,
                               strcmp(state, "cancelled") == 0 ? "been cancelled" : state);
        goto out;
    }
    const char *reason = cancel->reason && *cancel->reason ? cancel->reason : NULL;
    mlo_error_set(&why, MLO_ECANCELLED, "cancelled by %s%s%s", cancel->actor->name, reason ? ": " : "",
                  reason ? reason : "");
    if (!(error = mlo_error_json(&why, 0))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_run_end(conn, cancel->run, "cancelled", error, cancel->actor, err));
out:
    free(error);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_run_cancel(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t run,
                               const char *reason, struct mlo_error *err)
{
    struct cancel cancel = {actor, run, reason};
    return mlo_service_tx(conn, cancel_tx, &cancel, err);
}
