/* The audit log: filters, before and after, and whether the chain is intact. */
#include <string.h>

#include "api/web/web_impl.h"

/* A chain up to this long is checked whenever the page is shown (with its ledger some 30 ms); a longer one on
 * demand. */
#define CHECK_AT_ONCE 250

enum mlo_status page_audit_index(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const struct mlo_page page = {.limit = MLO_PAGE_MAX};
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    json_t *projects = NULL, *item;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_project_list(conn, &actor, &page, &projects, err));
    const json_t *items = json_object_get(projects, "items");
    mlo_page_begin(req, "Audit", "audit");
    HTML(out, "<h1>Audit log</h1><section class=\"panel\"><p>Each project has a chain of its own.</p><ul>");
    json_array_foreach((json_t *)items, i, item)
        HTML(out, "<li><a href=\"/audit/%s\">%s</a></li>", mlo_text(item, "name"), mlo_text(item, "name"));
    if (req->who.role == MLO_ADMIN && !req->who.project_id)
        HTML(out, "<li><a href=\"/audit/-\">this installation</a> <small>projects, tokens</small></li>");
    HTML(out, "</ul></section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(projects);
    return status;
}

static enum mlo_status verify_badge(struct mlo_request *req, int64_t project, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    struct mlo_audit_head head;
    json_t *result = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_audit_head(req->conn, project, &head, err));
    if (head.seq > CHECK_AT_ONCE && !mlo_request_query(req, "verify")) {
        HTML(out,
             "<form class=\"verify\" method=\"get\"><input type=\"hidden\" name=\"verify\" value=\"1\">"
             "<button>Verify all %lld entries</button></form>",
             (long long)head.seq);
        goto out;
    }
    MLO_TRY(mlo_view_audit_verify(req->conn, project, NULL, &result, err));
    if (mlo_json_bool(result, "ok", false)) {
        HTML(out,
             "<p class=\"verify\" id=\"verify\"><span class=\"badge good\">verified</span> %lld entries, "
             "head ",
             (long long)mlo_json_i64(result, "entries", 0));
        mlo_piece_digest(out, mlo_text(result, "head"));
        HTML(out, "</p>");
    } else {
        HTML(out,
             "<p class=\"alert\" id=\"verify\" role=\"alert\"><b>The chain is broken</b> at entry %lld: "
             "%s</p>",
             (long long)mlo_json_i64(result, "bad_seq", 0), mlo_text(result, "problem"));
    }
out:
    json_decref(result);
    return status;
}

/* Of a change; the export and the API have all of it. */
enum { SHOWN_BYTES = 500 };

static void change(struct mlo_buf *out, const json_t *entry)
{
    const json_t *before = json_object_get(entry, "before"), *after = json_object_get(entry, "after");
    bool any = (before && !json_is_null(before)) || (after && !json_is_null(after));
    if (!any) {
        HTML(out, "<span class=\"muted\">–</span>");
        return;
    }
    HTML(out, "<details><summary>before / after</summary><div class=\"change\"><div><small>before</small>");
    mlo_piece_json(out, before, SHOWN_BYTES);
    HTML(out, "</div><div><small>after</small>");
    mlo_piece_json(out, after, SHOWN_BYTES);
    HTML(out, "</div></div></details>");
}

static void rows(struct mlo_buf *out, const json_t *items)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)items, i, item)
    {
        HTML(out, "<tr><td class=\"n\">%lld</td><td>", (long long)mlo_json_i64(item, "seq", 0));
        mlo_piece_time(out, mlo_json_str(item, "at", NULL));
        HTML(out,
             "</td><td>%s<br><small>via %s%s%s</small></td><td><code>%s</code></td><td>%s</td><td "
             "class=\"reason\">%s</td><td>",
             mlo_text(item, "who"), mlo_text(item, "via"), mlo_text(item, "address")[0] ? ", " : "",
             mlo_text(item, "address"), mlo_text(item, "action"), mlo_text(item, "object"),
             mlo_text(item, "reason"));
        change(out, item);
        HTML(out, "</td><td>");
        mlo_piece_digest(out, mlo_text(item, "hash"));
        HTML(out, "</td></tr>");
    }
}

/* Links to the file, under the same filters. */
static void export_form(struct mlo_request *req, const char *name)
{
    static const char *const kept[] = {"who", "action", "object", "since", "until"};
    struct mlo_buf *out = &req->out;
    HTML(out, "<form class=\"export\" method=\"get\" action=\"/audit/%s/export\">", name);
    for (size_t i = 0; i < MLO_COUNT(kept); i++) {
        const char *value = mlo_request_query(req, kept[i]);
        if (value)
            HTML(out, "<input type=\"hidden\" name=\"%s\" value=\"%s\">", kept[i], value);
    }
    HTML(out, "<button name=\"format\" value=\"csv\">Export as CSV</button> <button name=\"format\" "
              "value=\"json\">as JSON</button> <button name=\"format\" value=\"jsonl\">as JSON lines</button>"
              "</form>");
}

/* A bound as a datetime-local field takes it: to the second, which means all of that second. */
static const char *field_time(const char *text, bool last, char out[MLO_AUDIT_MOMENT_SIZE])
{
    if (!text || !mlo_audit_moment(text, last, out))
        return "";
    out[strlen("2026-01-31T12:00:00")] = '\0';
    return out;
}

enum mlo_status page_audit(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_audit_filter filter;
    const char *name = mlo_request_param(req, "p");
    bool installation = strcmp(name, "-") == 0;
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    struct mlo_page page;
    json_t *entries = NULL;
    int64_t project = 0;
    char title[160], since[MLO_AUDIT_MOMENT_SIZE], until[MLO_AUDIT_MOMENT_SIZE];
    enum mlo_status status;
    mlo_page_audit_filter(req, &filter);
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    if (installation)
        MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    else
        MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_audit_list(conn, project, &filter, &page, &entries, err));
    snprintf(title, sizeof title, "Audit log of %s", installation ? "this installation" : name);
    mlo_page_begin(req, title, "audit");
    HTML(out, "<p class=\"eyebrow\"><a href=\"/audit\">Audit</a> / %s</p><h1>%s</h1>", name, title);
    MLO_TRY(verify_badge(req, project, err));
    HTML(out,
         "<form class=\"filters\" method=\"get\"><label>Who<input name=\"who\" value=\"%s\"></label>"
         "<label>Action<input name=\"action\" value=\"%s\" placeholder=\"stage.\"></label>"
         "<label>Object begins with<input name=\"object\" value=\"%s\"></label><label>Since (UTC)<input "
         "type=\"datetime-local\" step=\"1\" name=\"since\" value=\"%s\"></label><label>Until (UTC)<input "
         "type=\"datetime-local\" step=\"1\" name=\"until\" value=\"%s\"></label><button>Show</button></form>"
         "<section class=\"panel\">",
         filter.who ? filter.who : "", filter.action ? filter.action : "", filter.object ? filter.object : "",
         field_time(filter.since, false, since), field_time(filter.until, true, until));
    if (json_array_size(json_object_get(entries, "items"))) {
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><table id=\"audit\"><thead><tr><th "
             "class=\"n\">Nr</th><th>Time</th><th>Who</th>"
             "<th>Action</th><th>Object</th><th>Reason</th><th>Change</th><th>Hash</th></tr></thead><tbody>");
        rows(out, json_object_get(entries, "items"));
        HTML(out, "</tbody></table></div>");
        mlo_piece_next(req, entries);
    } else {
        HTML(out, "<p class=\"empty\">No such entry.</p>");
    }
    HTML(out, "</section>");
    export_form(req, name);
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(entries);
    return status;
}
