/* The report of a variant: a page of its own, with its own style and policy, and its JSON. */
#include "api/html/report.h"
#include "api/web/web_impl.h"

enum { REPORT_MAX = 32 << 20 };

static enum mlo_status read_report(struct mlo_request *req, json_t **out, char *title, size_t size,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_report_blob found;
    struct mlo_buf text = MLO_BUF_INIT;
    MLO_TRY(mlo_view_report(req, &found, err));
    snprintf(title, size, "%s/%s@%lld/%s", mlo_request_param(req, "p"), mlo_request_param(req, "m"),
             (long long)found.version, mlo_request_param(req, "name"));
    mlo_request_db_release(req);
    MLO_TRY(mlo_request_blob(req, &found.blob, REPORT_MAX, &text, err));
    MLO_TRY(mlo_json_parse(mlo_buf_str(&text), text.len, "the report", out, err));
out:
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status page_report(struct mlo_request *req, struct mlo_error *err)
{
    enum mlo_status status;
    const char *project = mlo_request_param(req, "p"), *model = mlo_request_param(req, "m"),
               *version = mlo_request_param(req, "v"), *name = mlo_request_param(req, "name");
    char title[360], style[64], query[32] = "";
    json_t *report = NULL;
    int64_t run;
    MLO_TRY(mlo_request_query_i64(req, "run", 0, 1, INT64_MAX, &run, err));
    if (run)
        snprintf(query, sizeof query, "?run=%lld", (long long)run);
    MLO_TRY(read_report(req, &report, title, sizeof title, err));
    const struct mlo_report_page page = {
        .title = title,
        .back_href = mlo_arena_printf(req->arena, "/models/%s/%s", project, model),
        .back_text = mlo_arena_printf(req->arena, "%s/%s", project, model),
        .json_href =
            mlo_arena_printf(req->arena, "/report/%s/%s/%s/%s/json%s", project, model, version, name, query),
    };
    mlo_buf_reset(&req->out);
    MLO_TRY(mlo_report_html(report, &page, &req->out, err));
    mlo_reply_header(
        req, "Content-Security-Policy",
        "default-src 'none'; style-src '%s'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        mlo_report_style_source(style));
    mlo_reply_header(req, "Referrer-Policy", "same-origin");
    MLO_TRY(mlo_reply_out(req, 200, "text/html; charset=utf-8", err));
out:
    json_decref(report);
    return status;
}

enum mlo_status page_report_json(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_view_report_json(req, err);
}
