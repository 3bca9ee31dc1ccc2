/* Accuracy against latency of a version's variants, as a plot. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/html/load.h"
#include "api/html/plot.h"
#include "api/web/web_impl.h"

static size_t measured_under(const json_t *variants, const json_t *load)
{
    const json_t *item;
    size_t i, n = 0;
    json_array_foreach((json_t *)variants, i, item) n +=
        mlo_load_row(json_object_get(item, "latency"), load) != NULL;
    return n;
}

/* The load under which most variants were measured, the first of these; only numbers of one load compare. */
static const json_t *common_load(const json_t *variants)
{
    const json_t *item, *row, *best = NULL;
    size_t i, r, most = 0;
    json_array_foreach((json_t *)variants, i, item)
    {
        json_array_foreach(json_object_get(item, "latency"), r, row)
        {
            size_t n = measured_under(variants, row);
            if (n > most) {
                most = n;
                best = row;
            }
        }
    }
    return best;
}

/* The metric of the first variant that has one (the source, where it was evaluated). */
static const json_t *common_metric(const json_t *variants)
{
    const json_t *item;
    size_t i;
    json_array_foreach(
        (json_t *)variants, i,
        item) if (json_is_object(json_object_get(item, "accuracy"))) return json_object_get(item, "accuracy");
    return NULL;
}

void mlo_piece_variant_plot(struct mlo_buf *out, const json_t *variants)
{
    const json_t *load = common_load(variants), *metric = common_metric(variants), *item;
    struct mlo_plot_point *points = NULL;
    const char *name = mlo_text(metric, "metric");
    bool share = mlo_str_starts(name, "top");
    double times = share ? 100 : 1;
    char x_title[MLO_LOAD_TEXT_SIZE + 16], y_title[64], load_text[MLO_LOAD_TEXT_SIZE];
    const char *compared = NULL; /* the first variant, where it is drawn */
    size_t i, n = 0;
    if (!load || !metric)
        return;
    points = calloc(json_array_size(variants), sizeof *points);
    if (!points) {
        out->failed = true;
        return;
    }
    json_array_foreach((json_t *)variants, i, item)
    {
        const json_t *p50 = json_object_get(mlo_load_row(json_object_get(item, "latency"), load), "p50_us"),
                     *accuracy = json_object_get(item, "accuracy");
        if (!json_is_object(p50) || strcmp(mlo_text(accuracy, "metric"), name) != 0 ||
            strcmp(mlo_text(accuracy, "dataset"), mlo_text(metric, "dataset")) != 0)
            continue;
        if (i == 0)
            compared = mlo_text(item, "variant");
        points[n++] = (struct mlo_plot_point){
            .x = mlo_json_f64(p50, "value", NAN) / 1e3,
            .x_low = mlo_json_f64(p50, "low", NAN) / 1e3,
            .x_high = mlo_json_f64(p50, "high", NAN) / 1e3,
            .y = mlo_json_f64(accuracy, "value", NAN) * times,
            .y_low = mlo_json_f64(accuracy, "low", NAN) * times,
            .y_high = mlo_json_f64(accuracy, "high", NAN) * times,
            .name = mlo_text(item, "variant"),
            .hollow = i == 0,
        };
    }
    snprintf(x_title, sizeof x_title, "p50 in ms, %s", mlo_load_text(load, load_text));
    snprintf(y_title, sizeof y_title, "%.40s%s", name, share ? " in %" : "");
    const struct mlo_plot plot = {
        .label = "Accuracy against latency of the variants; the table says the same",
        .x_title = x_title,
        .y_title = y_title,
        .more_y = strcmp(name, "mse") != 0,
        .points = points,
        .count = n,
    };
    if (n >= 2) {
        HTML(out, "<h3 class=\"chart\">Accuracy against latency <small>on %s, data %s</small></h3>",
             mlo_text(load, "machine_class"), mlo_text(metric, "dataset"));
        mlo_plot_scatter(out, &plot);
        HTML(out,
             "<p class=\"muted\"><small>Green dots are the Pareto front: no other variant is as fast and as "
             "accurate. "
             "Bars are 95&nbsp;%% intervals%s%s.</small></p>",
             compared ? "; the empty dot is " : "", compared ? compared : "");
    }
    free(points);
}
