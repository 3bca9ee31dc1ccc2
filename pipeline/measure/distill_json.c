/* What is made of the samples: metrics of both sides, distances between them, calibration. One bootstrap,
 * whose resamples all statistics share, each seeded by its own number: threads and their order change
 * nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "pipeline/measure/distill_impl.h"
#include "pipeline/measure/estimate_impl.h"
#include "pipeline/measure/random_impl.h"

static const uint64_t SEED = 0x64697374696c6c; /* fixed: equal samples give equal intervals */

enum { SCHEMES = 2 };
static const char *const SCHEME_NAMES[SCHEMES] = {"equal_width", "equal_mass"};

/* What is resampled: means of columns, then calibration errors by side and scheme, then their differences. */
enum {
    KL,
    CROSS_ENTROPY,
    COSINE,
    MSE,
    GAIN, /* right with the student less right with the teacher */
    MEANS,
    ECE = MEANS,
    ECE_GAIN = ECE + MLO_DISTILL_SIDES * SCHEMES,
    STATISTICS = ECE_GAIN + SCHEMES
};

struct sample {
    double mean[MEANS];
    uint16_t bin[MLO_DISTILL_SIDES * SCHEMES];
    double off[MLO_DISTILL_SIDES]; /* right less confidence */
};

struct resampling {
    const struct sample *samples;
    size_t count;
    int bins;
    double (*values)[STATISTICS]; /* by resample */
    double *room;                 /* by worker: gaps of each bin, side and scheme */
};

/* The statistics of a multiset of samples; `rng` NULL: of all of them once. */
static void statistics_of(const struct resampling *r, struct mlo_rng *rng, double *gap, double *out)
{
    size_t bins = (size_t)r->bins;
    double sum[MEANS] = {0};
    memset(gap, 0, MLO_DISTILL_SIDES * SCHEMES * bins * sizeof *gap);
    for (size_t i = 0; i < r->count; i++) {
        const struct sample *s = &r->samples[rng ? mlo_rng_below(rng, r->count) : i];
        for (int m = 0; m < MEANS; m++)
            sum[m] += s->mean[m];
        for (size_t e = 0; e < MLO_DISTILL_SIDES * SCHEMES; e++)
            gap[e * bins + s->bin[e]] += s->off[e / SCHEMES];
    }
    for (int m = 0; m < MEANS; m++)
        out[m] = sum[m] / (double)r->count;
    for (size_t e = 0; e < MLO_DISTILL_SIDES * SCHEMES; e++) {
        double all = 0;
        for (size_t b = 0; b < bins; b++)
            all += fabs(gap[e * bins + b]);
        out[ECE + e] = all / (double)r->count;
    }
    for (int k = 0; k < SCHEMES; k++)
        out[ECE_GAIN + k] = out[ECE + MLO_DISTILL_STUDENT * SCHEMES + k] - out[ECE + k];
}

static void resample(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct resampling *r = arg;
    double *gap = r->room + (size_t)worker * MLO_DISTILL_SIDES * SCHEMES * (size_t)r->bins;
    for (size_t i = begin; i < end; i++) {
        struct mlo_rng rng;
        mlo_rng_seed(&rng, SEED + i);
        statistics_of(r, &rng, gap, r->values[i]);
    }
}

static void interval(const struct resampling *r, int statistic, struct mlo_estimate *out)
{
    double sorted[MLO_BOOTSTRAP_RESAMPLES];
    for (int i = 0; i < MLO_BOOTSTRAP_RESAMPLES; i++)
        sorted[i] = r->values[i][statistic];
    mlo_sort_f64(sorted, MLO_BOOTSTRAP_RESAMPLES);
    out->low = mlo_quantile_sorted(sorted, MLO_BOOTSTRAP_RESAMPLES, 0.025);
    out->high = mlo_quantile_sorted(sorted, MLO_BOOTSTRAP_RESAMPLES, 0.975);
    out->n = (int64_t)r->count;
}

static enum mlo_status bins_of(const struct mlo_distill *d, struct sample *samples, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t n = (size_t)d->count;
    double *confidence = malloc((n + 1) * sizeof *confidence);
    uint16_t *bin = malloc((n + 1) * sizeof *bin);
    for (size_t e = 0; confidence && bin && e < MLO_DISTILL_SIDES * SCHEMES; e++) {
        for (size_t i = 0; i < n; i++)
            confidence[i] = d->rows[i].confidence[e / SCHEMES];
        if (e % SCHEMES == 0)
            mlo_bins_of_width(confidence, n, d->bins, bin);
        else if (!mlo_bins_of_mass(confidence, n, d->bins, bin))
            status = mlo_error_nomem(err);
        for (size_t i = 0; i < n; i++)
            samples[i].bin[e] = bin[i];
    }
    if (!confidence || !bin)
        status = mlo_error_nomem(err);
    free(confidence);
    free(bin);
    return status;
}

/* Fills `estimates` (STATISTICS of them) and, where the samples are wanted, hands them out (yours). */
static enum mlo_status resample_all(const struct mlo_distill *d, struct mlo_estimate *estimates,
                                    struct sample **out, struct mlo_error *err)
{
    enum mlo_status status;
    size_t n = (size_t)d->count;
    unsigned threads = MLO_MAX(d->o->run.threads, 1u);
    struct mlo_pool *pool = threads > 1 ? mlo_pool_new(threads) : NULL;
    struct sample *samples = calloc(n + 1, sizeof *samples);
    struct resampling r = {.samples = samples, .count = n, .bins = d->bins};
    double value[STATISTICS];
    r.values = malloc(MLO_BOOTSTRAP_RESAMPLES * sizeof *r.values);
    r.room = malloc((size_t)threads * MLO_DISTILL_SIDES * SCHEMES * (size_t)d->bins * sizeof *r.room + 1);
    *out = samples;
    if (!samples || !r.values || !r.room) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        const struct mlo_distill_row *row = &d->rows[i];
        const double mean[MEANS] = {row->kl, row->cross_entropy, row->cosine, row->mse,
                                    (double)mlo_distill_right(row, MLO_DISTILL_STUDENT) -
                                        (double)mlo_distill_right(row, MLO_DISTILL_TEACHER)};
        memcpy(samples[i].mean, mean, sizeof mean);
        for (int s = 0; s < MLO_DISTILL_SIDES; s++)
            samples[i].off[s] = (double)mlo_distill_right(row, s) - row->confidence[s];
    }
    MLO_TRY(bins_of(d, samples, err));
    statistics_of(&r, NULL, r.room, value);
    mlo_pool_run(pool, MLO_BOOTSTRAP_RESAMPLES, 1, resample, &r);
    for (int k = 0; k < STATISTICS; k++) {
        estimates[k].value = value[k];
        interval(&r, k, &estimates[k]);
    }
out:
    mlo_pool_free(pool);
    free(r.values);
    free(r.room);
    return status;
}

/* --- JSON ----------------------------------------------------------------------------------------------- */

const char *mlo_estimate_missing(const struct mlo_estimate *e)
{
    return isnan(e->value)                           ? "it is not a number (NaN)"
           : isinf(e->value)                         ? "it is infinite"
           : !isfinite(e->low) || !isfinite(e->high) ? "its interval is not finite"
                                                     : NULL;
}

json_t *mlo_estimate_json(const struct mlo_estimate *e)
{
    const char *missing = mlo_estimate_missing(e);
    if (missing)
        return json_pack("{s:s,s:I}", "missing", missing, "n", (json_int_t)e->n);
    return json_pack("{s:f,s:f,s:f,s:I}", "value", e->value, "low", e->low, "high", e->high, "n",
                     (json_int_t)e->n);
}

bool mlo_distill_put(json_t *out, const char *key, double value)
{
    if (isfinite(value))
        return json_object_set_new(out, key, json_real(value)) == 0;
    const struct mlo_estimate e = {value, value, value, 1};
    json_t *missing = json_object_get(out, "missing");
    if (!missing && json_object_set_new(out, "missing", missing = json_object()) != 0)
        return false;
    return json_object_set_new(missing, key, json_string(mlo_estimate_missing(&e))) == 0;
}

static enum mlo_status metric_json(const struct mlo_distill *d, size_t m, const struct mlo_estimate *gain,
                                   json_t *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_estimate side[MLO_DISTILL_SIDES], difference;
    const struct mlo_metric_use *use = &d->metrics[m];
    json_t *row = NULL;
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        status = mlo_scores_estimate(d->scores[m][s], &side[s], err);
        if (status != MLO_OK) {
            mlo_error_prefix(err, "the %s", mlo_distill_names[s]);
            goto out;
        }
    }
    MLO_TRY(mlo_scores_paired(d->scores[m][1], d->scores[m][0], &difference, err));
    row = json_pack("{s:s,s:s,s:b,s:I,s:o,s:o,s:o}", "metric", use->name, "unit", use->row->unit,
                    "higher_is_better", (int)use->row->higher_is_better, "n", (json_int_t)difference.n,
                    "teacher", mlo_estimate_json(&side[0]), "student", mlo_estimate_json(&side[1]),
                    "difference", mlo_estimate_json(&difference));
    double p = mlo_scores_mcnemar(d->scores[m][1], d->scores[m][0]);
    if (row && p >= 0)
        json_object_set_new(row, "mcnemar_p", json_real(p));
    if (row && d->labels && strcmp(use->name, "top1") == 0)
        json_object_set_new(row, "bootstrap", json_pack("{s:f,s:f}", "low", gain->low, "high", gain->high));
    if (!row || json_array_append_new(out, row) != 0)
        status = mlo_error_nomem(err);
out:
    return status;
}

static bool put_distance(json_t *out, const char *name, const char *unit, const struct mlo_estimate *e,
                         const char *missing)
{
    json_t *row = mlo_estimate_json(e);
    if (row && missing && json_object_get(row, "missing"))
        json_object_set_new(row, "missing", json_string(missing));
    return row && json_object_set_new(row, "unit", json_string(unit)) == 0 &&
           json_object_set_new(row, "metric", json_string(name)) == 0 && json_array_append_new(out, row) == 0;
}

static enum mlo_status agreement_of(const struct mlo_distill *d, struct mlo_estimate *out,
                                    struct mlo_error *err)
{
    double *same = malloc(((size_t)d->count + 1) * sizeof *same);
    if (!same)
        return mlo_error_nomem(err);
    for (int64_t i = 0; i < d->count; i++)
        same[i] = d->rows[i].best[0] == d->rows[i].best[1];
    mlo_estimate_mean(same, d->count, true, out);
    free(same);
    return MLO_OK;
}

/* Why the outputs themselves have no distance in the mean: samples that have none. */
static void why_apart(const struct mlo_distill *d, char *out, size_t size)
{
    int64_t masked = 0, large = 0;
    for (int64_t i = 0; i < d->count; i++) {
        masked += d->rows[i].apart == MLO_DISTILL_MASKED;
        large += d->rows[i].apart == MLO_DISTILL_LARGE;
    }
    snprintf(out, size, "%lld of %lld samples have none: %s", (long long)(masked + large),
             (long long)d->count,
             masked ? "an output is infinite (masked) in one model and not in the other"
                    : "the squares of the outputs are beyond what a number holds");
}

static enum mlo_status distances(const struct mlo_distill *d, const struct mlo_estimate *all, json_t *out,
                                 struct mlo_error *err)
{
    struct mlo_estimate agreement;
    char missing[160];
    bool ok = true;
    if (d->classes) {
        enum mlo_status status = agreement_of(d, &agreement, err);
        if (status != MLO_OK)
            return status;
        ok = put_distance(out, "agreement", "fraction", &agreement, NULL) &&
             put_distance(out, "kl", "nats", &all[KL], NULL) &&
             put_distance(out, "cross_entropy", "nats", &all[CROSS_ENTROPY], NULL);
    }
    if (mlo_distill_alike(d)) {
        why_apart(d, missing, sizeof missing);
        ok = ok && put_distance(out, "cosine", "1", &all[COSINE], missing) &&
             put_distance(out, "mse", "1", &all[MSE], missing);
    }
    return ok ? MLO_OK : mlo_error_nomem(err);
}

/* The reliability diagram of one side and scheme: only bins that hold samples. */
static json_t *bins_json(const struct mlo_distill *d, const struct sample *samples, int side, int scheme)
{
    size_t bins = (size_t)d->bins;
    struct {
        double confidence, right, low, high;
        int64_t count;
    } *all = calloc(bins, sizeof *all);
    json_t *out = json_array();
    for (int64_t i = 0; all && i < d->count; i++) {
        size_t b = samples[i].bin[side * SCHEMES + scheme];
        double confidence = d->rows[i].confidence[side];
        all[b].low = all[b].count ? fmin(all[b].low, confidence) : confidence;
        all[b].high = fmax(all[b].high, confidence);
        all[b].confidence += confidence;
        all[b].right += mlo_distill_right(&d->rows[i], side);
        all[b].count++;
    }
    for (size_t b = 0; all && b < bins; b++) {
        double n = (double)all[b].count;
        if (!all[b].count)
            continue;
        bool wide = scheme == 0;
        json_array_append_new(
            out, json_pack("{s:f,s:f,s:I,s:f,s:f}", "from", wide ? (double)b / d->bins : all[b].low, "to",
                           wide ? (double)(b + 1) / d->bins : all[b].high, "n", (json_int_t)all[b].count,
                           "confidence", all[b].confidence / n, "accuracy", all[b].right / n));
    }
    free(all);
    return out;
}

static json_t *calibration(const struct mlo_distill *d, const struct sample *samples,
                           const struct mlo_estimate *all)
{
    json_t *out = json_pack("{s:i}", "bins", d->bins), *difference = json_object();
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        json_t *side = json_object();
        for (int k = 0; k < SCHEMES; k++) {
            json_t *one = json_pack("{s:o,s:o}", "ece", mlo_estimate_json(&all[ECE + s * SCHEMES + k]),
                                    "bins", bins_json(d, samples, s, k));
            json_object_set_new(side, SCHEME_NAMES[k], one);
        }
        json_object_set_new(out, mlo_distill_names[s], side);
    }
    for (int k = 0; k < SCHEMES; k++)
        json_object_set_new(difference, SCHEME_NAMES[k], mlo_estimate_json(&all[ECE_GAIN + k]));
    json_object_set_new(out, "difference", difference);
    return out;
}

static json_t *side_json(const struct mlo_distill *d, int s)
{
    json_t *out =
        json_pack("{s:s,s:I}", "output", d->output[s], "width", (json_int_t)(d->single[s] ? 1 : d->width[s]));
    if (d->classes)
        json_object_set_new(out, "scores", json_string(d->probabilities[s] ? "probabilities" : "logits"));
    return out;
}

enum mlo_status mlo_distill_json(const struct mlo_distill *d, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_estimate all[STATISTICS];
    struct sample *samples = NULL;
    json_t *metrics = json_array(), *apart = json_array();
    json_t *o =
        json_pack("{s:s,s:s,s:s,s:I,s:i,s:o,s:o,s:O,s:O}", "format", MLO_DISTILL_FORMAT, "protocol",
                  MLO_DISTILL_PROTOCOL, "task", d->classes ? "classes" : "values", "samples",
                  (json_int_t)d->count, "resamples", (int)MLO_BOOTSTRAP_RESAMPLES, "teacher", side_json(d, 0),
                  "student", side_json(d, 1), "metrics", metrics, "distances", apart);
    if (!o) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(resample_all(d, all, &samples, err));
    for (size_t m = 0; m < d->metric_count; m++)
        MLO_TRY(metric_json(d, m, &all[GAIN], metrics, err));
    MLO_TRY(distances(d, all, apart, err));
    if (d->classes) {
        json_object_set_new(o, "temperature", json_real(d->temperature));
        json_object_set_new(o, "classes", json_integer((json_int_t)d->class_count));
        if (d->class_names)
            json_object_set(o, "class_names", (json_t *)d->class_names);
    }
    if (d->labels)
        json_object_set_new(o, "calibration", calibration(d, samples, all));
    MLO_TRY(mlo_distill_parts(d, o, err));
    *out = o;
    o = NULL;
out:
    free(samples);
    json_decref(metrics);
    json_decref(apart);
    json_decref(o);
    return status;
}
