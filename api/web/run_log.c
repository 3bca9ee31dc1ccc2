/* What the steps of a run wrote: the end of each attempt's text on the page of the run, all of it as a text.
 */
#include <string.h>

#include "api/web/web_impl.h"

/* So much of all attempts together is on the page, and of one at most, in bytes; and so many attempts. */
enum { LOG_ALL = 32 << 10, LOG_MOST = 16 << 10, LOG_ATTEMPTS = 32 };

/* The last `most` bytes of a text, whole lines where there are any. */
static const char *end_of(const char *text, size_t size, size_t most)
{
    if (size <= most)
        return text;
    const char *at = text + size - most, *line = strchr(at, '\n');
    if (line && line[1])
        return line + 1;
    while (((unsigned char)*at & 0xc0) == 0x80) /* not within a character */
        at++;
    return at;
}

enum mlo_status mlo_page_log(struct mlo_db_conn *conn, int64_t run, json_t **out, struct mlo_error *err)
{
    return mlo_run_log_ends(conn, run, LOG_ATTEMPTS, LOG_ALL, out, err);
}

void mlo_piece_log(struct mlo_buf *out, const json_t *run, const json_t *log, bool open)
{
    const json_t *items = json_object_get(log, "items"), *item;
    size_t count = json_array_size(items), i;
    size_t most = MLO_MIN((size_t)LOG_ALL / MLO_MAX(count, (size_t)1), (size_t)LOG_MOST);
    long long left_out = (long long)mlo_json_i64(log, "left_out", 0);
    HTML(out, "<h2>Logs</h2><section class=\"panel\" id=\"logs\">");
    json_array_foreach((json_t *)items, i, item)
    {
        const char *text = mlo_text(item, "text"), *shown = end_of(text, strlen(text), most);
        long long bytes = (long long)mlo_json_i64(item, "bytes", 0),
                  before = bytes - (long long)strlen(shown); /* of them that are left out */
        long long job = (long long)mlo_json_i64(item, "job", 0),
                  attempt = (long long)mlo_json_i64(item, "attempt", 0);
        HTML(out, "<details id=\"log-%lld-%lld\" data-end=\"%lld\"%s><summary>%s, attempt %lld</summary>",
             job, attempt, bytes, mlo_json_bool(item, "runs", false) ? " open" : "", mlo_text(item, "name"),
             attempt);
        if (before > 0)
            HTML(out, "<p class=\"muted\"><small>The first %lld bytes are left out here.</small></p>",
                 before);
        /* the line feed that a <pre> begins with is not part of it */
        HTML(out, "<pre tabindex=\"0\" role=\"log\" aria-label=\"%s, attempt %lld\">\n%s</pre></details>",
             mlo_text(item, "name"), attempt, shown);
    }
    if (left_out > 0)
        HTML(out, "<p class=\"all\">The %zu attempts that go on or wrote last; %lld more are left out here. ",
             count, left_out);
    else if (count)
        HTML(out, "<p class=\"all\">");
    if (count)
        HTML(out, "<a href=\"/runs/%s/%lld/log\">All of it as text</a></p></section>",
             mlo_text(run, "project"), (long long)mlo_json_i64(run, "id", 0));
    else
        HTML(out, "<p class=\"all muted\">%s</p></section>",
             open ? "Nothing was written yet." : "The steps wrote nothing.");
}

enum mlo_status page_run_log(struct mlo_request *req, struct mlo_error *err)
{
    json_t *run = NULL, *log = NULL, *item;
    int64_t project, id;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_page_run_id(req, &id, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_run_get(req->conn, project, id, &run, err));
    MLO_TRY(mlo_run_log(req->conn, id, 0, &log, err));
    json_array_foreach(json_object_get(log, "items"), i, item)
    {
        const char *text = mlo_text(item, "text");
        size_t size = strlen(text);
        mlo_buf_printf(&req->out, "== job %lld, %s, attempt %lld\n", (long long)mlo_json_i64(item, "job", 0),
                       mlo_text(item, "name"), (long long)mlo_json_i64(item, "attempt", 0));
        mlo_buf_append(&req->out, text, size);
        if (size && text[size - 1] != '\n')
            mlo_buf_putc(&req->out, '\n');
    }
    MLO_TRY(mlo_reply_out(req, 200, "text/plain; charset=utf-8", err));
out:
    json_decref(run);
    json_decref(log);
    return status;
}
