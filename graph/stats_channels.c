/* Statistics per channel, and the list of what is wanted. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/stats_impl.h"

/* --- what is wanted ---------------------------------------------------------------------------- */

bool mlo_stats_wants_add(struct mlo_stats_wants *wants, const struct mlo_stats_want *want)
{
    char key[MLO_GRAM_KEY], other[MLO_GRAM_KEY];
    if (want->gram)
        mlo_gram_key(want->gram, key);
    for (size_t i = 0; i < wants->count; i++) {
        struct mlo_stats_want *have = &wants->list[i];
        if (strcmp(have->name, want->name) != 0)
            continue;
        if (want->channel_axis && have->channel_axis && have->channel_axis != want->channel_axis)
            continue;
        if (want->gram && have->gram && strcmp(mlo_gram_key(have->gram, other), key) != 0)
            continue;
        have->histogram |= want->histogram;
        have->channel_axis = have->channel_axis ? have->channel_axis : want->channel_axis;
        have->gram = have->gram ? have->gram : want->gram;
        have->full |= want->full;
        return true;
    }
    if (wants->count == wants->cap) {
        size_t cap = wants->cap ? wants->cap * 2 : 32;
        struct mlo_stats_want *grown = realloc(wants->list, cap * sizeof *grown);
        if (!grown)
            return false;
        wants->list = grown;
        wants->cap = cap;
    }
    wants->list[wants->count++] = *want;
    return true;
}

void mlo_stats_wants_clear(struct mlo_stats_wants *wants)
{
    free(wants->list);
    *wants = (struct mlo_stats_wants){0};
}

/* --- entries ----------------------------------------------------------------------------------- */

static void entry_free(struct mlo_channel_stats *c)
{
    free((char *)c->name);
    free(c->count);
    free(c->min);
    free(c->sum);
    mlo_sums_clear(&c->sums);
}

void mlo_stats_clear_channels(struct mlo_stats *stats)
{
    for (size_t i = 0; i < stats->channel_count; i++)
        entry_free(&stats->channels[i]);
    free(stats->channels);
    stats->channels = NULL;
    stats->channel_count = stats->channel_cap = 0;
}

const struct mlo_channel_stats *mlo_stats_find_channels(const struct mlo_stats *stats, const char *name)
{
    for (size_t i = 0; i < stats->channel_count; i++)
        if (strcmp(stats->channels[i].name, name) == 0)
            return &stats->channels[i];
    return NULL;
}

struct mlo_channel_stats *mlo_stats_get_channels(struct mlo_stats *stats, const char *name, int64_t channels)
{
    struct mlo_channel_stats *found = (struct mlo_channel_stats *)mlo_stats_find_channels(stats, name);
    if (found || channels < 0)
        return found && found->channels == channels ? found : NULL;
    if (stats->channel_count == stats->channel_cap) {
        size_t cap = stats->channel_cap ? stats->channel_cap * 2 : 16;
        struct mlo_channel_stats *grown = realloc(stats->channels, cap * sizeof *grown);
        if (!grown)
            return NULL;
        stats->channels = grown;
        stats->channel_cap = cap;
    }
    size_t n = (size_t)channels;
    struct mlo_channel_stats fresh = {
        .name = strdup(name), .channels = channels, .next = stats->first, .sums = {.width = 2 * n}};
    fresh.count = calloc(n + 1, sizeof *fresh.count);
    fresh.min = calloc(2 * n + 1, sizeof *fresh.min);
    fresh.sum = calloc(2 * n + 1, sizeof *fresh.sum);
    if (!fresh.name || !fresh.count || !fresh.min || !fresh.sum) {
        entry_free(&fresh);
        return NULL;
    }
    fresh.max = fresh.min + n;
    fresh.sum_sq = fresh.sum + n;
    stats->channels[stats->channel_count] = fresh;
    return &stats->channels[stats->channel_count++];
}

void mlo_channel_stats_total(struct mlo_channel_stats *c)
{
    mlo_sums_total(&c->sums, c->sum); /* sums and squares lie together */
}

enum mlo_status mlo_channel_stats_add(struct mlo_channel_stats *c, const float *values, size_t outer,
                                      size_t inner, struct mlo_error *err)
{
    size_t channels = (size_t)c->channels;
    double *sums = calloc(2 * channels + 1, sizeof *sums);
    if (!sums)
        return mlo_error_nomem(err);
    for (size_t ch = 0; ch < channels; ch++) {
        double sum = 0, sum_sq = 0;
        float low = INFINITY, high = -INFINITY;
        uint64_t finite = 0;
        for (size_t o = 0; o < outer; o++) {
            const float *row = values + (o * channels + ch) * inner;
            for (size_t i = 0; i < inner; i++) {
                float v = row[i];
                if (!isfinite(v))
                    continue;
                low = v < low ? v : low;
                high = v > high ? v : high;
                sum += v;
                sum_sq += (double)v * v;
                finite++;
            }
        }
        c->bad_count += outer * inner - finite;
        if (!finite)
            continue;
        c->min[ch] = c->count[ch] && c->min[ch] <= low ? c->min[ch] : low + 0.0f; /* -0 and 0 are one value */
        c->max[ch] = c->count[ch] && c->max[ch] >= high ? c->max[ch] : high + 0.0f;
        sums[ch] = sum;
        sums[channels + ch] = sum_sq;
        c->count[ch] += finite;
    }
    enum mlo_status status = mlo_sums_add(&c->sums, c->next, 0, sums, err);
    free(sums);
    c->samples++;
    c->next++;
    mlo_channel_stats_total(c);
    return status;
}

enum mlo_status mlo_stats_merge_channels(struct mlo_stats *into, const struct mlo_stats *more,
                                         struct mlo_error *err)
{
    for (size_t i = 0; i < more->channel_count; i++) {
        const struct mlo_channel_stats *b = &more->channels[i];
        const struct mlo_channel_stats *known = mlo_stats_find_channels(into, b->name);
        if (known && known->channels != b->channels)
            return mlo_error_set(err, MLO_EINVAL,
                                 "value '%s' has %lld channels in one part and %lld in another", b->name,
                                 (long long)known->channels, (long long)b->channels);
        struct mlo_channel_stats *a = mlo_stats_get_channels(into, b->name, b->channels);
        if (!a)
            return mlo_error_nomem(err);
        enum mlo_status status = mlo_sums_merge(&a->sums, &b->sums, err);
        if (status != MLO_OK) {
            mlo_error_where(err, "value '%s'", b->name);
            return status;
        }
        for (int64_t c = 0; c < b->channels; c++) {
            if (b->count[c]) {
                a->min[c] = a->count[c] && a->min[c] <= b->min[c] ? a->min[c] : b->min[c];
                a->max[c] = a->count[c] && a->max[c] >= b->max[c] ? a->max[c] : b->max[c];
            }
            a->count[c] += b->count[c];
        }
        a->bad_count += b->bad_count;
        a->samples += b->samples;
        a->next = MLO_MAX(a->next, b->next);
        mlo_channel_stats_total(a);
    }
    return MLO_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mlo_channel_stats *)a)->name, ((const struct mlo_channel_stats *)b)->name);
}

void mlo_stats_sort_channels(struct mlo_stats *stats)
{
    if (stats->channel_count)
        qsort(stats->channels, stats->channel_count, sizeof stats->channels[0], by_name);
}

/* --- JSON -------------------------------------------------------------------------------------- */

json_t *mlo_stats_channels_json(const struct mlo_stats *sorted)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < sorted->channel_count; i++) {
        const struct mlo_channel_stats *c = &sorted->channels[i];
        json_t *rows = json_array();
        bool ok = rows != NULL;
        for (int64_t k = 0; ok && k < c->channels; k++)
            ok = json_array_append_new(rows, json_pack("[I,f,f]", (json_int_t)c->count[k], (double)c->min[k],
                                                       (double)c->max[k])) == 0;
        json_t *entry = ok ? json_pack("{s:s, s:I, s:I, s:I, s:O, s:o}", "name", c->name, "bad",
                                       (json_int_t)c->bad_count, "samples", (json_int_t)c->samples, "next",
                                       (json_int_t)c->next, "channels", rows, "sums", mlo_sums_json(&c->sums))
                           : NULL;
        json_decref(rows);
        if (json_array_append_new(list, entry) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static enum mlo_status read_entry(const json_t *json, struct mlo_stats *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *name;
    int64_t bad, samples, next;
    const json_t *rows = json_object_get(json, "channels");
    MLO_TRY(mlo_json_get_str(json, "name", NULL, &name, err));
    MLO_TRY(mlo_json_get_i64(json, "bad", NULL, &bad, err));
    MLO_TRY(mlo_json_get_i64(json, "samples", NULL, &samples, err));
    MLO_TRY(mlo_json_get_i64(json, "next", NULL, &next, err));
    if (!json_is_array(rows) || bad < 0 || samples < 0 || next < 0 || mlo_stats_find_channels(out, name))
        return mlo_error_set(err, MLO_EFORMAT, "statistics of the channels of '%.120s' are broken", name);
    struct mlo_channel_stats *c = mlo_stats_get_channels(out, name, (int64_t)json_array_size(rows));
    if (!c)
        return mlo_error_nomem(err);
    c->bad_count = (uint64_t)bad;
    c->samples = (uint64_t)samples;
    for (int64_t k = 0; k < c->channels; k++) {
        const json_t *row = json_array_get(rows, (size_t)k);
        double numbers[3];
        for (size_t i = 0; i < MLO_COUNT(numbers); i++)
            numbers[i] = json_number_value(json_array_get(row, i));
        if (json_array_size(row) != MLO_COUNT(numbers) || numbers[0] < 0 || !(numbers[1] <= numbers[2]))
            return mlo_error_set(err, MLO_EFORMAT, "channel %lld of '%.120s' holds an impossible number",
                                 (long long)k, name);
        c->count[k] = (uint64_t)json_integer_value(json_array_get(row, 0));
        c->min[k] = (float)numbers[1];
        c->max[k] = (float)numbers[2];
    }
    c->next = (uint64_t)next;
    MLO_TRY(mlo_sums_read(json_object_get(json, "sums"), c->samples, &c->sums, err));
    mlo_channel_stats_total(c);
out:
    return status;
}

enum mlo_status mlo_stats_read_channels(const json_t *list, struct mlo_stats *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < json_array_size(list) && status == MLO_OK; i++)
        status = read_entry(json_array_get(list, i), out, err);
    return status;
}
