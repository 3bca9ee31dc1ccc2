/* Where a student and its teacher differ: calibration, classes, slices, pairs of classes, samples. */
#include <string.h>

#include "api/html/distill_impl.h"

/* --- calibration -----------------------------------------------------------------------------------------
 */

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
        double from = mlo_distill_number(bin, "from"), to = mlo_distill_number(bin, "to"),
               right = mlo_distill_number(bin, "accuracy"), sure = mlo_distill_number(bin, "confidence");
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

void mlo_distill_part_calibration(struct mlo_buf *out, const json_t *r)
{
    static const char *const schemes[][2] = {{"equal_width", "bins of equal width"},
                                             {"equal_mass", "bins of equal mass"}};
    const json_t *calibration = json_object_get(r, "calibration");
    if (!json_is_object(calibration))
        return;
    HTML(out, "<h2>Calibration</h2><section class=\"panel\"><div class=\"scroll\" "
              "tabindex=\"0\"><table><thead><tr><th>Expected "
              "calibration error</th><th class=\"n\">Teacher</th><th class=\"n\">Student</th><th "
              "class=\"n\">Student − "
              "teacher</th></tr></thead><tbody>");
    for (size_t k = 0; k < MLO_COUNT(schemes); k++) {
        HTML(out, "<tr><td>%lld %s</td>", (long long)mlo_json_i64(calibration, "bins", 0), schemes[k][1]);
        for (size_t s = 0; s < 2; s++) {
            HTML(out, "<td class=\"n\">");
            mlo_distill_value(
                out,
                json_object_get(mlo_distill_in(mlo_distill_in(calibration, mlo_distill_sides[s], NULL),
                                               schemes[k][0], NULL),
                                "ece"),
                true);
            HTML(out, "</td>");
        }
        HTML(out, "<td class=\"n\">");
        mlo_distill_difference(out, mlo_distill_in(calibration, "difference", schemes[k][0]), true, -1);
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div><div class=\"pair\">");
    for (size_t s = 0; s < 2; s++) {
        HTML(out, "<figure><figcaption>%s</figcaption>", s ? "Student" : "Teacher");
        reliability(
            out,
            mlo_distill_in(mlo_distill_in(calibration, mlo_distill_sides[s], NULL), "equal_width", "bins"),
            mlo_distill_sides[s], schemes[0][1]);
        HTML(out, "</figure>");
    }
    HTML(out, "</div><p class=\"muted\">How often it is right (up, %%) by how sure it is (across, %%). <span "
              "class=\"key "
              "over\"></span>surer than right, <span class=\"key under\"></span>righter than sure; on the "
              "line both "
              "are the same.</p></section>");
}

/* --- classes, slices -------------------------------------------------------------------------------------
 */

static void part_row(struct mlo_buf *out, const json_t *r, const json_t *row, const char *key)
{
    bool values = strcmp(mlo_json_str(r, "task", ""), "values") == 0;
    HTML(out, "<tr><td class=\"nowrap\">");
    if (strcmp(key, "class") == 0)
        mlo_report_class(out, json_object_get(r, "class_names"), json_object_get(row, key));
    else
        HTML(out, "%s", mlo_json_str(row, key, ""));
    HTML(out, "</td><td class=\"n\">%lld</td>", (long long)mlo_json_i64(row, "n", 0));
    for (size_t s = 0; s < 2; s++) {
        double v = mlo_distill_number(row, mlo_distill_sides[s]);
        if (isnan(v))
            HTML(out, "<td class=\"n\">" MLO_DASH "</td>");
        else if (values)
            HTML(out, "<td class=\"n\">%.4g</td>", v);
        else
            HTML(out, "<td class=\"n\">%.1f&nbsp;%%</td>", 100 * v);
    }
    HTML(out, "<td class=\"n\">");
    mlo_distill_difference(out, json_object_get(row, "difference"), true, 1);
    HTML(out, "</td>");
    mlo_distill_p_cell(out, mlo_distill_number(row, "p_holm"));
    double agree = mlo_distill_number(row, "agreement"), kl = mlo_distill_number(row, "kl");
    if (isnan(agree))
        HTML(out, "<td class=\"n\">" MLO_DASH "</td>");
    else
        HTML(out, "<td class=\"n\">%.1f&nbsp;%%</td>", 100 * agree);
    if (isnan(kl))
        HTML(out, "<td class=\"n\">" MLO_DASH "</td></tr>");
    else
        HTML(out, "<td class=\"n\">%.3g</td></tr>", kl);
}

void mlo_distill_part_groups(struct mlo_buf *out, const json_t *r, const char *member, const char *key,
                             const char *title)
{
    const json_t *list = json_object_get(r, member);
    size_t count = json_array_size(list), last = MLO_MIN(count, (size_t)MLO_PAGE_ROWS), compared = 0;
    if (!count)
        return;
    for (size_t i = 0; i < count; i++) /* a row without samples is no comparison */
        compared += !isnan(mlo_distill_number(json_array_get(list, i), "p_holm"));
    HTML(out,
         "<h2>%s</h2><section class=\"panel\"><div class=\"scroll\" "
         "tabindex=\"0\"><table><thead><tr><th>%s</th><th "
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

/* --- disagreement ----------------------------------------------------------------------------------------
 */

/* The disagreement of few classes as a picture: rows are the teacher's class, columns the student's. */
static void matrix(struct mlo_buf *out, const json_t *list, int classes)
{
    enum { CELL = 26, LEFT = 26, TOP = 26 };
    const json_t *pair;
    size_t i;
    double most = 1;
    json_array_foreach((json_t *)list, i, pair) most = fmax(most, (double)mlo_json_i64(pair, "count", 0));
    HTML(out,
         "<div class=\"scroll\" tabindex=\"0\"><svg class=\"matrix\" width=\"%d\" height=\"%d\" role=\"img\" "
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

void mlo_distill_part_confusion(struct mlo_buf *out, const json_t *r)
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
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Teacher</th><th>Student</th><th "
             "class=\"n\">Samples</th><th class=\"n\">Teacher right</th><th class=\"n\">Student "
             "right</th></tr></thead><tbody>");
    json_array_foreach((json_t *)list, i, pair)
    {
        if (i == PAIRS)
            break;
        HTML(out, "<tr><td>");
        mlo_report_class(out, json_object_get(r, "class_names"), json_object_get(pair, "teacher"));
        HTML(out, "</td><td>");
        mlo_report_class(out, json_object_get(r, "class_names"), json_object_get(pair, "student"));
        HTML(out, "</td><td class=\"n\">%lld</td>", (long long)mlo_json_i64(pair, "count", 0));
        static const char *const right[] = {"teacher_right", "student_right"};
        for (size_t s = 0; s < 2; s++) {
            if (json_object_get(pair, right[s]))
                HTML(out, "<td class=\"n\">%lld</td>", (long long)mlo_json_i64(pair, right[s], 0));
            else
                HTML(out, "<td class=\"n\">" MLO_DASH "</td>");
        }
        HTML(out, "</tr>");
    }
    if (json_array_size(list))
        HTML(out, "</tbody></table></div>");
    /* of all pairs: the list itself may have been cut */
    size_t listed = json_array_size(list),
           cut = (size_t)MLO_MAX(mlo_json_i64(confusion, "left_out", 0), (int64_t)0);
    mlo_report_left_out(out, listed - MLO_MIN(listed, (size_t)PAIRS) + cut);
    HTML(out, "</section>");
}

void mlo_distill_part_farthest(struct mlo_buf *out, const json_t *r)
{
    const json_t *list = json_object_get(r, "farthest"), *row;
    bool classes = strcmp(mlo_json_str(r, "task", ""), "classes") == 0,
         sliced = json_object_get(json_array_get(list, 0), "slice") != NULL;
    size_t i;
    if (!json_array_size(list))
        return;
    HTML(out, "<h2>Samples where they differ most</h2><section class=\"panel\"><div "
              "class=\"scroll\" tabindex=\"0\"><table><thead><tr><th class=\"n\">Sample</th>");
    if (classes)
        HTML(out, "<th>Label</th><th>Teacher</th><th>Student</th>");
    if (sliced)
        HTML(out, "<th>Slice</th>");
    HTML(out, "<th class=\"n\">%s</th></tr></thead><tbody>", classes ? "KL" : "Mean squared difference");
    json_array_foreach((json_t *)list, i, row)
    {
        if (i == MLO_PAGE_ROWS)
            break;
        HTML(out, "<tr><td class=\"n\">%lld</td>", (long long)mlo_json_i64(row, "sample", 0));
        if (classes)
            mlo_report_predictions(out, json_object_get(r, "class_names"), row, mlo_distill_sides,
                                   "confidence", true);
        if (sliced)
            HTML(out, "<td>%s</td>", mlo_json_str(row, "slice", ""));
        double by = mlo_distill_number(row, classes ? "kl" : "mse");
        if (isnan(by))
            HTML(out, "<td class=\"n\">" MLO_DASH "</td></tr>");
        else
            HTML(out, "<td class=\"n\">%.4g</td></tr>", by);
    }
    HTML(out, "</tbody></table></div><p class=\"muted\">Samples are numbered from 0 in the data; beside a "
              "class stands how "
              "sure the model was of it.</p></section>");
}
