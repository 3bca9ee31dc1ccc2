/* Without VNNI, u8 x s8 products are added at 16 bits: int8 runs only where the weights cannot saturate that.
 * The process as a whole is limited to AVX2, since oneDNN reads its limit once. */
#include "qhelpers.h"

static int lower_isa(void **state)
{
    MLO_UNUSED(state);
    return setenv("MLOPT_ISA", "avx2", 1);
}

static void check_conv(enum mlo_dtype dtype, float largest, int expected)
{
    struct net n = net_new(11);
    struct conv_spec s = {16, 32, 3, 1, 1, 1, 1, 10, true};
    int64_t dims[] = {2, 16, 10, 10};
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 4, dims), 0.008f, 0, dtype);
    struct mlo_value *y = net_op(&n, "Relu", qconv_within(&n, x, 0.008f, &s, largest), NULL, NULL);
    net_finish(&n, qdq(&n, y, 0.02f, 0, MLO_UINT8));
    struct mlo_tensor in = random_tensor(4, dims, 3);
    for (size_t i = 0; i < mlo_tensor_count(&in); i++) /* large inputs, where sums would saturate */
        ((float *)in.data)[i] = 1.0f + fabsf(((float *)in.data)[i]);
    json_t *d = NULL;
    check(&n, &in, 0, 0.02f, "conv", &d);
    assert_string_equal(json_string_value(json_object_get(d, "isa")), "avx2");
    assert_int_equal(int8_ops(d, "Conv"), expected);
    json_decref(d);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_int8__is_refused_where_sums_would_saturate(void **state)
{
    MLO_UNUSED(state);
    need_isa(MLO_ISA_AVX2);
    check_conv(MLO_UINT8, 127.0f, 0);
}

static void test_int8__runs_where_weights_are_small(void **state)
{
    MLO_UNUSED(state);
    need_isa(MLO_ISA_AVX2);
    check_conv(MLO_UINT8, 64.0f, 1);
}

/* oneDNN's convolutions of int8 inputs keep seven bits of the weights there. */
static void test_int8__is_refused_where_weights_would_lose_a_bit(void **state)
{
    MLO_UNUSED(state);
    need_isa(MLO_ISA_AVX2);
    check_conv(MLO_INT8, 63.0f, 0);
}

/* x W + b, then what is not the same in other units, then a QuantizeLinear with a zero point: oneDNN 2.6
 * keeps one set of numbers for two `linear` of a chain, which turned the outputs into multiples of 1 / scale.
 */
static void check_product(const char *activation, int zp)
{
    struct net n = net_new(13);
    int64_t dims[] = {3, 7, 24}, columns = 32;
    const float *w_scales;
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 3, dims), 0.008f, 0, MLO_UINT8);
    struct mlo_node *w = weights(&n, 2, (int64_t[]){24, columns}, 0.5f, 64.0f, &w_scales)->producer;
    struct mlo_value *y = NULL;
    float scales[32];
    for (int i = 0; i < 32; i++)
        scales[i] = 0.02f + 0.001f * (float)i;
    y = net_op(&n, "DequantizeLinear", w->inputs[0], net_constant(&n, MLO_FLOAT32, 1, &columns, scales),
               NULL);
    assert_true(mlo_node_set_i(y->producer, "axis", 1));
    y = net_op(&n, "MatMul", x, y, NULL);
    y = net_op(&n, "Add", y, net_floats(&n, 1, &columns, 0.5f), NULL);
    if (strcmp(activation, "gelu") == 0) {
        struct mlo_value *e = net_op(&n, "Div", y, net_scalar(&n, MLO_FLOAT32, sqrt(2)), NULL);
        e = net_op(&n, "Add", net_op(&n, "Erf", e, NULL, NULL), net_scalar(&n, MLO_FLOAT32, 1), NULL);
        y = net_op(&n, "Mul", net_op(&n, "Mul", y, e, NULL), net_scalar(&n, MLO_FLOAT32, 0.5), NULL);
    } else if (strcmp(activation, "swish") == 0) {
        y = net_op(&n, "Mul", y, net_op(&n, "Sigmoid", y, NULL, NULL), NULL);
    } else {
        y = net_op(&n, activation, y, NULL, NULL);
    }
    const float scale = strcmp(activation, "Sigmoid") && strcmp(activation, "Tanh") ? 0.02f : 0.008f;
    net_finish(&n, qdq(&n, y, scale, zp, MLO_UINT8));
    struct mlo_tensor in = random_tensor(3, dims, 5);
    json_t *d = NULL;
    check(&n, &in, 0, scale, activation, &d);
    assert_int_equal(int8_ops(d, "MatMul"), 1);
    json_decref(d);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_int8__activations_and_zero_points_in_one_step(void **state)
{
    MLO_UNUSED(state);
    need_isa(MLO_ISA_AVX2);
    static const char *const ACTIVATIONS[] = {"gelu", "swish", "Sigmoid", "Tanh", "Elu", "HardSwish", "Relu"};
    for (size_t i = 0; i < MLO_COUNT(ACTIVATIONS); i++)
        for (int zp = 0; zp <= 128; zp += zp ? 118 : 10)
            check_product(ACTIVATIONS[i], zp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8__is_refused_where_sums_would_saturate),
        cmocka_unit_test(test_int8__runs_where_weights_are_small),
        cmocka_unit_test(test_int8__is_refused_where_weights_would_lose_a_bit),
        cmocka_unit_test(test_int8__activations_and_zero_points_in_one_step),
    };
    return cmocka_run_group_tests(tests, lower_isa, NULL);
}
