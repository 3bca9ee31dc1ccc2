/* IDX, the format of the MNIST family: a big-endian header (two zero bytes, type, number of axes, the sizes),
 * then the data. Plain or gzipped. */
#include <string.h>

#include "pipeline/measure/arrays_impl.h"

static const struct {
    uint8_t code;
    enum mlo_dtype dtype; /* NONE: more than a byte an element, and big-endian */
    const char *name;
} idx_types[] = {
    {0x08, MLO_UINT8, "uint8"},      {0x09, MLO_INT8, "int8"},          {0x0B, MLO_DTYPE_NONE, "int16"},
    {0x0C, MLO_DTYPE_NONE, "int32"}, {0x0D, MLO_DTYPE_NONE, "float32"}, {0x0E, MLO_DTYPE_NONE, "float64"},
};

static enum mlo_status read_type(const uint8_t magic[4], struct mlo_array *array, struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(idx_types); i++) {
        if (magic[0] || magic[1] || magic[2] != idx_types[i].code)
            continue;
        array->dtype = idx_types[i].dtype;
        array->rank = magic[3];
        if (array->rank < 1 || array->rank > MLO_MAX_RANK)
            return mlo_error_set(err, MLO_EFORMAT, "its IDX header has %d axes; 1 to %d are read",
                                 array->rank, MLO_MAX_RANK);
        if (array->dtype == MLO_DTYPE_NONE) {
            mlo_error_set(err, MLO_EUNSUPPORTED, "it holds big-endian %s; uint8 and int8 IDX files are read",
                          idx_types[i].name);
            mlo_error_hint(err, "convert it to .npz with numpy.savez");
            return MLO_EUNSUPPORTED;
        }
        return MLO_OK;
    }
    return mlo_error_set(err, MLO_EFORMAT, "it does not begin as an IDX file does: %02x %02x %02x %02x",
                         magic[0], magic[1], magic[2], magic[3]);
}

enum mlo_status mlo_idx_open(const char *path, const char *name, struct mlo_arrays *arrays,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_array *array;
    uint8_t magic[4], sizes[4 * MLO_MAX_RANK];
    uint64_t data_bytes = 0;
    int64_t file_bytes = mlo_fs_size(path);
    MLO_TRY(mlo_arrays_add(arrays, name, &array, err));
    MLO_TRY(mlo_stream_open_file(path, &array->stream, err));
    MLO_TRY(mlo_stream_read_at(array->stream, 0, magic, sizeof magic, err));
    MLO_TRY(read_type(magic, array, err));
    MLO_TRY(mlo_stream_read_at(array->stream, sizeof magic, sizes, 4 * (size_t)array->rank, err));
    for (int d = 0; d < array->rank; d++) {
        const uint8_t *s = sizes + 4 * d;
        array->dims[d] = (int64_t)s[0] << 24 | (int64_t)s[1] << 16 | (int64_t)s[2] << 8 | s[3];
    }
    array->data_offset = sizeof magic + 4 * (size_t)array->rank;
    MLO_TRY(mlo_array_size(array, &data_bytes, err));
    if (!mlo_stream_is_plain(array->stream))
        MLO_TRY(mlo_stream_check_ratio(path, data_bytes, file_bytes < 0 ? 0 : (uint64_t)file_bytes, err));
    else if ((uint64_t)file_bytes != array->data_offset + data_bytes)
        status = mlo_error_set(
            err, MLO_EFORMAT, "its IDX header declares %llu bytes of data, but it holds %lld%s",
            (unsigned long long)data_bytes, (long long)file_bytes - (long long)array->data_offset,
            (uint64_t)file_bytes < array->data_offset + data_bytes ? ": it is truncated" : "");
out:
    if (status != MLO_OK)
        mlo_error_where(err, "%s", path);
    return status;
}
