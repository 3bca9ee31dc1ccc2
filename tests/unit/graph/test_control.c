/* If, Loop, Scan and SequenceMap: outer values, limits, inference. */
#include "proto.h"

static void load(struct proto_fixture *f, Onnx__GraphProto *g, int64_t opset)
{
    if (proto_load(proto_model(f->arena, g, opset), &f->model, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
}

/* while (1) { s = s + x; } : x is the main graph's. */
static Onnx__GraphProto *endless(struct mlo_arena *a)
{
    Onnx__GraphProto *body =
        proto_graph(a, "i:i.,c:b.,s:f", "c2:b.,s2:f", proto_node(a, "Identity", "c", "c2"),
                    proto_node(a, "Add", "s,x", "s2"), NULL);
    return proto_graph(a, "x:f1,go:b.", "y:f1", proto_g(a, proto_node(a, "Loop", ",go,x", "y"), "body", body),
                       NULL);
}

static void test_control__an_endless_loop_ends_in_an_error(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_eval eval;
    float x = 1;
    uint8_t go = 1;
    struct mlo_tensor in = proto_floats(&x, 1),
                      flag = {.dtype = MLO_BOOL, .data = &go, .size_bytes = sizeof go};
    load(f, endless(f->arena), 17);
    const struct mlo_graph *g = f->model->graph;
    assert_int_equal(mlo_eval_init(&eval, g, NULL, &f->err), MLO_OK);
    mlo_eval_feed(&eval, g->inputs[0], &in);
    mlo_eval_feed(&eval, g->inputs[1], &flag);
    eval.trips_left = 1000;
    assert_int_equal(mlo_eval_run(&eval, &f->err), MLO_ETOOBIG);
    assert_non_null(strstr(f->err.message, "loop bodies ran"));
    assert_non_null(strstr(f->err.where, "Loop"));
    go = 0; /* and a loop that is not entered gives what it was given */
    mlo_eval_drop(&eval);
    mlo_eval_feed(&eval, g->inputs[0], &in);
    mlo_eval_feed(&eval, g->inputs[1], &flag);
    assert_int_equal(mlo_eval_run(&eval, &f->err), MLO_OK);
    assert_true(((float *)mlo_eval_content(&eval, g->outputs[0])->data)[0] == 1);
    mlo_eval_clear(&eval);
}

/* Three trips of: s = s ++ x[i]; gathered: s's length. The state's shape grows. */
static void test_control__a_growing_state_has_no_fixed_shape(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__GraphProto *body = proto_graph(
        a, "i:i.,c:b.,s:f", "c2:b.,s2:f,n:i", proto_node(a, "Identity", "c", "c2"),
        proto_i(a, proto_node(a, "Concat", "s,x", "s2"), "axis", 0), proto_node(a, "Size", "s2", "n"), NULL);
    Onnx__NodeProto *trips = proto_i(a, proto_node(a, "Constant", "", "m"), "value_int", 3);
    load(f,
         proto_graph(a, "x:f2", "y:f,n_all:i", trips,
                     proto_g(a, proto_node(a, "Loop", "m,,x", "y,n_all"), "body", body), NULL),
         17);
    const struct mlo_graph *g = f->model->graph;
    assert_int_equal(g->outputs[0]->type.dtype, MLO_FLOAT32);
    assert_false(mlo_type_static(&g->outputs[0]->type, NULL));
    assert_int_equal(g->outputs[1]->type.rank, 1);
    float x[2] = {1, 2};
    struct mlo_tensor in = proto_floats(x, 2), out[2] = {0};
    if (mlo_graph_eval(g, &in, out, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
    assert_int_equal(out[0].dims[0], 8);
    assert_true(((float *)out[0].data)[7] == 2);
    assert_int_equal(out[1].dims[0], 3);
    assert_int_equal(((int64_t *)out[1].data)[0], 4);
    assert_int_equal(((int64_t *)out[1].data)[2], 8);
    mlo_tensor_clear(&out[0]);
    mlo_tensor_clear(&out[1]);
}

/* A state whose shape stays is known outside, whatever the number of trips. */
static void test_control__a_steady_state_keeps_its_shape(void **state)
{
    struct proto_fixture *f = *state;
    load(f, endless(f->arena), 17);
    int64_t dims[MLO_MAX_RANK];
    assert_true(mlo_type_static(&f->model->graph->outputs[0]->type, dims));
    struct mlo_graph *body = mlo_node_attr(f->model->graph->nodes[0], "body")->graph;
    assert_true(mlo_type_static(&body->outputs[1]->type, dims));
    assert_int_equal(dims[0], 1);
}

/* An If in a Loop's body that reads the main graph's value, the body's and its own. */
static void test_control__scopes_nest(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__NodeProto *choose = proto_node(a, "If", "odd", "s2");
    proto_g(
        a, choose, "then_branch",
        proto_graph(a, "", "r:f", proto_node(a, "Neg", "x", "t"), proto_node(a, "Add", "s,t", "r"), NULL));
    proto_g(a, choose, "else_branch", proto_graph(a, "", "r2:f", proto_node(a, "Add", "s,x", "r2"), NULL));
    Onnx__GraphProto *body =
        proto_graph(a, "i:i.,c:b.,s:f", "c2:b.,s2:f", proto_node(a, "Identity", "c", "c2"),
                    proto_i(a, proto_node(a, "Constant", "", "one"), "value_int", 1),
                    proto_node(a, "Equal", "i,one", "odd"), choose, NULL);
    load(f,
         proto_graph(a, "x:f1", "y:f1", proto_i(a, proto_node(a, "Constant", "", "m"), "value_int", 4),
                     proto_g(a, proto_node(a, "Loop", "m,,x", "y"), "body", body), NULL),
         17);
    float x = 10;
    struct mlo_tensor in = proto_floats(&x, 1), out = {0};
    if (mlo_graph_eval(f->model->graph, &in, &out, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
    assert_true(((float *)out.data)[0] == 30); /* 10 + 10 - 10 + 10 + 10 */
    mlo_tensor_clear(&out);
    struct mlo_model *copy;
    assert_int_equal(mlo_model_clone(f->model, &copy, &f->err), MLO_OK);
    assert_int_equal(mlo_graph_eval(copy->graph, &in, &out, &f->err), MLO_OK);
    assert_true(((float *)out.data)[0] == 30);
    mlo_tensor_clear(&out);
    mlo_model_free(copy);
}

/* Running sums over axis 1, backwards, stacked along axis 1, backwards too. */
static void test_control__scan_minds_axes_and_directions(void **state)
{
    static const int64_t one[] = {1};
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__GraphProto *body = proto_graph(a, "s:f2,e:f2", "s2:f2,o:f2", proto_node(a, "Add", "s,e", "s2"),
                                         proto_node(a, "Identity", "s2", "o"), NULL);
    Onnx__NodeProto *scan = proto_i(a, proto_node(a, "Scan", "s0,x", "last,all"), "num_scan_inputs", 1);
    static const char *const lists[] = {"scan_input_axes", "scan_input_directions", "scan_output_axes",
                                        "scan_output_directions"};
    for (size_t i = 0; i < MLO_COUNT(lists); i++)
        proto_ints(a, scan, lists[i], one, 1);
    load(f, proto_graph(a, "s0:f2,x:f2x3", "last:f2,all:f2x3", proto_g(a, scan, "body", body), NULL), 17);
    float s0[2] = {0, 100}, x[6] = {1, 2, 3, 4, 5, 6};
    struct mlo_tensor in[2] = {proto_floats(s0, 2), {MLO_FLOAT32, 2, {2, 3}, x, sizeof x, false}},
                      out[2] = {0};
    if (mlo_graph_eval(f->model->graph, in, out, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
    static const float want[] = {6, 5, 3, 115, 111, 106};
    assert_true(((float *)out[0].data)[0] == 6 && ((float *)out[0].data)[1] == 115);
    assert_memory_equal(out[1].data, want, sizeof want);
    mlo_tensor_clear(&out[0]);
    mlo_tensor_clear(&out[1]);
}

static void test_control__bad_bodies_are_named(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__NodeProto *choose = proto_node(a, "If", "c", "y");
    proto_g(a, choose, "then_branch", proto_graph(a, "", "r:f", proto_node(a, "Neg", "x", "r"), NULL));
    Onnx__GraphProto *g = proto_graph(a, "x:f1,c:b.", "y:f1", choose, NULL);
    assert_int_equal(proto_load(proto_model(a, g, 17), &f->model, &f->err), MLO_EFORMAT);
    assert_non_null(strstr(f->err.message, "else_branch"));
    proto_g(a, choose, "else_branch",
            proto_graph(a, "", "q:i", proto_node(a, "Shape", "x", "q"), NULL)); /* int64 and float32 */
    f->err = (struct mlo_error){0};
    assert_int_equal(proto_load(proto_model(a, g, 17), &f->model, &f->err), MLO_EFORMAT);
    assert_non_null(strstr(f->err.where, "If"));
    Onnx__GraphProto *unknown = proto_graph(a, "", "q:f", proto_node(a, "Bogus", "x", "q"), NULL);
    choose->attribute[1]->g = unknown;
    f->err = (struct mlo_error){0};
    assert_int_equal(proto_load(proto_model(a, g, 17), &f->model, &f->err), MLO_OK);
    assert_int_equal(mlo_graph_check_supported(f->model->graph, &f->err), MLO_EUNSUPPORTED);
    assert_non_null(strstr(f->err.message, "Bogus"));
}

/* Loops in loops: inference rounds must not multiply without bound. */
static void test_control__deep_nesting_infers_fast(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__NodeProto *inner = proto_i(a, proto_node(a, "Concat", "x,x", "y_0"), "axis", 0);
    for (int d = 1; d <= 18; d++) {
        char in[64], out[64], ends[64], given[64], pass[64], cond[64];
        snprintf(in, sizeof in, "i_%d:i.,c_%d:b.,s_%d:f", d, d, d);
        snprintf(out, sizeof out, "d_%d:b.,y_%d:f", d, d - 1);
        snprintf(pass, sizeof pass, "c_%d", d);
        snprintf(cond, sizeof cond, "d_%d", d);
        snprintf(given, sizeof given, ",,x");
        snprintf(ends, sizeof ends, "y_%d", d);
        Onnx__GraphProto *body = proto_graph(a, in, out, proto_node(a, "Identity", pass, cond), inner, NULL);
        inner = proto_g(a, proto_node(a, "Loop", given, ends), "body", body);
    }
    load(f, proto_graph(a, "x:f1", "y_18:f", inner, NULL), 17);
    assert_int_equal(f->model->graph->outputs[0]->type.dtype, MLO_FLOAT32);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, proto_set_up, proto_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_control__an_endless_loop_ends_in_an_error),
        CASE(test_control__a_growing_state_has_no_fixed_shape),
        CASE(test_control__a_steady_state_keeps_its_shape),
        CASE(test_control__scopes_nest),
        CASE(test_control__scan_minds_axes_and_directions),
        CASE(test_control__bad_bodies_are_named),
        CASE(test_control__deep_nesting_infers_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
