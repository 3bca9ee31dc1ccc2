/* Where the difference lies: by class, by slice, by pair of classes, by sample. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/distill_impl.h"

static const double ALPHA = 0.05;
enum { PAIRS_SHOWN = 1024 };

/* --- parts of the samples ------------------------------------------------------------------------------- */

/* The samples of one class or slice. */
struct part {
    const char *name;
    int64_t number, n, agree, only_teacher, only_student, right[MLO_DISTILL_SIDES];
    double kl, mse, error[MLO_DISTILL_SIDES]; /* sums */
    double p, p_holm;
};

static void add_to(struct part *p, const struct mlo_distill *d, const struct mlo_distill_row *row)
{
    bool teacher = mlo_distill_right(row, MLO_DISTILL_TEACHER),
         student = mlo_distill_right(row, MLO_DISTILL_STUDENT);
    p->n++;
    p->agree += row->best[0] == row->best[1];
    p->right[0] += teacher;
    p->right[1] += student;
    p->kl += row->kl;
    p->mse += row->mse;
    for (int s = 0; s < MLO_DISTILL_SIDES; s++)
        p->error[s] += row->error[s];
    if (d->labels) {
        p->only_teacher += teacher && !student;
        p->only_student += student && !teacher;
    } else { /* the sign test: which is nearer to y */
        p->only_teacher += row->error[0] < row->error[1];
        p->only_student += row->error[1] < row->error[0];
    }
}

/* The exact test of a part: of pairs that disagree, as many one way as the other. */
static double exact_p(const struct part *p)
{
    size_t n = (size_t)(p->only_teacher + p->only_student);
    double *a = calloc(2 * n + 1, sizeof *a), *b = a + n, result = NAN;
    if (!a)
        return NAN;
    for (size_t i = 0; i < n; i++)
        *((int64_t)i < p->only_teacher ? &a[i] : &b[i]) = 1;
    result = mlo_mcnemar(a, b, (int64_t)n);
    free(a);
    return result;
}

static json_t *part_json(const struct mlo_distill *d, const struct part *p, const char *key, size_t family)
{
    double n = (double)p->n, low, high;
    json_t *o = json_pack("{s:I}", "n", (json_int_t)p->n);
    if (strcmp(key, "class") == 0)
        json_object_set_new(o, key, json_integer(p->number));
    else
        json_object_set_new(o, key, json_string(p->name));
    if (!p->n)
        return o;
    if (d->classes) {
        mlo_distill_put(o, "agreement", (double)p->agree / n);
        mlo_distill_put(o, "kl", p->kl / n);
    } else {
        mlo_distill_put(o, "mse", p->mse / n);
    }
    if (d->targets)
        for (int s = 0; s < MLO_DISTILL_SIDES; s++)
            mlo_distill_put(o, mlo_distill_names[s], p->error[s] / n);
    if (d->labels) {
        double value = (double)(p->only_student - p->only_teacher) / n, all_low, all_high;
        for (int s = 0; s < MLO_DISTILL_SIDES; s++)
            json_object_set_new(o, mlo_distill_names[s], json_real((double)p->right[s] / n));
        mlo_paired_interval(p->only_student, p->only_teacher, p->n, ALPHA, &low, &high);
        mlo_paired_interval(p->only_student, p->only_teacher, p->n, ALPHA / (double)family, &all_low,
                            &all_high);
        json_object_set_new(
            o, "difference",
            json_pack("{s:f,s:f,s:f,s:I}", "value", value, "low", low, "high", high, "n", (json_int_t)p->n));
        json_object_set_new(o, "simultaneous", json_pack("{s:f,s:f}", "low", all_low, "high", all_high));
    }
    if (d->labels || d->targets) {
        json_object_set_new(o, "p", json_real(p->p));
        json_object_set_new(o, "p_holm", json_real(p->p_holm));
    }
    return o;
}

/* The part with the lowest difference, with the interval that holds for all of them at once. */
static json_t *worst_json(const json_t *list, const char *key)
{
    const json_t *worst = NULL, *row;
    size_t i;
    json_array_foreach((json_t *)list, i, row)
    {
        const json_t *difference = json_object_get(row, "difference");
        if (difference && (!worst || mlo_json_f64(difference, "value", 0) <
                                         mlo_json_f64(json_object_get(worst, "difference"), "value", 0)))
            worst = row;
    }
    if (!worst)
        return NULL;
    /* low: the least of all lower ends, so that it holds whichever part is the worst */
    double value = mlo_json_f64(json_object_get(worst, "difference"), "value", 0), low = value, high = value;
    json_array_foreach((json_t *)list, i, row)
    {
        const json_t *simultaneous = json_object_get(row, "simultaneous");
        if (!simultaneous)
            continue;
        low = fmin(low, mlo_json_f64(simultaneous, "low", low));
    }
    high = mlo_json_f64(json_object_get(worst, "simultaneous"), "high", high);
    return json_pack("{s:O,s:f,s:f,s:f,s:I}", key, json_object_get(worst, key), "value", value, "low", low,
                     "high", fmax(high, value), "n", (json_int_t)mlo_json_i64(worst, "n", 0));
}

static enum mlo_status put_parts(const struct mlo_distill *d, struct part *parts, size_t count,
                                 const char *key, const char *member, json_t *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t family = 0;
    double *p = malloc((count + 1) * sizeof *p);
    json_t *list = json_array(), *worst = json_object_get(out, "worst");
    if (!p || !list) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        parts[i].p = exact_p(&parts[i]);
        if (isnan(parts[i].p)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        if (parts[i].n) /* a part without samples is no comparison */
            p[family++] = parts[i].p;
    }
    if (!mlo_holm(p, family)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0, at = 0; i < count; i++) {
        if (parts[i].n)
            parts[i].p_holm = p[at++];
        else if (count > MLO_SLICES_MAX) /* of a vocabulary, only what occurs */
            continue;
        json_array_append_new(list, part_json(d, &parts[i], key, MLO_MAX(family, (size_t)1)));
    }
    json_t *least = worst_json(list, key);
    if (least)
        json_object_set_new(worst, key, least);
    if (json_object_set(out, member, list) != 0)
        status = mlo_error_nomem(err);
out:
    free(p);
    json_decref(list);
    return status;
}

static enum mlo_status by_class(const struct mlo_distill *d, json_t *out, struct mlo_error *err)
{
    struct part *parts = calloc(d->class_count + 1, sizeof *parts);
    if (!parts)
        return mlo_error_nomem(err);
    for (size_t c = 0; c < d->class_count; c++)
        parts[c].number = (int64_t)c;
    for (int64_t i = 0; i < d->count; i++)
        add_to(&parts[d->rows[i].label], d, &d->rows[i]);
    enum mlo_status status = put_parts(d, parts, d->class_count, "class", "per_class", out, err);
    free(parts);
    return status;
}

static enum mlo_status by_slice(const struct mlo_distill *d, json_t *out, struct mlo_error *err)
{
    const struct mlo_slices *slices = d->o->slices;
    if (slices->samples != d->count)
        return mlo_error_set(err, MLO_EINVAL, "%s has slices for %lld samples, and there are %lld",
                             slices->from, (long long)slices->samples, (long long)d->count);
    struct part *parts = calloc(slices->count + 1, sizeof *parts);
    if (!parts)
        return mlo_error_nomem(err);
    for (size_t c = 0; c < slices->count; c++)
        parts[c].name = slices->names[c];
    for (int64_t i = 0; i < d->count; i++)
        add_to(&parts[slices->of[i]], d, &d->rows[i]);
    json_object_set_new(out, "slices_of", json_string(slices->from));
    enum mlo_status status = put_parts(d, parts, slices->count, "slice", "per_slice", out, err);
    free(parts);
    return status;
}

/* --- pairs of classes -------------------------------------------------------------------------------------
 */

struct pair {
    int32_t teacher, student;
    int64_t count, right[MLO_DISTILL_SIDES];
};

static int by_classes(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    int order = (x->teacher > y->teacher) - (x->teacher < y->teacher);
    return order ? order : (x->student > y->student) - (x->student < y->student);
}

static int by_count(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    int order = (x->count < y->count) - (x->count > y->count);
    return order ? order : by_classes(a, b);
}

static enum mlo_status confusion(const struct mlo_distill *d, json_t *out, struct mlo_error *err)
{
    size_t count = 0, distinct = 0;
    struct pair *pairs = malloc(((size_t)d->count + 1) * sizeof *pairs);
    json_t *list = json_array();
    if (!pairs || !list) {
        free(pairs);
        json_decref(list);
        return mlo_error_nomem(err);
    }
    for (int64_t i = 0; i < d->count; i++) {
        const struct mlo_distill_row *row = &d->rows[i];
        if (row->best[0] != row->best[1])
            pairs[count++] = (struct pair){
                row->best[0], row->best[1], 1, {mlo_distill_right(row, 0), mlo_distill_right(row, 1)}};
    }
    qsort(pairs, count, sizeof *pairs, by_classes);
    for (size_t i = 0; i < count; i++) {
        struct pair *last = distinct ? &pairs[distinct - 1] : NULL;
        if (!last || by_classes(last, &pairs[i]) != 0) {
            pairs[distinct++] = pairs[i];
            continue;
        }
        last->count++;
        last->right[0] += pairs[i].right[0];
        last->right[1] += pairs[i].right[1];
    }
    qsort(pairs, distinct, sizeof *pairs, by_count);
    for (size_t i = 0; i < distinct && i < PAIRS_SHOWN; i++) {
        json_t *pair = json_pack("{s:i,s:i,s:I}", "teacher", (int)pairs[i].teacher, "student",
                                 (int)pairs[i].student, "count", (json_int_t)pairs[i].count);
        if (d->labels) {
            json_object_set_new(pair, "teacher_right", json_integer(pairs[i].right[0]));
            json_object_set_new(pair, "student_right", json_integer(pairs[i].right[1]));
        }
        json_array_append_new(list, pair);
    }
    free(pairs);
    size_t left_out = distinct > PAIRS_SHOWN ? distinct - PAIRS_SHOWN : 0;
    json_t *whole = json_pack("{s:I,s:I,s:I,s:o}", "samples", (json_int_t)count, "pairs",
                              (json_int_t)distinct, "left_out", (json_int_t)left_out, "list", list);
    return whole && json_object_set_new(out, "confusion", whole) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static json_t *outcomes(const struct mlo_distill *d)
{
    int64_t both = 0, lost = 0, gained = 0, neither = 0;
    for (int64_t i = 0; i < d->count; i++) {
        bool teacher = mlo_distill_right(&d->rows[i], 0), student = mlo_distill_right(&d->rows[i], 1);
        both += teacher && student;
        lost += teacher && !student;
        gained += student && !teacher;
        neither += !teacher && !student;
    }
    return json_pack("{s:I,s:I,s:I,s:I}", "both_right", (json_int_t)both, "lost", (json_int_t)lost, "gained",
                     (json_int_t)gained, "both_wrong", (json_int_t)neither);
}

/* --- samples -------------------------------------------------------------------------------------------- */

struct far {
    double by;
    int64_t sample;
};

static int farthest_first(const void *a, const void *b)
{
    const struct far *x = a, *y = b;
    int order = (x->by < y->by) - (x->by > y->by);
    return order ? order : (x->sample > y->sample) - (x->sample < y->sample);
}

static json_t *sample_json(const struct mlo_distill *d, const struct far *f)
{
    const struct mlo_distill_row *row = &d->rows[f->sample];
    json_t *o = json_pack("{s:I}", "sample", (json_int_t)f->sample);
    mlo_distill_put(o, d->classes ? "kl" : "mse", f->by);
    if (d->labels)
        json_object_set_new(o, "label", json_integer(row->label));
    for (int s = 0; s < MLO_DISTILL_SIDES && d->classes; s++)
        json_object_set_new(
            o, mlo_distill_names[s],
            json_pack("{s:i,s:f}", "class", (int)row->best[s], "confidence", row->confidence[s]));
    for (int s = 0; s < MLO_DISTILL_SIDES && d->targets; s++) {
        json_t *side = json_object();
        mlo_distill_put(side, "error", row->error[s]);
        json_object_set_new(o, mlo_distill_names[s], side);
    }
    if (d->o->slices)
        json_object_set_new(o, "slice", json_string(d->o->slices->names[d->o->slices->of[f->sample]]));
    return o;
}

static enum mlo_status samples(const struct mlo_distill *d, json_t *out, struct mlo_error *err)
{
    struct far *all = malloc(((size_t)d->count + 1) * sizeof *all);
    json_t *list = json_array();
    size_t count = 0;
    if (!all || !list) {
        free(all);
        json_decref(list);
        return mlo_error_nomem(err);
    }
    for (int64_t i = 0; i < d->count; i++) {
        double by = d->classes ? d->rows[i].kl : d->rows[i].mse;
        if (isnan(by)) /* beyond what a number holds */
            by = INFINITY;
        if (by > 0)
            all[count++] = (struct far){by, i};
    }
    qsort(all, count, sizeof *all, farthest_first);
    for (size_t i = 0; i < count && i < (size_t)d->shown; i++)
        json_array_append_new(list, sample_json(d, &all[i]));
    free(all);
    return json_object_set_new(out, "farthest", list) == 0 ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_distill_parts(const struct mlo_distill *d, json_t *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (json_object_set_new(out, "worst", json_object()) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (d->labels) {
        json_object_set_new(out, "outcomes", outcomes(d));
        MLO_TRY(by_class(d, out, err));
    }
    if (d->classes)
        MLO_TRY(confusion(d, out, err));
    if (d->o->slices)
        MLO_TRY(by_slice(d, out, err));
    MLO_TRY(samples(d, out, err));
    if (!json_object_size(json_object_get(out, "worst")))
        json_object_del(out, "worst");
out:
    return status;
}
