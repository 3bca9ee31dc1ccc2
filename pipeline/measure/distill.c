/* Running teacher and student over the same samples, piece by piece, and keeping what is needed of each
 * sample. */
#include "pipeline/measure/distill_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const mlo_distill_names[] = {"teacher", "student"};

enum { PIECE = 256, PIECE_MAX = 1 << 16 };
static const uint64_t WHOLE_BYTES_MAX = (uint64_t)2 << 30;

void mlo_distill_clear(struct mlo_distill *d)
{
    free(d->rows);
    for (size_t m = 0; m < MLO_DISTILL_METRICS; m++)
        for (int s = 0; s < MLO_DISTILL_SIDES; s++)
            mlo_scores_free(d->scores[m][s]);
}

static void run_clear(struct mlo_distill_run *r)
{
    mlo_evaluator_close(r->evaluator);
    mlo_outputs_free(r->outputs, r->output_count);
    mlo_tensor_clear(&r->mapped);
    mlo_tensor_clear(&r->whole);
    free(r->raw);
    free(r->log_p);
    free(r->tempered);
    free(r->common);
    free(r->common_tempered);
}

/* --- before anything runs ------------------------------------------------------------------------------- */

static enum mlo_status check_samples(const struct mlo_distill *d, struct mlo_error *err)
{
    const struct mlo_dataset *a = d->in[0]->dataset, *b = d->in[1]->dataset;
    int64_t n = mlo_dataset_count(a), m = mlo_dataset_count(b);
    const int64_t *x = mlo_dataset_labels(a), *y = mlo_dataset_labels(b);
    if (n != m)
        return mlo_error_set(
            err, MLO_EINVAL,
            "the teacher's data have %lld samples and the student's %lld: they must be the same",
            (long long)n, (long long)m);
    for (int64_t i = 0; x && y && i < n; i++)
        if (x[i] != y[i])
            return mlo_error_set(
                err, MLO_EINVAL,
                "sample %lld has the label %lld in the teacher's data and %lld in the student's",
                (long long)i, (long long)x[i], (long long)y[i]);
    return MLO_OK;
}

static enum mlo_status find_output(const struct mlo_distill *d, int side, struct mlo_distill_run *run,
                                   struct mlo_error *err)
{
    const struct mlo_graph *graph = mlo_evaluator_graph(run->evaluator);
    const char *wanted = d->in[side]->output;
    struct mlo_buf there = MLO_BUF_INIT;
    run->index = 0;
    if (!wanted || !*wanted)
        return MLO_OK;
    for (int i = 0; i < graph->output_count; i++) {
        if (strcmp(graph->outputs[i]->name, wanted) == 0) {
            run->index = i;
            return MLO_OK;
        }
        mlo_buf_printf(&there, "%s'%s'", i ? ", " : "", graph->outputs[i]->name);
    }
    mlo_error_set(err, MLO_EINVAL, "the %s has no output '%.100s'", mlo_distill_names[side], wanted);
    mlo_error_hint(err, "its outputs are %s", mlo_buf_str(&there));
    mlo_buf_clear(&there);
    return MLO_EINVAL;
}

static enum mlo_status begin_side(struct mlo_distill *d, int side, struct mlo_distill_run *run,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_distill_side *in = d->in[side];
    MLO_TRY(mlo_evaluator_open(in->model, in->dataset, &d->o->run, &run->evaluator, err));
    MLO_TRY(find_output(d, side, run, err));
    snprintf(d->output[side], sizeof d->output[side], "%s",
             mlo_evaluator_graph(run->evaluator)->outputs[run->index]->name);
out:
    if (status != MLO_OK && err && !strstr(err->message, mlo_distill_names[side]))
        mlo_error_prefix(err, "the %s", mlo_distill_names[side]);
    return status;
}

/* Samples a piece: a multiple of what both postprocessing models fix. */
static int64_t piece_of(const struct mlo_distill_work *w)
{
    int64_t a = mlo_evaluator_multiple(w->runs[0].evaluator),
            b = mlo_evaluator_multiple(w->runs[1].evaluator);
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    int64_t multiple = a / x * b;
    return multiple >= PIECE ? MLO_MIN(multiple, (int64_t)PIECE_MAX) : PIECE / multiple * multiple;
}

/* --- what the first piece tells ------------------------------------------------------------------------- */

static bool looks_like_probabilities(const struct mlo_tensor *t, size_t rows, size_t width)
{
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t k = 0; k < width; k++) {
            double v = mlo_tensor_get_f64(t, r * width + k);
            if (!(v >= 0) || v > 1 + 1e-3)
                return false;
            sum += v;
        }
        if (width > 1 && fabs(sum - 1) > 1e-3)
            return false;
    }
    return true;
}

/* Rows of one number per class: an axis besides the batch, and others of size 1. */
static bool is_row(const struct mlo_tensor *t)
{
    int wide = 0;
    for (int i = 1; i < t->rank; i++)
        wide += t->dims[i] != 1;
    return t->rank >= 1 && wide <= 1;
}

static enum mlo_status choose_task(struct mlo_distill_work *w, struct mlo_error *err)
{
    struct mlo_distill *d = w->d;
    bool rows = true, several = true;
    char text[160];
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        const struct mlo_tensor *t = mlo_distill_output(&w->runs[s]);
        const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
        enum mlo_status status = mlo_scores_shape(t, "the output", &(size_t){0}, &d->width[s], err);
        if (status != MLO_OK)
            return status;
        if (!info || !info->is_float || !d->width[s]) {
            mlo_error_set(err, MLO_EINVAL,
                          "the %s's output '%s' is %s: numbers of classes have no distribution",
                          mlo_distill_names[s], d->output[s], mlo_tensor_describe(t, text, sizeof text));
            mlo_error_hint(err, "name an output with the scores of the classes (%s_output)",
                           mlo_distill_names[s]);
            return MLO_EINVAL;
        }
        rows = rows && is_row(t);
        several = several && d->width[s] > 1;
    }
    const int64_t *labels = mlo_dataset_labels(d->in[1]->dataset);
    d->classes =
        d->o->task == MLO_DISTILL_CLASSES || (d->o->task == MLO_DISTILL_AUTO && labels && rows && several);
    if (d->classes && !rows)
        return mlo_error_set(err, MLO_EINVAL,
                             "one score per class and sample is needed; the outputs have more axes");
    d->labels = d->classes && labels;
    if (d->classes || d->width[0] == d->width[1])
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL,
                  "the teacher's output '%s' has %zu numbers a sample and the student's '%s' %zu",
                  d->output[0], d->width[0], d->output[1], d->width[1]);
    mlo_error_hint(
        err, "outputs of another size cannot be compared: name others (teacher_output, student_output)");
    return MLO_EINVAL;
}

static bool target_fits(const struct mlo_distill_work *w)
{
    const struct mlo_tensor *y = &w->target, *out = mlo_distill_output(&w->runs[0]);
    return y->data && mlo_tensor_count(y) == (size_t)w->d->count * w->d->width[0] &&
           mlo_dtype_info(y->dtype)->is_float && out->rank >= 1;
}

static enum mlo_status choose_metrics(struct mlo_distill *d, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *const *names = d->o->metrics;
    const char *const fits = d->labels ? "top1" : d->targets ? "target.mse" : NULL;
    size_t count = d->o->metric_count;
    if (!count && fits) {
        names = &fits;
        count = 1;
    }
    if (count > MLO_DISTILL_METRICS)
        return mlo_error_set(err, MLO_EINVAL, "at most %d metrics are compared", (int)MLO_DISTILL_METRICS);
    for (size_t i = 0; i < count; i++) {
        struct mlo_metric_use *use = &d->metrics[i];
        MLO_TRY(mlo_metric_find(names[i], use, err));
        if (use->row->needs & MLO_METRIC_REFERENCE) {
            mlo_error_set(
                err, MLO_EINVAL,
                "the metric '%s' compares with another model, and is measured between teacher and student",
                use->name);
            mlo_error_hint(err, "name metrics of one model on labels, such as top1, f1 or target.mse");
            return MLO_EINVAL;
        }
        d->metric_count = i + 1;
    }
out:
    return status;
}

static bool needs_whole(const struct mlo_metric_use *use)
{
    return use->row->statistic->whole || (use->row->needs & MLO_METRIC_GROUPS);
}

static double *doubles(size_t count)
{
    return malloc((count + 1) * sizeof(double));
}

static enum mlo_status after_first(struct mlo_distill_work *w, size_t rows, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_distill *d = w->d;
    MLO_TRY(choose_task(w, err));
    d->targets = !d->classes && target_fits(w);
    for (int s = 0; s < MLO_DISTILL_SIDES && d->classes; s++) {
        d->probabilities[s] = d->in[s]->scores == MLO_SCORES_PROBABILITIES ||
                              (d->in[s]->scores == MLO_SCORES_AUTO &&
                               looks_like_probabilities(mlo_distill_output(&w->runs[s]), rows, d->width[s]));
        d->single[s] = d->width[s] == 1;
        d->width[s] += d->single[s];
    }
    if (d->classes)
        MLO_TRY(mlo_distill_match_classes(d, err));
    MLO_TRY(choose_metrics(d, err));
    for (size_t i = 0; i < d->metric_count; i++)
        w->keep_whole = w->keep_whole || needs_whole(&d->metrics[i]);
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        struct mlo_distill_run *r = &w->runs[s];
        size_t common = MLO_MAX(d->class_count, d->width[s]);
        double **const rooms[] = {&r->raw, &r->log_p, &r->tempered, &r->common, &r->common_tempered};
        bool whole = true;
        for (size_t i = 0; i < MLO_COUNT(rooms); i++)
            whole = (*rooms[i] = doubles(common)) && whole;
        if (!whole) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    d->rows = calloc((size_t)d->count + 1, sizeof *d->rows);
    if (!d->rows)
        status = mlo_error_nomem(err);
out:
    return status;
}

/* --- a piece -------------------------------------------------------------------------------------------- */

/* What the metrics of the table read. */
static const struct mlo_tensor *judged(const struct mlo_distill *d, int side,
                                       const struct mlo_distill_run *run)
{
    return mlo_distill_translates(d, side) ? &run->mapped : mlo_distill_output(run);
}

static enum mlo_status keep(struct mlo_distill_work *w, int side, int64_t at, struct mlo_error *err)
{
    struct mlo_distill_run *r = &w->runs[side];
    const struct mlo_tensor *part = judged(w->d, side, r);
    size_t row = part->size_bytes / (size_t)part->dims[0];
    if (!r->whole.data) {
        int64_t dims[MLO_MAX_RANK];
        memcpy(dims, part->dims, sizeof dims);
        dims[0] = w->d->count;
        if (row && (uint64_t)w->d->count > WHOLE_BYTES_MAX / row) {
            mlo_error_set(err, MLO_ETOOBIG,
                          "the outputs of %lld samples take more than 2 GiB, and a metric needs all",
                          (long long)w->d->count);
            mlo_error_hint(
                err, "leave out metrics that order all samples (auc, spearman, map), or use fewer samples");
            return MLO_ETOOBIG;
        }
        enum mlo_status status = mlo_tensor_init(&r->whole, part->dtype, part->rank, dims, err);
        if (status != MLO_OK)
            return status;
    }
    memcpy((char *)r->whole.data + (size_t)at * row, part->data, part->size_bytes);
    return MLO_OK;
}

static enum mlo_status score(struct mlo_distill_work *w, size_t metric, int side,
                             const struct mlo_tensor *output, int64_t at, int64_t rows,
                             struct mlo_scores **out, struct mlo_error *err)
{
    struct mlo_distill *d = w->d;
    const int64_t *groups = mlo_dataset_groups(d->in[side]->dataset);
    struct mlo_tensor target = {0};
    if (w->target.data)
        target = mlo_tensor_rows(&w->target, at, rows);
    const struct mlo_metric_data data = {
        .output = output, .target = w->target.data ? &target : NULL, .groups = groups ? groups + at : NULL};
    enum mlo_status status = mlo_metric_score(&d->metrics[metric], &data, out, err);
    if (status != MLO_OK)
        mlo_error_prefix(err, "the %s, samples from %lld on", mlo_distill_names[side], (long long)at);
    return status;
}

static enum mlo_status take_metrics(struct mlo_distill_work *w, int side, int64_t at, int64_t rows,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_distill *d = w->d;
    struct mlo_scores *part = NULL;
    for (size_t m = 0; m < d->metric_count; m++) {
        if (needs_whole(&d->metrics[m]))
            continue;
        if (!d->scores[m][side] && !(d->scores[m][side] = calloc(1, sizeof *part))) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(score(w, m, side, judged(d, side, &w->runs[side]), at, rows, &part, err));
        MLO_TRY(mlo_scores_join(d->scores[m][side], part, err));
        mlo_scores_free(part);
        part = NULL;
    }
    if (w->keep_whole)
        MLO_TRY(keep(w, side, at, err));
out:
    mlo_scores_free(part);
    return status;
}

static enum mlo_status run_piece(struct mlo_distill_work *w, int64_t at, int64_t rows, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        struct mlo_distill_run *r = &w->runs[s];
        mlo_outputs_free(r->outputs, r->output_count);
        status = mlo_evaluator_run(r->evaluator, at, rows, &r->outputs, &r->output_count, NULL, NULL, err);
        if (status != MLO_OK) {
            mlo_error_prefix(err, "running the %s", mlo_distill_names[s]);
            return status;
        }
    }
    if (at == 0)
        MLO_TRY(after_first(w, (size_t)rows, err));
    MLO_TRY(mlo_distill_samples(w, at, (size_t)rows, err));
    for (int s = 0; s < MLO_DISTILL_SIDES; s++)
        MLO_TRY(take_metrics(w, s, at, rows, err));
out:
    return status;
}

static enum mlo_status whole_metrics(struct mlo_distill_work *w, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t m = 0; m < w->d->metric_count; m++)
        for (int s = 0; s < MLO_DISTILL_SIDES; s++)
            if (needs_whole(&w->d->metrics[m]))
                MLO_TRY(score(w, m, s, &w->runs[s].whole, 0, w->d->count, &w->d->scores[m][s], err));
out:
    return status;
}

enum mlo_status mlo_distill_observe(struct mlo_distill *d, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_distill_work w = {.d = d};
    MLO_TRY(check_samples(d, err));
    d->count = mlo_dataset_count(d->in[1]->dataset);
    for (int s = 0; s < MLO_DISTILL_SIDES; s++)
        MLO_TRY(begin_side(d, s, &w.runs[s], err));
    MLO_TRY(mlo_dataset_target(d->in[1]->dataset, &w.target, err));
    int64_t piece = piece_of(&w);
    for (int64_t at = 0; at < d->count; at += piece) {
        int64_t rows = MLO_MIN(piece, d->count - at);
        char text[64];
        MLO_TRY(run_piece(&w, at, rows, err));
        snprintf(text, sizeof text, "%lld of %lld samples", (long long)(at + rows), (long long)d->count);
        if (d->o->progress)
            d->o->progress(d->o->progress_arg, 0.9 * (double)(at + rows) / (double)d->count, text);
    }
    MLO_TRY(whole_metrics(&w, err));
out:
    for (int s = 0; s < MLO_DISTILL_SIDES; s++)
        run_clear(&w.runs[s]);
    mlo_tensor_clear(&w.target);
    return status;
}

enum mlo_status mlo_distill(const struct mlo_distill_side *teacher, const struct mlo_distill_side *student,
                            const struct mlo_distill_options *options, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    static const struct mlo_distill_options defaults = {0};
    const struct mlo_distill_options *o = options ? options : &defaults;
    struct mlo_distill d = {.o = o,
                            .in = {teacher, student},
                            .temperature = o->temperature > 0 ? o->temperature : 1,
                            .bins = o->bins > 0 ? o->bins : 15,
                            .shown = o->shown > 0 ? o->shown : 16};
    *out = NULL;
    if (d.bins > 1000 || !(d.temperature >= 1e-3 && d.temperature <= 1e3)) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "bins must be at most 1000, and the temperature within 0.001 and 1000");
        goto out;
    }
    MLO_TRY(mlo_distill_observe(&d, err));
    MLO_TRY(mlo_distill_json(&d, out, err));
out:
    mlo_distill_clear(&d);
    return status;
}
