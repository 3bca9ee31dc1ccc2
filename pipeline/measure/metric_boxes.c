/* Mean average precision of boxes: Everingham et al. (2010) for one overlap, Lin et al. (2014, COCO) for the
 * mean over ten and the precision at 101 recalls.
 *
 * Output [batch, boxes, 6] holds x1, y1, x2, y2, score, class; y [batch, boxes, 5] x1, y1, x2, y2, class. A
 * row with a negative class is padding. The units are images. */
#include <math.h>
#include <stdlib.h>

#include "pipeline/measure/metric_impl.h"

enum {
    OVERLAPS = 10,
    RECALLS = 101,
    WIDTH = 2 + OVERLAPS,
    CLASS = 0,
    SCORE = 1,
    HIT = 2,
    CLASS_MAX = 1000000
};

struct box {
    double x1, y1, x2, y2, score;
    int64_t class_number;
};

static double overlap(const struct box *a, const struct box *b)
{
    double w = fmin(a->x2, b->x2) - fmax(a->x1, b->x1), h = fmin(a->y2, b->y2) - fmax(a->y1, b->y1);
    double both = w > 0 && h > 0 ? w * h : 0;
    double all = (a->x2 - a->x1) * (a->y2 - a->y1) + (b->x2 - b->x1) * (b->y2 - b->y1) - both;
    return all > 0 ? both / all : 0;
}

static int by_score(const void *a, const void *b)
{
    const struct box *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}

static enum mlo_status read_boxes(const struct mlo_tensor *t, size_t image, bool scored, struct box *out,
                                  size_t *count, struct mlo_error *err)
{
    size_t width = scored ? 6 : 5, boxes = (size_t)t->dims[1];
    *count = 0;
    for (size_t i = 0; i < boxes; i++) {
        double v[6];
        for (size_t k = 0; k < width; k++) {
            v[k] = mlo_tensor_get_f64(t, (image * boxes + i) * width + k);
            if (!isfinite(v[k]))
                return mlo_error_set(err, MLO_EINVAL, "box %zu of image %zu is not finite", i, image);
        }
        if (v[width - 1] < 0)
            continue;
        if (v[width - 1] > CLASS_MAX)
            return mlo_error_set(err, MLO_EINVAL, "box %zu of image %zu is of class %g; %d is the largest", i,
                                 image, v[width - 1], CLASS_MAX);
        out[(*count)++] = (struct box){v[0], v[1], v[2], v[3], scored ? v[4] : 0, (int64_t)v[width - 1]};
    }
    qsort(out, *count, sizeof *out, by_score);
    return MLO_OK;
}

/* One row a detection, with a 1 for each overlap at which it finds a box that no better one found; one row
 * (score infinite) a box to be found. */
static enum mlo_status match(const struct box *found, size_t found_count, const struct box *wanted,
                             size_t wanted_count, bool *taken, struct mlo_scores *out, struct mlo_error *err)
{
    for (size_t i = 0; i < wanted_count * OVERLAPS; i++)
        taken[i] = false;
    for (size_t i = 0; i < wanted_count; i++) {
        double *row = mlo_scores_add(out);
        if (!row)
            return mlo_error_nomem(err);
        row[CLASS] = (double)wanted[i].class_number;
        row[SCORE] = INFINITY;
    }
    for (size_t d = 0; d < found_count; d++) {
        double *row = mlo_scores_add(out);
        if (!row)
            return mlo_error_nomem(err);
        row[CLASS] = (double)found[d].class_number;
        row[SCORE] = found[d].score;
        for (int o = 0; o < OVERLAPS; o++) {
            double best = 0.5 + 0.05 * o - 1e-10;
            size_t hit = wanted_count;
            for (size_t i = 0; i < wanted_count; i++) {
                double with = overlap(&found[d], &wanted[i]);
                if (wanted[i].class_number == found[d].class_number && !taken[i * OVERLAPS + (size_t)o] &&
                    with >= best)
                    best = with, hit = i;
            }
            if (hit == wanted_count)
                continue;
            taken[hit * OVERLAPS + (size_t)o] = true;
            row[HIT + o] = 1;
        }
    }
    return MLO_OK;
}

enum mlo_status mlo_record_boxes(const struct mlo_metric_data *data, struct mlo_scores *out,
                                 struct mlo_error *err)
{
    const struct mlo_tensor *x = data->output, *y = data->target;
    enum mlo_status status;
    struct box *found = NULL, *wanted = NULL;
    bool *taken = NULL;
    char a[160], b[160];
    if (x->rank != 3 || x->dims[2] != 6 || y->rank != 3 || y->dims[2] != 5 || x->dims[0] != y->dims[0]) {
        mlo_error_set(err, MLO_EINVAL, "the output is %s and array 'y' %s",
                      mlo_tensor_describe(x, a, sizeof a), mlo_tensor_describe(y, b, sizeof b));
        mlo_error_hint(err, "boxes are [batch, n, 6] (x1, y1, x2, y2, score, class) in the output and "
                            "[batch, n, 5] (x1, y1, x2, y2, class) in y; class -1 is padding");
        return MLO_EINVAL;
    }
    found = malloc(((size_t)x->dims[1] + 1) * sizeof *found);
    wanted = malloc(((size_t)y->dims[1] + 1) * sizeof *wanted);
    taken = malloc(((size_t)y->dims[1] + 1) * OVERLAPS * sizeof *taken);
    if (!found || !wanted || !taken) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_scores_begin(out, (size_t)x->dims[0], WIDTH, err));
    for (size_t image = 0; image < out->units; image++) {
        size_t found_count, wanted_count;
        MLO_TRY(read_boxes(x, image, true, found, &found_count, err));
        MLO_TRY(read_boxes(y, image, false, wanted, &wanted_count, err));
        MLO_TRY(match(found, found_count, wanted, wanted_count, taken, out, err));
        mlo_scores_end_unit(out, image);
    }
    /* by class, and in it by falling score: the boxes to be found come first */
    MLO_TRY(mlo_scores_sort(out, SCORE, true, NULL, &out->order_b, err));
    MLO_TRY(mlo_scores_sort(out, CLASS, false, out->order_b, &out->order, err));
out:
    free(found);
    free(wanted);
    free(taken);
    return status;
}

/* --- the statistic -----------------------------------------------------------------------------------------
 */

struct curve {
    double precision, recall;
};

/* The mean over 101 recalls of the best precision at that recall or a higher one. */
static double average_precision(struct curve *points, size_t count)
{
    double sum = 0;
    for (size_t i = count; i-- > 1;)
        points[i - 1].precision = fmax(points[i - 1].precision, points[i].precision);
    size_t at = 0;
    for (int r = 0; r < RECALLS; r++) {
        while (at < count && points[at].recall < (double)r / (RECALLS - 1))
            at++;
        sum += at < count ? points[at].precision : 0;
    }
    return sum / RECALLS;
}

/* Rows [begin, end) of the order are one class. NAN: none of its boxes is to be found. */
static double of_class(const struct mlo_scores *s, const uint32_t *times, size_t begin, size_t end,
                       int overlaps, struct curve *points)
{
    double wanted = 0, sum = 0;
    for (; begin < end && isinf(s->values[s->order[begin] * WIDTH + SCORE]); begin++)
        wanted += mlo_scores_times(s, times, s->order[begin]);
    for (int o = 0; o < overlaps; o++) {
        double hits = 0, seen = 0;
        size_t count = 0;
        for (size_t i = begin; i < end; i++) {
            double w = mlo_scores_times(s, times, s->order[i]);
            seen += w;
            if (w > 0 && s->values[s->order[i] * WIDTH + HIT + (size_t)o] > 0) {
                hits += w;
                points[count++] = (struct curve){hits / seen, hits / wanted};
            }
        }
        sum += average_precision(points, count);
    }
    return wanted > 0 ? sum / overlaps : NAN;
}

static double mean_precision(const struct mlo_scores *s, const uint32_t *times, int overlaps)
{
    double sum = 0;
    size_t classes = 0;
    struct curve *points = malloc((s->rows + 1) * sizeof *points);
    if (!points)
        return NAN;
    for (size_t begin = 0, end; begin < s->rows; begin = end) {
        double class_number = s->values[s->order[begin] * WIDTH + CLASS];
        for (end = begin + 1; end < s->rows && s->values[s->order[end] * WIDTH + CLASS] == class_number;
             end++)
            ;
        double precision = of_class(s, times, begin, end, overlaps, points);
        sum += isnan(precision) ? 0 : precision;
        classes += !isnan(precision);
    }
    free(points);
    return classes ? sum / (double)classes : NAN;
}

static double map(const struct mlo_scores *s, const uint32_t *times)
{
    return mean_precision(s, times, OVERLAPS);
}

static double map50(const struct mlo_scores *s, const uint32_t *times)
{
    return mean_precision(s, times, 1);
}
static const char *const columns[WIDTH] = {"class",  "score",  "hit.50", "hit.55", "hit.60", "hit.65",
                                           "hit.70", "hit.75", "hit.80", "hit.85", "hit.90", "hit.95"};
const struct mlo_statistic mlo_statistic_map = {.value = map, .columns = columns, .whole = true};
const struct mlo_statistic mlo_statistic_map50 = {.value = map50, .columns = columns, .whole = true};
