/* com.microsoft: matrix products with quantized operands: MatMulNBits, DynamicQuantizeMatMul,
 * MatMulIntegerToFloat and QGemm. Integer sums are exact; what is real is in double, rounded once. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/kernels_impl.h"
#include "graph/ops/ops_impl.h"

#define DOMAIN "com.microsoft"

/* Places of an op's operands among its inputs; -1: it has none. */
struct places {
    const char *op;
    int a_scale, a_zero, b, b_scale, b_zero, bias, y_scale, y_zero;
};
static const struct places all_places[] = {
    {"DynamicQuantizeMatMul", -1, -1, 1, 2, 3, 4, -1, -1},
    {"MatMulIntegerToFloat", 2, 4, 1, 3, 5, 6, -1, -1},
    {"QGemm", 1, 2, 3, 4, 5, 6, 7, 8},
};

static const struct places *places_of(const struct mlo_node *node)
{
    size_t i = 0;
    while (strcmp(all_places[i].op, node->op_type) != 0)
        i++;
    return &all_places[i];
}

/* A scalar, or one for each of `columns`. */
static enum mlo_status want_count(const struct mlo_node *node, int i, int64_t columns, struct mlo_error *err)
{
    const struct mlo_type *t = mlo_op_in(node, i);
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    if (!t || !mlo_type_static(t, dims) || !mlo_shape_count(t->rank, dims, &count) || count == 1)
        return MLO_OK;
    if (t->rank == 1 && columns != 1 && (columns < 0 || count == (size_t)columns))
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "input %d is neither a scalar nor a list of %lld", i,
                         (long long)columns);
}

static void turn(struct mlo_type *t, bool yes)
{
    if (!yes || t->rank != 2)
        return;
    struct mlo_dim d = t->dims[0];
    t->dims[0] = t->dims[1];
    t->dims[1] = d;
}

static enum mlo_status infer_quantized(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct places *p = places_of(node);
    bool gemm = p->y_scale >= 0;
    struct mlo_type a = *mlo_op_in(node, 0), b = {.rank = -1};
    if (p->a_scale < 0 ? a.dtype && a.dtype != MLO_FLOAT32 : !mlo_op_maybe_int8(a.dtype)) {
        status = mlo_op_bad_dtype(a.dtype, err);
        goto out;
    }
    b = *mlo_op_in(node, p->b);
    if (!mlo_op_maybe_int8(b.dtype)) {
        status = mlo_op_bad_dtype(b.dtype, err);
        goto out;
    }
    if (gemm) {
        MLO_TRY(mlo_op_want_rank(node, 0, 2, err));
        MLO_TRY(mlo_op_want_rank(node, p->b, 2, err));
        turn(&a, mlo_node_attr_i(node, "transA", 0) != 0);
        turn(&b, mlo_node_attr_i(node, "transB", 0) != 0);
    }
    MLO_TRY(mlo_matmul_infer(&a, &b, &out[0], err));
    int64_t columns = b.rank > 1 ? b.dims[b.rank - 1].value : 1;
    MLO_TRY(want_count(node, p->a_scale, 1, err));
    MLO_TRY(want_count(node, p->a_zero, 1, err));
    MLO_TRY(want_count(node, p->b_scale, b.rank < 0 ? -1 : columns, err));
    MLO_TRY(want_count(node, p->b_zero, b.rank < 0 ? -1 : columns, err));
    MLO_TRY(want_count(node, p->y_scale, 1, err));
    MLO_TRY(want_count(node, p->y_zero, 1, err));
    MLO_TRY(mlo_op_want_broadcast(node, p->bias, &out[0], err));
    out[0].dtype = MLO_FLOAT32;
    if (gemm && mlo_op_in(node, p->y_scale)) {
        const struct mlo_type *zero = mlo_op_in(node, p->y_zero);
        out[0].dtype = zero && zero->dtype ? zero->dtype : a.dtype ? a.dtype : MLO_UINT8;
        if (!mlo_op_maybe_int8(out[0].dtype))
            status = mlo_op_bad_dtype(out[0].dtype, err);
    }
out:
    return status;
}

static double pick(const struct mlo_tensor *t, size_t i, double fallback)
{
    return !t ? fallback : mlo_tensor_get_f64(t, mlo_tensor_count(t) == 1 ? 0 : i);
}

/* To 8 bits as DynamicQuantizeLinear does, minus the zero point; the range includes 0. */
static float quantize_dynamic(const struct mlo_tensor *x, double *values)
{
    float low = 0, high = 0;
    size_t count = mlo_tensor_count(x);
    for (size_t i = 0; i < count; i++) {
        low = fminf(low, (float)values[i]);
        high = fmaxf(high, (float)values[i]);
    }
    float scale = (high - low) / 255.0f;
    double zero = scale > 0 ? fmin(fmax(rint((double)(-low / scale)), 0), 255) : 0;
    for (size_t i = 0; i < count; i++)
        values[i] =
            scale > 0 ? fmin(fmax(rint((double)((float)values[i] / scale)) + zero, 0), 255) - zero : 0;
    return scale;
}

static void subtract(double *values, size_t count, const struct mlo_tensor *zero, size_t inner, size_t size)
{
    for (size_t i = 0; zero && i < count; i++)
        values[i] -= pick(zero, i / inner % size, 0);
}

static double saturated(double q, enum mlo_dtype dtype)
{
    return dtype == MLO_INT8 ? fmin(fmax(q, -128), 127) : fmin(fmax(q, 0), 255);
}

/* Sums of integers below 2^53 are exact in double. */
static enum mlo_status eval_quantized(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct places *p = places_of(node);
    bool gemm = p->y_scale >= 0, turn_a = gemm && mlo_node_attr_i(node, "transA", 0),
         turn_b = gemm && mlo_node_attr_i(node, "transB", 0);
    double *a = NULL, *b = NULL, *y = NULL;
    struct mlo_matmul_dims d;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct mlo_tensor ta = *in[0], tb = *in[p->b];
    MLO_TRY(mlo_op_doubles(&ta, &a, err));
    MLO_TRY(mlo_op_doubles(&tb, &b, err));
    y = calloc(mlo_tensor_count(out[0]) + 1, sizeof *y);
    if (!y) {
        status = mlo_error_nomem(err);
        goto out;
    }
    double a_scale =
        p->a_scale < 0 ? quantize_dynamic(&ta, a) : pick(mlo_op_operand(node, in, p->a_scale), 0, 1);
    subtract(a, mlo_tensor_count(&ta), mlo_op_operand(node, in, p->a_zero), 1, 1);
    if (turn_a)
        ta.dims[0] = in[0]->dims[1], ta.dims[1] = in[0]->dims[0];
    if (turn_b)
        tb.dims[0] = in[p->b]->dims[1], tb.dims[1] = in[p->b]->dims[0];
    MLO_TRY(mlo_matmul_init(&d, &ta, &tb, err));
    size_t n = (size_t)MLO_MAX(d.each.n, 1), k = (size_t)MLO_MAX(d.each.k, 1);
    subtract(b, mlo_tensor_count(&tb), mlo_op_operand(node, in, p->b_zero), turn_b ? k : 1, n);
    if (turn_a)
        d.each.a_row = 1, d.each.a_col = d.each.m;
    if (turn_b)
        d.each.b_row = 1, d.each.b_col = d.each.k;
    for (size_t i = 0; i < d.batches; i++) {
        size_t at_a, at_b;
        mlo_matmul_offsets(&d, i, &at_a, &at_b);
        mlo_matmul_f64(&d.each, a + at_a, b + at_b, y + i * (size_t)(d.each.m * d.each.n));
    }
    const struct mlo_tensor *bias = mlo_op_operand(node, in, p->bias),
                            *b_scale = mlo_op_operand(node, in, p->b_scale);
    const struct mlo_tensor *y_scale = mlo_op_operand(node, in, p->y_scale),
                            *y_zero = mlo_op_operand(node, in, p->y_zero);
    double alpha = gemm ? mlo_node_attr_f(node, "alpha", 1) : 1;
    struct mlo_strides s;
    mlo_strides_init(&s, out[0], bias ? bias : out[0], bias ? bias : out[0]);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++, mlo_strides_next(&s)) {
        double added = bias ? mlo_tensor_get_f64(bias, s.offset[0]) : 0;
        double factor = alpha * (a_scale * pick(b_scale, i % n, 1));
        double v = gemm ? factor * (y[i] + added) : factor * y[i] + added; /* QGemm's bias is an integer */
        if (y_scale)
            v = saturated(rint(v / pick(y_scale, 0, 1)) + pick(y_zero, 0, 0), out[0]->dtype);
        mlo_tensor_set_f64(out[0], i, v);
    }
out:
    free(a);
    free(b);
    free(y);
    return status;
}

/* --- MatMulNBits ------------------------------------------------------------------------------------ */

struct nbits {
    size_t k, n, bits, block, blocks; /* blocks of one column */
};

static enum mlo_status read_nbits(const struct mlo_node *node, struct nbits *p, struct mlo_error *err)
{
    int64_t k = mlo_node_attr_i(node, "K", 0), n = mlo_node_attr_i(node, "N", 0);
    int64_t bits = mlo_node_attr_i(node, "bits", 4), block = mlo_node_attr_i(node, "block_size", 0);
    if (k < 1 || n < 1 || k > (int64_t)1 << 31 || n > (int64_t)1 << 31)
        return mlo_error_set(err, MLO_EINVAL, "attributes 'K' and 'N' are %lld and %lld", (long long)k,
                             (long long)n);
    if (bits != 2 && bits != 4 && bits != 8)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "attribute 'bits' is %lld; 2, 4 and 8 are supported",
                             (long long)bits);
    if (block < 16 || block & (block - 1) || block > 1 << 20)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'block_size' is %lld, no power of 2 of at least 16",
                             (long long)block);
    *p = (struct nbits){(size_t)k, (size_t)n, (size_t)bits, (size_t)block, (size_t)((k + block - 1) / block)};
    return MLO_OK;
}

/* Elements of input i, when they are known, must be `want`. */
static enum mlo_status want_elements(const struct mlo_node *node, int i, size_t want, struct mlo_error *err)
{
    const struct mlo_type *t = mlo_op_in(node, i);
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    if (!t || !mlo_type_static(t, dims))
        return MLO_OK;
    if (!mlo_shape_count(t->rank, dims, &count) || count != want)
        return mlo_error_set(err, MLO_EINVAL, "input %d does not hold %zu elements", i, want);
    return MLO_OK;
}

static enum mlo_status infer_nbits(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *a = mlo_op_in(node, 0), *b = mlo_op_in(node, 1), *zero = mlo_op_in(node, 3);
    struct nbits p;
    out[0] = *a;
    MLO_TRY(read_nbits(node, &p, err));
    if (b->dtype && b->dtype != MLO_UINT8) {
        status = mlo_op_bad_dtype(b->dtype, err);
        goto out;
    }
    if (mlo_op_in(node, 4)) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "input 4, the order of groups");
        mlo_error_hint(err, "quantize the model without reordering (desc_act, act_order)");
        goto out;
    }
    MLO_TRY(want_elements(node, 1, p.n * p.blocks * (p.block * p.bits / 8), err));
    MLO_TRY(want_elements(node, 2, p.n * p.blocks, err));
    MLO_TRY(want_elements(
        node, 3, zero && zero->dtype == MLO_UINT8 ? p.n * ((p.blocks * p.bits + 7) / 8) : p.n * p.blocks,
        err));
    MLO_TRY(want_elements(node, 5, p.n, err));
    if (a->rank == 0 ||
        (a->rank > 0 && a->dims[a->rank - 1].value >= 0 && a->dims[a->rank - 1].value != (int64_t)p.k)) {
        status = mlo_error_set(err, MLO_EINVAL, "the last dim of input 0 is not %zu", p.k);
        goto out;
    }
    if (a->rank > 0)
        out[0].dims[a->rank - 1] = mlo_dim_fixed((int64_t)p.n);
out:
    return status;
}

/* Number i of a row of packed ones, the lowest bits first. */
static unsigned unpack(const uint8_t *row, size_t i, size_t bits)
{
    size_t at = i * bits;
    return row[at / 8] >> at % 8 & ((1u << bits) - 1);
}

static double zero_of(const struct nbits *p, const struct mlo_tensor *zero, size_t column, size_t block)
{
    if (!zero)
        return (double)(1u << (p->bits - 1));
    if (zero->dtype != MLO_UINT8)
        return mlo_tensor_get_f64(zero, column * p->blocks + block);
    return unpack((const uint8_t *)zero->data + column * ((p->blocks * p->bits + 7) / 8), block, p->bits);
}

static enum mlo_status eval_nbits(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *zero = mlo_op_operand(node, in, 3), *bias = mlo_op_operand(node, in, 5);
    struct nbits p;
    double *a = NULL, *column = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_nbits(node, &p, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(mlo_op_want_float(in[2], err));
    MLO_TRY(mlo_op_doubles(in[0], &a, err));
    column = calloc(p.k, sizeof *column);
    if (!column) {
        status = mlo_error_nomem(err);
        goto out;
    }
    size_t rows = mlo_tensor_count(in[0]) / p.k, blob = p.block * p.bits / 8;
    for (size_t c = 0; c < p.n; c++) {
        for (size_t i = 0; i < p.k; i++) {
            size_t b = i / p.block;
            const uint8_t *packed = (const uint8_t *)in[1]->data + (c * p.blocks + b) * blob;
            column[i] = ((double)unpack(packed, i % p.block, p.bits) - zero_of(&p, zero, c, b)) *
                        mlo_tensor_get_f64(in[2], c * p.blocks + b);
        }
        for (size_t r = 0; r < rows; r++) {
            double sum = bias ? mlo_tensor_get_f64(bias, c) : 0;
            for (size_t i = 0; i < p.k; i++)
                sum += a[r * p.k + i] * column[i];
            mlo_tensor_set_f64(out[0], r * p.n + c, sum);
        }
    }
out:
    free(a);
    free(column);
    return status;
}

static const struct mlo_op rows[] = {
    {DOMAIN, "DynamicQuantizeMatMul", 1, infer_quantized, eval_quantized, MLO_OP_PURE, 3, 5, 1, 1},
    {DOMAIN, "MatMulIntegerToFloat", 1, infer_quantized, eval_quantized, MLO_OP_PURE, 4, 7, 1, 1},
    {DOMAIN, "QGemm", 1, infer_quantized, eval_quantized, MLO_OP_PURE, 6, 9, 1, 1},
    {DOMAIN, "MatMulNBits", 1, infer_nbits, eval_nbits, MLO_OP_PURE, 3, 6, 1, 1},
};
const struct mlo_op_family mlo_ops_ms_matmul = {rows, MLO_COUNT(rows)};
