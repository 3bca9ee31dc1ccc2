#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/dtype_impl.h"
#include "graph/graph.h"

static void test_f16__round_trips_every_half(void **state)
{
    MLO_UNUSED(state);
    for (unsigned h = 0; h < 65536; h++) {
        float f = mlo_f16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(mlo_f16_to_f32(mlo_f32_to_f16(f))));
        else
            assert_int_equal(mlo_f32_to_f16(f), h);
    }
}

#ifdef __FLT16_MAX__ /* clang 14 has no _Float16 on x86 */
static void test_f16__matches_the_compiler(void **state)
{
    MLO_UNUSED(state);
    uint32_t bits = 1;
    for (int i = 0; i < 200000; i++) { /* a walk over all exponents */
        bits = bits * 1664525u + 1013904223u;
        float f;
        memcpy(&f, &bits, sizeof f);
        if (isnan(f))
            continue;
        _Float16 want = (_Float16)f;
        uint16_t code;
        memcpy(&code, &want, sizeof code);
        if (mlo_f32_to_f16(f) != code)
            fail_msg("%a becomes %04x, not %04x", (double)f, mlo_f32_to_f16(f), code);
    }
}

#endif

static void test_bf16__rounds_half_to_even(void **state)
{
    MLO_UNUSED(state);
    assert_int_equal(mlo_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(mlo_f32_to_bf16(1.00390625f), 0x3f80); /* half way, even below */
    assert_int_equal(mlo_f32_to_bf16(1.01171875f), 0x3f82); /* half way, even above */
    assert_int_equal(mlo_f32_to_bf16(FLT_MAX), 0x7f80);
    assert_true(isnan(mlo_bf16_to_f32(mlo_f32_to_bf16(NAN))));
}

static void test_float8__known_values(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        enum mlo_dtype dtype;
        float in, out;
    } cases[] = {
        {MLO_FLOAT8E4M3FN, 1000, 448},     {MLO_FLOAT8E4M3FN, -0.0019531f, -0.001953125f},
        {MLO_FLOAT8E4M3FN, 17, 16},        {MLO_FLOAT8E5M2, 3.3f, 3.5f},
        {MLO_FLOAT8E5M2, 1e9f, 57344},     {MLO_FLOAT8E4M3FNUZ, 1000, 240},
        {MLO_FLOAT8E5M2FNUZ, 1e9f, 57344}, {MLO_FLOAT8E5M2FNUZ, 0.25f, 0.25f},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_tensor t;
        assert_int_equal(mlo_tensor_init(&t, cases[i].dtype, 0, NULL, NULL), MLO_OK);
        mlo_tensor_set_f64(&t, 0, cases[i].in);
        if (mlo_tensor_get_f64(&t, 0) != cases[i].out)
            fail_msg("case %zu: %g becomes %g, not %g", i, (double)cases[i].in, mlo_tensor_get_f64(&t, 0),
                     (double)cases[i].out);
        mlo_tensor_clear(&t);
    }
}

static void test_float8__overflow_without_saturation(void **state)
{
    MLO_UNUSED(state);
    assert_int_equal(mlo_f32_to_f8_overflow(MLO_FLOAT8E4M3FN, -1000), 0xff);
    assert_int_equal(mlo_f32_to_f8_overflow(MLO_FLOAT8E4M3FN, 448), 0x7e);
    assert_int_equal(mlo_f32_to_f8_overflow(MLO_FLOAT8E5M2, 1e9f), 0x7c);
    assert_int_equal(mlo_f32_to_f8_overflow(MLO_FLOAT8E4M3FNUZ, 1000), 0x80);
    assert_int_equal(mlo_f32_to_f8_overflow(MLO_FLOAT8E5M2FNUZ, -INFINITY), 0x80);
}

static void test_tensor__set_rounds_and_saturates(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        enum mlo_dtype dtype;
        double in;
        int64_t out;
    } cases[] = {
        {MLO_INT8, 2.5, 2},          {MLO_INT8, 3.5, 4},
        {MLO_INT8, -1000, -128},     {MLO_UINT8, -3, 0},
        {MLO_UINT8, 255.5, 255},     {MLO_INT4, 9, 7},
        {MLO_INT4, -9, -8},          {MLO_UINT4, 15.6, 15},
        {MLO_INT32, 3e9, INT32_MAX}, {MLO_INT64, 1e300, INT64_MAX},
        {MLO_BOOL, 0.1, 1},          {MLO_INT16, -2.5, -2},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_tensor t;
        int64_t dims[1] = {3};
        assert_int_equal(mlo_tensor_init(&t, cases[i].dtype, 1, dims, NULL), MLO_OK);
        mlo_tensor_set_f64(&t, 1, cases[i].in);
        assert_int_equal(mlo_tensor_get_i64(&t, 1), cases[i].out);
        assert_int_equal(mlo_tensor_get_i64(&t, 0), 0); /* the neighbours are untouched */
        assert_int_equal(mlo_tensor_get_i64(&t, 2), 0);
        mlo_tensor_clear(&t);
    }
}

static void test_shape__overflow_and_negatives_are_refused(void **state)
{
    MLO_UNUSED(state);
    size_t n;
    int64_t huge[3] = {MLO_MAX_DIM, MLO_MAX_DIM, 2}, zero[3] = {MLO_MAX_DIM, 0, MLO_MAX_DIM},
            negative[2] = {0, -1}, above[2] = {0, MLO_MAX_DIM + 1};
    assert_false(mlo_shape_count(3, huge, &n));
    assert_true(mlo_shape_count(3, zero, &n) && n == 0);
    assert_false(mlo_shape_count(2, negative, &n));
    assert_false(mlo_shape_count(2, above, &n));
    int64_t half[2] = {MLO_MAX_DIM, (int64_t)1 << 22};
    assert_false(mlo_shape_bytes(MLO_INT64, 2, half, &n));
    int64_t odd[1] = {3};
    assert_true(mlo_shape_bytes(MLO_INT4, 1, odd, &n) && n == 2);
    struct mlo_tensor t;
    struct mlo_error err = {0};
    int64_t large[2] = {1 << 20, 1 << 24};
    assert_int_equal(mlo_tensor_init(&t, MLO_FLOAT64, 2, large, &err), MLO_ETOOBIG);
    assert_null(t.data);
}

static void test_dtype__names_parse_back(void **state)
{
    MLO_UNUSED(state);
    for (int i = 1; i < MLO_DTYPE_COUNT; i++)
        assert_int_equal(mlo_dtype_parse(mlo_dtype_name((enum mlo_dtype)i)), i);
    assert_int_equal(mlo_dtype_parse("float33"), MLO_DTYPE_NONE);
    assert_null(mlo_dtype_info((enum mlo_dtype)99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16__round_trips_every_half),
#ifdef __FLT16_MAX__
        cmocka_unit_test(test_f16__matches_the_compiler),
#endif
        cmocka_unit_test(test_bf16__rounds_half_to_even),
        cmocka_unit_test(test_float8__known_values),
        cmocka_unit_test(test_float8__overflow_without_saturation),
        cmocka_unit_test(test_tensor__set_rounds_and_saturates),
        cmocka_unit_test(test_shape__overflow_and_negatives_are_refused),
        cmocka_unit_test(test_dtype__names_parse_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
