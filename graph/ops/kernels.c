#include "graph/ops/kernels_impl.h"

#include "graph/ops/ops_impl.h"

enum mlo_status mlo_conv_init(struct mlo_conv *conv, const struct mlo_node *node, const struct mlo_tensor *x,
                              const struct mlo_tensor *weight, struct mlo_error *err)
{
    struct mlo_window w;
    int spatial = x->rank - 2;
    enum mlo_status status = mlo_window_init(&w, node, spatial, x->dims + 2, weight->dims + 2, err);
    if (status != MLO_OK)
        return status;
    mlo_window_widen(&w);
    *conv = (struct mlo_conv){.w = w,
                              .batch = x->dims[0],
                              .groups = mlo_node_attr_i(node, "group", 1),
                              .in_channels = x->dims[1],
                              .out_channels = weight->dims[0]};
    return MLO_OK;
}

/* Output positions o whose input position o * stride + shift lies inside of [0, in). */
static void valid_range(int64_t shift, int64_t stride, int64_t in, int64_t out, int64_t *first, int64_t *end)
{
    *first = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *end = in > shift ? (in - shift - 1) / stride + 1 : 0;
    *end = MLO_MIN(*end, out);
}

/* One kernel element over one channel pair: y += weight * x, shifted. */
#define DEFINE_CONV(T, suffix)                                                                               \
    static void tap_##suffix(const struct mlo_window *w, const int64_t *at, T weight, const T *x, T *y)      \
    {                                                                                                        \
        int64_t shift[3], first[3], end[3];                                                                  \
        for (int i = 0; i < 3; i++) {                                                                        \
            shift[i] = at[i] * w->dilation[i] - w->pad_begin[i];                                             \
            valid_range(shift[i], w->stride[i], w->in[i], w->out[i], &first[i], &end[i]);                    \
        }                                                                                                    \
        for (int64_t d = first[0]; d < end[0]; d++)                                                          \
            for (int64_t h = first[1]; h < end[1]; h++) {                                                    \
                const T *from =                                                                              \
                    x + ((d * w->stride[0] + shift[0]) * w->in[1] + h * w->stride[1] + shift[1]) * w->in[2]; \
                T *to = y + (d * w->out[1] + h) * w->out[2];                                                 \
                if (w->stride[2] == 1)                                                                       \
                    for (int64_t c = first[2]; c < end[2]; c++)                                              \
                        to[c] += weight * from[c + shift[2]];                                                \
                else                                                                                         \
                    for (int64_t c = first[2]; c < end[2]; c++)                                              \
                        to[c] += weight * from[c * w->stride[2] + shift[2]];                                 \
            }                                                                                                \
    }                                                                                                        \
    void mlo_conv_##suffix(const struct mlo_conv *conv, const T *x, const T *weight, T *y)                   \
    {                                                                                                        \
        const struct mlo_window *w = &conv->w;                                                               \
        int64_t in_size = w->in[0] * w->in[1] * w->in[2], out_size = w->out[0] * w->out[1] * w->out[2];      \
        int64_t ins = conv->in_channels / conv->groups, outs = conv->out_channels / conv->groups, at[3];     \
        for (int64_t n = 0; n < conv->batch; n++)                                                            \
            for (int64_t o = 0; o < conv->out_channels; o++) {                                               \
                const T *tap = weight + o * ins * w->kernel[0] * w->kernel[1] * w->kernel[2];                \
                const T *image = x + (n * conv->in_channels + o / outs * ins) * in_size;                     \
                T *result = y + (n * conv->out_channels + o) * out_size;                                     \
                for (int64_t c = 0; c < ins; c++)                                                            \
                    for (at[0] = 0; at[0] < w->kernel[0]; at[0]++)                                           \
                        for (at[1] = 0; at[1] < w->kernel[1]; at[1]++)                                       \
                            for (at[2] = 0; at[2] < w->kernel[2]; at[2]++)                                   \
                                tap_##suffix(w, at, *tap++, image + c * in_size, result);                    \
            }                                                                                                \
    }

/* clang-format off */
DEFINE_CONV(float, f32)
DEFINE_CONV(double, f64)
DEFINE_CONV(uint32_t, u32)
/* clang-format on */

#define DEFINE_MATMUL(T, suffix)                                                                             \
    void mlo_matmul_##suffix(const struct mlo_product *p, const T *a, const T *b, T *y)                      \
    {                                                                                                        \
        for (int64_t i = 0; i < p->m; i++)                                                                   \
            for (int64_t k = 0; k < p->k; k++) {                                                             \
                T left = a[i * p->a_row + k * p->a_col];                                                     \
                const T *right = b + k * p->b_row;                                                           \
                T *to = y + i * p->n;                                                                        \
                if (p->b_col == 1)                                                                           \
                    for (int64_t j = 0; j < p->n; j++)                                                       \
                        to[j] += left * right[j];                                                            \
                else                                                                                         \
                    for (int64_t j = 0; j < p->n; j++)                                                       \
                        to[j] += left * right[j * p->b_col];                                                 \
            }                                                                                                \
    }

/* clang-format off */
DEFINE_MATMUL(float, f32)
DEFINE_MATMUL(double, f64)
DEFINE_MATMUL(uint32_t, u32)
/* clang-format on */

enum mlo_status mlo_matmul_infer(const struct mlo_type *a, const struct mlo_type *b, struct mlo_type *out,
                                 struct mlo_error *err)
{
    if (a->rank < 0 || b->rank < 0)
        return MLO_OK;
    if (a->rank == 0 || b->rank == 0)
        return mlo_error_set(err, MLO_EINVAL, "a matrix product needs operands of rank 1 or more");
    struct mlo_dim ka = a->dims[a->rank - 1], kb = b->dims[b->rank == 1 ? 0 : b->rank - 2];
    if (ka.value >= 0 && kb.value >= 0 && ka.value != kb.value)
        return mlo_error_set(err, MLO_EINVAL, "the inner dims %lld and %lld of a matrix product differ",
                             (long long)ka.value, (long long)kb.value);
    struct mlo_type left = {.rank = MLO_MAX(a->rank - 2, 0)}, right = {.rank = MLO_MAX(b->rank - 2, 0)}, both;
    memcpy(left.dims, a->dims, (size_t)left.rank * sizeof left.dims[0]);
    memcpy(right.dims, b->dims, (size_t)right.rank * sizeof right.dims[0]);
    both = *out;
    enum mlo_status status = mlo_op_broadcast(&left, &right, &both, err);
    if (status != MLO_OK)
        return status;
    if (a->rank > 1)
        both.dims[both.rank++] = a->dims[a->rank - 2];
    if (b->rank > 1)
        both.dims[both.rank++] = b->dims[b->rank - 1];
    *out = both;
    return MLO_OK;
}

enum mlo_status mlo_matmul_init(struct mlo_matmul_dims *d, const struct mlo_tensor *a,
                                const struct mlo_tensor *b, struct mlo_error *err)
{
    struct mlo_type ta = mlo_type_of(a), tb = mlo_type_of(b), out = {.rank = -1};
    enum mlo_status status = mlo_matmul_infer(&ta, &tb, &out, err);
    *d = (struct mlo_matmul_dims){.batches = 1};
    if (status != MLO_OK)
        return status;
    struct mlo_product *p = &d->each;
    p->m = a->rank > 1 ? a->dims[a->rank - 2] : 1;
    p->k = a->dims[a->rank - 1];
    p->n = b->rank > 1 ? b->dims[b->rank - 1] : 1;
    p->a_row = p->k;
    p->a_col = 1;
    p->b_row = p->n;
    p->b_col = 1;
    d->out_rank = out.rank;
    for (int i = 0; i < out.rank; i++)
        d->out_dims[i] = out.dims[i].value;
    d->batch_rank = MLO_MAX(MLO_MAX(a->rank, b->rank) - 2, 0);
    int64_t a_stride = p->m * p->k, b_stride = p->k * p->n;
    for (int i = d->batch_rank - 1; i >= 0; i--) {
        int ia = i - (d->batch_rank - (a->rank - 2)), ib = i - (d->batch_rank - (b->rank - 2));
        int64_t da = a->rank > 2 && ia >= 0 ? a->dims[ia] : 1, db = b->rank > 2 && ib >= 0 ? b->dims[ib] : 1;
        d->batch_dims[i] = out.dims[i].value;
        d->a_step[i] = da != 1 ? a_stride : 0;
        d->b_step[i] = db != 1 ? b_stride : 0;
        a_stride *= da;
        b_stride *= db;
        d->batches *= (size_t)d->batch_dims[i];
    }
    return MLO_OK;
}

void mlo_matmul_offsets(const struct mlo_matmul_dims *d, size_t i, size_t *a, size_t *b)
{
    *a = *b = 0;
    for (int r = d->batch_rank - 1; r >= 0; r--) {
        size_t at = i % (size_t)d->batch_dims[r];
        i /= (size_t)d->batch_dims[r];
        *a += at * (size_t)d->a_step[r];
        *b += at * (size_t)d->b_step[r];
    }
}

enum mlo_status mlo_conv_infer(const struct mlo_node *node, const struct mlo_type *x,
                               const struct mlo_type *weight, const struct mlo_type *bias,
                               struct mlo_type *out, struct mlo_error *err)
{
    struct mlo_window w;
    int64_t in[MLO_MAX_RANK], kernel[MLO_MAX_RANK], groups = mlo_node_attr_i(node, "group", 1);
    if (x->rank < 0 || weight->rank < 0)
        return MLO_OK;
    if (x->rank < 3 || weight->rank != x->rank)
        return mlo_error_set(err, MLO_EINVAL,
                             "the input has rank %d and the weight %d; both need 3 to 5, the same", x->rank,
                             weight->rank);
    struct mlo_dim channels = x->dims[1], outs = weight->dims[0], ins = weight->dims[1];
    if (groups < 1 || (outs.value >= 0 && (outs.value < groups || outs.value % groups)))
        return mlo_error_set(err, MLO_EINVAL, "%lld groups do not divide %lld output channels",
                             (long long)groups, (long long)outs.value);
    if (channels.value >= 0 && ins.value >= 0 &&
        (channels.value / groups != ins.value || channels.value % groups || ins.value < 1))
        return mlo_error_set(err, MLO_EINVAL,
                             "the input has %lld channels; the weight is for %lld in %lld groups",
                             (long long)channels.value, (long long)ins.value, (long long)groups);
    if (bias && bias->rank >= 0 &&
        (bias->rank != 1 ||
         (bias->dims[0].value >= 0 && outs.value >= 0 && bias->dims[0].value != outs.value)))
        return mlo_error_set(err, MLO_EINVAL, "the bias does not hold one number for each output channel");
    int spatial = x->rank - 2;
    size_t count;
    bool known_kernel = true;
    for (int i = 0; i < spatial; i++) {
        in[i] = x->dims[2 + i].value;
        kernel[i] = weight->dims[2 + i].value;
        known_kernel = known_kernel && kernel[i] >= 0;
    }
    struct mlo_type result = {.dtype = out->dtype, .rank = x->rank};
    result.dims[0] = x->dims[0];
    result.dims[1] = outs;
    for (int i = 0; i < spatial; i++)
        result.dims[2 + i] = mlo_dim_unknown();
    if (known_kernel || mlo_node_attr_ints(node, "kernel_shape", &count)) {
        enum mlo_status status = mlo_window_init(&w, node, spatial, in, kernel, err);
        if (status != MLO_OK)
            return status;
        for (int i = 0; i < spatial; i++)
            result.dims[2 + i] = mlo_window_dim(node, &w, i, x->dims[2 + i]);
    }
    *out = result;
    return MLO_OK;
}
