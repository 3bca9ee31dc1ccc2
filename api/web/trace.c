/* Where a run's time went, as a waterfall: an SVG for the eye, and the same as a table for whoever cannot see
 * it or wants the numbers. */
#include <math.h>
#include <string.h>

#include "api/web/web_impl.h"

enum { LABEL_W = 180, CHART_W = 720, ROW_H = 28, BAR_H = 16, TOP = 26, RIGHT = 84, TICKS_MAX = 12 };

void mlo_piece_duration(struct mlo_buf *out, double s)
{
    if (s < 0.9995)
        HTML(out, "%.0f&nbsp;ms", s * 1000);
    else if (s < 9.995)
        HTML(out, "%.2f&nbsp;s", s);
    else if (s < 99.95)
        HTML(out, "%.1f&nbsp;s", s);
    else if (s < 7200)
        HTML(out, "%.0f&nbsp;min %.0f&nbsp;s", floor(s / 60), floor(fmod(s, 60)));
    else
        HTML(out, "%.0f&nbsp;h %.0f&nbsp;min", floor(s / 3600), floor(fmod(s, 3600) / 60));
}

/* A step of the axis that gives at most seven: 1, 2 or 5 times a power of ten. */
static double tick_step(double seconds)
{
    double step = pow(10, floor(log10(seconds / 7)));
    for (int i = 0; step * 7 < seconds && i < 3; i++)
        step *= i == 1 ? 2.5 : 2;
    return step;
}

static void axis(struct mlo_buf *out, double seconds, int height)
{
    double step = tick_step(seconds);
    for (int i = 0; i <= TICKS_MAX && i * step <= seconds; i++) {
        double x = LABEL_W + i * step / seconds * CHART_W;
        HTML(out,
             "<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text class=\"when\" "
             "x=\"%.1f\" y=\"16\">",
             x, x, TOP - 4, height, x);
        if (step < 1 && i)
            HTML(out, "%g ms", i * step * 1000);
        else
            HTML(out, "%g s", i * step);
        HTML(out, "</text>");
    }
}

static const char *words(const json_t *span)
{
    static const struct {
        const char *kind, *text;
    } names[] = {{"blocked", "waits for other jobs"}, {"queued", "waits for a worker"}};
    for (size_t i = 0; i < MLO_COUNT(names); i++)
        if (strcmp(names[i].kind, mlo_text(span, "kind")) == 0)
            return names[i].text;
    return mlo_text(span, "outcome")[0] ? mlo_text(span, "outcome") : "running";
}

/* The class of a bar: what it is, by more than its colour (see the title, and the table). */
static const char *look(const json_t *span)
{
    static const char *const known[] = {"failed", "lost", "retried", "cancelled", "returned", "reused"};
    const char *outcome = mlo_text(span, "outcome");
    if (strcmp(mlo_text(span, "kind"), "attempt") != 0)
        return strcmp(mlo_text(span, "kind"), "blocked") == 0 ? "blocked" : "queued";
    for (size_t i = 0; i < MLO_COUNT(known); i++)
        if (strcmp(known[i], outcome) == 0)
            return known[i];
    return outcome[0] ? "done" : "open";
}

/* "inputs" and so on: a shade each; what is not known has that of a step. */
static const char *shade(const char *phase)
{
    static const char *const known[] = {"inputs", "turn", "step", "store", "record"};
    for (size_t i = 0; i < MLO_COUNT(known); i++)
        if (strcmp(known[i], phase) == 0)
            return known[i];
    return "step";
}

static void bar(struct mlo_buf *out, const char *class, const char *of, double from, double to, double scale,
                int top, int height)
{
    double width = MLO_MAX((to - from) * scale, 1.5);
    HTML(out, "<rect class=\"%s %s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" rx=\"2\"><title>",
         class, of, LABEL_W + from * scale, top, width, height);
}

static void job_row(struct mlo_buf *out, const json_t *job, double scale, int top)
{
    const json_t *span, *phase;
    double end = 0, worked = 0;
    char name[32];
    size_t i, p;
    snprintf(name, sizeof name, "%.24s", mlo_text(job, "name"));
    HTML(out, "<text class=\"job\" x=\"%d\" y=\"%d\">%s</text>", LABEL_W - 10, top + 18, name);
    json_array_foreach(json_object_get(job, "spans"), i, span)
    {
        double from = mlo_json_f64(span, "from_s", 0), to = mlo_json_f64(span, "to_s", 0);
        bool attempt = strcmp(mlo_text(span, "kind"), "attempt") == 0;
        bar(out, look(span), attempt ? "attempt" : "wait", from, to, scale, attempt ? top + 6 : top + 11,
            attempt ? BAR_H : BAR_H - 10);
        HTML(out, "%s: ", mlo_text(job, "name"));
        if (attempt)
            HTML(out, "attempt %lld, ", (long long)mlo_json_i64(span, "attempt", 0));
        HTML(out, "%s, ", words(span));
        mlo_piece_duration(out, to - from);
        HTML(out, "</title></rect>");
        json_array_foreach(json_object_get(span, "phases"), p, phase)
        {
            double begin = mlo_json_f64(phase, "from_s", 0), stop = mlo_json_f64(phase, "to_s", 0);
            if ((stop - begin) * scale < 0.5)
                continue;
            bar(out, shade(mlo_text(phase, "name")), "phase", begin, stop, scale, top + 6, BAR_H);
            HTML(out, "%s: %s, ", mlo_text(job, "name"), mlo_text(phase, "name"));
            mlo_piece_duration(out, stop - begin);
            HTML(out, "</title></rect>");
        }
        end = to;
        worked += attempt ? to - from : 0;
    }
    HTML(out, "<text class=\"took\" x=\"%.1f\" y=\"%d\">", LABEL_W + end * scale + 6, top + 18);
    if (worked > 0) {
        if (mlo_json_i64(job, "earlier", 0)) /* attempts that are not shown took their time as well */
            HTML(out, "≥&nbsp;");
        mlo_piece_duration(out, worked);
    }
    HTML(out, "</text>");
}

static void legend(struct mlo_buf *out)
{
    static const struct {
        const char *class, *text;
    } rows[] = {{"wait blocked", "waits for other jobs"},
                {"wait queued", "waits for a worker"},
                {"phase inputs", "inputs"},
                {"phase turn", "waits for the machine"},
                {"phase step", "step"},
                {"phase store", "store"},
                {"phase record", "record"},
                {"attempt lost", "lost, failed or tried again"}};
    HTML(out, "<ul class=\"legend\" aria-hidden=\"true\">");
    for (size_t i = 0; i < MLO_COUNT(rows); i++)
        HTML(out,
             "<li><svg class=\"waterfall\" width=\"14\" height=\"12\"><rect class=\"%s\" x=\"1\" y=\"1\" "
             "width=\"12\" "
             "height=\"10\" rx=\"2\"/></svg> %s</li>",
             rows[i].class, rows[i].text);
    HTML(out, "</ul>");
}

void mlo_piece_trace(struct mlo_buf *out, const json_t *trace)
{
    const json_t *jobs = json_object_get(trace, "jobs"), *job;
    double seconds = MLO_MAX(mlo_json_f64(trace, "seconds", 0), 0.01);
    int height = TOP + (int)json_array_size(jobs) * ROW_H + 6;
    size_t i;
    if (!json_array_size(jobs))
        return;
    HTML(out,
         "<div class=\"scroll\" tabindex=\"0\"><svg class=\"waterfall\" role=\"img\" aria-label=\"Where the "
         "time of the run "
         "went; the "
         "table below says the same\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">",
         LABEL_W + CHART_W + RIGHT, height, LABEL_W + CHART_W + RIGHT, height);
    axis(out, seconds, height);
    json_array_foreach((json_t *)jobs, i, job) job_row(out, job, CHART_W / seconds, TOP + (int)i * ROW_H);
    HTML(out, "</svg></div>");
    legend(out);
}

static void table_row(struct mlo_buf *out, const json_t *job, const char *what, const json_t *span,
                      const char *how)
{
    double from = mlo_json_f64(span, "from_s", 0), to = mlo_json_f64(span, "to_s", 0);
    HTML(out, "<tr><td>%s</td><td>%s</td><td class=\"n\">", mlo_text(job, "name"), what);
    if (json_is_integer(json_object_get(span, "attempt")))
        HTML(out, "%lld", (long long)mlo_json_i64(span, "attempt", 0));
    HTML(out, "</td><td class=\"n\">");
    mlo_piece_duration(out, from);
    HTML(out, "</td><td class=\"n\">");
    mlo_piece_duration(out, to - from);
    HTML(out, "</td><td>%s</td><td>%s</td></tr>", how, mlo_text(span, "worker"));
}

void mlo_piece_trace_table(struct mlo_buf *out, const json_t *trace)
{
    const json_t *job, *span, *phase;
    size_t i, s, p;
    HTML(out, "<section class=\"panel\"><details id=\"trace\"><summary>As a table</summary><div "
              "class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Job</th>"
              "<th>What</th><th class=\"n\">Attempt</th><th class=\"n\">After</th><th "
              "class=\"n\">Took</th><th>Outcome</th>"
              "<th>Worker</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(trace, "jobs"), i, job)
    {
        if (mlo_json_i64(job, "earlier", 0))
            HTML(out,
                 "<tr><td>%s</td><td colspan=\"6\" class=\"muted\">%lld attempts before: mlopt runs trace "
                 "%lld</td></tr>",
                 mlo_text(job, "name"), (long long)mlo_json_i64(job, "earlier", 0),
                 (long long)mlo_json_i64(trace, "run", 0));
        json_array_foreach(json_object_get(job, "spans"), s, span)
        {
            bool attempt = strcmp(mlo_text(span, "kind"), "attempt") == 0;
            table_row(out, job, mlo_text(span, "kind"), span, attempt ? words(span) : "");
            json_array_foreach(json_object_get(span, "phases"), p, phase)
                table_row(out, job, mlo_text(phase, "name"), phase, "");
        }
    }
    HTML(out, "</tbody></table></div></details></section>");
}
