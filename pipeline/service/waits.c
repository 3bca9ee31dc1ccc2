/* Why a ready job is not taken: what it needs and no worker has, or what its project may not. */
#include <string.h>

#include "pipeline/service/waits_impl.h"

enum { S_WORKERS, S_PROJECT, S_STUCK };

const struct mlo_sql MLO_WAITS_SQL[] = {
    [S_WORKERS] = {"waits_workers",
                   "select to_json(targets) as targets, memory_bytes, disk_bytes, gpus::json as gpus "
                   "from worker where state = 'active' and last_seen_at > now() - interval '30 seconds'",
                   0},
    [S_PROJECT] =
        {"waits_project",
         "select q.paused, q.paused_by, q.max_running, q.max_running <= (select count(*) from job j "
         "    where j.state = 'running' and j.project = q.project) as full, "
         "  q.gpu_seconds_month <= coalesce((select u.gpu_s from usage_month u where u.project = q.project "
         "    and u.month = date_trunc('month', now() at time zone 'UTC')::date), 0) as gpu_spent "
         "from project_queue q where q.project = (select project from run where id = $1)",
         1},
    /* what waits, by what it needs: a million jobs of few kinds are few rows */
    [S_STUCK] =
        {"waits_stuck",
         "select j.target, j.memory_bytes, j.disk_bytes, job_gpus(j.gpus, j.gpu) as gpus, j.gpu, "
         "  to_json(j.estimated) as estimated, count(*) as queued, min(j.id) as job, min(j.run) as run "
         "from job j where j.state = 'ready' group by 1, 2, 3, 4, 5, j.estimated order by min(j.id) limit "
         "200",
         0},
};
const size_t MLO_WAITS_SQL_COUNT = MLO_COUNT(MLO_WAITS_SQL);

/* --- against the workers ---------------------------------------------------------------------------------
 */

static bool offers(const json_t *worker, const char *target)
{
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(worker, "targets"), i, one)
    {
        if (mlo_str_eq(json_string_value(one), target))
            return true;
    }
    return false;
}

static int64_t gpus_of(const json_t *worker, const char *model)
{
    const json_t *gpu;
    size_t i;
    int64_t count = 0;
    json_array_foreach(json_object_get(worker, "gpus"), i, gpu)
    {
        count += !*model || strcmp(mlo_json_str(gpu, "model", ""), model) == 0;
    }
    return count;
}

/* What an older worker does not say is as much as one likes. */
static int64_t has(const json_t *worker, const char *what)
{
    return mlo_json_i64(worker, what, INT64_MAX);
}

struct want {
    const char *target, *gpu;
    int64_t memory, disk, gpus;
    const json_t *estimated;
};

static void need_text(const struct want *w, struct mlo_buf *out)
{
    char size[32];
    if (w->gpus)
        mlo_buf_printf(out, "%lld GPU%s%s%s, ", (long long)w->gpus, w->gpus == 1 ? "" : "s",
                       *w->gpu ? " " : "", w->gpu);
    mlo_buf_printf(out, "%s of memory, ", mlo_str_size((uint64_t)w->memory, size));
    mlo_buf_printf(out, "%s of disk", mlo_str_size((uint64_t)w->disk, size));
}

static bool is_estimated(const struct want *w, const char *what)
{
    const json_t *one;
    size_t i;
    json_array_foreach((json_t *)w->estimated, i, one)
    {
        if (mlo_str_eq(json_string_value(one), what))
            return true;
    }
    return false;
}

static void size_text(struct mlo_buf *out, const struct want *w, int64_t need, const char *what, int64_t most)
{
    char a[32], b[32];
    mlo_buf_printf(out, "needs %s of %s%s; the largest worker has %s", mlo_str_size((uint64_t)need, a), what,
                   is_estimated(w, what)
                       ? " (estimated from the model's size: `needs` in the recipe says otherwise)"
                       : "",
                   mlo_str_size((uint64_t)most, b));
}

bool mlo_waits_for_workers(const json_t *workers, const json_t *job, struct mlo_buf *out)
{
    const struct want w = {.target = mlo_json_str(job, "target", "any"),
                           .gpu = mlo_json_str(job, "gpu", ""),
                           .memory = mlo_json_i64(job, "memory_bytes", 0),
                           .disk = mlo_json_i64(job, "disk_bytes", 0),
                           .gpus = mlo_json_i64(job, "gpus", 0),
                           .estimated = json_object_get(job, "estimated")};
    int64_t memory = -1, disk = -1, gpus = -1;
    const json_t *worker;
    size_t i;
    if (json_array_size(workers) == 0) {
        mlo_buf_puts(out, "no worker runs");
        return true;
    }
    json_array_foreach((json_t *)workers, i, worker)
    {
        int64_t own = gpus_of(worker, w.gpu);
        if (!offers(worker, w.target))
            continue;
        if (has(worker, "memory_bytes") >= w.memory && has(worker, "disk_bytes") >= w.disk && own >= w.gpus)
            return false;
        memory = MLO_MAX(memory, has(worker, "memory_bytes"));
        disk = MLO_MAX(disk, has(worker, "disk_bytes"));
        gpus = MLO_MAX(gpus, own);
    }
    if (memory < 0) {
        mlo_buf_printf(out, "needs the target %s, which no worker offers", w.target);
    } else if (gpus < w.gpus) {
        mlo_buf_printf(out, "needs %lld GPU%s%s%s; the largest worker has %lld", (long long)w.gpus,
                       w.gpus == 1 ? "" : "s", *w.gpu ? " " : "", w.gpu, (long long)gpus);
    } else if (memory < w.memory) {
        size_text(out, &w, w.memory, "memory", memory);
    } else if (disk < w.disk) {
        size_text(out, &w, w.disk, "disk", disk);
    } else {
        mlo_buf_puts(out, "needs on one worker ");
        need_text(&w, out);
        mlo_buf_puts(out, ", and none has all of it");
    }
    return true;
}

/* --- reading ---------------------------------------------------------------------------------------------
 */

static enum mlo_status read_all(struct mlo_db_conn *conn, int statement, const struct mlo_params *params,
                                json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &MLO_WAITS_SQL[statement], params, &rows, err);
    if (status == MLO_OK && !(*out = mlo_rows_json_all(&rows)))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}

static bool waits_for_project(const json_t *project, const json_t *resources, struct mlo_buf *out)
{
    if (mlo_json_bool(project, "paused", false))
        mlo_buf_printf(out, "the project is paused by %s", mlo_json_str(project, "paused_by", "?"));
    else if (mlo_json_bool(project, "full", false))
        mlo_buf_printf(out, "the project may have %lld jobs at once",
                       (long long)mlo_json_i64(project, "max_running", 0));
    else if (mlo_json_bool(project, "gpu_spent", false) && mlo_json_i64(resources, "gpus", 0) > 0)
        mlo_buf_puts(out, "the project has used its GPU seconds of this month");
    return out->len > 0;
}

/* The members of a job that mlo_waits_for_workers reads. */
static json_t *wanted(const json_t *job)
{
    json_t *out = json_copy(json_object_get(job, "resources"));
    if (out)
        json_object_set(out, "target", json_object_get(job, "target"));
    return out;
}

enum mlo_status mlo_waits_of_run(struct mlo_db_conn *conn, int64_t run, json_t *jobs, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *workers = NULL, *projects = NULL, *job;
    size_t i;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    json_array_foreach(jobs, i, job)
    {
        struct mlo_buf text = MLO_BUF_INIT;
        bool queued = mlo_str_eq(mlo_json_str(job, "state", ""), "queued");
        if (queued && !workers) {
            MLO_TRY(read_all(conn, S_WORKERS, NULL, &workers, err));
            MLO_TRY(read_all(conn, S_PROJECT, &p, &projects, err));
        }
        json_t *want = queued ? wanted(job) : NULL;
        bool waits = want && (waits_for_project(json_array_get(projects, 0), want, &text) ||
                              mlo_waits_for_workers(workers, want, &text));
        json_decref(want);
        int failed = json_object_set_new(job, "waits", waits ? json_string(mlo_buf_str(&text)) : json_null());
        mlo_buf_clear(&text);
        if (failed) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
out:
    json_decref(workers);
    json_decref(projects);
    return status;
}

enum mlo_status mlo_queue_stuck(struct mlo_db_conn *conn, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *workers = NULL, *kinds = NULL, *kind, *stuck = json_array();
    size_t i;
    MLO_TRY(read_all(conn, S_WORKERS, NULL, &workers, err));
    MLO_TRY(read_all(conn, S_STUCK, NULL, &kinds, err));
    json_array_foreach(kinds, i, kind)
    {
        struct mlo_buf text = MLO_BUF_INIT;
        bool waits = mlo_waits_for_workers(workers, kind, &text);
        if (waits && (json_object_set_new(kind, "waits", json_string(mlo_buf_str(&text))) != 0 ||
                      json_array_append(stuck, kind) != 0))
            status = mlo_error_nomem(err);
        mlo_buf_clear(&text);
        MLO_TRY(status);
    }
    *out = json_incref(stuck);
out:
    json_decref(workers);
    json_decref(kinds);
    json_decref(stuck);
    return status;
}
