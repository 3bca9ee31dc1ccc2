/* What the quantize pass does with the inputs' Gram matrices: rounding and bias correction, by hand. */
#include "tests/unit/passes/passes_helpers.h"

/* y = x W + b with steps of 1 for the weights 0.4, 0.4 and 127; the third input is always 0. */
struct layer {
    struct mlo_model *model;
    struct mlo_stats stats;
};

static void layer_new(struct layer *l, bool with_bias, bool observed)
{
    struct mlo_error err = {0};
    l->model = new_model(13);
    struct mlo_value *x = input(l->model, "x", -1, 3),
                     *w = floats(l->model, "w", LIST(0.4f, 0.4f, 127), 3, 1);
    struct mlo_value *y = with_bias ? op(l->model, "Gemm", "y", x, w, floats(l->model, "b", LIST(10), 1))
                                    : op(l->model, "Gemm", "y", x, w);
    finish(l->model, y);
    mlo_stats_init(&l->stats);
    saw(&l->stats, "x", LIST(0, 255), 2); /* steps of 1 for the inputs too */
    struct mlo_tensor rows = {
        .dtype = MLO_FLOAT32, .rank = 2, .dims = {2, 3}, .data = (void *)LIST(30, 30, 0, 10, 10, 0)};
    if (observed)
        assert_ok(
            mlo_gram_add(mlo_stats_get_gram(&l->stats, y->producer, true), y->producer, &rows, NULL, &err));
}

static void layer_free(struct layer *l)
{
    mlo_stats_clear(&l->stats);
    mlo_model_free(l->model);
}

static int64_t number(const struct layer *l, const char *name, size_t i)
{
    const struct mlo_value *v = mlo_graph_value(l->model->graph, name);
    if (!v || !v->constant)
        fail_msg("there is no constant '%s'", name);
    return mlo_tensor_get_i64(v->constant, i);
}

static void test_rounding__follows_the_inputs(void **state)
{
    MLO_UNUSED(state);
    static const char *const OPTIONS[] = {"{}", "{\"rounding\": \"gptq\"}", "{\"rounding\": \"adaround\"}"};
    for (int method = 0; method < 3; method++) {
        struct mlo_error err = {0};
        struct layer l;
        layer_new(&l, true, true);
        assert_ok(run_pass(l.model, "quantize", OPTIONS[method], &l.stats, NULL, &err));
        assert_int_equal(number(&l, "w_quantized", 0) + number(&l, "w_quantized", 1), method ? 1 : 0);
        assert_int_equal(number(&l, "w_quantized", 2), 127);
        assert_int_equal(number(&l, "b_quantized", 0), 10);
        layer_free(&l);
    }
}

/* The inputs' mean is (20, 20, 0): rounding both weights to 0 takes 16 from the output, rounding one up puts
 * 4 on it. */
static void test_bias__takes_back_what_rounding_did_to_the_mean(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct layer l;
    layer_new(&l, true, true);
    assert_ok(run_pass(l.model, "quantize", "{\"bias_correction\": \"fast\"}", &l.stats, NULL, &err));
    assert_int_equal(number(&l, "b_quantized", 0), 26);
    layer_free(&l);
    layer_new(&l, true, true);
    assert_ok(run_pass(l.model, "quantize", "{\"bias_correction\": \"fast\", \"rounding\": \"gptq\"}",
                       &l.stats, NULL, &err));
    assert_int_equal(number(&l, "b_quantized", 0), 6);
    layer_free(&l);
    layer_new(&l, false, true); /* a bias is made where there was none */
    assert_ok(run_pass(l.model, "quantize", "{\"bias_correction\": \"fast\"}", &l.stats, NULL, &err));
    assert_int_equal(number(&l, "y_node_bias_quantized", 0), 16);
    layer_free(&l);
}

/* The full correction is measured on the quantized model: the pass only sees to it that there is a bias. */
static void test_bias__is_there_for_the_full_correction(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct layer l;
    layer_new(&l, false, true);
    assert_ok(run_pass(l.model, "quantize", "{\"bias_correction\": \"full\"}", &l.stats, NULL, &err));
    assert_int_equal(number(&l, "y_node_bias_quantized", 0), 0);
    layer_free(&l);
    layer_new(&l, true, true);
    assert_ok(run_pass(l.model, "quantize", "{\"bias_correction\": \"full\"}", &l.stats, NULL, &err));
    assert_int_equal(number(&l, "b_quantized", 0), 10);
    layer_free(&l);
}

static void test_rounding__says_when_nothing_was_observed(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct layer l;
    json_t *report = NULL;
    layer_new(&l, true, false);
    assert_ok(run_pass(l.model, "quantize", "{\"bias_correction\": \"fast\", \"rounding\": \"adaround\"}",
                       &l.stats, &report, &err));
    assert_true(has_note(report, "y_node", "rounded to the nearest: its input was not observed"));
    assert_true(has_note(report, "y_node", "bias is not corrected"));
    assert_int_equal(number(&l, "b_quantized", 0), 10);
    json_decref(report);
    layer_free(&l);
}

static void test_wants__ask_for_what_the_options_need(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *options;
        bool gram, full;
    } CASES[] = {
        {"{}", false, false},
        {"{\"bias_correction\": \"fast\"}", true, false},
        {"{\"bias_correction\": \"full\"}", false, false},
        {"{\"rounding\": \"gptq\"}", true, true},
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        struct layer l;
        struct mlo_stats_wants wants = {0};
        json_t *given = json_loads(CASES[i].options, 0, NULL), *options = NULL;
        struct mlo_arena *arena = mlo_arena_new();
        layer_new(&l, true, false);
        assert_ok(mlo_options_resolve(mlo_quantize_options, given, &options, &err));
        assert_ok(mlo_quantize_wants(l.model, options, arena, &wants, &err));
        assert_int_equal(wants.count, 1);
        assert_true(wants.list[0].histogram);
        assert_int_equal(wants.list[0].gram != NULL, CASES[i].gram);
        assert_int_equal(wants.list[0].full, CASES[i].full);
        mlo_stats_wants_clear(&wants);
        json_decref(options);
        json_decref(given);
        mlo_arena_free(arena);
        layer_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding__follows_the_inputs),
        cmocka_unit_test(test_bias__takes_back_what_rounding_did_to_the_mean),
        cmocka_unit_test(test_bias__is_there_for_the_full_correction),
        cmocka_unit_test(test_rounding__says_when_nothing_was_observed),
        cmocka_unit_test(test_wants__ask_for_what_the_options_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
