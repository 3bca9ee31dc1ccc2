/* The samples that a variant treats worst. */
#include <string.h>

#include "api/html/report_impl.h"

void mlo_report_class(struct mlo_buf *out, const json_t *names, const json_t *number)
{
    if (!json_is_integer(number)) {
        HTML(out, "<span class=\"muted\">–</span>");
        return;
    }
    json_int_t at = json_integer_value(number);
    const char *name = at >= 0 ? json_string_value(json_array_get(names, (size_t)at)) : NULL;
    HTML(out, "%lld", (long long)at);
    if (name)
        HTML(out, " %s", name);
}

void mlo_report_predictions(struct mlo_buf *out, const json_t *names, const json_t *sample,
                            const char *const sides[2], const char *score, bool share)
{
    const json_t *label = json_object_get(sample, "label");
    HTML(out, "<td>");
    mlo_report_class(out, names, label);
    HTML(out, "</td>");
    for (int i = 0; i < 2; i++) {
        const json_t *side = json_object_get(sample, sides[i]), *of = json_object_get(side, "class");
        bool wrong = json_is_integer(label) && json_is_integer(of) &&
                     json_integer_value(label) != json_integer_value(of);
        double sure = mlo_json_f64(side, score, NAN);
        HTML(out, "<td class=\"%s\">", wrong ? "wrong" : "right");
        mlo_report_class(out, names, of);
        if (!isnan(sure) && share)
            HTML(out, " <small>%.1f&nbsp;%%</small>", 100 * sure);
        else if (!isnan(sure))
            HTML(out, " <small>%.4g</small>", sure);
        HTML(out, "</td>");
    }
}

static void number(struct mlo_buf *out, const json_t *value)
{
    if (json_is_number(value))
        HTML(out, "%.5g", json_number_value(value));
    else
        HTML(out, "not finite");
}

static void sample_row(struct mlo_buf *out, const json_t *s, const json_t *classes, bool predicts)
{
    static const char *const sides[] = {"source", "variant"};
    HTML(out, "<tr><td class=\"n\">%lld</td>", (long long)mlo_json_i64(s, "sample", 0));
    if (predicts)
        mlo_report_predictions(out, classes, s, sides, "score", false);
    HTML(out, "<td class=\"n\"><b>");
    number(out, json_object_get(s, "deviation"));
    HTML(out, "</b></td><td class=\"name\"><code>%s</code>[%lld] <small>", mlo_json_str(s, "output", ""),
         (long long)mlo_json_i64(s, "element", 0));
    number(out, json_object_get(s, "source_value"));
    HTML(out, " became ");
    number(out, json_object_get(s, "variant_value"));
    HTML(out, "</small></td></tr>");
}

static void sample_rows(struct mlo_buf *out, const json_t *samples, const json_t *classes)
{
    bool predicts = json_is_object(json_object_get(json_array_get(samples, 0), "source"));
    size_t count = MLO_MIN(json_array_size(samples), (size_t)MLO_PAGE_ROWS);
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th class=\"n\">Sample</th>");
    if (predicts)
        HTML(out, "<th>Label</th><th>Source</th><th>Variant</th>");
    HTML(out, "<th class=\"n\">Deviation</th><th>Where</th></tr></thead><tbody>");
    for (size_t i = 0; i < count; i++)
        sample_row(out, json_array_get(samples, i), classes, predicts);
    HTML(out, "</tbody></table></div>");
}

void mlo_report_part_samples(struct mlo_buf *out, const json_t *samples, const json_t *data)
{
    const json_t *worst = json_object_get(samples, "worst"), *changed = json_object_get(samples, "changed"),
                 *classes = json_object_get(samples, "classes"),
                 *outcomes = json_object_get(samples, "outcomes");
    const char *role = mlo_json_str(json_object_get(data, "accuracy"), "role", "");
    if (!json_array_size(worst))
        return;
    HTML(out, "<h2>Worst samples</h2><section class=\"panel\"><h3>Whose outputs moved most</h3>");
    sample_rows(out, worst, classes);
    HTML(out,
         "<p class=\"muted\">Samples are numbered from 0 in the data of the role %s. Scores stand beside the "
         "classes "
         "that they are of.</p></section>",
         role);
    if (!json_array_size(changed))
        return;
    bool labels = json_object_get(outcomes, "lost") != NULL;
    HTML(out, "<section class=\"panel\"><h3>%s</h3>",
         labels ? "Right with the source, wrong with the variant" : "Another class than with the source");
    sample_rows(out, changed, classes);
    int64_t all = mlo_json_i64(outcomes, labels ? "lost" : "changed", 0);
    if (all > (int64_t)json_array_size(changed))
        HTML(out, "<p class=\"muted\">The %zu of these %lld whose outputs moved most.</p>",
             json_array_size(changed), (long long)all);
    HTML(out, "</section>");
}
