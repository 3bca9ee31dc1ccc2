/* A project's share of the workers, and what its jobs used by month. */
#include "api/web/web_impl.h"

static void limit(struct mlo_buf *out, const char *name, const json_t *value, const char *unit)
{
    HTML(out, "<div><dt>%s</dt><dd>", name);
    if (json_is_number(value))
        HTML(out, "%g%s", json_number_value(value), unit);
    else
        HTML(out, "<span class=\"muted\">no limit</span>");
    HTML(out, "</dd></div>");
}

static void share(struct mlo_buf *out, const json_t *queue)
{
    char size[32];
    HTML(out,
         "<section class=\"panel\"><dl "
         "class=\"facts\"><div><dt>Queued</dt><dd>%lld</dd></div><div><dt>Running</dt>"
         "<dd>%lld</dd></div><div><dt>Weight</dt><dd>%g</dd></div>",
         (long long)mlo_json_i64(queue, "queued", 0), (long long)mlo_json_i64(queue, "running", 0),
         mlo_json_f64(queue, "weight", 1));
    limit(out, "Jobs at once", json_object_get(queue, "max_running"), "");
    limit(out, "GPU time a month", json_object_get(queue, "gpu_seconds_month"), " s");
    HTML(out, "<div><dt>GPU time this month</dt><dd>%.0f s</dd></div>",
         mlo_json_f64(queue, "gpu_seconds_used", 0));
    HTML(out, "<div><dt>Storage</dt><dd>%s",
         mlo_str_size((uint64_t)mlo_json_i64(queue, "storage_used", 0), size));
    if (json_is_integer(json_object_get(queue, "storage_bytes")))
        HTML(out, " of %s", mlo_str_size((uint64_t)mlo_json_i64(queue, "storage_bytes", 0), size));
    HTML(out, "</dd></div></dl>");
    if (mlo_json_bool(queue, "paused", false))
        HTML(out, "<p><span class=\"badge bad\">paused</span> by %s: nothing of it is claimed. %s</p>",
             mlo_text(queue, "paused_by"), mlo_text(queue, "paused_reason"));
    HTML(out, "<p><a href=\"/schedules/%s\">Schedules</a></p></section>", mlo_text(queue, "project"));
}

enum mlo_status page_usage(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_buf *out = &req->out;
    json_t *queue = NULL, *months = NULL, *row;
    int64_t project;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_project_queue_get(req->conn, &actor, project, &queue, err));
    MLO_TRY(mlo_usage_months(req->conn, &actor, project, &months, err));
    mlo_page_begin(req, "Usage", "runs");
    HTML(out, "<p class=\"eyebrow\"><a href=\"/runs\">Runs</a> / %s</p><h1>Usage of %s</h1>",
         mlo_request_param(req, "p"), mlo_request_param(req, "p"));
    share(out, queue);
    HTML(out, "<h2>By month</h2><section class=\"panel\"><div class=\"scroll\" tabindex=\"0\"><table "
              "id=\"usage\"><thead><tr><th>Month</th>"
              "<th class=\"n\">Attempts</th><th class=\"n\">Reused</th><th class=\"n\">Failed</th><th "
              "class=\"n\">Hours</th>"
              "<th class=\"n\">CPU hours</th><th class=\"n\">GPU hours</th><th class=\"n\">Read</th><th "
              "class=\"n\">Written"
              "</th></tr></thead><tbody>");
    json_array_foreach(months, i, row)
    {
        HTML(out,
             "<tr><td class=\"nowrap\">%s</td><td class=\"n\">%lld</td><td class=\"n\">%lld</td><td "
             "class=\"n\">%lld</td>",
             mlo_text(row, "month"), (long long)mlo_json_i64(row, "attempts", 0),
             (long long)mlo_json_i64(row, "reused", 0), (long long)mlo_json_i64(row, "failed", 0));
        HTML(out, "<td class=\"n\">%.2f</td><td class=\"n\">%.2f</td><td class=\"n\">%.2f</td>",
             mlo_json_f64(row, "wall_s", 0) / 3600, mlo_json_f64(row, "cpu_s", 0) / 3600,
             mlo_json_f64(row, "gpu_s", 0) / 3600);
        HTML(out, "<td class=\"n\">%.3f&nbsp;GB</td><td class=\"n\">%.3f&nbsp;GB</td></tr>",
             (double)mlo_json_i64(row, "read_bytes", 0) / 1e9,
             (double)mlo_json_i64(row, "written_bytes", 0) / 1e9);
    }
    HTML(out, "</tbody></table></div>");
    if (json_array_size(months) == 0)
        HTML(out, "<p class=\"muted\">Nothing has run yet.</p>");
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(queue);
    json_decref(months);
    return status;
}
