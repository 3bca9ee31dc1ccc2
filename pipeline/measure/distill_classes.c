/* Whether teacher and student speak of the same classes, and which of each stands for which. */
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/distill_impl.h"

enum { CLASSES_MAX = 1 << 20 };

static const char HINT[] = "give a mapping: {\"teacher\": [...], \"student\": [...]}, for each class of a "
                           "model the number of the label "
                           "that it stands for, null for none";

int64_t mlo_distill_class_of(const struct mlo_distill_side *side, size_t own)
{
    if (!side->classes)
        return (int64_t)own;
    const json_t *to = json_array_get(side->classes, own);
    return json_is_integer(to) ? json_integer_value(to) : -1;
}

static const char *name_of(const json_t *labels, size_t i)
{
    const char *name = json_string_value(json_array_get(labels, i));
    return name ? name : "?";
}

static bool has_name(const json_t *labels, const char *name)
{
    for (size_t i = 0; i < json_array_size(labels); i++)
        if (strcmp(name_of(labels, i), name) == 0)
            return true;
    return false;
}

/* "; only the teacher has 'Bag', 'Coat'", where one does. */
static void say_missing(struct mlo_buf *out, const char *who, const json_t *labels, const json_t *other)
{
    enum { SHOWN = 5 };
    size_t missing = 0;
    for (size_t i = 0; i < json_array_size(labels); i++) {
        if (has_name(other, name_of(labels, i)))
            continue;
        if (!missing)
            mlo_buf_printf(out, "; only the %s has ", who);
        if (missing < SHOWN)
            mlo_buf_printf(out, "%s'%.60s'", missing ? ", " : "", name_of(labels, i));
        missing++;
    }
    if (missing > SHOWN)
        mlo_buf_printf(out, " and %zu more", missing - SHOWN);
}

static enum mlo_status differ(const struct mlo_distill *d, const char *what, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    const json_t *teacher = d->in[0]->labels, *student = d->in[1]->labels;
    mlo_buf_printf(&text, "teacher and student have other label sets: %s", what);
    if (teacher && student) {
        say_missing(&text, "teacher", teacher, student);
        say_missing(&text, "student", student, teacher);
    }
    mlo_error_set(err, MLO_EINVAL, "%s", mlo_buf_str(&text));
    mlo_error_hint(err, "%s", HINT);
    mlo_buf_clear(&text);
    return MLO_EINVAL;
}

static enum mlo_status check_names(const struct mlo_distill *d, struct mlo_error *err)
{
    char what[320];
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        const json_t *labels = d->in[s]->labels;
        if (labels && json_array_size(labels) != d->width[s])
            return mlo_error_set(err, MLO_EINVAL, "the %s puts out %zu classes, and its labels name %zu",
                                 mlo_distill_names[s], d->width[s], json_array_size(labels));
    }
    const json_t *teacher = d->in[0]->labels, *student = d->in[1]->labels;
    if (d->in[0]->classes || d->in[1]->classes)
        return MLO_OK;
    if (d->width[0] != d->width[1]) {
        snprintf(what, sizeof what,
                 "the teacher's output '%.60s' has %zu classes and the student's '%.60s' %zu", d->output[0],
                 d->width[0], d->output[1], d->width[1]);
        return differ(d, what, err);
    }
    for (size_t i = 0; teacher && student && i < d->width[0]; i++) {
        if (strcmp(name_of(teacher, i), name_of(student, i)) == 0)
            continue;
        snprintf(what, sizeof what, "class %zu is '%.60s' for the teacher and '%.60s' for the student", i,
                 name_of(teacher, i), name_of(student, i));
        return differ(d, what, err);
    }
    return MLO_OK;
}

/* The mapping covers what each model has, and both cover the same classes, from 0 on. */
static enum mlo_status check_mapping(struct mlo_distill *d, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t most = -1;
    bool *covered = NULL;
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        const json_t *classes = d->in[s]->classes;
        if (classes && json_array_size(classes) != d->width[s]) {
            status = mlo_error_set(err, MLO_EINVAL,
                                   "the mapping has %zu entries for the %s, which has %zu classes",
                                   json_array_size(classes), mlo_distill_names[s], d->width[s]);
            goto out;
        }
        for (size_t k = 0; k < d->width[s]; k++) {
            const json_t *to = classes ? json_array_get(classes, k) : NULL;
            if (classes && !json_is_null(to) &&
                (!json_is_integer(to) || json_integer_value(to) < -1 ||
                 json_integer_value(to) >= CLASSES_MAX)) {
                status =
                    mlo_error_set(err, MLO_EINVAL,
                                  "entry %zu of the %s's mapping is no class: it must be a number from 0 "
                                  "on, or null",
                                  k, mlo_distill_names[s]);
                goto out;
            }
            most = MLO_MAX(most, mlo_distill_class_of(d->in[s], k));
        }
    }
    d->class_count = (size_t)(most + 1);
    if (d->class_count < 2) {
        status = mlo_error_set(err, MLO_EINVAL, "the mapping leaves fewer than two classes");
        goto out;
    }
    covered = calloc(d->class_count, sizeof *covered);
    if (!covered) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int s = 0; s < MLO_DISTILL_SIDES; s++) {
        memset(covered, 0, d->class_count);
        for (size_t k = 0; k < d->width[s]; k++)
            if (mlo_distill_class_of(d->in[s], k) >= 0)
                covered[mlo_distill_class_of(d->in[s], k)] = true;
        for (size_t c = 0; c < d->class_count; c++)
            if (!covered[c]) {
                mlo_error_set(err, MLO_EINVAL, "class %zu%s%.60s%s has no class of the %s that stands for it",
                              c, d->class_names ? " ('" : "",
                              d->class_names ? name_of(d->class_names, c) : "", d->class_names ? "')" : "",
                              mlo_distill_names[s]);
                mlo_error_hint(err,
                               "both models must cover the same classes, numbered from 0: map what only one "
                               "has to null");
                status = MLO_EINVAL;
                goto out;
            }
    }
out:
    free(covered);
    return status;
}

enum mlo_status mlo_distill_match_classes(struct mlo_distill *d, struct mlo_error *err)
{
    enum mlo_status status;
    bool mapped = d->in[0]->classes || d->in[1]->classes;
    d->class_names = mlo_dataset_classes(d->in[1]->dataset);
    if (!d->class_names && !mapped)
        d->class_names = d->in[1]->labels ? d->in[1]->labels : d->in[0]->labels;
    MLO_TRY(check_names(d, err));
    MLO_TRY(check_mapping(d, err));
    if (d->class_names && json_array_size(d->class_names) != d->class_count) {
        if (!mapped && !d->in[0]->labels && !d->in[1]->labels)
            return mlo_error_set(err, MLO_EINVAL, "the dataset names %zu classes, and the models have %zu",
                                 json_array_size(d->class_names), d->class_count);
        d->class_names = NULL;
    }
out:
    return status;
}
