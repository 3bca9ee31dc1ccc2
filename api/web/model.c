/* A model: its stages, the variants of a version with what was measured, lineage, versions, and promoting. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/web/web_impl.h"

#define TARGETS_MAX 8

struct model_view {
    const char *project, *model;
    int64_t project_id, model_id;
    struct mlo_version_info version;
    json_t *about, *stages, *variants, *versions, *lineage, *facts;
    const char *targets[TARGETS_MAX]; /* of the runs that made the variants; texts in the request's arena */
    size_t target_count;
};

static void stage_card(struct mlo_buf *out, const json_t *stage)
{
    const json_t *release = json_object_get(stage, "release");
    HTML(out, "<section class=\"panel card\"><h3>");
    mlo_piece_state(out, mlo_text(stage, "stage"));
    HTML(out, "</h3>");
    if (json_is_object(release)) {
        HTML(out, "<p class=\"big\">Version %lld <small>release %lld</small></p>",
             (long long)mlo_json_i64(release, "version", 0), (long long)mlo_json_i64(release, "release", 0));
        mlo_piece_variants(out, json_object_get(release, "variants"), true);
        HTML(out, "<p class=\"muted\">since ");
        mlo_piece_time(out, mlo_json_str(stage, "moved_at", NULL));
        HTML(out, ", generation %lld</p>", (long long)mlo_json_i64(stage, "generation", 0));
    } else {
        HTML(out, "<p class=\"big muted\">empty</p>");
    }
    HTML(out, "</section>");
}

/* A ratio with its interval; coloured when the whole interval is on one side of 1. */
static void ratio_cell(struct mlo_buf *out, const json_t *ratio)
{
    if (!json_is_object(ratio)) {
        HTML(out, "<td class=\"n muted\">–</td>");
        return;
    }
    double value = mlo_json_f64(ratio, "value", NAN), low = mlo_json_f64(ratio, "low", NAN),
           high = mlo_json_f64(ratio, "high", NAN);
    const char *look = high < 1 ? "good" : low > 1 ? "bad" : "";
    HTML(out, "<td class=\"n ratio %s\">%.2f×", look, value);
    if (!isnan(low) && !isnan(high))
        HTML(out, " <small>%.2f–%.2f</small>", low, high);
    HTML(out, "</td>");
}

static void latency_cells(struct mlo_buf *out, const json_t *row)
{
    if (!row) {
        HTML(out, "<td class=\"n muted\">–</td><td class=\"n muted\">–</td><td class=\"n muted\">–</td><td "
                  "class=\"n muted\">–</td>");
        return;
    }
    HTML(out, "<td class=\"n\" title=\"%s\">%lld<small> × %lld</small></td>", mlo_text(row, "machine_class"),
         (long long)mlo_json_i64(row, "batch", 0), (long long)mlo_json_i64(row, "threads", 0));
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(row, i ? "p99_us" : "p50_us");
        double low = mlo_json_f64(value, "low", NAN), high = mlo_json_f64(value, "high", NAN);
        if (isnan(low) || isnan(high))
            HTML(out, "<td class=\"n\">");
        else
            HTML(out, "<td class=\"n\" title=\"%.0f to %.0f µs\">", low, high);
        mlo_piece_us(out, mlo_json_f64(value, "value", NAN));
        HTML(out, "</td>");
    }
    ratio_cell(out, json_object_get(row, "ratio"));
}

static void variant_rows(struct mlo_buf *out, const struct model_view *view)
{
    const json_t *item;
    size_t i;
    json_array_foreach(view->variants, i, item)
    {
        const json_t *latency = json_object_get(item, "latency");
        const char *name = mlo_text(item, "variant");
        size_t rows = MLO_MAX(json_array_size(latency), (size_t)1);
        HTML(out,
             "<tbody><tr><td rowspan=\"%zu\"><a href=\"/variant/%s/%s/%lld/%s\"><b>%s</b></a><br><small>",
             rows, view->project, view->model, (long long)view->version.number, name, name);
        mlo_piece_digest(out, mlo_text(item, "artifact"));
        HTML(out, "</small></td><td rowspan=\"%zu\" class=\"n\">", rows);
        mlo_piece_size(out, json_object_get(item, "size"));
        double ratio = mlo_json_f64(item, "size_ratio", NAN);
        if (i && !isnan(ratio))
            HTML(out, " <small>%.2f×</small>", ratio);
        HTML(out, "</td><td rowspan=\"%zu\" class=\"n\">", rows);
        mlo_piece_accuracy(out, json_object_get(item, "accuracy"));
        HTML(out, "</td>");
        latency_cells(out, json_array_get(latency, 0));
        HTML(out, "<td rowspan=\"%zu\" class=\"n\">", rows);
        if (json_array_size(json_object_get(item, "reports")) > 0)
            HTML(out, "<a href=\"/report/%s/%s/%lld/%s\">Report</a><br>", view->project, view->model,
                 (long long)view->version.number, name);
        HTML(out, "<a href=\"/artifact/%s/%s/%lld/%s\" download>Download</a></td></tr>", view->project,
             view->model, (long long)view->version.number, name);
        for (size_t r = 1; r < rows; r++) {
            HTML(out, "<tr class=\"under\">");
            latency_cells(out, json_array_get(latency, r));
            HTML(out, "</tr>");
        }
        HTML(out, "</tbody>");
    }
}

static void version_rows(struct mlo_buf *out, const struct model_view *view)
{
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(view->versions, "items"), i, item)
    {
        long long number = (long long)mlo_json_i64(item, "version", 0);
        HTML(out,
             "<tr><td><a href=\"/models/%s/%s?version=%lld\"><b>%lld</b></a></td><td>%s</td><td "
             "class=\"n\">%lld</td><td>",
             view->project, view->model, number, number, mlo_text(item, "description"),
             (long long)mlo_json_i64(item, "variants", 0));
        mlo_piece_digest(out, mlo_text(item, "manifest_digest"));
        HTML(out, "</td><td>%s</td><td class=\"n\">", mlo_text(item, "created_by"));
        mlo_piece_time(out, mlo_json_str(item, "created_at", NULL));
        HTML(out, "</td></tr>");
    }
}

/* Which targets the form offers besides `any`: those that the runs which made the variants were for. */
static enum mlo_status find_targets(struct mlo_request *req, struct model_view *view, struct mlo_error *err)
{
    json_t *item;
    size_t i;
    json_array_foreach(view->variants, i, item)
    {
        int64_t run_id = mlo_json_i64(item, "run_id", 0);
        json_t *run = NULL;
        if (!run_id || view->target_count == TARGETS_MAX)
            continue;
        enum mlo_status status = mlo_run_get(req->conn, view->project_id, run_id, &run, err);
        if (status == MLO_ENOTFOUND)
            continue;
        if (status != MLO_OK)
            return status;
        const char *target = mlo_text(run, "target");
        bool known = !target[0] || strcmp(target, "any") == 0;
        for (size_t t = 0; t < view->target_count && !known; t++)
            known = strcmp(view->targets[t], target) == 0;
        if (!known)
            view->targets[view->target_count++] = mlo_arena_strdup(req->arena, target);
        json_decref(run);
    }
    return MLO_OK;
}

static void variant_select(struct mlo_buf *out, const struct model_view *view, size_t index,
                           const char *target)
{
    const json_t *item;
    size_t i;
    HTML(out,
         "<label><span>Variant for <b>%s</b></span><input type=\"hidden\" name=\"target%zu\" "
         "value=\"%s\">"
         "<select name=\"variant%zu\">",
         target, index, target, index);
    if (index)
        HTML(out, "<option value=\"\">as for any</option>");
    json_array_foreach(view->variants, i, item) HTML(out, "<option>%s</option>", mlo_text(item, "variant"));
    if (!index)
        HTML(out, "<option value=\"\">none</option>");
    HTML(out, "</select></label>");
}

static void promote_form(struct mlo_request *req, const struct model_view *view)
{
    struct mlo_buf *out = &req->out;
    const json_t *stage;
    size_t i;
    HTML(out,
         "<h2>Promote version %lld</h2><section class=\"panel\"><form class=\"filters\" method=\"post\" "
         "action=\"/models/%s/%s/promote\">",
         (long long)view->version.number, view->project, view->model);
    mlo_page_csrf_field(req);
    HTML(out, "<input type=\"hidden\" name=\"version\" value=\"%lld\">", (long long)view->version.number);
    json_array_foreach(view->stages, i, stage)
        HTML(out, "<input type=\"hidden\" name=\"generation_%s\" value=\"%lld\">", mlo_text(stage, "stage"),
             (long long)mlo_json_i64(stage, "generation", 0));
    HTML(out, "<label>To<select "
              "name=\"stage\"><option>staging</option><option>production</option></select></label>");
    variant_select(out, view, 0, "any");
    for (i = 0; i < view->target_count; i++)
        if (view->targets[i])
            variant_select(out, view, i + 1, view->targets[i]);
    HTML(out,
         "<label class=\"wide\">Reason<input name=\"reason\" required maxlength=\"500\"></label>"
         "<button class=\"primary\">Promote</button><button class=\"plain\" formnovalidate formaction=\"");
    HTML(out, "/models/%s/%s/check\">Look at the gates</button></form></section>", view->project,
         view->model);
}

static enum mlo_status draw(struct mlo_request *req, const struct model_view *view, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    const json_t *stage;
    size_t i;
    enum mlo_status status = MLO_OK;
    HTML(out, "<p class=\"eyebrow\"><a href=\"/\">Models</a> / %s</p><h1>%s/%s</h1>", view->project,
         view->project, view->model);
    if (mlo_text(view->about, "description")[0])
        HTML(out, "<p class=\"lead\">%s</p>", mlo_text(view->about, "description"));
    HTML(out, "<div class=\"cards\">");
    json_array_foreach(view->stages, i, stage) stage_card(out, stage);
    HTML(out,
         "</div><p class=\"links\"><a href=\"/promotions/%s/%s\">Promotion log</a> <a "
         "href=\"/audit/%s\">Audit log</a> <a href=\"/search/%s\">Search</a> <a "
         "href=\"/compare/%s/%s\">Compare</a>",
         view->project, view->model, view->project, view->project, view->project, view->model);
    if (req->who.role >= MLO_SUBMITTER) {
        HTML(out, " <a href=\"/upload?project=%s&amp;model=%s\">Upload a version</a>", view->project,
             view->model);
        if (view->variants)
            HTML(out, " <a href=\"/submit/%s/%s?version=%lld\">Submit a recipe</a>", view->project,
                 view->model, (long long)view->version.number);
    }
    HTML(out, "</p>");
    if (view->variants) {
        HTML(out,
             "<h2>Variants of version %lld</h2><section class=\"panel\"><div class=\"scroll\" "
             "tabindex=\"0\"><table "
             "id=\"variants\">"
             "<thead><tr><th>Variant</th><th class=\"n\">Size</th><th class=\"n\">Accuracy</th>"
             "<th class=\"n\">Batch × threads</th><th class=\"n\">p50</th><th class=\"n\">p99</th>"
             "<th class=\"n\">p50 / source</th><th></th></tr></thead>",
             (long long)view->version.number);
        variant_rows(out, view);
        HTML(out, "</table></div>");
        mlo_piece_variant_plot(out, view->variants);
        HTML(out, "</section>");
    }
    if (json_object_size(view->facts)) {
        HTML(out, "<h2>What version %lld says of itself</h2><section class=\"panel\">",
             (long long)view->version.number);
        mlo_piece_facts(out, view->facts);
        HTML(out, "</section>");
    }
    if (view->variants)
        MLO_TRY(mlo_piece_signature(req, &view->version, err));
    if (view->lineage && json_array_size(json_object_get(view->lineage, "nodes")) > 0) {
        char name[360];
        snprintf(name, sizeof name, "%s/%s@%lld/" MLO_VARIANT_SOURCE, view->project, view->model,
                 (long long)view->version.number);
        HTML(out, "<h2>Lineage</h2><section class=\"panel\">");
        mlo_piece_lineage(out, view->project, name, view->lineage);
        HTML(out, "</section>");
    }
    if (view->variants)
        MLO_TRY(mlo_piece_comments(req, &view->version, err));
    if (view->variants && mlo_principal_most(&req->who) >= MLO_PROMOTER)
        promote_form(req, view);
    HTML(out, "<h2>Versions</h2><section class=\"panel\"><div class=\"scroll\" "
              "tabindex=\"0\"><table><thead><tr><th>Version</th>"
              "<th>Description</th><th class=\"n\">Variants</th><th>Manifest</th><th>By</th><th "
              "class=\"n\">Uploaded</th>"
              "</tr></thead><tbody>");
    version_rows(out, view);
    HTML(out, "</tbody></table></div>");
    mlo_piece_next(req, view->versions);
    HTML(out, "</section>");
out:
    return status;
}

enum mlo_status page_model(struct mlo_request *req, struct mlo_error *err)
{
    struct model_view view = {.project = mlo_request_param(req, "p"), .model = mlo_request_param(req, "m")};
    struct mlo_page page;
    int64_t number;
    char title[256];
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_query_i64(req, "version", 0, 1, INT64_MAX, &number, err));
    MLO_TRY(mlo_request_model(req, &view.project_id, &view.model_id, err));
    MLO_TRY(mlo_model_get(req->conn, view.model_id, &view.about, err));
    MLO_TRY(mlo_stage_list(req->conn, view.model_id, &view.stages, err));
    MLO_TRY(mlo_db_settle(req->conn, err)); /* forms name its generations */
    MLO_TRY(mlo_version_list(req->conn, view.model_id, &page, &view.versions, err));
    status = mlo_version_find(req->conn, view.model_id, number, &view.version, err);
    if (status == MLO_OK) {
        MLO_TRY(mlo_view_variants(req->conn, view.version.id, &view.variants, err));
        status = mlo_lineage_get(req->conn, view.project_id, &view.version.artifact, &view.lineage, err);
        if (status != MLO_OK && status != MLO_ENOTFOUND) /* nothing was derived yet: no picture */
            goto out;
        MLO_TRY(find_targets(req, &view, err));
        MLO_TRY(mlo_version_facts(req->conn, view.version.id, &view.facts, err));
    } else if (status != MLO_ENOTFOUND || number) { /* a model without versions has a page, too */
        goto out;
    }
    snprintf(title, sizeof title, "%s/%s", view.project, view.model);
    mlo_page_begin(req, title, "models");
    MLO_TRY(draw(req, &view, err));
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(view.about);
    json_decref(view.stages);
    json_decref(view.variants);
    json_decref(view.versions);
    json_decref(view.lineage);
    json_decref(view.facts);
    return status;
}

enum mlo_status page_artifact(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_view_artifact(req, err);
}
