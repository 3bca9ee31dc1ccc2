/* What a search found: accuracy and latency of its candidates as a picture, and all of it as a table. */
#include <math.h>
#include <string.h>

#include "api/web/web_impl.h"

enum { WIDTH = 640, HEIGHT = 320, LEFT = 64, BOTTOM = 44, TOP = 14, RIGHT = 16, TICKS = 4 };

struct scale {
    double low, high;
};

static double of(const json_t *point, const char *key)
{
    return mlo_json_f64(json_object_get(point, key), "value", NAN);
}

static bool drawn(const json_t *point)
{
    return isfinite(of(point, "accuracy_drop")) && isfinite(of(point, "latency_ratio"));
}

static struct scale scale_of(const json_t *points, const char *key, double with)
{
    struct scale s = {with, with};
    const json_t *point;
    size_t i;
    json_array_foreach((json_t *)points, i, point)
    {
        if (!drawn(point))
            continue;
        s.low = fmin(s.low, of(point, key));
        s.high = fmax(s.high, of(point, key));
    }
    double margin = fmax((s.high - s.low) * 0.08, 1e-3);
    return (struct scale){s.low - margin, s.high + margin};
}

static double x_of(struct scale s, double value)
{
    return LEFT + (value - s.low) / (s.high - s.low) * (WIDTH - LEFT - RIGHT);
}

/* Less is lower: the corner at the bottom left is the best. */
static double y_of(struct scale s, double value)
{
    return HEIGHT - BOTTOM - (value - s.low) / (s.high - s.low) * (HEIGHT - BOTTOM - TOP);
}

static void axes(struct mlo_buf *out, struct scale x, struct scale y)
{
    for (int i = 0; i <= TICKS; i++) {
        double vx = x.low + (x.high - x.low) * i / TICKS, vy = y.low + (y.high - y.low) * i / TICKS;
        HTML(out,
             "<line class=\"tick\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"></line><text class=\"y\" "
             "x=\"%d\" "
             "y=\"%.1f\">%.2f</text><text class=\"x\" x=\"%.1f\" y=\"%d\">%.2f</text>",
             LEFT, WIDTH - RIGHT, y_of(y, vy), y_of(y, vy), LEFT - 6, y_of(y, vy) + 4, 100 * vy, x_of(x, vx),
             HEIGHT - BOTTOM + 16, vx);
    }
    HTML(out,
         "<text class=\"x\" x=\"%d\" y=\"%d\">latency (p50), times the source's</text>"
         "<text class=\"name\" x=\"%d\" y=\"%d\">accuracy drop, points</text>",
         (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, LEFT + 4, TOP + 8);
}

static void dot(struct mlo_buf *out, struct scale sx, struct scale sy, const json_t *point)
{
    bool front = mlo_json_bool(point, "front", false);
    const json_t *drop = json_object_get(point, "accuracy_drop");
    double x = x_of(sx, of(point, "latency_ratio")), y = y_of(sy, of(point, "accuracy_drop"));
    double low = fmax(mlo_json_f64(drop, "low", 0), sy.low),
           high = fmin(mlo_json_f64(drop, "high", 0), sy.high);
    /* the area says the size */
    double radius = 3 + 5 * sqrt(fmin(fmax(mlo_json_f64(point, "size_ratio", 0), 0), 2));
    HTML(out, "<g class=\"%s%s\"><title>%s: drop %.2f points, latency x %.3f, size x %.3f</title>",
         front ? "front" : "other", mlo_json_bool(point, "meets", false) ? " meets" : "",
         mlo_text(point, "name"), 100 * of(point, "accuracy_drop"), of(point, "latency_ratio"),
         mlo_json_f64(point, "size_ratio", 0));
    if (high > low)
        HTML(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"></line>", x, x, y_of(sy, low),
             y_of(sy, high));
    HTML(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"></circle>", x, y, radius);
    if (front)
        HTML(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">%s</text>", x > WIDTH / 2.0 ? "y" : "name",
             x + (x > WIDTH / 2.0 ? -radius - 4 : radius + 4), y - 5, mlo_text(point, "name"));
    HTML(out, "</g>");
}

static void picture(struct mlo_buf *out, const json_t *points)
{
    struct scale x = scale_of(points, "latency_ratio", 1), y = scale_of(points, "accuracy_drop", 0);
    const json_t *point;
    size_t i;
    HTML(out,
         "<div class=\"scroll\"><svg class=\"front\" role=\"img\" aria-label=\"Accuracy drop and latency of "
         "the "
         "candidates; the table below says the same\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">",
         WIDTH, HEIGHT, WIDTH, HEIGHT);
    axes(out, x, y);
    for (int front = 0; front < 2; front++)
        json_array_foreach((json_t *)points, i,
                           point) if (drawn(point) && mlo_json_bool(point, "front", false) == front)
            dot(out, x, y, point);
    HTML(out, "</svg></div>");
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

void mlo_piece_front(struct mlo_buf *out, const json_t *run)
{
    const json_t *search = json_object_get(run, "search"), *points = json_object_get(search, "points"),
                 *point;
    const json_t *used = json_object_get(search, "used");
    size_t i;
    if (!search)
        return;
    HTML(out,
         "<h2>Front</h2><section class=\"panel\" id=\"front\"><p><code>%s</code>: %s%s%s. %lld jobs, %.0f "
         "s.</p>",
         mlo_text(search, "goal"), mlo_text(search, "why"), mlo_text(search, "stopped")[0] ? "; " : "",
         mlo_text(search, "stopped"), (long long)mlo_json_i64(used, "jobs", 0),
         mlo_json_f64(used, "elapsed_s", 0));
    picture(out, points);
    HTML(
        out,
        "<div class=\"scroll\"><table><thead><tr><th>Candidate</th><th>State</th><th>Goal</th>"
        "<th class=\"n\">Drop, points</th><th class=\"n\">On evaluation data</th><th class=\"n\">p50, µs</th>"
        "<th class=\"n\">of the source's</th><th class=\"n\">Size</th><th>Artifact</th></tr></thead><tbody>");
    for (int front = 1; front >= 0; front--)
        json_array_foreach((json_t *)points, i, point) if (mlo_json_bool(point, "front", false) == front)
            row(out, run, point);
    HTML(out, "</tbody></table></div></section>");
}
