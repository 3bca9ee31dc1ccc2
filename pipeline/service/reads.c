/* What the API and the pages read: runs, events, the queue, the workers. Columns carry the names of
 * docs/api.md. */
#include <stdio.h>
#include <string.h>

#include "pipeline/service/waits_impl.h"

enum {
    S_RUN,
    S_JOBS,
    S_LIST,
    S_EVENTS,
    S_RUN_STATE,
    S_MARKS,
    S_LOG_MARKS,
    S_QUEUE,
    S_TARGETS,
    S_DEPTHS,
    S_WORKERS
};

#define UTC(column) "to_char(" column " at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"

/* what attempts used: an object of their sums */
#define USAGE(which)                                                                                         \
    "(select json_build_object('attempts', count(*), 'wall_s', coalesce(round(sum(extract(epoch from "       \
    "coalesce(u.ended_at, clock_timestamp()) - u.started_at)), 3), 0), 'cpu_s', coalesce(round(sum(u.cpu_s)" \
    "::numeric, 3), 0), 'gpu_s', coalesce(round(sum(u.gpu_s)::numeric, 3), 0), 'read_bytes', "               \
    "coalesce(sum(u.read_bytes), 0), 'written_bytes', coalesce(sum(u.written_bytes), 0)) from attempt u "    \
    "where " which ") as usage"

#define RUN_COLUMNS                                                                                          \
    "r.id, p.name as project, m.name as model, v.number as version, r.recipe_name as recipe, r.target, "     \
    "r.state, "                                                                                              \
    "r.created_at, r.started_at, r.finished_at, r.created_by, r.variant, "                                   \
    "r.reproduces, r.priority, r.error::json as error, coalesce(r.results, '[]')::json as expectations, "    \
    "r.datasets::json as datasets, r.event_seq, s.total as jobs_total, s.done as jobs_done, s.progress "     \
    "from run r join version v on v.id = r.version join model m on m.id = v.model_id "                       \
    "join project p on p.id = r.project "                                                                    \
    "cross join lateral (select count(*) as total, count(*) filter (where state in ('succeeded', "           \
    "'reused')) "                                                                                            \
    "  as done, coalesce(avg(case when state in ('succeeded', 'reused') then 1 else progress end), 0) as "   \
    "progress "                                                                                              \
    "  from job j where j.run = r.id) s "

/* seen within this time: alive */
#define ALIVE "w.last_seen_at > now() - interval '30 seconds'"

const struct mlo_sql MLO_READS_SQL[] = {
    [S_RUN] = {"reads_run",
               "select r.recipe as recipe_text, " USAGE(
                   "u.job in (select x.id from job x where x.run = r.id)") ", " RUN_COLUMNS
                                                                           "where r.id = $1 and ($2::bigint "
                                                                           "= 0 or r.project = $2)",
               2},
    [S_JOBS] =
        {"reads_jobs",
         "select j.id, j.position, j.name, j.step, j.kind, j.target, "
         "  json_build_object('memory_bytes', j.memory_bytes, 'disk_bytes', j.disk_bytes, 'gpus', "
         "job_gpus(j.gpus, j.gpu), 'gpu', j.gpu, 'timeout_s', j.timeout_s, 'estimated', "
         "to_json(j.estimated)) "
         "    as resources, "
         "  case j.state when 'waiting' then 'blocked' when 'ready' then 'queued' when 'reused' then "
         "'succeeded' "
         "    else j.state end as state, "
         "  j.state = 'reused' as reused, j.attempts as attempt, j.max_attempts, j.progress, j.message, "
         "j.worker, "
         "  j.created_at, j.started_at, j.finished_at, "
         "  extract(epoch from j.finished_at - j.started_at)::float8 as seconds, j.error::json as error, "
         "  " USAGE("u.job = j.id") ", j.derivation, j.input, j.output, j.result::json->'report' as report, "
                                    "  (select coalesce(json_agg(n.position order by n.position), '[]') from "
                                    "job_dep d "
                                    "    join job n on n.id = d.needs where d.job = j.id) as needs, "
                                    "  (select coalesce(json_agg(json_build_object('number', a.number, "
                                    "'worker', a.worker, "
                                    "'started_at', " UTC("a.started_at") ", 'ended_at', " UTC(
                                        "a.ended_at") ", 'outcome', a.outcome, 'gpus', a.gpu_devices, "
                                                      "'error', a.error::json) "
                                                      "    order by a.number), '[]') from attempt a where "
                                                      "a.job = j.id) as attempts "
                                                      "from job j where j.run = $1 order by j.position",
         1},
    [S_LIST] = {"reads_list",
                "select " RUN_COLUMNS
                "where ($1::bigint = 0 or r.project = $1) and ($2::bigint = 0 or m.id = $2) "
                "and ($3::bigint = 0 or r.version = $3) and ($4::text is null or r.state = $4) "
                "and ($5::bigint = 0 or r.id < $5) order by r.id desc limit $6",
                6},
    [S_EVENTS] = {"reads_events",
                  "select seq, at, kind, data::json as data from run_event where run = $1 and seq > $2 "
                  "order by seq limit $3",
                  3},
    [S_RUN_STATE] = {"reads_run_state", "select state, event_seq from run where id = $1", 1},
    [S_MARKS] = {"reads_marks", "select id, event_seq from run where id = any($1::bigint[]) order by id", 1},
    [S_LOG_MARKS] = {"reads_log_marks",
                     "select j.run, sum(l.part + 1)::bigint from job j join attempt a on a.job = j.id "
                     "cross join lateral (select part from attempt_log where job = a.job and number = "
                     "a.number order by part desc limit 1) l "
                     "where j.run = any($1::bigint[]) group by j.run order by j.run",
                     1},
    [S_QUEUE] = {"reads_queue",
                 "select count(*) filter (where state = 'ready') as queued, "
                 "  count(*) filter (where state = 'running') as running, "
                 "  count(*) filter (where state = 'waiting') as blocked, "
                 "  count(*) filter (where state = 'failed') as failed, "
                 "  count(*) filter (where state = 'running' and lease_until < now()) as expired, "
                 "  extract(epoch from now() - min(ready_at) filter (where state = 'ready'))::float8 "
                 "    as oldest_queued_s, "
                 "  (select count(*) from worker w where w.state = 'active' and " ALIVE ") as workers "
                 "from job",
                 0},
    [S_TARGETS] = {"reads_targets",
                   "select j.target, count(*) as queued, (select count(*) from worker w "
                   "  where w.state = 'active' and " ALIVE " and j.target = any(w.targets)) as workers "
                   "from job j where j.state = 'ready' group by j.target order by j.target",
                   0},
    /* two parts, each by its own index: finished jobs are not looked at */
    [S_DEPTHS] = {"reads_depths",
                  "select p.name as project, j.target, count(*) filter (where j.waits) as queued, "
                  "  count(*) filter (where not j.waits) as running, "
                  "  extract(epoch from now() - min(j.ready_at) filter (where j.waits))::float8 "
                  "    as oldest_queued_s "
                  "from (select project, target, ready_at, true as waits from job where state = 'ready' "
                  "  union all select project, target, ready_at, false from job where state = 'running') j "
                  "join project p on p.id = j.project where $1::bigint = 0 or p.id = $1 "
                  "group by p.name, j.target order by oldest_queued_s desc nulls last, p.name, j.target "
                  "limit 100",
                  1},
    [S_WORKERS] =
        {"reads_workers",
         "select w.id as name, w.host, w.pid, "
         "  case when w.state <> 'stopped' and not (" ALIVE ") then 'lost' else w.state end as state, "
         "  w.machine_class, to_json(w.targets) as capabilities, w.slots, w.started_at, "
         "  w.last_seen_at, w.wish, w.wish_by, w.wish_at, w.wish_reason, to_json(w.lacking) as lacking, "
         "  w.memory_bytes, w.disk_bytes, (select coalesce(json_agg(json_build_object('uuid', g->>'uuid', "
         "    'model', g->>'model', 'memory_bytes', (g->>'memory_bytes')::bigint, 'job', (select min(j.id) "
         "      from job j join attempt a on a.job = j.id and a.number = j.claims where j.state = 'running' "
         "      and j.worker = w.id and g->>'uuid' = any(a.gpu_devices)))), '[]') "
         "    from json_array_elements(w.gpus::json) g) as gpus, "
         "  (select min(j.id) from job j where j.state = 'running' and j.worker = w.id) as job, "
         "  (select coalesce(json_agg(json_build_object('id', j.id, 'run', j.run, 'step', j.step) "
         "    order by j.id), '[]') from job j where j.state = 'running' and j.worker = w.id) as jobs "
         "from worker w where w.last_seen_at > now() - interval '1 day' order by w.started_at desc, w.id",
         0},
};
const size_t MLO_READS_SQL_COUNT = MLO_COUNT(MLO_READS_SQL);

static enum mlo_status read_all(struct mlo_db_conn *conn, int statement, const struct mlo_params *params,
                                json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &MLO_READS_SQL[statement], params, &rows, err);
    if (status == MLO_OK && !(*out = mlo_rows_json_all(&rows)))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status no_run(int64_t run, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_ENOTFOUND, "there is no run %lld", (long long)run);
}

enum mlo_status mlo_run_get(struct mlo_db_conn *conn, int64_t project, int64_t run, json_t **out,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *runs = NULL, *jobs = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    mlo_param_i64(&p, project);
    MLO_TRY(read_all(conn, S_RUN, &p, &runs, err));
    if (json_array_size(runs) == 0) {
        status = no_run(run, err);
        goto out;
    }
    p = (struct mlo_params)MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    MLO_TRY(read_all(conn, S_JOBS, &p, &jobs, err));
    MLO_TRY(mlo_waits_of_run(conn, run, jobs, err));
    json_t *value = json_array_get(runs, 0);
    for (size_t i = json_array_size(jobs); i > 0; i--) { /* the newest choice has all there is to say */
        json_t *search = json_object_get(json_object_get(json_array_get(jobs, i - 1), "report"), "search");
        if (!search)
            continue;
        json_object_set(value, "search", search);
        break;
    }
    if (json_object_set(value, "jobs", jobs) < 0)
        status = mlo_error_nomem(err);
    else
        *out = json_incref(value);
out:
    json_decref(runs);
    json_decref(jobs);
    return status;
}

enum mlo_status mlo_run_list(struct mlo_db_conn *conn, const struct mlo_run_filter *filter, json_t **out,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int limit = filter->limit > 0 ? MLO_MIN(filter->limit, MLO_PAGE_MAX) : MLO_PAGE_DEFAULT;
    json_t *runs = NULL, *next = NULL;
    char text[24];
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, filter->project);
    mlo_param_i64(&p, filter->model);
    mlo_param_i64(&p, filter->version);
    mlo_param_text(&p, filter->state);
    mlo_param_i64(&p, filter->before);
    mlo_param_i64(&p, limit + 1); /* one more tells whether there is a next page */
    MLO_TRY(read_all(conn, S_LIST, &p, &runs, err));
    if (json_array_size(runs) > (size_t)limit) {
        json_array_remove(runs, (size_t)limit);
        json_t *last = json_array_get(runs, (size_t)limit - 1);
        snprintf(text, sizeof text, "%lld", (long long)mlo_json_i64(last, "id", 0));
        next = json_string(text);
    }
    *out = json_pack("{s:O, s:O?}", "items", runs, "next", next);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(runs);
    json_decref(next);
    return status;
}

enum mlo_status mlo_run_events(struct mlo_db_conn *conn, int64_t run, int64_t after, int limit, json_t **out,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    json_t *events = NULL, *event;
    size_t i;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    mlo_param_i64(&p, after);
    mlo_param_i64(&p, limit > 0 ? MLO_MIN(limit, MLO_PAGE_MAX) : 200);
    MLO_TRY(read_all(conn, S_EVENTS, &p, &events, err));
    json_array_foreach(events, i, event)
    {
        json_t *data = json_incref(json_object_get(event, "data"));
        json_object_del(event, "data");
        if (data && json_object_update_missing(event, data) < 0)
            status = mlo_error_nomem(err);
        json_decref(data);
        after = mlo_json_i64(event, "seq", after);
    }
    MLO_TRY(status);
    p = (struct mlo_params)MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    MLO_TRY(mlo_db_exec(conn, &MLO_READS_SQL[S_RUN_STATE], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = no_run(run, err);
        goto out;
    }
    const char *state = mlo_rows_text(&rows, 0, 0);
    bool over = strcmp(state, "queued") != 0 && strcmp(state, "running") != 0;
    *out = json_pack("{s:O, s:I, s:s, s:b}", "items", events, "next", (json_int_t)after, "state", state,
                     "done", over && mlo_rows_i64(&rows, 0, 1) <= after);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    json_decref(events);
    return status;
}

static enum mlo_status read_marks(struct mlo_db_conn *conn, const struct mlo_sql *sql, const int64_t *runs,
                                  size_t count, int64_t *marks, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_array ids = MLO_ARRAY_INIT;
    struct mlo_rows rows = {0};
    for (size_t i = 0; i < count; i++)
        mlo_array_i64(&ids, runs[i]);
    MLO_TRY(mlo_param_array(&p, &ids, err));
    MLO_TRY(mlo_db_exec(conn, sql, &p, &rows, err));
    int row = 0, found = mlo_rows_count(&rows);
    for (size_t i = 0; i < count; i++) { /* both ascend */
        while (row < found && mlo_rows_i64(&rows, row, 0) < runs[i])
            row++;
        marks[i] = row < found && mlo_rows_i64(&rows, row, 0) == runs[i] ? mlo_rows_i64(&rows, row, 1) : 0;
    }
out:
    mlo_array_clear(&ids);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_run_marks(struct mlo_db_conn *conn, const int64_t *runs, size_t count, int64_t *marks,
                              struct mlo_error *err)
{
    return read_marks(conn, &MLO_READS_SQL[S_MARKS], runs, count, marks, err);
}

enum mlo_status mlo_run_log_marks(struct mlo_db_conn *conn, const int64_t *runs, size_t count, int64_t *marks,
                                  struct mlo_error *err)
{
    return read_marks(conn, &MLO_READS_SQL[S_LOG_MARKS], runs, count, marks, err);
}

enum mlo_status mlo_queue_overview(struct mlo_db_conn *conn, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *rows = NULL, *targets = NULL, *stuck = NULL;
    MLO_TRY(read_all(conn, S_QUEUE, NULL, &rows, err));
    MLO_TRY(read_all(conn, S_TARGETS, NULL, &targets, err));
    MLO_TRY(mlo_queue_stuck(conn, &stuck, err));
    if (json_object_set(json_array_get(rows, 0), "targets", targets) < 0 ||
        json_object_set(json_array_get(rows, 0), "stuck", stuck) < 0)
        status = mlo_error_nomem(err);
    else
        *out = json_incref(json_array_get(rows, 0));
out:
    json_decref(rows);
    json_decref(targets);
    json_decref(stuck);
    return status;
}

enum mlo_status mlo_queue_depths(struct mlo_db_conn *conn, int64_t project, json_t **out,
                                 struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project);
    return read_all(conn, S_DEPTHS, &p, out, err);
}

enum mlo_status mlo_worker_list(struct mlo_db_conn *conn, json_t **out, struct mlo_error *err)
{
    json_t *workers = NULL;
    enum mlo_status status = read_all(conn, S_WORKERS, NULL, &workers, err);
    if (status == MLO_OK && !(*out = json_pack("{s:O, s:n}", "items", workers, "next")))
        status = mlo_error_nomem(err);
    json_decref(workers);
    return status;
}
