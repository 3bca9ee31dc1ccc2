/* A report as a page: the frame, the summary, accuracy, how it was made. */
#include "api/html/report_impl.h"

#include <openssl/evp.h>
#include <string.h>

#define DASH "<span class=\"muted\">–</span>"

char *mlo_report_style_source(char out[64])
{
    struct mlo_digest digest;
    mlo_digest_of(mlo_html_assets[0].text, mlo_html_assets[0].size, &digest);
    memcpy(out, "sha256-", 7);
    EVP_EncodeBlock((unsigned char *)out + 7, digest.bytes, MLO_DIGEST_SIZE);
    return out;
}

/* --- pieces -------------------------------------------------------------------------------------------- */

void mlo_report_db_cell(struct mlo_buf *out, double db)
{
    if (isnan(db))
        HTML(out, DASH);
    else if (db >= 200)
        HTML(out, "<span class=\"db good\">exact</span>");
    else
        HTML(out, "<span class=\"db %s\">%.1f&nbsp;dB</span>",
             db >= 30   ? "good"
             : db >= 15 ? "fair"
                        : "bad",
             db);
}

void mlo_report_more_begin(struct mlo_buf *out, size_t count, const char *what)
{
    if (count)
        HTML(out, "<details><summary>%zu more %s</summary>", count, what);
}

void mlo_report_more_end(struct mlo_buf *out, size_t count)
{
    if (count)
        HTML(out, "</details>");
}

void mlo_report_left_out(struct mlo_buf *out, size_t count)
{
    if (count)
        HTML(out, "<p class=\"muted\">And %zu more, which are in the JSON.</p>", count);
}

static void size_text(struct mlo_buf *out, double bytes)
{
    char text[32];
    if (bytes >= 0 && bytes < 1e18)
        HTML(out, "%s", mlo_str_size((uint64_t)bytes, text));
    else
        HTML(out, DASH);
}

/* A file whose weights are in another one is as large as both. */
static double bytes_of(const json_t *model)
{
    return fmax((double)mlo_json_i64(model, "file_bytes", -1), mlo_json_f64(model, "weight_bytes", -1));
}

static bool is_share(const json_t *metric)
{
    return strcmp(mlo_json_str(metric, "unit", ""), "fraction") == 0;
}

static void value_cell(struct mlo_buf *out, const json_t *estimate, bool share)
{
    double value = mlo_json_f64(estimate, "value", NAN), low = mlo_json_f64(estimate, "low", NAN),
           high = mlo_json_f64(estimate, "high", NAN);
    if (isnan(value))
        HTML(out, DASH);
    else if (share)
        HTML(out, "%.2f&nbsp;%% <small>%.2f–%.2f</small>", value * 100, low * 100, high * 100);
    else
        HTML(out, "%.5g <small>%.5g–%.5g</small>", value, low, high);
}

static void difference_cell(struct mlo_buf *out, const json_t *metric)
{
    const json_t *d = json_object_get(metric, "difference");
    double value = mlo_json_f64(d, "value", NAN), low = mlo_json_f64(d, "low", NAN),
           high = mlo_json_f64(d, "high", NAN);
    if (isnan(value))
        HTML(out, DASH);
    else if (is_share(metric))
        HTML(out, "<b>%+.2f&nbsp;pt</b> <small>%+.2f to %+.2f</small>", value * 100, low * 100, high * 100);
    else
        HTML(out, "<b>%+.4g</b> <small>%+.4g to %+.4g</small>", value, low, high);
}

/* --- the summary --------------------------------------------------------------------------------------- */

static void card_size(struct mlo_buf *out, const json_t *report)
{
    double before = bytes_of(json_object_get(report, "source")),
           after = bytes_of(json_object_get(report, "variant"));
    HTML(out, "<section class=\"card\"><h3>Size</h3><p class=\"big\">");
    size_text(out, after);
    HTML(out, "</p><p class=\"muted\">");
    if (before > 0 && after >= 0) {
        HTML(out, "%.3g× of ", after / before);
        size_text(out, before);
    }
    HTML(out, "</p></section>");
}

static void card_accuracy(struct mlo_buf *out, const json_t *report)
{
    const json_t *data = json_object_get(json_object_get(report, "data"), "accuracy");
    const json_t *metric = json_array_get(json_object_get(json_object_get(report, "accuracy"), "metrics"), 0);
    const json_t *variant = json_object_get(metric, "variant");
    double value = mlo_json_f64(variant, "value", NAN);
    HTML(out, "<section class=\"card\"><h3>%s</h3><p class=\"big\">",
         metric ? mlo_json_str(metric, "metric", "Accuracy") : "Accuracy");
    if (isnan(value))
        HTML(out, "not measured</p><p class=\"muted\">The recipe names no data.");
    else if (is_share(metric))
        HTML(out, "%.2f&nbsp;%%</p><p class=\"muted\">", value * 100);
    else
        HTML(out, "%.5g</p><p class=\"muted\">", value);
    if (json_object_get(metric, "difference"))
        difference_cell(out, metric);
    if (data)
        HTML(out, " on %lld samples", (long long)mlo_json_i64(data, "samples", 0));
    HTML(out, "</p></section>");
}

static void card_precision(struct mlo_buf *out, const json_t *report)
{
    int64_t integer, all;
    bool of_macs;
    double share = mlo_report_integer_share(json_object_get(report, "precision"), &integer, &all, &of_macs);
    HTML(out, "<section class=\"card\"><h3>In integers</h3><p class=\"big\">");
    if (isnan(share))
        HTML(out, "–");
    else
        HTML(out, "%.1f&nbsp;%%", share * 100);
    HTML(out, "</p><p class=\"muted\">of the %s; %lld of %lld nodes</p></section>",
         of_macs ? "multiply-adds" : "nodes", (long long)integer, (long long)all);
}

static void card_noise(struct mlo_buf *out, const json_t *report)
{
    const json_t *worst = json_array_get(json_object_get(report, "tensors"), 0);
    HTML(out, "<section class=\"card\"><h3>Noisiest tensor</h3><p class=\"big\">");
    mlo_report_db_cell(out, mlo_json_f64(worst, "sqnr_db", NAN));
    HTML(out, "</p><p class=\"muted\"><code>%s</code></p></section>", mlo_json_str(worst, "tensor", ""));
}

/* --- accuracy ------------------------------------------------------------------------------------------ */

static void part_accuracy(struct mlo_buf *out, const json_t *report)
{
    const json_t *accuracy = json_object_get(report, "accuracy"),
                 *data = json_object_get(json_object_get(report, "data"), "accuracy");
    const json_t *outcomes = json_object_get(json_object_get(report, "samples"), "outcomes");
    const char *role = mlo_json_str(data, "role", "");
    json_t *metric;
    size_t i;
    HTML(out, "<h2>Accuracy</h2><section class=\"panel\">");
    if (!json_is_object(accuracy)) {
        HTML(out, "<p class=\"muted\">Nothing was measured: there was no data.</p></section>");
        return;
    }
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Metric</th><th "
              "class=\"n\">Source</th><th "
              "class=\"n\">Variant</th><th class=\"n\">Difference, paired</th><th "
              "class=\"n\">McNemar&nbsp;p</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(accuracy, "metrics"), i, metric)
    {
        HTML(out, "<tr><td>%s</td><td class=\"n\">", mlo_json_str(metric, "metric", ""));
        value_cell(out, json_object_get(metric, "source"), is_share(metric));
        HTML(out, "</td><td class=\"n\">");
        value_cell(out, json_object_get(metric, "variant"), is_share(metric));
        HTML(out, "</td><td class=\"n\">");
        difference_cell(out, metric);
        double p = mlo_json_f64(metric, "mcnemar_p", NAN);
        if (isnan(p))
            HTML(out, "</td><td class=\"n\">" DASH "</td></tr>");
        else
            HTML(out, "</td><td class=\"n\">%.3g</td></tr>", p);
    }
    HTML(out, "</tbody></table></div>");
    json_array_foreach(json_object_get(accuracy, "left_out"), i, metric)
        HTML(out, "<p class=\"muted\">Not measured: %s, since %s.</p>", mlo_json_str(metric, "metric", ""),
             mlo_json_str(metric, "why", ""));
    if (json_object_get(outcomes, "both_right"))
        HTML(out,
             "<p>Right with both <b>%lld</b>, with the source alone <b class=\"lost\">%lld</b>, with the "
             "variant "
             "alone <b class=\"won\">%lld</b>, with neither <b>%lld</b>.</p>",
             (long long)mlo_json_i64(outcomes, "both_right", 0), (long long)mlo_json_i64(outcomes, "lost", 0),
             (long long)mlo_json_i64(outcomes, "gained", 0),
             (long long)mlo_json_i64(outcomes, "both_wrong", 0));
    HTML(out,
         "<p class=\"muted\">%lld samples of the role %s, the same for both models; intervals are "
         "95&nbsp;%%. ",
         (long long)mlo_json_i64(data, "samples", 0), role);
    if (strcmp(role, "calibrate") == 0)
        HTML(out, "The ranges were chosen on these samples: they judge nothing. ");
    HTML(out, "Evidence for gates is what the step evaluate measures.</p></section>");
}

/* --- how it was made ----------------------------------------------------------------------------------- */

static void part_steps(struct mlo_buf *out, const json_t *steps)
{
    json_t *step;
    size_t i;
    HTML(out, "<h2>How it was made</h2><section class=\"panel\"><div "
              "class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Step</th>"
              "<th>Options</th></tr></thead><tbody>");
    json_array_foreach((json_t *)steps, i, step)
    {
        const char *key;
        json_t *value;
        HTML(out, "<tr><td>%s</td><td class=\"options\">", mlo_json_str(step, "step", ""));
        json_object_foreach(json_object_get(step, "options"), key, value)
        {
            struct mlo_buf text = MLO_BUF_INIT;
            mlo_json_canonical(value, &text);
            HTML(out, "<span><small>%s</small> <code>%s</code></span> ", key,
                 json_is_string(value) ? json_string_value(value) : mlo_buf_str(&text));
            mlo_buf_clear(&text);
        }
        const json_t *mixed = json_object_get(step, "mixed_precision");
        if (json_is_object(mixed))
            HTML(out, "<p>A budget of %s in %s gave %zu nodes back, of %zu mixes that were tried.</p>",
                 mlo_json_str(mixed, "budget", "?"), mlo_json_str(mixed, "metric", "?"),
                 json_array_size(json_object_get(mixed, "given_back")),
                 json_array_size(json_object_get(mixed, "tried")));
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div></section>");
}

static void deviation_row(struct mlo_buf *out, const json_t *row)
{
    const json_t *db = json_object_get(row, "sqnr_db");
    char sqnr[32] = "no noise";
    if (json_is_number(db))
        snprintf(sqnr, sizeof sqnr, "%.1f dB", json_number_value(db));
    HTML(out,
         "<tr><td "
         "class=\"name\"><code>%s</code></td><td>%.6f</td><td>%s</td><td>%.4g</td><td>%.2f%%</td></tr>",
         mlo_json_str(row, "output", ""), mlo_json_f64(row, "cosine", 0), sqnr,
         mlo_json_f64(row, "max_abs", 0), 100 * mlo_json_f64(row, "equal", 0));
}

static void part_deviation(struct mlo_buf *out, const json_t *deviation)
{
    size_t i;
    json_t *row;
    if (!json_is_object(deviation))
        return;
    HTML(out, "<h2>Outputs on synthetic inputs</h2><section class=\"panel\">");
    const char *why = mlo_json_str(deviation, "unavailable", NULL);
    if (why) {
        HTML(out, "<p>Not compared with the source: %s.</p></section>", why);
        return;
    }
    HTML(out,
         "<p>Made without data, so compared with the source on %lld made-up samples (seed %lld): it tells a "
         "variant that is broken from one that is not, and nothing of its accuracy.</p><div "
         "class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Output</th><th>Cosine</th><th>Signal to "
         "noise</th><th>Largest "
         "difference</th><th>Equal</th></tr></thead><tbody>",
         (long long)mlo_json_i64(deviation, "samples", 0), (long long)mlo_json_i64(deviation, "seed", 0));
    json_array_foreach(json_object_get(deviation, "outputs"), i, row) deviation_row(out, row);
    HTML(out, "</tbody></table></div></section>");
}

static void note_row(struct mlo_buf *out, const json_t *note)
{
    HTML(out, "<tr><td>%s</td><td class=\"name\"><code>%s</code></td><td>%s</td></tr>",
         mlo_json_str(note, "step", ""), mlo_json_str(note, "node", ""), mlo_json_str(note, "note", ""));
}

static void note_rows(struct mlo_buf *out, const json_t *notes, size_t from, size_t to)
{
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Step</th><th>Node or "
              "value</th><th>Note</th></tr></thead>"
              "<tbody>");
    for (size_t i = from; i < to; i++)
        note_row(out, json_array_get(notes, i));
    HTML(out, "</tbody></table></div>");
}

static void part_notes(struct mlo_buf *out, const json_t *notes)
{
    size_t count = json_array_size(notes), first = MLO_MIN(count, (size_t)MLO_PAGE_FIRST),
           last = MLO_MIN(count, (size_t)MLO_PAGE_ROWS);
    if (!count)
        return;
    HTML(out, "<h2>What the steps noted</h2><section class=\"panel\">");
    note_rows(out, notes, 0, first);
    mlo_report_more_begin(out, last - first, "notes");
    if (last > first)
        note_rows(out, notes, first, last);
    mlo_report_more_end(out, last - first);
    mlo_report_left_out(out, count - last);
    HTML(out, "</section>");
}

static void model_facts(struct mlo_buf *out, const char *name, const json_t *model)
{
    HTML(out, "<dt>%s</dt><dd><code>%s</code><br>%lld nodes, opset %lld, weights of ", name,
         mlo_json_str(model, "digest", ""), (long long)mlo_json_i64(model, "nodes", 0),
         (long long)mlo_json_i64(model, "opset", 0));
    size_text(out, mlo_json_f64(model, "weight_bytes", -1));
    HTML(out, "</dd>");
}

static void begin(struct mlo_buf *out, const struct mlo_report_page *page)
{
    HTML(out,
         "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">"
         "<title>%s · report</title><style>",
         page->title);
    mlo_buf_append(out, mlo_html_assets[0].text, mlo_html_assets[0].size);
    HTML(out, "</style></head><body><main class=\"wrap\"><p class=\"eyebrow\">");
    if (page->back_href)
        HTML(out, "<a href=\"%s\">%s</a> / ", page->back_href, page->back_text ? page->back_text : "back");
    HTML(out, "Report</p><h1>%s</h1>", page->title);
    if (page->json_href)
        HTML(out, "<p class=\"links\"><a href=\"%s\" download>JSON</a></p>", page->json_href);
}

enum mlo_status mlo_report_html(const json_t *report, const struct mlo_report_page *page, struct mlo_buf *out,
                                struct mlo_error *err)
{
    const char *format = mlo_json_str(report, "format", "");
    if (strcmp(format, "mlopt-distill-1") == 0) {
        begin(out, page);
        mlo_report_distill(out, report);
        return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
    }
    if (strcmp(format, "mlopt-report-1") != 0) {
        mlo_error_set(err, MLO_EFORMAT, "this is no report that can be shown: its format is '%.60s'", format);
        mlo_error_hint(err, "make it again with the step report of this version of mlopt");
        return MLO_EFORMAT;
    }
    begin(out, page);
    HTML(out, "<div class=\"cards\">");
    card_size(out, report);
    card_accuracy(out, report);
    card_precision(out, report);
    card_noise(out, report);
    HTML(out, "</div>");
    part_accuracy(out, report);
    part_deviation(out, json_object_get(report, "deviation"));
    mlo_report_part_precision(out, json_object_get(report, "precision"));
    mlo_report_part_tensors(out, json_object_get(report, "tensors"), json_object_get(report, "data"));
    mlo_report_part_samples(out, json_object_get(report, "samples"), json_object_get(report, "data"));
    part_steps(out, json_object_get(report, "steps"));
    part_notes(out, json_object_get(report, "notes"));
    HTML(out, "<h2>Models</h2><section class=\"panel\"><dl class=\"facts\">");
    model_facts(out, "Source", json_object_get(report, "source"));
    model_facts(out, "Variant", json_object_get(report, "variant"));
    HTML(out,
         "</dl></section></main><footer class=\"wrap\">Everything here was computed with the numerics %s: "
         "the same "
         "bits on every machine, with any number of threads.</footer></body></html>\n",
         mlo_json_str(report, "numerics", ""));
    return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
}
