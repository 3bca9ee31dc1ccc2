/* Ops that carry quantization parameters, as DequantizeLinear, the op, QuantizeLinear. */
#include <string.h>

#include "engines/cpu/fast/normalise_impl.h"

/* A row of the table of ops: where the operands are. */
struct form {
    const char *domain, *op;
    bool (*fits)(const struct mlo_node *node);
    struct mlo_value *(*build)(struct norm_site *site);
};

static bool is_scalar(const struct mlo_node *node, int i)
{
    const struct mlo_value *v = mlo_node_input(node, i);
    size_t count;
    return !v || (cpu_value_dims(v, NULL, &count) && count == 1);
}

/* Scalar parameters at `scale` and behind it. */
static bool per_tensor(const struct mlo_node *node, int scale)
{
    const struct mlo_value *v = mlo_node_input(node, scale);
    return v && v->type.dtype == MLO_FLOAT32 && is_scalar(node, scale) && is_scalar(node, scale + 1);
}

/* Constant weights at i, with constant parameters behind them: one, or one for each of `count`. */
static bool weights_fit(const struct mlo_node *node, int i, int64_t count)
{
    const struct mlo_tensor *w = mlo_node_const(node, i), *scale = mlo_node_const(node, i + 1),
                            *zero = mlo_node_const(node, i + 2);
    if (!w || !scale || scale->dtype != MLO_FLOAT32 || (mlo_node_input(node, i + 2) && !zero))
        return false;
    int64_t scales = (int64_t)mlo_tensor_count(scale), zeros = zero ? (int64_t)mlo_tensor_count(zero) : 1;
    return (scales == 1 || scales == count) && (zeros == 1 || zeros == count);
}

/* The real bias: int32 counts of x_scale * w_scale, times `factor`. */
static struct mlo_value *real_bias(struct norm_site *site, struct mlo_value *bias,
                                   const struct mlo_tensor *x_scale, const struct mlo_tensor *w_scale)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    const struct mlo_tensor *b = bias->constant;
    size_t count = mlo_tensor_count(b), scales = mlo_tensor_count(w_scale);
    if (mlo_tensor_init(&t, MLO_FLOAT32, 1, (int64_t[]){(int64_t)count}, &err) != MLO_OK)
        return NULL;
    for (size_t i = 0; i < count; i++)
        ((float *)t.data)[i] = (float)(mlo_tensor_get_f64(b, i) * mlo_tensor_get_f64(x_scale, 0) *
                                       mlo_tensor_get_f64(w_scale, scales == 1 ? 0 : i));
    return norm_constant(site, &t);
}

static bool bias_fits(const struct mlo_node *node, int bias, int x_scale, int64_t count)
{
    const struct mlo_tensor *b = mlo_node_const(node, bias);
    if (!mlo_node_input(node, bias))
        return true;
    return b && b->dtype == MLO_INT32 && (int64_t)mlo_tensor_count(b) == count &&
           mlo_node_const(node, x_scale);
}

/* --- QLinearConv: x, w, y with parameters behind each, bias ------------------------------------------------
 */

static bool conv_fits(const struct mlo_node *node)
{
    const struct mlo_tensor *w = mlo_node_const(node, 3);
    return w && w->rank > 0 && per_tensor(node, 1) && weights_fit(node, 3, w->dims[0]) &&
           per_tensor(node, 6) && bias_fits(node, 8, 1, w->dims[0]);
}

static struct mlo_value *conv_build(struct norm_site *s)
{
    struct mlo_value *x = norm_dequantize(s, s->in[0], s->in[1], s->in[2]);
    struct mlo_value *w = norm_weights(s, s->in[3], s->in[4], s->in[5], 0), *b = norm_in(s, 8);
    if (b && !(b = real_bias(s, b, s->in[1]->constant, s->in[4]->constant)))
        return NULL;
    struct mlo_value *y =
        norm_add(s, "Conv", "", (struct mlo_value *[]){x, w, b}, b ? 3 : 2, MLO_FLOAT32, s->out[0], NULL);
    if (!y)
        return NULL;
    norm_share_attrs(s, y->producer);
    return norm_quantize(s, y, s->in[6], s->in[7], s->out[0]);
}

/* --- QLinearMatMul: a, b, y with parameters behind each ----------------------------------------------------
 */

static int64_t columns_of(const struct mlo_tensor *b)
{
    return b && b->rank == 2 ? b->dims[1] : -1;
}

static bool matmul_fits(const struct mlo_node *node)
{
    return per_tensor(node, 1) && per_tensor(node, 6) &&
           (per_tensor(node, 4) || weights_fit(node, 3, columns_of(mlo_node_const(node, 3))));
}

static struct mlo_value *matmul_build(struct norm_site *s)
{
    struct mlo_value *a = norm_dequantize(s, s->in[0], s->in[1], s->in[2]), *b;
    bool constant = s->in[3]->constant && s->in[3]->constant->rank == 2 && s->in[4]->constant &&
                    (!s->in[5] || s->in[5]->constant);
    b = constant ? norm_weights(s, s->in[3], s->in[4], s->in[5], 1)
                 : norm_dequantize(s, s->in[3], s->in[4], s->in[5]);
    struct mlo_value *y =
        norm_add(s, "MatMul", "", (struct mlo_value *[]){a, b}, 2, MLO_FLOAT32, s->out[0], NULL);
    return y ? norm_quantize(s, y, s->in[6], s->in[7], s->out[0]) : NULL;
}

/* --- QGemm: A, B with parameters, C in int32, y's parameters (none: real results) --------------------------
 */

static int64_t gemm_columns(const struct mlo_node *node)
{
    const struct mlo_tensor *b = mlo_node_const(node, 3);
    return b && b->rank == 2 ? b->dims[!mlo_node_attr_i(node, "transB", 0)] : -1;
}

static bool gemm_fits(const struct mlo_node *node)
{
    int64_t n = gemm_columns(node);
    return n >= 0 && per_tensor(node, 1) && weights_fit(node, 3, n) && bias_fits(node, 6, 1, n) &&
           (!mlo_node_input(node, 7) || per_tensor(node, 7)) && !mlo_node_attr_i(node, "transA", 0);
}

static struct mlo_value *gemm_build(struct norm_site *s)
{
    bool turned = mlo_node_attr_i(s->old, "transB", 0) != 0;
    float alpha = mlo_node_attr_f(s->old, "alpha", 1.0f);
    struct mlo_value *a = norm_dequantize(s, s->in[0], s->in[1], s->in[2]);
    struct mlo_value *b = norm_weights(s, s->in[3], s->in[4], s->in[5], turned ? 0 : 1), *c = norm_in(s, 6);
    struct mlo_value *scale = norm_in(s, 7);
    if (c && !(c = real_bias(s, c, s->in[1]->constant, s->in[4]->constant)))
        return NULL;
    struct mlo_value *y = norm_add(s, "Gemm", "", (struct mlo_value *[]){a, b, c}, c ? 3 : 2, MLO_FLOAT32,
                                   s->out[0], scale ? NULL : s->out[0]);
    if (!y || !mlo_node_set_i(y->producer, "transB", turned) ||
        !mlo_node_set_f(y->producer, "alpha", alpha) ||
        !mlo_node_set_f(y->producer, "beta", alpha)) /* the integer bias is added before alpha */
        return NULL;
    return scale ? norm_quantize(s, y, scale, norm_in(s, 8), s->out[0]) : y;
}

/* --- elementwise and pooling -------------------------------------------------------------------------------
 */

static bool binary_fits(const struct mlo_node *node)
{
    return per_tensor(node, 1) && per_tensor(node, 4) && per_tensor(node, 6);
}

static struct mlo_value *binary_build(struct norm_site *s)
{
    struct mlo_value *a = norm_dequantize(s, s->in[0], s->in[1], s->in[2]);
    struct mlo_value *b = norm_dequantize(s, s->in[3], s->in[4], s->in[5]);
    struct mlo_value *y = norm_add(s, s->old->op_type + strlen("QLinear"), "", (struct mlo_value *[]){a, b},
                                   2, MLO_FLOAT32, s->out[0], NULL);
    return y ? norm_quantize(s, y, s->in[6], norm_in(s, 7), s->out[0]) : NULL;
}

static bool unary_fits(const struct mlo_node *node)
{
    return per_tensor(node, 1) && per_tensor(node, 3) && !mlo_node_attr_i(node, "channels_last", 0) &&
           mlo_node_attr_i(node, "opset", 13) >= 13;
}

static struct mlo_value *unary_build(struct norm_site *s)
{
    struct mlo_value *x = norm_dequantize(s, s->in[0], s->in[1], s->in[2]);
    struct mlo_value *y =
        norm_add(s, s->old->op_type + strlen("QLinear"), "", &x, 1, MLO_FLOAT32, s->out[0], NULL);
    if (!y)
        return NULL;
    norm_share_attrs(s, y->producer);
    return norm_quantize(s, y, s->in[3], norm_in(s, 4), s->out[0]);
}

static bool concat_fits(const struct mlo_node *node)
{
    bool ok = per_tensor(node, 0);
    for (int i = 2; i < node->input_count; i += 3)
        ok &= per_tensor(node, i + 1);
    return ok;
}

static struct mlo_value *concat_build(struct norm_site *s)
{
    int count = (s->in_count - 2) / 3;
    struct mlo_value **parts = mlo_arena_calloc(s->plan->arena, (size_t)count + 1, sizeof *parts);
    for (int i = 0; parts && i < count; i++)
        if (!(parts[i] = norm_dequantize(s, s->in[3 * i + 2], s->in[3 * i + 3], norm_in(s, 3 * i + 4))))
            return NULL;
    struct mlo_value *y =
        parts ? norm_add(s, "Concat", "", parts, count, MLO_FLOAT32, s->out[0], NULL) : NULL;
    if (!y)
        return NULL;
    norm_share_attrs(s, y->producer);
    return norm_quantize(s, y, s->in[0], s->in[1], s->out[0]);
}

/* com.microsoft's own forms of the two ops that everything else is written in */
static bool qdq_fits(const struct mlo_node *node)
{
    enum mlo_dtype dtype = mlo_node_input(node, 1) ? node->inputs[1]->type.dtype : MLO_DTYPE_NONE;
    return dtype == MLO_FLOAT32 && node->input_count >= 2;
}

static struct mlo_value *qdq_build(struct norm_site *s)
{
    struct mlo_value *y =
        norm_add(s, s->old->op_type, "", s->in, s->in_count, s->out[0]->type.dtype, s->out[0], s->out[0]);
    if (y)
        norm_share_attrs(s, y->producer);
    return y;
}

static const struct form forms[] = {
    {"", "QLinearConv", conv_fits, conv_build},
    {"", "QLinearMatMul", matmul_fits, matmul_build},
    {"com.microsoft", "QGemm", gemm_fits, gemm_build},
    {"com.microsoft", "QLinearAdd", binary_fits, binary_build},
    {"com.microsoft", "QLinearMul", binary_fits, binary_build},
    {"com.microsoft", "QLinearLeakyRelu", unary_fits, unary_build},
    {"com.microsoft", "QLinearSigmoid", unary_fits, unary_build},
    {"com.microsoft", "QLinearSoftmax", unary_fits, unary_build},
    {"com.microsoft", "QLinearAveragePool", unary_fits, unary_build},
    {"com.microsoft", "QLinearGlobalAveragePool", unary_fits, unary_build},
    {"com.microsoft", "QLinearConcat", concat_fits, concat_build},
    {"com.microsoft", "QuantizeLinear", qdq_fits, qdq_build},
    {"com.microsoft", "DequantizeLinear", qdq_fits, qdq_build},
};

enum mlo_status norm_qlinear(struct mlo_plan *plan, struct mlo_node *node, bool *done, struct mlo_error *err)
{
    struct norm_site site;
    for (size_t i = 0; i < MLO_COUNT(forms); i++) {
        if (strcmp(node->op_type, forms[i].op) != 0 || strcmp(node->domain, forms[i].domain) != 0 ||
            !cpu_value_dims(node->outputs[0], NULL, NULL) || !forms[i].fits(node))
            continue;
        if (!norm_begin(plan, node, &site) || !forms[i].build(&site))
            return mlo_error_nomem(err);
        *done = true;
        return MLO_OK;
    }
    return MLO_OK;
}

/* Weights of Q/DQ graphs that are not int8 with zero points 0, but stand for such: uint8 around 128. */
enum mlo_status norm_qdq_weights(struct mlo_plan *plan, struct mlo_node *node, bool *done,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *w = mlo_node_const(node, 0), *zero = mlo_node_const(node, 2);
    const struct mlo_tensor *scale = mlo_node_const(node, 1);
    struct mlo_tensor shifted = {0};
    bool fits;
    if (!mlo_node_is(node, "DequantizeLinear") || !w || !scale || scale->dtype != MLO_FLOAT32 ||
        mlo_node_attr_i(node, "block_size", 0) || (mlo_node_input(node, 2) && !zero) ||
        (w->dtype != MLO_UINT8 && (w->dtype != MLO_INT8 || !zero)))
        return MLO_OK;
    int64_t axis = mlo_node_attr_i(node, "axis", 1);
    axis += axis < 0 ? w->rank : 0;
    bool changes = w->dtype == MLO_UINT8;
    for (size_t i = 0; zero && i < mlo_tensor_count(zero); i++)
        changes |= mlo_tensor_get_i64(zero, i) != 0;
    if (!changes || axis < 0)
        return MLO_OK;
    MLO_TRY(norm_shift(w, zero, (int)axis, &shifted, &fits, err));
    if (!fits)
        return MLO_OK;
    struct mlo_value *value = mlo_graph_add_constant_take(node->graph, "weights", &shifted);
    if (!value || !mlo_node_set_input(node, 0, value) ||
        (node->input_count > 2 && !mlo_node_set_input(node, 2, NULL)))
        status = mlo_error_nomem(err);
    MLO_UNUSED(plan);
    MLO_UNUSED(done); /* the same node, in another form */
out:
    return status;
}
