#include "passes/calibrators.h"
#include "tests/unit/passes/passes_helpers.h"

/* g1 reads a quiet and a loud value that a Concat put together, g2 reads what g1 made. */
static struct mlo_model *quiet_and_loud(void)
{
    struct mlo_model *m = new_model(21);
    struct mlo_value *quiet = op(m, "Tanh", "quiet", input(m, "a", -1, 2)),
                     *loud = op(m, "Tanh", "loud", input(m, "b", -1, 2));
    struct mlo_value *both = op(m, "Concat", "both", quiet, loud);
    assert_true(mlo_node_set_i(both->producer, "axis", 1));
    struct mlo_value *h = op(m, "Relu", "h", op(m, "Gemm", "g1", both, ramp(m, "w1", 0.1f, 4, 2)));
    finish(m, op(m, "Gemm", "g2", h, ramp(m, "w2", 0.1f, 2, 2)));
    return m;
}

/* quiet / loud: a quarter of the step of what they share, so that integers make it zero. */
static void saw_both(struct mlo_stats *stats)
{
    mlo_stats_init(stats);
    saw(stats, "quiet", LIST(0.25f, 0.25f, 0.25f), 3);
    saw(stats, "loud", LIST(100, 255), 2);
    saw(stats, "both", LIST(0.25f, 0.25f, 0.25f, 100, 255), 5);
    saw(stats, "h", LIST(0, 100, 200), 3);
}

/* 10.25 in steps of 1 is 10: 10.25^2 to 0.25^2. */
static void test_noise__decibels_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats stats;
    double signal, noise;
    const struct mlo_calibration c = {.levels = 256};
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(10.25f, 10.25f), 2);
    mlo_calibration_power(mlo_stats_find(&stats, "x"), &c, 0, 255, &signal, &noise);
    assert_float_equal(signal, 2 * 105.0625, 0.2);
    assert_float_equal(mlo_calibration_decibels(signal, noise), 20 * log10(10.25 / 0.25), 0.25);
    assert_float_equal(mlo_calibration_decibels(100, 1), 20, 1e-9);
    assert_true(isinf(mlo_calibration_decibels(0, 1)) && isinf(mlo_calibration_decibels(1, 0)));
    /* what is clipped is a level exactly, and a Relu's zeros are exact too */
    saw(&stats, "y", LIST(0, 0, 0, 1000), 4);
    mlo_calibration_power(mlo_stats_find(&stats, "y"), &c, 0, 255, &signal, &noise);
    assert_float_equal(signal, 255 * 255, 0);
    assert_float_equal(noise, 0, 0);
    mlo_stats_clear(&stats);
}

static void test_noise__what_reads_it_stays_in_float(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *options;
        int pairs;
        bool float_g1;
    } cases[] = {
        {NULL, 1, true},                             /* h alone */
        {"{\"target\": \"ort-x86-vnni\"}", 1, true}, /* there each input of a Concat has its own range */
        {"{\"min_sqnr\": 0}", 4, false},             /* quiet, loud, both, h */
        {"{\"min_sqnr\": 40}", 1, true},             /* loud and h are exact */
        {"{\"activations\": \"uint16\"}", 4, false}, /* 65535 steps are fine enough */
        {"{\"exclude\": [\"g1_node\"]}", 1, true},   /* the same, by hand */
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_error err = {0};
        struct mlo_stats stats;
        json_t *report = NULL;
        struct mlo_model *m = quiet_and_loud();
        saw_both(&stats);
        assert_ok(run_pass(m, "quantize", cases[i].options, &stats, &report, &err));
        if (count_ops(m, "QuantizeLinear") != cases[i].pairs)
            fail_msg("case %zu: %d pairs", i, count_ops(m, "QuantizeLinear"));
        const struct mlo_value *x = node_named(m, "g1_node")->inputs[0];
        assert_string_equal(x->producer->op_type, cases[i].float_g1 ? "Concat" : "DequantizeLinear");
        assert_string_equal(node_named(m, "g2_node")->inputs[0]->producer->op_type, "DequantizeLinear");
        if (cases[i].float_g1 && i < 5)
            assert_true(has_note(
                report, "g1_node",
                "Gemm stays in float: uint8 leaves 'quiet', which it reads, a signal to noise ratio of"));
        json_decref(report);
        mlo_stats_clear(&stats);
        mlo_model_free(m);
    }
}

/* What the step records is what the pass does. */
static void test_noise__the_list_is_that_of_the_pass(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *options = NULL, *rows = NULL;
    struct mlo_model *m = quiet_and_loud();
    saw_both(&stats);
    assert_ok(mlo_options_resolve(mlo_quantize_options, NULL, &options, &err));
    assert_ok(mlo_quantize_noisy(m, options, &stats, &rows, &err));
    assert_int_equal(json_array_size(rows), 2); /* the Concat, and what multiplies */
    const json_t *row = json_array_get(rows, 1);
    assert_string_equal(mlo_json_str(row, "node", ""), "g1_node");
    assert_string_equal(mlo_json_str(row, "op", ""), "Gemm");
    assert_string_equal(mlo_json_str(row, "value", ""), "quiet");
    assert_float_equal(mlo_json_f64(row, "sqnr_db", 99), 0, 0.1);
    json_decref(rows);
    json_decref(options);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_noise__nothing_left_is_an_error_with_the_number(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = gemm_2x2();
    float values[1000];
    for (size_t i = 0; i < MLO_COUNT(values); i++)
        values[i] = (float)(i % 2) * 0.4f;
    values[7] = 255; /* one outlier makes a step of 1 of the others' 0.4 */
    mlo_stats_init(&stats);
    saw(&stats, "x", values, MLO_COUNT(values));
    assert_int_equal(run_pass(m, "quantize", "{\"min_sqnr\": 40}", &stats, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.hint, "'x', which it reads, a signal to noise ratio of 28.");
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* What is always zero has nothing to lose, however loud its neighbour. */
static void test_noise__silence_is_no_noise(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = quiet_and_loud();
    mlo_stats_init(&stats);
    saw(&stats, "quiet", LIST(0, 0, 0), 3);
    saw(&stats, "loud", LIST(100, 255), 2);
    saw(&stats, "both", LIST(0, 100, 255), 3);
    saw(&stats, "h", LIST(0, 100, 200), 3);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    assert_int_equal(count_ops(m, "QuantizeLinear"), 4);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* A value twice in each of many Concats is looked at once, not 2^10 times. */
static void test_noise__looks_once_at_what_comes_twice(void **state)
{
    MLO_UNUSED(state);
    enum { DEEP = 10 };
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 1);
    for (int i = 0; i < DEEP; i++) {
        char name[16];
        snprintf(name, sizeof name, "c%d", i);
        x = op(m, "Concat", name, x, x);
        assert_true(mlo_node_set_i(x->producer, "axis", 1));
    }
    finish(m, op(m, "Gemm", "y", x, ramp(m, "w", 0.1f, 1 << DEEP, 2)));
    observe(m, 2, &stats);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    assert_int_equal(count_ops(m, "QuantizeLinear"), DEEP + 1);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise__decibels_by_hand),
        cmocka_unit_test(test_noise__what_reads_it_stays_in_float),
        cmocka_unit_test(test_noise__the_list_is_that_of_the_pass),
        cmocka_unit_test(test_noise__nothing_left_is_an_error_with_the_number),
        cmocka_unit_test(test_noise__silence_is_no_noise),
        cmocka_unit_test(test_noise__looks_once_at_what_comes_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
