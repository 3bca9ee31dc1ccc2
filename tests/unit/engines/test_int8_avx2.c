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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8__is_refused_where_sums_would_saturate),
        cmocka_unit_test(test_int8__runs_where_weights_are_small),
        cmocka_unit_test(test_int8__is_refused_where_weights_would_lose_a_bit),
    };
    return cmocka_run_group_tests(tests, lower_isa, NULL);
}
