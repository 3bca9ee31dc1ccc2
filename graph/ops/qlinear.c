/* Integer products: ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul. Sums are exact 32-bit integers
 * (wrapping); a result is requantized as saturate(round_half_even(sum * (s_a * s_b / s_y)) + zp_y), the
 * factor in float32. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/kernels_impl.h"
#include "graph/ops/ops_impl.h"

/* Positions of an op's operands among its inputs; -1: it has none. */
struct places {
    int a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, bias;
};
static const struct places integer = {0, -1, 2, 1, -1, 3, -1, -1, -1};
static const struct places linear = {0, 1, 2, 3, 4, 5, 6, 7, 8};

static bool is_linear(const struct mlo_node *node)
{
    return node->op_type[0] == 'Q';
}

static bool is_conv(const struct mlo_node *node)
{
    return strstr(node->op_type, "Conv") != NULL;
}

static const struct places *places_of(const struct mlo_node *node)
{
    return is_linear(node) ? &linear : &integer;
}

/* A zero point or scale is a scalar, or a list of `size` (of the weight: one for each output channel or
 * column; of a matrix A: for each row). */
static enum mlo_status want_count(const struct mlo_node *node, int i, int64_t size, struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    const struct mlo_type *type = mlo_op_in(node, i);
    if (!type || !mlo_type_static(type, dims) || !mlo_shape_count(type->rank, dims, &count) || count == 1)
        return MLO_OK;
    if (type->rank == 1 && (size < 0 || count == (size_t)size))
        return MLO_OK;
    return mlo_error_set(err, type->rank > 1 ? MLO_EUNSUPPORTED : MLO_EINVAL,
                         "input %d is neither a scalar nor a list of %lld", i, (long long)size);
}

static enum mlo_status infer_product(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct places *p = places_of(node);
    const struct mlo_type *a = mlo_op_in(node, p->a), *b = mlo_op_in(node, p->b);
    const struct mlo_type *y_zero = p->y_zero < 0 ? NULL : mlo_op_in(node, p->y_zero);
    if (!mlo_op_maybe_int8(a->dtype) || !mlo_op_maybe_int8(b->dtype) ||
        (y_zero && !mlo_op_maybe_int8(y_zero->dtype))) {
        status = mlo_op_bad_dtype(mlo_op_maybe_int8(a->dtype) ? b->dtype : a->dtype, err);
        goto out;
    }
    int64_t rows = 1, columns = -1;
    if (is_conv(node)) {
        MLO_TRY(mlo_conv_infer(node, a, b, p->bias < 0 ? NULL : mlo_op_in(node, p->bias), &out[0], err));
        columns = b->rank > 0 ? b->dims[0].value : -1;
    } else {
        MLO_TRY(mlo_matmul_infer(a, b, &out[0], err));
        rows = a->rank > 1 ? a->dims[a->rank - 2].value : 1;
        columns = b->rank > 1 ? b->dims[b->rank - 1].value : 1;
    }
    MLO_TRY(want_count(node, p->a_zero, is_conv(node) ? 1 : rows, err));
    MLO_TRY(want_count(node, p->b_zero, columns, err));
    if (is_linear(node)) {
        MLO_TRY(want_count(node, p->a_scale, is_conv(node) ? 1 : rows, err));
        MLO_TRY(want_count(node, p->b_scale, columns, err));
        MLO_TRY(want_count(node, p->y_scale, 1, err));
        MLO_TRY(want_count(node, p->y_zero, 1, err));
    }
    out[0].dtype = y_zero ? y_zero->dtype : MLO_INT32;
out:
    return status;
}

/* Element i of a scalar or list; `fallback` when it is absent. */
static double pick(const struct mlo_tensor *t, size_t i, double fallback)
{
    return !t ? fallback : mlo_tensor_get_f64(t, mlo_tensor_count(t) == 1 ? 0 : i);
}

/* The operand minus its zero points, which change every `inner` elements, `size` of them in turn. */
static uint32_t *centred(const struct mlo_tensor *t, const struct mlo_tensor *zero, size_t inner, size_t size)
{
    size_t count = mlo_tensor_count(t);
    uint32_t *copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        copy[i] = (uint32_t)(mlo_tensor_get_i64(t, i) - (int64_t)pick(zero, i / inner % size, 0));
    return copy;
}

static const struct mlo_tensor *operand(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        int i)
{
    return i >= 0 && i < node->input_count ? in[i] : NULL;
}

static enum mlo_status sum_conv(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                const struct places *p, struct mlo_tensor *y, uint32_t *sums,
                                struct mlo_error *err)
{
    struct mlo_conv conv;
    const struct mlo_tensor *x = in[p->a], *w = in[p->b], *bias = operand(node, in, p->bias);
    enum mlo_status status = mlo_conv_init(&conv, node, x, w, err);
    if (status != MLO_OK)
        return status;
    size_t outs = (size_t)w->dims[0], spatial = (size_t)(conv.w.out[0] * conv.w.out[1] * conv.w.out[2]);
    for (size_t i = 0; bias && i < mlo_tensor_count(y); i++)
        sums[i] = (uint32_t)mlo_tensor_get_i64(bias, i / spatial % outs);
    uint32_t *a = centred(x, operand(node, in, p->a_zero), 1, 1);
    uint32_t *b = centred(w, operand(node, in, p->b_zero), outs ? MLO_MAX(mlo_tensor_count(w) / outs, 1) : 1,
                          outs + !outs);
    if (a && b)
        mlo_conv_u32(&conv, a, b, sums);
    status = a && b ? MLO_OK : mlo_error_nomem(err);
    free(a);
    free(b);
    return status;
}

static enum mlo_status sum_matmul(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  const struct places *p, uint32_t *sums, struct mlo_error *err)
{
    struct mlo_matmul_dims d;
    enum mlo_status status = mlo_matmul_init(&d, in[p->a], in[p->b], err);
    if (status != MLO_OK)
        return status;
    uint32_t *a = centred(in[p->a], operand(node, in, p->a_zero), MLO_MAX((size_t)d.each.k, 1),
                          MLO_MAX((size_t)d.each.m, 1));
    uint32_t *b = centred(in[p->b], operand(node, in, p->b_zero), 1, MLO_MAX((size_t)d.each.n, 1));
    for (size_t i = 0; a && b && i < d.batches; i++) {
        size_t at_a, at_b;
        mlo_matmul_offsets(&d, i, &at_a, &at_b);
        mlo_matmul_u32(&d.each, a + at_a, b + at_b, sums + i * (size_t)(d.each.m * d.each.n));
    }
    status = a && b ? MLO_OK : mlo_error_nomem(err);
    free(a);
    free(b);
    return status;
}

/* Which row and column (or channel) an output element belongs to, for the scales. */
static void requantize(const struct mlo_node *node, const struct mlo_tensor *const *in,
                       const struct places *p, const uint32_t *sums, struct mlo_tensor *y)
{
    const struct mlo_tensor *b = in[p->b];
    size_t count = mlo_tensor_count(y), columns, inner = 1, rows = 1;
    bool conv = is_conv(node);
    if (conv) {
        columns = (size_t)y->dims[1];
        for (int i = 2; i < y->rank; i++)
            inner *= (size_t)y->dims[i];
    } else {
        columns = b->rank > 1 ? (size_t)b->dims[b->rank - 1] : 1;
        rows = in[p->a]->rank > 1 ? (size_t)in[p->a]->dims[in[p->a]->rank - 2] : 1;
    }
    double zero = pick(in[p->y_zero], 0, 0);
    double low = y->dtype == MLO_INT8 ? -128 : 0, high = y->dtype == MLO_INT8 ? 127 : 255;
    for (size_t i = 0; i < count; i++) {
        size_t column = i / inner % columns, row = conv ? 0 : i / columns % rows;
        float factor = (float)pick(in[p->a_scale], row, 1) * (float)pick(in[p->b_scale], column, 1) /
                       (float)pick(in[p->y_scale], 0, 1);
        double q = rint((double)(int32_t)sums[i] * (double)factor) + zero;
        mlo_store_i64(y, i, isnan(q) ? (int64_t)zero : (int64_t)MLO_MIN(MLO_MAX(q, low), high));
    }
}

static enum mlo_status eval_product(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct places *p = places_of(node);
    uint32_t *sums = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct mlo_tensor *y = out[0];
    size_t count = mlo_tensor_count(y);
    const struct mlo_tensor *bias = operand(node, in, p->bias);
    if (bias && bias->dtype != MLO_INT32) {
        status = mlo_op_bad_dtype(bias->dtype, err);
        goto out;
    }
    sums = calloc(count + 1, sizeof *sums);
    if (!sums) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(is_conv(node) ? sum_conv(node, in, p, y, sums, err) : sum_matmul(node, in, p, sums, err));
    if (is_linear(node))
        requantize(node, in, p, sums, y);
    else
        memcpy(y->data, sums, count * sizeof *sums);
out:
    free(sums);
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_FLOPS_MAC };
static const struct mlo_op rows[] = {
    {"", "ConvInteger", 10, infer_product, eval_product, FLAGS, 2, 4, 1, 1},
    {"", "MatMulInteger", 10, infer_product, eval_product, FLAGS, 2, 4, 1, 1},
    {"", "QLinearConv", 10, infer_product, eval_product, FLAGS, 8, 9, 1, 1},
    {"", "QLinearMatMul", 10, infer_product, eval_product, FLAGS, 8, 8, 1, 1},
    {"", "QLinearMatMul", 21, infer_product, eval_product, FLAGS, 8, 8, 1, 1},
};
const struct mlo_op_family mlo_ops_qlinear = {rows, MLO_COUNT(rows)};
