/* Facts of a version, and finding versions by them. */
#include <string.h>

#include "api/web/web_impl.h"

static void fact_rows(struct mlo_buf *out, const char *what, const json_t *values)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)values, name, value)
    {
        HTML(out, "<tr><td>%s</td><td>%s</td><td class=\"n\">", what, name);
        if (json_is_string(value)) {
            HTML(out, "%s", json_string_value(value));
        } else {
            struct mlo_buf text = MLO_BUF_INIT;
            mlo_json_canonical(value, &text);
            HTML(out, "%s", mlo_buf_str(&text));
            mlo_buf_clear(&text);
        }
        HTML(out, "</td></tr>");
    }
}

/* Other models that it comes from: members, and what they are to it. */
static const char *const MODELS[][2] = {{"teacher", "Distilled from"}, {"derived_from", "Fine-tuned from"}};

void mlo_piece_facts(struct mlo_buf *out, const json_t *facts)
{
    const json_t *code = json_object_get(facts, "code");
    json_t *item;
    size_t i;
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table id=\"facts\"><tbody>");
    if (code) {
        HTML(out, "<tr><td>Code</td><td>%s</td><td class=\"n\"><code>%s</code>%s</td></tr>",
             mlo_text(code, "remote"), mlo_text(code, "commit"),
             mlo_json_bool(code, "dirty", false) ? ", changed since" : "");
    }
    json_array_foreach(json_object_get(facts, "datasets"), i, item)
    {
        HTML(out, "<tr><td>Trained on</td><td>%s@%lld</td><td class=\"n\">", mlo_text(item, "name"),
             (long long)mlo_json_i64(item, "version", 0));
        mlo_piece_digest(out, mlo_text(item, "digest"));
        HTML(out, "</td></tr>");
    }
    for (size_t k = 0; k < MLO_COUNT(MODELS); k++) {
        if (!(item = json_object_get(facts, MODELS[k][0])))
            continue;
        HTML(out, "<tr><td>%s</td><td>%s@%lld/%s</td><td class=\"n\">", MODELS[k][1], mlo_text(item, "name"),
             (long long)mlo_json_i64(item, "version", 0), mlo_text(item, "variant"));
        mlo_piece_digest(out, mlo_text(item, "digest"));
        HTML(out, "</td></tr>");
    }
    fact_rows(out, "Metric", json_object_get(facts, "metrics"));
    fact_rows(out, "Parameter", json_object_get(facts, "params"));
    fact_rows(out, "Tag", json_object_get(facts, "tags"));
    if (json_object_get(facts, "licence"))
        HTML(out, "<tr><td>Licence</td><td></td><td class=\"n\">%s</td></tr>", mlo_text(facts, "licence"));
    HTML(out, "</tbody></table></div>");
}

/* "val/top1 0.913, team vision": as many as fit a line. */
static void brief(struct mlo_buf *out, const json_t *facts, const char *member, size_t most)
{
    const char *name;
    json_t *value;
    size_t n = 0;
    json_object_foreach(json_object_get(facts, member), name, value)
    {
        if (n++ == most) {
            HTML(out, " …");
            break;
        }
        if (json_is_string(value))
            HTML(out, "%s%s <b>%s</b>", n > 1 ? ", " : "", name, json_string_value(value));
        else
            HTML(out, "%s%s <b>%.6g</b>", n > 1 ? ", " : "", name, json_number_value(value));
    }
}

static void found_rows(struct mlo_buf *out, const json_t *items)
{
    json_t *item;
    size_t i;
    json_array_foreach((json_t *)items, i, item)
    {
        const json_t *facts = json_object_get(item, "facts");
        long long number = (long long)mlo_json_i64(item, "version", 0);
        HTML(out, "<tr><td><a href=\"/models/%s/%s?version=%lld\"><b>%s@%lld</b></a></td><td>",
             mlo_text(item, "project"), mlo_text(item, "model"), number, mlo_text(item, "model"), number);
        mlo_piece_digest(out, mlo_text(json_object_get(facts, "code"), "commit"));
        HTML(out, "</td><td>");
        brief(out, facts, "metrics", 4);
        HTML(out, "</td><td>");
        brief(out, facts, "tags", 5);
        HTML(out, "</td><td class=\"n\">");
        mlo_piece_time(out, mlo_json_str(item, "created_at", NULL));
        HTML(out, "</td></tr>");
    }
}

enum mlo_status page_search(struct mlo_request *req, struct mlo_error *err)
{
    const char *filter = mlo_request_query(req, "filter"), *order = mlo_request_query(req, "order"),
               *project = mlo_request_param(req, "p");
    struct mlo_buf *out = &req->out;
    struct mlo_search search = {.filter = filter, .order = order};
    struct mlo_error wrong = {0};
    struct mlo_page page;
    json_t *found = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_project(req, &search.project_id, err));
    status = mlo_version_search(req->conn, &search, &page, &found, &wrong);
    if (status != MLO_OK && status != MLO_EINVAL && status != MLO_ENOTFOUND) {
        if (err)
            *err = wrong;
        return status;
    }
    mlo_page_begin(req, "Search", "models");
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/\">Models</a> / %s</p><h1>Versions of %s</h1><form "
         "class=\"filters\" "
         "method=\"get\"><label class=\"wide\">Filter<input type=\"search\" name=\"filter\" value=\"%s\" "
         "placeholder=\"tag.team = vision and metric.val/top1 &gt;= 0.9\"></label><label>Order<input "
         "name=\"order\" value=\"%s\" placeholder=\"created:desc\"></label><button>Search</button></form>"
         "<section class=\"panel\">",
         project, project, filter ? filter : "", order ? order : "");
    if (status != MLO_OK) {
        HTML(out, "<p class=\"empty\">%s (%s)</p>", wrong.message, wrong.where);
        if (wrong.hint[0])
            HTML(out, "<p class=\"muted\">%s</p>", wrong.hint);
    } else {
        const json_t *items = json_object_get(found, "items");
        HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table "
                  "id=\"found\"><thead><tr><th>Version</th><th>Commit</th>"
                  "<th>Metrics</th><th>Tags</th><th class=\"n\">Uploaded</th></tr></thead><tbody>");
        found_rows(out, items);
        HTML(out, "</tbody></table></div>");
        if (!json_array_size(items))
            HTML(out, "<p class=\"empty\">%s</p>",
                 json_is_null(json_object_get(found, "next"))
                     ? "No version fits."
                     : "None of those looked at fits; there are more.");
        mlo_piece_next(req, found);
    }
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, status == MLO_OK ? 200 : mlo_status_info(status)->http, err));
out:
    json_decref(found);
    return status;
}
