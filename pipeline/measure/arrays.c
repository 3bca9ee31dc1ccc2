#include "pipeline/measure/arrays_impl.h"

#include <stdlib.h>
#include <string.h>

#include <zip.h>

void mlo_arrays_clear(struct mlo_arrays *arrays)
{
    for (size_t i = 0; i < arrays->count; i++) {
        free(arrays->items[i].name);
        mlo_stream_close(arrays->items[i].stream);
    }
    free(arrays->items);
    if (arrays->archive)
        zip_discard(arrays->archive);
    *arrays = (struct mlo_arrays){0};
}

struct mlo_array *mlo_arrays_find(const struct mlo_arrays *arrays, const char *name)
{
    for (size_t i = 0; i < arrays->count; i++)
        if (strcmp(arrays->items[i].name, name) == 0)
            return &arrays->items[i];
    return NULL;
}

enum mlo_status mlo_arrays_add(struct mlo_arrays *arrays, const char *name, struct mlo_array **out,
                               struct mlo_error *err)
{
    *out = NULL;
    if (mlo_arrays_find(arrays, name))
        return mlo_error_set(err, MLO_EFORMAT, "there are two arrays named '%s'", name);
    struct mlo_array *items = realloc(arrays->items, (arrays->count + 1) * sizeof *items);
    if (!items)
        return mlo_error_nomem(err);
    arrays->items = items;
    struct mlo_array *array = &items[arrays->count];
    *array = (struct mlo_array){.name = strdup(name)};
    if (!array->name)
        return mlo_error_nomem(err);
    arrays->count++;
    *out = array;
    return MLO_OK;
}

enum mlo_status mlo_array_size(struct mlo_array *array, uint64_t *data_bytes, struct mlo_error *err)
{
    size_t bytes;
    int rank = array->rank > 0 ? array->rank - 1 : 0;
    const int64_t *dims = array->rank > 0 ? array->dims + 1 : array->dims;
    if (!mlo_shape_bytes(array->dtype, rank, dims, &array->row_bytes) ||
        !mlo_shape_bytes(array->dtype, array->rank, array->dims, &bytes) || bytes > INT64_MAX / 2)
        return mlo_error_set(err, MLO_ETOOBIG, "the declared shape of array '%s' is larger than any memory",
                             array->name);
    *data_bytes = bytes;
    return MLO_OK;
}

enum mlo_status mlo_array_read(struct mlo_array *array, int64_t begin, int64_t count, void *bytes,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    uint64_t row = array->row_bytes;
    if (begin < 0 || count < 0 || begin > array->dims[0] - count)
        return mlo_error_set(err, MLO_EINVAL, "rows %lld to %lld of array '%s' do not exist: it has %lld",
                             (long long)begin, (long long)(begin + count), array->name,
                             (long long)array->dims[0]);
    if (!count)
        return MLO_OK;
    MLO_TRY(mlo_stream_read_at(array->stream, array->data_offset + (uint64_t)begin * row, bytes,
                               (size_t)count * row, err));
    if (begin + count == array->dims[0])
        MLO_TRY(
            mlo_stream_expect_end(array->stream, array->data_offset + (uint64_t)array->dims[0] * row, err));
out:
    return status;
}

void mlo_arrays_describe(const struct mlo_arrays *arrays, struct mlo_buf *out)
{
    enum { SHOWN = 8 };
    for (size_t i = 0; i < arrays->count && i < SHOWN; i++) {
        const struct mlo_array *a = &arrays->items[i];
        mlo_buf_printf(out, "%s%s %s[", i ? ", " : "", a->name, mlo_dtype_name(a->dtype));
        for (int d = 0; d < a->rank; d++)
            mlo_buf_printf(out, "%s%lld", d ? "," : "", (long long)a->dims[d]);
        mlo_buf_putc(out, ']');
    }
    if (arrays->count > SHOWN)
        mlo_buf_printf(out, " and %zu more", arrays->count - SHOWN);
}
