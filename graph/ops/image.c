/* Det and CenterCropPad. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status infer_det(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    out[0] = *x;
    if (x->rank < 0)
        return MLO_OK;
    if (x->rank < 2)
        return mlo_error_set(err, MLO_EINVAL, "Det needs rank 2 or more, not %d", x->rank);
    int64_t a = x->dims[x->rank - 2].value, b = x->dims[x->rank - 1].value;
    if (a >= 0 && b >= 0 && a != b)
        return mlo_error_set(err, MLO_EINVAL, "matrices of %lld x %lld are not square", (long long)a,
                             (long long)b);
    out[0].rank = x->rank - 2;
    return MLO_OK;
}

/* By elimination, the largest of a column as the pivot; m is spoiled. */
static double determinant(double *m, size_t n)
{
    double result = 1;
    for (size_t c = 0; c < n; c++) {
        size_t pivot = c;
        for (size_t r = c + 1; r < n; r++)
            if (fabs(m[r * n + c]) > fabs(m[pivot * n + c]))
                pivot = r;
        if (m[pivot * n + c] == 0)
            return 0;
        for (size_t k = 0; pivot != c && k < n; k++) {
            double v = m[c * n + k];
            m[c * n + k] = m[pivot * n + k];
            m[pivot * n + k] = v;
        }
        result *= pivot != c ? -m[c * n + c] : m[c * n + c];
        for (size_t r = c + 1; r < n; r++) {
            double factor = m[r * n + c] / m[c * n + c];
            for (size_t k = c; k < n; k++)
                m[r * n + k] -= factor * m[c * n + k];
        }
    }
    return result;
}

static enum mlo_status eval_det(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *x = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    size_t n = (size_t)in[0]->dims[in[0]->rank - 1];
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++)
        mlo_tensor_set_f64(out[0], i, determinant(x + i * n * n, n));
out:
    free(x);
    return status;
}

/* Sizes of the result: those of input 1, along `axes` (all, by default). */
static enum mlo_status crop_sizes(const struct mlo_node *node, const struct mlo_tensor *shape, int rank,
                                  int64_t *sizes, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t list[MLO_MAX_RANK];
    size_t count;
    const int64_t *axes = mlo_node_attr_ints(node, "axes", &count);
    int n;
    MLO_TRY(mlo_op_read_ints(shape, list, MLO_MAX_RANK, &n, err));
    if (n != (axes ? (int)MLO_MIN(count, 100) : rank)) {
        status = mlo_error_set(err, MLO_EINVAL, "input 1, the shape, holds %d sizes for %d axes", n,
                               axes ? (int)MLO_MIN(count, 100) : rank);
        goto out;
    }
    for (int i = 0; i < n; i++) {
        int axis;
        MLO_TRY(mlo_op_axis(axes ? axes[i] : i, rank, &axis, err));
        if (list[i] < 0) {
            status = mlo_error_set(err, MLO_EINVAL, "size %d is %lld", i, (long long)list[i]);
            goto out;
        }
        sizes[axis] = list[i];
    }
out:
    return status;
}

static enum mlo_status infer_crop(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *shape = mlo_op_content(node, 1);
    int64_t sizes[MLO_MAX_RANK];
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank < 0)
        goto out;
    for (int i = 0; i < out[0].rank; i++)
        sizes[i] = -1;
    if (shape)
        MLO_TRY(crop_sizes(node, shape, out[0].rank, sizes, err));
    for (int i = 0; i < out[0].rank; i++)
        if (!shape)
            out[0].dims[i] = mlo_dim_unknown();
        else if (sizes[i] >= 0)
            out[0].dims[i] = mlo_dim_fixed(sizes[i]);
out:
    return status;
}

static enum mlo_status eval_crop(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    size_t width = mlo_dtype_bytes(x->dtype);
    if (!width) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++) {
        size_t rest = i, from = 0, stride = 1;
        bool inside = true;
        for (int d = x->rank - 1; d >= 0; d--) {
            int64_t size = out[0]->dims[d], have = x->dims[d], at = (int64_t)(rest % (size_t)size);
            rest /= (size_t)size;
            at += have > size ? (have - size) / 2 : -((size - have) / 2);
            inside = inside && at >= 0 && at < have;
            from += (size_t)at * stride;
            stride *= (size_t)have;
        }
        if (inside)
            memcpy((char *)out[0]->data + i * width, (const char *)x->data + from * width, width);
    }
out:
    return status;
}

static const struct mlo_op rows[] = {
    {"", "Det", 11, infer_det, eval_det, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "Det", 22, infer_det, eval_det, MLO_OP_PURE, 1, 1, 1, 1},
    {"", "CenterCropPad", 18, infer_crop, eval_crop, MLO_OP_PURE, 2, 2, 1, 1},
};
const struct mlo_op_family mlo_ops_image = {rows, MLO_COUNT(rows)};
