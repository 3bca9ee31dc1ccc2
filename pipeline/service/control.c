/* Pausing, resuming and draining a worker: a wish in its row, which it looks at. */
#include <string.h>

#include "pipeline/service/service_impl.h"

enum { S_FIND, S_WISH };

const struct mlo_sql MLO_CONTROL_SQL[] = {
    [S_FIND] = {"control_find", "select state, wish from worker where id = $1 for update", 1},
    [S_WISH] = {"control_wish",
                "update worker set wish = $2, wish_by = $3, wish_at = clock_timestamp(), wish_reason = $4 "
                "where id = $1",
                4},
};
const size_t MLO_CONTROL_SQL_COUNT = MLO_COUNT(MLO_CONTROL_SQL);

static const struct {
    const char *wish, *action;
} wishes[] = {[MLO_WORKER_RUN] = {"run", "worker.resume"},
              [MLO_WORKER_PAUSE] = {"pause", "worker.pause"},
              [MLO_WORKER_DRAIN] = {"drain", "worker.drain"}};

struct control {
    const struct mlo_actor *actor;
    const char *worker, *reason;
    enum mlo_worker_wish wish;
};

static enum mlo_status check(const struct control *c, const struct mlo_rows *rows, struct mlo_error *err)
{
    if (mlo_rows_count(rows) == 0)
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no worker '%.120s'", c->worker);
    if (strcmp(mlo_rows_text(rows, 0, 0), "stopped") == 0)
        return mlo_error_set(err, MLO_ECONFLICT, "the worker %s has stopped", c->worker);
    if (strcmp(mlo_rows_text(rows, 0, 1), "drain") == 0 && c->wish != MLO_WORKER_DRAIN) {
        mlo_error_set(err, MLO_ECONFLICT, "the worker %s was told to drain, and leaves", c->worker);
        mlo_error_hint(err, "start another one on its machine");
        return MLO_ECONFLICT;
    }
    return MLO_OK;
}

static enum mlo_status control_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    const struct control *c = arg;
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *before = NULL, *after = NULL;
    char object[200];
    mlo_param_text(&p, c->worker);
    MLO_TRY(mlo_db_exec(conn, &MLO_CONTROL_SQL[S_FIND], &p, &rows, err));
    MLO_TRY(check(c, &rows, err));
    if (strcmp(mlo_rows_text(&rows, 0, 1), wishes[c->wish].wish) == 0)
        goto out; /* it is so already */
    mlo_param_text(&p, wishes[c->wish].wish);
    mlo_param_text(&p, c->actor->name);
    mlo_param_text(&p, c->reason);
    MLO_TRY(mlo_db_exec(conn, &MLO_CONTROL_SQL[S_WISH], &p, NULL, err));
    MLO_TRY(mlo_queue_notify(conn, err));
    snprintf(object, sizeof object, "worker %s", c->worker);
    before = json_pack("{s:s}", "wish", mlo_rows_text(&rows, 0, 1));
    after = json_pack("{s:s}", "wish", wishes[c->wish].wish);
    const struct mlo_audit_event event = {.action = wishes[c->wish].action,
                                          .object = object,
                                          .before = before,
                                          .after = after,
                                          .reason = c->reason};
    status = before && after ? mlo_audit_append(conn, 0, c->actor, &event, NULL, err) : mlo_error_nomem(err);
out:
    json_decref(before);
    json_decref(after);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_worker_control(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const char *worker, enum mlo_worker_wish wish, const char *reason,
                                   struct mlo_error *err)
{
    struct control c = {.actor = actor, .worker = worker, .reason = reason, .wish = wish};
    enum mlo_status status = mlo_actor_require(actor, 0, MLO_ADMIN, err);
    return status == MLO_OK ? mlo_service_tx(conn, control_tx, &c, err) : status;
}
