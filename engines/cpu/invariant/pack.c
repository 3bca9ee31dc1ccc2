/* Packing of matrices into the panels of columns that the tile kernels walk through. */
#include "engines/cpu/invariant/invariant_impl.h"

static size_t panels(size_t count, int width)
{
    return (count + (size_t)width - 1) / (size_t)width;
}

static void pack(const float *m, size_t count, size_t depth, size_t stride, size_t k_stride, size_t width,
                 float *out)
{
    for (size_t p = 0; p < count; p += width)
        for (size_t k = 0; k < depth; k++)
            for (size_t i = p; i < p + width; i++)
                *out++ = i < count ? m[i * stride + k * k_stride] : 0.0f;
}

void inv_pack_columns(const struct inv_kernels *kernels, const float *b, size_t columns, size_t depth,
                      size_t column_stride, size_t k_stride, float *out)
{
    pack(b, columns, depth, column_stride, k_stride, (size_t)kernels->nr, out);
}

size_t inv_packed_rows(const struct inv_kernels *kernels, size_t rows)
{
    return panels(rows, kernels->mr) * (size_t)kernels->mr;
}

size_t inv_packed_columns(const struct inv_kernels *kernels, size_t columns)
{
    return panels(columns, kernels->nr) * (size_t)kernels->nr;
}
