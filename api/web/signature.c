/* What a version takes and gives, as a worker read it. */
#include <string.h>

#include "api/web/web_impl.h"

/* "float32 [N, 1, 28, 28]". */
static void type_text(struct mlo_buf *out, const json_t *value)
{
    const json_t *shape = json_object_get(value, "shape"), *dim;
    size_t i;
    HTML(out, "<code>%s", mlo_json_str(value, "type", "unknown"));
    if (json_is_array(shape)) {
        HTML(out, " [");
        json_array_foreach((json_t *)shape, i, dim)
        {
            if (json_is_integer(dim))
                HTML(out, "%s%lld", i ? ", " : "", (long long)json_integer_value(dim));
            else
                HTML(out, "%s%s", i ? ", " : "", json_is_string(dim) ? json_string_value(dim) : "any");
        }
        HTML(out, "]");
    } else {
        HTML(out, ", any shape");
    }
    HTML(out, "</code>%s", mlo_json_bool(value, "optional", false) ? " optional" : "");
}

static void rows(struct mlo_buf *out, const char *kind, const json_t *list)
{
    const json_t *value;
    size_t i;
    json_array_foreach((json_t *)list, i, value)
    {
        HTML(out, "<tr><td>%s</td><td><b>%s</b></td><td>", kind, mlo_text(value, "name"));
        type_text(out, value);
        HTML(out, "</td></tr>");
    }
}

enum mlo_status mlo_piece_signature(struct mlo_request *req, const struct mlo_version_info *version,
                                    struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    struct mlo_db_conn *conn;
    json_t *found = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_signature_get(conn, version->id, &version->artifact, &found, err));
    const json_t *read = json_object_get(found, "read"), *declared = json_object_get(found, "declared");
    const json_t *shown = json_is_object(read) ? read : declared;
    const json_t *labels = json_object_get(shown, "labels");
    if (!json_is_object(shown))
        goto out;
    HTML(out, "<h2>What version %lld takes and gives</h2><section class=\"panel\">",
         (long long)version->number);
    if (mlo_text(found, "difference")[0])
        HTML(out, "<p><span class=\"badge bad\">differs</span> %s</p>", mlo_text(found, "difference"));
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table "
              "id=\"signature\"><thead><tr><th></th><th>Name</th><th>Type and "
              "shape</th></tr></thead><tbody>");
    rows(out, "input", json_object_get(shown, "inputs"));
    rows(out, "output", json_object_get(shown, "outputs"));
    HTML(out, "</tbody></table></div><p class=\"muted\">");
    if (json_is_object(labels))
        HTML(out, "%lld labels. ", (long long)mlo_json_i64(labels, "count", 0));
    if (json_is_object(read) && mlo_text(found, "worker")[0]) {
        HTML(out, "Read by worker %s at ", mlo_text(found, "worker"));
        mlo_piece_time(out, mlo_text(found, "read_at"));
        HTML(out, ".</p></section>");
    } else if (json_is_object(read))
        HTML(out, "Read by a worker.</p></section>"); /* for another project: no more is told */
    else if (mlo_json_bool(found, "too_large", false))
        HTML(out, "As declared at the push; what a worker read is too large to be kept.</p></section>");
    else
        HTML(out, "As declared at the push; no worker has read it yet.</p></section>");
out:
    json_decref(found);
    return status;
}
