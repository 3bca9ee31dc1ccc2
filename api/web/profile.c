/* How a variant ran when it was benchmarked last: which node runs how, why not in integers, and where the
 * time went. */
#include <stdlib.h>
#include <string.h>

#include "api/web/web_impl.h"

enum { PROFILE_MAX = 4 << 20, REPORT_MAX = 8 << 20, BARS = 12, ROWS = 100, SHARES = 64 };
enum { LABEL_W = 230, BAR_W = 300, ROW_H = 24, VALUE_W = 130 };

/* --- reading ------------------------------------------------------------------------------------------- */

#define FORMAT "mlopt-profile-1"

static enum mlo_status read_blob(struct mlo_request *req, const char *digest, size_t most, const char *what,
                                 json_t **out, struct mlo_error *err)
{
    struct mlo_digest parsed;
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    if (!mlo_digest_parse(digest, &parsed))
        return mlo_error_set(err, MLO_EINVAL, "%s has no digest", what);
    MLO_TRY(mlo_request_blob(req, &parsed, most, &text, err));
    MLO_TRY(mlo_json_parse(mlo_buf_str(&text), text.len, what, out, err));
out:
    mlo_buf_clear(&text);
    return status;
}

/* The newest measurement of where the time goes; NULL: there is none. Borrowed. */
static const json_t *newest(const json_t *variant)
{
    const json_t *row, *best = NULL;
    size_t i;
    json_array_foreach(
        json_object_get(variant, "evidence"), i,
        row) if (strcmp(mlo_text(row, "metric"), "profile.total") == 0 && mlo_text(row, "samples")[0] &&
                 (!best || mlo_json_i64(row, "id", 0) > mlo_json_i64(best, "id", 0))) best = row;
    return best;
}

static enum mlo_status read_profile(struct mlo_request *req, const json_t *measured, json_t **out,
                                    struct mlo_error *err)
{
    enum mlo_status status =
        read_blob(req, mlo_text(measured, "samples"), PROFILE_MAX, "the profile", out, err);
    if (status != MLO_OK || strcmp(mlo_text(*out, "format"), FORMAT) == 0)
        return status;
    json_decref(*out);
    *out = NULL;
    mlo_error_set(err, MLO_EINVAL, "what was recorded as the profile is not of the format " FORMAT);
    mlo_error_hint(err, "benchmark the variant again: the step \"- benchmark: {}\" of a recipe");
    return MLO_EINVAL;
}

/* {"node": why it is not in integers} as the variant's report says; {} without one. */
static enum mlo_status read_reasons(struct mlo_request *req, json_t **out, struct mlo_error *err)
{
    struct mlo_report_blob found;
    json_t *report = NULL, *node;
    char text[MLO_DIGEST_TEXT_SIZE];
    size_t i;
    enum mlo_status status;
    *out = json_object();
    status = mlo_view_report(req, &found, err);
    if (status == MLO_ENOTFOUND) /* none was made */
        return MLO_OK;
    MLO_TRY(status);
    MLO_TRY(read_blob(req, mlo_digest_text(&found.blob, text), REPORT_MAX, "the report", &report, err));
    json_array_foreach(json_object_get(json_object_get(report, "precision"), "nodes"), i,
                       node) if (mlo_text(node, "why")[0])
        json_object_set(*out, mlo_text(node, "node"), json_object_get(node, "why"));
    else if (strcmp(mlo_text(node, "runs_in"), "integer") == 0)
        json_object_set_new(*out, mlo_text(node, "node"),
                            json_string("in integers in the file; this engine computes it in floats here"));
out:
    json_decref(report);
    return status;
}

/* The page shows all else: only what would fail it as well fails here. */
static enum mlo_status or_say(enum mlo_status status, struct mlo_error *why, struct mlo_error *err)
{
    if (status != MLO_ENOMEM)
        return MLO_OK;
    if (err)
        *err = *why;
    return status;
}

enum mlo_status mlo_page_profile(struct mlo_request *req, const json_t *variant, struct mlo_profile_view *out,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    *out = (struct mlo_profile_view){.measured = newest(variant)};
    if (!out->measured)
        return MLO_OK;
    MLO_TRY(or_say(read_profile(req, out->measured, &out->profile, &out->no_profile), &out->no_profile, err));
    if (out->profile)
        MLO_TRY(or_say(read_reasons(req, &out->reasons, &out->no_reasons), &out->no_reasons, err));
out:
    return status;
}

void mlo_profile_view_clear(struct mlo_profile_view *view)
{
    json_decref(view->profile);
    json_decref(view->reasons);
    *view = (struct mlo_profile_view){0};
}

/* --- drawing ------------------------------------------------------------------------------------------- */

struct share {
    const char *op, *impl, *precision;
    int nodes;
    double us;
};

static int shares_by_time(const void *a, const void *b)
{
    double x = ((const struct share *)a)->us, y = ((const struct share *)b)->us;
    return (x < y) - (x > y);
}

static double percent(double us, double total)
{
    return total > 0 ? 100 * us / total : 0;
}

/* What the nodes of one kind, computed in one way, take together. */
static void shares_table(struct mlo_buf *out, const json_t *nodes, double total)
{
    struct share shares[SHARES];
    size_t count = 0, i, k;
    json_t *node;
    json_array_foreach((json_t *)nodes, i, node)
    {
        const char *op = mlo_text(node, "op"), *impl = mlo_text(node, "impl"),
                   *precision = mlo_text(node, "precision");
        for (k = 0; k < count; k++)
            if (strcmp(shares[k].op, op) == 0 && strcmp(shares[k].impl, impl) == 0 &&
                strcmp(shares[k].precision, precision) == 0)
                break;
        if (k == SHARES)
            continue;
        if (k == count)
            shares[count++] = (struct share){op, impl, precision, 0, 0};
        shares[k].nodes++;
        shares[k].us += mlo_json_f64(node, "us", 0);
    }
    qsort(shares, count, sizeof *shares, shares_by_time);
    HTML(out,
         "<div class=\"scroll\" tabindex=\"0\"><table "
         "id=\"shares\"><thead><tr><th>Op</th><th>Implementation</th><th>Precision</th>"
         "<th class=\"n\">Nodes</th><th class=\"n\">Time</th><th class=\"n\">Share</th></tr></thead><tbody>");
    for (i = 0; i < count; i++) {
        HTML(out, "<tr><td>%s</td><td>%s</td><td>%s</td><td class=\"n\">%d</td><td class=\"n\">",
             shares[i].op, shares[i].impl, shares[i].precision, shares[i].nodes);
        mlo_piece_us(out, shares[i].us);
        HTML(out, "</td><td class=\"n\">%.1f&nbsp;%%</td></tr>", percent(shares[i].us, total));
    }
    HTML(out, "</tbody></table></div>");
}

static int nodes_by_time(const void *a, const void *b)
{
    double x = mlo_json_f64(*(json_t *const *)a, "us", 0), y = mlo_json_f64(*(json_t *const *)b, "us", 0);
    return (x < y) - (x > y);
}

/* The class of a bar; the words stand beside it. */
static const char *look(const json_t *node)
{
    const char *precision = mlo_text(node, "precision");
    return strstr(precision, "int8") ? "ints" : strstr(precision, "16") ? "half" : "floats";
}

/* The slowest nodes as bars. */
static void bars(struct mlo_buf *out, json_t *const *sorted, size_t count, double total)
{
    double most = count ? mlo_json_f64(sorted[0], "us", 0) : 0;
    int height = (int)MLO_MIN(count, (size_t)BARS) * ROW_H + 4;
    if (count < 2 || !(most > 0))
        return;
    HTML(out,
         "<h3 class=\"chart\">The slowest nodes</h3><div class=\"scroll\" tabindex=\"0\" role=\"group\" "
         "aria-label=\"The slowest nodes\"><svg class=\"profile\" width=\"%d\" height=\"%d\" role=\"img\" "
         "aria-label=\"The slowest nodes; the table below says the same\">",
         LABEL_W + BAR_W + VALUE_W, height);
    for (size_t i = 0; i < count && i < BARS; i++) {
        double us = mlo_json_f64(sorted[i], "us", 0);
        const char *node = mlo_text(sorted[i], "node");
        int y = (int)i * ROW_H;
        size_t length = strlen(node), cut = length > 30 ? length - 29 : 0;
        while (((unsigned char)node[cut] & 0xc0) == 0x80)
            cut++;
        HTML(out, "<text class=\"name\" x=\"%d\" y=\"%d\">%s%s<title>%s</title></text>", LABEL_W - 8, y + 16,
             cut ? "…" : "", node[0] ? node + cut : mlo_text(sorted[i], "op"), node);
        HTML(out, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>",
             look(sorted[i]), LABEL_W, y + 4, MLO_MAX(us / most * BAR_W, 1.0), ROW_H - 8);
        HTML(out, "<text class=\"took\" x=\"%.1f\" y=\"%d\">%.1f %%, %s</text>",
             LABEL_W + us / most * BAR_W + 6, y + 16, percent(us, total), mlo_text(sorted[i], "precision"));
    }
    HTML(out, "</svg></div>");
}

static void node_row(struct mlo_buf *out, const struct mlo_profile_view *view, const json_t *node,
                     double total)
{
    const json_t *fused = json_object_get(node, "fused"), *part;
    const char *name = mlo_text(node, "node"), *why = mlo_text(view->reasons, name);
    size_t i;
    HTML(out, "<tr><td class=\"node\"><code>%s</code>", name);
    if (json_array_size(fused)) {
        HTML(out, "<br><small>with");
        json_array_foreach((json_t *)fused, i, part)
            HTML(out, "%s %s", i ? "," : "", json_string_value(part));
        HTML(out, "</small>");
    }
    HTML(out, "</td><td>%s</td><td>%s</td><td>%s</td><td class=\"n\">", mlo_text(node, "op"),
         mlo_text(node, "impl"), mlo_text(node, "precision"));
    mlo_piece_us(out, mlo_json_f64(node, "us", 0));
    HTML(out, "</td><td class=\"n\">%.1f&nbsp;%%</td><td class=\"why\">%s</td></tr>",
         percent(mlo_json_f64(node, "us", 0), total), strstr(mlo_text(node, "precision"), "int8") ? "" : why);
}

void mlo_piece_profile(struct mlo_request *req, const struct mlo_profile_view *view, long long version,
                       const char *name)
{
    struct mlo_buf *out = &req->out;
    const json_t *nodes = json_object_get(view->profile, "nodes");
    size_t count = json_array_size(nodes);
    double total = mlo_json_f64(view->profile, "total_us", 0);
    json_t **sorted = calloc(count + 1, sizeof *sorted);
    if (view->no_profile.message[0])
        HTML(
            out,
            "<h2>Plan and profile</h2><section class=\"panel\" id=\"profile\"><p class=\"empty\">Its profile "
            "cannot be shown: %s</p></section>",
            view->no_profile.message);
    if (!view->profile || !sorted) {
        free(sorted);
        return;
    }
    for (size_t i = 0; i < count; i++)
        sorted[i] = json_array_get(nodes, i);
    qsort(sorted, count, sizeof *sorted, nodes_by_time);
    HTML(out, "<h2>Plan and profile</h2><section class=\"panel\" id=\"profile\"><p>How it ran when it was "
              "benchmarked last: ");
    mlo_piece_params(out, json_object_get(view->measured, "params"));
    HTML(out, ", on %s by %s. %lld of %zu steps in int8; all of them together take ",
         mlo_text(view->measured, "machine_class"), mlo_text(view->measured, "engine"),
         (long long)mlo_json_i64(view->profile, "int8_nodes", 0),
         count + (size_t)mlo_json_i64(view->profile, "left_out", 0));
    mlo_piece_us(out, total);
    HTML(out, ".</p>");
    if (view->no_reasons.message[0])
        HTML(out, "<p class=\"muted\">Why a node is not in integers cannot be said: %s</p>",
             view->no_reasons.message);
    shares_table(out, nodes, total);
    bars(out, sorted, count, total);
    HTML(out,
         "<details><summary>Every node: how it runs, and why it is not in integers</summary><div "
         "class=\"scroll\" tabindex=\"0\">"
         "<table id=\"nodes\"><thead><tr><th>Node</th><th>Op</th><th>Implementation</th><th>Precision</th>"
         "<th class=\"n\">Time</th><th class=\"n\">Share</th><th>Why no integers</th></tr></thead><tbody>");
    /* in the order of the plan, unless these would be too many: then the slowest */
    for (size_t i = 0; i < count && i < ROWS; i++)
        node_row(out, view, count > ROWS ? sorted[i] : json_array_get(nodes, i), total);
    HTML(out, "</tbody></table></div>");
    if (count > ROWS)
        HTML(out, "<p class=\"muted\">The slowest %d of %zu.</p>", ROWS, count);
    HTML(out, "</details><p><a href=\"/profile/%s/%s/%lld/%s\">All of it as JSON</a></p></section>",
         mlo_request_param(req, "p"), mlo_request_param(req, "m"), version, name);
    free(sorted);
}

enum mlo_status page_profile_json(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info version;
    json_t *variants = NULL, *profile = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_version(req, &version, err));
    MLO_TRY(mlo_view_variants(req->conn, version.id, &variants, err));
    const json_t *measured = newest(mlo_page_variant_named(variants, mlo_request_param(req, "name")));
    if (measured)
        MLO_TRY(read_profile(req, measured, &profile, err));
    if (!profile) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "the variant '%.100s' has no profile",
                               mlo_request_param(req, "name"));
        mlo_error_hint(err,
                       "benchmark it: the step \"- benchmark: {}\" of a recipe measures where the time goes");
        goto out;
    }
    status = mlo_reply_json(req, 200, profile, err);
    profile = NULL;
out:
    json_decref(profile);
    json_decref(variants);
    return status;
}
