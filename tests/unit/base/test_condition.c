#include "tests/cm.h"

static struct mlo_condition parse(const char *text)
{
    struct mlo_condition c;
    struct mlo_error err = {0};
    if (mlo_condition_parse(text, &c, &err) != MLO_OK)
        fail_msg("%s: %s", text, err.message);
    return c;
}

static void test_condition__reads_metric_params_and_units(void **state)
{
    MLO_UNUSED(state);
    struct mlo_condition c = parse("latency.p50[batch=1, threads=2] <= 0.8 * source");
    assert_string_equal(c.metric, "latency.p50");
    assert_int_equal(c.param_count, 2);
    assert_string_equal(c.params[1].key, "threads");
    assert_string_equal(c.params[1].value, "2");
    assert_int_equal(c.op, MLO_LE);
    assert_string_equal(c.base, "source");
    assert_float_equal(c.factor, 0.8, 1e-12);

    c = parse("top1 >= source - 0.5pt");
    assert_float_equal(c.offset, -0.005, 1e-12);
    assert_float_equal(c.factor, 1, 0);
    c = parse("top1>=90%");
    assert_string_equal(c.base, "");
    assert_float_equal(c.offset, 0.9, 1e-12);
    c = parse("size < production - 5%");
    assert_float_equal(c.factor, 0.95, 1e-12);
    assert_float_equal(c.offset, 0, 0);
}

static void test_condition__names_the_column_of_a_mistake(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *text, *part;
    } CASES[] = {
        {"", "name of a metric at column 1"},
        {"top1", "one of >= <= > < at column 5"},
        {"top1 >= ", "a number, 'source'"},
        {"top1[batch] > 1", "'=' at column 11"},
        {"top1 >= source - x", "a number such as 0.5pt"},
        {"top1 >= 0.5 junk", "the end at column 13"},
        {"top1 >= sorce - 1pt", "compares with 'sorce'"},
        {"top1 >= 0.5 * source - 1pt", "scales and shifts"},
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_condition c;
        struct mlo_error err = {0};
        assert_int_equal(mlo_condition_parse(CASES[i].text, &c, &err), MLO_EINVAL);
        if (!strstr(err.message, CASES[i].part))
            fail_msg("'%s' gave '%s'", CASES[i].text, err.message);
    }
    struct mlo_condition c;
    struct mlo_error err = {0};
    assert_int_equal(mlo_condition_parse("top1 >= sorce", &c, &err), MLO_EINVAL);
    assert_string_equal(err.hint, "did you mean 'source'?");
}

static void test_condition__reads_the_bound_against_the_claim(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_condition c = parse("top1 >= source - 0.5pt");
    struct mlo_condition_facts f = {
        .have_difference = true, .difference = -0.001, .difference_low = -0.004, .difference_high = 0.002};
    assert_int_equal(mlo_condition_check(&c, &f, &err), MLO_OK);
    f.difference_low = -0.0051; /* the mean is fine, the bound is not */
    assert_int_equal(mlo_condition_check(&c, &f, &err), MLO_EEXPECT);
    assert_non_null(strstr(err.message, "lower bound"));

    c = parse("latency.p50 <= source");
    f = (struct mlo_condition_facts){
        .have_ratio = true, .ratio = 0.99, .ratio_low = 0.95, .ratio_high = 1.01};
    assert_int_equal(mlo_condition_check(&c, &f, &err), MLO_EEXPECT);
    f.ratio_high = 1.0;
    assert_int_equal(mlo_condition_check(&c, &f, &err), MLO_OK);

    c = parse("top1 >= 0.9");
    f = (struct mlo_condition_facts){.have_value = true, .value = 0.905, .low = 0.899, .high = 0.91};
    assert_int_equal(mlo_condition_check(&c, &f, &err), MLO_EEXPECT);
    f.low = 0.9;
    assert_int_equal(mlo_condition_check(&c, &f, &err), MLO_OK);
}

static void test_condition__does_not_pass_what_was_not_measured(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_condition c = parse("top1 >= source - 0.5pt");
    struct mlo_condition_facts f = {.have_value = true, .value = 1, .low = 1, .high = 1};
    assert_int_equal(mlo_condition_check(&c, &f, &err), MLO_EEXPECT);
    assert_non_null(strstr(err.message, "was not measured"));
    assert_non_null(strstr(err.hint, "compare_to: source"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_condition__reads_metric_params_and_units),
        cmocka_unit_test(test_condition__names_the_column_of_a_mistake),
        cmocka_unit_test(test_condition__reads_the_bound_against_the_claim),
        cmocka_unit_test(test_condition__does_not_pass_what_was_not_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
