/* Groups of samples, from a column of the dataset or a file of names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/dataset_impl.h"
#include "pipeline/measure/distill.h"

enum { FILE_BYTES_MAX = 1 << 28, NAME_MAX_BYTES = 120 };

void mlo_slices_clear(struct mlo_slices *slices)
{
    for (size_t i = 0; slices->names && i < slices->count; i++)
        free(slices->names[i]);
    free(slices->names);
    free(slices->of);
    free(slices->from);
    *slices = (struct mlo_slices){0};
}

static enum mlo_status too_many(const char *from, struct mlo_error *err)
{
    mlo_error_set(err, MLO_ETOOBIG, "%s makes more than %d slices", from, (int)MLO_SLICES_MAX);
    mlo_error_hint(err, "a slice is a group of many samples: a camera, a site, a kind of user, not one each");
    return MLO_ETOOBIG;
}

static enum mlo_status begin(struct mlo_slices *s, int64_t samples, const char *from, struct mlo_error *err)
{
    *s = (struct mlo_slices){.samples = samples};
    s->of = malloc((size_t)samples * sizeof *s->of + 1);
    s->names = calloc(MLO_SLICES_MAX, sizeof *s->names);
    s->from = strdup(from);
    return s->of && s->names && s->from ? MLO_OK : mlo_error_nomem(err);
}

/* --- a column ------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static enum mlo_status number(struct mlo_slices *s, const int64_t *values, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t *sorted = malloc((size_t)s->samples * sizeof *sorted + 1);
    char text[24];
    size_t distinct = 0;
    if (!sorted)
        return mlo_error_nomem(err);
    memcpy(sorted, values, (size_t)s->samples * sizeof *sorted);
    qsort(sorted, (size_t)s->samples, sizeof *sorted, by_value);
    for (int64_t i = 0; i < s->samples; i++)
        if (!distinct || sorted[distinct - 1] != sorted[i])
            sorted[distinct++] = sorted[i];
    if (distinct > MLO_SLICES_MAX) {
        status = too_many(s->from, err);
        goto out;
    }
    for (; s->count < distinct; s->count++) {
        snprintf(text, sizeof text, "%lld", (long long)sorted[s->count]);
        if (!(s->names[s->count] = strdup(text))) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    for (int64_t i = 0; i < s->samples; i++) {
        const int64_t *at = bsearch(&values[i], sorted, distinct, sizeof *sorted, by_value);
        s->of[i] = (int32_t)(at - sorted);
    }
out:
    free(sorted);
    return status;
}

enum mlo_status mlo_slices_of_column(const struct mlo_dataset *dataset, const char *name,
                                     struct mlo_slices *out, struct mlo_error *err)
{
    enum mlo_status status;
    int64_t *values = NULL;
    char from[160];
    *out = (struct mlo_slices){0};
    if (!mlo_arrays_find(&dataset->arrays, name)) {
        struct mlo_buf there = MLO_BUF_INIT;
        mlo_arrays_describe(&dataset->arrays, &there);
        mlo_error_set(err, MLO_ENOTFOUND, "there is no array '%s' to slice by; there is: %s", name,
                      mlo_buf_str(&there));
        mlo_buf_clear(&there);
        return MLO_ENOTFOUND;
    }
    snprintf(from, sizeof from, "array '%.100s'", name);
    MLO_TRY(begin(out, mlo_dataset_count(dataset), from, err));
    MLO_TRY(mlo_dataset_integers(dataset, name, &values, err));
    MLO_TRY(number(out, values, err));
out:
    free(values);
    if (status != MLO_OK)
        mlo_slices_clear(out);
    return status;
}

/* --- a file --------------------------------------------------------------------------------------------- */

static enum mlo_status take_line(struct mlo_slices *s, const char *line, size_t length, int64_t sample,
                                 struct mlo_error *err)
{
    for (size_t i = 0; i < s->count; i++) {
        /* the slice of the line before is the likeliest */
        size_t at = sample ? ((size_t)s->of[sample - 1] + i) % s->count : i;
        if (strlen(s->names[at]) == length && memcmp(s->names[at], line, length) == 0) {
            s->of[sample] = (int32_t)at;
            return MLO_OK;
        }
    }
    if (s->count == MLO_SLICES_MAX)
        return too_many(s->from, err);
    if (!(s->names[s->count] = strndup(line, length)))
        return mlo_error_nomem(err);
    s->of[sample] = (int32_t)s->count++;
    return MLO_OK;
}

static enum mlo_status take_lines(struct mlo_slices *s, const char *text, size_t size, int64_t all,
                                  struct mlo_error *err)
{
    int64_t line = 0;
    for (size_t at = 0; at < size; line++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at, name = length;
        if (name && text[at + name - 1] == '\r')
            name--;
        if (!name || name > NAME_MAX_BYTES || memchr(text + at, '\0', name)) {
            mlo_error_set(err, MLO_EFORMAT, "%s: line %lld is %s", s->from, (long long)line + 1,
                          name ? "no name of a slice" : "empty");
            mlo_error_hint(err, "write the slice of each sample on a line of its own, %d bytes at most",
                           (int)NAME_MAX_BYTES);
            return MLO_EFORMAT;
        }
        if (line < s->samples) {
            enum mlo_status status = take_line(s, text + at, name, line, err);
            if (status != MLO_OK)
                return status;
        }
        at += length + 1;
    }
    if (line == s->samples || line == all)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "%s has %lld lines, and the dataset %lld samples", s->from,
                  (long long)line, (long long)all);
    mlo_error_hint(err, "write a line for each sample, in the order of the dataset");
    return MLO_EINVAL;
}

enum mlo_status mlo_slices_of_file(const struct mlo_dataset *dataset, const char *path,
                                   struct mlo_slices *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf text = MLO_BUF_INIT;
    int64_t all = dataset->manifest.count ? dataset->manifest.count : dataset->rows - dataset->first;
    *out = (struct mlo_slices){0};
    MLO_TRY(begin(out, mlo_dataset_count(dataset), mlo_fs_basename(path), err));
    MLO_TRY(mlo_fs_read(path, FILE_BYTES_MAX, &text, err));
    MLO_TRY(take_lines(out, mlo_buf_str(&text), text.len, all, err));
out:
    mlo_buf_clear(&text);
    if (status != MLO_OK)
        mlo_slices_clear(out);
    return status;
}
