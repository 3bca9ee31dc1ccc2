/* Model-local functions. */
#include "proto.h"

/* scale(x; k = 2) = x * k */
static Onnx__FunctionProto *scale(struct mlo_arena *a)
{
    Onnx__NodeProto *k = proto_node(a, "Constant", "", "k");
    proto_attr(a, k, "value_float", MLO_ATTR_FLOAT)->ref_attr_name = (char *)"factor";
    Onnx__FunctionProto *fn = proto_function(a, "Scale", "x", "y", k, proto_node(a, "Mul", "x,k", "y"), NULL);
    Onnx__AttributeProto *fallback = proto_attr(a, NULL, "factor", MLO_ATTR_FLOAT);
    fallback->has_f = 1;
    fallback->f = 2;
    fn->attribute_proto[fn->n_attribute_proto++] = fallback;
    return fn;
}

static float run_one(struct proto_fixture *f, float x)
{
    struct mlo_tensor in = proto_floats(&x, 1), out = {0};
    if (mlo_graph_eval(f->model->graph, &in, &out, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
    float y = ((float *)out.data)[0];
    mlo_tensor_clear(&out);
    return y;
}

static void load(struct proto_fixture *f, const Onnx__ModelProto *p)
{
    if (proto_load(p, &f->model, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
}

static void test_functions__nest_and_pass_attributes(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__ModelProto *p =
        proto_model(a, proto_graph(a, "x:f1", "y:f1", proto_node(a, "local.Both", "x", "y"), NULL), 17);
    p->functions[p->n_functions++] = scale(a);
    p->functions[p->n_functions++] =
        proto_function(a, "Both", "x", "y", proto_f(a, proto_node(a, "local.Scale", "x", "k"), "factor", 5),
                       proto_node(a, "local.Scale", "k", "y"), NULL);
    load(f, p);
    assert_true(run_one(f, 3) == 30);
    assert_string_equal(f->model->graph->outputs[0]->name, "y");
    assert_int_equal(f->model->graph->node_count, 4);
    /* what is written has no functions, and means the same */
    struct mlo_buf bytes = MLO_BUF_INIT;
    assert_int_equal(mlo_onnx_serialize(f->model, &bytes, &f->err), MLO_OK);
    mlo_model_free(f->model);
    assert_int_equal(mlo_onnx_parse(bytes.data, bytes.len, "again", &f->model, &f->err), MLO_OK);
    mlo_buf_clear(&bytes);
    assert_true(run_one(f, 3) == 30);
}

static void test_functions__subgraphs_see_the_functions_values(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__NodeProto *choose = proto_node(a, "If", "big", "y");
    proto_g(a, choose, "then_branch", proto_graph(a, "", "r:f", proto_node(a, "Neg", "t", "r"), NULL));
    proto_g(a, choose, "else_branch", proto_graph(a, "", "r2:f", proto_node(a, "Identity", "x", "r2"), NULL));
    Onnx__NodeProto *call = proto_node(a, "local.F", "x", "m"), *again = proto_node(a, "local.F", "m", "y");
    Onnx__ModelProto *p = proto_model(a, proto_graph(a, "x:f1", "y:f1", call, again, NULL), 17);
    p->functions[p->n_functions++] = scale(a);
    p->functions[p->n_functions++] = proto_function(
        a, "F", "x", "y", proto_f(a, proto_node(a, "Constant", "", "limit"), "value_float", 10),
        proto_node(a, "local.Scale", "x", "t"), proto_node(a, "Greater", "x,limit", "many"),
        proto_node(a, "Squeeze", "many", "big"), choose, NULL);
    load(f, p);
    assert_true(run_one(f, 3) == 3);
    assert_true(run_one(f, 11) == -22);
}

static void test_functions__an_output_may_be_an_input(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__ModelProto *p =
        proto_model(a, proto_graph(a, "x:f1", "y:f1,z:f1", proto_node(a, "local.F", "x", "y,z"), NULL), 17);
    p->functions[p->n_functions++] = proto_function(a, "F", "v", "v,w", proto_node(a, "Neg", "v", "w"), NULL);
    load(f, p);
    float x = 4;
    struct mlo_tensor in = proto_floats(&x, 1), out[2] = {0};
    assert_int_equal(mlo_graph_eval(f->model->graph, &in, out, &f->err), MLO_OK);
    assert_true(((float *)out[0].data)[0] == 4 && ((float *)out[1].data)[0] == -4);
    mlo_tensor_clear(&out[0]);
    mlo_tensor_clear(&out[1]);
}

static void test_functions__recursion_is_refused(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__ModelProto *p =
        proto_model(a, proto_graph(a, "x:f1", "y:f1", proto_node(a, "local.A", "x", "y"), NULL), 17);
    p->functions[p->n_functions++] =
        proto_function(a, "A", "x", "y", proto_node(a, "local.B", "x", "y"), NULL);
    p->functions[p->n_functions++] =
        proto_function(a, "B", "x", "y", proto_node(a, "local.A", "x", "y"), NULL);
    assert_int_equal(proto_load(p, &f->model, &f->err), MLO_EFORMAT);
    assert_non_null(strstr(f->err.message, "recursive"));
}

static void test_functions__multiplying_calls_are_refused(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__ModelProto *p =
        proto_model(a, proto_graph(a, "x:f1", "y:f1", proto_node(a, "local.F9", "x", "y"), NULL), 17);
    for (int i = 0; i < 10; i++) { /* 32 to the power of 10 nodes */
        char name[24], inner[24];
        snprintf(name, sizeof name, "F%d", i);
        snprintf(inner, sizeof inner, i ? "local.F%d" : "Neg", i - 1);
        Onnx__FunctionProto *fn = proto_function(a, name, "v0", "v32", NULL);
        for (int k = 0; k < 32; k++) {
            char from[24], to[24];
            snprintf(from, sizeof from, "v%d", k);
            snprintf(to, sizeof to, "v%d", k + 1);
            fn->node[fn->n_node++] = proto_node(a, inner, from, to);
        }
        p->functions[p->n_functions++] = fn;
    }
    assert_int_equal(proto_load(p, &f->model, &f->err), MLO_ETOOBIG);
    assert_non_null(strstr(f->err.message, "functions expand"));
}

static void test_functions__opsets_must_mean_the_same(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__ModelProto *p =
        proto_model(a, proto_graph(a, "x:f1", "y:f", proto_node(a, "local.F", "x", "y"), NULL), 12);
    p->functions[p->n_functions++] =
        proto_function(a, "F", "x", "y", proto_node(a, "Squeeze", "x", "y"), NULL);
    assert_int_equal(proto_load(p, &f->model, &f->err), MLO_EUNSUPPORTED);
    assert_non_null(strstr(f->err.message, "opset 17"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, proto_set_up, proto_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_functions__nest_and_pass_attributes),
        CASE(test_functions__subgraphs_see_the_functions_values),
        CASE(test_functions__an_output_may_be_an_input),
        CASE(test_functions__recursion_is_refused),
        CASE(test_functions__multiplying_calls_are_refused),
        CASE(test_functions__opsets_must_mean_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
