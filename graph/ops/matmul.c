/* MatMul and Gemm. */
#include <stdlib.h>

#include "graph/ops/kernels_impl.h"
#include "graph/ops/ops_impl.h"

static enum mlo_status infer_matmul(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *a = mlo_op_in(node, 0), *b = mlo_op_in(node, 1);
    if (a->dtype && b->dtype && a->dtype != b->dtype)
        return mlo_error_set(err, MLO_EINVAL, "the operands are %s and %s", mlo_dtype_name(a->dtype),
                             mlo_dtype_name(b->dtype));
    out[0].dtype = a->dtype ? a->dtype : b->dtype;
    return mlo_matmul_infer(a, b, &out[0], err);
}

/* Operands as doubles or floats for types that have no kernel of their own; exact for all but 64-bit
 * integers. */
static double *as_doubles(const struct mlo_tensor *t)
{
    size_t count = mlo_tensor_count(t);
    double *copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        copy[i] = mlo_tensor_get_f64(t, i);
    return copy;
}

static void products(const struct mlo_matmul_dims *d, enum mlo_dtype dtype, const void *a, const void *b,
                     void *y)
{
    for (size_t i = 0; i < d->batches; i++) {
        size_t at_a, at_b, at_y = i * (size_t)(d->each.m * d->each.n);
        mlo_matmul_offsets(d, i, &at_a, &at_b);
        if (dtype == MLO_FLOAT32)
            mlo_matmul_f32(&d->each, (const float *)a + at_a, (const float *)b + at_b, (float *)y + at_y);
        else if (dtype == MLO_FLOAT64)
            mlo_matmul_f64(&d->each, (const double *)a + at_a, (const double *)b + at_b, (double *)y + at_y);
        else
            mlo_matmul_u32(&d->each, (const uint32_t *)a + at_a, (const uint32_t *)b + at_b,
                           (uint32_t *)y + at_y);
    }
}

static enum mlo_status eval_matmul(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_matmul_dims d;
    double *a = NULL, *b = NULL, *sum = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_matmul_init(&d, in[0], in[1], err));
    enum mlo_dtype dtype = in[0]->dtype;
    if (dtype == MLO_FLOAT32 || dtype == MLO_FLOAT64 || dtype == MLO_INT32 || dtype == MLO_UINT32) {
        products(&d, dtype, in[0]->data, in[1]->data, out[0]->data);
        goto out;
    }
    if (dtype != MLO_FLOAT16 && dtype != MLO_BFLOAT16 && dtype != MLO_INT64 && dtype != MLO_UINT64) {
        status = mlo_op_bad_dtype(dtype, err);
        goto out;
    }
    a = as_doubles(in[0]);
    b = as_doubles(in[1]);
    sum = as_doubles(out[0]);
    if (!a || !b || !sum) {
        status = mlo_error_nomem(err);
        goto out;
    }
    products(&d, MLO_FLOAT64, a, b, sum);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++)
        mlo_tensor_set_f64(out[0], i, sum[i]);
out:
    free(a);
    free(b);
    free(sum);
    return status;
}

static enum mlo_status infer_gemm(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    out[0].dtype = mlo_op_in(node, 0)->dtype;
    for (int i = 1; i < node->input_count; i++)
        if (mlo_op_in(node, i) && out[0].dtype && mlo_op_in(node, i)->dtype &&
            mlo_op_in(node, i)->dtype != out[0].dtype) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d is %s, and input 0 %s", i,
                                   mlo_dtype_name(mlo_op_in(node, i)->dtype), mlo_dtype_name(out[0].dtype));
            goto out;
        }
    MLO_TRY(mlo_op_want_rank(node, 0, 2, err));
    MLO_TRY(mlo_op_want_rank(node, 1, 2, err));
    if (!mlo_op_ranked(node, 0) || !mlo_op_ranked(node, 1))
        goto out;
    struct mlo_type a = *mlo_op_in(node, 0), b = *mlo_op_in(node, 1);
    int ta = mlo_node_attr_i(node, "transA", 0) != 0, tb = mlo_node_attr_i(node, "transB", 0) != 0;
    struct mlo_dim ka = a.dims[!ta], kb = b.dims[tb];
    if (ka.value >= 0 && kb.value >= 0 && ka.value != kb.value) {
        status = mlo_error_set(err, MLO_EINVAL, "the inner dims %lld and %lld of the product differ",
                               (long long)ka.value, (long long)kb.value);
        goto out;
    }
    struct mlo_type result = {.dtype = out[0].dtype, .rank = 2, .dims = {a.dims[ta], b.dims[!tb]}};
    MLO_TRY(mlo_op_want_broadcast(node, 2, &result, err));
    out[0] = result;
out:
    return status;
}

static enum mlo_status eval_gemm(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *c = node->input_count > 2 ? in[2] : NULL;
    float alpha = mlo_node_attr_f(node, "alpha", 1), beta = mlo_node_attr_f(node, "beta", 1);
    bool ta = mlo_node_attr_i(node, "transA", 0) != 0, tb = mlo_node_attr_i(node, "transB", 0) != 0;
    double *a = NULL, *b = NULL, *sum = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    struct mlo_tensor *y = out[0];
    struct mlo_product p = {.m = y->dims[0], .n = y->dims[1], .k = in[0]->dims[!ta]};
    p.a_row = ta ? 1 : p.k;
    p.a_col = ta ? p.m : 1;
    p.b_row = tb ? 1 : p.n;
    p.b_col = tb ? p.k : 1;
    size_t count = mlo_tensor_count(y);
    if (in[0]->dtype == MLO_FLOAT32) {
        mlo_matmul_f32(&p, in[0]->data, in[1]->data, y->data);
    } else if (mlo_dtype_info(in[0]->dtype)->is_float || mlo_dtype_info(in[0]->dtype)->is_integer) {
        a = as_doubles(in[0]);
        b = as_doubles(in[1]);
        sum = as_doubles(y);
        if (!a || !b || !sum) {
            status = mlo_error_nomem(err);
            goto out;
        }
        mlo_matmul_f64(&p, a, b, sum);
        for (size_t i = 0; i < count; i++)
            mlo_tensor_set_f64(y, i, sum[i]);
    } else {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    struct mlo_strides s;
    mlo_strides_init(&s, y, c ? c : y, y);
    for (size_t i = 0; i < count && (c || alpha != 1); i++, mlo_strides_next(&s)) {
        double product = mlo_tensor_get_f64(y, i);
        if (y->dtype == MLO_FLOAT32) /* each step rounded, as the other floats of the chain are */
            ((float *)y->data)[i] =
                alpha * (float)product + (c ? beta * ((const float *)c->data)[s.offset[0]] : 0.0f);
        else
            mlo_tensor_set_f64(y, i, alpha * product + (c ? beta * mlo_tensor_get_f64(c, s.offset[0]) : 0));
    }
out:
    free(a);
    free(b);
    free(sum);
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_WEIGHTED | MLO_OP_FLOPS_MAC };
static const struct mlo_op rows[] = {
    {"", "Gemm", 7, infer_gemm, eval_gemm, FLAGS, 3, 3, 1, 1},
    {"", "Gemm", 9, infer_gemm, eval_gemm, FLAGS, 3, 3, 1, 1},
    {"", "Gemm", 11, infer_gemm, eval_gemm, FLAGS, 2, 3, 1, 1},
    {"", "Gemm", 13, infer_gemm, eval_gemm, FLAGS, 2, 3, 1, 1},
    {"", "MatMul", 1, infer_matmul, eval_matmul, FLAGS, 2, 2, 1, 1},
    {"", "MatMul", 9, infer_matmul, eval_matmul, FLAGS, 2, 2, 1, 1},
    {"", "MatMul", 13, infer_matmul, eval_matmul, FLAGS, 2, 2, 1, 1},
};
const struct mlo_op_family mlo_ops_matmul = {rows, MLO_COUNT(rows)};
