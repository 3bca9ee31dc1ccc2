/* What was said of a version and of its releases, and the form to say more. */
#include <string.h>

#include "api/web/web_impl.h"

static void rows(struct mlo_buf *out, const json_t *items)
{
    const json_t *item;
    size_t i;
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table "
              "id=\"comments\"><thead><tr><th>Time</th><th>On</th><th>Who</th>"
              "<th>Comment</th></tr></thead><tbody>");
    json_array_foreach((json_t *)items, i, item)
    {
        long long release = (long long)mlo_json_i64(item, "release", 0);
        HTML(out, "<tr><td>");
        mlo_piece_time(out, mlo_json_str(item, "at", NULL));
        if (release)
            HTML(out, "</td><td>release %lld", release);
        else
            HTML(out, "</td><td>version %lld", (long long)mlo_json_i64(item, "version", 0));
        HTML(out, "</td><td>%s<br><small>via %s</small></td><td class=\"reason said\">%s</td></tr>",
             mlo_text(item, "actor"), mlo_text(item, "via"), mlo_text(item, "text"));
    }
    HTML(out, "</tbody></table></div>");
}

enum mlo_status mlo_piece_comments(struct mlo_request *req, const struct mlo_version_info *version,
                                   struct mlo_error *err)
{
    const struct mlo_comment_on on = {.model_id = version->model_id, .version_id = version->id};
    struct mlo_page newest = {.limit = MLO_PAGE_DEFAULT};
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    json_t *list = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_comment_list(conn, &on, &newest, &list, err));
    const json_t *items = json_object_get(list, "items");
    bool any = json_array_size(items) > 0, may = req->who.role >= MLO_SUBMITTER;
    if (!any && !may)
        goto out;
    HTML(out, "<h2>Comments on version %lld</h2><section class=\"panel\">", (long long)version->number);
    if (any)
        rows(out, items);
    if (!json_is_null(json_object_get(list, "next")))
        HTML(out, "<p class=\"muted\">The newest %zu; <code>mlopt comment</code> lists all.</p>",
             json_array_size(items));
    if (may) {
        HTML(out, "<form class=\"filters\" method=\"post\" action=\"/models/%s/%s/comment\">",
             mlo_request_param(req, "p"), mlo_request_param(req, "m"));
        mlo_page_csrf_field(req);
        HTML(out,
             "<input type=\"hidden\" name=\"version\" value=\"%lld\"><label>On release (or this "
             "version)<input "
             "name=\"release\" inputmode=\"numeric\" pattern=\"[0-9]*\"></label><label "
             "class=\"wide\">Comment<input name=\"text\" required maxlength=\"%d\"></label><button>Say "
             "it</button></form>",
             (long long)version->number, MLO_COMMENT_MAX);
    }
    HTML(out, "</section>");
out:
    json_decref(list);
    return status;
}

enum mlo_status page_comment(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *text = mlo_request_form(req, "text"), *release = mlo_request_form(req, "release"),
               *version = mlo_request_form(req, "version");
    struct mlo_comment_on on = {0};
    struct mlo_version_info info;
    int64_t number = 0;
    json_t *made = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_request_model(req, NULL, &on.model_id, err));
    if (!version || !mlo_str_to_i64(version, &number) || number < 1) {
        status = mlo_error_set(err, MLO_EINVAL, "the form names no version");
        goto out;
    }
    MLO_TRY(mlo_version_find(req->conn, on.model_id, number, &info, err));
    if (release && *release) {
        if (!mlo_str_to_i64(release, &on.release) || on.release < 1) {
            status = mlo_error_set(err, MLO_EINVAL, "'%.60s' is no release: releases have numbers", release);
            goto out;
        }
    } else {
        on.version_id = info.id;
    }
    MLO_TRY(mlo_comment_add(req->conn, &actor, &on, text ? text : "", &made, err));
    MLO_TRY(mlo_reply_redirect(req, "/models/%s/%s?version=%lld", mlo_request_param(req, "p"),
                               mlo_request_param(req, "m"), (long long)number));
out:
    json_decref(made);
    return status;
}
