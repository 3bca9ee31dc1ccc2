/* Statistics as JSON: bins as a list of [first bin, counts…] runs of nonzero bins. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/stats_impl.h"

static json_t *runs_of(const uint64_t *bins)
{
    json_t *runs = json_array();
    for (int b = 0; b < MLO_HIST_BINS;) {
        if (!bins[b]) {
            b++;
            continue;
        }
        json_t *run = json_array();
        if (!run || json_array_append_new(run, json_integer(b)) != 0)
            goto failed;
        for (; b < MLO_HIST_BINS && bins[b]; b++)
            if (json_array_append_new(run, json_integer((json_int_t)bins[b])) != 0)
                goto failed;
        if (json_array_append_new(runs, run) != 0)
            goto failed_runs;
        continue;
    failed:
        json_decref(run);
    failed_runs:
        json_decref(runs);
        return NULL;
    }
    return runs;
}

static json_t *tensor_to_json(const struct mlo_tensor_stats *t)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:o, s:i, s:o}", "name", t->name, "count",
                     (json_int_t)t->count, "nan", (json_int_t)t->nan_count, "inf", (json_int_t)t->inf_count,
                     "min", (double)t->min, "max", (double)t->max, "samples", (json_int_t)t->samples, "next",
                     (json_int_t)t->next, "sums", mlo_sums_json(&t->sums), "log2_width", t->log2_width,
                     "bins", runs_of(t->bins));
}

enum mlo_status mlo_stats_to_json(const struct mlo_stats *stats, json_t **out, struct mlo_error *err)
{
    /* in order of names, whatever order they were first seen in */
    struct mlo_stats sorted = {.count = stats->count, .channel_count = stats->channel_count};
    sorted.tensors = calloc(stats->count + 1, sizeof *sorted.tensors);
    sorted.channels = calloc(stats->channel_count + 1, sizeof *sorted.channels);
    json_t *list = json_array(), *channels = NULL;
    *out = NULL;
    bool ok = sorted.tensors && sorted.channels && list;
    if (ok && stats->count)
        memcpy(sorted.tensors, stats->tensors, stats->count * sizeof *sorted.tensors);
    if (ok && stats->channel_count)
        memcpy(sorted.channels, stats->channels, stats->channel_count * sizeof *sorted.channels);
    if (ok)
        mlo_stats_sort(&sorted);
    for (size_t i = 0; ok && i < sorted.count; i++)
        ok = json_array_append_new(list, tensor_to_json(&sorted.tensors[i])) == 0;
    ok = ok && (channels = mlo_stats_channels_json(&sorted));
    free(sorted.tensors);
    free(sorted.channels);
    if (ok)
        *out = json_pack("{s:i, s:O, s:O, s:I, s:s?}", "version", 3, "tensors", list, "channels", channels,
                         "first", (json_int_t)stats->first, "origin", stats->origin);
    json_decref(list);
    json_decref(channels);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status read_bins(const json_t *runs, struct mlo_tensor_stats *t, struct mlo_error *err)
{
    uint64_t total = 0;
    for (size_t r = 0; r < json_array_size(runs); r++) {
        const json_t *run = json_array_get(runs, r);
        json_int_t first = json_integer_value(json_array_get(run, 0));
        size_t length = json_array_size(run);
        if (length < 2 || first < 0 || (size_t)first + length - 1 > MLO_HIST_BINS)
            return mlo_error_set(err, MLO_EFORMAT, "statistics of '%.120s': run %zu of bins is out of range",
                                 t->name, r);
        for (size_t i = 1; i < length; i++) {
            json_int_t count = json_integer_value(json_array_get(run, i));
            if (count < 0)
                return mlo_error_set(err, MLO_EFORMAT, "statistics of '%.120s': a bin's count is negative",
                                     t->name);
            t->bins[first + (json_int_t)i - 1] = (uint64_t)count;
            total += (uint64_t)count;
        }
    }
    if (total != t->count)
        return mlo_error_set(err, MLO_EFORMAT, "statistics of '%.120s': bins hold %llu elements, not %llu",
                             t->name, (unsigned long long)total, (unsigned long long)t->count);
    return MLO_OK;
}

static enum mlo_status read_tensor(const json_t *json, struct mlo_stats *stats, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *name;
    int64_t count, nan_count, inf_count, samples, next, width;
    double low, high;
    MLO_TRY(mlo_json_get_str(json, "name", NULL, &name, err));
    if (mlo_stats_find(stats, name)) {
        status = mlo_error_set(err, MLO_EFORMAT, "statistics of '%.120s' are there twice", name);
        goto out;
    }
    struct mlo_tensor_stats *t = mlo_stats_get(stats, name);
    if (!t) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_json_get_i64(json, "count", NULL, &count, err));
    MLO_TRY(mlo_json_get_i64(json, "nan", NULL, &nan_count, err));
    MLO_TRY(mlo_json_get_i64(json, "inf", NULL, &inf_count, err));
    MLO_TRY(mlo_json_get_i64(json, "samples", NULL, &samples, err));
    MLO_TRY(mlo_json_get_i64(json, "log2_width", NULL, &width, err));
    MLO_TRY(mlo_json_get_f64(json, "min", NULL, &low, err));
    MLO_TRY(mlo_json_get_f64(json, "max", NULL, &high, err));
    MLO_TRY(mlo_json_get_i64(json, "next", NULL, &next, err));
    if (next < 0 || count < 0 || nan_count < 0 || inf_count < 0 || samples < 0 || width < -160 ||
        width > 128 || !(low <= high)) {
        status = mlo_error_set(err, MLO_EFORMAT, "statistics of '%.120s' hold an impossible number", name);
        goto out;
    }
    t->count = (uint64_t)count;
    t->nan_count = (uint64_t)nan_count;
    t->inf_count = (uint64_t)inf_count;
    t->samples = (uint64_t)samples;
    t->log2_width = (int)width;
    t->min = (float)low;
    t->max = (float)high;
    t->next = (uint64_t)next;
    MLO_TRY(mlo_sums_read(json_object_get(json, "sums"), t->samples, &t->sums, err));
    mlo_tensor_stats_total(t);
    MLO_TRY(read_bins(json_object_get(json, "bins"), t, err));
out:
    return status;
}

enum mlo_status mlo_stats_from_json(const json_t *json, struct mlo_stats *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *tensors = json_object_get(json, "tensors");
    mlo_stats_init(out);
    if (!json_is_array(tensors) || mlo_json_i64(json, "version", 0) != 3)
        return mlo_error_set(err, MLO_EFORMAT,
                             "no statistics of version 3: 'tensors' or 'version' is missing");
    const char *origin = mlo_json_str(json, "origin", NULL);
    out->first = (uint64_t)MLO_MAX(mlo_json_i64(json, "first", 0), 0);
    if (origin && !(out->origin = strdup(origin)))
        status = mlo_error_nomem(err);
    for (size_t i = 0; i < json_array_size(tensors) && status == MLO_OK; i++)
        status = read_tensor(json_array_get(tensors, i), out, err);
    if (status == MLO_OK)
        status = mlo_stats_read_channels(json_object_get(json, "channels"), out, err);
    if (status != MLO_OK)
        mlo_stats_clear(out);
    return status;
}
