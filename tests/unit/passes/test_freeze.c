/* Weights that are listed as graph inputs: left alone until somebody says that nobody feeds them. */
#include "tests/unit/passes/passes_helpers.h"

static struct mlo_model *listed(void)
{
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    m->ir_version = 8;
    struct mlo_value *x = input(m, "x", 1, 2), *w = ramp(m, "w", 1, 2, 2), *b = ramp(m, "b", 1, 2);
    assert_ok(mlo_graph_add_input(m->graph, w, &err));
    assert_ok(mlo_graph_add_input(m->graph, b, &err));
    finish(m, op(m, "Gemm", "y", x, w, b));
    return m;
}

static void test_freeze__makes_defaults_constants(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *before = listed(), *m = listed();
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(0, 1), 2);
    assert_int_equal(run_pass(m, "quantize", NULL, &stats, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.hint, "graph input too");
    assert_contains(err.hint, "freeze_initializers");
    mlo_model_free(m);

    m = listed();
    assert_ok(run_pass(m, "freeze-initializers", NULL, NULL, &report, &err));
    assert_int_equal(m->graph->input_count, 1);
    assert_true(has_note(report, m->graph->name, "2 initializers can no longer be fed as inputs, 'w'"));
    assert_true(deviation(before, m) == 0);
    json_decref(report);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    assert_int_equal(count_ops(m, "DequantizeLinear"), 3);
    mlo_stats_clear(&stats);
    mlo_model_free(before);
    mlo_model_free(m);
}

/* Before IR version 4 the list said nothing: it is cleared, and the version says that it now may be. */
static void test_freeze__of_old_models_raises_the_version(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf bytes = MLO_BUF_INIT;
    struct mlo_model *m = listed(), *back = NULL;
    m->ir_version = 3;
    assert_ok(run_pass(m, "freeze-initializers", NULL, NULL, NULL, &err));
    assert_int_equal(m->ir_version, 4);
    assert_ok(mlo_onnx_serialize(m, &bytes, &err));
    assert_ok(mlo_onnx_parse(bytes.data, bytes.len, "written", &back, &err));
    assert_int_equal(back->graph->input_count, 1);
    mlo_buf_clear(&bytes);
    mlo_model_free(back);
    mlo_model_free(m);
}

static void test_freeze__finds_nothing_in_newer_models(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "Gemm", "y", input(m, "x", 1, 2), ramp(m, "w", 1, 2, 2)));
    assert_ok(run_pass(m, "freeze-initializers", NULL, NULL, &report, &err));
    assert_int_equal(json_integer_value(json_object_get(json_array_get(report, 0), "changes")), 0);
    json_decref(report);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_freeze__makes_defaults_constants),
        cmocka_unit_test(test_freeze__of_old_models_raises_the_version),
        cmocka_unit_test(test_freeze__finds_nothing_in_newer_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
