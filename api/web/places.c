/* Projects with what belongs to each, and datasets. */
#include <string.h>

#include "api/web/web_impl.h"

typedef enum mlo_status list_fn(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                const struct mlo_page *page, json_t **out, struct mlo_error *err);

/* The page of a list that the request asks for. */
static enum mlo_status read_list(struct mlo_request *req, list_fn *list, json_t **out, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    struct mlo_page page;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(list(conn, &actor, &page, out, err));
out:
    return status;
}

/* Those that the token may see. */
static enum mlo_status list_datasets(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                     const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    return mlo_dataset_list(conn, actor, actor->project_id, page, out, err);
}

enum mlo_status page_projects(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    json_t *projects = NULL, *item;
    bool all = req->who.project_id == 0;
    size_t i;
    enum mlo_status status;
    MLO_TRY(read_list(req, mlo_project_list, &projects, err));
    mlo_page_begin(req, "Projects", "projects");
    HTML(out, "<h1>Projects</h1><p class=\"links\"><a href=\"/datasets\">Datasets</a>");
    if (all)
        HTML(out, " <a href=\"/workers\">Workers</a>");
    if (all && req->who.role >= MLO_ADMIN)
        HTML(out, " <a href=\"/tokens\">Tokens</a>");
    HTML(out, "</p><section class=\"panel\"><div class=\"scroll\" tabindex=\"0\"><table "
              "id=\"projects\"><thead><tr><th>Project</th>"
              "<th class=\"n\">Models</th><th class=\"n\">Datasets</th><th "
              "class=\"n\">Since</th><th></th></tr></thead><tbody>");
    json_array_foreach(json_object_get(projects, "items"), i, item)
    {
        const char *name = mlo_text(item, "name");
        HTML(out, "<tr><td><b>%s</b>", name);
        if (mlo_text(item, "description")[0])
            HTML(out, "<br><small>%s</small>", mlo_text(item, "description"));
        HTML(out, "</td><td class=\"n\">%lld</td><td class=\"n\">%lld</td><td class=\"n\">",
             (long long)mlo_json_i64(item, "models", 0), (long long)mlo_json_i64(item, "datasets", 0));
        mlo_piece_time(out, mlo_json_str(item, "created_at", NULL));
        HTML(out,
             "</td><td class=\"nowrap\"><a href=\"/search/%s\">Search</a> · <a href=\"/usage/%s\">Queue and "
             "usage</a> · "
             "<a href=\"/schedules/%s\">Schedules</a> · <a href=\"/audit/%s\">Audit log</a> · "
             "<a href=\"/members/%s\">Members</a></td></tr>",
             name, name, name, name, name);
    }
    HTML(out, "</tbody></table></div>");
    if (!json_array_size(json_object_get(projects, "items")))
        HTML(out,
             "<p class=\"empty\">No project yet. The first upload makes one:</p><pre>mlopt push fashion/cnn "
             "model.onnx</pre>");
    mlo_piece_next(req, projects);
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(projects);
    return status;
}

enum mlo_status page_datasets(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    json_t *sets = NULL, *item;
    size_t i;
    enum mlo_status status;
    MLO_TRY(read_list(req, list_datasets, &sets, err));
    mlo_page_begin(req, "Datasets", "projects");
    HTML(out, "<p class=\"eyebrow\"><a href=\"/projects\">Projects</a></p><h1>Datasets</h1><section "
              "class=\"panel\">");
    if (json_array_size(json_object_get(sets, "items"))) {
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><table id=\"datasets\"><thead><tr><th>Dataset</th><th "
             "class=\"n\">Version</th>"
             "<th class=\"n\">Size</th><th>Digest</th><th>By</th><th class=\"n\">Uploaded</th><th>About "
             "it</th></tr>"
             "</thead><tbody>");
        json_array_foreach(json_object_get(sets, "items"), i, item)
        {
            HTML(out, "<tr><td>%s/<b>%s</b>", mlo_text(item, "project"), mlo_text(item, "dataset"));
            if (mlo_text(item, "description")[0])
                HTML(out, "<br><small>%s</small>", mlo_text(item, "description"));
            HTML(out, "</td><td class=\"n\">%lld</td><td class=\"n\">",
                 (long long)mlo_json_i64(item, "version", 0));
            mlo_piece_size(out, json_object_get(item, "size"));
            HTML(out, "</td><td>");
            mlo_piece_digest(out, mlo_text(item, "digest"));
            HTML(out, "</td><td>%s</td><td class=\"n\">", mlo_text(item, "created_by"));
            mlo_piece_time(out, mlo_json_str(item, "created_at", NULL));
            HTML(out, "</td><td>");
            if (json_object_size(json_object_get(item, "metadata"))) {
                HTML(out, "<details><summary>Metadata</summary>");
                mlo_piece_json(out, json_object_get(item, "metadata"), 800);
                HTML(out, "</details>");
            }
            HTML(out, "</td></tr>");
        }
        HTML(out, "</tbody></table></div>");
    } else {
        HTML(out, "<p class=\"empty\">No dataset yet. Upload one:</p><pre>mlopt data push fashion/test "
                  "test.npz</pre>");
    }
    mlo_piece_next(req, sets);
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(sets);
    return status;
}
