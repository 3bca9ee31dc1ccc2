#include "graph/tensor.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/dtype_impl.h"

#define ALIGNMENT ((size_t)64)
#define CHECK_ABOVE ((size_t)1 << 30)

static atomic_size_t tensor_limit; /* 0: none but the machine's memory */

void mlo_tensor_set_limit(size_t max_bytes)
{
    atomic_store(&tensor_limit, max_bytes);
}

bool mlo_shape_count(int rank, const int64_t *dims, size_t *count)
{
    /* A zero anywhere makes the product zero, but the other dims must still be valid. */
    size_t n = 1;
    bool zero = false, overflow = false;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0 || dims[i] > MLO_MAX_DIM)
            return false;
        if (dims[i] == 0)
            zero = true;
        else if (__builtin_mul_overflow(n, (size_t)dims[i], &n))
            overflow = true;
    }
    *count = zero ? 0 : n;
    return zero || (!overflow && n <= (size_t)INT64_MAX);
}

bool mlo_shape_bytes(enum mlo_dtype dtype, int rank, const int64_t *dims, size_t *bytes)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    size_t n;
    if (!info || info->bits == 0 || !mlo_shape_count(rank, dims, &n))
        return false;
    if (info->bits < 8) {
        *bytes = n / 2 + n % 2;
        return true;
    }
    return !__builtin_mul_overflow(n, info->bits / 8, bytes);
}

static char *describe(enum mlo_dtype dtype, int rank, const int64_t *dims, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "%s[", mlo_dtype_name(dtype));
    for (int i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", i ? "," : "", (long long)dims[i]);
    if (at < size)
        snprintf(out + at, size - at, "]");
    return out;
}

enum mlo_status mlo_tensor_init(struct mlo_tensor *tensor, enum mlo_dtype dtype, int rank,
                                const int64_t *dims, struct mlo_error *err)
{
    char text[192];
    *tensor = (struct mlo_tensor){0};
    if (rank < 0 || rank > MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a tensor of rank %d; at most %d is supported", rank,
                             MLO_MAX_RANK);
    size_t bytes;
    if (!mlo_shape_bytes(dtype, rank, dims, &bytes))
        return mlo_error_set(err, MLO_EINVAL, "not a possible tensor: %s",
                             describe(dtype, rank, dims, text, sizeof text));
    size_t limit = atomic_load_explicit(&tensor_limit, memory_order_relaxed);
    if (limit && bytes > limit)
        return mlo_error_set(err, MLO_ETOOBIG, "%s needs %zu bytes; this process makes tensors of up to %zu",
                             describe(dtype, rank, dims, text, sizeof text), bytes, limit);
    /* The kernel overcommits: a hostile shape would be granted and kill the process when touched. */
    if (bytes > CHECK_ABOVE) {
        size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
        if (bytes > memory)
            return mlo_error_set(err, MLO_ETOOBIG, "%s needs %zu bytes, more than this machine's memory",
                                 describe(dtype, rank, dims, text, sizeof text), bytes);
    }
    size_t room = (bytes + ALIGNMENT) & ~(ALIGNMENT - 1);
    void *data = aligned_alloc(ALIGNMENT, room);
    if (!data)
        return mlo_error_nomem(err);
    memset(data, 0, room);
    tensor->dtype = dtype;
    tensor->rank = rank;
    if (rank)
        memcpy(tensor->dims, dims, (size_t)rank * sizeof *dims);
    tensor->data = data;
    tensor->size_bytes = bytes;
    tensor->owned = true;
    return MLO_OK;
}

bool mlo_holds_values(enum mlo_dtype dtype)
{
    return dtype == MLO_SEQUENCE || dtype == MLO_OPTIONAL;
}

struct mlo_tensor *mlo_values(const struct mlo_tensor *sequence)
{
    return sequence->data;
}

enum mlo_status mlo_values_init(struct mlo_tensor *out, enum mlo_dtype kind, size_t count,
                                struct mlo_error *err)
{
    *out = (struct mlo_tensor){0};
    if (count > MLO_MAX_VALUES)
        return mlo_error_set(err, MLO_ETOOBIG, "a sequence of %zu tensors; at most %d are supported", count,
                             MLO_MAX_VALUES);
    struct mlo_tensor *items = calloc(count + 1, sizeof *items);
    if (!items)
        return mlo_error_nomem(err);
    *out = (struct mlo_tensor){.dtype = kind,
                               .rank = 1,
                               .dims = {(int64_t)count},
                               .data = items,
                               .size_bytes = count * sizeof *items,
                               .owned = true};
    return MLO_OK;
}

void mlo_tensor_clear(struct mlo_tensor *tensor)
{
    if (tensor->owned && mlo_holds_values(tensor->dtype))
        for (size_t i = 0; i < mlo_tensor_count(tensor); i++)
            mlo_tensor_clear(&mlo_values(tensor)[i]);
    if (tensor->owned)
        free(tensor->data);
    *tensor = (struct mlo_tensor){0};
}

static enum mlo_status copy_values(const struct mlo_tensor *from, struct mlo_tensor *out,
                                   struct mlo_error *err)
{
    size_t count = mlo_tensor_count(from);
    enum mlo_status status = mlo_values_init(out, from->dtype, count, err);
    for (size_t i = 0; i < count && status == MLO_OK; i++)
        if (mlo_values(from)[i].dtype) /* at most an optional of a sequence of tensors deep */
            status = mlo_tensor_copy(&mlo_values(from)[i], &mlo_values(out)[i], err);
    if (status != MLO_OK)
        mlo_tensor_clear(out);
    return status;
}

enum mlo_status mlo_tensor_copy(const struct mlo_tensor *from, struct mlo_tensor *out, struct mlo_error *err)
{
    if (mlo_holds_values(from->dtype))
        return copy_values(from, out, err);
    enum mlo_status status = mlo_tensor_init(out, from->dtype, from->rank, from->dims, err);
    if (status == MLO_OK && out->size_bytes)
        memcpy(out->data, from->data, out->size_bytes);
    return status;
}

size_t mlo_tensor_count(const struct mlo_tensor *tensor)
{
    size_t n;
    return mlo_shape_count(tensor->rank, tensor->dims, &n) ? n : 0;
}

struct mlo_tensor mlo_tensor_rows(const struct mlo_tensor *all, int64_t at, int64_t rows)
{
    struct mlo_tensor part = *all;
    size_t row = all->size_bytes / (size_t)all->dims[0];
    part.dims[0] = rows;
    part.data = (char *)all->data + (size_t)at * row;
    part.size_bytes = (size_t)rows * row;
    part.owned = false;
    return part;
}

bool mlo_tensor_same_shape(const struct mlo_tensor *a, const struct mlo_tensor *b)
{
    return a->rank == b->rank &&
           (a->rank == 0 || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof a->dims[0]) == 0);
}

static int nibble(const struct mlo_tensor *t, size_t i)
{
    int raw = ((const uint8_t *)t->data)[i / 2] >> (i % 2 ? 4 : 0) & 15;
    return t->dtype == MLO_INT4 && raw >= 8 ? raw - 16 : raw;
}

double mlo_tensor_get_f64(const struct mlo_tensor *t, size_t i)
{
    switch (t->dtype) {
    case MLO_FLOAT32:
        return ((const float *)t->data)[i];
    case MLO_FLOAT64:
        return ((const double *)t->data)[i];
    case MLO_FLOAT16:
        return mlo_f16_to_f32(((const uint16_t *)t->data)[i]);
    case MLO_BFLOAT16:
        return mlo_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case MLO_FLOAT8E4M3FN:
    case MLO_FLOAT8E4M3FNUZ:
    case MLO_FLOAT8E5M2:
    case MLO_FLOAT8E5M2FNUZ:
        return mlo_f8_to_f32(t->dtype, ((const uint8_t *)t->data)[i]);
    case MLO_UINT64:
        return (double)((const uint64_t *)t->data)[i];
    default:
        return (double)mlo_tensor_get_i64(t, i);
    }
}

int64_t mlo_tensor_get_i64(const struct mlo_tensor *t, size_t i)
{
    switch (t->dtype) {
    case MLO_INT64:
        return ((const int64_t *)t->data)[i];
    case MLO_INT32:
        return ((const int32_t *)t->data)[i];
    case MLO_INT16:
        return ((const int16_t *)t->data)[i];
    case MLO_INT8:
        return ((const int8_t *)t->data)[i];
    case MLO_UINT64: {
        uint64_t v = ((const uint64_t *)t->data)[i];
        return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
    case MLO_UINT32:
        return ((const uint32_t *)t->data)[i];
    case MLO_UINT16:
        return ((const uint16_t *)t->data)[i];
    case MLO_UINT8:
        return ((const uint8_t *)t->data)[i];
    case MLO_BOOL:
        return ((const uint8_t *)t->data)[i] != 0;
    case MLO_UINT4:
    case MLO_INT4:
        return nibble(t, i);
    case MLO_FLOAT32:
    case MLO_FLOAT64:
    case MLO_FLOAT16:
    case MLO_BFLOAT16:
    case MLO_FLOAT8E4M3FN:
    case MLO_FLOAT8E4M3FNUZ:
    case MLO_FLOAT8E5M2:
    case MLO_FLOAT8E5M2FNUZ:
        return mlo_saturate_i64(mlo_tensor_get_f64(t, i));
    default:
        return 0; /* strings and complex numbers have no such value */
    }
}

static int64_t clamp_round(double value, int64_t low, int64_t high)
{
    double r = rint(value);
    if (isnan(r))
        return 0;
    return r <= (double)low ? low : r >= (double)high ? high : (int64_t)r;
}

void mlo_tensor_set_f64(struct mlo_tensor *t, size_t i, double value)
{
    switch (t->dtype) {
    case MLO_FLOAT32:
        ((float *)t->data)[i] = (float)value;
        break;
    case MLO_FLOAT64:
        ((double *)t->data)[i] = value;
        break;
    case MLO_FLOAT16:
        ((uint16_t *)t->data)[i] = mlo_f32_to_f16((float)value);
        break;
    case MLO_BFLOAT16:
        ((uint16_t *)t->data)[i] = mlo_f32_to_bf16((float)value);
        break;
    case MLO_FLOAT8E4M3FN:
    case MLO_FLOAT8E4M3FNUZ:
    case MLO_FLOAT8E5M2:
    case MLO_FLOAT8E5M2FNUZ:
        ((uint8_t *)t->data)[i] = mlo_f32_to_f8(t->dtype, (float)value);
        break;
    case MLO_INT64:
        ((int64_t *)t->data)[i] = clamp_round(value, INT64_MIN, INT64_MAX);
        break;
    case MLO_INT32:
        ((int32_t *)t->data)[i] = (int32_t)clamp_round(value, INT32_MIN, INT32_MAX);
        break;
    case MLO_INT16:
        ((int16_t *)t->data)[i] = (int16_t)clamp_round(value, INT16_MIN, INT16_MAX);
        break;
    case MLO_INT8:
        ((int8_t *)t->data)[i] = (int8_t)clamp_round(value, INT8_MIN, INT8_MAX);
        break;
    case MLO_UINT64: {
        double r = rint(value);
        ((uint64_t *)t->data)[i] = !(r > 0) ? 0 : r >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)r;
        break;
    }
    case MLO_UINT32:
        ((uint32_t *)t->data)[i] = (uint32_t)clamp_round(value, 0, UINT32_MAX);
        break;
    case MLO_UINT16:
        ((uint16_t *)t->data)[i] = (uint16_t)clamp_round(value, 0, UINT16_MAX);
        break;
    case MLO_UINT8:
        ((uint8_t *)t->data)[i] = (uint8_t)clamp_round(value, 0, UINT8_MAX);
        break;
    case MLO_BOOL:
        ((uint8_t *)t->data)[i] = value != 0;
        break;
    case MLO_UINT4:
    case MLO_INT4: {
        bool is_signed = t->dtype == MLO_INT4;
        unsigned v = (unsigned)clamp_round(value, is_signed ? -8 : 0, is_signed ? 7 : 15) & 15;
        uint8_t *byte = (uint8_t *)t->data + i / 2;
        *byte = (uint8_t)(i % 2 ? (*byte & 0x0f) | v << 4 : (*byte & 0xf0) | v);
        break;
    }
    default: /* strings and complex numbers hold no single number */
        break;
    }
}

void mlo_store_i64(struct mlo_tensor *t, size_t i, int64_t value)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    if (!info || !info->is_integer || info->bits < 8) {
        mlo_tensor_set_f64(t, i, (double)value);
        return;
    }
    size_t width = info->bits / 8;
    memcpy((uint8_t *)t->data + i * width, &value,
           width); /* the low bytes: this is a little-endian machine */
}

char *mlo_tensor_describe(const struct mlo_tensor *t, char *out, size_t size)
{
    return describe(t->dtype, t->rank, t->dims, out, size);
}
