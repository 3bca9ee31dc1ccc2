/* What metrics record, and the statistics made of it. */
#ifndef MLO_MEASURE_SCORES_IMPL_H
#define MLO_MEASURE_SCORES_IMPL_H

#include "pipeline/measure/measure.h"

/* `rows` rows of `width` numbers. Row u belongs to unit u (a sample, a group, an image), or rows first[u] …
 * first[u + 1] do where `first` is there. */
struct mlo_scores {
    const struct mlo_metric *metric;
    int64_t k; /* of the metric, 0: none */
    size_t units, rows, row_cap;
    int width;
    double *values;
    size_t *first;
    size_t *order, *order_b; /* rows in the order that the statistic wants; or NULL */
    uint32_t *unit_of;       /* by row, where there is `first` */
};

/* `times`: how often each unit is in the multiset; NULL: once. NaN where it has no meaning (AUC of one
 * class). */
typedef double mlo_statistic_fn(const struct mlo_scores *scores, const uint32_t *times);

struct mlo_statistic {
    mlo_statistic_fn *value;
    bool mean, proportion;      /* the mean of one number a unit; each 0 or 1 */
    const char *const *columns; /* their names, for the file of scores; NULL: "scores" */
    bool whole;                 /* recorded of all samples at once: what parts recorded cannot be joined */
    int most_of;                /* column (from 1) that holds the most of all rows; 0: none */
};
extern const struct mlo_statistic mlo_statistic_mean, mlo_statistic_share, mlo_statistic_f1,
    mlo_statistic_f1_positive, mlo_statistic_auc, mlo_statistic_spearman, mlo_statistic_perplexity,
    mlo_statistic_map, mlo_statistic_map50;

/* Room for `units` rows of `width` numbers, zeroed. */
MLO_MUST_USE enum mlo_status mlo_scores_init(struct mlo_scores *scores, size_t units, int width,
                                             struct mlo_error *err);
/* For rows that come one by one, unit by unit: the next row (width numbers), and the end of a unit. */
MLO_MUST_USE enum mlo_status mlo_scores_begin(struct mlo_scores *scores, size_t units, int width,
                                              struct mlo_error *err);
double *mlo_scores_add(struct mlo_scores *scores); /* NULL: out of memory; valid until the next */
void mlo_scores_end_unit(struct mlo_scores *scores, size_t unit);
/* Puts the units of `part`, recorded by the same metric on the samples that follow, behind those of `all`
 * (zeroed at first). Not of statistics that are `whole`. */
MLO_MUST_USE enum mlo_status mlo_scores_join(struct mlo_scores *all, const struct mlo_scores *part,
                                             struct mlo_error *err);
/* Rows sorted by one column, descending or ascending; equal ones as they are in `base`, an order of all rows
 * (NULL: their own). *out is to be the scores' own. */
MLO_MUST_USE enum mlo_status mlo_scores_sort(const struct mlo_scores *scores, int column, bool descending,
                                             const size_t *base, size_t **out, struct mlo_error *err);

/* How often a row counts. */
static inline double mlo_scores_times(const struct mlo_scores *s, const uint32_t *times, size_t row)
{
    return times ? (double)times[s->first ? s->unit_of[row] : row] : 1.0;
}

/* Samples and elements per sample of a tensor that has axis 0; MLO_EINVAL when it has none. */
MLO_MUST_USE enum mlo_status mlo_scores_shape(const struct mlo_tensor *tensor, const char *what,
                                              size_t *samples, size_t *elements, struct mlo_error *err);

#endif
