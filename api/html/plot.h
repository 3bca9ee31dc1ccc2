/* A scatter plot of two measured quantities with the Pareto front, as an SVG with classes and no script: the
 * page's style sheet colours it (svg.plot in api/web/assets/style.css). What it says must stand in a table
 * beside it, too. */
#ifndef MLO_HTML_PLOT_H
#define MLO_HTML_PLOT_H

#include "base/base.h"

/* More points than this are not looked at. */
#define MLO_PLOT_POINTS 512

/* One point. A position that is not finite leaves it out. Texts are borrowed, and escaped. */
struct mlo_plot_point {
    double x, y;                         /* in the units of the axes */
    double x_low, x_high, y_low, y_high; /* intervals around them; a pair that is not finite is not drawn */
    const char *name;                    /* written beside it, and the beginning of its tooltip */
    const char *title;                   /* the rest of the tooltip, or NULL */
    const char *href;                    /* a path of this site, or NULL */
    bool hollow; /* drawn empty: what the others are compared with, or is not allowed */
};

struct mlo_plot {
    const char *label;             /* what a screen reader says of the picture */
    const char *x_title, *y_title; /* with their units: "p50, ms" */
    bool more_x, more_y;           /* more is better on that axis; else less is */
    const struct mlo_plot_point *points;
    size_t count;
    /* Which of the points are on the front, by more than these two axes; NULL: found here and joined by
     * steps. */
    const bool *front;
};

/* front[i] (plot->count of them, at most MLO_PLOT_POINTS are written): whether no other point is at least as
 * good on both axes and better on one. Points without a finite position are not on it. The points on it; 0
 * when there is no point. */
size_t mlo_plot_front(const struct mlo_plot *plot, bool *front);

/* Appends the picture, 600 by 340, in a <div class="scroll">; nothing when no point has a position. Points on
 * the front have the class "front" and, where they were found here, are joined by steps. Names are left out
 * where they would cover another; with more than 16 points only those of the front are written. */
void mlo_plot_scatter(struct mlo_buf *out, const struct mlo_plot *plot);

#endif
