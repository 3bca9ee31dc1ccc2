#include "passes/passes_impl.h"
#include "tests/unit/passes/passes_helpers.h"

static enum mlo_status raise_13(struct mlo_model *m, json_t **notes, struct mlo_error *err)
{
    struct mlo_pass_context ctx = {.notes = json_array()};
    enum mlo_status status = mlo_pass_raise_opset(m, 13, &ctx, err);
    if (notes)
        *notes = json_pack("[{s:o}]", "notes", ctx.notes);
    else
        json_decref(ctx.notes);
    return status;
}

static struct mlo_model *opset_10(void)
{
    struct mlo_model *m = new_model(10);
    struct mlo_value *x = input(m, "x", 2, 6);
    struct mlo_value *c = op(m, "Clip", "c", x);
    assert_true(mlo_node_set_f(c->producer, "min", -0.5f) && mlo_node_set_f(c->producer, "max", 0.25f));
    struct mlo_value *d = op(m, "Dropout", "d", c);
    assert_true(mlo_node_set_f(d->producer, "ratio", 0.3f));
    struct mlo_value *u = op(m, "Unsqueeze", "u", d);
    set_ints(u, "axes", 0);
    struct mlo_value *s = op(m, "Squeeze", "s", u);
    set_ints(s, "axes", 0);
    finish(m, op(m, "Softmax", "y", s)); /* axis 1 of rank 2: the last one */
    return m;
}

static void test_raise_opset__converts_forms_and_keeps_results(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *notes = NULL;
    struct mlo_model *before = opset_10(), *m = opset_10();
    assert_ok(raise_13(m, &notes, &err));
    assert_int_equal(mlo_model_opset(m, ""), 13);
    assert_true(m->ir_version >= 7);
    assert_int_equal(mlo_node_attr_i(node_named(m, "y_node"), "axis", -9), 1);
    assert_null(mlo_node_attr(node_named(m, "c_node"), "min"));
    assert_null(mlo_node_attr(node_named(m, "d_node"), "ratio"));
    assert_float_equal(mlo_tensor_get_f64(mlo_node_const(node_named(m, "c_node"), 2), 0), 0.25, 0);
    assert_int_equal(mlo_tensor_get_i64(mlo_node_const(node_named(m, "s_node"), 1), 0), 0);
    for (int n = 0; n < m->graph->node_count; n++)
        assert_int_equal(m->graph->nodes[n]->version, 13);
    assert_true(has_note(notes, "c_node", "Clip converted"));
    assert_true(has_note(notes, m->graph->name, "opset raised from 10 to 13"));
    assert_ok(mlo_graph_infer(m->graph, &err));
    assert_ok(mlo_graph_verify(m->graph, &err));
    assert_true(deviation(before, m) == 0);
    json_decref(notes);
    mlo_model_free(before);
    mlo_model_free(m);
}

static void test_raise_opset__refuses_by_name(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(11);
    struct mlo_value *x = input(m, "x", 1, 2, 3, 3);
    finish(m, op(m, "Softmax", "y", x)); /* axis 1 of rank 4: three axes at once */
    assert_int_equal(raise_13(m, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "from 11 to 13");
    assert_contains(err.message, "Softmax (node 'y_node')");
    assert_contains(err.message, "several axes");
    assert_contains(err.hint, "opset 13");
    mlo_model_free(m);

    m = new_model(6);
    err = (struct mlo_error){0};
    assert_int_equal(raise_13(m, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "opset is 6");
    mlo_model_free(m);
}

static void test_raise_opset__leaves_newer_models_alone(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *notes = NULL;
    struct mlo_model *m = new_model(17);
    assert_ok(raise_13(m, &notes, &err));
    assert_int_equal(mlo_model_opset(m, ""), 17);
    assert_int_equal(json_array_size(json_object_get(json_array_get(notes, 0), "notes")), 0);
    json_decref(notes);
    mlo_model_free(m);
}

/* Before IR version 4 all initializers are listed as inputs; they must not keep float weights alive. */
static void test_quantize__drops_float_weights_of_old_models(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = new_model(8);
    m->ir_version = 3;
    struct mlo_value *x = input(m, "x", 1, 2), *w = ramp(m, "w", 1, 2, 2), *b = ramp(m, "b", 1, 2);
    assert_ok(mlo_graph_add_input(m->graph, w, &err));
    assert_ok(mlo_graph_add_input(m->graph, b, &err));
    finish(m, op(m, "Gemm", "y", x, w, b));
    mlo_stats_init(&stats);
    saw(&stats, "x", LIST(0, 1), 2);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    assert_null(mlo_graph_value(m->graph, "w"));
    assert_int_equal(m->graph->input_count, 1);
    assert_int_equal(mlo_model_opset(m, ""), 13);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raise_opset__converts_forms_and_keeps_results),
        cmocka_unit_test(test_raise_opset__refuses_by_name),
        cmocka_unit_test(test_raise_opset__leaves_newer_models_alone),
        cmocka_unit_test(test_quantize__drops_float_weights_of_old_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
