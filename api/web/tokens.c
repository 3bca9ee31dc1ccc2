/* Who may do what: the tokens, making one (its text is shown once), revoking. By the rules of the API. */
#include <string.h>

#include "api/web/web_impl.h"

enum { ROWS_A_PAGE = 50 };

/* The project whose tokens are asked for; "" for all. */
static const char *shown_project(struct mlo_request *req)
{
    const char *query = mlo_request_query(req, "project"),
               *form = strcmp(req->method, "POST") == 0 ? mlo_request_form(req, "members_of") : NULL;
    return form ? form : query ? query : "";
}

static void token_row(struct mlo_request *req, const json_t *token)
{
    struct mlo_buf *out = &req->out;
    const char *project = mlo_json_str(token, "project", NULL),
               *revoked = mlo_json_str(token, "revoked_at", NULL);
    const json_t *may = json_object_get(token, "may_rollback");
    HTML(out, "<tr><td><b>%s</b><br><small><code>%s…</code></small></td><td>%s", mlo_text(token, "name"),
         mlo_text(token, "prefix"), mlo_text(token, "role"));
    if (mlo_json_str(token, "stage", NULL))
        HTML(out, "<br><small>%s alone</small>", mlo_text(token, "stage"));
    if (mlo_json_str(token, "member", NULL))
        HTML(out, "<br><small>of the %s %s</small>",
             strcmp(mlo_text(token, "kind"), "service") == 0 ? "service account" : "member",
             mlo_text(token, "member"));
    if (json_is_boolean(may))
        HTML(out, "<br><small>%s roll back</small>", json_is_true(may) ? "may" : "may not");
    HTML(out, "</td><td>%s</td><td class=\"n\">", project ? project : "all");
    mlo_piece_time(out, mlo_json_str(token, "created_at", NULL));
    HTML(out, "<br><small>by %s</small></td><td class=\"n\">", mlo_text(token, "created_by"));
    mlo_piece_time(out, mlo_json_str(token, "last_used_at", NULL));
    HTML(out, "</td><td class=\"n\">");
    if (revoked) {
        HTML(out, "<span class=\"badge off\">revoked</span><br>");
        mlo_piece_time(out, revoked);
        HTML(out, "</td><td></td></tr>");
        return;
    }
    mlo_piece_time(out, mlo_json_str(token, "expires_at", NULL));
    HTML(out, "</td><td>");
    if (mlo_json_i64(token, "id", 0) == req->who.token_id) {
        HTML(out, "<small>yours, now</small>");
    } else {
        HTML(out, "<form method=\"post\" action=\"/tokens/%lld/revoke\">",
             (long long)mlo_json_i64(token, "id", 0));
        mlo_page_csrf_field(req);
        HTML(out, "<input type=\"hidden\" name=\"members_of\" value=\"%s\">", shown_project(req));
        HTML(out, "<button class=\"danger\" aria-label=\"Revoke %s\">Revoke</button></form>",
             mlo_text(token, "name"));
    }
    HTML(out, "</td></tr>");
}

static void make_form(struct mlo_request *req, const json_t *projects)
{
    struct mlo_buf *out = &req->out;
    const char *shown = shown_project(req);
    const json_t *item;
    size_t i;
    HTML(out,
         "<h2>%s</h2><section class=\"panel\"><form class=\"filters\" method=\"post\" action=\"/tokens\">",
         *shown ? "Make a token that is no member's" : "Make a token");
    mlo_page_csrf_field(req);
    HTML(out, "<input type=\"hidden\" name=\"members_of\" value=\"%s\">", shown);
    HTML(out, "<label class=\"wide\">Name<input name=\"name\" required maxlength=\"200\" "
              "autocomplete=\"off\"></label>"
              "<label>Role<select name=\"role\">");
    for (int r = 0; r < MLO_ROLE_COUNT; r++)
        HTML(out, "<option>%s</option>", mlo_role_name((enum mlo_role)r));
    HTML(out, "</select></label><label>Project<select name=\"project\"><option value=\"\">all</option>");
    json_array_foreach((json_t *)projects, i, item)
    {
        const char *name = mlo_text(item, "name");
        if (strcmp(name, shown) == 0)
            HTML(out, "<option selected>%s</option>", name);
        else
            HTML(out, "<option>%s</option>", name);
    }
    HTML(out, "</select></label><label>Days<input name=\"days\" type=\"number\" min=\"1\" max=\"36500\" "
              "value=\"90\"></label>"
              "<button class=\"primary\">Make it</button></form></section>");
}

/* All of them, or those that may do something in the project now. */
static bool is_shown(const json_t *token, const char *project)
{
    const char *bound = mlo_json_str(token, "project", NULL);
    return !*project || (!mlo_json_str(token, "revoked_at", NULL) && (!bound || strcmp(bound, project) == 0));
}

/* `made`: the text of a token that was just made, shown above; or NULL. */
static enum mlo_status draw_tokens(struct mlo_request *req, const char *made, int http_status,
                                   struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    struct mlo_page page = {.limit = 200};
    const char *shown = shown_project(req);
    json_t *tokens = NULL, *projects = NULL, *part = NULL, *shown_tokens = json_array(), *item;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_token_list(conn, 0, &tokens, err));
    json_array_foreach(tokens, i, item) if (is_shown(item, shown)) json_array_append(shown_tokens, item);
    part = mlo_page_part(req, shown_tokens, ROWS_A_PAGE);
    MLO_TRY(mlo_project_list(conn, &actor, &page, &projects, err));
    mlo_page_begin(req, "Tokens", "projects");
    if (*shown)
        HTML(out,
             "<p class=\"eyebrow\"><a href=\"/projects\">Projects</a> / <a href=\"/tokens\">Tokens</a></p>"
             "<h1>Tokens that work in %s</h1><p class=\"lead\">Those of its <a "
             "href=\"/members/%s\">members</a>, those that are bound to it, and those that work in all.</p>",
             shown, shown);
    else
        HTML(out,
             "<p class=\"eyebrow\"><a href=\"/projects\">Projects</a></p><h1>Tokens</h1>"
             "<p class=\"lead\">Who holds a token has its role in its project, or in all. The members of "
             "a project have theirs on its page of members.</p>");
    if (made)
        HTML(out,
             "<section class=\"panel\" role=\"status\"><p>The token, shown this once; keep it now:</p><pre "
             "id=\"made\">%s</pre></section>",
             made);
    HTML(out, "<section "
              "class=\"panel\"><div "
              "class=\"scroll\" tabindex=\"0\"><table "
              "id=\"tokens\"><thead><tr><th>Name</th><th>Role</th><th>Project</th><th class=\"n\">Made"
              "</th><th class=\"n\">Last used</th><th class=\"n\">Expires</th><th></th></tr></thead><tbody>");
    json_array_foreach(json_object_get(part, "items"), i, item) token_row(req, item);
    HTML(out, "</tbody></table></div>");
    mlo_piece_next_of(req, part, "/tokens", *shown ? shown : NULL);
    HTML(out, "</section>");
    make_form(req, json_object_get(projects, "items"));
    MLO_TRY(mlo_page_end(req, http_status, err));
out:
    json_decref(part);
    json_decref(shown_tokens);
    json_decref(tokens);
    json_decref(projects);
    return status;
}

enum mlo_status page_tokens(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    MLO_TRY(draw_tokens(req, NULL, 200, err));
out:
    return status;
}

enum mlo_status mlo_page_token_life(struct mlo_request *req, int64_t *expires_at_us, struct mlo_error *err)
{
    const char *text = mlo_request_form(req, "days");
    int64_t days = 0;
    if (text && text[0] && (!mlo_str_to_i64(text, &days) || days < 1 || days > 36500))
        return mlo_error_set(err, MLO_EINVAL,
                             "a token lives for 1 to 36500 days, or with nothing there for ever, not '%.20s'",
                             text);
    *expires_at_us = days ? mlo_clock_utc_us() + days * 86400 * 1000000 : 0;
    return MLO_OK;
}

enum mlo_status page_token_make(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *name = mlo_request_form(req, "name"), *role = mlo_request_form(req, "role"),
               *project = mlo_request_form(req, "project");
    struct mlo_token_request token = {.name = name ? name : ""};
    struct mlo_db_conn *conn;
    char text[MLO_TOKEN_TEXT_SIZE] = "";
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    if (!role || !mlo_role_parse(role, &token.role)) {
        status = mlo_error_set(err, MLO_EINVAL, "there is no role '%.60s'", role ? role : "");
        goto out;
    }
    MLO_TRY(mlo_page_token_life(req, &token.expires_at_us, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    if (project && project[0])
        MLO_TRY(mlo_project_find(conn, &actor, project, MLO_ADMIN, &token.project_id, err));
    MLO_TRY(mlo_token_make(conn, &actor, &token, text, NULL, err));
    MLO_TRY(draw_tokens(req, text, 201, err));
out:
    explicit_bzero(text, sizeof text);
    return status;
}

enum mlo_status page_token_revoke(struct mlo_request *req, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_view_token_revoke(req, err));
    const char *shown = shown_project(req);
    if (*shown && !shown[strspn(shown, "abcdefghijklmnopqrstuvwxyz0123456789._-")])
        MLO_TRY(mlo_reply_redirect(req, "/tokens?project=%s", shown));
    else
        MLO_TRY(mlo_reply_redirect(req, "/tokens"));
out:
    return status;
}
