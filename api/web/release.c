/* One release: what it consists of with the numbers of its variants, where it is and was, and what the gates
 * said. */
#include <math.h>
#include <string.h>

#include "api/html/load.h"
#include "api/web/web_impl.h"

/* So many moves and decisions are looked through, the newest first. */
enum { PAGES_MAX = 4, MOVES_A_PAGE = MLO_PAGE_MAX, DECISIONS_A_PAGE = 100 };

struct release_view {
    const char *project_name, *model_name;
    int64_t project, model, number;
    long long version; /* its number */
    json_t *moves;     /* those that put it somewhere or took it away */
    json_t *decisions; /* of those that put it somewhere */
    json_t *release;   /* as a move has it: {release, version, variants}; borrowed */
    json_t *stages, *variants;
    bool cut; /* there are older moves */
};

static json_t *side(const json_t *move, const char *which, int64_t number)
{
    json_t *release = json_object_get(move, which);
    return json_is_object(release) && mlo_json_i64(release, "release", 0) == number ? release : NULL;
}

static enum mlo_status find_moves(struct mlo_request *req, struct release_view *v, struct mlo_error *err)
{
    const struct mlo_actor actor = mlo_request_actor(req);
    const struct mlo_history_filter filter = {
        .project_id = v->project, .model_id = v->model, .release = v->number};
    struct mlo_page page = {.limit = MOVES_A_PAGE};
    enum mlo_status status = MLO_OK;
    for (int n = 0; n < PAGES_MAX && (n == 0 || page.cursor); n++) {
        json_t *list = NULL, *move;
        size_t i;
        status = mlo_stage_history(req->conn, &actor, &filter, &page, &list, err);
        if (status != MLO_OK)
            return status;
        json_array_foreach(json_object_get(list, "items"), i, move)
        {
            json_t *to = side(move, "to", v->number), *from = side(move, "from", v->number);
            if (!to && !from)
                continue;
            if (!v->release)
                v->release = to ? to : from;
            json_array_append(v->moves, move);
        }
        const char *next = mlo_json_str(list, "next", NULL);
        page.cursor = next ? mlo_arena_strdup(req->arena, next) : NULL;
        json_decref(list); /* the moves that were kept have references of their own */
    }
    v->cut = page.cursor != NULL;
    return status;
}

/* The move that a decision let through: a promotion of this release, from the stage's generation that was
 * judged. */
static bool let_through(const struct release_view *v, const json_t *decision)
{
    const json_t *move;
    size_t i;
    json_array_foreach(v->moves, i, move)
    {
        if (side(move, "to", v->number) && strcmp(mlo_text(move, "kind"), "promotion") == 0 &&
            strcmp(mlo_text(move, "stage"), mlo_text(decision, "stage")) == 0 &&
            mlo_json_i64(move, "generation", 0) == mlo_json_i64(decision, "generation", 0) + 1 &&
            strcmp(mlo_text(decision, "verdict"), "accepted") == 0)
            return true;
    }
    return false;
}

static enum mlo_status find_decisions(struct mlo_request *req, struct release_view *v, struct mlo_error *err)
{
    struct mlo_page page = {.limit = DECISIONS_A_PAGE};
    for (int n = 0; n < PAGES_MAX && (n == 0 || page.cursor); n++) {
        json_t *list = NULL, *decision;
        size_t i;
        enum mlo_status status = mlo_decision_list(req->conn, v->model, NULL, &page, &list, err);
        if (status != MLO_OK)
            return status;
        json_array_foreach(json_object_get(list, "items"), i, decision) if (let_through(v, decision))
            json_array_append(v->decisions, decision);
        const char *next = mlo_json_str(list, "next", NULL);
        page.cursor = next ? mlo_arena_strdup(req->arena, next) : NULL;
        json_decref(list);
    }
    return MLO_OK;
}

/* Accuracy and latency of the variant as it is in the release: its name may point elsewhere by now. */
static void numbers(struct mlo_buf *out, const struct release_view *v, const json_t *part)
{
    const json_t *item, *found = NULL;
    char load[MLO_LOAD_TEXT_SIZE];
    size_t i;
    json_array_foreach(v->variants, i, item) if (strcmp(mlo_text(item, "artifact"),
                                                        mlo_text(part, "artifact")) == 0) found = item;
    const json_t *latency = json_array_get(json_object_get(found, "latency"), 0);
    HTML(out, "<td class=\"n\">");
    mlo_piece_size(out, json_object_get(found, "size"));
    HTML(out, "</td><td class=\"n\">");
    mlo_piece_accuracy(out, json_object_get(found, "accuracy"));
    for (int p99 = 0; p99 < 2; p99++) {
        HTML(out, "</td><td class=\"n\">");
        mlo_piece_us(out, mlo_json_f64(json_object_get(latency, p99 ? "p99_us" : "p50_us"), "value", NAN));
        if (latency && !p99) /* numbers of another load do not compare */
            HTML(out, "<br><small>%s, %s</small>", mlo_load_text(latency, load),
                 mlo_text(latency, "machine_class"));
    }
    HTML(out, "</td>");
}

static void parts(struct mlo_buf *out, const struct release_view *v)
{
    const json_t *part;
    size_t i;
    HTML(out,
         "<section class=\"panel\"><div class=\"scroll\" tabindex=\"0\"><table "
         "id=\"parts\"><thead><tr><th>Target</th><th>Variant</th>"
         "<th>Artifact</th><th class=\"n\">Size</th><th class=\"n\">Accuracy</th><th class=\"n\">p50</th>"
         "<th class=\"n\">p99</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(v->release, "variants"), i, part)
    {
        const char *name = mlo_text(part, "variant");
        HTML(out, "<tr><td>%s</td><td><a href=\"/variant/%s/%s/%lld/%s\">%s</a></td><td>",
             mlo_text(part, "target"), v->project_name, v->model_name, v->version, name, name);
        mlo_piece_digest(out, mlo_text(part, "artifact"));
        HTML(out, "</td>");
        numbers(out, v, part);
        HTML(out, "</tr>");
    }
    HTML(out, "</tbody></table></div></section>");
}

static void draw(struct mlo_buf *out, const struct release_view *v)
{
    const char *p = v->project_name, *m = v->model_name;
    const json_t *item;
    size_t i;
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/models/%s/%s\">%s/%s</a> / <a href=\"/promotions/%s/%s\">Promotion "
         "log</a></p><h1>Release %lld</h1><p class=\"lead\"><a href=\"/models/%s/%s?version=%lld\">Version "
         "%lld</a>",
         p, m, p, m, p, m, (long long)v->number, p, m, v->version, v->version);
    json_array_foreach(v->stages, i, item)
    {
        if (!side(item, "release", v->number))
            continue;
        HTML(out, " ");
        mlo_piece_state(out, mlo_text(item, "stage"));
        HTML(out, " since ");
        mlo_piece_time(out, mlo_json_str(item, "moved_at", NULL));
    }
    HTML(out, "</p>");
    parts(out, v);
    HTML(out, "<h2>What the gates said</h2>");
    json_array_foreach(v->decisions, i, item)
    {
        HTML(out, "<section class=\"panel decision\"><p>Decision %lld, ",
             (long long)mlo_json_i64(item, "id", 0));
        mlo_piece_state(out, mlo_text(item, "stage"));
        HTML(out, " by %s ", mlo_text(item, "actor"));
        mlo_piece_time(out, mlo_json_str(item, "at", NULL));
        HTML(out, "</p>");
        mlo_piece_gates(out, item);
        HTML(out, "</section>");
    }
    if (!json_array_size(v->decisions))
        HTML(out, "<section class=\"panel\"><p class=\"empty\">No decision about it is among those looked "
                  "through.</p></section>");
    HTML(out, "<h2>Its moves</h2><section class=\"panel\">");
    mlo_piece_moves(out, v->moves, false);
    if (v->cut)
        HTML(out, "<p class=\"muted\">Older moves were not looked through; the promotion log has them.</p>");
    HTML(out, "</section>");
}

enum mlo_status page_release(struct mlo_request *req, struct mlo_error *err)
{
    struct release_view v = {.project_name = mlo_request_param(req, "p"),
                             .model_name = mlo_request_param(req, "m")};
    struct mlo_version_info version;
    char title[300];
    enum mlo_status status;
    v.moves = json_array();
    v.decisions = json_array();
    MLO_TRY(mlo_request_model(req, &v.project, &v.model, err));
    if (!mlo_str_to_i64(mlo_request_param(req, "n"), &v.number) || v.number < 1) {
        status =
            mlo_error_set(err, MLO_ENOTFOUND, "there is no release '%.40s'", mlo_request_param(req, "n"));
        goto out;
    }
    MLO_TRY(find_moves(req, &v, err));
    if (!v.release) {
        status =
            mlo_error_set(err, MLO_ENOTFOUND,
                          v.cut ? "no newer move is of a release %lld; older ones were not looked through"
                                : "no stage of this model held a release %lld",
                          (long long)v.number);
        goto out;
    }
    MLO_TRY(find_decisions(req, &v, err));
    MLO_TRY(mlo_stage_list(req->conn, v.model, &v.stages, err));
    v.version = (long long)mlo_json_i64(v.release, "version", 0);
    status = mlo_version_find(req->conn, v.model, v.version, &version, err);
    if (status == MLO_OK)
        MLO_TRY(mlo_view_variants(req->conn, version.id, &v.variants, err));
    else if (status != MLO_ENOTFOUND) /* a deleted version's numbers are gone, its moves are not */
        goto out;
    snprintf(title, sizeof title, "Release %lld of %s/%s", (long long)v.number, v.project_name, v.model_name);
    mlo_page_begin(req, title, "models");
    draw(&req->out, &v);
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(v.moves);
    json_decref(v.decisions);
    json_decref(v.stages);
    json_decref(v.variants);
    return status;
}
