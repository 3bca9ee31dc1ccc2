/* The members of a project: people and service accounts, their roles and their tokens. Who may read the
 * project sees who they are; its admins change them, by the rules of the API. */
#include <string.h>

#include "api/web/web_impl.h"

enum { ROWS_A_PAGE = 50 };

static void stage_roles(struct mlo_buf *out, const json_t *member)
{
    const json_t *stages = json_object_get(member, "stages"), *role;
    const char *stage;
    json_object_foreach((json_t *)stages, stage, role) if (json_is_string(role))
        HTML(out, "<br><small>%s of %s</small>", json_string_value(role), stage);
    if (json_is_true(json_object_get(member, "approve")))
        HTML(out, "<br><small>may approve</small>");
}

static const char *kind_of(const json_t *member)
{
    return strcmp(mlo_text(member, "kind"), "service") == 0 ? "service account" : "person";
}

static void member_row(struct mlo_buf *out, const char *project, const json_t *member)
{
    const char *name = mlo_text(member, "name");
    HTML(out, "<tr><td><a href=\"/members/%s/%s\"><b>%s</b></a>", project, name, name);
    if (mlo_text(member, "description")[0])
        HTML(out, "<br><small>%s</small>", mlo_text(member, "description"));
    HTML(out, "</td><td>%s</td><td>%s", kind_of(member), mlo_text(member, "role"));
    stage_roles(out, member);
    HTML(out, "</td><td class=\"n\">%lld</td><td class=\"n\">", (long long)mlo_json_i64(member, "tokens", 0));
    mlo_piece_time(out, mlo_json_str(member, "last_used_at", NULL));
    HTML(out, "</td><td class=\"n\">");
    mlo_piece_time(out, mlo_json_str(member, "created_at", NULL));
    HTML(out, "<br><small>by %s</small></td></tr>", mlo_text(member, "created_by"));
}

/* One of a list of words, or with `none` nothing. */
static void choice(struct mlo_buf *out, const char *label, const char *field, const char *const *words,
                   const char *chosen, const char *none)
{
    HTML(out, "<label>%s<select name=\"%s\">", label, field);
    if (none)
        HTML(out, "<option value=\"\">%s</option>", none);
    for (; *words; words++) {
        if (strcmp(*words, chosen) == 0)
            HTML(out, "<option selected>%s</option>", *words);
        else
            HTML(out, "<option>%s</option>", *words);
    }
    HTML(out, "</select></label>");
}

/* What the form shows of a member, for mlo_member_set and its like; NULL: that there is none. */
static void seen_field(struct mlo_request *req, const json_t *member)
{
    char seen[MLO_DIGEST_TEXT_SIZE];
    mlo_member_mark(member, seen);
    HTML(&req->out, "<input type=\"hidden\" name=\"seen\" value=\"%s\">", seen);
}

/* `member` NULL: a new one. */
static void settings_form(struct mlo_request *req, const json_t *member)
{
    static const char *const kinds[] = {"person", "service", NULL}, *const in_stage[] = {"promoter",
                                                                                         "approver", NULL};
    struct mlo_buf *out = &req->out;
    const json_t *stages = json_object_get(member, "stages");
    const char *roles[MLO_ROLE_COUNT + 1] = {0};
    for (int r = 0; r < MLO_ROLE_COUNT; r++)
        roles[r] = mlo_role_name((enum mlo_role)r);
    HTML(out,
         "<h2>%s</h2><section class=\"panel\"><form class=\"filters\" method=\"post\" "
         "action=\"/members/%s\">",
         member ? "What it may" : "Add a member", mlo_request_param(req, "p"));
    mlo_page_csrf_field(req);
    seen_field(req, member);
    if (member)
        HTML(out,
             "<input type=\"hidden\" name=\"name\" value=\"%s\"><input type=\"hidden\" name=\"kind\" "
             "value=\"%s\">",
             mlo_text(member, "name"), mlo_text(member, "kind"));
    else
        HTML(out, "<label class=\"wide\">Name<input name=\"name\" required maxlength=\"100\" "
                  "autocomplete=\"off\"></label>");
    if (!member)
        choice(out, "Kind", "kind", kinds, "", NULL);
    choice(out, "Role", "role", roles, mlo_text(member, "role"), NULL);
    choice(out, "For staging", "staging", in_stage, mlo_text(stages, "staging"), "the same");
    choice(out, "For production", "production", in_stage, mlo_text(stages, "production"), "the same");
    if (!member || strcmp(mlo_text(member, "kind"), "service") == 0)
        HTML(out,
             "<label>A service account<span class=\"check\"><input type=\"checkbox\" name=\"approve\" "
             "value=\"yes\"%s> may approve</span></label>",
             json_is_true(json_object_get(member, "approve")) ? " checked" : "");
    HTML(out,
         "<label class=\"wide\">About it<input name=\"description\" maxlength=\"500\" value=\"%s\"></label>"
         "<label class=\"wide\">Reason<input name=\"reason\" maxlength=\"500\"></label>"
         "<button class=\"primary\">%s</button></form></section>",
         mlo_text(member, "description"), member ? "Change it" : "Add it");
}

enum mlo_status page_members(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    const char *p = mlo_request_param(req, "p");
    json_t *members = NULL, *part = NULL, *member;
    char title[160];
    int64_t project;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_list(req->conn, project, &members, err));
    part = mlo_page_part(req, members, ROWS_A_PAGE);
    snprintf(title, sizeof title, "Members of %.100s", p);
    mlo_page_begin(req, title, "projects");
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/projects\">Projects</a> / %s</p><h1>%s</h1><p class=\"lead\">Who "
         "acts "
         "in this project by tokens of its own. A member has its role here, and may have a higher one for a "
         "stage alone.</p>",
         p, title);
    if (req->who.project_id == 0 && req->who.role >= MLO_ADMIN)
        HTML(out, "<p class=\"links\"><a href=\"/tokens?project=%s\">All tokens that work here</a></p>", p);
    HTML(out, "<section class=\"panel\">");
    if (json_array_size(members)) {
        HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table "
                  "id=\"members\"><thead><tr><th>Name</th><th>Kind</th><th>Role</th>"
                  "<th class=\"n\">Tokens</th><th class=\"n\">Last used</th><th class=\"n\">Since</th></tr>"
                  "</thead><tbody>");
        json_array_foreach(json_object_get(part, "items"), i, member) member_row(out, p, member);
        HTML(out, "</tbody></table></div>");
        mlo_piece_next(req, part);
    } else {
        HTML(out, "<p class=\"empty\">No member yet.</p>");
    }
    HTML(out, "</section>");
    if (req->who.role >= MLO_ADMIN)
        settings_form(req, NULL);
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(part);
    json_decref(members);
    return status;
}

/* --- one member ----------------------------------------------------------------------------------------
 */

static void form_begin(struct mlo_request *req, const char *look, const char *what)
{
    HTML(&req->out, "<form class=\"%s\" method=\"post\" action=\"/members/%s/%s/%s\">", look,
         mlo_request_param(req, "p"), mlo_request_param(req, "name"), what);
    mlo_page_csrf_field(req);
}

static void token_row(struct mlo_request *req, const json_t *token)
{
    struct mlo_buf *out = &req->out;
    const char *revoked = mlo_json_str(token, "revoked_at", NULL);
    HTML(out, "<tr><td><b>%s</b><br><small><code>%s…</code></small></td><td>%s", mlo_text(token, "name"),
         mlo_text(token, "prefix"), mlo_json_bool(token, "read_only", false) ? "reads" : "as the member");
    if (mlo_text(token, "stage")[0])
        HTML(out, "<br><small>%s alone</small>", mlo_text(token, "stage"));
    HTML(out, "</td><td class=\"n\">");
    mlo_piece_time(out, mlo_json_str(token, "created_at", NULL));
    HTML(out, "<br><small>by %s</small></td><td class=\"n\">", mlo_text(token, "created_by"));
    mlo_piece_time(out, mlo_json_str(token, "last_used_at", NULL));
    HTML(out, "</td><td class=\"n\">");
    mlo_piece_time(out, revoked ? revoked : mlo_json_str(token, "expires_at", NULL));
    HTML(out, "</td><td>");
    if (revoked) {
        HTML(out, "<span class=\"badge off\">revoked</span>");
    } else {
        form_begin(req, "inline", "revoke");
        HTML(out,
             "<input type=\"hidden\" name=\"id\" value=\"%lld\"><button class=\"danger\" aria-label=\"Revoke "
             "%s\">Revoke</button></form>",
             (long long)mlo_json_i64(token, "id", 0), mlo_text(token, "name"));
    }
    HTML(out, "</td></tr>");
}

static void tokens_of(struct mlo_request *req, const json_t *member, const json_t *tokens)
{
    struct mlo_buf *out = &req->out;
    json_t *part = mlo_page_part(req, tokens, ROWS_A_PAGE), *token;
    char path[256]; /* of the page, also where it answers the form */
    size_t i;
    snprintf(path, sizeof path, "/members/%.110s/%.110s", mlo_request_param(req, "p"),
             mlo_request_param(req, "name"));
    HTML(out, "<h2>Tokens</h2><section class=\"panel\">");
    if (json_array_size(tokens)) {
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><table "
             "id=\"tokens\"><thead><tr><th>Name</th><th>May</th><th "
             "class=\"n\">Made</th><th class=\"n\">Last used</th><th class=\"n\">Expires</th><th></th></tr>"
             "</thead><tbody>");
        json_array_foreach(json_object_get(part, "items"), i, token) token_row(req, token);
        HTML(out, "</tbody></table></div>");
        mlo_piece_next_of(req, part, path, NULL);
    } else {
        HTML(out, "<p class=\"empty\">None yet: without one it cannot act.</p>");
    }
    form_begin(req, "filters", "token");
    seen_field(req, member);
    HTML(out, "<label class=\"wide\">Name<input name=\"token_name\" required maxlength=\"200\" "
              "autocomplete=\"off\"></label><label>May<select name=\"may\"><option value=\"\">as the "
              "member</option><option value=\"read\">only read</option><option value=\"staging\">act in "
              "staging alone</option><option value=\"production\">act in production "
              "alone</option></select></label><label>Days<input name=\"days\" type=\"number\" min=\"1\" "
              "max=\"36500\" value=\"90\"></label><button class=\"primary\">Make a "
              "token</button></form></section>");
    json_decref(part);
}

/* `made`: the text of a token that was just made; or NULL. */
static enum mlo_status draw_member(struct mlo_request *req, const char *made, int http_status,
                                   struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    const char *p = mlo_request_param(req, "p"), *name = mlo_request_param(req, "name");
    bool admin = req->who.role >= MLO_ADMIN;
    json_t *member = NULL, *tokens = NULL;
    int64_t project, id;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_get(req->conn, project, name, &member, err));
    if (admin) {
        MLO_TRY(mlo_member_find(req->conn, project, name, &id, NULL, err));
        MLO_TRY(mlo_token_list_of(req->conn, id, &tokens, err));
    }
    mlo_page_begin(req, name, "projects");
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/projects\">Projects</a> / <a href=\"/members/%s\">Members of "
         "%s</a></p><h1>%s</h1>",
         p, p, name);
    if (made)
        HTML(out,
             "<section class=\"panel\" role=\"status\"><p>The token, shown this once; keep it now:</p><pre "
             "id=\"made\" tabindex=\"0\">%s</pre></section>",
             made);
    HTML(out,
         "<section class=\"panel\"><dl "
         "class=\"facts\"><div><dt>Kind</dt><dd>%s</dd></div><div><dt>Role</dt><dd>%s",
         kind_of(member), mlo_text(member, "role"));
    stage_roles(out, member);
    HTML(out, "</dd></div><div><dt>In logs</dt><dd>%s</dd></div><div><dt>Since</dt><dd>",
         mlo_text(member, "principal"));
    mlo_piece_time(out, mlo_json_str(member, "created_at", NULL));
    HTML(out, " by %s</dd></div><div><dt>Last used</dt><dd>", mlo_text(member, "created_by"));
    mlo_piece_time(out, mlo_json_str(member, "last_used_at", NULL));
    HTML(out, "</dd></div></dl>");
    if (mlo_text(member, "description")[0])
        HTML(out, "<p>%s</p>", mlo_text(member, "description"));
    HTML(out, "</section>");
    if (admin) {
        tokens_of(req, member, tokens);
        settings_form(req, member);
        form_begin(req, "inline", "remove");
        seen_field(req, member);
        HTML(out, "<input name=\"reason\" maxlength=\"500\" placeholder=\"Why (optional)\" "
                  "aria-label=\"Why\"><button class=\"danger\">Remove, with its tokens</button></form>");
    }
    MLO_TRY(mlo_page_end(req, http_status, err));
out:
    json_decref(member);
    json_decref(tokens);
    return status;
}

enum mlo_status page_member(struct mlo_request *req, struct mlo_error *err)
{
    return draw_member(req, NULL, 200, err);
}

/* --- forms ---------------------------------------------------------------------------------------------
 */

static const char *field(struct mlo_request *req, const char *name)
{
    const char *text = mlo_request_form(req, name);
    return text ? text : "";
}

static enum mlo_status role_field(struct mlo_request *req, const char *name, enum mlo_role *out,
                                  struct mlo_error *err)
{
    const char *text = field(req, name);
    if (mlo_role_parse(text, out))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "there is no role '%.60s'", text);
    mlo_error_where(err, "field '%s'", name);
    return MLO_EINVAL;
}

enum mlo_status page_member_set(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *name = field(req, "name"), *kind = field(req, "kind"), *reason = field(req, "reason");
    struct mlo_member_settings settings = {
        .kind = strcmp(kind, "service") == 0 ? MLO_KIND_SERVICE : MLO_KIND_PERSON,
        .seen = field(req, "seen"),
        .may_approve = *field(req, "approve") != '\0',
        .description = field(req, "description"),
        .reason = *reason ? reason : NULL,
    };
    json_t *member = NULL;
    const char *const *stages;
    size_t count;
    int64_t project;
    bool made;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    if (strcmp(kind, "person") != 0 && strcmp(kind, "service") != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "there is no kind of member '%.60s'", kind);
        mlo_error_where(err, "field 'kind'");
        mlo_error_hint(err, "person or service");
        goto out;
    }
    MLO_TRY(role_field(req, "role", &settings.role, err));
    stages = mlo_stage_names(&count);
    for (size_t i = 0; i < count; i++)
        if (*field(req, stages[i]))
            MLO_TRY(role_field(req, stages[i], &settings.stage_role[i], err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_set(req->conn, &actor, project, name, &settings, &made, &member, err));
    MLO_TRY(mlo_reply_redirect(req, "/members/%s/%s", mlo_request_param(req, "p"), name));
out:
    json_decref(member);
    return status;
}

enum mlo_status page_member_token(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *may = field(req, "may");
    struct mlo_token_request token = {.name = field(req, "token_name"), .role = MLO_ADMIN};
    char text[MLO_TOKEN_TEXT_SIZE] = "";
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_page_token_life(req, &token.expires_at_us, err));
    if (strcmp(may, "read") == 0)
        token.role = MLO_VIEWER;
    else if (*may)
        token.stage = may;
    MLO_TRY(mlo_member_token(req->conn, &actor, project, mlo_request_param(req, "name"), field(req, "seen"),
                             &token, text, err));
    MLO_TRY(draw_member(req, text, 201, err));
out:
    explicit_bzero(text, sizeof text);
    return status;
}

enum mlo_status page_member_revoke(struct mlo_request *req, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_view_member_token_revoke(req, field(req, "id"), err));
    MLO_TRY(mlo_reply_redirect(req, "/members/%s/%s", mlo_request_param(req, "p"),
                               mlo_request_param(req, "name")));
out:
    return status;
}

enum mlo_status page_member_remove(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason = field(req, "reason");
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_member_remove(req->conn, &actor, project, mlo_request_param(req, "name"), field(req, "seen"),
                              *reason ? reason : NULL, err));
    MLO_TRY(mlo_reply_redirect(req, "/members/%s", mlo_request_param(req, "p")));
out:
    return status;
}
