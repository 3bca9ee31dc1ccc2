#include "passes/passes_impl.h"
#include "tests/unit/passes/passes_helpers.h"

static struct mlo_model *small(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 4);
    struct mlo_value *h = op(m, "Identity", "h", x);
    finish(m, op(m, "MatMul", "y", h, ramp(m, "w", 0.1f, 4, 2)));
    return m;
}

static void test_table__is_complete_and_sorted(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    assert_ok(mlo_pass_table_check(&err));
    assert_non_null(mlo_pass_find("quantize"));
    assert_null(mlo_pass_find("quantise"));
    size_t count;
    const char *const *names = mlo_passes_optimize(&count);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++)
        assert_non_null(mlo_pass_find(names[i]));
}

static void collect(void *arg, const char *pass, const struct mlo_model *model)
{
    assert_non_null(model);
    mlo_buf_printf(arg, "%s;", pass);
}

static void test_driver__reports_every_pass_in_order(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf seen = MLO_BUF_INIT;
    struct mlo_model *m = small();
    struct mlo_pass_request requests[] = {{"remove-identity", NULL}, {"remove-dead", NULL}};
    struct mlo_pass_driver driver = {.dump = collect, .dump_arg = &seen};
    assert_ok(mlo_passes_run(m, requests, 2, &driver, &err));
    assert_string_equal(mlo_buf_str(&seen), "remove-identity;remove-dead;");
    assert_int_equal(json_array_size(driver.report), 2);
    const json_t *first = json_array_get(driver.report, 0);
    assert_string_equal(mlo_json_str(first, "pass", ""), "remove-identity");
    assert_int_equal(mlo_json_i64(first, "changes", -1), 1);
    assert_int_equal(mlo_json_i64(first, "revision", -1), mlo_pass_find("remove-identity")->revision);
    assert_true(mlo_json_f64(first, "ms", -1) >= 0);
    assert_true(json_is_array(json_object_get(first, "notes")));
    json_decref(driver.report);
    mlo_buf_clear(&seen);
    mlo_model_free(m);
}

static void test_driver__errors_name_the_pass(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = small();
    assert_int_equal(run_pass(m, "fold-constant", NULL, NULL, NULL, &err), MLO_ENOTFOUND);
    assert_contains(err.message, "fold-constant");
    assert_contains(err.hint, "fold-constants");

    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "fold-constants", "{\"max_byte\": 1}", NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "pass 'fold-constants'");
    assert_contains(err.message, "unknown option 'max_byte'");
    assert_contains(err.hint, "max_bytes");

    err = (struct mlo_error){0};
    assert_int_equal(run_pass(m, "quantize", NULL, NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "needs statistics");
    mlo_model_free(m);
}

/* Properties that the table claims are read off the graph, by the same predicates that a pass may require. */
static void test_properties__hold_after_the_pass_that_establishes_them(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2, 2, 2);
    struct mlo_value *c = op(m, "Conv", "c", x, op(m, "Identity", "w", ramp(m, "w0", 0.1f, 1, 2, 1, 1)));
    struct mlo_value *n =
        op(m, "BatchNormalization", "n", c, floats(m, "gain", LIST(3), 1), floats(m, "offset", LIST(1), 1),
           floats(m, "mean", LIST(0), 1), floats(m, "var", LIST(1), 1));
    op(m, "Relu", "dead", n);
    finish(m, op(m, "Relu", "y", n));

    assert_true(mlo_graph_is_typed(m->graph));
    assert_false(mlo_graph_is_folded(m->graph));
    assert_ok(run_pass(m, "fold-constants", NULL, NULL, NULL, &err));
    assert_true(mlo_graph_is_folded(m->graph));
    assert_false(mlo_graph_is_bn_folded(m->graph));
    assert_ok(run_pass(m, "fold-batchnorm", NULL, NULL, NULL, &err));
    assert_true(mlo_graph_is_bn_folded(m->graph));
    assert_false(mlo_graph_has_no_dead(m->graph));
    assert_ok(run_pass(m, "remove-dead", NULL, NULL, NULL, &err));
    assert_true(mlo_graph_has_no_dead(m->graph));
    assert_false(mlo_graph_is_quantized(m->graph));
    mlo_model_free(m);
}

/* All that `optimize` runs, on a net with something for each pass. */
static void test_optimize__keeps_outputs_names_and_symbolic_batch(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *models[2];
    for (int i = 0; i < 2; i++) {
        struct mlo_model *m = models[i] = new_model(11);
        struct mlo_value *x = input(m, "image", -1, 2, 6, 6);
        struct mlo_value *v = op(m, "Pad", "padded", x, ints(m, "pads", 0, 0, 1, 1, 0, 0, 1, 1));
        v = op(m, "Conv", "conv", v, op(m, "Identity", "w", ramp(m, "w0", 0.1f, 4, 2, 3, 3)));
        v = op(m, "Identity", "between", v);
        v = op(m, "BatchNormalization", "bn", v, floats(m, "gain", LIST(1, 2, 3, 4), 4),
               floats(m, "offset", LIST(1, 2, 3, 4), 4), floats(m, "mean", LIST(1, 0, 1, 0), 4),
               floats(m, "var", LIST(1, 2, 1, 2), 4));
        v = op(m, "Relu", "relu", v);
        v = op(m, "GlobalAveragePool", "pooled", v);
        v = op(m, "Reshape", "flat", v, ints(m, "shape", 0, -1));
        v = op(m, "MatMul", "product", v, ramp(m, "fc", 0.2f, 4, 3));
        finish(m, op(m, "Add", "logits", v, floats(m, "bias", LIST(1, 2, 3), 3)));
    }
    size_t count;
    const char *const *names = mlo_passes_optimize(&count);
    struct mlo_pass_request requests[16] = {0};
    for (size_t i = 0; i < count; i++)
        requests[i].name = names[i];
    struct mlo_pass_driver driver = {0};
    assert_ok(mlo_passes_run(models[1], requests, count, &driver, &err));
    json_decref(driver.report);
    const struct mlo_graph *graph = models[1]->graph;
    assert_int_equal(graph->node_count, 5); /* Conv, Relu, GlobalAveragePool, Reshape, Gemm */
    assert_string_equal(graph->inputs[0]->name, "image");
    assert_string_equal(graph->outputs[0]->name, "logits");
    assert_true(graph->outputs[0]->type.dims[0].value < 0);
    assert_true(mlo_graph_dynamic_batch(graph));
    assert_true(deviation(models[0], models[1]) < 1e-4);
    mlo_model_free(models[0]);
    mlo_model_free(models[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table__is_complete_and_sorted),
        cmocka_unit_test(test_driver__reports_every_pass_in_order),
        cmocka_unit_test(test_driver__errors_name_the_pass),
        cmocka_unit_test(test_properties__hold_after_the_pass_that_establishes_them),
        cmocka_unit_test(test_optimize__keeps_outputs_names_and_symbolic_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
