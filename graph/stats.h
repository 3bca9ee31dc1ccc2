/* Statistics that engines observe on tensors and calibrators read.
 *
 * Streaming, of bounded memory, mergeable, and independent of how samples were split into batches: the
 * histogram's bin width is always a power of two and doubles when a value falls outside, so any order of the
 * same values gives the same bins; moments are kept per sample in sample order. */
#ifndef MLO_GRAPH_STATS_H
#define MLO_GRAPH_STATS_H

#include "graph/tensor.h"

enum { MLO_HIST_BINS = 4096 }; /* half for negative values, half for positive ones */

struct mlo_tensor_stats {
    const char *name; /* of the value; owned */
    uint64_t count;   /* finite elements seen */
    uint64_t nan_count, inf_count;
    float min, max;     /* of finite elements */
    double sum, sum_sq; /* added up per sample, then in sample order */
    uint64_t samples;
    int log2_width; /* bin b covers [(b - BINS/2) * 2^w, (b + 1 - BINS/2) * 2^w) */
    uint64_t *bins; /* MLO_HIST_BINS counts; owned */
};

struct mlo_stats {
    struct mlo_tensor_stats *tensors; /* sorted by name after mlo_stats_sort */
    size_t count, cap;
};

void mlo_stats_init(struct mlo_stats *stats);
void mlo_stats_clear(struct mlo_stats *stats);
/* The entry for a value, made when absent; NULL: out of memory. */
struct mlo_tensor_stats *mlo_stats_get(struct mlo_stats *stats, const char *name);
/* The entry, or NULL. */
const struct mlo_tensor_stats *mlo_stats_find(const struct mlo_stats *stats, const char *name);
/* Adds one sample's values (float32). */
MLO_MUST_USE enum mlo_status mlo_tensor_stats_add(struct mlo_tensor_stats *t, const float *values,
                                                  size_t count, struct mlo_error *err);
/* Adds all of `more`, whose samples come after those of `into`. Bins and extremes are exact for any split;
 * sums are so when each side holds whole samples. */
MLO_MUST_USE enum mlo_status mlo_stats_merge(struct mlo_stats *into, const struct mlo_stats *more,
                                             struct mlo_error *err);
void mlo_stats_sort(struct mlo_stats *stats);
/* The value below which a fraction p of |values|' histogram lies, from both ends: range that keeps the
 * central `percentile` percent (e.g. 99.99), linear inside a bin, clamped to [min, max]. */
void mlo_tensor_stats_percentile(const struct mlo_tensor_stats *t, double percentile, float *low,
                                 float *high);

/* JSON in and out (bins run-length coded), for blobs: equal stats give equal canonical text. */
MLO_MUST_USE enum mlo_status mlo_stats_to_json(const struct mlo_stats *stats, json_t **out,
                                               struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_stats_from_json(const json_t *json, struct mlo_stats *out,
                                                 struct mlo_error *err);

#endif
