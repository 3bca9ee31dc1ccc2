/* The parts of mlo_stats: histograms (stats.c), channels (stats_channels.c), Gram matrices (stats_gram.c),
 * files (stats_file.c). */
#ifndef MLO_GRAPH_STATS_IMPL_H
#define MLO_GRAPH_STATS_IMPL_H

#include "graph/stats.h"

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
