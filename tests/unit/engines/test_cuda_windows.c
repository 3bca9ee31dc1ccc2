/* Kernels with fixed bodies that slide windows: convolutions and pooling, on a CPU against the reference
 * kernels of graph/. */
#include "cuda_kernels.h"

/* --- convolutions --------------------------------------------------------------------------------------- */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions__are_the_references),
        cmocka_unit_test(test_pooling__is_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
