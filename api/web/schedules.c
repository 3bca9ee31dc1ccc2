/* The schedules of a project: when they fire, and what came of it. */
#include <string.h>

#include "api/web/web_impl.h"

static void button(struct mlo_request *req, const json_t *schedule, const char *what, const char *text)
{
    struct mlo_buf *out = &req->out;
    HTML(out, "<form class=\"inline\" method=\"post\" action=\"/schedules/%s/%s/%s\">",
         mlo_request_param(req, "p"), mlo_text(schedule, "name"), what);
    mlo_page_csrf_field(req);
    HTML(out, "<button>%s</button></form>", text);
}

/* What the newest firing was, with its runs, and why it failed. */
static void firing(struct mlo_buf *out, const char *project, const json_t *last)
{
    const json_t *run;
    size_t i;
    const char *why = mlo_json_str(json_object_get(last, "error"), "message", "");
    if (!json_is_object(last)) {
        HTML(out, "<span class=\"muted\">never</span>");
        return;
    }
    mlo_piece_state(out, mlo_text(last, "state"));
    HTML(out, " ");
    mlo_piece_time(out, mlo_json_str(last, "at", NULL));
    json_array_foreach(json_object_get(last, "runs"), i, run)
    {
        long long id = (long long)mlo_json_i64(run, "run", 0);
        HTML(out, " <a href=\"/runs/%s/%lld\">#%lld</a>", project, id, id);
    }
    if (why[0])
        HTML(out, "<br><small>%s</small>", why);
}

static void schedule_row(struct mlo_request *req, const json_t *schedule, enum mlo_role role)
{
    struct mlo_buf *out = &req->out;
    const char *project = mlo_request_param(req, "p");
    bool paused = strcmp(mlo_text(schedule, "state"), "paused") == 0;
    bool may_change =
        role >= (strcmp(mlo_text(schedule, "stage"), "production") == 0 ? MLO_PROMOTER : MLO_SUBMITTER);
    HTML(out, "<tr><td><b>%s</b><br><small>%s by %s</small></td><td>", mlo_text(schedule, "name"),
         mlo_text(schedule, "recipe_name"), mlo_text(schedule, "created_by"));
    mlo_piece_model(out, project, mlo_text(schedule, "model"));
    HTML(out, "<br><small>%s</small></td><td><code>%s</code><br><small>%s</small></td><td>",
         mlo_text(schedule, "stage"), mlo_text(schedule, "cron"), mlo_text(schedule, "time_zone"));
    if (paused) {
        mlo_piece_state(out, "paused");
        HTML(out, "<br><small>%s</small>", mlo_text(schedule, "state_reason"));
    } else {
        mlo_piece_time(out, mlo_json_str(schedule, "next_at", NULL));
    }
    HTML(out, "</td><td>");
    firing(out, project, json_object_get(schedule, "last"));
    HTML(out, "</td><td class=\"n\">%lld</td><td class=\"n\">%lld</td><td class=\"n\">%lld</td><td>",
         (long long)mlo_json_i64(schedule, "succeeded", 0), (long long)mlo_json_i64(schedule, "failed", 0),
         (long long)mlo_json_i64(schedule, "skipped", 0));
    if (role >= MLO_SUBMITTER)
        button(req, schedule, "run", "Run now");
    if (may_change)
        button(req, schedule, paused ? "resume" : "pause", paused ? "Resume" : "Pause");
    HTML(out, "</td></tr>");
}

enum { ROWS_A_PAGE = 40 };

enum mlo_status page_schedules(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_buf *out = &req->out;
    json_t *schedules = NULL, *part = NULL, *schedule;
    int64_t project;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_schedule_list(req->conn, project, &schedules, err));
    mlo_page_begin(req, "Schedules", "runs");
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/runs\">Runs</a> / %s</p><h1>Schedules of %s</h1><section "
         "class=\"panel\">",
         mlo_request_param(req, "p"), mlo_request_param(req, "p"));
    if (json_array_size(schedules) == 0) {
        HTML(out,
             "<p class=\"empty\">Nothing is measured again by the clock. Begin:</p><pre tabindex=\"0\">mlopt "
             "schedule add "
             "%s/MODEL "
             "--name nightly --cron &#39;0 3 * * *&#39; --recipe watch.yaml</pre>",
             mlo_request_param(req, "p"));
    } else {
        HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table "
                  "id=\"schedules\"><thead><tr><th>Schedule</th><th>Measures</th><th>When</th>"
                  "<th>Next</th><th>Last</th><th class=\"n\">Good</th><th class=\"n\">Failed</th>"
                  "<th class=\"n\">Skipped</th><th></th></tr></thead><tbody>");
        part = mlo_page_part(req, schedules, ROWS_A_PAGE);
        json_array_foreach(json_object_get(part, "items"), i, schedule)
            schedule_row(req, schedule, actor.role);
        HTML(out, "</tbody></table></div>");
        mlo_piece_next(req, part);
    }
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(part);
    json_decref(schedules);
    return status;
}

enum mlo_status page_schedule_change(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *what = mlo_request_param(req, "what"), *name = mlo_request_param(req, "name");
    json_t *ignored = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    if (strcmp(what, "run") == 0)
        status = mlo_schedule_run(req->conn, &actor, project, name, &ignored, err);
    else if (strcmp(what, "pause") == 0)
        status = mlo_schedule_set(req->conn, &actor, project, name, MLO_SCHEDULE_PAUSE, NULL, NULL, err);
    else if (strcmp(what, "resume") == 0)
        status = mlo_schedule_set(req->conn, &actor, project, name, MLO_SCHEDULE_RESUME, NULL, NULL, err);
    else
        status = mlo_error_set(err, MLO_ENOTFOUND, "a schedule is run, paused or resumed, not '%.40s'", what);
    MLO_TRY(status);
    MLO_TRY(mlo_reply_redirect(req, "/schedules/%s", mlo_request_param(req, "p")));
out:
    json_decref(ignored);
    return status;
}
