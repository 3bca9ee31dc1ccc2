/* com.microsoft: what graph optimizers fuse: the Gelu family, FusedMatMul, FusedConv, FusedGemm. In double,
 * rounded once. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/kernels_impl.h"
#include "graph/ops/ops_impl.h"

#define DOMAIN "com.microsoft"

static double gelu(double x)
{
    return 0.5 * x * (1 + mlo_math_erf(x * 0.70710678118654752));
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + mlo_math_tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

/* Input 1, a bias, is a list along the last dim; FastGelu's may be omitted. */
static enum mlo_status infer_gelu(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0), *bias = mlo_op_in(node, 1);
    out[0] = *x;
    if (!bias || bias->rank < 0)
        return MLO_OK;
    int64_t have = bias->rank == 1 ? bias->dims[0].value : -1,
            want = x->rank > 0 ? x->dims[x->rank - 1].value : -1;
    if (bias->rank != 1 || x->rank == 0 || (have >= 0 && want >= 0 && have != want))
        return mlo_error_set(err, MLO_EINVAL, "input 1, the bias, does not hold one number for each of %lld",
                             (long long)want);
    return MLO_OK;
}

static enum mlo_status eval_gelu(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *bias = mlo_op_operand(node, in, 1);
    bool quick = strcmp(node->op_type, "QuickGelu") == 0, fast = strcmp(node->op_type, "FastGelu") == 0;
    double alpha = mlo_node_attr_f(node, "alpha", 1.702f);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(x, err));
    size_t width = x->rank ? (size_t)x->dims[x->rank - 1] : 1;
    for (size_t i = 0; i < mlo_tensor_count(x); i++) {
        double v = mlo_tensor_get_f64(x, i) + (bias ? mlo_tensor_get_f64(bias, i % width) : 0);
        mlo_tensor_set_f64(out[0], i,
                           quick  ? v * mlo_math_sigmoid(alpha * v)
                           : fast ? gelu_tanh(v)
                                  : gelu(v));
    }
out:
    return status;
}

/* --- activations of fused ops ----------------------------------------------------------------------- */

enum { ACT_NONE, ACT_RELU, ACT_TANH, ACT_SIGMOID, ACT_LEAKY_RELU, ACT_CLIP, ACT_HARD_SIGMOID };
struct activation {
    unsigned kind;
    double a, b;
};

static enum mlo_status read_activation(const struct mlo_node *node, struct activation *act,
                                       struct mlo_error *err)
{
    static const char *const names[] = {"", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"};
    static const float defaults[][2] = {
        {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0.01f, 0}, {-INFINITY, INFINITY}, {0.2f, 0.5f}};
    enum mlo_status status = mlo_op_choose(node, "activation", "", names, MLO_COUNT(names), &act->kind, err);
    size_t count = 0;
    const float *list = mlo_node_attr_floats(node, "activation_params", &count);
    if (status != MLO_OK)
        return status;
    act->a = count > 0 ? list[0] : mlo_node_attr_f(node, "activation_alpha", defaults[act->kind][0]);
    act->b = count > 1 ? list[1] : mlo_node_attr_f(node, "activation_beta", defaults[act->kind][1]);
    return MLO_OK;
}

static double activate(const struct activation *act, double x)
{
    double y = act->a * x + act->b;
    switch (act->kind) {
    case ACT_RELU:
        return x < 0 ? 0 : x;
    case ACT_TANH:
        return mlo_math_tanh(x);
    case ACT_SIGMOID:
        return mlo_math_sigmoid(x);
    case ACT_LEAKY_RELU:
        return x < 0 ? act->a * x : x;
    case ACT_CLIP:
        return x < act->a ? act->a : x > act->b ? act->b : x;
    case ACT_HARD_SIGMOID:
        return y < 0 ? 0 : y > 1 ? 1 : y;
    default:
        return x;
    }
}

/* --- matrix products -------------------------------------------------------------------------------- */

static void swap_last(struct mlo_type *t)
{
    if (t->rank < 2)
        return;
    struct mlo_dim d = t->dims[t->rank - 1];
    t->dims[t->rank - 1] = t->dims[t->rank - 2];
    t->dims[t->rank - 2] = d;
}

static enum mlo_status infer_product(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_type a = *mlo_op_in(node, 0), b = *mlo_op_in(node, 1);
    struct activation act;
    bool gemm = strcmp(node->op_type, "FusedGemm") == 0;
    MLO_TRY(read_activation(node, &act, err));
    if (gemm) {
        MLO_TRY(mlo_op_want_rank(node, 0, 2, err));
        MLO_TRY(mlo_op_want_rank(node, 1, 2, err));
    }
    if (mlo_node_attr_i(node, "transBatchA", 0) || mlo_node_attr_i(node, "transBatchB", 0)) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "attributes 'transBatchA' and 'transBatchB'");
        goto out;
    }
    if (mlo_node_attr_i(node, "transA", 0))
        swap_last(&a);
    if (mlo_node_attr_i(node, "transB", 0))
        swap_last(&b);
    if (a.dtype && b.dtype && a.dtype != b.dtype) {
        status = mlo_error_set(err, MLO_EINVAL, "input 1 is %s, and input 0 %s", mlo_dtype_name(b.dtype),
                               mlo_dtype_name(a.dtype));
        goto out;
    }
    out[0].dtype = a.dtype;
    MLO_TRY(mlo_matmul_infer(&a, &b, &out[0], err));
    MLO_TRY(mlo_op_want_broadcast(node, gemm ? 2 : -1, &out[0], err));
out:
    return status;
}

static enum mlo_status eval_product(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor shape[2] = {*in[0], *in[1]};
    const struct mlo_tensor *c = mlo_op_operand(node, in, 2);
    struct activation act;
    struct mlo_matmul_dims d;
    double *a = NULL, *b = NULL, *y = NULL, alpha = mlo_node_attr_f(node, "alpha", 1);
    double beta = mlo_node_attr_f(node, "beta", 1);
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(read_activation(node, &act, err));
    MLO_TRY(mlo_op_doubles(in[0], &a, err));
    MLO_TRY(mlo_op_doubles(in[1], &b, err));
    MLO_TRY(mlo_op_doubles(out[0], &y, err));
    bool turn[2] = {mlo_node_attr_i(node, "transA", 0) && in[0]->rank > 1,
                    mlo_node_attr_i(node, "transB", 0) && in[1]->rank > 1};
    for (int i = 0; i < 2; i++)
        if (turn[i]) {
            shape[i].dims[in[i]->rank - 1] = in[i]->dims[in[i]->rank - 2];
            shape[i].dims[in[i]->rank - 2] = in[i]->dims[in[i]->rank - 1];
        }
    MLO_TRY(mlo_matmul_init(&d, &shape[0], &shape[1], err));
    if (turn[0]) {
        d.each.a_row = 1;
        d.each.a_col = d.each.m;
    }
    if (turn[1]) {
        d.each.b_row = 1;
        d.each.b_col = d.each.k;
    }
    for (size_t i = 0; i < d.batches; i++) {
        size_t at_a, at_b;
        mlo_matmul_offsets(&d, i, &at_a, &at_b);
        mlo_matmul_f64(&d.each, a + at_a, b + at_b, y + i * (size_t)(d.each.m * d.each.n));
    }
    struct mlo_strides s;
    mlo_strides_init(&s, out[0], c ? c : out[0], c ? c : out[0]);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++, mlo_strides_next(&s)) {
        double bias = c ? beta * mlo_tensor_get_f64(c, s.offset[0]) : 0;
        mlo_tensor_set_f64(out[0], i, activate(&act, alpha * y[i] + bias));
    }
out:
    free(a);
    free(b);
    free(y);
    return status;
}

/* --- FusedConv: inputs x, weight, bias, and what is added before the activation ---------------------- */

static enum mlo_status infer_conv(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *z = mlo_op_in(node, 3);
    struct activation act;
    out[0].dtype = x->dtype;
    MLO_TRY(read_activation(node, &act, err));
    MLO_TRY(mlo_conv_infer(node, x, mlo_op_in(node, 1), mlo_op_in(node, 2), &out[0], err));
    bool fits = !z || z->rank < 0 || out[0].rank < 0 || z->rank == out[0].rank;
    for (int i = 0; fits && z && z->rank >= 0 && i < out[0].rank; i++)
        fits = z->dims[i].value < 0 || out[0].dims[i].value < 0 || z->dims[i].value == out[0].dims[i].value;
    if (!fits)
        status = mlo_error_set(err, MLO_EINVAL, "input 3 is not of the result's shape");
out:
    return status;
}

static enum mlo_status eval_conv(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *bias = mlo_op_operand(node, in, 2), *z = mlo_op_operand(node, in, 3);
    struct mlo_conv conv;
    struct activation act;
    double *x = NULL, *w = NULL, *y = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(read_activation(node, &act, err));
    MLO_TRY(mlo_conv_init(&conv, node, in[0], in[1], err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    MLO_TRY(mlo_op_doubles(in[1], &w, err));
    MLO_TRY(mlo_op_doubles(out[0], &y, err));
    size_t count = mlo_tensor_count(out[0]),
           spatial = (size_t)(conv.w.out[0] * conv.w.out[1] * conv.w.out[2]);
    for (size_t i = 0; bias && i < count; i++)
        y[i] = mlo_tensor_get_f64(bias, i / spatial % (size_t)conv.out_channels);
    mlo_conv_f64(&conv, x, w, y);
    for (size_t i = 0; i < count; i++)
        mlo_tensor_set_f64(out[0], i, activate(&act, y[i] + (z ? mlo_tensor_get_f64(z, i) : 0)));
out:
    free(x);
    free(w);
    free(y);
    return status;
}

enum { POINTWISE = MLO_OP_PURE | MLO_OP_ELEMENTWISE };
static const struct mlo_op rows[] = {
    {DOMAIN, "Gelu", 1, infer_gelu, eval_gelu, POINTWISE, 1, 1, 1, 1},
    {DOMAIN, "QuickGelu", 1, infer_gelu, eval_gelu, POINTWISE, 1, 1, 1, 1},
    {DOMAIN, "BiasGelu", 1, infer_gelu, eval_gelu, POINTWISE, 2, 2, 1, 1},
    {DOMAIN, "FastGelu", 1, infer_gelu, eval_gelu, POINTWISE, 1, 2, 1, 1},
    {DOMAIN, "FusedMatMul", 1, infer_product, eval_product, MLO_OP_PURE, 2, 2, 1, 1},
    {DOMAIN, "FusedGemm", 1, infer_product, eval_product, MLO_OP_PURE, 2, 3, 1, 1},
    {DOMAIN, "FusedConv", 1, infer_conv, eval_conv, MLO_OP_PURE | MLO_OP_FLOPS_MAC, 2, 4, 1, 1},
};
const struct mlo_op_family mlo_ops_ms_fused = {rows, MLO_COUNT(rows)};
