/* SparseGPT (Frantar and Alistarh 2023, "SparseGPT: Massive Language Models Can Be Accurately Pruned in
 * One-Shot", arXiv:2301.00774): inputs are visited one after the other; in blocks of them the weights that
 * can go at the least error are chosen; what their going does to the outputs is made good by the weights of
 * the inputs that follow.
 *
 * In the terms of round_gptq.c: with H = R R^T, R upper triangular, the error of a row is the sum over i of
 * (R_ii (w'_i - q_i))^2, where w'_i = w_i + (sum over j < i of R_ji e_j) / R_ii is what the weight has become
 * when its turn comes, q_i is what is kept of it and e_j = w_j - q_j. So a weight that stays costs nothing,
 * and one that goes (R_ii w'_i)^2: the paper's w^2 / [H^-1]_ii of the remaining inputs, without an inverse.
 * What the weights of a block will be like when none of them goes is found by the same recurrence within it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/sparsify_impl.h"

uint64_t mlo_sparse_quota_take(struct sparse_quota *quota, uint64_t count)
{
    quota->seen += count;
    unsigned __int128 due = (unsigned __int128)quota->zeros * quota->seen;
    uint64_t made = quota->total ? (uint64_t)(due / quota->total) : 0;
    uint64_t now = made - quota->made;
    quota->made = made;
    return now;
}

/* --- the least of many --------------------------------------------------------------------------- */

static void swap(double *a, double *b)
{
    double t = *a;
    *a = *b;
    *b = t;
}

/* The k-th least, k from 0; moves what stands in v. Parts of equal values are passed over at once. */
static double kth_least(double *v, size_t n, size_t k)
{
    size_t low = 0, high = n; /* it is in [low, high) */
    while (high - low > 1) {
        double a = v[low], b = v[low + (high - low) / 2], c = v[high - 1];
        double pivot = fmax(fmin(a, b), fmin(fmax(a, b), c));
        size_t less = low, at = low, more = high;
        while (at < more) {
            if (v[at] < pivot)
                swap(&v[at++], &v[less++]);
            else if (v[at] > pivot)
                swap(&v[at], &v[--more]);
            else
                at++;
        }
        if (k < less)
            high = less;
        else if (k >= more)
            low = more;
        else
            return pivot;
    }
    return v[low];
}

enum mlo_status mlo_sparse_mark_least(const double *scores, size_t n, uint64_t count, uint8_t *marks,
                                      struct mlo_error *err)
{
    memset(marks, count >= n, n);
    if (count == 0 || count >= n)
        return MLO_OK;
    double *copy = malloc(n * sizeof *copy);
    if (!copy)
        return mlo_error_nomem(err);
    memcpy(copy, scores, n * sizeof *copy);
    double last = kth_least(copy, n, (size_t)count - 1);
    free(copy);
    uint64_t equal = count;
    for (size_t i = 0; i < n; i++)
        equal -= scores[i] < last;
    for (size_t i = 0; i < n; i++) {
        marks[i] = scores[i] < last || (scores[i] == last && equal > 0);
        equal -= scores[i] == last && equal > 0;
    }
    return MLO_OK;
}

/* Of each row's four scores at scores[0], [step], [2 step], [3 step] the two least. */
static void mark_groups(const double *scores, size_t rows, uint8_t *marks)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < MLO_SPARSE_GROUP; i++) {
            size_t less = 0; /* those that go before it */
            double own = scores[i * rows + r];
            for (size_t j = 0; j < MLO_SPARSE_GROUP; j++) {
                double other = scores[j * rows + r];
                less += other < own || (other == own && j < i);
            }
            marks[i * rows + r] = less < MLO_SPARSE_GROUP_ZEROS;
        }
    }
}

/* --- magnitude ----------------------------------------------------------------------------------- */

enum mlo_status mlo_sparse_magnitude(const struct sparse_rows *s, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count = s->n * s->rows;
    double *scores = malloc((count + 1) * sizeof *scores);
    uint8_t *gone = malloc(count + 1);
    if (!scores || !gone) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        scores[i] = fabs(s->w[i]);
    if (s->groups)
        for (size_t i = 0; i < s->n; i += MLO_SPARSE_GROUP)
            mark_groups(scores + i * s->rows, s->rows, gone + i * s->rows);
    else
        MLO_TRY(mlo_sparse_mark_least(scores, count, mlo_sparse_quota_take(s->quota, count), gone, err));
    for (size_t i = 0; i < count; i++)
        s->made[i] = gone[i] ? 0 : s->w[i];
out:
    free(scores);
    free(gone);
    return status;
}

/* --- SparseGPT ----------------------------------------------------------------------------------- */

struct sweep {
    const struct sparse_rows *s;
    const double *l;
    double *shift;   /* [n][rows]: of w'_i, times R_ii */
    double *error;   /* [n][rows] */
    double *trial;   /* [block][rows]: shifts when none of the block goes */
    double *scores;  /* [block][rows] */
    double *step;    /* [rows] */
    uint8_t *gone;   /* [block][rows] */
    uint64_t *share; /* of each block: how many of its weights go */
};

static double factor_at(const struct sweep *w, size_t j, size_t i)
{
    size_t n = w->s->n;
    return w->l[(n - 1 - j) * n + (n - 1 - i)];
}

/* What each weight of inputs [first, end) would cost, if none in front of it within these went. */
static void score(struct sweep *w, size_t first, size_t end)
{
    const struct sparse_rows *s = w->s;
    memcpy(w->trial, w->shift + first * s->rows, (end - first) * s->rows * sizeof *w->trial);
    for (size_t i = first; i < end; i++) {
        double rii = factor_at(w, i, i);
        double *at = w->trial + (i - first) * s->rows, *scores = w->scores + (i - first) * s->rows;
        for (size_t r = 0; r < s->rows; r++) {
            double cost = rii * s->w[i * s->rows + r] + at[r];
            scores[r] = cost * cost;
            w->step[r] = -at[r] / rii; /* the weight moves and stays */
        }
        for (size_t k = i + 1; k < end; k++)
            mlo_add_scaled(w->trial + (k - first) * s->rows, w->step, factor_at(w, i, k), s->rows);
    }
}

static void settle(struct sweep *w, size_t i, const uint8_t *gone)
{
    const struct sparse_rows *s = w->s;
    double rii = factor_at(w, i, i);
    for (size_t r = 0; r < s->rows; r++) {
        size_t at = i * s->rows + r;
        s->made[at] = gone[r] ? 0 : (double)(float)(s->w[at] + w->shift[at] / rii);
        w->error[at] = s->w[at] - s->made[at];
    }
}

static enum mlo_status sweep_block(struct sweep *w, size_t first, size_t end, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct sparse_rows *s = w->s;
    size_t count = (end - first) * s->rows;
    if (!s->groups) {
        score(w, first, end);
        MLO_TRY(mlo_sparse_mark_least(w->scores, count, w->share[first / s->block], w->gone, err));
    }
    for (size_t i = first; i < end; i++) {
        if (s->groups && i % MLO_SPARSE_GROUP == 0) {
            score(w, i, i + MLO_SPARSE_GROUP);
            mark_groups(w->scores, s->rows, w->gone + (i - first) * s->rows);
        }
        settle(w, i, w->gone + (i - first) * s->rows);
        for (size_t k = i + 1; k < end; k++)
            mlo_add_scaled(w->shift + k * s->rows, w->error + i * s->rows, factor_at(w, i, k), s->rows);
    }
    for (size_t k = end; k < s->n; k++)
        for (size_t i = first; i < end; i++)
            mlo_add_scaled(w->shift + k * s->rows, w->error + i * s->rows, factor_at(w, i, k), s->rows);
out:
    return status;
}

/* How many go in each block: those of it that are among the cheapest of all inputs while none has gone.
 * Positions of a kernel and inputs that matter little have more zeros than others; the paper gives each block
 * the same. */
static enum mlo_status share_out(struct sweep *w, struct mlo_error *err)
{
    const struct sparse_rows *s = w->s;
    size_t count = s->n * s->rows;
    uint8_t *gone = malloc(count + 1);
    if (!gone)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < s->n; i++)
        for (size_t r = 0; r < s->rows; r++) {
            double cost = factor_at(w, i, i) * s->w[i * s->rows + r];
            w->error[i * s->rows + r] = cost * cost; /* the sweep writes it anew */
        }
    enum mlo_status status =
        mlo_sparse_mark_least(w->error, count, mlo_sparse_quota_take(s->quota, count), gone, err);
    for (size_t i = 0; status == MLO_OK && i < count; i++)
        w->share[i / s->rows / s->block] += gone[i];
    free(gone);
    return status;
}

enum mlo_status mlo_sparse_gpt(const struct sparse_rows *s, const double *l, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t all = s->n * s->rows + 1, part = s->block * s->rows + 1;
    struct sweep w = {.s = s, .l = l};
    w.shift = calloc(all, sizeof *w.shift);
    w.error = malloc(all * sizeof *w.error);
    w.trial = malloc(part * sizeof *w.trial);
    w.scores = malloc(part * sizeof *w.scores);
    w.step = malloc((s->rows + 1) * sizeof *w.step);
    w.gone = malloc(part);
    w.share = calloc(s->n / s->block + 1, sizeof *w.share);
    if (!w.share || !w.shift || !w.error || !w.trial || !w.scores || !w.step || !w.gone) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (!s->groups)
        MLO_TRY(share_out(&w, err));
    for (size_t b = 0; b < s->n; b += s->block)
        MLO_TRY(sweep_block(&w, b, MLO_MIN(b + s->block, s->n), err));
    for (size_t i = 0; i < s->n * s->rows; i++)
        if (!isfinite(s->made[i])) {
            status = mlo_error_set(err, MLO_EINVAL, "its weights would grow beyond float32");
            mlo_error_hint(err, "raise the option 'damp', or exclude the node");
            goto out;
        }
out:
    free(w.shift);
    free(w.error);
    free(w.trial);
    free(w.scores);
    free(w.step);
    free(w.gone);
    free(w.share);
    return status;
}

enum mlo_status mlo_sparse_energy(const double *l, size_t n, size_t rows, const double *e, double *out,
                                  struct mlo_error *err)
{
    enum { BLOCK = 32 };
    double *t = calloc(n * rows + 1, sizeof *t), total = 0;
    *out = 0;
    if (!t)
        return mlo_error_nomem(err);
    for (size_t b = 0; b < n; b += BLOCK)
        for (size_t k = b; k < n; k++)
            for (size_t i = b; i < MLO_MIN(b + BLOCK, k + 1); i++)
                mlo_add_scaled(t + k * rows, e + i * rows, l[(n - 1 - i) * n + (n - 1 - k)], rows);
    for (size_t i = 0; i < n * rows; i++)
        total += t[i] * t[i];
    free(t);
    *out = total;
    return MLO_OK;
}
