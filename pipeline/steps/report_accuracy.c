/* What the variant is worth next to the upload, on the same samples, and the samples it treats worst.
 * Invariant numerics: the numbers are the same on every machine, but they are no evidence, which the step
 * evaluate makes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/report_impl.h"

enum { SHOWN = 16 };

struct run {
    struct mlo_tensor *outputs;
    int count;
};

static void run_clear(struct run *r)
{
    mlo_outputs_free(r->outputs, r->count);
}

struct watch {
    const struct mlo_report_subject *subject;
    double from, to;
};

static void watch_progress(void *arg, double fraction, const char *message)
{
    const struct watch *w = arg;
    mlo_step_progress(w->subject->ctx, w->from + (w->to - w->from) * fraction, message);
}

static enum mlo_status run(const struct mlo_report_subject *s, const struct mlo_model *model,
                           struct mlo_dataset *dataset, struct watch watch, struct run *out,
                           struct mlo_error *err)
{
    const struct mlo_run_options options = {
        .threads = s->ctx->threads, .batch = s->ctx->batch, .numerics = MLO_NUMERICS_INVARIANT};
    return mlo_run_evaluation(model, dataset, &options, &out->outputs, &out->count, watch_progress, &watch,
                              err);
}

/* --- metrics ------------------------------------------------------------------------------------------- */

struct judged {
    const struct run *source, *variant;
    const struct mlo_tensor *target; /* or NULL */
    struct mlo_dataset *dataset;
    json_t *metrics, *left_out;
};

static bool set(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0;
}

static enum mlo_status measure(const struct judged *j, const struct mlo_metric_use *metric, json_t **out,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_scores *a = NULL, *b = NULL;
    struct mlo_estimate estimate, difference;
    struct mlo_metric_data data = {.output = &j->variant->outputs[0],
                                   .reference = &j->source->outputs[0],
                                   .target = j->target,
                                   .groups = mlo_dataset_groups(j->dataset)};
    *out = json_pack("{s:s,s:s,s:b}", "metric", metric->name, "unit", metric->row->unit, "higher_is_better",
                     (int)metric->row->higher_is_better);
    MLO_TRY(mlo_metric_score(metric, &data, &a, err));
    MLO_TRY(mlo_scores_estimate(a, &estimate, err));
    bool ok = *out && set(*out, "variant", mlo_estimate_interval_json(&estimate)) &&
              set(*out, "n", json_integer(estimate.n));
    if (!(metric->row->needs & MLO_METRIC_REFERENCE)) {
        data.output = &j->source->outputs[0];
        MLO_TRY(mlo_metric_score(metric, &data, &b, err));
        MLO_TRY(mlo_scores_estimate(b, &estimate, err));
        MLO_TRY(mlo_scores_paired(a, b, &difference, err));
        ok = ok && set(*out, "source", mlo_estimate_interval_json(&estimate)) &&
             set(*out, "difference", mlo_estimate_interval_json(&difference));
        double p = mlo_scores_mcnemar(a, b);
        if (p >= 0)
            ok = ok && set(*out, "mcnemar_p", json_real(p));
    }
    if (!ok)
        status = mlo_error_nomem(err);
out:
    mlo_scores_free(a);
    mlo_scores_free(b);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

/* One metric; where nobody asked for it by name, what stands against it is kept instead of failing. */
static enum mlo_status add_metric(struct judged *j, const char *name, bool asked, struct mlo_error *err)
{
    struct mlo_metric_use metric;
    struct mlo_error why = {0};
    json_t *row = NULL;
    enum mlo_status status = mlo_metric_find(name, &metric, &why);
    if (status == MLO_OK)
        status = measure(j, &metric, &row, &why);
    if (status == MLO_OK)
        return json_array_append_new(j->metrics, row) == 0 ? MLO_OK : mlo_error_nomem(err);
    if (!asked && status == MLO_EINVAL) {
        row = json_pack("{s:s,s:s}", "metric", name, "why", why.message);
        return json_array_append_new(j->left_out, row) == 0 ? MLO_OK : mlo_error_nomem(err);
    }
    if (err)
        *err = why;
    return status;
}

static enum mlo_status add_metrics(struct judged *j, const json_t *names, struct mlo_error *err)
{
    static const char *const WITH_LABELS[] = {"top1", "agreement", "cosine"},
                             *const WITH_GROUPS[] = {"hit10", "ndcg10", "cosine"},
                             *const WITHOUT[] = {"agreement", "cosine"};
    const bool groups = j->target && mlo_dataset_groups(j->dataset);
    const char *const *list = groups ? WITH_GROUPS : j->target ? WITH_LABELS : WITHOUT;
    size_t count = groups ? MLO_COUNT(WITH_GROUPS) : j->target ? MLO_COUNT(WITH_LABELS) : MLO_COUNT(WITHOUT);
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < json_array_size(names) && status == MLO_OK; i++)
        status = add_metric(j, json_string_value(json_array_get(names, i)), true, err);
    for (size_t i = 0; i < count && !json_array_size(names) && status == MLO_OK; i++)
        status = add_metric(j, list[i], false, err);
    return status;
}

/* --- samples ------------------------------------------------------------------------------------------- */

/* What became of one sample. */
struct sample {
    size_t index;
    double deviation; /* the largest of any float output's elements */
    int output;
    size_t element;
    double before, after; /* there */
    int64_t label;        /* -1: none */
    size_t class_before, class_after;
    double score_before, score_after; /* of these classes */
};

struct samples {
    struct sample *list;
    size_t count;
    bool classes; /* output 0 has a score a class */
    bool labels;
};

static bool has_classes(const struct mlo_tensor *t)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    int wide = 0;
    for (int i = 1; i < t->rank; i++)
        wide += t->dims[i] != 1;
    return info && info->is_float && wide == 1;
}

static size_t best(const struct mlo_tensor *t, size_t begin, size_t count, double *score)
{
    size_t at = 0;
    for (size_t k = 1; k < count; k++)
        if (mlo_tensor_get_f64(t, begin + k) > mlo_tensor_get_f64(t, begin + at))
            at = k;
    *score = mlo_tensor_get_f64(t, begin + at);
    return at;
}

/* How far two numbers are apart; one that is NaN where the other is not is farther than any. */
static double apart(double a, double b)
{
    if (isnan(a) && isnan(b))
        return 0;
    return isnan(a - b) ? (a == b ? 0 : INFINITY) : fabs(a - b);
}

static void look(const struct judged *j, const struct samples *all, const int64_t *labels, size_t i,
                 struct sample *out)
{
    *out = (struct sample){.index = i, .label = labels ? labels[i] : -1, .deviation = -1};
    for (int o = 0; o < j->source->count && o < j->variant->count; o++) {
        const struct mlo_tensor *a = &j->source->outputs[o], *b = &j->variant->outputs[o];
        const struct mlo_dtype_info *info = mlo_dtype_info(a->dtype);
        size_t per = mlo_tensor_count(a) / all->count;
        if (!info || !info->is_float || mlo_tensor_count(b) != mlo_tensor_count(a))
            continue;
        for (size_t e = i * per; e < (i + 1) * per; e++) {
            double x = mlo_tensor_get_f64(a, e), y = mlo_tensor_get_f64(b, e), d = apart(x, y);
            if (!(d > out->deviation))
                continue;
            out->deviation = d;
            out->output = o;
            out->element = e - i * per;
            out->before = x;
            out->after = y;
        }
    }
    if (all->classes) {
        const struct mlo_tensor *a = &j->source->outputs[0], *b = &j->variant->outputs[0];
        size_t per = mlo_tensor_count(a) / all->count;
        out->class_before = best(a, i * per, per, &out->score_before);
        out->class_after = best(b, i * per, per, &out->score_after);
    }
}

static bool lost(const struct sample *s)
{
    return s->label >= 0 && s->class_before == (size_t)s->label && s->class_after != (size_t)s->label;
}

static bool gained(const struct sample *s)
{
    return s->label >= 0 && s->class_before != (size_t)s->label && s->class_after == (size_t)s->label;
}

static int worst_first(const void *a, const void *b)
{
    const struct sample *x = a, *y = b;
    if (x->deviation != y->deviation)
        return x->deviation > y->deviation ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static json_t *sample_json(const struct judged *j, const struct samples *all, const struct sample *s,
                           const struct mlo_graph *graph)
{
    MLO_UNUSED(j);
    json_t *row = json_pack("{s:I,s:o,s:s,s:I,s:o,s:o}", "sample", (json_int_t)s->index, "deviation",
                            mlo_json_finite(s->deviation), "output", graph->outputs[s->output]->name,
                            "element", (json_int_t)s->element, "source_value", mlo_json_finite(s->before),
                            "variant_value", mlo_json_finite(s->after));
    if (row && s->label >= 0)
        json_object_set_new(row, "label", json_integer(s->label));
    if (row && all->classes) {
        json_object_set_new(row, "source",
                            json_pack("{s:I,s:o}", "class", (json_int_t)s->class_before, "score",
                                      mlo_json_finite(s->score_before)));
        json_object_set_new(row, "variant",
                            json_pack("{s:I,s:o}", "class", (json_int_t)s->class_after, "score",
                                      mlo_json_finite(s->score_after)));
    }
    return row;
}

static json_t *outcomes(const struct samples *all)
{
    json_int_t both = 0, neither = 0, won = 0, gone = 0, changed = 0;
    for (size_t i = 0; i < all->count; i++) {
        const struct sample *s = &all->list[i];
        bool right = s->label >= 0 && s->class_before == (size_t)s->label;
        changed += s->class_before != s->class_after;
        won += gained(s);
        gone += lost(s);
        both += right && !lost(s);
        neither += !right && !gained(s);
    }
    if (!all->labels)
        return json_pack("{s:I}", "changed", changed);
    return json_pack("{s:I,s:I,s:I,s:I,s:I}", "changed", changed, "both_right", both, "lost", gone, "gained",
                     won, "both_wrong", neither);
}

static enum mlo_status samples_json(const struct judged *j, const struct mlo_graph *graph, json_t **out,
                                    struct mlo_error *err)
{
    struct samples all = {.count = (size_t)mlo_dataset_count(j->dataset),
                          .classes = j->source->count > 0 && has_classes(&j->source->outputs[0]) &&
                                     has_classes(&j->variant->outputs[0])};
    const int64_t *labels = all.classes ? mlo_dataset_labels(j->dataset) : NULL;
    json_t *worst = json_array(), *changed = json_array();
    all.labels = labels != NULL;
    all.list = calloc(all.count + 1, sizeof *all.list);
    if (!all.list || !worst || !changed) {
        free(all.list);
        json_decref(worst);
        json_decref(changed);
        return mlo_error_nomem(err);
    }
    for (size_t i = 0; i < all.count; i++)
        look(j, &all, labels, i, &all.list[i]);
    json_t *counts = all.classes ? outcomes(&all) : json_object();
    qsort(all.list, all.count, sizeof *all.list, worst_first);
    for (size_t i = 0; i < all.count && i < SHOWN; i++)
        json_array_append_new(worst, sample_json(j, &all, &all.list[i], graph));
    for (size_t i = 0; i < all.count && json_array_size(changed) < SHOWN; i++)
        if (all.labels ? lost(&all.list[i]) : all.list[i].class_before != all.list[i].class_after)
            json_array_append_new(changed, sample_json(j, &all, &all.list[i], graph));
    free(all.list);
    *out = json_pack("{s:o,s:o,s:o}", "outcomes", counts, "worst", worst, "changed", changed);
    const json_t *classes = mlo_dataset_classes(j->dataset);
    if (!*out || (classes && json_object_set(*out, "classes", (json_t *)classes) != 0))
        return mlo_error_nomem(err);
    return MLO_OK;
}

enum mlo_status mlo_report_accuracy(const struct mlo_report_subject *s, struct mlo_dataset *dataset,
                                    const json_t *metrics, json_t **accuracy, json_t **samples,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    struct run source = {0}, variant = {0};
    struct mlo_tensor target = {0};
    double middle = (s->from + s->to) / 2;
    struct judged j = {.source = &source,
                       .variant = &variant,
                       .dataset = dataset,
                       .metrics = json_array(),
                       .left_out = json_array()};
    if (!j.metrics || !j.left_out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_dataset_target(dataset, &target, err));
    j.target = target.data ? &target : NULL;
    MLO_TRY(run(s, s->source, dataset, (struct watch){s, s->from, middle}, &source, err));
    MLO_TRY(run(s, s->running, dataset, (struct watch){s, middle, s->to}, &variant, err));
    MLO_TRY(add_metrics(&j, metrics, err));
    MLO_TRY(samples_json(&j, s->source->graph, samples, err));
    *accuracy = json_pack("{s:I,s:O,s:O}", "samples", (json_int_t)mlo_dataset_count(dataset), "metrics",
                          j.metrics, "left_out", j.left_out);
    if (!*accuracy)
        status = mlo_error_nomem(err);
out:
    run_clear(&source);
    run_clear(&variant);
    mlo_tensor_clear(&target);
    json_decref(j.metrics);
    json_decref(j.left_out);
    return status;
}
