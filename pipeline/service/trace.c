/* Where a run's time went: a job waits for others (blocked), for a worker (queued), and is tried; an attempt
 * has phases, which its worker tells. Times are seconds since the run was submitted, by the database's clock;
 * phases are durations of the worker's own. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/worker_impl.h"

enum { S_NOTE, S_RUN, S_JOBS, S_ATTEMPTS, PHASES_BYTES = 1024, PHASE_NAME_MAX = 32 };

#define SINCE(column) "extract(epoch from " column " - r.created_at)::float8"

const struct mlo_sql MLO_TRACE_SQL[] = {
    /* for people: waits for no disk */
    [S_NOTE] = {"trace_note",
                "update attempt set phases = $3 where job = $1 and token = $2::uuid and ended_at is null "
                "and set_config('synchronous_commit', 'off', true) = 'off'",
                3},
    [S_RUN] =
        {"trace_run",
         "select r.id as run, p.name as project, m.name as model, v.number as version, r.recipe_name as "
         "recipe, "
         "r.state, r.created_at as submitted_at, (extract(epoch from r.created_at) * 1e6)::bigint as "
         "submitted_us, " SINCE(
             "coalesce(r.finished_at, clock_timestamp())") " as seconds "
                                                           "from run r join version v on v.id = r.version "
                                                           "join model m on m.id = v.model_id "
                                                           "join project p on p.id = r.project where r.id = "
                                                           "$1 and r.project = $2",
         2},
    [S_JOBS] =
        {"trace_jobs",
         "select j.id, j.position, j.name, j.step, j.state, " SINCE("j.created_at") ", " SINCE(
             "j.ready_at") ", " SINCE("j.finished_at") ", exists (select from job_dep d where d.job = j.id) "
                                                       "from job j join run r on r.id = j.run where "
                                                       "r.id = $1 order by j.position offset $2 limit $3",
         3},
    [S_ATTEMPTS] = {"trace_attempts",
                    "select a.job, a.number, a.worker, " SINCE("a.started_at") ", " SINCE(
                        "a.ended_at") ", a.outcome, a.phases, substring(a.error from '\"code\": "
                                      "?\"([a-z0-9-]{1,40})\"') "
                                      "from (select id, position, run from job where run = $1 "
                                      "order by position offset $2 limit $3) j join run r on r.id = j.run "
                                      "cross join lateral (select * from attempt where job = j.id "
                                      "order by number desc limit $4) a "
                                      "order by j.position, a.number limit 5000",
                    4},
};
const size_t MLO_TRACE_SQL_COUNT = MLO_COUNT(MLO_TRACE_SQL);

/* --- what a worker tells ------------------------------------------------------------------------------- */

void mlo_phases_begin(struct mlo_phases *phases)
{
    *phases = (struct mlo_phases){.began_ns = mlo_clock_ns()};
}

void mlo_phases_next(struct mlo_phases *phases, const char *name)
{
    if (phases->count < MLO_COUNT(phases->list)) {
        phases->list[phases->count].name = name;
        phases->list[phases->count++].from_ns = mlo_clock_ns();
    }
}

/* [["inputs", from_s, to_s], …]; the last one ends now. */
void mlo_phases_send(const struct mlo_phases *phases, struct mlo_db *db, const struct mlo_job *job)
{
    struct mlo_db_conn *conn;
    struct mlo_error ignored = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf text = MLO_BUF_INIT;
    uint64_t now = mlo_clock_ns();
    for (size_t i = 0; i < phases->count; i++) {
        uint64_t to = i + 1 < phases->count ? phases->list[i + 1].from_ns : now;
        mlo_buf_printf(&text, "%s[\"%s\",%.6f,%.6f]", i ? "," : "[", phases->list[i].name,
                       (double)(phases->list[i].from_ns - phases->began_ns) / 1e9,
                       (double)(to - phases->began_ns) / 1e9);
    }
    mlo_buf_puts(&text, "]");
    mlo_param_i64(&p, job->id);
    mlo_param_text(&p, job->token);
    mlo_param_text(&p, mlo_buf_str(&text));
    if (phases->count && mlo_buf_ok(&text) && mlo_db_acquire(db, &conn, &ignored) == MLO_OK) {
        if (mlo_db_exec(conn, &MLO_TRACE_SQL[S_NOTE], &p, NULL, &ignored) != MLO_OK)
            mlo_log_error(MLO_LOG_DEBUG, "an attempt's phases are not recorded", &ignored);
        mlo_db_release(conn);
    }
    mlo_buf_clear(&text);
}

/* --- what is read -------------------------------------------------------------------------------------- */

/* Appends a span; nothing, where it has no length. */
static enum mlo_status add(json_t *spans, const char *kind, double from, double to, bool open, json_t **out,
                           struct mlo_error *err)
{
    json_t *span;
    *out = NULL;
    if (!(to >= from) || (!open && to - from < 1e-6 && strcmp(kind, "attempt") != 0))
        return MLO_OK;
    span = json_pack("{s:s, s:f, s:f, s:b}", "kind", kind, "from_s", from, "to_s", to, "open", open);
    if (!span || json_array_append_new(spans, span) < 0)
        return mlo_error_nomem(err);
    *out = span;
    return MLO_OK;
}

/* A worker's word: what is not of the form, or leaves the attempt, is left out or cut. */
static void add_phases(json_t *span, const char *text, double from, double to)
{
    json_t *told = NULL, *phase, *phases = json_array();
    size_t i;
    if (!text || strlen(text) > PHASES_BYTES ||
        mlo_json_parse(text, strlen(text), "phases", &told, NULL) != MLO_OK)
        told = NULL;
    double last = from;
    json_array_foreach(told, i, phase)
    {
        const char *name = json_string_value(json_array_get(phase, 0));
        const json_t *first = json_array_get(phase, 1), *second = json_array_get(phase, 2);
        double begin = from + json_number_value(first), end = from + json_number_value(second);
        if (!name || strlen(name) > PHASE_NAME_MAX || !json_is_number(first) || !json_is_number(second) ||
            !(begin >= last) || !(end >= begin))
            continue;
        begin = MLO_MIN(begin, to);
        end = MLO_MIN(end, to);
        last = end;
        json_array_append_new(phases,
                              json_pack("{s:s, s:f, s:f}", "name", name, "from_s", begin, "to_s", end));
    }
    /* what came after them: the transaction that records it all */
    if (json_array_size(phases) && to - last > 1e-4 && !mlo_json_bool(span, "open", false))
        json_array_append_new(phases,
                              json_pack("{s:s, s:f, s:f}", "name", "record", "from_s", last, "to_s", to));
    json_object_set_new(span, "phases", phases);
    json_decref(told);
}

enum { A_JOB, A_NUMBER, A_WORKER, A_FROM, A_TO, A_OUTCOME, A_PHASES, A_CODE };
enum { J_ID, J_POSITION, J_NAME, J_STEP, J_STATE, J_CREATED, J_READY, J_FINISHED, J_NEEDS };

static bool is_open(const char *state)
{
    return strcmp(state, "waiting") == 0 || strcmp(state, "ready") == 0 || strcmp(state, "running") == 0;
}

/* The time before an attempt, or before now: before the first one a job waits for others until it is ready.
 * One that was taken up again says when it was ready the last time, which is no beginning of its first wait.
 */
static enum mlo_status add_wait(json_t *spans, const struct mlo_rows *jobs, int j, double from, double to,
                                bool first, bool open, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *span;
    double ready = mlo_rows_f64(jobs, j, J_READY);
    if (first && isnan(ready))
        return add(spans, "blocked", from, to, open, &span, err);
    if (!first || ready < from || ready > to || !mlo_rows_bool(jobs, j, J_NEEDS))
        ready = from;
    MLO_TRY(add(spans, "blocked", from, ready, false, &span, err));
    MLO_TRY(add(spans, "queued", ready, to, open, &span, err));
out:
    return status;
}

/* Attempts are numbered from 1 on: those before the first that was read are not told of ("earlier" is how
 * many), and so the wait before that one has no beginning. */
static enum mlo_status job_trace(const struct mlo_rows *jobs, int j, const struct mlo_rows *attempts, int *a,
                                 double now, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *spans = json_array(), *span;
    const char *state = mlo_rows_text(jobs, j, J_STATE);
    double at = mlo_rows_f64(jobs, j, J_CREATED);
    bool first = true;
    int64_t earlier = 0;
    if (!spans)
        return mlo_error_nomem(err);
    for (; *a < mlo_rows_count(attempts) && mlo_rows_i64(attempts, *a, A_JOB) == mlo_rows_i64(jobs, j, J_ID);
         ++*a) {
        double from = mlo_rows_f64(attempts, *a, A_FROM);
        bool open = mlo_rows_null(attempts, *a, A_TO);
        double to = open ? now : mlo_rows_f64(attempts, *a, A_TO);
        const char *outcome = mlo_rows_text(attempts, *a, A_OUTCOME),
                   *code = mlo_rows_text(attempts, *a, A_CODE);
        if (first)
            earlier = mlo_rows_i64(attempts, *a, A_NUMBER) - 1;
        if (!first || earlier == 0)
            MLO_TRY(add_wait(spans, jobs, j, at, from, first, false, err));
        MLO_TRY(add(spans, "attempt", from, MLO_MAX(from, to), open, &span, err));
        if (strcmp(state, "reused") == 0 && mlo_str_eq(outcome, "succeeded"))
            outcome = "reused";
        if (json_object_set_new(span, "attempt", json_integer(mlo_rows_i64(attempts, *a, A_NUMBER))) < 0 ||
            json_object_set_new(span, "worker", json_string(mlo_rows_text(attempts, *a, A_WORKER))) < 0 ||
            json_object_set_new(span, "outcome", outcome ? json_string(outcome) : json_null()) < 0 ||
            json_object_set_new(span, "error", code ? json_string(code) : json_null()) < 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
        add_phases(span, mlo_rows_text(attempts, *a, A_PHASES), from, MLO_MAX(from, to));
        at = MLO_MAX(from, to);
        first = false;
    }
    if (is_open(state) && strcmp(state, "running") != 0)
        MLO_TRY(add_wait(spans, jobs, j, at, now, first, true, err));
    else if (first && !mlo_rows_null(jobs, j, J_FINISHED)) /* cancelled before it was tried */
        MLO_TRY(add_wait(spans, jobs, j, at, mlo_rows_f64(jobs, j, J_FINISHED), true, false, err));
    *out = json_pack("{s:I, s:I, s:s, s:s, s:s, s:O}", "job", (json_int_t)mlo_rows_i64(jobs, j, J_ID),
                     "position", (json_int_t)mlo_rows_i64(jobs, j, J_POSITION), "name",
                     mlo_rows_text(jobs, j, J_NAME), "step", mlo_rows_text(jobs, j, J_STEP), "state",
                     strcmp(state, "waiting") == 0 ? "blocked"
                     : strcmp(state, "ready") == 0 ? "queued"
                                                   : state,
                     "spans", spans);
    if (!*out || (earlier && json_object_set_new(*out, "earlier", json_integer(earlier)) < 0))
        status = mlo_error_nomem(err);
out:
    json_decref(spans);
    return status;
}

enum mlo_status mlo_run_trace(struct mlo_db_conn *conn, int64_t project, int64_t run, json_t **out,
                              struct mlo_error *err)
{
    static const struct mlo_trace_part all = {.jobs = INT_MAX, .attempts = INT_MAX};
    return mlo_run_trace_part(conn, project, run, &all, out, err);
}

enum mlo_status mlo_run_trace_part(struct mlo_db_conn *conn, int64_t project, int64_t run,
                                   const struct mlo_trace_part *part, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows head = {0}, jobs = {0}, attempts = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *trace = NULL, *list = NULL, *job;
    int a = 0;
    mlo_param_i64(&p, run);
    mlo_param_i64(&p, project);
    MLO_TRY(mlo_db_exec(conn, &MLO_TRACE_SQL[S_RUN], &p, &head, err));
    if (mlo_rows_count(&head) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no run %lld", (long long)run);
        goto out;
    }
    p.count = 1;
    mlo_param_i64(&p, part->from);
    mlo_param_i64(&p, part->jobs);
    MLO_TRY(mlo_db_exec(conn, &MLO_TRACE_SQL[S_JOBS], &p, &jobs, err));
    mlo_param_i64(&p, part->attempts);
    MLO_TRY(mlo_db_exec(conn, &MLO_TRACE_SQL[S_ATTEMPTS], &p, &attempts, err));
    trace = mlo_rows_json(&head, 0);
    list = json_array();
    if (!trace || !list) {
        status = mlo_error_nomem(err);
        goto out;
    }
    double now = mlo_json_f64(trace, "seconds", 0);
    for (int j = 0; j < mlo_rows_count(&jobs); j++) {
        MLO_TRY(job_trace(&jobs, j, &attempts, &a, now, &job, err));
        json_array_append_new(list, job);
    }
    json_object_set(trace, "jobs", list);
    *out = json_incref(trace);
out:
    json_decref(trace);
    json_decref(list);
    mlo_rows_clear(&head);
    mlo_rows_clear(&jobs);
    mlo_rows_clear(&attempts);
    return status;
}
