/* The first page: what runs and waits, models, recent runs, last moves. */
#include <string.h>

#include "api/web/web_impl.h"

static void stage_cell(struct mlo_buf *out, const json_t *stage)
{
    if (!json_is_object(stage))
        HTML(out, "<td class=\"muted\">–</td>");
    else
        HTML(out, "<td><span class=\"badge plain\">v%lld</span></td>",
             (long long)mlo_json_i64(stage, "version", 0));
}

static void model_rows(struct mlo_buf *out, const json_t *items)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)items, i, item)
    {
        HTML(out, "<tr><td>");
        mlo_piece_model(out, mlo_text(item, "project"), mlo_text(item, "name"));
        if (mlo_text(item, "description")[0])
            HTML(out, "<br><small>%s</small>", mlo_text(item, "description"));
        HTML(out, "</td><td class=\"n\">%lld</td>", (long long)mlo_json_i64(item, "latest_version", 0));
        stage_cell(out, json_object_get(item, "staging"));
        stage_cell(out, json_object_get(item, "production"));
        HTML(out, "<td class=\"n\">");
        mlo_piece_time(out, mlo_json_str(item, "created_at", NULL));
        HTML(out, "</td><td class=\"n\"><a href=\"/promotions/%s/%s\">Promotion log</a></td></tr>",
             mlo_text(item, "project"), mlo_text(item, "name"));
    }
}

/* What goes on in one line, over all classes. */
static void now_line(struct mlo_buf *out, const json_t *depths)
{
    int64_t running = 0, queued = 0;
    double oldest = 0;
    const json_t *row;
    size_t i;
    json_array_foreach((json_t *)depths, i, row)
    {
        running += mlo_json_i64(row, "running", 0);
        queued += mlo_json_i64(row, "queued", 0);
        oldest = MLO_MAX(oldest, mlo_json_f64(row, "oldest_queued_s", 0));
    }
    HTML(out,
         "<section class=\"panel\" id=\"now\"><dl class=\"facts\"><div><dt>Jobs that "
         "run</dt><dd>%lld</dd></div>"
         "<div><dt>Jobs that wait</dt><dd>%lld</dd></div>",
         (long long)running, (long long)queued);
    if (queued) {
        HTML(out, "<div><dt>The oldest waits for</dt><dd>");
        mlo_piece_duration(out, oldest);
        HTML(out, "</dd></div>");
    }
    HTML(out, "</dl></section>");
}

/* Which project waits for which class of machine, and how long: nothing where nothing waits. */
static void waiting(struct mlo_buf *out, const json_t *depths)
{
    const json_t *row;
    size_t i, shown = 0;
    json_array_foreach((json_t *)depths, i, row)
    {
        if (!mlo_json_i64(row, "queued", 0))
            continue;
        if (!shown++)
            HTML(out,
                 "<h2>What waits</h2><section class=\"panel\"><div class=\"scroll\" tabindex=\"0\"><table "
                 "id=\"waiting\">"
                 "<thead><tr><th>Project</th><th>For a worker with</th><th class=\"n\">Waiting</th>"
                 "<th class=\"n\">The oldest waits for</th><th class=\"n\">Running</th></tr></thead><tbody>");
        HTML(out,
             "<tr><td><a href=\"/usage/%s\">%s</a></td><td>%s</td><td class=\"n\">%lld</td><td class=\"n\">",
             mlo_text(row, "project"), mlo_text(row, "project"), mlo_text(row, "target"),
             (long long)mlo_json_i64(row, "queued", 0));
        mlo_piece_duration(out, mlo_json_f64(row, "oldest_queued_s", 0));
        HTML(out, "</td><td class=\"n\">%lld</td></tr>", (long long)mlo_json_i64(row, "running", 0));
    }
    if (shown)
        HTML(out, "</tbody></table></div></section>");
}

/* Those stand in a list of their own. */
static void drop_running(json_t *runs)
{
    for (size_t i = json_array_size(runs); i-- > 0;)
        if (strcmp(mlo_text(json_array_get(runs, i), "state"), "running") == 0)
            json_array_remove(runs, i);
}

enum mlo_status page_home(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    const char *q = mlo_request_query(req, "q");
    struct mlo_page page;
    const struct mlo_page few = {.limit = 8};
    const struct mlo_run_filter recent = {.project = req->who.project_id, .limit = 8},
                                going = {.project = req->who.project_id, .limit = 8, .state = "running"};
    const struct mlo_history_filter all = {.project_id = req->who.project_id};
    json_t *models = NULL, *runs = NULL, *live = NULL, *moves = NULL, *depths = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_model_list(conn, &actor, req->who.project_id, q, &page, &models, err));
    MLO_TRY(mlo_view_runs(conn, &recent, &runs, err));
    MLO_TRY(mlo_view_runs(conn, &going, &live, err));
    drop_running(json_object_get(runs, "items"));
    MLO_TRY(mlo_queue_depths(conn, req->who.project_id, &depths, err));
    MLO_TRY(mlo_stage_history(conn, &actor, &all, &few, &moves, err));

    mlo_page_begin(req, "Models", "models");
    HTML(out, "<h1>Models</h1>");
    now_line(out, depths);
    HTML(out,
         "<form class=\"filters\" method=\"get\"><label>Name or description<input "
         "type=\"search\" "
         "name=\"q\" value=\"%s\"></label><button>Search</button>",
         q ? q : "");
    if (req->who.role >= MLO_SUBMITTER)
        HTML(out, "<a class=\"button\" href=\"/upload\">Upload a model</a>");
    HTML(out, "</form><section class=\"panel\">");
    if (json_array_size(json_object_get(models, "items"))) {
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><table id=\"models\"><thead><tr><th>Model</th><th "
             "class=\"n\">Version</th>"
             "<th>Staging</th><th>Production</th><th class=\"n\">Since</th><th></th></tr></thead><tbody>");
        model_rows(out, json_object_get(models, "items"));
        HTML(out, "</tbody></table></div>");
        mlo_piece_next(req, models);
    } else if (q) {
        HTML(out, "<p class=\"empty\">No model has “%s” in its name or description.</p>", q);
    } else {
        HTML(out,
             "<p class=\"empty\">No model yet. <a href=\"/upload\">Upload one</a>, or:</p><pre>mlopt push "
             "fashion/cnn model.onnx</pre>");
    }
    HTML(out, "</section>");
    if (json_array_size(json_object_get(live, "items"))) {
        HTML(out, "<h2>What runs</h2><section class=\"panel\" id=\"running\">");
        mlo_piece_runs(out, json_object_get(live, "items"));
        HTML(out, "</section>");
    }
    waiting(out, depths);
    HTML(out, "<h2>Recent runs</h2><section class=\"panel\">");
    if (json_array_size(json_object_get(runs, "items")))
        mlo_piece_runs(out, json_object_get(runs, "items"));
    else if (json_array_size(json_object_get(live, "items")))
        HTML(out, "<p class=\"empty\">None but those that run.</p>");
    else
        HTML(out, "<p class=\"empty\">No run yet. Submit one:</p><pre>mlopt submit fashion/cnn --recipe "
                  "int8-cpu --wait</pre>");
    HTML(out, "</section><h2>Last moves</h2><section class=\"panel\">");
    if (json_array_size(json_object_get(moves, "items")))
        mlo_piece_moves(out, json_object_get(moves, "items"), true);
    else
        HTML(out, "<p class=\"empty\">Nothing was promoted yet.</p>");
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(models);
    json_decref(runs);
    json_decref(live);
    json_decref(moves);
    json_decref(depths);
    return status;
}
