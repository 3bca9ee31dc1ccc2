/* A project's share of the workers, its limits and its pause; what its attempts used, by month. */
#include <math.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum { S_GET, S_SET, S_MONTHS };

#define MONTH_COLUMNS                                                                                        \
    "to_char(u.month, 'YYYY-MM') as month, u.attempts, u.reused, u.failed, u.wall_s, u.cpu_s, u.gpu_s, "     \
    "u.read_bytes, u.written_bytes "

const struct mlo_sql MLO_SHARES_SQL[] = {
    [S_GET] =
        {"shares_get",
         "select p.name as project, q.weight, q.max_running, q.gpu_seconds_month, q.storage_bytes, "
         "  project_storage(q.project) as storage_used, q.paused, q.paused_by, "
         "  q.paused_at, q.paused_reason, "
         "  (select count(*) from job j where j.state = 'ready' and j.project = q.project) as queued, "
         "  (select count(*) from job j where j.state = 'running' and j.project = q.project) as running, "
         "  coalesce((select u.gpu_s from usage_month u where u.project = q.project and "
         "    u.month = date_trunc('month', now())::date), 0) as gpu_seconds_used "
         "from project_queue q join project p on p.id = q.project where q.project = $1",
         1},
    [S_SET] =
        {"shares_set",
         "update project_queue set weight = coalesce($2::float8, weight), "
         "  max_running = case when $3::boolean then $4::integer else max_running end, "
         "  gpu_seconds_month = case when $5::boolean then $6::float8 else gpu_seconds_month end, "
         "  storage_bytes = case when $10::boolean then $11::bigint else storage_bytes end, "
         "  paused = coalesce($7::boolean, paused), "
         "  paused_by = case when $7::boolean then $8 when not $7::boolean then null else paused_by end, "
         "  paused_at = case when $7::boolean then clock_timestamp() when not $7::boolean then null else "
         "paused_at end, "
         "  paused_reason = case when $7::boolean then $9 when not $7::boolean then null else paused_reason "
         "end "
         "where project = $1",
         11},
    [S_MONTHS] = {"shares_months",
                  "select " MONTH_COLUMNS
                  "from usage_month u where u.project = $1 order by u.month desc limit 1200",
                  1},
};
const size_t MLO_SHARES_SQL_COUNT = MLO_COUNT(MLO_SHARES_SQL);

static enum mlo_status get_one(struct mlo_db_conn *conn, int64_t project, json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SHARES_SQL[S_GET], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such project");
    else if (status == MLO_OK && !(*out = mlo_rows_json(&rows, 0)))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_project_queue_get(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                      int64_t project, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = mlo_actor_require(actor, project, MLO_VIEWER, err);
    return status == MLO_OK ? get_one(conn, project, out, err) : status;
}

/* NULL and JSON null are told apart: the one leaves a limit, the other removes it. */
static enum mlo_status read_limit(const json_t *change, const char *key, bool whole, double most, bool *given,
                                  double *out, struct mlo_error *err)
{
    const json_t *value = json_object_get(change, key);
    *given = value != NULL;
    *out = NAN;
    if (!value || json_is_null(value))
        return MLO_OK;
    *out = json_number_value(value);
    if (json_is_number(value) && *out >= 0 && *out <= most && (!whole || *out == floor(*out)))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%s' is a %snumber of at least 0, or null for no limit", key,
                  whole ? "whole " : "");
    mlo_error_where(err, "field '%s'", key);
    return MLO_EINVAL;
}

static enum mlo_status read_change(const json_t *change, struct mlo_params *p, const struct mlo_actor *actor,
                                   const char *reason, struct mlo_error *err)
{
    static const char *const known[] = {"weight",        "max_running", "gpu_seconds_month",
                                        "storage_bytes", "paused",      "reason"};
    const json_t *weight = json_object_get(change, "weight"), *paused = json_object_get(change, "paused"),
                 *value;
    const char *key;
    bool has_running, has_gpu, has_storage;
    double running, gpu, storage;
    enum mlo_status status = MLO_OK;
    json_object_foreach((json_t *)change, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < MLO_COUNT(known); i++)
            found = found || strcmp(known[i], key) == 0;
        if (!found) {
            status = mlo_error_set(err, MLO_EINVAL, "a project's queue has no '%.60s'", key);
            mlo_error_suggest(err, key, known, MLO_COUNT(known));
            goto out;
        }
    }
    double w = json_number_value(weight);
    if ((weight && (!json_is_number(weight) || w < 0.01 || w > 1000)) ||
        (paused && !json_is_boolean(paused))) {
        status = mlo_error_set(err, MLO_EINVAL, "%s",
                               weight && !(json_is_number(weight) && w >= 0.01 && w <= 1000)
                                   ? "'weight' is a number from 0.01 to 1000"
                                   : "'paused' is true or false");
        goto out;
    }
    MLO_TRY(read_limit(change, "max_running", true, 1e6, &has_running, &running, err));
    MLO_TRY(read_limit(change, "gpu_seconds_month", false, 1e12, &has_gpu, &gpu, err));
    MLO_TRY(read_limit(change, "storage_bytes", true, 1e18, &has_storage, &storage, err));
    mlo_param_f64(p, weight ? w : NAN);
    mlo_param_bool(p, has_running);
    if (isfinite(running))
        mlo_param_i64(p, (int64_t)running);
    else
        mlo_param_null(p);
    mlo_param_bool(p, has_gpu);
    mlo_param_f64(p, gpu);
    if (paused)
        mlo_param_bool(p, json_is_true(paused));
    else
        mlo_param_null(p);
    mlo_param_text(p, actor->name);
    mlo_param_text(p, reason);
    mlo_param_bool(p, has_storage);
    if (isfinite(storage))
        mlo_param_i64(p, (int64_t)storage);
    else
        mlo_param_null(p);
out:
    return status;
}

static void drop_counts(json_t *value)
{
    static const char *const counts[] = {"project",      "queued",    "running",  "gpu_seconds_used",
                                         "storage_used", "paused_at", "paused_by"};
    for (size_t i = 0; i < MLO_COUNT(counts); i++)
        json_object_del(value, counts[i]);
}

struct change {
    const struct mlo_actor *actor;
    int64_t project;
    const json_t *change;
    const char *reason;
    json_t *now;
};

static enum mlo_status change_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct change *c = arg;
    json_t *before = NULL, *after = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    json_decref(c->now);
    c->now = NULL;
    mlo_param_i64(&p, c->project);
    MLO_TRY(read_change(c->change, &p, c->actor, c->reason, err));
    MLO_TRY(get_one(conn, c->project, &before, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_SHARES_SQL[S_SET], &p, NULL, err));
    MLO_TRY(get_one(conn, c->project, &c->now, err));
    if (!(after = json_copy(c->now))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    drop_counts(before);
    drop_counts(after);
    const struct mlo_audit_event event = {
        .action = "queue.change", .object = "queue", .before = before, .after = after, .reason = c->reason};
    MLO_TRY(mlo_queue_notify(conn, err)); /* what was paused or limited may be claimed now */
    MLO_TRY(mlo_audit_append(conn, c->project, c->actor, &event, NULL, err));
out:
    json_decref(before);
    json_decref(after);
    return status;
}

enum mlo_status mlo_project_queue_set(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                      int64_t project, const json_t *change, const char *reason, json_t **out,
                                      struct mlo_error *err)
{
    struct change c = {
        .actor = actor, .project = project, .change = change, .reason = reason && *reason ? reason : NULL};
    enum mlo_status status = mlo_actor_require(actor, project, MLO_ADMIN, err);
    if (status == MLO_OK)
        status = mlo_service_tx(conn, change_tx, &c, err);
    if (status == MLO_OK)
        *out = c.now;
    else
        json_decref(c.now);
    return status;
}

enum mlo_status mlo_usage_months(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project,
                                 json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_actor_require(actor, project, MLO_VIEWER, err);
    mlo_param_i64(&p, project);
    if (status == MLO_OK)
        status = mlo_db_exec(conn, &MLO_SHARES_SQL[S_MONTHS], &p, &rows, err);
    if (status == MLO_OK && !(*out = mlo_rows_json_all(&rows)))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}

/* One line a month, a header before them (RFC 4180; nothing in it needs quotes). */
void mlo_usage_csv(struct mlo_buf *out, const char *project, const json_t *months)
{
    static const char *const whole[] = {"attempts", "reused", "failed"},
                             *const bytes[] = {"read_bytes", "written_bytes"},
                             *const seconds[] = {"wall_s", "cpu_s", "gpu_s"};
    const json_t *row;
    size_t i;
    mlo_buf_puts(out, "project,month,attempts,reused,failed,wall_s,cpu_s,gpu_s,read_bytes,written_bytes\r\n");
    json_array_foreach((json_t *)months, i, row)
    {
        mlo_buf_printf(out, "%s,%s", project, mlo_json_str(row, "month", ""));
        for (size_t k = 0; k < MLO_COUNT(whole); k++)
            mlo_buf_printf(out, ",%lld", (long long)mlo_json_i64(row, whole[k], 0));
        for (size_t k = 0; k < MLO_COUNT(seconds); k++)
            mlo_buf_printf(out, ",%.3f", mlo_json_f64(row, seconds[k], 0));
        for (size_t k = 0; k < MLO_COUNT(bytes); k++)
            mlo_buf_printf(out, ",%lld", (long long)mlo_json_i64(row, bytes[k], 0));
        mlo_buf_puts(out, "\r\n");
    }
}
