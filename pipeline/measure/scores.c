/* Recorded scores: storage, resampling, intervals. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/estimate_impl.h"
#include "pipeline/measure/random_impl.h"
#include "pipeline/measure/scores_impl.h"

static const uint64_t RESAMPLE_SEED = 0x73636f726573; /* fixed: equal scores give equal intervals */

void mlo_scores_free(struct mlo_scores *scores)
{
    if (!scores)
        return;
    free(scores->values);
    free(scores->first);
    free(scores->order);
    free(scores->order_b);
    free(scores->unit_of);
    free(scores);
}

enum mlo_status mlo_scores_shape(const struct mlo_tensor *tensor, const char *what, size_t *samples,
                                 size_t *elements, struct mlo_error *err)
{
    if (tensor->rank < 1)
        return mlo_error_set(err, MLO_EINVAL, "%s is a single number: it has no row per sample", what);
    *samples = (size_t)tensor->dims[0];
    *elements = *samples ? mlo_tensor_count(tensor) / *samples : 0;
    return MLO_OK;
}

enum mlo_status mlo_scores_init(struct mlo_scores *scores, size_t units, int width, struct mlo_error *err)
{
    scores->units = scores->rows = units;
    scores->width = width;
    scores->values = calloc(units * (size_t)width + 1, sizeof *scores->values);
    return scores->values ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_scores_begin(struct mlo_scores *scores, size_t units, int width, struct mlo_error *err)
{
    scores->units = units;
    scores->width = width;
    scores->first = calloc(units + 1, sizeof *scores->first);
    return scores->first ? MLO_OK : mlo_error_nomem(err);
}

double *mlo_scores_add(struct mlo_scores *scores)
{
    size_t width = (size_t)scores->width;
    if (scores->rows == scores->row_cap) {
        size_t cap = scores->row_cap ? scores->row_cap * 2 : 256;
        double *values = reallocarray(scores->values, cap * width, sizeof *values);
        if (!values)
            return NULL;
        scores->values = values;
        uint32_t *unit_of = reallocarray(scores->unit_of, cap, sizeof *unit_of);
        if (!unit_of)
            return NULL;
        scores->unit_of = unit_of;
        scores->row_cap = cap;
    }
    double *row = scores->values + scores->rows++ * width;
    memset(row, 0, width * sizeof *row);
    return row;
}

void mlo_scores_end_unit(struct mlo_scores *scores, size_t unit)
{
    for (size_t r = scores->first[unit]; r < scores->rows; r++)
        scores->unit_of[r] = (uint32_t)unit;
    scores->first[unit + 1] = scores->rows;
}

enum mlo_status mlo_scores_join(struct mlo_scores *all, const struct mlo_scores *part, struct mlo_error *err)
{
    const struct mlo_statistic *statistic = part->metric->statistic;
    if (statistic->whole || part->first || part->order ||
        (all->metric && (all->metric != part->metric || all->width != part->width || all->k != part->k)))
        return mlo_error_set(err, MLO_EINTERNAL, "scores of %s cannot be joined", part->metric->name);
    size_t width = (size_t)part->width, rows = all->rows + part->rows;
    all->metric = part->metric;
    all->k = part->k;
    all->width = part->width;
    if (rows > all->row_cap) {
        size_t cap = MLO_MAX(rows, 2 * all->row_cap);
        double *values = reallocarray(all->values, cap * width + 1, sizeof *values);
        if (!values)
            return mlo_error_nomem(err);
        all->values = values;
        all->row_cap = cap;
    }
    memcpy(all->values + all->rows * width, part->values, part->rows * width * sizeof *all->values);
    all->rows = all->units = rows;
    if (statistic->most_of && rows && part->rows) {
        double *first = all->values + statistic->most_of - 1;
        *first = fmax(*first, part->values[statistic->most_of - 1]);
    }
    return MLO_OK;
}

/* --- order ------------------------------------------------------------------------------------------- */

struct keyed {
    double key;
    size_t place, row;
};

static int ascending(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    int by_key = (x->key > y->key) - (x->key < y->key);
    return by_key ? by_key : (x->place > y->place) - (x->place < y->place);
}

enum mlo_status mlo_scores_sort(const struct mlo_scores *scores, int column, bool is_descending,
                                const size_t *base, size_t **out, struct mlo_error *err)
{
    struct keyed *keyed = malloc((scores->rows + 1) * sizeof *keyed);
    *out = malloc((scores->rows + 1) * sizeof **out);
    if (!keyed || !*out) {
        free(keyed);
        return mlo_error_nomem(err);
    }
    for (size_t r = 0; r < scores->rows; r++) {
        size_t row = base ? base[r] : r;
        double key = scores->values[row * (size_t)scores->width + (size_t)column];
        keyed[r] = (struct keyed){is_descending ? -key : key, r, row};
    }
    qsort(keyed, scores->rows, sizeof *keyed, ascending);
    for (size_t r = 0; r < scores->rows; r++)
        (*out)[r] = keyed[r].row;
    free(keyed);
    return MLO_OK;
}

/* --- estimates --------------------------------------------------------------------------------------- */

static void percentile_interval(double *values, size_t count, struct mlo_estimate *out)
{
    mlo_sort_f64(values, count);
    out->low = mlo_quantile_sorted(values, count, 0.025);
    out->high = mlo_quantile_sorted(values, count, 0.975);
}

/* The statistic of a, or the difference of it between a and b, with a bootstrap over units. Resamples in
 * which it has no meaning do not count. */
static enum mlo_status bootstrap(const struct mlo_scores *a, const struct mlo_scores *b,
                                 struct mlo_estimate *out, struct mlo_error *err)
{
    const struct mlo_statistic *statistic = a->metric->statistic;
    uint32_t *times = malloc((a->units + 1) * sizeof *times);
    double *resampled = malloc(MLO_BOOTSTRAP_RESAMPLES * sizeof *resampled);
    size_t count = 0;
    struct mlo_rng rng;
    enum mlo_status status = MLO_OK;
    if (!times || !resampled) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *out = (struct mlo_estimate){.value = statistic->value(a, NULL) - (b ? statistic->value(b, NULL) : 0),
                                 .n = (int64_t)a->units};
    mlo_rng_seed(&rng, RESAMPLE_SEED);
    for (int r = 0; r < MLO_BOOTSTRAP_RESAMPLES; r++) {
        memset(times, 0, a->units * sizeof *times);
        for (size_t i = 0; i < a->units; i++)
            times[mlo_rng_below(&rng, a->units)]++;
        double value = statistic->value(a, times) - (b ? statistic->value(b, times) : 0);
        if (!isnan(value))
            resampled[count++] = value;
    }
    if (isnan(out->value) || !count) {
        mlo_error_set(err, MLO_EINVAL, "%s has no meaning on these samples", a->metric->name);
        mlo_error_hint(err, "are there samples of more than one class, and values that differ?");
        status = MLO_EINVAL;
        goto out;
    }
    percentile_interval(resampled, count, out);
out:
    free(times);
    free(resampled);
    return status;
}

enum mlo_status mlo_scores_estimate(const struct mlo_scores *scores, struct mlo_estimate *out,
                                    struct mlo_error *err)
{
    const struct mlo_statistic *statistic = scores->metric->statistic;
    *out = (struct mlo_estimate){0};
    if (!scores->units)
        return mlo_error_set(err, MLO_EINVAL, "there are no samples");
    if (!statistic->mean)
        return bootstrap(scores, NULL, out, err);
    mlo_estimate_mean(scores->values, (int64_t)scores->units, statistic->proportion, out);
    return MLO_OK;
}

enum mlo_status mlo_scores_paired(const struct mlo_scores *a, const struct mlo_scores *b,
                                  struct mlo_estimate *out, struct mlo_error *err)
{
    const struct mlo_statistic *statistic = a->metric->statistic;
    *out = (struct mlo_estimate){0};
    if (a->units != b->units || a->metric != b->metric || a->k != b->k)
        return mlo_error_set(err, MLO_EINVAL, "scores of %zu and of %zu samples are no pairs", a->units,
                             b->units);
    if (!statistic->mean)
        return bootstrap(a, b, out, err);
    mlo_estimate_paired(a->values, b->values, (int64_t)a->units, statistic->proportion, out);
    return MLO_OK;
}

double mlo_scores_mcnemar(const struct mlo_scores *a, const struct mlo_scores *b)
{
    if (!a->metric->statistic->proportion || a->units != b->units)
        return -1;
    return mlo_mcnemar(a->values, b->values, (int64_t)a->units);
}

json_t *mlo_scores_json(const struct mlo_scores *scores)
{
    const char *const *columns = scores->metric->statistic->columns;
    json_t *rows = json_array(), *names = json_array();
    if (!columns) {
        for (size_t r = 0; r < scores->rows; r++)
            json_array_append_new(rows, json_real(scores->values[r]));
        json_decref(names);
        return json_pack("{s:o}", "scores", rows);
    }
    if (scores->first)
        json_array_append_new(names, json_string("unit"));
    for (int c = 0; c < scores->width; c++)
        json_array_append_new(names, json_string(columns[c]));
    for (size_t r = 0; r < scores->rows; r++) {
        json_t *row = json_array();
        if (scores->first)
            json_array_append_new(row, json_integer(scores->unit_of[r]));
        for (int c = 0; c < scores->width; c++)
            json_array_append_new(row, json_real(scores->values[r * (size_t)scores->width + (size_t)c]));
        json_array_append_new(rows, row);
    }
    return json_pack("{s:o,s:o}", "columns", names, "rows", rows);
}
