/* Windows of the invariant numerics in shapes that nets rarely have, and that nobody means well with. */
#include <unistd.h>

#include "invariant_helpers.h"

struct shape {
    int64_t batch, ic, oc, groups, in[2], kernel[2], stride[2], dilation[2], pads[4];
    const char *auto_pad;
};

/* spatial: 1 takes the second of each pair. */
static struct mlo_node *window_node(struct net *n, const struct shape *s, int spatial, const char *op,
                                    struct mlo_value *x, struct mlo_value *w)
{
    struct mlo_node *node = net_node(n, op, x, w, NULL);
    const int skip = 2 - spatial;
    const int64_t pads[2][4] = {{s->pads[1], s->pads[3]}, {s->pads[0], s->pads[1], s->pads[2], s->pads[3]}};
    assert_true(mlo_node_set_ints(node, "strides", s->stride + skip, (size_t)spatial));
    assert_true(mlo_node_set_ints(node, "dilations", s->dilation + skip, (size_t)spatial));
    if (s->auto_pad)
        assert_true(mlo_node_set_s(node, "auto_pad", s->auto_pad));
    else
        assert_true(mlo_node_set_ints(node, "pads", pads[spatial - 1], 2 * (size_t)spatial));
    return node;
}

static struct mlo_node *conv_node(struct net *n, const struct shape *s, int spatial)
{
    int64_t x[4] = {s->batch, s->ic}, w[4] = {s->oc, s->ic / s->groups};
    memcpy(x + 2, s->in + 2 - spatial, (size_t)spatial * sizeof *x);
    memcpy(w + 2, s->kernel + 2 - spatial, (size_t)spatial * sizeof *w);
    struct mlo_node *conv = window_node(n, s, spatial, "Conv", net_input(n, "x", 2 + spatial, x),
                                        net_floats(n, 2 + spatial, w, 1));
    assert_true(mlo_node_set_i(conv, "group", s->groups));
    net_finish(n, conv->outputs[0]);
    return conv;
}

/* The documented chain, from 0. */
static void plain_conv(const struct shape *s, const int64_t *out, const float *x, const float *w, float *y)
{
    const int64_t icg = s->ic / s->groups, ocg = s->oc / s->groups, taps = s->kernel[0] * s->kernel[1];
    for (int64_t i = 0; i < s->batch * s->oc * out[0] * out[1]; i++) {
        const int64_t column = i % out[1], line = i / out[1] % out[0], o = i / (out[0] * out[1]) % s->oc,
                      sample = i / (out[0] * out[1] * s->oc);
        float acc = 0;
        for (int64_t k = 0; k < icg * taps; k++) {
            const int64_t c = k / taps + o / ocg * icg;
            const int64_t h = line * s->stride[0] - s->pads[0] + k % taps / s->kernel[1] * s->dilation[0];
            const int64_t v = column * s->stride[1] - s->pads[1] + k % s->kernel[1] * s->dilation[1];
            const bool inside = h >= 0 && h < s->in[0] && v >= 0 && v < s->in[1];
            acc = fmaf(w[o * icg * taps + k],
                       inside ? x[((sample * s->ic + c) * s->in[0] + h) * s->in[1] + v] : 0, acc);
        }
        y[i] = acc;
    }
}

static const struct shape shapes[] = {
    {1, 3, 5, 1, {9, 21}, {1, 5}, {1, 1}, {1, 1}, {0, 2, 0, 2}, NULL},
    {2, 3, 5, 1, {21, 9}, {5, 1}, {1, 1}, {1, 1}, {2, 0, 2, 0}, NULL},
    {1, 4, 6, 1, {8, 17}, {3, 3}, {1, 1}, {1, 1}, {3, 0, 0, 1}, NULL},
    {3, 4, 6, 1, {8, 17}, {3, 3}, {1, 1}, {1, 1}, {0, 3, 1, 0}, NULL},
    {1, 4, 70, 1, {5, 16}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, NULL},
    {2, 4, 70, 1, {7, 15}, {3, 2}, {1, 1}, {1, 1}, {1, 1, 1, 0}, NULL},
    {1, 2, 9, 1, {3, 32}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, NULL},
    {1, 2, 9, 1, {3, 127}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, NULL},
    {1, 2, 9, 1, {3, 128}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, NULL},
    {2, 2, 9, 1, {3, 300}, {3, 3}, {1, 2}, {1, 1}, {1, 1, 1, 1}, NULL},
    {1, 6, 6, 6, {13, 29}, {3, 5}, {1, 1}, {1, 1}, {1, 2, 1, 2}, NULL},
    {2, 6, 12, 6, {13, 29}, {5, 3}, {2, 3}, {1, 1}, {2, 0, 1, 2}, NULL},
    {1, 4, 8, 2, {12, 12}, {3, 3}, {3, 2}, {2, 3}, {2, 3, 2, 3}, NULL},
    {3, 5, 7, 1, {1, 49}, {1, 3}, {1, 1}, {1, 1}, {0, 1, 0, 1}, NULL},
    {3, 5, 7, 1, {7, 7}, {7, 7}, {1, 1}, {1, 1}, {6, 6, 6, 6}, NULL},
    {2, 3, 4, 1, {6, 6}, {2, 2}, {4, 5}, {1, 1}, {0, 0, 3, 4}, NULL},
};

static void check_conv(const struct shape *s, int spatial, const char *what)
{
    struct net n = net_new(9);
    struct mlo_node *conv = conv_node(&n, s, spatial);
    int64_t x_dims[MLO_MAX_RANK], y_dims[MLO_MAX_RANK], out[2] = {1, 1};
    assert_true(mlo_type_static(&conv->inputs[0]->type, x_dims));
    assert_true(mlo_type_static(&conv->outputs[0]->type, y_dims));
    memcpy(out + 2 - spatial, y_dims + 2, (size_t)spatial * sizeof *out);
    struct mlo_tensor x = random_tensor(2 + spatial, x_dims, 11), want = {0};
    MUST(mlo_tensor_init(&want, MLO_FLOAT32, 2 + spatial, y_dims, err));
    plain_conv(s, out, x.data, conv->inputs[1]->constant->data, want.data);
    assert_everywhere(n.model, &x, &want, what);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&x);
    mlo_model_free(n.model);
}

static void test_conv__of_any_shape_is_the_chain(void **state)
{
    MLO_UNUSED(state);
    char what[32];
    for (size_t i = 0; i < MLO_COUNT(shapes); i++) {
        snprintf(what, sizeof what, "shape %zu", i);
        check_conv(&shapes[i], 2, what);
    }
}

static void test_conv__of_one_dim_is_the_chain(void **state)
{
    MLO_UNUSED(state);
    char what[32];
    for (size_t i = 0; i < MLO_COUNT(shapes); i++) {
        struct shape s = shapes[i];
        s.in[0] = s.kernel[0] = s.stride[0] = s.dilation[0] = 1;
        s.pads[0] = s.pads[2] = 0;
        snprintf(what, sizeof what, "line %zu", i);
        check_conv(&s, 1, what);
    }
}

/* Totals of pixels about multiples of a panel, so that the last ones have any number of vectors. */
static void test_conv__of_any_number_of_pixels_is_the_chain(void **state)
{
    MLO_UNUSED(state);
    char what[32];
    for (int64_t width = 45; width <= 116; width += width % 8 == 1 ? 1 : 3)
        for (int64_t batch = 1; batch <= 2; batch++) {
            const struct shape s = {batch, 3, 5, 1, {1, width}, {1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}, NULL};
            snprintf(what, sizeof what, "%d pixels", (int)(batch * width));
            check_conv(&s, 2, what);
        }
}

/* A copy with its border beyond all sizes, or as many parts as no memory holds: left to the op table's row,
 * or refused when it is loaded, but neither counted beyond 64 bits nor for longer than there are weights. */
static void test_conv__of_hostile_shapes_is_compiled_at_once(void **state)
{
    MLO_UNUSED(state);
    static const struct shape hostile[] = {
        {1, 1, 1, 1, {1, 1}, {1, 1}, {1 << 19, 1 << 19}, {1, 1}, {1 << 19, 1 << 19, 0, 0}, NULL},
        {1, 1, 1, 1, {1, 1}, {1, 1}, {1 << 20, 1 << 10}, {1, 1}, {1 << 20, 1 << 10, 0, 0}, NULL},
        {8192, 1, 1, 1, {8192, 1}, {1, 1000}, {1, 1}, {1, 1 << 30}, {0}, "SAME_UPPER"},
        {8192, 2, 2, 2, {8192, 1}, {1, 1000}, {1, 1}, {1, 1 << 30}, {0}, "SAME_LOWER"},
        {1, 1, 1, 1, {1, (int64_t)1 << 36}, {1, 1}, {1 << 30, 1}, {1, 1}, {1 << 29, 0, 0, 0}, NULL},
    };
    alarm(300); /* the first one took tens of minutes */
    for (size_t i = 0; i < MLO_COUNT(hostile); i++) {
        struct net n = net_new(1);
        conv_node(&n, &hostile[i], 2);
        for (int isa = MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512; isa++) {
            struct mlo_compile_options o = {.threads = 1, .numerics = MLO_NUMERICS_INVARIANT};
            struct mlo_error problem = {0};
            struct mlo_plan *plan = NULL;
            mlo_isa_override(isa);
            if (mlo_engine_cpu.compile(n.model, &o, &plan, &problem) == MLO_OK)
                mlo_engine_cpu.free_plan(plan);
            mlo_isa_override(-1);
        }
        mlo_model_free(n.model);
    }
    alarm(0);
}

/* Weights whose distance, with the border that it needs, is beyond what can be copied: left to the row. */
static void test_conv__of_weights_far_apart_is_left_to_its_row(void **state)
{
    MLO_UNUSED(state);
    const int64_t apart = ((int64_t)1 << 30) - 1; /* 2^32 lines of 2^32 columns */
    for (int64_t channels = 1; channels <= 2; channels++) {
        struct net n = net_new(1);
        struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){1, channels, 4, 4});
        struct mlo_value *w = net_floats(&n, 4, (int64_t[]){channels, 1, 5, 5}, 1);
        struct mlo_node *conv = net_node(&n, "Conv", x, w, NULL);
        assert_true(mlo_node_set_ints(conv, "dilations", (int64_t[]){apart, apart}, 2));
        assert_true(mlo_node_set_i(conv, "group", channels));
        assert_true(mlo_node_set_s(conv, "auto_pad", "SAME_UPPER"));
        net_finish(&n, conv->outputs[0]);
        check_bits(&n, "reference", "Conv");
    }
}

static void test_max_pool__has_the_bits_of_the_op_table(void **state)
{
    MLO_UNUSED(state);
    static const struct shape pools[] = {
        {2, 3, 0, 0, {11, 37}, {2, 2}, {1, 1}, {1, 1}, {1, 1, 1, 1}, NULL},
        {2, 3, 0, 0, {11, 37}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, NULL},
        {2, 3, 0, 0, {11, 37}, {2, 2}, {2, 2}, {1, 1}, {1, 1, 1, 1}, NULL},
        {2, 3, 0, 0, {11, 37}, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, NULL},
        {2, 3, 0, 0, {11, 37}, {3, 3}, {3, 3}, {1, 1}, {1, 1, 1, 1}, NULL},
        {1, 2, 0, 0, {9, 40}, {3, 3}, {1, 1}, {2, 3}, {2, 2, 2, 2}, NULL},
        {1, 2, 0, 0, {9, 40}, {3, 2}, {2, 1}, {1, 4}, {0, 0, 1, 0}, NULL},
        {1, 2, 0, 0, {5, 6}, {2, 3}, {1, 2}, {1, 1}, {1, 0, 0, 2}, NULL},
        {1, 1, 0, 0, {3, 3}, {3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}, NULL},
        {1, 1, 0, 0, {4, 16}, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, NULL},
        {1, 1, 0, 0, {4, 33}, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, NULL},
    };
    for (size_t i = 0; i < MLO_COUNT(pools); i++)
        for (int spatial = 1; spatial <= 2; spatial++)
            for (int ceil_mode = 0; ceil_mode <= 1; ceil_mode++) {
                const struct shape *s = &pools[i];
                struct net n = net_new(2);
                int64_t x[4] = {s->batch, s->ic};
                memcpy(x + 2, s->in + 2 - spatial, (size_t)spatial * sizeof *x);
                struct mlo_node *p =
                    window_node(&n, s, spatial, "MaxPool", net_input(&n, "x", 2 + spatial, x), NULL);
                assert_true(mlo_node_set_ints(p, "kernel_shape", s->kernel + 2 - spatial, (size_t)spatial));
                assert_true(mlo_node_set_i(p, "ceil_mode", ceil_mode));
                net_finish(&n, p->outputs[0]);
                check_bits(&n, NULL, "MaxPool");
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv__of_any_shape_is_the_chain),
        cmocka_unit_test(test_conv__of_one_dim_is_the_chain),
        cmocka_unit_test(test_conv__of_any_number_of_pixels_is_the_chain),
        cmocka_unit_test(test_conv__of_hostile_shapes_is_compiled_at_once),
        cmocka_unit_test(test_conv__of_weights_far_apart_is_left_to_its_row),
        cmocka_unit_test(test_max_pool__has_the_bits_of_the_op_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
