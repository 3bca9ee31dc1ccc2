/* The workers: what they do, what their kernels lack; pausing and draining them. */
#include <string.h>

#include "api/web/web_impl.h"

static const struct {
    const char *what, *text;
    enum mlo_worker_wish wish;
} CHANGES[] = {{"pause", "Pause", MLO_WORKER_PAUSE},
               {"resume", "Resume", MLO_WORKER_RUN},
               {"drain", "Drain", MLO_WORKER_DRAIN}};

/* What can be asked of it now. */
static bool offered(const json_t *worker, enum mlo_worker_wish change)
{
    const char *state = mlo_text(worker, "state"), *wish = mlo_text(worker, "wish");
    bool paused = strcmp(wish, "pause") == 0;
    if (strcmp(state, "stopped") == 0 || strcmp(state, "lost") == 0 || strcmp(wish, "drain") == 0)
        return false;
    return change == MLO_WORKER_DRAIN || paused == (change == MLO_WORKER_RUN);
}

static void buttons(struct mlo_request *req, const json_t *worker)
{
    struct mlo_buf *out = &req->out;
    for (size_t i = 0; i < MLO_COUNT(CHANGES); i++) {
        if (!offered(worker, CHANGES[i].wish))
            continue;
        HTML(out, "<form class=\"inline\" method=\"post\" action=\"/workers/%s/%s\">",
             mlo_text(worker, "name"), CHANGES[i].what);
        mlo_page_csrf_field(req);
        HTML(out, "<button>%s</button></form> ", CHANGES[i].text);
    }
}

static void words(struct mlo_buf *out, const json_t *list)
{
    json_t *word;
    size_t i;
    json_array_foreach((json_t *)list, i, word) HTML(out, "%s%s", i ? ", " : "", json_string_value(word));
}

/* Memory and disk that a job can have there, and its GPUs with who has them. */
static void room(struct mlo_buf *out, const json_t *worker)
{
    const json_t *gpu;
    size_t i;
    char size[32];
    int64_t memory = mlo_json_i64(worker, "memory_bytes", -1), disk = mlo_json_i64(worker, "disk_bytes", -1);
    if (memory >= 0)
        HTML(out, "%s of memory", mlo_str_size((uint64_t)memory, size));
    if (disk >= 0)
        HTML(out, "<br>%s of disk", mlo_str_size((uint64_t)disk, size));
    json_array_foreach(json_object_get(worker, "gpus"), i, gpu)
    {
        int64_t job = mlo_json_i64(gpu, "job", 0);
        HTML(out, "<br>%s <small>%s</small>", mlo_text(gpu, "model"), mlo_text(gpu, "uuid"));
        if (job)
            HTML(out, " <small>(job %lld)</small>", (long long)job);
    }
}

static void worker_row(struct mlo_request *req, const json_t *worker, bool may_change)
{
    struct mlo_buf *out = &req->out;
    HTML(out, "<tr><td><b>%s</b><br><small>%s</small></td><td>", mlo_text(worker, "name"),
         mlo_text(worker, "machine_class"));
    mlo_piece_state(out, mlo_text(worker, "state"));
    if (mlo_text(worker, "wish_by")[0]) {
        HTML(out, "<br><small>%s by %s", mlo_text(worker, "wish"), mlo_text(worker, "wish_by"));
        if (mlo_text(worker, "wish_reason")[0])
            HTML(out, ": %s", mlo_text(worker, "wish_reason"));
        HTML(out, "</small>");
    }
    HTML(out, "</td><td>");
    words(out, json_object_get(worker, "capabilities"));
    HTML(out, "</td><td>");
    room(out, worker);
    HTML(out, "</td><td class=\"n\">%lld of %lld</td><td>",
         (long long)json_array_size(json_object_get(worker, "jobs")),
         (long long)mlo_json_i64(worker, "slots", 0));
    if (json_array_size(json_object_get(worker, "lacking")))
        words(out, json_object_get(worker, "lacking"));
    else
        HTML(out, "<span class=\"muted\">nothing</span>");
    HTML(out, "</td><td class=\"n\">");
    mlo_piece_time(out, mlo_json_str(worker, "last_seen_at", NULL));
    HTML(out, "</td><td>");
    if (may_change)
        buttons(req, worker);
    HTML(out, "</td></tr>");
}

/* Jobs that no worker can take. */
static void stuck(struct mlo_buf *out, const json_t *kinds)
{
    const json_t *kind;
    size_t i;
    if (json_array_size(kinds) == 0)
        return;
    HTML(
        out,
        "<h2>Waiting for a worker that is not there</h2><section class=\"panel\"><table id=\"stuck\">"
        "<thead><tr><th class=\"n\">Jobs</th><th class=\"n\">First run</th><th>Why</th></tr></thead><tbody>");
    json_array_foreach((json_t *)kinds, i, kind)
        HTML(out, "<tr><td class=\"n\">%lld</td><td class=\"n\">%lld</td><td>%s</td></tr>",
             (long long)mlo_json_i64(kind, "queued", 0), (long long)mlo_json_i64(kind, "run", 0),
             mlo_text(kind, "waits"));
    HTML(out, "</tbody></table></section>");
}

enum { ROWS_A_PAGE = 40 };

enum mlo_status page_workers(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    json_t *workers = NULL, *part = NULL, *worker, *kinds = NULL;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_VIEWER, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_worker_list(conn, &workers, err));
    MLO_TRY(mlo_queue_stuck(conn, &kinds, err));
    mlo_page_begin(req, "Workers", "runs");
    HTML(out, "<h1>Workers</h1><section class=\"panel\">");
    if (json_array_size(json_object_get(workers, "items")) == 0) {
        HTML(out, "<p class=\"empty\">No worker was seen since yesterday. Start one:</p><pre>mlopt worker "
                  "--blobs URL --work-dir DIR</pre>");
    } else {
        HTML(
            out,
            "<div class=\"scroll\" tabindex=\"0\"><table "
            "id=\"workers\"><thead><tr><th>Worker</th><th>State</th><th>Targets</th><th>A job can have</th>"
            "<th class=\"n\">Jobs</th><th>Isolation lacks</th><th class=\"n\">Seen</th><th></th></tr></thead>"
            "<tbody>");
        part = mlo_page_part(req, json_object_get(workers, "items"), ROWS_A_PAGE);
        json_array_foreach(json_object_get(part, "items"), i, worker)
            worker_row(req, worker, actor.role >= MLO_ADMIN && actor.project_id == 0);
        HTML(out, "</tbody></table></div>");
        mlo_piece_next(req, part);
    }
    HTML(out, "</section>");
    stuck(out, kinds);
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(part);
    json_decref(workers);
    json_decref(kinds);
    return status;
}

enum mlo_status page_worker_wish(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *what = mlo_request_param(req, "what"), *reason = mlo_request_form(req, "reason");
    struct mlo_db_conn *conn;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    status = mlo_error_set(err, MLO_ENOTFOUND, "a worker is paused, resumed or drained, not '%.40s'", what);
    for (size_t i = 0; i < MLO_COUNT(CHANGES); i++)
        if (strcmp(CHANGES[i].what, what) == 0)
            status = mlo_worker_control(conn, &actor, mlo_request_param(req, "id"), CHANGES[i].wish,
                                        reason && reason[0] ? reason : NULL, err);
    MLO_TRY(status);
    MLO_TRY(mlo_reply_redirect(req, "/workers"));
out:
    return status;
}
