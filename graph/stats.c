/* Observed statistics. Bin widths are powers of two: a bin of width 2w is exactly two bins of width w, so
 * widening loses nothing that any order of the same values would have kept. */
#include "graph/stats_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HALF = MLO_HIST_BINS / 2,
    WIDTH_MIN = -149 - 11, /* the least denormal float still gets a bin of its own */
    WIDTH_MAX = 128,
};

void mlo_stats_init(struct mlo_stats *stats)
{
    *stats = (struct mlo_stats){0};
}

void mlo_stats_clear(struct mlo_stats *stats)
{
    for (size_t i = 0; i < stats->count; i++) {
        free((char *)stats->tensors[i].name);
        free(stats->tensors[i].bins);
    }
    free(stats->tensors);
    mlo_stats_clear_channels(stats);
    mlo_stats_clear_grams(stats);
    *stats = (struct mlo_stats){0};
}

const struct mlo_tensor_stats *mlo_stats_find(const struct mlo_stats *stats, const char *name)
{
    for (size_t i = 0; i < stats->count; i++)
        if (strcmp(stats->tensors[i].name, name) == 0)
            return &stats->tensors[i];
    return NULL;
}

struct mlo_tensor_stats *mlo_stats_get(struct mlo_stats *stats, const char *name)
{
    const struct mlo_tensor_stats *found = mlo_stats_find(stats, name);
    if (found)
        return (struct mlo_tensor_stats *)found;
    if (stats->count == stats->cap) {
        size_t cap = stats->cap ? stats->cap * 2 : 16;
        struct mlo_tensor_stats *grown = realloc(stats->tensors, cap * sizeof *grown);
        if (!grown)
            return NULL;
        stats->tensors = grown;
        stats->cap = cap;
    }
    struct mlo_tensor_stats fresh = {.name = strdup(name), .log2_width = WIDTH_MIN};
    fresh.bins = calloc(MLO_HIST_BINS, sizeof *fresh.bins);
    if (!fresh.name || !fresh.bins) {
        free((char *)fresh.name);
        free(fresh.bins);
        return NULL;
    }
    stats->tensors[stats->count] = fresh;
    return &stats->tensors[stats->count++];
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mlo_tensor_stats *)a)->name, ((const struct mlo_tensor_stats *)b)->name);
}

void mlo_stats_sort(struct mlo_stats *stats)
{
    if (stats->count)
        qsort(stats->tensors, stats->count, sizeof stats->tensors[0], by_name);
    mlo_stats_sort_channels(stats);
    mlo_stats_sort_grams(stats);
}

/* The least width exponent whose bins hold the value: |v| < 2^w * HALF, and -2^w * HALF itself lies in the
 * first bin; for symmetry the boundary counts as outside on both sides. */
static int width_for(float value)
{
    int exponent;
    if (value == 0)
        return WIDTH_MIN;
    frexp(value, &exponent); /* |v| = m 2^e, m in [1/2, 1): v < 2^e = 2^(e-11) * 2048 */
    return MLO_MAX(exponent - 11, WIDTH_MIN);
}

/* Floor division of positions counted from the middle: bins (2k, 2k+1) become bin k, on both sides of zero.
 */
static void widen(struct mlo_tensor_stats *t, int log2_width)
{
    int shift = log2_width - t->log2_width;
    if (shift <= 0)
        return;
    t->log2_width = log2_width;
    if (!t->count)
        return;
    shift = MLO_MIN(shift, 12); /* all of a half is in its innermost bin by then */
    for (int k = 0; k < HALF; k++) {
        uint64_t positive = t->bins[HALF + k], negative = t->bins[HALF - 1 - k];
        t->bins[HALF + k] = t->bins[HALF - 1 - k] = 0;
        t->bins[HALF + (k >> shift)] += positive;
        t->bins[HALF - 1 - (k >> shift)] += negative;
    }
}

enum mlo_status mlo_tensor_stats_add(struct mlo_tensor_stats *t, const float *values, size_t count,
                                     struct mlo_error *err)
{
    double sum = 0, sum_sq = 0;
    float low = INFINITY, high = -INFINITY;
    uint64_t finite = 0;
    if (!t->bins)
        return mlo_error_set(err, MLO_EINVAL, "statistics of '%s' have no histogram", t->name ? t->name : "");
    for (size_t i = 0; i < count; i++) {
        float v = values[i];
        if (isnan(v)) {
            t->nan_count++;
        } else if (isinf(v)) {
            t->inf_count++;
        } else {
            low = v < low ? v : low;
            high = v > high ? v : high;
            sum += v;
            sum_sq += (double)v * v;
            finite++;
        }
    }
    if (finite) {
        int need = MLO_MAX(width_for(low), width_for(high));
        widen(t, need);
        double scale = ldexp(1, -t->log2_width);
        for (size_t i = 0; i < count; i++)
            if (isfinite(values[i])) /* exact: a float times a power of two */
                t->bins[HALF + (int)floor(values[i] * scale)]++;
        t->min = t->count && t->min <= low ? t->min : low + 0.0f; /* -0 and 0 are one value */
        t->max = t->count && t->max >= high ? t->max : high + 0.0f;
        t->ema_min += MLO_STATS_EMA * ((double)low - t->ema_min);
        t->ema_max += MLO_STATS_EMA * ((double)high - t->ema_max);
        t->ema_weight += MLO_STATS_EMA * (1 - t->ema_weight);
    }
    t->count += finite;
    t->sum += sum;
    t->sum_sq += sum_sq;
    t->samples++;
    return MLO_OK;
}

static void merge_one(struct mlo_tensor_stats *into, const struct mlo_tensor_stats *more)
{
    int shift = 0;
    if (more->count) {
        widen(into, more->log2_width);
        shift = MLO_MIN(into->log2_width - more->log2_width, 12);
        for (int k = 0; k < HALF; k++) {
            into->bins[HALF + (k >> shift)] += more->bins[HALF + k];
            into->bins[HALF - 1 - (k >> shift)] += more->bins[HALF - 1 - k];
        }
        into->min = into->count && into->min <= more->min ? into->min : more->min;
        into->max = into->count && into->max >= more->max ? into->max : more->max;
    }
    double keeps = 1 - more->ema_weight; /* what so many later samples leave of the earlier ones */
    into->ema_min = into->ema_min * keeps + more->ema_min;
    into->ema_max = into->ema_max * keeps + more->ema_max;
    into->ema_weight = into->ema_weight * keeps + more->ema_weight;
    into->count += more->count;
    into->nan_count += more->nan_count;
    into->inf_count += more->inf_count;
    into->sum += more->sum;
    into->sum_sq += more->sum_sq;
    into->samples += more->samples;
}

enum mlo_status mlo_stats_merge(struct mlo_stats *into, const struct mlo_stats *more, struct mlo_error *err)
{
    for (size_t i = 0; i < more->count; i++) {
        struct mlo_tensor_stats *t = mlo_stats_get(into, more->tensors[i].name);
        if (!t)
            return mlo_error_nomem(err);
        merge_one(t, &more->tensors[i]);
    }
    enum mlo_status status = mlo_stats_merge_channels(into, more, err);
    return status == MLO_OK ? mlo_stats_merge_grams(into, more, err) : status;
}

/* The value at a rank (in elements, from below), linear inside the bin that holds it. */
static float at_rank(const struct mlo_tensor_stats *t, double rank)
{
    double below = 0, width = ldexp(1, t->log2_width);
    for (int b = 0; b < MLO_HIST_BINS; b++) {
        double here = (double)t->bins[b];
        if (here > 0 && below + here >= rank)
            return (float)((b - HALF + (rank - below) / here) * width);
        below += here;
    }
    return t->max;
}

void mlo_tensor_stats_percentile(const struct mlo_tensor_stats *t, double percentile, float *low, float *high)
{
    *low = *high = 0;
    if (!t->count)
        return;
    double cut = MLO_MIN(MLO_MAX((100 - percentile) / 100, 0.0), 1.0) / 2 * (double)t->count;
    *low = cut > 0 ? at_rank(t, cut) : t->min;
    *high = cut > 0 ? at_rank(t, (double)t->count - cut) : t->max;
    *low = MLO_MIN(MLO_MAX(*low, t->min), t->max);
    *high = MLO_MIN(MLO_MAX(*high, t->min), t->max);
}
