/* One variant with all that was measured of it, and several of a model side by side. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/web/web_impl.h"

enum { COMPARED_MAX = 5, VERSIONS_OFFERED = 5, OPTIONS_MAX = 100 };

/* --- one variant -----------------------------------------------------------------------------------------
 */

/* A number in its unit: fractions of right answers as percent, microseconds as time. */
static void measured(struct mlo_buf *out, const json_t *row, const char *key)
{
    double value = mlo_json_f64(row, key, NAN);
    if (isnan(value))
        HTML(out, "–");
    else if (strcmp(mlo_text(row, "unit"), "us") == 0)
        mlo_piece_us(out, value);
    else if (mlo_str_starts(mlo_text(row, "metric"), "top"))
        HTML(out, "%.2f&nbsp;%%", 100 * value);
    else if (strcmp(mlo_text(row, "unit"), "bytes") == 0 && value >= 0 && value < 1e18) {
        char size[32];
        HTML(out, "%s", mlo_str_size((uint64_t)value, size));
    } else
        HTML(out, "%.5g%s", value, strcmp(mlo_text(row, "unit"), "samples/s") == 0 ? " samples/s" : "");
}

static void interval(struct mlo_buf *out, const json_t *row)
{
    measured(out, row, "value");
    const json_t *low = json_object_get(row, "low"), *high = json_object_get(row, "high");
    if (!json_is_number(low) || !json_is_number(high) || json_equal(low, high))
        return;
    HTML(out, "<br><small>");
    measured(out, row, "low");
    HTML(out, " … ");
    measured(out, row, "high");
    HTML(out, "</small>");
}

static void against(struct mlo_buf *out, const json_t *row)
{
    const char *how = mlo_text(row, "comparison");
    double value = mlo_json_f64(row, "comparison_value", NAN), low = mlo_json_f64(row, "comparison_low", NAN),
           high = mlo_json_f64(row, "comparison_high", NAN);
    if (!how[0] || isnan(value)) {
        HTML(out, "<span class=\"muted\">–</span>");
        return;
    }
    bool points = strcmp(how, "difference") == 0 && mlo_str_starts(mlo_text(row, "metric"), "top");
    double unit = points ? 100 : 1; /* of right answers: percentage points */
    HTML(out, "%s %.4g%s", how, unit * value, points ? " pt" : "");
    if (!isnan(low) && !isnan(high) && low != high)
        HTML(out, "<br><small>%.4g … %.4g</small>", unit * low, unit * high);
}

static void evidence_rows(struct mlo_buf *out, const char *project, const json_t *variant)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(variant, "evidence"), i, row)
    {
        long long run = (long long)mlo_json_i64(row, "run_id", 0);
        HTML(out, "<tr><td><b>%s</b><br><small>", mlo_text(row, "metric"));
        mlo_piece_params(out, json_object_get(row, "params"));
        HTML(out, "</small></td><td class=\"n\">");
        interval(out, row);
        HTML(out, "</td><td class=\"n\">%lld</td><td class=\"n\">", (long long)mlo_json_i64(row, "n", 0));
        against(out, row);
        HTML(out, "</td><td>%s</td><td>%s<br><small>%s</small></td><td>%s</td><td class=\"n\">",
             mlo_text(row, "dataset_name")[0] ? mlo_text(row, "dataset_name") : "–", mlo_text(row, "engine"),
             mlo_text(row, "machine_class"), mlo_text(row, "protocol"));
        if (run)
            HTML(out, "<a href=\"/runs/%s/%lld\">#%lld</a><br>", project, run, run);
        mlo_piece_time(out, mlo_json_str(row, "at", NULL));
        HTML(out, "</td></tr>");
    }
}

static void plan_rows(struct mlo_buf *out, const json_t *variant)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(variant, "plans"), i, row)
    {
        HTML(out, "<tr><td>%s</td><td>%s</td><td class=\"n\">", mlo_text(row, "machine_class"),
             mlo_text(row, "made_for"));
        mlo_piece_size(out, json_object_get(row, "size"));
        HTML(out, "</td><td>");
        mlo_piece_digest(out, mlo_text(row, "blob"));
        HTML(out, "</td><td>");
        mlo_piece_digest(out, mlo_text(row, "signer"));
        HTML(out, "</td><td class=\"n\">");
        mlo_piece_time(out, mlo_json_str(row, "made_at", NULL));
        HTML(out, "</td></tr>");
    }
}

static void history_rows(struct mlo_buf *out, const char *project, const json_t *history)
{
    const json_t *row;
    size_t i;
    json_array_foreach((json_t *)history, i, row)
    {
        long long run = (long long)mlo_json_i64(row, "run_id", 0);
        HTML(out, "<tr><td>");
        mlo_piece_digest(out, mlo_text(row, "artifact"));
        HTML(out, "</td><td class=\"n\">");
        mlo_piece_size(out, json_object_get(row, "size"));
        HTML(out, "</td><td>");
        mlo_piece_digest(out, mlo_json_str(row, "derivation", NULL));
        HTML(out, "</td><td>");
        if (run)
            HTML(out, "<a href=\"/runs/%s/%lld\">#%lld</a> ", project, run, run);
        HTML(out, "%s</td><td class=\"n\">", mlo_text(row, "named_by"));
        mlo_piece_time(out, mlo_json_str(row, "named_at", NULL));
        HTML(out, "</td></tr>");
    }
}

static void draw_variant(struct mlo_request *req, const struct mlo_version_info *version,
                         const json_t *variant, const json_t *history, const json_t *lineage,
                         const struct mlo_profile_view *profile)
{
    const char *p = mlo_request_param(req, "p"), *m = mlo_request_param(req, "m"),
               *name = mlo_text(variant, "variant");
    struct mlo_buf *out = &req->out;
    long long v = (long long)version->number;
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/\">Models</a> / <a "
         "href=\"/models/%s/%s?version=%lld\">%s/%s@%lld</a></p>",
         p, m, v, p, m, v);
    HTML(out, "<h1>%s</h1><section class=\"panel\"><dl class=\"facts\"><div><dt>Artifact</dt><dd>", name);
    mlo_piece_digest(out, mlo_text(variant, "artifact"));
    HTML(out, "</dd></div><div><dt>Size</dt><dd>");
    mlo_piece_size(out, json_object_get(variant, "size"));
    if (!isnan(mlo_json_f64(variant, "size_ratio", NAN)))
        HTML(out, " <small>%.2f× the source</small>", mlo_json_f64(variant, "size_ratio", NAN));
    HTML(out, "</dd></div><div><dt>Accuracy</dt><dd>");
    mlo_piece_accuracy(out, json_object_get(variant, "accuracy"));
    HTML(out, "</dd></div><div><dt>Derivation</dt><dd>");
    mlo_piece_digest(out, mlo_json_str(variant, "derivation", NULL));
    if (mlo_text(variant, "step")[0])
        HTML(out, " <small>by %s</small>", mlo_text(variant, "step"));
    HTML(out, "</dd></div></dl><p class=\"links\">");
    if (json_array_size(json_object_get(variant, "reports")) > 0)
        HTML(out, "<a href=\"/report/%s/%s/%lld/%s\">Report</a> ", p, m, v, name);
    HTML(out, "<a href=\"/artifact/%s/%s/%lld/%s\" download>Download</a> ", p, m, v, name);
    HTML(out, "<a href=\"/compare/%s/%s?a=%lld/source&amp;b=%lld/%s\">Compare</a></p></section>", p, m, v, v,
         name);

    HTML(out, "<h2>Evidence</h2><section class=\"panel\">");
    if (json_array_size(json_object_get(variant, "evidence"))) {
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><table id=\"evidence\"><thead><tr><th>Metric</th><th "
             "class=\"n\">Value, "
             "interval</th>"
             "<th class=\"n\">Samples</th><th class=\"n\">Against the source</th><th>Data</th><th>Engine</th>"
             "<th>Protocol</th><th class=\"n\">Run, time</th></tr></thead><tbody>");
        evidence_rows(out, p, variant);
        HTML(out, "</tbody></table></div>");
    } else {
        HTML(out, "<p class=\"empty\">Nothing was measured of it yet.</p>");
    }
    HTML(out, "</section>");
    mlo_piece_profile(req, profile, v, name);
    if (json_array_size(json_object_get(variant, "plans"))) {
        HTML(out, "<h2>Plans</h2><section class=\"panel\"><div class=\"scroll\" tabindex=\"0\"><table "
                  "id=\"plans\"><thead><tr><th>Machine</th>"
                  "<th>Made for</th><th class=\"n\">Size</th><th>Digest</th><th>Signer</th><th "
                  "class=\"n\">Made</th>"
                  "</tr></thead><tbody>");
        plan_rows(out, variant);
        HTML(out, "</tbody></table></div></section>");
    }
    if (json_object_size(json_object_get(variant, "report"))) {
        HTML(out, "<h2>What the step did</h2><section class=\"panel\"><details><summary>As it was "
                  "recorded</summary>");
        mlo_piece_json(out, json_object_get(variant, "report"), 16 << 10);
        HTML(out, "</details></section>");
    }
    if (lineage) {
        char whole[480];
        snprintf(whole, sizeof whole, "%s/%s@%lld/%s", p, m, v, name);
        HTML(out, "<h2>Lineage</h2><section class=\"panel\">");
        mlo_piece_lineage(out, p, whole, lineage);
        HTML(out, "</section>");
    }
    HTML(out, "<h2>What the name pointed at</h2><section class=\"panel\"><div class=\"scroll\" "
              "tabindex=\"0\"><table "
              "id=\"names\"><thead><tr>"
              "<th>Artifact</th><th class=\"n\">Size</th><th>Derivation</th><th>By</th><th "
              "class=\"n\">Since</th></tr>"
              "</thead><tbody>");
    history_rows(out, p, history);
    HTML(out, "</tbody></table></div></section>");
}

const json_t *mlo_page_variant_named(const json_t *variants, const char *name)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)variants, i,
                       item) if (strcmp(mlo_text(item, "variant"), name) == 0) return item;
    return NULL;
}

enum mlo_status page_variant(struct mlo_request *req, struct mlo_error *err)
{
    const char *name = mlo_request_param(req, "name");
    struct mlo_version_info version;
    struct mlo_digest artifact;
    struct mlo_profile_view profile = {0};
    json_t *variants = NULL, *history = NULL, *lineage = NULL;
    char title[360];
    enum mlo_status status;
    MLO_TRY(mlo_request_version(req, &version, err));
    MLO_TRY(mlo_view_variants(req->conn, version.id, &variants, err));
    const json_t *variant = mlo_page_variant_named(variants, name);
    if (!variant) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "version %lld has no variant '%.100s'",
                               (long long)version.number, name);
        goto out;
    }
    MLO_TRY(mlo_variant_history(req->conn, version.id, name, &history, err));
    if (mlo_digest_parse(mlo_text(variant, "artifact"), &artifact)) {
        status = mlo_lineage_get(req->conn, version.project_id, &artifact, &lineage, err);
        if (status != MLO_OK && status != MLO_ENOTFOUND) /* nothing was derived: no picture */
            goto out;
    }
    MLO_TRY(mlo_page_profile(req, variant, &profile, err));
    snprintf(title, sizeof title, "%s/%s@%lld/%s", mlo_request_param(req, "p"), mlo_request_param(req, "m"),
             (long long)version.number, name);
    mlo_page_begin(req, title, "models");
    draw_variant(req, &version, variant, history, lineage, &profile);
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    mlo_profile_view_clear(&profile);
    json_decref(variants);
    json_decref(history);
    json_decref(lineage);
    return status;
}

/* --- side by side ----------------------------------------------------------------------------------------
 */

struct compared {
    const char *names[COMPARED_MAX]; /* "3/int8-cpu", as asked for */
    json_t *rows[COMPARED_MAX];      /* of `choice` */
    size_t count;
    json_t *choice; /* the variants of the newest versions, and of those that were asked for */
};

/* "3/int8-cpu" as 3 and "int8-cpu". */
static enum mlo_status parse_compared(const char *text, int64_t *version, const char **variant,
                                      struct mlo_error *err)
{
    const char *slash = strchr(text, '/');
    char digits[24] = "";
    if (slash && (size_t)(slash - text) < sizeof digits)
        snprintf(digits, sizeof digits, "%.*s", (int)(slash - text), text);
    if (!mlo_str_to_i64(digits, version) || *version < 1) {
        mlo_error_set(err, MLO_EINVAL, "'%.100s' names no variant of this model", text);
        mlo_error_hint(err, "VERSION/VARIANT, as in 1/source");
        return MLO_EINVAL;
    }
    *variant = slash + 1;
    return MLO_OK;
}

static json_t *choice_named(const json_t *choice, int64_t version, const char *variant)
{
    json_t *item;
    size_t i;
    json_array_foreach((json_t *)choice, i,
                       item) if (mlo_json_i64(item, "version", 0) == version &&
                                 strcmp(mlo_text(item, "variant"), variant) == 0) return item;
    return NULL;
}

/* The variants that are asked for as ?a=3/int8-cpu&b=…, at most five, and those that are offered: two
 * statements, however many they are. */
static enum mlo_status find_compared(struct mlo_request *req, int64_t project, int64_t model,
                                     struct compared *c, struct mlo_error *err)
{
    int64_t versions[COMPARED_MAX];
    const char *variants[COMPARED_MAX];
    enum mlo_status status;
    for (size_t i = 0; i < COMPARED_MAX; i++) {
        const char key[] = {(char)('a' + i), '\0'}, *text = mlo_request_query(req, key);
        if (!text)
            continue;
        MLO_TRY(parse_compared(text, &versions[c->count], &variants[c->count], err));
        c->names[c->count++] = text;
    }
    MLO_TRY(mlo_variant_choice(req->conn, model, versions, c->count, VERSIONS_OFFERED, &c->choice, err));
    for (size_t i = 0; i < c->count; i++) {
        c->rows[i] = choice_named(c->choice, versions[i], variants[i]);
        if (!c->rows[i]) {
            status = mlo_error_set(err, MLO_ENOTFOUND, "version %lld has no variant '%.100s'",
                                   (long long)versions[i], variants[i]);
            goto out;
        }
    }
    if (c->count)
        MLO_TRY(mlo_view_measured(req->conn, project, c->rows, c->count, err));
out:
    return status;
}

static void chooser(struct mlo_request *req, const struct compared *c)
{
    struct mlo_buf *out = &req->out;
    HTML(out, "<form class=\"filters\" method=\"get\">");
    for (size_t i = 0; i < COMPARED_MAX; i++) {
        const char *chosen = i < c->count ? c->names[i] : "";
        const json_t *item;
        size_t n;
        HTML(out, "<label>%s<select name=\"%c\"><option value=\"\">none</option>", i ? "and" : "Compare",
             (int)('a' + i));
        json_array_foreach(c->choice, n, item)
        {
            char text[160];
            if (n >= OPTIONS_MAX && item != (i < c->count ? c->rows[i] : NULL))
                continue;
            snprintf(text, sizeof text, "%lld/%s", (long long)mlo_json_i64(item, "version", 0),
                     mlo_text(item, "variant"));
            /* no value: it is the text, and twice would be 100 KB of long names */
            if (strcmp(text, chosen) == 0)
                HTML(out, "<option selected>%s</option>", text);
            else
                HTML(out, "<option>%s</option>", text);
        }
        HTML(out, "</select></label>");
    }
    HTML(out, "<button>Compare</button></form>");
    if (json_array_size(c->choice) > OPTIONS_MAX)
        HTML(out,
             "<p class=\"muted\">%zu more variants are not offered here: the page of each has a link "
             "Compare.</p>",
             json_array_size(c->choice) - OPTIONS_MAX);
}

/* One row for every metric and load: what they were measured under, and each variant's newest number. */
static bool same_measure(const json_t *a, const json_t *b)
{
    return strcmp(mlo_text(a, "metric"), mlo_text(b, "metric")) == 0 &&
           strcmp(mlo_text(a, "dataset"), mlo_text(b, "dataset")) == 0 &&
           strcmp(mlo_text(a, "engine"), mlo_text(b, "engine")) == 0 &&
           strcmp(mlo_text(a, "machine_class"), mlo_text(b, "machine_class")) == 0 &&
           json_equal(json_object_get(a, "params"), json_object_get(b, "params"));
}

static const json_t *same_in(const json_t *variant, const json_t *measure)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(variant, "evidence"), i,
                       row) if (same_measure(row, measure)) return row;
    return NULL;
}

static void measure_row(struct mlo_buf *out, const struct compared *c, const json_t *measure)
{
    const char *const about[] = {mlo_text(measure, "dataset_name"), mlo_text(measure, "machine_class")};
    HTML(out, "<tr><th scope=\"row\">%s", mlo_text(measure, "metric"));
    for (size_t i = 0; i < MLO_COUNT(about); i++)
        if (about[i][0])
            HTML(out, "<br><small>%s%s</small>", i ? "on " : "data ", about[i]);
    if (json_object_size(json_object_get(measure, "params"))) {
        HTML(out, "<br><small>");
        mlo_piece_params(out, json_object_get(measure, "params"));
        HTML(out, "</small>");
    }
    HTML(out, "</th>");
    for (size_t i = 0; i < c->count; i++) {
        const json_t *row = same_in(c->rows[i], measure);
        HTML(out, "<td class=\"n\">");
        if (row)
            interval(out, row);
        else
            HTML(out, "<span class=\"muted\">–</span>");
        HTML(out, "</td>");
    }
    HTML(out, "</tr>");
}

static void side_by_side(struct mlo_request *req, const struct compared *c)
{
    const char *p = mlo_request_param(req, "p"), *m = mlo_request_param(req, "m");
    struct mlo_buf *out = &req->out;
    json_t *plotted = json_array();
    HTML(out, "<section class=\"panel\"><div class=\"scroll\" tabindex=\"0\"><table "
              "id=\"compared\"><thead><tr><th></th>");
    for (size_t i = 0; i < c->count; i++) {
        json_t *copy = json_copy(c->rows[i]);
        json_object_set_new(copy, "variant", json_string(c->names[i]));
        json_array_append_new(plotted, copy);
        HTML(out, "<th class=\"n\"><a href=\"/variant/%s/%s/%s\">%s</a></th>", p, m, c->names[i],
             c->names[i]);
    }
    HTML(out, "</tr></thead><tbody><tr><th scope=\"row\">Size</th>");
    for (size_t i = 0; i < c->count; i++) {
        double bytes = (double)mlo_json_i64(c->rows[i], "size", 0),
               first = (double)mlo_json_i64(c->rows[0], "size", 0);
        HTML(out, "<td class=\"n\">");
        mlo_piece_size(out, json_object_get(c->rows[i], "size"));
        if (i && first > 0)
            HTML(out, "<br><small>%.2f×</small>", bytes / first);
        HTML(out, "</td>");
    }
    HTML(out, "</tr>");
    for (size_t i = 0; i < c->count; i++) {
        const json_t *row;
        size_t n;
        json_array_foreach(json_object_get(c->rows[i], "evidence"), n, row)
        {
            bool shown = strcmp(mlo_text(row, "metric"), "size") == 0; /* known of all, above */
            for (size_t before = 0; before < i && !shown; before++)
                shown = same_in(c->rows[before], row) != NULL;
            if (!shown)
                measure_row(out, c, row);
        }
    }
    HTML(out, "</tbody></table></div><p class=\"muted\"><small>Below each number its 95&nbsp;%% interval: "
              "where two "
              "intervals meet, nothing is shown to differ.</small></p>");
    mlo_piece_variant_plot(out, plotted);
    HTML(out, "</section>");
    json_decref(plotted);
}

enum mlo_status page_compare(struct mlo_request *req, struct mlo_error *err)
{
    const char *p = mlo_request_param(req, "p"), *m = mlo_request_param(req, "m");
    struct compared c = {0};
    int64_t project, model;
    char title[256];
    enum mlo_status status;
    MLO_TRY(mlo_request_model(req, &project, &model, err));
    MLO_TRY(find_compared(req, project, model, &c, err));
    snprintf(title, sizeof title, "Compare %s/%s", p, m);
    mlo_page_begin(req, title, "models");
    HTML(&req->out, "<p class=\"eyebrow\"><a href=\"/models/%s/%s\">%s/%s</a></p><h1>Compare variants</h1>",
         p, m, p, m);
    chooser(req, &c);
    if (c.count)
        side_by_side(req, &c);
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(c.choice);
    return status;
}
