/* Numbers for the tests of the cuda engine's kernels with fixed bodies, what they may differ by, and the
 * reference's answer. */
#ifndef MLO_TEST_ENGINES_CUDA_KERNELS_H
#define MLO_TEST_ENGINES_CUDA_KERNELS_H

#include "engines/cuda/kernels/kernels_impl.h"
#include "tests/unit/engines/cuda_helpers.h"
#include "tests/unit/engines/helpers.h"

static inline struct mlo_tensor numbers(enum mlo_dtype dtype, int rank, const int64_t *dims, uint32_t *seed)
{
    struct mlo_tensor t = {0};
    bool whole = cuda_type_is_whole(dtype);
    MUST(mlo_tensor_init(&t, dtype, rank, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, whole ? (double)(below(seed, 255) - 127) : (double)unit_random(seed));
    return t;
}

/* The same numbers in another type. */
static inline struct mlo_tensor converted(const struct mlo_tensor *from, enum mlo_dtype dtype)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, from->rank, from->dims, err));
    for (size_t i = 0; i < mlo_tensor_count(from); i++)
        mlo_tensor_set_f64(&t, i, mlo_tensor_get_f64(from, i));
    return t;
}

/* Dimension i of the result is dimension order[i]. */
static inline struct mlo_tensor permuted(const struct mlo_tensor *from, const int *order)
{
    struct mlo_tensor t = {0};
    int64_t dims[MLO_MAX_RANK], strides[MLO_MAX_RANK], at[MLO_MAX_RANK] = {0}, stride = 1;
    for (int i = from->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= from->dims[i];
    }
    for (int i = 0; i < from->rank; i++)
        dims[i] = from->dims[order[i]];
    MUST(mlo_tensor_init(&t, from->dtype, from->rank, dims, err));
    for (size_t k = 0; k < mlo_tensor_count(&t); k++) {
        int64_t index = 0;
        for (int i = 0; i < t.rank; i++)
            index += at[i] * strides[order[i]];
        mlo_tensor_set_f64(&t, k, mlo_tensor_get_f64(from, (size_t)index));
        for (int i = t.rank - 1; i >= 0 && ++at[i] == dims[i]; i--)
            at[i] = 0;
    }
    return t;
}

static inline struct mlo_tensor channels_last(const struct mlo_tensor *t)
{
    return permuted(t, (const int[]){0, 2, 3, 1});
}
static inline struct mlo_tensor like(const struct mlo_tensor *t, enum mlo_dtype dtype)
{
    struct mlo_tensor y = {0};
    MUST(mlo_tensor_init(&y, dtype, t->rank, t->dims, err));
    memset(y.data, 0x5a, y.size_bytes);
    return y;
}

/* `slack`: of values about 1, and relative to larger ones. */
static inline void near(const struct mlo_tensor *got, const struct mlo_tensor *want, double slack,
                        const char *what)
{
    assert_int_equal(mlo_tensor_count(got), mlo_tensor_count(want));
    for (size_t i = 0; i < mlo_tensor_count(got); i++) {
        double a = mlo_tensor_get_f64(got, i), b = mlo_tensor_get_f64(want, i);
        if (!(fabs(a - b) <= slack * (1 + fabs(b))) && !(isnan(a) && isnan(b)) && a != b)
            fail_msg("%s: element %zu is %.9g, the reference has %.9g", what, i, a, b);
    }
}

/* Of sums in float32 that are rounded to the type. */
static inline double slack_of(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? 4e-6 : dtype == MLO_FLOAT16 ? 1e-3 : dtype == MLO_BFLOAT16 ? 8e-3 : 0;
}

static inline void run_use(const struct cuda_kernel_use *use, struct mlo_tensor *const *tensors, int count,
                           int written)
{
    struct mlo_error err = {0};
    struct cuda_source source;
    void *parameters[16];
    size_t sizes[16];
    assert_ok(cuda_kernel_source(use, &source, &err));
    for (int i = 0; i < count; i++) {
        parameters[i] = tensors[i]->data;
        sizes[i] = tensors[i]->size_bytes;
    }
    run_source(&source, parameters, sizes, count, written);
    cuda_source_clear(&source);
}

/* The graph's one output. */
static inline struct mlo_tensor evaluated(struct net *n, struct mlo_value *v, const struct mlo_tensor *inputs)
{
    struct mlo_tensor out = {0};
    net_finish(n, v);
    MUST(mlo_graph_eval(n->graph, inputs, &out, err));
    mlo_model_free(n->model);
    return out;
}

/* A convolution. */
struct window {
    const char *row;
    int64_t channels, filters, groups, height, width, kernel, stride, pad, dilation;
    enum mlo_dtype x, w, y;
    enum cuda_activation activation;
    bool residual, bias, scale, by_filter;
    int64_t zero;
    bool clipped; /* of a depthwise one: what it reads */
};
enum { X_LOW = -1, X_HIGH = 2 };

static inline void geometry(int64_t *n, const int64_t *x, const int64_t *y, const struct window *s)
{
    const int64_t numbers_of[] = {
        x[0],      x[1],      1, x[2],        x[3],        1, y[2],   y[3],   1, s->kernel, s->kernel, 1,
        s->stride, s->stride, 1, s->dilation, s->dilation, 0, s->pad, s->pad, 0, s->pad,    s->pad};
    memcpy(n, numbers_of, sizeof numbers_of);
}

static inline double activated(enum cuda_activation a, double v)
{
    switch (a) {
    case CUDA_ACT_RELU:
        return v < 0 ? 0 : v;
    case CUDA_ACT_CLIP:
        return v < 0 ? 0 : v > 6 ? 6 : v;
    case CUDA_ACT_SIGMOID:
        return 1 / (1 + exp(-v));
    case CUDA_ACT_TANH:
        return tanh(v);
    case CUDA_ACT_GELU:
        return 0.5 * v * (1 + erf(v / sqrt(2)));
    case CUDA_ACT_GELU_TANH:
        return 0.5 * v * (1 + tanh(0.79788456080286536 * (v + 0.044715 * v * v * v)));
    case CUDA_ACT_SWISH:
        return v / (1 + exp(-v));
    default:
        return v;
    }
}

#endif
