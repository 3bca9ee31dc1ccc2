/* The promotion log, what was in force at a time, and the forms that move a stage. */
#include <string.h>

#include "api/web/web_impl.h"

/* "#2 v1 int8-cpu": the release's number, its version, and its variants by name. */
static void release_text(struct mlo_buf *out, const char *p, const char *m, const json_t *release)
{
    const json_t *item;
    size_t i;
    if (!json_is_object(release)) {
        HTML(out, "<span class=\"muted\">empty</span>");
        return;
    }
    long long number = (long long)mlo_json_i64(release, "release", 0);
    HTML(out, "<span><a href=\"/release/%s/%s/%lld\">#%lld</a> v%lld", p, m, number, number,
         (long long)mlo_json_i64(release, "version", 0));
    json_array_foreach(json_object_get(release, "variants"), i, item)
        HTML(out, "%s%s", i ? ", " : " ", mlo_text(item, "variant"));
    HTML(out, "</span>");
}

void mlo_piece_moves(struct mlo_buf *out, const json_t *items, bool models)
{
    const json_t *item;
    size_t i;
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table class=\"moves\"><thead><tr><th>Time</th>");
    if (models)
        HTML(out, "<th>Model</th>");
    HTML(out, "<th>Stage</th><th>Move</th><th>From → to</th><th>Variants per "
              "target</th><th>Who</th><th>Reason</th></tr></thead><tbody>");
    json_array_foreach((json_t *)items, i, item)
    {
        const json_t *to = json_object_get(item, "to");
        HTML(out, "<tr><td>");
        mlo_piece_time(out, mlo_json_str(item, "at", NULL));
        HTML(out, "</td>");
        if (models) {
            HTML(out, "<td>");
            mlo_piece_model(out, mlo_text(item, "project"), mlo_text(item, "model"));
            HTML(out, "</td>");
        }
        HTML(out, "<td>");
        mlo_piece_state(out, mlo_text(item, "stage"));
        HTML(out,
             "</td><td><span class=\"kind %s\">%s</span><br><small>generation %lld</small></td><td "
             "class=\"nowrap\"><span class=\"moved\"><span class=\"muted\">from</span>",
             mlo_text(item, "kind"), mlo_text(item, "kind"), (long long)mlo_json_i64(item, "generation", 0));
        release_text(out, mlo_text(item, "project"), mlo_text(item, "model"), json_object_get(item, "from"));
        HTML(out, "<span class=\"muted\">to</span>");
        release_text(out, mlo_text(item, "project"), mlo_text(item, "model"), to);
        HTML(out, "</span></td><td>");
        mlo_piece_variants(out, json_object_get(to, "variants"), true);
        HTML(out, "</td><td>%s<br><small>via %s</small></td><td class=\"reason\">%s</td></tr>",
             mlo_text(item, "actor"), mlo_text(item, "via"), mlo_text(item, "reason"));
    }
    HTML(out, "</tbody></table></div>");
}

static void option(struct mlo_buf *out, const char *value, const char *chosen)
{
    if (chosen && strcmp(value, chosen) == 0)
        HTML(out, "<option selected>%s</option>", value);
    else
        HTML(out, "<option>%s</option>", value);
}

/* What a browser's datetime-local sends, "2026-01-31T12:00" with or without seconds, as the end of that
 * second in UTC. */
static const char *as_utc(struct mlo_request *req, const char *at)
{
    size_t length = strlen(at);
    if (length == 16)
        return mlo_arena_printf(req->arena, "%s:00.999Z", at);
    if (length == 19)
        return mlo_arena_printf(req->arena, "%s.999Z", at);
    return at;
}

static enum mlo_status at_answer(struct mlo_request *req, int64_t model, const char *stage, const char *at,
                                 struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    struct mlo_error wrong = {0};
    json_t *move = NULL;
    const char *time = as_utc(req, at);
    if (!time)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_stage_at(req->conn, model, stage, time, &move, &wrong);
    if (status == MLO_EINVAL) {
        HTML(out, "<p class=\"alert\" role=\"alert\">%s</p>", wrong.message);
        return MLO_OK;
    }
    if (status != MLO_OK) {
        *err = wrong;
        return status;
    }
    if (json_is_object(move)) {
        const json_t *to = json_object_get(move, "to");
        HTML(out, "<p class=\"answer\">At ");
        mlo_piece_time(out, time);
        HTML(out, ", <b>%s</b> held <b>version %lld</b> (release %lld): ", stage,
             (long long)mlo_json_i64(to, "version", 0), (long long)mlo_json_i64(to, "release", 0));
        mlo_piece_variants(out, json_object_get(to, "variants"), true);
        HTML(out, " put there ");
        mlo_piece_time(out, mlo_json_str(move, "at", NULL));
        HTML(out, " by %s: “%s”</p>", mlo_text(move, "actor"), mlo_text(move, "reason"));
    } else {
        HTML(out, "<p class=\"answer\">At ");
        mlo_piece_time(out, time);
        HTML(out, ", <b>%s</b> was empty.</p>", stage);
    }
    json_decref(move);
    return MLO_OK;
}

static bool may_rollback(const struct mlo_request *req)
{
    return req->who.rollback == MLO_RIGHT_BY_ROLE ? mlo_principal_most(&req->who) >= MLO_PROMOTER
                                                  : req->who.rollback == MLO_RIGHT_GRANTED;
}

static void rollback_form(struct mlo_request *req, const json_t *stage)
{
    struct mlo_buf *out = &req->out;
    const json_t *previous = json_object_get(stage, "previous"), *release = json_object_get(stage, "release");
    if (!json_is_object(previous))
        return;
    HTML(out, "<form class=\"back\" method=\"post\" action=\"/models/%s/%s/rollback\">",
         mlo_request_param(req, "p"), mlo_request_param(req, "m"));
    mlo_page_csrf_field(req);
    HTML(out,
         "<input type=\"hidden\" name=\"stage\" value=\"%s\"><input type=\"hidden\" name=\"generation\" "
         "value=\"%lld\">"
         "<div>",
         mlo_text(stage, "stage"), (long long)mlo_json_i64(stage, "generation", 0));
    mlo_piece_state(out, mlo_text(stage, "stage"));
    HTML(out, " ");
    release_text(out, mlo_request_param(req, "p"), mlo_request_param(req, "m"), release);
    HTML(out, " → ");
    release_text(out, mlo_request_param(req, "p"), mlo_request_param(req, "m"), previous);
    HTML(out, " ");
    mlo_piece_variants(out, json_object_get(previous, "variants"), false);
    HTML(out,
         "</div><label>Reason<input name=\"reason\" required maxlength=\"500\"></label>"
         "<button class=\"danger\">Roll %s back</button></form>",
         mlo_text(stage, "stage"));
}

enum mlo_status page_promotions(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *stage = mlo_request_query(req, "stage"), *at = mlo_request_query(req, "at");
    const char *p = mlo_request_param(req, "p"), *m = mlo_request_param(req, "m");
    char now[32];
    struct mlo_history_filter filter = {0};
    struct mlo_buf *out = &req->out;
    struct mlo_page page;
    json_t *moves = NULL, *stages = NULL, *item;
    char title[256];
    size_t i;
    enum mlo_status status;
    if (!stage || !mlo_stage_valid(stage))
        stage = NULL;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_model(req, &filter.project_id, &filter.model_id, err));
    filter.stage = at ? NULL : stage;
    MLO_TRY(mlo_stage_history(req->conn, &actor, &filter, &page, &moves, err));
    MLO_TRY(mlo_stage_list(req->conn, filter.model_id, &stages, err));
    MLO_TRY(mlo_db_settle(req->conn, err)); /* forms name its generations */
    mlo_clock_format(mlo_clock_utc_us(), now);
    now[19] = '\0'; /* whole seconds: what the field takes */
    snprintf(title, sizeof title, "Promotion log of %s/%s", p, m);
    mlo_page_begin(req, title, "models");
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/models/%s/%s\">%s/%s</a></p><h1>Promotion log</h1>"
         "<section class=\"panel\" id=\"log\">",
         p, m, p, m);
    if (json_array_size(json_object_get(moves, "items")))
        mlo_piece_moves(out, json_object_get(moves, "items"), false);
    else
        HTML(out, "<p class=\"empty\">Nothing was promoted yet.</p>");
    mlo_piece_next(req, moves);
    HTML(out, "</section><h2>What was in force at a time?</h2><section class=\"panel\">"
              "<form class=\"filters\" method=\"get\"><label>Stage<select name=\"stage\">");
    option(out, "production", stage);
    option(out, "staging", stage);
    HTML(out,
         "</select></label><label>Time (UTC)<input type=\"datetime-local\" step=\"1\" name=\"at\" "
         "value=\"%s\" "
         "required></label><button>Look</button></form>",
         at ? at : now);
    if (at)
        MLO_TRY(at_answer(req, filter.model_id, stage ? stage : "production", at, err));
    HTML(out, "</section>");
    MLO_TRY(mlo_piece_governance(req, filter.model_id, err));
    if (may_rollback(req)) {
        bool any = false;
        json_array_foreach(stages, i, item) any = any || json_is_object(json_object_get(item, "previous"));
        if (any)
            HTML(out, "<h2>Roll back</h2><section class=\"panel\">");
        json_array_foreach(stages, i, item) rollback_form(req, item);
        if (any)
            HTML(out, "</section>");
    }
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(moves);
    json_decref(stages);
    return status;
}

/* The generation of the stage when the form was made: the form's If-Match. */
static enum mlo_status form_generation(struct mlo_request *req, const char *field, int64_t *out,
                                       struct mlo_error *err)
{
    const char *text = mlo_request_form(req, field);
    if (text && mlo_str_to_i64(text, out) && *out >= 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EPRECONDITION_REQUIRED,
                  "the form does not say which state of the stage it was made for");
    mlo_error_where(err, "field '%s'", field);
    mlo_error_hint(err, "load the page again and repeat");
    return MLO_EPRECONDITION_REQUIRED;
}

static enum mlo_status form_stage(struct mlo_request *req, const char **out, struct mlo_error *err)
{
    *out = mlo_request_form(req, "stage");
    if (*out && mlo_stage_valid(*out))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "choose a stage: staging or production");
    return MLO_EINVAL;
}

static enum mlo_status do_move(struct mlo_request *req, const struct mlo_move_request *move,
                               struct mlo_error *err)
{
    json_t *made = NULL;
    enum mlo_status status = mlo_view_move(req, move, &made, err);
    json_decref(made);
    return status == MLO_OK ? mlo_reply_redirect(req, "/promotions/%s/%s", mlo_request_param(req, "p"),
                                                 mlo_request_param(req, "m"))
                            : status;
}

enum mlo_status page_rollback(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_move_request move = {.rollback = true};
    int64_t generation;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(form_stage(req, &move.back.stage, err));
    MLO_TRY(form_generation(req, "generation", &generation, err));
    MLO_TRY(mlo_request_model(req, NULL, &move.back.model_id, err));
    move.back.reason = mlo_request_form(req, "reason");
    move.back.if_match = &generation;
    MLO_TRY(do_move(req, &move, err));
out:
    return status;
}

enum mlo_status mlo_page_promotion_form(struct mlo_request *req, struct mlo_promotion_form *f,
                                        struct mlo_error *err)
{
    struct mlo_promotion *promotion = &f->move.promotion;
    enum mlo_status status;
    memset(f, 0, sizeof *f);
    promotion->choices = f->choices;
    MLO_TRY(mlo_page_csrf_check(req, err));
    MLO_TRY(form_stage(req, &promotion->stage, err));
    MLO_TRY(form_generation(
        req, strcmp(promotion->stage, "staging") == 0 ? "generation_staging" : "generation_production",
        &f->generation, err));
    const char *version = mlo_request_form(req, "version");
    if (!version || !mlo_str_to_i64(version, &promotion->version) || promotion->version < 1) {
        status = mlo_error_set(err, MLO_EINVAL, "the form names no version");
        goto out;
    }
    for (int i = 0; i < MLO_FORM_CHOICES; i++) {
        char target_field[32], variant_field[32];
        snprintf(target_field, sizeof target_field, "target%d", i);
        snprintf(variant_field, sizeof variant_field, "variant%d", i);
        const char *target = mlo_request_form(req, target_field),
                   *variant = mlo_request_form(req, variant_field);
        if (target && target[0] && variant && variant[0])
            f->choices[promotion->choice_count++] =
                (struct mlo_release_choice){.target = target, .variant = variant};
    }
    if (promotion->choice_count == 0) {
        status = mlo_error_set(err, MLO_EINVAL, "choose a variant for at least one target");
        goto out;
    }
    MLO_TRY(mlo_request_model(req, NULL, &promotion->model_id, err));
    promotion->reason = mlo_request_form(req, "reason");
    promotion->if_match = &f->generation;
out:
    return status;
}

enum mlo_status page_promote(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_promotion_form f;
    enum mlo_status status;
    MLO_TRY(mlo_page_promotion_form(req, &f, err));
    status = do_move(req, &f.move, err);
    const json_t *decision = json_object_get(mlo_reply_members(req), "decision");
    if (status == MLO_EGATE && decision)
        status = mlo_page_gates(req, decision, 409, err);
out:
    return status;
}
