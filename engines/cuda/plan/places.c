/* Places: elements of a slot under dims and strides. */
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

/* The order of dims from the outermost to the innermost. */
static void order_of(int rank, enum want order, int *out)
{
    for (int i = 0; i < rank; i++)
        out[i] = i;
    if ((order != WANT_LAST && order != WANT_WIDE) || rank < 3)
        return;
    for (int i = 1; i + 1 < rank; i++)
        out[i] = i + 1;
    out[rank - 1] = 1;
}

void place_dense(struct place *p, enum mlo_dtype dtype, int rank, const int64_t *dims, enum want order)
{
    int by[MLO_MAX_RANK];
    int64_t stride = 1;
    p->dtype = dtype;
    p->rank = rank;
    p->offset = 0;
    if (rank)
        memmove(p->dims, dims, (size_t)rank * sizeof *dims);
    order_of(rank, order, by);
    for (int i = rank - 1; i >= 0; i--) {
        p->strides[by[i]] = stride;
        stride *= p->dims[by[i]];
        if (order == WANT_WIDE && rank >= 3 && by[i] == 1)
            stride = (stride + INT8_CHANNELS - 1) / INT8_CHANNELS * INT8_CHANNELS;
    }
}

bool place_is(const struct place *p, enum want order)
{
    struct place dense = *p;
    if (order == WANT_ANY)
        return true;
    place_dense(&dense, p->dtype, p->rank, p->dims, order);
    for (int i = 0; i < p->rank; i++)
        if (p->dims[i] != 1 && p->strides[i] != dense.strides[i])
            return false;
    return true;
}

size_t place_bytes(const struct place *p)
{
    int64_t span = 1;
    for (int i = 0; i < p->rank; i++)
        span = MLO_MAX(span, p->dims[i] * p->strides[i]);
    return (size_t)span * lower_element(p->dtype);
}

bool place_aligned(const struct lower *l, const struct place *p)
{
    size_t size = lower_element(p->dtype), at = (size_t)p->offset * size;
    for (int s = p->slot; l->s->slots[s].is_part; s = l->s->slots[s].root)
        at += l->s->slots[s].part_bytes;
    return at % LIBRARY_ALIGN == 0;
}

void place_transpose(struct place *p, const int64_t *perm)
{
    struct place from = *p;
    for (int i = 0; i < p->rank; i++) {
        int k = perm ? (int)perm[i] : p->rank - 1 - i;
        p->dims[i] = from.dims[k];
        p->strides[i] = from.strides[k];
    }
}

/* Groups of dims with equal products: each group of the old ones must lie in memory as one dim. */
bool place_reshape(struct place *p, int rank, const int64_t *dims)
{
    int64_t strides[MLO_MAX_RANK] = {0};
    int i = 0, k = 0;
    while (i < p->rank || k < rank) {
        if (i < p->rank && p->dims[i] == 1) {
            i++;
            continue;
        }
        if (k < rank && dims[k] == 1) {
            strides[k++] = 1;
            continue;
        }
        if (i == p->rank || k == rank)
            return false;
        int from = k, last = i;
        int64_t a = p->dims[i++], b = dims[k++];
        while (a != b) {
            if (a < b) {
                while (i < p->rank && p->dims[i] == 1)
                    i++;
                if (i == p->rank || p->strides[last] != p->strides[i] * p->dims[i])
                    return false;
                last = i;
                a *= p->dims[i++];
            } else {
                if (k == rank)
                    return false;
                b *= dims[k++];
            }
        }
        int64_t stride = p->strides[last];
        for (int j = k - 1; j >= from; j--) {
            strides[j] = stride;
            stride *= dims[j];
        }
    }
    p->rank = rank;
    if (rank) {
        memcpy(p->dims, dims, (size_t)rank * sizeof *dims);
        memcpy(p->strides, strides, (size_t)rank * sizeof *strides);
    }
    return true;
}

void place_slice(struct place *p, int axis, int64_t start, int64_t step, int64_t count)
{
    p->offset += start * p->strides[axis];
    p->strides[axis] *= step;
    p->dims[axis] = count;
}

void place_expand(struct place *p, int rank, const int64_t *dims)
{
    struct place from = *p;
    p->rank = rank;
    for (int i = 0; i < rank; i++) {
        int k = i - (rank - from.rank);
        bool same = k >= 0 && from.dims[k] == dims[i];
        p->dims[i] = dims[i];
        p->strides[i] = same ? from.strides[k] : 0;
    }
}

bool place_tensor(const struct place *p, struct cuda_tensor *out)
{
    if (p->rank > CUDA_RANK)
        return false;
    *out = (struct cuda_tensor){.dtype = p->dtype, .rank = p->rank};
    for (int i = 0; i < p->rank; i++) {
        out->dims[i] = p->dims[i];
        out->strides[i] = p->strides[i];
    }
    return true;
}

size_t lower_element(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    return info ? info->bits / 8 : 0;
}
