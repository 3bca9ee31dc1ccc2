/* The frame of every page: head, navigation, foot, headers; failures; CSRF. */
#include <string.h>

#include "api/web/web_impl.h"

#define PAGE "text/html; charset=utf-8"

static const struct {
    const char *section, *href, *text;
} NAVIGATION[] = {{"models", "/", "Models"},
                  {"runs", "/runs", "Runs"},
                  {"projects", "/projects", "Projects"},
                  {"audit", "/audit", "Audit"}};

void mlo_page_begin(struct mlo_request *req, const char *title, const char *section)
{
    struct mlo_buf *out = &req->out;
    mlo_buf_reset(out);
    HTML(out,
         "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
         "<meta name=\"color-scheme\" content=\"light dark\"><title>%s · mlopt</title>"
         "<link rel=\"stylesheet\" href=\"/assets/style.css\"><link rel=\"icon\" href=\"/assets/icon.svg\">"
         "<script src=\"/assets/live.js\" defer></script></head><body>\n"
         "<header class=\"top\"><div class=\"wrap\"><a class=\"brand\" href=\"/\">"
         "<svg viewBox=\"0 0 16 16\" aria-hidden=\"true\"><rect x=\"1\" y=\"2\" width=\"3.4\" height=\"12\" "
         "rx=\"1\"/>"
         "<rect x=\"6.3\" y=\"6\" width=\"3.4\" height=\"8\" rx=\"1\"/><rect x=\"11.6\" y=\"10\" "
         "width=\"3.4\" "
         "height=\"4\" rx=\"1\"/></svg>mlopt</a>",
         title);
    if (req->token) {
        HTML(out, "<nav>");
        for (size_t i = 0; i < MLO_COUNT(NAVIGATION); i++) {
            if (strcmp(NAVIGATION[i].section, section) == 0)
                HTML(out, "<a href=\"%s\" aria-current=\"page\">%s</a>", NAVIGATION[i].href,
                     NAVIGATION[i].text);
            else
                HTML(out, "<a href=\"%s\">%s</a>", NAVIGATION[i].href, NAVIGATION[i].text);
        }
        HTML(
            out,
            "</nav><form class=\"who\" method=\"post\" action=\"/logout\"><span title=\"role: %s\">%s</span>",
            mlo_role_name(req->who.role), req->who.name);
        mlo_page_csrf_field(req);
        HTML(out, "<button class=\"plain\">Sign out</button></form>");
    }
    HTML(out, "</div></header>\n<main class=\"wrap\">");
}

static void frame_end(struct mlo_request *req)
{
    HTML(&req->out, "</main>");
    if (req->token)
        HTML(&req->out, "<footer class=\"wrap\">Times are UTC. Intervals are 95&nbsp;%%. <a "
                        "href=\"/docs/api\">The API</a></footer>");
    HTML(&req->out, "</body></html>\n");
    mlo_reply_header(
        req, "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'");
    mlo_reply_header(req, "Referrer-Policy", "same-origin");
}

enum mlo_status mlo_page_end(struct mlo_request *req, int http_status, struct mlo_error *err)
{
    frame_end(req);
    return mlo_reply_out(req, http_status, PAGE, err);
}

enum mlo_status mlo_page_end_tagged(struct mlo_request *req, struct mlo_error *err)
{
    frame_end(req);
    return mlo_reply_tagged(req, PAGE, err);
}

void mlo_page_failed(struct mlo_request *req, const struct mlo_error *err, int http_status)
{
    const char *project = mlo_request_param(req, "p"), *model = mlo_request_param(req, "m");
    struct mlo_error ignored = {0};
    mlo_page_begin(req, mlo_status_info(err->status)->text, "");
    HTML(&req->out, "<section class=\"panel failure\"><p class=\"eyebrow\">%d · %s</p><h1>%s</h1>",
         http_status, mlo_status_info(err->status)->text, err->message);
    if (err->where[0])
        HTML(&req->out, "<p class=\"muted\">Where: %s</p>", err->where);
    if (err->hint[0])
        HTML(&req->out, "<p>%s</p>", err->hint);
    HTML(&req->out, "<p class=\"muted\">Request %s</p>", req->id);
    if (project && model && err->status != MLO_ENOTFOUND)
        HTML(&req->out, "<p><a class=\"button\" href=\"/models/%s/%s\">Back to %s/%s</a></p>", project, model,
             project, model);
    else
        HTML(&req->out, "<p><a class=\"button\" href=\"/\">To the models</a></p>");
    HTML(&req->out, "</section>");
    if (mlo_page_end(req, http_status, &ignored) != MLO_OK)
        mlo_reply_problem(req, err);
}

/* A form belongs to the session that it was made for: its token hashed under a label of its own. It needs no
 * state, so any server of the installation accepts it. */
static void csrf_text(const struct mlo_request *req, char out[MLO_DIGEST_TEXT_SIZE])
{
    static const char label[] = "mlopt form 1";
    struct mlo_digest digest;
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_append(&text, label, sizeof label);
    mlo_buf_puts(&text, req->token);
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    mlo_digest_hex(&digest, out);
    mlo_buf_clear(&text);
}

void mlo_page_csrf_field(struct mlo_request *req)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    csrf_text(req, text);
    HTML(&req->out, "<input type=\"hidden\" name=\"csrf\" value=\"%s\">", text);
}

enum mlo_status mlo_page_csrf_check(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_page_csrf_matches(req, mlo_request_form(req, "csrf"), err);
}

enum mlo_status mlo_page_csrf_matches(const struct mlo_request *req, const char *sent, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    csrf_text(req, text);
    if (sent && strlen(sent) == strlen(text) && mlo_equal_constant_time(sent, text, strlen(text)))
        return MLO_OK;
    mlo_error_set(err, MLO_EFORBIDDEN, "this form does not belong to your session");
    mlo_error_hint(err, "load the page again and repeat");
    return MLO_EFORBIDDEN;
}
