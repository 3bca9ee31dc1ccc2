/* What the gates say of a promotion, approvals, and what is in quarantine. */
#include <math.h>
#include <string.h>

#include "api/web/web_impl.h"

static void number(struct mlo_buf *out, const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    if (json_is_number(value))
        HTML(out, "%.5g", json_number_value(value));
    else
        HTML(out, "–");
}

void mlo_piece_gates(struct mlo_buf *out, const json_t *decision)
{
    const json_t *row;
    size_t i;
    if (json_array_size(json_object_get(decision, "conditions")) == 0) {
        HTML(out, "<p class=\"empty\">No gate is set for %s.</p>", mlo_text(decision, "stage"));
        return;
    }
    HTML(
        out,
        "<div class=\"scroll\" tabindex=\"0\"><table "
        "class=\"gates\"><thead><tr><th></th><th>Condition</th><th>Variant</th>"
        "<th class=\"n\">Value, interval</th><th class=\"n\">Bound</th><th class=\"n\">Limit</th><th>Why</th>"
        "</tr></thead><tbody>");
    json_array_foreach(json_object_get(decision, "conditions"), i, row)
    {
        bool holds = mlo_json_bool(row, "holds", false),
             judged = json_is_number(json_object_get(row, "bound"));
        HTML(out,
             "<tr class=\"%s\"><td><span class=\"badge %s\">%s</span></td><td><code>%s</code><br><small>%s",
             holds ? "holds" : "refuses", holds ? "good" : "bad", holds ? "holds" : "refuses",
             mlo_text(row, "condition"), mlo_text(row, "gate"));
        if (mlo_json_i64(row, "line", 0))
            HTML(out, ", %s policy, line %lld", mlo_text(row, "scope"),
                 (long long)mlo_json_i64(row, "line", 0));
        HTML(out,
             "</small></td><td class=\"nowrap\"><span class=\"target\">%s</span> %s</td><td class=\"n\">",
             mlo_text(row, "target"), mlo_text(row, "variant"));
        number(out, row, "value");
        if (judged && !json_equal(json_object_get(row, "low"), json_object_get(row, "high"))) {
            HTML(out, "<br><small>");
            number(out, row, "low");
            HTML(out, " … ");
            number(out, row, "high");
            HTML(out, "</small>");
        }
        HTML(out, "</td><td class=\"n\">");
        number(out, row, "bound");
        HTML(out, "</td><td class=\"n nowrap\">%s ", mlo_text(row, "op"));
        number(out, row, "limit");
        HTML(out, "</td><td class=\"reason\">%s", mlo_text(row, "why"));
        if (mlo_text(row, "measured_at")[0]) {
            HTML(out, "<br><small>%s, %s, ", mlo_text(row, "engine"), mlo_text(row, "machine_class"));
            mlo_piece_time(out, mlo_text(row, "measured_at"));
            HTML(out, "</small>");
        }
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div>");
}

/* The fields that say what is promoted, once more. */
static void hidden_fields(struct mlo_request *req, const json_t *decision)
{
    struct mlo_buf *out = &req->out;
    const char *stage = mlo_text(decision, "stage");
    const json_t *item;
    size_t i;
    mlo_page_csrf_field(req);
    HTML(out,
         "<input type=\"hidden\" name=\"stage\" value=\"%s\"><input type=\"hidden\" name=\"version\" "
         "value=\"%lld\">"
         "<input type=\"hidden\" name=\"generation_%s\" value=\"%lld\">"
         "<input type=\"hidden\" name=\"shown\" value=\"%s\">",
         stage, (long long)mlo_json_i64(decision, "version", 0), stage,
         (long long)mlo_json_i64(decision, "generation", 0), mlo_text(decision, "shown"));
    json_array_foreach(json_object_get(json_object_get(decision, "release"), "variants"), i, item) HTML(
        out,
        "<input type=\"hidden\" name=\"target%d\" value=\"%s\"><input type=\"hidden\" name=\"variant%d\" "
        "value=\"%s\">",
        (int)i, mlo_text(item, "target"), (int)i, mlo_text(item, "variant"));
}

static void form(struct mlo_request *req, const json_t *decision, const char *action, const char *look,
                 const char *text)
{
    struct mlo_buf *out = &req->out;
    HTML(out, "<form class=\"filters\" method=\"post\" action=\"/models/%s/%s/%s\">",
         mlo_request_param(req, "p"), mlo_request_param(req, "m"), action);
    hidden_fields(req, decision);
    HTML(out,
         "<label class=\"wide\">Reason<input name=\"reason\" required maxlength=\"500\"></label>"
         "<button class=\"%s\">%s</button></form>",
         look, text);
}

enum mlo_status mlo_page_gates(struct mlo_request *req, const json_t *decision, int http_status,
                               struct mlo_error *err)
{
    const char *p = mlo_request_param(req, "p"), *m = mlo_request_param(req, "m");
    bool accepted = strcmp(mlo_text(decision, "verdict"), "accepted") == 0;
    struct mlo_buf *out = &req->out;
    char title[256];
    snprintf(title, sizeof title, "Gates of %s/%s", p, m);
    mlo_page_begin(req, title, "models");
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/models/%s/%s\">%s/%s</a></p><h1>Version %lld to %s</h1>"
         "<p class=\"lead\">",
         p, m, p, m, (long long)mlo_json_i64(decision, "version", 0), mlo_text(decision, "stage"));
    mlo_piece_variants(out, json_object_get(json_object_get(decision, "release"), "variants"), true);
    HTML(out, "</p>");
    if (json_is_integer(json_object_get(decision, "id")))
        HTML(out,
             "<p class=\"alert\" role=\"alert\">The gates refused. Nothing moved; decision %lld keeps the "
             "numbers.</p>",
             (long long)mlo_json_i64(decision, "id", 0));
    HTML(out, "<section class=\"panel\" id=\"gates\">");
    mlo_piece_gates(out, decision);
    HTML(out, "<p class=\"muted\">Shown: ");
    mlo_piece_digest(out, mlo_text(decision, "shown"));
    HTML(out, " of generation %lld of the stage. An approval covers exactly this.</p></section>",
         (long long)mlo_json_i64(decision, "generation", 0));
    HTML(out, "<h2>Approve</h2><section class=\"panel\">");
    form(req, decision, "approve", "", "Approve what is shown");
    HTML(out, "</section><h2>Promote</h2><section class=\"panel\">");
    if (accepted)
        form(req, decision, "promote", "primary", "Promote");
    else
        HTML(out, "<p class=\"empty\">Not while a gate refuses.</p>");
    HTML(out, "</section>");
    return mlo_page_end(req, http_status, err);
}

enum mlo_status page_check(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_promotion_form f;
    json_t *move = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_page_promotion_form(req, &f, err));
    f.move.dry_run = true;
    if (!f.move.promotion.reason || !f.move.promotion.reason[0])
        f.move.promotion.reason = "a look at the gates";
    MLO_TRY(mlo_view_move(req, &f.move, &move, err));
    MLO_TRY(mlo_db_settle(req->conn, err)); /* the form names its generation */
    MLO_TRY(mlo_page_gates(req, json_object_get(move, "decision"), 200, err));
out:
    json_decref(move);
    return status;
}

enum mlo_status page_approve(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_promotion_form f;
    const char *shown = mlo_request_form(req, "shown");
    json_t *decision = NULL;
    int64_t id;
    enum mlo_status status;
    MLO_TRY(mlo_page_promotion_form(req, &f, err));
    const struct mlo_promotion *p = &f.move.promotion;
    struct mlo_approval approval = {.model_id = p->model_id,
                                    .version = p->version,
                                    .choices = p->choices,
                                    .choice_count = p->choice_count,
                                    .stage = p->stage,
                                    .note = p->reason};
    if (!shown || !mlo_digest_parse(shown, &approval.shown)) {
        status = mlo_error_set(err, MLO_EINVAL, "the form does not say what was shown");
        mlo_error_hint(err, "look at the gates again and repeat");
        goto out;
    }
    MLO_TRY(mlo_approval_give(req->conn, &actor, &approval, &id, &decision, err));
    MLO_TRY(mlo_page_gates(req, decision, 200, err));
out:
    json_decref(decision);
    return status;
}

enum mlo_status page_quarantine_release(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *text = mlo_request_form(req, "release");
    int64_t model, release = 0;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    if (text)
        mlo_str_to_i64(text, &release);
    MLO_TRY(mlo_quarantine_release(req->conn, &actor, model, release, mlo_request_form(req, "reason"), err));
    MLO_TRY(mlo_reply_redirect(req, "/promotions/%s/%s", mlo_request_param(req, "p"),
                               mlo_request_param(req, "m")));
out:
    return status;
}

/* --- on the promotion log ---------------------------------------------------------------------- */

static void refusals(struct mlo_buf *out, const json_t *items)
{
    const json_t *item, *row;
    size_t i, j;
    HTML(out, "<div class=\"scroll\" "
              "tabindex=\"0\"><table><thead><tr><th>Time</th><th>Stage</th><th>Decision</th><th>Version</th>"
              "<th>What refuses</th><th>Who</th></tr></thead><tbody>");
    json_array_foreach((json_t *)items, i, item)
    {
        bool accepted = strcmp(mlo_text(item, "verdict"), "accepted") == 0;
        HTML(out, "<tr><td>");
        mlo_piece_time(out, mlo_json_str(item, "at", NULL));
        HTML(out, "</td><td>");
        mlo_piece_state(out, mlo_text(item, "stage"));
        HTML(out, "</td><td><span class=\"badge %s\">%s</span></td><td>%lld</td><td class=\"reason\">",
             accepted ? "good" : "bad", mlo_text(item, "verdict"),
             (long long)mlo_json_i64(item, "version", 0));
        json_array_foreach(json_object_get(item, "conditions"), j,
                           row) if (!mlo_json_bool(row, "holds", false))
            HTML(out, "<div><code>%s</code> %s %s</div>", mlo_text(row, "condition"), mlo_text(row, "target"),
                 mlo_text(row, "why"));
        HTML(out, "</td><td>%s</td></tr>", mlo_text(item, "actor"));
    }
    HTML(out, "</tbody></table></div>");
}

static void quarantined(struct mlo_request *req, const json_t *items)
{
    struct mlo_buf *out = &req->out;
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)items, i, item)
    {
        const json_t *release = json_object_get(item, "release");
        long long number = (long long)mlo_json_i64(release, "release", 0);
        HTML(out, "<form class=\"back\" method=\"post\" action=\"/models/%s/%s/quarantine\">",
             mlo_request_param(req, "p"), mlo_request_param(req, "m"));
        mlo_page_csrf_field(req);
        HTML(out,
             "<input type=\"hidden\" name=\"release\" value=\"%lld\"><div><b>Release %lld</b>, version %lld, "
             "rolled back "
             "from %s by %s ",
             number, number, (long long)mlo_json_i64(release, "version", 0), mlo_text(item, "stage"),
             mlo_text(item, "actor"));
        mlo_piece_time(out, mlo_json_str(item, "at", NULL));
        HTML(out, ": “%s”</div>", mlo_text(item, "reason"));
        if (mlo_principal_most(&req->who) >= MLO_APPROVER)
            HTML(out, "<label>Reason<input name=\"reason\" required maxlength=\"500\"></label><button>Let it "
                      "out</button>");
        HTML(out, "</form>");
    }
}

enum mlo_status mlo_piece_governance(struct mlo_request *req, int64_t model, struct mlo_error *err)
{
    struct mlo_page page = {.limit = 20};
    json_t *decisions = NULL, *held = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_decision_list(req->conn, model, NULL, &page, &decisions, err));
    MLO_TRY(mlo_quarantine_list(req->conn, model, false, &page, &held, err));
    if (json_array_size(json_object_get(held, "items"))) {
        HTML(&req->out, "<h2>In quarantine</h2><section class=\"panel\" id=\"quarantine\">");
        quarantined(req, json_object_get(held, "items"));
        HTML(&req->out, "</section>");
    }
    if (json_array_size(json_object_get(decisions, "items"))) {
        HTML(&req->out, "<h2>What the gates decided</h2><section class=\"panel\" id=\"decisions\">");
        refusals(&req->out, json_object_get(decisions, "items"));
        HTML(&req->out, "</section>");
    }
out:
    json_decref(decisions);
    json_decref(held);
    return status;
}
