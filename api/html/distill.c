/* The page of a distillation evaluation (docs/distillation.md): a student next to its teacher. */
#include <string.h>

#include "api/html/report_impl.h"

#define DASH "<span class=\"muted\">–</span>"

static const char *const SIDES[] = {"teacher", "student"};

static const json_t *in(const json_t *o, const char *a, const char *b)
{
    o = json_object_get(o, a);
    return b ? json_object_get(o, b) : o;
}

static double number(const json_t *o, const char *key)
{
    return mlo_json_f64(o, key, NAN);
}

/* --- numbers -------------------------------------------------------------------------------------------- */

static bool is_share(const json_t *row)
{
    return strcmp(mlo_json_str(row, "unit", ""), "fraction") == 0;
}

static void value_of(struct mlo_buf *out, const json_t *e, bool share)
{
    double v = number(e, "value"), low = number(e, "low"), high = number(e, "high");
    if (isnan(v))
        HTML(out, DASH);
    else if (share)
        HTML(out, "%.2f&nbsp;%% <small>%.2f–%.2f</small>", 100 * v, 100 * low, 100 * high);
    else
        HTML(out, "%.4g <small>%.4g–%.4g</small>", v, low, high);
}

/* `better` says which way is good: 1 up, -1 down, 0 neither. */
static void difference_of(struct mlo_buf *out, const json_t *e, bool share, int better)
{
    double v = number(e, "value"), low = number(e, "low"), high = number(e, "high");
    bool lost = better && (better > 0 ? high < 0 : low > 0),
         won = better && (better > 0 ? low > 0 : high < 0);
    if (isnan(v)) {
        HTML(out, DASH);
        return;
    }
    HTML(out, "<b class=\"%s\">", lost ? "lost" : won ? "won" : "");
    if (share)
        HTML(out, "%+.2f&nbsp;pt</b> <small>%+.2f to %+.2f</small>", 100 * v, 100 * low, 100 * high);
    else
        HTML(out, "%+.4g</b> <small>%+.4g to %+.4g</small>", v, low, high);
}

static void ratio_of(struct mlo_buf *out, const json_t *e)
{
    double v = number(e, "value");
    if (isnan(v))
        HTML(out, DASH);
    else
        HTML(out, "<b>%.3g×</b> <small>%.3g–%.3g</small>", v, number(e, "low"), number(e, "high"));
}

static void p_cell(struct mlo_buf *out, double p)
{
    if (isnan(p))
        HTML(out, "<td class=\"n\">" DASH "</td>");
    else
        HTML(out, "<td class=\"n\">%.3g</td>", p);
}

static void time_of(struct mlo_buf *out, double us)
{
    if (isnan(us))
        HTML(out, DASH);
    else if (us < 1000)
        HTML(out, "%.3g&nbsp;µs", us);
    else
        HTML(out, "%.3g&nbsp;ms", us / 1000);
}

static void bytes_text(struct mlo_buf *out, const json_t *side)
{
    char text[32];
    int64_t bytes = mlo_json_i64(side, "file_bytes", -1);
    if (bytes < 0)
        HTML(out, DASH);
    else
        HTML(out, "%s", mlo_str_size((uint64_t)bytes, text));
}

/* "3 Dress", or "3" where classes have no names. */
static void class_text(struct mlo_buf *out, const json_t *r, const json_t *which)
{
    if (!json_is_integer(which)) {
        HTML(out, DASH);
        return;
    }
    json_int_t at = json_integer_value(which);
    const char *name =
        at >= 0 ? json_string_value(json_array_get(json_object_get(r, "class_names"), (size_t)at)) : NULL;
    HTML(out, "%lld", (long long)at);
    if (name)
        HTML(out, " %s", name);
}

/* --- the summary ---------------------------------------------------------------------------------------- */

static void card_accuracy(struct mlo_buf *out, const json_t *r)
{
    const json_t *m = json_array_get(json_object_get(r, "metrics"), 0),
                 *student = json_object_get(m, "student");
    int better = mlo_json_bool(m, "higher_is_better", true) ? 1 : -1;
    HTML(out, "<section class=\"card\"><h3>%s</h3><p class=\"big\">",
         m ? mlo_json_str(m, "metric", "") : "Accuracy");
    if (!m)
        HTML(out, "not measured</p><p class=\"muted\">The data have no labels.");
    else if (isnan(number(student, "value")))
        HTML(out, "–</p><p class=\"muted\">");
    else if (is_share(m))
        HTML(out, "%.2f&nbsp;%%</p><p class=\"muted\">", 100 * number(student, "value"));
    else
        HTML(out, "%.4g</p><p class=\"muted\">", number(student, "value"));
    if (m)
        difference_of(out, json_object_get(m, "difference"), is_share(m), better);
    HTML(out, "</p></section>");
}

static const json_t *distance(const json_t *r, const char *metric)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(r, "distances"), i,
                       row) if (strcmp(mlo_json_str(row, "metric", ""), metric) == 0) return row;
    return NULL;
}

static void card_near(struct mlo_buf *out, const json_t *r)
{
    const json_t *agreement = distance(r, "agreement"), *cosine = distance(r, "cosine");
    HTML(out, "<section class=\"card\"><h3>%s</h3><p class=\"big\">", agreement ? "Agreement" : "Cosine");
    if (agreement)
        HTML(out, "%.2f&nbsp;%%</p><p class=\"muted\">%.2f–%.2f, of %lld samples",
             100 * number(agreement, "value"), 100 * number(agreement, "low"),
             100 * number(agreement, "high"), (long long)mlo_json_i64(r, "samples", 0));
    else if (cosine)
        HTML(out, "%.4f</p><p class=\"muted\">%.4f–%.4f", number(cosine, "value"), number(cosine, "low"),
             number(cosine, "high"));
    else
        HTML(out, "–</p><p class=\"muted\">");
    HTML(out, "</p></section>");
}

static void card_latency(struct mlo_buf *out, const json_t *r)
{
    const json_t *row = json_array_get(json_object_get(r, "latency"), 0),
                 *ratio = json_object_get(row, "ratio_p50");
    HTML(out, "<section class=\"card\"><h3>Latency, p50</h3><p class=\"big\">");
    if (!isnan(number(ratio, "value")))
        HTML(out, "%.3g×</p><p class=\"muted\">%.3g–%.3g of the teacher's, batch %lld",
             number(ratio, "value"), number(ratio, "low"), number(ratio, "high"),
             (long long)mlo_json_i64(row, "batch", 1));
    else
        HTML(out, "–</p><p class=\"muted\">not measured");
    HTML(out, "</p></section>");
}

static void card_size(struct mlo_buf *out, const json_t *r)
{
    HTML(out, "<section class=\"card\"><h3>File</h3><p class=\"big\">");
    bytes_text(out, json_object_get(r, "student"));
    HTML(out, "</p><p class=\"muted\">");
    if (!isnan(number(r, "size_ratio")))
        HTML(out, "%.3g× of ", number(r, "size_ratio"));
    bytes_text(out, json_object_get(r, "teacher"));
    HTML(out, "</p></section>");
}

/* --- verdict, accuracy, distances ----------------------------------------------------------------------- */

static void part_verdict(struct mlo_buf *out, const json_t *verdict)
{
    const json_t *row;
    size_t i;
    if (!json_array_size(verdict))
        return;
    HTML(out, "<h2>Verdict</h2><section class=\"panel\"><div "
              "class=\"scroll\"><table><thead><tr><th>Condition</th><th>Holds</th><th>Why "
              "not</th></tr></thead><tbody>");
    json_array_foreach((json_t *)verdict, i, row)
    {
        bool holds = mlo_json_bool(row, "holds", false);
        HTML(out,
             "<tr><td class=\"nowrap\"><code>%s</code></td><td class=\"%s\">%s</td><td "
             "class=\"why\">%s</td></tr>",
             mlo_json_str(row, "condition", ""), holds ? "won" : "lost", holds ? "yes" : "no",
             mlo_json_str(row, "reason", ""));
    }
    HTML(out, "</tbody></table></div><p class=\"muted\">Each is judged by the end of the 95&nbsp;%% interval "
              "that is "
              "against it.</p></section>");
}

static void part_accuracy(struct mlo_buf *out, const json_t *r)
{
    const json_t *row, *outcomes = json_object_get(r, "outcomes");
    size_t i;
    HTML(out, "<h2>Accuracy</h2><section class=\"panel\">");
    if (!json_array_size(json_object_get(r, "metrics"))) {
        HTML(out, "<p class=\"muted\">Nothing was measured: the data have no labels.</p></section>");
        return;
    }
    HTML(out, "<div class=\"scroll\"><table><thead><tr><th>Metric</th><th class=\"n\">Teacher</th><th "
              "class=\"n\">Student</th><th class=\"n\">Student − teacher, paired</th><th "
              "class=\"n\">McNemar&nbsp;p</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(r, "metrics"), i, row)
    {
        HTML(out, "<tr><td>%s</td><td class=\"n\">", mlo_json_str(row, "metric", ""));
        value_of(out, json_object_get(row, "teacher"), is_share(row));
        HTML(out, "</td><td class=\"n\">");
        value_of(out, json_object_get(row, "student"), is_share(row));
        HTML(out, "</td><td class=\"n\">");
        difference_of(out, json_object_get(row, "difference"), is_share(row),
                      mlo_json_bool(row, "higher_is_better", true) ? 1 : -1);
        HTML(out, "</td>");
        p_cell(out, number(row, "mcnemar_p"));
        HTML(out, "</tr>");
    }
    HTML(out, "</tbody></table></div>");
    if (outcomes)
        HTML(out,
             "<p>Right with both <b>%lld</b>, with the teacher alone <b class=\"lost\">%lld</b>, with the "
             "student alone "
             "<b class=\"won\">%lld</b>, with neither <b>%lld</b>.</p>",
             (long long)mlo_json_i64(outcomes, "both_right", 0), (long long)mlo_json_i64(outcomes, "lost", 0),
             (long long)mlo_json_i64(outcomes, "gained", 0),
             (long long)mlo_json_i64(outcomes, "both_wrong", 0));
    HTML(out,
         "<p class=\"muted\">%lld samples, the same for both models; intervals are 95&nbsp;%%.</p></section>",
         (long long)mlo_json_i64(r, "samples", 0));
}

static void part_distances(struct mlo_buf *out, const json_t *r)
{
    static const struct {
        const char *metric, *name, *what;
    } rows[] = {{"agreement", "Agreement", "the same class"},
                {"kl", "KL divergence", "of the student's softened probabilities from the teacher's, nats"},
                {"cross_entropy", "Soft-label cross-entropy",
                 "of the student under the teacher's softened labels, nats"},
                {"cosine", "Cosine", "of the outputs, mean over samples"},
                {"mse", "Mean squared difference", "of the outputs"}};
    HTML(out,
         "<h2>How near the outputs are</h2><section class=\"panel\"><div "
         "class=\"scroll\"><table><thead><tr><th>Measure</th><th class=\"n\">Value</th></tr></thead><tbody>");
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        const json_t *row = distance(r, rows[i].metric);
        if (!row)
            continue;
        HTML(out, "<tr><td>%s <small>%s</small></td><td class=\"n\">", rows[i].name, rows[i].what);
        value_of(out, row, is_share(row));
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div>");
    if (!isnan(number(r, "temperature")))
        HTML(out, "<p class=\"muted\">Softened at the temperature %g.</p>", number(r, "temperature"));
    HTML(out, "</section>");
}

/* --- calibration ---------------------------------------------------------------------------------------- */

/* A reliability diagram: a bar a bin, as wide as the bin and as high as its accuracy; the line is where
 * confidence and accuracy are the same. */
static void reliability(struct mlo_buf *out, const json_t *bins, const char *who, const char *scheme)
{
    enum { SIZE = 220, LEFT = 30, TOP = 8, BOTTOM = 24 };
    const json_t *bin;
    size_t i;
    HTML(out,
         "<svg class=\"reliability\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"reliability of the %s, "
         "%s\">",
         LEFT + SIZE + 10, TOP + SIZE + BOTTOM, who, scheme);
    for (int tick = 0; tick <= 4; tick++) {
        double y = TOP + SIZE - SIZE * tick / 4.0, x = LEFT + SIZE * tick / 4.0;
        HTML(out,
             "<path class=\"grid\" d=\"M%d %.1fh%d\"/><text x=\"%d\" y=\"%.1f\" "
             "text-anchor=\"end\">%d</text><text "
             "x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>",
             LEFT, y, SIZE, LEFT - 5, y + 4, 25 * tick, x, TOP + SIZE + 17, 25 * tick);
    }
    json_array_foreach((json_t *)bins, i, bin)
    {
        double from = number(bin, "from"), to = number(bin, "to"), right = number(bin, "accuracy"),
               sure = number(bin, "confidence");
        if (isnan(from) || isnan(to) || isnan(right) || isnan(sure))
            continue;
        double x = LEFT + SIZE * from, width = fmax(SIZE * (to - from), 1.5);
        double top = fmax(right, sure), low = fmin(right, sure);
        HTML(out,
             "<rect class=\"bins\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"><title>%lld samples, "
             "confidence "
             "%.1f %%, right %.1f %%</title></rect>"
             "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>",
             x, TOP + SIZE * (1 - right), width, SIZE * right, (long long)mlo_json_i64(bin, "n", 0),
             100 * sure, 100 * right, sure > right ? "over" : "under", x, TOP + SIZE * (1 - top), width,
             SIZE * (top - low));
    }
    HTML(out, "<path class=\"ideal\" d=\"M%d %dL%d %d\"/></svg>", LEFT, TOP + SIZE, LEFT + SIZE, TOP);
}

static void part_calibration(struct mlo_buf *out, const json_t *r)
{
    static const char *const schemes[][2] = {{"equal_width", "bins of equal width"},
                                             {"equal_mass", "bins of equal mass"}};
    const json_t *calibration = json_object_get(r, "calibration");
    if (!json_is_object(calibration))
        return;
    HTML(out,
         "<h2>Calibration</h2><section class=\"panel\"><div class=\"scroll\"><table><thead><tr><th>Expected "
         "calibration error</th><th class=\"n\">Teacher</th><th class=\"n\">Student</th><th "
         "class=\"n\">Student − "
         "teacher</th></tr></thead><tbody>");
    for (size_t k = 0; k < MLO_COUNT(schemes); k++) {
        HTML(out, "<tr><td>%lld %s</td>", (long long)mlo_json_i64(calibration, "bins", 0), schemes[k][1]);
        for (size_t s = 0; s < 2; s++) {
            HTML(out, "<td class=\"n\">");
            value_of(out, json_object_get(in(in(calibration, SIDES[s], NULL), schemes[k][0], NULL), "ece"),
                     true);
            HTML(out, "</td>");
        }
        HTML(out, "<td class=\"n\">");
        difference_of(out, in(calibration, "difference", schemes[k][0]), true, -1);
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div><div class=\"pair\">");
    for (size_t s = 0; s < 2; s++) {
        HTML(out, "<figure><figcaption>%s</figcaption>", s ? "Student" : "Teacher");
        reliability(out, in(in(calibration, SIDES[s], NULL), "equal_width", "bins"), SIDES[s], schemes[0][1]);
        HTML(out, "</figure>");
    }
    HTML(out, "</div><p class=\"muted\">How often it is right (up, %%) by how sure it is (across, %%). <span "
              "class=\"key "
              "over\"></span>surer than right, <span class=\"key under\"></span>righter than sure; on the "
              "line both "
              "are the same.</p></section>");
}

/* --- classes, slices ------------------------------------------------------------------------------------ */

static void part_row(struct mlo_buf *out, const json_t *r, const json_t *row, const char *key)
{
    bool values = strcmp(mlo_json_str(r, "task", ""), "values") == 0;
    HTML(out, "<tr><td class=\"nowrap\">");
    if (strcmp(key, "class") == 0)
        class_text(out, r, json_object_get(row, key));
    else
        HTML(out, "%s", mlo_json_str(row, key, ""));
    HTML(out, "</td><td class=\"n\">%lld</td>", (long long)mlo_json_i64(row, "n", 0));
    for (size_t s = 0; s < 2; s++) {
        double v = number(row, SIDES[s]);
        if (isnan(v))
            HTML(out, "<td class=\"n\">" DASH "</td>");
        else if (values)
            HTML(out, "<td class=\"n\">%.4g</td>", v);
        else
            HTML(out, "<td class=\"n\">%.1f&nbsp;%%</td>", 100 * v);
    }
    HTML(out, "<td class=\"n\">");
    difference_of(out, json_object_get(row, "difference"), true, 1);
    HTML(out, "</td>");
    p_cell(out, number(row, "p_holm"));
    double agree = number(row, "agreement"), kl = number(row, "kl");
    if (isnan(agree))
        HTML(out, "<td class=\"n\">" DASH "</td>");
    else
        HTML(out, "<td class=\"n\">%.1f&nbsp;%%</td>", 100 * agree);
    if (isnan(kl))
        HTML(out, "<td class=\"n\">" DASH "</td></tr>");
    else
        HTML(out, "<td class=\"n\">%.3g</td></tr>", kl);
}

static void part_parts(struct mlo_buf *out, const json_t *r, const char *member, const char *key,
                       const char *title)
{
    const json_t *list = json_object_get(r, member);
    size_t count = json_array_size(list), last = MLO_MIN(count, (size_t)MLO_PAGE_ROWS), compared = 0;
    if (!count)
        return;
    for (size_t i = 0; i < count; i++) /* a row without samples is no comparison */
        compared += !isnan(number(json_array_get(list, i), "p_holm"));
    HTML(out,
         "<h2>%s</h2><section class=\"panel\"><div class=\"scroll\"><table><thead><tr><th>%s</th><th "
         "class=\"n\">Samples</th><th class=\"n\">Teacher</th><th class=\"n\">Student</th><th "
         "class=\"n\">Student − "
         "teacher</th><th class=\"n\">p&nbsp;(Holm)</th><th class=\"n\">Agreement</th><th "
         "class=\"n\">KL</th></tr></thead><tbody>",
         title, strcmp(key, "class") == 0 ? "Class" : "Slice");
    for (size_t i = 0; i < last; i++)
        part_row(out, r, json_array_get(list, i), key);
    HTML(out, "</tbody></table></div>");
    mlo_report_left_out(out, count - last);
    HTML(out,
         "<p class=\"muted\">p is that of the exact test, corrected for the %zu comparison%s of this table "
         "(its "
         "rows with samples); the interval is of each alone.</p></section>",
         compared, compared == 1 ? "" : "s");
}

/* --- disagreement --------------------------------------------------------------------------------------- */

/* The disagreement of few classes as a picture: rows are the teacher's class, columns the student's. */
static void matrix(struct mlo_buf *out, const json_t *list, int classes)
{
    enum { CELL = 26, LEFT = 26, TOP = 26 };
    const json_t *pair;
    size_t i;
    double most = 1;
    json_array_foreach((json_t *)list, i, pair) most = fmax(most, (double)mlo_json_i64(pair, "count", 0));
    HTML(out,
         "<div class=\"scroll\"><svg class=\"matrix\" width=\"%d\" height=\"%d\" role=\"img\" "
         "aria-label=\"disagreement by class\">",
         LEFT + CELL * classes + 2, TOP + CELL * classes + 2);
    for (int c = 0; c < classes; c++)
        HTML(out,
             "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text><text x=\"%d\" y=\"%d\" "
             "text-anchor=\"end\">%d</text><rect class=\"same\" x=\"%d\" y=\"%d\" width=\"%d\" "
             "height=\"%d\"/>",
             LEFT + CELL * c + CELL / 2, TOP - 8, c, LEFT - 8, TOP + CELL * c + CELL / 2 + 4, c,
             LEFT + CELL * c, TOP + CELL * c, CELL - 2, CELL - 2);
    json_array_foreach((json_t *)list, i, pair)
    {
        int t = (int)mlo_json_i64(pair, "teacher", 0), s = (int)mlo_json_i64(pair, "student", 0);
        double count = (double)mlo_json_i64(pair, "count", 0);
        if (t < 0 || s < 0 || t >= classes || s >= classes)
            continue;
        HTML(out,
             "<rect class=\"cell\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
             "fill-opacity=\"%.3f\"><title>teacher %d, "
             "student %d: %.0f samples</title></rect><text x=\"%d\" y=\"%d\" "
             "text-anchor=\"middle\">%.0f</text>",
             LEFT + CELL * s, TOP + CELL * t, CELL - 2, CELL - 2, 0.08 + 0.62 * sqrt(count / most), t, s,
             count, LEFT + CELL * s + CELL / 2 - 1, TOP + CELL * t + CELL / 2 + 3, count);
    }
    HTML(out, "</svg></div><p class=\"muted\">Down: the teacher's class; across: the student's.</p>");
}

static void part_confusion(struct mlo_buf *out, const json_t *r)
{
    enum { MATRIX_MOST = 20, PAIRS = 12 };
    const json_t *confusion = json_object_get(r, "confusion"), *list = json_object_get(confusion, "list"),
                 *pair;
    int classes = (int)mlo_json_i64(r, "classes", 0);
    size_t i;
    if (!json_is_object(confusion))
        return;
    HTML(out,
         "<h2>Where they disagree</h2><section class=\"panel\"><p>On <b>%lld</b> of %lld samples, between "
         "%lld pairs "
         "of classes.</p>",
         (long long)mlo_json_i64(confusion, "samples", 0), (long long)mlo_json_i64(r, "samples", 0),
         (long long)mlo_json_i64(confusion, "pairs", 0));
    if (json_array_size(list) && classes <= MATRIX_MOST)
        matrix(out, list, classes);
    if (json_array_size(list))
        HTML(out, "<div class=\"scroll\"><table><thead><tr><th>Teacher</th><th>Student</th><th "
                  "class=\"n\">Samples</th><th class=\"n\">Teacher right</th><th class=\"n\">Student "
                  "right</th></tr></thead><tbody>");
    json_array_foreach((json_t *)list, i, pair)
    {
        if (i == PAIRS)
            break;
        HTML(out, "<tr><td>");
        class_text(out, r, json_object_get(pair, "teacher"));
        HTML(out, "</td><td>");
        class_text(out, r, json_object_get(pair, "student"));
        HTML(out, "</td><td class=\"n\">%lld</td>", (long long)mlo_json_i64(pair, "count", 0));
        static const char *const right[] = {"teacher_right", "student_right"};
        for (size_t s = 0; s < 2; s++) {
            if (json_object_get(pair, right[s]))
                HTML(out, "<td class=\"n\">%lld</td>", (long long)mlo_json_i64(pair, right[s], 0));
            else
                HTML(out, "<td class=\"n\">" DASH "</td>");
        }
        HTML(out, "</tr>");
    }
    if (json_array_size(list))
        HTML(out, "</tbody></table></div>");
    mlo_report_left_out(out, json_array_size(list) > PAIRS ? json_array_size(list) - PAIRS : 0);
    HTML(out, "</section>");
}

static void prediction(struct mlo_buf *out, const json_t *r, const json_t *side, const json_t *label)
{
    const json_t *of = json_object_get(side, "class");
    bool wrong =
        json_is_integer(label) && json_is_integer(of) && json_integer_value(label) != json_integer_value(of);
    HTML(out, "<td class=\"%s\">", wrong ? "wrong" : "right");
    class_text(out, r, of);
    if (!isnan(number(side, "confidence")))
        HTML(out, " <small>%.1f&nbsp;%%</small>", 100 * number(side, "confidence"));
    HTML(out, "</td>");
}

static void part_farthest(struct mlo_buf *out, const json_t *r)
{
    const json_t *list = json_object_get(r, "farthest"), *row;
    bool classes = strcmp(mlo_json_str(r, "task", ""), "classes") == 0,
         sliced = json_object_get(json_array_get(list, 0), "slice") != NULL;
    size_t i;
    if (!json_array_size(list))
        return;
    HTML(out, "<h2>Samples where they differ most</h2><section class=\"panel\"><div "
              "class=\"scroll\"><table><thead><tr><th class=\"n\">Sample</th>");
    if (classes)
        HTML(out, "<th>Label</th><th>Teacher</th><th>Student</th>");
    if (sliced)
        HTML(out, "<th>Slice</th>");
    HTML(out, "<th class=\"n\">%s</th></tr></thead><tbody>", classes ? "KL" : "Mean squared difference");
    json_array_foreach((json_t *)list, i, row)
    {
        const json_t *label = json_object_get(row, "label");
        if (i == MLO_PAGE_ROWS)
            break;
        HTML(out, "<tr><td class=\"n\">%lld</td>", (long long)mlo_json_i64(row, "sample", 0));
        if (classes) {
            HTML(out, "<td>");
            class_text(out, r, label);
            HTML(out, "</td>");
            prediction(out, r, json_object_get(row, "teacher"), label);
            prediction(out, r, json_object_get(row, "student"), label);
        }
        if (sliced)
            HTML(out, "<td>%s</td>", mlo_json_str(row, "slice", ""));
        double by = number(row, classes ? "kl" : "mse");
        if (isnan(by))
            HTML(out, "<td class=\"n\">" DASH "</td></tr>");
        else
            HTML(out, "<td class=\"n\">%.4g</td></tr>", by);
    }
    HTML(out, "</tbody></table></div><p class=\"muted\">Samples are numbered from 0 in the data; beside a "
              "class stands how "
              "sure the model was of it.</p></section>");
}

/* --- latency, models ------------------------------------------------------------------------------------ */

static void part_latency(struct mlo_buf *out, const json_t *r)
{
    static const char *const rows[][3] = {{"p50_us", "ratio_p50", "p50"}, {"p99_us", "ratio_p99", "p99"}};
    const json_t *list = json_object_get(r, "latency"), *row;
    size_t i;
    if (!json_array_size(list))
        return;
    HTML(out, "<h2>Latency</h2><section class=\"panel\"><div "
              "class=\"scroll\"><table><thead><tr><th>Batch</th><th></th><th class=\"n\">Teacher</th><th "
              "class=\"n\">Student</th><th class=\"n\">Student ÷ teacher</th></tr></thead><tbody>");
    json_array_foreach((json_t *)list, i, row)
    {
        for (size_t k = 0; k < MLO_COUNT(rows); k++) {
            HTML(out, "<tr><td>%lld</td><td>%s</td>", (long long)mlo_json_i64(row, "batch", 1), rows[k][2]);
            for (size_t s = 0; s < 2; s++) {
                HTML(out, "<td class=\"n\">");
                time_of(out, number(in(in(row, SIDES[s], NULL), rows[k][0], NULL), "value"));
                HTML(out, "</td>");
            }
            HTML(out, "<td class=\"n\">");
            ratio_of(out, json_object_get(row, rows[k][1]));
            HTML(out, "</td></tr>");
        }
    }
    const json_t *first = json_array_get(list, 0);
    HTML(out,
         "</tbody></table></div><p class=\"muted\">Alternating processes on the engine %s with %lld "
         "thread%s, in turn.</p></section>",
         mlo_json_str(r, "engine", "cpu"), (long long)mlo_json_i64(first, "threads", 1),
         mlo_json_i64(first, "threads", 1) == 1 ? "" : "s");
}

static void model_facts(struct mlo_buf *out, const char *title, const json_t *side)
{
    HTML(out, "<dt>%s</dt><dd>", title);
    if (json_object_get(side, "name"))
        HTML(out, "%s<br>", mlo_json_str(side, "name", ""));
    HTML(out, "<code>%s</code><br>", mlo_json_str(side, "digest", ""));
    bytes_text(out, side);
    HTML(out, ", %lld nodes, opset %lld; output <code>%s</code> of %lld",
         (long long)mlo_json_i64(side, "nodes", 0), (long long)mlo_json_i64(side, "opset", 0),
         mlo_json_str(side, "output", ""), (long long)mlo_json_i64(side, "width", 0));
    if (json_object_get(side, "scores"))
        HTML(out, ", read as %s", mlo_json_str(side, "scores", ""));
    HTML(out, "</dd>");
}

void mlo_report_distill(struct mlo_buf *out, const json_t *r)
{
    HTML(out, "<div class=\"cards\">");
    card_accuracy(out, r);
    card_near(out, r);
    card_latency(out, r);
    card_size(out, r);
    HTML(out, "</div>");
    part_verdict(out, json_object_get(r, "verdict"));
    part_accuracy(out, r);
    part_distances(out, r);
    part_calibration(out, r);
    part_parts(out, r, "per_slice", "slice", "By slice");
    part_parts(out, r, "per_class", "class", "By class");
    part_confusion(out, r);
    part_farthest(out, r);
    part_latency(out, r);
    HTML(out, "<h2>Models</h2><section class=\"panel\"><dl class=\"facts\">");
    model_facts(out, "Teacher", json_object_get(r, "teacher"));
    model_facts(out, "Student", json_object_get(r, "student"));
    HTML(out,
         "</dl></section></main><footer class=\"wrap\">Outputs were computed with the numerics %s on the "
         "engine %s; "
         "latency belongs to the machine.</footer></body></html>\n",
         mlo_json_str(r, "numerics", "?"), mlo_json_str(r, "engine", "?"));
}
