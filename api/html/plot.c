#include "api/html/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/html/html.h"

enum { WIDTH = 600, HEIGHT = 340, LEFT = 64, RIGHT = 24, TOP = 14, BOTTOM = 46, NAMES_MAX = 16 };

/* One axis: values from low to high lie between the pixels from and to. */
struct axis {
    double low, high, step;
    double from, to;
    int digits; /* behind the point, in its ticks */
};

struct box {
    double left, top, right, bottom;
};

struct drawing {
    const struct mlo_plot *plot;
    size_t count;
    bool front[MLO_PLOT_POINTS];
    struct axis x, y;
    struct box taken[2 * MLO_PLOT_POINTS]; /* dots, then names */
    size_t taken_count;
};

static bool placed(const struct mlo_plot_point *p)
{
    return isfinite(p->x) && isfinite(p->y);
}

/* Whether a is at least as good as b on both axes and better on one. */
static bool beats(const struct mlo_plot *plot, const struct mlo_plot_point *a, const struct mlo_plot_point *b)
{
    double x = plot->more_x ? a->x - b->x : b->x - a->x, y = plot->more_y ? a->y - b->y : b->y - a->y;
    return x >= 0 && y >= 0 && (x > 0 || y > 0);
}

size_t mlo_plot_front(const struct mlo_plot *plot, bool *front)
{
    size_t count = MLO_MIN(plot->count, (size_t)MLO_PLOT_POINTS), on = 0;
    for (size_t i = 0; i < count; i++) {
        front[i] = placed(&plot->points[i]);
        for (size_t j = 0; j < count && front[i]; j++)
            front[i] = !placed(&plot->points[j]) || !beats(plot, &plot->points[j], &plot->points[i]);
        on += front[i];
    }
    return on;
}

static double at(const struct axis *a, double value)
{
    return a->from + (value - a->low) / (a->high - a->low) * (a->to - a->from);
}

static void widen(double *low, double *high, double value)
{
    if (!isfinite(value))
        return;
    *low = fmin(*low, value);
    *high = fmax(*high, value);
}

/* Ticks at 1, 2 or 5 times a power of ten, about five, and room at both ends. */
static void scale(struct axis *a, double low, double high)
{
    double span = high - low;
    if (!(span > 0)) /* one value: a tenth of it on each side */
        span = fabs(high) > 0 ? 0.2 * fabs(high) : 1;
    double middle = low / 2 + high / 2, half = 0.62 * span;
    a->low = low >= 0 ? fmax(middle - half, 0) : middle - half;
    a->high = middle + half;
    double power = pow(10, floor(log10((a->high - a->low) / 5))), times = (a->high - a->low) / 5 / power;
    a->step = power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
    a->digits = (int)fmin(fmax(-floor(log10(a->step) + 1e-9), 0), 12);
}

static bool scales(struct drawing *d)
{
    double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
    for (size_t i = 0; i < d->count; i++) {
        const struct mlo_plot_point *p = &d->plot->points[i];
        if (!placed(p))
            continue;
        const double xs[] = {p->x, p->x_low, p->x_high}, ys[] = {p->y, p->y_low, p->y_high};
        for (size_t k = 0; k < MLO_COUNT(xs); k++) {
            widen(&x_low, &x_high, xs[k]);
            widen(&y_low, &y_high, ys[k]);
        }
    }
    if (!isfinite(x_low))
        return false;
    scale(&d->x, x_low, x_high);
    scale(&d->y, y_low, y_high);
    d->x.from = LEFT;
    d->x.to = WIDTH - RIGHT;
    d->y.from = HEIGHT - BOTTOM;
    d->y.to = TOP;
    /* what overflows in a difference is no scale to draw on */
    return isfinite(d->x.high - d->x.low) && isfinite(d->y.high - d->y.low) && d->x.step > 0 && d->y.step > 0;
}

static void tick_text(struct mlo_buf *out, const struct axis *a, double value)
{
    if (fabs(value) < a->step / 1e6)
        value = 0;
    char text[400];
    if (fabs(value) >= 1e7 || a->digits > 6)
        snprintf(text, sizeof text, "%.3g", value);
    else
        snprintf(text, sizeof text, "%.*f", a->digits, value);
    HTML(out, "%s", text);
}

static void axes(struct mlo_buf *out, const struct drawing *d)
{
    enum { TICKS_MAX = 12 };
    const struct axis *x = &d->x, *y = &d->y;
    double first = ceil(x->low / x->step) * x->step;
    for (int i = 0; i < TICKS_MAX && first + i * x->step <= x->high; i++) {
        double px = at(x, first + i * x->step);
        HTML(out, "<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", px, px, TOP,
             HEIGHT - BOTTOM);
        HTML(out, "<text class=\"across\" x=\"%.1f\" y=\"%d\">", px, HEIGHT - BOTTOM + 17);
        tick_text(out, x, first + i * x->step);
        HTML(out, "</text>");
    }
    first = ceil(y->low / y->step) * y->step;
    for (int i = 0; i < TICKS_MAX && first + i * y->step <= y->high; i++) {
        double py = at(y, first + i * y->step);
        HTML(out, "<line class=\"tick\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDTH - RIGHT,
             py, py);
        HTML(out, "<text class=\"down\" x=\"%d\" y=\"%.1f\">", LEFT - 8, py + 4);
        tick_text(out, y, first + i * y->step);
        HTML(out, "</text>");
    }
    HTML(out, "<text class=\"across\" x=\"%d\" y=\"%d\">%s (%s is better)</text>", (LEFT + WIDTH - RIGHT) / 2,
         HEIGHT - 8, d->plot->x_title, d->plot->more_x ? "more" : "less");
    HTML(out, "<text class=\"across\" transform=\"translate(14 %d) rotate(-90)\">%s (%s is better)</text>",
         (TOP + HEIGHT - BOTTOM) / 2, d->plot->y_title, d->plot->more_y ? "more" : "less");
}

struct place {
    double x, y;
};

static int by_x(const void *a, const void *b)
{
    const struct place *p = a, *q = b;
    return p->x != q->x ? (p->x > q->x) - (p->x < q->x) : (p->y > q->y) - (p->y < q->y);
}

/* The front as steps: between two of its points only what the worse of both gives on each axis is reached. */
static void front_line(struct mlo_buf *out, const struct drawing *d)
{
    struct place places[MLO_PLOT_POINTS];
    size_t n = 0;
    for (size_t i = 0; i < d->count; i++)
        if (d->front[i])
            places[n++] = (struct place){at(&d->x, d->plot->points[i].x), at(&d->y, d->plot->points[i].y)};
    if (n < 2)
        return;
    qsort(places, n, sizeof *places, by_x);
    HTML(out, "<path class=\"front\" d=\"M%.1f %.1f", places[0].x, places[0].y);
    for (size_t i = 1; i < n; i++) {
        /* less is better across: to the right first, at the height of the one that is there already */
        if (d->plot->more_x)
            HTML(out, "V%.1fH%.1f", places[i].y, places[i].x);
        else
            HTML(out, "H%.1fV%.1f", places[i].x, places[i].y);
    }
    HTML(out, "\"/>");
}

static void interval(struct mlo_buf *out, double x1, double y1, double x2, double y2)
{
    if (isfinite(x1) && isfinite(y1) && isfinite(x2) && isfinite(y2))
        HTML(out, "<line class=\"interval\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", x1, y1, x2,
             y2);
}

static void dot(struct mlo_buf *out, const struct drawing *d, size_t i)
{
    const struct mlo_plot_point *p = &d->plot->points[i];
    double x = at(&d->x, p->x), y = at(&d->y, p->y);
    HTML(out, "<g class=\"point%s%s\"><title>%s%s%s%s</title>", d->front[i] ? " front" : "",
         p->hollow ? " hollow" : "", p->name ? p->name : "", d->front[i] ? " (on the Pareto front)" : "",
         p->title ? ": " : "", p->title ? p->title : "");
    interval(out, at(&d->x, p->x_low), y, at(&d->x, p->x_high), y);
    interval(out, x, at(&d->y, p->y_low), x, at(&d->y, p->y_high));
    if (p->href)
        HTML(out, "<a href=\"%s\" aria-label=\"%s\">", p->href, p->name ? p->name : "");
    HTML(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>", x, y);
    if (p->href)
        HTML(out, "</a>");
    HTML(out, "</g>");
}

static bool is_free(const struct drawing *d, const struct box *b)
{
    if (b->left < LEFT || b->right > WIDTH - 2 || b->top < 0 || b->bottom > HEIGHT - BOTTOM)
        return false;
    for (size_t i = 0; i < d->taken_count; i++) {
        const struct box *t = &d->taken[i];
        if (b->left < t->right && t->left < b->right && b->top < t->bottom && t->top < b->bottom)
            return false;
    }
    return true;
}

/* About what the text takes: 6.8 pixels a character, code points counted. */
static double text_width(const char *text)
{
    double n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return 6.8 * n;
}

/* The name right of its point, else left, above or below, where nothing stands yet. */
static void name(struct mlo_buf *out, struct drawing *d, size_t i)
{
    static const struct {
        double dx, dy;
        int side; /* -1: the text ends there, 0: its middle, 1: it begins there */
    } ways[] = {{9, 4, 1},  {-9, 4, -1}, {0, -10, 0},  {0, 19, 0},
                {9, -9, 1}, {9, 17, 1},  {-9, -9, -1}, {-9, 17, -1}};
    static const char *const anchors[] = {"end", "middle", "start"};
    const struct mlo_plot_point *p = &d->plot->points[i];
    double width = text_width(p->name);
    for (size_t w = 0; w < MLO_COUNT(ways); w++) {
        double x = at(&d->x, p->x) + ways[w].dx, y = at(&d->y, p->y) + ways[w].dy;
        double left = ways[w].side > 0 ? x : ways[w].side < 0 ? x - width : x - width / 2;
        struct box b = {left, y - 11, left + width, y + 3};
        if (!is_free(d, &b))
            continue;
        d->taken[d->taken_count++] = b;
        HTML(out, "<text class=\"name\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">%s</text>",
             anchors[ways[w].side + 1], x, y, p->name);
        return;
    }
}

void mlo_plot_scatter(struct mlo_buf *out, const struct mlo_plot *plot)
{
    struct drawing *d = calloc(1, sizeof *d);
    bool links = false;
    if (!d) {
        out->failed = true;
        return;
    }
    d->plot = plot;
    d->count = MLO_MIN(plot->count, (size_t)MLO_PLOT_POINTS);
    if (!scales(d)) {
        free(d);
        return;
    }
    if (!plot->front)
        mlo_plot_front(plot, d->front);
    for (size_t i = 0; plot->front && i < d->count; i++)
        d->front[i] = plot->front[i] && placed(&plot->points[i]);
    size_t shown = 0;
    for (size_t i = 0; i < d->count; i++) {
        const struct mlo_plot_point *p = &plot->points[i];
        if (!placed(p))
            continue;
        double x = at(&d->x, p->x), y = at(&d->y, p->y);
        d->taken[d->taken_count++] = (struct box){x - 6, y - 6, x + 6, y + 6};
        links = links || p->href;
        shown++;
    }
    /* an image hides what is in it from screen readers: not where there are links */
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><svg class=\"plot\" role=\"%s\" aria-label=\"%s\"",
         links ? "group" : "img", plot->label);
    HTML(out, " width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">", WIDTH, HEIGHT, WIDTH, HEIGHT);
    axes(out, d);
    if (!plot->front)
        front_line(out, d);
    for (size_t i = 0; i < d->count; i++)
        if (placed(&plot->points[i]))
            dot(out, d, i);
    for (int front = 1; front >= 0; front--) /* those of the front first: they find room */
        for (size_t i = 0; i < d->count; i++)
            if (placed(&plot->points[i]) && plot->points[i].name && d->front[i] == (front == 1) &&
                (front || shown <= NAMES_MAX))
                name(out, d, i);
    HTML(out, "</svg></div>");
    free(d);
}
