/* Reading samples: conversion to what the model takes, and the digest of a sample. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/dataset_impl.h"
#include "pipeline/measure/inputs_impl.h"

enum { SCRATCH_BYTES = 1 << 20 };

static void store_float(struct mlo_tensor *tensor, size_t i, float value)
{
    if (tensor->dtype == MLO_FLOAT32)
        ((float *)tensor->data)[i] = value;
    else
        mlo_tensor_set_f64(tensor, i, value);
}

/* One sample of bytes: ((float)u * scale - mean) / std, every step rounded to float32. */
static void normalize_sample(const struct mlo_feed *f, const uint8_t *bytes, struct mlo_tensor *tensor,
                             size_t at)
{
    const struct mlo_normalize *n = f->normalize;
    size_t inner = f->channels ? f->elements / (size_t)f->channels : 0;
    float scale = (float)n->scale;
    for (int64_t c = 0; c < f->channels; c++) {
        float mean = n->mean_count ? (float)n->mean[n->mean_count > 1 ? c : 0] : 0;
        float std = n->std_count ? (float)n->std[n->std_count > 1 ? c : 0] : 1;
        for (size_t i = 0; i < inner; i++) {
            float scaled = (float)*bytes++ * scale;
            float centred = scaled - mean;
            store_float(tensor, at++, centred / std);
        }
    }
}

/* The range of an integer type that is narrower than int64 or unsigned; int64 itself takes all. */
static bool fits(enum mlo_dtype to, const struct mlo_tensor *from, size_t i)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(to);
    int64_t v = mlo_tensor_get_i64(from, i);
    if (from->dtype == MLO_UINT64 && ((const uint64_t *)from->data)[i] > INT64_MAX)
        return to == MLO_UINT64;
    if (to == MLO_BOOL)
        return v == 0 || v == 1;
    if (!info->is_signed && v < 0)
        return false;
    if (info->bits >= 64)
        return true;
    int64_t high = ((int64_t)1 << (info->bits - info->is_signed)) - 1;
    return v <= high && v >= (info->is_signed ? -high - 1 : 0);
}

static enum mlo_status bad_value(const struct mlo_dataset *d, const struct mlo_feed *f, int64_t sample,
                                 size_t element, const char *what, struct mlo_error *err)
{
    mlo_error_set(err, MLO_EINVAL, "sample %lld of array '%s' %s at element %zu", (long long)sample,
                  f->array->name, what, element);
    mlo_error_where(err, "dataset %s", d->path);
    return MLO_EINVAL;
}

/* By value, from `rows` (as stored) into the tensor from element `at` on. */
static enum mlo_status convert(const struct mlo_dataset *d, const struct mlo_feed *f,
                               const struct mlo_tensor *rows, int64_t first_sample, struct mlo_tensor *tensor,
                               size_t at, struct mlo_error *err)
{
    bool to_float = mlo_dtype_info(tensor->dtype)->is_float;
    char what[64];
    for (size_t i = 0, n = mlo_tensor_count(rows); i < n; i++) {
        if (to_float) {
            mlo_tensor_set_f64(tensor, at + i, mlo_tensor_get_f64(rows, i));
            continue;
        }
        int64_t v = mlo_tensor_get_i64(rows, i);
        if (!fits(tensor->dtype, rows, i)) {
            snprintf(what, sizeof what, "holds %lld, which %s cannot,", (long long)v,
                     mlo_dtype_name(tensor->dtype));
            return bad_value(d, f, first_sample + (int64_t)(i / f->elements), i % f->elements, what, err);
        }
        switch (mlo_dtype_info(tensor->dtype)->bits) { /* exact, where a detour over double would not be */
        case 8:
            ((uint8_t *)tensor->data)[at + i] = (uint8_t)v;
            break;
        case 16:
            ((uint16_t *)tensor->data)[at + i] = (uint16_t)v;
            break;
        case 32:
            ((uint32_t *)tensor->data)[at + i] = (uint32_t)v;
            break;
        default:
            ((int64_t *)tensor->data)[at + i] = v;
        }
    }
    return MLO_OK;
}

static enum mlo_status read_converted(const struct mlo_dataset *d, const struct mlo_feed *f, int64_t begin,
                                      int64_t count, struct mlo_tensor *tensor, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor rows = {0};
    int64_t step = (int64_t)(SCRATCH_BYTES / (f->array->row_bytes ? f->array->row_bytes : 1));
    int64_t dims[MLO_MAX_RANK];
    memcpy(dims, f->array->dims, sizeof dims);
    step = MLO_MIN(MLO_MAX(step, (int64_t)1), count);
    for (int64_t at = 0; at < count; at += step) {
        dims[0] = MLO_MIN(step, count - at);
        mlo_tensor_clear(&rows);
        MLO_TRY(mlo_tensor_init(&rows, f->array->dtype, f->array->rank, dims, err));
        MLO_TRY(mlo_array_read(f->array, d->first + begin + at, dims[0], rows.data, err));
        if (!f->normalize) {
            MLO_TRY(convert(d, f, &rows, begin + at, tensor, (size_t)at * f->elements, err));
            continue;
        }
        for (int64_t s = 0; s < dims[0]; s++)
            normalize_sample(f, (const uint8_t *)rows.data + (size_t)s * f->elements, tensor,
                             (size_t)(at + s) * f->elements);
    }
out:
    mlo_tensor_clear(&rows);
    return status;
}

static enum mlo_status refuse_nan(const struct mlo_dataset *d, const struct mlo_feed *f, int64_t begin,
                                  const struct mlo_tensor *tensor, struct mlo_error *err)
{
    if (!mlo_dtype_info(f->array->dtype)->is_float)
        return MLO_OK;
    for (size_t i = 0, n = mlo_tensor_count(tensor); i < n; i++) {
        double v =
            tensor->dtype == MLO_FLOAT32 ? ((const float *)tensor->data)[i] : mlo_tensor_get_f64(tensor, i);
        if (isnan(v))
            return bad_value(d, f, begin + (int64_t)(i / f->elements), i % f->elements, "holds NaN", err);
    }
    return MLO_OK;
}

enum mlo_status mlo_feed_read(const struct mlo_dataset *dataset, const struct mlo_feed *feed, int64_t begin,
                              int64_t count, struct mlo_tensor *tensor, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t dims[MLO_MAX_RANK];
    memcpy(dims, feed->dims, sizeof dims);
    dims[0] = count;
    MLO_TRY(mlo_tensor_init(tensor, feed->input->type.dtype, feed->rank, dims, err));
    if (feed->array->dtype == tensor->dtype)
        MLO_TRY(mlo_array_read(feed->array, dataset->first + begin, count, tensor->data, err));
    else
        MLO_TRY(read_converted(dataset, feed, begin, count, tensor, err));
    MLO_TRY(refuse_nan(dataset, feed, begin, tensor, err));
out:
    if (status != MLO_OK)
        mlo_tensor_clear(tensor);
    return status;
}

enum mlo_status mlo_dataset_read(struct mlo_dataset *dataset, const struct mlo_model *model, int64_t begin,
                                 int64_t count, struct mlo_tensor *inputs, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int n = mlo_model_input_count(model);
    for (int i = 0; i < n; i++)
        inputs[i] = (struct mlo_tensor){0};
    if (begin < 0 || count < 1 || begin > dataset->count - count)
        return mlo_error_set(err, MLO_EINVAL, "samples %lld to %lld do not exist: the dataset has %lld",
                             (long long)begin, (long long)(begin + count), (long long)dataset->count);
    for (int i = 0; i < n; i++) {
        struct mlo_feed feed;
        MLO_TRY(mlo_dataset_feed(dataset, model, mlo_model_input(model, i), &feed, err));
        MLO_TRY(mlo_feed_read(dataset, &feed, begin, count, &inputs[i], err));
    }
out:
    if (status != MLO_OK)
        for (int i = 0; i < n; i++)
            mlo_tensor_clear(&inputs[i]);
    return status;
}

enum mlo_status mlo_dataset_check_finite(const struct mlo_dataset *dataset, const struct mlo_model *model,
                                         const struct mlo_value *input, const struct mlo_tensor *read,
                                         int64_t begin, struct mlo_error *err)
{
    struct mlo_feed feed;
    if (!mlo_dtype_info(read->dtype)->is_float)
        return MLO_OK;
    for (size_t i = 0, n = mlo_tensor_count(read); i < n; i++) {
        double v = read->dtype == MLO_FLOAT32 ? ((const float *)read->data)[i] : mlo_tensor_get_f64(read, i);
        if (isfinite(v))
            continue;
        enum mlo_status status = mlo_dataset_feed(dataset, model, input, &feed, err);
        return status != MLO_OK ? status
                                : bad_value(dataset, &feed, begin + (int64_t)(i / feed.elements),
                                            i % feed.elements, "holds an infinity", err);
    }
    return MLO_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct mlo_array *const *)a)->name, (*(struct mlo_array *const *)b)->name);
}

enum mlo_status mlo_dataset_sample_digest(struct mlo_dataset *dataset, int64_t i, struct mlo_digest *out,
                                          struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf row = MLO_BUF_INIT;
    struct mlo_hasher *hasher = mlo_hasher_new();
    struct mlo_array **arrays = calloc(dataset->arrays.count + 1, sizeof *arrays);
    size_t count = 0;
    if (i < 0 || i >= dataset->count) {
        status = mlo_error_set(err, MLO_EINVAL, "sample %lld does not exist: the dataset has %lld",
                               (long long)i, (long long)dataset->count);
        goto out;
    }
    if (!hasher || !arrays) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t k = 0; k < dataset->arrays.count; k++)
        if (mlo_dataset_is_data(dataset, &dataset->arrays.items[k]))
            arrays[count++] = &dataset->arrays.items[k];
    qsort(arrays, count, sizeof *arrays, by_name);
    for (size_t k = 0; k < count; k++) {
        char head[64];
        int n =
            snprintf(head, sizeof head, "%s %zu\n", mlo_dtype_name(arrays[k]->dtype), arrays[k]->row_bytes);
        mlo_buf_reset(&row);
        if (!mlo_buf_reserve(&row, arrays[k]->row_bytes)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(mlo_array_read(arrays[k], dataset->first + i, 1, row.data, err));
        mlo_hasher_update(hasher, head, (size_t)n);
        mlo_hasher_update(hasher, row.data, arrays[k]->row_bytes);
    }
    mlo_hasher_final(hasher, out);
out:
    mlo_buf_clear(&row);
    mlo_hasher_free(hasher);
    free(arrays);
    return status;
}
