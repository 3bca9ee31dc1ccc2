/* The page of a distillation evaluation (docs/distillation.md): a student next to its teacher. */
#include <string.h>

#include "api/html/distill_impl.h"

/* --- the summary -----------------------------------------------------------------------------------------
 */

static void card_accuracy(struct mlo_buf *out, const json_t *r)
{
    const json_t *m = json_array_get(json_object_get(r, "metrics"), 0),
                 *student = json_object_get(m, "student");
    int better = mlo_json_bool(m, "higher_is_better", true) ? 1 : -1;
    HTML(out, "<section class=\"card\"><h3>%s</h3><p class=\"big\">",
         m ? mlo_json_str(m, "metric", "") : "Accuracy");
    if (!m)
        HTML(out, "not measured</p><p class=\"muted\">The data have no labels.");
    else if (isnan(mlo_distill_number(student, "value")))
        HTML(out, "–</p><p class=\"muted\">");
    else if (mlo_distill_is_share(m))
        HTML(out, "%.2f&nbsp;%%</p><p class=\"muted\">", 100 * mlo_distill_number(student, "value"));
    else
        HTML(out, "%.4g</p><p class=\"muted\">", mlo_distill_number(student, "value"));
    if (m)
        mlo_distill_difference(out, json_object_get(m, "difference"), mlo_distill_is_share(m), better);
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
             100 * mlo_distill_number(agreement, "value"), 100 * mlo_distill_number(agreement, "low"),
             100 * mlo_distill_number(agreement, "high"), (long long)mlo_json_i64(r, "samples", 0));
    else if (cosine && !isnan(mlo_distill_number(cosine, "value")))
        HTML(out, "%.4f</p><p class=\"muted\">%.4f–%.4f", mlo_distill_number(cosine, "value"),
             mlo_distill_number(cosine, "low"), mlo_distill_number(cosine, "high"));
    else
        HTML(out, "–</p><p class=\"muted\">");
    HTML(out, "</p></section>");
}

static void card_latency(struct mlo_buf *out, const json_t *r)
{
    const json_t *row = json_array_get(json_object_get(r, "latency"), 0),
                 *ratio = json_object_get(row, "ratio_p50");
    HTML(out, "<section class=\"card\"><h3>Latency, p50</h3><p class=\"big\">");
    if (!isnan(mlo_distill_number(ratio, "value")))
        HTML(out, "%.3g×</p><p class=\"muted\">%.3g–%.3g of the teacher's, batch %lld",
             mlo_distill_number(ratio, "value"), mlo_distill_number(ratio, "low"),
             mlo_distill_number(ratio, "high"), (long long)mlo_json_i64(row, "batch", 1));
    else
        HTML(out, "–</p><p class=\"muted\">not measured");
    HTML(out, "</p></section>");
}

static void card_size(struct mlo_buf *out, const json_t *r)
{
    HTML(out, "<section class=\"card\"><h3>File</h3><p class=\"big\">");
    mlo_distill_bytes(out, json_object_get(r, "student"));
    HTML(out, "</p><p class=\"muted\">");
    if (!isnan(mlo_distill_number(r, "size_ratio")))
        HTML(out, "%.3g× of ", mlo_distill_number(r, "size_ratio"));
    mlo_distill_bytes(out, json_object_get(r, "teacher"));
    HTML(out, "</p></section>");
}

/* --- verdict, accuracy, distances ------------------------------------------------------------------------
 */

static void part_verdict(struct mlo_buf *out, const json_t *verdict)
{
    const json_t *row;
    size_t i;
    if (!json_array_size(verdict))
        return;
    HTML(out, "<h2>Verdict</h2><section class=\"panel\"><div "
              "class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Condition</th><th>Holds</th><th>Why "
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
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Metric</th><th "
              "class=\"n\">Teacher</th><th "
              "class=\"n\">Student</th><th class=\"n\">Student − teacher, paired</th><th "
              "class=\"n\">McNemar&nbsp;p</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(r, "metrics"), i, row)
    {
        HTML(out, "<tr><td>%s</td><td class=\"n\">", mlo_json_str(row, "metric", ""));
        mlo_distill_value(out, json_object_get(row, "teacher"), mlo_distill_is_share(row));
        HTML(out, "</td><td class=\"n\">");
        mlo_distill_value(out, json_object_get(row, "student"), mlo_distill_is_share(row));
        HTML(out, "</td><td class=\"n\">");
        mlo_distill_difference(out, json_object_get(row, "difference"), mlo_distill_is_share(row),
                               mlo_json_bool(row, "higher_is_better", true) ? 1 : -1);
        HTML(out, "</td>");
        mlo_distill_p_cell(out, mlo_distill_number(row, "mcnemar_p"));
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
    HTML(out, "<h2>How near the outputs are</h2><section class=\"panel\"><div "
              "class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Measure</th><th "
              "class=\"n\">Value</th></tr></thead><tbody>");
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        const json_t *row = distance(r, rows[i].metric);
        if (!row)
            continue;
        HTML(out, "<tr><td>%s <small>%s</small></td><td class=\"n\">", rows[i].name, rows[i].what);
        mlo_distill_value(out, row, mlo_distill_is_share(row));
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div>");
    if (!isnan(mlo_distill_number(r, "temperature")))
        HTML(out, "<p class=\"muted\">Softened at the temperature %g.</p>",
             mlo_distill_number(r, "temperature"));
    HTML(out, "</section>");
}

/* What the step could not measure: conditions on it do not hold, and here is why. */
static void part_missing(struct mlo_buf *out, const json_t *missing)
{
    const json_t *row;
    size_t i;
    if (!json_array_size(missing))
        return;
    HTML(out, "<h2>Not measured</h2><section class=\"panel\"><div class=\"scroll\" "
              "tabindex=\"0\"><table><thead><tr>"
              "<th>Measure</th><th>Why not</th></tr></thead><tbody>");
    json_array_foreach((json_t *)missing, i, row)
        HTML(out, "<tr><td class=\"nowrap\"><code>%s</code></td><td class=\"why\">%s</td></tr>",
             mlo_json_str(row, "metric", ""), mlo_json_str(row, "why", ""));
    HTML(out, "</tbody></table></div></section>");
}

/* --- latency, models -------------------------------------------------------------------------------------
 */

static void part_latency(struct mlo_buf *out, const json_t *r)
{
    static const char *const rows[][3] = {{"p50_us", "ratio_p50", "p50"}, {"p99_us", "ratio_p99", "p99"}};
    const json_t *list = json_object_get(r, "latency"), *row;
    size_t i;
    if (!json_array_size(list))
        return;
    HTML(out, "<h2>Latency</h2><section class=\"panel\"><div "
              "class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Batch</th><th></th><th "
              "class=\"n\">Teacher</th><th "
              "class=\"n\">Student</th><th class=\"n\">Student ÷ teacher</th></tr></thead><tbody>");
    json_array_foreach((json_t *)list, i, row)
    {
        for (size_t k = 0; k < MLO_COUNT(rows); k++) {
            HTML(out, "<tr><td>%lld</td><td>%s</td>", (long long)mlo_json_i64(row, "batch", 1), rows[k][2]);
            for (size_t s = 0; s < 2; s++) {
                HTML(out, "<td class=\"n\">");
                mlo_distill_time(
                    out, mlo_distill_number(mlo_distill_in(mlo_distill_in(row, mlo_distill_sides[s], NULL),
                                                           rows[k][0], NULL),
                                            "value"));
                HTML(out, "</td>");
            }
            HTML(out, "<td class=\"n\">");
            mlo_distill_ratio(out, json_object_get(row, rows[k][1]));
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
    mlo_distill_bytes(out, side);
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
    part_missing(out, json_object_get(r, "missing"));
    mlo_distill_part_calibration(out, r);
    mlo_distill_part_groups(out, r, "per_slice", "slice", "By slice");
    mlo_distill_part_groups(out, r, "per_class", "class", "By class");
    mlo_distill_part_confusion(out, r);
    mlo_distill_part_farthest(out, r);
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
