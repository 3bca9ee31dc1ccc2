/* What is kept of one sample. */
#include <math.h>
#include <string.h>

#include "pipeline/measure/distill_impl.h"

static enum mlo_status bad_row(const struct mlo_distill *d, int side, int64_t sample, bool nan,
                               struct mlo_error *err)
{
    return mlo_error_set(err, MLO_EINVAL, "the %s's output '%s' for sample %lld %s", mlo_distill_names[side],
                         d->output[side], (long long)sample,
                         nan ? "holds NaN" : "holds an infinity, or no score that is finite");
}

/* Sums own log-probabilities into those of the common classes that they stand for; what stands for none is
 * left out, and the rest is scaled to a sum of 1. */
static bool to_common(const struct mlo_distill *d, int side, const double *own, double *common)
{
    double high = -INFINITY, sum = 0;
    if (!d->in[side]->classes) {
        memcpy(common, own, d->class_count * sizeof *common);
        return true;
    }
    for (size_t c = 0; c < d->class_count; c++)
        common[c] = 0;
    for (size_t k = 0; k < d->width[side]; k++)
        if (mlo_distill_class_of(d->in[side], k) >= 0)
            high = fmax(high, own[k]);
    if (!isfinite(high))
        return false;
    for (size_t k = 0; k < d->width[side]; k++) {
        int64_t to = mlo_distill_class_of(d->in[side], k);
        if (to >= 0) {
            common[to] += exp(own[k] - high);
            sum += exp(own[k] - high);
        }
    }
    for (size_t c = 0; c < d->class_count; c++)
        common[c] = log(common[c] / sum);
    return true;
}

static enum mlo_status one_side(struct mlo_distill_work *w, int side, size_t in_piece, int64_t sample,
                                struct mlo_distill_row *row, struct mlo_error *err)
{
    const struct mlo_distill *d = w->d;
    struct mlo_distill_run *r = &w->runs[side];
    const struct mlo_tensor *t = mlo_distill_output(r);
    size_t width = d->width[side], stored = mlo_tensor_count(t) / (size_t)t->dims[0];
    bool nan = false;
    for (size_t k = 0; k < stored; k++) {
        r->raw[k] = mlo_tensor_get_f64(t, in_piece * stored + k);
        nan = nan || isnan(r->raw[k]);
    }
    if (nan)
        return bad_row(d, side, sample, true, err);
    if (!d->classes) {
        for (size_t k = 0; k < width; k++)
            if (!isfinite(r->raw[k]))
                return bad_row(d, side, sample, false, err);
        return MLO_OK;
    }
    if (stored == 1) {
        r->raw[1] = r->raw[0];
        r->raw[0] = d->probabilities[side] ? 1 - r->raw[1] : 0;
    }
    double sum = 0;
    for (size_t k = 0; d->probabilities[side] && k < width; k++)
        sum += r->raw[k] >= 0 ? r->raw[k] : NAN;
    if (d->probabilities[side] && !(fabs(sum - 1) <= 1e-2)) {
        mlo_error_set(err, MLO_EINVAL,
                      "the %s's output '%s' for sample %lld is no distribution: it adds up to %.6g, or holds "
                      "a negative "
                      "number",
                      mlo_distill_names[side], d->output[side], (long long)sample, sum);
        mlo_error_hint(err, "say what it is: %s_scores logits", mlo_distill_names[side]);
        return MLO_EINVAL;
    }
    if (!mlo_log_softmax(r->raw, width, 1, d->probabilities[side], r->log_p) ||
        !mlo_log_softmax(r->raw, width, d->temperature, d->probabilities[side], r->tempered) ||
        !to_common(d, side, r->log_p, r->common) || !to_common(d, side, r->tempered, r->common_tempered))
        return bad_row(d, side, sample, false, err);
    const double *ranks = d->in[side]->classes ? r->common : r->raw;
    size_t best = 0;
    for (size_t c = 1; c < d->class_count; c++)
        if (ranks[c] > ranks[best])
            best = c;
    row->best[side] = (int32_t)best;
    row->confidence[side] = fmin(1, exp(r->common[best]));
    return MLO_OK;
}

/* Cosine and mean squared difference of the outputs as they are; NAN where they are of other kinds. */
static void distances(const struct mlo_distill_work *w, struct mlo_distill_row *row)
{
    const struct mlo_distill *d = w->d;
    const double *a = w->runs[0].raw, *b = w->runs[1].raw;
    double aa = 0, bb = 0, ab = 0, squares = 0;
    bool masked = false;
    if (!mlo_distill_alike(d)) {
        row->cosine = row->mse = NAN;
        return;
    }
    for (size_t k = 0; k < d->width[0]; k++) {
        if (isinf(a[k]) && a[k] == b[k]) /* masked in both */
            continue;
        masked = masked || isinf(a[k]) || isinf(b[k]);
        aa += a[k] * a[k];
        bb += b[k] * b[k];
        ab += a[k] * b[k];
        squares += (a[k] - b[k]) * (a[k] - b[k]);
    }
    row->cosine = aa > 0 && bb > 0 ? fmax(-1, fmin(1, ab / sqrt(aa * bb))) : aa == bb;
    row->mse = squares / (double)d->width[0];
    if (isfinite(row->mse) && isfinite(row->cosine))
        return;
    row->cosine = row->mse = NAN;
    row->apart = masked ? MLO_DISTILL_MASKED : MLO_DISTILL_LARGE;
}

/* Mean squared error of both against y. */
static void errors(const struct mlo_distill_work *w, int64_t sample, struct mlo_distill_row *row)
{
    size_t width = w->d->width[0];
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        double sum = 0;
        for (size_t k = 0; k < width; k++) {
            double gap = w->runs[s].raw[k] - mlo_tensor_get_f64(&w->target, (size_t)sample * width + k);
            sum += gap * gap;
        }
        row->error[s] = sum / (double)width;
    }
}

static enum mlo_status check_label(const struct mlo_distill *d, int64_t sample, int64_t label,
                                   struct mlo_error *err)
{
    if (label >= 0 && (size_t)label < d->class_count)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL,
                  "label %lld of sample %lld is out of range: there are %zu classes (0 to %zu)",
                  (long long)label, (long long)sample, d->class_count, d->class_count - 1);
    mlo_error_hint(err, "labels count the classes as the models do; a mapping says where they do not");
    return MLO_EINVAL;
}

/* Room for the log-probabilities of a piece, where metrics read those. */
static enum mlo_status make_mapped(struct mlo_distill_work *w, size_t rows, struct mlo_error *err)
{
    const int64_t dims[] = {(int64_t)rows, (int64_t)w->d->class_count};
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        mlo_tensor_clear(&w->runs[s].mapped);
        if (!mlo_distill_translates(w->d, s))
            continue;
        enum mlo_status status = mlo_tensor_init(&w->runs[s].mapped, MLO_FLOAT64, 2, dims, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

enum mlo_status mlo_distill_samples(struct mlo_distill_work *w, int64_t at, size_t rows,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_distill *d = w->d;
    const int64_t *labels = d->labels ? mlo_dataset_labels(d->in[1]->dataset) : NULL;
    MLO_TRY(make_mapped(w, rows, err));
    for (size_t i = 0; i < rows; i++) {
        int64_t sample = at + (int64_t)i;
        struct mlo_distill_row *row = &d->rows[sample];
        row->label = -1;
        for (int s = 0; s < MLO_DISTILL_SIDES; s++)
            MLO_TRY(one_side(w, s, i, sample, row, err));
        if (labels) {
            MLO_TRY(check_label(d, sample, labels[sample], err));
            row->label = (int32_t)labels[sample];
        }
        if (d->classes)
            mlo_divergence(w->runs[0].common_tempered, w->runs[1].common_tempered, d->class_count, &row->kl,
                           &row->cross_entropy);
        distances(w, row);
        if (d->targets)
            errors(w, sample, row);
        for (int s = 0; s < MLO_DISTILL_SIDES; s++)
            if (mlo_distill_translates(d, s))
                memcpy((double *)w->runs[s].mapped.data + i * d->class_count, w->runs[s].common,
                       d->class_count * sizeof(double));
    }
out:
    return status;
}
