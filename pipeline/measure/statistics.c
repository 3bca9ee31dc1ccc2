/* What is made of recorded scores. Each takes a multiset of units, so that it can be resampled; those that
 * need an order have it from `record`, and walk it once. */
#include <math.h>
#include <stdlib.h>

#include "pipeline/measure/scores_impl.h"

static double mean(const struct mlo_scores *s, const uint32_t *times)
{
    double sum = 0, count = 0;
    for (size_t u = 0; u < s->units; u++) {
        double w = mlo_scores_times(s, times, u);
        sum += w * s->values[u];
        count += w;
    }
    return sum / count;
}
const struct mlo_statistic mlo_statistic_mean = {.value = mean, .mean = true};
const struct mlo_statistic mlo_statistic_share = {.value = mean, .mean = true, .proportion = true};

/* --- F1: rows are (label, predicted class, number of classes) ----------------------------------------------
 */

static double f1_of(double hit, double labelled, double predicted)
{
    return labelled + predicted > 0 ? 2 * hit / (labelled + predicted) : NAN;
}

/* NAN: no memory, or no class occurs. */
static double f1(const struct mlo_scores *s, const uint32_t *times, bool positive_only)
{
    size_t classes = s->units ? (size_t)s->values[2] : 0;
    double sum = 0, result = NAN;
    size_t count = 0;
    double *hit = calloc(3 * classes + 1, sizeof *hit), *labelled = hit + classes,
           *predicted = hit + 2 * classes;
    if (!hit)
        return NAN;
    for (size_t u = 0; u < s->units; u++) {
        const double *row = s->values + 3 * u;
        double w = mlo_scores_times(s, times, u);
        labelled[(size_t)row[0]] += w;
        predicted[(size_t)row[1]] += w;
        hit[(size_t)row[0]] += row[0] == row[1] ? w : 0;
    }
    for (size_t c = 0; c < classes; c++) {
        double of_class = f1_of(hit[c], labelled[c], predicted[c]);
        sum += isnan(of_class) ? 0 : of_class;
        count += !isnan(of_class);
    }
    if (positive_only)
        result = classes > 1 ? f1_of(hit[1], labelled[1], predicted[1]) : NAN;
    else if (count)
        result = sum / (double)count;
    free(hit);
    return result;
}

static double f1_macro(const struct mlo_scores *s, const uint32_t *times)
{
    return f1(s, times, false);
}

static double f1_positive(const struct mlo_scores *s, const uint32_t *times)
{
    return f1(s, times, true);
}
static const char *const f1_columns[] = {"label", "predicted", "classes"};
const struct mlo_statistic mlo_statistic_f1 = {.value = f1_macro, .columns = f1_columns, .most_of = 3};
const struct mlo_statistic mlo_statistic_f1_positive = {
    .value = f1_positive, .columns = f1_columns, .most_of = 3};

/* --- AUC: rows are (score, label 0 or 1), in ascending order of score
 * --------------------------------------- */

/* The share of pairs of a positive and a negative in which the positive has the higher score, ties as half:
 * the Mann-Whitney statistic (Hanley and McNeil 1982). */
static double auc(const struct mlo_scores *s, const uint32_t *times)
{
    double negatives = 0, positives = 0, pairs = 0;
    for (size_t i = 0; i < s->rows;) {
        double score = s->values[2 * s->order[i]], tied_negatives = 0, tied_positives = 0;
        for (; i < s->rows && s->values[2 * s->order[i]] == score; i++) {
            double w = mlo_scores_times(s, times, s->order[i]);
            if (s->values[2 * s->order[i] + 1] > 0)
                tied_positives += w;
            else
                tied_negatives += w;
        }
        pairs += tied_positives * (negatives + tied_negatives / 2);
        negatives += tied_negatives;
        positives += tied_positives;
    }
    return pairs / (negatives * positives);
}
static const char *const auc_columns[] = {"score", "label"};
const struct mlo_statistic mlo_statistic_auc = {.value = auc, .columns = auc_columns, .whole = true};

/* --- Spearman: rows are (output, y, room for two ranks); order by output, order_b by y
 * ------------------------ */

/* Midranks of one column in the multiset, into `rank` by row. */
static void midranks(const struct mlo_scores *s, const uint32_t *times, const size_t *order, int column,
                     double *rank)
{
    double before = 0;
    for (size_t i = 0; i < s->rows;) {
        double value = s->values[2 * order[i] + (size_t)column], tied = 0;
        size_t end = i;
        for (; end < s->rows && s->values[2 * order[end] + (size_t)column] == value; end++)
            tied += mlo_scores_times(s, times, order[end]);
        for (; i < end; i++)
            rank[order[i]] = before + (tied + 1) / 2;
        before += tied;
    }
}

static double spearman(const struct mlo_scores *s, const uint32_t *times)
{
    double *x = malloc((2 * s->rows + 1) * sizeof *x), *y = x + s->rows;
    double n = 0, sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
    if (!x)
        return NAN;
    midranks(s, times, s->order, 0, x);
    midranks(s, times, s->order_b, 1, y);
    for (size_t r = 0; r < s->rows; r++)
        n += mlo_scores_times(s, times, r);
    double middle = (n + 1) / 2;
    for (size_t r = 0; r < s->rows; r++) {
        double w = mlo_scores_times(s, times, r), dx = x[r] - middle, dy = y[r] - middle;
        sx += w * dx;
        sy += w * dy;
        sxx += w * dx * dx;
        syy += w * dy * dy;
        sxy += w * dx * dy;
    }
    free(x);
    return (sxy - sx * sy / n) / sqrt((sxx - sx * sx / n) * (syy - sy * sy / n));
}
static const char *const spearman_columns[] = {"output", "y"};
const struct mlo_statistic mlo_statistic_spearman = {
    .value = spearman, .columns = spearman_columns, .whole = true};

/* --- perplexity: rows are (negative log-likelihood, tokens) of a sample
 * ------------------------------------------ */

static double perplexity(const struct mlo_scores *s, const uint32_t *times)
{
    double loss = 0, tokens = 0;
    for (size_t u = 0; u < s->units; u++) {
        double w = mlo_scores_times(s, times, u);
        loss += w * s->values[2 * u];
        tokens += w * s->values[2 * u + 1];
    }
    return exp(loss / tokens);
}
static const char *const perplexity_columns[] = {"negative_log_likelihood", "tokens"};
const struct mlo_statistic mlo_statistic_perplexity = {.value = perplexity, .columns = perplexity_columns};
