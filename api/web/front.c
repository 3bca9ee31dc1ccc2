/* What a search found: accuracy and latency of its candidates as a picture, and all of it as a table. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/html/plot.h"
#include "api/web/web_impl.h"

enum { TITLE_MAX = 120 };

static double of(const json_t *point, const char *key)
{
    return mlo_json_f64(json_object_get(point, key), "value", NAN);
}

static struct mlo_plot_point plotted(const json_t *point, char title[TITLE_MAX])
{
    const json_t *drop = json_object_get(point, "accuracy_drop"),
                 *latency = json_object_get(point, "latency_ratio");
    double size = mlo_json_f64(point, "size_ratio", NAN);
    char more[40] = "";
    if (isfinite(size))
        snprintf(more, sizeof more, ", size x %.4g", size);
    snprintf(title, TITLE_MAX, "drop %.4g points, latency x %.4g%s", 100 * of(point, "accuracy_drop"),
             of(point, "latency_ratio"), more);
    return (struct mlo_plot_point){
        .x = of(point, "latency_ratio"),
        .x_low = mlo_json_f64(latency, "low", NAN),
        .x_high = mlo_json_f64(latency, "high", NAN),
        .y = 100 * of(point, "accuracy_drop"),
        .y_low = 100 * mlo_json_f64(drop, "low", NAN),
        .y_high = 100 * mlo_json_f64(drop, "high", NAN),
        .name = mlo_text(point, "name"),
        .title = title,
        .hollow = !mlo_json_bool(point, "meets", false),
    };
}

static void picture(struct mlo_buf *out, const json_t *points)
{
    size_t most = json_array_size(points) + 1, count = 1, measured = 0, i;
    struct mlo_plot_point *plot_points = calloc(most, sizeof *plot_points);
    char(*titles)[TITLE_MAX] = calloc(most, sizeof *titles);
    bool *front = calloc(most, sizeof *front);
    const json_t *point;
    if (!plot_points || !titles || !front) {
        out->failed = true;
        goto out;
    }
    plot_points[0] = (struct mlo_plot_point){.x = 1,
                                             .x_low = NAN,
                                             .x_high = NAN,
                                             .y_low = NAN,
                                             .y_high = NAN,
                                             .name = "source",
                                             .title = "what the others are compared with"};
    for (int on = 1; on >= 0; on--) /* those of the front first: a plot has a bound */
        json_array_foreach((json_t *)points, i, point)
        {
            if (mlo_json_bool(point, "front", false) != (on == 1))
                continue;
            plot_points[count] = plotted(point, titles[count]);
            front[count] = on == 1;
            measured += isfinite(plot_points[count].x) && isfinite(plot_points[count].y);
            count++;
        }
    const struct mlo_plot plot = {
        .label = "Accuracy drop and latency of the candidates; the table below says the same",
        .x_title = "latency (p50), times the source's",
        .y_title = "accuracy drop, points",
        .points = plot_points,
        .count = count,
        .front = front,
    };
    if (measured) {
        mlo_plot_scatter(out, &plot);
        HTML(out,
             "<p class=\"muted\"><small>Green dots are the front, which counts size too; an empty one does "
             "not keep the goal. Bars are intervals.</small></p>");
    } else {
        HTML(out, "<p class=\"muted\">No candidate has both an accuracy and a latency yet.</p>");
    }
out:
    free(plot_points);
    free(titles);
    free(front);
}

static void cell(struct mlo_buf *out, const json_t *point, const char *key, double times, int digits)
{
    double value = of(point, key);
    if (isfinite(value))
        HTML(out, "<td class=\"n\">%.*f</td>", digits, times * value);
    else
        HTML(out, "<td class=\"n muted\">–</td>");
}

static void row(struct mlo_buf *out, const json_t *run, const json_t *point)
{
    bool front = mlo_json_bool(point, "front", false);
    HTML(out, "<tr><td>");
    if (front) /* it is a variant of that name */
        HTML(out, "<b>%s-%s</b>", mlo_text(run, "recipe"), mlo_text(point, "name"));
    else
        HTML(out, "%s", mlo_text(point, "name"));
    if (mlo_text(point, "why")[0])
        HTML(out, "<br><small>%s</small>", mlo_text(point, "why"));
    HTML(out, "</td><td>%s</td><td>%s</td>", front ? "front" : mlo_text(point, "state"),
         mlo_json_bool(point, "meets", false) ? "kept" : "–");
    cell(out, point, "accuracy_drop", 100, 2);
    cell(out, point, "evaluated_drop", 100, 2);
    cell(out, point, "latency_p50_us", 1, 1);
    cell(out, point, "latency_ratio", 1, 3);
    HTML(out, "<td class=\"n\">");
    mlo_piece_size(out, json_object_get(point, "size"));
    HTML(out, "</td><td>");
    mlo_piece_digest(out, mlo_json_str(point, "artifact", NULL));
    HTML(out, "</td></tr>");
}

enum { ROWS_MAX = 40 };

void mlo_piece_front(struct mlo_buf *out, const json_t *run)
{
    const json_t *search = json_object_get(run, "search"), *points = json_object_get(search, "points"),
                 *point;
    const json_t *used = json_object_get(search, "used");
    double cost = mlo_json_f64(used, "cost", 0);
    size_t i;
    if (!search)
        return;
    HTML(out,
         "<h2>Front</h2><section class=\"panel\" id=\"front\"><p><code>%s</code>: %s%s%s. %lld jobs, %.0f "
         "s",
         mlo_text(search, "goal"), mlo_text(search, "why"), mlo_text(search, "stopped")[0] ? "; " : "",
         mlo_text(search, "stopped"), (long long)mlo_json_i64(used, "jobs", 0),
         mlo_json_f64(used, "elapsed_s", 0));
    if (cost > 0)
        HTML(out, ", a cost of %.4g", cost);
    HTML(out, ".</p>");
    picture(out, points);
    HTML(
        out,
        "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Candidate</th><th>State</th><th>Goal</th>"
        "<th class=\"n\">Drop, points</th><th class=\"n\">On evaluation data</th><th class=\"n\">p50, µs</th>"
        "<th class=\"n\">of the source's</th><th class=\"n\">Size</th><th>Artifact</th></tr></thead><tbody>");
    size_t rows = 0, left_out = 0;
    for (int front = 1; front >= 0; front--)
        json_array_foreach((json_t *)points, i, point)
        {
            if (mlo_json_bool(point, "front", false) != front)
                continue;
            if (rows++ < ROWS_MAX)
                row(out, run, point);
            else
                left_out++;
        }
    HTML(out, "</tbody></table></div>");
    if (left_out)
        HTML(out, "<p class=\"muted\">%zu more candidates are not shown; the API lists all.</p>", left_out);
    HTML(out, "</section>");
}
