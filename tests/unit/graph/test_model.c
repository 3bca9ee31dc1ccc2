#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"

/* x[batch,2,4,4] -> Conv -> Relu -> y */
struct small {
    struct mlo_model *model;
    struct mlo_graph *graph;
    struct mlo_value *x, *w, *c, *y;
    struct mlo_node *conv, *relu;
};

static struct small make(void)
{
    struct small s = {0};
    struct mlo_error err = {0};
    struct mlo_type type = {MLO_FLOAT32, 4, {{-1, "batch"}, {2, NULL}, {4, NULL}, {4, NULL}}};
    assert_int_equal(mlo_model_new(13, &s.model, &err), MLO_OK);
    s.graph = s.model->graph;
    s.x = mlo_graph_add_value(s.graph, "x", &type);
    assert_int_equal(mlo_graph_add_input(s.graph, s.x, &err), MLO_OK);
    struct mlo_tensor w;
    int64_t dims[4] = {3, 2, 1, 1};
    assert_int_equal(mlo_tensor_init(&w, MLO_FLOAT32, 4, dims, &err), MLO_OK);
    for (size_t i = 0; i < 6; i++)
        mlo_tensor_set_f64(&w, i, (double)i / 2);
    s.w = mlo_graph_add_constant_take(s.graph, "w", &w);
    s.c = mlo_graph_add_value(s.graph, "c", NULL);
    s.y = mlo_graph_add_value(s.graph, "y", NULL);
    struct mlo_value *conv_in[] = {s.x, s.w};
    s.conv = mlo_graph_add_node(s.graph, NULL, "", "Conv", "conv", conv_in, 2, &s.c, 1);
    s.relu = mlo_graph_add_node(s.graph, NULL, "", "Relu", NULL, &s.c, 1, &s.y, 1);
    int64_t ones[2] = {1, 1};
    assert_true(mlo_node_set_ints(s.conv, "strides", ones, 2));
    assert_int_equal(mlo_graph_add_output(s.graph, s.y, &err), MLO_OK);
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_OK);
    return s;
}

static void test_model__dump_is_stable(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_buf text = MLO_BUF_INIT;
    assert_int_equal(mlo_graph_infer(s.graph, NULL), MLO_OK);
    mlo_graph_dump(s.graph, &text);
    assert_string_equal(mlo_buf_str(&text),
                        "graph main\n"
                        "  opset ai.onnx 13\n"
                        "  input x float32[batch,2,4,4]\n"
                        "  const w float32[3,2,1,1] {0, 0.5, 1, 1.5, 2, 2.5}\n"
                        "  node conv: Conv(x, w) {strides=[1,1]} -> c float32[batch,3,4,4]\n"
                        "  node Relu: Relu(c) -> y float32[batch,3,4,4]\n"
                        "  output y float32[batch,3,4,4]\n");
    mlo_buf_clear(&text);
    mlo_model_free(s.model);
}

static void test_model__names_are_made_unique(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_value *again = mlo_graph_add_value(s.graph, "x", NULL),
                     *unnamed = mlo_graph_add_value(s.graph, NULL, NULL);
    assert_string_not_equal(again->name, "x");
    assert_ptr_equal(mlo_graph_value(s.graph, again->name), again);
    assert_ptr_equal(mlo_graph_value(s.graph, "x"), s.x);
    assert_string_equal(unnamed->name, "v");
    struct mlo_node *other = mlo_graph_add_node(s.graph, NULL, "", "Relu", "conv", &s.y, 1, &again, 1);
    assert_string_not_equal(other->name, "conv");
    mlo_model_free(s.model);
}

static void test_edit__bypass_keeps_the_output_name(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_error err = {0};
    assert_ptr_equal(mlo_value_sole_user(s.c), s.relu);
    mlo_graph_remove_node(s.relu);
    assert_true(mlo_value_swap_name(s.y, s.c));
    mlo_graph_remove_unused_values(s.graph);
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_OK);
    assert_int_equal(s.graph->node_count, 1);
    assert_string_equal(s.graph->outputs[0]->name, "y");
    assert_ptr_equal(s.graph->outputs[0]->producer, s.conv);
    assert_int_equal(s.graph->value_count, 3);
    mlo_model_free(s.model);
}

static void test_edit__insert_replace_and_fold(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_error err = {0};
    struct mlo_value *half = mlo_graph_add_value(s.graph, "half", NULL);
    assert_true(mlo_value_replace_uses(s.c, half));
    struct mlo_node *abs = mlo_graph_add_node(s.graph, s.relu, "", "Abs", "abs", &s.c, 1, &half, 1);
    assert_int_equal(abs->index, 1);
    assert_int_equal(s.relu->index, 2);
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_OK);
    struct mlo_tensor t;
    int64_t dims[4] = {1, 3, 4, 4};
    assert_int_equal(mlo_tensor_init(&t, MLO_FLOAT32, 4, dims, &err), MLO_OK);
    assert_int_equal(mlo_value_make_constant_take(half, &t, &err), MLO_OK);
    assert_null(abs->outputs[0]);
    mlo_graph_remove_node(abs);
    mlo_graph_remove_node(s.conv);
    mlo_graph_remove_unused_values(s.graph);
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_OK);
    assert_null(mlo_graph_value(s.graph, "w"));
    assert_int_equal(mlo_graph_infer(s.graph, &err), MLO_OK);
    assert_int_equal(s.y->type.dims[0].value, 1);
    mlo_model_free(s.model);
}

static void test_verify__finds_what_is_broken(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct small s = make();
    s.relu->inputs[0] = s.x; /* behind the back of the uses */
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_EINTERNAL);
    s.relu->inputs[0] = s.c;
    s.w->type.dims[0].value = 7;
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_EINTERNAL);
    assert_non_null(strstr(err.message, "'w'"));
    s.w->type.dims[0].value = 3;
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_OK);
    mlo_graph_remove_node(s.conv);
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_EINTERNAL);
    mlo_model_free(s.model);
}

static void test_sort__orders_and_names_a_cycle(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_error err = {0};
    struct mlo_node *conv = s.graph->nodes[0], *relu = s.graph->nodes[1];
    s.graph->nodes[0] = relu;
    s.graph->nodes[1] = conv;
    relu->index = 0;
    conv->index = 1;
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_EINTERNAL);
    assert_int_equal(mlo_graph_sort(s.graph, &err), MLO_OK);
    assert_ptr_equal(s.graph->nodes[0], conv);
    assert_int_equal(mlo_graph_verify(s.graph, &err), MLO_OK);
    assert_true(mlo_node_set_input(conv, 0, s.y));
    assert_int_equal(mlo_graph_sort(s.graph, &err), MLO_EFORMAT);
    assert_non_null(strstr(err.message, "cycle"));
    mlo_model_free(s.model);
}

static void test_clone__shares_nothing(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_error err = {0};
    struct mlo_model *copy;
    struct mlo_buf before = MLO_BUF_INIT, after = MLO_BUF_INIT;
    mlo_graph_dump(s.graph, &before);
    assert_int_equal(mlo_model_clone(s.model, &copy, &err), MLO_OK);
    mlo_model_free(s.model);
    assert_int_equal(mlo_graph_verify(copy->graph, &err), MLO_OK);
    mlo_graph_dump(copy->graph, &after);
    assert_string_equal(mlo_buf_str(&before), mlo_buf_str(&after));
    mlo_buf_clear(&before);
    mlo_buf_clear(&after);
    mlo_model_free(copy);
}

static void test_infer__binds_names_and_contradictions_are_found(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_error err = {0};
    assert_true(mlo_graph_dynamic_batch(s.graph));
    assert_int_equal(mlo_graph_infer(s.graph, &err), MLO_OK);
    assert_string_equal(s.y->type.dims[0].name, "batch");
    assert_int_equal(mlo_node_macs(s.conv), 0);
    assert_int_equal(mlo_graph_bind_batch(s.graph, 5, &err), MLO_OK);
    assert_int_equal(s.y->type.dims[0].value, 5);
    assert_int_equal(mlo_node_macs(s.conv), 5 * 3 * 16 * 2);
    assert_false(mlo_graph_dynamic_batch(s.graph));
    s.y->type.dims[1].value = 9;
    assert_int_equal(mlo_graph_infer(s.graph, &err), MLO_EFORMAT);
    assert_non_null(strstr(err.message, "'y'"));
    assert_non_null(strstr(err.where, "Relu"));
    s.x->type.dims[1].value = 8; /* the weight is for two channels */
    assert_int_equal(mlo_graph_infer(s.graph, &err), MLO_EINVAL);
    assert_non_null(strstr(err.where, "conv"));
    mlo_model_free(s.model);
}

static void test_op_table__is_sound(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    assert_int_equal(mlo_op_table_check(&err), MLO_OK);
    assert_int_equal(mlo_op_find("", "Softmax", 12)->since, 11);
    assert_int_equal(mlo_op_find("", "Softmax", 13)->since, 13);
    assert_int_equal(mlo_op_find("", "Softmax", 99)->since, 13);
    assert_null(mlo_op_find("", "HardSwish", 13));
    assert_true(mlo_op_known("", "HardSwish"));
    assert_null(mlo_op_find("com.microsoft", "Conv", 1));
}

static void test_op__unknown_is_named_with_the_nearest(void **state)
{
    MLO_UNUSED(state);
    struct small s = make();
    struct mlo_error err = {0};
    struct mlo_value *out = mlo_graph_add_value(s.graph, "z", NULL);
    mlo_graph_add_node(s.graph, NULL, "", "Sigmoyd", "odd", &s.y, 1, &out, 1);
    assert_int_equal(mlo_graph_check_supported(s.graph, &err), MLO_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "Sigmoyd"));
    assert_non_null(strstr(err.message, "opset 13"));
    assert_non_null(strstr(err.where, "odd"));
    assert_string_equal(err.hint, "did you mean Sigmoid?");
    mlo_model_free(s.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__dump_is_stable),
        cmocka_unit_test(test_model__names_are_made_unique),
        cmocka_unit_test(test_edit__bypass_keeps_the_output_name),
        cmocka_unit_test(test_edit__insert_replace_and_fold),
        cmocka_unit_test(test_verify__finds_what_is_broken),
        cmocka_unit_test(test_sort__orders_and_names_a_cycle),
        cmocka_unit_test(test_clone__shares_nothing),
        cmocka_unit_test(test_infer__binds_names_and_contradictions_are_found),
        cmocka_unit_test(test_op_table__is_sound),
        cmocka_unit_test(test_op__unknown_is_named_with_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
