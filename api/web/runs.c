/* Runs: the list, one run with its jobs, cancelling, taking up again. */
#include <math.h>
#include <string.h>

#include "api/web/web_impl.h"

void mlo_piece_runs(struct mlo_buf *out, const json_t *items)
{
    const json_t *item;
    size_t i;
    HTML(out, "<div class=\"scroll\" "
              "tabindex=\"0\"><table><thead><tr><th>Run</th><th>Model</th><th>Recipe</th><th>State</th>"
              "<th>Progress</th><th>By</th><th class=\"n\">Submitted</th></tr></thead><tbody>");
    json_array_foreach((json_t *)items, i, item)
    {
        const char *project = mlo_text(item, "project"), *model = mlo_text(item, "model");
        long long id = (long long)mlo_json_i64(item, "id", 0),
                  version = (long long)mlo_json_i64(item, "version", 0);
        const char *recipe = mlo_json_str(item, "recipe", mlo_text(json_object_get(item, "recipe"), "name"));
        HTML(out, "<tr><td><a href=\"/runs/%s/%lld\"><b>#%lld</b></a></td><td>", project, id, id);
        mlo_piece_model(out, project, model);
        HTML(out, "<span class=\"muted\">@%lld</span></td><td>%s</td><td>", version, recipe);
        mlo_piece_state(out, mlo_text(item, "state"));
        HTML(out, "</td><td>");
        mlo_piece_progress(out, mlo_json_f64(item, "progress", 0));
        HTML(out, "</td><td>%s</td><td class=\"n\">", mlo_text(item, "created_by"));
        mlo_piece_time(out, mlo_json_str(item, "created_at", NULL));
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div>");
}

enum mlo_status page_runs(struct mlo_request *req, struct mlo_error *err)
{
    static const char *const states[] = {"", "queued", "running", "succeeded", "failed", "cancelled"};
    const char *state = mlo_request_query(req, "state"), *cursor = mlo_request_query(req, "cursor");
    struct mlo_run_filter filter = {.project = req->who.project_id, .limit = 50};
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    json_t *runs = NULL;
    enum mlo_status status;
    for (size_t i = 1; i < MLO_COUNT(states); i++)
        if (state && strcmp(state, states[i]) == 0)
            filter.state = states[i];
    if (cursor && !mlo_str_to_i64(cursor, &filter.before))
        filter.before = 0;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_view_runs(conn, &filter, &runs, err));
    mlo_page_begin(req, "Runs", "runs");
    HTML(out, "<h1>Runs</h1><form class=\"filters\" method=\"get\"><label>State<select name=\"state\">");
    for (size_t i = 0; i < MLO_COUNT(states); i++) {
        const char *text = states[i][0] ? states[i] : "all";
        if (filter.state == states[i])
            HTML(out, "<option value=\"%s\" selected>%s</option>", states[i], text);
        else
            HTML(out, "<option value=\"%s\">%s</option>", states[i], text);
    }
    HTML(out, "</select></label><button>Show</button></form>");
    if (req->who.project_id == 0)
        HTML(out, "<p><a href=\"/workers\">Workers</a></p>");
    HTML(out, "<section class=\"panel\">");
    if (json_array_size(json_object_get(runs, "items")))
        mlo_piece_runs(out, json_object_get(runs, "items"));
    else
        HTML(out, "<p class=\"empty\">No such run.</p>");
    mlo_piece_next(req, runs);
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(runs);
    return status;
}

/* An error of a run or job: {code, message, where, hint}. */
static void error_box(struct mlo_buf *out, const json_t *error)
{
    if (!json_is_object(error))
        return;
    HTML(out, "<div class=\"alert\" role=\"alert\"><b>%s</b> %s", mlo_text(error, "code"),
         mlo_text(error, "message"));
    if (mlo_text(error, "where")[0])
        HTML(out, "<br><small>Where: %s</small>", mlo_text(error, "where"));
    if (mlo_text(error, "hint")[0])
        HTML(out, "<br><small>%s</small>", mlo_text(error, "hint"));
    HTML(out, "</div>");
}

static void job_row(struct mlo_buf *out, const json_t *run, const json_t *job, const json_t *shown)
{
    double seconds = mlo_json_f64(job, "seconds", NAN);
    bool reused = mlo_json_bool(job, "reused", false);
    HTML(out, "<tr><td><b>%s</b>", mlo_json_str(job, "name", mlo_text(job, "step")));
    if (mlo_text(job, "message")[0])
        HTML(out, "<br><small>%s</small>", mlo_text(job, "message"));
    if (mlo_text(job, "waits")[0])
        HTML(out, "<br><small class=\"waits\">waits: %s</small>", mlo_text(job, "waits"));
    HTML(out, "</td><td>%s</td><td>", mlo_text(job, "kind"));
    mlo_piece_state(out, reused ? "reused" : mlo_text(job, "state"));
    HTML(out, "</td><td>");
    mlo_piece_progress(out, mlo_json_f64(job, "progress", 0));
    HTML(out, "</td><td>%s</td><td class=\"n\">", mlo_text(job, "worker"));
    mlo_piece_time(out, mlo_json_str(job, "started_at", NULL));
    if (isnan(seconds) || reused) {
        HTML(out, "</td><td class=\"n muted\">–</td><td>");
    } else {
        HTML(out, "</td><td class=\"n\">");
        mlo_piece_duration(out, seconds);
        HTML(out, "</td><td>");
    }
    if (strcmp(mlo_text(job, "step"), "report") == 0 && strcmp(mlo_text(job, "state"), "succeeded") == 0)
        HTML(out, "<a href=\"/report/%s/%s/%lld/%s?run=%lld\">Report</a>", mlo_text(run, "project"),
             mlo_text(run, "model"), (long long)mlo_json_i64(run, "version", 0), mlo_text(run, "variant"),
             (long long)mlo_json_i64(run, "id", 0));
    else
        mlo_piece_digest(out, mlo_json_str(job, "output", NULL));
    HTML(out, "</td></tr>");
    const json_t *error = json_object_get(job, "error"); /* unless it stands above already, as the run's */
    if (json_is_object(error) && strcmp(mlo_text(error, "message"), mlo_text(shown, "message")) != 0) {
        HTML(out, "<tr class=\"under\"><td colspan=\"8\">");
        error_box(out, error);
        HTML(out, "</td></tr>");
    }
}

static void facts(struct mlo_buf *out, const json_t *run, double seconds)
{
    const json_t *datasets = json_object_get(run, "datasets"), *set;
    const char *role;
    HTML(out, "<dl class=\"facts\"><div><dt>State</dt><dd>");
    mlo_piece_state(out, mlo_text(run, "state"));
    HTML(out, "</dd></div><div><dt>Progress</dt><dd>");
    mlo_piece_progress(out, mlo_json_f64(run, "progress", 0));
    HTML(out,
         "</dd></div><div><dt>Variant</dt><dd>%s</dd></div><div><dt>Target</dt><dd>%s</dd></"
         "div><div><dt>Submitted</dt><dd>",
         mlo_text(run, "variant"), mlo_text(run, "target"));
    mlo_piece_time(out, mlo_json_str(run, "created_at", NULL));
    if (mlo_str_starts(mlo_text(run, "created_by"), "schedule "))
        HTML(out, " by <a href=\"/schedules/%s\">%s</a>", mlo_text(run, "project"),
             mlo_text(run, "created_by"));
    else
        HTML(out, " by %s", mlo_text(run, "created_by"));
    HTML(out, "</dd></div><div><dt>Finished</dt><dd>");
    mlo_piece_time(out, mlo_json_str(run, "finished_at", NULL));
    HTML(out, "</dd></div><div><dt>%s</dt><dd>",
         json_is_string(json_object_get(run, "finished_at")) ? "Took" : "Since it was submitted");
    mlo_piece_duration(out, seconds);
    HTML(out, "</dd></div><div><dt>Used</dt><dd><a href=\"/usage/%s\">%.1f CPU s</a>",
         mlo_text(run, "project"), mlo_json_f64(json_object_get(run, "usage"), "cpu_s", 0));
    if (mlo_json_f64(json_object_get(run, "usage"), "gpu_s", 0) > 0)
        HTML(out, ", %.1f GPU s", mlo_json_f64(json_object_get(run, "usage"), "gpu_s", 0));
    HTML(out, "</dd></div>");
    json_object_foreach((json_t *)datasets, role, set) if (json_is_object(set))
    {
        const char *title = strcmp(role, "postprocess") == 0 ? "Outputs postprocessed by"
                            : strcmp(role, "teacher") == 0   ? "Compared with the teacher"
                                                             : NULL;
        const char *variant = mlo_json_str(set, "variant", NULL);
        HTML(out, "<div><dt>%s%s</dt><dd>%s<span class=\"muted\">@%lld%s%s</span></dd></div>",
             title ? title : "Data to ", title ? "" : role, mlo_text(set, "name"),
             (long long)mlo_json_i64(set, "version", 0), variant ? "/" : "", variant ? variant : "");
    }
    HTML(out, "</dl>");
}

static void expectations(struct mlo_buf *out, const json_t *items)
{
    const json_t *item;
    size_t i;
    if (!json_array_size(items))
        return;
    HTML(out, "<h2>Expectations</h2><section class=\"panel\"><ul class=\"plain-list\">");
    json_array_foreach((json_t *)items, i, item)
        HTML(out, "<li><span class=\"badge %s\">%s</span> <code>%s</code> <small>%s</small></li>",
             mlo_json_bool(item, "holds", false) ? "good" : "bad",
             mlo_json_bool(item, "holds", false) ? "holds" : "does not hold", mlo_text(item, "condition"),
             mlo_text(item, "reason"));
    HTML(out, "</ul></section>");
}

static void change_form(struct mlo_request *req, int64_t id, const char *what, const char *button)
{
    HTML(&req->out, "<form class=\"inline\" method=\"post\" action=\"/runs/%s/%lld/%s\">",
         mlo_request_param(req, "p"), (long long)id, what);
    mlo_page_csrf_field(req);
    HTML(
        &req->out,
        "<input name=\"reason\" placeholder=\"Why (optional)\" aria-label=\"Why\"><button>%s</button></form>",
        button);
}

/* What trying again can help: a job of the run failed, and not what it made. */
static bool has_failed_job(const json_t *run)
{
    const json_t *job;
    size_t i;
    bool failed = false;
    json_array_foreach(json_object_get(run, "jobs"), i, job) failed =
        failed || strcmp(mlo_text(job, "state"), "failed") == 0;
    return failed && strcmp(mlo_text(run, "state"), "failed") == 0 && !mlo_text(run, "reproduces")[0];
}

enum mlo_status mlo_page_run_id(const struct mlo_request *req, int64_t *out, struct mlo_error *err)
{
    if (mlo_str_to_i64(mlo_request_param(req, "id"), out) && *out > 0)
        return MLO_OK;
    return mlo_error_set(err, MLO_ENOTFOUND, "there is no run '%.60s'", mlo_request_param(req, "id"));
}

enum mlo_status page_run_events(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_view_run_stream(req, err);
}

/* Of a search, which may have hundreds; and of a job that is tried again and again, its newest attempts. */
enum { JOBS_A_PAGE = 16, ATTEMPTS_A_JOB = 10 };

/* Where the page begins: at the cursor, else with the part that has the first job which goes on or waits,
 * else with that of the first which failed: a search goes on without what failed. When the run ends and has
 * not failed, whoever followed it stays at what was ?shown=. */
static size_t first_shown(const struct mlo_request *req, const json_t *run)
{
    const json_t *jobs = json_object_get(run, "jobs"), *job;
    const char *shown = mlo_request_query(req, "shown");
    size_t i, count = json_array_size(jobs), failed = count;
    int64_t from;
    if (mlo_request_query(req, "cursor"))
        return mlo_page_from(req, jobs);
    json_array_foreach((json_t *)jobs, i, job)
    {
        const char *state = mlo_text(job, "state");
        if (strcmp(state, "failed") == 0)
            failed = MLO_MIN(failed, i);
        else if (strcmp(state, "succeeded") != 0 && strcmp(state, "cancelled") != 0)
            return i / JOBS_A_PAGE * JOBS_A_PAGE;
    }
    if (shown && strcmp(mlo_text(run, "state"), "failed") != 0 && mlo_str_to_i64(shown, &from) && from >= 0 &&
        (size_t)from < count)
        return (size_t)from;
    return failed < count ? failed / JOBS_A_PAGE * JOBS_A_PAGE : 0;
}

enum mlo_status page_run(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    json_t *run = NULL, *log = NULL, *trace = NULL, *jobs = NULL, *job;
    int64_t project, id;
    size_t i;
    char title[64];
    enum mlo_status status;
    MLO_TRY(mlo_page_run_id(req, &id, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_view_run(req->conn, project, id, &run, err));
    MLO_TRY(mlo_page_log(req->conn, id, &log, err));
    size_t from = first_shown(req, run);
    const struct mlo_trace_part part = {
        .from = (int64_t)from, .jobs = JOBS_A_PAGE, .attempts = ATTEMPTS_A_JOB}; /* of the same jobs */
    MLO_TRY(mlo_run_trace_part(req->conn, project, id, &part, &trace, err));
    jobs = mlo_page_part_of(json_object_get(run, "jobs"), from, JOBS_A_PAGE);
    const char *state = mlo_text(run, "state");
    bool open = strcmp(state, "queued") == 0 || strcmp(state, "running") == 0;
    snprintf(title, sizeof title, "Run #%lld", (long long)id);
    mlo_page_begin(req, title, "runs");
    if (open) /* live.js refreshes the part inside; without it the whole page is loaded again */
        HTML(out, "<noscript><meta http-equiv=\"refresh\" content=\"3\"></noscript>");
    HTML(out, "<div id=\"live\" data-from=\"%zu\">", from);
    if (open)
        HTML(out, "<span hidden data-live=\"1000\" data-after=\"%lld\"></span>",
             (long long)mlo_json_i64(run, "event_seq", 0));
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/runs\">Runs</a> / #%lld</p><h1>%s <span class=\"muted\">on</span> ",
         (long long)id, mlo_json_str(run, "recipe", mlo_text(json_object_get(run, "recipe"), "name")));
    mlo_piece_model(out, mlo_text(run, "project"), mlo_text(run, "model"));
    HTML(out, "<span class=\"muted\">@%lld</span></h1><section class=\"panel\">",
         (long long)mlo_json_i64(run, "version", 0));
    facts(out, run, mlo_json_f64(trace, "seconds", 0));
    error_box(out, json_object_get(run, "error"));
    HTML(out, "</section>");
    mlo_piece_front(out, run);
    HTML(out, "<h2>Jobs</h2><section class=\"panel\"><div class=\"scroll\" tabindex=\"0\"><table "
              "id=\"jobs\"><thead><tr><th>Step</th>"
              "<th>Kind</th><th>State</th><th>Progress</th><th>Worker</th><th class=\"n\">Started</th>"
              "<th class=\"n\">Took</th><th>Artifact</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(jobs, "items"), i, job)
        job_row(out, run, job, json_object_get(run, "error"));
    HTML(out, "</tbody></table></div>");
    if (from)
        HTML(out, "<p class=\"links\"><a href=\"/runs/%s/%lld?cursor=0\">The %zu jobs before</a></p>",
             mlo_text(run, "project"), (long long)id, from);
    mlo_piece_next(req, jobs);
    mlo_piece_dag(out, json_object_get(run, "jobs"));
    HTML(out, "</section>");
    expectations(out, json_object_get(run, "expectations"));
    HTML(out, "<h2>Time</h2><section class=\"panel\">");
    mlo_piece_trace(out, trace);
    HTML(out, "</section></div>");
    /* live.js takes these afresh when they are of other jobs, and at the end: not under somebody who reads */
    HTML(out, "<div id=\"times\" data-from=\"%zu\">", from);
    mlo_piece_trace_table(out, trace);
    HTML(out, "</div>");
    mlo_piece_log(out, run, log, open);
    HTML(out, "<div id=\"after\">");
    if (open && req->who.role >= MLO_SUBMITTER) {
        change_form(req, id, "cancel", "Cancel this run");
    } else if (has_failed_job(run) && req->who.role >= MLO_SUBMITTER) {
        change_form(req, id, "requeue", "Try again from there");
    }
    HTML(out, "</div>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(run);
    json_decref(log);
    json_decref(trace);
    json_decref(jobs);
    return status;
}

typedef enum mlo_status run_change_fn(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t run,
                                      const char *reason, struct mlo_error *err);

static enum mlo_status change_run(struct mlo_request *req, run_change_fn *change, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason = mlo_request_form(req, "reason");
    json_t *run = NULL;
    int64_t project, id;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_page_run_id(req, &id, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_run_get(req->conn, project, id, &run, err));
    MLO_TRY(change(req->conn, &actor, id, reason && reason[0] ? reason : NULL, err));
    MLO_TRY(mlo_reply_redirect(req, "/runs/%s/%lld", mlo_request_param(req, "p"), (long long)id));
out:
    json_decref(run);
    return status;
}

enum mlo_status page_run_cancel(struct mlo_request *req, struct mlo_error *err)
{
    return change_run(req, mlo_run_cancel, err);
}

enum mlo_status page_run_requeue(struct mlo_request *req, struct mlo_error *err)
{
    return change_run(req, mlo_run_requeue, err);
}
