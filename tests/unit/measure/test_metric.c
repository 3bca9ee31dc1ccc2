#include <math.h>

#include "tests/unit/measure/fixture.h"

static const struct mlo_metric *metric(const char *name)
{
    struct mlo_error err = {0};
    const struct mlo_metric *m = NULL;
    assert_ok(mlo_metric_find(name, &m, &err));
    assert_string_equal(m->name, name);
    return m;
}

static void test_metric__table_is_complete(void **state)
{
    (void)state;
    size_t count = 0;
    const struct mlo_metric *table = mlo_metric_table(&count);
    assert_true(count >= 4);
    for (size_t i = 0; i < count; i++) {
        assert_non_null(table[i].scores);
        assert_non_null(table[i].unit);
        assert_non_null(table[i].description);
        assert_true(table[i].needs_labels || table[i].needs_reference);
    }
}

static void test_metric__unknown_name_suggests_the_nearest(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    const struct mlo_metric *m;
    assert_int_equal(mlo_metric_find("top-1", &m, &err), MLO_EINVAL);
    assert_contains(err.message, "did you mean 'top1'");
    assert_contains(err.hint, "cosine");
}

static void test_metric__top1_and_top5_by_hand(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    /* sample 0: 6 > 5 > …; sample 1: all equal, so class 0 is first; sample 2: label last */
    struct mlo_tensor out = make_tensor(
        MLO_FLOAT32, 2, DIMS(3, 7), VALUES(0, 1, 2, 3, 4, 5, 6, 1, 1, 1, 1, 1, 1, 1, 7, 6, 5, 4, 3, 2, 1));
    const int64_t first[] = {6, 0, 0}, second[] = {2, 4, 6}, third[] = {1, 5, 4};
    double scores[3];
    assert_ok(metric("top1")->scores(&out, first, NULL, scores, &err));
    assert_true(scores[0] == 1 && scores[1] == 1 && scores[2] == 1);
    assert_ok(metric("top1")->scores(&out, second, NULL, scores, &err));
    assert_true(scores[0] == 0 && scores[1] == 0 && scores[2] == 0);
    assert_ok(metric("top5")->scores(&out, second, NULL, scores, &err));
    assert_true(scores[0] == 1 && scores[1] == 1 && scores[2] == 0);
    assert_ok(metric("top5")->scores(&out, third, NULL, scores, &err));
    assert_true(scores[0] == 0 && scores[1] == 0 && scores[2] == 1);
    mlo_tensor_clear(&out);
}

static void test_metric__top1_takes_other_output_forms(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    const int64_t labels[] = {1, 0};
    double scores[2];
    struct mlo_tensor pooled = make_tensor(MLO_FLOAT32, 4, DIMS(2, 2, 1, 1), VALUES(0, 1, 0, 1));
    struct mlo_tensor argmax = make_tensor(MLO_INT64, 1, DIMS(2), VALUES(1, 1));
    struct mlo_tensor map = make_tensor(MLO_FLOAT32, 3, DIMS(2, 2, 2), NULL);
    assert_ok(metric("top1")->scores(&pooled, labels, NULL, scores, &err));
    assert_true(scores[0] == 1 && scores[1] == 0);
    assert_ok(metric("top1")->scores(&argmax, labels, NULL, scores, &err));
    assert_true(scores[0] == 1 && scores[1] == 0);
    assert_int_equal(metric("top1")->scores(&map, labels, NULL, scores, &err), MLO_EINVAL);
    assert_contains(err.message, "float32[2,2,2]");
    mlo_tensor_clear(&pooled);
    mlo_tensor_clear(&argmax);
    mlo_tensor_clear(&map);
}

static void test_metric__bad_samples_are_named(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    const int64_t labels[] = {0, 2}, good[] = {0, 1};
    double scores[2];
    struct mlo_tensor out = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), VALUES(0, 1, NAN, 1));
    struct mlo_tensor ref = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), NULL),
                      other = make_tensor(MLO_FLOAT32, 1, DIMS(2), NULL);
    assert_int_equal(metric("top1")->scores(&out, labels, NULL, scores, &err), MLO_EINVAL);
    assert_contains(err.message, "label 2 of sample 1");
    assert_int_equal(metric("top1")->scores(&out, good, NULL, scores, &err), MLO_EINVAL);
    assert_contains(err.message, "sample 1 holds NaN");
    assert_int_equal(metric("top1")->scores(&out, NULL, NULL, scores, &err), MLO_EINVAL);
    assert_contains(err.message, "needs labels");
    assert_int_equal(metric("mse")->scores(&out, NULL, &ref, scores, &err), MLO_EINVAL);
    assert_contains(err.message, "sample 1 is not finite");
    assert_int_equal(metric("mse")->scores(&out, NULL, &other, scores, &err), MLO_EINVAL);
    assert_contains(err.message, "cannot be compared");
    assert_int_equal(metric("cosine")->scores(&out, NULL, NULL, scores, &err), MLO_EINVAL);
    mlo_tensor_clear(&out);
    mlo_tensor_clear(&ref);
    mlo_tensor_clear(&other);
}

static void test_metric__mse_and_cosine_by_hand(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    double scores[4];
    struct mlo_tensor a = make_tensor(MLO_FLOAT32, 2, DIMS(4, 2), VALUES(1, 2, 3, 4, 0, 0, 0, 0));
    struct mlo_tensor b = make_tensor(MLO_FLOAT32, 2, DIMS(4, 2), VALUES(1, 4, -6, -8, 0, 0, 1, 0));
    assert_ok(metric("mse")->scores(&a, NULL, &b, scores, &err));
    assert_true(scores[0] == 2 && scores[1] == (81 + 144) / 2.0 && scores[2] == 0 && scores[3] == 0.5);
    assert_ok(metric("cosine")->scores(&a, NULL, &b, scores, &err));
    assert_true(fabs(scores[0] - 9 / sqrt(5.0 * 17)) < 1e-15);
    assert_true(fabs(scores[1] + 1) < 1e-15);
    assert_true(scores[2] == 1 && scores[3] == 0);
    mlo_tensor_clear(&a);
    mlo_tensor_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metric__table_is_complete),
        cmocka_unit_test(test_metric__unknown_name_suggests_the_nearest),
        cmocka_unit_test(test_metric__top1_and_top5_by_hand),
        cmocka_unit_test(test_metric__top1_takes_other_output_forms),
        cmocka_unit_test(test_metric__bad_samples_are_named),
        cmocka_unit_test(test_metric__mse_and_cosine_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
