/* Kernels with fixed bodies: on a CPU against the reference kernels of graph/, and under NVRTC within their
 * registers. MLOPT_CUDA_ALL: every type under NVRTC, on every architecture. */
#include "cuda_helpers.h"
#include "engines/cuda/kernels/kernels_impl.h"
#include "helpers.h"

/* --- numbers -------------------------------------------------------------------------------------------- */

static struct mlo_tensor numbers(enum mlo_dtype dtype, int rank, const int64_t *dims, uint32_t *seed)
{
    struct mlo_tensor t = {0};
    bool whole = cuda_type_is_whole(dtype);
    MUST(mlo_tensor_init(&t, dtype, rank, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, whole ? (double)(below(seed, 255) - 127) : (double)unit_random(seed));
    return t;
}

/* The same numbers in another type. */
static struct mlo_tensor converted(const struct mlo_tensor *from, enum mlo_dtype dtype)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, from->rank, from->dims, err));
    for (size_t i = 0; i < mlo_tensor_count(from); i++)
        mlo_tensor_set_f64(&t, i, mlo_tensor_get_f64(from, i));
    return t;
}

/* Dimension i of the result is dimension order[i]. */
static struct mlo_tensor permuted(const struct mlo_tensor *from, const int *order)
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

static struct mlo_tensor channels_last(const struct mlo_tensor *t)
{
    return permuted(t, (const int[]){0, 2, 3, 1});
}
static struct mlo_tensor like(const struct mlo_tensor *t, enum mlo_dtype dtype)
{
    struct mlo_tensor y = {0};
    MUST(mlo_tensor_init(&y, dtype, t->rank, t->dims, err));
    memset(y.data, 0x5a, y.size_bytes);
    return y;
}

/* `slack`: of values about 1, and relative to larger ones. */
static void near(const struct mlo_tensor *got, const struct mlo_tensor *want, double slack, const char *what)
{
    assert_int_equal(mlo_tensor_count(got), mlo_tensor_count(want));
    for (size_t i = 0; i < mlo_tensor_count(got); i++) {
        double a = mlo_tensor_get_f64(got, i), b = mlo_tensor_get_f64(want, i);
        if (!(fabs(a - b) <= slack * (1 + fabs(b))) && !(isnan(a) && isnan(b)) && a != b)
            fail_msg("%s: element %zu is %.9g, the reference has %.9g", what, i, a, b);
    }
}

/* Of sums in float32 that are rounded to the type. */
static double slack_of(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? 4e-6 : dtype == MLO_FLOAT16 ? 1e-3 : dtype == MLO_BFLOAT16 ? 8e-3 : 0;
}

static void run_use(const struct cuda_kernel_use *use, struct mlo_tensor *const *tensors, int count,
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
static struct mlo_tensor evaluated(struct net *n, struct mlo_value *v, const struct mlo_tensor *inputs)
{
    struct mlo_tensor out = {0};
    net_finish(n, v);
    MUST(mlo_graph_eval(n->graph, inputs, &out, err));
    mlo_model_free(n->model);
    return out;
}

/* --- convolutions --------------------------------------------------------------------------------------- */

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

static void geometry(int64_t *n, const int64_t *x, const int64_t *y, const struct window *s)
{
    const int64_t numbers_of[] = {
        x[0],      x[1],      1, x[2],        x[3],        1, y[2],   y[3],   1, s->kernel, s->kernel, 1,
        s->stride, s->stride, 1, s->dilation, s->dilation, 0, s->pad, s->pad, 0, s->pad,    s->pad};
    memcpy(n, numbers_of, sizeof numbers_of);
}

static double activated(enum cuda_activation a, double v)
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

static struct mlo_tensor reference_conv(const struct window *s, const struct mlo_tensor *x,
                                        const struct mlo_tensor *w)
{
    struct net n = net_new(1);
    bool transposed = strcmp(s->row, "conv_transpose") == 0;
    struct mlo_tensor in[2] = {converted(x, MLO_FLOAT32), converted(w, MLO_FLOAT32)};
    for (size_t i = 0; s->zero && i < mlo_tensor_count(&in[0]); i++)
        ((float *)in[0].data)[i] -= (float)s->zero;
    for (size_t i = 0; s->clipped && i < mlo_tensor_count(&in[0]); i++) {
        float *v = (float *)in[0].data + i;
        *v = *v < X_LOW ? X_LOW : *v > X_HIGH ? X_HIGH : *v;
    }
    struct mlo_value *vx = net_input(&n, "x", 4, in[0].dims), *vw = net_input(&n, "w", 4, in[1].dims);
    struct mlo_node *node = net_node(&n, transposed ? "ConvTranspose" : "Conv", vx, vw, NULL);
    struct conv_spec spec = {.kernel = s->kernel,
                             .stride = s->stride,
                             .pad = s->pad,
                             .dilation = s->dilation,
                             .groups = s->groups};
    net_conv_attrs(node, &spec);
    struct mlo_tensor y = evaluated(&n, node->outputs[0], in);
    mlo_tensor_clear(&in[0]);
    mlo_tensor_clear(&in[1]);
    return y;
}

static void check_conv(const struct window *s)
{
    uint32_t seed = 5;
    char what[160];
    bool depthwise = strcmp(s->row, "depthwise") == 0, transposed = strcmp(s->row, "conv_transpose") == 0;
    snprintf(what, sizeof what,
             "%s %lldx%lldx%lld -> %lld, %lld groups, kernel %lld stride %lld dilation %lld, %s", s->row,
             (long long)s->channels, (long long)s->height, (long long)s->width, (long long)s->filters,
             (long long)s->groups, (long long)s->kernel, (long long)s->stride, (long long)s->dilation,
             mlo_dtype_name(s->y));
    const int64_t x_dims[] = {2, s->channels, s->height, s->width};
    const int64_t w_dims[] = {transposed ? s->channels : s->filters,
                              transposed ? s->filters / s->groups : s->channels / s->groups, s->kernel,
                              s->kernel};
    struct mlo_tensor x = numbers(s->x, 4, x_dims, &seed), w = numbers(s->w, 4, w_dims, &seed);
    struct mlo_tensor sums = reference_conv(s, &x, &w), xl = channels_last(&x), yl = channels_last(&sums);
    const int by_tap[] = {2, 3, 1, 0}, by_tap_out[] = {2, 3, 0, 1}, by_filter[] = {0, 2, 3, 1};
    struct mlo_tensor wl = permuted(&w, transposed ? by_tap_out : s->by_filter ? by_filter : by_tap);
    struct mlo_tensor residual = numbers(s->y, 4, yl.dims, &seed),
                      bias = numbers(MLO_FLOAT32, 1, &s->filters, &seed);
    struct mlo_tensor scale = {0}, y = like(&yl, s->y), want = like(&yl, s->y);
    MUST(mlo_tensor_init(&scale, MLO_FLOAT32, 1, &s->filters, err));
    for (int64_t k = 0; k < s->filters; k++) /* powers of two: what quantizes is exact */
        ((float *)scale.data)[k] =
            cuda_type_is_whole(s->x) ? 0x1p-12f * (float)(1 << k % 3) : 0.5f + 0.25f * (float)(k % 3);
    for (size_t i = 0; i < mlo_tensor_count(&yl); i++) {
        size_t k = i % (size_t)s->filters;
        double v = mlo_tensor_get_f64(&yl, i);
        v = s->scale ? v * (double)((float *)scale.data)[k] : v;
        v += s->residual ? mlo_tensor_get_f64(&residual, i) * 0.5 : 0;
        v += s->bias ? (double)((float *)bias.data)[k] : 0;
        v = activated(s->activation, v) * (cuda_type_is_whole(s->y) ? 4 : 1);
        mlo_tensor_set_f64(&want, i, v);
    }
    struct cuda_kernel_use use = {.kernel = cuda_kernel_find(s->row), .types = {s->x, s->w, s->y, s->y}};
    assert_non_null(use.kernel);
    geometry(use.n, x.dims, sums.dims, s);
    const int64_t rest[] = {s->activation,
                            s->residual,
                            s->bias,
                            s->scale,
                            depthwise ? s->clipped : s->filters,
                            depthwise ? 0 : s->groups,
                            s->zero,
                            s->by_filter};
    memcpy(use.n + 23, rest, sizeof rest);
    use.f[4] = X_LOW;
    use.f[5] = X_HIGH;
    use.f[1] = 6;
    use.f[2] = 0.5f;
    use.f[3] = cuda_type_is_whole(s->y) ? 4 : 1;
    struct mlo_tensor *tensors[8] = {&xl, &wl};
    int count = 2;
    if (s->residual)
        tensors[count++] = &residual;
    if (s->bias)
        tensors[count++] = &bias;
    if (s->scale)
        tensors[count++] = &scale;
    tensors[count++] = &y;
    run_use(&use, tensors, count, 1);
    /* a sum of many products has the rounding of each */
    double terms = (double)(s->kernel * s->kernel * (depthwise ? 1 : s->channels / s->groups));
    near(&y, &want,
         cuda_type_is_whole(s->y) ? (cuda_type_is_whole(s->x) ? 0.51 / 128 : 0)
                                  : slack_of(s->y) + terms * 1e-7,
         what);
    struct mlo_tensor *all[] = {&x, &w, &sums, &xl, &yl, &wl, &residual, &bias, &scale, &y, &want};
    for (size_t i = 0; i < MLO_COUNT(all); i++)
        mlo_tensor_clear(all[i]);
}

static const struct window windows[] = {
    {"depthwise", 32, 32, 32, 9, 11, 3, 1, 1, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_CLIP,
     .bias = true},
    {"depthwise", 24, 24, 24, 9, 8, 3, 2, 1, 1, MLO_FLOAT16, MLO_FLOAT16, MLO_FLOAT16, CUDA_ACT_SWISH,
     .bias = true, .scale = true},
    {"depthwise", 16, 16, 16, 9, 8, 3, 1, 1, 1, MLO_FLOAT16, MLO_FLOAT16, MLO_FLOAT16, CUDA_ACT_CLIP,
     .bias = true, .clipped = true},
    {"depthwise", 5, 5, 5, 8, 9, 5, 2, 2, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_NONE,
     .residual = true, .clipped = true},
    {"depthwise", 7, 7, 7, 6, 10, 5, 1, 2, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_NONE,
     .residual = true},
    {"depthwise", 16, 16, 16, 7, 9, 3, 1, 2, 2, MLO_BFLOAT16, MLO_BFLOAT16, MLO_BFLOAT16, CUDA_ACT_RELU,
     .bias = true},
    {"depthwise", 16, 16, 16, 5, 5, 3, 1, 1, 1, MLO_INT8, MLO_INT8, MLO_INT8, CUDA_ACT_RELU, .bias = false,
     .scale = true},
    {"depthwise", 8, 8, 8, 5, 4, 3, 1, 1, 1, MLO_UINT8, MLO_INT8, MLO_FLOAT16, CUDA_ACT_NONE, .scale = true,
     .zero = 100},
    {"depthwise", 1, 1, 1, 1, 1, 1, 1, 0, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_NONE},
    {"conv", 3, 16, 1, 11, 13, 3, 2, 1, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_RELU,
     .bias = true},
    {"conv", 4, 32, 1, 9, 9, 7, 2, 3, 1, MLO_FLOAT16, MLO_FLOAT16, MLO_FLOAT16, CUDA_ACT_RELU, .bias = true},
    {"conv", 12, 18, 3, 8, 7, 3, 1, 2, 2, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_GELU,
     .residual = true, .by_filter = true},
    {"conv", 5, 7, 1, 6, 6, 2, 3, 0, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_SIGMOID},
    {"conv", 16, 8, 1, 5, 5, 1, 1, 0, 1, MLO_INT8, MLO_INT8, MLO_INT8, CUDA_ACT_NONE, .residual = true,
     .scale = true, .by_filter = true},
    {"conv", 8, 8, 2, 5, 5, 3, 1, 1, 1, MLO_BFLOAT16, MLO_BFLOAT16, MLO_BFLOAT16, CUDA_ACT_TANH,
     .bias = true},
    {"conv", 6, 8, 2, 5, 5, 3, 1, 1, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_GELU_TANH,
     .scale = true},
    {"conv_transpose", 6, 8, 2, 5, 4, 3, 2, 1, 1, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_NONE,
     .bias = true},
    {"conv_transpose", 8, 5, 1, 3, 3, 2, 2, 0, 1, MLO_FLOAT16, MLO_FLOAT16, MLO_FLOAT16, CUDA_ACT_RELU},
    {"conv_transpose", 4, 4, 1, 4, 3, 3, 3, 1, 2, MLO_FLOAT32, MLO_FLOAT32, MLO_FLOAT32, CUDA_ACT_NONE},
};

static void test_convolutions__are_the_references(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(windows); i++)
        check_conv(&windows[i]);
}

/* --- pooling -------------------------------------------------------------------------------------------- */

struct pooling {
    bool average, padding;
    int64_t channels, size, kernel, stride, pad;
    bool ceil;
    enum mlo_dtype dtype;
};

static void check_pool(const struct pooling *p)
{
    struct net n = net_new(3);
    uint32_t seed = 8;
    const int64_t dims[] = {2, p->channels, p->size, p->size + 1};
    struct mlo_tensor x = numbers(p->dtype, 4, dims, &seed), in = converted(&x, MLO_FLOAT32);
    if (!cuda_type_is_whole(p->dtype))
        mlo_tensor_set_f64(&x, 3, NAN), ((float *)in.data)[3] = NAN;
    struct mlo_value *v = net_input(&n, "x", 4, dims);
    struct mlo_node *node = net_node(&n, p->average ? "AveragePool" : "MaxPool", v, NULL, NULL);
    assert_true(mlo_node_set_ints(node, "kernel_shape", (int64_t[]){p->kernel, p->kernel}, 2));
    assert_true(mlo_node_set_ints(node, "strides", (int64_t[]){p->stride, p->stride}, 2));
    assert_true(mlo_node_set_ints(node, "pads", (int64_t[]){p->pad, p->pad, p->pad, p->pad}, 4));
    assert_true(mlo_node_set_i(node, "ceil_mode", p->ceil));
    if (p->average)
        assert_true(mlo_node_set_i(node, "count_include_pad", p->padding));
    struct mlo_tensor want = evaluated(&n, node->outputs[0], &in), xl = channels_last(&x),
                      wl = channels_last(&want);
    struct mlo_tensor yl = like(&wl, p->dtype);
    struct cuda_kernel_use use = {
        .kernel = cuda_kernel_find("pool"), .f = {1}, .types = {p->dtype, p->dtype}};
    struct window s = {.kernel = p->kernel, .stride = p->stride, .pad = p->pad, .dilation = 1};
    geometry(use.n, dims, want.dims, &s);
    use.n[23] = p->average;
    use.n[24] = p->padding;
    run_use(&use, (struct mlo_tensor *[]){&xl, &yl}, 2, 1);
    struct mlo_tensor rounded = converted(&wl, p->dtype);
    near(&yl, &rounded, slack_of(p->dtype), "pool");
    struct mlo_tensor *all[] = {&x, &in, &want, &xl, &wl, &yl, &rounded};
    for (size_t i = 0; i < MLO_COUNT(all); i++)
        mlo_tensor_clear(all[i]);
}

static void test_pooling__is_the_references(void **state)
{
    MLO_UNUSED(state);
    static const struct pooling cases[] = {
        {false, false, 16, 8, 3, 2, 1, false, MLO_FLOAT16}, {false, false, 5, 7, 2, 2, 0, true, MLO_FLOAT32},
        {true, false, 8, 7, 3, 2, 1, false, MLO_FLOAT32},   {true, true, 8, 7, 3, 2, 1, true, MLO_FLOAT16},
        {false, false, 16, 6, 2, 1, 0, false, MLO_INT8},    {true, false, 16, 6, 2, 2, 0, false, MLO_INT8},
        {true, true, 3, 5, 3, 1, 1, false, MLO_BFLOAT16},
    };
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        check_pool(&cases[i]);
}

/* --- products ------------------------------------------------------------------------------------------- */

struct product {
    int64_t m, n, k, batch;
    bool ta, tb, c, bias, scale, per_column, shared_b;
    enum mlo_dtype a, d;
    enum cuda_activation activation;
};

static void check_product(const struct product *p)
{
    uint32_t seed = 17;
    const int64_t a_dims[] = {p->batch, p->ta ? p->k : p->m, p->ta ? p->m : p->k};
    const int64_t b_dims[] = {p->shared_b ? 1 : p->batch, p->tb ? p->n : p->k, p->tb ? p->k : p->n};
    const int64_t d_dims[] = {p->batch, p->m, p->n};
    struct mlo_tensor a = numbers(p->a, 3, a_dims, &seed), b = numbers(p->a, 3, b_dims, &seed);
    struct mlo_tensor c = numbers(p->d, 3, d_dims, &seed),
                      bias = numbers(p->scale ? MLO_FLOAT32 : p->d, 1, &p->n, &seed), d = like(&c, p->d);
    struct mlo_tensor scale = numbers(MLO_FLOAT32, 1, &p->n, &seed), want = like(&c, p->d);
    for (int64_t i = 0; i < p->batch; i++)
        for (int64_t m = 0; m < p->m; m++)
            for (int64_t n = 0; n < p->n; n++) {
                double sum = 0;
                for (int64_t k = 0; k < p->k; k++)
                    sum += mlo_tensor_get_f64(
                               &a, (size_t)(i * p->m * p->k + (p->ta ? k * p->m + m : m * p->k + k))) *
                           mlo_tensor_get_f64(&b, (size_t)((p->shared_b ? 0 : i * p->k * p->n) +
                                                           (p->tb ? n * p->k + k : k * p->n + n)));
                size_t at = (size_t)((i * p->m + m) * p->n + n);
                sum *= 0.5;
                sum *= p->scale ? (double)((float *)scale.data)[p->per_column ? n : 0] : 1;
                sum += p->c ? mlo_tensor_get_f64(&c, at) : 0;
                sum += p->bias ? mlo_tensor_get_f64(&bias, (size_t)n) : 0;
                mlo_tensor_set_f64(&want, at, activated(p->activation, sum));
            }
    struct cuda_gemm g = {.m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .batch = p->batch,
                          .ta = p->ta,
                          .tb = p->tb,
                          .lda = a_dims[2],
                          .ldb = b_dims[2],
                          .ldc = p->n,
                          .ldd = p->n,
                          .batch_a = p->m * p->k,
                          .batch_b = p->shared_b ? 0 : p->k * p->n,
                          .batch_c = p->m * p->n,
                          .batch_d = p->m * p->n,
                          .a = p->a,
                          .b = p->a,
                          .c = p->d,
                          .d = p->d,
                          .alpha = 0.5f,
                          .has_c = p->c,
                          .has_bias = p->bias,
                          .has_scale = p->scale,
                          .scale_per_column = p->per_column,
                          .activation = p->activation};
    struct cuda_kernel_use use;
    MUST(cuda_gemm_kernel(&g, &use, err));
    struct mlo_tensor *tensors[6] = {&a, &b};
    int count = 2;
    if (p->c)
        tensors[count++] = &c;
    if (p->bias)
        tensors[count++] = &bias;
    if (p->scale)
        tensors[count++] = &scale;
    tensors[count++] = &d;
    run_use(&use, tensors, count, 1);
    near(&d, &want, slack_of(p->d) + (double)p->k * (p->a == MLO_INT8 ? 0 : 2e-7), "matmul");
    struct mlo_tensor *all[] = {&a, &b, &c, &bias, &d, &scale, &want};
    for (size_t i = 0; i < MLO_COUNT(all); i++)
        mlo_tensor_clear(all[i]);
}

static void test_products__are_what_their_sums_say(void **state)
{
    MLO_UNUSED(state);
    static const struct product cases[] = {
        {33, 70, 40, 2, .a = MLO_FLOAT32, .d = MLO_FLOAT32},
        {65, 64, 17, 1, .ta = true, .c = true, .a = MLO_FLOAT32, .d = MLO_FLOAT32,
         .activation = CUDA_ACT_RELU},
        {1, 100, 30, 3, .tb = true, .bias = true, .shared_b = true, .a = MLO_FLOAT16, .d = MLO_FLOAT16,
         .activation = CUDA_ACT_GELU},
        {20, 9, 64, 1, .ta = true, .tb = true, .bias = true, .a = MLO_BFLOAT16, .d = MLO_FLOAT32},
        {17, 40, 33, 1, .tb = true, .a = MLO_INT8, .d = MLO_INT32},
        {16, 33, 50, 2, .tb = true, .scale = true, .per_column = true, .a = MLO_INT8, .d = MLO_FLOAT32},
        {1, 1, 1, 1, .scale = true, .a = MLO_FLOAT32, .d = MLO_FLOAT32},
        {4, 5, 0, 1, .bias = true, .a = MLO_FLOAT32, .d = MLO_FLOAT32},
    };
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        check_product(&cases[i]);
}

static void test_attention__is_softmax_between_products(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    for (int round = 0; round < 3; round++) {
        uint32_t seed = 3;
        bool causal = round == 1, masked = round == 2;
        enum mlo_dtype dtype = round ? MLO_FLOAT32 : MLO_FLOAT16;
        enum { N = 2, H = 3, Q = 5, D = 20, V = 40 };
        const int64_t keys = causal ? Q : 70;
        /* heads behind positions, as a projection leaves them */
        struct mlo_tensor q = numbers(dtype, 4, (int64_t[]){N, Q, H, D}, &seed),
                          k = numbers(dtype, 4, (int64_t[]){N, keys, H, D}, &seed);
        struct mlo_tensor v = numbers(dtype, 4, (int64_t[]){N, keys, H, V}, &seed),
                          mask = numbers(MLO_FLOAT32, 2, (int64_t[]){N, keys}, &seed);
        struct mlo_tensor o = {0}, want = {0};
        MUST(mlo_tensor_init(&o, dtype, 4, (int64_t[]){N, Q, H, V}, err));
        MUST(mlo_tensor_init(&want, dtype, 4, (int64_t[]){N, Q, H, V}, err));
        for (int64_t i = 0; i < keys; i += 3)
            ((float *)mask.data)[i] = -INFINITY;
        for (int n = 0; n < N; n++)
            for (int h = 0; h < H; h++)
                for (int i = 0; i < Q; i++) {
                    double scores[128], total = 0, sums[V] = {0};
                    for (int64_t j = 0; j < keys; j++) {
                        double s = 0;
                        for (int e = 0; e < D; e++)
                            s += mlo_tensor_get_f64(&q, (size_t)(((n * Q + i) * H + h) * D + e)) *
                                 mlo_tensor_get_f64(&k, (size_t)(((n * keys + j) * H + h) * D + e));
                        s = s * 2 + (masked ? (double)((float *)mask.data)[n * keys + j] : 0);
                        scores[j] = causal && j > i ? 0 : exp(s);
                        total += scores[j];
                    }
                    for (int64_t j = 0; j < keys; j++)
                        for (int e = 0; e < V; e++)
                            sums[e] += scores[j] / total *
                                       mlo_tensor_get_f64(&v, (size_t)(((n * keys + j) * H + h) * V + e));
                    for (int e = 0; e < V; e++)
                        mlo_tensor_set_f64(&want, (size_t)(((n * Q + i) * H + h) * V + e), sums[e]);
                }
        struct cuda_attention a = {.q = {dtype, 4, {N, H, Q, D}, {Q * H * D, D, H * D, 1}},
                                   .k = {dtype, 4, {N, H, keys, D}, {keys * H * D, D, H * D, 1}},
                                   .v = {dtype, 4, {N, H, keys, V}, {keys * H * V, V, H * V, 1}},
                                   .o = {dtype, 4, {N, H, Q, V}, {Q * H * V, V, H * V, 1}},
                                   .mask = {MLO_FLOAT32, 4, {N, H, Q, keys}, {keys, 0, 0, 1}},
                                   .has_mask = masked,
                                   .causal = causal,
                                   .scale = 2};
        struct cuda_kernel_use use;
        MUST(cuda_attention_kernel(&a, &use, err));
        struct mlo_tensor *tensors[] = {&q, &k, &v, masked ? &mask : &o, &o};
        run_use(&use, tensors, masked ? 5 : 4, 1);
        near(&o, &want, slack_of(dtype), "attention");
        struct mlo_tensor *all[] = {&q, &k, &v, &mask, &o, &want};
        for (size_t i = 0; i < MLO_COUNT(all); i++)
            mlo_tensor_clear(all[i]);
    }
}

/* --- moves ---------------------------------------------------------------------------------------------- */

static void test_gather__takes_rows_of_any_type(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_FLOAT16, MLO_FLOAT32, MLO_UINT8, MLO_INT64};
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(types); i++) {
        uint32_t seed = 4;
        int64_t inner = i == 1 ? 7 : 24, indices[] = {3, -1, 0, 9, 4, 4, -10};
        struct mlo_tensor x = numbers(types[i], 3, (int64_t[]){2, 10, inner}, &seed), y = {0};
        MUST(mlo_tensor_init(&y, types[i], 3, (int64_t[]){2, 7, inner}, err));
        struct mlo_tensor at = {
            .dtype = MLO_INT64, .rank = 1, .dims = {7}, .data = indices, .size_bytes = sizeof indices};
        struct cuda_kernel_use use = {
            .kernel = cuda_kernel_find("gather"), .n = {2, 10, inner, 7}, .types = {types[i], MLO_INT64}};
        run_use(&use, (struct mlo_tensor *[]){&x, &at, &y}, 3, 1);
        size_t row = (size_t)inner * (mlo_dtype_info(types[i])->bits / 8);
        for (size_t o = 0; o < 2; o++)
            for (size_t k = 0; k < 7; k++)
                assert_memory_equal(
                    (char *)y.data + (o * 7 + k) * row,
                    (char *)x.data + (o * 10 + (size_t)(indices[k] + (indices[k] < 0 ? 10 : 0))) * row, row);
        indices[2] = 10; /* outside: zeros, and nothing read */
        run_use(&use, (struct mlo_tensor *[]){&x, &at, &y}, 3, 1);
        for (size_t k = 0; k < row; k++)
            assert_int_equal(((char *)y.data)[2 * row + k], 0);
        mlo_tensor_clear(&x);
        mlo_tensor_clear(&y);
    }
}

static void test_transpose__turns_matrices(void **state)
{
    MLO_UNUSED(state);
    uint32_t seed = 4;
    if (no_compiler())
        return;
    struct mlo_tensor x = numbers(MLO_FLOAT16, 3, (int64_t[]){2, 45, 70}, &seed),
                      want = permuted(&x, (const int[]){0, 2, 1}), y = like(&want, MLO_FLOAT16);
    struct cuda_kernel_use use = {
        .kernel = cuda_kernel_find("transpose"), .n = {2, 45, 70}, .types = {MLO_FLOAT16}};
    run_use(&use, (struct mlo_tensor *[]){&x, &y}, 2, 1);
    assert_memory_equal(y.data, want.data, want.size_bytes);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&want);
}

/* --- along a dim ---------------------------------------------------------------------------------------- */

/* One graph of one node over x (and constants behind it) is what the kernel makes. */
static void check_node(struct net *n, struct mlo_node *node, const struct cuda_kernel_use *use,
                       const struct mlo_tensor *x, enum mlo_dtype stored, int results, double slack,
                       const char *what)
{
    struct mlo_tensor in = converted(x, MLO_FLOAT32), want[2] = {0}, got[2] = {0};
    for (int i = 0; i < node->output_count; i++)
        net_output(n, node->outputs[i]);
    MUST(mlo_graph_infer(n->graph, err));
    MUST(mlo_graph_eval(n->graph, &in, want, err));
    struct mlo_tensor from = *x;
    struct mlo_tensor *tensors[3] = {&from};
    for (int i = 0; i < results; i++) {
        got[i] = like(&want[i], i || want[i].dtype == MLO_INT64 ? MLO_INT64 : stored);
        tensors[1 + i] = &got[i];
    }
    run_use(use, tensors, 1 + results, results);
    for (int i = 0; i < results; i++) {
        near(&got[i], &want[i], i ? 0 : slack, what);
        mlo_tensor_clear(&got[i]);
    }
    for (int i = 0; i < 2; i++)
        mlo_tensor_clear(&want[i]);
    mlo_tensor_clear(&in);
    mlo_model_free(n->model);
}

static void test_searches__are_the_references(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        enum mlo_dtype dtype;
        int axis;
        bool flag, last;
    } cases[] = {{MLO_FLOAT32, 2, false, false},
                 {MLO_FLOAT16, 1, true, true},
                 {MLO_INT8, 2, true, false},
                 {MLO_FLOAT32, 0, false, true}};
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        uint32_t seed = 11;
        const int64_t dims[] = {3, 5, 60}, k = 3;
        int64_t outer = 1, inner = 1;
        struct mlo_tensor x = numbers(cases[i].dtype, 3, dims, &seed);
        for (size_t e = 0; e < mlo_tensor_count(&x); e++) /* many that are equal */
            mlo_tensor_set_f64(&x, e,
                               cases[i].dtype == MLO_INT8 ? (double)below(&seed, 9)
                                                          : (double)(below(&seed, 9) - 4) * 0.25);
        if (cases[i].dtype != MLO_INT8) {
            mlo_tensor_set_f64(&x, 60, NAN);
            mlo_tensor_set_f64(&x, 130, NAN);
            mlo_tensor_set_f64(&x, 200, -0.0);
            mlo_tensor_set_f64(&x, 300, -INFINITY);
        }
        for (int d = 0; d < 3; d++)
            *(d < cases[i].axis ? &outer : d > cases[i].axis ? &inner : &(int64_t){0}) *= dims[d];
        struct net n = net_new(1);
        struct mlo_node *node =
            net_node(&n, cases[i].flag ? "ArgMin" : "ArgMax", net_input(&n, "x", 3, dims), NULL, NULL);
        assert_true(mlo_node_set_i(node, "axis", cases[i].axis) &&
                    mlo_node_set_i(node, "select_last_index", cases[i].last));
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("argmax"),
                                      .n = {outer, dims[cases[i].axis], inner, cases[i].flag, cases[i].last},
                                      .types = {cases[i].dtype}};
        check_node(&n, node, &use, &x, MLO_INT64, 1, 0, "argmax");
        n = net_new(1);
        struct mlo_value *outputs[2] = {mlo_graph_add_value(n.graph, "v", NULL),
                                        mlo_graph_add_value(n.graph, "i", NULL)};
        struct mlo_value *in[2] = {net_input(&n, "x", 3, dims), net_ints(&n, 1, &k)};
        node = mlo_graph_add_node(n.graph, NULL, "", "TopK", "TopK", in, 2, outputs, 2);
        assert_true(mlo_node_set_i(node, "axis", cases[i].axis) &&
                    mlo_node_set_i(node, "largest", !cases[i].flag));
        use = (struct cuda_kernel_use){.kernel = cuda_kernel_find("topk"),
                                       .n = {outer, dims[cases[i].axis], inner, k, !cases[i].flag},
                                       .types = {cases[i].dtype}};
        check_node(&n, node, &use, &x, cases[i].dtype, 2, 0, "topk");
        n = net_new(1);
        int64_t axis = cases[i].axis;
        node = net_node(&n, "CumSum", net_input(&n, "x", 3, dims),
                        net_constant(&n, MLO_INT64, 0, NULL, &axis), NULL);
        assert_true(mlo_node_set_i(node, "exclusive", cases[i].flag) &&
                    mlo_node_set_i(node, "reverse", cases[i].last));
        use = (struct cuda_kernel_use){.kernel = cuda_kernel_find("cumsum"),
                                       .n = {outer, dims[cases[i].axis], inner, cases[i].flag, cases[i].last},
                                       .types = {cases[i].dtype}};
        if (cases[i].dtype != MLO_INT8) /* which wraps */
            check_node(&n, node, &use, &x, cases[i].dtype, 1, slack_of(cases[i].dtype), "cumsum");
        else
            mlo_model_free(n.model);
        mlo_tensor_clear(&x);
    }
}

static void test_pad__is_the_references(void **state)
{
    MLO_UNUSED(state);
    static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
    if (no_compiler())
        return;
    for (int m = 0; m < 4; m++) {
        uint32_t seed = 2;
        const int64_t dims[] = {2, 4, 6}, pads[] = {0, 1, 3, 0, 2, 5};
        struct mlo_tensor x = numbers(MLO_FLOAT32, 3, dims, &seed);
        struct net n = net_of_opset(19, 1);
        float value = 1.5f;
        struct mlo_node *node = net_node(&n, "Pad", net_input(&n, "x", 3, dims), net_ints(&n, 6, pads),
                                         net_constant(&n, MLO_FLOAT32, 0, NULL, &value));
        assert_true(mlo_node_set_s(node, "mode", modes[m]));
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("pad"),
                                      .n = {3, 2, 4, 6, 0, 0, 0, 0, 1, 3, 0, 0, 0, 2, 7, 14, 0, 0, 0, m},
                                      .f = {value},
                                      .types = {MLO_FLOAT32}};
        check_node(&n, node, &use, &x, MLO_FLOAT32, 1, 0, modes[m]);
        mlo_tensor_clear(&x);
    }
}

static void test_resize__is_the_references(void **state)
{
    MLO_UNUSED(state);
    static const char *const coordinates[] = {"half_pixel", "asymmetric", "align_corners",
                                              "pytorch_half_pixel"};
    static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    static const float factors[][2] = {{2, 2}, {0.5f, 3}, {1.3f, 1}, {1, 0.7f}};
    if (no_compiler())
        return;
    for (int i = 0; i < 8; i++) {
        uint32_t seed = 2;
        bool linear = i >= 4;
        const int64_t dims[] = {2, 8, 6, 10};
        const float scales[] = {1, 1, factors[i % 4][0], factors[i % 4][1]};
        const int64_t four = 4;
        struct mlo_tensor x = numbers(MLO_FLOAT32, 4, dims, &seed), xl = channels_last(&x);
        struct net n = net_new(1);
        struct mlo_value *in[] = {net_input(&n, "x", 4, dims), NULL,
                                  net_constant(&n, MLO_FLOAT32, 1, &four, scales)};
        struct mlo_node *node = net_node_of(&n, "", "Resize", in, 3);
        int how = (i + i / 4) % 4;
        assert_true(mlo_node_set_s(node, "mode", linear ? "linear" : "nearest") &&
                    mlo_node_set_s(node, "coordinate_transformation_mode", coordinates[how]) &&
                    mlo_node_set_s(node, "nearest_mode", roundings[i % 4]));
        struct mlo_tensor want = evaluated(&n, node->outputs[0], &x), wl = channels_last(&want),
                          y = like(&wl, MLO_FLOAT32);
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("resize"),
                                      .n = {2, 8, 6, 10, want.dims[2], want.dims[3], 1, linear, how, i % 4},
                                      .f = {scales[2], scales[3]},
                                      .types = {MLO_FLOAT32, MLO_FLOAT32}};
        run_use(&use, (struct mlo_tensor *[]){&xl, &y}, 2, 1);
        near(&y, &wl, linear ? 1e-6 : 0, "resize");
        struct mlo_tensor *all[] = {&x, &xl, &want, &wl, &y};
        for (size_t k = 0; k < MLO_COUNT(all); k++)
            mlo_tensor_clear(all[k]);
    }
}

static void test_embedding__adds_and_normalizes(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    for (int round = 0; round < 2; round++) {
        uint32_t seed = 6;
        enum mlo_dtype dtype = round ? MLO_FLOAT16 : MLO_FLOAT32;
        int64_t width = round ? 64 : 1100, rows = 7, words[7] = {3, 0, 9, -1, 5, 5, 2},
                kinds[7] = {0, 1, 1, 0, 0, 1, 0};
        struct mlo_tensor word = numbers(dtype, 2, (int64_t[]){10, width}, &seed),
                          at = numbers(dtype, 2, (int64_t[]){4, width}, &seed),
                          kind = numbers(dtype, 2, (int64_t[]){2, width}, &seed),
                          gamma = numbers(MLO_FLOAT32, 1, &width, &seed),
                          beta = numbers(MLO_FLOAT32, 1, &width, &seed), y = {0}, want = {0};
        MUST(mlo_tensor_init(&y, dtype, 2, (int64_t[]){rows, width}, err));
        MUST(mlo_tensor_init(&want, dtype, 2, (int64_t[]){rows, width}, err));
        for (int64_t r = 0; r < rows; r++) {
            double *v = calloc((size_t)width, sizeof *v), mean = 0, spread = 0;
            for (int64_t e = 0; e < width; e++) {
                v[e] = mlo_tensor_get_f64(&word,
                                          (size_t)((words[r] < 0 ? words[r] + 10 : words[r]) * width + e)) +
                       mlo_tensor_get_f64(&at, (size_t)(r % 4 * width + e)) +
                       mlo_tensor_get_f64(&kind, (size_t)(kinds[r] * width + e));
                mean += v[e] / (double)width;
            }
            for (int64_t e = 0; e < width; e++)
                spread += (v[e] - mean) * (v[e] - mean) / (double)width;
            for (int64_t e = 0; e < width; e++)
                mlo_tensor_set_f64(&want, (size_t)(r * width + e),
                                   (v[e] - mean) / sqrt(spread + 1e-5) * (double)((float *)gamma.data)[e] +
                                       (double)((float *)beta.data)[e]);
            free(v);
        }
        struct mlo_tensor iw = {.dtype = MLO_INT64, .data = words, .size_bytes = sizeof words},
                          ik = {.dtype = MLO_INT64, .data = kinds, .size_bytes = sizeof kinds};
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("embedding"),
                                      .n = {rows, width, 3, 10, 4, 2, 0, 4, 0, 1, 1},
                                      .f = {1e-5f},
                                      .types = {dtype, MLO_INT64, dtype, MLO_FLOAT32}};
        run_use(&use, (struct mlo_tensor *[]){&iw, &word, &at, &ik, &kind, &gamma, &beta, &y}, 8, 1);
        near(&y, &want, slack_of(dtype) * 2, "embedding");
        struct mlo_tensor *all[] = {&word, &at, &kind, &gamma, &beta, &y, &want};
        for (size_t k = 0; k < MLO_COUNT(all); k++)
            mlo_tensor_clear(all[k]);
    }
}

/* --- what steps say ------------------------------------------------------------------------------------- */

static void test_steps__give_kernels_that_their_slots_allow(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct cuda_slot slots[] = {{.offset = 256}, {.offset = 512}, {.offset = 1026}};
    struct cuda_schedule schedule = {.slots = slots, .slot_count = 3};
    struct cuda_chain chain = {.rank = 1,
                               .dims = {64},
                               .count = 1,
                               .code = {{.op = CUDA_OP_LOAD}},
                               .operand_count = 1,
                               .result_count = 1,
                               .operands = {{.dtype = MLO_FLOAT16, .strides = {1}}},
                               .results = {{.dtype = MLO_FLOAT16, .strides = {1}}}};
    struct cuda_step step = {.kind = CUDA_STEP_CHAIN,
                             .in = {0},
                             .out = {1},
                             .in_count = 1,
                             .out_count = 1,
                             .replaces = -1,
                             .chain = &chain};
    struct cuda_source source;
    assert_ok(cuda_step_source(&schedule, &step, &source, &err));
    assert_contains(source.text, "MLK_PACK(pack_in0, mlk_t_f16, 8)");
    assert_contains(source.text, "__restrict__ in0");
    cuda_source_clear(&source);
    step.out[0] = 2; /* a part at an odd place */
    step.replaces = 0;
    assert_ok(cuda_step_source(&schedule, &step, &source, &err));
    assert_null(strstr(source.text, "MLK_PACK(pack_in0"));
    assert_null(strstr(source.text, "__restrict__ in0"));
    cuda_source_clear(&source);
    struct cuda_conv conv = {.x = {MLO_FLOAT16, 4, {1, 8, 6, 6}, {8 * 36, 1, 48, 8}},
                             .w = {MLO_FLOAT16, 4, {16, 8, 3, 3}, {72, 1, 24, 8}},
                             .y = {MLO_FLOAT16, 4, {1, 16, 6, 6}, {16 * 36, 1, 96, 16}},
                             .spatial = 2,
                             .pad_before = {1, 1},
                             .pad_after = {1, 1},
                             .stride = {1, 1},
                             .dilation = {1, 1},
                             .groups = 1};
    step = (struct cuda_step){.kind = CUDA_STEP_CONV,
                              .in = {0, 1},
                              .out = {1},
                              .in_count = 2,
                              .out_count = 1,
                              .replaces = -1,
                              .conv = &conv};
    assert_ok(cuda_step_source(&schedule, &step, &source, &err));
    assert_string_equal(source.entry, "conv");
    cuda_source_clear(&source);
    conv.x.strides[1] = 36; /* channels first */
    assert_int_equal(cuda_step_source(&schedule, &step, &source, &err), MLO_EUNSUPPORTED);
    struct cuda_kernel_use use = {.kernel = cuda_kernel_find("conv"), .n = {1}};
    assert_int_equal(cuda_kernel_source(&use, &source, &err), MLO_EUNSUPPORTED); /* no kernel, no strides */
    assert_null(cuda_kernel_find("none"));
}

/* --- NVRTC ---------------------------------------------------------------------------------------------- */

/* Of what nets have; the others are convolutions. */
static const struct {
    const char *name;
    int from;
    enum mlo_dtype second;
    int64_t n[CUDA_KERNEL_NUMBERS];
} shapes[] = {
    {"argmax", 0, 0, {32, 1000, 1}},
    {"attention", 0, 0, {8,     12, 128, 128, 64,    64, 98304, 64, 768, 1, 98304, 64, 768, 1,
                         98304, 64, 768, 1,   98304, 64, 768,   1,  128, 0, 0,     1,  1,   0}},
    {"cumsum", 0, 0, {32, 128, 1}},
    {"embedding", 0, MLO_INT64, {4096, 768, 3, 30522, 512, 2, 0, 512, 0, 1, 1}},
    {"gather", 0, MLO_INT64, {1, 30522, 768, 1024}},
    {"matmul", 0, 0, {128,    768, 3072,  2,     0, 1, 3072, 3072, 768,           768,
                      393216, 0,   98304, 98304, 1, 1, 1,    1,    CUDA_ACT_GELU, 0}},
    {"pad", 0, 0, {4, 8, 56, 56, 64, 0, 0, 0, 1, 1, 0, 0, 0, 8, 58, 58, 64, 0, 0, 1}},
    {"pool", 23, 0, {1, 1, 0}},
    {"resize", 0, 0, {8, 64, 56, 56, 112, 112, 1, 1, 0, 0}},
    {"topk", 0, 0, {32, 1000, 1, 5, 1}},
    {"transpose", 0, 0, {16, 512, 768}},
};

static void check_rows(const struct nvrtc *n, int sm, enum mlo_dtype dtype)
{
    struct mlo_error err = {0};
    struct cuda_source source;
    for (size_t i = 0; cuda_kernel_name(i); i++) {
        const char *name = cuda_kernel_name(i);
        char what[64];
        struct cuda_kernel_use use = {
            .kernel = cuda_kernel_find(name), .f = {1, 1, 1, 1}, .types = {dtype, dtype, dtype, dtype}};
        struct window s = {.kernel = 3, .stride = 1, .pad = 1, .dilation = 1};
        const int64_t x[] = {32, 96, 56, 56};
        snprintf(what, sizeof what, "%s %s", name, mlo_dtype_name(dtype));
        geometry(use.n, x, x, &s);
        const int64_t rest[] = {CUDA_ACT_SWISH, 1, 1, 1, strcmp(name, "depthwise") == 0 ? 1 : 96, 1, 0, 0};
        memcpy(use.n + 23, rest, sizeof rest);
        for (size_t k = 0; k < MLO_COUNT(shapes); k++)
            if (strcmp(name, shapes[k].name) == 0) {
                memset(use.n + shapes[k].from, 0, sizeof use.n - (size_t)shapes[k].from * sizeof *use.n);
                memcpy(use.n + shapes[k].from, shapes[k].n,
                       sizeof use.n - (size_t)shapes[k].from * sizeof *use.n);
                use.types[1] = shapes[k].second ? shapes[k].second : dtype;
            }
        bool searches = strcmp(name, "argmax") == 0 || strcmp(name, "topk") == 0;
        if (searches && dtype == MLO_FLOAT8E4M3FN) {
            assert_int_equal(cuda_kernel_source(&use, &source, &err), MLO_EUNSUPPORTED);
            continue;
        }
        assert_ok(cuda_kernel_source(&use, &source, &err));
        check_nvrtc(n, &source, sm, what);
        cuda_source_clear(&source);
    }
}

static void test_nvrtc__takes_every_row_within_its_registers(void **state)
{
    MLO_UNUSED(state);
    struct nvrtc n;
    if (!nvrtc_open(&n))
        return;
    if (getenv("MLOPT_CUDA_ALL")) {
        static const int architectures[] = {80, 90, 100};
        static const enum mlo_dtype types[] = {MLO_FLOAT32, MLO_FLOAT16, MLO_BFLOAT16, MLO_INT8,
                                               MLO_FLOAT8E4M3FN};
        for (size_t a = 0; a < MLO_COUNT(architectures); a++)
            for (size_t t = 0; t < MLO_COUNT(types); t++)
                check_rows(&n, architectures[a], types[t]);
        return;
    }
    check_rows(&n, 80, MLO_FLOAT32);
    check_rows(&n, 90, MLO_FLOAT16);
    check_rows(&n, 100, MLO_INT8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions__are_the_references),
        cmocka_unit_test(test_pooling__is_the_references),
        cmocka_unit_test(test_products__are_what_their_sums_say),
        cmocka_unit_test(test_attention__is_softmax_between_products),
        cmocka_unit_test(test_gather__takes_rows_of_any_type),
        cmocka_unit_test(test_transpose__turns_matrices),
        cmocka_unit_test(test_searches__are_the_references),
        cmocka_unit_test(test_pad__is_the_references),
        cmocka_unit_test(test_resize__is_the_references),
        cmocka_unit_test(test_embedding__adds_and_normalizes),
        cmocka_unit_test(test_steps__give_kernels_that_their_slots_allow),
        cmocka_unit_test(test_nvrtc__takes_every_row_within_its_registers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
