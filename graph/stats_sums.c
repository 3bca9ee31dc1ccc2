/* Sums over samples as a binary tree over their numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/stats_impl.h"

enum { EMA_MIN = 2, EMA_MAX, EMA_WEIGHT, LOG2_MAX = 62 };

/* a, and b whose samples come later. */
static void join(size_t width, double *a, const double *b)
{
    size_t plain = width == MLO_SUMS_TENSOR ? (size_t)EMA_MIN : width;
    for (size_t i = 0; i < plain; i++)
        a[i] += b[i];
    if (plain == width)
        return;
    double keeps = 1 - b[EMA_WEIGHT]; /* what so many later samples leave of the earlier ones */
    for (size_t i = plain; i < width; i++) {
        double kept = a[i] * keeps;
        a[i] = kept + b[i];
    }
}

static double *numbers_of(const struct mlo_sample_sums *s, size_t node)
{
    return s->numbers + node * s->width;
}

static bool reserve(struct mlo_sample_sums *s)
{
    if (s->count < s->cap)
        return true;
    size_t cap = s->cap ? s->cap * 2 : 8;
    struct mlo_sums_node *nodes = realloc(s->nodes, cap * sizeof *nodes);
    if (!nodes)
        return false;
    s->nodes = nodes;
    double *numbers = realloc(s->numbers, cap * MLO_MAX(s->width, (size_t)1) * sizeof *numbers);
    if (!numbers)
        return false;
    s->numbers = numbers;
    s->cap = cap;
    return true;
}

static uint64_t size_of(const struct mlo_sums_node *node)
{
    return (uint64_t)1 << node->log2;
}

/* Joins node i with the one behind it where they are the halves of one. */
static bool join_at(struct mlo_sample_sums *s, size_t i)
{
    struct mlo_sums_node *a = &s->nodes[i], *b = a + 1;
    if (i + 1 >= s->count || a->log2 != b->log2 || a->first + size_of(a) != b->first ||
        a->first % (2 * size_of(a)) != 0)
        return false;
    join(s->width, numbers_of(s, i), numbers_of(s, i + 1));
    a->log2++;
    size_t behind = s->count - i - 2;
    memmove(b, b + 1, behind * sizeof *b);
    memmove(numbers_of(s, i + 1), numbers_of(s, i + 2), behind * s->width * sizeof *s->numbers);
    s->count--;
    return true;
}

enum mlo_status mlo_sums_add(struct mlo_sample_sums *sums, uint64_t first, unsigned log2,
                             const double *numbers, struct mlo_error *err)
{
    struct mlo_sums_node node = {first, log2};
    size_t at = sums->count;
    while (at > 0 && sums->nodes[at - 1].first > first)
        at--;
    if ((at > 0 && sums->nodes[at - 1].first + size_of(&sums->nodes[at - 1]) > first) ||
        (at < sums->count && sums->nodes[at].first < first + size_of(&node)))
        return mlo_error_set(err, MLO_EINVAL, "sample %llu is there twice", (unsigned long long)first);
    if (!reserve(sums))
        return mlo_error_nomem(err);
    size_t behind = sums->count - at;
    memmove(&sums->nodes[at + 1], &sums->nodes[at], behind * sizeof *sums->nodes);
    memmove(numbers_of(sums, at + 1), numbers_of(sums, at), behind * sums->width * sizeof *sums->numbers);
    sums->nodes[at] = node;
    if (sums->width)
        memcpy(numbers_of(sums, at), numbers, sums->width * sizeof *numbers);
    sums->count++;
    while ((at > 0 && join_at(sums, at - 1) && at--) || join_at(sums, at))
        continue;
    return MLO_OK;
}

enum mlo_status mlo_sums_merge(struct mlo_sample_sums *into, const struct mlo_sample_sums *more,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < more->count && status == MLO_OK; i++)
        status = mlo_sums_add(into, more->nodes[i].first, more->nodes[i].log2, numbers_of(more, i), err);
    return status;
}

void mlo_sums_total(const struct mlo_sample_sums *sums, double *out)
{
    memset(out, 0, sums->width * sizeof *out);
    for (size_t i = 0; i < sums->count; i++)
        join(sums->width, out, numbers_of(sums, i));
}

uint64_t mlo_sums_samples(const struct mlo_sample_sums *sums)
{
    uint64_t samples = 0;
    for (size_t i = 0; i < sums->count; i++)
        samples += size_of(&sums->nodes[i]);
    return samples;
}

void mlo_sums_clear(struct mlo_sample_sums *sums)
{
    free(sums->nodes);
    free(sums->numbers);
    *sums = (struct mlo_sample_sums){.width = sums->width};
}

json_t *mlo_sums_json(const struct mlo_sample_sums *sums)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < sums->count; i++) {
        const struct mlo_sums_node *node = &sums->nodes[i];
        json_t *row = json_pack("[I,i]", (json_int_t)node->first, (int)node->log2);
        bool ok = row != NULL;
        for (size_t k = 0; ok && k < sums->width; k++)
            ok = json_array_append_new(row, json_real(numbers_of(sums, i)[k])) == 0;
        if (!ok)
            json_decref(row);
        if (!ok || json_array_append_new(list, row) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

enum mlo_status mlo_sums_read(const json_t *list, uint64_t samples, struct mlo_sample_sums *out,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *numbers = calloc(out->width + 1, sizeof *numbers);
    if (!numbers)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        json_int_t first = json_integer_value(json_array_get(row, 0)),
                   log2 = json_integer_value(json_array_get(row, 1));
        bool ok = json_array_size(row) == out->width + 2 && first >= 0 && log2 >= 0 && log2 <= LOG2_MAX &&
                  first % ((json_int_t)1 << log2) == 0 && first <= INT64_MAX - ((json_int_t)1 << log2);
        for (size_t k = 0; ok && k < out->width; k++)
            numbers[k] = json_number_value(json_array_get(row, k + 2));
        if (!ok) {
            status = mlo_error_set(err, MLO_EFORMAT, "sums over samples are broken at entry %zu", i);
            goto out;
        }
        MLO_TRY(mlo_sums_add(out, (uint64_t)first, (unsigned)log2, numbers, err));
    }
    if (mlo_sums_samples(out) != samples)
        status = mlo_error_set(err, MLO_EFORMAT, "sums are over %llu samples, not %llu",
                               (unsigned long long)mlo_sums_samples(out), (unsigned long long)samples);
out:
    free(numbers);
    if (status == MLO_EINVAL)
        status = mlo_error_set(err, MLO_EFORMAT, "sums over samples overlap");
    return status;
}
