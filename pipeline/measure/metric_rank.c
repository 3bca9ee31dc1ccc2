/* Metrics on the order of scores: rank correlation, and ranking within groups (a user's items, a query's
 * documents). */
#include <math.h>
#include <stdlib.h>

#include "pipeline/measure/metric_impl.h"

/* One number a sample; of two classes' scores the difference, which has their order. */
static enum mlo_status open_score(const struct mlo_tensor *t, const char *what, size_t *samples,
                                  size_t *elements, struct mlo_error *err)
{
    char text[160];
    enum mlo_status status = mlo_scores_shape(t, what, samples, elements, err);
    if (status == MLO_OK && *elements != 1 && *elements != 2)
        return mlo_error_set(err, MLO_EINVAL, "%s must hold one number a sample; it is %s", what,
                             mlo_tensor_describe(t, text, sizeof text));
    return status;
}

static double number(const struct mlo_tensor *t, size_t sample, size_t elements)
{
    double v = mlo_tensor_get_f64(t, sample * elements + elements - 1);
    return elements == 2 ? v - mlo_tensor_get_f64(t, sample * elements) : v;
}

static enum mlo_status read_pairs(const struct mlo_metric_data *data, double **out, size_t *samples,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    size_t elements, y_samples, y_elements;
    MLO_TRY(open_score(data->output, "the output", samples, &elements, err));
    MLO_TRY(open_score(data->target, "array 'y'", &y_samples, &y_elements, err));
    if (y_samples != *samples || y_elements != 1)
        return mlo_error_set(err, MLO_EINVAL, "array 'y' must hold one number for each of the %zu samples",
                             *samples);
    *out = malloc((2 * *samples + 1) * sizeof **out);
    if (!*out)
        return mlo_error_nomem(err);
    for (size_t s = 0; s < *samples; s++) {
        (*out)[2 * s] = number(data->output, s, elements);
        (*out)[2 * s + 1] = mlo_tensor_get_f64(data->target, s);
        if (isnan((*out)[2 * s]) || isnan((*out)[2 * s + 1]))
            return mlo_error_set(err, MLO_EINVAL, "the output or y of sample %zu is NaN", s);
    }
out:
    return status;
}

enum mlo_status mlo_record_spearman(const struct mlo_metric_data *data, struct mlo_scores *out,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    double *pairs = NULL;
    size_t samples;
    MLO_TRY(read_pairs(data, &pairs, &samples, err));
    out->values = pairs;
    pairs = NULL;
    out->units = out->rows = samples;
    out->width = 2;
    MLO_TRY(mlo_scores_sort(out, 0, false, NULL, &out->order, err));
    MLO_TRY(mlo_scores_sort(out, 1, false, NULL, &out->order_b, err));
out:
    free(pairs);
    return status;
}

/* --- groups ------------------------------------------------------------------------------------------------
 */

struct item {
    int64_t group;
    size_t sample;
    double score, relevance;
};

static int by_group_and_score(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return (x->sample > y->sample) -
           (x->sample < y->sample); /* of equal scores the earlier sample is higher */
}

static int by_relevance(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return (x->relevance < y->relevance) - (x->relevance > y->relevance);
}

/* Järvelin and Kekäläinen (2002), with the gain of Burges et al. (2005). */
static double gain(const struct item *items, size_t count, int64_t k)
{
    double sum = 0;
    for (size_t i = 0; i < count && (int64_t)i < k; i++)
        sum += (exp2(items[i].relevance) - 1) / log2((double)i + 2);
    return sum;
}

static double ndcg(struct item *items, size_t count, int64_t k)
{
    double got = gain(items, count, k);
    qsort(items, count, sizeof *items, by_relevance);
    double ideal = gain(items, count, k);
    return ideal > 0 ? got / ideal : 0;
}

static double hit(struct item *items, size_t count, int64_t k)
{
    for (size_t i = 0; i < count && (int64_t)i < k; i++)
        if (items[i].relevance > 0)
            return 1;
    return 0;
}

static enum mlo_status each_group(const struct mlo_metric_data *data,
                                  double (*score)(struct item *, size_t, int64_t), struct mlo_scores *out,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    double *pairs = NULL;
    size_t samples, groups = 0;
    struct item *items = NULL;
    MLO_TRY(read_pairs(data, &pairs, &samples, err));
    items = calloc(samples + 1, sizeof *items);
    if (!items) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t s = 0; s < samples; s++) {
        items[s] = (struct item){data->groups[s], s, pairs[2 * s], pairs[2 * s + 1]};
        if (items[s].relevance < 0 || items[s].relevance > 60) {
            status = mlo_error_set(err, MLO_EINVAL, "y of sample %zu is %g: a relevance is from 0 to 60", s,
                                   items[s].relevance);
            goto out;
        }
    }
    qsort(items, samples, sizeof *items, by_group_and_score);
    for (size_t s = 0; s < samples; s++)
        groups += s == 0 || items[s].group != items[s - 1].group;
    MLO_TRY(mlo_scores_init(out, groups, 1, err));
    size_t g = 0;
    for (size_t begin = 0, end; begin < samples; begin = end) {
        for (end = begin + 1; end < samples && items[end].group == items[begin].group; end++)
            ;
        out->values[g++] = score(items + begin, end - begin, out->k);
    }
out:
    free(items);
    free(pairs);
    return status;
}

enum mlo_status mlo_record_hit(const struct mlo_metric_data *data, struct mlo_scores *out,
                               struct mlo_error *err)
{
    return each_group(data, hit, out, err);
}

enum mlo_status mlo_record_ndcg(const struct mlo_metric_data *data, struct mlo_scores *out,
                                struct mlo_error *err)
{
    return each_group(data, ndcg, out, err);
}
