/* int8 depthwise convolutions against a plain loop over integers: exact sums, and the same float operations
 * behind them, bit for bit. */
#include "engines/cpu/fast/fast_impl.h"
#include "qhelpers.h"

enum output { BYTES, CLAMPED, FLOATS, SWISH, OUTPUTS };

struct shape {
    int64_t channels, size[2], kernel[2], stride[2], dilation[2], pads[4];
};

struct sample {
    struct shape s;
    enum mlo_dtype x_dtype, y_dtype;
    int x_zero, y_zero;
    float x_scale, y_scale, *w_scales, *bias;
    int64_t out[2], batch;
    int8_t *w, *x; /* x: bytes of either type, channels first */
    enum output output;
};

static uint32_t seed;

static int any(int low, int high)
{
    seed = seed * 1664525u + 1013904223u;
    return low + (int)((seed >> 8) % (uint32_t)(high - low + 1));
}

static int any_of(enum mlo_dtype dtype)
{
    int low = dtype == MLO_INT8 ? -128 : 0;
    return any(0, 3) ? any(low, low + 255) : low + 255 * any(0, 1);
}

static int x_at(const struct sample *s, size_t i)
{
    return s->x_dtype == MLO_INT8 ? s->x[i] : (uint8_t)s->x[i];
}

static int32_t sum_of(const struct sample *s, int64_t n, int64_t c, int64_t h, int64_t w)
{
    const struct shape *g = &s->s;
    int32_t sum = 0;
    for (int64_t i = 0; i < g->kernel[0]; i++)
        for (int64_t j = 0; j < g->kernel[1]; j++) {
            int64_t a = h * g->stride[0] - g->pads[0] + i * g->dilation[0],
                    b = w * g->stride[1] - g->pads[1] + j * g->dilation[1];
            if (a < 0 || b < 0 || a >= g->size[0] || b >= g->size[1])
                continue;
            int x = x_at(s, (size_t)(((n * g->channels + c) * g->size[0] + a) * g->size[1] + b));
            sum += (x - s->x_zero) * s->w[(c * g->kernel[0] + i) * g->kernel[1] + j];
        }
    return sum;
}

static float clamped(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}

/* What the output is; of bytes, as the number that stands for it. */
static float expect(const struct sample *s, int32_t sum, int64_t c)
{
    const bool quantized = s->output == BYTES || s->output == CLAMPED;
    double unit = (double)s->x_scale * (double)s->w_scales[c], y = quantized ? (double)s->y_scale : 1.0;
    float v = fmaf((float)sum, (float)(unit / y), (float)((double)s->bias[c] / y)),
          lowest = s->y_dtype == MLO_INT8 ? -128.0f : 0.0f;
    if (s->output == FLOATS)
        return clamped(v, 0.0f, 6.0f);
    if (s->output == SWISH) {
        v = v / (1.0f + expf(-v));
        v = v / s->y_scale;
    } else if (s->output == CLAMPED) {
        v = clamped(v, 0.0f, rintf(6.0f / s->y_scale));
    }
    return clamped(rintf(v) + (float)s->y_zero, lowest, lowest + 255.0f);
}

static struct net build(const struct sample *s)
{
    const struct shape *g = &s->s;
    struct net n = net_new(1);
    int64_t dims[] = {s->batch, g->channels, g->size[0], g->size[1]},
            w_dims[] = {g->channels, 1, g->kernel[0], g->kernel[1]};
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, dims), s->x_scale, s->x_zero, s->x_dtype);
    struct mlo_node *w = net_node(&n, "DequantizeLinear", net_constant(&n, MLO_INT8, 4, w_dims, s->w),
                                  net_constant(&n, MLO_FLOAT32, 1, w_dims, s->w_scales), NULL);
    assert_true(mlo_node_set_i(w, "axis", 0));
    struct mlo_node *c =
        net_node(&n, "Conv", x, w->outputs[0], net_constant(&n, MLO_FLOAT32, 1, w_dims, s->bias));
    assert_true(mlo_node_set_ints(c, "kernel_shape", g->kernel, 2));
    assert_true(mlo_node_set_ints(c, "strides", g->stride, 2));
    assert_true(mlo_node_set_ints(c, "dilations", g->dilation, 2));
    assert_true(mlo_node_set_ints(c, "pads", g->pads, 4));
    assert_true(mlo_node_set_i(c, "group", g->channels));
    struct mlo_value *y = c->outputs[0];
    if (s->output == CLAMPED || s->output == FLOATS)
        y = net_op(&n, "Clip", y, net_scalar(&n, MLO_FLOAT32, 0.0), net_scalar(&n, MLO_FLOAT32, 6.0));
    if (s->output == SWISH)
        y = net_op(&n, "Mul", y, net_op(&n, "Sigmoid", y, NULL, NULL), NULL);
    net_finish(&n, s->output == FLOATS ? y : qdq(&n, y, s->y_scale, s->y_zero, s->y_dtype));
    return n;
}

static void compare(const struct sample *s, const struct mlo_tensor *got, const char *what)
{
    const struct shape *g = &s->s;
    size_t i = 0, off = 0;
    assert_int_equal(mlo_tensor_count(got), s->batch * g->channels * s->out[0] * s->out[1]);
    for (int64_t n = 0; n < s->batch; n++)
        for (int64_t c = 0; c < g->channels; c++)
            for (int64_t h = 0; h < s->out[0]; h++)
                for (int64_t w = 0; w < s->out[1]; w++, i++) {
                    float want = expect(s, sum_of(s, n, c, h, w), c), v = ((const float *)got->data)[i];
                    if (s->output != FLOATS)
                        v = rintf(v / s->y_scale) + (float)s->y_zero;
                    off += v != want;
                    if (fabsf(v - want) > (s->output == SWISH ? 1.0f : 0.0f))
                        fail_msg("%s: image %d, channel %d, pixel %d %d is %g, wanted %g", what, (int)n,
                                 (int)c, (int)h, (int)w, (double)v, (double)want);
                }
    if (off > i / 100 + 1)
        fail_msg("%s: %zu of %zu are off", what, off, i);
}

static void run(struct sample *s)
{
    const struct shape *g = &s->s;
    char what[160];
    int64_t dims[] = {s->batch, g->channels, g->size[0], g->size[1]};
    size_t taps = (size_t)(g->kernel[0] * g->kernel[1]), channels = (size_t)g->channels;
    size_t count = (size_t)(s->batch * g->size[0] * g->size[1]) * channels;
    struct mlo_tensor in = random_tensor(4, dims, 1);
    s->x = calloc(count, 1);
    s->w = calloc(channels, taps);
    s->w_scales = calloc(channels, sizeof(float));
    s->bias = calloc(channels, sizeof(float));
    assert_true(s->x && s->w && s->w_scales && s->bias);
    for (size_t i = 0; i < count; i++) {
        s->x[i] = (int8_t)any_of(s->x_dtype);
        ((float *)in.data)[i] = (float)(x_at(s, i) - s->x_zero) * s->x_scale;
    }
    for (size_t i = 0; i < channels * taps; i++)
        s->w[i] = (int8_t)any_of(MLO_INT8);
    const bool powers = any(0, 1); /* results that are exact meet ties of rounding */
    for (size_t c = 0; c < channels; c++) {
        s->w_scales[c] = powers ? ldexpf(1.0f, -any(7, 12)) : (float)any(10, 300) / 100000.0f;
        s->bias[c] = powers ? (float)any(-80, 80) / 32.0f : (float)any(-3000, 3000) / 1000.0f;
    }
    for (int i = 0; i < 2; i++)
        s->out[i] = (g->size[i] + g->pads[i] + g->pads[i + 2] - (g->kernel[i] - 1) * g->dilation[i] - 1) /
                        g->stride[i] +
                    1;
    struct net n = build(s);
    for (int threads = 1; threads <= 2; threads++) {
        snprintf(what, sizeof what,
                 "%d channels, kernel %dx%d, stride %dx%d, dilation %dx%d, size %dx%d, form %d, %d threads",
                 (int)g->channels, (int)g->kernel[0], (int)g->kernel[1], (int)g->stride[0], (int)g->stride[1],
                 (int)g->dilation[0], (int)g->dilation[1], (int)g->size[0], (int)g->size[1], (int)s->output,
                 threads);
        struct mlo_compile_options o = {.threads = threads};
        json_t *d = NULL;
        struct mlo_tensor got = run_model("cpu", n.model, &o, &in, &d);
        char *text = json_dumps(d, 0);
        if (!strstr(text, "depthwise:avx512-vnni int8"))
            fail_msg("%s: other kernels: %s", what, text);
        compare(s, &got, what);
        free(text);
        json_decref(d);
        mlo_tensor_clear(&got);
    }
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
    free(s->x);
    free(s->w);
    free(s->w_scales);
    free(s->bias);
}

static void set_numbers(struct sample *s, size_t i)
{
    s->batch = i % 3 ? 1 : 2;
    s->x_dtype = i % 2 ? MLO_INT8 : MLO_UINT8;
    s->y_dtype = i / 2 % 2 ? MLO_INT8 : MLO_UINT8;
    s->x_zero = any(0, 3) ? any_of(s->x_dtype) : 0;
    s->y_zero = any(0, 3) ? any_of(s->y_dtype) : 0;
    s->x_scale = 0.03125f;
    s->y_scale = 0.0625f;
}

static void test_depthwise__equals_a_plain_loop(void **state)
{
    MLO_UNUSED(state);
    static const struct shape shapes[] = {
        {32, {12, 13}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
        {64, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
        {144, {9, 20}, {3, 3}, {2, 2}, {1, 1}, {0, 0, 1, 1}},
        {70, {10, 14}, {5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}},
        {17, {9, 9}, {5, 5}, {2, 2}, {1, 1}, {1, 2, 2, 1}},
        {33, {8, 9}, {7, 7}, {1, 1}, {1, 1}, {3, 3, 3, 3}},
        {16, {12, 12}, {3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}},
        {5, {2, 2}, {3, 3}, {3, 3}, {1, 1}, {4, 5, 4, 5}}, /* outputs of padding only */
        {65, {1, 30}, {1, 3}, {1, 1}, {1, 1}, {0, 1, 0, 1}},
        {24, {30, 1}, {3, 1}, {2, 1}, {1, 1}, {1, 0, 1, 0}},
        {100, {3, 3}, {3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    };
    need_isa(MLO_ISA_AVX512_VNNI);
    seed = 1;
    for (size_t i = 0; i < MLO_COUNT(shapes); i++)
        for (enum output f = BYTES; f < OUTPUTS; f++) {
            struct sample s = {.s = shapes[i], .output = f};
            set_numbers(&s, i + f);
            run(&s);
        }
}

static void test_depthwise__any_geometry(void **state)
{
    MLO_UNUSED(state);
    need_isa(MLO_ISA_AVX512_VNNI);
    seed = 2;
    for (size_t i = 0; i < 200; i++) {
        struct sample s = {.s = {.channels = any(2, 70)}, .output = (enum output)any(0, OUTPUTS - 1)};
        int square = any(0, 1) ? any(1, 2) * 2 + 1 : 0; /* the known shapes, else any */
        for (int k = 0; k < 2; k++) {
            s.s.kernel[k] = square ? square : any(1, 7);
            s.s.stride[k] = any(1, 3);
            s.s.dilation[k] = any(0, 2) ? 1 : any(1, 3);
            s.s.pads[k] = any(0, 4);
            s.s.pads[k + 2] = any(0, 4);
            int64_t least = (s.s.kernel[k] - 1) * s.s.dilation[k] + 1 - s.s.pads[k] - s.s.pads[k + 2];
            s.s.size[k] = MLO_MAX(least, 1) + any(0, 9);
        }
        set_numbers(&s, i);
        run(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_depthwise__equals_a_plain_loop),
        cmocka_unit_test(test_depthwise__any_geometry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
