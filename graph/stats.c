/* Observed statistics. Bin widths are powers of two: a bin of width 2w is exactly two bins of width w, so
 * widening loses nothing that any order of the same values would have kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/stats_impl.h"

enum { HALF = MLO_HIST_BINS / 2 };

void mlo_stats_init(struct mlo_stats *stats)
{
    *stats = (struct mlo_stats){0};
}

void mlo_stats_clear(struct mlo_stats *stats)
{
    for (size_t i = 0; i < stats->count; i++) {
        free((char *)stats->tensors[i].name);
        free(stats->tensors[i].bins);
        mlo_sums_clear(&stats->tensors[i].sums);
    }
    free(stats->tensors);
    free(stats->origin);
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
    struct mlo_tensor_stats fresh = {.name = strdup(name),
                                     .log2_width = MLO_STATS_WIDTH_MIN,
                                     .next = stats->first,
                                     .sums = {.width = MLO_SUMS_TENSOR}};
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

int mlo_stats_width(float value)
{
    int exponent;
    if (value == 0)
        return MLO_STATS_WIDTH_MIN;
    frexp(value, &exponent); /* |v| = m 2^e, m in [1/2, 1): v < 2^e = 2^(e-11) * 2048 */
    return MLO_MAX(exponent - 11, MLO_STATS_WIDTH_MIN);
}

/* Floor division of positions counted from the middle: bins (2k, 2k+1) become bin k, on both sides of zero.
 */
void mlo_stats_widen(struct mlo_tensor_stats *t, int log2_width)
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

void mlo_tensor_stats_total(struct mlo_tensor_stats *t)
{
    double total[MLO_SUMS_TENSOR];
    mlo_sums_total(&t->sums, total);
    t->sum = total[0];
    t->sum_sq = total[1];
    t->ema_min = total[2];
    t->ema_max = total[3];
    t->ema_weight = total[4];
}

static enum mlo_status merge_one(struct mlo_tensor_stats *into, const struct mlo_tensor_stats *more,
                                 struct mlo_error *err)
{
    enum mlo_status status = mlo_sums_merge(&into->sums, &more->sums, err);
    if (status != MLO_OK) {
        mlo_error_where(err, "value '%s'", into->name);
        return status;
    }
    if (more->count) {
        mlo_stats_widen(into, more->log2_width);
        int shift = MLO_MIN(into->log2_width - more->log2_width, 12);
        for (int k = 0; k < HALF; k++) {
            into->bins[HALF + (k >> shift)] += more->bins[HALF + k];
            into->bins[HALF - 1 - (k >> shift)] += more->bins[HALF - 1 - k];
        }
        into->min = into->count && into->min <= more->min ? into->min : more->min;
        into->max = into->count && into->max >= more->max ? into->max : more->max;
    }
    into->count += more->count;
    into->nan_count += more->nan_count;
    into->inf_count += more->inf_count;
    into->samples += more->samples;
    into->next = MLO_MAX(into->next, more->next);
    mlo_tensor_stats_total(into);
    return MLO_OK;
}

enum mlo_status mlo_stats_merge(struct mlo_stats *into, const struct mlo_stats *more, struct mlo_error *err)
{
    if (into->origin && more->origin && strcmp(into->origin, more->origin) != 0) {
        mlo_error_set(err, MLO_EINVAL, "statistics of one model or dataset do not add to those of another");
        mlo_error_hint(err, "observe all shards with the same model, data and options");
        return MLO_EINVAL;
    }
    for (size_t i = 0; i < more->count; i++) {
        struct mlo_tensor_stats *t = mlo_stats_get(into, more->tensors[i].name);
        if (!t)
            return mlo_error_nomem(err);
        enum mlo_status status = merge_one(t, &more->tensors[i], err);
        if (status != MLO_OK)
            return status;
    }
    if (!into->origin && more->origin && !(into->origin = strdup(more->origin)))
        return mlo_error_nomem(err);
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
