/* Signing in and out, and the files that pages load. */
#include <string.h>

#include "api/web/web_impl.h"

#define SESSION_S (12 * 3600)

static void set_cookie(struct mlo_request *req, const char *value, int max_age_s)
{
    mlo_reply_header(req, "Set-Cookie", "%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%d%s",
                     MLO_SESSION_COOKIE, value, max_age_s,
                     mlo_http_options(req->http)->secure_cookie ? "; Secure" : "");
}

/* A path of this server that may be gone to after signing in; "/" for anything else. */
static const char *next_path(const char *next)
{
    static const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
    return next && next[0] == '/' && next[1] != '/' && next[strspn(next, plain)] == '\0' ? next : "/";
}

static enum mlo_status sign_in_form(struct mlo_request *req, int http_status, const char *next,
                                    const char *problem, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    mlo_page_begin(req, "Sign in", "");
    HTML(out, "<section class=\"panel sign-in\"><h1>Sign in</h1>");
    if (problem)
        HTML(out, "<p class=\"alert\" role=\"alert\">%s</p>", problem);
    HTML(out,
         "<form method=\"post\" action=\"/login\"><label>Token<input type=\"password\" name=\"token\" "
         "autocomplete=\"current-password\" required autofocus></label>"
         "<input type=\"hidden\" name=\"next\" value=\"%s\"><button class=\"primary\">Sign in</button></form>"
         "<p class=\"muted\">A token begins with <code>mlopt_</code>. Ask an admin for one, or use the link "
         "that "
         "<code>mlopt up</code> printed when it started.</p></section>",
         next_path(next));
    return mlo_page_end(req, http_status, err);
}

/* Who signs in or out is told by the log of what the token is bound to. */
static enum mlo_status record(struct mlo_request *req, const char *action, const char *how,
                              struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    char object[40];
    json_t *after = how ? json_pack("{s:s}", "how", how) : NULL;
    enum mlo_status status;
    snprintf(object, sizeof object, "token %lld", (long long)req->who.token_id);
    const struct mlo_audit_event event = {.action = action, .object = object, .after = after};
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_audit_append(conn, req->who.project_id, &actor, &event, NULL, err));
out:
    json_decref(after);
    return status;
}

static bool is_service(const struct mlo_request *req)
{
    return req->who.kind == MLO_KIND_SERVICE;
}

static void record_refusal(const struct mlo_request *req)
{
    mlo_log(MLO_LOG_WARN, "a sign-in was refused", "address", req->address, "request", req->id, NULL);
}

static enum mlo_status refuse_service(struct mlo_request *req, const char *next, struct mlo_error *err)
{
    record_refusal(req);
    return sign_in_form(req, 403, next, "This is a service account's token: the pages are for people.", err);
}

enum mlo_status page_login(struct mlo_request *req, struct mlo_error *err)
{
    const char *code = mlo_request_query(req, "token"), *next = mlo_request_query(req, "next");
    enum mlo_status status;
    if (!code)
        return sign_in_form(req, 200, next, NULL, err);
    const char *token = mlo_http_redeem(req, code);
    status = token ? mlo_http_identify(req, token, &req->who, err) : MLO_EAUTH;
    if (status == MLO_EAUTH) {
        record_refusal(req);
        return sign_in_form(req, 401, next,
                            token ? "The token of this sign-in link does not work any more."
                                  : "This sign-in link was used already, or the service was restarted since.",
                            err);
    }
    MLO_TRY(status);
    if (is_service(req))
        return refuse_service(req, next, err);
    MLO_TRY(record(req, "session.sign-in", "link", err));
    set_cookie(req, token, SESSION_S);
    MLO_TRY(mlo_reply_redirect(req, "%s", next_path(next)));
out:
    return status;
}

enum mlo_status page_login_post(struct mlo_request *req, struct mlo_error *err)
{
    const char *token = mlo_request_form(req, "token"), *next = mlo_request_form(req, "next");
    token = token ? token + strspn(token, " \t\r\n") : "";
    char *trimmed = mlo_arena_strndup(req->arena, token, strcspn(token, " \t\r\n"));
    if (!trimmed)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_http_identify(req, trimmed, &req->who, err);
    if (status == MLO_EAUTH) {
        record_refusal(req);
        return sign_in_form(req, 401, next, "This is not a token that works here.", err);
    }
    if (status == MLO_OK && is_service(req))
        return refuse_service(req, next, err);
    if (status == MLO_OK)
        status = record(req, "session.sign-in", "token", err);
    if (status != MLO_OK)
        return status;
    set_cookie(req, trimmed, SESSION_S);
    return mlo_reply_redirect(req, "%s", next_path(next));
}

enum mlo_status page_logout(struct mlo_request *req, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(record(req, "session.sign-out", NULL, err));
    set_cookie(req, "", 0);
    MLO_TRY(mlo_reply_redirect(req, "/login"));
out:
    return status;
}

enum mlo_status page_asset(struct mlo_request *req, struct mlo_error *err)
{
    static const struct {
        const char *ending, *type;
    } types[] = {{".css", "text/css; charset=utf-8"},
                 {".js", "text/javascript; charset=utf-8"},
                 {".svg", "image/svg+xml"}};
    const char *name = mlo_request_param(req, "name");
    for (size_t i = 0; i < mlo_web_assets_count; i++) {
        if (strcmp(mlo_web_assets[i].name, name) != 0)
            continue;
        mlo_buf_append(&req->out, mlo_web_assets[i].text, mlo_web_assets[i].size);
        mlo_reply_header(req, "Cache-Control", "public, max-age=300");
        for (size_t t = 0; t < MLO_COUNT(types); t++)
            if (mlo_str_ends(name, types[t].ending))
                return mlo_reply_out(req, 200, types[t].type, err);
    }
    return mlo_error_set(err, MLO_ENOTFOUND, "there is no file '%.60s'", name);
}
