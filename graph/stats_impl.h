/* The parts of mlo_stats: entries and merging (stats.c), histograms and moments of values (stats_add.c), sums
 * over samples (stats_sums.c), channels (stats_channels.c), Gram matrices (stats_gram.c),
 * files (stats_file.c). */
#ifndef MLO_GRAPH_STATS_IMPL_H
#define MLO_GRAPH_STATS_IMPL_H

#include "graph/stats.h"

enum {
    MLO_STATS_WIDTH_MIN = -149 - 11, /* the least denormal float still gets a bin of its own */
    MLO_STATS_WIDTH_MAX = 128,
    /* The numbers of a tensor's sample: sum, sum of squares, the averages and their weight. */
    MLO_SUMS_TENSOR = 5,
};
/* The least width exponent whose bins hold the value: |v| < 2^w * half of the bins; for symmetry the boundary
 * counts as outside on both sides. */
int mlo_stats_width(float value);
/* Doubles bins until their width is 2^log2_width. */
void mlo_stats_widen(struct mlo_tensor_stats *t, int log2_width);

/* A node of 2^log2 samples; MLO_EINVAL: some are there already. Where the width is MLO_SUMS_TENSOR the last
 * three numbers are moving averages, else all are sums. */
MLO_MUST_USE enum mlo_status mlo_sums_add(struct mlo_sample_sums *sums, uint64_t first, unsigned log2,
                                          const double *numbers, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_sums_merge(struct mlo_sample_sums *into, const struct mlo_sample_sums *more,
                                            struct mlo_error *err);
/* What all nodes come to, in order; zeros when there are none. */
void mlo_sums_total(const struct mlo_sample_sums *sums, double *out);
/* How many samples there are. */
uint64_t mlo_sums_samples(const struct mlo_sample_sums *sums);
void mlo_sums_clear(struct mlo_sample_sums *sums);
/* As a list of [first, log2, numbers…]; NULL: out of memory. Reading wants exactly `samples` of them. */
json_t *mlo_sums_json(const struct mlo_sample_sums *sums);
MLO_MUST_USE enum mlo_status mlo_sums_read(const json_t *list, uint64_t samples, struct mlo_sample_sums *out,
                                           struct mlo_error *err);
/* Takes sum, sum_sq and the averages over from the tree. */
void mlo_tensor_stats_total(struct mlo_tensor_stats *t);
void mlo_channel_stats_total(struct mlo_channel_stats *c);

void mlo_stats_clear_channels(struct mlo_stats *stats);
void mlo_stats_sort_channels(struct mlo_stats *stats);
MLO_MUST_USE enum mlo_status mlo_stats_merge_channels(struct mlo_stats *into, const struct mlo_stats *more,
                                                      struct mlo_error *err);
/* An array of objects in order of names; NULL: out of memory. */
json_t *mlo_stats_channels_json(const struct mlo_stats *sorted);
MLO_MUST_USE enum mlo_status mlo_stats_read_channels(const json_t *list, struct mlo_stats *out,
                                                     struct mlo_error *err);

void mlo_stats_clear_grams(struct mlo_stats *stats);
void mlo_stats_sort_grams(struct mlo_stats *stats);
MLO_MUST_USE enum mlo_status mlo_stats_merge_grams(struct mlo_stats *into, const struct mlo_stats *more,
                                                   struct mlo_error *err);
/* The entry of that key, made when absent; NULL: out of memory, or it is there in another shape. */
struct mlo_gram *mlo_stats_make_gram(struct mlo_stats *stats, const char *key, int64_t groups, int64_t dim,
                                     bool full);
/* Numbers of a group's matrix. */
size_t mlo_gram_numbers(const struct mlo_gram *gram);

#endif
