/* TensorProto -> tensor. */
#include <stdlib.h>
#include <string.h>

#include "graph/onnx_impl.h"

/* The typed field that holds the elements of a type, with its length. */
enum list { LIST_FLOAT, LIST_INT32, LIST_INT64, LIST_DOUBLE, LIST_UINT64 };

static enum list list_of(enum mlo_dtype dtype)
{
    switch (dtype) {
    case MLO_FLOAT32:
    case MLO_COMPLEX64:
        return LIST_FLOAT;
    case MLO_INT64:
        return LIST_INT64;
    case MLO_FLOAT64:
    case MLO_COMPLEX128:
        return LIST_DOUBLE;
    case MLO_UINT32:
    case MLO_UINT64:
        return LIST_UINT64;
    default:
        return LIST_INT32;
    }
}

static size_t list_length(const Onnx__TensorProto *p, enum list list)
{
    const size_t lengths[] = {p->n_float_data, p->n_int32_data, p->n_int64_data, p->n_double_data,
                              p->n_uint64_data};
    return lengths[list];
}

static void copy_list(const Onnx__TensorProto *p, enum list list, size_t n, struct mlo_tensor *out)
{
    size_t width = n ? out->size_bytes / n : 0;
    switch (list) {
    case LIST_FLOAT:
        memcpy(out->data, p->float_data, n * sizeof(float));
        return;
    case LIST_INT64:
        memcpy(out->data, p->int64_data, n * sizeof(int64_t));
        return;
    case LIST_DOUBLE:
        memcpy(out->data, p->double_data, n * sizeof(double));
        return;
    default: /* each element stands in a wider one: its low bytes, on a little-endian machine */
        for (size_t i = 0; i < n; i++) {
            uint64_t v = list == LIST_INT32 ? (uint64_t)(int64_t)p->int32_data[i] : p->uint64_data[i];
            memcpy((uint8_t *)out->data + i * width, &v, width);
        }
    }
}

static enum mlo_status fill_from_list(const Onnx__TensorProto *p, struct mlo_tensor *out,
                                      struct mlo_error *err)
{
    size_t want = mlo_tensor_count(out);
    bool complex_pairs = out->dtype == MLO_COMPLEX64 || out->dtype == MLO_COMPLEX128;
    /* 4-bit elements come as bytes, two in each */
    size_t units = mlo_dtype_info(out->dtype)->bits == 4 ? out->size_bytes : complex_pairs ? 2 * want : want;
    enum list list = list_of(out->dtype);
    if (list_length(p, list) != units)
        return mlo_error_set(err, MLO_EFORMAT, "%zu elements, but the shape needs %zu", list_length(p, list),
                             want);
    if (units)
        copy_list(p, list, units, out);
    return MLO_OK;
}

static enum mlo_status fill_raw(const struct mlo_onnx_reader *reader, struct mlo_span raw, bool borrowable,
                                size_t bytes, struct mlo_tensor *out, struct mlo_error *err)
{
    if (raw.size != bytes)
        return mlo_error_set(err, MLO_EFORMAT, "raw_data has %zu bytes, but the shape needs %zu", raw.size,
                             bytes);
    size_t align = MLO_MAX(mlo_dtype_info(out->dtype)->bits / 8, 1u);
    if (borrowable && reader->borrow && bytes && (uintptr_t)raw.bytes % MLO_MIN(align, 8) == 0) {
        out->data = (void *)raw.bytes; /* read-only: constants are never written in place */
        out->size_bytes = bytes;
        return MLO_OK;
    }
    struct mlo_tensor fresh;
    enum mlo_status status = mlo_tensor_init(&fresh, out->dtype, out->rank, out->dims, err);
    if (status != MLO_OK)
        return status;
    if (bytes)
        memcpy(fresh.data, raw.bytes, bytes);
    if (borrowable && reader->borrow) /* of a mapping, and not looked at again */
        mlo_fs_forget(raw.bytes, raw.size);
    *out = fresh;
    return MLO_OK;
}

static enum mlo_status read_shape(const Onnx__TensorProto *p, struct mlo_tensor *out, size_t *bytes,
                                  struct mlo_error *err)
{
    out->dtype = (enum mlo_dtype)p->data_type;
    const struct mlo_dtype_info *info = mlo_dtype_info(out->dtype);
    if (!info)
        return mlo_error_set(err, p->data_type > 0 ? MLO_EUNSUPPORTED : MLO_EFORMAT,
                             "data_type %d is not known", p->data_type);
    if (!info->bits)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "tensors of strings are not supported");
    if (p->segment)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "tensors in segments are not supported");
    if (p->n_dims > MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "%zu dims; at most %d are supported", p->n_dims,
                             MLO_MAX_RANK);
    out->rank = (int)p->n_dims;
    for (int i = 0; i < out->rank; i++) {
        if (p->dims[i] < 0)
            return mlo_error_set(err, MLO_EFORMAT, "dims[%d] is %lld", i, (long long)p->dims[i]);
        out->dims[i] = p->dims[i];
    }
    if (!mlo_shape_bytes(out->dtype, out->rank, out->dims, bytes))
        return mlo_error_set(err, MLO_EFORMAT, "its dims multiply to more than any memory holds");
    return MLO_OK;
}

enum mlo_status mlo_onnx_read_tensor(const struct mlo_onnx_reader *reader, const Onnx__TensorProto *p,
                                     struct mlo_span raw, struct mlo_tensor *out, struct mlo_error *err)
{
    size_t bytes;
    *out = (struct mlo_tensor){0};
    enum mlo_status status = read_shape(p, out, &bytes, err);
    if (status != MLO_OK)
        goto out;
    if (p->data_location == 1) {
        status = mlo_onnx_read_external(reader, p, bytes, out, err);
    } else if (raw.bytes || p->has_raw_data) {
        bool own = !raw.bytes;
        struct mlo_span span = own ? (struct mlo_span){p->raw_data.data, p->raw_data.len} : raw;
        status = fill_raw(reader, span, !own, bytes, out, err);
    } else {
        struct mlo_tensor fresh;
        /* the list's length is checked first: a shape alone must not make us allocate */
        size_t n = mlo_tensor_count(out), have = list_length(p, list_of(out->dtype));
        if (have < (n + 1) / 2) {
            status = mlo_error_set(err, MLO_EFORMAT, "%zu elements, but the shape needs %zu", have, n);
        } else if ((status = mlo_tensor_init(&fresh, out->dtype, out->rank, out->dims, err)) == MLO_OK) {
            *out = fresh;
            status = fill_from_list(p, out, err);
        }
    }
    if (status != MLO_OK)
        mlo_tensor_clear(out);
out:
    if (status != MLO_OK)
        mlo_error_prefix(err, "tensor '%.80s'", p->name ? p->name : "");
    return status;
}
