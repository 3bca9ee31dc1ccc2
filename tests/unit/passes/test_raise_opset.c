#include "passes/passes_impl.h"
#include "tests/unit/passes/passes_helpers.h"

static enum mlo_status raise_13(struct mlo_model *m, json_t **notes, struct mlo_error *err)
{
    struct mlo_pass_context ctx = {.notes = json_array()};
    enum mlo_status status = mlo_pass_raise_opset_to(m, 13, &ctx, err);
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
    struct mlo_value *r =
        op(m, "Resize", "y", x, floats(m, "roi", LIST(0), 1), floats(m, "s", LIST(1, 1, 2, 2), 4));
    finish(m, r);
    assert_true(mlo_node_set_s(r->producer, "coordinate_transformation_mode", "tf_half_pixel_for_nn"));
    assert_int_equal(raise_13(m, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "from 11 to 13");
    assert_contains(err.message, "Resize (node 'y_node')");
    assert_contains(err.message, "tf_half_pixel_for_nn");
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

static struct mlo_model *opset_9(void)
{
    struct mlo_model *m = new_model(9);
    struct mlo_value *x = input(m, "x", 2, 4, 3, 3);
    struct mlo_value *u = op(m, "Upsample", "u", x, floats(m, "scales", LIST(1, 1, 2, 2), 4));
    struct mlo_value *mean = op(m, "ReduceMean", "mean", u);
    set_ints(mean, "axes", 2, 3);
    struct mlo_value *top = op(m, "ReduceMax", "top", u);
    set_ints(top, "axes", 2, 3);
    struct mlo_value *soft =
        op(m, "Softmax", "soft", op(m, "Add", "sum", mean, top)); /* over three axes at once */
    struct mlo_value *halves[2] = {mlo_graph_add_value(m->graph, "a", NULL),
                                   mlo_graph_add_value(m->graph, "b", NULL)};
    struct mlo_node *split = mlo_graph_add_node(m->graph, NULL, "", "Split", "split", &soft, 1, halves, 2);
    assert_non_null(split);
    assert_true(mlo_node_set_i(split, "axis", 1));
    finish(m, op(m, "Mul", "y", halves[0], halves[1]));
    return m;
}

static void test_raise_opset__as_a_pass_up_to_21(void **state)
{
    MLO_UNUSED(state);
    static const int versions[] = {13, 17, 18, 21};
    for (size_t i = 0; i < MLO_COUNT(versions); i++) {
        struct mlo_error err = {0};
        struct mlo_model *before = opset_9(), *m = opset_9();
        char options[32];
        json_t *report = NULL;
        snprintf(options, sizeof options, "{\"to\": %d}", versions[i]);
        assert_ok(run_pass(m, "raise-opset", options, NULL, &report, &err));
        assert_int_equal(mlo_model_opset(m, ""), versions[i]);
        assert_int_equal(m->ir_version, versions[i] == 21 ? 10 : 8);
        assert_true(mlo_node_is(node_named(m, "u_node"), "Resize"));
        assert_int_equal(mlo_node_attr_i(node_named(m, "split"), "num_outputs", 0), versions[i] < 18 ? 0 : 2);
        assert_true((mlo_node_attr(node_named(m, "mean_node"), "axes") == NULL) == (versions[i] >= 18));
        assert_true(has_note(report, "u_node", "Resize converted to its form of opset 11"));
        assert_true(deviation(before, m) < 1e-6);
        json_decref(report);
        mlo_model_free(before);
        mlo_model_free(m);
    }
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
        cmocka_unit_test(test_raise_opset__as_a_pass_up_to_21),
        cmocka_unit_test(test_raise_opset__leaves_newer_models_alone),
        cmocka_unit_test(test_quantize__drops_float_weights_of_old_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
