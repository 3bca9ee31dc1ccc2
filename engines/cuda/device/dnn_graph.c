/* Steps as cuDNN's operation graphs. The order in a convolution's epilogue is the one for which cuDNN has
 * precompiled engines: [scale], residual, bias, activation. */
#include "engines/cuda/device/dnn_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- scopes --------------------------------------------------------------------------------------------- */

enum mlo_status dnn_scope_init(struct dnn_scope *s, struct mlo_error *err)
{
    *s = (struct dnn_scope){0};
    return cuda_get_cudnn(&s->api, err);
}

void dnn_scope_clear(struct dnn_scope *s)
{
    for (size_t i = s->count; i-- > 0;)
        s->api->cudnnBackendDestroyDescriptor(s->all[i]);
    free(s->all);
    *s = (struct dnn_scope){0};
}

void dnn_scope_retry(struct dnn_scope *s)
{
    s->failed = s->no_memory = false;
    s->status = CUDNN_STATUS_SUCCESS;
}

static void fail(struct dnn_scope *s, cudnnStatus_t status, const char *what)
{
    char detail[400] = "";
    s->api->cudnnGetLastErrorString(detail, sizeof detail);
    s->failed = true;
    s->status = status;
    snprintf(s->what, sizeof s->what, "%s: %s%s%s", what, s->api->cudnnGetErrorString(status),
             detail[0] ? ": " : "", detail);
}

cudnnBackendDescriptor_t dnn_new(struct dnn_scope *s, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (s->failed)
        return NULL;
    if (s->count == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        cudnnBackendDescriptor_t *grown = realloc(s->all, cap * sizeof(cudnnBackendDescriptor_t));
        if (!grown) {
            s->failed = s->no_memory = true;
            return NULL;
        }
        s->all = grown;
        s->cap = cap;
    }
    cudnnStatus_t status = s->api->cudnnBackendCreateDescriptor(type, &d);
    if (status != CUDNN_STATUS_SUCCESS) {
        fail(s, status, "making a descriptor");
        return NULL;
    }
    return s->all[s->count++] = d;
}

void dnn_set(struct dnn_scope *s, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
             cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    char what[64];
    if (s->failed)
        return;
    cudnnStatus_t status = s->api->cudnnBackendSetAttribute(d, name, type, count, values);
    if (status == CUDNN_STATUS_SUCCESS)
        return;
    snprintf(what, sizeof what, "setting attribute %d", (int)name);
    fail(s, status, what);
}

void dnn_finalize(struct dnn_scope *s, cudnnBackendDescriptor_t d)
{
    cudnnStatus_t status = s->failed ? CUDNN_STATUS_SUCCESS : s->api->cudnnBackendFinalize(d);
    if (status != CUDNN_STATUS_SUCCESS)
        fail(s, status, "finishing a description");
}

int64_t dnn_get(const struct dnn_scope *s, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t max, void *values)
{
    int64_t count = 0;
    if (s->failed ||
        s->api->cudnnBackendGetAttribute(d, name, type, max, &count, values) != CUDNN_STATUS_SUCCESS)
        return 0;
    return count;
}

enum mlo_status dnn_status(const struct dnn_scope *s, struct mlo_error *err)
{
    if (!s->failed)
        return MLO_OK;
    if (s->no_memory || s->status == CUDNN_STATUS_ALLOC_FAILED)
        return mlo_error_nomem(err);
    enum mlo_status status = s->status == CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH ? MLO_ESTALE
                             : s->status / 1000 == 3 || s->status / 1000 == 2      ? MLO_EUNSUPPORTED
                                                                                   : MLO_EIO;
    return mlo_error_set(err, status, "cuDNN: %s", s->what);
}

/* --- tensors -------------------------------------------------------------------------------------------- */

struct build {
    struct dnn_scope *s;
    int rank;
    int64_t next_virtual, next_in;
    cudnnBackendDescriptor_t ops[DNN_OPS_MAX];
    int count;
};

static const struct {
    enum mlo_dtype dtype;
    cudnnDataType_t type;
} types[] = {
    {MLO_FLOAT32, CUDNN_DATA_FLOAT},         {MLO_FLOAT16, CUDNN_DATA_HALF},
    {MLO_BFLOAT16, CUDNN_DATA_BFLOAT16},     {MLO_INT8, CUDNN_DATA_INT8},
    {MLO_FLOAT8E4M3FN, CUDNN_DATA_FP8_E4M3}, {MLO_FLOAT8E5M2, CUDNN_DATA_FP8_E5M2},
};

static bool type_of(enum mlo_dtype dtype, cudnnDataType_t *out)
{
    for (size_t i = 0; i < MLO_COUNT(types); i++)
        if (types[i].dtype == dtype) {
            *out = types[i].type;
            return true;
        }
    return false;
}

/* For what an operand's description is refused with, as cuDNN would. */
static void refuse(struct dnn_scope *s, const char *what)
{
    if (s->failed)
        return;
    s->failed = true;
    s->status = CUDNN_STATUS_NOT_SUPPORTED;
    snprintf(s->what, sizeof s->what, "%s", what);
}

struct shape {
    cudnnDataType_t type;
    int64_t dims[CUDA_RANK + 1], strides[CUDA_RANK + 1];
};

static cudnnBackendDescriptor_t tensor(struct build *b, const struct shape *t, int64_t uid, bool is_virtual,
                                       bool by_value)
{
    enum { ALIGN = 16 };
    int64_t align = ALIGN;
    cudnnBackendDescriptor_t d = dnn_new(b->s, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    dnn_set(b->s, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type);
    dnn_set(b->s, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, b->rank, t->dims);
    dnn_set(b->s, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, b->rank, t->strides);
    dnn_set(b->s, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    dnn_set(b->s, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (is_virtual)
        dnn_set(b->s, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value)
        dnn_set(b->s, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    dnn_finalize(b->s, d);
    return d;
}

/* A value as cuDNN wants it: a convolution over one dimension has a second one of size 1. */
static void shape_of(struct build *b, const struct cuda_tensor *t, struct shape *out)
{
    *out = (struct shape){0};
    if (!type_of(t->dtype, &out->type))
        refuse(b->s, "a type that it does not know");
    if (t->rank != b->rank && !(t->rank == 3 && b->rank == 4)) {
        refuse(b->s, "a rank that it does not know");
        return;
    }
    for (int i = 0, from = 0; i < b->rank; i++) {
        bool added = t->rank < b->rank && i == 2;
        out->dims[i] = added ? 1 : t->dims[from];
        out->strides[i] = added ? t->strides[2] * t->dims[2] : t->strides[from];
        from += !added;
    }
}

static cudnnBackendDescriptor_t operand(struct build *b, const struct cuda_tensor *t)
{
    struct shape shape;
    shape_of(b, t, &shape);
    return tensor(b, &shape, b->next_in++, false, false);
}

/* One number a channel. */
static cudnnBackendDescriptor_t per_channel(struct build *b, int64_t channels, cudnnDataType_t type)
{
    struct shape shape = {.type = type};
    for (int i = 0; i < b->rank; i++) {
        shape.dims[i] = i == 1 ? channels : 1;
        shape.strides[i] = i == 1 ? 1 : channels;
    }
    return tensor(b, &shape, b->next_in++, false, false);
}

static cudnnBackendDescriptor_t scalar(struct build *b, int index)
{
    struct shape shape = {.type = CUDNN_DATA_FLOAT};
    for (int i = 0; i < b->rank; i++)
        shape.dims[i] = shape.strides[i] = 1;
    return tensor(b, &shape, DNN_UID_SCALAR + index, false, true);
}

static cudnnBackendDescriptor_t between(struct build *b, const struct shape *like, cudnnDataType_t type)
{
    struct shape shape = *like;
    shape.type = type;
    return tensor(b, &shape, b->next_virtual++, true, false);
}

/* --- operations ----------------------------------------------------------------------------------------- */

static void add_op(struct build *b, cudnnBackendDescriptor_t op)
{
    dnn_finalize(b->s, op);
    if (b->count == DNN_OPS_MAX)
        refuse(b->s, "too many operations");
    else
        b->ops[b->count++] = op;
}

/* y = f(x, w); w NULL: of one argument. `clip`: bounds of a ReLU. */
static void pointwise(struct build *b, cudnnPointwiseMode_t mode, const double *clip,
                      cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t w, cudnnBackendDescriptor_t y)
{
    struct dnn_scope *s = b->s;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = dnn_new(s, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    dnn_set(s, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    dnn_set(s, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    if (clip && isfinite(clip[0]))
        dnn_set(s, d, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_TYPE_DOUBLE, 1, &clip[0]);
    if (clip && isfinite(clip[1]))
        dnn_set(s, d, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, CUDNN_TYPE_DOUBLE, 1, &clip[1]);
    dnn_finalize(s, d);
    cudnnBackendDescriptor_t op = dnn_new(s, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    if (w)
        dnn_set(s, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    add_op(b, op);
}

static void convolution(struct build *b, const struct cuda_conv *c, cudnnBackendDescriptor_t x,
                        cudnnBackendDescriptor_t w, cudnnBackendDescriptor_t y, cudnnDataType_t sums)
{
    struct dnn_scope *s = b->s;
    int64_t spatial = b->rank - 2, before[3], after[3], stride[3], dilation[3];
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    float one = 1, zero = 0;
    int skipped = (int)spatial - c->spatial; /* the dimension that was added comes first */
    for (int i = 0; i < spatial; i++) {
        bool added = i < skipped;
        before[i] = added ? 0 : c->pad_before[i - skipped];
        after[i] = added ? 0 : c->pad_after[i - skipped];
        stride[i] = added ? 1 : c->stride[i - skipped];
        dilation[i] = added ? 1 : c->dilation[i - skipped];
    }
    cudnnBackendDescriptor_t d = dnn_new(s, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    dnn_set(s, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    dnn_set(s, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    dnn_set(s, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    dnn_set(s, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, spatial, before);
    dnn_set(s, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, spatial, after);
    dnn_set(s, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, spatial, stride);
    dnn_set(s, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, spatial, dilation);
    dnn_finalize(s, d);
    cudnnBackendDescriptor_t op = dnn_new(s, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
    add_op(b, op);
}

static const struct {
    enum cuda_activation activation;
    cudnnPointwiseMode_t mode;
} activations[] = {
    {CUDA_ACT_RELU, CUDNN_POINTWISE_RELU_FWD},
    {CUDA_ACT_CLIP, CUDNN_POINTWISE_RELU_FWD},
    {CUDA_ACT_SIGMOID, CUDNN_POINTWISE_SIGMOID_FWD},
    {CUDA_ACT_TANH, CUDNN_POINTWISE_TANH_FWD},
    {CUDA_ACT_GELU, CUDNN_POINTWISE_GELU_FWD},
    {CUDA_ACT_GELU_TANH, CUDNN_POINTWISE_GELU_APPROX_TANH_FWD},
    {CUDA_ACT_SWISH, CUDNN_POINTWISE_SWISH_FWD},
};

/* What an epilogue does, in order; each stage writes what the next one reads, the last one y. */
struct stage {
    cudnnPointwiseMode_t mode;
    cudnnBackendDescriptor_t with;
    const double *clip;
};

static void conv_graph(struct build *b, const struct cuda_schedule *schedule, const struct cuda_step *step)
{
    const struct cuda_conv *c = step->conv;
    struct shape y;
    struct stage stages[8];
    int count = 0, k = 0;
    double clip[2] = {(double)c->low, (double)c->high};
    bool integer = c->x.dtype == MLO_INT8;
    cudnnDataType_t sums = integer ? CUDNN_DATA_INT32 : CUDNN_DATA_FLOAT;
    cudnnDataType_t bias_type = CUDNN_DATA_FLOAT;
    b->rank = 2 + MLO_MAX(c->spatial, 2);
    cudnnBackendDescriptor_t x = operand(b, &c->x), w = operand(b, &c->w);
    shape_of(b, &c->y, &y);
    int residual_uid = b->next_in;
    b->next_in += c->has_residual;
    cudnnBackendDescriptor_t residual = NULL, scaled = NULL, bias = NULL;
    if (c->has_bias) { /* float32, or as short as y: the slot says which */
        if (schedule->slots[step->in[2 + c->has_residual]].size_bytes < 4 * (size_t)c->y.dims[1])
            bias_type = y.type;
        bias = per_channel(b, c->y.dims[1], bias_type);
    }
    if (c->has_scale)
        stages[count++] =
            (struct stage){CUDNN_POINTWISE_MUL, per_channel(b, c->y.dims[1], CUDNN_DATA_FLOAT), NULL};
    if (c->has_residual) {
        struct shape r;
        shape_of(b, &c->residual, &r);
        residual = tensor(b, &r, residual_uid, false, false);
        if (c->residual.dtype == MLO_INT8 && c->residual_scale != 1) {
            scaled = between(b, &y, CUDNN_DATA_FLOAT);
            stages[count++] = (struct stage){CUDNN_POINTWISE_ADD, scaled, NULL};
        } else {
            stages[count++] = (struct stage){CUDNN_POINTWISE_ADD, residual, NULL};
        }
    }
    if (c->has_bias)
        stages[count++] = (struct stage){CUDNN_POINTWISE_ADD, bias, NULL};
    for (size_t i = 0; i < MLO_COUNT(activations) && c->activation != CUDA_ACT_NONE; i++)
        if (activations[i].activation == c->activation)
            stages[count++] =
                (struct stage){activations[i].mode, NULL, c->activation == CUDA_ACT_CLIP ? clip : NULL};
    if (integer && !count)
        stages[count++] = (struct stage){CUDNN_POINTWISE_IDENTITY, NULL, NULL};
    cudnnBackendDescriptor_t out = tensor(b, &y, DNN_UID_OUT, false, false);
    cudnnBackendDescriptor_t at = count ? between(b, &y, sums) : out;
    convolution(b, c, x, w, at, sums);
    if (scaled)
        pointwise(b, CUDNN_POINTWISE_MUL, NULL, residual, scalar(b, 0), scaled);
    for (; k < count; k++) {
        cudnnBackendDescriptor_t next = k + 1 == count ? out : between(b, &y, CUDNN_DATA_FLOAT);
        pointwise(b, stages[k].mode, stages[k].clip, at, stages[k].with, next);
        at = next;
    }
}

static void fused_attention(struct build *b, const struct cuda_attention *a)
{
    struct dnn_scope *s = b->s;
    struct shape o;
    cudnnBackendDescriptor_t q = operand(b, &a->q), k = operand(b, &a->k), v = operand(b, &a->v);
    shape_of(b, &a->o, &o);
    cudnnBackendDescriptor_t out = tensor(b, &o, DNN_UID_OUT, false, false), scale = scalar(b, 0);
    cudnnBackendDescriptor_t op = dnn_new(s, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &q);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &k);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &out);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &scale);
    add_op(b, op);
}

static void product(struct build *b, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t w,
                    cudnnBackendDescriptor_t y)
{
    struct dnn_scope *s = b->s;
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = dnn_new(s, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    dnn_set(s, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    dnn_finalize(s, d);
    cudnnBackendDescriptor_t op = dnn_new(s, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d);
    add_op(b, op);
}

static void reduction(struct build *b, cudnnReduceTensorOp_t which, cudnnBackendDescriptor_t x,
                      cudnnBackendDescriptor_t y)
{
    struct dnn_scope *s = b->s;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = dnn_new(s, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    dnn_set(s, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    dnn_set(s, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &which);
    dnn_finalize(s, d);
    cudnnBackendDescriptor_t op = dnn_new(s, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    dnn_set(s, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d);
    add_op(b, op);
}

static void dense(struct shape *t, cudnnDataType_t type, const int64_t dims[4])
{
    *t = (struct shape){.type = type};
    for (int i = 3; i >= 0; i--) {
        t->dims[i] = dims[i];
        t->strides[i] = i == 3 ? 1 : t->strides[i + 1] * dims[i + 1];
    }
}

/* With an additive mask: softmax spelled out between two products (Dao et al. 2022 is how it is computed). */
static void masked_attention(struct build *b, const struct cuda_attention *a)
{
    struct shape k, o, scores, row;
    struct cuda_tensor turned = a->k;
    int64_t dims[4] = {a->q.dims[0], a->q.dims[1], a->q.dims[2], a->k.dims[2]};
    int64_t row_dims[4] = {dims[0], dims[1], dims[2], 1};
    turned.dims[2] = a->k.dims[3];
    turned.dims[3] = a->k.dims[2];
    turned.strides[2] = a->k.strides[3];
    turned.strides[3] = a->k.strides[2];
    cudnnBackendDescriptor_t qd = operand(b, &a->q);
    shape_of(b, &turned, &k);
    cudnnBackendDescriptor_t kd = tensor(b, &k, b->next_in++, false, false), vd = operand(b, &a->v);
    cudnnBackendDescriptor_t md = operand(b, &a->mask);
    shape_of(b, &a->o, &o);
    dense(&scores, CUDNN_DATA_FLOAT, dims);
    dense(&row, CUDNN_DATA_FLOAT, row_dims);
    cudnnBackendDescriptor_t od = tensor(b, &o, DNN_UID_OUT, false, false), at[5], max, sum, weights;
    for (size_t i = 0; i < MLO_COUNT(at); i++)
        at[i] = between(b, &scores, CUDNN_DATA_FLOAT);
    max = between(b, &row, CUDNN_DATA_FLOAT);
    sum = between(b, &row, CUDNN_DATA_FLOAT);
    weights = between(b, &scores, o.type);
    product(b, qd, kd, at[0]);
    pointwise(b, CUDNN_POINTWISE_MUL, NULL, at[0], scalar(b, 0), at[1]);
    pointwise(b, CUDNN_POINTWISE_ADD, NULL, at[1], md, at[2]);
    reduction(b, CUDNN_REDUCE_TENSOR_MAX, at[2], max);
    pointwise(b, CUDNN_POINTWISE_SUB, NULL, at[2], max, at[3]);
    pointwise(b, CUDNN_POINTWISE_EXP, NULL, at[3], NULL, at[4]);
    reduction(b, CUDNN_REDUCE_TENSOR_ADD, at[4], sum);
    pointwise(b, CUDNN_POINTWISE_DIV, NULL, at[4], sum, weights);
    product(b, weights, vd, od);
}

void dnn_scalars_of(const struct cuda_step *step, struct dnn_scalars *out)
{
    *out = (struct dnn_scalars){0};
    if (step->kind == CUDA_STEP_ATTENTION)
        out->values[out->count++] = step->attention->scale;
    else if (step->conv->has_residual && step->conv->residual.dtype == MLO_INT8 &&
             step->conv->residual_scale != 1)
        out->values[out->count++] = step->conv->residual_scale;
}

enum mlo_status dnn_graph(struct dnn_scope *s, const struct cuda_schedule *schedule,
                          const struct cuda_step *step, cudnnBackendDescriptor_t *out, struct mlo_error *err)
{
    struct build b = {.s = s, .rank = 4, .next_virtual = DNN_UID_VIRTUAL, .next_in = DNN_UID_IN};
    if (step->kind == CUDA_STEP_CONV)
        conv_graph(&b, schedule, step);
    else if (step->attention->causal)
        refuse(s, "causal attention, which is not described to it");
    else if (step->attention->has_mask)
        masked_attention(&b, step->attention);
    else
        fused_attention(&b, step->attention);
    *out = dnn_new(s, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    dnn_set(s, *out, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.count, b.ops);
    dnn_finalize(s, *out);
    return dnn_status(s, err);
}
