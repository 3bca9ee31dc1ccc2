/* The noise of every tensor, worst first, with the histogram of its values and the range that was chosen for
 * them. */
#include <stdlib.h>
#include <string.h>

#include "api/html/report_impl.h"

enum { WIDTH = 260, HEIGHT = 46, MOST_BINS = 256 };

/* --- the histogram ------------------------------------------------------------------------------------- */

/* Where numbers stand in the picture. */
struct axis {
    double from, to;
};

static double place(const struct axis *x, double value)
{
    return fmax(0, fmin(1, (value - x->from) / (x->to - x->from))) * WIDTH;
}

static bool make_axis(const json_t *tensor, double low, double width, size_t bins, struct axis *x)
{
    double from = mlo_report_at(tensor, "range", 0), to = mlo_report_at(tensor, "range", 1);
    x->from = isnan(from) ? low : fmin(low, from);
    x->to = isnan(to) ? low + width * (double)bins : fmax(low + width * (double)bins, to);
    double margin = (x->to - x->from) * 0.02;
    x->from -= margin;
    x->to += margin;
    return isfinite(x->from) && isfinite(x->to) && x->to > x->from;
}

/* Heights are logarithms: what is rare is what ranges are about. */
static void bars(struct mlo_buf *out, const struct axis *x, double low, double width, const json_t *counts)
{
    double most = 0;
    size_t bins = json_array_size(counts);
    for (size_t b = 0; b < bins; b++)
        most = fmax(most, json_number_value(json_array_get(counts, b)));
    HTML(out, "<path class=\"bins\" d=\"");
    for (size_t b = 0; b < bins; b++) {
        double count = json_number_value(json_array_get(counts, b));
        if (!(count > 0))
            continue;
        double left = place(x, low + width * (double)b), right = place(x, low + width * (double)(b + 1));
        double height = fmax(log1p(count) / log1p(most) * (HEIGHT - 2), 1);
        HTML(out, "M%.1f %d h%.1f v-%.1f h-%.1f z", left, HEIGHT, fmax(right - left, 0.5), height,
             fmax(right - left, 0.5));
    }
    HTML(out, "\"/>");
}

static void range_marks(struct mlo_buf *out, const struct axis *x, const json_t *tensor)
{
    double from = mlo_report_at(tensor, "range", 0), to = mlo_report_at(tensor, "range", 1);
    if (isnan(from) || isnan(to))
        return;
    double a = place(x, from), z = place(x, to);
    HTML(out,
         "<rect class=\"out\" x=\"0\" y=\"0\" width=\"%.1f\" height=\"%d\"/><rect class=\"out\" x=\"%.1f\" "
         "y=\"0\" "
         "width=\"%.1f\" height=\"%d\"/><path class=\"mark\" d=\"M%.1f 0V%d M%.1f 0V%d\"/>",
         a, HEIGHT, z, WIDTH - z, HEIGHT, a, HEIGHT, z, HEIGHT);
}

static void histogram(struct mlo_buf *out, const json_t *tensor)
{
    const json_t *h = json_object_get(tensor, "histogram"), *counts = json_object_get(h, "counts");
    double low = mlo_json_f64(h, "low", NAN), width = mlo_json_f64(h, "width", NAN);
    size_t bins = json_array_size(counts);
    struct axis x;
    if (!bins || bins > MOST_BINS || !isfinite(low) || !(width > 0) ||
        !make_axis(tensor, low, width, bins, &x))
        return;
    HTML(out,
         "<svg class=\"histogram\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
         "aria-label=\"Histogram\">",
         WIDTH, HEIGHT, WIDTH, HEIGHT);
    bars(out, &x, low, width, counts);
    range_marks(out, &x, tensor);
    if (x.from < 0 && x.to > 0)
        HTML(out, "<path class=\"zero\" d=\"M%.1f 0V%d\"/>", place(&x, 0), HEIGHT);
    HTML(out, "</svg>");
}

/* --- the table ----------------------------------------------------------------------------------------- */

static void span(struct mlo_buf *out, const json_t *tensor, const char *key)
{
    double low = mlo_report_at(tensor, key, 0), high = mlo_report_at(tensor, key, 1);
    if (isnan(low) || isnan(high))
        HTML(out, "<span class=\"muted\">–</span>");
    else
        HTML(out, "%.4g&nbsp;to&nbsp;%.4g", low, high);
}

static void tensor_row(struct mlo_buf *out, const json_t *t)
{
    bool weights = strcmp(mlo_json_str(t, "kind", ""), "weights") == 0;
    double clipped = mlo_json_f64(t, "clipped", NAN), alone = mlo_json_f64(t, "grid_sqnr_db", NAN);
    HTML(out, "<tr><td class=\"name\"><code>%s</code><small>", mlo_json_str(t, "tensor", ""));
    if (weights)
        HTML(out, "weights of %s, %s, %lld scale%s", mlo_json_str(t, "node", ""),
             mlo_json_str(t, "dtype", ""), (long long)mlo_json_i64(t, "scales", 0),
             mlo_json_i64(t, "scales", 0) == 1 ? "" : "s");
    else if (json_object_get(t, "dtype"))
        HTML(out, "%s, scale %.4g, zero point %lld", mlo_json_str(t, "dtype", ""),
             mlo_json_f64(t, "scale", 0), (long long)mlo_json_i64(t, "zero_point", 0));
    else
        HTML(out, "not quantized itself");
    HTML(out, "</small></td><td class=\"n\">");
    mlo_report_db_cell(out, mlo_json_f64(t, "sqnr_db", NAN));
    if (!isnan(alone))
        HTML(out, "<small>%.1f alone</small>", alone);
    HTML(out, "</td><td class=\"picture\">");
    histogram(out, t);
    HTML(out, "</td><td class=\"n\"><small>seen</small> ");
    span(out, t, "observed");
    if (json_object_get(t, "range")) {
        HTML(out, "<br><small>range</small> ");
        span(out, t, "range");
    }
    if (clipped > 0)
        HTML(out, "<br><small>beyond it</small> %.3g&nbsp;%%", clipped * 100);
    HTML(out, "</td></tr>");
}

static void tensor_rows(struct mlo_buf *out, const json_t *tensors, size_t from, size_t to)
{
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table class=\"tensors\"><thead><tr><th>Tensor</th><th "
              "class=\"n\">SQNR</th>"
              "<th>Values</th><th class=\"n\">From, to</th></tr></thead><tbody>");
    for (size_t i = from; i < to; i++)
        tensor_row(out, json_array_get(tensors, i));
    HTML(out, "</tbody></table></div>");
}

/* All ratios at a glance, the worst first. */
static void overview(struct mlo_buf *out, const json_t *tensors)
{
    enum { W = 1000, H = 70, TOP = 60 }; /* decibels */
    size_t count = MLO_MIN(json_array_size(tensors), (size_t)MLO_PAGE_ROWS);
    double step = count ? (double)W / (double)count : 0;
    if (count < 3)
        return;
    HTML(out,
         "<svg class=\"overview\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" "
         "aria-label=\"Signal to noise of all tensors, worst first\">",
         W, H);
    for (size_t i = 0; i < count; i++) {
        double db = mlo_json_f64(json_array_get(tensors, i), "sqnr_db", NAN);
        if (isnan(db))
            continue;
        double height = fmax(1, fmin(1, db / TOP) * H);
        HTML(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>",
             db >= 30   ? "good"
             : db >= 15 ? "fair"
                        : "bad",
             (double)i * step, H - height, fmax(step * 0.8, step - 2), height);
    }
    HTML(out, "</svg>");
}

void mlo_report_part_tensors(struct mlo_buf *out, const json_t *tensors, const json_t *data)
{
    const json_t *seen = json_object_get(data, "tensors");
    size_t count = json_array_size(tensors), first = MLO_MIN(count, (size_t)MLO_PAGE_FIRST),
           last = MLO_MIN(count, (size_t)MLO_PAGE_ROWS);
    HTML(out, "<h2>Tensors, the noisiest first</h2><section class=\"panel\">");
    if (!count) {
        HTML(out, "<p class=\"muted\">No tensor has another form than in the source.</p></section>");
        return;
    }
    overview(out, tensors);
    HTML(out,
         "<p class=\"muted\">SQNR is the ratio of the float value's power to that of the difference; each "
         "bar is one "
         "of %zu tensors, 60&nbsp;dB at the top. <i>alone</i>: what its own range and rounding leave, were "
         "all before "
         "it exact. Histograms have logarithmic heights; the marks are the range that was chosen, and what "
         "lies in "
         "the shade beyond them is clipped. ",
         count);
    if (seen)
        HTML(out, "Values are of the first %lld of %lld samples of the role %s.",
             (long long)mlo_json_i64(seen, "samples", 0), (long long)mlo_json_i64(seen, "of", 0),
             mlo_json_str(seen, "role", ""));
    else
        HTML(out, "Without data, weights alone are compared.");
    HTML(out, "</p>");
    tensor_rows(out, tensors, 0, first);
    mlo_report_more_begin(out, last - first, "tensors");
    if (last > first)
        tensor_rows(out, tensors, first, last);
    mlo_report_more_end(out, last - first);
    mlo_report_left_out(out, count - last);
    HTML(out, "</section>");
}
